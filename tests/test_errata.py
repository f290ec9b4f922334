"""docs/errata.md: the printed equations fail, the corrected ones hold."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.gp.dynamics import alignment, generalisation_bound


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def spd(n, seed):
    a = normal(n, n, seed=seed)
    return a @ a.T / n + 0.5 * torch.eye(n, dtype=torch.float64)


def test_th_a49_fails_for_antipodal_points_and_for_points_of_one_norm():
    n, n0 = 200_000, 6
    w = normal(n, n0) / math.sqrt(n0)
    x = torch.nn.functional.normalize(normal(2, n0, seed=1), dim=1)
    points = torch.stack([x[0], x[1], -x[0]])
    f = torch.relu(points @ w.T)
    smallest = float(f.square().sum(1).min())
    assert (
        float(f[0] @ f[2]) == 0.0 < smallest
    )  # A.49 has it at least as large as the smallest ‖f‖²
    angle = math.acos(float(x[0] @ x[1]))
    factor = (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / math.pi
    assert float(f[0] @ f[1]) < 0.9 * smallest
    assert float(f[0] @ f[1]) == pytest.approx(factor * n / (2 * n0), rel=0.02)
    assert float(f[0] @ f[1]) <= float(
        f.square().sum(1).max()
    )  # its upper bound is Cauchy and Schwarz's


def test_la_20_is_twice_the_residual():
    """C(f) = (1/N) Σ ‖f(xᵢ) − yᵢ‖² along h: (1/N) Σ d(xᵢ)·h(xᵢ) with d = 2(f − y)."""
    f, y, h = normal(7, 3), normal(7, 3, seed=1), normal(7, 3, seed=2)
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    cost = (f + step * h - y).square().sum() / 7
    (slope,) = torch.autograd.grad(cost, step)
    assert float((2 * (f - y) * h).sum() / 7) == pytest.approx(float(slope))
    assert float((0.5 * (f - y) * h).sum() / 7) == pytest.approx(float(slope) / 4)


def test_pn_28_holds_with_the_difference_not_inverted():
    m, m_hat, y = spd(5, 0), spd(5, 1), normal(5, 1, seed=2)
    alpha, alpha_hat = torch.linalg.solve(m, y), torch.linalg.solve(m_hat, y)
    corrected = -torch.linalg.inv(m_hat) @ (m_hat - m) @ torch.linalg.inv(m) @ y
    printed = -torch.linalg.inv(m_hat) @ torch.linalg.inv(m_hat - m) @ m @ y
    assert torch.allclose(alpha_hat - alpha, corrected)
    assert not torch.allclose(alpha_hat - alpha, printed, rtol=0.5)
    smallest = min(float(torch.linalg.eigvalsh(k)[0]) for k in (m, m_hat))
    bound = float(torch.linalg.matrix_norm(m_hat - m, 2)) * float(y.norm()) / smallest**2
    assert float((alpha_hat - alpha).norm()) <= bound  # (29) follows from the corrected form


def test_dy_theorem_2_fails_for_a_pair_of_classes_and_holds_for_their_sum():
    theta, y = (
        torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64)),
        torch.eye(2, dtype=torch.float64),
    )
    first, second = (y[:, k] @ theta @ y[:, k] for k in (0, 1))
    inverse = torch.linalg.inv(theta)
    pair = float(first * (y[:, 1] @ inverse @ y[:, 1]))
    assert pair == 0.25 < 1.0  # "≥ 1" in print, for (k, k′) = (1, 2)
    assert float(second) == 4.0
    check_theorem_2(theta, y)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 4))
def test_dy_theorem_2_holds(seed, n, classes):
    check_theorem_2(spd(n, seed), normal(n, classes, seed=seed + 1))


def check_theorem_2(theta, y):
    eigenvalues = torch.linalg.eigvalsh(theta)
    square = float(y.square().sum()) ** 2 / alignment(theta, y)
    middle = len(y) / 2 * generalisation_bound(theta, y) ** 2
    assert square <= middle * (1 + 1e-9)
    assert middle <= float(eigenvalues[-1] / eigenvalues[0]) * square * (1 + 1e-9)
