"""HTML pages that need nothing else, and folders that are never half written."""

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from labelahead.data.extras import need
from labelahead.errors import InputError

__all__ = ["template", "write_all"]


def template(name: str, package: str = "labelahead.study") -> Any:
    """A page's template; all pages share one style sheet."""
    jinja = need("jinja2", "report", "a report")

    def text(wanted: str) -> str:
        where = package if wanted == name else "labelahead.study"
        return files(where).joinpath(wanted).read_text("utf-8")

    pages = jinja.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja.StrictUndefined,
        loader=jinja.FunctionLoader(text),
    )  # fmt: skip
    # Numbers stay on one line with what belongs to them.
    pages.filters["tight"] = lambda words: re.sub(r" (?=[%=<] ?)|(?<=[=<>]) ", "\u00a0", words)
    return pages.get_template(name)


def write_all(target: Path, content: Mapping[str, str | bytes], last: str) -> None:
    """Every file in one step, the page last, so that it never shows more than is there."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in sorted(content, key=lambda n: n == last):
            text = content[name]
            partial = target / f"{name}.partial"
            partial.write_bytes(text if isinstance(text, bytes) else text.encode())
            partial.replace(target / name)
    except OSError as error:
        raise InputError(
            f"{target} cannot be written to ({error.strerror}); choose another folder with --out"
        ) from error
