"""Commands over `campaign` and `query`: one campaign, or one question."""

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
    free_folder,
    out,
    reported,
    say,
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
        Text, Option("--against", help="Also run this baseline until it matches: random.")
    ] = None,
    seeds: Annotated[
        Number, Option("--seeds", min=1, help="With --against: so many seeds, with an interval.")
    ] = None,
    folder: Annotated[
        Path | None, Option("--out", help="Folder for the results. (default: runs/...)")
    ] = None,
    config: shell.ConfigOpt = None,
    changes: shell.SetOpt = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Simulate a whole campaign on labelled data: train, ask, and again, with a live curve.

    Examples:

      labelahead run --against random --seeds 3

      labelahead run --data mnist --root DIR --model cnn --strategy flip --seed 3 --out runs/a

      labelahead run --config my.toml --set training.steps=300
    """
    with reported():
        campaign = shell.configured(context)
        chosen = "labels" in shell.gathered(context).get("budget", {})
        if against is not None:
            _known(against)
        if seeds is not None and against is None:
            raise UsageError(
                "--seeds goes with --against; for several strategies use `labelahead compare`"
            )
    from labelahead.simulation.run import run as run_campaign
    from labelahead.strategies import find

    name = Path(campaign.data.name).stem or "data"
    place = folder or free_folder(f"{name}-{find(campaign.asking.strategy).name}-{campaign.seed}")
    if against is not None and seeds is not None:
        place = folder or free_folder(
            f"{name}-{find(campaign.asking.strategy).name}-{find(against).name}"
        )
        with reported(lambda: _resume_hint(place)):
            from labelahead.simulation.paired import run_paired

            _paired(
                lambda **watch: run_paired(
                    campaign, against, seeds, out=place, shorten=not chosen, **watch
                )
            )
        return
    with reported(lambda: _resume_hint(place)):
        _campaign(
            lambda **watch: run_campaign(campaign, out=place, shorten=not chosen, **watch),
            campaign,
            against,
        )


@app.command()
def resume(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The folder of an interrupted run.")],
    data: Annotated[Text, Option("--data", help="Where the data are now, if moved.")] = None,
    root: Annotated[Text, Option("--root", help="Where a known set is now, if moved.")] = None,
    model: Annotated[Text, Option("--model", help="Where your own network is now.")] = None,
    strategy: Annotated[Text, Option("--strategy", help="Where your own strategy is now.")] = None,
    device: Annotated[Text, Option("--device", help="auto, cpu or cuda.")] = None,
    budget_labels: Annotated[int | None, Option("--labels", help="A larger budget.")] = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Go on with an interrupted campaign; it ends as if it had never stopped.

    Examples:

      labelahead resume runs/a

      labelahead resume runs/a --labels 300
    """
    with reported(lambda: _resume_hint(folder)):
        from labelahead.learner.config import parse, read_stored
        from labelahead.simulation.paired import is_paired_folder, resume_paired
        from labelahead.simulation.run import resume as resume_campaign

        changes = shell.options(context)
        if is_paired_folder(folder):
            if changes:
                raise UsageError("paired campaigns go on as they were begun; leave the options out")
            _paired(lambda **watch: resume_paired(folder, trust_code=trust_code, **watch))
            return
        if not (folder / "config.toml").exists():
            raise UsageError(f"{folder} holds no campaign; expected the folder of a `run --out`")
        campaign = parse(read_stored(folder / "config.toml", changes, trust_code=trust_code))
        _campaign(
            lambda **watch: resume_campaign(folder, changes, trust_code=trust_code, **watch),
            campaign,
        )


