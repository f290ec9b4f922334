"""The durable record of a labelling session: who answered what, and when. Survives `kill -9`.

    labels.db        SQLite; events are only ever added, each on the disk before it counts
    labels.db-wal    SQLite's log of transactions, checkpointed into labels.db after every answer
    labels.db-shm    SQLite's index of that log
    labels.seq       number of the newest event, to notice a labels.db that lacks events
    labels.lock      held by the process that has the journal open: there is one at a time

Details: `undo` takes back answers and changes of classes, never new classes, since others may have
used them. Answers to items that were leased to someone else are accepted: a lease is a courtesy of
whoever hands out items, not a right. Leases are in the database, so that a restart keeps them, but
need not survive a power cut. They end by a clock that starts as the wall clock when the journal is
opened and then only advances: setting the wall clock back prolongs none. A process that is forked
while a journal is open inherits the lock: start others by spawning.
"""

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
from labelahead.errors import InputError, StorageError
from labelahead.files import FolderLock, lock_folder
from labelahead.server.journal_files import (
    LabelCounts,
    SequenceFile,
    WatchedFiles,
    companion_files,
    copy_to_memory,
    require_database,
)
from labelahead.server.label_state import Event, LabelState, LabelStateBuilder
from labelahead.server.permissions import create_private, owner_only

__all__ = [
    "MIGRATIONS",
    "Journal",
    "JournalCopy",
    "copy_journal",
    "open_database",
    "read_class_names",
    "read_item_names",
    "read_journal",
]

Damage = type[InputError] | type[StorageError]
log = logging.getLogger("labelahead")
APPLICATION_ID = 0x6C61686C  # "lahl", at a fixed place in the file: says whose it is

EVENT_GUARDS = (  # of the table `events`; they go when it goes
    "CREATE UNIQUE INDEX events_key ON events (key) WHERE key IS NOT NULL",
    """CREATE TRIGGER events_stay BEFORE UPDATE ON events
            BEGIN SELECT RAISE(ABORT, 'events are never changed'); END""",
    """CREATE TRIGGER events_last BEFORE DELETE ON events
            BEGIN SELECT RAISE(ABORT, 'events are never removed'); END""",
)


INITIAL_CHECKS = """
            CHECK ((kind = 'class') = (position IS NULL)),
            CHECK ((kind = 'undo') = (ref IS NOT NULL)),
            CHECK ((kind = 'class') = (text IS NOT NULL))"""
CURRENT_CHECKS = """
            CHECK (kind = 'undo' OR (kind IN ('class', 'rename', 'merge', 'remove')) = (position IS NULL)),
            CHECK ((kind IN ('undo', 'confirm')) = (ref IS NOT NULL)),
            CHECK ((kind IN ('class', 'rename', 'merge')) = (text IS NOT NULL))"""


def _events_table_sql(name: str, kinds: str, labelled: str, rules: str = INITIAL_CHECKS) -> str:
    """The table of events that knows these kinds; labelled: those that come with a label."""
    return f"""CREATE TABLE {name} (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            at TEXT NOT NULL,
            who TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN ({kinds})),
            position INTEGER,
            label INTEGER,
            ref INTEGER,
            key TEXT,
            text TEXT,
            CHECK ((kind IN ({labelled})) = (label IS NOT NULL)),{rules}
        )"""


def _rebuild_events_sql(
    name: str, kinds: str, labelled: str, rules: str = INITIAL_CHECKS
) -> tuple[str, ...]:
    """SQLite changes no CHECK of a table, so it is made anew.

    All that was in `events` goes to another one.
    """
    return (
        _events_table_sql(name, kinds, labelled, rules),
        f"""INSERT INTO {name} (seq, at, who, kind, position, label, ref, key, text)
            SELECT seq, at, who, kind, position, label, ref, key, text FROM events ORDER BY seq""",
        "DROP TABLE events",
        f"ALTER TABLE {name} RENAME TO events",
        *EVENT_GUARDS,
    )


