"""A comparison as CSV files and sentences."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from math import isinf

from labelahead.simulation.comparison.plan import Contender
from labelahead.simulation.comparison.statistics import ALPHA, Estimate, Pair, Saving, t_interval
from labelahead.simulation.comparison.summary import Need, Row, Summary

__all__ = [
    "ALPHA",
    "csv_files",
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

TESTS = (
    "first",
    "second",
    "seeds",
    "difference",
    "difference_low",
    "difference_high",
    "p_paired_t",
    "p_holm",
    "p_nemenyi",
)


def csv_files(s: Summary) -> dict[str, str]:
    """Return file name -> content. An empty cell: unknown, or never reached."""
    return {
        "rounds.csv": _csv(_rounds(s)),
        "curves.csv": _csv(_curves(s)),
        "summary.csv": _csv(_summary(s)),
        "labels-to-accuracy.csv": _csv(_labels(s)),
        "tests.csv": _csv(_tests(s), header=TESTS),
    }


def _csv(rows: Iterable[Mapping[str, object]], header: Sequence[str] = ()) -> str:
    """Format rows as CSV. header: needed if there may be no row."""
    every = list(rows)
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header or every[0])
    writer.writerows(row.values() for row in every)
    return file.getvalue()


def _ends(name: str, e: Estimate | None) -> dict[str, object]:
    mean, low, high = (None, None, None) if e is None else (e.mean, e.low, e.high)
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def _number(value: float | None) -> float | None:
    return None if value is None or isinf(value) else value


def _embedding_column(contender: Contender) -> dict[str, object]:
    """Return the embedding where several are compared."""
    return {"embedding": contender.embedding} if contender.embedding else {}


def _rounds(s: Summary) -> Iterator[dict[str, object]]:
    parts = dict.fromkeys(p for d in s.curves.done for r in d.rounds for p in r.seconds)
    for d in s.curves.done:
        for r in d.rounds:
            yield {
                "strategy": d.contender.called,
                "mode": d.contender.mode,
                **_embedding_column(d.contender),
                "seed": d.seed,
                "round": r.number,
                "labels": r.labels,
                "accuracy": r.accuracy,
                "train_accuracy": r.train_accuracy,
                "asked": r.asked,
                "gain": r.gain,
                "leave_one_out": r.loo,
                **{f"seconds_{p}": r.seconds.get(p) for p in parts},
            }


def _curves(s: Summary) -> Iterator[dict[str, object]]:
    for contender in s.contenders:
        own = s.curves.stack(contender, s.curves.seeds(contender))
        common = s.curves.seeds(contender, s.reference)
        gap = (
            s.curves.stack(contender, common) - s.curves.stack(s.reference, common)
            if common
            else None
        )
        for i, count in enumerate(s.curves.labels):
            yield {
                "strategy": contender.name,
                "labels": f"{count:g}",
                "seeds": len(own),
                **_ends("accuracy", t_interval(own[:, i], share=True)),
                "paired_seeds": len(common),
                **_ends("difference", None if gap is None else t_interval(gap[:, i])),
            }


def _summary(s: Summary) -> Iterator[dict[str, object]]:
    parts = dict.fromkeys(p for row in s.rows for p in row.seconds)
    for row in s.rows:
        yield {
            "strategy": row.contender.called,
            "mode": row.contender.mode,
            **_embedding_column(row.contender),
            "seeds": row.area.n,
            **_ends("area", row.area),
            **_ends("area_minus_reference", row.gain),
            **_ends("final", row.final),
            **_ends("final_minus_reference", row.final_gain),
            **{f"seconds_{p}": row.seconds.get(p) for p in parts},
        }


def _labels(s: Summary) -> Iterator[dict[str, object]]:
    """Yield rows; seed "mean" is the mean curve with its bootstrapped interval."""
    for row in s.rows:
        for need in row.needs:
            if need is None:
                continue
            v, which = (
                need.saving,
                {"strategy": row.contender.name, "accuracy": need.saving.accuracy},
            )
            yield {
                **which,
                "seed": "mean",
                "labels": _number(v.other),
                "labels_low": _number(v.other_low),
                "labels_high": _number(v.other_high),
                "reference_per_label": _number(v.ratio),
                "ratio_low": _number(v.ratio_low),
                "ratio_high": _number(v.ratio_high),
            }
            for seed, count in need.per_seed.items():
                yield {**which, "seed": seed, "labels": _number(count)}


def _tests(s: Summary) -> Iterator[dict[str, object]]:
    for pair in s.pairs:
        rank = None if s.ranks is None else float(s.ranks.p[pair.first, pair.second])
        names = (s.contenders[pair.first].name, s.contenders[pair.second].name)
        gap = _ends("difference", pair.difference).values()
        yield dict(
            zip(TESTS, (*names, pair.difference.n, *gap, pair.p, pair.holm, rank), strict=True)
        )


def percent(value: float) -> str:
    """Format a fraction as 93.2 %."""
    return f"{100 * value:.1f} %"


def p_text(p: float) -> str:
    """Format a p-value."""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def mean(e: Estimate | None, *, signed: bool = False) -> str:
    """Format a mean in per cent, or in points if signed."""
    return "—" if e is None else _hundredfold(e.mean, signed)


def interval(e: Estimate | None, *, signed: bool = False) -> str:
    """Format the ends of an interval; empty without any."""
    if e is None or e.low is None or e.high is None:
        return ""
    return f"{_hundredfold(e.low, signed)} to {_hundredfold(e.high, signed)}"


def estimate(e: Estimate | None, *, signed: bool = False) -> str:
    """Format mean and interval: 93.2 (92.1 to 94.3)."""
    ends = interval(e, signed=signed)
    return mean(e, signed=signed) + (f" ({ends})" if ends else "")


def _hundredfold(value: float, signed: bool) -> str:
    text = f"{100 * value:{'+' if signed else ''}.1f}"
    return {"+0.0": "0.0", "-0.0": "0.0"}.get(text, text).replace("-", "−")


def labels(count: float | None, budget: float) -> str:
    """Format a number of labels; never reached is more than the budget."""
    if count is None:
        return "—"
    return f"> {budget:.0f}" if isinf(count) else f"{count:.0f}"


def headline(s: Summary) -> tuple[str, str]:
    """Return the report's first sentence, and the qualification that belongs to it."""
    ref, best = s.reference.name, s.best
    if best is None or best.gain is None or best.needs[0] is None:
        return (
            f"{ref} reaches {percent(s.targets[0])} test accuracy; there is nothing to compare it "
            "with yet.",
            "",
        )
    saving, name = best.needs[0].saving, best.contender.name
    budget = float(s.curves.labels[-1])
    if best.gain.mean <= 0:
        first = f"No strategy beat {ref}."
    elif isinf(saving.other):
        first = (
            f"{name} is ahead of {ref} along the way but does not reach the "
            f"{percent(saving.accuracy)} that {ref} ends with."
        )
    elif saving.other >= saving.reference:
        first = (
            f"{name} is ahead of {ref} along the way but saves no labels: both need about "
            f"{labels(saving.reference, budget)} for {percent(saving.accuracy)}."
        )
    else:
        first = (
            f"{ref} needs {labels(saving.reference, budget)} labels for what {name} reaches with "
            f"{labels(saving.other, budget)}."
        )
        return first, " ".join([_saved(saving, ref), _proof(s, best)])
    return first, _proof(s, best)


