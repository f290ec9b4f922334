"""The numbers of a report in words."""

from math import isinf

from labelahead.study.plan import Arm
from labelahead.study.statistics import ALPHA, Estimate, Pair, Saving
from labelahead.study.summary import Need, Row, Summary

__all__ = [
    "ALPHA",
    "estimate",
    "headline",
    "interval",
    "labels",
    "mean",
    "needed",
    "omnibus_text",
    "p_text",
    "percent",
    "seconds",
    "verdicts",
]


def percent(value: float) -> str:
    """A fraction as 93.2 %."""
    return f"{100 * value:.1f} %"


def p_text(p: float) -> str:
    """As it is commonly written."""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def mean(e: Estimate | None, *, signed: bool = False) -> str:
    """In per cent, or in points when signed."""
    return "—" if e is None else _hundredfold(e.mean, signed)


def interval(e: Estimate | None, *, signed: bool = False) -> str:
    """Its ends, or nothing when there are none."""
    if e is None or e.low is None or e.high is None:
        return ""
    return f"{_hundredfold(e.low, signed)} to {_hundredfold(e.high, signed)}"


def estimate(e: Estimate | None, *, signed: bool = False) -> str:
    """Mean and interval: 93.2 (92.1 to 94.3)."""
    ends = interval(e, signed=signed)
    return mean(e, signed=signed) + (f" ({ends})" if ends else "")


def _hundredfold(value: float, signed: bool) -> str:
    text = f"{100 * value:{'+' if signed else ''}.1f}"
    return {"+0.0": "0.0", "-0.0": "0.0"}.get(text, text).replace("-", "−")


def labels(count: float | None, budget: float) -> str:
    """A number of labels; never reached is more than the budget."""
    if count is None:
        return "—"
    return f"> {budget:.0f}" if isinf(count) else f"{count:.0f}"


def headline(s: Summary) -> tuple[str, str]:
    """The report's first sentence, and what must be said with it."""
    ref, best = s.reference.name, s.best
    if best is None or best.gain is None or best.needs[0] is None:
        return (
            f"{ref} reaches {percent(s.targets[0])} test accuracy; there is nothing to compare "
            "it with yet.",
            "",
        )
    found, name = best.needs[0].saving, best.arm.name
    budget = float(s.curves.labels[-1])
    if best.gain.mean <= 0:
        first = f"No strategy beat {ref}."
    elif isinf(found.other):
        first = (
            f"{name} is ahead of {ref} along the way but does not reach the "
            f"{percent(found.accuracy)} that {ref} ends with."
        )
    elif found.other >= found.reference:
        first = (
            f"{name} is ahead of {ref} along the way but saves no labels: both need about "
            f"{labels(found.reference, budget)} for {percent(found.accuracy)}."
        )
    else:
        first = (
            f"{ref} needs {labels(found.reference, budget)} labels for what {name} reaches with "
            f"{labels(found.other, budget)}."
        )
        return first, " ".join([_saved(found, ref), _proof(s, best)])
    return first, _proof(s, best)


def _saved(found: Saving, ref: str) -> str:
    times = f"That is {found.ratio:.1f} times as many"
    if found.ratio_low is not None and found.ratio_high is not None:
        low = "below 1" if found.ratio_low == 0 else f"{found.ratio_low:.1f}"
        times += f" (95 % interval {low} to {found.ratio_high:.1f})"
    return f"{times} for {percent(found.accuracy)} test accuracy, the level {ref} ends with."


def _proof(s: Summary, best: Row) -> str:
    """How sure the difference is."""
    gain, pair = best.gain, s.pair(best.arm, s.reference)
    assert gain is not None
    ahead = "above" if gain.mean > 0 else "below"
    text = (
        f"Over the whole curve {best.arm.name} is {abs(100 * gain.mean):.1f} points {ahead} "
        f"{s.reference.name} on average"
    )
    if pair is None or gain.low is None or gain.high is None:
        return f"{text}; one seed gives no interval and no test: run more with --seeds."
    many = f", corrected for {len(s.pairs)} comparisons" if len(s.pairs) > 1 else ""
    text += f" (95 % interval {interval(gain, signed=True)}, {p_text(pair.holm)}{many})"
    if pair.holm >= ALPHA:
        return f"{text}: with {gain.n} seeds this may be chance."
    return f"{text}, over {gain.n} seeds."


def verdicts(s: Summary) -> list[str]:
    """The best and the reference against all others, a sentence for each verdict."""
    found = []
    for arm in dict.fromkeys([s.rows[0].arm, s.reference]):
        groups: dict[str, list[str]] = {}
        for pair in s.pairs:
            if s.arms.index(arm) in (pair.first, pair.second):
                verdict, text = _verdict(s, pair, arm)
                groups.setdefault(verdict, []).append(text)
        found += [f"{arm.name} {verdict} {'; '.join(group)}." for verdict, group in groups.items()]
    return found


def _verdict(s: Summary, pair: Pair, arm: Arm) -> tuple[str, str]:
    """One comparison, as it is seen from one of the two."""
    mine = s.arms[pair.first] == arm
    other = s.arms[pair.second if mine else pair.first]
    gap = pair.difference if mine else _turned(pair.difference)
    verdict = "cannot be told apart from"
    if pair.holm < ALPHA:
        verdict = "is better than" if gap.mean > 0 else "is worse than"
    how = "" if not pair.constant else ", the same in every seed: sign test"
    points = f"{mean(gap, signed=True)} points, {interval(gap, signed=True)}"
    return verdict, f"{other.name} ({points}; {p_text(pair.holm)}{how})"


def _turned(e: Estimate) -> Estimate:
    """The same difference, seen from the other side."""
    low, high = (None if v is None else -v for v in (e.high, e.low))
    return Estimate(-e.mean, low, high, e.n)


def needed(need: Need | None, budget: float) -> str:
    """The interval of labels to an accuracy, or nothing when there is none."""
    if need is None or need.saving.other_low is None or need.saving.other_high is None:
        return ""
    low, high = (labels(v, budget) for v in (need.saving.other_low, need.saving.other_high))
    return "" if low == high else f"{low} to {high}"


def seconds(value: float | None) -> str:
    """Two digits that count."""
    if value is None:
        return "—"
    if value >= 10:
        return f"{value:.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return "< 0.001" if value < 0.001 else f"{value:.2g}"


def omnibus_text(s: Summary) -> str:
    """Whether there is any difference at all, by which test and which blocks."""
    common = s.curves.seeds(*s.arms)
    if s.by_seed is None:
        why = "there is one strategy" if len(s.arms) < 2 else f"{len(common)} seeds are finished"
        return f"No test was made: {why}, and a test needs two strategies with two seeds in common."
    found = s.by_seed
    name = "Friedman’s test" if found.test == "Friedman" else "Wilcoxon’s signed-rank test"
    why = "" if found.test == "Friedman" else " (there are two strategies; Friedman’s needs three)"
    verdict = (
        "the strategies are not all equally good"
        if found.p < ALPHA
        else "the strategies cannot be told apart by it"
    )
    return (
        f"{name}{why} on the area under the curve, one block per seed ({found.blocks} blocks, "
        f"independent of one another): {p_text(found.p)}, so {verdict}."
    )
