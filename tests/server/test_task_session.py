"""Sessions of several classes at once, numbers and ratings, over the HTTP API."""

import numpy as np
import pytest

import labelahead as la
from labelahead.errors import InputError
from tests.support.browser_pages import write_digits
from tests.support.task_sessions import (
    TASKS,
    answer_queries,
    make_rows,
    send,
    task_page,
    true_answer,
    wait_until_fitted,
    write_table,
)
from tests.support.web_sessions import CHANGE, page


def written(task, value):
    """Return an answer as the journal writes it."""
    if task == "multilabel":
        return ";".join(value) or "[]"
    return f"{value:g}" if task == "number" else value


@pytest.mark.parametrize("task", TASKS)
def test_answers_predictions_undo_and_restart(tmp_path, task):
    with task_page(tmp_path, task, start=True) as (client, session, rows):
        shown = client.get("/api/session").json()
        assert shown["task"]["name"] == task
        assert shown["none_of_these"] is None
        assert client.get("/api/question").json()["prediction"] is None  # nothing is learnt yet
        positions = answer_queries(client, task, rows, 24)
        progress = wait_until_fitted(client)
        assert progress["labels"] == 24
        error = progress["error"]
        assert 0 < error["low"] < error["value"] < error["high"]
        query = client.get("/api/question").json()
        assert query["reason"] == "look-ahead"
        assert query["prediction"]["outputs"]
        why = client.get(f"/api/why/{query['position']}").json()
        assert "more certain" in why["effect"]
        assert why["similar"][0]["position"] in positions
        newest = client.get("/api/history?n=1").json()[0]
        assert newest["answer"] == written(task, true_answer(task, rows[positions[-1]]))
        undone = client.post("/api/undo", json={}, headers=CHANGE).json()
        assert undone["undone"]["position"] == positions[-1]
        assert undone["next"]["prediction"] is None  # the model has seen the answer
        send(client, positions[-1], None, kind="skip")
        labels = dict(session.service.label_state.labels)
        assert client.get("/api/map").json()["points"]
        assert client.get("/api/confirmations").json()["items"] == []
        refused = client.get("/api/gallery")
        assert refused.status_code == 400
        assert "one class per item" in refused.json()["error"]
    with task_page(tmp_path, task, start=True) as (client, session, _):
        state = session.service.label_state
        assert dict(state.labels) == labels
        for position in positions[:-1]:
            value = true_answer(task, rows[position])
            assert state.name_label(state.labels[position]) == written(task, value)
        wait_until_fitted(client)
        assert client.get("/api/question").json()["prediction"]


@pytest.mark.parametrize("task", TASKS)
def test_page_predicts_what_a_learner_predicts_on_the_same_labels(tmp_path, task):
    from labelahead.server.fitting import predict_pool

    with task_page(tmp_path, task, start=True) as (client, session, rows):
        answer_queries(client, task, rows, 20)
        wait_until_fitted(client)
        found = predict_pool(session.service, session.schedule)
        state = session.service.label_state
        labels = dict(state.labels)
        answers = [state.name_label(c) for c in labels.values()]
    own = la.tasks.find_task(**{**state.task.describe(), "answers": None})
    x = session.service.items.data.inputs
    learner = la.Learner(la.exact(x, task=own), x)
    learner.teach(list(labels), answers)
    expected = learner.predict(found.positions.tolist()).columns()
    for name, column in found.prediction.columns().items():
        if isinstance(column[0], float):
            np.testing.assert_allclose(column, expected[name], rtol=1e-6, atol=1e-8)
        else:
            assert column == expected[name]


@pytest.mark.parametrize("task", TASKS)
def test_query_is_that_of_the_posterior_given_all_answers(tmp_path, task):
    """After a fit, the incrementally updated page queries as a posterior that is built anew."""
    with task_page(tmp_path, task, start=True, retrain_every=1000) as (client, session, rows):
        answer_queries(client, task, rows, 30)
        wait_until_fitted(client)
        service = session.service
        model = service.page_model
        anew = model.from_state(model.task_snapshot, service.label_state)
        queried = client.get("/api/question?fresh=1").json()
        assert queried["position"] == anew.choose_best()[0]
        assert queried["prediction"] == anew.describe_prediction(queried["position"])


def test_several_annotators_conflict_and_settle(tmp_path):
    with task_page(tmp_path, "multilabel", overlap=0.0) as (client, session, _):
        send(client, 3, ["cat"], who="anna")
        send(client, 3, ["cat", "dog"], who="ben")
        send(client, 4, [], who="anna")
        send(client, 4, [], who="ben")
        people = client.get("/api/people").json()
        assert (people["compared"], people["agree"]) == (2, 1)
        assert [c["position"] for c in people["conflicts"]] == [3]
        assert people["conflicts"][0]["counts_answer"] == "cat;dog"
        send(client, 3, ["cat"], kind="settle", who="anna")
        assert client.get("/api/people").json()["conflicts"] == []
        state = session.service.label_state
        assert state.name_label(state.labels[3]) == "cat"


def test_wrong_answers_are_refused_with_what_was_expected(tmp_path):
    limits = {"limits": [0, 20], "unit": "kg"}
    with task_page(tmp_path, "number", data=limits) as (client, session, _):

        def refusal(**body):
            reply = client.post("/api/answers", json={"kind": "label", **body}, headers=CHANGE)
            assert reply.status_code == 400
            return reply.json()["error"]

        assert "expected a number in kg from 0 to 20" in refusal(position=0, value=21)
        assert "expected one in kg such as 3.5" in refusal(position=0, value="abc")
        assert "expected one of them" in refusal(position=0, value=3, label=0)
        assert "there is no answer 5" in refusal(position=0, label=5)
        assert session.service.label_state.seq == 1  # nothing was recorded
        shown = client.get("/api/session").json()["task"]
        assert (shown["unit"], shown["low"], shown["high"]) == ("kg", 0, 20)


