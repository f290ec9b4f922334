"""What the measurements of `python -m research study dynamics` show, beside what the paper (DY)
found.
"""

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from labelahead.simulation.comparison.statistics import Estimate, t_interval
from research.studies.charts import (
    close_up,
    heading,
    legend_below,
    line,
    mean,
    means,
    over_seeds,
    panels,
    reference,
    span,
    style,
    sure,
)
from research.studies.design import Row, StudyFigure, values, where
from research.studies.dynamics import lemma_figures

__all__ = [
    "LEADS",
    "PAPER",
    "PAPER_DEVIATIONS",
    "PAPER_ROUNDS",
    "PAPER_SEEDS",
    "build_figures",
    "choose_shown_time",
    "gammas",
    "verdict",
]

# DY Tables 2 and 3 (CIFAR-10, CNN, 500 + 250 or 500 a round), after the initial labels and rounds
# 1, 2, 4 and 9.
PAPER = {
    250: {
        "random": (32.32, 33.00, 34.14, 35.64, 37.85),
        "margin": (32.48, 33.16, 34.41, 36.55, 38.75),
        "entropy": (32.32, 32.74, 34.06, 36.14, 38.29),
        "coreset": (32.41, 32.75, 33.77, 35.08, 37.25),
        "least-confidence": (32.27, 33.00, 34.21, 36.59, 38.91),
        "albl": (32.50, 32.98, 34.02, 35.58, 37.57),
        "badge": (32.66, 33.45, 34.66, 36.33, 38.78),
        "dynamical": (32.57, 33.52, 34.70, 36.72, 38.91),
    },
    500: {
        "random": (32.26, 34.87, 36.45, 37.89, 40.17),
        "margin": (32.31, 34.89, 36.69, 39.15, 41.64),
        "entropy": (32.29, 34.58, 36.50, 38.23, 40.71),
        "coreset": (32.54, 33.84, 35.96, 36.73, 39.43),
        "least-confidence": (32.32, 34.75, 36.73, 39.10, 41.55),
        "albl": (32.41, 34.08, 35.62, 37.20, 39.95),
        "badge": (32.49, 34.44, 36.41, 38.49, 41.41),
        "dynamical": (32.37, 34.88, 36.78, 39.37, 41.78),
    },
}
LEADS = {
    250: "leads every round, in the last level with least-confidence",
    500: "leads every round but the first",
}
USUAL = 250  # of a round in the paper, where ours is another
PAPER_ROUNDS = (0, 1, 2, 4, 9)
# Standard deviations over the paper's five runs in the last round of Table 2, in points.
PAPER_DEVIATIONS = {
    "random": 1.789,
    "margin": 1.550,
    "entropy": 1.312,
    "coreset": 1.527,
    "least-confidence": 1.902,
    "albl": 1.170,
    "badge": 0.776,
    "dynamical": 1.358,
}
PAPER_SEEDS = 5
EARLY_TIME = 0.3  # of training at which τ of training dynamics and alignment is shown
# DY Table 1 (CIFAR-10, CNN) and Table 10, by number of rounds that one budget of 1,000 is spent in.
PAPER_SPLITS = {
    10: (36.84, 0.004999),
    4: (36.72, 0.005253),
    2: (36.71, 0.005367),
    1: (36.67, 0.005455),
}


