"""Sources of labels in `run` and `compare`: the display of accuracy against money."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from labelahead.cli import shell
from labelahead.cli.shell import Option, Text, UsageError, err, find_free_folder, out, print_line
from labelahead.errors import InputError

SourceOpt = Annotated[
    list[str] | None,
    Option(
        "--source",
        help=(
            "Simulate a source of labels: NAME:price=0.1,error=0.2 (a share, or a file with a confusion "
            "matrix), or NAME:price=0.001,labels=COLUMN|FILE. Give two."
        ),
    ),
]
BudgetMoneyOpt = Annotated[
    float | None,
    Option(
        "--budget-money",
        help="With --source: what all labels may cost. (default: half of a person for everything)",
    ),
]
PriceOpt = Annotated[
    Text,
    Option(
        "--price",
        help="Of one label by each source: anna=0.10,llm=0.001. Chooses whom to ask, too.",
    ),
]
ErrorRateOpt = Annotated[
    Text,
    Option(
        "--error-rate",
        help="With --price: share of wrong labels, llm=0.25. (default: estimated from the labels)",
    ),
]
ValueOpt = Annotated[
    float | None,
    Option("--value", help="With --price: what a point of accuracy over the pool is worth."),
]
QueryMoneyOpt = Annotated[
    float | None, Option("--budget-money", help="With --price: what the labels may cost together.")
]
STRATEGIES = "pairs,flip,threshold,majority"
DEFAULT_SEEDS = 6
CURVE_WIDTH = 70


def read_goal(context: typer.Context) -> Any:
    """Return the prices of --price with what goes with them; None without prices."""
    from labelahead.acquisition.sources import parse_prices
    from labelahead.learner.source_query import SourceGoal

    given = context.params
    if given["price"] is None:
        for option in ("error_rate", "value", "budget_money"):
            if given[option] is not None:
                name = "--" + option.replace("_", "-")
                raise UsageError(f"{name} goes with --price, which is not there; add it")
        return None
    for option in ("strategy", "mode"):
        if given[option] is not None:
            raise UsageError(
                f"--{option} does not go with --price, which chooses by expected gain per price; "
                "leave it out"
            )
    try:
        errors = parse_prices(given["error_rate"]) if given["error_rate"] else {}
        return SourceGoal(
            parse_prices(given["price"]), errors, given["budget_money"], given["value"]
        )
    except InputError as error:
        raise UsageError(str(error)) from error


def refuse_money_without_sources(campaign: Any) -> None:
    """Raise if there is a budget of money, but no prices."""
    if campaign.budget.money is not None and not campaign.sources:
        raise UsageError(
            "--budget-money needs the prices of labels; add two sources, such as --source "
            "person:price=0.10,error=0.05 --source llm:price=0.001,error=0.25"
        )


def run_sources(campaign: Any, folder: Path, accuracies: Sequence[float] = ()) -> None:
    """Run a campaign with sources, and print where the results are."""
    from labelahead.cli.terminal import ProgressText
    from labelahead.simulation.source_campaign import run_with_sources
    from labelahead.simulation.source_comparison import ACCURACIES, draw_costs

    words = ProgressText()
    with err.status("loading") as status:

        def show_ready(prepared: Any, setting: Any) -> None:
            for note in prepared.notes:
                print_line(note, "dim", on=out)
            print_line(
                f"{setting.items} items, {setting.person.name} {setting.person.price:g} and "
                f"{setting.model.name} {setting.model.price:g} per label, at most "
                f"{setting.budget:.2f}",
                on=out,
            )
            status.update("labelling")

        def show_round(entry: Any) -> None:
            labels = ", ".join(f"{count} by {name}" for name, count in entry.labels.items())
            print_line(
                f"round {entry.number:3d}   cost {entry.cost:8.2f}   right {entry.accuracy:6.1%}   "
                f"labels: {labels}",
                on=out,
            )

        result = run_with_sources(
            campaign,
            out=folder,
            progress=lambda what, done, total: status.update(words.describe(what, done, total)),
            on_ready=show_ready,
            on_round=show_round,
        )
    if not result.rounds:
        print_line(f"no label can be paid with {result.budget:.2f}", "yellow", on=out)
        return
    name = str(campaign.asking.strategy)
    from rich.text import Text as RichText

    out.print(RichText.from_ansi(_draw({name: [result.rounds]})))
    for accuracy in accuracies or ACCURACIES:
        cost = result.cost_of(accuracy)
        said = "not reached" if cost is None else f"{cost:.2f}"
        print_line(f"cost to reach {accuracy:.0%}: {said}", on=out)
    print_line(f"\nthe results are in {folder}", on=out)
    try:
        print_line(
            f"accuracy against cost: {draw_costs({name: [result.rounds]}, folder / 'curve.png')}"
        )
    except ImportError:
        print_line("install labelahead[report] for a picture of the curve", "dim")


def is_cost_comparison(folder: Path) -> bool:
    """Return whether a folder holds a comparison of costs."""
    from labelahead.simulation.source_comparison import is_cost_comparison as has_plan

    return has_plan(folder)


def read_costs(folder: Path) -> Any:
    """Read a comparison of costs, as far as it is finished."""
    from labelahead.simulation.source_comparison import read_costs as read

    return read(folder)


def wants_sources(context: typer.Context, folder: Path | None) -> bool:
    """Return whether the options of `compare`, or the folder that it continues, have sources."""
    if folder is not None and is_cost_comparison(folder):
        return True
    try:
        return bool(shell.gather_settings(context).get("sources"))
    except InputError as error:
        raise UsageError(str(error)) from error


def compare_sources(context: typer.Context, folder: Path | None) -> None:
    """Compare strategies by what accuracies cost."""
    from labelahead.cli.terminal import ProgressText
    from labelahead.simulation.source_comparison import compare_costs

    campaign, names, seeds = _resolve_plan(context, folder)
    place = folder or find_free_folder("compare-" + (Path(campaign.data.name).stem or "data"))
    total, words = len(names) * len(seeds), ProgressText()
    print_line(f"{len(names)} strategies × {len(seeds)} seeds = {total} campaigns", on=out)
    with err.status("loading") as status:

        def show(name: str, seed: int, rounds: Sequence[Any]) -> None:
            last = rounds[-1] if rounds else None
            end = "nothing paid" if last is None else f"{last.accuracy:6.1%} for {last.cost:.2f}"
            print_line(f"{name}, seed {seed}: {end}", on=out)

        found = compare_costs(
            campaign,
            names,
            seeds,
            place,
            progress=lambda what, done, count: status.update(words.describe(what, done, count)),
            on_campaign=show,
        )
    show_costs(found, place)


def _resolve_plan(
    context: typer.Context, folder: Path | None
) -> tuple[Any, tuple[str, ...], tuple[int, ...]]:
    """Return configuration, strategies and seeds; an existing folder supplies those not given."""
    from labelahead.learner.config import read_toml
    from labelahead.simulation.source_comparison import PLAN_FILE, parse_source_strategies

    given = context.params
    for option in ("workers", "cluster", "prior", "guesses", "budget_labels"):
        if given.get(option) not in (None, (), []):
            name = "--labels" if option == "budget_labels" else f"--{option}"
            raise UsageError(
                f"{name} does not go with --source: these campaigns count money, and run one after "
                "another from one start; leave it out"
            )
    before = read_toml(folder / PLAN_FILE) if folder and is_cost_comparison(folder) else {}
    campaign = shell.build_campaign(context, before.get("campaign"))
    try:
        text = given["strategies"] or ",".join(before.get("strategies", [])) or STRATEGIES
        names = parse_source_strategies(text)
    except InputError as error:
        raise UsageError(str(error)) from error
    if given["first"] is None and given["seeds"] is None and before:
        return campaign, names, tuple(before["seeds"])
    start = given["first"] if given["first"] is not None else (before.get("seeds") or [0])[0]
    return campaign, names, tuple(range(start, start + (given["seeds"] or DEFAULT_SEEDS)))


def show_costs(found: Any, place: Path, accuracies: Sequence[float] = ()) -> None:
    """Print what accuracies cost by strategy, and draw the curves."""
    from rich.table import Table

    from labelahead.files import replace_file
    from labelahead.simulation.source_comparison import (
        ACCURACIES,
        draw_costs,
        format_summary,
        summarise_costs,
    )

    rows = summarise_costs(found, tuple(accuracies) or ACCURACIES)
    replace_file(place / "summary.csv", format_summary(rows, found.strategies))
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("cost to reach", no_wrap=True)
    for name in found.strategies:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("pairs / cheapest other", justify="right")
    for row in rows:
        costs = [_format_cost(row.costs[name]) for name in found.strategies]
        table.add_row(f"{row.accuracy:.0%}", *costs, _describe_ratio(row))
    out.print()
    out.print(table)
    curves = {
        name: [found.curves[name, seed] for seed in found.seeds if found.curves[name, seed]]
        for name in found.strategies
    }
    drawn = {name: lines for name, lines in curves.items() if lines}
    if drawn:
        draw_costs(drawn, place / "curve.png")
    where = shlex.quote(str(place))
    print_line(f"\ncosts.csv, summary.csv and curve.png are in {where}", on=out)


def _format_cost(cost: float) -> str:
    return f"{cost:.2f}" if math.isfinite(cost) else "not reached"


def _describe_ratio(row: Any) -> str:
    if row.ratio is None:
        return "-"
    text = f"{row.ratio:.2f} of {row.cheapest}"
    return text if row.low is None else f"{text} ({row.low:.2f} to {row.high:.2f})"


def _draw(curves: Mapping[str, Sequence[Sequence[Any]]]) -> str:
    import plotext as plt

    plt.clear_figure()
    plt.theme("clear")
    plt.plot_size(CURVE_WIDTH, 14)
    for name, several in curves.items():
        for rounds in several:
            accuracy = [100 * r.accuracy for r in rounds]
            plt.plot([r.cost for r in rounds], accuracy, marker="braille", label=name)
    plt.xlabel("cost")
    plt.ylabel("right classes, %")
    return str(plt.build())
