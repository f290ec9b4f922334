"""Interpolated sums of log Φ against their naive float64 twin, and how many evaluations they take."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from labelahead.gp.calibration import gauss_hermite, leading_probability
from labelahead.gp.normal_sums import sum_log_ndtr

NODES = gauss_hermite(torch.device("cpu"))[0]


def naive_sum(offsets, nodes):
    return torch.special.log_ndtr(offsets[:, None].clamp(-12, 20) + nodes[:, None]).sum(2)


@pytest.mark.parametrize("equal", [0, 1, 150, 199, 200])
def test_sum_log_ndtr_equals_the_naive_sum(equal):
    rng = torch.Generator().manual_seed(equal)
    offsets = 8 * torch.randn(30, 200, generator=rng, dtype=torch.float64)
    offsets[:, :equal] = 3 * torch.rand(30, 1, generator=rng, dtype=torch.float64)
    offsets[0, -3:] = torch.tensor([-12.0, 20.0, 1e6])  # ends of the grid, and beyond
    wanted = naive_sum(offsets, NODES)
    torch.testing.assert_close(sum_log_ndtr(offsets, NODES), wanted, rtol=1e-8, atol=1e-6)


def test_sum_log_ndtr_of_empty_input_is_empty():
    assert sum_log_ndtr(torch.zeros(0, 300).double(), NODES).shape == (0, len(NODES))


def many_classes(items, classes, labelled):
    """Means and variances as of a pool in which few of the classes have labels."""
    rng = torch.Generator().manual_seed(0)
    mean = torch.zeros(items, classes, dtype=torch.float64)
    mean[:, :labelled] = 0.1 * torch.randn(items, labelled, generator=rng, dtype=torch.float64)
    mean[torch.arange(items), torch.randint(0, labelled, (items,), generator=rng)] += torch.rand(
        items, generator=rng
    )
    return mean, (0.3 * torch.rand(items, generator=rng).double()).square() + 1e-9


@pytest.mark.parametrize("labelled", [60, 600])
@pytest.mark.parametrize("given", [False, True])
def test_leading_probability_of_many_classes_equals_naive_sum(labelled, given):
    mean, variance = many_classes(50, 600, labelled)
    label = (
        torch.randint(0, 600, (50,), generator=torch.Generator().manual_seed(1)) if given else None
    )
    fast = leading_probability(mean, variance, label)
    naive = leading_probability(mean, variance, label, max_summed_classes=10**9)
    torch.testing.assert_close(fast, naive, rtol=0, atol=1e-6)


class CountedNdtr(TorchFunctionMode):
    """How many values log Φ is worked out for."""

    values = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if function is torch.special.log_ndtr:
            self.values += found.numel()
        return found


def test_leading_probability_evaluations_do_not_grow_with_classes():
    counts = {}
    for classes in (500, 5000):
        mean, variance = many_classes(40, classes, 100)
        with CountedNdtr() as counted:
            leading_probability(mean, variance)
        counts[classes] = counted.values
    assert counts[5000] < 1.1 * counts[500] + 100_000
    assert counts[5000] < 40 * 20 * 5000 / 10  # the naive sum's
