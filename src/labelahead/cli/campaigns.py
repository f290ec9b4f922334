"""`labelahead run`, `resume`, `query` and `list`: simulated campaigns, and one query on real data."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from labelahead.cli import guess, shell, sources
from labelahead.cli.shell import (
    Number,
    Option,
    Text,
    UsageError,
    app,
    err,
    find_free_folder,
    out,
    print_line,
    report_errors,
)
from labelahead.errors import InputError, count_noun


@app.command()
@shell.insert_options(guess.language_model_options, after="prior")
def run(
    context: typer.Context,
    data: shell.DataOpt = None,
    root: shell.RootOpt = None,
    target: shell.TargetOpt = None,
    task: shell.TaskOpt = None,
    label_columns: shell.LabelColumnsOpt = None,
    classes: shell.ClassesOpt = None,
    id: shell.IdOpt = None,
    model: shell.ModelOpt = None,
    embedding: shell.EmbeddingOpt = None,
    guesses: shell.GuessesOpt = None,
    prior: shell.PriorOpt = None,
    batch_size: shell.BatchSizeOpt = None,
    encoder_workers: shell.WorkersOpt = None,
    width: shell.WidthOpt = None,
    strategy: shell.StrategyOpt = None,
    goal: shell.GoalOpt = None,
    mode: shell.ModeOpt = None,
    kernel: shell.KernelOpt = None,
    candidates: shell.CandidatesOpt = None,
    initial: shell.InitialOpt = None,
    budget_labels: shell.LabelsOpt = None,
    retrain_every: shell.RetrainOpt = None,
    source: sources.SourceOpt = None,
    budget_money: sources.BudgetMoneyOpt = None,
    seed: shell.SeedOpt = None,
    threads: shell.ThreadOpt = None,
    device: shell.DeviceOpt = None,
    against: Annotated[
        Text, Option("--against", help="Also run this baseline until it matches, e.g. random.")
    ] = None,
    seeds: Annotated[
        Number,
        Option(
            "--seeds", min=1, help="With --against: number of seeds, for a confidence interval."
        ),
    ] = None,
    folder: Annotated[
        Path | None, Option("--out", help="Folder for the results. (default: runs/...)")
    ] = None,
    config: shell.ConfigOpt = None,
    changes: shell.SetOpt = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Simulate a campaign on labelled data: train and query in rounds, with a live curve.

    Examples:

      labelahead run --against random --seeds 3

      labelahead run --data mnist --root DIR --model cnn --strategy flip --seed 3 --out runs/a

      labelahead run --config my.toml --set training.steps=300

      labelahead run --source anna:price=0.10,error=0.05 --source llm:price=0.001,error=0.25
    """
    with report_errors():
        campaign = shell.build_campaign(context)
        if (campaign.data.embedding or "").startswith("auto:"):
            raise UsageError(
                "--embedding auto: chooses by labels, which a simulation has yet to query; name "
                "one embedding, or see `labelahead encoders`"
            )
        sources.refuse_money_without_sources(campaign)
        if campaign.sources:
            _run_sources(context, campaign, folder)
            return
        campaign = guess.ask_language_model(context, campaign)
        chosen = "labels" in shell.gather_settings(context).get("budget", {})
        if against is not None:
            _check_strategy(against)
        if seeds is not None and against is None:
            raise UsageError(
                "--seeds goes with --against; for several strategies use `labelahead compare`"
            )
        shell.announce_device(campaign.device)
    from labelahead.simulation.run import run as run_campaign
    from labelahead.strategies import find_strategy

    name = Path(campaign.data.name).stem or "data"
    place = folder or find_free_folder(
        f"{name}-{find_strategy(campaign.asking.strategy).name}-{campaign.seed}"
    )
    if against is not None and seeds is not None:
        place = folder or find_free_folder(
            f"{name}-{find_strategy(campaign.asking.strategy).name}-{find_strategy(against).name}"
        )
        with report_errors(lambda: _resume_hint(place)):
            from labelahead.simulation.paired import run_paired

            _show_pairs(
                lambda **callbacks: run_paired(
                    campaign, against, seeds, out=place, shorten=not chosen, **callbacks
                )
            )
        return
    with report_errors(lambda: _resume_hint(place)):
        if against is None:
            _run_campaign(
                lambda **callbacks: run_campaign(
                    campaign, out=place, shorten=not chosen, **callbacks
                ),
                campaign,
            )
        else:
            _run_against(campaign, against, place, shorten=not chosen)


