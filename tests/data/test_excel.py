"""Excel workbooks as tables and as label files."""

import datetime as dt
import sys

import openpyxl
import pytest
import torch
from typer.testing import CliRunner

import labelahead as la
from labelahead.cli.shell import app
from labelahead.data import from_arrays, load, read_labels
from labelahead.errors import InputError, MissingExtra
from tests.support.web_sessions import page

HEADER = ["size", "count", "member", "bought", "seen", "city", "note", "label"]
CITIES = ["Bern", "Graz", "Ulm"]


def rows_of(n=30):
    """Numbers, whole numbers, truths, dates, date-times, categories, an empty column and a label."""
    start = dt.datetime(2024, 1, 1, 6, 30)
    for i in range(n):
        kind = "high" if i >= n // 2 else "low"
        bought = (start + dt.timedelta(days=3 * i)).date()
        yield [
            i / 4 if i % 7 else None,
            i * i,
            i % 3 == 0,
            bought,
            start + dt.timedelta(hours=5 * i),
            CITIES[i % 3],
            None,
            None if i % 5 == 0 else kind,
        ]


def write_workbook(path, sheets):
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def write_csv(path, rows):
    def cell(value):
        return (
            "" if value is None else value.isoformat() if isinstance(value, dt.date) else str(value)
        )

    path.write_text("\n".join(",".join(map(cell, row)) for row in rows) + "\n")
    return path


def test_workbook_equals_its_csv(tmp_path):
    rows = [HEADER, *rows_of()]
    by_excel, known = load(write_workbook(tmp_path / "t.xlsx", {"Sheet1": rows}))
    by_csv, also_known = load(write_csv(tmp_path / "t.csv", rows))
    assert torch.equal(by_excel.inputs, by_csv.inputs)
    assert by_excel.classes == by_csv.classes == ("high", "low")
    assert torch.equal(known.has_label, also_known.has_label)
    assert by_excel.notes == by_csv.notes
    assert by_excel.name == "t"


def test_whole_numbers_become_classes_without_a_fraction(tmp_path):
    rows = [["v", "label"], *([i, i % 2] for i in range(10))]
    assert load(write_workbook(tmp_path / "t.xlsx", {"a": rows}))[0].classes == ("0", "1")


def test_first_visible_sheet_is_the_default(tmp_path):
    sheets = {
        "Old": [["v"], [1], [2]],
        "Now": [["w"], [3], [4], [5]],
        "Two words": [["x", "z"], [1, 2], [3, 4]],
    }
    path = write_workbook(tmp_path / "book.xlsx", sheets)
    book = openpyxl.load_workbook(path)
    book["Old"].sheet_state = "hidden"
    book.active = 1
    book.save(path)
    data, _ = load(path)
    assert len(data) == 3
    assert "the sheet 'Now' is read, of Now, Two words; book.xlsx#NAME reads another" in data.notes
    other, _ = load(f"{path}#Two words")
    assert other.shape == (2,)
    assert other.name == "book-Two words"
    assert not any("sheet" in note for note in other.notes)
    assert len(load(f"{path}#Old")[0]) == 2
    with pytest.raises(InputError, match=r"no sheet 'New'; .*expected one of: Old, Now, Two words"):
        load(f"{path}#New")


def test_messages_use_excel_row_numbers(tmp_path):
    book = openpyxl.Workbook()
    for place, value in {
        "C3": "v",
        "D3": "label",
        "C4": 1,
        "C6": 2,
        "C7": "=1/0",
        "D9": "x",
    }.items():
        book.active[place] = value
    book.active["Z1"].font = openpyxl.styles.Font(bold=True)  # formatted, and empty
    book.save(tmp_path / "t.xlsx")
    data, answers = load(tmp_path / "t.xlsx", test_fraction=0)
    assert list(data.rows.columns) == ["v"]
    assert len(data) == 3
    assert answers.has_label.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no workbook", "cannot be read as an Excel workbook"),
        (b"", "cannot be read as an Excel workbook"),
    ],
)
def test_broken_workbooks_are_refused(tmp_path, content, message):
    (tmp_path / "t.xlsx").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "t.xlsx")


