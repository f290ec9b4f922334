"""The picture files of a folder or a zip archive, found and opened the same way."""

import hashlib
import os
import stat
import zipfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, BinaryIO

from labelahead.data.photo import SUFFIXES
from labelahead.errors import InputError

__all__ = ["Files", "find_files"]

LARGEST_MEMBER = 2**29  # bytes unpacked; a zip may announce far more than it holds


@dataclass(eq=False)
class Files:
    """Picture files below a folder or within a zip, by relative name, sorted."""

    root: Path
    names: tuple[str, ...]
    folders: tuple[str, ...]
    others: tuple[str, ...]
    is_zip: bool
    links: bool = True  # whether links may lead out of the folder
    outside: tuple[str, ...] = ()  # those that do, if they may not
    _open: dict[int, zipfile.ZipFile] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=Lock, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def open(self, name: str) -> BinaryIO:
        """The content of one file."""
        if not self.is_zip:
            path = self.root / name
            if not path.is_file():  # a pipe under that name would be waited for without end
                raise InputError("is no regular file")
            if not self.links and not _inside(path, self.root.resolve()):
                raise InputError("leads out of the folder")  # it did not when it was found
            return path.open("rb")
        # One handle for each process: after a fork two would move the same file position.
        with self._lock:
            if os.getpid() not in self._open:
                self._open = {os.getpid(): zipfile.ZipFile(self.root)}
            archive = self._open[os.getpid()]
        if archive.getinfo(name).file_size > LARGEST_MEMBER:
            raise InputError(f"is larger than {LARGEST_MEMBER // 2**20} MB unpacked")
        return BytesIO(archive.read(name))

    def fingerprint(self, names: Sequence[str]) -> str:
        """A hash of where the files are, how large and how old."""
        found = hashlib.sha256(os.fsencode(self.root.resolve()))
        whole = self.root.stat() if self.is_zip else None
        for name in names:
            about = whole or (self.root / name).stat()
            found.update(os.fsencode(f"\0{name}\0{about.st_size}\0{about.st_mtime_ns}"))
        return found.hexdigest()


def find_files(root: Path, *, links: bool = True) -> Files:
    """All picture files, at any depth; hidden ones are left out.

    links: whether to follow links that lead out of the folder.
    """
    outside: list[str] = []
    try:
        if root.is_dir():
            names, folders = _walk(root, None if links else outside)
        else:
            names, folders = _members(root)
    except (zipfile.BadZipFile, OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{root} cannot be read ({error}); expected a folder or a zip archive of pictures"
        ) from error
    kept = sorted({n for n in names if PurePosixPath(n).suffix.lower() in SUFFIXES})
    others = sorted({n for n in names if PurePosixPath(n).suffix.lower() not in SUFFIXES})
    return Files(
        root, tuple(kept), tuple(sorted(folders)), tuple(others), not root.is_dir(),
        links, tuple(sorted(outside)),
    )  # fmt: skip


def shown(name: str) -> str:
    """A file name that can be printed and stored, even where it is no UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)


def _inside(path: Path, root: Path) -> bool:
    """Whether a path, all links followed, stays below a resolved folder."""
    try:
        return path.resolve(strict=True).is_relative_to(root)
    except (
        OSError,
        RuntimeError,
    ):  # a link to itself, or to nothing: opening it fails, and says so
        return True


def _walk(root: Path, outside: list[str] | None = None) -> tuple[list[str], list[str]]:
    """Files and folders below a folder: real folders first, linked ones once, so no loop.

    outside: collects links that lead out of the folder, which are not followed then.
    """
    resolved = root.resolve()
    names: list[str] = []
    folders: list[str] = []
    seen = set()
    todo, linked = deque([""]), deque[str]()
    while todo or linked:
        here = todo.popleft() if todo else linked.popleft()
        status = os.stat(root / here)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(root / here) as found:
            entries = list(found)
        if here and {"config.toml", "labels.jsonl"} <= {e.name for e in entries}:
            continue  # results of a campaign that were put inside the data
        if here:
            folders.append(here)
        for entry in entries:
            name = f"{here}/{entry.name}" if here else entry.name
            if _hidden(entry.name):
                continue
            if outside is not None and entry.is_symlink() and not _inside(root / name, resolved):
                outside.append(name)
                continue
            if _is_folder(entry):
                (linked if entry.is_symlink() else todo).append(name)
            else:
                names.append(name)
    return names, folders


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: kept as a file, whose opening fails and is reported
        return False


def _members(path: Path) -> tuple[list[str], list[str]]:
    """Files and folders of a zip archive."""
    names, folders = [], set()
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename
            if not name or _hidden(name) or ".." in PurePosixPath(name).parts:
                continue
            if info.is_dir() or stat.S_ISDIR(info.external_attr >> 16):
                folders.add(name.rstrip("/"))
            else:
                names.append(name)
                folders.update(str(p) for p in PurePosixPath(name).parents if str(p) != ".")
    return names, list(folders)
