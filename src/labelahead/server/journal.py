"""The durable journal of a labelling session: all events with annotator and time.

    labels.db        SQLite database; events are only appended and written durably before use
    labels.db-wal    SQLite's write-ahead log, checkpointed into labels.db after every answer
    labels.db-shm    SQLite's index of that log
    labels.seq       number of the newest event, to detect that labels.db lacks events
    labels.lock      lock of the one process that has the journal open

Events survive `kill -9`. `undo` reverts answers and changes of classes, but not new classes, since
other annotators may have used them. Answers to items that are leased to another annotator are
accepted: leases only reduce duplicate work. Leases are stored in the database, so that they survive
a restart, but may be lost in a power cut. They expire by a clock that starts at the wall-clock time
at which the journal is opened and is monotonic: setting the wall clock back prolongs no lease. A
process that is forked while a journal is open inherits the lock, so start processes by spawning.
"""

import json
import logging
import math
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, fields
from operator import index
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any

from labelahead.data.classes import check_name, check_text, normalise_name
from labelahead.data.dataset import NONE_OF_THESE, NONE_OF_THESE_NAME
from labelahead.errors import InputError, StorageError
from labelahead.files import FolderLock, lock_folder
from labelahead.server.answer_book import describe_settings
from labelahead.server.journal_files import (
    LabelCounts,
    SequenceFile,
    WatchedFiles,
    companion_files,
    copy_to_memory,
    require_database,
)
from labelahead.server.label_state import (
    CLASS_CHANGE_KINDS,
    Event,
    LabelState,
    LabelStateBuilder,
    build_label_state,
)
from labelahead.server.permissions import create_private, owner_only
from labelahead.tasks import Task

__all__ = [
    "MIGRATIONS",
    "Journal",
    "JournalCopy",
    "copy_journal",
    "open_database",
    "read_class_names",
    "read_class_state",
    "read_item_names",
    "read_journal",
]

Damage = type[InputError] | type[StorageError]
log = logging.getLogger("labelahead")
APPLICATION_ID = (
    0x6C61686C  # "lahl": SQLite stores it in the file header, to identify our databases
)

# The version of the database of 0.2.0, the first release.
FIRST_VERSION = 5

# The first entry creates a database of FIRST_VERSION, and every further one migrates to the next
# version. A released migration is never changed: users have databases that it created.
MIGRATIONS: list[tuple[str, ...]] = [
    (
        f"PRAGMA application_id = {APPLICATION_ID}",
        # the data set that the journal belongs to
        "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        # size: of the item's file, in bytes
        "CREATE TABLE items (position INTEGER PRIMARY KEY, item TEXT NOT NULL, size INTEGER)",
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            at TEXT NOT NULL,
            who TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN (
                'label', 'confirm', 'skip', 'unsure', 'settle', 'keep', 'doubt', 'undo', 'class',
                'rename', 'merge', 'remove')),
            position INTEGER,
            label INTEGER,
            ref INTEGER,
            key TEXT,
            text TEXT,
            CHECK ((kind IN (
                'label', 'confirm', 'settle', 'keep', 'class', 'rename', 'merge', 'remove'))
                = (label IS NOT NULL)),
            CHECK (kind = 'undo'
                OR (kind IN ('class', 'rename', 'merge', 'remove')) = (position IS NULL)),
            CHECK ((kind IN ('undo', 'confirm')) = (ref IS NOT NULL)),
            CHECK ((kind IN ('class', 'rename', 'merge')) = (text IS NOT NULL))
        )""",
        "CREATE UNIQUE INDEX events_key ON events (key) WHERE key IS NOT NULL",
        """CREATE TRIGGER events_stay BEFORE UPDATE ON events
            BEGIN SELECT RAISE(ABORT, 'events are never changed'); END""",
        """CREATE TRIGGER events_last BEFORE DELETE ON events
            BEGIN SELECT RAISE(ABORT, 'events are never removed'); END""",
        # an item is leased to one annotator, and an annotator has one item
        """CREATE TABLE leases (
            position INTEGER PRIMARY KEY, who TEXT NOT NULL UNIQUE, until REAL NOT NULL
        )""",
    ),
    # Labels may be −2, "none of these", which earlier versions would take for a class.
    (),
    # Tasks other than one class per item: the event `task`, and labels with the written answer.
    (
        "ALTER TABLE events RENAME TO earlier_events",
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            at TEXT NOT NULL,
            who TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN (
                'label', 'confirm', 'skip', 'unsure', 'settle', 'keep', 'doubt', 'undo', 'class',
                'rename', 'merge', 'remove', 'task')),
            position INTEGER,
            label INTEGER,
            ref INTEGER,
            key TEXT,
            text TEXT,
            CHECK ((kind IN (
                'label', 'confirm', 'settle', 'keep', 'class', 'rename', 'merge', 'remove'))
                = (label IS NOT NULL)),
            CHECK (kind = 'undo'
                OR (kind IN ('class', 'rename', 'merge', 'remove', 'task')) = (position IS NULL)),
            CHECK ((kind IN ('undo', 'confirm')) = (ref IS NOT NULL)),
            CHECK ((kind IN ('class', 'rename', 'merge', 'task')) = (text IS NOT NULL)
                OR kind IN ('label', 'settle', 'keep'))
        )""",
        "INSERT INTO events SELECT * FROM earlier_events",
        "DROP TABLE earlier_events",
        "CREATE UNIQUE INDEX events_key ON events (key) WHERE key IS NOT NULL",
        """CREATE TRIGGER events_stay BEFORE UPDATE ON events
            BEGIN SELECT RAISE(ABORT, 'events are never changed'); END""",
        """CREATE TRIGGER events_last BEFORE DELETE ON events
            BEGIN SELECT RAISE(ABORT, 'events are never removed'); END""",
    ),
]


