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
from labelahead.server.journal import Journal
from tests.support.exported_labels import (
    CLASSES,
    ITEMS,
    build_state,
    make_label_state,
    write_labels,
)
from tests.support.sounds import write_sounds
from tests.support.web_answers import answer
from tests.support.web_sessions import CHANGE, page

SUFFIX = {"csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet", "label-studio": ".json"}


def open_item(position):
    from io import BytesIO

    return BytesIO(f"content {position}".encode())


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize("form", EXPORT_FORMATS)
def test_import_of_an_export_restores_labels_and_annotators(tmp_path, form, rest):
    state = make_label_state()
    guesses = dict.fromkeys(range(len(ITEMS)), (1, 0.75)) if rest else None
    out = tmp_path / f"out{SUFFIX.get(form, '')}"
    written = write_labels(state, ITEMS, guesses, form, out, opener=open_item)
    assert written == (len(ITEMS) if rest else len(state.labels))
    assert [p.name for p in tmp_path.iterdir()] == [out.name]  # nothing partial, nothing outside
    imported = read_import(out, ITEMS, CLASSES)
    assert (imported.unknown, imported.unclear, imported.new_classes) == ((), (), ())
    current = {p: name for p, name, _ in imported.labels}  # the last label of an item is the newest
    assert current == {p: CLASSES[c] for p, c in state.labels.items()}
    all_answers = {
        (p, CLASSES[a.label], a.who)
        for p, answers in state.answers.items()
        for a in answers
        if a.label is not None
    }
    newest = {p: [a for a in state.answers[p] if a.label is not None][-1].who for p in state.labels}
    if form in ("jsonl", "label-studio"):
        assert set(imported.labels) == all_answers
    elif form == "folders":
        assert {who for _, _, who in imported.labels} == {"import"}
    else:
        assert {p: who for p, _, who in imported.labels} == newest
    predicted_count = len(ITEMS) - len(state.labels) if rest else 0
    assert imported.predictions == (0 if form == "folders" else predicted_count)


def read_back(reader, path, items, classes):
    """Read labels as the page imports them, or as `query --labels` and `label --test` do.

    Returns position -> class name.
    """
    if reader == "import":
        imported = read_import(path, items, classes)
        assert (imported.unknown, imported.unclear) == ((), ())
        return {position: name for position, name, _ in imported.labels}
    no_items = torch.empty(0, dtype=torch.int64)
    data = Data(
        "x", classes, no_items, items, "vector", (), None, (1,), lambda: torch.zeros(len(items), 1)
    )
    positions, numbers, names = read_labels(path, data)
    return {p: names[c] for p, c in zip(positions.tolist(), numbers.tolist(), strict=True)}


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize("form", EXPORT_FORMATS)
@pytest.mark.parametrize("reader", ["import", "labels"])
def test_import_and_label_files_read_every_form_without_predictions(
    tmp_path, reader, form, rest, caplog
):
    answers = [("anna", "label", i, i) for i in range(len(ITEMS) - 4)]
    state = build_state(
        [*answers, ("=ben", "label", 2, 2), ("cy", "skip", 1, None), ("cy", "unsure", 16, None)]
    )
    guesses = dict.fromkeys(range(len(ITEMS)), (1, 0.75)) if rest else None
    out = tmp_path / f"out{SUFFIX.get(form, '')}"
    write_labels(state, ITEMS, guesses, form, out, opener=open_item)
    for classes in (
        (CLASSES, ()) if form != "folders" else (CLASSES,)
    ):  # long names of folders end in a hash
        caplog.clear()
        assert read_back(reader, out, ITEMS, classes) == {
            i: CLASSES[i] for i in range(len(ITEMS) - 4)
        }
        logged = "4 predictions" in caplog.text
        assert logged == (reader == "labels" and rest and form != "folders")


@pytest.mark.parametrize("form", EXPORT_FORMATS)
def test_import_adds_unknown_classes_by_name(tmp_path, form):
    classes = [c for c in CLASSES if "~" not in as_file_name(c)]
    state = build_state([("anna", "label", i % 17, i) for i in range(len(classes))], classes)
    out = tmp_path / f"out{SUFFIX.get(form, '')}"
    write_labels(state, ITEMS, None, form, out, opener=open_item)
    imported = read_import(out, ITEMS, ())
    assert {p: name for p, name, _ in imported.labels} == {
        p: classes[c] for p, c in state.labels.items()
    }
    assert set(imported.new_classes) == {classes[c] for c in state.labels.values()}


