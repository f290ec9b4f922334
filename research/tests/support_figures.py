"""A study's exhibits without its page: pictures take most of the time of a small study."""

from labelahead.simulation.comparison.plot_style import figure_style
from research.studies.design import Experiment, StudyFigure


def study_figures(experiment: Experiment, settings) -> list[StudyFigure]:
    """Every cell measured, and what all rows show; each panel that is seen says what it shows.

    That exhibits become files and a page is tested with `dynamics`, `lookahead` and others.
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
