"""Whether what a paper shows came out here: a function a figure, from the numbers that are kept.

Rows of research/data/tables and research/data/studies go in; a verdict and a few words come out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from labelahead.simulation.comparison.statistics import Estimate, holm, t_interval
from research.results.numbers import RANDOM, Numbers, Versus, contrast
from research.results.studies import read_measured
from research.results.text import ByVariant, spread
from research.studies.charts import mean, over_seeds, slopes, span, sure
from research.studies.design import Row, values, where
from research.studies.dynamics.figures import (
    PAPER,
    PAPER_DEVIATIONS,
    PAPER_ROUNDS,
    PAPER_SEEDS,
    choose_shown_time,
)
from research.studies.execution import Measured
from research.studies.kernel.theorem_figures import check_layers
from research.studies.lookahead.figures import METHODS, areas, final, gap, seconds

YES, PART, NO, OPEN, NOT = "yes", "in part", "no", "inconclusive", "not run"
NEAR = 0.15  # how near to a rate of −1/2 counts as near
PAPER_SHARE = 0.15  # TH Fig 3.15: the pseudo-kernel's time over the full one's
# correlation of our differences from random with a paper's, from which on they agree
AGREEMENT = 0.9
USUAL_QUERY = 250  # labels a round in DY Table 2
# points: two curves are level where the interval of their difference says that it is no more
LEVEL = 1.0


# studies of looking ahead, the paper's kind of network and data first: its numbers give the verdict
LOOKAHEADS = {"lookahead-mnist": "MNIST, WideResNet", "lookahead": "digits, dense network"}
# studies with a correlation of training dynamics, and how the page names them
CORRELATIONS = {
    "dynamics-cifar10": "CIFAR-10",
    "dynamics-infinite": "CIFAR-10 by the kernel of infinite width",
    "dynamics": "digits",
}
# studies with kernels along training, the paper's data first: its numbers give the verdict
KERNELS = {"kernel-cifar10": "CIFAR-10", "kernel": "digits"}
# studies of dynamicAL's own campaigns (γ, splits, new weights), the paper's data first: its numbers
# give the verdict
CAMPAIGNS = {"dynamics-varied": "CIFAR-10", "dynamics": "digits"}


class Found(NamedTuple):
    """Whether a claim holds, and the numbers that say so."""

    verdict: str
    text: str


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that was measured. tables: name -> variant -> numbers; studies: the folder of theirs.

    inconclusive: name -> why a table, as it was run, decides nothing.
    """

    tables: Mapping[str, ByVariant]
    studies: Path
    inconclusive: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _read(self) -> dict[str, Measured]:
        return {}

    def study(self, name: str) -> tuple[Any, list[Row]]:
        """Settings and rows of a study; raises KeyError if it was not kept."""
        if not self.has(name):
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = read_measured(self.studies / name)
        return self._read[name].settings, list(self._read[name].rows)

    def has(self, name: str) -> bool:
        """Whether that study was kept."""
        return (self.studies / name / "settings.toml").is_file()

    def holds(self, name: str, part: str) -> bool:
        """Whether that study was kept, and that part of it."""
        return self.has(name) and any(row["part"] == part for row in self.study(name)[1])

    def part(self, name: str, part: str) -> tuple[Any, list[Row]]:
        """The same, of one part of it."""
        settings, rows = self.study(name)
        mine = where(rows, part=part)
        if not mine:
            raise KeyError(f"{name}: {part}")
        return settings, mine

    def table(self, name: str) -> Mapping[str, Numbers]:
        """Variant -> its numbers; raises KeyError before anything is measured."""
        measured = self.tables.get(name)
        if not measured:
            raise KeyError(name)
        return measured


# --- look-ahead
# ---------------------------------------------------------------------------------------------


def check_speed(e: Evidence) -> Found:
    return _check_each_lookahead(e, _judge_speed)


def check_lookahead_methods(e: Evidence) -> Found:
    return _check_each_lookahead(e, _judge_lookahead_methods)


def _check_each_lookahead(e: Evidence, judge: Callable[[Any, list[Row]], Found]) -> Found:
    return _by_each(
        {name: judge(*e.study(study)) for study, name in LOOKAHEADS.items() if e.has(study)}
    )


def _by_each(found: Mapping[str, Found | None]) -> Found:
    """What every study says that was kept and tells of it.

    The verdict is that of the first, nearest to the paper's.
    """
    known = {name: f for name, f in found.items() if f is not None}
    if not known:
        raise KeyError("no study of it was kept")
    return Found(
        next(iter(known.values())).verdict,
        "; ".join(f"{name}: {f.text}" for name, f in known.items()),
    )


def _judge_speed(s: Any, rows: list[Row]) -> Found:
    spent = {
        arm: float(np.mean(list(seconds(rows, arm).values())))
        for arm in ("naive", "ntk-few", "ntk")
    }
    ratio, ahead = (
        spent["naive"] / spent["ntk-few"],
        gap(final(s, rows, "ntk-few"), final(s, rows, "naive")),
    )
    better = sure(ahead) and ahead.mean > 0
    verdict = YES if ratio > 100 and better else PART if ratio > 10 else NO
    far = spent["naive"] * s.candidates / s.few / spent["ntk"]
    return Found(
        verdict,
        f"{ratio:.0f} times on the same {s.few} candidates ({far:.0f} extrapolated to "
        f"{s.candidates:,}, not measured), "
        f"accuracy {span(ahead, 1)} points apart",
    )


