"""The part of docs/results-papers.md on the studies of the theory.

Every number in it is read from research/data/studies.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from labelahead.simulation.comparison.statistics import t_interval
from research.results.checks import (
    LOOKAHEADS,
    Evidence,
    accuracies,
    correlation_times,
    kendall,
    paper_agreement,
    rank_names,
    spreads,
    widest_campaigns,
)
from research.results.numbers import RANDOM
from research.results.text import grid
from research.studies.charts import mean, slopes, span, sure
from research.studies.design import Row, values, where
from research.studies.dynamics.figures import LEADS, PAPER, PAPER_ROUNDS
from research.studies.fidelity.figures import short
from research.studies.lookahead.figures import final, gap, seconds

MISSING = "Not measured yet."


def theory_block(e: Evidence) -> str:
    """What each study came to, a point each."""
    made = {
        "fidelity": _fidelity,
        "kernel": _kernel,
        "wallclock": _time,
        "lookahead": _retraining,
        "linear": _lecture,
    }
    return "\n".join(f"- {make(e)}" for name, make in made.items() if e.has(name)) or MISSING


def _page(name: str) -> str:
    return f"[page](results/studies/{name}/README.md)"


def _fidelity(e: Evidence) -> str:
    s, rows = e.study("fidelity")
    table = short(s, where(rows, part="warm")).table
    best, narrow, new = (
        table[0],
        *(next(r for r in table if word in r["network"]) for word in ("narrow", "only")),
    )
    return (
        f"**Does look-ahead tell the truth?** ({_page('fidelity')}) {best['network']}, trained "
        "and going on to train: "
        "order of the "
        f"candidates {best['order of candidates']}, direction {best['direction of Δf']}, with the "
        "full kernel "
        f"{best['… with the full kernel']}, predicted over real size "
        f"{best['predicted / real size']}. "
        f"{narrow['network']}: direction "
        f"{narrow['direction of Δf']}; {new['network']}: {new['direction of Δf']}. The residual "
        "alone ranks at "
        f"{best['… by the residual alone']}. Of a retraining from new weights it says little: one "
        "label's effect is "
        "no larger than the "
        "noise of another order (same page)."
    )


def _kernel(e: Evidence) -> str:
    _, rows = e.part("kernel", "rate")
    sentences = []
    for value, what in (
        ("error_pseudo", "against the trace kernel's norm"),
        ("distance_pseudo", "against the full kernel's"),
    ):
        each = {
            n: float(np.mean(slopes(where(rows, network=n), "width", value)))
            for n in values(rows, "network")
        }
        sentences.append(
            f"{', '.join(f'{n} {v:.2f}' for n, v in each.items())} {what}".replace("-", "−")
        )
    _, trained = e.part("kernel", "training")
    better = sum(r["accuracy_pseudo"] >= r["accuracy_full"] for r in trained)
    share = [
        mean(where(rows, network=n), lambda r: r["distance_trace"] / r["distance_pseudo"])
        for n in values(rows, "network")
    ]
    return (
        f"**How good is the pseudo-kernel?** ({_page('kernel')}) Exponents of the width in its "
        "distance from the full "
        "kernel: "
        f"{'; '.join(sentences)} (the first norm was chosen after a pilot). No scalar kernel is nearer "
        "than the trace "
        "kernel, at "
        f"{100 * min(share):.0f} to {100 * max(share):.0f} % of its distance. Regression by it is "
        "at least as "
        "accurate as by the full one in "
        f"{better} of {len(trained)} cases."
    )


def _time(e: Evidence) -> str:
    _, rows = e.study("wallclock")
    sentences = []
    for classes in values(rows, "classes"):
        for what, name in (("pair", "a pair"), ("items", "many items")):
            ratio = [100 * r["ratio"] for r in where(rows, classes=classes, what=what)]
            sentences.append(
                f"{min(ratio):.0f} to {max(ratio):.0f} % for {name} at {classes} classes"
            )
    parts = ", ".join(sentences)
    return (
        f"**Time** ({_page('wallclock')}): the pseudo-kernel takes {parts} of the full "
        "kernel's (the thesis: 15 %)."
    )


def _retraining(e: Evidence) -> str:
    sentences = [
        _against_retraining(e, study, name) for study, name in LOOKAHEADS.items() if e.has(study)
    ]
    return f"**Against really retraining**: {'; '.join(sentences)}."


def _against_retraining(e: Evidence, study: str, name: str) -> str:
    s, rows = e.study(study)
    spent = {arm: float(np.mean(list(seconds(rows, arm).values()))) for arm in ("naive", "ntk-few")}
    ahead = gap(final(s, rows, "ntk-few"), final(s, rows, "naive"))
    return (
        f"{name} ({_page(study)}) {spent['naive'] / spent['ntk-few']:.0f} times faster on the "
        f"same {s.few} candidates, "
        f"{span(ahead, 1)} points apart, {'which is beyond' if sure(ahead) else 'within'} the "
        "interval"
    )


def _lecture(e: Evidence) -> str:
    _, rows = e.part("linear", "error")
    closest = max(r["error"] / r["bound"] for r in rows)
    _, limit = e.part("linear", "limit")
    s, flow = e.part("linear", "flow")
    _, warm = e.part("linear", "warm")
    worst = max(r["difference"] for r in where(warm, kind="fixed kernel", time="∞"))
    rates = [
        t_interval(np.array(slopes(r, "width", "error")))
        for r in (limit, where(flow, steps=s.flow_marks[-1]))
    ]
    return (
        f"**The lecture** ({_page('linear')}): "
        f"{sum(r['error'] > r['bound'] for r in rows) or 'no'} error is above "
        "its bound (the closest "
        f"{100 * closest:.0f} % of it), the arc-cosine limit is reached with the exponent "
        f"{span(rates[0])} of the "
        "width, gradient flow is "
        f"gradient descent up to the exponent {span(rates[1])}, and warm starts equal cold ones "
        f"to {worst:.0e} for a "
        "fixed kernel."
    )


def dynamics_block(e: Evidence) -> str:
    """dynamicAL on CIFAR-10 beside its Tables 2 and 3, and what its theory came to."""
    if not e.has("dynamics-cifar10"):
        return MISSING
    larger = ["dynamics-500"] if e.has("dynamics-500") else []
    campaigns = [_beside_the_paper(e, name) for name in (widest_campaigns(e), *larger)]
    return "\n\n".join([*campaigns, f"{_links(e, 'dynamics-cifar10')}\n\n{_wide(e)}"])


def _beside_the_paper(e: Evidence, name: str) -> str:
    """Accuracies of the strategies in some rounds, the paper's in brackets, and where dynamicAL
    ends.
    """
    s, rows = e.part(name, "rounds")
    shown = [n for n in PAPER_ROUNDS if n <= s.rounds]
    usual = where(rows, batch=s.query, rounds=s.rounds, start="warm", gamma="2")
    base = accuracies(where(usual, strategy=RANDOM, round=s.rounds))
    lines, ends = [], {}
    for strategy in s.strategies:
        mine, theirs = where(usual, strategy=strategy), PAPER[s.query][strategy]
        cells = [
            f"{100 * mean(where(mine, round=n), 'accuracy'):.1f} "
            f"({theirs[PAPER_ROUNDS.index(n)]:.1f})"
            for n in shown
        ]
        ends[strategy] = accuracies(where(mine, round=s.rounds))
        lines.append(
            [strategy, *cells, "" if strategy == RANDOM else span(gap(ends[strategy], base), 1)]
        )
    head = [
        "queried by",
        *(f"{s.initial + s.query * n:,} labels" for n in shown),
        f"end − {RANDOM}, 95 %",
    ]
    apart = {n: gap(end, base) for n, end in ends.items() if n != RANDOM}
    sentences = [
        f"beyond its interval {word} random: {', '.join(names) or 'none'}"
        for word, names in (
            ("above", [n for n, v in apart.items() if sure(v) and v.mean > 0]),
            ("below", [n for n, v in apart.items() if sure(v) and v.mean < 0]),
        )
    ]
    agreement = paper_agreement(s, rows)
    agrees = "" if agreement is None else f" {agreement[0].upper()}{agreement[1:]}."
    return (
        f"{s.query} per round ({_page(name)}), {s.seeds} seeds:\n\n{grid(head, lines)}\n\n"
        f"In the paper dynamicAL {LEADS[s.query]}; here it is at rank "
        f"{rank_names(ends).index('dynamical') + 1} of "
        f"{len(ends)} at the end, {span(apart['dynamical'], 1)} points from random; "
        f"{'; '.join(sentences)}." + agrees
    )


def _links(e: Evidence, name: str) -> str:
    s, rows = e.part(name, "correlation")
    times = correlation_times(s.times)
    sentences = [
        f"{what} {', '.join(span(kendall(rows, f'{kind}_{t:g}', y)) for t in times)} (the paper: "
        f"{paper})"
        for what, kind, y, paper in (
            ("with true labels", "true", "alignment", "“strong”"),
            ("with pseudo-labels", "pseudo", "alignment", "0.46"),
            ("with the bound B", "true", "bound", "−0.253"),
        )
    ]
    when = ", ".join("convergence" if t == inf else f"t = {t:g}" for t in times)
    return f"Kendall's τ of training dynamics and alignment at {when}: {'; '.join(sentences)}."


def _wide(e: Evidence) -> str:
    """The same by a kernel of infinite width, where it was measured."""
    if not e.has("dynamics-infinite"):
        return "The kernel is that of one new network of 32 channels; a wider one was not measured."
    s, rows = e.part("dynamics-infinite", "correlation")
    other, narrow = e.part("dynamics-cifar10", "correlation")
    time = next(t for t in correlation_times(s.times) if t in other.times)
    column = f"pseudo_{time:g}"
    wide, own = kendall(rows, column, "alignment"), kendall(narrow, column, "alignment")
    moved = spreads(rows, narrow, column)
    verdict = "a significant difference" if sure(moved) else "no significant difference"
    return (
        "That is with the kernel of one new network of 32 channels. With that of infinite width "
        "([page](results/studies/dynamics-infinite/"
        f"README.md), images averaged to {s.kernel_side}×{s.kernel_side}, sets drawn from "
        f"{s.pool} items): "
        f"{_links(e, 'dynamics-infinite')} For pseudo-labels at t = {time:g} τ is {span(wide)} "
        f"instead of {span(own)} "
        f"(paired over seeds {span(moved)}), {verdict}."
        + (
            ""
            if min(s.times[1:]) < 1
            else " Training times below 1 were not measured there: rerun pending."
        )
    )


def regression_block(e: Evidence) -> str:
    """Kernel regression on whole sets."""
    if not e.has("regression"):
        return MISSING
    s, rows = e.part("regression", "whole")
    lines = []
    for name in dict.fromkeys(r["set"] for r in rows):
        new, old = (
            where(rows, set=name, checkpoint=c)[0] for c in (s.checkpoints[0], s.checkpoints[-1])
        )
        shares = [
            f"{100 * r[k]:.1f} %" for r in (new, old) for k in ("accuracy_f", "accuracy_kernel")
        ]
        lines.append(
            [
                name.removesuffix(".npz"),
                *shares,
                f"{new['solve_seconds']:.0f}, {old['solve_seconds']:.0f}",
                f"{new['iterations']:.0f}, {old['iterations']:.0f}",
            ]
        )
    ahead = _ahead(rows, s.checkpoints[-1])
    head = [
        "",
        "network, new",
        "kernel, new",
        "network, trained",
        "kernel, trained",
        "solving, s",
        "iterations",
    ]
    said = (
        f"The kernel of the trained network is ahead of the network itself on {ahead} of "
        f"{len(lines)} sets."
    )
    return f"{grid(head, lines)}\n\n{said}"


def _ahead(rows: Sequence[Row], checkpoint: float) -> int:
    return sum(r["accuracy_kernel"] > r["accuracy_f"] for r in where(rows, checkpoint=checkpoint))
