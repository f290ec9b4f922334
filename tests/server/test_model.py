"""The model that the page's labels make: over HTTP, from Python, by the commands."""

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


def say(*arguments) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.output


@pytest.fixture
def labelled(tmp_path, monkeypatch):
    """A folder of labels, half of the pictures labelled, and the pictures."""
    from labelahead.learner import encoding as inputs

    monkeypatch.setattr(
        inputs, "is_image_encoder_available", lambda: False
    )  # by pixels: no second for features
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


def test_the_page_hands_its_model_over(labelled, tmp_path):
    client, _, source, _ = labelled
    sent = client.get("/api/model")
    assert sent.status_code == 200
    assert sent.headers["content-disposition"] == 'attachment; filename="set-model.zip"'
    with zipfile.ZipFile(io.BytesIO(sent.content)) as archive:
        archive.extractall(tmp_path / "model")
    model = la.load_model(tmp_path / "model")
    said = model.predict(source)
    assert said.labels == ["light", "dark"] * 10
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert about["labels"] == {"light": 5, "dark": 5}
    assert 0.6 < about["accuracy"]["estimated"] <= 1.0
    assert (
        "estimated for items without a label, by 10 labels ("
        in (tmp_path / "model" / "README.md").read_text()
    )
    # By hand: what the learner makes of these labels, whose inputs the page holds, too.
    data, _ = la_load(source)
    learner = la.Learner(la.exact(data.inputs, 2), data.inputs, "resolve")
    learner.teach(range(10), torch.arange(10) % 2)
    learner.train()
    assert torch.equal(said.probabilities.argmax(1), learner.predict().argmax(1))
    bare = replace(model, about={**model.about, "spread": None})
    assert torch.allclose(bare.predict(source).probabilities, learner.predict(), atol=1e-5)


def la_load(source):
    from labelahead.data import load

    return load(source, size=16)


def test_only_one_is_made_at_a_time(labelled, monkeypatch):
    client, _, _, _ = labelled
    from labelahead.server import routes

    seen = []
    real = routes.build_exported_model

    def slow(service, schedule):
        seen.append(client.get("/api/model").status_code)
        return real(service, schedule)

    monkeypatch.setattr(routes, "build_exported_model", slow)
    assert client.get("/api/model").status_code == 200
    assert seen == [409]
    assert client.get("/api/session").status_code == 200


def test_the_commands_take_it_away_and_use_it(labelled, tmp_path):
    _, _, _, out = labelled  # the page stays open
    code, said = say("export-model", out, "--to", tmp_path / "model", "--no-onnx")
    assert code == 0, said
    assert "labels: 10 in all" in said
    new = photos(tmp_path / "new", 4)
    (new / "broken.jpg").write_bytes(b"none")
    code, said = say("predict", tmp_path / "model", new, "--out", tmp_path / "p.csv")
    assert code == 0, said
    assert "broken.jpg cannot be read" in said
    assert "4 items" in said
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [(r["id"], r["prediction"]) for r in rows] == [
        (f"{i:02d}.png", ["light", "dark"][i % 2]) for i in range(4)
    ]
    assert set(rows[0]) == {"id", "file_name", "prediction", "probability", "unlike_labelled"}
    code, direct = say("predict", out, new)
    assert code == 0, direct
    assert [line.split(",")[:3] for line in direct.splitlines() if line.startswith("0")] == [
        [r["id"], r["file_name"], r["prediction"]] for r in rows
    ]
    code, said = say("export-model", out, "--to", tmp_path / "model")
    assert (code, "exists already" in said) == (1, True)
    code, said = say("predict", tmp_path, new)
    assert (code, "holds no model" in said) == (1, True)
    code, said = say("predict", tmp_path / "model", new, "--out", tmp_path / "none" / "p.csv")
    assert (code, "folder that exists" in said) == (2, True)


def test_a_folder_without_labels_makes_none(tmp_path):
    source = photos(tmp_path / "set", 4)
    with page(source, tmp_path / "out", classes=["a", "b"]):
        pass
    with pytest.raises(InputError, match="0 labels of 0 classes"):
        la.load_model(tmp_path / "out")
