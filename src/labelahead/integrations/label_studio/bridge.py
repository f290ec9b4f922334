"""The bridge between Label Studio and a session.

Every annotation is recorded in the journal, and the best tasks are served first. The key of an
event contains the id of its annotation, so that the journal alone determines which annotations are
recorded, and what to undo when Label Studio reports the id of a deleted annotation.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from labelahead.data.classes import normalise_name
from labelahead.data.dataset import NONE_OF_THESE, NONE_OF_THESE_NAME
from labelahead.errors import InputError, LabelaheadError
from labelahead.integrations.label_studio.answers import (
    find_value,
    is_same_selection,
    list_selected,
    predict_result,
)
from labelahead.integrations.label_studio.client import (
    UNCERTAINTY_SAMPLING,
    LabelStudioClient,
    Unreachable,
)
from labelahead.integrations.label_studio.interface import CLASSES, Interface, read_interface
from labelahead.integrations.label_studio.payloads import (
    ANNOTATION_ACTIONS,
    ANNOTATION_UPDATED,
    ANNOTATIONS_DELETED,
    TASKS_CREATED,
    WEBHOOK_ACTIONS,
    Annotation,
    parse_annotation,
    parse_webhook,
)
from labelahead.integrations.label_studio.task_importer import TaskImporter
from labelahead.integrations.label_studio.tasks import parse_task_id
from labelahead.server.fitting import CurrentModel
from labelahead.server.label_state import Event
from labelahead.server.service import LabellingService

__all__ = ["Bridge"]

KEY_PREFIX = "label-studio"
MODEL_VERSION_PREFIX = "labelahead"
MIN_TASKS_AHEAD = 3  # so that tasks are left after a skip
# Users who may start at the same time: each needs a task that no other user holds.
MAX_STARTING_USERS = 50
# First score of a version; Label Studio silently drops predictions with scores outside 0 to 1.
TOP_SCORE = 0.5
MAX_ADDED_PREDICTIONS = 400  # before a new version is started
TASK_DELETED = "its task is deleted"
UNKNOWN_ANNOTATOR = "label-studio"  # who annotated what no user is named for
WEBHOOK_WARNING = (
    "annotations arrived without a webhook call, so tasks are served late: Label Studio must be "
    "able to call the "
    "printed URL (--webhook-url); calls to its own machine need "
    "SSRF_PROTECTION_ENABLED=false, and WEBHOOK_TIMEOUT=10 allows enough time"
)
SAMPLING_RESTORED = (
    "it is restored, since tasks are served by it: stop labelahead before you change it"
)
RETRY_NOTE = "retrying until it works: no annotation is lost"
REFUSED_NOTE = (
    "fix the problem and restart labelahead: until then annotations are recorded, but "
    "tasks are served in an arbitrary order"
)
log = logging.getLogger("labelahead")


class Answer(NamedTuple):
    """What an annotation says.

    Attributes:
        kind: Of the event: label, skip or unsure.
        label: Class number, or code of an answer of a task; None without a label.
        value: The answer of a task as the journal reads it.
        problem: Why it is no answer.
    """

    kind: str
    label: int | None = None
    value: Any = None
    problem: str = ""


@dataclass(frozen=True)
class BridgeTiming:
    """How often the bridge polls, and when an import of tasks is complete.

    Attributes:
        quiet_seconds: New tasks are read after so long without a further one.
        max_wait_seconds: They are read at the latest so long after the first one.
        poll_seconds: Between two looks at our own state.
        compare_seconds: Between two comparisons with Label Studio.
    """

    quiet_seconds: float = 5.0
    max_wait_seconds: float = 60.0
    poll_seconds: float = 1.0
    compare_seconds: float = 10.0


class Bridge:
    """The bridge of one session; thread-safe.

    Args:
        studio: Client of the project.
        interface: Labelling configuration of the project.
        service: Labelling service of the session.
        tasks: Ids of the current tasks.
        predictions: Whether annotators see predictions.
        importer: Imports items of an out-of-core pool as tasks, if there is one.
    """

    def __init__(
        self,
        studio: LabelStudioClient,
        interface: Interface,
        service: LabellingService,
        tasks: Iterable[int],
        *,
        predictions: bool = False,
        importer: TaskImporter | None = None,
    ) -> None:
        self.studio, self.interface, self.service, self.predictions = (
            studio,
            interface,
            service,
            predictions,
        )
        self.timing = BridgeTiming()
        self._current = CurrentModel(service)
        self._importer, self._has_unknown_items = (
            importer,
            False,
        )  # late: somebody labelled an item that is not held yet
        self.positions: dict[int, int] = {}
        self.tasks: dict[int, int] = {}
        self._map_tasks()
        self.is_outdated = False  # whether tasks were added after the session was opened
        # Known tasks, new tasks, and the times of the first and the last report of new tasks.
        self._known, self._new_task_ids, self._first_arrival, self._last_arrival = (
            set(tasks),
            set[int](),
            0.0,
            0.0,
        )
        self._lock = threading.RLock()
        self._events: dict[int, list[Event]] = {}  # annotation id -> valid events, oldest first
        self._event_counts: dict[int, int] = {}  # annotation id -> number of all events
        self._annotators: dict[int, str] = {}
        self._class_names: dict[str, str] = {}  # choice -> class of a task, which keeps its name
        self._served: list[int] = []  # positions, lowest score first
        self._version, self._scores_below_first, self._stale_versions = (
            "",
            0,
            set[str](),
        )  # lower: scores below those it began with
        self._served_model: object = None  # that the served tasks were chosen with
        self._is_unreachable = self._has_warned = False
        self._last_config = ""  # labelling configuration at the last comparison
        # annotations that are not in the journal: at the last poll, and after the last comparison
        self._missing_annotations = self._missing_after_reconcile = 0
        self._connect: Callable[[], None] | None = None
        self._on_new_tasks: Callable[[], None] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="label-studio")
        for event in service.journal.read_events():
            self._index_event(event)
        deleted = self.positions.keys() - self._known
        service.exclude_items({self.positions[task]: TASK_DELETED for task in deleted})

    def start(
        self,
        url: str,
        headers: Mapping[str, str],
        on_ready: Callable[[], None],
        renew: Callable[[], None],
    ) -> None:
        """Register the webhook and start the thread that polls Label Studio.

        Args:
            url: URL for the webhook.
            headers: Headers for the webhook.
            on_ready: Called once the project is being served.
            renew: Called when tasks were added, and no more are arriving.
        """

        def connect() -> None:
            self.studio.register_webhook(url, WEBHOOK_ACTIONS, headers)
            self.reconcile()
            self.update_order(force=True)
            self._stale_versions |= {
                v
                for v in self.studio.list_versions()
                if v.startswith(f"{MODEL_VERSION_PREFIX}-") and v != self._version
            }
            on_ready()

        self._connect, self._on_new_tasks = connect, renew
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5)

    @property
    def is_current(self) -> bool:
        """Return whether Label Studio serves the best tasks according to all labels."""
        with self._lock:
            is_current = (
                self._served_model is self.service.page_model and not self.service.is_behind
            )
            return is_current and bool(self._served) and not self._is_unreachable

    def handle_webhook(self, payload: Mapping[str, Any]) -> None:
        """Record the content of a webhook call durably, and update the order of tasks.

        Raises:
            InputError: The payload is malformed; nothing of it is recorded.
        """
        webhook = parse_webhook(payload)
        if webhook.action not in WEBHOOK_ACTIONS or webhook.project not in (
            None,
            self.studio.number,
        ):
            return
        if (
            webhook.action == TASKS_CREATED
        ):  # without the lock: it may arrive during our own request for new tasks
            self._note_new_tasks(webhook.ids)
            return
        with self._lock:
            if webhook.action in ANNOTATION_ACTIONS:
                is_update = webhook.action == ANNOTATION_UPDATED
                self._record_parsed(webhook.annotations, is_update=is_update)
                if self._importer is not None:
                    new = {
                        annotation.task for annotation in webhook.annotations
                    } - self.positions.keys()
                    self._has_unknown_items |= any(task in self._importer for task in new)
            elif webhook.action == ANNOTATIONS_DELETED:
                self.undo_annotations(webhook.ids)
            else:
                self._exclude_tasks(set(webhook.ids))
            with suppress(
                LabelaheadError
            ):  # the event is recorded; the order is updated when Label Studio is reachable
                self.update_order()

    def record_annotations(self, annotations: Iterable[Mapping[str, Any]]) -> int:
        """Record annotations and return how many were new or changed."""
        return self._record_parsed([parse_annotation(annotation) for annotation in annotations])

    def _record_parsed(self, annotations: Iterable[Annotation], *, is_update: bool = False) -> int:
        with self._lock:
            new = sum(self._record_annotation(each, is_update) for each in annotations)
            if new:
                self.service.update_model()
            return new

    def undo_annotations(self, ids: Iterable[int]) -> int:
        """Undo the events of deleted annotations; return how many annotations had events."""
        with self._lock:
            deleted = [number for number in ids if self._events.get(number)]
            for number in deleted:
                self._undo_events(number, self._events[number])
            if deleted:
                self.service.update_model()
            return len(deleted)

    def reconcile(self) -> tuple[int, int]:
        """Update the journal to Label Studio; return the numbers of new and deleted annotations."""
        with self._lock:
            annotations = self.studio.list_annotations()
            self._annotators = self.studio.list_users()
            self._hold_items({int(annotation["task"]) for annotation in annotations})
            ids = {int(annotation["id"]) for annotation in annotations}
            return self.record_annotations(annotations), self.undo_annotations(
                [i for i, events in self._events.items() if events and i not in ids]
            )

    def update_order(self, *, force: bool = False) -> None:
        """Send the order of tasks to Label Studio if it has changed, or in any case with `force`."""
        with self._lock:
            self._served_model = self.service.page_model
            wanted, needed = self._choose_served()
            if not wanted:
                return
            without = self.service.label_state.labels.keys() | self.service.excluded.keys()
            left = [p for p in self._served if p not in without]
            same = wanted[:needed] == left[:needed] and self._is_deep_enough(left, wanted)
            if self.predictions:
                same = wanted == self._served  # the shown predictions must be the newest
            if same and not force:
                return
            try:
                if self._importer is not None and self._import_tasks(self._importer, wanted):
                    self.update_order(force=force)
                    return
                self._served = self._send_predictions(wanted, needed, [] if force else left)
            except LabelaheadError as error:
                self._served = []
                if isinstance(error, InputError) and self._exclude_missing_tasks():
                    self.update_order()
                    return
                self._note_unreachable(error)
                raise

    def _send_predictions(
        self, wanted: Sequence[int], needed: int, left: Sequence[int]
    ) -> list[int]:
        """Serve these tasks before the remaining ones; return all served positions in order.

        Each user gets the task with the lowest score that no other user holds. Adding predictions
        with still lower scores needs half the calls of a new model version, which is started only
        if there is none or if annotators see the predictions.
        """
        first = (
            wanted[:needed] if self._is_deep_enough({*wanted[:needed], *left}, wanted) else wanted
        )
        if (
            left
            and not self.predictions
            and self._scores_below_first + len(first) <= MAX_ADDED_PREDICTIONS
        ):
            self._scores_below_first += len(first)
            rows = [
                self._make_prediction(p, rank)
                for rank, p in enumerate(first, -self._scores_below_first)
            ]
            self.studio.add_predictions(self._version, rows)
            return [*first, *(p for p in left if p not in first)]
        version = f"{MODEL_VERSION_PREFIX}-{time.time_ns() // 1_000_000}"
        self._stale_versions |= {version, self._version} - {""}
        self.studio.add_predictions(
            version, [self._make_prediction(p, rank) for rank, p in enumerate(wanted)]
        )
        self.studio.serve_lowest_scores(version)
        self._stale_versions.discard(version)
        self._version, self._scores_below_first = version, 0
        return list(wanted)

    def predict_tasks(self, tasks: Iterable[int]) -> list[dict[str, Any]]:
        """Predict tasks, as an ML backend; the result of an unknown task is empty."""
        guesses = [self._predict(self.positions.get(task, -1)) for task in tasks]
        return [
            {"result": result, "score": score, "model_version": MODEL_VERSION_PREFIX}
            for result, score in guesses
        ]

    def _choose_served(self) -> tuple[list[int], int]:
        """Return the best positions, and how many of them must be served in exactly this order."""
        few: list[int] = []
        needed = 0
        for position in self.service.rank_items():
            few.append(position)
            depth = self._count_left(few)
            needed = len(few) if depth <= self._min_depth else needed
            if depth >= 2 * self._min_depth:  # so that not every answer needs an update
                break
        return few, needed

    @property
    def _min_depth(self) -> int:
        """Return how many tasks each user must have left: one more than the other users can have leased."""
        return max(
            MIN_TASKS_AHEAD,
            len(self.service.label_state.answered_positions) + 2,
            min(len(self._annotators), MAX_STARTING_USERS) + 1,
        )

    def _is_deep_enough(self, positions: Collection[int], wanted: Collection[int]) -> bool:
        return self._count_left(positions) >= min(self._min_depth, self._count_left(wanted))

    def _count_left(self, positions: Collection[int]) -> int:
        """Return the minimum over users of tasks left; skipped tasks are not served again."""
        answered_by_user = (*self.service.label_state.answered_positions.values(), frozenset())
        return min(
            len(positions) - len(answered.intersection(positions)) for answered in answered_by_user
        )

    def _make_prediction(self, position: int, rank: int) -> dict[str, Any]:
        """Return a prediction whose score is the rank; the probability is in its result."""
        result = self._predict(position)[0] if self.predictions else []
        return {"task": self.tasks[position], "result": result, "score": TOP_SCORE + rank / 1000}

    def _predict(self, position: int) -> tuple[list[dict[str, Any]], float | None]:
        task = self.service.label_state.task
        if task is not None:
            prediction = self._current.predict_answer(position)
            found = None if prediction is None else predict_result(self.interface, task, prediction)
            return found or ([], 0.0)
        guess = self._current.predict_item(position)
        if guess is None:
            return [], 0.0
        label, p = guess
        return self.interface.result(self.service.label_state.classes[label], round(p, 6)), round(
            p, 6
        )

    # --- tasks ---

    def _map_tasks(self) -> None:
        """Update the mapping between tasks and positions."""
        if self._importer is None:
            self.positions = {
                parse_task_id(item): p for p, item in enumerate(self.service.items.ids)
            }
        else:
            self.positions = self._importer.map_positions()
        # If several tasks have the same item, the first task is served.
        self.tasks = {p: task for task, p in sorted(self.positions.items(), reverse=True)}

    def _import_tasks(self, importer: TaskImporter, wanted: Sequence[int]) -> bool:
        """Import items as tasks; return whether some cannot be read and must be replaced."""
        new = [p for p in wanted if p not in self.tasks]
        if not new:
            return False
        failed = importer.import_items(new)
        self.service.exclude_items(failed)
        self._known |= importer.tasks
        self._map_tasks()
        return bool(failed)

    def _hold_items(self, tasks: Collection[int]) -> None:
        """Load labelled items of an out-of-core pool."""
        if self._importer is not None and not self.positions.keys() >= set(tasks):
            self._importer.hold_items(tasks)
            self._map_tasks()
        self._has_unknown_items = False

    def _read_new_tasks(self, importer: TaskImporter) -> None:
        """Read tasks that users imported themselves; those of the pool are used from now on."""
        with self._lock:
            arrived, self._new_task_ids = self._new_task_ids, set()
            self._last_arrival = self._first_arrival = 0.0
            if arrived and arrived <= self._known:  # imported by us
                return
            importer.read_tasks()
            self._known |= importer.tasks
            self._map_tasks()
            self.reconcile()

    def _record_annotation(self, annotation: Annotation, is_update: bool) -> bool:
        """Record one annotation; return whether it is new or changed."""
        number, position = annotation.id, self.positions.get(annotation.task)
        if position is None:
            self._note_new_tasks([annotation.task])
            return False
        who, events = self._find_annotator(annotation.completed_by), self._events.get(number, [])
        former = None if is_update or not events else events[-1].label
        kind, label, value, problem = self._read_answer(annotation, former)
        if events and (events[-1].kind, events[-1].label, events[-1].who, events[-1].position) == (
            kind,
            label,
            who,
            position,
        ):
            return False
        if problem:
            log.warning(
                "annotation %d of task %d: %s. It is recorded as not sure",
                number,
                annotation.task,
                problem,
            )
        self._undo_events(
            number, [event for event in events if event.who != who or event.position != position]
        )
        given = {"label": label} if value is None else {"value": value}
        self._add_event(
            number,
            lambda key: self.service.journal.add_event(kind, who, position, key=key, **given),
        )
        return True

    def _read_answer(self, annotation: Annotation, former: int | None) -> Answer:
        """Return what an annotation says. former: the label that was recorded for it."""
        if annotation.was_cancelled:
            return Answer("skip")
        interface, result = self.interface, annotation.result
        if interface.task == CLASSES:
            name = interface.label(result)
            return (
                Answer("unsure") if name is None else Answer("label", self._find_or_add_class(name))
            )
        if interface.task == "multilabel":
            selected = list_selected(interface, result)
            return Answer("unsure") if selected is None else self._read_selection(selected, former)
        value = find_value(interface, result)
        if value is None:
            return Answer("unsure")
        try:
            return Answer("label", self.service.journal.find_label(value), value)
        except InputError as error:
            return Answer("unsure", problem=str(error))

    def _read_selection(self, selected: Sequence[str], former: int | None) -> Answer:
        """Return the answer of ticked choices; a choice that was not offered is not reviewed."""
        present = {self._find_class_name(choice) for choice in selected}
        offered = {self._find_class_name(choice) for choice in self.interface.choices}
        task = self.service.label_state.task
        # The annotation was made before a choice was added, of which it says nothing.
        if former is not None and task is not None and is_same_selection(task, former, present):
            return Answer("label", former)
        value = {name: name in present for name in sorted(present | offered)}
        return Answer("label", self.service.journal.find_label(value), value)

    def _find_class_name(self, choice: str) -> str:
        """Return the class of a choice of a task of several classes, which is added if it is new."""
        if choice not in self._class_names:
            number = self.service.journal.find_class(choice)
            if number is None:
                number = int(self.service.add_class(UNKNOWN_ANNOTATOR, choice)["number"])
            self._class_names[choice] = self.service.label_state.classes[number]
        return self._class_names[choice]

    def _undo_events(self, number: int, events: Sequence[Event]) -> None:
        for event in list(events):
            self._add_event(
                number, lambda key, e=event: self.service.journal.undo_answer(e.who, e.seq, key=key)
            )

    def _add_event(self, number: int, write: Any) -> None:
        event = write(f"{KEY_PREFIX} {number} {self._event_counts.get(number, 0)}")
        if event is not None:
            self._index_event(event)

    def _index_event(self, event: Event) -> None:
        """Update the events of an annotation."""
        first, _, rest = (event.key or "").partition(" ")
        if first != KEY_PREFIX:
            return
        number = int(rest.split()[0])
        self._event_counts[number] = self._event_counts.get(number, 0) + 1
        events = self._events.setdefault(number, [])
        events[:] = (
            [e for e in events if e.seq != event.ref] if event.kind == "undo" else [*events, event]
        )

    def _find_or_add_class(self, name: str) -> int:
        number = self.service.journal.find_class(name)  # also by a former name
        if number is None and normalise_name(name) == NONE_OF_THESE_NAME:
            return NONE_OF_THESE
        return (
            int(self.service.add_class(UNKNOWN_ANNOTATOR, name)["number"])
            if number is None
            else number
        )

    def _find_annotator(self, user: int | str | None) -> str:
        if isinstance(user, str):
            return user
        if user is None:
            return UNKNOWN_ANNOTATOR
        if user not in self._annotators:
            try:
                self._annotators = self.studio.list_users()
            except LabelaheadError as error:
                # The answer is recorded; the next comparison corrects its annotator.
                self._note_unreachable(error)
        return self._annotators.get(user, f"user {user}")

    def _exclude_missing_tasks(self) -> int:
        """Exclude items whose tasks were deleted; return how many."""
        existing = {int(task["id"]) for task in self.studio.list_tasks()}
        deleted = {
            task
            for task, p in self.positions.items()
            if task not in existing and p not in self.service.excluded
        }
        self._exclude_tasks(deleted)
        return len(deleted)

    def _exclude_tasks(self, deleted: Collection[int]) -> None:
        """Exclude the items of deleted tasks."""
        self.service.exclude_items(
            {self.positions[task]: TASK_DELETED for task in deleted if task in self.positions}
        )
        self._known -= set(deleted)
        if self._importer is not None:
            self._importer.tasks -= set(deleted)

    def _note_new_tasks(self, numbers: Iterable[int]) -> None:
        new = set(numbers) - self._known
        if new:
            self._new_task_ids |= new
            self._last_arrival = time.monotonic()
            self._first_arrival = self._first_arrival or self._last_arrival

    def _note_unreachable(self, error: LabelaheadError) -> None:
        """Log an error once, not with every attempt."""
        if not self._is_unreachable:
            log.warning(
                "%s; %s", error, RETRY_NOTE if isinstance(error, Unreachable) else REFUSED_NOTE
            )
        self._is_unreachable = True

    def _watch(self) -> None:
        looked = time.monotonic()
        while True:
            try:
                if self._connect is not None:
                    self._connect()
                    self._connect = None
                elif self._served_model is not self.service.page_model or not self._served:
                    self.update_order()
                if self._has_unknown_items:
                    self.reconcile()
                if self._has_complete_import() and self._importer is not None:
                    self._read_new_tasks(self._importer)
                elif self._has_complete_import() and self._on_new_tasks is not None:
                    self.is_outdated = True
                    self._on_new_tasks()
                    return
                if time.monotonic() - looked > self.timing.compare_seconds:
                    looked = time.monotonic()
                    self._compare_with_studio()
            except LabelaheadError as error:
                self._note_unreachable(error)
            except Exception:  # this thread must survive any failure
                log.exception("polling Label Studio failed; retrying")
            if self._stopping.wait(self.timing.poll_seconds):
                return

    def _has_complete_import(self) -> bool:
        """Return whether tasks were added, and no more have arrived for a while."""
        now = time.monotonic()
        return bool(self._last_arrival) and (
            now - self._last_arrival > self.timing.quiet_seconds
            or now - self._first_arrival > self.timing.max_wait_seconds
        )

    def _restore_sampling(self, project: Mapping[str, Any]) -> None:
        """Restore the sampling settings, which a user may reset by saving the project settings."""
        now = project["sampling"], project["model_version"]
        if self._served and self._version and now != (UNCERTAINTY_SAMPLING, self._version):
            log.warning(
                "the project's sampling or model version was changed (%s, %s); %s",
                *now,
                SAMPLING_RESTORED,
            )
            self.update_order(force=True)

    def _update_interface(self, config: str) -> None:
        """Update the interface after an edit of the labelling configuration, and reconcile."""
        if config == self._last_config:
            return
        self._last_config = config
        try:
            now = read_interface(config)
        except InputError as error:
            log.warning(
                "%s. Annotations are recorded with the previous configuration, as far as they fit",
                error,
            )
            return
        if now == self.interface:
            return
        if not self._can_continue_with(now):
            log.warning(
                "the labelling configuration asks for other answers now (%s, before %s); restart "
                "labelahead with another --out to learn these. Until then annotations are recorded "
                "with the previous configuration, as far as they fit",
                _describe_answers(now),
                _describe_answers(self.interface),
            )
            return
        if self._importer is not None:
            try:
                self._importer.set_interface(now)
            except InputError as error:
                log.warning("%s. Tasks are imported as before", error)
                return
        old = self.interface
        if (now.pictures, now.texts, now.sounds) != (old.pictures, old.texts, old.sounds):
            log.warning(
                "tasks show other fields now; the embeddings use the previous fields until another "
                "--out is chosen"
            )
        self.interface = now
        if now.task == "multilabel":
            for choice in now.choices:
                self._find_class_name(choice)
        new, _ = self.reconcile()
        log.warning(
            "the labelling configuration was changed to choices %s; %d annotations updated",
            ", ".join(now.choices),
            new,
        )

    def _can_continue_with(self, now: Interface) -> bool:
        """Return whether a session can go on with a changed labelling configuration."""
        old = self.interface
        if now.task != old.task or now.limits != old.limits:
            return False
        return now.task != "rating" or now.choices == old.choices

    def _count_recorded(self) -> int:
        """Return the number of annotations with valid events."""
        return sum(map(bool, self._events.values()))

    def _compare_with_studio(self) -> None:
        """Compare Label Studio with the journal; reconcile if they differ or after an outage."""
        version, project = self._version, self.studio.get_project()
        with self._lock:
            expected = project["total_annotations_number"] + project["skipped_annotations_number"]
            before, self._missing_annotations = (
                self._missing_annotations,
                expected - self._count_recorded(),
            )
            # A webhook call may be on its way, so a difference must persist for two polls.
            # Annotations of tasks that could not be downloaded are always missing.
            if self._is_unreachable or (
                self._missing_annotations == before != self._missing_after_reconcile
            ):
                new, _ = self.reconcile()
                self._missing_after_reconcile = expected - self._count_recorded()
                if new and not self._is_unreachable and not self._has_warned:
                    self._has_warned = True
                    log.warning(WEBHOOK_WARNING)
                self.update_order(force=self._is_unreachable)
            if version == self._version:  # otherwise an annotation arrived meanwhile
                self._restore_sampling(project)
            self._update_interface(str(project["label_config"]))
            if project["task_number"] > len(self._known):
                self._last_arrival = self._last_arrival or time.monotonic()
                self._first_arrival = self._first_arrival or self._last_arrival
            if self._is_unreachable:
                log.warning("%s answers again; no annotation is missing", self.studio.url)
            self._is_unreachable = False
        for version in list(self._stale_versions):
            self.studio.delete_predictions(version)
            self._stale_versions.discard(version)


def _describe_answers(interface: Interface) -> str:
    """Return what a project asks for, in words."""
    if interface.task == "number":
        low, high = interface.limits or (-math.inf, math.inf)
        return f"a number from {low:g} to {high:g}"
    if interface.task == "rating":
        return f"a rating from 1 to {len(interface.choices)}"
    return "several choices" if interface.task == "multilabel" else "one choice"