@pytest.mark.parametrize("form", ["jsonl", "label-studio"])
def test_labels_exported_from_one_journal_import_into_another(tmp_path, form):
    with Journal(tmp_path / "a", items=ITEMS, fingerprint="f", classes=CLASSES) as journal:
        for who, position, label in (("anna", 0, 1), ("=ben", 0, 4), ("anna", 1, 2), ("cy", 8, 3)):
            journal.add_event("label", who, position, label)
        journal.add_event("label", "anna", 0, 5)  # the newest label of item 0
        before = journal.label_state
    out = tmp_path / f"out{SUFFIX[form]}"
    write_labels(before, ITEMS, None, form, out)
    with Journal(tmp_path / "b", items=ITEMS, fingerprint="g", classes=CLASSES[:3]) as journal:
        imported = read_import(out, ITEMS, journal.label_state.classes)
        assert len(journal.add_labels(imported.labels)) == 4 + len(imported.new_classes)
        assert journal.add_labels(imported.labels) == []
        after = journal.label_state
    for state, labels in ((before, before.labels), (after, after.labels)):
        assert {p: state.classes[c] for p, c in labels.items()} == {0: "@x", 1: "..", 8: "/etc"}
        assert [a.who for a in state.answers[0]] == ["=ben", "anna"]
    assert (
        (after.conflicts, after.agreement) == (before.conflicts, before.agreement) == ((0,), (1, 0))
    )


@pytest.mark.parametrize("form", EXPORT_FORMATS)
def test_write_labels_refuses_existing_targets_and_leaves_no_partial_file(tmp_path, form):
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        write_labels(make_label_state(), ITEMS, None, form, out, opener=open_item)
    assert out.read_text() == "mine"
    with pytest.raises(InputError, match="does not exist"):
        write_labels(
            make_label_state(), ITEMS, None, form, tmp_path / "none" / "out", opener=open_item
        )
    assert os.listdir(tmp_path) == ["out"]
    out.unlink()
    (tmp_path / "away").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="exists already"):
        write_labels(make_label_state(), ITEMS, None, form, tmp_path / "away", opener=open_item)
    assert os.listdir(tmp_path) == ["away"]


def test_failed_export_leaves_no_file(tmp_path):
    def fail_at_position_5(position):
        if position == 5:
            raise OSError("the disk is gone")
        return open_item(position)

    with pytest.raises(StorageError, match="the disk is gone"):
        write_labels(
            make_label_state(), ITEMS, None, "folders", tmp_path / "out", opener=fail_at_position_5
        )
    assert os.listdir(tmp_path) == []


def test_export_to_a_read_only_file_system_raises_storage_error(tmp_path, monkeypatch):
    """Neither opening nor unlinking a file works."""

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StorageError, match=r"out cannot be written to \(Read-only file system\)"):
        write_labels(make_label_state(), ITEMS, None, "csv", tmp_path / "out")


def test_csv_export_has_no_formulas(tmp_path):
    out = tmp_path / "out.csv"
    state = make_label_state()
    write_labels(state, ITEMS, {17: (4, 0.5)}, "csv", out)
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for cell in row.values():
            assert not re.match("[=+@\t\r\n]|-(?![0-9.]+$)", cell) or re.fullmatch(r"\+\d+", cell)
    assert "'=1+1" in {row["label"] for row in rows}
    assert "-1" in {row["label"] for row in rows}  # a number is not a formula
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
def test_unescape_formulas_inverts_escape_formulas(text):
    cell = escape_formulas(text)
    assert unescape_formulas(cell) == text
    assert cell[:1] not in tuple("=+-@\t\r\n") or re.fullmatch(r"[+-]\d.*", cell, re.DOTALL)


