"""Confirming predictions in bulk, and changing classes during a session."""

import json
import os
import random
import signal
import time
from collections import Counter

import numpy as np
import pytest
import torch

from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.server.fitting import build_exported_model
from labelahead.server.journal import Journal
from labelahead.server.session import SessionOptions, open_session
from tests.support.web_answers import answer
from tests.support.web_sessions import CHANGE, page, photos, progress_once

EXACT = {"model": {"name": "exact"}}
NAMES = ("left", "right", "up")


def write_clusters(path, n=90):
    """Write rows of three clusters to `path`: item i is of class i mod 3."""
    rng = torch.Generator().manual_seed(0)
    centre = torch.tensor([[4.0, 0, 0], [0, 4.0, 0], [0, 0, 4.0]])[torch.arange(n) % 3]
    np.savez(path, x=(torch.randn(n, 3, generator=rng) * 0.5 + centre).numpy())
    return path


def label_and_wait(client, count=12):
    progress_once(client, lambda p: p["training"]["round"] == 0 and p["training"]["idle"])
    query = client.get("/api/question").json()
    for _ in range(count):
        query = answer(client, query["position"], query["position"] % 3)["next"]
    return progress_once(client, lambda p: p["training"]["round"] and p["training"]["idle"])


def post(client, path, body, who="me", status=200):
    reply = client.post(path, json=body, headers={**CHANGE, "Cookie": f"la_who={who}"})
    assert reply.status_code == status, reply.text
    return reply.json()


def undo(client, **body):
    return post(client, "/api/undo", body)


def test_confirmed_grid_is_undone_as_one(tmp_path):
    with page(
        write_clusters(tmp_path / "x.npz"),
        tmp_path / "out",
        tables=EXACT,
        start=True,
        classes=NAMES,
    ) as (client, session):
        assert client.get("/api/confirmations").json() == {"label": None, "items": [], "sure": []}
        before = label_and_wait(client)["labels"]
        grid = client.get("/api/confirmations?n=8").json()
        positions = [item["position"] for item in grid["items"]]
        assert len(positions) == 8
        assert {p % 3 for p in positions} == {grid["label"]}
        assert all(item["p"] >= 0.8 for item in grid["items"])
        assert [item["p"] for item in grid["items"]] == sorted(
            (item["p"] for item in grid["items"]), reverse=True
        )
        other = next(row["label"] for row in grid["sure"] if row["label"] != grid["label"])
        assert client.get(f"/api/confirmations?label={other}").json()["label"] == other
        answer(client, positions[0], grid["label"], who="anna")  # labelled meanwhile
        body = {"positions": positions, "label": grid["label"], "key": "k"}
        for _ in range(2):  # sent twice, recorded once
            reply = post(client, "/api/confirmations", body)
            assert (reply["confirmed"], reply["labels"]) == (positions[1:], before + 8)
        assert post(client, "/api/confirmations", {**body, "positions": positions[3:]}, status=400)[
            "error"
        ]
        label_state = session.service.label_state
        assert label_state.confirmed == set(positions[1:])
        kinds = [e.kind for e in session.service.journal.read_events()]
        assert kinds.count("confirm") == 7
        rows = {row["position"]: row["kind"] for row in client.get("/api/history?n=100").json()}
        assert {rows[p] for p in positions[1:]} == {"confirm"}
        assert not set(positions) & {
            i["position"] for i in client.get("/api/confirmations?n=100").json()["items"]
        }
        undone = undo(client)
        assert (undone["undone"]["kind"], undone["undone"]["together"]) == ("confirm", 7)
        assert session.service.label_state.labels.keys() >= {positions[0]}
        assert not session.service.label_state.labels.keys() & set(positions[1:])
        assert client.get("/api/progress").json()["labels"] == before + 1
        repeated = post(client, "/api/confirmations", {**body, "key": None})
        confirmation = max(
            e.seq
            for e in session.service.journal.read_events()
            if e.kind == "confirm" and e.position == positions[5]
        )
        assert undo(client, seq=confirmation)["undone"]["together"] == 1  # one item only
        assert len(repeated["confirmed"]) == 7
        assert session.service.label_state.confirmed == set(positions[1:]) - {positions[5]}
        assert post(client, "/api/confirmations", {"positions": [10**6], "label": 0}, status=400)[
            "error"
        ]
        assert post(client, "/api/confirmations", {"positions": positions, "label": 7}, status=400)[
            "error"
        ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")
def test_kill_during_confirmations_leaves_whole_grids(tmp_path):
    rng, items = random.Random(3), [f"{i}.png" for i in range(24 * 8)]

    def confirm_until_killed():
        with Journal(tmp_path, items=items, fingerprint="f", classes=NAMES) as journal:
            journal.label_state  # noqa: B018 (reads the file)
            os.write(ready_write, b".")
            for turn in range(10**6):
                first = 24 * (turn % 8)
                journal.confirm_items("anna", range(first, first + 24), turn % 3)
                journal.undo_answer("anna")

    for _ in range(12):
        ready_read, ready_write = os.pipe()
        child = os.fork()
        if not child:
            try:
                confirm_until_killed()
            finally:
                os._exit(1)
        os.read(ready_read, 1)
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready_read)
        os.close(ready_write)
        with Journal(tmp_path, items=items, fingerprint="f", classes=NAMES) as journal:
            events = journal.read_events()
            assert set(Counter(e.ref for e in events if e.kind == "confirm").values()) <= {24}
            assert sum(e.kind == "undo" for e in events) % 24 == 0
            assert len(journal.label_state.labels) in (0, 24)
            journal.undo_answer("anna")
    assert len(events) > 48


