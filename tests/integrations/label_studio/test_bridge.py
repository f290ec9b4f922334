"""The bridge to Label Studio, with recorded requests.

Every annotation is recorded and the best tasks are served first, also after failures.
"""

import base64
import random
import threading

import pytest

from labelahead.integrations.label_studio.bridge import BridgeTiming
from labelahead.integrations.label_studio.client import Unreachable
from labelahead.integrations.label_studio.gateway import SECRET_HEADER
from labelahead.server.fitting import CurrentModel
from tests.support.label_studio import CONFIG, RECORDED, make_choice, make_tasks, replay
from tests.support.label_studio_bridges import (
    ANNA,
    TASKS,
    WEBHOOKS,
    open_bridge,
    read_serving_order,
    wait_until_idle,
)
from tests.support.waiting import PATIENCE


def read_events(session) -> list[tuple]:
    names = session.service.label_state.classes
    items = session.service.items.ids
    return [
        (
            e.kind,
            e.who,
            items[e.position].removesuffix(".txt"),
            None if e.label is None else names[e.label],
        )
        for e in session.service.journal.read_events()
        if e.kind != "class"
    ]


RECORDED_EVENTS = [
    ("label", ANNA, str(TASKS[0]), "sport"),
    ("label", ANNA, str(TASKS[0]), "food"),  # a correction
    ("skip", ANNA, str(TASKS[1]), None),
    ("label", ANNA, str(TASKS[2]), "space"),
    ("undo", ANNA, str(TASKS[2]), None),  # deleted
]


def test_webhook_is_recorded_before_its_201_reply(tmp_path):
    with replay() as studio, open_bridge(studio, tmp_path / "out") as (_, session, client):
        recorded_count = 0
        for webhook in WEBHOOKS:
            reply = client.post("/webhook", json=webhook)
            assert reply.status_code == 201, reply.text
            recorded_count += webhook["action"] in (
                "ANNOTATION_CREATED",
                "ANNOTATION_UPDATED",
                "ANNOTATIONS_DELETED",
            )
            assert read_events(session) == RECORDED_EVENTS[:recorded_count]
        assert recorded_count == 5
        for webhook in WEBHOOKS[1:3]:  # repeated old webhooks: a correction and its reverse
            client.post("/webhook", json=webhook)
        assert read_events(session)[5:] == RECORDED_EVENTS[:2]
        for webhook in WEBHOOKS[2:4]:
            client.post("/webhook", json=webhook)
        assert len(read_events(session)) == 7  # no new event
        assert dict(session.service.label_state.labels) == {
            session.service.items.ids.index(f"{TASKS[0]}.txt"): 1
        }


def test_update_order_serves_the_next_query_first(tmp_path):
    with replay() as studio, open_bridge(studio, tmp_path / "out") as (bridge, session, client):
        client.post("/webhook", json=WEBHOOKS[1])
        rows = studio.sent("POST", "/import/predictions")[-1]
        change = studio.sent("PATCH", f"/projects/{studio.project}/")[-1]
        assert change == {
            "model_version": rows[0]["model_version"],
            "sampling": "Uncertainty sampling",
        }
        assert [row["score"] for row in rows] == sorted({row["score"] for row in rows})
        query = session.service.next_query(ANNA)
        assert f"{rows[0]['task']}.txt" == query["item"]
        assert rows[0]["result"] == []
        order = [path for method, path, _ in studio.requests if method in ("POST", "PATCH")]
        assert order[-2:] == [
            f"/api/projects/{studio.project}/import/predictions",
            f"/api/projects/{studio.project}/",
        ]
        before = len(studio.requests)
        bridge.update_order()
        assert len(studio.requests) == before  # an unchanged order is not sent again
        label = {**WEBHOOKS[1]["annotation"], "id": 900, "task": rows[0]["task"]}
        client.post("/webhook", json={**WEBHOOKS[1], "annotation": label})
        assert read_serving_order(studio, [TASKS[0], rows[0]["task"]])[0] == int(
            session.service.next_query(ANNA, fresh=True)["item"].removesuffix(".txt")
        )
        assert (
            len(studio.sent("PATCH", f"/projects/{studio.project}/")) == 1
        )  # the project is not changed again


