"""Columns of a table -> numbers: standardised, one-hot, words, or dropped with a reason."""

import datetime as dt
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from labelahead.data.words import is_text, text_block
from labelahead.errors import InputError

__all__ = ["MISSING", "Features", "features"]

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
TRUTH = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}
MOST_LEVELS = 50
ROW_NAMES = ("id", "index", "unnamed: 0", "column 1")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Features:
    """The table as float32 (n, d), and what became of its columns."""

    matrix: Array
    notes: tuple[str, ...]
    text: str | None = None  # the column that holds running text, the longest of several


def features(
    columns: dict[str, list[Any]], pool: Array, place: Callable[[int], str], where: str
) -> Features:
    """Every usable column as numbers; all statistics are those of the pool, (n,) bool."""
    blocks: list[Array] = []
    notes: list[str] = []
    dropped: dict[str, list[str]] = {}
    numeric = categorical = wordy = 0
    texts: dict[str, int] = {}
    for name, values in columns.items():
        entries = [_entry(value) for value in values]
        if is_text(entries):
            words = text_block(entries, pool)
            if words is not None:
                texts[name] = sum(len(e) for e in entries if isinstance(e, str))
                blocks.append(words)
                wordy += words.shape[1]
                notes.append(f"{name}: text, its words became {words.shape[1]} numbers a row")
                continue
        reason = _useless(name, entries)
        if reason:
            dropped.setdefault(reason, []).append(name)
            continue
        numbers = _numbers(entries)
        if numbers is not None:
            _refuse_infinite(name, numbers, place, where)
            block, said = _standardised(name, numbers, pool, where)
            numeric += block is not None
        else:
            block, said = _one_hot(name, entries, pool, place)
            categorical += block is not None
        notes += said
        if block is None:
            dropped.setdefault("constant", []).append(name)
        else:
            blocks.append(block)
    notes += [f"dropped, {reason}: {', '.join(names)}" for reason, names in dropped.items()]
    if not blocks:
        why = "; ".join(notes) or "it has no other column"
        raise InputError(
            f"{where} has no column to learn from ({why}); expected at least one that varies, "
            "of numbers or of categories"
        )
    matrix = np.concatenate(blocks, axis=1).astype(np.float32)
    kinds = f"{numeric} numeric and {categorical} categorical columns"
    became = f"{kinds} became {matrix.shape[1] - wordy} numbers a row"
    longest = max(texts, key=lambda name: texts[name], default=None)
    return Features(matrix, (became, *notes), longest)


