"""How good is the error that a campaign estimates without a test label? Beside what the test items
say.

    python -m research.results.estimates run --data ../shared/data [--only NAME ...]
    python -m research.results.estimates page    # print the table of docs/results-error.md

Campaigns of the exact learner as its tables have them, asked by the default and at random, on seeds
that nothing was chosen on. What the CSV holds is not run again.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from labelahead.simulation.run import run
from research.results.lines import CSV, EstimateLine, read_csv, write_csv
from research.results.pools import pool_file
from research.results.runs import exit_code
from research.results.table import check_names, read_tables

FILE = CSV.parent / "estimates.csv"
COMMAND = "python -m research.results.estimates run"
STRATEGIES, SEEDS = ("random", "flip"), range(3)
ENOUGH = 50  # labels from which on the estimate is to be relied on
FORECAST_LABELS = 20  # labels whose worth is forecast


def run_missing(only: Sequence[str], data: Path, out: Path) -> list[str]:
    """Every campaign that the CSV lacks, into it."""
    tables = {t.name: t for t in read_tables() if t.group == "exact" and "flip" in t.strategies}
    there = read_csv(FILE, EstimateLine) if FILE.exists() else []
    for name in check_names(only, tables, "table of the exact learner"):
        campaign = tables[name].read_campaign("", data, pool_file(tables[name].source, data, out))
        for strategy in STRATEGIES:
            for seed in SEEDS:
                if any((x.table, x.strategy, x.seed) == (name, strategy, seed) for x in there):
                    continue
                asked = replace(
                    campaign, seed=seed, asking=replace(campaign.asking, strategy=strategy)
                )
                rounds = [r for r in run(asked).rounds if r.error is not None]
                there += [
                    EstimateLine(
                        name,
                        strategy,
                        seed,
                        r.labels,
                        r.accuracy,
                        r.error,
                        r.error_low,
                        r.error_high,
                        r.fall,
                    )
                    for r in rounds
                ]
                write_csv(FILE, EstimateLine, there)
                last = there[-1]
                print(
                    f"{name}, {strategy}, seed {seed}: {last.error:.3f} estimated, "
                    f"{last.wrong:.3f} true",
                    flush=True,
                )
    return []


def summary(there: Sequence[EstimateLine]) -> list[str]:
    """Lines of a table: error of the estimate, share inside the interval, and the forecast."""
    lines = [
        "| set | queried by | mean error, points | bias, points | inside the interval |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    names = list(dict.fromkeys(x.table for x in there))
    for name in [*names, "all"]:
        for strategy in STRATEGIES:
            rows = [
                x
                for x in there
                if name in (x.table, "all") and x.strategy == strategy and x.labels >= ENOUGH
            ]
            if rows:
                gap = np.array([x.error - x.wrong for x in rows])
                inside = np.mean([x.low <= x.wrong <= x.high for x in rows])
                lines.append(
                    f"| {name.removesuffix('-exact')} | {strategy} | "
                    f"{100 * np.abs(gap).mean():.1f} | "
                    f"{100 * gap.mean():+.1f} | {inside:.0%} |"
                )
    return [*lines, "", _worth(there)]


def _worth(there: Sequence[EstimateLine]) -> str:
    """What the next labels were expected to bring, and brought."""
    by = {
        (x.table, x.strategy, x.seed, x.labels): x
        for x in there
        if x.strategy == "flip" and x.labels >= ENOUGH
    }
    pairs = [
        (x.fall, x.wrong - by[*key[:3], key[3] + FORECAST_LABELS].wrong)
        for key, x in by.items()
        if (*key[:3], key[3] + FORECAST_LABELS) in by
    ]
    forecast, came = np.array(pairs).T
    expected, brought, apart = (
        100 * values.mean() for values in (forecast, came, np.abs(forecast - came))
    )
    return (
        f"The forecast improvement by the next {FORECAST_LABELS} labels was {expected:.1f} points on "
        f"average, the true one {brought:.1f}; they differ by {apart:.1f} on average "
        f"({len(pairs)} cases)."
    )


def estimates_block(there: Sequence[EstimateLine]) -> str:
    """The table with its command; a note before the first run."""
    if not there:
        return f"Not measured yet: `{COMMAND}`."
    return "\n".join([*summary(there), "", f"`{COMMAND}` · `research/data/{FILE.name}`"])


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 if all went well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", choices=("run", "page"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    given = parser.parse_args(arguments)
    if given.job == "page":
        print("\n".join(summary(read_csv(FILE, EstimateLine))))
        return 0
    return exit_code(lambda: run_missing(given.only, given.data, given.out))


if __name__ == "__main__":
    sys.exit(main())
