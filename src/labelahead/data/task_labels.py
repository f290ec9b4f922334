"""Read label files strictly for tasks whose label is not one class: multilabel, number, rating."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelahead.data.classes import refuse_unlisted_labels
from labelahead.data.item_finder import ItemFinder
from labelahead.data.label_entries import EXPECTED_COLUMNS, Entry, read_entries
from labelahead.data.labels import LabelFile, get_annotator_name, require_same_file
from labelahead.data.targets import TaskValues, make_task, read_task_values
from labelahead.errors import InputError
from labelahead.tasks import Task, find_task

__all__ = [
    "FileLabels",
    "ImportedAnswers",
    "read_answers",
    "read_task_labels",
    "read_task_labels_for_ids",
]

log = logging.getLogger("labelahead")


@dataclass(frozen=True, eq=False)
class FileLabels:
    """The labels of a file.

    Attributes:
        codes: position -> answer code of the task.
        task: what the codes mean. It has all answers and classes of the task that was given, with
            the same codes.
    """

    codes: Mapping[int, int]
    task: Task


@dataclass(frozen=True)
class _Label:
    """A label with its place in the file, and the name that the file uses for its item."""

    entry: Entry
    position: int
    item: str


def read_task_labels(
    path: str | Path, data: Any, name: str, classes: Sequence[str] = ()
) -> FileLabels:
    """Read a label file for a data set.

    Rows without a label, predictions and files that were excluded from the data are skipped. An item
    may have the same label twice; two different labels are an error unless a resolution decides.

    Args:
        path: the label file.
        data: the data set. Classes that it does not have yet are added.
        name: the task: multilabel, number or rating.
        classes: names of all classes or levels; no other may occur.

    Raises:
        InputError: if an item is not found, a label is unclear, or two labels contradict.

    >>> from pathlib import Path
    >>> from labelahead.data import from_arrays
    >>> from labelahead.data.task_labels import read_task_labels
    >>> data, _ = from_arrays([[0.0], [1.0], [2.0]])
    >>> _ = Path("labels.csv").write_text("id,label\\n2,a;b\\n0,[]\\n")
    >>> read = read_task_labels("labels.csv", data, "multilabel")
    >>> {position: read.task.write(code) for position, code in read.codes.items()}
    {2: 'a;b', 0: '[]'}
    """
    rows = None if data.records is None else data.records.positions_by_row_number()
    finder = ItemFinder(data.ids, data.file_names, rows)
    return _read(LabelFile.read(path), finder, data.ids, name, data.task, classes)


def read_task_labels_for_ids(
    file: str | Path | LabelFile,
    ids: Sequence[str],
    name: str,
    task: Task | None = None,
    classes: Sequence[str] = (),
) -> FileLabels:
    """Read a label file for items given by their ids; see `read_task_labels`.

    Args:
        file: the label file.
        ids: the ids of the items.
        name: the task.
        task: the task so far, if there is one.
        classes: names of all classes or levels.
    """
    file = file if isinstance(file, LabelFile) else LabelFile.read(file)
    return _read(file, ItemFinder(ids), ids, name, task, classes)


def _read(
    file: LabelFile,
    finder: ItemFinder,
    ids: Sequence[str],
    name: str,
    task: Task | None,
    classes: Sequence[str],
) -> FileLabels:
    labels = _find_items(file, finder)
    read = _read_values(file, labels, name, task, classes)
    for note in read.notes:
        log.warning("%s: %s", file.path, note)
    if name != "number":
        refuse_unlisted_labels(read.outputs, classes)
    merged = _extend_task(file.path, name, task, read)
    codes = [
        _parse(merged, value, f"{file.path}, {label.entry.where}")
        for label, value in zip(labels, read.values, strict=True)
    ]
    found: dict[int, list[tuple[_Label, int]]] = {}
    for label, code in zip(labels, codes, strict=True):
        if code is not None:
            found.setdefault(label.position, []).append((label, code))
    chosen = {
        position: _resolve(file.path, ids[position], given, merged)
        for position, given in found.items()
    }
    return FileLabels(chosen, merged)


def _find_items(file: LabelFile, finder: ItemFinder) -> list[_Label]:
    """Return the labels of a file with their items."""
    labels: list[_Label] = []
    predictions = 0
    for entry in file.entries:
        where = f"{file.path}, {entry.where}"
        predictions += entry.is_prediction
        if entry.columns:
            raise InputError(
                f"{where}: columns {', '.join(entry.columns)}; expected {EXPECTED_COLUMNS}"
            )
        if entry.from_class_folder:
            raise InputError(
                f"{file.path} has one folder for each class, which is one class for each item; "
                f"expected a file with {EXPECTED_COLUMNS}"
            )
        if entry.value is None or entry.value == "" or entry.is_prediction:
            continue  # not labelled yet: people work with partly filled lists
        position, item = finder.find_one(entry, where)
        if position is None:
            continue
        labels.append(_Label(entry, position, item))
    if predictions:
        log.warning(
            "%s: %d predictions of a model are ignored: they are not labels", file.path, predictions
        )
    return labels


def _read_values(
    file: LabelFile, labels: Sequence[_Label], name: str, task: Task | None, classes: Sequence[str]
) -> TaskValues:
    """Read the label column as a whole, as `labelahead.data.target_columns` does for tables."""
    values = [label.entry.value for label in labels]
    known = classes if task is None else _list_outputs(task)
    if name == "number":
        targets = ("value",) if task is None else task.outputs
        if len(targets) > 1:  # the task alone knows how several numbers are written
            return TaskValues(tuple(values), targets)
    known = (*known, *(c for c in classes if c not in known))

    def locate(row: int) -> str:
        return labels[row].entry.where

    read = read_task_values(name, {"label": values}, locate, str(file.path), known)
    if name == "number" and task is not None:
        unit = getattr(task, "unit", "")
        if unit and read.units[0] and read.units[0] != unit:
            raise InputError(
                f"{file.path}: the unit of the labels is {read.units[0]!r}, but that of the data is "
                f"{unit!r}; expected the same: convert the labels"
            )
    return read


def _list_outputs(task: Task) -> tuple[str, ...]:
    """Return the names that labels consist of: classes or levels."""
    levels: tuple[str, ...] = getattr(task, "levels", task.outputs)
    return levels


def _extend_task(path: Path, name: str, task: Task | None, read: TaskValues) -> Task:
    """Return a copy of the task with the classes of a file; without a task, a new one."""
    if task is None:
        if not read.outputs:
            raise InputError(
                f"{path} names no class, and the data have none; expected some labels, or the names "
                "of all classes with --classes"
            )
        return make_task(name, read.outputs, read.units)
    copied = find_task(**task.describe())
    for output in read.outputs if name == "multilabel" else ():
        if output not in copied.outputs:
            copied.add_output(output)  # type: ignore[attr-defined]
    return copied


def _parse(task: Task, value: Any, where: str) -> int | None:
    try:
        return task.parse(value)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _resolve(path: Path, item: str, given: Sequence[tuple[_Label, int]], task: Task) -> int:
    """Return the one label of an item: its resolution, or the label that all rows agree on."""
    deciding = [pair for pair in given if pair[0].entry.is_resolution] or list(given)
    first, code = deciding[0]
    for other, another in deciding[1:]:
        if another != code:
            raise InputError(
                f"{path}, {other.entry.where}: {other.item!r} is labelled {task.write(another)!r}, "
                f"but {task.write(code)!r} at {first.entry.where}; expected one label for each item, "
                "so remove one"
            )
    require_same_file(path, item, [(label.entry.where, label.item) for label, _ in given])
    return code


@dataclass(frozen=True)
class ImportedAnswers:
    """The answers of an imported label file, in its order.

    Attributes:
        answers: (position, answer as `Task.parse` reads it, annotator).
        new_classes: classes that the task does not have.
        unknown: items that are not in the data.
        unclear: items with two answers by one annotator, or names that fit several items.
        blank: the number of rows without an answer.
    """

    answers: tuple[tuple[int, Any, str], ...]
    new_classes: tuple[str, ...]
    unknown: tuple[str, ...]
    unclear: tuple[str, ...]
    blank: int


def read_answers(
    path: str | Path,
    ids: Sequence[str],
    task: Task,
    *,
    form: str | None = None,
    rows: Mapping[str, int] | None = None,
) -> ImportedAnswers:
    """Read a label file leniently: unclear rows are reported, not refused.

    Args:
        path: the label file.
        ids: the ids of the items.
        task: of the answers; it is not changed.
        form: the format; by default the file name determines it.
        rows: positions by row number, as for `read_import`.

    Raises:
        InputError: if an entry is no answer to the task.
    """
    file = LabelFile(Path(path), tuple(read_entries(Path(path), form)))
    finder, labels, blank = ItemFinder(ids, rows=rows), list[_Label](), 0
    unknown: dict[str, None] = {}
    unclear: dict[str, None] = {}
    for entry in file.entries:
        if entry.from_class_folder:
            raise InputError(
                f"{file.path} has one folder for each class, which is one class for each item; "
                f"expected a file with {EXPECTED_COLUMNS}"
            )
        if entry.is_prediction or entry.value is None or entry.value == "":
            blank += not entry.is_prediction
            continue
        positions, name = finder.find(entry)
        if len(positions) == 1:
            labels.append(_Label(entry, positions[0], name))
        else:
            (unclear if positions else unknown)[name] = None
    read = _read_values(file, labels, task.name, task, ())
    for note in read.notes:
        log.warning("%s: %s", file.path, note)
    reader = _extend_task(file.path, task.name, task, read)
    found: dict[tuple[int, str], int] = {}
    for label, value in zip(labels, read.values, strict=True):
        where = f"{file.path}, {label.entry.where}"
        code = _parse(reader, value, where)
        if code is None:
            blank += 1
            continue
        key = (label.position, get_annotator_name(label.entry, where))
        if found.setdefault(key, code) != code:
            unclear[label.item] = None
    contradicted = {label.position for label in labels if label.item in unclear}
    answers = tuple(
        (position, reader.write(code), who)
        for (position, who), code in found.items()
        if position not in contradicted
    )
    new = tuple(name for name in _list_outputs(reader) if name not in _list_outputs(task))
    return ImportedAnswers(answers, new, tuple(unknown), tuple(unclear), blank)
