"""Display of campaigns: learning curves in the terminal and as images, and tables."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from labelahead.learner.stopping import ErrorReading, stop_advice
from labelahead.simulation.measures import ACCURACY, Measure, find_error_measure, list_measures
from labelahead.simulation.paired import PairedResult, labels_to_reach
from labelahead.simulation.store import Round

__all__ = [
    "Curve",
    "PairProgress",
    "ProgressText",
    "ShownMeasures",
    "build_comparison_table",
    "build_pairs_table",
    "build_rounds_table",
    "show_campaign",
    "summarize_comparison",
    "summarize_ratio",
    "write_curve_png",
]


ENCODING_STAGE = "features"  # of the progress of an encoder
MIN_RATE_SECONDS = 1.0  # of an activity before its speed is shown
Curve = tuple[str, Sequence[Round]]  # name of the strategy, and its rounds


@dataclass(frozen=True)
class ShownMeasures:
    """What the rounds of a campaign are shown by.

    Attributes:
        main: The measure of curves and comparisons.
        error: What is estimated without test labels.
        others: Further columns of the table of rounds.
    """

    main: Measure = ACCURACY
    error: Measure = ACCURACY
    others: tuple[Measure, ...] = ()

    @classmethod
    def of_task(cls, task: str, unit: str = "") -> "ShownMeasures":
        """Return the measures of a task by its name."""
        main, *others = list_measures(task, unit)
        return cls(main, find_error_measure(task, unit), tuple(others))


ONE_CLASS = ShownMeasures()


class CampaignDisplay:
    """Show a campaign: on a terminal a growing curve, elsewhere one line per round."""

    def __init__(
        self,
        console: Console,
        total: int,
        title: str,
        live: Live | None,
        name: str = "",
        baseline: Curve | None = None,
        measures: ShownMeasures = ONE_CLASS,
    ) -> None:
        self.console, self.total, self.title, self.name = console, total, title, name
        self.measures = measures
        self._live, self._rounds, self._activity, self._baseline = live, list[Round](), "", baseline
        self._has_advised = False
        self._progress = ProgressText()

    def progress(self, what: str, done: int, total: int) -> None:
        """Show the current activity."""
        self._activity = self._progress.describe(what, done, total)
        if self._live is None and what == ENCODING_STAGE and self._progress.is_next_tenth:
            self.console.print(self._activity, highlight=False, markup=False)
        self._draw()

    def round(self, entry: Round) -> None:
        """Show a finished round."""
        self._rounds.append(entry)
        if self._live is None:
            line = f"{self.name} {_format_round(entry, self.measures)}"
            self.console.print(line.lstrip(), highlight=False)
        for note in entry.notes:
            self.console.print(f"  round {entry.number}: {note}", style="yellow", markup=False)
        readings = [
            ErrorReading(r.labels, r.error, r.error_low, r.error_high, r.fall) for r in self._rounds
        ]
        # The conditions of the advice were measured for one class per item.
        silent = self._has_advised or entry.asked == 0 or self.measures.error != ACCURACY
        advice = None if silent else stop_advice(readings)
        if advice:
            self._has_advised = True
            self.console.print(f"  advice at {entry.labels} labels: {advice}", style="cyan")
        self._draw()

    def _draw(self) -> None:
        if self._live is None:
            return
        parts: list[Any] = []
        main = self.measures.main
        if any(main.read(r) is not None for r in self._rounds):
            width = max(40, min(self.console.width, 90))
            curves = [(self.name, self._rounds), *([self._baseline] if self._baseline else [])]
            picture = draw_curve_text(curves, self.total, self.title, width, main)
            parts.append(Text.from_ansi(picture))
        if self._rounds:
            parts.append(Text(_format_round(self._rounds[-1], self.measures)))
        parts.append(Text(self._activity, style="dim"))
        self._live.update(Group(*parts))


@contextmanager
def show_campaign(
    console: Console,
    total: int,
    title: str,
    name: str = "",
    baseline: Curve | None = None,
    measures: ShownMeasures = ONE_CLASS,
) -> Iterator[CampaignDisplay]:
    """Show a campaign while it runs; the last state stays on the screen.

    Args:
        console: Where to print.
        total: Budget of labels.
        title: Title of the curve.
        name: Name of the strategy, if a second curve is drawn.
        baseline: A second curve to draw.
        measures: What the rounds are shown by.
    """
    if not console.is_terminal:
        yield CampaignDisplay(console, total, title, None, name, baseline, measures)
        return
    with Live(console=console, refresh_per_second=4) as live:
        shown = CampaignDisplay(console, total, title, live, name, baseline, measures)
        yield shown
        shown._activity = ""
        shown._draw()


class ProgressText:
    """Describe an activity in words, with items per second and its end if it takes long.

    Attributes:
        is_next_tenth: Whether the last call reached a further tenth, for output without a terminal.
    """

    def __init__(self) -> None:
        self.is_next_tenth = False
        self._stage = ""
        self._began = 0.0
        self._first = 0
        self._tenth = 0

    def describe(self, what: str, done: int, total: int) -> str:
        """Return for example "features 640/10000, 85 per second, done at 13:12:05"."""
        now = time.monotonic()
        if what != self._stage or done < self._first:  # items found in a cache come first, at once
            self._stage, self._began, self._first, self._tenth = what, now, done, 0
        tenth = 10 * done // max(1, total)
        self.is_next_tenth = total > 1 and tenth > self._tenth
        self._tenth = max(self._tenth, tenth)
        if total <= 1:
            return what
        text, seconds = f"{what} {done}/{total}", now - self._began
        if seconds < MIN_RATE_SECONDS or done == self._first:
            return text
        rate = (done - self._first) / seconds
        text += f", {rate:.3g} per second"
        if done == total:
            return text
        end = datetime.now().astimezone() + timedelta(seconds=(total - done) / rate)
        return f"{text}, done at {end:%H:%M:%S}"


def _format_round(r: Round, measures: ShownMeasures) -> str:
    main, value = measures.main, measures.main.read(r)
    right = "" if value is None else f"   test {main.title} {_format_value(value, main):>6}"
    estimate = _format_estimate(r, measures.error)
    what = "" if measures.error == main else f"{measures.error.title} "
    guess = "" if r.error is None else f"   estimated {what}{estimate}"
    drift = "" if r.drift is None else f"   drift {r.drift:4.0%}"
    took = sum(r.seconds.values())
    return f"round {r.number:3d}   {r.labels:5d} labels{right}{guess}{drift}   {took:5.1f} s"


def _format_value(value: float, measure: Measure) -> str:
    """Format a value of a measure, with its unit."""
    return f"{value:.1%}" if measure.is_share else measure.format(measure.restore(value))


def _format_estimate(r: Round, measure: Measure) -> str:
    """Format the estimate of a round with its interval; empty if there is none."""
    found = measure.estimate(r)
    if found is None:
        return ""
    value, low, high = (_format_value(v, measure) for v in found)
    return f"{value} ({low} to {high})"


def _read_scaled(r: Round, measure: Measure) -> float:
    """Return the value of a round as people see it: in per cent, or in its unit."""
    return measure.scale(measure.score(r) or 0.0)


def draw_curve_text(
    curves: Sequence[Curve], total: int, title: str, width: int = 70, measure: Measure = ACCURACY
) -> str:
    """Draw a measure over labels of each curve with characters."""
    import plotext as plt

    plt.clear_figure()
    plt.theme("clear")
    plt.plot_size(width, 16)
    values, labels = list[float](), list[int]()
    for (name, rounds), marker in zip(curves, ("braille", "dot"), strict=False):
        known = [r for r in rounds if measure.read(r) is not None]
        values += [_read_scaled(r, measure) for r in known]
        labels += [r.labels for r in known]
        plt.plot(labels[-len(known) :], values[-len(known) :], marker=marker, label=name or None)
    plt.xlim(min(labels), max(total, min(labels) + 1))
    if measure.is_share:
        plt.ylim(max(0.0, min(values) - 5), min(100.0, max(values) + 5))
    plt.title(title)
    plt.xlabel("labels")
    plt.ylabel(measure.axis)
    return str(plt.build())


def write_curve_png(
    rounds: Sequence[Round],
    path: Path,
    title: str,
    baseline: Curve | None = None,
    name: str | None = None,
    measure: Measure = ACCURACY,
) -> Path:
    """Write a measure over labels as an image.

    Args:
        rounds: Rounds of the campaign.
        path: Output file.
        title: Title of the figure.
        baseline: A second curve to draw.
        name: Name of the first curve, for the legend.
        measure: What is drawn.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    known = [r for r in rounds if measure.read(r) is not None]
    figure, axes = pyplot.subplots(figsize=(6.4, 4), dpi=150, layout="constrained")
    values = [_read_scaled(r, measure) for r in known]
    axes.plot([r.labels for r in known], values, "o-", ms=4, label=name)
    if baseline is not None:
        name, others = baseline
        at, right = [r.labels for r in others], [_read_scaled(r, measure) for r in others]
        axes.plot(at, right, "s--", ms=3, color="tab:orange", label=name)
    estimates = [(r.labels, found) for r in rounds if (found := measure.estimate(r)) is not None]
    if estimates:
        at = [labels for labels, _ in estimates]
        factor = 100 if measure.is_share else 1
        right, low, high = ([factor * row[i] for _, row in estimates] for i in range(3))
        axes.plot(at, right, ":", color="grey", label="estimated for the pool, without test labels")
        axes.fill_between(at, low, high, color="grey", alpha=0.15, linewidth=0)
    if estimates or baseline is not None:
        axes.legend(frameon=False, fontsize=8)
    axes.set(xlabel="labels", ylabel=measure.axis)
    axes.set_title(title, parse_math=False)  # a name may contain dollar signs
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    pyplot.close(figure)
    return path


