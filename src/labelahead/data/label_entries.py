"""Parse label files of every supported format into entries: one for each label of an item.

Exports of labelahead have the columns `id`, `label`, `annotator`, `labelled_at` and `source`; other
columns in them are ignored. In other files the column `source` names the annotator if no other
does. Exports of version 0.2 had `item`, `who` and `at`, and row numbers as ids.
"""

import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from labelahead.data.excel import WORKBOOK_SUFFIXES, read_sheet, split_sheet
from labelahead.data.label_values import parse_label
from labelahead.data.parquet import (
    column_to_python,
    name_class_numbers,
    read_bounded,
    read_class_names,
)
from labelahead.data.records import format_id
from labelahead.data.text import read_json_lines, read_separated, read_text, unescape_formulas
from labelahead.errors import InputError, import_extra

__all__ = ["Entry", "is_address", "read_entries"]

log = logging.getLogger("labelahead")

MAX_LABEL_ROWS = 500_000  # rows of a Parquet label file
# Memory of a Parquet label file: a small file can decode to any size.
MAX_LABEL_BYTES = 2**29
# The id in tasks of Label Studio, whose own exports write the number of the task as `id`.
ITEM_ID_FIELD = "item_id"
ITEM_COLUMNS = (ITEM_ID_FIELD, "item", "path", "file", "filename", "file_name", "image", "text")
LABEL_COLUMNS = ("label", "class", "target", "choice", "choices")
ANNOTATOR_COLUMNS = ("who", "annotator", "completed_by", "annotator_id", "user", "by")
# In our exports: "prediction" if a model gave the label, else "label". Elsewhere who gave it.
SOURCE_COLUMN = "source"
EXPORT_SOURCES = ("label", "prediction")
# Of an annotation in our own tasks: classes of which a set of classes says nothing.
NOT_REVIEWED_FIELD = "not_reviewed"
STUDIO_VALUES = ("choices", "rating", "number")  # where Label Studio keeps a label
# Columns that identify our own exports.
EXPORT_COLUMNS = frozenset(("id", "label", "annotator", "labelled_at", SOURCE_COLUMN))
EXPORT_COLUMNS_0_2 = frozenset(("item", "label", "who", "at", SOURCE_COLUMN, "confidence"))
# Columns of Label Studio's short formats, in which `id` is the number of the task.
TASK_EXPORT_COLUMNS = frozenset(("annotation_id", "lead_time"))
EXPECTED_COLUMNS = (
    f"a column id|{'|'.join(ITEM_COLUMNS)}|index and a column {'|'.join(LABEL_COLUMNS)}"
)
FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "label-studio",
    ".parquet": "parquet",
    **dict.fromkeys(WORKBOOK_SUFFIXES, "excel"),
}


@dataclass(frozen=True)
class Entry:
    """One row of a label file: the label of one item.

    Attributes:
        where: the place in the file, for messages.
        names: names of the item, the most likely first.
        label: a text; None if there is no label; any other value is not a single label.
        annotator: who gave the label.
        is_prediction: whether a model predicted the label.
        is_resolution: whether it resolves a disagreement between annotators.
        is_position: whether the name is a position.
        from_class_folder: whether name and label are file names of the format `folders`.
        columns: the columns of a row without a label column.
        literal: whether the label was chosen from a list of classes, so that NA and None are names.
        id_value: the value of a column `id`, which identifies the item if ids come from a column.
        is_version_0_2: whether the name is a row number, as exported by labelahead 0.2.
        value: the label as it is in the file, for tasks whose label is not one class.
    """

    where: str
    names: Sequence[Any]
    label: Any = None
    annotator: Any = None
    is_prediction: bool = False
    is_resolution: bool = False
    is_position: bool = False
    from_class_folder: bool = False
    columns: Sequence[str] = ()
    literal: bool = False
    id_value: str | None = None
    is_version_0_2: bool = False
    value: Any = None


def is_address(name: str) -> bool:
    """Return whether a name is a URL or an absolute path."""
    return re.match("/|[A-Za-z]:/|[^/]*://", name.replace("\\", "/")) is not None


