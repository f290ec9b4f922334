"""What the events of a labelling record amount to: a pure fold, without any file.

An answer is an event `label`, `confirm`, `skip` or `unsure`. It survives until an `undo` of the
same person names it; then that person's answer before it counts again, if there was one. Of every
person only the newest surviving answer to an item counts, so a later skip withdraws that person's
own label and nobody else's. An item's label is the newest of the labels that count.

Where persons' labels differ there is a conflict. Anybody may `settle` it, also one of them: what is
settled is the item's label until a newer one comes, and nobody's own answer changes by it. The
conflict is open again when somebody says something else than what was settled.

A label that the network doubts may be kept by anybody (`keep`, with the label that counts). That
stands until the item's label changes or a conflict arises, by whatever event, or until anybody lets
it be doubted again (`doubt`); it is no answer, and what ended it does not bring it back by an undo.

A confirmation (`confirm`) is a label that was said of many items at once, those that were predicted
alike: it counts as any label, and is known for what it is. `ref` names the first of those that were
confirmed together.

A class may be given another name (`rename`), be merged into another (`merge`) or be removed
(`remove`). Numbers stay: labels of a merged class count as the other's, those of a removed class as
not given, until the change is undone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter, index
from types import MappingProxyType
from typing import Any, NamedTuple

from labelahead.data.classes import check_name, normalise_name
from labelahead.errors import InputError

__all__ = ["CLASS_CHANGE_KINDS", "Event", "LabelState", "LabelStateBuilder", "build_label_state"]

ANSWER_KINDS = ("label", "confirm", "skip", "unsure")
CLASS_CHANGE_KINDS = ("rename", "merge", "remove")  # of classes
REQUIRED_FIELDS = {
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
    """One line of the record; never changed, never removed.

    kind: label, confirm (ref: seq of the first that was confirmed with it), skip, unsure, settle,
    keep, doubt, undo (ref: seq of what is taken back; position: its item), class (label: the new
    class's number; text: its name), rename (text: the new name), merge (text: the name of the class
    that it becomes) or remove. key: made by the sender, so that an event sent twice is recorded
    once.
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
        """Some of it, by name."""
        return {name: getattr(self, name) for name in names}


class Agreement(NamedTuple):
    """Of the items that two or more persons labelled: how many, and with one label how many."""

    compared: int
    agreeing: int


@dataclass(frozen=True)
class LabelState:
    """What all answers amount to; a snapshot that no later event changes."""

    seq: int  # of the newest event, 0 before the first
    classes: tuple[str, ...]
    # position -> what each person says of the item now, oldest first
    answers: Mapping[int, tuple[Event, ...]]
    answered_positions: Mapping[str, frozenset[int]]  # person -> positions
    labels: Mapping[int, int]  # position -> the class that counts
    conflicts: tuple[int, ...]  # positions, ascending, where persons' labels differ, not settled
    settlements: Mapping[int, Event]  # position -> the newest settlement, where it is what counts
    kept_labels: Mapping[int, Event]  # position -> who said last that its label is right, and when
    skipped: frozenset[int]  # newest answer is a skip, and there is no label
    unsure: frozenset[int]  # the same of unsure
    agreement: Agreement  # of what persons said themselves, whatever was settled later
    class_mapping: tuple[
        int | None, ...
    ] = ()  # of each class, the one that its labels are of now; None: removed
    confirmed: frozenset[int] = frozenset()  # positions whose label was confirmed among many
    classes_seq: int = 0  # of the newest event that changed the classes

    @property
    def active_classes(self) -> tuple[int, ...]:
        """Numbers of the classes that are neither merged into others nor removed."""
        return tuple(c for c, now in enumerate(self.class_mapping) if c == now)

    def find_deciding_answer(self, position: int) -> Event:
        """The answer that an item's label comes from."""
        if position in self.settlements:
            return self.settlements[position]
        return next(a for a in reversed(self.answers[position]) if a.label is not None)


def build_label_state(events: Iterable[Event]) -> LabelState:
    """The tally after these events, in this order."""
    builder = LabelStateBuilder()
    for event in events:
        builder.add_event(event)
    return builder.build()


