import csv
import errno
import io
import json
import os
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labelahead.data import Data, read_labels
from labelahead.data.text import as_file_name, escape_formulas, unescape_formulas
from labelahead.errors import InputError, StorageError
from labelahead.server.exchange import EXPORT_FORMATS, export_labels, read_import
from labelahead.server.exchange import write_labels as export_items
from labelahead.server.export_content import ExportItems, Predicted
from labelahead.server.journal import Journal
from labelahead.server.label_state import Event, build_label_state
from tests.support.web_sessions import CHANGE, page

# every one of them would break some form, were it written as it is
CLASSES = (
    "cat",
    "../../up",
    "..",
    "/etc",
    "=1+1",
    "@x",
    "-1",
    "-x",
    "'=q",
    'a,"b"\nc',
    "<b>",
    "🦊é",
    "CON",
    ".hid",
    "a\\b",
    "100%",
    "w" * 200,
    "ü" * 200,
    "x\u2028\x7f\x85y",
    "_under",
    "x\ry",
)
ITEMS = (
    "cats/3.jpg",
    "dogs/3.jpg",
    "=cmd|'x'!A0.jpg",
    "+4",
    "-5",
    "@me.jpg",
    'q"uo,te.jpg',
    "new\nline",
    " space ",
    "🦊.jpg",
    "'quoted",
    "''=two",
    "a/../b.jpg",
    "x;y",
    "\ttab",
    "p%2Fq.jpg",
    "...",
    "z.jpg",
)
SUFFIX = {"csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet", "label-studio": ".json"}


def label_state(answers, classes=CLASSES):
    """Of answers (who, kind, position, label), in order."""
    events = [Event(i + 1, "t", "", "class", label=i, text=n) for i, n in enumerate(classes)]
    for who, kind, position, label in answers:
        at = f"2026-01-01T00:00:{len(events):02d}.000+00:00"
        events.append(Event(len(events) + 1, at, who, kind, position, label))
    return build_label_state(events)


def some():
    """All classes and nearly all items; two persons on some, conflicts among them."""
    answers = [("anna", "label", i % (len(ITEMS) - 1), i) for i in range(len(CLASSES))]
    answers += [("=ben", "label", 0, 3), ("=ben", "label", 1, 0), ("cy", "skip", 1, None)]
    return label_state([*answers, ("cy", "unsure", 17, None), ("anna", "skip", 2, None)])


def opener(position):
    from io import BytesIO

    return BytesIO(f"content {position}".encode())


def write_labels(now, ids, guesses, form, out, *, opener=None):
    """Of items that have nothing but an id, and perhaps a file."""
    return export_items(
        now, ExportItems(ids, open_file=opener), form, out, predicted=Predicted(guesses or {})
    )


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize("form", EXPORT_FORMATS)
def test_what_is_exported_comes_back(tmp_path, form, rest):
    now = some()
    guesses = dict.fromkeys(range(len(ITEMS)), (1, 0.75)) if rest else None
    out = tmp_path / f"out{SUFFIX.get(form, '')}"
    written = write_labels(now, ITEMS, guesses, form, out, opener=opener)
    assert written == (len(ITEMS) if rest else len(now.labels))
    assert [p.name for p in tmp_path.iterdir()] == [out.name]  # nothing partial, nothing outside
    back = read_import(out, ITEMS, CLASSES)
    assert (back.unknown, back.unclear, back.new_classes) == ((), (), ())
    counted = {p: name for p, name, _ in back.labels}  # the last of an item is the newest
    assert counted == {p: CLASSES[c] for p, c in now.labels.items()}
    everyone = {
        (p, CLASSES[a.label], a.who)
        for p, answers in now.answers.items()
        for a in answers
        if a.label is not None
    }
    newest = {p: [a for a in now.answers[p] if a.label is not None][-1].who for p in now.labels}
    if form in ("jsonl", "label-studio"):
        assert set(back.labels) == everyone
    elif form == "folders":
        assert {who for _, _, who in back.labels} == {"import"}
    else:
        assert {p: who for p, _, who in back.labels} == newest
    guessed = len(ITEMS) - len(now.labels) if rest else 0
    assert back.predictions == (0 if form == "folders" else guessed)


