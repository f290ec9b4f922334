"""Label files, as people write them: CSV, JSON or JSON lines."""

import csv
import io
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from labelahead.data.classes import in_order, suggestion
from labelahead.data.dataset import Data
from labelahead.data.text import read_text
from labelahead.errors import InputError

__all__ = ["read_labels"]

log = logging.getLogger("labelahead")

ITEM = ("item", "id", "path", "file", "filename", "file_name", "image", "index")
LABEL = ("label", "class", "target")
EXPECTED = f"a column {'|'.join(ITEM)} and a column {'|'.join(LABEL)}"


def read_labels(path: str | Path, data: Data) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Positions (q,), class numbers (q,), and the class names: the data's, then new ones.

    An item is named by its id, by its file name (with or without suffix) where that is unique,
    or by its position: always so in a column `index`, elsewhere only if no item is called by a
    number. The same label twice is fine, two different ones are an error.
    """
    path = Path(path)
    text = read_text(path)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv", ".json", ".jsonl", ".ndjson"):
        raise InputError(f"{path} is no label file; expected .csv, .tsv, .json or .jsonl")
    if suffix in (".csv", ".tsv"):
        entries = _from_csv(path, text)
    else:
        entries = _from_json(path, text, lines=suffix != ".json")
    finder = _Finder(data)
    found: dict[int, tuple[str, str]] = {}
    for place, column, item, label in entries:
        if label is None or (isinstance(label, str) and not label.strip()):
            continue  # not labelled yet: half-filled lists are how people work
        if finder.left_out(item):
            log.warning(
                "%s, %s: %r was left out of the data, so its label is too", path, place, item
            )
            continue
        position = finder.position(item, column, f"{path}, {place}")
        name = _checked(label, data.classes, f"{path}, {place}")
        before = found.setdefault(position, (name, place))
        if before[0] != name:
            raise InputError(
                f"{path}, {place}: {item!r} is labelled {name!r}, but {before[0]!r} at "
                f"{before[1]}; expected one label for each item, so remove one"
            )
    names = [name for name, _ in found.values()]
    classes = (*data.classes, *in_order(set(names) - set(data.classes)))
    _refuse_twins(path, classes, len(data.classes), found)
    number = {name: i for i, name in enumerate(classes)}
    codes = torch.tensor([number[name] for name in names])
    return torch.tensor(list(found), dtype=torch.int64), codes.long(), classes


class _Finder:
    """Positions of items by whatever a person calls them."""

    def __init__(self, data: Data) -> None:
        self.n = len(data)
        self.ids = {name: i for i, name in enumerate(data.ids)}
        self.others = frozenset(data.images.found()) if data.images is not None else frozenset()
        last = [name.rsplit("/", 1)[-1] for name in data.ids]
        stems = [PurePosixPath(name).stem for name in last]
        # A file may go by its name, or by that without the suffix, where no other has the same.
        self.short = [(Counter(n), {name: i for i, name in enumerate(n)}) for n in (last, stems)]
        # Where files or rows are called by numbers (7.png), a number that is none of them must
        # not silently mean a position.
        self.numbered = any(name.isdecimal() for name in stems)

    def left_out(self, item: str) -> bool:
        """Whether there is such a file, but not among the items: unreadable, or over the limit."""
        name = item.replace("\\", "/").removeprefix("./")
        return name not in self.ids and name in self.others

    def position(self, item: str, column: str, where: str) -> int:
        """The position of an item, or an error that says why there is none."""
        name = item.replace("\\", "/").removeprefix("./")
        if column == "index":
            if not name.isdecimal() or int(name) >= self.n:
                raise InputError(
                    f"{where}: index is {item!r}; expected a position from 0 to {self.n - 1}"
                )
            return int(name)
        for exact in (item, name):
            if exact in self.ids:
                return self.ids[exact]
        for counts, places in self.short:
            if counts[name] == 1:
                return places[name]
            if counts[name] > 1:
                raise InputError(
                    f"{where}: {counts[name]} items have the file name {item!r}; expected a "
                    "name of one item, so write its whole path"
                )
        if name.isdecimal() and int(name) < self.n and not self.numbered:
            return int(name)
        raise InputError(
            f"{where}: no item is called {item!r}{suggestion(name, self._near(name))}; expected an "
            f"id such as {next(iter(self.ids))!r}, a file name, or a position"
        )

    def _near(self, name: str) -> list[str]:
        """Some ids to compare a wrong one with; all of a large set would take long."""
        return [i for i in self.ids if i[:1] == name[:1] and abs(len(i) - len(name)) < 3][:2000]


def _from_csv(path: Path, text: str) -> Iterator[tuple[str, str, str, Any]]:
    """Place, name of the item column, item and label of every row."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    if delimiter == "," and "," not in text.split("\n", 1)[0] and ";" in text.split("\n", 1)[0]:
        delimiter = ";"
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            if not any(field.strip() for field in row):
                continue
            place = f"line {reader.line_num}"
            if header is None:
                header = [name.strip().casefold() for name in row]
                column, at, label_at = _columns(path, place, header)
                continue
            if len(row) != len(header):
                raise InputError(
                    f"{path}, {place}: {len(row)} fields; expected {len(header)} as in the header"
                )
            yield place, column, row[at].strip(), row[label_at]
        if header is None:
            raise InputError(f"{path} holds no labels; expected {EXPECTED}, and at least a header")
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}; expected CSV") from error


