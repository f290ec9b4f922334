"""`load_model` of a folder of each kind."""

import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.errors import InputError
from labelahead.learner.export import ExportedModel
from tests.support.web_sessions import CHANGE, page, photos

SETTINGS = {
    "data": {"name": "digits", "limit": 60},
    "model": {"name": "exact"},
    "budget": {"initial": 5, "labels": 10},
    "threads": 1,
}


def test_load_model_of_a_run_equals_that_of_its_export(tmp_path):
    la.run(SETTINGS, out=tmp_path / "run", forecast=False)
    model = la.load_model(tmp_path / "run")
    assert isinstance(model, ExportedModel)
    model.save(tmp_path / "export", onnx=False)
    items = torch.randint(0, 17, (4, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    items = items.to(torch.uint8)
    exported = la.load_model(tmp_path / "export")
    assert torch.equal(exported.predict(items).probabilities, model.predict(items).probabilities)
    with pytest.raises(InputError, match="a run expects its name"):
        la.load_model(tmp_path / "run", network=nn.Linear(1, 1))
    with pytest.raises(InputError, match="encoder is for an exported model"):
        la.load_model(tmp_path / "run", encoder=tmp_path)


def test_load_model_of_a_session_is_fitted_on_its_labels(tmp_path):
    tables = {"model": {"name": "exact"}, "data": {"name": "", "size": 8, "embedding": "raw"}}
    source = photos(tmp_path / "set", 8)
    tables["data"]["name"] = str(source)
    with page(source, tmp_path / "out", classes=["light", "dark"], tables=tables) as (client, _):
        for position in range(4):
            body = {"position": position, "kind": "label", "label": position % 2}
            assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 200
    model = la.load_model(tmp_path / "out")
    assert model.classes == ("light", "dark")
    assert model.predict(source).labels == ["light", "dark"] * 4


def test_load_model_of_another_folder_says_what_is_expected(tmp_path):
    with pytest.raises(InputError, match="contains no model; expected a folder of `export-model`"):
        la.load_model(tmp_path)
