"""`labelahead run`, `resume`, `query` and `list`: simulated campaigns, and one query on real data."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from labelahead.cli import shell
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
from labelahead.errors import InputError


@app.command()
def run(
    context: typer.Context,
    data: shell.DataOpt = None,
    root: shell.RootOpt = None,
    target: shell.TargetOpt = None,
    classes: shell.ClassesOpt = None,
    id: shell.IdOpt = None,
    model: shell.ModelOpt = None,
    embedding: shell.EmbeddingOpt = None,
    batch_size: shell.BatchSizeOpt = None,
    encoder_workers: shell.WorkersOpt = None,
    width: shell.WidthOpt = None,
    strategy: shell.StrategyOpt = None,
    mode: shell.ModeOpt = None,
    kernel: shell.KernelOpt = None,
    candidates: shell.CandOpt = None,
    initial: shell.InitialOpt = None,
    budget_labels: shell.LabelsOpt = None,
    retrain_every: shell.RetrainOpt = None,
    seed: shell.SeedOpt = None,
    threads: shell.ThreadOpt = None,
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
    """
    with report_errors():
        campaign = shell.build_campaign(context)
        if (campaign.data.embedding or "").startswith("auto:"):
            raise UsageError(
                "--embedding auto: chooses by labels, which a simulation has yet to query; name one "
                "embedding, or see `labelahead encoders`"
            )
        chosen = "labels" in shell.gather_settings(context).get("budget", {})
        if against is not None:
            _check_strategy(against)
        if seeds is not None and against is None:
            raise UsageError(
                "--seeds goes with --against; for several strategies use `labelahead compare`"
            )
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

            _run_paired(
                lambda **watch: run_paired(
                    campaign, against, seeds, out=place, shorten=not chosen, **watch
                )
            )
        return
    with report_errors(lambda: _resume_hint(place)):
        _run_campaign(
            lambda **watch: run_campaign(campaign, out=place, shorten=not chosen, **watch),
            campaign,
            against,
        )


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
    device: Annotated[Text, Option("--device", help="auto, cpu or cuda.")] = None,
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
            _run_paired(lambda **watch: resume_paired(folder, trust_code=trust_code, **watch))
            return
        if not (folder / "config.toml").exists():
            raise UsageError(f"{folder} contains no campaign; expected the folder of a `run --out`")
        campaign = parse_campaign(
            read_stored(folder / "config.toml", changes, trust_code=trust_code)
        )
        _run_campaign(
            lambda **watch: resume_campaign(folder, changes, trust_code=trust_code, **watch),
            campaign,
        )


