"""`labelahead route`: who labels what, for the least money."""

from pathlib import Path
from typing import Annotated, Any

import typer

from labelahead.cli import shell
from labelahead.cli.shell import Option, Text, UsageError, app, err, out, print_line, report_errors
from labelahead.errors import InputError, count_noun

CURVE_WIDTH = 70
MIN_CURVE_RANGE = 0.001  # of accuracies, below which the curve is not drawn


@app.command()
def route(
    context: typer.Context,
    data: Annotated[
        str, typer.Argument(help="Folder of images or sounds, table, or data set name.")
    ],
    price: Annotated[
        str, Option("--price", help="Of one label: human=0.10,llm=0.001, in any unit.")
    ],
    guesses: Annotated[
        Text, Option("--guesses", help="Column or file with what the language model says so far.")
    ] = None,
    labels: Annotated[
        Path | None,
        Option("--labels", help="A file of people's labels. (default: those in the data)"),
    ] = None,
    target_accuracy: Annotated[
        float | None,
        Option("--target-accuracy", help="Cheapest split that reaches it. (default: 0.95)"),
    ] = None,
    budget_money: Annotated[
        float | None, Option("--budget-money", help="Most accurate split for at most this cost.")
    ] = None,
    value: Annotated[
        float | None,
        Option(
            "--value",
            help="What a point of accuracy is worth: leave out labels that cost more than they bring.",
        ),
    ] = None,
    person_error: Annotated[
        float | None,
        Option(
            "--person-error",
            help="Share of wrong labels of people. (default: estimated where people overlap, else 0)",
        ),
    ] = None,
    file: Annotated[Path, Option("--out", help="Output file.")] = Path("routes.csv"),
    plot: Annotated[
        Path | None, Option("--plot", help="Also draw accuracy against cost into this .png.")
    ] = None,
    classes: shell.ClassesOpt = None,
    embedding: shell.EmbeddingOpt = None,
    target: shell.TargetOpt = None,
    id: shell.IdOpt = None,
    root: shell.RootOpt = None,
    batch_size: shell.BatchSizeOpt = None,
    encoder_workers: shell.WorkersOpt = None,
    seed: shell.SeedOpt = None,
    threads: shell.ThreadOpt = None,
    config: shell.ConfigOpt = None,
    changes: shell.SetOpt = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Split a pool: the model is sure, ask the language model, ask a person.

    Writes a CSV with the route of every item, and shows the expected accuracy and the cost.

    Examples:

      labelahead route mails.csv --labels labels.csv --guesses llm --price human=0.10,llm=0.001

      labelahead route mails.csv --labels labels.csv --guesses llm --price human=0.10,llm=0.001 --budget-money 20

      labelahead route mails.csv --labels labels.csv --guesses llm --price human=0.10,llm=0.001 --value 5
    """
    with report_errors():
        from labelahead.acquisition.sources import parse_prices
        from labelahead.cli.terminal import ProgressText
        from labelahead.files import replace_file
        from labelahead.learner.routing import RouteGoal, format_routes, route_items

        if guesses is None:
            raise UsageError(
                "--guesses is missing; expected the column or file with what the language model says"
            )
        try:
            goal = RouteGoal(
                parse_prices(price), target_accuracy, budget_money, person_error, value
            )
        except InputError as error:
            raise UsageError(str(error)) from error
        for option, path in (("--out", file), ("--plot", plot)):
            if path is not None and (path.is_dir() or not path.parent.is_dir()):
                raise UsageError(f"{option} is {path}; expected a file in a folder that exists")
        if plot is not None and plot.suffix.lower() != ".png":
            raise UsageError(f"--plot is {plot}; expected a file that ends in .png")
        context.params["guesses"] = [guesses]
        campaign, words = shell.build_campaign(context), ProgressText()
        with err.status("loading") as status:
            report = route_items(
                campaign,
                goal,
                labels=labels,
                progress=lambda what, done, total: status.update(words.describe(what, done, total)),
            )
        replace_file(file, format_routes(report.items))
        _show(report)
        print_line(f"\nthe route of every item is in {file}", on=out)
        if plot is not None:
            _write_plot(report, plot)
            print_line(f"plot: {plot}", on=out)


def _show(report: Any) -> None:
    """Print the split, the curve and the estimates behind them."""
    for note in report.notes:
        print_line(note, "yellow", on=out)
    right, low, high, count = report.guess_accuracy
    print_line(
        f"the guesses are right for {right:.0%} of {count_noun(count, 'labelled item')} "
        f"({low:.0%} to {high:.0%})",
        "dim",
        on=out,
    )
    print_line(report.person_error_note, "dim", on=out)
    out.print(_build_split_table(report))
    out.print()
    out.print(_build_curve_table(report))
    accuracy = report.curve.accuracy
    if len(report.curve.items) and float(accuracy[-1] - accuracy[0]) >= MIN_CURVE_RANGE:
        from rich.text import Text as RichText

        out.print(RichText.from_ansi(_draw_curve(report)))


def _build_split_table(report: Any) -> Any:
    from rich.table import Table

    meaning = {
        "labelled": "a person labelled it",
        "model": "the model is sure",
        "llm": "ask the language model",
        "human": "ask a person",
    }
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("route", no_wrap=True)
    table.add_column("")
    for name in ("items", "expected accuracy", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, (count, accuracy, cost) in report.routes.items():
        table.add_row(name, meaning[name], str(count), f"{accuracy:.1%}", f"{cost:.2f}")
    total = str(len(report.items))
    table.add_row("all", "", total, f"{report.accuracy:.1%}", f"{report.cost:.2f}", style="bold")
    return table


def _build_curve_table(report: Any) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("cost", "expected accuracy", "ask the language model", "ask a person"):
        table.add_column(name, justify="right")
    for cost, accuracy, model, human in report.points:
        chosen = "bold" if (cost, accuracy) == (report.cost, report.accuracy) else ""
        table.add_row(f"{cost:.2f}", f"{accuracy:.1%}", str(model), str(human), style=chosen)
    return table


def _draw_curve(report: Any) -> str:
    import plotext as plt

    plt.clear_figure()
    plt.theme("clear")
    plt.plot_size(CURVE_WIDTH, 14)
    accuracy = (100 * report.curve.accuracy).tolist()
    plt.plot(report.curve.cost.tolist(), accuracy, marker="braille")
    plt.scatter([report.cost], [100 * report.accuracy], marker="o")
    plt.xlabel("cost")
    plt.ylabel("expected accuracy, %")
    return str(plt.build())


def _write_plot(report: Any, path: Path) -> None:
    """Draw the expected accuracy against the cost, and mark the split."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4), dpi=150, layout="constrained")
    axes.plot(report.curve.cost.numpy(), 100 * report.curve.accuracy.numpy(), color="tab:blue")
    axes.plot([report.cost], [100 * report.accuracy], "o", color="tab:orange", label="this split")
    axes.set(xlabel="cost", ylabel="expected accuracy of all items, %")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    pyplot.close(figure)
