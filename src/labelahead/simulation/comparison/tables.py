"""A comparison as CSV files and sentences."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from math import isinf

from labelahead.simulation.comparison.plan import Contender
from labelahead.simulation.comparison.statistics import ALPHA, Estimate, Pair, Saving, t_interval
from labelahead.simulation.comparison.summary import ContenderSummary, LabelsNeeded, Summary
from labelahead.simulation.measures import ACCURACY, Measure

__all__ = [
    "ALPHA",
    "build_csv_files",
    "build_headline",
    "describe_differences",
    "describe_omnibus_test",
    "format_estimate",
    "format_interval",
    "format_label_interval",
    "format_labels",
    "format_mean",
    "format_p_value",
    "format_percent",
    "format_seconds",
]

TEST_COLUMNS = (
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


def build_csv_files(summary: Summary) -> dict[str, str]:
    """Return file name -> content. An empty cell: unknown, or never reached."""
    return {
        "rounds.csv": _format_csv(_round_rows(summary)),
        "curves.csv": _format_csv(_curve_rows(summary)),
        "summary.csv": _format_csv(_summary_rows(summary)),
        "labels-to-accuracy.csv": _format_csv(_label_rows(summary)),
        "tests.csv": _format_csv(_test_rows(summary), header=TEST_COLUMNS),
    }


def _format_csv(rows: Iterable[Mapping[str, object]], header: Sequence[str] = ()) -> str:
    """Format rows as CSV. header: needed if there may be no row."""
    every = list(rows)
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header or every[0])
    writer.writerows(row.values() for row in every)
    return file.getvalue()


def _interval_columns(
    name: str, estimate: Estimate | None, measure: Measure = ACCURACY
) -> dict[str, object]:
    mean, low, high = (None, None, None)
    if estimate is not None:
        shown = _restore(estimate, measure)
        mean, low, high = shown.mean, shown.low, shown.high
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def _restore(estimate: Estimate, measure: Measure) -> Estimate:
    """Return an estimate of a score, or of a difference of scores, as one of the measure."""
    return estimate if measure.larger_is_better else estimate.negate()


def _finite_or_none(value: float | None) -> float | None:
    return None if value is None or isinf(value) else value


def _arm_columns(contender: Contender) -> dict[str, object]:
    """Return embedding and start where several are compared."""
    columns = {"embedding": contender.embedding, "guesses": contender.guesses}
    return {name: value for name, value in columns.items() if value}


def _round_rows(summary: Summary) -> Iterator[dict[str, object]]:
    parts = dict.fromkeys(
        p for finished in summary.curves.done for r in finished.rounds for p in r.seconds
    )
    others = dict.fromkeys(
        name for finished in summary.curves.done for r in finished.rounds for name in r.measures
    )
    for finished in summary.curves.done:
        for r in finished.rounds:
            results = {name: r.measures.get(name) for name in others} or {"accuracy": r.accuracy}
            yield {
                "strategy": finished.contender.short_name,
                "mode": finished.contender.mode,
                **_arm_columns(finished.contender),
                "seed": finished.seed,
                "round": r.number,
                "labels": r.labels,
                **results,
                "train_accuracy": r.train_accuracy,
                "asked": r.asked,
                "gain": r.gain,
                "leave_one_out": r.loo,
                **{f"seconds_{p}": r.seconds.get(p) for p in parts},
            }


def _curve_rows(summary: Summary) -> Iterator[dict[str, object]]:
    measure = summary.curves.measure
    for contender in summary.contenders:
        own = summary.curves.stack(contender, summary.curves.seeds(contender))
        common = summary.curves.seeds(contender, summary.reference)
        gap = (
            summary.curves.stack(contender, common)
            - summary.curves.stack(summary.reference, common)
            if common
            else None
        )
        for i, count in enumerate(summary.curves.labels):
            yield {
                "strategy": contender.name,
                "labels": f"{count:g}",
                "seeds": len(own),
                **_interval_columns(
                    measure.name, t_interval(own[:, i], share=measure.is_share), measure
                ),
                "paired_seeds": len(common),
                **_interval_columns(
                    "difference", None if gap is None else t_interval(gap[:, i]), measure
                ),
            }


def _summary_rows(summary: Summary) -> Iterator[dict[str, object]]:
    parts = dict.fromkeys(p for row in summary.rows for p in row.seconds)
    measure = summary.curves.measure
    for row in summary.rows:
        yield {
            "strategy": row.contender.short_name,
            "mode": row.contender.mode,
            **_arm_columns(row.contender),
            "seeds": row.area.n,
            **_interval_columns("area", row.area, measure),
            **_interval_columns("area_minus_reference", row.gain, measure),
            **_interval_columns("final", row.final, measure),
            **_interval_columns("final_minus_reference", row.final_gain, measure),
            **{f"seconds_{p}": row.seconds.get(p) for p in parts},
        }


def _label_rows(summary: Summary) -> Iterator[dict[str, object]]:
    """Yield rows; seed "mean" is the mean curve with its bootstrapped interval."""
    measure = summary.curves.measure
    for row in summary.rows:
        for need in row.needs:
            if need is None:
                continue
            v, which = (
                need.saving,
                {
                    "strategy": row.contender.name,
                    measure.name: measure.restore(need.saving.accuracy),
                },
            )
            yield {
                **which,
                "seed": "mean",
                "labels": _finite_or_none(v.other),
                "labels_low": _finite_or_none(v.other_low),
                "labels_high": _finite_or_none(v.other_high),
                "reference_per_label": _finite_or_none(v.ratio),
                "ratio_low": _finite_or_none(v.ratio_low),
                "ratio_high": _finite_or_none(v.ratio_high),
            }
            for seed, count in need.per_seed.items():
                yield {**which, "seed": seed, "labels": _finite_or_none(count)}


def _test_rows(summary: Summary) -> Iterator[dict[str, object]]:
    for pair in summary.pairs:
        rank = None if summary.ranks is None else float(summary.ranks.p[pair.first, pair.second])
        names = (summary.contenders[pair.first].name, summary.contenders[pair.second].name)
        measure = summary.curves.measure
        gap = _interval_columns("difference", pair.difference, measure).values()
        yield dict(
            zip(
                TEST_COLUMNS,
                (*names, pair.difference.n, *gap, pair.p, pair.holm, rank),
                strict=True,
            )
        )


def format_percent(value: float) -> str:
    """Format a fraction as 93.2 %."""
    return f"{100 * value:.1f} %"


def format_p_value(p: float) -> str:
    """Format a p-value."""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def format_mean(
    estimate: Estimate | None, *, signed: bool = False, measure: Measure = ACCURACY
) -> str:
    """Format a mean in per cent, or in points if signed; other measures in their unit."""
    return "—" if estimate is None else _format_score(estimate.mean, signed, measure)


def format_interval(
    estimate: Estimate | None, *, signed: bool = False, measure: Measure = ACCURACY
) -> str:
    """Format the ends of an interval; empty without any."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    ends = [estimate.low, estimate.high]
    texts = [_format_score(end, signed, measure) for end in sorted(ends, key=measure.restore)]
    return " to ".join(texts)


