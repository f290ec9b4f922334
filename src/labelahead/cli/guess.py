"""`labelahead guess`, and the language model of --guesses llm:URL in other commands."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from labelahead.cli import shell
from labelahead.cli.shell import Number, Option, Text, UsageError, app, err, print_line

LlmModelOpt = Annotated[
    Text, Option("--llm-model", help="With --guesses llm:URL: name of the language model.")
]
PromptOpt = Annotated[
    Path | None,
    Option("--prompt", help="With llm:URL: a text file with {classes}, and {item} if you like."),
]
LimitOpt = Annotated[
    Number, Option("--llm-limit", min=1, help="With llm:URL: ask about so many items for now.")
]
RateOpt = Annotated[
    float | None, Option("--llm-rate", help="With llm:URL: requests per minute, at most.")
]
PriceInputOpt = Annotated[
    float | None,
    Option("--llm-price-input", min=0, help="With llm:URL: price of a million input tokens."),
]
PriceOutputOpt = Annotated[
    float | None,
    Option("--llm-price-output", min=0, help="With llm:URL: price of a million output tokens."),
]
YesOpt = Annotated[bool, Option("--yes", help="With llm:URL: start without a question.")]
OutOpt = Annotated[Path, Option("--out", help="File of the guesses, .csv; it is replaced.")]
OPTIONS = ("llm_model", "prompt", "llm_limit", "llm_rate", "llm_price_input", "llm_price_output")


@dataclass(frozen=True)
class LanguageModelOptions:
    """The options of a command that asks a language model."""

    model: str | None = None
    prompt: Path | None = None
    limit: int | None = None
    rate: float | None = None
    price_input: float | None = None
    price_output: float | None = None
    yes: bool = False

    @classmethod
    def read(cls, context: typer.Context) -> "LanguageModelOptions":
        """Return the options that a command was given."""
        given = context.params
        values = {name.removeprefix("llm_"): given.get(name) for name in OPTIONS}
        return cls(**values, yes=bool(given.get("yes")))


@app.command()
def guess(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="A folder of images or texts, or a table.")],
    file: OutOpt,
    guesses: Annotated[
        str, Option("--guesses", help="Who guesses: llm:URL, model:FOLDER or file.py:function.")
    ],
    classes: shell.ClassesOpt = None,
    llm_model: LlmModelOpt = None,
    prompt: PromptOpt = None,
    llm_limit: LimitOpt = None,
    llm_rate: RateOpt = None,
    llm_price_input: PriceInputOpt = None,
    llm_price_output: PriceOutputOpt = None,
    yes: YesOpt = False,
    target: shell.TargetOpt = None,
    id: shell.IdOpt = None,
    seed: shell.SeedOpt = None,
    config: shell.ConfigOpt = None,
    changes: shell.SetOpt = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Write what a language model, an old model or your own function says about the items.

    The file is a table with id, guess and a probability for every class: look at it, correct it, and
    give it to other commands by --guesses FILE.

    Examples:

      labelahead guess reviews.csv --classes good,bad --guesses llm:http://localhost:1234 --llm-model m --out g.csv

      labelahead guess photos/ --classes cat,dog --guesses model:old-model/ --out guesses.csv
    """
    hint = "; answers so far are kept: run the same command to continue"
    with shell.report_errors(hint if guesses.startswith("llm:") else ""):
        if file.is_dir() or not file.parent.is_dir() or file.suffix.lower() != ".csv":
            raise UsageError(f"--out is {file}; expected a .csv file in a folder that exists")
        context.params["data"] = data
        context.params["guesses"] = [guesses]
        campaign = shell.build_campaign(context)
        from labelahead.data.guesses import is_guess_function, is_guess_model, is_language_model

        if is_language_model(guesses):
            written = ask_language_model(context, campaign)
            count = _copy(Path(written.data.guesses[0]), file)
        elif is_guess_model(guesses) or is_guess_function(guesses):
            count = _write_computed(campaign, guesses, file)
        else:
            raise UsageError(
                f"--guesses is {guesses!r}; expected llm:URL, model:FOLDER or file.py:function"
            )
        print_line(f"guesses about {count} items are in {file}")


def ask_language_model(context: typer.Context, campaign: Any, recorded: Sequence[str] = ()) -> Any:
    """Return the campaign with a file of guesses in place of llm:URL.

    Number of items, tokens, cost and time are shown first, and the user confirms.

    Args:
        context: of the command.
        campaign: its configuration.
        recorded: class names to use if neither options nor data have some.
    """
    from labelahead.data.guesses import is_language_model

    options = LanguageModelOptions.read(context)
    names = [name for name in campaign.data.guesses if is_language_model(name)]
    if not names:
        given = next((o for o in OPTIONS if context.params.get(o) is not None), None)
        if given is not None:
            name = "--" + given.replace("_", "-")
            raise UsageError(f"{name} goes with --guesses llm:URL, which is not there; add it")
        return campaign
    if len(names) > 1:
        raise UsageError(
            f"--guesses names {len(names)} language models; expected one: write the others to files "
            "with `labelahead guess`"
        )
    with err.status("loading"):
        data, classes = _load(campaign, recorded)
    file = _ask(names[0], data, classes, options)
    sources = tuple(str(file) if name == names[0] else name for name in campaign.data.guesses)
    return replace(campaign, data=replace(campaign.data, guesses=sources))


