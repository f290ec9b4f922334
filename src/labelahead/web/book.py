"""The durable record of a labelling session: who answered what, and when. Survives `kill -9`.

    labels.db      SQLite; events are only ever added, each on the disk before it counts
    labels.lock    held by the process that has the book open: there is one at a time

Details: `undo` takes back answers, never classes, since others may have used them. Answers to
items that were leased to someone else are accepted: a lease is a courtesy of whoever hands out
items, not a right. Leases are in the database, so that a restart keeps them, but need not survive
a power cut; they end by the wall clock. A process that is forked while a book is open inherits the
lock: start others by spawning.
"""

import math
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from pathlib import Path
from threading import RLock
from types import TracebackType

from labelahead.errors import InputError
from labelahead.web.names import alike, check_text, checked_name
from labelahead.web.schema import (
    MIGRATIONS,
    by_key,
    claim,
    connect,
    hold,
    identity,
    read_events,
    refusal,
    rescued,
    write_event,
)
from labelahead.web.standing import Agreement, Answer, Event, Standing, Tally, fold

__all__ = ["Agreement", "Answer", "Book", "Event", "Standing", "fold"]


class Book:
    """An open record. Threads may share it; close it, or use it in a `with`.

    items: the name of every item, by position. fingerprint: of the data; a record of other data is
    refused. classes: those that the record does not know yet are added, in this order, after those
    that it does; the order in `standing.classes` is the one that counts.
    """

    schema_version = len(MIGRATIONS)

    def __init__(
        self,
        folder: str | Path,
        *,
        items: Sequence[str],
        fingerprint: str,
        classes: Sequence[str] = (),
    ) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "labels.db"
        self.items = tuple(items)
        names = [checked_name(name, "the name of a class") for name in classes]
        for position, item in enumerate(self.items):
            check_text(item, f"the name of item {position}")
        self._lock = RLock()
        self._tally = Tally()
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._held = hold(self.folder)
        try:
            self._db = connect(self.path)
            self._file = identity(self.path)
            with self._writing() as db:
                claim(db, self.folder, self.items, fingerprint)
                for name in names:
                    if alike(name) not in self._tally.numbers:
                        self._insert("class", "", text=name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Book":
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
            self._held.release()

    @property
    def standing(self) -> Standing:
        """What the record amounts to; equal to `fold(self.events())`."""
        with self._reading():
            return self._tally.standing()

    @property
    def last_seq(self) -> int:
        """The number of the newest event, 0 before the first."""
        with self._reading():
            return self._tally.seq

    def events(self, since: int = 0) -> list[Event]:
        """All events after number `since`, oldest first."""
        with self._reading() as db:
            return read_events(db, f"WHERE seq > {index(since)} ORDER BY seq")

    def add(
        self,
        kind: str,
        who: str,
        position: int | None = None,
        label: int | None = None,
        *,
        text: str | None = None,
        ref: int | None = None,
        key: str | None = None,
    ) -> Event:
        """Record one event: when this returns, it is on the disk.

        A key that is there already gives the event that it came with, and adds nothing; with
        another content it is refused, since the answer would be lost unsaid.
        """
        who = checked_name(who, "the person's name")
        with self._writing() as db:
            known = by_key(db, key, (kind, who, position, label))
            return known or self._insert(kind, who, position, label, text=text, ref=ref, key=key)

    def undo(self, who: str, seq: int | None = None, *, key: str | None = None) -> Event | None:
        """Take back a person's newest surviving answer, or their answer `seq`.

        Again and again goes back further. None where nothing is left to take back, or where `seq`
        has been taken back before.
        """
        who = checked_name(who, "the person's name")
        with self._writing() as db:
            before = by_key(db, key, ("undo", who))
            seq = self._tally.newest(who) if seq is None else index(seq)
            if before or seq is None:
                return before
            if self._tally.own(who, seq) is None:
                return None
            return self._insert("undo", who, ref=seq, key=key)

    def add_class(self, who: str, name: str) -> int:
        """The number of a new class, or of the one that has this name already."""
        who, name = checked_name(who, "the person's name"), checked_name(name, "the class's name")
        with self._writing():
            number = self._tally.numbers.get(alike(name))
            if number is None:
                number = len(self._tally.classes)
                self._insert("class", who, text=name)
            return number

    def take_in(self, labels: Iterable[tuple[int, str, str]]) -> list[Event]:
        """Record many labels (position, class name, person) at once: all of them, or none.

        Classes are made as needed. A label that this person's answer says already adds nothing, so
        the same file can be taken in twice. Returned are the events added, classes among them.
        """
        added = []
        with self._writing():
            for position, name, who in labels:
                who = checked_name(who, "the person's name")
                name = checked_name(name, "the class's name")
                number = self._tally.numbers.get(alike(name))
                if number is None:
                    number = len(self._tally.classes)
                    added.append(self._insert("class", who, text=name))
                now = self._tally.says(who, position)
                if now is None or now.label != number:
                    added.append(self._insert("label", who, position, number))
        return added

    def lease(self, position: int, who: str, seconds: float, *, now: float | None = None) -> bool:
        """Keep an item for one person; False if another holds it. now: in seconds since 1970.

        A person holds at most one: a new lease replaces the old one, a refused one leaves it.
        """
        who = checked_name(who, "the person's name")
        self._check_position(position)
        now = time.time() if now is None else now
        if not (seconds > 0 and math.isfinite(now + seconds)):
            raise InputError(f"a lease of {seconds} seconds; expected a positive number")
        with self._writing(durable=False) as db:
            db.execute("DELETE FROM leases WHERE until <= ?", (now,))
            held = db.execute("SELECT who FROM leases WHERE position = ?", (position,)).fetchone()
            if held is not None and held[0] != who:
                return False
            db.execute("DELETE FROM leases WHERE who = ?", (who,))
            db.execute("INSERT INTO leases VALUES (?, ?, ?)", (position, who, now + seconds))
            return True

    def release(self, who: str) -> None:
        """Give up what a person holds, if anything."""
        who = checked_name(who, "the person's name")
        with self._writing(durable=False) as db:
            db.execute("DELETE FROM leases WHERE who = ?", (who,))

    def leases(self, now: float | None = None) -> dict[int, str]:
        """Who holds which item."""
        now = time.time() if now is None else now
        with self._reading() as db:
            found = db.execute("SELECT position, who FROM leases WHERE until > ?", (now,))
            return dict(found.fetchall())

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._db is None:
                raise InputError(f"{self.path} has been closed; open the book anew")
            try:
                self._catch_up(self._db)
                yield self._db
            except sqlite3.Error as error:
                raise refusal(self.path, error) from error

    @contextmanager
    def _writing(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction; what is in memory follows what is on the disk, also after a failure."""
        with self._reading() as db:
            if identity(self.path) != self._file:
                raise rescued(db, self.path)
            # NORMAL leaves out the wait for the disk, not the order of writing: after a power cut
            # the file is whole, but a last lease may be gone.
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            self._catch_up(db)
            before = self._tally.seq
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if self._tally.seq > before:
                    self._tally = Tally()  # read anew with the next access
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _catch_up(self, db: sqlite3.Connection) -> None:
        for event in read_events(db, f"WHERE seq > {self._tally.seq} ORDER BY seq"):
            known = len(self._tally.classes)
            label, position = event.label or 0, event.position or 0
            sound = label == known if event.kind == "class" else label < max(known, 1)
            if event.seq != self._tally.seq + 1 or not sound or position >= len(self.items):
                raise InputError(
                    f"{self.path} is damaged: after event {self._tally.seq} comes {event}; put "
                    "back a copy, or move the file away to begin anew"
                )
            self._tally.add(event)

    def _check_position(self, position: int) -> None:
        if not 0 <= index(position) < len(self.items):
            raise InputError(
                f"position is {position}; expected a number from 0 to {len(self.items) - 1}"
            )

    def _insert(
        self,
        kind: str,
        who: str,
        position: int | None = None,
        label: int | None = None,
        *,
        text: str | None = None,
        ref: int | None = None,
        key: str | None = None,
    ) -> Event:
        """Check an event and write it, within a transaction."""
        assert self._db is not None
        event = self._tally.next(kind, who, position, label, text, ref, key)
        if event.position is not None:
            self._check_position(event.position)
        write_event(self._db, event)
        self._tally.add(event)
        return event
