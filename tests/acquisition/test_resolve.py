"""`resolve` against quadrature, sampling from the joint Gaussian, its limits and its table."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.acquisition import batch_selection as select
from labelahead.acquisition import resolve
from labelahead.acquisition.functions import MAX_TABULATED_GAP, owen_gain, tabulate_gain
from labelahead.acquisition.pool_view import view
from labelahead.gp.posterior import prior
from tests.support import reference_lookahead as ref

TOLERANCE = 1e-4  # absolute error of the table, per prediction


def compute_owen_gain(h, rho):
    return float(
        owen_gain(torch.tensor([float(h)]), torch.tensor([float(rho)], dtype=torch.float64) ** 2)
    )


def look_up_gain(h, rho, dtype=torch.float64):
    return float(
        tabulate_gain(torch.tensor([float(h)], dtype=dtype))(
            torch.tensor([[float(rho) ** 2]], dtype=dtype)
        )
    )


HEIGHT = st.floats(0, 8)
CORRELATION = st.floats(0, 1)


@settings(max_examples=300, deadline=None)
@given(HEIGHT, CORRELATION)
def test_owen_gain_equals_integral_and_table_is_close(h, rho):
    naive = ref.gain_by_quadrature(h, rho)
    assert compute_owen_gain(h, rho) == pytest.approx(naive, abs=2e-8)
    assert look_up_gain(h, rho) == pytest.approx(naive, abs=TOLERANCE)
    assert look_up_gain(h, rho, torch.float32) == pytest.approx(naive, abs=TOLERANCE)


def test_tabulated_gain_is_close_everywhere():
    """The error is largest for small h and small ρ, so the test grid is fine there."""
    h = torch.cat(
        [torch.linspace(0, MAX_TABULATED_GAP + 1, 301), torch.logspace(-5, 0, 200)]
    ).double()
    rho = torch.cat(
        [torch.linspace(0, 1, 401), torch.logspace(-5, 0, 300), 1 - torch.logspace(-8, -1, 100)]
    ).double()
    squared = rho.square()[:, None].expand(-1, len(h))
    error = (tabulate_gain(h)(squared.clone()) - owen_gain(h, squared)).abs()
    assert float(error.max()) <= TOLERANCE


@pytest.mark.parametrize("lookup", [compute_owen_gain, look_up_gain])
def test_gain_limits_equal_closed_forms(lookup):
    for h in (0.0, 0.3, 1.0, 2.5, 4.9):
        assert lookup(h, 0) == pytest.approx(0, abs=TOLERANCE)
        assert lookup(h, 1) == pytest.approx(0.5 * math.erfc(h / math.sqrt(2)), abs=TOLERANCE)
    for rho in (0.05, 0.4, 0.9):
        assert lookup(0, rho) == pytest.approx(math.asin(rho) / math.pi, abs=TOLERANCE)


@given(HEIGHT, CORRELATION, CORRELATION)
@settings(max_examples=200, deadline=None)
def test_gain_is_monotone_and_not_negative(h, one, other):
    low, high = sorted((one, other))
    for lookup in (compute_owen_gain, look_up_gain):
        assert 0 <= lookup(h, low) <= lookup(h, high) + 1e-12


@pytest.mark.parametrize(("h", "rho"), [(0.0, 0.5), (0.4, 0.7), (1.2, 0.9), (0.1, 0.2)])
def test_resolve_equals_error_reduction_in_sampling(h, rho):
    """Sample the gap and its observation from their joint Gaussian and count wrong signs."""
    rng, n = torch.Generator().manual_seed(3), 2_000_000
    observation = torch.randn(n, generator=rng, dtype=torch.float64)
    gap = (
        h
        + rho * observation
        + math.sqrt(1 - rho**2) * torch.randn(n, generator=rng, dtype=torch.float64)
    )
    wrong_now = (gap < 0).double().mean()
    wrong_after = (gap.sign() != (h + rho * observation).sign()).double().mean()
    assert compute_owen_gain(h, rho) == pytest.approx(float(wrong_now - wrong_after), abs=1.5e-3)


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 3), st.floats(0.05, 0.95), st.floats(-2, 2))
def test_resolve_is_at_least_error_reduction_by_labels(h, rho, threshold):
    """The gain by labels observes only the sign, so it is never larger."""
    assert ref.gain_by_labels(h, rho, threshold) <= compute_owen_gain(h, rho) + 1e-9
    assert ref.gain_by_labels(0.0, rho, 0.0) == pytest.approx(
        compute_owen_gain(0, rho), abs=1e-9
    )  # equal without information


@pytest.mark.parametrize(
    ("h", "rho", "threshold"), [(0.3, 0.6, 0.2), (1.0, 0.9, -0.5), (0.0, 0.4, 1.0)]
)
def test_error_reduction_by_labels_equals_sampling(h, rho, threshold):
    rng, n = torch.Generator().manual_seed(3), 2_000_000
    observation = torch.randn(n, generator=rng, dtype=torch.float64)
    gap = (
        h
        + rho * observation
        + math.sqrt(1 - rho**2) * torch.randn(n, generator=rng, dtype=torch.float64)
    )
    positive_label, positive_gap = observation > -threshold, gap > 0
    accuracy_after = (
        sum(
            float(torch.maximum((positive_gap & side).sum(), (~positive_gap & side).sum()))
            for side in (positive_label, ~positive_label)
        )
        / n
    )
    assert ref.gain_by_labels(h, rho, threshold) == pytest.approx(
        accuracy_after - float(positive_gap.double().mean()), abs=1.5e-3
    )


def test_predictable_label_has_no_error_reduction_by_labels():
    """A certain label at x' has no gain by labels; a real-valued observation there still has."""
    gains = [ref.gain_by_labels(0.2, 0.7, threshold) for threshold in (0.0, 1.0, 2.0, 6.0)]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] < 1e-8
    assert compute_owen_gain(0.2, 0.7) > gains[0]


