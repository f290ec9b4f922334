"""`python -m research study wallclock`: how much time the pseudo-NTK saves (PN Fig 1)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.errors import InputError
from labelahead.models import build_model
from labelahead.ntk import kernel
from labelahead.seeds import make_generator
from research.studies.charts import heading, legend_below, panels, reference, style
from research.studies.design import Cell, Experiment, Row, StudyFigure, values, where

__all__ = ["WALLCLOCK", "Settings"]

CLAIM = 0.15  # TH Fig 3.15: the part of the full kernel's time, ten classes


@dataclass(frozen=True)
class Settings:
    """What is timed; these defaults are the small scale.

    shape: of one input; pixels are random, for time does not depend on them. classes: numbers of
    outputs. depths: layers with weights of a WideResNet of two groups, 4k + 2; width: its channels.
    resnet_width: channels of ResNet18's first stage. items: of the larger kernel, beside that of
    one pair; fewer where the full kernel would have more than most_rows rows. repeats: full
    and pseudo kernel are timed in turn so often, and medians are taken.
    """

    shape: tuple[int, ...] = (3, 16, 16)
    classes: tuple[int, ...] = (10, 100)
    depths: tuple[int, ...] = (6, 10, 18)
    width: int = 16
    resnet_width: int = 8
    items: int = 100
    most_rows: int = 1200
    repeats: int = 3

    def __post_init__(self) -> None:
        for depth in self.depths:
            if depth < 6 or (depth - 2) % 4:
                raise InputError(f"a depth is {depth}; expected 4k + 2, such as 6, 10, 14 or 18")
        if self.items < 2 or self.repeats < 1 or min(self.classes, default=0) < 1:
            raise InputError(
                f"items is {self.items}, repeats {self.repeats}, classes {list(self.classes)}; "
                "expected 2 items or more, 1 repeat or more, and numbers of classes from 1 on"
            )


def how_many(s: Settings, classes: int) -> int:
    """Items of the larger kernel."""
    return max(2, min(s.items, s.most_rows // classes))


def cells(s: Settings) -> Sequence[Cell]:
    """Every network with every number of classes."""
    networks = [("wrn2", depth) for depth in s.depths] + [("resnet18", 18)]
    return [
        {"network": name, "depth": depth, "classes": C}
        for C in s.classes
        for name, depth in networks
    ]


def _network(s: Settings, cell: Cell) -> nn.Module:
    if cell["network"] == "resnet18":
        return build_model("resnet18", s.shape, cell["classes"], width=s.resnet_width, seed=0)
    blocks = (cell["depth"] - 2) // 4  # two groups of blocks of two convolutions, stem, read-out
    return build_model("wrn2", s.shape, cell["classes"], width=s.width, blocks=blocks, seed=0)


def measure(s: Settings, cell: Cell) -> Sequence[Row]:
    """Median seconds of either kernel, for one pair and for all items."""
    model = _network(s, cell).eval()
    many = how_many(s, cell["classes"])
    x = torch.randn(many, *s.shape, generator=make_generator(0, "pixels"))
    rows: list[Row] = []
    for what, n, other in (("pair", 1, x[1:2]), ("items", many, None)):
        took = in_turn(
            {kind: _job(model, x[:n], other, kind) for kind in ("full", "pseudo")}, s.repeats
        )
        seconds = {kind: median(each) for kind, each in took.items()}
        ratios = sorted(p / f for p, f in zip(took["pseudo"], took["full"], strict=True))
        rows.append(
            {
                "what": what,
                "items": 2 if what == "pair" else n,
                "parameters": sum(p.numel() for p in model.parameters()),
                "full_seconds": seconds["full"],
                "pseudo_seconds": seconds["pseudo"],
                "ratio": median(ratios),
                "ratio_low": ratios[0],
                "ratio_high": ratios[-1],
            }
        )
    return rows


def _job(model: nn.Module, x: Tensor, other: Tensor | None, kind: str) -> Callable[[], object]:
    return lambda: kernel(model, x, other, kind=kind, verify=False)


def in_turn(jobs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every job, each repeated; in turn, so that a slow moment meets them all."""
    took: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(repeats + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if number:  # the first round warms caches
                took[name].append(time.perf_counter() - start)
    return took


def exhibits(s: Settings, rows: Sequence[Row]) -> list[StudyFigure]:
    """PN Fig 1, as a ratio."""
    figure, axes = panels(2, height=3.6)
    for here, what in zip(axes, ("pair", "items"), strict=True):
        for number, C in enumerate(s.classes):
            for name, fill in (("wrn2", "full"), ("resnet18", "none")):
                _points(here, where(rows, what=what, classes=C, network=name), number, fill, C)
        reference(here, CLAIM, "15 %, TH at 10 classes")
        many = ", ".join(f"{how_many(s, C)} with {C} classes" for C in s.classes)
        heading(here, "one pair" if what == "pair" else f"items: {many}")
        here.set(xlabel="layers", ylabel="time of pseudo / time of full", yscale="log")
        depths = values(rows, "depth")
        here.set_xticks(depths, [str(d) for d in depths])
    legend_below(figure, axes[0], 3)
    return [
        StudyFigure(
            "wallclock",
            "The time of the pseudo-NTK, as a part of the full kernel's",
            _caption(s, rows),
            figure=figure,
            table=[_line(r) for r in rows],
        )
    ]


def _points(axes: Any, rows: Sequence[Row], number: int, fill: str, classes: int) -> None:
    if not rows:
        return
    y = [r["ratio"] for r in rows]
    spread = [
        [r["ratio"] - r["ratio_low"] for r in rows],
        [r["ratio_high"] - r["ratio"] for r in rows],
    ]
    name = "WideResNet" if rows[0]["network"] == "wrn2" else "ResNet18"
    axes.errorbar(
        [r["depth"] for r in rows],
        y,
        yerr=spread,
        **style(number),
        ms=6,
        fillstyle=fill,
        lw=1.6,
        capsize=2,
        label=f"{name}, {classes} classes",
    )


def _caption(s: Settings, rows: Sequence[Row]) -> str:
    def extent(what: str, C: int) -> str:
        shares = [100 * r["ratio"] for r in where(rows, what=what, classes=C)]
        return f"{min(shares):.1f} to {max(shares):.1f} %"

    said = "; ".join(
        f"{C} classes: {extent('pair', C)} for one pair, {extent('items', C)} for "
        f"{how_many(s, C)} items"
        for C in s.classes
    )
    kept = ""
    if 10 in s.classes:
        ten = where(rows, classes=10)
        within = sum(r["ratio"] <= CLAIM for r in ten)
        kept = f" At ten classes {within} of {len(ten)} cases stay within the 15 %."
    return (
        f"Both kernels by our engine, in turn, medians of {s.repeats} repeats (bars: smallest and "
        "largest ratio). PN "
        "(Fig 1) show the pseudo-NTK of one pair far faster than the full kernel for ResNets of "
        "all depths, and TH "
        f"(Fig 3.15) 15 % of its time for active learning with ten classes. Here: {said}.{kept} "
        "The pseudo kernel "
        "takes one backward pass where the full one takes C, and its products are 1/C² in number; "
        "both share the "
        "forward pass and the inspection of the network, which weigh most for one pair. Our full "
        "kernel is itself "
        "factored, so that there is less to save than against plain Jacobians."
    )


def _line(row: Row) -> Row:
    return {
        "network": row["network"],
        "layers": row["depth"],
        "classes": row["classes"],
        "kernel of": "one pair" if row["what"] == "pair" else f"{row['items']} items",
        "parameters": row["parameters"],
        "full, s": row["full_seconds"],
        "pseudo, s": row["pseudo_seconds"],
        "pseudo/full, %": round(100 * row["ratio"], 2),
    }


WALLCLOCK = Experiment(
    "wallclock",
    "What does the pseudo-NTK cost, beside the full kernel?",
    "The full tangent kernel has C×C numbers for every pair of items, the pseudo-NTK one. How much "
    "of that is saved in seconds, for networks of several depths, with ten and a hundred classes?",
    Settings,
    cells,
    measure,
    exhibits,
    alone=True,
)