@app.command()
def resume(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The folder of an interrupted run.")],
    data: Annotated[Text, Option("--data", help="New location of the data, if moved.")] = None,
    root: Annotated[
        Text, Option("--root", help="New folder of a downloaded data set, if moved.")
    ] = None,
    model: Annotated[Text, Option("--model", help="New location of your own network.")] = None,
    strategy: Annotated[
        Text, Option("--strategy", help="New location of your own strategy.")
    ] = None,
    device: shell.DeviceOpt = None,
    budget_labels: Annotated[
        int | None, Option("--labels", help="A larger budget of labels.")
    ] = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Continue an interrupted campaign; the result is the same as without the interruption.

    Examples:

      labelahead resume runs/a

      labelahead resume runs/a --labels 300
    """
    with report_errors(lambda: _resume_hint(folder)):
        from labelahead.learner.config import parse_campaign, read_stored
        from labelahead.simulation.paired import is_paired_folder, resume_paired
        from labelahead.simulation.run import resume as resume_campaign

        changes = shell.list_given_options(context)
        if is_paired_folder(folder):
            if changes:
                raise UsageError(
                    "paired campaigns continue with their original settings; leave the options out"
                )
            _show_pairs(
                lambda **callbacks: resume_paired(folder, trust_code=trust_code, **callbacks)
            )
            return
        from labelahead.simulation.source_campaign import is_source_campaign

        if is_source_campaign(folder):
            raise UsageError(
                f"{folder} is a campaign with sources, which does not continue; run it again with "
                f"--config {folder / 'config.toml'} and another --out: it takes the same course"
            )
        if not (folder / "config.toml").exists():
            raise UsageError(f"{folder} contains no campaign; expected the folder of a `run --out`")
        campaign = parse_campaign(
            read_stored(folder / "config.toml", changes, trust_code=trust_code)
        )
        shell.announce_device(campaign.device)
        _run_campaign(
            lambda **callbacks: resume_campaign(
                folder, changes, trust_code=trust_code, **callbacks
            ),
            campaign,
        )


@app.command()
@shell.insert_options(guess.language_model_options, after="prior")
def query(
    context: typer.Context,
    data: Annotated[str, Option("--data", help="A folder of images or sounds, or a table.")],
    labels: Annotated[
        Path | None,
        Option("--labels", help="A file of labels, such as an export of the labelling page."),
    ] = None,
    n: Annotated[int, Option("--n", min=1, help="Number of items to query.")] = 10,
    classes: shell.ClassesOpt = None,
    model: shell.ModelOpt = None,
    embedding: shell.EmbeddingOpt = None,
    guesses: shell.GuessesOpt = None,
    prior: shell.PriorOpt = None,
    batch_size: shell.BatchSizeOpt = None,
    encoder_workers: shell.WorkersOpt = None,
    width: shell.WidthOpt = None,
    root: shell.RootOpt = None,
    target: shell.TargetOpt = None,
    task: shell.TaskOpt = None,
    label_columns: shell.LabelColumnsOpt = None,
    id: shell.IdOpt = None,
    strategy: shell.StrategyOpt = None,
    goal: shell.GoalOpt = None,
    mode: shell.ModeOpt = None,
    kernel: shell.KernelOpt = None,
    candidates: shell.CandidatesOpt = None,
    price: sources.PriceOpt = None,
    error_rate: sources.ErrorRateOpt = None,
    value: sources.ValueOpt = None,
    budget_money: sources.QueryMoneyOpt = None,
    seed: shell.SeedOpt = None,
    threads: shell.ThreadOpt = None,
    device: shell.DeviceOpt = None,
    form: Annotated[str, Option("--format", help="csv or json.")] = "csv",
    file: Annotated[
        Path | None, Option("--out", help="Output file. (default: standard output)")
    ] = None,
    config: shell.ConfigOpt = None,
    changes: shell.SetOpt = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """List the items of real data to label next, best first, as CSV or JSON.

    Examples:

      labelahead query --data photos/ --classes cat,dog --n 20

      labelahead query --data photos/ --labels labels.csv --n 20 --out next.csv

      labelahead query --data photos/ --labels labels.csv --model mypkg.net:make --format json

      labelahead query --data mails.csv --labels labels.csv --price anna=0.10,llm=0.001 --budget-money 5
    """
    with report_errors():
        if form not in ("csv", "json"):
            raise UsageError(f"--format is {form!r}; expected csv or json")
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise UsageError(f"--out is {file}; expected a file in a folder that exists")
        source_goal = sources.read_goal(context)
        campaign = shell.build_campaign(context)
        shell.announce_device(campaign.device)
        campaign = guess.ask_language_model(context, campaign, labels=labels)
        campaign = shell.choose_embedding(campaign, labels)
        from labelahead.cli.terminal import ProgressText
        from labelahead.files import replace_file
        from labelahead.learner.labelling_query import format_query_items, query_items

        words = ProgressText()
        with err.status("loading") as status:
            items, ready = query_items(
                campaign,
                n,
                labels=labels,
                progress=lambda what, done, total: status.update(words.describe(what, done, total)),
                sources=source_goal,
            )
        for note in ready.notes:
            err.print(note, style="dim", markup=False, highlight=False)
        text = format_query_items(items, form)
        if file is None:
            sys.stdout.write(text)
        else:
            replace_file(file, text)
            print_line(
                f"{count_noun(len(items), 'item to label is', 'items to label are')} in {file}"
            )


@app.command("list")
def list_(
    what: Annotated[Text, typer.Argument(help="strategies, models, embeddings or data")] = None,
) -> None:
    """List strategies, models, embeddings or data sets; without an argument, all names.

    Example:

      labelahead list strategies
    """
    with report_errors():
        from labelahead.cli.catalogue import CATALOGUE_KINDS, build_overview, build_table

        if what is None:
            out.print(build_overview())
            return
        if what not in CATALOGUE_KINDS:
            raise UsageError(f"no list of {what!r}; expected one of {', '.join(CATALOGUE_KINDS)}")
        out.print(build_table(what))


def _run_sources(context: typer.Context, campaign: Any, folder: Path | None) -> None:
    """Run a campaign in which labels have prices."""
    for option in ("against", "budget_labels"):
        if context.params[option] is not None:
            name = "--labels" if option == "budget_labels" else "--against"
            raise UsageError(
                f"{name} does not go with --source; expected --budget-money, or `labelahead compare "
                "--source ...` for several strategies"
            )
    name = Path(campaign.data.name).stem or "data"
    place = folder or find_free_folder(f"{name}-{campaign.asking.strategy}-{campaign.seed}")
    sources.run_sources(campaign, place)


def _check_strategy(strategy: str) -> None:
    from labelahead.strategies import find_strategy

    try:
        find_strategy(strategy)
    except InputError as error:
        raise UsageError(f"--against: {error}") from error


def _run_campaign(start: Callable[..., Any], campaign: Any) -> None:
    """Run a campaign, show its rounds, and print where the results are."""
    from labelahead.cli.terminal import build_rounds_table, show_campaign
    from labelahead.simulation import RunCallbacks

    title, shown = _campaign_title(campaign), _shown_measures(campaign)
    with show_campaign(out, campaign.budget.labels, title, measures=shown) as callbacks:
        result = start(
            callbacks=RunCallbacks(
                callbacks.progress, callbacks.round, partial(_show_ready, callbacks)
            )
        )
    out.print()
    out.print(build_rounds_table(result.rounds, _shown_measures(result.campaign)))
    _print_results(result, title)


def _shown_measures(campaign: Any) -> Any:
    """Return what the rounds of a campaign are shown by."""
    from labelahead.cli.terminal import ShownMeasures

    return ShownMeasures.of_task(campaign.data.task, campaign.data.unit)


def _run_against(campaign: Any, baseline: str, folder: Path, *, shorten: bool) -> None:
    """Run a campaign and a baseline until it is as accurate; show both and compare them."""
    from labelahead.cli.terminal import (
        build_comparison_table,
        build_rounds_table,
        show_campaign,
        summarize_comparison,
    )
    from labelahead.simulation import BaselineCallbacks, RunCallbacks, run_against
    from labelahead.strategies import find_strategy

    strategy, name = find_strategy(campaign.asking.strategy).name, find_strategy(baseline).name
    title, measures = _campaign_title(campaign), _shown_measures(campaign)
    second = list[Any]()
    with ExitStack() as display:
        first = display.enter_context(
            show_campaign(out, campaign.budget.labels, title, measures=measures)
        )

        def start_baseline(result: Any, max_labels: int) -> None:
            display.close()
            out.print()
            measures = _shown_measures(result.campaign)
            out.print(build_rounds_table(result.rounds, measures))
            out.print(f"\nthe same campaign with {name}:", highlight=False)
            both = f"{strategy} and {name}, seed {campaign.seed}"
            shown = show_campaign(out, max_labels, both, name, (strategy, result.rounds), measures)
            second.append(display.enter_context(shown))

        pair = run_against(
            campaign,
            baseline,
            out=folder,
            shorten=shorten,
            callbacks=RunCallbacks(first.progress, first.round, partial(_show_ready, first)),
            baseline_callbacks=BaselineCallbacks(
                start_baseline, lambda entry: second[0].round(entry)
            ),
        )
    out.print()
    if pair.rounds is None:
        out.print(build_rounds_table(pair.result.rounds, measures))
        print_line("there are no test items, so --against has nothing to compare", "yellow")
        _print_results(pair.result, title)
        return
    strategy_result, baseline_result = (strategy, pair.result.rounds), (name, pair.rounds)
    out.print(build_comparison_table(strategy_result, baseline_result, pair.measure))
    out.print()
    out.print(
        summarize_comparison(strategy_result, baseline_result, pair.measure),
        style="bold",
        markup=False,
        highlight=False,
    )
    out.print(ONE_SEED_NOTE, style="dim", markup=False, highlight=False)
    _print_results(pair.result, title, strategy, baseline_result)


def _campaign_title(campaign: Any) -> str:
    from labelahead.strategies import find_strategy

    name = Path(campaign.data.name).name or campaign.data.name
    return f"{name}, {find_strategy(campaign.asking.strategy).name}, seed {campaign.seed}"


def _show_ready(callbacks: Any, prepared: Any) -> None:
    """Print the notes of the data, and show the final budget."""
    for note in prepared.notes:
        out.print(note, style="dim", markup=False, highlight=False)
    callbacks.total = prepared.campaign.budget.labels
    callbacks.measures = _shown_measures(prepared.campaign)  # with the unit of the data


def _print_results(
    result: Any, title: str, strategy: str | None = None, baseline: Any = None
) -> None:
    """Print where the results are, and draw the learning curve."""
    from labelahead.cli.terminal import write_curve_png

    for sentence in result.guessers:
        print_line(sentence, on=out)
    print_line(f"\nthe results are in {result.folder}", on=out)
    if not any(result.measure.read(r) is not None for r in result.rounds):
        return
    try:
        path = result.folder / "curve.png"
        picture = write_curve_png(result.rounds, path, title, baseline, strategy, result.measure)
        print_line(f"learning curve: {picture}", on=out)
    except Exception as error:  # the campaign is finished: a missing picture is no reason to fail
        print_line(f"the learning curve cannot be drawn: {error}", "yellow")


ONE_SEED_NOTE = (
    "This compares one campaign each; another seed set can reverse the result. `--seeds 3` runs "
    "three pairs and reports the ratio of labels with an interval; docs/results.md has ten seeds "
    "on many data sets."
)


def _show_pairs(start: Callable[..., Any]) -> None:
    """Run pairs of campaigns, show their progress, and print the ratio of labels."""
    from labelahead.cli.terminal import PairProgress, build_pairs_table, summarize_ratio

    callbacks = PairProgress(out)
    result = start(on_campaign=callbacks.campaign)
    out.print()
    out.print(build_pairs_table(result))
    out.print()
    out.print(summarize_ratio(result), style="bold", markup=False, highlight=False)
    print_line(f"\nthe results are in {result.folder}", on=out)


def _resume_hint(folder: Path) -> str:
    begun = (folder / "config.toml").exists() or (folder / "paired.json").exists()
    return f"; to continue: labelahead resume {folder}" if begun else ""


@app.command(
    name="study",
    hidden=True,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def study() -> None:
    """Explain where the studies are: they are no longer part of the package."""
    with report_errors():
        raise UsageError(
            "`labelahead study` is no longer part of the package; clone the repository and run "
            "there: "
            "python -m research study"
        )
