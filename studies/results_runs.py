"""Run what a table lacks, and put the rounds of its campaigns into its CSV."""

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labelahead.errors import InputError
from labelahead.store import Round
from labelahead.study.compare import Outcome, compare
from labelahead.study.curves import read_curves
from labelahead.study.plan import FILE, Study, arm, arms
from labelahead.study.summary import ASIDE
from results_csv import Line, read_lines, write_lines
from results_tables import Table

NOT_ASKING = ("train", *ASIDE)


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
    wanted = table.numbers if seeds is None else tuple(range(seeds))
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
        study = table.study(variant, data, _pool(table, data, out))
        for names, some in groups:
            say(f"{title}: {len(names)} strategies, seeds {some[0]} to {some[-1]}")
            ran = compare(
                Study(study.campaign, arms(names), some), folder, workers=workers, **watch
            )
            failed += _failures(ran, say)
        collect(table, variant, folder, path, say)
    return failed


def place(table: Table, variant: str, out: Path) -> Path:
    """The folder of its campaigns."""
    folder = out / table.name
    return folder / re.sub(r"[^a-z0-9.-]+", "-", variant.lower()) if variant else folder


def collect(
    table: Table, variant: str, folder: Path, path: Path, say: Callable[[str], None] = print
) -> None:
    """The finished campaigns of a folder into the CSV, beside what it holds of others."""
    curves = read_curves(folder)
    for check in curves.checks:
        if not check.holds:
            raise InputError(f"{folder}: {check.text} Move it away and run the table again")
    found = [
        _line(variant, done.arm.name, done.seed, entry)
        for done in curves.done
        for entry in done.rounds
    ]
    new = {line.campaign for line in found}
    kept = [line for line in read_lines(path) if line.campaign not in new] if path.exists() else []
    write_lines(path, kept + found)
    say(f"{path}: {len(new)} campaigns")


def _line(variant: str, name: str, seed: int, entry: Round) -> Line:
    asking = sum(s for part, s in entry.seconds.items() if part not in NOT_ASKING)
    accuracy = 0.0 if entry.accuracy is None else entry.accuracy  # read_curves refused None
    train = entry.seconds.get("train", 0.0)
    return Line(variant, name, seed, entry.labels, accuracy, train, asking)


def _campaigns(path: Path, variant: str) -> set[tuple[str, int]]:
    lines = read_lines(path) if path.exists() else []
    return {(line.strategy, line.seed) for line in lines if line.variant == variant}


def _groups(missing: dict[str, tuple[int, ...]]) -> list[tuple[list[str], tuple[int, ...]]]:
    """Strategies that lack the same seeds run side by side, as one comparison."""
    found: dict[tuple[int, ...], list[str]] = {}
    for name, seeds in missing.items():
        if seeds:
            found.setdefault(seeds, []).append(name)
    return [(names, seeds) for seeds, names in found.items()]


def _pool(table: Table, data: Path, out: Path) -> Path | None:
    if table.pool is None:
        return None
    path = out / "pools" / f"{table.pool}.npz"
    if path.exists():
        return path
    import pools  # beside this file

    made: Path = pools.make(table.pool, data, out / "pools")
    return made


def _failures(ran: Outcome, say: Callable[[str], None]) -> int:
    for event in ran.failed:
        say(f"FAILED {event.job.name}: {event.detail}")
    return len(ran.failed)


def forget(tables: Sequence[Table], strategies: str, *, out: Path, numbers: Path) -> int:
    """Delete what is known of these strategies, so that they are run anew; how many campaigns."""
    gone = {arm(name) for name in strategies.split(",")}
    names, count = {a.name for a in gone}, 0
    for table in tables:
        path = numbers / f"{table.name}.csv"
        if path.exists():
            lines = read_lines(path)
            count += len({line.campaign for line in lines if line.strategy in names})
            write_lines(path, (line for line in lines if line.strategy not in names))
        for variant in table.variants:
            folder = place(table, variant, out)
            if (folder / FILE).exists():
                for one in gone:
                    shutil.rmtree(folder / one.folder, ignore_errors=True)
    return count
