"""Predictions in a project as guesses."""

import csv

import pytest
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.data import load_source
from labelahead.errors import InputError
from labelahead.integrations.label_studio.connection import Connection
from labelahead.integrations.label_studio.interface import read_interface
from labelahead.integrations.label_studio.predictions import read_guess, write_predictions
from labelahead.learner.config import parse_campaign, read_stored
from tests.support.label_studio import CONFIG, KEY, make_choice, make_tasks, replay

INTERFACE = read_interface(CONFIG)


def make_prediction(number, name, version="gpt"):
    return {"id": number, "model_version": version, "result": make_choice(name), "score": 0.7}


def test_latest_prediction_of_another_model_is_the_guess():
    made = [
        make_prediction(3, "food"),
        make_prediction(7, "space", "labelahead-123"),
        make_prediction(8, "space", "labelahead"),
        make_prediction(5, "Sport"),
    ]
    assert read_guess(INTERFACE, made) == "sport"
    assert read_guess(INTERFACE, made[1:3]) is None
    assert read_guess(INTERFACE, [make_prediction(1, "opera"), {"id": 2, "result": None}]) is None
    assert read_guess(INTERFACE, []) is None


@pytest.fixture
def studio():
    """A project of 30 tasks; another model is right about every task but every fifth."""
    with replay() as server:
        rows = make_tasks(30)
        tasks = []
        for i, row in enumerate(rows, 1):
            said = row["truth"] if i % 5 else "space"
            made = [make_prediction(i, said), make_prediction(100 + i, "food", "labelahead-1")]
            tasks.append({"id": i, "data": {"text": row["text"]}, "predictions": made})
        tasks[3]["predictions"] = []
        server.replies["tasks"] = {"total": len(tasks), "tasks": tasks}
        server.replies["project"]["label_config"] = CONFIG
        server.replies["annotations"] = []
        yield server


def test_predictions_are_written_by_task_id(studio, tmp_path):
    connection = Connection.open(studio.url, KEY, studio.project, tmp_path)
    file, count = write_predictions(connection.studio, connection.interface, tmp_path)
    with file.open(newline="") as text:
        rows = {row["id"]: row["guess"] for row in csv.DictReader(text)}
    assert (count, len(rows), rows["4"], rows["5"]) == (29, 30, "", "space")
    for task in studio.replies["tasks"]["tasks"]:
        task["predictions"] = task["predictions"][1:]
    with pytest.raises(InputError, match="none of the project's 30 tasks has a prediction"):
        write_predictions(connection.studio, connection.interface, tmp_path)


def test_command_starts_from_the_predictions(studio, tmp_path, monkeypatch):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    words = ["label-studio", studio.url, "--project", str(studio.project), "--embedding", "words"]
    words += ["--out", str(tmp_path / "out"), "--export", "csv", "--to", str(tmp_path / "l.csv")]
    result = CliRunner().invoke(app, [*words, "--guesses", "predictions"])
    assert result.exit_code == 0, result.output
    assert "guesses: 29 predictions of other models" in result.output
    campaign = parse_campaign(read_stored(tmp_path / "out" / "session.toml"))
    assert campaign.data.guesses == (str(tmp_path / "out" / "predictions.csv"),)
    data, _ = load_source(campaign.data, 0)
    (guesses,) = data.guesses.values()
    expected = {
        f"{task['id']}.txt": read_guess(INTERFACE, task["predictions"])
        for task in studio.replies["tasks"]["tasks"]
    }
    for item, p in zip(data.ids, guesses.probabilities, strict=True):
        found = guesses.classes[int(p.argmax())] if p.any() else None
        assert found == expected[item]
