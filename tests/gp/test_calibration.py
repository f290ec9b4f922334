"""Calibration: class probabilities, the scale, and the error estimate against naive twins."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from labelahead.errors import InputError
from labelahead.gp.calibration import (
    LAPSE_PRIOR,
    LAPSE_RATES,
    ONE_STEP_AHEAD_WEIGHT,
    SCALE_PRIOR,
    SCALES,
    TEMPERATURE,
    calibrate,
    estimate_error_rate,
    gaussian_class_probabilities,
    leading_probability,
    predict_class_probabilities,
    predict_leave_one_out,
    predict_one_step_ahead,
)
from labelahead.gp.posterior import prior


def gaussian(seed=0, n=60, labelled=25, classes=4, noise=1e-2, wrong=0):
    """A posterior over points whose classes are drawn from its own prior, and the truth."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, dtype=torch.float64, generator=rng)
    K = torch.exp(-torch.cdist(x, x).square() / 4)
    truth = torch.linalg.cholesky(K + 1e-8 * torch.eye(n)) @ torch.randn(
        n, classes, dtype=torch.float64, generator=rng
    )
    labels = truth.argmax(1)
    given = labels[:labelled].clone()
    given[:wrong] = (given[:wrong] + 1) % classes
    start = torch.full((n, classes), 1 / classes, dtype=torch.float64)
    return prior(start, K, noise=noise).condition(torch.arange(labelled), given), labels


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_leading_probability_equals_quadrature_and_sampling(classes):
    rng = torch.Generator().manual_seed(classes)
    mean = torch.randn(5, classes, dtype=torch.float64, generator=rng)
    variance = torch.rand(5, dtype=torch.float64, generator=rng) + 0.3
    ours = leading_probability(mean, variance)
    for i in range(5):
        m, s = mean[i].numpy(), float(variance[i]) ** 0.5
        a = int(m.argmax())
        others = np.delete(m, a)
        value, _ = quad(lambda z: norm.pdf(z) * norm.cdf(z + (m[a] - others) / s).prod(), -9, 9)  # noqa: B023
        assert abs(float(ours[i]) - value) < 1e-4
    draws = mean + variance.sqrt()[:, None] * torch.randn(
        200_000, 5, classes, dtype=torch.float64, generator=rng
    )
    share = (draws.argmax(2) == mean.argmax(1)).double().mean(0)
    assert float((ours - share).abs().max()) < 5e-3


def test_leading_probability_of_two_classes_is_a_normal_cdf():
    post, _ = gaussian(classes=2)
    at = torch.arange(30, 60)
    gap = (post.mean[at, 0] - post.mean[at, 1]).abs()
    spread = (2 * post.amplitude() * post.variance()[at]).sqrt()
    ours = leading_probability(post.mean[at], post.amplitude() * post.variance()[at])
    assert torch.allclose(ours, torch.special.ndtr(gap / spread), atol=1e-4)
    p = predict_class_probabilities(*(gaussian(classes=5)[0], at, 1.3))
    assert torch.allclose(p.sum(1), torch.ones(30, dtype=torch.float64), atol=1e-9)
    assert bool((p >= 0).all())


def test_predict_leave_one_out_equals_refits():
    post, labels = gaussian(labelled=9)
    mean, variance = predict_leave_one_out(post)
    K, sigma = post.covariance.prior.matrix, post.noise
    targets = torch.nn.functional.one_hot(labels[:9], 4).double() - 0.25
    for i in range(9):
        rest = [j for j in range(9) if j != i]
        system = K[rest][:, rest] + sigma * torch.eye(8, dtype=torch.float64)
        refit = 0.25 + K[i, rest] @ torch.linalg.solve(system, targets[rest])
        assert torch.allclose(mean[i], refit, atol=1e-9)
        left = K[i, i] - K[i, rest] @ torch.linalg.solve(system, K[rest, i])
        assert abs(float(variance[i] - left)) < 1e-9


def test_predictions_of_labels_with_their_own_noise_equal_refits():
    post, labels = gaussian()
    noise = 10.0 ** torch.linspace(-3, 0, 9, dtype=torch.float64)
    post = prior(post.outputs, post.covariance.prior.matrix)
    post = post.condition(list(range(9)), labels[:9], noise)
    K, sigma = post.covariance.prior.matrix, noise * post.scale
    targets = torch.nn.functional.one_hot(labels[:9], 4).double() - 0.25
    for predict, others in (
        (predict_leave_one_out, lambda i: [j for j in range(9) if j != i]),
        (predict_one_step_ahead, lambda i: list(range(i))),
    ):
        mean, variance = predict(post)
        for i in range(9):
            rest = others(i)
            system = K[rest][:, rest] + torch.diag(sigma[rest])
            refit = 0.25 + K[i, rest] @ torch.linalg.solve(system, targets[rest])
            assert torch.allclose(mean[i], refit, atol=1e-9)
            left = K[i, i] - K[i, rest] @ torch.linalg.solve(system, K[rest, i])
            assert abs(float(variance[i] - left)) < 1e-9


