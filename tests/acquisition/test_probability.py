"""Probabilities of outputs against a projection by sorting and plain formulas, in float64."""

import math

import pytest
import torch

from labelahead.acquisition.probability import entropy, probabilities, simplex, softmax
from labelahead.errors import InputError


def sorted_projection(row):
    """The Euclidean projection of one row onto the simplex, by sorting (Held et al., 1974)."""
    ordered, total, tau = sorted(row, reverse=True), 0.0, 0.0
    for i, value in enumerate(ordered, 1):
        total += value
        if value - (total - 1) / i > 0:
            tau = (total - 1) / i
    return [max(value - tau, 0.0) for value in row]


@pytest.mark.parametrize("classes", [1, 2, 5, 40])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_simplex_equals_the_projection_by_sorting(classes, scale):
    rng = torch.Generator().manual_seed(classes)
    outputs = scale * torch.randn(30, classes, generator=rng, dtype=torch.float64)
    expected = torch.tensor([sorted_projection(row) for row in outputs.tolist()]).double()
    assert torch.allclose(simplex(outputs), expected, atol=1e-6)
    assert torch.allclose(simplex(outputs.T, 0).T, simplex(outputs), atol=1e-12)


def test_simplex_keeps_points_of_the_simplex():
    p = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(simplex(p), p, atol=1e-15)


def test_softmax_and_names():
    outputs = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.float64)
    assert torch.allclose(softmax(outputs), torch.tensor([[0.25, 0.75]], dtype=torch.float64))
    assert torch.equal(probabilities(outputs, "softmax"), softmax(outputs))
    assert torch.equal(probabilities(outputs, "simplex"), simplex(outputs))
    with pytest.raises(InputError, match="expected one of simplex, softmax"):
        probabilities(outputs, "sigmoid")


def test_entropy_of_zero_probabilities_is_finite():
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    assert torch.allclose(entropy(p), torch.tensor([0.0, math.log(2.0)], dtype=torch.float64))
