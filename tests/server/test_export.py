"""The command's export: what the page would send, without a server."""

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labelahead.cli import app
from tests.support.web_sessions import CHANGE, page, photos, progress_once

TABLES = {"training": {"steps": 5}}


def command(folder: Path, out: Path, *more: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["label", str(folder), "--out", str(out), *more])
    return done.exit_code, " ".join(done.output.split())


def label(client, position: int, label: int) -> None:
    body = {"position": position, "kind": "label", "label": label}
    assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 200


def trained(client, labels: int) -> None:
    progress_once(
        client,
        lambda p: p["curve"] and p["curve"][-1]["labels"] == labels and p["training"]["idle"],
    )


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_the_rest_is_predicted_as_on_the_page(tmp_path):
    folder, out = photos(tmp_path / "set", 12), tmp_path / "out"
    given = {"classes": ["light", "dark"], "tables": TABLES}
    with page(folder, out, start=True, every=4, **given) as (client, _):
        for position in (0, 1, 2, 3):
            label(client, position, position % 2)
        trained(client, 4)
        label(client, 5, 0)  # no training of the page knows it: the model of an export does
        live = client.get("/api/export/csv?rest=1").text
        plain = client.get("/api/export/csv?rest=0").content
    with page(folder, out, **given) as (client, session):  # the page, opened again
        session.schedule.restore()
        again = client.get("/api/export/csv?rest=1").content
        tasks = client.get("/api/export/label-studio?rest=1").content

    to = tmp_path / "all.csv"
    code, said = command(folder, out, "--export", "csv", "--to", str(to), "--rest")
    assert code == 0, said
    assert "5 labels and 7 predictions (by a model of all 5 labels) are in" in said
    assert to.read_bytes() == again
    written = rows(to.read_text())
    assert [r["source"] for r in written].count("prediction") == 7
    for mine, page_s in zip(written, rows(live), strict=True):
        probability, other = mine.pop("probability"), page_s.pop("probability")
        assert mine == page_s
        assert (probability == other == "") or float(probability) == pytest.approx(float(other))

    to = tmp_path / "tasks.json"
    assert command(folder, out, "--export", "label-studio", "--to", str(to), "--rest")[0] == 0
    assert to.read_bytes() == tasks
    to = tmp_path / "labels.csv"
    code, said = command(folder, out, "--export", "csv", "--to", str(to))
    assert (code, "5 labels are in" in said) == (0, True)
    assert to.read_bytes() == plain


def test_labels_of_one_class_predict_nothing(tmp_path):
    folder, out = photos(tmp_path / "set", 4), tmp_path / "out"
    with page(folder, out, classes=["a", "b"]) as (client, _):
        label(client, 0, 1)
    to = tmp_path / "all.csv"
    (out / "snapshot-00003.pt").write_bytes(b"cut short")
    code, said = command(folder, out, "--export", "csv", "--to", str(to), "--rest")
    assert code == 1, said
    assert "1 labels of 1 classes exist; expected labels of at least two classes" in said
    assert "leave out --rest" in said
    assert not to.exists()
    code, said = command(folder, out, "--rest")
    assert (code, "--rest goes with --export" in said) == (2, True)
