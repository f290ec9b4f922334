"""Guesses: what a language model, an old classifier or a heuristic says about the items.

A guess is a class or a probability for every class. It may be missing. Guesses never become
features: the exact learner takes them as prior knowledge (`labelahead.inference.trust`).
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data.columns import GuessColumn, parse_entry
from labelahead.data.dataset import Data, Guesses
from labelahead.data.label_values import normalise_name
from labelahead.data.records import AUTO_ID, choose_id_column, format_id, to_python_list
from labelahead.data.split import expand_path
from labelahead.data.table import Table, read_table
from labelahead.data.table_writer import probability_column_name
from labelahead.data.text import unescape_formulas
from labelahead.errors import InputError, count_noun, did_you_mean, import_extra

__all__ = [
    "CLASS_GUESS_PROBABILITY",
    "NO_FORMER_CLASSES",
    "FormerClasses",
    "attach_guesses",
    "encode_class_guesses",
    "find_guesses",
    "is_guess_column",
    "is_guess_file",
    "is_guess_function",
    "is_guess_model",
    "is_language_model",
    "parse_guesses",
    "read_guess_column",
    "read_guesses_by_id",
    "resolve_guess_source",
    "stack_deviations",
    "update_guesses",
]

# A guess that is only a class counts as this probability of it. Trust is learnt from the labels, so
# that the value matters little.
CLASS_GUESS_PROBABILITY = 0.9
GUESS_SUFFIXES = (".csv", ".tsv", ".parquet", ".pq", ".jsonl", ".ndjson", ".xlsx", ".npy")
GUESS_COLUMNS = ("guess", "prediction", "predicted", "label", "class")
MAX_NAMES_SHOWN = 5
BLOCK_ROWS = 8192  # of a file that is read in parts
MODEL_PREFIX = "model:"
LANGUAGE_MODEL_PREFIX = "llm:"
SUM_TOLERANCE = 0.02  # probabilities may be rounded
# Normalised former names of classes -> present name; None: removed.
FormerClasses = Mapping[str, str | None]
NO_FORMER_CLASSES: FormerClasses = MappingProxyType({})


def is_guess_file(name: str) -> bool:
    """Return whether a source of guesses is a file of them."""
    return not is_language_model(name) and PurePosixPath(name).suffix.lower() in GUESS_SUFFIXES


def is_guess_model(name: str) -> bool:
    """Return whether a source of guesses is an exported model, as model:FOLDER."""
    return name.startswith(MODEL_PREFIX)


def is_guess_function(name: str) -> bool:
    """Return whether a source of guesses is the user's own code, as file.py:function."""
    return name.rpartition(":")[0].endswith(".py") and not is_guess_model(name)


def is_language_model(name: str) -> bool:
    """Return whether a source of guesses is the address of a language model, as llm:URL."""
    return name.startswith(LANGUAGE_MODEL_PREFIX)


def is_guess_column(name: str) -> bool:
    """Return whether a source of guesses is a column of the data."""
    others = (is_guess_model, is_guess_file, is_guess_function, is_language_model)
    return not any(is_other(name) for is_other in others)


def resolve_guess_source(name: str) -> str:
    """Return a source of guesses with an absolute path; the name of a column stays as it is."""
    if is_language_model(name):
        return name
    if is_guess_function(name):
        file, _, function = name.rpartition(":")
        return f"{expand_path(file).resolve()}:{function}"
    if is_guess_model(name):
        return f"{MODEL_PREFIX}{expand_path(name.removeprefix(MODEL_PREFIX)).resolve()}"
    return str(expand_path(name).resolve()) if is_guess_file(name) else name


def _number_names(classes: Sequence[str], former: FormerClasses) -> dict[str, int | None]:
    """Return the number of the class of every normalised name; None: the class was removed."""
    number: dict[str, int | None] = {normalise_name(name): i for i, name in enumerate(classes)}
    for name, present in former.items():
        number.setdefault(name, None if present is None else number.get(normalise_name(present)))
    return number