def read_entries(path: Path, form: str | None = None) -> Iterator[Entry]:
    """Return an iterator over all entries of a file or folder, in its order.

    Args:
        path: the label file or folder.
        form: the format; by default the file name determines it.

    Raises:
        InputError: if it is in no supported format.
    """
    if form is None:
        suffix = split_sheet(path)[0].suffix.lower()
        form = (
            ("hf" if _find_parquet_files(path) else "folders")
            if path.is_dir()
            else FORMATS.get(suffix)
        )
    if form in ("hf", "folders") and not path.is_dir():
        raise InputError(f"{path} is no folder; expected one of the form {form}")
    if form == "csv":
        return _read_csv(path)
    if form == "excel":
        return _read_excel(path)
    if form in ("jsonl", "label-studio", "json"):
        return _read_json(path, lines=form == "jsonl")
    if form == "parquet":
        return _read_parquet(path)
    if form == "hf":
        return (
            e
            for part in _find_parquet_files(path)
            for e in _read_parquet(part, f"{part.relative_to(path)}, ")
        )
    if form == "folders":
        return _read_class_folders(path)
    raise InputError(
        f"{path} is no label file: in no form that labels are read from "
        f"({form or 'by its name'}); expected "
        ".csv, .tsv, .jsonl, .json (Label Studio's too), .parquet, .xlsx, or a folder"
    )


def _read_csv(path: Path) -> Iterator[Entry]:
    """Yield one entry for each row of a CSV or TSV file."""
    header: list[str] = []
    parser = _RowParser(is_own_export=False, is_version_0_2=False)
    for line, row in read_separated(path)[1]:
        if not any(field.strip() for field in row):
            continue
        where = f"line {line}"
        if not header:
            header = [unescape_formulas(name).strip().casefold() for name in row]
            parser = _RowParser.for_columns(header)
            _check_columns(EXPORT_COLUMNS if parser.is_own_export else header, f"{path}, {where}")
            continue
        if len(row) != len(header):
            raise InputError(
                f"{path}, {where}: {len(row)} fields; expected {len(header)} as in the header"
            )
        fields = map(unescape_formulas, row) if SOURCE_COLUMN in header else row
        cells = {k: v for k, v in zip(header, fields, strict=True) if v}
        yield parser.parse(cells, path, where)
    if not header:
        raise InputError(
            f"{path} is empty, it holds no labels; expected {EXPECTED_COLUMNS}, and at least a "
            "header"
        )


def _read_excel(path: Path) -> Iterator[Entry]:
    """Yield one entry for each row of a sheet below its header."""
    sheet = read_sheet(path)
    for note in sheet.notes:
        log.warning("%s: %s", path, note)
    rows = sheet.rows
    if not rows:
        raise InputError(
            f"{path} is empty, it holds no labels; expected {EXPECTED_COLUMNS}, and at least a "
            "header"
        )
    header = [str(name or "").casefold() for name in rows[0][1]]
    parser = _RowParser.for_columns(header)
    _check_columns(EXPORT_COLUMNS if parser.is_own_export else header, f"{path}, row {rows[0][0]}")
    for number, row in rows[1:]:
        cells = {
            name: cell for name, cell in zip(header, row, strict=True) if name and cell is not None
        }
        if SOURCE_COLUMN in cells:  # our export, saved by a spreadsheet program
            cells = {
                name: unescape_formulas(cell) if isinstance(cell, str) else cell
                for name, cell in cells.items()
            }
        yield parser.parse(cells, path, f"row {number}")


def _check_columns(names: Collection[str], where: str) -> None:
    """Raise unless there are columns for the item and the label, each once."""
    header = list(names)
    if not {*ITEM_COLUMNS, "id", "index"} & set(header) or not set(LABEL_COLUMNS) & set(header):
        raise InputError(f"{where}: columns {', '.join(header)}; expected {EXPECTED_COLUMNS}")
    twice = next(
        (n for n in (*ITEM_COLUMNS, *LABEL_COLUMNS, *ANNOTATOR_COLUMNS) if header.count(n) > 1),
        None,
    )
    if twice is not None:
        raise InputError(f"{where}: column {twice!r} occurs twice; expected it once")


