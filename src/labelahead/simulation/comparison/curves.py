"""Finished campaigns of a comparison as arrays, and what can be checked of them."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelahead.errors import InputError
from labelahead.learner.config import Campaign, parse, read_stored
from labelahead.simulation.comparison.execution import MACHINE, finished
from labelahead.simulation.comparison.plan import Arm, Comparison, differences, read_comparison
from labelahead.simulation.comparison.statistics import Array
from labelahead.simulation.store import Round, Store

__all__ = ["Curves", "read_curves"]


@dataclass(frozen=True, eq=False)
class Done:
    """One finished campaign."""

    arm: Arm
    seed: int
    campaign: Campaign  # with nothing left open
    rounds: tuple[Round, ...]
    initial: tuple[tuple[int, int], ...]  # (position, class) of the first labels, in order
    data: Mapping[str, Any]  # fingerprint
    machine: Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """Something that must be so for the comparison to be fair."""

    holds: bool
    text: str


@dataclass(frozen=True, eq=False)
class Curves:
    """What a comparison has found so far. accuracy: arm -> seed -> (rounds,) along `labels`."""

    comparison: Comparison  # the arms that have a finished campaign
    folder: Path
    labels: Array  # (rounds,)
    accuracy: Mapping[Arm, Mapping[int, Array]]
    done: tuple[Done, ...]
    missing: tuple[str, ...]  # campaigns that are not finished
    checks: tuple[Check, ...]
    events: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def seeds(self, *arms: Arm) -> list[int]:
        """Seeds that all these arms have finished."""
        each = [set(self.accuracy[a]) for a in arms]
        return sorted(set.intersection(*each)) if each else []

    def stack(self, arm: Arm, seeds: Sequence[int]) -> Array:
        """(seeds, rounds)"""
        return np.stack([self.accuracy[arm][s] for s in seeds])


def read_curves(folder: str | Path, *, trust_code: bool = False) -> Curves:
    """Read a comparison's folder, also while it is running: finished campaigns count.

    trust_code: see `read_comparison`.
    """
    path = Path(folder)
    comparison = read_comparison(path, trust_code=trust_code)
    done, missing = [], []
    for arm in comparison.arms:
        for seed in comparison.seeds:
            where = path / arm.folder / f"seed-{seed}"
            if finished(where):
                done.append(_done(where, arm, seed, trust_code or comparison.code))
            else:
                missing.append(f"{arm.name}, seed {seed}")
    if not done:
        raise InputError(
            f"{folder} has no finished campaign yet; go on with `labelahead compare --out {folder}`"
        )
    arms = tuple(a for a in comparison.arms if any(d.arm == a for d in done))
    labels, notes = _grid(done)
    accuracy: dict[Arm, dict[int, Array]] = {a: {} for a in arms}
    for d in done:
        accuracy[d.arm][d.seed] = np.interp(labels, *_curve(d))
    return Curves(
        Comparison(comparison.campaign, arms, tuple(sorted({d.seed for d in done}))),
        path,
        labels,
        accuracy,
        tuple(done),
        tuple(missing),
        _checks(done),
        _events(path),
        notes,
    )


def _done(where: Path, arm: Arm, seed: int, trust_code: bool | Collection[str]) -> Done:
    store = Store(where)
    rounds = tuple(store.rounds())
    if any(r.accuracy is None for r in rounds):
        raise InputError(f"{where} has rounds without a test accuracy; there is nothing to compare")
    return Done(
        arm,
        seed,
        parse(read_stored(where / "config.toml", trust_code=trust_code)),
        rounds,
        tuple((e.position, e.label) for e in store.labels() if e.round == 0),
        _json(where / "data.json"),
        _json(where / MACHINE),
    )


def _json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _curve(d: Done) -> tuple[Array, Array]:
    labels = np.array([r.labels for r in d.rounds], dtype=np.float64)
    return labels, np.array([r.accuracy for r in d.rounds], dtype=np.float64)


def _grid(done: Sequence[Done]) -> tuple[Array, tuple[str, ...]]:
    """Numbers of labels at which all curves are read."""
    all_labels = [_curve(d)[0] for d in done]
    first = all_labels[0]
    if all(np.array_equal(first, other) for other in all_labels):
        return first, ()
    # A campaign resumed on another machine may have a few more labels in a round than asked for.
    low, high = max(x[0] for x in all_labels), min(x[-1] for x in all_labels)
    inside = [x for x in np.unique(np.concatenate(all_labels)) if low <= x <= high]
    if not inside:
        raise InputError("the campaigns have no number of labels in common; nothing to compare")
    note = "Campaigns were tested at differing numbers of labels; curves are read off in between."
    return np.array(inside), (note,)


def _checks(done: Sequence[Done]) -> tuple[Check, ...]:
    """Is all equal that should be?"""
    seeds: dict[int, list[Done]] = {}
    for d in done:
        seeds.setdefault(d.seed, []).append(d)
    if all(len(group) == 1 for group in seeds.values()):
        return ()
    return (
        _agree(
            "data", seeds, lambda d: d.data, "the same items, classes and split (drawn from it)"
        ),
        _agree(
            "first labels",
            seeds,
            lambda d: d.initial,
            f"the same {len(done[0].initial)} initial labels, compared one by one",
        ),
        _agree_in_configuration(done),
    )


def _agree(
    what: str, seeds: Mapping[int, list[Done]], of: Callable[[Done], object], text: str
) -> Check:
    wrong = [
        f"{d.arm.name}, seed {seed}"
        for seed, group in seeds.items()
        for d in group[1:]
        if of(d) != of(group[0])
    ]
    if wrong:
        return Check(False, f"{what} differ from those of the same seed's others: {_some(wrong)}.")
    return Check(True, f"Within each seed all strategies had {text}.")


def _agree_in_configuration(done: Sequence[Done]) -> Check:
    wrong = []
    for d in done[1:]:
        changed = differences(done[0].campaign, d.campaign)
        if changed:
            wrong.append(f"{d.arm.name}, seed {d.seed} ({changed[0]})")
    if wrong:
        return Check(
            False, f"Configurations differ in more than strategy and seed: {_some(wrong)}."
        )
    return Check(
        True,
        "All campaigns had the same network, training, budget and kernel; every round's "
        "training began from the same seed.",
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return "; ".join(names[:3]) + more


def _events(folder: Path) -> tuple[Mapping[str, Any], ...]:
    path = folder / "events.jsonl"
    if not path.exists():
        return ()
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):  # cut short by a kill
            events.append(json.loads(line))
    return tuple(row for row in events if isinstance(row, dict))
