"""A real Label Studio in which things are changed, taken away and hostile while labelahead runs."""

import json
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.label_studio import CONFIG, KEY, RealBridge, choice, standing, texts

ART = CONFIG.replace("</Choices>", '<Choice value="art"/></Choices>')
SECOND = (
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
def joined(studio, tmp_path, started):
    """A project, where its record is, and what listens to it."""

    def join(rows, *options):
        project, out = studio.new_project(rows), tmp_path / "out"
        bridge = started(RealBridge, studio, project, out, *options)
        bridge.settle()
        return project, out, bridge

    return join


def said(bridge, words: str, seconds: float = 40) -> str:
    """Once the log has these words."""
    end = time.monotonic() + seconds
    while words not in bridge.log.read_text():
        assert time.monotonic() < end, bridge.log.read_text()[-3000:]
        time.sleep(0.1)
    return bridge.log.read_text()


def test_a_configuration_that_is_edited_meanwhile(studio, joined):
    project, out, bridge = joined(texts(30), "--predictions")
    studio.annotate(studio.next_task(project)["id"], "food")
    studio.ask("PATCH", f"/api/projects/{project}/", {"label_config": ART})
    studio.annotate(studio.next_task(project)["id"], "art")
    assert sorted(label for _, _, label in standing(out).values()) == ["art", "food"]
    said(bridge, "sport, food, space, art")
    studio.ask(
        "PATCH",
        f"/api/projects/{project}/",
        {"label_config": ART.replace('value="space"', 'value="cosmos"')},
    )
    studio.annotate(studio.next_task(project)["id"], "cosmos")
    said(bridge, "sport, food, cosmos, art")
    bridge.kill()
    bridge.start()
    bridge.settle()
    shown = studio.next_task(project)["predictions"][0]["result"]
    assert shown[0]["value"]["choices"][0] in {"sport", "food", "cosmos", "art"}
    two = ART.replace('value="space"', 'value="cosmos"').replace("</View>", SECOND)
    studio.ask("PATCH", f"/api/projects/{project}/", {"label_config": two})
    said(bridge, "2 <Choices>")
    mood = {
        "from_name": "mood",
        "to_name": "text",
        "type": "choices",
        "value": {"choices": ["good"]},
    }
    task = studio.next_task(project)["id"]
    studio.ask("POST", f"/api/tasks/{task}/annotations/", {"result": [*choice("sport"), mood]})
    assert sorted(label for _, _, label in standing(out).values()) == [
        "art",
        "cosmos",
        "food",
        "sport",
    ]
    bridge.kill()
    with pytest.raises(
        AssertionError, match="2 <Choices>"
    ):  # what it never served before it does not begin with
        bridge.start()
    assert len(standing(out)) == 4


def test_texts_that_are_long_and_hostile(studio, joined):
    project, out, bridge = joined([{"text": text, "truth": "food"} for text in HOSTILE] + texts(12))
    there = {t["id"]: t["data"]["text"] for t in studio.tasks(project)}
    for number, text in there.items():
        assert (out / "items" / f"{number}.txt").read_bytes().decode() == text
    for _ in there:
        task = studio.next_task(project)
        studio.annotate(task["id"], task["data"]["truth"])
    assert {int(task) for task, _, _ in standing(out).values()} == set(there)
    shown = {bridge._get(f"/api/items/{p}")["text"] for p in range(len(there))}
    assert HOSTILE[0] in shown


def test_tasks_that_are_imported_while_people_label(studio, joined):
    project, out, bridge = joined(texts(20))
    for part in range(3):
        studio.ask("POST", f"/api/projects/{project}/import", texts(5, seed=part + 1))
        task = studio.next_task(project)
        studio.annotate(task["id"], task["data"]["truth"])
    said(bridge, "there are new tasks")
    for _ in range(32):  # while it begins anew
        task = studio.next_task(project)
        studio.annotate(task["id"], task["data"]["truth"])
    bridge.settle()
    assert len(list((out / "items").iterdir())) == 35
    assert standing(out).keys() == {a["id"] for a in studio.annotations(project)}
    assert len(standing(out)) == 35


def test_a_token_that_is_revoked_and_a_project_that_is_deleted(studio, joined, tmp_path):
    """Whoever annotates goes on, and is recorded; what is wrong is said once."""
    key = studio.invited("cleo@example.org", "cleo-cleo-1")
    project, out = studio.new_project(texts(20)), tmp_path / "cleo"
    bridge = RealBridge(studio, project, out, key=key)
    try:
        bridge.settle()
        studio.annotate(studio.next_task(project)["id"], "food")
        studio.ask("POST", "/api/current-user/reset-token/", key=key)
        for label in ("sport", "space"):
            studio.annotate(studio.next_task(project)["id"], label)
        assert (
            said(bridge, "does not know the access token").count("does not know the access token")
            == 1
        )
        assert len(standing(out)) == 3
    finally:
        bridge.kill()
    assert "start labelahead again" in bridge.log.read_text()
    project, out, bridge = joined(texts(12))
    studio.annotate(studio.next_task(project)["id"], "food")
    studio.ask("DELETE", f"/api/projects/{project}/")
    assert said(bridge, "has no project").count("has no project") == 1
    assert len(standing(out)) == 1
    assert bridge._get("/health")["current"] is False


def test_nobody_else_is_heard(studio, joined):
    project, out, bridge = joined(texts(12))
    told = {
        "action": "ANNOTATION_CREATED",
        "project": {"id": project},
        "annotation": {"id": 1, "task": 1},
    }
    for headers in ({}, {"Authorization": f"Token {KEY}"}, {"X-Labelahead-Secret": "x"}):
        request = Request(
            f"{bridge.url}/webhook",
            json.dumps(told).encode(),
            {"Content-Type": "application/json"} | headers,
        )
        with pytest.raises(HTTPError, match="401"):
            urlopen(request, timeout=30)
    assert standing(out) == {}
