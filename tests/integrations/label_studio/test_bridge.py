"""The bridge to Label Studio, with recorded requests.

Every annotation is recorded and the best tasks are served first, also after failures.
"""

import base64
import csv
import json
import random
import threading
from contextlib import contextmanager

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.errors import InputError
from labelahead.integrations.label_studio import bridge as bridge_module
from labelahead.integrations.label_studio import tasks as tasks_module
from labelahead.integrations.label_studio.client import LabelStudioClient, Unreachable
from labelahead.integrations.label_studio.connection import Connection
from labelahead.integrations.label_studio.gateway import SECRET, LabelStudioGateway, protocol
from labelahead.integrations.label_studio.image_text import PICTURES_VARIABLE, picture_and_text
from labelahead.integrations.label_studio.interface import read_interface
from labelahead.integrations.label_studio.payloads import WEBHOOK_ACTIONS
from labelahead.learner.config import parse_campaign
from labelahead.models import image_encoder as backbone
from labelahead.models import sentence_encoder as sentences
from labelahead.server.app import create_app
from labelahead.server.fitting import CurrentModel
from labelahead.server.session import open_session
from tests.support.label_studio import (
    CONFIG,
    KEY,
    RECORDED,
    free_port,
    make_choice,
    make_tasks,
    replay,
)
from tests.support.waiting import PATIENCE, until

TASKS = [t["id"] for t in RECORDED["replies"]["tasks"]["tasks"]]
WEBHOOKS = [w["body"] for w in RECORDED["webhooks"]]
ANNA = "anna@example.org"
NO_ANNOTATIONS: list = []


@contextmanager
def open_bridge(
    studio, out, *, annotations=NO_ANNOTATIONS, predictions=False, start_schedule=False
):
    """Open a session of the replayed project with its bridge and a client of the gateway."""
    studio.replies["annotations"] = annotations
    connection = Connection.open(studio.url, KEY, studio.project, out)
    fetched = connection.fetch_tasks(lambda done, of: None)
    tables = {"data": {"name": str(fetched.folder), "embedding": "words"}, "threads": 1}
    with open_session(parse_campaign(tables), out, classes=connection.interface.choices) as session:
        if start_schedule:
            session.schedule.start()
        bridge = connection.make_bridge(session.service, fetched, predictions=predictions)
        page = create_app(session.service, session.schedule)
        with TestClient(
            LabelStudioGateway(protocol(bridge), page, secret="s3cret-s3cret"),
            base_url="http://127.0.0.1",
        ) as client:
            client.headers[SECRET] = "s3cret-s3cret"
            yield bridge, session, client


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


def read_serving_order(studio, solved=frozenset()) -> list[int]:
    """Return tasks in the order in which Label Studio serves them, without `solved`."""
    version = studio.sent("PATCH", f"/projects/{studio.project}/")[-1]["model_version"]
    sent = [row for rows in studio.sent("POST", "/import/predictions") for row in rows]
    rows = sorted((row["score"], row["task"]) for row in sent if row["model_version"] == version)
    assert all(0 < score < 1 for score, _ in rows)
    assert len({score for score, _ in rows}) == len(rows)
    return [task for task in dict.fromkeys(task for _, task in rows) if task not in solved]


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


