"""The numbers of docs/results*.md as Markdown: one function for each kind of block."""

from collections.abc import Mapping, Sequence
from math import inf, isinf

import numpy as np

from labelahead.simulation.comparison.statistics import Estimate, Omnibus, Saving
from labelahead.simulation.comparison.tables import (
    ALPHA,
    format_labels,
    format_mean,
    format_p_value,
    format_seconds,
)
from research.results.numbers import DEFAULT, RANDOM, Numbers, Ranking, Row, Versus, contrast
from research.results.table import Table

MARKS = {1: " ▲", 0: "", -1: " ▼"}
FOLDED = ("hard",)  # groups that the page shows in a matrix first, table by table on demand
# variants that have room beside each other; more stand one below the other, without a figure
ACROSS = 6

ByVariant = Mapping[str, Numbers] | None  # variant -> numbers, or nothing measured yet


def table_block(table: Table, measured: ByVariant) -> str:
    """A table under its heading: what it compares, the numbers, how to get them again."""
    about = [table.about.strip()]
    if table.paper:
        about.append(f"Reported: {table.paper.strip()}")
    if table.pending:
        about.append(f"**Rerun pending**: {table.pending}")
    if table.inconclusive:
        about.append(f"**As run, not conclusive**: {table.inconclusive}")
    body = [*about, _describe_outdated_rows(table), *_body(table, measured)]
    if table.group in FOLDED:
        head = f"<details>\n<summary>{table.title}</summary>"
        return "\n\n".join([head, *filter(None, body), "</details>"])
    return "\n\n".join([f"### {table.title}", *filter(None, body)])


def _describe_outdated_rows(table: Table) -> str:
    """Return a warning about the rows that were measured before a correction."""
    if not table.outdated:
        return ""
    names = ", ".join(f"`{name}`" for name in table.outdated)
    return (
        f"**From before a correction; rerun pending:** {names} ([what was "
        "corrected](errata.md#corrected-since))."
    )


def _body(table: Table, measured: ByVariant) -> list[str]:
    command = f"make results-{table.name.replace('peers-', 'competitors-')}"
    if measured is None:
        return [f"Not measured yet: `{command}`."]
    several = len(measured) > 1 or "" not in measured
    many = len(table.variants) > ACROSS
    rows = (
        _lines(measured)
        if many
        else _variants(measured, table.seconds)
        if several
        else _one(measured[""])
    )
    sources = f"`{command}` · `research/data/tables/{table.name}.csv`"
    return [
        rows,
        " ".join([*([] if many else _tests(measured)), *_list_missing_campaigns(measured)]),
        _contrasts(table, measured),
        sources,
        ""
        if many
        else (
            f"![{table.title}: difference from {RANDOM} against "
            f"labels](results/figures/{table.name}.png)"
        ),
    ]


def _one(n: Numbers) -> str:
    leads = n.row(DEFAULT) is not None  # else nobody can be compared with it
    head = [
        "queried by",
        "at the end, %",
        f"curve − {RANDOM}, points",
        "p",
        f"labels for {RANDOM}’s end",
        *([f"{DEFAULT} − this, points", "p"] if leads else []),
        "s per query",
        "s per campaign",
    ]
    return grid(head, [_cells(row, float(n.curves.labels[-1]), leads) for row in n.rows])


def _cells(row: Row, budget: float, leads: bool) -> list[str]:
    return [
        _name(row.name),
        spread(row.final),
        difference_text(row.gain),
        _p(row.gain),
        _needs(row.saving, budget, row.name == RANDOM),
        *([difference_text(row.lead), _p(row.lead)] if leads else []),
        format_seconds(row.query),
        format_seconds(row.whole),
    ]


def _variants(measured: Mapping[str, Numbers], spent: bool) -> str:
    """Strategies down, variants across; random in full, since it differs between variants too."""
    names = dict.fromkeys(r.name for n in measured.values() for r in n.rows)
    gains = {name: [_gain(n.row(name)) for n in measured.values()] for name in names}
    order = sorted((n for n in names if n != RANDOM), key=lambda n: -_average(gains[n]))
    rows = []
    if RANDOM in names:
        own = [n.row(RANDOM) for n in measured.values()]
        rows.append([f"{RANDOM}, at the end, %", *(spread(r and r.final) for r in own)])
        rows.append([f"{RANDOM}, curve, %", *(spread(r and r.area) for r in own)])
    for name in order:
        cells = [n.row(name) for n in measured.values()]
        if RANDOM in names:
            rows.append([_name(name), *(difference_text(r and r.gain) for r in cells)])
        else:
            rows.append([_name(name), *(spread(r and r.area) for r in cells)])
        if spent:
            rows.append(
                [f"{name}, s per query", *(format_seconds(r.query) if r else "—" for r in cells)]
            )
    what = f"curve − {RANDOM}, points" if RANDOM in names else "curve, %"
    return grid([what, *(v or "plain" for v in measured)], rows)


