"""The predict and export-model commands."""

import csv

import pytest
from typer.testing import CliRunner

from labelahead.cli import app
from tests.support.web_sessions import labelled_page, photos


def run_command(*arguments) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.output


@pytest.fixture
def labelled(tmp_path):
    with labelled_page(tmp_path) as opened:
        yield opened


def test_export_model_and_predict_commands_use_the_sessions_model(labelled, tmp_path):
    _, _, _, out = labelled  # the session stays open
    to = ["--to", tmp_path / "model", "--no-onnx"]
    code, output = run_command("export-model", out, *to, "--device", "cuda:77")
    assert (code, "this machine has cpu" in output) == (2, True)
    stored = out / "session.toml"  # of a machine with another device
    stored.write_text(stored.read_text().replace('device = "auto"', 'device = "cuda:77"'))
    code, output = run_command("export-model", out, *to, "--device", "cpu")
    assert code == 0, output
    assert "device: cpu" in output
    assert "labels: 10 in all" in output
    new = photos(tmp_path / "new", 4)
    (new / "broken.jpg").write_bytes(b"none")
    code, output = run_command("predict", tmp_path / "model", new, "--out", tmp_path / "p.csv")
    assert code == 0, output
    assert "broken.jpg cannot be read" in output
    assert "4 items" in output
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [(r["id"], r["prediction"]) for r in rows] == [
        (f"{i:02d}.png", ["light", "dark"][i % 2]) for i in range(4)
    ]
    assert set(rows[0]) == {"id", "file_name", "prediction", "probability", "unlike_labelled"}
    code, direct = run_command("predict", out, new)
    assert code == 0, direct
    assert [line.split(",")[:3] for line in direct.splitlines() if line.startswith("0")] == [
        [r["id"], r["file_name"], r["prediction"]] for r in rows
    ]
    code, output = run_command("export-model", out, *to, "--device", "cpu")
    assert (code, "exists already" in output) == (1, True)
    code, output = run_command("predict", tmp_path, new)
    assert (code, "contains no model" in output) == (1, True)
    code, output = run_command(
        "predict", tmp_path / "model", new, "--out", tmp_path / "none" / "p.csv"
    )
    assert (code, "folder that exists" in output) == (2, True)
