"""`labelahead route`: from the user's file to the CSV."""

import csv
import json

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
        (["--guesses", "llm", "--price", "human=1", "--value", "-1"], "the value is -1.0", 2),
        (
            ["--guesses", "llm", "--price", "human=1", "--value", "1", "--target-accuracy", "0.9"],
            "a target accuracy and a value are given",
            2,
        ),
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


def test_value_of_accuracy_bounds_the_labels(tmp_path):
    write_files(tmp_path)
    count = []
    for value in ("0", "5", "20"):
        done = run(tmp_path, "--guesses", "llm", "--price", "human=1,llm=0.1", "--value", value)
        assert done.exit_code == 0, done.output
        with (tmp_path / "routes.csv").open() as file:
            count.append(sum(r["route"] in ("human", "llm") for r in csv.DictReader(file)))
        assert "no further one is asked for" in " ".join(done.output.split())
    assert count[0] == 0 < count[1] < count[2]


def query(folder, *words):
    given = [
        "query",
        "--data",
        str(folder / "t.csv"),
        "--labels",
        str(folder / "labels.csv"),
        *words,
    ]
    done = CliRunner().invoke(app, [*given, "--n", "5", "--format", "json", "--threads", "1"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_commands_take_the_classes_of_guesses_from_the_label_file(tmp_path):
    """Without --classes the answers are those with the names of the label file as --classes."""
    truth = write_files(tmp_path)
    names = ("--classes", ",".join(sorted(set(truth.values()))))
    priced = ("--guesses", "llm", "--price", "anna=1,bob=0.1", "--error-rate", "bob=0.3")
    for words in (("--guesses", "llm"), priced):
        assert query(tmp_path, *words) == query(tmp_path, *words, *names)
    plain = query(tmp_path, "--set", "data.without=llm")
    assert {r["id"]: r["probability"] for r in query(tmp_path, "--guesses", "llm")} != {
        r["id"]: r["probability"] for r in plain
    }
    found = []
    for words in ((), names):
        done = run(tmp_path, "--guesses", "llm", "--price", "human=1,llm=0.1", *words)
        assert done.exit_code == 0, done.output
        found.append((tmp_path / "routes.csv").read_text())
    assert found[0] == found[1]


def test_commands_refuse_guesses_of_a_class_that_no_label_names(tmp_path):
    write_files(tmp_path)
    table = tmp_path / "t.csv"
    lines = table.read_text().splitlines()
    lines[1] = lines[1].rpartition(",")[0] + ",other"
    table.write_text("\n".join(lines) + "\n")
    labels = tmp_path / "labels.csv"
    words = ("query", "--data", str(table), "--labels", str(labels), "--guesses", "llm")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "guesses 1 class that the project does not have (other)" in " ".join(done.output.split())
    labels.write_text("id,label\nn0,x\nn1,x\n")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "all labels are 'x'; expected at least two classes" in " ".join(done.output.split())
