"""What every command shares: help, errors and the traceback option."""

import subprocess
import sys
from typing import Annotated

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from labelahead.cli import shell
from tests.support.command_line import check_no_traceback, invoke, start_command
from tests.support.waiting import PATIENCE

COMMANDS = ("run", "resume", "query", "list", "compare", "report", "label")


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_command_line_without_its_packages_names_the_extra(module):
    code = f"import sys; sys.modules[{module!r}] = None; import labelahead.cli"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == "the command line needs more packages: pip install 'labelahead[app]'\n"


def test_help_lists_every_command():
    overview = invoke("--help").output
    assert [name for name in COMMANDS if f" {name} " not in overview] == []


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_of_every_command_shows_an_example(command):
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    if command:
        assert f"labelahead {command[0]}" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "--strategy", "flop"], 2, "did you mean 'flip'"),
        (["run", "--set", "budget.lables=3"], 2, "did you mean 'labels'"),
        (["run", "--set", "nonsense"], 2, "KEY=VALUE"),
        (["run", "--labels", "x"], 2, "--labels"),
        (["run", "--labels", "5"], 2, "labels is 5"),
        (["run", "--nonsense"], 2, "No such option"),
        (["run", "--config", "/none.toml"], 2, "does not exist"),
        (["run", "--data", "mnits"], 1, "mnist"),
        (["run", "--model", "cn"], 2, "cnn"),
        (["run", "--set", "training.rate=-1"], 2, "rate is -1"),
        (["run", "--set", "device=warp"], 2, "device is 'warp'"),
        (["query", "--data", "digits", "--out", "nowhere/x.csv"], 2, "a folder that exists"),
        (["run", "--model", "nowhere:net"], 1, "nowhere"),
        (["run", "--labels", "5000"], 1, "the pool has"),
        (["resume", "/nowhere"], 2, "contains no campaign"),
        (["list", "things"], 2, "strategies"),
        (["query", "--data", "/nowhere.csv"], 1, "/nowhere.csv"),
        (["query", "--data", "digits", "--format", "xml"], 2, "csv or json"),
        (["query", "--data", "digits", "--n", "0"], 2, "--n"),
        (["query", "--data", "digits", "--classes", "cat,Cat"], 1, "expected every class once"),
        (["run", "--data", "digits", "--target", "y"], 1, "target"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_wrong_usage_prints_one_error_and_leaves_no_file(
    arguments, code, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.output.replace("│", " ").split())
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())  # no file is left


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text(max_size=60))
def test_malformed_configuration_file_prints_no_traceback(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("c")
    (folder / "c.toml").write_text(text, encoding="utf-8", errors="replace")
    result = invoke("run", "--config", folder / "c.toml", "--labels", "nine")
    assert result.exit_code == 2
    result = invoke("query", "--data", folder, "--config", folder / "c.toml")
    check_no_traceback(result)


def test_debug_option_prints_the_traceback(tmp_path):
    process = start_command("--debug", "run", "--data", "nowhere", cwd=tmp_path)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "Traceback" in err


def test_inserted_options_follow_their_place_and_are_read_from_the_context():
    app = typer.Typer()
    found = []

    def group(colour: Annotated[str, shell.Option("--colour", help="Any.")] = "red") -> None:
        raise AssertionError("a group is never called")

    @app.command()
    @shell.insert_options(group, after="size")
    def paint(
        context: typer.Context,
        size: Annotated[int, shell.Option("--size")] = 1,
        speed: Annotated[int, shell.Option("--speed")] = 2,
    ) -> None:
        """Paint."""
        found.append((context.params, size, speed))

    runner = CliRunner()
    text = runner.invoke(app, ["--help"]).output
    assert text.index("--size") < text.index("--colour") < text.index("--speed")
    assert "Paint." in text
    assert runner.invoke(app, ["--colour", "blue", "--speed", "5"]).exit_code == 0
    assert found == [({"size": 1, "colour": "blue", "speed": 5}, 1, 5)]