def _read_json(path: Path, *, lines: bool) -> Iterator[Entry]:
    """Yield the entries of JSON lines or a JSON list, of plain rows or Label Studio tasks."""
    for where, row in _read_json_lines(path) if lines else _read_json_list(path):
        if not isinstance(row, dict):
            raise InputError(
                f"{path}, {where}: {row!r:.80}; expected an object with item and label"
            )
        if _is_task(row):
            yield from _read_task(row, path, where)
            continue
        folded = {str(key).casefold(): value for key, value in row.items()}
        answers = folded.pop("answers", None)
        parser = _RowParser.for_columns(folded)
        if not isinstance(answers, list) or not answers:
            columns = () if any(name in folded for name in LABEL_COLUMNS) else tuple(folded)
            yield parser.parse(folded, path, where, columns=columns)
            continue
        for value in answers:  # `export` writes the labels of every annotator
            answer = value if isinstance(value, dict) else {}
            annotator = answer.get("annotator", answer.get("who"))
            row = folded | {"label": answer.get("label"), "who": annotator, "annotator": annotator}
            entry = parser.parse(row, path, where)
            yield replace(entry, is_resolution=answer.get("kind") == "settle")


def _read_json_lines(path: Path) -> list[tuple[str, Any]]:
    """Return (place, value) of each line."""
    return [(f"line {i}", value) for i, value in read_json_lines(path)]


def _read_json_list(path: Path) -> list[tuple[str, Any]]:
    """Return (place, value) of each entry of a JSON file."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} is no valid JSON ({error}); expected {EXPECTED_COLUMNS}"
        ) from error
    if isinstance(content, dict):
        folded = {str(key).casefold() for key in content}
        alone = _is_task(content) or (folded & set(ITEM_COLUMNS) and folded & set(LABEL_COLUMNS))
        content = (
            [content]
            if alone
            else [{"item": item, "label": label} for item, label in content.items()]
        )
    if not isinstance(content, list):
        raise InputError(
            f"{path} holds a JSON {type(content).__name__}; expected a list of objects "
            'such as {"item": "a.jpg", "label": "cat"}'
        )
    return [(f"entry {i}", row) for i, row in enumerate(content, 1)]


def _is_task(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a task of Label Studio, or an annotation that contains its task."""
    return isinstance(row.get("data"), dict) or (
        isinstance(row.get("task"), dict) and "result" in row
    )


def _read_task(task: Mapping[str, Any], path: Path, where: str) -> Iterator[Entry]:
    """Yield the annotations and predictions of a Label Studio task."""
    if isinstance(task.get("task"), dict) and "result" in task:
        task = {**task["task"], "annotations": [task]}
    data = task.get("data")
    data = data if isinstance(data, dict) else {}
    likely = [data[name] for name in ITEM_COLUMNS if isinstance(data.get(name), str)]
    names = likely or [value for value in data.values() if isinstance(value, str)]
    id_value = format_id(data.get(ITEM_ID_FIELD, data.get("id"))) or None
    item = partial(Entry, where, names, id_value=id_value, is_version_0_2=set(data) == {"item"})
    annotations = task.get("annotations", task.get("completions")) or []
    if not isinstance(annotations, list):
        raise InputError(f"{path}, {where}: annotations are {annotations!r:.80}; expected a list")
    predictions = task.get("predictions") or []
    if not isinstance(predictions, list):
        raise InputError(f"{path}, {where}: predictions are {predictions!r:.80}; expected a list")
    yield from (item(is_prediction=True) for _ in predictions)
    if not annotations and not predictions:
        yield item()
    for given in annotations:
        result = given.get("result") if isinstance(given, dict) else None
        if not isinstance(result, list) or not result or given.get("was_cancelled"):
            yield item()
            continue
        values = [part.get("value") for part in result if isinstance(part, dict)]
        chosen = [v for v in values if isinstance(v, dict) and "choices" in v]
        label = _parse_label(chosen[0]) if len(chosen) == 1 else tuple(values)
        annotator = next(
            (
                given[key]
                for key in ("annotator", "who", "completed_by")
                if given.get(key) is not None
            ),
            None,
        )
        value = _unpack_value(values[0]) if len(values) == 1 else tuple(values)
        hidden = given.get(NOT_REVIEWED_FIELD)
        if isinstance(value, list) and isinstance(hidden, list):
            value = [*value, *(f"?{name}" for name in hidden)]
        yield item(label=label, annotator=annotator, literal=True, value=value)


