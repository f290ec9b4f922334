"""The queue of labels to review, and the time that annotators take."""

import pytest

from labelahead.server.label_state import Event
from labelahead.server.review_queue import list_review_queue, measure_item_seconds
from tests.server.test_confirm import EXACT, NAMES, write_clusters
from tests.support.web_answers import answer
from tests.support.web_sessions import page


@pytest.fixture
def reviewed(tmp_path):
    """A session in which anna labelled 60 items and ben disagrees on the first."""
    options = {"tables": EXACT, "classes": NAMES}
    with page(write_clusters(tmp_path / "x.npz"), tmp_path / "out", **options) as (client, session):
        for position in range(60):
            answer(client, position, position % 3, who="anna")
        answer(client, 0, 1, who="ben")
        yield client, session.service


def test_disagreement_comes_first_and_random_share_is_a_fixed_sample(reviewed):
    _, service = reviewed
    found = list_review_queue(service, "carl", n=100, share=0.3)
    assert (found["items"][0]["position"], found["items"][0]["reason"]) == (0, "disagreement")
    drawn = [item["position"] for item in found["items"] if item["reason"] == "random check"]
    assert 8 <= len(drawn) <= 28  # 0.3 of 60, within three standard deviations
    fewer = list_review_queue(service, "carl", n=100, share=0.1)["items"][1:]
    assert [item["position"] for item in fewer] == drawn[: len(fewer)]
    assert found["counts"] == {"disagreement": 1, "random check": len(drawn)}
    assert list_review_queue(service, "anna", n=100, share=0.3)["counts"] == {"disagreement": 1}


def test_accepted_and_corrected_labels_leave_the_queue_and_are_in_the_journal(reviewed):
    client, service = reviewed
    found = client.get("/api/review?share=0.3", headers={"Cookie": "la_who=carl"}).json()["items"]
    accepted, corrected = found[1], found[2]
    answer(client, accepted["position"], accepted["label"], kind="keep", who="carl")
    answer(client, corrected["position"], (corrected["label"] + 1) % 3, kind="settle", who="carl")
    rest = {item["position"] for item in list_review_queue(service, "carl", 100, 0.3)["items"]}
    assert not rest & {accepted["position"], corrected["position"]}
    state = service.label_state
    assert state.labels[corrected["position"]] == (corrected["label"] + 1) % 3
    events = [(e.who, e.kind) for e in service.journal.read_events()]
    assert events[-2:] == [("carl", "keep"), ("carl", "settle")]


def test_time_per_item_is_the_median_gap_without_pauses_and_bulk_labels():
    def make(seq, who, second, kind="label"):
        minute, second = divmod(second, 60)
        return Event(seq, f"2026-01-01T00:{minute:02d}:{second:02d}.000+00:00", who, kind, seq, 0)

    answers = [make(i, "anna", at) for i, at in enumerate((0, 2, 6, 9, 1000))]
    answers += [make(10, "ben", 5), make(11, "ben", 6, "confirm"), make(12, "ben", 15)]
    assert measure_item_seconds(answers) == {"anna": 3.0, "ben": 10.0}
    assert measure_item_seconds(answers[:1]) == {}


def test_people_are_listed_with_their_time_per_item(reviewed):
    client, _ = reviewed
    people = {row["who"]: row for row in client.get("/api/people").json()["people"]}
    assert people["anna"]["seconds"] is None or people["anna"]["seconds"] >= 0
    assert people["ben"]["seconds"] is None  # one answer
