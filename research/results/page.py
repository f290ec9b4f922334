"""docs/results.md and docs/results-*.md with their numbers put in, and the same as web pages.

The text is written by hand. What stands between `<!-- begin KIND -->` and `<!-- end -->` is
replaced: `headline`, `papers`, `table NAME`, `found NAME` (what it shows, in words), `group NAME`
(all its tables), `theory`, `dynamics`, `regression` (of the studies), `overall`, `hard`, `tuning`,
`comparators`, `estimates`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from labelahead.errors import InputError, import_extra
from labelahead.simulation.comparison.plot_style import PALETTE, RenderedFigure
from labelahead.simulation.comparison.report_page import template, write_all
from research.results import comparators, estimates
from research.results.checks import Evidence
from research.results.estimates import EstimateLine
from research.results.figures import critical, table_figure
from research.results.findings import FOUND, format_findings
from research.results.headline import headline_block
from research.results.lines import L, TrialLine, read_csv
from research.results.numbers import Numbers, Ranking, rankings, read_numbers
from research.results.papers import papers_block
from research.results.studies import write_studies
from research.results.table import Table
from research.results.text import (
    ACROSS,
    ByVariant,
    hard_block,
    overall_block,
    overall_name,
    table_block,
)
from research.results.theory import dynamics_block, regression_block, theory_block
from research.results.tuning import FILE, read_trials, tuning_block

PAGE = "results.md"  # the overview
PAGES = "results*.md"  # with one page a question
BEGIN = re.compile(r"<!-- begin ([^>]*?) -->")
END = "<!-- end -->"
# Beside the reports' own style: cells of Markdown are td, and have no class.
STYLE = """
main { max-width: 76rem; }
td:first-child { text-align: left; white-space: nowrap; }
td { white-space: nowrap; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
summary { cursor: pointer; margin: .5rem 0; }
"""


@dataclass(frozen=True, eq=False)
class Results:
    """All tables with what is known of each.

    tuning: rounds of what was tried besides; others: of other learners.
    """

    tables: Sequence[Table]
    measured: Mapping[str, ByVariant]
    ranked: Sequence[Ranking]
    tuning: Sequence[TrialLine] = ()
    others: Sequence[TrialLine] = ()
    estimated: Sequence[EstimateLine] = ()  # estimated errors beside those on test items
    studies: Path = Path()  # where those of the theory are kept

    def group(self, name: str) -> list[Table]:
        """Its tables, in order."""
        return [t for t in self.tables if t.group == name]

    @property
    def clean(self) -> dict[str, Numbers]:
        """What the ranking over tables is made from."""
        return _clean(self.tables, self.measured)


def write_pages(docs: Path, tables: Sequence[Table], numbers: Path) -> Iterator[Path]:
    """The figures, the studies, the pages of results and the same as HTML, in this order.

    Each path once it is written.
    """
    if not (docs / PAGE).is_file():
        raise InputError(
            f"{docs / PAGE} does not exist; expected the page whose numbers are to be put in"
        )
    pages = {path.name: path.read_text(encoding="utf-8") for path in sorted(docs.glob(PAGES))}
    measured = {t.name: read_numbers(t, numbers) for t in tables}
    data = numbers.parent
    results = Results(
        tables,
        measured,
        rankings(_clean(tables, measured)),
        tuning=read_trials(data / FILE),
        others=_read_lines(data / comparators.FILE, TrialLine, comparators.COMMAND),
        estimated=_read_lines(data / estimates.FILE.name, EstimateLine, estimates.COMMAND),
        studies=data / "studies",
    )
    filled = fill_pages(pages, results)
    for name, make in _figures(results):
        write_all(docs / "results" / "figures", {f"{name}.png": make().small}, last=f"{name}.png")
        yield docs / "results" / "figures" / f"{name}.png"
    yield from write_studies(data / "studies", docs / "results" / "studies")
    rendered = {f"{Path(name).stem}.html": html(text) for name, text in filled.items()}
    write_all(docs, {**filled, **rendered}, last=f"{Path(PAGE).stem}.html")
    yield from (docs / name for name in (*filled, *rendered))


def _read_lines(path: Path, kind: type[L], command: str) -> list[L]:
    """Lines of a CSV; none before the first run."""
    return read_csv(path, kind, f"run `{command}`") if path.exists() else []


def _clean(tables: Sequence[Table], measured: Mapping[str, ByVariant]) -> dict[str, Numbers]:
    return {
        " ".join(filter(None, [t.short, variant])): n
        for t in tables
        if t.group == "clean"
        for variant, n in (measured[t.name] or {}).items()
    }


def _figures(results: Results) -> Iterator[tuple[str, Callable[[], RenderedFigure]]]:
    for i, ranking in enumerate(results.ranked):
        name = overall_name(i)
        yield name, lambda n=name, r=ranking: critical(n, r)
    for table in results.tables:
        numbers = results.measured[table.name]
        if numbers and len(table.variants) <= ACROSS:
            yield table.name, lambda n=table.name, v=numbers: table_figure(n, v)


def fill_pages(pages: Mapping[str, str], results: Results) -> dict[str, str]:
    """Replace every block of the pages; refuse if a table has no place on any of them.

    Args:
        pages: Name of a file -> its text.
        results: What the blocks are made from.
    """
    filled: dict[str, str] = {}
    placed: set[str] = set()
    for name, text in pages.items():
        filled[name], shown = _fill_blocks(name, text, results)
        placed |= shown
    lost = [t.name for t in results.tables if t.name not in placed and results.measured[t.name]]
    if lost:
        raise InputError(
            f"{', '.join(pages)}: no place for {', '.join(lost)}; expected "
            f"`<!-- begin table {lost[0]} -->` and `{END}` where it shall stand"
        )
    return filled


def _fill_blocks(page: str, text: str, results: Results) -> tuple[str, set[str]]:
    """The text of a page with every block replaced, and the tables that it shows in full."""
    parts, at, placed = [], 0, set()
    while match := BEGIN.search(text, at):
        end = text.find(END, match.end())
        following = BEGIN.search(text, match.end())
        if end < 0 or (following and following.start() < end):
            raise InputError(f"{page}: `{match[0]}` has no end; expected `{END}` after it")
        try:
            block, names = _block(match[1].split(), results)
        except InputError as error:
            raise InputError(f"{page}: {error}") from error
        placed |= names
        parts += [text[at : match.end()], f"\n\n{block}\n\n", END]
        at = end + len(END)
    return "".join([*parts, text[at:]]), placed


def _block(words: Sequence[str], results: Results) -> tuple[str, set[str]]:
    """The text of a block, and the names of the tables it shows in full."""
    by_name = {t.name: t for t in results.tables}
    match words:
        case ["table", name] if name in by_name:
            return table_block(by_name[name], results.measured[name]), {name}
        case ["group", name] if results.group(name):
            shown = results.group(name)
            blocks = [table_block(t, results.measured[t.name]) for t in shown]
            return "\n\n".join(blocks), {t.name for t in shown}
        case ["group", name]:
            return "Nothing measured yet.", set()
        case ["found", name] if name in by_name and name in FOUND:
            return format_findings(by_name[name], results.measured[name]), set()
        case [("papers" | "theory" | "dynamics" | "regression") as kind]:
            made = {
                "papers": papers_block,
                "theory": theory_block,
                "dynamics": dynamics_block,
                "regression": regression_block,
            }
            caveats = {t.name: t.inconclusive for t in results.tables if t.inconclusive}
            return made[kind](Evidence(results.measured, results.studies, caveats)), set()
        case ["headline"]:
            return headline_block(results.measured), set()
        case ["estimates"]:
            return estimates.estimates_block(results.estimated), set()
        case ["overall"]:
            return overall_block(results.clean, results.ranked), set()
        case ["hard"]:
            return hard_block(results.group("hard"), results.measured), set()
        case ["tuning"]:
            return tuning_block(results.tuning, results.measured), set()
        case ["comparators"]:
            return comparators.comparators_block(results.others, results.measured), set()
    raise InputError(
        f"`<!-- begin {' '.join(words)} -->` is unknown; expected `table NAME` with one of "
        f"{', '.join(by_name)}, `found NAME`, `group NAME`, `papers`, `theory`, `dynamics`, "
        "`regression`, `headline`, `overall`, `hard`, `tuning`, `comparators` or `estimates`"
    )


def html(text: str) -> str:
    """The page for a browser: it needs nothing but its figures; tables scroll on a phone.

    Links to the other pages of results lead to their HTML.
    """
    parser = import_extra("markdown_it", "report", "the page of results")
    markdown = parser.MarkdownIt("commonmark").enable("table")
    markdown.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")
    tokens = markdown.parse(text)
    _anchors(tokens)
    body = markdown.renderer.render(tokens, markdown.options, {})
    body = re.sub(r"<!--.*?-->\n?", "", body, flags=re.S).replace("<img ", '<img loading="lazy" ')
    body = re.sub(r'href="(results(?:-[\w-]+)?)\.md', r'href="\1.html', body)
    style = template("style.css.jinja").render(palette=PALETTE)
    title = next((line[2:] for line in text.splitlines() if line.startswith("# ")), "Results")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)} · labelahead</title>\n<style>\n{style}{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def _anchors(tokens: Sequence[Any]) -> None:
    """Headings get the ids that they have on GitHub, so that links into the page work in both."""
    seen: dict[str, int] = {}
    for heading, inline in pairwise(tokens):
        if heading.type != "heading_open":
            continue
        slug = re.sub(r"[^\w\- ]", "", inline.content.lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        heading.attrSet("id", f"{slug}-{count}" if count else slug)
