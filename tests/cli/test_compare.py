"""`labelahead compare` and `labelahead report`, called in this process."""

import csv
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.data import load_source
from labelahead.learner.config import Network, parse_campaign
from labelahead.simulation.comparison import Comparison, parse_contenders, read_comparison
from labelahead.simulation.comparison.plan import cross_with_embeddings, format_comparison
from labelahead.simulation.run import run
from tests.support.comparisons import made_up, random_curves, tiny
from tests.support.task_tables import write_task_table

runner = CliRunner()


def invoke(*arguments):
    result = runner.invoke(app, [str(a) for a in arguments])
    assert "Traceback" not in result.output
    return result


def read_output(result):
    return " ".join(result.output.replace("│", " ").split())


@pytest.fixture
def comparison(tmp_path):
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
def test_wrong_usage_prints_one_error_and_leaves_no_file(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert message in read_output(result)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["compare", "report"])
def test_help_of_compare_and_report_shows_an_example(command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert f"labelahead {command} " in result.output


def test_compare_guide_lists_every_option():
    guide = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    commands = typer.main.get_command(app).commands
    options = {o for name in ("compare", "report") for p in commands[name].params for o in p.opts}
    assert [o for o in options if o.startswith("--") and o not in guide] == []


def test_compare_with_unknown_data_fails_before_a_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("compare", "--data", "mnits")
    assert result.exit_code == 1
    assert "mnist" in read_output(result)
    assert not list(tmp_path.iterdir())


def test_report_command_writes_a_report(comparison):
    result = invoke("report", comparison, "--accuracy", "0.7")
    assert result.exit_code == 0, result.output
    assert "labels for what flip reaches with" in read_output(result)
    assert str(comparison / "report" / "report.html") in result.output.replace("\n", "")
    assert (comparison / "report" / "report.html").stat().st_size > 10_000
    result = invoke("report", comparison, "--accuracy", "90")
    assert result.exit_code == 2
    assert "expected a fraction" in read_output(result)


def test_compare_of_a_finished_comparison_reports_without_running(comparison):
    before = read_comparison(comparison)
    result = invoke("compare", "--out", comparison)  # without options: the stored configuration
    assert result.exit_code == 0, result.output
    assert "6 campaigns, 6 of them finished earlier" in read_output(result)
    assert "labels for what flip reaches with" in read_output(result)
    assert read_comparison(comparison) == before
    result = invoke("compare", "--out", comparison, "--strategies", "random", "--seeds", "2")
    assert result.exit_code == 0, result.output  # a subset of its campaigns
    assert read_comparison(comparison) == before


def test_compare_of_embeddings_reports_every_strategy_on_each(tmp_path):
    campaign = tiny(tmp_path, model=Network("exact"))
    data, _ = load_source(campaign.data, 0)
    vectors = data.inputs.flatten(1).numpy()
    np.save(tmp_path / "good.npy", vectors)
    np.save(tmp_path / "noise.npy", np.random.default_rng(0).normal(size=vectors.shape))
    names = [str(tmp_path / "good.npy"), str(tmp_path / "noise.npy")]
    contenders = cross_with_embeddings(parse_contenders("random,margin"), names)
    plan, folder = Comparison(campaign, contenders, (0, 1)), tmp_path / "a"
    for contender in contenders:
        for seed in plan.seeds:
            run(plan.campaign_for(contender, seed), out=folder / contender.folder / f"seed-{seed}")
    (folder / "compare.toml").write_text(format_comparison(plan))
    result = invoke("compare", "--out", folder, "--embedding", ",".join(names))
    assert result.exit_code == 0, result.output
    assert "2 strategies × 2 embeddings × 2 seeds = 8 campaigns" in read_output(result)
    page = (folder / "report" / "report.html").read_text()
    assert "margin on good.npy" in page
    assert "differ in more than strategy" not in page
    assert "data differ" not in page
    with (folder / "report" / "summary.csv").open() as file:
        final = {(r["strategy"], r["embedding"]): float(r["final"]) for r in csv.DictReader(file)}
    assert final["margin", names[0]] > final["margin", names[1]]
    assert len(final) == 4


def test_compare_with_another_configuration_is_refused(comparison):
    result = invoke("compare", "--out", comparison, "--labels", "400")
    assert result.exit_code == 2
    assert "budget.labels was 40 and is 400 now" in read_output(result)
    result = invoke("compare", "--out", comparison, "--data", "mnist", "--set", "training.steps=5")
    assert result.exit_code == 2
    assert "data.name was 'digits' and is 'mnist' now" in read_output(result)
    assert "training.steps was not set and is 5 now" in read_output(result)


def test_compare_with_a_failed_campaign_exits_with_code_1(comparison):
    path = comparison / "flip-sequential" / "seed-1" / "rounds.jsonl"
    path.write_text("{broken\n" + path.read_text())
    result = invoke("compare", "--out", comparison, "--workers", "1")
    assert result.exit_code == 1
    assert "flip, seed 1 failed:" in read_output(result)
    assert "rounds.jsonl" in read_output(result)
    assert "1 of 6 campaigns failed" in read_output(result)
    assert (comparison / "report" / "report.html").exists()  # a report of the other campaigns


def test_compare_runs_every_strategy_from_every_start(tmp_path):
    """A column of guesses that is always right: with it, the first round is already right."""
    table = tmp_path / "numbers.csv"
    rows = [
        f"{(i * 37) % 101 / 100:.2f},{(i * 53) % 89},{'ab'[i % 2]},{'ab'[i % 2]}" for i in range(60)
    ]
    table.write_text("x,z,label,llm\n" + "\n".join(rows) + "\n")
    words = ["compare", "--data", str(table), "--target", "label", "--strategies", "random"]
    words += ["--seeds", "1", "--initial", "4", "--labels", "8", "--retrain-every", "4"]
    words += ["--guesses", "llm", "--prior", "none", "--model", "exact", "--workers", "1"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "1 strategies × 2 starts" in result.output
    with (tmp_path / "out" / "report" / "rounds.csv").open(newline="") as file:
        rounds = list(csv.DictReader(file))
    accuracy = {(r["guesses"], r["labels"]): float(r["accuracy"]) for r in rounds}
    assert accuracy["llm", "8"] > accuracy["none", "8"]
    again = CliRunner().invoke(app, ["compare", "--out", str(tmp_path / "out")])
    assert again.exit_code == 0, again.output
    page = (tmp_path / "out" / "report" / "report.html").read_text()
    assert "from llm" in page
    assert "--prior none --guesses llm" in page


@pytest.mark.parametrize("task", ["number", "multilabel"])
def test_compare_of_a_task_reports_its_measures(task, tmp_path):
    table = write_task_table(tmp_path, task)
    plan = Comparison(parse_campaign(table.tables), parse_contenders("random,variance"), (0, 1))
    folder = tmp_path / "a"
    for contender in plan.contenders:
        for seed in plan.seeds:
            run(plan.campaign_for(contender, seed), out=folder / contender.folder / f"seed-{seed}")
    (folder / "compare.toml").write_text(format_comparison(plan))
    result = invoke("report", folder, "--accuracy", "8" if task == "number" else "0.5")
    assert result.exit_code == 0, result.output
    page = " ".join((folder / "report" / "report.html").read_text().split())
    with (folder / "report" / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    if task == "number":
        assert "8 mg" in page
        assert "width of 90 % intervals, mg ↓" in page
        assert {"rmse", "r2", "coverage", "interval_width"} <= set(rows[0])
    else:
        assert "average precision of fox, % ↑" in page
        assert {"micro_f1", "average_precision:cat"} <= set(rows[0])
    with (folder / "report" / "summary.csv").open() as file:
        final = {r["strategy"]: float(r["final"]) for r in csv.DictReader(file)}
    name = "rmse" if task == "number" else "micro_f1"
    last = [float(r[name]) for r in rows if r["strategy"] == "random" and r["labels"] == "30"]
    assert final["random"] == pytest.approx(np.mean(last))
