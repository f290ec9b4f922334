"""Label files: one stream of what they say, one finder of the items that they mean, and two doors.

    read_labels   strict, for `query --labels` and `label --test`: what is not clear is an error
    read_import   lenient, for the page: what is not clear is returned, nothing is lost unsaid

Exports of labelahead have the columns `id`, `label`, `annotator`, `labelled_at` and `source`, and
are read by these alone, whatever other columns they hold; those of 0.2 had `item`, `who` and `at`,
and row numbers for ids.

An item goes by its id; by its file name, with or without suffix, where no other item has the same;
of an address or an absolute path, by the end of it; and by its position: always so in a column
`index`, elsewhere only where no item is called by a number. What a network predicted is never a
label.
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
from labelahead.data.label_values import SEVERAL_CLASSES_ADVICE, LabelNormaliser, parse_label, refuse_combined_labels
from labelahead.data.parquet import column_to_python, read_bounded
from labelahead.data.records import format_id
from labelahead.data.text import as_file_name, read_json_lines, read_separated, read_text, unescape_formulas
from labelahead.errors import InputError, did_you_mean, import_extra

__all__ = ["read_labelled_names", "read_import", "read_labels", "read_labels_for_ids"]

log = logging.getLogger("labelahead")

MAX_LABEL_ROWS = 500_000  # of a table of labels
MAX_LABEL_BYTES = (
    2**29
)  # of such a table in memory, if it is Parquet: a small file may unpack to any size
# the id in tasks of Label Studio, whose own exports write the number of the task as `id`
ITEM_ID_FIELD = "item_id"
ITEM_COLUMNS = (ITEM_ID_FIELD, "item", "path", "file", "filename", "file_name", "image", "text")
LABEL_COLUMNS = ("label", "class", "target", "choice", "choices")
ANNOTATOR_COLUMNS = ("who", "annotator", "completed_by", "annotator_id", "user", "by")
SOURCE_COLUMN = "source"  # a column of `export` alone: whether a person or a network said it
EXPORT_COLUMNS = frozenset(
    ("id", "label", "annotator", "labelled_at", SOURCE_COLUMN)
)  # columns by which our own exports are known
EXPORT_COLUMNS_0_2 = frozenset(("item", "label", "who", "at", SOURCE_COLUMN, "confidence"))
TASK_EXPORT_COLUMNS = frozenset(
    ("annotation_id", "lead_time")
)  # Label Studio's short forms, whose `id` is the task's number
EXPECTED_COLUMNS = f"a column id|{'|'.join(ITEM_COLUMNS)}|index and a column {'|'.join(LABEL_COLUMNS)}"
FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "label-studio",
    ".parquet": "parquet",
    **dict.fromkeys(WORKBOOK_SUFFIXES, "excel"),
}
UNKNOWN_ANNOTATOR = "import"  # who said it, where a file does not say
EXCLUDED = -1  # the position of a file that is there, but not among the items


@dataclass(frozen=True)
class Entry:
    """One thing said of one item."""

    where: str  # in the file, for messages
    names: Sequence[Any]  # that the item may go by, the likeliest first
    label: Any = None  # text; None without one; anything else is not one label
    who: Any = None
    predicted: bool = False
    settles: bool = False  # it decides between what others said
    position: bool = False  # the name is a position
    folder: bool = False  # name and label are file names of the form folders
    columns: Sequence[str] = ()  # of a row in which no column is for a label
    # the label was chosen from a list of classes: NA and None are names in it
    literal: bool = False
    # what a column `id` says, which names the item where ids come from a column
    own_id: str | None = None
    former: bool = False  # the name is the row number, as labelahead 0.2 exported it


class _LabelledEntry(NamedTuple):
    """A label that was read, and what the file calls its item."""

    entry: Entry
    item: str
    label: str


def read_labels(
    path: str | Path, data: Data, classes: Sequence[str] = ()
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Positions (q,), class numbers (q,), and the class names: the data's, then new ones.

    Rows without a label, predictions and files that were left out of the data are passed over. The
    same label twice is fine, two different ones are an error, unless somebody settled it. Which
    values are labels, and which of them are one class, is decided by `LabelNormaliser`; classes: further
    names that are classes for certain.

    >>> from pathlib import Path
    >>> from labelahead.data import from_arrays, read_labels
    >>> data, _ = from_arrays([[0.0], [1.0], [2.0]], classes=["no", "yes"])
    >>> _ = Path("labels.csv").write_text("\\n".join(["item,label", "2,yes", "0,maybe"]))
    >>> positions, numbers, classes = read_labels("labels.csv", data)
    >>> positions.tolist(), numbers.tolist(), classes
    ([2, 0], [1, 2], ('no', 'yes', 'maybe'))
    """
    files = data.images.file_names() if data.images is not None else ()
    rows = None if data.records is None else data.records.positions_by_row_number()
    return read_labels_for_ids(path, data.ids, data.classes, files, classes, rows=rows)


