"""Figures of a study without its page: image files take most of the time of a small study."""

from labelahead.simulation.comparison.plot_style import figure_style
from research.studies.design import Experiment, StudyFigure


def study_figures(experiment: Experiment, settings) -> list[StudyFigure]:
    """Measure every cell, make the figures and check that visible axes have labels.

    The tests of `dynamics`, `lookahead` and others cover the image files and the page.
    """
    rows = [{**c, **r} for c in experiment.cells(settings) for r in experiment.measure(settings, c)]
    with figure_style():
        found = list(experiment.exhibits(settings, rows))
    for exhibit in found:
        assert exhibit.title
        assert exhibit.caption
        assert exhibit.figure is not None or exhibit.table
        assert "None" not in exhibit.caption
        assert "nan" not in exhibit.caption.split()
        for axes in exhibit.figure.axes if exhibit.figure is not None else ():
            if axes.get_visible():
                assert axes.get_xlabel() or axes.get_ylabel() or axes.get_title(loc="left")
    return found
