"""Label files in every supported format."""

import csv
import io
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labelahead.data.columns import MISSING_VALUES
from labelahead.errors import InputError
from tests.support.label_files import CAT_DOG, IDS, read_as_lists, write_labels


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


def test_read_labels_accepts_a_json_object(tmp_path):
    at, codes, classes = read_as_lists(write_labels(tmp_path, '{"cat/1.jpg": "cat"}', "l.json"))
    assert len(at) == 1
    assert classes[int(codes[0])] == "cat"


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


def test_read_labels_refuses_an_empty_folder(tmp_path):
    (tmp_path / "labels").mkdir()
    with pytest.raises(InputError, match=r"without a folder for each class"):
        read_as_lists(tmp_path / "labels")
    (tmp_path / "labels" / "cow").mkdir()
    (tmp_path / "labels" / "cow" / "2.jpg").touch()
    assert read_as_lists(tmp_path / "labels") == ([1], [2], ("cat", "dog", "cow"))
