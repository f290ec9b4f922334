"""What an experiment is: settings, measurements that stand alone, and what they show.

An experiment is cut into cells. Each is measured by itself and recorded at once, so that the work
can be spread over processes, interrupted and taken up again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Cell", "Experiment", "Row", "StudyFigure", "values", "where"]

Cell = Mapping[str, Any]  # which measurement: names and JSON values
Row = Mapping[str, Any]  # what came of it: names and JSON values


@dataclass(frozen=True, eq=False)
class StudyFigure:
    """A figure or a table of the page, with what it shows in words.

    caption: what was done and what is seen; it says so where this differs from the papers.
    figure: of matplotlib. table: rows with the same keys, also written as NAME.csv.

    >>> StudyFigure("rows", "Two rows", "what is seen in them", table=[{"n": 1}, {"n": 2}]).title
    'Two rows'
    """

    name: str
    title: str
    caption: str
    figure: Any = None
    table: Sequence[Row] = ()
    alt: str = ""  # the figure in words, for those who cannot see it


@dataclass(frozen=True)
class Experiment:
    """One of `EXPERIMENTS`.

    settings: a frozen dataclass whose defaults are the small scale. cells: all measurements that
    the settings ask for. measure: one of them; called in a process of its own, so it depends on
    its arguments alone. exhibits: what all rows together show; a row carries its cell's values.
    alone: cells measure time, so that only one may run at a time.

    >>> isinstance(EXPERIMENTS["linear"], Experiment), EXPERIMENTS["wallclock"].alone
    (True, True)
    """

    name: str
    title: str
    question: str
    settings: type[Any]
    cells: Callable[[Any], Sequence[Cell]]
    measure: Callable[[Any, Cell], Sequence[Row]]
    exhibits: Callable[[Any, Sequence[Row]], Sequence[StudyFigure]] = field(repr=False)
    alone: bool = False


def where(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows with these values."""
    return [r for r in rows if all(r.get(k) == v for k, v in wanted.items())]


def values(rows: Sequence[Row], name: str) -> list[Any]:
    """Every value of a column once, in order."""
    return sorted({r[name] for r in rows})