@pytest.mark.parametrize(
    ("rows", "message"), [([], "holds nothing"), ([["a", "b"]], "holds no rows")]
)
def test_sheets_without_rows_are_refused(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        load(write_workbook(tmp_path / "t.xlsx", {"a": rows}))


def test_missing_excel_reader_names_the_extra(tmp_path, monkeypatch):
    path = write_workbook(tmp_path / "t.xlsx", {"a": [["v"], [1], [2]]})
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(MissingExtra, match=r"labelahead\[excel\]"):
        load(path)


def test_label_file_may_be_a_workbook(tmp_path):
    data, _ = from_arrays([[0.0], [1.0], [2.0], [3.0]], classes=["no", "yes"])
    labels = [["Item", "Label", "who"], [2, "yes", "eva"], [0, "no", None], [1, None, None]]
    path = write_workbook(tmp_path / "labels.xlsx", {"notes": [["read me"]], "labels": labels})
    at, numbers, _ = read_labels(f"{path}#labels", data)
    assert (at.tolist(), numbers.tolist()) == ([2, 0], [1, 0])
    with pytest.raises(InputError, match="row 1: columns read me; expected a column id"):
        read_labels(path, data)


def test_page_shows_the_rows_of_a_sheet(tmp_path, monkeypatch):
    write_workbook(tmp_path / "book.xlsx", {"about": [["v"], [1]], "data": [HEADER, *rows_of()]})
    monkeypatch.chdir(tmp_path)
    with page("book.xlsx#data", None, classes=["high", "low"], start_from_folders=True) as (
        client,
        session,
    ):
        assert session.folder.name == "labels-book-data"
        assert len(session.service.label_state.labels) == 24
        row = {cell["name"]: cell["value"] for cell in client.get("/api/items/1").json()["row"]}
    assert row["bought"] == "2024-01-04"
    assert row["count"] == 1


def test_commands_take_a_sheet_wherever_they_take_a_table(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    labels = [["item", "label"], [0, "low"], [29, "high"], [1, "low"], [28, "high"]]
    rows = [HEADER[:-1], *(row[:-1] for row in rows_of())]
    write_workbook(tmp_path / "book.xlsx", {"about": [["v"], [1]], "data": rows, "labels": labels})
    write_workbook(tmp_path / "known.xlsx", {"about": [["v"], [1]], "data": [HEADER, *rows_of()]})
    options = ["--model", "exact", "--threads", "1"]
    asked = CliRunner().invoke(
        app,
        ["query", "--data", "book.xlsx#data", "--labels", "book.xlsx#labels", "--n", "3", *options],
    )
    assert asked.exit_code == 0, asked.output
    assert asked.stdout.splitlines()[0] == ",".join(
        ["id", *HEADER[:-1], "position", "score", "prediction", "probability"]
    )
    simulated = ["--initial", "4", "--labels", "8", "--retrain-every", "2", "--out", "run"]
    done = CliRunner().invoke(app, ["run", "--data", "known.xlsx#data", *simulated, *options])
    assert done.exit_code == 0, done.output
    assert f'name = "{tmp_path}/known.xlsx#data"' in (tmp_path / "run" / "config.toml").read_text()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    said = CliRunner().invoke(app, ["predict", "../run", "../book.xlsx#data"])
    assert said.exit_code == 0, said.output
    assert len(said.stdout.splitlines()) == 31
    by_path = la.load_model(tmp_path / "run").predict(
        [f"{tmp_path}/book.xlsx#data", f"{tmp_path}/known.xlsx#data"]
    )
    assert by_path.items[0] == f"{tmp_path}/book.xlsx#data/0"
    with pytest.raises(InputError, match=r"known\.xlsx has no column 'size'"):
        la.load_model(tmp_path / "run").predict(tmp_path / "known.xlsx")
    assert "the sheet 'about' is read, of about, data" in caplog.text
