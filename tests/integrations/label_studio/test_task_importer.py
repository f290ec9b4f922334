"""An out-of-core pool in Label Studio, here of a few hundred items.

Only items that are about to be served are imported as tasks.
"""

import time
from contextlib import contextmanager

import pytest
from PIL import Image
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.errors import InputError
from labelahead.integrations.label_studio.bridge import BridgeTiming
from labelahead.integrations.label_studio.client import Unreachable
from labelahead.integrations.label_studio.connection import Connection
from labelahead.integrations.label_studio.task_importer import TaskImporter
from labelahead.learner.config import parse_campaign
from labelahead.models import image_encoder as backbone
from labelahead.outofcore import EmbedOptions, embed
from labelahead.server.large_pool import PoolImages, PoolSizes
from labelahead.server.session import SessionOptions, open_session
from tests.support.label_studio import CONFIG, KEY, make_choice, replay
from tests.support.label_studio_bridges import ANNA, WEBHOOKS, read_serving_order, wait_until_idle
from tests.support.large_pools import Inline, clouds, text_pool
from tests.support.sounds import write_sounds

N = 400
TOPICS = ("sport", "food", "space")


@pytest.fixture
def store(tmp_path):
    x, y = clouds(N)
    weights = [float("nan") if i % 2 else i / 2 for i in range(N)]
    text_pool(tmp_path / "pool", x, id="doc", weight=weights)
    embed(
        tmp_path / "pool",
        tmp_path / "store",
        EmbedOptions(column="v", id="doc", dtype="float32"),
        executor=Inline(),
    )
    return tmp_path / "store", y


@pytest.fixture
def studio():
    with replay() as server:
        remove_tasks(server)
        yield server


def remove_tasks(studio):
    """Remove all tasks of the replayed project."""
    studio.replies["tasks"] |= {"total": 0, "tasks": []}
    studio.replies["project"] |= {
        "task_number": 0,
        "total_annotations_number": 0,
        "skipped_annotations_number": 0,
    }
    studio.replies["annotations"] = []


@contextmanager
def open_bridge(studio, store, out, *, refresh_every=10, pictures_at=None, **bridge_options):
    """Open a session of the store and its bridge to the replayed project.

    Webhooks of new tasks arrive during the import request.
    """
    connection = Connection.open(studio.url, KEY, studio.project, out, pool=True)
    tables = {"data": {"name": str(store)}, "threads": 1}
    options = SessionOptions(
        connection.interface.choices,
        executor=Inline(),
        refresh_every=refresh_every,
        pool_sizes=PoolSizes(60, 20),
    )
    with open_session(parse_campaign(tables), out, options) as session:
        session.schedule.start()
        importer = connection.make_importer(session.pool_worker, pictures_at)
        bridge = connection.make_pool_bridge(
            session.service, importer, predictions=False, **bridge_options
        )
        studio.on_tasks_created = lambda tasks: bridge.handle_webhook(
            {"action": "TASKS_CREATED", "tasks": tasks}
        )
        bridge.reconcile()
        yield bridge, session


def read_tasks(studio):
    return {task["id"]: task["data"] for task in studio.replies["tasks"]["tasks"]}


def annotate(bridge, studio, task, name, number):
    """Add an annotation to the replayed project and send its webhook."""
    annotation = {
        **WEBHOOKS[1]["annotation"],
        "id": number,
        "task": task,
        "result": make_choice(name),
    }
    studio.replies["annotations"].append({"id": task, "annotations": [annotation]})
    studio.replies["project"]["total_annotations_number"] += 1
    bridge.handle_webhook({**WEBHOOKS[1], "annotation": annotation})


def read_labels(session):
    """Return item -> class name of every label."""
    service = session.service
    return {
        service.items.ids[p]: service.label_state.classes[c]
        for p, c in service.label_state.labels.items()
    }


