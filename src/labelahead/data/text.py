"""Text files, separated fields, spreadsheet cells and file names."""

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

FORMULA_CHARACTERS = "=+\\-@\t\r\n＝＋－＠"  # characters that start a formula in spreadsheets
# A formula inside a cell, if a spreadsheet treats the separator before it as a new cell. Quotes
# and spaces may precede it.
_FORMULA_AHEAD = rf"""(?=[\s'"]*[{FORMULA_CHARACTERS}])"""
FORMULA_AFTER_SEPARATOR, ESCAPED_FORMULA_AFTER_SEPARATOR = (
    re.compile(rf"([;\t\r\n]){_FORMULA_AHEAD}"),
    re.compile(rf"([;\t\r\n])'{_FORMULA_AHEAD}"),
)
PLAIN_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
RESERVED_FILE_NAME = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE | re.DOTALL)
MAX_FILE_NAME_BYTES = 240  # bytes of a file name; most file systems end at 255


def read_text(path: Path) -> str:
    """Read a text file in UTF-8, or in UTF-16 with a byte-order mark.

    Raises:
        InputError: if the file cannot be read or decoded.
    """
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
            f"{path}, line {line}: byte {content[error.start]:#04x} is no {encoding[:6].upper()}; "
            "expected a UTF-8 text file, so save it as UTF-8"
        ) from error


def read_json_lines(path: Path) -> list[tuple[int, Any]]:
    """Return (line number, value) for every line of a JSON-lines file that is not blank."""
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
    """Decode bytes, and return whether they are UTF-8 (or UTF-16 with a byte-order mark).

    Other bytes are decoded as Latin-1 (cp1252).
    """
    encoding = _detect_encoding(content)
    try:
        return content.decode(encoding), True
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":  # truncated within a character
            return content[: error.start].decode(encoding), True
        return content.decode("cp1252", "replace"), False


def _detect_encoding(content: bytes) -> str:
    """Return UTF-16 if there is a byte-order mark for it, else UTF-8."""
    return "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def read_separated(path: Path) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """Return the separator of a CSV or TSV file, and its rows with their line numbers.

    The separator follows from the file name unless it does not occur in the first line.
    """
    text = read_text(path)
    first = text.lstrip("\r\n").split("\n", 1)[0]
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    if separator not in first:
        separator = next((s for s in ";\t," if s in first), separator)
    return separator, _read_rows(path, text, separator)


def _read_rows(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of every row."""
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
    """Escape a cell so that no spreadsheet evaluates it as a formula; numbers are unchanged.

    An apostrophe is inserted before a possible formula: at the start, and after a semicolon, a tab
    or a line break, where spreadsheets of many locales start a new cell even inside quotes.
    `unescape_formulas` is the inverse.
    """
    inside = FORMULA_AFTER_SEPARATOR.sub(r"\1'", cell)
    dangerous = re.match(f"'*[{FORMULA_CHARACTERS}]", cell) and not PLAIN_NUMBER.fullmatch(cell)
    return f"'{inside}" if dangerous else inside


def unescape_formulas(cell: str) -> str:
    """Undo `escape_formulas`."""
    whole = cell[1:] if re.match(f"'+[{FORMULA_CHARACTERS}]", cell) else cell
    return ESCAPED_FORMULA_AFTER_SEPARATOR.sub(r"\1", whole)


def as_file_name(text: str) -> str:
    """Turn a text into one path component without separators, `.` or `..`.

    Different texts give different names. Characters that some file systems reject are
    percent-encoded (%2F), so that `urllib.parse.unquote` restores the text; names that are too long
    end in a hash instead.
    """
    name = re.sub(r'[%/\\:*?"<>|\x00-\x1f\x7f]', lambda c: _percent_encode(c[0]), text)
    if name.startswith("."):  # a hidden file or a parent folder
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
