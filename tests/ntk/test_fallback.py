"""Parameters that no rule covers."""

import logging

import pytest

import labelahead as la
from tests.ntk.test_kernels import TOLERANCE
from tests.support import architectures
from tests.support.reference_tangent import jacobian, kernels, relative

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("name", ["cnn_bn", "transformer", "tied_embedding", "lstm"])
def test_kernel_without_rules_is_equal(name):
    model, x = architectures.make(name)
    J = jacobian(model, x)
    for kind in ("pseudo", "full"):
        K = la.kernel(model, x, kind=kind, rules=False)
        assert relative(K, kernels(J, J)[kind]) < TOLERANCE


def test_fallback_is_logged_once_with_module_name(caplog):
    model, x = architectures.make("transposed_convolution")
    with caplog.at_level(logging.INFO, logger="labelahead"):
        la.kernel(model, x)
        la.kernel(model, x)
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 1
    assert "ConvTranspose2d" in lines[0]
    assert "0.weight" in lines[0]


def test_supported_layers_need_no_fallback(caplog):
    promised = set(architectures.ARCHITECTURES) - {
        "custom_parameters",
        "bilinear_two_inputs",
        "transposed_convolution",
    }
    with caplog.at_level(logging.WARNING, logger="labelahead"):
        for name in sorted(promised):
            model, x = architectures.make(name)
            la.kernel(model, x)
    assert [r.getMessage() for r in caplog.records] == []
