"""The report of a labelling session, also while it is open."""

import json
import re
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.errors import InputError
from labelahead.server.report import write_report
from tests.support.task_sessions import make_rows, send, task_page, true_answer
from tests.support.web_sessions import page, photos

GUESSER = {
    "name": "class names",
    "right": 3,
    "count": 5,
    "trust": 0.2,
    "worth": 40,
    "relation": "about",
    "mistakes": [[0, 1, 2]],
}
HOSTILE = "<script>alert(1)</script>"


class TableParser(HTMLParser):
    """Collect the text of every table cell, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.in_cell = True

    def handle_endtag(self, tag):
        self.in_cell = self.in_cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self.in_cell:
            self.rows[-1][-1] += data.strip()


def test_write_report_of_an_open_session_shows_its_journal_and_rounds(tmp_path):
    out = tmp_path / "labels"
    with page(photos(tmp_path / "set", 8), out, classes=["dark", HOSTILE]) as (_, session):
        for position in range(5):
            session.service.record_answer("anna", position, "label", position % 2)
        session.service.record_answer("ben", 1, "label", 0)
        session.service.record_answer("ben", 2, "label", 0)
        session.service.record_answer("ben", 6, "skip")
        rounds = [
            {
                "labels": 4,
                "accuracy": None,
                "error_rate": 0.25,
                "error_low": 0.1,
                "error_high": 0.5,
            },
            {"labels": 5, "accuracy": 0.875, "guessers": [GUESSER]},
        ]
        lines = [*map(json.dumps, rounds), '{"labels": 6, "accu']
        (out / "rounds.jsonl").write_text("\n".join(lines))
        item, written = session.service.items.ids[1], write_report(out)
    assert written.headline == "5 of 8 items labelled by 2 people"
    tables = TableParser(written.page.read_text())
    assert "script" not in tables.tags  # text of users is escaped
    assert re.search(r"First answer \d{4}-\d\d-\d\d \d\d:\d\d UTC,", written.page.read_text())
    assert (
        'points="480.0,100.0 480.0,20.0"' in written.page.read_text()
    )  # 50 to 90 % at 4 of 5 labels
    rows = [tuple(row[:3]) for row in tables.rows]
    assert "class names: right for 3 of 5 labelled items" in written.page.read_text()
    assert "where they are wrong: dark for &lt;script&gt;" in written.page.read_text()
    for row in [
        ("dark", "4", ""),
        (HOSTILE, "1", ""),
        ("anna", "5", "0"),
        ("ben", "2", "1"),
        (item, f"anna: {HOSTILE}, ben: dark", "dark"),
        ("anna, ben", "2", "1"),
        ("4", "75.0 %", "50.0 to 90.0 % (estimated)"),
        ("5", "87.5 %", "measured on the test set"),
    ]:
        assert row in rows


def test_report_shows_how_reliable_each_annotator_is(tmp_path):
    out = tmp_path / "labels"
    with page(photos(tmp_path / "set", 8), out, classes=["dark", HOSTILE]) as (_, session):
        session.service.record_answer("anna", 0, "label", 0)
        session.service.record_answer("ben", 0, "label", 1)
        source = {"who": "ben", "labels": 10, "accuracy": 0.61, "low": 0.4, "high": 0.8}
        source["confusions"] = [[0, 1, 0.25]]
        once = {**source, "who": "anna", "labels": 1}  # one label is no typical confusion
        row = {"labels": 4, "accuracy": 0.9, "sources": [source, once]}
        (out / "rounds.jsonl").write_text(json.dumps(row) + "\n")
        report = TableParser(write_report(out).page.read_text())
    rows = [tuple(cells) for cells in report.rows]
    assert ("ben", "1", "0", "61 % (40 % to 80 %)", f"{HOSTILE} for dark (25 %)") in rows
    assert ("anna", "1", "0", "61 % (40 % to 80 %)", "too few labels") in rows
    assert ("anna, ben", "1", "0", "0.00") in rows
    assert "script" not in report.tags


def test_report_command_reports_a_session(tmp_path):
    out = tmp_path / "labels"
    with page(photos(tmp_path / "set", 4), out, classes=["dark", "light"]) as (_, session):
        session.service.record_answer("anna", 0, "label", 0)
    result = CliRunner().invoke(app, ["report", str(out), "--out", str(tmp_path / "there")])
    assert result.exit_code == 0, result.output
    assert "1 of 4 items labelled by 1 person" in result.output
    assert "Not available yet" in (tmp_path / "there" / "report.html").read_text()
    assert CliRunner().invoke(app, ["report", str(out), "--accuracy", "0.9"]).exit_code == 2
    (out / "labels.db").write_bytes(b"no database" * 100)
    broken = CliRunner().invoke(app, ["report", str(out)])
    assert broken.exit_code == 1
    with pytest.raises(InputError, match=r"labels\.db is missing"):
        write_report(tmp_path)


@pytest.mark.parametrize("task", ["multilabel", "number", "rating"])
def test_report_of_a_task_counts_its_classes_and_names_its_error(tmp_path, task):
    rows = make_rows()
    answers = [true_answer(task, row) for row in rows[:12]]
    with task_page(tmp_path, task) as (client, _, _):
        for position, value in enumerate(answers):
            send(client, position, value)
    folder = tmp_path / "out"
    (folder / "rounds.jsonl").write_text(
        '{"labels": 10, "error_rate": 0.125, "error_low": 0.1, "error_high": 0.2, "fall": 0.01}\n'
    )
    text = write_report(folder).page.read_text()
    errors = {
        "multilabel": "Hamming loss",
        "number": "root mean square error",
        "rating": "mean absolute error",
    }
    assert f"The estimated {errors[task]} is 0.125 (0.1 to 0.2) with 10 labels." in text
    assert ("<h2>Classes</h2>" in text) == (task != "number")
    if task == "multilabel":
        cats = sum("cat" in value for value in answers)
        assert f'<td>cat</td><td class="n">{cats}</td>' in text