def _entry(value: Any) -> float | str | bool | None:
    """One field: a number, a truth, a category, or None where missing."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.strip()
        return None if text.casefold() in MISSING else text
    if isinstance(value, int | float | Decimal):
        try:
            number = float(value)
        except (OverflowError, ValueError):
            number = np.inf  # refused later, with its place
        return None if number != number else number
    if isinstance(value, dt.datetime):
        return value.timestamp() if value.tzinfo else value.replace(tzinfo=dt.UTC).timestamp()
    if isinstance(value, dt.date):
        return float(value.toordinal())
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    return f"\0{type(value).__name__}"


def _useless(name: str, entries: list[Any]) -> str | None:
    """Why a column is dropped whatever the split, if it is."""
    present = [e for e in entries if e is not None]
    if not present:
        return "empty"
    odd = next((e for e in present if isinstance(e, str) and e.startswith("\0")), None)
    if odd is not None:
        return f"holding {odd[1:]} values"
    different = len(set(present))
    if different == 1 and len(present) == len(entries):
        return "constant"
    if different < len(present) or len(present) < 2:
        return None
    if any(isinstance(e, str) and _number(e) is None for e in present):
        return "different in every row"
    if name.casefold() in ROW_NAMES and len(present) == len(entries):
        numbers = np.array([_number(e) for e in present], dtype=float)
        if np.array_equal(np.sort(numbers), np.arange(len(numbers)) + numbers.min()):
            return "row numbers"
    return None


def _number(entry: float | str | bool | None) -> float | None:
    """An entry as a number, None if it is none."""
    if not isinstance(entry, str):
        return None if entry is None else float(entry)
    if "_" in entry:  # Python would take 1_000 for a number
        return None
    try:
        return float(entry)
    except ValueError:
        return None


def _numbers(entries: list[Any]) -> Array | None:
    """The column as float64 with NaN where missing; None if it holds categories."""
    out = np.full(len(entries), np.nan)
    truths = 0
    for i, entry in enumerate(entries):
        if entry is None:
            continue
        truth = isinstance(entry, bool) or (isinstance(entry, str) and entry.casefold() in TRUTH)
        truths += truth
        number = TRUTH.get(str(entry).casefold()) if truth else _number(entry)
        if number is None:
            return None
        out[i] = number
    # Truths among numbers, or truths with gaps, are categories: a gap gets one of its own.
    return None if truths and truths < len(entries) else out


def _refuse_infinite(name: str, numbers: Array, place: Callable[[int], str], where: str) -> None:
    at = np.flatnonzero(np.isinf(numbers))
    if len(at):
        raise InputError(
            f"{where}: column {name!r}, {place(int(at[0]))}, is infinite; expected finite numbers "
            "(leave the field empty if it is unknown)"
        )


def _standardised(
    name: str, numbers: Array, pool: Array, where: str
) -> tuple[Array | None, list[str]]:
    """Mean 0 and deviation 1 over the pool, gaps filled with its median."""
    notes = []
    gaps = np.isnan(numbers)
    if np.isnan(numbers[pool]).all():
        return None, []
    if gaps.any():
        with np.errstate(over="ignore"):
            median = np.nanmedian(numbers[pool])
        numbers = np.where(gaps, median, numbers)
        notes.append(f"{name}: {int(gaps.sum())} missing, filled with the median {median:g}")
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.abs(numbers[pool]).max() or 1.0
        scaled = numbers / largest  # so that squares neither overflow nor vanish
        std = scaled[pool].std()
        if std <= 1e-12:
            return None, notes
        block = ((scaled - scaled[pool].mean()) / std).astype(np.float32)
    if not np.isfinite(block).all():
        raise InputError(
            f"{where}: column {name!r} reaches {numbers[np.argmax(np.abs(numbers))]:g}, which "
            "cannot be standardised; expected numbers of a common size"
        )
    return block[:, None], notes


def _one_hot(
    name: str, entries: list[Any], pool: Array, place: Callable[[int], str]
) -> tuple[Array | None, list[str]]:
    """One column for each category of the pool; rare ones share `other`, gaps have their own."""
    notes = []
    texts = [None if e is None else str(e) for e in entries]
    strange = [i for i, e in enumerate(entries) if e is not None and _number(e) is None]
    present = sum(t is not None for t in texts)
    if len(strange) <= present / 10:
        i = strange[0]
        notes.append(
            f"{name}: {len(strange)} of {present} entries are no numbers ({place(i)}: "
            f"{texts[i]!r}), so all are taken as categories"
        )
    counts = Counter(t for t, inside in zip(texts, pool, strict=True) if inside and t is not None)
    levels = sorted(counts, key=lambda t: (-counts[t], t))
    kept = sorted(levels[:MOST_LEVELS])
    column = {level: i for i, level in enumerate(kept)}
    rest = len(levels) - len(kept)
    if rest:
        notes.append(f"{name}: {rest} of {len(levels)} categories share one, `other`")
    gaps = sum(t is None for t in texts)
    if gaps:
        notes.append(f"{name}: {gaps} missing, a category of their own")
    at = np.array([len(kept) if t is None else column.get(t, len(kept) + 1) for t in texts])
    block = np.zeros((len(texts), len(kept) + 2), dtype=np.float32)
    block[np.arange(len(texts)), at] = 1
    used = np.asarray(block[pool].any(axis=0))
    if used.sum() < 2:
        return None, notes
    if not used[-1] and block[:, -1].any():
        notes.append(f"{name}: categories seen only in the test part count as none of the others")
    return block[:, used], notes
