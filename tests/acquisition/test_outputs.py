"""Acquisition functions of outputs that are decided one by one, against loops, refits and draws."""

import math

import pytest
import torch
from scipy.special import owens_t

from labelahead.acquisition import (
    OUTPUT_ACQUISITIONS,
    find_output_acquisition,
    flip_outputs,
    mlmoc_outputs,
    resolve_outputs,
    variance,
)
from labelahead.acquisition.pool_view import view
from labelahead.errors import InputError
from labelahead.gp.posterior import prior

N, C, NOISE = 12, 3, 0.05
LABELLED = [0, 1, 2, 3]
CANDIDATES = [4, 5, 6, 7]
EVALUATION = [5, 6, 8, 9, 10, 11]


def make_kernel(rng):
    features = torch.randn(N, 5, generator=rng, dtype=torch.float64)
    return features @ features.T / 5 + 0.1 * torch.eye(N, dtype=torch.float64)


def make_posterior(repeats=1, dtype=torch.float64):
    rng = torch.Generator().manual_seed(0)
    kernel = make_kernel(rng).to(dtype)
    targets = (torch.rand(N, C, generator=rng) < torch.tensor([0.5, 0.4, 0.2])).double()
    start = prior(torch.full((N, repeats * C), 0.4, dtype=torch.float64), kernel, noise=NOISE)
    return start.condition(LABELLED, targets[LABELLED].repeat(1, repeats))


@pytest.fixture
def posterior():
    return make_posterior()


@pytest.fixture
def pool_view(posterior):
    return view(posterior, CANDIDATES, EVALUATION)


def phi(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def pairs_of(posterior):
    """Yield (row of the candidate, amplitude, mean, variance, ρ²) of every term of the sums."""
    covariance = posterior.covariance_block(range(N), range(N))
    amplitudes = posterior.output_amplitudes()
    for row, at in enumerate(CANDIDATES):
        u = float(covariance[at, at]) + posterior.noise
        for x in EVALUATION:
            if x == at:
                continue
            squared = float(covariance[x, at]) ** 2 / (u * float(covariance[x, x]))
            for c in range(C):
                mean, spread = float(posterior.mean[x, c]), float(amplitudes[c] * covariance[x, x])
                yield row, float(amplitudes[c]), mean, spread, squared


def test_resolve_equals_the_sum_over_pairs_and_outputs(posterior, pool_view):
    expected = torch.zeros(len(CANDIDATES), dtype=torch.float64)
    for row, _, mean, spread, squared in pairs_of(posterior):
        h = abs(mean - 0.5) / math.sqrt(spread)
        expected[row] += phi(-h) - 2 * owens_t(h, math.sqrt((1 - squared) / squared))
    assert torch.allclose(resolve_outputs(pool_view, exact=True), expected, atol=1e-9)
    assert torch.allclose(resolve_outputs(pool_view), expected, atol=1e-3 * C)


def test_flip_equals_the_sum_over_pairs_and_outputs(posterior, pool_view):
    expected = torch.zeros(len(CANDIDATES), dtype=torch.float64)
    for row, _, mean, spread, squared in pairs_of(posterior):
        h = abs(mean - 0.5) / math.sqrt(0.3 * spread)
        expected[row] += phi(-h) - phi(-h / math.sqrt(1 - squared))
    assert torch.allclose(flip_outputs(pool_view), expected, atol=1e-3 * C)


def test_resolve_is_the_fall_of_wrong_decisions_in_draws_with_refits(posterior, pool_view):
    """Draw all outputs and a noisy answer from the posterior, refit, and count wrong decisions."""
    rng = torch.Generator().manual_seed(1)
    draws, amplitudes = 40000, posterior.output_amplitudes()
    scores = resolve_outputs(pool_view, exact=True)
    covariance = posterior.covariance_block(range(N), range(N))
    lower = torch.linalg.cholesky(covariance + 1e-10 * torch.eye(N, dtype=torch.float64))
    for row, at in enumerate(CANDIDATES[:2]):
        rest = [x for x in EVALUATION if x != at]
        # A refit is linear in the target: its mean is base + gain · target.
        base = posterior.condition([at], torch.zeros(1, C)).mean[rest]
        gain = posterior.condition([at], torch.ones(1, C)).mean[rest] - base
        fall = torch.zeros(draws, dtype=torch.float64)
        for c in range(C):
            z = torch.randn(N, draws, generator=rng, dtype=torch.float64)
            f = posterior.mean[:, c : c + 1] + amplitudes[c].sqrt() * lower @ z
            noise = torch.randn(draws, generator=rng, dtype=torch.float64)
            answer = f[at] + (amplitudes[c] * posterior.noise).sqrt() * noise
            after = base[:, c : c + 1] + gain[:, c : c + 1] * answer
            truth = f[rest] > 0.5
            wrong_now = (posterior.mean[rest, c : c + 1] > 0.5) != truth
            fall += wrong_now.double().sum(0) - ((after > 0.5) != truth).double().sum(0)
        error = float(fall.std()) / math.sqrt(draws)
        assert float(fall.mean()) == pytest.approx(float(scores[row]), abs=4 * error)


def test_mlmoc_is_the_change_of_a_refit(posterior, pool_view):
    targets = (posterior.mean >= 0.5).double()
    for row, at in enumerate(CANDIDATES):
        rest = [x for x in EVALUATION if x != at]
        after = posterior.condition([at], targets[[at]]).mean
        change = (after - posterior.mean)[rest].norm(dim=1).sum()
        assert float(mlmoc_outputs(pool_view)[row]) == pytest.approx(float(change))


def test_copies_of_an_output_count_again(pool_view):
    twice = make_posterior(repeats=2)
    for function in (resolve_outputs, flip_outputs):
        single = function(pool_view)
        assert torch.allclose(function(view(twice, CANDIDATES, EVALUATION)), 2 * single, rtol=1e-6)


@pytest.mark.parametrize("name", OUTPUT_ACQUISITIONS)
def test_float32_kernels_score_alike(name, posterior):
    narrow = make_posterior(dtype=torch.float32)
    function = find_output_acquisition(name)
    wide = function(view(posterior, CANDIDATES, EVALUATION), None)
    assert torch.allclose(function(view(narrow, CANDIDATES, EVALUATION), None), wide, rtol=1e-3)


def test_amplitude_of_each_output_is_that_of_its_labels(posterior):
    K = make_kernel(torch.Generator().manual_seed(0))[LABELLED][:, LABELLED]
    inverse = torch.linalg.inv(K + posterior.noise * torch.eye(4, dtype=torch.float64))
    centred = posterior.targets - posterior.targets.mean(0)
    each = torch.einsum("lc,lk,kc->c", centred, inverse, centred)
    overall = posterior.amplitude()
    assert overall == pytest.approx(float(each.sum()) / (4 * C))
    assert torch.allclose(posterior.output_amplitudes(), (each + overall) / 5)


def test_full_kernel_is_refused():
    kernel = torch.eye(4 * 2, dtype=torch.float64)
    post = prior(torch.zeros(4, 2, dtype=torch.float64), kernel, noise=NOISE)
    with pytest.raises(InputError, match="expected a scalar kernel"):
        resolve_outputs(view(post, [0, 1], [2, 3]))


def test_names_of_functions_that_compare_classes_are_refused():
    with pytest.raises(InputError, match="emoc compares classes"):
        find_output_acquisition("emoc")
    assert find_output_acquisition("variance") is variance
