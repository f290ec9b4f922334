"""Label values: missing labels, spellings of one class, several classes in one label."""

import json
import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from labelahead.data import from_arrays, load, read_labels
from labelahead.data.label_values import (
    LabelNormaliser,
    find_combined_labels,
    parse_label,
    split_class_names,
)
from labelahead.data.labels import read_import
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.learner.labelling_query import query_items
from labelahead.simulation.run import run
from tests.support.web_sessions import page

MIXED = ["Cat", "cat", "dog", "NA", "None", "nan", "", "CAT", "dog", "null", "n/a", "?"]
KNOWN = [True, True, True, False, False, False, False, True, True, False, False, False]


def write_table(path, labels, name="label"):
    rows = [
        f"v,w,{name}",
        *(f"{i},{i % 3},{json.dumps(label) if label else ''}" for i, label in enumerate(labels)),
    ]
    path.write_text("\n".join(rows).replace('\\"', '""') + "\n")
    return path


def has_note(data, text):
    return any(text in note for note in data.notes)


# --- one value --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (" cat ", "cat"),
        ("", None),
        (None, None),
        (float("nan"), None),
        (True, "true"),
        (2.0, "2"),
        (np.int64(3), "3"),
        (b"cat", "cat"),
        (["cat"], "cat"),
        ([], None),
        (["a", "b"], ("a", "b")),
        ('["a", "b"]', ("a", "b")),
        ("['a', 'b']", ("a", "b")),
        ('["a"]', "a"),
        ("[a]", "[a]"),
        (np.array([0, 1]), ("0", "1")),
    ],
)
def test_parse_label_converts_values(value, expected):
    assert parse_label(value) == expected


def test_split_class_names_keeps_commas_within_quotes():
    assert split_class_names('a, b ,"c, d",, e;f') == ["a", "b", "c, d", "e;f"]
    assert split_class_names("") == []


def test_label_normaliser_keeps_listed_names():
    reader = LabelNormaliser(["None", "US", "us"])
    assert [reader.read(t) for t in ("none", "US", "us", "Us", "NA")] == [
        "None",
        "US",
        "us",
        "US",
        None,
    ]
    assert LabelNormaliser().read("None", literal=True) == "None"


# --- the same rule at every door --------------------------------------------------------------


def test_tables_arrays_label_files_and_imports_agree(tmp_path, caplog):
    data, answers = load(write_table(tmp_path / "t.csv", MIXED), test_fraction=0)
    assert data.classes == ("Cat", "dog")
    assert answers.has_label.tolist() == KNOWN
    assert has_note(
        data, "labels that differ in capital letters are one class: 'cat', 'CAT' as 'Cat'"
    )
    assert has_note(
        data,
        "treated as missing labels: 'NA' (1), 'None' (1), 'nan' (1), 'null' (1), 'n/a' (1), '?' (1)",
    )
    by_array, from_array = from_arrays(np.zeros((12, 2)), MIXED)
    assert by_array.classes == ("Cat", "dog")
    assert from_array.has_label.tolist() == KNOWN
    bare, _ = from_arrays(np.zeros((12, 2)))
    lines = [f"{i},{label}" for i, label in enumerate(MIXED)]
    (tmp_path / "labels.csv").write_text("\n".join(["item,label", *lines]) + "\n")
    with caplog.at_level(logging.WARNING, logger="labelahead"):
        at, numbers, classes = read_labels(tmp_path / "labels.csv", bare)
    assert classes == ("Cat", "dog")
    assert at.tolist() == np.flatnonzero(KNOWN).tolist()
    assert numbers.tolist() == answers.take(at).tolist()
    assert "treated as missing labels" in caplog.text
    imported = read_import(tmp_path / "labels.csv", bare.ids, [])
    assert [(p, name) for p, name, _ in imported.labels] == [
        (p, classes[c]) for p, c in zip(at.tolist(), numbers.tolist(), strict=True)
    ]
    assert imported.blank == KNOWN.count(False)


def test_page_and_simulation_read_the_same_labels(tmp_path):
    path = write_table(tmp_path / "t.csv", MIXED * 3)
    with page(path, tmp_path / "out", start_from_folders=True) as (_, session):
        label_state = session.service.label_state
        assert label_state.classes == ("Cat", "dog")
        assert len(label_state.labels) == 15
    budget = {"initial": 2, "labels": 4, "retrain_every": 2}
    done = run(
        parse_campaign(
            {
                "data": {"name": str(path)},
                "model": {"name": "exact"},
                "budget": budget,
                "threads": 1,
            }
        )
    )
    assert len(done.rounds) == 2


def test_listed_class_may_be_a_word_for_missing(tmp_path):
    labels = ["None", "some", "none", "some", "NA", "None"] * 2
    data, answers = load(
        write_table(tmp_path / "t.csv", labels), classes=["None", "some"], test_fraction=0
    )
    assert data.classes == ("None", "some")
    assert answers.has_label.tolist() == [label != "NA" for label in labels]
    unlabelled = write_table(tmp_path / "u.csv", [""] * 12)
    (tmp_path / "labels.csv").write_text("item,label\n0,None\n1,some\n2,none\n")
    tables = {
        "data": {"name": str(unlabelled), "classes": "None,some"},
        "model": {"name": "exact"},
        "threads": 1,
    }
    queries, _ = query_items(parse_campaign(tables), 9, labels=tmp_path / "labels.csv")
    assert sorted(int(query.id) for query in queries) == list(range(3, 12))


