"""What an audit found: accuracy, and precision, recall, F1 and share of each class, with intervals."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labelahead.audit.plan import AuditPlan, FloatArray, IntArray
from labelahead.audit.predictions import Predictions
from labelahead.audit.sequence import Indicator, Interval, RatioSequence

__all__ = ["ClassQuality", "Look", "Quality", "estimate_accuracy", "estimate_quality"]

LOOKS = 24  # of the curve of the interval
CLASS_TARGET = 0.05  # half-width that the stakes of single classes are best for


@dataclass(frozen=True)
class ClassQuality:
    """Estimates of one class; each interval holds at every look, for itself (pointwise)."""

    name: str
    predicted: int  # items of the pool that are predicted to be of it
    labelled: int  # audited items that are of it
    checked: int  # audited items that were predicted to be of it
    precision: Interval
    recall: Interval
    f1: Interval
    share: Interval  # of the pool


@dataclass(frozen=True)
class Look:
    """The interval of the accuracy after some labels."""

    labels: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Quality:
    """The result of an audit after some labels."""

    items: int
    labels: int
    wrong: int
    confidence: float
    accuracy: Interval
    classes: tuple[ClassQuality, ...] = ()
    looks: tuple[Look, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and dictionaries."""
        return asdict(self)


def estimate_accuracy(
    predictions: Predictions,
    plan: AuditPlan,
    answers: Sequence[int],
    *,
    confidence: float = 0.95,
    target: float = 0.02,
) -> Quality:
    """Estimate the accuracy from the answers to the first items of the plan's order.

    Args:
        predictions: the frozen predictions.
        plan: strata and order, made from `predictions.error`.
        answers: number of the true class of `plan.order[0]`, `plan.order[1]`, ...; a number
            outside of `predictions.classes` for a class that the model does not know.
        confidence: of the interval, at all times together.
        target: half-width that the audit aims at, fixed before the first answer.

    >>> from labelahead.audit import build_plan
    >>> ids, classes = tuple(map(str, range(200))), ("cat", "dog")
    >>> predictions = Predictions(ids, classes, np.arange(200) % 2, np.full(200, 0.9))
    >>> plan = build_plan(predictions.error)
    >>> answers = [int(predictions.predicted[p]) for p in plan.order[:80]]  # all of them right
    >>> found = estimate_accuracy(predictions, plan, answers)
    >>> found.accuracy.low > 0.93, found.accuracy.high
    (True, 1.0)
    """
    truth = np.asarray(answers, dtype=np.int64)
    sequence = _sequence_of_errors(predictions, plan, truth, target)
    wrong = int(sequence.numerator.drawn.sum())
    accuracy = sequence.find_interval(confidence).complement()
    return Quality(len(predictions), len(truth), wrong, confidence, accuracy)


def estimate_quality(
    predictions: Predictions,
    plan: AuditPlan,
    answers: Sequence[int],
    *,
    confidence: float = 0.95,
    target: float = 0.02,
) -> Quality:
    """Estimate the accuracy as `estimate_accuracy` does, the classes, and the interval over time."""
    truth = np.asarray(answers, dtype=np.int64)
    basic = estimate_accuracy(predictions, plan, answers, confidence=confidence, target=target)
    sequence = _sequence_of_errors(predictions, plan, truth, target)
    looks = []
    for n in np.unique(np.linspace(0, len(truth), min(LOOKS, len(truth)) + 1).astype(int)):
        seen = sequence.find_interval(confidence, draws=int(n)).complement()
        looks.append(Look(int(n), seen.value, seen.low, seen.high))
    classes = tuple(
        _estimate_class(predictions, plan, truth, number, confidence)
        for number in range(len(predictions.classes))
    )
    return Quality(
        basic.items, basic.labels, basic.wrong, confidence, basic.accuracy, classes, tuple(looks)
    )


def _sequence_of_errors(
    predictions: Predictions, plan: AuditPlan, truth: IntArray, target: float
) -> RatioSequence:
    draws = plan.list_draws(len(truth))
    wrong = truth != predictions.predicted[draws.positions]
    return RatioSequence(draws, Indicator.of(wrong, predictions.error), target=target)


def _estimate_class(
    predictions: Predictions, plan: AuditPlan, truth: IntArray, number: int, confidence: float
) -> ClassQuality:
    draws = plan.list_draws(len(truth))
    of_class = (truth == number).astype(np.float64)
    is_predicted = predictions.predicted == number
    chosen = is_predicted[draws.positions]
    chance = predictions.predict_class(number)

    def find(numerator: Indicator, denominator: Indicator | None = None) -> Interval:
        sequence = RatioSequence(draws, numerator, denominator, target=CLASS_TARGET)
        return sequence.find_interval(confidence)

    right = Indicator.of(of_class * chosen, chance * is_predicted)
    either = Indicator.of((chosen + of_class) / 2, (is_predicted + chance) / 2)
    part = plan.list_draws(len(truth), is_predicted)
    wrong_inside: FloatArray = 1 - of_class[chosen]
    errors = Indicator.of(wrong_inside, predictions.error[part.members])
    precision = RatioSequence(part, errors, target=CLASS_TARGET).find_interval(confidence)
    return ClassQuality(
        predictions.classes[number],
        int(is_predicted.sum()),
        int(of_class.sum()),
        int(chosen.sum()),
        precision.complement(),
        find(right, Indicator.of(of_class, chance)),
        find(right, either),
        find(Indicator.of(of_class, chance)),
    )
