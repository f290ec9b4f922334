"""Figures of a report: curves, differences from the reference, critical differences."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from labelahead.errors import import_extra
from labelahead.simulation.comparison.plan import Contender
from labelahead.simulation.comparison.plot_style import (
    DASHES,
    DOTS,
    FIGURE_WIDTH_INCHES,
    INK,
    MARKERS,
    PALETTE,
    RenderedFigure,
    figure_style,
    render_figure,
)
from labelahead.simulation.comparison.statistics import ALPHA, Array, t_interval
from labelahead.simulation.comparison.summary import Summary
from labelahead.simulation.measures import ACCURACY, Measure

__all__ = ["critical_figure", "css_colours", "draw_figures", "mark_accuracies"]

MAX_SHADED_BANDS = 3  # contenders whose shaded intervals are still distinguishable


@dataclass(frozen=True)
class Style:
    """How a contender is drawn in every figure."""

    color: str
    marker: str
    dash: Any


def draw_figures(summary: Summary) -> dict[str, RenderedFigure]:
    """Draw all figures of a report, by name."""
    import_extra("matplotlib", "report", "drawing figures")
    styles = _assign_styles(summary)
    with figure_style():
        figures = {"curves": _draw_curves(summary, styles)}
        paired = sum(
            _paired_gap(summary, contender) is not None for contender in summary.contenders
        )
        if paired:
            figures["difference"] = _draw_differences(summary, styles)
        if paired >= MAX_SHADED_BANDS:
            figures["intervals"] = _draw_intervals(summary, styles)
        if summary.ranks is not None:
            figures["critical-difference"] = _draw_critical_difference(summary, styles)
        return {name: render_figure(name, figure) for name, figure in figures.items()}


def css_colours(summary: Summary) -> dict[Contender, str]:
    """Return each contender's colour as a CSS value of the page."""
    names = {light: f"var(--c{i})" for i, (light, _) in enumerate(PALETTE)} | {INK: "currentColor"}
    return {contender: names[style.color] for contender, style in _assign_styles(summary).items()}


