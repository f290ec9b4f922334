"""Accuracy and quality of each class from the answers of an audit."""

import numpy as np
import pytest

from labelahead.audit.plan import build_plan
from labelahead.audit.predictions import Predictions
from labelahead.audit.quality import estimate_accuracy, estimate_quality
from tests.support.audits import make_pool


def true_quality(predictions, truth, number):
    """Return precision, recall, F1 and share over the whole pool."""
    predicted, of_class = predictions.predicted == number, truth == number
    both = (predicted & of_class).sum()
    f1 = 2 * both / (predicted.sum() + of_class.sum())
    return both / predicted.sum(), both / of_class.sum(), f1, of_class.mean()


def test_complete_audit_finds_the_true_accuracy_and_quality_of_each_class():
    predictions, truth = make_pool(150, 3, seed=1)
    plan = build_plan(predictions.error)
    found = estimate_quality(predictions, plan, truth[plan.order])
    assert found.accuracy.value == pytest.approx((truth == predictions.predicted).mean())
    assert found.accuracy.half_width == pytest.approx(0, abs=1e-9)
    for number, row in enumerate(found.classes):
        values = [m.value for m in (row.precision, row.recall, row.f1, row.share)]
        assert values == pytest.approx(true_quality(predictions, truth, number))


def test_intervals_of_classes_contain_the_truth():
    """10 audits of 2 classes and 4 measures: 5 % may miss; 15 % are accepted."""
    missed = total = 0
    for seed in range(10):
        predictions, truth = make_pool(200, 2, seed)
        plan = build_plan(predictions.error, seed=seed)
        found = estimate_quality(predictions, plan, truth[plan.order[:80]])
        for number, row in enumerate(found.classes):
            rows = (row.precision, row.recall, row.f1, row.share)
            for m, true in zip(rows, true_quality(predictions, truth, number), strict=True):
                missed += not m.low <= true <= m.high
                total += 1
    assert missed <= 0.15 * total


def test_looks_are_those_of_shorter_audits():
    predictions, truth = make_pool(150, 2, seed=2)
    plan = build_plan(predictions.error)
    long = estimate_quality(predictions, plan, truth[plan.order[:60]])
    at = long.looks[9]
    short = estimate_accuracy(predictions, plan, truth[plan.order[: at.labels]]).accuracy
    assert (at.value, at.low, at.high) == (short.value, short.low, short.high)


def test_unknown_classes_count_as_errors():
    predictions = Predictions(("a", "b", "c"), ("x",), np.zeros(3, dtype=np.int64))
    plan = build_plan(predictions.error)
    assert estimate_accuracy(predictions, plan, [-1, -1, -1]).accuracy.high == 0
