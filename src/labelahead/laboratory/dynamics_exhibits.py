"""What the measurements of `labelahead study dynamics` show, beside what the paper (DY) found."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from labelahead.laboratory.charts import line, means, panels, reference, span
from labelahead.laboratory.dynamics_campaigns import campaigns
from labelahead.laboratory.experiment import Exhibit, Row, where
from labelahead.study.drawing import MARKERS, PALETTE
from labelahead.study.statistics import Estimate, t_interval

__all__ = ["exhibits"]


def exhibits(s: Any, rows: Sequence[Row]) -> list[Exhibit]:
    """All exhibits for the parts that were measured."""
    made = {"identity": identity, "ratio": ratios, "correlation": correlations, "rounds": campaigns}
    return [e for part in s.parts for e in made[part](s, where(rows, part=part))]


def identity(s: Any, rows: Sequence[Row]) -> list[Exhibit]:
    """G two ways."""
    worst = max(r["relative_difference"] for r in rows)
    names = ("seed", "items", "definition", "gradient", "relative_difference")
    return [
        Exhibit(
            "identity",
            "One identity: training dynamics is a squared gradient",
            "G(S), computed by its definition from the full tangent kernel and as the squared norm "
            f"of the summed gradient (DY eq. 8), in double precision. They agree to {worst:.0e}, "
            "so the kernel never has to be built.",
            table=[{k: r[k] for k in names} for r in rows],
        )
    ]


def ratios(s: Any, rows: Sequence[Row]) -> list[Exhibit]:
    """DY Fig 4."""
    figure, (random, selected) = panels(2, height=3.6)
    for number, batch in enumerate(s.batches):
        mine = where(rows, batch=batch)
        for axes, value in ((random, "ratio_of_means"), (selected, "selected")):
            line(axes, *means(mine, "epoch", value), number, f"b = {batch}")
    for axes, title in ((random, "random batches"), (selected, "the batch dynamicAL takes")):
        reference(axes, 1.0)
        axes.set_ylim(-1, 2)  # where the exact gain passes through zero, R has no bounds
        axes.set_title(title, loc="left", fontsize=10)
        axes.set(xlabel="epochs of training on S", ylabel="approximation ratio R")
        axes.set_xscale("symlog", linthresh=2)
        axes.set_xlim(left=0)
        axes.set_xticks(s.epochs, [str(e) for e in s.epochs])
    figure.legend(
        *random.get_legend_handles_labels(), loc="outside lower center", ncols=len(s.batches)
    )
    last = where(rows, epoch=s.epochs[-1])
    ends = [(b, t_interval(_values(where(last, batch=b), "ratio_of_means"))) for b in s.batches]
    chosen = [(b, t_interval(_values(where(last, batch=b), "selected"))) for b in s.batches]
    near = all(0.8 <= e.mean <= 1.25 for _, e in ends)
    return [
        Exhibit(
            "approximation-ratio",
            "Leaving out the pairs: how good is the approximation?",
            "R is the sum of single gains over the exact gain of the batch (DY eq. 14): 1 if pairs "
            "do not matter. Left: ratio of mean sums over random batches (a mean of ratios has no "
            "finite expectation when the exact gain can be zero). The paper finds R → 1 as "
            "training converges. "
            + (
                "We find the same for random batches"
                if near
                else "We do not: random batches end at"
            )
            + f" ({', '.join(f'b={b}: {span(e)}' for b, e in ends)}); the batch that is really "
            f"chosen ends at {', '.join(f'b={b}: {span(e)}' for b, e in chosen)}"
            + _verdict(chosen)
            + " Bands: 95 % over seeds; before convergence the exact gain can be near zero, and R "
            "then lies beyond the axes (table).",
            figure=figure,
            table=_ratio_table(s, rows),
        )
    ]


def _verdict(chosen: Sequence[tuple[int, Estimate]]) -> str:
    if all(0.8 <= e.mean <= 1.25 for _, e in chosen):
        return ", so pairs may be left out there, too."
    if all(e.mean < 0.5 for _, e in chosen):
        return (
            ", which the paper does not show: the picks are alike, their gradients add up, and "
            "most of the exact gain is in the pairs that the approximation leaves out."
        )
    return ", which the paper does not show: there the pairs matter."


def _ratio_table(s: Any, rows: Sequence[Row]) -> list[Row]:
    found: list[Row] = []
    for epoch in s.epochs:
        here = where(rows, epoch=epoch)
        row: dict[str, Any] = {"epoch": epoch, "train accuracy": _mean(here, "train_accuracy")}
        for batch in s.batches:
            mine = where(here, batch=batch)
            row[f"R random, b={batch}"] = _mean(mine, "ratio_of_means")
            row[f"R chosen, b={batch}"] = _mean(mine, "selected")
        found.append(row)
    return found


def correlations(s: Any, rows: Sequence[Row]) -> list[Exhibit]:
    """DY Figs 2, 6, 7, and Kendall's tau by training time."""
    shown = next((t for t in s.times if t > 0), s.times[-1])  # where the three differ visibly
    columns = ((f"true_{shown:g}", "alignment"), (f"pseudo_{shown:g}", "alignment"),
               (f"true_{shown:g}", "bound"))  # fmt: skip
    titles = ("G with true labels, A", "G with pseudo-labels, A", "G with true labels, B")
    figure, axes = panels(3, height=3.2)
    seeds = sorted({r["seed"] for r in rows})
    for panel, (x, y), title in zip(axes, columns, titles, strict=True):
        for number, seed in enumerate(seeds[:3]):
            mine = where(rows, seed=seed)
            panel.scatter(
                [r[x] for r in mine], [r[y] for r in mine], s=9, alpha=0.7, lw=0,
                color=PALETTE[number][0], marker=MARKERS[number],
            )  # fmt: skip
        panel.set_title(title, loc="left", fontsize=10)
        panel.set(xlabel="G of S ∪ Q", ylabel=title[-1])
    table = [_taus(rows, seeds, t) for t in s.times]
    taus = {k: _tau(rows, seeds, *c) for k, c in zip(("A", "pseudo", "B"), columns, strict=True)}
    end = {k: _tau(rows, seeds, x.replace(f"{shown:g}", "inf"), y)
           for k, (x, y) in zip(("A", "pseudo", "B"), columns, strict=True)}  # fmt: skip
    return [
        Exhibit(
            "correlation",
            "Does learning fast go with generalising well?",
            f"{s.draws} random sets Q beside a fixed S, one colour a seed (|S| = {s.initial}, "
            f"|Q| = {s.correlation_batch}, f trained for t = {shown:g}). Kendall's τ between "
            f"training dynamics and alignment A is {span(taus['A'])} with true labels and "
            f"{span(taus['pseudo'])} with pseudo-labels (the likeliest class by the converged "
            f"kernel, one-hot), and with the bound B {span(taus['B'])}. "
            "The paper reports a strong agreement, 0.46 and −0.253. How long f was trained "
            f"decides: untrained, G is A and τ = 1; converged, τ is {span(end['A'])}, "
            f"{span(end['pseudo'])} and {span(end['B'])} (table below).",
            figure=figure,
            table=table,
        )
    ]