def _load(campaign: Any, recorded: Sequence[str]) -> tuple[Any, Any]:
    """Return the data without their labels, and the classes with their descriptions."""
    from labelahead.data.class_files import ClassList
    from labelahead.data.guesses import is_guess_column
    from labelahead.data.loading import load_source

    source = campaign.data
    columns = tuple(name for name in source.guesses if is_guess_column(name))
    # Only columns: they are no features and must not be sent.
    data, _ = load_source(replace(source, guesses=columns), campaign.seed)
    names = tuple(data.classes or source.classes or recorded)
    if len(names) < 2:
        raise UsageError(
            "guesses need the names of the classes; expected them by --classes, two or more"
        )
    return data, ClassList(names, source.class_descriptions, source.class_examples)


def _ask(name: str, data: Any, classes: Any, options: LanguageModelOptions) -> Path:
    """Ask the language model and return the file of its guesses."""
    from labelahead.data.guesses import LANGUAGE_MODEL_PREFIX
    from labelahead.learner.chat_endpoint import RequestLimits
    from labelahead.learner.guessers import list_items, write_guesses
    from labelahead.learner.language_model import LanguageModelGuesser

    if options.model is None:
        raise UsageError("--guesses llm:URL needs the name of the model; add --llm-model NAME")
    guesser = LanguageModelGuesser(
        name.removeprefix(LANGUAGE_MODEL_PREFIX),
        options.model,
        None if options.prompt is None else _read_prompt(options.prompt),
        classes,
        limits=RequestLimits(per_minute=options.rate),
    )
    with err.status("counting tokens"):
        items = list_items(data)
        estimate = guesser.estimate(items, options.limit)
    if estimate.items:
        _confirm(guesser, estimate, options)
    from labelahead.cli.terminal import ProgressText

    words = ProgressText()
    with err.status(f"asking {options.model}") as status:
        p = guesser(
            items,
            limit=options.limit,
            on_progress=lambda done, total: status.update(
                words.describe(f"asking {options.model}", done, total)
            ),
        )
    print_line(f"{options.model}: {guesser.counts.describe()}")
    return write_guesses(guesser.folder, options.model, data.ids, classes.names, p)


def _confirm(guesser: Any, estimate: Any, options: LanguageModelOptions) -> None:
    """Show what the answers will take, and ask whether to start."""
    known = f" ({estimate.answered} more are answered already)" if estimate.answered else ""
    print_line(
        f"{guesser.endpoint.url}, model {guesser.endpoint.model}: {estimate.items} items{known}, "
        f"about {estimate.input_tokens:,} input and {estimate.output_tokens:,} output tokens, "
        f"{_describe_cost(estimate, options)}, about {_format_seconds(estimate.seconds)}"
    )
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("nobody is at the terminal to confirm this; add --yes to start")
    if not typer.confirm("The items are sent to this address. Start?", err=True):
        raise UsageError("not started; nothing was sent")


def _describe_cost(estimate: Any, options: LanguageModelOptions) -> str:
    if options.price_input is None and options.price_output is None:
        return "cost unknown (--llm-price-input, --llm-price-output)"
    cost = estimate.cost(options.price_input or 0.0, options.price_output or 0.0)
    return f"cost about {cost:.2f}" if cost >= 0.1 else f"cost about {cost:.2g}"


def _format_seconds(seconds: float) -> str:
    if seconds >= 3600:
        return f"{timedelta(seconds=round(seconds))} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(1, round(seconds))} s"


def _read_prompt(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--prompt {path} cannot be read ({error}); expected UTF-8 text"
        ) from error
    if not text.strip():
        raise UsageError(f"--prompt {path} is empty; expected instructions with {{classes}}")
    return text


def _write_computed(campaign: Any, name: str, file: Path) -> int:
    """Write the guesses of a model or a function; return the number of items."""
    from labelahead.learner.guessers import compute_guesses, write_guesses

    with err.status("loading"):
        data, classes = _load(replace(campaign, data=replace(campaign.data, guesses=())), ())
    with err.status("guessing"):
        found = compute_guesses(name, classes.names, campaign.data, data)
    write_guesses(file, None, data.ids, found.classes, found.probabilities)
    return int(found.probabilities.any(1).sum())


def _copy(source: Path, file: Path) -> int:
    """Copy the guesses, and return how many there are."""
    from labelahead.data.table import read_table
    from labelahead.files import replace_file

    replace_file(file, source.read_bytes())
    return sum(1 for value in read_table(source).columns["guess"] if str(value or "").strip())
