"""Run what a table lacks, and put the rounds of its campaigns into its CSV."""

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labelahead.errors import InputError, LabelaheadError
from labelahead.simulation.comparison.curves import read_curves
from labelahead.simulation.comparison.execution import compare
from labelahead.simulation.comparison.plan import (
    COMPARISON_FILE,
    Comparison,
    parse_contender,
    parse_contenders,
)
from labelahead.simulation.loop import Simulation, run_rounds
from labelahead.simulation.store import Round
from labelahead.strategies.base import QueryConfig
from research.results.lines import Line, read_csv, write_csv
from research.results.pools import pool_file
from research.results.table import Table


def run_table(
    table: Table,
    *,
    data: Path,
    out: Path,
    numbers: Path,
    seeds: int | None = None,
    workers: int | None = None,
    again: bool = False,
    say: Callable[[str], None] = print,
    **watch: Any,
) -> int:
    """Run the campaigns that are missing; how many failed.

    numbers: the folder of the CSV. What the CSV holds is not run again, so that a copy of the
    repository without its runs has nothing to do; again: only what `out` holds counts.
    """
    path = numbers / f"{table.name}.csv"
    wanted = range(table.seeds if seeds is None else seeds)
    failed = 0
    for variant in table.variants:
        have = set() if again else _campaigns(path, variant)
        missing = {
            name: tuple(s for s in wanted if (name, s) not in have) for name in table.strategies
        }
        folder = place(table, variant, out)
        groups = _groups(missing)
        title = f"{table.name}{', ' * bool(variant)}{variant}"
        if not groups:
            say(f"{title}: all there")
            continue
        campaign = table.read_campaign(variant, data, pool_file(table.source, data, out))
        for names, some in groups:
            say(f"{title}: {len(names)} strategies, seeds {some[0]} to {some[-1]}")
            outcome = compare(
                Comparison(campaign, parse_contenders(names), some),
                folder,
                workers=workers,
                **watch,
            )
            for event in outcome.failed:
                say(f"FAILED {event.job.name}: {event.detail}")
            failed += len(outcome.failed)
        collect(variant, folder, path, say)
    return failed


def place(table: Table, variant: str, out: Path) -> Path:
    """The folder of its campaigns."""
    folder = out / table.name
    return folder / re.sub(r"[^a-z0-9.-]+", "-", variant.lower()) if variant else folder


def collect(variant: str, folder: Path, path: Path, say: Callable[[str], None] = print) -> None:
    """The finished campaigns of a folder into the CSV, beside what it holds of others."""
    curves = read_curves(folder)
    for check in curves.checks:
        if not check.holds:
            raise InputError(f"{folder}: {check.text} Move it away and run the table again")
    lines = [
        Line.of(variant, done.contender.name, done.seed, entry)
        for done in curves.done
        for entry in done.rounds
    ]
    new = {line.campaign for line in lines}
    write_csv(path, Line, [*(line for line in _there(path) if line.campaign not in new), *lines])
    say(f"{path}: {len(new)} campaigns")


def _there(path: Path) -> list[Line]:
    return read_csv(path, Line) if path.exists() else []


def _campaigns(path: Path, variant: str) -> set[tuple[str, int]]:
    return {(line.strategy, line.seed) for line in _there(path) if line.variant == variant}


def _groups(missing: dict[str, tuple[int, ...]]) -> list[tuple[list[str], tuple[int, ...]]]:
    """Strategies that lack the same seeds run side by side, as one comparison."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, seeds in missing.items():
        if seeds:
            groups.setdefault(seeds, []).append(name)
    return [(names, seeds) for seeds, names in groups.items()]


def forget(tables: Sequence[Table], strategies: str, *, out: Path, numbers: Path) -> int:
    """Delete what is known of these strategies, so that they are run anew; how many campaigns."""
    gone = {parse_contender(name) for name in strategies.split(",")}
    names, count = {a.name for a in gone}, 0
    for table in tables:
        path = numbers / f"{table.name}.csv"
        if path.exists():
            lines = _there(path)
            count += len({line.campaign for line in lines if line.strategy in names})
            write_csv(path, Line, (line for line in lines if line.strategy not in names))
        for variant in table.variants:
            folder = place(table, variant, out)
            if (folder / COMPARISON_FILE).exists():
                for one in gone:
                    shutil.rmtree(folder / one.folder, ignore_errors=True)
    return count


def run_plan(plan: Simulation, asking: QueryConfig) -> list[Round]:
    """One campaign in this process, asking in that way; all else is as the plan has it."""
    if not len(plan.test):
        raise InputError("there are no test items; expected some: nothing could be compared")
    return list(run_rounds(replace(plan, asking=asking)))


def exit_code(work: Callable[[], Sequence[str]]) -> int:
    """Of a command that does this work.

    0 done, 1 with failures, a sentence each, 2 refused, 130 stopped.
    """
    try:
        failed = work()
    except LabelaheadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    for text in failed:
        print(f"error: {text}", file=sys.stderr)
    return 1 if failed else 0