def test_resolve_of_two_classes_is_at_least_gain_by_labels():
    outputs, K, _ = make_problem(40, 2)
    post = prior(outputs, K, noise=1e-1).condition([0, 1, 2, 3], torch.tensor([0, 1, 1, 0]))
    items = range(4, 40)
    scale = 2 * post.amplitude()
    gap, k = post.mean[:, 0] - post.mean[:, 1], post.covariance_columns(torch.arange(40))
    wide = (scale * (k.diagonal() + post.noise)).sqrt()
    scores = []
    for at in items:
        total = 0.0
        for x in items:
            if x != at:
                spread = math.sqrt(scale * float(k[x, x]))
                rho = scale * float(k[x, at]) / (spread * float(wide[at]))
                total += ref.gain_by_labels(float(gap[x]) / spread, rho, float(gap[at] / wide[at]))
        scores.append(total)
    ours = resolve(view(post, items), exact=True)
    assert bool((ours >= torch.tensor(scores) - 1e-9).all())
    assert float(ours.max()) > max(scores) > 0.1


def make_problem(n=30, classes=4, seed=0, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    psi = torch.randn(n, 12, generator=rng, dtype=dtype)
    return torch.zeros(n, classes, dtype=dtype), psi @ psi.T, psi


def test_resolve_without_labels_is_coverage():
    outputs, K, _ = make_problem()
    post = prior(outputs, K, noise=1e-2)
    scores = resolve(view(post, range(30)), exact=True)
    u = K.diagonal() + post.noise
    rho = (K.square() / (u[:, None] * K.diagonal())).sqrt().clamp_max(1)
    naive = (rho.asin() / math.pi).fill_diagonal_(0).sum(1)
    ref.close(scores, naive, 1e-8)


@pytest.mark.parametrize("form", ["kernel", "features"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_resolve_by_table_equals_exact(form, dtype):
    outputs, K, psi = make_problem(60, dtype=dtype)
    arguments = {"kernel": K} if form == "kernel" else {"features": psi}
    post = prior(outputs, **arguments, noise=1e-2).condition([3, 7, 20], torch.tensor([0, 1, 3]))
    pool_view = view(post, [i for i in range(60) if i not in (3, 7, 20)], range(0, 60, 2))
    points = len(pool_view.evaluation)
    assert torch.allclose(
        resolve(pool_view), resolve(pool_view, exact=True), atol=TOLERANCE * points
    )


def test_select_batch_by_resolve_keeps_predictions():
    outputs, K, _ = make_problem()
    post = prior(outputs, K, noise=1e-2).condition([3, 7], torch.tensor([0, 1]))
    chosen = select.select_batch(
        view(post, range(8, 30)), "resolve", 5, torch.Generator(), "greedy"
    )
    assert torch.allclose(chosen.view.posterior.mean, post.mean, atol=1e-9)
    assert len(set(chosen.positions.tolist())) == 5


def test_resolve_ignores_certain_points():
    outputs, K, _ = make_problem()
    post = prior(outputs, K, noise=1e-8).condition(range(10), torch.arange(10) % 4)
    scores = resolve(view(post, range(10, 30), range(10)))  # all evaluation points are labelled
    assert float(scores.max()) < 1e-3
    assert bool(torch.isfinite(scores).all())
