"""Tables (.csv, .tsv, .parquet) -> Data: vectors without the target column."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelahead.data.arrays import Values
from labelahead.data.classes import encode, suggestion
from labelahead.data.columns import MISSING, Features, features
from labelahead.data.dataset import UNKNOWN, Answers, Data, Rows
from labelahead.data.extras import need
from labelahead.data.options import Options
from labelahead.data.split import choose
from labelahead.data.text import read_text
from labelahead.errors import InputError

__all__ = ["Table", "load_table", "read_csv", "read_parquet"]

TARGETS = ("label", "target", "class", "y")


@dataclass(frozen=True)
class Table:
    """Columns of Python values, and where in the file each row stands."""

    columns: dict[str, list[Any]]
    lines: Sequence[int]
    unit: str = "line"
    notes: tuple[str, ...] = ()

    def place(self, row: int) -> str:
        """Where a row stands, for a message."""
        return f"{self.unit} {self.lines[row]}"


def load_table(path: Path, options: Options) -> tuple[Data, Answers | None]:
    """A table as vectors; what its columns became is said in the notes."""
    options.refuse_size(str(path))
    parquet = path.suffix.lower() in (".parquet", ".pq")
    table = read_parquet(path) if parquet else read_csv(path)
    columns = dict(table.columns)
    target, said = _target(path, columns, options.target)
    codes = torch.full((len(table.lines),), UNKNOWN)
    classes: tuple[str, ...] = ()
    if target is not None:
        codes, classes, more = _labels(path, target, columns.pop(target))
        said += more
    split = choose(codes, options)
    held_out = torch.zeros(len(codes), dtype=torch.bool)
    held_out[split.keep[split.test]] = True
    made: Features = features(columns, ~held_out.numpy(), table.place, str(path))
    matrix = torch.from_numpy(made.matrix)[split.keep]
    held = Values(matrix, torch.zeros(()), torch.ones(()))
    ids = tuple(str(int(i)) for i in split.keep)
    labels = codes[split.keep]
    at = split.keep.tolist()
    rows = Rows({name: [values[i] for i in at] for name, values in columns.items()}, made.text)
    data = Data(
        name=path.stem,
        classes=classes,
        test=split.test,
        ids=ids,
        kind="vector",
        notes=(*table.notes, *said, *made.notes, *split.notes),
        images=None,
        shape=held.shape,
        build=held.inputs,
        rows=rows,
    )
    return data, Answers(labels, ids) if bool((labels >= 0).any()) else None


def read_csv(path: Path) -> Table:
    """A text table with a header; every row must have as many fields as the header."""
    text = read_text(path)
    first = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    notes: tuple[str, ...] = ()
    if delimiter not in first and (";" in first or "\t" in first):
        delimiter = ";" if ";" in first else "\t"
        notes = (f"columns are separated by {'semicolons' if delimiter == ';' else 'tabs'}",)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    rows, lines = [], []
    try:
        for row in reader:
            if not row or (len(row) == 1 and not row[0].strip() and (not header or header[1:])):
                continue  # a blank line
            if header is None:
                header = _header(path, row)
                continue
            if len(row) != len(header):
                raise InputError(
                    f"{path}, line {reader.line_num}: {len(row)} fields; expected {len(header)} "
                    "as in the header; quote fields that hold the separator"
                )
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: {error}; expected a table of separated fields"
        ) from error
    if header is None or not rows:
        raise InputError(
            f"{path} holds {'no rows' if header else 'nothing'}; expected a header line and rows"
        )
    columns = {name: [row[i].strip() for row in rows] for i, name in enumerate(header)}
    if delimiter == ";":
        commas = [name for name, values in columns.items() if _decimal_commas(values)]
        for name in commas:
            columns[name] = [value.replace(",", ".") for value in columns[name]]
        notes += (f"decimal commas in {', '.join(commas)}",) if commas else ()
    return Table(columns, lines, notes=notes)


def read_parquet(path: Path) -> Table:
    """A Parquet file."""
    parquet = need("pyarrow.parquet", "tables", "reading Parquet files")
    arrow = need("pyarrow", "tables", "reading Parquet files")
    try:
        with path.open("rb") as stream:
            read = parquet.ParquetFile(stream).read()
    except (OSError, arrow.ArrowException) as error:
        raise InputError(
            f"{path} cannot be read as Parquet ({error}); expected a whole .parquet file"
        ) from error
    names = _header(path, list(read.column_names))
    if not names or not read.num_rows:
        raise InputError(f"{path} holds no rows; expected a table with columns and rows")
    try:
        columns = {}
        for i, name in enumerate(names):
            column = read.column(i)
            if arrow.types.is_timestamp(column.type):  # Python knows no nanoseconds
                column = column.cast(arrow.timestamp("us", column.type.tz), safe=False)
            columns[name] = column.to_pylist()
    except (arrow.ArrowException, ValueError, OverflowError) as error:
        raise InputError(f"{path} holds values Python has no form for ({error})") from error
    return Table(columns, range(1, read.num_rows + 1), unit="row")


def _header(path: Path, row: list[str]) -> list[str]:
    """Column names, each once; unnamed ones get their number."""
    names = [name.strip() or f"column {i}" for i, name in enumerate(row, 1)]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{path} names the column {twice[0]!r} twice; expected different names")
    if names and all(_is_number(name) for name in names):
        raise InputError(
            f"{path} begins with the numbers {', '.join(names[:5])}; expected a first line with "
            "the names of the columns, so add one"
        )
    return names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _decimal_commas(values: list[str]) -> bool:
    """Whether a column holds numbers written as 1,5, as spreadsheets of half Europe do."""
    with_comma = [v for v in values if re.fullmatch(r"[+-]?\d+,\d+([eE][+-]?\d+)?", v)]
    others = [v for v in values if "," not in v]
    numbers = all(_is_number(v) or v.casefold() in MISSING for v in others)
    return bool(with_comma) and len(with_comma) + len(others) == len(values) and numbers


def _target(
    path: Path, columns: dict[str, list[Any]], wanted: str | None
) -> tuple[str | None, tuple[str, ...]]:
    """The column with the labels."""
    if wanted is not None:
        if wanted not in columns:
            raise InputError(
                f"{path} has no column {wanted!r}{suggestion(wanted, list(columns))}; expected "
                f"target to be one of: {', '.join(columns)}"
            )
        return wanted, ()
    by_fold = {name.casefold(): name for name in reversed(columns)}
    found = [by_fold[name] for name in TARGETS if name in by_fold]
    if not found:
        return None, (
            "no labels: no column is named label, target, class or y, and `target` names none",
        )
    also = f" ({', '.join(found[1:])} stays an input)" if found[1:] else ""
    return found[0], (f"labels from the column {found[0]!r}{also}",)


def _labels(
    path: Path, name: str, values: list[Any]
) -> tuple[torch.Tensor, tuple[str, ...], tuple[str, ...]]:
    """The target column as class numbers; empty entries are unlabelled."""
    texts = [_class_name(value) for value in values]
    known = [t for t in texts if t is not None]
    numbers = [float(t) for t in known if _is_number(t)]
    if len(numbers) == len(known) and all(t.endswith(".0") for t in known):
        texts = [t and t[:-2] for t in texts]  # 1.0 is what pandas makes of 1 among gaps
    different = len({t for t in texts if t is not None})
    fractions = any(not number.is_integer() for number in numbers)
    if len(numbers) == len(known) and different > (20 if fractions else max(50, len(known) / 2)):
        raise InputError(
            f"{path}: the target column {name!r} has {different} different numbers in "
            f"{len(known)} rows; expected classes (a number to predict, or an id, is none)"
        )
    codes, classes, notes = encode(np.array(texts, dtype=object))
    said = [*notes]
    if not known:
        said.append(f"the target column {name!r} is empty: no labels")
    elif len(known) < len(values):
        said.append(f"{len(values) - len(known)} rows have no label")
    if different == 1:
        said.append(f"every label is {classes[0]!r}: only one class")
    return codes, classes, tuple(said)


def _class_name(value: Any) -> str | None:
    """A target entry as text; None where empty."""
    if value is None or (isinstance(value, float) and value != value) or str(value).strip() == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value).strip()