def _newest_version(migrations: Sequence[tuple[str, ...]]) -> int:
    return FIRST_VERSION + len(migrations) - 1


def _migrate(db: sqlite3.Connection, migrations: Sequence[tuple[str, ...]]) -> None:
    """Run the missing migrations, each in one transaction, so that a kill leaves a valid version."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    done = version - FIRST_VERSION + 1 if version else 0
    for number, statements in enumerate(migrations[done:], FIRST_VERSION + done):
        with _transaction(db):
            for statement in statements:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


MAX_NAMES_SHOWN = 5  # of items in an error message
BUSY_SECONDS = 5.0  # seconds for another program that looks into the file
# the wall clock may have been set back while no journal was open
MAX_LEASE_SECONDS_AFTER_RESTART = 600.0
LABEL_CONDITION = "kind IN ('label', 'confirm', 'settle')"


def open_database(
    path: Path, migrations: Sequence[tuple[str, ...]] | None = None
) -> sqlite3.Connection:
    """Open the database, and create or migrate it if necessary.

    Raises:
        InputError: It is damaged, of another program, or of a newer version.
    """
    migrations = MIGRATIONS if migrations is None else migrations
    require_database(path)
    try:
        create_private(path)
        # Threads share the connection; the journal's lock serialises them.
        db = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            _check_database(db, path, _newest_version(migrations))
            # In WAL mode, readers never wait for the writer. If the file system does not support it,
            # SQLite keeps its rollback journal, which is durable as well.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA foreign_keys = OFF")
            _migrate(db, migrations)
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        raise _storage_error(path, error) from error
    return db


def _check_database(db: sqlite3.Connection, path: Path, newest: int) -> None:
    """Raise if the database is not a valid journal, before anything is written to it."""
    version, application, tables = (
        int(db.execute(statement).fetchone()[0])
        for statement in (
            "PRAGMA user_version",
            "PRAGMA application_id",
            "SELECT count(*) FROM sqlite_master",
        )
    )
    if (tables or version) and application != APPLICATION_ID:
        raise InputError(
            f"{path} is a database of another program; expected a labelahead journal: choose "
            "another folder, or move the file away"
        )
    if version > newest:
        raise InputError(
            f"{path} has version {version}, and this labelahead supports versions up to {newest}; "
            "update labelahead"
        )
    if 0 < version < FIRST_VERSION:
        raise InputError(
            f"{path} has version {version}, from before the first release (0.2.0); expected "
            f"version {FIRST_VERSION}: export its labels with the labelahead that wrote it, and "
            "import them into a new folder"
        )
    verdict = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    if verdict != "ok":
        raise _damage_error(path, verdict)


@dataclass(frozen=True, eq=False)
class JournalCopy:
    """A copy of a journal in memory; `Journal` can read it instead of the files."""

    db: sqlite3.Connection
    counts: LabelCounts
    items: list[str]

    def close(self) -> None:
        """Free the memory; closing twice has no effect."""
        self.db.close()


def copy_journal(folder: str | Path) -> JournalCopy:
    """Copy the journal in a folder into memory, also while a server writes to it; nothing in the
    folder is changed.

    Raises:
        InputError: there is no journal, or it is damaged, foreign or of a newer version.
    """
    path = Path(folder) / "labels.db"
    require_database(path)
    if not path.is_file():
        raise InputError(
            f"{folder} holds no labels (labels.db is missing); expected the folder of a labelling "
            "session: label items first, or name the session's folder with --out"
        )
    counts = LabelCounts.read(Path(folder))  # read before the events, which may grow meanwhile
    try:
        db = copy_to_memory(path)
        try:
            _check_database(db, path, _newest_version(MIGRATIONS))
            _migrate(db, MIGRATIONS)
            return JournalCopy(db, counts, _read_items(db))
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        raise _storage_error(path, error) from error


def read_item_names(folder: str | Path) -> list[str]:
    """Return the item names of the journal in a folder, by position; empty if there is none."""
    path = Path(folder) / "labels.db"
    require_database(path)
    if not path.is_file():
        return []
    try:
        with closing(copy_to_memory(path)) as db:
            return _read_items(db)
    except sqlite3.Error:  # opening the journal reports the problem
        return []


def read_class_names(folder: str | Path) -> list[str]:
    """Return every current and former class name of the journal in a folder, oldest first.

    The list is empty if there is no journal.
    """
    path = Path(folder) / "labels.db"
    require_database(path)
    if not path.is_file():
        return []
    try:
        with closing(copy_to_memory(path)) as db:
            names = db.execute(
                "SELECT text FROM events WHERE kind IN ('class', 'rename') ORDER BY seq"
            ).fetchall()
    except sqlite3.Error:  # opening the journal reports the problem
        return []
    spelled: dict[str, str] = {}
    for (name,) in names:
        spelled.setdefault(normalise_name(name), name)
    return list(spelled.values())


def read_class_state(folder: str | Path) -> LabelState:
    """Return the classes of the journal in a folder, after all their changes; without labels.

    There are none if there is no journal.
    """
    path = Path(folder) / "labels.db"
    if not path.is_file():
        return build_label_state(())
    require_database(path)
    kinds = ", ".join(f"'{kind}'" for kind in ("task", "class", *CLASS_CHANGE_KINDS, "undo"))
    try:
        with closing(copy_to_memory(path)) as db:
            events = _read_events(db, f"WHERE kind IN ({kinds}) ORDER BY seq", ())
    except sqlite3.Error:  # opening the journal reports the problem
        events = []
    return build_label_state(events)


def read_journal(folder: str | Path) -> tuple[list[str], list[Event]]:
    """Return item names and all events of the journal in a folder, also while a server writes."""
    with closing(copy_journal(folder)) as copy:
        return copy.items, _read_events(copy.db, "ORDER BY seq", ())


def _read_items(db: sqlite3.Connection) -> list[str]:
    return [str(row[0]) for row in db.execute("SELECT item FROM items ORDER BY position")]


def _check_data(
    db: sqlite3.Connection,
    folder: Path,
    items: Sequence[str],
    fingerprint: str,
    sizes: Sequence[int | None] | None,
) -> None:
    """Store the items in a new journal, or check that an existing journal is of the same data.

    sizes: file sizes, if items are files; such items may be added or removed.
    """
    about = db.execute("SELECT value FROM about WHERE name = 'fingerprint'").fetchone()
    rows = [
        (i, item, size)
        for i, (item, size) in enumerate(zip(items, sizes or [None] * len(items), strict=True))
    ]
    if about is None:
        db.execute("INSERT INTO about VALUES ('fingerprint', ?)", (fingerprint,))
        db.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
        return
    stored = db.execute("SELECT item, size FROM items ORDER BY position").fetchall()
    pairs = enumerate(zip(stored, items, strict=False))
    why = next((f"item {i} was {a!r}, now {b!r}" for i, ((a, _), b) in pairs if a != b), None)
    if sizes is None and why is not None and len(stored) == len(items) and about[0] == fingerprint:
        # The same rows under other ids: an id column, where an earlier version used row numbers.
        # Events refer to items by position, so nothing else changes.
        db.executemany(
            "UPDATE items SET item = ? WHERE position = ?", [(item, i) for i, item, _ in rows]
        )
        return
    if sizes is not None and why is None and len(stored) <= len(items):
        why = _find_changed_files(db, [size for _, size in stored], rows)
        if why is None:
            db.executemany(
                "UPDATE items SET size = ? WHERE position = ?",
                [(s, i) for i, _, s in rows if s is not None],
            )
            db.executemany("INSERT INTO items VALUES (?, ?, ?)", rows[len(stored) :])
    elif len(stored) != len(items):
        why = f"it has {len(stored)} items, the data {len(items)}"
    elif why is None and about[0] != fingerprint:
        why = "the items have the same names, but different content"
    if why is not None:
        raise InputError(
            f"{folder} holds labels of other data ({why}); choose another folder, or open it with "
            "its original data, export the labels and import them here"
        )


def _find_changed_files(
    db: sqlite3.Connection,
    recorded: Sequence[int | None],
    rows: Sequence[tuple[int, str, int | None]],
) -> str | None:
    """Return why the files are not those of the journal, or None.

    Args:
        db: Database of the journal.
        before: File sizes in the journal.
        rows: Position, name and current size of each item.
    """
    now = rows[: len(recorded)]
    existing_count = sum(size is not None for _, _, size in now)
    if 2 * existing_count < len(recorded):
        return f"only {existing_count} of its {len(recorded)} items exist"
    labelled_positions = f"SELECT DISTINCT position FROM events WHERE {LABEL_CONDITION}"
    labelled = {p for (p,) in db.execute(labelled_positions)}
    known = [
        row
        for row, size in zip(now, recorded, strict=True)
        if size is not None and row[2] not in (None, size)
    ]
    names = [name for position, name, _ in known if position in labelled]
    if not names:
        return None
    more = ", ..." if len(names) > MAX_NAMES_SHOWN else ""
    return f"{len(names)} labelled pictures have different content: {', '.join(names[:MAX_NAMES_SHOWN])}{more}"


def _storage_error(
    path: Path, error: sqlite3.Error, damage: Damage = InputError
) -> InputError | StorageError:
    """Return an error that explains a failure of SQLite and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the higher bits are details
    if code in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_ERROR,
    ):  # SQLITE_ERROR: a table is missing
        return _damage_error(path, str(error), damage)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError(
            f"{path} is locked by another program ({error}); close it, and try again"
        )
    return StorageError(
        f"{path} cannot be used ({error}); make sure that the folder can be written to and the "
        "disk has space, and try again: all accepted answers are safe",
        full=code == sqlite3.SQLITE_FULL,
    )


