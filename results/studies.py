"""The studies of the theory in docs/results/studies: figures, tables and a page, from the rows that were measured.

A folder holds settings.toml, rows.csv and machine.json as `labelahead study` left them (the last is the
"machine" of rows.json); all else in it is made from these. README.md is for the repository; index.html,
the page that `labelahead study` writes, is not kept there.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from labelahead.campaign.config import read
from labelahead.compare.page import write_all
from labelahead.errors import InputError
from labelahead.studies import Exhibit, experiment, settings_of
from labelahead.studies.design import Cell, Row
from labelahead.studies.execution import Measured, cell_text, pages
from results.text import grid

README = "README.md"


def write_studies(folder: Path) -> Iterator[Path]:
    """Every study below a folder, made anew; the page of each once it is written."""
    for path in sorted(folder.glob("*/settings.toml")):
        measured = read_measured(path.parent)
        exhibits, content = pages(measured, small=True)
        del content["rows.csv"]
        write_all(path.parent, {**content, README: readme(path.parent.name, measured, exhibits)}, last=README)
        yield path.with_name(README)


def read_measured(folder: Path) -> Measured:
    """What was measured, by the files that were kept of it."""
    wanted = experiment(read(folder / "settings.toml")["experiment"])
    settings = settings_of(wanted, file=folder / "settings.toml")
    rows = read_rows((folder / "rows.csv").read_text(encoding="utf-8"), wanted.cells(settings))
    machine = json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    return Measured(wanted, settings, rows, machine)


def read_rows(text: str, cells: Sequence[Cell]) -> list[Row]:
    """What `table_text` made of the rows of these cells; an empty place is None.

    A CSV does not tell "2" from 2. A cell's values are known; of the rest, a column has numbers if all of it
    reads as such within one part of the experiment.
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
            name: (json.loads(value.lower()) if (owner.get("part"), name) in numeric else value) if value else None
            for name, value in row.items()
        }
        | dict(owner)
        for row, owner in zip(rows, owners, strict=True)
    ]


def _owner(row: Row, known: Sequence[tuple[tuple[str, ...], Mapping[tuple[str, ...], Cell]]]) -> Cell:
    """The cell whose values a row has."""
    for names, cells in known:
        cell = cells.get(tuple(_spelt(row.get(name)) for name in names))
        if cell is not None:
            return cell
    raise InputError(f"a row belongs to no cell of these settings: {row}; they were changed, or rows.csv is of others")


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


def readme(name: str, measured: Measured, exhibits: Sequence[Exhibit]) -> str:
    """The study in Markdown."""
    made = measured.experiment
    about = "; ".join(f"{key} {value}" for key, value in measured.machine.items())
    parts = [
        f"# {made.title}",
        _plain(made.question),
        f"Every measurement: [rows.csv](rows.csv). `labelahead study {made.name} --config "
        f"docs/results/studies/{name}/settings.toml --out again` measures anew; `make results-page` makes this page, "
        f"and index.html beside it. {about}.",
    ]
    for e in exhibits:
        sources = f" ([CSV]({e.name}.csv))" if e.table else ""
        parts += [f"## {e.title}", f"{_plain(e.caption)}{sources}"]
        if e.figure is not None:
            parts.append(f"![{e.alt or e.title}]({e.name}.png)")
        if e.table:
            parts.append(grid(*_cells(e.table)))
    return "\n\n".join(parts) + "\n"


def _cells(table: Sequence[Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, a number as one reads it."""
    names = list(dict.fromkeys(name for row in table for name in row))
    return [_plain(n) for n in names], [[_plain(cell_text(row.get(n))) for n in names] for row in table]


def _plain(text: str) -> str:
    """Nothing in it is markup."""
    return re.sub(r"([\\*<|])", r"\\\1", text)
