"""Training and querying on a pretended device (tests/support/devices.py)."""

import copy

import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.data import load
from labelahead.errors import InputError
from labelahead.learner.learner import Learner
from labelahead.models.training import Training, predict, train
from labelahead.strategies import STRATEGIES
from tests.support.campaigns import blobs, own
from tests.support.devices import ALLOWED_EXITS, PretendedDevice, to_cpu

# Scores, outputs and embeddings of the candidates are small and are ranked on the CPU, and without
# float64 so is the posterior. The kernel itself stays on the device.
EXITS = (
    *ALLOWED_EXITS,
    *("devices.py:", "gp/", "acquisition/", "inference/", "strategies/", "learner/"),
    "ntk/infinite.py:infinite_kernel",
)
DRAWN_ON_DEVICE = ("bald", "batchbald")  # by networks that are initialised on the device
# one of each family; the others run in `make test-slow`
QUICK = ("flip", "mlmoc", "badge", "margin", "coreset", "infinite-ntk", "dynamical", "bait")


@pytest.mark.parametrize("float64", [True, False], ids=["cuda-like", "mps-like"])
@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_training_agrees_with_the_cpu(loss, float64, open_device):
    x, y = blobs(40)
    how = Training(steps=30, loss=loss)
    model = own()
    start = copy.deepcopy(model)
    want = train(model, x, y, 3, how, seed=0)
    with open_device(float64=float64) as device:
        moved = start.to(device.device)
        got = train(moved, x, y, 3, how, seed=0)
        assert got.loss == pytest.approx(want.loss, rel=1e-4)
        assert got.accuracy == want.accuracy
        torch.testing.assert_close(
            to_cpu(predict(moved, x)), predict(model, x), rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_training_out_of_memory_sums_the_gradients_of_halves(loss, caplog):
    """Activations of 20 and of 10 samples do not fit, those of 5 do: the steps are the same."""
    x, y = blobs(40, (4,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 64), nn.Tanh(), nn.Linear(64, 3))
    start = copy.deepcopy(model)
    how = Training(steps=30, loss=loss, batch=20)
    want = train(model, x, y, 3, how, seed=0)
    with PretendedDevice(max_tensor_bytes=10 * 64 * 4 - 1) as device:
        moved = start.to(device.device)
        got = train(moved, x, y, 3, how, seed=0)
        assert "10 samples at once do not fit into the memory of lazy:0, trying 5" in caplog.text
        assert got.loss == pytest.approx(want.loss, rel=1e-4)
        for a, b in zip(moved.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(to_cpu(a), b.detach(), rtol=1e-4, atol=1e-5)


def test_training_out_of_memory_with_batchnorm_is_refused():
    x, y = blobs(40, (4,))
    model = nn.Sequential(nn.Linear(x.shape[1], 64), nn.BatchNorm1d(64), nn.Linear(64, 3))
    how, message = Training(steps=2, batch=20), r"20 samples at once does not fit .* training.batch"
    with (
        PretendedDevice(max_tensor_bytes=10 * 64 * 4 - 1) as device,
        pytest.raises(InputError, match=message),
    ):
        train(model.to(device.device), x, y, 3, how, seed=0)


@pytest.mark.parametrize("float64", [True, False], ids=["cuda-like", "mps-like"])
@pytest.mark.parametrize(
    "strategy", [s if s in QUICK else pytest.param(s, marks=pytest.mark.slow) for s in STRATEGIES]
)
def test_learner_queries_as_on_the_cpu(strategy, float64, open_device):
    x, y = blobs(36)
    queries = []
    for pretended in (False, True):
        with open_device(float64=float64, allowed_exits=EXITS) as device:
            model = own().to(device.device) if pretended else own()
            learner = Learner(
                model, x, strategy, training=Training(steps=20), test=range(30, 36), seed=1
            )
            learner.teach(range(6), y[:6])
            queries.append(learner.query(3))
            learner.teach(queries[-1], y[queries[-1]])
            queries.append(learner.query(2))
            assert torch.isfinite(to_cpu(learner.predict(range(30, 36)))).all()
    assert strategy in DRAWN_ON_DEVICE or queries[:2] == queries[2:]


@pytest.mark.parametrize("float64", [True, False], ids=["cuda-like", "mps-like"])
@pytest.mark.parametrize("network", ["exact", "mlp"])
def test_run_model_predicts_as_on_the_cpu(network, float64, open_device, tmp_path):
    settings = {"model": {"name": network}, "budget": {"labels": 30}, "threads": 1}
    la.run({**settings, "training": {"steps": 20}}, out=tmp_path / "run", forecast=False)
    items = load("digits")[0].images.values[:40]
    want = la.load_model(tmp_path / "run").predict(items)
    with open_device(float64=float64, allowed_exits=EXITS) as device:
        there = la.load_model(tmp_path / "run").to(str(device.device))
        got = there.predict(items)
    assert there.device == str(device.device)
    torch.testing.assert_close(got.probabilities, want.probabilities, rtol=1e-4, atol=1e-5)
    assert got.labels == want.labels
