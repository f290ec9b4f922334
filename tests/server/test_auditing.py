"""Audits of a session: frozen predictions, answers that teach only after the certificate."""

import pytest

from labelahead.errors import InputError
from labelahead.server.auditing import (
    PageAudit,
    find_audit,
    freeze_predictions,
    list_audits,
    start_session_audit,
    teach_session,
)
from tests.support.web_sessions import labelled_page


def answer_items(audit, n, who="ann"):
    """Answer n items as the pictures are: even positions are light."""
    for _ in range(n):
        position = audit.next_item(who)["item"]["position"]
        described = audit.record(who, position, position % 2)
    return described


def test_audit_on_the_page_teaches_only_after_the_certificate(tmp_path):
    with labelled_page(tmp_path) as (_, session, _, out):
        service = session.service
        audit = PageAudit(service, session.schedule)
        started = audit.start(confidence=0.95, target=0.02)
        assert (started["items"], started["labels"]) == (10, 0)
        described = answer_items(audit, 4)
        assert described["labels"] == 4
        assert described["accuracy"]["low"] > 0
        assert len(service.label_state.labels) == 10  # the answers are no labels
        with pytest.raises(InputError, match="certificate has not been issued"):
            audit.teach()
        assert audit.issue()["issued"]
        assert (out / "audit-1" / "certificate.html").exists()
        assert audit.teach()["added"] == 4
        assert len(service.label_state.labels) == 14
        assert audit.describe()["running"] is False
        assert audit.read_certificate()[1]["labels"] == 4
        audit.start(confidence=0.95, target=0.02)
        assert [path.name for path in list_audits(out)] == ["audit-1", "audit-2"]
        assert audit.describe()["items"] == 6


def test_audit_continues_in_a_new_server_and_on_the_command_line(tmp_path):
    with labelled_page(tmp_path) as (_, session, _, out):
        first = PageAudit(session.service, session.schedule)
        first.start(confidence=0.9, target=0.05)
        described = answer_items(first, 3)
        second = PageAudit(session.service, session.schedule)
        assert second.describe() == described
        assert find_audit(out).estimate_accuracy().labels == 3


def test_two_people_are_asked_different_items_and_corrections_count(tmp_path):
    with labelled_page(tmp_path) as (_, session, _, _):
        audit = PageAudit(session.service, session.schedule)
        audit.start(confidence=0.95, target=0.02)
        one, other = (audit.next_item(who)["item"]["position"] for who in ("ann", "bob"))
        assert one != other
        assert audit.next_item("ann")["item"]["position"] == one
        wrong = audit.record("ann", one, 1 - one % 2)["wrong"]
        assert audit.record("ann", one, one % 2)["wrong"] != wrong
        with pytest.raises(InputError, match="had a label when the audit began"):
            audit.record("ann", 0, 0)
        with pytest.raises(InputError, match="no class 7"):
            audit.record("ann", other, 7)


def test_frozen_predictions_are_those_of_the_unlabelled_items(tmp_path):
    with labelled_page(tmp_path) as (_, session, _, _):
        frozen = freeze_predictions(session.service, session.schedule)
        assert set(frozen.ids) == set(session.service.items.ids[10:])
        assert frozen.classes == ("light", "dark")
        assert frozen.probabilities.sum(1) == pytest.approx([1] * 10)


def test_session_is_audited_and_taught_without_a_server(tmp_path):
    with labelled_page(tmp_path) as (_, _, _, out):
        pass
    audit = start_session_audit(out, seed=1, confidence=0.95, target=0.02)
    assert len(audit.predictions) == 10
    positions = audit.list_next(5)
    audit.record([(p, audit.predictions.classes[0]) for p in positions], "ann")
    with pytest.raises(InputError, match="certificate has not been issued"):
        teach_session(out, audit)
    audit.mark_issued()
    assert "5 answers of the audit added" in teach_session(out, audit)
    assert find_audit(out) is None