def build_figures(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """All exhibits for the parts that were measured."""
    made = {
        "identity": identity,
        "ratio": ratios,
        "correlation": correlations,
        "lemma": lemma_figures.lemma,
        "slack": lemma_figures.slack,
        "rounds": campaigns,
    }
    return [e for part in s.parts for e in made[part](s, where(rows, part=part))]


def identity(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """G two ways."""
    worst = max(r["relative_difference"] for r in rows)
    names = ("seed", "items", "definition", "gradient", "relative_difference")
    return [
        StudyFigure(
            "identity",
            "One identity: training dynamics is a squared gradient",
            "G(S), computed by its definition from the full tangent kernel and as the squared norm "
            f"of the summed gradient (DY eq. 8), in double precision. They agree to {worst:.0e}, "
            "so the kernel never has to be built.",
            table=[{k: r[k] for k in names} for r in rows],
        )
    ]


def ratios(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """DY Fig 4."""
    figure, (random, selected) = panels(2, height=3.6)
    for number, batch in enumerate(s.batches):
        mine = where(rows, batch=batch)
        for axes, value in ((random, "ratio_of_means"), (selected, "selected")):
            line(axes, *means(mine, "epoch", value), number, f"b = {batch}")
    for axes, title in ((random, "random batches"), (selected, "the batch dynamicAL takes")):
        reference(axes, 1.0)
        axes.set_ylim(-1, 2)  # where the exact gain passes through zero, R has no bounds
        heading(axes, title)
        axes.set(xlabel="epochs of training on S", ylabel="approximation ratio R")
        axes.set_xscale("symlog", linthresh=2)
        axes.set_xlim(left=0)
        axes.set_xticks(s.epochs, [str(e) for e in s.epochs])
    legend_below(figure, random, len(s.batches))
    last = where(rows, epoch=s.epochs[-1])
    ends, chosen = (
        [(b, over_seeds(where(last, batch=b), value)) for b in s.batches]
        for value in ("ratio_of_means", "selected")
    )
    near = all(0.8 <= e.mean <= 1.25 for _, e in ends)
    return [
        StudyFigure(
            "approximation-ratio",
            "Leaving out the pairs: how good is the approximation?",
            "R is the sum of single gains over the exact gain of the batch (DY eq. 14): 1 if "
            "pairs do not matter. "
            "Left: ratio of mean sums over random batches (a mean of ratios has no finite "
            "expectation when the exact "
            "gain can be zero). The paper finds R → 1 as training converges. "
            + (
                "We find the same for random batches"
                if near
                else "We do not: random batches end at"
            )
            + f" ({', '.join(f'b={b}: {span(e)}' for b, e in ends)}); the batch that is really "
            f"chosen ends at {', '.join(f'b={b}: {span(e)}' for b, e in chosen)}"
            + verdict(chosen)
            + " Bands: 95 % over seeds; before convergence the exact gain can be near zero, and R "
            "then lies beyond the axes (table).",
            figure=figure,
            table=_ratio_table(s, rows),
        )
    ]


def verdict(chosen: Sequence[tuple[int, Estimate]]) -> str:
    """What R of the chosen batches says of leaving out the pairs."""
    if all(0.8 <= e.mean <= 1.25 for _, e in chosen):
        return ", so pairs may be left out there, too."
    if all(e.mean < 0.5 for _, e in chosen):
        return (
            ", which the paper does not show: the picks are alike, their gradients add up, and "
            "most of the exact gain is in the pairs that the approximation leaves out."
        )
    return ", which the paper does not show: there the pairs matter."


def _ratio_table(s: Any, rows: Sequence[Row]) -> list[Row]:
    table: list[Row] = []
    for epoch in s.epochs:
        here = where(rows, epoch=epoch)
        row: dict[str, Any] = {"epoch": epoch, "train accuracy": mean(here, "train_accuracy")}
        for batch in s.batches:
            mine = where(here, batch=batch)
            row[f"R random, b={batch}"] = mean(mine, "ratio_of_means")
            row[f"R chosen, b={batch}"] = mean(mine, "selected")
        table.append(row)
    return table


def correlations(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """DY Figs 2, 6, 7, and Kendall's tau by training time."""
    shown = choose_shown_time(s.times)
    titles = ("G with true labels, A", "G with pseudo-labels, A", "G with true labels, B")
    figure, axes = panels(3, height=3.2)
    for panel, (x, y), title in zip(axes, _pairs(shown), titles, strict=True):
        for number, seed in enumerate(values(rows, "seed")[:3]):
            mine = where(rows, seed=seed)
            panel.scatter(
                [r[x] for r in mine], [r[y] for r in mine], s=9, alpha=0.7, lw=0, **style(number)
            )
        heading(panel, title)
        panel.set(xlabel="G of S ∪ Q", ylabel=title[-1])
    here, end = ([span(_tau(rows, *columns)) for columns in _pairs(t)] for t in (shown, inf))
    return [
        StudyFigure(
            "correlation",
            "Does learning fast go with generalising well?",
            f"{s.draws} random sets Q beside a fixed S, one colour a seed (|S| = {s.initial}, |Q| "
            "= "
            f"{s.correlation_batch}, f trained for t = {shown:g}; {_whose(s)}). Kendall's τ "
            "between training dynamics "
            "and alignment "
            f"A is {here[0]} with true labels and {here[1]} with pseudo-labels (the likeliest "
            "class by the converged "
            f"kernel, one-hot), and with the bound B {here[2]}. The paper reports a strong "
            "agreement with true labels "
            "(no "
            "number), 0.46 with pseudo-labels and −0.253 for B; it does not say how long f was "
            "trained, and that "
            f"decides: untrained, G is A and τ = 1; converged, τ is {end[0]}, {end[1]} and "
            f"{end[2]} (table below).",
            figure=figure,
            table=[_taus(rows, t) for t in s.times],
        )
    ]


def choose_shown_time(times: Sequence[float]) -> float:
    """Return the training time that is shown first.

    `EARLY_TIME`, or the shortest training that was measured.
    """
    return EARLY_TIME if EARLY_TIME in times else next((t for t in times if t > 0), times[-1])


def _whose(s: Any) -> str:
    """Whose kernel it is."""
    if s.kernel_model == "infinite":
        return f"kernel of infinite width, convolutional, at {s.kernel_side}×{s.kernel_side} pixels"
    return f"kernel of a new {s.kernel_model}" + (
        f" of {s.kernel_width:g} channels" if s.kernel_width else ""
    )


def _pairs(t: float) -> list[tuple[str, str]]:
    """Columns of G and of what it is compared with, f trained for t.

    A with true and pseudo-labels, and B.
    """
    return [(f"true_{t:g}", "alignment"), (f"pseudo_{t:g}", "alignment"), (f"true_{t:g}", "bound")]


def _tau(rows: Sequence[Row], x: str, y: str) -> Estimate:
    """Kendall's, over seeds."""

    def one(seed: int) -> float:
        mine = where(rows, seed=seed)
        xs, ys = [r[x] for r in mine], [r[y] for r in mine]
        if len(set(xs)) == 1 or len(set(ys)) == 1:
            return 0.0  # a constant orders nothing
        return float(stats.kendalltau(xs, ys).statistic)

    return t_interval(np.array([one(seed) for seed in values(rows, "seed")]))


def _taus(rows: Sequence[Row], t: float) -> Row:
    """Kendall's tau after training time t."""
    titles = ("τ(G, A), true labels", "τ(G, A), pseudo-labels", "τ(G, B), true labels", "τ(A, B)")
    columns = [*_pairs(t), ("alignment", "bound")]
    return {
        "training time": "∞" if t == inf else f"{t:g}",
        **{title: _tau(rows, *pair).mean for title, pair in zip(titles, columns, strict=True)},
    }


def campaigns(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """All exhibits that campaigns give."""
    usual = {"batch": s.query, "rounds": s.rounds, "start": "warm"}
    varied = where(rows, **usual, strategy="dynamical")
    return [
        _rivals(s, where(rows, **usual, gamma="2")),
        *([gammas(s, varied)] if 2.0 in s.gammas and len(s.gammas) > 1 else []),
        _drift(s, rows),
        *(
            [_splits(s, where(rows, strategy="dynamical", gamma="2", start="warm"))]
            if s.splits
            else []
        ),
        *([_cold(s, where(rows, batch=s.query, rounds=s.rounds, gamma="2"))] if s.cold else []),
    ]


def _rivals(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """DY Fig 3."""
    curves = [(n, where(rows, strategy=n)) for n in s.strategies]
    base = where(rows, strategy="random")
    a_round = s.query if s.query in PAPER else USUAL
    theirs = f"Table {2 if a_round == USUAL else 3}, CIFAR-10, 500 + {a_round} a round"
    ends, table = {}, []
    for name, mine in curves:
        ends[name] = _final(mine, base)
        row: dict[str, Any] = {"strategy": name}
        for number in range(s.rounds + 1):
            row[f"round {number}"] = round(mean(where(mine, round=number), _percent), 2)
        row["minus random"] = "–" if name == "random" else span(ends[name][1])
        row["s to ask"] = round(mean(mine, "asking_seconds"), 3)
        for number in (n for n in PAPER_ROUNDS if n <= s.rounds or n == 9):
            known = PAPER[a_round].get(name)
            row[f"paper r{number}"] = known[PAPER_ROUNDS.index(number)] if known else "–"
        table.append(row)
    ranked = sorted(ends, key=lambda n: -ends[n][0].mean)
    best, gap = ranked[0], ends["dynamical"][1]
    return StudyFigure(
        "rivals",
        "Against the other strategies",
        f"{Path(s.data).stem}, {s.model}: {s.initial} labels, then {s.query} a round, warm "
        f"starts, rate {s.rate:g}, "
        f"until {s.stop_accuracy:.0%} of the labelled set is right; {s.seeds} seeds, the same "
        "splits for all. In the "
        f"paper dynamicAL {LEADS[a_round]} (DY Fig 3; columns “paper”: {theirs}). Here "
        f"dynamicAL ends at rank {ranked.index('dynamical') + 1} of {len(ends)} and {span(gap)} "
        "points from random "
        f"({'' if sure(gap) else 'not '}distinguishable from it); the best at the end is {best} "
        f"({span(ends[best][0], 1)} %).",
        figure=_curves(curves, base),
        table=table,
    )


def gammas(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """DY Fig 5."""
    names = {f"{g:g}": ("γ = ∞" if g == inf else f"γ = {g:g}") for g in s.gammas}
    curves = [(label, where(rows, gamma=g)) for g, label in names.items()]
    curves.sort(key=lambda c: c[0] != "γ = 2")  # that one first: the others are compared with it
    base = curves[0][1]
    ends = {label: _final(mine, base) for label, mine in curves}
    best = max(ends, key=lambda n: ends[n][0].mean)
    said = "; ".join(f"{n}: {span(e, 1)} %" for n, (e, _) in ends.items())
    names_by_verdict = {
        "below": [n for n, (_, gap) in ends.items() if sure(gap) and gap.mean < 0],
        "above": [n for n, (_, gap) in ends.items() if sure(gap) and gap.mean > 0],
    }
    beyond = [f"{', '.join(names)} {word}" for word, names in names_by_verdict.items() if names]
    return StudyFigure(
        "gamma",
        "How much should the labels so far count?",
        "γ = 0 is the squared gradient length, γ = ∞ influence with the identity as Hessian, γ = "
        "2 the exact gain of "
        f"one item. The paper finds 2 best (DY Fig 5). Here: {said}; highest is {best}"
        + (
            f". Beyond their intervals lie {' and '.join(beyond)} γ = 2."
            if beyond
            else ", and no value differs from γ = 2 beyond its interval."
        ),
        figure=_curves(curves, base),
    )


def _drift(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """DY Figs 1 and 9."""
    seen = [r for r in rows if r.get("bound") is not None and r["start"] == "warm" and r["round"]]
    longest = {b: max(r["rounds"] for r in where(seen, batch=b)) for b in values(seen, "batch")}
    seen = [
        r for r in seen if r["rounds"] == longest[r["batch"]]
    ]  # one campaign a batch, strategy and seed
    once = where(seen, strategy="dynamical", round=1)
    figure, axes = panels(2 if len(values(once, "batch")) > 1 else 1, height=3.6)
    if len(axes) > 1:
        for number, (name, value) in enumerate((("bound B", "bound"), ("MMD", "mmd"))):
            line(axes[0], *means(once, "batch", value), number, name)
        axes[0].set(xlabel="batch of the first round", ylabel="B and MMD, dynamicAL")
        axes[0].set_ylim(bottom=0)
        axes[0].legend()
    later, largest = axes[-1], 0.0
    for number, (name, batch) in enumerate(sorted({(r["strategy"], r["batch"]) for r in seen})):
        mine = where(seen, strategy=name, batch=batch)
        line(
            later,
            *means(mine, "round", "mmd_over_bound"),
            number,
            f"{name}, b = {batch}",
            band=False,
        )
        largest = max(largest, mean(where(mine, round=1), "mmd_over_bound"))
    later.set(xlabel="round", ylabel="MMD / B")
    later.set_ylim(bottom=0)
    later.legend(fontsize=8)
    return StudyFigure(
        "drift",
        "How far do the labelled items drift from where they came?",
        "MMD between the initial and all labelled items (unbiased estimate, DY eq. 33; zero where "
        "that is negative) beside the bound B, with a fresh network's pseudo-kernel scaled to mean "
        "diagonal 1, for MMD/B grows with the kernel's scale. The paper finds MMD far below B "
        f"(Figs 1, 9: MMD/B about 0.005). Here MMD/B is at most {largest:.2g} after the first round"
        + (", the same picture. " if largest < 0.1 else ", no longer negligible. ")
        + "Random picks show what of it is chance.",
        figure=figure,
    )


def _splits(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """DY Tables 1 and 10."""
    table: list[Row] = []
    budget = s.splits[0][0] * s.splits[0][1]
    for batch, rounds in sorted(
        {(r["batch"], r["rounds"]) for r in rows if r["batch"] * r["rounds"] == budget}
    ):
        mine = where(rows, batch=batch, rounds=rounds, round=rounds)
        known = PAPER_SPLITS.get(rounds)
        table.append(
            {
                "rounds": rounds,
                "batch": batch,
                "labels": mine[0]["labels"],
                "accuracy, %": span(over_seeds(mine, _percent)),
                "MMD/B": span(over_seeds(mine, "mmd_over_bound"), 4),
                "paper accuracy, %": known[0] if known else "–",
                "paper MMD/B": known[1] if known else "–",
            }
        )
    return StudyFigure(
        "splits",
        "One budget, in many rounds or in few",
        "dynamicAL with the same number of labels asked for in smaller or larger batches. The "
        "paper finds more rounds slightly better (Table 1) and MMD/B smaller (Table 10; CIFAR-10, "
        "budget 1,000). Intervals are 95 % over seeds; where they overlap we cannot tell.",
        table=table,
    )


def _cold(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """DY Tables 11 and 12."""
    table: list[Row] = []
    for name in s.cold:
        row: dict[str, Any] = {"strategy": name}
        for start in ("warm", "cold"):
            mine = where(rows, strategy=name, start=start, round=s.rounds)
            if mine:
                row[f"{start}: accuracy, %"] = span(over_seeds(mine, _percent))
                row[f"{start}: steps a round"] = round(mean(mine, "steps"))
        table.append(row)
    return StudyFigure(
        "cold",
        "New weights each round, or the old ones",
        "The paper trains on from the last round's weights, to stay close to its analysis, and "
        "finds dynamicAL better "
        "than or competitive with others with new weights, too, by less than with old ones "
        "(Tables 11 and 12). Steps: "
        "updates in the last round until the labelled set is learnt.",
        table=table,
    )


def _curves(curves: Sequence[tuple[str, Sequence[Row]]], base: Sequence[Row]) -> Any:
    """Accuracy by name, and the paired difference from `base`."""
    figure, (left, right) = panels(2, height=3.8)
    zero = {(r["seed"], r["round"]): r["accuracy"] for r in base}
    for number, (name, mine) in enumerate(curves):
        band = len(curves) <= 4
        line(left, *means(mine, "labels", _percent), number, name, band)
        if mine is not base and list(mine) != list(base):
            gap = means(
                mine, "labels", lambda r: 100 * (r["accuracy"] - zero[r["seed"], r["round"]])
            )
            line(right, *gap, number, name, band)
    reference(right, 0.0)
    close_up(left, low=0, high=100.5)
    close_up(right)
    left.set(xlabel="labels", ylabel="test accuracy, %")
    right.set(xlabel="labels", ylabel=f"difference from {curves[0][0]}, points")
    legend_below(figure, left, min(4, len(curves)), handlelength=3)
    return figure


def _final(mine: Sequence[Row], base: Sequence[Row]) -> tuple[Estimate, Estimate]:
    """Accuracy at the end and the paired difference of it, in per cent."""
    last = max(r["round"] for r in mine)
    end, zero = ({r["seed"]: _percent(r) for r in where(rows, round=last)} for rows in (mine, base))
    gap = np.array([end[k] - zero[k] for k in sorted(end) if k in zero])
    return t_interval(np.array(list(end.values()))), t_interval(gap)


def _percent(row: Row) -> float:
    return float(100 * row["accuracy"])
