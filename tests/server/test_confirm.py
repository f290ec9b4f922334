"""Many items confirmed at once, and classes that change: what the page makes of it."""

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
from labelahead.server.session import open_session
from tests.server.test_service import answer
from tests.support.web_sessions import CHANGE, page, photos, progress_once

EXACT = {"model": {"name": "exact"}}
NAMES = ("left", "right", "up")


def clouds(path, n=90):
    """Three clouds, as rows: item i is of class i mod 3."""
    rng = torch.Generator().manual_seed(0)
    middle = torch.tensor([[4.0, 0, 0], [0, 4.0, 0], [0, 0, 4.0]])[torch.arange(n) % 3]
    np.savez(path, x=(torch.randn(n, 3, generator=rng) * 0.5 + middle).numpy())
    return path


def taught(client, count=12):
    progress_once(client, lambda p: p["training"]["round"] == 0 and p["training"]["idle"])
    asked = client.get("/api/question").json()
    for _ in range(count):
        asked = answer(client, asked["position"], asked["position"] % 3)["next"]
    return progress_once(client, lambda p: p["training"]["round"] and p["training"]["idle"])


def post(client, path, body, who="me", status=200):
    reply = client.post(path, json=body, headers={**CHANGE, "Cookie": f"la_who={who}"})
    assert reply.status_code == status, reply.text
    return reply.json()


def undo(client, **body):
    return post(client, "/api/undo", body)


