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

from labelahead.data.classes import alike, checked_name
from labelahead.errors import InputError

__all__ = ["CHANGES", "Counting", "Event", "LabelState", "fold"]

ANSWERS = ("label", "confirm", "skip", "unsure")
CHANGES = ("rename", "merge", "remove")  # of classes
NEEDED = {
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

    def said(self, *names: str) -> dict[str, Any]:
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
    answered: Mapping[str, frozenset[int]]  # person -> positions
    labels: Mapping[int, int]  # position -> the class that counts
    conflicts: tuple[int, ...]  # positions, ascending, where persons' labels differ, not settled
    settled: Mapping[int, Event]  # position -> the newest settlement, where it is what counts
    kept: Mapping[int, Event]  # position -> who said last that its label is right, and when
    skipped: frozenset[int]  # newest answer is a skip, and there is no label
    unsure: frozenset[int]  # the same of unsure
    agreement: Agreement  # of what persons said themselves, whatever was settled later
    counts_as: tuple[
        int | None, ...
    ] = ()  # of each class, the one that its labels are of now; None: removed
    confirmed: frozenset[int] = frozenset()  # positions whose label was confirmed among many
    classes_seq: int = 0  # of the newest event that changed the classes

    @property
    def alive(self) -> tuple[int, ...]:
        """Numbers of the classes that are neither merged into others nor removed."""
        return tuple(c for c, now in enumerate(self.counts_as) if c == now)

    def counts(self, position: int) -> Event:
        """The answer that an item's label comes from."""
        if position in self.settled:
            return self.settled[position]
        return next(a for a in reversed(self.answers[position]) if a.label is not None)


def fold(events: Iterable[Event]) -> LabelState:
    """The tally after these events, in this order."""
    counting = Counting()
    for event in events:
        counting.add(event)
    return counting.tally()


class Counting:
    """The fold, one event at a time: each costs what its own item costs, however long the record.

    An undo that names no surviving answer of the same person has no effect.
    """

    def __init__(self) -> None:
        self.seq = 0  # of the last event
        self.classes: list[str] = []
        self.numbers: dict[str, int] = {}  # of classes that are there, by `alike` of their names
        self.counts_as: list[int | None] = []
        self._classes_seq = 0
        self._begun: list[str] = []  # names that classes began with
        self._former: dict[str, int] = {}  # of classes, by `alike` of every name that they ever had
        self._changes: dict[
            int, tuple[str, int, int, str]
        ] = {}  # surviving seq -> kind, class, into which, name
        self._grids: dict[int, int] = {}  # confirmation -> the first of those with it
        self._by: dict[int, str] = {}  # whose an answer is, also of those taken back
        # person -> surviving seq -> position; None: a change of classes
        self._own: dict[str, dict[int, int | None]] = {}
        self._given: dict[int, dict[str, list[Event]]] = {}  # all surviving, oldest first
        self._settlements: dict[int, list[Event]] = {}  # surviving settlements, oldest first
        self._answers: dict[int, tuple[Event, ...]] = {}
        self._answered: dict[str, set[int]] = {}
        self._frozen: dict[
            str, frozenset[int]
        ] = {}  # the same, of persons who have said nothing since
        self._settled: dict[int, Event] = {}
        self._kept: dict[int, Event] = {}
        self._labels: dict[int, int] = {}
        names = ("conflict", "skip", "unsure", "compared", "differ", "confirm")
        self._sets: dict[str, set[int]] = {name: set() for name in names}
        self._tally: LabelState | None = None

    def add(self, event: Event) -> None:
        """Take one more event into account."""
        self.seq, self._tally = event.seq, None
        if event.kind == "class" and event.text is not None:
            self._classes_seq = event.seq
            for names in (self.numbers, self._former):
                names[alike(event.text)] = len(self.classes)
            self.counts_as.append(len(self.classes))
            self.classes.append(event.text)
            self._begun.append(event.text)
        elif event.kind in CHANGES and event.label is not None:
            into = self.numbers.get(alike(event.text or ""), 0)
            self._changes[event.seq] = event.kind, event.label, into, event.text or ""
            self._own_answer(event, None)
            self._reclass(event.seq)
        elif (
            event.kind == "undo"
            and event.ref is not None
            and event.ref in self._own.get(event.who, ())
        ):
            position = self._own[event.who].pop(event.ref)
            if position is None:
                del self._changes[event.ref]
                self._reclass(event.seq)
            else:
                self._drop(position, event.who, event.ref)
                self._recount(position)
        elif event.kind == "doubt" and event.position is not None:
            self._let_go(event.position)
        elif event.kind == "keep" and event.position is not None:
            self._let_go(event.position)
            if self._labels.get(event.position) == event.label:
                self._own_answer(event, event.position)
                self._kept[event.position] = event
        elif event.kind in (*ANSWERS, "settle") and event.position is not None:
            self._own_answer(event, event.position)
            if event.kind == "settle":
                self._settlements.setdefault(event.position, []).append(event)
            else:
                self._given.setdefault(event.position, {}).setdefault(event.who, []).append(event)
            if event.kind == "confirm" and event.ref is not None:
                self._grids[event.seq] = event.ref
            self._recount(event.position)

    def _reclass(self, seq: int) -> None:
        """Names and numbers of classes after the changes that survive, and all labels with them."""
        self._classes_seq = seq
        self.classes, self.counts_as = self._changed(self._changes.values())
        self.numbers = {
            alike(self.classes[c]): c for c, now in enumerate(self.counts_as) if c == now
        }
        renamed = ((text, c) for kind, c, _, text in self._changes.values() if kind == "rename")
        self._former = {
            alike(name): c for name, c in (*((n, c) for c, n in enumerate(self._begun)), *renamed)
        }
        for position in {*self._given, *self._settlements}:
            self._recount(position)

    def _changed(
        self, changes: Iterable[tuple[str, int, int, str]]
    ) -> tuple[list[str], list[int | None]]:
        """Name of each class, and what its labels count as, after these changes."""
        names, counts_as = list(self._begun), list[int | None](range(len(self._begun)))
        for kind, label, into, text in changes:
            if kind == "rename":
                names[label] = text
            else:
                now = counts_as[into] if kind == "merge" else None
                counts_as = [now if c == label else c for c in counts_as]
        return names, counts_as

    def known(self, name: str) -> int | None:
        """The class of this name, or that once had it, as it counts now."""
        number = self.numbers.get(alike(name), self._former.get(alike(name)))
        return None if number is None else self.counts_as[number]

    def ever(self, name: str) -> bool:
        """Whether some class has, or had, this name."""
        return alike(name) in self.numbers or alike(name) in self._former

    def _own_answer(self, event: Event, position: int | None) -> None:
        """What its person may take back."""
        self._by[event.seq] = event.who
        self._own.setdefault(event.who, {})[event.seq] = position

    def _let_go(self, position: int) -> None:
        """Nobody keeps the label of this item any more, so there is nothing to take back."""
        kept = self._kept.pop(position, None)
        if kept is not None:
            self._own[kept.who].pop(kept.seq, None)

    def _drop(self, position: int, who: str, seq: int) -> None:
        """One answer, settlement or keeping less."""
        if position in self._kept and self._kept[position].seq == seq:
            del self._kept[position]
        self._settlements[position] = [
            a for a in self._settlements.get(position, ()) if a.seq != seq
        ]
        given = self._given.get(position, {})
        kept = [a for a in given.pop(who, ()) if a.seq != seq]
        if kept:
            given[who] = kept
        elif position in self._answered.get(who, ()):
            self._answered[who].remove(position)
            self._frozen.pop(who, None)

    def newest(self, who: str) -> int | None:
        """The seq of a person's newest surviving answer."""
        return next(reversed(self._own.get(who, {})), None)

    def together(self, who: str, seq: int) -> list[int]:
        """A person's answer and those that were given with it, as far as they survive.

        The newest first.
        """
        grid = self._grids.get(seq)
        same = [
            s
            for s in self._own.get(who, ())
            if s != seq and grid is not None and self._grids.get(s) == grid
        ]
        return [seq, *reversed(same)]

    def stands(self, who: str, seq: int) -> bool:
        """Whether a person's own answer has not been taken back; an error of any other."""
        if seq not in self._by:
            raise InputError(f"event {seq} is no answer; expected the number of a given answer")
        if self._by[seq] != who:
            raise InputError(f"answer {seq} is {self._by[seq]!r}'s; expected one of {who!r}'s own")
        return seq in self._own[who]

    def says(self, who: str, position: int) -> Event | None:
        """A person's answer to an item that counts now."""
        given = self._given.get(position, {}).get(who)
        return self._now(given[-1]) if given else None

    def labelled(self, position: int) -> bool:
        """Whether an item has a label."""
        return index(position) in self._labels

    def _now(self, event: Event) -> Event | None:
        """An answer as classes are now; None if its class was removed."""
        if event.label is None or self.counts_as[event.label] == event.label:
            return event
        now = self.counts_as[event.label]
        return None if now is None else replace(event, label=now)

    def next(
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
        if kind not in NEEDED:
            raise InputError(f"kind is {kind!r}; expected one of {', '.join(NEEDED)}")
        if names != NEEDED[kind]:
            raise InputError(f"{kind} with {names}; expected {NEEDED[kind]} and nothing else")
        if label is not None:
            label = self._class(label)
        if kind == "class":
            text, label = checked_name(text, "the class's name"), len(self.classes)
            if alike(text) in self.numbers:
                raise InputError(f"there is a class {text!r} already; expected a new name")
        elif kind in CHANGES:
            text = self._change(kind, label or 0, text)
        elif kind == "undo":
            ref = index(ref or 0)
            if not self.stands(who, ref):
                raise InputError(f"answer {ref} has been taken back already")
            position = self._own[who][ref]
            if position is None:
                self._check_undo(ref)
        if kind == "keep" and self._labels.get(index(position or 0)) != label:
            name = self.classes[label or 0]
            raise InputError(f"item {position} is not labelled {name!r} now; look at it again")
        if kind == "doubt" and index(position or 0) not in self._kept:
            raise InputError(f"the label of item {position} is not kept, so it can be doubted")
        if key is not None:
            key = checked_name(key, "the key")
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        where = None if position is None else index(position)
        return Event(self.seq + 1, at, who, kind, where, label, ref, key, text)

    def _class(self, label: int) -> int:
        """The number of a class that is there; an error of any other."""
        label, count = index(label), len(self.classes)
        if not 0 <= label < count:
            raise InputError(f"label is {label}; expected a class, from 0 to {count - 1}")
        if self.counts_as[label] != label:
            raise InputError(
                f"the class {self.classes[label]!r} is no more; expected one of those that are "
                "there"
            )
        return label

    def _change(self, kind: str, label: int, text: str | None) -> str | None:
        """The name that goes with a change of a class; an error if there can be no such change."""
        if kind == "remove":
            return None
        text = checked_name(text, "the class's name")
        other, name = self.numbers.get(alike(text)), self.classes[label]
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
        names, counts_as = self._changed(
            change for seq, change in self._changes.items() if seq != ref
        )
        there = [alike(names[c]) for c, now in enumerate(counts_as) if c == now]
        twice = next(
            (names[c] for c in range(len(names)) if there.count(alike(names[c])) > 1), None
        )
        if twice is not None:
            raise InputError(
                f"there is another class {twice!r} by now; rename that one first, then take this "
                "back"
            )

    def tally(self) -> LabelState:
        """The snapshot; made once for each state."""
        if self._tally is None:
            sets = self._sets
            compared = len(sets["compared"])
            for who in self._answered.keys() - self._frozen.keys():
                self._frozen[who] = frozenset(self._answered[who])
            self._tally = LabelState(
                seq=self.seq,
                classes=tuple(self.classes),
                answers=MappingProxyType(self._answers.copy()),
                answered=MappingProxyType(self._frozen.copy()),
                labels=MappingProxyType(self._labels.copy()),
                conflicts=tuple(sorted(sets["conflict"])),
                skipped=frozenset(sets["skip"]),
                unsure=frozenset(sets["unsure"]),
                settled=MappingProxyType(self._settled.copy()),
                kept=MappingProxyType({p: self._now(a) or a for p, a in self._kept.items()}),
                counts_as=tuple(self.counts_as),
                confirmed=frozenset(sets["confirm"]),
                classes_seq=self._classes_seq,
                agreement=Agreement(compared, compared - len(sets["differ"])),
            )
        return self._tally

    def _recount(self, position: int) -> None:
        """Work out one item anew."""
        given = self._given.get(position, {})
        for who, each in given.items():
            answered = self._answered.setdefault(who, set())
            if (self._now(each[-1]) is not None) != (position in answered):
                answered ^= {position}
                self._frozen.pop(who, None)
        newest = sorted(
            filter(None, (self._now(each[-1]) for each in given.values())), key=attrgetter("seq")
        )
        said = [a for a in newest if a.label is not None]
        labels = [a.label for a in said]
        ruling = next(reversed(self._settlements.get(position, ())), None)
        settlement = ruling and self._now(ruling)
        was_open = position in self._sets["conflict"]
        for known in (self._answers, self._labels, self._settled):
            known.pop(position, None)
        for positions in self._sets.values():
            positions.discard(position)
        if newest:
            self._answers[position] = tuple(newest)
        if settlement is not None and not (said and said[-1].seq > settlement.seq):
            self._settled[position] = settlement
        if said or settlement:
            counts = self._settled.get(position) or said[-1]
            assert counts.label is not None
            self._labels[position] = counts.label
            if counts.kind == "confirm":
                self._sets["confirm"].add(position)
        elif newest:
            self._sets[newest[-1].kind].add(position)
        if len(labels) > 1:
            self._sets["compared"].add(position)
        if len(set(labels)) > 1:
            self._sets["differ"].add(position)
        # What was said before a settlement is settled; what is said after it may contradict it.
        later = {a.label for a in said if settlement is None or a.seq > settlement.seq}
        if len(later | ({settlement.label} if settlement else set())) > 1:
            self._sets["conflict"].add(position)
        kept, is_open = self._kept.get(position), position in self._sets["conflict"]
        stays = kept and self._now(kept)
        if kept and (
            not stays or stays.label != self._labels.get(position) or (is_open and not was_open)
        ):
            self._let_go(position)