@pytest.mark.parametrize("annotators", [1, 3])
def test_next_task_is_the_best_that_no_annotator_holds(tmp_path, annotators):
    """Label Studio chooses by score, whatever tasks other annotators hold."""
    with replay() as studio:
        rows = [{"id": i, "data": row} for i, row in enumerate(make_tasks(60), 1)]
        studio.replies["tasks"] = {"total": len(rows), "tasks": rows}
        user = studio.replies["people"][0]
        studio.replies["people"] = [
            {**user, "id": i, "email": f"{i}@example.org"} for i in range(1, 7)
        ]
        leased, answered, rng = {}, [], random.Random(annotators)
        with open_bridge(studio, tmp_path / "out", start_schedule=True) as (
            bridge,
            session,
            client,
        ):
            bridge.reconcile()
            for number in range(24):
                wait_until_idle(session)
                bridge.update_order()
                ranking = [bridge.tasks[p] for p in session.service.rank_items()]
                free = [t for t in read_serving_order(studio, answered) if t not in leased.values()]
                assert len(free) >= min(6, len(ranking)) - len(
                    leased
                )  # every annotator finds a task
                who = number % annotators + 1 if number < annotators else rng.randint(1, annotators)
                if who not in leased:
                    assert free[0] == next(t for t in ranking if t not in leased.values())
                    leased[who] = free[0]
                if rng.random() < 0.5:  # otherwise the annotator keeps the task
                    answered.append(leased.pop(who))
                    annotation = {
                        **WEBHOOKS[1]["annotation"],
                        "id": 900 + number,
                        "completed_by": who,
                    }
                    annotation |= {
                        "task": answered[-1],
                        "result": make_choice(rows[answered[-1] - 1]["data"]["truth"]),
                    }
                    client.post("/webhook", json={**WEBHOOKS[1], "annotation": annotation})
        assert len(answered) > 5


def test_update_order_serves_enough_tasks_after_a_skip(tmp_path):
    with replay() as studio, open_bridge(studio, tmp_path / "out") as (bridge, session, _):
        studio.replies["people"].append(
            {**studio.replies["people"][0], "id": 2, "email": "ben@example.org"}
        )
        skip = WEBHOOKS[3]["annotation"]
        first = next(iter(session.service.rank_items()))
        task = bridge.tasks[first]
        bridge.record_annotations(
            [{**skip, "task": task}, {**skip, "id": 900, "task": TASKS[4], "completed_by": 2}]
        )
        bridge.update_order()
        served = [row["task"] for row in studio.sent("POST", "/import/predictions")[-1]]
        for answered in ({task}, {TASKS[4]}):
            assert len(set(served) - answered) >= min(4, len(TASKS) - 1)
        assert session.service.label_state.answered_positions.keys() == {ANNA, "ben@example.org"}


def test_deleted_annotation_is_undone_after_a_restart(tmp_path):
    with replay() as studio:
        with open_bridge(studio, tmp_path / "out") as (_, session, client):
            for webhook in WEBHOOKS[1:5]:
                client.post("/webhook", json=webhook)
            assert len(session.service.label_state.labels) == 2
        with open_bridge(studio, tmp_path / "out") as (_, session, client):
            client.post("/webhook", json=WEBHOOKS[5])
            assert read_events(session) == RECORDED_EVENTS


def test_deletion_of_a_corrected_annotation_restores_no_label(tmp_path):
    with replay() as studio, open_bridge(studio, tmp_path / "out") as (bridge, session, client):
        for webhook in WEBHOOKS[1:3]:
            client.post("/webhook", json=webhook)
        number = WEBHOOKS[1]["annotation"]["id"]
        client.post(
            "/webhook", json={**WEBHOOKS[5], "annotations": [{"id": number}, {"id": 10**6}]}
        )
        assert not session.service.label_state.labels
        assert bridge.undo_annotations([number]) == 0


def test_reconcile_records_missed_annotations_and_deletions(tmp_path):
    existing = [a for t in RECORDED["replies"]["annotations"] for a in t["annotations"]]
    with replay() as studio, open_bridge(studio, tmp_path / "out") as (bridge, session, client):
        deleted = WEBHOOKS[4]["annotation"]
        client.post("/webhook", json=WEBHOOKS[4])  # deleted without a webhook; its id is reused
        client.post(
            "/webhook", json={**WEBHOOKS[4], "annotation": {**deleted, "id": 900, "task": TASKS[3]}}
        )
        assert deleted["id"] in {a["id"] for a in existing if a["task"] != deleted["task"]}
        studio.replies["annotations"] = RECORDED["replies"]["annotations"]
        of_known_tasks = [a for a in existing if a["task"] in bridge.positions]
        assert bridge.reconcile() == (len(of_known_tasks), 1)
        recorded = {(task, kind, label) for kind, _, task, label in read_events(session)}
        assert {(str(TASKS[0]), "label", "food"), (str(TASKS[1]), "skip", None)} <= recorded
        assert bridge.reconcile() == (0, 0)
        assert {task for _, _, task, _ in read_events(session)} >= {
            str(deleted["task"]),
            str(TASKS[3]),
        }
        labelled = {session.service.items.ids[p] for p in session.service.label_state.labels}
        assert labelled == {f"{a['task']}.txt" for a in of_known_tasks if not a["was_cancelled"]}