def _read_parquet(path: Path, inside: str = "") -> Iterator[Entry]:
    """Yield one entry for each row of a Parquet file."""
    parquet = import_extra("pyarrow.parquet", "tables", "reading Parquet")
    try:
        schema = parquet.read_schema(path)
        wanted = {
            *ITEM_COLUMNS,
            *LABEL_COLUMNS,
            *ANNOTATOR_COLUMNS,
            "id",
            "index",
            *EXPORT_COLUMNS,
            *EXPORT_COLUMNS_0_2,
            *TASK_EXPORT_COLUMNS,
        }
        # Images and other structs are not read.
        columns = [
            n
            for n in schema.names
            if n.casefold() in wanted and "struct" not in str(schema.field(n).type)
        ]
        header = {n.casefold() for n in columns}
        parser = _RowParser(
            is_own_export=header >= EXPORT_COLUMNS,
            is_version_0_2={n.casefold() for n in schema.names} == EXPORT_COLUMNS_0_2,
        )
        _check_columns(
            EXPORT_COLUMNS if parser.is_own_export else [n.casefold() for n in columns], str(path)
        )
        count = parquet.read_metadata(path).num_rows
        # Equal rows take almost no space in the file, but minutes to read.
        if count > MAX_LABEL_ROWS:
            raise InputError(
                f"{path} has {count:,} rows; expected at most {MAX_LABEL_ROWS:,}: split it"
            )
        read = read_bounded(path, columns, MAX_LABEL_BYTES, count_repeats=True)
        values = {name.casefold(): column_to_python(read.column(name)) for name in columns}
    except InputError:
        raise
    except Exception as error:  # the reader raises almost any error on a damaged file
        raise InputError(f"{path} cannot be read as Parquet ({error})") from error
    names = {
        column.casefold(): names
        for column, names in read_class_names(schema.metadata or {}).items()
    }
    for i in range(read.num_rows):
        folded = {name: column[i] for name, column in values.items()}
        for column in LABEL_COLUMNS:
            number = folded.get(column)
            if column in names:
                folded[column] = name_class_numbers(number, names[column])
        entry = parser.parse(folded, path, f"{inside}row {i}")
        yield replace(entry, literal=entry.literal or bool(names))


def _find_parquet_files(path: Path) -> list[Path]:
    """Return the Parquet files of a Hugging Face data set on the disk."""
    return sorted(p for folder in (path, path / "data") for p in folder.glob("*.parquet"))


def _read_class_folders(path: Path) -> Iterator[Entry]:
    """Yield one entry for each file CLASS/ITEM; the files themselves are not read."""
    folders = sorted(
        p for p in path.iterdir() if p.is_dir() and not p.name.startswith((".", "__MACOSX"))
    )
    if not folders and not (path / "predictions.csv").exists():
        raise InputError(
            f"{path} cannot be read: it is a folder without a folder for each class, or Parquet "
            "files"
        )
    for folder in folders:
        for here, below, files in os.walk(folder):
            below.sort()
            for name in sorted(n for n in files if not n.startswith(".")):
                inside = Path(here, name).relative_to(folder).as_posix()
                yield Entry(
                    f"{folder.name}/{inside}",
                    [inside],
                    folder.name,
                    from_class_folder=True,
                    literal=True,
                )


@dataclass(frozen=True)
class _RowParser:
    """Parses the rows of a file, depending on its columns."""

    is_own_export: bool
    is_version_0_2: bool

    @classmethod
    def for_columns(cls, names: Collection[str]) -> "_RowParser":
        """Choose how to parse rows with these columns."""
        columns = set(names)
        return cls(columns >= EXPORT_COLUMNS, columns == EXPORT_COLUMNS_0_2)

    def parse(
        self, row: Mapping[str, Any], path: Path, where: str, *, columns: Sequence[str] = ()
    ) -> Entry:
        """Parse a row; columns: its columns if none of them is a label column."""
        if self.is_own_export:
            return _parse_export_row(row, path, where)
        return _parse_row(row, path, where, self.is_version_0_2, columns=columns)


