"""Files with labels -> entries, each an item as the file calls it and what was said of it."""

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelahead.data.extras import need
from labelahead.data.text import read_text
from labelahead.errors import InputError
from labelahead.web.storable import unguarded

__all__ = ["Entry", "entries"]

ITEM = ("item", "path", "file", "filename", "file_name", "image", "text")
LABEL = ("label", "class", "target", "choice", "choices")
WHO = ("who", "annotator", "completed_by", "annotator_id", "user", "by")
EXPECTED = f"a column {'|'.join(ITEM)}|id|index and a column {'|'.join(LABEL)}"
FORMS = {
    ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "label-studio",
    ".parquet": "parquet",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One thing said of one item."""

    where: str  # in the file, for messages
    items: Sequence[Any]  # names that the item may go by, the likeliest first
    label: Any = None  # text; None without one; a list if several or of another kind
    who: Any = None
    predicted: bool = False
    position: bool = False  # the name is a position
    folder: bool = False  # item and label are file names of the form folders


def entries(path: Path, form: str | None = None) -> Iterator[Entry]:
    """All entries, in the order of the file."""
    if form is None:
        if path.is_dir():
            form = "hf" if next(_parquets(path), None) else "folders"
        else:
            form = FORMS.get(path.suffix.lower())
    if form in ("hf", "folders") and not path.is_dir():
        raise InputError(f"{path} is no folder; expected one of the form {form}")
    if form == "csv":
        return _csv(path)
    if form in ("jsonl", "label-studio", "json"):
        return _json(path, lines=form == "jsonl")
    if form == "parquet":
        return _parquet(path)
    if form == "hf":
        return (entry for part in sorted(_parquets(path)) for entry in _parquet(part))
    if form == "folders":
        return _folders(path)
    raise InputError(
        f"{path} is in no form that labels are read from ({form or 'by its name'}); expected "
        ".csv, .tsv, .jsonl, .json (Label Studio), .parquet, or a folder"
    )


def _parquets(path: Path) -> Iterator[Path]:
    return (p for where in (path, path / "data") for p in where.glob("*.parquet"))


def _csv(path: Path) -> Iterator[Entry]:
    text = read_text(path)
    first = text.split("\n", 1)[0]
    delimiter = "\t" if "\t" in first and "," not in first else ","
    if delimiter == "," and "," not in first and ";" in first:
        delimiter = ";"
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if not any(row):
                continue
            if header is None:
                header = [name.strip().casefold() for name in row]
                _check_columns(header, where)
                continue
            if len(row) != len(header):
                raise InputError(
                    f"{where}: {len(row)} fields; expected {len(header)} as in the header"
                )
            cells = dict(zip(header, map(unguarded, row), strict=True))
            yield from _row({k: v for k, v in cells.items() if v}, where)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}; expected CSV") from error
    if header is None:
        raise InputError(f"{path} is empty; expected {EXPECTED}, and at least a header")


def _check_columns(header: Sequence[str], where: str) -> None:
    if not {*ITEM, "id", "index"} & set(header) or not set(LABEL) & set(header):
        raise InputError(f"{where}: columns {', '.join(header)}; expected {EXPECTED}")
    twice = next((n for n in (*ITEM, *LABEL, *WHO) if header.count(n) > 1), None)
    if twice is not None:
        raise InputError(f"{where}: column {twice!r} is there twice; expected it once")


def _json(path: Path, *, lines: bool) -> Iterator[Entry]:
    """JSON lines, or a list; of plain rows or of Label Studio's tasks."""
    text = read_text(path)
    rows: list[tuple[str, Any]] = []
    try:
        if lines:
            for i, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    rows.append((f"{path}, line {i}", json.loads(line)))
        else:
            content = json.loads(text)
            if isinstance(content, dict) and all(isinstance(v, str) for v in content.values()):
                content = [{"item": item, "label": v} for item, v in content.items()]
            content = content if isinstance(content, list) else [content]
            rows = [(f"{path}, entry {i}", row) for i, row in enumerate(content, 1)]
    except (ValueError, RecursionError) as error:
        place = f"{path}, line {i}" if lines else f"{path}"
        raise InputError(f"{place} is no valid JSON ({error}); expected {EXPECTED}") from error
    for where, row in rows:
        if not isinstance(row, dict):
            raise InputError(f"{where} is {row!r:.80}; expected an object with item and label")
        if isinstance(row.get("task"), dict) and "result" in row:  # one annotation in a file
            row = {**row["task"], "annotations": [row]}
        if isinstance(row.get("data"), dict):
            yield from _task(row, where)
            continue
        folded = {str(key).casefold(): value for key, value in row.items()}
        if not isinstance(folded.get("answers"), list):
            yield from _row(folded, where)
            continue
        for answer in folded.pop("answers"):  # of every person, as `export` writes them
            said = answer if isinstance(answer, dict) else {}
            yield from _row(folded | {"label": said.get("label"), "who": said.get("who")}, where)


def _row(row: Mapping[str, Any], where: str) -> Iterator[Entry]:
    """A plain row; what is empty is left out or None."""
    names = [row[name] for name in ITEM if row.get(name) is not None]
    position = False
    if not names:  # an `id` beside another name is a number of the program that wrote it
        given = next((name for name in ("id", "index") if row.get(name) is not None), None)
        if given is None:
            raise InputError(f"{where} has {', '.join(row) or 'nothing'}; expected {EXPECTED}")
        names, position = [row[given]], given == "index"
    odd = next((n for n in names if isinstance(n, bool) or not isinstance(n, str | int)), None)
    if odd is not None:
        raise InputError(f"{where}: the item is {odd!r:.80}; expected a name")
    label = next((row[name] for name in LABEL if row.get(name) is not None), None)
    if label is None:  # Label Studio's short form calls the column as its user did
        label = next((v for v in row.values() if isinstance(v, dict) and "choices" in v), None)
    who = next((row[name] for name in WHO if row.get(name) is not None), None)
    predicted = str(row.get("source", "")).casefold() == "prediction"
    yield Entry(where, names, _label(label), who, predicted, position)


def _label(value: Any) -> str | list[Any] | None:
    """A label as text; None if empty, a list if it is not one."""
    if isinstance(value, str) and value.startswith('{"choices"'):  # Label Studio's CSV
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict):
        value = value.get("choices", [value])
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else (value or None)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value != value:  # an empty cell of a table of numbers
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    return str(value) if isinstance(value, str | int) else [value]


