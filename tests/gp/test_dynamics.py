"""Bounds of the training dynamics against explicit sums, and the theorems on any kernel."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.errors import InputError
from labelahead.gp.dynamics import (
    alignment,
    convergence,
    dynamics_mse,
    generalisation_bound,
    mmd,
    residuals,
)

pytestmark = pytest.mark.usefixtures("float64")


def test_residuals_equal_gradients_of_losses():
    f = torch.randn(5, 3, requires_grad=True)
    y = torch.tensor([0, 1, 2, 1, 0])
    cross = torch.nn.functional.cross_entropy(f, y, reduction="sum")
    assert torch.allclose(torch.autograd.grad(cross, f)[0], residuals(f, y).detach())
    squared = 0.5 * (f - torch.nn.functional.one_hot(y, 3)).square().sum()
    assert torch.allclose(torch.autograd.grad(squared, f)[0], residuals(f, y, "squared").detach())
    with pytest.raises(InputError, match="loss"):
        residuals(f, y, "hinge")


def kernel_and_targets(seed, n, classes):
    rng = torch.Generator().manual_seed(seed)
    A = torch.randn(n, n + 2, generator=rng)
    y = torch.randint(classes, (n,), generator=rng)
    return A @ A.T / n + 0.05 * torch.eye(n), torch.nn.functional.one_hot(y, classes).double()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 40), st.floats(0.01, 1.0))
def test_theorem_1_holds_on_any_kernel(seed, n, steps, share):
    with torch.random.fork_rng():
        torch.set_default_dtype(torch.float64)
        K, Y = kernel_and_targets(seed, n, 3)
    rate = share / float(torch.linalg.eigvalsh(K)[-1])
    error = convergence(K, Y, rate, steps) ** 2
    total, aligned = float(Y.square().sum()), alignment(K, Y)
    slack = 1e-9 * total
    assert total - 2 * steps * rate * aligned <= error + slack
    assert error <= total - rate * aligned + slack


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12))
def test_theorem_2_holds_on_any_kernel(seed, n):
    with torch.random.fork_rng():
        torch.set_default_dtype(torch.float64)
        K, Y = kernel_and_targets(seed, n, 3)
    values = torch.linalg.eigvalsh(K)
    middle = n / 2 * generalisation_bound(K, Y) ** 2
    low = float(Y.square().sum()) ** 2 / alignment(K, Y)
    assert low <= middle * (1 + 1e-9)
    assert middle <= float(values[-1] / values[0]) * low * (1 + 1e-9)


def test_bounds_equal_explicit_computation():
    K = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    Y = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert alignment(K, Y) == pytest.approx(5.0)
    assert generalisation_bound(K, Y) == pytest.approx(math.sqrt(2 * (3 / 5 + 2 / 5) / 2))
    assert dynamics_mse(K, torch.zeros(2, 2), Y) == pytest.approx(5.0)
    assert convergence(K, Y, 0.1, 0) == pytest.approx(math.sqrt(2))


def test_mmd_equals_sums_and_is_unbiased():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(7, 3, generator=rng)
    K, m, n = x @ x.T, 3, 7
    a = sum(float(K[i, j]) for i in range(m) for j in range(m) if i != j)
    b = sum(float(K[i, j]) for i in range(n) for j in range(n) if i != j)
    c = sum(float(K[i, j]) for i in range(m) for j in range(n) if i != j)
    want = a / (m * m - m) + b / (n * n - n) - 2 * c / (m * (n - 1))
    assert mmd(K, m) == pytest.approx(want)
    assert mmd(K, n) == pytest.approx(0.0, abs=1e-12)
    draws = []
    for seed in range(400):  # one distribution: nothing but noise around zero
        z = torch.randn(12, 2, generator=torch.Generator().manual_seed(seed))
        draws.append(mmd(z @ z.T + 1, 5))
    mean = sum(draws) / 400
    spread = (sum((d - mean) ** 2 for d in draws) / 400) ** 0.5
    assert abs(mean) < 4 * spread / 20
    with pytest.raises(InputError, match="first is 1"):
        mmd(K, 1)