def _judge_lookahead_methods(s: Any, rows: list[Row]) -> Found:
    base = final(s, rows, RANDOM)
    ends = {arm: gap(final(s, rows, arm), base) for arm in METHODS if arm in s.arms}
    above = [arm for arm, end in ends.items() if sure(end) and end.mean > 0]
    whole = above == ["ntk"] and len(ends) == len(METHODS)
    verdict = YES if whole else PART if "ntk" in above else NO if sure(ends["ntk"]) else OPEN
    said = ", ".join(f"{arm} {span(end, 1)}" for arm, end in ends.items())
    return Found(
        verdict,
        f"difference from random at the end: {said}; better than random beyond the interval: "
        f"{', '.join(above) or 'none'}",
    )


MLMOC, BESIDE = "mlmoc:top", ("entropy", "margin", "badge", "ll4al")


def check_batches(e: Evidence) -> Found:
    """LA Fig 2: level with each of the others, or better.

    A panel whose file calls it inconclusive decides nothing.
    """
    rows = {name: e.table(f"{name}-mlp")[""].row(MLMOC) for name in ("digits", "mnist", "fashion")}
    other = ", ".join(
        f"{name} {_format_comparison(row.gain)}" for name, row in rows.items() if row is not None
    )
    elsewhere = f"dense networks elsewhere, `{MLMOC}` − random: {other}"
    n = _get_complete_numbers(e, "fig-cifar10")
    if n is None:
        return Found(NOT, elsewhere)
    apart = {name: _get_comparison(n, MLMOC, name).difference for name in BESIDE}
    verdict = _describe_level(list(apart.values()), LEVEL / 100)
    said = ", ".join(f"{name} {spread(d, signed=True)}" for name, d in apart.items())
    own = n.row(MLMOC)
    assert own is not None
    text = (
        f"`{MLMOC}` along the curve minus {said} (at least as good: at most {LEVEL:g} point "
        "below by the interval), minus random "
        f"{_format_comparison(own.gain)}; {elsewhere}"
    )
    caveat = e.inconclusive.get("fig-cifar10")
    return (
        Found(verdict, text)
        if caveat is None
        else Found(OPEN, f"as run, not conclusive: {caveat} {text}")
    )


def _describe_level(apart: Sequence[Estimate], least: float) -> str:
    """Whether differences are shown to be at worst so much below zero.

    All, some, none, or inconclusive.
    """
    level = [d for d in apart if d.low is not None and d.low > -least]
    behind = [d for d in apart if d.high is not None and d.high < -least]
    return YES if len(level) == len(apart) else OPEN if not behind else PART if level else NO


def _get_complete_numbers(e: Evidence, table: str) -> Numbers | None:
    """The numbers of a table without variants; None as long as a campaign of it is missing."""
    measured = e.tables.get(table)
    return None if not measured or measured[""].curves.missing else measured[""]


def check_sequential(e: Evidence) -> Found:
    """On the paper's kind of network where it was run; the table has more seeds of another."""
    table = _compare_strategies(e, "fig-sequential", "mlmoc", "mlmoc:top")
    apart = _compare_along_curve(e, "ntk-sequential", "ntk")
    if apart is None:
        return table
    verdict = YES if sure(apart) and apart.mean > 0 else NO if sure(apart) else OPEN
    return Found(
        verdict,
        f"WideResNet: one by one − in batches {span(apart, 1)}; dense network: {table.text}",
    )


def check_acquisition_functions(e: Evidence) -> Found:
    """TH Fig 2.3 right: yes where MLMOC and EMOC differ in no setting, in part where they differ in
    some.
    """
    pair = _get_comparison(e.table("digits-mlp")[""], "mlmoc:top", "emoc:top")
    dense = f"`mlmoc:top` − `emoc:top` {_format_comparison(pair)} along the curve"
    apart = _compare_along_curve(e, "ntk", "emoc")
    if apart is None:
        return Found(YES if pair.p >= 0.05 else NO, dense)
    same = [not sure(apart), pair.p >= 0.05]
    return Found(
        _format_share(sum(same), len(same)),
        f"WideResNet: MLMOC − EMOC {span(apart, 1)}; digits, dense network: {dense}",
    )


def _compare_along_curve(e: Evidence, one: str, other: str) -> Estimate | None:
    """Points along the curve from one arm to another on MNIST with the WideResNet.

    None where that was not run.
    """
    if not e.has("lookahead-mnist"):
        return None
    _, rows = e.study("lookahead-mnist")
    return gap(areas(rows, one), areas(rows, other))


def _compare_strategies(e: Evidence, table: str, one: str, two: str) -> Found:
    """Whether one is above the other along the curve, in a table without variants."""
    pair = _get_comparison(e.table(table)[""], one, two)
    return Found(
        YES if pair.verdict > 0 else NO,
        f"`{one}` − `{two}` {_format_comparison(pair)} along the curve",
    )


