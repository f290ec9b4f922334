"""What guesses are worth: campaigns with and without prior knowledge, on the same seeds.

    python -m research.results.guesses run --seeds 0-10     # one row per campaign, resumable
    python -m research.results.guesses table

Sets: 20 newsgroups, Reuters R8 and R52 (2,000 texts of each, 40 % of them for testing), sentence
embeddings, the exact learner with `flip`, no initial labels, one batch of 5 after the other.
Guessers: the names of the classes, and simulated language models in a column: right in 30, 60, 75
or 90 % of the texts with errors at random, in 60 % with every second class always mistaken for
another, in 75 % with all errors in the longest texts, and never right.
"""

import argparse
import csv
import random
import sys
from pathlib import Path

import numpy as np

import labelahead as la
from research.results.texts import drawn

OUT = Path(__file__).parents[1] / "data" / "guesses.csv"
TEXTS = Path("runs/texts")
COUNTS = (0, 5, 10, 20, 40, 80, 160)
FIELDS = ("set", "guesser", "seed", *(f"at {n}" for n in COUNTS))
SETS = ("r8", "newsgroups", "r52")
GUESSERS = (
    "none",
    "class names",
    "llm 30",
    "llm 75",
    "llm 90",
    "by class 60",
    "by length 75",
    "never",
)
ITEMS = 2000
SHARES = {"llm 30": 0.3, "llm 75": 0.75, "llm 90": 0.9, "by length 75": 0.75, "never": 0.0}


def make_table(name: str) -> Path:
    """Write the texts with a column for every simulated guesser."""
    path = TEXTS / f"{name}-guesses.csv"
    if path.exists():
        return path
    rows = [row for part in drawn(name, TEXTS) for row in part]
    rng = random.Random(0)
    rng.shuffle(rows)
    rows = rows[:ITEMS]
    classes = sorted({label for _, label in rows})
    others = {c: [o for o in classes if o != c] for c in classes}
    mistaken = {c: rng.choice(others[c]) for c in classes[::2]}
    cut = float(np.quantile([len(text) for text, _ in rows], SHARES["by length 75"]))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", *GUESSERS[2:]])
        for text, label in rows:
            said = {
                name: label if rng.random() < share else rng.choice(others[label])
                for name, share in SHARES.items()
            }
            said["by class 60"] = mistaken.get(label, label)
            said["by length 75"] = label if len(text) < cut else rng.choice(others[label])
            writer.writerow([text, label, *(said[name] for name in GUESSERS[2:])])
    return path


def run_campaign(name: str, guesser: str, seed: int) -> list[float]:
    """Return the test accuracy at every number of `COUNTS`."""
    columns = list(GUESSERS[2:])
    source = la.Source(
        str(make_table(name)),
        target="label",
        test_fraction=0.4,
        guesses=(guesser,) if guesser in columns else (),
        without=tuple(c for c in columns if c != guesser),
        prior="class-names" if guesser == "class names" else "none",
    )
    plan = la.Campaign(
        seed=seed,
        data=source,
        budget=la.Budget(initial=0, labels=max(COUNTS), retrain_every=5),
        threads=1,
    )
    result = la.run(plan, forecast=False)
    reached = {r.labels: r.accuracy for r in result.rounds}
    return [reached[n] for n in COUNTS]


def read_rows() -> list[dict[str, str]]:
    if not OUT.exists():
        return []
    with OUT.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run_all(seeds: range, sets: list[str], guessers: list[str]) -> None:
    done = {(r["set"], r["guesser"], int(r["seed"])) for r in read_rows()}
    for seed in seeds:
        for name in sets:
            for guesser in guessers:
                if (name, guesser, seed) in done:
                    continue
                curve = run_campaign(name, guesser, seed)
                new = not OUT.exists()
                with OUT.open("a", newline="", encoding="utf-8") as file:
                    writer = csv.writer(file, lineterminator="\n")
                    writer.writerows([FIELDS] if new else [])
                    writer.writerow([name, guesser, seed, *(f"{a:.4f}" for a in curve)])
                print(name, guesser, seed, *(f"{a:.3f}" for a in curve), flush=True)


def format_table(given: list[dict[str, str]]) -> str:
    """Return accuracies without guesses, and differences with standard errors, in points."""
    rows: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for r in given:
        curve = np.array([100 * float(r[f"at {n}"]) for n in COUNTS])
        rows.setdefault((r["set"], r["guesser"]), {})[r["seed"]] = curve
    lines = [
        "| set | guesser | seeds | " + " | ".join(map(str, COUNTS)) + " |",
        "| --- | --- | ---: | " + " | ".join("---:" for _ in COUNTS) + " |",
    ]
    for name in SETS:
        base = rows.get((name, "none"), {})
        for guesser in GUESSERS:
            found = rows.get((name, guesser), {})
            seeds = sorted(found if guesser == "none" else set(found) & set(base))
            if not seeds:
                continue
            if guesser == "none":
                cells = [f"{v:.1f}" for v in np.mean([found[s] for s in seeds], 0)]
            else:
                d = np.array([found[s] - base[s] for s in seeds])
                error = d.std(0, ddof=1) / len(d) ** 0.5 if len(d) > 1 else np.zeros(d.shape[1])
                cells = [f"{m:+.1f} ± {e:.1f}" for m, e in zip(d.mean(0), error, strict=True)]
            lines.append(f"| {name} | {guesser} | {len(seeds)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--seeds", default="0-10", help="FIRST-END")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--guessers", default=",".join(GUESSERS))
    given = parser.parse_args(words)
    if given.what == "run":
        seeds = range(*map(int, given.seeds.split("-")))
        run_all(seeds, given.sets.split(","), given.guessers.split(","))
    print(format_table(read_rows()))


if __name__ == "__main__":
    main(sys.argv[1:])
