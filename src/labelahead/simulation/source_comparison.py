"""Compare strategies by what an accuracy costs, over several seeds (`simulation.source_campaign`).

sources.toml      strategies, seeds and the configuration
campaigns.jsonl   one line per finished campaign; the same command runs only those missing
costs.csv         accuracy against money of all campaigns
summary.csv       mean cost of each accuracy
curve.png         the same as a picture
"""

import csv
import io
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labelahead.errors import InputError
from labelahead.files import (
    JsonLinesFile,
    lock_folder,
    make_folder,
    read_complete_lines,
    replace_file,
)
from labelahead.learner.config import Campaign, Progress, parse_campaign, read_toml, to_toml
from labelahead.learner.preparation import PreparedCampaign
from labelahead.learner.simulated_source import PAIRS, SOURCE_STRATEGIES
from labelahead.simulation.comparison.plan import with_absolute_paths
from labelahead.simulation.comparison.statistics import t_interval
from labelahead.simulation.source_campaign import (
    MoneyRound,
    build_source_campaign,
    find_cost,
    iterate_money_rounds,
    prepare_sources,
    resolve_sources,
)
from labelahead.strategies import find_strategy

__all__ = [
    "ACCURACIES",
    "PLAN_FILE",
    "CostRatio",
    "SourceComparison",
    "compare_costs",
    "draw_costs",
    "format_summary",
    "is_cost_comparison",
    "parse_source_strategies",
    "read_costs",
    "summarise_costs",
]

ACCURACIES = (0.80, 0.85, 0.90, 0.95)
PLAN_FILE, CAMPAIGNS_FILE = "sources.toml", "campaigns.jsonl"
GRID_POINTS = 200  # of a mean curve
Curves = Mapping[tuple[str, int], tuple[MoneyRound, ...]]  # (strategy, seed) -> rounds


@dataclass(frozen=True, eq=False)
class SourceComparison:
    """Finished campaigns of a comparison.

    Attributes:
        campaign: Their configuration, of which seed and strategy are ignored.
        strategies: Names.
        seeds: Their seeds.
        curves: (strategy, seed) -> its rounds.
    """

    campaign: Campaign
    strategies: tuple[str, ...]
    seeds: tuple[int, ...]
    curves: Curves

    def costs(self, strategy: str, accuracy: float) -> list[float]:
        """Return what an accuracy cost by seed; infinite where it was not reached."""
        found = [find_cost(self.curves[strategy, seed], accuracy) for seed in self.seeds]
        return [math.inf if cost is None else cost for cost in found]


