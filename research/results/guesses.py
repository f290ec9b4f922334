"""What guesses are worth: campaigns with and without prior knowledge, on the same seeds.

    python -m research.results.guesses run --seeds 0-10     # one row per guesser and seed, resumable
    python -m research.results.guesses table                # writes the table of docs/guesses.md

Sets and guessers: `research.results.guess_sets`. Of every set 40 % of the items are for testing,
drawn by the seed. The exact learner with `flip`, 300 candidates and evaluation items, no initial
labels, batches of 5 up to 20 labels, then of 10, 20 and 40. Guesses do not change what look-ahead
queries, so that one campaign serves all guessers: each predicts from the same labels.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
import torch

from labelahead.data.pool import Pool
from labelahead.files import replace_file
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import append_pool_guesses, exact
from labelahead.inference.mixture import Mixture
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.query import propose
from research.results.guess_sets import SETS, GuessSet, load

OUT = Path(__file__).parents[1] / "data" / "guesses.csv"
DOCS = Path(__file__).parents[2] / "docs" / "guesses.md"
BEGIN, END = "<!-- table of research.results.guesses -->", "<!-- end of the table -->"
COUNTS = (0, 5, 10, 20, 40, 80, 160)
JUDGED = 10  # labels from which the goal holds
FIELDS = ("set", "guesser", "seed", *(f"at {n}" for n in COUNTS))
NONE = "none"
GUESSERS = (
    NONE,
    "class names",
    "old model",
    "right 30",
    "right 60",
    "right 75",
    "right 90",
    "by class",
    "by region",
    "largest",
    "never",
    "spread 75",
    "right 75 + by class",
    "right 60 + never",
)
TITLES = {
    "newsgroups": "20 newsgroups",
    "r8": "Reuters R8",
    "r52": "Reuters R52",
    "cifar10": "CIFAR-10",
    "caltech101": "Caltech101",
    "segment": "segment (table)",
    "vowel": "vowel (table)",
}
TEST_SHARE = 0.4
QUERY = QueryConfig("flip", candidates=300, evaluation=300)


def batch_size(labels: int) -> int:
    """Return how many items are queried after so many labels."""
    return 5 if labels < 20 else 10 if labels < 40 else 20 if labels < 80 else 40


def draw_test(items: int, seed: int) -> torch.Tensor:
    """Return the positions (t,) of the test items."""
    order = torch.randperm(items, generator=torch.Generator().manual_seed(seed))
    return order[: int(TEST_SHARE * items)]


class OneCampaign(ExactLearner):
    """An exact learner that keeps the mixture of every number of labels: it ignores guesses."""

    def _choose_mixture(self, support: torch.Tensor, targets: torch.Tensor) -> Mixture:
        if len(support) not in self.mixtures:
            self.mixtures[len(support)] = super()._choose_mixture(support, targets)
        return self.mixtures[len(support)]

    def __init__(self, of: GuessSet, guesser: str, mixtures: dict[int, Mixture]) -> None:
        names = [] if guesser == NONE else guesser.split(" + ")
        blank = exact(of.x, of.classes, guesses={k: of.guesses[k] for k in names} or None)
        super().__init__(append_pool_guesses(blank, of.x), blank)
        object.__setattr__(self, "mixtures", mixtures)


def label_items(of: GuessSet, seed: int) -> tuple[list[int], dict[int, Mixture]]:
    """Return the positions that a campaign labels, in order, and the mixtures of its rounds."""
    learner = OneCampaign(of, NONE, {})
    pool = Pool(len(of.y), test=draw_test(len(of.y), seed))
    while len(pool) < COUNTS[-1]:
        fitted = learner.fit(pool.labelled, pool.labels)
        query = propose(fitted.model, learner.inputs, pool, batch_size(len(pool)), QUERY, seed=seed)
        pool.label(query.positions, of.y[query.positions])
    return pool.labelled.tolist(), learner.mixtures


def measure_guesser(
    of: GuessSet, guesser: str, seed: int, positions: list[int], mixtures: dict[int, Mixture]
) -> list[float]:
    """Return the test accuracy with a guesser at every number of `COUNTS`."""
    learner, test = OneCampaign(of, guesser, mixtures), draw_test(len(of.y), seed)
    curve = []
    for count in COUNTS:
        at = torch.tensor(positions[:count], dtype=torch.int64)
        curve.append(learner.fit(at, of.y[at]).accuracy(test, of.y[test]))
    return curve


def read_rows() -> list[dict[str, str]]:
    if not OUT.exists():
        return []
    with OUT.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run_all(seeds: range, sets: list[str], guessers: list[str]) -> None:
    done = {(r["set"], r["guesser"], int(r["seed"])) for r in read_rows()}
    for seed in seeds:
        for name in sets:
            of = load(name)
            some = [
                g
                for g in guessers
                if (g == NONE or set(g.split(" + ")) <= of.guesses.keys())
                and (name, g, seed) not in done
            ]
            if not some:
                continue
            positions, mixtures = label_items(of, seed)
            new = not OUT.exists()
            with OUT.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows([FIELDS] if new else [])
                for guesser in some:
                    curve = measure_guesser(of, guesser, seed, positions, mixtures)
                    writer.writerow([name, guesser, seed, *(f"{a:.4f}" for a in curve)])
            print(name, seed, flush=True)


def collect(given: list[dict[str, str]]) -> dict[tuple[str, str], np.ndarray]:
    """Return the curves (seeds, counts) in per cent; with guesses, differences to those without."""
    rows: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for r in given:
        curve = np.array([100 * float(r[f"at {n}"]) for n in COUNTS])
        rows.setdefault((r["set"], r["guesser"]), {})[r["seed"]] = curve
    out = {}
    for (name, guesser), found in rows.items():
        base = rows.get((name, NONE), {})
        seeds = sorted(found if guesser == NONE else set(found) & set(base))
        if seeds:
            out[name, guesser] = np.array(
                [found[s] if guesser == NONE else found[s] - base[s] for s in seeds]
            )
    return out


def compute_errors(d: np.ndarray) -> np.ndarray:
    """Return the standard errors (counts,) of the means of differences (seeds, counts)."""
    return d.std(0, ddof=1) / len(d) ** 0.5 if len(d) > 1 else np.zeros(d.shape[1])


def format_table(given: list[dict[str, str]]) -> str:
    """Return accuracies without guesses, and differences with standard errors, in points."""
    rows = collect(given)
    lines = [
        "| set | guesser | seeds | " + " | ".join(map(str, COUNTS)) + " |",
        "| --- | --- | ---: | " + " | ".join("---:" for _ in COUNTS) + " |",
    ]
    for name in SETS:
        for guesser in GUESSERS:
            d = rows.get((name, guesser))
            if d is None:
                continue
            if guesser == NONE:
                title, cells = "none: accuracy in %", [f"{v:.1f}" for v in d.mean(0)]
            else:
                title = guesser
                pairs = zip(d.mean(0), compute_errors(d), strict=True)
                cells = [f"{m:+.1f} ± {e:.1f}" for m, e in pairs]
            lines.append(f"| {TITLES[name]} | {title} | {len(d)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def format_losses(given: list[dict[str, str]]) -> str:
    """Return a sentence on the cells that are more than half a point below no guesses."""
    first = COUNTS.index(JUDGED)
    cells = [
        (float(m), float(e), name, guesser, n)
        for (name, guesser), d in collect(given).items()
        if guesser != NONE
        for m, e, n in zip(
            d.mean(0)[first:], compute_errors(d)[first:], COUNTS[first:], strict=True
        )
    ]
    low = sorted(c for c in cells if c[0] < -0.5)
    worst = "; ".join(
        f"{TITLES[name]}, {guesser}, {n} labels: {m:+.1f} ± {e:.1f}"
        for m, e, name, guesser, n in low
    )
    return (
        f"{len(low)} of {len(cells)} cells from {JUDGED} labels on are more than half a point below "
        "no guesses" + (f": {worst}." if low else ".")
    )


def write_docs(given: list[dict[str, str]]) -> None:
    """Replace the table in docs/guesses.md."""
    text = DOCS.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    table = f"{BEGIN}\n\n{format_table(given)}\n\n{format_losses(given)}\n\n{END}"
    replace_file(DOCS, before + table + after)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--seeds", default="0-10", help="FIRST-END")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--guessers", default=",".join(GUESSERS))
    given = parser.parse_args(words)
    if given.what == "run":
        torch.set_num_threads(1)
        seeds = range(*map(int, given.seeds.split("-")))
        run_all(seeds, given.sets.split(","), given.guessers.split(","))
        return
    write_docs(read_rows())
    print(format_table(read_rows()))
    print(format_losses(read_rows()))


if __name__ == "__main__":
    main(sys.argv[1:])
