"""The labelling service: it chooses the query of each annotator and processes every answer.

An answer is written durably (`Journal`) before it is used. Then the posterior (`PoolPosterior`) is
updated and the next query is chosen. Training runs in another process (`Worker`), which delivers a
new `Snapshot`.
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
from labelahead.data.dataset import NONE_OF_THESE, NONE_OF_THESE_NAME
from labelahead.errors import InputError
from labelahead.seeds import make_generator
from labelahead.server.items import IMAGE, SOUND, Items
from labelahead.server.journal import Journal
from labelahead.server.label_state import CLASS_CHANGE_KINDS, NONE_KINDS, Event, LabelState
from labelahead.server.page_model import PageModel
from labelahead.server.snapshot_builder import shuffle_positions
from labelahead.server.task_display import describe_task

__all__ = ["GRID_ITEMS", "LabellingService", "describe_event"]

SECOND_OPINION = "second opinion"
UNDONE_TEXT = "taken back"
NONE_KEYS = ("0", ";")  # of "none of these": the first that no class has
CLASS_KEYS = "123456789abcdefghijklmnopqrstuvwxyz"
AWAY_SECONDS = 90.0  # without a request, after which an annotator counts as inactive
PREFETCH_ITEMS = 8  # pictures that a browser may fetch in advance
NEUTRAL_KINDS = ("keep", "doubt")  # kinds of answers that change no label
MIN_RANDOM_LABELS = 20  # needed to estimate the accuracy from a random sample
ACCEPTED_KINDS = ("label", "skip", "unsure", "settle", *NEUTRAL_KINDS)
MIN_CLASSES = 2
GRID_ITEMS = 24  # items in a grid for bulk confirmation
MIN_GRID_PROBABILITY = 0.8  # predicted probability of items in a grid
MAX_IMMEDIATE_PAIRS = (
    1 << 20
)  # pairs that are scored while somebody waits; beyond, a shortlist answers and the rest follows
EXPLANATION_WAIT_SECONDS = 1.0  # that an explanation waits for the model update


class LabellingService:
    """Choose queries and record answers; one instance per server.

    Methods may be called from any thread, and none waits for training. In all methods, `who` is the
    name of an annotator and `key` is made by the client, so that a repeated request counts once.

    Args:
        journal: Durable record of all events.
        items: Items of the session.
        held_out: Positions of test items, which are never queried.
        seed: Seed of the random order and of the overlap.
        lease: Seconds for which an item is leased to one annotator.
        overlap: Fraction of queries that repeat an item labelled by another annotator, to measure
            agreement.
        budget: Number of planned labels.
        order: Positions in random order; default: a permutation of all items.
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
            raise InputError(f"overlap is {overlap}; expected a fraction of at least 0 and below 1")
        self.journal = journal
        self.items = items
        self.budget = budget
        self.held_out = frozenset(held_out)
        self.lease_seconds = lease
        self.overlap = overlap
        self.max_immediate_pairs = MAX_IMMEDIATE_PAIRS
        self.excluded: dict[int, str] = {}  # position -> why it is excluded from queries
        self.page_model: PageModel | None = None
        self.show_guesses = False  # whether annotators see guesses before they answer
        self.test_answers: Mapping[int, str] = {}  # of a task: written answers of test items
        self.is_behind = False  # whether the page model does not reflect the labels yet
        self._label_version = 0  # number of changes of labels or classes
        # restricted to the best candidates; updated before the page model where that is slow
        self._shortlist_model: PageModel | None = None
        self._shortlist_lock = threading.Lock()  # held while the shortlist is updated
        self._update_lock = threading.Lock()  # held while the page model is updated
        # One thread each for linear algebra: the BLAS library keeps megabytes of buffers for every
        # thread that ever called it, and a server has forty threads.
        self._update_executor = ThreadPoolExecutor(1, "page model")
        self._shortlist_executor = ThreadPoolExecutor(1, "shortlist")
        self.lock = threading.RLock()
        self.labels_changed = threading.Condition(self.lock)  # notified when labels change
        self._last_seen: dict[str, float] = {}
        self._undone_items: dict[str, int] = {}  # annotator -> item of the last undone answer
        order = shuffle_positions(len(items), seed).tolist() if order is None else order
        self._random_order = [p for p in order if p not in self.held_out]
        self._overlap_generator = make_generator(seed, "overlap")

    @property
    def label_state(self) -> LabelState:
        """Return the current labels, conflicts and classes."""
        return self.journal.label_state

    def describe_classes(self) -> list[dict[str, Any]]:
        """Return number, name and keyboard key of every class."""
        label_state = self.label_state
        key = assign_keys(label_state.classes)
        return [
            {"number": c, "name": label_state.classes[c], "key": key[c]}
            for c in label_state.active_classes
        ]

    def describe_none_of_these(self) -> dict[str, Any] | None:
        """Return number, name and keyboard key of the answer "none of these".

        None if a class of the user has this name.
        """
        label_state = self.label_state
        if not label_state.can_be_none_of_these:
            return None
        used = assign_keys(label_state.classes)
        key = next(k for k in NONE_KEYS if k not in used)
        return {"number": NONE_OF_THESE, "name": NONE_OF_THESE_NAME, "key": key}

    def describe_task(self) -> dict[str, Any] | None:
        """Return how answers of the task are given; None for one class per item."""
        return describe_task(self.label_state.task)

    def next_query(self, who: str, *, fresh: bool = False) -> dict[str, Any]:
        """Return the query of an annotator; repeated calls return the same item until it is answered.

        Args:
            who: Name of the annotator.
            fresh: Release the leased item and choose the best item now.
        """
        with self.lock:
            self._last_seen[who] = time.monotonic()
            if fresh:
                self.journal.release_lease(who)
            label_state, leases = self.label_state, self.journal.list_leases()
            leased_position = next((p for p, name in leases.items() if name == who), None)
            if (
                leased_position is not None
                and leased_position not in label_state.answered_positions.get(who, ())
                and leased_position not in self.excluded
            ):
                reason = (
                    UNDONE_TEXT
                    if self._undone_items.get(who) == leased_position
                    else self._get_reason(label_state, leased_position)
                )
                return self._describe_query(label_state, leased_position, None, reason)
            leased_by_others = {p for p, name in leases.items() if name != who}
            while True:
                choice = self._choose_item(label_state, who, leased_by_others)
                if choice is None:
                    self.journal.release_lease(who)
                    return {"done": True, "reason": self._explain_done(label_state)}
                position, score, reason = choice
                if not self._is_displayable(position):
                    continue
                if self.journal.lease_item(position, who, self.lease_seconds):
                    return self._describe_query(label_state, position, score, reason)
                leased_by_others.add(position)

    def exclude_items(self, excluded: Mapping[int, str]) -> None:
        """Exclude items from queries. excluded: position -> reason."""
        with self.lock:
            self.excluded |= excluded

    def _is_displayable(self, position: int) -> bool:
        """Return whether an item can be shown.

        Items of the page model have been read before; others are read now.
        """
        if self.page_model is not None and position in self.page_model.pool_posterior:
            return True
        why = self.items.find_problem(position)
        if why is not None:
            self.excluded[position] = why
        return why is None

    def record_answer(
        self,
        who: str,
        position: int,
        kind: str,
        label: int | None = None,
        key: str | None = None,
        value: Any = None,
    ) -> dict[str, Any]:
        """Record an answer durably, update the model, and return the next query.

        For an item that is already labelled, it is a correction or a second opinion.

        Args:
            who: Name of the annotator.
            position: Of the item.
            kind: See `ACCEPTED_KINDS`.
            label: Class number, or code of an answer to a task.
            key: Made by the client.
            value: The answer instead of `label`, as the task reads it, or the name of a class.
        """
        with self.lock:
            self._check_answer(self.label_state, position, kind, label, value)
            self._last_seen[who] = time.monotonic()
            event = self.journal.add_event(kind, who, position, label, key=key, value=value)
        changed = None if kind in NEUTRAL_KINDS else self._try_update()
        with self.lock:
            query = self.next_query(who)
            return {
                "event": describe_event(event, self.label_state),
                "changed": changed,
                "labels": len(self.label_state.labels),
                "next": query,
            }

    def undo_answer(
        self, who: str, seq: int | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """Undo the annotator's last answer, or their answer `seq`; the item is queried again.

        After undoing a `keep` or a bulk confirmation, no item is queried again.
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
            undone_event = self.journal.read_event(event.ref) if event.ref is not None else event
        if undone_event.kind in CLASS_CHANGE_KINDS:
            self._apply_class_change()
        else:
            self._try_update()
        with self.lock:
            again = None if undone_event.kind in ("keep", "confirm") else undone_event.position
            if again is not None and self.journal.lease_item(again, who, self.lease_seconds):
                self._undone_items[who] = again
                query = self._describe_query(self.label_state, again, None, UNDONE_TEXT)
            else:
                query = self.next_query(who)
            labels = len(self.label_state.labels)
            return {
                "undone": {**describe_event(undone_event, self.label_state), "together": together},
                "next": query,
                "labels": labels,
            }

    def add_class(
        self, who: str, name: str, positions: Collection[int] = (), key: str | None = None
    ) -> dict[str, Any]:
        """Add a class and return its description, and "confirmed": the items that it has now.

        positions: items that get this class at once; labelled ones must be "none of these". One
            undo reverts their labels, and not the class.
        """
        with self.lock:
            for position in positions:
                self._check_answer(self.label_state, position, "skip", None)
            number = self.journal.add_class(who, name)
            events = []
            if positions:
                events = self.journal.confirm_items(
                    who, positions, number, key=key, replace_none=True
                )
            # Describe it before the lock is released: another request may remove or merge the class
            # right after.
            added = next(c for c in self.describe_classes() if c["number"] == number)
        self._try_update()
        return added | ({"confirmed": [e.position for e in events]} if positions else {})

    def change_class(
        self, who: str, kind: str, number: int, name: str | None, key: str | None = None
    ) -> dict[str, Any]:
        """Rename a class, merge it into the class `name`, or remove it; `undo_answer` reverts it."""
        with self.lock:
            event = self.journal.change_class(
                who, kind, number, name, key=key, min_classes=MIN_CLASSES
            )
        self._apply_class_change()
        return {
            "event": describe_event(event, self.label_state),
            "classes": self.describe_classes(),
            "labels": len(self.label_state.labels),
        }

    def _apply_class_change(self) -> None:
        """Update the page model to changed classes, and wait for it."""
        with self.lock:
            self._label_version += 1
        self.catch_up()
        with self.lock:
            self.labels_changed.notify_all()

    def build_grid(self, who: str, n: int = GRID_ITEMS, label: int | None = None) -> dict[str, Any]:
        """Return confident predictions of one class, for bulk confirmation.

        Args:
            who: Name of the annotator.
            n: Maximum number of items.
            label: The class; default: the class with most confident predictions.

        Returns:
            The class, its items, and under "sure" the number of confident predictions per class.
        """
        with self.lock:
            page_model, label_state = self.page_model, self.label_state
            self._last_seen[who] = time.monotonic()
            leased_by_others = {p for p, name in self.journal.list_leases().items() if name != who}
        if page_model is None or not page_model.has_labels:
            return {"label": None, "items": [], "sure": []}
        without = (
            leased_by_others
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

    def list_none_of_these(self, n: int = GRID_ITEMS) -> dict[str, Any]:
        """Return the items answered "none of these", the newest first, and unlabelled similar ones.

        Both are offered for a new class. n: maximum number of each.
        """
        with self.lock:
            page_model, label_state = self.page_model, self.label_state
        answered = sorted(
            ((label_state.find_deciding_answer(p), p) for p in label_state.none_of_these),
            key=lambda pair: -pair[0].seq,
        )
        similar: list[int] = []
        if page_model is not None and answered:
            without = label_state.labels.keys() | self.held_out | self.excluded.keys()
            similar = page_model.list_of_no_class(n, without)
        describe = self.items.describe_item
        return {
            "count": len(answered),
            "items": [{**describe(p), **a.pick_fields("who", "at")} for a, p in answered[:n]],
            "similar": [describe(p) for p in similar],
        }

    def confirm_items(
        self,
        who: str,
        positions: Collection[int],
        label: int,
        key: str | None = None,
        *,
        replace: bool = False,
    ) -> dict[str, Any]:
        """Record durably, in one transaction, that all these items are of one class.

        Items that have been labelled in the meantime are left unchanged, unless `replace`.
        """
        with self.lock:
            label_state = self.label_state
            for position in positions:
                self._check_answer(label_state, position, "label", label)
            self._last_seen[who] = time.monotonic()
            events = self.journal.confirm_items(who, positions, label, key=key, replace=replace)
        changed = self._try_update() if events else None
        with self.lock:
            return {
                "confirmed": [e.position for e in events],
                "label": label,
                "changed": changed,
                "labels": len(self.label_state.labels),
                "next": self.next_query(who),
            }

    def add_labels(
        self, rows: Collection[tuple[int, Any, str]], new_classes: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Record labels from a file: (position, class name or answer of the task, annotator).

        new_classes: of a task, added before; otherwise they are found in the labels.
        """
        with self.lock:
            before = self.label_state
            for position, _, _ in rows:
                self._check_answer(before, position, "skip", None)
            if before.task is None:
                self.journal.add_labels(rows)
            else:
                self.journal.add_values(rows, new_classes)
        self._try_update()
        with self.lock:
            new = [c for c in self.label_state.classes if c not in before.classes]
            return {"labels": len(rows), "new_classes": new}

    def update_model(self) -> None:
        """Update the model to labels that were written to the journal directly."""
        self._try_update()

    def extend_items(self, data: Data) -> None:
        """Append items. They can be queried once a snapshot contains them."""
        with self.lock:
            self.journal.add_items(data.ids[len(self.items) :])
            self.items.data = data

    def set_page_model(self, page_model: PageModel) -> None:
        """Install the model of a new snapshot and update it to the current labels.

        The model is scored first (half a second in a new process for 256 items), while the previous
        one serves the queries. Otherwise the first query would compute the scores while it holds
        the lock, and the answers until then would not change the queries that follow them.
        """
        page_model.best_score()
        short = self._build_shortlist(page_model)
        with self.lock:
            self.page_model, self._shortlist_model = page_model, short
        self._try_update()

    def _build_shortlist(self, page_model: PageModel) -> PageModel | None:
        if page_model.scoring_pairs <= self.max_immediate_pairs:
            return None
        return page_model.build_shortlist()

    def wait_for_page_model(self) -> PageModel | None:
        """Return the page model, after waiting up to a second for its update to the last answer."""
        with self.labels_changed:
            self.labels_changed.wait_for(lambda: not self.is_behind, EXPLANATION_WAIT_SECONDS)
            return self.page_model

    def find_random_sample(self, label_state: LabelState) -> tuple[int, ...]:
        """Return labelled items that form a random sample of the pool, or none if there are too few.

        The sample follows the fixed random order up to the first item without an individual answer;
        skipped items are left out. Bulk-confirmed items count as unanswered, because annotators do
        not examine them closely enough to measure the accuracy with them.
        """
        own = (label_state.labels.keys() | label_state.answers.keys()) - label_state.confirmed
        answered = takewhile(lambda p: p in own, self._random_order)
        sample = tuple(p for p in answered if p in label_state.labels)
        return sample if len(sample) >= MIN_RANDOM_LABELS else ()

    def list_active_annotators(self) -> set[str]:
        """Return the annotators who sent a request recently."""
        now = time.monotonic()
        return {who for who, at in self._last_seen.items() if now - at < AWAY_SECONDS}

    def _check_answer(
        self,
        label_state: LabelState,
        position: int,
        kind: str,
        label: int | None,
        value: Any = None,
    ) -> None:
        if not 0 <= position < len(self.items) or position in self.held_out:
            raise InputError(f"there is no item {position} to label; expected an item of the pool")
        if kind not in ACCEPTED_KINDS:
            raise InputError(f"kind is {kind!r}; expected one of {', '.join(ACCEPTED_KINDS)}")
        count = len(label_state.classes)
        if kind == "settle" and position not in label_state.labels:
            raise InputError(
                f"item {position} has no label yet; expected a labelled item to settle"
            )
        if value is not None and (kind not in NONE_KINDS or label is not None):
            raise InputError(
                f"{kind} with the value {value!r} and the label {label}; expected one of them, for "
                f"{', '.join(NONE_KINDS)}"
            )
        if value is not None or (label_state.has_codes and label is not None):
            return  # the journal checks it
        none = label == NONE_OF_THESE and kind in NONE_KINDS
        if kind in NONE_KINDS and not none and (label is None or not 0 <= label < count):
            raise InputError(f"label is {label}; expected a class number, 0 to {count - 1}")

    def _try_update(self) -> int | None:
        """Update the page model if that is fast; return how many predictions changed class.

        Never blocks: if an update is running or would take long, it is left to `catch_up`, and
        queries come from the shortlist or the outdated model. None is returned in that case.
        """
        with self.lock:
            self._label_version += 1
            page_model, label_state = self.page_model, self.label_state
            if page_model is None:
                self.labels_changed.notify_all()
                return None
            # Before the first label all candidates score alike, so a shortlist is useless.
            light = (
                page_model.scoring_pairs <= self.max_immediate_pairs
                or not page_model.pool_posterior.labels
            )
            near = (
                light
                and page_model.has_same_outputs(label_state)
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
        """Update the shortlist, unless another thread is doing it."""
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
            page_model.has_same_outputs(label_state)
            and page_model.pool_posterior.labels.items() <= label_state.labels.items()
        )
        after = None
        if more and before.pool_posterior.can_update_incrementally(label_state.labels):
            after = before.with_state(label_state)
            after.best_score()
        with self.lock:
            if self._shortlist_model is before:
                self._shortlist_model = after

    def catch_up(self) -> None:
        """Update the page model to the current labels, however long it takes."""
        with self._update_lock:
            self._update_executor.submit(self._update_page_model).result()

    def _update_page_model(self) -> int | None:
        """Compute the update outside the lock; discard it if the model was replaced meanwhile."""
        with self.lock:
            before, label_state, turn = self.page_model, self.label_state, self._label_version
            if before is None:
                self.is_behind = False
                return None
        after = before.with_state(label_state)
        after.best_score()  # computes the scores now, so that a query does not wait for them
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
        """Return the model with the newest labels.

        This is the shortlist if it has labels and contains the item, otherwise the page model.
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
        """Yield the unlabelled items in the order in which they would be queried now."""
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
                        *page_model.query_posterior.rank_candidates(page_model.acquisition),
                    ]
        for position in dict.fromkeys((*some, *self._random_order)):
            if position not in without and self._is_displayable(position):
                yield position

    def _get_reason(self, label_state: LabelState, position: int) -> str:
        """Return why an item is queried; it may have been chosen a while ago."""
        if position in label_state.labels:
            return SECOND_OPINION
        if self.page_model is None:
            return "random start"
        return "look-ahead" if self.page_model.snapshot.round else "covers the pool"

    def _choose_item(
        self, label_state: LabelState, who: str, leased: set[int]
    ) -> tuple[int, float | None, str] | None:
        """Return (position, score, reason) of the best item for an annotator, or None.

        taken: items leased to other annotators.
        """
        without = leased | label_state.answered_positions.get(who, frozenset())
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
        """Return, with probability `overlap`, the oldest item with one label of another annotator."""
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
            return "the last items are leased to other annotators; come back later"
        aside = len(label_state.skipped | label_state.unsure)
        if aside:
            return f"every item has an answer ({aside} are skipped or not sure), thank you"
        return "every item has an answer, thank you"

    def _describe_query(
        self, label_state: LabelState, position: int, score: float | None, reason: str
    ) -> dict[str, Any]:
        guess: list[tuple[int, float]] = []
        ahead: list[int] = []
        prediction = None
        page_model = self._newest_model(position)
        if page_model is not None:
            # The prediction is hidden if the posterior contains the other annotator's label, or the
            # last snapshot the answer that was undone: it would bias the annotator.
            guess = (
                []
                if reason in (SECOND_OPINION, UNDONE_TEXT)
                else page_model.predict_classes(position)
            )
            guess = [
                (c, p) for c, p in guess if c in label_state.active_classes
            ]  # the model may not know of a removed class yet
            if reason not in (SECOND_OPINION, UNDONE_TEXT):
                prediction = page_model.describe_prediction(position)
            if self.items.kind in (IMAGE, SOUND):
                ahead = page_model.rank_next(PREFETCH_ITEMS, {position})
        urls = [self.items.describe_item(p)["url"] for p in ahead]
        return {
            "done": False,
            "kind": self.items.kind,
            **self.items.describe_item(position),
            "guess": [{"label": c, "p": round(p, 4)} for c, p in guess],
            "prediction": prediction,
            "score": score,
            "reason": reason,
            "seq": label_state.seq,
            "prefetch": urls,
        }


def describe_event(event: Event, label_state: LabelState) -> dict[str, Any]:
    """Return the fields of an event that the page uses; of a task also the written answer."""
    found = event.pick_fields("seq", "kind", "position", "label", "who", "at")
    if label_state.task is not None:
        found["answer"] = None if event.label is None else label_state.name_label(event.label)
    return found


def assign_keys(names: Iterable[str]) -> list[str | None]:
    """Assign a keyboard key to each class: its name if that is one character, else a free key.

    Keys are assigned in order, so that adding a class never changes the key of another class.
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