def test_a_grid_is_confirmed_and_undone_as_one(tmp_path):
    with page(
        clouds(tmp_path / "x.npz"), tmp_path / "out", tables=EXACT, start=True, classes=NAMES
    ) as (client, session):
        assert client.get("/api/confirmations").json() == {"label": None, "items": [], "sure": []}
        before = taught(client)["labels"]
        grid = client.get("/api/confirmations?n=8").json()
        at = [item["position"] for item in grid["items"]]
        assert len(at) == 8
        assert {p % 3 for p in at} == {grid["label"]}
        assert all(item["p"] >= 0.8 for item in grid["items"])
        assert [item["p"] for item in grid["items"]] == sorted(
            (item["p"] for item in grid["items"]), reverse=True
        )
        other = next(row["label"] for row in grid["sure"] if row["label"] != grid["label"])
        assert client.get(f"/api/confirmations?label={other}").json()["label"] == other
        answer(client, at[0], grid["label"], who="anna")  # somebody was faster
        body = {"positions": at, "label": grid["label"], "key": "k"}
        for _ in range(2):  # sent twice, recorded once
            done = post(client, "/api/confirmations", body)
            assert (done["confirmed"], done["labels"]) == (at[1:], before + 8)
        assert post(client, "/api/confirmations", {**body, "positions": at[3:]}, status=400)[
            "error"
        ]
        label_state = session.service.label_state
        assert label_state.confirmed == set(at[1:])
        kinds = [e.kind for e in session.service.journal.read_events()]
        assert kinds.count("confirm") == 7
        rows = {row["position"]: row["kind"] for row in client.get("/api/history?n=100").json()}
        assert {rows[p] for p in at[1:]} == {"confirm"}
        assert not set(at) & {
            i["position"] for i in client.get("/api/confirmations?n=100").json()["items"]
        }
        taken = undo(client)
        assert (taken["undone"]["kind"], taken["undone"]["together"]) == ("confirm", 7)
        assert session.service.label_state.labels.keys() >= {at[0]}
        assert not session.service.label_state.labels.keys() & set(at[1:])
        assert client.get("/api/progress").json()["labels"] == before + 1
        again = post(client, "/api/confirmations", {**body, "key": None})
        one = max(
            e.seq
            for e in session.service.journal.read_events()
            if e.kind == "confirm" and e.position == at[5]
        )
        assert undo(client, seq=one)["undone"]["together"] == 1  # one of them alone, by its number
        assert len(again["confirmed"]) == 7
        assert session.service.label_state.confirmed == set(at[1:]) - {at[5]}
        assert post(client, "/api/confirmations", {"positions": [10**6], "label": 0}, status=400)[
            "error"
        ]
        assert post(client, "/api/confirmations", {"positions": at, "label": 7}, status=400)[
            "error"
        ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")
def test_a_killed_writer_leaves_whole_grids(tmp_path):
    rng, items = random.Random(3), [f"{i}.png" for i in range(24 * 8)]

    def work():
        with Journal(tmp_path, items=items, fingerprint="f", classes=NAMES) as journal:
            journal.label_state  # noqa: B018 (reads the file)
            os.write(ready, b".")
            for turn in range(10**6):
                first = 24 * (turn % 8)
                journal.confirm_items("anna", range(first, first + 24), turn % 3)
                journal.undo_answer("anna")

    for _ in range(12):
        begun, ready = os.pipe()
        child = os.fork()
        if not child:
            try:
                work()
            finally:
                os._exit(1)
        os.read(begun, 1)
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(begun)
        os.close(ready)
        with Journal(tmp_path, items=items, fingerprint="f", classes=NAMES) as journal:
            events = journal.read_events()
            assert set(Counter(e.ref for e in events if e.kind == "confirm").values()) <= {24}
            assert sum(e.kind == "undo" for e in events) % 24 == 0
            assert len(journal.label_state.labels) in (0, 24)
            journal.undo_answer("anna")
    assert len(events) > 48


def test_what_was_confirmed_is_no_random_sample(tmp_path):
    with page(clouds(tmp_path / "x.npz"), tmp_path / "out", tables=EXACT, classes=NAMES) as (
        _,
        session,
    ):
        page_ = session.service
        order = page_._random_order
        for p in order[:30]:
            page_.journal.add_event("label", "me", p, p % 3)
        assert page_.find_random_sample(page_.label_state) == tuple(order[:30])
        page_.journal.undo_answer("me", page_.label_state.find_deciding_answer(order[25]).seq)
        page_.journal.confirm_items("me", [order[25]], order[25] % 3)
        assert page_.find_random_sample(page_.label_state) == tuple(order[:25])
        page_.journal.confirm_items("me", order[30:60], 0)
        assert page_.find_random_sample(page_.label_state) == tuple(order[:25])


def test_classes_are_renamed_merged_removed_and_brought_back(tmp_path):
    out = tmp_path / "out"
    with page(clouds(tmp_path / "x.npz"), out, tables=EXACT, start=True, classes=NAMES) as (
        client,
        session,
    ):
        taught(client)
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
            done = post(client, "/api/classes/2", {"kind": "rename", "name": "UP", "key": "k"})
        assert done["event"]["seq"] == session.service.label_state.seq
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
        now = predicted_classes()
        assert sum(now[p] == min(p % 3, 1) for p in now) >= 0.95 * len(now)
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
        gone = {p for p, c in labels.items() if c == 2}
        assert removed["labels"] == len(labels) - len(gone)
        assert 2 not in predicted_classes().values()
        assert (
            not gone & session.service.label_state.answered_positions["me"]
        )  # they are asked about again
        asked = {client.get("/api/question?fresh=1").json()["position"] for _ in range(3)}
        assert asked - labels.keys() or asked <= gone
        progress_once(client, lambda p: p["training"]["idle"])
        assert 2 not in predicted_classes().values()
    # The same command again brings no removed or renamed class back.
    with page(clouds(tmp_path / "x.npz"), out, tables=EXACT, start=True, classes=NAMES) as (
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
        assert session.service.label_state.labels[70] == 0  # a name that the class had before
        assert [undo(client)["undone"]["kind"] for _ in range(2)] == ["remove", "rename"]
        assert [c["name"] for c in client.get("/api/session").json()["classes"]] == list(NAMES)


def test_a_network_trained_before_a_class_was_removed_never_guesses_it(tmp_path):
    """Until the next training its outputs for that class are the other classes'."""
    tables = {"training": {"steps": 60}}
    with page(
        photos(tmp_path / "set", 20),
        tmp_path / "out",
        start=True,
        every=6,
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


def test_a_class_is_named_once(tmp_path):
    for names in (["cat", "cat"], ["cat", "Cat"]):
        asked = open_session(_campaign(tmp_path), tmp_path / "out", classes=names)
        with pytest.raises(InputError, match="expected every class once"), asked:
            pass
        assert not (tmp_path / "out").exists()  # said before anything is made


def _campaign(folder):
    return parse_campaign({"data": {"name": str(clouds(folder / "x.npz"))}})
