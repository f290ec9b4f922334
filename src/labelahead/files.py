"""Files that are there whole or not at all, lines that are on the disk before they count, folders
for one process.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from filelock import FileLock, Timeout

from labelahead.errors import InputError, StorageError

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "FolderLock",
    "JsonLinesFile",
    "as_storage_error",
    "file_identity",
    "lock_folder",
    "make_folder",
    "read_complete_lines",
    "replace_file",
    "write_atomically",
]


def replace_file(path: Path, content: bytes | str | Callable[[BinaryIO], object]) -> None:
    """Write a file in one step: whatever happens, the old one is there whole or the new one is.

    content: bytes, text (UTF-8), or a function that writes to the open file.
    """
    # Named by the process: one that was thought dead may still be writing.
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        # A device or a pipe has nothing to be replaced, and must stay what it is.
        special = path.exists() and not path.is_file() and not path.is_dir()
        with (path if special else partial).open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if special:
                return
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise as_storage_error(path, error) from error
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch.save covers up what the disk said
            raise as_storage_error(path, error.__context__) from error
        raise
    finally:
        with suppress(OSError):  # what refuses a new file may refuse this too
            partial.unlink()


def make_folder(folder: Path) -> None:
    """A folder, and all that it lies in, if there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise as_storage_error(folder, error) from error


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable."""
    if os.name == "nt":  # folders cannot be opened there; the rename itself is journalled
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class JsonLinesFile:
    """A file of JSON objects, one a line, that only grows.

    A line is on the disk when `append` returns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._cut_unfinished()
            self._file = path.open(
                "ab", buffering=0
            )  # unbuffered: what a full disk refuses must not turn up later
            sync_folder(path.parent)
        except OSError as error:
            raise as_storage_error(path, error) from error

    def append(self, row: Mapping[str, Any]) -> None:
        """One more line: whole, or not at all."""
        line = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        before = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(self._file.fileno())
        except OSError as error:
            os.ftruncate(self._file.fileno(), before)
            raise as_storage_error(self.path, error) from error

    def close(self) -> None:
        """No more lines."""
        self._file.close()

    def _cut_unfinished(self) -> None:
        """A last line that a kill cut short was never accepted."""
        if not self.path.exists():
            return
        text = self.path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            with self.path.open("r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())


def read_complete_lines(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Every finished line of such a file, and where it stands, for messages.

    Nothing if there is no file.
    """
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(
                f"{where} is damaged ({error}); expected one JSON object: restore the file from a "
                "copy, or remove "
                "the line by hand"
            ) from error
        if not isinstance(row, dict):
            raise InputError(f"{where} is damaged; expected one JSON object")
        yield row, where


@contextmanager
def write_atomically(out: Path) -> Iterator[Path]:
    """A name to write to, which becomes `out` when all is written; otherwise nothing is left."""
    if os.path.lexists(out):
        raise InputError(f"{out} is there already; choose another name, or move it away")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent}; make it, or choose another")
    partial = out.with_name(f".{uuid4().hex}.partial")
    try:
        yield partial
        if partial.is_dir():
            partial.rename(out)
            return
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        try:
            os.link(partial, out)  # unlike a rename it fails where `out` has come meanwhile
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            partial.rename(out)
    except OSError as error:
        raise as_storage_error(out, error) from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            with suppress(OSError):  # what refuses a new file may refuse this too
                partial.unlink()


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode number of the file at this path, or None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@dataclass(frozen=True)
class FolderLock:
    """A lock that this process holds on a folder.

    The lock file can be removed while it is held, and the next process would lock a new one. The
    folder itself is therefore locked as well, where the file system can lock folders (local ones
    can, NFS cannot).
    """

    path: Path
    identity: tuple[int, int] | None
    folder_is_locked: bool

    def is_intact(self) -> bool:
        """Return whether no other process can have locked the folder since."""
        return self.folder_is_locked or file_identity(self.path) == self.identity


@contextmanager
def lock_folder(
    folder: Path, name: str = "lock", *, by: str = "process", instead: str = ""
) -> Iterator[FolderLock]:
    """A folder, made if there is none, for this process alone.

    by: who else may hold it. instead: what to do then; default: wait.
    """
    make_folder(folder)
    todo = instead or "wait for it or stop it first"
    in_use = StorageError(f"{folder} is in use by another {by}; {todo}")
    try:
        # Of the process, not of the thread: a server may close in another than it opened in.
        lock = FileLock(folder / name, thread_local=False)
        lock.acquire(timeout=0)
    except Timeout:
        raise in_use from None
    except OSError as error:
        raise as_storage_error(folder, error) from error
    handle: int | None = None
    try:
        try:
            handle = _flock_folder(folder)
        except BlockingIOError:
            raise in_use from None
        # Half a file, which a process that was killed left behind: networks and kernels are large.
        for left in (*folder.glob("*.[0-9]*.partial"), *folder.glob("*/*.[0-9]*.partial")):
            with suppress(OSError):
                left.unlink()
        yield FolderLock(folder / name, file_identity(folder / name), handle is not None)
    finally:
        if handle is not None:
            os.close(handle)
        lock.release()


def _flock_folder(folder: Path) -> int | None:
    """Lock the folder itself and return its handle, or None where the system cannot; closing it
    ends the lock.

    Raises:
        BlockingIOError: another process holds it.
    """
    if fcntl is None:
        return None
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that may be written to, but not listed
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:  # network file systems lock files, not folders
        os.close(handle)
        return None
    return handle


def as_storage_error(path: Path, error: OSError) -> StorageError:
    """What the system said of a file that could not be written, and what to do about it."""
    if isinstance(error, StorageError):
        return error
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    todo = "make room" if full else "make it writable, or choose another place"
    return StorageError(
        f"{path} cannot be written to ({error.strerror or error}); {todo}", full=full
    )
