"""What the measurements of `python -m research study lookahead` show, beside what the paper (LA)
found.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from labelahead.simulation.comparison.plot_style import DOTS, INK
from labelahead.simulation.comparison.statistics import (
    ALPHA,
    Estimate,
    area_under_curve,
    compare_pairs,
    run_omnibus_test,
    t_interval,
)
from research.studies.charts import (
    close_up,
    legend_below,
    line,
    means,
    panels,
    reference,
    span,
    style,
    sure,
)
from research.studies.design import Row, StudyFigure, values, where
from research.studies.lookahead.measure import WAYS

__all__ = ["PAPER", "areas", "build_figures", "differences", "final", "gap", "seconds"]

NAMES = {
    "random": "random",
    "ntk": "tangent kernel (mlmoc)",
    "ntk-solve": "without the block formula",
    "ntk-few": "tangent kernel, few candidates",
    "naive": "retraining (naive), few candidates",
    "one-step": "one gradient step",
    "infinite-ntk": "infinitely wide kernel",
    "gp": "Gaussian process",
    "ntk-sequential": "tangent kernel, one by one",
    "emoc": "expected change (emoc)",
    "eer": "expected error (eer)",
}
METHODS = ("ntk", "one-step", "infinite-ntk", "gp")
PAPER_FRIEDMAN = 0.0045  # TH §2.5
# TH Table 2.1
PAPER = {
    ("ntk", "one-step"): 0.0109,
    ("ntk", "infinite-ntk"): 0.0093,
    ("ntk", "gp"): 0.0014,
    ("one-step", "infinite-ntk"): 0.6863,
    ("one-step", "gp"): 0.0422,
    ("infinite-ntk", "gp"): 0.0742,
}


def build_figures(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """Cost against accuracy, curves of the competitors, tests, and other acquisition functions."""
    return [
        _cost(s, rows),
        _curves(s, rows),
        *differences(s, rows),
        *_acquisition_functions(s, rows),
    ]


def final(s: Any, rows: Sequence[Row], arm: str) -> dict[int, float]:
    """Seed -> accuracy after the whole budget, in per cent."""
    return {r["seed"]: 100 * r["accuracy"] for r in where(rows, arm=arm, round=s.rounds)}


def seconds(rows: Sequence[Row], arm: str) -> dict[int, float]:
    """Seed -> median seconds of a query; the first of a process also loads what it needs."""
    mine = [r for r in where(rows, arm=arm) if r["seconds"] is not None]
    return {
        seed: float(np.median([r["seconds"] for r in where(mine, seed=seed)]))
        for seed in values(mine, "seed")
    }


def gap(one: dict[int, float], other: dict[int, float]) -> Estimate:
    """Paired over seeds."""
    return t_interval(np.array([one[k] - other[k] for k in sorted(one) if k in other]))


def _cost(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """LA Figure 1a."""
    spent = {arm: float(np.mean(list(seconds(rows, arm).values()))) for arm in s.arms}
    scale = s.candidates / s.few
    table: list[Row] = []
    for arm in s.arms:
        end = final(s, rows, arm)
        known = arm not in ("random", "ntk-few")  # one takes no time, one cannot be multiplied
        at_all = spent[arm] * (
            scale if arm == "naive" else 1.0
        )  # retraining takes the same time for each candidate
        row: dict[str, Any] = {
            "arm": arm,
            "in the paper": WAYS[arm].paper,
            "candidates": s.few if WAYS[arm].few else s.candidates,
            "s a query": spent[arm] or None,
            f"s for {s.candidates}": at_all if known else None,
            "times the kernel's": at_all / spent["ntk"] if known else None,
            "accuracy, %": span(t_interval(np.array(list(end.values()))), 1),
            "minus random": "–" if arm == "random" else span(gap(end, final(s, rows, "random"))),
        }
        table.append(row)
    return StudyFigure(
        "cost",
        "Seconds to ask, and what the answers were worth",
        f"{s.data}, {s.model}: {s.initial} labels, {s.rounds} rounds of {s.query}, the best "
        f"{s.query} scores of "
        f"{s.candidates} candidates ({s.few} where networks are retrained, for 15 epochs at most, "
        "and for the kernel "
        f"beside it); one thread, median over rounds, mean of {s.seeds} seeds. Hollow: as long as "
        "retraining would "
        f"take for all {s.candidates}. The paper finds the kernel more than 100 times faster than "
        "retraining, and its "
        f"choices more accurate (LA Fig 1a, MNIST, V100). {_speed(s, rows, spent, scale)}",
        figure=_scatter(s, rows, spent, scale),
        table=table,
        alt="Test accuracy after the budget against seconds a query, one mark for each strategy.",
    )


def _speed(s: Any, rows: Sequence[Row], spent: dict[str, float], scale: float) -> str:
    said = []
    if "naive" in s.arms:
        ratio = spent["naive"] * scale / spent["ntk"]
        how = f", extrapolated from {s.few} candidates and not measured" if scale > 1 else ""
        said.append(
            f"Here the kernel takes {spent['ntk']:.2g} s, retraining {spent['naive'] * scale:.3g} "
            "s for as many "
            f"candidates: {ratio:.0f} times as long{how}."
        )
        if s.model in ("mlp", "fcn"):
            said.append("(Networks of dense layers are retrained many at once, in favour of it.)")
    if {"naive", "ntk-few"} <= set(s.arms):
        ahead = gap(final(s, rows, "ntk-few"), final(s, rows, "naive"))
        word = "as in the paper" if ahead.mean > 0 else "unlike the paper"
        said.append(
            f"On the same {s.few} candidates retraining takes "
            f"{spent['naive'] / spent['ntk-few']:.0f} times as long, "
            f"measured, and the kernel's choices end {span(ahead)} points from those of "
            "retraining, "
            f"{word if sure(ahead) else 'which does not differ significantly from zero'}."
        )
    if "ntk-solve" in s.arms:
        one, other = final(s, rows, "ntk-solve"), final(s, rows, "ntk")
        same = sum(one[seed] == other[seed] for seed in one)
        said.append(
            f"Without the block formula it takes {spent['ntk-solve'] / spent['ntk']:.2g} times as "
            f"long, and ends with the very same accuracy in {same} of {len(one)} seeds."
        )
    return " ".join(said)


def _scatter(s: Any, rows: Sequence[Row], spent: dict[str, float], scale: float) -> Any:
    figure, (axes,) = panels(1, height=4.4)
    number = 0
    for arm in s.arms:
        end = t_interval(np.array(list(final(s, rows, arm).values())))
        if arm == "random":
            axes.axhline(end.mean, color=INK, ls=DOTS, lw=1.4, label="random")
            continue
        look = style(number)
        color = look["color"]
        if end.low is not None and end.high is not None:
            axes.plot([spent[arm]] * 2, [end.low, end.high], color=color, lw=1.2, alpha=0.6)
        axes.plot([spent[arm]], [end.mean], **look, ms=8, ls="none", label=NAMES[arm], zorder=3)
        if arm == "naive":
            far = spent[arm] * scale
            axes.plot([spent[arm], far], [end.mean] * 2, color=color, lw=1, ls=":")
            axes.plot([far], [end.mean], **look, ms=8, mfc="none", ls="none")
        number += 1
    axes.set_xscale("log")
    labels = s.initial + s.query * s.rounds
    axes.set(xlabel="seconds a query", ylabel=f"test accuracy with {labels} labels, %")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _curves(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """LA Figure 1b."""
    figure, (left, right) = panels(2, height=4.0)
    table: list[Row] = []
    said = []
    for number, (arm, judge, mine) in enumerate(_list_compared_arms(s, rows)):
        name = NAMES[arm] + (", judged by the process" if judge == "process" else "")
        labels, accuracy = means(mine, "labels", "value")
        _, gaps = means(mine, "labels", "gap")
        line(left, labels, accuracy, number, name, band=False)
        row: dict[str, Any] = {"arm": arm, "accuracy of": judge}
        row |= {f"{n} labels": round(e.mean, 2) for n, e in zip(labels, accuracy, strict=True)}
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
    legend_below(figure, left, 2)
    process = (
        "; the process (f = 0 before any label) also by its own accuracy, against itself on "
        "random labels, as in "
    )
    process = f"{process}the paper" if "gp" in s.arms else ""
    return StudyFigure(
        "rivals",
        "What stands in for retraining: ways to look ahead",
        "The same criterion, the largest change of the outputs by the likeliest label (LA-13), "
        "with the change found "
        f"in {len([a for a in METHODS if a in s.arms])} ways. Right: the paired difference from "
        "random labels, with "
        f"the 95 % band over seeds for the network's own kernel{process}. The paper compares four "
        "and finds only the "
        "network's own kernel above random (LA Fig 1b, MNIST). Here, at the end: "
        f"{'; '.join(said)} (* beyond its "
        "interval, each taken alone).",
        figure=figure,
        table=table,
        alt="Accuracy by number of labels, and its difference from random labels.",
    )


def _acquisition_functions(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """LA Figure 3a, TH Figure 2.3.

    One by one, and by other acquisition functions, with the network's own kernel.
    """
    others = [a for a in ("ntk-sequential", "emoc", "eer") if a in s.arms]
    if not others:
        return []
    figure, (axes,) = panels(1, height=3.8)
    base = {(r["seed"], r["round"]): r["accuracy"] for r in where(rows, arm="random")}
    apart, ends = {}, {}
    for number, arm in enumerate(("ntk", *others)):
        mine: list[Row] = [
            {**r, "gap": 100 * (r["accuracy"] - base[r["seed"], r["round"]])}
            for r in where(rows, arm=arm)
        ]
        line(axes, *means(mine, "labels", "gap"), number, NAMES[arm], band=arm == "ntk")
        apart[arm] = gap(areas(rows, arm), areas(rows, "ntk"))
        ends[arm] = gap(areas(rows, arm), areas(rows, "random"))
    reference(axes, 0.0)
    close_up(axes, least=1.0)
    axes.set(xlabel="labels", ylabel="difference from random, points")
    axes.legend(fontsize=9)
    summary = "; ".join(
        f"{NAMES[a]} {span(apart[a])}" + ("*" if sure(apart[a]) else "") for a in others
    )
    return [
        StudyFigure(
            "criteria",
            "One by one, and by other criteria",
            "The network's own kernel throughout. The look-ahead paper finds MLMOC with a true "
            "label after each item "
            "above "
            "MLMOC in batches (Fig 3a), and EMOC no different from it (TH Fig 2.3). Here, minus "
            "MLMOC in batches "
            "along the "
            f"curve: {summary} (* beyond its interval). MLMOC in batches itself is "
            f"{span(ends['ntk'])} points from "
            "random.",
            figure=figure,
            table=[
                {
                    "arm": a,
                    "minus MLMOC in batches": span(apart[a]) if a != "ntk" else "–",
                    "minus random": span(ends[a]),
                }
                for a in ("ntk", *others)
            ],
            alt="Differences from random along the labels, a line a criterion.",
        )
    ]


def _list_compared_arms(s: Any, rows: Sequence[Row]) -> list[tuple[str, str, list[Row]]]:
    """Arm, whose accuracy is meant, and rows with it ("value") and its gap to random ("gap")."""
    shown = [a for a in ("random", *METHODS) if a in s.arms]
    drawn = [(a, "accuracy") for a in shown]
    drawn += [(a, "process_accuracy") for a in ("random", "gp") if "gp" in s.arms]
    judged = []
    for arm, kind in drawn:
        base = {(r["seed"], r["round"]): r[kind] for r in where(rows, arm="random")}
        mine: list[Row] = [
            {**r, "value": 100 * r[kind], "gap": 100 * (r[kind] - base[r["seed"], r["round"]])}
            for r in where(rows, arm=arm)
        ]
        judged.append((arm, "network" if kind == "accuracy" else "process", mine))
    return judged


def differences(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """The exhibit, if there are arms and seeds enough to test."""
    arms = [a for a in METHODS if a in s.arms]
    if s.seeds < 2 or len(arms) < 3:
        return []
    columns = [areas(rows, a) for a in arms]
    seeds = sorted(columns[0])
    whole = run_omnibus_test(np.array([[c[seed] for c in columns] for seed in seeds]))
    table: list[Row] = []
    better, worse, unknown = list[str](), list[str](), list[str]()
    for pair in compare_pairs(columns):
        one, other = arms[pair.first], arms[pair.second]
        table.append(
            {
                "first": one,
                "second": other,
                "first − second, points": span(pair.difference),
                "p": pair.p,
                "p, Holm": pair.holm,
                "p in the thesis": PAPER[one, other],
            }
        )
        if one == "ntk":
            kept = better if pair.difference.mean > 0 else worse
            (kept if pair.p < ALPHA else unknown).append(other)
    said = [
        f"{word} {', '.join(names)}"
        for word, names in (
            ("is better than", better),
            ("is worse than", worse),
            ("does not differ significantly from", unknown),
        )
        if names
    ]
    differ = sum(row["p, Holm"] < ALPHA for row in table)
    return [
        StudyFigure(
            "tests",
            "Do they differ?",
            f"Mean accuracy along the way, seeds as blocks ({len(seeds)}); of the Gaussian "
            "process its own accuracy. "
            f"Friedman's test that all are alike: the thesis finds p = {PAPER_FRIEDMAN}, we find "
            f"{whole.p:.2g}. Then "
            "paired t-tests: in the thesis the network's own kernel differs from each of the "
            "others at 0.05 (TH Table "
            f"2.1, no correction); here, by the same rule, it {'; it '.join(said)}. Corrected for "
            "testing all pairs "
            f"(Holm), {differ or 'none'} of the {len(table)} p-values "
            f"{'is' if differ == 1 else 'are'} below "
            f"0.05.{_models(rows) if 'gp' in arms else ''}",
            table=table,
        )
    ]


def _models(rows: Sequence[Row]) -> str:
    """How much of the process's gap is there without any choice."""
    apart = gap(areas(rows, "random", process=True), areas(rows, "random", process=False))
    return (
        " The process is another model, not only another choice: on the same random labels it is "
        f"{span(apart)} points from the network."
    )


def areas(rows: Sequence[Row], arm: str, *, process: bool | None = None) -> dict[int, float]:
    """Seed -> mean accuracy along the way, in per cent.

    process: whether the Gaussian process is judged instead of the network; None: in the arm `gp`.
    """
    kind = "process_accuracy" if (arm == "gp" if process is None else process) else "accuracy"
    by_seed = {}
    for seed in values(where(rows, arm=arm), "seed"):
        mine = sorted(where(rows, arm=arm, seed=seed), key=lambda r: r["labels"])
        labels = np.array([r["labels"] for r in mine], float)
        by_seed[seed] = 100 * float(
            area_under_curve(labels, np.array([r[kind] for r in mine], float))
        )
    return by_seed
