"""All numbers of a report, from the curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labelahead.errors import InputError
from labelahead.simulation.comparison.curves import Curves
from labelahead.simulation.comparison.plan import Arm
from labelahead.simulation.comparison.statistics import (
    Array,
    Estimate,
    Omnibus,
    Pair,
    Saving,
    area,
    critical_difference,
    labels_to,
    mean_ranks,
    nemenyi,
    omnibus,
    pairs,
    saving,
    t_interval,
)
from labelahead.simulation.store import Round

__all__ = ["ASKING", "Need", "Row", "Summary", "asking_seconds", "summarise"]

ASIDE = ("test", "leave-one-out")  # bookkeeping of a simulation: no part of a query
ASKING = ("outputs", "kernel", "solve", "score")  # the usual parts of a query, in order


@dataclass(frozen=True)
class Need:
    """Labels to reach an accuracy: on the mean curve, and seed by seed (inf: never)."""

    saving: Saving
    per_seed: Mapping[int, float]

    @property
    def reached(self) -> int:
        """How many seeds reach it on their own."""
        return sum(np.isfinite(v) for v in self.per_seed.values())

    @property
    def median(self) -> float:
        """The middle seed, with those that never reach it last: inf if half of them do not."""
        return float(np.quantile(list(self.per_seed.values()), 0.5, method="inverted_cdf"))


@dataclass(frozen=True)
class Row:
    """One strategy. gain, final_gain: minus the reference, paired by seed."""

    arm: Arm
    area: Estimate
    final: Estimate
    gain: Estimate | None
    final_gain: Estimate | None
    needs: tuple[Need | None, ...]  # per target; None without a seed in common
    seconds: Mapping[str, float]  # part -> median over rounds that asked


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks over blocks, one block per seed, and which of them Nemenyi's test tells apart."""

    arms: tuple[Arm, ...]
    mean: Array
    p: Array
    critical: float


@dataclass(frozen=True, eq=False)
class Summary:
    """Everything a report says. rows: best area first. targets[0] is the reference's end."""

    curves: Curves
    reference: Arm
    rows: tuple[Row, ...]
    targets: tuple[float, ...]
    pairs: tuple[Pair, ...]  # numbered along `arms`
    by_seed: Omnibus | None
    by_round: Omnibus | None
    ranks: Ranks | None

    @property
    def arms(self) -> tuple[Arm, ...]:
        """In the order of the rows."""
        return tuple(row.arm for row in self.rows)

    @property
    def best(self) -> Row | None:
        """Of those that can be compared with the reference, the one with the largest gain."""
        others = [r for r in self.rows if r.arm != self.reference and r.gain is not None]
        return max(others, key=lambda r: r.gain.mean if r.gain else 0.0, default=None)

    @property
    def won(self) -> Row | None:
        """The best, if it gets to where the reference ends with fewer labels."""
        best = self.best
        if best is None or best.gain is None or best.needs[0] is None or best.gain.mean <= 0:
            return None
        labels = best.needs[0].saving
        return best if labels.other < labels.reference else None

    def pair(self, one: Arm, two: Arm) -> Pair | None:
        """The test of these two, in whichever order it was made."""
        wanted = {self.arms.index(one), self.arms.index(two)}
        return next((p for p in self.pairs if {p.first, p.second} == wanted), None)


def asking_seconds(entry: Round) -> float:
    """Of one round, all but training, testing and bookkeeping."""
    return sum(seconds for part, seconds in entry.seconds.items() if part not in ("train", *ASIDE))


def summarise(curves: Curves, accuracies: Sequence[float] = ()) -> Summary:
    """Work out everything; accuracies: further targets besides the reference's end."""
    for target in accuracies:
        if not 0 < target <= 1:
            raise InputError(f"accuracy is {target}; expected a fraction above 0, up to 1")
    comparison, reference = curves.comparison, curves.comparison.reference
    end = float(curves.stack(reference, curves.seeds(reference))[:, -1].mean())
    targets = (end, *dict.fromkeys(accuracies))
    rows = [_row(curves, arm, reference, targets[1:]) for arm in comparison.arms]
    rows.sort(key=lambda r: -r.area.mean)
    arms = [r.arm for r in rows]
    columns = [
        {s: float(area(curves.labels, c)) for s, c in curves.accuracy[a].items()} for a in arms
    ]
    common = curves.seeds(*arms)
    by_seed = by_round = ranks = None
    if len(arms) > 1 and len(common) > 1:
        values = np.array([[column[s] for column in columns] for s in common])
        by_seed = omnibus(values)
        blocks = np.stack([curves.stack(a, common)[:, 1:] for a in arms], axis=-1)
        if blocks.shape[1]:
            by_round = omnibus(blocks.reshape(-1, len(arms)))
        if len(arms) > 2:
            critical = critical_difference(len(arms), len(common))
            ranks = Ranks(tuple(arms), mean_ranks(values), nemenyi(values), critical)
    return Summary(
        curves, reference, tuple(rows), targets, tuple(pairs(columns)), by_seed, by_round, ranks
    )


def _row(curves: Curves, arm: Arm, reference: Arm, extra: Sequence[float]) -> Row:
    own = curves.stack(arm, curves.seeds(arm))
    common = curves.seeds(arm, reference)
    gain = final_gain = None
    needs: list[Need | None] = [None] * (1 + len(extra))
    if common:
        mine, theirs = curves.stack(arm, common), curves.stack(reference, common)
        if arm != reference:
            gain = t_interval(area(curves.labels, mine) - area(curves.labels, theirs))
            final_gain = t_interval(mine[:, -1] - theirs[:, -1])
        needs = [_need(curves.labels, theirs, mine, t, common) for t in (None, *extra)]
    return Row(
        arm,
        t_interval(area(curves.labels, own), share=True),
        t_interval(own[:, -1], share=True),
        gain,
        final_gain,
        tuple(needs),
        _seconds(curves, arm),
    )


def _need(
    labels: Array, theirs: Array, mine: Array, target: float | None, seeds: Sequence[int]
) -> Need:
    mean = saving(labels, theirs, mine, target)
    each = labels_to(labels, mine, mean.accuracy)
    return Need(mean, dict(zip(seeds, each.tolist(), strict=True)))


def _seconds(curves: Curves, arm: Arm) -> dict[str, float]:
    """The median over all rounds that asked: the first of a process also loads libraries."""
    spent: dict[str, list[float]] = {}
    for done in curves.done:
        if done.arm != arm:
            continue
        for entry in done.rounds:
            if entry.asked:
                for part, seconds in entry.seconds.items():
                    if part not in ASIDE:
                        spent.setdefault(part, []).append(seconds)
    return {part: float(np.median(values)) for part, values in spent.items()}
