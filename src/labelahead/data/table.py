"""Load tables (.csv, .tsv, .parquet, .jsonl, .xlsx): numbers, dates, categories and running text."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelahead.data.arrays import ClassLabels, Content, NumericInputs, build_dataset
from labelahead.data.classes import encode_labels, sort_names
from labelahead.data.columns import (
    MISSING_VALUES,
    CategoricalColumn,
    Column,
    DateColumn,
    NumericColumn,
    parse_entry,
    parse_number,
    parse_numeric_column,
    parse_vectors,
    refuse_infinite,
)
from labelahead.data.dataset import UNKNOWN, Loaded, Rows, Texts
from labelahead.data.dates import ParsedDates, find_ambiguous_date, parse_date_column
from labelahead.data.excel import WORKBOOK_SUFFIXES, read_sheet, split_sheet
from labelahead.data.label_values import (
    SEVERAL_CLASSES_ADVICE,
    LabelNormaliser,
    parse_label,
    refuse_combined_labels,
)
from labelahead.data.parquet import (
    column_to_python,
    name_class_numbers,
    read_bounded,
    read_class_names,
)
from labelahead.data.preprocessing import COLUMN_INPUTS, Preprocessor
from labelahead.data.records import ID_COLUMN, Records, choose_id_column, read_ids, to_python_list
from labelahead.data.size_limits import get_free_memory
from labelahead.data.split import LoadOptions, Split, name_from_path, split_items
from labelahead.data.targets import EncodedLabels, build_targets, read_task_values
from labelahead.data.text import read_json_lines, read_separated
from labelahead.data.words import MIN_TEXT_LENGTH, build_word_inputs, is_running_text
from labelahead.errors import InputError, count_noun, did_you_mean, import_extra

__all__ = ["load_table", "read_table"]

TARGET_NAMES = ("label", "target", "class", "y")
SEPARATOR_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs"}
MAX_LISTED_COLUMNS = 12  # columns listed in a note
# Mean characters per entry of a text column in a table that has no other usable column.
MIN_SHORT_TEXT_LENGTH = 8
# Memory of a Parquet table if the system does not report the free memory.
MAX_TABLE_BYTES = 2**34
ROW_NUMBER_COLUMNS = ("index", "unnamed: 0", "column 1")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Table:
    """The columns of a table as Python values.

    Attributes:
        columns: the entries by column name.
        lines: the place of each row in the file.
        unit: the unit of `lines`, for messages: "line" or "row".
        notes: decisions taken while reading, for the user.
        originals: columns whose entries in the file differ from `columns`.
        class_names: the names of the class numbers in a column, which Hugging Face stores.
    """

    columns: dict[str, list[Any]]
    lines: Sequence[int]
    unit: str = "line"
    notes: tuple[str, ...] = ()
    originals: dict[str, Any] = field(default_factory=dict)
    class_names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def records(self) -> Records:
        """Return all columns as they are in the file."""
        columns = {name: self.originals.get(name, values) for name, values in self.columns.items()}
        return Records(columns, row_numbers=range(len(self.lines)), order=tuple(columns))

    def ids(self, where: str, name: str | None) -> tuple[str, ...]:
        """Return the ids in a column, or row numbers if `name` is None."""
        if name is None:
            return tuple(map(str, range(len(self.lines))))
        places = [self.locate_row(i) for i in range(len(self.lines))]
        return tuple(read_ids(where, name, to_python_list(self.columns[name]), places))

    def locate_row(self, row: int) -> str:
        """Return the place of a row in the file, for messages."""
        return f"{self.unit} {self.lines[row]}"


@dataclass(frozen=True, eq=False)
class TableFeatures:
    """The features of a table, except for running text.

    Attributes:
        matrix: (n, d) float32.
        notes: what became of the columns, for the user.
        texts: the columns of running text.
        columns: the fitted columns of the matrix.
    """

    matrix: Array
    notes: tuple[str, ...]
    texts: dict[str, list[str]]
    columns: tuple[Column, ...]

    @property
    def longest_text_column(self) -> str | None:
        """The text column with the most characters, None if there is no text."""
        return max(self.texts, key=lambda name: sum(map(len, self.texts[name])), default=None)


# --- Load a table


def load_table(path: Path, options: LoadOptions) -> Loaded:
    """Load a table; the notes describe what became of its columns.

    Args:
        path: the file; `book.xlsx#NAME` is one sheet of a workbook.
        options: the options of `load`.

    Raises:
        InputError: if it cannot be read, or has no usable column.
    """
    options.refuse_size(str(path))
    table = read_table(path)
    columns = dict(table.columns)
    targets, notes = _find_targets(path, columns, options)
    id_column = choose_id_column(str(path), columns, options.id, *targets)
    ids = table.ids(str(path), id_column)
    target_columns = {name: columns.pop(name) for name in targets}
    labels = _read_labels(path, table, target_columns, options)
    notes += labels.notes
    if id_column is not None:
        notes += (f"ids from the column {id_column!r}",)
    notes += _drop_columns(path, columns, options.without)
    notes += _drop_guesses(columns, options.guesses)
    split = split_items(labels.codes, options, strata=labels.strata)
    held_out = torch.zeros(len(labels.codes), dtype=torch.bool)
    held_out[split.keep[split.test]] = True
    columns, vectors = _split_vectors(columns)
    inputs = {
        name: values
        for name, values in columns.items()
        if name != id_column and name.casefold() != ID_COLUMN
    }
    needed = options.columns_needed and not vectors
    features = encode_columns(
        inputs, ~held_out.numpy(), table.locate_row, str(path), required=needed
    )
    matrix = torch.from_numpy(features.matrix)[split.keep]
    model_inputs = NumericInputs(matrix, torch.zeros(()), torch.ones(()))
    rows = Rows(_select_rows(columns, split), features.longest_text_column)
    records = table.records().take(split.keep.tolist())
    column = (targets[0], records.columns[targets[0]]) if len(targets) == 1 else None
    texts = Texts(_select_rows(features.texts, split), matrix) if features.texts else None
    build = partial(build_word_inputs, texts, split.pool, str(path)) if texts else None
    loaded = build_dataset(
        name_from_path(path),
        model_inputs,
        ClassLabels(labels.codes[split.keep], labels.classes, column, labels.task),
        split,
        (*table.notes, *notes, *features.notes, *_describe_vectors(vectors), *split.notes),
        Content(
            ids=tuple(ids[int(i)] for i in split.keep),
            rows=rows,
            texts=texts,
            build=build,
            preprocessor=Preprocessor(COLUMN_INPUTS, model_inputs.shape, columns=features.columns),
            records=replace(_drop_targets(records, targets), id_column=id_column),
        ),
    )
    kept = {name: torch.from_numpy(array)[split.keep] for name, array in vectors.items()}
    return replace(loaded[0], vectors=kept), loaded[1]


def _split_vectors(
    columns: Mapping[str, list[Any]],
) -> tuple[dict[str, list[Any]], dict[str, Array]]:
    """Return the columns without those of vectors, and the vectors (n, d)."""
    parsed = {name: parse_vectors(values) for name, values in columns.items()}
    vectors = {name: array for name, array in parsed.items() if array is not None}
    return {name: values for name, values in columns.items() if name not in vectors}, vectors


def _describe_vectors(vectors: Mapping[str, Array]) -> tuple[str, ...]:
    """Say how to use each column of vectors."""
    return tuple(
        f"{name}: vectors of {array.shape[1]} numbers, learnt from by embedding={name}"
        for name, array in vectors.items()
    )


def _read_labels(
    path: Path, table: Table, columns: dict[str, list[Any]], options: LoadOptions
) -> EncodedLabels:
    """Read the label columns of a table."""
    if not columns:
        return EncodedLabels(torch.full((len(table.lines),), UNKNOWN))
    if options.has_classes:
        ((name, values),) = columns.items()
        return EncodedLabels(*_encode_target(path, name, values, table.locate_row, options.classes))
    named = {
        name: _name_class_numbers(values, table.class_names.get(name))
        for name, values in columns.items()
    }
    read = read_task_values(options.task, named, table.locate_row, str(path), options.classes)
    found = build_targets(options.task, read, unit=options.unit, limits=options.limits)
    return EncodedLabels.from_targets(found, len(table.lines))


def _name_class_numbers(values: Any, names: Sequence[str] | None) -> Sequence[Any]:
    """Return class numbers of a Parquet file as names, if it says them."""
    if names is None:
        return values  # type: ignore[no-any-return]
    return [name_class_numbers(value, names) for value in to_python_list(values)]


def _drop_targets(records: Records, targets: Sequence[str]) -> Records:
    """Return the records without the label columns, which `Data` must not hold."""
    return replace(
        records,
        columns={name: values for name, values in records.columns.items() if name not in targets},
    )


def _select_rows(columns: dict[str, list[Any]], split: Split) -> dict[str, list[Any]]:
    """Return the columns with the rows that the split keeps."""
    at = split.keep.tolist()
    return {name: [values[i] for i in at] for name, values in columns.items()}


def _find_targets(
    path: Path, columns: dict[str, list[Any]], options: LoadOptions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns with the labels, and notes for the user."""
    wanted = options.label_columns or (() if options.target is None else (options.target,))
    for name in wanted:
        if name not in columns:
            raise InputError(
                f"{path} has no column {name!r} that could be the target; "
                f"{did_you_mean(name, columns)}expected "
                f"one of: {', '.join(columns)}"
            )
    if wanted:
        return wanted, ()
    by_fold = {name.casefold(): name for name in reversed(columns)}
    names = [by_fold[target] for target in TARGET_NAMES if target in by_fold]
    if not names:
        listed = _list_first(columns)
        return (), (
            "no labels: no column is named label, target, class or y; --target names another of "
            f"{listed}",
        )
    also = f" ({', '.join(names[1:])} stays an input)" if names[1:] else ""
    return (names[0],), (f"labels from the column {names[0]!r}{also}",)