def encode_class_guesses(
    names: Sequence[Any],
    classes: Sequence[str],
    where: str,
    former: FormerClasses = NO_FORMER_CLASSES,
) -> Tensor:
    """Convert class names (n) to probabilities (n, C).

    Args:
        names: A class name or number per item; missing entries are empty or None.
        classes: The class names.
        where: The source, for messages.
        former: Former names of classes. A guess of a removed class is missing.

    Returns:
        (n, C) float32; a missing guess is a row of zeros.

    Raises:
        InputError: A name is no class.
    """
    number = _number_names(classes, former)
    at = []
    unknown: dict[str, None] = {}
    for name in names:
        entry = parse_entry(name)
        text = "" if entry is None else normalise_name(_class_text(entry))
        if text and text not in number:
            unknown[_class_text(entry)] = None
        found = number.get(text)
        at.append(-1 if found is None else found)
    if unknown:
        some = ", ".join(list(unknown)[:MAX_NAMES_SHOWN])
        raise InputError(
            f"{where} guesses {count_noun(len(unknown), 'class')} that the project does not have ({some}); "
            f"expected some of {', '.join(list(classes)[:20])}, or an empty field"
        )
    rest = (1 - CLASS_GUESS_PROBABILITY) / max(len(classes) - 1, 1)
    out = torch.zeros(len(at), len(classes))
    known = torch.tensor(at, dtype=torch.int64)
    has = known >= 0
    out[has] = rest
    out[has.nonzero().squeeze(1), known[has]] = CLASS_GUESS_PROBABILITY
    return out


def _class_text(entry: Any) -> str:
    """Return an entry as a class name; 3.0 is the class 3."""
    return format_id(int(entry) if isinstance(entry, float) and entry.is_integer() else entry)


def parse_guesses(
    values: Any,
    n: int,
    classes: Sequence[str],
    where: str = "guesses",
    former: FormerClasses = NO_FORMER_CLASSES,
) -> Tensor:
    """Check guesses given in Python or in a file and return probabilities (n, C).

    Args:
        values: (n, C) probabilities, or n class names or numbers. A row of zeros or NaN, None and
            -1 mean that there is no guess.
        n: Number of items.
        classes: The class names.
        where: The source, for messages.
        former: Former names of classes.

    Raises:
        InputError: The number of items or classes differs, or a row is no distribution.
    """
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    if not isinstance(array, np.ndarray):
        array = list(array)
        is_row = bool(array) and isinstance(array[0], list | tuple | np.ndarray | Tensor)
        array = np.asarray(array, dtype=np.float64 if is_row else object)
    if len(array) != n:
        raise InputError(
            f"{where} has {count_noun(len(array), 'guess')}; expected one for each of {count_noun(n, 'item')}"
        )
    if array.ndim == 1:
        names = [
            classes[int(v)]
            if isinstance(v, int | np.integer) and not isinstance(v, bool) and 0 <= v < len(classes)
            else None
            if isinstance(v, int | np.integer) and v == -1
            else v
            for v in array.tolist()
        ]
        return encode_class_guesses(names, classes, where, former)
    if array.ndim != 2 or array.shape[1] != len(classes):
        raise InputError(
            f"{where} has shape {array.shape}; expected ({n},) classes or ({n}, {len(classes)}) "
            "probabilities, a column per class"
        )
    return _check_probabilities(torch.from_numpy(np.array(array, dtype=np.float64)), where)


def _check_probabilities(p: Tensor, where: str) -> Tensor:
    """Return probabilities (n, C) float32; rows without a guess become zeros."""
    none = torch.isnan(p).all(1) | (p == 0).all(1)
    p = p.masked_fill(none[:, None], 0.0)
    wrong = ~torch.isfinite(p).all(1) | (p < 0).any(1)
    wrong |= ~none & ((p.sum(1) - 1).abs() > SUM_TOLERANCE)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        hint = ""
        if abs(float(p[row].nan_to_num().sum()) - 100) < 1:
            hint = ": these are per cent, so divide them by 100"
        raise InputError(
            f"{where}: the probabilities of item {row} are {_shorten(p[row].tolist())}; expected "
            f"numbers from 0 to 1 that sum to 1, or none at all{hint}"
        )
    return (p / p.sum(1, keepdim=True).clamp_min(1e-30)).float()