def format_estimate(
    estimate: Estimate | None, *, signed: bool = False, measure: Measure = ACCURACY
) -> str:
    """Format mean and interval: 93.2 (92.1 to 94.3)."""
    ends = format_interval(estimate, signed=signed, measure=measure)
    return format_mean(estimate, signed=signed, measure=measure) + (f" ({ends})" if ends else "")


def _format_score(score: float, signed: bool, measure: Measure) -> str:
    return measure.format_plain(score, signed).replace("-", "−")


def format_labels(count: float | None, budget: float) -> str:
    """Format a number of labels; never reached is more than the budget."""
    if count is None:
        return "—"
    return f"> {budget:.0f}" if isinf(count) else f"{count:.0f}"


def build_headline(summary: Summary) -> tuple[str, str]:
    """Return the report's first sentence, and the evidence for it."""
    ref, best, measure = summary.reference.name, summary.best, summary.curves.measure
    if best is None or best.gain is None or best.needs[0] is None:
        return (
            f"{ref} reaches {measure.format(summary.targets[0])} test {measure.title}; no other "
            "strategy has finished on the same seeds yet.",
            "",
        )
    saving, name = best.needs[0].saving, best.contender.name
    budget = float(summary.curves.labels[-1])
    if best.gain.mean <= 0:
        first = f"No strategy beat {ref}."
    elif isinf(saving.other):
        first = (
            f"{name} has the {_better(measure)} mean {measure.title}, but does not reach the "
            f"{measure.format(saving.accuracy)} that {ref} ends with."
        )
    elif saving.other >= saving.reference:
        first = (
            f"{name} has a {_better(measure)} mean {measure.title} than {ref} but saves no labels: "
            f"both need about {format_labels(saving.reference, budget)} for "
            f"{measure.format(saving.accuracy)}."
        )
    else:
        first = (
            f"{ref} needs {format_labels(saving.reference, budget)} labels for what {name} reaches "
            f"with {format_labels(saving.other, budget)}."
        )
        why = [_describe_saving(saving, ref, measure), _describe_evidence(summary, best)]
        return first, " ".join(why)
    return first, _describe_evidence(summary, best)


