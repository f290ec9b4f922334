"""Kernels at several states and between networks against products of Jacobians."""

import copy

import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.errors import InputError
from tests.ntk.test_kernels import KINDS
from tests.support import architectures
from tests.support.reference_tangent import jacobian, kernels, relative

pytestmark = pytest.mark.usefixtures("float64")


def build():
    model, x = architectures.make("cnn_bn")
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model, other, x


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_between_networks_equals_product_of_jacobians(kind):
    model, other, x = build()
    J, H = jacobian(model, x), jacobian(other, x)
    for block in (None, 1):
        found = la.ntk.kernel_between(model, other, x, kind=kind, block=block)
        assert relative(found, kernels(J, H)[kind]) < 1e-10
        found = la.ntk.kernel_between(model, other, x, x[:2], kind=kind, block=block)
        assert relative(found, kernels(J, H[:2])[kind]) < 1e-10


def test_kernel_between_different_networks_raises():
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    with pytest.raises(InputError, match="different parameters"):
        la.ntk.kernel_between(model, nn.Linear(4, 2), x)


def test_kernels_at_states_leave_the_network_alone():
    model, other, x = build()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    first, second = la.ntk.kernels_at(
        model, x, (m.state_dict() for m in (model, other)), kind="trace"
    )
    for found, net in ((first, model), (second, other)):
        J = jacobian(net, x)
        assert relative(found, kernels(J, J)["trace"]) < 1e-10
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
