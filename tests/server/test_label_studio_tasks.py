"""Labels as tasks of Label Studio."""

import json

from labelahead.server.exchange import read_import
from tests.support.exported_labels import ITEMS, build_state, write_labels


def test_label_studio_export_is_a_list_of_tasks(tmp_path):
    out = tmp_path / "out.json"
    state = build_state([("anna", "label", 0, 0), ("ben", "label", 0, 1), ("cy", "skip", 0, None)])
    write_labels(state, ITEMS, {1: (0, 0.5)}, "label-studio", out)
    first, second = json.loads(out.read_text(encoding="utf-8"))
    assert first["data"] == {"item_id": "cats/3.jpg"}
    assert [a["annotator"] for a in first["annotations"]] == ["anna", "ben"]
    assert first["annotations"][1]["result"] == [
        {
            "from_name": "label",
            "to_name": "text",
            "type": "choices",
            "value": {"choices": ["../../up"]},
        }
    ]
    assert all("completed_by" not in a for a in first["annotations"])
    assert first["predictions"] == []
    assert second["annotations"] == []
    assert second["predictions"][0]["score"] == 0.5


def make_choice(*names, kind="choices"):
    return {"from_name": "c", "to_name": "image", "type": kind, "value": {kind: list(names)}}


def test_import_reads_every_label_studio_format(tmp_path):
    path = tmp_path / "tasks.json"
    items = [f"photos/{i}.jpg" for i in range(9)]
    tasks = [
        {
            "id": 1,
            "data": {"image": "/data/local-files/?d=my/photos/0.jpg"},
            "annotations": [
                {"result": [make_choice("cat")], "completed_by": 7},
                {"result": [make_choice("Dog")], "completed_by": {"id": 3, "email": "b@x"}},
                {"result": [make_choice("dog")], "completed_by": 9, "was_cancelled": True},
            ],
        },
        {
            "id": 2,
            "data": {"image": "/data/upload/1/0a1b2c3d-1.jpg"},
            "completions": [{"result": [make_choice("cat")]}],
        },
        {
            "id": 3,
            "data": {"image": "https://host/bucket/photos/2%2Ejpg?sig=1"},
            "annotations": [
                {"result": [make_choice("cat"), make_choice("box", kind="rectanglelabels")]}
            ],
        },
        {
            "id": 4,
            "data": {"image": "photos/3.jpg"},
            "annotations": [{"result": [make_choice("cat", "dog")]}],
        },
        {
            "id": 5,
            "data": {"image": "photos/4.jpg"},
            "annotations": [{"result": [make_choice("box", kind="rectanglelabels")]}],
        },
        {"id": 6, "data": {"image": "photos/5.jpg"}, "annotations": [{"result": []}]},
        {
            "id": 7,
            "data": {"image": "photos/6.jpg"},
            "annotations": [],
            "predictions": [{"result": [make_choice("cat")]}],
        },
        {
            "id": 8,
            "data": {"image": "photos/99.jpg"},
            "annotations": [{"result": [make_choice("cat")]}],
        },
        {"id": 9, "image": "photos/7.jpg", "choice": "wolf", "annotator": 7},
        {"id": 10, "image": "photos/8.jpg", "animal": {"choices": ["wolf"]}},
        {
            "id": 11,
            "result": [make_choice("cat")],
            "completed_by": {"username": "z"},
            "task": {"id": 1, "data": {"anything": "photos/8.jpg"}},
        },
    ]
    path.write_text("\ufeff" + json.dumps(tasks), encoding="utf-8")
    imported = read_import(path, items, ("cat", "dog"))
    assert imported.labels == (
        (0, "cat", "7"),
        (0, "dog", "b@x"),
        (1, "cat", "import"),
        (2, "cat", "import"),
        (7, "wolf", "7"),
        (8, "wolf", "import"),
        (8, "cat", "z"),
    )
    assert imported.new_classes == ("wolf",)
    assert imported.unknown == ("photos/99.jpg",)
    assert imported.unclear == ("photos/3.jpg", "photos/4.jpg")
    assert (imported.blank, imported.predictions) == (2, 1)
