"""`label --export` writes what the page would send, without a server."""

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labelahead.cli import app
from tests.support.web_sessions import CHANGE, page, photos, progress_once

TABLES = {"training": {"steps": 5}}


def run_label_command(folder: Path, out: Path, *more: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["label", str(folder), "--out", str(out), *more])
    return done.exit_code, " ".join(done.output.split())


def send_label(client, position: int, label: int) -> None:
    body = {"position": position, "kind": "label", "label": label}
    assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 200


def wait_until_trained(client, labels: int) -> None:
    progress_once(
        client,
        lambda p: p["curve"] and p["curve"][-1]["labels"] == labels and p["training"]["idle"],
    )


def read_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_export_command_with_rest_predicts_as_the_page_does(tmp_path):
    folder, out = photos(tmp_path / "set", 12), tmp_path / "out"
    given = {"classes": ["light", "dark"], "tables": TABLES}
    with page(folder, out, start=True, every=4, **given) as (client, _):
        for position in (0, 1, 2, 3):
            send_label(client, position, position % 2)
        wait_until_trained(client, 4)
        send_label(client, 5, 0)  # newer than the last training; the export trains on it too
        live = client.get("/api/export/csv?rest=1").text
        plain = client.get("/api/export/csv?rest=0").content
    with page(folder, out, **given) as (client, session):  # the session, opened again
        session.schedule.restore()
        again = client.get("/api/export/csv?rest=1").content
        tasks = client.get("/api/export/label-studio?rest=1").content

    to = tmp_path / "all.csv"
    code, output = run_label_command(folder, out, "--export", "csv", "--to", str(to), "--rest")
    assert code == 0, output
    assert "5 labels and 7 predictions (by a model of all 5 labels) are in" in output
    assert to.read_bytes() == again
    written = read_rows(to.read_text())
    assert [r["source"] for r in written].count("prediction") == 7
    for mine, page_s in zip(written, read_rows(live), strict=True):
        probability, other = mine.pop("probability"), page_s.pop("probability")
        assert mine == page_s
        assert (probability == other == "") or float(probability) == pytest.approx(float(other))

    to = tmp_path / "tasks.json"
    assert (
        run_label_command(folder, out, "--export", "label-studio", "--to", str(to), "--rest")[0]
        == 0
    )
    assert to.read_bytes() == tasks
    to = tmp_path / "labels.csv"
    code, output = run_label_command(folder, out, "--export", "csv", "--to", str(to))
    assert (code, "5 labels are in" in output) == (0, True)
    assert to.read_bytes() == plain


def test_export_command_with_rest_refuses_labels_of_one_class(tmp_path):
    folder, out = photos(tmp_path / "set", 4), tmp_path / "out"
    with page(folder, out, classes=["a", "b"]) as (client, _):
        send_label(client, 0, 1)
    to = tmp_path / "all.csv"
    (out / "snapshot-00003.pt").write_bytes(b"cut short")
    code, output = run_label_command(folder, out, "--export", "csv", "--to", str(to), "--rest")
    assert code == 1, output
    assert "1 labels of 1 classes exist; expected labels of at least two classes" in output
    assert "leave out --rest" in output
    assert not to.exists()
    code, output = run_label_command(folder, out, "--rest")
    assert (code, "--rest goes with --export" in output) == (2, True)