class LabelStateBuilder:
    """The fold, one event at a time: each costs what its own item costs, however long the record.

    An undo that names no surviving answer of the same person has no effect.
    """

    def __init__(self) -> None:
        self.seq = 0  # of the last event
        self.classes: list[str] = []
        self.class_numbers: dict[
            str, int
        ] = {}  # of classes that are there, by `normalise_name` of their names
        self.class_mapping: list[int | None] = []
        self._classes_seq = 0
        self._initial_names: list[str] = []  # names that classes began with
        self._former_names: dict[
            str, int
        ] = {}  # of classes, by `normalise_name` of every name that they ever had
        self._class_changes: dict[
            int, tuple[str, int, int, str]
        ] = {}  # surviving seq -> kind, class, into which, name
        self._grid_of: dict[int, int] = {}  # confirmation -> the first of those with it
        self._author: dict[int, str] = {}  # whose an answer is, also of those taken back
        # person -> surviving seq -> position; None: a change of classes
        self._undoable: dict[str, dict[int, int | None]] = {}
        self._answers_by_annotator: dict[
            int, dict[str, list[Event]]
        ] = {}  # all surviving, oldest first
        self._settlements: dict[int, list[Event]] = {}  # surviving settlements, oldest first
        self._answers: dict[int, tuple[Event, ...]] = {}
        self._answered: dict[str, set[int]] = {}
        self._frozen_positions: dict[
            str, frozenset[int]
        ] = {}  # the same, of persons who have said nothing since
        self._settled_items: dict[int, Event] = {}
        self._kept: dict[int, Event] = {}
        self._labels: dict[int, int] = {}
        names = ("conflict", "skip", "unsure", "compared", "differ", "confirm")
        self._position_sets: dict[str, set[int]] = {name: set() for name in names}
        self._label_state: LabelState | None = None

    def add_event(self, event: Event) -> None:
        """Take one more event into account."""
        self.seq, self._label_state = event.seq, None
        if event.kind == "class" and event.text is not None:
            self._classes_seq = event.seq
            for names in (self.class_numbers, self._former_names):
                names[normalise_name(event.text)] = len(self.classes)
            self.class_mapping.append(len(self.classes))
            self.classes.append(event.text)
            self._initial_names.append(event.text)
        elif event.kind in CLASS_CHANGE_KINDS and event.label is not None:
            into = self.class_numbers.get(normalise_name(event.text or ""), 0)
            self._class_changes[event.seq] = event.kind, event.label, into, event.text or ""
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
        """Names and numbers of classes after the changes that survive, and all labels with them."""
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
        """Name of each class, and what its labels count as, after these changes."""
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
        """The class of this name, or that once had it, as it counts now."""
        number = self.class_numbers.get(
            normalise_name(name), self._former_names.get(normalise_name(name))
        )
        return None if number is None else self.class_mapping[number]

    def has_ever_named(self, name: str) -> bool:
        """Whether some class has, or had, this name."""
        return (
            normalise_name(name) in self.class_numbers or normalise_name(name) in self._former_names
        )

    def _add_undoable(self, event: Event, position: int | None) -> None:
        """What its person may take back."""
        self._author[event.seq] = event.who
        self._undoable.setdefault(event.who, {})[event.seq] = position

    def _clear_kept(self, position: int) -> None:
        """Nobody keeps the label of this item any more, so there is nothing to take back."""
        kept = self._kept.pop(position, None)
        if kept is not None:
            self._undoable[kept.who].pop(kept.seq, None)

    def _remove_answer(self, position: int, who: str, seq: int) -> None:
        """One answer, settlement or keeping less."""
        if position in self._kept and self._kept[position].seq == seq:
            del self._kept[position]
        self._settlements[position] = [
            a for a in self._settlements.get(position, ()) if a.seq != seq
        ]
        given = self._answers_by_annotator.get(position, {})
        kept = [a for a in given.pop(who, ()) if a.seq != seq]
        if kept:
            given[who] = kept
        elif position in self._answered.get(who, ()):
            self._answered[who].remove(position)
            self._frozen_positions.pop(who, None)

    def find_newest_answer(self, who: str) -> int | None:
        """The seq of a person's newest surviving answer."""
        return next(reversed(self._undoable.get(who, {})), None)

    def find_batch(self, who: str, seq: int) -> list[int]:
        """A person's answer and those that were given with it, as far as they survive.

        The newest first.
        """
        grid = self._grid_of.get(seq)
        same = [
            s
            for s in self._undoable.get(who, ())
            if s != seq and grid is not None and self._grid_of.get(s) == grid
        ]
        return [seq, *reversed(same)]

    def is_undoable(self, who: str, seq: int) -> bool:
        """Whether a person's own answer has not been taken back; an error of any other."""
        if seq not in self._author:
            raise InputError(f"event {seq} is no answer; expected the number of a given answer")
        if self._author[seq] != who:
            raise InputError(
                f"answer {seq} is {self._author[seq]!r}'s; expected one of {who!r}'s own"
            )
        return seq in self._undoable[who]

    def find_answer(self, who: str, position: int) -> Event | None:
        """A person's answer to an item that counts now."""
        given = self._answers_by_annotator.get(position, {}).get(who)
        return self._map_class(given[-1]) if given else None

    def has_label(self, position: int) -> bool:
        """Whether an item has a label."""
        return index(position) in self._labels

    def _map_class(self, event: Event) -> Event | None:
        """An answer as classes are now; None if its class was removed."""
        if event.label is None or self.class_mapping[event.label] == event.label:
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
    ) -> Event:
        """The event that these would be, now; an error if they make none. Adds nothing."""
        given = {"position": position, "label": label, "ref": ref, "text": text}
        names = tuple(name for name, value in given.items() if value is not None)
        if kind not in REQUIRED_FIELDS:
            raise InputError(f"kind is {kind!r}; expected one of {', '.join(REQUIRED_FIELDS)}")
        if names != REQUIRED_FIELDS[kind]:
            raise InputError(
                f"{kind} with {names}; expected {REQUIRED_FIELDS[kind]} and nothing else"
            )
        if label is not None:
            label = self._check_class(label)
        if kind == "class":
            text, label = check_name(text, "the class's name"), len(self.classes)
            if normalise_name(text) in self.class_numbers:
                raise InputError(f"there is a class {text!r} already; expected a new name")
        elif kind in CLASS_CHANGE_KINDS:
            text = self._check_class_change(kind, label or 0, text)
        elif kind == "undo":
            ref = index(ref or 0)
            if not self.is_undoable(who, ref):
                raise InputError(f"answer {ref} has been taken back already")
            position = self._undoable[who][ref]
            if position is None:
                self._check_undo(ref)
        if kind == "keep" and self._labels.get(index(position or 0)) != label:
            name = self.classes[label or 0]
            raise InputError(f"item {position} is not labelled {name!r} now; look at it again")
        if kind == "doubt" and index(position or 0) not in self._kept:
            raise InputError(f"the label of item {position} is not kept, so it can be doubted")
        if key is not None:
            key = check_name(key, "the key")
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        where = None if position is None else index(position)
        return Event(self.seq + 1, at, who, kind, where, label, ref, key, text)

    def _check_class(self, label: int) -> int:
        """The number of a class that is there; an error of any other."""
        label, count = index(label), len(self.classes)
        if not 0 <= label < count:
            raise InputError(f"label is {label}; expected a class, from 0 to {count - 1}")
        if self.class_mapping[label] != label:
            raise InputError(
                f"the class {self.classes[label]!r} is no more; expected one of those that are "
                "there"
            )
        return label

    def _check_class_change(self, kind: str, label: int, text: str | None) -> str | None:
        """The name that goes with a change of a class; an error if there can be no such change."""
        if kind == "remove":
            return None
        text = check_name(text, "the class's name")
        other, name = self.class_numbers.get(normalise_name(text)), self.classes[label]
        if kind == "rename" and other not in (None, label):
            raise InputError(
                f"there is a class {text!r} already; expected a new name, or merge {name!r} into it"
            )
        if kind == "merge" and (other is None or other == label):
            what = "itself" if other == label else f"{text!r}, which is no class"
            raise InputError(
                f"{name!r} cannot be merged into {what}; expected another class that is there"
            )
        return text if kind == "rename" or other is None else self.classes[other]

    def _check_undo(self, ref: int) -> None:
        """A class whose change is taken back must not meet another of its name."""
        names, class_mapping = self._fold_class_changes(
            change for seq, change in self._class_changes.items() if seq != ref
        )
        there = [normalise_name(names[c]) for c, now in enumerate(class_mapping) if c == now]
        twice = next(
            (names[c] for c in range(len(names)) if there.count(normalise_name(names[c])) > 1), None
        )
        if twice is not None:
            raise InputError(
                f"there is another class {twice!r} by now; rename that one first, then take this "
                "back"
            )

    def build(self) -> LabelState:
        """The snapshot; made once for each state."""
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
                agreement=Agreement(compared, compared - len(sets["differ"])),
            )
        return self._label_state

    def _update_item(self, position: int) -> None:
        """Work out one item anew."""
        given = self._answers_by_annotator.get(position, {})
        for who, each in given.items():
            answered = self._answered.setdefault(who, set())
            if (self._map_class(each[-1]) is not None) != (position in answered):
                answered ^= {position}
                self._frozen_positions.pop(who, None)
        newest = sorted(
            filter(None, (self._map_class(each[-1]) for each in given.values())),
            key=attrgetter("seq"),
        )
        said = [a for a in newest if a.label is not None]
        labels = [a.label for a in said]
        ruling = next(reversed(self._settlements.get(position, ())), None)
        settlement = ruling and self._map_class(ruling)
        was_open = position in self._position_sets["conflict"]
        for known in (self._answers, self._labels, self._settled_items):
            known.pop(position, None)
        for positions in self._position_sets.values():
            positions.discard(position)
        if newest:
            self._answers[position] = tuple(newest)
        if settlement is not None and not (said and said[-1].seq > settlement.seq):
            self._settled_items[position] = settlement
        if said or settlement:
            counts = self._settled_items.get(position) or said[-1]
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
        # What was said before a settlement is settled; what is said after it may contradict it.
        later = {a.label for a in said if settlement is None or a.seq > settlement.seq}
        if len(later | ({settlement.label} if settlement else set())) > 1:
            self._position_sets["conflict"].add(position)
        kept, is_open = self._kept.get(position), position in self._position_sets["conflict"]
        stays = kept and self._map_class(kept)
        if kept and (
            not stays or stays.label != self._labels.get(position) or (is_open and not was_open)
        ):
            self._clear_kept(position)
