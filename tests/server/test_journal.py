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

import labelahead as la
from labelahead.data.dataset import NONE_OF_THESE
from labelahead.errors import InputError, StorageError
from labelahead.server.journal import FIRST_VERSION, MIGRATIONS, Journal, open_database
from labelahead.server.label_state import build_label_state
from tests.support.journals import ITEMS, open_journal

NEWEST_VERSION = FIRST_VERSION + len(MIGRATIONS) - 1

ANNOTATORS = ("anna", "ben", "O'Hara <i>")


class NaiveJournal:
    """The rules of the journal without events: lists and dicts, every state computed from scratch."""

    def __init__(self, classes):
        self.answers = []  # [annotator, position, kind, label, seq, is in force]
        self.seq = len(classes)
        self.keys = {}
        self.leases = {}  # annotator -> (position, until)
        self.kept_labels = {}  # position -> [its row of answers, had a conflict]
        self.initial_names = list(classes)
        # Rows of answers: [annotator, None, kind, class, seq, is in force, merged into, name]
        self.changes = []
        self.grids = []  # lists of rows confirmed together

    def current_label(self, label):
        """Return a label's class after all changes in force; None: removed."""
        for row in self.changes:
            if row[5] and row[2] != "rename" and label == row[3]:
                label = row[6]
        return label

    def class_names(self):
        """Return number -> name of every class, removed ones included."""
        names = dict(enumerate(self.initial_names))
        for row in self.changes:
            if row[5] and row[2] == "rename":
                names[row[3]] = row[7]
        return names

    def active_classes(self):
        """Return lower-case name -> number of the active classes."""
        return {
            name.lower(): c for c, name in self.class_names().items() if self.current_label(c) == c
        }

    def change_class(self, who, kind, label, into=None, name=None):
        self.seq += 1
        row = [who, None, kind, label, self.seq, True, into, name]
        self.answers.append(row)
        self.changes.append(row)
        self.drop_changed_keeps()

    def add_class(self, name):
        self.seq += 1
        self.initial_names.append(name)

    def find_class(self, name):
        """Return the current number of the class that has this name, or had it last."""
        named = [(c, n) for c, n in enumerate(self.initial_names)] + [
            (r[3], r[7]) for r in self.changes if r[5] and r[2] == "rename"
        ]
        numbers = [c for c, n in named if n.lower() == name.lower()]
        return (
            self.current_label(
                self.active_classes().get(name.lower(), numbers[-1] if numbers else -1)
            )
            if numbers
            else None
        )

    def can_undo(self, row):
        """Return whether a change can be undone: no two classes would share a name."""
        row[5] = False
        active = [
            name.lower() for c, name in self.class_names().items() if self.current_label(c) == c
        ]
        row[5] = True
        return len(set(active)) == len(active)

    def add_answer(self, who, position, kind, label):
        self.seq += 1
        self.answers.append([who, position, kind, label, self.seq, True])
        self.drop_changed_keeps()

    def keep(self, who, position, label):
        self.doubt(position)  # replaces an earlier keep
        self.seq += 1
        row = [who, position, "keep", label, self.seq, True]
        self.answers.append(row)
        self.kept_labels[position] = [row, len(set(self.open_labels(position))) > 1]

    def doubt(self, position):
        if position in self.kept_labels:
            self.kept_labels.pop(position)[0][5] = False

    def drop_changed_keeps(self):
        for position, (row, before) in list(self.kept_labels.items()):
            labels = self.open_labels(position)
            conflict = len(set(labels)) > 1
            if (
                not row[5]
                or labels[-1:] != [self.current_label(row[3])]
                or (conflict and not before)
            ):
                self.doubt(position)
            else:
                self.kept_labels[position][1] = conflict

    def mark_undone(self, row):
        row[5] = False
        self.seq += 1
        self.drop_changed_keeps()

    def undo_answer(self, who):
        own = [row for row in self.answers if row[0] == who and row[5]]
        if own and own[-1] in self.changes and not self.can_undo(own[-1]):
            return False
        if own:
            grid = next((g for g in self.grids if own[-1] in g), [own[-1]])
            for row in reversed([r for r in grid if r[5]]):
                self.mark_undone(row)
        return True

    def lease_item(self, position, who, seconds, now):
        for other, (p, until) in self.leases.items():
            if other != who and p == position and until > now:
                return False
        self.leases[who] = (position, now + seconds)
        return True

    def current_answers(self, position):
        """Return annotator -> (kind, label, seq) of the answers in force."""
        rows = [row for row in self.answers if row[1] == position and row[5]]
        latest = {row[0]: row[2:5] for row in rows if row[2] not in ("settle", "keep")}
        current = {
            who: (kind, self.current_label(label), seq)
            for who, (kind, label, seq) in latest.items()
        }
        return {
            who: a for who, a in current.items() if a[1] is not None or a[0] in ("skip", "unsure")
        }

    def settlements(self, position):
        rows = [r for r in self.answers if r[1] == position and r[5] and r[2] == "settle"]
        return [
            [*r[:3], self.current_label(r[3]), *r[4:]]
            for r in rows[-1:]
            if self.current_label(r[3]) is not None
        ]

    def open_labels(self, position):
        """Return the last settlement's label and the labels given after it."""
        settlements = self.settlements(position)
        since = settlements[-1][4] if settlements else 0
        answers = sorted(self.current_answers(position).values(), key=lambda answer: answer[2])
        labels = [label for kind, label, seq in answers if label is not None and seq > since]
        return [row[3] for row in settlements[-1:]] + labels

    def check(self, label_state):
        assert list(label_state.classes) == list(self.class_names().values())
        assert list(label_state.class_mapping) == [
            self.current_label(c) for c in range(len(self.initial_names))
        ]
        assert label_state.active_classes == tuple(self.active_classes().values())
        confirmed = set()
        labels, conflicts, skipped, unsure, compared, differ = {}, [], set(), set(), 0, 0
        for position in range(len(ITEMS)):
            current = self.current_answers(position)
            order = sorted(current, key=lambda who: current[who][2])
            recorded = [
                (a.who, a.kind, a.label, a.seq) for a in label_state.answers.get(position, ())
            ]
            assert recorded == [(who, *current[who]) for who in order]
            assert set(order) == {
                who
                for who, answered in label_state.answered_positions.items()
                if position in answered
            }
            labels_given = [current[who][1] for who in order if current[who][1] is not None]
            settlements, open_now = self.settlements(position), self.open_labels(position)
            if open_now:
                labels[position] = open_now[-1]
            elif order:
                (skipped if current[order[-1]][0] == "skip" else unsure).add(position)
            compared += len(labels_given) > 1
            differ += len(set(labels_given)) > 1
            if len(set(open_now)) > 1:
                conflicts.append(position)
            if position in label_state.settlements:
                assert label_state.settlements[position].seq == settlements[-1][4]
            assert (position in label_state.settlements) == (
                bool(settlements) and len(open_now) == 1
            )
            kinds = [current[who][0] for who in order if current[who][1] is not None]
            if kinds and kinds[-1] == "confirm" and position not in label_state.settlements:
                confirmed.add(position)
        assert label_state.confirmed == confirmed
        assert label_state.labels == labels
        assert label_state.conflicts == tuple(conflicts)
        assert (label_state.skipped, label_state.unsure) == (skipped, unsure)
        assert label_state.agreement == (compared, compared - differ)
        kept = {p: (a.who, a.label, a.seq) for p, a in label_state.kept_labels.items()}
        assert kept == {
            p: (row[0], self.current_label(row[3]), row[4])
            for p, (row, _) in self.kept_labels.items()
        }


