"""Docstrings as the house writes them (plain text, `code`, formulas, equation tags) ->
reStructuredText.
"""

import inspect
import re
from typing import Any

CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
TAG = re.compile(r"\b((?:PN|LA|DY)-\d+)\b")  # has a heading of its own in papers.md
MARKUP = re.compile(r"([\\*_|<>`])")


def plain(text: str) -> str:
    """Text in which nothing is markup but the equation tags, which lead to the page of papers."""
    pieces = TAG.split(text)
    for i, piece in enumerate(pieces):
        if i % 2:
            pieces[i] = rf"\ `{piece} <../papers.html#{piece.lower()}>`__\ "
        else:
            pieces[i] = MARKUP.sub(r"\\\1", piece)
    return "".join(pieces)


def paragraph(text: str) -> str:
    """One paragraph: code spans and plain text, whatever characters touch each other."""
    pieces = CODE.split(text)
    for i, piece in enumerate(pieces):
        pieces[i] = rf"\ ``{' '.join(piece.split())}``\ " if i % 2 else plain(piece)
    return "".join(pieces)


def parameters(value: Any) -> list[str]:
    """What a function or class is called with."""
    try:
        return [
            name
            for name in inspect.signature(value).parameters
            if name not in ("self", "args", "kwargs")
        ]
    except (TypeError, ValueError):
        return []


def marked(text: str, names: list[str]) -> str:
    """`name: what it means` with the name as code, where a sentence begins with it."""
    known = "|".join(map(re.escape, names))
    heads = re.compile(rf"(^|[.;)] |\n)((?:{known})(?:, (?:{known}))*):(?=\s)")
    return (
        heads.sub(lambda m: m[1] + ", ".join(f"`{name}`" for name in m[2].split(", ")) + ":", text)
        if names
        else text
    )


def block(lines: list[str], names: list[str]) -> list[str]:
    """What stands between two blank lines."""
    text = [line.strip() for line in lines]
    if text[0].startswith(">>>"):
        indent = len(lines[0]) - len(lines[0].lstrip())
        return [line[indent:] for line in lines]
    if all(line.startswith("    ") for line in lines):
        return ["::", "", *lines]
    if text[0].startswith("- "):
        items = re.split(r"^- ", "\n".join(text), flags=re.MULTILINE)[1:]
        return [f"- {' '.join(paragraph(item).split())}" for item in items]
    return paragraph(marked("\n".join(text), names)).splitlines()


def converted(lines: list[str], names: list[str]) -> list[str]:
    """A whole docstring; names: of parameters."""
    found: list[str] = []
    for part in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        if part.strip():
            found += [*block(part.splitlines(), names), ""]
    return found


def process(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Called by autodoc for each docstring; changes the lines in place."""
    lines[:] = converted(lines, parameters(value))


def public(
    app: Any, what: str, name: str, value: Any, options: Any, call: str | None, returned: str | None
) -> Any:
    """Called by autodoc for each signature: a dataclass's private fields are nobody's arguments."""
    if not call or "_" not in call:
        return None
    return re.sub(r", _\w+(=<\w+>|=\w+)?", "", call), returned


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("autodoc-process-signature", public)
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
