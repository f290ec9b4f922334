"""Where people and the network meet: who is asked what, and what every answer sets in motion.

An answer is on the disk (`Journal`) before anything else happens; then the posterior (`PoolPosterior`)
moves, and the next question is there. Training goes on elsewhere (`Worker`) and hands over a new
`Snapshot`.
"""

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any

import torch

from labelahead.data import Data
from labelahead.errors import InputError
from labelahead.seeds import stream
from labelahead.server.items import Items
from labelahead.server.journal import Journal
from labelahead.server.label_state import CHANGES, Event, LabelState
from labelahead.server.page_model import PageModel
from labelahead.server.snapshot_builder import in_random_order

__all__ = ["GRID", "LabellingService"]

SECOND = "second opinion"
TAKEN_BACK = "taken back"
KEYS = "123456789abcdefghijklmnopqrstuvwxyz"
AWAY = 90.0  # seconds without a word after which somebody counts as away
PREFETCH = 8  # further pictures that a browser may fetch ahead
UNTAUGHT = ("keep", "doubt")  # they change no label
TRUSTED = 20  # labels of a random sample, from which on accuracy is estimated by them alone
KINDS = ("label", "skip", "unsure", "settle", *UNTAUGHT)
FEWEST = 2  # classes
GRID = 24  # items that are confirmed at once
SURE = 0.8  # probability from which on an item is offered for that
AT_ONCE = (
    1 << 20
)  # pairs that are scored while somebody waits; beyond, a shortlist answers and the rest follows
PATIENCE = 1.0  # seconds that an explanation waits for the last answer to be learnt