annotators, positions = st.sampled_from(ANNOTATORS), st.integers(0, len(ITEMS) - 1)


class JournalMachine(RuleBasedStateMachine):
    folder = None  # set by the test

    @initialize()
    def open_new_journal(self):
        type(self).number = getattr(type(self), "number", 0) + 1
        self.journal_folder = self.folder / str(self.number)
        self.journal = open_journal(self.journal_folder)
        self.naive = NaiveJournal(["cat", "dog"])
        self.clock = 1000.0

    def teardown(self):
        if hasattr(self, "journal"):
            self.journal.close()

    def pick_class(self, label):
        """Return an active class."""
        active = sorted(self.naive.active_classes().values())
        return active[label % len(active)]

    @rule(who=annotators, position=positions, label=st.integers(0, 9), key=st.integers(0, 12))
    def label(self, who, position, label, key):
        label = self.pick_class(label)
        answer = self.naive.keys.get(key, (who, position, label))
        if answer[2] != label and self.naive.current_label(answer[2]) != answer[2]:
            return  # repeated after its class was removed
        answer = (who, position, label)
        if self.naive.keys.get(key, answer) != answer:
            with pytest.raises(InputError, match="was used for another answer"):
                self.journal.add_event("label", *answer, key=f"k{key}")
            return
        event = self.journal.add_event("label", *answer, key=f"k{key}")
        if key not in self.naive.keys:
            self.naive.add_answer(who, position, "label", label)
            self.naive.keys[key] = answer
        assert (event.who, event.position, event.label) == answer

    @rule(who=annotators, position=positions, label=st.integers(0, 9))
    def settle(self, who, position, label):
        label = self.pick_class(label)
        self.journal.add_event("settle", who, position, label)
        self.naive.add_answer(who, position, "settle", label)

    @rule(who=annotators, position=positions, label=st.integers(0, 9), right=st.booleans())
    def keep(self, who, position, label, right):
        now = self.naive.open_labels(position)
        label = now[-1] if right and now else self.pick_class(label)
        if now[-1:] == [label]:
            self.journal.add_event("keep", who, position, label)
            self.naive.keep(who, position, label)
        else:
            with pytest.raises(InputError, match="is not labelled"):
                self.journal.add_event("keep", who, position, label)

    @rule(who=annotators, position=positions)
    def doubt(self, who, position):
        if position in self.naive.kept_labels:
            self.journal.add_event("doubt", who, position)
            self.naive.doubt(position)
            self.naive.seq += 1
        else:
            with pytest.raises(InputError, match="is not kept"):
                self.journal.add_event("doubt", who, position)

    @rule(who=annotators, position=positions, kind=st.sampled_from(["skip", "unsure"]))
    def no_label(self, who, position, kind):
        self.journal.add_event(kind, who, position)
        self.naive.add_answer(who, position, kind, None)

    @rule(
        who=annotators,
        at=st.lists(positions, min_size=1, max_size=4, unique=True),
        label=st.integers(0, 9),
    )
    def confirm(self, who, at, label):
        label = self.pick_class(label)
        events = self.journal.confirm_items(who, at, label)
        free = [p for p in at if not self.naive.open_labels(p)]
        assert [(e.position, e.label, e.ref) for e in events] == [
            (p, label, events[0].seq) for p in free
        ]
        for position in free:
            self.naive.add_answer(who, position, "confirm", label)
        if free:
            self.naive.grids.append(self.naive.answers[-len(free) :])

    @rule(
        who=annotators,
        label=st.integers(0, 9),
        name=st.sampled_from(["Wolf", "cat", "DOG", "lynx"]),
    )
    def rename(self, who, label, name):
        label, active = self.pick_class(label), self.naive.active_classes()
        if active.get(name.lower(), label) != label:
            with pytest.raises(InputError, match="already"):
                self.journal.change_class(who, "rename", label, name)
            return
        self.journal.change_class(who, "rename", label, name)
        self.naive.change_class(who, "rename", label, name=name)

    @rule(who=annotators, label=st.integers(0, 9), into=st.integers(0, 9))
    def merge(self, who, label, into):
        label, into = self.pick_class(label), self.pick_class(into)
        name = self.naive.class_names()[into]
        if label == into:
            with pytest.raises(InputError, match="into itself"):
                self.journal.change_class(who, "merge", label, name)
            return
        self.journal.change_class(who, "merge", label, name)
        self.naive.change_class(who, "merge", label, into)

    @rule(who=annotators, label=st.integers(0, 9))
    def remove(self, who, label):
        label = self.pick_class(label)
        if len(self.naive.active_classes()) > 1:
            self.journal.change_class(who, "remove", label)
            self.naive.change_class(who, "remove", label)

    @rule(who=annotators)
    def undo(self, who):
        before = self.naive.seq
        if self.naive.undo_answer(who):
            assert (self.journal.undo_answer(who) is None) == (self.naive.seq == before)
        else:
            with pytest.raises(InputError, match="rename that class first"):
                self.journal.undo_answer(who)

    @rule(who=annotators, which=st.integers(0, 30))
    def undo_one(self, who, which):
        if not self.naive.answers:
            return
        row = self.naive.answers[which % len(self.naive.answers)]
        if row[0] != who:
            with pytest.raises(InputError, match="expected an answer of"):
                self.journal.undo_answer(who, row[4])
        elif row[5] and row in self.naive.changes and not self.naive.can_undo(row):
            with pytest.raises(InputError, match="rename that class first"):
                self.journal.undo_answer(who, row[4])
        elif self.journal.undo_answer(who, row[4]) is None:
            assert not row[5]
        else:
            assert row[5]
            self.naive.mark_undone(row)

    @rule(who=annotators, name=st.sampled_from(["Fox ", "fOX", "<s>", "dog", "🦊\n", "' OR 1"]))
    def add_class(self, who, name):
        number = self.journal.add_class(who, name)
        if name.strip().lower() not in self.naive.active_classes():
            self.naive.add_class(name.strip())
        assert number == self.naive.active_classes()[name.strip().lower()]

    @rule(who=annotators, position=positions, seconds=st.sampled_from([1.0, 5.0, 60.0]))
    def lease(self, who, position, seconds):
        expected = self.naive.lease_item(position, who, seconds, self.clock)
        assert self.journal.lease_item(position, who, seconds, now=self.clock) == expected

    @rule(who=annotators)
    def release(self, who):
        self.journal.release_lease(who)
        self.naive.leases.pop(who, None)

    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0]))
    def wait(self, seconds):
        self.clock += seconds

    @rule(
        rows=st.lists(
            st.tuples(positions, st.sampled_from(["CAT", "wolf"]), annotators), max_size=4
        )
    )
    def add_labels(self, rows):
        self.journal.add_labels(rows)
        for position, name, who in rows:
            label = self.naive.find_class(name)
            if label is None:
                self.naive.add_class(name)
                label = self.naive.active_classes()[name.lower()]
            if self.naive.current_answers(position).get(who, (None, None))[1] != label:
                self.naive.add_answer(who, position, "label", label)

    @rule()
    def reopen(self):
        self.journal.close()
        self.journal = open_journal(self.journal_folder)

    @invariant()
    def equals_naive_journal(self):
        if not hasattr(self, "journal"):
            return
        label_state = self.journal.label_state
        self.naive.check(label_state)
        assert label_state.seq == self.naive.seq
        assert build_label_state(self.journal.read_events()) == label_state
        expected = {p: who for who, (p, until) in self.naive.leases.items() if until > self.clock}
        assert self.journal.list_leases(self.clock) == expected


