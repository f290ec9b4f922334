"""The statistics of a table, from its CSV alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelahead.errors import InputError
from labelahead.simulation.comparison.statistics import (
    ALPHA,
    Array,
    Estimate,
    Omnibus,
    Pair,
    Saving,
    area_under_curve,
    compare_pairs,
    compute_saving,
    critical_difference,
    holm,
    mean_ranks,
    nemenyi,
    run_omnibus_test,
    t_interval,
)
from research.results.lines import Line, read_csv
from research.results.table import Table

RANDOM, DEFAULT = "random", "flip"
MOST = 2 / 3  # of the tables a strategy must be in for the wider of the two rankings


@dataclass(frozen=True, eq=False)
class Curves:
    """The campaigns of a table or of one of its variants. accuracy: strategy -> seed -> (rounds,)

    missing: strategies of the table file with how many seeds they lack.
    """

    labels: Array
    accuracy: Mapping[str, Mapping[int, Array]]
    query: Mapping[str, float]  # seconds, median over the rounds that asked
    whole: Mapping[str, float]  # seconds of training and asking, median over campaigns
    missing: Mapping[str, int]

    def seeds(self, *names: str) -> list[int]:
        """Seeds that all these have."""
        return sorted(set.intersection(*(set(self.accuracy[n]) for n in names)))

    def stack(self, name: str, seeds: Sequence[int]) -> Array:
        """(seeds, rounds)"""
        return np.stack([self.accuracy[name][s] for s in seeds])

    def areas(self, name: str) -> dict[int, float]:
        """The mean accuracy along the curve, by seed."""
        return {s: float(area_under_curve(self.labels, c)) for s, c in self.accuracy[name].items()}


@dataclass(frozen=True)
class Versus:
    """A strategy minus a reference along the curve, paired by seed. p: corrected after Holm."""

    difference: Estimate
    p: float

    @property
    def verdict(self) -> int:
        """1 above the reference, -1 below, 0 not told apart from it."""
        if self.p >= ALPHA:
            return 0
        return 1 if self.difference.mean > 0 else -1


@dataclass(frozen=True)
class Row:
    """One strategy. gain: minus random; lead: the default minus this one."""

    name: str
    area: Estimate
    final: Estimate
    gain: Versus | None
    saving: Saving | None
    lead: Versus | None
    query: float
    whole: float


@dataclass(frozen=True, eq=False)
class Numbers:
    """Everything that is said of one comparison. rows: the highest curve first."""

    curves: Curves
    rows: tuple[Row, ...]
    friedman: Omnibus | None

    def row(self, name: str) -> Row | None:
        """The row of that strategy, if there is one."""
        return next((r for r in self.rows if r.name == name), None)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Strategies over tables, each table a block."""

    names: tuple[str, ...]
    blocks: tuple[str, ...]
    mean: Array
    p: Array
    critical: float
    friedman: Omnibus


def read_numbers(table: Table, folder: Path) -> dict[str, Numbers] | None:
    """Variant -> its numbers; None while there is no CSV."""
    path = folder / f"{table.name}.csv"
    if not path.exists():
        return None
    lines = read_csv(path, Line)
    wanted = [x for x in lines if x.seed < table.seeds and x.strategy in table.strategies]
    by_variant = {}
    for variant in table.variants:
        own = [x for x in wanted if x.variant == variant]
        if own:
            by_variant[variant] = numbers(_curves(own, table, path))
    if not by_variant:
        raise InputError(
            f"{path} holds no campaign that {table.name}.toml asks for; expected rounds of "
            f"{', '.join(table.strategies[:3])} with seeds below {table.seeds}: run `make "
            f"results-{table.name}`"
        )
    return by_variant


def _curves(lines: Sequence[Line], table: Table, path: Path) -> Curves:
    campaigns: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        campaigns.setdefault((line.strategy, line.seed), []).append(line)
    grid = max(
        ([x.labels for x in sorted(c, key=lambda x: x.labels)] for c in campaigns.values()), key=len
    )
    accuracy: dict[str, dict[int, Array]] = {}
    for (name, seed), rounds in campaigns.items():
        rounds.sort(key=lambda x: x.labels)
        have = [x.labels for x in rounds]
        if have != grid:
            lacking = sorted(set(grid) - set(have)) or sorted(set(have) - set(grid))
            raise InputError(
                f"{path}: {name}, seed {seed}, has {len(have)} rounds, others {len(grid)} "
                f"(they differ at {lacking[0]} labels); expected the same numbers of labels for "
                f"all: delete its lines and run `make results-{table.name}`"
            )
        accuracy.setdefault(name, {})[seed] = np.array([x.accuracy for x in rounds])
    asked: dict[str, list[float]] = {}
    whole: dict[str, list[float]] = {}
    for (name, _), rounds in campaigns.items():
        asked.setdefault(name, []).extend(x.query_seconds for x in rounds[:-1] or rounds)
        spent = sum(x.train_seconds + x.query_seconds for x in rounds)
        whole.setdefault(name, []).append(spent)
    lacks = {n: table.seeds - len(accuracy.get(n, ())) for n in table.strategies}
    return Curves(
        np.array(grid, dtype=np.float64),
        accuracy,
        {n: float(np.median(v)) for n, v in asked.items()},
        {n: float(np.median(v)) for n, v in whole.items()},
        {n: k for n, k in lacks.items() if k > 0},
    )


