"""Read label files: parse their entries, and find the items that they name.

    read_labels             strict, for networks and `label --test`: anything unclear is an error
    read_labels_by_source   strict, for the exact learner: all labels of an item by annotator
    read_import             lenient, for the labelling page: anything unclear is reported

Exports of labelahead have the columns `id`, `label`, `annotator`, `labelled_at` and `source`; other
columns in them are ignored. In other files the column `source` names the annotator if no other
does. Exports of version 0.2 had `item`, `who` and `at`, and row numbers as ids.

An item is found by its id; by its file name, with or without suffix, if no other item has the same;
by the end of a URL or an absolute path; and by its position. A column `index` always holds
positions; elsewhere a number is a position only if no item has a number as its name. Predictions of
a model are never labels.
"""

import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import torch
from torch import Tensor

from labelahead.data.classes import check_name, sort_names
from labelahead.data.dataset import Data
from labelahead.data.excel import WORKBOOK_SUFFIXES, read_sheet, split_sheet
from labelahead.data.label_values import (
    SEVERAL_CLASSES_ADVICE,
    LabelNormaliser,
    parse_label,
    refuse_combined_labels,
)
from labelahead.data.parquet import column_to_python, read_bounded
from labelahead.data.records import format_id
from labelahead.data.text import (
    as_file_name,
    read_json_lines,
    read_separated,
    read_text,
    unescape_formulas,
)
from labelahead.errors import InputError, did_you_mean, import_extra

__all__ = [
    "LabelFile",
    "LabelsBySource",
    "read_import",
    "read_labelled_names",
    "read_labels",
    "read_labels_by_source",
    "read_labels_for_ids",
]

log = logging.getLogger("labelahead")

MAX_LABEL_ROWS = 500_000  # rows of a Parquet label file
# Memory of a Parquet label file: a small file can decode to any size.
MAX_LABEL_BYTES = 2**29
# The id in tasks of Label Studio, whose own exports write the number of the task as `id`.
ITEM_ID_FIELD = "item_id"
ITEM_COLUMNS = (ITEM_ID_FIELD, "item", "path", "file", "filename", "file_name", "image", "text")
LABEL_COLUMNS = ("label", "class", "target", "choice", "choices")
ANNOTATOR_COLUMNS = ("who", "annotator", "completed_by", "annotator_id", "user", "by")
# In our exports: "prediction" if a model gave the label, else "label". Elsewhere who gave it.
SOURCE_COLUMN = "source"
EXPORT_SOURCES = ("label", "prediction")
# Columns that identify our own exports.
EXPORT_COLUMNS = frozenset(("id", "label", "annotator", "labelled_at", SOURCE_COLUMN))
EXPORT_COLUMNS_0_2 = frozenset(("item", "label", "who", "at", SOURCE_COLUMN, "confidence"))
# Columns of Label Studio's short formats, in which `id` is the number of the task.
TASK_EXPORT_COLUMNS = frozenset(("annotation_id", "lead_time"))
EXPECTED_COLUMNS = (
    f"a column id|{'|'.join(ITEM_COLUMNS)}|index and a column {'|'.join(LABEL_COLUMNS)}"
)
FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "label-studio",
    ".parquet": "parquet",
    **dict.fromkeys(WORKBOOK_SUFFIXES, "excel"),
}
UNKNOWN_ANNOTATOR = "import"  # the annotator of labels in files that name none
EXCLUDED = -1  # the position of a file that exists but was excluded from the data


@dataclass(frozen=True)
class Entry:
    """One row of a label file: the label of one item.

    Attributes:
        where: the place in the file, for messages.
        names: names of the item, the most likely first.
        label: a text; None if there is no label; any other value is not a single label.
        annotator: who gave the label.
        is_prediction: whether a model predicted the label.
        is_resolution: whether it resolves a disagreement between annotators.
        is_position: whether the name is a position.
        from_class_folder: whether name and label are file names of the format `folders`.
        columns: the columns of a row without a label column.
        literal: whether the label was chosen from a list of classes, so that NA and None are names.
        id_value: the value of a column `id`, which identifies the item if ids come from a column.
        is_version_0_2: whether the name is a row number, as exported by labelahead 0.2.
    """

    where: str
    names: Sequence[Any]
    label: Any = None
    annotator: Any = None
    is_prediction: bool = False
    is_resolution: bool = False
    is_position: bool = False
    from_class_folder: bool = False
    columns: Sequence[str] = ()
    literal: bool = False
    id_value: str | None = None
    is_version_0_2: bool = False


class _LabelledEntry(NamedTuple):
    """An entry with its label, and the name that the file uses for its item."""

    entry: Entry
    item: str
    label: str


