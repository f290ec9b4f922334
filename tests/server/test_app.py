"""The HTTP API of the labelling page, and its queries compared with those of a simulation."""

import sys

import pytest

import labelahead
from labelahead.data import load
from labelahead.errors import InputError, StorageError
from labelahead.models import image_encoder as backbone
from labelahead.models import sentence_encoder as sentences
from tests.support.web_answers import answer, make_reviews
from tests.support.web_sessions import CHANGE, page, photo, photos, progress_once


def test_reopened_session_keeps_labels_and_accepts_new_and_missing_images(tmp_path):
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
        assert session.service.items.ids == (*before, "a-new.png")  # positions do not change
        assert client.get("/api/history").json()[0]["item"] == before[2]
        assert any("1 new pictures" in note for note in session.notes)
    removed = folder / before[0]
    removed.unlink()
    with page(folder, tmp_path / "out") as (client, session):
        assert any(f"1 pictures are missing: {before[0]}" in note for note in session.notes)
        queries = [
            client.get("/api/question?fresh=1", headers={"Cookie": f"la_who={i}"}).json()
            for i in range(4)
        ]
        assert {a.get("position") for a in queries} == {
            3,
            4,
            None,
        }  # item 0 is missing, item 1 is still leased
    photo(folder / before[2], size=(50, 40))
    with pytest.raises(
        InputError, match=f"1 labelled pictures have different content: {before[2]}"
    ):
        page(folder, tmp_path / "out").__enter__()
    with pytest.raises(InputError, match="other data"):
        page(photo(tmp_path / "others/x.png").parent, tmp_path / "out").__enter__()


def test_class_folders_name_the_classes_and_label_items_on_request(tmp_path):
    for i, name in enumerate(("cat", "dog", "dog")):
        photo(tmp_path / "set" / name / f"{i}.png", (i * 80, 0, 0))
    with page(tmp_path / "set", tmp_path / "a") as (_, session):
        assert session.service.label_state.classes == ("cat", "dog")
        assert not session.service.label_state.labels
    with page(tmp_path / "set", tmp_path / "b", classes=["x", "y"]) as (_, session):
        assert session.service.label_state.classes == ("x", "y")
    for _ in range(2):  # the second start adds no event
        with page(tmp_path / "set", tmp_path / "c", start_from_folders=True) as (_, session):
            assert dict(session.service.label_state.labels) == {0: 0, 1: 1, 2: 1}
            assert {a[0].who for a in session.service.label_state.answers.values()} == {"folders"}
            assert len(session.service.journal.read_events()) == 5
    with pytest.raises(InputError, match="no labels to start from"):
        page(photos(tmp_path / "p", 2), tmp_path / "d", start_from_folders=True).__enter__()


def test_held_out_items_are_never_queried(tmp_path):
    folder = photos(tmp_path / "set", 6)
    (tmp_path / "test.csv").write_text("item,label\n01.png,dark\n04.png,light\n")
    (tmp_path / "mine.csv").write_text("item,label\n01.png,light\n02.png,light\n")
    options = {"classes": ["light"], "test": tmp_path / "test.csv", "labels": tmp_path / "mine.csv"}
    with page(folder, tmp_path / "out", **options) as (client, session):
        assert session.service.held_out == {1, 4}
        assert session.service.label_state.classes == ("light", "dark")
        assert any("1 labels, 1 of test items" in note for note in session.notes)
        queried = set()
        query = client.get("/api/question").json()
        while not query["done"]:
            queried.add(query["position"])
            query = answer(client, query["position"])["next"]
        assert queried == {0, 3, 5}
        refused = client.post("/api/answers", json={"position": 1, "kind": "skip"}, headers=CHANGE)
        assert refused.status_code == 400
    with page(folder, tmp_path / "out2", classes=["a"]) as (client, _):
        answer(client, 1, 0)
    with page(folder, tmp_path / "out2", test=tmp_path / "test.csv") as (_, session):
        assert session.service.held_out == {4}  # item 1 is already labelled
    with pytest.raises(InputError, match="contain no labels"):
        page(folder, tmp_path / "out3", test=0.5).__enter__()


