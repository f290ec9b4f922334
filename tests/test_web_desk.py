"""What people are asked and shown: second opinions, doubts, and what survives a mishap."""

import time

import numpy as np
import torch

from labelahead.config import parse
from labelahead.prepare import prepare
from labelahead.web.mind import Mind, save_snapshot
from labelahead.web.trainer import Order, snapshot
from web_sessions import CHANGE, page, photos


def answer(client, position, label=0, kind="label", who="me"):
    body = {"position": position, "kind": kind, "label": label}
    found = client.post("/api/answers", json=body, headers={**CHANGE, "Cookie": f"la_who={who}"})
    assert found.status_code == 200, found.text
    return found.json()


def test_an_undo_whose_receipt_was_lost_takes_back_one_answer(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out", classes=["a", "b"]) as (client, _):
        for position in (0, 1):
            answer(client, position)
        for _ in range(2):
            found = client.post("/api/undo", json={"key": "u"}, headers=CHANGE).json()
            assert found["undone"]["position"] == found["next"]["position"] == 1
        assert client.get("/api/progress").json()["labels"] == 1


def test_a_second_opinion_has_not_seen_the_first(tmp_path):
    """The network has learnt the first label, so its guess would give it away."""
    rows = torch.randn((12, 3), generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "threads": 1}
    more = {"tables": tables, "classes": ["a", "b"], "overlap": 0.5}
    with page(tmp_path / "set.npz", tmp_path / "out", **more) as (client, session):
        ready = prepare(parse({"data": {"name": str(tmp_path / "set.npz")}, **tables}))
        session.desk.take(Mind(snapshot(ready, Order(0, (), 2)), 2))
        for position in range(6):
            answer(client, position, position % 2, who="anna")
        reasons = set()
        for _ in range(12):
            asked = client.get("/api/question?fresh=1", headers={"Cookie": "la_who=ben"}).json()
            again = client.get("/api/question", headers={"Cookie": "la_who=ben"}).json()
            assert (again["reason"], again["guess"]) == (asked["reason"], asked["guess"])
            assert (asked["guess"] == []) == (asked["reason"] == "second opinion")
            reasons.add(asked["reason"])
        assert reasons == {"second opinion", "covers the pool"}
        item = client.get("/api/items/3").json()
        assert (item["position"], len(item["row"])) == (3, 3)
        assert client.get("/api/items/12").status_code == 404


def test_doubts_are_clear_ones_and_not_the_first_ones(tmp_path):
    def doubts(labelled):
        labels = [(p, (p % 2 if p else 1)) for p in range(labelled)]  # item 0 is wrong
        found = snapshot(ready, Order(1, tuple(labels), 2))
        for p, c in labels:
            answer(client, p, c)
        session.desk.take(Mind(found, 2))
        return client.get("/api/doubts").json()

    rows = torch.tensor([[1.0, 0.1 * (p // 2)] if p % 2 else [-1.0, 0.1 * p] for p in range(24)])
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "training": {"steps": 5}, "threads": 1}
    with page(tmp_path / "set.npz", tmp_path / "out", tables=tables, classes="ab") as both:
        client, session = both
        ready = prepare(parse({"data": {"name": str(tmp_path / "set.npz")}, **tables}))
        none = {"enough": False, "per_class": 5, "doubts": [], "kept": [], "kept_count": 0}
        assert doubts(8) == none
        found = doubts(20)
        assert found["enough"]
        assert [(d["position"], d["label"], d["suggested"]) for d in found["doubts"]] == [(0, 1, 0)]
        first = found["doubts"][0]
        assert first["output"] - first["output_of_label"] > 0.2
        trained = tuple(session.desk.standing.labels.items())
        save_snapshot(snapshot(ready, Order(1, trained, 2)), tmp_path / "out/snapshot-00001.pt")
        asked = client.get("/api/question").json()
        done = answer(client, 0, 1, "keep", "ben")
        assert (done["changed"], done["labels"]) == (None, 20)
        assert client.get("/api/question").json()["position"] == asked["position"]
        assert client.get("/api/people").json()["compared"] == 0
    # the next day, for everyone: not in doubt, and seen to be kept
    with page(tmp_path / "set.npz", tmp_path / "out", tables=tables) as (client, session):
        session.conductor.remember()
        found = client.get("/api/doubts").json()
        assert (found["enough"], found["doubts"], found["kept_count"]) == (True, [], 1)
        kept = found["kept"][0]
        assert (kept["position"], kept["label"], kept["who"]) == (0, 1, "ben")
        assert kept["at"] == done["event"]["at"]
        body = {"position": 0, "kind": "keep", "label": 0}
        refused = client.post("/api/answers", json=body, headers=CHANGE)
        assert (refused.status_code, "is not labelled" in refused.text) == (400, True)

        def doubted():
            found = client.get("/api/doubts").json()
            assert found["kept_count"] == len(found["kept"])
            return [d["position"] for d in found["doubts"]], [d["position"] for d in found["kept"]]

        answer(client, 0, None, "doubt", "anna")  # anybody may bring it back
        assert doubted() == ([0], [])
        body = {"position": 0, "kind": "doubt"}
        assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 400
        answer(client, 0, 1, "keep", "ben")
        mine = {**CHANGE, "Cookie": "la_who=ben"}
        back = client.post("/api/undo", json={}, headers=mine).json()
        assert (back["undone"]["kind"], back["next"]["position"] != 0) == ("keep", True)
        assert doubted() == ([0], [])
        answer(client, 0, 1, "keep", "ben")
        answer(client, 0, 0, who="anna")  # a conflict; and then she agrees after all
        answer(client, 0, 1, who="anna")
        assert doubted() == ([0], [])


def test_a_snapshot_of_another_record_is_not_used(tmp_path):
    """After labels.db was moved away, class 0 may be another class."""
    rows = torch.randn((12, 3), generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "training": {"steps": 5}, "threads": 1}
    ready = prepare(parse({"data": {"name": str(tmp_path / "set.npz")}, **tables}))
    for moved in (False, True):
        more = {"tables": tables, "classes": ["b", "a"] if moved else ["a", "b"]}
        with page(tmp_path / "set.npz", tmp_path / "out", **more) as (client, session):
            if not moved:
                for position in range(4):
                    answer(client, position, position % 2)
                trained = tuple(session.desk.standing.labels.items())
                save_snapshot(snapshot(ready, Order(1, trained, 2)), tmp_path / "out/snapshot-1.pt")
                (tmp_path / "out/rounds.jsonl").write_text('{"labels": 4, "accuracy": null}\n')
            session.conductor.remember()
            assert (session.desk.mind is None) == moved
            assert (session.conductor.rounds == []) == moved
        (tmp_path / "out/labels.db").unlink()


def test_a_mishap_after_a_training_is_not_the_end_of_training(tmp_path):
    """A file that cannot be written must not end the thread that waits for answers."""

    def told(wanted):
        end = time.monotonic() + 60
        while not wanted(found := client.get("/api/progress").json()):
            assert time.monotonic() < end, found
            time.sleep(0.05)

    data, hindrance = photos(tmp_path / "set", 8), tmp_path / "out/rounds.jsonl"
    more = {"classes": ["a", "b"], "every": 2, "tables": {"training": {"steps": 5}}}
    with page(data, tmp_path / "out", start=True, **more) as (client, _):
        hindrance.mkdir()
        for position in range(4):
            answer(client, position, position % 2)
        told(lambda p: "the last training failed" in p["training"]["message"])
        hindrance.rmdir()
        for position in range(4, 8):
            answer(client, position, position % 2)
        told(lambda p: p["curve"] and p["curve"][-1]["labels"] == 8 and p["training"]["idle"])