@dataclass(frozen=True)
class CostRatio:
    """What an accuracy costs.

    Attributes:
        accuracy: The accuracy.
        costs: strategy -> mean cost over seeds; infinite if a seed did not reach it.
        cheapest: The cheapest strategy other than `pairs`; "" if none reached it.
        ratio: Mean cost of `pairs` over that of the cheapest; None if one of them did not reach it.
        low: Lower end of the 95 % interval, by the logarithms of the ratios of each seed; None with
            one seed.
        high: Its upper end.
    """

    accuracy: float
    costs: Mapping[str, float]
    cheapest: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def parse_source_strategies(text: str) -> tuple[str, ...]:
    """Parse names of strategies, comma-separated.

    >>> from labelahead.simulation.source_comparison import parse_source_strategies
    >>> parse_source_strategies("pairs, flip,pairs")
    ('pairs', 'flip')
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InputError(
            f"strategies is {text!r}; expected names with commas between, e.g. pairs,flip,threshold"
        )
    for name in names:
        if name not in SOURCE_STRATEGIES:
            try:
                find_strategy(name)
            except InputError as error:
                known = ", ".join(SOURCE_STRATEGIES)
                raise InputError(f"{error}; strategies of sources are {known}") from error
    return names


def compare_costs(
    campaign: Campaign,
    strategies: Sequence[str],
    seeds: Sequence[int],
    folder: str | Path,
    *,
    progress: Progress | None = None,
    on_campaign: Callable[[str, int, tuple[MoneyRound, ...]], None] | None = None,
) -> SourceComparison:
    """Run every strategy with every seed, and write the results; finished campaigns are kept.

    Args:
        campaign: The configuration, with sources.
        strategies: Names, see `SOURCE_STRATEGIES`; any other strategy chooses items for the person.
        seeds: The seeds.
        folder: For the results.
        progress: Called with the stage, the work done and its total.
        on_campaign: Called with strategy, seed and rounds of every finished campaign.
    """
    path = Path(folder)
    # The strategies of the plan are those of `strategies`.
    asking = replace(campaign.asking, strategy=PAIRS, mode=None)
    neutral = replace(campaign, seed=0, asking=asking, threads=campaign.threads or 1)
    neutral = resolve_sources(with_absolute_paths(neutral))
    make_folder(path)
    with lock_folder(path, holder="comparison"):
        before = _check_plan(path, neutral)
        done = dict(_read_campaigns(path)) if before else {}
        plan = {"strategies": list(strategies), "seeds": list(seeds)}
        replace_file(path / PLAN_FILE, _format_plan(plan, neutral))
        journal = JsonLinesFile(path / CAMPAIGNS_FILE)
        prepared: PreparedCampaign | None = None
        for seed in seeds:
            missing = [name for name in strategies if (name, seed) not in done]
            if not missing:
                continue
            one = replace(neutral, seed=seed)
            if prepared is None or prepared.depends_on_seed:
                prepared = prepare_sources(one, progress)
            setting = build_source_campaign(prepared, one)
            for name in missing:
                rounds = tuple(iterate_money_rounds(setting, name))
                rows = [asdict(entry) for entry in rounds]
                journal.append({"strategy": name, "seed": seed, "rounds": rows})
                done[name, seed] = rounds
                if on_campaign:
                    on_campaign(name, seed, rounds)
        found = SourceComparison(neutral, tuple(strategies), tuple(seeds), done)
        _write_results(found, path)
    return found


def _format_plan(plan: Mapping[str, Any], campaign: Campaign) -> str:
    import tomli_w

    return tomli_w.dumps({**plan, "campaign": tomllib.loads(to_toml(campaign))})


def _check_plan(path: Path, campaign: Campaign) -> bool:
    """Return whether the folder holds a comparison; raise if its configuration is another one."""
    if not (path / PLAN_FILE).exists():
        if (path / "compare.toml").exists() or (path / "config.toml").exists():
            raise InputError(f"{path} holds another kind of campaign; choose another folder")
        return False
    stored = parse_campaign(read_toml(path / PLAN_FILE).get("campaign", {}))
    if stored != campaign:
        changed = [
            name for name in asdict(campaign) if getattr(stored, name) != getattr(campaign, name)
        ]
        raise InputError(
            f"{path} holds a comparison with another configuration ({', '.join(changed)} differ); "
            "expected the same one, with further strategies or seeds, or another folder"
        )
    return True


def is_cost_comparison(folder: str | Path) -> bool:
    """Return whether a folder holds a comparison of `compare_costs`."""
    return (Path(folder) / PLAN_FILE).is_file()


def read_costs(folder: str | Path) -> SourceComparison:
    """Read a comparison of costs, as far as it is finished."""
    path = Path(folder)
    plan, curves = read_toml(path / PLAN_FILE), dict(_read_campaigns(path))
    strategies = tuple(plan["strategies"])
    seeds = tuple(s for s in plan["seeds"] if all((name, s) in curves for name in strategies))
    if not seeds:
        raise InputError(
            f"{folder} has no seed that all strategies have finished; run `labelahead compare` with "
            f"--out {folder} again"
        )
    return SourceComparison(parse_campaign(plan["campaign"]), strategies, seeds, curves)


def _read_campaigns(path: Path) -> list[tuple[tuple[str, int], tuple[MoneyRound, ...]]]:
    if not (path / CAMPAIGNS_FILE).exists():
        return []
    return [
        ((row["strategy"], row["seed"]), tuple(MoneyRound(**entry) for entry in row["rounds"]))
        for row, _ in read_complete_lines(path / CAMPAIGNS_FILE)
    ]


def _write_results(found: SourceComparison, path: Path) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    names = [source.name for source in found.campaign.sources]
    head = ["strategy", "seed", "round", "cost", "accuracy", *(f"labels:{n}" for n in names)]
    writer.writerow(head)
    for name in found.strategies:
        for seed in found.seeds:
            for r in found.curves[name, seed]:
                counts = [r.labels[n] for n in names]
                row = [name, seed, r.number, f"{r.cost:.6g}", f"{r.accuracy:.6f}", *counts]
                writer.writerow(row)
    replace_file(path / "costs.csv", text.getvalue())
    replace_file(path / "summary.csv", format_summary(summarise_costs(found), found.strategies))


def summarise_costs(
    found: SourceComparison, accuracies: Sequence[float] = ACCURACIES
) -> list[CostRatio]:
    """Return what accuracies cost, and the ratio of `pairs` to the cheapest other strategy.

    The cheapest strategy is the one with the lowest mean. A mean is infinite if a seed did not reach
    the accuracy.
    """
    rows = []
    for accuracy in accuracies:
        if not 0 < accuracy <= 1:
            raise InputError(f"accuracy is {accuracy}; expected a fraction above 0, up to 1")
        by_name = {name: np.array(found.costs(name, accuracy)) for name in found.strategies}
        means = {name: float(costs.mean()) for name, costs in by_name.items()}
        others = [n for n in found.strategies if n != PAIRS and math.isfinite(means[n])]
        cheapest = min(others, key=means.__getitem__, default="")
        row = CostRatio(accuracy, means, cheapest)
        if cheapest and math.isfinite(means.get(PAIRS, math.inf)) and means[cheapest] > 0:
            row = replace(row, ratio=means[PAIRS] / means[cheapest])
            if bool((by_name[PAIRS] > 0).all() and (by_name[cheapest] > 0).all()):
                log = t_interval(np.log(by_name[PAIRS] / by_name[cheapest]))
                if log.low is not None and log.high is not None:
                    row = replace(row, low=math.exp(log.low), high=math.exp(log.high))
        rows.append(row)
    return rows


def format_summary(rows: Sequence[CostRatio], strategies: Sequence[str]) -> str:
    """Return the mean costs as CSV; an empty cell: not reached by every seed."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    names = [f"cost:{name}" for name in strategies]
    writer.writerow(["accuracy", *names, "cheapest_other", "ratio", "ratio_low", "ratio_high"])
    for row in rows:
        costs = [_format_finite(row.costs[name]) for name in strategies]
        ends = [_format_finite(v) for v in (row.ratio, row.low, row.high)]
        writer.writerow([f"{row.accuracy:g}", *costs, row.cheapest, *ends])
    return text.getvalue()


def _format_finite(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6g}"


def draw_costs(curves: Mapping[str, Sequence[Sequence[MoneyRound]]], path: Path) -> Path:
    """Draw accuracy against cost: thin lines are seeds, a thick one their mean.

    Args:
        curves: strategy -> the rounds of each seed.
        path: Output file.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4), dpi=150, layout="constrained")
    for i, (name, several) in enumerate(curves.items()):
        color = f"C{i}"
        lines = [
            (np.array([r.cost for r in c]), np.array([r.accuracy for r in c])) for c in several
        ]
        for cost, accuracy in lines if len(lines) > 1 else []:
            axes.plot(cost, 100 * accuracy, color=color, lw=0.5, alpha=0.4)
        low, high = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
        grid = np.linspace(low, max(high, low), GRID_POINTS) if len(lines) > 1 else lines[0][0]
        mean = np.mean([np.interp(grid, x, y) for x, y in lines], axis=0)
        axes.plot(grid, 100 * mean, color=color, lw=1.8, label=name)
    axes.set(xlabel="cost", ylabel="right classes in the pool, %")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    pyplot.close(figure)
    return path