def _get_comparison(n: Numbers, one: str, two: str) -> Versus:
    pair = contrast(n.curves, one, two)
    if pair is None:
        raise KeyError(one)
    return pair


def check_widths(e: Evidence) -> Found:
    gains = _compare_with_random(e.table("fig-width"), "mlmoc")
    above = sum(v.verdict > 0 for v in gains.values())
    said = ", ".join(f"{name} {_format_comparison(v)}" for name, v in gains.items())
    return Found(
        _format_share(above, len(gains)), f"above random at {above} of {len(gains)} widths: {said}"
    )


def check_ll4al(e: Evidence) -> Found:
    gains = _compare_with_random(e.table("fig-ll4al"), "ll4al")
    below = sum(v.verdict < 0 for v in gains.values())
    low, high = (pick(v.difference.mean for v in gains.values()) for pick in (min, max))
    return Found(
        _format_share(below, len(gains)),
        f"{100 * -high:.0f} to {100 * -low:.0f} points below random at every rate",
    )


def check_losses(e: Evidence) -> Found:
    one, two = e.table("fig-loss").values()
    said = {name: _pair_variants(two, one, name) for name in (RANDOM, "mlmoc")}
    same = sum(not sure(d) for d in said.values())
    text = ", ".join(f"{name} {spread(d, signed=True)}" for name, d in said.items())
    return Found(_format_share(same, len(said)), f"cross-entropy − squared along the curve: {text}")


def check_kernels(e: Evidence) -> Found:
    by = e.table("fig-kernel")
    apart = _pair_variants(by["pseudo"], by["full"], "mlmoc:top")
    spent = {kind: n.row("mlmoc:top") for kind, n in by.items()}
    pseudo, full = spent["pseudo"], spent["full"]
    assert pseudo is not None
    assert full is not None
    share = pseudo.query / full.query
    level = not sure(apart)
    verdict = (
        YES if level and share <= PAPER_SHARE else PART if level or share <= PAPER_SHARE else NO
    )
    return Found(
        verdict,
        f"pseudo − full {spread(apart, signed=True)} points along the curve, {100 * share:.0f} % "
        "of its time",
    )


def _pair_variants(one: Numbers, other: Numbers, name: str) -> Estimate:
    """The same strategy in two variants, mean accuracies along the curve, paired by seed."""
    a, b = one.curves.areas(name), other.curves.areas(name)
    return t_interval(np.array([a[k] - b[k] for k in sorted(a) if k in b]))


def _compare_with_random(variants: Mapping[str, Numbers], strategy: str) -> dict[str, Versus]:
    rows = {name: n.row(strategy) for name, n in variants.items()}
    return {
        name: row.gain for name, row in rows.items() if row is not None and row.gain is not None
    }


def _format_comparison(v: Versus | None) -> str:
    return (
        "—"
        if v is None
        else spread(v.difference, signed=True) + {1: " ▲", 0: "", -1: " ▼"}[v.verdict]
    )


def _format_share(good: int, total: int) -> str:
    return YES if good == total else NO if not good else PART


# --- the pseudo-NTK
# -----------------------------------------------------------------------------------------


def check_pair_time(e: Evidence) -> Found:
    _, rows = e.study("wallclock")
    pair = [r["ratio"] for r in where(rows, what="pair")]
    items = [r["ratio"] for r in where(rows, what="items")]
    verdict = YES if max(pair) < 0.5 else PART if max(pair) < 1 else NO
    low, high, few, many = (100 * v for v in (min(pair), max(pair), min(items), max(items)))
    return Found(
        verdict,
        f"{low:.0f} to {high:.0f} % of the full kernel's time for a pair, {few:.0f} to {many:.0f} "
        "% for many",
    )


class Change(NamedTuple):
    """A quantity at the largest width over that at the smallest, paired by seed."""

    ratio: float
    low: float
    high: float
    seeds: int
    p: float  # of a t-test on the logarithms


def check_decrease_with_width(value: str, what: str) -> Callable[[Evidence], Found]:
    """Whether a quantity at initialisation falls from the narrowest network to the widest, by
    paired t-tests.

    The tests are on logarithms of ratios, since seeds differ by factors, and corrected by Holm for
    the number of networks. A network whose change is not significant is open.
    """

    def check(e: Evidence) -> Found:
        changes = {
            (data, network): change
            for study, data in KERNELS.items()
            if e.holds(study, "training")
            for network, change in _compute_changes(*e.part(study, "training"), value)
        }
        if not changes:
            raise KeyError("nothing of it was measured")
        corrected = holm([c.p for c in changes.values()])
        falls, rises = (
            [
                k
                for (k, c), p in zip(changes.items(), corrected, strict=True)
                if p < 0.05 and (c.ratio < 1) is down
            ]
            for down in (True, False)
        )
        said = ", ".join(
            f"{data} {network} "
            f"{_format_factor(c)}{' falls' if key in falls else ' rises' if key in rises else ' open'}"
            for key, c in changes.items()
            for data, network in [key]
        )
        verdict = YES if len(falls) == len(changes) else PART if falls else NO if rises else OPEN
        seeds = min(c.seeds for c in changes.values())
        return Found(
            verdict, f"{what}, widest over narrowest, paired over {seeds} seeds (Holm): {said}"
        )

    return check


