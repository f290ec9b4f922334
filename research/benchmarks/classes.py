"""Estimates of every class beside the truth, and macro-F1 by goal, on imbalanced data.

    python -m research bench classes run --seeds 0-9 --out runs/classes.csv [--goals accuracy,macro-f1]
    [--strategies flip,random] [--sets digits-imbalanced,...]
    python -m research bench classes table runs/classes.csv

Every campaign asks 20 to 160 labels by `flip` or at random; after every 20 labels it notes, for
every class, the estimated precision, recall and F1 of the exact learner with their intervals, and the
true ones on all unlabelled items. Truth is agreement with labels as they are. A seed draws the pool
as well as the campaign. Seeds 100 to 107 are for choosing variants, 0 to 9 for reporting.

Sets: digits-imbalanced (shares of the ten digits fall by a factor of 0.65 from one to the next), cancer
(scikit-learn), blobs6 (six overlapping clouds of
shares 50, 25, 12, 6, 4 and 3 %), digits (balanced, to compare with).
"""

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from sklearn import datasets

from estimates import Make, Part, draw_items, load_known_set, numbers
from labelahead.data import from_arrays
from labelahead.gp.class_quality import ClassEstimate, Estimate
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.simulation.loop import State, run_rounds
from labelahead.simulation.run import build_simulation

FIRST, LAST, EVERY = 20, 160, 20  # labels
CANDIDATES = 200
RELIABLE = 60  # labels from which on estimates are summarised
RARE_SHARE = 0.05  # of the items
MEASURES = ("precision", "recall", "f1")


@dataclass(frozen=True)
class Line:
    """One number of one class after some labels."""

    set: str
    strategy: str
    goal: str
    seed: int
    labels: int
    class_: int
    class_labels: int
    share: float  # of the class among the unlabelled items
    measure: str
    truth: float
    value: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """Whether the interval holds the truth."""
        return self.low <= self.truth <= self.high


def thin_classes(load: Callable[..., Part], shares: Sequence[float], items: int = 1200) -> Make:
    """A set in which the classes have these shares, as far as there are enough items."""

    def make(rng: np.random.Generator) -> Part:
        x, y = load(return_X_y=True)
        wanted = np.array(shares) / sum(shares)
        size = min(items, *(np.bincount(y) / wanted))
        at = np.concatenate(
            [
                rng.permutation(np.flatnonzero(y == c))[: max(8, round(size * share))]
                for c, share in enumerate(wanted)
            ]
        )
        return draw_items(x[at], y[at], rng)

    return make


def blobs(rng: np.random.Generator) -> Part:
    """Six overlapping clouds in eight dimensions, of very different size."""
    y = rng.choice(6, size=1200, p=[0.5, 0.25, 0.12, 0.06, 0.04, 0.03])
    centres = np.random.default_rng(7).standard_normal((6, 8))
    return draw_items(1.3 * centres[y] + rng.standard_normal((1200, 8)), y, rng)


SETS: dict[str, Make] = {
    "digits-imbalanced": thin_classes(datasets.load_digits, [0.65**c for c in range(10)]),
    "cancer": load_known_set(datasets.load_breast_cancer),
    "blobs6": blobs,
    "digits": load_known_set(datasets.load_digits),
}


