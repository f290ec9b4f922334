"""Text as people have it.

Files with any line ends, separated fields, cells of a spreadsheet, file names.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from labelahead.errors import InputError

__all__ = [
    "as_file_name",
    "decode_text",
    "escape_formulas",
    "read_json_lines",
    "read_separated",
    "read_text",
    "unescape_formulas",
]

FORMULA_CHARACTERS = "=+\\-@\t\r\n＝＋－＠"  # what spreadsheets take for the start of one
# Where a formula would begin inside a cell, if the separator before it counted: quotes and spaces
# may be between.
_FORMULA_AHEAD = rf"""(?=[\s'"]*[{FORMULA_CHARACTERS}])"""
FORMULA_AFTER_SEPARATOR, ESCAPED_FORMULA_AFTER_SEPARATOR = (
    re.compile(rf"([;\t\r\n]){_FORMULA_AHEAD}"),
    re.compile(rf"([;\t\r\n])'{_FORMULA_AHEAD}"),
)
PLAIN_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
RESERVED_FILE_NAME = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE | re.DOTALL)
MAX_FILE_NAME_BYTES = 240  # bytes of a file name; most file systems end at 255


def read_text(path: Path) -> str:
    """The content, from UTF-8 (or UTF-16 with its mark)."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    encoding = _detect_encoding(content)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: byte {content_hash[error.start]:#04x} is no {encoding[:6].upper()}; "
            "expected a UTF-8 text file, so save it as UTF-8"
        ) from error


def read_json_lines(path: Path) -> list[tuple[int, Any]]:
    """What stands on every line that is not blank, with the number of the line."""
    rows = []
    for i, line in enumerate(read_text(path).split("\n"), 1):
        try:
            if line.strip():
                rows.append((i, json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{path}, line {i}: no valid JSON ({error}); expected an object on every line "
                f"(where line {i} "
                "is no valid JSON by itself but the file is, name it .json)"
            ) from error
    return rows


def decode_text(content: bytes) -> tuple[str, bool]:
    """A text of any encoding, and whether it is UTF-8 (or UTF-16 with its mark).

    Else it is taken for Latin-1.
    """
    encoding = _detect_encoding(content)
    try:
        return content.decode(encoding), True
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":  # cut within a character
            return content[: error.start].decode(encoding), True
        return content.decode("cp1252", "replace"), False


def _detect_encoding(content: bytes) -> str:
    return "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def read_separated(path: Path) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """What separates the fields, and every row with its line.

    By the name, unless the first line says otherwise.
    """
    text = read_text(path)
    first = text.lstrip("\r\n").split("\n", 1)[0]
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    if separator not in first:
        separator = next((s for s in ";\t," if s in first), separator)
    return separator, _read_rows(path, text, separator)


def _read_rows(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a field may be a whole book
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: {error}; expected CSV, a table of fields"
        ) from error


def escape_formulas(cell: str) -> str:
    """Return a cell that no spreadsheet runs as a formula; numbers stay as they are.

    An apostrophe precedes what would be one: at the beginning, and after a semicolon, a tab or a
    line break, at which spreadsheets of many countries begin a new cell, whatever the quotes around
    the whole say. `unescape_formulas` undoes it.
    """
    inside = FORMULA_AFTER_SEPARATOR.sub(r"\1'", cell)
    dangerous = re.match(f"'*[{FORMULA_CHARACTERS}]", cell) and not PLAIN_NUMBER.fullmatch(cell)
    return f"'{inside}" if dangerous else inside


def unescape_formulas(cell: str) -> str:
    """Return what `escape_formulas` was given."""
    whole = cell[1:] if re.match(f"'+[{FORMULA_CHARACTERS}]", cell) else cell
    return ESCAPED_FORMULA_AFTER_SEPARATOR.sub(r"\1", whole)


def as_file_name(text: str) -> str:
    """One part of a path, never with a separator, `.` or `..`; different for different texts.

    What some file system does not take is written as in an address (%2F), so
    `urllib.parse.unquote` is the way back, but for texts that are too long: they end in a hash.
    """
    name = re.sub(r'[%/\\:*?"<>|\x00-\x1f\x7f]', lambda c: _percent_encode(c[0]), text)
    if name.startswith("."):  # hidden, or a way out
        name = _percent_encode(".") + name[1:]
    if name.endswith((".", " ")):  # Windows drops these
        name = name[:-1] + _percent_encode(name[-1])
    if RESERVED_FILE_NAME.fullmatch(name):
        name = _percent_encode(name[0]) + name[1:]
    if len(name.encode()) > MAX_FILE_NAME_BYTES:
        suffix = PurePosixPath(name).suffix
        suffix = suffix if re.fullmatch(r"\.\w{1,8}", suffix, re.ASCII) else ""
        start = name.encode()[: MAX_FILE_NAME_BYTES - 32].decode(errors="ignore")
        name = f"{start}~{sha256(text.encode()).hexdigest()[:16]}{suffix}"
    return name or "%"


def _percent_encode(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())