def _compute_changes(s: Any, rows: list[Row], value: str) -> list[tuple[str, Change]]:
    """Network -> how a quantity changes from its narrowest to its widest form, before training."""
    first = [r for r in where(rows, checkpoint=s.checkpoints[0]) if r[value] is not None]
    changes = []
    for network in values(rows, "network"):
        mine = where(first, network=network)
        at = values(mine, "width") if mine else []
        if len(at) < 2:
            continue
        narrow, wide = (
            {r["seed"]: r[value] for r in where(mine, width=w)} for w in (at[0], at[-1])
        )
        logs = np.log([wide[k] / narrow[k] for k in sorted(narrow) if k in wide])
        fit = t_interval(logs)
        if fit.low is None or fit.high is None:
            continue
        p = float(
            np.nan_to_num(stats.ttest_1samp(logs, 0.0).pvalue, nan=1.0)
        )  # NaN: no seed has changed at all
        changes.append(
            (network, Change(*np.exp([fit.mean, fit.low, fit.high]).tolist(), len(logs), p))
        )
    return changes


def _format_factor(c: Change) -> str:
    return f"×{c.ratio:.2g} [{c.low:.2g}, {c.high:.2g}]"


Judged = tuple[list[bool], str]  # what held and what did not, and what is said of it


def _along_training(e: Evidence, judge: Callable[[Any, list[Row]], Judged]) -> Found:
    """By every study of kernels along training.

    Networks differ, so that all that was measured counts alike.
    """
    judged = {
        name: judge(*e.part(study, "training"))
        for study, name in KERNELS.items()
        if e.holds(study, "training")
    }
    good = [held for each, _ in judged.values() for held in each]
    if not good:
        raise KeyError("nothing of it was measured")
    said = "; ".join(f"{name}: {text}" for name, (each, text) in judged.items() if each)
    return Found(_format_share(sum(good), len(good)), said)


def check_rate(e: Evidence) -> Found:
    _, rows = e.part("kernel", "rate")
    exponents = {
        name: _fit_slope(where(rows, network=name), "distance_pseudo")
        for name in values(rows, "network")
    }
    near = sum(abs(v + 0.5) <= NEAR for v in exponents.values())
    said = ", ".join(f"{name} {v:.2f}" for name, v in exponents.items()).replace("-", "−")
    return Found(
        _format_share(near, len(exponents)),
        f"exponent of the width: {said}; {near} of {len(exponents)} within {NEAR} of −1/2",
    )


def _fit_slope(rows: Sequence[Row], value: str) -> float:
    return float(np.mean(slopes(rows, "width", value)))


def check_vanishing_difference(e: Evidence) -> Found:
    return _along_training(e, _judge_vanishing_difference)


def _judge_vanishing_difference(s: Any, rows: list[Row]) -> Judged:
    first, last = (
        _widest(where(rows, checkpoint=c)) for c in (s.checkpoints[0], s.checkpoints[-1])
    )
    before, after = (mean(at, "output_gap_pseudo") for at in (first, last))
    added, left = (mean(at, "step_gap_pseudo") for at in (first, last))
    said = (
        f"difference of the outputs {before:.2f} new, {after:.2f} trained; difference of what "
        f"regression adds {added:.2f} and "
        f"{left:.2f}"
    )
    return [after < before], said


def _widest(rows: Sequence[Row]) -> list[Row]:
    return [
        r
        for n in values(rows, "network")
        for mine in [where(rows, network=n)]
        for r in mine
        if r["width"] == max(values(mine, "width"))
    ]


def check_regression_accuracy(e: Evidence) -> Found:
    return _along_training(e, _judge_regression_accuracy)


def _judge_regression_accuracy(s: Any, rows: list[Row]) -> Judged:
    better = [r["accuracy_pseudo"] >= r["accuracy_full"] for r in rows]
    return better, f"at least as accurate in {sum(better)} of {len(rows)} measurements"


def check_whole_cifar10(e: Evidence) -> Found:
    s, rows = e.part("regression", "whole")
    sentences = []
    for name in values(rows, "set"):
        at = {c: where(rows, set=name, checkpoint=c) for c in (s.checkpoints[0], s.checkpoints[-1])}
        new, old = (100 * mean(r, "accuracy_kernel") for r in at.values())
        own = 100 * mean(at[s.checkpoints[-1]], "accuracy_f")
        sentences.append(
            f"{name.removesuffix('.npz')} {new:.1f} new, {old:.1f} trained, network {own:.1f} %"
        )
    return Found(NOT, f"with a small CNN, six epochs, one seed: {'; '.join(sentences)}")


