"""The model of a session: downloaded, loaded in Python, and used by the commands."""

import csv
import io
import json
import zipfile
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import labelahead as la
from labelahead.cli import app
from labelahead.errors import InputError
from tests.support.web_sessions import CHANGE, page, photos

EXACT = {"model": {"name": "exact"}, "asking": {"strategy": "resolve"}, "data": {"size": 16}}


def run_command(*arguments) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.output


@pytest.fixture
def labelled(tmp_path, monkeypatch):
    """Open a session with half of the images labelled."""
    from labelahead.learner import encoding as inputs

    # Use pixels: computing features takes a second.
    monkeypatch.setattr(inputs, "is_image_encoder_available", lambda: False)
    source, out = photos(tmp_path / "set", 20), tmp_path / "out"
    tables = {**EXACT, "data": {"name": str(source), "size": 16}}
    with page(source, out, classes=["light", "dark"], tables=tables) as (client, session):
        refused = client.get("/api/model")
        assert (refused.status_code, "at least two classes" in refused.json()["error"]) == (
            400,
            True,
        )
        for position in range(10):
            body = {"position": position, "kind": "label", "label": position % 2}
            assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 200
        yield client, session, source, out


def test_model_download_equals_a_learner_on_the_same_labels(labelled, tmp_path):
    client, _, source, _ = labelled
    reply = client.get("/api/model")
    assert reply.status_code == 200
    assert reply.headers["content-disposition"] == 'attachment; filename="set-model.zip"'
    with zipfile.ZipFile(io.BytesIO(reply.content)) as archive:
        archive.extractall(tmp_path / "model")
    model = la.load_model(tmp_path / "model")
    predictions = model.predict(source)
    assert predictions.labels == ["light", "dark"] * 10
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert about["labels"] == {"light": 5, "dark": 5}
    assert 0.6 < about["accuracy"]["estimated"] <= 1.0
    assert (
        "estimated for items without a label, by 10 labels ("
        in (tmp_path / "model" / "README.md").read_text()
    )
    # The same labels and inputs with a learner of our own.
    data, _ = load_images(source)
    learner = la.Learner(la.exact(data.inputs, 2), data.inputs, "resolve")
    learner.teach(range(10), torch.arange(10) % 2)
    learner.train()
    assert torch.equal(predictions.probabilities.argmax(1), learner.predict().argmax(1))
    uncalibrated = replace(model, about={**model.about, "spread": None})
    assert torch.allclose(uncalibrated.predict(source).probabilities, learner.predict(), atol=1e-5)


def load_images(source):
    from labelahead.data import load

    return load(source, size=16)


def test_second_model_export_is_refused_while_one_runs(labelled, monkeypatch):
    client, _, _, _ = labelled
    from labelahead.server import routes

    statuses = []
    build_exported_model = routes.build_exported_model

    def build_with_second_request(service, schedule):
        statuses.append(client.get("/api/model").status_code)
        return build_exported_model(service, schedule)

    monkeypatch.setattr(routes, "build_exported_model", build_with_second_request)
    assert client.get("/api/model").status_code == 200
    assert statuses == [409]
    assert client.get("/api/session").status_code == 200


def test_export_model_and_predict_commands_use_the_sessions_model(labelled, tmp_path):
    _, _, _, out = labelled  # the session stays open
    code, output = run_command("export-model", out, "--to", tmp_path / "model", "--no-onnx")
    assert code == 0, output
    assert "labels: 10 in all" in output
    new = photos(tmp_path / "new", 4)
    (new / "broken.jpg").write_bytes(b"none")
    code, output = run_command("predict", tmp_path / "model", new, "--out", tmp_path / "p.csv")
    assert code == 0, output
    assert "broken.jpg cannot be read" in output
    assert "4 items" in output
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [(r["id"], r["prediction"]) for r in rows] == [
        (f"{i:02d}.png", ["light", "dark"][i % 2]) for i in range(4)
    ]
    assert set(rows[0]) == {"id", "file_name", "prediction", "probability", "unlike_labelled"}
    code, direct = run_command("predict", out, new)
    assert code == 0, direct
    assert [line.split(",")[:3] for line in direct.splitlines() if line.startswith("0")] == [
        [r["id"], r["file_name"], r["prediction"]] for r in rows
    ]
    code, output = run_command("export-model", out, "--to", tmp_path / "model")
    assert (code, "exists already" in output) == (1, True)
    code, output = run_command("predict", tmp_path, new)
    assert (code, "holds no model" in output) == (1, True)
    code, output = run_command(
        "predict", tmp_path / "model", new, "--out", tmp_path / "none" / "p.csv"
    )
    assert (code, "folder that exists" in output) == (2, True)


def test_load_model_of_a_session_without_labels_is_refused(tmp_path):
    source = photos(tmp_path / "set", 4)
    with page(source, tmp_path / "out", classes=["a", "b"]):
        pass
    with pytest.raises(InputError, match="0 labels of 0 classes"):
        la.load_model(tmp_path / "out")
