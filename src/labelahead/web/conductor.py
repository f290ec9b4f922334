"""When to train, and handing over what came of it: a thread beside the desk."""

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelahead.advice import stop_advice
from labelahead.errors import LabelaheadError
from labelahead.store import Round
from labelahead.web.desk import Desk
from labelahead.web.mind import Mind, Snapshot, load_snapshot
from labelahead.web.trainer import Order, Trainer

__all__ = ["Conductor"]

KEPT = 2  # snapshots on the disk
log = logging.getLogger("labelahead")


class Conductor:
    """Orders trainings as answers come in, and swaps in the new mind when one is done.

    every: labels that were added, changed or taken back between two trainings.
    """

    def __init__(self, desk: Desk, trainer: Trainer, folder: Path, *, every: int = 10) -> None:
        self.desk, self.trainer, self.folder, self.every = desk, trainer, folder, every
        self.state, self.done, self.message = "waiting", 0.0, ""
        self.rounds: list[dict[str, Any]] = []
        self._tried: dict[int, int] | None = None  # labels of an order that failed
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="conductor")

    def start(self) -> None:
        """Take up the last snapshot, if there is one that fits, and go on from there."""
        self.remember()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the training."""
        self._ending.set()
        with self.desk.moved:
            self.desk.moved.notify_all()
        self.trainer.stop()
        if self._thread.is_alive():
            self._thread.join(5)

    @property
    def idle(self) -> bool:
        """Nothing is being trained and nothing is due."""
        with self.desk.lock:
            return self.state in ("idle", "waiting") and self._due() is None

    def status(self) -> dict[str, Any]:
        """For the page."""
        mind = self.desk.mind
        last = self.rounds[-1] if self.rounds else {}
        return {
            "state": self.state, "done": self.done, "message": self.message,
            "round": mind.snapshot.round if mind else None,
            "labels_at_last": last.get("labels", 0), "idle": self.idle,
        }  # fmt: skip

    def advice(self) -> str | None:
        """Whether further labels still pay."""
        found = [
            Round(
                number=i, labels=r["labels"], accuracy=r["accuracy"], train_accuracy=1.0,
                train_loss=0.0, steps=0, asked=1, gain=r["gain"], loo_error=r["loo_error"],
            )
            for i, r in enumerate(self.rounds)
        ]  # fmt: skip
        return stop_advice(found)

    def remember(self) -> None:
        """Rounds and the last snapshot of an earlier session; what cannot be read is made anew."""
        path = self.folder / "rounds.jsonl"
        # Class numbers are those of one record: after another was begun here, all of this is void.
        events = self.desk.book.events()
        said = {(e.position, e.label) for e in events if e.kind in ("label", "settle")}
        if path.exists() and said:
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    entry: Mapping[str, Any] = json.loads(line)
                    self.rounds.append(dict(entry))
                except ValueError:  # cut short by a kill
                    continue
        for last in sorted(self.folder.glob("snapshot-*.pt"), reverse=True):
            try:
                found = load_snapshot(last)
                standing = self.desk.standing
                mind = Mind(found, len(standing.classes), found.labels)
                fits = found.outputs.shape[1] <= max(len(standing.classes), 2)
                if fits and said.issuperset(found.labels.items()):
                    self.desk.take(mind)
                    return
            except Exception as error:  # a snapshot is a convenience: labels are in the book
                log.warning("%s cannot be used (%s); a training makes it anew", last, error)

    def _due(self) -> Order | None:
        """What to train next, if anything."""
        labels = dict(self.desk.standing.labels)
        classes = len(self.desk.standing.classes)
        mind = self.desk.mind
        if mind is None and not labels:
            return Order(0, (), classes)
        trained = dict(mind.snapshot.labels) if mind else {}
        differing = {p for p in labels.keys() | trained.keys() if labels.get(p) != trained.get(p)}
        enough = len(differing) >= self.every and len(set(labels.values())) > 1
        if enough and labels != self._tried:
            number = (mind.snapshot.round if mind else 0) + 1
            return Order(number, tuple(labels.items()), classes)
        return Order(0, (), classes) if mind is None else None

    def _run(self) -> None:
        while not self._ending.is_set():
            with self.desk.moved:
                try:
                    order = self._due()
                except LabelaheadError as error:  # the record cannot be read now; perhaps later
                    order, self.message = None, str(error)
                if order is None:
                    self.state, self.done = "idle", 0.0
                    self.desk.moved.wait()
                    continue
            self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        def tell(what: str, done: float) -> None:
            self.state, self.done = what, done

        self.message = ""
        try:
            path = self.trainer.run(order, tell)
            self._hand_over(load_snapshot(path))
            self._forget()
        except Exception as error:  # whatever it is, this thread must be there for the next answers
            if self._ending.is_set():
                return
            self.state, self.message = "idle", f"the last training failed: {error}"
            log.warning("%s", self.message)
            self._tried = dict(order.labels)
            if order.round == 0:  # nothing to fall back on: wait for answers
                with self.desk.moved:
                    self.desk.moved.wait(5)

    def _hand_over(self, found: Snapshot) -> None:
        """Everything slow is done before the desk is asked to wait."""
        standing = self.desk.standing
        mind = Mind(found, len(standing.classes), found.labels).told(
            standing.labels, len(standing.classes)
        )
        gain = float(mind.scores.max()) if len(mind.view.candidates) and found.round else None
        self.desk.take(mind)
        if found.round:
            facts = found.facts
            entry = {
                "labels": facts["labels"], "accuracy": facts.get("accuracy"),
                "loo": facts.get("loo"), "loo_all": facts.get("loo_all"),
                "loo_error": facts.get("loo_error"), "gain": gain,
                "seconds": round(facts["train_seconds"] + facts["kernel_seconds"], 3),
            }  # fmt: skip
            self.rounds.append(entry)
            with (self.folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
            self.message = "; ".join(facts.get("notes", ()))

    def _forget(self) -> None:
        for old in sorted(self.folder.glob("snapshot-*.pt"))[:-KEPT]:
            old.unlink(missing_ok=True)