def through(door, path, items, classes):
    """What `query --labels` and `label --test` read, or what the page takes in.

    Position -> class name.
    """
    if door == "import":
        back = read_import(path, items, classes)
        assert (back.unknown, back.unclear) == ((), ())
        return {position: name for position, name, _ in back.labels}
    none = torch.empty(0, dtype=torch.int64)
    data = Data(
        "x", classes, none, items, "vector", (), None, (1,), lambda: torch.zeros(len(items), 1)
    )
    positions, numbers, names = read_labels(path, data)
    return {p: names[c] for p, c in zip(positions.tolist(), numbers.tolist(), strict=True)}


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize("form", EXPORT_FORMATS)
@pytest.mark.parametrize("door", ["import", "labels"])
def test_both_doors_read_every_form_and_no_prediction(tmp_path, door, form, rest, caplog):
    answers = [("anna", "label", i, i) for i in range(len(ITEMS) - 4)]
    now = label_state(
        [*answers, ("=ben", "label", 2, 2), ("cy", "skip", 1, None), ("cy", "unsure", 16, None)]
    )
    guesses = dict.fromkeys(range(len(ITEMS)), (1, 0.75)) if rest else None
    out = tmp_path / f"out{SUFFIX.get(form, '')}"
    write_labels(now, ITEMS, guesses, form, out, opener=opener)
    for classes in (
        (CLASSES, ()) if form != "folders" else (CLASSES,)
    ):  # long names there end in a hash
        caplog.clear()
        assert through(door, out, ITEMS, classes) == {i: CLASSES[i] for i in range(len(ITEMS) - 4)}
        said = "4 predictions" in caplog.text
        assert said == (door == "labels" and rest and form != "folders")


@pytest.mark.parametrize("form", EXPORT_FORMATS)
def test_new_classes_come_in_by_their_own_names(tmp_path, form):
    classes = [c for c in CLASSES if "~" not in as_file_name(c)]
    now = label_state([("anna", "label", i % 17, i) for i in range(len(classes))], classes)
    out = tmp_path / f"out{SUFFIX.get(form, '')}"
    write_labels(now, ITEMS, None, form, out, opener=opener)
    back = read_import(out, ITEMS, ())
    assert {p: name for p, name, _ in back.labels} == {p: classes[c] for p, c in now.labels.items()}
    assert set(back.new_classes) == {classes[c] for c in now.labels.values()}


@pytest.mark.parametrize("form", ["jsonl", "label-studio"])
def test_one_journal_to_another(tmp_path, form):
    with Journal(tmp_path / "a", items=ITEMS, fingerprint="f", classes=CLASSES) as journal:
        for who, position, label in (("anna", 0, 1), ("=ben", 0, 4), ("anna", 1, 2), ("cy", 8, 3)):
            journal.add_event("label", who, position, label)
        journal.add_event("label", "anna", 0, 5)  # now hers is the newest
        before = journal.label_state
    out = tmp_path / f"out{SUFFIX[form]}"
    write_labels(before, ITEMS, None, form, out)
    with Journal(tmp_path / "b", items=ITEMS, fingerprint="g", classes=CLASSES[:3]) as journal:
        imported = read_import(out, ITEMS, journal.label_state.classes)
        assert len(journal.add_labels(imported.labels)) == 4 + len(imported.new_classes)
        assert journal.add_labels(imported.labels) == []
        after = journal.label_state
    for now, labels in ((before, before.labels), (after, after.labels)):
        assert {p: now.classes[c] for p, c in labels.items()} == {0: "@x", 1: "..", 8: "/etc"}
        assert [a.who for a in now.answers[0]] == ["=ben", "anna"]
    assert (
        (after.conflicts, after.agreement) == (before.conflicts, before.agreement) == ((0,), (1, 0))
    )


@pytest.mark.parametrize("form", EXPORT_FORMATS)
def test_nothing_is_overwritten_and_nothing_partial_left(tmp_path, form):
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        write_labels(some(), ITEMS, None, form, out, opener=opener)
    assert out.read_text() == "mine"
    with pytest.raises(InputError, match="does not exist"):
        write_labels(some(), ITEMS, None, form, tmp_path / "none" / "out", opener=opener)
    assert os.listdir(tmp_path) == ["out"]
    out.unlink()
    (tmp_path / "away").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="exists already"):
        write_labels(some(), ITEMS, None, form, tmp_path / "away", opener=opener)
    assert os.listdir(tmp_path) == ["away"]