def test_unreachable_label_studio_delays_the_order_but_loses_no_annotation(
    tmp_path, monkeypatch, caplog
):
    with replay() as studio, open_bridge(studio, tmp_path / "out") as (bridge, session, client):
        client.post("/webhook", json=WEBHOOKS[1])
        first = studio.sent("POST", "/import/predictions")[-1][0]["task"]
        second = {**WEBHOOKS[4], "annotation": {**WEBHOOKS[4]["annotation"], "task": first}}
        bridge._served = bridge._served[:2]  # so that a new order has to be sent
        studio.down = True
        assert client.post("/webhook", json=second).status_code == 201
        assert len(session.service.label_state.labels) == 2
        assert not bridge.is_current
        assert "no annotation is lost" in caplog.text
        with pytest.raises(Unreachable, match="cannot be reached"):
            bridge._compare_with_studio()
        studio.down, before = False, len(studio.sent("POST", "/import/predictions"))
        studio.replies["annotations"] = [
            {"id": w["annotation"]["task"], "annotations": [w["annotation"]]}
            for w in (WEBHOOKS[1], second)
        ]
        bridge._compare_with_studio()
        assert bridge.is_current
        assert len(studio.sent("POST", "/import/predictions")) == before + 1
        assert len(read_events(session)) == 2
        assert studio.sent("DELETE", "/model-versions/")  # outdated model versions are removed


def test_annotation_without_a_webhook_is_recorded_with_a_warning(tmp_path, caplog):
    with replay() as studio, open_bridge(studio, tmp_path / "out") as (bridge, session, _):
        studio.replies["annotations"] = RECORDED["replies"]["annotations"]
        bridge._compare_with_studio()
        assert not session.service.label_state.labels  # the webhook may be late
        bridge._compare_with_studio()
        assert session.service.label_state.labels
        assert "without a webhook call" in caplog.text


def test_gateway_refuses_wrong_secrets_other_projects_and_page_answers(tmp_path):
    with replay() as studio, open_bridge(studio, tmp_path / "out") as (_, session, client):
        assert (
            client.post("/webhook", json=WEBHOOKS[1], headers={SECRET_HEADER: "wrong"}).status_code
            == 401
        )
        assert (
            client.post(
                "/predict", json={"tasks": []}, headers={SECRET_HEADER: "wrong"}
            ).status_code
            == 401
        )
        of_other_project = {**WEBHOOKS[1], "project": {**WEBHOOKS[1]["project"], "id": 99}}
        assert client.post("/webhook", json=of_other_project).status_code == 201
        assert read_events(session) == []
        refused = client.post("/webhook", content=b"{}", headers={"Content-Length": str(10**9)})
        assert refused.status_code == 413
        labelled = client.post("/api/answers", json={"position": 0, "kind": "label", "label": 0})
        assert labelled.status_code == 403
        assert client.get("/api/question").status_code == 403
        assert client.get("/api/progress").status_code == 200
        assert client.get("/api/export/csv").status_code == 200


def test_ml_backend_answers_recorded_requests(tmp_path):
    with (
        replay() as studio,
        open_bridge(studio, tmp_path / "out", predictions=True) as (_, _, client),
    ):
        requests = {r["path"].partition("?")[0]: r for r in RECORDED["backend"]}
        assert set(requests) == {"/health", "/setup", "/predict", "/versions", "/webhook"}
        assert client.get("/health").json()["status"] == "UP"
        assert client.get("/versions").json() == {"versions": ["labelahead"]}
        assert client.post("/setup", json=requests["/setup"]["body"]).json() == {
            "model_version": "labelahead"
        }
        tasks = requests["/predict"]["body"]["tasks"]
        reply = client.post("/predict", json=requests["/predict"]["body"]).json()
        assert [r["result"] for r in reply["results"]] == [[] for _ in tasks]  # no prediction yet
        basic = {"Authorization": "Basic " + base64.b64encode(b"labelahead:s3cret-s3cret").decode()}
        client.headers.pop(SECRET_HEADER)
        assert (
            client.post("/predict", json=requests["/predict"]["body"], headers=basic).status_code
            == 200
        )
        assert client.post("/predict", json=requests["/predict"]["body"]).status_code == 401
        assert (
            client.post("/webhook", json=requests["/webhook"]["body"], headers=basic).status_code
            == 201
        )