def test_random_sample_excludes_confirmed_items(tmp_path):
    with page(
        write_clusters(tmp_path / "x.npz"), tmp_path / "out", tables=EXACT, classes=NAMES
    ) as (_, session):
        service = session.service
        order = service._random_order
        for p in order[:30]:
            service.journal.add_event("label", "me", p, p % 3)
        assert service.find_random_sample(service.label_state) == tuple(order[:30])
        service.journal.undo_answer("me", service.label_state.find_deciding_answer(order[25]).seq)
        service.journal.confirm_items("me", [order[25]], order[25] % 3)
        assert service.find_random_sample(service.label_state) == tuple(order[:25])
        service.journal.confirm_items("me", order[30:60], 0)
        assert service.find_random_sample(service.label_state) == tuple(order[:25])


def test_class_changes_update_labels_and_predictions_and_can_be_undone(tmp_path):
    out = tmp_path / "out"
    with page(write_clusters(tmp_path / "x.npz"), out, tables=EXACT, start=True, classes=NAMES) as (
        client,
        session,
    ):
        label_and_wait(client)
        labels = dict(session.service.label_state.labels)

        def change(number, kind, name=None, status=200):
            return post(
                client, f"/api/classes/{number}", {"kind": kind, "name": name}, status=status
            )

        def predicted_classes():
            pool_posterior = session.service.page_model.pool_posterior
            return dict(
                zip(
                    pool_posterior.points.tolist(),
                    pool_posterior.predicted_classes.tolist(),
                    strict=True,
                )
            )

        before = predicted_classes()
        assert [c["name"] for c in change(0, "rename", "LEFT hand")["classes"]] == [
            "LEFT hand",
            "right",
            "up",
        ]
        assert "already" in change(0, "rename", "Up", 400)["error"]
        for _ in range(2):  # sent twice, recorded once
            reply = post(client, "/api/classes/2", {"kind": "rename", "name": "UP", "key": "k"})
        assert reply["event"]["seq"] == session.service.label_state.seq
        for other in (
            {"kind": "remove", "key": "k"},
            {"kind": "rename", "name": "down", "key": "k"},
        ):
            assert (
                "expected a new key" in post(client, "/api/classes/2", other, status=400)["error"]
            )
        undo(client)
        merged = change(2, "merge", "right")
        assert [c["number"] for c in merged["classes"]] == [0, 1]
        assert merged["labels"] == len(labels)
        assert session.service.label_state.labels == {p: min(c, 1) for p, c in labels.items()}
        after = predicted_classes()
        assert sum(after[p] == min(p % 3, 1) for p in after) >= 0.95 * len(after)
        assert "was removed or merged" in change(2, "rename", "again", 400)["error"]
        assert "at least 2 classes must remain" in change(0, "remove", status=400)["error"]
        assert (
            "was removed or merged"
            in post(
                client, "/api/answers", {"position": 80, "kind": "label", "label": 2}, status=400
            )["error"]
        )
        rows = client.get("/api/export/jsonl?rest=1").text.splitlines()
        assert {json.loads(row)["label"] or json.loads(row)["prediction"] for row in rows} == {
            "LEFT hand",
            "right",
        }
        progress_once(client, lambda p: p["training"]["idle"])
        model = build_exported_model(session.service, session.schedule)
        assert model.about["labels"].keys() == {"LEFT hand", "right"}
        assert undo(client)["undone"]["kind"] == "merge"
        assert session.service.label_state.labels == labels
        progress_once(client, lambda p: p["training"]["idle"])
        assert predicted_classes() == before
        removed = change(2, "remove")
        unlabelled = {p for p, c in labels.items() if c == 2}
        assert removed["labels"] == len(labels) - len(unlabelled)
        assert 2 not in predicted_classes().values()
        assert (
            not unlabelled & session.service.label_state.answered_positions["me"]
        )  # they can be queried again
        queried = {client.get("/api/question?fresh=1").json()["position"] for _ in range(3)}
        assert queried - labels.keys() or queried <= unlabelled
        progress_once(client, lambda p: p["training"]["idle"])
        assert 2 not in predicted_classes().values()
    # The same command again brings no removed or renamed class back.
    with page(write_clusters(tmp_path / "x.npz"), out, tables=EXACT, start=True, classes=NAMES) as (
        client,
        session,
    ):
        assert [c["name"] for c in client.get("/api/session").json()["classes"]] == [
            "LEFT hand",
            "right",
        ]
        progress_once(client, lambda p: p["training"]["idle"] and p["training"]["in_play"])
        pool_posterior = session.service.page_model.pool_posterior
        assert 2 not in pool_posterior.predicted_classes.tolist()
        (tmp_path / "old.csv").write_text("item,label\n70,left\n")
        text = (tmp_path / "old.csv").read_bytes()
        client.post("/api/import?form=csv", content=text, headers=CHANGE)
        assert session.service.label_state.labels[70] == 0  # an earlier name of the class
        assert [undo(client)["undone"]["kind"] for _ in range(2)] == ["remove", "rename"]
        assert [c["name"] for c in client.get("/api/session").json()["classes"]] == list(NAMES)


