"""The pages of the studies, docs/results/studies, from the rows that were measured,
research/data/studies.

A folder of the data holds settings.toml, rows.csv and machine.json as `python -m research study`
left them (the last is the "machine" of rows.json). The tables of the exhibits are written beside
them as CSV; figures and README.md go to the documentation.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from labelahead.errors import InputError
from labelahead.learner.config import read_toml
from labelahead.simulation.comparison.report_page import write_all
from research.results.text import grid
from research.studies import StudyFigure, experiment, settings_of
from research.studies.design import Cell, Row
from research.studies.execution import Measured, cell_text, pages

README = "README.md"


def write_studies(data: Path, docs: Path) -> Iterator[Path]:
    """Write the pages of all studies; yield each page.

    Args:
        data: Folder with one folder of measurements a study.
        docs: Folder that receives figures and README.md, in one folder a study.
    """
    for path in sorted(data.glob("*/settings.toml")):
        measured = read_measured(path.parent)
        exhibits, content = pages(measured, small=True)
        del content["rows.csv"]
        name = path.parent.name
        tables = {file: text for file, text in content.items() if file.endswith(".csv")}
        shown = {file: text for file, text in content.items() if file not in tables}
        for file, text in tables.items():
            write_all(path.parent, {file: text}, last=file)
        (docs / name).mkdir(parents=True, exist_ok=True)
        write_all(docs / name, {**shown, README: readme(name, measured, exhibits)}, last=README)
        yield docs / name / README


def read_measured(folder: Path) -> Measured:
    """What was measured, by the files that were kept of it."""
    wanted = experiment(read_toml(folder / "settings.toml")["experiment"])
    settings = settings_of(wanted, file=folder / "settings.toml")
    rows = read_rows((folder / "rows.csv").read_text(encoding="utf-8"), wanted.cells(settings))
    machine = json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    return Measured(wanted, settings, rows, machine)


def read_rows(text: str, cells: Sequence[Cell]) -> list[Row]:
    """What `table_text` made of the rows of these cells; an empty place is None.

    A CSV does not tell "2" from 2. A cell's values are known; of the rest, a column has numbers if
    all of it reads as such within one part of the experiment.
    """
    rows = list(csv.DictReader(StringIO(text)))
    known: dict[tuple[str, ...], dict[tuple[str, ...], Cell]] = {}
    for cell in cells:
        known.setdefault(tuple(cell), {})[tuple(_spelt(value) for value in cell.values())] = cell
    by_most_names = sorted(known.items(), key=lambda one: -len(one[0]))
    owners = [_owner(row, by_most_names) for row in rows]
    columns: dict[tuple[Any, str], list[str]] = {}
    for row, owner in zip(rows, owners, strict=True):
        for name, value in row.items():
            columns.setdefault((owner.get("part"), name), []).append(value)
    numeric = {at for at, texts in columns.items() if all(_is_json(t) for t in texts if t)}
    return [
        {
            name: (json.loads(value.lower()) if (owner.get("part"), name) in numeric else value)
            if value
            else None
            for name, value in row.items()
        }
        | dict(owner)
        for row, owner in zip(rows, owners, strict=True)
    ]


def _owner(
    row: Row, known: Sequence[tuple[tuple[str, ...], Mapping[tuple[str, ...], Cell]]]
) -> Cell:
    """The cell whose values a row has."""
    for names, cells in known:
        cell = cells.get(tuple(_spelt(row.get(name)) for name in names))
        if cell is not None:
            return cell
    raise InputError(
        f"a row belongs to no cell of these settings: {row}; they were changed, or rows.csv is of "
        "others"
    )


def _spelt(value: Any) -> str:
    """As it stands in a CSV, a whole number without its point."""
    text = "" if value is None else str(value)
    return text.removesuffix(".0")


def _is_json(text: str) -> bool:
    try:
        json.loads(text.lower())  # a CSV has True and False
    except ValueError:
        return False
    return True


def readme(name: str, measured: Measured, exhibits: Sequence[StudyFigure]) -> str:
    """The study in Markdown."""
    made = measured.experiment
    about = "; ".join(f"{key} {value}" for key, value in measured.machine.items())
    parts = [
        f"# {made.title}",
        _plain(made.question),
        f"Every measurement is in `research/data/studies/{name}/rows.csv`. `python -m research "
        f"study {made.name} --config "
        f"research/data/studies/{name}/settings.toml --out again` measures anew; `make "
        "results-page` writes this page "
        f"and index.html beside it. {about}.",
    ]
    for e in exhibits:
        parts += [f"## {e.title}", _plain(e.caption)]
        if e.figure is not None:
            parts.append(f"![{e.alt or e.title}]({e.name}.png)")
        if e.table:
            parts.append(grid(*_cells(e.table)))
    return "\n\n".join(parts) + "\n"


def _cells(table: Sequence[Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, a number as one reads it."""
    names = list(dict.fromkeys(name for row in table for name in row))
    return [_plain(n) for n in names], [
        [_plain(cell_text(row.get(n))) for n in names] for row in table
    ]


def _plain(text: str) -> str:
    """Nothing in it is markup."""
    return re.sub(r"([\\*<|])", r"\\\1", text)
