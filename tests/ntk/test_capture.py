"""What is recorded of forward and backward passes."""

import sys

import pytest
import torch

import labelahead as la
from labelahead.ntk import terms
from tests.ntk.test_kernels import KINDS, TOLERANCE
from tests.support import architectures
from tests.support.reference_tangent import jacobian, kernels, relative

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_kernel_layer_by_layer_captures_samples_once(name, monkeypatch):
    """Where factors fit into memory and gradients do not, samples are captured once."""
    passes = []
    grouped = terms.group_terms

    def one_by_one(plan, every, K, size, room, max_piece_columns):
        found = grouped(plan, every, K, size, 1 << 40)  # would all fit
        passes.append(len(every) if found else 0)
        return [g for t in every for g in grouped(plan, [t], K, size, 1 << 40)] if found else []

    monkeypatch.setattr(sys.modules["labelahead.ntk.kernels"], "group_terms", one_by_one)
    model, x = architectures.make(name)
    J = jacobian(model, x)
    for kind in KINDS:
        found = la.kernel(model, x, kind=kind, memory=1)
        assert relative(found, kernels(J, J)[kind]) < TOLERANCE, kind
        assert torch.equal(found, found.T)
    assert passes
