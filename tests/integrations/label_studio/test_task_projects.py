"""Projects of several choices, numbers and ratings, from their annotations to their predictions."""

import csv

import pytest
from typer.testing import CliRunner

import labelahead as la
from labelahead.cli import app
from labelahead.errors import InputError
from labelahead.integrations.label_studio.connection import Connection
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.server.task_display import describe_predicted
from tests.support.label_studio import KEY, replay
from tests.support.label_studio_bridges import (
    ANNA,
    open_bridge,
    read_serving_order,
    wait_until_idle,
)
from tests.support.label_studio_task_projects import (
    CONFIGS,
    TASK_NAMES,
    make_annotation,
    make_result,
    make_topic_tasks,
    make_webhook,
    set_project,
    true_answer,
)

COUNT = 30
FIRST_LABELLED = list(range(1, 13))
SETTINGS = {
    "multilabel": {"classes": ["sport", "food", "space"]},
    "number": {"limits": (0, 20)},
    "rating": {"levels": 4},
}


def teach_learner(name, items, answers):
    """Return a learner that was taught these answers (task -> answer), and the tasks of its items."""
    data = {"name": str(items), "embedding": "words", "test_fraction": 0.0}
    prepared = prepare_campaign(parse_campaign({"data": data}))
    ids = [int(item.removesuffix(".txt")) for item in prepared.data.ids]
    task = la.tasks.find_task(name, **SETTINGS[name])
    learner = la.Learner(la.exact(prepared.rows, task=task), prepared.rows)
    learner.teach([ids.index(i) for i in answers], list(answers.values()))
    return learner, ids


def read_value(name, result):
    """Return the answer in the result of a prediction."""
    if name == "multilabel":
        return result[0]["value"]["choices"] if result else []
    assert result[0]["type"] == name
    return result[0]["value"][name]


def check_prediction(name, expected, result, score):
    """Check a prediction in Label Studio's form against that of a learner."""
    value = read_value(name, result)
    if name == "number":
        shown = describe_predicted(expected)["outputs"][0]
        low, high = (min(max(shown[end], 0), 20) for end in ("low", "high"))
        assert value == min(max(shown["mean"], 0), 20)
        assert value == pytest.approx(expected.values()[0], abs=0.1 * float(expected.deviation[0]))
        assert result[0]["meta"]["text"] == [f"90% interval: {low:.10g} to {high:.10g}"]
        assert score == pytest.approx(1 - (high - low) / 20, abs=1e-6)
        return
    assert score == pytest.approx(expected.columns()["probability"][0], abs=1e-5)
    if name == "rating":
        assert value == int(expected.values()[0])
        assert result[0]["meta"]["text"] == [
            f"expected rating: {float(expected.expected_scores()[0]):.2f}"
        ]
        return
    assert value == expected.values()[0]
    if result:
        chances = zip(expected.names, expected.probabilities[0].tolist(), strict=True)
        assert result[0]["meta"]["text"] == [", ".join(f"{n}: {p:.2f}" for n, p in chances)]


@pytest.mark.parametrize("name", TASK_NAMES)
def test_predictions_and_order_equal_those_of_a_learner(tmp_path, name):
    tasks = make_topic_tasks(COUNT)
    with replay() as studio:
        existing = set_project(studio, name, tasks, FIRST_LABELLED)
        with open_bridge(
            studio, tmp_path / "out", annotations=existing, predictions=True, start_schedule=True
        ) as (bridge, session, client):
            assert bridge.reconcile() == (len(FIRST_LABELLED), 0)
            assert bridge.reconcile() == (0, 0)
            wait_until_idle(session)
            bridge.update_order(force=True)
            answered = list(FIRST_LABELLED)
            for number in range(200, 202):
                served = read_serving_order(studio, answered)[0]
                assert served == bridge.tasks[next(session.service.rank_items())]
                result = make_result(name, true_answer(name, tasks[served - 1]))
                webhook = make_webhook(make_annotation(number, served, result))
                assert client.post("/webhook", json=webhook).status_code == 201
                answered.append(served)
                wait_until_idle(session)
                bridge.update_order()
            assert session.service.label_state.task.name == name
            assert len(session.service.label_state.labels) == len(answered)
            answers = {i: true_answer(name, tasks[i - 1]) for i in answered}
            learner, ids = teach_learner(name, tmp_path / "out" / "items", answers)
            sent = studio.sent("POST", "/import/predictions")[-1]
            assert len(sent) >= 3
            replies = client.post("/predict", json={"tasks": [{"id": r["task"]} for r in sent]})
            for rank, (row, reply) in enumerate(zip(sent, replies.json()["results"], strict=True)):
                assert row["score"] == 0.5 + rank / 1000
                assert row["result"] == reply["result"]
                expected = learner.predict([ids.index(row["task"])])
                check_prediction(name, expected, reply["result"], reply["score"])
            unknown = client.post("/predict", json={"tasks": [{"id": 10**6}]}).json()["results"]
            assert unknown[0]["result"] == []


