"""Find the items that the entries of label files name.

An item is found by its id; by its file name, with or without suffix, if no other item has the same;
by the end of a URL or an absolute path; and by its position. A column `index` always holds
positions; elsewhere a number is a position only if no item has a number as its name.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from urllib.parse import parse_qs, unquote, urlsplit

from labelahead.data.label_entries import Entry, is_address
from labelahead.data.text import as_file_name
from labelahead.errors import InputError, did_you_mean

__all__ = ["EXCLUDED", "ItemFinder"]

log = logging.getLogger("labelahead")
EXCLUDED = -1  # the position of a file that exists but was excluded from the data


class ItemFinder:
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

    def find_one(self, entry: Entry, where: str) -> tuple[int | None, str]:
        """Return the position that an entry means, and the name that was used to find it.

        The position is None, with a warning, if the item was excluded from the data.

        Args:
            entry: One entry of a label file.
            where: The file and the line, for messages.

        Raises:
            InputError: If the entry means no item, or several.
        """
        positions, item = self.find(entry)
        if set(positions) == {EXCLUDED}:
            log.warning("%s: %r was excluded from the data, so its label is ignored", where, item)
            return None, item
        if len(positions) != 1:
            raise self._describe_mismatch(entry, item, positions, where)
        return positions[0], item

    def _describe_mismatch(
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
        if is_address(plain):
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


def _extract_path(address: str) -> str:
    """Return the path of a URL; Label Studio serves local files as ...?d=path."""
    if "://" not in address and "?d=" not in address:
        return address
    try:
        parts = urlsplit(address)
    except ValueError:  # for example invalid brackets
        return address
    return parse_qs(parts.query).get("d", [unquote(parts.path)])[0]
