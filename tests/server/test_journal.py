import sqlite3
import sys
import threading

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from labelahead.errors import InputError, StorageError
from labelahead.server.journal import MIGRATIONS, Journal, open_database
from labelahead.server.label_state import Event, build_label_state

ITEMS = ("a.jpg", "b/ü.jpg", "c\n'; DROP TABLE events;--.jpg", "<b>d</b>.jpg", "🦊.jpg")
PEOPLE = ("anna", "ben", "O'Hara <i>")


def journal(folder, classes=("cat", "dog"), items=ITEMS, fingerprint="f"):
    return Journal(folder, items=items, fingerprint=fingerprint, classes=classes)


class Plain:
    """The same rules without events: lists and dicts, every answer worked out from scratch."""

    def __init__(self, classes):
        self.said = []  # [person, position, kind, label, seq, still there]
        self.seq = len(classes)
        self.keys = {}
        self.held = {}  # person -> (position, until)
        self.kept_labels = {}  # position -> [its row of said, whether there was a conflict]
        self.begun = list(classes)
        # rows of said: [person, None, kind, class, seq, still there, into which, name]
        self.changes = []
        self.grids = []  # lists of rows that were confirmed together

    def as_now(self, label):
        """What a label counts as after all changes that stand; None: removed."""
        for row in self.changes:
            if row[5] and row[2] != "rename" and label == row[3]:
                label = row[6]
        return label

    def names(self):
        """Number -> name, of every class that ever was."""
        names = dict(enumerate(self.begun))
        for row in self.changes:
            if row[5] and row[2] == "rename":
                names[row[3]] = row[7]
        return names

    def there(self):
        """Lower-case name -> number, of the classes that are there."""
        return {name.lower(): c for c, name in self.names().items() if self.as_now(c) == c}

    def change(self, who, kind, label, into=None, name=None):
        self.seq += 1
        row = [who, None, kind, label, self.seq, True, into, name]
        self.said.append(row)
        self.changes.append(row)
        self.look_at_kept()

    def new_class(self, name):
        self.seq += 1
        self.begun.append(name)

    def called(self, name):
        """The class that has this name, or had it last, as it counts now."""
        begun = [(c, n) for c, n in enumerate(self.begun)] + [
            (r[3], r[7]) for r in self.changes if r[5] and r[2] == "rename"
        ]
        had = [c for c, n in begun if n.lower() == name.lower()]
        return self.as_now(self.there().get(name.lower(), had[-1] if had else -1)) if had else None

    def undoing(self, row):
        """Whether a change can be taken back: no two classes would have one name."""
        row[5] = False
        there = [name.lower() for c, name in self.names().items() if self.as_now(c) == c]
        row[5] = True
        return len(set(there)) == len(there)

    def answer(self, who, position, kind, label):
        self.seq += 1
        self.said.append([who, position, kind, label, self.seq, True])
        self.look_at_kept()

    def keep(self, who, position, label):
        self.doubt(position)  # who kept it before keeps it no more
        self.seq += 1
        row = [who, position, "keep", label, self.seq, True]
        self.said.append(row)
        self.kept_labels[position] = [row, len(set(self.open(position))) > 1]

    def doubt(self, position):
        if position in self.kept_labels:
            self.kept_labels.pop(position)[0][5] = False

    def look_at_kept(self):
        for position, (row, before) in list(self.kept_labels.items()):
            labels = self.open(position)
            conflict = len(set(labels)) > 1
            if not row[5] or labels[-1:] != [self.as_now(row[3])] or (conflict and not before):
                self.doubt(position)
            else:
                self.kept_labels[position][1] = conflict

    def take_back(self, row):
        row[5] = False
        self.seq += 1
        self.look_at_kept()

    def undo_answer(self, who):
        own = [row for row in self.said if row[0] == who and row[5]]
        if own and own[-1] in self.changes and not self.undoing(own[-1]):
            return False
        if own:
            grid = next((g for g in self.grids if own[-1] in g), [own[-1]])
            for row in reversed([r for r in grid if r[5]]):
                self.take_back(row)
        return True

    def lease_item(self, position, who, seconds, now):
        for other, (p, until) in self.held.items():
            if other != who and p == position and until > now:
                return False
        self.held[who] = (position, now + seconds)
        return True

    def now(self, position):
        """person -> (kind, label, seq), of those that count."""
        rows = [row for row in self.said if row[1] == position and row[5]]
        last = {row[0]: row[2:5] for row in rows if row[2] not in ("settle", "keep")}
        now = {who: (kind, self.as_now(label), seq) for who, (kind, label, seq) in last.items()}
        return {who: a for who, a in now.items() if a[1] is not None or a[0] in ("skip", "unsure")}

    def rulings(self, position):
        rows = [r for r in self.said if r[1] == position and r[5] and r[2] == "settle"]
        return [
            [*r[:3], self.as_now(r[3]), *r[4:]] for r in rows[-1:] if self.as_now(r[3]) is not None
        ]

    def open(self, position):
        """The last settlement's label, and those that were given after it."""
        rulings = self.rulings(position)
        since = rulings[-1][4] if rulings else 0
        later = sorted(self.now(position).values(), key=lambda answer: answer[2])
        given = [label for kind, label, seq in later if label is not None and seq > since]
        return [row[3] for row in rulings[-1:]] + given

    def check(self, label_state):
        assert list(label_state.classes) == list(self.names().values())
        assert list(label_state.class_mapping) == [self.as_now(c) for c in range(len(self.begun))]
        assert label_state.active_classes == tuple(self.there().values())
        confirmed = set()
        labels, conflicts, skipped, unsure, compared, differ = {}, [], set(), set(), 0, 0
        for position in range(len(ITEMS)):
            now = self.now(position)
            order = sorted(now, key=lambda who: now[who][2])
            got = [(a.who, a.kind, a.label, a.seq) for a in label_state.answers.get(position, ())]
            assert got == [(who, *now[who]) for who in order]
            assert set(order) == {
                who
                for who, answered in label_state.answered_positions.items()
                if position in answered
            }
            given = [now[who][1] for who in order if now[who][1] is not None]
            rulings, open_now = self.rulings(position), self.open(position)
            if open_now:
                labels[position] = open_now[-1]
            elif order:
                (skipped if now[order[-1]][0] == "skip" else unsure).add(position)
            compared += len(given) > 1
            differ += len(set(given)) > 1
            if len(set(open_now)) > 1:
                conflicts.append(position)
            if position in label_state.settlements:
                assert label_state.settlements[position].seq == rulings[-1][4]
            assert (position in label_state.settlements) == (bool(rulings) and len(open_now) == 1)
            says = [now[who][0] for who in order if now[who][1] is not None]
            if says and says[-1] == "confirm" and position not in label_state.settlements:
                confirmed.add(position)
        assert label_state.confirmed == confirmed
        assert label_state.labels == labels
        assert label_state.conflicts == tuple(conflicts)
        assert (label_state.skipped, label_state.unsure) == (skipped, unsure)
        assert label_state.agreement == (compared, compared - differ)
        kept = {p: (a.who, a.label, a.seq) for p, a in label_state.kept_labels.items()}
        assert kept == {
            p: (row[0], self.as_now(row[3]), row[4]) for p, (row, _) in self.kept_labels.items()
        }


