"""Folders of comparisons with given curves, and a campaign small enough to run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from labelahead.learner.config import Budget, Campaign, Network, Source, to_toml
from labelahead.simulation.comparison.plan import Comparison, format_comparison, parse_contenders
from labelahead.simulation.store import Round, Store
from tests.support.campaigns import blobs

LABELS = (10, 20, 30, 40)
SECONDS = {"train": 0.5, "test": 0.1, "kernel": 0.2, "solve": 0.05, "score": 0.02}

Made = Mapping[str, Mapping[int, Sequence[float]]]  # strategy -> seed -> accuracy at LABELS


def made_up(folder: Path, curves: Made, labels: Sequence[int] = LABELS) -> Path:
    """Write the folder of a comparison that reached these accuracies."""
    budget = Budget(initial=labels[0], labels=labels[-1], retrain_every=10)
    seeds = sorted({seed for by_seed in curves.values() for seed in by_seed})
    comparison = Comparison(
        Campaign(budget=budget, threads=1), parse_contenders(list(curves)), tuple(seeds)
    )
    folder.mkdir(parents=True)
    (folder / "compare.toml").write_text(format_comparison(comparison))
    for contender, by_seed in zip(comparison.contenders, curves.values(), strict=True):
        for seed, accuracy in by_seed.items():
            run_folder = folder / contender.folder / f"seed-{seed}"
            with Store.create(
                run_folder, to_toml(comparison.campaign_for(contender, seed))
            ) as store:
                for position in range(labels[0]):
                    store.add_label(position + seed, position % 3, 0)
                for number, value in enumerate(accuracy):
                    queried = 0 if number == len(accuracy) - 1 else 10
                    row = Round(
                        number, labels[number], value, 1.0, 0.0, 5, queried, seconds=SECONDS
                    )
                    store.add_round(row)
                store.write(
                    "data.json", json.dumps({"name": "x", "items": 90, "ids": str(seed)}).encode()
                )
    return folder


def random_curves(
    seeds: int, gains: Mapping[str, float], noise: float = 0.01, seed: int = 0
) -> Made:
    """Draw rising curves; at its end each strategy is `gain` above one with gain 0."""
    rng = np.random.default_rng(seed)
    rise = np.linspace(0, 1, len(LABELS))
    curves: dict[str, dict[int, list[float]]] = {name: {} for name in gains}
    for s in range(seeds):
        start = 0.6 + 0.05 * rng.random()
        for name, gain in gains.items():
            deviation = noise * rng.standard_normal(len(LABELS)) * (rise > 0)
            curves[name][s] = (start + (0.2 + gain) * rise + deviation).round(6).tolist()
    return curves


def tiny(folder: Path, **changes: object) -> Campaign:
    """Make a campaign of about a second on data in a file that other processes can read."""
    path = folder / "blobs.npz"
    if not path.exists():
        x, y = blobs(90, (12,))
        np.savez(path, x=x.numpy(), y=y.numpy())
    campaign = Campaign(
        data=Source(str(path)),
        model=Network("mlp", 8),
        training={"steps": 8},
        budget=Budget(initial=5, labels=11, retrain_every=3),
        threads=1,
    )
    return replace(campaign, **changes)  # type: ignore[arg-type]


def write_strategy_file(folder):
    folder.mkdir(exist_ok=True)
    (folder / "own.py").write_text(
        "from labelahead.acquisition import flip\n\n"
        "def mine(view, rng):\n    return flip(view)\n\n"
        "def greedy(view, rng):\n    return -flip(view)\n"
    )
    return folder / "own.py"
