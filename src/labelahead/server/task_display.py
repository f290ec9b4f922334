"""Tasks, answers and their predictions as the page shows them."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from labelahead.tasks import (
    Multilabel,
    MultilabelPrediction,
    Number,
    NumberPrediction,
    Prediction,
    Rating,
    RatingPrediction,
    Task,
)

__all__ = ["count_outputs", "describe_predicted", "describe_task", "format_number"]

INTERVAL_LEVEL = 0.9  # of the intervals of numbers


def describe_task(task: Task | None) -> dict[str, Any] | None:
    """Return how the page asks for an answer of a task; None for one class per item."""
    if task is None:
        return None
    shown = {
        "name": task.name,
        "outputs": list(task.outputs),
        "error": {
            "name": task.error_unit,
            "measure": task.error_measure,
            "unit": _error_unit(task),
        },
    }
    if isinstance(task, Number):
        low, high = (x if math.isfinite(x) else None for x in task.limits)
        return shown | {"unit": task.unit, "low": low, "high": high}
    return shown | ({"levels": list(task.levels)} if isinstance(task, Rating) else {})


def _error_unit(task: Task) -> str:
    """Return the unit of the error: "%" of a share, that of the numbers, or none."""
    if isinstance(task, Multilabel):
        return "%"
    return task.unit if isinstance(task, Number) else ""


def describe_predicted(prediction: Prediction, row: int = 0) -> dict[str, Any]:
    """Return a predicted answer: its value, its text, and what is known of every output.

    In the result, "outputs" has for every class its number, its probability and whether it is
    predicted; of numbers, the mean and the ends of an interval for every target.
    """
    value = prediction.values()[row]
    if isinstance(prediction, NumberPrediction):
        return _describe_number(prediction, row)
    assert isinstance(prediction, MultilabelPrediction | RatingPrediction)
    p = prediction.probabilities[row].tolist()
    if isinstance(prediction, RatingPrediction):
        label = int(prediction.chosen[row])
        chosen = [k == label for k in range(len(p))]
        more = {"label": label, "score": round(float(prediction.expected_scores()[row]), 3)}
    else:
        chosen, more = prediction.chosen[row].tolist(), {}
    outputs = [
        {"label": c, "p": round(q, 4), "chosen": yes}
        for c, (q, yes) in enumerate(zip(p, chosen, strict=True))
    ]
    text = value if isinstance(value, str) else "; ".join(value) or "no class"
    return {"value": value, "text": text, "outputs": outputs, **more}


def _describe_number(prediction: NumberPrediction, row: int) -> dict[str, Any]:
    low, high = (end[row].tolist() for end in prediction.interval(INTERVAL_LEVEL))
    means, spread = prediction.mean[row].tolist(), prediction.deviation[row].tolist()
    outputs = [
        {
            "name": name,
            "mean": float(format_number(mean, deviation)),
            "low": float(format_number(a, deviation)),
            "high": float(format_number(b, deviation)),
        }
        for name, mean, deviation, a, b in zip(
            prediction.names, means, spread, low, high, strict=True
        )
    ]
    values = [each["mean"] for each in outputs]
    text = "; ".join(f"{x:g}" for x in values)
    value = values[0] if len(values) == 1 else values
    return {"value": value, "text": text, "outputs": outputs, "level": INTERVAL_LEVEL}


def format_number(x: float, deviation: float) -> str:
    """Write a number with two digits of its standard deviation.

    >>> from labelahead.server.task_display import format_number
    >>> format_number(12.3456, 0.5), format_number(12345.6, 800)
    ('12.35', '12350')
    """
    if not math.isfinite(x) or not 0 < deviation < math.inf:
        return repr(x)
    digits = 1 - math.floor(math.log10(deviation))
    rounded = round(x, digits)
    return f"{rounded:.{max(0, digits)}f}"


def count_outputs(task: Task, labels: Mapping[int, int]) -> list[int]:
    """Return how many labels have each class or level; empty for numbers."""
    if isinstance(task, Number):
        return []
    counts = Counter(labels.values())
    if task.codes_are_classes:
        return [counts[c] for c in range(len(task.answers))]
    if not counts:
        return [0] * len(task.outputs)
    rows = task.targets(list(counts))
    times = rows.new_tensor(list(counts.values()))[:, None]
    return [int(n) for n in ((rows == 1) * times).sum(0).tolist()]
