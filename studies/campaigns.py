"""Campaigns behind docs/results.md: strategies × seeds on the same splits, budgets and training.

    python studies/campaigns.py mnist  --data ../shared/data
    python studies/campaigns.py photos --data ../shared/data

Every campaign has its folder under --out and is resumed or skipped when it is there already; the
numbers go to docs/results/<study>.csv, the table to the screen.
"""

import argparse
import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from scipy import stats

from labelahead.campaign import resume, run
from labelahead.config import Budget, Campaign, Network, Source
from labelahead.situation import Asking
from labelahead.store import Round, Store

DOCS = Path(__file__).parents[1] / "docs" / "results"


@dataclass(frozen=True)
class Study:
    """Arms that differ in how they ask, and in nothing else."""

    campaign: Campaign
    arms: dict[str, Asking]
    report: tuple[int, ...]  # numbers of labels to report


def studies(data: Path) -> dict[str, Study]:
    mnist = Campaign(
        data=Source("mnist", root=str(data / "mnist"), download=False),
        model=Network("cnn"),
        training={
            "optimiser": "sgd",
            "rate": 0.1,
            "weight_decay": 5e-4,
            "steps": 150,
            "batch": 32,
            "clip": 5.0,
        },
        budget=Budget(initial=100, labels=200, retrain_every=20),
        threads=1,
    )
    photos = Campaign(
        data=Source(str(data / "cifar10_12k.npz")),
        model=Network("backbone"),
        training={"optimiser": "adam", "rate": 2e-3, "steps": 120, "batch": 32},
        budget=Budget(initial=20, labels=400, retrain_every=20),
        threads=1,
    )
    arms = {
        "random": Asking("random"),
        "mlmoc top (as the paper's batch)": Asking("mlmoc", "top"),
        "mlmoc sequential": Asking("mlmoc", "sequential"),
        "flip greedy": Asking("flip", "greedy"),
        "flip sequential": Asking("flip", "sequential"),
        "margin": Asking("margin"),
    }
    pick = ("random", "margin", "flip greedy", "flip sequential")
    return {
        "mnist": Study(mnist, arms, (100, 120, 140, 160, 180, 200)),
        "photos": Study(photos, {k: arms[k] for k in pick}, (100, 200, 400)),
    }


def campaign(study: Study, arm: str, seed: int, folder: Path) -> Sequence[Round]:
    """The rounds of one campaign, gone on with if it was begun before."""
    if (folder / "config.toml").exists():
        with Store.open(folder) as store:
            done = store.rounds()
        return done if done and done[-1].asked == 0 else resume(folder).rounds
    return run(replace(study.campaign, seed=seed, asking=study.arms[arm]), out=folder).rounds


def interval(values: list[float]) -> str:
    """Mean and half-width of the 95 % interval by Student's t."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.1f}"
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.1f} ± {half:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=["mnist", "photos"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("runs/studies"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    study = studies(given.data)[given.study]
    rows = []
    for seed in given.seeds:
        for arm in given.arms or study.arms:
            folder = given.out / given.study / f"{arm.split(' (')[0].replace(' ', '-')}-{seed}"
            for r in campaign(study, arm, seed, folder):
                took = sum(r.seconds.values())
                rows.append((arm, seed, r.labels, 100 * (r.accuracy or 0.0), round(took, 3)))
            print(f"{arm}, seed {seed}: {rows[-1][3]:.1f} % at {rows[-1][2]} labels", flush=True)
    DOCS.mkdir(parents=True, exist_ok=True)
    with (DOCS / f"{given.study}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["arm", "seed", "labels", "test_accuracy", "seconds"])
        writer.writerows(rows)
    report = [n for n in study.report if any(r[2] == n for r in rows)]
    print("| asked by | " + " | ".join(f"{n} labels" for n in report) + " | mean − random |")
    print("| --- |" + " --- |" * (len(report) + 1))
    for arm in given.arms or study.arms:
        cells = [interval([r[3] for r in rows if r[0] == arm and r[2] == n]) for n in report]
        gain = [curve(rows, arm, s) - curve(rows, "random", s) for s in given.seeds]
        print(f"| {arm} | " + " | ".join(cells) + f" | {interval(gain)} |")


def curve(rows: list[tuple], arm: str, seed: int) -> float:
    """Mean accuracy over all rounds after the first, which is the same for all."""
    return statistics.fmean([r[3] for r in rows if r[:2] == (arm, seed)][1:] or [math.nan])


if __name__ == "__main__":
    main()
