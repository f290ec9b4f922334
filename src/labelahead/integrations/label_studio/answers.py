"""Answers and predictions of several classes, numbers and ratings in Label Studio's form."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from labelahead.data.classes import normalise_name
from labelahead.integrations.label_studio.interface import Interface
from labelahead.server.task_display import describe_predicted
from labelahead.server.task_export import build_result
from labelahead.tasks import (
    Multilabel,
    MultilabelPrediction,
    NumberPrediction,
    Prediction,
    RatingPrediction,
    Task,
)

__all__ = ["find_value", "is_same_selection", "list_selected", "predict_result"]

VALUE_KEYS: Mapping[str, str] = {"number": "number", "rating": "rating"}  # by task
NOT_REVIEWED = "?"  # before a class of which an answer says nothing
Result = list[dict[str, Any]]


def find_value(interface: Interface, result: Iterable[Mapping[str, Any]]) -> int | float | None:
    """Return the number or the rating in the result of an annotation; None without exactly one."""
    key = VALUE_KEYS[interface.task]
    regions = (r for r in result if r.get("from_name") == interface.name)
    made = [(r.get("value") or {}).get(key) for r in regions]
    found = made[0] if len(made) == 1 else None
    if not isinstance(found, int | float) or isinstance(found, bool):
        return None
    try:
        return found if math.isfinite(found) else None
    except OverflowError:  # JSON allows whole numbers of any length
        return None


def list_selected(interface: Interface, result: Iterable[Mapping[str, Any]]) -> list[str] | None:
    """Return the choices that are ticked in an annotation; none of them is an answer, too.

    Returns:
        None if the annotation is of another <Choices>, so that it says nothing.
    """
    regions = [r for r in result if "choices" in (r.get("value") or {})]
    own = [r for r in regions if r.get("from_name") == interface.name]
    if regions and not own:
        return None
    return list(dict.fromkeys(str(c) for r in own for c in r["value"]["choices"] or ()))


def is_same_selection(task: Task, code: int, selected: Collection[str]) -> bool:
    """Return whether a recorded answer has these classes, whatever was not reviewed then."""
    assert isinstance(task, Multilabel)
    recorded = {name for name in task.value(code) if not name.startswith(NOT_REVIEWED)}
    return recorded == set(selected)


def predict_result(
    interface: Interface, task: Task, prediction: Prediction
) -> tuple[Result, float | None]:
    """Return a predicted answer as the result of a prediction, and its score.

    The score is the probability of the predicted level, or that all decisions about the classes are
    right; of a number, the part of its range that the interval excludes, or None without a range.
    What has no place in the form is the text of the region: the interval of a number, the
    expected rating, the probability of every class.

    Args:
        interface: Of the project.
        task: Of the session.
        prediction: Of one item.
    """
    value, score, text = _describe(interface, prediction)
    region = build_result(task, value, interface.name, interface.shown)["result"][0]
    if region["value"].get("choices") == []:  # Label Studio refuses a region without a choice
        return [], score
    shown = {} if score is None else {"score": score}
    return [region | shown | {"meta": {"text": [text]}}], score


def _describe(interface: Interface, prediction: Prediction) -> tuple[Any, float | None, str]:
    """Return the predicted value, its score, and what the form has no place for."""
    if isinstance(prediction, NumberPrediction):
        return _describe_number(prediction)
    assert isinstance(prediction, MultilabelPrediction | RatingPrediction)
    score = round(float(prediction.columns(probabilities=False)["probability"][0]), 6)
    if isinstance(prediction, RatingPrediction):
        expected = float(prediction.expected_scores()[0])
        return prediction.values()[0], score, f"expected rating: {expected:.2f}"
    choices = {normalise_name(choice): choice for choice in interface.choices}
    names = [choices.get(normalise_name(name)) for name in prediction.names]
    shown = zip(names, prediction.probabilities[0].tolist(), strict=True)
    text = ", ".join(f"{name}: {p:.2f}" for name, p in shown if name is not None)
    chosen = zip(names, prediction.chosen[0].tolist(), strict=True)
    return [name for name, is_chosen in chosen if is_chosen and name is not None], score, text


def _describe_number(prediction: NumberPrediction) -> tuple[float, float | None, str]:
    described = describe_predicted(prediction)
    output = described["outputs"][0]
    least, largest = prediction.limits
    low, high = max(output["low"], least), min(output["high"], largest)
    share = None
    if math.isfinite(largest - least):
        share = round(min(max(1 - (high - low) / (largest - least), 0.0), 1.0), 6)
    text = f"{described['level']:.0%} interval: {low:.10g} to {high:.10g}"
    return min(max(output["mean"], least), largest), share, text