def _shorten(values: list[float]) -> str:
    more = ", ..." if len(values) > MAX_NAMES_SHOWN else ""
    return ", ".join(f"{v:g}" for v in values[:MAX_NAMES_SHOWN]) + more


def stack_deviations(
    guesses: Sequence[Guesses], classes: Sequence[str], former: FormerClasses = NO_FORMER_CLASSES
) -> Tensor:
    """Return g − 1/C of all guessers side by side, (n, G·C) float32; 0 where there is no guess.

    Args:
        guesses: Of each guesser, about its own classes.
        classes: The classes of the columns. A class that a guesser does not know gets 0.
        former: Former names of classes, which guessers may know; the probabilities of merged
            classes are added.
    """
    number = _number_names(classes, former)
    parts = []
    for guess in guesses:
        pairs = [(i, number.get(normalise_name(name))) for i, name in enumerate(guess.classes)]
        shared = [(i, to) for i, to in pairs if to is not None]
        columns = sorted({to for _, to in shared})
        p = guess.probabilities[:, [i for i, _ in shared]].double()
        at = torch.tensor([columns.index(to) for _, to in shared], dtype=torch.int64)
        p = p.new_zeros(len(p), len(columns)).index_add_(1, at, p)
        total = p.sum(1, keepdim=True)
        moved = torch.where(total > 0, p / total.clamp_min(1e-30) - 1 / max(len(columns), 1), 0.0)
        block = torch.zeros(len(p), len(classes), dtype=torch.float64)
        block[:, columns] = moved
        parts.append(block)
    return torch.cat(parts, 1).float()


def update_guesses(guess: Guesses, classes: Sequence[str], former: FormerClasses) -> Guesses:
    """Return the guesses of a column or file as they are read with these classes.

    Args:
        guess: As they were read with earlier classes.
        classes: The present classes.
        former: Former names of classes.
    """
    p, classes = guess.probabilities, tuple(classes)
    if guess.classes == classes:
        return guess
    if _are_class_guesses(p):
        best, has = p.argmax(1).tolist(), p.any(1).tolist()
        names = [guess.classes[b] if given else None for b, given in zip(best, has, strict=True)]
        return Guesses(classes, encode_class_guesses(names, classes, "the column", former))
    number = _number_names(classes, former)
    out = torch.zeros(len(p), len(classes))
    for column, name in zip(p.T, guess.classes, strict=True):
        to = number.get(normalise_name(name))
        if to is not None:
            out[:, to] += column
    return Guesses(classes, out / out.sum(1, keepdim=True).clamp_min(1e-30))


def _are_class_guesses(p: Tensor) -> bool:
    """Return whether probabilities (n, C) are classes, as `encode_class_guesses` encodes them."""
    given = p[p.any(1)]
    rest = (1 - CLASS_GUESS_PROBABILITY) / max(p.shape[1] - 1, 1)
    encoded = torch.full_like(given, rest)
    encoded.scatter_(1, given.argmax(1, keepdim=True), CLASS_GUESS_PROBABILITY)
    return torch.equal(given, encoded)


# --- Columns and files


