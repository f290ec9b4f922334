"""The error estimate of the page and its progress."""

import numpy as np
import pytest
import torch

import labelahead as la
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.server.progress import describe_class_quality, explain_item
from labelahead.server.report import write_report
from labelahead.server.session import SessionOptions, open_session
from labelahead.server.snapshot import TrainingRequest
from labelahead.server.snapshot_builder import build_snapshot
from tests.support.slow import slow
from tests.support.web_answers import answer
from tests.support.web_sessions import page, progress_once


@pytest.mark.parametrize("count", [slow(19), 20])
def test_twenty_labels_of_a_random_sample_give_an_unbiased_estimate(tmp_path, count):
    rng = torch.Generator().manual_seed(0)
    np.savez(tmp_path / "set.npz", x=torch.randn((40, 3), generator=rng).numpy())
    tables = {"model": {"name": "mlp", "width": 16}, "training": {"steps": 5}, "threads": 1}
    options = {"tables": tables, "classes": ["a", "b"], "retrain_every": count}
    with page(tmp_path / "set.npz", tmp_path / "out", **options) as (client, session):
        sample = []
        while len(sample) < count:
            query = client.get("/api/question").json()
            assert query["reason"] == "random start"
            if len(sample) == 3:  # a skipped item is replaced
                answer(client, query["position"], None, "skip")
                query = client.get("/api/question").json()
            answer(client, query["position"], query["position"] % 2)
            sample.append(query["position"])
        outside_sample = session.service._random_order[-1]
        answer(
            client, outside_sample, outside_sample % 2
        )  # not in the sample: earlier items have no answer
        request = session.schedule._next_request()
        assert [p for p, _ in request.labels] == [
            *sample,
            outside_sample,
        ]  # in order of the answers
        assert request.random_sample == (tuple(sample) if count == 20 else ())
        session.schedule.start()
        progress = progress_once(client, lambda p: p["curve"])
        last = progress["curve"][-1]
        assert last["loo_all"] is not None
        assert last["error_rate"] is None  # no estimate: the network was trained on these labels
        assert progress["accuracy"]["estimated"] is None
        if count == 20:
            assert last["loo"] * 20 == pytest.approx(round(last["loo"] * 20))  # a multiple of 1/20
        else:
            assert last["loo"] is None


def test_random_sample_changes_the_error_estimate_and_not_the_network(tmp_path):
    rng = torch.Generator().manual_seed(0)
    np.savez(tmp_path / "set.npz", x=torch.randn((40, 3), generator=rng).numpy())
    tables = {
        "data": {"name": str(tmp_path / "set.npz")},
        "model": {"name": "mlp", "width": 16},
        "threads": 1,
    }
    prepared = prepare_campaign(parse_campaign(tables | {"training": {"steps": 5}}))
    labels = tuple((p, p % 2) for p in range(20))
    biased = build_snapshot(prepared, TrainingRequest(1, labels, 2))
    partial_sample = build_snapshot(
        prepared, TrainingRequest(1, labels, 2, tuple(range(19, 4, -1)))
    )
    full_sample = build_snapshot(prepared, TrainingRequest(1, labels, 2, tuple(range(20))))
    for other in (partial_sample, full_sample):
        assert torch.equal(other.outputs, biased.outputs)
        assert torch.equal(other.kernel_arguments["kernel"], biased.kernel_arguments["kernel"])
        assert other.fit_facts.leave_one_out.rows == biased.fit_facts.leave_one_out.rows
    assert biased.fit_facts.leave_one_out.sample_accuracy is None
    first, second = (s.fit_facts.leave_one_out for s in (partial_sample, full_sample))
    right = 15 * first.sample_accuracy, 20 * second.sample_accuracy
    assert right == pytest.approx((round(right[0]), round(right[1])))
    assert min(right) >= 0
    assert first.squared_error != second.squared_error


@pytest.mark.parametrize("shown", [False, True])
def test_guesses_are_hidden_from_an_annotator_until_the_answer(tmp_path, shown):
    table = tmp_path / "numbers.csv"
    table.write_text("id,a,b,llm\n" + "".join(f"n{i},{i},{i % 3},high\n" for i in range(12)))
    source = la.Source(str(table), guesses=("llm",), classes=("low", "high"))
    options = SessionOptions(classes=("low", "high"), show_guesses=shown)
    with open_session(la.Campaign(data=source, threads=1), tmp_path / "out", options) as session:
        service = session.service
        expected = [{"guesser": "llm", "label": 1, "p": 0.9}]
        before = explain_item(service, 3, "anna")["guesses"]
        assert before == (expected if shown else [])
        service.add_labels([(3, "low", "anna")])
        assert explain_item(service, 3, "anna")["guesses"] == expected
        assert explain_item(service, 3, "ben")["guesses"] == (expected if shown else [])
        assert explain_item(service, 4, "anna")["guesses"] == (expected if shown else [])