def test_journal_equals_a_naive_implementation(tmp_path):
    JournalMachine.folder = tmp_path
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    run_state_machine_as_test(
        JournalMachine,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=quiet,
            derandomize=True,
            database=None,
        ),
    )


def test_class_and_annotator_names_may_hold_any_text_but_invalid_characters(tmp_path):
    names = ["a\nb", "'\"; --", "<script>", "👩‍🔬", "%s {x}", "x" * 200, "../..", "=1+1"]
    with open_journal(tmp_path, classes=names) as journal:
        assert journal.label_state.classes == tuple(names)
        journal.add_event("label", "O'Hara\n🦊", 2, 1)
    with open_journal(tmp_path, classes=()) as journal:
        assert journal.label_state.classes == tuple(names)
        assert journal.label_state.answers[2][0].who == "O'Hara\n🦊"
        for bad in ("", " \n", "x" * 201, "a\0b", "half \ud83d", None, 3):
            with pytest.raises(InputError):
                journal.add_class("anna", bad)
            with pytest.raises(InputError):
                journal.add_event("skip", bad, 0)
        # One character in two Unicode forms is one class.
        assert journal.add_class("anna", "e\u0301") == journal.add_class("anna", "É") == len(names)
    with pytest.raises(InputError, match="NUL"):
        open_journal(tmp_path / "other", items=("a\0b",))


