"""Answers and predictions of a task in exports: cells, columns, and results of Label Studio."""

import math
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import torch

from labelahead.data.label_entries import NOT_REVIEWED_FIELD
from labelahead.data.table_writer import probability_column_name
from labelahead.errors import InputError, import_extra
from labelahead.server.snapshot import TaskPredictions
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

__all__ = [
    "build_arrow_type",
    "build_control",
    "build_feature",
    "build_result",
    "list_prediction_rows",
    "prediction_columns",
    "refuse_format",
    "write_cell",
]

NOT_REVIEWED = "?"  # before a class of which an answer says nothing
Row = dict[str, Any]


def refuse_format(task: Task, form: str) -> None:
    """Raise if a format cannot hold the answers of a task."""
    if form == "folders" and not isinstance(task, Rating):
        what = "numbers" if isinstance(task, Number) else "several classes"
        raise InputError(
            f"the format folders has one folder for each class, but items have {what}; expected "
            "csv, jsonl, parquet, hf or label-studio"
        )
    if form.startswith("label-studio") and len(task.outputs) > 1 and isinstance(task, Number):
        raise InputError(
            f"Label Studio has one number for each task, but items have {len(task.outputs)}: "
            f"{', '.join(task.outputs)}; expected csv, jsonl, parquet or hf"
        )


def write_cell(task: Task, value: Any) -> Any:
    """Return an answer as a cell of a CSV table."""
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(task, Multilabel):
        return ";".join(value) or "[]"
    return ";".join("?" if x is None else repr(x) for x in value)


def prediction_columns(task: Task, *, probabilities: bool) -> list[str]:
    """Return the columns of predictions after `prediction`."""
    if isinstance(task, Number):
        names = [""] if len(task.outputs) == 1 else [f"{name}_" for name in task.outputs]
        return [f"{name}{end}" for name in names for end in ("low", "high")]
    outputs = task.levels if isinstance(task, Rating) else task.outputs
    every = [probability_column_name(name) for name in outputs] if probabilities else []
    return ["probability", *every]


def list_prediction_rows(
    task: Task, predicted: TaskPredictions, without: Mapping[int, int], *, probabilities: bool
) -> dict[int, Row]:
    """Return the columns of every prediction by position.

    "probability" is that of the predicted level, or that all decisions about the classes are right.

    Args:
        task: Of the session.
        predicted: Predictions of items.
        without: Labels; items with one are left out.
        probabilities: Whether to add the probability of every class or level.
    """
    prediction = predicted.prediction
    names = ["prediction", *prediction_columns(task, probabilities=probabilities)]
    columns = [_list_values(prediction), *_list_columns(prediction, probabilities)]
    rows = zip(predicted.positions.tolist(), *columns, strict=True)
    return {p: dict(zip(names, row, strict=True)) for p, *row in rows if p not in without}


def _list_values(prediction: Prediction) -> list[Any]:
    values = prediction.values()
    return [list(v.values()) if isinstance(v, dict) else v for v in values]


def _list_columns(prediction: Prediction, probabilities: bool) -> list[list[float]]:
    if isinstance(prediction, NumberPrediction):
        low, high = prediction.interval()
        return [end[:, d].tolist() for d in range(len(prediction.names)) for end in (low, high)]
    assert isinstance(prediction, MultilabelPrediction | RatingPrediction)
    p = prediction.probabilities.double()
    if isinstance(prediction, RatingPrediction):
        sure = p.gather(1, prediction.chosen[:, None].to(p.device))[:, 0]
    else:
        sure = torch.where(prediction.chosen, p, 1 - p).prod(1)
    every = [p[:, c].tolist() for c in range(p.shape[1])] if probabilities else []
    return [sure.tolist(), *every]


def build_arrow_type(task: Task) -> Any:
    """Return the Arrow type of answers."""
    arrow = import_extra("pyarrow", "tables", "the form Parquet")
    if isinstance(task, Number):
        return arrow.float64() if len(task.outputs) == 1 else arrow.list_(arrow.float64())
    return arrow.list_(arrow.string()) if isinstance(task, Multilabel) else arrow.string()


def build_feature(task: Task, values: list[Any]) -> tuple[dict[str, Any], Any, list[Any]]:
    """Return the feature of Hugging Face for answers, its Arrow type, and the answers in it.

    A class that was not reviewed is a class of its own, `?fox`, so that it is no absent one.
    """
    arrow = import_extra("pyarrow", "tables", "the form hf")
    if isinstance(task, Number):
        value = {"dtype": "float64", "_type": "Value"}
        if len(task.outputs) == 1:
            return value, arrow.float64(), values
        return {"feature": value, "_type": "Sequence"}, arrow.list_(arrow.float64()), values
    if isinstance(task, Rating):
        number = {name: k for k, name in enumerate(task.levels)}
        feature: Row = {"names": list(task.levels), "_type": "ClassLabel"}
        return feature, arrow.int64(), [None if v is None else number[v] for v in values]
    used = {name for v in values for name in v or () if name.startswith(NOT_REVIEWED)}
    hidden = [NOT_REVIEWED + name for name in task.outputs if NOT_REVIEWED + name in used]
    names = [*task.outputs, *hidden]
    number = {name: c for c, name in enumerate(names)}
    feature = {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "Sequence"}
    rows = [None if v is None else [number[name] for name in v] for v in values]
    return feature, arrow.list_(arrow.int64()), rows


def _is_star_rating(task: Task) -> bool:
    """Return whether the levels are 1 to K, which Label Studio shows as stars."""
    return isinstance(task, Rating) and task.levels == tuple(
        str(k + 1) for k in range(len(task.levels))
    )


def build_control(view: ElementTree.Element, task: Task, name: str, shown: str) -> None:
    """Add the control of a task to a labelling configuration."""
    if isinstance(task, Number):
        low, high = task.limits
        limits = {"min": f"{low:g}"} if math.isfinite(low) else {}
        limits |= {"max": f"{high:g}"} if math.isfinite(high) else {}
        ElementTree.SubElement(view, "Number", {"name": name, "toName": shown, **limits})
        return
    if isinstance(task, Rating) and _is_star_rating(task):
        most = str(len(task.levels))
        ElementTree.SubElement(view, "Rating", name=name, toName=shown, maxRating=most)
        return
    names = task.levels if isinstance(task, Rating) else task.outputs
    choice = "single" if isinstance(task, Rating) else "multiple"
    choices = ElementTree.SubElement(view, "Choices", name=name, toName=shown, choice=choice)
    for each in names:
        ElementTree.SubElement(choices, "Choice", value=each)


def build_result(task: Task, value: Any, name: str, shown: str) -> Row:
    """Return an answer as Label Studio has it: `result`, and which classes were not reviewed."""

    def region(kind: str, content: Row) -> Row:
        given = {"from_name": name, "to_name": shown, "type": kind, "value": content}
        return {"result": [given]}

    if isinstance(task, Number):
        return region("number", {"number": value})
    if isinstance(task, Rating):
        if _is_star_rating(task):
            return region("rating", {"rating": int(value)})
        return region("choices", {"choices": [value]})
    hidden = [each.removeprefix(NOT_REVIEWED) for each in value if each.startswith(NOT_REVIEWED)]
    made = region("choices", {"choices": [v for v in value if not v.startswith(NOT_REVIEWED)]})
    return made | ({NOT_REVIEWED_FIELD: hidden} if hidden else {})
