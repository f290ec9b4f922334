"""Leave-one-out residuals against a posterior that is fitted without each label in turn."""

import pytest
import torch

from labelahead.gp.leave_one_out import leave_one_out
from labelahead.gp.posterior import prior

N, C = 6, 3


@pytest.mark.parametrize("full", [False, True])
def test_leave_one_out_equals_refits_without_each_label(full):
    rng = torch.Generator().manual_seed(0)
    size = N * C if full else N
    factor = torch.randn(size, size, generator=rng, dtype=torch.float64)
    outputs = torch.randn(N, C, generator=rng, dtype=torch.float64)
    targets = torch.randn(N, C, generator=rng, dtype=torch.float64)
    start = prior(outputs, factor @ factor.T + torch.eye(size), noise=1e-2)
    at = [4, 0, 2, 5]
    found = leave_one_out(start.condition(at, targets[at]))
    for row, position in enumerate(at):
        others = [p for p in at if p != position]
        expected = start.condition(others, targets[others]).mean[position] - targets[position]
        assert torch.allclose(found[row], expected, atol=1e-9)