def check_tightness(e: Evidence) -> Found:
    s, rows = e.part("kernel", "bound")
    broken, pairs = sum(r["violated"] for r in rows), s.bound_items**2 * len(rows)
    exponent = _fit_slope(rows, "relative")
    verdict = YES if not broken and abs(exponent + 0.5) <= NEAR else PART if not broken else NO
    return Found(
        verdict,
        (
            f"bound exceeded {broken} times of {pairs}; relative distance falls as "
            f"width^{exponent:.2f}"
        ).replace("-", "−")
        + f", and is {mean(rows, 'tightness'):.1g} of PN's explicit bound",
    )


# --- dynamicAL
# ----------------------------------------------------------------------------------------------


def _check_campaigns(e: Evidence, judge: Callable[[Any, list[Row]], Found | None]) -> Found:
    return _by_each(
        {
            name: judge(*e.part(study, "rounds"))
            for study, name in CAMPAIGNS.items()
            if e.holds(study, "rounds")
        }
    )


def check_mmd(e: Evidence) -> Found:
    s, rows = e.part(widest_campaigns(e), "rounds")
    usual = where(
        rows, strategy="dynamical", gamma="2", batch=s.query, rounds=s.rounds, start="warm"
    )
    seen = [r for r in usual if r.get("mmd_over_bound") is not None and r["round"]]
    largest = max(mean(where(seen, round=n), "mmd_over_bound") for n in values(seen, "round"))
    return Found(
        YES if largest < 0.1 else NO,
        f"MMD/B at most {largest:.2g} in any round at mean diagonal 1 (the paper: about 0.005, "
        "its kernel's scale not "
        "named; the ratio is proportional to that scale)",
    )


def widest_campaigns(e: Evidence) -> str:
    """The study with dynamicAL's campaigns on CIFAR-10.

    Of the whole set where that was kept, else of a part.
    """
    return "dynamics-whole" if e.holds("dynamics-whole", "rounds") else "dynamics-cifar10"


def check_time_correlation(pair: tuple[str, str], paper: float) -> Callable[[Evidence], Found]:
    """Kendall's τ by how long the network was trained, which the paper does not say.

    It holds at a time where τ has the paper's sign beyond its interval, and half of the paper's
    size or more.
    """

    def check(e: Evidence) -> Found:
        sentences, good = [], []
        for name, data in CORRELATIONS.items():
            if name not in ("dynamics-cifar10", "dynamics") and not e.has(name):
                continue
            s, rows = e.part(name, "correlation")
            taus = {
                t: kendall(rows, f"{pair[0]}_{t:g}", pair[1]) for t in correlation_times(s.times)
            }
            good += [
                sure(t) and t.mean * paper > 0 and abs(t.mean) >= 0.5 * abs(paper)
                for t in taus.values()
            ]
            sentences.append(
                f"{data} {', '.join(f'{span(tau)} {_format_time(t)}' for t, tau in taus.items())}"
            )
        return Found(_format_share(sum(good), len(good)), "τ on " + "; ".join(sentences))

    return check


def correlation_times(times: Sequence[float]) -> list[float]:
    """Return the training times that the page speaks of.

    An early one, the first of 1 or more, and convergence.
    """
    later = next((t for t in times if t >= 1), inf)
    return list(dict.fromkeys((choose_shown_time(times), later, inf)))


def _format_time(t: float) -> str:
    return "at convergence" if t == inf else f"at t = {t:g}"


def kendall(rows: Sequence[Row], x: str, y: str) -> Estimate:
    """Kendall's τ of two columns, over seeds."""
    return t_interval(np.array(list(_compute_correlations(rows, x, y).values())))


def spreads(rows: Sequence[Row], others: Sequence[Row], x: str, y: str = "alignment") -> Estimate:
    """The difference of τ between two studies, paired by seed."""
    return gap(_compute_correlations(rows, x, y), _compute_correlations(others, x, y))


def _compute_correlations(rows: Sequence[Row], x: str, y: str) -> dict[int, float]:
    each = {k: where(rows, seed=k) for k in values(rows, "seed")}
    return {
        k: float(stats.kendalltau([r[x] for r in m], [r[y] for r in m]).statistic)
        for k, m in each.items()
    }


def check_lead(e: Evidence) -> Found:
    """DY Table 2: who leads, and whether the differences from random are the paper's."""
    s, rows = e.part(widest_campaigns(e), "rounds")
    found = _judge_lead(s, rows)
    agreement = paper_agreement(s, rows)
    if agreement is None:
        return found
    return Found(found.verdict, f"{found.text}; {agreement}")