# A step that has been released is never changed: what it makes stands in people's files.
MIGRATIONS: list[tuple[str, ...]] = [
    (
        f"PRAGMA application_id = {APPLICATION_ID}",
        # what the record is about, for whoever reads the file alone
        "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE items (position INTEGER PRIMARY KEY, item TEXT NOT NULL)",
        _events_table_sql(
            "events", "'label', 'skip', 'unsure', 'undo', 'class'", "'label', 'class'"
        ),
        *EVENT_GUARDS,
        # one holder for an item, one item for a person
        """CREATE TABLE leases (
            position INTEGER PRIMARY KEY, who TEXT NOT NULL UNIQUE, until REAL NOT NULL
        )""",
    ),
    _rebuild_events_sql(
        "events_2",
        "'label', 'skip', 'unsure', 'settle', 'undo', 'class'",
        "'label', 'settle', 'class'",
    ),
    _rebuild_events_sql(
        "events_3",
        "'label', 'skip', 'unsure', 'settle', 'keep', 'doubt', 'undo', 'class'",
        "'label', 'settle', 'keep', 'class'",
    ),
    ("ALTER TABLE items ADD COLUMN size INTEGER",),  # bytes of an item's own file
    _rebuild_events_sql(
        "events_5",
        "'label', 'confirm', 'skip', 'unsure', 'settle', 'keep', 'doubt', 'undo', 'class', "
        "'rename', 'merge', 'remove'",
        "'label', 'confirm', 'settle', 'keep', 'class', 'rename', 'merge', 'remove'",
        CURRENT_CHECKS,
    ),
]


def _migrate(db: sqlite3.Connection, migrations: Sequence[tuple[str, ...]]) -> None:
    """Each step whole or not at all: a kill in between leaves the version before."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    for number, statements in enumerate(migrations[version:], version + 1):
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


MAX_NAMES_SHOWN = 5  # items that an error lists
BUSY_SECONDS = 5.0  # seconds for another program that looks into the file
# the wall clock may have been set back while no journal was open
MAX_LEASE_SECONDS_AFTER_RESTART = 600.0
LABEL_CONDITION = "kind IN ('label', 'confirm', 'settle')"


def open_database(
    path: Path, migrations: Sequence[tuple[str, ...]] | None = None
) -> sqlite3.Connection:
    """The database, made if there is none; an error if it is damaged, foreign or too new."""
    migrations = MIGRATIONS if migrations is None else migrations
    require_database(path)
    try:
        create_private(path)
        # Threads share the connection; the journal's lock lets in one at a time.
        db = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            _check_database(db, path, len(migrations))
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
        raise _storage_error(path, error) from error
    return db


def _check_database(db: sqlite3.Connection, path: Path, newest: int) -> None:
    """Refuse what is not ours before anything is written to it."""
    version, application, tables = (
        int(db.execute(question).fetchone()[0])
        for question in (
            "PRAGMA user_version",
            "PRAGMA application_id",
            "SELECT count(*) FROM sqlite_master",
        )
    )
    if (tables or version) and application != APPLICATION_ID:
        raise InputError(
            f"{path} is a database of another program; expected a label record: choose another "
            "folder, or move the file away"
        )
    if version > newest:
        raise InputError(
            f"{path} has version {version}, this labelahead knows versions up to {newest}; update "
            "labelahead"
        )
    verdict = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    if verdict != "ok":
        raise _damage_error(path, verdict)


@dataclass(frozen=True, eq=False)
class JournalCopy:
    """A journal in memory, as it stood at one moment; `Journal` takes it in place of the files."""

    db: sqlite3.Connection
    counts: LabelCounts
    items: list[str]

    def close(self) -> None:
        """Free the memory; a second time does nothing."""
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
            f"{folder} holds no labels (no labels.db); expected the folder of a labelling session"
        )
    counts = LabelCounts.read(Path(folder))  # before the events: whoever labels adds more
    try:
        db = copy_to_memory(path)
        try:
            _check_database(db, path, len(MIGRATIONS))
            _migrate(db, MIGRATIONS)
            return JournalCopy(db, counts, _read_items(db))
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        raise _storage_error(path, error) from error


def read_item_names(folder: str | Path) -> list[str]:
    """The name of every item that the record in a folder knows, by position.

    None if there is no record.
    """
    path = Path(folder) / "labels.db"
    require_database(path)
    if not path.is_file():
        return []
    try:
        with closing(copy_to_memory(path)) as db:
            return _read_items(db)
    except sqlite3.Error:  # whoever opens it says what is wrong
        return []


def read_class_names(folder: str | Path) -> list[str]:
    """Return every name that a class of the record in a folder has or had, oldest first.

    None if there is no record.
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
    except sqlite3.Error:  # whoever opens it says what is wrong
        return []
    spelled: dict[str, str] = {}
    for (name,) in names:
        spelled.setdefault(normalise_name(name), name)
    return list(spelled.values())