@pytest.mark.parametrize("name", TASK_NAMES)
def test_command_exports_labels_and_predictions_as_a_learner_has_them(tmp_path, monkeypatch, name):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    tasks, out, to = make_topic_tasks(COUNT), tmp_path / "out", tmp_path / "labels.csv"
    with replay() as studio:
        set_project(studio, name, tasks, FIRST_LABELLED)
        command = ["label-studio", studio.url, "--project", str(studio.project), "--out", str(out)]
        command += ["--embedding", "words", "--export", "csv", "--to", str(to), "--rest"]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    with to.open(newline="", encoding="utf-8") as file:
        rows = {int(row["id"].removesuffix(".txt")): row for row in csv.DictReader(file)}
    answers = {i: true_answer(name, tasks[i - 1]) for i in FIRST_LABELLED}
    learner, ids = teach_learner(name, out / "items", answers)
    columns = learner.predict(range(COUNT)).columns()
    reader = la.tasks.find_task(name, **SETTINGS[name])
    for i, row in rows.items():
        if i in answers:
            assert (row["source"], row["annotator"]) == ("label", ANNA)
            assert reader.parse(row["label"]) == reader.parse(answers[i])
            continue
        p = ids.index(i)
        if name == "number":
            for column in ("prediction", "low", "high"):
                assert float(row[column]) == pytest.approx(columns[column][p], rel=1e-4, abs=1e-4)
        else:
            assert row["prediction"] == columns["prediction"][p]
            assert float(row["probability"]) == pytest.approx(columns["probability"][p], abs=1e-4)
    assert set(rows) == {task["id"] for task in tasks}


def read_labels(session):
    """Return task -> written answer."""
    state, ids = session.service.label_state, session.service.items.ids
    return {int(ids[p].removesuffix(".txt")): state.task.write(c) for p, c in state.labels.items()}


def test_annotations_of_several_choices_are_corrected_deleted_and_restored(tmp_path):
    with replay() as studio:
        set_project(studio, "multilabel", make_topic_tasks(6), [])
        with open_bridge(studio, tmp_path / "out") as (_, session, client):

            def send(task, choices, action="ANNOTATION_CREATED"):
                result = make_result("multilabel", choices)
                webhook = make_webhook(make_annotation(100 + task, task, result), action)
                assert client.post("/webhook", json=webhook).status_code == 201

            send(1, ["space", "sport"])
            send(2, [])
            assert read_labels(session) == {1: "sport;space", 2: "[]"}
            send(1, ["food"], "ANNOTATION_UPDATED")
            assert read_labels(session) == {1: "food", 2: "[]"}
            skip = make_annotation(103, 3, []) | {"was_cancelled": True}
            client.post("/webhook", json=make_webhook(skip))
            assert len(session.service.label_state.skipped) == 1
            other = make_result("multilabel", ["food"], control="else")
            client.post("/webhook", json=make_webhook(make_annotation(104, 4, other)))
            assert len(session.service.label_state.unsure) == 1
            gone = {**make_webhook({}, "ANNOTATIONS_DELETED"), "annotations": [{"id": 102}]}
            client.post("/webhook", json=gone)
            assert read_labels(session) == {1: "food"}
        with open_bridge(studio, tmp_path / "out") as (_, session, _):
            assert read_labels(session) == {1: "food"}


