"""Where a round's training begins: how far do curves fall, and at what accuracy? `same` beside
`cold`.

    python -m research.results.first_labels --data ../shared/data [--cases digits-mlp mnist-cnn]
    [--strategies random flip]

Whole campaigns, 20 to 100 labels, 10 a round; into research/data/starts.csv, where what is there is
not run again. `same` was chosen on seeds 100 to 107 of digits; these are others.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

from labelahead.data import from_arrays, load
from labelahead.data.dataset import Loaded
from labelahead.learner.config import Budget, Campaign, Network
from labelahead.simulation.comparison.statistics import t_interval
from labelahead.simulation.run import run
from labelahead.strategies.base import QueryConfig
from research.results.lines import CSV, TrialLine, read_csv, write_csv

FILE = CSV.parent / "starts.csv"
STARTS = ("cold", "same")
CASES = {"digits-mlp": ("digits", "mlp"), "mnist-cnn": ("mnist", "cnn")}
PART = 1000  # of MNIST, to ask from and to test on


def items(name: str, data: Path, seed: int) -> Loaded | None:
    """Digits as they are; of MNIST a thousand images to ask from and a thousand to test on, drawn
    by the seed.
    """
    if name == "digits":
        return None
    whole, answers = load(name, root=data / name)
    rng = torch.Generator().manual_seed(seed)
    free = torch.ones(len(whole), dtype=torch.bool)
    free[whole.test] = False
    parts = [
        at[torch.randperm(len(at), generator=rng)[:PART]]
        for at in (free.nonzero().squeeze(1), whole.test)
    ]
    at = torch.cat(parts)
    assert answers is not None
    return from_arrays(
        whole.inputs[at], answers.take(at), test=torch.arange(PART, 2 * PART), name=name
    )


def campaign(case: str, strategy: str, start: str, seed: int, data: Path) -> list[TrialLine]:
    """One campaign's rounds."""
    name, model = CASES[case]
    asked = Campaign(
        seed=seed,
        model=Network(model),
        asking=QueryConfig(strategy),
        training={"start": start},
        budget=Budget(initial=20, labels=100, retrain_every=10),
        threads=1,
    )
    began = time.perf_counter()
    done = run(asked, data=items(name, data, seed), forecast=False)
    seconds = round(time.perf_counter() - began, 1)
    variant = f"{start} {strategy}"
    return [
        TrialLine(case, variant, seed, r.labels, round(r.accuracy or 0.0, 5), seconds)
        for r in done.rounds
    ]


def describe_falls(lines: list[TrialLine]) -> str:
    """Falls, largest fall, accuracy along the curve and at the end, `same` minus `cold` with 95 %
    intervals.
    """
    text = []
    for case in dict.fromkeys(x.table for x in lines):
        for strategy in dict.fromkeys(x.variant.split()[1] for x in lines if x.table == case):
            curves = {start: _curves(lines, case, f"{start} {strategy}") for start in STARTS}
            seeds = sorted(set.intersection(*(set(c) for c in curves.values())))
            both = {start: 100 * np.array([curves[start][s] for s in seeds]) for start in STARTS}
            falls = {k: np.clip(-np.diff(v, axis=1), 0, None) for k, v in both.items()}
            text.append(f"{case}, queried by {strategy}, {len(seeds)} seeds:")
            for start in STARTS:
                f, v = falls[start], both[start]
                text.append(
                    f"  {start}: falls {f.sum(1).mean():.2f} points a campaign, the largest "
                    f"{f.max():.1f}; accuracy "
                    f"{v.mean():.2f} along the curve, {v[:, -1].mean():.2f} at the end"
                )
            for what, of in (
                ("falls", {k: v.sum(1) for k, v in falls.items()}),
                ("curve", _means(both)),
            ):
                e = t_interval(of["same"] - of["cold"])
                text.append(
                    f"  same - cold, {what}: {e.mean:+.2f} ({e.low or 0:+.2f} to "
                    f"{e.high or 0:+.2f})"
                )
    return "\n".join(text)


def _means(curves: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {k: v.mean(1) for k, v in curves.items()}


def _curves(lines: list[TrialLine], case: str, variant: str) -> dict[int, list[float]]:
    curves: dict[int, list[float]] = {}
    for x in sorted(lines, key=lambda x: x.labels):
        if (x.table, x.variant) == (case, variant):
            curves.setdefault(x.seed, []).append(x.accuracy)
    return curves


def main() -> int:
    """Run what is missing, then say what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--strategies", nargs="*", default=["random", "flip"])
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    lines = read_csv(FILE, TrialLine) if FILE.exists() else []
    for case in given.cases:
        for strategy in given.strategies:
            for seed in range(given.seeds):
                for start in STARTS:
                    if not _curves(lines, case, f"{start} {strategy}").get(seed):
                        lines += campaign(case, strategy, start, seed, given.data)
                        write_csv(FILE, TrialLine, lines)
    print(describe_falls(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