def test_doubtful_answers_are_listed_until_they_are_kept(tmp_path):
    with task_page(tmp_path, "number", start=True) as (client, _, rows):
        for position in range(40):
            wrong = 50 if position == 7 else 0
            send(client, position, true_answer("number", rows[position]) + wrong)
        wait_until_fitted(client)
        found = client.get("/api/doubts").json()
        assert found["enough"]
        assert found["doubts"][0]["position"] == 7
        assert " to " in found["doubts"][0]["suggested"]
        send(client, 7, true_answer("number", rows[7]) + 50, kind="keep")
        after = client.get("/api/doubts").json()
        assert 7 not in [row["position"] for row in after["doubts"]]
        assert [row["position"] for row in after["kept"]] == [7]


def test_labels_of_a_table_start_a_session_and_measure_it(tmp_path):
    rows = make_rows(90)
    answers = [written("multilabel", true_answer("multilabel", row)) for row in rows]
    write_table(tmp_path / "items.csv", rows, answers)
    data = {"target": "label", "classes": []}
    options = {"data": data, "start_from_folders": True, "test": 0.2, "start": True}
    with task_page(tmp_path, "multilabel", **options) as (client, session, _):
        service = session.service
        assert len(service.held_out) == 18
        state = service.label_state
        assert {p: state.name_label(c) for p, c in state.labels.items()} == {
            p: answers[p] for p in range(90) if p not in service.held_out
        }
        progress = wait_until_fitted(client)
        measures, x = progress["error"]["measures"], service.items.data.inputs
        held_out, labels = sorted(service.held_out), dict(state.labels)
        assert progress["per_class"] == [
            sum("cat" in answers[p] for p in state.labels),
            sum("dog" in answers[p] for p in state.labels),
        ]
    own = la.tasks.Multilabel(["cat", "dog"])
    pool = [p for p in range(90) if p not in held_out]
    learner = la.Learner(la.exact(x[pool], task=own), x, test=held_out)  # centred on the pool
    learner.teach(list(labels), [answers[p] for p in labels])
    truth = own.parse_all(answers[p] for p in held_out)
    assert measures == pytest.approx(own.measure(learner.predict(held_out), truth))


def test_new_class_is_learnt_from_later_answers(tmp_path):
    with task_page(tmp_path, "multilabel", start=True) as (client, _, rows):
        answer_queries(client, "multilabel", rows, 12)
        wait_until_fitted(client)
        added = client.post("/api/classes", json={"name": "fox"}, headers=CHANGE).json()
        assert added["number"] == 2
        for _ in range(12):
            position = client.get("/api/question").json()["position"]
            value = true_answer("multilabel", rows[position]) + ["fox"] * bool(
                rows[position][2] > 0
            )
            send(client, position, value)
        wait_until_fitted(client)
        outputs = client.get("/api/question").json()["prediction"]["outputs"]
        assert len(outputs) == 3
        refused = client.post("/api/classes/0", json={"kind": "remove"}, headers=CHANGE)
        assert refused.status_code == 400
        assert "cannot be renamed" in refused.json()["error"]


@pytest.mark.parametrize(
    ("task", "classes"),
    [("multilabel", ["cat", "dog"]), ("rating", ["bad", "fair", "good"]), ("number", [])],
)
def test_folder_of_pictures_without_labels_keeps_the_task(tmp_path, task, classes):
    folder = write_digits(tmp_path / "digits", 12)
    data = {"name": str(folder), "task": task, "classes": classes}
    tables = {"data": data, "model": {"name": "auto"}, "threads": 1}
    with page(folder, tmp_path / "out", tables=tables) as (client, _):
        shown = client.get("/api/session").json()
    assert shown["task"]["name"] == task
    assert [c["name"] for c in shown["classes"]] == classes or not classes


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"data": {"task": "number"}, "model": {"name": "mlp"}}, "the model exact alone"),
        ({"data": {"task": "number"}, "asking": {"strategy": "resolve"}}, "resolve does not work"),
        ({"data": {"task": "multilabel"}}, "no classes are given"),
        ({"data": {"task": "multilabel", "guesses": ["a"]}}, "one class per item"),
    ],
)
def test_settings_that_do_not_fit_the_task_are_refused(tmp_path, tables, message):
    source = write_table(tmp_path / "items.csv", make_rows(8))
    data = {"name": str(source), **tables["data"]}
    tables = {"model": {"name": "auto"}, **tables, "data": data}
    with pytest.raises(InputError, match=message):
        page(source, tmp_path / "out", tables=tables).__enter__()


def test_out_of_core_pool_refuses_other_tasks(tmp_path):
    from labelahead.learner.config import parse_campaign
    from labelahead.server.session import open_session

    store = tmp_path / "store"
    (store / "parts").mkdir(parents=True)
    (store / "manifest.json").write_text("{}")
    campaign = parse_campaign({"data": {"name": str(store), "task": "rating"}})
    with pytest.raises(InputError, match="out-of-core pool, whose items have one class each"):
        open_session(campaign, tmp_path / "out").__enter__()
