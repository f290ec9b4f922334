"""Gradients of each parameter as factors."""

import pytest
import torch
from torch import nn

import labelahead as la
from labelahead import ntk as tangent
from labelahead.ntk import factors, terms
from labelahead.ntk.limits import BufferSizes, use_buffer_sizes
from tests.ntk.test_kernels import TOLERANCE
from tests.support import architectures
from tests.support.reference_tangent import jacobian, kernels, relative

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("long_rows", [True, False])
def test_both_patch_orders_agree(long_rows, monkeypatch):
    monkeypatch.setattr(factors, "_has_long_rows", lambda *_: long_rows)
    monkeypatch.setattr(terms, "_are_pairs_cheaper", lambda *_: False)
    for name in ("cnn_bn", "odd_convolutions", "conv1d", "conv3d", "frames_before_samples"):
        model, x = architectures.make(name)
        J = jacobian(model, x)
        for kind in ("pseudo", "full"):
            assert relative(la.kernel(model, x, kind=kind), kernels(J, J)[kind]) < TOLERANCE


@pytest.mark.parametrize(
    ("layer", "space"),
    [
        (nn.Conv1d(16, 3, 3, padding=2, dilation=2), (40,)),
        (nn.Conv2d(12, 5, 3, padding=1), (9, 40)),
        (nn.Conv2d(12, 5, (2, 3), padding=(1, 0), dilation=(3, 1)), (9, 40)),
        (nn.Conv2d(24, 6, 3, groups=2, padding=1), (5, 40)),
        (nn.Conv3d(4, 3, (2, 3, 3), stride=(1, 2, 1), padding=1), (4, 5, 40)),
    ],
)
def test_convolution_gradients_by_offset_equal_jacobian(layer, space, monkeypatch):
    sizes = BufferSizes(min_offset_positions=1, patch_entries=1 << 14)  # a few samples at a time
    ran = []
    real = factors._convolution_gradients_by_offset
    monkeypatch.setattr(
        factors, "_convolution_gradients_by_offset", lambda *given: ran.append(1) or real(*given)
    )
    torch.manual_seed(0)
    model = nn.Sequential(layer.double(), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3).double())
    x = torch.randn(7, layer.in_channels, *space)
    model(x)
    model = model.eval()
    J = jacobian(model, x)
    want = kernels(J, J)
    for kind in want:
        with use_buffer_sizes(sizes):
            found = la.kernel(model, x, kind=kind, verify=True)
        assert relative(found, want[kind]) < 1e-10
    cotangents = torch.randn(7, 3)
    direction = {k: torch.randn_like(p) for k, p in model.named_parameters()}
    own = torch.einsum("nc,ncp->np", cotangents, J)
    flat = torch.cat([v.flatten() for v in direction.values()])
    with use_buffer_sizes(sizes):
        squares, products = tangent.norms_and_products(model, x, cotangents, direction)
    assert relative(squares, own.square().sum(1)) < 1e-10
    assert relative(products, own @ flat) < 1e-10
    assert ran
