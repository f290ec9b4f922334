"""A pool of millions in Label Studio, here of hundreds.

What is to be served comes in as tasks, and nothing else.
"""

import time
from contextlib import contextmanager

import pytest
from PIL import Image
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.errors import InputError
from labelahead.integrations.label_studio import bridge as bridge_module
from labelahead.integrations.label_studio.client import Unreachable
from labelahead.integrations.label_studio.connection import Connection
from labelahead.integrations.label_studio.task_importer import TaskImporter
from labelahead.learner.config import parse_campaign
from labelahead.models import image_encoder as backbone
from labelahead.outofcore import embed
from labelahead.server import large_pool as large
from labelahead.server.session import open_session
from tests.integrations.label_studio.test_bridge import ANNA, WEBHOOKS, served_by, settled
from tests.support.label_studio import CONFIG, KEY, choice, replay
from tests.support.large_pools import Inline, clouds, text_pool

N = 400
TOPICS = ("sport", "food", "space")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "SAMPLE_ITEMS", 60)
    monkeypatch.setattr(large, "CANDIDATES_PER_SCORING", 20)
    x, y = clouds(N)
    weights = [float("nan") if i % 2 else i / 2 for i in range(N)]
    text_pool(tmp_path / "pool", x, id="doc", weight=weights)
    embed(
        tmp_path / "pool",
        tmp_path / "store",
        column="v",
        id="doc",
        dtype="float32",
        executor=Inline(),
    )
    return tmp_path / "store", y


@pytest.fixture
def studio():
    with replay() as replaying:
        empty(replaying)
        yield replaying


def empty(studio):
    """A project without a task."""
    studio.replies["tasks"] |= {"total": 0, "tasks": []}
    studio.replies["project"] |= {
        "task_number": 0,
        "total_annotations_number": 0,
        "skipped_annotations_number": 0,
    }
    studio.replies["annotations"] = []


@contextmanager
def joined(studio, store, out, *, refresh_every=10, pictures_at=None, **more):
    """A session of the store, and its bridge to the replayed project.

    Webhooks of new tasks come within the request.
    """
    connection = Connection.open(studio.url, KEY, studio.project, out, pool=True)
    tables = {"data": {"name": str(store)}, "threads": 1}
    how = {
        "classes": connection.interface.choices,
        "executor": Inline(),
        "refresh_every": refresh_every,
    }
    with open_session(parse_campaign(tables), out, **how) as session:
        session.schedule.start()
        importer = connection.make_importer(session.pool_worker, pictures_at)
        bridge = connection.make_pool_bridge(session.service, importer, predictions=False, **more)
        studio.told = lambda tasks: bridge.handle_webhook(
            {"action": "TASKS_CREATED", "tasks": tasks}
        )
        bridge.reconcile()
        yield bridge, session


def tasks_of(studio):
    return {task["id"]: task["data"] for task in studio.replies["tasks"]["tasks"]}


def annotate(bridge, studio, task, name, number):
    """As Label Studio has it, and tells it."""
    given = {**WEBHOOKS[1]["annotation"], "id": number, "task": task, "result": choice(name)}
    studio.replies["annotations"].append({"id": task, "annotations": [given]})
    studio.replies["project"]["total_annotations_number"] += 1
    bridge.handle_webhook({**WEBHOOKS[1], "annotation": given})


def said(session):
    """Item and class of every label."""
    service = session.service
    return {
        service.items.ids[p]: service.label_state.classes[c]
        for p, c in service.label_state.labels.items()
    }


def label_some(bridge, session, studio, y, count, first=900):
    """Whoever asks is given what matters most of all that is held.

    The names of what was labelled.
    """
    names = []
    for number in range(first, first + count):
        settled(session)
        bridge.update_order()
        task = served_by(studio, [a["id"] for a in studio.replies["annotations"]])[0]
        name = tasks_of(studio)[task]["item_id"]
        assert name == session.service.next_query(ANNA, fresh=True)["item"]
        annotate(bridge, studio, task, TOPICS[y[int(name.split()[1])]], number)
        names.append(name)
    return names


def test_items_become_tasks_when_their_turn_comes(store, studio, tmp_path):
    place, y = store
    with joined(studio, place, tmp_path / "out") as (bridge, session):
        settled(session)
        held = len(session.service.items)
        names = label_some(bridge, session, studio, y, 25)
        assert said(session) == {name: TOPICS[y[int(name.split()[1])]] for name in names}
        settled(session)
        assert len(session.service.items) > held  # the pool was scored again meanwhile
        tasks = tasks_of(studio)
        assert (
            25 < len(tasks) < 25 * (2 * bridge._min_depth)
        )  # some for each answer, not all that is held
        assert len({data["item_id"] for data in tasks.values()}) == len(tasks)
        for data in tasks.values():
            number = int(data["doc"].split()[1])
            assert data == {
                "item_id": f"doc {number}",
                "doc": f"doc {number}",
                "text": f"the text of number {number}",
                "weight": None if number % 2 else number / 2,
            }