def test_calibrate_counts_noisy_labels_by_their_precision():
    """Wrong labels of a source that is known to err do not raise the error estimate much."""
    rates = {}
    for known in (False, True):
        post, labels = gaussian(n=160, classes=3)
        post = prior(post.outputs, post.covariance.prior.matrix, noise=1e-2)
        at, shown = torch.arange(80), labels[:80].clone()
        shown[60:] = (shown[60:] + 1) % 3
        noise = torch.where(at < 60, 1e-2, 10.0) if known else None
        post = post.condition(at, shown, noise)
        rates[known] = estimate_error_rate(post, torch.arange(80, 160), calibrate(post)).rate
    assert rates[True] < rates[False] - 0.1


def test_calibrate_of_points_with_several_labels_raises():
    post, labels = gaussian(labelled=9)
    post = post.condition([3], labels[:1], allow_labelled=True)
    with pytest.raises(InputError, match="combine_labels"):
        calibrate(post)


def test_predict_one_step_ahead_equals_fits_to_earlier_labels():
    post, labels = gaussian(labelled=9)
    mean, variance = predict_one_step_ahead(post)
    K = post.covariance.prior.matrix
    sigma = post.noise
    targets = torch.nn.functional.one_hot(labels[:9], 4).double() - 0.25
    for i in range(9):
        before = list(range(i))
        system = K[before][:, before] + sigma * torch.eye(i, dtype=torch.float64)
        fitted = 0.25 + K[i, before] @ torch.linalg.solve(system, targets[before])
        assert torch.allclose(mean[i], fitted, atol=1e-9)
        left = K[i, i] - K[i, before] @ torch.linalg.solve(system, K[before, i])
        assert abs(float(variance[i] - left)) < 1e-9


def test_error_interval_is_not_narrowed_by_selection_bias():
    """Random labels, of the most undecided item each time.

    What agrees by luck is left alone, as in active learning.
    """
    rng = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(
        torch.randn(400, 40, generator=rng, dtype=torch.float64), dim=1
    )
    labels = torch.randint(2, (400,), generator=rng)
    start = torch.full((400, 2), 0.5, dtype=torch.float64)
    post, chosen = prior(start, x @ x.T, noise=0.3), list[int]()
    for _ in range(80):
        gap = (
            (post.mean[:, 0] - post.mean[:, 1])
            .abs()
            .index_fill(0, torch.tensor(chosen, dtype=torch.int64), 9.0)
        )
        chosen.append(int(gap.argmin()))
        post = post.condition([chosen[-1]], labels[chosen[-1]][None])
    rest = torch.tensor([i for i in range(400) if i not in set(chosen)])
    wrong = float((post.mean[rest].argmax(1) != labels[rest]).double().mean())
    found = estimate_error_rate(post, rest)
    assert found.low <= wrong <= found.high


def test_calibrate_scale_maximises_leave_one_out_likelihood():
    post, _ = gaussian(labelled=30)
    labels = post.targets.argmax(1)
    known = calibrate(post)
    mean, variance = predict_leave_one_out(post)

    def fit(s):
        return float(
            leading_probability(mean, s * s * post.amplitude() * variance, labels).log().sum()
        )

    assert known.scale == max(SCALES, key=fit)
    assert known.label_count == 29  # one class was labelled once
    assert float(known.weights.sum()) == pytest.approx(1.0)