def test_added_choice_is_not_reviewed_in_earlier_annotations(tmp_path):
    with replay() as studio:
        set_project(studio, "multilabel", make_topic_tasks(6), [])
        before = make_annotation(101, 1, make_result("multilabel", ["sport"]))
        studio.replies["annotations"] = [{"id": 1, "annotations": [before]}]
        wider = CONFIGS["multilabel"].replace("</Choices>", '<Choice value="art"/></Choices>')
        existing = studio.replies["annotations"]
        with open_bridge(studio, tmp_path / "out", annotations=existing) as (
            bridge,
            session,
            client,
        ):
            bridge.reconcile()
            studio.replies["project"]["label_config"] = wider
            bridge._compare_with_studio()
            assert session.service.label_state.classes[-1] == "art"
            assert read_labels(session) == {1: "sport;?art"}
            after = make_annotation(102, 2, make_result("multilabel", ["sport"]))
            client.post("/webhook", json=make_webhook(after))
            assert read_labels(session)[2] == "sport"
        existing = [*existing, {"id": 2, "annotations": [after]}]
        with open_bridge(studio, tmp_path / "out", annotations=existing) as (
            bridge,
            session,
            client,
        ):
            assert bridge.reconcile() == (0, 0)
            assert read_labels(session) == {1: "sport;?art", 2: "sport"}
            # Submitting it again with all choices in view reviews them all.
            client.post("/webhook", json=make_webhook(before, "ANNOTATION_UPDATED"))
            assert read_labels(session) == {1: "sport", 2: "sport"}
            assert bridge.reconcile() == (0, 0)


def test_removed_choice_is_not_reviewed_in_later_annotations(tmp_path):
    with replay() as studio:
        set_project(studio, "multilabel", make_topic_tasks(6), [])
        with open_bridge(studio, tmp_path / "out") as (bridge, session, client):
            narrower = CONFIGS["multilabel"].replace('<Choice value="food"/>', "")
            studio.replies["project"]["label_config"] = narrower
            bridge._compare_with_studio()
            result = make_result("multilabel", ["space"])
            client.post("/webhook", json=make_webhook(make_annotation(101, 1, result)))
            assert read_labels(session) == {1: "?food;space"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("number", 21, "expected a number from 0 to 20"), ("rating", 5, "expected one of 1, 2, 3, 4")],
)
def test_value_out_of_range_is_recorded_as_unsure_with_a_warning(
    tmp_path, caplog, name, value, message
):
    with replay() as studio:
        set_project(studio, name, make_topic_tasks(6), [])
        with open_bridge(studio, tmp_path / "out") as (bridge, session, client):
            annotation = make_annotation(101, 1, make_result(name, value))
            assert client.post("/webhook", json=make_webhook(annotation)).status_code == 201
            assert message in caplog.text
            assert "annotation 101 of task 1" in caplog.text
            caplog.clear()
            assert bridge.record_annotations([annotation]) == 0  # neither again nor warned again
            assert not caplog.text
            assert len(session.service.label_state.unsure) == 1
            fixed = make_annotation(101, 1, make_result(name, 3))
            client.post("/webhook", json=make_webhook(fixed, "ANNOTATION_UPDATED"))
            assert read_labels(session) == {1: "3"}


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("number", CONFIGS["rating"], "a rating from 1 to 4, before a number from 0 to 20"),
        ("number", CONFIGS["number"].replace("20", "30"), "a number from 0 to 30"),
        ("rating", CONFIGS["rating"].replace('"4"', '"9"'), "a rating from 1 to 9"),
        ("multilabel", CONFIGS["multilabel"].replace("multiple", "single"), "one choice"),
    ],
)
def test_config_that_asks_for_other_answers_is_reported_and_not_used(
    tmp_path, caplog, name, config, message
):
    with replay() as studio:
        set_project(studio, name, make_topic_tasks(6), [])
        with open_bridge(studio, tmp_path / "out") as (bridge, _, _):
            before = bridge.interface
            studio.replies["project"]["label_config"] = config
            bridge._compare_with_studio()
            assert message in caplog.text
            assert "another --out" in caplog.text
            assert bridge.interface == before
        with pytest.raises(InputError, match="choose another folder"):
            open_bridge(studio, tmp_path / "out").__enter__()


def test_pool_with_a_project_of_numbers_is_refused_before_anything_is_written(tmp_path):
    with replay() as studio:
        set_project(studio, "number", make_topic_tasks(6), [])
        with pytest.raises(InputError, match="the task number, but items of an out-of-core pool"):
            Connection.open(studio.url, KEY, studio.project, tmp_path / "out", pool=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--guesses", "predictions"], "leave out --guesses"),
        (["--model", "mlp"], "leave --model out"),
        (["--strategy", "margin"], "margin"),
        (["--set", "data.task=rating"], "labelling configuration is for number"),
    ],
)
def test_command_refuses_options_that_a_task_does_not_have(tmp_path, monkeypatch, words, message):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    with replay() as studio:
        set_project(studio, "number", make_topic_tasks(6), [1, 2])
        command = ["label-studio", studio.url, "--project", str(studio.project), *words]
        command += ["--out", str(tmp_path / "out"), "--export", "csv", "--to", str(tmp_path / "l")]
        result = CliRunner().invoke(app, command)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
