"""Labels from files of other programs, and of `export`. Nothing is guessed, nothing lost unsaid.

An item is known by its name; by its file name, with or without suffix, where no other item has
the same; or, of an address or an absolute path, by the end of it. Names that fit nothing are
returned, and so are items whose label is not clear.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qs, unquote, urlsplit

from labelahead.errors import InputError
from labelahead.web.names import alike, checked_name
from labelahead.web.readers import Entry, entries
from labelahead.web.storable import as_file_name

__all__ = ["Imported", "read_import"]

NOBODY = "import"  # who said it, where a file does not say
AMBIGUOUS = -1


@dataclass(frozen=True)
class Imported:
    """What a file held, in its order."""

    labels: tuple[tuple[int, str, str], ...]  # position, class name, person
    new_classes: tuple[str, ...]  # names that are none of the classes given
    unknown: tuple[str, ...]  # items that the data do not have
    # not taken in: several choices, two labels by one person, a name that fits several items
    unclear: tuple[str, ...]
    blank: int  # rows without a label: not labelled yet, or skipped
    predictions: int  # rows that a model said: no labels


def read_import(
    path: str | Path, items: Sequence[str], classes: Sequence[str], *, form: str | None = None
) -> Imported:
    """The labels of a file or folder; the form is told by its name, unless given.

    Names of classes differ by more than capital letters: where `Cat` is read and there is a class
    `cat`, it is that.
    """
    finder = _Finder(items)
    names = {alike(name): name for name in classes}
    files = {as_file_name(name): name for name in classes}  # of the form folders
    found: dict[tuple[int, str], str] = {}
    called: dict[int, str] = {}  # what the file calls an item
    unknown: dict[str, None] = {}
    unclear: dict[str, None] = {}
    contradicted: set[tuple[int, str]] = set()
    mixed: set[int] = set()
    blank = predictions = 0
    for entry in entries(Path(path), form):
        if entry.predicted:
            predictions += 1
            continue
        if entry.label is None:
            blank += 1
            continue
        position, name = finder.find(entry)
        if position is None:
            unknown[name] = None
            continue
        # Two names for one item: by their ends they look alike, but they are two files.
        if position == AMBIGUOUS or called.setdefault(position, name) != name:
            unclear |= {called.get(position, name): None, name: None}
            mixed.add(position)
            continue
        if isinstance(entry.label, list):
            unclear[name] = None
            continue
        label = _class(entry, files, names, classes)
        key = (position, _person(entry))
        if found.setdefault(key, label) != label:
            contradicted.add(key)
            unclear[name] = None
    labels = tuple(
        (position, name, who)
        for (position, who), name in found.items()
        if position not in mixed and (position, who) not in contradicted
    )
    known = set(classes)
    new = tuple(dict.fromkeys(name for _, name, _ in labels if name not in known))
    return Imported(labels, new, tuple(unknown), tuple(unclear), blank, predictions)


def _class(
    entry: Entry, files: dict[str, str], names: dict[str, str], classes: Sequence[str]
) -> str:
    """The class that an entry means, in the spelling that came first."""
    label = entry.label
    if entry.folder:
        label = files.get(label, unquote(label))
    name = checked_name(label, f"{entry.where}: the label")
    number = name.isdecimal() and classes and not any(c.isdecimal() for c in classes)
    if number and alike(name) not in names:
        meant = f" (did you mean {classes[int(name)]!r}?)" if int(name) < len(classes) else ""
        raise InputError(
            f"{entry.where}: the label is the number {name}, but the classes have names{meant}; "
            "expected the name of a class"
        )
    return names.setdefault(alike(name), name)


def _person(entry: Entry) -> str:
    who = entry.who
    if isinstance(who, dict):  # Label Studio's account
        who = next((who[k] for k in ("email", "username", "id") if who.get(k)), None)
    if who is None or not str(who).strip():
        return NOBODY
    return checked_name(str(who), f"{entry.where}: the person's name")


class _Finder:
    """Positions of items by what other programs call them."""

    def __init__(self, items: Sequence[str]) -> None:
        self.size = len(items)
        self.ids = {name: i for i, name in enumerate(items)}
        last = [name.rsplit("/", 1)[-1] for name in items]
        stems = [PurePosixPath(name).stem for name in last]
        self.short = [(Counter(n), {name: i for i, name in enumerate(n)}) for n in (last, stems)]

    @cached_property
    def files(self) -> dict[str, int]:
        """Items as the form folders writes them."""
        return {
            "/".join(as_file_name(part) for part in name.split("/")): i
            for name, i in self.ids.items()
        }

    def find(self, entry: Entry) -> tuple[int | None, str]:
        """The position, AMBIGUOUS or None; and the name by which it was found, or the first."""
        if entry.position:
            text = str(entry.items[0]).strip()
            sound = text.isdecimal() and len(text) < 19 and int(text) < self.size
            return (int(text) if sound else None), text
        names = [str(name) for name in entry.items]
        several = None
        for name in names:
            position = self.files.get(name) if entry.folder else None
            position = self._position(name) if position is None else position
            if position is not None and position != AMBIGUOUS:
                return position, name
            several = position if several is None else several
        return several, names[0] if names else f"{entry.where}, without a name"

    def _position(self, name: str) -> int | None:
        plain = name.strip().replace("\\", "/").removeprefix("./")
        for exact in (name, name.strip(), plain):
            if exact in self.ids:
                return self.ids[exact]
        if "/" not in plain:
            return self._by_end(plain)
        if not (plain.startswith("/") or "://" in plain or re.match("[A-Za-z]:/", plain)):
            return None  # a relative path that is another one
        parts = _path(plain).split("/")
        for end in ("/".join(parts[i:]) for i in range(len(parts))):
            if end in self.ids:
                return self.ids[end]
        upload = re.sub("^[0-9a-f]{8}-", "", parts[-1])  # what Label Studio puts before a name
        found = self._by_end(parts[-1])
        return self._by_end(upload) if found is None else found

    def _by_end(self, name: str) -> int | None:
        for counts, places in self.short:
            if counts[name] == 1:
                return places[name]
            if counts[name] > 1:
                return AMBIGUOUS
        return None


def _path(address: str) -> str:
    """The path of an address; Label Studio serves local files as ...?d=path."""
    if "://" not in address and "?d=" not in address:
        return address
    try:
        found = urlsplit(address)
    except ValueError:  # something with brackets
        return address
    return parse_qs(found.query).get("d", [unquote(found.path)])[0]