def test_status_counts_labels_that_were_learnt_since_the_last_refresh(tmp_path):
    table = tmp_path / "numbers.csv"
    table.write_text("id,a,b\n" + "".join(f"n{i},{i % 2 + i / 100},{i % 3}\n" for i in range(20)))

    def count(progress):
        status = progress["training"]
        return status["labels_at_last"], status["labels_used"], status["behind"]

    with page(table, tmp_path / "out", classes=["a", "b"], retrain_every=6, start=True) as (
        client,
        _,
    ):
        for position in range(6):
            answer(client, position, position % 2)
        progress_once(client, lambda p: count(p) == (6, 6, False))
        for position in range(6, 8):
            answer(client, position, position % 2)
        progress_once(client, lambda p: count(p) == (6, 8, False) and p["training"]["idle"])
    (tmp_path / "out" / "rounds.jsonl").unlink()  # the snapshot alone says what it was fitted on
    with page(table, tmp_path / "out", classes=["a", "b"], retrain_every=6, start=True) as (
        client,
        _,
    ):
        progress_once(client, lambda p: count(p) == (6, 8, False))


def make_class_session(tmp_path, count=90):
    """Write items of three clouds, the last one small, and return their classes."""
    rng = np.random.default_rng(0)
    y = rng.permutation(
        np.repeat([0, 1, 2], [count // 2, count // 3, count - count // 2 - count // 3])
    )
    x = (2.0 * np.eye(3, 5)[y] + rng.standard_normal((count, 5))).astype(np.float32)
    np.savez(tmp_path / "set.npz", x=x)
    return y.tolist()


def test_class_quality_is_that_of_the_learner_and_in_the_report(tmp_path):
    y = make_class_session(tmp_path)
    tables = {
        "model": {"name": "exact"},
        "data": {"name": str(tmp_path / "set.npz"), "embedding": "raw"},
    }
    out, options = tmp_path / "out", {"classes": ["a", "b", "c"], "retrain_every": 20}
    with page(tmp_path / "set.npz", out, tables=tables, **options) as (client, session):
        assert client.get("/api/progress").json()["class_quality"] is None
        while len(session.service.label_state.labels) < 20:
            position = client.get("/api/question").json()["position"]
            answer(client, position, y[position])
        session.schedule.start()
        quality = progress_once(client, lambda p: p["class_quality"])["class_quality"]
        labels = dict(session.service.label_state.labels)
        report = write_report(out).page.read_text()
    assert quality["labels"] == 20
    assert [row["name"] for row in quality["classes"]] == ["a", "b", "c"]
    assert [row["labels"] for row in quality["classes"]] == [
        list(labels.values()).count(c) for c in range(3)
    ]
    assert sum(map(sum, quality["confusion"])) == pytest.approx(70, abs=1)  # rounded entries
    x = prepare_campaign(parse_campaign(tables)).inputs
    learner = la.Learner(la.exact(x, 3), x)
    learner.teach(list(labels), list(labels.values()))
    expected = learner.class_quality()
    for row, own in zip(quality["classes"], expected.classes, strict=True):
        assert row["predicted"] == own.predicted
        assert row["recall"] == pytest.approx(list(own.recall), abs=2e-3)
        assert row["f1"] == pytest.approx(list(own.f1), abs=2e-3)
    assert "Estimated confusion matrix" in report
    value, low, high = (f"{100 * v:.0f}" for v in quality["classes"][0]["recall"])
    assert f'{value} % <span class="soft">({low} to {high})' in report


def test_class_quality_leaves_out_removed_classes(tmp_path):
    state = {
        "classes": [
            {"number": c, "labels": 5, "predicted": 2, "expected": 2.0, "warning": ""}
            for c in range(3)
        ],
        "confusion": [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
        "macro_f1": 0.5,
    }
    make_class_session(tmp_path)
    with page(tmp_path / "set.npz", tmp_path / "out", classes=["a", "b", "c"]) as (_, session):
        label_state = session.service.label_state
        rounds = [{"labels": 9, "class_quality": state}]
        assert describe_class_quality([], label_state) is None
        assert len(describe_class_quality(rounds, label_state)["classes"]) == 3
        session.service.change_class("anna", "remove", 1, None)
        found = describe_class_quality(rounds, session.service.label_state)
    assert [row["name"] for row in found["classes"]] == ["a", "c"]
    assert found["confusion"] == [[1, 3], [7, 9]]


def test_goal_of_the_session_weighs_the_evaluation_points(tmp_path):
    y = make_class_session(tmp_path)
    tables = {
        "model": {"name": "exact"},
        "data": {"name": str(tmp_path / "set.npz"), "embedding": "raw"},
        "asking": {"goal": "macro-f1"},
    }
    prepared = prepare_campaign(parse_campaign(tables))
    request = TrainingRequest(1, tuple((p, y[p]) for p in range(20)), 3)
    snapshot = build_snapshot(prepared, TrainingRequest(0, (), 3)).refresh(request)
    posterior = snapshot.build_posterior(dict(request.labels), 3)
    assert posterior.view.goal == "macro-f1"
    later = posterior.with_labels({**dict(request.labels), 30: y[30]})
    weights = later.view.point_weights()
    assert later.view.goal == "macro-f1"
    assert float(weights.max()) > float(weights.min())
