"""The study of guesses."""

from research.results.guesses import COUNTS, format_table


def make_row(guesser, seed, accuracy):
    accuracies = {f"at {n}": str(accuracy) for n in COUNTS}
    return {"set": "r8", "guesser": guesser, "seed": str(seed), **accuracies}


def test_table_pairs_seeds_and_leaves_out_those_without_a_baseline():
    rows = [make_row("none", 0, 0.5), make_row("none", 1, 0.7), make_row("none", 2, 0.9)]
    rows += [make_row("class names", 0, 0.6), make_row("class names", 1, 0.9)]
    rows += [make_row("class names", 7, 0.1)]
    lines = format_table(rows).splitlines()
    assert lines[2].startswith("| r8 | none | 3 | 70.0 |")
    assert lines[3].startswith("| r8 | class names | 2 | +15.0 ± 5.0 |")