def _drop_columns(
    path: Path, columns: dict[str, list[Any]], names: Sequence[str]
) -> tuple[str, ...]:
    """Remove columns from `columns` in place, and return notes for the user."""
    for name in names:
        if name not in columns:
            raise InputError(
                f"{path} has no column {name!r} that could be left out; "
                f"{did_you_mean(name, columns)}expected "
                f"some of: {', '.join(columns)}"
            )
        del columns[name]
    return (f"left out: {', '.join(names)}",) if names else ()


def _drop_guesses(columns: dict[str, list[Any]], guessers: Sequence[str]) -> tuple[str, ...]:
    """Remove the columns of guesses, which are no features, and return notes for the user."""
    guess_columns = [
        name
        for name in columns
        if any(name == guesser or name.startswith(f"{guesser}:") for guesser in guessers)
    ]
    for name in guess_columns:
        del columns[name]
    return (f"guesses, not features: {', '.join(guess_columns)}",) if guess_columns else ()


def _encode_target(
    path: Path,
    name: str,
    values: Sequence[Any],
    locate_row: Callable[[int], str],
    classes: Sequence[str],
) -> tuple[torch.Tensor, tuple[str, ...], tuple[str, ...]]:
    """Encode the target column as class numbers; empty entries are unlabelled.

    Args:
        path: the table, for messages.
        name: the target column.
        values: its entries.
        locate_row: returns the place of a row, for messages.
        classes: names that are certainly classes.

    Returns:
        Class numbers (n,), class names, and notes for the user.

    Raises:
        InputError: if an item has several classes, or the column holds numbers to predict.
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
        texts = [t and t[:-2] for t in texts]  # pandas writes 1 as 1.0 if entries are missing
    different = len({t for t in texts if t is not None})
    fractions = any(not number.is_integer() for number in numbers)
    if len(numbers) == len(known) and different > (20 if fractions else max(50, len(known) / 2)):
        raise InputError(
            f"{path}: the target column {name!r} has {different} different numbers in "
            f"{len(known)} rows; expected classes (for numbers to predict there is --task number)"
        )
    present = {t for t in texts if t is not None}
    refuse_combined_labels(present, classes, where)
    codes, names, _ = encode_labels(np.array(texts, dtype=object), sort_names(present))
    notes = [*reader.notes()]
    if not known:
        notes.append(f"the target column {name!r} is empty: no labels")
    elif len(known) < len(values):
        notes.append(count_noun(len(values) - len(known), "row has no label", "rows have no label"))
    if different == 1:
        notes.append(f"every label is {names[0]!r}: only one class")
    return codes, names, tuple(notes)


# --- Read the file formats


def read_table(path: Path) -> Table:
    """Read a table in the format that its file name indicates.

    `book.xlsx#NAME` is one sheet of a workbook.
    """
    return READERS.get(split_sheet(path)[0].suffix.lower(), read_csv)(path)


def read_csv(path: Path) -> Table:
    """Read a text table with a header; every row must have as many fields as the header."""
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
    """Return whether a column holds numbers with decimal commas (1,5), as in much of Europe."""
    with_comma = [v for v in values if re.fullmatch(r"[+-]?\d+,\d+([eE][+-]?\d+)?", v)]
    others = [v for v in values if "," not in v]
    numbers = all(_is_number(v) or v.casefold() in MISSING_VALUES for v in others)
    return bool(with_comma) and len(with_comma) + len(others) == len(values) and numbers


def read_parquet(path: Path) -> Table:
    """Read a Parquet file; it is refused in advance if it does not fit into memory."""
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
        raise InputError(
            f"{path} contains values that Python cannot represent ({error})"
        ) from error
    return Table(
        columns,
        range(1, read.num_rows + 1),
        unit="row",
        originals=originals,
        class_names=read_class_names(read.schema.metadata or {}),
    )


def _parse_list_column(column: Any, arrow: Any) -> Array | None:
    """Return a column of lists of d numbers as (n, d), without a Python object for every number.

    Returns None for other columns.
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
    """Read a file with one JSON object per line; missing keys are missing entries."""
    read = read_json_lines(path)
    for number, row in read:
        if not isinstance(row, dict):
            raise InputError(
                f"{path}, line {number}: a {type(row).__name__}; expected one JSON object per line"
            )
    if not read:
        raise InputError(f"{path} is empty; expected one JSON object per line")
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
    """Read a sheet of a workbook; its first row that is not empty is the header."""
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
    """Return the column names; unnamed columns get their number.

    Raises:
        InputError: if a name occurs twice, or all names are numbers.
    """
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
    """Return the first names and the number of the others."""
    every = list(names)
    return ", ".join(every[:MAX_LISTED_COLUMNS]) + (
        f" and {len(every) - MAX_LISTED_COLUMNS} more" if len(every) > MAX_LISTED_COLUMNS else ""
    )


