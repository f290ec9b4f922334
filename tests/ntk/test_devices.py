"""The engine on a pretended device (tests/support/devices.py): same numbers, no foreign tensors."""

import copy

import pytest
import torch
from torch import nn

from labelahead import ntk
from labelahead.batching import Samples, map_tensors
from labelahead.errors import DeviceError
from tests.support.architectures import ARCHITECTURES, make
from tests.support.devices import GPULayers, PretendedDevice, to_cpu
from tests.support.slow import slow


def weigh(n, outputs):
    return torch.linspace(-1, 1, n * outputs).reshape(n, outputs)


def step_of(model):
    return {
        k: torch.linspace(-1, 1, p.numel(), device=p.device).view(p.shape)
        for k, p in model.named_parameters()
        if p.requires_grad
    }


CALLS = {
    "pseudo": lambda m, x, v: ntk.kernel(m, x),
    "full": lambda m, x, v: ntk.kernel(m, x, kind="full"),
    "trace": lambda m, x, v: ntk.kernel(m, x, kind="trace"),
    "rectangular": lambda m, x, v: ntk.kernel(m, x, map_tensors(x, lambda t: t[:3]), kind="single"),
    "little memory": lambda m, x, v: ntk.kernel(m, x, memory=1 << 12, chunk=2),
    "without rules": lambda m, x, v: ntk.kernel(m, x, rules=False),
    "features": lambda m, x, v: ntk.features(m, x),
    "sketch": lambda m, x, v: ntk.features(m, x, sketch=8),
    "gram": lambda m, x, v: ntk.gradient_gram(m, x, v),
    "norms": lambda m, x, v: ntk.squared_norms(m, x, v),
    "products": lambda m, x, v: torch.stack(ntk.norms_and_products(m, x, v, step_of(m))),
    "directional": lambda m, x, v: ntk.directional(m, x, step_of(m)),
}
SLOW_CALLS = {"full", "trace", "without rules"}
QUICK_ARCHITECTURES = {"mlp", "cnn_bn", "lstm", "norms", "tied_embedding"}
QUICK_WITHOUT_FLOAT64 = {"mlp", "cnn_bn"}


@pytest.mark.parametrize(
    ("name", "float64"),
    [
        (name, float64)
        if name in (QUICK_ARCHITECTURES if float64 else QUICK_WITHOUT_FLOAT64)
        else slow(name, float64)
        for name in ARCHITECTURES
        for float64 in (True, False)
    ],
    ids=lambda v: {True: "cuda-like", False: "mps-like"}.get(v, v),
)
def test_engine_agrees_with_the_cpu(name, float64, open_device):
    model, x = make(name)
    x = map_tensors(x, lambda t: t[:5])
    outputs = (model(*x) if isinstance(x, tuple) else model(x)).reshape(5, -1).shape[1]
    v = weigh(5, outputs)
    calls = {
        k: call for k, call in CALLS.items() if name in ("mlp", "cnn_bn") or k not in SLOW_CALLS
    }
    want = {k: call(model, x, v) for k, call in calls.items()}
    with open_device(float64=float64) as device:
        moved = copy.deepcopy(model).to(device.device)
        there = map_tensors(x, lambda t: t.to(device.device))
        for k, call in calls.items():
            got = call(moved, there, v.to(device.device))
            assert got.device == device.device, k
            assert got.dtype == want[k].dtype
            torch.testing.assert_close(to_cpu(got), want[k], rtol=1e-4, atol=1e-5, msg=k)


def test_model_spread_over_two_devices_agrees(open_device):
    class Spread(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)).to(self.second.weight.device))

    torch.manual_seed(0)
    model, x = Spread(), torch.randn(5, 4)
    v = weigh(5, 3)
    want = {k: call(model, x, v) for k, call in CALLS.items()}
    with open_device() as device:
        moved = copy.deepcopy(model)
        moved.first.to(device.device)
        moved.second.to(device.second)
        for k, call in CALLS.items():
            got = call(moved, x.to(device.device), v.to(device.device))
            assert got.device == device.device, k
            torch.testing.assert_close(to_cpu(got), want[k], rtol=1e-4, atol=1e-5, msg=k)


