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


def write_csv(tmp_path, text, name="t.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
    return path


def write_table(tmp_path, columns, name="t.csv"):
    rows = [
        ",".join(columns),
        *(",".join(map(str, r)) for r in zip(*columns.values(), strict=True)),
    ]
    return write_csv(tmp_path, "\n".join(rows) + "\n", name)


def has_note(data, text):
    return any(text in note for note in data.notes)


def make_pool_mask(data):
    mask = torch.ones(len(data), dtype=torch.bool)
    mask[data.test] = False
    return mask


RNG = np.random.default_rng(0)


# --- the target -------------------------------------------------------------------------------


def test_target_is_found_by_name_or_default(tmp_path):
    text = "a,kind,y,Class\n" + "".join(
        f"{i},{'uv'[i % 2]},{i % 3},{'st'[i % 2]}\n" for i in range(12)
    )
    path = write_csv(tmp_path, text)
    data, _ = load(path)
    assert data.classes == ("s", "t")
    assert has_note(data, "labels from the column 'Class' (y stays an input)")
    assert load(path, target="kind")[0].classes == ("u", "v")
    assert load(path, target="y")[0].classes == ("0", "1", "2")
    with pytest.raises(InputError, match=r"no column 'kinds' .*did you mean 'kind'"):
        load(path, target="kinds")


def test_columns_left_out_are_neither_inputs_nor_displayed(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,topic,b\n" + "\n".join(f"{i},{'xy'[i % 2]},{i * i % 7}" for i in range(20)))
    plain, _ = load(path)
    assert has_note(plain, "--target names another of a, topic, b")
    assert has_note(plain, "a, b, topic (--set data.without=NAME leaves one out)") or has_note(
        plain, "a, topic, b (--set"
    )
    data, _ = load(path, without=["topic"])
    assert data.shape == (2,)
    assert list(data.rows.columns) == ["a", "b"]
    assert has_note(data, "left out: topic")
    with pytest.raises(
        InputError, match="no column 'topik' that could be left out; did you mean 'topic'"
    ):
        load(path, without=["topik"])
    with pytest.raises(InputError, match="digits has no columns"):
        load("digits", without=["a"])


def test_rows_without_a_label_are_unlabelled(tmp_path):
    labels = ["1.0", "", "10.0", "2.0", " "] * 4
    data, answers = load(write_table(tmp_path, {"v": RNG.normal(size=20), "target": labels}))
    assert data.classes == ("1", "2", "10")
    assert answers.has_label.tolist() == [bool(v.strip()) for v in labels]
    assert answers.has_label[data.test].all()
    assert has_note(data, "8 rows have no label")
    with pytest.raises(InputError, match="item 1"):
        answers(1)
    empty, none = load(write_table(tmp_path, {"v": RNG.normal(size=9), "target": [""] * 9}))
    assert none is None
    assert has_note(empty, "is empty: no labels")


def test_minus_one_is_a_class_of_a_table(tmp_path):
    data, answers = load(write_table(tmp_path, {"v": RNG.normal(size=8), "y": [-1, 1] * 4}))
    assert data.classes == ("-1", "1")
    assert answers.has_label.all()


def test_regression_target_is_refused(tmp_path):
    with pytest.raises(InputError, match="30 different numbers in 30 rows"):
        load(write_table(tmp_path, {"v": RNG.normal(size=30), "y": RNG.normal(size=30)}))
    one, _ = load(write_table(tmp_path, {"v": RNG.normal(size=30), "y": ["a"] * 30}))
    assert has_note(one, "only one class")


def test_load_table_respects_the_limit(tmp_path):
    path = write_table(tmp_path, {"v": range(100), "y": [i % 4 for i in range(100)]})
    data, answers = load(path, limit=8)
    at = make_pool_mask(data).nonzero().flatten()
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
    data, answers = load(write_csv(tmp_path, text, name))
    assert data.classes == ("a", "b")
    assert answers.take(torch.arange(3)).tolist() == [0, 1, 0]
    assert data.shape == (1,)


def test_read_csv_converts_decimal_commas(tmp_path):
    text = "v;w;label\n1,5;a,b;x\n-2,5;c;y\n;a,b;x\n4;c;y\n"
    data, _ = load(write_csv(tmp_path, text), test_fraction=0)
    filled = np.array([1.5, -2.5, 1.5, 4])
    assert np.allclose(data.inputs[:, 0], (filled - filled.mean()) / filled.std())
    assert data.shape == (3,)
    assert has_note(data, "decimal commas in v")


def test_read_csv_accepts_utf16(tmp_path):
    data, _ = load(write_csv(tmp_path, "v\tlabel\n1\tä\n2\tb\n", "t.tsv", "utf-16"))
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
        load(write_csv(tmp_path, content))


def test_load_table_refuses_an_image_size(tmp_path):
    with pytest.raises(InputError, match="size is 8"):
        load(write_csv(tmp_path, "a,b\n1,2\n3,4\n"), size=8)


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
    assert has_note(data, "empty: nothing")
    assert has_note(data, "list: vectors of 1 numbers")
    assert has_note(data, "whole: 1 missing")
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