def test_estimate_error_rate_equals_loop_over_scales_and_lapse_rates():
    """Naive twin in float64.

    Every scale, every lapse rate, every label by itself, no interpolation.
    """
    post, _ = gaussian(1, n=120, labelled=30)
    at, labels, classes = torch.arange(30, 120), post.targets.argmax(1).tolist(), post.classes
    mean, variance = predict_leave_one_out(post)
    counts = Counter(labels)
    left, ahead = (
        {
            s: leading_probability(m, s * s * post.amplitude() * v, torch.tensor(labels))
            .clamp_min(1e-12)
            .tolist()
            for s in SCALES
        }
        for m, v in ((mean, variance), predict_one_step_ahead(post))
    )
    repeated = [i for i in range(30) if counts[labels[i]] > 1]
    later = [i for i in range(30) if labels[i] in labels[:i]]
    parts = []
    for chances_of, admitted in ((left, range(30)), (left, repeated), (ahead, later)):
        weights = []
        for lapse, likely in zip(LAPSE_RATES, LAPSE_PRIOR, strict=True):
            for s, width in zip(SCALES, SCALE_PRIOR, strict=True):
                fit = sum(
                    math.log(lapse / classes + (1 - lapse) * chances_of[s][i]) for i in admitted
                )
                weights.append(likely * width * math.exp(fit / TEMPERATURE))
        parts.append(np.array(weights) / sum(weights))
    spread = post.amplitude() * post.variance()[at]
    wrong = [1 - float(leading_probability(post.mean[at], s * s * spread).mean()) for s in SCALES]
    rates = [
        lapse * (1 - 1 / classes) + (1 - lapse) * share for lapse in LAPSE_RATES for share in wrong
    ]
    weights = (1 - ONE_STEP_AHEAD_WEIGHT) * (
        parts[0] + parts[1]
    ) / 2 + ONE_STEP_AHEAD_WEIGHT * parts[2]
    found = estimate_error_rate(post, at)
    assert found.rate == pytest.approx(float(weights @ np.array(rates)), abs=5e-3)
    assert found.low < found.rate < found.high