people, positions = st.sampled_from(PEOPLE), st.integers(0, len(ITEMS) - 1)


class Machine(RuleBasedStateMachine):
    folder = None  # set by the test

    @initialize()
    def begin(self):
        type(self).number = getattr(type(self), "number", 0) + 1
        self.place = self.folder / str(self.number)
        self.journal, self.plain, self.clock = journal(self.place), Plain(["cat", "dog"]), 1000.0

    def teardown(self):
        if hasattr(self, "journal"):
            self.journal.close()

    def some(self, label):
        """A class that is there."""
        there = sorted(self.plain.there().values())
        return there[label % len(there)]

    @rule(who=people, position=positions, label=st.integers(0, 9), key=st.integers(0, 12))
    def label(self, who, position, label, key):
        label = self.some(label)
        said = self.plain.keys.get(key, (who, position, label))
        if said[2] != label and self.plain.as_now(said[2]) != said[2]:
            return  # sent again after its class is gone
        said = (who, position, label)
        if self.plain.keys.get(key, said) != said:
            with pytest.raises(InputError, match="came with another answer"):
                self.journal.add_event("label", *said, key=f"k{key}")
            return
        event = self.journal.add_event("label", *said, key=f"k{key}")
        if key not in self.plain.keys:
            self.plain.answer(who, position, "label", label)
            self.plain.keys[key] = said
        assert (event.who, event.position, event.label) == said

    @rule(who=people, position=positions, label=st.integers(0, 9))
    def settle(self, who, position, label):
        label = self.some(label)
        self.journal.add_event("settle", who, position, label)
        self.plain.answer(who, position, "settle", label)

    @rule(who=people, position=positions, label=st.integers(0, 9), right=st.booleans())
    def keep(self, who, position, label, right):
        now = self.plain.open(position)
        label = now[-1] if right and now else self.some(label)
        if now[-1:] == [label]:
            self.journal.add_event("keep", who, position, label)
            self.plain.keep(who, position, label)
        else:
            with pytest.raises(InputError, match="is not labelled"):
                self.journal.add_event("keep", who, position, label)

    @rule(who=people, position=positions)
    def doubt(self, who, position):
        if position in self.plain.kept_labels:
            self.journal.add_event("doubt", who, position)
            self.plain.doubt(position)
            self.plain.seq += 1
        else:
            with pytest.raises(InputError, match="is not kept"):
                self.journal.add_event("doubt", who, position)

    @rule(who=people, position=positions, kind=st.sampled_from(["skip", "unsure"]))
    def no_label(self, who, position, kind):
        self.journal.add_event(kind, who, position)
        self.plain.answer(who, position, kind, None)

    @rule(
        who=people,
        at=st.lists(positions, min_size=1, max_size=4, unique=True),
        label=st.integers(0, 9),
    )
    def confirm(self, who, at, label):
        label = self.some(label)
        events = self.journal.confirm_items(who, at, label)
        free = [p for p in at if not self.plain.open(p)]
        assert [(e.position, e.label, e.ref) for e in events] == [
            (p, label, events[0].seq) for p in free
        ]
        for position in free:
            self.plain.answer(who, position, "confirm", label)
        if free:
            self.plain.grids.append(self.plain.said[-len(free) :])

    @rule(who=people, label=st.integers(0, 9), name=st.sampled_from(["Wolf", "cat", "DOG", "lynx"]))
    def rename(self, who, label, name):
        label, there = self.some(label), self.plain.there()
        if there.get(name.lower(), label) != label:
            with pytest.raises(InputError, match="already"):
                self.journal.change_class(who, "rename", label, name)
            return
        self.journal.change_class(who, "rename", label, name)
        self.plain.change(who, "rename", label, name=name)

    @rule(who=people, label=st.integers(0, 9), into=st.integers(0, 9))
    def merge(self, who, label, into):
        label, into = self.some(label), self.some(into)
        name = self.plain.names()[into]
        if label == into:
            with pytest.raises(InputError, match="into itself"):
                self.journal.change_class(who, "merge", label, name)
            return
        self.journal.change_class(who, "merge", label, name)
        self.plain.change(who, "merge", label, into)

    @rule(who=people, label=st.integers(0, 9))
    def remove(self, who, label):
        label = self.some(label)
        if len(self.plain.there()) > 1:
            self.journal.change_class(who, "remove", label)
            self.plain.change(who, "remove", label)

    @rule(who=people)
    def undo(self, who):
        before = self.plain.seq
        if self.plain.undo_answer(who):
            assert (self.journal.undo_answer(who) is None) == (self.plain.seq == before)
        else:
            with pytest.raises(InputError, match="rename that class first"):
                self.journal.undo_answer(who)

    @rule(who=people, which=st.integers(0, 30))
    def undo_one(self, who, which):
        if not self.plain.said:
            return
        row = self.plain.said[which % len(self.plain.said)]
        if row[0] != who:
            with pytest.raises(InputError, match="expected an answer of"):
                self.journal.undo_answer(who, row[4])
        elif row[5] and row in self.plain.changes and not self.plain.undoing(row):
            with pytest.raises(InputError, match="rename that class first"):
                self.journal.undo_answer(who, row[4])
        elif self.journal.undo_answer(who, row[4]) is None:
            assert not row[5]
        else:
            assert row[5]
            self.plain.take_back(row)

    @rule(who=people, name=st.sampled_from(["Fox ", "fOX", "<s>", "dog", "🦊\n", "' OR 1"]))
    def add_class(self, who, name):
        number = self.journal.add_class(who, name)
        if name.strip().lower() not in self.plain.there():
            self.plain.new_class(name.strip())
        assert number == self.plain.there()[name.strip().lower()]

    @rule(who=people, position=positions, seconds=st.sampled_from([1.0, 5.0, 60.0]))
    def lease(self, who, position, seconds):
        wanted = self.plain.lease_item(position, who, seconds, self.clock)
        assert self.journal.lease_item(position, who, seconds, now=self.clock) == wanted

    @rule(who=people)
    def release(self, who):
        self.journal.release_lease(who)
        self.plain.held.pop(who, None)

    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0]))
    def wait(self, seconds):
        self.clock += seconds

    @rule(rows=st.lists(st.tuples(positions, st.sampled_from(["CAT", "wolf"]), people), max_size=4))
    def add_labels(self, rows):
        self.journal.add_labels(rows)
        for position, name, who in rows:
            label = self.plain.called(name)
            if label is None:
                self.plain.new_class(name)
                label = self.plain.there()[name.lower()]
            if self.plain.now(position).get(who, (None, None))[1] != label:
                self.plain.answer(who, position, "label", label)

    @rule()
    def reopen(self):
        self.journal.close()
        self.journal = journal(self.place)

    @invariant()
    def equal(self):
        if not hasattr(self, "journal"):
            return
        label_state = self.journal.label_state
        self.plain.check(label_state)
        assert label_state.seq == self.plain.seq
        assert build_label_state(self.journal.read_events()) == label_state
        wanted = {p: who for who, (p, until) in self.plain.held.items() if until > self.clock}
        assert self.journal.list_leases(self.clock) == wanted


