"""The label-studio command."""

import csv
import json

import pytest
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.learner.config import read_toml
from tests.support.label_studio import KEY, replay
from tests.support.label_studio_bridges import ANNA, TASKS


def test_label_studio_command_without_a_token_is_refused(monkeypatch):
    monkeypatch.delenv("LABEL_STUDIO_API_KEY", raising=False)
    result = CliRunner().invoke(app, ["label-studio", "http://127.0.0.1:9", "--project", "1"])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    "address", ["http://labelahead:8770", "labelahead.internal:8770", "http://"]
)
def test_label_studio_command_refuses_webhook_urls_without_a_dot(monkeypatch, address):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    result = CliRunner().invoke(
        app, ["label-studio", "http://127.0.0.1:9", "--project", "1", "--webhook-url", address]
    )
    assert result.exit_code == 2
    assert "name with a dot" in " ".join(result.output.split())


def test_label_studio_command_exports_the_projects_annotations(tmp_path, monkeypatch):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    with replay() as studio:
        to = tmp_path / "labels.csv"
        command = [
            "label-studio",
            studio.url,
            "--project",
            str(studio.project),
            "--out",
            str(tmp_path / "out"),
        ]
        result = CliRunner().invoke(
            app, [*command, "--embedding", "words", "--export", "csv", "--to", str(to)]
        )
        assert result.exit_code == 0, result.output
        with to.open(newline="", encoding="utf-8") as file:
            rows = {row["id"]: row for row in csv.DictReader(file)}
        assert [rows[f"{TASKS[0]}.txt"][name] for name in ("label", "annotator", "source")] == [
            "food",
            ANNA,
            "label",
        ]
        label_command = ["label", str(tmp_path / "out" / "items"), "--out", str(tmp_path / "out")]
        offline = CliRunner().invoke(
            app, [*label_command, "--export", "jsonl", "--to", str(tmp_path / "labels.jsonl")]
        )
        assert offline.exit_code == 0, offline.output
        exported = [
            json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()
        ]
        assert {row["id"] for row in exported} == set(rows)


@pytest.mark.parametrize(
    ("words", "prior"),
    [((), "class-names"), (("--prior", "none"), "none"), (("--embedding", "words"), "none")],
)
def test_texts_of_a_project_start_from_its_choices(tmp_path, monkeypatch, words, prior):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    with replay() as studio:
        command = ["label-studio", studio.url, "--project", str(studio.project), *words]
        export = [
            "--out",
            str(tmp_path / "out"),
            "--export",
            "csv",
            "--to",
            str(tmp_path / "l.csv"),
        ]
        result = CliRunner().invoke(app, [*command, *export])
        assert result.exit_code == 0, result.output
    assert read_toml(tmp_path / "out" / "session.toml")["data"]["prior"] == prior


def test_label_studio_command_refuses_pool_options_without_a_pool(monkeypatch):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    for option in (["--cluster", "tcp://127.0.0.1:9"], ["--pictures-at", "http://x/"]):
        result = CliRunner().invoke(
            app, ["label-studio", "http://127.0.0.1:9", "--project", "1", *option]
        )
        assert result.exit_code == 2
        assert "go with --pool" in " ".join(result.output.split())