def _better(measure: Measure) -> str:
    """Return which of two values is better."""
    return "higher" if measure.larger_is_better else "lower"


def _describe_saving(saving: Saving, ref: str, measure: Measure) -> str:
    times = f"That is {saving.ratio:.1f} times as many"
    if saving.ratio_low is not None and saving.ratio_high is not None:
        low = "below 1" if saving.ratio_low == 0 else f"{saving.ratio_low:.1f}"
        times += f" (95 % interval {low} to {saving.ratio_high:.1f})"
    return (
        f"{times} for {measure.format(saving.accuracy)} test {measure.title}, the level {ref} ends "
        "with."
    )


def _describe_evidence(summary: Summary, best: ContenderSummary) -> str:
    """Describe the evidence for the difference."""
    gain, pair = best.gain, summary.pair(best.contender, summary.reference)
    assert gain is not None
    measure = summary.curves.measure
    ahead = "above" if (gain.mean > 0) == measure.larger_is_better else "below"
    gap = measure.format_plain(measure.restore(abs(gain.mean)))
    text = (
        f"Over the whole curve {best.contender.name} is {gap}{measure.points} {ahead} "
        f"{summary.reference.name} on average"
    )
    if pair is None or gain.low is None or gain.high is None:
        return f"{text}; one seed gives no interval and no test: run more with --seeds."
    many = f", corrected for {len(summary.pairs)} comparisons" if len(summary.pairs) > 1 else ""
    text += (
        f" (95 % interval {format_interval(gain, signed=True, measure=measure)}, "
        f"{format_p_value(pair.holm)}{many})"
    )
    if pair.holm >= ALPHA:
        return f"{text}: with {gain.n} seeds this may be chance."
    return f"{text}, over {gain.n} seeds."


def describe_differences(summary: Summary) -> list[str]:
    """Compare the best contender and the reference with all others, one sentence per verdict."""
    notes = []
    for contender in dict.fromkeys([summary.rows[0].contender, summary.reference]):
        groups: dict[str, list[str]] = {}
        for pair in summary.pairs:
            if summary.contenders.index(contender) in (pair.first, pair.second):
                verdict, text = _describe_difference(summary, pair, contender)
                groups.setdefault(verdict, []).append(text)
        notes += [
            f"{contender.name} {verdict} {'; '.join(group)}." for verdict, group in groups.items()
        ]
    return notes


def _describe_difference(summary: Summary, pair: Pair, contender: Contender) -> tuple[str, str]:
    """Describe one comparison from the side of one contender."""
    is_own = summary.contenders[pair.first] == contender
    other = summary.contenders[pair.second if is_own else pair.first]
    gap = pair.difference if is_own else pair.difference.negate()
    verdict = "does not differ significantly from"
    if pair.holm < ALPHA:
        verdict = "is better than" if gap.mean > 0 else "is worse than"
    how = "" if not pair.constant else ", the same in every seed: sign test"
    measure = summary.curves.measure
    interval = format_interval(gap, signed=True, measure=measure)
    points = f"{format_mean(gap, signed=True, measure=measure)}{measure.points}, {interval}"
    return verdict, f"{other.name} ({points}; {format_p_value(pair.holm)}{how})"


def format_label_interval(need: LabelsNeeded | None, budget: float) -> str:
    """Format the interval of labels to an accuracy; empty without any."""
    if need is None or need.saving.other_low is None or need.saving.other_high is None:
        return ""
    low, high = (format_labels(v, budget) for v in (need.saving.other_low, need.saving.other_high))
    return "" if low == high else f"{low} to {high}"


def format_seconds(value: float | None) -> str:
    """Format seconds with two significant digits."""
    if value is None:
        return "—"
    if value >= 10:
        return f"{value:.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return "< 0.001" if value < 0.001 else f"{value:.2g}"


def describe_omnibus_test(summary: Summary) -> str:
    """Describe the omnibus test: whether any strategies differ."""
    common = summary.curves.seeds(*summary.contenders)
    if summary.by_seed is None:
        why = (
            "there is one strategy"
            if len(summary.contenders) < 2
            else f"{len(common)} seeds are finished"
        )
        return f"No test was made: {why}, and a test needs two strategies with two seeds in common."
    test = summary.by_seed
    name = "Friedman’s test" if test.test == "Friedman" else "Wilcoxon’s signed-rank test"
    why = "" if test.test == "Friedman" else " (there are two strategies; Friedman’s needs three)"
    verdict = (
        "the strategies are not all equally good"
        if test.p < ALPHA
        else "it finds no significant difference between the strategies"
    )
    return (
        f"{name}{why} on the area under the curve, one block per seed ({test.blocks} blocks, "
        f"independent of one another): {format_p_value(test.p)}, so {verdict}."
    )