def test_exported_labels_and_class_folders_are_literal(tmp_path):
    data, _ = from_arrays(np.zeros((3, 2)))
    rows = ["item,label,who,at,source,confidence", "0,None,me,,label,", "1,some,me,,label,"]
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    assert read_labels(tmp_path / "labels.csv", data)[2] == ("None", "some")
    for name in ("none/0", "some/1"):
        (tmp_path / "folders" / name).parent.mkdir(parents=True)
        (tmp_path / "folders" / name).write_text("x")
    assert read_labels(tmp_path / "folders", data)[2] == ("none", "some")


def test_label_outside_the_list_of_classes_is_refused_in_a_simulation(tmp_path):
    path = write_table(tmp_path / "t.csv", ["a", "b", "c"] * 10)
    with pytest.raises(InputError, match="a label is 'c', but --classes names a, b"):
        run(
            parse_campaign(
                {
                    "data": {"name": str(path), "classes": ["a", "b"]},
                    "model": {"name": "exact"},
                    "threads": 1,
                }
            )
        )


# --- several classes in one label -------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        {"World", "Breaking", "World;Breaking"},
        {"a|b", "b|c", "c|a"},
        {"a, b", "a, b, c", "c, a"},
        {"1,2,3", "2,3", "1,3"},
        {"sport", "sport; news", "news; culture", "culture"},
    ],
)
def test_combined_labels_are_found(names):
    assert find_combined_labels(names)


@pytest.mark.parametrize(
    "names",
    [
        {"Paris, France", "Lyon, France", "Bonn, Germany"},
        {"Smith, John", "Smith, Jane", "Smith"},
        {"bags, leather", "bags, cotton", "shoes, leather", "shoes, cotton"},
        {"salt; pepper", "salt", "oil"},
        {"1", "1,5", "2", "2,5", "5"},
        {"a;", ";b", "a", "b"},
        {"yes", "no"},
        set(),
    ],
)
def test_separators_alone_are_not_combined_labels(names):
    assert find_combined_labels(names) == []


def test_listed_names_are_never_combined():
    names = {"a", "b", "a;b"}
    assert find_combined_labels(names, ["a", "b"]) == ["a;b"]
    assert find_combined_labels(names, ["a", "b", "a;b"]) == []


SEVERAL = [["World", "World;Breaking"], ["World", "World|Sport"], ["World", "World, Sport"]]


@pytest.mark.parametrize("labels", SEVERAL)
def test_tables_with_several_classes_per_item_are_refused(tmp_path, labels):
    path = write_table(tmp_path / "t.csv", [*labels, "Breaking", "Sport"] * 5)
    with pytest.raises(
        InputError, match=r"several classes per item, such as 'World.*--task multilabel.*--classes"
    ):
        load(path)
    data, _ = load(path, classes=[*labels, "Breaking", "Sport"])
    assert labels[1] in data.classes


def test_lists_of_classes_are_refused(tmp_path):
    lists = [["World", "Sport"], ["World"], [], ["Sport"]] * 4
    columns = {"v": pa.array(range(16)), "label": pa.array(lists)}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text(
        "\n".join(json.dumps({"v": i, "label": value}) for i, value in enumerate(lists)) + "\n"
    )
    write_table(tmp_path / "t.csv", [json.dumps(value) for value in lists])
    columns["label"] = pa.array([[0, 1, 1]] * 16)  # one number for each class
    pq.write_table(pa.table(columns), tmp_path / "n.parquet")
    for name in ("t.parquet", "t.jsonl", "t.csv", "n.parquet"):
        with pytest.raises(
            InputError, match=r"hold several classes per item, such as .* --task multilabel"
        ):
            load(tmp_path / name)


def test_lists_of_one_class_are_that_class(tmp_path):
    lists = [["World"], [], ["Sport"], ["World"]] * 4
    pq.write_table(
        pa.table({"v": pa.array(range(16)), "label": pa.array(lists)}), tmp_path / "t.parquet"
    )
    data, answers = load(tmp_path / "t.parquet", test_fraction=0)
    assert data.classes == ("Sport", "World")
    assert answers.has_label.tolist() == [bool(value) for value in lists]


def test_label_files_and_imports_with_several_classes_are_refused(tmp_path):
    data, _ = from_arrays(np.zeros((6, 2)), classes=["World", "Sport"])
    (tmp_path / "labels.csv").write_text("item,label\n0,World\n1,World;Sport\n")
    with pytest.raises(InputError, match="several classes per item, such as 'World;Sport'"):
        read_labels(tmp_path / "labels.csv", data)
    with pytest.raises(InputError, match="several classes per item, such as 'World;Sport'"):
        read_import(tmp_path / "labels.csv", data.ids, data.classes)
    assert read_labels(tmp_path / "labels.csv", data, ["World;Sport"])[2] == (
        "World",
        "Sport",
        "World;Sport",
    )


def test_arrays_with_several_classes_are_refused():
    with pytest.raises(InputError, match="several classes per item"):
        from_arrays(np.zeros((4, 2)), ["a", "b", "a|b", "b"])
    data, answers = from_arrays(np.zeros((4, 2)), ["a", "b", "a|b", "b"], classes=["a", "b", "a|b"])
    assert data.classes == ("a", "b", "a|b")
    assert answers.take(torch.arange(4)).tolist() == [0, 1, 2, 1]