def label_some(bridge, session, studio, y, count, first=900):
    """Label the tasks that are served first and return the names of their items."""
    names = []
    for number in range(first, first + count):
        wait_until_idle(session)
        bridge.update_order()
        task = read_serving_order(studio, [a["id"] for a in studio.replies["annotations"]])[0]
        name = read_tasks(studio)[task]["item_id"]
        assert name == session.service.next_query(ANNA, fresh=True)["item"]
        annotate(bridge, studio, task, TOPICS[y[int(name.split()[1])]], number)
        names.append(name)
    return names


def test_pool_items_are_imported_as_tasks_when_they_are_queried(store, studio, tmp_path):
    store_folder, y = store
    with open_bridge(studio, store_folder, tmp_path / "out") as (bridge, session):
        wait_until_idle(session)
        loaded = len(session.service.items)
        names = label_some(bridge, session, studio, y, 25)
        assert read_labels(session) == {name: TOPICS[y[int(name.split()[1])]] for name in names}
        wait_until_idle(session)
        assert len(session.service.items) > loaded  # the pool was rescored
        tasks = read_tasks(studio)
        assert (
            25 < len(tasks) < 25 * (2 * bridge._min_depth)
        )  # some tasks per answer, not all loaded items
        assert len({data["item_id"] for data in tasks.values()}) == len(tasks)
        for data in tasks.values():
            number = int(data["doc"].split()[1])
            assert data == {
                "item_id": f"doc {number}",
                "doc": f"doc {number}",
                "text": f"the text of number {number}",
                "weight": None if number % 2 else number / 2,
            }


def test_restart_creates_no_duplicate_task(store, studio, tmp_path):
    store_folder, y = store
    with open_bridge(studio, store_folder, tmp_path / "out") as (bridge, session):
        names = label_some(bridge, session, studio, y, 12)
        labels, tasks = read_labels(session), read_tasks(studio)
    with open_bridge(studio, store_folder, tmp_path / "out") as (bridge, session):
        assert read_labels(session) == labels
        names += label_some(bridge, session, studio, y, 5, 950)
        assert len(set(names)) == 17
        assert list(read_tasks(studio))[: len(tasks)] == list(tasks)
        items = [data["item_id"] for data in read_tasks(studio).values()]
        assert len(set(items)) == len(items)


def test_lost_import_reply_creates_no_duplicate_task(store, studio, tmp_path):
    store_folder, _ = store
    with open_bridge(studio, store_folder, tmp_path / "out") as (bridge, session):
        wait_until_idle(session)
        studio.drop_import_replies = True
        with pytest.raises(Unreachable):
            bridge.update_order()
        studio.drop_import_replies = False
        bridge.update_order()
        items = [data["item_id"] for data in read_tasks(studio).values()]
        assert items
        assert len(set(items)) == len(items)
        assert set(read_serving_order(studio)) <= set(read_tasks(studio))


def test_existing_tasks_are_matched_to_the_items_they_name(store, studio, tmp_path):
    """Tasks are matched by our field or by the pool's id column; others are ignored."""
    store_folder, _ = store
    own_tasks = [
        {"doc": "doc 7", "text": "as I have it"},
        {"item": "doc 8"},
        {"text": "no item"},
        {"item": "3.parquet:9"},
    ]
    own_tasks.append({"item": "0.parquet:7"})  # doc 7 again
    studio.import_tasks([*own_tasks, {"item": "nothing"}], {})
    first, second, without_item, by_row, duplicate, unknown = read_tasks(studio)
    annotation = {**WEBHOOKS[1]["annotation"], "task": first, "result": make_choice("food")}
    second_annotation = {**annotation, "id": 800, "task": duplicate}
    studio.replies["annotations"] = [
        {"id": first, "annotations": [annotation]},
        {"id": duplicate, "annotations": [second_annotation]},
    ]
    with open_bridge(studio, store_folder, tmp_path / "out") as (bridge, session):
        assert bridge.positions[first] == bridge.positions[duplicate]
        assert read_labels(session) == {"doc 7": "food"}  # labelled items are loaded
        annotate(bridge, studio, by_row, "space", 901)
        annotate(bridge, studio, without_item, "space", 902)
        annotate(bridge, studio, unknown, "space", 903)
        assert bridge._has_unknown_items
        bridge.reconcile()
        assert read_labels(session) == {"doc 7": "food", "doc 309": "space"}
        assert not bridge._has_unknown_items
        wait_until_idle(session)
        bridge.update_order()
        importer = bridge._importer
        assert isinstance(importer, TaskImporter)
        assert importer.foreign_tasks == 2
        assert bridge.tasks[session.service.items.ids.index("doc 7")] == first
        assert second in importer
        studio.import_tasks([{"item": "doc 20"}], {})
        annotate(bridge, studio, max(read_tasks(studio)), "sport", 904)
        bridge._read_new_tasks(importer)
        assert read_labels(session)["doc 20"] == "sport"


