"""The labels of a data set whose task is not one class per item."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelahead.data.dataset import UNKNOWN
from labelahead.data.target_columns import (
    LocateRow,
    read_class_columns,
    read_class_sets,
    read_levels,
    read_number_columns,
    read_numbers,
)
from labelahead.errors import InputError
from labelahead.tasks import Task, find_task

__all__ = [
    "EncodedLabels",
    "Targets",
    "TaskValues",
    "build_targets",
    "make_task",
    "read_task_values",
]

NUMBER_STRATA = 10  # a test set has as many items of every tenth of the numbers


@dataclass(frozen=True)
class TaskValues:
    """Labels as plain values, before their task is known in full.

    Attributes:
        values: the answer of each item, as `Task.parse` reads it; None where it has no label.
        outputs: the names of the classes, or of the targets.
        units: the unit of each target, () unless they are numbers.
        notes: decisions, for the user.
    """

    values: tuple[Any, ...]
    outputs: tuple[str, ...]
    units: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Targets:
    """The labels of some items.

    Attributes:
        codes: (n,) answer codes of the task, -1 where there is no label.
        task: what the codes mean.
        strata: (n,) groups of similar labels, which a test set represents equally; -1 without one.
        notes: decisions, for the user.
    """

    codes: Tensor
    task: Task
    strata: Tensor
    notes: tuple[str, ...]


def read_task_values(
    task: str,
    columns: Mapping[str, Sequence[Any]],
    locate_row: LocateRow,
    where: str,
    classes: Sequence[str] = (),
) -> TaskValues:
    """Read the columns that hold the labels.

    Args:
        task: multilabel, number or rating.
        columns: the entries by name. Several columns are one class each, or one target each.
        locate_row: returns the place of a row, for messages.
        where: the file, for messages.
        classes: names that are certainly classes, in their order.

    Raises:
        InputError: if an entry is no label of this task.

    >>> from labelahead.data.targets import read_task_values
    >>> read_task_values("rating", {"stars": [3, 1]}, str, "t.csv").outputs
    ('1', '2', '3')
    """
    return READERS[task](columns, locate_row, where, classes)


def _read_multilabel(
    columns: Mapping[str, Sequence[Any]], locate_row: LocateRow, where: str, classes: Sequence[str]
) -> TaskValues:
    """Read one column of sets, or one column of 0 and 1 for each class."""
    if len(columns) > 1:
        found = read_class_columns(columns, locate_row, where)
    else:
        name, values = next(iter(columns.items()))
        found = read_class_sets(values, locate_row, f"{where}: the column {name!r}", classes)
    sets = tuple(None if row is None else list(row) for row in found.sets)
    return TaskValues(sets, found.classes, notes=found.notes)


def _read_number(
    columns: Mapping[str, Sequence[Any]], locate_row: LocateRow, where: str, classes: Sequence[str]
) -> TaskValues:
    """Read one column of numbers for each target."""
    if len(columns) > 1:
        found = read_number_columns(columns, locate_row, where)
    else:
        name, values = next(iter(columns.items()))
        found = read_numbers(values, locate_row, f"{where}: the column {name!r}", name)
    rows = tuple(
        None if row is None else row[0] if len(columns) == 1 else list(row) for row in found.values
    )
    return TaskValues(rows, found.targets, found.units, found.notes)


def _read_rating(
    columns: Mapping[str, Sequence[Any]], locate_row: LocateRow, where: str, classes: Sequence[str]
) -> TaskValues:
    """Read one column of ratings."""
    if len(columns) > 1:
        raise InputError(
            f"{where}: a rating is one column, but {', '.join(columns)} are given; expected one"
        )
    name, values = next(iter(columns.items()))
    found = read_levels(values, locate_row, f"{where}: the column {name!r}", classes)
    return TaskValues(found.levels, found.classes, notes=found.notes)


def build_targets(
    task: str, read: TaskValues, *, unit: str = "", limits: tuple[float, float] | None = None
) -> Targets | None:
    """Return the task that the labels belong to, and their codes; None if no class is known.

    Args:
        task: multilabel, number or rating.
        read: the labels.
        unit: of numbers, if the user names it.
        limits: the least and the largest possible number.

    Raises:
        InputError: if the numbers have another unit, or are outside the limits.
    """
    if not read.outputs:
        return None
    other = next((own for own in read.units if unit and own not in ("", unit)), None)
    if other is not None:
        raise InputError(
            f"the labels are in {other!r}, but unit is {unit!r}; expected the same: convert them"
        )
    made = make_task(task, read.outputs, [unit] if unit else read.units, limits)
    # In order of their values: the order of appearance would tell who has which label.
    distinct = {repr(value): value for value in read.values if value is not None}
    made.parse_all(distinct[key] for key in sorted(distinct))
    codes = [UNKNOWN if code is None else code for code in made.parse_all(read.values)]
    numbers = torch.tensor(codes, dtype=torch.int64)
    missing = int((numbers == UNKNOWN).sum())
    notes = read.notes
    if missing == len(numbers):
        notes += ("the label columns are empty: no labels",)
    elif missing:
        notes += (f"{missing} rows have no label",)
    return Targets(numbers, made, _group_similar_labels(made, numbers), notes)


@dataclass(frozen=True, eq=False)
class EncodedLabels:
    """Labels of any task.

    Attributes:
        codes: (n,) class numbers or answer codes, -1 where there is no label.
        classes: the class names, or the written answers.
        notes: decisions, for the user.
        task: what the codes mean; None: classes.
        strata: (n,) groups for the test set, unless they are the classes.
    """

    codes: Tensor
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    task: Task | None = None
    strata: Tensor | None = None

    @classmethod
    def from_targets(cls, found: Targets | None, n: int) -> "EncodedLabels":
        """Return the labels of n items; None: there are none."""
        if found is None:
            return cls(torch.full((n,), UNKNOWN), notes=("the label columns are empty: no labels",))
        return cls(found.codes, tuple(found.task.answers), found.notes, found.task, found.strata)


def make_task(
    task: str,
    outputs: Sequence[str],
    units: Sequence[str] = (),
    limits: tuple[float, float] | None = None,
) -> Task:
    """Return the task with these outputs.

    Args:
        task: multilabel, number or rating.
        outputs: the names of the classes, or of the targets.
        units: the unit of each target.
        limits: the least and the largest possible number.

    >>> from labelahead.data.targets import make_task
    >>> make_task("number", ["age"], ["years"]).unit
    'years'
    """
    if task == "number":
        unit = units[0] if len(set(units)) == 1 else ""
        return find_task(task, targets=list(outputs), unit=unit, limits=limits)
    return find_task(task, **{"levels" if task == "rating" else "classes": list(outputs)})


def _group_similar_labels(task: Task, codes: Tensor) -> Tensor:
    """Return groups (n,) of labels: levels, tenths of the numbers, or the rarest class of a set."""
    groups = torch.full_like(codes, UNKNOWN)
    known = (codes != UNKNOWN).nonzero().flatten()
    if not len(known):
        return groups
    if task.codes_are_classes:
        return codes
    targets = task.targets(codes[known])
    if task.name == "multilabel":
        is_positive = targets == 1
        rarity = torch.where(is_positive, is_positive.sum(0), len(codes) + 1)
        groups[known] = torch.where(is_positive.any(1), rarity.argmin(1), targets.shape[1])
    else:
        order = targets[:, 0].nan_to_num(0.0).argsort(stable=True).argsort()
        groups[known] = order * NUMBER_STRATA // len(known)
    return groups


Reader = Callable[[Mapping[str, Sequence[Any]], LocateRow, str, Sequence[str]], TaskValues]
READERS: dict[str, Reader] = {
    "multilabel": _read_multilabel,
    "number": _read_number,
    "rating": _read_rating,
}
