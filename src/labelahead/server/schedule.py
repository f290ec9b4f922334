"""The training schedule: threads that order trainings and install their snapshots."""

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labelahead.errors import ClusterError, LabelaheadError, count_noun
from labelahead.files import as_storage_error
from labelahead.learner.config import Campaign
from labelahead.learner.stopping import ErrorReading, stop_advice
from labelahead.server.journal_files import MissingLabels
from labelahead.server.label_state import LabelState
from labelahead.server.large_pool import LargePoolWorker
from labelahead.server.service import LabellingService
from labelahead.server.snapshot import FORECAST_FIELDS, FitFacts, Snapshot, TrainingRequest
from labelahead.server.snapshot_builder import (
    FIRST_ITEMS,
    MAX_ACTIVE_ITEMS,
    make_guess_key,
    with_current_classes,
)
from labelahead.server.snapshot_files import SnapshotFormatError, load_snapshot
from labelahead.server.task_page_model import build_page_model
from labelahead.server.task_snapshot import TaskSnapshot
from labelahead.server.worker import Worker

__all__ = ["Schedule"]

MAX_SNAPSHOT_FILES = 2
RETRY_SECONDS = 5.0  # after a failure
SCORING_TASK = (
    "Labels are safe and queries continue among the loaded items, but scoring the whole pool, "
    "which is retried,"
)
MAX_NAMES_SHOWN = 5  # of unreadable pictures in a message
# The model of a task has no prediction before its first fit, and its first fits change it most.
TASK_LABELS_PER_REFRESH = 5  # a refresh for every fifth of the labels, up to `retrain_every`
STORAGE_MESSAGE = "the server cannot use its files; see its terminal"
log = logging.getLogger("labelahead")


