"""The raw numbers of a table: one line per campaign and round, read and written with care."""

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from labelahead.errors import InputError

CSV = Path(__file__).parents[1] / "docs" / "results" / "tables"


class Line(NamedTuple):
    """A round of a campaign. query_seconds: everything but training and testing."""

    variant: str
    strategy: str
    seed: int
    labels: int
    accuracy: float
    train_seconds: float
    query_seconds: float

    @property
    def campaign(self) -> tuple[str, str, int]:
        """Which campaign it belongs to."""
        return self.variant, self.strategy, self.seed


def read_lines(path: Path) -> list[Line]:
    """All lines of a CSV, checked one by one."""
    advice = "restore it from a copy, or delete it and run the table again"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}); expected a CSV: {advice}") from error
    if not rows or tuple(rows[0]) != Line._fields:
        given = ",".join(rows[0]) if rows else "nothing"
        raise InputError(
            f"{path} begins with {given!r}; expected the columns {','.join(Line._fields)}: {advice}"
        )
    found: list[Line] = []
    for number, row in enumerate(rows[1:], 2):
        try:
            variant, strategy, seed, labels, *values = row
            line = Line(variant, strategy, int(seed), int(labels), *(float(v) for v in values))
            if not strategy or not 0 <= line.accuracy <= 1 or not all(map(math.isfinite, line[4:])):
                raise ValueError
        except (ValueError, TypeError):
            raise InputError(
                f"{path}, line {number}, is {','.join(row)!r}; expected seven values such as "
                f"',flip,0,20,0.8125,0.31,0.052', the accuracy from 0 to 1: {advice}"
            ) from None
        found.append(line)
    twice = _repeated((*line.campaign, line.labels) for line in found)
    if twice:
        raise InputError(f"{path} holds the round {twice} twice; expected it once: {advice}")
    return found


def _repeated(keys: Iterable[tuple[object, ...]]) -> str:
    seen = set()
    for key in keys:
        if key in seen:
            return ", ".join(str(part) for part in key if part != "")
        seen.add(key)
    return ""


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """In one step, in an order that does not depend on which campaign ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Line._fields)
        for x in sorted(lines):
            seconds = f"{x.train_seconds:.3f}", f"{x.query_seconds:.3f}"
            writer.writerow(
                [x.variant, x.strategy, x.seed, x.labels, f"{x.accuracy:.5f}", *seconds]
            )
    partial.replace(path)
