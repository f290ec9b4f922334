"""The routes of the gallery."""

from tests.server.test_confirm import EXACT, NAMES, label_and_wait, post, undo, write_clusters
from tests.support.web_answers import answer
from tests.support.web_sessions import page


def test_bulk_labels_are_confirmations_and_undone_as_one(tmp_path):
    options = {"tables": EXACT, "start": True, "classes": NAMES}
    with page(write_clusters(tmp_path / "x.npz"), tmp_path / "out", **options) as (client, session):
        before = label_and_wait(client)["labels"]
        view = client.get("/api/gallery?status=unlabelled&predicted=1&order=most-certain").json()
        found = client.get(f"/api/gallery/{view['view']}/positions").json()["positions"]
        assert len(found) == view["total"] > 5
        answer(client, found[0], 2, who="anna")  # labelled meanwhile
        body = {"positions": found, "label": 1, "key": "k"}
        for _ in range(2):  # sent twice, recorded once
            reply = post(client, "/api/gallery/labels", body)
            assert reply["confirmed"] == found[1:]
        state = session.service.label_state
        assert state.confirmed == set(found[1:])
        assert state.labels[found[0]] == 2
        assert undo(client)["undone"]["together"] == len(found) - 1
        assert client.get("/api/progress").json()["labels"] == before + 1


def test_bulk_labels_replace_other_labels_on_request(tmp_path):
    options = {"tables": EXACT, "classes": NAMES}
    with page(write_clusters(tmp_path / "x.npz"), tmp_path / "out", **options) as (client, session):
        answer(client, 0, 0)
        answer(client, 1, 1)
        body = {"positions": [0, 1, 2], "label": 1, "replace": True}
        assert post(client, "/api/gallery/labels", body)["confirmed"] == [0, 2]
        assert session.service.label_state.labels == {0: 1, 1: 1, 2: 1}
        undo(client)
        assert session.service.label_state.labels == {0: 0, 1: 1}


def test_unknown_views_items_and_classes_are_refused(tmp_path):
    options = {"tables": EXACT, "classes": NAMES}
    with page(write_clusters(tmp_path / "x.npz"), tmp_path / "out", **options) as (client, _):
        assert "open it again" in client.get("/api/gallery/nothing").json()["error"]
        assert client.get("/api/gallery/nothing/positions").status_code == 404
        assert client.get("/api/gallery?order=similar&like=9999").status_code == 404
        assert client.get("/api/gallery?label=17").status_code == 404
        assert client.get("/api/gallery?order=newest").status_code == 422
        assert "as like" in client.get("/api/gallery?order=similar").json()["error"]
        body = {"positions": list(range(5001)), "label": 0}
        assert post(client, "/api/gallery/labels", body, status=422)["error"]