def numbers(curves: Curves) -> Numbers:
    """All statistics of one comparison."""
    tested = compare_pairs([curves.areas(name) for name in curves.accuracy])
    gains = against(curves, tested, RANDOM)
    leads = against(curves, tested, DEFAULT, turned=True)
    rows = []
    for name in curves.accuracy:
        own = curves.stack(name, curves.seeds(name))
        common = curves.seeds(name, RANDOM) if RANDOM in curves.accuracy else []
        saved = None
        if common:
            both = curves.stack(RANDOM, common), curves.stack(name, common)
            saved = compute_saving(curves.labels, *both)
        rows.append(
            Row(
                name,
                t_interval(area_under_curve(curves.labels, own)),
                t_interval(own[:, -1]),
                gains.get(name),
                saved,
                leads.get(name),
                curves.query[name],
                curves.whole[name],
            )
        )
    rows.sort(key=lambda r: (-r.area.mean, r.name))
    names = [r.name for r in rows]
    common = curves.seeds(*names)
    areas = [curves.areas(n) for n in names]
    values = np.array([[column[s] for column in areas] for s in common])
    friedman = run_omnibus_test(values) if len(names) > 1 and len(common) > 1 else None
    return Numbers(curves, tuple(rows), friedman)


def against(
    curves: Curves, tested: Sequence[Pair], reference: str, *, turned: bool = False
) -> dict[str, Versus]:
    """Every other strategy minus the reference (turned: the reference minus it).

    tested: all pairs, numbered along curves.accuracy. Holm's correction is for the comparisons
    with this reference, not for all pairs.
    """
    names = list(curves.accuracy)
    gaps: dict[str, tuple[Estimate, float]] = {}
    for pair in tested:
        one, two = names[pair.first], names[pair.second]
        if reference in (one, two):
            ahead = (one == reference) == turned
            gap = pair.difference if ahead else pair.difference.negate()
            gaps[two if one == reference else one] = gap, pair.p
    corrected = holm([p for _, p in gaps.values()])
    return {n: Versus(gap, p) for (n, (gap, _)), p in zip(gaps.items(), corrected, strict=True)}


def contrast(curves: Curves, one: str, two: str) -> Versus | None:
    """One strategy minus another along the curve; its p is its own, without correction."""
    if not {one, two} <= set(curves.accuracy):
        return None
    tested = compare_pairs([curves.areas(one), curves.areas(two)])
    return Versus(tested[0].difference, tested[0].p) if tested else None


def rankings(blocks: Mapping[str, Numbers]) -> list[Ranking]:
    """Over all tables the strategies that are in each of them; then those that are in most.

    A second ranking only where it has more strategies: of the tables, those that hold them all.
    """
    held = {block: {r.name for r in n.rows} for block, n in blocks.items()}
    counts = {
        n: sum(n in names for names in held.values()) for names in held.values() for n in names
    }
    everywhere = {n for n, count in counts.items() if count == len(held)}
    common = {n for n, count in counts.items() if count >= MOST * len(held)}
    made = [_ranking(blocks, everywhere)]
    if common > everywhere:
        wide = {b: n for b, n in blocks.items() if held[b] >= common}
        made.append(_ranking(wide, common))
    return [ranking for ranking in made if ranking is not None]


def _ranking(blocks: Mapping[str, Numbers], names: Iterable[str]) -> Ranking | None:
    """None with fewer than three strategies or two tables: there is nothing to rank.

    In a table that is not finished the seeds count that all of them have: a strategy that lacks a
    hard one must not gain by it. Without such a seed the table is left out.
    """
    chosen = sorted(names)
    blocks = {b: n for b, n in blocks.items() if chosen and n.curves.seeds(*chosen)}
    if len(chosen) < 3 or len(blocks) < 2:
        return None
    values = np.array([_areas(n.curves, chosen) for n in blocks.values()])
    order = np.argsort(mean_ranks(values), kind="stable")
    values = values[:, order]
    return Ranking(
        tuple(chosen[i] for i in order),
        tuple(blocks),
        mean_ranks(values),
        nemenyi(values),
        critical_difference(len(chosen), len(blocks)),
        run_omnibus_test(values),
    )


def _areas(curves: Curves, names: Sequence[str]) -> list[float]:
    """Mean accuracy along the curve, each over the seeds that all have."""
    common = curves.seeds(*names)
    return [float(np.mean(area_under_curve(curves.labels, curves.stack(n, common)))) for n in names]
