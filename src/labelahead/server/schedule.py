"""When to train, and handing over what came of it: a thread beside the server's own."""

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from labelahead.errors import ClusterError, LabelaheadError
from labelahead.files import refused
from labelahead.learner.config import Campaign
from labelahead.learner.stopping import ErrorReading, stop_advice
from labelahead.server.journal_files import MissingLabels
from labelahead.server.label_state import LabelState
from labelahead.server.large_pool import Holding
from labelahead.server.page_model import PageModel
from labelahead.server.refresh import Order, refreshed
from labelahead.server.service import LabellingService
from labelahead.server.snapshot import Snapshot, load_snapshot
from labelahead.server.snapshot_builder import FIRST, IN_PLAY
from labelahead.server.worker import Worker

__all__ = ["Schedule"]

SNAPSHOTS = 2  # snapshots on the disk
RETRY = 5.0  # seconds after which what failed is tried again
SCORING = (
    "Labels are safe and questions go on among the items held, but scoring the whole pool, "
    "which is tried again,"
)
NAMED = 5  # broken pictures that are named
UNUSABLE = "the server cannot use its files; its terminal says why"
OUTLOOK = ("error_rate", "error_low", "error_high", "fall")
log = logging.getLogger("labelahead")


class Schedule:
    """Orders trainings as answers come in, and swaps in the new opinion when one is done.

    campaign: what the session was opened with. every: labels that were added, changed or taken back
    between two trainings. exact: the learner needs no training, so that the worker only looks at
    the items, once, and more and more of them come into play meanwhile. refresh_every: of a pool of
    millions, labels between two looks at it.
    """

    def __init__(
        self,
        assignment: LabellingService,
        worker: Worker | Holding,
        folder: Path,
        campaign: Campaign,
        *,
        every: int = 10,
        exact: bool = False,
        refresh_every: int | None = None,
    ) -> None:
        self.assignment, self.worker, self.folder, self.every, self.exact = (
            assignment,
            worker,
            folder,
            every,
            exact,
        )
        self.campaign = campaign
        self.state, self.done, self.message = "waiting", 0.0, ""
        self._trouble = ""  # with scoring a pool of millions, until it is over
        self.refresh_every, self._scored = (
            refresh_every,
            0,
        )  # labels that the last look at the pool knew
        self._looking: threading.Thread | None = None
        self._resting = True  # nobody is looking
        self._began: tuple[float, float] = (
            0.0,
            0.0,
        )  # when the items were begun to be looked at, how much was done
        self._wider: Snapshot | None = None  # with more items in play than the opinion has
        self.model = ""  # which network learns, and from what
        self.rounds: list[dict[str, Any]] = []
        self._tried: dict[int, int] | None = None  # labels of an order that failed
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="schedule")

    def start(self) -> None:
        """Take up the last snapshot, if there is one that fits, and go on from there."""
        self.remember()
        self._resting = not self.exact or self.is_complete()
        if not self._resting or self.refresh_every is not None:
            self._looking = threading.Thread(target=self._look, daemon=True, name="looking")
            self._looking.start()
        self._thread.start()

    def is_complete(self) -> bool:
        """Whether all items are in play that ever will be."""
        opinion, assignment = self.assignment.opinion, self.assignment
        if opinion is None or not opinion.snapshot.facts.get("whole", True):
            return False
        there = len(assignment.items) - len(assignment.closed) - len(assignment.broken)
        return len(opinion.snapshot.points) >= min(there, IN_PLAY)

    def stop(self) -> None:
        """End the thread and the training."""
        self._ending.set()
        with self.assignment.moved:
            self.assignment.moved.notify_all()
        self.worker.close()
        for thread in (self._thread, self._looking):
            if thread is not None and thread.is_alive():
                thread.join(5)

    @property
    def is_looking(self) -> bool:
        """Whether items are being looked at; never without a page."""
        return self._looking is not None and self._looking.is_alive() and not self.is_complete()

    @property
    def idle(self) -> bool:
        """Nothing is being trained and nothing is due."""
        with self.assignment.lock:
            looking = self._wider is not None or not self._resting or self._stale()
            at_rest = self.state in ("idle", "waiting") and not self.assignment.behind
            return not looking and at_rest and self._due() is None

    def status(self) -> dict[str, Any]:
        """For the page."""
        opinion = self.assignment.opinion
        last = self.rounds[-1] if self.rounds else {}
        return {
            "state": self.state,
            "done": self.done,
            "message": "; ".join(filter(None, (self._trouble, self.message))),
            "model": self.model,
            "in_play": len(opinion.snapshot.points) if opinion else 0,
            "seconds_left": self._seconds_left(),
            "first": self._first() if opinion is None else None,
            "round": opinion.snapshot.round if opinion else None,
            "labels_at_last": last.get("labels", 0),
            "idle": self.idle,
        }

    def _seconds_left(self) -> int | None:
        """Until all items have been looked at; nobody knows before some have."""
        began, first = self._began
        if self.state != "features" or self.done - first < 1e-3:
            return None
        return round((time.monotonic() - began) * (1 - self.done) / (self.done - first))

    def _first(self) -> dict[str, int | None]:
        """Of the items that must be looked at before look-ahead can begin.

        How many there are, seen, seconds left.
        """
        there = min(len(self.assignment.items) - len(self.assignment.closed), IN_PLAY)
        of, seen, left = min(FIRST, there), round(self.done * there), self._seconds_left()
        share = (of - seen) / max(1, there - seen)
        return {
            "of": of,
            "seen": min(seen, of),
            "seconds_left": None if left is None else max(0, round(left * share)),
        }

    def advice(self) -> str | None:
        """Whether further labels still pay."""
        return stop_advice(self.readings())

    def readings(self) -> list[ErrorReading]:
        """The error estimates of all refreshes so far, those of earlier sessions first."""
        return [
            ErrorReading(r.get("labels", 0), *(r.get(name) for name in OUTLOOK))
            for r in self.rounds
        ]

    def remember(self) -> None:
        """Rounds and the last snapshot of an earlier session; what cannot be read is made anew."""
        path = self.folder / "rounds.jsonl"
        # Class numbers are those of one record: after another was begun here, all of this is void.
        events = self.assignment.journal.events()
        tally = self.assignment.tally
        said = {(e.position, e.label) for e in events if e.kind in ("label", "confirm", "settle")}
        said |= set(tally.labels.items())  # of merged classes
        if path.exists() and said:
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    self.rounds.append(dict(json.loads(line)))
                except ValueError:  # cut short by a kill
                    continue
        for last in sorted(self.folder.glob("snapshot-*.pt"), reverse=True):
            try:
                snapshot, classes = load_snapshot(last), len(tally.classes)
                self._require_labels(last, snapshot, {position for position, _ in said})
                fits = snapshot.outputs.shape[1] <= max(classes, 2)
                if fits and said.issuperset(snapshot.labels.items()):
                    opinion = PageModel.of(snapshot, tally.labels, classes, tally.counts_as)
                    opinion.gain()  # a criterion that fails, fails here
                    self.assignment.take(opinion)
                    self._scored = int(snapshot.facts.get("scored", 0))
                    return
            except MissingLabels:
                raise
            except Exception as error:  # a snapshot is a convenience: labels are in the journal
                log.warning("%s cannot be used (%s); a training makes it anew", last, error)

    def _require_labels(self, path: Path, snapshot: Snapshot, labelled: Set[int | None]) -> None:
        """Raise if a training knew labels that the journal lacks; labelled: items that ever had
        one.

        A copy of the journal may be older than the snapshot, and nothing is written to it.
        """
        missing = snapshot.labels.keys() - labelled
        if missing and not self.assignment.journal.reads_only:
            lacking = f"has no label of {len(missing)} items that {path.name} was trained on"
            raise MissingLabels(self.assignment.journal.path, lacking)

    def _due(self) -> Order | None:
        """What to train next, if anything."""
        tally, opinion = self.assignment.tally, self.assignment.opinion
        labels, classes = tally.labels, len(tally.classes)
        if opinion is None and (self.exact or not labels):
            return None if self.exact else Order(0, (), classes)  # the items are being looked at
        trained = opinion.snapshot.labels if opinion else {}
        differing = {p for p, _ in labels.items() ^ trained.items()}
        # The exact learner has absorbed every label; only its kernel is chosen anew, which many
        # labels change little.
        wait = max(self.every, len(labels) // 20) if self.exact else self.every
        enough = len(differing) >= wait and len(set(labels.values())) > 1
        if enough and labels != self._tried:
            number = (opinion.snapshot.round if opinion else 0) + 1
            return self._order(number, tally)
        return Order(0, (), classes) if opinion is None else None

    def _order(self, number: int, tally: LabelState) -> Order:
        trusted, confirmed = self.assignment.trusted(tally), tuple(tally.confirmed)
        labels, alive = tuple(tally.labels.items()), tuple(tally.alive)
        return Order(number, labels, len(tally.classes), trusted, confirmed, alive)

    def _run(self) -> None:
        while not self._ending.is_set():
            if self.assignment.behind:
                self._catch_up()
            with self.assignment.moved:
                wider = self._wider
                try:
                    order = self._due() if wider is None else self._again()
                except LabelaheadError as error:
                    log.warning("%s", error)
                    order, self.message = (
                        None,
                        "the labels cannot be read now; tried again after the next answer",
                    )
                if order is None and wider is None:
                    if self._resting:
                        self.state, self.done = "idle", 0.0
                    if not self.assignment.behind:
                        self.assignment.moved.wait()
                    continue
            self._carry_out(order or Order(0, (), 2), wider)
            with self.assignment.lock:
                if self._wider is wider:
                    self._wider = None

    def _catch_up(self) -> None:
        began = time.monotonic()
        try:
            self.assignment.catch_up()
            # Answers that come faster than they can be learnt from are learnt together; they come
            # first.
            self._ending.wait(min(time.monotonic() - began, 1.0))
        except Exception as error:
            self._failed(error)
            self._ending.wait(RETRY)

    def _again(self) -> Order:
        """What is to be learnt with more items in play.

        As much as was learnt without them, or more.
        """
        tally, opinion = self.assignment.tally, self.assignment.opinion
        labels, classes = tally.labels, len(tally.classes)
        number = opinion.snapshot.round if opinion else 0
        enough = len(labels) >= self.every and len(set(labels.values())) > 1
        if not enough:
            return Order(0, (), classes)
        return self._order(max(number, 1), tally)

    def _look(self) -> None:
        """Have the worker look at the items, a few first; try again after a while if that fails."""

        def tell(what: str, done: float) -> None:
            if what == "features" and self.state != "features":
                self._began = time.monotonic(), done
            if what in ("loading", "features", "scoring"):
                self.state, self.done = what, done

        def wider(path: Path) -> None:
            snapshot = load_snapshot(path)
            with self.assignment.moved:
                self._wider = snapshot
                self.assignment.moved.notify_all()

        while not self._ending.is_set():
            try:
                with self.assignment.moved:
                    while self._resting and not self._stale() and not self._ending.is_set():
                        self.assignment.moved.wait()
                    if self._ending.is_set():
                        return
                    self._resting = False
                    labels = tuple(self.assignment.tally.labels.items())
                wider(self.worker.run(Order(0, labels, 2), tell, wider))
                self.state, self.done = "idle", 0.0
                self.worker.stop()  # from now on there is nothing to train: no process, no file
                self._forget()
                self._scored, self._resting, self._trouble = len(labels), True, ""
                if self.refresh_every is None:
                    return
            except Exception as error:  # whatever it is, it must be tried again
                self._failed(
                    error, "looking at the items" if self.refresh_every is None else SCORING
                )
                self._ending.wait(RETRY)

    def _stale(self) -> bool:
        """Whether a pool of millions is to be scored again."""
        if self.refresh_every is None or self._looking is None:
            return False
        return abs(len(self.assignment.tally.labels) - self._scored) >= self.refresh_every

    def _carry_out(self, order: Order, wider: Snapshot | None = None) -> None:
        def tell(what: str, done: float) -> None:
            self.state, self.done = what, done

        opinion = self.assignment.opinion
        try:
            before = wider or (opinion.snapshot if opinion else None)
            if before is not None and before.units is not None:
                fresh = wider is None or opinion is None or order.round > opinion.snapshot.round
                self._hand_over(refreshed(before, order), fresh=fresh)
                return
            self.message = ""
            self._hand_over(load_snapshot(self.worker.run(order, tell)))
            self._forget()
        except Exception as error:  # whatever it is, this thread must be there for the next answers
            if self._ending.is_set():
                return
            self._failed(error)
            self._tried = dict(order.labels)
            if order.round == 0:  # nothing to fall back on: wait for answers
                with self.assignment.moved:
                    self.assignment.moved.wait(RETRY)

    def _failed(self, error: Exception, what: str = "the last training") -> None:
        if self._ending.is_set():
            return
        log.warning("%s failed: %s", what, error)
        said = str(error)
        if isinstance(error, ClusterError):
            said = said.partition(";")[0]  # what to do about it is for the terminal
        elif isinstance(error, OSError):  # where on the disk is said to the terminal alone
            full = refused(self.folder, error).full
            said = "the server's disk is full: labels are safe; make room" if full else UNUSABLE
        self.state, sentence = "idle", f"{what} failed: {said}"
        if what == SCORING:
            self._trouble = sentence
        else:
            self.message = sentence

    def _hand_over(self, snapshot: Snapshot, *, fresh: bool = True) -> None:
        """Everything slow is done before anybody has to wait.

        fresh: it has learnt something, not only seen more.
        """
        tally = self.assignment.tally
        broken = snapshot.facts.get("unreadable", {})
        if set(broken) - self.assignment.broken.keys():
            self.assignment.leave_out(broken)
        opinion = PageModel.of(snapshot, tally.labels, len(tally.classes), tally.counts_as)
        gain = opinion.gain() if opinion.belief.view.candidates.numel() and snapshot.round else None
        self.assignment.take(opinion)
        if snapshot.round and fresh:
            facts = snapshot.facts
            measured = {
                name: facts.get(name)
                for name in ("accuracy", "loo", "loo_all", "loo_error", "drift", *OUTLOOK)
            }
            seconds = round(facts["train_seconds"] + facts["kernel_seconds"], 3)
            entry = {"labels": facts["labels"], **measured, "gain": gain, "seconds": seconds}
            self.rounds.append(entry)
            with (self.folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        self.message = "; ".join(self._said(snapshot.facts))

    def _said(self, facts: Mapping[str, Any]) -> Iterator[str]:
        yield from facts.get("notes", ())
        broken, items = list(self.assignment.broken), self.assignment.items
        if broken:
            names = ", ".join(str(items.ids[p]) for p in broken[:NAMED]) + (
                ", ..." if len(broken) > NAMED else ""
            )
            yield f"{len(broken)} pictures cannot be read and are left out: {names}"

    def _forget(self) -> None:
        for old in sorted(self.folder.glob("snapshot-*.pt"))[:-SNAPSHOTS]:
            old.unlink(missing_ok=True)
