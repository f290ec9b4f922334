"""The files of a journal: checks that they are complete and have not been replaced.

labels.db        all events
labels.db-wal    SQLite's write-ahead log: transactions that are not in labels.db yet
labels.db-shm    SQLite's index of that log
labels.seq       number of the newest event, to detect that labels.db lacks events
rounds.jsonl     one line per training, with its number of labels
"""

import json
import logging
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from labelahead.errors import InputError
from labelahead.files import file_identity

__all__ = [
    "LabelCounts",
    "MissingLabels",
    "SequenceFile",
    "WatchedFiles",
    "companion_files",
    "copy_to_memory",
    "require_database",
]

BUSY_SECONDS = 5.0  # how long SQLite waits for a lock of another process
log = logging.getLogger("labelahead")


class MissingLabels(InputError):  # noqa: N818 (as `MissingExtra`)
    """A journal lacks labels that another file of its folder refers to.

    Args:
        path: the journal's labels.db.
        lacking: Which labels are missing.
    """

    def __init__(self, path: Path, lacking: str) -> None:
        super().__init__(
            f"{path} {lacking}: answers are missing. Restore the newest {path.name}, with the "
            f"{path.name}-wal that "
            "belongs to it, if there is one. To continue without the missing answers, move "
            "labels.seq, rounds.jsonl and "
            f"every snapshot-*.pt out of {path.parent} first"
        )


def companion_files(path: Path) -> tuple[Path, Path]:
    """Return the paths of SQLite's write-ahead log of a database and of its index."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def require_database(path: Path) -> None:
    """Check that a database exists if its write-ahead log does; call it before SQLite opens it.

    SQLite deletes a log whose database is missing or empty, together with the answers in it.

    Raises:
        InputError: The log is not empty, and the database is missing or empty.
    """
    log_file, _ = companion_files(path)
    if not _size(log_file) or _size(path):
        return
    what = "empty" if path.exists() else "missing"
    raise InputError(
        f"{path} is {what}, but {log_file.name} beside it holds answers; nothing has been "
        "changed: restore the "
        f"{path.name} that it belongs to, or, if that is lost, move {log_file.name} to another "
        "folder and restore a "
        f"copy of {path.name}, or start without one"
    )


def _size(path: Path) -> int:
    """Return the bytes of a file, 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def copy_to_memory(path: Path) -> sqlite3.Connection:
    """Copy a consistent state of a database into memory, also while another process writes to it.

    The folder is not locked, and no file in it is written. The copy uses one short read
    transaction, so that it does not block checkpoints of the writer.

    Raises:
        sqlite3.Error: The file is damaged or cannot be read.
    """
    log_file, _ = companion_files(path)
    before = path.stat()
    if not log_file.exists():
        # No process has it open. In the default mode, SQLite would leave an empty log behind.
        copy = _copy(path, "immutable=1")
        after = path.stat()
        unchanged = (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
        if unchanged and not log_file.exists():
            return copy
        copy.close()  # another process opened it meanwhile
    return _copy(path, "mode=ro")


def _copy(path: Path, option: str) -> sqlite3.Connection:
    # Threads share the connection, as they do for a writable journal.
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        uri = f"{path.resolve().as_uri()}?{option}"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as source:
            source.backup(copy)
    except BaseException:
        copy.close()
        raise
    return copy


class WatchedFiles:
    """Open files that must not be removed or replaced: answers written to them would be lost."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._identities = {path: file_identity(path) for path in paths if path.exists()}

    def find_changed(self) -> Path | None:
        """Return the first file that was removed or replaced, or None."""
        return next(
            (
                path
                for path, identity in self._identities.items()
                if file_identity(path) != identity
            ),
            None,
        )


class SequenceFile:
    """A file with the number of the newest event.

    It is written after the event and not synced: after a crash it may be behind the journal, but
    never ahead of it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "labels.seq"

    def read(self) -> int:
        """Return the number, or 0 if it cannot be read."""
        try:
            return int(self.path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    def write(self, seq: int) -> None:
        """Overwrite the number in place; a failure is logged, since the event itself is safe."""
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.write(handle, b"%020d\n" % seq)
            finally:
                os.close(handle)
        except OSError as error:
            log.warning("%s cannot be written (%s); the labels are safe", self.path, error)


@dataclass(frozen=True)
class LabelCounts:
    """Number of events and labels according to the files beside a journal.

    Read it before the journal, which may grow meanwhile.
    """

    folder: Path
    seq: int
    trained: int  # largest number of labels of a training

    @classmethod
    def read(cls, folder: Path) -> "LabelCounts":
        """Read labels.seq and rounds.jsonl; missing or truncated entries count as 0."""
        return cls(
            folder,
            SequenceFile(folder).read(),
            max((0, *_labels_of_rounds(folder / "rounds.jsonl"))),
        )

    def require(self, seq: int, labelled: int) -> None:
        """Check that a journal is not older than these counts.

        Args:
            seq: Number of its newest event.
            labelled: Number of items that ever had a label.

        Raises:
            MissingLabels: The journal lacks events.
        """
        if seq >= self.seq and labelled >= self.trained:
            return
        lacking = f"ends at event {seq}, but labels.seq refers to event {self.seq}"
        if labelled < self.trained:
            lacking = (
                f"holds labels of {labelled} items, but rounds.jsonl has a training "
                f"with {self.trained} labels"
            )
        raise MissingLabels(self.folder / "labels.db", lacking)


def _labels_of_rounds(path: Path) -> Iterable[int]:
    """Yield the number of labels of each training."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            count = json.loads(line).get("labels")
        except (ValueError, AttributeError):  # cut short by a kill
            continue
        if isinstance(count, int):
            yield count
