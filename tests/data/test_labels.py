"""Label files in every supported format."""

import csv
import io
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labelahead.data import Data, read_labels
from labelahead.data.columns import MISSING_VALUES
from labelahead.data.labels import read_labels_by_source
from labelahead.errors import InputError

IDS = ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/a, b.jpg", "dog/ü.jpg")


def make_data(ids=IDS, classes=("cat", "dog")):
    none = torch.empty(0, dtype=torch.int64)
    return Data("x", classes, none, ids, "vector", (), None, (1,), lambda: torch.zeros(len(ids), 1))


def write_labels(tmp_path, text, name="l.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read_as_lists(path, data=None):
    positions, codes, classes = read_labels(path, data or make_data())
    assert positions.dtype == codes.dtype == torch.int64
    return positions.tolist(), codes.tolist(), classes


CAT_DOG = ("cat", "dog")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("item,label\ncat/2.jpg,dog\n", ([1], [1], CAT_DOG)),
        ("id,class\n2.jpg,cat\n", ([1], [0], CAT_DOG)),  # a file name that is unique
        ("path,target\n./dog/1.jpg,cat\n", ([2], [0], CAT_DOG)),
        ("file,label\ndog\\1.jpg,cat\n", ([2], [0], CAT_DOG)),
        ("index,label\n4,cat\n", ([4], [0], CAT_DOG)),
        ("item,label\na, b,cat\n".replace("a, b", '"a, b"'), ([3], [0], CAT_DOG)),  # no suffix
        ("label,by,item\ncat,me,cat/1.jpg\n", ([0], [0], CAT_DOG)),
        ('\ufeffItem,LABEL\r\n"dog/a, b.jpg","cat"\r\n', ([3], [0], CAT_DOG)),
        ("item;label\ndog/1.jpg;cat\n", ([2], [0], CAT_DOG)),
        (
            "item,label\n\ndog/ü.jpg, cow \ncat/1.jpg,ant\n",
            ([4, 0], [3, 2], (*CAT_DOG, "ant", "cow")),
        ),
        (
            "item,label\ncat/1.jpg,cat\n./cat/1.jpg,cat\n",
            ([0], [0], CAT_DOG),
        ),  # the same label twice
    ],
)
def test_read_labels_accepts_csv_variants(tmp_path, text, expected):
    assert read_as_lists(write_labels(tmp_path, text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no labels"),
        ("name,label\ncat/1.jpg,cat\n", "line 1: columns name, label; expected a column id"),
        ("item,kind\ncat/1.jpg,cat\n", "expected a column id"),
        ("item,item,label\na,b,cat\n", "twice"),
        ("item,label\ncat/1.jpg,cat\ncat/9.jpg,cat\n", "line 3: no item is called 'cat/9.jpg'"),
        ("item,label\n1.jpg,cat\n", "2 items have the file name '1.jpg'"),
        ("item,label\n99,cat\n", "no item is called '99'"),
        ("item,label\n-1,cat\n", "no item is called '-1'"),
        ("index,label\n5,cat\n", "0 to 4"),
        ("index,label\n-1,cat\n", "0 to 4"),
        ("index,label\ncat/1.jpg,cat\n", "0 to 4"),
        ("item,label\ncat/1.jpg,cat\ncat/1.jpg,dog\n", "line 3: .*'dog', but 'cat' at line 2"),
        ("item,label\n2.jpg,cat\n2,dog\n", "line 3: '2' is labelled 'dog', but 'cat' at line 2"),
        ("item,label\n1,cat\n", "2 items have the file name '1'"),
        (
            "item,label\n3,cat\n",
            "no item is called '3'",
        ),  # not a position: files have numbers as names
        ("item,label\ncat/1.jpg\n", "line 2: 1 fields"),
        ("item,label\ncat/1.jpg,1\n", "did you mean 'dog'"),
        (b"item,label\ncat/1.jpg,caf\xe9\n", "line 2: byte 0xe9"),
        ('item,label\n"cat/1.jpg,cat\n', "line"),
    ],
)
def test_read_labels_refuses_broken_csv(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_as_lists(write_labels(tmp_path, text))


def test_read_labels_accepts_json_and_json_lines(tmp_path):
    rows = [{"item": "cat/1.jpg", "label": "dog"}, {"index": 2, "class": "cow", "by": "me"}]
    expected = ([0, 2], [1, 2], ("cat", "dog", "cow"))
    assert read_as_lists(write_labels(tmp_path, json.dumps(rows), "l.json")) == expected
    lines = "\r\n".join(json.dumps(r) for r in rows) + "\n\n"
    assert read_as_lists(write_labels(tmp_path, lines, "l.jsonl")) == expected


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("{", "l.json", "no valid JSON"),
        ('{"item": 1}', "l.json", "no item is called 'item'"),
        ("3", "l.json", "JSON int; expected a list"),
        ("[3]", "l.json", "entry 1: 3; expected an object"),
        ('[{"item": "cat/1.jpg"}]', "l.json", "entry 1: columns item"),
        (
            '[{"item": "cat/1.jpg", "label": ["cat", "dog"]}]',
            "l.json",
            "label holds several classes, cat, dog",
        ),
        ('[{"item": true, "label": "cat"}]', "l.json", "item is True"),
        ('[{"item": "cat/1.jpg", "label": 0}]', "l.json", "did you mean 'cat'"),
        ('{"item": 0, "label": "cat"}\nnonsense\n', "l.jsonl", "line 2: no valid JSON"),
        ("[" * 100000, "l.json", "no valid JSON"),
        ("x", "l.txt", "no label file"),
    ],
)
def test_read_labels_refuses_broken_json(tmp_path, text, name, message):
    with pytest.raises(InputError, match=message):
        read_as_lists(write_labels(tmp_path, text, name))


