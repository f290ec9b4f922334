"""The sentences under the figures of docs/results-papers.md, computed from the tables above them."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np

from labelahead.simulation.comparison.statistics import Estimate, t_interval
from labelahead.simulation.comparison.tables import format_seconds
from research.results.numbers import DEFAULT, RANDOM, Numbers, contrast
from research.results.table import Table
from research.results.text import ByVariant, difference_text, spread
from research.studies.charts import sure

RECIPES, KERNELS = ("ours", "the paper's"), ("pseudo", "single")
USUAL = "1e-3"  # the regulariser that look-ahead has by default


def format_findings(table: Table, measured: ByVariant) -> str:
    """What a table shows, in words; nothing before all of it is measured."""
    if measured is None or any(
        v not in measured or measured[v].curves.missing for v in table.variants
    ):
        return "**Found**: nothing yet, for it is not finished."
    return f"**Found**: {FOUND[table.name](measured)}"


def _sequential(by: Mapping[str, Numbers]) -> str:
    n = by[""]
    ways = {
        name: [contrast(n.curves, name, f"{name}:{mode}") for mode in ("top", "greedy")]
        for name in ("mlmoc", DEFAULT)
    }
    at_once = ", ".join(f"{name} {difference_text(top)}" for name, (top, _) in ways.items())
    guessed = ", ".join(f"{name} {difference_text(greedy)}" for name, (_, greedy) in ways.items())
    good = [name for name, (top, _) in ways.items() if top is not None and top.verdict > 0]
    distinguished = [
        name for name, (_, greedy) in ways.items() if greedy is not None and greedy.verdict
    ]
    row = n.row("mlmoc")
    end = (
        f" MLMOC ends at {spread(row.final)} %, where the paper's WideResNet is above 96 %."
        if row
        else ""
    )
    return (
        f"one by one minus its own batch: {at_once}; significant for {_list(good)}. One by one "
        "minus a batch that "
        f"continues with predicted labels: {guessed}; "
        + (
            f"significant for {_list(distinguished)}."
            if distinguished
            else (
                "neither differs significantly from zero, so the gain comes from updating after each item, "
                "not the true answer."
            )
        )
        + end
    )


def _widths(by: Mapping[str, Numbers]) -> str:
    said = []
    for name in (DEFAULT, "mlmoc"):
        rows = {variant: n.row(name) for variant, n in by.items()}
        gains = {v: r.gain for v, r in rows.items() if r is not None and r.gain is not None}
        above, below = ([v for v, g in gains.items() if g.verdict == sign] for sign in (1, -1))
        low, high = (100 * pick(g.difference.mean for g in gains.values()) for pick in (min, max))
        said.append(
            f"`{name}` is {low:+.1f} to {high:+.1f} points from random, above it with "
            f"{_list(above)}" + (f", below it with {_list(below)}" if below else "")
        )
    other = "The widths of a WideResNet, which the paper varies, are not those of a dense network."
    return f"{'; '.join(said)}. {other}".replace(" -", " −")


def _losses(by: Mapping[str, Numbers]) -> str:
    one, two = by.values()
    names = [r.name for r in one.rows if r.name != RANDOM]
    base = _apart(two, one, RANDOM)
    gains = {name: pair_seeds(gains_of(two, name), gains_of(one, name)) for name in names}
    said = ", ".join(f"{name} {_format_estimate(d)}" for name, d in gains.items())
    moved = [name for name, d in gains.items() if sure(d)]
    return (
        f"cross-entropy changes random by {_format_estimate(base)} points compared with squared loss, "
        "along the curve, "
        "paired "
        "by seed (the same few steps for both; the paper trains for 200 epochs). "
        f"The gain over random changes by: {said}; beyond the interval for {_list(moved)}."
    )


def _ll4al(by: Mapping[str, Numbers]) -> str:
    rows = [n.row("ll4al") for n in by.values()]
    gains = [r.gain for r in rows if r is not None and r.gain is not None]
    low, high = (100 * pick(g.difference.mean for g in gains) for pick in (min, max))
    below = sum(g.verdict < 0 for g in gains)
    return (
        f"LL4AL is {-high:.0f} to {-low:.0f} points below random, significantly at {below} of "
        f"{len(gains)} rates."
    )


def _kernels(by: Mapping[str, Numbers]) -> str:
    full = by["full"]
    names = [r.name for r in full.rows if r.name != RANDOM]
    parts = []
    for name in names:
        each = []
        whole = full.row(name)
        for kind in (k for k in by if k != "full"):
            row = by[kind].row(name)
            if row is None or whole is None:
                continue
            share = 100 * row.query / whole.query
            each.append(
                f"{kind} {_format_estimate(_apart(by[kind], full, name))} points, {share:.1f} % of the seconds"
            )
        spent = format_seconds(whole.query) if whole else "—"
        parts.append(f"`{name}` (full: {spent} s per query): {', '.join(each)}")
    return "minus the full kernel along the curve, paired by seed. " + "; ".join(parts) + "."


def _mlmoc(by: Mapping[str, Numbers]) -> str:
    """Main effects of kernel, regulariser and recipe on what `mlmoc:top` gains over random, paired
    by seed.
    """
    noises = list(dict.fromkeys(name.rsplit(", ", 1)[1] for name in by))

    def gained(name: str, strategy: str = "mlmoc:top") -> dict[int, float]:
        return gains_of(by[name], strategy)

    def mean_of(
        keep: Callable[[str, str, str], bool], strategy: str = "mlmoc:top"
    ) -> dict[int, float]:
        some = [f"{r}, {k}, {e}" for r, k, e in product(RECIPES, KERNELS, noises) if keep(r, k, e)]
        each = [gained(name, strategy) for name in some if name in by]
        return {
            seed: float(np.mean([g[seed] for g in each]))
            for seed in set.intersection(*(set(g) for g in each))
        }

    every = mean_of(lambda *_: True)
    effects = {
        "the single-logit kernel instead of the pseudo-kernel": pair_seeds(
            mean_of(lambda r, k, e: k == "single"), mean_of(lambda r, k, e: k == "pseudo")
        ),
        "the paper's recipe instead of ours": pair_seeds(
            mean_of(lambda r, k, e: r == RECIPES[1]), mean_of(lambda r, k, e: r == RECIPES[0])
        ),
        **{
            f"a regulariser of {noise} instead of {USUAL}": pair_seeds(
                mean_of(lambda r, k, e, n=noise: e == n), mean_of(lambda r, k, e: e == USUAL)
            )
            for noise in noises
            if noise != USUAL
        },
        "going on after each pick (`mlmoc`) instead of a batch at once": pair_seeds(
            mean_of(lambda *_: True, "mlmoc"), every
        ),
    }
    said = "; ".join(f"{what} {_format_estimate(d)}" for what, d in effects.items())
    real = {what: d for what, d in effects.items() if sure(d)}
    most = max(real, key=lambda what: abs(real[what].mean)) if real else None
    ends = {name: t_interval(np.array(list(gained(name).values()))) for name in by}
    above = [name for name, d in ends.items() if sure(d) and d.mean > 0]
    best = max(ends, key=lambda name: ends[name].mean)
    theirs = [n for n in (f"{RECIPES[1]}, single, {noises[0]}",) if n in ends]
    return (
        f"`mlmoc:top` is {_format_estimate(t_interval(np.array(list(every.values()))))} points from random "
        f"over all {len(by)} "
        f"ways; beyond the interval above it in {len(above)} of them (each alone), at best "
        f"{_format_estimate(ends[best])} "
        f"({best}). "
        + "".join(
            f"With the settings of the paper ({name}): {_format_estimate(ends[name])}. "
            for name in theirs
        )
        + f"Effects of the factors, in points along the curve, means over the other factors: {said}. "
        + (
            f"The largest effect beyond its interval is {most}."
            if most
            else "None is beyond its interval."
        )
    )


def _batches(by: Mapping[str, Numbers]) -> str:
    n = by[""]
    return f"{_order(n)} {_beside(n, 'mlmoc:top')}"


def _dynamical(by: Mapping[str, Numbers]) -> str:
    n = by[""]
    name, rounds = "dynamical", range(1, len(n.curves.labels))
    means = {r.name: np.mean(list(n.curves.accuracy[r.name].values()), axis=0) for r in n.rows}
    firsts = sum(all(means[name][i] >= m[i] for m in means.values()) for i in rounds)
    return f"{_order(n)} dynamicAL is first in {firsts} of {len(rounds)} rounds. {_beside(n, name)}"


def _beside(n: Numbers, name: str) -> str:
    """One strategy minus the others.

    Random is compared with all at once, and corrected for that, in `_order`.
    """
    others = [r.name for r in n.rows if r.name not in (name, RANDOM)]
    said = ", ".join(
        f"{other} {difference_text(contrast(n.curves, name, other))}" for other in others
    )
    return (
        f"`{name}` minus the others along the curve (▲, ▼: p below 0.05, each by itself): {said}."
    )


def _order(n: Numbers) -> str:
    """Who ends where, the highest first, and who differs significantly from random."""
    ends = sorted(n.rows, key=lambda r: -r.final.mean)
    names_by_verdict = {
        w: [r.name for r in n.rows if r.gain is not None and r.gain.verdict == w] for w in (1, -1)
    }
    return (
        f"at the end {', '.join(f'{r.name} {spread(r.final)}' for r in ends)} %. Along the curve, "
        "after correction, "
        f"significantly above random: {_list(names_by_verdict[1])}; below it: {_list(names_by_verdict[-1])}."
    )


def gains_of(n: Numbers, strategy: str) -> dict[int, float]:
    """Seed -> mean accuracy along the curve minus random's."""
    own, base = n.curves.areas(strategy), n.curves.areas(RANDOM)
    return {seed: own[seed] - base[seed] for seed in own if seed in base}


def pair_seeds(one: Mapping[int, float], other: Mapping[int, float]) -> Estimate:
    """The difference over the seeds that both have."""
    return t_interval(np.array([one[k] - other[k] for k in sorted(one) if k in other]))


def _apart(one: Numbers, other: Numbers, name: str) -> Estimate:
    return pair_seeds(one.curves.areas(name), other.curves.areas(name))


def _format_estimate(e: Estimate) -> str:
    return spread(e, signed=True)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


FOUND: Mapping[str, Callable[[Mapping[str, Numbers]], str]] = {
    "fig-sequential": _sequential,
    "fig-width": _widths,
    "fig-loss": _losses,
    "fig-ll4al": _ll4al,
    "fig-kernel": _kernels,
    "fig-cifar10": _batches,
    "fig-caltech": _dynamical,
    "fig-mlmoc-mnist": _mlmoc,
    "fig-mlmoc-digits": _mlmoc,
}