def test_the_record_equals_plain_dicts(tmp_path):
    Machine.folder = tmp_path
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=quiet,
            derandomize=True,
            database=None,
        ),
    )


def test_names_that_hold_anything(tmp_path):
    names = ["a\nb", "'\"; --", "<script>", "👩‍🔬", "%s {x}", "x" * 200, "../..", "=1+1"]
    with journal(tmp_path, classes=names) as b:
        assert b.label_state.classes == tuple(names)
        b.add_event("label", "O'Hara\n🦊", 2, 1)
    with journal(tmp_path, classes=()) as b:
        assert b.label_state.classes == tuple(names)
        assert b.label_state.answers[2][0].who == "O'Hara\n🦊"
        for bad in ("", " \n", "x" * 201, "a\0b", "half \ud83d", None, 3):
            with pytest.raises(InputError):
                b.add_class("anna", bad)
            with pytest.raises(InputError):
                b.add_event("skip", bad, 0)
        # one character in two encodings is one class
        assert b.add_class("anna", "e\u0301") == b.add_class("anna", "É") == len(names)
    with pytest.raises(InputError, match="NUL"):
        journal(tmp_path / "other", items=("a\0b",))


def test_classes_keep_their_numbers_and_new_ones_follow(tmp_path):
    with journal(tmp_path, classes=("cat", "dog")) as b:
        b.add_class("anna", "wolf")
    with journal(tmp_path, classes=("fox", "Dog", "cat")) as b:
        assert b.label_state.classes == ("cat", "dog", "wolf", "fox")
        assert [e.who for e in b.read_events()] == ["", "", "anna", ""]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "label", "position": 9, "label": 0}, "position is 9"),
        ({"kind": "label", "position": -1, "label": 0}, "position is -1"),
        ({"kind": "label", "position": 0, "label": 2}, "label is 2"),
        ({"kind": "label", "position": 0, "label": -1}, "label is -1"),
        ({"kind": "label", "position": 0}, "expected"),
        ({"kind": "skip", "position": 0, "label": 1}, "nothing else"),
        ({"kind": "skip"}, "expected"),
        ({"kind": "guess", "position": 0}, "kind is 'guess'"),
        ({"kind": "class", "text": "CAT"}, "already"),
        ({"kind": "undo", "ref": 1}, "not an answer"),
        ({"kind": "undo", "ref": 2**70}, "not an answer"),
        ({"kind": "skip", "position": 0, "key": ""}, "key"),
    ],
)
def test_what_makes_no_event_is_refused_and_leaves_nothing(tmp_path, given, said):
    with journal(tmp_path) as b:
        before = b.read_events(), b.label_state
        with pytest.raises(InputError, match=said):
            b.add_event(given.pop("kind"), "anna", **given)
        assert (b.read_events(), b.label_state) == before
        b.add_event("label", "anna", 0, 1)


