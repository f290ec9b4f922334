"""What a campaign looks like: a curve in the terminal, a picture, tables."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from labelahead.campaign.advice import stop_advice
from labelahead.campaign.store import Round

__all__ = ["CATALOGUES", "board", "catalogue", "curve_png", "doing", "overview", "rounds_table"]

CATALOGUES = ("strategies", "models", "embeddings", "data")


class Board:
    """Follows a campaign: on a terminal a curve that grows, elsewhere a line a round."""

    def __init__(self, console: Console, total: int, title: str, live: Live | None) -> None:
        self.console, self.total, self.title = console, total, title
        self._live, self._rounds, self._doing = live, list[Round](), ""
        self._advised = False

    def progress(self, what: str, done: int, total: int) -> None:
        """Show what is under way."""
        self._doing = doing(what, done, total)
        self._draw()

    def round(self, entry: Round) -> None:
        """Show a finished round."""
        self._rounds.append(entry)
        if self._live is None:
            self.console.print(_line(entry), highlight=False)
        for note in entry.notes:
            self.console.print(f"  round {entry.number}: {note}", style="yellow", markup=False)
        outlook = entry.error, entry.error_low, entry.error_high, entry.fall
        advice = None if self._advised or entry.asked == 0 else stop_advice(entry.labels, *outlook)
        if advice:
            self._advised = True
            self.console.print(f"  advice at {entry.labels} labels: {advice}", style="cyan")
        self._draw()

    def _draw(self) -> None:
        if self._live is None:
            return
        parts: list[Any] = []
        if any(r.accuracy is not None for r in self._rounds):
            width = max(40, min(self.console.width, 90))
            parts.append(Text.from_ansi(curve_text(self._rounds, self.total, self.title, width)))
        if self._rounds:
            parts.append(Text(_line(self._rounds[-1])))
        parts.append(Text(self._doing, style="dim"))
        self._live.update(Group(*parts))


@contextmanager
def board(console: Console, total: int, title: str) -> Iterator[Board]:
    """A board for one campaign; it leaves the last picture standing."""
    if not console.is_terminal:
        yield Board(console, total, title, None)
        return
    with Live(console=console, refresh_per_second=4) as live:
        shown = Board(console, total, title, live)
        yield shown
        shown._doing = ""
        shown._draw()


def doing(what: str, done: int, total: int) -> str:
    """What is under way, in words."""
    return f"{what} {done}/{total}" if total > 1 else what


def _line(r: Round) -> str:
    right = "" if r.accuracy is None else f"   test accuracy {r.accuracy:6.1%}"
    guess = "" if r.error is None else f"   estimated {1 - r.error:6.1%}"
    took = sum(r.seconds.values())
    return f"round {r.number:3d}   {r.labels:5d} labels{right}{guess}   {took:5.1f} s"


def curve_text(rounds: Sequence[Round], total: int, title: str, width: int = 70) -> str:
    """Accuracy against labels, drawn with characters."""
    import plotext as plt

    known = [r for r in rounds if r.accuracy is not None]
    values = [100 * (r.accuracy or 0.0) for r in known]
    plt.clear_figure()
    plt.theme("clear")
    plt.plot_size(width, 16)
    plt.plot([r.labels for r in known], values, marker="braille")
    plt.xlim(min(r.labels for r in known), max(total, known[0].labels + 1))
    plt.ylim(max(0.0, min(values) - 5), min(100.0, max(values) + 5))
    plt.title(title)
    plt.xlabel("labels")
    plt.ylabel("test accuracy, %")
    return str(plt.build())


def curve_png(rounds: Sequence[Round], path: Path, title: str) -> Path:
    """Accuracy against labels as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    known = [r for r in rounds if r.accuracy is not None]
    figure, axes = pyplot.subplots(figsize=(6.4, 4), dpi=150, layout="constrained")
    axes.plot([r.labels for r in known], [100 * (r.accuracy or 0) for r in known], "o-", ms=4)
    told = [(r.labels, r.error, r.error_low, r.error_high) for r in rounds if r.error is not None]
    if told:
        at = [labels for labels, *_ in told]
        right, best, worst = ([100 * (1 - (row[i] or 0.0)) for row in told] for i in (1, 2, 3))
        axes.plot(at, right, ":", color="grey", label="estimated for the pool, without a test label")
        axes.fill_between(at, worst, best, color="grey", alpha=0.15, linewidth=0)
        axes.legend(frameon=False, fontsize=8)
    axes.set(xlabel="labels", ylabel="test accuracy, %")
    axes.set_title(title, parse_math=False)  # a name may hold dollar signs
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    pyplot.close(figure)
    return path


def rounds_table(rounds: Sequence[Round]) -> Table:
    """All rounds, one row each."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("round", "labels", "test accuracy", "estimated", "best gain", "seconds"):
        table.add_column(name, justify="right")
    for r in rounds:
        table.add_row(
            str(r.number),
            str(r.labels),
            "—" if r.accuracy is None else f"{r.accuracy:.1%}",
            "—" if r.error is None else f"{1 - r.error:.1%}",
            "—" if r.gain is None else f"{r.gain:.3g}",
            f"{sum(r.seconds.values()):.1f}",
        )
    return table


def overview() -> Table:
    """The names of all there is, by kind."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("labelahead list", "names"):
        table.add_column(name, overflow="fold")
    for what in CATALOGUES:
        table.add_row(what, ", ".join(str(cell) for cell in catalogue(what).columns[0].cells))
    return table


def catalogue(what: str) -> Table:
    """What there is, with a line on when to use it."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("name", "what it is, when to use it"):
        table.add_column(name, overflow="fold")
    if what == "strategies":
        from labelahead.strategies import STRATEGIES

        table.add_column("modes")
        table.add_column("paper", overflow="fold", style="dim")
        for s in STRATEGIES.values():
            table.add_row(s.name, s.when, "\n".join(s.modes), s.paper)
    elif what == "models":
        from labelahead.learners.exact import ABOUT, EXACT
        from labelahead.models import MODELS

        for m in MODELS.values():
            table.add_row(m.name, m.summary)
        table.add_row(EXACT, ABOUT)
    elif what == "embeddings":
        from labelahead.campaign.inputs import EMBEDDINGS

        for name, about in EMBEDDINGS.items():
            table.add_row(name, about)
        table.add_row(
            "COLUMN", "vectors that came with the data: lists of a Parquet or JSON lines column, an array of an .npz"
        )
        table.add_row("file.py:function", "your own: a list of texts, pictures (n, 3, h, w) or rows -> (n, d)")
    else:
        from labelahead.data import DATASETS

        for d in DATASETS.values():
            table.add_row(d.name, d.summary)
    return table