class Schedule:
    """Order a training after enough new labels, and install the model of each new snapshot.

    Args:
        service: The labelling service.
        worker: Process that trains, or the worker of an out-of-core pool.
        folder: Folder of the session.
        campaign: Settings of the session.
        retrain_every: Labels added, changed or removed between two trainings.
        needs_training: Whether labels count only after a training. If not, the worker only
            computes embeddings, once, and more and more items can be queried meanwhile.
        refresh_every: Labels between two rescorings of an out-of-core pool.

    Attributes:
        retry_seconds: After a failure.
    """

    def __init__(
        self,
        service: LabellingService,
        worker: Worker | LargePoolWorker,
        folder: Path,
        campaign: Campaign,
        *,
        retrain_every: int = 10,
        needs_training: bool = True,
        refresh_every: int | None = None,
    ) -> None:
        self.service = service
        self.worker = worker
        self.folder = folder
        self.campaign = campaign
        self.retrain_every = retrain_every
        self.needs_training = needs_training
        self.refresh_every = refresh_every
        self.retry_seconds = RETRY_SECONDS
        self.state = "waiting"
        self.fraction_done = 0.0
        self.message = ""
        self._scoring_problem = ""  # message while scoring an out-of-core pool fails
        self._labels_at_scoring = 0  # number of labels at the last scoring of the pool
        self._guess_key = ""  # of the guesses that were computed last, or are being computed
        self._encoding_thread: threading.Thread | None = None
        self._encoding_idle = True  # no embeddings are being computed
        # time and fraction done when computing the embeddings started
        self._encoding_start: tuple[float, float] = (0.0, 0.0)
        # with more items than the page model has
        self._larger_snapshot: Snapshot | None = None
        self.model_description = ""  # network and embedding, for the page
        self.rounds: list[dict[str, Any]] = []
        self._failed_labels: dict[int, int] | None = None  # labels of a failed request
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="schedule")

    def start(self) -> None:
        """Restore the last snapshot, if it fits the labels, and start the threads."""
        self.restore()
        self._encoding_idle = self.needs_training or self.is_complete()
        self._guess_key = self._current_guess_key()
        if not self._encoding_idle or self._encodes_again:
            self._encoding_thread = threading.Thread(
                target=self._encode_items, daemon=True, name="encoding"
            )
            self._encoding_thread.start()
        self._thread.start()

    def is_complete(self) -> bool:
        """Return whether the page model contains all items that can be queried."""
        page_model, service = self.service.page_model, self.service
        if page_model is None or not page_model.snapshot.pool_facts.is_whole:
            return False
        item_count = len(service.items) - len(service.held_out) - len(service.excluded)
        return len(page_model.snapshot.points) >= min(item_count, MAX_ACTIVE_ITEMS)

    @property
    def _encodes_again(self) -> bool:
        """Whether items are scored or guesses computed again during the session."""
        return self.refresh_every is not None or self.campaign.data.has_guesses

    def _current_guess_key(self) -> str:
        state = self.service.label_state
        return make_guess_key(
            self.campaign.data, state.active_names, state.active_classes, state.former_classes
        )

    def _needs_new_guesses(self) -> bool:
        """Return whether classes were changed since the guesses were computed."""
        if len(self.service.label_state.active_classes) < 2:
            return False
        return self.campaign.data.has_guesses and self._guess_key != self._current_guess_key()

    def has_current_guesses(self) -> bool:
        """Return whether the guesses of the page model are about the classes that there are now."""
        page_model = self.service.page_model
        key = "" if page_model is None else page_model.snapshot.pool_facts.guess_key
        return key == self._current_guess_key()

    def stop(self) -> None:
        """Stop the threads and the training."""
        self._stopping.set()
        with self.service.labels_changed:
            self.service.labels_changed.notify_all()
        self.worker.close()
        for thread in (self._thread, self._encoding_thread):
            if thread is not None and thread.is_alive():
                thread.join(5)

    @property
    def is_encoding(self) -> bool:
        """Return whether embeddings are being computed; never without a running page."""
        return (
            self._encoding_thread is not None
            and self._encoding_thread.is_alive()
            and not self.is_complete()
        )

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is being trained and nothing is due."""
        with self.service.lock:
            looking = (
                self._larger_snapshot is not None
                or not self._encoding_idle
                or self._needs_rescoring()
            )
            at_rest = self.state in ("idle", "waiting") and not self.service.is_behind
            return not looking and at_rest and self._next_request() is None

    def describe_status(self) -> dict[str, Any]:
        """Return the state of training for the page."""
        page_model = self.service.page_model
        last = self.rounds[-1] if self.rounds else {}
        fitted = last.get("labels", 0) if page_model is None else len(page_model.snapshot.labels)
        return {
            "state": self.state,
            "done": self.fraction_done,
            "message": "; ".join(filter(None, (self._scoring_problem, self.message))),
            "model": self.model_description,
            "in_play": len(page_model.snapshot.points) if page_model else 0,
            "seconds_left": self._estimate_seconds_left(),
            "first": self._describe_first_items() if page_model is None else None,
            "round": page_model.snapshot.round if page_model else None,
            "labels_at_last": fitted,
            "labels_used": len(page_model.pool_posterior.labels) if page_model else 0,
            "behind": self.service.is_behind,
            "idle": self.is_idle,
        }

    def _estimate_seconds_left(self) -> int | None:
        """Estimate the seconds until all embeddings are computed; None before some are."""
        began, first = self._encoding_start
        if self.state != "features" or self.fraction_done - first < 1e-3:
            return None
        return round(
            (time.monotonic() - began) * (1 - self.fraction_done) / (self.fraction_done - first)
        )

    def _describe_first_items(self) -> dict[str, int | None]:
        """Return number, progress and seconds left of the items needed for the first query."""
        item_count = min(len(self.service.items) - len(self.service.held_out), MAX_ACTIVE_ITEMS)
        of, seen, left = (
            min(FIRST_ITEMS, item_count),
            round(self.fraction_done * item_count),
            self._estimate_seconds_left(),
        )
        share = (of - seen) / max(1, item_count - seen)
        return {
            "of": of,
            "seen": min(seen, of),
            "seconds_left": None if left is None else max(0, round(left * share)),
        }

    def advise_stopping(self) -> str | None:
        """Return advice to stop labelling, or None; of a task, whose errors have other units, none."""
        if self.service.label_state.task is not None:
            return None
        return stop_advice(self.list_error_readings())

    def list_error_readings(self) -> list[ErrorReading]:
        """Return the error estimates of all rounds, those of earlier sessions first."""
        return [
            ErrorReading(r.get("labels", 0), *(r.get(name) for name in FORECAST_FIELDS))
            for r in self.rounds
        ]

    def restore(self) -> None:
        """Load rounds and the last snapshot of an earlier session; ignore unreadable files."""
        path = self.folder / "rounds.jsonl"
        # Class numbers belong to one journal: if it was replaced, rounds and snapshots are invalid.
        events = self.service.journal.read_events()
        label_state = self.service.label_state
        labelled = {
            (e.position, e.label) for e in events if e.kind in ("label", "confirm", "settle")
        }
        labelled |= set(label_state.labels.items())  # of merged classes
        if path.exists() and labelled:
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    self.rounds.append(dict(json.loads(line)))
                except ValueError:  # cut short by a kill
                    continue
        for last in sorted(self.folder.glob("snapshot-*.pt"), reverse=True):
            try:
                snapshot = load_snapshot(last)
                self._require_labels(last, snapshot.labels, {position for position, _ in labelled})
                fits = _has_known_classes(snapshot, label_state)
                fits &= snapshot.pool_facts.guess_key == self._current_guess_key()
                if fits and labelled.issuperset(snapshot.labels.items()):
                    page_model = build_page_model(snapshot, label_state)
                    page_model.best_score()  # raises here if the acquisition function fails
                    self.service.set_page_model(page_model)
                    self._labels_at_scoring = snapshot.pool_facts.labels_at_scoring
                    return
            except MissingLabels:
                raise
            except SnapshotFormatError as error:
                self._require_labels(last, error.labels, {position for position, _ in labelled})
                log.info("%s; it is rebuilt by a training", error)
            except Exception as error:  # a snapshot is only a cache: labels are in the journal
                log.warning("%s cannot be used (%s); it is rebuilt by a training", last, error)

    def _require_labels(
        self, path: Path, fitted: Mapping[int, int], labelled: Set[int | None]
    ) -> None:
        """Raise if a snapshot was fitted on labels that the journal lacks.

        labelled: items that ever had a label. A read-only copy of the journal may be older than the
        snapshot.
        """
        missing = fitted.keys() - labelled
        if missing and not self.service.journal.is_read_only:
            lacking = f"has no label of {len(missing)} items that {path.name} was trained on"
            raise MissingLabels(self.service.journal.path, lacking)

    def _next_request(self) -> TrainingRequest | None:
        """Return the next training request, or None if none is due."""
        label_state, page_model = self.service.label_state, self.service.page_model
        labels, classes = label_state.labels, len(label_state.classes)
        if page_model is None and not self.needs_training:
            return None  # embeddings are being computed
        if page_model is None and not labels:
            return TrainingRequest(0, (), classes)
        trained = page_model.snapshot.labels if page_model else {}
        differing = {p for p, _ in labels.items() ^ trained.items()}
        # The exact learner is updated with every label; only its kernel is selected again, which
        # changes little once there are many labels.
        wait = self.retrain_every
        if label_state.task is not None and page_model is not None:
            wait = min(wait, 1 + len(labels) // TASK_LABELS_PER_REFRESH)
        if not self.needs_training:
            wait = max(wait, len(labels) // 20)
        if label_state.task is not None and page_model is not None and not page_model.has_labels:
            wait = 0  # the first fit, or that of a new class
        enough = len(differing) >= wait and label_state.can_be_fitted
        if enough and labels != self._failed_labels:
            number = (page_model.snapshot.round if page_model else 0) + 1
            return self._make_request(number, label_state)
        return TrainingRequest(0, (), classes) if page_model is None else None

    def _make_request(self, number: int, label_state: LabelState) -> TrainingRequest:
        random_sample, confirmed = (
            self.service.find_random_sample(label_state),
            tuple(label_state.confirmed),
        )
        labels, active_classes = (
            tuple(label_state.labels.items()),
            tuple(label_state.active_classes),
        )
        return TrainingRequest(
            number,
            labels,
            len(label_state.classes),
            random_sample,
            confirmed,
            active_classes,
            label_state.list_annotations(),
            label_state.task,
            tuple(self.service.test_answers.items()),
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self.service.is_behind:
                self._catch_up()
            with self.service.labels_changed:
                larger_snapshot = self._larger_snapshot
                try:
                    request = (
                        self._next_request()
                        if larger_snapshot is None
                        else self._request_for_larger_pool()
                    )
                except LabelaheadError as error:
                    log.warning("%s", error)
                    request, self.message = (
                        None,
                        "the labels cannot be read; retrying after the next answer",
                    )
                if request is None and larger_snapshot is None:
                    if self._encoding_idle:
                        self.state, self.fraction_done = "idle", 0.0
                    if not self.service.is_behind:
                        self.service.labels_changed.wait()
                    continue
            self._execute_request(request or TrainingRequest(0, (), 2), larger_snapshot)
            with self.service.lock:
                if self._larger_snapshot is larger_snapshot:
                    self._larger_snapshot = None

    def _catch_up(self) -> None:
        began = time.monotonic()
        try:
            self.service.catch_up()
            # Answers that arrive faster than an update takes are processed together.
            self._stopping.wait(min(time.monotonic() - began, 1.0))
        except Exception as error:
            self._report_failure(error)
            self._stopping.wait(self.retry_seconds)

    def _request_for_larger_pool(self) -> TrainingRequest:
        """Return the training request for a snapshot with more items."""
        label_state, page_model = self.service.label_state, self.service.page_model
        labels, classes = label_state.labels, len(label_state.classes)
        number = page_model.snapshot.round if page_model else 0
        least = self.retrain_every if label_state.task is None else 2
        if len(labels) < least or not label_state.can_be_fitted:
            return TrainingRequest(0, (), classes, task=label_state.task)
        return self._make_request(max(number, 1), label_state)

    def _encode_items(self) -> None:
        """Let the worker compute embeddings, a few first; retry after a failure."""

        def on_progress(what: str, done: float) -> None:
            if what == "features" and self.state != "features":
                self._encoding_start = time.monotonic(), done
            if what in ("loading", "features", "scoring"):
                self.state, self.fraction_done = what, done

        def store_snapshot(path: Path) -> None:
            snapshot = load_snapshot(path)
            with self.service.labels_changed:
                self._larger_snapshot = snapshot
                self.service.labels_changed.notify_all()

        while not self._stopping.is_set():
            try:
                with self.service.labels_changed:
                    while (
                        self._encoding_idle
                        and not self._needs_rescoring()
                        and not self._needs_new_guesses()
                        and not self._stopping.is_set()
                    ):
                        self.service.labels_changed.wait()
                    if self._stopping.is_set():
                        return
                    self._encoding_idle = False
                    request = self._make_encoding_request()
                store_snapshot(self.worker.run(request, on_progress, store_snapshot))
                self.state, self.fraction_done = "idle", 0.0
                self.worker.stop()  # nothing is left to train: end the process
                self._remove_old_snapshots()
                self._labels_at_scoring, self._encoding_idle, self._scoring_problem = (
                    len(request.labels),
                    True,
                    "",
                )
                if not self._encodes_again:
                    return
            except Exception as error:  # any failure must be retried
                self._report_failure(
                    error,
                    "computing the embeddings" if self.refresh_every is None else SCORING_TASK,
                )
                self._stopping.wait(self.retry_seconds)

    def _make_encoding_request(self) -> TrainingRequest:
        """Return the request for the embeddings, and for guesses about the present classes."""
        label_state = self.service.label_state
        labels = tuple(label_state.labels.items())
        if not self.campaign.data.has_guesses:
            return TrainingRequest(0, labels, 2)
        key = self._current_guess_key()
        if key != self._guess_key and isinstance(self.worker, Worker):
            data = self.service.items.data
            current, data = with_current_classes(self.campaign, data, label_state)
            self.worker.update(asdict(current), data)
        self._guess_key = key
        active = label_state.active_classes
        return TrainingRequest(0, labels, len(label_state.classes), active_classes=active)

    def _needs_rescoring(self) -> bool:
        """Return whether an out-of-core pool must be scored again."""
        if self.refresh_every is None or self._encoding_thread is None:
            return False
        return (
            abs(len(self.service.label_state.labels) - self._labels_at_scoring)
            >= self.refresh_every
        )

    def _execute_request(
        self, request: TrainingRequest, larger_snapshot: Snapshot | None = None
    ) -> None:
        def on_progress(what: str, done: float) -> None:
            self.state, self.fraction_done = what, done

        page_model = self.service.page_model
        try:
            before = larger_snapshot or (page_model.snapshot if page_model else None)
            refreshed = None if before is None else before.refresh(request)
            if refreshed is not None:
                fresh = (
                    larger_snapshot is None
                    or page_model is None
                    or request.round > page_model.snapshot.round
                )
                self._install_snapshot(refreshed, fresh=fresh)
                return
            self.message = ""
            self._install_snapshot(load_snapshot(self.worker.run(request, on_progress)))
            self._remove_old_snapshots()
        except Exception as error:  # this thread must survive any failure
            if self._stopping.is_set():
                return
            self._report_failure(error)
            self._failed_labels = dict(request.labels)
            if request.round == 0:  # there is no earlier snapshot: wait for answers
                with self.service.labels_changed:
                    self.service.labels_changed.wait(self.retry_seconds)

    def _report_failure(self, error: Exception, what: str = "the last training") -> None:
        if self._stopping.is_set():
            return
        log.warning("%s failed: %s", what, error)
        reason = str(error)
        if isinstance(error, ClusterError):
            reason = reason.partition(";")[0]  # the advice is for the terminal only
        elif isinstance(error, OSError):  # paths are shown in the terminal only
            full = as_storage_error(self.folder, error).full
            reason = (
                "the server's disk is full; labels are safe: free some space"
                if full
                else STORAGE_MESSAGE
            )
        self.state, sentence = "idle", f"{what} failed: {reason}"
        if what == SCORING_TASK:
            self._scoring_problem = sentence
        else:
            self.message = sentence

    def _install_snapshot(self, snapshot: Snapshot, *, fresh: bool = True) -> None:
        """Build the page model of a snapshot and install it; slow work is done without a lock.

        fresh: whether the snapshot has new labels, not only more items.
        """
        label_state = self.service.label_state
        excluded = snapshot.pool_facts.unreadable
        if set(excluded) - self.service.excluded.keys():
            self.service.exclude_items(excluded)
        page_model = build_page_model(snapshot, label_state)
        gain = (
            page_model.best_score()
            if page_model.pool_posterior.view.candidates.numel() and snapshot.round
            else None
        )
        self.service.set_page_model(page_model)
        if snapshot.round and fresh:
            entry = snapshot.fit_facts.describe_round(gain)
            self.rounds.append(entry)
            with (self.folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        self.message = "; ".join(self._describe_problems(snapshot.fit_facts))

    def _describe_problems(self, facts: FitFacts) -> Iterator[str]:
        yield from facts.notes
        excluded, items = list(self.service.excluded), self.service.items
        if excluded:
            names = ", ".join(str(items.ids[p]) for p in excluded[:MAX_NAMES_SHOWN]) + (
                ", ..." if len(excluded) > MAX_NAMES_SHOWN else ""
            )
            are = "is" if len(excluded) == 1 else "are"
            many = count_noun(len(excluded), "picture")
            yield f"{many} cannot be read and {are} excluded: {names}"

    def _remove_old_snapshots(self) -> None:
        # By time: a file that cannot be used may have a higher number than its successors.
        files = sorted(
            self.folder.glob("snapshot-*.pt"), key=lambda path: (path.stat().st_mtime_ns, path.name)
        )
        for old in files[:-MAX_SNAPSHOT_FILES]:
            old.unlink(missing_ok=True)


def _has_known_classes(snapshot: Snapshot, label_state: LabelState) -> bool:
    """Return whether a stored snapshot is of classes or answers of the session."""
    if label_state.task is None or not isinstance(snapshot, TaskSnapshot):
        is_of_classes = label_state.task is None and not isinstance(snapshot, TaskSnapshot)
        return is_of_classes and snapshot.classes <= max(len(label_state.classes), 2)
    known, now = snapshot.task, label_state.task
    if known.outputs != now.outputs:
        return known.outputs == now.outputs[: len(known.outputs)]  # classes were added
    return list(known.answers) == list(now.answers)[: len(known.answers)]
