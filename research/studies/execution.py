"""An experiment carried out: its cells measured in processes, recorded at once, shown on one page.

settings.toml     what was asked for, written once
cells.jsonl       one line a measurement; a line that a kill cut short is measured again
rows.csv, rows.json, NAME.png, NAME.svg, NAME.csv, index.html: made anew from these
"""

import csv
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from labelahead.errors import InputError, LabelaheadError
from labelahead.files import JsonLinesFile, lock_folder, read_complete_lines, replace_file
from labelahead.learner.config import Progress, merge_tables, parse_dataclass, read_toml, to_toml
from labelahead.processes import ignore_sigint, run_in_worker
from labelahead.simulation.comparison.execution import (
    THREAD_VARIABLES,
    count_cores,
    describe_machine,
)
from labelahead.simulation.comparison.plot_style import PALETTE, figure_style, render_figure
from labelahead.simulation.comparison.report_page import template, write_all
from research.studies.design import Cell, Experiment, Row, StudyFigure

__all__ = ["Measured", "Shown", "cell_text", "conduct", "pages", "settings_of", "table_text"]

SETTINGS, CELLS, PAGE = "settings.toml", "cells.jsonl", "index.html"


@dataclass(frozen=True, eq=False)
class Measured:
    """All measurements of an experiment, and where they were made."""

    experiment: Experiment
    settings: Any
    rows: Sequence[Row]
    machine: Mapping[str, Any]


@dataclass(frozen=True)
class Shown:
    """Where the page is, and what it shows.

    >>> shown.page.name, len(shown.exhibits) > 0
    ('index.html', True)
    """

    page: Path
    exhibits: tuple[StudyFigure, ...]