def _task(task: Mapping[str, Any], where: str) -> Iterator[Entry]:
    """A Label Studio task: what was annotated; predictions are counted."""
    data = task["data"]
    first = [data[name] for name in ITEM if isinstance(data.get(name), str)]
    names = first or [value for value in data.values() if isinstance(value, str)]
    annotations = task.get("annotations", task.get("completions")) or []
    if not isinstance(annotations, list):
        raise InputError(f"{where}: annotations are {annotations!r:.80}; expected a list")
    predictions = task.get("predictions") or []
    yield from (Entry(where, names, predicted=True) for _ in predictions)
    if not annotations and not predictions:
        yield Entry(where, names)
    for given in annotations:
        result = given.get("result") if isinstance(given, dict) else None
        if not isinstance(result, list) or not result or given.get("was_cancelled"):
            yield Entry(where, names)
            continue
        values = [part.get("value") for part in result if isinstance(part, dict)]
        chosen = [v for v in values if isinstance(v, dict) and "choices" in v]
        label = _label(chosen[0]) if len(chosen) == 1 else values
        yield Entry(where, names, label, given.get("who", given.get("completed_by")))


def _parquet(path: Path) -> Iterator[Entry]:
    parquet = need("pyarrow.parquet", "tables", "reading Parquet")
    try:
        schema = parquet.read_schema(path)
        wanted = (*ITEM, *LABEL, *WHO, "id", "index", "source")
        # Pictures and the like stay where they are.
        columns = [
            n
            for n in schema.names
            if n.casefold() in wanted and "struct" not in str(schema.field(n).type)
        ]
        _check_columns([n.casefold() for n in columns], str(path))
        rows = parquet.read_table(path, columns=columns).to_pylist()
    except InputError:
        raise
    except Exception as error:  # whatever a damaged file makes the reader say
        raise InputError(f"{path} cannot be read as Parquet ({error})") from error
    names = _class_names(schema.metadata or {})
    for i, row in enumerate(rows):
        where = f"{path}, row {i}"
        folded = {name.casefold(): value for name, value in row.items()}
        for column in LABEL:
            number = folded.get(column)
            if column in names and isinstance(number, int):
                known = 0 <= number < len(names[column])  # -1 is Hugging Face's "no label"
                folded[column] = names[column][number] if known else None
        yield from _row(folded, where)


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """The names behind numbers, by column, where Hugging Face's note says them."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {n.casefold(): f["names"] for n, f in features.items() if "names" in f}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _folders(path: Path) -> Iterator[Entry]:
    """CLASS/ITEM; the files are not read, their places are the labels."""
    for folder in sorted(
        p for p in path.iterdir() if p.is_dir() and not p.name.startswith((".", "__MACOSX"))
    ):
        for here, below, files in os.walk(folder):
            below.sort()
            for name in sorted(n for n in files if not n.startswith(".")):
                inside = Path(here, name).relative_to(folder).as_posix()
                yield Entry(str(folder / inside), [inside], folder.name, folder=True)
