"""List and open the files below a folder or in a zip."""

import hashlib
import os
import stat
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, BinaryIO, Protocol

from labelahead.data.heif import HEIF_SUFFIXES
from labelahead.errors import InputError

__all__ = [
    "FileSource",
    "FileTree",
    "ItemFiles",
    "UnreadableItemsError",
    "find_files",
    "printable_name",
]

NETPBM_SUFFIXES = (".ppm", ".pgm", ".pbm", ".pnm")
JPEG_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif")
IMAGE_SUFFIXES = {
    *JPEG_SUFFIXES,
    ".png",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".webp",
    ".avif",
    *NETPBM_SUFFIXES,
    *HEIF_SUFFIXES,
}
SOUND_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aif", ".aiff")
TEXT_SUFFIXES = (".txt", ".text")
IGNORED_TEXT_STEMS = {"readme", "license", "licence"}
MAX_MEMBER_BYTES = 2**29  # unpacked size of a zip member


class FileSource(Protocol):
    """Files that are opened by name."""

    def open(self, name: str) -> BinaryIO:
        """Open one file."""
        ...


@dataclass(eq=False)
class FileTree:
    """The files below a folder or in a zip, by relative name, sorted.

    Attributes:
        root: the folder or the zip.
        names: the files of one kind; `find_files` lists the image files.
        folders: the subfolders.
        others: all other files.
        is_zip: whether the root is a zip.
        links: whether links may lead out of the folder.
        outside: links that lead out of the folder, if they are not followed.
    """

    root: Path
    names: tuple[str, ...]
    folders: tuple[str, ...]
    others: tuple[str, ...]
    is_zip: bool
    links: bool = True
    outside: tuple[str, ...] = ()
    _open: dict[int, zipfile.ZipFile] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=Lock, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def open(self, name: str) -> BinaryIO:
        """Open one file.

        Raises:
            InputError: if it is no regular file, lies outside the folder, or is too large.
        """
        if not self.is_zip:
            path = self.root / name
            if not path.is_file():  # reading from a pipe would block forever
                raise InputError("is no regular file")
            if not self.links and not _is_inside(path, self.root.resolve()):
                raise InputError("leads out of the folder")  # the link was changed meanwhile
            return path.open("rb")
        # Each process has its own handle: after a fork two would share one file position.
        with self._lock:
            if os.getpid() not in self._open:
                self._open = {os.getpid(): zipfile.ZipFile(self.root)}
            archive = self._open[os.getpid()]
        if archive.getinfo(name).file_size > MAX_MEMBER_BYTES:
            raise InputError(f"is larger than {MAX_MEMBER_BYTES // 2**20} MB unpacked")
        return BytesIO(archive.read(name))

    def list_sound_files(self) -> list[str]:
        """Return the sound files among the others."""
        return [n for n in self.others if os.path.splitext(n)[1].lower() in SOUND_SUFFIXES]

    def list_text_files(self) -> list[str]:
        """Return the text files among the others, except those about the folder itself (README)."""
        paths = {name: PurePosixPath(name.lower()) for name in self.others}
        return [
            name
            for name, path in paths.items()
            if path.suffix in TEXT_SUFFIXES and path.stem not in IGNORED_TEXT_STEMS
        ]

    def keep_only(self, names: Sequence[str]) -> "FileTree":
        """Return the same files with these as `names`; the rest are others."""
        chosen = set(names)
        others = sorted({*self.names, *self.others} - chosen)
        return replace(self, names=tuple(names), others=tuple(others))


class UnreadableItemsError(InputError):
    """Items that cannot be read.

    Attributes:
        failed: the reason for each position.
    """

    def __init__(self, message: str, failed: Mapping[int, str]) -> None:
        super().__init__(message)
        self.failed = dict(failed)


