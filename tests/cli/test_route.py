"""`labelahead route`: from the user's file to the CSV."""

import csv

import pytest
from typer.testing import CliRunner

from labelahead.cli import app
from tests.learner.test_routing import write_files


def run(folder, *words):
    given = ["route", str(folder / "t.csv"), "--labels", str(folder / "labels.csv"), *words]
    return CliRunner().invoke(app, [*given, "--threads", "1", "--out", str(folder / "routes.csv")])


def test_command_writes_routes_and_draws_the_curve(tmp_path):
    write_files(tmp_path)
    done = run(
        tmp_path, "--guesses", "llm", "--price", "human=0.10,llm=0.001",
        "--plot", str(tmp_path / "curve.png"),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    for part in ("the guesses are right for", "ask a person", "expected accuracy", "cost"):
        assert part in done.output
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "routes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 300
    assert {r["route"] for r in rows} >= {"labelled", "model", "human"}
    assert all(0 <= float(r["probability"]) <= 1 and r["reason"] for r in rows)


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["--price", "human=1,llm=0.1"], "--guesses is missing", 2),
        (["--guesses", "llm", "--price", "human=1,bob=2"], "there is no source 'bob'", 2),
        (["--guesses", "llm", "--price", "human=-1"], "NAME=PRICE", 2),
        (["--guesses", "llm", "--price", "human=nan"], "NAME=PRICE", 2),
        (["--guesses", "llm", "--price", "human=1", "--plot", "x.jpg"], "ends in .png", 2),
        (["--guesses", "nope", "--price", "human=1"], "has none of that name", 1),
    ],
)
def test_command_refuses_bad_input_and_writes_nothing(tmp_path, words, message, code):
    write_files(tmp_path, items=40, labelled=20)
    done = run(tmp_path, *words)
    assert done.exit_code == code, done.output
    assert message in done.output
    assert not (tmp_path / "routes.csv").exists()


def test_free_people_label_everything(tmp_path):
    """A price of 0 is a price."""
    write_files(tmp_path, items=60, labelled=20)
    done = run(tmp_path, "--guesses", "llm", "--price", "human=0", "--budget-money", "0")
    assert done.exit_code == 0, done.output
    with (tmp_path / "routes.csv").open() as file:
        assert {r["route"] for r in csv.DictReader(file)} == {"labelled", "human"}