def _assign_styles(summary: Summary) -> dict[Contender, Style]:
    """Assign styles in the order of the comparison, so that added strategies change no colour."""
    styles = {summary.reference: Style(INK, "s", DOTS)}
    others = [a for a in summary.curves.comparison.contenders if a != summary.reference]
    colors, markers = cycle(light for light, _ in PALETTE), cycle(MARKERS)
    for i, contender in enumerate(others):
        dash = DASHES[(i + i // len(PALETTE)) % len(DASHES)]
        styles[contender] = Style(next(colors), next(markers), dash)
    return styles


def _new_figure(height: float, title: str, ylabel: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(FIGURE_WIDTH_INCHES, height), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="labels", ylabel=ylabel)
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid()
    return figure, axes


def _draw_line(
    axes: Any,
    labels: Array,
    curves: Array,
    style: Style,
    name: str,
    band: bool,
    *,
    measure: Measure = ACCURACY,
    share: bool = False,
) -> None:
    """Draw the mean, and the 95 % interval as a band. share: values are between 0 and 1."""
    each = [t_interval(column, share=share) for column in curves.T]
    axes.plot(
        labels,
        [measure.scale(e.mean) for e in each],
        color=style.color,
        marker=style.marker,
        ls=style.dash,
        lw=1.8,
        ms=5,
        markevery=max(1, len(labels) // 12),
        label=name,
        zorder=3,
    )
    if band and len(curves) > 1:
        low = [measure.scale(e.low or 0.0) for e in each]
        ends = low, [measure.scale(e.high or 0.0) for e in each]
        axes.fill_between(labels, *ends, color=style.color, alpha=0.16, lw=0, zorder=1)


def _shaded_contenders(summary: Summary) -> set[Contender]:
    """Return the contenders with shaded intervals: more than three would overlap too much."""
    if len(summary.contenders) <= MAX_SHADED_BANDS or summary.best is None:
        return set(summary.contenders)
    return {summary.best.contender, summary.reference}


def _describe_shading(summary: Summary, *, reference: bool = True) -> str:
    """Describe what is shaded."""
    if len(summary.curves.seeds(summary.reference)) < 2:
        return "one seed"
    seeds = "finished" if summary.curves.missing else len(summary.curves.comparison.seeds)
    mean = f"mean of {seeds} seeds; shaded: 95 % interval"
    if len(summary.contenders) <= MAX_SHADED_BANDS or summary.best is None:
        return mean
    return f"{mean} of {summary.best.contender.name}" + (
        f" and {summary.reference.name}" if reference else ""
    )


def _draw_curves(summary: Summary, styles: Mapping[Contender, Style]) -> Any:
    curves, banded = summary.curves, _shaded_contenders(summary)
    measure = curves.measure
    figure, axes = _new_figure(4.6, _describe_shading(summary), measure.axis)
    for row in sorted(summary.rows, key=lambda r: -r.final.mean):
        own = curves.stack(row.contender, curves.seeds(row.contender))
        _draw_line(
            axes,
            curves.labels,
            own,
            styles[row.contender],
            row.contender.name,
            row.contender in banded,
            measure=measure,
            share=measure.is_share,
        )
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0), min(high, 100.5) if measure.is_share else high)
    _mark_saving(axes, summary, styles)
    figure.legend(loc="outside right upper", handlelength=3.2)
    return figure


def _mark_saving(axes: Any, summary: Summary, styles: Mapping[Contender, Style]) -> None:
    """Mark the headline: the labels at which two curves reach one accuracy."""
    best = summary.winner
    if best is None or best.needs[0] is None:
        return
    saving = best.needs[0].saving
    y, bottom = summary.curves.measure.scale(saving.accuracy), axes.get_ylim()[0]
    axes.annotate(
        "",
        (saving.other, y),
        (saving.reference, y),
        zorder=4,
        arrowprops={"arrowstyle": "<->", "color": INK, "lw": 1, "shrinkA": 4, "shrinkB": 0},
    )
    for x, contender in ((saving.other, best.contender), (saving.reference, summary.reference)):
        axes.plot(
            [x, x], [bottom, y], color=styles[contender].color, lw=1, ls=(0, (2, 2)), zorder=2
        )
        axes.annotate(
            f"{contender.name}\n{x:.0f} labels",
            (x, bottom),
            xytext=(-4, 4),
            ha="right",
            fontsize=9,
            textcoords="offset points",
        )
    axes.set_ylim(bottom=bottom)


def _paired_gap(summary: Summary, contender: Contender) -> Array | None:
    """Return the paired differences from the reference (seeds, rounds); None for the reference and
    without pairs.
    """
    common = summary.curves.seeds(contender, summary.reference)
    if contender == summary.reference or not common:
        return None
    return summary.curves.stack(contender, common) - summary.curves.stack(summary.reference, common)


def _draw_differences(summary: Summary, styles: Mapping[Contender, Style]) -> Any:
    """Draw differences as in the look-ahead paper: the reference is the zero line, labelled with its
    accuracy.
    """
    ref = summary.reference.name
    title = _describe_shading(summary, reference=False)
    measure = summary.curves.measure
    figure, axes = _new_figure(4.4, title, _difference_axis(summary))
    curves, labels, banded = summary.curves, summary.curves.labels, _shaded_contenders(summary)
    for row in sorted(summary.rows, key=lambda r: -r.final.mean):
        gap = _paired_gap(summary, row.contender)
        if gap is not None:
            _draw_line(
                axes,
                labels,
                gap,
                styles[row.contender],
                row.contender.name,
                row.contender in banded,
                measure=measure,
            )
    zero = styles[summary.reference]
    axes.axhline(0, color=zero.color, ls=zero.dash, lw=1.6, zorder=2, label=ref)
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.12 * (high - low), high)
    reference = curves.stack(summary.reference, curves.seeds(summary.reference)).mean(0)
    mark_accuracies(axes, labels, reference, ref, measure=measure)
    figure.legend(loc="outside right upper", handlelength=3.2)
    return figure


