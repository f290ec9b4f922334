"""Fixtures of the tests of reports."""

import pytest

from labelahead.simulation.comparison.plot_style import RenderedFigure


@pytest.fixture
def without_figures(monkeypatch):
    """Replace the figures, which take most of the time, for tests of numbers and text."""
    one = RenderedFigure("curves", b"png", b"svg", "<svg></svg>")
    monkeypatch.setattr(
        "labelahead.simulation.comparison.report_page.draw_figures", lambda s: {"curves": one}
    )