def _damage_error(path: Path, why: str, damage: Damage = InputError) -> InputError | StorageError:
    return damage(
        f"{path} is damaged or not a journal ({why}); restore a copy, or recover the data "
        f"with `sqlite3 {path.name} .recover`, or start again in another folder"
    )


def _rescue_labels(db: sqlite3.Connection, path: Path, changed: Path) -> StorageError:
    """Save all answers to a new file after a database file was moved, removed or replaced.

    The open connection still uses the old file, which may have no name any more: an answer written
    to it would be lost when the process ends.

    Returns:
        The error to raise.
    """
    last = db.execute("SELECT max(seq) FROM events").fetchone()[0] or 0
    copy = path.with_name(f"labels-rescued-{last}.db")
    with (
        suppress(sqlite3.Error),
        owner_only(),
    ):  # usually because an earlier call has written the copy
        db.execute("VACUUM INTO ?", (str(copy),))
    todo = f"restore the original file as {path.name}"
    if copy.exists():
        every = ", ".join(file.name for file in (path, *companion_files(path)))
        todo = (
            f"all accepted answers are in {copy}: move the remaining files of {every} away, "
            f"rename the copy to {path.name}"
        )
    return StorageError(
        f"{changed} was removed or replaced while it was open, so no more answers are accepted; "
        f"stop the program, {todo}, and start again"
    )


