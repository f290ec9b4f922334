"""Measures against scikit-learn's."""

import numpy as np
import pytest
from sklearn import metrics

from labelahead.tasks import measures


@pytest.fixture
def labels():
    rng = np.random.default_rng(0)
    truth = (rng.random((60, 5)) < [0.5, 0.3, 0.1, 0.05, 0.0]).astype(float)
    scores = np.round(0.6 * truth + rng.random((60, 5)), 1)  # with ties
    return truth, scores


def test_multilabel_measures_equal_those_of_scikit_learn(labels):
    truth, scores = labels
    chosen = scores >= 0.8
    assert measures.hamming_loss(chosen, truth) == pytest.approx(
        metrics.hamming_loss(truth, chosen)
    )
    micro, macro = measures.f1_scores(chosen, truth)
    assert micro == pytest.approx(metrics.f1_score(truth, chosen, average="micro"))
    expected = metrics.f1_score(truth, chosen, average="macro", zero_division=0)
    assert macro == pytest.approx(expected)
    some = truth[:, :4]
    assert measures.average_precision(scores, truth) == pytest.approx(
        metrics.average_precision_score(some, scores[:, :4], average="macro")
    )


def test_decisions_whose_truth_is_not_known_are_left_out(labels):
    truth, scores = labels
    chosen = scores >= 0.8
    hidden = truth.copy()
    hidden[30:, 1] = np.nan
    assert measures.hamming_loss(chosen, hidden) == pytest.approx(
        ((chosen != truth).sum() - (chosen != truth)[30:, 1].sum()) / (300 - 30)
    )
    only = measures.f1_scores(chosen[:, 1:2], hidden[:, 1:2])[1]
    assert only == pytest.approx(metrics.f1_score(truth[:30, 1], chosen[:30, 1]))
    assert measures.average_precision(scores[:, 1:2], hidden[:, 1:2]) == pytest.approx(
        metrics.average_precision_score(truth[:30, 1], scores[:30, 1])
    )


def test_regression_measures_equal_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(50, 2))
    predicted = truth + rng.normal(size=(50, 2))
    assert measures.root_mean_square(predicted - truth) == pytest.approx(
        metrics.mean_squared_error(truth, predicted) ** 0.5
    )
    assert measures.r_squared(predicted, truth) == pytest.approx(metrics.r2_score(truth, predicted))
    inside = measures.interval_coverage(predicted - 1, predicted + 1, truth)
    assert inside == pytest.approx((np.abs(predicted - truth) <= 1).mean())
    hidden = np.where(rng.random(truth.shape) < 0.5, np.nan, truth)
    known = ~np.isnan(hidden)
    assert measures.interval_coverage(predicted - 1, predicted + 1, hidden) == pytest.approx(
        (np.abs(predicted - truth)[known] <= 1).mean()
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_quadratic_kappa_equals_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 5, 80)
    chosen = np.clip(truth + rng.integers(-1, 2, 80), 0, 4)
    assert measures.quadratic_kappa(chosen, truth, 5) == pytest.approx(
        metrics.cohen_kappa_score(truth, chosen, weights="quadratic", labels=range(5))
    )


def test_degenerate_cases_have_a_value():
    assert measures.quadratic_kappa(np.array([1, 1]), np.array([1, 1]), 3) == 1.0
    nothing = np.full((2, 1), np.nan)
    assert measures.hamming_loss(np.zeros((2, 1)), nothing) == 0.0
    assert measures.average_precision(np.zeros((2, 1)), nothing) == 0.0
    assert measures.root_mean_square(nothing) == 0.0
    assert measures.r_squared(np.zeros((2, 1)), nothing) == 0.0
    assert measures.r_squared(np.ones((2, 1)), np.ones((2, 1))) == 1.0
