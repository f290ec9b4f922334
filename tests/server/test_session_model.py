"""The model of a session: downloaded, loaded in Python, and used by the commands."""

import io
import json
import zipfile
from dataclasses import replace

import pytest
import torch

import labelahead as la
from labelahead.errors import InputError
from tests.support.web_sessions import labelled_page, page, photos


@pytest.fixture
def labelled(tmp_path):
    with labelled_page(tmp_path) as opened:
        yield opened


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


def test_load_model_of_a_session_without_labels_is_refused(tmp_path):
    source = photos(tmp_path / "set", 4)
    with page(source, tmp_path / "out", classes=["a", "b"]):
        pass
    with pytest.raises(InputError, match="0 labels exist, of 0 classes"):
        la.load_model(tmp_path / "out")
