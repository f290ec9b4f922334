"""A real Label Studio whose configuration, tasks and access change while labelahead runs."""

import json
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.label_studio import (
    CONFIG,
    KEY,
    RealBridge,
    make_choice,
    make_tasks,
    read_current_annotations,
)

CONFIG_WITH_ART = CONFIG.replace("</Choices>", '<Choice value="art"/></Choices>')
SECOND_CHOICES = (
    '<Choices name="mood" toName="text"><Choice value="good"/><Choice '
    'value="bad"/></Choices></View>'
)
HOSTILE = [
    "<script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\">",
    "</textarea></pre><iframe srcdoc='<script>parent.document.title=1</script>'>",
    "{{ constructor.constructor('return 1')() }} ${7*7} %s %n ../../etc/passwd",
    "'; DROP TABLE task; --\r\n\tline\u2028other\u202eright-to-left\ufeff \U0001f600 e\u0301",
    "word " * 20_000,  # 100 kB
    "x" * 100_000,
    " ",
    "=cmd|' /C calc'!A0",
]


@pytest.fixture
def start_bridge(studio, tmp_path, start_program):
    """Start a bridge of a new project; return the project, its session folder and the bridge."""

    def start(rows, *options):
        project, out = studio.new_project(rows), tmp_path / "out"
        bridge = start_program(RealBridge, studio, project, out, *options)
        bridge.settle()
        return project, out, bridge

    return start


def wait_for_log(bridge, words: str, seconds: float = 40) -> str:
    """Wait until the log contains these words and return the log."""
    end = time.monotonic() + seconds
    while words not in bridge.log.read_text():
        assert time.monotonic() < end, bridge.log.read_text()[-3000:]
        time.sleep(0.1)
    return bridge.log.read_text()


def test_labelling_config_edited_during_a_session_is_applied(studio, start_bridge):
    project, out, bridge = start_bridge(make_tasks(30), "--predictions")
    studio.annotate(studio.next_task(project)["id"], "food")
    studio.request("PATCH", f"/api/projects/{project}/", {"label_config": CONFIG_WITH_ART})
    studio.annotate(studio.next_task(project)["id"], "art")
    assert sorted(label for _, _, label in read_current_annotations(out).values()) == [
        "art",
        "food",
    ]
    wait_for_log(bridge, "sport, food, space, art")
    studio.request(
        "PATCH",
        f"/api/projects/{project}/",
        {"label_config": CONFIG_WITH_ART.replace('value="space"', 'value="cosmos"')},
    )
    studio.annotate(studio.next_task(project)["id"], "cosmos")
    wait_for_log(bridge, "sport, food, cosmos, art")
    bridge.kill()
    bridge.start()
    bridge.settle()
    shown = studio.next_task(project)["predictions"][0]["result"]
    assert shown[0]["value"]["choices"][0] in {"sport", "food", "cosmos", "art"}
    two = CONFIG_WITH_ART.replace('value="space"', 'value="cosmos"').replace(
        "</View>", SECOND_CHOICES
    )
    studio.request("PATCH", f"/api/projects/{project}/", {"label_config": two})
    wait_for_log(bridge, "2 <Choices>")
    mood = {
        "from_name": "mood",
        "to_name": "text",
        "type": "choices",
        "value": {"choices": ["good"]},
    }
    task = studio.next_task(project)["id"]
    studio.request(
        "POST", f"/api/tasks/{task}/annotations/", {"result": [*make_choice("sport"), mood]}
    )
    assert sorted(label for _, _, label in read_current_annotations(out).values()) == [
        "art",
        "cosmos",
        "food",
        "sport",
    ]
    bridge.kill()
    with pytest.raises(
        AssertionError, match="2 <Choices>"
    ):  # an unsupported config is refused at start
        bridge.start()
    assert len(read_current_annotations(out)) == 4


def test_long_and_hostile_texts_are_stored_and_shown_unchanged(studio, start_bridge):
    project, out, bridge = start_bridge(
        [{"text": text, "truth": "food"} for text in HOSTILE] + make_tasks(12)
    )
    texts_by_task = {t["id"]: t["data"]["text"] for t in studio.tasks(project)}
    for number, text in texts_by_task.items():
        assert (out / "items" / f"{number}.txt").read_bytes().decode() == text
    for _ in texts_by_task:
        task = studio.next_task(project)
        studio.annotate(task["id"], task["data"]["truth"])
    assert {int(task) for task, _, _ in read_current_annotations(out).values()} == set(
        texts_by_task
    )
    shown = {bridge._get(f"/api/items/{p}")["text"] for p in range(len(texts_by_task))}
    assert HOSTILE[0] in shown


def test_tasks_imported_during_a_session_are_served(studio, start_bridge):
    project, out, bridge = start_bridge(make_tasks(20))
    for part in range(3):
        studio.request("POST", f"/api/projects/{project}/import", make_tasks(5, seed=part + 1))
        task = studio.next_task(project)
        studio.annotate(task["id"], task["data"]["truth"])
    wait_for_log(bridge, "there are new tasks")
    for _ in range(32):  # during the restart
        task = studio.next_task(project)
        studio.annotate(task["id"], task["data"]["truth"])
    bridge.settle()
    assert len(list((out / "items").iterdir())) == 35
    assert read_current_annotations(out).keys() == {a["id"] for a in studio.annotations(project)}
    assert len(read_current_annotations(out)) == 35


def test_revoked_token_and_deleted_project_are_reported_once_and_lose_no_annotation(
    studio, start_bridge, tmp_path
):
    """Annotations are still recorded; the error is logged once."""
    key = studio.invite_user("cleo@example.org", "cleo-cleo-1")
    project, out = studio.new_project(make_tasks(20)), tmp_path / "cleo"
    bridge = RealBridge(studio, project, out, key=key)
    try:
        bridge.settle()
        studio.annotate(studio.next_task(project)["id"], "food")
        studio.request("POST", "/api/current-user/reset-token/", key=key)
        for label in ("sport", "space"):
            studio.annotate(studio.next_task(project)["id"], label)
        assert (
            wait_for_log(bridge, "does not know the access token").count(
                "does not know the access token"
            )
            == 1
        )
        assert len(read_current_annotations(out)) == 3
    finally:
        bridge.kill()
    assert "start labelahead again" in bridge.log.read_text()
    project, out, bridge = start_bridge(make_tasks(12))
    studio.annotate(studio.next_task(project)["id"], "food")
    studio.request("DELETE", f"/api/projects/{project}/")
    assert wait_for_log(bridge, "has no project").count("has no project") == 1
    assert len(read_current_annotations(out)) == 1
    assert bridge._get("/health")["current"] is False


def test_webhook_without_the_secret_is_refused(studio, start_bridge):
    project, out, bridge = start_bridge(make_tasks(12))
    webhook = {
        "action": "ANNOTATION_CREATED",
        "project": {"id": project},
        "annotation": {"id": 1, "task": 1},
    }
    for headers in ({}, {"Authorization": f"Token {KEY}"}, {"X-Labelahead-Secret": "x"}):
        request = Request(
            f"{bridge.url}/webhook",
            json.dumps(webhook).encode(),
            {"Content-Type": "application/json"} | headers,
        )
        with pytest.raises(HTTPError, match="401"):
            urlopen(request, timeout=30)
    assert read_current_annotations(out) == {}
