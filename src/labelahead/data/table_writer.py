"""Write columns as CSV, JSON or Parquet: the user's columns beside those of labelahead."""

import csv
import datetime as dt
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, TextIO

import numpy as np

from labelahead.data.records import (
    ID_COLUMN,
    Records,
    format_id,
    rename_clashing_columns,
    to_python_list,
)
from labelahead.data.text import escape_formulas
from labelahead.errors import import_extra

__all__ = [
    "build_arrow_table",
    "iter_json_rows",
    "merge_columns",
    "probability_column_name",
    "to_json_value",
    "write_csv",
]


def probability_column_name(name: str) -> str:
    """Return the name of the column with the probabilities of a class."""
    return f"probability:{name}"


def merge_columns(
    ids: Sequence[str], records: Records | None, own_columns: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the id column, the user's columns, then ours.

    A user's column with one of our names becomes NAME_original.

    Args:
        ids: the id of every row.
        records: the user's columns of these rows, if there are any.
        ours: our columns except the id.
    """
    columns: dict[str, Any] = {ID_COLUMN: list(ids)}
    record_columns = {} if records is None else dict(records.columns)
    if (
        records is not None
        and records.id_column == ID_COLUMN
        and [format_id(v) for v in to_python_list(record_columns[ID_COLUMN])] == list(ids)
    ):
        columns[ID_COLUMN] = record_columns.pop(
            ID_COLUMN
        )  # the same ids, in the type of the user's column
    names = rename_clashing_columns(list(record_columns), (ID_COLUMN, *own_columns))
    return (
        columns
        | {names[name]: column for name, column in record_columns.items()}
        | dict(own_columns)
    )


def write_csv(file: TextIO, columns: Mapping[str, Any], *, line_end: str = "\n") -> None:
    """Write columns as CSV; texts that a spreadsheet would run as a formula are escaped with '."""
    writer = csv.writer(file, lineterminator=line_end)
    writer.writerow([escape_formulas(name) for name in columns])
    for row in zip(*map(to_python_list, columns.values()), strict=True):
        writer.writerow([_to_cell(value) for value in row])


def _to_cell(value: Any) -> str | int | float:
    """Convert a value to a CSV cell."""
    plain = to_json_value(value)
    if plain is None:
        return ""
    if isinstance(plain, bool):
        return str(plain).lower()
    if isinstance(plain, list | dict):
        plain = json.dumps(plain, ensure_ascii=False)
    if isinstance(plain, str):
        return escape_formulas(_replace_surrogates(plain))
    number: int | float = plain
    return number


def iter_json_rows(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows as dictionaries of JSON values."""
    for row in zip(*map(to_python_list, columns.values()), strict=True):
        yield {name: to_json_value(value) for name, value in zip(columns, row, strict=True)}


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON: times in ISO 8601, bytes as text, NaN as None."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None if value != value else str(value)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return to_json_value(value.tolist())
    return str(value)


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 file can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def build_arrow_table(columns: Mapping[str, Any], types: Mapping[str, Any] | None = None) -> Any:
    """Build an Arrow table; a column of mixed types becomes text.

    Args:
        columns: lists, arrays (n, d) or Arrow columns.
        types: Arrow types by column name; other types are inferred.
    """
    arrow = import_extra("pyarrow", "tables", "the form Parquet")
    converted = {}
    for name, column in columns.items():
        if hasattr(column, "to_pylist"):
            dictionary = arrow.types.is_dictionary(column.type)  # Hugging Face does not read these
            converted[name] = column.cast(column.type.value_type) if dictionary else column
            continue
        values, kind = list(column), (types or {}).get(name)
        try:
            converted[name] = arrow.array(values, kind)
        except (arrow.ArrowException, OverflowError, UnicodeEncodeError, ValueError, TypeError):
            converted[name] = arrow.array([_to_text(value) for value in values], arrow.string())
    return arrow.table(converted)


def _to_text(value: Any) -> str | None:
    """Convert a value to text, None if it is missing."""
    plain = to_json_value(str(value) if isinstance(value, Decimal) else value)
    if plain is None:
        return None
    return _replace_surrogates(
        plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    )