class LabellingService:
    """Who is asked what; one for a server. Methods may be called from any thread, and none waits
    for training.

    lease: seconds for which an item is one person's. overlap: share of questions that repeat what
    somebody else has labelled, to see whether people agree. order: positions in random order, where
    items are not all of a pool, nor all drawn at random.
    """

    def __init__(
        self,
        journal: Journal,
        items: Items,
        *,
        closed: Collection[int] = (),
        seed: int = 0,
        lease: float = 600.0,
        overlap: float = 0.0,
        budget: int | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        if not 0 <= overlap < 1:
            raise InputError(f"overlap is {overlap}; expected a share from 0 to below 1")
        self.journal, self.items, self.budget = journal, items, budget
        self.closed, self.lease, self.overlap = frozenset(closed), lease, overlap
        self.broken: dict[int, str] = {}  # position -> why it cannot be looked at
        self.opinion: PageModel | None = None
        self.behind = False  # whether the opinion lacks an answer, or holds one that was taken back
        self._turns = 0  # how often labels or classes have moved
        # of the opinion's best candidates, which learns answers before it does
        self._short: PageModel | None = None
        self._shortening = threading.Lock()  # held by whoever moves that
        self._learning = threading.Lock()  # held by whoever moves the opinion
        # Work on matrices is done by one thread each, whoever asked for it: the mathematics library
        # keeps megabytes for every thread that ever called it, and a server has forty.
        self._mover, self._shortener = (
            ThreadPoolExecutor(1, "mover"),
            ThreadPoolExecutor(1, "shortener"),
        )
        self.lock = threading.RLock()
        self.moved = threading.Condition(self.lock)  # the labels have changed
        self._seen: dict[str, float] = {}
        self._taken_back: dict[str, int] = {}  # person -> the item whose answer they took back last
        order = in_random_order(len(items), seed).tolist() if order is None else order
        self._random = [p for p in order if p not in self.closed]
        self._coin = stream(seed, "overlap")

    @property
    def tally(self) -> LabelState:
        """What all answers amount to."""
        return self.journal.tally

    def classes(self) -> list[dict[str, Any]]:
        """Number, name and key of every class."""
        tally = self.tally
        key = keys(tally.classes)
        return [{"number": c, "name": tally.classes[c], "key": key[c]} for c in tally.alive]

    def question(self, who: str, *, fresh: bool = False) -> dict[str, Any]:
        """What this person is asked now; asking again without an answer gives the same item.

        fresh: hand back what was asked, and be asked what matters most by now.
        """
        with self.lock:
            self._seen[who] = time.monotonic()
            if fresh:
                self.journal.release(who)
            tally, leases = self.tally, self.journal.leases()
            mine = next((p for p, name in leases.items() if name == who), None)
            if (
                mine is not None
                and mine not in tally.answered.get(who, ())
                and mine not in self.broken
            ):
                reason = (
                    TAKEN_BACK if self._taken_back.get(who) == mine else self._reason(tally, mine)
                )
                return self._question(tally, mine, None, reason)
            taken = {p for p, name in leases.items() if name != who}
            while True:
                choice = self._choose(tally, who, taken)
                if choice is None:
                    self.journal.release(who)
                    return {"done": True, "reason": self._why_done(tally)}
                position, score, reason = choice
                if not self._visible(position):
                    continue
                if self.journal.lease(position, who, self.lease):
                    return self._question(tally, position, score, reason)
                taken.add(position)

    def leave_out(self, broken: Mapping[int, str]) -> None:
        """Items that cannot be looked at are asked of nobody."""
        with self.lock:
            self.broken |= broken

    def _visible(self, position: int) -> bool:
        """Whether there is anything to look at.

        Of items in play that is known, of others it is tried.
        """
        if self.opinion is not None and position in self.opinion.belief:
            return True
        why = self.items.broken(position)
        if why is not None:
            self.broken[position] = why
        return why is None

    def answer(
        self, who: str, position: int, kind: str, label: int | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """Take in an answer: when this returns it is on the disk, and the next question is there.

        For an item that is labelled already it is a correction, or a second opinion.
        """
        with self.lock:
            self._check(self.tally, position, kind, label)
            self._seen[who] = time.monotonic()
            event = self.journal.add(kind, who, position, label, key=key)
        changed = None if kind in UNTAUGHT else self._learn()
        with self.lock:
            asked = self.question(who)
            return {
                "event": _shown(event),
                "changed": changed,
                "labels": len(self.tally.labels),
                "next": asked,
            }

    def undo(self, who: str, seq: int | None = None, key: str | None = None) -> dict[str, Any]:
        """Take back this person's last answer, or one of theirs; the item is asked for again.

        A label that was kept still stands, so it is not asked for.
        """
        with self.lock:
            confirmed = len(self.tally.confirmed)
            event = self.journal.undo(who, seq, key=key)
            if event is None:
                return {
                    "undone": None,
                    "next": self.question(who),
                    "labels": len(self.tally.labels),
                }
            together = max(1, confirmed - len(self.tally.confirmed))
            taken = self.journal.event(event.ref) if event.ref is not None else event
        if taken.kind in CHANGES:
            self._reclassed()
        else:
            self._learn()
        with self.lock:
            again = None if taken.kind in ("keep", "confirm") else taken.position
            if again is not None and self.journal.lease(again, who, self.lease):
                self._taken_back[who] = again
                asked = self._question(self.tally, again, None, TAKEN_BACK)
            else:
                asked = self.question(who)
            labels = len(self.tally.labels)
            return {
                "undone": {**_shown(taken), "together": together},
                "next": asked,
                "labels": labels,
            }

    def add_class(self, who: str, name: str) -> dict[str, Any]:
        """A class that nobody thought of before."""
        with self.lock:
            number = self.journal.add_class(who, name)
            # Described before the lock is released: somebody else may remove or merge the class
            # right after.
            added = next(c for c in self.classes() if c["number"] == number)
        self._learn()
        return added

    def change_class(
        self, who: str, kind: str, number: int, name: str | None, key: str | None = None
    ) -> dict[str, Any]:
        """Rename a class, merge it into the one of that name, or remove it; undo takes it back."""
        with self.lock:
            event = self.journal.change_class(who, kind, number, name, key=key, fewest=FEWEST)
        self._reclassed()
        return {"event": _shown(event), "classes": self.classes(), "labels": len(self.tally.labels)}

    def _reclassed(self) -> None:
        """Whoever changes classes waits until the opinion has them."""
        with self.lock:
            self._turns += 1
        self.catch_up()
        with self.lock:
            self.moved.notify_all()

    def grid(self, who: str, n: int = GRID, label: int | None = None) -> dict[str, Any]:
        """Items that are predicted alike and surely, to be confirmed at once: of a class, or of the
        one with most.

        sure: how many there are in all, for each class that has any.
        """
        with self.lock:
            opinion, tally = self.opinion, self.tally
            self._seen[who] = time.monotonic()
            taken = {p for p, name in self.journal.leases().items() if name != who}
        if opinion is None or not opinion.informed:
            return {"label": None, "items": [], "sure": []}
        without = (
            taken
            | self.closed
            | tally.labels.keys()
            | self.broken.keys()
            | tally.answered.get(who, frozenset())
        )
        surest = [row for row in opinion.surest(SURE, without) if row[1] in tally.alive]
        alike = Counter(c for _, c, _ in surest)
        if label is None and alike:
            label = alike.most_common(1)[0][0]
        shown = [(p, sure) for p, c, sure in surest if c == label][:n]
        return {
            "label": label,
            "items": [{**self.items.describe(p), "p": round(sure, 4)} for p, sure in shown],
            "sure": [{"label": c, "items": count} for c, count in alike.most_common()],
        }

    def confirm(
        self, who: str, positions: Collection[int], label: int, key: str | None = None
    ) -> dict[str, Any]:
        """Take in that all of these are of one class: on the disk together when this returns.

        Those that somebody has labelled meanwhile are left as they are.
        """
        with self.lock:
            tally = self.tally
            for position in positions:
                self._check(tally, position, "label", label)
            self._seen[who] = time.monotonic()
            events = self.journal.confirm(who, positions, label, key=key)
        changed = self._learn() if events else None
        with self.lock:
            return {
                "confirmed": [e.position for e in events],
                "label": label,
                "changed": changed,
                "labels": len(self.tally.labels),
                "next": self.question(who),
            }

    def bring_in(self, rows: Collection[tuple[int, str, str]]) -> dict[str, Any]:
        """Labels from a file: (position, class name, who)."""
        with self.lock:
            before = self.tally
            for position, _, _ in rows:
                self._check(before, position, "skip", None)
            self.journal.add_labels(rows)
        self._learn()
        with self.lock:
            new = [c for c in self.tally.classes if c not in before.classes]
            return {"labels": len(rows), "new_classes": new}

    def grow(self, data: Data) -> None:
        """The same items and more after them.

        These are asked about once an opinion has them in play.
        """
        with self.lock:
            self.journal.extend(data.ids[len(self.items) :])
            self.items.data = data

    def take(self, opinion: PageModel) -> None:
        """A training's new opinion; it learns whatever was answered meanwhile."""
        short = self._shortened(opinion)
        with self.lock:
            self.opinion, self._short = opinion, short
        self._learn()

    @staticmethod
    def _shortened(opinion: PageModel) -> PageModel | None:
        return opinion.shortened() if opinion.work > AT_ONCE else None

    def informed(self) -> PageModel | None:
        """The opinion once it has learnt the last answer, or the one that there is after a second."""
        with self.moved:
            self.moved.wait_for(lambda: not self.behind, PATIENCE)
            return self.opinion

    @staticmethod
    def _standing(opinion: PageModel, tally: LabelState) -> PageModel:
        """The opinion that knows the labels, and the classes as they stand."""
        if opinion.fits(tally.counts_as):
            return opinion.told(tally.labels, len(tally.classes))
        return PageModel.of(opinion.snapshot, tally.labels, len(tally.classes), tally.counts_as)

    def trusted(self, tally: LabelState) -> tuple[int, ...]:
        """Labelled items that are a random sample of all, however each came to be labelled; none if
        too few.

        In the fixed random order, up to the first item without an answer of its own; what was
        skipped is passed over. What was confirmed among many is not looked at closely enough to
        judge predictions by.
        """
        own = (tally.labels.keys() | tally.answers.keys()) - tally.confirmed
        answered = takewhile(lambda p: p in own, self._random)
        sample = tuple(p for p in answered if p in tally.labels)
        return sample if len(sample) >= TRUSTED else ()

    def present(self) -> set[str]:
        """Who has been heard of lately."""
        now = time.monotonic()
        return {who for who, at in self._seen.items() if now - at < AWAY}

    def _check(self, tally: LabelState, position: int, kind: str, label: int | None) -> None:
        if not 0 <= position < len(self.items) or position in self.closed:
            raise InputError(f"there is no item {position} to label; expected one that was asked")
        if kind not in KINDS:
            raise InputError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}")
        count = len(tally.classes)
        if kind == "settle" and position not in tally.labels:
            raise InputError(f"item {position} has no label yet; expected one to settle")
        if kind in ("label", "settle", "keep") and (label is None or not 0 <= label < count):
            raise InputError(f"label is {label}; expected a class number, 0 to {count - 1}")

    def _learn(self) -> int | None:
        """Move the opinion to the labels as they stand; how many items changed their mind, if it
        has moved.

        One at a time, and nobody waits for it: where somebody is at it, or where it would take
        long, this is left to `catch_up`, and questions come from the shortlist, or from the opinion
        that there is.
        """
        with self.lock:
            self._turns += 1
            opinion, tally = self.opinion, self.tally
            if opinion is None:
                self.moved.notify_all()
                return None
            # Before any label all candidates are alike, and no few of them are the best.
            light = opinion.work <= AT_ONCE or not opinion.belief.labels
            near = light and opinion.fits(tally.counts_as) and opinion.belief.nearby(tally.labels)
            if not near or not self._learning.acquire(blocking=False):
                self.behind = True
                near = False
            self.moved.notify_all()
        if not near:
            self._learn_shortly()
            return None
        try:
            return self._mover.submit(self._move).result()
        finally:
            self._learning.release()

    def _learn_shortly(self) -> None:
        """Move the shortlist, if its opinion has only to learn more labels.

        Where somebody is at it, let them.
        """
        if self._short is None or not self._shortening.acquire(blocking=False):
            return
        try:
            self._shortener.submit(self._move_shortlist).result()
        finally:
            self._shortening.release()

    def _move_shortlist(self) -> None:
        with self.lock:
            opinion, before, tally = self.opinion, self._short, self.tally
        if opinion is None or before is None:
            return
        more = (
            opinion.fits(tally.counts_as) and opinion.belief.labels.items() <= tally.labels.items()
        )
        after = None
        if more and before.belief.nearby(tally.labels):
            after = before.told(tally.labels, len(tally.classes))
            after.gain()
        with self.lock:
            if self._short is before:
                self._short = after

    def catch_up(self) -> None:
        """Move the opinion to the labels as they stand, however long it takes."""
        with self._learning:
            self._mover.submit(self._move).result()

    def _move(self) -> int | None:
        """Whoever learns does it outside the lock.

        An opinion that has been replaced meanwhile is not moved.
        """
        with self.lock:
            before, tally, turn = self.opinion, self.tally, self._turns
            if before is None:
                self.behind = False
                return None
        after = self._standing(before, tally)
        after.gain()  # a question must not wait for scores
        short = self._shortened(after)
        with self.lock:
            replaced = self.opinion is not before
            if not replaced:
                self.opinion, self._short = after, short
            self.behind = replaced or self._turns != turn
            self.moved.notify_all()
        if self.behind:
            self._learn_shortly()
        return after.changed_from(before)

    def _newest(self, position: int | None = None) -> PageModel | None:
        """What knows the last answers.

        The shortlist, if it was told of any and holds that item, or the opinion.
        """
        short = self._short
        if (
            short is None
            or not short.belief.labels
            or (position is not None and position not in short.belief)
        ):
            return self.opinion
        return short

    def ranked(self) -> Iterator[int]:
        """Items without a label, in the order in which they would be asked for now, whoever is
        asked.
        """
        with self.lock:
            without, some = self.closed | self.tally.labels.keys() | self.broken.keys(), []
            for opinion in dict.fromkeys((self._newest(), self.opinion)):
                best = None if opinion is None else opinion.best(without)
                if (
                    opinion is not None and best is not None
                ):  # first: of equal scores a sort may have another
                    some += [best[0], *opinion.belief.ranked(opinion.criterion)]
        for position in dict.fromkeys((*some, *self._random)):
            if position not in without and self._visible(position):
                yield position

    def _reason(self, tally: LabelState, position: int) -> str:
        """Why an item is asked about, said of one that may have been chosen a while ago."""
        if position in tally.labels:
            return SECOND
        if self.opinion is None:
            return "random start"
        return "look-ahead" if self.opinion.snapshot.round else "covers the pool"

    def _choose(
        self, tally: LabelState, who: str, taken: set[int]
    ) -> tuple[int, float | None, str] | None:
        """The best item that is free and that this person has not answered.

        taken: lent to others.
        """
        without = taken | tally.answered.get(who, frozenset())
        again = self._second_opinion(tally, without)
        if again is not None:
            return again, None, SECOND
        without |= self.closed | tally.labels.keys() | self.broken.keys()
        for opinion in dict.fromkeys((self._newest(), self.opinion)):
            best = None if opinion is None else opinion.best(without)
            if best is not None:
                return *best, self._reason(tally, best[0])
        rest = next((p for p in self._random if p not in without), None)
        return None if rest is None else (rest, None, "random start")

    def _second_opinion(self, tally: LabelState, without: set[int]) -> int | None:
        """Now and then an item that somebody else has labelled, the oldest first."""
        if not self.overlap or float(torch.rand((), generator=self._coin)) >= self.overlap:
            return None
        return next(
            (
                p
                for p, answers in tally.answers.items()
                if p not in without and p in tally.labels and len(answers) == 1
            ),
            None,
        )

    def _why_done(self, tally: LabelState) -> str:
        leased = len(self.journal.leases())
        if leased:
            return "the last items are with other people; come back in a while"
        aside = len(tally.skipped | tally.unsure)
        if aside:
            return f"every item has an answer, of which {aside} say skip or not sure; thank you"
        return "every item has an answer; thank you"

    def _question(
        self, tally: LabelState, position: int, score: float | None, reason: str
    ) -> dict[str, Any]:
        guess: list[tuple[int, float]] = []
        ahead: list[int] = []
        opinion = self._newest(position)
        if opinion is not None:
            # A second opinion that has seen the first is none: the posterior has learnt it.
            # So has a training the answer that was taken back.
            guess = [] if reason in (SECOND, TAKEN_BACK) else opinion.guess(position)
            guess = [(c, p) for c, p in guess if c in tally.alive]  # it may not have heard yet
            if self.items.kind == "image":
                ahead = opinion.runners_up(PREFETCH, {position})
        urls = [self.items.describe(p)["url"] for p in ahead]
        return {
            "done": False,
            "kind": self.items.kind,
            **self.items.describe(position),
            "guess": [{"label": c, "p": round(p, 4)} for c, p in guess],
            "score": score,
            "reason": reason,
            "seq": tally.seq,
            "prefetch": urls,
        }


def _shown(event: Event) -> dict[str, Any]:
    """An event as the page knows it."""
    return event.said("seq", "kind", "position", "label", "who", "at")


def keys(names: Iterable[str]) -> list[str | None]:
    """A key for each class: its name where that is one character, else the first that is free.

    In order, so that a class that is added never changes the key of another.
    """
    given: list[str | None] = []
    for name in names:
        own = name.casefold()
        free = [k for k in ((own, *KEYS) if own in ("0", *KEYS) else KEYS) if k not in given]
        given.append(free[0] if free else None)
    return given
