"""Parquet files: the bound from page headers holds, and values equal those of Arrow."""

import datetime
import resource

import numpy as np
import pytest

from labelahead.data.labels import read_import
from labelahead.data.parquet import column_to_python, estimate_decoded_size, read_bounded
from labelahead.data.table import read_parquet
from labelahead.errors import InputError

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
ALL = 2**40


def varied(n=3000):
    """A table with all kinds of columns that people have."""
    rng = np.random.default_rng(0)
    words = [None if i % 7 == 0 else f"word {i % 11}" for i in range(n)]
    return arrow.table(
        {
            "text": [f"text {i} " + "x" * (i % 50) for i in range(n)],
            "word": words,
            "category": arrow.array(words).dictionary_encode(),
            "number": rng.normal(size=n),
            "count": arrow.array(range(n), arrow.int8() if n < 128 else arrow.int32()),
            "flag": [i % 3 == 0 for i in range(n)],
            "vector": arrow.array(
                list(rng.normal(size=(n, 4)).astype(np.float32)), arrow.list_(arrow.float32())
            ),
            "choices": [[f"c{i % 5}"] * (i % 3) for i in range(n)],
            "inner": [{"a": i, "b": f"b{i % 4}"} for i in range(n)],
            "when": [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=i) for i in range(n)],
            "raw": arrow.array([bytes([i % 256] * 4) for i in range(n)], arrow.binary(4)),
            "nothing": arrow.nulls(n, arrow.string()),
        }
    )


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"compression": "none"},
        {"compression": "gzip", "use_dictionary": False},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"row_group_size": 500, "data_page_size": 512, "write_statistics": False},
        {"version": "1.0", "write_page_index": True},
    ],
)
def test_read_bounded_equals_arrow_and_bound_holds(tmp_path, how):
    path, table = tmp_path / "table.parquet", varied()
    parquet.write_table(table, path, **how)
    read = read_bounded(path, None, ALL)
    assert {n: column_to_python(read.column(n)) for n in read.column_names} == table.to_pydict()
    plain = parquet.read_table(path, columns=["number", "count", "flag", "vector"])
    with path.open("rb") as stream:
        opened = parquet.ParquetFile(stream)
        leaves = [
            i
            for i in range(len(opened.schema))
            if opened.schema.column(i).path.split(".")[0] in plain.schema.names
        ]
        assert estimate_decoded_size(stream, opened.metadata, leaves) >= plain.nbytes
    some = read_bounded(path, ["word", "inner"], ALL)
    assert some.column_names == ["word", "inner"]


def bomb(path, rows=400_000, size=20_000, column="item"):
    """Some kilobytes that stand for rows * size bytes: one long text, again and again."""
    text = arrow.DictionaryArray.from_arrays(
        arrow.array(np.zeros(rows, np.int32)), arrow.array(["x" * size])
    )
    label = arrow.DictionaryArray.from_arrays(
        arrow.array(np.zeros(rows, np.int32)), arrow.array(["a"])
    )
    parquet.write_table(
        arrow.table({column: text, "label": label}), path, compression="zstd", store_schema=False
    )
    return path


def zeros(path, rows=40_000_000, column="item"):
    """A file whose pages unpack to some hundred megabytes of zeros, and which is small."""
    values = arrow.array(np.zeros(rows, np.int64))
    table = arrow.table({column: values, "label": values})
    parquet.write_table(table, path, compression="zstd", use_dictionary=False, store_schema=False)
    return path


def test_column_to_python_shares_repeated_texts(tmp_path):
    """8 GB of text if every row had its own, in a file of some kilobytes."""
    path = bomb(tmp_path / "bomb.parquet")
    assert path.stat().st_size < 100_000
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    texts = read_parquet(path).columns["item"]
    assert len(texts) == 400_000
    assert len({id(text) for text in texts}) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 500_000  # kilobytes


def test_read_import_refuses_repeated_long_labels(tmp_path):
    """Every row of labels is looked up by itself, which takes its time for each."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"could take 7\.5 GB of memory unpacked"):
        read_import(bomb(tmp_path / "bomb.parquet"), ["other"], ["a"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 500_000


def test_read_bounded_refuses_repeated_texts_in_lists(tmp_path):
    rows = 200_000
    texts = arrow.DictionaryArray.from_arrays(
        arrow.array(np.zeros(rows, np.int32)), arrow.array(["x" * 20_000])
    )
    lists = arrow.ListArray.from_arrays(arrow.array(np.arange(rows + 1, dtype=np.int32)), texts)
    path = tmp_path / "lists.parquet"
    parquet.write_table(
        arrow.table({"item": lists, "label": lists}), path, store_schema=False, compression="zstd"
    )
    with pytest.raises(InputError, match="GB of memory unpacked"):
        read_import(path, ["a"], ["a"])


def test_decompression_bomb_is_refused_before_reading(tmp_path, monkeypatch):
    path = zeros(tmp_path / "zeros.parquet")
    assert path.stat().st_size < 1_000_000
    before = arrow.total_allocated_bytes()
    with pytest.raises(InputError, match=r"could take .* of memory unpacked; expected at most"):
        read_bounded(path, ["item", "label"], 2**28)
    with pytest.raises(InputError, match="expected at most 500,000"):
        read_import(path, ["a"], ["a"])
    monkeypatch.setattr(
        "labelahead.data.table.get_free_memory", lambda: 2**28
    )  # what the system says of itself
    with pytest.raises(InputError, match="could take"):
        read_parquet(path)
    assert (
        arrow.default_memory_pool().max_memory() is None or arrow.total_allocated_bytes() == before
    )


def test_estimate_counts_pages_missing_from_the_footer(tmp_path):
    """The footer says how large a column is unpacked; here it says nothing of the kind."""
    path = zeros(tmp_path / "zeros.parquet", rows=400_000)
    metadata = parquet.read_metadata(path)
    declared = sum(metadata.row_group(0).column(i).total_uncompressed_size for i in range(2))
    with path.open("rb") as stream:
        assert estimate_decoded_size(stream, metadata, [0, 1]) >= 2 * 8 * 400_000
    assert declared >= 2 * 8 * 400_000
    with (
        pytest.raises(InputError, match="no readable header"),
        (tmp_path / "short").open("w+b") as stream,
    ):
        estimate_decoded_size(stream, metadata, [0])  # no page is where the footer says


def test_read_import_is_bounded_by_bytes(tmp_path):
    rows, each = 100_000, 100
    ends = arrow.array(np.arange(rows + 1, dtype=np.int32) * each)
    wide = arrow.ListArray.from_arrays(ends, arrow.array(np.zeros(rows * each)))
    path = tmp_path / "wide.parquet"
    parquet.write_table(
        arrow.table({"item": wide, "label": wide}), path, compression="zstd", store_schema=False
    )
    assert path.stat().st_size < 2_000_000
    with pytest.raises(InputError, match="unpacked"):
        read_import(path, ["a"], ["a"])
