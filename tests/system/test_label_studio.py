"""A real Label Studio: `make test-label-studio` makes an environment for it and says where it is."""

import json
import os
import random
import re
import statistics
import threading
import time
from urllib.error import URLError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from labelahead.integrations.label_studio.client import LabelStudioClient
from labelahead.outofcore import embed
from labelahead.server.client import Client
from labelahead.server.exchange import export_labels, import_labels
from labelahead.server.journal import read_item_names
from tests.support import browser_pages as pages
from tests.support.label_studio import (
    CONFIG,
    TOPICS,
    RealBridge,
    RealStudio,
    beside_a_page,
    choice,
    recorded,
    signed_in,
    texts,
)
from tests.support.large_pools import Inline, clouds
from tests.support.web_sessions import page as served
from tests.support.web_sessions import photos


def test_thirty_labels_are_asked_for_as_the_page_asks(studio, tmp_path, started):
    project, bridge, client, out = beside_a_page(studio, tmp_path, started, 300)
    for _ in range(30):
        task, asked = studio.next_task(project), client.question(fresh=True)
        assert asked["item"] == f"{task['id']}.txt"
        studio.annotate(task["id"], task["data"]["truth"])
        client.answer(asked["position"], task["data"]["truth"])
        client.wait()  # a training may be under way here or there
        bridge.settle()
    assert len(recorded(out)) == 30


def test_among_2000_tasks_nobody_waits(studio, tmp_path, started, capsys):
    project, _, client, _ = beside_a_page(
        studio, tmp_path, started, 2000, "--retrain-every", "1000"
    )
    task, asked, took = studio.next_task(project), client.question(fresh=True), []
    for _ in range(30):
        assert asked["item"] == f"{task['id']}.txt"
        truth, begin = task["data"]["truth"], time.perf_counter()
        studio.annotate(task["id"], truth)
        task = studio.next_task(project)
        took.append(time.perf_counter() - begin)
        asked = client.answer(asked["position"], truth)["next"]
    with capsys.disabled():
        p95, busy = sorted(took)[int(0.95 * len(took))], os.getloadavg()[0]
        print(
            f"\nsubmit to next: median {statistics.median(took):.3f} s, p95 {p95:.3f} s; load "
            f"{busy:.1f}"
        )


def test_a_large_pool_comes_in_as_its_items_are_asked_for(studio, tmp_path, started, capsys):
    """As the page asks on the same store.

    The project has no task before, and few more than were asked for.
    """
    x, y = clouds(3000)
    table = {
        "id": [f"doc {i}" for i in range(len(x))],
        "text": [f"number {i}" for i in range(len(x))],
    }
    pq.write_table(pa.table(table | {"v": list(x.astype(np.float32))}), tmp_path / "pool.parquet")
    store = tmp_path / "store"
    embed(tmp_path / "pool.parquet", store, column="v", rows=1000, executor=Inline())
    project, out, often = (
        studio.new_project([]),
        tmp_path / "out",
        ("--refresh-every", "8", "--retrain-every", "5"),
    )
    bridge = started(RealBridge, studio, project, out, "--pool", str(store), *often)
    bridge.settle()
    page = started(pages.Server, store, tmp_path / "page", "--classes", TOPICS, *often)
    client, took = Client(page.url, who="anna@example.org"), []
    client.wait(300)
    for _ in range(20):
        begin = time.perf_counter()
        task = studio.next_task(project)
        took.append(time.perf_counter() - begin)
        asked = client.question(fresh=True)
        assert asked["item"] == task["data"]["item"]
        assert task["data"]["text"] == f"number {task['data']['id'].split()[1]}"
        truth = TOPICS.split(",")[y[int(asked["item"].split()[1])]]
        begin = time.perf_counter()
        studio.annotate(task["id"], truth)
        took[-1] += time.perf_counter() - begin
        client.answer(asked["position"], truth)
        client.wait()
        bridge.settle()
    bridge.kill()
    bridge.start()
    bridge.settle()
    studio.annotate(studio.next_task(project)["id"], "food")
    assert len(recorded(out)) == 21
    tasks = [task["data"]["item"] for task in studio.tasks(project)]
    assert 20 < len(tasks) == len(set(tasks)) < 300
    assert len(read_item_names(out)) > 1500  # the pool was scored, and scored again
    with capsys.disabled():
        said = (
            f"median {statistics.median(took):.3f} s, the longest {max(took):.3f} s; load "
            f"{os.getloadavg()[0]:.1f}"
        )
        print(f"\n{len(tasks)} tasks for 21 labels; submitting and getting the next: {said}")


