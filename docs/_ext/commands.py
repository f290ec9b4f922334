"""The directive `commands`.

Every command and option of `labelahead`, as the program itself describes them.
"""

import re
from collections.abc import Iterator
from typing import Any

import typer

from labelahead.cli import app as labelahead


def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command and all below it, with the words that call it."""
    if not command.hidden:
        yield path, command
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*path, name))


def cell(text: object) -> str:
    """Text inside a table."""
    return re.sub(r"\s+", " ", str(text)).replace("|", "\\|").strip()


def row(parameter: Any) -> str:
    """An option or argument: how it is written, what it means, what holds without it."""
    if parameter.param_type_name == "argument":
        name = f"`{(parameter.metavar or parameter.name).upper()}`"
    else:
        name = ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
    meaning, _, said = (getattr(parameter, "help", None) or "").partition("(default: ")
    default = parameter.default
    plain = isinstance(default, int | float | str) and default not in (False, "")
    shown = "needed" if parameter.required else said.rstrip(") ") or (str(default) if plain else "")
    return f"| {name} | {cell(meaning)} | {cell(shown)} |"


def section(path: tuple[str, ...], command: Any) -> str:
    """One command in Markdown."""
    paragraphs = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    calls = [part for part in paragraphs if part.startswith("labelahead ")]
    words = [
        part for part in paragraphs if part not in calls and part not in ("Example:", "Examples:")
    ]
    lines = [f"{'##' if len(path) < 3 else '###'} {' '.join(path)}", "", "\n\n".join(words), ""]
    lines += ["```", *calls, "```", ""] if calls else []
    parameters = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    if parameters:
        lines += [
            "| option | meaning | default |",
            "| --- | --- | --- |",
            *map(row, parameters),
            "",
        ]
    return "\n".join(lines)


def reference() -> str:
    """All commands in Markdown."""
    every = walk(typer.main.get_command(labelahead), ("labelahead",))
    return "\n".join(section(path, command) for path, command in every)


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx, which is imported here only: tests read the reference without it."""
    from sphinx.util.docutils import SphinxDirective

    class Commands(SphinxDirective):
        """Write the reference where the directive stands."""

        def run(self) -> list[Any]:
            """Parse it as Markdown."""
            return self.parse_text_to_nodes(reference(), allow_section_headings=True)

    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
