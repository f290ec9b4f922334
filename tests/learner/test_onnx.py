"""The graph of an exported model."""

import json

import numpy as np
import pytest
import torch

import labelahead as la
from labelahead.data import load
from labelahead.errors import LabelaheadError
from labelahead.learner.onnx import ExportGraph
from labelahead.simulation.final_model import run_model
from tests.learner.test_export import run_campaign, run_onnx, write_images
from tests.support.slow import slow


@pytest.mark.parametrize("model", ["exact", slow("backbone")])
def test_onnx_computes_image_features_from_pixels(tmp_path, monkeypatch, model):
    backbone = pytest.importorskip("labelahead.models.image_encoder")
    if not backbone.is_image_encoder_available():
        pytest.skip("without the extra photos")
    monkeypatch.setenv("LABELAHEAD_DATA", str(tmp_path / "cache"))
    source = write_images(tmp_path / "photos", 16)
    run_campaign(
        tmp_path,
        model,
        data={"name": str(source), "size": 64},
        budget={"initial": 6, "labels": 10, "retrain_every": 4},
    )
    folder = run_model(tmp_path / "run").save(tmp_path / "out", onnx=True)
    finished = la.load_model(folder)
    about = json.loads((folder / "model.json").read_text())
    assert about["reading"]["features"] == "lite0"
    assert about["reading"]["shape"] == [3, 64, 64]
    new = write_images(tmp_path / "new", 6, seed=4, classes=())
    prediction = finished.predict(new)
    assert prediction.labels == ["dark", "light"] * 3
    data, _ = load(new)
    p = run_onnx(folder, data.images.batch(torch.arange(6), 64).numpy())[0]
    assert np.allclose(p, prediction.probabilities, atol=1e-4)


def test_onnx_graph_with_different_outputs_raises(tmp_path):
    pytest.importorskip("onnxruntime")
    from labelahead.learner.onnx import write_onnx

    run_campaign(tmp_path)
    model = run_model(tmp_path / "run")
    example = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    p, variance = model.outputs(example)
    graph = ExportGraph(model.preprocessing, model.network, model.loss, 10)
    with pytest.raises(LabelaheadError, match="probabilities by onnxruntime differ"):
        write_onnx(graph, example, (p.flip(1), variance), tmp_path / "m.onnx")