@app.command()
def query(
    context: typer.Context,
    data: Annotated[str, Option("--data", help="An image folder, or a table.")],
    labels: Annotated[
        Path | None,
        Option("--labels", help="A file of labels, such as an export of the labelling page."),
    ] = None,
    n: Annotated[int, Option("--n", min=1, help="Number of items to query.")] = 10,
    classes: shell.ClassesOpt = None,
    model: shell.ModelOpt = None,
    embedding: shell.EmbeddingOpt = None,
    batch_size: shell.BatchSizeOpt = None,
    encoder_workers: shell.WorkersOpt = None,
    width: shell.WidthOpt = None,
    root: shell.RootOpt = None,
    target: shell.TargetOpt = None,
    id: shell.IdOpt = None,
    strategy: shell.StrategyOpt = None,
    mode: shell.ModeOpt = None,
    kernel: shell.KernelOpt = None,
    candidates: shell.CandOpt = None,
    seed: shell.SeedOpt = None,
    threads: shell.ThreadOpt = None,
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
    """
    with report_errors():
        if form not in ("csv", "json"):
            raise UsageError(f"--format is {form!r}; expected csv or json")
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise UsageError(f"--out is {file}; expected a file in a folder that exists")
        campaign = shell.build_campaign(context)
        campaign = shell.choose_embedding(campaign, labels)
        from labelahead.cli.terminal import ProgressText
        from labelahead.files import replace_file
        from labelahead.learner.labelling_query import format_query_items, query_items

        words = ProgressText()
        with err.status("loading") as status:
            asked, ready = query_items(
                campaign,
                n,
                labels=labels,
                progress=lambda what, done, total: status.update(words.describe(what, done, total)),
            )
        for note in ready.notes:
            err.print(note, style="dim", markup=False, highlight=False)
        text = format_query_items(asked, form)
        if file is None:
            sys.stdout.write(text)
        else:
            replace_file(file, text)
            print_line(f"{len(asked)} items to label are in {file}")


@app.command("list")
def list_(
    what: Annotated[Text, typer.Argument(help="strategies, models, embeddings or data")] = None,
) -> None:
    """List strategies, models, embeddings or data sets; without an argument, all names.

    Example:

      labelahead list strategies
    """
    with report_errors():
        from labelahead.cli.catalogue import KINDS, build_overview, build_table

        if what is None:
            out.print(build_overview())
            return
        if what not in KINDS:
            raise UsageError(f"no list of {what!r}; expected one of {', '.join(KINDS)}")
        out.print(build_table(what))


def _check_strategy(strategy: str) -> None:
    from labelahead.strategies import find_strategy

    try:
        find_strategy(strategy)
    except InputError as error:
        raise UsageError(f"--against: {error}") from error


def _run_campaign(go: Callable[..., Any], campaign: Any, against: str | None = None) -> None:
    """Run a campaign, show its rounds, and print where the results are."""
    from labelahead.cli.terminal import build_rounds_table, show_campaign, write_curve_png
    from labelahead.strategies import find_strategy

    name = Path(campaign.data.name).name or campaign.data.name
    strategy = find_strategy(campaign.asking.strategy).name
    title = f"{name}, {strategy}, seed {campaign.seed}"

    def ready(prepared: Any) -> None:
        for note in prepared.notes:
            out.print(note, style="dim", markup=False, highlight=False)
        watch.total = prepared.campaign.budget.labels

    with show_campaign(out, campaign.budget.labels, title) as watch:
        result = go(progress=watch.progress, on_round=watch.round, on_ready=ready)
    out.print()
    out.print(build_rounds_table(result.rounds))
    baseline = None if against is None else _run_baseline(result, against)
    print_line(f"\nthe results are in {result.folder}", on=out)
    if any(r.accuracy is not None for r in result.rounds):
        try:
            picture = write_curve_png(
                result.rounds,
                result.folder / "curve.png",
                title,
                baseline,
                strategy if baseline else None,
            )
            print_line(f"learning curve: {picture}", on=out)
        except (
            Exception
        ) as error:  # the campaign is finished: a missing picture is no reason to fail
            print_line(f"the learning curve cannot be drawn: {error}", "yellow")


def _run_baseline(result: Any, strategy: str) -> Any:
    """Run the same campaign with a baseline until it is as accurate, and compare the two."""
    from labelahead.cli.terminal import build_comparison_table, show_campaign, summarize_comparison
    from labelahead.simulation.paired import baseline_campaign, baseline_rounds
    from labelahead.strategies import find_strategy

    campaign = result.campaign
    if result.rounds[-1].accuracy is None:
        print_line("there are no test items, so --against has nothing to compare", "yellow")
        return None
    ours, name = (
        (find_strategy(campaign.asking.strategy).name, result.rounds),
        find_strategy(strategy).name,
    )
    out.print(f"\nthe same campaign with {name}:", highlight=False)
    theirs = []
    title = f"{ours[0]} and {name}, seed {campaign.seed}"
    with show_campaign(
        out, baseline_campaign(result, strategy).budget.labels, title, name, ours
    ) as watch:
        for entry in baseline_rounds(result, strategy):
            theirs.append(entry)
            watch.round(entry)
    baseline = (name, theirs)
    out.print()
    out.print(build_comparison_table(ours, baseline))
    out.print()
    out.print(summarize_comparison(ours, baseline), style="bold", markup=False, highlight=False)
    out.print(ONE_SEED_NOTE, style="dim", markup=False, highlight=False)
    return baseline


ONE_SEED_NOTE = (
    "This compares one campaign each; another seed set can reverse the result. `--seeds 3` runs "
    "three pairs and reports the ratio of labels with an interval; docs/results.md has ten seeds "
    "on many data sets."
)


def _run_paired(go: Callable[..., Any]) -> None:
    """Run pairs of campaigns, show their progress, and print the ratio of labels."""
    from labelahead.cli.terminal import PairProgress, build_pairs_table, summarize_ratio

    watch = PairProgress(out)
    result = go(on_campaign=watch.campaign)
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
    """Tell users where the studies are: they are no longer part of the package."""
    with report_errors():
        raise UsageError(
            "`labelahead study` is no longer part of the package; clone the repository and run "
            "there: "
            "python -m research study"
        )
