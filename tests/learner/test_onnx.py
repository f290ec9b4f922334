"""The graph of an exported model."""

import json

import numpy as np
import pytest
import torch

import labelahead as la
from labelahead.data import load
from labelahead.errors import LabelaheadError
from labelahead.gp.calibration import gaussian_class_probabilities
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import exact
from labelahead.inference.mixture import cosine_matrix, mix_kernels
from labelahead.inference.sources import Annotations, combine_sources
from labelahead.learner.onnx import ExportGraph, TaskHead
from labelahead.simulation.final_model import run_model
from labelahead.tasks import LeaveOneOut, Multilabel, Number, Rating
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


def test_graph_of_labels_of_several_sources_equals_one_inverse():
    """Probabilities and variances follow from the float64 inverse of K + D."""
    rng = torch.Generator().manual_seed(0)
    truth = torch.arange(60) % 3
    x = torch.eye(3, 6)[truth] + 0.5 * torch.randn(60, 6, generator=rng)
    rows = [(i, int(truth[i]), "anna") for i in range(0, 40, 2)]
    rows += [(i, int(torch.randint(3, (1,), generator=rng)), "ben") for i in range(40)]
    votes, annotations = Annotations.vote(rows), Annotations.from_rows(rows)
    at = torch.arange(40)
    learner = ExactLearner(x, exact(x, 3), annotations=annotations)
    model = learner.fit(at, torch.tensor([votes[i] for i in range(40)])).kernel_model
    mixture = model.get_mixture()
    units = model.normalise_rows(x).double()
    K = mix_kernels(cosine_matrix(units), mixture.weights)
    given = annotations.select_items(at, torch.zeros(40, dtype=torch.int64))
    lapse = learner.source_estimates.lapse
    targets, extra = combine_sources(given, lapse, 3, mixture.noise)
    assert float(extra.max()) > 0.1
    inverse = torch.linalg.inv(K[:40, :40] + torch.diag(mixture.noise + extra))
    naive = 1 - (K[:, :40] @ inverse * K[:, :40]).sum(1)
    mean = 1 / 3 + K[:, :40] @ inverse @ targets
    spread = model.ensure_variance_scale() * naive
    found, own = ExportGraph(None, model, "squared", 3)(x)
    assert np.allclose(own, naive, atol=1e-4)
    assert np.allclose(found, gaussian_class_probabilities(mean, spread), atol=1e-4)


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


@pytest.mark.parametrize(
    "task",
    [
        Multilabel(["a", "b", "c"]),
        Number(["x", "y"]),
        Number(limits=(0.0, 3.0)),
        Number(limits=(None, 1.5)),
        Rating(4),
    ],
    ids=["multilabel", "numbers", "limited number", "number with a maximum", "rating"],
)
def test_task_head_computes_what_the_task_predicts(task):
    rng = torch.Generator().manual_seed(1)
    width = len(task.outputs)
    mean = 1 + torch.randn(30, width, generator=rng, dtype=torch.float64)
    variance = torch.rand(30, generator=rng, dtype=torch.float64)
    targets = mean + 0.3 * torch.randn(30, width, generator=rng, dtype=torch.float64)
    if task.decides:
        targets = (targets > 1).double()
    if isinstance(task, Rating):
        targets = targets.round().clamp(1, 4)
    state = task.calibrate(LeaveOneOut(mean, variance, 0.05, targets))
    computed = TaskHead(task, state)(mean, variance)
    prediction = task.predict(mean, variance, state)
    want = (prediction.mean, *prediction.interval()) if isinstance(task, Number) else None
    want = want or (prediction.probabilities,)
    for ours, theirs in zip(computed, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
