"""Kernels of groups of parameters against kernels of each group alone."""

import pytest
import torch

import labelahead as la
from labelahead.errors import InputError
from tests.ntk.test_kernels import KINDS
from tests.support import architectures
from tests.support.reference_tangent import jacobian, kernels, relative

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mlp", "cnn_bn", "transformer", "transposed_convolution"])
def test_kernels_of_layers_equal_jacobian_products(name, kind):
    model, x = architectures.make(name)
    found = la.ntk.kernels_by_group(model, x, kind=kind)
    names = [k for k, p in model.named_parameters() if p.requires_grad]
    assert set(found) == {k.rpartition(".")[0] for k in names}
    for layer, K in found.items():
        own = [k for k in names if k.rpartition(".")[0] == layer]
        J = jacobian(model, x, own)
        want = kernels(J, J)[kind]
        assert float((K - want).norm()) <= 1e-10 * max(float(want.norm()), 1e-3)


def test_groups_by_wildcards_separate_weights_from_biases():
    model, x = architectures.make("mlp")
    found = la.ntk.kernels_by_group(model, x, {"weights": ["*weight"], "biases": ["*bias"]})
    for group, ending in (("weights", "weight"), ("biases", "bias")):
        J = jacobian(model, x, [k for k, _ in model.named_parameters() if k.endswith(ending)])
        assert relative(found[group], kernels(J, J)["pseudo"]) < 1e-10


def test_parameter_in_two_groups_raises():
    model, x = architectures.make("mlp")
    with pytest.raises(InputError, match="in two groups"):
        la.ntk.kernels_by_group(model, x, {"one": ["*weight"], "two": ["*"]})
    assert torch.is_tensor(x)
