"""The figures of a report."""

from labelahead.simulation.comparison import report
from labelahead.simulation.comparison.curves import read_curves
from labelahead.simulation.comparison.figures import (
    _assign_styles,
    _draw_critical_difference,
    _draw_curves,
    _draw_differences,
    _draw_intervals,
)
from labelahead.simulation.comparison.summary import summarise
from labelahead.strategies import STRATEGIES
from tests.support.comparisons import made_up, random_curves
from tests.support.report_pages import parse_page


def test_contender_styles_are_distinct(tmp_path, without_figures):
    many = dict.fromkeys([*STRATEGIES][:11], 0.0) | {"flip:top": 0.0, "mlmoc:greedy": 0.0}
    folder = made_up(tmp_path / "a", random_curves(2, many, 0.05))
    s = summarise(read_curves(folder))
    styles = _assign_styles(s)
    looks = [(v.color, v.marker, str(v.dash)) for v in styles.values()]
    assert len(set(looks)) == len(looks) == len(many)
    for draw in (_draw_curves, _draw_differences, _draw_intervals, _draw_critical_difference):
        draw(s, styles)
    parse_page(report(folder))
