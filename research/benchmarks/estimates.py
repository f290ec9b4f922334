"""Error estimates and stop advice beside the truth, on data with and without signal.

    python -m research.benchmarks.estimates run --seeds 0-9 --out runs/estimates.csv [--sets
    noise2,digits ...] [--data DIR] python -m research.benchmarks.estimates table runs/estimates.csv

Every campaign asks 20 to 160 labels by `flip`, `uherding` or at random; after every 20 labels it
notes the estimated error of the exact learner, its interval, whether stop advice stands, and the
true error on all unlabelled items. Truth is agreement with labels as they are, noise included. A
seed draws the pool as well as the campaign. Campaigns that the CSV holds are not run again. Seeds
100 to 107 are for choosing variants, 0 to 9 for reporting.

Sets without signal, or with little: noise2, noise5, noise20 (random labels), chess6, chess10
(parity of the cell of a grid in the plane), blobs40, digits40 (40 % of the labels wrong), weak200,
many200 (200 classes). Ordinary ones: digits, cancer, wine (scikit-learn). DIR may hold further ones
as NAME.npz with float features x (n, d) and classes y (n,).
"""

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from sklearn import datasets

from labelahead.data import from_arrays
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.learner.stopping import ErrorReading, stop_advice
from labelahead.simulation.loop import State, run_rounds
from labelahead.simulation.run import build_simulation

Part = tuple[np.ndarray, np.ndarray]  # features (n, d), classes (n,)
Make = Callable[[np.random.Generator], Part]

ITEMS = 1200
STRATEGIES = ("flip", "uherding", "random")
FIRST, LAST, EVERY = 20, 160, 20  # labels
CANDIDATES = 200
RELIABLE = 50  # labels from which on estimates are summarised


@dataclass(frozen=True)
class Line:
    """One reading."""

    set: str
    strategy: str
    seed: int
    labels: int
    truth: float
    error: float
    low: float
    high: float
    advised: bool

    @property
    def inside(self) -> bool:
        """Whether the interval holds the truth."""
        return self.low <= self.truth <= self.high


def noise(classes: int) -> Make:
    return lambda rng: (rng.standard_normal((ITEMS, 16)), rng.integers(classes, size=ITEMS))


def chessboard(cells: int) -> Make:
    def make(rng: np.random.Generator) -> Part:
        x = rng.random((ITEMS, 2))
        return standardise_columns(x), np.floor(cells * x).astype(int).sum(1) % 2

    return make


def mislabel(make: Make, share: float = 0.4) -> Make:
    """The same with this share of the labels replaced by another class."""

    def make_mislabelled(rng: np.random.Generator) -> Part:
        x, y = make(rng)
        classes = int(y.max()) + 1
        other = (y + rng.integers(1, classes, size=len(y))) % classes
        return x, np.where(rng.random(len(y)) < share, other, y)

    return make_mislabelled


def blobs(rng: np.random.Generator) -> Part:
    """Two overlapping clouds in eight dimensions."""
    y = rng.integers(2, size=ITEMS)
    return rng.standard_normal((ITEMS, 8)) + 2.4 * (2 * y[:, None] - 1) / np.sqrt(8), y


def clusters(separation: float, classes: int = 200) -> Make:
    def make(rng: np.random.Generator) -> Part:
        centres, y = rng.standard_normal((classes, 32)), rng.integers(classes, size=ITEMS)
        return separation * centres[y] + rng.standard_normal((ITEMS, 32)), y

    return make


def load_known_set(load: Callable[..., Part]) -> Make:
    return lambda rng: draw_items(*load(return_X_y=True), rng)


def load_stored_set(path: Path) -> Make:
    def make(rng: np.random.Generator) -> Part:
        arrays = np.load(path)
        return draw_items(arrays["x"], arrays["y"], rng)

    return make