def test_predictions_have_probabilities_and_are_ordered_by_rank(tmp_path):
    with (
        replay() as studio,
        open_bridge(studio, tmp_path / "out", predictions=True, start_schedule=True) as (
            bridge,
            session,
            client,
        ),
    ):
        for webhook in (WEBHOOKS[1], WEBHOOKS[4]):
            client.post("/webhook", json=webhook)
        wait_until_idle(session)
        bridge.update_order(force=True)
        rows = studio.sent("POST", "/import/predictions")[-1]
        current = CurrentModel(session.service)
        query = session.service.next_query(ANNA, fresh=True)
        assert (
            query["position"]
            == bridge.positions[rows[0]["task"]]
            == next(session.service.rank_items())
        )
        for rank, row in enumerate(rows):
            label, p = current.predict_item(bridge.positions[row["task"]])
            assert row["score"] == 0.5 + rank / 1000
            assert row["result"][0]["value"]["choices"] == [
                session.service.label_state.classes[label]
            ]
            assert row["result"][0]["score"] == round(p, 6)
        results = client.post("/predict", json={"tasks": [{"id": TASKS[3]}, {"id": 10**6}]}).json()[
            "results"
        ]
        assert results[0]["score"] > 0
        assert results[1]["result"] == []


def test_bridge_restarts_once_an_import_of_new_tasks_is_complete(tmp_path):
    with replay() as studio, open_bridge(studio, tmp_path / "out") as (bridge, _, client):
        bridge.timing = BridgeTiming(quiet_seconds=0.2, poll_seconds=0.05)
        ready, renewed = threading.Event(), threading.Event()
        bridge.start("http://127.0.0.1:9/webhook", {SECRET_HEADER: "s"}, ready.set, renewed.set)
        assert ready.wait(PATIENCE)
        known_tasks = {**WEBHOOKS[0], "tasks": [{"id": number} for number in TASKS]}
        client.post("/webhook", json=known_tasks)
        assert not renewed.wait(0.5)
        client.post("/webhook", json={**known_tasks, "tasks": [{"id": 10**6}]})
        assert renewed.wait(PATIENCE)
        assert bridge.is_outdated


def test_edited_labelling_config_is_applied_to_earlier_annotations(tmp_path, caplog):
    """The choice gets another name and one more class; earlier annotations are read again."""
    with replay() as studio, open_bridge(studio, tmp_path / "out") as (bridge, session, client):
        bridge._compare_with_studio()
        assert "configuration" not in caplog.text
        edited = CONFIG.replace('name="topic"', 'name="what"').replace(
            "</Choices>", '<Choice value="art"/></Choices>'
        )
        annotation = {
            **WEBHOOKS[1]["annotation"],
            "result": [{**make_choice("art")[0], "from_name": "what"}],
        }
        client.post("/webhook", json={**WEBHOOKS[1], "annotation": annotation})
        assert [kind for kind, *_ in read_events(session)] == ["unsure"]
        studio.replies["project"]["label_config"] = edited
        studio.replies["annotations"] = [{"id": annotation["task"], "annotations": [annotation]}]
        bridge._compare_with_studio()
        assert read_events(session)[-1] == ("label", ANNA, str(annotation["task"]), "art")
        assert bridge.interface.choices == ("sport", "food", "space", "art")
        assert "sport, food, space, art; 1 annotations" in caplog.text
        second = edited.replace(
            "</View>", '<Choices name="b" toName="text"><Choice value="x"/></Choices></View>'
        )
        studio.replies["project"]["label_config"] = second
        bridge._compare_with_studio()
        assert "2 <Choices>" in caplog.text
        assert bridge.interface.result("gone", 0.5) == []
        client.post(
            "/webhook",
            json={**WEBHOOKS[4], "annotation": {**annotation, "id": 900, "task": TASKS[3]}},
        )
        assert read_events(session)[-1] == ("label", ANNA, str(TASKS[3]), "art")


def test_changed_sampling_setting_is_restored_with_a_warning(tmp_path, caplog):
    with replay() as studio, open_bridge(studio, tmp_path / "out") as (bridge, session, client):
        client.post("/webhook", json=WEBHOOKS[1])
        bridge._compare_with_studio()
        assert len(studio.sent("PATCH", f"/projects/{studio.project}/")) == 1
        studio.replies["project"]["sampling"] = "Sequential sampling"
        bridge._compare_with_studio()
        assert "stop labelahead before you change it" in caplog.text
        assert studio.replies["project"]["sampling"] == "Uncertainty sampling"
        assert read_serving_order(studio) == [bridge.tasks[p] for p in session.service.rank_items()]