def test_own_task_imports_do_not_trigger_a_refetch(store, studio, tmp_path):
    store_folder, _ = store
    with open_bridge(studio, store_folder, tmp_path / "out") as (bridge, session):
        wait_until_idle(session)
        bridge.timing = BridgeTiming(quiet_seconds=0.0)
        bridge.update_order()
        assert bridge._last_arrival
        listed = len([path for _, path, _ in studio.requests if path == "/api/tasks/"])
        time.sleep(0.01)
        assert bridge._has_complete_import()
        bridge._read_new_tasks(bridge._importer)
        assert not bridge._has_complete_import()
        assert len([path for _, path, _ in studio.requests if path == "/api/tasks/"]) == listed


def test_deleted_tasks_are_not_created_again(store, studio, tmp_path):
    store_folder, _ = store
    with open_bridge(studio, store_folder, tmp_path / "out") as (bridge, session):
        wait_until_idle(session)
        bridge.update_order()
        deleted = read_serving_order(studio)[0]
        name = read_tasks(studio)[deleted]["item_id"]
        bridge.handle_webhook({"action": "TASKS_DELETED", "tasks": [{"id": deleted}]})
        studio.replies["tasks"]["tasks"] = [
            t for t in studio.replies["tasks"]["tasks"] if t["id"] != deleted
        ]
        bridge.update_order(force=True)
        assert name not in {data["item_id"] for data in read_tasks(studio).values()}
        assert deleted not in read_serving_order(studio)


def test_text_field_may_have_another_name_in_the_project(store, studio, tmp_path):
    store_folder, _ = store
    studio.replies["project"]["label_config"] = CONFIG.replace("$text", "$review")
    with open_bridge(studio, store_folder, tmp_path / "out") as (bridge, session):
        wait_until_idle(session)
        bridge.update_order()
        assert all(data["review"] == data["text"] for data in read_tasks(studio).values())
        edited = CONFIG.replace("$text", "$weight").replace(
            "</Choices>", '<Choice value="art"/></Choices>'
        )
        studio.replies["project"]["label_config"] = edited
        bridge._compare_with_studio()
        assert "art" in bridge.interface.choices
        studio.replies["project"]["label_config"] = CONFIG.replace("Text", "Image").replace(
            "$text", "$photo"
        )
        bridge._compare_with_studio()
        assert "art" in bridge.interface.choices  # a config with unknown fields is not applied


@pytest.mark.parametrize(
    "shown", [CONFIG.replace("Text", "Image").replace("$text", "$photo"), "both"]
)
def test_labelling_config_with_unknown_fields_is_refused(store, studio, tmp_path, shown):
    store_folder, _ = store
    both = CONFIG.replace("<View>", '<View><Text name="a" value="$a"/><Text name="b" value="$b"/>')
    studio.replies["project"]["label_config"] = both if shown == "both" else shown
    with (
        pytest.raises(InputError, match="items of the pool have doc, item_id, text, weight"),
        open_bridge(studio, store_folder, tmp_path / "out"),
    ):
        pass


@pytest.fixture(scope="module")
def image_store(tmp_path_factory):
    """Return a store of images and their folder."""
    root = tmp_path_factory.mktemp("pictures")
    folder = root / "photos" / "in a folder"
    folder.mkdir(parents=True)
    for i in range(12):
        Image.new("RGB", (20, 20), (20 * i, 10, 200)).save(folder / f"{i:02d}.png")
    embed(root / "photos", root / "store", executor=Inline())
    return root / "store", folder


