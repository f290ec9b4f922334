"""An experiment's folder: settings, every measurement, and the page that shows them.

settings.toml     what was asked for, written once
cells.jsonl       one line a measurement; a line that a kill cut short is measured again
rows.csv, rows.json, NAME.png, NAME.svg, NAME.csv, index.html: made anew from these
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from io import StringIO
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from labelahead.config import fill, read, to_toml
from labelahead.errors import InputError
from labelahead.laboratory.experiment import Cell, Experiment, Row

__all__ = ["Notebook", "table_text"]

SETTINGS, CELLS = "settings.toml", "cells.jsonl"


class Notebook:
    """What has been measured so far, on the disk."""

    def __init__(self, folder: Path, experiment: Experiment, settings: Any) -> None:
        self.folder, self.experiment, self.settings = folder, experiment, settings

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, experiment: Experiment, settings: Any) -> Iterator["Notebook"]:
        """A new folder, or one that holds this experiment with these settings."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / ".lock")
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                f"{folder} is in use by another process; wait for it or stop it first"
            ) from None
        except OSError as error:
            raise InputError(
                f"{folder} cannot be written to ({error.strerror}); choose another with --out"
            ) from error
        try:
            book = cls(folder, experiment, settings)
            book._claim()
            yield book
        finally:
            lock.release()

    def _claim(self) -> None:
        """Settings are written once: measurements of others do not mix with them."""
        path = self.folder / SETTINGS
        if not path.exists():
            head = f'experiment = "{self.experiment.name}"\n'
            path.write_text(head + to_toml(self.settings), encoding="utf-8")
            return
        tables = read(path)
        name = tables.pop("experiment", None)
        if name != self.experiment.name:
            raise InputError(
                f"{self.folder} holds the study {name!r}, not {self.experiment.name!r}; choose "
                "another folder with --out"
            )
        before = asdict(fill(self.experiment.settings, tables))
        for key, value in asdict(self.settings).items():
            if before[key] != value:
                raise InputError(
                    f"{self.folder} holds this study with {key} = {before[key]!r}, not {value!r}; "
                    "choose another folder with --out, or the same settings to go on"
                )

    def done(self) -> dict[str, list[Row]]:
        """The rows of every finished cell, by its key."""
        path = self.folder / CELLS
        if not path.exists():
            return {}
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            path.write_bytes(whole)
        found: dict[str, list[Row]] = {}
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                entry = json.loads(line)
                found[key(entry["cell"])] = [entry["cell"] | row for row in entry["rows"]]
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path}, line {number} is damaged ({error}); remove the line, and it is "
                    "measured again"
                ) from error
        return found

    def record(self, cell: Cell, rows: Sequence[Row], seconds: float) -> None:
        """Keep what was measured. No NaN gets in."""
        entry = {"cell": dict(cell), "rows": [dict(r) for r in rows], "seconds": round(seconds, 3)}
        try:
            line = json.dumps(entry, separators=(",", ":"), allow_nan=False)
        except ValueError as error:
            raise InputError(f"a measurement of {dict(cell)} is not finite: {rows!r}") from error
        with (self.folder / CELLS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def key(cell: Cell) -> str:
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
    writer.writerows({k: _plain(v) for k, v in row.items()} for row in rows)
    return file.getvalue()


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def described(settings: Any) -> Mapping[str, Any]:
    """Settings by name, for the page."""
    return {f.name: getattr(settings, f.name) for f in fields(settings)}
