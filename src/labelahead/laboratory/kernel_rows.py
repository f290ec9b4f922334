"""Ways to look at the rows of `labelahead study kernel` that several exhibits share."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from labelahead.laboratory.charts import line, means
from labelahead.laboratory.experiment import Row, where
from labelahead.study.statistics import Estimate, t_interval

__all__ = [
    "TITLES",
    "both_ends",
    "by_width",
    "draw_by_width",
    "extent",
    "interval",
    "mean",
    "median",
    "percent_axis",
    "points_ahead",
    "widest",
]

TITLES = {
    "fcn": "fcn (3 hidden layers)", "convnet": "convnet (8 layers)", "resnet18": "ResNet18",
    "wrn16": "WideResNet-16-k",
}  # fmt: skip


def draw_by_width(axes: Any, rows: Sequence[Row], name: str, band: bool = True) -> None:
    """One line a width, against the part of the run."""
    for number, width in enumerate(sorted({r["width"] for r in rows})):
        mine = [r for r in where(rows, width=width) if r[name] is not None]
        if mine:
            line(axes, *means(mine, "checkpoint", name), number, f"width {width:g}", band)
    percent_axis(axes)


def percent_axis(axes: Any) -> None:
    """Parts of the run as per cent."""
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
    axes.set_xlabel("part of the training, %")


def both_ends(s: Any, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The rows before and after all training."""
    return where(rows, checkpoint=s.checkpoints[0]), where(rows, checkpoint=s.checkpoints[-1])


def widest(rows: Sequence[Row], name: str) -> list[Row]:
    """The widest of this network."""
    mine = where(rows, network=name)
    return where(mine, width=max(r["width"] for r in mine))


def interval(rows: Sequence[Row], name: str) -> Estimate:
    """The mean over rows, one a seed, and its interval."""
    return t_interval(np.array([r[name] for r in rows], float))


def mean(rows: Sequence[Row], name: str) -> float:
    """Over all rows."""
    return float(np.mean([r[name] for r in rows]))


def median(rows: Sequence[Row], name: str) -> float | None:
    """Over all rows that have a value."""
    found = [r[name] for r in rows if r[name] is not None]
    return float(np.median(found)) if found else None


def by_width(rows: Sequence[Row], name: str, value: str) -> list[float]:
    """Medians by width, narrowest first."""
    mine = where(rows, network=name)
    found = [median(where(mine, width=w), value) for w in sorted({r["width"] for r in mine})]
    return [v for v in found if v is not None]


def extent(rows: Sequence[Row], names: Sequence[str], value: str) -> str:
    """Smallest to largest mean over the widest networks."""
    found = [mean(widest(rows, n), value) for n in names]
    return f"{min(found):.2g}–{max(found):.2g}"


def points_ahead(rows: Sequence[Row], ours: str, other: str) -> Any:
    """Mean difference of accuracies in points, over networks and widths; one value a seed."""
    seeds = sorted({r["seed"] for r in rows})
    return t_interval(
        np.array(
            [np.mean([100 * (r[ours] - r[other]) for r in where(rows, seed=k)]) for k in seeds]
        )
    )
