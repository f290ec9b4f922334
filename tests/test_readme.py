"""README.md: its code runs, its commands exist, and its numbers come from research/data."""

import csv
import re
import shlex
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest
import torch
import typer
from scipy.stats import ttest_1samp

from labelahead.cli import app
from research.results import comparators
from research.results.headline import HEADLINE
from research.results.lines import TrialLine, read_csv
from research.results.numbers import read_numbers
from research.results.table import TABLES, read_tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CSV = ROOT / "research" / "data" / "tables"


def mean_curves(name, seeds=10):
    """Return (labels, mean accuracy) pairs by strategy, read from the CSV file."""
    accuracies = defaultdict(list)
    for line in csv.DictReader((CSV / f"{name}.csv").open()):
        if int(line["seed"]) < seeds:
            accuracies[line["strategy"], int(line["labels"])].append(float(line["accuracy"]))
    assert all(
        len(values) == seeds
        for (strategy, _), values in accuracies.items()
        if strategy in ("random", "flip")
    )
    return {
        name_of_strategy: sorted(
            (labels, mean(values))
            for (strategy, labels), values in accuracies.items()
            if strategy == name_of_strategy
        )
        for name_of_strategy in ("random", "flip")
    }


def labels_for(goal, curve):
    """Return where a curve first reaches `goal`, by linear interpolation between rounds."""
    for (before, low), (after, high) in pairwise(curve):
        if high >= goal - 1e-12:
            return before + (goal - low) / (high - low) * (after - before)
    raise AssertionError(f"never reaches {goal}")


def labels_needed(name):
    curves = mean_curves(name)
    goal = curves["random"][-1][1]
    return goal, labels_for(goal, curves["random"]), labels_for(goal, curves["flip"])


def test_readme_table_equals_the_measurements():
    rows = re.findall(
        r"^\| ([^|]+?) \| ([\d.]+) % \| (\d+) \| \*\*(\d+)\*\* \|$", README, re.MULTILINE
    )
    assert [row[0] for row in rows] == list(HEADLINE)
    for title, accuracy, random, ours in rows:
        goal, random_labels, flip_labels = labels_needed(HEADLINE[title])
        assert (accuracy, random, ours) == (
            f"{100 * goal:.1f}",
            f"{random_labels:.0f}",
            f"{flip_labels:.0f}",
        ), title


def test_results_overview_has_the_rows_of_the_readme_table():
    row = re.compile(r"^\| [^|]+ \| [\d.]+ % \| \d+ \| \*\*\d+\*\* \|$", re.MULTILINE)
    assert row.findall((ROOT / "docs" / "results.md").read_text()) == row.findall(README)


def test_readme_limitations_equal_the_measurements():
    text = " ".join(README.split())
    for strategy, curve in mean_curves("svhn-exact").items():
        assert f"reach {100 * curve[-1][1]:.0f} % with any strategy" in text, strategy
    _, random_labels, flip_labels = labels_needed("vowel-exact")
    assert f"({flip_labels:.0f} labels instead of {random_labels:.0f})" in text
    tables = {t.name: t for t in read_tables(TABLES)}
    assert "vehicle silhouettes" in text
    measured = read_numbers(tables["vehicle-exact"], CSV)[""]
    assert not measured.curves.missing
    assert all(row.gain is None or row.gain.verdict == 0 for row in measured.rows)
    assert tables["fig-cifar10"].inconclusive  # so it is no evidence against active learning
    assert "Batches of a thousand" in text
    assert "the results are not conclusive, because the network had not converged" in text
    leads = [lead_over_herding(path) for path in CSV.glob("*-exact.csv")]
    results = [(mean(lead), ttest_1samp(lead, 0).pvalue) for lead in leads if lead]
    assert len(results) > 10
    assert sum(p > 0.05 for _, p in results) > len(results) / 2  # "equally well on most"
    assert any(p < 0.05 and lead < 0 for lead, p in results)  # "better on some"


def lead_over_herding(path):
    """Return the lead of flip over uherding along the curve, by seed."""
    curves = defaultdict(list)
    for line in csv.DictReader(path.open()):
        curves[line["strategy"], line["seed"]].append(float(line["accuracy"]))
    return [
        mean(curves["flip", s]) - mean(c) for (name, s), c in curves.items() if name == "uherding"
    ]


def test_readme_comparison_with_logistic_regression_equals_the_measurements():
    measured = {
        t.name: read_numbers(t, CSV) for t in read_tables(TABLES) if t.name in comparators.SETS
    }
    lines = read_csv(ROOT / "research" / "data" / comparators.FILE, TrialLine)
    verdict = comparators.verdict(
        comparators.cells_of(lines, measured), list(comparators.COMPETITORS), lambda c: c.chosen
    )
    first, of, level, behind = re.match(
        r"first in (\d+) of (\d+) .*?level in (\d+).*?behind in (\d+)", verdict
    ).groups()
    sentence = (
        f"significantly better in {first} of {of} cases, not distinguishable in {level} "
        f"and worse in {behind}"
    )
    assert sentence in " ".join(README.split())
    overview = " ".join((ROOT / "docs" / "results.md").read_text().split())
    assert (
        f"better in {first} of {of} cases, not distinguishable in {level}, and worse in {behind}."
        in overview
    )


CHECKED = {
    "8",
    "20",
    "101",
    "10",
    "92.3",
    "160",
    "40",
    "60.7",
    "82",
    "68.1",
    "300",
    "158",
    "71.3",
    "84",
    "89.8",
    "52",
}
CHECKED |= {"94.6", "200", "83", "85.8", "153", "31", "137", "23", "32", "1"}


def test_technical_report_has_the_table_of_the_readme():
    def read_rows(path):
        text = (ROOT / path).read_text()
        return [line for line in text.splitlines() if re.match(r"\| .*\d % \|", line)]

    assert read_rows("docs/report.md") == read_rows("README.md") != []


def test_readme_has_no_unchecked_number():
    """Every number outside code is checked by one of the tests above."""
    prose = re.sub(r"```.*?```|`[^`]*`|\([^)\s]*\)|4\.0|Python 3\.11", "", README, flags=re.DOTALL)
    numbers = set(re.findall(r"(?<![\w.-])\d+(?:[.,]\d+)*(?![\w-])", prose))
    assert numbers <= CHECKED, numbers - CHECKED


def test_readme_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        torch.manual_seed(0)
        exec(compile(block, "README.md", "exec"), {})
    assert 0.85 < float(re.search(r"tensor\(([\d.]+)", capsys.readouterr().out)[1]) < 1


@pytest.mark.parametrize("line", re.findall(r"^labelahead .*$", README, re.MULTILINE))
def test_readme_commands_exist(line):
    words = shlex.split(line, comments=True)[1:]
    command = typer.main.get_command(app).commands[words[0]]
    options = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
    assert {w for w in words if w.startswith("--")} <= options