def _tau(rows: Sequence[Row], seeds: Sequence[int], x: str, y: str) -> Estimate:
    def one(seed: int) -> float:
        mine = where(rows, seed=seed)
        xs, ys = [r[x] for r in mine], [r[y] for r in mine]
        if len(set(xs)) == 1 or len(set(ys)) == 1:
            return 0.0  # a constant orders nothing
        return float(stats.kendalltau(xs, ys).statistic)

    return t_interval(np.array([one(seed) for seed in seeds]))


def _taus(rows: Sequence[Row], seeds: Sequence[int], t: float) -> Row:
    """Kendall's tau after training time t."""
    return {
        "training time": "∞" if t == float("inf") else f"{t:g}",
        "τ(G, A), true labels": _tau(rows, seeds, f"true_{t:g}", "alignment").mean,
        "τ(G, A), pseudo-labels": _tau(rows, seeds, f"pseudo_{t:g}", "alignment").mean,
        "τ(G, B), true labels": _tau(rows, seeds, f"true_{t:g}", "bound").mean,
        "τ(A, B)": _tau(rows, seeds, "alignment", "bound").mean,
    }


def _values(rows: Sequence[Row], name: str) -> Any:
    return np.array([r[name] for r in rows], float)


def _mean(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([r[name] for r in rows]))
