"""Features, sketches, norms and directional products against the Jacobian."""

import pytest
import torch

from labelahead import ntk as tangent
from labelahead.ntk import norms
from tests.support import architectures
from tests.support.reference_tangent import jacobian, relative

pytestmark = pytest.mark.usefixtures("float64")
NAMES = sorted(architectures.ARCHITECTURES)


def case(name):
    model, x = architectures.make(name)
    return model, x, jacobian(model, x)


@pytest.mark.parametrize("name", NAMES)
def test_norms_and_inner_products_equal_jacobian(name):
    model, x, J = case(name)
    torch.manual_seed(1)
    cotangents = torch.randn(J.shape[:2])
    gradients = torch.einsum("nc,ncp->np", cotangents, J)
    direction = {k: torch.randn_like(p) for k, p in model.named_parameters() if p.requires_grad}
    flat = torch.cat([v.flatten() for v in direction.values()])
    norms = tangent.squared_norms(model, x, cotangents)
    assert relative(norms, gradients.square().sum(1)) < 1e-9
    products = tangent.inner_products(model, x, cotangents, direction)
    assert relative(products, gradients @ flat) < 1e-9
    both = tangent.norms_and_products(model, x, cotangents, direction)
    assert relative(both[0], gradients.square().sum(1)) < 1e-9
    assert relative(both[1], gradients @ flat) < 1e-9
    assert relative(tangent.directional(model, x, direction), J @ flat) < 1e-9


@pytest.mark.parametrize(("channels", "side"), [(8, 10), (96, 12)])
def test_norms_of_more_gradients_than_buffer_are_exact(channels, side):
    # Eight channels: entries as in the weight; 96: channels last (see factors.py). Both in parts.
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, channels, 1),
        torch.nn.Tanh(),
        torch.nn.Conv2d(channels, 64, 3, padding=1),
        torch.nn.Tanh(),
        torch.nn.AvgPool2d(side),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 3),
    ).eval()
    n = norms.GRADIENT_BUFFER_ENTRIES // (64 * 9 * channels) + 3
    x, cotangents = torch.randn(n, 3, side, side), torch.randn(n, 3)
    direction = {k: torch.randn_like(p) for k, p in model.named_parameters()}
    flat = torch.cat([v.flatten() for v in direction.values()])
    squares, products = tangent.norms_and_products(model, x, cotangents, direction, chunk=n)
    for i in (0, 1, n // 2, n - 2, n - 1):
        loss = (model(x[i : i + 1])[0] * cotangents[i]).sum()
        found = torch.autograd.grad(loss, list(model.parameters()))
        g = torch.cat([v.flatten() for v in found])
        assert relative(squares[i], g.square().sum()) < 1e-9
        assert relative(products[i], g @ flat) < 1e-9
