"""Tests with a real Label Studio, installed by `make test-label-studio`."""

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
from labelahead.outofcore import EmbedOptions, embed
from labelahead.server.client import Client
from labelahead.server.exchange import export_labels, import_labels
from labelahead.server.journal import read_item_names
from tests.support import browser_pages as pages
from tests.support.label_studio import (
    CONFIG,
    TOPICS,
    RealBridge,
    RealStudio,
    make_choice,
    make_tasks,
    read_recorded_annotations,
    sign_in,
    start_bridge_and_page,
)
from tests.support.large_pools import Inline, clouds
from tests.support.web_sessions import page as open_page
from tests.support.web_sessions import photos


def test_label_studio_serves_the_same_30_queries_as_the_page(studio, tmp_path, start_program):
    project, bridge, client, out = start_bridge_and_page(studio, tmp_path, start_program, 300)
    for _ in range(30):
        task, query = studio.next_task(project), client.get_query(fresh=True)
        assert query["item"] == f"{task['id']}.txt"
        studio.annotate(task["id"], task["data"]["truth"])
        client.add_answer(query["position"], task["data"]["truth"])
        client.wait()  # either side may be training
        bridge.settle()
    assert len(read_recorded_annotations(out)) == 30


def test_label_studio_serves_the_same_queries_among_2000_tasks(
    studio, tmp_path, start_program, capsys
):
    project, _, client, _ = start_bridge_and_page(
        studio, tmp_path, start_program, 2000, "--retrain-every", "1000"
    )
    task, query, seconds = studio.next_task(project), client.get_query(fresh=True), []
    for _ in range(30):
        assert query["item"] == f"{task['id']}.txt"
        truth, start = task["data"]["truth"], time.perf_counter()
        studio.annotate(task["id"], truth)
        task = studio.next_task(project)
        seconds.append(time.perf_counter() - start)
        query = client.add_answer(query["position"], truth)["next"]
    with capsys.disabled():
        p95, load = sorted(seconds)[int(0.95 * len(seconds))], os.getloadavg()[0]
        print(
            f"\nsubmit to next: median {statistics.median(seconds):.3f} s, p95 {p95:.3f} s; load "
            f"{load:.1f}"
        )


def test_large_pool_is_imported_as_its_items_are_queried(studio, tmp_path, start_program, capsys):
    """The queries equal those of the page on the same store.

    The project starts without tasks and gets few more than were queried.
    """
    x, y = clouds(3000)
    table = {
        "id": [f"doc {i}" for i in range(len(x))],
        "text": [f"number {i}" for i in range(len(x))],
    }
    pq.write_table(pa.table(table | {"v": list(x.astype(np.float32))}), tmp_path / "pool.parquet")
    store = tmp_path / "store"
    embed(tmp_path / "pool.parquet", store, EmbedOptions(column="v", rows=1000), executor=Inline())
    project, out, options = (
        studio.new_project([]),
        tmp_path / "out",
        ("--refresh-every", "8", "--retrain-every", "5"),
    )
    bridge = start_program(RealBridge, studio, project, out, "--pool", str(store), *options)
    bridge.settle()
    page = start_program(pages.Server, store, tmp_path / "page", "--classes", TOPICS, *options)
    client, seconds = Client(page.url, who="anna@example.org"), []
    client.wait(300)
    for _ in range(20):
        start = time.perf_counter()
        task = studio.next_task(project)
        seconds.append(time.perf_counter() - start)
        query = client.get_query(fresh=True)
        assert query["item"] == task["data"]["item_id"]
        assert task["data"]["text"] == f"number {task['data']['item_id'].split()[1]}"
        truth = TOPICS.split(",")[y[int(query["item"].split()[1])]]
        start = time.perf_counter()
        studio.annotate(task["id"], truth)
        seconds[-1] += time.perf_counter() - start
        client.add_answer(query["position"], truth)
        client.wait()
        bridge.settle()
    bridge.kill()
    bridge.start()
    bridge.settle()
    studio.annotate(studio.next_task(project)["id"], "food")
    assert len(read_recorded_annotations(out)) == 21
    tasks = [task["data"]["item_id"] for task in studio.tasks(project)]
    assert 20 < len(tasks) == len(set(tasks)) < 300
    assert len(read_item_names(out)) > 1500  # the pool was rescored
    with capsys.disabled():
        timing = (
            f"median {statistics.median(seconds):.3f} s, the longest {max(seconds):.3f} s; load "
            f"{os.getloadavg()[0]:.1f}"
        )
        print(f"\n{len(tasks)} tasks for 21 labels; submitting and getting the next: {timing}")