@app.command()
def query(
    context: typer.Context,
    data: Annotated[str, Option("--data", help="A folder of images, or a table.")],
    labels: Annotated[
        Path | None, Option("--labels", help="A file of labels; what the page exports will do.")
    ] = None,
    n: Annotated[int, Option("--n", min=1, help="How many items to ask for.")] = 10,
    classes: shell.ClassesOpt = None,
    model: shell.ModelOpt = None,
    embedding: shell.EmbeddingOpt = None,
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
    file: Annotated[Path | None, Option("--out", help="Write here instead of the screen.")] = None,
    config: shell.ConfigOpt = None,
    changes: shell.SetOpt = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Real data: which items to label next, best first, as CSV or JSON.

    Examples:

      labelahead query --data photos/ --classes cat,dog --n 20

      labelahead query --data photos/ --labels labels.csv --n 20 --out next.csv

      labelahead query --data photos/ --labels labels.csv --model mypkg.net:make --format json
    """
    with reported():
        if form not in ("csv", "json"):
            raise UsageError(f"--format is {form!r}; expected csv or json")
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise UsageError(f"--out is {file}; expected a file in a folder that exists")
        campaign = shell.configured(context)
        from labelahead.cli.terminal import doing
        from labelahead.files import replace
        from labelahead.learner.labelling_query import as_text, questions

        with err.status("loading") as status:
            asked, ready = questions(
                campaign,
                n,
                labels=labels,
                progress=lambda what, done, total: status.update(doing(what, done, total)),
            )
        for note in ready.notes:
            err.print(note, style="dim", markup=False, highlight=False)
        text = as_text(asked, form)
        if file is None:
            sys.stdout.write(text)
        else:
            replace(file, text)
            say(f"{len(asked)} items to label are in {file}")


@app.command("list")
def list_(
    what: Annotated[Text, typer.Argument(help="strategies, models, embeddings or data")] = None,
) -> None:
    """What there is: strategies, models, embeddings, data; without a word, the names of all of
    them.

    Example:

      labelahead list strategies
    """
    with reported():
        from labelahead.cli.catalogue import KINDS, catalogue, overview

        if what is None:
            out.print(overview())
            return
        if what not in KINDS:
            raise UsageError(f"no list of {what!r}; expected one of {', '.join(KINDS)}")
        out.print(catalogue(what))


def _known(strategy: str) -> None:
    from labelahead.strategies import find

    try:
        find(strategy)
    except InputError as error:
        raise UsageError(f"--against: {error}") from error


def _campaign(go: Callable[..., Any], campaign: Any, against: str | None = None) -> None:
    """Run, show, and say where everything lies."""
    from labelahead.cli.terminal import board, curve_png, rounds_table
    from labelahead.strategies import find

    name = Path(campaign.data.name).name or campaign.data.name
    strategy = find(campaign.asking.strategy).name
    title = f"{name}, {strategy}, seed {campaign.seed}"

    def ready(prepared: Any) -> None:
        for note in prepared.notes:
            out.print(note, style="dim", markup=False, highlight=False)
        watch.total = prepared.campaign.budget.labels

    with board(out, campaign.budget.labels, title) as watch:
        result = go(progress=watch.progress, on_round=watch.round, on_ready=ready)
    out.print()
    out.print(rounds_table(result.rounds))
    rival = None if against is None else _beside(result, against)
    say(f"\neverything is in {result.folder}", on=out)
    if any(r.accuracy is not None for r in result.rounds):
        try:
            picture = curve_png(
                result.rounds,
                result.folder / "curve.png",
                title,
                rival,
                strategy if rival else None,
            )
            say(f"the curve: {picture}", on=out)
        except Exception as error:  # the campaign is done: a picture does not undo it
            say(f"no picture of the curve: {error}", "yellow")


def _beside(result: Any, strategy: str) -> Any:
    """The same campaign by another strategy until it is as good, both in one table, and what it
    needed.
    """
    from labelahead.cli.terminal import beside_table, board, verdict
    from labelahead.simulation.paired import baseline_campaign, baseline_rounds
    from labelahead.strategies import find

    campaign = result.campaign
    if result.rounds[-1].accuracy is None:
        say("no test items, so that --against has nothing to compare", "yellow")
        return None
    ours, name = (find(campaign.asking.strategy).name, result.rounds), find(strategy).name
    out.print(f"\nthe same campaign, asked by {name}:", highlight=False)
    theirs = []
    title = f"{ours[0]} and {name}, seed {campaign.seed}"
    with board(out, baseline_campaign(result, strategy).budget.labels, title, name, ours) as watch:
        for entry in baseline_rounds(result, strategy):
            theirs.append(entry)
            watch.round(entry)
    rival = (name, theirs)
    out.print()
    out.print(beside_table(ours, rival))
    out.print()
    out.print(verdict(ours, rival), style="bold", markup=False, highlight=False)
    out.print(ANECDOTE, style="dim", markup=False, highlight=False)
    return rival


ANECDOTE = (
    "This is one campaign each, an anecdote: other first labels can turn it around. `--seeds 3` "
    "runs three pairs and "
    "gives the ratio of labels with an interval; docs/results.md has ten seeds on many data sets."
)


def _paired(go: Callable[..., Any]) -> None:
    """Run pairs of campaigns, say when they will be done, and how many labels were saved."""
    from labelahead.cli.terminal import PairProgress, pairs_table, ratio_verdict

    watch = PairProgress(out)
    result = go(on_campaign=watch.campaign)
    out.print()
    out.print(pairs_table(result))
    out.print()
    out.print(ratio_verdict(result), style="bold", markup=False, highlight=False)
    say(f"\neverything is in {result.folder}", on=out)


def _resume_hint(folder: Path) -> str:
    begun = (folder / "config.toml").exists() or (folder / "paired.json").exists()
    return f"; nothing is lost: labelahead resume {folder}" if begun else ""


@app.command(
    name="study",
    hidden=True,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def study() -> None:
    """Say where the studies went: they are no longer part of the package."""
    with reported():
        raise UsageError(
            "`labelahead study` is not part of the package any more; clone the repository and run "
            "there: "
            "python -m research study"
        )