def read_labelled_names(path: str | Path) -> dict[str, str]:
    """What a file calls items with a label, and where it does.

    For pools too large to hold all names.
    """
    names: dict[str, str] = {}
    for entry in read_entries(Path(path)):
        if entry.position:
            raise InputError(
                f"{path}, {entry.where}: an index; expected items of a large pool by their own name"
            )
        if entry.label is not None and not entry.predicted and entry.names:
            names.setdefault(
                str(entry.names[0]) if entry.own_id is None else entry.own_id, entry.where
            )
    return names


def read_labels_for_ids(
    path: str | Path,
    ids: Sequence[str],
    known: tuple[str, ...] = (),
    files: Sequence[str] = (),
    classes: Sequence[str] = (),
    *,
    rows: Mapping[str, int] | None = None,
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """`read_labels` of items by their names.

    known: the data's classes; files: that were left out of the items; rows: as for `read_import`.
    """
    path = Path(path)
    finder = _ItemFinder(ids, files, rows)
    certain = (*known, *classes)
    reader = LabelNormaliser(certain)
    by_file = {as_file_name(name): name for name in certain}
    said: dict[int, list[_LabelledEntry]] = {}
    predictions = 0
    for entry in read_entries(path):
        where = f"{path}, {entry.where}"
        predictions += entry.predicted
        if entry.columns:
            raise InputError(f"{where}: columns {', '.join(entry.columns)}; expected {EXPECTED_COLUMNS}")
        if entry.label is None or entry.predicted:
            continue  # not labelled yet: half-filled lists are how people work
        positions, item = finder.find(entry)
        if set(positions) == {EXCLUDED}:
            log.warning("%s: %r was left out of the data, so its label is too", where, item)
            continue
        if len(positions) != 1:
            raise finder.refusal(entry, item, positions, where)
        if isinstance(entry.label, tuple) and all(isinstance(label, str) for label in entry.label):
            raise InputError(
                f"{where}: the label holds several classes, {', '.join(entry.label):.80}; {SEVERAL_CLASSES_ADVICE}"
            )
        if not isinstance(entry.label, str):
            raise InputError(
                f"{where}: the label is {entry.label!r:.80}; expected the name of one class"
            )
        label = reader.read(_restore_spelling(entry.label, entry, by_file), literal=entry.literal)
        if label is None:
            continue
        _refuse_class_number(label, known, where)
        said.setdefault(positions[0], []).append(_LabelledEntry(entry, item, label))
    if predictions:
        log.warning("%s: %d predictions of a network are no labels: left aside", path, predictions)
    labels = {position: _resolve_label(path, ids[position], answers) for position, answers in said.items()}
    for note in reader.notes():
        log.warning("%s: %s", path, note)
    refuse_combined_labels(set(labels.values()), certain, f"{path}: the labels")
    names = (*known, *sort_names(set(labels.values()) - set(known)))
    number = {name: i for i, name in enumerate(names)}
    codes = torch.tensor([number[name] for name in labels.values()], dtype=torch.int64)
    return torch.tensor(list(labels), dtype=torch.int64), codes, names


def _resolve_label(path: Path, item: str, answers: Sequence[_LabelledEntry]) -> str:
    """The one label of an item: what was settled, or what all say who say something."""
    answers = [answer for answer in answers if answer.entry.settles] or answers
    first = answers[0]
    for other in answers[1:]:
        where = f"{path}, {other.entry.where}"
        if other.label != first.label:
            raise InputError(
                f"{where}: {other.item!r} is labelled {other.label!r}{_format_annotator(other.entry)}, but "
                f"{first.label!r}"
                f"{_format_annotator(first.entry)} at {first.entry.where}; expected one label for each item, so "
                "remove one"
            )
        if other.item != first.item and _is_address(other.item) and _is_address(first.item):
            raise InputError(
                f"{where}: {other.item!r} and {first.item!r} both end in {item!r}, but they are "
                "two files; expected "
                "different items, so write the paths that they have here"
            )
    return first.label


def _format_annotator(entry: Entry) -> str:
    who = _get_annotator(entry)
    return "" if who is None else f" by {who}"


@dataclass(frozen=True)
class ImportedLabels:
    """What a file held, in its order."""

    labels: tuple[tuple[int, str, str], ...]  # position, class name, person
    new_classes: tuple[str, ...]  # names that are none of the classes given
    unknown: tuple[str, ...]  # items that the data do not have
    # not taken in: several choices, two labels by one person, a name that fits several items
    unclear: tuple[str, ...]
    blank: int  # rows without a label: not labelled yet, or skipped
    predictions: int  # rows that a model said: no labels


def read_import(
    path: str | Path,
    items: Sequence[str],
    classes: Sequence[str],
    *,
    form: str | None = None,
    rows: Mapping[str, int] | None = None,
) -> ImportedLabels:
    """The labels of a file or folder; the form is told by its name, unless given.

    rows: where the ids come from a column of a table: positions by row number
    (`Records.positions_by_row_number`). `LabelNormaliser` decides which values are labels, and
    which of them are one class.
    """
    finder, reader = _ItemFinder(items, rows=rows), LabelNormaliser(classes)
    by_file = {as_file_name(name): name for name in classes}
    labels: dict[tuple[int, str], str] = {}  # by position and person
    called: dict[int, str] = {}  # what the file calls an item
    unknown: dict[str, None] = {}
    unclear: dict[str, None] = {}
    contradicted: set[tuple[int, str]] = set()
    mixed: set[int] = set()
    blank = predictions = 0
    for entry in read_entries(Path(path), form):
        if entry.predicted:
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
        # Two names for one item: by their ends they look alike, but they are two files.
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
            UNKNOWN_ANNOTATOR if person is None else check_name(person, f"{where}: the person's name"),
        )
        if labels.setdefault(key, label) != label:
            contradicted.add(key)
            unclear[name] = None
    sound = tuple(
        (position, label, who)
        for (position, who), label in labels.items()
        if position not in mixed and (position, who) not in contradicted
    )
    refuse_combined_labels({label for _, label, _ in sound}, classes, f"{path}: the labels")
    for note in reader.notes():
        log.warning("%s: %s", path, note)
    return ImportedLabels(
        sound, _find_new_classes(sound, classes), tuple(unknown), tuple(unclear), blank, predictions
    )