@pytest.mark.skipif(pages.browser_path() is None, reason="needs chromium")
def test_labels_given_in_label_studios_interface_are_recorded(studio, tmp_path, start_program):
    from playwright.sync_api import sync_playwright

    project, _, client, out = start_bridge_and_page(studio, tmp_path, start_program, 120)
    truth = {t["data"]["text"]: t["data"]["truth"] for t in studio.tasks(project)}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=pages.browser_path(), args=pages.FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        sign_in(page, studio)
        page.goto(f"{studio.url}/projects/{project}/data")
        page.get_by_role("button", name=re.compile("Label All Tasks", re.IGNORECASE)).first.click()
        for _ in range(8):
            query = client.get_query(fresh=True)
            expected = client._get(f"/api/items/{query['position']}")["text"]
            page.get_by_text(expected).first.wait_for(timeout=60_000)
            name = truth[expected]
            page.keyboard.press(str(TOPICS.split(",").index(name) + 1))
            page.get_by_role("button", name=re.compile("^Submit", re.IGNORECASE)).first.click()
            client.add_answer(query["position"], name)
        for _ in range(300):
            if len(read_recorded_annotations(out)) == 8:
                break
            time.sleep(0.1)
        browser.close()
    assert len(read_recorded_annotations(out)) == 8


def test_kills_of_bridge_and_studio_lose_and_duplicate_no_annotation(
    program, tmp_path, start_program
):
    """Kill one side or both, and restart them in any order.

    Uses its own Label Studio, because that is killed as well.
    """
    studio = start_program(RealStudio, program, tmp_path / "studio")
    seed = int(os.environ.get("LABELAHEAD_SEED", os.getpid()))
    project, out, rng = studio.new_project(make_tasks(400)), tmp_path / "out", random.Random(seed)
    bridge = start_program(RealBridge, studio, project, out)
    bridge.settle()
    accepted, stopping = [], threading.Event()

    def annotate() -> None:
        while not stopping.is_set():
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
            killed = both if kill % 5 == 4 else [(bridge, studio)[kill % 2]]
            for process in killed:
                process.kill()
                time.sleep(rng.uniform(0, 2))
            for process in killed[::-1] if rng.random() < 0.5 else killed:
                process.start(wait=False)
            for process in (studio, bridge):  # the bridge waits for the studio
                process.wait()
    finally:
        stopping.set()
        annotator.join(120)
    bridge.settle()
    expected = {
        (a["id"], str(a["task"]), a["result"][0]["value"]["choices"][0])
        for a in studio.annotations(project)
    }
    assert len(accepted) > 20, seed
    assert set(accepted) <= expected, seed
    for _ in range(400):  # until the next comparison finds annotations without a webhook
        recorded = [
            (number, task, name)
            for (number, _), (task, _, name) in read_recorded_annotations(out).items()
        ]
        if set(recorded) == expected:
            break
        time.sleep(0.1)
    assert set(recorded) == expected, seed
    assert len(recorded) == len(expected), seed