EVENT_COLUMNS = ", ".join(f.name for f in fields(Event))
EVENT_PLACEHOLDERS = ", ".join("?" for _ in fields(Event))


def _read_events(db: sqlite3.Connection, which: str, values: tuple[str | int, ...]) -> list[Event]:
    """Read events. which: the end of the SQL query."""
    return [
        Event(*row) for row in db.execute(f"SELECT {EVENT_COLUMNS} FROM events {which}", values)
    ]


def _find_by_key(
    db: sqlite3.Connection, key: str | None, content: tuple[object, ...]
) -> Event | None:
    """Return the event with this key, or None.

    Args:
        db: The database.
        key: Key made by the client.
        content: Expected kind, annotator, position and label; trailing values may be left out.

    Raises:
        InputError: The event with this key has other content.
    """
    events = key and _read_events(db, "WHERE key = ?", (check_name(key, "the key"),))
    if not events:
        return None
    e = events[0]
    if (e.kind, e.who, e.position, e.label)[: len(content)] != content:
        raise InputError(
            f"the key {e.key!r} was used for another answer, number {e.seq}; expected a new key "
            "for every answer"
        )
    return e


def _describe_task(settings: dict[str, Any] | None) -> str:
    """Return name and settings of a task for a message."""
    if settings is None:
        return "classes"
    more = [f"{k} {v}" for k, v in settings.items() if k != "name" and v not in ("", None)]
    return f"{settings['name']} ({', '.join(more)})" if more else str(settings["name"])