def _is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- Columns to features


def encode_columns(
    columns: dict[str, list[Any]],
    pool: Array,
    locate_row: Callable[[int], str],
    where: str,
    *,
    required: bool = True,
) -> TableFeatures:
    """Fit every usable column on the pool and encode it as numbers.

    Args:
        columns: the entries by column name.
        pool: (n,) bool; all statistics come from these rows.
        locate_row: returns the place of a row, for messages.
        where: the table, for messages.
        required: whether to raise if there is no usable column.

    Raises:
        InputError: if no column can be used, or a number is infinite.
    """
    read = {name: [parse_entry(value) for value in values] for name, values in columns.items()}
    parsed = {name: parse_date_column(entries) for name, entries in read.items()}
    dates = {name: column for name, column in parsed.items() if column is not None}
    others = {name: entries for name, entries in read.items() if name not in dates}
    texts = _find_running_texts(others) or _find_short_texts(others)
    rest = {name: entries for name, entries in read.items() if name not in texts}
    fitted, notes = _fit_columns(rest, dates, pool, locate_row, where)
    blocks = [column.apply(rest[column.name], locate_row, where) for column in fitted]
    if not blocks and not texts:  # use short texts if there is nothing else
        texts = _find_running_texts(others, MIN_SHORT_TEXT_LENGTH)
        notes = [] if texts else notes
    if not blocks and not texts and required:
        why = "; ".join(notes) or "it has no other column"
        raise InputError(
            f"{where} has no column to learn from ({why}); expected at least one that varies, "
            "of numbers or of categories, or one of text"
        )
    matrix = np.concatenate([np.zeros((len(pool), 0)), *blocks], axis=1).astype(np.float32)
    missing = {name: sum(entry is None for entry in read[name]) for name in texts}
    summary = _describe_features(fitted, matrix.shape[1], missing)
    return TableFeatures(matrix, (*summary, *notes), texts, tuple(fitted))


