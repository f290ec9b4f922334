"""The folder of an audit: frozen predictions and a durable journal."""

import json

import pytest

from labelahead.audit.folder import Audit, describe_progress
from labelahead.errors import InputError
from tests.support.audits import make_pool


def start(folder, items=200, **more):
    predictions, truth = make_pool(items, 3, seed=0)
    return Audit.start(folder / "a", predictions, source="test", **more), truth


def name_of(audit, truth, position):
    return audit.predictions.classes[truth[position]]


def answer(audit, truth, n):
    positions = audit.list_next(n)
    return audit.record([(p, name_of(audit, truth, p)) for p in positions], "ann")


def test_reopened_audit_goes_on_where_it_was(tmp_path):
    audit, truth = start(tmp_path, seed=5)
    assert answer(audit, truth, 30) == 30
    again = Audit.open(tmp_path / "a")
    assert again.list_answers() == audit.list_answers()
    assert again.list_next(10) == audit.list_next(10)
    assert again.estimate_accuracy() == audit.estimate_accuracy()
    assert again.plan.order.tolist() == audit.plan.order.tolist()


def test_answers_behind_an_unanswered_item_wait(tmp_path):
    audit, truth = start(tmp_path)
    first, *rest = audit.list_next(5)
    audit.record([(p, name_of(audit, truth, p)) for p in rest], "ann")
    assert (len(audit.list_answers()), audit.count_waiting()) == (0, 4)
    audit.record([(first, name_of(audit, truth, first))], "ann")
    assert (len(audit.list_answers()), audit.count_waiting()) == (5, 0)


def test_later_answer_corrects_the_first(tmp_path):
    audit, _ = start(tmp_path)
    position = audit.list_next(1)[0]
    assert audit.record([(position, "class 0")], "ann") == 1
    assert audit.record([(position, "class 0")], "ann") == 0
    assert audit.record([(position, "class 1")], "bob") == 1
    assert [a.label for a in Audit.open(tmp_path / "a").list_answers()] == ["class 1"]


def test_answers_of_another_process_are_seen(tmp_path):
    audit, truth = start(tmp_path)
    other = Audit.open(tmp_path / "a")
    answer(audit, truth, 3)
    assert len(other.list_answers()) == 3


def test_incomplete_last_line_of_a_killed_program_is_dropped(tmp_path):
    audit, truth = start(tmp_path)
    answer(audit, truth, 3)
    path = tmp_path / "a" / "answers.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind":"answer","posi')
    again = Audit.open(tmp_path / "a")
    assert len(again.list_answers()) == 3
    answer(again, truth, 1)
    assert len(Audit.open(tmp_path / "a").list_answers()) == 4


def test_changed_predictions_are_refused(tmp_path):
    start(tmp_path)
    path = tmp_path / "a" / "predictions.csv"
    path.write_text(path.read_text().replace("class 0", "class 1", 1))
    with pytest.raises(InputError, match="was changed since the audit began"):
        Audit.open(tmp_path / "a")


def test_answers_teach_only_after_the_certificate(tmp_path):
    audit, truth = start(tmp_path)
    answer(audit, truth, 4)
    with pytest.raises(InputError, match="certificate has not been issued"):
        audit.list_lessons()
    audit.mark_issued()
    assert len(audit.list_lessons()) == 4
    audit.mark_taught()
    with pytest.raises(InputError, match="have taught the model"):
        answer(Audit.open(tmp_path / "a"), truth, 1)


def test_settings_are_checked_and_kept(tmp_path):
    with pytest.raises(InputError, match="confidence"):
        start(tmp_path, confidence=95)
    with pytest.raises(InputError, match="target"):
        start(tmp_path, target=2)
    start(tmp_path, confidence=0.9, target=0.05)
    with pytest.raises(InputError, match="holds an audit already"):
        start(tmp_path)
    kept = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert (kept["confidence"], kept["target"]) == (0.9, 0.05)
    with pytest.raises(InputError, match="holds no audit"):
        Audit.open(tmp_path)


def test_progress_is_one_sentence(tmp_path):
    audit, truth = start(tmp_path)
    answer(audit, truth, 40)
    text = describe_progress(audit.estimate_accuracy(), 2)
    assert "(95% confidence) after 40 labels; 2 answers wait for earlier items" in text
