"""What the measurements of `labelahead study lookahead` show, beside what the paper (LA) found."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from labelahead.laboratory.charts import close_up, line, means, panels, reference, span
from labelahead.laboratory.experiment import Exhibit, Row, where
from labelahead.laboratory.lookahead_measures import ARMS
from labelahead.laboratory.lookahead_statistics import differences
from labelahead.study.drawing import INK, MARKERS, PALETTE
from labelahead.study.statistics import Estimate, t_interval

__all__ = ["exhibits"]

NAMES = {
    "random": "random",
    "ntk": "tangent kernel (mlmoc)",
    "ntk-solve": "without the block formula",
    "ntk-few": "tangent kernel, few candidates",
    "naive": "retraining (naive), few candidates",
    "one-step": "one gradient step",
    "infinite-ntk": "infinitely wide kernel",
    "gp": "Gaussian process",
}


def exhibits(s: Any, rows: Sequence[Row]) -> list[Exhibit]:
    """Cost against accuracy, curves of the rivals, and tests."""
    return [_cost(s, rows), _curves(s, rows), *differences(s, rows)]


def final(s: Any, rows: Sequence[Row], arm: str) -> dict[int, float]:
    """Seed -> accuracy after the whole budget, in per cent."""
    return {r["seed"]: 100 * r["accuracy"] for r in where(rows, arm=arm, round=s.rounds)}


def seconds(rows: Sequence[Row], arm: str) -> dict[int, float]:
    """Seed -> median seconds of a query; the first of a process also loads what it needs."""
    mine = [r for r in where(rows, arm=arm) if r["seconds"] is not None]
    return {
        seed: float(np.median([r["seconds"] for r in where(mine, seed=seed)]))
        for seed in sorted({r["seed"] for r in mine})
    }


def gap(one: dict[int, float], other: dict[int, float]) -> Estimate:
    """Paired over seeds."""
    return t_interval(np.array([one[k] - other[k] for k in sorted(one) if k in other]))


def sure(found: Estimate) -> bool:
    """Whether the interval leaves zero out."""
    return found.low is not None and found.high is not None and found.low * found.high > 0


def _cost(s: Any, rows: Sequence[Row]) -> Exhibit:
    """LA Figure 1a."""
    spent = {arm: float(np.mean(list(seconds(rows, arm).values()))) for arm in s.arms}
    scale = s.candidates / s.few
    table: list[Row] = []
    for arm in s.arms:
        end, count = final(s, rows, arm), s.few if ARMS[arm].few else s.candidates
        known = arm not in ("random", "ntk-few")  # one takes no time, one cannot be multiplied
        row: dict[str, Any] = {
            "arm": arm, "in the paper": ARMS[arm].paper, "candidates": count,
            "s a query": spent[arm] or None,
            f"s for {s.candidates}": _at_all(arm, spent, scale) if known else None,
            "times the kernel's": _at_all(arm, spent, scale) / spent["ntk"] if known else None,
            "accuracy, %": span(t_interval(np.array(list(end.values()))), 1),
            "minus random": "–" if arm == "random" else span(gap(end, final(s, rows, "random"))),
        }  # fmt: skip
        table.append(row)
    return Exhibit(
        "cost",
        "Seconds to ask, and what the answers were worth",
        f"{s.data}, {s.model}: {s.initial} labels, {s.rounds} rounds of {s.query}, the best "
        f"{s.query} scores of {s.candidates} candidates ({s.few} where networks are retrained, for "
        "15 epochs at most, and for the kernel beside it); one thread, median over rounds, mean of "
        f"{s.seeds} seeds. Hollow: as long as retraining would take for all {s.candidates}. The "
        "paper finds the kernel more than 100 times faster than retraining, and its choices more "
        f"accurate (LA Fig 1a, MNIST, V100). {_speed(s, rows, spent, scale)}",
        figure=_scatter(s, rows, spent, scale),
        table=table,
        alt="Test accuracy after the budget against seconds a query, one mark for each strategy.",
    )


def _at_all(arm: str, spent: dict[str, float], scale: float) -> float:
    """Seconds for all candidates; retraining takes the same time for each of them."""
    return spent[arm] * (scale if arm == "naive" else 1.0)


def _speed(s: Any, rows: Sequence[Row], spent: dict[str, float], scale: float) -> str:
    said = []
    if "naive" in s.arms:
        ratio = spent["naive"] * scale / spent["ntk"]
        said.append(
            f"Here the kernel takes {spent['ntk']:.2g} s, retraining {spent['naive'] * scale:.2g} "
            f"s for as many candidates: {ratio:.0f} times as long"
            + (", in agreement with the paper." if ratio > 100 else ", less than the paper's.")
        )
        if s.model in ("mlp", "fcn"):
            said.append("(Networks of dense layers are retrained many at once, in favour of it.)")
    if {"naive", "ntk-few"} <= set(s.arms):
        found = gap(final(s, rows, "ntk-few"), final(s, rows, "naive"))
        word = "as in the paper" if found.mean > 0 else "unlike the paper"
        said.append(
            f"On the same {s.few} candidates retraining takes "
            f"{spent['naive'] / spent['ntk-few']:.0f} times as long, and the kernel's choices end "
            f"{span(found)} points from those of retraining, "
            f"{word if sure(found) else 'which cannot be told from zero'}."
        )
    if "ntk-solve" in s.arms:
        same = final(s, rows, "ntk-solve") == final(s, rows, "ntk")
        said.append(
            f"Without the block formula it takes {spent['ntk-solve'] / spent['ntk']:.2g} times as "
            f"long, and the accuracies are {'the same' if same else 'NOT the same'}."
        )
    return " ".join(said)


def _scatter(s: Any, rows: Sequence[Row], spent: dict[str, float], scale: float) -> Any:
    figure, (axes,) = panels(1, height=4.4)
    number = 0
    for arm in s.arms:
        found = t_interval(np.array(list(final(s, rows, arm).values())))
        if arm == "random":
            axes.axhline(found.mean, color=INK, ls=(0, (1, 1.2)), lw=1.4, label="random")
            continue
        color, marker = PALETTE[number % len(PALETTE)][0], MARKERS[number % len(MARKERS)]
        low, high = found.low, found.high
        if low is not None and high is not None:
            axes.plot([spent[arm]] * 2, [low, high], color=color, lw=1.2, alpha=0.6)
        axes.plot(
            [spent[arm]], [found.mean], color=color, marker=marker, ms=8, ls="none",
            label=NAMES[arm], zorder=3,
        )  # fmt: skip
        if arm == "naive":
            far = spent[arm] * scale
            axes.plot([spent[arm], far], [found.mean] * 2, color=color, lw=1, ls=":")
            axes.plot([far], [found.mean], color=color, marker=marker, ms=8, mfc="none", ls="none")
        number += 1
    axes.set_xscale("log")
    labels = s.initial + s.query * s.rounds
    axes.set(xlabel="seconds a query", ylabel=f"test accuracy with {labels} labels, %")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _judged(s: Any, rows: Sequence[Row]) -> list[tuple[str, str, list[Row]]]:
    """Arm, whose accuracy is meant, and rows with it ("value") and its gap to random ("gap")."""
    shown = [a for a in ("random", "ntk", "one-step", "infinite-ntk", "gp") if a in s.arms]
    drawn = [(a, "accuracy") for a in shown]
    drawn += [(a, "process_accuracy") for a in ("random", "gp") if a in s.arms]
    found = []
    for arm, kind in drawn:
        base = {(r["seed"], r["round"]): r[kind] for r in where(rows, arm="random")}
        mine: list[Row] = [
            {**r, "value": 100 * r[kind], "gap": 100 * (r[kind] - base[r["seed"], r["round"]])}
            for r in where(rows, arm=arm)
        ]
        found.append((arm, "network" if kind == "accuracy" else "process", mine))
    return found


def _curves(s: Any, rows: Sequence[Row]) -> Exhibit:
    """LA Figure 1b."""
    figure, (left, right) = panels(2, height=4.0)
    table: list[Row] = []
    said = []
    for number, (arm, judge, mine) in enumerate(_judged(s, rows)):
        name = NAMES[arm] + (", judged by the process" if judge == "process" else "")
        labels, values = means(mine, "labels", "value")
        _, gaps = means(mine, "labels", "gap")
        line(left, labels, values, number, name, band=False)
        row: dict[str, Any] = {"arm": arm, "accuracy of": judge}
        row |= {f"{n} labels": round(e.mean, 2) for n, e in zip(labels, values, strict=True)}
        row["end, minus its random"] = "–" if arm == "random" else span(gaps[-1])
        table.append(row)
        if arm != "random":
            line(right, labels, gaps, number, name, band=arm == "ntk")  # five would hide each other
            said.append(f"{name} {span(gaps[-1])}" + ("*" if sure(gaps[-1]) else ""))
    reference(right, 0.0)
    close_up(left, low=0, high=100.5)
    close_up(right, least=1.0)
    left.set(xlabel="labels", ylabel="test accuracy, %")
    right.set(xlabel="labels", ylabel="difference from random, points")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return Exhibit(
        "rivals",
        "What stands in for retraining: four ways to look ahead",
        "The same criterion, the largest change of the outputs by the likeliest label (LA-13), "
        "with the change found in four ways. Right: the paired difference from random labels, with "
        "the 95 % band over seeds for the network's own kernel; the process (f = 0 before any "
        "label) also by its own accuracy, against itself on random labels, as in the paper. The "
        "paper finds only the network's own kernel above random (LA Fig 1b, MNIST). Here, at the "
        f"end: {'; '.join(said)} (* beyond its interval, each taken alone).",
        figure=figure,
        table=table,
        alt="Accuracy by number of labels, and its difference from random labels.",
    )