def test_a_second_start_makes_nothing_twice(store, studio, tmp_path):
    place, y = store
    with joined(studio, place, tmp_path / "out") as (bridge, session):
        names = label_some(bridge, session, studio, y, 12)
        labels, tasks = said(session), tasks_of(studio)
    with joined(studio, place, tmp_path / "out") as (bridge, session):
        assert said(session) == labels
        names += label_some(bridge, session, studio, y, 5, 950)
        assert len(set(names)) == 17
        assert list(tasks_of(studio))[: len(tasks)] == list(tasks)
        items = [data["item_id"] for data in tasks_of(studio).values()]
        assert len(set(items)) == len(items)


def test_a_reply_that_is_lost_makes_no_task_twice(store, studio, tmp_path):
    place, _ = store
    with joined(studio, place, tmp_path / "out") as (bridge, session):
        settled(session)
        studio.cut = True
        with pytest.raises(Unreachable):
            bridge.update_order()
        studio.cut = False
        bridge.update_order()
        items = [data["item_id"] for data in tasks_of(studio).values()]
        assert items
        assert len(set(items)) == len(items)
        assert set(served_by(studio)) <= set(tasks_of(studio))


def test_tasks_of_ones_own_are_the_items_that_they_name(store, studio, tmp_path):
    """By our field or by the pool's own column of names; others are left alone."""
    place, _ = store
    mine = [
        {"doc": "doc 7", "text": "as I have it"},
        {"item": "doc 8"},
        {"text": "no item"},
        {"item": "3.parquet:9"},
    ]
    mine.append({"item": "0.parquet:7"})  # doc 7 once more
    studio.imported([*mine, {"item": "nothing"}], {})
    first, second, stranger, by_row, again, unknown = tasks_of(studio)
    annotation = {**WEBHOOKS[1]["annotation"], "task": first, "result": choice("food")}
    twice = {**annotation, "id": 800, "task": again}
    studio.replies["annotations"] = [
        {"id": first, "annotations": [annotation]},
        {"id": again, "annotations": [twice]},
    ]
    with joined(studio, place, tmp_path / "out") as (bridge, session):
        assert bridge.positions[first] == bridge.positions[again]
        assert said(session) == {"doc 7": "food"}  # it is held, since somebody has labelled it
        annotate(bridge, studio, by_row, "space", 901)
        annotate(bridge, studio, stranger, "space", 902)
        annotate(bridge, studio, unknown, "space", 903)
        assert bridge._has_unknown_items
        bridge.reconcile()
        assert said(session) == {"doc 7": "food", "doc 309": "space"}
        assert not bridge._has_unknown_items
        settled(session)
        bridge.update_order()
        importer = bridge._importer
        assert isinstance(importer, TaskImporter)
        assert importer.foreign_tasks == 2
        assert bridge.tasks[session.service.items.ids.index("doc 7")] == first
        assert second in importer
        studio.imported([{"item": "doc 20"}], {})
        annotate(bridge, studio, max(tasks_of(studio)), "sport", 904)
        bridge._read_new_tasks(importer)
        assert said(session)["doc 20"] == "sport"


def test_our_own_tasks_are_no_news(store, studio, tmp_path, monkeypatch):
    monkeypatch.setattr(bridge_module, "QUIET_SECONDS", 0.0)
    place, _ = store
    with joined(studio, place, tmp_path / "out") as (bridge, session):
        settled(session)
        bridge.update_order()
        assert bridge._last_arrival
        listed = len([path for _, path, _ in studio.asked if path == "/api/tasks/"])
        time.sleep(0.01)
        assert bridge._has_complete_import()
        bridge._read_new_tasks(bridge._importer)
        assert not bridge._has_complete_import()
        assert len([path for _, path, _ in studio.asked if path == "/api/tasks/"]) == listed


def test_deleted_tasks_are_not_made_again(store, studio, tmp_path):
    place, _ = store
    with joined(studio, place, tmp_path / "out") as (bridge, session):
        settled(session)
        bridge.update_order()
        gone = served_by(studio)[0]
        name = tasks_of(studio)[gone]["item_id"]
        bridge.handle_webhook({"action": "TASKS_DELETED", "tasks": [{"id": gone}]})
        studio.replies["tasks"]["tasks"] = [
            t for t in studio.replies["tasks"]["tasks"] if t["id"] != gone
        ]
        bridge.update_order(anew=True)
        assert name not in {data["item_id"] for data in tasks_of(studio).values()}
        assert gone not in served_by(studio)


def test_a_text_may_have_another_name_in_the_project(store, studio, tmp_path):
    place, _ = store
    studio.replies["project"]["label_config"] = CONFIG.replace("$text", "$review")
    with joined(studio, place, tmp_path / "out") as (bridge, session):
        settled(session)
        bridge.update_order()
        assert all(data["review"] == data["text"] for data in tasks_of(studio).values())
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
        assert "art" in bridge.interface.choices  # what items do not have is not taken up


