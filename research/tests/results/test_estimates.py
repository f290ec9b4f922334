"""The table of estimated errors, computed from constructed lines."""

from research.results.estimates import estimates_block, summary
from research.results.lines import EstimateLine, read_csv, write_csv


def make_line(labels, accuracy, error, fall=0.01, strategy="flip"):
    return EstimateLine(
        "toy-exact", strategy, 0, labels, accuracy, error, error - 0.02, error + 0.02, fall
    )


def test_summary_reports_estimation_error_and_forecast(tmp_path):
    rows = [
        make_line(20, 0.1, 0.9),
        make_line(60, 0.90, 0.13),
        make_line(80, 0.93, 0.08),
        make_line(60, 0.8, 0.2, strategy="random"),
    ]
    path = tmp_path / "estimates.csv"
    write_csv(path, EstimateLine, rows)
    table = summary(read_csv(path, EstimateLine))
    assert table[2] == "| toy | random | 0.0 | +0.0 | 100% |"
    assert table[3] == "| toy | flip | 2.0 | +2.0 | 50% |"  # rows with too few labels do not count
    assert table[-1].startswith(
        "The forecast improvement by the next 20 labels was 1.0 points on average, the true one 3.0; "
        "they differ by 2.0"
    )
    assert "| toy | flip | 2.0 | +2.0 | 50% |" in estimates_block(rows)
    assert estimates_block(rows).endswith("· `research/data/estimates.csv`")
    assert estimates_block([]).startswith("Not measured yet: ")