def test_read_labels_refuses_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_as_lists(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        read_as_lists(tmp_path / "folder.csv")


def test_number_is_an_id_if_ids_are_numbers(tmp_path):
    data = make_data(ids=("10", "20", "0"), classes=("0", "1"))
    assert read_as_lists(write_labels(tmp_path, "item,label\n20,1\n0,0\n"), data)[:2] == (
        [1, 2],
        [1, 0],
    )
    with pytest.raises(InputError, match="no item is called '1'"):  # position 1 is another item
        read_as_lists(write_labels(tmp_path, "item,label\n1,1\n"), data)
    assert read_as_lists(write_labels(tmp_path, "index,label\n1,1\n"), data)[0] == [1]


def test_number_is_a_file_name_if_files_have_numbers(tmp_path):
    # Sorted as text, 10.png comes before 2.png: position 2 is another image than 2.png.
    data = make_data(ids=("train/1.png", "train/10.png", "train/2.png"))
    assert read_as_lists(write_labels(tmp_path, "id,label\n2,cat\n10,dog\n"), data)[0] == [2, 1]
    with pytest.raises(InputError, match="no item is called '0'"):
        read_as_lists(write_labels(tmp_path, "id,label\n0,cat\n"), data)


def test_number_is_a_position_if_no_name_is_a_number(tmp_path):
    data = make_data(ids=("a.png", "b.png"))
    assert read_as_lists(write_labels(tmp_path, "item,label\n1,cat\n"), data)[0] == [1]


def test_new_classes_are_numbered_in_sorted_order(tmp_path):
    data = make_data(classes=())
    _, codes, classes = read_as_lists(
        write_labels(tmp_path, "index,label\n0,10\n1,9\n2,10\n"), data
    )
    assert classes == ("9", "10")
    assert codes == [1, 0, 1]


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1).filter(
    lambda s: s == s.strip() and not s.isdecimal() and s.casefold() not in MISSING_VALUES
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.dictionaries(st.integers(0, 4), NAMES, min_size=1), st.sampled_from(["csv", "json", "jsonl"])
)
def test_read_labels_round_trips(tmp_path, labels, kind):
    if len({n.casefold() for n in (*labels.values(), *CAT_DOG)}) < len(
        {*labels.values(), *CAT_DOG}
    ):
        return
    out = io.StringIO(newline="")
    rows = [{"item": IDS[i], "label": name} for i, name in labels.items()]
    if kind == "csv":
        writer = csv.DictWriter(out, ["item", "label"])
        writer.writeheader()
        writer.writerows(rows)
    elif kind == "json":
        json.dump(rows, out)
    else:
        out.write("\n".join(json.dumps(row) for row in rows))
    positions, codes, classes = read_as_lists(write_labels(tmp_path, out.getvalue(), f"l.{kind}"))
    assert {p: classes[c] for p, c in zip(positions, codes, strict=True)} == labels
    assert classes[:2] == CAT_DOG


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("item,label\n", "l.csv"),
        ("item,label\ncat/1.jpg,\ndog/1.jpg,  \n", "l.csv"),
        ("[]", "l.json"),
        ("{}", "l.json"),
        ('[{"item": "cat/1.jpg", "label": null}]', "l.json"),
    ],
)
def test_read_labels_without_labels_returns_empty_tensors(tmp_path, text, name):
    at, codes, _ = read_as_lists(write_labels(tmp_path, text, name))
    assert len(at) == len(codes) == 0