def _parse_export_row(row: Mapping[str, Any], path: Path, where: str) -> Entry:
    """Parse a row of our own export; the user's columns in it are ignored."""
    id_value, label = format_id(row.get("id")), _parse_label(row.get("label"))
    if not id_value and label is not None:
        raise InputError(f"{path}, {where}: no id; expected one in every row of an export")
    is_prediction = str(row.get(SOURCE_COLUMN) or "").casefold() == "prediction"
    # The text is not stripped, since a file name may begin or end with a blank.
    text = row["id"] if isinstance(row.get("id"), str) else id_value
    return Entry(
        where,
        [text],
        label,
        row.get("annotator"),
        is_prediction,
        id_value=text,
        literal=True,
        value=row.get("label"),
    )


def _parse_row(
    row: Mapping[str, Any],
    path: Path,
    where: str,
    is_version_0_2: bool = False,
    *,
    columns: Sequence[str] = (),
) -> Entry:
    """Parse a row of any other file; empty values are missing or None."""
    label = next((row[name] for name in LABEL_COLUMNS if row.get(name) is not None), None)
    if label is None:  # in Label Studio's short format the user chooses the column name
        label = next((v for v in row.values() if isinstance(v, dict) and "choices" in v), None)
        columns = columns if label is None else ()
    value, label = _unpack_value(label), _parse_label(label)
    names = [row[name] for name in ITEM_COLUMNS if row.get(name) is not None]
    # A numeric id beside another name was assigned by the program that wrote the file.
    row_id = format_id(row.get("id")) or None
    if row_id is not None and (not names or not row_id.isdecimal()):
        names.append(row_id)
    is_position = not names and row.get("index") is not None
    names = [row["index"]] if is_position else names
    odd = next((n for n in names if isinstance(n, bool) or not isinstance(n, str | int)), None)
    if odd is not None:
        raise InputError(f"{path}, {where}: the item is {odd!r:.80}; expected a name")
    if not names and label is not None:
        raise InputError(
            f"{path}, {where}: no item, only {', '.join(row) or 'nothing'}; expected "
            f"{EXPECTED_COLUMNS}"
        )
    source = format_id(row.get(SOURCE_COLUMN))
    is_export_source = not source or source.casefold() in EXPORT_SOURCES
    # Where an item comes from is not who labelled it.
    is_person = not is_export_source and not is_address(source)
    annotator = next(
        (row[name] for name in ANNOTATOR_COLUMNS if row.get(name) not in (None, "")),
        source if is_person else None,
    )
    is_prediction = source.casefold() == "prediction"
    default_id = None if row.keys() >= TASK_EXPORT_COLUMNS else row_id
    return Entry(
        where,
        names,
        label,
        annotator,
        is_prediction,
        is_position=is_position,
        columns=columns,
        literal=SOURCE_COLUMN in row and not is_person,
        id_value=format_id(row.get(ITEM_ID_FIELD, default_id)) or None,
        is_version_0_2=is_version_0_2,
        value=value,
    )


def _unpack_value(value: Any) -> Any:
    """Return a label of Label Studio as a list of choices or a number; other values unchanged."""
    if isinstance(value, str) and value.startswith('{"choices"'):  # Label Studio's CSV
        with suppress(ValueError):
            value = json.loads(value)
    if not isinstance(value, dict):
        return value
    return next((value[key] for key in STUDIO_VALUES if key in value), value)


def _parse_label(value: Any) -> Any:
    """Return a label as text, None if it is empty; a value that is no single label is unchanged."""
    if isinstance(value, str) and value.startswith('{"choices"'):  # Label Studio's CSV
        with suppress(ValueError):
            value = json.loads(value)
    return parse_label(
        value["choices"] if isinstance(value, dict) and "choices" in value else value
    )
