"""The labelling service: queries, second opinions, doubts, error estimates and recovery."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from labelahead.data.dataset import NONE_OF_THESE
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.server.page_model import PageModel
from labelahead.server.snapshot import TrainingRequest
from labelahead.server.snapshot_builder import build_snapshot
from labelahead.server.snapshot_files import save_snapshot
from tests.support.waiting import PATIENCE
from tests.support.web_answers import answer
from tests.support.web_sessions import CHANGE, page, photo, photos, progress_once


def test_repeated_undo_with_one_key_undoes_one_answer(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out", classes=["a", "b"]) as (client, _):
        for position in (0, 1):
            answer(client, position)
        for _ in range(2):
            reply = client.post("/api/undo", json={"key": "u"}, headers=CHANGE).json()
            assert reply["undone"]["position"] == reply["next"]["position"] == 1
        assert client.get("/api/progress").json()["labels"] == 1


def test_answer_and_undo_take_constant_database_work(tmp_path):
    """Count SQLite statements and virtual-machine steps."""
    np.savez(tmp_path / "set.npz", x=np.random.default_rng(0).normal(size=(500, 3)))

    def count_work(action):
        statements, steps = [], []
        db.set_trace_callback(statements.append)
        db.set_progress_handler(lambda: steps.append(1), 1)
        action()
        db.set_trace_callback(None)
        db.set_progress_handler(None, 0)
        return len(statements), len(steps)

    def answer_query():
        answer(client, client.get("/api/question").json()["position"])

    def undo():
        assert client.post("/api/undo", json={}, headers=CHANGE).json()["undone"]

    with page(tmp_path / "set.npz", tmp_path / "out", classes=["a", "b"]) as (client, session):
        db, costs = session.service.journal._db, []
        for positions in (range(20), range(20, 400)):
            session.service.add_labels([(p, "a", ("me", "anna")[p % 2]) for p in positions])
            answer_query()
            costs.append((count_work(answer_query), count_work(undo)))
        assert costs[0] == costs[1]
        assert costs[0][0][0] < 30


def test_second_opinion_query_hides_the_prediction(tmp_path):
    """The network is fitted to the first label, so its prediction would reveal it."""
    rows = torch.randn((12, 3), generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "threads": 1}
    options = {"tables": tables, "classes": ["a", "b"], "overlap": 0.5}
    with page(tmp_path / "set.npz", tmp_path / "out", **options) as (client, session):
        prepared = prepare_campaign(
            parse_campaign({"data": {"name": str(tmp_path / "set.npz")}, **tables})
        )
        session.service.set_page_model(
            PageModel.from_snapshot(build_snapshot(prepared, TrainingRequest(0, (), 2)), {}, 2)
        )
        for position in range(6):
            answer(client, position, position % 2, who="anna")
        reasons = set()
        for _ in range(12):
            query = client.get("/api/question?fresh=1", headers={"Cookie": "la_who=ben"}).json()
            repeated = client.get("/api/question", headers={"Cookie": "la_who=ben"}).json()
            assert (repeated["reason"], repeated["guess"]) == (query["reason"], query["guess"])
            assert (query["guess"] == []) == (query["reason"] == "second opinion")
            reasons.add(query["reason"])
        assert reasons == {"second opinion", "covers the pool"}
        item = client.get("/api/items/3").json()
        assert (item["position"], len(item["row"])) == (3, 3)
        assert client.get("/api/items/12").status_code == 404


def test_doubts_list_confident_disagreements_until_they_are_kept(tmp_path):
    def train_and_list_doubts(labelled):
        labels = [(p, (p % 2 if p else 1)) for p in range(labelled)]  # the label of item 0 is wrong
        trained = build_snapshot(prepared, TrainingRequest(1, tuple(labels), 2))
        for p, c in labels:
            answer(client, p, c)
        session.service.set_page_model(PageModel.from_snapshot(trained, {}, 2))
        return client.get("/api/doubts").json()

    rows = torch.tensor([[1.0, 0.1 * (p // 2)] if p % 2 else [-1.0, 0.1 * p] for p in range(24)])
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "training": {"steps": 5}, "threads": 1}
    with page(tmp_path / "set.npz", tmp_path / "out", tables=tables, classes="ab") as both:
        client, session = both
        prepared = prepare_campaign(
            parse_campaign({"data": {"name": str(tmp_path / "set.npz")}, **tables})
        )
        none = {"enough": False, "per_class": 5, "doubts": [], "kept": [], "kept_count": 0}
        assert train_and_list_doubts(8) == none
        panel = train_and_list_doubts(20)
        assert panel["enough"]
        assert [(d["position"], d["label"], d["suggested"]) for d in panel["doubts"]] == [(0, 1, 0)]
        first = panel["doubts"][0]
        assert first["output"] - first["output_of_label"] > 0.2
        trained = tuple(session.service.label_state.labels.items())
        save_snapshot(
            build_snapshot(prepared, TrainingRequest(1, trained, 2)),
            tmp_path / "out/snapshot-00001.pt",
        )
        query = client.get("/api/question").json()
        reply = answer(client, 0, 1, "keep", "ben")
        assert (reply["changed"], reply["labels"]) == (None, 20)
        assert client.get("/api/question").json()["position"] == query["position"]
        assert client.get("/api/people").json()["compared"] == 0
    # After a restart the item is listed as kept, not in doubt.
    with page(tmp_path / "set.npz", tmp_path / "out", tables=tables) as (client, session):
        session.schedule.restore()
        panel = client.get("/api/doubts").json()
        assert (panel["enough"], panel["doubts"], panel["kept_count"]) == (True, [], 1)
        kept = panel["kept"][0]
        assert (kept["position"], kept["label"], kept["who"]) == (0, 1, "ben")
        assert kept["at"] == reply["event"]["at"]
        body = {"position": 0, "kind": "keep", "label": 0}
        refused = client.post("/api/answers", json=body, headers=CHANGE)
        assert (refused.status_code, "is not labelled" in refused.text) == (400, True)

        def list_doubted_and_kept():
            panel = client.get("/api/doubts").json()
            assert panel["kept_count"] == len(panel["kept"])
            return [d["position"] for d in panel["doubts"]], [d["position"] for d in panel["kept"]]

        answer(client, 0, None, "doubt", "anna")  # any annotator may doubt it again
        assert list_doubted_and_kept() == ([0], [])
        body = {"position": 0, "kind": "doubt"}
        assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 400
        answer(client, 0, 1, "keep", "ben")
        headers = {**CHANGE, "Cookie": "la_who=ben"}
        undo = client.post("/api/undo", json={}, headers=headers).json()
        assert (undo["undone"]["kind"], undo["next"]["position"] != 0) == ("keep", True)
        assert list_doubted_and_kept() == ([0], [])
        answer(client, 0, 1, "keep", "ben")
        answer(client, 0, 0, who="anna")  # a conflict, resolved by the next answer
        answer(client, 0, 1, who="anna")
        assert list_doubted_and_kept() == ([0], [])


def test_start_refuses_a_journal_that_lacks_labels_of_a_snapshot(tmp_path):
    """labels.db was removed or replaced by an old copy.

    Labels are missing, and class 0 may be another class.
    """
    rows = torch.randn((12, 3), generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "training": {"steps": 5}, "threads": 1}
    prepared = prepare_campaign(
        parse_campaign({"data": {"name": str(tmp_path / "set.npz")}, **tables})
    )
    with page(tmp_path / "set.npz", tmp_path / "out", tables=tables, classes=["a", "b"]) as (
        client,
        session,
    ):
        for position in range(4):
            answer(client, position, position % 2)
        trained = tuple(session.service.label_state.labels.items())
        save_snapshot(
            build_snapshot(prepared, TrainingRequest(1, trained, 2)), tmp_path / "out/snapshot-1.pt"
        )
        (tmp_path / "out/rounds.jsonl").write_text('{"labels": 4, "accuracy": null}\n')
        session.schedule.restore()
        assert session.service.page_model is not None
        assert len(session.schedule.rounds) == 1
    (tmp_path / "out/labels.db").unlink()
    reopened = {"tables": tables, "classes": ["b", "a"]}
    with pytest.raises(
        InputError,
        match=r"0 items, but rounds.jsonl has a training with 4 labels: answers are missing",
    ):
        page(tmp_path / "set.npz", tmp_path / "out", **reopened).__enter__()
    assert not (tmp_path / "out/labels.db").exists()
    (tmp_path / "out/rounds.jsonl").unlink()
    (tmp_path / "out/labels.seq").unlink()
    with page(tmp_path / "set.npz", tmp_path / "out", **reopened) as (client, session):
        answer(client, 0, 1)
        with pytest.raises(
            InputError,
            match=r"no label of 3 items that snapshot-1.pt was trained on: answers are mi",
        ):
            session.schedule.start()
        (tmp_path / "out/snapshot-1.pt").unlink()
        session.schedule.restore()
        assert session.service.page_model is None
        assert session.schedule.rounds == []


def test_add_class_replies_when_the_class_is_removed_concurrently(tmp_path, monkeypatch):
    with page(photos(tmp_path / "set", 8), tmp_path / "out", classes=["a", "b"]) as (
        client,
        session,
    ):
        try_update, removed = session.service._try_update, []

        def remove_the_new_class_first():
            if not removed:  # like a concurrent request between adding and describing the class
                removed.append(2)
                session.service.change_class("ben", "remove", 2, None)
            return try_update()

        monkeypatch.setattr(session.service, "_try_update", remove_the_new_class_first)
        added = client.post("/api/classes", json={"name": "c"}, headers=CHANGE)
        assert (added.status_code, removed) == (200, [2]), added.text
        assert (added.json()["number"], added.json()["name"]) == (2, "c")
        assert [c["name"] for c in client.get("/api/session").json()["classes"]] == ["a", "b"]


def test_restore_continues_when_the_acquisition_function_fails(tmp_path):
    (tmp_path / "own.py").write_text(
        "def mine(view, rng):\n    return view.outputs[:, 0] * float('nan')\n"
    )
    rows = torch.randn((12, 3), generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "training": {"steps": 5}}
    tables["asking"] = {"strategy": f"{tmp_path}/own.py:mine"}
    prepared = prepare_campaign(
        parse_campaign({"data": {"name": str(tmp_path / "set.npz")}, **tables})
    )
    with page(tmp_path / "set.npz", tmp_path / "out", tables=tables, classes=["a", "b"]) as (
        client,
        session,
    ):
        for position in range(4):
            answer(client, position, position % 2)
        trained = tuple(session.service.label_state.labels.items())
        save_snapshot(
            build_snapshot(prepared, TrainingRequest(1, trained, 2)), tmp_path / "out/snapshot-1.pt"
        )
        session.schedule.restore()
        assert session.service.page_model is None
        assert not client.get("/api/question").json()["done"]


WAITING_ACQUISITION = """
import threading

