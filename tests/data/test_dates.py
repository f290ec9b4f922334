"""Dates in tables: every file format and notation gives the same number."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import labelahead as la
from labelahead.data import load
from labelahead.data.dates import parse_date_column, to_epoch_seconds
from labelahead.errors import InputError

DAY = 86400.0
START = dt.datetime(2024, 1, 25)


def write_csv(path, dates, **columns):
    columns = {"when": dates, **columns}
    rows = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-02", DAY),
        ("1970/1/2", DAY),
        ("2.1.1970", DAY),
        ("1970-01-02T03:04:05", DAY + 3 * 3600 + 4 * 60 + 5),
        ("1970-01-02 03:04", DAY + 3 * 3600 + 4 * 60),
        ("1970-01-01 00:00:00.25Z", 0.25),
        ("1970-01-01T02:00:00+02:00", 0.0),
        ("1970-01-01 00:00:00 -0130", 5400.0),
        ("1970-01-01 12:15 AM", 900.0),
        ("1970-01-01 12:15 pm", 12 * 3600 + 900.0),
        ("1969-12-31", -DAY),
    ],
)
def test_to_epoch_seconds_parses_texts(text, expected):
    assert to_epoch_seconds(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "2024",
        "20240131",
        "2024-02-30",
        "2024-13-01",
        "3/4/2024",
        "12:30",
        "soon",
        "1.2.3",
        "2024-01-31x",
        "",
    ],
)
def test_to_epoch_seconds_returns_none_for_invalid_or_ambiguous_dates(text):
    assert to_epoch_seconds(text) is None


def test_parse_date_column_infers_the_order_of_day_and_month():
    for texts, day_first in ((["3/4/2024", "25/4/2024"], True), (["4/3/2024", "4/25/2024"], False)):
        column = parse_date_column([*texts, None])
        assert column.day_first is day_first
        assert column.seconds[:2].tolist() == [
            to_epoch_seconds("2024-04-03"),
            to_epoch_seconds("2024-04-25"),
        ]
        assert np.isnan(column.seconds[2])
    assert parse_date_column(["3/4/2024", "5/6/2024"]) is None  # either
    assert parse_date_column(["25/4/2024", "4/25/2024"]) is None  # neither


def test_csv_dates_become_one_ordered_feature(tmp_path):
    days = [(START + dt.timedelta(days=i)).date() for i in range(60)]
    data, _ = load(write_csv(tmp_path / "t.csv", days, label=[i % 2 for i in range(60)]))
    assert data.shape == (1,)
    column = data.inputs[:, 0]
    assert torch.allclose(column.diff(), column.diff()[0], rtol=1e-4)
    assert column.diff()[0] > 0
    assert any(
        "0 numeric, 1 date and 0 categorical columns became 1 numbers a row: when" in n
        for n in data.notes
    )


@pytest.mark.parametrize(
    "form", ["%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M"]
)
def test_date_formats_give_the_same_inputs(tmp_path, form):
    moments = [START + dt.timedelta(hours=13 * i) for i in range(40)]
    plain, _ = load(write_csv(tmp_path / "plain.csv", [m.isoformat() for m in moments]))
    other, _ = load(write_csv(tmp_path / "other.csv", [m.strftime(form) for m in moments]))
    assert torch.equal(plain.inputs, other.inputs)


def test_parquet_dates_and_timestamps_give_the_inputs_of_csv(tmp_path):
    days = [(START + dt.timedelta(days=i * i)).date() for i in range(20)]
    expected, _ = load(write_csv(tmp_path / "t.csv", days))
    midnights = [dt.datetime.combine(day, dt.time()) for day in days]
    for i, column in enumerate(
        [
            pa.array(days, pa.date32()),
            pa.array(midnights, pa.timestamp("ns")),
            pa.array(midnights, pa.timestamp("ms", "UTC")),
            pa.array([str(day) for day in days]),
        ]
    ):
        pq.write_table(pa.table({"when": column}), tmp_path / f"{i}.parquet")
        assert torch.equal(load(tmp_path / f"{i}.parquet")[0].inputs, expected.inputs)


def test_missing_dates_are_filled_with_the_median_and_noted(tmp_path):
    days = ["2024-01-01", "", "2024-01-03", "n/a", "2024-01-05"]
    data, _ = load(write_csv(tmp_path / "t.csv", days, v=[1, 2, 3, 4, 5]))
    assert data.shape == (2,)
    assert "when: 2 missing, filled with the median 2024-01-03" in data.notes
    assert data.inputs[1, 0] == data.inputs[3, 0] == data.inputs[2, 0]


def test_ambiguous_dates_become_categories_with_a_note(tmp_path):
    data, _ = load(write_csv(tmp_path / "t.csv", ["3/4/2024", "5/6/2024", "3/4/2024", "5/6/2024"]))
    assert any("when: 3/4/2024 may be written day or month first" in note for note in data.notes)
    assert data.shape == (2,)


def test_text_column_beside_dates_stays_text(tmp_path):
    titles = [f"the {word} of number {i}" for i, word in enumerate(["song", "tale"] * 10)]
    days = [(START + dt.timedelta(days=i)).date() for i in range(20)]
    data, _ = load(write_csv(tmp_path / "t.csv", days, title=titles))
    assert data.rows.text == "title"
    assert data.texts.other_features.shape == (20, 1)


def test_new_items_are_encoded_like_the_pool(tmp_path):
    moments = [START + dt.timedelta(days=i) for i in range(40)]
    kinds = ["early" if i < 20 else "late" for i in range(40)]
    source = write_csv(tmp_path / "t.csv", [m.strftime("%d/%m/%Y") for m in moments], label=kinds)
    budget = {"initial": 10, "labels": 30, "retrain_every": 10}
    tables = {
        "data": {"name": str(source)},
        "model": {"name": "exact"},
        "budget": budget,
        "threads": 1,
    }
    la.run(tables, out=tmp_path / "run", forecast=False)
    model = la.load_model(la.load_model(tmp_path / "run").save(tmp_path / "model", onnx=False))
    new = [dt.date(2024, 2, 3), dt.date(2024, 3, 1)]
    pq.write_table(pa.table({"when": pa.array(new)}), tmp_path / "new.parquet")
    by_parquet = model.predict(tmp_path / "new.parquet")
    assert by_parquet.labels == ["early", "late"]
    for dates in (
        ["03/02/2024", "01/03/2024"],
        ["2024-02-03", "2024-03-01 00:00"],
    ):  # the pool has the day first
        said = model.predict(write_csv(tmp_path / "new.csv", dates))
        assert torch.equal(said.probabilities, by_parquet.probabilities)
    by_name = model.predict({"when": np.array(new, dtype="datetime64[ns]")})
    assert torch.equal(by_name.probabilities, by_parquet.probabilities)
    with pytest.raises(
        InputError, match="column 'when', line 2, is 'soon'; expected a date such as 2024-01-31"
    ):
        model.predict(write_csv(tmp_path / "bad.csv", ["soon"]))


def test_parquet_booleans_with_missing_values_are_categories(tmp_path):
    pq.write_table(
        pa.table({"member": pa.array([True, None, False, True])}), tmp_path / "t.parquet"
    )
    assert load(tmp_path / "t.parquet")[0].shape == (3,)