def _describe_features(
    fitted: Sequence[NumericColumn | CategoricalColumn], size: int, missing: dict[str, int]
) -> list[str]:
    """Return notes about the features, for the user.

    Args:
        fitted: the fitted columns.
        size: the number of features of a row.
        missing: the number of missing entries of each text column.
    """
    notes = []
    if fitted:
        names = _list_first([column.name for column in fitted])
        notes.append(
            f"{_describe_kinds(fitted)} became {size} numbers a row: {names} "
            "(--set data.without=NAME leaves one out)"
        )
    for name, count in missing.items():
        gaps = f", {count} missing (nothing, or a word such as N/A): read as empty"
        notes.append(f"{name}: text{gaps if count else ''}")
    return notes


def _find_running_texts(
    read: dict[str, list[Any]], length: int = MIN_TEXT_LENGTH
) -> dict[str, list[str]]:
    """Return columns of running text, whose entries have more than `length` characters."""
    return {
        name: _fill_missing_texts(entries)
        for name, entries in read.items()
        if is_running_text(entries, length)
    }


def _fit_columns(
    read: dict[str, list[Any]],
    dates: dict[str, ParsedDates],
    pool: Array,
    locate_row: Callable[[int], str],
    where: str,
) -> tuple[list[NumericColumn | CategoricalColumn], list[str]]:
    """Fit the columns on the rows of the pool, and return them with notes about all columns."""
    fitted: list[NumericColumn | CategoricalColumn] = []
    notes: list[str] = []
    dropped: dict[str, list[str]] = {}
    for name, entries in read.items():
        reason = None if name in dates else _reason_to_drop(name, entries)
        column: NumericColumn | CategoricalColumn | None = None
        if name in dates:
            column = DateColumn.fit_dates(name, dates[name], pool, notes)
        elif reason is None:
            column = _fit_column(name, entries, pool, locate_row, where, notes)
        if column is None:
            dropped.setdefault(reason or "constant", []).append(name)
        else:
            fitted.append(column)
    notes += [f"dropped, {reason}: {', '.join(names)}" for reason, names in dropped.items()]
    return fitted, notes


def _fit_column(
    name: str,
    entries: list[Any],
    pool: Array,
    locate_row: Callable[[int], str],
    where: str,
    notes: list[str],
) -> NumericColumn | CategoricalColumn | None:
    """Fit a column of numbers or categories; None if it is constant in the pool."""
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
    """Return the number of columns of each kind, for a note."""
    counts = Counter(column.kind for column in fitted)
    dates = f", {counts['dates']} date" if counts["dates"] else ""
    return f"{counts['numbers']} numeric{dates} and {counts['levels']} categorical columns"


def _fill_missing_texts(entries: list[Any]) -> list[str]:
    """Return a text column with missing entries as empty texts."""
    return ["" if entry is None else entry for entry in entries]


def _find_short_texts(read: dict[str, list[Any]]) -> dict[str, list[str]]:
    """Return columns of short texts if the table has no other usable column.

    A column in which entries repeat often is a category.
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
    """Return why a column is dropped for any split, None if it is not."""
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