def test_a_failure_half_way_leaves_nothing(tmp_path):
    def fails(position):
        if position == 5:
            raise OSError("the disk is gone")
        return opener(position)

    with pytest.raises(StorageError, match="the disk is gone"):
        write_labels(some(), ITEMS, None, "folders", tmp_path / "out", opener=fails)
    assert os.listdir(tmp_path) == []


def test_a_file_system_that_refuses_also_the_cleaning_up(tmp_path, monkeypatch):
    """As one that is mounted read-only does."""

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StorageError, match=r"out cannot be written to \(Read-only file system\)"):
        write_labels(some(), ITEMS, None, "csv", tmp_path / "out")


def test_csv_is_what_a_spreadsheet_may_open(tmp_path):
    out = tmp_path / "out.csv"
    now = some()
    write_labels(now, ITEMS, {17: (4, 0.5)}, "csv", out)
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for cell in row.values():
            assert not re.match("[=+@\t\r\n]|-(?![0-9.]+$)", cell) or re.fullmatch(r"\+\d+", cell)
    assert "'=1+1" in {row["label"] for row in rows}
    assert "-1" in {row["label"] for row in rows}  # a number is no formula
    last = rows[-1]
    assert last == {
        "id": "z.jpg",
        "label": "",
        "annotator": "",
        "labelled_at": "",
        "source": "prediction",
        "prediction": "'=1+1",
        "probability": "0.5",
    }


@given(st.text())
@example("'=a")
@example("-1e5")
@example("''@")
@example("x;=1;'=1;''=1")
@example('x;"=1\t -1\n@')
def test_guarding_a_cell_can_be_taken_back(text):
    cell = escape_formulas(text)
    assert unescape_formulas(cell) == text
    assert cell[:1] not in tuple("=+-@\t\r\n") or re.fullmatch(r"[+-]\d.*", cell, re.DOTALL)