def draw_items(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Part:
    """At most ITEMS of them at random, columns standardised, classes numbered."""
    at = rng.permutation(len(x))[:ITEMS]
    return standardise_columns(np.asarray(x, dtype=np.float64)[at]), np.unique(
        np.asarray(y)[at], return_inverse=True
    )[1]


def standardise_columns(x: np.ndarray) -> np.ndarray:
    deviation = x.std(0)
    return (x - x.mean(0)) / np.where(deviation > 0, deviation, 1)


SETS: dict[str, Make] = {
    "noise2": noise(2),
    "noise5": noise(5),
    "noise20": noise(20),
    "chess6": chessboard(6),
    "chess10": chessboard(10),
    "blobs40": mislabel(blobs),
    "digits40": mislabel(load_known_set(datasets.load_digits)),
    "weak200": clusters(0.3),
    "many200": clusters(1.2),
    "digits": load_known_set(datasets.load_digits),
    "cancer": load_known_set(datasets.load_breast_cancer),
    "wine": load_known_set(datasets.load_wine),
}


def campaign(name: str, make: Make, strategy: str, seed: int) -> list[Line]:
    """The readings of one campaign."""
    x, y = make(np.random.default_rng(seed))
    labels, truth = min(LAST, len(x) // 2), torch.tensor(y)
    config = {
        "model": {"name": "exact"},
        "data": {"embedding": "raw"},
        "budget": {"initial": FIRST, "labels": labels, "retrain_every": EVERY},
        "asking": {"strategy": strategy, "candidates": CANDIDATES, "evaluation": CANDIDATES},
        "threads": 1,
        "seed": seed,
    }
    names = [str(c) for c in range(int(y.max()) + 1)]
    ready = prepare_campaign(
        parse_campaign(config),
        from_arrays(torch.tensor(x, dtype=torch.float32), y.tolist(), classes=names),
    )
    plan, states = build_simulation(ready), list[State]()
    lines, readings = list[Line](), list[ErrorReading]()
    for entry in run_rounds(plan, keep=states.append):
        readings.append(
            ErrorReading(entry.labels, entry.error, entry.error_low, entry.error_high, entry.fall)
        )
        if entry.error is None:
            continue
        open_ = torch.ones(len(x), dtype=torch.bool)
        # what the round asked for is not learnt yet
        open_[states[-1].pool.labelled[: entry.labels]] = False
        guess = states[-1].model(plan.learner.inputs[open_]).argmax(1)
        wrong = float((guess != truth[open_]).double().mean())
        advised = stop_advice(readings) is not None
        lines.append(Line(name, strategy, seed, entry.labels, wrong, *readings[-1][1:4], advised))
    return lines


def read_lines(path: Path) -> list[Line]:
    """What a CSV holds; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Line(
                r["set"], r["strategy"], int(r["seed"]), int(r["labels"]), float(r["truth"]), float(r["error"]),
                float(r["low"]), float(r["high"]), r["advised"] == "True",
            )
            for r in csv.DictReader(file)
        ]  # fmt: skip


def run_missing(sets: dict[str, Make], seeds: Sequence[int], out: Path) -> None:
    """Every campaign that the CSV lacks, into it."""
    there = {(line.set, line.strategy, line.seed) for line in read_lines(out)}
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        out.write_text(",".join(field.name for field in fields(Line)) + "\n")
    for seed in seeds:
        for name, make in sets.items():
            for strategy in STRATEGIES:
                if (name, strategy, seed) in there:
                    continue
                lines = campaign(name, make, strategy, seed)
                with out.open("a", newline="") as file:
                    rounded = (
                        [round(v, 5) if isinstance(v, float) else v for v in astuple(x)]
                        for x in lines
                    )
                    csv.writer(file, lineterminator="\n").writerows(rounded)
                inside = sum(line.inside for line in lines)
                print(
                    f"{name}, {strategy}, seed {seed}: {inside} of {len(lines)} inside", flush=True
                )


def table(lines: Sequence[Line]) -> list[str]:
    """Coverage, width and bias for every set and strategy, from RELIABLE labels on, and advice to
    stop.
    """
    out = [
        "| set | strategy | readings | inside | width, points | off by, points | bias, points | "
        "advised to stop |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in dict.fromkeys(line.set for line in lines):
        for strategy in STRATEGIES:
            some = [
                x for x in lines if (x.set, x.strategy) == (name, strategy) and x.labels >= RELIABLE
            ]
            if some:
                gap = 100 * np.array([x.error - x.truth for x in some])
                width = 100 * np.mean([x.high - x.low for x in some])
                out.append(
                    f"| {name} | {strategy} | {len(some)} | "
                    f"{np.mean([x.inside for x in some]):.0%} | {width:.0f} | "
                    f"{np.abs(gap).mean():.1f} | {gap.mean():+.1f} | "
                    f"{np.mean([x.advised for x in some]):.0%} |"
                )
    return out


def numbers(text: str) -> list[int]:
    """Seeds as 0-9 or 3."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main(words: Sequence[str] | None = None) -> int:
    """Exit code: 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    jobs = parser.add_subparsers(dest="job", required=True)
    run = jobs.add_parser("run")
    run.add_argument("--seeds", type=numbers, default=numbers("0-9"))
    run.add_argument("--sets", default="", help="names, separated by commas")
    run.add_argument("--data", type=Path, help="a folder of further sets, NAME.npz")
    run.add_argument("--out", type=Path, default=Path("runs/estimates.csv"))
    jobs.add_parser("table").add_argument("file", type=Path)
    given = parser.parse_args(words)
    if given.job == "table":
        print("\n".join(table(read_lines(given.file))))
        return 0
    torch.set_num_threads(1)
    sets = SETS | (
        {path.stem: load_stored_set(path) for path in sorted(given.data.glob("*.npz"))}
        if given.data
        else {}
    )
    wanted = given.sets.split(",") if given.sets else list(sets)
    if odd := [name for name in wanted if name not in sets]:
        parser.error(f"there is no set {odd[0]!r}; expected some of {', '.join(sets)}")
    run_missing({name: sets[name] for name in wanted}, given.seeds, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