def _lines(measured: Mapping[str, Numbers]) -> str:
    """Variants down, strategies across."""
    names = list(
        dict.fromkeys(r.name for n in measured.values() for r in n.rows if r.name != RANDOM)
    )
    names.sort(key=lambda name: -_average([_gain(n.row(name)) for n in measured.values()]))
    rows = []
    for variant, n in measured.items():
        base = n.row(RANDOM)
        gains = [difference_text(r and r.gain) for r in (n.row(name) for name in names)]
        rows.append([variant, spread(base and base.area), *gains])
    return grid(
        ["", f"{RANDOM}, curve, %", *(f"{name} − {RANDOM}, points" for name in names)], rows
    )


def overall_block(blocks: Mapping[str, Numbers], ranked: Sequence[Ranking]) -> str:
    """Every strategy over all tables. blocks: a table's short name -> its numbers."""
    if not blocks:
        return "Not measured yet: `make results`."
    held: dict[str, list[Row]] = {}
    for n in blocks.values():
        for row in n.rows:
            held.setdefault(row.name, []).append(row)
    places = [dict(zip(r.names, r.mean.tolist(), strict=True)) for r in ranked]
    if places:
        held = {n: rows for n, rows in held.items() if any(n in place for place in places)}
    order = sorted(
        held,
        key=lambda n: (
            *(place.get(n, np.inf) for place in places[::-1]),
            -_average([_gain(r) for r in held[n]]),
        ),
    )
    head = [
        "queried by",
        "tables",
        *(f"mean rank over {len(r.blocks)}" for r in ranked),
        f"curve − {RANDOM}, points",
        f"above / level / below {RANDOM}",
        f"{DEFAULT} above / level / below it",
    ]
    rows = [
        [
            _name(n),
            str(len(held[n])),
            *(f"{p[n]:.1f}" if n in p else "—" for p in places),
            _format_signed(_average([_gain(r) for r in held[n]])) if n != RANDOM else "—",
            _tally([r.gain for r in held[n]]),
            _tally([r.lead for r in held[n]]),
        ]
        for n in order
    ]
    drawn = [
        f"![Mean ranks: {_describe_ranking(r)}](results/figures/{overall_name(i)}.png)"
        for i, r in enumerate(ranked)
    ]
    few = "" if ranked else "A ranking needs two tables that share three strategies."
    said = "\n".join(
        f"- {_describe_ranking(r)}: {_friedman(r.friedman, 'tables')}." for r in ranked
    )
    return "\n\n".join(filter(None, [grid(head, rows), said or few, *drawn]))


def overall_name(i: int) -> str:
    """The file of the i-th ranking's diagram."""
    return "overall" if i == 0 else f"overall-{i + 1}"


def _describe_ranking(r: Ranking) -> str:
    return f"{len(r.names)} strategies over {len(r.blocks)} tables ({', '.join(r.blocks)})"


def hard_block(tables: Sequence[Table], measured: Mapping[str, ByVariant]) -> str:
    """A matrix for each data set: strategies down, hardships across."""
    parts = []
    for data in dict.fromkeys(t.name.partition("-")[0] for t in tables):
        there = [
            (t, n)
            for t in tables
            if t.name.partition("-")[0] == data
            for n in (measured.get(t.name) or {}).values()
        ]
        if there:
            parts.append(f"**{data}**\n\n{_matrix(there)}")
    return "\n\n".join(parts) or "Not measured yet: `make results`."