def wait_until_idle(session) -> None:
    """Wait until the page model is up to date."""
    until(
        lambda: (
            session.service.page_model
            and not session.service.is_behind
            and session.schedule.is_idle
        )
    )


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
            client.post("/webhook", json=WEBHOOKS[1], headers={SECRET: "wrong"}).status_code == 401
        )
        assert (
            client.post("/predict", json={"tasks": []}, headers={SECRET: "wrong"}).status_code
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
        client.headers.pop(SECRET)
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
        bridge.update_order(anew=True)
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


UNSUPPORTED_CONFIGS = [
    (
        '<View><Image name="i" value="$i"/><RectangleLabels name="l" toName="i"/></View>',
        "RectangleLabels",
    ),
    (CONFIG.replace('toName="text"', 'toName="text" choice="multiple"', 1), "several choices"),
    (
        CONFIG.replace(
            "</View>", '<Choices name="b" toName="text"><Choice value="x"/></Choices></View>'
        ),
        "2 <Choices>",
    ),
    (CONFIG.replace('value="food"', 'value="Sport"'), "capital letters"),
    (CONFIG.replace('value="$text"', 'value="text"'), "one field"),
    (CONFIG.replace('<Choice value="food"/><Choice value="space"/>', ""), "two or more"),
    ('<View><Text name="t" value="$t"/></View>', "0 <Choices>"),
    ("<View>", "not valid XML"),
]


@pytest.mark.parametrize(("config", "message"), UNSUPPORTED_CONFIGS)
def test_unsupported_labelling_config_is_refused_before_a_folder_is_made(tmp_path, config, message):
    with replay() as studio:
        studio.replies["project"]["label_config"] = config
        with pytest.raises(InputError, match=message):
            Connection.open(studio.url, KEY, studio.project, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_read_interface_reads_choices_images_and_texts():
    config = CONFIG.replace(
        "<View>", '<View><Header value="What?"/><Image name="i" value="$picture"/>'
    )
    config = config.replace('<Choice value="food"/>', '<Choice value="food" alias="eat"/>')
    interface = read_interface(config)
    assert (interface.name, interface.choices) == ("topic", ("sport", "eat", "space"))
    assert (interface.pictures, interface.texts) == (("picture",), ("text",))
    assert interface.label(make_choice("eat")) == "eat"
    assert interface.label(make_choice("eat") + make_choice("sport")) is None
    assert interface.label([]) is None


def test_fetch_tasks_appends_new_tasks_and_excludes_removed_ones(tmp_path):
    with replay() as studio:
        tasks = studio.replies["tasks"]
        new_task = tasks["tasks"].pop(0)  # its name sorts first
        tasks["total"] -= 1
        with open_bridge(studio, tmp_path / "out") as (_, session, client):
            client.post("/webhook", json=WEBHOOKS[4])
            before = list(session.service.items.ids)
            assert before == sorted(f"{t['id']}.txt" for t in tasks["tasks"])
            labels = dict(session.service.label_state.labels)
        tasks["tasks"].insert(0, new_task)
        removed_task = tasks["tasks"].pop()
        with open_bridge(studio, tmp_path / "out") as (bridge, session, _):
            assert session.service.items.ids == (*before, f"{new_task['id']}.txt")
            assert dict(session.service.label_state.labels) == labels
            assert any("1 new texts" in note for note in session.notes)
            assert bridge.positions[removed_task["id"]] not in set(session.service.rank_items())
            assert bridge.positions[new_task["id"]] in set(session.service.rank_items())


def test_bridge_restarts_once_an_import_of_new_tasks_is_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(bridge_module, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(bridge_module, "POLL_SECONDS", 0.05)
    with replay() as studio, open_bridge(studio, tmp_path / "out") as (bridge, _, client):
        ready, renewed = threading.Event(), threading.Event()
        bridge.start("http://127.0.0.1:9/webhook", {SECRET: "s"}, ready.set, renewed.set)
        assert ready.wait(PATIENCE)
        known_tasks = {**WEBHOOKS[0], "tasks": [{"id": number} for number in TASKS]}
        client.post("/webhook", json=known_tasks)
        assert not renewed.wait(0.5)
        client.post("/webhook", json={**known_tasks, "tasks": [{"id": 10**6}]})
        assert renewed.wait(PATIENCE)
        assert bridge.is_outdated


def test_folder_of_another_project_is_refused(tmp_path):
    with replay() as studio:
        Connection.open(studio.url, KEY, studio.project, tmp_path / "out")
        studio.replies["project"]["created_at"] = "2020-01-01T00:00:00Z"
        with pytest.raises(InputError, match="choose another folder"):
            Connection.open(studio.url, KEY, studio.project, tmp_path / "out")


def test_fetch_tasks_downloads_images_without_sending_the_token_elsewhere(tmp_path):
    image_path = tmp_path / "a.png"
    Image.new("RGB", (8, 8), (200, 10, 10)).save(image_path)
    inline = "data:image/png;base64," + base64.b64encode(image_path.read_bytes()).decode()
    with replay() as studio, replay() as other_server:
        studio.files = other_server.files = {
            "/data/upload/1/a%20b.png": image_path.read_bytes(),
            "/c.png": image_path.read_bytes(),
        }
        studio.replies["project"]["label_config"] = CONFIG.replace("Text", "Image").replace(
            "$text", "$image"
        )
        addresses = [
            "/data/upload/1/a b.png",
            f"{other_server.url}/c.png",
            inline,
            "/data/gone.png",
            "file:///etc/passwd",
        ]
        rows = [{"id": i, "data": {"image": address}} for i, address in enumerate(addresses, 1)]
        studio.replies["tasks"] = {"total": len(rows), "tasks": rows}
        connection = Connection.open(studio.url, KEY, studio.project, tmp_path / "out")
        fetched = connection.fetch_tasks(lambda done, of: None)
        assert sorted(p.name for p in fetched.folder.iterdir()) == ["1.png", "2.png", "3.jpg"]
        assert {p.read_bytes() for p in fetched.folder.iterdir()} == {image_path.read_bytes()}
        assert fetched.tasks == {1, 2, 3, 4, 5}
        assert "2 tasks cannot be downloaded" in fetched.notes[0]
        assert not other_server.requests  # requests with the token would be recorded here


def test_fetch_tasks_leaves_out_images_of_unreachable_hosts(tmp_path, monkeypatch):
    """Dead links are given up after a few attempts.

    Files of Label Studio itself are retried.
    """
    monkeypatch.setattr(tasks_module, "PARALLEL_DOWNLOADS", 1)
    with replay() as studio:
        studio.files = {"/data/upload/1/a.png": b"x"}
        studio.replies["project"]["label_config"] = CONFIG.replace("Text", "Image").replace(
            "$text", "$image"
        )
        dead_url = f"http://127.0.0.1:{free_port()}"
        addresses = [
            "/data/upload/1/a.png",
            "http://[::bad/c.png",
            "data:image/png;base64,abc",
            "s3://bucket/a.png",
        ]
        addresses += [f"{dead_url}/{i}.png" for i in range(20)]
        rows = [{"id": i, "data": {"image": address}} for i, address in enumerate(addresses, 1)]
        studio.replies["tasks"] = {"total": len(rows), "tasks": rows}
        connection = Connection.open(studio.url, KEY, studio.project, tmp_path / "out")
        requested, request = [], LabelStudioClient._request
        monkeypatch.setattr(
            LabelStudioClient,
            "_request",
            lambda self, r, **arguments: (
                requested.append(r.full_url) or request(self, r, **arguments)
            ),
        )
        fetched = connection.fetch_tasks(lambda done, of: None)
        assert [p.name for p in fetched.folder.iterdir()] == ["1.png"]
        assert len([url for url in requested if url.startswith(dead_url)]) == 8
        assert "23 tasks cannot be downloaded" in fetched.notes[0]
        with pytest.raises(InputError, match=r"s3://bucket/a.png is in no storage"):
            connection.studio.download("s3://bucket/a.png", 4)
        with pytest.raises(Unreachable, match="cannot be reached") as unreachable:
            connection.studio.download(f"{dead_url}/1.png", 5)
        assert unreachable.value.elsewhere
        studio.down = True
        with pytest.raises(Unreachable) as unreachable:
            connection.studio.download("/data/upload/1/a.png", 1)
        assert not unreachable.value.elsewhere


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


def test_client_refuses_wrong_tokens_projects_and_addresses(tmp_path):
    with replay() as studio:
        with pytest.raises(InputError, match="does not know the access token"):
            LabelStudioClient(studio.url, "wrong", studio.project).get_project()
        with pytest.raises(InputError, match="no project 77"):
            LabelStudioClient(studio.url, KEY, 77).get_project()
    with pytest.raises(InputError, match="expected http"):
        LabelStudioClient("localhost:8080", KEY, 1)


def test_label_studio_command_without_a_token_is_refused(monkeypatch):
    monkeypatch.delenv("LABEL_STUDIO_API_KEY", raising=False)
    result = CliRunner().invoke(app, ["label-studio", "http://127.0.0.1:9", "--project", "1"])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    "address", ["http://labelahead:8770", "labelahead.internal:8770", "http://"]
)
def test_label_studio_command_refuses_webhook_urls_without_a_dot(monkeypatch, address):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    result = CliRunner().invoke(
        app, ["label-studio", "http://127.0.0.1:9", "--project", "1", "--webhook-url", address]
    )
    assert result.exit_code == 2
    assert "name with a dot" in " ".join(result.output.split())


def test_label_studio_command_exports_the_projects_annotations(tmp_path, monkeypatch):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    with replay() as studio:
        to = tmp_path / "labels.csv"
        command = [
            "label-studio",
            studio.url,
            "--project",
            str(studio.project),
            "--out",
            str(tmp_path / "out"),
        ]
        result = CliRunner().invoke(
            app, [*command, "--embedding", "words", "--export", "csv", "--to", str(to)]
        )
        assert result.exit_code == 0, result.output
        with to.open(newline="", encoding="utf-8") as file:
            rows = {row["id"]: row for row in csv.DictReader(file)}
        assert [rows[f"{TASKS[0]}.txt"][name] for name in ("label", "annotator", "source")] == [
            "food",
            ANNA,
            "label",
        ]
        label_command = ["label", str(tmp_path / "out" / "items"), "--out", str(tmp_path / "out")]
        offline = CliRunner().invoke(
            app, [*label_command, "--export", "jsonl", "--to", str(tmp_path / "labels.jsonl")]
        )
        assert offline.exit_code == 0, offline.output
        exported = [
            json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()
        ]
        assert {row["id"] for row in exported} == set(rows)


@pytest.mark.skipif(
    not (backbone.is_image_encoder_available() and sentences.is_sentence_encoder_available()),
    reason="needs pretrained networks",
)
def test_picture_and_text_concatenates_image_and_text_features(tmp_path, monkeypatch):
    monkeypatch.setenv(PICTURES_VARIABLE, str(tmp_path))
    for name, colour in (("1.png", (250, 0, 0)), ("2.png", (0, 0, 250))):
        Image.new("RGB", (64, 64), colour).save(tmp_path / name)
    features = picture_and_text(["soup\n\n1.png", "soup\n\n2.png", "a rocket\n\n1.png"])
    assert features.shape == (3, 1280 + 384)
    assert torch.allclose(features[0, 1280:], features[1, 1280:], atol=1e-5)
    assert torch.allclose(features[0, :1280], features[2, :1280], atol=1e-5)
    assert not torch.allclose(features[0, :1280], features[1, :1280], atol=1e-3)
    assert torch.allclose(features.square().sum(1), torch.full((3,), 2.0), atol=1e-4)


def test_register_webhook_excludes_project_updates_and_reuses_an_old_webhook(tmp_path):
    with replay() as studio:
        LabelStudioClient(studio.url, KEY, studio.project).register_webhook(
            "http://x/webhook", WEBHOOK_ACTIONS, {SECRET: "s"}
        )
        (hook,) = studio.sent("POST", "/api/webhooks/")
        assert "PROJECT_UPDATED" not in hook["actions"]
        studio.replies["hooks"] = [
            {"id": 7, "url": "http://old/webhook", "headers": {SECRET: "old"}}
        ]
        LabelStudioClient(studio.url, KEY, studio.project).register_webhook(
            "http://x/webhook", WEBHOOK_ACTIONS, {SECRET: "s"}
        )
        assert studio.sent("PATCH", "/api/webhooks/7/")
        assert len(studio.sent("POST", "/api/webhooks/")) == 1
