"""Gradient flow against small explicit gradient steps and its limits, in float64."""

import math

import pytest
import torch

from labelahead.errors import InputError
from labelahead.gp.flow import gradient_flow
from labelahead.gp.posterior import prior


@pytest.fixture
def problem():
    rng = torch.Generator().manual_seed(0)
    factor = torch.randn(6, 6, generator=rng, dtype=torch.float64)
    outputs = torch.randn(6, 2, generator=rng, dtype=torch.float64)
    targets = torch.randn(3, 2, generator=rng, dtype=torch.float64)
    return outputs, factor @ factor.T / 6 + torch.eye(6), [1, 4, 2], targets


def test_gradient_flow_is_the_limit_of_small_steps(problem):
    outputs, kernel, at, targets = problem
    steps, time = 20000, 0.7
    f = outputs.clone()
    for _ in range(steps):
        f = f + time / steps * kernel[:, at] @ (targets - f[at])
    assert torch.allclose(gradient_flow(outputs, kernel, at, targets, time), f, atol=1e-4)


def test_gradient_flow_begins_at_the_outputs_and_ends_at_the_posterior(problem):
    outputs, kernel, at, targets = problem
    path = gradient_flow(outputs, kernel, at, targets, [0.0, math.inf], noise=1e-3)
    assert torch.allclose(path[0], outputs)
    expected = prior(outputs, kernel, noise=1e-3).condition(at, targets).mean
    assert torch.allclose(path[1], expected, atol=1e-8)


@pytest.mark.parametrize("time", [-1.0, math.nan, []])
def test_gradient_flow_refuses_other_times(problem, time):
    with pytest.raises(InputError, match="time is"):
        gradient_flow(*problem, time)