def paper_agreement(s: Any, rows: Sequence[Row]) -> str | None:
    """Return how the differences from random at the end go with the paper's.

    None where it ran other rounds.
    """
    paper = PAPER.get(s.query, {})
    usual = where(rows, batch=s.query, rounds=s.rounds, start="warm", gamma="2", round=s.rounds)
    names = [n for n in s.strategies if n in paper and n != RANDOM]
    if s.rounds != PAPER_ROUNDS[-1] or len(names) < 3:
        return None
    base = accuracies(where(usual, strategy=RANDOM))
    ours = [gap(accuracies(where(usual, strategy=n)), base).mean for n in names]
    theirs = [paper[n][-1] - paper[RANDOM][-1] for n in names]
    r = float(np.corrcoef(ours, theirs)[0, 1])
    each = ", ".join(
        f"{n} {_format_signed(t)} / {_format_signed(o)}"
        for n, t, o in zip(names, theirs, ours, strict=True)
    )
    verb = "agrees with" if r > AGREEMENT else "differs from"
    text = f"end − random {verb} the paper's (paper / here, r = {r:.2f}): {each}"
    if s.query != USUAL_QUERY:
        return text
    low, high = min(PAPER_DEVIATIONS.values()), max(PAPER_DEVIATIONS.values())
    error = (
        (PAPER_DEVIATIONS["dynamical"] ** 2 + PAPER_DEVIATIONS[RANDOM] ** 2) / PAPER_SEEDS
    ) ** 0.5
    return (
        f"{text}; with standard deviations of {low:.1f} to {high:.1f} points over {PAPER_SEEDS} "
        "runs (standard error of "
        f"dynamicAL − random {error:.1f}) the paper's numbers do not separate the strategies either"
    )


def _format_signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def check_larger_batches(e: Evidence) -> Found:
    """DY Table 3."""
    return _judge_lead(*e.part("dynamics-500", "rounds"))


def check_other_networks(e: Evidence) -> Found:
    """DY Table 8, from three seeds.

    A lead in all rounds is one if it is also beyond the interval at the end.
    """
    n = _get_complete_numbers(e, "fig-caltech")
    if n is None:
        raise KeyError("fig-caltech")
    by_round = {
        i: {
            name: {seed: 100 * float(c[i]) for seed, c in each.items()}
            for name, each in n.curves.accuracy.items()
        }
        for i in range(1, len(n.curves.labels))
    }
    found = _check_leader(by_round)
    ends = by_round[max(by_round)]
    is_significant = sure(gap(ends["dynamical"], ends[RANDOM]))
    return found if is_significant or found.verdict != YES else Found(OPEN, found.text)


def _judge_lead(s: Any, rows: list[Row]) -> Found:
    usual = where(rows, batch=s.query, rounds=s.rounds, start="warm", gamma="2")
    return _check_leader(
        {
            n: {name: accuracies(where(usual, strategy=name, round=n)) for name in s.strategies}
            for n in range(1, s.rounds + 1)
        }
    )


def _check_leader(by_round: Mapping[int, Mapping[str, Mapping[int, float]]]) -> Found:
    """Whether nothing is ahead of dynamicAL in any round; where something is, whether the seeds
    tell.

    by_round: round -> strategy -> seed -> accuracy in per cent.
    """
    rounds = len(by_round)
    firsts = sum(_find_rank(ends, "dynamical") == 1 for ends in by_round.values())
    ends = by_round[max(by_round)]
    apart = {n: gap(dict(ends["dynamical"]), dict(ends[n])) for n in ends if n != "dynamical"}
    best = next(n for n in rank_names(ends) if n != "dynamical")
    led = [n for n, v in apart.items() if sure(v) and v.mean > 0]
    behind = [n for n, v in apart.items() if sure(v) and v.mean < 0]
    verdict = YES if firsts == rounds else NO if behind else PART if RANDOM in led else OPEN
    others = "" if best == RANDOM else f" and {span(apart[best], 1)} from {best}"
    return Found(
        verdict,
        f"first in {firsts} of {rounds} rounds, rank {_find_rank(ends, 'dynamical')} of "
        f"{len(ends)} at the end, "
        f"{span(apart[RANDOM], 1)} points from random{others}; significantly better than "
        f"{', '.join(led) or 'none'}, worse than {', '.join(behind) or 'none'}",
    )


def _find_rank(ends: Mapping[str, Mapping[int, float]], name: str) -> int:
    """1 for the highest mean over seeds; equals share a rank."""
    means = {n: float(np.mean(list(end.values()))) for n, end in ends.items()}
    return 1 + sum(v > means[name] for v in means.values())


