"""Between Label Studio and a session: every annotation goes into the record, what matters most
comes out first.

Which annotation an event is of stands in the event's key, so that the record alone says what to
take back when Label Studio names nothing but the id of what was deleted, and what has been heard
already.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from labelahead.errors import InputError, LabelaheadError
from labelahead.integrations.label_studio.client import UNCERTAINTY, LabelStudioClient, Unreachable
from labelahead.integrations.label_studio.interface import Interface, read_interface
from labelahead.integrations.label_studio.payloads import (
    ANNOTATION_ACTIONS,
    ANNOTATIONS_DELETED,
    TASKS_CREATED,
    WEBHOOK_ACTIONS,
    Annotation,
    parse_annotation,
    parse_webhook,
)
from labelahead.integrations.label_studio.task_importer import TaskImporter
from labelahead.integrations.label_studio.tasks import task_of
from labelahead.server.fitting import CurrentModel
from labelahead.server.label_state import Event
from labelahead.server.service import LabellingService

__all__ = ["Bridge"]

KEY = "label-studio"
VERSION = "labelahead"
FEW = 3  # tasks that are served ahead in any case, so that a skip leaves some
# users who may all begin at once; where every task that is served is somebody's, there is none for
# the next
CROWD = 50
# the first score of a version: below 0 and above 1 Label Studio drops predictions without a word
MIDDLE = 0.5
LOWEST = 400  # predictions that are added before a new version begins
QUIET, LONG = (
    5.0,
    60.0,
)  # seconds without a further new task, and since the first, after which they come into play
GLANCE, LOOK = 1.0, 10.0  # seconds between two looks at our own state, and at Label Studio's
GONE = "its task is deleted"
NOBODY = "label-studio"  # who annotated what no user is named for
UNHEARD = (
    "annotations came that no webhook told of, so tasks are served late: Label Studio must be "
    "able to call the "
    "address that was printed (--webhook-url), and may call one of its own machine only with "
    "SSRF_PROTECTION_ENABLED=false; WEBHOOK_TIMEOUT=10 leaves it time"
)
SET_BACK = "it is set back, since tasks are served by it: stop labelahead before another is chosen"
WAITED_FOR = "tried again until it works: no annotation is lost"
REFUSED = (
    "set that right and start labelahead again: until then annotations are recorded, but "
    "tasks come in no order"
)
log = logging.getLogger("labelahead")


class Bridge:
    """One for a session. Methods may be called from any thread; annotations are taken in one at a
    time.

    tasks: that Label Studio has now. predictions: whether annotators are shown what is likely.
    supply: makes tasks of items of a pool of millions, when they are to be served.
    """

    def __init__(
        self,
        studio: LabelStudioClient,
        interface: Interface,
        assignment: LabellingService,
        tasks: Iterable[int],
        *,
        predictions: bool = False,
        supply: TaskImporter | None = None,
    ) -> None:
        self.studio, self.interface, self.assignment, self.predictions = (
            studio,
            interface,
            assignment,
            predictions,
        )
        self._current = CurrentModel(assignment)
        self._supply, self._late = (
            supply,
            False,
        )  # late: somebody labelled an item that is not held yet
        self.positions: dict[int, int] = {}
        self.tasks: dict[int, int] = {}
        self._learn_tasks()
        self.outdated = False  # whether there are tasks that came after the session was opened
        # Tasks, and when those were heard of that are not among them: the first and the newest.
        self._known, self._arrived, self._oldest, self._newest = set(tasks), set[int](), 0.0, 0.0
        self._turn = threading.RLock()
        self._said: dict[int, list[Event]] = {}  # annotation -> its surviving events, oldest first
        self._count: dict[int, int] = {}  # annotation -> all of its events
        self._people: dict[int, str] = {}
        self._served: list[int] = []  # the lowest score first
        self._version, self._lower, self._stale = (
            "",
            0,
            set[str](),
        )  # lower: scores below those it began with
        self._opinion: object = None  # that the served ones come from
        self._down = self._warned = False
        self._config = ""  # the labelling configuration at the last look
        # annotations that the record has not: at the last look, after the last comparison
        self._missing = self._lacking = 0
        self._connect: Callable[[], None] | None = None
        self._renew: Callable[[], None] | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="label-studio")
        for event in assignment.journal.events():
            self._remember(event)
        gone = self.positions.keys() - self._known
        assignment.leave_out({self.positions[task]: GONE for task in gone})

    def start(
        self,
        url: str,
        headers: Mapping[str, str],
        tell: Callable[[], None],
        renew: Callable[[], None],
    ) -> None:
        """Have Label Studio call this address, and look after what no webhook tells.

        tell: hears when that is done. renew: is called when there are new tasks, and no more are
        coming.
        """

        def connect() -> None:
            self.studio.call_back(url, WEBHOOK_ACTIONS, headers)
            self.reconcile()
            self.serve(anew=True)
            self._stale |= {
                v
                for v in self.studio.versions()
                if v.startswith(f"{VERSION}-") and v != self._version
            }
            tell()

        self._connect, self._renew = connect, renew
        self._thread.start()

    def stop(self) -> None:
        """End that."""
        self._ending.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5)

    @property
    def current(self) -> bool:
        """Whether Label Studio serves what matters most by all that is known now."""
        with self._turn:
            told = self._opinion is self.assignment.opinion and not self.assignment.behind
            return told and bool(self._served) and not self._down

    def hear(self, payload: Mapping[str, Any]) -> None:
        """Record what a webhook says and update which tasks are served first; on the disk when this
        returns.

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
        ):  # without a turn: it may be told within our own request for new tasks
            self._new_tasks(webhook.ids)
            return
        with self._turn:
            if webhook.action in ANNOTATION_ACTIONS:
                self._take(webhook.annotations)
                if self._supply is not None:
                    new = {
                        annotation.task for annotation in webhook.annotations
                    } - self.positions.keys()
                    self._late |= any(task in self._supply for task in new)
            elif webhook.action == ANNOTATIONS_DELETED:
                self.take_back(webhook.ids)
            else:
                self._lost_tasks(set(webhook.ids))
            with suppress(
                LabelaheadError
            ):  # what is recorded is recorded: the first tasks follow when it is back
                self.serve()

    def take(self, annotations: Iterable[Mapping[str, Any]]) -> int:
        """Record annotations as they are now.

        How many said something new. Twice the same adds nothing.
        """
        return self._take([parse_annotation(annotation) for annotation in annotations])

    def _take(self, annotations: Iterable[Annotation]) -> int:
        with self._turn:
            new = sum(self._record(annotation) for annotation in annotations)
            if new:
                self.assignment.bring_in(())  # learn from the labels as they stand
            return new

    def take_back(self, ids: Iterable[int]) -> int:
        """Undo all that these annotations have said; how many had said anything."""
        with self._turn:
            gone = [number for number in ids if self._said.get(number)]
            for number in gone:
                self._undo(number, self._said[number])
            if gone:
                self.assignment.bring_in(())
            return len(gone)

    def reconcile(self) -> tuple[int, int]:
        """Make the record say what Label Studio has, whatever was missed.

        How many were new, how many are gone.
        """
        with self._turn:
            there = self.studio.annotations()
            self._people = self.studio.people()
            self._hold({int(annotation["task"]) for annotation in there})
            ids = {int(annotation["id"]) for annotation in there}
            return self.take(there), self.take_back(
                [i for i, said in self._said.items() if said and i not in ids]
            )

    def serve(self, *, anew: bool = False) -> None:
        """Have Label Studio serve what matters most now.

        Nothing if that is what it serves. anew: in any case.
        """
        with self._turn:
            self._opinion = self.assignment.opinion
            wanted, needed = self._first()
            if not wanted:
                return
            without = self.assignment.tally.labels.keys() | self.assignment.broken.keys()
            left = [p for p in self._served if p not in without]
            same = wanted[:needed] == left[:needed] and self._deep(left, wanted)
            if self.predictions:
                same = wanted == self._served  # those that are shown are to be the newest
            if same and not anew:
                return
            try:
                if self._supply is not None and self._bring(self._supply, wanted):
                    self.serve(anew=anew)
                    return
                self._served = self._send(wanted, needed, [] if anew else left)
            except LabelaheadError as error:
                self._served = []
                if isinstance(error, InputError) and self._missing_tasks():
                    self.serve()
                    return
                self._lost(error)
                raise

    def _send(self, wanted: Sequence[int], needed: int, left: Sequence[int]) -> list[int]:
        """Have these served before those that are left; what is served then, the first first.

        Everybody gets the lowest score that nobody else holds. So still lower ones, for as many as
        are needed, do: half the calls of a new version, which is begun where there is none, or
        where predictions are looked at.
        """
        first = wanted[:needed] if self._deep({*wanted[:needed], *left}, wanted) else wanted
        if left and not self.predictions and self._lower + len(first) <= LOWEST:
            self._lower += len(first)
            rows = [self._prediction(p, rank) for rank, p in enumerate(first, -self._lower)]
            self.studio.add_predictions(self._version, rows)
            return [*first, *(p for p in left if p not in first)]
        version = f"{VERSION}-{time.time_ns() // 1_000_000}"
        self._stale |= {version, self._version} - {""}
        self.studio.add_predictions(
            version, [self._prediction(p, rank) for rank, p in enumerate(wanted)]
        )
        self.studio.serve_lowest(version)
        self._stale.discard(version)
        self._version, self._lower = version, 0
        return list(wanted)

    def predict(self, tasks: Iterable[int]) -> list[dict[str, Any]]:
        """Predict each task, as an ML backend does.

        The result is empty for a task that is not in the pool.
        """
        guesses = [self._guess(self.positions.get(task, -1)) for task in tasks]
        return [
            {"result": result, "score": score, "model_version": VERSION}
            for result, score in guesses
        ]

    def _first(self) -> tuple[list[int], int]:
        """Positions, the best first, and how many of them must be the best.

        Whoever asks next gets one of these.
        """
        few: list[int] = []
        needed = 0
        for position in self.assignment.ranked():
            few.append(position)
            depth = self._depth(few)
            needed = len(few) if depth <= self._enough else needed
            if depth >= 2 * self._enough:  # so that not every answer calls for more
                break
        return few, needed

    @property
    def _enough(self) -> int:
        """How many tasks everybody must have left.

        One more than all others may hold, and those who are yet to come.
        """
        return max(FEW, len(self.assignment.tally.answered) + 2, min(len(self._people), CROWD) + 1)

    def _deep(self, positions: Collection[int], wanted: Collection[int]) -> bool:
        return self._depth(positions) >= min(self._enough, self._depth(wanted))

    def _depth(self, positions: Collection[int]) -> int:
        """How many of these everybody has left.

        What somebody skipped is not served to them again.
        """
        mine = (*self.assignment.tally.answered.values(), frozenset())
        return min(len(positions) - len(answered.intersection(positions)) for answered in mine)

    def _prediction(self, position: int, rank: int) -> dict[str, Any]:
        """The score is the rank, since by it Label Studio orders.

        How likely the choice is stands beside the choice.
        """
        result = self._guess(position)[0] if self.predictions else []
        return {"task": self.tasks[position], "result": result, "score": MIDDLE + rank / 1000}

    def _guess(self, position: int) -> tuple[list[dict[str, Any]], float]:
        guess = self._current.guess(position)
        if guess is None:
            return [], 0.0
        label, p = guess
        return self.interface.result(self.assignment.tally.classes[label], round(p, 6)), round(p, 6)

    # --- tasks
    # ------------------------------------------------------------------------------------------------

    def _learn_tasks(self) -> None:
        """Which task is which item."""
        if self._supply is None:
            self.positions = {task_of(item): p for p, item in enumerate(self.assignment.items.ids)}
        else:
            self.positions = self._supply.positions()
        # Where several tasks are one item, it is asked as the first of them.
        self.tasks = {p: task for task, p in sorted(self.positions.items(), reverse=True)}

    def _bring(self, supply: TaskImporter, wanted: Sequence[int]) -> bool:
        """Make tasks of items that are to be served.

        Whether some of these cannot be read: then others are wanted.
        """
        new = [p for p in wanted if p not in self.tasks]
        if not new:
            return False
        failed = supply.bring(new)
        self.assignment.leave_out(failed)
        self._known |= supply.tasks
        self._learn_tasks()
        return bool(failed)

    def _hold(self, tasks: Collection[int]) -> None:
        """Of a pool of millions, hold what has been labelled."""
        if self._supply is not None and not self.positions.keys() >= set(tasks):
            self._supply.hold(tasks)
            self._learn_tasks()
        self._late = False

    def _read_tasks(self, supply: TaskImporter) -> None:
        """Somebody has imported tasks by themselves.

        Those that are items of the pool are known from now on.
        """
        with self._turn:
            arrived, self._arrived = self._arrived, set()
            self._newest = self._oldest = 0.0
            if arrived and arrived <= self._known:  # our own
                return
            supply.read()
            self._known |= supply.tasks
            self._learn_tasks()
            self.reconcile()

    def _record(self, annotation: Annotation) -> bool:
        """One annotation as it is now; whether that is new."""
        number, position = annotation.id, self.positions.get(annotation.task)
        if position is None:
            self._new_tasks([annotation.task])
            return False
        name = None if annotation.was_cancelled else self.interface.label(annotation.result)
        kind = "skip" if annotation.was_cancelled else "unsure" if name is None else "label"
        label = None if name is None else self._class(name)
        who, said = self._who(annotation.completed_by), self._said.get(number, [])
        if said and (said[-1].kind, said[-1].label, said[-1].who, said[-1].position) == (
            kind,
            label,
            who,
            position,
        ):
            return False
        self._undo(
            number, [event for event in said if event.who != who or event.position != position]
        )
        self._add(
            number, lambda key: self.assignment.journal.add(kind, who, position, label, key=key)
        )
        return True

    def _undo(self, number: int, events: Sequence[Event]) -> None:
        for event in list(events):
            self._add(
                number, lambda key, e=event: self.assignment.journal.undo(e.who, e.seq, key=key)
            )

    def _add(self, number: int, write: Any) -> None:
        event = write(f"{KEY} {number} {self._count.get(number, 0)}")
        if event is not None:
            self._remember(event)

    def _remember(self, event: Event) -> None:
        """What an event says of its annotation."""
        first, _, rest = (event.key or "").partition(" ")
        if first != KEY:
            return
        number = int(rest.split()[0])
        self._count[number] = self._count.get(number, 0) + 1
        said = self._said.setdefault(number, [])
        said[:] = (
            [e for e in said if e.seq != event.ref] if event.kind == "undo" else [*said, event]
        )

    def _class(self, name: str) -> int:
        number = self.assignment.journal.number(name)  # also of one that was renamed on a page
        return int(self.assignment.add_class(NOBODY, name)["number"]) if number is None else number

    def _who(self, user: int | str | None) -> str:
        if isinstance(user, str):
            return user
        if user is None:
            return NOBODY
        if user not in self._people:
            try:
                self._people = self.studio.people()
            except (
                LabelaheadError
            ) as error:  # the answer counts all the same, and is set right at the next look
                self._lost(error)
        return self._people.get(user, f"user {user}")

    def _missing_tasks(self) -> int:
        """Leave out what Label Studio has no more; how many those are."""
        there = {int(task["id"]) for task in self.studio.tasks()}
        gone = {
            task
            for task, p in self.positions.items()
            if task not in there and p not in self.assignment.broken
        }
        self._lost_tasks(gone)
        return len(gone)

    def _lost_tasks(self, gone: Collection[int]) -> None:
        """Nobody is asked about what somebody has deleted."""
        self.assignment.leave_out(
            {self.positions[task]: GONE for task in gone if task in self.positions}
        )
        self._known -= set(gone)
        if self._supply is not None:
            self._supply.tasks -= set(gone)

    def _new_tasks(self, numbers: Iterable[int]) -> None:
        new = set(numbers) - self._known
        if new:
            self._arrived |= new
            self._newest = time.monotonic()
            self._oldest = self._oldest or self._newest

    def _lost(self, error: LabelaheadError) -> None:
        """Said once, not with every try."""
        if not self._down:
            log.warning("%s; %s", error, WAITED_FOR if isinstance(error, Unreachable) else REFUSED)
        self._down = True

    def _watch(self) -> None:
        looked = time.monotonic()
        while True:
            try:
                if self._connect is not None:
                    self._connect()
                    self._connect = None
                elif self._opinion is not self.assignment.opinion or not self._served:
                    self.serve()
                if self._late:
                    self.reconcile()
                if self._all_there() and self._supply is not None:
                    self._read_tasks(self._supply)
                elif self._all_there() and self._renew is not None:
                    self.outdated = True
                    self._renew()
                    return
                if time.monotonic() - looked > LOOK:
                    looked = time.monotonic()
                    self._look()
            except LabelaheadError as error:
                self._lost(error)
            except Exception:  # this thread must be there for the next annotations
                log.exception("looking after Label Studio failed; tried again")
            if self._ending.wait(GLANCE):
                return

    def _all_there(self) -> bool:
        """Whether there are new tasks, and no more of them are to be waited for."""
        now = time.monotonic()
        return bool(self._newest) and (now - self._newest > QUIET or now - self._oldest > LONG)

    def _keep_order(self, project: Mapping[str, Any]) -> None:
        """Whoever saves a project's settings may set back, unseen, what its tasks are served by."""
        now = project["sampling"], project["model_version"]
        if self._served and self._version and now != (UNCERTAINTY, self._version):
            log.warning(
                "the project's sampling or model version was changed (%s, %s); %s", *now, SET_BACK
            )
            self.serve(anew=True)

    def _read_interface(self, config: str) -> None:
        """A project's configuration may be edited at any time.

        What was annotated by it is read anew.
        """
        if config == self._config:
            return
        self._config = config
        try:
            now = read_interface(config)
        except InputError as error:
            log.warning(
                "%s. Annotations are taken in by the configuration before, as far as they fit it",
                error,
            )
            return
        if now == self.interface:
            return
        if self._supply is not None:
            try:
                self._supply.show(now)
            except InputError as error:
                log.warning("%s. Tasks are made as before", error)
                return
        if (now.pictures, now.texts) != (self.interface.pictures, self.interface.texts):
            log.warning(
                "tasks show other fields now; they are learnt from as before until another --out "
                "is chosen"
            )
        self.interface = now
        new, _ = self.reconcile()
        log.warning(
            "the labelling configuration was changed, to choices %s; %d annotations read anew",
            ", ".join(now.choices),
            new,
        )

    def _heard(self) -> int:
        """Annotations that say something in the record."""
        return sum(map(bool, self._said.values()))

    def _look(self) -> None:
        """Whether Label Studio has what the record has.

        If not, or if it was away, all of it is compared.
        """
        version, project = self._version, self.studio.project()
        with self._turn:
            there = project["total_annotations_number"] + project["skipped_annotations_number"]
            before, self._missing = self._missing, there - self._heard()
            # A webhook may be on its way: what differs must differ in the same way for two looks.
            # Annotations of tasks that could not be fetched are missing for good.
            if self._down or (self._missing == before != self._lacking):
                new, _ = self.reconcile()
                self._lacking = there - self._heard()
                if new and not self._down and not self._warned:
                    self._warned = True
                    log.warning(UNHEARD)
                self.serve(anew=self._down)
            if version == self._version:  # else somebody has annotated meanwhile
                self._keep_order(project)
            self._read_interface(str(project["label_config"]))
            if project["task_number"] > len(self._known):
                self._newest = self._newest or time.monotonic()
                self._oldest = self._oldest or self._newest
            if self._down:
                log.warning("%s answers again: nothing is missing", self.studio.url)
            self._down = False
        for version in list(self._stale):
            self.studio.forget(version)
            self._stale.discard(version)
