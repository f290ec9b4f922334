"""How many of some items are of a class: Poisson-binomial counts."""

import numpy as np
import pytest
import torch

from labelahead.errors import InputError
from labelahead.gp.positive_counts import MAX_EXACT_VARIANCE, estimate_positive_count


def enumerate_interval(p, tail):
    """Compute the quantiles by adding one item after the other."""
    pmf = np.ones(1)
    for one in p:
        pmf = np.convolve(pmf, [1 - one, one])
    cumulative = np.cumsum(pmf)
    return int(np.argmax(cumulative >= tail)), int(np.argmax(cumulative >= 1 - tail))


@pytest.mark.parametrize("n", [1, 7, 64, 300])
def test_interval_of_few_items_equals_an_enumeration(n):
    p = torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    found = estimate_positive_count(p, 0.9)
    assert found.expected == pytest.approx(float(p.sum()))
    assert (found.low, found.high) == enumerate_interval(p.tolist(), 0.05)


def test_interval_of_many_rare_items_equals_a_poisson_count():
    found = estimate_positive_count(torch.full((100_000,), 4e-5))
    assert found.expected == pytest.approx(4.0)
    assert (found.low, found.high) == (1, 8)  # quantiles of Poisson(4)


def test_normal_interval_equals_the_exact_one_within_two_items():
    p = torch.rand(4 * 630, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float((p * (1 - p)).sum()) > MAX_EXACT_VARIANCE
    found = estimate_positive_count(p)
    low, high = enumerate_interval(p.tolist(), 0.025)
    assert low - 2 <= found.low <= low
    assert high <= found.high <= high + 2


@pytest.mark.parametrize(("a", "b", "n"), [(0.2, 2.0, 60), (0.5, 0.5, 200), (0.05, 1.0, 5000)])
def test_interval_covers_simulated_counts_as_often_as_said(a, b, n):
    rng, covered, trials = np.random.default_rng(1), 0, 400
    for _ in range(trials):
        p = rng.beta(a, b, n)
        found = estimate_positive_count(torch.from_numpy(p))
        covered += found.low <= int((rng.random(n) < p).sum()) <= found.high
    assert covered / trials >= 0.95 - 3 * (0.05 * 0.95 / trials) ** 0.5


def test_certain_items_leave_no_uncertainty():
    assert estimate_positive_count(torch.tensor([1.0, 1.0, 0.0]))[:3] == (2.0, 2, 2)
    assert estimate_positive_count(torch.zeros(0))[:3] == (0.0, 0, 0)


def test_values_that_are_no_probabilities_are_refused():
    with pytest.raises(InputError, match="between 0 and 1"):
        estimate_positive_count(torch.tensor([0.5, float("nan")]))
    with pytest.raises(InputError, match="level is 1"):
        estimate_positive_count(torch.tensor([0.5]), 1.0)