def test_read_labels_accepts_a_json_object(tmp_path):
    at, codes, classes = read_as_lists(write_labels(tmp_path, '{"cat/1.jpg": "cat"}', "l.json"))
    assert len(at) == 1
    assert classes[int(codes[0])] == "cat"


def test_read_labels_skips_and_counts_predictions(tmp_path, caplog):
    text = "item,label,source\ncat/1.jpg,dog,label\ncat/2.jpg,dog,prediction\ndog/1.jpg,cat,Prediction\n"
    assert read_as_lists(write_labels(tmp_path, text)) == ([0], [1], CAT_DOG)
    assert "2 predictions of a network are no labels" in caplog.text


def make_task(item, *labels, **more):
    results = [[{"type": "choices", "value": {"choices": [label]}}] for label in labels]
    return {
        "data": {"image": item},
        "annotations": [{"result": r, "completed_by": i} for i, r in enumerate(results)],
    } | more


def test_read_labels_accepts_label_studio_exports(tmp_path):
    guess = [{"result": [{"value": {"choices": ["dog"]}}], "score": 0.9}]
    tasks = [
        make_task("/data/upload/3/0a1b2c3d-2.jpg", "dog", "dog"),
        make_task("https://host/x/dog/1.jpg?sig=1", "cow", predictions=guess),
        make_task("/data/local-files/?d=all/dog/%C3%BC.jpg", predictions=guess),
    ]
    expected = ([1, 2], [1, 2], ("cat", "dog", "cow"))
    assert read_as_lists(write_labels(tmp_path, json.dumps(tasks), "l.json")) == expected
    with pytest.raises(InputError, match=r"entry 1: .*'dog' by 1, but 'cat' by 0 at entry 1"):
        read_as_lists(
            write_labels(tmp_path, json.dumps([make_task("cat/1.jpg", "cat", "dog")]), "l.json")
        )
    two = [{"result": [{"value": {"choices": ["cat", "dog"]}}]}]
    with pytest.raises(
        InputError, match="the label holds several classes, cat, dog; expected one class"
    ):
        read_as_lists(
            write_labels(tmp_path, json.dumps([make_task("cat/1.jpg", annotations=two)]), "l.json")
        )


def test_disagreement_is_an_error_until_resolved(tmp_path):
    answers = [
        {"who": "anna", "kind": "label", "label": "cat"},
        {"who": "ben", "kind": "label", "label": "dog"},
    ]
    row = {"item": "cat/1.jpg", "label": "dog", "source": "label"}
    with pytest.raises(
        InputError, match=r"'cat/1.jpg' is labelled 'dog' by ben, but 'cat' by anna at line 1"
    ):
        read_as_lists(write_labels(tmp_path, json.dumps(row | {"answers": answers}), "l.jsonl"))
    resolved = [*answers, {"who": "anna", "kind": "settle", "label": "dog"}]
    path = write_labels(tmp_path, json.dumps(row | {"answers": resolved}), "l.jsonl")
    assert read_as_lists(path) == ([0], [1], CAT_DOG)
    single_answer = row | {"answers": [answers[1], {"who": "cy", "kind": "skip", "label": None}]}
    assert read_as_lists(write_labels(tmp_path, json.dumps(single_answer), "l.jsonl")) == (
        [0],
        [1],
        CAT_DOG,
    )


