"""How much of the possible gain the trust in guesses keeps, against constants chosen in hindsight.

    python -m research.results.trust_oracle run --seeds 0-10     # resumable
    python -m research.results.trust_oracle table

The sets, guessers, campaigns and test items are those of `research.results.guesses`. Ours learns the
trust in a guesser from the labels. Each constant of `CONSTANTS` instead adds that multiple of the
guess to the prior mean, at every number of labels, without a gate. The oracle takes, for every set,
guesser and number of labels, the constant with the best mean test accuracy: it knows the test labels.
Guesses are good where the oracle gains more than `GOOD_GAIN` points over predictions without them.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelahead.inference.exact_model import ExactModel
from labelahead.inference.mixture import Mixture
from research.results.guess_sets import GuessSet, load
from research.results.guesses import (
    COUNTS,
    JUDGED,
    NONE,
    OneCampaign,
    draw_test,
    label_items,
    measure_guesser,
)

OUT = Path(__file__).parents[1] / "data" / "trust_oracle.csv"
SETS = ("newsgroups", "segment")
GUESSERS = ("class names", "old model", "right 60", "right 75", "right 90", "by class")
CONSTANTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
OURS = "learnt"
GOOD_GAIN = 2.0  # points
KEPT = 0.8  # of the gain of the oracle: the aim
FIELDS = ("set", "guesser", "trust", "seed", *(f"at {n}" for n in COUNTS))
Rows = list[dict[str, str]]


class FixedTrust(OneCampaign):
    """A learner that trusts every guesser by the same number, whatever the labels say."""

    def __init__(
        self, of: GuessSet, guesser: str, mixtures: dict[int, Mixture], constant: float
    ) -> None:
        super().__init__(of, guesser, mixtures)
        object.__setattr__(self, "constant", constant)

    def _fit_trust(
        self, model: ExactModel, support: Tensor, targets: Tensor, mixture: Mixture
    ) -> tuple[Tensor, Tensor]:
        _, sharpness = super()._fit_trust(model, support, targets, mixture)
        eye = torch.eye(self.classes, dtype=torch.float64)
        return self.constant * eye.repeat(len(model.trust), 1, 1), sharpness


def measure_constant(
    of: GuessSet, guesser: str, seed: int, campaign: tuple[list[int], dict[int, Mixture]], s: float
) -> list[float]:
    """Return the test accuracy with a constant trust at every number of `COUNTS`."""
    positions, mixtures = campaign
    learner, test = FixedTrust(of, guesser, mixtures, s), draw_test(len(of.y), seed)
    curve = []
    for count in COUNTS:
        at = torch.tensor(positions[:count], dtype=torch.int64)
        curve.append(learner.fit(at, of.y[at]).accuracy(test, of.y[test]))
    return curve


def read_rows(path: Path = OUT) -> Rows:
    """Return the rows so far."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run_all(seeds: range, sets: list[str], path: Path = OUT) -> None:
    """Measure the sets and seeds that are missing."""
    done = {(r["set"], int(r["seed"])) for r in read_rows(path)}
    for seed in seeds:
        for name in sets:
            if (name, seed) in done:
                continue
            of = load(name)
            campaign = label_items(of, seed)
            rows = [(NONE, NONE, measure_guesser(of, NONE, seed, *campaign))]
            for guesser in (g for g in GUESSERS if g in of.guesses):
                rows.append((guesser, OURS, measure_guesser(of, guesser, seed, *campaign)))
                for s in CONSTANTS:
                    curve = measure_constant(of, guesser, seed, campaign, s)
                    rows.append((guesser, str(s), curve))
            new = not path.exists()
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows([FIELDS] if new else [])
                for guesser, kind, curve in rows:
                    writer.writerow([name, guesser, kind, seed, *(f"{a:.4f}" for a in curve)])
            print(name, seed, flush=True)


def collect_gains(given: Rows) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray, int]]:
    """Return, for every set and guesser, the gains of ours and of the oracle, and the seeds.

    Gains are mean differences to predictions without guesses in points, from `JUDGED` labels on.
    """
    first = COUNTS.index(JUDGED)
    curves: dict[tuple[str, str, str], dict[str, np.ndarray]] = {}
    for row in given:
        curve = np.array([100 * float(row[f"at {n}"]) for n in COUNTS[first:]])
        key = row["set"], row["guesser"], row["trust"]
        curves.setdefault(key, {})[row["seed"]] = curve
    gains = {}
    for name, guesser, kind in curves:
        if kind != OURS:
            continue
        base = curves[name, NONE, NONE]

        def average(
            kind: str, name: str = name, guesser: str = guesser, base: dict = base
        ) -> np.ndarray:
            found = curves[name, guesser, kind]
            return np.mean([found[seed] - base[seed] for seed in found], 0)

        oracle = np.max([average(str(s)) for s in CONSTANTS], 0).clip(min=0.0)
        gains[name, guesser] = average(OURS), oracle, len(curves[name, guesser, OURS])
    return gains


def format_table(given: Rows) -> str:
    """Return the gains of ours and of the oracle, and the share that is kept where guesses are good."""
    counts = COUNTS[COUNTS.index(JUDGED) :]
    lines = [
        "| set | guesser | seeds | " + " | ".join(map(str, counts)) + " | kept |",
        "| --- | --- | ---: | " + " | ".join("---:" for _ in counts) + " | ---: |",
    ]
    shares: list[float] = []
    for (name, guesser), (ours, oracle, seeds) in collect_gains(given).items():
        good = oracle > GOOD_GAIN
        shares += (ours[good] / oracle[good]).tolist()
        kept = f"{ours[good].sum() / oracle[good].sum():.0%}" if good.any() else "-"
        cells = [f"{a:+.1f} of {b:+.1f}" for a, b in zip(ours, oracle, strict=True)]
        lines.append(f"| {name} | {guesser} | {seeds} | " + " | ".join(cells) + f" | {kept} |")
    if shares:
        met = sum(share >= KEPT for share in shares)
        lines += [
            "",
            f"{met} of {len(shares)} cells in which the oracle gains more than {GOOD_GAIN:.0f} points keep at "
            f"least {KEPT:.0%} of it; median {np.median(shares):.0%}, least {min(shares):.0%}.",
        ]
    return "\n".join(lines)


def main(words: list[str]) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--seeds", default="0-10", help="FIRST-END")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args(words)
    if given.what == "run":
        torch.set_num_threads(1)
        run_all(range(*map(int, given.seeds.split("-"))), given.sets.split(","), given.out)
    print(format_table(read_rows(given.out)))


if __name__ == "__main__":
    main(sys.argv[1:])