def build_comparison_table(
    strategy_result: Curve, baseline: Curve, measure: Measure = ACCURACY
) -> Table:
    """Build a table of the results of two campaigns, one row per number of labels."""
    columns = [
        {r.labels: measure.score(r) or 0.0 for r in rounds}
        for _, rounds in (strategy_result, baseline)
    ]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("labels", strategy_result[0], baseline[0]):
        table.add_column(name, justify="right", min_width=9)
    for labels in sorted({*columns[0], *columns[1]}):
        table.add_row(
            str(labels), *(measure.format(c[labels]) if labels in c else "" for c in columns)
        )
    return table


def summarize_comparison(
    strategy_result: Curve, baseline: Curve, measure: Measure = ACCURACY
) -> str:
    """Report how many labels the baseline needed for the final result of the first campaign."""
    (name, rounds), (other, baseline_rounds) = strategy_result, baseline
    goal = measure.score(rounds[-1]) or 0.0
    first, then = (labels_to_reach(of, goal, measure) for of in (rounds, baseline_rounds))
    reached = _format_value(measure.restore(goal), measure)
    sentence = f"test {measure.title} {reached}: {name} needed {first} labels; "
    if then is None:
        last = _format_value(measure.read(baseline_rounds[-1]) or 0.0, measure)
        return sentence + (
            f"{other} did not reach it with {baseline_rounds[-1].labels} labels ({last})."
        )
    return sentence + f"{other} needed {then} labels."