def read_journal(folder: str | Path) -> tuple[list[str], list[Event]]:
    """The items by position and all events of the record in a folder, also while somebody writes to
    it.
    """
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
    """A new record is about these data.

    An old one must be. sizes: of files, which may come and go.
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
        # The same rows under other ids: those of a column, where a version before took row numbers.
        # Events name items by position, so that nothing else changes.
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
        why = f"{len(stored)} items then, {len(items)} now"
    elif why is None and about[0] != fingerprint:
        why = "the items have the same names, but another content"
    if why is not None:
        raise InputError(
            f"{folder} holds labels of other data ({why}); choose another folder, or open it with "
            "the data that it was begun with, export its labels and import them here"
        )


def _find_changed_files(
    db: sqlite3.Connection,
    before: Sequence[int | None],
    rows: Sequence[tuple[int, str, int | None]],
) -> str | None:
    """Why the files are not those of the record, if so.

    before: their sizes then; rows: position, name, size now.
    """
    now = rows[: len(before)]
    there = sum(size is not None for _, _, size in now)
    if 2 * there < len(before):
        return f"of its {len(before)} items {there} are there"
    said = f"SELECT DISTINCT position FROM events WHERE {LABEL_CONDITION}"
    labelled = {p for (p,) in db.execute(said)}
    known = [
        row
        for row, size in zip(now, before, strict=True)
        if size is not None and row[2] not in (None, size)
    ]
    names = [name for position, name, _ in known if position in labelled]
    if not names:
        return None
    more = ", ..." if len(names) > MAX_NAMES_SHOWN else ""
    return f"{len(names)} labelled pictures have another content: {', '.join(names[:MAX_NAMES_SHOWN])}{more}"


def _storage_error(
    path: Path, error: sqlite3.Error, damage: Damage = InputError
) -> InputError | StorageError:
    """What SQLite complained of, and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest is a detail of it
    if code in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_ERROR,
    ):  # the last: a table is missing
        return _damage_error(path, str(error), damage)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError(
            f"{path} is held by another program ({error}); close that, and try again"
        )
    return StorageError(
        f"{path} cannot be used ({error}); make sure that the folder can be written to and the "
        "disk has room, and try again: what was accepted before is kept",
        full=code == sqlite3.SQLITE_FULL,
    )


def _damage_error(path: Path, why: str, damage: Damage = InputError) -> InputError | StorageError:
    return damage(
        f"{path} is damaged or no label record ({why}); put back a copy, or save what can be "
        f"saved with `sqlite3 {path.name} .recover`, or begin anew in another folder"
    )


def _rescue_labels(db: sqlite3.Connection, path: Path, changed: Path) -> StorageError:
    """One of the files was moved away, removed or replaced: what was accepted is saved beside it.

    The open connection goes on with the old file, whose place may be nowhere: an answer written
    there would be lost with the process.
    """
    last = db.execute("SELECT max(seq) FROM events").fetchone()[0] or 0
    copy = path.with_name(f"labels-rescued-{last}.db")
    with (
        suppress(sqlite3.Error),
        owner_only(),
    ):  # most likely: the copy is there since the last refusal
        db.execute("VACUUM INTO ?", (str(copy),))
    todo = f"put the right file back as {path.name}"
    if copy.exists():
        every = ", ".join(file.name for file in (path, *companion_files(path)))
        todo = (
            f"all that was accepted is in {copy}: move what is left of {every} away, rename "
            f"the copy to {path.name}"
        )
    return StorageError(
        f"{changed} was removed or replaced while it was open, so nothing more is written; end "
        f"the program, {todo}, "
        "and start again"
    )


EVENT_COLUMNS = ", ".join(f.name for f in fields(Event))
EVENT_PLACEHOLDERS = ", ".join("?" for _ in fields(Event))


def _read_events(db: sqlite3.Connection, which: str, values: tuple[str | int, ...]) -> list[Event]:
    """Events as they stand in the file. which: the end of the query."""
    return [
        Event(*row) for row in db.execute(f"SELECT {EVENT_COLUMNS} FROM events {which}", values)
    ]


def _find_by_key(
    db: sqlite3.Connection, key: str | None, content: tuple[object, ...]
) -> Event | None:
    """The event that came with this key; an error if it is not of this kind, who, position, label.

    content: as many of these as are known.
    """
    events = key and _read_events(db, "WHERE key = ?", (check_name(key, "the key"),))
    if not events:
        return None
    e = events[0]
    if (e.kind, e.who, e.position, e.label)[: len(content)] != content:
        raise InputError(
            f"the key {e.key!r} came with another answer, number {e.seq}; expected a new one for "
            "every answer"
        )
    return e


