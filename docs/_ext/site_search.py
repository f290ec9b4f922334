"""Words that the site search should find, and search results of a site without a server.

A comment `<!-- search: gpu, cuda -->` below a heading makes that section the first result of a
search for `gpu` or `cuda`. The words become main entries of the index, which Sphinx's search ranks
highest.

Sphinx fetches a page to show an excerpt of it, which browsers refuse for addresses of files. The
texts of all pages are therefore written as a script, too, and only `file:` addresses load it.
"""

import json
import re
from pathlib import Path
from typing import Any

COMMENT = re.compile(r"<!--\s*search:(.*?)-->", re.DOTALL)
TEXTS = "page_texts.js"


def read_words(comment: str) -> list[str]:
    """Return the words of a comment, in lower case; none if it is about something else."""
    found = COMMENT.fullmatch(comment.strip())
    return [word.strip().lower() for word in found[1].split(",")] if found else []


def write_texts(app: Any, error: Exception | None) -> None:
    """Write the main part of every page as a script."""
    if error or app.builder.format != "html":
        return
    root = Path(app.outdir)
    main = re.compile(r'<article role="main"[^>]*>.*</article>', re.DOTALL)
    texts = {}
    for page in sorted(root.rglob("*.html")):
        found = main.search(page.read_text())
        if found:
            texts[page.relative_to(root).as_posix()] = found[0]
    script = f"window.PAGE_TEXTS = {json.dumps(texts)};\n"
    (root / "_static" / TEXTS).write_text(script)


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx, which is imported here only: tests use the rest without it."""
    from docutils import nodes
    from sphinx import addnodes
    from sphinx.transforms import SphinxTransform

    class SearchWords(SphinxTransform):
        """Replace the comments by entries of the index that point at their section."""

        default_priority = 500  # before the domains of Sphinx collect the entries, at 850

        def apply(self, **kwargs: Any) -> None:
            """Transform one page."""
            for node in list(
                self.document.findall(lambda n: isinstance(n, nodes.raw | nodes.comment))
            ):
                words = read_words(node.astext())
                if words:
                    section = node.parent
                    while not isinstance(section, nodes.section):
                        section = section.parent
                    entries = [("single", word, section["ids"][0], "main", None) for word in words]
                    node.replace_self(addnodes.index(entries=entries))

    app.add_transform(SearchWords)
    app.add_js_file("offline_search.js")
    app.connect("build-finished", write_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
