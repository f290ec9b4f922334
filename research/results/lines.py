"""The raw numbers behind docs/results.md.

One line per campaign and round, read and written with care.
"""

import csv
import math
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import NamedTuple, TypeVar

from labelahead.errors import InputError
from labelahead.files import replace_file
from labelahead.simulation.comparison.summary import query_seconds
from labelahead.simulation.store import Round

NUMBERS = Path(__file__).parents[1] / "data"
CSV = NUMBERS / "tables"


class Line(NamedTuple):
    """A round of a campaign of a table. query_seconds: everything but training and testing."""

    variant: str
    strategy: str
    seed: int
    labels: int
    accuracy: float
    train_seconds: float
    query_seconds: float

    EXAMPLE = "seven values such as ',flip,0,20,0.8125,0.31,0.052'"

    @classmethod
    def of(cls, variant: str, strategy: str, seed: int, entry: Round) -> "Line":
        """From the record of a round that was tested."""
        assert entry.accuracy is not None
        spent = entry.seconds.get("train", 0.0), query_seconds(entry)
        return cls(variant, strategy, seed, entry.labels, entry.accuracy, *spent)

    @property
    def campaign(self) -> tuple[str, str, int]:
        """Which campaign it belongs to."""
        return self.variant, self.strategy, self.seed

    @property
    def cells(self) -> tuple[object, ...]:
        """As they stand in the CSV."""
        return (
            *self[:4],
            f"{self.accuracy:.5f}",
            f"{self.train_seconds:.3f}",
            f"{self.query_seconds:.3f}",
        )


class TrialLine(NamedTuple):
    """A round beside the tables: of what was tried to make `flip` better, or of another learner.

    seconds: of the whole campaign, the same in all its lines.
    """

    table: str
    variant: str
    seed: int
    labels: int
    accuracy: float
    seconds: float

    EXAMPLE = "six values such as 'digits,plain,100,20,0.8125,31.2'"

    @property
    def campaign(self) -> tuple[str, str, int]:
        """Which campaign it belongs to."""
        return self.table, self.variant, self.seed

    @property
    def cells(self) -> tuple[object, ...]:
        """As they stand in the CSV."""
        return *self[:4], f"{self.accuracy:.5f}", f"{self.seconds:.1f}"


class EstimateLine(NamedTuple):
    """A round of a campaign that estimated its own error.

    What it said of the pool, what the test items say.
    """

    table: str
    strategy: str
    seed: int
    labels: int
    accuracy: float  # on the test items
    error: float
    low: float
    high: float
    fall: float

    EXAMPLE = "nine values such as 'r8-exact,flip,0,50,0.9,0.12,0.08,0.2,0.01'"

    @property
    def wrong(self) -> float:
        """What the test items say."""
        return 1 - self.accuracy

    @property
    def cells(self) -> tuple[object, ...]:
        """As they stand in the CSV."""
        return *self[:4], *(f"{value:.5f}" for value in self[4:])


L = TypeVar("L", Line, TrialLine, EstimateLine)


def read_csv(path: Path, kind: type[L], again: str = "run the table again") -> list[L]:
    """All lines of a CSV, checked one by one. again: what makes the file anew."""
    advice = f"restore it from a copy, or delete it and {again}"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [["nothing"]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}); expected a CSV: {advice}") from error
    if tuple(header) != kind._fields:
        columns = ",".join(kind._fields)
        raise InputError(
            f"{path} begins with {','.join(header)!r}; expected the columns {columns}: {advice}"
        )
    types = kind.__annotations__.values()
    lines: dict[tuple[object, ...], L] = {}
    for number, row in enumerate(rows, 2):
        try:
            line = kind(*(convert(text) for convert, text in zip(types, row, strict=True)))
            if not row[1] or not 0 <= line.accuracy <= 1 or not all(map(math.isfinite, line[4:])):
                raise ValueError
        except ValueError:
            raise InputError(
                f"{path}, line {number}, is {','.join(row)!r}; expected {kind.EXAMPLE}, the "
                "accuracy from 0 to 1: "
                f"{advice}"
            ) from None
        if lines.setdefault(line[:4], line) is not line:
            twice = ", ".join(str(part) for part in line[:4] if part != "")
            raise InputError(f"{path} holds the round {twice} twice; expected it once: {advice}")
    return list(lines.values())


def write_csv(path: Path, kind: type[L], lines: Iterable[L]) -> None:
    """In one step, in an order that does not depend on which campaign ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(kind._fields)
    writer.writerows(line.cells for line in sorted(lines))
    replace_file(path, file.getvalue())
