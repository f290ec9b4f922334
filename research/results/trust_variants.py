"""Which form of trust: variants of its constants, measured on seeds that the final table never uses.

    python -m research.results.trust_variants run       # seeds 100 to 107, resumable
    python -m research.results.trust_variants table

Every variant predicts from the labels of the same campaigns as `research.results.guesses`. The
table has, for every variant, the least mean difference to predictions without guesses (from 10
labels on), the mean difference, and the share of the gain of one number per guesser ("one number",
without confusions and gate) that is kept where that gain is above two points.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from labelahead.inference import trust
from research.results.guess_sets import load
from research.results.guesses import COUNTS, JUDGED, NONE, label_items, measure_guesser

OUT = Path(__file__).parents[1] / "data" / "trust_variants.csv"
FIELDS = ("set", "guesser", "variant", "seed", *(f"at {n}" for n in COUNTS))
SEEDS = range(100, 108)
SETS = ("newsgroups", "r8", "segment")
GUESSERS = ("class names", "old model", "right 30", "right 60", "by class", "spread 75")
ONE_NUMBER = "one number"
OPEN = {"GATE_SLOPE": 0.0, "GATE_OFFSET": 50.0}
VARIANTS: dict[str, dict[str, object]] = {
    ONE_NUMBER: {"CONFUSION_GRID": (0.0,), **OPEN},
    "confusions, no gate": OPEN,
    "gate, no confusions": {"CONFUSION_GRID": (0.0,)},
    "both": {},
    "no sharpening": {"SHARPNESS_GRID": ()},
    "gate offset 0": {"GATE_OFFSET": 0.0},
    "gate offset 0.5": {"GATE_OFFSET": 0.5},
    "confusions by 1 standard error": {"MIN_CONFUSION_SIGNIFICANCE": 1.0},
}


@contextmanager
def use_variant(name: str) -> Iterator[None]:
    """Set the constants of a variant."""
    before = {key: getattr(trust, key) for key in VARIANTS[name]}
    for key, value in VARIANTS[name].items():
        setattr(trust, key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            setattr(trust, key, value)


def read_rows() -> list[dict[str, str]]:
    if not OUT.exists():
        return []
    with OUT.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run_all() -> None:
    done = {(r["set"], int(r["seed"])) for r in read_rows()}
    for seed in SEEDS:
        for name in SETS:
            if (name, seed) in done:
                continue
            of = load(name)
            positions, mixtures = label_items(of, seed)
            rows = []
            for guesser in (NONE, *(g for g in GUESSERS if g in of.guesses)):
                for variant in VARIANTS if guesser != NONE else ("",):
                    with use_variant(variant or "both"):
                        curve = measure_guesser(of, guesser, seed, positions, mixtures)
                    rows.append([name, guesser, variant, seed, *(f"{a:.4f}" for a in curve)])
            new = not OUT.exists()
            with OUT.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows([FIELDS] if new else [])
                writer.writerows(rows)
            print(name, seed, flush=True)


def format_table(given: list[dict[str, str]]) -> str:
    """Return one line per variant."""
    curves: dict[tuple[str, str, str], dict[str, np.ndarray]] = {}
    for r in given:
        curve = np.array([100 * float(r[f"at {n}"]) for n in COUNTS])
        curves.setdefault((r["set"], r["guesser"], r["variant"]), {})[r["seed"]] = curve
    first = COUNTS.index(JUDGED)

    def average(name: str, guesser: str, variant: str) -> np.ndarray:
        base, found = curves[name, NONE, ""], curves[name, guesser, variant]
        return np.mean([found[s] - base[s] for s in found], 0)[first:]

    lines = [
        "| variant | cells | least | mean | gain kept, least | gain kept, median |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for variant in VARIANTS:
        pairs = [(k[0], k[1]) for k in curves if k[2] == variant]
        if not pairs:
            continue
        gains = np.concatenate([average(*pair, variant) for pair in pairs])
        before = np.concatenate([average(*pair, ONE_NUMBER) for pair in pairs])
        kept = gains[before > 2] / before[before > 2]
        lines.append(
            f"| {variant} | {len(gains)} | {gains.min():+.2f} | {gains.mean():+.2f} | "
            f"{kept.min():.0%} | {np.median(kept):.0%} |"
        )
    return "\n".join(lines)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    if parser.parse_args(words).what == "run":
        torch.set_num_threads(1)
        run_all()
    print(format_table(read_rows()))


if __name__ == "__main__":
    main(sys.argv[1:])
