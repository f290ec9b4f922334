"""The report of a labelling session: all that the record says, also while somebody labels."""

import json
import re
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.errors import InputError
from labelahead.server.report import write_report
from tests.support.web_sessions import page, photos

HOSTILE = "<script>alert(1)</script>"


class Cells(HTMLParser):
    """The text of every row, cell by cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.within = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.within = True

    def handle_endtag(self, tag):
        self.within = self.within and tag not in ("td", "th")

    def handle_data(self, data):
        if self.within:
            self.rows[-1][-1] += data.strip()


def test_a_session_is_reported_while_it_is_open(tmp_path):
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
            {"labels": 5, "accuracy": 0.875},
        ]
        lines = [*map(json.dumps, rounds), '{"labels": 6, "accu']
        (out / "rounds.jsonl").write_text("\n".join(lines))
        item, written = session.service.items.ids[1], write_report(out)
    assert written.headline == "5 of 8 items labelled by 2 people"
    seen = Cells(written.page.read_text())
    assert "script" not in seen.tags  # what people type is shown, not run
    assert re.search(r"First answer \d{4}-\d\d-\d\d \d\d:\d\d UTC,", written.page.read_text())
    assert (
        'points="480.0,100.0 480.0,20.0"' in written.page.read_text()
    )  # 50 to 90 % at 4 of 5 labels
    rows = [tuple(row[:3]) for row in seen.rows]
    for row in [
        ("dark", "4", ""),
        (HOSTILE, "1", ""),
        ("anna", "5", "0"),
        ("ben", "2", "1"),
        (item, f"anna: {HOSTILE}, ben: dark", "dark"),
        ("4", "75.0 %", "50.0 to 90.0 % (estimated)"),
        ("5", "87.5 %", "measured on the test set"),
    ]:
        assert row in rows


def test_the_command_reports_a_session(tmp_path):
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