def _matrix(columns: Sequence[tuple[Table, Numbers]]) -> str:
    names = dict.fromkeys(r.name for _, n in columns for r in n.rows if r.name != RANDOM)
    gains = {name: [_gain(n.row(name)) for _, n in columns] for name in names}
    # A mean over other columns than the rest have would compare easy pools with hard ones.
    means = {n: -inf if None in own else _average(own) for n, own in gains.items()}
    rows = []
    own = [n.row(RANDOM) for _, n in columns]
    if any(own):
        rows.append([f"{RANDOM}, curve, %", *(spread(r and r.area) for r in own), "—"])
    for name in sorted(names, key=lambda n: (-means[n], -_average(gains[n]))):
        cells = [difference_text(row and row.gain) for row in (n.row(name) for _, n in columns)]
        rows.append([_name(name), *cells, _format_signed(means[name])])
    return grid([f"curve − {RANDOM}, points", *(t.short for t, _ in columns), "mean"], rows)


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; numbers to the right."""
    align = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, align, *rows))


def spread(e: Estimate | None, *, signed: bool = False) -> str:
    """93.2 ± 0.8, in per cent or points; one seed has no interval."""
    if e is None:
        return "—"
    half = "" if e.low is None or e.high is None else f" ± {50 * (e.high - e.low):.1f}"
    return format_mean(e, signed=signed) + half


def difference_text(versus: Versus | None) -> str:
    """+1.4 ± 0.7 ▲"""
    if versus is None:
        return "—"
    return spread(versus.difference, signed=True) + MARKS[versus.verdict]


def _p(versus: Versus | None) -> str:
    return "—" if versus is None else bare_p(versus.p)


def bare_p(p: float) -> str:
    """For a column that is headed p."""
    return format_p_value(p).removeprefix("p ").removeprefix("= ")


def _needs(s: Saving | None, budget: float, plain: bool) -> str:
    """Labels, and how many times as many random needs."""
    if s is None:
        return "—"
    count = format_labels(s.other, budget)
    if plain or isinf(s.other):
        return count
    if s.ratio_low is None or s.ratio_high is None:
        return f"{count} ({s.ratio:.1f}×)"
    low = "< 1" if s.ratio_low == 0 else f"{s.ratio_low:.1f}"
    return f"{count} ({s.ratio:.1f}×; {low} to {s.ratio_high:.1f})"


def _tests(measured: Mapping[str, Numbers]) -> list[str]:
    """A sentence for each result; variants of which the same is to be said share one."""
    said: dict[str, list[str]] = {}
    for variant, n in measured.items():
        none = "no test was made, which needs two strategies with two seeds in common"
        text = none if n.friedman is None else _friedman(n.friedman, "seeds")
        said.setdefault(text, []).append(variant)
    if len(measured) == 1:
        return [f"{text[0].upper()}{text[1:]}." for text in said]
    return [f"{', '.join(variants)}: {text}." for text, variants in said.items()]


def _contrasts(table: Table, measured: Mapping[str, Numbers]) -> str:
    """Pairs that the table file names, each tested by itself."""
    said = []
    for one, two in table.contrasts:
        for variant, n in measured.items():
            versus = contrast(n.curves, one, two)
            if versus is not None:
                where = f" ({variant})" if variant else ""
                said.append(
                    f"{one} − {two}{where} {difference_text(versus)}, {format_p_value(versus.p)}"
                )
    return f"Along the curve, paired, each p by itself: {'; '.join(said)}." if said else ""


def _friedman(o: Omnibus, blocks: str) -> str:
    name = "Friedman’s test" if o.test == "Friedman" else "Wilcoxon’s test"
    verdict = "the strategies differ" if o.p < ALPHA else "no difference is seen"
    return f"{name} over {o.blocks} {blocks}: {format_p_value(o.p)}, {verdict}"


def _list_missing_campaigns(measured: Mapping[str, Numbers]) -> list[str]:
    lacking: dict[str, int] = {}
    for n in measured.values():
        for name, count in n.curves.missing.items():
            lacking[name] = lacking.get(name, 0) + count
    if not lacking:
        return []
    each = ", ".join(f"{name} ({count})" for name, count in lacking.items())
    return [f"**Not finished** (campaigns that are missing): {each}."]


def _tally(versus: Sequence[Versus | None]) -> str:
    verdicts = [v.verdict for v in versus if v is not None]
    return " / ".join(str(verdicts.count(v)) for v in (1, 0, -1)) if verdicts else "—"


def _gain(row: Row | None) -> float | None:
    return None if row is None or row.gain is None else row.gain.difference.mean


def _average(values: Sequence[float | None]) -> float:
    there = [v for v in values if v is not None]
    return float(np.mean(there)) if there else float("-inf")


def _format_signed(value: float) -> str:
    return "—" if isinf(value) else format_mean(Estimate(value, None, None, 1), signed=True)


def _name(name: str) -> str:
    return f"**{name}**" if name == DEFAULT else name
