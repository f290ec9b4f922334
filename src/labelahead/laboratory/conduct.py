"""Carry out an experiment: measure what is not measured yet, then show it all."""

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from labelahead.config import fill, gather
from labelahead.errors import InputError, LabelaheadError
from labelahead.laboratory.experiment import Cell, Exhibit, Experiment, Row
from labelahead.laboratory.notebook import Notebook, described, key, table_text
from labelahead.study.drawing import PALETTE, Picture, drawing, picture
from labelahead.study.machine import cores, this_machine
from labelahead.study.pages import template, write_all
from labelahead.study.workers import THREADS

__all__ = ["Shown", "conduct", "settings_of"]

PAGE = "index.html"
Report = Callable[[str, int, int], None]  # what was measured, done, of how many


@dataclass(frozen=True)
class Shown:
    """Where the page is, and what it shows."""

    page: Path
    exhibits: tuple[Exhibit, ...]


def settings_of(
    experiment: Experiment,
    scale: str = "small",
    *,
    file: str | Path | None = None,
    changes: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Settings at a scale, small or paper, with what a file, KEY=VALUE texts and options change."""
    base: dict[str, Any] = {}
    if scale != "small":
        place = files("labelahead.laboratory").joinpath("scales", f"{experiment.name}-{scale}.toml")
        if not place.is_file():
            raise InputError(f"scale is {scale!r}; expected small or paper")
        base = gather(Path(str(place)), (), {})
    tables = gather(file, changes, options or {}, base)
    if tables.get("experiment") == experiment.name:  # a settings.toml of ours
        del tables["experiment"]
    return fill(experiment.settings, tables)


def conduct(
    experiment: Experiment,
    settings: Any,
    out: str | Path,
    *,
    workers: int | None = None,
    progress: Report | None = None,
) -> Shown:
    """Measure every cell that `out` does not hold yet, and write the page.

    Runs in processes of its own: a script that calls this needs `if __name__ == "__main__":`.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; expected 1 or more, or nothing for all cores")
    tell = progress or (lambda what, done, total: None)
    with Notebook.opened(Path(out), experiment, settings) as book:
        cells = list(experiment.cells(settings))
        done = book.done()
        left = [c for c in cells if key(c) not in done]
        tell("", len(cells) - len(left), len(cells))
        crew = 1 if experiment.alone else min(workers or cores(), max(1, len(left)))
        for cell, rows, seconds in _measured(experiment, settings, left, crew):
            book.record(cell, rows, seconds)
            done[key(cell)] = [dict(cell) | dict(r) for r in rows]
            tell(_named(cell), sum(key(c) in done for c in cells), len(cells))
        rows = [row for c in cells for row in done[key(c)]]
        return _show(book, rows)


def _measured(
    experiment: Experiment, settings: Any, cells: Sequence[Cell], crew: int
) -> Iterator[tuple[Cell, Sequence[Row], float]]:
    """Every cell when it is measured; the first error ends the work, what is done is kept."""
    if crew == 1:
        for cell in cells:
            start = time.perf_counter()
            yield cell, experiment.measure(settings, cell), time.perf_counter() - start
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(crew, context, initializer=_one_thread)
    waiting: set[Future[tuple[Cell, Sequence[Row], float]]] = set()
    try:
        queue = iter(cells)
        for cell in queue:
            waiting.add(pool.submit(_timed, experiment, settings, cell))
        while waiting:
            ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ready:
                yield future.result()
    except BrokenProcessPool as error:
        raise LabelaheadError(
            "a process died while measuring, perhaps for want of memory; what was measured is "
            "kept: run the same command again, with fewer --workers"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list((pool._processes or {}).values()):
            process.terminate()


def _timed(experiment: Experiment, settings: Any, cell: Cell) -> tuple[Cell, Sequence[Row], float]:
    start = time.perf_counter()
    return cell, experiment.measure(settings, cell), time.perf_counter() - start


def _one_thread() -> None:
    """Several processes share the cores."""
    for name in THREADS:
        os.environ[name] = "1"
    torch.set_num_threads(1)


def _named(cell: Cell) -> str:
    return ", ".join(f"{k} {v}" for k, v in cell.items() if v is not None)


def _show(book: Notebook, rows: Sequence[Row]) -> Shown:
    experiment = book.experiment
    with drawing():
        exhibits = tuple(experiment.exhibits(book.settings, rows))
        drawn = {e.name: picture(e.name, e.figure) for e in exhibits if e.figure is not None}
    content: dict[str, str | bytes] = {
        "rows.csv": table_text(rows),
        "rows.json": json.dumps({"machine": this_machine(), "rows": list(rows)}, indent=0) + "\n",
    }
    for name, pic in drawn.items():
        content |= {f"{name}.png": pic.png, f"{name}.svg": pic.svg}
    for exhibit in exhibits:
        if exhibit.table:
            content[f"{exhibit.name}.csv"] = table_text(exhibit.table)
    content[PAGE] = _page(book, exhibits, drawn)
    write_all(book.folder, content, last=PAGE)
    return Shown(book.folder / PAGE, exhibits)


def _page(book: Notebook, exhibits: Sequence[Exhibit], drawn: Mapping[str, Picture]) -> str:
    page: str = template("page.html.jinja", "labelahead.laboratory").render(
        experiment=book.experiment, exhibits=exhibits, palette=PALETTE, machine=this_machine(),
        figures={name: pic.inline for name, pic in drawn.items()},
        settings=described(book.settings), cell=_cell_text,
    )  # fmt: skip
    return page


def _cell_text(value: Any) -> str:
    """A number as one reads it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", "−") if value else "0"
    return str(value)
