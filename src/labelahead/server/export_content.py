"""The rows of an export: item id, the user's columns, and labels or predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from labelahead.data.records import Records
from labelahead.data.table_writer import merge_columns, probability_column_name
from labelahead.errors import import_extra
from labelahead.server.label_state import LabelState
from labelahead.server.task_export import build_arrow_type, prediction_columns
from labelahead.tasks import Task

__all__ = ["Export", "ExportItems", "Predicted", "column_types", "export_content"]

TEXT_COLUMNS = ("label", "annotator", "labelled_at", "source", "prediction")


@dataclass(frozen=True, eq=False)
class ExportItems:
    """Content of the items for an export, beside their labels.

    Attributes:
        ids: the id of every item, by position.
        records: the user's columns.
        text: the column with running text, if there is one.
        open_file: opens an item's own file, by position; None if items are no files.
        picture: an item's picture, encoded, and its media type; None if items are no pictures.
        sounds: whether the items' files are sounds.
    """

    ids: Sequence[str]
    records: Records | None = None
    text: str | None = None
    open_file: Callable[[int], BinaryIO] | None = None
    picture: Callable[[int], tuple[bytes, str]] | None = None
    sounds: bool = False


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions of items without a label, by position.

    Attributes:
        best: the class number that is most probable, and its probability.
        every: probabilities of all class numbers, if requested.
        task_rows: of a task, the columns of every prediction.
    """

    best: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    every: Mapping[int, Sequence[float]] | None = None
    task_rows: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Export:
    """The rows of an export.

    Attributes:
        positions: the item of every row.
        columns: id, the user's columns and ours, as lists, arrays or Arrow columns.
        answers: every annotator's answer to the item of the row; empty for predictions.
        classes: the names of the classes, as the labels spell them.
        items: where the columns come from.
        task: what labels and predictions are; None: names of classes.
    """

    positions: Sequence[int]
    columns: Mapping[str, Any]
    answers: Sequence[Sequence[Mapping[str, Any]]]
    classes: Sequence[str]
    items: ExportItems
    task: Task | None = None


def column_types(columns: Mapping[str, Any], task: Task | None = None) -> dict[str, Any]:
    """Return the Arrow types of our columns; the user's columns keep their types."""
    arrow = import_extra("pyarrow", "tables", "the form Parquet")
    types = dict.fromkeys(TEXT_COLUMNS, arrow.string())
    if task is not None:
        types |= dict.fromkeys(("label", "prediction"), build_arrow_type(task))
        types |= dict.fromkeys(prediction_columns(task, probabilities=False), arrow.float64())
    return types | {
        name: arrow.float64() for name in columns if name.partition(":")[0] == "probability"
    }


def export_content(label_state: LabelState, items: ExportItems, predicted: Predicted) -> Export:
    """Return the rows of all labelled or predicted items, by position."""
    names = label_state.classes
    active_classes = [names[c] for c in label_state.active_classes]
    every = predicted.every
    own_columns: dict[str, list[Any]] = {name: [] for name in (*TEXT_COLUMNS, "probability")}
    own_columns |= (
        {probability_column_name(name): [] for name in active_classes} if every is not None else {}
    )
    task, rest = label_state.task, predicted.task_rows
    if task is not None:
        more = [*prediction_columns(task, probabilities=False), *next(iter(rest.values()), ())]
        own_columns |= {name: [] for name in more}
    positions, answers = sorted({*label_state.labels, *predicted.best, *rest}), []
    for position in positions:
        row: dict[str, Any] = dict.fromkeys(own_columns)
        given: list[dict[str, Any]] = []
        if position in label_state.labels:
            counts = label_state.find_deciding_answer(position)
            row |= {
                "label": _read_label(label_state, label_state.labels[position]),
                "annotator": counts.who,
                "labelled_at": counts.at,
            }
            row["source"] = "label"
            given = _list_answers(label_state, position, row)
        elif position in rest:
            row |= {"source": "prediction", **rest[position]}
        else:
            number, probability = predicted.best[position]
            row |= {
                "source": "prediction",
                "prediction": names[number],
                "probability": float(probability),
            }
            if every is not None and position in every:
                row |= {
                    probability_column_name(names[c]): float(every[position][c])
                    for c in label_state.active_classes
                }
        for name, value in row.items():
            own_columns[name].append(value)
        answers.append(given)
    records = None if items.records is None else items.records.take(positions)
    columns = merge_columns([items.ids[p] for p in positions], records, own_columns)
    return Export(positions, columns, answers, active_classes, items, task)


def _read_label(label_state: LabelState, label: int) -> Any:
    """Return a label as programs read it: a name, or the answer to a task as a plain value."""
    task = label_state.task
    return label_state.name_label(label) if task is None else task.value(label)


def _list_answers(
    label_state: LabelState, position: int, row: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the answer of each annotator, a settlement last."""
    answers = [
        {
            "annotator": a.who,
            "kind": a.kind,
            "label": None if a.label is None else _read_label(label_state, a.label),
            "labelled_at": a.at,
        }
        for a in label_state.answers.get(position, ())
    ]
    if position in label_state.settlements:
        answers = [a for a in answers if a["annotator"] != row["annotator"]]
        answers.append(
            {"kind": "settle", **{k: row[k] for k in ("annotator", "label", "labelled_at")}}
        )
    return answers
