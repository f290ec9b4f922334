"""The state of all labels, computed from the events of a journal: a pure fold without files.

An answer is an event `label`, `confirm`, `skip` or `unsure`. It is valid until an `undo` of the
same annotator refers to it; then the annotator's previous answer to the item, if any, is valid
again. Only the newest valid answer of each annotator to an item is used, so a later skip withdraws
the annotator's own label and no other. The label of an item is the newest of the labels in use.

If the labels of annotators differ, there is a conflict. Anybody may `settle` it: the settled label
is the item's label until a newer one is given, and no annotator's own answer changes. The conflict
is open again when an annotator gives a label that differs from the settled one.

A label that the model contradicts may be kept by anybody (`keep`, with the current label). It is
excluded from the review until the item's label changes, a conflict arises, or somebody opens it
again (`doubt`). A `keep` is not an answer, and undoing the event that ended it does not restore it.

A confirmation (`confirm`) is a label given to many items at once. It counts as a label and is
marked as a confirmation. `ref` is the number of the first confirmation of the same grid.

A class may be renamed (`rename`), merged into another (`merge`) or removed (`remove`). Class
numbers never change: labels of a merged class count as labels of the other class, and labels of a
removed class are ignored, until the change is undone.

The label `NONE_OF_THESE` says that an item belongs to none of the classes. It says so of the
classes that there were: it does not contradict the label of a class that was added later.

Of another task than one class per item (`labelahead.tasks`), the first event is `task`. A label is
then the code of an answer, and its `text` the answer as it is written; of a rating, a class number.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import attrgetter, index
from types import MappingProxyType
from typing import Any, NamedTuple

from labelahead.data.classes import check_name, normalise_name
from labelahead.data.dataset import NONE_OF_THESE, NONE_OF_THESE_NAME
from labelahead.errors import InputError
from labelahead.server.answer_book import SessionTask
from labelahead.tasks import Task

__all__ = [
    "CLASS_CHANGE_KINDS",
    "NONE_KINDS",
    "Event",
    "LabelState",
    "LabelStateBuilder",
    "build_label_state",
    "count_classes",
]

ANSWER_KINDS = ("label", "confirm", "skip", "unsure")
CLASS_CHANGE_KINDS = ("rename", "merge", "remove")  # of classes
NONE_KINDS = ("label", "settle", "keep")  # whose label may be `NONE_OF_THESE`
VALUE_KINDS = NONE_KINDS  # that may have an answer of a task
REQUIRED_FIELDS = {
    "task": ("text",),
    "label": ("position", "label"),
    "confirm": ("position", "label", "ref"),
    "skip": ("position",),
    "unsure": ("position",),
    "settle": ("position", "label"),
    "keep": ("position", "label"),
    "doubt": ("position",),
    "undo": ("ref",),
    "class": ("text",),
    "rename": ("label", "text"),
    "merge": ("label", "text"),
    "remove": ("label",),
}


@dataclass(frozen=True)
class Event:
    """One event of the journal; events are never changed or removed.

    kind: label, confirm (ref: seq of the first confirmation of the grid), skip, unsure, settle,
    keep, doubt, undo (ref: seq of the undone event; position: its item), class (label: the new
    class's number; text: its name), rename (text: the new name), merge (text: the name of the other
    class), remove or task (text: its settings). Of a task, the text of a label, settle or keep is
    the written answer. key: made by the client, so that an event sent twice is recorded once.
    """

    seq: int
    at: str  # UTC, ISO 8601 with milliseconds
    who: str  # "" for the program itself
    kind: str
    position: int | None = None
    label: int | None = None
    ref: int | None = None
    key: str | None = None
    text: str | None = None

    def pick_fields(self, *names: str) -> dict[str, Any]:
        """Return some fields by name."""
        return {name: getattr(self, name) for name in names}


class Agreement(NamedTuple):
    """Number of items labelled by two or more annotators, and on how many of them they agree."""

    compared: int
    agreeing: int


@dataclass(frozen=True)
class LabelState:
    """Labels, answers, conflicts and classes after some events; immutable."""

    seq: int  # of the newest event, 0 before the first
    classes: tuple[str, ...]
    # position -> the current answer of each annotator, oldest first
    answers: Mapping[int, tuple[Event, ...]]
    answered_positions: Mapping[str, frozenset[int]]  # annotator -> positions
    labels: Mapping[int, int]  # position -> class or `NONE_OF_THESE`
    conflicts: tuple[int, ...]  # ascending positions with open conflicts
    settlements: Mapping[int, Event]  # position -> the settlement in use
    kept_labels: Mapping[int, Event]  # position -> the newest `keep` event
    skipped: frozenset[int]  # no label, and the newest answer is a skip
    unsure: frozenset[int]  # no label, and the newest answer is unsure
    agreement: Agreement  # of the annotators' own labels, regardless of settlements
    class_mapping: tuple[
        int | None, ...
    ] = ()  # of each class, the one that its labels are of now; None: removed
    confirmed: frozenset[int] = frozenset()  # positions with a bulk-confirmed label
    classes_seq: int = 0  # seq of the newest event that changed the classes
    # normalised name of a renamed, merged or removed class -> present name; None: removed
    former_classes: Mapping[str, str | None] = field(default_factory=dict)
    # what labels are, with all answers so far; None: class numbers
    task: Task | None = field(default=None, compare=False)

    @property
    def has_codes(self) -> bool:
        """Return whether labels are codes of written answers, not class numbers."""
        return self.task is not None and not self.task.codes_are_classes

    @property
    def can_be_fitted(self) -> bool:
        """Return whether there are enough labels for a fit: of two classes, or two labels."""
        if self.task is None:
            return count_classes(self.labels) > 1
        return len(self.labels) > 1

    @property
    def active_names(self) -> tuple[str, ...]:
        """Return the names of the classes that are neither merged into others nor removed."""
        return tuple(self.classes[c] for c in self.active_classes)

    @property
    def active_classes(self) -> tuple[int, ...]:
        """Return the numbers of the classes that are neither merged into others nor removed."""
        return tuple(c for c, now in enumerate(self.class_mapping) if c == now)

    @property
    def none_of_these(self) -> tuple[int, ...]:
        """Return the positions of the items that belong to none of the classes."""
        return tuple(sorted(p for p, c in self.labels.items() if c == NONE_OF_THESE))

    @property
    def can_be_none_of_these(self) -> bool:
        """Return whether "none of these" is an answer: no class of the user is called so.

        Other tasks have answers of their own for it.
        """
        return self.task is None and all(
            normalise_name(n) != NONE_OF_THESE_NAME for n in self.active_names
        )

    def name_label(self, label: int) -> str:
        """Return the name of a class, that of the answer "none of these", or a written answer."""
        if self.task is not None:
            return self.task.write(label)
        return NONE_OF_THESE_NAME if label == NONE_OF_THESE else self.classes[label]

    def list_annotations(self) -> tuple[tuple[int, int, str], ...]:
        """Return (position, class, annotator) of all labels, if several people labelled.

        Items with a settled conflict are left out: their label is not in doubt. Empty if one
        annotator gave all labels, and of a task, whose learner does not tell annotators apart.
        """
        if self.task is not None:
            return ()
        rows = [
            (position, answer.label, answer.who)
            for position, answers in self.answers.items()
            if position not in self.settlements
            for answer in answers
            if answer.label is not None
        ]
        return tuple(rows) if len({who for _, _, who in rows}) > 1 else ()

    def find_deciding_answer(self, position: int) -> Event:
        """Return the answer or settlement that determines an item's label."""
        if position in self.settlements:
            return self.settlements[position]
        return next(a for a in reversed(self.answers[position]) if a.label is not None)