def signal(kind, seed, n=600, labelled=80):
    """The posterior of a linear kernel over random points with labels of some kind, and all labels."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.nn.functional.normalize(torch.randn(n, 12, generator=rng, dtype=torch.float64), dim=1)
    labels = (x[:, 0] > 0).long()
    if kind == "noise":
        labels = torch.randint(2, (n,), generator=rng)
    elif kind == "chessboard":
        labels = (torch.floor(8 * x[:, 0]) + torch.floor(8 * x[:, 1])).long() % 2
    elif kind == "40 % wrong":
        labels = labels ^ (torch.rand(n, generator=rng) < 0.4).long()
    start = torch.full((n, 2), 0.5, dtype=torch.float64)
    return prior(start, x @ x.T, noise=0.3).condition(
        torch.arange(labelled), labels[:labelled]
    ), labels


@pytest.mark.parametrize("kind", ["noise", "chessboard", "40 % wrong"])
def test_error_interval_covers_truth_for_uninformative_features_and_noisy_labels(kind):
    held, at = 0, torch.arange(80, 600)
    for seed in range(10):
        post, labels = signal(kind, seed)
        wrong = float((post.mean[at].argmax(1) != labels[at]).double().mean())
        found = estimate_error_rate(post, at)
        held += found.low <= wrong <= found.high
    assert held >= 8


def test_error_interval_is_at_least_as_wide_as_binomial():
    post, _ = signal("signal", 0, n=900, labelled=800)
    found = estimate_error_rate(post, torch.arange(800, 900))
    assert found.high - found.rate >= 1.3 * math.sqrt(found.rate * (1 - found.rate) / 802)
    assert found.high - found.low > 0.005


def test_error_interval_is_wide_with_one_label_per_class():
    """Without its only label no class can be predicted.

    Leave-one-out is always wrong, and says nothing of the pool.
    """
    x = torch.eye(40, dtype=torch.float64).repeat(3, 1) + 0.05
    x = torch.nn.functional.normalize(x, dim=1)
    start = torch.full((120, 40), 1 / 40, dtype=torch.float64)
    post = prior(start, x @ x.T, noise=0.01).condition(torch.arange(40), torch.arange(40))
    at = torch.arange(40, 120)
    assert bool((post.mean[at].argmax(1) == torch.arange(40).repeat(2)).all())  # not one is wrong
    found = estimate_error_rate(post, at)
    assert found.low < 0.02
    assert found.high > 0.8


def test_calibrate_with_label_mask_ignores_masked_labels():
    """Of labels that were taken over from predictions.

    The likelihood of the others alone decides.
    """
    post = gaussian(3, labelled=30)[0]
    label_mask = torch.arange(30) % 3 > 0
    mean, variance = predict_leave_one_out(post)
    every = post.targets.argmax(1)
    held_out = label_mask & (
        torch.bincount(every)[every] > 1
    )  # a class with one label cannot be predicted without it
    labels, spread = every[held_out], post.amplitude() * variance[held_out]
    fits = [
        float(leading_probability(mean[held_out], s * s * spread, labels).log().sum())
        for s in SCALES
    ]
    assert calibrate(post, label_mask).scale == SCALES[int(np.argmax(fits))]
    everyone = calibrate(post, torch.ones(30, dtype=torch.bool))
    assert torch.equal(everyone.weights, calibrate(post).weights)
    assert calibrate(post, torch.zeros(30, dtype=torch.bool)).scale == 1.0  # nobody is left to ask


def test_calibrate_scale_grows_with_wrong_labels():
    scales = [calibrate(gaussian(seed=3, labelled=40, wrong=wrong)[0]).scale for wrong in (0, 12)]
    assert scales[1] > 1.2 * scales[0]


def test_estimate_error_rate_is_near_truth_over_many_draws():
    at, gaps, held = torch.arange(40, 300), [], 0
    for seed in range(20):
        post, labels = gaussian(seed=seed, n=300, labelled=40)
        wrong = float((post.mean[at].argmax(1) != labels[at]).double().mean())
        estimate = estimate_error_rate(post, at)
        gaps.append(estimate.rate - wrong)
        held += estimate.low <= wrong <= estimate.high
    assert abs(sum(gaps)) / 20 < 0.04
    assert sum(map(abs, gaps)) / 20 < 0.08
    assert held >= 17


def test_calibrate_without_informative_labels_returns_scale_one():
    post, _ = gaussian(labelled=25)
    one = prior(post.outputs, post.covariance.prior.matrix, noise=1e-2).condition(
        [0, 1], torch.tensor([2, 2])
    )
    assert calibrate(one).scale == 1.0
    assert estimate_error_rate(one, torch.zeros(0, dtype=torch.int64)).rate == 0.0
    narrow = prior(
        torch.zeros(4, 1, dtype=torch.float64), torch.eye(4, dtype=torch.float64), noise=1e-2
    )
    with pytest.raises(InputError, match="two or more outputs"):
        calibrate(narrow)


@pytest.mark.parametrize("classes", [2, 5, 12, 13, 40])
def test_class_probabilities_keep_order_of_outputs(classes):
    rng = torch.Generator().manual_seed(classes)
    mean = torch.randn(20, classes, generator=rng, dtype=torch.float64)
    variance = torch.rand(20, generator=rng, dtype=torch.float64) + 0.05
    p = gaussian_class_probabilities(mean, variance)
    assert torch.allclose(p.sum(1), torch.ones(20, dtype=torch.float64))
    order = mean.argsort(1)
    assert bool((p.gather(1, order).diff(dim=1) >= -1e-12).all())
    drawn = (
        mean[:, None]
        + variance.sqrt()[:, None, None] * torch.randn(20, 20_000, classes, generator=rng).double()
    )
    winners = drawn.argmax(2)
    counted = torch.stack([row.bincount(minlength=classes).double() for row in winners]) / 20_000
    assert (p - counted).abs().max() < (0.015 if classes <= 12 else 0.25)
    assert (p.amax(1) - counted.gather(1, mean.argmax(1, keepdim=True))[:, 0]).abs().max() < (
        0.015 if classes <= 12 else 0.05
    )


@pytest.mark.parametrize("count", [60, 150])
def test_class_probabilities_are_calibrated(count):
    """On digits: 15 bins of what is said to be sure, against what was right.

    Before, it was 20 points too low.
    """
    from sklearn.datasets import load_digits

    from labelahead.inference.exact import ExactLearner
    from labelahead.inference.exact_model import ExactModel

    x, y = (torch.tensor(a) for a in load_digits(return_X_y=True))
    at = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    x, y = x[at].float(), y[at]
    learner = ExactLearner(x, ExactModel(x.mean(0), 10))
    known, rest = torch.arange(count), torch.arange(count, 1500)
    learnt = learner.fit(known, y[known])
    points = torch.cat([known, rest])
    start = torch.full((len(points), 10), 0.1, dtype=torch.float64)
    post = prior(start, **learnt.kernel_arguments(points, "pseudo"), noise=learnt.noise).condition(
        known, y[known]
    )
    sure = predict_class_probabilities(post, rest, calibrate(post).scale).amax(1)
    right = (post.mean[rest].argmax(1) == y[rest]).double()
    bins = (15 * sure).long().clamp_max(14)
    off = sum(abs(float((right - sure)[bins == b].sum())) for b in range(15)) / len(rest)
    assert off < 0.06
    assert abs(float(sure.mean() - right.mean())) < 0.05


def test_calibrate_without_targets_of_no_class_equals_mask_of_these_labels():
    """Zero targets say which items are of no class, not which class leads."""
    post, _ = gaussian(seed=3)
    none = torch.tensor([1, 4, 17])
    at, targets = post.labelled, post.targets.clone()
    targets[none] = 0.0
    start = prior(post.outputs, post.covariance.prior.matrix, noise=1e-2)
    given = start.condition(at, targets)
    mask = torch.ones(len(at), dtype=torch.bool).index_fill_(0, none, False)
    assert torch.equal(calibrate(given).weights, calibrate(given, mask).weights)
    assert calibrate(given).label_count <= len(at) - len(none)