@pytest.mark.parametrize(
    "shown", [CONFIG.replace("Text", "Image").replace("$text", "$photo"), "both"]
)
def test_what_items_do_not_have_is_refused(store, studio, tmp_path, shown):
    place, _ = store
    both = CONFIG.replace("<View>", '<View><Text name="a" value="$a"/><Text name="b" value="$b"/>')
    studio.replies["project"]["label_config"] = both if shown == "both" else shown
    with (
        pytest.raises(InputError, match="items of the pool have doc, item_id, text, weight"),
        joined(studio, place, tmp_path / "out"),
    ):
        pass


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A store of pictures, and their folder."""
    root = tmp_path_factory.mktemp("pictures")
    folder = root / "photos" / "in a folder"
    folder.mkdir(parents=True)
    for i in range(12):
        Image.new("RGB", (20, 20), (20 * i, 10, 200)).save(folder / f"{i:02d}.png")
    embed(root / "photos", root / "store", executor=Inline())
    return root / "store", folder


@pytest.mark.skipif(not backbone.is_image_encoder_available(), reason="needs a pretrained network")
@pytest.mark.parametrize("pictures_at", [None, "https://example.org/photos/"])
def test_pictures_are_uploaded_unless_they_are_to_be_had_elsewhere(
    pictures, studio, tmp_path, pictures_at
):
    place, folder = pictures
    studio.replies["project"]["label_config"] = CONFIG.replace("Text", "Image").replace(
        "$text", "$photo"
    )
    with joined(studio, place, tmp_path / "out", pictures_at=pictures_at) as (bridge, session):
        settled(session)
        bridge.update_order()
        sent = [body for body in studio.sent("POST", "/import") if isinstance(body, bytes)]
        for data in tasks_of(studio).values():
            name = data["item_id"]
            assert data.keys() == {"item_id", "photo"}
            if pictures_at:
                assert data["photo"] == f"https://example.org/photos/in%20a%20folder/{name[-6:]}"
            else:
                position = session.service.items.ids.index(name)
                assert data["photo"] == f"/data/upload/{studio.project}/0a1b2c3d-{position}.png"
                assert (folder / name[-6:]).read_bytes() in sent[0]
        assert len(tasks_of(studio)) > 3
        assert bool(sent) != bool(pictures_at)


@pytest.mark.skipif(not backbone.is_image_encoder_available(), reason="needs a pretrained network")
def test_a_picture_that_is_gone_is_left_out(pictures, studio, tmp_path):
    place, folder = pictures
    studio.replies["project"]["label_config"] = CONFIG.replace("Text", "Image").replace(
        "$text", "$photo"
    )
    with joined(studio, place, tmp_path / "out") as (bridge, session):
        settled(session)
        gone = session.service.items.ids[next(iter(session.service.rank_items()))]
        away = folder / gone[-6:]
        content = away.read_bytes()
        away.unlink()
        try:
            bridge.update_order()
        finally:
            away.write_bytes(content)
        assert gone not in {data["item_id"] for data in tasks_of(studio).values()}
        assert served_by(studio)[0] == bridge.tasks[next(iter(session.service.rank_items()))]


def test_pictures_in_a_storage_keep_their_addresses():
    pictures = large.PoolPictures("s3://bucket/photos", ["a/1.png"])
    assert pictures.address(0) == "s3://bucket/photos/a/1.png"


def test_the_command_refuses_what_goes_with_a_pool_alone(monkeypatch):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    for option in (["--cluster", "tcp://127.0.0.1:9"], ["--pictures-at", "http://x/"]):
        result = CliRunner().invoke(
            app, ["label-studio", "http://127.0.0.1:9", "--project", "1", *option]
        )
        assert result.exit_code == 2
        assert "go with --pool" in " ".join(result.output.split())


def test_the_command_exports_under_the_items_own_names(store, studio, tmp_path, monkeypatch):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    place, _ = store
    studio.imported([{"item": "doc 7"}], {})
    given = {
        **WEBHOOKS[1]["annotation"],
        "task": next(iter(tasks_of(studio))),
        "result": choice("food"),
    }
    studio.replies["annotations"] = [{"id": given["task"], "annotations": [given]}]
    out, to = tmp_path / "out", tmp_path / "labels.csv"
    command = ["label-studio", studio.url, "--project", str(studio.project), "--out", str(out)]
    result = CliRunner().invoke(
        app, [*command, "--pool", str(place), "--export", "csv", "--to", str(to)]
    )
    assert result.exit_code == 0, result.output
    assert (
        to.read_text().splitlines()[1].startswith(f"doc 7,doc 7,the text of number 7,,food,{ANNA}")
    )
    without = CliRunner().invoke(app, [*command, "--export", "csv", "--to", str(to)])
    assert "was begun with --pool" in " ".join(without.output.split())
    wrong = CliRunner().invoke(app, [*command[:-1], str(tmp_path / "new"), "--pool", str(tmp_path)])
    assert "expected a folder that `labelahead pool embed`" in " ".join(wrong.output.split())