def attach_guesses(data: Data, sources: Sequence[str], classes: Sequence[str]) -> Data:
    """Return the data with the guesses of columns and files.

    Args:
        data: The data set.
        sources: Names of columns, or files.
        classes: The class names.

    Raises:
        InputError: A column or file does not exist, or does not fit the items and classes.
    """
    if not sources:
        return data
    if len(classes) < 2:
        raise InputError(
            f"guesses is {', '.join(sources)}, but the classes are not known yet; expected their "
            "names by --classes, two or more"
        )
    made: dict[str, Guesses] = {}
    notes = []
    for name in sources:
        probabilities, foreign = _read_source(name, data, classes)
        made[name] = Guesses(tuple(classes), probabilities)
        short, count = PurePosixPath(name).name, int(probabilities.any(1).sum())
        if count < len(data):
            notes.append(f"{short}: guesses for {count} of {count_noun(len(data), 'item')}")
        if foreign:
            some = ", ".join(foreign[:MAX_NAMES_SHOWN])
            more = ", ..." if len(foreign) > MAX_NAMES_SHOWN else ""
            many = count_noun(len(foreign), "id matches", "ids match")
            notes.append(f"{short}: {many} no item ({some}{more}): ignored")
    return replace(data, guesses={**data.guesses, **made}, notes=(*data.notes, *notes))