@pytest.mark.parametrize("read", ["in memory", "when needed"])
def test_samples_are_moved_to_the_network(read, open_device):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), torch.randn(5, 4)
    want = ntk.kernel(model, x)
    samples = Samples((x,)) if read == "in memory" else Samples(list(x))
    with open_device() as device:
        moved = copy.deepcopy(model).to(device.device)
        for got in (ntk.kernel(moved, samples), ntk.kernel(moved, samples, samples)):
            torch.testing.assert_close(to_cpu(got), want)
        assert ntk.features(moved, samples).device == device.device
        with pytest.raises(DeviceError, match="x is on cpu but the network is on"):
            ntk.kernel(moved, x)  # a tensor is the caller's to move, once


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    """Thousands of small terms: a sum in half precision stops growing or overflows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3000, 64), nn.Tanh(), nn.Linear(64, 2)).to(dtype)
    x = (10 * torch.rand(4, 3000)).to(dtype)
    exact = ntk.kernel(copy.deepcopy(model).double(), x.double())
    for got in (ntk.kernel(model, x), ntk.kernel(model, x, memory=1 << 12)):
        assert got.dtype == torch.float32
        assert float((got - exact).norm() / exact.norm()) < 20 * torch.finfo(dtype).eps
    v = torch.ones(4, 2, dtype=dtype)
    squares = ntk.squared_norms(copy.deepcopy(model).double(), x.double(), v.double())
    assert float((ntk.squared_norms(model, x, v) / squares - 1).abs().max()) < 0.1


@pytest.mark.parametrize("operation", [torch.cudnn_batch_norm, torch.miopen_batch_norm])
def test_batch_norm_of_a_gpu_has_a_rule(operation, caplog):
    model, x = make("cnn_bn")
    x = x[:4]
    want = {k: call(model, x, weigh(4, 3)) for k, call in CALLS.items()}
    caplog.set_level("INFO", logger="labelahead")
    with PretendedDevice() as device, GPULayers(operation) as layers:
        moved = copy.deepcopy(model).to(device.device)
        for k, call in CALLS.items():
            caplog.clear()
            got = call(moved, x.to(device.device), weigh(4, 3).to(device.device))
            torch.testing.assert_close(to_cpu(got), want[k], rtol=1e-4, atol=1e-5, msg=k)
            if k == "pseudo":
                assert "10 by rules" in caplog.text
                assert "torch.func" not in caplog.text
    assert layers.calls["batch_norm"] > 0


class Cells(nn.Module):
    """A recurrence that is written with cells."""

    def __init__(self, biased):
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(3, 4, bias=biased), nn.GRUCell(4, 5, bias=biased)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        h, c = x.new_zeros(len(x), 4), x.new_zeros(len(x), 4)
        s = x.new_zeros(len(x), 5)
        for step in x.unbind(1):
            h, c = self.lstm(step, (h, c))
            s = self.gru(h, s)
        return self.head(s)


class Layers(nn.Module):
    """A stack of bidirectional GRU layers."""

    def __init__(self, biased):
        super().__init__()
        self.gru = nn.GRU(3, 4, num_layers=2, bias=biased, bidirectional=True, batch_first=biased)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        first = self.gru.batch_first
        out, last = self.gru(x if first else x.transpose(0, 1))
        return (
            self.head((out if first else out.transpose(0, 1)).mean(1)) + last.sum((0, 2))[:, None]
        )


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("make_network", [Cells, Layers])
def test_recurrent_steps_are_not_fused_on_a_gpu(make_network, biased, caplog):
    torch.manual_seed(0)
    model, x = make_network(biased), torch.randn(5, 6, 3)
    want = ntk.kernel(model, x)
    caplog.set_level("INFO", logger="labelahead")
    caplog.clear()
    with PretendedDevice() as device:
        moved, there = copy.deepcopy(model).to(device.device), x.to(device.device)
        with GPULayers():
            got = ntk.kernel(moved, there)
            with pytest.raises(AssertionError, match="fuses"):
                moved(there)  # The mode that refuses fused steps is in force.
        torch.testing.assert_close(to_cpu(got), want, rtol=1e-4, atol=1e-5)
        parameters = len(list(model.parameters()))
        assert f"{parameters} by rules" in caplog.text


def test_out_of_memory_is_tried_again_with_half_the_batch(caplog):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 3)), torch.randn(40, 4)
    want = ntk.kernel(model, x)
    activations = 40 * 50 * 4
    with PretendedDevice(max_tensor_bytes=activations - 1) as device:
        moved, there = copy.deepcopy(model).to(device.device), x.to(device.device)
        got = ntk.squared_norms(moved, there, torch.ones(40, 3, device=device.device), chunk=40)
        torch.testing.assert_close(to_cpu(got), 3 * want.diagonal(), rtol=1e-4, atol=1e-5)
        assert "out of memory" in caplog.text
        with pytest.raises(torch.OutOfMemoryError):
            ntk.kernel(moved, x.to(device.device).repeat(4, 1), chunk=160)  # half is too large, too


def test_signs_of_a_sketch_are_uploaded_at_once():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
    x = torch.randn(5, 4)
    want = ntk.features(model, x, sketch=8)
    with PretendedDevice() as device:
        moved = copy.deepcopy(model).to(device.device)
        got = ntk.features(moved, x.to(device.device), sketch=8)
        assert device.uploads["ntk/sketch.py:draw_projections"] == 1
        torch.testing.assert_close(to_cpu(got), want)
