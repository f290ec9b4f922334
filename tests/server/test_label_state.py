"""Labels, conflicts and kept labels as they follow from the events."""

import pytest

from labelahead.data.dataset import NONE_OF_THESE
from labelahead.server.label_state import Event, build_label_state, count_classes
from tests.support.journals import open_journal


def test_undo_restores_the_previous_answer():
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
    assert build_label_state(events).labels == {0: 1}  # ben's answer is newer than anna's first
    events.append(event(8, "ben", "unsure"))
    assert build_label_state(events).labels == {0: 0}  # ben withdrew his own only
    assert build_label_state(events).agreement == (0, 0)
    events.append(event(9, "anna", "undo", ref=5))  # ben's answer: no effect
    events.append(event(10, "anna", "undo", ref=4))
    label_state = build_label_state(events)
    assert (label_state.labels, label_state.unsure, label_state.skipped) == ({}, {0}, set())


def test_label_state_is_immutable(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, 1)
        before = journal.label_state
        assert journal.label_state is before
        journal.add_event("label", "anna", 0, 0)
        assert before.labels == {0: 1}
        with pytest.raises(TypeError):
            before.labels[0] = 5


def test_settlement_ends_a_conflict_until_a_later_label_differs(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, 0)
        journal.add_event("label", "ben", 0, 1)
        journal.add_event("settle", "cleo", 0, 0)
        state = journal.label_state
        assert (state.conflicts, state.labels[0], state.find_deciding_answer(0).who) == (
            (),
            0,
            "cleo",
        )
        assert state.agreement == (1, 0)  # the two labels differ
        assert [a.label for a in state.answers[0]] == [0, 1]  # both answers remain
        journal.add_event("label", "dora", 0, 0)  # the settled label
        assert journal.label_state.conflicts == ()
        journal.add_event("label", "dora", 0, 1)
        assert (journal.label_state.conflicts, journal.label_state.labels[0]) == ((0,), 1)
        journal.undo_answer("dora")
        assert (journal.label_state.conflicts, journal.label_state.labels[0]) == ((), 0)
        journal.undo_answer("cleo")
        assert journal.label_state.conflicts == (0,)


def test_kept_label_stays_kept_until_the_label_changes(tmp_path):
    def keep_label(who="ben"):
        journal.add_event("keep", who, 0, 0)
        assert journal.label_state.kept_labels[0].who == who

    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, 0)
        keep_label()
        assert journal.label_state.agreement == (0, 0)  # ben gave no answer of his own
        for kind, who, label in (
            ("label", "anna", 0),
            ("skip", "dora", None),
            ("label", "ben", 0),
            ("settle", "dora", 0),
        ):
            journal.add_event(kind, who, 0, label)
            assert 0 in journal.label_state.kept_labels  # the label is the same
        journal.undo_answer("dora")
        assert 0 in journal.label_state.kept_labels
        journal.add_event("label", "anna", 0, 1)  # anna changes her label
        assert journal.label_state.kept_labels == {}
        journal.undo_answer("anna")  # does not restore the kept label
        assert (journal.label_state.labels, journal.label_state.kept_labels) == ({0: 0}, {})
        keep_label()
        journal.add_event("label", "dora", 0, 1)  # a conflicting label
        journal.add_event("settle", "cleo", 0, 0)
        assert (journal.label_state.labels, journal.label_state.kept_labels) == ({0: 0}, {})
        keep_label("cleo")
        journal.undo_answer("cleo")  # undoes the keep only
        assert (journal.label_state.labels, journal.label_state.kept_labels) == ({0: 0}, {})
        keep_label("cleo")
        keep_label("ben")  # replaces cleo's keep
        journal.undo_answer("cleo")  # undoes the settlement: dora's label decides
        assert (journal.label_state.labels, journal.label_state.kept_labels) == ({0: 1}, {})
        journal.add_event("keep", "ben", 0, 1)
        journal.add_event("doubt", "anna", 0)  # any annotator may doubt it
        assert journal.label_state.kept_labels == {}
        for who, label in (("ben", 1), ("ben", 0), ("anna", 0)):
            journal.add_event("label", who, 1, label)
        journal.add_event("keep", "cleo", 1, 0)
        journal.undo_answer("ben")  # his first label is in force again and conflicts with anna's
        assert (journal.label_state.labels[1], journal.label_state.kept_labels) == (0, {})
        assert build_label_state(journal.read_events()) == journal.label_state


def test_none_of_these_contradicts_classes_of_its_time_only(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, NONE_OF_THESE)
        journal.add_event("label", "ben", 0, 1)
        assert (journal.label_state.conflicts, journal.label_state.labels) == ((0,), {0: 1})
        assert journal.label_state.agreement == (1, 0)
        journal.add_event("settle", "cleo", 0, NONE_OF_THESE)
        assert journal.label_state.conflicts == ()
        assert journal.label_state.labels == {0: NONE_OF_THESE}
        journal.add_event("keep", "ben", 0, NONE_OF_THESE)
        assert journal.label_state.kept_labels[0].label == NONE_OF_THESE
        journal.add_event("label", "anna", 1, NONE_OF_THESE)
        fox = journal.add_class("ben", "fox")
        journal.add_event("label", "ben", 1, fox)
        assert (journal.label_state.conflicts, journal.label_state.labels[1]) == ((), fox)
        journal.add_event("label", "cleo", 1, NONE_OF_THESE)  # knows the class
        assert journal.label_state.conflicts == (1,)
        journal.undo_answer("cleo")
        journal.change_class("ben", "remove", fox)
        assert journal.label_state.labels[1] == NONE_OF_THESE  # anna's answer is valid again
        assert journal.label_state.none_of_these == (0, 1)
        assert build_label_state(journal.read_events()) == journal.label_state


def test_count_classes_ignores_none_of_these():
    assert count_classes({0: 1, 1: NONE_OF_THESE, 2: 1}) == 1
