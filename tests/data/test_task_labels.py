"""Label files of tasks whose label is not one class."""

import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labelahead.data import from_arrays, load
from labelahead.data.task_labels import read_task_labels, read_task_labels_for_ids
from labelahead.errors import InputError

ROWS = [("0", ["a", "b"]), ("1", []), ("2", ["b"])]
WRITTEN = {0: "a;b", 1: "[]", 2: "b"}


@pytest.fixture
def data():
    return from_arrays([[float(i)] for i in range(5)])[0]


def write(tmp_path, text, name="labels.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def write_hugging_face(tmp_path):
    """Write Sequence(ClassLabel) as the library `datasets` does."""
    features = {
        "id": {"dtype": "string", "_type": "Value"},
        "label": {"feature": {"names": ["a", "b"], "_type": "ClassLabel"}, "_type": "Sequence"},
    }
    numbers = [["ab".index(c) for c in row] for _, row in ROWS]
    table = pa.table({"id": [i for i, _ in ROWS], "label": pa.array(numbers, pa.list_(pa.int64()))})
    info = json.dumps({"info": {"features": features}}).encode()
    path = tmp_path / "labels.parquet"
    pq.write_table(table.replace_schema_metadata({b"huggingface": info}), path)
    return path


def write_studio_task(i, value):
    return {"data": {"item": i}, "annotations": [{"result": [{"value": value}]}]}


def write_every_format(tmp_path):
    text = [";".join(row) or "[]" for _, row in ROWS]
    lines = [f"{i},{label}" for (i, _), label in zip(ROWS, text, strict=True)]
    yield write(tmp_path, "\n".join(["id,label", *lines]), "a.csv")
    exported = [
        f"{i},x,{label},anna,2026-01-01,label" for i, label in (r.split(",") for r in lines)
    ]
    head = "id,text,label,annotator,labelled_at,source"
    yield write(tmp_path, "\n".join([head, *exported]), "b.csv")
    objects = [{"id": i, "label": row} for i, row in ROWS]
    yield write(tmp_path, "\n".join(map(json.dumps, objects)), "c.jsonl")
    yield write(tmp_path, json.dumps(dict(ROWS)), "d.json")
    tasks = [write_studio_task(i, {"choices": row}) for i, row in ROWS]
    yield write(tmp_path, json.dumps(tasks), "e.json")
    table = pa.table({"id": [i for i, _ in ROWS], "label": [row for _, row in ROWS]})
    pq.write_table(table, tmp_path / "f.parquet")
    yield tmp_path / "f.parquet"
    yield write_hugging_face(tmp_path)


def test_every_format_gives_the_same_sets_of_classes(tmp_path, data):
    count = 0
    for path in write_every_format(tmp_path):
        read = read_task_labels(path, data, "multilabel")
        assert {p: read.task.write(c) for p, c in read.codes.items()} == WRITTEN, path.name
        assert read.task.outputs == ("a", "b")
        count += 1
    assert count == 7


def test_numbers_and_ratings_of_label_studio_are_read(tmp_path, data):
    tasks = [write_studio_task("0", {"rating": 4}), write_studio_task("1", {"rating": 2})]
    read = read_task_labels(write(tmp_path, json.dumps(tasks), "r.json"), data, "rating")
    assert {p: read.task.write(c) for p, c in read.codes.items()} == {0: "4", 1: "2"}
    tasks = [write_studio_task("3", {"number": 2.5})]
    read = read_task_labels(write(tmp_path, json.dumps(tasks), "n.json"), data, "number")
    assert {p: read.task.write(c) for p, c in read.codes.items()} == {3: "2.5"}


def test_rows_without_label_and_predictions_are_no_labels(tmp_path, data, caplog):
    text = "id,label,source\n0,,label\n1,3.5,label\n2,7,prediction\n"
    with caplog.at_level(logging.WARNING):
        read = read_task_labels(write(tmp_path, text), data, "number")
    assert list(read.codes) == [1]
    assert "1 predictions of a model are ignored" in caplog.text


def test_labels_continue_the_task_of_the_data(tmp_path):
    table = write(tmp_path, "x,tags\n1,a;b\n2,a\n3,\n4,\n5,\n", "t.csv")
    data, answers = load(table, task="multilabel", target="tags", test_fraction=0)
    labels = write(tmp_path, "id,label\n2,c\n3,a\n")
    read = read_task_labels(labels, data, "multilabel")
    assert read.task.outputs == ("a", "b", "c")
    assert data.task.outputs == ("a", "b")  # unchanged
    assert {p: read.task.write(c) for p, c in read.codes.items()} == {2: "c", 3: "a"}
    assert read.task.write(answers(0)) == "a;b;?c"  # nobody has reviewed c there
    with pytest.raises(InputError, match="a label is 'c', but --classes names a, b"):
        read_task_labels(labels, data, "multilabel", ("a", "b"))


def test_two_labels_of_an_item_must_agree_unless_one_resolves_them(tmp_path, data):
    agree = write(tmp_path, "id,label\n0,a;b\n0,b;a\n")
    assert read_task_labels(agree, data, "multilabel").codes == {0: 0}
    differ = write(tmp_path, "id,label\n0,a;b\n0,a\n")
    with pytest.raises(InputError, match=r"line 3: '0' is labelled 'a', but 'a;b' at line 2"):
        read_task_labels(differ, data, "multilabel")
    answers = [{"label": 3.0}, {"label": 5.0}, {"label": 4.0, "kind": "settle"}]
    settled = write(tmp_path, json.dumps({"id": "0", "answers": answers}), "s.jsonl")
    read = read_task_labels(settled, data, "number")
    assert read.task.write(read.codes[0]) == "4"


def test_unit_of_labels_and_data_must_be_the_same(tmp_path):
    table = write(tmp_path, "x,y\n1,5 kg\n2,6 kg\n3,\n4,\n", "t.csv")
    data, _ = load(table, task="number", target="y", test_fraction=0)
    read = read_task_labels(write(tmp_path, "id,label\n2,7 kg\n3,8\n"), data, "number")
    assert {p: read.task.write(c) for p, c in read.codes.items()} == {2: "7", 3: "8"}
    with pytest.raises(
        InputError, match=r"unit of the labels is 'lb', but that of the data is 'kg'"
    ):
        read_task_labels(write(tmp_path, "id,label\n2,7 lb\n"), data, "number")


def test_errors_name_the_place_of_the_label(tmp_path, data):
    with pytest.raises(InputError, match=r"line 3 holds 'many'; expected a number"):
        read_task_labels(write(tmp_path, "id,label\n0,1\n1,many\n"), data, "number")
    with pytest.raises(InputError, match=r"no item is called '77'"):
        read_task_labels(write(tmp_path, "id,label\n77,1\n"), data, "number")
    folder = tmp_path / "folders" / "cat"
    folder.mkdir(parents=True)
    (folder / "0").touch()
    with pytest.raises(InputError, match="one folder for each class"):
        read_task_labels(folder.parent, data, "multilabel")


def test_labels_of_named_items_are_read(tmp_path):
    path = write(tmp_path, "id,label\nu,1\nw,3\n")
    read = read_task_labels_for_ids(path, ["u", "v", "w"], "rating", classes=("1", "2", "3"))
    assert read.codes == {0: 0, 2: 2}