@given(st.text("=+-@;\t\n\r'\" x1"))
@example("x;=cmd|'/C calc'!A0")
@example('x;"=1+1"')
@example("x; =1+1")
def test_no_cell_holds_a_formula_where_semicolons_or_tabs_separate(text):
    """Spreadsheets of many countries split lines there.

    A quote that does not begin a field means nothing to them.
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(["a.jpg", escape_formulas(text), "b"])
    for field in re.split("[;\t\r\n]", line.getvalue().partition(",")[2].rpartition(",")[0])[1:]:
        assert not re.match('[\\s"]*[=+@-]', field)


@settings(max_examples=300)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=260), st.text(max_size=3))
@example("..", ".")
@example("con.txt", "CON")
@example("a/b", "a%2Fb")
@example("a.", "a")
def test_file_names_are_safe_and_different(text, other):
    name = as_file_name(text)
    assert name not in ("", ".", "..")
    assert not set(name) & set('/\\:*?"<>|\0\n')
    assert len(name.encode()) <= 255
    assert name[0] != "."
    assert name[-1] not in ". "
    assert (as_file_name(other) == name) == (other == text)
    if "~" not in name and name != "%":
        assert unquote(name) == text


def test_folders_hold_copies_below_the_target_alone(tmp_path):
    source = tmp_path / "photos"
    (source / "cats").mkdir(parents=True)
    (source / "cats" / "1.jpg").write_bytes(b"one")
    (source / "2.jpg").write_bytes(b"two")
    (tmp_path / "secret").write_bytes(b"no")

    def opened(position):
        return (source / items[position]).open("rb")

    classes = ("../../up", "..", "/abs", "plain")
    items = ("cats/1.jpg", "2.jpg", "../secret", "gone.jpg")
    (tmp_path / "deep").mkdir()
    out = tmp_path / "deep" / "out"
    for position, label in ((0, 0), (1, 1), (0, 2), (1, 3), (2, 0), (2, 3)):
        now = label_state([("anna", "label", position, label)], classes)
        assert write_labels(now, items, None, "folders", out, opener=opened) == 1
        (copy,) = (p for p in out.rglob("*") if p.is_file())
        assert copy.read_bytes() == (source / items[position]).read_bytes()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "photos", "secret"]
        assert os.listdir(tmp_path / "deep") == ["out"]
        back = read_import(out, items, classes)
        assert back.labels == ((position, classes[label], "import"),)
        assert (out / as_file_name(classes[label])).is_dir()
        os.rename(out, tmp_path / "old")
        for path in sorted((tmp_path / "old").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "old").rmdir()
    now = label_state([("anna", "label", 3, 0)], classes)
    with pytest.raises(StorageError, match="No such file"):
        write_labels(now, items, None, "folders", out, opener=opened)
    with pytest.raises(InputError, match="not files"):
        write_labels(now, items, None, "folders", out)
    assert os.listdir(tmp_path / "deep") == []


def test_folders_sorted_by_hand(tmp_path):
    for name in ("wolf/3.jpg", "wolf/cats/4.jpg", "cat/nobody.jpg", "cat/.DS_Store", ".git/x"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "predictions.csv").touch()
    items = ("dogs/3.jpg", "cats/4.jpg", "mice/4.jpg")
    back = read_import(tmp_path, items, ("cat",))
    assert back.labels == ((1, "wolf", "import"), (0, "wolf", "import")) or back.labels == (
        (0, "wolf", "import"),
        (1, "wolf", "import"),
    )
    assert (back.new_classes, back.unknown) == (("wolf",), ("nobody.jpg",))


FRONT = """configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: predicted
    path: data/predicted-*"""


def test_hf_folder(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "out"
    now = some()
    write_labels(now, ITEMS, {17: (2, 0.25)}, "hf", out)
    names = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    assert names == [
        "README.md",
        "data/predicted-00000-of-00001.parquet",
        "data/train-00000-of-00001.parquet",
    ]
    table = parquet.read_table(out / names[2])
    assert table.column("label").to_pylist() == [now.labels[p] for p in sorted(now.labels)]
    assert str(table.schema.field("label").type) == "int64"
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["label"] == {"names": list(CLASSES), "_type": "ClassLabel"}
    assert features["prediction"] == features["label"]
    assert str(table.schema.field("probability").type) == "double"
    guess = parquet.read_table(out / names[1]).to_pylist()
    assert [(r["id"], r["label"], r["prediction"], r["probability"]) for r in guess] == [
        ("z.jpg", None, 2, 0.25)
    ]

    text = (out / "README.md").read_bytes().decode()
    lines = text.split("\n")
    assert lines[0] == "---"
    head = lines[1 : lines.index("---", 1)]
    assert "\n".join(head) == FRONT
    with pytest.raises(InputError, match="no class yet"):
        write_labels(label_state([], ()), ITEMS, None, "hf", tmp_path / "none")


def test_label_studio_export_is_a_list_of_tasks(tmp_path):
    out = tmp_path / "out.json"
    now = label_state([("anna", "label", 0, 0), ("ben", "label", 0, 1), ("cy", "skip", 0, None)])
    write_labels(now, ITEMS, {1: (0, 0.5)}, "label-studio", out)
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


def choice(*names, kind="choices"):
    return {"from_name": "c", "to_name": "image", "type": kind, "value": {kind: list(names)}}


def test_label_studios_several_shapes(tmp_path):
    path = tmp_path / "tasks.json"
    items = [f"photos/{i}.jpg" for i in range(9)]
    tasks = [
        {
            "id": 1,
            "data": {"image": "/data/local-files/?d=my/photos/0.jpg"},
            "annotations": [
                {"result": [choice("cat")], "completed_by": 7},
                {"result": [choice("Dog")], "completed_by": {"id": 3, "email": "b@x"}},
                {"result": [choice("dog")], "completed_by": 9, "was_cancelled": True},
            ],
        },
        {
            "id": 2,
            "data": {"image": "/data/upload/1/0a1b2c3d-1.jpg"},
            "completions": [{"result": [choice("cat")]}],
        },
        {
            "id": 3,
            "data": {"image": "https://host/bucket/photos/2%2Ejpg?sig=1"},
            "annotations": [{"result": [choice("cat"), choice("box", kind="rectanglelabels")]}],
        },
        {
            "id": 4,
            "data": {"image": "photos/3.jpg"},
            "annotations": [{"result": [choice("cat", "dog")]}],
        },
        {
            "id": 5,
            "data": {"image": "photos/4.jpg"},
            "annotations": [{"result": [choice("box", kind="rectanglelabels")]}],
        },
        {"id": 6, "data": {"image": "photos/5.jpg"}, "annotations": [{"result": []}]},
        {
            "id": 7,
            "data": {"image": "photos/6.jpg"},
            "annotations": [],
            "predictions": [{"result": [choice("cat")]}],
        },
        {"id": 8, "data": {"image": "photos/99.jpg"}, "annotations": [{"result": [choice("cat")]}]},
        {"id": 9, "image": "photos/7.jpg", "choice": "wolf", "annotator": 7},
        {"id": 10, "image": "photos/8.jpg", "animal": {"choices": ["wolf"]}},
        {
            "id": 11,
            "result": [choice("cat")],
            "completed_by": {"username": "z"},
            "task": {"id": 1, "data": {"anything": "photos/8.jpg"}},
        },
    ]
    path.write_text("\ufeff" + json.dumps(tasks), encoding="utf-8")
    back = read_import(path, items, ("cat", "dog"))
    assert back.labels == (
        (0, "cat", "7"),
        (0, "dog", "b@x"),
        (1, "cat", "import"),
        (2, "cat", "import"),
        (7, "wolf", "7"),
        (8, "wolf", "import"),
        (8, "cat", "z"),
    )
    assert back.new_classes == ("wolf",)
    assert back.unknown == ("photos/99.jpg",)
    assert back.unclear == ("photos/3.jpg", "photos/4.jpg")
    assert (back.blank, back.predictions) == (2, 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.csv",
            "\ufeffItem,Label,Who\r\n3.jpg,Cat,anna\r\ndogs/4.jpg,wolf,\r\nnone.jpg,cat,x\r\n5,,\r\n",
        ),
        (
            "a.csv",
            "filename;class;annotator\n3;cat;anna\n./dogs/4.jpg;wolf;\nnone.jpg;cat;x\n5;;\n",
        ),
        (
            "a.tsv",
            "path\ttarget\tby\ncats\\3.jpg\tCAT\tanna\ndogs/4.jpg\twolf\t\nnone.jpg\tcat\tx\n5\t\t\n",
        ),
        (
            "a.jsonl",
            '{"item":"3.jpg","label":"cat","who":"anna"}\n\n'
            '{"image":"dogs/4.jpg","choice":"wolf"}\n'
            '{"file":"none.jpg","label":"cat"}\n{"item":"5","label":null}\n',
        ),
        (
            "a.json",
            '[{"item":"3.jpg","label":["cat"],"who":"anna"},'
            '{"item":"/x/dogs/4.jpg","label":"wolf"},'
            '{"item":"none.jpg","label":"cat"},{"item":"5","label":""}]',
        ),
        ("a.csv", "index,label,who\n0,cat,anna\n1,wolf,\n77,cat,x\n2,,\n"),
    ],
)
def test_files_as_people_have_them(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    back = read_import(tmp_path / name, ("cats/3.jpg", "dogs/4.jpg", "5"), ("cat",))
    assert back.labels == ((0, "cat", "anna"), (1, "wolf", "import"))
    assert back.unknown == ("77",) if text.startswith("index") else ("none.jpg",)
    assert (back.new_classes, back.unclear, back.blank) == (("wolf",), (), 1)


def read(tmp_path, text, items, classes=("cat", "dog"), name="a.csv"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read_import(tmp_path / name, items, classes)


def test_nothing_is_guessed(tmp_path):
    items = ("a/1.jpg", "b/1.jpg", "2.jpg", "3.jpg")
    back = read(tmp_path, "item,label\n1.jpg,cat\nc/2.jpg,cat\n3.jpg,cat\n3.jpg,dog\n", items)
    assert back.labels == ()
    assert back.unclear == ("1.jpg", "3.jpg")  # of two items; of two classes
    assert back.unknown == ("c/2.jpg",)  # that there is a 2.jpg elsewhere proves nothing
    back = read(tmp_path, "item,label,who\n3.jpg,cat,a\n3.jpg,cat,a\n3.jpg,dog,b\n", items)
    assert back.labels == ((3, "cat", "a"), (3, "dog", "b"))
    # two addresses that end alike are two files
    back = read(tmp_path, "item,label\n/x/2.jpg,cat\n/y/2.jpg,cat\n/x/2.jpg,cat\n", items)
    assert (back.labels, back.unclear) == ((), ("/x/2.jpg", "/y/2.jpg"))
    odd = ("http://[x/2.jpg", "9" * 5000)
    back = read(tmp_path, f"item,label\n{odd[0]},cat\n", items[:2])
    assert back.unknown == odd[:1]
    assert read(tmp_path, f"index,label\n{odd[1]},cat\n", items).unknown == odd[1:]
    # the number that another program gives a task is no name
    back = read(tmp_path, "id,image,label\n0,other.jpg,cat\n", ("0", "1"))
    assert (back.labels, back.unknown) == ((), ("other.jpg",))
    back = read(tmp_path, "id,label\n1,cat\n", ("0", "1"))
    assert back.labels == ((1, "cat", "import"),)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "", "empty"),
        ("a.csv", "x,y\n1,2\n", "expected a column"),
        ("a.csv", "item,label,label\n1,2,3\n", "twice"),
        ("a.csv", "item,label\n1,2,3\n", "line 2: 3 fields"),
        ("a.csv", 'item,label\n"1,2\n', "expected CSV"),
        ("a.csv", "item,label\n3.jpg,1\n", "did you mean 'dog'"),
        ("a.csv", "item,label\n3.jpg," + "x" * 201 + "\n", "line 2: the label has 201"),
        ("a.jsonl", '{"item":"a"}\n{oops\n', "line 2 is no valid JSON"),
        ("a.jsonl", '{"label":"cat"}\n', "expected a column"),
        ("a.jsonl", '{"item":{"x":1},"label":"cat"}\n', "expected a name"),
        ("a.json", "[1]", "expected an object"),
        ("a.json", "[" * 100000, "no valid JSON"),
        ("a.parquet", "PAR1", "cannot be read as Parquet"),
        ("a.txt", "x", "expected"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, name, text, said):
    with pytest.raises(InputError, match=said):
        read(tmp_path, text, ("3.jpg",), name=name)


def test_parquet_of_others(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    table = arrow.table(
        {
            "Image": [{"bytes": b"x", "path": "y"}] * 3,
            "file_name": ["1.jpg", "2.jpg", "3.jpg"],
            "label": arrow.array(["cat", None, "dog"]).dictionary_encode(),
        }
    )
    parquet.write_table(table, path)
    back = read_import(path, ("1.jpg", "2.jpg", "3.jpg"), ())
    assert back.labels == ((0, "cat", "import"), (2, "dog", "import"))
    assert back.blank == 1
    digits = arrow.table({"item": ["1.jpg", "2.jpg"], "label": [7.0, None]})
    parquet.write_table(digits, path)
    back = read_import(path, ("1.jpg", "2.jpg"), tuple("0123456789"))
    assert back.labels == ((0, "7", "import"),)


def test_unknown_form(tmp_path):
    with pytest.raises(InputError, match="form is 'xml'"):
        write_labels(some(), ITEMS, None, "xml", tmp_path / "out")
    with pytest.raises(InputError, match="no folder"):
        read_import(tmp_path / "x.csv", ITEMS, (), form="hf")


def test_texts_are_sorted_into_folders_too(tmp_path):
    said = {
        "a.txt": "the first text, in some words",
        "sub/b.txt": "the second one: größer",
        "c.txt": "and a third one",
    }
    for name, text in said.items():
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_text(text, encoding="utf-8")
    with page(tmp_path / "set", tmp_path / "out", classes=["x", "y"]) as (client, session):
        for position in (0, 2):
            body = {"position": position, "kind": "label", "label": position // 2}
            assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 200
        ids = session.service.items.ids
        assert export_labels(session.service, "folders", tmp_path / "sorted") == 2
    written = {
        str(p.relative_to(tmp_path / "sorted")): p.read_text(encoding="utf-8")
        for p in (tmp_path / "sorted").rglob("*.txt")
    }
    assert written == {f"x/{ids[0]}": said[ids[0]], f"y/{ids[2]}": said[ids[2]]}
