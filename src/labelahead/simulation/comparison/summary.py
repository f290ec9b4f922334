"""All numbers of a report, computed from the curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from labelahead.errors import InputError
from labelahead.simulation.comparison.curves import Curves
from labelahead.simulation.comparison.plan import Contender
from labelahead.simulation.comparison.statistics import (
    Array,
    Estimate,
    Omnibus,
    Pair,
    Saving,
    area_under_curve,
    compare_pairs,
    compute_saving,
    critical_difference,
    labels_to_accuracy,
    mean_ranks,
    nemenyi,
    run_omnibus_test,
    t_interval,
)
from labelahead.simulation.measures import Measure, find_output_measure, list_measures
from labelahead.simulation.store import Round

__all__ = [
    "QUERY_STAGES",
    "ContenderSummary",
    "LabelsNeeded",
    "Summary",
    "query_seconds",
    "summarise",
]

BOOKKEEPING_STAGES = ("test", "leave-one-out")  # of a simulation; not part of a query
QUERY_STAGES = ("outputs", "kernel", "solve", "score")  # the usual stages of a query, in order


@dataclass(frozen=True)
class LabelsNeeded:
    """Labels to reach an accuracy: on the mean curve, and per seed (inf: never)."""

    saving: Saving
    per_seed: Mapping[int, float]

    @property
    def reached_seeds(self) -> int:
        """The number of seeds that reach it."""
        return sum(np.isfinite(v) for v in self.per_seed.values())

    @property
    def median(self) -> float:
        """The median over seeds; inf if half of them never reach it."""
        return float(np.quantile(list(self.per_seed.values()), 0.5, method="inverted_cdf"))


@dataclass(frozen=True)
class ContenderSummary:
    """One contender. gain, final_gain: minus the reference, paired by seed."""

    contender: Contender
    area: Estimate
    final: Estimate
    gain: Estimate | None
    final_gain: Estimate | None
    needs: tuple[LabelsNeeded | None, ...]  # per target; None without a seed in common
    seconds: Mapping[str, float]  # stage -> median over rounds with queries
    # further measures of a task, and those of its outputs -> scores after the last rounds
    others: Mapping[Measure, Estimate] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Ranks:
    """Mean ranks with one block per seed, and the p-values of Nemenyi's test."""

    contenders: tuple[Contender, ...]
    mean: Array
    p: Array
    critical: float


@dataclass(frozen=True, eq=False)
class Summary:
    """All results of a report. rows: largest area first. targets[0] is the reference's final accuracy."""

    curves: Curves
    reference: Contender
    rows: tuple[ContenderSummary, ...]
    targets: tuple[float, ...]
    pairs: tuple[Pair, ...]  # numbered along `contenders`
    by_seed: Omnibus | None
    by_round: Omnibus | None
    ranks: Ranks | None

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """In the order of the rows."""
        return tuple(row.contender for row in self.rows)

    @property
    def best(self) -> ContenderSummary | None:
        """The contender with the largest gain over the reference."""
        others = [r for r in self.rows if r.contender != self.reference and r.gain is not None]
        return max(others, key=lambda r: r.gain.mean if r.gain else 0.0, default=None)

    @property
    def winner(self) -> ContenderSummary | None:
        """The best one, if it reaches the reference's final accuracy with fewer labels."""
        best = self.best
        if best is None or best.gain is None or best.needs[0] is None or best.gain.mean <= 0:
            return None
        labels = best.needs[0].saving
        return best if labels.other < labels.reference else None

    def pair(self, one: Contender, two: Contender) -> Pair | None:
        """Return the test of these two, in either order."""
        wanted = {self.contenders.index(one), self.contenders.index(two)}
        return next((p for p in self.pairs if {p.first, p.second} == wanted), None)


def query_seconds(entry: Round) -> float:
    """Return the query time of one round: everything but training, testing and bookkeeping."""
    return sum(
        seconds
        for part, seconds in entry.seconds.items()
        if part not in ("train", *BOOKKEEPING_STAGES)
    )