@given(st.text("=+-@;\t\n\r'\" x1"))
@example("x;=cmd|'/C calc'!A0")
@example('x;"=1+1"')
@example("x; =1+1")
def test_escaped_cells_hold_no_formula_when_split_at_semicolons_or_tabs(text):
    """Spreadsheets of many locales split lines at semicolons or tabs.

    They ignore a quote that does not begin a field.
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
def test_as_file_name_is_safe_and_injective(text, other):
    name = as_file_name(text)
    assert name not in ("", ".", "..")
    assert not set(name) & set('/\\:*?"<>|\0\n')
    assert len(name.encode()) <= 255
    assert name[0] != "."
    assert name[-1] not in ". "
    assert (as_file_name(other) == name) == (other == text)
    if "~" not in name and name != "%":
        assert unquote(name) == text


def test_folder_export_writes_copies_inside_the_target_only(tmp_path):
    source = tmp_path / "photos"
    (source / "cats").mkdir(parents=True)
    (source / "cats" / "1.jpg").write_bytes(b"one")
    (source / "2.jpg").write_bytes(b"two")
    (tmp_path / "secret").write_bytes(b"no")

    def open_source(position):
        return (source / items[position]).open("rb")

    classes = ("../../up", "..", "/abs", "plain")
    items = ("cats/1.jpg", "2.jpg", "../secret", "gone.jpg")
    (tmp_path / "deep").mkdir()
    out = tmp_path / "deep" / "out"
    for position, label in ((0, 0), (1, 1), (0, 2), (1, 3), (2, 0), (2, 3)):
        state = build_state([("anna", "label", position, label)], classes)
        assert write_labels(state, items, None, "folders", out, opener=open_source) == 1
        (copy,) = (p for p in out.rglob("*") if p.is_file())
        assert copy.read_bytes() == (source / items[position]).read_bytes()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "photos", "secret"]
        assert os.listdir(tmp_path / "deep") == ["out"]
        imported = read_import(out, items, classes)
        assert imported.labels == ((position, classes[label], "import"),)
        assert (out / as_file_name(classes[label])).is_dir()
        os.rename(out, tmp_path / "old")
        for path in sorted((tmp_path / "old").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "old").rmdir()
    state = build_state([("anna", "label", 3, 0)], classes)
    with pytest.raises(StorageError, match="No such file"):
        write_labels(state, items, None, "folders", out, opener=open_source)
    with pytest.raises(InputError, match="not files"):
        write_labels(state, items, None, "folders", out)
    assert os.listdir(tmp_path / "deep") == []


def test_import_reads_folders_sorted_by_hand(tmp_path):
    for name in ("wolf/3.jpg", "wolf/cats/4.jpg", "cat/nobody.jpg", "cat/.DS_Store", ".git/x"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "predictions.csv").touch()
    items = ("dogs/3.jpg", "cats/4.jpg", "mice/4.jpg")
    imported = read_import(tmp_path, items, ("cat",))
    assert imported.labels == ((1, "wolf", "import"), (0, "wolf", "import")) or imported.labels == (
        (0, "wolf", "import"),
        (1, "wolf", "import"),
    )
    assert (imported.new_classes, imported.unknown) == (("wolf",), ("nobody.jpg",))


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
def test_import_reads_common_file_formats(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    imported = read_import(tmp_path / name, ("cats/3.jpg", "dogs/4.jpg", "5"), ("cat",))
    assert imported.labels == ((0, "cat", "anna"), (1, "wolf", "import"))
    assert imported.unknown == (("77",) if text.startswith("index") else ("none.jpg",))
    assert (imported.new_classes, imported.unclear, imported.blank) == (("wolf",), (), 1)


def write_and_import(tmp_path, text, items, classes=("cat", "dog"), name="a.csv"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read_import(tmp_path / name, items, classes)


def test_import_reports_ambiguous_and_unknown_items(tmp_path):
    items = ("a/1.jpg", "b/1.jpg", "2.jpg", "3.jpg")
    imported = write_and_import(
        tmp_path, "item,label\n1.jpg,cat\nc/2.jpg,cat\n3.jpg,cat\n3.jpg,dog\n", items
    )
    assert imported.labels == ()
    assert imported.unclear == ("1.jpg", "3.jpg")  # matches two items; names two classes
    assert imported.unknown == ("c/2.jpg",)  # another folder: not the item 2.jpg
    imported = write_and_import(
        tmp_path, "item,label,who\n3.jpg,cat,a\n3.jpg,cat,a\n3.jpg,dog,b\n", items
    )
    assert imported.labels == ((3, "cat", "a"), (3, "dog", "b"))
    # Two addresses with the same file name are two files.
    imported = write_and_import(
        tmp_path, "item,label\n/x/2.jpg,cat\n/y/2.jpg,cat\n/x/2.jpg,cat\n", items
    )
    assert (imported.labels, imported.unclear) == ((), ("/x/2.jpg", "/y/2.jpg"))
    odd = ("http://[x/2.jpg", "9" * 5000)
    imported = write_and_import(tmp_path, f"item,label\n{odd[0]},cat\n", items[:2])
    assert imported.unknown == odd[:1]
    assert write_and_import(tmp_path, f"index,label\n{odd[1]},cat\n", items).unknown == odd[1:]
    # The task number of another program is not an item name.
    imported = write_and_import(tmp_path, "id,image,label\n0,other.jpg,cat\n", ("0", "1"))
    assert (imported.labels, imported.unknown) == ((), ("other.jpg",))
    imported = write_and_import(tmp_path, "id,label\n1,cat\n", ("0", "1"))
    assert imported.labels == ((1, "cat", "import"),)


@pytest.mark.parametrize(
    ("name", "text", "message"),
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
def test_import_of_an_invalid_file_is_refused(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        write_and_import(tmp_path, text, ("3.jpg",), name=name)


def test_import_reads_parquet_files_of_other_programs(tmp_path):
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
    imported = read_import(path, ("1.jpg", "2.jpg", "3.jpg"), ())
    assert imported.labels == ((0, "cat", "import"), (2, "dog", "import"))
    assert imported.blank == 1
    digits = arrow.table({"item": ["1.jpg", "2.jpg"], "label": [7.0, None]})
    parquet.write_table(digits, path)
    imported = read_import(path, ("1.jpg", "2.jpg"), tuple("0123456789"))
    assert imported.labels == ((0, "7", "import"),)


def test_unknown_form_is_refused(tmp_path):
    with pytest.raises(InputError, match="form is 'xml'"):
        write_labels(make_label_state(), ITEMS, None, "xml", tmp_path / "out")
    with pytest.raises(InputError, match="no folder"):
        read_import(tmp_path / "x.csv", ITEMS, (), form="hf")


def test_folder_export_sorts_text_files(tmp_path):
    contents = {
        "a.txt": "the first text, in some words",
        "sub/b.txt": "the second one: größer",
        "c.txt": "and a third one",
    }
    for name, text in contents.items():
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
    assert written == {f"x/{ids[0]}": contents[ids[0]], f"y/{ids[2]}": contents[ids[2]]}


def test_labelled_sounds_are_exported_in_every_form(tmp_path):
    folder = write_sounds(tmp_path / "sounds", 6)
    with page(folder, tmp_path / "out", classes=["noise", "tone"]) as (client, session):
        for position in range(4):
            answer(client, position, position % 2)
        service = session.service
        export_labels(service, "hf", tmp_path / "hf")
        export_labels(service, "folders", tmp_path / "folders")
        export_labels(service, "jsonl", tmp_path / "labels.jsonl")
        with pytest.raises(InputError, match="sounds with --pictures-at"):
            export_labels(service, "label-studio", tmp_path / "none.json")
        at = "/data/local-files/?d=sounds/"
        export_labels(service, "label-studio", tmp_path / "tasks.json", pictures_at=at)
        export_labels(service, "label-studio-config", tmp_path / "config.xml")
    datasets = pytest.importorskip("datasets")
    read = datasets.load_dataset(str(tmp_path / "hf"), split="train", cache_dir=tmp_path / "cache")
    assert isinstance(read.features["audio"], datasets.Audio)
    rows = read.cast_column("audio", datasets.Audio(decode=False))
    for row in rows:
        assert row["audio"]["bytes"] == (folder / row["id"]).read_bytes()
        assert read.features["label"].int2str(row["label"]) in row["id"]
    copied = {p.relative_to(tmp_path / "folders") for p in (tmp_path / "folders").rglob("*.wav")}
    assert {str(path) for path in copied} == {f"{n.split('-')[1][:-4]}/{n}" for n in rows["id"]}
    lines = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert [line["file_name"] for line in lines] == list(rows["id"])
    task = json.loads((tmp_path / "tasks.json").read_text())[0]
    assert task["data"]["audio"] == at + "s00-noise.wav"
    assert task["annotations"][0]["result"][0]["to_name"] == "audio"
    assert '<Audio name="audio" value="$audio" />' in (tmp_path / "config.xml").read_text()
