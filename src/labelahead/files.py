"""Durable files: atomic replacement, append-only JSON lines, and folder locks."""

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
except ImportError:  # Windows has no fcntl; there an open file cannot be deleted anyway
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
    """Write a file atomically: after a crash the file has either the old or the new content.

    Args:
        path: the file; a device or a pipe is written to directly.
        content: bytes, text (UTF-8), or a function that writes to the open file.

    Raises:
        StorageError: if the file cannot be written.
    """
    # The process id is part of the name because a process believed dead may still be writing.
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        # A device or a pipe cannot be replaced by a rename.
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
        if isinstance(error.__context__, OSError):  # torch.save hides the error of the disk
            raise as_storage_error(path, error.__context__) from error
        raise
    finally:
        with suppress(OSError):  # a read-only file system refuses this too
            partial.unlink()


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if they do not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise as_storage_error(folder, error) from error


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable."""
    if os.name == "nt":  # folders cannot be opened on Windows; NTFS journals the rename itself
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class JsonLinesFile:
    """An append-only file with one JSON object per line.

    A line is durable on the disk when `append` returns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._truncate_incomplete_line()
            self._file = path.open(
                "ab", buffering=0
            )  # unbuffered: what a full disk refuses must not turn up later
            sync_folder(path.parent)
        except OSError as error:
            raise as_storage_error(path, error) from error

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one line, completely or not at all.

        Raises:
            StorageError: if the disk is full or not writable.
        """
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
        """Close the file."""
        self._file.close()

    def _truncate_incomplete_line(self) -> None:
        """Remove an incomplete last line that a killed process left; it was never accepted."""
        if not self.path.exists():
            return
        text = self.path.read_bytes()
        complete = text.rfind(b"\n") + 1
        if complete < len(text):
            with self.path.open("r+b") as file:
                file.truncate(complete)
                os.fsync(file.fileno())


def read_complete_lines(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every complete line of a JSON-lines file as (object, place in the file for messages).

    A file that does not exist has no lines.

    Raises:
        InputError: if a complete line is no JSON object.
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
    """Yield a temporary path that is renamed to `out` when the block ends without an error.

    After an error nothing is left behind. The temporary path may become a file or a folder.

    Raises:
        InputError: if `out` exists already, or its parent folder does not exist.
        StorageError: if it cannot be written.
    """
    if os.path.lexists(out):
        raise InputError(f"{out} exists already; choose another name, or move it away")
    if not out.parent.is_dir():
        raise InputError(f"the folder {out.parent} does not exist; create it, or choose another")
    partial = out.with_name(f".{uuid4().hex}.partial")
    try:
        yield partial
        if partial.is_dir():
            partial.rename(out)
            return
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        try:
            os.link(partial, out)  # unlike a rename, it fails if `out` was created meanwhile
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
            with suppress(OSError):  # a read-only file system refuses this too
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

    The lock file can be deleted while it is locked, and the next process would lock a new one. The
    folder itself is therefore locked as well where the file system supports it (local ones do, NFS
    does not).
    """

    path: Path
    identity: tuple[int, int] | None
    folder_is_locked: bool

    def is_intact(self) -> bool:
        """Return whether no other process can have locked the folder since."""
        return self.folder_is_locked or file_identity(self.path) == self.identity


@contextmanager
def lock_folder(
    folder: Path, name: str = "lock", *, holder: str = "process", advice: str = ""
) -> Iterator[FolderLock]:
    """Create a folder if necessary and lock it for this process.

    Args:
        folder: the folder to lock.
        name: the name of the lock file in it.
        holder: which other program may hold the lock, for the message.
        advice: what to do if it is locked, for the message; by default: wait.

    Raises:
        StorageError: if another process holds the lock, or the folder is not writable.
    """
    make_folder(folder)
    advice = advice or "wait for it or stop it first"
    in_use = StorageError(f"{folder} is in use by another {holder}; {advice}")
    try:
        # The lock belongs to the process, since a server may close in another thread.
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
        # Remove partial files of killed processes: networks and kernels are large.
        for partial in (*folder.glob("*.[0-9]*.partial"), *folder.glob("*/*.[0-9]*.partial")):
            with suppress(OSError):
                partial.unlink()
        yield FolderLock(folder / name, file_identity(folder / name), handle is not None)
    finally:
        if handle is not None:
            os.close(handle)
        lock.release()


def _flock_folder(folder: Path) -> int | None:
    """Lock the folder itself and return its file descriptor; closing it releases the lock.

    Returns None where the file system cannot lock folders.

    Raises:
        BlockingIOError: if another process holds the lock.
    """
    if fcntl is None:
        return None
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # the folder is writable, but not readable
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
    """Turn an error of the operating system about a file into a `StorageError` with advice."""
    if isinstance(error, StorageError):
        return error
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "make room" if full else "make it writable, or choose another place"
    return StorageError(
        f"{path} cannot be written to ({error.strerror or error}); {advice}", full=full
    )
