"""The numbers of a report against scipy."""

import numpy as np
import pytest
from scipy import stats

from labelahead.simulation.comparison import report
from labelahead.simulation.comparison.curves import read_curves
from labelahead.simulation.comparison.plan import parse_contender
from labelahead.simulation.comparison.summary import summarise
from tests.support.comparisons import LABELS, made_up, random_curves
from tests.support.report_pages import parse_page, read_csv_rows

FOUR = {"random": 0.0, "entropy": -0.01, "margin": 0.05, "flip": 0.1}


def test_report_numbers_match_scipy(tmp_path, without_figures):
    curves = random_curves(6, FOUR)
    report(made_up(tmp_path / "a", curves))
    folder = tmp_path / "a" / "report"
    width = LABELS[-1] - LABELS[0]
    areas = {
        name: np.array([np.trapezoid(c, LABELS) / width for c in by_seed.values()])
        for name, by_seed in curves.items()
    }
    for row in read_csv_rows(folder / "summary.csv"):
        own_areas = areas[row["strategy"]]
        low, high = stats.t.interval(0.95, 5, own_areas.mean(), stats.sem(own_areas))
        assert float(row["area"]) == pytest.approx(own_areas.mean())
        assert (float(row["area_low"]), float(row["area_high"])) == pytest.approx((low, high))
        ends = [c[-1] for c in curves[row["strategy"]].values()]
        assert float(row["final"]) == pytest.approx(np.mean(ends))
        assert float(row["seconds_kernel"]) == 0.2
        assert "seconds_test" not in row
        if row["strategy"] != "random":
            gap = own_areas - areas["random"]
            assert float(row["area_minus_reference"]) == pytest.approx(gap.mean())
    for row in read_csv_rows(folder / "tests.csv"):
        wanted = stats.ttest_rel(areas[row["first"]], areas[row["second"]])
        assert float(row["p_paired_t"]) == pytest.approx(wanted.pvalue)
        assert float(row["p_holm"]) >= float(row["p_paired_t"])
    s = summarise(read_curves(tmp_path / "a"))
    wanted = stats.friedmanchisquare(*areas.values())
    assert s.by_seed.p == pytest.approx(wanted.pvalue)
    assert s.by_seed.blocks == 6
    assert s.by_round.blocks == 6 * 3  # without the first round, which all strategies share
    curve = [r for r in read_csv_rows(folder / "curves.csv") if r["strategy"] == "flip"]
    at = np.array([c[2] for c in curves["flip"].values()])
    gap = at - np.array([c[2] for c in curves["random"].values()])
    assert float(curve[2]["accuracy"]) == pytest.approx(at.mean())
    low, high = stats.t.interval(0.95, 5, gap.mean(), stats.sem(gap))
    assert float(curve[2]["difference_low"]) == pytest.approx(low)
    assert float(curve[2]["difference_high"]) == pytest.approx(high)
    assert len(read_csv_rows(folder / "rounds.csv")) == 4 * 6 * 4


def test_report_with_one_round_has_no_by_round_summary(tmp_path):
    curves = {"random": {0: [0.5], 1: [0.6]}, "margin": {0: [0.5], 1: [0.6]}, "flip": {0: [0.7]}}
    written_report = report(made_up(tmp_path / "a", curves, labels=(10,)))
    parse_page(written_report)
    assert summarise(read_curves(tmp_path / "a")).by_round is None


def test_report_pairs_common_seeds(tmp_path, without_figures):
    curves = {k: dict(v) for k, v in random_curves(5, FOUR).items()}
    for seed in (0, 3):
        del curves["flip"][seed]
    folder = made_up(tmp_path / "a", curves)
    written_report = report(folder)
    assert any("2 campaigns are not finished" in w for w in written_report.warnings)
    s = summarise(read_curves(folder))
    assert s.pair(parse_contender("flip"), parse_contender("random")).difference.n == 3
    assert s.pair(parse_contender("margin"), parse_contender("random")).difference.n == 5
    assert s.by_seed.blocks == 3
    assert "flip, seed 0; flip, seed 3" in parse_page(written_report).text
    curves["flip"] = {}  # no campaign: left out with a warning
    text = (folder / "compare.toml").read_text()
    again = made_up(tmp_path / "b", {k: v for k, v in curves.items() if v})
    (again / "compare.toml").write_text(text)
    written_report = report(again)
    assert any("5 campaigns are not finished" in w for w in written_report.warnings)
    parse_page(written_report)