class Journal:
    """An open record. Threads may share it; close it, or use it in a `with`.

    items: the name of every item, by position. fingerprint: of the data; a record of other data is
    refused. classes: those that the record does not know yet are added, in this order, after those
    that it does; the order in `label_state.classes` is the one that counts. sizes: where items are files,
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
        self._damage: Damage = InputError  # of what was given; but not once it is open
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
                for name in names:
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

    def _open(self) -> LabelCounts:
        """Lock the folder and open the database; return what the files beside it know."""
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
                f"{self.path} is empty, though labels were learnt from here; put back a copy of "
                "it, or begin anew in "
                "another folder"
            )
        counts = LabelCounts.read(self.folder)
        if not self.path.exists():
            counts.require(0, 0)  # before a new file takes the place of the missing one
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
        """Let others open the folder; a second time does nothing."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None
            self._resources.close()

    def add_items(self, items: Sequence[str]) -> None:
        """More items, after those that there are."""
        with self._writing_transaction() as db:
            rows = [(position, item, None) for position, item in enumerate(items, len(self.items))]
            for position, item, _ in rows:
                check_text(item, f"the name of item {position}")
            db.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
        self.items = (*self.items, *items)

    @property
    def is_read_only(self) -> bool:
        """Whether this is a copy that takes no answers."""
        return self._is_read_only

    @property
    def label_state(self) -> LabelState:
        """What the record amounts to; equal to `build_label_state(self.read_events())`."""
        with self._reading_transaction():
            return self._builder.build()

    def read_events(self, since: int = 0) -> list[Event]:
        """All events after number `since`, oldest first."""
        with self._reading_transaction() as db:
            return _read_events(db, "WHERE seq > ? ORDER BY seq", (index(since),))

    def read_event(self, seq: int) -> Event:
        """One event by its number."""
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

        A key that is there already gives the event that it came with, and adds nothing; with
        another content it is refused, since the answer would be lost unsaid.
        """
        who = check_name(who, "the person's name")
        with self._writing_transaction() as db:
            known = _find_by_key(db, more.get("key"), (kind, who, position, label))
            return known or self._insert(
                db, self._builder.make_event(kind, who, position, label, **more)
            )

    def confirm_items(
        self, who: str, positions: Collection[int], label: int, *, key: str | None = None
    ) -> list[Event]:
        """Record that all these items are of one class, each by an event of its own: all of them,
        or none.

        Those that have a label by now are left as they are.
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
                        f"the key {key!r} came with other items; expected a new one for every grid"
                    )
                return before
            first = self._builder.seq + 1
            for position in dict.fromkeys(positions):
                if self._builder.has_label(position):
                    continue
                event = self._builder.make_event(
                    "confirm", who, position, label, ref=first, key=None if events else key
                )
                events.append(self._insert(db, event))
        return events

    def undo_answer(
        self, who: str, seq: int | None = None, *, key: str | None = None
    ) -> Event | None:
        """Take back a person's newest surviving answer or change of classes, or their answer `seq`.

        Again and again goes back further. What was confirmed with the newest answer goes with it.
        None where nothing is left to take back, or where `seq` has been taken back before.
        """
        who = check_name(who, "the person's name")
        with self._writing_transaction() as db:
            before = _find_by_key(db, key, ("undo", who))
            if before is not None and seq is not None and before.ref != index(seq):
                raise InputError(
                    f"the key {key!r} took back answer {before.ref}, not {seq}; expected a new "
                    "one for every answer"
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
        """The class of this name, or that once had it; None: there is none, or no more."""
        with self._reading_transaction():
            return self._builder.find_class(name)

    def add_class(self, who: str, name: str) -> int:
        """The number of a new class, or of the one that has this name already."""
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
        """Rename a class, merge it into the one of that name, or remove it.

        fewest: how many must be left.
        """
        who = check_name(who, "the person's name")
        with self._writing_transaction() as db:
            known = _find_by_key(db, key, (kind, who, None, number))
            if known is not None:
                if normalise_name(known.text or "") != normalise_name(name or ""):
                    raise InputError(
                        f"the key {key!r} came with {known.text!r}; expected a new one for every "
                        "change"
                    )
                return known
            event = self._builder.make_event(kind, who, label=number, text=name, key=key)
            left = sum(c == now for c, now in enumerate(self._builder.class_mapping)) - (
                kind != "rename"
            )
            if left < min_classes:
                raise InputError(
                    f"{kind} one of {left + 1} classes; expected more, so that {min_classes} are left"
                )
            return self._insert(db, event)

    def add_labels(self, labels: Iterable[tuple[int, str, str]]) -> list[Event]:
        """Record many labels (position, class name, person) at once: all of them, or none.

        Classes are made as needed; a name that a class had before means that class. A label that
        this person's answer says already adds nothing, so the same file can be taken in twice.
        Returned are the events added, classes among them.
        """
        added = []
        with self._writing_transaction() as db:
            for position, name, who in labels:
                who = check_name(who, "the person's name")
                name = check_name(name, "the class's name")
                number = self._builder.find_class(name)
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
        """Keep an item for one person; False if another holds it. now: as `leases` takes it.

        A person holds at most one: a new lease replaces the old one, a refused one leaves it.
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
        """Give up what a person holds, if anything."""
        who = check_name(who, "the person's name")
        with self._writing_transaction(durable=False) as db:
            db.execute("DELETE FROM leases WHERE who = ?", (who,))

    def list_leases(self, now: float | None = None) -> dict[int, str]:
        """Who holds which item.

        now: seconds since 1970 on the journal's own clock, which is never set back.
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
                raise StorageError(f"{self.path} has been closed; open the journal anew")
            try:
                self._read_new_events(self._db)
                yield self._db
            except sqlite3.Error as error:
                raise _storage_error(self.path, error, self._damage) from error

    @contextmanager
    def _writing_transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction; what is in memory follows what is on the disk, also after a failure."""
        with self._reading_transaction() as db:
            self._require_writable(db)
            # NORMAL leaves out the wait for the disk, not the order of writing: after a power cut
            # the file is whole, but a last lease may be gone.
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            before = self._builder.seq
            try:
                with _transaction(db):
                    self._read_new_events(db)
                    yield db
            except BaseException:
                if self._builder.seq > before:
                    self._builder = LabelStateBuilder()  # read anew with the next access
                raise
            if durable:
                self._checkpoint(db)
            if self._sequence_file is not None and self._builder.seq > before:
                self._sequence_file.write(self._builder.seq)

    def _require_writable(self, db: sqlite3.Connection) -> None:
        """Raise if an answer that is written now could be lost."""
        if self._is_read_only:
            raise StorageError(
                f"{self.path} was opened to be read; open the session itself to change its labels"
            )
        changed = self._files and self._files.find_changed()
        if changed:
            raise _rescue_labels(db, self.path, changed)
        if self._folder_lock is not None and not self._folder_lock.is_intact():
            raise StorageError(
                f"{self._folder_lock.path} was removed or replaced while it was held, so another "
                "labelahead may use "
                f"{self.folder}; nothing more is written: end both programs, and start one again"
            )

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        """Copy the write-ahead log into labels.db, so that labels.db alone has every answer.

        A program that is reading the file can delay this, and so can a full disk. The answer is
        safe in the log then, and the next one tries again.
        """
        self._not_checkpointed += 1
        if self._not_checkpointed < self._checkpoint_every or self._folder_lock is None:
            return
        try:
            _, frames, copied = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            log.warning(
                "%s: the last answers are safe in %s-wal alone (%s)",
                self.path,
                self.path.name,
                error,
            )
            return
        if frames == copied:
            self._not_checkpointed = 0

    def _now(self) -> float:
        """Return seconds since 1970 by the wall clock as it was when the journal was opened, and
        what passed since.
        """
        return self._clock_offset + time.monotonic()

    def _read_new_events(self, db: sqlite3.Connection) -> None:
        for event in _read_events(db, "WHERE seq > ? ORDER BY seq", (self._builder.seq,)):
            known = len(self._builder.classes)
            label, position = event.label or 0, event.position or 0
            sound = label == known if event.kind == "class" else label < max(known, 1)
            if (
                event.seq != self._builder.seq + 1
                or not sound
                or not 0 <= position < len(self.items)
            ):
                raise self._damage(
                    f"{self.path} is damaged: after event {self._builder.seq} comes {event}; put "
                    "back a copy, or begin anew in another folder"
                )
            self._builder.add_event(event)

    def _check_position(self, position: int) -> None:
        if not 0 <= index(position) < len(self.items):
            raise InputError(
                f"position is {position}; expected a number from 0 to {len(self.items) - 1}"
            )

    def _insert(self, db: sqlite3.Connection, event: Event) -> Event:
        """Write an event, within a transaction."""
        if event.position is not None:
            self._check_position(event.position)
        db.execute(
            f"INSERT INTO events ({EVENT_COLUMNS}) VALUES ({EVENT_PLACEHOLDERS})",
            tuple(vars(event).values()),
        )
        self._builder.add_event(event)
        return event
