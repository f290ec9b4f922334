"""The HTML report of a comparison, readable offline, with figures and CSV files."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from labelahead.errors import import_extra
from labelahead.files import make_folder, replace_file
from labelahead.learner.config import NONE
from labelahead.learner.guessers import CLASS_NAMES
from labelahead.simulation.comparison import tables
from labelahead.simulation.comparison.curves import Curves, read_curves
from labelahead.simulation.comparison.figures import css_colours, draw_figures
from labelahead.simulation.comparison.plan import campaign_tables
from labelahead.simulation.comparison.plot_style import PALETTE
from labelahead.simulation.comparison.summary import (
    QUERY_STAGES,
    ContenderSummary,
    Summary,
    summarise,
)
from labelahead.strategies import find_strategy

__all__ = ["WrittenReport", "report", "template", "write_all"]


REPORT_FILE_NAME = "report.html"
MIN_SEEDS = 5  # with fewer, tests have little power


@dataclass(frozen=True)
class WrittenReport:
    """Where the report is, with its headline.

    >>> written = report("runs/b")
    >>> written.page.name, "random" in written.headline
    ('report.html', True)
    """

    page: Path
    headline: str
    explanation: str
    warnings: tuple[str, ...]


def report(
    folder: str | Path,
    *,
    accuracies: Sequence[float] = (),
    out: str | Path | None = None,
    trust_code: bool = False,
) -> WrittenReport:
    """Write the report of a comparison's finished campaigns.

    Args:
        folder: The comparison's folder.
        accuracies: Further accuracies to count the labels to.
        out: Where to write; default: FOLDER/report.
        trust_code: See `read_comparison`.

    >>> report("runs/b", accuracies=[0.5]).page.exists()
    True
    """
    import_extra("scikit_posthocs", "report", "a report")
    summary = summarise(read_curves(folder, trust_code=trust_code), accuracies)
    drawn = draw_figures(summary)
    first, more = tables.build_headline(summary)
    warnings = _list_warnings(summary)
    config = _format_config(summary)
    page = template("report.html.jinja").render(
        summary=summary,
        measure=summary.curves.measure,
        headline=first,
        explanation=more,
        warnings=warnings,
        config=config,
        figures={name: p.inline for name, p in drawn.items()},
        swatch=css_colours(summary),
        palette=PALETTE,
        tables=tables,
        titles=_describe_figures(summary),
        budget=float(summary.curves.labels[-1]),
        commands=_list_commands(summary),
        machines=_count_machines(summary.curves),
        times=_tabulate_seconds(summary),
        matrix=_tabulate_differences(summary),
        verdicts=tables.describe_differences(summary),
        incidents=_list_incidents(summary.curves),
        papers={a: find_strategy(a.strategy) for a in summary.contenders},
    )
    target = Path(folder) / "report" if out is None else Path(out)
    content: dict[str, str | bytes] = {
        REPORT_FILE_NAME: page,
        "campaign.toml": config,
        **tables.build_csv_files(summary),
    }
    for name, picture in drawn.items():
        content |= {f"{name}.png": picture.png, f"{name}.svg": picture.svg}
    write_all(target, content, last=REPORT_FILE_NAME)
    return WrittenReport(target / REPORT_FILE_NAME, first, more, warnings)


def _list_warnings(summary: Summary) -> tuple[str, ...]:
    """Return the caveats that readers need before they rely on the report."""
    curves = summary.curves
    notes = [c.text for c in curves.checks if not c.holds]
    if curves.missing:
        some = "; ".join(curves.missing[:6]) + (" …" if len(curves.missing) > 6 else "")
        notes.append(
            f"{len(curves.missing)} campaigns are not finished and not counted: {some}. Means use "
            "each strategy’s own seeds; differences and tests use the seeds that both strategies "
            "have in common."
        )
    seeds = len(curves.seeds(*summary.contenders))
    if seeds < MIN_SEEDS:
        have = {0: "No seed is", 1: "One seed is"}.get(seeds, f"Only {seeds} seeds are")
        notes.append(
            f"{have} finished for every strategy: intervals are wide or missing, and tests have "
            "little power. Six or more seeds are usual: add some with --seeds."
        )
    return (*notes, *curves.notes)


def _format_config(summary: Summary) -> str:
    """Return the fully resolved campaign, for --config."""
    import tomli_w

    return tomli_w.dumps(campaign_tables(summary.curves.done[0].campaign))


def _describe_figures(summary: Summary) -> dict[str, str]:
    """Return short descriptions, also as alternative texts of the figures."""
    measure = summary.curves.measure
    ends = "; ".join(f"{r.contender.name} {measure.format(r.final.mean)}" for r in summary.rows)
    data = (
        Path(summary.curves.comparison.campaign.data.name).name
        or summary.curves.comparison.campaign.data.name
    )
    first, last = (f"{summary.curves.labels[i]:.0f}" for i in (0, -1))
    gains = "; ".join(
        f"{r.contender.name} {tables.format_estimate(r.gain, signed=True, measure=measure)}"
        f"{measure.points}"
        for r in summary.rows
        if r.gain
    )
    ranks = ""
    if summary.ranks is not None:
        pairs = zip(summary.ranks.contenders, summary.ranks.mean, strict=True)
        ranks = "; ".join(f"{a.name} {rank:.1f}" for a, rank in pairs)
    return {
        "data": data,
        "curves": f"Test {measure.title} from {first} to {last} labels. Final {measure.title}: "
        f"{ends}.",
        "difference": f"Mean difference from {summary.reference.name} along the curve: {gains}.",
        "intervals": f"Difference from {summary.reference.name} with 95 % intervals: {gains}.",
        "critical-difference": f"Mean ranks, 1 is best: {ranks}.",
    }


def _list_commands(summary: Summary) -> list[str]:
    """Return the commands that repeat the comparison, one per run of consecutive seeds."""
    comparison = summary.curves.comparison
    seeds = list(comparison.seeds)
    names = ",".join(dict.fromkeys(a.spec for a in comparison.contenders))
    if comparison.embeddings:
        names += f" --embedding {shlex.quote(','.join(comparison.embeddings))}"
    prior = [name for name in comparison.guesses if name in (NONE, CLASS_NAMES)]
    names += f" --prior {','.join(prior)}" if prior else ""
    for name in comparison.guesses:
        names += f" --guesses {shlex.quote(name)}" if name not in prior else ""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return [
        f"labelahead compare --config campaign.toml --strategies {names} --seed {run[0]} --seeds "
        f"{len(run)} --out again"
        for run in runs
    ]


def _count_machines(curves: Curves) -> list[tuple[str, int]]:
    """Return the distinct machines and versions with their numbers of campaigns."""
    count: dict[str, int] = {}
    for done in curves.done:
        about = "; ".join(f"{key} {value}" for key, value in done.machine.items())
        count[about or "not recorded"] = count.get(about or "not recorded", 0) + 1
    return sorted(count.items(), key=lambda item: -item[1])


def _list_incidents(curves: Curves) -> list[str]:
    """Return dead workers and failed campaigns in order."""
    return [
        f"{row.get('campaign', '?')}: {what} {row.get('detail', '')}"
        for row in curves.events
        if (what := {"died": "its worker died", "failed": "failed:"}.get(str(row.get("what"))))
    ]


def _tabulate_seconds(summary: Summary) -> dict[str, Any]:
    """Return the table of seconds; None if a strategy has no such stage."""
    seen = dict.fromkeys(part for row in summary.rows for part in row.seconds if part != "train")
    parts = [p for p in QUERY_STAGES if p in seen] + [p for p in seen if p not in QUERY_STAGES]

    def line(row: ContenderSummary) -> dict[str, Any]:
        by_part = [row.seconds.get(p) for p in parts]
        known = [seconds for seconds in by_part if seconds is not None]
        return {
            "contender": row.contender,
            "train": row.seconds.get("train"),
            "parts": by_part,
            "query_total": sum(known) if known else None,
        }

    return {"parts": parts, "rows": [line(r) for r in summary.rows]}


def _tabulate_differences(summary: Summary) -> list[list[tuple[str, str, bool] | None]]:
    """Return row minus column: points, corrected p-value, and whether it is significant."""
    measure = summary.curves.measure
    spec = "+.1f" if measure.is_share else "+.3g"

    def cell(i: int, j: int) -> tuple[str, str, bool] | None:
        pair = summary.pair(summary.contenders[i], summary.contenders[j]) if i != j else None
        if pair is None:
            return None
        gap = pair.difference.mean * (1 if pair.first == i else -1)
        text = f"{measure.scale(gap):{spec}}".replace("-", "−")
        return text, tables.format_p_value(pair.holm), pair.holm < tables.ALPHA

    return [
        [cell(i, j) for j in range(len(summary.contenders))] for i in range(len(summary.contenders))
    ]


# --- for every page
# -----------------------------------------------------------------------------------------


def template(name: str, package: str = "labelahead.simulation.comparison") -> Any:
    """Load a page's template; all pages share one style sheet."""
    jinja = import_extra("jinja2", "report", "a report")

    def text(wanted: str) -> str:
        where = package if wanted == name else "labelahead.simulation.comparison"
        return resources.files(where).joinpath(wanted).read_text("utf-8")

    pages = jinja.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja.StrictUndefined,
        loader=jinja.FunctionLoader(text),
    )
    # Non-breaking spaces keep numbers and their units together.
    pages.filters["tight"] = lambda tables: re.sub(r" (?=[%=<] ?)|(?<=[=<>]) ", "\u00a0", tables)
    return pages.get_template(name)


def write_all(target: Path, content: Mapping[str, str | bytes], last: str) -> None:
    """Write every file in one step each, the page last, so that it never links to missing files."""
    make_folder(target)
    for name in sorted(content, key=lambda n: n == last):
        replace_file(target / name, content[name])