def test_read_labels_by_source_keeps_the_label_of_every_annotator(tmp_path):
    text = "id,label,source\n2.jpg,cat,anna\n2.jpg,dog,ben\n2.jpg,dog,ben\ncat/1.jpg,dog,\n"
    found = read_labels_by_source(write_labels(tmp_path, text), make_data())
    assert found == (((1, 0, "anna"), (1, 1, "ben"), (0, 1, "")), {}, CAT_DOG)
    # The words of an export and addresses are no annotators.
    text = "id,label,source\n2.jpg,cat,label\n2.jpg,dog,prediction\ncat/1.jpg,dog,http://h/1\n"
    found = read_labels_by_source(write_labels(tmp_path, text), make_data())
    assert found.labels == ((1, 0, ""), (0, 1, ""))
    text = "id,label,source,annotator\n2.jpg,cat,web,anna\n2.jpg,dog,web,ben\n"
    found = read_labels_by_source(write_labels(tmp_path, text), make_data())
    assert found.labels == ((1, 0, "anna"), (1, 1, "ben"))
    answers = [
        {"annotator": "anna", "kind": "label", "label": "cat"},
        {"annotator": "ben", "kind": "settle", "label": "dog"},
    ]
    row = {"item": "cat/1.jpg", "label": "dog", "source": "label", "answers": answers}
    found = read_labels_by_source(write_labels(tmp_path, json.dumps(row), "l.jsonl"), make_data())
    assert found == ((), {0: 1}, CAT_DOG)
    path = write_labels(tmp_path, "item,label,by\n/x/2.jpg,cat,anna\n/y/2.jpg,dog,ben\n")
    with pytest.raises(InputError, match=r"'/y/2.jpg' and '/x/2.jpg' both end in 'cat/2.jpg'"):
        read_labels_by_source(path, make_data())


def test_item_is_found_by_the_end_of_an_address(tmp_path):
    assert read_as_lists(
        write_labels(tmp_path, "item,label\n/home/me/all/cat/1.jpg,cat\nC:\\x\\2.jpg,dog\n")
    )[:2] == ([0, 1], [0, 1])
    with pytest.raises(InputError, match=r"no item is called 'x/2.jpg'"):
        read_as_lists(write_labels(tmp_path, "item,label\nx/2.jpg,cat\n"))
    with pytest.raises(
        InputError, match=r"line 3: '/y/2.jpg' and '/x/2.jpg' both end in 'cat/2.jpg'"
    ):
        read_as_lists(write_labels(tmp_path, "item,label\n/x/2.jpg,cat\n/y/2.jpg,cat\n"))


def test_numeric_id_beside_a_name_is_ignored(tmp_path):
    assert read_as_lists(write_labels(tmp_path, "id,image,label\n0,dog/1.jpg,cat\n"))[0] == [2]
    with pytest.raises(InputError, match=r"no item is called 'other.jpg'"):
        read_as_lists(write_labels(tmp_path, "id,image,label\n0,other.jpg,cat\n"))
    assert read_as_lists(write_labels(tmp_path, "id,image,label\ncat/2.jpg,http://host/9,cat\n"))[
        0
    ] == [1]


def test_labels_of_excluded_files_are_skipped(tmp_path, caplog):
    from types import SimpleNamespace

    data = make_data(("a/1.jpg", "b/2.jpg"))
    files = SimpleNamespace(file_names=lambda: ["a/1.jpg", "b/1.jpg", "b/2.jpg", "c/3.jpg"])
    object.__setattr__(data, "images", files)
    assert read_as_lists(
        write_labels(tmp_path, "item,label\na/1.jpg,cat\nc/3.jpg,dog\n3,dog\n"), data
    )[0] == [0]
    assert caplog.text.count("was left out of the data") == 2
    with pytest.raises(InputError, match=r"2 items have the file name '1.jpg'"):  # ambiguous
        read_as_lists(write_labels(tmp_path, "item,label\n1.jpg,cat\n"), data)


def test_read_labels_refuses_an_empty_folder(tmp_path):
    (tmp_path / "labels").mkdir()
    with pytest.raises(InputError, match=r"without a folder for each class"):
        read_as_lists(tmp_path / "labels")
    (tmp_path / "labels" / "cow").mkdir()
    (tmp_path / "labels" / "cow" / "2.jpg").touch()
    assert read_as_lists(tmp_path / "labels") == ([1], [2], ("cat", "dog", "cow"))
