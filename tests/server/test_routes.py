"""The HTTP API of the labelling page."""

import csv
import io
import zipfile

import pytest

from tests.support.sounds import make_sound, write_sound, write_sounds
from tests.support.web_answers import answer
from tests.support.web_sessions import CHANGE, page, photos


def test_api_records_answers_skips_undo_and_new_classes(tmp_path):
    with page(photos(tmp_path / "set", 6), tmp_path / "out", classes=["cat", "dog"]) as (client, _):
        session = client.get("/api/session").json()
        assert session["items"] == 6
        assert session["classes"] == [
            {"number": 0, "name": "cat", "key": "1"},
            {"number": 1, "name": "dog", "key": "2"},
        ]
        assert session["kind"] == "image"
        assert session["who"] is None
        query = client.get("/api/question").json()
        assert query == client.get("/api/question").json()
        assert set(query) >= {"position", "item", "kind", "url", "guess", "seq", "reason"}
        reply = answer(client, query["position"], 1, key="a")
        assert reply["event"]["who"] == "me"
        assert reply["labels"] == 1
        assert reply["next"]["position"] != query["position"]
        repeated = answer(client, query["position"], 1, key="a")
        assert repeated["event"] == reply["event"]
        answer(client, reply["next"]["position"], None, "skip")
        assert [e["kind"] for e in client.get("/api/history").json()] == ["skip", "label"]
        progress = client.get("/api/progress").json()
        assert (progress["labels"], progress["skipped"]) == (1, 1)
        assert progress["per_class"] == [0, 1]
        undo = client.post("/api/undo", json={"seq": None}, headers=CHANGE).json()
        assert undo["undone"]["kind"] == "skip"
        assert undo["next"]["position"] == undo["undone"]["position"]
        added = client.post("/api/classes", json={"name": "wolf"}, headers=CHANGE).json()
        assert added == {"number": 2, "name": "wolf", "key": "3"}
        assert client.post("/api/classes", json={"name": "WOLF"}, headers=CHANGE).json() == added
        for path in ("why/0", "map", "doubts", "people", "openapi.json", "health"):
            assert client.get(f"/api/{path}").status_code == 200
        assert client.get("/api/why/99").status_code == 404
        assert client.get("/api/doubts?n=0").status_code == 422
        assert client.get("/").headers["content-type"].startswith("text/html")


