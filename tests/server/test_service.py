"""What people are asked and shown: second opinions, doubts, and what survives a mishap."""

import numpy as np
import pytest
import torch

from labelahead.errors import InputError, StorageError
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.server.page_model import PageModel
from labelahead.server.snapshot import save_snapshot
from labelahead.server.snapshot_builder import build_snapshot
from labelahead.server.worker import TrainingRequest, Worker
from tests.support.web_sessions import CHANGE, page, photos, progress_once


def answer(client, position, label=0, kind="label", who="me"):
    body = {"position": position, "kind": kind, "label": label}
    reply = client.post("/api/answers", json=body, headers={**CHANGE, "Cookie": f"la_who={who}"})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_an_undo_whose_receipt_was_lost_takes_back_one_answer(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out", classes=["a", "b"]) as (client, _):
        for position in (0, 1):
            answer(client, position)
        for _ in range(2):
            reply = client.post("/api/undo", json={"key": "u"}, headers=CHANGE).json()
            assert reply["undone"]["position"] == reply["next"]["position"] == 1
        assert client.get("/api/progress").json()["labels"] == 1


def test_the_work_of_a_click_does_not_grow_with_the_record(tmp_path):
    """In SQLite: statements, and the steps that they take."""
    np.savez(tmp_path / "set.npz", x=np.random.default_rng(0).normal(size=(500, 3)))

    def work(act):
        statements, steps = [], []
        db.set_trace_callback(statements.append)
        db.set_progress_handler(lambda: steps.append(1), 1)
        act()
        db.set_trace_callback(None)
        db.set_progress_handler(None, 0)
        return len(statements), len(steps)

    def click():
        answer(client, client.get("/api/question").json()["position"])

    def undo():
        assert client.post("/api/undo", json={}, headers=CHANGE).json()["undone"]

    with page(tmp_path / "set.npz", tmp_path / "out", classes=["a", "b"]) as (client, session):
        db, costs = session.service.journal._db, []
        for known in (range(20), range(20, 400)):
            session.service.add_labels([(p, "a", ("me", "anna")[p % 2]) for p in known])
            click()
            costs.append((work(click), work(undo)))
        assert costs[0] == costs[1]
        assert costs[0][0][0] < 30


def test_a_second_opinion_has_not_seen_the_first(tmp_path):
    """The network has learnt the first label, so its guess would give it away."""
    rows = torch.randn((12, 3), generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "threads": 1}
    more = {"tables": tables, "classes": ["a", "b"], "overlap": 0.5}
    with page(tmp_path / "set.npz", tmp_path / "out", **more) as (client, session):
        ready = prepare_campaign(
            parse_campaign({"data": {"name": str(tmp_path / "set.npz")}, **tables})
        )
        session.service.set_page_model(
            PageModel.from_snapshot(build_snapshot(ready, TrainingRequest(0, (), 2)), {}, 2)
        )
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
        trained = build_snapshot(ready, TrainingRequest(1, tuple(labels), 2))
        for p, c in labels:
            answer(client, p, c)
        session.service.set_page_model(PageModel.from_snapshot(trained, {}, 2))
        return client.get("/api/doubts").json()

    rows = torch.tensor([[1.0, 0.1 * (p // 2)] if p % 2 else [-1.0, 0.1 * p] for p in range(24)])
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "training": {"steps": 5}, "threads": 1}
    with page(tmp_path / "set.npz", tmp_path / "out", tables=tables, classes="ab") as both:
        client, session = both
        ready = prepare_campaign(
            parse_campaign({"data": {"name": str(tmp_path / "set.npz")}, **tables})
        )
        none = {"enough": False, "per_class": 5, "doubts": [], "kept": [], "kept_count": 0}
        assert doubts(8) == none
        panel = doubts(20)
        assert panel["enough"]
        assert [(d["position"], d["label"], d["suggested"]) for d in panel["doubts"]] == [(0, 1, 0)]
        first = panel["doubts"][0]
        assert first["output"] - first["output_of_label"] > 0.2
        trained = tuple(session.service.label_state.labels.items())
        save_snapshot(
            build_snapshot(ready, TrainingRequest(1, trained, 2)),
            tmp_path / "out/snapshot-00001.pt",
        )
        asked = client.get("/api/question").json()
        done = answer(client, 0, 1, "keep", "ben")
        assert (done["changed"], done["labels"]) == (None, 20)
        assert client.get("/api/question").json()["position"] == asked["position"]
        assert client.get("/api/people").json()["compared"] == 0
    # the next day, for everyone: not in doubt, and seen to be kept
    with page(tmp_path / "set.npz", tmp_path / "out", tables=tables) as (client, session):
        session.schedule.restore()
        panel = client.get("/api/doubts").json()
        assert (panel["enough"], panel["doubts"], panel["kept_count"]) == (True, [], 1)
        kept = panel["kept"][0]
        assert (kept["position"], kept["label"], kept["who"]) == (0, 1, "ben")
        assert kept["at"] == done["event"]["at"]
        body = {"position": 0, "kind": "keep", "label": 0}
        refused = client.post("/api/answers", json=body, headers=CHANGE)
        assert (refused.status_code, "is not labelled" in refused.text) == (400, True)

        def doubted():
            panel = client.get("/api/doubts").json()
            assert panel["kept_count"] == len(panel["kept"])
            return [d["position"] for d in panel["doubts"]], [d["position"] for d in panel["kept"]]

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


@pytest.mark.parametrize("count", [19, 20])
def test_twenty_labels_of_a_random_sample_give_an_unbiased_estimate(tmp_path, count):
    rng = torch.Generator().manual_seed(0)
    np.savez(tmp_path / "set.npz", x=torch.randn((40, 3), generator=rng).numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "training": {"steps": 5}, "threads": 1}
    more = {"tables": tables, "classes": ["a", "b"], "every": count}
    with page(tmp_path / "set.npz", tmp_path / "out", **more) as (client, session):
        sample = []
        while len(sample) < count:
            asked = client.get("/api/question").json()
            assert asked["reason"] == "random start"
            if len(sample) == 3:  # passed over
                answer(client, asked["position"], None, "skip")
                asked = client.get("/api/question").json()
            answer(client, asked["position"], asked["position"] % 2)
            sample.append(asked["position"])
        chosen = session.service._random_order[-1]
        answer(
            client, chosen, chosen % 2
        )  # it is no part of the sample: others before it have no answer
        order = session.schedule._next_request()
        assert [p for p, _ in order.labels] == [*sample, chosen]  # as they were given
        assert order.random_sample == (tuple(sample) if count == 20 else ())
        session.schedule.start()
        progress = progress_once(client, lambda p: p["curve"])
        last = progress["curve"][-1]
        assert last["loo_all"] is not None
        assert (
            last["error_rate"] is None
        )  # a trained network has seen its labels: they estimate nothing
        assert progress["accuracy"]["estimated"] is None
        if count == 20:
            assert last["loo"] * 20 == pytest.approx(round(last["loo"] * 20))  # of twenty labels
        else:
            assert last["loo"] is None


def test_what_is_trusted_changes_the_estimate_and_not_the_network(tmp_path):
    rng = torch.Generator().manual_seed(0)
    np.savez(tmp_path / "set.npz", x=torch.randn((40, 3), generator=rng).numpy())
    tables = {
        "data": {"name": str(tmp_path / "set.npz")},
        "model": {"name": "mlp", "width": 16},
        "threads": 1,
    }
    ready = prepare_campaign(parse_campaign(tables | {"training": {"steps": 5}}))
    labels = tuple((p, p % 2) for p in range(20))
    biased = build_snapshot(ready, TrainingRequest(1, labels, 2))
    some = build_snapshot(ready, TrainingRequest(1, labels, 2, tuple(range(19, 4, -1))))
    every = build_snapshot(ready, TrainingRequest(1, labels, 2, tuple(range(20))))
    for other in (some, every):
        assert torch.equal(other.outputs, biased.outputs)
        assert torch.equal(other.kernel, biased.kernel)
        assert other.facts["second_look"] == biased.facts["second_look"]
    assert biased.facts["loo"] is None
    assert 0 <= some.facts["loo"] * 15 == pytest.approx(round(some.facts["loo"] * 15))
    assert 0 <= every.facts["loo"] * 20 == pytest.approx(round(every.facts["loo"] * 20))
    assert some.facts["loo_error"] != every.facts["loo_error"]


def test_start_refuses_a_journal_that_lacks_labels_of_a_snapshot(tmp_path):
    """labels.db was moved away, or put back from an old copy.

    Class 0 may be another class, and labels are missing.
    """
    rows = torch.randn((12, 3), generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "training": {"steps": 5}, "threads": 1}
    ready = prepare_campaign(
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
            build_snapshot(ready, TrainingRequest(1, trained, 2)), tmp_path / "out/snapshot-1.pt"
        )
        (tmp_path / "out/rounds.jsonl").write_text('{"labels": 4, "accuracy": null}\n')
        session.schedule.restore()
        assert session.service.page_model is not None
        assert len(session.schedule.rounds) == 1
    (tmp_path / "out/labels.db").unlink()
    again = {"tables": tables, "classes": ["b", "a"]}
    with pytest.raises(
        InputError,
        match=r"0 items, but rounds.jsonl has a training with 4 labels: answers are missing",
    ):
        page(tmp_path / "set.npz", tmp_path / "out", **again).__enter__()
    assert not (tmp_path / "out/labels.db").exists()
    (tmp_path / "out/rounds.jsonl").unlink()
    (tmp_path / "out/labels.seq").unlink()
    with page(tmp_path / "set.npz", tmp_path / "out", **again) as (client, session):
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


def test_add_class_answers_although_the_class_is_removed_at_once(tmp_path, monkeypatch):
    with page(photos(tmp_path / "set", 8), tmp_path / "out", classes=["a", "b"]) as (
        client,
        session,
    ):
        learn, removed = session.service._try_update, []

        def remove_the_new_class_first():
            if (
                not removed
            ):  # as another request does that comes between adding and describing the class
                removed.append(2)
                session.service.change_class("ben", "remove", 2, None)
            return learn()

        monkeypatch.setattr(session.service, "_try_update", remove_the_new_class_first)
        added = client.post("/api/classes", json={"name": "c"}, headers=CHANGE)
        assert (added.status_code, removed) == (200, [2]), added.text
        assert (added.json()["number"], added.json()["name"]) == (2, "c")
        assert [c["name"] for c in client.get("/api/session").json()["classes"]] == ["a", "b"]


def test_a_disk_that_refuses_a_snapshot_is_said_without_its_place(tmp_path):
    """The process that trains finds a file in place of the folder."""
    ready = {
        "data": {"name": str(photos(tmp_path / "set", 8))},
        "model": {"name": "mlp"},
        "training": {"steps": 5},
    }
    (tmp_path / "out").touch()
    worker = Worker(ready, tmp_path / "out")
    try:
        with pytest.raises(StorageError, match="cannot be written to"):
            worker.run(TrainingRequest(1, ((0, 0), (1, 1)), 2), lambda what, done: None)
        assert worker._process.is_alive()  # it is there for the next order
    finally:
        worker.stop()


def test_a_criterion_that_fails_does_not_stop_the_page_at_its_start(tmp_path):
    (tmp_path / "own.py").write_text(
        "def mine(view, rng):\n    return view.outputs[:, 0] * float('nan')\n"
    )
    rows = torch.randn((12, 3), generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "training": {"steps": 5}}
    tables["asking"] = {"strategy": f"{tmp_path}/own.py:mine"}
    ready = prepare_campaign(
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
            build_snapshot(ready, TrainingRequest(1, trained, 2)), tmp_path / "out/snapshot-1.pt"
        )
        session.schedule.restore()
        assert session.service.page_model is None
        assert not client.get("/api/question").json()["done"]


def test_a_mishap_after_a_training_is_not_the_end_of_training(tmp_path):
    """A file that cannot be written must not end the thread that waits for answers."""

    data, hindrance = photos(tmp_path / "set", 8), tmp_path / "out/rounds.jsonl"
    more = {"classes": ["a", "b"], "every": 2, "tables": {"training": {"steps": 5}}}
    with page(data, tmp_path / "out", start=True, **more) as (client, _):
        hindrance.mkdir()
        for position in range(4):
            answer(client, position, position % 2)
        progress_once(client, lambda p: "the last training failed" in p["training"]["message"])
        assert (
            str(tmp_path) not in client.get("/api/progress").text
        )  # the server's folders are nobody's business
        hindrance.rmdir()
        for position in range(4, 8):
            answer(client, position, position % 2)
        progress_once(
            client, lambda p: p["curve"] and p["curve"][-1]["labels"] == 8 and p["training"]["idle"]
        )


def test_the_exact_learner_on_the_page(tmp_path):
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
        path, tmp_path / "out", tables=tables, start=True, every=4, classes=("even", "odd")
    ) as (client, session):
        progress_once(client, lambda p: p["training"]["round"] == 0)
        asked = client.get("/api/question").json()
        assert asked["reason"] == "covers the pool"
        for rounds in (1, 2):
            for _ in range(4):
                asked = answer(client, asked["position"], asked["position"] % 2)["next"]
            done = progress_once(
                client, lambda p, rounds=rounds: len(p["curve"]) == rounds and p["training"]["idle"]
            )
        assert done["labels"] == 8
        assert (
            session.schedule.worker._process is None
        )  # nothing is trained, so nobody is kept for it
        assert 0 <= done["curve"][-1]["error_rate"] <= 1
        assert [row["labels"] for row in done["curve"]] == [4, 8]
        pool_posterior = session.service.page_model.pool_posterior
        guesses = dict(
            zip(
                pool_posterior.points.tolist(),
                pool_posterior.predicted_classes.tolist(),
                strict=True,
            )
        )
        assert sum(guesses[p] == p % 2 for p in guesses) >= 0.9 * len(guesses)
        assert client.get(f"/api/why/{asked['position']}").json()["if"]
        assert client.get("/api/map").json()["points"]
        weights = pool_posterior.posterior.weights()
    with page(
        path, tmp_path / "out", tables=tables, start=True, every=4, classes=("even", "odd")
    ) as (client, session):
        progress_once(client, lambda p: p["training"]["round"] and p["training"]["idle"])
        again = (
            session.service.page_model.pool_posterior
        )  # nothing but the labels and the features had to be kept
        assert torch.equal(again.predicted_classes, pool_posterior.predicted_classes)
        assert torch.allclose(again.posterior.weights(), weights)


def test_in_a_large_pool_a_shortlist_answers_and_the_rest_follows(tmp_path, monkeypatch):
    """The next question knows the last answer before the pool does.

    Once the pool does, it says the same.
    """
    monkeypatch.setattr("labelahead.server.service.MAX_IMMEDIATE_PAIRS", 0)  # every pool is large
    rng = np.random.default_rng(1)
    truth = np.arange(300) % 3
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(3, 8))[truth] + rng.normal(size=(300, 8)))
    tables = {"model": {"name": "exact"}}
    with page(
        tmp_path / "rows.npz", tmp_path / "out", tables=tables, every=10**6, classes="abc"
    ) as (client, session):
        desk, ready = (
            session.service,
            prepare_campaign(
                parse_campaign({"data": {"name": str(tmp_path / "rows.npz")}, **tables})
            ),
        )
        desk.set_page_model(
            PageModel.from_snapshot(build_snapshot(ready, TrainingRequest(0, (), 3)), {}, 3)
        )
        asked = desk.next_query("me")
        asked = answer(client, asked["position"], int(truth[asked["position"]]))["next"]
        for count in range(1, 13):
            before = desk.page_model
            asked = answer(client, asked["position"], int(truth[asked["position"]]))["next"]
            assert desk.is_behind
            assert desk.page_model is before
            if count == 6:
                continue  # two answers, of which the pool knows neither
            desk.catch_up()
            assert not desk.is_behind
            assert desk.page_model.pool_posterior.labels == desk.label_state.labels
            assert (
                asked["position"] == desk.page_model.choose_best(desk.label_state.labels.keys())[0]
            )
            expected = [
                (c, round(p, 4)) for c, p in desk.page_model.predict_classes(asked["position"])
            ]
            assert [(g["label"], g["p"]) for g in asked["guess"]] == expected
        last = asked["position"]
        answer(client, last, 0)
        again = client.post("/api/undo", json={}, headers=CHANGE).json()
        assert again["next"]["position"] == last
        assert not again["next"]["guess"]
        desk.catch_up()
        assert last not in desk.page_model.pool_posterior.labels
        answer(client, last, 1)  # and a label of before that changes
        first = next(iter(desk.page_model.pool_posterior.labels))
        answer(client, first, (desk.label_state.labels[first] + 1) % 3)
        desk.catch_up()
        assert desk.page_model.pool_posterior.labels == desk.label_state.labels