def test_keys_are_recorded_once_also_after_reopening(tmp_path):
    with journal(tmp_path) as b:
        first = b.add_event("label", "anna", 0, 1, key="k")
        for other in (("label", "anna", 3, 1), ("label", "ben", 0, 1), ("label", "anna", 0, 0)):
            with pytest.raises(InputError, match="'k' came with another answer"):
                b.add_event(*other, key="k")
        back = b.undo_answer("anna", key="u")
        assert b.undo_answer("anna", key="u") == back
        assert (back.ref, back.position, back.label) == (first.seq, 0, None)
    with journal(tmp_path) as b:
        assert b.add_event("label", "anna", 0, 1, key="k") == first
        assert b.undo_answer("anna", key="u") == back
        assert b.undo_answer("anna") is None
        assert len(b.read_events()) == 4
        assert b.read_events(since=3) == [back]
        assert b.read_event(3) == first


def test_an_older_answer_counts_again_after_undo():
    def event(seq, who, kind, label=None, ref=None):
        return Event(seq, "t", who, kind, 0, label, ref)

    classes = [Event(i + 1, "t", "", "class", label=i, text=n) for i, n in enumerate("xyz")]
    events = [
        *classes,
        event(4, "anna", "label", 0),
        event(5, "ben", "label", 1),
        event(6, "anna", "label", 2),
    ]
    assert build_label_state(events).labels == {0: 2}
    assert build_label_state(events).conflicts == (0,)
    events.append(event(7, "anna", "undo", ref=6))
    assert build_label_state(events).labels == {0: 1}  # ben's is newer than anna's first
    events.append(event(8, "ben", "unsure"))
    assert build_label_state(events).labels == {0: 0}  # ben withdrew his own only
    assert build_label_state(events).agreement == (0, 0)
    events.append(event(9, "anna", "undo", ref=5))  # not hers: no effect
    events.append(event(10, "anna", "undo", ref=4))
    label_state = build_label_state(events)
    assert (label_state.labels, label_state.unsure, label_state.skipped) == ({}, {0}, set())