class PairProgress:
    """Show which of several campaigns is running, and when the last one will finish."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began = time.monotonic()

    def campaign(self, done: int, total: int, seed: int, strategy: str) -> None:
        """Show that `done` of `total` campaigns are finished and which one comes next."""
        if done == total:
            return
        line = f"campaign {done + 1} of {total}: {strategy}, seed {seed}"
        if done:
            left = (time.monotonic() - self._began) / done * (total - done)
            end = datetime.now().astimezone() + timedelta(seconds=left)
            line += f"   (about {left:.0f} s left, until {end:%H:%M})"
        self.console.print(line, highlight=False, markup=False)


def build_pairs_table(result: PairedResult) -> Table:
    """Build a table of the labels that the strategy and its baseline needed, one row per seed."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    measure = result.measure
    for name in ("seed", f"test {measure.title}", result.strategy, result.baseline, "ratio"):
        table.add_column(name, justify="right", min_width=6)
    for pair in result.pairs:
        needed, mark = (pair.tried, ">") if pair.baseline is None else (pair.baseline, "")
        ratio = f"{mark}{needed / pair.strategy:.2f}"
        reached = _format_value(pair.accuracy, measure)
        table.add_row(str(pair.seed), reached, str(pair.strategy), f"{mark}{needed}", ratio)
    return table


def summarize_ratio(result: PairedResult) -> str:
    """Describe the ratio of labels over all seeds, with its interval."""
    found = result.ratio
    least = "at least " if found.at_least else ""
    sentence = (
        f"{result.baseline} needed {least}{found.ratio:.2f} times as many labels as "
        f"{result.strategy}"
    )
    if found.low is None or found.high is None:
        return f"{sentence} with one seed; use --seeds 3 or more for an interval."
    sentence += f" (95 % interval {found.low:.2f} to {found.high:.2f}, {found.seeds} seeds)"
    if found.low <= 1 <= found.high:
        sentence += ": no significant difference"
    if found.at_least:
        sentence += (
            f"; for {found.at_least} of them the baseline was stopped before it was as accurate"
        )
    return sentence + "."


def build_rounds_table(rounds: Sequence[Round], measures: ShownMeasures = ONE_CLASS) -> Table:
    """Build a table of all rounds, one row each.

    With several measures only these and the estimate are shown, in 80 columns.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    main, error = measures.main, measures.error
    estimated = "estimated" if error == main else f"estimated {error.heading}"
    others = [other for other in measures.others if any(other.read(r) is not None for r in rounds)]
    first = main.heading if others else main.title
    tested = [f"test {first}", *(other.heading for other in others)]
    last = () if others else ("best gain", "drift", "seconds")
    for name in (*(() if others else ("round",)), "labels", *tested, estimated, *last):
        table.add_column(name, justify="right")
    for r in rounds:
        values = [(m, m.read(r)) for m in (main, *others)]
        details = (
            "—" if r.gain is None else f"{r.gain:.3g}",
            "—" if r.drift is None else f"{r.drift:.0%}",
            f"{sum(r.seconds.values()):.1f}",
        )
        table.add_row(
            *(() if others else (str(r.number),)),
            str(r.labels),
            *("—" if value is None else _format_value(value, m) for m, value in values),
            _format_estimate(r, error) or "—",
            *(() if others else details),
        )
    return table