def _saved(saving: Saving, ref: str) -> str:
    times = f"That is {saving.ratio:.1f} times as many"
    if saving.ratio_low is not None and saving.ratio_high is not None:
        low = "below 1" if saving.ratio_low == 0 else f"{saving.ratio_low:.1f}"
        times += f" (95 % interval {low} to {saving.ratio_high:.1f})"
    return f"{times} for {percent(saving.accuracy)} test accuracy, the level {ref} ends with."


def _proof(s: Summary, best: Row) -> str:
    """Describe the evidence for the difference."""
    gain, pair = best.gain, s.pair(best.contender, s.reference)
    assert gain is not None
    ahead = "above" if gain.mean > 0 else "below"
    text = (
        f"Over the whole curve {best.contender.name} is {abs(100 * gain.mean):.1f} points {ahead} "
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
    """Compare the best contender and the reference with all others, one sentence per verdict."""
    notes = []
    for contender in dict.fromkeys([s.rows[0].contender, s.reference]):
        groups: dict[str, list[str]] = {}
        for pair in s.pairs:
            if s.contenders.index(contender) in (pair.first, pair.second):
                verdict, text = _verdict(s, pair, contender)
                groups.setdefault(verdict, []).append(text)
        notes += [
            f"{contender.name} {verdict} {'; '.join(group)}." for verdict, group in groups.items()
        ]
    return notes


def _verdict(s: Summary, pair: Pair, contender: Contender) -> tuple[str, str]:
    """Describe one comparison from the side of one contender."""
    mine = s.contenders[pair.first] == contender
    other = s.contenders[pair.second if mine else pair.first]
    gap = pair.difference if mine else pair.difference.negate()
    verdict = "does not differ significantly from"
    if pair.holm < ALPHA:
        verdict = "is better than" if gap.mean > 0 else "is worse than"
    how = "" if not pair.constant else ", the same in every seed: sign test"
    points = f"{mean(gap, signed=True)} points, {interval(gap, signed=True)}"
    return verdict, f"{other.name} ({points}; {p_text(pair.holm)}{how})"


def needed(need: Need | None, budget: float) -> str:
    """Format the interval of labels to an accuracy; empty without any."""
    if need is None or need.saving.other_low is None or need.saving.other_high is None:
        return ""
    low, high = (labels(v, budget) for v in (need.saving.other_low, need.saving.other_high))
    return "" if low == high else f"{low} to {high}"


def seconds(value: float | None) -> str:
    """Format seconds with two significant digits."""
    if value is None:
        return "—"
    if value >= 10:
        return f"{value:.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return "< 0.001" if value < 0.001 else f"{value:.2g}"


def omnibus_text(s: Summary) -> str:
    """Describe the omnibus test: whether any strategies differ."""
    common = s.curves.seeds(*s.contenders)
    if s.by_seed is None:
        why = (
            "there is one strategy"
            if len(s.contenders) < 2
            else f"{len(common)} seeds are finished"
        )
        return f"No test was made: {why}, and a test needs two strategies with two seeds in common."
    test = s.by_seed
    name = "Friedman’s test" if test.test == "Friedman" else "Wilcoxon’s signed-rank test"
    why = "" if test.test == "Friedman" else " (there are two strategies; Friedman’s needs three)"
    verdict = (
        "the strategies are not all equally good"
        if test.p < ALPHA
        else "it finds no significant difference between the strategies"
    )
    return (
        f"{name}{why} on the area under the curve, one block per seed ({test.blocks} blocks, "
        f"independent of one another): {p_text(test.p)}, so {verdict}."
    )