@pytest.mark.skipif(pages.browser_path() is None, reason="needs chromium")
def test_labelling_in_its_own_interface(studio, tmp_path, started):
    from playwright.sync_api import sync_playwright

    project, _, client, out = beside_a_page(studio, tmp_path, started, 120)
    truth = {t["data"]["text"]: t["data"]["truth"] for t in studio.tasks(project)}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=pages.browser_path(), args=pages.FLAGS)
        shown = browser.new_page(viewport={"width": 1280, "height": 900})
        signed_in(shown, studio)
        shown.goto(f"{studio.url}/projects/{project}/data")
        shown.get_by_role("button", name=re.compile("Label All Tasks", re.IGNORECASE)).first.click()
        for _ in range(8):
            asked = client.question(fresh=True)
            expected = client._get(f"/api/items/{asked['position']}")["text"]
            shown.get_by_text(expected).first.wait_for(timeout=60_000)
            name = truth[expected]
            shown.keyboard.press(str(TOPICS.split(",").index(name) + 1))
            shown.get_by_role("button", name=re.compile("^Submit", re.IGNORECASE)).first.click()
            client.answer(asked["position"], name)
        for _ in range(300):
            if len(recorded(out)) == 8:
                break
            time.sleep(0.1)
        browser.close()
    assert len(recorded(out)) == 8


def test_kills_at_random_moments_lose_and_double_nothing(program, tmp_path, started):
    """Of either side, and of both, started again in any order.

    Its own Label Studio: it is killed, too.
    """
    studio = started(RealStudio, program, tmp_path / "studio")
    seed = int(os.environ.get("LABELAHEAD_SEED", os.getpid()))
    project, out, rng = studio.new_project(texts(400)), tmp_path / "out", random.Random(seed)
    bridge = started(RealBridge, studio, project, out)
    bridge.settle()
    accepted, ending = [], threading.Event()

    def annotate() -> None:
        while not ending.is_set():
            try:
                task = studio.next_task(project)
                accepted.append(
                    (
                        studio.annotate(task["id"], task["data"]["truth"]),
                        str(task["id"]),
                        task["data"]["truth"],
                    )
                )
            except (URLError, OSError, AssertionError):
                time.sleep(0.2)

    annotator = threading.Thread(target=annotate)
    annotator.start()
    try:
        for kill in range(int(os.environ.get("LABELAHEAD_KILLS", 10))):
            time.sleep(rng.uniform(1, 4))
            both = rng.sample([bridge, studio], 2)
            dead = both if kill % 5 == 4 else [(bridge, studio)[kill % 2]]
            for one in dead:
                one.kill()
                time.sleep(rng.uniform(0, 2))
            for one in dead[::-1] if rng.random() < 0.5 else dead:
                one.start(wait=False)
            for one in (studio, bridge):  # the bridge waits for the studio
                one.wait()
    finally:
        ending.set()
        annotator.join(120)
    bridge.settle()
    there = {
        (a["id"], str(a["task"]), a["result"][0]["value"]["choices"][0])
        for a in studio.annotations(project)
    }
    assert len(accepted) > 20, seed
    assert set(accepted) <= there, seed
    for _ in range(400):  # until the next look at what no webhook has told
        ours = [(number, task, name) for (number, _), (task, _, name) in recorded(out).items()]
        if set(ours) == there:
            break
        time.sleep(0.1)
    assert set(ours) == there, seed
    assert len(ours) == len(there), seed


def test_skips_corrections_deletions_and_new_tasks(studio, tmp_path, started):
    project = studio.new_project(texts(30), maximum_annotations=2)
    first, second, third = (t["id"] for t in studio.tasks(project)[:3])
    early = studio.annotate(first, "food")  # before anybody listens
    out = tmp_path / "out"
    bridge = started(RealBridge, studio, project, out)
    bridge.settle()
    said = lambda: sorted(recorded(out).values())  # noqa: E731
    assert said() == [(str(first), "label", "food")]
    studio.ask("PATCH", f"/api/annotations/{early}/", {"result": choice("space")})
    studio.ask("POST", f"/api/tasks/{second}/annotations/", {"result": [], "was_cancelled": True})
    last = studio.annotate(third, "sport")
    assert recorded(out)
    newest = {task: (kind, name) for task, kind, name in recorded(out).values()}
    assert newest == {
        str(first): ("label", "space"),
        str(second): ("skip", None),
        str(third): ("label", "sport"),
    }
    studio.ask("DELETE", f"/api/annotations/{last}/")
    assert str(third) not in {task for task, _, _ in recorded(out).values()}
    studio.ask("DELETE", f"/api/tasks/{third}/")
    for _ in range(5):
        task = studio.next_task(project)
        assert task["id"] != third
        studio.annotate(task["id"], task["data"]["truth"])
    bridge.kill()
    studio.ask("DELETE", f"/api/annotations/{early}/")  # while nobody listens
    bridge.start()
    bridge.settle()
    assert str(first) not in {task for task, _, _ in recorded(out).values()}
    assert len(recorded(out)) == len(studio.annotations(project))
    studio.ask("POST", f"/api/projects/{project}/import", texts(3, seed=1))
    late = studio.tasks(project)[-1]["id"]
    for _ in range(600):
        if (out / "items" / f"{late}.txt").exists():
            break
        time.sleep(0.1)
    bridge.settle()
    studio.annotate(late, "space")
    assert (str(late), "label", "space") in recorded(out).values()