class Journal:
    """An open journal. Threads may share it; close it, or use it in a `with` statement.

    items: the name of every item, by position. fingerprint: of the data; a journal of other data is
    refused. classes: names that the journal does not have yet are added, in this order, after those
    that it does; the order in `label_state.classes` is the one that counts. task: what labels are, if
    not one class per item; a journal of another task is refused. sizes: where items are files,
    the bytes of each, None for one that is gone: new ones may have been added at the end, and only
    those with labels must be what they were.

    copy: what `copy_journal` made; the journal then only reads, and holds neither lock nor file.
    checkpoint_every: transactions with answers between two checkpoints; from 1 on, labels.db alone
    has every answer.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        items: Sequence[str],
        fingerprint: str,
        classes: Sequence[str] = (),
        task: Task | None = None,
        sizes: Sequence[int | None] | None = None,
        copy: JournalCopy | None = None,
        checkpoint_every: int = 1,
    ) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "labels.db"
        self.items = tuple(items)
        names = [check_name(name, "the name of a class") for name in classes]
        for position, item in enumerate(self.items):
            check_text(item, f"the name of item {position}")
        self._lock = RLock()
        self._builder = LabelStateBuilder()
        self._db: sqlite3.Connection | None = None
        self._files: WatchedFiles | None = None
        self._folder_lock: FolderLock | None = None
        self._sequence_file: SequenceFile | None = None
        self._checkpoint_every = checkpoint_every
        self._not_checkpointed = 0
        self._damage: Damage = (
            InputError  # an input error while opening, a storage error afterwards
        )
        self._is_read_only = False
        self._clock_offset = time.time() - time.monotonic()
        self._resources = ExitStack()
        try:
            counts = self._open() if copy is None else copy.counts
            self._db = self._db if copy is None else copy.db
            with self._writing_transaction() as db:
                labelled = int(
                    db.execute(
                        f"SELECT count(DISTINCT position) FROM events WHERE {LABEL_CONDITION}"
                    ).fetchone()[0]
                )
                counts.require(self._builder.seq, labelled)
                _check_data(db, self.folder, self.items, fingerprint, sizes)
                db.execute(
                    "UPDATE leases SET until = min(until, ?)",
                    (self._now() + MAX_LEASE_SECONDS_AFTER_RESTART,),
                )
                self._start_task(db, describe_settings(task))
                for name in names:
                    if normalise_name(name) == NONE_OF_THESE_NAME:
                        continue  # the answer of the page
                    if not self._builder.has_ever_named(name):
                        self._insert(db, self._builder.make_event("class", "", text=name))
            self._damage = StorageError
            self._is_read_only = copy is not None
            if copy is None:
                self._files = WatchedFiles((self.path, *companion_files(self.path)))
                self._sequence_file = SequenceFile(self.folder)
        except BaseException:
            self.close()
            raise

    def _start_task(self, db: sqlite3.Connection, settings: dict[str, Any] | None) -> None:
        """Record the task of a new journal, or check that the journal is of this task."""
        known = self._builder.session_task.settings
        if settings == known:
            return
        if self._builder.seq:
            raise InputError(
                f"{self.folder} holds labels of the task {_describe_task(known)}, not "
                f"{_describe_task(settings)}; expected the same task: choose another folder, or "
                "open it as before"
            )
        text = json.dumps(settings, ensure_ascii=False)
        self._insert(db, self._builder.make_event("task", "", text=text))

    def _open(self) -> LabelCounts:
        """Lock the folder and open the database; return the label counts of the other files."""
        instead = "use the page that it serves, or stop it"
        self._folder_lock = self._resources.enter_context(
            lock_folder(self.folder, "labels.lock", holder="labelahead", advice=instead)
        )
        require_database(self.path)
        if (
            self.path.exists()
            and not self.path.stat().st_size
            and (self.folder / "rounds.jsonl").exists()
        ):
            raise InputError(
                f"{self.path} is empty, but models were trained on its labels; restore a copy of "
                "it, or start again in "
                "another folder"
            )
        counts = LabelCounts.read(self.folder)
        if not self.path.exists():
            counts.require(0, 0)  # before a new file replaces the missing one
        self._db = open_database(self.path)
        return counts

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and release the lock; closing twice has no effect."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None
            self._resources.close()

    def add_items(self, items: Sequence[str]) -> None:
        """Append items."""
        with self._writing_transaction() as db:
            rows = [(position, item, None) for position, item in enumerate(items, len(self.items))]
            for position, item, _ in rows:
                check_text(item, f"the name of item {position}")
            db.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
        self.items = (*self.items, *items)

    @property
    def is_read_only(self) -> bool:
        """Return whether this is a copy that accepts no answers."""
        return self._is_read_only

    @property
    def label_state(self) -> LabelState:
        """What the record amounts to; equal to `build_label_state(self.read_events())`."""
        with self._reading_transaction():
            return self._builder.build()

    def read_events(self, since: int = 0) -> list[Event]:
        """Return all events after number `since`, oldest first."""
        with self._reading_transaction() as db:
            return _read_events(db, "WHERE seq > ? ORDER BY seq", (index(since),))

    def read_event(self, seq: int) -> Event:
        """Return an event by its number."""
        with self._reading_transaction() as db:
            return _read_events(db, "WHERE seq = ?", (index(seq),))[0]

    def add_event(
        self,
        kind: str,
        who: str,
        position: int | None = None,
        label: int | None = None,
        **more: Any,
    ) -> Event:
        """Record one event, of what `LabelStateBuilder.next` takes: when this returns, it is on the disk.

        If an event with the same key exists, it is returned and nothing is added. If its content
        differs, an error is raised, since the new answer would be lost silently.
        """
        who = check_name(who, "the person's name")
        with self._writing_transaction() as db:
            value = more.get("value")
            given = label if value is None else self._builder.read_value(value)
            known = _find_by_key(db, more.get("key"), (kind, who, position, given))
            return known or self._insert(
                db, self._builder.make_event(kind, who, position, label, **more)
            )

    def confirm_items(
        self,
        who: str,
        positions: Collection[int],
        label: int,
        *,
        key: str | None = None,
        replace_none: bool = False,
        replace: bool = False,
    ) -> list[Event]:
        """Record that all these items are of one class, with one event each, in one transaction.

        Items that have a label are left unchanged; replace_none: except "none of these"; replace:
        except those whose label differs.
        """
        who, events = check_name(who, "the person's name"), list[Event]()
        with self._writing_transaction() as db:
            known = _find_by_key(db, key, ("confirm", who))
            if known is not None:
                before = _read_events(
                    db, "WHERE kind = 'confirm' AND ref = ? ORDER BY seq", (known.seq,)
                )
                if not {(e.position, e.label) for e in before} <= {
                    (index(p), label) for p in positions
                }:
                    raise InputError(
                        f"the key {key!r} came with other items; expected a new key for every grid"
                    )
                return before
            first = self._builder.seq + 1
            for position in dict.fromkeys(positions):
                label_now = self._builder.find_label(position)
                replaced = (replace_none and label_now == NONE_OF_THESE) or (
                    replace and label_now != label
                )
                if label_now is not None and not replaced:
                    continue
                event = self._builder.make_event(
                    "confirm", who, position, label, ref=first, key=None if events else key
                )
                events.append(self._insert(db, event))
        return events

    def undo_answer(
        self, who: str, seq: int | None = None, *, key: str | None = None
    ) -> Event | None:
        """Undo an annotator's newest valid answer or change of classes, or their answer `seq`.

        Repeated calls undo earlier answers. A bulk confirmation is undone as a whole.

        Returns:
            The event of the undo, or None if nothing is left to undo or `seq` is already undone.
        """
        who = check_name(who, "the person's name")
        with self._writing_transaction() as db:
            before = _find_by_key(db, key, ("undo", who))
            if before is not None and seq is not None and before.ref != index(seq):
                raise InputError(
                    f"the key {key!r} was used to undo answer {before.ref}, not {seq}; expected a "
                    "new key for every request"
                )
            newest = self._builder.find_newest_answer(who) if seq is None else index(seq)
            if before or newest is None:
                return before
            if not self._builder.is_undoable(who, newest):
                return None
            event = self._insert(db, self._builder.make_event("undo", who, ref=newest, key=key))
            for other in self._builder.find_batch(who, newest)[1:] if seq is None else ():
                self._insert(db, self._builder.make_event("undo", who, ref=other))
            return event

    def find_class(self, name: str) -> int | None:
        """Return the number of the class that has or had this name; None if there is none."""
        with self._reading_transaction():
            return self._builder.find_class(name)

    def find_label(self, value: Any) -> int:
        """Return the label that an answer has or would get: its class number or its code.

        Raises:
            InputError: It is no answer.
        """
        with self._reading_transaction():
            return self._builder.read_value(value)

    def add_class(self, who: str, name: str) -> int:
        """Add a class, unless one has this name, and return its number."""
        who, name = check_name(who, "the person's name"), check_name(name, "the class's name")
        with self._writing_transaction() as db:
            number = self._builder.class_numbers.get(normalise_name(name))
            if number is None:
                number = len(self._builder.classes)
                self._insert(db, self._builder.make_event("class", who, text=name))
            return number

    def change_class(
        self,
        who: str,
        kind: str,
        number: int,
        name: str | None = None,
        *,
        key: str | None = None,
        min_classes: int = 1,
    ) -> Event:
        """Rename a class, merge it into the class `name`, or remove it.

        min_classes: number of classes that must remain.
        """
        who = check_name(who, "the person's name")
        with self._writing_transaction() as db:
            known = _find_by_key(db, key, (kind, who, None, number))
            if known is not None:
                if normalise_name(known.text or "") != normalise_name(name or ""):
                    raise InputError(
                        f"the key {key!r} came with {known.text!r}; expected a new key for every "
                        "change"
                    )
                return known
            event = self._builder.make_event(kind, who, label=number, text=name, key=key)
            left = sum(c == now for c, now in enumerate(self._builder.class_mapping)) - (
                kind != "rename"
            )
            if left < min_classes:
                raise InputError(
                    f"{kind} one of {left + 1} classes; at least {min_classes} classes must "
                    "remain: add one first"
                )
            return self._insert(db, event)

    def add_values(
        self, labels: Iterable[tuple[int, Any, str]], new_classes: Sequence[str] = ()
    ) -> list[Event]:
        """Record many answers (position, answer, annotator) of a task in one transaction.

        An answer that equals the annotator's current one adds nothing.

        Args:
            labels: Answers as `Task.parse` reads them.
            new_classes: Classes that are added before.

        Returns:
            The added events, including new classes.
        """
        added = []
        with self._writing_transaction() as db:
            for name in new_classes:
                added.append(self._insert(db, self._builder.make_event("class", "", text=name)))
            for position, value, who in labels:
                who = check_name(who, "the person's name")
                now = self._builder.find_answer(who, position)
                if now is None or now.label != self._builder.read_value(value):
                    event = self._builder.make_event("label", who, position, value=value)
                    added.append(self._insert(db, event))
        return added

    def add_labels(self, labels: Iterable[tuple[int, str, str]]) -> list[Event]:
        """Record many labels (position, class name, annotator) in one transaction.

        Missing classes are added; a former name of a class refers to that class, and "none of
        these" to the answer, unless a class has that name. A label that equals the annotator's
        current answer adds nothing, so that a file can be imported twice.

        Returns:
            The added events, including new classes.
        """
        added = []
        with self._writing_transaction() as db:
            for position, name, who in labels:
                who = check_name(who, "the person's name")
                name = check_name(name, "the class's name")
                number = self._builder.find_class(name)
                if number is None and normalise_name(name) == NONE_OF_THESE_NAME:
                    number = NONE_OF_THESE
                if number is None:
                    number = len(self._builder.classes)
                    added.append(
                        self._insert(db, self._builder.make_event("class", who, text=name))
                    )
                now = self._builder.find_answer(who, position)
                if now is None or now.label != number:
                    added.append(
                        self._insert(db, self._builder.make_event("label", who, position, number))
                    )
        return added

    def lease_item(
        self, position: int, who: str, seconds: float, *, now: float | None = None
    ) -> bool:
        """Lease an item to an annotator; return False if it is leased to another one.

        An annotator has at most one lease: a new one replaces the old one.
        """
        who = check_name(who, "the person's name")
        self._check_position(position)
        now = self._now() if now is None else now
        if not (seconds > 0 and math.isfinite(now + seconds)):
            raise InputError(f"a lease of {seconds} seconds; expected a positive number")
        with self._writing_transaction(durable=False) as db:
            db.execute("DELETE FROM leases WHERE until <= ?", (now,))
            held = db.execute("SELECT who FROM leases WHERE position = ?", (position,)).fetchone()
            if held is not None and held[0] != who:
                return False
            db.execute("DELETE FROM leases WHERE who = ?", (who,))
            db.execute("INSERT INTO leases VALUES (?, ?, ?)", (position, who, now + seconds))
            return True

    def release_lease(self, who: str) -> None:
        """End the lease of an annotator, if there is one."""
        who = check_name(who, "the person's name")
        with self._writing_transaction(durable=False) as db:
            db.execute("DELETE FROM leases WHERE who = ?", (who,))

    def list_leases(self, now: float | None = None) -> dict[int, str]:
        """Return the annotator of each leased item, by position.

        now: seconds since 1970 on the journal's monotonic clock.
        """
        now = self._now() if now is None else now
        with self._reading_transaction() as db:
            return dict(
                db.execute("SELECT position, who FROM leases WHERE until > ?", (now,)).fetchall()
            )

    @contextmanager
    def _reading_transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._db is None:
                raise StorageError(f"{self.path} has been closed; open the journal again")
            try:
                self._read_new_events(self._db)
                yield self._db
            except sqlite3.Error as error:
                raise _storage_error(self.path, error, self._damage) from error

    @contextmanager
    def _writing_transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Run one transaction; the state in memory matches the database even after a failure."""
        with self._reading_transaction() as db:
            self._require_writable(db)
            # NORMAL does not wait for the disk, but keeps the order of writes: after a power cut the
            # database is intact, but the last lease may be lost.
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            before = self._builder.seq
            try:
                with _transaction(db):
                    self._read_new_events(db)
                    yield db
            except BaseException:
                if self._builder.seq > before:
                    self._builder = LabelStateBuilder()  # rebuilt with the next access
                raise
            if durable:
                self._checkpoint(db)
            if self._sequence_file is not None and self._builder.seq > before:
                self._sequence_file.write(self._builder.seq)

    def _require_writable(self, db: sqlite3.Connection) -> None:
        """Raise if an answer written now could be lost."""
        if self._is_read_only:
            raise StorageError(
                f"{self.path} was opened read-only; open the session itself to change its labels"
            )
        changed = self._files and self._files.find_changed()
        if changed:
            raise _rescue_labels(db, self.path, changed)
        if self._folder_lock is not None and not self._folder_lock.is_intact():
            raise StorageError(
                f"{self._folder_lock.path} was removed or replaced while it was locked, so another "
                "labelahead may use "
                f"{self.folder}; no more answers are accepted: stop both programs, and start one "
                "again"
            )

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        """Copy the write-ahead log into labels.db, so that labels.db alone contains every answer.

        A program that reads the file or a full disk can delay this. The answer is then safe in the
        log, and the next transaction tries again.
        """
        self._not_checkpointed += 1
        if self._not_checkpointed < self._checkpoint_every or self._folder_lock is None:
            return
        try:
            _, frames, copied = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            log.warning(
                "%s: the last answers are safe, but only in %s-wal (%s)",
                self.path,
                self.path.name,
                error,
            )
            return
        if frames == copied:
            self._not_checkpointed = 0

    def _now(self) -> float:
        """Return seconds since 1970 by the wall clock at opening plus the monotonic time since."""
        return self._clock_offset + time.monotonic()

    def _read_new_events(self, db: sqlite3.Connection) -> None:
        for event in _read_events(db, "WHERE seq > ? ORDER BY seq", (self._builder.seq,)):
            position = event.position or 0
            sound = self._builder.has_valid_label(event)
            if (
                event.seq != self._builder.seq + 1
                or not sound
                or not 0 <= position < len(self.items)
            ):
                raise self._damage(
                    f"{self.path} is damaged: after event {self._builder.seq} comes {event}; "
                    "restore a copy, or start again in another folder"
                )
            self._builder.add_event(event)

    def _check_position(self, position: int) -> None:
        if not 0 <= index(position) < len(self.items):
            raise InputError(
                f"position is {position}; expected a number from 0 to {len(self.items) - 1}"
            )

    def _insert(self, db: sqlite3.Connection, event: Event) -> Event:
        """Write an event within a transaction."""
        if event.position is not None:
            self._check_position(event.position)
        db.execute(
            f"INSERT INTO events ({EVENT_COLUMNS}) VALUES ({EVENT_PLACEHOLDERS})",
            tuple(vars(event).values()),
        )
        self._builder.add_event(event)
        return event
