"""`run --source` and `compare --source`: from the user's table to costs.csv and its summary."""

import csv

import pytest
from typer.testing import CliRunner

from labelahead.cli import app
from tests.learner.test_source_query import write_files
from tests.simulation.test_source_campaign import MODEL, PERSON, write_table

TWO = ("--source", PERSON, "--source", MODEL)


def run_command(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_run_writes_accuracy_against_money(tmp_path):
    table, place = write_table(tmp_path, 80), tmp_path / "out"
    code, output = run_command(
        "run", "--data", table, *TWO, "--budget-money", 1.5, "--initial", 10, "--threads", 1,
        "--out", place,
    )  # fmt: skip
    assert code == 0, output
    rows = read(place / "costs.csv")
    assert float(rows[-1]["cost"]) <= 1.5
    assert set(rows[0]) == {"round", "cost", "accuracy", "labels:anna", "labels:llm"}
    for part in ("cost to reach 90%:", "anna 0.1 and llm 0.001 per label, at most 1.50"):
        assert part in output
    assert (place / "curve.png").read_bytes().startswith(b"\x89PNG")
    code, output = run_command("resume", place)
    assert (code, "takes the same course" in output) == (2, True)
    config = place / "config.toml"
    code, output = run_command("run", "--config", config, "--out", tmp_path / "again")
    assert code == 0, output
    assert read(tmp_path / "again" / "costs.csv") == rows


def test_compare_tabulates_costs_and_goes_on(tmp_path):
    table, place = write_table(tmp_path, 60), tmp_path / "out"
    words = ("compare", "--data", table, *TWO, "--budget-money", 1.5, "--initial", 10)
    code, output = run_command(
        *words, "--strategies", "pairs,threshold", "--seeds", 1, "--out", place
    )
    assert code == 0, output
    assert "2 strategies × 1 seeds = 2 campaigns" in output
    assert {r["strategy"] for r in read(place / "costs.csv")} == {"pairs", "threshold"}
    assert [r["accuracy"] for r in read(place / "summary.csv")] == ["0.8", "0.85", "0.9", "0.95"]
    code, output = run_command("compare", "--out", place, "--strategies", "threshold", "--seeds", 2)
    assert code == 0, output
    assert ("threshold, seed 0" in output, "threshold, seed 1" in output) == (False, True)
    code, output = run_command("report", place, "--accuracy", 0.6)
    assert code == 0, output
    assert [r["accuracy"] for r in read(place / "summary.csv")] == ["0.6"]
    assert "60%" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--budget-money", 1), "--budget-money needs the prices"),
        (("compare", "--budget-money", 1), "--budget-money needs the prices"),
        (("run", "--source", PERSON), "expected two with different names"),
        (("run", *TWO, "--labels", 50), "--labels does not go with --source"),
        (("run", *TWO, "--against", "random"), "--against does not go with --source"),
        (("run", *TWO, "--budget-money", -1), "money is -1"),
        (("run", *TWO, "--strategy", "nope"), "nope"),
        (("compare", *TWO, "--workers", 2), "--workers does not go with --source"),
        (("compare", *TWO, "--strategies", "pairs,nope"), "nope"),
        (
            ("query", "--set", 'sources=["a:price=1","b:price=2"]'),
            "which only `run` and `compare` do",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, words, message):
    table = write_table(tmp_path, 40)
    command, *rest = words
    code, output = run_command(command, "--data", table, *rest)
    assert (code, message in " ".join(output.split())) == (2, True), output


def test_too_little_money_is_said(tmp_path):
    code, output = run_command(
        "run", "--data", write_table(tmp_path, 40), *TWO, "--budget-money", 0, "--initial", 5,
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert code == 0, output
    assert "no label can be paid with 0.00" in output


def test_query_names_item_and_source(tmp_path):
    write_files(tmp_path)
    file = tmp_path / "next.csv"
    words = ("query", "--data", tmp_path / "items.csv", "--labels", tmp_path / "labels.csv")
    code, output = run_command(
        *words, "--price", "anna=0.10,llm=0.001", "--error-rate", "anna=0", "--n", 5, "--out", file
    )
    assert code == 0, output
    rows = read(file)
    assert len(rows) == 5
    assert {r["source"] for r in rows} <= {"anna", "llm"}
    assert "llm: an estimated" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--value", 1), "--value goes with --price"),
        (("--budget-money", 1), "--budget-money goes with --price"),
        (("--error-rate", "llm=0.2"), "--error-rate goes with --price"),
        (("--price", "anna"), "NAME=PRICE"),
        (("--price", "anna=1", "--error-rate", "llm=0.2"), "'llm' has an error rate, but no price"),
        (("--price", "anna=1", "--strategy", "flip"), "--strategy does not go with --price"),
    ],
)
def test_query_refuses_options_that_do_not_fit(tmp_path, words, message):
    write_files(tmp_path)
    code, output = run_command("query", "--data", tmp_path / "items.csv", *words)
    assert (code, message in output) == (2, True), output
