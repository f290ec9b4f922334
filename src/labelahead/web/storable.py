"""Names that hold anything, as file names and as cells of a spreadsheet; and back."""

import re
from hashlib import sha256
from pathlib import PurePosixPath

__all__ = ["as_file_name", "guarded", "unguarded"]

FORMULA = "=+\\-@\t\r\n＝＋－＠"  # what spreadsheets take for the start of one
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE | re.DOTALL)
LONGEST = 240  # bytes; most file systems end at 255


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
