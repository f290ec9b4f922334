"""The curves of a comparison and the checks that it is fair."""

import json
from dataclasses import replace

from labelahead.learner.config import to_toml
from labelahead.simulation.comparison import read_comparison, report
from labelahead.simulation.comparison.curves import read_curves
from labelahead.simulation.comparison.plan import parse_contender
from tests.support.comparisons import made_up, random_curves
from tests.support.report_pages import parse_page


def test_report_warns_of_unfair_comparison(tmp_path, without_figures):
    folder = made_up(tmp_path / "a", random_curves(2, {"random": 0, "margin": 0.1}))
    assert all(c.holds for c in read_curves(folder).checks)
    text = parse_page(report(folder)).text
    assert "the same 10 initial labels, compared one by one" in text
    where = folder / "margin" / "seed-1"
    lines = (where / "labels.jsonl").read_text().replace('"position":3', '"position":77', 1)
    (where / "labels.jsonl").write_text(lines)
    comparison = read_comparison(folder)
    usual = comparison.campaign_for(parse_contender("margin"), 1)
    other = replace(usual, training={**usual.training, "steps": 7})
    (where / "config.toml").write_text(to_toml(other))
    (where / "data.json").write_text(json.dumps({"name": "y"}))
    found = read_curves(folder)
    assert [c.holds for c in found.checks] == [False, False, False]
    written_report = report(folder)
    text = parse_page(written_report).text
    assert "first labels differ from those of the same seed's others: margin, seed 1" in text
    assert "training.steps" in text
    assert len(written_report.warnings) == 4


def test_curves_with_different_label_counts_are_interpolated(tmp_path, without_figures):
    folder = made_up(tmp_path / "a", random_curves(2, {"random": 0, "margin": 0.1}))
    path = folder / "margin" / "seed-0" / "rounds.jsonl"
    path.write_text(path.read_text().replace('"labels":30', '"labels":32'))
    found = read_curves(folder)
    assert found.labels.tolist() == [10, 20, 30, 32, 40]
    assert any("differing numbers of labels" in w for w in report(folder).warnings)
