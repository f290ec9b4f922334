"""Code shared by all commands: the typer application, error reporting and common options.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted. Errors are printed as one
sentence; `--debug` shows the traceback.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

from labelahead.errors import InputError, LabelaheadError
from labelahead.processes import exit_after_interrupt, raise_on_sigint

try:
    import typer
    from rich.console import Console
except ImportError:  # installed without the extra `app`
    sys.exit("the command line needs more packages: pip install 'labelahead[app]'")

app = typer.Typer(
    name="labelahead",
    help="Active learning with neural tangent kernels: query the labels that help most.",
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
    """The command line is not valid; the exit code is 2."""


@contextmanager
def report_errors(hint: str | Callable[[], str] = "") -> Iterator[None]:
    """Print errors as one sentence and exit with the matching code.

    Args:
        hint: Text to append when the command is interrupted, or a function that returns it.
    """

    def add_hint() -> str:
        return hint if isinstance(hint, str) else hint()

    try:
        with raise_on_sigint(add_hint):
            yield
    except KeyboardInterrupt:
        print_line(f"interrupted{add_hint()}", "yellow")
        sys.stdout.flush()
        exit_after_interrupt()
        raise typer.Exit(130) from None
    except BrokenPipeError:  # the reader of our output has closed the pipe
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
    """Print a line verbatim: without markup, number highlighting or line wrapping."""
    on.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _print_version(show_version: bool) -> None:
    if show_version:
        from labelahead import __version__

        out.print(f"labelahead {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[bool, Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool,
        Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    global _debug
    _debug = debug


def insert_options(group: Callable[..., None], after: str) -> Callable[[Callable[..., None]], Any]:
    """Add the options of a group to a command, which reads them from its context.

    Args:
        group: A function with the options as its parameters; it is never called.
        after: The parameter of the command that they follow, in `--help`, too.
    """
    inserted = inspect.signature(group, eval_str=True).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)

        @wraps(command)
        def call_command(**given: Any) -> None:
            command(**{name: value for name, value in given.items() if name not in inserted})

        parameters: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            parameters.append(parameter)
            parameters += inserted.values() if name == after else ()
        call_command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call_command

    return decorate


# Options that several commands share, with the same meaning in each.
DataOpt = Annotated[Text, Option("--data", help="Data set name, file or folder. (default: digits)")]
RootOpt = Annotated[Text, Option("--root", help="Folder of a downloaded data set.")]
ModelOpt = Annotated[Text, Option("--model", help="Network name, or your own as module:factory.")]
EmbeddingOpt = Annotated[
    Text,
    Option(
        "--embedding",
        help=(
            "Embedding: see `list embeddings`, a Hugging Face id, vectors.npy, a column, or "
            "file.py:name."
        ),
    ),
]
GuessesOpt = Annotated[
    list[str] | None,
    Option(
        "--guesses",
        help=(
            "Prior knowledge: a column or file of guesses, model:FOLDER, file.py:function or llm:URL. "
            "Repeatable."
        ),
    ),
]
PriorOpt = Annotated[
    Text,
    Option("--prior", help="class-names: similarity to the names of the classes. (default: none)"),
]
SessionPriorOpt = Annotated[
    Text,
    Option(
        "--prior",
        help=(
            "class-names: similarity to the names of the classes, or none. (default: class-names for "
            "texts whose classes are words)"
        ),
    ),
]
BatchSizeOpt = Annotated[
    Number,
    Option("--batch-size", min=1, help="Items an encoder takes at once. (default: by free memory)"),
]
WorkersOpt = Annotated[
    Number,
    Option("--workers", min=1, help="Threads that read items for an encoder. (default: cores)"),
]
TargetOpt = Annotated[Text, Option("--target", help="Label column of a table.")]
TaskOpt = Annotated[
    Text,
    Option(
        "--task",
        help="What a label is: classes (one), multilabel, number or rating. (default: classes)",
    ),
]
LabelColumnsOpt = Annotated[
    Text,
    Option(
        "--label-columns",
        help="Label columns of a table, comma-separated: 0/1 for each class, or several numbers.",
    ),
]
UnitOpt = Annotated[Text, Option("--unit", help="With --task number: the unit, such as kg.")]
LimitsOpt = Annotated[
    Text, Option("--limits", help="With --task number: least and largest number, such as 0,100.")
]
ClassesOpt = Annotated[
    Text,
    Option(
        "--classes",
        help=(
            'Class names, comma-separated ("a, b" in quotes), or a file of names, descriptions and '
            "examples. (default: those of the data)"
        ),
    ),
]
IdOpt = Annotated[
    Text,
    Option(
        "--id",
        help=(
            "Id column of a table; none: row numbers. (default: id, else file name or row number)"
        ),
    ),
]
WidthOpt = Annotated[float | None, Option("--width", help="Width of the network.")]
StrategyOpt = Annotated[
    Text, Option("--strategy", help="Query strategy, or your own as file.py:name. (default: flip)")
]
GoalOpt = Annotated[
    Text,
    Option(
        "--goal",
        help=(
            "What queries improve: accuracy, or macro-f1, in which rare classes weigh as much. "
            "(default: accuracy)"
        ),
    ),
]
ModeOpt = Annotated[Text, Option("--mode", help="Batch selection: top, greedy or sequential.")]
KernelOpt = Annotated[Text, Option("--kernel", help="Kernel: pseudo, single, trace or full.")]
CandidatesOpt = Annotated[Number, Option("--candidates", help="Maximum number of items to score.")]
InitialOpt = Annotated[
    Number, Option("--initial", help="Size of the random seed set. (default: 20)")
]
LabelsOpt = Annotated[
    Number, Option("--labels", help="Budget: total number of labels. (default: 100)")
]
RetrainOpt = Annotated[
    Number, Option("--retrain-every", help="Labels per round, between trainings. (default: 10)")
]
SeedOpt = Annotated[Number, Option("--seed", help="Random seed.")]
ThreadOpt = Annotated[Number, Option("--threads", help="Number of torch threads.")]
DeviceOpt = Annotated[
    Text,
    Option(
        "--device",
        help="Where to compute: auto, cpu, cuda, cuda:N or mps. (default: auto, the first GPU)",
    ),
]
ConfigOpt = Annotated[
    Path | None, Option("--config", help="TOML configuration file; options override it.")
]
TrustOpt = Annotated[
    bool,
    Option(
        "--trust-code",
        help="Run Python code named in a folder or --config, even if others wrote it.",
    ),
]
SetOpt = Annotated[
    list[str] | None,
    Option("--set", help="Set any configuration key, e.g. --set training.rate=0.1. Repeatable."),
]


# Configuration key of each option; an option means the same in every command.
OPTION_KEYS = {
    "data": "data.name",
    "root": "data.root",
    "target": "data.target",
    "task": "data.task",
    "label_columns": "data.label_columns",
    "unit": "data.unit",
    "limits": "data.limits",
    "classes": "data.classes",
    "id": "data.id",
    "embedding": "data.embedding",
    "guesses": "data.guesses",
    "prior": "data.prior",
    "batch_size": "data.batch_size",
    "encoder_workers": "data.workers",
    "model": "model.name",
    "width": "model.width",
    "strategy": "asking.strategy",
    "goal": "asking.goal",
    "mode": "asking.mode",
    "kernel": "asking.kernel",
    "candidates": "asking.candidates",
    "initial": "budget.initial",
    "budget_labels": "budget.labels",
    "retrain_every": "budget.retrain_every",
    "budget_money": "budget.money",
    "source": "sources",
    "seed": "seed",
    "threads": "threads",
    "device": "device",
}


def list_given_options(context: typer.Context) -> dict[str, Any]:
    """Return the options of `OPTION_KEYS` that were given, by configuration key."""
    given = context.params
    return {
        key: given[name]
        for name, key in OPTION_KEYS.items()
        if given.get(name) is not None and given[name] != ()  # not given, of repeatable options
    }


def build_campaign(context: typer.Context, base: Mapping[str, Any] | None = None) -> Any:
    """Build the campaign from --config, --set and options.

    Raises:
        UsageError: A value is not valid.
    """
    from labelahead.learner.config import load_campaign

    given = context.params
    try:
        trust = bool(given.get("trust_code"))
        campaign = load_campaign(
            given["config"],
            given["changes"] or [],
            list_given_options(context),
            base,
            trust_code=trust,
        )
    except InputError as error:
        raise UsageError(str(error)) from error
    if campaign.sources and context.info_name not in ("run", "compare"):
        raise UsageError(
            f"the configuration simulates sources ({', '.join(s.name for s in campaign.sources)}), "
            "which only `run` and `compare` do; expected a configuration without sources"
        )
    return campaign


def announce_device(name: str) -> str:
    """Print where a command computes, and return the device.

    Raises:
        UsageError: There is no such device.
    """
    from labelahead.devices import describe_device, resolve_device

    try:
        device = resolve_device(name)
    except InputError as error:
        raise UsageError(str(error)) from error
    print_line(f"device: {describe_device(device)}", "dim")
    return device


def choose_embedding(campaign: Any, labels: Path | None, stored: Path | None = None) -> Any:
    """Return the campaign with the best of the embeddings of --embedding auto:a,b,c.

    Args:
        campaign: The configuration.
        labels: A file of labels.
        stored: The settings of a session; one that exists keeps its embedding.
    """
    if not (campaign.data.embedding or "").startswith("auto:"):
        return campaign
    from dataclasses import replace

    from labelahead.cli.terminal import ProgressText
    from labelahead.learner.config import read_toml
    from labelahead.learner.encoder_comparison import resolve_auto_embedding

    if stored is not None and stored.exists():
        before = read_toml(stored)["data"]["embedding"]
        print_line(f"embedding: {before}, as this session began", "dim")
        return replace(campaign, data=replace(campaign.data, embedding=before))

    words = ProgressText()
    with err.status("comparing embeddings") as status:
        campaign, why = resolve_auto_embedding(
            campaign,
            labels,
            lambda what, done, total: status.update(words.describe(what, done, total)),
        )
    print_line(why, "dim")
    return campaign


def find_typed_code(context: typer.Context, *add_hint: str) -> set[str]:
    """Return the names of code given on this command line, by options or --set, and those in `more`."""
    from labelahead.learner.config import merge_tables
    from labelahead.models.trusted_code import find_code_names

    named = merge_tables(None, context.params.get("changes") or [], list_given_options(context))
    return {*find_code_names(named).values(), *add_hint}


def gather_settings(context: typer.Context) -> dict[str, Any]:
    """Return the settings from --config, --set and options, by table."""
    from labelahead.learner.config import merge_tables

    return merge_tables(
        context.params["config"], context.params["changes"] or [], list_given_options(context)
    )


def is_setting_given(context: typer.Context, table: str, key: str) -> bool:
    """Return whether --config, --set or an option gives a setting."""
    return key in gather_settings(context).get(table, {})


def find_free_folder(name: str) -> Path:
    """Return a folder such as runs/digits-flip-0 that does not exist yet, numbered if necessary."""
    base = Path("runs") / re.sub(
        r'[\\/:*?"<>|\0-\x1f]+', "-", name
    )  # data and strategies have any name
    folder, count = base, 1
    while folder.exists():
        count += 1
        folder = base.with_name(f"{base.name}-{count}")
    return folder
