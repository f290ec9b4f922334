"""Third-party networks, nn.LSTM and cached plans against explicit Jacobians in float64."""

import copy

import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.errors import ModelError
from labelahead.ntk import plan
from labelahead.ntk.limits import BufferSizes, use_buffer_sizes
from research.competitors.zoo import make
from tests.support.reference_tangent import errors_of, jacobian, kernels, relative, tolerance_of

NAMES = (
    "bert",
    "gpt2",
    "distilbert",
    "roberta",
    "electra",
    "llama",
    "t5 encoder",
    "vit",
    "swin",
    "convnext",
    "resnet",
)


@pytest.mark.parametrize("name", [*(f"hf {name}" for name in NAMES), "torch LSTM"])
@pytest.mark.filterwarnings("ignore")
def test_third_party_networks_equal_jacobian_products(name):
    pytest.importorskip("transformers")
    model, x = make(name)
    torch.manual_seed(1)
    errors = errors_of(model, x)
    assert max(errors.values()) < tolerance_of(model, x), errors


class Recurrent(nn.Module):
    """Outputs of all steps and both last states count; the first states are learned."""

    def __init__(self, **words):
        super().__init__()
        self.cell = nn.LSTM(3, 4, **words)
        layers = self.cell.num_layers * (2 if self.cell.bidirectional else 1)
        self.first = nn.Parameter(torch.randn(2, layers, 1, 4))
        self.head = nn.Linear(4 * (2 if self.cell.bidirectional else 1) + 8 * layers, 3)

    def forward(self, x):
        h, c = (s.expand(-1, len(x), -1).contiguous() for s in self.first)
        out, (h, c) = self.cell(x if self.cell.batch_first else x.transpose(0, 1), (h, c))
        out = out if self.cell.batch_first else out.transpose(0, 1)
        return self.head(torch.cat([out.cumsum(1)[:, -1], *h, *c], 1))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_lstm_variants_equal_jacobian_products(bidirectional, bias, batch_first):
    torch.manual_seed(0)
    model = Recurrent(
        num_layers=2, bidirectional=bidirectional, bias=bias, batch_first=batch_first
    ).double()
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    want = kernels(jacobian(model, x), jacobian(model, x))
    for kind in want:
        assert relative(la.kernel(model, x, kind=kind, verify=True), want[kind]) < 1e-10
    assert relative(la.kernel(model, x, rules=False), want["pseudo"]) < 1e-10


@pytest.mark.parametrize("block", [1, 45, 1 << 16])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_lstm_backward_is_independent_of_block_size(block, steps):
    torch.manual_seed(0)
    model, x = (
        Recurrent(num_layers=2, batch_first=True).double(),
        torch.randn(5, steps, 3, dtype=torch.float64),
    )
    J = jacobian(model, x)
    with use_buffer_sizes(BufferSizes(state_entries=block)):
        found = la.kernel(model, x, kind="full")
    assert relative(found, kernels(J, J)["full"]) < 1e-10


@pytest.mark.parametrize(("groups", "channels"), [(2, 16), (4, 8), (8, 8), (2, 32)])
def test_grouped_convolutions_equal_jacobian_products(groups, channels):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, channels, 3),
        nn.Tanh(),
        nn.Conv2d(channels, 2 * channels, (3, 2), (2, 1), (1, 2), (1, 2), groups),
        nn.Tanh(),
        nn.Flatten(),
        nn.LazyLinear(3),
    )
    x = torch.randn(5, 2, 9, 8)
    model(x)
    model, x = model.double(), x.double()
    want = kernels(jacobian(model, x), jacobian(model, x))
    for kind in want:
        assert relative(la.kernel(model, x, kind=kind, verify=True), want[kind]) < 1e-10


class Switched(nn.Module):
    """Goes by attributes, which a plan that is used again must not miss."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)
        self.mixing, self.noise, self.second, self.scale = 0.0, 0.0, False, 1.0

    def forward(self, x):
        h = torch.tanh((self.b if self.second else self.a)(x))
        h = h + self.mixing * h.mean(0) + self.noise * torch.randn(6, dtype=h.dtype)
        return self.head(h * self.scale)


def test_plan_is_reused_until_network_changes():
    torch.manual_seed(0)
    model, x = Switched().double(), torch.randn(6, 4, dtype=torch.float64)

    def right(samples=x):
        J = jacobian(copy.deepcopy(model), samples)
        return relative(la.kernel(model, samples), kernels(J, J)["pseudo"]) < 1e-10

    assert right()
    first = plan._plan_cache[model].plan
    assert right()
    assert plan._plan_cache[model].plan is first
    assert right(torch.randn(7, 4, dtype=torch.float64))
    assert plan._plan_cache[model].plan is first
    with torch.no_grad():
        model.a.weight.mul_(2)
    assert right()
    assert plan._plan_cache[model].plan is not first
    for change in ({"second": True}, {"scale": 3.0}, {"second": False}):
        vars(model).update(change)
        assert right()
    model.a.weight.data.mul_(2)  # leaves no trace in the version
    assert right()
    model.head = nn.Linear(6, 3).double()
    assert right()
    model.mixing = 0.5
    with pytest.raises(ModelError, match="other samples"):
        la.kernel(model, x)
    model.mixing, model.noise = 0.0, 0.5
    with pytest.raises(ModelError, match="random"):
        la.kernel(model, x)


def test_mixing_is_detected_with_cached_plan():
    torch.manual_seed(0)
    model, x = Switched().double(), torch.randn(6, 4, dtype=torch.float64)
    la.kernel(model, x)
    model.mixing = 0.5
    for chunk in (None, 1):
        with pytest.raises(ModelError, match="other samples"):
            la.kernel(model, torch.randn(6, 4, dtype=torch.float64), chunk=chunk)


class Branching(nn.Module):
    """A network that vmap cannot follow where it looks at its data, with a parameter that no rule
    knows.
    """

    def __init__(self, looks):
        super().__init__()
        self.looks, self.a, self.power = looks, nn.Linear(4, 3), nn.Parameter(torch.rand(3) + 1)

    def forward(self, x):
        h = self.a(x).abs() ** self.power
        return -h if self.looks and float(h.detach().sum()) < 0 else h


@pytest.mark.parametrize(("looks", "way"), [(False, "vmap"), (True, "loop")])
def test_log_reports_methods(looks, way, caplog):
    torch.manual_seed(0)
    model, x = Branching(looks).double(), torch.randn(5, 4, dtype=torch.float64)
    with caplog.at_level("INFO", logger="labelahead"):
        la.kernel(model, x)
        la.kernel(model, x)
    (said,) = [
        r.getMessage() for r in caplog.records if "gradients of parameters" in r.getMessage()
    ]
    assert "2 by rules" in said
    assert f"1 by {way}" in said.replace("a loop", "loop")
    assert "(power)" in said
