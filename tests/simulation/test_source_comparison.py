"""What accuracies cost: resumed comparisons, means and ratios against naive sums, files, bad input."""

import csv
import math

import pytest

from labelahead.errors import InputError
from labelahead.simulation.source_campaign import MoneyRound
from labelahead.simulation.source_comparison import (
    SourceComparison,
    compare_costs,
    draw_costs,
    format_summary,
    is_cost_comparison,
    parse_source_strategies,
    read_costs,
    summarise_costs,
)
from tests.simulation.test_source_campaign import configure, write_table

NAMES = ("threshold", "random")


def line_to(cost, accuracy):
    """Two rounds: from nothing to this accuracy at this cost."""
    return (MoneyRound(0, 0.0, 0.0, {"a": 0}), MoneyRound(1, cost, accuracy, {"a": 1}))


def make_comparison(costs, seeds):
    """strategy -> cost by seed of an accuracy of 1."""
    curves = {
        (n, s): line_to(c, 1.0) for n, own in costs.items() for s, c in zip(seeds, own, strict=True)
    }
    return SourceComparison(None, tuple(costs), tuple(seeds), curves)


def test_ratio_is_that_of_the_mean_costs_with_an_interval_by_logarithms():
    found = make_comparison({"pairs": (2, 6, 4), "a": (8, 8, 8), "b": (20, 5, 5)}, range(3))
    (row,) = summarise_costs(found, [0.5])
    assert row.costs == pytest.approx({"pairs": 2.0, "a": 4.0, "b": 5.0})
    assert (row.cheapest, row.ratio) == ("a", pytest.approx(0.5))
    logs = [math.log(c / 8) for c in (2, 6, 4)]
    mean = sum(logs) / 3
    half = 4.302652729911275 * (sum((v - mean) ** 2 for v in logs) / 2 / 3) ** 0.5
    assert row.low == pytest.approx(math.exp(mean - half))
    assert row.high == pytest.approx(math.exp(mean + half))


def test_accuracy_that_a_seed_misses_has_no_mean():
    found = make_comparison({"pairs": (2, 6), "a": (8, 8)}, range(2))
    missed = SourceComparison(
        None, found.strategies, found.seeds, {**found.curves, ("pairs", 1): line_to(6, 0.4)}
    )
    (row,) = summarise_costs(missed, [0.5])
    assert (row.costs["pairs"], row.ratio, row.cheapest) == (math.inf, None, "a")
    (text,) = list(csv.DictReader(format_summary([row], missed.strategies).splitlines()))
    assert (text["cost:pairs"], text["cost:a"], text["ratio"]) == ("", "4", "")
    with pytest.raises(InputError, match="accuracy is 90"):
        summarise_costs(found, [90])


def test_one_seed_has_no_interval_and_no_pairs_no_ratio():
    (row,) = summarise_costs(make_comparison({"pairs": (2,), "a": (8,)}, [0]), [1.0])
    assert (row.ratio, row.low) == (pytest.approx(0.25), None)
    (row,) = summarise_costs(make_comparison({"a": (8,)}, [0]), [1.0])
    assert (row.cheapest, row.ratio) == ("a", None)


def test_comparison_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    """A campaign that was being written when the process died runs again; finished ones do not."""
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path, 60)
    campaign = configure("t.csv", money=1.5)
    whole = compare_costs(campaign, NAMES, (0, 1), "whole")
    compare_costs(campaign, NAMES[:1], (0,), "parts")
    assert is_cost_comparison("parts")
    with open("parts/campaigns.jsonl", "ab") as file:
        file.write(b'{"strategy":"random","seed":0,"rou')
    ran = []
    parts = compare_costs(
        campaign, NAMES, (0, 1), "parts", on_campaign=lambda *one: ran.append(one[:2])
    )
    assert ran == [("random", 0), ("threshold", 1), ("random", 1)]
    assert parts.curves == whole.curves
    read = read_costs("parts")
    assert (read.curves, read.strategies, read.seeds) == (whole.curves, NAMES, (0, 1))
    with open("parts/costs.csv") as file:
        rows = list(csv.DictReader(file))
    counted = [r for r in rows if (r["strategy"], r["seed"]) == ("random", "1")]
    assert [float(r["accuracy"]) for r in counted] == pytest.approx(
        [r.accuracy for r in whole.curves["random", 1]], abs=1e-6
    )
    assert (tmp_path / "parts" / "summary.csv").exists()


def test_people_make_the_same_errors_for_every_strategy(tmp_path):
    """Strategies of one seed buy from the same answers: all labels of the person end in the same place."""
    campaign = configure(write_table(tmp_path, 40), money=100.0)
    found = compare_costs(campaign, ("random", "margin"), (0,), tmp_path / "out")
    ends = {found.curves[name, 0][-1].accuracy for name in ("random", "margin")}
    assert len(ends) == 1


def test_folder_of_another_comparison_is_refused(tmp_path):
    campaign = configure(write_table(tmp_path, 40), money=1.5)
    compare_costs(campaign, NAMES[:1], (0,), tmp_path / "out")
    other = configure(tmp_path / "t.csv", money=2.0)
    with pytest.raises(InputError, match=r"another configuration \(budget differ\)"):
        compare_costs(other, NAMES, (0,), tmp_path / "out")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    with pytest.raises(InputError, match="another kind of campaign"):
        compare_costs(campaign, NAMES, (0,), tmp_path / "run")
    assert not is_cost_comparison(tmp_path / "run")


def test_unfinished_comparison_says_what_to_do(tmp_path):
    campaign = configure(write_table(tmp_path, 40), money=1.5)
    compare_costs(campaign, NAMES[:1], (0,), tmp_path / "out")
    (tmp_path / "out" / "campaigns.jsonl").write_text("")
    with pytest.raises(InputError, match="no seed that all strategies have finished"):
        read_costs(tmp_path / "out")


def test_strategies_are_names():
    assert parse_source_strategies("pairs,margin,pairs") == ("pairs", "margin")
    for text in ("", "pairs,nope"):
        with pytest.raises(InputError, match="pairs"):
            parse_source_strategies(text)


def test_picture_has_a_line_for_every_strategy(tmp_path):
    curves = {"a": [line_to(1, 0.5), line_to(2, 0.6)], "b": [line_to(1, 0.4)]}
    path = draw_costs(curves, tmp_path / "c.png")
    assert path.read_bytes().startswith(b"\x89PNG")
