"""What the exhibits of all experiments are made of: means over seeds, slopes, lines and bands."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labelahead.simulation.comparison.plot_style import (
    DASHES,
    DOTS,
    FIGURE_WIDTH_INCHES,
    INK,
    MARKERS,
    PALETTE,
)
from labelahead.simulation.comparison.statistics import Estimate, t_interval
from research.studies.design import Row, values, where

__all__ = [
    "close_up",
    "heading",
    "legend_below",
    "line",
    "mean",
    "means",
    "over_seeds",
    "panels",
    "reference",
    "slopes",
    "span",
    "style",
    "sure",
    "ticks",
]

Value = str | Callable[[Row], float]  # a column, or what is made of a row


def _each(rows: Sequence[Row], value: Value) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([value(r) if callable(value) else r[value] for r in rows], float)


def mean(rows: Sequence[Row], value: Value) -> float:
    """Over all rows."""
    return float(np.mean(_each(rows, value)))


def over_seeds(rows: Sequence[Row], value: Value) -> Estimate:
    """The mean with its interval; one row a seed."""
    return t_interval(_each(rows, value))


def means(rows: Sequence[Row], x: str, y: Value) -> tuple[list[Any], list[Estimate]]:
    """The mean of y with its interval at every value of x, in order; one row a seed."""
    at = values(rows, x)
    return at, [over_seeds(where(rows, **{x: v}), y) for v in at]


def slopes(rows: Sequence[Row], x: str, y: str) -> list[float]:
    """The exponent of y in x by least squares on logarithms, for each seed alone; none for a single
    x.

    What one seed gives shares its items, so that only seeds are independent.
    """
    if len(values(rows, x)) < 2:
        return []
    each = [where(rows, seed=seed) for seed in values(rows, "seed")]
    return [float(np.polyfit(np.log(_each(own, x)), np.log(_each(own, y)), 1)[0]) for own in each]


def span(estimate: Estimate, digits: int = 2) -> str:
    """A mean with its interval, in words."""
    text = f"{estimate.mean:z.{digits}f}"  # no signed zero: its sign differs between machines
    if estimate.low is not None and estimate.high is not None:
        text += f" [{estimate.low:z.{digits}f}, {estimate.high:z.{digits}f}]"
    return text.replace("-", "−")


def sure(estimate: Estimate) -> bool:
    """Whether the interval leaves zero out."""
    return (
        estimate.low is not None and estimate.high is not None and estimate.low * estimate.high > 0
    )


def panels(
    count: int = 1, *, height: float = 3.4, share_y: bool = False, columns: int = 3
) -> tuple[Any, list[Any]]:
    """A figure with so many panels side by side."""
    from matplotlib.figure import Figure

    across = min(count, columns)
    down = -(-count // across)
    figure = Figure(figsize=(FIGURE_WIDTH_INCHES, height * down), layout="constrained")
    every = figure.subplots(down, across, squeeze=False, sharey=share_y).ravel().tolist()
    for axes in every[count:]:
        axes.set_visible(False)
    for axes in every[:count]:
        axes.grid()
    return figure, every[:count]


def style(number: int) -> dict[str, str]:
    """Colour and marker of what is drawn as that number."""
    return {"color": PALETTE[number % len(PALETTE)][0], "marker": MARKERS[number % len(MARKERS)]}


def line(
    axes: Any, x: Sequence[Any], y: Sequence[Estimate], number: int, label: str, band: bool = True
) -> None:
    """Means as a line in the style of that number, intervals as a band."""
    dash = DASHES[(number + number // len(PALETTE)) % len(DASHES)]
    axes.plot(x, [e.mean for e in y], **style(number), ms=5, ls=dash, lw=1.8, label=label, zorder=3)
    if band and all(e.low is not None for e in y):
        low, high = [e.low or 0.0 for e in y], [e.high or 0.0 for e in y]
        axes.fill_between(x, low, high, color=style(number)["color"], alpha=0.15, lw=0, zorder=1)


def reference(axes: Any, y: float, label: str = "") -> None:
    """A horizontal line to compare with."""
    axes.axhline(y, color=INK, ls=DOTS, lw=1.4, zorder=2, label=label or None)


def heading(axes: Any, text: str) -> None:
    """What a panel shows, above it."""
    axes.set_title(text, loc="left", fontsize=10)


def ticks(axes: Any, at: Sequence[Any]) -> None:
    """Marks on the x axis at these numbers alone."""
    axes.set_xticks(at, [f"{v:g}" for v in at])
    axes.minorticks_off()


def legend_below(figure: Any, axes: Any, columns: int, **more: Any) -> None:
    """One legend for all panels: that of the one given."""
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, **more
    )


def close_up(axes: Any, *, least: float = 3.0, low: float = -np.inf, high: float = np.inf) -> None:
    """The y axis around the lines: a band over few seeds may be far wider than what matters."""
    drawn = np.concatenate([np.asarray(li.get_ydata(), float) for li in axes.get_lines()])
    drawn = drawn[np.isfinite(drawn)]
    pad = max(least, 0.4 * (drawn.max() - drawn.min()))
    axes.set_ylim(max(low, drawn.min() - pad), min(high, drawn.max() + pad))