def test_taking_in_is_all_or_nothing(tmp_path):
    with journal(tmp_path) as b:
        before = b.read_events(), b.label_state
        with pytest.raises(InputError, match="position is 99"):
            b.add_labels([(0, "cat", "anna"), (1, "wolf", "anna"), (99, "cat", "anna")])
        assert (b.read_events(), b.label_state) == before
        added = b.add_labels([(0, "Cat", "anna"), (1, "wolf", "ben")])
        assert [e.kind for e in added] == ["label", "class", "label"]
        assert b.add_labels([(0, "cat", "anna"), (1, "wolf", "ben")]) == []
        assert b.label_state.labels == {0: 0, 1: 2}
        assert build_label_state(b.read_events()) == b.label_state


def test_a_snapshot_does_not_change(tmp_path):
    with journal(tmp_path) as b:
        b.add_event("label", "anna", 0, 1)
        before = b.label_state
        assert b.label_state is before
        b.add_event("label", "anna", 0, 0)
        assert before.labels == {0: 1}
        with pytest.raises(TypeError):
            before.labels[0] = 5


def test_events_cannot_be_changed_or_removed(tmp_path):
    with journal(tmp_path) as b:
        b.add_event("label", "anna", 0, 1)
    db = sqlite3.connect(tmp_path / "labels.db")
    for statement in ("UPDATE events SET label = 0", "DELETE FROM events"):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            db.execute(statement)
    db.close()


def test_a_journal_of_other_data_is_refused(tmp_path):
    journal(tmp_path).close()
    for items, fingerprint, said in (
        (ITEMS[:-1], "f", "it has 5 items, the data 4"),
        (("z.jpg", *ITEMS[1:]), "g", "item 0 was 'a.jpg', now 'z.jpg'"),
        (ITEMS, "g", "different content"),
    ):
        with pytest.raises(InputError, match=said):
            journal(tmp_path, items=items, fingerprint=fingerprint)
    journal(tmp_path).close()  # no refusal kept the lock


