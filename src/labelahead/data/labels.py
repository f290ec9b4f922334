"""Read label files for the items of a data set.

    read_labels             strict, for networks and `label --test`: anything unclear is an error
    read_labels_by_source   strict, for the exact learner: all labels of an item by annotator
    read_import             lenient, for the labelling page: anything unclear is reported

`labelahead.data.label_entries` parses the files, `labelahead.data.item_finder` finds the items.
Predictions of a model are never labels.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import torch
from torch import Tensor

from labelahead.data.classes import check_name, normalise_name, sort_names
from labelahead.data.dataset import NONE_OF_THESE_NAME, Data
from labelahead.data.item_finder import ItemFinder
from labelahead.data.label_entries import EXPECTED_COLUMNS, Entry, is_address, read_entries
from labelahead.data.label_values import (
    SEVERAL_CLASSES_ADVICE,
    LabelNormaliser,
    refuse_combined_labels,
)
from labelahead.data.text import as_file_name
from labelahead.errors import InputError, count_noun

__all__ = [
    "LabelFile",
    "LabelsBySource",
    "get_annotator_name",
    "read_import",
    "read_labelled_names",
    "read_labels",
    "read_labels_by_source",
    "read_labels_for_ids",
    "require_same_file",
]


log = logging.getLogger("labelahead")
UNKNOWN_ANNOTATOR = "import"  # the annotator of labels in files that name none


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
    finder = ItemFinder(ids, files, rows)
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
    return read_labels_by_source_for_ids(
        path, data.ids, data.classes, data.file_names, classes, rows=rows
    )


def read_labels_by_source_for_ids(
    file: str | Path | LabelFile,
    ids: Sequence[str],
    known: tuple[str, ...] = (),
    files: Sequence[str] = (),
    classes: Sequence[str] = (),
    *,
    rows: Mapping[str, int] | None = None,
) -> LabelsBySource:
    """Read a label file strictly for items given by their ids; see `read_labels_by_source`.

    Args:
        file: the label file or folder.
        ids: the ids of the items.
        known: the classes of the data.
        files: the names of files that were excluded from the data.
        classes: further names that are certainly classes.
        rows: positions by row number, as for `read_import`.
    """
    file = file if isinstance(file, LabelFile) else LabelFile.read(file)
    finder, reader = ItemFinder(ids, files, rows), LabelNormaliser((*known, *classes))
    labels: dict[tuple[int, str], str] = {}  # by position and annotator
    resolved: dict[int, str] = {}
    for position, answers in _collect_answers(file, finder, reader, known, classes).items():
        item = ids[position]
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
    names = _list_classes(file.path, reader, used, known, classes)
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
    finder: ItemFinder,
    reader: LabelNormaliser,
    known: tuple[str, ...],
    classes: Sequence[str],
) -> dict[int, list[_LabelledEntry]]:
    """Return the entries with a label by position; raise if an item or a label is unclear."""
    path, entries, certain = file.path, file.entries, (*known, *classes)
    by_file = {as_file_name(name): name for name in certain}
    answers_by_position: dict[int, list[_LabelledEntry]] = {}
    predictions = none_of_these = 0
    for entry in entries:
        where = f"{path}, {entry.where}"
        predictions += entry.is_prediction
        if entry.columns:
            raise InputError(
                f"{where}: columns {', '.join(entry.columns)}; expected {EXPECTED_COLUMNS}"
            )
        if entry.label is None or entry.is_prediction:
            continue  # not labelled yet: people work with partly filled lists
        position, item = finder.find_one(entry, where)
        if position is None:
            continue
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
        if normalise_name(label) == NONE_OF_THESE_NAME and label not in certain:
            none_of_these += 1
            continue
        _refuse_class_number(label, known, where)
        answers_by_position.setdefault(position, []).append(_LabelledEntry(entry, item, label))
    if predictions:
        log.warning(
            "%s: %d predictions of a model are ignored: they are not labels", path, predictions
        )
    if none_of_these:
        log.warning(
            "%s: %s of %r are ignored: the labelling page's answer for items of no class",
            path,
            count_noun(none_of_these, "label"),
            NONE_OF_THESE_NAME,
        )
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
    return " (only `query`, `encoders` and `pool` with the exact learner weigh several annotators)"


def require_same_file(path: Path, item: str, names: Sequence[tuple[str, str]]) -> None:
    """Raise if two paths or URLs that end in the name of one item differ: they are two files.

    Args:
        path: the label file, for messages.
        item: the id of the item.
        names: (place in the file, name of the item there) of every label of the item.
    """
    _, first = names[0]
    for where, other in names[1:]:
        if other != first and is_address(other) and is_address(first):
            raise InputError(
                f"{path}, {where}: {other!r} and {first!r} both end in {item!r}, but they are "
                "two files; expected "
                "different items, so write the paths that they have here"
            )


def _require_same_file(path: Path, item: str, answers: Sequence[_LabelledEntry]) -> None:
    """Raise if two labels of an item belong to two files."""
    require_same_file(path, item, [(answer.entry.where, answer.item) for answer in answers])


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
    finder, reader = ItemFinder(items, rows=rows), LabelNormaliser(classes)
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
        where = f"{path}, {entry.where}"
        label = check_name(label, f"{where}: the label")
        _refuse_class_number(label, classes, where)
        key = (position, get_annotator_name(entry, where))
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


def get_annotator_name(entry: Entry, where: str) -> str:
    """Return the annotator of an imported entry; "import" if the file names none.

    Args:
        entry: of the file.
        where: its place, for messages.
    """
    person = _get_annotator(entry)
    return (
        UNKNOWN_ANNOTATOR if person is None else check_name(person, f"{where}: the person's name")
    )


def _get_annotator(entry: Entry) -> str | None:
    """Return the name of the annotator, None if there is none."""
    annotator = entry.annotator
    if isinstance(annotator, dict):  # Label Studio's account
        annotator = next(
            (annotator[k] for k in ("email", "username", "id") if annotator.get(k)), None
        )
    return None if annotator is None or not str(annotator).strip() else str(annotator)