def settings_of(
    experiment: Experiment,
    scale: str = "small",
    *,
    file: str | Path | None = None,
    changes: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Settings at a scale, small or another of the study's, with what a file, KEY=VALUE texts and
    options change.

    >>> settings_of(EXPERIMENTS["dynamics"], changes=["seeds=7"]).seeds
    7
    """
    base: dict[str, Any] = {}
    if scale != "small":
        folder = files("research.studies").joinpath("scales")
        place = folder.joinpath(f"{experiment.name}-{scale}.toml")
        if not place.is_file():
            there = (f.name.removesuffix(".toml").partition("-") for f in folder.iterdir())
            others = sorted(scale for name, _, scale in there if name == experiment.name)
            raise InputError(f"scale is {scale!r}; expected small or {' or '.join(others)}")
        base = merge_tables(Path(str(place)), (), {})
    tables = merge_tables(file, changes, options or {}, base)
    if tables.get("experiment") == experiment.name:  # a settings.toml of ours
        del tables["experiment"]
    return parse_dataclass(experiment.settings, tables)


def conduct(
    experiment: Experiment,
    settings: Any,
    out: str | Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Shown:
    """Measure every cell that `out` does not hold yet, and write the page.

    Runs in processes of its own: a script that calls this needs `if __name__ == "__main__":`.

    >>> conduct(EXPERIMENTS["dynamics"], small, "identity", workers=1).page.exists()  # nothing is measured again
    True
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; expected 1 or more, or nothing for all cores")
    tell = progress or (lambda what, done, total: None)
    folder = Path(out)
    with _open_folder(folder, experiment, settings) as record:
        cells = list(experiment.cells(settings))
        done = _read_recorded_rows(folder)
        left = [c for c in cells if _key(c) not in done]
        tell("", len(cells) - len(left), len(cells))
        crew = 1 if experiment.alone else min(workers or count_cores(), max(1, len(left)))
        for cell, rows, seconds in _iterate_measurements(experiment, settings, left, crew):
            _append(record, cell, rows, seconds)
            done[_key(cell)] = [dict(cell) | dict(r) for r in rows]
            tell(_describe_cell(cell), sum(_key(c) in done for c in cells), len(cells))
        every = [row for c in cells for row in done[_key(c)]]
        exhibits, content = pages(Measured(experiment, settings, every, describe_machine()))
        write_all(folder, content, last=PAGE)
        return Shown(folder / PAGE, exhibits)


# --- what is on the disk
# ------------------------------------------------------------------------------------


@contextmanager
def _open_folder(folder: Path, experiment: Experiment, settings: Any) -> Iterator[JsonLinesFile]:
    """A new folder, or one that holds this experiment with these settings.

    For this process alone.
    """
    with lock_folder(folder, ".lock"):
        _claim(folder, experiment, settings)
        record = JsonLinesFile(folder / CELLS)
        try:
            yield record
        finally:
            record.close()


def _claim(folder: Path, experiment: Experiment, settings: Any) -> None:
    """Settings are written once: measurements of others do not mix with them."""
    path = folder / SETTINGS
    if not path.exists():
        replace_file(path, f'experiment = "{experiment.name}"\n' + to_toml(settings))
        return
    tables = read_toml(path)
    name = tables.pop("experiment", None)
    if name != experiment.name:
        raise InputError(
            f"{folder} holds the study {name!r}, not {experiment.name!r}; choose another folder "
            "with --out"
        )
    before = asdict(parse_dataclass(experiment.settings, tables))
    for key, value in asdict(settings).items():
        if before[key] != value:
            raise InputError(
                f"{folder} holds this study with {key} = {before[key]!r}, not {value!r}; "
                "choose another folder with --out, or the same settings to go on"
            )


def _read_recorded_rows(folder: Path) -> dict[str, list[Row]]:
    """The rows of every finished cell, by its key."""
    rows: dict[str, list[Row]] = {}
    for entry, where in read_complete_lines(folder / CELLS):
        try:
            rows[_key(entry["cell"])] = [entry["cell"] | row for row in entry["rows"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{where} is damaged ({error}); remove the line, and it is measured again"
            ) from error
    return rows


def _append(record: JsonLinesFile, cell: Cell, rows: Sequence[Row], seconds: float) -> None:
    """Keep what was measured. No NaN gets in."""
    try:
        record.append(
            {"cell": dict(cell), "rows": [dict(r) for r in rows], "seconds": round(seconds, 3)}
        )
    except ValueError as error:
        raise InputError(f"a measurement of {dict(cell)} is not finite: {rows!r}") from error


def _key(cell: Cell) -> str:
    """One text for one cell, whatever the order of its names, and whether 64 is written 64.0."""

    def plain(value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return json.dumps({name: plain(value) for name, value in cell.items()}, sort_keys=True)


def table_text(rows: Sequence[Row]) -> str:
    """Rows as CSV; a column for every name that occurs."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    file = StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in row.items()}
        for row in rows
    )
    return file.getvalue()


# --- the work
# -----------------------------------------------------------------------------------------------


def _iterate_measurements(
    experiment: Experiment, settings: Any, cells: Sequence[Cell], crew: int
) -> Iterator[tuple[Cell, Sequence[Row], float]]:
    """Every cell when it is measured; the first error ends the work, what is done is kept."""
    if crew == 1:
        for cell in cells:
            yield _time_cell(experiment, settings, cell)
        return
    first = (__name__, use_one_thread.__name__)
    pool = ProcessPoolExecutor(
        crew, multiprocessing.get_context("spawn"), initializer=run_in_worker, initargs=first
    )
    try:
        with ignore_sigint():  # the pool starts its processes as work comes
            futures = [pool.submit(_time_cell, experiment, settings, cell) for cell in cells]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise LabelaheadError(
            "a process died while measuring, perhaps for want of memory; what was measured is "
            "kept: run the same command again, with fewer --workers"
        ) from error
    finally:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _time_cell(
    experiment: Experiment, settings: Any, cell: Cell
) -> tuple[Cell, Sequence[Row], float]:
    start = time.perf_counter()
    return cell, experiment.measure(settings, cell), time.perf_counter() - start


def use_one_thread() -> None:
    """Have this process compute on one core: several of them share the machine."""
    for name in THREAD_VARIABLES:
        os.environ[name] = "1"
    torch.set_num_threads(1)


def _describe_cell(cell: Cell) -> str:
    return ", ".join(f"{k} {v}" for k, v in cell.items() if v is not None)


# --- the page
# -----------------------------------------------------------------------------------------------


def pages(
    measured: Measured, *, small: bool = False
) -> tuple[tuple[StudyFigure, ...], dict[str, str | bytes]]:
    """What the measurements show, and every file of the folder that says so.

    small: nothing twice, so no SVG beside a PNG and no JSON beside a CSV, and figures of few
    colours.
    """
    with figure_style():
        exhibits = tuple(measured.experiment.exhibits(measured.settings, measured.rows))
        drawn = {e.name: render_figure(e.name, e.figure) for e in exhibits if e.figure is not None}
    content: dict[str, str | bytes] = {"rows.csv": table_text(measured.rows)}
    if not small:
        whole = {"machine": measured.machine, "rows": list(measured.rows)}
        content["rows.json"] = json.dumps(whole, indent=0) + "\n"
        content |= {f"{name}.svg": made.svg for name, made in drawn.items()}
    content |= {f"{name}.png": made.small if small else made.png for name, made in drawn.items()}
    content |= {f"{e.name}.csv": table_text(e.table) for e in exhibits if e.table}
    content[PAGE] = template("page.html.jinja", "research.studies").render(
        experiment=measured.experiment,
        exhibits=exhibits,
        palette=PALETTE,
        machine=measured.machine,
        figures={name: made.inline for name, made in drawn.items()},
        settings=asdict(measured.settings),
        cell=cell_text,
        files=set(content),
    )
    return exhibits, content


def cell_text(value: Any) -> str:
    """A number as one reads it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", "−") if value else "0"
    return str(value)
