"""Commands over `campaign` and `query`: one campaign, or one question."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from labelahead.cli.shell import (
    CandOpt,
    ConfigOpt,
    DataOpt,
    InitialOpt,
    KernelOpt,
    LabelsOpt,
    ModelOpt,
    ModeOpt,
    Option,
    RetrainOpt,
    RootOpt,
    SeedOpt,
    SetOpt,
    StrategyOpt,
    Text,
    ThreadOpt,
    UsageError,
    WidthOpt,
    app,
    configured,
    err,
    free_folder,
    out,
    reported,
)  # fmt: skip


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
    initial: InitialOpt = None,
    labels: LabelsOpt = None,
    retrain_every: RetrainOpt = None,
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
    with reported():
        campaign = configured(config, changes, {
            "data.name": data, "data.root": root, "model.name": model, "model.width": width,
            "asking.strategy": strategy, "asking.mode": mode, "asking.kernel": kernel,
            "asking.candidates": candidates, "budget.initial": initial, "budget.labels": labels,
            "budget.retrain_every": retrain_every, "seed": seed, "threads": threads,
        })  # fmt: skip
    from labelahead.campaign import run as run_campaign

    name = Path(campaign.data.name).stem or "data"
    target = folder or free_folder(f"{name}-{campaign.asking.strategy}-{campaign.seed}")
    with reported(lambda: _resume_hint(target)):
        _campaign(lambda **watch: run_campaign(campaign, out=target, **watch), campaign)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of an interrupted run.")],
    data: Annotated[Text, Option("--data", help="Where the data are now, if moved.")] = None,
    root: Annotated[Text, Option("--root", help="Where a known set is now, if moved.")] = None,
    model: Annotated[Text, Option("--model", help="Where your own network is now.")] = None,
    device: Annotated[Text, Option("--device", help="auto, cpu or cuda.")] = None,
    labels: Annotated[int | None, Option("--labels", help="A larger budget.")] = None,
) -> None:
    """Go on with an interrupted campaign; it ends as if it had never stopped.

    Examples:

      labelahead resume runs/a

      labelahead resume runs/a --labels 300
    """
    with reported(lambda: _resume_hint(folder)):
        from labelahead.campaign import resume as resume_campaign
        from labelahead.config import assemble

        if not (folder / "config.toml").exists():
            raise UsageError(f"{folder} holds no campaign; expected the folder of a `run --out`")
        options = {
            "data.name": data, "data.root": root, "model.name": model, "device": device,
            "budget.labels": labels,
        }  # fmt: skip
        changes = {key: value for key, value in options.items() if value is not None}
        campaign = assemble(folder / "config.toml", (), changes)
        _campaign(lambda **watch: resume_campaign(folder, changes, **watch), campaign)


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
    with reported():
        if form not in ("csv", "json"):
            raise UsageError(f"--format is {form!r}; expected csv or json")
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise UsageError(f"--out is {file}; expected a file in a folder that exists")
        campaign = configured(config, changes, {
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
            err.print(f"{len(found)} items to label are in {file}", markup=False, soft_wrap=True)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="strategies, models or data")],
) -> None:
    """What there is: strategies, models, data.

    Example:

      labelahead list strategies
    """
    with reported():
        from labelahead.show import CATALOGUES, catalogue

        if what not in CATALOGUES:
            raise UsageError(f"no list of {what!r}; expected one of {', '.join(CATALOGUES)}")
        out.print(catalogue(what))


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
    plain: dict[str, Any] = {"highlight": False, "soft_wrap": True, "markup": False}
    out.print(f"\neverything is in {result.folder}", **plain)
    if any(r.accuracy is not None for r in result.rounds):
        try:
            picture = curve_png(result.rounds, result.folder / "curve.png", title)
            out.print(f"the curve: {picture}", **plain)
        except Exception as error:  # the campaign is done: a picture does not undo it
            err.print(f"no picture of the curve: {error}", style="yellow", **plain)


def _resume_hint(folder: Path) -> str:
    begun = (folder / "config.toml").exists()
    return f"; nothing is lost: labelahead resume {folder}" if begun else ""