def summarise(curves: Curves, accuracies: Sequence[float] = ()) -> Summary:
    """Compute all results.

    Args:
        curves: The finished campaigns.
        accuracies: Targets besides the reference's final accuracy; values of the measure.
    """
    measure = curves.measure
    for target in accuracies:
        if measure.is_share and not 0 < target <= 1:
            raise InputError(f"accuracy is {target}; expected a fraction above 0, up to 1")
    accuracies = [measure.restore(target) for target in accuracies]
    comparison, reference = curves.comparison, curves.comparison.reference
    end = float(curves.stack(reference, curves.seeds(reference))[:, -1].mean())
    targets = (end, *dict.fromkeys(accuracies))
    rows = [
        _summarise_contender(curves, contender, reference, targets[1:])
        for contender in comparison.contenders
    ]
    rows.sort(key=lambda r: -r.area.mean)
    contenders = [r.contender for r in rows]
    columns = [
        {s: float(area_under_curve(curves.labels, c)) for s, c in curves.accuracy[a].items()}
        for a in contenders
    ]
    common = curves.seeds(*contenders)
    by_seed = by_round = ranks = None
    if len(contenders) > 1 and len(common) > 1:
        values = np.array([[column[s] for column in columns] for s in common])
        by_seed = run_omnibus_test(values)
        blocks = np.stack([curves.stack(a, common)[:, 1:] for a in contenders], axis=-1)
        if blocks.shape[1]:
            by_round = run_omnibus_test(blocks.reshape(-1, len(contenders)))
        if len(contenders) > 2:
            critical = critical_difference(len(contenders), len(common))
            ranks = Ranks(tuple(contenders), mean_ranks(values), nemenyi(values), critical)
    return Summary(
        curves,
        reference,
        tuple(rows),
        targets,
        tuple(compare_pairs(columns)),
        by_seed,
        by_round,
        ranks,
    )


def _summarise_contender(
    curves: Curves, contender: Contender, reference: Contender, extra: Sequence[float]
) -> ContenderSummary:
    own = curves.stack(contender, curves.seeds(contender))
    common = curves.seeds(contender, reference)
    gain = final_gain = None
    needs: list[LabelsNeeded | None] = [None] * (1 + len(extra))
    if common:
        accuracy, reference_accuracy = (
            curves.stack(contender, common),
            curves.stack(reference, common),
        )
        if contender != reference:
            gain = t_interval(
                area_under_curve(curves.labels, accuracy)
                - area_under_curve(curves.labels, reference_accuracy)
            )
            final_gain = t_interval(accuracy[:, -1] - reference_accuracy[:, -1])
        needs = [
            _labels_needed(curves.labels, reference_accuracy, accuracy, t, common)
            for t in (None, *extra)
        ]
    return ContenderSummary(
        contender,
        t_interval(area_under_curve(curves.labels, own), share=curves.measure.is_share),
        t_interval(own[:, -1], share=curves.measure.is_share),
        gain,
        final_gain,
        tuple(needs),
        _median_seconds(curves, contender),
        _other_measures(curves, contender),
    )


def _other_measures(curves: Curves, contender: Contender) -> dict[Measure, Estimate]:
    """Return the scores after the last rounds by all other measures of a task and its outputs."""
    last = [done.rounds[-1] for done in curves.done if done.contender == contender]
    source = curves.comparison.campaign.data
    known = {m.name: m for m in list_measures(source.task, curves.measure.unit)}
    names = dict.fromkeys(name for entry in last for name in entry.measures)
    found = {}
    for name in [n for n in names if n != curves.measure.name]:
        values = [entry.measures[name] for entry in last if name in entry.measures]
        measure = known.get(name) or find_output_measure(name, known)
        estimate = t_interval(np.array(values), share=measure.is_share)
        found[measure] = estimate if measure.larger_is_better else estimate.negate()
    return found


def _labels_needed(
    labels: Array,
    reference_accuracy: Array,
    accuracy: Array,
    target: float | None,
    seeds: Sequence[int],
) -> LabelsNeeded:
    mean = compute_saving(labels, reference_accuracy, accuracy, target)
    each = labels_to_accuracy(labels, accuracy, mean.accuracy)
    return LabelsNeeded(mean, dict(zip(seeds, each.tolist(), strict=True)))


def _median_seconds(curves: Curves, contender: Contender) -> dict[str, float]:
    """Return medians over all rounds with queries, since the first round of a process also loads
    libraries.
    """
    spent: dict[str, list[float]] = {}
    for done in curves.done:
        if done.contender != contender:
            continue
        for entry in done.rounds:
            if entry.asked:
                for part, seconds in entry.seconds.items():
                    if part not in BOOKKEEPING_STAGES:
                        spent.setdefault(part, []).append(seconds)
    return {part: float(np.median(values)) for part, values in spent.items()}
