"""Files that list the classes of a project: names, descriptions and examples."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from labelahead.data.classes import check_name, require_distinct_classes
from labelahead.data.label_values import split_class_names
from labelahead.data.split import expand_path
from labelahead.data.table import read_table
from labelahead.errors import InputError, did_you_mean

__all__ = ["ClassList", "parse_class_list", "read_class_file"]

NAME_COLUMN = "name"
OTHER_COLUMNS = ("description", "examples")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
PLAIN_SUFFIX = ".txt"
EXAMPLE_SEPARATOR = "|"  # between the examples in one field of a text table


@dataclass(frozen=True)
class ClassList:
    """The classes of a project, in their order.

    Attributes:
        names: of the classes.
        descriptions: a sentence on what belongs to a class, by its name; only where there is one.
        examples: texts that belong to a class, by its name; only where there are some.
    """

    names: tuple[str, ...]
    descriptions: Mapping[str, str]
    examples: Mapping[str, tuple[str, ...]]


def parse_class_list(text: str) -> ClassList:
    """Read the value of --classes: class names with commas between them, or a file of classes.

    >>> from labelahead.data.class_files import parse_class_list
    >>> parse_class_list("cat, dog").names
    ('cat', 'dog')
    """
    suffix = PurePath(text.strip()).suffix.lower()
    path = expand_path(text.strip())
    is_file = suffix in (*TABLE_SUFFIXES, PLAIN_SUFFIX) and ("," not in text or path.is_file())
    if is_file:
        return read_class_file(path)
    return ClassList(tuple(split_class_names(text)), {}, {})


def read_class_file(path: str | Path) -> ClassList:
    """Read a file of classes.

    Args:
        path: A `.txt` file with one name per line, or a table (`.csv`, `.tsv`, `.jsonl`) with the
            column `name`, and `description` and `examples` if there are some. Examples are
            separated by `|` in a text table, and may be a list in JSON.

    Raises:
        InputError: The file does not exist, has another column, or names a class twice.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(
            f"--classes is {path}, which does not exist; expected class names with commas between "
            "them, or a file with one name per line or a column `name`"
        )
    if path.suffix.lower() == PLAIN_SUFFIX:
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read ({error}); expected text in UTF-8") from error
        names = [line.strip() for line in lines if line.strip()]
        return ClassList(_check_names(names, path), {}, {})
    return _read_class_table(path)


def _read_class_table(path: Path) -> ClassList:
    columns = {name.strip().casefold(): v for name, v in read_table(path).columns.items()}
    allowed = (NAME_COLUMN, *OTHER_COLUMNS)
    other = next((name for name in columns if name not in allowed), None)
    if NAME_COLUMN not in columns or other is not None:
        raise InputError(
            f"{path} has the columns {', '.join(columns)}; {did_you_mean(other, allowed)}expected "
            f"`{NAME_COLUMN}`, and `description` and `examples` if there are some"
        )
    names = _check_names([_to_text(value) for value in columns[NAME_COLUMN]], path)
    empty = [""] * len(names)
    descriptions = map(_to_text, columns.get("description", empty))
    examples = map(_split_examples, columns.get("examples", empty))
    return ClassList(
        names,
        {name: text for name, text in zip(names, descriptions, strict=True) if text},
        {name: texts for name, texts in zip(names, examples, strict=True) if texts},
    )


def _check_names(names: list[str], path: Path) -> tuple[str, ...]:
    if not names:
        raise InputError(f"{path} names no class; expected a name per line")
    return tuple(require_distinct_classes([check_name(n, f"a class of {path}") for n in names]))


def _to_text(value: Any) -> str:
    """Return a field as text; 3.0 is the class 3."""
    if isinstance(value, float):
        value = "" if value != value else int(value) if value.is_integer() else value
    return "" if value is None else str(value).strip()


def _split_examples(value: Any) -> tuple[str, ...]:
    """Return the examples in a field: a list, a list in JSON, or texts with | between them."""
    if isinstance(value, str) and value.strip().startswith("["):
        with suppress(ValueError):  # a text that begins with a bracket
            value = json.loads(value)
    parts = value if isinstance(value, list | tuple) else _to_text(value).split(EXAMPLE_SEPARATOR)
    return tuple(text for text in map(_to_text, parts) if text)