@dataclass(frozen=True, eq=False)
class ItemFiles:
    """Items that are files.

    Attributes:
        files: all files of the folder or zip.
        names: the files of the items.
    """

    files: FileTree
    names: tuple[str, ...]

    def compute_fingerprint(self) -> str:
        """Return a hash of all paths, sizes and times; reading every file would take minutes."""
        return hashlib.sha256(
            "\0".join(self.compute_item_fingerprints(len(self.names))).encode(
                "utf-8", "surrogateescape"
            )
        ).hexdigest()

    def compute_item_fingerprints(self, n: int) -> list[str]:
        """Return path, size and modification time of each file."""
        root = printable_name(str(self.files.root.resolve()))
        return [
            f"{root}\0{printable_name(name)}\0{about}"
            for name, about in zip(self.names, self._file_stats(n), strict=False)
        ]

    def _file_stats(self, n: int) -> Iterator[str]:
        """Yield size and modification time of the first n files."""
        whole = self.files.root.stat() if self.files.is_zip else None
        for name in self.names[:n]:
            about = whole or _stat_or_none(f"{self.files.root}/{name}")
            yield "gone" if about is None else f"{about.st_size}\0{about.st_mtime_ns}"

    def get_file_sizes(self) -> list[int | None]:
        """Return the size of each file in bytes, None if it does not exist any more."""
        if self.files.is_zip:
            with zipfile.ZipFile(self.files.root) as archive:
                size_of = {info.filename: info.file_size for info in archive.infolist()}
            return [size_of.get(name) for name in self.names]
        stats = (_stat_or_none(f"{self.files.root}/{name}") for name in self.names)
        return [None if about is None else about.st_size for about in stats]

    def file_names(self) -> Sequence[str]:
        """Return the names of all files of this kind, including broken ones."""
        return [printable_name(name) for name in self.files.names]


def _stat_or_none(path: str) -> os.stat_result | None:
    """Return the status of a file, None if it does not exist."""
    try:
        return os.stat(path)
    except OSError:
        return None


def printable_name(name: str) -> str:
    """Return a file name that can be printed and stored, even if it is not valid UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def find_files(root: Path, *, links: bool = True) -> FileTree:
    """Find all image files at any depth; hidden files are skipped.

    Args:
        root: the folder or the zip.
        links: whether to follow links that lead out of the folder.

    Raises:
        InputError: if it cannot be read.
    """
    outside: list[str] = []
    try:
        if root.is_dir():
            names, folders = _walk_folder(root, None if links else outside)
        else:
            names, folders = _list_zip_members(root)
    except (zipfile.BadZipFile, OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{root} cannot be read ({error}); expected a folder or a zip archive of pictures, "
            "sounds or texts"
        ) from error
    pictures = {
        n for n in names if os.path.splitext(n)[1].lower() in IMAGE_SUFFIXES
    }  # Path takes ten times as long
    kept, others = sorted(pictures), sorted(set(names) - pictures)
    return FileTree(
        root,
        tuple(kept),
        tuple(sorted(folders)),
        tuple(others),
        not root.is_dir(),
        links,
        tuple(sorted(outside)),
    )


def _walk_folder(root: Path, outside: list[str] | None = None) -> tuple[list[str], list[str]]:
    """Return all files and subfolders of a folder.

    Real folders are visited first and linked folders once, so that link cycles end.

    Args:
        root: the folder.
        outside: collects links that lead out of the folder, which are not followed then.
    """
    resolved = root.resolve()
    names: list[str] = []
    folders: list[str] = []
    visited = set()
    todo, linked = deque([""]), deque[str]()
    while todo or linked:
        folder = todo.popleft() if todo else linked.popleft()
        status = os.stat(root / folder)
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        with os.scandir(root / folder) as listing:
            entries = list(listing)
        if folder and {"config.toml", "labels.jsonl"} <= {e.name for e in entries}:
            continue  # the run folder of a campaign, inside the data
        if folder:
            folders.append(folder)
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if _is_hidden(entry.name):
                continue
            if outside is not None and entry.is_symlink() and not _is_inside(root / name, resolved):
                outside.append(name)
                continue
            if _is_folder(entry):
                (linked if entry.is_symlink() else todo).append(name)
            else:
                names.append(name)
    return names, folders


def _list_zip_members(path: Path) -> tuple[list[str], list[str]]:
    """Return all files and folders of a zip archive."""
    names, folders = [], set()
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename
            if not name or _is_hidden(name) or ".." in PurePosixPath(name).parts:
                continue
            if info.is_dir() or stat.S_ISDIR(info.external_attr >> 16):
                folders.add(name.rstrip("/"))
            else:
                names.append(name)
                folders.update(str(p) for p in PurePosixPath(name).parents if str(p) != ".")
    return names, list(folders)


def _is_hidden(name: str) -> bool:
    """Return whether a part of the path is hidden."""
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _is_inside(path: Path, root: Path) -> bool:
    """Return whether a path stays below a resolved folder when all links are followed."""
    try:
        return path.resolve(strict=True).is_relative_to(root)
    except (
        OSError,
        RuntimeError,
    ):  # a link to itself, or to nothing: opening it fails, and says so
        return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder."""
    try:
        return entry.is_dir()
    except (
        OSError
    ):  # a link to itself; it is listed as a file and reported when it cannot be opened
        return False
