"""The command line: thin commands over `campaign` and `query`.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. Errors are one sentence; `--debug`
shows where they came from.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from labelahead.errors import InputError, LabelaheadError

try:
    import typer
    from rich.console import Console
except ImportError:  # the light core alone
    sys.exit("the command line needs more packages: pip install 'labelahead[app]'")

app = typer.Typer(
    name="labelahead",
    help="Ask for the labels that matter most: active learning by tangent-kernel look-ahead.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=True,
)
out, err = Console(), Console(stderr=True)
_debug = False

Option = typer.Option
Text = str | None
Number = int | None


class UsageError(InputError):
    """What was typed cannot be meant: exit code 2."""


@contextmanager
def _reported(hint: str = "") -> Iterator[None]:
    """Errors as one sentence and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"interrupted{hint}", style="yellow", highlight=False)
        raise typer.Exit(130) from None
    except BrokenPipeError:  # whoever read our output has gone
        sys.stderr.close()
        raise typer.Exit(1) from None
    except LabelaheadError as error:
        if _debug:
            raise
        err.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None
    except typer.Exit:
        raise
    except Exception as error:
        if _debug:
            raise
        what = f"{type(error).__name__}: {error}"
        err.print(
            f"error: {what} (unexpected; run `labelahead --debug ...` for the details)",
            style="red", markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        raise typer.Exit(1) from None


def _version(wanted: bool) -> None:
    if wanted:
        from labelahead import __version__

        out.print(f"labelahead {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[bool, Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Say which version.")
    ] = False,
) -> None:
    global _debug
    _debug = debug


# One meaning, one spelling, in every command.
DataOpt = Annotated[
    Text, Option("--data", help="A known set, a file or a folder. (default: digits)")
]
RootOpt = Annotated[Text, Option("--root", help="Folder that holds a known set.")]
ModelOpt = Annotated[Text, Option("--model", help="A network, or your own as module:factory.")]
WidthOpt = Annotated[float | None, Option("--width", help="The network's width.")]
StrategyOpt = Annotated[Text, Option("--strategy", help="How to choose. (default: flip)")]
ModeOpt = Annotated[Text, Option("--mode", help="top, greedy or sequential.")]
KernelOpt = Annotated[Text, Option("--kernel", help="pseudo, single, trace or full.")]
CandOpt = Annotated[Number, Option("--candidates", help="Score at most so many items.")]
SeedOpt = Annotated[Number, Option("--seed", help="Same seed, same campaign.")]
ThreadOpt = Annotated[Number, Option("--threads", help="Threads for torch.")]
ConfigOpt = Annotated[Path | None, Option("--config", help="A TOML file; options override it.")]
SetOpt = Annotated[
    list[str] | None,
    Option("--set", help="Any other key, e.g. --set training.rate=0.1. Repeatable."),
]


@app.command()
def run(
    data: DataOpt = None,
    root: RootOpt = None,
    model: ModelOpt = None,
    width: WidthOpt = None,
    strategy: StrategyOpt = None,
    mode: ModeOpt = None,
    kernel: KernelOpt = None,
    candidates: CandOpt = None,
    initial: Annotated[Number, Option(help="Random labels to start with. (default: 20)")] = None,
    labels: Annotated[Number, Option(help="Labels in all. (default: 100)")] = None,
    retrain_every: Annotated[Number, Option(help="Labels between trainings. (default: 10)")] = None,
    seed: SeedOpt = None,
    threads: ThreadOpt = None,
    folder: Annotated[
        Path | None, Option("--out", help="Folder for the results. (default: runs/...)")
    ] = None,
    config: ConfigOpt = None,
    changes: SetOpt = None,
) -> None:
    """Simulate a whole campaign on labelled data: train, ask, and again, with a live curve.

    Examples:

      labelahead run

      labelahead run --data mnist --root DIR --model cnn --strategy flip --seed 3 --out runs/a

      labelahead run --config my.toml --set training.steps=300
    """
    with _reported():
        campaign = _configured(config, changes, {
            "data.name": data, "data.root": root, "model.name": model, "model.width": width,
            "asking.strategy": strategy, "asking.mode": mode, "asking.kernel": kernel,
            "asking.candidates": candidates, "budget.initial": initial, "budget.labels": labels,
            "budget.retrain_every": retrain_every, "seed": seed, "threads": threads,
        })  # fmt: skip
    from labelahead.campaign import run as run_campaign

    target = folder or _free_folder(campaign)
    hint = f"; nothing is lost: labelahead resume {target}"
    with _reported(hint):
        _campaign(lambda **watch: run_campaign(campaign, out=target, **watch), campaign)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of an interrupted run.")],
) -> None:
    """Go on with an interrupted campaign; it ends as if it had never stopped.

    Example:

      labelahead resume runs/a
    """
    with _reported(f"; nothing is lost: labelahead resume {folder}"):
        from labelahead.campaign import resume as resume_campaign
        from labelahead.config import parse, read

        if not (folder / "config.toml").exists():
            raise UsageError(f"{folder} holds no campaign; expected the folder of a `run --out`")
        campaign = parse(read(folder / "config.toml"))
        _campaign(lambda **watch: resume_campaign(folder, **watch), campaign)


