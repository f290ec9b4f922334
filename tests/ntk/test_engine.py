"""The engine against closed forms of the theory (docs/method.md)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import labelahead as la
from labelahead.gp.flow import gradient_flow
from labelahead.ntk.engine import open_engine
from tests.support import architectures
from tests.support.reference_tangent import relative

pytestmark = pytest.mark.usefixtures("float64")


class TwoLayer(nn.Module):
    """f(x) = (1/√m) Σ a_j σ(w_jᵀx), a fixed."""

    def __init__(self, d, m, activation):
        super().__init__()
        self.w = nn.Parameter(torch.randn(m, d))
        self.register_buffer("a", torch.randint(0, 2, (m,)) * 2.0 - 1)
        self.activation = activation

    def forward(self, x):
        return self.activation(x @ self.w.T) @ self.a[:, None] / math.sqrt(len(self.a))


def sphere(n, d):
    x = torch.randn(n, d)
    return x / x.norm(dim=1, keepdim=True)


def arc_cosine(x):
    """Infinite width: x·x' (1/2 − arccos(x·x')/2π)."""
    cos = (x @ x.T).clamp(-1, 1)
    return cos * (0.5 - torch.arccos(cos) / (2 * math.pi))


def test_empirical_kernel_converges_to_arc_cosine_kernel():
    torch.manual_seed(0)
    x = sphere(12, 6)
    want = arc_cosine(x)
    widths = (64, 1024, 16384)
    errors = []
    for m in widths:
        runs = [relative(la.kernel(TwoLayer(6, m, torch.relu), x), want) for _ in range(6)]
        errors.append(sum(runs) / len(runs))
    slope = (math.log(errors[-1]) - math.log(errors[0])) / math.log(widths[-1] / widths[0])
    assert -0.6 < slope < -0.4  # the law of large numbers: 1/√m
    assert errors[-1] < 0.02


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**20),
    st.sampled_from([8, 64, 512]),
    st.floats(0.01, 30),
    st.sampled_from([(torch.tanh, 4 / (3 * math.sqrt(3))), (torch.sin, 1.0), (torch.cos, 1.0)]),
)
def test_linearisation_error_is_within_bound(seed, m, distance, case):
    """|f_W(x) − f_W₀(x) − <∇f_W₀(x), W − W₀>| ≤ β/(2√m) ‖W − W₀‖²_F for any W, ‖x‖ ≤ 1."""
    activation, beta = case
    torch.manual_seed(seed)
    x = sphere(10, 5)
    net = TwoLayer(5, m, activation)
    step = torch.randn_like(net.w)
    step *= distance / step.norm()
    with torch.no_grad():
        before = net(x)
    linear = before + la.ntk.directional(net, x, {"w": step})
    with torch.no_grad():
        net.w += step
        after = net(x)
    bound = beta / (2 * math.sqrt(m)) * distance**2
    assert float((after - linear).abs().max()) <= bound * (1 + 1e-9)


def test_linearised_network_equals_gradient_descent_when_wide():
    """(LA-10): wide network, small steps, squared loss; f_lin predicts the trained outputs."""
    errors = []
    for m in (256, 8192):
        torch.manual_seed(1)
        x = sphere(14, 8)
        y = torch.sin(3 * x[:, :1])
        net = TwoLayer(8, m, torch.tanh)
        labelled = torch.arange(8)
        with torch.no_grad():
            f = net(x)
        post = la.prior(f, la.kernel(net, x), noise=0.0).condition(labelled, y[:8])
        optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
        for _ in range(4000):
            optimiser.zero_grad()
            loss = 0.5 * (net(x[:8]) - y[:8]).square().sum()
            loss.backward()
            optimiser.step()
        assert float(loss) < 1e-10
        with torch.no_grad():
            errors.append(relative(post.mean[8:], net(x)[8:]))
    assert errors[1] < 0.02
    assert errors[1] < errors[0] / 2


def test_gradient_flow_follows_gradient_descent():
    """(LA-5): f after time t against many small steps of a wide network."""
    torch.manual_seed(2)
    x = sphere(10, 6)
    y = x[:, :1] * x[:, 1:2]
    net = TwoLayer(6, 16384, torch.tanh)
    with torch.no_grad():
        f = net(x)
    K = la.kernel(net, x)
    rate, optimiser = 0.02, None
    for steps in (0, 25, 200):
        predicted = gradient_flow(f, K, torch.arange(6), y[:6], rate * steps)
        twin = TwoLayer(6, 16384, torch.tanh)
        twin.load_state_dict(net.state_dict())
        optimiser = torch.optim.SGD(twin.parameters(), lr=rate)
        for _ in range(steps):
            optimiser.zero_grad()
            (0.5 * (twin(x[:6]) - y[:6]).square().sum()).backward()
            optimiser.step()
        with torch.no_grad():
            assert relative(predicted.reshape(twin(x).shape), twin(x)) < 0.02


@pytest.mark.usefixtures("float64")
def test_batches_shrink_with_the_memory():
    model, x = architectures.make("cnn_bn")
    chosen = {k: p for k, p in model.named_parameters() if p.requires_grad}
    with open_engine(model, chosen, x) as engine:
        size = engine.plan.bytes_per_sample
        assert engine.limit_batch(None, None) is None
        assert engine.limit_batch(1 << 40, None) is None
        assert engine.limit_batch(1, None) == 2
        assert engine.limit_batch(24 * size, None) == 3
        assert engine.limit_batch(24 * size, 7) == 7
