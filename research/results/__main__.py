"""docs/results.md, docs/results-*.md and docs/results/studies from raw numbers: runs what is
missing, writes the pages.

    python -m research.results run --data ../shared/data [--only NAME ...] [--seeds N] [--workers N]
    python -m research.results page
    python -m research.results forget flip:greedy,flip [--only NAME ...]

research/results/tables/NAME.toml says what a table compares; its rounds go to
research/data/tables/NAME.csv, and everything in the blocks of the pages is computed from there. `run` goes on
where it was stopped, and does not run again what the CSV holds (--again: what the folder of runs
holds). `page` runs nothing.
"""

import argparse
import sys
from pathlib import Path

from labelahead.errors import LabelaheadError
from research.results.lines import CSV
from research.results.runs import exit_code, forget, run_table
from research.results.table import PEERS, TABLES, read_tables

DOCS = Path(__file__).parents[2] / "docs"


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 if all went well."""
    given = _parser().parse_args(arguments)
    return exit_code(lambda: {"page": _page, "forget": _forget, "run": _run}[given.job](given))


def _page(given: argparse.Namespace) -> list[str]:
    from research.results.page import write_pages

    for path in write_pages(given.docs, read_tables(given.tables), given.numbers):
        print(path)
    return []


def _forget(given: argparse.Namespace) -> list[str]:
    tables = read_tables(given.tables, given.only)
    count = forget(tables, given.strategies, out=given.out, numbers=given.numbers)
    print(f"{count} campaigns of {given.strategies} forgotten")
    return []


def _run(given: argparse.Namespace) -> list[str]:
    """Every table, also after one that cannot be run; what failed."""
    from rich.console import Console

    from labelahead.cli.compare import show_comparison

    failed = []
    for table in read_tables(given.tables, given.only):
        if table.group == PEERS:
            print(f"{table.name}: run by research.results.competitors")
            continue
        try:
            with show_comparison(Console()) as watch:
                broken = run_table(
                    table,
                    data=given.data,
                    out=given.out,
                    numbers=given.numbers,
                    seeds=given.seeds,
                    workers=given.workers,
                    again=given.again,
                    progress=lambda what, *_: watch.show_preparation(what),
                    on_begin=watch.show_start,
                    on_event=watch.show_event,
                )
            failed += [f"{table.name}: {broken} campaigns failed"] if broken else []
        except LabelaheadError as error:
            failed.append(f"{table.name}: {error}")
    return failed


def _parser() -> argparse.ArgumentParser:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=about)
    jobs = parser.add_subparsers(dest="job", required=True)
    run = jobs.add_parser("run", help="run what is missing, into the CSV")
    page = jobs.add_parser(
        "page", help="write results*.md, the same as HTML, the studies and the figures"
    )
    past = jobs.add_parser("forget", help="delete what is known of some strategies")
    past.add_argument("strategies", help="names with commas between, e.g. flip:greedy,flip")
    run.add_argument("--data", type=Path, default=Path("../shared/data"), help="data sets")
    run.add_argument("--seeds", type=int, help="so many instead of what the table says")
    run.add_argument("--workers", type=int, help="campaigns at a time; otherwise all cores")
    run.add_argument("--again", action="store_true", help="run what the CSV holds all the same")
    page.add_argument("--docs", type=Path, default=DOCS, help="the folder of results.md")
    for job in (run, past):
        job.add_argument("--out", type=Path, default=Path("runs/results"), help="folder of runs")
        job.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these tables")
    for job in (run, page, past):
        job.add_argument("--tables", type=Path, default=TABLES, help="folder of NAME.toml")
        job.add_argument("--numbers", type=Path, default=CSV, help="folder of NAME.csv")
    return parser


if __name__ == "__main__":
    sys.exit(main())
