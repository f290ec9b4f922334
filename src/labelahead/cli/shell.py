"""What every command shares: the application, exit codes, errors in one sentence, options.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. Errors are one sentence; `--debug`
shows where they came from.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from labelahead.errors import InputError, LabelaheadError
from labelahead.processes import exit_after_interrupt, raise_on_sigint

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
def report_errors(hint: str | Callable[[], str] = "") -> Iterator[None]:
    """Errors as one sentence and an exit code."""

    def more() -> str:
        return hint if isinstance(hint, str) else hint()

    try:
        with raise_on_sigint(more):
            yield
    except KeyboardInterrupt:
        print_line(f"interrupted{more()}", "yellow")
        sys.stdout.flush()
        exit_after_interrupt()
        raise typer.Exit(130) from None
    except BrokenPipeError:  # whoever read our output has gone
        sys.stderr.close()
        raise typer.Exit(1) from None
    except typer.Exit:
        raise
    except Exception as error:
        if _debug:
            raise
        print_line(f"error: {_describe_error(error)}", "red")
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None


def _describe_error(error: Exception) -> str:
    if isinstance(error, LabelaheadError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return (
        f"{type(error).__name__}: {error} (unexpected; run `labelahead --debug ...` for the "
        "details)"
    )


def print_line(text: str, style: str = "", on: Console = err) -> None:
    """A line as it is: no markup, no colours for numbers, no line breaks."""
    on.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        from labelahead import __version__

        out.print(f"labelahead {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[bool, Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Say which version.")
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
EmbeddingOpt = Annotated[
    Text,
    Option("--embedding", help="What it learns from: `list embeddings`, a column, file.py:name."),
]
TargetOpt = Annotated[Text, Option("--target", help="A table's column of labels.")]
ClassesOpt = Annotated[
    Text,
    Option(
        "--classes",
        help='Class names, comma-separated ("a, b" in quotes). (default: those of the data)',
    ),
]
IdOpt = Annotated[
    Text,
    Option(
        "--id",
        help=(
            "A table's column of ids; none: row numbers. (default: id, else file name or row "
            "number)"
        ),
    ),
]
WidthOpt = Annotated[float | None, Option("--width", help="The network's width.")]
StrategyOpt = Annotated[
    Text, Option("--strategy", help="How to choose, or your own: file.py:name. (default: flip)")
]
ModeOpt = Annotated[Text, Option("--mode", help="top, greedy or sequential.")]
KernelOpt = Annotated[Text, Option("--kernel", help="pseudo, single, trace or full.")]
CandOpt = Annotated[Number, Option("--candidates", help="Score at most so many items.")]
InitialOpt = Annotated[
    Number, Option("--initial", help="Random labels to start with. (default: 20)")
]
LabelsOpt = Annotated[Number, Option("--labels", help="Labels in all. (default: 100)")]
RetrainOpt = Annotated[
    Number, Option("--retrain-every", help="Labels between trainings. (default: 10)")
]
SeedOpt = Annotated[Number, Option("--seed", help="Same seed, same campaign.")]
ThreadOpt = Annotated[Number, Option("--threads", help="Threads for torch.")]
ConfigOpt = Annotated[Path | None, Option("--config", help="A TOML file; options override it.")]
TrustOpt = Annotated[
    bool,
    Option("--trust-code", help="Run code that a folder or --config names, also somebody else's."),
]
SetOpt = Annotated[
    list[str] | None,
    Option("--set", help="Any other key, e.g. --set training.rate=0.1. Repeatable."),
]


# What an option is called in a configuration; every command that has it means the same by it.
OPTION_KEYS = {
    "data": "data.name",
    "root": "data.root",
    "target": "data.target",
    "classes": "data.classes",
    "id": "data.id",
    "embedding": "data.embedding",
    "model": "model.name",
    "width": "model.width",
    "strategy": "asking.strategy",
    "mode": "asking.mode",
    "kernel": "asking.kernel",
    "candidates": "asking.candidates",
    "initial": "budget.initial",
    "budget_labels": "budget.labels",
    "retrain_every": "budget.retrain_every",
    "seed": "seed",
    "threads": "threads",
    "device": "device",
}


def list_given_options(context: typer.Context) -> dict[str, Any]:
    """What was given of KEYS, by dotted key."""
    given = context.params
    return {key: given[name] for name, key in OPTION_KEYS.items() if given.get(name) is not None}


def build_campaign(context: typer.Context, base: Mapping[str, Any] | None = None) -> Any:
    """The campaign that --config, --set and options make; what does not fit is wrong usage."""
    from labelahead.learner.config import load_campaign

    given = context.params
    try:
        trust = bool(given.get("trust_code"))
        return load_campaign(
            given["config"],
            given["changes"] or [],
            list_given_options(context),
            base,
            trust_code=trust,
        )
    except InputError as error:
        raise UsageError(str(error)) from error


def find_typed_code(context: typer.Context, *more: str) -> set[str]:
    """The code that the user names on this very command line, by options or by --set, and `more`
    names.
    """
    from labelahead.learner.config import merge_tables
    from labelahead.models.trusted_code import find_code_names

    named = merge_tables(None, context.params.get("changes") or [], list_given_options(context))
    return {*find_code_names(named).values(), *more}


def gather_settings(context: typer.Context) -> dict[str, Any]:
    """What --config, --set and options say, by table."""
    from labelahead.learner.config import merge_tables

    return merge_tables(
        context.params["config"], context.params["changes"] or [], list_given_options(context)
    )


def find_free_folder(name: str) -> Path:
    """runs/digits-flip-0, or with the first number that is free."""
    base = Path("runs") / re.sub(
        r'[\\/:*?"<>|\0-\x1f]+', "-", name
    )  # data and strategies have any name
    folder, count = base, 1
    while folder.exists():
        count += 1
        folder = base.with_name(f"{base.name}-{count}")
    return folder
