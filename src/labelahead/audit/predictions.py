"""The predictions that an audit judges: a file of any model, read once and then frozen."""

import csv
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from labelahead.audit.plan import FloatArray, IntArray
from labelahead.data.classes import normalise_name
from labelahead.data.columns import parse_entry, parse_number
from labelahead.data.records import AUTO_ID, choose_id_column, format_id
from labelahead.data.table import Table, read_table
from labelahead.data.table_writer import probability_column_name
from labelahead.errors import InputError, count_noun, did_you_mean

__all__ = ["Predictions", "read_answers", "read_predictions"]

PLAIN_ERROR = 0.2  # predicted error probability of every item where no probability is known
SUM_TOLERANCE = 0.02  # of the probabilities of one item


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predicted classes of a pool, with probabilities where they are known."""

    ids: tuple[str, ...]
    classes: tuple[str, ...]
    predicted: IntArray  # (N,) indices of classes
    probability: FloatArray | None = None  # (N,) of the predicted class
    probabilities: FloatArray | None = None  # (N, C)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def error(self) -> FloatArray:
        """Predicted probability that each prediction is wrong, (N,)."""
        if self.probability is None:
            return np.full(len(self), PLAIN_ERROR)
        return np.clip(1 - self.probability, 0, 1)

    def predict_class(self, number: int) -> FloatArray:
        """Return the predicted probability (N,) that each item is of a class."""
        if self.probabilities is not None:
            return np.clip(self.probabilities[:, number], 0, 1)
        others = self.error / max(1, len(self.classes) - 1)
        return np.where(self.predicted == number, 1 - self.error, others)

    @cached_property
    def positions(self) -> dict[str, int]:
        """Position of each id."""
        return {name: i for i, name in enumerate(self.ids)}

    @property
    def data_fingerprint(self) -> str:
        """Hash of the ids of the audited items, in their order."""
        return hashlib.sha256("\n".join(self.ids).encode("utf-8", "surrogatepass")).hexdigest()

    def to_csv(self) -> str:
        """Return id, prediction and probabilities as CSV."""
        text = io.StringIO(newline="")
        rows = csv.writer(text, lineterminator="\n")
        names = [probability_column_name(name) for name in self.classes]
        every = names if self.probabilities is not None else []
        has_one = self.probability is not None
        rows.writerow(["id", "prediction", *(["probability"] if has_one else []), *every])
        for i, name in enumerate(self.ids):
            one = [repr(float(self.probability[i]))] if self.probability is not None else []
            more = self.probabilities[i].tolist() if self.probabilities is not None else []
            rows.writerow([name, self.classes[self.predicted[i]], *one, *map(repr, more)])
        return text.getvalue()


def read_predictions(
    path: str | Path, *, id: str = AUTO_ID, column: str = "prediction"
) -> tuple[Predictions, tuple[str, ...]]:
    """Read predictions from a table, and return them with notes for the user.

    Args:
        path: CSV, Parquet, Excel or JSON lines with an id, a prediction, and if known the column
            `probability` of the predicted class, or `probability:CLASS` for every class.
        id: the column with the ids; "auto": a column called `id`; "none": row numbers.
        column: the column with the predicted classes.

    Raises:
        InputError: if a column is missing, an id is repeated or a probability is impossible.

    >>> from pathlib import Path
    >>> _ = Path("p.csv").write_text("id,prediction,probability\\na,cat,0.9\\nb,dog,0.6\\n")
    >>> predictions, notes = read_predictions("p.csv")
    >>> predictions.classes, predictions.error.round(2).tolist()
    (('cat', 'dog'), [0.1, 0.4])
    """
    path = Path(path)
    table = read_table(path)
    if column not in table.columns:
        hint = did_you_mean(column, list(table.columns))
        raise InputError(
            f"{path} has no column {column!r}; {hint}expected the predicted classes in one of: "
            f"{', '.join(table.columns)}"
        )
    names = [format_id(value) for value in table.columns[column]]
    rows = [i for i, name in enumerate(names) if name]
    notes = []
    if len(rows) < len(names):
        empty = count_noun(len(names) - len(rows), "row has", "rows have")
        notes.append(f"{empty} no prediction and are left out of the audit")
    if not rows:
        raise InputError(f"{path}: no prediction in the column {column!r}; expected at least one")
    all_ids = table.ids(str(path), choose_id_column(str(path), table.columns, id, column))
    places = [table.locate_row(i) for i in rows]

    def read_column(name: str) -> FloatArray:
        return _read_probabilities([table.columns[name][i] for i in rows], name, places, str(path))

    return (
        _assemble([all_ids[i] for i in rows], [names[i] for i in rows], table, read_column),
        tuple(notes),
    )


def _assemble(
    ids: Sequence[str], names: Sequence[str], table: Table, read_column: Callable[[str], FloatArray]
) -> Predictions:
    prefix = probability_column_name("")
    named = [c.removeprefix(prefix) for c in table.columns if c.startswith(prefix)]
    classes = tuple(named) + tuple(sorted(set(names) - set(named)))
    number = {name: i for i, name in enumerate(classes)}
    predicted = np.array([number[name] for name in names], dtype=np.int64)
    probabilities = None
    if named and len(named) == len(classes):
        probabilities = np.stack([read_column(prefix + name) for name in classes], axis=1)
        total = probabilities.sum(axis=1)
        bad = np.flatnonzero(np.abs(total - 1) > SUM_TOLERANCE)
        if len(bad):
            raise InputError(
                f"the probabilities of {ids[bad[0]]!r} sum to {total[bad[0]]:.3f}; expected 1"
            )
    one = None
    if "probability" in table.columns:
        one = read_column("probability")
    elif probabilities is not None:
        one = probabilities[np.arange(len(ids)), predicted]
    return Predictions(tuple(ids), classes, predicted, one, probabilities)


def _read_probabilities(
    values: Sequence[object], name: str, places: Sequence[str], where: str
) -> FloatArray:
    numbers = np.empty(len(values))
    for i, value in enumerate(values):
        number = parse_number(parse_entry(value))
        if number is None or not 0 <= number <= 1:
            raise InputError(
                f"{where}, {places[i]}: {name} is {value!r}; expected a number from 0 to 1"
            )
        numbers[i] = number
    return numbers


def read_answers(
    path: str | Path, predictions: Predictions, *, id: str = AUTO_ID, column: str = "label"
) -> Mapping[int, str]:
    """Read labels of audited items: position -> class name; rows without a label are left out.

    A name that equals a predicted class but for case and spaces is that class; any other name is
    kept, and the prediction of its item counts as wrong.

    Raises:
        InputError: if a column is missing, an item is unknown, or has two labels.
    """
    path = Path(path)
    table = read_table(path)
    if column not in table.columns:
        raise InputError(
            f"{path} has no column {column!r}; expected labels in one of: "
            f"{', '.join(table.columns)}: call it {column!r}"
        )
    known = {normalise_name(name): name for name in predictions.classes}
    ids = table.ids(str(path), choose_id_column(str(path), table.columns, id, column))
    found: dict[int, str] = {}
    for i, value in enumerate(table.columns[column]):
        name = format_id(value)
        if not name:
            continue
        position = predictions.positions.get(ids[i])
        if position is None:
            raise InputError(
                f"{path}, {table.locate_row(i)}: {ids[i]!r} is not among the audited predictions; "
                "expected ids of the file with the next items"
            )
        found[position] = known.get(normalise_name(name), name)
    return found