def test_reopening_keeps_class_numbers_and_appends_new_classes(tmp_path):
    with open_journal(tmp_path, classes=("cat", "dog")) as journal:
        journal.add_class("anna", "wolf")
    with open_journal(tmp_path, classes=("fox", "Dog", "cat")) as journal:
        assert journal.label_state.classes == ("cat", "dog", "wolf", "fox")
        assert [e.who for e in journal.read_events()] == ["", "", "anna", ""]


@pytest.mark.parametrize(
    ("event", "message"),
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
def test_add_event_refuses_invalid_events_and_records_nothing(tmp_path, event, message):
    with open_journal(tmp_path) as journal:
        before = journal.read_events(), journal.label_state
        with pytest.raises(InputError, match=message):
            journal.add_event(event.pop("kind"), "anna", **event)
        assert (journal.read_events(), journal.label_state) == before
        journal.add_event("label", "anna", 0, 1)


def test_repeated_keys_are_recorded_once_also_after_reopening(tmp_path):
    with open_journal(tmp_path) as journal:
        first = journal.add_event("label", "anna", 0, 1, key="k")
        for other in (("label", "anna", 3, 1), ("label", "ben", 0, 1), ("label", "anna", 0, 0)):
            with pytest.raises(InputError, match="'k' was used for another answer"):
                journal.add_event(*other, key="k")
        undo = journal.undo_answer("anna", key="u")
        assert journal.undo_answer("anna", key="u") == undo
        assert (undo.ref, undo.position, undo.label) == (first.seq, 0, None)
    with open_journal(tmp_path) as journal:
        assert journal.add_event("label", "anna", 0, 1, key="k") == first
        assert journal.undo_answer("anna", key="u") == undo
        assert journal.undo_answer("anna") is None
        assert len(journal.read_events()) == 4
        assert journal.read_events(since=3) == [undo]
        assert journal.read_event(3) == first


def test_add_labels_is_atomic_and_idempotent(tmp_path):
    with open_journal(tmp_path) as journal:
        before = journal.read_events(), journal.label_state
        with pytest.raises(InputError, match="position is 99"):
            journal.add_labels([(0, "cat", "anna"), (1, "wolf", "anna"), (99, "cat", "anna")])
        assert (journal.read_events(), journal.label_state) == before
        added = journal.add_labels([(0, "Cat", "anna"), (1, "wolf", "ben")])
        assert [e.kind for e in added] == ["label", "class", "label"]
        assert journal.add_labels([(0, "cat", "anna"), (1, "wolf", "ben")]) == []
        assert journal.label_state.labels == {0: 0, 1: 2}
        assert build_label_state(journal.read_events()) == journal.label_state


def test_events_cannot_be_changed_or_removed(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, 1)
    db = sqlite3.connect(tmp_path / "labels.db")
    for statement in ("UPDATE events SET label = 0", "DELETE FROM events"):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            db.execute(statement)
    db.close()


def test_journal_of_other_data_is_refused(tmp_path):
    open_journal(tmp_path).close()
    for items, fingerprint, message in (
        (ITEMS[:-1], "f", "it has 5 items, the data 4"),
        (("z.jpg", *ITEMS[1:]), "g", "item 0 was 'a.jpg', now 'z.jpg'"),
        (ITEMS, "g", "different content"),
    ):
        with pytest.raises(InputError, match=message):
            open_journal(tmp_path, items=items, fingerprint=fingerprint)
    open_journal(tmp_path).close()  # the refusals released the lock


def test_damaged_foreign_and_newer_files_are_refused_unchanged(tmp_path):
    path = tmp_path / "labels.db"

    def check_refused(message):
        before = path.read_bytes()
        with pytest.raises(InputError, match=message):
            open_journal(tmp_path)
        assert path.read_bytes() == before
        path.unlink()

    path.write_bytes(b"no database at all, but some text" * 100)
    check_refused("damaged or not a journal")
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE other (x)")
    db.commit()
    db.close()
    check_refused("another program")
    with open_journal(tmp_path, items=[f"{i}.jpg" for i in range(2000)]):
        pass
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 6] = b"\xff" * (4096 * 3)
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        open_journal(tmp_path, items=[f"{i}.jpg" for i in range(2000)])
    path.unlink()
    open_journal(tmp_path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    check_refused("update labelahead")


def test_journal_with_a_missing_event_is_refused(tmp_path):
    with open_journal(tmp_path) as journal:
        for _ in range(3):
            journal.add_event("label", "anna", 0, 1)
    db = sqlite3.connect(tmp_path / "labels.db")
    db.execute("DROP TRIGGER events_last")
    db.execute("DELETE FROM events WHERE seq = 4")
    db.commit()
    db.close()
    with pytest.raises(InputError, match="after event 3 comes"):
        open_journal(tmp_path)


def test_open_database_migrates_an_empty_file_and_rolls_back_failed_migrations(tmp_path):
    path = tmp_path / "labels.db"
    path.touch()  # version 0: left by a kill right after creation
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, 1)
        assert journal._db.execute("PRAGMA user_version").fetchone() == (NEWEST_VERSION,)
        events = journal.read_events()
    extended = [*MIGRATIONS, ("ALTER TABLE events ADD COLUMN note TEXT",)]
    with pytest.raises(InputError, match="no such table"):
        open_database(path, [*MIGRATIONS, (*extended[-1], "INSERT INTO nowhere VALUES (1)")])
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (NEWEST_VERSION,)
    assert "note" not in [row[1] for row in db.execute("PRAGMA table_info(events)")]
    db.close()
    db = open_database(path, extended)
    assert db.execute("PRAGMA user_version").fetchone() == (NEWEST_VERSION + 1,)
    assert db.execute("SELECT seq, note FROM events").fetchall() == [(e.seq, None) for e in events]
    db.close()
    with pytest.raises(InputError, match="update labelahead"):
        open_journal(tmp_path)


