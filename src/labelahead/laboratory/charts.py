"""The lines and bands that the figures of all experiments are made of."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labelahead.laboratory.experiment import Row
from labelahead.study.drawing import DASHES, INK, MARKERS, PALETTE, WIDE
from labelahead.study.statistics import Estimate, t_interval

__all__ = ["close_up", "line", "means", "panels", "reference", "span"]


def panels(
    count: int = 1, *, height: float = 3.4, share_y: bool = False, columns: int = 3
) -> tuple[Any, list[Any]]:
    """A figure with so many panels side by side."""
    from matplotlib.figure import Figure

    across = min(count, columns)
    down = -(-count // across)
    figure = Figure(figsize=(WIDE, height * down), layout="constrained")
    found = figure.subplots(down, across, squeeze=False, sharey=share_y).ravel().tolist()
    for axes in found[count:]:
        axes.set_visible(False)
    for axes in found[:count]:
        axes.grid()
    return figure, found[:count]


def means(
    rows: Sequence[Row], x: str, y: str | Callable[[Row], float]
) -> tuple[list[Any], list[Estimate]]:
    """The mean of y with its interval at every value of x, in order; one row a seed."""
    at = sorted({r[x] for r in rows})
    value = y if callable(y) else (lambda r: r[y])
    found = [t_interval(np.array([value(r) for r in rows if r[x] == v], float)) for v in at]
    return at, found


def line(
    axes: Any,
    x: Sequence[Any],
    found: Sequence[Estimate],
    number: int,
    label: str,
    band: bool = True,
) -> None:
    """Means as a line in the style of that number, intervals as a band."""
    color = PALETTE[number % len(PALETTE)][0]
    axes.plot(
        x, [e.mean for e in found], color=color, marker=MARKERS[number % len(MARKERS)], ms=5,
        ls=DASHES[(number + number // len(PALETTE)) % len(DASHES)], lw=1.8, label=label, zorder=3,
    )  # fmt: skip
    if band and all(e.low is not None for e in found):
        low, high = [e.low or 0.0 for e in found], [e.high or 0.0 for e in found]
        axes.fill_between(x, low, high, color=color, alpha=0.15, lw=0, zorder=1)


def close_up(axes: Any, *, least: float = 3.0, low: float = -np.inf, high: float = np.inf) -> None:
    """The y axis around the lines: a band over few seeds may be far wider than what matters."""
    drawn = np.concatenate([np.asarray(li.get_ydata(), float) for li in axes.get_lines()])
    drawn = drawn[np.isfinite(drawn)]
    pad = max(least, 0.4 * (drawn.max() - drawn.min()))
    axes.set_ylim(max(low, drawn.min() - pad), min(high, drawn.max() + pad))


def reference(axes: Any, y: float, label: str = "") -> None:
    """A horizontal line to compare with."""
    axes.axhline(y, color=INK, ls=(0, (1, 1.2)), lw=1.4, zorder=2, label=label or None)


def span(found: Estimate, digits: int = 2) -> str:
    """A mean with its interval, in words."""
    text = f"{found.mean:.{digits}f}"
    if found.low is not None and found.high is not None:
        text += f" [{found.low:.{digits}f}, {found.high:.{digits}f}]"
    return text.replace("-", "−")
