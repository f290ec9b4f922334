"""Class names as prior knowledge where there are two classes, or six broad ones.

    python -m research.results.guess_sets newsgroups --data ../shared/data    # once: the embeddings
    python -m research.results.topic_pairs run --seeds 0-10                   # resumable
    python -m research.results.topic_pairs table

The groups of 20 newsgroups are merged into topics with names of one word (`TOPICS`). Campaigns and
test items are those of `research.results.guesses`. "swapped" gives every class the guess about
the next one: names that mislead, as if two were confused.
"""

import argparse
import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from labelahead.data.class_names import ClassNameGuesser
from labelahead.learner.guessers import TEXT_PROMPT
from labelahead.models.sentence_encoder import embed_texts
from research.results import texts
from research.results.guess_sets import GuessSet, load
from research.results.guesses import COUNTS, NONE, compute_errors, label_items, measure_guesser

OUT = Path(__file__).parents[1] / "data" / "topic_pairs.csv"
TOPICS = {
    "computers": ("comp.",),
    "sports": ("rec.sport.",),
    "vehicles": ("rec.autos", "rec.motorcycles"),
    "science": ("sci.",),
    "religion": ("alt.atheism", "soc.religion.christian", "talk.religion.misc"),
    "politics": ("talk.politics.",),
}
SETS = {
    "religion or politics": ("religion", "politics"),
    "computers or science": ("computers", "science"),
    "sports or vehicles": ("sports", "vehicles"),
    "six topics": tuple(TOPICS),
}
NAMES, SWAPPED = "class names", "swapped"
FIELDS = ("set", "guesser", "seed", *(f"at {n}" for n in COUNTS))
Rows = list[dict[str, str]]


def merge_topics(of: GuessSet, groups: list[str], topics: tuple[str, ...]) -> GuessSet:
    """Return the items of some topics, by topic, without guesses.

    Args:
        of: The items by group.
        groups: The names of the groups, in the order of their numbers.
        topics: The topics, in the order of their new numbers.
    """
    of_group = [
        next((i for i, t in enumerate(topics) if g.startswith(TOPICS[t])), -1) for g in groups
    ]
    y = torch.tensor(of_group)[of.y]
    kept = (y >= 0).nonzero()[:, 0]
    return GuessSet(of.x[kept], y[kept], len(topics), {})


def load_topics(name: str) -> GuessSet:
    """Return the items of a set with the guesses by class names, right and swapped."""
    pairs = [row for part in texts.draw_texts("newsgroups", Path("runs/texts")) for row in part]
    groups = sorted({label for _, label in pairs})
    of = merge_topics(load("newsgroups"), groups, SETS[name])
    prompts = embed_texts([TEXT_PROMPT.format(topic) for topic in SETS[name]], cache=None)
    p = ClassNameGuesser.fit(prompts, of.x).guess(of.x)
    return replace(of, guesses={NAMES: p, SWAPPED: p.roll(1, 1)})


def read_rows(path: Path = OUT) -> Rows:
    """Return the rows so far."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run_all(seeds: range, path: Path = OUT) -> None:
    """Measure the sets and seeds that are missing."""
    done = {(r["set"], int(r["seed"])) for r in read_rows(path)}
    loaded: dict[str, GuessSet] = {}
    for seed in seeds:
        for name in SETS:
            if (name, seed) in done:
                continue
            of = loaded.setdefault(name, load_topics(name))
            positions, mixtures = label_items(of, seed)
            new = not path.exists()
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows([FIELDS] if new else [])
                for guesser in (NONE, NAMES, SWAPPED):
                    curve = measure_guesser(of, guesser, seed, positions, mixtures)
                    writer.writerow([name, guesser, seed, *(f"{a:.4f}" for a in curve)])
            print(name, seed, flush=True)


def format_table(given: Rows) -> str:
    """Return accuracies without guesses, and paired differences with standard errors, in points."""
    curves: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for row in given:
        curve = np.array([100 * float(row[f"at {n}"]) for n in COUNTS])
        curves.setdefault((row["set"], row["guesser"]), {})[row["seed"]] = curve
    lines = [
        "| set | guesser | seeds | " + " | ".join(map(str, COUNTS)) + " |",
        "| --- | --- | ---: | " + " | ".join("---:" for _ in COUNTS) + " |",
    ]
    for name in SETS:
        base = curves.get((name, NONE), {})
        if not base:
            continue
        means = np.mean(list(base.values()), 0)
        cells = " | ".join(f"{v:.1f}" for v in means)
        lines.append(f"| {name} | none: accuracy in % | {len(base)} | {cells} |")
        for guesser in (NAMES, SWAPPED):
            found = curves[name, guesser]
            d = np.array([found[seed] - base[seed] for seed in found])
            cells = " | ".join(
                f"{m:+.1f} ± {e:.1f}" for m, e in zip(d.mean(0), compute_errors(d), strict=True)
            )
            lines.append(f"| {name} | {guesser} | {len(d)} | {cells} |")
    return "\n".join(lines)


def main(words: list[str]) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--seeds", default="0-10", help="FIRST-END")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args(words)
    if given.what == "run":
        torch.set_num_threads(1)
        run_all(range(*map(int, given.seeds.split("-"))), given.out)
    print(format_table(read_rows(given.out)))


if __name__ == "__main__":
    main(sys.argv[1:])