begun, may_end = threading.Event(), threading.Event()

def mine(view, rng):
    begun.set()
    may_end.wait()
    return view.posterior.variance()[view.candidates]
"""


def test_new_model_is_scored_before_it_serves_queries(tmp_path):
    """While the model is scored, queries and answers do not wait for it.

    As soon as it serves queries, each answer updates it before the next query.
    """
    (tmp_path / "own.py").write_text(WAITING_ACQUISITION)
    rows = np.random.default_rng(0).normal(size=(12, 3))
    np.savez(tmp_path / "set.npz", x=rows)
    tables = {"model": {"name": "exact"}, "asking": {"strategy": f"{tmp_path}/own.py:mine"}}
    config = parse_campaign({"data": {"name": str(tmp_path / "set.npz")}, **tables})
    snapshot = build_snapshot(prepare_campaign(config), TrainingRequest(0, (), 2))
    with page(tmp_path / "set.npz", tmp_path / "out", tables=tables, classes="ab") as (
        client,
        session,
    ):
        service, new = session.service, PageModel.from_snapshot(snapshot, {}, 2)
        scoring = new.acquisition.__globals__
        with ThreadPoolExecutor(1) as executor:
            installed = executor.submit(service.set_page_model, new)
            try:
                assert scoring["begun"].wait(PATIENCE)
                assert service.page_model is None
                query = client.get("/api/question").json()
                assert query["reason"] == "random start"
                answer(client, query["position"], 0)
            finally:
                scoring["may_end"].set()
            installed.result()
        assert not service.is_behind
        for count in range(1, 5):
            assert service.page_model.pool_posterior.labels == service.label_state.labels
            assert len(service.label_state.labels) == count
            query = client.get("/api/question?fresh=1").json()
            assert query["reason"] == "covers the pool"
            assert answer(client, query["position"], count % 2)["changed"] is not None


def test_exact_learner_updates_with_every_answer_and_is_restored(tmp_path):
    """From no label on: covers the pool, learns from every answer, is right about what it has not
    seen.
    """
    rng = torch.Generator().manual_seed(0)
    rows = (
        torch.randn(60, 4, generator=rng)
        + torch.tensor([[3.0, 0, 0, 0], [0, 3.0, 0, 0]])[torch.arange(60) % 2]
    )
    path = tmp_path / "rows.npz"
    np.savez(path, x_train=rows.numpy(), y_train=np.arange(60) % 2)
    tables = {"model": {"name": "exact"}}
    with page(
        path, tmp_path / "out", tables=tables, start=True, retrain_every=4, classes=("even", "odd")
    ) as (client, session):
        progress_once(client, lambda p: p["training"]["round"] == 0)
        query = client.get("/api/question").json()
        assert query["reason"] == "covers the pool"
        for rounds in (1, 2):
            for _ in range(4):
                query = answer(client, query["position"], query["position"] % 2)["next"]
            progress = progress_once(
                client, lambda p, rounds=rounds: len(p["curve"]) == rounds and p["training"]["idle"]
            )
        assert progress["labels"] == 8
        assert session.schedule.worker._process is None  # the exact learner needs no worker
        assert 0 <= progress["curve"][-1]["error_rate"] <= 1
        assert [row["labels"] for row in progress["curve"]] == [4, 8]
        pool_posterior = session.service.page_model.pool_posterior
        predicted = dict(
            zip(
                pool_posterior.points.tolist(),
                pool_posterior.predicted_classes.tolist(),
                strict=True,
            )
        )
        assert sum(predicted[p] == p % 2 for p in predicted) >= 0.9 * len(predicted)
        assert client.get(f"/api/why/{query['position']}").json()["if"]
        assert client.get("/api/map").json()["points"]
        weights = pool_posterior.posterior.weights()
    with page(
        path, tmp_path / "out", tables=tables, start=True, retrain_every=4, classes=("even", "odd")
    ) as (client, session):
        progress_once(client, lambda p: p["training"]["round"] and p["training"]["idle"])
        restored = session.service.page_model.pool_posterior  # restored from labels and features
        assert torch.equal(restored.predicted_classes, pool_posterior.predicted_classes)
        assert torch.allclose(restored.posterior.weights(), weights)


def test_large_pool_query_from_a_shortlist_equals_the_full_update(tmp_path):
    """The next query uses the last answer before the pool is updated.

    After the update, the pool gives the same query.
    """
    rng = np.random.default_rng(1)
    truth = np.arange(300) % 3
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(3, 8))[truth] + rng.normal(size=(300, 8)))
    tables = {"model": {"name": "exact"}}
    with page(
        tmp_path / "rows.npz", tmp_path / "out", tables=tables, retrain_every=10**6, classes="abc"
    ) as (client, session):
        service, prepared = (
            session.service,
            prepare_campaign(
                parse_campaign({"data": {"name": str(tmp_path / "rows.npz")}, **tables})
            ),
        )
        service.max_immediate_pairs = 0  # treat every pool as large
        service.set_page_model(
            PageModel.from_snapshot(build_snapshot(prepared, TrainingRequest(0, (), 3)), {}, 3)
        )
        query = service.next_query("me")
        query = answer(client, query["position"], int(truth[query["position"]]))["next"]
        for count in range(1, 13):
            before = service.page_model
            query = answer(client, query["position"], int(truth[query["position"]]))["next"]
            assert service.is_behind
            assert service.page_model is before
            if count == 6:
                continue  # two answers without an update in between
            service.catch_up()
            assert not service.is_behind
            assert service.page_model.pool_posterior.labels == service.label_state.labels
            assert (
                query["position"]
                == service.page_model.choose_best(service.label_state.labels.keys())[0]
            )
            expected = [
                (c, round(p, 4)) for c, p in service.page_model.predict_classes(query["position"])
            ]
            assert [(g["label"], g["p"]) for g in query["guess"]] == expected
        last = query["position"]
        answer(client, last, 0)
        undo = client.post("/api/undo", json={}, headers=CHANGE).json()
        assert undo["next"]["position"] == last
        assert not undo["next"]["guess"]
        service.catch_up()
        assert last not in service.page_model.pool_posterior.labels
        answer(client, last, 1)  # then an earlier label changes
        first = next(iter(service.page_model.pool_posterior.labels))
        answer(client, first, (service.label_state.labels[first] + 1) % 3)
        service.catch_up()
        assert service.page_model.pool_posterior.labels == service.label_state.labels


def test_new_class_is_made_of_items_of_no_class_and_undone(tmp_path):
    tables = {"model": {"name": "exact"}, "data": {"name": "", "size": 16, "embedding": "raw"}}
    source = photos(tmp_path / "set", 24)
    strange = [photo(source / f"z{i}.png", (250, 20 + 5 * i, 20)) for i in range(6)]
    tables["data"]["name"] = str(source)
    with page(
        source,
        tmp_path / "out",
        classes=["light", "dark"],
        tables=tables,
        start=True,
        retrain_every=4,
    ) as (client, session):
        none = client.get("/api/session").json()["none_of_these"]
        assert none == {"number": NONE_OF_THESE, "name": "none of these", "key": "0"}
        for position in range(10):
            answer(client, position, position % 2)
        for position in (24, 25, 26):
            answer(client, position, NONE_OF_THESE)
        progress_once(client, lambda p: p["training"]["idle"] and p["training"]["labels_at_last"])
        progress = client.get("/api/progress").json()
        assert (progress["labels"], progress["none_of_these"]) == (13, 3)
        assert sum(progress["per_class"]) == 10
        found = client.get("/api/none-of-these").json()
        assert [item["position"] for item in found["items"]] == [26, 25, 24]
        similar = [item["position"] for item in found["similar"]]
        assert set(similar) <= set(range(24, 24 + len(strange)))
        assert similar
        why = client.get(f"/api/why/{similar[0]}").json()
        assert NONE_OF_THESE in {row["label"] for row in why["because"] + why["against"]}
        body = {"name": "red", "positions": [24, 25, 26, *similar], "key": "k"}
        made = client.post("/api/classes", json=body, headers=CHANGE).json()
        assert made == client.post("/api/classes", json=body, headers=CHANGE).json()
        assert made["confirmed"] == [24, 25, 26, *similar]
        state = session.service.label_state
        assert {state.labels[p] for p in made["confirmed"]} == {made["number"]}
        assert client.get("/api/none-of-these").json()["count"] == 0
        taken = client.post("/api/undo", json={"seq": None}, headers=CHANGE).json()["undone"]
        assert taken["together"] == len(made["confirmed"])
        assert session.service.label_state.none_of_these == (24, 25, 26)
        wrong = client.post(
            "/api/classes", json={"name": "blue", "positions": [99]}, headers=CHANGE
        )
        assert wrong.status_code == 409
        assert "blue" not in session.service.label_state.classes


def test_key_of_none_of_these_is_free(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out", classes=["0", "1"]) as (client, _):
        assert client.get("/api/session").json()["none_of_these"]["key"] == ";"
