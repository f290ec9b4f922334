"""The headline table again, small: random sampling and `flip` on data that packages carry.

    python -m research.results.quick            # make results-quick: about five minutes on two cores

It runs the first seeds of some tables of docs/results.md from nothing, and prints what comes out
beside the committed measurements of the same seeds and of all seeds. The committed files stay as
they are.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labelahead.errors import InputError
from research.results.lines import CSV
from research.results.numbers import DEFAULT, RANDOM, Numbers, read_numbers
from research.results.runs import exit_code, run_table
from research.results.table import TABLES, Table, read_tables

QUICK_TABLES = ("segment-exact", "r8-exact", "news-exact", "digits-mlp")
QUICK_SEEDS = 3


@dataclass(frozen=True)
class QuickRow:
    """One table: what this run found and what is committed.

    Attributes:
        title: title of the table.
        accuracy: of random sampling at the end of its budget, in this run.
        random_labels: labels that random sampling needed for it.
        labels: labels that `flip` needed, in this run.
        committed_labels: the same from the committed measurements of the same seeds.
        all_labels: the same from all committed seeds.
        largest_difference: between the accuracies of this run and the committed ones, over all
            rounds of the same seeds.
    """

    title: str
    accuracy: float
    random_labels: float
    labels: float
    committed_labels: float
    all_labels: float
    largest_difference: float


def compare_with_committed(table: Table, seeds: int, found: Path, committed: Path) -> QuickRow:
    """Compare the measurements of a run with the committed ones.

    Args:
        table: the table, with all its seeds.
        seeds: number of seeds of the run.
        found: folder of the CSV of the run.
        committed: folder of the committed CSV.
    """
    few = replace(table, seeds=seeds, strategies=(RANDOM, DEFAULT))
    new = _read(few, found)
    old = _read(few, committed)
    whole = _read(replace(few, seeds=table.seeds), committed)
    differences = [
        abs(new.curves.accuracy[name][seed] - old.curves.accuracy[name][seed]).max()
        for name in few.strategies
        for seed in range(seeds)
    ]
    saving = _saving(new)
    return QuickRow(
        title=table.title,
        accuracy=float(new.curves.stack(RANDOM, range(seeds))[:, -1].mean()),
        random_labels=saving[0],
        labels=saving[1],
        committed_labels=_saving(old)[1],
        all_labels=_saving(whole)[1],
        largest_difference=float(max(differences)),
    )


def _read(table: Table, folder: Path) -> Numbers:
    numbers = read_numbers(table, folder)
    if numbers is None:
        raise InputError(f"{folder} holds no {table.name}.csv; expected measurements of it")
    return numbers[""]


def _saving(numbers: Numbers) -> tuple[float, float]:
    """Return the labels of random sampling and of `flip` for random's final accuracy."""
    row = numbers.row(DEFAULT)
    if row is None or row.saving is None:
        raise InputError(f"the measurements hold no {DEFAULT} beside {RANDOM}; expected both")
    return row.saving.reference, row.saving.other


def format_rows(rows: Sequence[QuickRow], seeds: int) -> str:
    """Format the rows as a table in Markdown."""
    lines = [
        f"| data | accuracy | random labels | flip, this run ({seeds} seeds) | flip, committed, "
        "same seeds | flip, committed, all seeds | largest difference of an accuracy |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r.title} | {100 * r.accuracy:.1f} % | {r.random_labels:.0f} | {r.labels:.0f} | "
        f"{r.committed_labels:.0f} | {r.all_labels:.0f} | {100 * r.largest_difference:.1f} points |"
        for r in rows
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the tables and print the comparison; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="data sets")
    parser.add_argument("--seeds", type=int, default=QUICK_SEEDS, help="number of seeds")
    parser.add_argument("--workers", type=int, help="campaigns at a time; otherwise all cores")
    parser.add_argument("--out", type=Path, default=Path("runs/results-quick"), help="folder")
    parser.add_argument("--only", nargs="+", default=list(QUICK_TABLES), metavar="NAME")
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder of NAME.toml")
    parser.add_argument("--numbers", type=Path, default=CSV, help="folder of the committed CSV")
    given = parser.parse_args(arguments)
    return exit_code(lambda: _run(given))


def _run(given: argparse.Namespace) -> list[str]:
    found = given.out / "numbers"
    found.mkdir(parents=True, exist_ok=True)
    rows, failed = [], []
    tables = read_tables(given.tables, given.only)
    for table in tables:  # before anything is run
        _read(table, given.numbers)
    for table in tables:
        few = replace(table, strategies=(RANDOM, DEFAULT))
        count = run_table(
            few,
            data=given.data,
            out=given.out,
            numbers=found,
            seeds=given.seeds,
            workers=given.workers,
        )
        if count:
            failed.append(f"{table.name}: {count} campaigns failed")
        else:
            rows.append(compare_with_committed(table, given.seeds, found, given.numbers))
            print(format_rows(rows[-1:], given.seeds), flush=True)
    print()
    print(format_rows(rows, given.seeds))
    return failed


if __name__ == "__main__":
    sys.exit(main())