def _find_new_classes(sound: Sequence[tuple[int, str, str]], classes: Sequence[str]) -> tuple[str, ...]:
    """The labels that are none of the classes, each once."""
    known = set(classes)
    return tuple(dict.fromkeys(label for _, label, _ in sound if label not in known))


def _restore_spelling(label: str, entry: Entry, by_file: Mapping[str, str]) -> str:
    """A label as somebody wrote it; in the form folders it was made a file name."""
    return by_file.get(label, unquote(label)) if entry.folder else label


def _refuse_class_number(name: str, classes: Sequence[str], where: str) -> None:
    """A number where classes have names is the number of one of them, by another count than ours
    perhaps.
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
    who = entry.who
    if isinstance(who, dict):  # Label Studio's account
        who = next((who[k] for k in ("email", "username", "id") if who.get(k)), None)
    return None if who is None or not str(who).strip() else str(who)


class _ItemFinder:
    """Positions of items by whatever people and programs call them."""

    def __init__(
        self, items: Sequence[str], files: Sequence[str] = (), rows: Mapping[str, int] | None = None
    ) -> None:
        """files: the names of all files that there are, also of those that were left out.

        rows: see `read_import`.
        """
        self.size = len(items)
        self.rows = rows
        self.ids = dict.fromkeys(files, EXCLUDED) | {name: i for i, name in enumerate(items)}
        self.ends: tuple[dict[str, list[int]], ...] = (
            {},
            {},
        )  # file names, and those without suffix
        for name, position in self.ids.items():
            last = name.rsplit("/", 1)[-1]
            for end, known in zip((last, PurePosixPath(last).stem), self.ends, strict=True):
                known.setdefault(end, []).append(position)
        # Where files or rows are called by numbers (7.png), a number that is none of them must
        # not silently mean a position.
        self.numbered = any(stem.isdecimal() for stem in self.ends[1])

    @cached_property
    def files(self) -> dict[str, int]:
        """Items as the form folders writes them."""
        return {
            "/".join(as_file_name(part) for part in name.split("/")): i
            for name, i in self.ids.items()
        }

    def find(self, entry: Entry) -> tuple[Sequence[int], str]:
        """The positions that an entry may mean, and the name by which it was found, or the first.
        """
        if entry.position:
            text = str(entry.names[0]).strip()
            return ([int(text)] if self._in_range(text) else []), text
        names = [str(name) for name in entry.names]
        if self.rows is not None and entry.former:
            return ([self.rows[names[0]]] if names[0] in self.rows else []), names[0]
        if self.rows is not None and entry.own_id in self.ids:
            return [self.ids[entry.own_id]], entry.own_id
        several: Sequence[int] = []
        for name in names:
            positions = (
                [self.files[name]] if entry.folder and name in self.files else self._positions(name)
            )
            if len(positions) == 1:
                return positions, name
            several = several or positions
        return several, names[0] if names else f"{entry.where}, without a name"

    def refusal(self, entry: Entry, item: str, positions: Sequence[int], where: str) -> InputError:
        """Why an entry means no item, or not one."""
        if entry.position:
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
        plain = name.strip().replace("\\", "/").removeprefix("./")
        for exact in (name, name.strip(), plain):
            if exact in self.ids:
                return [self.ids[exact]]
        if _is_address(plain):
            parts = _extract_path(plain).split("/")
            for end in ("/".join(parts[i:]) for i in range(len(parts))):
                if end in self.ids:
                    return [self.ids[end]]
            upload = re.sub("^[0-9a-f]{8}-", "", parts[-1])  # what Label Studio puts before a name
            return self._by_end(parts[-1]) or self._by_end(upload)
        if "/" in plain:
            return []  # a relative path that is another one
        positions = self._by_end(plain)
        return (
            [int(plain)]
            if not positions and not self.numbered and self._in_range(plain)
            else positions
        )

    def _by_end(self, name: str) -> Sequence[int]:
        return next((known[name] for known in self.ends if name in known), [])

    def _in_range(self, text: str) -> bool:
        return text.isdecimal() and len(text) < 19 and int(text) < self.size


def _is_address(name: str) -> bool:
    """Whether a name says where a file lies on some machine, and not where below a folder."""
    return re.match("/|[A-Za-z]:/|[^/]*://", name.replace("\\", "/")) is not None


def _extract_path(address: str) -> str:
    """The path of an address; Label Studio serves local files as ...?d=path."""
    if "://" not in address and "?d=" not in address:
        return address
    try:
        parts = urlsplit(address)
    except ValueError:  # something with brackets
        return address
    return parse_qs(parts.query).get("d", [unquote(parts.path)])[0]


def read_entries(path: Path, form: str | None = None) -> Iterator[Entry]:
    """All entries of a file or folder, in its order; the form is told by its name, unless given."""
    if form is None:
        suffix = split_sheet(path)[0].suffix.lower()
        form = ("hf" if _find_parquet_files(path) else "folders") if path.is_dir() else FORMATS.get(suffix)
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
            e for part in _find_parquet_files(path) for e in _read_parquet(part, f"{part.relative_to(path)}, ")
        )
    if form == "folders":
        return _read_class_folders(path)
    raise InputError(
        f"{path} is no label file: in no form that labels are read from "
        f"({form or 'by its name'}); expected "
        ".csv, .tsv, .jsonl, .json (Label Studio's too), .parquet, .xlsx, or a folder"
    )


def _read_csv(path: Path) -> Iterator[Entry]:
    header: list[str] = []
    own = former = False
    for line, row in read_separated(path)[1]:
        if not any(field.strip() for field in row):
            continue
        where = f"line {line}"
        if not header:
            header = [unescape_formulas(name).strip().casefold() for name in row]
            own, former = set(header) >= EXPORT_COLUMNS, set(header) == EXPORT_COLUMNS_0_2
            _check_columns(EXPORT_COLUMNS if own else header, f"{path}, {where}")
            continue
        if len(row) != len(header):
            raise InputError(
                f"{path}, {where}: {len(row)} fields; expected {len(header)} as in the header"
            )
        fields = map(unescape_formulas, row) if SOURCE_COLUMN in header else row
        cells = {k: v for k, v in zip(header, fields, strict=True) if v}
        yield _parse_export_row(cells, path, where) if own else _parse_row(cells, path, where, former=former)
    if not header:
        raise InputError(
            f"{path} is empty, it holds no labels; expected {EXPECTED_COLUMNS}, and at least a header"
        )


def _read_excel(path: Path) -> Iterator[Entry]:
    """One entry for each row of a sheet below its header."""
    sheet = read_sheet(path)
    for note in sheet.notes:
        log.warning("%s: %s", path, note)
    rows = sheet.rows
    if not rows:
        raise InputError(
            f"{path} is empty, it holds no labels; expected {EXPECTED_COLUMNS}, and at least a header"
        )
    header = [str(name or "").casefold() for name in rows[0][1]]
    own, former = set(header) >= EXPORT_COLUMNS, set(header) == EXPORT_COLUMNS_0_2
    _check_columns(EXPORT_COLUMNS if own else header, f"{path}, row {rows[0][0]}")
    for number, row in rows[1:]:
        cells = {
            name: cell for name, cell in zip(header, row, strict=True) if name and cell is not None
        }
        if SOURCE_COLUMN in cells:  # what `export` wrote, opened and stored by a spreadsheet
            cells = {
                name: unescape_formulas(cell) if isinstance(cell, str) else cell
                for name, cell in cells.items()
            }
        where = f"row {number}"
        yield _parse_export_row(cells, path, where) if own else _parse_row(cells, path, where, former)


def _check_columns(names: Collection[str], where: str) -> None:
    header = list(names)
    if not {*ITEM_COLUMNS, "id", "index"} & set(header) or not set(LABEL_COLUMNS) & set(header):
        raise InputError(f"{where}: columns {', '.join(header)}; expected {EXPECTED_COLUMNS}")
    twice = next((n for n in (*ITEM_COLUMNS, *LABEL_COLUMNS, *ANNOTATOR_COLUMNS) if header.count(n) > 1), None)
    if twice is not None:
        raise InputError(f"{where}: column {twice!r} is there twice; expected it once")


def _read_json(path: Path, *, lines: bool) -> Iterator[Entry]:
    """JSON lines, or a list; of plain rows or of Label Studio's tasks."""
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
        own, former = set(folded) >= EXPORT_COLUMNS, set(folded) == EXPORT_COLUMNS_0_2
        if not isinstance(answers, list) or not answers:
            columns = () if any(name in folded for name in LABEL_COLUMNS) else tuple(folded)
            yield (
                _parse_export_row(folded, path, where)
                if own
                else _parse_row(folded, path, where, former, columns=columns)
            )
            continue
        for answer in answers:  # of every person, as `export` writes them
            said = answer if isinstance(answer, dict) else {}
            who, settles = said.get("annotator", said.get("who")), said.get("kind") == "settle"
            row = folded | {"label": said.get("label"), "who": who, "annotator": who}
            yield replace(
                _parse_export_row(row, path, where) if own else _parse_row(row, path, where, former),
                settles=settles,
            )