def test_bridge_records_skips_corrections_deletions_and_new_tasks(studio, tmp_path, start_program):
    project = studio.new_project(make_tasks(30), maximum_annotations=2)
    first, second, third = (t["id"] for t in studio.tasks(project)[:3])
    early = studio.annotate(first, "food")  # before the bridge starts
    out = tmp_path / "out"
    bridge = start_program(RealBridge, studio, project, out)
    bridge.settle()
    read_events = lambda: sorted(read_recorded_annotations(out).values())  # noqa: E731
    assert read_events() == [(str(first), "label", "food")]
    studio.request("PATCH", f"/api/annotations/{early}/", {"result": make_choice("space")})
    studio.request(
        "POST", f"/api/tasks/{second}/annotations/", {"result": [], "was_cancelled": True}
    )
    last = studio.annotate(third, "sport")
    assert read_recorded_annotations(out)
    newest = {task: (kind, name) for task, kind, name in read_recorded_annotations(out).values()}
    assert newest == {
        str(first): ("label", "space"),
        str(second): ("skip", None),
        str(third): ("label", "sport"),
    }
    studio.request("DELETE", f"/api/annotations/{last}/")
    assert str(third) not in {task for task, _, _ in read_recorded_annotations(out).values()}
    studio.request("DELETE", f"/api/tasks/{third}/")
    for _ in range(5):
        task = studio.next_task(project)
        assert task["id"] != third
        studio.annotate(task["id"], task["data"]["truth"])
    bridge.kill()
    studio.request("DELETE", f"/api/annotations/{early}/")  # while the bridge is down
    bridge.start()
    bridge.settle()
    assert str(first) not in {task for task, _, _ in read_recorded_annotations(out).values()}
    assert len(read_recorded_annotations(out)) == len(studio.annotations(project))
    studio.request("POST", f"/api/projects/{project}/import", make_tasks(3, seed=1))
    new_task = studio.tasks(project)[-1]["id"]
    for _ in range(600):
        if (out / "items" / f"{new_task}.txt").exists():
            break
        time.sleep(0.1)
    bridge.settle()
    studio.annotate(new_task, "space")
    assert (str(new_task), "label", "space") in read_recorded_annotations(out).values()


def test_personal_access_token_is_accepted_and_renewed(studio):
    project = studio.new_project(make_tasks(3))
    personal = studio.request("POST", "/api/token/")["token"]
    assert personal.count(".") == 2
    reader = LabelStudioClient(studio.url, personal, project)
    assert reader.get_project()["id"] == project
    assert len(list(reader.list_tasks())) == 3
    reader._access_token = reader._access_token[:-4] + "AAAA"  # as if it had expired
    assert reader.list_annotations() == []


@pytest.mark.parametrize("both", [False, True])
def test_images_from_local_files_are_downloaded_with_and_without_a_text(
    studio, tmp_path, start_program, both
):
    folder = studio.files / f"digits-{both}"
    pages.write_digits(folder, 40)
    names = sorted(p.name for p in folder.iterdir())
    caption = '<Text name="more" value="$caption"/>' if both else ""
    image_tags = f'<Image name="text" value="$image"/>{caption}'
    config = CONFIG.replace('<Text name="text" value="$text"/>', image_tags)
    rows = [
        {
            "image": f"/data/local-files/?d={folder.name}/{n}",
            "caption": f"the digit of file {n}",
            "truth": n[-5],
        }
        for n in names
    ]
    project = studio.new_project([], config)
    studio.request(
        "POST",
        "/api/storages/localfiles/",
        {"project": project, "path": str(folder), "use_blob_urls": False, "title": "d"},
    )
    studio.request("POST", f"/api/projects/{project}/import", rows)
    out = tmp_path / "out"
    bridge = start_program(RealBridge, studio, project, out, "--predictions")
    bridge.settle(600)
    downloads = out / ("pictures" if both else "items")
    data = {t["id"]: t["data"] for t in studio.tasks(project)}
    assert {int(p.stem) for p in downloads.iterdir()} == set(data)
    for path in downloads.iterdir():
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
    assert len(read_recorded_annotations(out)) == 4


def write_table(folder):
    """Write rows whose ids are task numbers of other tasks in Label Studio."""
    lines = [f"{100 - i},{level},a remark\n" for i, level in enumerate((1.0, 9.0) * 4)]
    (folder / "rows.csv").write_text("id,level,label\n" + "".join(lines))
    return folder / "rows.csv"


@pytest.mark.parametrize(
    "make", [lambda folder: photos(folder / "set", 8), write_table], ids=["photos", "table"]
)
def test_exported_tasks_can_be_imported_from_every_label_studio_export(studio, tmp_path, make):
    source, classes = make(tmp_path), ["dark", "light"]
    with open_page(source, tmp_path / "labels", classes=classes) as (_, session):
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
        with open_page(source, tmp_path / f"again-{form}", classes=classes) as (_, reopened):
            counts = import_labels(reopened.service, exported)
            # Label Studio attributes both annotations of item 1 to the importing user, so that its
            # label is unclear.
            assert (counts["labels"], counts["unclear"], counts["unknown"]) == (5, 1, 0), form
            assert reopened.service.label_state.labels == {p: p % 2 for p in (0, 2, 3, 4, 5)}, form
