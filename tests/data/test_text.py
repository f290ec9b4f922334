"""Text data: folders of .txt files, JSON lines, text columns of tables, and invalid files."""

import json
import zipfile

import numpy as np
import pytest
import torch

from labelahead.data import load
from labelahead.data.folder import MAX_TEXT_BYTES
from labelahead.errors import InputError

SENTENCES = (
    "the goal came late in the second half, and the crowd went home singing",
    "shares fell as the bank raised its rate",
)


def write_files(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def make_corpus(n=12):
    return {f"{('sport', 'money')[i % 2]}/{i:02d}.txt": f"{SENTENCES[i % 2]} {i}" for i in range(n)}


def write_json_lines(tmp_path, rows, name="t.jsonl"):
    path = tmp_path / name
    path.write_text(
        "\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n", encoding="utf-8"
    )
    return path


def has_note(data, text):
    return any(text in note for note in data.notes)


def test_class_folders_of_texts_give_labels(tmp_path):
    files = make_corpus() | {"notes.pdf": "x"}
    data, answers = load(write_files(tmp_path / "c", files), test_fraction=0.25)
    assert data.classes == ("money", "sport")
    assert list(data.ids) == sorted(make_corpus())
    assert [data.classes[answers(i)] for i in range(12)] == ["money"] * 6 + ["sport"] * 6
    assert data.texts.columns["text"] == [make_corpus()[i] for i in data.ids]
    assert data.rows.text == "text"
    assert len(data.test) == 2 or len(data.test) == 3
    assert data.inputs.shape[0] == 12  # their words
    assert not any("picture" in note and "notes.pdf" not in note for note in data.notes)


def test_flat_texts_and_texts_in_a_zip_have_no_labels(tmp_path):
    flat = {name.replace("/", "-"): text for name, text in make_corpus().items()}
    data, answers = load(write_files(tmp_path / "c", flat))
    assert answers is None
    assert len(data) == 12
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        for name, text in make_corpus().items():
            archive.writestr(name, text)
    zipped, answers = load(tmp_path / "c.zip", test_fraction=0)
    assert zipped.classes == ("money", "sport")
    assert zipped.texts.columns["text"] == [make_corpus()[i] for i in zipped.ids]


def test_text_folders_may_define_the_test_set(tmp_path):
    files = {
        f"{part}/{name}": text
        for part in ("train", "test")
        for name, text in make_corpus(6).items()
    }
    data, _ = load(write_files(tmp_path / "c", files))
    assert [data.ids[i].split("/")[0] for i in data.test.tolist()] == ["test"] * 6


def test_unusual_texts_are_kept_and_noted(tmp_path):
    files = make_corpus() | {
        "sport/empty.txt": "",
        "sport/latin.txt": "caf\xe9 au lait, na\xefve".encode("latin-1"),
        "sport/long.txt": "é" * MAX_TEXT_BYTES,
        "sport/sixteen.txt": "Größe und Länge".encode("utf-16"),
        "sport/marked.txt": b"\xef\xbb\xbfmarked",
    }
    data, _ = load(write_files(tmp_path / "c", files), test_fraction=0)
    text = dict(zip(data.ids, data.texts.columns["text"], strict=True))
    assert text["sport/empty.txt"] == ""
    assert text["sport/latin.txt"] == "café au lait, naïve"
    assert text["sport/long.txt"] == "é" * (MAX_TEXT_BYTES // 2)
    assert text["sport/sixteen.txt"] == "Größe und Länge"
    assert text["sport/marked.txt"] == "marked"
    assert has_note(data, "1 text is empty: sport/empty.txt")
    assert has_note(data, "1 text is no UTF-8: sport/latin.txt: read as Latin-1")
    assert has_note(data, "1 text is longer than 1 MB: sport/long.txt")


def test_images_take_precedence_and_texts_refuse_a_size(tmp_path):
    with pytest.raises(InputError, match=r"size is 8, but .* holds no images"):
        load(write_files(tmp_path / "c", make_corpus()), size=8)
    with pytest.raises(
        InputError, match=r"holds no pictures \(a\.pdf\); expected files such as .*\.txt"
    ):
        load(write_files(tmp_path / "d", {"a.pdf": "x"}))


def test_json_lines_are_loaded_as_a_table(tmp_path):
    rows = [
        {"text": f"{SENTENCES[i % 2]} {i}", "stars": i % 5, "label": "sm"[i % 2]} for i in range(20)
    ]
    del rows[3]["stars"]
    data, answers = load(write_json_lines(tmp_path, [*rows[:10], "", *rows[10:]]), test_fraction=0)
    assert (data.classes, len(data)) == (("m", "s"), 20)
    assert list(data.texts.columns) == ["text"]
    assert data.texts.other_features.shape == (20, 1)
    assert has_note(data, "stars: 1 of 20 lines have none")
    assert answers(0) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ['{"text": "a b c"}', '{"text": "a b'],
            r"line 2: no valid JSON .*; expected an object on every line",
        ),
        (['{"text": "a b c"}', "", "[1, 2]"], "line 3: a list; expected one JSON object per line"),
        ([""], "is empty; expected one JSON object per line"),
        (['{"label": "a"}', '{"label": "b"}'], "has no column to learn from"),
    ],
)
def test_broken_json_lines_are_refused(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        load(write_json_lines(tmp_path, rows))


def test_missing_target_column_is_named(tmp_path):
    with pytest.raises(
        InputError, match="no column 'lable' that could be the target; did you mean 'label'"
    ):
        load(write_json_lines(tmp_path, [{"text": SENTENCES[0], "label": "a"}]), target="lable")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_text_of_a_megabyte_is_read(tmp_path, suffix):
    long = "a word and another " * 60_000
    rows = [(long if i == 3 else f"{SENTENCES[i % 2]} {i}", "ab"[i % 2]) for i in range(8)]
    path = write_json_lines(tmp_path, [{"text": t, "label": c} for t, c in rows])
    if suffix == "csv":
        path = tmp_path / "t.csv"
        path.write_text("text,label\n" + "".join(f'"{t}",{c}\n' for t, c in rows))
    data, _ = load(path, test_fraction=0)
    assert len(data.texts.columns["text"][3]) == len(long.strip())


def test_short_texts_may_come_twice(tmp_path):
    titles = [
        f"the {thing} {fault} again"
        for thing in ("lamp", "door", "pump")
        for fault in ("burns", "leaks", "hums")
    ]
    twice = [{"id": i, "title": title} for i, title in enumerate([*titles, titles[0]])]
    data, _ = load(write_json_lines(tmp_path, twice))
    assert list(data.texts.columns) == ["title"]
    assert "ids from the column 'id'" in data.notes
    sized = [row | {"size": row["id"] ** 2} for row in twice]
    assert load(write_json_lines(tmp_path, sized))[0].texts is None  # there are other inputs
    kinds = [{"title": titles[i % 5]} for i in range(50)]
    assert load(write_json_lines(tmp_path, kinds))[0].texts is None  # five categories


def test_short_texts_are_used_if_there_is_nothing_else(tmp_path):
    rows = [{"q": f"is it {i} yet", "label": "ab"[i % 2]} for i in range(8)]
    assert list(load(write_json_lines(tmp_path, rows))[0].texts.columns) == ["q"]
    more = [row | {"n": i * i} for i, row in enumerate(rows)]
    assert load(write_json_lines(tmp_path, more))[0].texts is None


def test_texts_without_common_words_are_an_error_only_when_used(tmp_path):
    rows = [
        {"text": " ".join(f"w{i}x{j}" for j in range(12)), "label": "ab"[i % 2]} for i in range(6)
    ]
    data, _ = load(write_json_lines(tmp_path, rows), test_fraction=0)
    with pytest.raises(
        InputError, match=r"no word occurs in two texts \(text\).*labelahead\[texts\]"
    ):
        _ = data.inputs


def test_columns_of_lists_and_arrays_become_vectors(tmp_path):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(10, 4)).astype(np.float32)
    rows = [{"v": v.tolist(), "n": i, "label": "ab"[i % 2]} for i, v in enumerate(vectors)]
    data, _ = load(write_json_lines(tmp_path, rows), test_fraction=0, limit=6)
    at = [int(i) for i in data.ids]
    assert np.allclose(data.vectors["v"], vectors[at])
    assert "v" not in data.rows.columns
    assert has_note(data, "v: vectors of 4 numbers")
    ragged = [row | {"v": row["v"][: 1 + i % 2]} for i, row in enumerate(rows)]
    data, _ = load(write_json_lines(tmp_path, ragged), test_fraction=0)
    assert not data.vectors
    assert has_note(data, "dropped, holding list values: v")
    np.savez(tmp_path / "a.npz", x_train=vectors[:6], x_test=vectors[6:], y_train=[0, 1] * 3, y_test=[0, 1] * 2,
             e_train=2 * vectors[:6], e_test=2 * vectors[6:])  # fmt: skip
    data, _ = load(tmp_path / "a.npz")
    assert np.allclose(data.vectors["e"], 2 * vectors)


@pytest.mark.parametrize("kind", ["list", "fixed", "large"])
def test_parquet_lists_become_vectors(tmp_path, kind):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    vectors = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    types = {
        "list": arrow.list_(arrow.float32()),
        "fixed": arrow.list_(arrow.float32(), 3),
        "large": arrow.large_list(arrow.float64()),
    }
    table = arrow.table({"v": arrow.array(vectors.tolist(), types[kind]), "label": list("abc") * 3})
    parquet.write_table(table, tmp_path / "t.parquet")
    data, _ = load(tmp_path / "t.parquet", test_fraction=0)
    assert torch.equal(data.vectors["v"], torch.from_numpy(vectors))
    assert data.shape == ()  # there are no other inputs