def _read_source(name: str, data: Data, classes: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Return the guesses (n, C) of a column or a file, and ids of the file that match no item."""
    if is_guess_file(name):
        path = expand_path(name)
        if not path.is_file():
            raise InputError(f"{path} does not exist; expected a file of guesses")
        if path.suffix.lower() == ".npy":
            values = np.load(path, allow_pickle=False)
            return parse_guesses(values, len(data), classes, str(path), data.former_classes), []
        return _read_table_guesses(path, data, classes)
    columns = {} if data.records is None else data.records.columns
    table = {str(column): to_python_list(values) for column, values in columns.items()}
    found = _find_guesses(table, GuessColumn(name, tuple(classes), data.former_classes), data.name)
    if found is None:
        raise InputError(
            f"guesses names the column {name!r}, but {data.name} has none of that name; "
            f"{did_you_mean(name, table)}expected one of its columns, or a file of guesses "
            f"({', '.join(GUESS_SUFFIXES)})"
        )
    return found, []


def _find_guesses(
    columns: Mapping[str, Sequence[Any]], column: GuessColumn, where: str
) -> Tensor | None:
    """Return the guesses of the column `name`, or of the columns `name:CLASS`; None without any."""
    name, number = column.name, _number_names(column.classes, column.former)
    given = {c: columns[f"{name}:{c}"] for c in column.classes if f"{name}:{c}" in columns}
    for key, values in columns.items():
        suffix = key.removeprefix(f"{name}:")
        if suffix != key and normalise_name(suffix) in column.former:
            given[suffix] = values
    if given:
        return _read_probabilities(given, number, column, where)
    if name not in columns:
        return None
    found = f"{where}: column {name!r}"
    return encode_class_guesses(columns[name], column.classes, found, column.former)


def _read_probabilities(
    given: Mapping[str, Sequence[Any]],
    number: Mapping[str, int | None],
    column: GuessColumn,
    where: str,
) -> Tensor:
    """Return (n, C) of the columns NAME:CLASS; a class without a column is one the guesser lacks.

    Args:
        given: Class as it is in the table -> values.
        number: Number of the class of every normalised name; None: it was removed.
        column: The columns.
        where: The source, for messages.
    """
    name, classes = column.name, column.classes
    rows = [[_parse_probability(v) for v in values] for values in given.values()]
    present = {number[normalise_name(c)] for c in given}
    missing_class = next((c for i, c in enumerate(classes) if i not in present), None)
    try:
        p = _check_probabilities(torch.tensor(rows, dtype=torch.float64).T, f"{where}: {name}")
    except InputError as error:
        if missing_class is None:
            raise
        raise InputError(
            f"{error}. There are the columns {name}:{next(iter(given))} and others, but not "
            f"{name}:{missing_class}"
        ) from error
    out = torch.zeros(len(p), len(classes))
    for values, c in zip(p.T, given, strict=True):
        to = number[normalise_name(c)]
        if to is not None:
            out[:, to] += values
    return out / out.sum(1, keepdim=True).clamp_min(1e-30) if column.former else out


def find_guesses(
    columns: Mapping[str, Sequence[Any]],
    name: str,
    classes: Sequence[str],
    where: str,
    former: FormerClasses = NO_FORMER_CLASSES,
) -> Tensor | None:
    """Return the probabilities (n, C) in the column `name`, or in the columns `name:CLASS`.

    Args:
        columns: Columns of a table.
        name: Name of the column.
        classes: The class names.
        where: The table, for messages.
        former: Former names of classes.

    Returns:
        Zeros where there is no guess; None without any such column.
    """
    return _find_guesses(columns, GuessColumn(name, tuple(classes), former), where)


def read_guesses_by_id(
    path: str | Path,
    ids: Sequence[str],
    classes: Sequence[str],
    former: FormerClasses = NO_FORMER_CLASSES,
) -> Tensor:
    """Read the guesses (q, C) about some items from a file of any size, a row at a time.

    Args:
        path: A .csv or .tsv file with `id` and `guess` (or `probability:CLASS`), a Parquet file, or a
            folder of these, as `pool predict --probabilities` writes it.
        ids: Names of the items; those that the file does not have get no guess.
        classes: The class names.
        former: Former names of classes.

    Raises:
        InputError: The file has no such columns, or names an item twice.
    """
    file = expand_path(str(path))
    files = sorted(file.glob("*.parquet")) if file.is_dir() else [file]
    if not files or not files[0].is_file():
        raise InputError(f"{file} does not exist; expected a file of guesses, or a folder of them")
    wanted = {name: i for i, name in enumerate(ids)}
    found, out = set[str](), torch.zeros(len(ids), len(classes))
    for one in files:
        rows: dict[str, list[Any]] = {}
        here: list[str] = []
        for names, block in _iterate_blocks(one):
            id_column = choose_id_column(str(one), names, AUTO_ID)
            if id_column is None:
                raise InputError(
                    f"{one} has no column `id` ({', '.join(names[:8])}); expected one, by which items "
                    "are found"
                )
            for name in names:
                rows.setdefault(name, [])
            keys = [format_id(value) for value in block[id_column]]
            at = [i for i, key in enumerate(keys) if key in wanted]
            here += [keys[i] for i in at]
            for name in names:
                rows[name] += [block[name][i] for i in at]
        twice = next((k for i, k in enumerate(here) if k in found or k in here[:i]), None)
        if twice is not None:
            raise InputError(f"{file} names the item {twice!r} twice; expected each at most once")
        found.update(here)
        p = _find_guesses(rows, _usual_column(rows, classes, one, former), str(one))
        assert p is not None
        if here:
            out[[wanted[key] for key in here]] = p
    return out


def _iterate_blocks(path: Path) -> Iterator[tuple[list[str], Mapping[str, Sequence[Any]]]]:
    """Yield the columns of a table, some rows at a time, and their names."""
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        parquet = import_extra("pyarrow.parquet", "tables", "reading Parquet")
        for batch in parquet.ParquetFile(path).iter_batches(BLOCK_ROWS):
            yield batch.schema.names, batch.to_pydict()
    elif suffix in (".csv", ".tsv"):
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter="\t" if suffix == ".tsv" else ",")
            names = [unescape_formulas(name) for name in next(reader, [])]
            while rows := list(islice(reader, BLOCK_ROWS)):
                odd = next((row for row in rows if len(row) != len(names)), None)
                if odd is not None:
                    raise InputError(
                        f"{path} has a row of {len(odd)} fields ({', '.join(odd)[:80]}); expected "
                        f"{len(names)} as in the first line"
                    )
                columns = zip(*rows, strict=True)
                yield (
                    names,
                    {
                        name: [unescape_formulas(cell) or None for cell in column]
                        for name, column in zip(names, columns, strict=True)
                    },
                )
    else:
        raise InputError(
            f"{path} is no .csv, .tsv or .parquet file; expected one of them, which can be read in "
            "parts"
        )


def read_guess_column(table: Table, column: GuessColumn, where: str) -> np.ndarray[Any, Any]:
    """Return g − 1/C (n, C) of a column of guesses, zeros if the table does not have it."""
    found = _find_guesses(table.columns, column, where)
    if found is None:
        found = torch.zeros(len(table.lines), len(column.classes))
    return stack_deviations([Guesses(column.classes, found)], column.classes).numpy()


def _parse_probability(value: Any) -> float:
    entry = parse_entry(value)
    try:
        return float("nan") if entry is None else float(entry)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(
            f"a probability of a guess is {value!r}; expected a number from 0 to 1, such as 0.3"
        ) from None


def _read_table_guesses(path: Path, data: Data, classes: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Read a table of guesses; rows are matched by id, or by order if there is none.

    Returns:
        (n, C) probabilities, and the ids that match no item.
    """
    table = (
        _unescape(read_table(path)) if path.suffix.lower() in (".csv", ".tsv") else read_table(path)
    )
    column = _usual_column(table.columns, classes, path, data.former_classes)
    found = _find_guesses(table.columns, column, str(path))
    assert found is not None
    return _match_rows(table, found, path, data)


def _usual_column(
    columns: Mapping[str, Sequence[Any]],
    classes: Sequence[str],
    path: Path,
    former: FormerClasses = NO_FORMER_CLASSES,
) -> GuessColumn:
    """Return the column of a file that holds guesses, by its usual name."""
    names = {name.casefold(): name for name in columns}
    usual_columns = [names[name] for name in GUESS_COLUMNS if name in names]
    if any(probability_column_name(c) in columns for c in classes) or any(
        normalise_name(name.removeprefix(probability_column_name(""))) in former
        for name in columns
        if name.startswith(probability_column_name(""))
    ):
        usual_columns = [probability_column_name("").removesuffix(":")]
    if not usual_columns:
        raise InputError(
            f"{path} has the columns {', '.join(list(columns)[:8])}; expected guesses in one "
            f"called {', '.join(GUESS_COLUMNS[:-1])} or {GUESS_COLUMNS[-1]}, or probabilities in "
            f"columns such as {probability_column_name(classes[0])}"
        )
    return GuessColumn(usual_columns[0], tuple(classes), former)


def _unescape(table: Table) -> Table:
    """Undo what keeps spreadsheets from running a field, in a text table that labelahead wrote."""
    columns = {
        unescape_formulas(name): [unescape_formulas(v) if isinstance(v, str) else v for v in values]
        for name, values in table.columns.items()
    }
    return replace(table, columns=columns)


def _has_file_names(data: Data) -> bool:
    """Return whether the ids of the items are names of files."""
    return bool(data.file_names) or (data.rows is not None and data.rows.files)


def _match_rows(table: Table, found: Tensor, path: Path, data: Data) -> tuple[Tensor, list[str]]:
    """Return the rows of a table in the order of the items, and the ids that match no item."""
    column = choose_id_column(str(path), table.columns, AUTO_ID)
    if column is None:
        if len(found) != len(data):
            raise InputError(
                f"{path} has {count_noun(len(found), 'row')} without ids, but {data.name} has "
                f"{count_noun(len(data), 'item')}; "
                "expected as many in the same order, or a column `id`"
            )
        return found, []
    row_of = {name: i for i, name in enumerate(table.ids(str(path), column))}
    rows = [row_of.get(name, -1) for name in data.ids]
    if max(rows) < 0 and _has_file_names(data):  # without the suffix, as Label Studio's task ids
        rows = [row_of.get(PurePosixPath(name).stem, -1) for name in data.ids]
    if max(rows) < 0:
        raise InputError(
            f"none of the ids of {path} ({next(iter(row_of))}, ...) is an item of {data.name} "
            f"({data.ids[0]}, ...); expected the ids of the items"
        )
    at, used = torch.tensor(rows), set(rows)
    foreign = [name for name, row in row_of.items() if row not in used]
    return torch.where((at >= 0)[:, None], found[at.clamp_min(0)], torch.zeros(())), foreign
