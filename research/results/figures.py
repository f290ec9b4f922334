"""The figures of docs/results.md: differences from random, and the critical-difference diagram."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from labelahead.simulation.comparison.figures import critical_figure, mark_accuracies
from labelahead.simulation.comparison.plot_style import (
    DASHES,
    DOTS,
    FIGURE_WIDTH_INCHES,
    GRID,
    INK,
    MARKERS,
    PALETTE,
    RenderedFigure,
    figure_style,
    render_figure,
)
from labelahead.simulation.comparison.statistics import Array, t_interval
from research.results.numbers import DEFAULT, RANDOM, Curves, Numbers, Ranking

COLOURED = 8  # lines that can be told apart; the others are grey
PLAIN = (RANDOM, DEFAULT)


def table_figure(name: str, variants: Mapping[str, Numbers]) -> RenderedFigure:
    """A panel for each variant: every strategy minus random, the best ones in colour."""
    from matplotlib.figure import Figure

    shown = _choose_coloured(list(variants.values()))
    with figure_style():
        columns = 1 if len(variants) == 1 else 2 if len(variants) in (2, 4) else 3
        lines = -(-len(variants) // columns)
        size = (
            (FIGURE_WIDTH_INCHES, 4.4) if columns == 1 else (FIGURE_WIDTH_INCHES, 0.8 + 2.7 * lines)
        )
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(lines, columns, sharey=True, squeeze=False).ravel()
        for axes, (variant, numbers) in zip(panels, variants.items(), strict=False):
            _panel(axes, numbers, shown, small=columns > 1)
            axes.set_title(variant or _title(numbers), loc="left", fontsize=10)
            axes.set_xlabel("labels" if columns == 1 else f"labels (above: {RANDOM}’s accuracy)")
        _accuracies(panels, list(variants.values()), 5 if columns > 1 else 11)
        for axes in panels[len(variants) :]:
            axes.set_visible(False)
        for axes in panels[::columns]:
            minus = all(RANDOM in n.curves.accuracy for n in variants.values())
            axes.set_ylabel(f"difference from {RANDOM}, points" if minus else "test accuracy, %")
        handles: dict[str, Any] = {}
        for axes in panels:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        names = [n for n in (*shown, RANDOM, "the others") if n in handles]
        figure.legend(
            [handles[n] for n in names], names, loc="outside right upper", handlelength=3.2
        )
        return render_figure(name, figure)


def critical(name: str, ranking: Ranking) -> RenderedFigure:
    """Mean ranks over tables, as in a comparison's own report."""
    best = [n for n in ranking.names if n not in PLAIN][: COLOURED - 1]
    colours = _colours([*[n for n in ranking.names if n == DEFAULT], *best])
    every = {n: colours.get(n, INK if n == RANDOM else "#8b929c") for n in ranking.names}
    with figure_style():
        return render_figure(
            name, critical_figure(every, ranking.mean, ranking.p, ranking.critical)
        )


def _choose_coloured(numbers: Sequence[Numbers]) -> list[str]:
    """The default and the best of the others, by the mean rank over the variants."""
    places: dict[str, list[int]] = {}
    for n in numbers:
        for place, row in enumerate(n.rows):
            places.setdefault(row.name, []).append(place)
    others = [n for n in sorted(places, key=lambda n: np.mean(places[n])) if n not in PLAIN]
    own = [DEFAULT] if DEFAULT in places else []
    chosen = own + others[: COLOURED - len(own)]
    return sorted(chosen, key=lambda n: np.mean(places[n]))


def _colours(names: Sequence[str]) -> dict[str, str]:
    return dict(zip(names, cycle(light for light, _ in PALETTE), strict=False))


def _title(numbers: Numbers) -> str:
    seeds = len(numbers.curves.seeds(numbers.rows[0].name))
    band = f"; shaded: 95 % interval of {DEFAULT}" if DEFAULT in numbers.curves.accuracy else ""
    return f"mean of {seeds} seeds{band}" if seeds > 1 else "one seed"


def _panel(axes: Any, numbers: Numbers, shown: Sequence[str], *, small: bool) -> None:
    curves = numbers.curves
    minus = RANDOM in curves.accuracy
    axes.grid()
    # The default keeps its colour, whatever its place; the others take theirs in order.
    order = [n for n in shown if n == DEFAULT] + [n for n in shown if n != DEFAULT]
    colours, markers = _colours(order), dict(zip(order, cycle(MARKERS), strict=False))
    dashes = dict(zip(order, cycle(DASHES), strict=False))
    label = "the others"
    for row in numbers.rows:
        if minus and row.name == RANDOM:
            continue
        values = _values(curves, row.name, minus)
        if values is None:
            continue
        if row.name not in shown:
            axes.plot(curves.labels, values.mean(0), color=GRID, lw=0.9, zorder=1, label=label)
            label = "_" + label.lstrip("_")
            continue
        axes.plot(
            curves.labels,
            values.mean(0),
            color=colours[row.name],
            marker=markers[row.name],
            ls=dashes[row.name],
            lw=2.4 if row.name == DEFAULT else 1.5,
            ms=4 if small else 5,
            markevery=max(1, len(curves.labels) // 10),
            label=row.name,
            zorder=4 if row.name == DEFAULT else 3,
        )
        if row.name == DEFAULT and len(values) > 1:
            each = [t_interval(column) for column in values.T]
            low, high = ([getattr(e, end) for e in each] for end in ("low", "high"))
            axes.fill_between(
                curves.labels, low, high, color=colours[row.name], alpha=0.16, lw=0, zorder=2
            )
    if minus:
        axes.axhline(0, color=INK, ls=DOTS, lw=1.6, zorder=2, label=RANDOM)


def _values(curves: Curves, name: str, minus: bool) -> Array | None:
    """(seeds, rounds) in points: minus random where there is one; None without a pair."""
    seeds = curves.seeds(name, RANDOM) if minus else curves.seeds(name)
    if not seeds:
        return None
    own = curves.stack(name, seeds)
    return 100 * (own - curves.stack(RANDOM, seeds) if minus else own)


def _accuracies(panels: Sequence[Any], variants: Sequence[Numbers], most: int) -> None:
    """Random's accuracy in figures along the bottom, as the look-ahead paper has it."""
    low, high = panels[0].get_ylim()  # shared by all panels
    panels[0].set_ylim(low - 0.12 * (high - low), high)
    for axes, numbers in zip(panels, variants, strict=False):
        curves = numbers.curves
        if RANDOM not in curves.accuracy:
            continue
        mean = curves.stack(RANDOM, curves.seeds(RANDOM)).mean(0)
        mark_accuracies(axes, curves.labels, mean, RANDOM if len(variants) == 1 else "", most)
