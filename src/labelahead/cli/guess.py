"""`labelahead guess`, and the language model of --guesses llm:URL in other commands."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from labelahead.cli import shell
from labelahead.cli.shell import Number, Option, UsageError, app, err, insert_options, print_line
from labelahead.errors import InputError, count_noun

LlmModelOpt = Annotated[
    list[str] | None,
    Option(
        "--llm-model",
        help="With --guesses llm:URL: name of the language model; one for each llm:URL.",
    ),
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
    list[float] | None,
    Option("--llm-price-input", min=0, help="With llm:URL: price of a million input tokens."),
]
PriceOutputOpt = Annotated[
    list[float] | None,
    Option("--llm-price-output", min=0, help="With llm:URL: price of a million output tokens."),
]
YesOpt = Annotated[bool, Option("--yes", help="With llm:URL: start without a question.")]
OutOpt = Annotated[Path, Option("--out", help="File of the guesses, .csv; it is replaced.")]
LANGUAGE_MODEL_OPTIONS = (
    "llm_model",
    "prompt",
    "llm_limit",
    "llm_rate",
    "llm_price_input",
    "llm_price_output",
)


def language_model_options(
    llm_model: LlmModelOpt = None,
    prompt: PromptOpt = None,
    llm_limit: LimitOpt = None,
    llm_rate: RateOpt = None,
    llm_price_input: PriceInputOpt = None,
    llm_price_output: PriceOutputOpt = None,
    yes: YesOpt = False,
) -> None:
    """Options of every command that takes --guesses llm:URL (`LanguageModelOptions`)."""


@dataclass(frozen=True)
class LanguageModelOptions:
    """The options of a command that asks one or several language models, in the order of llm:URL."""

    models: tuple[str, ...] = ()
    prompt: Path | None = None
    limit: int | None = None
    rate: float | None = None
    prices_input: tuple[float, ...] = ()
    prices_output: tuple[float, ...] = ()
    yes: bool = False

    @classmethod
    def read(cls, context: typer.Context) -> "LanguageModelOptions":
        """Return the options that a command was given."""
        given = context.params
        return cls(
            tuple(given.get("llm_model") or ()),
            given.get("prompt"),
            given.get("llm_limit"),
            given.get("llm_rate"),
            tuple(given.get("llm_price_input") or ()),
            tuple(given.get("llm_price_output") or ()),
            bool(given.get("yes")),
        )

    def require_one_per_address(self, names: Sequence[str]) -> None:
        """Raise unless there is a model for every address, and a price for none, for all or for each."""
        addresses = len(names)
        if not self.models:
            raise UsageError("--guesses llm:URL needs the name of the model; add --llm-model NAME")
        if len(self.models) != addresses:
            raise UsageError(
                f"--guesses names {addresses} language models, --llm-model {len(self.models)}; "
                "expected one --llm-model for each llm:URL, in the same order"
            )
        if len(set(zip(names, self.models, strict=True))) < addresses:
            raise UsageError(
                f"--llm-model is {', '.join(self.models)}; expected different models at the same "
                "address: the same one is not asked twice"
            )
        for name, prices in (("input", self.prices_input), ("output", self.prices_output)):
            if len(prices) not in (0, 1, addresses):
                raise UsageError(
                    f"--llm-price-{name} is given {len(prices)} times; expected one price for all "
                    f"models, or {addresses} in the order of --llm-model"
                )

    def estimate_cost(self, estimate: Any, which: int) -> float | None:
        """Return the cost of the answers of one model; None if there are no prices."""
        if not (self.prices_input or self.prices_output):
            return None
        prices = [
            (p[which] if len(p) > 1 else p[0]) if p else 0.0
            for p in (self.prices_input, self.prices_output)
        ]
        return float(estimate.cost(*prices))


@app.command()
@insert_options(language_model_options, after="classes")
def guess(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="A folder of images or texts, or a table.")],
    file: OutOpt,
    guesses: Annotated[
        str, Option("--guesses", help="Who guesses: llm:URL, model:FOLDER or file.py:function.")
    ],
    classes: shell.ClassesOpt = None,
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
        print_line(f"guesses about {count_noun(count, 'item')} are in {file}")


def ask_language_model(
    context: typer.Context, campaign: Any, recorded: Sequence[str] = (), labels: Path | None = None
) -> Any:
    """Return the campaign with a file of guesses in place of llm:URL.

    Number of items, tokens, cost and time are shown first, and the user confirms.

    Args:
        context: of the command.
        campaign: its configuration.
        recorded: class names to use if neither options nor data have some.
        labels: a label file, whose classes are used if options name none.
    """
    from labelahead.data.guesses import is_language_model

    options = LanguageModelOptions.read(context)
    names = [name for name in campaign.data.guesses if is_language_model(name)]
    if not names:
        given = next(
            (o for o in LANGUAGE_MODEL_OPTIONS if context.params.get(o) not in (None, (), [])), None
        )
        if given is not None:
            name = "--" + given.replace("_", "-")
            raise UsageError(f"{name} goes with --guesses llm:URL, which is not there; add it")
        return campaign
    options.require_one_per_address(names)
    with err.status("loading"):
        data, classes = _load(campaign, recorded, labels)
    files = iter(_ask(names, data, classes, options))
    sources = tuple(
        str(next(files)) if is_language_model(name) else name for name in campaign.data.guesses
    )
    return replace(campaign, data=replace(campaign.data, guesses=sources))


def _load(
    campaign: Any, recorded: Sequence[str] = (), labels: Path | None = None
) -> tuple[Any, Any]:
    """Return the data without their labels, and the classes with their descriptions."""
    from labelahead.data.class_files import ClassList
    from labelahead.data.loading import load_without_guesses
    from labelahead.learner.labelling_query import collect_labels_by_source

    source = campaign.data
    data, answers = load_without_guesses(source, campaign.seed)
    names = tuple(data.classes or source.classes or recorded)
    if labels is not None and not source.classes:
        names = collect_labels_by_source(data, answers, labels, ()).classes
    if len(names) < 2:
        raise UsageError(
            "guesses need the names of the classes; expected them by --classes, two or more"
        )
    return data, ClassList(names, source.class_descriptions, source.class_examples)


def _ask(names: list[str], data: Any, classes: Any, options: LanguageModelOptions) -> list[Path]:
    """Ask the language models at these addresses, and return the files of their guesses."""
    from labelahead.cli.terminal import ProgressText
    from labelahead.data.guesses import LANGUAGE_MODEL_PREFIX
    from labelahead.learner.chat_endpoint import RequestLimits, find_keys
    from labelahead.learner.guessers import list_items, write_guesses
    from labelahead.learner.language_model import LanguageModelGuesser

    prompt = None if options.prompt is None else _read_prompt(options.prompt)
    limits = RequestLimits(per_minute=options.rate)
    addresses = [name.removeprefix(LANGUAGE_MODEL_PREFIX) for name in names]
    guessers = [
        LanguageModelGuesser(url, model, prompt, classes, limits=limits, key=key)
        for url, model, key in zip(addresses, options.models, find_keys(addresses), strict=True)
    ]
    with err.status("counting tokens"):
        items = list_items(data)
        estimates = [guesser.estimate(items, options.limit) for guesser in guessers]
    _confirm(guessers, estimates, options)
    files = []
    for guesser, model in zip(guessers, options.models, strict=True):
        words, stage = ProgressText(), f"asking {model}"
        with err.status(stage) as status:

            def show(
                done: int,
                total: int,
                status: Any = status,
                words: ProgressText = words,
                stage: str = stage,
            ) -> None:
                status.update(words.describe(stage, done, total))

            p = guesser(items, limit=options.limit, on_progress=show)
        print_line(f"{model}: {guesser.counts.describe()}")
        _require_guesses(guesser, p)
        files.append(write_guesses(guesser.folder, model, data.ids, classes.names, p))
    return files


def _require_guesses(guesser: Any, probabilities: Any) -> None:
    """Raise if there are answers, or only empty items, and no guess at all."""
    counts = guesser.counts
    if bool(probabilities.any()):
        return
    if counts.no_guess:
        raise InputError(guesser.explain_no_guess(counts.no_guess, counts.examples))
    if counts.empty and not (counts.refused or counts.left):
        raise InputError(
            f"all {count_noun(counts.empty, 'item')} are empty, and nothing was asked; expected texts"
        )


def _confirm(guessers: list[Any], estimates: list[Any], options: LanguageModelOptions) -> None:
    """Show what the answers will take, and ask whether to start."""
    asked, costs = [], []
    for which, (guesser, estimate) in enumerate(zip(guessers, estimates, strict=True)):
        if not estimate.items:
            continue
        costs.append(options.estimate_cost(estimate, which))
        asked.append(guesser.endpoint.url)
        more = count_noun(estimate.answered, "more is", "more are")
        known = f" ({more} answered already)" if estimate.answered else ""
        print_line(
            f"{guesser.endpoint.url}, model {guesser.endpoint.model}: {count_noun(estimate.items, 'item')}"
            f"{known}, "
            f"about {estimate.input_tokens:,} input and {estimate.output_tokens:,} output tokens, "
            f"{_describe_cost(costs[-1])}, about {_format_seconds(estimate.seconds)}"
        )
    if len(asked) > 1:
        known_costs = [cost for cost in costs if cost is not None]
        total = sum(known_costs) if len(known_costs) == len(costs) else None
        print_line(f"all {len(asked)} language models: {_describe_cost(total)}")
    if options.yes or not asked:
        return
    if not sys.stdin.isatty():
        raise UsageError("the cost cannot be confirmed without a terminal; add --yes to start")
    where = "this address" if len(set(asked)) == 1 else "these addresses"
    if not typer.confirm(f"The items are sent to {where}. Start?", err=True):
        raise UsageError("not started; nothing was sent")


def _describe_cost(cost: float | None) -> str:
    if cost is None:
        return "cost unknown (--llm-price-input, --llm-price-output)"
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
        data, classes = _load(replace(campaign, data=replace(campaign.data, guesses=())))
    with err.status("guessing"):
        found = compute_guesses(name, classes.names, campaign.data, data)
    if not bool(found.probabilities.any()):
        raise InputError(
            f"{name} guesses nothing about {count_noun(len(data), 'item')}; expected a class or "
            "probabilities for some of them"
        )
    write_guesses(file, None, data.ids, found.classes, found.probabilities)
    return int(found.probabilities.any(1).sum())


def _copy(source: Path, file: Path) -> int:
    """Copy the guesses, and return how many there are."""
    from labelahead.data.table import read_table
    from labelahead.files import replace_file

    replace_file(file, source.read_bytes())
    return sum(1 for value in read_table(source).columns["guess"] if str(value or "").strip())