def _read_json_lines(path: Path) -> list[tuple[str, Any]]:
    return [(f"line {i}", value) for i, value in read_json_lines(path)]


def _read_json_list(path: Path) -> list[tuple[str, Any]]:
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no valid JSON ({error}); expected {EXPECTED_COLUMNS}") from error
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
    """Whether it is Label Studio's: a task, or one annotation with its task inside."""
    return isinstance(row.get("data"), dict) or (
        isinstance(row.get("task"), dict) and "result" in row
    )


def _read_task(task: Mapping[str, Any], path: Path, where: str) -> Iterator[Entry]:
    """What was annotated; predictions are counted."""
    if isinstance(task.get("task"), dict) and "result" in task:
        task = {**task["task"], "annotations": [task]}
    data = task.get("data")
    data = data if isinstance(data, dict) else {}
    likely = [data[name] for name in ITEM_COLUMNS if isinstance(data.get(name), str)]
    names = likely or [value for value in data.values() if isinstance(value, str)]
    own_id = format_id(data.get(ITEM_ID_FIELD, data.get("id"))) or None
    item = partial(Entry, where, names, own_id=own_id, former=set(data) == {"item"})
    annotations = task.get("annotations", task.get("completions")) or []
    if not isinstance(annotations, list):
        raise InputError(f"{path}, {where}: annotations are {annotations!r:.80}; expected a list")
    predictions = task.get("predictions") or []
    if not isinstance(predictions, list):
        raise InputError(f"{path}, {where}: predictions are {predictions!r:.80}; expected a list")
    yield from (item(predicted=True) for _ in predictions)
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
        who = next(
            (
                given[key]
                for key in ("annotator", "who", "completed_by")
                if given.get(key) is not None
            ),
            None,
        )
        yield item(label=label, who=who, literal=True)


