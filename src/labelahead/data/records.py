"""The columns of the user's table, and the ids of its items.

An id comes from a column of the table (`--id COLUMN`; by default a column called `id`), else from
the file name, else from the row number. Exports and prediction files contain these columns beside
those that labelahead adds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labelahead.errors import InputError, count_noun, did_you_mean

__all__ = [
    "AUTO_ID",
    "FILE_NAME",
    "NO_ID",
    "Records",
    "choose_id_column",
    "format_id",
    "join_records",
    "read_ids",
    "rename_clashing_columns",
    "to_python_list",
]

AUTO_ID = "auto"  # value of --id: a column called `id` if it exists
NO_ID = "none"  # value of --id: row numbers
ID_COLUMN = "id"
FILE_NAME = "file_name"
MAX_EXAMPLE_IDS = 3  # duplicate or empty ids listed in an error message


@dataclass(frozen=True, eq=False)
class Records:
    """Columns of the user by name, in the order of the file.

    A column is a list of Python values, an array (n, d) of numbers, or an Arrow column, which keeps
    its type.

    Attributes:
        columns: all columns except the one with the labels, which `Answers` holds.
        id_column: the column of the ids; None where they are file names or row numbers.
        row_numbers: rows of the file, counted from 0; None where items are no rows of a file.
        order: names of all columns in the file, including the one with the labels.
    """

    columns: Mapping[str, Any]
    id_column: str | None = None
    row_numbers: Sequence[int] | None = None
    order: tuple[str, ...] = ()

    def take(self, positions: Sequence[int]) -> "Records":
        """Return the records at these positions, in that order."""
        rows = self.row_numbers
        return replace(
            self,
            columns={name: take_values(column, positions) for name, column in self.columns.items()},
            row_numbers=None if rows is None else [rows[i] for i in positions],
        )

    def positions_by_row_number(self) -> dict[str, int] | None:
        """Return positions by row number (as text), which were the ids of labelahead 0.2.

        Returns None unless a column holds the ids.
        """
        if self.id_column is None or self.row_numbers is None:
            return None
        return {str(row): position for position, row in enumerate(self.row_numbers)}

    def with_column(self, name: str, column: Any) -> "Records":
        """Return the records with one more column, at its place in the file."""
        columns = {**self.columns, name: column}
        order = [n for n in self.order if n in columns] + [
            n for n in columns if n not in self.order
        ]
        return replace(self, columns={n: columns[n] for n in order})


def take_values(column: Any, positions: Sequence[int]) -> Any:
    """Return the entries of a column at these positions, as the same kind of column."""
    if isinstance(column, np.ndarray):
        return column[list(positions)]
    if hasattr(column, "to_pylist"):  # Arrow's
        return column.take(np.asarray(positions, dtype=np.int64))
    return [column[i] for i in positions]


def to_python_list(column: Any) -> list[Any]:
    """Return a column as a list of Python values."""
    if isinstance(column, np.ndarray):
        return list(column.tolist())
    if not hasattr(column, "to_pylist"):
        return list(column)
    try:
        return list(column.to_pylist())
    except ValueError:  # nanoseconds, which Python's datetime does not support
        return list(column.cast("string").to_pylist())


def join_records(parts: Sequence[Records | None], sizes: Sequence[int]) -> Records | None:
    """Concatenate the records of several sources.

    Columns that a source does not have are filled with None.

    Args:
        parts: the records of each source, None where a source has none.
        sizes: the number of items of each source.
    """
    if len(parts) == 1 or all(part is None for part in parts):
        return parts[0] if parts else None
    names = dict.fromkeys(name for part in parts if part is not None for name in part.columns)
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for part, size in zip(parts, sizes, strict=True):
        for name, values in columns.items():
            column = None if part is None else part.columns.get(name)
            values += [None] * size if column is None else to_python_list(column)
    return Records(columns)


# --- ids
# ----------------------------------------------------------------------------------------------------


def format_id(value: Any) -> str:
    """Return an id as text, "" if it is empty.

    7, 7.0 and "7" are the same id; "007" is another.
    """
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    return str(value).strip()


def choose_id_column(
    where: str, names: Iterable[str], wanted: str, *targets: str, likely: str | None = None
) -> str | None:
    """Return the column that holds the ids, None for row numbers.

    Args:
        where: the table, for messages.
        names: its columns.
        wanted: a column, "auto" for one called `id` if it exists, or "none".
        targets: the columns with the labels, which cannot hold the ids.
        likely: a column that "auto" prefers to `id` if the table has it.

    Raises:
        InputError: if there is no such column, or it holds the labels.
    """
    columns = list(names)
    if wanted in columns and wanted in targets:
        raise InputError(
            f"{where}: the column {wanted!r} holds the labels; expected another column as --id"
        )
    if wanted in columns and wanted not in (AUTO_ID, NO_ID):
        return wanted
    if wanted == NO_ID:
        return None
    if wanted == AUTO_ID:
        if likely in columns:
            return likely
        called_id = sorted(
            (name for name in columns if name.casefold() == ID_COLUMN and name not in targets),
            key=ID_COLUMN.__ne__,
        )
        return called_id[0] if called_id else None
    raise InputError(
        f"{where} has no column {wanted!r} that could be the id; "
        f"{did_you_mean(wanted, columns)}expected one of: "
        f"{', '.join(columns)}, or --id none for row numbers"
    )


def read_ids(where: str, name: str, values: Sequence[Any], places: Sequence[str]) -> list[str]:
    """Return the ids of a column as text.

    Args:
        where: the table, for messages.
        name: the column.
        values: its entries.
        places: the place of each row in the file, for messages.

    Raises:
        InputError: if an id is empty or occurs twice; the message names the first examples.
    """
    ids = [format_id(value) for value in values]
    what_to_do = "choose another column with --id COLUMN, or --id none for row numbers"
    empty = [i for i, text in enumerate(ids) if not text]
    if empty:
        some = ", ".join(places[i] for i in empty[:MAX_EXAMPLE_IDS])
        more = ", ..." if len(empty) > MAX_EXAMPLE_IDS else ""
        raise InputError(
            f"{where}: {count_noun(len(empty), 'row has', 'rows have')} no id in the column {name!r} ({some}{more}); "
            "expected an id in every "
            f"row: fill them in, {what_to_do}"
        )
    first: dict[str, int] = {}
    twice: list[str] = []
    for i, text in enumerate(ids):
        if first.setdefault(text, i) != i:
            twice.append(f"{text!r} ({places[first[text]]} and {places[i]})")
    if twice:
        more = ", ..." if len(twice) > MAX_EXAMPLE_IDS else ""
        raise InputError(
            f"{where}: {count_noun(len(twice), 'row repeats', 'rows repeat')} an id in the column {name!r}: "
            f"{', '.join(twice[:MAX_EXAMPLE_IDS])}{more}; "
            f"expected a different id in every row: {what_to_do}"
        )
    return ids


# --- names of exported columns
# ------------------------------------------------------------------------------


def rename_clashing_columns(names: Sequence[str], own_names: Iterable[str]) -> dict[str, str]:
    """Return new names of the user's columns, by their own names, that do not clash with ours.

    A name that differs from one of ours at most in capital letters becomes NAME_original, so that
    nothing is lost and programs that ignore case find each name once.

    >>> from labelahead.data.records import rename_clashing_columns
    >>> rename_clashing_columns(["text", "Label"], ["id", "label"])
    {'text': 'text', 'Label': 'Label_original'}
    """
    own_folded = {name.casefold() for name in own_names}
    free = {name.casefold() for name in names} - own_folded
    new: dict[str, str] = {}
    for name in names:
        if name.casefold() not in own_folded:
            new[name] = name
            continue
        candidate, number = f"{name}_original", 1
        while candidate.casefold() in own_folded | free:
            number += 1
            candidate = f"{name}_original_{number}"
        free.add(candidate.casefold())
        new[name] = candidate
    return new