def read_labels(
    path: str | Path, data: Data, classes: Sequence[str] = ()
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Read a label file strictly.

    Rows without a label, predictions and files that were excluded from the data are skipped. An
    item may have the same label twice; two different labels are an error unless a resolution
    decides. `LabelNormaliser` decides which values are labels, and which of them are the same
    class.

    Args:
        path: the label file or folder.
        data: the data set.
        classes: further names that are certainly classes.

    Returns:
        Positions (q,), class numbers (q,), and the class names: those of the data, then new ones.

    Raises:
        InputError: if an item is not found, a label is unclear, or two labels contradict.

    >>> from pathlib import Path
    >>> from labelahead.data import from_arrays, read_labels
    >>> data, _ = from_arrays([[0.0], [1.0], [2.0]], classes=["no", "yes"])
    >>> _ = Path("labels.csv").write_text("\\n".join(["item,label", "2,yes", "0,maybe"]))
    >>> positions, numbers, classes = read_labels("labels.csv", data)
    >>> positions.tolist(), numbers.tolist(), classes
    ([2, 0], [1, 2], ('no', 'yes', 'maybe'))
    """
    rows = None if data.records is None else data.records.positions_by_row_number()
    return read_labels_for_ids(path, data.ids, data.classes, data.file_names, classes, rows=rows)


@dataclass(frozen=True)
class LabelFile:
    """A label file that is parsed once and used several times.

    Attributes:
        path: the label file or folder.
        entries: what it holds, in order.
    """

    path: Path
    entries: tuple[Entry, ...]

    @classmethod
    def read(cls, path: str | Path) -> "LabelFile":
        """Parse a label file."""
        return cls(Path(path), tuple(read_entries(Path(path))))


def read_labelled_names(file: str | Path | LabelFile) -> dict[str, str]:
    """Return the names of all items with a label in a file, with their places in it.

    For pools that are too large to hold all names in memory.
    """
    file = file if isinstance(file, LabelFile) else LabelFile.read(file)
    names: dict[str, str] = {}
    for entry in file.entries:
        if entry.is_position:
            raise InputError(
                f"{file.path}, {entry.where}: an index; expected items of a large pool by their "
                "own name"
            )
        if entry.label is not None and not entry.is_prediction and entry.names:
            names.setdefault(
                str(entry.names[0]) if entry.id_value is None else entry.id_value, entry.where
            )
    return names


def read_labels_for_ids(
    file: str | Path | LabelFile,
    ids: Sequence[str],
    known: tuple[str, ...] = (),
    files: Sequence[str] = (),
    classes: Sequence[str] = (),
    *,
    rows: Mapping[str, int] | None = None,
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Read a label file strictly for items given by their ids; see `read_labels`.

    Args:
        file: the label file or folder.
        ids: the ids of the items.
        known: the classes of the data.
        files: the names of files that were excluded from the data.
        classes: further names that are certainly classes.
        rows: positions by row number, as for `read_import`.
    """
    file = file if isinstance(file, LabelFile) else LabelFile.read(file)
    finder = _ItemFinder(ids, files, rows)
    reader = LabelNormaliser((*known, *classes))
    answers_by_position = _collect_answers(file, finder, reader, known, classes)
    labels = {
        position: _resolve_label(file.path, ids[position], answers)
        for position, answers in answers_by_position.items()
    }
    names = _list_classes(file.path, reader, set(labels.values()), known, classes)
    number = {name: i for i, name in enumerate(names)}
    codes = torch.tensor([number[name] for name in labels.values()], dtype=torch.int64)
    return torch.tensor(list(labels), dtype=torch.int64), codes, names


class LabelsBySource(NamedTuple):
    """All labels of a file, by who gave them.

    Attributes:
        labels: (position, class number, annotator) in the order of the file; the annotator is ""
            where the file names none. A pair of position and annotator occurs once.
        resolved: position -> class number, of items whose disagreement somebody resolved. They are
            not in `labels`.
        classes: The class names: those of the data, then new ones.
    """

    labels: tuple[tuple[int, int, str], ...]
    resolved: dict[int, int]
    classes: tuple[str, ...]


def read_labels_by_source(
    path: str | Path, data: Data, classes: Sequence[str] = ()
) -> LabelsBySource:
    """Read a label file strictly, with all labels of an item by different annotators.

    Args:
        path: the label file or folder.
        data: the data set.
        classes: further names that are certainly classes.

    Raises:
        InputError: as `read_labels`, but labels contradict only if one annotator gave both.

    >>> from pathlib import Path
    >>> from labelahead.data import from_arrays
    >>> from labelahead.data.labels import read_labels_by_source
    >>> data, _ = from_arrays([[0.0], [1.0]], classes=["no", "yes"])
    >>> _ = Path("two.csv").write_text("item,label,annotator\\n0,yes,anna\\n0,no,ben\\n")
    >>> read_labels_by_source("two.csv", data).labels
    ((0, 1, 'anna'), (0, 0, 'ben'))
    """
    rows = None if data.records is None else data.records.positions_by_row_number()
    file, finder = LabelFile.read(path), _ItemFinder(data.ids, data.file_names, rows)
    reader = LabelNormaliser((*data.classes, *classes))
    labels: dict[tuple[int, str], str] = {}  # by position and annotator
    resolved: dict[int, str] = {}
    for position, answers in _collect_answers(file, finder, reader, data.classes, classes).items():
        item = data.ids[position]
        _require_same_file(file.path, item, answers)
        if any(answer.entry.is_resolution for answer in answers):
            resolved[position] = _resolve_label(file.path, item, answers)
            continue
        by_source: dict[str, list[_LabelledEntry]] = {}
        for answer in answers:
            by_source.setdefault(_name_source(answer.entry, file.path), []).append(answer)
        for source, own in by_source.items():
            labels[position, source] = _resolve_label(file.path, item, own)
    used = {*labels.values(), *resolved.values()}
    names = _list_classes(file.path, reader, used, data.classes, classes)
    number = {name: i for i, name in enumerate(names)}
    return LabelsBySource(
        tuple((position, number[label], source) for (position, source), label in labels.items()),
        {position: number[label] for position, label in resolved.items()},
        names,
    )


def _name_source(entry: Entry, path: Path) -> str:
    """Return the annotator of an entry, "" if there is none."""
    person = _get_annotator(entry)
    where = f"{path}, {entry.where}: the annotator's name"
    return "" if person is None else check_name(person, where)


def _list_classes(
    path: Path, reader: LabelNormaliser, used: set[str], known: tuple[str, ...], more: Sequence[str]
) -> tuple[str, ...]:
    """Return the known classes, then the new ones that labels use; log what was normalised."""
    for note in reader.notes():
        log.warning("%s: %s", path, note)
    refuse_combined_labels(used, (*known, *more), f"{path}: the labels")
    return (*known, *sort_names(used - set(known)))


def _collect_answers(
    file: LabelFile,
    finder: "_ItemFinder",
    reader: LabelNormaliser,
    known: tuple[str, ...],
    classes: Sequence[str],
) -> dict[int, list[_LabelledEntry]]:
    """Return the entries with a label by position; raise if an item or a label is unclear."""
    path, entries, certain = file.path, file.entries, (*known, *classes)
    by_file = {as_file_name(name): name for name in certain}
    answers_by_position: dict[int, list[_LabelledEntry]] = {}
    predictions = 0
    for entry in entries:
        where = f"{path}, {entry.where}"
        predictions += entry.is_prediction
        if entry.columns:
            raise InputError(
                f"{where}: columns {', '.join(entry.columns)}; expected {EXPECTED_COLUMNS}"
            )
        if entry.label is None or entry.is_prediction:
            continue  # not labelled yet: people work with partly filled lists
        positions, item = finder.find(entry)
        if set(positions) == {EXCLUDED}:
            log.warning("%s: %r was left out of the data, so its label is too", where, item)
            continue
        if len(positions) != 1:
            raise finder.describe_mismatch(entry, item, positions, where)
        if isinstance(entry.label, tuple) and all(isinstance(label, str) for label in entry.label):
            raise InputError(
                f"{where}: the label holds several classes, {', '.join(entry.label):.80}; "
                f"{SEVERAL_CLASSES_ADVICE}"
            )
        if not isinstance(entry.label, str):
            raise InputError(
                f"{where}: the label is {entry.label!r:.80}; expected the name of one class"
            )
        label = reader.read(_restore_spelling(entry.label, entry, by_file), literal=entry.literal)
        if label is None:
            continue
        _refuse_class_number(label, known, where)
        answers_by_position.setdefault(positions[0], []).append(_LabelledEntry(entry, item, label))
    if predictions:
        log.warning("%s: %d predictions of a network are no labels: left aside", path, predictions)
    return answers_by_position


def _resolve_label(path: Path, item: str, answers: Sequence[_LabelledEntry]) -> str:
    """Return the one label of an item: its resolution, or the label all annotators agree on."""
    answers = [answer for answer in answers if answer.entry.is_resolution] or answers
    first = answers[0]
    for other in answers[1:]:
        where = f"{path}, {other.entry.where}"
        if other.label != first.label:
            raise InputError(
                f"{where}: {other.item!r} is labelled "
                f"{other.label!r}{_format_annotator(other.entry)}, but "
                f"{first.label!r}{_format_annotator(first.entry)} at {first.entry.where}; expected "
                f"one label for each item, so remove one{_format_advice(first, other)}"
            )
    _require_same_file(path, item, answers)
    return first.label


def _format_advice(first: _LabelledEntry, other: _LabelledEntry) -> str:
    """Return which commands use the labels of two annotators, "" if one gave both labels."""
    if _get_annotator(first.entry) == _get_annotator(other.entry):
        return ""
    return " (only `query` and `encoders` with the exact learner weigh several annotators)"


def _require_same_file(path: Path, item: str, answers: Sequence[_LabelledEntry]) -> None:
    """Raise if two paths or URLs that end in the name of one item differ: they are two files."""
    first = answers[0]
    for other in answers[1:]:
        where = f"{path}, {other.entry.where}"
        if other.item != first.item and _is_address(other.item) and _is_address(first.item):
            raise InputError(
                f"{where}: {other.item!r} and {first.item!r} both end in {item!r}, but they are "
                "two files; expected "
                "different items, so write the paths that they have here"
            )


def _format_annotator(entry: Entry) -> str:
    """Return " by NAME" for a message, or ""."""
    annotator = _get_annotator(entry)
    return "" if annotator is None else f" by {annotator}"


@dataclass(frozen=True)
class ImportedLabels:
    """The content of an imported label file, in its order.

    Attributes:
        labels: (position, class name, annotator) of each label.
        new_classes: names that are not among the given classes.
        unknown: items that are not in the data.
        unclear: items that were not imported: several choices, two labels by one annotator, or a
            name that fits several items.
        blank: the number of rows without a label (not labelled yet, or skipped).
        predictions: the number of rows with a prediction of a model.
    """

    labels: tuple[tuple[int, str, str], ...]
    new_classes: tuple[str, ...]
    unknown: tuple[str, ...]
    unclear: tuple[str, ...]
    blank: int
    predictions: int


def read_import(
    path: str | Path,
    items: Sequence[str],
    classes: Sequence[str],
    *,
    form: str | None = None,
    rows: Mapping[str, int] | None = None,
) -> ImportedLabels:
    """Read a label file leniently: unclear rows are reported, not refused.

    `LabelNormaliser` decides which values are labels, and which of them are the same class.

    Args:
        path: the label file or folder.
        items: the ids of the items.
        classes: the class names.
        form: the format; by default the file name determines it.
        rows: positions by row number, if the ids come from a column of a table
            (`Records.positions_by_row_number`).
    """
    finder, reader = _ItemFinder(items, rows=rows), LabelNormaliser(classes)
    by_file = {as_file_name(name): name for name in classes}
    labels: dict[tuple[int, str], str] = {}  # by position and annotator
    called: dict[int, str] = {}  # the name of an item in the file, by position
    unknown: dict[str, None] = {}
    unclear: dict[str, None] = {}
    contradicted: set[tuple[int, str]] = set()
    mixed: set[int] = set()
    blank = predictions = 0
    for entry in read_entries(Path(path), form):
        if entry.is_prediction:
            predictions += 1
            continue
        label = entry.label
        if isinstance(label, str):
            label = reader.read(_restore_spelling(label, entry, by_file), literal=entry.literal)
        if label is None:
            blank += 1
            continue
        positions, name = finder.find(entry)
        if not positions:
            unknown[name] = None
            continue
        position = positions[0]
        # Two names with the same end look like one item, but they are two files.
        if len(positions) == 1 and called.setdefault(position, name) != name:
            unclear |= {called[position]: None, name: None}
            mixed.add(position)
            continue
        if len(positions) > 1 or not isinstance(label, str):
            unclear[name] = None
            continue
        where, person = f"{path}, {entry.where}", _get_annotator(entry)
        label = check_name(label, f"{where}: the label")
        _refuse_class_number(label, classes, where)
        key = (
            position,
            UNKNOWN_ANNOTATOR
            if person is None
            else check_name(person, f"{where}: the person's name"),
        )
        if labels.setdefault(key, label) != label:
            contradicted.add(key)
            unclear[name] = None
    sound = tuple(
        (position, label, annotator)
        for (position, annotator), label in labels.items()
        if position not in mixed and (position, annotator) not in contradicted
    )
    refuse_combined_labels({label for _, label, _ in sound}, classes, f"{path}: the labels")
    for note in reader.notes():
        log.warning("%s: %s", path, note)
    return ImportedLabels(
        sound, _find_new_classes(sound, classes), tuple(unknown), tuple(unclear), blank, predictions
    )


def _find_new_classes(
    sound: Sequence[tuple[int, str, str]], classes: Sequence[str]
) -> tuple[str, ...]:
    """Return the labels that are not among the classes, each once."""
    known = set(classes)
    return tuple(dict.fromkeys(label for _, label, _ in sound if label not in known))


def _restore_spelling(label: str, entry: Entry, by_file: Mapping[str, str]) -> str:
    """Return a label as the annotator wrote it; in the format `folders` it is an encoded file name."""
    return by_file.get(label, unquote(label)) if entry.from_class_folder else label


def _refuse_class_number(name: str, classes: Sequence[str], where: str) -> None:
    """Raise if the label is a number although the classes have names.

    It may be the number of a class in another numbering than ours.
    """
    if (
        name in classes
        or not name.isdecimal()
        or not classes
        or any(c.isdecimal() for c in classes)
    ):
        return
    number = int(name[:9])
    meant = f" (did you mean {classes[number]!r}?)" if number < len(classes) else ""
    raise InputError(
        f"{where}: the label is the number {name}, but the classes have names{meant}; expected "
        "the name of a class"
    )


def _get_annotator(entry: Entry) -> str | None:
    """Return the name of the annotator, None if there is none."""
    annotator = entry.annotator
    if isinstance(annotator, dict):  # Label Studio's account
        annotator = next(
            (annotator[k] for k in ("email", "username", "id") if annotator.get(k)), None
        )
    return None if annotator is None or not str(annotator).strip() else str(annotator)


# --- Find the items


class _ItemFinder:
    """Find positions of items by any of their names."""

    def __init__(
        self, items: Sequence[str], files: Sequence[str] = (), rows: Mapping[str, int] | None = None
    ) -> None:
        """Index the names.

        Args:
            items: the ids.
            files: the names of all files, including those that were excluded from the data.
            rows: positions by row number; see `read_import`.
        """
        self.size = len(items)
        self.rows = rows
        self.ids = dict.fromkeys(files, EXCLUDED) | {name: i for i, name in enumerate(items)}
        self.ends: tuple[dict[str, list[int]], ...] = (
            {},
            {},
        )  # positions by file name, with and without suffix
        for name, position in self.ids.items():
            last = name.rsplit("/", 1)[-1]
            for end, index in zip((last, PurePosixPath(last).stem), self.ends, strict=True):
                index.setdefault(end, []).append(position)
        # If files or rows have numbers as names (7.png), a number that is none of them must not
        # silently mean a position.
        self.numbered = any(stem.isdecimal() for stem in self.ends[1])

    @cached_property
    def files(self) -> dict[str, int]:
        """Positions by id, with ids encoded as in the format `folders`."""
        return {
            "/".join(as_file_name(part) for part in name.split("/")): i
            for name, i in self.ids.items()
        }

    def find(self, entry: Entry) -> tuple[Sequence[int], str]:
        """Return the positions that an entry may mean, and the name that was used to find them.

        Without a match the name is the first one of the entry.
        """
        if entry.is_position:
            text = str(entry.names[0]).strip()
            return ([int(text)] if self._is_position(text) else []), text
        names = [str(name) for name in entry.names]
        if self.rows is not None and entry.is_version_0_2:
            return ([self.rows[names[0]]] if names[0] in self.rows else []), names[0]
        if self.rows is not None and entry.id_value in self.ids:
            return [self.ids[entry.id_value]], entry.id_value
        several: Sequence[int] = []
        for name in names:
            positions = (
                [self.files[name]]
                if entry.from_class_folder and name in self.files
                else self._positions(name)
            )
            if len(positions) == 1:
                return positions, name
            several = several or positions
        return several, names[0] if names else f"{entry.where}, without a name"

    def describe_mismatch(
        self, entry: Entry, item: str, positions: Sequence[int], where: str
    ) -> InputError:
        """Return the error for an entry that means no item, or several."""
        if entry.is_position:
            return InputError(
                f"{where}: index is {item!r}; expected a position from 0 to {self.size - 1}"
            )
        if positions:
            return InputError(
                f"{where}: {len(positions)} items have the file name {item!r}; expected a "
                "name of one item, so write its whole path"
            )
        # Some ids to compare a wrong one with; all of a large set would take long.
        near = [i for i in self.ids if i[:1] == item[:1] and abs(len(i) - len(item)) < 3][:2000]
        return InputError(
            f"{where}: no item is called {item!r}; {did_you_mean(item, near)}expected an "
            f"id such as {next(iter(self.ids))!r}, a file name, or a position"
        )

    def _positions(self, name: str) -> Sequence[int]:
        """Return the positions of all items that a name may mean."""
        plain = name.strip().replace("\\", "/").removeprefix("./")
        for exact in (name, name.strip(), plain):
            if exact in self.ids:
                return [self.ids[exact]]
        if _is_address(plain):
            parts = _extract_path(plain).split("/")
            for end in ("/".join(parts[i:]) for i in range(len(parts))):
                if end in self.ids:
                    return [self.ids[end]]
            upload = re.sub(
                "^[0-9a-f]{8}-", "", parts[-1]
            )  # Label Studio's prefix of uploaded files
            return self._find_by_path_end(parts[-1]) or self._find_by_path_end(upload)
        if "/" in plain:
            return []  # a relative path of another file
        positions = self._find_by_path_end(plain)
        return (
            [int(plain)]
            if not positions and not self.numbered and self._is_position(plain)
            else positions
        )

    def _find_by_path_end(self, name: str) -> Sequence[int]:
        """Return the positions of the items with this file name, with or without suffix."""
        return next((known[name] for known in self.ends if name in known), [])

    def _is_position(self, text: str) -> bool:
        return text.isdecimal() and len(text) < 19 and int(text) < self.size


def _is_address(name: str) -> bool:
    """Return whether a name is a URL or an absolute path."""
    return re.match("/|[A-Za-z]:/|[^/]*://", name.replace("\\", "/")) is not None


def _extract_path(address: str) -> str:
    """Return the path of a URL; Label Studio serves local files as ...?d=path."""
    if "://" not in address and "?d=" not in address:
        return address
    try:
        parts = urlsplit(address)
    except ValueError:  # for example invalid brackets
        return address
    return parse_qs(parts.query).get("d", [unquote(parts.path)])[0]


# --- Read the file formats


def read_entries(path: Path, form: str | None = None) -> Iterator[Entry]:
    """Return an iterator over all entries of a file or folder, in its order.

    Args:
        path: the label file or folder.
        form: the format; by default the file name determines it.

    Raises:
        InputError: if it is in no supported format.
    """
    if form is None:
        suffix = split_sheet(path)[0].suffix.lower()
        form = (
            ("hf" if _find_parquet_files(path) else "folders")
            if path.is_dir()
            else FORMATS.get(suffix)
        )
    if form in ("hf", "folders") and not path.is_dir():
        raise InputError(f"{path} is no folder; expected one of the form {form}")
    if form == "csv":
        return _read_csv(path)
    if form == "excel":
        return _read_excel(path)
    if form in ("jsonl", "label-studio", "json"):
        return _read_json(path, lines=form == "jsonl")
    if form == "parquet":
        return _read_parquet(path)
    if form == "hf":
        return (
            e
            for part in _find_parquet_files(path)
            for e in _read_parquet(part, f"{part.relative_to(path)}, ")
        )
    if form == "folders":
        return _read_class_folders(path)
    raise InputError(
        f"{path} is no label file: in no form that labels are read from "
        f"({form or 'by its name'}); expected "
        ".csv, .tsv, .jsonl, .json (Label Studio's too), .parquet, .xlsx, or a folder"
    )


def _read_csv(path: Path) -> Iterator[Entry]:
    """Yield one entry for each row of a CSV or TSV file."""
    header: list[str] = []
    parser = _RowParser(is_own_export=False, is_version_0_2=False)
    for line, row in read_separated(path)[1]:
        if not any(field.strip() for field in row):
            continue
        where = f"line {line}"
        if not header:
            header = [unescape_formulas(name).strip().casefold() for name in row]
            parser = _RowParser.for_columns(header)
            _check_columns(EXPORT_COLUMNS if parser.is_own_export else header, f"{path}, {where}")
            continue
        if len(row) != len(header):
            raise InputError(
                f"{path}, {where}: {len(row)} fields; expected {len(header)} as in the header"
            )
        fields = map(unescape_formulas, row) if SOURCE_COLUMN in header else row
        cells = {k: v for k, v in zip(header, fields, strict=True) if v}
        yield parser.parse(cells, path, where)
    if not header:
        raise InputError(
            f"{path} is empty, it holds no labels; expected {EXPECTED_COLUMNS}, and at least a "
            "header"
        )


def _read_excel(path: Path) -> Iterator[Entry]:
    """Yield one entry for each row of a sheet below its header."""
    sheet = read_sheet(path)
    for note in sheet.notes:
        log.warning("%s: %s", path, note)
    rows = sheet.rows
    if not rows:
        raise InputError(
            f"{path} is empty, it holds no labels; expected {EXPECTED_COLUMNS}, and at least a "
            "header"
        )
    header = [str(name or "").casefold() for name in rows[0][1]]
    parser = _RowParser.for_columns(header)
    _check_columns(EXPORT_COLUMNS if parser.is_own_export else header, f"{path}, row {rows[0][0]}")
    for number, row in rows[1:]:
        cells = {
            name: cell for name, cell in zip(header, row, strict=True) if name and cell is not None
        }
        if SOURCE_COLUMN in cells:  # our export, saved by a spreadsheet program
            cells = {
                name: unescape_formulas(cell) if isinstance(cell, str) else cell
                for name, cell in cells.items()
            }
        yield parser.parse(cells, path, f"row {number}")


def _check_columns(names: Collection[str], where: str) -> None:
    """Raise unless there are columns for the item and the label, each once."""
    header = list(names)
    if not {*ITEM_COLUMNS, "id", "index"} & set(header) or not set(LABEL_COLUMNS) & set(header):
        raise InputError(f"{where}: columns {', '.join(header)}; expected {EXPECTED_COLUMNS}")
    twice = next(
        (n for n in (*ITEM_COLUMNS, *LABEL_COLUMNS, *ANNOTATOR_COLUMNS) if header.count(n) > 1),
        None,
    )
    if twice is not None:
        raise InputError(f"{where}: column {twice!r} occurs twice; expected it once")


def _read_json(path: Path, *, lines: bool) -> Iterator[Entry]:
    """Yield the entries of JSON lines or a JSON list, of plain rows or Label Studio tasks."""
    for where, row in _read_json_lines(path) if lines else _read_json_list(path):
        if not isinstance(row, dict):
            raise InputError(
                f"{path}, {where}: {row!r:.80}; expected an object with item and label"
            )
        if _is_task(row):
            yield from _read_task(row, path, where)
            continue
        folded = {str(key).casefold(): value for key, value in row.items()}
        answers = folded.pop("answers", None)
        parser = _RowParser.for_columns(folded)
        if not isinstance(answers, list) or not answers:
            columns = () if any(name in folded for name in LABEL_COLUMNS) else tuple(folded)
            yield parser.parse(folded, path, where, columns=columns)
            continue
        for value in answers:  # `export` writes the labels of every annotator
            answer = value if isinstance(value, dict) else {}
            annotator = answer.get("annotator", answer.get("who"))
            row = folded | {"label": answer.get("label"), "who": annotator, "annotator": annotator}
            entry = parser.parse(row, path, where)
            yield replace(entry, is_resolution=answer.get("kind") == "settle")


def _read_json_lines(path: Path) -> list[tuple[str, Any]]:
    """Return (place, value) of each line."""
    return [(f"line {i}", value) for i, value in read_json_lines(path)]


def _read_json_list(path: Path) -> list[tuple[str, Any]]:
    """Return (place, value) of each entry of a JSON file."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} is no valid JSON ({error}); expected {EXPECTED_COLUMNS}"
        ) from error
    if isinstance(content, dict):
        folded = {str(key).casefold() for key in content}
        alone = _is_task(content) or (folded & set(ITEM_COLUMNS) and folded & set(LABEL_COLUMNS))
        content = (
            [content]
            if alone
            else [{"item": item, "label": label} for item, label in content.items()]
        )
    if not isinstance(content, list):
        raise InputError(
            f"{path} holds a JSON {type(content).__name__}; expected a list of objects "
            'such as {"item": "a.jpg", "label": "cat"}'
        )
    return [(f"entry {i}", row) for i, row in enumerate(content, 1)]


def _is_task(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a task of Label Studio, or an annotation that contains its task."""
    return isinstance(row.get("data"), dict) or (
        isinstance(row.get("task"), dict) and "result" in row
    )


def _read_task(task: Mapping[str, Any], path: Path, where: str) -> Iterator[Entry]:
    """Yield the annotations and predictions of a Label Studio task."""
    if isinstance(task.get("task"), dict) and "result" in task:
        task = {**task["task"], "annotations": [task]}
    data = task.get("data")
    data = data if isinstance(data, dict) else {}
    likely = [data[name] for name in ITEM_COLUMNS if isinstance(data.get(name), str)]
    names = likely or [value for value in data.values() if isinstance(value, str)]
    id_value = format_id(data.get(ITEM_ID_FIELD, data.get("id"))) or None
    item = partial(Entry, where, names, id_value=id_value, is_version_0_2=set(data) == {"item"})
    annotations = task.get("annotations", task.get("completions")) or []
    if not isinstance(annotations, list):
        raise InputError(f"{path}, {where}: annotations are {annotations!r:.80}; expected a list")
    predictions = task.get("predictions") or []
    if not isinstance(predictions, list):
        raise InputError(f"{path}, {where}: predictions are {predictions!r:.80}; expected a list")
    yield from (item(is_prediction=True) for _ in predictions)
    if not annotations and not predictions:
        yield item()
    for given in annotations:
        result = given.get("result") if isinstance(given, dict) else None
        if not isinstance(result, list) or not result or given.get("was_cancelled"):
            yield item()
            continue
        values = [part.get("value") for part in result if isinstance(part, dict)]
        chosen = [v for v in values if isinstance(v, dict) and "choices" in v]
        label = _parse_label(chosen[0]) if len(chosen) == 1 else tuple(values)
        annotator = next(
            (
                given[key]
                for key in ("annotator", "who", "completed_by")
                if given.get(key) is not None
            ),
            None,
        )
        yield item(label=label, annotator=annotator, literal=True)


def _read_parquet(path: Path, inside: str = "") -> Iterator[Entry]:
    """Yield one entry for each row of a Parquet file."""
    parquet = import_extra("pyarrow.parquet", "tables", "reading Parquet")
    try:
        schema = parquet.read_schema(path)
        wanted = {
            *ITEM_COLUMNS,
            *LABEL_COLUMNS,
            *ANNOTATOR_COLUMNS,
            "id",
            "index",
            *EXPORT_COLUMNS,
            *EXPORT_COLUMNS_0_2,
            *TASK_EXPORT_COLUMNS,
        }
        # Images and other structs are not read.
        columns = [
            n
            for n in schema.names
            if n.casefold() in wanted and "struct" not in str(schema.field(n).type)
        ]
        header = {n.casefold() for n in columns}
        parser = _RowParser(
            is_own_export=header >= EXPORT_COLUMNS,
            is_version_0_2={n.casefold() for n in schema.names} == EXPORT_COLUMNS_0_2,
        )
        _check_columns(
            EXPORT_COLUMNS if parser.is_own_export else [n.casefold() for n in columns], str(path)
        )
        count = parquet.read_metadata(path).num_rows
        # Equal rows take almost no space in the file, but minutes to read.
        if count > MAX_LABEL_ROWS:
            raise InputError(
                f"{path} has {count:,} rows; expected at most {MAX_LABEL_ROWS:,}: split it"
            )
        read = read_bounded(path, columns, MAX_LABEL_BYTES, count_repeats=True)
        values = {name.casefold(): column_to_python(read.column(name)) for name in columns}
    except InputError:
        raise
    except Exception as error:  # the reader raises almost any error on a damaged file
        raise InputError(f"{path} cannot be read as Parquet ({error})") from error
    names = _read_class_names(schema.metadata or {})
    for i in range(read.num_rows):
        folded = {name: column[i] for name, column in values.items()}
        for column in LABEL_COLUMNS:
            number = folded.get(column)
            if column in names and isinstance(number, int):
                is_class = 0 <= number < len(names[column])  # -1 is Hugging Face's "no label"
                folded[column] = names[column][number] if is_class else None
        entry = parser.parse(folded, path, f"{inside}row {i}")
        yield replace(entry, literal=entry.literal or bool(names))


def _read_class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the class names by column, from the metadata that Hugging Face writes."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {n.casefold(): f["names"] for n, f in features.items() if "names" in f}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _find_parquet_files(path: Path) -> list[Path]:
    """Return the Parquet files of a Hugging Face data set on the disk."""
    return sorted(p for folder in (path, path / "data") for p in folder.glob("*.parquet"))


def _read_class_folders(path: Path) -> Iterator[Entry]:
    """Yield one entry for each file CLASS/ITEM; the files themselves are not read."""
    folders = sorted(
        p for p in path.iterdir() if p.is_dir() and not p.name.startswith((".", "__MACOSX"))
    )
    if not folders and not (path / "predictions.csv").exists():
        raise InputError(
            f"{path} cannot be read: it is a folder without a folder for each class, or Parquet "
            "files"
        )
    for folder in folders:
        for here, below, files in os.walk(folder):
            below.sort()
            for name in sorted(n for n in files if not n.startswith(".")):
                inside = Path(here, name).relative_to(folder).as_posix()
                yield Entry(
                    f"{folder.name}/{inside}",
                    [inside],
                    folder.name,
                    from_class_folder=True,
                    literal=True,
                )


# --- Parse rows


@dataclass(frozen=True)
class _RowParser:
    """Parses the rows of a file, depending on its columns."""

    is_own_export: bool
    is_version_0_2: bool

    @classmethod
    def for_columns(cls, names: Collection[str]) -> "_RowParser":
        """Choose how to parse rows with these columns."""
        columns = set(names)
        return cls(columns >= EXPORT_COLUMNS, columns == EXPORT_COLUMNS_0_2)

    def parse(
        self, row: Mapping[str, Any], path: Path, where: str, *, columns: Sequence[str] = ()
    ) -> Entry:
        """Parse a row; columns: its columns if none of them is a label column."""
        if self.is_own_export:
            return _parse_export_row(row, path, where)
        return _parse_row(row, path, where, self.is_version_0_2, columns=columns)


def _parse_export_row(row: Mapping[str, Any], path: Path, where: str) -> Entry:
    """Parse a row of our own export; the user's columns in it are ignored."""
    id_value, label = format_id(row.get("id")), _parse_label(row.get("label"))
    if not id_value and label is not None:
        raise InputError(f"{path}, {where}: no id; expected one in every row of an export")
    is_prediction = str(row.get(SOURCE_COLUMN) or "").casefold() == "prediction"
    # The text is not stripped, since a file name may begin or end with a blank.
    text = row["id"] if isinstance(row.get("id"), str) else id_value
    return Entry(
        where, [text], label, row.get("annotator"), is_prediction, id_value=text, literal=True
    )


def _parse_row(
    row: Mapping[str, Any],
    path: Path,
    where: str,
    is_version_0_2: bool = False,
    *,
    columns: Sequence[str] = (),
) -> Entry:
    """Parse a row of any other file; empty values are missing or None."""
    label = next((row[name] for name in LABEL_COLUMNS if row.get(name) is not None), None)
    if label is None:  # in Label Studio's short format the user chooses the column name
        label = next((v for v in row.values() if isinstance(v, dict) and "choices" in v), None)
        columns = columns if label is None else ()
    label = _parse_label(label)
    names = [row[name] for name in ITEM_COLUMNS if row.get(name) is not None]
    # A numeric id beside another name was assigned by the program that wrote the file.
    row_id = format_id(row.get("id")) or None
    if row_id is not None and (not names or not row_id.isdecimal()):
        names.append(row_id)
    is_position = not names and row.get("index") is not None
    names = [row["index"]] if is_position else names
    odd = next((n for n in names if isinstance(n, bool) or not isinstance(n, str | int)), None)
    if odd is not None:
        raise InputError(f"{path}, {where}: the item is {odd!r:.80}; expected a name")
    if not names and label is not None:
        raise InputError(
            f"{path}, {where}: no item, only {', '.join(row) or 'nothing'}; expected "
            f"{EXPECTED_COLUMNS}"
        )
    source = format_id(row.get(SOURCE_COLUMN))
    is_export_source = not source or source.casefold() in EXPORT_SOURCES
    # Where an item comes from is not who labelled it.
    is_person = not is_export_source and not _is_address(source)
    annotator = next(
        (row[name] for name in ANNOTATOR_COLUMNS if row.get(name) not in (None, "")),
        source if is_person else None,
    )
    is_prediction = source.casefold() == "prediction"
    default_id = None if row.keys() >= TASK_EXPORT_COLUMNS else row_id
    return Entry(
        where,
        names,
        label,
        annotator,
        is_prediction,
        is_position=is_position,
        columns=columns,
        literal=SOURCE_COLUMN in row and not is_person,
        id_value=format_id(row.get(ITEM_ID_FIELD, default_id)) or None,
        is_version_0_2=is_version_0_2,
    )


def _parse_label(value: Any) -> Any:
    """Return a label as text, None if it is empty; a value that is no single label is unchanged."""
    if isinstance(value, str) and value.startswith('{"choices"'):  # Label Studio's CSV
        with suppress(ValueError):
            value = json.loads(value)
    return parse_label(
        value["choices"] if isinstance(value, dict) and "choices" in value else value
    )
