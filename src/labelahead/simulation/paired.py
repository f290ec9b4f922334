"""Paired campaigns: how many labels a strategy saves against a baseline, over several seeds.

A single campaign is not conclusive: the seed set changes the number of labels by more than
strategies differ. Every seed therefore runs both strategies on the same split from the same seed
set, and the ratio of labels is averaged over seeds on the log scale.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

from labelahead import files
from labelahead.data.dataset import Loaded
from labelahead.errors import InputError
from labelahead.learner.config import Campaign, parse_campaign, read_stored, read_toml, to_toml
from labelahead.models.trusted_code import find_code_names, require_trusted_code
from labelahead.simulation.run import (
    Result,
    build_simulation,
    fit_budget_to_pool,
    iterate_rounds,
    prepare_campaign,
    preserve_thread_count,
    resume,
    run,
)
from labelahead.simulation.store import Round
from labelahead.strategies import find_strategy

__all__ = [
    "LabelRatio",
    "PairedResult",
    "SeedPair",
    "baseline_campaign",
    "baseline_rounds",
    "is_paired_folder",
    "labels_to_reach",
    "resume_paired",
    "run_paired",
    "summarise_ratio",
]

# The baseline stops after so many times the labels of the strategy.
MAX_BASELINE_FACTOR = 4
CONFIDENCE_LEVEL = 0.95
PLAN_FILE = "paired.json"  # baseline and seeds
# The campaign. Not config.toml, which would mark the folder of a single campaign.
CONFIG_FILE = "paired.toml"


class SeedPair(NamedTuple):
    """One seed: the final accuracy of the strategy, and the labels that each needed for it.

    `baseline` is None if the baseline was stopped after `tried` labels without reaching it.
    """

    seed: int
    accuracy: float
    strategy: int
    baseline: int | None
    tried: int


class LabelRatio(NamedTuple):
    """The baseline's labels over the strategy's: geometric mean and interval (None with one seed).

    `at_least` counts the seeds in which the baseline was stopped early, where the ratio is a lower
    bound.
    """

    ratio: float
    low: float | None
    high: float | None
    seeds: int
    at_least: int


@dataclass(frozen=True)
class PairedResult:
    """The result of paired campaigns."""

    strategy: str
    baseline: str
    pairs: tuple[SeedPair, ...]
    folder: Path

    @property
    def ratio(self) -> LabelRatio:
        """How many times as many labels the baseline needed."""
        return summarise_ratio(self.pairs)


OnCampaign = Callable[
    [int, int, int, str], None
]  # campaigns done, their total, seed and strategy of the next or last one


def run_paired(
    config: Campaign | Mapping[str, Any] | str | Path,
    baseline: str = "random",
    seeds: int = 3,
    *,
    out: str | Path,
    data: Loaded | None = None,
    shorten: bool = False,
    on_campaign: OnCampaign | None = None,
) -> PairedResult:
    """Run a campaign and a baseline for several seeds.

    Args:
        config: The campaign, as `labelahead.run` takes it; its seed is the first one.
        baseline: The strategy to compare with. It runs until it reaches the campaign's final
            accuracy, and at most to four times its labels.
        seeds: Number of consecutive seeds.
        out: A new folder that keeps every campaign, for `resume_paired`.
        data: As `labelahead.data` returns it, instead of the configured data.
        shorten: As in `labelahead.run`, label half of a pool that is smaller than the budget
            instead of refusing it.
        on_campaign: Called before each campaign and after the last one with (done, total, seed,
            strategy).

    Returns:
        The labels that both needed per seed, and their ratio with an interval.

    Raises:
        InputError: No test items, fewer than one seed, or a folder that is not empty.

    >>> from labelahead.simulation.paired import run_paired
    >>> plan = {"model": {"name": "exact"}, "budget": {"initial": 10, "labels": 20}, "threads": 1}
    >>> found = run_paired(plan, "random", 2, out="pairs")
    >>> [pair.seed for pair in found.pairs], found.ratio.low <= found.ratio.ratio <= found.ratio.high
    ([0, 1], True)
    """
    if seeds < 1:
        raise InputError(f"seeds is {seeds}; expected 1 or more")
    if isinstance(config, Campaign):
        campaign = config
    else:
        campaign = parse_campaign(config if isinstance(config, Mapping) else read_toml(config))
    find_strategy(baseline)
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"{folder} exists and is not empty; continue with `labelahead resume {folder}`, or "
            "choose another folder"
        )
    with preserve_thread_count():
        ready = prepare_campaign(campaign, data)
        ready = fit_budget_to_pool(ready, None) if shorten else ready
        build_simulation(ready)  # refuses unsuitable data before anything is written
    if not len(ready.data.test):
        raise InputError(
            f"{ready.data.name} has no test items, so that campaigns cannot be compared; keep "
            "some apart"
        )
    files.make_folder(folder)
    campaign = ready.campaign  # fully resolved, with absolute paths
    files.replace_file(folder / CONFIG_FILE, to_toml(campaign))
    every = [campaign.seed + i for i in range(seeds)]
    files.replace_file(
        folder / PLAN_FILE, json.dumps({"baseline": baseline, "seeds": every}, indent=1)
    )
    return _run_pairs(campaign, baseline, every, folder, data, on_campaign)


def resume_paired(
    folder: str | Path,
    *,
    data: Loaded | None = None,
    on_campaign: OnCampaign | None = None,
    trust_code: bool = False,
) -> PairedResult:
    """Resume interrupted paired campaigns; the result is the same as without the interruption.

    Args:
        folder: The folder of `run_paired`.
        data: The data, if they were given in Python.
        on_campaign: As in `run_paired`.
        trust_code: As in `labelahead.resume`.
    """
    path = Path(folder)
    if not is_paired_folder(path):
        raise InputError(
            f"{path} holds no paired campaigns; expected the folder of `run --against ... --seeds`"
        )
    try:
        plan = json.loads((path / PLAN_FILE).read_text(encoding="utf-8"))
        baseline, seeds = str(plan["baseline"]), [int(seed) for seed in plan["seeds"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path / PLAN_FILE} is damaged ({error}): restore it from a copy, or start again"
        ) from error
    campaign = parse_campaign(read_stored(path / CONFIG_FILE, trust_code=trust_code))
    named = find_code_names({"asking": {"strategy": baseline}})
    require_trusted_code(named, path / PLAN_FILE, [path, campaign.data.name], trust_code)
    return _run_pairs(campaign, baseline, seeds, path, data, on_campaign, trust_code=trust_code)


def is_paired_folder(folder: Path) -> bool:
    """Return whether a folder holds paired campaigns."""
    return (folder / PLAN_FILE).is_file()


def labels_to_reach(rounds: Sequence[Round], accuracy: float) -> int | None:
    """Return the labels of the first round with this accuracy; None if no round reaches it."""
    return next((r.labels for r in rounds if (r.accuracy or 0.0) >= accuracy), None)


def summarise_ratio(pairs: Sequence[SeedPair]) -> LabelRatio:
    """Return the geometric mean of the label ratios, with a t interval of their logarithms over seeds.

    >>> from labelahead.simulation.paired import SeedPair, summarise_ratio
    >>> pairs = [SeedPair(0, 0.9, 50, 100, 100), SeedPair(1, 0.9, 50, 50, 60)]
    >>> round(summarise_ratio(pairs).ratio, 3)
    1.414
    """
    logs = [math.log((p.baseline or p.tried) / p.strategy) for p in pairs]
    n, mean = len(logs), sum(logs) / len(logs)
    given_up = sum(p.baseline is None for p in pairs)
    if n < 2:
        return LabelRatio(math.exp(mean), None, None, n, given_up)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / (n - 1))
    half = float(stats.t.ppf((1 + CONFIDENCE_LEVEL) / 2, n - 1)) * deviation / math.sqrt(n)
    return LabelRatio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n, given_up)


class _GoalReached(Exception):  # noqa: N818 (not an error)
    """The baseline has reached the accuracy; no further round is needed."""


def _run_pairs(
    campaign: Campaign,
    baseline: str,
    seeds: Sequence[int],
    folder: Path,
    data: Loaded | None,
    on_campaign: OnCampaign | None,
    *,
    trust_code: bool = False,
) -> PairedResult:
    tell = on_campaign or (lambda done, total, seed, strategy: None)
    ours, theirs, total = (
        find_strategy(campaign.asking.strategy).name,
        find_strategy(baseline).name,
        2 * len(seeds),
    )
    pairs = list[SeedPair]()
    for i, seed in enumerate(seeds):
        place = folder / f"seed-{seed}"
        tell(2 * i, total, seed, ours)
        result = _run_or_resume(
            replace(campaign, seed=seed), place / "strategy", data, trust_code=trust_code
        )
        tell(2 * i + 1, total, seed, theirs)
        pairs.append(_run_baseline(result, baseline, place / "baseline", data, trust_code))
    tell(total, total, seeds[-1], theirs)
    return PairedResult(ours, theirs, tuple(pairs), folder)


def _run_baseline(
    result: Result, baseline: str, folder: Path, data: Loaded | None, trust_code: bool
) -> SeedPair:
    """Run the baseline until it reaches the accuracy of a finished campaign, and count labels."""
    goal = result.rounds[-1].accuracy or 0.0
    theirs = list[Round]()

    def watch(entry: Round) -> None:
        theirs.append(entry)
        if (entry.accuracy or 0.0) >= goal:
            raise _GoalReached

    with suppress(_GoalReached):
        _run_or_resume(
            baseline_campaign(result, baseline), folder, data, watch, trust_code=trust_code
        )
    needed = labels_to_reach(result.rounds, goal)
    assert needed is not None  # its last round reaches it
    return SeedPair(
        result.campaign.seed, goal, needed, labels_to_reach(theirs, goal), theirs[-1].labels
    )


def baseline_rounds(
    result: Result, baseline: str, *, data: Loaded | None = None
) -> Iterator[Round]:
    """Yield the rounds of a baseline until it has as many labels and the same accuracy.

    Nothing is stored.
    """
    goal, reached = result.rounds[-1].accuracy or 0.0, False
    for entry in iterate_rounds(baseline_campaign(result, baseline), data=data):
        yield entry
        reached = reached or (entry.accuracy or 0.0) >= goal
        if reached and entry.labels >= result.campaign.budget.labels:
            return


def baseline_campaign(result: Result, baseline: str) -> Campaign:
    """Return the same campaign with another strategy and the largest allowed budget."""
    campaign, items = result.campaign, len(result.pool) + len(result.pool.unlabelled)
    labels = min(MAX_BASELINE_FACTOR * campaign.budget.labels, items)
    asking = replace(campaign.asking, strategy=baseline, mode=None)
    return replace(campaign, asking=asking, budget=replace(campaign.budget, labels=labels))


def _run_or_resume(
    campaign: Campaign,
    folder: Path,
    data: Loaded | None,
    on_round: Callable[[Round], None] | None = None,
    *,
    trust_code: bool,
) -> Result:
    """Run a campaign in its own folder, or resume it there."""
    if (folder / "config.toml").exists():
        return resume(folder, data=data, on_round=on_round, forecast=False, trust_code=trust_code)
    return run(campaign, data=data, out=folder, on_round=on_round, forecast=False)