def test_damaged_foreign_and_newer_files_are_refused_and_left_alone(tmp_path):
    path = tmp_path / "labels.db"

    def refused(said):
        before = path.read_bytes()
        with pytest.raises(InputError, match=said):
            journal(tmp_path)
        assert path.read_bytes() == before
        path.unlink()

    path.write_bytes(b"no database at all, but some text" * 100)
    refused("damaged or not a journal")
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE other (x)")
    db.commit()
    db.close()
    refused("another program")
    with journal(tmp_path, items=[f"{i}.jpg" for i in range(2000)]):
        pass
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 6] = b"\xff" * (4096 * 3)
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        journal(tmp_path, items=[f"{i}.jpg" for i in range(2000)])
    path.unlink()
    journal(tmp_path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    refused("update labelahead")


def test_a_missing_event_is_noticed(tmp_path):
    with journal(tmp_path) as b:
        for _ in range(3):
            b.add_event("label", "anna", 0, 1)
    db = sqlite3.connect(tmp_path / "labels.db")
    db.execute("DROP TRIGGER events_last")
    db.execute("DELETE FROM events WHERE seq = 4")
    db.commit()
    db.close()
    with pytest.raises(InputError, match="after event 3 comes"):
        journal(tmp_path)


def test_an_empty_file_is_migrated_and_a_failed_migration_changes_nothing(tmp_path):
    path = tmp_path / "labels.db"
    path.touch()  # version 0: what a kill right after the beginning leaves
    with journal(tmp_path) as b:
        b.add_event("label", "anna", 0, 1)
        assert b._db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        events = b.read_events()
    more = [*MIGRATIONS, ("ALTER TABLE events ADD COLUMN note TEXT",)]
    with pytest.raises(InputError, match="no such table"):
        open_database(path, [*MIGRATIONS, (*more[-1], "INSERT INTO nowhere VALUES (1)")])
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert "note" not in [row[1] for row in db.execute("PRAGMA table_info(events)")]
    db.close()
    db = open_database(path, more)
    assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    assert db.execute("SELECT seq, note FROM events").fetchall() == [(e.seq, None) for e in events]
    db.close()
    with pytest.raises(InputError, match="update labelahead"):
        journal(tmp_path)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_record_of_an_earlier_version_is_taken_over(tmp_path, version):
    """Version 1 knew no settling, version 2 no keeping, version 3 no sizes, version 4 no confirming
    and no merging.
    """
    db = open_database(tmp_path / "labels.db", MIGRATIONS[:version])
    db.execute("INSERT INTO about VALUES ('fingerprint', 'f')")
    db.executemany("INSERT INTO items (position, item) VALUES (?, ?)", enumerate(["x", "y"]))
    row = "INSERT INTO events (at, who, kind, position, label, ref, key, text) VALUES "
    for values in (
        "('t', '', 'class', NULL, 0, NULL, NULL, 'cat')",
        "('t', '', 'class', NULL, 1, NULL, NULL, 'dog')",
        "('t', 'anna', 'label', 0, 0, NULL, 'k', NULL)",
        "('t', 'ben', 'label', 0, 1, NULL, NULL, NULL)",
        "('t', 'ben', 'skip', 1, NULL, NULL, NULL, NULL)",
        "('t', 'ben', 'undo', 1, NULL, 5, NULL, NULL)",
    ):
        db.execute(row + values)
    settled = version > 1
    if settled:
        db.execute(row + "('t', 'cleo', 'settle', 0, 0, NULL, 's', NULL)")
    unknown = "'keep', 0, 0, NULL" if version < 3 else "'confirm', 0, 0, 8"
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        db.execute(row + f"('t', 'cleo', {unknown}, NULL, NULL)")
    db.close()
    with Journal(tmp_path, items=["x", "y"], fingerprint="f") as b:
        assert [e.seq for e in b.read_events()] == list(range(1, 8 if settled else 7))
        assert b.add_event("label", "anna", 0, 0, key="k").seq == 3
        assert b.label_state.conflicts == (() if settled else (0,))
        assert b.add_event("settle", "cleo", 0, 0, key="s").seq == 7
        assert (b.label_state.conflicts, b.label_state.labels) == ((), {0: 0})
        assert b.label_state.kept_labels == {}
        assert b.add_event("keep", "ben", 0, 0).seq == 8
        assert [e.seq for e in b.confirm_items("ben", [1], 1)] == [9]
        assert b.change_class("ben", "rename", 1, "hound").seq == 10
        before = b.label_state
    with Journal(tmp_path, items=["x", "y"], fingerprint="f") as b:
        assert b.label_state == before
        assert (b.label_state.kept_labels[0].who, b.label_state.kept_labels[0].label) == ("ben", 0)
    db = sqlite3.connect(tmp_path / "labels.db")
    for change in ("DELETE FROM events", "UPDATE events SET who = 'x'"):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            db.execute(change)
    db.close()


def test_a_settlement_ends_a_conflict_until_somebody_objects(tmp_path):
    with journal(tmp_path) as b:
        b.add_event("label", "anna", 0, 0)
        b.add_event("label", "ben", 0, 1)
        b.add_event("settle", "cleo", 0, 0)
        now = b.label_state
        assert (now.conflicts, now.labels[0], now.find_deciding_answer(0).who) == ((), 0, "cleo")
        assert now.agreement == (1, 0)  # they did disagree
        assert [a.label for a in now.answers[0]] == [0, 1]  # and still do
        b.add_event("label", "dora", 0, 0)  # says the same
        assert b.label_state.conflicts == ()
        b.add_event("label", "dora", 0, 1)
        assert (b.label_state.conflicts, b.label_state.labels[0]) == ((0,), 1)
        b.undo_answer("dora")
        assert (b.label_state.conflicts, b.label_state.labels[0]) == ((), 0)
        b.undo_answer("cleo")
        assert b.label_state.conflicts == (0,)


def test_a_kept_label_is_kept_until_it_changes(tmp_path):
    def again(who="ben"):
        b.add_event("keep", who, 0, 0)
        assert b.label_state.kept_labels[0].who == who

    with journal(tmp_path) as b:
        b.add_event("label", "anna", 0, 0)
        again()
        assert b.label_state.agreement == (0, 0)  # ben gave no answer of his own
        for kind, who, label in (
            ("label", "anna", 0),
            ("skip", "dora", None),
            ("label", "ben", 0),
            ("settle", "dora", 0),
        ):
            b.add_event(kind, who, 0, label)
            assert 0 in b.label_state.kept_labels  # the label is the same
        b.undo_answer("dora")
        assert 0 in b.label_state.kept_labels
        b.add_event("label", "anna", 0, 1)  # anna changed her mind
        assert b.label_state.kept_labels == {}
        b.undo_answer("anna")  # which does not bring it back
        assert (b.label_state.labels, b.label_state.kept_labels) == ({0: 0}, {})
        again()
        b.add_event("label", "dora", 0, 1)  # somebody else says something else
        b.add_event("settle", "cleo", 0, 0)
        assert (b.label_state.labels, b.label_state.kept_labels) == ({0: 0}, {})
        again("cleo")
        b.undo_answer("cleo")  # the keeping alone
        assert (b.label_state.labels, b.label_state.kept_labels) == ({0: 0}, {})
        again("cleo")
        again("ben")  # anew: cleo's is over
        b.undo_answer("cleo")  # the settlement: there is a conflict again, and dora's counts
        assert (b.label_state.labels, b.label_state.kept_labels) == ({0: 1}, {})
        b.add_event("keep", "ben", 0, 1)
        b.add_event("doubt", "anna", 0)  # anybody may
        assert b.label_state.kept_labels == {}
        for who, label in (("ben", 1), ("ben", 0), ("anna", 0)):
            b.add_event("label", who, 1, label)
        b.add_event("keep", "cleo", 1, 0)
        b.undo_answer(
            "ben"
        )  # what he said first counts as his; the label is anna's, but in conflict
        assert (b.label_state.labels[1], b.label_state.kept_labels) == (0, {})
        assert build_label_state(b.read_events()) == b.label_state


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_gone_takes_no_more_answers_and_is_rescued(tmp_path, replaced):
    with journal(tmp_path) as b:
        b.add_event("label", "anna", 0, 1)
        b.path.unlink()
        if replaced:
            b.path.write_bytes(b"")
        for _ in range(2):
            with pytest.raises(StorageError, match=r"removed or replaced.*labels-rescued-3\.db"):
                b.add_event("label", "anna", 1, 1)
        assert b.label_state.labels == {0: 1}  # looking is still possible
    for old in tmp_path.glob("labels.db*"):
        old.unlink()
    (tmp_path / "labels-rescued-3.db").rename(tmp_path / "labels.db")
    with journal(tmp_path) as b:
        assert b.label_state.labels == {0: 1}
        b.add_event("label", "anna", 1, 1)


def test_settings_of_the_database(tmp_path):
    with journal(tmp_path) as b:
        b.add_event("label", "anna", 0, 1)
        read = {
            n: b._db.execute(f"PRAGMA {n}").fetchone()[0]
            for n in ("journal_mode", "synchronous", "foreign_keys")
        }
        assert read == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 0}
        # another program may look at the record while it is open
        db = sqlite3.connect(tmp_path / "labels.db")
        assert db.execute("SELECT count(*) FROM events").fetchone() == (3,)
        assert db.execute("SELECT item FROM items WHERE position = 1").fetchone() == (ITEMS[1],)
        db.close()