def test_removed_class_is_never_predicted_by_an_older_network(tmp_path):
    """Until the next training, the removed class's outputs are shared among the other classes."""
    tables = {"training": {"steps": 60}}
    with page(
        photos(tmp_path / "set", 20),
        tmp_path / "out",
        start=True,
        retrain_every=6,
        tables=tables,
        classes=NAMES,
    ) as (client, session):
        for p in range(6):
            answer(client, p, p % 3)
        progress_once(client, lambda p: p["training"]["round"] == 1 and p["training"]["idle"])
        page_model = session.service.page_model
        assert page_model.snapshot.outputs[:, 2].max() > 0
        post(client, "/api/classes/2", {"kind": "remove"})
        start = session.service.page_model.pool_posterior.start.mean
        assert float(start[:, 2].abs().max()) == 0
        assert torch.allclose(start.sum(1), page_model.snapshot.outputs.sum(1).to(start))
        assert (
            float(session.service.page_model.pool_posterior.posterior.mean[:, 2].abs().max()) == 0
        )
        assert 2 not in session.service.page_model.pool_posterior.predicted_classes.tolist()


def test_duplicate_class_names_are_refused_before_a_folder_is_made(tmp_path):
    for names in (["cat", "cat"], ["cat", "Cat"]):
        session = open_session(
            make_campaign(tmp_path), tmp_path / "out", SessionOptions(classes=names)
        )
        with pytest.raises(InputError, match="expected every class once"), session:
            pass
        assert not (tmp_path / "out").exists()  # refused before a folder is made


def make_campaign(folder):
    return parse_campaign({"data": {"name": str(write_clusters(folder / "x.npz"))}})
