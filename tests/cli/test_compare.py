"""`labelahead compare` and `labelahead report` as a stranger uses them, in this process."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.simulation.comparison import read_comparison
from tests.support.comparisons import made_up, random_curves

runner = CliRunner()


def invoke(*arguments):
    done = runner.invoke(app, [str(a) for a in arguments])
    assert "Traceback" not in done.output
    return done


def said(done):
    return " ".join(done.output.replace("│", " ").split())


@pytest.fixture
def made(tmp_path):
    return made_up(tmp_path / "a", random_curves(3, {"random": 0, "flip": 0.1}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--strategies", "flop"], "did you mean 'flip'"),
        (["compare", "--strategies", "random,,margin:greedy"], "works as top"),
        (["compare", "--strategies", ""], "names with commas"),
        (["compare", "--seeds", "0"], "--seeds"),
        (["compare", "--seed", "-1"], "--seed"),
        (["compare", "--workers", "0"], "--workers"),
        (["compare", "--set", "budget.lables=3"], "did you mean 'labels'"),
        (["compare", "--labels", "5"], "labels is 5"),
        (["compare", "--config", "/none.toml"], "does not exist"),
        (["report"], "Missing argument"),
        (["report", "/nowhere"], "holds no comparison"),
        (["report", ".", "--accuracy", "many"], "--accuracy"),
    ],
)
def test_wrong_usage_is_one_clear_sentence(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert done.exit_code == 2, done.output
    assert message in said(done)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["compare", "report"])
def test_help_shows_examples(command):
    done = invoke(command, "--help")
    assert done.exit_code == 0
    assert f"labelahead {command} " in done.output


def test_every_option_is_in_the_docs():
    guide = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    commands = typer.main.get_command(app).commands
    options = {o for name in ("compare", "report") for p in commands[name].params for o in p.opts}
    assert [o for o in options if o.startswith("--") and o not in guide] == []


def test_data_that_are_not_there_fail_before_anything_begins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke("compare", "--data", "mnits")
    assert done.exit_code == 1
    assert "mnist" in said(done)
    assert not list(tmp_path.iterdir())


def test_report(made):
    done = invoke("report", made, "--accuracy", "0.7")
    assert done.exit_code == 0, done.output
    assert "labels for what flip reaches with" in said(done)
    assert str(made / "report" / "report.html") in done.output.replace("\n", "")
    assert (made / "report" / "report.html").stat().st_size > 10_000
    done = invoke("report", made, "--accuracy", "90")
    assert done.exit_code == 2
    assert "expected a fraction" in said(done)


def test_a_finished_comparison_is_reported_at_once(made):
    before = read_comparison(made)
    done = invoke("compare", "--out", made)  # no option: as before
    assert done.exit_code == 0, done.output
    assert "6 campaigns, 6 of them finished earlier" in said(done)
    assert "labels for what flip reaches with" in said(done)
    assert read_comparison(made) == before
    done = invoke("compare", "--out", made, "--strategies", "random", "--seeds", "2")
    assert done.exit_code == 0, done.output  # a part of it
    assert read_comparison(made) == before


def test_another_configuration_is_refused(made):
    done = invoke("compare", "--out", made, "--labels", "400")
    assert done.exit_code == 2
    assert "budget.labels was 40 and is 400 now" in said(done)
    done = invoke("compare", "--out", made, "--data", "mnist", "--set", "training.steps=5")
    assert done.exit_code == 2
    assert "data.name was 'digits' and is 'mnist' now" in said(done)
    assert "training.steps was not set and is 5 now" in said(done)


def test_campaigns_that_fail_make_exit_code_1(made):
    path = made / "flip-sequential" / "seed-1" / "rounds.jsonl"
    path.write_text("{broken\n" + path.read_text())
    done = invoke("compare", "--out", made, "--workers", "1")
    assert done.exit_code == 1
    assert "flip, seed 1 failed:" in said(done)
    assert "rounds.jsonl" in said(done)
    assert "1 of 6 campaigns failed" in said(done)
    assert (made / "report" / "report.html").exists()  # of the others
