"""Read the finished campaigns of a comparison as arrays, and check that they are comparable."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelahead.errors import InputError
from labelahead.learner.config import Campaign, parse_campaign, read_stored
from labelahead.simulation.comparison.execution import MACHINE_FILE, is_finished
from labelahead.simulation.comparison.plan import (
    Comparison,
    Contender,
    list_differences,
    read_comparison,
)
from labelahead.simulation.comparison.statistics import Array
from labelahead.simulation.measures import ACCURACY, Measure, find_measure
from labelahead.simulation.store import Round, Store

__all__ = ["Curves", "read_curves"]


@dataclass(frozen=True, eq=False)
class FinishedCampaign:
    """One finished campaign."""

    contender: Contender
    seed: int
    campaign: Campaign  # fully resolved
    rounds: tuple[Round, ...]
    initial: tuple[tuple[int, int], ...]  # (position, class) of the first labels, in order
    data: Mapping[str, Any]  # fingerprint
    machine: Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """A condition for a fair comparison."""

    holds: bool
    text: str


@dataclass(frozen=True, eq=False)
class Curves:
    """The results of a comparison so far.

    Attributes:
        comparison: The contenders that have a finished campaign.
        folder: Of the comparison.
        labels: (rounds,).
        accuracy: contender -> seed -> (rounds,) along `labels`; of another task than single classes
            the scores of its measure, of which larger ones are better.
        done: The finished campaigns.
        missing: Campaigns that are not finished.
        checks: Conditions for a fair comparison.
        events: What happened to the campaigns.
        notes: For the reader.
        measure: What is compared.
    """

    comparison: Comparison
    folder: Path
    labels: Array
    accuracy: Mapping[Contender, Mapping[int, Array]]
    done: tuple[FinishedCampaign, ...]
    missing: tuple[str, ...]
    checks: tuple[Check, ...]
    events: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    measure: Measure = ACCURACY

    def seeds(self, *contenders: Contender) -> list[int]:
        """Return the seeds that all these contenders have finished."""
        each = [set(self.accuracy[a]) for a in contenders]
        return sorted(set.intersection(*each)) if each else []

    def stack(self, contender: Contender, seeds: Sequence[int]) -> Array:
        """Return the accuracies (seeds, rounds)."""
        return np.stack([self.accuracy[contender][s] for s in seeds])


def read_curves(folder: str | Path, *, trust_code: bool = False) -> Curves:
    """Read the finished campaigns of a comparison's folder, also while it is running.

    Args:
        folder: The comparison's folder.
        trust_code: See `read_comparison`.
    """
    path = Path(folder)
    comparison = read_comparison(path, trust_code=trust_code)
    done, missing = [], []
    for contender in comparison.contenders:
        for seed in comparison.seeds:
            where = path / contender.folder / f"seed-{seed}"
            if is_finished(where):
                done.append(_read_campaign(where, contender, seed, trust_code or comparison.code))
            else:
                missing.append(f"{contender.name}, seed {seed}")
    if not done:
        raise InputError(
            f"{folder} has no finished campaign yet; continue with `labelahead compare --out "
            f"{folder}`"
        )
    contenders = tuple(
        a for a in comparison.contenders if any(finished.contender == a for finished in done)
    )
    labels, notes = _common_labels(done)
    source = done[0].campaign.data
    measure = find_measure(source.task, source.unit)
    accuracy: dict[Contender, dict[int, Array]] = {a: {} for a in contenders}
    for finished in done:
        accuracy[finished.contender][finished.seed] = np.interp(
            labels, *_campaign_curve(finished, measure)
        )
    return Curves(
        Comparison(
            comparison.campaign, contenders, tuple(sorted({finished.seed for finished in done}))
        ),
        path,
        labels,
        accuracy,
        tuple(done),
        tuple(missing),
        _check_fairness(done),
        _read_events(path),
        notes,
        measure,
    )


def _read_campaign(
    where: Path, contender: Contender, seed: int, trust_code: bool | Collection[str]
) -> FinishedCampaign:
    store = Store(where)
    rounds = tuple(store.read_rounds())
    campaign = parse_campaign(read_stored(where / "config.toml", trust_code=trust_code))
    measure = find_measure(campaign.data.task)
    if any(measure.read(r) is None for r in rounds):
        raise InputError(f"{where} has rounds without a test accuracy; there is nothing to compare")
    return FinishedCampaign(
        contender,
        seed,
        campaign,
        rounds,
        tuple((e.position, e.label) for e in store.read_labels() if e.round == 0),
        _read_json(where / "data.json"),
        _read_json(where / MACHINE_FILE),
    )


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _campaign_curve(finished: FinishedCampaign, measure: Measure) -> tuple[Array, Array]:
    scores = np.array([measure.score(r) for r in finished.rounds], dtype=np.float64)
    return _campaign_labels(finished), scores


def _campaign_labels(finished: FinishedCampaign) -> Array:
    return np.array([r.labels for r in finished.rounds], dtype=np.float64)


def _common_labels(done: Sequence[FinishedCampaign]) -> tuple[Array, tuple[str, ...]]:
    """Return the numbers of labels at which all curves are evaluated, and notes."""
    all_labels = [_campaign_labels(finished) for finished in done]
    first = all_labels[0]
    if all(np.array_equal(first, other) for other in all_labels):
        return first, ()
    # A campaign resumed on another machine may have a few more labels in a round than configured.
    low, high = max(x[0] for x in all_labels), min(x[-1] for x in all_labels)
    inside = [x for x in np.unique(np.concatenate(all_labels)) if low <= x <= high]
    if not inside:
        raise InputError("the campaigns have no number of labels in common; nothing to compare")
    note = "Campaigns were tested at differing numbers of labels; curves are read off in between."
    return np.array(inside), (note,)


def _check_fairness(done: Sequence[FinishedCampaign]) -> tuple[Check, ...]:
    """Check that campaigns of one seed have equal data, seed sets and configurations."""
    seeds: dict[int, list[FinishedCampaign]] = {}
    for finished in done:
        seeds.setdefault(finished.seed, []).append(finished)
    if all(len(group) == 1 for group in seeds.values()):
        return ()
    return (
        _check_equal(
            "data", seeds, _describe_data, "the same items, classes and split (drawn from it)"
        ),
        _check_equal(
            "first labels",
            seeds,
            lambda finished: finished.initial,
            f"the same {len(done[0].initial)} initial labels, compared one by one",
        ),
        _check_configurations(done),
    )


def _describe_data(done: FinishedCampaign) -> Mapping[str, Any]:
    """Return the fingerprint of the data; the hash of the content includes vectors and guesses."""
    if not done.contender.embedding and not done.contender.guesses:
        return done.data
    return {key: value for key, value in done.data.items() if key != "content"}


def _check_equal(
    what: str,
    seeds: Mapping[int, list[FinishedCampaign]],
    of: Callable[[FinishedCampaign], object],
    text: str,
) -> Check:
    wrong = [
        f"{finished.contender.name}, seed {seed}"
        for seed, group in seeds.items()
        for finished in group[1:]
        if of(finished) != of(group[0])
    ]
    if wrong:
        return Check(
            False, f"{what} differ from those of the same seed's others: {_list_some(wrong)}."
        )
    return Check(True, f"Within each seed all strategies had {text}.")


def _check_configurations(done: Sequence[FinishedCampaign]) -> Check:
    wrong = []
    for finished in done[1:]:
        # Embeddings and starts that are compared differ by intent.
        arm = (finished.contender.embedding, finished.contender.guesses)
        like = next(o for o in done if (o.contender.embedding, o.contender.guesses) == arm)
        changed = list_differences(like.campaign, finished.campaign)
        if changed:
            wrong.append(f"{finished.contender.name}, seed {finished.seed} ({changed[0]})")
    if wrong:
        return Check(
            False, f"Configurations differ in more than strategy and seed: {_list_some(wrong)}."
        )
    return Check(
        True,
        "All campaigns had the same network, training, budget and kernel; every round's "
        "training began from the same seed.",
    )


def _list_some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return "; ".join(names[:3]) + more


def _read_events(folder: Path) -> tuple[Mapping[str, Any], ...]:
    path = folder / "events.jsonl"
    if not path.exists():
        return ()
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):  # truncated by a kill
            events.append(json.loads(line))
    return tuple(row for row in events if isinstance(row, dict))