def campaign(name: str, make: Make, strategy: str, goal: str, seed: int) -> list[Line]:
    """The readings of one campaign."""
    x, y = make(np.random.default_rng(seed))
    labels, truth = min(LAST, len(x) // 2), torch.tensor(y)
    asking = {"strategy": strategy, "candidates": CANDIDATES, "evaluation": CANDIDATES}
    config = {
        "model": {"name": "exact"},
        "data": {"embedding": "raw"},
        "budget": {"initial": FIRST, "labels": labels, "retrain_every": EVERY},
        "asking": asking if goal == "accuracy" else {**asking, "goal": goal},
        "threads": 1,
        "seed": seed,
    }
    names = [str(c) for c in range(int(y.max()) + 1)]
    given = from_arrays(torch.tensor(x, dtype=torch.float32), y.tolist(), classes=names)
    plan, states = build_simulation(prepare_campaign(parse_campaign(config), given)), list[State]()
    lines = []
    for entry in run_rounds(plan, keep=states.append):
        at = states[-1].pool.labelled[: entry.labels]
        open_ = torch.ones(len(x), dtype=torch.bool).index_fill_(0, at, False)
        rest = open_.nonzero()[:, 0]
        report = plan.learner.estimate_class_report(at, truth[at], rest)
        guess = states[-1].model(plan.learner.inputs[rest]).argmax(1)
        for row in report.classes:
            lines += describe_class(
                (name, strategy, goal, seed, entry.labels), row, guess, truth[rest]
            )
    return lines


def describe_class(
    head: tuple[str, str, str, int, int],
    row: ClassEstimate,
    guess: torch.Tensor,
    truth: torch.Tensor,
) -> list[Line]:
    """The lines of one class; a measure without a true value or an estimate has none."""
    is_guess, is_true = guess == row.number, truth == row.number
    right = float((is_guess & is_true).sum())
    predicted, members = int(is_guess.sum()), int(is_true.sum())
    found: list[tuple[str, float, int, Estimate | None]] = [
        ("precision", right, predicted, row.precision),
        ("recall", right, members, row.recall),
        ("f1", 2 * right, predicted + members, row.f1),
    ]
    return [
        Line(*head, row.number, row.labels, members / len(truth), name, part / whole, *estimate)
        for name, part, whole, estimate in found
        if whole and estimate is not None
    ]


def read_lines(path: Path) -> list[Line]:
    """What a CSV holds; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        types = {field.name: field.type for field in fields(Line)}
        return [Line(**{k: types[k](v) for k, v in row.items()}) for row in csv.DictReader(file)]


def run_missing(wanted: Sequence[tuple[str, str, str, int]], out: Path) -> None:
    """Every campaign that the CSV lacks, into it."""
    there = {(x.set, x.strategy, x.goal, x.seed) for x in read_lines(out)}
    out.parent.mkdir(parents=True, exist_ok=True)
    names = [field.name for field in fields(Line)]
    if not out.exists():
        out.write_text(",".join(names) + "\n")
    for name, strategy, goal, seed in wanted:
        if (name, strategy, goal, seed) in there:
            continue
        lines = campaign(name, SETS[name], strategy, goal, seed)
        rows = [[getattr(line, key) for key in names] for line in lines]
        with out.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [round(v, 4) if isinstance(v, float) else v for v in row] for row in rows
            )
        print(name, strategy, goal, seed, f"{np.mean([x.inside for x in lines]):.0%}", flush=True)


def table_of_coverage(lines: Sequence[Line]) -> list[str]:
    """Coverage, width and bias from RELIABLE labels on, for frequent and rare classes."""
    out = [
        "| set | strategy | classes | measure | readings | inside | width, points | bias, points |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    late = [x for x in lines if x.labels >= RELIABLE and x.goal == "accuracy"]
    for name, strategy in dict.fromkeys((x.set, x.strategy) for x in late):
        for kind, is_rare in (("frequent", False), ("rare", True)):
            for measure in MEASURES:
                some = [
                    x
                    for x in late
                    if (x.set, x.strategy, x.measure) == (name, strategy, measure)
                    and (x.share < RARE_SHARE) == is_rare
                ]
                if some:
                    out.append(
                        f"| {name} | {strategy} | {kind} | {measure} | {len(some)} "
                        f"| {np.mean([x.inside for x in some]):.0%} "
                        f"| {100 * np.mean([x.high - x.low for x in some]):.0f} "
                        f"| {100 * np.mean([x.value - x.truth for x in some]):+.1f} |"
                    )
    return out


def table_of_goals(lines: Sequence[Line]) -> list[str]:
    """True macro-F1 over all unlabelled items with each goal, paired by seed."""
    out = [
        "| set | strategy | labels | seeds | accuracy as goal | macro-f1 as goal | difference |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    cells: dict[tuple[str, str, str, int, int], list[float]] = {}
    for x in lines:
        if x.measure == "f1":
            cells.setdefault((x.set, x.strategy, x.goal, x.labels, x.seed), []).append(x.truth)
    heads = dict.fromkeys((*k[:2], k[3]) for k in cells if k[2] == "macro-f1")
    for name, strategy, labels in heads:
        pairs = [
            (np.mean(cells[name, strategy, "accuracy", labels, k[4]]), np.mean(values))
            for k, values in cells.items()
            if (k[0], k[1], k[2], k[3]) == (name, strategy, "macro-f1", labels)
            and (name, strategy, "accuracy", labels, k[4]) in cells
        ]
        if pairs:
            plain, goal = 100 * np.array(pairs).T
            error = (goal - plain).std(ddof=1) / np.sqrt(len(pairs)) if len(pairs) > 1 else np.nan
            out.append(
                f"| {name} | {strategy} | {labels} | {len(pairs)} | {plain.mean():.1f} "
                f"| {goal.mean():.1f} | {(goal - plain).mean():+.1f} ± {error:.1f} |"
            )
    return out


def main(words: Sequence[str] | None = None) -> int:
    """Exit code: 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    jobs = parser.add_subparsers(dest="job", required=True)
    run = jobs.add_parser("run")
    run.add_argument("--seeds", type=numbers, default=numbers("0-9"))
    run.add_argument("--sets", default=",".join(SETS), help="names, separated by commas")
    run.add_argument("--strategies", default="flip,random")
    run.add_argument("--goals", default="accuracy")
    run.add_argument("--out", type=Path, default=Path("runs/classes.csv"))
    jobs.add_parser("table").add_argument("file", type=Path)
    given = parser.parse_args(words)
    if given.job == "table":
        lines = read_lines(given.file)
        print("\n".join([*table_of_coverage(lines), "", *table_of_goals(lines)]))
        return 0
    torch.set_num_threads(1)
    sets, strategies, goals = (
        text.split(",") for text in (given.sets, given.strategies, given.goals)
    )
    if odd := [name for name in sets if name not in SETS]:
        parser.error(f"there is no set {odd[0]!r}; expected some of {', '.join(SETS)}")
    wanted = [
        (name, strategy, goal, seed)
        for seed in given.seeds
        for name in sets
        for strategy in strategies
        for goal in goals
    ]
    run_missing(wanted, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
