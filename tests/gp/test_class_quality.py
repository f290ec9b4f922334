"""Estimates of every class: against a naive twin, and how often their intervals hold."""

import math

import numpy as np
import pytest
import torch

from labelahead.gp.calibration import (
    BINOMIAL_STANDARD_DEVIATIONS,
    LAPSE_RATES,
    SCALES,
    Calibration,
    calibrate,
    estimate_error_rate,
    predict_class_probabilities,
    predict_leave_one_out,
)
from labelahead.gp.class_quality import (
    FEW_CLASS_LABELS,
    ITEM_STANDARD_DEVIATIONS,
    MAX_LISTED_CLASSES,
    estimate_class_report,
)
from labelahead.gp.posterior import prior


def imbalanced(seed=0, n=300, labelled=60, classes=4, offset=0.7):
    """A posterior over points whose classes are drawn from its prior, the last ones rare."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, dtype=torch.float64, generator=rng)
    K = torch.exp(-torch.cdist(x, x).square() / 2)
    root = torch.linalg.cholesky(K + 1e-8 * torch.eye(n))
    f = root @ torch.randn(n, classes, dtype=torch.float64, generator=rng)
    truth = (f - offset * torch.arange(classes)).argmax(1)
    start = torch.full((n, classes), 1 / classes, dtype=torch.float64)
    post = prior(start, K, noise=1e-2)
    return post.condition(torch.arange(labelled), truth[:labelled]), truth


def fixed_calibration(post, scale_number, lapse_number):
    """All weight on one scale and lapse rate."""
    weights = torch.zeros(len(LAPSE_RATES), len(SCALES), dtype=torch.float64)
    weights[lapse_number, scale_number] = 1
    return Calibration(SCALES[scale_number], weights, len(post.labelled))


@pytest.mark.parametrize("lapse_number", [0, 3])
def test_report_at_one_scale_equals_loops_over_items(lapse_number):
    post, truth = imbalanced(n=120, labelled=40)
    at, s = torch.arange(40, 120), 14
    report = estimate_class_report(post, at, calibration=fixed_calibration(post, s, lapse_number))
    lapse, p = LAPSE_RATES[lapse_number], predict_class_probabilities(post, at, SCALES[s]).numpy()
    p = lapse / 4 + (1 - lapse) * p
    predicted = post.mean[at].argmax(1).tolist()
    confusion = np.zeros((4, 4))
    for row, guess in zip(p, predicted, strict=True):
        confusion[:, guess] += row
    assert np.allclose(report.confusion.numpy(), confusion, atol=1e-9)
    loo = predict_leave_one_out(post)[0].argmax(1).tolist()
    given = truth[:40].tolist()
    for c, row in enumerate(report.classes):
        n, members = predicted.count(c), confusion[c].sum()
        assert (row.labels, row.predicted) == (given.count(c), n)
        assert row.expected == pytest.approx(members)
        if not n:
            assert row.precision is None
            assert row.recall == row.f1 == (0.0, 0.0, 0.0)
            continue
        for found, whole, labels in (
            (row.precision, n, loo.count(c)),
            (row.recall, members, given.count(c)),
            (row.f1, (n + members) / 2, (loo.count(c) + given.count(c)) / 2),
        ):
            rate = confusion[c, c] / whole
            smoothed = (rate * labels + 1) / (labels + 2)
            half = math.hypot(
                BINOMIAL_STANDARD_DEVIATIONS * math.sqrt(smoothed * (1 - smoothed) / (labels + 2)),
                ITEM_STANDARD_DEVIATIONS * math.sqrt(rate * (1 - rate) / max(whole, 1)),
            )
            assert found == pytest.approx((rate, max(0, rate - half), min(1, rate + half)))


def test_report_agrees_with_the_error_estimate():
    post, _ = imbalanced()
    at, fitted = torch.arange(60, 300), calibrate(imbalanced()[0])
    report = estimate_class_report(post, at, calibration=fitted)
    wrong = 1 - float(report.confusion.trace()) / len(at)
    assert wrong == pytest.approx(estimate_error_rate(post, at, fitted).rate, abs=2e-4)
    assert float(report.confusion.sum()) == pytest.approx(len(at))
    assert sum(row.expected for row in report.classes) == pytest.approx(len(at))
    assert sum(row.predicted for row in report.classes) == len(at)


def test_classes_with_few_labels_get_a_warning():
    post, truth = imbalanced(classes=6, offset=1.0)
    rows = estimate_class_report(post, torch.arange(60, 300)).classes
    given = torch.bincount(truth[:60], minlength=6).tolist()
    assert min(given) == 0  # otherwise this tests less than it should
    for row, n in zip(rows, given, strict=True):
        assert bool(row.warning) == (n < FEW_CLASS_LABELS)
    assert rows[given.index(0)].warning.startswith("no label")


def test_labels_outside_of_the_mask_do_not_count():
    post, truth = imbalanced()
    mask = torch.arange(60) >= 20
    rows = estimate_class_report(post, torch.arange(60, 300), mask).classes
    assert [row.labels for row in rows] == torch.bincount(truth[20:60], minlength=4).tolist()


def test_state_has_plain_values_and_leaves_out_large_matrices():
    post, _ = imbalanced()
    report = estimate_class_report(post, torch.arange(60, 300))
    state = report.to_state([3, 5, 7, 8])
    assert [row["number"] for row in state["classes"]] == [3, 5, 7, 8]
    assert state["classes"][0]["recall"] == [round(v, 4) for v in report.classes[0].recall]
    assert len(state["confusion"]) == 4
    many, _ = imbalanced(n=150, classes=MAX_LISTED_CLASSES + 1, offset=0.1)
    state = estimate_class_report(many, torch.arange(60, 150)).to_state()
    assert state["confusion"] is None
    assert len(state["classes"]) == MAX_LISTED_CLASSES + 1


def share_of_intervals_that_hold(offset):
    """The share over precision and recall of every class and 12 seeds; labels are random."""
    inside, total = 0, 0
    for seed in range(12):
        post, truth = imbalanced(seed, n=240, labelled=80, offset=offset)
        at = torch.arange(80, 240)
        predicted, actual = post.mean[at].argmax(1), truth[at]
        for c, row in enumerate(estimate_class_report(post, at).classes):
            right = float(((predicted == c) & (actual == c)).sum())
            if row.precision is None or not bool((actual == c).any()):
                continue
            recall, precision = right / int((actual == c).sum()), right / row.predicted
            inside += row.recall.low <= recall <= row.recall.high
            inside += row.precision.low <= precision <= row.precision.high
            total += 2
    assert total > 60
    return inside / total


def test_intervals_hold_on_data_from_the_prior():
    """research/benchmarks/classes.py has queried labels and real data."""
    assert share_of_intervals_that_hold(0.0) >= 0.88


def test_intervals_hold_less_often_where_the_model_is_wrong():
    """The shares of the classes differ from those of the prior: the documented limit."""
    assert 0.75 <= share_of_intervals_that_hold(0.7) <= 0.83
