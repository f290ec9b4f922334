"""Convert docstrings (plain text, `code`, formulas, equation tags, Google sections) to
reStructuredText.
"""

import inspect
import re
from typing import Any

CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
TAG = re.compile(r"\b((?:PN|LA|DY)-\d+)\b")  # has a heading of its own in papers.md
MARKUP = re.compile(r"([\\*_|<>`])")
SECTIONS = {
    "Args:": "Parameters",
    "Attributes:": "Attributes",
    "Raises:": "Raises",
    "Returns:": "Returns",
    "Yields:": "Yields",
}
ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?: (.*)", re.DOTALL)


def plain(text: str) -> str:
    """Escape markup, and link equation tags to the page of papers."""
    pieces = TAG.split(text)
    for i, piece in enumerate(pieces):
        if i % 2:
            pieces[i] = rf"\ `{piece} <../papers.html#{piece.lower()}>`__\ "
        else:
            pieces[i] = MARKUP.sub(r"\\\1", piece)
    return "".join(pieces)


def paragraph(text: str) -> str:
    """Convert one paragraph of code spans and plain text."""
    pieces = CODE.split(text)
    for i, piece in enumerate(pieces):
        pieces[i] = rf"\ ``{' '.join(piece.split())}``\ " if i % 2 else plain(piece)
    return "".join(pieces)


def parameters(value: Any) -> list[str]:
    """Return the names of the parameters of a function or class."""
    try:
        return [
            name
            for name in inspect.signature(value).parameters
            if name not in ("self", "args", "kwargs")
        ]
    except (TypeError, ValueError):
        return []


def marked(text: str, names: list[str]) -> str:
    """Mark `name: meaning` at the beginning of a sentence as code."""
    known = "|".join(map(re.escape, names))
    heads = re.compile(rf"(^|[.;)] |\n)((?:{known})(?:, (?:{known}))*):(?=\s)")
    return (
        heads.sub(lambda m: m[1] + ", ".join(f"`{name}`" for name in m[2].split(", ")) + ":", text)
        if names
        else text
    )


def section(title: str, lines: list[str]) -> list[str]:
    """Convert a Google section: one list item per entry, or one paragraph for `Returns:`."""
    if title in ("Returns", "Yields"):
        body = " ".join(line.strip() for line in lines)
        return [f"**{title}:** {' '.join(paragraph(body).split())}"]
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    entries: list[str] = []
    for line in lines:
        if len(line) - len(line.lstrip()) == indent:
            entries.append(line.strip())
        else:
            entries[-1] += f" {line.strip()}"
    items = []
    for entry in entries:
        match = ENTRY.fullmatch(entry)
        if match:
            heads = ", ".join(f"`{name}`" for name in match[1].split(", "))
            entry = f"{heads}: {match[2]}"
        items.append(f"- {' '.join(paragraph(entry).split())}")
    return [f"**{title}:**", "", *items]


def block(lines: list[str], names: list[str]) -> list[str]:
    """Convert the lines between two blank lines."""
    text = [line.strip() for line in lines]
    if text[0] in SECTIONS and len(lines) > 1:
        return section(SECTIONS[text[0]], lines[1:])
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
    """Convert a whole docstring; `names` are the names of the parameters."""
    found: list[str] = []
    for part in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        if part.strip():
            found += [*block(part.splitlines(), names), ""]
    return found


def process(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Convert a docstring in place (called by autodoc)."""
    lines[:] = converted(lines, parameters(value))


def public(
    app: Any, what: str, name: str, value: Any, options: Any, call: str | None, returned: str | None
) -> Any:
    """Remove private fields of a dataclass from its signature (called by autodoc)."""
    if not call or "_" not in call:
        return None
    return re.sub(r", _\w+(=<\w+>|=\w+)?", "", call), returned


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("autodoc-process-signature", public)
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
