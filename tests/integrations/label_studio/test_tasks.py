"""Tasks of a project as files."""

import base64

import pytest
from PIL import Image

from labelahead.errors import InputError
from labelahead.integrations.label_studio.client import LabelStudioClient, Unreachable
from labelahead.integrations.label_studio.connection import Connection
from labelahead.learner.config import parse_campaign
from labelahead.server.session import SessionOptions, open_session
from tests.support.label_studio import CONFIG, KEY, free_port, replay
from tests.support.label_studio_bridges import (
    WEBHOOKS,
    open_bridge,
    read_serving_order,
    wait_until_idle,
)
from tests.support.sounds import write_sounds


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
        fetched = connection.fetch_tasks(lambda done, of: None, parallel_downloads=1)
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


def test_sounds_are_fetched_and_served_as_the_page_would(tmp_path):
    folder = write_sounds(tmp_path / "sounds", 24, seconds=0.2)
    paths = sorted(folder.iterdir())
    with replay() as studio:
        studio.files = {f"/data/upload/1/{p.name}": p.read_bytes() for p in paths}
        studio.files["/data/upload/1/song.m4a"] = b"no sound that can be read"
        config = CONFIG.replace("<Text", "<Audio").replace("$text", "$audio")
        studio.replies["project"]["label_config"] = config
        rows = [
            {"id": i, "data": {"audio": address}} for i, address in enumerate(studio.files, start=1)
        ]
        studio.replies["tasks"] = {"total": len(rows), "tasks": rows}
        studio.replies["annotations"] = []
        connection = Connection.open(studio.url, KEY, studio.project, tmp_path / "out")
        fetched = connection.fetch_tasks(lambda done, of: None)
        assert len(list(fetched.folder.iterdir())) == 24
        assert (fetched.folder / "3.wav").read_bytes() == paths[2].read_bytes()
        assert "1 tasks cannot be downloaded" in fetched.notes[0]
        assert "25: it is no sound of a kind that can be read" in fetched.notes[0]
        options = SessionOptions(connection.interface.choices)
        tables = {"data": {"name": str(fetched.folder)}, "threads": 1}
        with open_session(parse_campaign(tables), tmp_path / "out", options) as session:
            assert session.service.items.kind == "sound"
            session.schedule.start()
            bridge = connection.make_bridge(session.service, fetched, predictions=False)
            bridge.reconcile()
            wait_until_idle(session)
            bridge.update_order()
            best = [bridge.tasks[p] for p in session.service.rank_items()]
            served = read_serving_order(studio)
            assert served == best[: len(served)]
            assert len(served) > 0
