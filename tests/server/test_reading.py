"""Commands that read a session while its server runs.

They see every accepted label and change nothing in the session.
"""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.server.client import Client
from labelahead.server.journal import read_journal
from tests.support.browser_pages import Server
from tests.support.waiting import until

CLASSES = ("left", "right")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Write forty points that alternate between two clusters."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 3)) + np.where(np.arange(40) % 2, 4.0, -4.0)[:, None]
    path = tmp_path_factory.mktemp("data") / "set.npz"
    np.savez(path, x=rows.astype(np.float32))
    return path


def run_command(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_commands_read_the_labels_of_a_running_server(source, tmp_path):
    out = tmp_path / "out"
    server = Server(source, out, "--classes", ",".join(CLASSES), "--model", "exact")
    try:
        page = Client(server.url, who="anna")
        until(lambda: page.progress()["training"]["in_play"] == 40, server.log.read_text)
        accepted = {}

        def answer(*positions):
            for position in positions:
                page.add_answer(position, CLASSES[position % 2])
                accepted[position] = CLASSES[position % 2]

        answer(*range(10))
        page.wait()
        before = {
            path.name: path.read_bytes()
            for path in out.iterdir()
            if not path.name.startswith("labels.")
        }

        run_command(
            "label", source, "--out", out, "--export", "csv", "--to", tmp_path / "labels.csv"
        )
        labels = {row["id"]: row["label"] for row in read_rows(tmp_path / "labels.csv")}
        items, _ = read_journal(out)
        assert labels == {items[position]: name for position, name in accepted.items()}

        answer(10)
        output = run_command("export-model", out, "--to", tmp_path / "model", "--no-onnx")
        assert "labels: 11 in all" in output
        about = json.loads((tmp_path / "model" / "model.json").read_text())
        assert about["labels"] == {"left": 6, "right": 5}

        answer(11)
        run_command("predict", out, source, "--out", tmp_path / "predicted.csv")
        assert [row["prediction"] for row in read_rows(tmp_path / "predicted.csv")] == [
            CLASSES[i % 2] for i in range(40)
        ]

        answer(12)
        rest = ("--export", "csv", "--to", tmp_path / "rest.csv", "--rest")
        assert "13 labels and 27 predictions" in run_command("label", source, "--out", out, *rest)
        assert sum(row["source"] == "label" for row in read_rows(tmp_path / "rest.csv")) == 13

        answer(13)
        page.wait()
        after = {
            path.name: path.read_bytes()
            for path in out.iterdir()
            if not path.name.startswith("labels.")
        }
        assert (after.keys(), after["session.toml"]) == (before.keys(), before["session.toml"])
    finally:
        server.kill()
    _, events = read_journal(out)
    recorded = {event.position: CLASSES[event.label] for event in events if event.kind == "label"}
    assert recorded == accepted


def test_export_without_a_session_is_refused_without_making_a_folder(source, tmp_path):
    arguments = [
        "label",
        str(source),
        "--out",
        str(tmp_path / "out"),
        "--export",
        "csv",
        "--to",
        str(tmp_path / "a"),
    ]
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, "holds no labels" in " ".join(done.output.split())) == (1, True), (
        done.output
    )
    assert list(tmp_path.iterdir()) == []


def test_export_with_a_label_file_adds_its_labels_to_the_session(source, tmp_path):
    (tmp_path / "given.csv").write_text("item,label\n0,left\n3,right\n")
    arguments = (
        "--out",
        tmp_path / "out",
        "--labels",
        tmp_path / "given.csv",
        "--export",
        "csv",
        "--to",
    )
    run_command("label", source, "--classes", "left,right", *arguments, tmp_path / "first.csv")
    run_command(
        "label",
        source,
        "--out",
        tmp_path / "out",
        "--export",
        "csv",
        "--to",
        tmp_path / "second.csv",
    )
    assert (tmp_path / "second.csv").read_bytes() == (tmp_path / "first.csv").read_bytes()
    assert [row["label"] for row in read_rows(tmp_path / "second.csv")] == ["left", "right"]
