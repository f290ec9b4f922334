"""What the events of a labelling record amount to: a pure fold, without any file.

An answer is an event `label`, `skip` or `unsure`. It survives until an `undo` of the same person
names it; then that person's answer before it counts again, if there was one. Of every person only
the newest surviving answer to an item counts, so a later skip withdraws that person's own label
and nobody else's. An item's label is the newest of the labels that count.

Where persons' labels differ there is a conflict. Anybody may `settle` it, also one of them: what is
settled is the item's label until a newer one comes, and nobody's own answer changes by it. The
conflict is open again when somebody says something else than what was settled.

A label that the network doubts may be kept by anybody (`keep`, with the label that counts). That
stands until the item's label changes or a conflict arises, by whatever event, or until anybody lets
it be doubted again (`doubt`); it is no answer, and what ended it does not bring it back by an undo.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import index
from types import MappingProxyType
from typing import NamedTuple

from labelahead.errors import InputError
from labelahead.web.names import alike, checked_name

__all__ = [
    "ANSWERS",
    "Agreement",
    "Answer",
    "Event",
    "Standing",
    "Tally",
    "fold",
]

ANSWERS = ("label", "skip", "unsure")
NEEDED = {
    "label": ("position", "label"),
    "skip": ("position",),
    "unsure": ("position",),
    "settle": ("position", "label"),
    "keep": ("position", "label"),
    "doubt": ("position",),
    "undo": ("ref",),
    "class": ("text",),
}


@dataclass(frozen=True)
class Event:
    """One line of the record; never changed, never removed.

    kind: label, skip, unsure, settle, keep, doubt, undo (ref: seq of what is taken back; position:
    its item) or class (label: the new class's number; text: its name). key: made by the sender, so
    that an event sent twice is recorded once.
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


@dataclass(frozen=True)
class Answer:
    """What one person says of one item now."""

    seq: int
    who: str
    kind: str
    label: int | None
    at: str


class Agreement(NamedTuple):
    """Of the items that two or more persons labelled: how many, and with one label how many."""

    compared: int
    agreeing: int


@dataclass(frozen=True)
class Standing:
    """What the surviving events amount to; a snapshot that no later event changes."""

    classes: tuple[str, ...]
    # position -> the newest surviving answer of each person, oldest first
    answers: Mapping[int, tuple[Answer, ...]]
    labels: Mapping[int, int]  # position -> the class that counts
    conflicts: tuple[int, ...]  # positions, ascending, where persons' labels differ, not settled
    settled: Mapping[int, Answer]  # position -> the newest settlement, where it is what counts
    kept: Mapping[int, Answer]  # position -> who said last that its label is right, and when
    skipped: frozenset[int]  # newest answer is a skip, and there is no label
    unsure: frozenset[int]  # the same of unsure
    agreement: Agreement  # of what persons said themselves, whatever was settled later

    def counts(self, position: int) -> Answer:
        """The answer that an item's label comes from."""
        if position in self.settled:
            return self.settled[position]
        return next(a for a in reversed(self.answers[position]) if a.kind == "label")


def fold(events: Iterable[Event]) -> Standing:
    """The standing after these events, in this order."""
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally.standing()


class Tally:
    """The fold, one event at a time: each costs what its own item costs, however long the record.

    An undo that names no surviving answer of the same person has no effect.
    """

    def __init__(self) -> None:
        self.seq = 0  # of the last event
        self.classes: list[str] = []
        self.numbers: dict[str, int] = {}  # of classes, by `alike` of their names
        self._by: dict[int, str] = {}  # whose an answer is, also of those taken back
        self._own: dict[str, dict[int, int]] = {}  # person -> surviving seq -> position
        self._given: dict[int, dict[str, list[Answer]]] = {}  # all surviving, oldest first
        self._rulings: dict[int, list[Answer]] = {}  # surviving settlements, oldest first
        self._answers: dict[int, tuple[Answer, ...]] = {}
        self._settled: dict[int, Answer] = {}
        self._kept: dict[int, Answer] = {}
        self._labels: dict[int, int] = {}
        self._sets: dict[str, set[int]] = {
            name: set() for name in ("conflict", "skip", "unsure", "compared", "differ")
        }
        self._standing: Standing | None = None

    def add(self, event: Event) -> None:
        """Take one more event into account."""
        self.seq, self._standing = event.seq, None
        if event.kind == "class" and event.text is not None:
            self.numbers.setdefault(alike(event.text), len(self.classes))
            self.classes.append(event.text)
        elif event.kind == "undo" and event.ref is not None:
            position = self._own.get(event.who, {}).pop(event.ref, None)
            if position is not None:
                self._drop(position, event.who, event.ref)
                self._settle(position)
        elif event.kind == "doubt" and event.position is not None:
            self._let_go(event.position)
        elif event.kind == "keep" and event.position is not None:
            self._let_go(event.position)
            if self._labels.get(event.position) == event.label:
                self._kept[event.position] = self._recorded(event, event.position)
        elif event.kind in (*ANSWERS, "settle") and event.position is not None:
            answer = self._recorded(event, event.position)
            if event.kind == "settle":
                self._rulings.setdefault(event.position, []).append(answer)
            else:
                self._given.setdefault(event.position, {}).setdefault(event.who, []).append(answer)
            self._settle(event.position)

    def _recorded(self, event: Event, position: int) -> Answer:
        """What its person may take back."""
        self._by[event.seq] = event.who
        self._own.setdefault(event.who, {})[event.seq] = position
        return Answer(event.seq, event.who, event.kind, event.label, event.at)

    def _let_go(self, position: int) -> None:
        """Nobody keeps the label of this item any more, so there is nothing to take back."""
        kept = self._kept.pop(position, None)
        if kept is not None:
            self._own[kept.who].pop(kept.seq, None)

    def _drop(self, position: int, who: str, seq: int) -> None:
        """One answer, settlement or keeping less."""
        if position in self._kept and self._kept[position].seq == seq:
            del self._kept[position]
        self._rulings[position] = [a for a in self._rulings.get(position, ()) if a.seq != seq]
        given = self._given.get(position, {})
        kept = [a for a in given.pop(who, ()) if a.seq != seq]
        if kept:
            given[who] = kept

    def newest(self, who: str) -> int | None:
        """The seq of a person's newest surviving answer."""
        return next(reversed(self._own.get(who, {})), None)

    def own(self, who: str, seq: int) -> int | None:
        """The position of a person's own answer, None if taken back; an error of any other."""
        if seq not in self._by:
            raise InputError(f"event {seq} is no answer; expected the number of a given answer")
        if self._by[seq] != who:
            raise InputError(f"answer {seq} is {self._by[seq]!r}'s; expected one of {who!r}'s own")
        return self._own[who].get(seq)

    def says(self, who: str, position: int) -> Answer | None:
        """A person's answer to an item that counts now."""
        given = self._given.get(position, {}).get(who)
        return given[-1] if given else None

    def next(
        self,
        kind: str,
        who: str,
        position: int | None,
        label: int | None,
        text: str | None,
        ref: int | None,
        key: str | None,
    ) -> Event:
        """The event that these would be, now; an error if they make none. Adds nothing."""
        given = {"position": position, "label": label, "ref": ref, "text": text}
        found = tuple(name for name, value in given.items() if value is not None)
        if kind not in NEEDED:
            raise InputError(f"kind is {kind!r}; expected one of {', '.join(NEEDED)}")
        if found != NEEDED[kind]:
            raise InputError(f"{kind} with {found}; expected {NEEDED[kind]} and nothing else")
        classes = len(self.classes)
        if kind == "class":
            text, label = checked_name(text, "the class's name"), classes
            if alike(text) in self.numbers:
                raise InputError(f"there is a class {text!r} already; expected a new name")
        elif ref is not None:
            ref, position = index(ref), self.own(who, index(ref))
            if position is None:
                raise InputError(f"answer {ref} has been taken back already")
        elif label is not None:
            label = index(label)
            if not 0 <= label < classes:
                raise InputError(f"label is {label}; expected a class, from 0 to {classes - 1}")
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

    def standing(self) -> Standing:
        """The snapshot; made once for each state."""
        if self._standing is None:
            found = self._sets
            compared = len(found["compared"])
            self._standing = Standing(
                classes=tuple(self.classes),
                answers=MappingProxyType(self._answers.copy()),
                labels=MappingProxyType(self._labels.copy()),
                conflicts=tuple(sorted(found["conflict"])),
                skipped=frozenset(found["skip"]),
                unsure=frozenset(found["unsure"]),
                settled=MappingProxyType(self._settled.copy()),
                kept=MappingProxyType(self._kept.copy()),
                agreement=Agreement(compared, compared - len(found["differ"])),
            )
        return self._standing

    def _settle(self, position: int) -> None:
        """Work out one item anew."""
        given = self._given.get(position, {})
        newest = sorted((each[-1] for each in given.values()), key=_seq)
        said = [a for a in newest if a.label is not None]
        labels = [a.label for a in said]
        ruling = next(reversed(self._rulings.get(position, ())), None)
        was_open = position in self._sets["conflict"]
        for known in (self._answers, self._labels, self._settled):
            known.pop(position, None)
        for positions in self._sets.values():
            positions.discard(position)
        if newest:
            self._answers[position] = tuple(newest)
        if ruling is not None and not (said and said[-1].seq > ruling.seq):
            self._settled[position] = ruling
        if said or ruling:
            counts = self._settled.get(position) or said[-1]
            assert counts.label is not None
            self._labels[position] = counts.label
        elif newest:
            self._sets[newest[-1].kind].add(position)
        if len(labels) > 1:
            self._sets["compared"].add(position)
        if len(set(labels)) > 1:
            self._sets["differ"].add(position)
        # What was said before a settlement is settled; what is said after it may contradict it.
        later = {a.label for a in said if ruling is None or a.seq > ruling.seq}
        if len(later | ({ruling.label} if ruling else set())) > 1:
            self._sets["conflict"].add(position)
        kept, is_open = self._kept.get(position), position in self._sets["conflict"]
        if kept and (kept.label != self._labels.get(position) or (is_open and not was_open)):
            self._let_go(position)


def _seq(answer: Answer) -> int:
    return answer.seq
