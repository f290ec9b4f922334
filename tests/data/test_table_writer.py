"""Writing columns as CSV, JSON and Parquet."""

import csv
import datetime as dt
import io
import json

import numpy as np
import pyarrow as arrow

from labelahead.data.records import Records
from labelahead.data.table_writer import build_arrow_table, iter_json_rows, merge_columns, write_csv
from labelahead.data.text import unescape_formulas


def test_merge_columns_keeps_the_type_of_the_users_id():
    records = Records({"text": ["x", "y"], "id": arrow.chunked_array([[7, 8]])}, "id")
    columns = merge_columns(["7", "8"], records, {"label": ["a", None]})
    assert list(columns) == ["id", "text", "label"]
    assert columns["id"].to_pylist() == [7, 8]
    elsewhere = merge_columns(["one.csv/7", "two.csv/8"], records, {"label": ["a", None]})
    assert list(elsewhere) == ["id", "text", "id_original", "label"]
    assert elsewhere["id"] == ["one.csv/7", "two.csv/8"]


def test_write_csv_accepts_every_kind_of_value():
    columns = {
        "=name": ["=1+1", 'a,"b"\nc', None],
        "n": [1, -2.5, True],
        "when": [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), dt.date(2026, 1, 2), float("nan")],
        "list": np.array([[1.5, 2.0], [0.0, -1.0], [3.0, 4.0]]),
        "half": ["\ud800", b"\xff", {"a": [1]}],
    }
    file = io.StringIO(newline="")
    write_csv(file, columns)
    header, *rows = csv.reader(io.StringIO(file.getvalue(), newline=""))
    assert [unescape_formulas(name) for name in header] == list(columns)
    assert header[0] == "'=name"
    assert [unescape_formulas(row[0]) for row in rows] == ["=1+1", 'a,"b"\nc', ""]
    assert [row[1] for row in rows] == ["1", "-2.5", "true"]
    assert [row[2] for row in rows] == ["2026-01-02T00:00:00+00:00", "2026-01-02", ""]
    assert [json.loads(row[3]) for row in rows] == columns["list"].tolist()
    assert [row[4] for row in rows] == ["\\ud800", "\\xff", '{"a": [1]}']


def test_iter_json_rows_yields_json_values():
    (row,) = iter_json_rows(
        {"a": [float("inf")], "b": [np.float32(0.5)], "c": [arrow.scalar(3).as_py()], "d": [(1, 2)]}
    )
    assert json.loads(json.dumps(row, allow_nan=False)) == {
        "a": "inf",
        "b": 0.5,
        "c": 3,
        "d": [1, 2],
    }


def test_nanosecond_times_are_written_as_text():
    column = arrow.chunked_array([arrow.array([1], arrow.timestamp("ns"))])
    assert build_arrow_table({"at": column}).column("at").type == arrow.timestamp("ns")
    file = io.StringIO(newline="")
    write_csv(file, {"at": column})
    assert file.getvalue().splitlines()[1].startswith("1970-01-01")


def test_build_arrow_table_turns_mixed_types_into_text():
    table = build_arrow_table({"a": [1, "x", None], "b": ["\ud800", "y", None]})
    assert table.column("a").to_pylist() == ["1", "x", None]
    assert table.column("b").to_pylist() == ["\\ud800", "y", None]
    words = arrow.chunked_array([arrow.array(["p", "q", "p"]).dictionary_encode()])
    assert build_arrow_table({"a": words}).column("a").type == arrow.string()
