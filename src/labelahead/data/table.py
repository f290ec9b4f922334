"""Tables (.csv, .tsv, .parquet, .jsonl, .xlsx) -> Data.

Numbers, categories and running text; no target.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelahead.data.arrays import NumericInputs, build_dataset
from labelahead.data.classes import encode_labels, sort_names
from labelahead.data.columns import (
    MISSING_VALUES,
    Column,
    DateColumn,
    CategoricalColumn,
    NumericColumn,
    parse_vectors,
    parse_entry,
    parse_number,
    parse_numeric_column,
    refuse_infinite,
)
from labelahead.data.dataset import UNKNOWN, Loaded, Rows, Texts
from labelahead.data.dates import find_ambiguous_date, parse_date_column
from labelahead.data.excel import WORKBOOK_SUFFIXES, read_sheet, split_sheet
from labelahead.data.label_values import (
    SEVERAL_CLASSES_ADVICE,
    LabelNormaliser,
    parse_label,
    refuse_combined_labels,
)
from labelahead.data.parquet import column_to_python, read_bounded
from labelahead.data.preprocessing import COLUMNS, Preprocessor
from labelahead.data.records import ID_COLUMN, Records, to_python_list, choose_id_column, read_ids
from labelahead.data.size_limits import get_free_memory
from labelahead.data.split import LoadOptions, Split, split_items, name_from_path
from labelahead.data.text import read_json_lines, read_separated
from labelahead.data.words import is_running_text, build_word_inputs
from labelahead.errors import InputError, did_you_mean, import_extra

__all__ = ["load_table", "read_table"]

TARGET_NAMES = ("label", "target", "class", "y")
SEPARATOR_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs"}
MAX_LISTED_COLUMNS = 12  # columns that a note names
MIN_SHORT_TEXT_LENGTH = (
    8  # characters on average that are a text where there is nothing else to learn from
)
MAX_TABLE_BYTES = (
    2**34
)  # of a Parquet table in memory, where the system does not say how much is free
ROW_NUMBER_COLUMNS = ("index", "unnamed: 0", "column 1")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Table:
    """Columns of Python values, and where in the file each row stands."""

    columns: dict[str, list[Any]]
    lines: Sequence[int]
    unit: str = "line"
    notes: tuple[str, ...] = ()
    originals: dict[str, Any] = field(
        default_factory=dict
    )  # columns that differ from what stands in the file

    def records(self) -> Records:
        """Return all columns as they stand in the file."""
        columns = {name: self.originals.get(name, values) for name, values in self.columns.items()}
        return Records(columns, row_numbers=range(len(self.lines)), order=tuple(columns))

    def ids(self, where: str, name: str | None) -> tuple[str, ...]:
        """Return the ids from a column, or row numbers without one."""
        if name is None:
            return tuple(map(str, range(len(self.lines))))
        places = [self.locate_row(i) for i in range(len(self.lines))]
        return tuple(read_ids(where, name, to_python_list(self.columns[name]), places))

    def locate_row(self, row: int) -> str:
        """Where a row stands, for a message."""
        return f"{self.unit} {self.lines[row]}"


@dataclass(frozen=True, eq=False)
class TableFeatures:
    """The table as float32 (n, d) but for running text, and what became of its columns."""

    matrix: Array
    notes: tuple[str, ...]
    texts: dict[str, list[str]]
    columns: tuple[Column, ...]  # that the matrix came from

    @property
    def longest(self) -> str | None:
        """The column with most to read."""
        return max(self.texts, key=lambda name: sum(map(len, self.texts[name])), default=None)


def load_table(path: Path, options: LoadOptions) -> Loaded:
    """A table as vectors; what its columns became is said in the notes."""
    options.refuse_size(str(path))
    table = read_table(path)
    columns = dict(table.columns)
    target, said = _find_target(path, columns, options.target)
    id_column = choose_id_column(str(path), columns, options.id, target)
    ids = table.ids(str(path), id_column)
    codes = torch.full((len(table.lines),), UNKNOWN)
    classes: tuple[str, ...] = ()
    if target is not None:
        codes, classes, more = _encode_target(
            path, target, columns.pop(target), table.locate_row, options.classes
        )
        said += more
    if id_column is not None:
        said += (f"ids from the column {id_column!r}",)
    said += _drop_columns(path, columns, options.without)
    split = split_items(codes, options)
    held_out = torch.zeros(len(codes), dtype=torch.bool)
    held_out[split.keep[split.test]] = True
    lists = {
        name: v for name, values in columns.items() if (v := parse_vectors(values)) is not None
    }
    columns = {name: values for name, values in columns.items() if name not in lists}
    inputs = {
        name: values
        for name, values in columns.items()
        if name != id_column and name.casefold() != ID_COLUMN
    }
    made = encode_columns(inputs, ~held_out.numpy(), table.locate_row, str(path), alone=not lists)
    matrix = torch.from_numpy(made.matrix)[split.keep]
    held = NumericInputs(matrix, torch.zeros(()), torch.ones(()))
    rows = Rows(_select_rows(columns, split), made.longest)
    records = table.records().take(split.keep.tolist())
    texts = Texts(_select_rows(made.texts, split), matrix) if made.texts else None
    build = partial(build_word_inputs, texts, split.pool, str(path)) if texts else None
    offered = (
        f"{name}: vectors of {v.shape[1]} numbers, learnt from by embedding={name}"
        for name, v in lists.items()
    )
    loaded = build_dataset(
        name_from_path(path),
        held,
        None,
        split,
        codes[split.keep],
        classes,
        notes=(*table.notes, *said, *made.notes, *offered, *split.notes),
        rows=rows,
        texts=texts,
        build=build,
        ids=tuple(ids[int(i)] for i in split.keep),
        preprocessor=Preprocessor(COLUMNS, held.shape, columns=made.columns),
        records=replace(_drop_target(records, target), id_column=id_column),
        column=None if target is None else (target, records.columns[target]),
    )
    kept = {name: torch.from_numpy(v)[split.keep] for name, v in lists.items()}
    return replace(loaded[0], vectors=kept), loaded[1]


def _drop_target(records: Records, target: str | None) -> Records:
    """Return the records without the column of the labels, which `Data` must not hold."""
    return replace(
        records,
        columns={name: values for name, values in records.columns.items() if name != target},
    )


def _select_rows(columns: dict[str, list[Any]], split: Split) -> dict[str, list[Any]]:
    at = split.keep.tolist()
    return {name: [values[i] for i in at] for name, values in columns.items()}


def _find_target(
    path: Path, columns: dict[str, list[Any]], wanted: str | None
) -> tuple[str | None, tuple[str, ...]]:
    """The column with the labels."""
    if wanted is not None:
        if wanted not in columns:
            raise InputError(
                f"{path} has no column {wanted!r} that could be the target; "
                f"{did_you_mean(wanted, columns)}expected "
                f"one of: {', '.join(columns)}"
            )
        return wanted, ()
    by_fold = {name.casefold(): name for name in reversed(columns)}
    names = [by_fold[target] for target in TARGET_NAMES if target in by_fold]
    if not names:
        there = _list_first(columns)
        return None, (
            "no labels: no column is named label, target, class or y; --target names another of "
            f"{there}",
        )
    also = f" ({', '.join(names[1:])} stays an input)" if names[1:] else ""
    return names[0], (f"labels from the column {names[0]!r}{also}",)


def _drop_columns(
    path: Path, columns: dict[str, list[Any]], names: Sequence[str]
) -> tuple[str, ...]:
    """Remove these from the columns."""
    for name in names:
        if name not in columns:
            raise InputError(
                f"{path} has no column {name!r} that could be left out; "
                f"{did_you_mean(name, columns)}expected "
                f"some of: {', '.join(columns)}"
            )
        del columns[name]
    return (f"left out: {', '.join(names)}",) if names else ()


def _encode_target(
    path: Path,
    name: str,
    values: Sequence[Any],
    locate_row: Callable[[int], str],
    classes: Sequence[str],
) -> tuple[torch.Tensor, tuple[str, ...], tuple[str, ...]]:
    """The target column as class numbers.

    Empty entries are unlabelled. classes: names that are classes for certain.
    """
    where = f"{path}: the labels of the target column {name!r}"
    reader = LabelNormaliser(classes)
    labels = [parse_label(value) for value in values]
    several = next((i for i, label in enumerate(labels) if isinstance(label, tuple)), None)
    if several is not None:
        shown = ", ".join(map(str, labels[several]))
        raise InputError(
            f"{where} hold several classes per item, such as {shown:.80} in {locate_row(several)}; "
            f"{SEVERAL_CLASSES_ADVICE}"
        )
    texts = [None if label is None else reader.read(str(label)) for label in labels]
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
    present = {t for t in texts if t is not None}
    refuse_combined_labels(present, classes, where)
    codes, names, _ = encode_labels(np.array(texts, dtype=object), sort_names(present))
    said = [*reader.notes()]
    if not known:
        said.append(f"the target column {name!r} is empty: no labels")
    elif len(known) < len(values):
        said.append(f"{len(values) - len(known)} rows have no label")
    if different == 1:
        said.append(f"every label is {names[0]!r}: only one class")
    return codes, names, tuple(said)


def read_table(path: Path) -> Table:
    """Read a table by the reader that its name asks for.

    `book.xlsx#NAME` is one sheet of a workbook.
    """
    return READERS.get(split_sheet(path)[0].suffix.lower(), read_csv)(path)


def read_csv(path: Path) -> Table:
    """A text table with a header; every row must have as many fields as the header."""
    separator, read = read_separated(path)
    notes: tuple[str, ...] = ()
    if separator != ("\t" if path.suffix.lower() == ".tsv" else ","):
        notes = (f"columns are separated by {SEPARATOR_NAMES[separator]}",)
    header: list[str] | None = None
    rows, lines = [], []
    for line, row in read:
        if not row or (len(row) == 1 and not row[0].strip() and (not header or header[1:])):
            continue  # a blank line
        if header is None:
            header = _check_header(path, row)
            continue
        if len(row) != len(header):
            raise InputError(
                f"{path}, line {line}: {len(row)} fields; expected {len(header)} "
                "as in the header; quote fields that hold the separator"
            )
        rows.append(row)
        lines.append(line)
    if header is None or not rows:
        raise InputError(
            f"{path} holds {'no rows' if header else 'nothing'}; expected a header line and rows"
        )
    columns = {name: [row[i].strip() for row in rows] for i, name in enumerate(header)}
    originals = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    if separator == ";":
        commas = [name for name, values in columns.items() if _has_decimal_commas(values)]
        for name in commas:
            columns[name] = [value.replace(",", ".") for value in columns[name]]
        notes += (f"decimal commas in {', '.join(commas)}",) if commas else ()
    return Table(columns, lines, notes=notes, originals=originals)


def _has_decimal_commas(values: list[str]) -> bool:
    """Whether a column holds numbers written as 1,5, as spreadsheets of half Europe do."""
    with_comma = [v for v in values if re.fullmatch(r"[+-]?\d+,\d+([eE][+-]?\d+)?", v)]
    others = [v for v in values if "," not in v]
    numbers = all(_is_number(v) or v.casefold() in MISSING_VALUES for v in others)
    return bool(with_comma) and len(with_comma) + len(others) == len(values) and numbers


def read_parquet(path: Path) -> Table:
    """A Parquet file; refused before it is read where it would not fit into memory."""
    arrow = import_extra("pyarrow", "tables", "reading Parquet files")
    import_extra("pyarrow.compute", "tables", "reading Parquet files")
    try:
        read = read_bounded(path, None, get_free_memory() or MAX_TABLE_BYTES)
    except InputError:
        raise
    except (OSError, arrow.ArrowException) as error:
        raise InputError(
            f"{path} cannot be read as Parquet ({error}); expected a whole .parquet file"
        ) from error
    names = _check_header(path, list(read.column_names))
    if not names or not read.num_rows:
        raise InputError(f"{path} holds no rows; expected a table with columns and rows")
    try:
        columns: dict[str, Any] = {}
        originals: dict[str, Any] = {}
        for i, name in enumerate(names):
            column = originals[name] = read.column(i)
            if arrow.types.is_timestamp(column.type):  # Python knows no nanoseconds
                column = column.cast(arrow.timestamp("us", column.type.tz), safe=False)
            lists = _parse_list_column(column, arrow)
            columns[name] = column_to_python(column) if lists is None else lists
    except (arrow.ArrowException, ValueError, OverflowError) as error:
        raise InputError(f"{path} holds values Python has no form for ({error})") from error
    return Table(columns, range(1, read.num_rows + 1), unit="row", originals=originals)


def _parse_list_column(column: Any, arrow: Any) -> Array | None:
    """(n, d) of a column of lists of d numbers each, without a Python object for every number.

    None of others.
    """
    kind = column.type
    listed = (
        arrow.types.is_list(kind)
        or arrow.types.is_large_list(kind)
        or arrow.types.is_fixed_size_list(kind)
    )
    if (
        not listed
        or column.null_count
        or not (arrow.types.is_floating(kind.value_type) or arrow.types.is_integer(kind.value_type))
    ):
        return None
    lengths = arrow.compute.unique(arrow.compute.list_value_length(column)).to_pylist()
    numbers = arrow.compute.list_flatten(column)
    if len(lengths) != 1 or not lengths[0] or numbers.null_count:
        return None
    made: Array = numbers.to_numpy().reshape(len(column), -1)
    return made


def read_json_table(path: Path) -> Table:
    """A file with one JSON object a line; a key that a line does not have is missing there."""
    read = read_json_lines(path)
    for number, row in read:
        if not isinstance(row, dict):
            raise InputError(
                f"{path}, line {number}: a {type(row).__name__}; expected one JSON object a line"
            )
    if not read:
        raise InputError(f"{path} holds nothing; expected one JSON object a line")
    lines, rows = zip(*read, strict=True)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    names = _check_header(path, keys)
    gaps = {
        name: sum(key not in row for row in rows) for name, key in zip(names, keys, strict=True)
    }
    notes = tuple(
        f"{name}: {count} of {len(rows)} lines have none" for name, count in gaps.items() if count
    )
    columns = {name: [row.get(key) for row in rows] for name, key in zip(names, keys, strict=True)}
    return Table(columns, lines, notes=notes)


def read_excel(path: Path) -> Table:
    """Read a sheet of an Excel workbook whose first row that holds something names the columns."""
    sheet = read_sheet(path)
    if len(sheet.rows) < 2:
        raise InputError(
            f"{path} holds {'no rows' if sheet.rows else 'nothing'}; expected a header line and "
            "rows"
        )
    (_, header), *rows = sheet.rows
    named = [
        i
        for i, name in enumerate(header)
        if name is not None or any(row[i] is not None for _, row in rows)
    ]
    names = _check_header(path, ["" if header[i] is None else str(header[i]) for i in named])
    columns = {name: [row[i] for _, row in rows] for name, i in zip(names, named, strict=True)}
    return Table(columns, [number for number, _ in rows], unit="row", notes=sheet.notes)


READERS = {
    ".parquet": read_parquet,
    ".pq": read_parquet,
    ".jsonl": read_json_table,
    ".ndjson": read_json_table,
    **dict.fromkeys(WORKBOOK_SUFFIXES, read_excel),
}


def _check_header(path: Path, row: list[str]) -> list[str]:
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


def _list_first(names: Iterable[str]) -> str:
    """The first few of them."""
    every = list(names)
    return ", ".join(every[:MAX_LISTED_COLUMNS]) + (
        f" and {len(every) - MAX_LISTED_COLUMNS} more" if len(every) > MAX_LISTED_COLUMNS else ""
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def encode_columns(
    columns: dict[str, list[Any]],
    pool: Array,
    locate_row: Callable[[int], str],
    where: str,
    *,
    alone: bool = True,
) -> TableFeatures:
    """Every usable column as numbers.

    All statistics are those of the pool, (n,) bool. alone: there must be one.
    """
    blocks: list[Array] = []
    notes: list[str] = []
    dropped: dict[str, list[str]] = {}
    fitted: list[NumericColumn | CategoricalColumn] = []
    read = {name: [parse_entry(value) for value in values] for name, values in columns.items()}
    dates = {
        name: found
        for name, entries in read.items()
        if (found := parse_date_column(entries)) is not None
    }
    others = {name: entries for name, entries in read.items() if name not in dates}
    texts = {
        name: _fill_missing_texts(entries)
        for name, entries in others.items()
        if is_running_text(entries)
    } or _find_short_texts(others)
    for name, entries in read.items():
        if name in texts:
            continue
        reason = None if name in dates else _reason_to_drop(name, entries)
        if reason:
            dropped.setdefault(reason, []).append(name)
            continue
        column: NumericColumn | CategoricalColumn | None
        if name in dates:
            column = DateColumn.fit_dates(name, dates[name], pool, notes)
        else:
            column = _fit_column(name, entries, pool, locate_row, where, notes)
        if column is None:
            dropped.setdefault("constant", []).append(name)
        else:
            fitted.append(column)
            blocks.append(column.apply(entries, locate_row, where))
    notes += [f"dropped, {reason}: {', '.join(names)}" for reason, names in dropped.items()]
    if not blocks and not texts:  # short texts are better than nothing
        texts = {
            name: _fill_missing_texts(entries)
            for name, entries in others.items()
            if is_running_text(entries, MIN_SHORT_TEXT_LENGTH)
        }
        notes = [note for note in notes if not texts]
    if not blocks and not texts and alone:
        why = "; ".join(notes) or "it has no other column"
        raise InputError(
            f"{where} has no column to learn from ({why}); expected at least one that varies, "
            "of numbers or of categories, or one of text"
        )
    matrix = np.concatenate([np.zeros((len(pool), 0)), *blocks], axis=1).astype(np.float32)
    kinds = _describe_kinds(fitted)
    learnt = f"{_list_first([column.name for column in fitted])} (--set data.without=NAME leaves one out)"
    became = (f"{kinds} became {matrix.shape[1]} numbers a row: {learnt}",) if blocks else ()
    said = []
    for name in texts:
        gaps = sum(entry is None for entry in read[name])
        said.append(
            f"{name}: text"
            + (f", {gaps} missing (nothing, or a word such as N/A): read as empty" if gaps else "")
        )
    return TableFeatures(matrix, (*became, *said, *notes), texts, tuple(fitted))


def _fit_column(
    name: str,
    entries: list[Any],
    pool: Array,
    locate_row: Callable[[int], str],
    where: str,
    notes: list[str],
) -> NumericColumn | CategoricalColumn | None:
    """Numbers or categories; None: the pool has one value."""
    numbers = parse_numeric_column(entries)
    if numbers is not None:
        refuse_infinite(name, numbers, locate_row, where)
        return NumericColumn.fit(name, numbers, pool, notes)
    unclear = find_ambiguous_date(entries)
    if unclear is not None:
        notes.append(
            f"{name}: {unclear} may be written day or month first, so all are taken as "
            "categories; write dates as "
            "2024-01-31 to have them taken as dates"
        )
    return CategoricalColumn.fit(name, entries, pool, locate_row, notes)


def _describe_kinds(fitted: Sequence[NumericColumn | CategoricalColumn]) -> str:
    """How many columns of each kind there are."""
    counts = Counter(column.kind for column in fitted)
    dates = f", {counts['dates']} date" if counts["dates"] else ""
    return f"{counts['numbers']} numeric{dates} and {counts['levels']} categorical columns"


def _fill_missing_texts(entries: list[Any]) -> list[str]:
    """A column of running text; an empty field is an empty text."""
    return ["" if entry is None else entry for entry in entries]


def _find_short_texts(read: dict[str, list[Any]]) -> dict[str, list[str]]:
    """Columns of short texts where there is nothing else to learn from.

    What most rows share is a category.
    """
    short = {
        name: _fill_missing_texts(entries)
        for name, entries in read.items()
        if is_running_text(entries, MIN_SHORT_TEXT_LENGTH) and 2 * len(set(entries)) > len(entries)
    }
    others = short and [
        name for name in read if name not in short and _reason_to_drop(name, read[name]) is None
    ]
    return {} if others else short


def _reason_to_drop(name: str, entries: list[Any]) -> str | None:
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
    if any(isinstance(e, str) and parse_number(e) is None for e in present):
        return "different in every row"
    if name.casefold() in ROW_NUMBER_COLUMNS and len(present) == len(entries):
        numbers = np.array([parse_number(e) for e in present], dtype=float)
        if np.array_equal(np.sort(numbers), np.arange(len(numbers)) + numbers.min()):
            return "row numbers"
    return None