@pytest.mark.skipif(not backbone.is_image_encoder_available(), reason="needs a pretrained network")
@pytest.mark.parametrize("pictures_at", [None, "https://example.org/photos/"])
def test_images_are_uploaded_unless_an_address_is_given(image_store, studio, tmp_path, pictures_at):
    store_folder, folder = image_store
    studio.replies["project"]["label_config"] = CONFIG.replace("Text", "Image").replace(
        "$text", "$photo"
    )
    with open_bridge(studio, store_folder, tmp_path / "out", pictures_at=pictures_at) as (
        bridge,
        session,
    ):
        wait_until_idle(session)
        bridge.update_order()
        uploads = [body for body in studio.sent("POST", "/import") if isinstance(body, bytes)]
        for data in read_tasks(studio).values():
            name = data["item_id"]
            assert data.keys() == {"item_id", "photo"}
            if pictures_at:
                assert data["photo"] == f"https://example.org/photos/in%20a%20folder/{name[-6:]}"
            else:
                position = session.service.items.ids.index(name)
                assert data["photo"] == f"/data/upload/{studio.project}/0a1b2c3d-{position}.png"
                assert (folder / name[-6:]).read_bytes() in uploads[0]
        assert len(read_tasks(studio)) > 3
        assert bool(uploads) != bool(pictures_at)


@pytest.mark.skipif(not backbone.is_image_encoder_available(), reason="needs a pretrained network")
def test_missing_image_is_left_out(image_store, studio, tmp_path):
    store_folder, folder = image_store
    studio.replies["project"]["label_config"] = CONFIG.replace("Text", "Image").replace(
        "$text", "$photo"
    )
    with open_bridge(studio, store_folder, tmp_path / "out") as (bridge, session):
        wait_until_idle(session)
        missing = session.service.items.ids[next(iter(session.service.rank_items()))]
        path = folder / missing[-6:]
        content = path.read_bytes()
        path.unlink()
        try:
            bridge.update_order()
        finally:
            path.write_bytes(content)
        assert missing not in {data["item_id"] for data in read_tasks(studio).values()}
        assert (
            read_serving_order(studio)[0] == bridge.tasks[next(iter(session.service.rank_items()))]
        )


def test_images_in_cloud_storage_keep_their_address():
    images = PoolImages("s3://bucket/photos", ["a/1.png"])
    assert images.address(0) == "s3://bucket/photos/a/1.png"


def test_label_studio_command_exports_pool_items_by_name(store, studio, tmp_path, monkeypatch):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    store_folder, _ = store
    studio.import_tasks([{"item": "doc 7"}], {})
    annotation = {
        **WEBHOOKS[1]["annotation"],
        "task": next(iter(read_tasks(studio))),
        "result": make_choice("food"),
    }
    studio.replies["annotations"] = [{"id": annotation["task"], "annotations": [annotation]}]
    out, to = tmp_path / "out", tmp_path / "labels.csv"
    command = ["label-studio", studio.url, "--project", str(studio.project), "--out", str(out)]
    result = CliRunner().invoke(
        app, [*command, "--pool", str(store_folder), "--export", "csv", "--to", str(to)]
    )
    assert result.exit_code == 0, result.output
    assert (
        to.read_text().splitlines()[1].startswith(f"doc 7,doc 7,the text of number 7,,food,{ANNA}")
    )
    without = CliRunner().invoke(app, [*command, "--export", "csv", "--to", str(to)])
    assert "was begun with --pool" in " ".join(without.output.split())
    wrong = CliRunner().invoke(app, [*command[:-1], str(tmp_path / "new"), "--pool", str(tmp_path)])
    assert "expected a folder that `labelahead pool embed`" in " ".join(wrong.output.split())


def test_pool_of_sounds_is_refused(studio, tmp_path):
    embed(write_sounds(tmp_path / "pool", 20), tmp_path / "store", executor=Inline())
    with (
        pytest.raises(InputError, match="the pool holds sounds, and Label Studio projects take"),
        open_bridge(studio, tmp_path / "store", tmp_path / "out"),
    ):
        pass
