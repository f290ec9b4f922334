"""Label Studio behind recorded requests.

Every annotation in the record, the best tasks first, whatever goes away.
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
from tests.support.label_studio import CONFIG, KEY, RECORDED, choice, free_port, replay, texts
from tests.support.waiting import PATIENCE, until

TASKS = [t["id"] for t in RECORDED["replies"]["tasks"]["tasks"]]
WEBHOOKS = [w["body"] for w in RECORDED["webhooks"]]
ANNA = "anna@example.org"
NONE: list = []


@contextmanager
def joined(studio, out, *, there=NONE, predictions=False, started=False):
    """A session of the replayed project, its bridge, and a client of what Label Studio may call."""
    studio.replies["annotations"] = there
    connection = Connection.open(studio.url, KEY, studio.project, out)
    fetched = connection.fetch_tasks(lambda done, of: None)
    tables = {"data": {"name": str(fetched.folder), "embedding": "words"}, "threads": 1}
    with open_session(parse_campaign(tables), out, classes=connection.interface.choices) as session:
        if started:
            session.schedule.start()
        bridge = connection.make_bridge(session.service, fetched, predictions=predictions)
        page = create_app(session.service, session.schedule)
        with TestClient(
            LabelStudioGateway(protocol(bridge), page, secret="s3cret-s3cret"),
            base_url="http://127.0.0.1",
        ) as client:
            client.headers[SECRET] = "s3cret-s3cret"
            yield bridge, session, client


def kinds(session) -> list[tuple]:
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


SAID = [
    ("label", ANNA, str(TASKS[0]), "sport"),
    ("label", ANNA, str(TASKS[0]), "food"),  # a correction
    ("skip", ANNA, str(TASKS[1]), None),
    ("label", ANNA, str(TASKS[2]), "space"),
    ("undo", ANNA, str(TASKS[2]), None),  # deleted
]


def test_recorded_webhooks_become_events_and_are_on_the_disk_at_201(tmp_path):
    with replay() as studio, joined(studio, tmp_path / "out") as (_, session, client):
        heard = 0
        for told in WEBHOOKS:
            reply = client.post("/webhook", json=told)
            assert reply.status_code == 201, reply.text
            heard += told["action"] in (
                "ANNOTATION_CREATED",
                "ANNOTATION_UPDATED",
                "ANNOTATIONS_DELETED",
            )
            assert kinds(session) == SAID[:heard]
        assert heard == 5
        for told in WEBHOOKS[
            1:3
        ]:  # the oldest of them twice: a correction and its opposite are two events more
            client.post("/webhook", json=told)
        assert kinds(session)[5:] == SAID[:2]
        for told in WEBHOOKS[2:4]:
            client.post("/webhook", json=told)
        assert len(kinds(session)) == 7  # nothing new, nothing doubled
        assert dict(session.service.label_state.labels) == {
            session.service.items.ids.index(f"{TASKS[0]}.txt"): 1
        }


def test_what_is_served_first_is_what_would_be_asked_next(tmp_path):
    with replay() as studio, joined(studio, tmp_path / "out") as (bridge, session, client):
        client.post("/webhook", json=WEBHOOKS[1])
        rows = studio.sent("POST", "/import/predictions")[-1]
        change = studio.sent("PATCH", f"/projects/{studio.project}/")[-1]
        assert change == {
            "model_version": rows[0]["model_version"],
            "sampling": "Uncertainty sampling",
        }
        assert [row["score"] for row in rows] == sorted({row["score"] for row in rows})
        asked = session.service.next_query(ANNA)
        assert f"{rows[0]['task']}.txt" == asked["item"]
        assert rows[0]["result"] == []
        order = [path for method, path, _ in studio.asked if method in ("POST", "PATCH")]
        assert order[-2:] == [
            f"/api/projects/{studio.project}/import/predictions",
            f"/api/projects/{studio.project}/",
        ]
        before = len(studio.asked)
        bridge.update_order()
        assert len(studio.asked) == before  # the same again is not sent again
        label = {**WEBHOOKS[1]["annotation"], "id": 900, "task": rows[0]["task"]}
        client.post("/webhook", json={**WEBHOOKS[1], "annotation": label})
        assert served_by(studio, [TASKS[0], rows[0]["task"]])[0] == int(
            session.service.next_query(ANNA, fresh=True)["item"].removesuffix(".txt")
        )
        assert (
            len(studio.sent("PATCH", f"/projects/{studio.project}/")) == 1
        )  # at most one more call


def served_by(studio, solved=frozenset()) -> list[int]:
    """Tasks in the order in which Label Studio would serve them to one who has these behind them."""
    version = studio.sent("PATCH", f"/projects/{studio.project}/")[-1]["model_version"]
    sent = [row for rows in studio.sent("POST", "/import/predictions") for row in rows]
    rows = sorted((row["score"], row["task"]) for row in sent if row["model_version"] == version)
    assert all(0 < score < 1 for score, _ in rows)
    assert len({score for score, _ in rows}) == len(rows)
    return [task for task in dict.fromkeys(task for _, task in rows) if task not in solved]


@pytest.mark.parametrize("people", [1, 3])
def test_whoever_asks_next_gets_the_best_that_nobody_holds(tmp_path, people):
    """By scores alone, as Label Studio chooses.

    Whatever each of the others holds, and whoever is yet to come.
    """
    with replay() as studio:
        rows = [{"id": i, "data": row} for i, row in enumerate(texts(60), 1)]
        studio.replies["tasks"] = {"total": len(rows), "tasks": rows}
        one = studio.replies["people"][0]
        studio.replies["people"] = [
            {**one, "id": i, "email": f"{i}@example.org"} for i in range(1, 7)
        ]
        held, answered, rng = {}, [], random.Random(people)
        with joined(studio, tmp_path / "out", started=True) as (bridge, session, client):
            bridge.reconcile()
            for number in range(24):
                settled(session)
                bridge.update_order()
                best = [bridge.tasks[p] for p in session.service.rank_items()]
                free = [t for t in served_by(studio, answered) if t not in held.values()]
                assert len(free) >= min(6, len(best)) - len(
                    held
                )  # nobody is told that there are no tasks
                who = number % people + 1 if number < people else rng.randint(1, people)
                if who not in held:
                    assert free[0] == next(t for t in best if t not in held.values())
                    held[who] = free[0]
                if rng.random() < 0.5:  # else it stays theirs for a while
                    answered.append(held.pop(who))
                    annotation = {
                        **WEBHOOKS[1]["annotation"],
                        "id": 900 + number,
                        "completed_by": who,
                    }
                    annotation |= {
                        "task": answered[-1],
                        "result": choice(rows[answered[-1] - 1]["data"]["truth"]),
                    }
                    client.post("/webhook", json={**WEBHOOKS[1], "annotation": annotation})
        assert len(answered) > 5


def settled(session) -> None:
    """Until everything is learnt."""
    until(
        lambda: (
            session.service.page_model
            and not session.service.is_behind
            and session.schedule.is_idle
        )
    )


def test_what_was_skipped_on_top_leaves_everybody_enough(tmp_path):
    with replay() as studio, joined(studio, tmp_path / "out") as (bridge, session, _):
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
        for mine in ({task}, {TASKS[4]}):
            assert len(set(served) - mine) >= min(4, len(TASKS) - 1)
        assert session.service.label_state.answered_positions.keys() == {ANNA, "ben@example.org"}


def test_a_deletion_is_understood_after_a_restart(tmp_path):
    with replay() as studio:
        with joined(studio, tmp_path / "out") as (_, session, client):
            for told in WEBHOOKS[1:5]:
                client.post("/webhook", json=told)
            assert len(session.service.label_state.labels) == 2
        with joined(studio, tmp_path / "out") as (_, session, client):
            client.post("/webhook", json=WEBHOOKS[5])
            assert kinds(session) == SAID


def test_deleting_a_corrected_annotation_brings_nothing_back(tmp_path):
    with replay() as studio, joined(studio, tmp_path / "out") as (bridge, session, client):
        for told in WEBHOOKS[1:3]:
            client.post("/webhook", json=told)
        number = WEBHOOKS[1]["annotation"]["id"]
        client.post(
            "/webhook", json={**WEBHOOKS[5], "annotations": [{"id": number}, {"id": 10**6}]}
        )
        assert not session.service.label_state.labels
        assert bridge.undo_annotations([number]) == 0


def test_what_was_missed_is_made_up_for(tmp_path):
    there = [a for t in RECORDED["replies"]["annotations"] for a in t["annotations"]]
    with replay() as studio, joined(studio, tmp_path / "out") as (bridge, session, client):
        lost = WEBHOOKS[4]["annotation"]
        client.post(
            "/webhook", json=WEBHOOKS[4]
        )  # deleted while nobody listened, and its id given to another
        client.post(
            "/webhook", json={**WEBHOOKS[4], "annotation": {**lost, "id": 900, "task": TASKS[3]}}
        )
        assert lost["id"] in {a["id"] for a in there if a["task"] != lost["task"]}
        studio.replies["annotations"] = RECORDED["replies"]["annotations"]
        known = [a for a in there if a["task"] in bridge.positions]
        assert bridge.reconcile() == (len(known), 1)
        said = {(task, kind, label) for kind, _, task, label in kinds(session)}
        assert {(str(TASKS[0]), "label", "food"), (str(TASKS[1]), "skip", None)} <= said
        assert bridge.reconcile() == (0, 0)
        assert {task for _, _, task, _ in kinds(session)} >= {str(lost["task"]), str(TASKS[3])}
        left = {session.service.items.ids[p] for p in session.service.label_state.labels}
        assert left == {f"{a['task']}.txt" for a in known if not a["was_cancelled"]}


def test_without_label_studio_an_annotation_counts_and_the_rest_follows(
    tmp_path, monkeypatch, caplog
):
    with replay() as studio, joined(studio, tmp_path / "out") as (bridge, session, client):
        client.post("/webhook", json=WEBHOOKS[1])
        first = studio.sent("POST", "/import/predictions")[-1][0]["task"]
        second = {**WEBHOOKS[4], "annotation": {**WEBHOOKS[4]["annotation"], "task": first}}
        bridge._served = bridge._served[:2]  # so that there is something to say
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
        assert len(kinds(session)) == 2
        assert studio.sent("DELETE", "/model-versions/")  # what is served no more is removed


def test_a_webhook_that_never_comes_is_noticed(tmp_path, caplog):
    with replay() as studio, joined(studio, tmp_path / "out") as (bridge, session, _):
        studio.replies["annotations"] = RECORDED["replies"]["annotations"]
        bridge._compare_with_studio()
        assert not session.service.label_state.labels  # it may be on its way
        bridge._compare_with_studio()
        assert session.service.label_state.labels
        assert "without a webhook call" in caplog.text


def test_only_label_studio_is_heard(tmp_path):
    with replay() as studio, joined(studio, tmp_path / "out") as (_, session, client):
        assert (
            client.post("/webhook", json=WEBHOOKS[1], headers={SECRET: "wrong"}).status_code == 401
        )
        assert (
            client.post("/predict", json={"tasks": []}, headers={SECRET: "wrong"}).status_code
            == 401
        )
        elsewhere = {**WEBHOOKS[1], "project": {**WEBHOOKS[1]["project"], "id": 99}}
        assert client.post("/webhook", json=elsewhere).status_code == 201
        assert kinds(session) == []
        huge = client.post("/webhook", content=b"{}", headers={"Content-Length": str(10**9)})
        assert huge.status_code == 413
        labelled = client.post("/api/answers", json={"position": 0, "kind": "label", "label": 0})
        assert labelled.status_code == 403
        assert client.get("/api/question").status_code == 403
        assert client.get("/api/progress").status_code == 200
        assert client.get("/api/export/csv").status_code == 200


def test_recorded_requests_to_an_ml_backend(tmp_path):
    with replay() as studio, joined(studio, tmp_path / "out", predictions=True) as (_, _, client):
        requests = {r["path"].partition("?")[0]: r for r in RECORDED["backend"]}
        assert set(requests) == {"/health", "/setup", "/predict", "/versions", "/webhook"}
        assert client.get("/health").json()["status"] == "UP"
        assert client.get("/versions").json() == {"versions": ["labelahead"]}
        assert client.post("/setup", json=requests["/setup"]["body"]).json() == {
            "model_version": "labelahead"
        }
        tasks = requests["/predict"]["body"]["tasks"]
        reply = client.post("/predict", json=requests["/predict"]["body"]).json()
        assert [r["result"] for r in reply["results"]] == [
            [] for _ in tasks
        ]  # nothing is known yet
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


def test_predictions_say_how_likely_they_are_and_are_ordered_by_rank(tmp_path):
    with (
        replay() as studio,
        joined(studio, tmp_path / "out", predictions=True, started=True) as (
            bridge,
            session,
            client,
        ),
    ):
        for told in (WEBHOOKS[1], WEBHOOKS[4]):
            client.post("/webhook", json=told)
        settled(session)
        bridge.update_order(anew=True)
        rows = studio.sent("POST", "/import/predictions")[-1]
        current = CurrentModel(session.service)
        asked = session.service.next_query(ANNA, fresh=True)
        assert (
            asked["position"]
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


REFUSED = [
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


@pytest.mark.parametrize(("config", "why"), REFUSED)
def test_what_cannot_be_served_is_refused_before_anything_is_written(tmp_path, config, why):
    with replay() as studio:
        studio.replies["project"]["label_config"] = config
        with pytest.raises(InputError, match=why):
            Connection.open(studio.url, KEY, studio.project, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_an_interface_is_read():
    config = CONFIG.replace(
        "<View>", '<View><Header value="What?"/><Image name="i" value="$picture"/>'
    )
    config = config.replace('<Choice value="food"/>', '<Choice value="food" alias="eat"/>')
    interface = read_interface(config)
    assert (interface.name, interface.choices) == ("topic", ("sport", "eat", "space"))
    assert (interface.pictures, interface.texts) == (("picture",), ("text",))
    assert interface.label(choice("eat")) == "eat"
    assert interface.label(choice("eat") + choice("sport")) is None
    assert interface.label([]) is None


def test_tasks_are_fetched_once_and_new_ones_come_into_play(tmp_path):
    with replay() as studio:
        tasks = studio.replies["tasks"]
        late = tasks["tasks"].pop(0)  # its name sorts before those of the others
        tasks["total"] -= 1
        with joined(studio, tmp_path / "out") as (_, session, client):
            client.post("/webhook", json=WEBHOOKS[4])
            before = list(session.service.items.ids)
            assert before == sorted(f"{t['id']}.txt" for t in tasks["tasks"])
            labels = dict(session.service.label_state.labels)
        tasks["tasks"].insert(0, late)
        gone = tasks["tasks"].pop()
        with joined(studio, tmp_path / "out") as (bridge, session, _):
            assert session.service.items.ids == (*before, f"{late['id']}.txt")
            assert dict(session.service.label_state.labels) == labels
            assert any("1 new texts" in note for note in session.notes)
            assert bridge.positions[gone["id"]] not in set(session.service.rank_items())
            assert bridge.positions[late["id"]] in set(session.service.rank_items())


def test_new_tasks_are_a_reason_to_begin_again_when_no_more_are_coming(tmp_path, monkeypatch):
    monkeypatch.setattr(bridge_module, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(bridge_module, "POLL_SECONDS", 0.05)
    with replay() as studio, joined(studio, tmp_path / "out") as (bridge, _, client):
        ready, renewed = threading.Event(), threading.Event()
        bridge.start("http://127.0.0.1:9/webhook", {SECRET: "s"}, ready.set, renewed.set)
        assert ready.wait(PATIENCE)
        same = {**WEBHOOKS[0], "tasks": [{"id": number} for number in TASKS]}
        client.post("/webhook", json=same)
        assert not renewed.wait(0.5)
        client.post("/webhook", json={**same, "tasks": [{"id": 10**6}]})
        assert renewed.wait(PATIENCE)
        assert bridge.is_outdated


def test_a_folder_is_of_one_project(tmp_path):
    with replay() as studio:
        Connection.open(studio.url, KEY, studio.project, tmp_path / "out")
        studio.replies["project"]["created_at"] = "2020-01-01T00:00:00Z"
        with pytest.raises(InputError, match="choose another folder"):
            Connection.open(studio.url, KEY, studio.project, tmp_path / "out")


def test_pictures_come_by_every_way_and_the_token_stays_at_home(tmp_path):
    picture = tmp_path / "a.png"
    Image.new("RGB", (8, 8), (200, 10, 10)).save(picture)
    inline = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    with replay() as studio, replay() as elsewhere:
        studio.files = elsewhere.files = {
            "/data/upload/1/a%20b.png": picture.read_bytes(),
            "/c.png": picture.read_bytes(),
        }
        studio.replies["project"]["label_config"] = CONFIG.replace("Text", "Image").replace(
            "$text", "$image"
        )
        addresses = [
            "/data/upload/1/a b.png",
            f"{elsewhere.url}/c.png",
            inline,
            "/data/gone.png",
            "file:///etc/passwd",
        ]
        rows = [{"id": i, "data": {"image": address}} for i, address in enumerate(addresses, 1)]
        studio.replies["tasks"] = {"total": len(rows), "tasks": rows}
        connection = Connection.open(studio.url, KEY, studio.project, tmp_path / "out")
        fetched = connection.fetch_tasks(lambda done, of: None)
        assert sorted(p.name for p in fetched.folder.iterdir()) == ["1.png", "2.png", "3.jpg"]
        assert {p.read_bytes() for p in fetched.folder.iterdir()} == {picture.read_bytes()}
        assert fetched.tasks == {1, 2, 3, 4, 5}
        assert "2 tasks cannot be downloaded" in fetched.notes[0]
        assert not elsewhere.asked  # with a token it would have been a call of the interface


def test_pictures_of_places_that_are_away_are_left_out(tmp_path, monkeypatch):
    """Dead links, one or thousands, keep nobody waiting.

    What Label Studio itself has is waited for.
    """
    monkeypatch.setattr(tasks_module, "PARALLEL_DOWNLOADS", 1)
    with replay() as studio:
        studio.files = {"/data/upload/1/a.png": b"x"}
        studio.replies["project"]["label_config"] = CONFIG.replace("Text", "Image").replace(
            "$text", "$image"
        )
        dead = f"http://127.0.0.1:{free_port()}"
        addresses = [
            "/data/upload/1/a.png",
            "http://[::bad/c.png",
            "data:image/png;base64,abc",
            "s3://bucket/a.png",
        ]
        addresses += [f"{dead}/{i}.png" for i in range(20)]
        rows = [{"id": i, "data": {"image": address}} for i, address in enumerate(addresses, 1)]
        studio.replies["tasks"] = {"total": len(rows), "tasks": rows}
        connection = Connection.open(studio.url, KEY, studio.project, tmp_path / "out")
        tried, ask = [], LabelStudioClient._request
        monkeypatch.setattr(
            LabelStudioClient,
            "_request",
            lambda self, r, **how: tried.append(r.full_url) or ask(self, r, **how),
        )
        fetched = connection.fetch_tasks(lambda done, of: None)
        assert [p.name for p in fetched.folder.iterdir()] == ["1.png"]
        assert len([url for url in tried if url.startswith(dead)]) == 8
        assert "23 tasks cannot be downloaded" in fetched.notes[0]
        with pytest.raises(InputError, match=r"s3://bucket/a.png is in no storage"):
            connection.studio.download("s3://bucket/a.png", 4)
        with pytest.raises(Unreachable, match="cannot be reached") as away:
            connection.studio.download(f"{dead}/1.png", 5)
        assert away.value.elsewhere
        studio.down = True
        with pytest.raises(Unreachable) as away:
            connection.studio.download("/data/upload/1/a.png", 1)
        assert not away.value.elsewhere


def test_an_edited_configuration_is_followed(tmp_path, caplog):
    """Another name of the choice, and one choice more.

    What was read by the old one is read anew.
    """
    with replay() as studio, joined(studio, tmp_path / "out") as (bridge, session, client):
        bridge._compare_with_studio()
        assert "configuration" not in caplog.text
        edited = CONFIG.replace('name="topic"', 'name="what"').replace(
            "</Choices>", '<Choice value="art"/></Choices>'
        )
        given = {**WEBHOOKS[1]["annotation"], "result": [{**choice("art")[0], "from_name": "what"}]}
        client.post("/webhook", json={**WEBHOOKS[1], "annotation": given})
        assert [kind for kind, *_ in kinds(session)] == ["unsure"]
        studio.replies["project"]["label_config"] = edited
        studio.replies["annotations"] = [{"id": given["task"], "annotations": [given]}]
        bridge._compare_with_studio()
        assert kinds(session)[-1] == ("label", ANNA, str(given["task"]), "art")
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
            "/webhook", json={**WEBHOOKS[4], "annotation": {**given, "id": 900, "task": TASKS[3]}}
        )
        assert kinds(session)[-1] == ("label", ANNA, str(TASKS[3]), "art")


def test_settings_that_are_saved_meanwhile_do_not_end_the_order(tmp_path, caplog):
    with replay() as studio, joined(studio, tmp_path / "out") as (bridge, session, client):
        client.post("/webhook", json=WEBHOOKS[1])
        bridge._compare_with_studio()
        assert len(studio.sent("PATCH", f"/projects/{studio.project}/")) == 1
        studio.replies["project"]["sampling"] = "Sequential sampling"
        bridge._compare_with_studio()
        assert "stop labelahead before you change it" in caplog.text
        assert studio.replies["project"]["sampling"] == "Uncertainty sampling"
        assert served_by(studio) == [bridge.tasks[p] for p in session.service.rank_items()]


def test_wrong_tokens_and_projects_are_said(tmp_path):
    with replay() as studio:
        with pytest.raises(InputError, match="does not know the access token"):
            LabelStudioClient(studio.url, "wrong", studio.project).get_project()
        with pytest.raises(InputError, match="no project 77"):
            LabelStudioClient(studio.url, KEY, 77).get_project()
    with pytest.raises(InputError, match="expected http"):
        LabelStudioClient("localhost:8080", KEY, 1)


def test_the_command_wants_a_token_from_the_environment(monkeypatch):
    monkeypatch.delenv("LABEL_STUDIO_API_KEY", raising=False)
    result = CliRunner().invoke(app, ["label-studio", "http://127.0.0.1:9", "--project", "1"])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    "address", ["http://labelahead:8770", "labelahead.internal:8770", "http://"]
)
def test_the_command_refuses_addresses_that_label_studio_would_not_call(monkeypatch, address):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    result = CliRunner().invoke(
        app, ["label-studio", "http://127.0.0.1:9", "--project", "1", "--webhook-url", address]
    )
    assert result.exit_code == 2
    assert "name with a dot" in " ".join(result.output.split())


def test_the_command_exports_what_label_studio_has(tmp_path, monkeypatch):
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
        again = ["label", str(tmp_path / "out" / "items"), "--out", str(tmp_path / "out")]
        away = CliRunner().invoke(
            app, [*again, "--export", "jsonl", "--to", str(tmp_path / "labels.jsonl")]
        )
        assert away.exit_code == 0, away.output
        taken = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
        assert {row["id"] for row in taken} == set(rows)


@pytest.mark.skipif(
    not (backbone.is_image_encoder_available() and sentences.is_sentence_encoder_available()),
    reason="needs pretrained networks",
)
def test_a_picture_with_a_text_is_seen_and_read(tmp_path, monkeypatch):
    monkeypatch.setenv(PICTURES_VARIABLE, str(tmp_path))
    for name, colour in (("1.png", (250, 0, 0)), ("2.png", (0, 0, 250))):
        Image.new("RGB", (64, 64), colour).save(tmp_path / name)
    both = picture_and_text(["soup\n\n1.png", "soup\n\n2.png", "a rocket\n\n1.png"])
    assert both.shape == (3, 1280 + 384)
    assert torch.allclose(both[0, 1280:], both[1, 1280:], atol=1e-5)
    assert torch.allclose(both[0, :1280], both[2, :1280], atol=1e-5)
    assert not torch.allclose(both[0, :1280], both[1, :1280], atol=1e-3)
    assert torch.allclose(both.square().sum(1), torch.full((3,), 2.0), atol=1e-4)


def test_our_own_change_of_the_project_is_not_asked_to_be_told(tmp_path):
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