def _read_parquet(path: Path, inside: str = "") -> Iterator[Entry]:
    parquet = import_extra("pyarrow.parquet", "tables", "reading Parquet")
    try:
        schema = parquet.read_schema(path)
        wanted = {*ITEM_COLUMNS, *LABEL_COLUMNS, *ANNOTATOR_COLUMNS, "id", "index", *EXPORT_COLUMNS, *EXPORT_COLUMNS_0_2, *TASK_EXPORT_COLUMNS}
        # Pictures and the like stay where they are.
        columns = [
            n
            for n in schema.names
            if n.casefold() in wanted and "struct" not in str(schema.field(n).type)
        ]
        header = {n.casefold() for n in columns}
        own, former = header >= EXPORT_COLUMNS, {n.casefold() for n in schema.names} == EXPORT_COLUMNS_0_2
        _check_columns(EXPORT_COLUMNS if own else [n.casefold() for n in columns], str(path))
        count = parquet.read_metadata(path).num_rows
        if count > MAX_LABEL_ROWS:  # equal rows take next to nothing in the file, and minutes to read
            raise InputError(f"{path} has {count:,} rows; expected at most {MAX_LABEL_ROWS:,}: split it")
        read = read_bounded(path, columns, MAX_LABEL_BYTES, count_repeats=True)
        values = {name.casefold(): column_to_python(read.column(name)) for name in columns}
    except InputError:
        raise
    except Exception as error:  # whatever a damaged file makes the reader say
        raise InputError(f"{path} cannot be read as Parquet ({error})") from error
    names = _read_class_names(schema.metadata or {})
    for i in range(read.num_rows):
        folded = {name: column[i] for name, column in values.items()}
        for column in LABEL_COLUMNS:
            number = folded.get(column)
            if column in names and isinstance(number, int):
                known = 0 <= number < len(names[column])  # -1 is Hugging Face's "no label"
                folded[column] = names[column][number] if known else None
        where = f"{inside}row {i}"
        entry = _parse_export_row(folded, path, where) if own else _parse_row(folded, path, where, former)
        yield replace(entry, literal=SOURCE_COLUMN in folded or bool(names))


