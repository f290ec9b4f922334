"""Rules of the layers."""

import pytest
import torch
from torch import nn

import labelahead as la
from tests.ntk.test_kernels import TOLERANCE
from tests.support.architectures import Made
from tests.support.reference_tangent import jacobian, kernels, one_by_one, relative

pytestmark = pytest.mark.usefixtures("float64")


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


def spectral():
    filtered = lambda s, x: s.out(torch.fft.irfft(torch.fft.rfft(s.i(x)) * s.w, n=8))  # noqa: E731
    return Made(filtered, i=nn.Linear(6, 8), w=torch.randn(5), out=nn.Linear(8, 3)), (7, 6)


def one_bias_for_all():
    f = lambda s, x: torch.tanh(nn.functional.linear(x, s.w, s.b)) @ s.v  # noqa: E731
    return Made(f, w=torch.randn(30, 40), b=torch.randn(1), v=torch.randn(30, 3)), (6, 40)


def flattened_scalar():
    f = lambda s, x: s.h((torch.tanh(s.a(x)).reshape(-1) * s.g + s.b).view(len(x), -1))  # noqa: E731
    parts = {"a": nn.Linear(5, 4), "h": nn.Linear(4, 2), "g": torch.tensor(0.7)}
    return Made(f, b=torch.randn(1), **parts), (6, 5)


def repeated_parameter():
    f = lambda s, x: s.h((s.c.repeat(len(x) * 3).view(len(x), 3, 4) + s.a(x)).tanh().flatten(1))  # noqa: E731
    return Made(f, c=torch.randn(4), a=nn.Linear(5, 4), h=nn.Linear(12, 2)), (6, 3, 5)


def upside_down():
    f = lambda s, x: s.o(torch.tanh(s.i(x.flip(0))).flip(0))  # noqa: E731
    return Made(f, i=nn.Linear(5, 4), o=nn.Linear(4, 2)), (6, 5)


def prelu_after_a_fallback():
    net = nn.Sequential(nn.ConvTranspose1d(3, 4, 2), nn.PReLU(), nn.Flatten(), nn.Linear(20, 6))
    return net, (6, 3, 4)


def one_head_reordered():
    def f(s, x):
        order = x[:, 0].argsort()
        other = s.o(torch.tanh(s.i(x[order])))[order.argsort()]
        return torch.cat([s.a(x), other], 1)

    return Made(f, a=nn.Linear(5, 1), i=nn.Linear(5, 4), o=nn.Linear(4, 1)), (9, 5)


def single_value_norm():
    return nn.Sequential(
        nn.Linear(5, 1), nn.Unflatten(1, (1, 1)), nn.GroupNorm(1, 1), nn.Flatten(), nn.Linear(1, 2)
    ), (6, 5)


TRAPS = (
    spectral,
    one_bias_for_all,
    flattened_scalar,
    repeated_parameter,
    upside_down,
    prelu_after_a_fallback,
    one_head_reordered,
    single_value_norm,
)


@pytest.mark.parametrize("make", TRAPS, ids=lambda f: f.__name__)
def test_unusual_networks_equal_jacobian_products(make):
    """Networks that an adversarial review found wrong once."""
    torch.manual_seed(3)
    model, shape = make()
    model, x = model.eval(), torch.randn(shape)
    J = one_by_one(model, x)
    for kind, want in kernels(J, J).items():
        for rules in (True, False):
            K = la.kernel(model, x, kind=kind, rules=rules, verify=False)
            assert relative(K, want) < TOLERANCE, (kind, rules)
    v = torch.randn(J.shape[:2])
    gradients = torch.einsum("nc,ncp->np", v, J)
    assert relative(la.ntk.squared_norms(model, x, v), gradients.square().sum(1)) < TOLERANCE
    direction = {k: torch.randn_like(p) for k, p in model.named_parameters()}
    flat = torch.cat([d.flatten() for d in direction.values()])
    assert relative(la.ntk.inner_products(model, x, v, direction), gradients @ flat) < TOLERANCE
    assert relative(la.ntk.directional(model, x, direction), J @ flat) < TOLERANCE
    assert relative(la.features(model, x, kind="single"), J[:, 0]) < TOLERANCE
