"""Ids and the names of exported columns."""

import numpy as np
import pytest

from labelahead.data import from_arrays, load, read_labels
from labelahead.data.records import (
    Records,
    choose_id_column,
    format_id,
    join_records,
    read_ids,
    rename_clashing_columns,
    to_python_list,
)
from labelahead.errors import InputError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (7.0, "7"),
        ("7", "7"),
        ("007", "007"),
        (" a ", "a"),
        (None, ""),
        (float("nan"), ""),
        (True, "true"),
    ],
)
def test_format_id_gives_equal_texts_for_equal_ids(value, text):
    assert format_id(value) == text


@pytest.mark.parametrize(
    ("names", "wanted", "target", "chosen"),
    [
        (["id", "x"], "auto", None, "id"),
        (["ID", "x"], "auto", None, "ID"),
        (["ID", "id"], "auto", None, "id"),
        (["key", "x"], "auto", None, None),
        (["id", "key"], "key", None, "key"),
        (["id", "x"], "none", None, None),
        (["id", "x"], "auto", "id", None),
    ],
)
def test_choose_id_column_prefers_the_requested_column(names, wanted, target, chosen):
    assert choose_id_column("t.csv", names, wanted, target) == chosen


def test_choose_id_column_prefers_the_likely_column():
    assert choose_id_column("t.csv", ["id", "doc"], "auto", likely="doc") == "doc"
    assert choose_id_column("t.csv", ["id", "doc"], "id", likely="doc") == "id"
    assert choose_id_column("t.csv", ["id"], "auto", likely="doc") == "id"


def test_choose_id_column_refuses_invalid_columns():
    with pytest.raises(
        InputError, match=r"no column 'dok' that could be the id; did you mean 'doc'.*--id none"
    ):
        choose_id_column("t.csv", ["doc", "x"], "dok")
    with pytest.raises(InputError, match="the column 'y' holds the labels"):
        choose_id_column("t.csv", ["y", "x"], "y", "y")


def test_read_ids_names_the_first_empty_and_repeated_ids():
    places = [f"line {i + 2}" for i in range(6)]
    with pytest.raises(
        InputError, match=r"2 rows have no id in the column 'k' \(line 3, line 5\).*--id none"
    ):
        read_ids("t.csv", "k", ["a", "", "b", None, "c", "d"], places)
    with pytest.raises(
        InputError,
        match=r"2 rows repeat an id.*'a' \(line 2 and line 4\), '1' \(line 5 and line 7\)",
    ):
        read_ids("t.csv", "k", ["a", "b", "a", 1, "c", 1.0], places)


def test_load_refuses_duplicate_ids_and_takes_row_numbers_instead(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,size\n" + "".join(f"{i // 2},{i}\n" for i in range(8)))
    with pytest.raises(
        InputError, match=r"4 rows repeat an id in the column 'id': '0' \(line 2 and line 3\)"
    ):
        load(path)
    data, _ = load(path, id="none")
    assert data.ids == tuple(map(str, range(8)))
    assert data.shape == (1,)  # `id` is not learnt from


def test_load_keeps_the_ids_of_the_rows_that_a_limit_keeps(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,size,label\n" + "".join(f"r{i},{i},{'ab'[i % 2]}\n" for i in range(20)))
    data, answers = load(path, limit=6)
    assert all(
        data.records.columns["size"][p] == name.removeprefix("r") for p, name in enumerate(data.ids)
    )
    assert [data.records.row_numbers[p] for p in range(len(data))] == [
        int(name[1:]) for name in data.ids
    ]
    assert "label" not in data.records.columns
    assert answers.column == ("label", ["ab"[int(name[1:]) % 2] for name in data.ids])


def test_load_refuses_an_id_column_of_a_folder(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.txt").write_text("some text")
    with pytest.raises(
        InputError, match=r"id is 'doc'.*leave --id out: its ids are the file names"
    ):
        load(tmp_path / "set", id="doc")


def test_ids_of_arrays_name_items_in_label_files(tmp_path):
    data, _ = from_arrays(np.eye(3), classes=["no", "yes"], ids=[30, 20, 10])
    assert data.ids == ("30", "20", "10")
    (tmp_path / "labels.csv").write_text("id,label\n20,yes\n")
    positions, numbers, _ = read_labels(tmp_path / "labels.csv", data)
    assert (positions.tolist(), numbers.tolist()) == ([1], [1])
    with pytest.raises(InputError, match="3 inputs and 2 ids"):
        from_arrays(np.eye(3), ids=["a", "b"])
    np.savez(tmp_path / "set.npz", x=np.eye(4), id=np.array(["p", "q", "r", "s"]))
    assert load(tmp_path / "set.npz")[0].ids == ("p", "q", "r", "s")
    assert load(tmp_path / "set.npz", id="none")[0].ids == ("0", "1", "2", "3")


def test_label_files_use_the_id_column(tmp_path):
    """Rows have ids that are also row numbers of others.

    A file of the user's own has more columns.
    """
    path = tmp_path / "t.csv"
    path.write_text("id,text,size\n" + "".join(f"{5 - i},text {i},{i}\n" for i in range(6)))
    data, _ = load(path)
    labels = tmp_path / "labels.csv"
    labels.write_text("id,text,label\n5,text 0,a\n2,text 3,b\n")
    positions, numbers, names = read_labels(labels, data)
    assert {p: names[c] for p, c in zip(positions.tolist(), numbers.tolist(), strict=True)} == {
        0: "a",
        3: "b",
    }
    numbered = tmp_path / "studio.csv"  # Label Studio's own, whose id is the number of the task
    numbered.write_text("annotation_id,id,item_id,label,lead_time\n1,4,5,a,0.1\n")
    assert read_labels(numbered, data)[0].tolist() == [0]


def test_rename_clashing_columns_keeps_all_columns():
    names = ["label", "Label", "label_original", "x"]
    new = rename_clashing_columns(names, ["id", "label"])
    assert new == {
        "label": "label_original_2",
        "Label": "Label_original_3",
        "label_original": "label_original",
        "x": "x",
    }
    assert len({name.casefold() for name in new.values()}) == len(names)


def test_join_records_fills_missing_columns():
    joined = join_records(
        [Records({"a": [1, 2]}), None, Records({"b": np.array([[1.0, 2.0]])})], [2, 1, 1]
    )
    assert {name: to_python_list(column) for name, column in joined.columns.items()} == {
        "a": [1, 2, None, None],
        "b": [None, None, None, [1.0, 2.0]],
    }
