"""Paired campaigns: how many labels a strategy saves against a baseline.

`run_against` runs one pair. A single pair is not conclusive: the seed set changes the number of
labels by more than strategies differ. `run_paired` therefore runs both strategies for several
seeds, each on the same split from the same seed set, and averages the ratio of labels over seeds on
the log scale. Both prepare the data once per seed, or once if the data do not depend on the seed.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import scipy  # its submodules are imported when they are used
import torch

from labelahead import files
from labelahead.data.dataset import Loaded
from labelahead.errors import InputError
from labelahead.learner.config import Campaign, Progress, parse_campaign, read_stored, to_toml
from labelahead.learner.preparation import PreparedCampaign, prepare_campaign
from labelahead.models.trusted_code import find_code_names, require_trusted_code
from labelahead.simulation.measures import ACCURACY, Measure
from labelahead.simulation.run import (
    Result,
    RunCallbacks,
    build_simulation,
    fit_budget_to_pool,
    iterate_rounds,
    load_config,
    preserve_thread_count,
    resume_prepared,
    run_prepared,
)
from labelahead.simulation.store import Round
from labelahead.strategies import find_strategy

__all__ = [
    "BaselineCallbacks",
    "BaselineResult",
    "LabelRatio",
    "PairedResult",
    "SeedPair",
    "is_paired_folder",
    "labels_to_reach",
    "resume_paired",
    "run_against",
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

    For another task than single classes, `accuracy` is its main measure (`labelahead.tasks`).
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
    measure: Measure = ACCURACY

    @property
    def ratio(self) -> LabelRatio:
        """How many times as many labels the baseline needed."""
        return summarise_ratio(self.pairs)


@dataclass(frozen=True, eq=False)
class BaselineResult:
    """A campaign, and the rounds of the same campaign with a baseline.

    Attributes:
        result: The finished campaign.
        strategy: Name of its strategy.
        baseline: Name of the baseline.
        rounds: The rounds of the baseline; None if there are no test items to compare on.
        measure: What they are compared by.
    """

    result: Result
    strategy: str
    baseline: str
    rounds: tuple[Round, ...] | None
    measure: Measure = ACCURACY


@dataclass(frozen=True)
class BaselineCallbacks:
    """Functions that `run_against` calls for the baseline.

    Attributes:
        on_start: Called with the finished campaign and the largest number of labels that the
            baseline may use.
        on_round: Called with every finished round of the baseline.
    """

    on_start: Callable[[Result, int], None] | None = None
    on_round: Callable[[Round], None] | None = None


def run_against(
    config: Campaign | Mapping[str, Any] | str | Path | None = None,
    baseline: str = "random",
    *,
    data: Loaded | None = None,
    out: str | Path | None = None,
    shorten: bool = False,
    callbacks: RunCallbacks | None = None,
    baseline_callbacks: BaselineCallbacks | None = None,
) -> BaselineResult:
    """Run a campaign, then the same campaign with a baseline until it is as accurate.

    The data are prepared once. The baseline has at least as many labels as the campaign, and at
    most four times as many; nothing of it is stored.

    Args:
        config: The campaign, as `labelahead.run` takes it.
        baseline: The strategy to compare with.
        data: As `labelahead.data` returns it, instead of the configured data.
        out: A folder that keeps the campaign, for `labelahead.resume`.
        shorten: As in `labelahead.run`.
        callbacks: Functions to call during the campaign.
        baseline_callbacks: Functions to call for the baseline.

    >>> from labelahead.simulation import run_against
    >>> plan = {"model": {"name": "exact"}, "budget": {"initial": 10, "labels": 20}, "threads": 1}
    >>> pair = run_against(plan, "random")
    >>> pair.strategy, pair.baseline, pair.rounds[0].accuracy == pair.result.rounds[0].accuracy
    ('flip', 'random', True)
    """
    find_strategy(baseline)
    callbacks = callbacks or RunCallbacks()
    watch = baseline_callbacks or BaselineCallbacks()
    prepare = _SharedPreparation(data, callbacks.progress)
    result = run_prepared(
        load_config(config), prepare, out=out, callbacks=callbacks, shorten=shorten
    )
    strategy, name = (
        find_strategy(result.campaign.asking.strategy).name,
        find_strategy(baseline).name,
    )
    measure = result.measure
    goal = measure.score(result.rounds[-1])
    if goal is None:
        return BaselineResult(result, strategy, name, None, measure)
    campaign = _baseline_campaign(result, baseline)
    if watch.on_start:
        watch.on_start(result, campaign.budget.labels)
    rounds = list[Round]()
    for entry in iterate_rounds(campaign, prepare):
        rounds.append(entry)
        if watch.on_round:
            watch.on_round(entry)
        matched = labels_to_reach(rounds, goal, measure) is not None
        if matched and entry.labels >= result.campaign.budget.labels:
            break
    return BaselineResult(result, strategy, name, tuple(rounds), measure)


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
    campaign = load_config(config)
    find_strategy(baseline)
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"{folder} exists and is not empty; continue with `labelahead resume {folder}`, or "
            "choose another folder"
        )
    prepare = _SharedPreparation(data)
    with preserve_thread_count():
        ready = prepare(campaign)
        ready = fit_budget_to_pool(ready, None) if shorten else ready
        build_simulation(ready)  # refuses unsuitable data before anything is written
    if not len(ready.data.test):
        raise InputError(
            f"{ready.data.name} has no test items, so campaigns cannot be compared; expected a "
            "test set: set data.test_fraction"
        )
    files.make_folder(folder)
    campaign = ready.campaign  # fully resolved, with absolute paths
    files.replace_file(folder / CONFIG_FILE, to_toml(campaign))
    every = [campaign.seed + i for i in range(seeds)]
    files.replace_file(
        folder / PLAN_FILE, json.dumps({"baseline": baseline, "seeds": every}, indent=1)
    )
    return _run_pairs(_Pairs(campaign, baseline, folder, prepare), every, on_campaign)


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
    pairs = _Pairs(campaign, baseline, path, _SharedPreparation(data), trust_code)
    return _run_pairs(pairs, seeds, on_campaign)


def is_paired_folder(folder: Path) -> bool:
    """Return whether a folder holds paired campaigns."""
    return (folder / PLAN_FILE).is_file()


def labels_to_reach(
    rounds: Sequence[Round], score: float, measure: Measure = ACCURACY
) -> int | None:
    """Return the labels of the first round with this score, or None if no round reaches it.

    Args:
        rounds: Of a campaign.
        score: For single classes the accuracy; see `Measure.score`.
        measure: What is compared.
    """
    return next((r.labels for r in rounds if _score(r, measure) >= score), None)


def _score(entry: Round, measure: Measure) -> float:
    """Return the score of a round; the least one if it has none."""
    score = measure.score(entry)
    return -math.inf if score is None else score


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
    factor = float(scipy.stats.t.ppf((1 + CONFIDENCE_LEVEL) / 2, n - 1))
    half = factor * deviation / math.sqrt(n)
    return LabelRatio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n, given_up)


class _GoalReached(Exception):  # noqa: N818 (not an error)
    """The baseline has reached the accuracy; no further round is needed."""


class _SharedPreparation:
    """Prepare campaigns; those that need the same data and network as the last one share them."""

    def __init__(self, data: Loaded | None, progress: Progress | None = None) -> None:
        self._data = data
        self._progress = progress
        self._last: PreparedCampaign | None = None

    def __call__(self, campaign: Campaign) -> PreparedCampaign:
        shared = None if self._last is None else self._last.for_campaign(campaign)
        if shared is None:
            self._last = None  # free the memory first
            shared = prepare_campaign(campaign, self._data, self._progress)
        elif shared.campaign.threads is not None:
            torch.set_num_threads(shared.campaign.threads)
        self._last = shared
        return shared


@dataclass(frozen=True)
class _Pairs:
    """What every pair has in common."""

    campaign: Campaign
    baseline: str
    folder: Path
    prepare: _SharedPreparation
    trust_code: bool = False

    def run_strategy(self, seed: int) -> Result:
        """Run the campaign with this seed, or resume it."""
        campaign = replace(self.campaign, seed=seed)
        return self._run_or_resume(campaign, self.folder / f"seed-{seed}" / "strategy")

    def run_baseline(self, result: Result) -> SeedPair:
        """Run the baseline until it reaches the accuracy of a finished campaign; count labels."""
        measure, seed = result.measure, result.campaign.seed
        goal = _score(result.rounds[-1], measure)
        baseline_name = list[Round]()

        def watch(entry: Round) -> None:
            baseline_name.append(entry)
            if _score(entry, measure) >= goal:
                raise _GoalReached

        campaign = _baseline_campaign(result, self.baseline)
        with suppress(_GoalReached):
            self._run_or_resume(campaign, self.folder / f"seed-{seed}" / "baseline", watch)
        needed = labels_to_reach(result.rounds, goal, measure)
        assert needed is not None  # its last round reaches it
        return SeedPair(
            seed,
            measure.restore(goal),
            needed,
            labels_to_reach(baseline_name, goal, measure),
            baseline_name[-1].labels,
        )

    def _run_or_resume(
        self, campaign: Campaign, folder: Path, on_round: Callable[[Round], None] | None = None
    ) -> Result:
        """Run a campaign in its own folder, or resume it there."""
        callbacks = RunCallbacks(on_round=on_round)
        if (folder / "config.toml").exists():
            return resume_prepared(
                folder,
                self.prepare,
                callbacks=callbacks,
                forecast=False,
                trust_code=self.trust_code,
            )
        return run_prepared(campaign, self.prepare, out=folder, callbacks=callbacks, forecast=False)


def _run_pairs(pairs: _Pairs, seeds: Sequence[int], on_campaign: OnCampaign | None) -> PairedResult:
    report = on_campaign or (lambda done, total, seed, strategy: None)
    strategy_name = find_strategy(pairs.campaign.asking.strategy).name
    baseline_name = find_strategy(pairs.baseline).name
    total = 2 * len(seeds)
    found = list[SeedPair]()
    measure = ACCURACY
    for i, seed in enumerate(seeds):
        report(2 * i, total, seed, strategy_name)
        result = pairs.run_strategy(seed)
        report(2 * i + 1, total, seed, baseline_name)
        measure = result.measure
        found.append(pairs.run_baseline(result))
    report(total, total, seeds[-1], baseline_name)
    return PairedResult(strategy_name, baseline_name, tuple(found), pairs.folder, measure)


def _baseline_campaign(result: Result, baseline: str) -> Campaign:
    """Return the same campaign with another strategy and the largest allowed budget."""
    campaign, items = result.campaign, len(result.pool) + len(result.pool.unlabelled)
    labels = min(MAX_BASELINE_FACTOR * campaign.budget.labels, items)
    asking = replace(campaign.asking, strategy=baseline, mode=None)
    return replace(campaign, asking=asking, budget=replace(campaign.budget, labels=labels))