def test_two_annotators_get_different_items_and_their_conflict_is_settled(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out", classes=["a", "b"]) as (client, _):
        queried = {
            who: client.get("/api/question", headers={"Cookie": f"la_who={who}"}).json()["position"]
            for who in ("anna", "ben")
        }
        assert queried["anna"] != queried["ben"]
        answer(client, queried["anna"], 0, who="anna")
        answer(client, queried["anna"], 1, who="ben")
        people = client.get("/api/people").json()
        assert [p["who"] for p in people["people"]] == ["anna", "ben"]
        assert (people["compared"], people["agree"]) == (1, 0)
        pair = {"who": "anna", "other": "ben", "items": 1, "agreeing": 0, "kappa": 0.0}
        assert people["pairs"] == [pair]
        assert people["alpha"] == 0.0
        assert [p["reliability"] for p in people["people"]] == [None, None]  # before the first fit
        assert [a["who"] for a in people["conflicts"][0]["answers"]] == ["anna", "ben"]
        assert people["conflicts"][0]["counts"] == 1
        answer(client, queried["anna"], 0, kind="settle", who="cleo")
        people = client.get("/api/people").json()
        assert (people["conflicts"], people["compared"], people["agree"]) == ([], 1, 0)
        newest = client.get("/api/history").json()[0]
        assert [newest[k] for k in ("kind", "who", "current")] == ["settle", "cleo", 0]
        own_history = client.get("/api/history?mine=1", headers={"Cookie": "la_who=ben"}).json()
        assert [(h["who"], h["label"], h["current"]) for h in own_history] == [("ben", 1, 0)]
        first = next(csv.DictReader(client.get("/api/export/csv").text.splitlines()))
        assert (first["label"], first["annotator"]) == ("a", "cleo")
        body = {"position": queried["ben"], "kind": "settle", "label": 0}
        assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 400


@pytest.mark.parametrize("form", ["csv", "jsonl", "label-studio", "parquet"])
def test_import_of_an_export_restores_its_labels(tmp_path, form):
    folder = photos(tmp_path / "set", 4)
    with page(folder, tmp_path / "out", classes=["cat, tabby", "猫"]) as (client, _):
        answer(client, 1, 0)
        answer(client, 3, 1, who="anna")
        content = client.get(f"/api/export/{form}").content
    with page(folder, tmp_path / "other") as (client, session):
        url = f"/api/import?form={form}"
        counts = client.post(url, content=content, headers=CHANGE).json()
        assert counts["labels"] == 2
        assert counts["new_classes"] == ["cat, tabby", "猫"]
        assert dict(session.service.label_state.labels) == {1: 0, 3: 1}
        invalid = client.post(url, content=b"\x00\xff not this", headers=CHANGE)
        assert invalid.status_code == 400
        assert str(tmp_path) not in invalid.text
        assert "/tmp" not in invalid.text
    assert client.post("/api/import?form=exe", content=b"x", headers=CHANGE).status_code == 400


def test_folder_and_hf_exports_are_zip_files(tmp_path):
    folder = photos(tmp_path / "set", 4)
    with page(folder, tmp_path / "out", classes=["cat", "dog"]) as (client, _):
        answer(client, 1, 1)
        zipped = client.get("/api/export/folders")
        assert 'filename="set-labels.folders.zip"' in zipped.headers["content-disposition"]
        with zipfile.ZipFile(io.BytesIO(zipped.content)) as archive:
            assert archive.read("dog/01.png") == (folder / "01.png").read_bytes()
        with zipfile.ZipFile(io.BytesIO(client.get("/api/export/hf").content)) as archive:
            assert "README.md" in archive.namelist()
        (folder / "01.png").unlink()
        refused = client.get("/api/export/folders")
        assert (refused.status_code, refused.json()["error"][:28]) == (
            400,
            "01.png is no regular file; r",
        )


def test_sound_is_sent_as_wav_with_byte_ranges(tmp_path):
    folder = tmp_path / "sounds"
    write_sound(folder / "a.flac", make_sound("tone"))
    with page(folder, tmp_path / "out", classes=["a", "b"]) as (client, _):
        shown = client.get("/api/items/0").json()
        assert client.get("/api/session").json()["kind"] == "sound"
        whole = client.get(shown["sound"])
        assert whole.status_code == 200
        assert whole.headers["content-type"] == "audio/wav"
        assert whole.headers["accept-ranges"] == "bytes"
        assert "immutable" in whole.headers["cache-control"]
        assert len(whole.content) == int(whole.headers["content-length"]) == 44 + 2 * 8000
        size = len(whole.content)
        for given, start, stop in (
            ("bytes=0-", 0, size),
            ("bytes=100-199", 100, 200),
            ("bytes=-50", size - 50, size),
            (f"bytes=16000-{10 * size}", 16_000, size),
        ):
            part = client.get("/items/0/sound", headers={"Range": given})
            assert part.status_code == 206, given
            assert part.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
            assert part.content == whole.content[start:stop]
            assert part.headers["cache-control"] == "private, no-cache"
        for ignored in ("bytes=5-2", "bytes=0-1,4-5", "items=0-1", "bytes=-"):
            reply = client.get("/items/0/sound", headers={"Range": ignored})
            assert (reply.status_code, reply.content) == (200, whole.content), ignored
        beyond = client.get("/items/0/sound", headers={"Range": f"bytes={size}-"})
        assert beyond.status_code == 416
        assert beyond.headers["content-range"] == f"bytes */{size}"
        assert client.get("/items/9/sound").status_code == 404
        assert client.get(shown["url"]).headers["content-type"].startswith("image/svg+xml")
        other = client.get("/items/0/sound", headers={"Sec-Fetch-Site": "cross-site"})
        assert other.status_code == 403
        (folder / "a.flac").unlink()
        assert "cannot be read" in client.get("/items/0/sound").json()["error"]


def test_unreadable_sound_is_not_queried(tmp_path):
    folder = write_sounds(tmp_path / "sounds", 4)
    (folder / "s00-noise.wav").write_bytes(b"broken")
    with page(folder, tmp_path / "out", classes=["noise", "tone"]) as (client, _):
        queried = set()
        for _ in range(3):
            query = client.get("/api/question").json()
            queried.add(query["item"])
            answer(client, query["position"], int("tone" in query["item"]))
        assert "s00-noise.wav" not in queried
        assert client.get("/api/question").json()["done"] is True
