"""The sentences and numbers of a report as text."""

from labelahead.simulation.comparison import report
from labelahead.simulation.comparison.curves import read_curves
from labelahead.simulation.comparison.summary import summarise
from labelahead.simulation.comparison.tables import (
    build_headline,
    format_labels,
    format_p_value,
    format_seconds,
)
from tests.support.comparisons import made_up, random_curves
from tests.support.report_pages import parse_page


def test_headline_names_winning_strategy(tmp_path, without_figures):
    curves = {
        "random": {s: [0.5, 0.6, 0.7, 0.8 + 0.001 * s] for s in (0, 1, 2)},
        "flip": {s: [0.5, 0.7, 0.9, 0.95 + 0.002 * s] for s in (0, 1, 2)},
    }
    written_report = report(made_up(tmp_path / "a", curves))
    # random's mean curve ends at 80.1 %; flip's passes it at 20 + 10·0.101/0.2 = 25.05
    assert written_report.headline == "random needs 40 labels for what flip reaches with 25."
    assert "1.6 times as many (95 % interval 1.6 to 1.6) for 80.1 % test accuracy" in (
        written_report.explanation
    )
    found = parse_page(written_report)
    first = next(i for i, (tag, _) in enumerate(found.tags) if tag == "h1")
    assert "p" not in [tag for tag, a in found.tags[:first] if a.get("class") != "kicker"]
    assert found.text.index(written_report.headline) < found.text.index("Learning curves")


def test_headline_without_winner_says_so(tmp_path, without_figures):
    below = {"random": 0.05, "margin": 0.0, "entropy": 0.01}
    written_report = report(made_up(tmp_path / "a", random_curves(5, below)))
    assert written_report.headline == "No strategy beat random."
    assert "below random" in written_report.explanation
    parse_page(written_report)
    early = {
        "random": {s: [0.5, 0.6, 0.7, 0.8] for s in range(3)},
        "margin": {s: [0.5, 0.7, 0.75, 0.76] for s in range(3)},
    }
    written_report = report(made_up(tmp_path / "b", early))
    assert "but does not reach the 80.0 % that random ends with" in written_report.headline
    parse_page(written_report)


def test_headline_marks_insignificant_lead(tmp_path, without_figures):
    written_report = report(
        made_up(tmp_path / "a", random_curves(3, {"random": 0, "flip": 0.004}, 0.03))
    )
    assert "may be chance" in written_report.explanation or "No strategy" in written_report.headline
    assert any("Only 3 seeds" in w for w in written_report.warnings)


def test_report_formats_p_values_label_counts_and_seconds():
    assert [format_p_value(p) for p in (0.0, 0.00049, 0.0123, 0.5, 1.0)] == [
        "p < 0.001",
        "p < 0.001",
        "p = 0.012",
        "p = 0.50",
        "p = 1.00",
    ]
    assert format_labels(float("inf"), 40) == "> 40"
    assert [format_seconds(v) for v in (None, 0.0, 0.0123, 1.26, 123.4)] == [
        "—",
        "< 0.001",
        "0.012",
        "1.3",
        "123",
    ]


def test_headline_with_equal_label_counts_claims_no_saving(tmp_path):
    curves = {
        "random": {s: [0.5, 0.8, 0.8, 0.8] for s in range(3)},
        "margin": {s: [0.5, 0.8, 0.9, 0.9] for s in range(3)},
    }
    s = summarise(read_curves(made_up(tmp_path / "a", curves)))
    assert "saves no labels" in build_headline(s)[0]