def count_classes(labels: Mapping[int, int]) -> int:
    """Return how many classes have labels. labels: position -> class or `NONE_OF_THESE`."""
    return len({label for label in labels.values() if label != NONE_OF_THESE})


def build_label_state(events: Iterable[Event]) -> LabelState:
    """Return the state after these events, in this order."""
    builder = LabelStateBuilder()
    for event in events:
        builder.add_event(event)
    return builder.build()


class LabelStateBuilder:
    """Compute a `LabelState` incrementally: an event costs the same however long the journal is.

    An undo that does not refer to a valid answer of the same annotator has no effect.
    """

    def __init__(self) -> None:
        self.seq = 0  # of the last event
        self.session_task = SessionTask()
        self.classes: list[str] = []
        # normalised name of an existing class -> its number
        self.class_numbers: dict[str, int] = {}
        self.class_mapping: list[int | None] = []
        self._classes_seq = 0
        self._class_seqs: list[int] = []  # seq of the event that added each class
        self._initial_names: list[str] = []  # first name of each class
        # normalised current or former name of a class -> its number
        self._former_names: dict[str, int] = {}
        # the same with the names of undone changes, which guesses may still use
        self._every_name: dict[str, int] = {}
        # seq of a valid change -> kind, class, class that it is merged into, name
        self._class_changes: dict[int, tuple[str, int, int, str]] = {}
        self._grid_of: dict[
            int, int
        ] = {}  # seq of a confirmation -> seq of the first one of its grid
        self._author: dict[int, str] = {}  # seq -> annotator, also of undone answers
        # annotator -> seq of a valid answer -> position; None for a change of classes
        self._undoable: dict[str, dict[int, int | None]] = {}
        # position -> annotator -> valid answers, oldest first
        self._answers_by_annotator: dict[int, dict[str, list[Event]]] = {}
        self._settlements: dict[int, list[Event]] = {}  # valid settlements, oldest first
        self._answers: dict[int, tuple[Event, ...]] = {}
        self._answered: dict[str, set[int]] = {}
        # `_answered` as immutable sets, of annotators without an answer since
        self._frozen_positions: dict[str, frozenset[int]] = {}
        self._settled_items: dict[int, Event] = {}
        self._kept: dict[int, Event] = {}
        self._labels: dict[int, int] = {}
        names = ("conflict", "skip", "unsure", "compared", "differ", "confirm")
        self._position_sets: dict[str, set[int]] = {name: set() for name in names}
        self._label_state: LabelState | None = None

    def add_event(self, event: Event) -> None:
        """Process one more event."""
        self.seq, self._label_state = event.seq, None
        if event.kind == "class" and event.text is not None:
            self._classes_seq = event.seq
            self._class_seqs.append(event.seq)
            for names in (self.class_numbers, self._former_names, self._every_name):
                names[normalise_name(event.text)] = len(self.classes)
            self.class_mapping.append(len(self.classes))
            self.classes.append(event.text)
            self._initial_names.append(event.text)
            self.session_task.add_class(event.text)
        elif event.kind == "task" and event.text is not None:
            self.session_task.start(event.text)
        elif event.kind in CLASS_CHANGE_KINDS and event.label is not None:
            into = self.class_numbers.get(normalise_name(event.text or ""), 0)
            self._class_changes[event.seq] = event.kind, event.label, into, event.text or ""
            if event.kind == "rename":
                self._every_name[normalise_name(event.text or "")] = event.label
            self._add_undoable(event, None)
            self._apply_class_changes(event.seq)
        elif (
            event.kind == "undo"
            and event.ref is not None
            and event.ref in self._undoable.get(event.who, ())
        ):
            position = self._undoable[event.who].pop(event.ref)
            if position is None:
                del self._class_changes[event.ref]
                self._apply_class_changes(event.seq)
            else:
                self._remove_answer(position, event.who, event.ref)
                self._update_item(position)
        elif event.kind == "doubt" and event.position is not None:
            self._clear_kept(event.position)
        elif event.kind == "keep" and event.position is not None:
            self._clear_kept(event.position)
            if self._labels.get(event.position) == event.label:
                self._add_undoable(event, event.position)
                self._kept[event.position] = event
        elif event.kind in (*ANSWER_KINDS, "settle") and event.position is not None:
            if self.session_task.has_codes and event.text is not None:
                self.session_task.enter(event.text)
            self._add_undoable(event, event.position)
            if event.kind == "settle":
                self._settlements.setdefault(event.position, []).append(event)
            else:
                self._answers_by_annotator.setdefault(event.position, {}).setdefault(
                    event.who, []
                ).append(event)
            if event.kind == "confirm" and event.ref is not None:
                self._grid_of[event.seq] = event.ref
            self._update_item(event.position)

    def _apply_class_changes(self, seq: int) -> None:
        """Recompute classes and labels after the valid changes of classes."""
        self._classes_seq = seq
        self.classes, self.class_mapping = self._fold_class_changes(self._class_changes.values())
        self.class_numbers = {
            normalise_name(self.classes[c]): c
            for c, now in enumerate(self.class_mapping)
            if c == now
        }
        renamed = (
            (text, c) for kind, c, _, text in self._class_changes.values() if kind == "rename"
        )
        self._former_names = {
            normalise_name(name): c
            for name, c in (*((n, c) for c, n in enumerate(self._initial_names)), *renamed)
        }
        for position in {*self._answers_by_annotator, *self._settlements}:
            self._update_item(position)

    def _fold_class_changes(
        self, changes: Iterable[tuple[str, int, int, str]]
    ) -> tuple[list[str], list[int | None]]:
        """Return the name and the mapped class of each class after these changes."""
        names, class_mapping = (
            list(self._initial_names),
            list[int | None](range(len(self._initial_names))),
        )
        for kind, label, into, text in changes:
            if kind == "rename":
                names[label] = text
            else:
                now = class_mapping[into] if kind == "merge" else None
                class_mapping = [now if c == label else c for c in class_mapping]
        return names, class_mapping

    def find_class(self, name: str) -> int | None:
        """Return the class that has or had this name, after merges; None if there is none."""
        number = self.class_numbers.get(
            normalise_name(name), self._former_names.get(normalise_name(name))
        )
        return None if number is None else self.class_mapping[number]

    def _list_former_classes(self) -> dict[str, str | None]:
        """Return the present class name of every name that is no longer one."""
        found = {}
        for name in self._every_name.keys() - self.class_numbers.keys():
            number = self.class_mapping[self._former_names.get(name, self._every_name[name])]
            found[name] = None if number is None else self.classes[number]
        return dict(sorted(found.items()))

    def has_ever_named(self, name: str) -> bool:
        """Return whether a class has or had this name."""
        return (
            normalise_name(name) in self.class_numbers or normalise_name(name) in self._former_names
        )

    def _add_undoable(self, event: Event, position: int | None) -> None:
        """Register an event that its annotator can undo."""
        self._author[event.seq] = event.who
        self._undoable.setdefault(event.who, {})[event.seq] = position

    def _clear_kept(self, position: int) -> None:
        """Discard the `keep` of an item; it can no longer be undone."""
        kept = self._kept.pop(position, None)
        if kept is not None:
            self._undoable[kept.who].pop(kept.seq, None)

    def _remove_answer(self, position: int, who: str, seq: int) -> None:
        """Remove an undone answer, settlement or keep."""
        if position in self._kept and self._kept[position].seq == seq:
            del self._kept[position]
        self._settlements[position] = [
            a for a in self._settlements.get(position, ()) if a.seq != seq
        ]
        answers_by_annotator = self._answers_by_annotator.get(position, {})
        kept = [a for a in answers_by_annotator.pop(who, ()) if a.seq != seq]
        if kept:
            answers_by_annotator[who] = kept
        elif position in self._answered.get(who, ()):
            self._answered[who].remove(position)
            self._frozen_positions.pop(who, None)

    def find_newest_answer(self, who: str) -> int | None:
        """Return the seq of an annotator's newest valid answer."""
        return next(reversed(self._undoable.get(who, {})), None)

    def find_batch(self, who: str, seq: int) -> list[int]:
        """Return the seq of an answer and of the other valid answers of its grid, newest first."""
        grid = self._grid_of.get(seq)
        same = [
            s
            for s in self._undoable.get(who, ())
            if s != seq and grid is not None and self._grid_of.get(s) == grid
        ]
        return [seq, *reversed(same)]

    def is_undoable(self, who: str, seq: int) -> bool:
        """Return whether an annotator's own answer can be undone.

        Raises:
            InputError: `seq` is not an answer of this annotator.
        """
        if seq not in self._author:
            raise InputError(f"event {seq} is not an answer; expected the number of an answer")
        if self._author[seq] != who:
            raise InputError(
                f"answer {seq} is {self._author[seq]!r}'s; expected an answer of {who!r}"
            )
        return seq in self._undoable[who]

    def find_answer(self, who: str, position: int) -> Event | None:
        """Return an annotator's current answer to an item."""
        answers_by_annotator = self._answers_by_annotator.get(position, {}).get(who)
        return self._map_class(answers_by_annotator[-1]) if answers_by_annotator else None

    def find_label(self, position: int) -> int | None:
        """Return the label of an item, None without one."""
        return self._labels.get(index(position))

    def _map_class(self, event: Event) -> Event | None:
        """Return an answer with its class after merges; None if the class was removed."""
        if event.label in (None, NONE_OF_THESE) or self.session_task.has_codes:
            return event
        assert event.label is not None
        if self.class_mapping[event.label] == event.label:
            return event
        now = self.class_mapping[event.label]
        return None if now is None else replace(event, label=now)

    def make_event(
        self,
        kind: str,
        who: str,
        position: int | None = None,
        label: int | None = None,
        *,
        text: str | None = None,
        ref: int | None = None,
        key: str | None = None,
        value: Any = None,
    ) -> Event:
        """Check the fields of a new event and return it; the state does not change.

        value: the answer, instead of `label`, as people and programs give it (`read_value`).

        Raises:
            InputError: A field is missing, superfluous or not valid in the current state.
        """
        if value is not None:
            label = self.read_value(value)
        given_fields = {"position": position, "label": label, "ref": ref, "text": text}
        names = tuple(name for name, found in given_fields.items() if found is not None)
        if kind not in REQUIRED_FIELDS:
            raise InputError(f"kind is {kind!r}; expected one of {', '.join(REQUIRED_FIELDS)}")
        if names != REQUIRED_FIELDS[kind]:
            raise InputError(
                f"{kind} with {names}; expected {REQUIRED_FIELDS[kind]} and nothing else"
            )
        if kind in CLASS_CHANGE_KINDS:
            self.session_task.check_class_change()
        if self.session_task.has_codes and label is not None:
            label, text = self._check_code(kind, index(label), value)
        elif label is not None:
            label = self._check_label(kind, index(label))
        if kind == "class":
            text, label = _check_class_name(text), len(self.classes)
            if normalise_name(text) in self.class_numbers:
                raise InputError(f"class {text!r} already exists; choose another name")
            self.session_task.check_class(text)
        elif kind == "task" and self.seq:
            raise InputError("the task of a journal is its first event; expected an empty journal")
        elif kind in CLASS_CHANGE_KINDS:
            text = self._check_class_change(kind, label or 0, text)
        elif kind == "undo":
            ref = index(ref or 0)
            if not self.is_undoable(who, ref):
                raise InputError(f"answer {ref} has already been undone")
            position = self._undoable[who][ref]
            if position is None:
                self._check_undo(ref)
        if kind == "keep" and self._labels.get(index(position or 0)) != label:
            name = text or (
                NONE_OF_THESE_NAME if label == NONE_OF_THESE else self.classes[label or 0]
            )
            raise InputError(
                f"item {position} is not labelled {name!r} now; reload it and try again"
            )
        if kind == "doubt" and index(position or 0) not in self._kept:
            raise InputError(
                f"the label of item {position} is not kept; expected an item with a kept label"
            )
        if key is not None:
            key = check_name(key, "the key")
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        where = None if position is None else index(position)
        return Event(self.seq + 1, at, who, kind, where, label, ref, key, text)

    def read_value(self, value: Any) -> int:
        """Return the label of an answer: its class number or its code, which may be a new one.

        Raises:
            InputError: It is no answer.
        """
        if self.session_task.settings is not None:
            return self.session_task.read(value)[0]
        found = self.find_class(check_name(value, "the class's name"))
        if found is None and normalise_name(value) == NONE_OF_THESE_NAME:
            return NONE_OF_THESE
        if found is None:
            raise InputError(f"class {value!r} does not exist; expected the name of a class")
        return found

    def has_valid_label(self, event: Event) -> bool:
        """Return whether the label of a stored event can follow the events so far."""
        if event.kind == "class":
            return event.label == len(self.classes)
        if self.session_task.has_codes and event.label is not None:
            return event.kind in VALUE_KINDS and self.session_task.is_valid(event.label, event.text)
        if event.label == NONE_OF_THESE:
            return event.kind in NONE_KINDS
        return 0 <= (event.label or 0) < max(len(self.classes), 1)

    def _check_code(self, kind: str, code: int, value: Any) -> tuple[int, str]:
        """Return code and text of an answer of a task; raise for an unknown code."""
        if kind not in VALUE_KINDS:
            raise InputError(f"the task is {self.session_task.name}, which has no {kind}")
        if value is not None:
            return self.session_task.read(value)
        return code, self.session_task.write(code)

    def _check_label(self, kind: str, label: int) -> int:
        """Return the number of an existing class or `NONE_OF_THESE`; raise for any other."""
        if label == NONE_OF_THESE and kind in NONE_KINDS and self.session_task.settings is None:
            if NONE_OF_THESE_NAME in self.class_numbers:
                raise InputError(
                    f"a class is called {NONE_OF_THESE_NAME!r}; label with this class, or rename it"
                )
            return label
        count = len(self.classes)
        if not 0 <= label < count:
            raise InputError(f"label is {label}; expected a class number from 0 to {count - 1}")
        if self.class_mapping[label] != label:
            raise InputError(
                f"class {self.classes[label]!r} was removed or merged; choose one of: "
                + ", ".join(self.classes[c] for c, now in enumerate(self.class_mapping) if c == now)
            )
        return label

    def _check_class_change(self, kind: str, label: int, text: str | None) -> str | None:
        """Return the name for a change of a class; raise if the change is not possible."""
        if kind == "remove":
            return None
        text = _check_class_name(text) if kind == "rename" else check_name(text, "the class's name")
        other, name = self.class_numbers.get(normalise_name(text)), self.classes[label]
        if kind == "rename" and other not in (None, label):
            raise InputError(
                f"class {text!r} already exists; choose another name, or merge {name!r} into it"
            )
        if kind == "merge" and (other is None or other == label):
            what = "itself" if other == label else f"{text!r}, which does not exist"
            raise InputError(
                f"{name!r} cannot be merged into {what}; choose another existing class"
            )
        return text if kind == "rename" or other is None else self.classes[other]

    def _check_undo(self, ref: int) -> None:
        """Raise if undoing a change of a class would give two classes the same name."""
        names, class_mapping = self._fold_class_changes(
            change for seq, change in self._class_changes.items() if seq != ref
        )
        current_names = [
            normalise_name(names[c]) for c, now in enumerate(class_mapping) if c == now
        ]
        twice = next(
            (
                names[c]
                for c in range(len(names))
                if current_names.count(normalise_name(names[c])) > 1
            ),
            None,
        )
        if twice is not None:
            raise InputError(
                f"another class is now called {twice!r}; rename that class first, then undo the "
                "change"
            )

    def build(self) -> LabelState:
        """Return the current state; it is cached until the next event."""
        if self._label_state is None:
            sets = self._position_sets
            compared = len(sets["compared"])
            for who in self._answered.keys() - self._frozen_positions.keys():
                self._frozen_positions[who] = frozenset(self._answered[who])
            self._label_state = LabelState(
                seq=self.seq,
                classes=tuple(self.classes),
                answers=MappingProxyType(self._answers.copy()),
                answered_positions=MappingProxyType(self._frozen_positions.copy()),
                labels=MappingProxyType(self._labels.copy()),
                conflicts=tuple(sorted(sets["conflict"])),
                skipped=frozenset(sets["skip"]),
                unsure=frozenset(sets["unsure"]),
                settlements=MappingProxyType(self._settled_items.copy()),
                kept_labels=MappingProxyType(
                    {p: self._map_class(a) or a for p, a in self._kept.items()}
                ),
                class_mapping=tuple(self.class_mapping),
                confirmed=frozenset(sets["confirm"]),
                classes_seq=self._classes_seq,
                former_classes=self._list_former_classes(),
                agreement=Agreement(compared, compared - len(sets["differ"])),
                task=self.session_task.task,
            )
        return self._label_state

    def _without_outdated_none(self, labelled: list[Event]) -> list[Event]:
        """Return the labels except "none of these" before the class of another label was added."""
        if self.session_task.has_codes:
            return labelled
        given = [a.label for a in labelled if a.label != NONE_OF_THESE]
        added = max((self._class_seqs[c] for c in given if c is not None), default=0)
        return [a for a in labelled if a.label != NONE_OF_THESE or a.seq > added]

    def _update_item(self, position: int) -> None:
        """Recompute the state of one item."""
        answers_by_annotator = self._answers_by_annotator.get(position, {})
        for who, each in answers_by_annotator.items():
            answered = self._answered.setdefault(who, set())
            if (self._map_class(each[-1]) is not None) != (position in answered):
                answered ^= {position}
                self._frozen_positions.pop(who, None)
        newest = sorted(
            filter(None, (self._map_class(each[-1]) for each in answers_by_annotator.values())),
            key=attrgetter("seq"),
        )
        labelled = self._without_outdated_none([a for a in newest if a.label is not None])
        labels = [a.label for a in labelled]
        ruling = next(reversed(self._settlements.get(position, ())), None)
        settlement = ruling and self._map_class(ruling)
        was_open = position in self._position_sets["conflict"]
        for known in (self._answers, self._labels, self._settled_items):
            known.pop(position, None)
        for positions in self._position_sets.values():
            positions.discard(position)
        if newest:
            self._answers[position] = tuple(newest)
        if settlement is not None and not (labelled and labelled[-1].seq > settlement.seq):
            self._settled_items[position] = settlement
        if labelled or settlement:
            counts = self._settled_items.get(position) or labelled[-1]
            assert counts.label is not None
            self._labels[position] = counts.label
            if counts.kind == "confirm":
                self._position_sets["confirm"].add(position)
        elif newest:
            self._position_sets[newest[-1].kind].add(position)
        if len(labels) > 1:
            self._position_sets["compared"].add(position)
        if len(set(labels)) > 1:
            self._position_sets["differ"].add(position)
        # Answers before a settlement are settled; later ones may contradict it.
        later = {a.label for a in labelled if settlement is None or a.seq > settlement.seq}
        if len(later | ({settlement.label} if settlement else set())) > 1:
            self._position_sets["conflict"].add(position)
        kept, is_open = self._kept.get(position), position in self._position_sets["conflict"]
        stays = kept and self._map_class(kept)
        if kept and (
            not stays or stays.label != self._labels.get(position) or (is_open and not was_open)
        ):
            self._clear_kept(position)


def _check_class_name(name: object) -> str:
    """Return the name of a class; raise for that of the answer "none of these"."""
    text = check_name(name, "the class's name")
    if normalise_name(text) == NONE_OF_THESE_NAME:
        raise InputError(
            f"{text!r} is an answer of the page and cannot be a class; choose another name"
        )
    return text
