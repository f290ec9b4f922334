"""Text files as people have them: any line ends, a byte order mark or none."""

from pathlib import Path

from labelahead.errors import InputError

__all__ = ["read_text"]


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