def test_a_second_journal_is_refused_until_the_first_closes(tmp_path):
    first = journal(tmp_path)
    with pytest.raises(StorageError, match="in use by another"):
        journal(tmp_path)
    closing = threading.Thread(target=first.close)
    closing.start()
    closing.join()
    second = journal(tmp_path)
    with pytest.raises(StorageError, match="closed"):
        first.add_event("label", "anna", 0, 1)
    with pytest.raises(StorageError, match="closed"):
        first.label_state  # noqa: B018
    first.close()
    second.add_event("label", "anna", 0, 1)
    second.close()


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="choose another place"):
        journal(tmp_path / "file" / "below")


def test_a_full_disk_loses_nothing_that_was_accepted(tmp_path):
    with journal(tmp_path) as b:
        b.add_event("label", "anna", 0, 1)
        pages = b._db.execute("PRAGMA page_count").fetchone()[0]
        b._db.execute(f"PRAGMA max_page_count = {pages}")
        accepted = 1

        def fill():
            nonlocal accepted
            while True:
                b.add_event("label", "anna", 1, 0, key="k" * 190 + str(accepted))
                accepted += 1

        with pytest.raises(StorageError, match="disk has space") as refused:
            fill()
        assert refused.value.full
        assert len(b.read_events()) == accepted + 2
        assert build_label_state(b.read_events()) == b.label_state
        b._db.execute("PRAGMA max_page_count = 100000")
        again = b.add_event("label", "anna", 1, 0, key="k" * 190 + str(accepted))
        assert again.seq == accepted + 3
        assert build_label_state(b.read_events()) == b.label_state