def rank_names(ends: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Names by mean over seeds, the highest first."""
    return sorted(ends, key=lambda n: -float(np.mean(list(ends[n].values()))))


def accuracies(rows: Sequence[Row]) -> dict[int, float]:
    """Seed -> accuracy, in per cent."""
    return {r["seed"]: 100 * r["accuracy"] for r in rows}


def check_approximation_ratio(e: Evidence) -> Found:
    s, rows = e.part("dynamics-cifar10", "ratio")
    last = where(rows, epoch=s.epochs[-1])
    ratios = {b: over_seeds(where(last, batch=b), "ratio_of_means") for b in s.batches}
    near = sum(abs(v.mean - 1) <= 0.1 for v in ratios.values())
    return Found(
        _format_share(near, len(ratios)),
        "at the end of training R is "
        + ", ".join(f"{span(v)} (b = {b})" for b, v in ratios.items()),
    )


def check_gamma(e: Evidence) -> Found:
    return _check_campaigns(e, _judge_gamma)


def _judge_gamma(s: Any, rows: list[Row]) -> Found | None:
    usual = where(
        rows, batch=s.query, rounds=s.rounds, start="warm", strategy="dynamical", round=s.rounds
    )
    ends = {f"{g:g}": accuracies(where(usual, gamma=f"{g:g}")) for g in s.gammas}
    gaps = {g: gap(end, ends["2"]) for g, end in ends.items() if g != "2"} if "2" in ends else {}
    if not gaps:
        return None
    below = sum(sure(v) and v.mean < 0 for v in gaps.values())
    said = ", ".join(f"γ = {g} {span(v, 1)}" for g, v in gaps.items()).replace("inf", "∞")
    verdict = _format_share(below, len(gaps)) if any(sure(v) for v in gaps.values()) else OPEN
    return Found(verdict, f"end minus that of γ = 2: {said}")


def check_rounds(e: Evidence) -> Found:
    return _check_campaigns(e, _judge_rounds)


def _judge_rounds(s: Any, rows: list[Row]) -> Found | None:
    """One budget in the most and in the fewest rounds."""
    mine = where(rows, strategy="dynamical", gamma="2", start="warm")
    splits = sorted((n, b) for b, n in s.splits)
    if len(splits) < 2:
        return None
    ends = {n: accuracies(where(mine, rounds=n, batch=b, round=n)) for n, b in splits}
    drift = {n: mean(where(mine, rounds=n, batch=b, round=n), "mmd_over_bound") for n, b in splits}
    few, many = splits[0][0], splits[-1][0]
    apart = gap(ends[many], ends[few])
    good = [sure(apart) and apart.mean > 0, drift[many] < drift[few]]
    return Found(
        _format_share(sum(good), 2) if sure(apart) else OPEN,
        f"{many} rounds − {few}: {span(apart, 1)} points; MMD/B {drift[many]:.4f} against "
        f"{drift[few]:.4f}",
    )


def check_reset_weights(e: Evidence) -> Found:
    return _check_campaigns(e, _judge_reset_weights)


def _judge_reset_weights(s: Any, rows: list[Row]) -> Found | None:
    mine = where(rows, batch=s.query, rounds=s.rounds, gamma="2", round=s.rounds, start="cold")
    ends = {n: accuracies(where(mine, strategy=n)) for n in s.cold}
    gaps = {n: gap(ends["dynamical"], ends[n]) for n in s.cold if n != "dynamical"}
    if not gaps:
        return None
    said = ", ".join(f"{span(v, 1)} points from {n}" for n, v in gaps.items())
    return Found(
        _describe_level(list(gaps.values()), LEVEL),
        f"dynamicAL with new weights, at the end: {said}",
    )


# --- the lecture
# --------------------------------------------------------------------------------------------


def check_linear_bounds(e: Evidence) -> Found:
    _, rows = e.part("linear", "error")
    broken = sum(r["error"] > r["bound"] for r in rows)
    closest = max(r["error"] / r["bound"] for r in rows)
    return Found(
        NO if broken else YES,
        f"{broken} of {len(rows)} errors above their bound, the largest {100 * closest:.0f} % of "
        "it",
    )


def check_exponent(part: str, value: str, wanted: float) -> Callable[[Evidence], Found]:
    """Whether a quantity falls with the width as fast as that."""

    def check(e: Evidence) -> Found:
        _, rows = e.part("linear", part)
        fit = t_interval(np.array(slopes(rows, "width", value)))
        return Found(
            YES if abs(fit.mean - wanted) <= NEAR else PART if fit.mean < 0 else NO,
            f"exponent {span(fit)}",
        )

    return check


def check_gradient_flow(e: Evidence) -> Found:
    s, rows = e.part("linear", "flow")
    fit = t_interval(np.array(slopes(where(rows, steps=s.flow_marks[-1]), "width", "error")))
    return Found(
        YES if sure(fit) and fit.mean < 0 else NO,
        f"distance at the end of training: m to the {span(fit)}",
    )


def check_scaling(e: Evidence) -> Found:
    _, rows = e.part("linear", "lazy")
    wide = [r for r in rows if r["scale"] >= 1]
    fit = t_interval(np.array(slopes(wide, "scale", "distance")))
    return Found(
        YES if sure(fit) and fit.mean < 0 else NO,
        f"distance to the linearised network: α to the {span(fit)}",
    )


def check_nested_training(e: Evidence) -> Found:
    _, rows = e.part("linear", "warm")
    worst = max(r["difference"] for r in where(rows, kind="fixed kernel", time="∞"))
    return Found(YES if worst < 1e-8 else NO, f"difference {worst:.0e} for a fixed kernel")


def check_supremum(e: Evidence) -> Found:
    s, rows = e.part("linear-theory", "supremum")
    above = {d: max(r[f"above_{d:g}"] for r in rows) for d in s.deltas}
    wide = [r for r in rows if r["width"] >= s.sup_widths[(len(s.sup_widths) - 1) // 2]]
    fits = {
        b: t_interval(np.array(slopes(where(wide, radius=b), "width", "median"))) for b in s.radii
    }
    said = ", ".join(f"{span(v)} (B = {b:g})" for b, v in fits.items())
    most = ", ".join(f"{100 * a:.0f} % at δ = {d:g}" for d, a in above.items())
    return Found(
        YES if all(a <= d for d, a in above.items()) else NO,
        f"exceeded in {most}; exponent of m {said}, −1/6 in the bound",
    )


def check_kernel_movement(e: Evidence) -> Found:
    s, rows = e.part("linear-theory", "drift")
    fits = {
        k: {d: t_interval(np.array(slopes(where(rows, depth=d), "width", k))) for d in s.depths}
        for k in ("kernel_moved", "output_gap")
    }
    good = [v.mean <= NEAR - 0.5 for each in fits.values() for v in each.values()]
    said = [", ".join(f"{span(v)} ({d} hidden)" for d, v in each.items()) for each in fits.values()]
    return Found(
        _format_share(sum(good), len(good)),
        f"exponents of the width: kernel {said[0]}; outputs {said[1]}",
    )


def check_equivalence(e: Evidence) -> Found:
    s, rows = e.part("linear-theory", "trained")
    ends = {
        k: over_seeds(where(rows, kappa=k, width=s.trained_widths[-1]), "distance")
        for k in s.kappas
    }
    best = min(ends, key=lambda k: ends[k].mean)
    fit = t_interval(np.array(slopes(where(rows, kappa=best), "width", "distance")))
    said = ", ".join(f"κ = {k:g} {span(v)}" for k, v in ends.items())
    verdict = YES if sure(fit) and fit.mean < 0 and best < s.kappas[0] else NO
    return Found(
        verdict,
        f"relative distance at width {s.trained_widths[-1]:,}: {said}; at κ = {best:g} with the "
        f"exponent {span(fit)}",
    )


def check_universality(e: Evidence) -> Found:
    s, rows = e.part("linear-theory", "universal")
    last = where(rows, target="even", items=s.universal_items[-1])
    on, above = (over_seeds(where(last, place=p), "error") for p in ("sphere", "raised"))
    verdict = YES if above.mean < 0.5 < on.mean else NO
    return Found(
        verdict,
        f"unexplained share of an even target's variance: {span(on)} on the sphere, {span(above)} "
        "with the constant coordinate",
    )


def check_separation(e: Evidence) -> Found:
    s, rows = e.part("linear-theory", "separation")
    last = where(rows, share=s.separation_shares[-1])
    learnt = sum(r["unit"] < 1e-3 for r in last)
    ends = {d: over_seeds(where(last, dimension=d), "infinite") for d in s.separation_dimensions}
    said = ", ".join(f"{span(v)} ({d} dimensions)" for d, v in ends.items())
    verdict = YES if learnt == len(last) and min(v.mean for v in ends.values()) > 0.01 else PART
    return Found(
        verdict,
        f"one unit learns it in {learnt} of {len(last)} runs; share of the variance that the infinite "
        f"kernel does not explain: {said}",
    )


def check_theorem(value: str) -> Callable[[Evidence], Found]:
    """PN's Theorems 5 and 6: whether a quantity falls as w^(−1/2) and stays below its bound."""

    def check(e: Evidence) -> Found:
        _, rows = e.part("kernel-theorems", "theorems")
        fits = [
            t_interval(np.array(slopes(rows, "width", v))) for v in (value, f"relative_{value}")
        ]
        broken = sum(r[value] > r[f"{value}_bound"] for r in rows)
        near = [abs(f.mean + 0.5) <= NEAR for f in fits]
        verdict = NO if broken or not any(near) else YES if near[0] else PART
        return Found(
            verdict,
            f"exponent {span(fits[0])} (relative: {span(fits[1])}); bound exceeded {broken} times "
            f"of {len(rows)}",
        )

    return check


def check_lemmas(e: Evidence) -> Found:
    _, rows = e.part("kernel-theorems", "layers")
    good = check_layers(rows)
    return Found(
        _format_share(sum(good), len(good)),
        f"{sum(good)} of {len(good)} exponents are within the bounds",
    )


def check_first_lemma(e: Evidence) -> Found:
    s, rows = e.part("dynamics-lemmas", "lemma")
    off = {
        k: over_seeds(
            [
                {"off": max(abs(r[k] - r["real"]) for r in where(wide, seed=seed))}
                for seed in values(wide, "seed")
            ],
            "off",
        )
        for wide in [[r for r in where(rows, width=s.lemma_widths[-1]) if r["steps"]]]
        for k in ("predicted", "from_start")
    }
    good = [v.mean < 0.1 for v in off.values()]
    return Found(
        _format_share(sum(good), len(good)),
        f"largest error at width {s.lemma_widths[-1]:,}: {span(off['predicted'])} of ‖Y‖, or "
        f"{span(off['from_start'])} if the initial outputs are taken into account",
    )


def check_dropped_term(e: Evidence) -> Found:
    s, rows = e.part("dynamics-lemmas", "slack")
    shares = {b: mean(where(rows, batch=b), lambda r: r["dropped"] / r["bound"]) for b in s.batches}
    most = max(mean(where(rows, batch=b), lambda r: r["mmd"] / r["bound"]) for b in s.batches)
    low, high = min(shares.values()), max(shares.values())
    return Found(
        YES if high < 0.1 else NO,
        f"at mean diagonal 1 they are {low:.2g} to {high:.2g} of B, while MMD is at most {most:.1g} "
        "of B; both ratios are proportional to the scale of the kernel",
    )
