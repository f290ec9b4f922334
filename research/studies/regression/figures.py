"""What `python -m research study regression` shows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from research.studies.charts import heading, line, mean, means, over_seeds, panels, span, ticks
from research.studies.design import Row, StudyFigure, where

__all__ = ["build_figures"]


def build_figures(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """Solvers, then the whole sets."""
    return [_solvers(s, where(rows, part="solvers")), _whole(s, where(rows, part="whole"))]


def _solvers(s: Any, rows: Sequence[Row]) -> StudyFigure:
    figure, (time, exact) = panels(2, height=3.4)
    for number, (name, value) in enumerate(
        (("Cholesky, float64", "cholesky_seconds"), ("conjugate gradients", "cg_seconds"))
    ):
        line(time, *means(rows, "n", value), number, name)
    line(exact, *means(rows, "n", "output_difference"), 0, "outputs, relative")
    for axes in (time, exact):
        axes.set(xscale="log", yscale="log", xlabel="points n")
        ticks(axes, s.sizes)
    time.set(ylabel="seconds to solve")
    exact.set(ylabel="difference of test outputs")
    time.legend()
    grown = ""
    if len(set(s.sizes)) > 1:
        grown = (
            f"Time grows as n^{_slope(rows, 'cholesky_seconds'):.1f} and "
            f"n^{_slope(rows, 'cg_seconds'):.1f} here, by "
            "the largest sizes; in operations a factorisation takes n³, and an iteration n² with "
            "a kernel at hand (the "
            "look-ahead paper's appendix B hopes for n√n products of gradients). "
        )
    worst = max(r["output_difference"] for r in rows)
    gap = max(abs(r["accuracy_exact"] - r["accuracy_cg"]) for r in rows)
    large = where(rows, n=max(s.sizes))
    ratio = np.median([r["cholesky_seconds"] / r["cg_seconds"] for r in large])
    return StudyFigure(
        "solvers",
        "Conjugate gradients against a Cholesky factorisation",
        f"The same system (noise {s.noise:g}, tolerance {s.tolerance:g}, Nyström preconditioner) "
        "solved both ways. "
        f"Test outputs differ by at most {worst:.1e}, accuracies by at most {100 * gap:.2f} "
        f"points. {grown}At "
        f"{max(s.sizes)} points the factorisation takes {ratio:.1f} times as long.",
        figure=figure,
        table=[
            {k: v for k, v in r.items() if k not in ("part", "set") and v is not None} for r in rows
        ],
    )


def _slope(rows: Sequence[Row], name: str) -> float:
    """Of the last points in log-log: what small sizes cost is overhead."""
    at, spent = means(rows, "n", name)
    x, y = np.log(at[-3:]), np.log([max(e.mean, 1e-6) for e in spent[-3:]])
    return float(np.polyfit(x, y, 1)[0])


def _whole(s: Any, rows: Sequence[Row]) -> StudyFigure:
    figure, axes = panels(len(s.sets), height=3.2, share_y=False)
    table: list[Row] = []
    words = []
    for panel, name in zip(axes, s.sets, strict=True):
        mine, short = where(rows, set=name), Path(name).stem
        for number, (label, value) in enumerate(
            (("the network f", "accuracy_f"), ("kernel regression", "accuracy_kernel"))
        ):
            line(panel, *means(mine, "checkpoint", _percent(value)), number, label)
        heading(panel, f"{short}, {mine[0]['n']:,} points")
        panel.set(xlabel="share of training", ylabel="test accuracy, %")
        panel.legend(fontsize=8)
        for c in s.checkpoints:
            table.append(_line(short, c, where(mine, checkpoint=c)))
        last = where(mine, checkpoint=max(s.checkpoints))
        first = where(mine, checkpoint=min(s.checkpoints))
        words.append(
            f"{short}: {100 * mean(first, 'accuracy_kernel'):.1f} % by the first kernel, "
            f"{100 * mean(last, 'accuracy_kernel'):.1f} % by the last, the network itself "
            f"{100 * mean(last, 'accuracy_f'):.1f} %"
        )
    return StudyFigure(
        "whole",
        "A whole data set",
        "Regression of Y − f on all training points with the pseudo-kernel of f, at several stages "
        "of the network's training (PN Figs 9 to 12, where the kernel of the trained network "
        f"reaches about the network's own accuracy on 50,000 points). Here: {'; '.join(words)}.",
        figure=figure,
        table=table,
    )


def _line(name: str, checkpoint: float, rows: Sequence[Row]) -> Row:
    return {
        "set": name,
        "trained": f"{checkpoint:.0%}",
        "points": rows[0]["n"],
        "f, %": span(over_seeds(rows, _percent("accuracy_f"))),
        "kernel, %": span(over_seeds(rows, _percent("accuracy_kernel"))),
        "form": rows[0]["form"],
        "kernel s": round(mean(rows, "kernel_seconds"), 1),
        "solve s": round(mean(rows, "solve_seconds"), 1),
        "iterations": round(mean(rows, "iterations")),
        "file GiB": mean(rows, "disk_gb"),
        "peak GiB": mean(rows, "peak_gb"),
    }


def _percent(name: str) -> Callable[[Row], float]:
    return lambda row: 100 * row[name]