def _difference_axis(summary: Summary) -> str:
    """Return the label of an axis with differences from the reference."""
    measure = summary.curves.measure
    unit = "points" if measure.is_share else measure.unit
    return f"difference from {summary.reference.name}" + (f", {unit}" if unit else "")


def mark_accuracies(
    axes: Any,
    labels: Array,
    mean: Array,
    name: str = "",
    max_marks: int = 11,
    measure: Measure = ACCURACY,
) -> None:
    """Write the reference's accuracy along the bottom, at no more than `most` positions.

    The name is written above the first one.
    """
    step = max(1, -(-len(labels) // max_marks))
    for i, (x, y) in enumerate(list(zip(labels, mean, strict=True))[::step]):
        word = f"{name}\n" if name and i == 0 else ""
        axes.annotate(
            f"{word}{measure.format_plain(float(y))}",
            (x, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=8,
            ha="center",
            va="bottom",
            zorder=5,
        )


def _draw_intervals(summary: Summary, styles: Mapping[Contender, Style]) -> Any:
    """Draw a panel per strategy: its difference from the reference with the interval."""
    from matplotlib.figure import Figure

    gaps = {row.contender: _paired_gap(summary, row.contender) for row in summary.rows}
    shown = [(contender, gap) for contender, gap in gaps.items() if gap is not None]
    columns = 3 if len(shown) <= 6 and len(shown) != 4 else 4 if len(shown) <= 12 else 5
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(FIGURE_WIDTH_INCHES, 0.5 + 1.9 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (contender, gap) in zip(panels, shown, strict=False):
        _draw_line(
            axes,
            summary.curves.labels,
            gap,
            styles[contender],
            contender.name,
            True,
            measure=summary.curves.measure,
        )
        axes.axhline(0, color=INK, ls=styles[summary.reference].dash, lw=1.2, zorder=2)
        axes.set_title(contender.name, loc="left", fontsize=10)
        axes.grid()
    for i, axes in enumerate(panels):
        axes.set_visible(i < len(shown))
        axes.tick_params(labelbottom=i + columns >= len(shown))  # the lowest of each column
    figure.supxlabel("labels", fontsize=10)
    figure.supylabel(_difference_axis(summary), fontsize=10)
    return figure


def _draw_critical_difference(summary: Summary, styles: Mapping[Contender, Style]) -> Any:
    ranks = summary.ranks
    assert ranks is not None
    colors = {a.name: styles[a].color for a in ranks.contenders}
    return critical_figure(colors, ranks.mean, ranks.p, ranks.critical)


def critical_figure(colors: Mapping[str, str], mean: Array, p: Array, critical: float) -> Any:
    """Draw mean ranks; a bar joins strategies that do not differ significantly by Nemenyi's test.

    Args:
        colors: Of each strategy, in the order of mean and p.
        mean: Mean ranks.
        p: p-values of all pairs.
        critical: The critical difference.
    """
    from matplotlib.figure import Figure

    posthocs = import_extra("scikit_posthocs", "report", "the critical-difference diagram")
    frames = import_extra("pandas", "report", "the critical-difference diagram")
    names = list(colors)
    figure = Figure(figsize=(FIGURE_WIDTH_INCHES, 1.5 + 0.22 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.spines["top"].set_visible(True)
    drawn = posthocs.critical_difference_diagram(
        dict(zip(names, mean.tolist(), strict=True)),
        frames.DataFrame(p, index=names, columns=names),
        alpha=ALPHA,
        ax=axes,
        crossbar_props={"color": INK, "linewidth": 3.5, "alpha": 0.75},
        label_fmt_left="{label}  {rank:.1f} ",
        label_fmt_right=" {rank:.1f}  {label}",
        color_palette=dict(colors),
        text_h_margin=0.15,
    )
    for text in drawn["labels"]:
        text.set_color(INK)
    axes.set_xlim(0.9, len(names) + 0.1)
    axes.set_xticks(range(1, len(names) + 1))
    if critical <= len(names) - 1:
        axes.plot([1, 1 + critical], [1.6, 1.6], color=INK, lw=1.5, marker="|")
        axes.text(1 + critical / 2, 1.75, "critical difference", ha="center", fontsize=9)
    return figure