def _read_class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """The names behind numbers, by column, where Hugging Face's note says them."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {n.casefold(): f["names"] for n, f in features.items() if "names" in f}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _find_parquet_files(path: Path) -> list[Path]:
    return sorted(p for folder in (path, path / "data") for p in folder.glob("*.parquet"))


def _read_class_folders(path: Path) -> Iterator[Entry]:
    """CLASS/ITEM; the files are not read, their places are the labels."""
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
                    f"{folder.name}/{inside}", [inside], folder.name, folder=True, literal=True
                )


def _parse_export_row(row: Mapping[str, Any], path: Path, where: str) -> Entry:
    """Return what a row of our own export says, whatever the user's columns beside ours are called.
    """
    own_id, label = format_id(row.get("id")), _parse_label(row.get("label"))
    if not own_id and label is not None:
        raise InputError(f"{path}, {where}: no id; expected one in every row of an export")
    predicted = str(row.get(SOURCE_COLUMN) or "").casefold() == "prediction"
    text = (
        row["id"] if isinstance(row.get("id"), str) else own_id
    )  # a file name may begin or end with a blank
    return Entry(where, [text], label, row.get("annotator"), predicted, own_id=text, literal=True)


def _parse_row(
    row: Mapping[str, Any],
    path: Path,
    where: str,
    former: bool = False,
    *,
    columns: Sequence[str] = (),
) -> Entry:
    """A plain row; what is empty is left out or None."""
    label = next((row[name] for name in LABEL_COLUMNS if row.get(name) is not None), None)
    if label is None:  # Label Studio's short form calls the column as its user did
        label = next((v for v in row.values() if isinstance(v, dict) and "choices" in v), None)
        columns = columns if label is None else ()
    label = _parse_label(label)
    names = [row[name] for name in ITEM_COLUMNS if row.get(name) is not None]
    own = (
        format_id(row.get("id")) or None
    )  # a number beside another name is one of the program that wrote it
    if own is not None and (not names or not own.isdecimal()):
        names.append(own)
    position = not names and row.get("index") is not None
    names = [row["index"]] if position else names
    odd = next((n for n in names if isinstance(n, bool) or not isinstance(n, str | int)), None)
    if odd is not None:
        raise InputError(f"{path}, {where}: the item is {odd!r:.80}; expected a name")
    if not names and label is not None:
        raise InputError(
            f"{path}, {where}: no item, only {', '.join(row) or 'nothing'}; expected {EXPECTED_COLUMNS}"
        )
    who = next((row[name] for name in ANNOTATOR_COLUMNS if row.get(name) is not None), None)
    predicted = str(row.get(SOURCE_COLUMN, "")).casefold() == "prediction"
    own_id = format_id(row.get(ITEM_ID_FIELD, None if row.keys() >= TASK_EXPORT_COLUMNS else own)) or None
    entry = Entry(where, names, label, who, predicted, position=position, columns=columns)
    return replace(entry, own_id=own_id, former=former, literal=SOURCE_COLUMN in row)


def _parse_label(value: Any) -> Any:
    """A label as text, None if it is empty; anything that is not one label stays as it is."""
    if isinstance(value, str) and value.startswith('{"choices"'):  # Label Studio's CSV
        with suppress(ValueError):
            value = json.loads(value)
    return parse_label(value["choices"] if isinstance(value, dict) and "choices" in value else value)