@app.command()
def query(
    data: Annotated[str, Option("--data", help="A folder of images, or a table.")],
    labels: Annotated[Path | None, Option("--labels", help="CSV or JSON: item,label.")] = None,
    n: Annotated[int, Option("--n", min=1, help="How many items to ask for.")] = 10,
    classes: Annotated[str, Option(help="Class names, comma-separated, if labels miss some.")] = "",
    model: ModelOpt = None,
    width: WidthOpt = None,
    root: RootOpt = None,
    target: Annotated[Text, Option("--target", help="A table's column of labels.")] = None,
    strategy: StrategyOpt = None,
    mode: ModeOpt = None,
    kernel: KernelOpt = None,
    candidates: CandOpt = None,
    seed: SeedOpt = None,
    threads: ThreadOpt = None,
    form: Annotated[str, Option("--format", help="csv or json.")] = "csv",
    file: Annotated[Path | None, Option("--out", help="Write here instead of the screen.")] = None,
    config: ConfigOpt = None,
    changes: SetOpt = None,
) -> None:
    """Real data: which items to label next, best first, as CSV or JSON.

    Examples:

      labelahead query --data photos/ --classes cat,dog --n 20

      labelahead query --data photos/ --labels labels.csv --n 20 --out next.csv

      labelahead query --data photos/ --labels labels.csv --model mypkg.net:make --format json
    """
    with _reported():
        if form not in ("csv", "json"):
            raise UsageError(f"--format is {form!r}; expected csv or json")
        campaign = _configured(config, changes, {
            "data.name": data, "data.root": root, "data.target": target, "model.name": model,
            "model.width": width, "asking.strategy": strategy, "asking.mode": mode,
            "asking.kernel": kernel, "asking.candidates": candidates, "seed": seed,
            "threads": threads,
        })  # fmt: skip
        from labelahead.query import as_text
        from labelahead.query import query as ask
        from labelahead.show import doing

        names = [c.strip() for c in classes.split(",") if c.strip()]
        with err.status("loading") as status:
            found, ready = ask(
                campaign, n, labels=labels, classes=names,
                progress=lambda what, done, total: status.update(doing(what, done, total)),
            )  # fmt: skip
        for note in ready.notes:
            err.print(note, style="dim", markup=False, highlight=False)
        text = as_text(found, form)
        if file is None:
            sys.stdout.write(text)
        else:
            partial = file.with_name(file.name + ".partial")
            partial.write_text(text, encoding="utf-8")
            partial.replace(file)
            err.print(f"{len(found)} items to label are in {file}", highlight=False)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="strategies, models or data")],
) -> None:
    """What there is: strategies, models, data.

    Example:

      labelahead list strategies
    """
    with _reported():
        from labelahead.show import CATALOGUES, catalogue

        if what not in CATALOGUES:
            raise UsageError(f"no list of {what!r}; expected one of {', '.join(CATALOGUES)}")
        out.print(catalogue(what))


def _configured(config: Path | None, changes: list[str] | None, options: dict[str, Any]) -> Any:
    from labelahead.config import assemble

    try:
        return assemble(config, changes or [], options)
    except InputError as error:
        raise UsageError(str(error)) from error


def _campaign(go: Callable[..., Any], campaign: Any) -> None:
    """Run, show, and say where everything lies."""
    from labelahead.show import board, curve_png, rounds_table

    name = Path(campaign.data.name).name or campaign.data.name
    title = f"{name}, {campaign.asking.strategy}, seed {campaign.seed}"

    def ready(found: Any) -> None:
        for note in found.notes:
            out.print(note, style="dim", markup=False, highlight=False)

    with board(out, campaign.budget.labels, title) as watch:
        result = go(progress=watch.progress, on_round=watch.round, on_ready=ready)
    out.print()
    out.print(rounds_table(result.rounds))
    out.print(f"\neverything is in {result.folder}", highlight=False, soft_wrap=True)
    if any(r.accuracy is not None for r in result.rounds):
        picture = curve_png(result.rounds, result.folder / "curve.png", title)
        out.print(f"the curve: {picture}", highlight=False, soft_wrap=True)


def _free_folder(campaign: Any) -> Path:
    """runs/digits-flip-0, or with the first number that is free."""
    name = Path(campaign.data.name).stem or "data"
    base = Path("runs") / f"{name}-{campaign.asking.strategy}-{campaign.seed}"
    found, count = base, 1
    while found.exists():
        count += 1
        found = base.with_name(f"{base.name}-{count}")
    return found


def main() -> None:
    """The entry point."""
    app()