@pytest.mark.parametrize(
    ("tables", "message"),
    [({"asking": {"strategy": "entropy"}}, "flip"), ({"asking": {"kernel": "full"}}, "pseudo")],
)
def test_unsupported_query_settings_are_refused_at_start(tmp_path, tables, message):
    with pytest.raises(InputError, match=message):
        page(photos(tmp_path / "set", 2), tmp_path / "out", tables=tables).__enter__()


@pytest.mark.parametrize("model", ["exact", "auto"])
@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [("texts", sentences, "labelahead[texts]"), ("photos", backbone, "labelahead[photos]")],
)
def test_page_and_notes_name_the_encoder_or_the_missing_extra(
    tmp_path, monkeypatch, kind, module, extra, model
):
    if not (backbone.is_image_encoder_available() and sentences.is_sentence_encoder_available()):
        pytest.skip("needs the extras photos and texts")
    folder = tmp_path / "items"
    for i, (text, _) in enumerate(make_reviews(8)):
        folder.mkdir(exist_ok=True)
        (folder / f"{i}.txt").write_text(text)
    source = folder if kind == "texts" else photos(tmp_path / "photos", 8)
    for missing in (False, True):
        if missing:
            monkeypatch.setitem(sys.modules, module.PACKAGES[0], None)  # as if not installed
        with page(source, tmp_path / f"out{missing}", tables={"model": {"name": model}}) as (
            client,
            session,
        ):
            shown = client.get("/api/progress").json()["training"]["model"]
            notes = " ".join(session.notes)
            assert (extra in shown, extra in notes) == (missing, missing)
            if not missing:
                expected = {"texts": "all-MiniLM-L6-v2", "photos": "EfficientNet-Lite0"}[kind]
                assert expected in shown
                assert expected in notes
            if kind == "texts":
                assert session.service.items.describe_item(2)["text"] == make_reviews(8)[2][0]


def test_page_queries_the_same_items_as_a_simulation(tmp_path):
    """With the true labels and after every training, the page queries the simulated items."""
    tables = {
        "seed": 3,
        "data": {"name": "digits", "limit": 100},
        "model": {"name": "mlp"},
        "budget": {"initial": 20, "labels": 40, "retrain_every": 10},
        "training": {"steps": 30},
        "threads": 1,
    }
    simulated = labelahead.run(tables)
    expected = simulated.pool.labelled.tolist()
    data, answers = load("digits", limit=100, seed=3)
    options = {"tables": tables, "test": 0.2, "retrain_every": 10}
    with page("digits", tmp_path, **options) as (client, session):
        rows = "".join(f"{data.ids[p]},{data.classes[answers(p)]}\n" for p in expected[:20])
        client.post("/api/import", content=f"item,label\n{rows}".encode(), headers=CHANGE)
        session.schedule.start()
        queried = []
        for _ in range(20):
            if len(queried) % 10 == 0:
                wait_until_idle(client)
            query = client.get("/api/question?fresh=1").json()
            queried.append(query["position"])
            answer(client, query["position"], answers(query["position"]))
        curve = wait_until_idle(client)["curve"]
        assert queried == expected[20:]
        assert [(r["labels"], r["accuracy"]) for r in curve] == simulated.curve
        explanation = client.get(
            f"/api/why/{client.get('/api/question').json()['position']}"
        ).json()
        assert explanation["now"]
        assert explanation["because"]
        assert not explanation["learnt"]
        assert client.get(f"/api/why/{queried[0]}").json()["learnt"]
        assert client.get("/api/map").json()["points"]


def wait_until_idle(client):
    progress = progress_once(client, lambda p: p["training"]["idle"])
    assert "failed" not in progress["training"]["message"]
    return progress
