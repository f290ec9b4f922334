"""The study of several classes at once, numbers and ratings."""

from pathlib import Path

import numpy as np
import pytest

from research.results.task_sets import SETS, load, make_task
from research.results.tasks import (
    BEGIN,
    END,
    FIELDS,
    list_strategies,
    read_curves,
    read_rows,
    run,
    run_campaign,
    write_table,
)


def write_measurements(path, name, value_of, seeds=4):
    """Write campaigns of random, the default strategy and one baseline."""
    random, ours, baseline, *_ = list_strategies(name)
    lines = [",".join(FIELDS)]
    for strategy in (random, ours, baseline):
        for seed in range(seeds):
            for labels in range(10, 101, 10):
                noise = np.random.default_rng([seed, labels]).normal()
                value = value_of(strategy == ours, labels) * (1 + 0.001 * noise)
                lines.append(
                    f"{name},{strategy},{seed},{labels},{value},{value},{value * 1.1},0.9,1"
                )
    path.write_text("\n".join(lines) + "\n")


def test_every_set_has_a_task_and_strategies_for_it():
    for name, (task, _) in SETS.items():
        made = make_task(name, ("a", "b"))
        assert made.name == task
        for strategy in list_strategies(name)[1:2]:
            made.check_acquisition(strategy)


def test_campaign_of_numbers_measures_every_round(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = run_campaign("diabetes", "random", 0, Path())
    assert [row["labels"] for row in rows] == list(range(10, 161, 10))
    assert float(rows[-1]["value"]) < float(rows[0]["value"])
    assert all(0.5 < float(row["coverage"]) <= 1 for row in rows)
    assert len(load("diabetes", Path()).x) == 442
    path = tmp_path / "tasks.csv"
    run(["diabetes"], ["random"], range(1), Path(), path)
    assert [row["value"] for row in read_rows(path)] == [row["value"] for row in rows]
    before = path.stat().st_mtime_ns
    run(["diabetes"], ["random"], range(1), Path(), path)  # nothing is missing
    assert path.stat().st_mtime_ns == before


def test_table_counts_labels_until_the_error_is_as_small(tmp_path):
    path, docs = tmp_path / "tasks.csv", tmp_path / "tasks.md"
    write_measurements(path, "diabetes", lambda ours, n: 100 / (n * (2 if ours else 1)))
    docs.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    row = write_table(path, docs).splitlines()[2].split(" | ")
    assert row[0] == "| diabetes"
    assert row[3:5] == ["100", "50"]  # random's labels, and ours
    assert row[5].startswith("2.00 (")
    assert row[6] == "< 0.001 +"
    assert row[7] == "qbc: 100"
    assert row[9:] == ["+10 %", "90 % |"]
    assert "old" not in docs.read_text()
    assert docs.read_text().endswith("after\n")


def test_curves_of_errors_are_scores_of_which_larger_ones_are_better(tmp_path):
    path = tmp_path / "tasks.csv"
    write_measurements(path, "diabetes", lambda ours, n: 100 / n)
    curves = read_curves("diabetes", read_rows(path))
    assert curves.scores["random"][:, 0].mean() == pytest.approx(-10, abs=0.01)
    assert read_curves("yeast", read_rows(path)) is None