def test_a_personal_token_opens_the_same_doors(studio):
    project = studio.new_project(texts(3))
    personal = studio.ask("POST", "/api/token/")["token"]
    assert personal.count(".") == 2
    reader = LabelStudioClient(studio.url, personal, project)
    assert reader.get_project()["id"] == project
    assert len(list(reader.list_tasks())) == 3
    reader._access_token = reader._access_token[:-4] + "AAAA"  # as one that has run out
    assert reader.list_annotations() == []


@pytest.mark.parametrize("both", [False, True])
def test_pictures_by_local_files_with_and_without_a_text(studio, tmp_path, started, both):
    folder = studio.files / f"digits-{both}"
    pages.write_digits(folder, 40)
    names = sorted(p.name for p in folder.iterdir())
    caption = '<Text name="more" value="$caption"/>' if both else ""
    seen = f'<Image name="text" value="$image"/>{caption}'
    config = CONFIG.replace('<Text name="text" value="$text"/>', seen)
    rows = [
        {
            "image": f"/data/local-files/?d={folder.name}/{n}",
            "caption": f"the digit of file {n}",
            "truth": n[-5],
        }
        for n in names
    ]
    project = studio.new_project([], config)
    studio.ask(
        "POST",
        "/api/storages/localfiles/",
        {"project": project, "path": str(folder), "use_blob_urls": False, "title": "d"},
    )
    studio.ask("POST", f"/api/projects/{project}/import", rows)
    out = tmp_path / "out"
    bridge = started(RealBridge, studio, project, out, "--predictions")
    bridge.settle(600)
    place = out / ("pictures" if both else "items")
    data = {t["id"]: t["data"] for t in studio.tasks(project)}
    assert {int(p.stem) for p in place.iterdir()} == set(data)
    for path in place.iterdir():
        assert Image.open(path).size == (8, 8)
        assert (
            path.read_bytes()
            == (folder / data[int(path.stem)]["image"].rpartition("/")[2]).read_bytes()
        )
    for _ in range(4):
        task = studio.next_task(project)
        studio.annotate(task["id"], ("sport", "food", "space")[int(task["data"]["truth"]) % 3])
    task = studio.next_task(project)
    shown = [p for p in task["predictions"] if p["model_version"].startswith("labelahead-")]
    assert 0 < shown[0]["result"][0]["score"] <= 1
    assert len(recorded(out)) == 4


def _table(folder):
    """Rows whose ids are numbers that Label Studio gives to other tasks."""
    lines = [f"{100 - i},{level},a remark\n" for i, level in enumerate((1.0, 9.0) * 4)]
    (folder / "rows.csv").write_text("id,level,label\n" + "".join(lines))
    return folder / "rows.csv"


@pytest.mark.parametrize(
    "make", [lambda folder: photos(folder / "set", 8), _table], ids=["photos", "table"]
)
def test_exported_tasks_come_back_from_label_studio_in_every_form(studio, tmp_path, make):
    source, classes = make(tmp_path), ["dark", "light"]
    with served(source, tmp_path / "labels", classes=classes) as (_, session):
        for position in range(6):
            session.service.record_answer("anna", position, "label", position % 2)
        session.service.record_answer("ben", 1, "label", 0)
        for form in ("label-studio", "label-studio-config"):
            export_labels(session.service, form, tmp_path / form)
    config = (tmp_path / "label-studio-config").read_text(encoding="utf-8")
    project = studio.new_project(json.loads((tmp_path / "label-studio").read_text()), config)
    assert len(studio.annotations(project)) == 7
    for form, suffix in (("JSON", ".json"), ("JSON_MIN", ".json"), ("CSV", ".csv")):
        exported = tmp_path / f"{form}{suffix}"
        exported.write_bytes(studio.read(f"/api/projects/{project}/export?exportType={form}"))
        with served(source, tmp_path / f"again-{form}", classes=classes) as (_, again):
            done = import_labels(again.service, exported)
            # Label Studio takes both persons of item 1 for whoever imported them, so that what they
            # say is unclear.
            assert (done["labels"], done["unclear"], done["unknown"]) == (5, 1, 0), form
            assert again.service.label_state.labels == {p: p % 2 for p in (0, 2, 3, 4, 5)}, form
