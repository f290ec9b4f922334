"""`labelahead audit`: from the user's file to the certificate."""

import json

import pytest
from typer.testing import CliRunner

from labelahead.cli import app
from tests.support.audits import fill_labels, write_pool


def run(folder, *words):
    return CliRunner().invoke(app, ["audit", str(folder / "predictions.csv"), *words])


def test_audit_from_predictions_to_certificate(tmp_path):
    truth = write_pool(tmp_path, items=300)
    place = tmp_path / "predictions.csv.audit"
    done = run(tmp_path, "--n", "60", "--until", "8")
    assert done.exit_code == 0, done.output
    assert "300 predictions frozen" in done.output
    assert "share of the draws" in done.output
    for _ in range(4):
        assert "class" not in (place / "next.csv").read_text()  # predictions are not shown
        assert fill_labels(place / "next.csv", truth) == 60
        done = run(
            tmp_path,
            "--labels",
            str(place / "next.csv"),
            "--n",
            "60",
            "--until",
            "8",
            "--who",
            "ann",
        )
        assert done.exit_code == 0, done.output
        assert "95% confidence" in done.output
        if "points are reached" in done.output:
            break
    assert "±8 points are reached" in done.output
    done = run(tmp_path, "--certificate", "--out", str(tmp_path / "c.html"))
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "c.json").read_text())
    predicted = dict(
        line.split(",")[:2] for line in (place / "predictions.csv").read_text().splitlines()[1:]
    )
    right = sum(predicted[name] == label for name, label in truth.items()) / 300
    assert content["accuracy"]["low"] <= right <= content["accuracy"]["high"]
    assert content["annotators"] == ["ann"]
    assert "<html" in (tmp_path / "c.html").read_text()


def test_changed_predictions_are_refused(tmp_path):
    write_pool(tmp_path)
    run(tmp_path)
    path = tmp_path / "predictions.csv"
    path.write_text(path.read_text().replace("class 0", "class 1", 1))
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "is not the file whose predictions are audited" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["--until", "60"], "expected points between 0 and 50", 2),
        (["--teach"], "needs the folder of a labelling session", 2),
        (["--confidence", "95"], "expected a number between 0 and 1", 1),
        (["--prediction", "nope"], "no column 'nope'", 1),
    ],
)
def test_command_refuses_bad_input_and_starts_nothing(tmp_path, words, message, code):
    write_pool(tmp_path)
    done = run(tmp_path, *words)
    assert done.exit_code == code, done.output
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "predictions.csv.audit" / "audit.json").exists()


def test_folder_that_is_no_session_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["audit", str(tmp_path)])
    assert done.exit_code == 1
    assert "is no labelling session" in " ".join(done.output.split())
