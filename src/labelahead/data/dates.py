"""Parse dates and date-times in the formats of common files, as seconds since 1970 (UTC)."""

import datetime as dt
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "ParsedDates",
    "find_ambiguous_date",
    "format_date",
    "parse_date_column",
    "to_epoch_seconds",
]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
YEAR_FIRST_DATE = r"(?P<y>\d{4})(?P<s>[-/.])(?P<a>\d{1,2})(?P=s)(?P<b>\d{1,2})"
YEAR_LAST_DATE = r"(?P<a>\d{1,2})(?P<s>[-/.])(?P<b>\d{1,2})(?P=s)(?P<y>\d{4})"
CLOCK_PATTERN = (
    r"(?P<hour>\d{1,2}):(?P<min>\d{2})(?::(?P<sec>\d{2})(?P<frac>[.,]\d{1,9})?)?(?: "
    r"?(?P<half>[AaPp])\.?[Mm]\.?)?"
)
ZONE_PATTERN = r"(?: ?(?P<zone>Z|UTC|GMT|[+-]\d{2}:?\d{2}))?"
TIME_PATTERN = rf"(?:[T ]\s*{CLOCK_PATTERN}{ZONE_PATTERN})?"
DATE_PATTERNS = tuple(re.compile(date + TIME_PATTERN) for date in (YEAR_FIRST_DATE, YEAR_LAST_DATE))
MAX_DATE_LENGTH = 48  # characters; longer texts are no dates and are not searched


@dataclass(frozen=True, eq=False)
class ParsedDates:
    """A column that holds only dates and missing values.

    Attributes:
        seconds: (n,) seconds since 1970, NaN where missing.
        day_first: whether 3/4/2024 is 3 April; None if no entry is written in such a form.
    """

    seconds: np.ndarray[Any, Any]
    day_first: bool | None


def to_epoch_seconds(value: object, day_first: bool | None = None) -> float | None:
    """Convert a date, a date-time or a text that holds one to seconds since 1970.

    A date stands for its midnight, and a time without a zone is UTC. 2024-01-31, 2024/1/31 and
    31.1.2024 are unambiguous; 3/4/2024 needs `day_first`. Returns None for any other value.
    """
    if isinstance(value, dt.date):
        moment = (
            value
            if isinstance(value, dt.datetime)
            else dt.datetime(value.year, value.month, value.day)
        )
        moment = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
        return (moment - EPOCH).total_seconds()
    if not isinstance(value, str) or len(value) > MAX_DATE_LENGTH:
        return None
    found = next(
        (match for form in DATE_PATTERNS if (match := form.fullmatch(value.strip()))), None
    )
    return None if found is None else _match_to_seconds(found, day_first)


def _match_to_seconds(found: re.Match[str], day_first: bool | None) -> float | None:
    """Convert a match of DATE_PATTERNS to seconds.

    Returns None if there is no such day or time, or the order of day and month is unknown.
    """
    year, first, second = int(found["y"]), int(found["a"]), int(found["b"])
    if found.start("y") > 0:
        day_first = True if found["s"] == "." else day_first
        if day_first is None:
            return None
        first, second = (second, first) if day_first else (first, second)
    hour = int(found["hour"] or 0)
    if found["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if found["half"].lower() == "p" else 0)
    try:
        moment = dt.datetime(
            year, first, second, hour, int(found["min"] or 0), int(found["sec"] or 0), tzinfo=dt.UTC
        )
    except ValueError:  # the 30th of February
        return None
    fraction = float("0." + found["frac"][1:]) if found["frac"] else 0.0
    return (moment - EPOCH).total_seconds() + fraction - _zone_offset_seconds(found["zone"])


def _zone_offset_seconds(zone: str | None) -> int:
    """Return the offset of a zone such as +02:00 from UTC, in seconds."""
    if zone is None or zone[0] not in "+-":
        return 0
    seconds = 3600 * int(zone[1:3]) + 60 * int(zone[-2:])
    return seconds if zone[0] == "+" else -seconds


def parse_date_column(entries: Sequence[object]) -> ParsedDates | None:
    """Parse a column as dates.

    Args:
        entries: dates, texts, or None where a value is missing.

    Returns:
        None if the column holds other values, or if day and month cannot be distinguished.
    """
    present = [entry for entry in entries if entry is not None]
    if not present:
        return None
    read, order = _parse_all(present, None), None
    if read is None:
        day_first, month_first = _parse_all(present, True), _parse_all(present, False)
        if day_first is not None and month_first is not None:
            return None  # both orders fit
        read, order = (month_first, False) if day_first is None else (day_first, True)
    if read is None:
        return None
    values = iter(read)
    return ParsedDates(
        np.array([np.nan if entry is None else next(values) for entry in entries]), order
    )


def _parse_all(present: Iterable[object], day_first: bool | None) -> list[float] | None:
    """Return the seconds of every entry, or None as soon as one is no date."""
    seconds = []
    for entry in present:
        value = to_epoch_seconds(entry, day_first)
        if value is None:
            return None
        seconds.append(value)
    return seconds


def find_ambiguous_date(entries: Sequence[object]) -> str | None:
    """Return an example if this is a column of dates whose days and months cannot be distinguished."""
    present = [entry for entry in entries if entry is not None]
    if not present or any(_parse_all(present, day_first) is None for day_first in (True, False)):
        return None
    return next((str(entry) for entry in present if to_epoch_seconds(entry) is None), None)


def format_date(seconds: float) -> str:
    """Format a moment for a message, without the time if it is midnight."""
    moment = EPOCH + dt.timedelta(seconds=round(seconds))
    return (
        moment.date().isoformat()
        if moment.time() == dt.time()
        else moment.strftime("%Y-%m-%d %H:%M:%S")
    )
