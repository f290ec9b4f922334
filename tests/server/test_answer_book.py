"""The task of a session as its journal records it."""

import json

import pytest

from labelahead.errors import InputError
from labelahead.server.answer_book import SessionTask, describe_settings
from labelahead.server.journal import Journal, read_class_state
from labelahead.server.label_state import build_label_state
from labelahead.tasks import Multilabel, Number, Rating, find_task

ITEMS = ("a", "b", "c", "d")


def open_journal(folder, task, classes=()):
    return Journal(folder, items=ITEMS, fingerprint="f", task=task, classes=classes)


def test_read_gives_codes_in_order_and_enters_nothing():
    book = SessionTask()
    book.start(json.dumps(describe_settings(Multilabel(["x"]))))
    for name in ("cat", "dog"):
        book.add_class(name)
    assert book.read(["dog", "cat"]) == (0, "cat;dog")
    assert book.read([]) == (0, "[]")
    book.enter("[]")
    assert book.read("dog;cat") == (1, "cat;dog")
    assert (book.write(0), book.name, book.has_codes) == ("[]", "multilabel", True)
    with pytest.raises(InputError, match="expected one of cat, dog"):
        book.read(["fox"])


@pytest.mark.parametrize(
    ("task", "classes", "answers", "texts"),
    [
        (
            Multilabel(["cat", "dog"]),
            ["cat", "dog"],
            [["dog"], [], "dog;cat"],
            ["dog", "[]", "cat;dog"],
        ),
        (Number(unit="kg", limits=(0, 9)), [], [1.5, "3 kg", 0], ["1.5", "3", "0"]),
        (Number(["x", "y"]), [], [[1, None], "2;3", {"y": 4}], ["1;?", "2;3", "?;4"]),
        (Rating(3), ["1", "2", "3"], ["3", 1, "2.0"], ["3", "1", "2"]),
    ],
)
def test_journal_restores_answers_of_a_task_from_its_events(
    tmp_path, task, classes, answers, texts
):
    with open_journal(tmp_path, task, classes) as journal:
        for position, value in enumerate(answers):
            journal.add_event("label", "anna", position, value=value, key=str(position))
        again = journal.add_event("label", "anna", 0, value=answers[0], key="0")
        assert again.position == 0
        state = journal.label_state
        assert [state.name_label(state.labels[p]) for p in range(3)] == texts
        journal.undo_answer("anna")
    with open_journal(
        tmp_path,
        find_task(
            **describe_settings(task) | ({"classes": classes} if task.name == "multilabel" else {})
        ),
        classes,
    ) as journal:
        restored = journal.label_state
        assert [restored.name_label(restored.labels[p]) for p in range(2)] == texts[:2]
        assert 2 not in restored.labels
        assert build_label_state(journal.read_events()) == restored
        assert journal.add_event("label", "anna", 3, value=answers[2]).label == state.labels[2]
        settle = journal.add_event("settle", "ben", 0, value=answers[1])
        assert settle.label == restored.labels[1]
    assert read_class_state(tmp_path).classes == tuple(classes)


def test_class_that_is_added_keeps_codes_and_says_nothing_of_earlier_answers(tmp_path):
    with open_journal(tmp_path, Multilabel(["cat", "dog"]), ["cat", "dog"]) as journal:
        first = journal.add_event("label", "anna", 0, value=["cat"])
        before = journal.label_state.task
        journal.add_class("anna", "fox")
        second = journal.add_event("label", "anna", 1, value=["cat"])
        state = journal.label_state
        assert (first.label, second.label) == (0, 1)
        assert [state.name_label(c) for c in (0, 1)] == ["cat;?fox", "cat"]
        assert before.outputs == ("cat", "dog")  # models of it stay as they are
        assert before.write(0) == "cat"
    with open_journal(tmp_path, Multilabel(["cat", "dog"]), ["cat", "dog"]) as journal:
        restored = journal.label_state
        assert restored.task.outputs == ("cat", "dog", "fox")
        assert [restored.name_label(c) for c in (0, 1)] == ["cat;?fox", "cat"]
        with pytest.raises(InputError, match="cannot be renamed"):
            journal.change_class("anna", "rename", 0, "lion")
        with pytest.raises(InputError, match="has no confirm"):
            journal.confirm_items("anna", [2], 0)


def test_journal_of_another_task_is_refused(tmp_path):
    open_journal(tmp_path / "a", Number(unit="kg")).close()
    with pytest.raises(InputError, match=r"of the task number .*kg.*, not classes"):
        open_journal(tmp_path / "a", None, ["cat", "dog"])
    with pytest.raises(InputError, match=r"not number .*unit m"):
        open_journal(tmp_path / "a", Number(unit="m"))
    open_journal(tmp_path / "b", None, ["cat", "dog"]).close()
    with pytest.raises(InputError, match="of the task classes, not multilabel"):
        open_journal(tmp_path / "b", Multilabel(["cat", "dog"]), ["cat", "dog"])


def test_levels_of_a_rating_are_fixed(tmp_path):
    with open_journal(tmp_path, Rating(["bad", "good"]), ["bad", "good"]) as journal:
        with pytest.raises(InputError, match="a rating are fixed"):
            journal.add_class("anna", "best")
        with pytest.raises(InputError, match="expected one of bad, good"):
            journal.add_event("label", "anna", 0, value="best")
        assert journal.add_event("label", "anna", 0, 1).label == 1  # by its number