def _from_json(path: Path, text: str, *, lines: bool) -> Iterator[tuple[str, str, str, Any]]:
    """The same of a JSON list, or of one JSON object on each line."""
    try:
        if lines:
            rows = [
                (f"line {i}", _parse(path, i, line))
                for i, line in enumerate(text.split("\n"), 1)
                if line.strip()
            ]
        else:
            content = json.loads(text)
            if isinstance(content, dict):  # {"a.jpg": "cat"}
                content = [{"item": item, "label": label} for item, label in content.items()]
            if not isinstance(content, list):
                raise InputError(
                    f"{path} holds a JSON {type(content).__name__}; expected a list of objects "
                    'such as {"item": "a.jpg", "label": "cat"}'
                )
            rows = [(f"entry {i}", row) for i, row in enumerate(content, 1)]
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no valid JSON: {error}") from error
    for place, row in rows:
        if not isinstance(row, dict):
            raise InputError(f"{path}, {place}: {row!r}; expected an object with item and label")
        folded = {str(key).casefold(): value for key, value in row.items()}
        column, at, label_at = _columns(path, place, list(folded))
        item, label = (list(folded.values())[i] for i in (at, label_at))
        if isinstance(item, bool) or not isinstance(item, str | int):
            raise InputError(f"{path}, {place}: item is {item!r}; expected text or a position")
        yield place, column, str(item).strip(), label


def _parse(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}, line {line}: no valid JSON ({error})") from error


def _columns(path: Path, place: str, header: Sequence[str]) -> tuple[str, int, int]:
    """The item column's name and place, and the label column's place."""
    item = next((name for name in ITEM if name in header), None)
    label = next((name for name in LABEL if name in header), None)
    if item is None or label is None:
        raise InputError(f"{path}, {place}: columns {', '.join(header)}; expected {EXPECTED}")
    for name in (item, label):
        if header.count(name) > 1:
            raise InputError(f"{path}, {place}: column {name!r} is there twice; expected it once")
    return item, header.index(item), header.index(label)


def _checked(label: Any, classes: tuple[str, ...], where: str) -> str:
    """A label as a class name."""
    if isinstance(label, bool) or not isinstance(label, str | int | None):
        raise InputError(f"{where}: the label is {label!r}; expected a class name")
    name = "" if label is None else str(label).strip()
    if not name:
        raise InputError(f"{where}: the label is empty; expected a class name, or no such row")
    if name in classes:
        return name
    if name.isdecimal() and classes and not any(c.isdecimal() for c in classes):
        number = int(name)
        meant = f" (did you mean {classes[number]!r}?)" if number < len(classes) else ""
        raise InputError(
            f"{where}: the label is the number {name}, but the classes have names{meant}; "
            "expected the name of a class"
        )
    return name


def _refuse_twins(
    path: Path, classes: tuple[str, ...], known: int, found: dict[int, tuple[str, str]]
) -> None:
    """Cat and cat would silently become two classes."""
    first: dict[str, str] = {}
    for i, name in enumerate(classes):
        other = first.setdefault(name.casefold(), name)
        if other != name and i >= known:
            place = next(p for n, p in found.values() if n == name)
            raise InputError(
                f"{path}, {place}: the label {name!r} differs from {other!r} by capital letters "
                "only; expected one spelling of each class"
            )
