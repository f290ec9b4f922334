"""Text as people have it: files with any line ends, separated fields, cells of a spreadsheet, file names."""

import csv
import io
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath

from labelahead.errors import InputError

__all__ = ["as_file_name", "guarded", "read_separated", "read_text", "unguarded"]

FORMULA = "=+\\-@\t\r\n＝＋－＠"  # what spreadsheets take for the start of one
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE | re.DOTALL)
LONGEST = 240  # bytes of a file name; most file systems end at 255


def read_text(path: Path) -> str:
    """The content, from UTF-8 (or UTF-16 with its mark)."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: byte {content[error.start]:#04x} is no {encoding[:6].upper()}; "
            "expected a UTF-8 text file, so save it as UTF-8"
        ) from error


def read_separated(path: Path) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """What separates the fields, and every row with its line: by the name, unless the first line says otherwise."""
    text = read_text(path)
    first = text.lstrip("\r\n").split("\n", 1)[0]
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    if separator not in first:
        separator = next((s for s in ";\t," if s in first), separator)
    return separator, _rows(path, text, separator)


def _rows(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}; expected CSV, a table of fields") from error


def guarded(cell: str) -> str:
    """A cell that no spreadsheet runs as a formula; numbers stay as they are."""
    dangerous = re.match(f"'*[{FORMULA}]", cell) and not NUMBER.fullmatch(cell)
    return f"'{cell}" if dangerous else cell


def unguarded(cell: str) -> str:
    """What `guarded` was given."""
    return cell[1:] if re.match(f"'+[{FORMULA}]", cell) else cell


def as_file_name(text: str) -> str:
    """One part of a path, never with a separator, `.` or `..`; different for different texts.

    What some file system does not take is written as in an address (%2F), so
    `urllib.parse.unquote` is the way back, but for texts that are too long: they end in a hash.
    """
    name = re.sub(r'[%/\\:*?"<>|\x00-\x1f\x7f]', lambda c: _percent(c[0]), text)
    if name.startswith("."):  # hidden, or a way out
        name = _percent(".") + name[1:]
    if name.endswith((".", " ")):  # Windows drops these
        name = name[:-1] + _percent(name[-1])
    if RESERVED.fullmatch(name):
        name = _percent(name[0]) + name[1:]
    if len(name.encode()) > LONGEST:
        suffix = PurePosixPath(name).suffix
        suffix = suffix if re.fullmatch(r"\.\w{1,8}", suffix, re.ASCII) else ""
        start = name.encode()[: LONGEST - 32].decode(errors="ignore")
        name = f"{start}~{sha256(text.encode()).hexdigest()[:16]}{suffix}"
    return name or "%"


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())
