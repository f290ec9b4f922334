"""Where people and the network meet: who is asked what, and what every answer sets in motion.

An answer is on the disk (`Book`) before anything else happens; then the posterior (`Mind`) moves,
and the next question is there. Training goes on elsewhere (`Conductor`) and hands over a new mind.
"""

import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from labelahead.errors import InputError
from labelahead.situation import stream
from labelahead.web.book import Book
from labelahead.web.items import Items
from labelahead.web.mind import Mind
from labelahead.web.standing import Event, Standing

__all__ = ["AWAY", "Desk"]

SECOND = "second opinion"
KEYS = "123456789abcdefghijklmnopqrstuvwxyz"
AWAY = 90.0  # seconds without a word after which somebody counts as away
RECENT = 40  # states of mind that are kept for undoing
PREFETCH = 3  # further pictures that a browser may fetch ahead
UNTAUGHT = ("keep", "doubt")  # they change no label
TAKEN = ("label", "skip", "unsure", "settle", *UNTAUGHT)


class Desk:
    """One for a server. Every method may be called from any thread, and none waits for training.

    lease: seconds for which an item is one person's. overlap: share of questions that repeat what
    somebody else has labelled, to see whether people agree.
    """

    def __init__(
        self,
        book: Book,
        items: Items,
        *,
        closed: Collection[int] = (),
        seed: int = 0,
        lease: float = 600.0,
        overlap: float = 0.0,
        budget: int | None = None,
    ) -> None:
        if not 0 <= overlap < 1:
            raise InputError(f"overlap is {overlap}; expected a share from 0 to below 1")
        self.book, self.items, self.budget = book, items, budget
        self.closed, self.lease, self.overlap = frozenset(closed), lease, overlap
        self.mind: Mind | None = None
        self._past: deque[Mind] = deque(maxlen=RECENT)
        self.lock = threading.RLock()
        self.moved = threading.Condition(self.lock)  # the labels have changed
        self._seen: dict[str, float] = {}
        order = torch.randperm(len(items), generator=stream(seed, "page"))
        self._random = [p for p in order.tolist() if p not in self.closed]
        self._coin = stream(seed, "overlap")

    @property
    def standing(self) -> Standing:
        """What all answers amount to."""
        return self.book.standing

    def classes(self) -> list[dict[str, Any]]:
        """Number, name and key of every class."""
        names = self.standing.classes
        return [
            {"number": i, "name": name, "key": key}
            for i, (name, key) in enumerate(zip(names, keys(names), strict=True))
        ]

    def question(self, who: str, *, fresh: bool = False) -> dict[str, Any]:
        """What this person is asked now; asking again without an answer gives the same item.

        fresh: hand back what was asked, and be asked what matters most by now.
        """
        with self.lock:
            self._seen[who] = time.monotonic()
            if fresh:
                self.book.release(who)
            mine = next((p for p, name in self.book.leases().items() if name == who), None)
            if mine is not None and not self._answered(who, mine):
                return self._question(mine, None, self._reason(mine))
            while True:
                found = self._choose(who)
                if found is None:
                    self.book.release(who)
                    return {"done": True, "reason": self._why_done()}
                position, score, reason = found
                if self.book.lease(position, who, self.lease):
                    return self._question(position, score, reason)

    def answer(
        self, who: str, position: int, kind: str, label: int | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """Take in an answer: when this returns it is on the disk, and the next question is there.

        For an item that is labelled already it is a correction, or a second opinion.
        """
        self._check(position, kind, label)
        with self.lock:
            self._seen[who] = time.monotonic()
            event = self.book.add(kind, who, position, label, key=key)
            changed = None if kind in UNTAUGHT else self._learn()
            asked = self.question(who)
            return {"event": self.event(event), "changed": changed,
                    "labels": len(self.standing.labels), "next": asked}  # fmt: skip

    def undo(self, who: str, seq: int | None = None, key: str | None = None) -> dict[str, Any]:
        """Take back this person's last answer, or one of theirs; the item is asked for again.

        A label that was kept still stands, so it is not asked for.
        """
        with self.lock:
            before = {e.seq: e for e in self.book.events()}
            event = self.book.undo(who, seq, key=key)
            if event is None:
                return {"undone": None, "next": self.question(who)}
            self._learn()
            taken = before[event.ref] if event.ref is not None else event
            again = None if taken.kind == "keep" else taken.position
            if again is not None and self.book.lease(again, who, self.lease):
                asked = self._question(again, None, "taken back")
            else:
                asked = self.question(who)
            return {"undone": self.event(taken), "next": asked}

    def add_class(self, who: str, name: str) -> dict[str, Any]:
        """A class that nobody thought of before."""
        with self.lock:
            number = self.book.add_class(who, name)
            if self.mind is not None:
                self.mind = self.mind.told(self.standing.labels, len(self.standing.classes))
            return self.classes()[number]

    def bring_in(self, rows: Collection[tuple[int, str, str]]) -> dict[str, Any]:
        """Labels from a file: (position, class name, who)."""
        with self.lock:
            names = set(self.standing.classes)
            for position, _, _ in rows:
                self._check(position, "skip", None)
            self.book.take_in(rows)
            self._learn()
            new = [c for c in self.standing.classes if c not in names]
            return {"labels": len(rows), "new_classes": new}

    def take(self, mind: Mind) -> None:
        """A training's new mind; it learns whatever was answered meanwhile."""
        with self.lock:
            self.mind = mind.told(self.standing.labels, len(self.standing.classes))
            self._past.clear()
            self._past.append(self.mind)

    def event(self, e: Event) -> dict[str, Any]:
        """An event as the page knows it."""
        return {"seq": e.seq, "kind": e.kind, "position": e.position, "label": e.label,
                "who": e.who, "at": e.at}  # fmt: skip

    def present(self) -> set[str]:
        """Who has been heard of lately."""
        now = time.monotonic()
        return {who for who, at in self._seen.items() if now - at < AWAY}

    def _check(self, position: int, kind: str, label: int | None) -> None:
        if not 0 <= position < len(self.items) or position in self.closed:
            raise InputError(f"there is no item {position} to label; expected one that was asked")
        if kind not in TAKEN:
            raise InputError(f"kind is {kind!r}; expected one of {', '.join(TAKEN)}")
        count = len(self.standing.classes)
        if kind == "settle" and position not in self.standing.labels:
            raise InputError(f"item {position} has no label yet; expected one to settle")
        if kind in ("label", "settle", "keep") and (label is None or not 0 <= label < count):
            raise InputError(f"label is {label}; expected a class number, 0 to {count - 1}")

    def _learn(self) -> int | None:
        """Move the posterior to the labels as they stand; how many items changed their mind."""
        self.moved.notify_all()
        before = self.mind
        if before is None:
            return None
        labels, classes = self.standing.labels, len(self.standing.classes)
        # What was taken back leads to where one has been: no need to begin again from the prior.
        known = (m for m in reversed(self._past) if m.knows(labels, classes, before.snapshot))
        self.mind = next(known, None) or before.told(labels, classes)
        self._past.append(self.mind)
        return self.mind.changed_from(before)

    def _answered(self, who: str, position: int) -> bool:
        return any(a.who == who for a in self.standing.answers.get(position, ()))

    def _reason(self, position: int) -> str:
        """Why an item is asked about, said of one that may have been chosen a while ago."""
        if position in self.standing.labels:
            return SECOND
        if self.mind is None:
            return "random start"
        early = self.mind.snapshot.strategy == "variance"
        return "covers the pool" if early else "look-ahead"

    def _choose(self, who: str) -> tuple[int, float | None, str] | None:
        """The best item that is free and that this person has not answered."""
        standing = self.standing
        taken = {p for p, name in self.book.leases().items() if name != who}
        mine = {p for p in standing.answers if self._answered(who, p)}
        again = self._second_opinion(who, taken | mine)
        if again is not None:
            return again, None, SECOND
        without = taken | mine | self.closed | set(standing.labels)
        if self.mind is not None:
            found = self.mind.best(without)
            if found is not None:
                return *found, self._reason(found[0])
        rest = next((p for p in self._random if p not in without), None)
        return None if rest is None else (rest, None, "random start")

    def _second_opinion(self, who: str, without: set[int]) -> int | None:
        """Now and then an item that somebody else has labelled, the oldest first."""
        if not self.overlap or float(torch.rand((), generator=self._coin)) >= self.overlap:
            return None
        return next(
            (p for p, answers in self.standing.answers.items()
             if p not in without and p in self.standing.labels and len(answers) == 1), None,
        )  # fmt: skip

    def _why_done(self) -> str:
        leased = len(self.book.leases())
        if leased:
            return "the last items are with other people; come back in a while"
        aside = len(self.standing.skipped | self.standing.unsure)
        if aside:
            return f"every item has an answer, of which {aside} say skip or not sure; thank you"
        return "every item has an answer; thank you"

    def _question(self, position: int, score: float | None, reason: str) -> dict[str, Any]:
        guess: list[tuple[int, float]] = []
        ahead: list[int] = []
        if self.mind is not None:
            # A second opinion that has seen the first is none: the posterior has learnt it.
            guess = [] if reason == SECOND else self.mind.guess(position)
            if self.items.kind == "image":
                ahead = self.mind.runners_up(PREFETCH, {position})
        urls = [self.items.describe(p)["url"] for p in ahead]
        events = self.book.last_seq
        return {
            "done": False, "position": position, "kind": self.items.kind,
            **self.items.describe(position),
            "guess": [{"label": c, "p": round(p, 4)} for c, p in guess],
            "score": score, "reason": reason, "seq": events, "prefetch": urls,
        }  # fmt: skip


def keys(names: Iterable[str]) -> list[str | None]:
    """A key for each class: its name where that is one character, else the first that is free.

    In order, so that a class that is added never changes the key of another.
    """
    found: list[str | None] = []
    for name in names:
        own = name.casefold()
        free = [k for k in ((own, *KEYS) if own in ("0", *KEYS) else KEYS) if k not in found]
        found.append(free[0] if free else None)
    return found


def counted(labels: Mapping[int, int], classes: int) -> list[int]:
    """How many labels each class has."""
    found = [0] * classes
    for label in labels.values():
        found[label] += 1
    return found
