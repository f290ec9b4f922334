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
from labelahead.seeds import make_generator
from labelahead.server.items import Items
from labelahead.server.journal import Journal
from labelahead.server.label_state import CLASS_CHANGE_KINDS, Event, LabelState
from labelahead.server.page_model import PageModel
from labelahead.server.snapshot_builder import shuffle_positions

__all__ = ["GRID_ITEMS", "LabellingService"]

SECOND_OPINION = "second opinion"
TAKEN_BACK = "taken back"
CLASS_KEYS = "123456789abcdefghijklmnopqrstuvwxyz"
AWAY_SECONDS = 90.0  # seconds without a word after which somebody counts as away
PREFETCH_ITEMS = 8  # further pictures that a browser may fetch ahead
NEUTRAL_KINDS = ("keep", "doubt")  # they change no label
MIN_RANDOM_LABELS = (
    20  # labels of a random sample, from which on accuracy is estimated by them alone
)
ACCEPTED_KINDS = ("label", "skip", "unsure", "settle", *NEUTRAL_KINDS)
MIN_CLASSES = 2  # classes
GRID_ITEMS = 24  # items that are confirmed at once
MIN_GRID_PROBABILITY = 0.8  # probability from which on an item is offered for that
MAX_IMMEDIATE_PAIRS = (
    1 << 20
)  # pairs that are scored while somebody waits; beyond, a shortlist answers and the rest follows
EXPLANATION_WAIT_SECONDS = 1.0  # seconds that an explanation waits for the last answer to be learnt


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
        held_out: Collection[int] = (),
        seed: int = 0,
        lease: float = 600.0,
        overlap: float = 0.0,
        budget: int | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        if not 0 <= overlap < 1:
            raise InputError(f"overlap is {overlap}; expected a share from 0 to below 1")
        self.journal, self.items, self.budget = journal, items, budget
        self.held_out, self.lease_seconds, self.overlap = frozenset(held_out), lease, overlap
        self.excluded: dict[int, str] = {}  # position -> why it cannot be looked at
        self.page_model: PageModel | None = None
        self.is_behind = (
            False  # whether the opinion lacks an answer, or holds one that was taken back
        )
        self._label_version = 0  # how often labels or classes have moved
        # of the opinion's best candidates, which learns answers before it does
        self._shortlist_model: PageModel | None = None
        self._shortlist_lock = threading.Lock()  # held by whoever moves that
        self._update_lock = threading.Lock()  # held by whoever moves the opinion
        # Work on matrices is done by one thread each, whoever asked for it: the mathematics library
        # keeps megabytes for every thread that ever called it, and a server has forty.
        self._update_executor, self._shortlist_executor = (
            ThreadPoolExecutor(1, "mover"),
            ThreadPoolExecutor(1, "shortener"),
        )
        self.lock = threading.RLock()
        self.labels_changed = threading.Condition(self.lock)  # the labels have changed
        self._last_seen: dict[str, float] = {}
        self._undone_items: dict[
            str, int
        ] = {}  # person -> the item whose answer they took back last
        order = shuffle_positions(len(items), seed).tolist() if order is None else order
        self._random_order = [p for p in order if p not in self.held_out]
        self._overlap_generator = make_generator(seed, "overlap")

    @property
    def label_state(self) -> LabelState:
        """What all answers amount to."""
        return self.journal.label_state

    def describe_classes(self) -> list[dict[str, Any]]:
        """Number, name and key of every class."""
        label_state = self.label_state
        key = assign_keys(label_state.classes)
        return [
            {"number": c, "name": label_state.classes[c], "key": key[c]}
            for c in label_state.active_classes
        ]

    def next_query(self, who: str, *, fresh: bool = False) -> dict[str, Any]:
        """What this person is asked now; asking again without an answer gives the same item.

        fresh: hand back what was asked, and be asked what matters most by now.
        """
        with self.lock:
            self._last_seen[who] = time.monotonic()
            if fresh:
                self.journal.release_lease(who)
            label_state, leases = self.label_state, self.journal.list_leases()
            mine = next((p for p, name in leases.items() if name == who), None)
            if (
                mine is not None
                and mine not in label_state.answered_positions.get(who, ())
                and mine not in self.excluded
            ):
                reason = (
                    TAKEN_BACK
                    if self._undone_items.get(who) == mine
                    else self._get_reason(label_state, mine)
                )
                return self._describe_query(label_state, mine, None, reason)
            taken = {p for p, name in leases.items() if name != who}
            while True:
                choice = self._choose_item(label_state, who, taken)
                if choice is None:
                    self.journal.release_lease(who)
                    return {"done": True, "reason": self._explain_done(label_state)}
                position, score, reason = choice
                if not self._is_displayable(position):
                    continue
                if self.journal.lease_item(position, who, self.lease_seconds):
                    return self._describe_query(label_state, position, score, reason)
                taken.add(position)

    def exclude_items(self, excluded: Mapping[int, str]) -> None:
        """Items that cannot be looked at are asked of nobody."""
        with self.lock:
            self.excluded |= excluded

    def _is_displayable(self, position: int) -> bool:
        """Whether there is anything to look at.

        Of items in play that is known, of others it is tried.
        """
        if self.page_model is not None and position in self.page_model.pool_posterior:
            return True
        why = self.items.find_problem(position)
        if why is not None:
            self.excluded[position] = why
        return why is None

    def record_answer(
        self, who: str, position: int, kind: str, label: int | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """Take in an answer: when this returns it is on the disk, and the next question is there.

        For an item that is labelled already it is a correction, or a second opinion.
        """
        with self.lock:
            self._check_answer(self.label_state, position, kind, label)
            self._last_seen[who] = time.monotonic()
            event = self.journal.add_event(kind, who, position, label, key=key)
        changed = None if kind in NEUTRAL_KINDS else self._try_update()
        with self.lock:
            asked = self.next_query(who)
            return {
                "event": _describe_event(event),
                "changed": changed,
                "labels": len(self.label_state.labels),
                "next": asked,
            }

    def undo_answer(
        self, who: str, seq: int | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """Take back this person's last answer, or one of theirs; the item is asked for again.

        A label that was kept still stands, so it is not asked for.
        """
        with self.lock:
            confirmed = len(self.label_state.confirmed)
            event = self.journal.undo_answer(who, seq, key=key)
            if event is None:
                return {
                    "undone": None,
                    "next": self.next_query(who),
                    "labels": len(self.label_state.labels),
                }
            together = max(1, confirmed - len(self.label_state.confirmed))
            taken = self.journal.read_event(event.ref) if event.ref is not None else event
        if taken.kind in CLASS_CHANGE_KINDS:
            self._apply_class_change()
        else:
            self._try_update()
        with self.lock:
            again = None if taken.kind in ("keep", "confirm") else taken.position
            if again is not None and self.journal.lease_item(again, who, self.lease_seconds):
                self._undone_items[who] = again
                asked = self._describe_query(self.label_state, again, None, TAKEN_BACK)
            else:
                asked = self.next_query(who)
            labels = len(self.label_state.labels)
            return {
                "undone": {**_describe_event(taken), "together": together},
                "next": asked,
                "labels": labels,
            }

    def add_class(self, who: str, name: str) -> dict[str, Any]:
        """A class that nobody thought of before."""
        with self.lock:
            number = self.journal.add_class(who, name)
            # Described before the lock is released: somebody else may remove or merge the class
            # right after.
            added = next(c for c in self.describe_classes() if c["number"] == number)
        self._try_update()
        return added

    def change_class(
        self, who: str, kind: str, number: int, name: str | None, key: str | None = None
    ) -> dict[str, Any]:
        """Rename a class, merge it into the one of that name, or remove it; undo takes it back."""
        with self.lock:
            event = self.journal.change_class(
                who, kind, number, name, key=key, min_classes=MIN_CLASSES
            )
        self._apply_class_change()
        return {
            "event": _describe_event(event),
            "classes": self.describe_classes(),
            "labels": len(self.label_state.labels),
        }

    def _apply_class_change(self) -> None:
        """Whoever changes classes waits until the opinion has them."""
        with self.lock:
            self._label_version += 1
        self.catch_up()
        with self.lock:
            self.labels_changed.notify_all()

    def build_grid(self, who: str, n: int = GRID_ITEMS, label: int | None = None) -> dict[str, Any]:
        """Items that are predicted alike and surely, to be confirmed at once: of a class, or of the
        one with most.

        sure: how many there are in all, for each class that has any.
        """
        with self.lock:
            page_model, label_state = self.page_model, self.label_state
            self._last_seen[who] = time.monotonic()
            taken = {p for p, name in self.journal.list_leases().items() if name != who}
        if page_model is None or not page_model.has_labels:
            return {"label": None, "items": [], "sure": []}
        without = (
            taken
            | self.held_out
            | label_state.labels.keys()
            | self.excluded.keys()
            | label_state.answered_positions.get(who, frozenset())
        )
        surest = [
            row
            for row in page_model.list_certain(MIN_GRID_PROBABILITY, without)
            if row[1] in label_state.active_classes
        ]
        alike = Counter(c for _, c, _ in surest)
        if label is None and alike:
            label = alike.most_common(1)[0][0]
        shown = [(p, sure) for p, c, sure in surest if c == label][:n]
        return {
            "label": label,
            "items": [{**self.items.describe_item(p), "p": round(sure, 4)} for p, sure in shown],
            "sure": [{"label": c, "items": count} for c, count in alike.most_common()],
        }

    def confirm_items(
        self, who: str, positions: Collection[int], label: int, key: str | None = None
    ) -> dict[str, Any]:
        """Take in that all of these are of one class: on the disk together when this returns.

        Those that somebody has labelled meanwhile are left as they are.
        """
        with self.lock:
            label_state = self.label_state
            for position in positions:
                self._check_answer(label_state, position, "label", label)
            self._last_seen[who] = time.monotonic()
            events = self.journal.confirm_items(who, positions, label, key=key)
        changed = self._try_update() if events else None
        with self.lock:
            return {
                "confirmed": [e.position for e in events],
                "label": label,
                "changed": changed,
                "labels": len(self.label_state.labels),
                "next": self.next_query(who),
            }

    def add_labels(self, rows: Collection[tuple[int, str, str]]) -> dict[str, Any]:
        """Labels from a file: (position, class name, who)."""
        with self.lock:
            before = self.label_state
            for position, _, _ in rows:
                self._check_answer(before, position, "skip", None)
            self.journal.add_labels(rows)
        self._try_update()
        with self.lock:
            new = [c for c in self.label_state.classes if c not in before.classes]
            return {"labels": len(rows), "new_classes": new}

    def extend_items(self, data: Data) -> None:
        """The same items and more after them.

        These are asked about once an opinion has them in play.
        """
        with self.lock:
            self.journal.add_items(data.ids[len(self.items) :])
            self.items.data = data

    def set_page_model(self, page_model: PageModel) -> None:
        """A training's new opinion; it learns whatever was answered meanwhile."""
        short = self._build_shortlist(page_model)
        with self.lock:
            self.page_model, self._shortlist_model = page_model, short
        self._try_update()

    @staticmethod
    def _build_shortlist(page_model: PageModel) -> PageModel | None:
        return (
            page_model.build_shortlist() if page_model.scoring_pairs > MAX_IMMEDIATE_PAIRS else None
        )

    def wait_for_page_model(self) -> PageModel | None:
        """The opinion once it has learnt the last answer, or the one that there is after a second."""
        with self.labels_changed:
            self.labels_changed.wait_for(lambda: not self.is_behind, EXPLANATION_WAIT_SECONDS)
            return self.page_model

    @staticmethod
    def _with_current_labels(page_model: PageModel, label_state: LabelState) -> PageModel:
        """The opinion that knows the labels, and the classes as they stand."""
        if page_model.has_same_classes(label_state.class_mapping):
            return page_model.with_labels(label_state.labels, len(label_state.classes))
        return PageModel.from_snapshot(
            page_model.snapshot,
            label_state.labels,
            len(label_state.classes),
            label_state.class_mapping,
        )

    def find_random_sample(self, label_state: LabelState) -> tuple[int, ...]:
        """Labelled items that are a random sample of all, however each came to be labelled; none if
        too few.

        In the fixed random order, up to the first item without an answer of its own; what was
        skipped is passed over. What was confirmed among many is not looked at closely enough to
        judge predictions by.
        """
        own = (label_state.labels.keys() | label_state.answers.keys()) - label_state.confirmed
        answered = takewhile(lambda p: p in own, self._random_order)
        sample = tuple(p for p in answered if p in label_state.labels)
        return sample if len(sample) >= MIN_RANDOM_LABELS else ()

    def list_active_annotators(self) -> set[str]:
        """Who has been heard of lately."""
        now = time.monotonic()
        return {who for who, at in self._last_seen.items() if now - at < AWAY_SECONDS}

    def _check_answer(
        self, label_state: LabelState, position: int, kind: str, label: int | None
    ) -> None:
        if not 0 <= position < len(self.items) or position in self.held_out:
            raise InputError(f"there is no item {position} to label; expected one that was asked")
        if kind not in ACCEPTED_KINDS:
            raise InputError(f"kind is {kind!r}; expected one of {', '.join(ACCEPTED_KINDS)}")
        count = len(label_state.classes)
        if kind == "settle" and position not in label_state.labels:
            raise InputError(f"item {position} has no label yet; expected one to settle")
        if kind in ("label", "settle", "keep") and (label is None or not 0 <= label < count):
            raise InputError(f"label is {label}; expected a class number, 0 to {count - 1}")

    def _try_update(self) -> int | None:
        """Move the opinion to the labels as they stand; how many items changed their mind, if it
        has moved.

        One at a time, and nobody waits for it: where somebody is at it, or where it would take
        long, this is left to `catch_up`, and questions come from the shortlist, or from the opinion
        that there is.
        """
        with self.lock:
            self._label_version += 1
            page_model, label_state = self.page_model, self.label_state
            if page_model is None:
                self.labels_changed.notify_all()
                return None
            # Before any label all candidates are alike, and no few of them are the best.
            light = (
                page_model.scoring_pairs <= MAX_IMMEDIATE_PAIRS
                or not page_model.pool_posterior.labels
            )
            near = (
                light
                and page_model.has_same_classes(label_state.class_mapping)
                and page_model.pool_posterior.can_update_incrementally(label_state.labels)
            )
            if not near or not self._update_lock.acquire(blocking=False):
                self.is_behind = True
                near = False
            self.labels_changed.notify_all()
        if not near:
            self._try_shortlist_update()
            return None
        try:
            return self._update_executor.submit(self._update_page_model).result()
        finally:
            self._update_lock.release()

    def _try_shortlist_update(self) -> None:
        """Move the shortlist, if its opinion has only to learn more labels.

        Where somebody is at it, let them.
        """
        if self._shortlist_model is None or not self._shortlist_lock.acquire(blocking=False):
            return
        try:
            self._shortlist_executor.submit(self._update_shortlist).result()
        finally:
            self._shortlist_lock.release()

    def _update_shortlist(self) -> None:
        with self.lock:
            page_model, before, label_state = (
                self.page_model,
                self._shortlist_model,
                self.label_state,
            )
        if page_model is None or before is None:
            return
        more = (
            page_model.has_same_classes(label_state.class_mapping)
            and page_model.pool_posterior.labels.items() <= label_state.labels.items()
        )
        after = None
        if more and before.pool_posterior.can_update_incrementally(label_state.labels):
            after = before.with_labels(label_state.labels, len(label_state.classes))
            after.best_score()
        with self.lock:
            if self._shortlist_model is before:
                self._shortlist_model = after

    def catch_up(self) -> None:
        """Move the opinion to the labels as they stand, however long it takes."""
        with self._update_lock:
            self._update_executor.submit(self._update_page_model).result()

    def _update_page_model(self) -> int | None:
        """Whoever learns does it outside the lock.

        An opinion that has been replaced meanwhile is not moved.
        """
        with self.lock:
            before, label_state, turn = self.page_model, self.label_state, self._label_version
            if before is None:
                self.is_behind = False
                return None
        after = self._with_current_labels(before, label_state)
        after.best_score()  # a question must not wait for scores
        short = self._build_shortlist(after)
        with self.lock:
            replaced = self.page_model is not before
            if not replaced:
                self.page_model, self._shortlist_model = after, short
            self.is_behind = replaced or self._label_version != turn
            self.labels_changed.notify_all()
        if self.is_behind:
            self._try_shortlist_update()
        return after.count_changes_from(before)

    def _newest_model(self, position: int | None = None) -> PageModel | None:
        """What knows the last answers.

        The shortlist, if it was told of any and holds that item, or the opinion.
        """
        short = self._shortlist_model
        if (
            short is None
            or not short.pool_posterior.labels
            or (position is not None and position not in short.pool_posterior)
        ):
            return self.page_model
        return short

    def rank_items(self) -> Iterator[int]:
        """Items without a label, in the order in which they would be asked for now, whoever is
        asked.
        """
        with self.lock:
            without, some = (
                self.held_out | self.label_state.labels.keys() | self.excluded.keys(),
                [],
            )
            for page_model in dict.fromkeys((self._newest_model(), self.page_model)):
                best = None if page_model is None else page_model.choose_best(without)
                if (
                    page_model is not None and best is not None
                ):  # first: of equal scores a sort may have another
                    some += [
                        best[0],
                        *page_model.pool_posterior.rank_candidates(page_model.acquisition),
                    ]
        for position in dict.fromkeys((*some, *self._random_order)):
            if position not in without and self._is_displayable(position):
                yield position

    def _get_reason(self, label_state: LabelState, position: int) -> str:
        """Why an item is asked about, said of one that may have been chosen a while ago."""
        if position in label_state.labels:
            return SECOND_OPINION
        if self.page_model is None:
            return "random start"
        return "look-ahead" if self.page_model.snapshot.round else "covers the pool"

    def _choose_item(
        self, label_state: LabelState, who: str, taken: set[int]
    ) -> tuple[int, float | None, str] | None:
        """The best item that is free and that this person has not answered.

        taken: lent to others.
        """
        without = taken | label_state.answered_positions.get(who, frozenset())
        again = self._choose_second_opinion(label_state, without)
        if again is not None:
            return again, None, SECOND_OPINION
        without |= self.held_out | label_state.labels.keys() | self.excluded.keys()
        for page_model in dict.fromkeys((self._newest_model(), self.page_model)):
            best = None if page_model is None else page_model.choose_best(without)
            if best is not None:
                return *best, self._get_reason(label_state, best[0])
        rest = next((p for p in self._random_order if p not in without), None)
        return None if rest is None else (rest, None, "random start")

    def _choose_second_opinion(self, label_state: LabelState, without: set[int]) -> int | None:
        """Now and then an item that somebody else has labelled, the oldest first."""
        if (
            not self.overlap
            or float(torch.rand((), generator=self._overlap_generator)) >= self.overlap
        ):
            return None
        return next(
            (
                p
                for p, answers in label_state.answers.items()
                if p not in without and p in label_state.labels and len(answers) == 1
            ),
            None,
        )

    def _explain_done(self, label_state: LabelState) -> str:
        leased = len(self.journal.list_leases())
        if leased:
            return "the last items are with other people; come back in a while"
        aside = len(label_state.skipped | label_state.unsure)
        if aside:
            return f"every item has an answer, of which {aside} say skip or not sure; thank you"
        return "every item has an answer; thank you"

    def _describe_query(
        self, label_state: LabelState, position: int, score: float | None, reason: str
    ) -> dict[str, Any]:
        guess: list[tuple[int, float]] = []
        ahead: list[int] = []
        page_model = self._newest_model(position)
        if page_model is not None:
            # A second opinion that has seen the first is none: the posterior has learnt it.
            # So has a training the answer that was taken back.
            guess = (
                []
                if reason in (SECOND_OPINION, TAKEN_BACK)
                else page_model.predict_classes(position)
            )
            guess = [
                (c, p) for c, p in guess if c in label_state.active_classes
            ]  # it may not have heard yet
            if self.items.kind == "image":
                ahead = page_model.rank_next(PREFETCH_ITEMS, {position})
        urls = [self.items.describe_item(p)["url"] for p in ahead]
        return {
            "done": False,
            "kind": self.items.kind,
            **self.items.describe_item(position),
            "guess": [{"label": c, "p": round(p, 4)} for c, p in guess],
            "score": score,
            "reason": reason,
            "seq": label_state.seq,
            "prefetch": urls,
        }


def _describe_event(event: Event) -> dict[str, Any]:
    """An event as the page knows it."""
    return event.pick_fields("seq", "kind", "position", "label", "who", "at")


def assign_keys(names: Iterable[str]) -> list[str | None]:
    """A key for each class: its name where that is one character, else the first that is free.

    In order, so that a class that is added never changes the key of another.
    """
    given: list[str | None] = []
    for name in names:
        own = name.casefold()
        free = [
            k
            for k in ((own, *CLASS_KEYS) if own in ("0", *CLASS_KEYS) else CLASS_KEYS)
            if k not in given
        ]
        given.append(free[0] if free else None)
    return given
