"""The page's server: what it answers, and that it asks as a campaign does."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image

import labelahead
from labelahead.cli import app
from labelahead.data import from_arrays, load
from labelahead.errors import InputError, LabelaheadError, StorageError
from labelahead.models import image_encoder as backbone
from labelahead.models import sentence_encoder as sentences
from labelahead.server.client import Client
from labelahead.server.items import Items
from labelahead.server.serve import open_socket
from tests.support.waiting import PATIENCE
from tests.support.web_sessions import CHANGE, page, photo, photos, progress_once

GUIDE = (Path(__file__).parents[2] / "docs" / "labelling.md").read_text()


def answer(client, position, label=0, kind="label", key=None, who=None):
    body = {"position": position, "kind": kind, "label": label, "key": key}
    headers = CHANGE if who is None else {**CHANGE, "Cookie": f"la_who={who}"}
    reply = client.post("/api/answers", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_questions_and_answers(tmp_path):
    with page(photos(tmp_path / "set", 6), tmp_path / "out", classes=["cat", "dog"]) as (client, _):
        session = client.get("/api/session").json()
        assert session["items"] == 6
        assert session["classes"] == [
            {"number": 0, "name": "cat", "key": "1"},
            {"number": 1, "name": "dog", "key": "2"},
        ]
        assert session["kind"] == "image"
        assert session["who"] is None
        asked = client.get("/api/question").json()
        assert asked == client.get("/api/question").json()
        assert set(asked) >= {"position", "item", "kind", "url", "guess", "seq", "reason"}
        done = answer(client, asked["position"], 1, key="a")
        assert done["event"]["who"] == "me"
        assert done["labels"] == 1
        assert done["next"]["position"] != asked["position"]
        twice = answer(client, asked["position"], 1, key="a")
        assert twice["event"] == done["event"]
        answer(client, done["next"]["position"], None, "skip")
        assert [e["kind"] for e in client.get("/api/history").json()] == ["skip", "label"]
        progress = client.get("/api/progress").json()
        assert (progress["labels"], progress["skipped"]) == (1, 1)
        assert progress["per_class"] == [0, 1]
        back = client.post("/api/undo", json={"seq": None}, headers=CHANGE).json()
        assert back["undone"]["kind"] == "skip"
        assert back["next"]["position"] == back["undone"]["position"]
        made = client.post("/api/classes", json={"name": "wolf"}, headers=CHANGE).json()
        assert made == {"number": 2, "name": "wolf", "key": "3"}
        assert client.post("/api/classes", json={"name": "WOLF"}, headers=CHANGE).json() == made
        for path in ("why/0", "map", "doubts", "people", "openapi.json", "health"):
            assert client.get(f"/api/{path}").status_code == 200
        assert client.get("/api/why/99").status_code == 404
        assert client.get("/api/doubts?n=0").status_code == 422
        assert client.get("/").headers["content-type"].startswith("text/html")


def test_two_people_are_asked_different_items_and_compared(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out", classes=["a", "b"]) as (client, _):
        asked = {
            who: client.get("/api/question", headers={"Cookie": f"la_who={who}"}).json()["position"]
            for who in ("anna", "ben")
        }
        assert asked["anna"] != asked["ben"]
        answer(client, asked["anna"], 0, who="anna")
        answer(client, asked["anna"], 1, who="ben")
        people = client.get("/api/people").json()
        assert [p["who"] for p in people["people"]] == ["anna", "ben"]
        assert (people["compared"], people["agree"]) == (1, 0)
        assert [a["who"] for a in people["conflicts"][0]["answers"]] == ["anna", "ben"]
        assert people["conflicts"][0]["counts"] == 1
        answer(client, asked["anna"], 0, kind="settle", who="cleo")
        people = client.get("/api/people").json()
        assert (people["conflicts"], people["compared"], people["agree"]) == ([], 1, 0)
        newest = client.get("/api/history").json()[0]
        assert [newest[k] for k in ("kind", "who", "current")] == ["settle", "cleo", 0]
        mine = client.get("/api/history?mine=1", headers={"Cookie": "la_who=ben"}).json()
        assert [(h["who"], h["label"], h["current"]) for h in mine] == [("ben", 1, 0)]
        first = next(csv.DictReader(client.get("/api/export/csv").text.splitlines()))
        assert (first["label"], first["annotator"]) == ("a", "cleo")
        body = {"position": asked["ben"], "kind": "settle", "label": 0}
        assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 400


def test_labels_come_back_the_next_day(tmp_path):
    folder = photos(tmp_path / "set", 4)
    with page(folder, tmp_path / "out", classes=["a", "b"]) as (client, _):
        answer(client, 2, 1)
        with pytest.raises(StorageError, match="in use"), page(folder, tmp_path / "out"):
            pass
    with page(folder, tmp_path / "out") as (client, session):
        assert client.get("/api/history").json()[0]["label"] == 1
        assert session.service.label_state.classes == ("a", "b")
    before = session.service.items.ids
    photo(folder / "a-new.png")
    with page(folder, tmp_path / "out") as (client, session):
        assert session.service.items.ids == (*before, "a-new.png")  # positions stay what they were
        assert client.get("/api/history").json()[0]["item"] == before[2]
        assert any("1 new pictures" in note for note in session.notes)
    gone = folder / before[0]
    gone.unlink()
    with page(folder, tmp_path / "out") as (client, session):
        assert any(f"1 pictures are missing: {before[0]}" in note for note in session.notes)
        asked = [
            client.get("/api/question?fresh=1", headers={"Cookie": f"la_who={i}"}).json()
            for i in range(4)
        ]
        assert {a.get("position") for a in asked} == {
            3,
            4,
            None,
        }  # 0 is gone, 1 is still with somebody
    photo(folder / before[2], size=(50, 40))
    with pytest.raises(
        InputError, match=f"1 labelled pictures have different content: {before[2]}"
    ):
        page(folder, tmp_path / "out").__enter__()
    with pytest.raises(InputError, match="other data"):
        page(photo(tmp_path / "others/x.png").parent, tmp_path / "out").__enter__()


@pytest.mark.parametrize("form", ["csv", "jsonl", "label-studio", "parquet"])
def test_what_is_exported_can_be_imported(tmp_path, form):
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
        broken = client.post(url, content=b"\x00\xff not this", headers=CHANGE)
        assert broken.status_code == 400
        assert str(tmp_path) not in broken.text
        assert "/tmp" not in broken.text
    assert client.post("/api/import?form=exe", content=b"x", headers=CHANGE).status_code == 400


def test_folders_and_hf_come_zipped(tmp_path):
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
        gone = client.get("/api/export/folders")
        assert (gone.status_code, gone.json()["error"][:28]) == (
            400,
            "01.png is no regular file; r",
        )


def test_class_folders_give_names_and_if_wanted_labels(tmp_path):
    for i, name in enumerate(("cat", "dog", "dog")):
        photo(tmp_path / "set" / name / f"{i}.png", (i * 80, 0, 0))
    with page(tmp_path / "set", tmp_path / "a") as (_, session):
        assert session.service.label_state.classes == ("cat", "dog")
        assert not session.service.label_state.labels
    with page(tmp_path / "set", tmp_path / "b", classes=["x", "y"]) as (_, session):
        assert session.service.label_state.classes == ("x", "y")
    for _ in range(2):  # a second time adds nothing
        with page(tmp_path / "set", tmp_path / "c", start_from_folders=True) as (_, session):
            assert dict(session.service.label_state.labels) == {0: 0, 1: 1, 2: 1}
            assert {a[0].who for a in session.service.label_state.answers.values()} == {"folders"}
            assert len(session.service.journal.read_events()) == 5
    with pytest.raises(InputError, match="no labels to start from"):
        page(photos(tmp_path / "p", 2), tmp_path / "d", start_from_folders=True).__enter__()


def test_items_to_measure_on_are_never_asked_for(tmp_path):
    folder = photos(tmp_path / "set", 6)
    (tmp_path / "test.csv").write_text("item,label\n01.png,dark\n04.png,light\n")
    (tmp_path / "mine.csv").write_text("item,label\n01.png,light\n02.png,light\n")
    options = {"classes": ["light"], "test": tmp_path / "test.csv", "labels": tmp_path / "mine.csv"}
    with page(folder, tmp_path / "out", **options) as (client, session):
        assert session.service.held_out == {1, 4}
        assert session.service.label_state.classes == ("light", "dark")
        assert any("1 labels, 1 of test items" in note for note in session.notes)
        asked = set()
        question = client.get("/api/question").json()
        while not question["done"]:
            asked.add(question["position"])
            question = answer(client, question["position"])["next"]
        assert asked == {0, 3, 5}
        refused = client.post("/api/answers", json={"position": 1, "kind": "skip"}, headers=CHANGE)
        assert refused.status_code == 400
    with page(folder, tmp_path / "out2", classes=["a"]) as (client, _):
        answer(client, 1, 0)
    with page(folder, tmp_path / "out2", test=tmp_path / "test.csv") as (_, session):
        assert session.service.held_out == {4}  # learnt from already
    with pytest.raises(InputError, match="contain no labels"):
        page(folder, tmp_path / "out3", test=0.5).__enter__()


@pytest.mark.parametrize(
    ("tables", "message"),
    [({"asking": {"strategy": "entropy"}}, "flip"), ({"asking": {"kernel": "full"}}, "pseudo")],
)
def test_what_the_page_cannot_do_is_said_at_once(tmp_path, tables, message):
    with pytest.raises(InputError, match=message):
        page(photos(tmp_path / "set", 2), tmp_path / "out", tables=tables).__enter__()


def test_small_pictures_are_enlarged_without_smoothing():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (2, 6, 8, 3)).astype(np.uint8)
    items = Items(from_arrays(values)[0])
    content, media = items.encode_picture(1)
    assert media == "image/png"
    shown = np.asarray(Image.open(io.BytesIO(content)))
    assert shown.shape == (6 * 32, 8 * 32, 3)
    assert np.array_equal(shown[::32, ::32], values[1])
    assert np.array_equal(shown[31::32, 31::32], values[1])
    floats = Items(from_arrays(values.transpose(0, 3, 1, 2).astype(np.float32) / 255)[0])
    assert floats.encode_picture(1)[0] == content
    grey = Items(from_arrays(values[:, :, :, 0])[0]).encode_picture(0, 20)[0]
    assert np.asarray(Image.open(io.BytesIO(grey))).shape == (12, 16, 3)


def test_photographs_keep_their_proportions_and_size(tmp_path):
    photo(tmp_path / "a.png", size=(3000, 1500))
    photo(tmp_path / "b.png", size=(500, 700))
    items = Items(load(tmp_path)[0])
    content, media = items.encode_picture(0)
    assert media == "image/jpeg"
    assert Image.open(io.BytesIO(content)).size == (1024, 512)
    assert Image.open(io.BytesIO(items.encode_picture(1)[0])).size == (500, 700)
    assert Image.open(io.BytesIO(items.encode_picture(1, 256)[0])).size == (183, 256)
    assert items.encode_picture(0) is items.encode_picture(0)


def test_tables_show_their_rows_and_never_the_target(tmp_path):
    (tmp_path / "t.csv").write_text("age,town,label\n30,Bonn,yes\n41,,no\n17,Kiel,\n")
    data, _ = load(tmp_path / "t.csv", test_fraction=0)
    items = Items(data)
    assert items.kind == "row"
    assert items.describe_item(0)["row"] == [
        {"name": "age", "value": "30"},
        {"name": "town", "value": "Bonn"},
    ]
    assert "yes" not in json.dumps([items.describe_item(i) for i in range(3)])
    vectors = Items(from_arrays(np.arange(6.0).reshape(3, 2))[0])
    assert vectors.kind == "vector"
    assert vectors.describe_item(1)["row"][1] == {"name": "1", "value": 3.0}


def texts(n=60):
    rng = np.random.default_rng(0)
    words = {
        "good": ["lovely", "wonderful", "pleasant", "delightful", "charming"],
        "bad": ["dreadful", "awful", "horrible", "unpleasant", "tedious"],
    }
    filler = ["the", "film", "was", "about", "a", "man", "who", "went", "to", "sea", "again"]
    rows = []
    for i in range(n):
        kind = "good" if i % 2 else "bad"
        drawn = [*rng.choice(words[kind], 2), *rng.choice(filler, 9)]
        rows.append((" ".join(rng.permutation(drawn)) + f" number{i}", kind))
    return rows


def test_running_text_is_shown_as_text_and_learnt_from(tmp_path):
    rows = texts()
    table = tmp_path / "t.csv"
    lines = [f'"{text}",{i % 5},{kind}' for i, (text, kind) in enumerate(rows)]
    table.write_text("\n".join(["review,stars,label", *lines]))
    data, answers = load(table, test_fraction=0)
    items = Items(data)
    assert items.kind == "text"
    shown = items.describe_item(3)
    assert shown["text"] == rows[3][0]
    assert shown["row"] == [{"name": "stars", "value": "3"}]
    assert any(note.startswith("review: text") for note in data.notes)
    # The nearest other text by angle is of the same kind far more often than not.
    x = torch.nn.functional.normalize(data.inputs[:, :-1], dim=1)
    near = (x @ x.T - 2 * torch.eye(len(x))).argmax(1)
    y = answers.take(torch.arange(len(x)))
    assert float((y[near] == y).double().mean()) > 0.8
    held = load(table, test_fraction=0.2)[0]
    rms = held.inputs[[i for i in range(60) if i not in set(held.test.tolist())]][:, :-1]
    assert float(rms.square().mean()) == pytest.approx(1, rel=1e-4)  # by the pool alone


@pytest.mark.parametrize("model", ["exact", "auto"])
@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [("texts", sentences, "labelahead[texts]"), ("photos", backbone, "labelahead[photos]")],
)
def test_the_page_and_the_terminal_name_the_network_and_what_is_missing(
    tmp_path, monkeypatch, kind, module, extra, model
):
    if not (backbone.is_image_encoder_available() and sentences.is_sentence_encoder_available()):
        pytest.skip("needs the extras photos and texts")
    folder = tmp_path / "items"
    for i, (text, _) in enumerate(texts(8)):
        folder.mkdir(exist_ok=True)
        (folder / f"{i}.txt").write_text(text)
    source = folder if kind == "texts" else photos(tmp_path / "photos", 8)
    for missing in (False, True):
        if missing:
            monkeypatch.setattr(module, "PACKAGES", ("not_there_at_all",))
        with page(source, tmp_path / f"out{missing}", tables={"model": {"name": model}}) as (
            client,
            session,
        ):
            shown = client.get("/api/progress").json()["training"]["model"]
            told = " ".join(session.notes)
            assert (extra in shown, extra in told) == (missing, missing)
            if not missing:
                wanted = {"texts": "all-MiniLM-L6-v2", "photos": "EfficientNet-Lite0"}[kind]
                assert wanted in shown
                assert wanted in told
            if kind == "texts":
                assert session.service.items.describe_item(2)["text"] == texts(8)[2][0]


def test_the_page_asks_what_a_campaign_asks(tmp_path):
    """A patient annotator with the true labels meets the items of the simulated campaign."""
    tables = {
        "seed": 3,
        "data": {"name": "digits", "limit": 100},
        "model": {"name": "mlp"},
        "budget": {"initial": 20, "labels": 40, "retrain_every": 10},
        "training": {"steps": 30},
        "threads": 1,
    }
    offline = labelahead.run(tables)
    wanted = offline.pool.labelled.tolist()
    data, answers = load("digits", limit=100, seed=3)
    more = {"tables": tables, "test": 0.2, "every": 10}
    with page("digits", tmp_path, **more) as (client, session):
        rows = "".join(f"{data.ids[p]},{data.classes[answers(p)]}\n" for p in wanted[:20])
        client.post("/api/import", content=f"item,label\n{rows}".encode(), headers=CHANGE)
        session.schedule.start()
        asked = []
        for _ in range(20):
            if len(asked) % 10 == 0:
                wait(client)
            question = client.get("/api/question?fresh=1").json()
            asked.append(question["position"])
            answer(client, question["position"], answers(question["position"]))
        curve = wait(client)["curve"]
        assert asked == wanted[20:]
        assert [(r["labels"], r["accuracy"]) for r in curve] == offline.curve
        why = client.get(f"/api/why/{client.get('/api/question').json()['position']}").json()
        assert why["now"]
        assert why["because"]
        assert not why["learnt"]
        assert client.get(f"/api/why/{asked[0]}").json()["learnt"]
        assert client.get("/api/map").json()["points"]


def wait(client):
    progress = progress_once(client, lambda p: p["training"]["idle"])
    assert "failed" not in progress["training"]["message"]
    return progress


def test_a_busy_port_is_passed_over():
    with open_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with open_socket("127.0.0.1", port) as second:
            assert second.getsockname()[1] != port
    with pytest.raises(InputError, match="host is"):
        open_socket("no.such.host.invalid", 0)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_the_command_serves_keeps_and_ends(tmp_path, monkeypatch):
    photos(tmp_path / "set", 6)
    base = [sys.executable, "-m", "labelahead", "label", "set", "--classes", "cat,dog"]
    for stop, extra in ((signal.SIGINT, []), (signal.SIGTERM, ["--token", "a-long-token"])):
        started = subprocess.Popen(
            [*base, "--no-browser", "--port", "0", "--model", "mlp", *extra],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            url = started.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/(\?token=a-long-token)?", url), url
            client = Client(url, who="robot")
            asked = client.question()
            done = client.answer(asked["position"], "dog")
            assert done["event"]["who"] == "robot"
            client.answer(asked["position"], "dog", kind="keep")
            kept = [(k["position"], k["who"]) for k in client.kept()]
            assert kept[0] == (asked["position"], "robot")
            assert len(kept) == (2 if extra else 1)  # the one of before is there
            assert client.doubts() == []
            with pytest.raises(InputError, match="no class 'cow'"):
                client.answer(asked["position"], "cow")
            with pytest.raises(InputError, match="there is no item 99"):
                client.answer(99, "dog")
            assert client.picture(0).startswith(b"\x89PNG")
            if extra:
                with pytest.raises(InputError, match="token"):
                    Client(url.split("?")[0]).session()
                assert client.progress()["labels"] == 2  # the one of before is there
                guide: dict = {}
                exec(re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)[1], guide)
                monkeypatch.chdir(tmp_path)
                guide["annotate"](url, {f"{i:02d}.png": "cat" for i in range(6)})
        finally:
            if stop == signal.SIGINT:  # Ctrl-C reaches the training process too
                os.killpg(started.pid, stop)
            else:
                started.send_signal(stop)
            said = started.communicate(timeout=PATIENCE)[1]
        assert started.returncode == 130, said
        assert "all labels are in labels-set" in said
        assert "Traceback" not in said
    with pytest.raises(LabelaheadError, match="cannot be reached"):
        client.session()
    with page(tmp_path / "set", tmp_path / "labels-set") as (_, session):
        assert sorted(session.service.label_state.labels.values()) == [0, 0, 0, 0, 1, 1]
    text = (tmp_path / "labels.csv").read_text()
    assert (text.count("dog,robot"), text.count("cat,robot")) == (2, 4)


def test_the_guide_names_every_option_and_address(tmp_path):
    for option in typer.main.get_command(app).commands["label"].params:
        names = [n for n in option.opts if n.startswith("--")] or ["photos/"]
        hidden = {
            "--browser": "--no-browser",
            "--target": "target column",
            "--root": "public data set",
        }
        assert any(hidden.get(n, n) in GUIDE for n in names), names
    with page(photos(tmp_path / "set", 2), tmp_path / "out") as (client, _):
        for path, methods in client.get("/api/openapi.json").json()["paths"].items():
            for method in methods:
                assert f"{method.upper()} `{path}" in GUIDE, path
    missing = [n for n in vars(Client) if not n.startswith("_") and n not in GUIDE]
    assert missing == []