def test_a_record_that_goes_bad_while_it_is_open_is_no_wrong_input(tmp_path):
    with journal(tmp_path) as b:
        b.add_event("label", "anna", 0, 1)
        other = sqlite3.connect(tmp_path / "labels.db")
        other.execute(
            "INSERT INTO events (seq, at, who, kind, position) VALUES (9, 't', 'x', 'skip', 0)"
        )
        other.commit()
        with pytest.raises(StorageError, match="after event 3 comes"):
            b.label_state  # noqa: B018
        other.executescript("DROP TABLE events")
        other.close()
        with pytest.raises(StorageError, match="damaged or not a journal"):
            b.read_events()
    with pytest.raises(InputError, match="damaged or not a journal"):
        journal(tmp_path)


def test_leases_survive_a_restart_and_expire(tmp_path):
    with journal(tmp_path) as b:
        assert b.lease_item(0, "anna", 30, now=100.0)
        assert not b.lease_item(0, "ben", 30, now=129.9)
        assert b.lease_item(1, "ben", 30, now=101.0)
        assert not b.lease_item(0, "ben", 30, now=102.0)
        assert b.list_leases(102.0) == {0: "anna", 1: "ben"}  # a refusal keeps the old one
    with journal(tmp_path) as b:
        assert b.list_leases(129.9) == {0: "anna", 1: "ben"}
        assert b.list_leases(130.0) == {1: "ben"}
        assert b.lease_item(0, "ben", 30, now=130.0)
        assert b.list_leases(131.0) == {0: "ben"}
        assert b.lease_item(3, "anna", 5)
        assert b.list_leases() == {3: "anna"}  # by the clock of today, 1970 is over
        b.release_lease("anna")
        b.release_lease("nobody")
        assert b.list_leases() == {}
        for seconds in (0, -1, float("nan"), float("inf")):
            with pytest.raises(InputError, match="seconds"):
                b.lease_item(0, "anna", seconds)
        with pytest.raises(InputError, match="position"):
            b.lease_item(5, "anna", 1)


def test_no_item_is_leased_twice_and_no_answer_lost_among_threads(tmp_path):
    items = [f"{i}.jpg" for i in range(40)]
    holder, doubled, guard = {}, [], threading.Lock()
    go = threading.Barrier(8)

    def work(who):
        go.wait()
        for position in range(len(items)):
            if b.lease_item(position, who, 60, now=1000.0):
                with guard:
                    if position in holder:
                        doubled.append(position)
                    holder[position] = who
                b.add_event("label", who, position, 0, key=f"{who}{position}")
                with guard:
                    del holder[position]
                b.release_lease(who)

    with journal(tmp_path, items=items) as b:
        threads = [threading.Thread(target=work, args=(f"p{i}",)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert doubled == []
        assert b.list_leases(1000.0) == {}
        events = b.read_events()
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        assert len({e.key for e in events[2:]}) == len(events) - 2 >= len(items)
        assert build_label_state(events) == b.label_state
