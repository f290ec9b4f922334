"""The labels of multilabel, number and rating tasks, from every kind of source."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from labelahead.data import from_arrays, load
from labelahead.data.targets import (
    EncodedLabels,
    TaskValues,
    build_targets,
    make_task,
    read_task_values,
)
from labelahead.errors import InputError

TOPICS = [["sport"], ["food", "sport"], [], None, ["food"]] * 8
PRICES = [12.5, 80.0, -3.25, None, 7.0] * 8
STARS = ["5", "1", "3", None, "4"] * 8


def written(data, answers):
    """Return the written answer of every item, None without a label."""
    known = answers.has_label.tolist()
    return [data.task.write(answers(i)) if known[i] else None for i in range(len(data))]


def write_csv(path, labels):
    rows = [f"{i % 7},{'' if label is None else label}" for i, label in enumerate(labels)]
    path.write_text("\n".join(["x,label", *rows]))
    return path


def write_objects(path, labels):
    rows = [{"x": i % 7, "label": label} for i, label in enumerate(labels)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def write_parquet(path, labels, kind=None, metadata=None):
    x = [i % 7 for i in range(len(labels))]
    table = pa.table({"x": x, "label": pa.array(labels, kind)})
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def write_workbook(path, labels):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["x", "label"])
    for i, label in enumerate(labels):
        book.active.append([i % 7, label])
    book.save(path)
    return path


def write_every_source(tmp_path):
    texts = [None if row is None else ";".join(row) or "[]" for row in TOPICS]
    yield write_csv(tmp_path / "a.csv", texts)
    yield write_objects(tmp_path / "b.jsonl", TOPICS)
    yield write_parquet(tmp_path / "c.parquet", TOPICS, pa.list_(pa.string()))
    names = ["food", "sport"]
    numbers = [None if row is None else [names.index(name) for name in row] for row in TOPICS]
    feature = {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "Sequence"}
    info = json.dumps({"info": {"features": {"label": feature}}})
    yield write_parquet(
        tmp_path / "d.parquet", numbers, pa.list_(pa.int64()), {b"huggingface": info.encode()}
    )
    yield write_workbook(tmp_path / "e.xlsx", texts)


def test_sets_of_classes_are_the_same_from_every_source(tmp_path):
    expected = [None if row is None else ";".join(row) if row else "[]" for row in TOPICS]
    for path in write_every_source(tmp_path):
        data, answers = load(path, task="multilabel", test_fraction=0)
        assert written(data, answers) == expected, path.name
        assert data.task.outputs == ("food", "sport")
        assert data.rows.columns.keys() == {"x"}


def test_class_columns_are_sets_of_classes_and_no_inputs(tmp_path):
    rows = [
        f"{i % 7},{','.join('' if row is None else str(int(c in row)) for c in ('food', 'sport'))}"
        for i, row in enumerate(TOPICS)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["x,food,sport", *rows]))
    names = ("food", "sport")
    data, answers = load(
        tmp_path / "t.csv", task="multilabel", label_columns=names, test_fraction=0
    )
    expected = [None if row is None else ";".join(row) if row else "[]" for row in TOPICS]
    assert written(data, answers) == expected
    assert data.rows.columns.keys() == {"x"}
    x = torch.arange(40.0).remainder(7)[:, None]
    y = [[np.nan] * 2 if row is None else [c in row for c in names] for row in TOPICS]
    made, given = from_arrays(x, np.array(y, dtype=float), task="multilabel", classes=names)
    assert written(made, given) == expected
    np.savez(tmp_path / "t.npz", x=x.numpy(), y=np.array(y, dtype=float))
    data, answers = load(tmp_path / "t.npz", task="multilabel", classes=names, test_fraction=0)
    assert written(data, answers) == expected


@pytest.mark.parametrize(
    ("task", "labels"), [("number", PRICES), ("rating", STARS)], ids=["number", "rating"]
)
def test_numbers_and_ratings_are_the_same_from_every_source(tmp_path, task, labels):
    expected = [None if label is None else f"{float(label):g}" for label in labels]
    sources = [
        write_csv(tmp_path / "a.csv", labels),
        write_objects(tmp_path / "b.jsonl", labels),
        write_parquet(tmp_path / "c.parquet", labels),
        write_workbook(tmp_path / "d.xlsx", labels),
    ]
    for path in sources:
        data, answers = load(path, task=task, test_fraction=0)
        assert written(data, answers) == expected, path.name
    numbers = np.array([np.nan if label is None else float(label) for label in labels])
    np.savez(tmp_path / "e.npz", x=np.arange(40.0)[:, None], y=numbers)
    assert written(*load(tmp_path / "e.npz", task=task, test_fraction=0)) == expected
    assert written(*from_arrays(np.zeros((40, 1)), numbers, task=task)) == expected


def test_several_numbers_with_units_and_decimal_commas(tmp_path):
    rows = [f"{i};{i},5 kg;{i}" for i in range(9)] + ["9;;"]
    (tmp_path / "t.csv").write_text("\n".join(["x;weight;size", *rows]))
    data, answers = load(
        tmp_path / "t.csv", task="number", label_columns=("weight", "size"), test_fraction=0
    )
    assert data.task.outputs == ("weight", "size")
    assert data.task.targets([answers(3)]).tolist() == [[3.5, 3.0]]
    assert not answers.has_label[9]
    assert data.task.unit == ""  # the targets have different ones
    assert load(tmp_path / "t.csv", task="number", target="weight")[0].task.unit == "kg"


def test_test_set_represents_numbers_and_rare_classes(tmp_path):
    numbers = write_csv(tmp_path / "n.csv", [str(i**2) for i in range(200)])
    data, answers = load(numbers, task="number", test_fraction=0.2)
    held = data.task.targets(answers.take(data.test))[:, 0].sqrt()
    assert len(held) == 40
    assert torch.histc(held, 10, 0, 200).tolist() == [4.0] * 10
    labels = ["rare;common" if i < 10 else "common" for i in range(100)]
    data, answers = load(write_csv(tmp_path / "m.csv", labels), task="multilabel")
    rare = data.task.targets(answers.take(data.test))[:, data.task.outputs.index("rare")]
    assert len(rare) == 20
    assert int(rare.sum()) == 2


def test_limit_keeps_random_items_where_labels_are_no_classes(tmp_path):
    path = write_csv(tmp_path / "n.csv", list(range(100)))
    data, _ = load(path, task="number", limit=30, test_fraction=0)
    assert "30 of 100 items kept, at random, seed 0" in data.notes


def test_answer_book_does_not_tell_which_item_has_which_label(tmp_path):
    data, _ = load(write_csv(tmp_path / "a.csv", [3, 1, 2]), task="number", test_fraction=0)
    again, _ = load(write_csv(tmp_path / "b.csv", [1, 2, 3]), task="number", test_fraction=0)
    assert list(data.task.answers) == list(again.task.answers)


def test_data_without_labels_have_a_task_if_its_outputs_are_known(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x\n1\n2\n3\n")
    data, answers = load(path, task="number")
    assert answers is None
    assert data.task.outputs == ("value",)
    assert load(path, task="multilabel")[0].task is None
    assert load(path, task="multilabel", classes=("a", "b"))[0].task.outputs == ("a", "b")
    assert load(path, task="rating", classes=("low", "high"))[0].task.levels == ("low", "high")


def test_single_class_sources_refuse_another_task(tmp_path):
    with pytest.raises(InputError, match=r"digits has one class for each item, but the task is nu"):
        load("digits", task="number", limit=10)


def test_options_that_do_not_fit_the_task_are_refused(tmp_path):
    path = write_csv(tmp_path / "a.csv", [1, 2])
    with pytest.raises(InputError, match=r"task is 'numbers'; did you mean 'number'"):
        load(path, task="numbers")
    with pytest.raises(InputError, match="but the task rating has one column"):
        load(path, task="rating", label_columns=("a", "b"))
    with pytest.raises(InputError, match="target is 'a' and label_columns names b, c"):
        load(path, task="number", target="a", label_columns=("b", "c"))
    with pytest.raises(InputError, match=r"no column 'lable'.*did you mean 'label'"):
        load(path, task="number", label_columns=("lable", "x"))


def test_single_class_labels_name_the_task_that_reads_them(tmp_path):
    with pytest.raises(InputError, match="--task multilabel"):
        load(write_csv(tmp_path / "a.csv", ["a;b", "a", "b", "a;b"]))
    with pytest.raises(InputError, match="--task number"):
        load(write_csv(tmp_path / "b.csv", [i / 8 for i in range(100)]))


def test_empty_label_columns_are_no_labels():
    empty = EncodedLabels.from_targets(build_targets("multilabel", TaskValues((None,), ())), 1)
    assert empty.codes.tolist() == [-1]
    assert empty.task is None
    with pytest.raises(InputError, match="a rating is one column, but a, b are given"):
        read_task_values("rating", {"a": [1], "b": [2]}, str, "t.csv")
    assert make_task("rating", ["1", "2"]).levels == ("1", "2")
