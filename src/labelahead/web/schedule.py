"""When to train, and handing over what came of it: a thread beside the server's own."""

import json
import logging
import threading
from pathlib import Path
from typing import Any

from labelahead.campaign.advice import stop_advice
from labelahead.errors import LabelaheadError
from labelahead.web.assignment import Assignment
from labelahead.web.explain import Opinion
from labelahead.web.refresh import Order, refreshed
from labelahead.web.snapshot import Snapshot, load_snapshot
from labelahead.web.worker import Worker

__all__ = ["Schedule"]

SNAPSHOTS = 2  # snapshots on the disk
OUTLOOK = ("error_rate", "error_low", "error_high", "fall")
log = logging.getLogger("labelahead")


class Schedule:
    """Orders trainings as answers come in, and swaps in the new opinion when one is done.

    every: labels that were added, changed or taken back between two trainings.
    """

    def __init__(self, assignment: Assignment, worker: Worker, folder: Path, *, every: int = 10) -> None:
        self.assignment, self.worker, self.folder, self.every = assignment, worker, folder, every
        self.state, self.done, self.message = "waiting", 0.0, ""
        self.model = ""  # which network learns, and from what
        self.rounds: list[dict[str, Any]] = []
        self._tried: dict[int, int] | None = None  # labels of an order that failed
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="schedule")

    def start(self) -> None:
        """Take up the last snapshot, if there is one that fits, and go on from there."""
        self.remember()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the training."""
        self._ending.set()
        with self.assignment.moved:
            self.assignment.moved.notify_all()
        self.worker.close()
        if self._thread.is_alive():
            self._thread.join(5)

    @property
    def idle(self) -> bool:
        """Nothing is being trained and nothing is due."""
        with self.assignment.lock:
            return self.state in ("idle", "waiting") and self._due() is None

    def status(self) -> dict[str, Any]:
        """For the page."""
        opinion = self.assignment.opinion
        last = self.rounds[-1] if self.rounds else {}
        return {
            "state": self.state,
            "done": self.done,
            "message": self.message,
            "model": self.model,
            "round": opinion.snapshot.round if opinion else None,
            "labels_at_last": last.get("labels", 0),
            "idle": self.idle,
        }

    def advice(self) -> str | None:
        """Whether further labels still pay."""
        last = self.rounds[-1] if self.rounds else {}
        return stop_advice(last.get("labels", 0), *(last.get(name) for name in OUTLOOK))

    def remember(self) -> None:
        """Rounds and the last snapshot of an earlier session; what cannot be read is made anew."""
        path = self.folder / "rounds.jsonl"
        # Class numbers are those of one record: after another was begun here, all of this is void.
        events = self.assignment.journal.events()
        said = {(e.position, e.label) for e in events if e.kind in ("label", "settle")}
        if path.exists() and said:
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    self.rounds.append(dict(json.loads(line)))
                except ValueError:  # cut short by a kill
                    continue
        for last in sorted(self.folder.glob("snapshot-*.pt"), reverse=True):
            try:
                snapshot, classes = load_snapshot(last), len(self.assignment.tally.classes)
                fits = snapshot.outputs.shape[1] <= max(classes, 2)
                if fits and said.issuperset(snapshot.labels.items()):
                    opinion = Opinion.of(snapshot, snapshot.labels, classes)
                    opinion.gain()  # a criterion that fails, fails here
                    self.assignment.take(opinion)
                    return
            except Exception as error:  # a snapshot is a convenience: labels are in the journal
                log.warning("%s cannot be used (%s); a training makes it anew", last, error)

    def _due(self) -> Order | None:
        """What to train next, if anything."""
        tally, opinion = self.assignment.tally, self.assignment.opinion
        labels, classes = tally.labels, len(tally.classes)
        if opinion is None and not labels:
            return Order(0, (), classes)
        trained = opinion.snapshot.labels if opinion else {}
        differing = {p for p, _ in labels.items() ^ trained.items()}
        enough = len(differing) >= self.every and len(set(labels.values())) > 1
        if enough and labels != self._tried:
            number = (opinion.snapshot.round if opinion else 0) + 1
            return Order(number, tuple(labels.items()), classes, self.assignment.trusted(tally))
        return Order(0, (), classes) if opinion is None else None

    def _run(self) -> None:
        while not self._ending.is_set():
            with self.assignment.moved:
                try:
                    order = self._due()
                except LabelaheadError as error:
                    log.warning("%s", error)
                    order, self.message = None, "the labels cannot be read now; tried again after the next answer"
                if order is None:
                    self.state, self.done = "idle", 0.0
                    self.assignment.moved.wait()
                    continue
            self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        def tell(what: str, done: float) -> None:
            self.state, self.done = what, done

        self.message = ""
        opinion = self.assignment.opinion
        try:
            if opinion is not None and opinion.snapshot.units is not None:
                self._hand_over(refreshed(opinion.snapshot, order))
                return
            snapshot = load_snapshot(self.worker.run(order, tell))
            if snapshot.units is not None:  # from now on there is nothing to train: no process, no file
                self.worker.stop()
            self._hand_over(snapshot)
            self._forget()
        except Exception as error:  # whatever it is, this thread must be there for the next answers
            if self._ending.is_set():
                return
            log.warning("the last training failed: %s", error)
            # Where on the disk is said to the terminal alone.
            said = "the server cannot use its files; its terminal says why" if isinstance(error, OSError) else error
            self.state, self.message = "idle", f"the last training failed: {said}"
            self._tried = dict(order.labels)
            if order.round == 0:  # nothing to fall back on: wait for answers
                with self.assignment.moved:
                    self.assignment.moved.wait(5)

    def _hand_over(self, snapshot: Snapshot) -> None:
        """Everything slow is done before anybody has to wait."""
        tally = self.assignment.tally
        opinion = Opinion.of(snapshot, snapshot.labels, len(tally.classes)).told(tally.labels, len(tally.classes))
        gain = opinion.gain() if opinion.belief.view.candidates.numel() and snapshot.round else None
        self.assignment.take(opinion)
        if snapshot.round:
            facts = snapshot.facts
            measured = {name: facts.get(name) for name in ("accuracy", "loo", "loo_all", "loo_error", *OUTLOOK)}
            seconds = round(facts["train_seconds"] + facts["kernel_seconds"], 3)
            entry = {"labels": facts["labels"], **measured, "gain": gain, "seconds": seconds}
            self.rounds.append(entry)
            with (self.folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
            self.message = "; ".join(facts.get("notes", ()))

    def _forget(self) -> None:
        for old in sorted(self.folder.glob("snapshot-*.pt"))[:-SNAPSHOTS]:
            old.unlink(missing_ok=True)
