"""Tables and .npz files."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from labelahead.data import load
from labelahead.errors import InputError, MissingExtra


def csv(tmp_path, text, name="t.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
    return path


def table(tmp_path, columns, name="t.csv"):
    rows = [
        ",".join(columns),
        *(",".join(map(str, r)) for r in zip(*columns.values(), strict=True)),
    ]
    return csv(tmp_path, "\n".join(rows) + "\n", name)


def said(data, text):
    return any(text in note for note in data.notes)


def pool_of(data):
    mask = torch.ones(len(data), dtype=torch.bool)
    mask[data.test] = False
    return mask


RNG = np.random.default_rng(0)


# --- columns ----------------------------------------------------------------------------------


def test_load_table_encodes_numbers_categories_booleans_and_labels(tmp_path):
    n = 40
    path = table(
        tmp_path,
        {
            "height": RNG.normal(170, 10, n).round(3),
            "colour": [["red", "green", "blue"][i % 3] for i in range(n)],
            "member": [["true", "False"][i % 2] for i in range(n)],
            "label": [["yes", "no"][i // 20] for i in range(n)],
        },
    )
    data, answers = load(path)
    assert data.kind == "vector"
    assert data.shape == (5,)
    assert data.inputs.shape == (n, 5)
    assert data.images is None
    assert data.classes == ("no", "yes")
    assert answers.take(torch.arange(n)).tolist() == [1] * 20 + [0] * 20
    assert data.ids[39] == "39"
    assert len(data.test) == 8
    pool = data.inputs[pool_of(data)]
    assert torch.allclose(pool[:, 0].mean(), torch.zeros(()), atol=1e-5)
    assert torch.allclose(pool[:, 0].std(correction=0), torch.ones(()), atol=1e-5)
    assert data.inputs[:3, 1:4].tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]  # blue, green, red
    assert data.inputs[0, 4] > data.inputs[1, 4]
    assert said(data, "2 numeric and 1 categorical columns became 5 numbers")
    assert said(data, "labels from the column 'label'")


def test_load_table_fills_missing_values(tmp_path):
    n = 20
    numbers = [str(i) for i in range(n)]
    numbers[3] = ""
    numbers[4] = "NaN"
    words = ["ab"[i % 2] for i in range(n)]
    words[5] = "n/a"
    truths = ["yes" if i % 2 else "no" for i in range(n)]
    truths[6] = "?"
    data, answers = load(table(tmp_path, {"number": numbers, "word": words, "truth": truths}))
    assert answers is None
    assert data.test.tolist() == []
    assert data.shape == (1 + 3 + 3,)
    median = np.median([float(v) for i, v in enumerate(numbers) if i not in (3, 4)])
    filled = np.array([median if i in (3, 4) else i for i in range(n)])
    assert np.allclose(data.inputs[:, 0], (filled - filled.mean()) / filled.std(), atol=1e-5)
    assert data.inputs[5, 1:4].tolist() == [0, 0, 1]
    assert data.inputs[6, 4:7].tolist() == [0, 0, 1]
    assert said(data, "number: 2 missing, filled with the median")
    assert said(data, "word: 1 missing, a category of their own")
    assert said(data, "no labels: no column is named")


def test_load_table_drops_uninformative_columns(tmp_path):
    n = 12
    data, _ = load(
        table(
            tmp_path,
            {
                "": range(n),
                "same": ["x"] * n,
                "one": [1] * n,
                "gone": [""] * n,
                "person": [f"person {i}" for i in range(n)],
                "id": range(100, 100 + n),
                "kept": RNG.normal(size=n),
            },
        )
    )
    assert data.shape == (1,)
    assert said(data, "constant: same, one")
    assert said(data, "empty: gone")
    assert said(data, "different in every row: person")
    assert said(data, "row numbers: column 1, id") or said(data, "row numbers: column 1")
    with pytest.raises(InputError, match=r"no column to learn from .*constant: same"):
        load(table(tmp_path, {"same": ["x"] * n, "label": ["a", "b"] * 6}))


def test_rare_categories_share_other(tmp_path):
    words = [f"w{i:03d}" for i in range(60)] * 2 + [f"w{i:03d}" for i in range(10)]
    data, _ = load(table(tmp_path, {"word": words, "z": range(130)}))
    assert data.shape == (52,)
    assert said(data, "10 of 60 categories share one, `other`")
    assert data.inputs[words.index("w059"), 50] == 1
    assert (data.inputs[:, :51].sum(1) == 1).all()


def test_statistics_ignore_test_rows(tmp_path):
    n = 50
    values = RNG.normal(size=n)
    labels = ["a", "b"] * 25
    path = table(tmp_path, {"v": values, "w": ["p", "q"] * 25, "label": labels})
    data, _ = load(path)
    values[data.test.numpy()] = 1e6
    words = ["p" if i not in set(data.test.tolist()) else "new" for i in range(n)]
    words[int(pool_of(data).nonzero()[0])] = "q"
    again, _ = load(table(tmp_path, {"v": values, "w": words, "label": labels}))
    assert torch.equal(again.test, data.test)
    assert torch.equal(again.inputs[pool_of(data), 0], data.inputs[pool_of(data), 0])
    assert again.inputs[again.test, 1:].sum() == 0
    assert said(again, "seen only in the test part")


def test_numbers_with_some_words_become_categories_with_a_note(tmp_path):
    values = [str(i % 7) for i in range(30)]
    values[12] = "seven"
    data, _ = load(table(tmp_path, {"v": values, "z": RNG.normal(size=30)}))
    assert said(data, "v: 1 of 30 entries are no numbers (line 14: 'seven')")


@pytest.mark.parametrize("bad", ["inf", "-Infinity", "1e999"])
def test_infinite_numbers_are_refused_with_their_line(tmp_path, bad):
    with pytest.raises(InputError, match=r"column 'v', line 3, is infinite"):
        load(csv(tmp_path, f"v,w\n1,2\n{bad},3\n4,5\n"))


def test_enormous_numbers_stay_finite(tmp_path):
    data, _ = load(csv(tmp_path, "v,w\n1e308,1\n-1e308,2\n1e-300,4\n"))
    assert data.inputs.abs().max() < 3


# --- the target -------------------------------------------------------------------------------


def test_target_is_found_by_name_or_default(tmp_path):
    text = "a,kind,y,Class\n" + "".join(
        f"{i},{'uv'[i % 2]},{i % 3},{'st'[i % 2]}\n" for i in range(12)
    )
    path = csv(tmp_path, text)
    data, _ = load(path)
    assert data.classes == ("s", "t")
    assert said(data, "labels from the column 'Class' (y stays an input)")
    assert load(path, target="kind")[0].classes == ("u", "v")
    assert load(path, target="y")[0].classes == ("0", "1", "2")
    with pytest.raises(InputError, match=r"no column 'kinds' .*did you mean 'kind'"):
        load(path, target="kinds")


def test_columns_left_out_are_neither_inputs_nor_displayed(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,topic,b\n" + "\n".join(f"{i},{'xy'[i % 2]},{i * i % 7}" for i in range(20)))
    plain, _ = load(path)
    assert said(plain, "--target names another of a, topic, b")
    assert said(plain, "a, b, topic (--set data.without=NAME leaves one out)") or said(
        plain, "a, topic, b (--set"
    )
    data, _ = load(path, without=["topic"])
    assert data.shape == (2,)
    assert list(data.rows.columns) == ["a", "b"]
    assert said(data, "left out: topic")
    with pytest.raises(
        InputError, match="no column 'topik' that could be left out; did you mean 'topic'"
    ):
        load(path, without=["topik"])
    with pytest.raises(InputError, match="digits has no columns"):
        load("digits", without=["a"])


def test_rows_without_a_label_are_unlabelled(tmp_path):
    labels = ["1.0", "", "10.0", "2.0", " "] * 4
    data, answers = load(table(tmp_path, {"v": RNG.normal(size=20), "target": labels}))
    assert data.classes == ("1", "2", "10")
    assert answers.has_label.tolist() == [bool(v.strip()) for v in labels]
    assert answers.has_label[data.test].all()
    assert said(data, "8 rows have no label")
    with pytest.raises(InputError, match="item 1"):
        answers(1)
    empty, none = load(table(tmp_path, {"v": RNG.normal(size=9), "target": [""] * 9}))
    assert none is None
    assert said(empty, "is empty: no labels")


def test_minus_one_is_a_class_of_a_table(tmp_path):
    data, answers = load(table(tmp_path, {"v": RNG.normal(size=8), "y": [-1, 1] * 4}))
    assert data.classes == ("-1", "1")
    assert answers.has_label.all()


def test_regression_target_is_refused(tmp_path):
    with pytest.raises(InputError, match="30 different numbers in 30 rows"):
        load(table(tmp_path, {"v": RNG.normal(size=30), "y": RNG.normal(size=30)}))
    one, _ = load(table(tmp_path, {"v": RNG.normal(size=30), "y": ["a"] * 30}))
    assert said(one, "only one class")


def test_load_table_respects_the_limit(tmp_path):
    path = table(tmp_path, {"v": range(100), "y": [i % 4 for i in range(100)]})
    data, answers = load(path, limit=8)
    at = pool_of(data).nonzero().flatten()
    assert len(at) == 8
    assert torch.bincount(answers.take(at)).tolist() == [2, 2, 2, 2]
    assert answers.take(at).tolist() == [int(data.ids[i]) % 4 for i in at]


# --- files as people have them ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("v,label\n1,a\n2,b\n3,a\n", "t.csv"),
        ("\ufeffv,label\r\n1,a\r\n2,b\r\n3,a\r\n", "t.csv"),
        ("v;label\n1;a\n2;b\n3;a\n", "t.csv"),
        ("v\tlabel\n1\ta\n2\tb\n3\ta\n", "t.tsv"),
        ('\n\nv,label\n"1","a"\n\n2 , b\n3,"a"', "T.CSV"),
    ],
)
def test_read_csv_accepts_every_dialect(tmp_path, text, name):
    data, answers = load(csv(tmp_path, text, name))
    assert data.classes == ("a", "b")
    assert answers.take(torch.arange(3)).tolist() == [0, 1, 0]
    assert data.shape == (1,)


def test_read_csv_converts_decimal_commas(tmp_path):
    text = "v;w;label\n1,5;a,b;x\n-2,5;c;y\n;a,b;x\n4;c;y\n"
    data, _ = load(csv(tmp_path, text), test_fraction=0)
    filled = np.array([1.5, -2.5, 1.5, 4])
    assert np.allclose(data.inputs[:, 0], (filled - filled.mean()) / filled.std())
    assert data.shape == (3,)
    assert said(data, "decimal commas in v")


def test_outlier_in_the_test_set_does_not_flatten_a_column(tmp_path):
    values, labels = RNG.normal(size=50), ["a", "b"] * 25
    data, _ = load(table(tmp_path, {"v": values, "label": labels}))
    values[data.test[0]] = 1e15
    again, _ = load(table(tmp_path, {"v": values, "label": labels}))
    assert torch.equal(again.inputs[pool_of(data)], data.inputs[pool_of(data)])
    values[data.test[0]] = 1e200
    with pytest.raises(InputError, match="column 'v' reaches 1e"):
        load(table(tmp_path, {"v": values, "label": labels}))


def test_read_csv_accepts_utf16(tmp_path):
    data, _ = load(csv(tmp_path, "v\tlabel\n1\tä\n2\tb\n", "t.tsv", "utf-16"))
    assert data.classes == ("b", "ä")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds nothing"),
        ("\n\n", "holds nothing"),
        ("a,b\n", "holds no rows"),
        ("a,b\n1,2\n1,2,3\n", "line 3: 3 fields; expected 2"),
        ("a,b\n1,2\n1\n", "line 3: 1 fields; expected 2"),
        ("a,a\n1,2\n", "'a' twice"),
        ("1,2\n3,4\n", "begins with the numbers 1, 2"),
        (b"a,b\n1,caf\xe9\n", "line 2: byte 0xe9 is no UTF-8"),
        ('a,b\n1,"open\n', "line"),
    ],
)
def test_read_csv_refuses_broken_tables(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        load(csv(tmp_path, content))


def test_load_table_refuses_an_image_size(tmp_path):
    with pytest.raises(InputError, match="size is 8"):
        load(csv(tmp_path, "a,b\n1,2\n3,4\n"), size=8)


# --- Parquet ----------------------------------------------------------------------------------


def test_load_table_reads_parquet(tmp_path):
    n = 20
    start = dt.datetime(2020, 1, 1)
    columns = {
        "whole": pa.array([None if i == 2 else i for i in range(n)], pa.int64()),
        "real": pa.array([float("nan") if i == 3 else i / 7 for i in range(n)]),
        "exact": pa.array([decimal.Decimal(i) / 4 for i in range(n)], pa.decimal128(10, 2)),
        "truth": pa.array([i % 2 == 0 for i in range(n)]),
        "word": pa.array(["pq"[i % 2] for i in range(n)]).dictionary_encode(),
        "when": pa.array([(start + dt.timedelta(days=i)).timestamp() * 1e9 + i for i in range(n)])
        .cast(pa.int64())
        .cast(pa.timestamp("ns")),
        "day": pa.array([start.date() + dt.timedelta(days=i) for i in range(n)]),
        "list": pa.array([[i] for i in range(n)]),
        "nothing": pa.nulls(n),
        "label": pa.array([None if i == 0 else i % 3 for i in range(n)], pa.int8()),
    }
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path)
    data, answers = load(path)
    assert data.shape == (6 + 2,)
    assert data.classes == ("0", "1", "2")
    assert not answers.has_label[0]
    assert answers(1) == 1
    assert said(data, "empty: nothing")
    assert said(data, "list: vectors of 1 numbers")
    assert said(data, "whole: 1 missing")
    assert torch.isfinite(data.inputs).all()


def test_load_table_refuses_broken_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        load(path)
    pq.write_table(pa.table({"v": pa.array([], pa.int64())}), path)
    with pytest.raises(InputError, match="holds no rows"):
        load(path)
    pq.write_table(pa.table({"v": [1.0, float("inf")], "w": [1, 2]}), path)
    with pytest.raises(InputError, match="column 'v', row 2, is infinite"):
        load(path)


def test_missing_parquet_library_names_the_extra(tmp_path, monkeypatch):
    import sys

    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"v": [1, 2]}), path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match=r"pip install 'labelahead\[tables\]'"):
        load(path)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'labelahead\[app\]'"):
        load("digits")


# --- npz --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "y"),
    [("x", "y"), ("X", "y"), ("inputs", "labels"), ("data", "target"), ("features", "Labels")],
)
def test_load_npz_accepts_common_array_names(tmp_path, x, y):
    values, labels = RNG.normal(5, 3, (30, 4)), np.arange(30) % 3
    np.savez(tmp_path / "a.npz", **{x: values, y: labels})
    data, answers = load(tmp_path / "a.npz")
    assert data.shape == (4,)
    assert len(data.test) == 6
    assert answers.take(torch.arange(30)).tolist() == labels.tolist()
    pool = data.inputs[pool_of(data)]
    assert torch.allclose(pool.mean(0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(pool.std(0, correction=0), torch.ones(4), atol=1e-5)


def test_load_npz_reads_test_set_and_class_names(tmp_path):
    x = RNG.normal(size=(10, 3, 6, 6))
    names = np.array(["u", "v"])
    y = names[np.arange(10) % 2]
    np.savez(
        tmp_path / "a.npz", x_train=x[:7], y_train=y[:7], x_test=x[7:], y_test=y[7:], classes=names
    )
    data, answers = load(tmp_path / "a.npz", limit=4)
    assert data.test.tolist() == [4, 5, 6]
    assert data.ids[4:] == ("7", "8", "9")
    assert data.kind == "image"
    assert answers(4) == 1
    assert load(tmp_path / "a.npz", size=4)[0].inputs.shape == (10, 3, 4, 4)
    assert load(tmp_path / "a.npz", size=4)[0].shape == (3, 4, 4)


def test_load_npz_without_labels_has_no_answers(tmp_path):
    x = RNG.normal(size=(10, 3))
    np.savez(tmp_path / "a.npz", x=x)
    data, answers = load(tmp_path / "a.npz")
    assert answers is None
    assert said(data, "no labels")
    np.savez(tmp_path / "b.npz", x_train=x, y_train=["p", "q"] * 5, x_test=x)
    data, answers = load(tmp_path / "b.npz")
    assert answers.has_label.tolist() == [True] * 10 + [False] * 10
    assert said(data, "10 test items have no label: they join the pool")
    assert data.classes == ("p", "q")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"foo": np.zeros(3)}, "holds foo; expected the arrays x and y"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2)}, r"y has shape \(2,\); expected \(3,\)"),
        ({"x": np.zeros((3, 2)), "X": np.zeros((3, 2))}, "capital and small"),
        ({"x": np.array([1, None])}, "object arrays are refused"),
        ({"x": np.float64(3)}, "single value"),
        ({"x": np.array([[np.nan]])}, "holds NaN"),
        ({"x_train": np.zeros((3, 2)), "x_test": np.zeros((3, 4))}, "equal shapes"),
        ({"x": np.zeros((3, 2)), "y": [0.5, 1, 2]}, "regression"),
    ],
)
def test_load_npz_refuses_mismatched_arrays(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "a.npz")


def test_load_npz_refuses_other_files(tmp_path):
    path = tmp_path / "a.npz"
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.npy").rename(path)
    with pytest.raises(InputError, match="single array"):
        load(path)
    for content in (b"", b"hello", b"PK\x03\x04 and no more"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"cannot be read as \.npz"):
            load(path)


# --- load itself ------------------------------------------------------------------------------


def test_load_refuses_unknown_sources(tmp_path):
    with pytest.raises(InputError, match=r"did you mean 'mnist'.*digits, mnist, fashion-mnist"):
        load("mnits")
    with pytest.raises(InputError, match="no known data set and no existing path"):
        load(tmp_path / "nothing.csv")
    (tmp_path / "a.docx").write_bytes(b"x")
    with pytest.raises(InputError, match=r"not read here; .*\.zip, \.npz, \.csv"):
        load(tmp_path / "a.docx")
    with pytest.raises(InputError, match="no path"):
        load("x" * 5000)
    with pytest.raises(InputError, match="without ~"):
        load("~no-such-user/pictures")
    for nothing in ("", " ", None, 3):
        with pytest.raises(InputError, match="source is"):
            load(nothing)
    with pytest.raises(InputError, match="target is 'y', but digits has no columns"):
        load("digits", target="y")


def test_load_treats_a_path_object_as_a_path(tmp_path, monkeypatch):
    from PIL import Image

    (tmp_path / "digits").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "digits" / "a.png")
    monkeypatch.chdir(tmp_path)
    from pathlib import Path

    assert len(load("digits")[0]) == 1797
    assert len(load("./digits")[0]) == 1
    assert len(load(Path("digits"))[0]) == 1