# What labelahead 0.2.0 created: users have such databases.
SCHEMA_OF_0_2 = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE items (position INTEGER PRIMARY KEY, item TEXT NOT NULL, size INTEGER);
CREATE TABLE leases (
    position INTEGER PRIMARY KEY, who TEXT NOT NULL UNIQUE, until REAL NOT NULL
);
CREATE TABLE "events" (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    who TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('label', 'confirm', 'skip', 'unsure', 'settle', 'keep',
        'doubt', 'undo', 'class', 'rename', 'merge', 'remove')),
    position INTEGER,
    label INTEGER,
    ref INTEGER,
    key TEXT,
    text TEXT,
    CHECK ((kind IN ('label', 'confirm', 'settle', 'keep', 'class', 'rename', 'merge', 'remove'))
        = (label IS NOT NULL)),
    CHECK (kind = 'undo' OR (kind IN ('class', 'rename', 'merge', 'remove')) = (position IS NULL)),
    CHECK ((kind IN ('undo', 'confirm')) = (ref IS NOT NULL)),
    CHECK ((kind IN ('class', 'rename', 'merge')) = (text IS NOT NULL))
);
CREATE UNIQUE INDEX events_key ON events (key) WHERE key IS NOT NULL;
CREATE TRIGGER events_stay BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
CREATE TRIGGER events_last BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'events are never removed'); END;
PRAGMA application_id = 1818323052;
PRAGMA user_version = 5;
"""


def describe_schema(path):
    """Names and columns of all tables, indexes and triggers of a database."""
    db = sqlite3.connect(path)
    named = db.execute("SELECT type, name, tbl_name FROM sqlite_master ORDER BY type, name")
    columns = {
        table: db.execute(f"PRAGMA table_info({table})").fetchall()
        for table in ("about", "items", "leases", "events")
    }
    found = named.fetchall(), columns, db.execute("PRAGMA user_version").fetchone()
    db.close()
    return found


def test_journal_of_version_0_2_opens(tmp_path):
    db = sqlite3.connect(tmp_path / "labels.db")
    db.executescript(SCHEMA_OF_0_2)
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
        "('t', 'cleo', 'settle', 0, 0, NULL, 's', NULL)",
        "('t', 'ben', 'confirm', 1, 1, 8, NULL, NULL)",
        "('t', 'ben', 'rename', NULL, 1, NULL, NULL, 'hound')",
    ):
        db.execute(row + values)
    db.commit()
    db.close()
    with Journal(tmp_path, items=["x", "y"], fingerprint="f") as journal:
        assert [e.seq for e in journal.read_events()] == list(range(1, 10))
        assert journal.add_event("label", "anna", 0, 0, key="k").seq == 3
        assert (journal.label_state.conflicts, journal.label_state.labels) == ((), {0: 0, 1: 1})
        assert list(journal.label_state.classes) == ["cat", "hound"]
        assert journal.add_event("keep", "ben", 0, 0).seq == 10
        before = journal.label_state
    with Journal(tmp_path, items=["x", "y"], fingerprint="f") as journal:
        assert journal.label_state == before
    db = sqlite3.connect(tmp_path / "labels.db")
    for change in ("DELETE FROM events", "UPDATE events SET who = 'x'"):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            db.execute(change)
    db.close()
    open_journal(tmp_path / "new").close()
    assert describe_schema(tmp_path / "new" / "labels.db") == describe_schema(
        tmp_path / "labels.db"
    )


def test_journal_from_before_the_first_release_is_refused_and_unchanged(tmp_path):
    path = tmp_path / "labels.db"
    db = sqlite3.connect(path)
    db.executescript(SCHEMA_OF_0_2.replace("user_version = 5", "user_version = 4"))
    db.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="version 4, from before the first release"):
        open_journal(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
@pytest.mark.parametrize("replaced", [False, True])
def test_add_event_after_removal_of_the_file_is_refused_and_rescues_the_labels(tmp_path, replaced):
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, 1)
        journal.path.unlink()
        if replaced:
            journal.path.write_bytes(b"")
        for _ in range(2):
            with pytest.raises(StorageError, match=r"removed or replaced.*labels-rescued-3\.db"):
                journal.add_event("label", "anna", 1, 1)
        assert journal.label_state.labels == {0: 1}  # reading still works
    for old in tmp_path.glob("labels.db*"):
        old.unlink()
    (tmp_path / "labels-rescued-3.db").rename(tmp_path / "labels.db")
    with open_journal(tmp_path) as journal:
        assert journal.label_state.labels == {0: 1}
        journal.add_event("label", "anna", 1, 1)


def test_database_uses_wal_and_full_synchronous(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, 1)
        pragmas = {
            n: journal._db.execute(f"PRAGMA {n}").fetchone()[0]
            for n in ("journal_mode", "synchronous", "foreign_keys")
        }
        assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 0}
        # Another program can read the journal while it is open.
        db = sqlite3.connect(tmp_path / "labels.db")
        assert db.execute("SELECT count(*) FROM events").fetchone() == (3,)
        assert db.execute("SELECT item FROM items WHERE position = 1").fetchone() == (ITEMS[1],)
        db.close()


def test_second_journal_of_a_folder_is_refused_until_the_first_closes(tmp_path):
    first = open_journal(tmp_path)
    with pytest.raises(StorageError, match="in use by another"):
        open_journal(tmp_path)
    closing = threading.Thread(target=first.close)
    closing.start()
    closing.join()
    second = open_journal(tmp_path)
    with pytest.raises(StorageError, match="closed"):
        first.add_event("label", "anna", 0, 1)
    with pytest.raises(StorageError, match="closed"):
        first.label_state  # noqa: B018
    first.close()
    second.add_event("label", "anna", 0, 1)
    second.close()


def test_journal_below_a_file_raises_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="choose another place"):
        open_journal(tmp_path / "file" / "below")


def test_full_disk_keeps_accepted_answers(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, 1)
        pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
        journal._db.execute(f"PRAGMA max_page_count = {pages}")
        accepted = 1

        def add_until_full():
            nonlocal accepted
            while True:
                journal.add_event("label", "anna", 1, 0, key="k" * 190 + str(accepted))
                accepted += 1

        with pytest.raises(StorageError, match="disk has space") as refused:
            add_until_full()
        assert refused.value.full
        assert len(journal.read_events()) == accepted + 2
        assert build_label_state(journal.read_events()) == journal.label_state
        journal._db.execute("PRAGMA max_page_count = 100000")
        retried = journal.add_event("label", "anna", 1, 0, key="k" * 190 + str(accepted))
        assert retried.seq == accepted + 3
        assert build_label_state(journal.read_events()) == journal.label_state


def test_damage_of_an_open_journal_raises_storage_error(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, 1)
        other = sqlite3.connect(tmp_path / "labels.db")
        other.execute(
            "INSERT INTO events (seq, at, who, kind, position) VALUES (9, 't', 'x', 'skip', 0)"
        )
        other.commit()
        with pytest.raises(StorageError, match="after event 3 comes"):
            journal.label_state  # noqa: B018
        other.executescript("DROP TABLE events")
        other.close()
        with pytest.raises(StorageError, match="damaged or not a journal"):
            journal.read_events()
    with pytest.raises(InputError, match="damaged or not a journal"):
        open_journal(tmp_path)


def test_leases_survive_a_restart_and_expire(tmp_path):
    with open_journal(tmp_path) as journal:
        assert journal.lease_item(0, "anna", 30, now=100.0)
        assert not journal.lease_item(0, "ben", 30, now=129.9)
        assert journal.lease_item(1, "ben", 30, now=101.0)
        assert not journal.lease_item(0, "ben", 30, now=102.0)
        assert journal.list_leases(102.0) == {
            0: "anna",
            1: "ben",
        }  # a refused lease keeps the old one
    with open_journal(tmp_path) as journal:
        assert journal.list_leases(129.9) == {0: "anna", 1: "ben"}
        assert journal.list_leases(130.0) == {1: "ben"}
        assert journal.lease_item(0, "ben", 30, now=130.0)
        assert journal.list_leases(131.0) == {0: "ben"}
        assert journal.lease_item(3, "anna", 5)
        assert journal.list_leases() == {3: "anna"}  # the leases of 1970 have expired
        journal.release_lease("anna")
        journal.release_lease("nobody")
        assert journal.list_leases() == {}
        for seconds in (0, -1, float("nan"), float("inf")):
            with pytest.raises(InputError, match="seconds"):
                journal.lease_item(0, "anna", seconds)
        with pytest.raises(InputError, match="position"):
            journal.lease_item(5, "anna", 1)


def test_concurrent_threads_lease_each_item_once_and_lose_no_answer(tmp_path):
    items = [f"{i}.jpg" for i in range(40)]
    holder, doubled, lock = {}, [], threading.Lock()
    barrier = threading.Barrier(8)

    def label_all(who):
        barrier.wait()
        for position in range(len(items)):
            if journal.lease_item(position, who, 60, now=1000.0):
                with lock:
                    if position in holder:
                        doubled.append(position)
                    holder[position] = who
                journal.add_event("label", who, position, 0, key=f"{who}{position}")
                with lock:
                    del holder[position]
                journal.release_lease(who)

    with open_journal(tmp_path, items=items) as journal:
        threads = [threading.Thread(target=label_all, args=(f"p{i}",)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert doubled == []
        assert journal.list_leases(1000.0) == {}
        events = journal.read_events()
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        assert len({e.key for e in events[2:]}) == len(events) - 2 >= len(items)
        assert build_label_state(events) == journal.label_state


def test_none_of_these_is_recorded_reopened_and_never_a_class(tmp_path):
    with open_journal(tmp_path, classes=("cat", "dog", "None of These")) as journal:
        journal.add_event("label", "anna", 0, NONE_OF_THESE)
        journal.add_labels([(1, "none of these", "anna"), (2, "cat", "anna")])
        assert journal.add_labels([(1, " None of these ", "anna")]) == []  # imported twice
        assert journal.label_state.classes == ("cat", "dog")
        for change in (
            lambda: journal.add_class("anna", "NONE OF THESE"),
            lambda: journal.change_class("anna", "rename", 0, "none of these"),
        ):
            with pytest.raises(InputError, match="cannot be a class"):
                change()
        with pytest.raises(InputError, match="label is -2"):
            journal.add_event("confirm", "anna", 3, NONE_OF_THESE, ref=1)
        with pytest.raises(InputError, match="label is -1"):
            journal.add_event("label", "anna", 3, -1)
        before = journal.label_state
        assert before.none_of_these == (0, 1)
    with open_journal(tmp_path) as journal:
        assert journal.label_state == before
        assert journal.label_state == build_label_state(journal.read_events())


def test_class_of_the_same_name_in_an_old_journal_stays_a_class(tmp_path):
    db = sqlite3.connect(tmp_path / "labels.db")
    db.executescript(SCHEMA_OF_0_2)
    db.execute("INSERT INTO about VALUES ('fingerprint', 'f')")
    db.executemany("INSERT INTO items (position, item) VALUES (?, ?)", enumerate(["x", "y"]))
    row = "INSERT INTO events (at, who, kind, position, label, text) VALUES "
    for values in (
        "('t', '', 'class', NULL, 0, 'cat')",
        "('t', '', 'class', NULL, 1, 'None of these')",
        "('t', 'anna', 'label', 0, 1, NULL)",
    ):
        db.execute(row + values)
    db.commit()
    db.close()
    with Journal(tmp_path, items=["x", "y"], fingerprint="f") as journal:
        assert journal.label_state.labels == {0: 1}
        assert not journal.label_state.can_be_none_of_these
        with pytest.raises(InputError, match="rename it"):
            journal.add_event("label", "anna", 1, NONE_OF_THESE)
        journal.add_labels([(1, "none of these", "anna")])
        assert journal.label_state.labels == {0: 1, 1: 1}
        journal.change_class("anna", "rename", 1, "other")
        journal.add_event("label", "anna", 1, NONE_OF_THESE)
        assert journal.label_state.labels == {0: 1, 1: NONE_OF_THESE}


@pytest.mark.parametrize(("kind", "label"), [("label", -3), ("label", -1), ("confirm", -2)])
def test_journal_with_an_impossible_label_is_refused(tmp_path, kind, label):
    open_journal(tmp_path).close()
    db = sqlite3.connect(tmp_path / "labels.db")
    ref = 3 if kind == "confirm" else None
    db.execute(
        "INSERT INTO events (at, who, kind, position, label, ref) VALUES ('t', 'a', ?, 0, ?, ?)",
        (kind, label, ref),
    )
    db.commit()
    db.close()
    with pytest.raises(InputError, match="is damaged"):
        open_journal(tmp_path)


def test_confirmed_items_replace_none_of_these_only_on_request(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, NONE_OF_THESE)
        journal.add_event("label", "anna", 1, 1)
        assert journal.confirm_items("ben", [0, 1], 0) == []
        number = journal.add_class("ben", "fox")
        events = journal.confirm_items("ben", [0, 1, 2], number, replace_none=True)
        assert [e.position for e in events] == [0, 2]
        state = journal.label_state
        assert (state.labels, state.conflicts) == ({0: number, 1: 1, 2: number}, ())
        journal.undo_answer("ben")
        assert journal.label_state.labels == {0: NONE_OF_THESE, 1: 1}


def test_journal_before_tasks_is_migrated_and_refused_by_its_own_version(tmp_path):
    """A version that does not know tasks must not read codes as class numbers."""
    path, before = tmp_path / "labels.db", MIGRATIONS[:2]
    db = open_database(path, before)
    db.execute("INSERT INTO about VALUES ('fingerprint', 'f')")
    db.execute("INSERT INTO items VALUES (0, 'a', NULL), (1, 'b', NULL)")
    for row in (
        (1, "class", None, 0, "cat"),
        (2, "class", None, 1, "dog"),
        (3, "label", 1, 1, None),
    ):
        db.execute(
            "INSERT INTO events (seq, at, who, kind, position, label, text) "
            "VALUES (?, 't', 'anna', ?, ?, ?, ?)",
            row,
        )
    db.close()
    with Journal(tmp_path, items=["a", "b"], fingerprint="f") as journal:
        assert dict(journal.label_state.labels) == {1: 1}
        assert [e.text for e in journal.read_events()] == ["cat", "dog", None]
        added = journal.add_event("label", "ben", 0, 0, key="k")
        assert (added.seq, added.text) == (4, None)
        with pytest.raises(sqlite3.IntegrityError, match="never changed"):
            journal._db.execute("UPDATE events SET label = 0")
        with pytest.raises(sqlite3.IntegrityError, match="never removed"):
            journal._db.execute("DELETE FROM events")
    with pytest.raises(InputError, match="supports versions up to 6; update labelahead"):
        open_database(path, before)


def test_find_label_returns_the_label_that_add_event_records(tmp_path):
    with open_journal(tmp_path) as journal:
        name = journal.label_state.classes[1]
        assert journal.find_label(name) == 1
        with pytest.raises(InputError, match="does not exist"):
            journal.find_label("no such class")
    task = la.tasks.Multilabel(["cat", "dog"])
    settings = {"classes": ["cat", "dog"], "items": ["a", "b"], "fingerprint": "f", "task": task}
    with Journal(tmp_path / "m", **settings) as journal:
        before = journal.label_state.seq
        expected = journal.find_label(["dog"])
        assert journal.find_label(["dog"]) == expected
        assert journal.label_state.seq == before  # nothing is recorded
        assert journal.add_event("label", "anna", 0, value=["cat", "dog"]).label == expected
        assert journal.find_label(["cat", "dog"]) == expected
        assert journal.find_label(["dog"]) == expected + 1
