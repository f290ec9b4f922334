"""The small version of the headline table."""

import pytest

from research.results import quick
from research.results.lines import Line, write_csv
from research.results.table import read_tables

TABLE = """
title = "Digits, tiny"
group = "clean"
seeds = 3
strategies = "random,flip,margin"
[campaign.data]
name = "digits"
limit = 120
[campaign.model]
name = "mlp"
width = 8
[campaign.training]
steps = 5
[campaign.budget]
initial = 10
labels = 30
retrain_every = 10
"""
ROUNDS = (10, 20, 30)
CURVES = {"random": (0.2, 0.4, 0.6), "flip": (0.2, 0.6, 0.8)}


@pytest.fixture
def tables(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "tiny.toml").write_text(TABLE)
    return folder


def write_curves(folder, seeds, **changes):
    """Write a CSV with the same curves for every seed."""
    folder.mkdir()
    lines = [
        Line("", strategy, seed, labels, accuracy, 1.0, 1.0)
        for strategy, curve in {**CURVES, **changes}.items()
        for seed in range(seeds)
        for labels, accuracy in zip(ROUNDS, curve, strict=True)
    ]
    write_csv(folder / "tiny.csv", Line, lines)
    return folder


def test_compare_with_committed_measures_labels_and_differences(tmp_path, tables):
    found = write_curves(tmp_path / "found", 2, flip=(0.2, 0.5, 0.7))
    committed = write_curves(tmp_path / "committed", 3)
    row = quick.compare_with_committed(read_tables(tables)[0], 2, found, committed)
    assert row.accuracy == pytest.approx(0.6)
    assert row.random_labels == pytest.approx(30)
    assert row.labels == pytest.approx(25)  # halfway between 20 (0.5) and 30 (0.7) labels
    assert row.committed_labels == pytest.approx(20)
    assert row.all_labels == pytest.approx(20)
    assert row.largest_difference == pytest.approx(0.1)
    assert "| 25 | 20 | 20 | 10.0 points |" in quick.format_rows([row], 2)


def test_a_second_run_agrees_with_the_first(tmp_path, tables, capsys):
    def run(out, numbers, seeds):
        return quick.main(
            ["--tables", str(tables), "--out", str(tmp_path / out), "--numbers", str(numbers),
             "--only", "tiny", "--seeds", seeds, "--workers", "1"]
        )  # fmt: skip

    assert run("first", write_curves(tmp_path / "committed", 3), "3") == 0
    capsys.readouterr()
    assert run("second", tmp_path / "first" / "numbers", "2") == 0
    assert "| 0.0 points |" in capsys.readouterr().out


def test_missing_measurements_are_refused(tmp_path, tables, capsys):
    arguments = ["--tables", str(tables), "--numbers", str(tmp_path), "--out", str(tmp_path / "o")]
    assert quick.main([*arguments, "--only", "tiny", "--seeds", "1", "--workers", "1"]) == 2
    assert "holds no tiny.csv" in capsys.readouterr().err
