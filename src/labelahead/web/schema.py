"""The tables of labels.db, and opening it: checked first, then brought to the present version.

`PRAGMA user_version` counts the migrations a file has been through.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from filelock import FileLock, Timeout

from labelahead.errors import InputError
from labelahead.web.migrations import APPLICATION, MIGRATIONS
from labelahead.web.names import checked_name
from labelahead.web.standing import Event

__all__ = [
    "MIGRATIONS",
    "by_key",
    "claim",
    "connect",
    "hold",
    "identity",
    "read_events",
    "refusal",
    "rescued",
    "write_event",
]

COLUMNS = ", ".join(f.name for f in fields(Event))
HOLES = ", ".join("?" for _ in fields(Event))

WAIT = 5.0  # seconds for another program that looks into the file


def connect(path: Path, migrations: Sequence[tuple[str, ...]] | None = None) -> sqlite3.Connection:
    """The database, made if there is none; an error if it is damaged, foreign or too new."""
    migrations = MIGRATIONS if migrations is None else migrations
    try:
        # Threads share the connection; the book's lock lets in one at a time.
        db = sqlite3.connect(path, timeout=WAIT, isolation_level=None, check_same_thread=False)
        try:
            _check(db, path, len(migrations))
            # Readers never wait for the writer. Where a file system cannot do it, SQLite stays
            # with its rollback journal, which keeps what was committed as well.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA foreign_keys = OFF")
            _migrate(db, migrations)
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        raise refusal(path, error) from error
    return db


def claim(db: sqlite3.Connection, folder: Path, items: Sequence[str], fingerprint: str) -> None:
    """A new record is about these data; an old one must be."""
    about = db.execute("SELECT value FROM about WHERE name = 'fingerprint'").fetchone()
    if about is None:
        db.execute("INSERT INTO about VALUES ('fingerprint', ?)", (fingerprint,))
        db.executemany("INSERT INTO items VALUES (?, ?)", enumerate(items))
        return
    stored = [row[0] for row in db.execute("SELECT item FROM items ORDER BY position")]
    pairs = enumerate(zip(stored, items, strict=False))
    why = next((f"item {i} was {a!r}, now {b!r}" for i, (a, b) in pairs if a != b), None)
    if len(stored) != len(items):
        why = f"{len(stored)} items then, {len(items)} now"
    elif why is None and about[0] != fingerprint:
        why = "the items have the same names, but another content"
    if why is not None:
        raise InputError(
            f"{folder} holds labels of other data ({why}); choose another folder, or open it with "
            "the data that it was begun with, export its labels and import them here"
        )


def hold(folder: Path) -> FileLock:
    """The lock of the folder, or a polite refusal."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Of the process, not of the thread: a server may close in another than it opened in.
        lock = FileLock(folder / "labels.lock", thread_local=False)
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"{folder} is in use by another labelahead; use the page that it serves, or stop it"
        ) from None
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written to ({error.strerror}); choose another folder"
        ) from error
    return lock


def read_events(db: sqlite3.Connection, which: str, values: tuple[str, ...] = ()) -> list[Event]:
    """Events as they stand in the file. which: the end of the query."""
    return [Event(*row) for row in db.execute(f"SELECT {COLUMNS} FROM events {which}", values)]


def write_event(db: sqlite3.Connection, event: Event) -> None:
    """One more row."""
    db.execute(f"INSERT INTO events ({COLUMNS}) VALUES ({HOLES})", tuple(vars(event).values()))


def by_key(db: sqlite3.Connection, key: str | None, content: tuple[object, ...]) -> Event | None:
    """The event that came with this key; an error if it is not of this kind, who, position, label.

    content: as many of these as are known.
    """
    found = key and read_events(db, "WHERE key = ?", (checked_name(key, "the key"),))
    if not found:
        return None
    e = found[0]
    if (e.kind, e.who, e.position, e.label)[: len(content)] != content:
        raise InputError(
            f"the key {e.key!r} came with another answer, number {e.seq}; expected a new one for "
            "every answer"
        )
    return e


def identity(path: Path) -> tuple[int, int] | None:
    """Which file is at this place, if any: by device and number."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def rescued(db: sqlite3.Connection, path: Path) -> InputError:
    """The file was moved away, removed or replaced: what was accepted is saved beside it.

    The open connection goes on with the old file, whose place may be nowhere: an answer written
    there would be lost with the process.
    """
    last = db.execute("SELECT max(seq) FROM events").fetchone()[0] or 0
    copy = path.with_name(f"labels-rescued-{last}.db")
    with suppress(sqlite3.Error):  # most likely: the copy is there since the last refusal
        db.execute("VACUUM INTO ?", (str(copy),))
    kept = f"; all that was accepted is in {copy}" if copy.exists() else ""
    return InputError(
        f"{path} was removed or replaced while it was open, so nothing more is written{kept}: end "
        f"the program, put the right file back as {path.name}, and start again"
    )


def refusal(path: Path, error: sqlite3.Error) -> InputError:
    """What SQLite complained of, and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest is a detail of it
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path, str(error))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return InputError(f"{path} is held by another program ({error}); close that, and try again")
    return InputError(
        f"{path} cannot be used ({error}); make sure that the folder can be written to and the "
        "disk has room, and try again: what was accepted before is kept"
    )


def _damaged(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is damaged or no label record ({why}); put back a copy, or save what can be "
        f"saved with `sqlite3 {path.name} .recover`, or move it away to begin anew"
    )


def _check(db: sqlite3.Connection, path: Path, newest: int) -> None:
    """Refuse what is not ours before anything is written to it."""
    version, application, tables = (
        int(db.execute(question).fetchone()[0])
        for question in (
            "PRAGMA user_version",
            "PRAGMA application_id",
            "SELECT count(*) FROM sqlite_master",
        )
    )
    if (tables or version) and application != APPLICATION:
        raise InputError(
            f"{path} is a database of another program; expected a label record: choose another "
            "folder, or move the file away"
        )
    if version > newest:
        raise InputError(
            f"{path} has version {version}, this labelahead knows versions up to {newest}; "
            "update labelahead"
        )
    found = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    if found != "ok":
        raise _damaged(path, found)


def _migrate(db: sqlite3.Connection, migrations: Sequence[tuple[str, ...]]) -> None:
    """Each step whole or not at all: a kill in between leaves the version before."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    for number, statements in enumerate(migrations[version:], version + 1):
        db.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
