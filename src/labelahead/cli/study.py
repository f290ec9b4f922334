"""Commands over `study`: compare strategies, report what was found."""

import shlex
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
    Number,
    Option,
    RetrainOpt,
    RootOpt,
    SetOpt,
    Text,
    UsageError,
    WidthOpt,
    app,
    configured,
    err,
    free_folder,
    out,
    reported,
)  # fmt: skip
from labelahead.errors import InputError, LabelaheadError

STRATEGIES = "random,margin,mlmoc,flip"
SEEDS = 6


@app.command()
def compare(
    strategies: Annotated[
        Text, Option(help=f"Names with commas, a mode after a colon. (default: {STRATEGIES})")
    ] = None,
    seeds: Annotated[Number, Option(min=1, help=f"How many seeds. (default: {SEEDS})")] = None,
    seed: Annotated[Number, Option("--seed", min=0, help="The first seed. (default: 0)")] = None,
    data: DataOpt = None,
    root: RootOpt = None,
    model: ModelOpt = None,
    width: WidthOpt = None,
    kernel: KernelOpt = None,
    candidates: CandOpt = None,
    initial: InitialOpt = None,
    labels: LabelsOpt = None,
    retrain_every: RetrainOpt = None,
    workers: Annotated[
        Number, Option(min=1, help="Campaigns at a time. (default: one per core)")
    ] = None,
    folder: Annotated[
        Path | None, Option("--out", help="Folder for the results. (default: runs/compare-...)")
    ] = None,
    config: ConfigOpt = None,
    changes: SetOpt = None,
) -> None:
    """Compare strategies: the same splits, first labels and training, over several seeds.

    Called again with the same --out it goes on where it stopped, or adds strategies and seeds.

    Examples:

      labelahead compare

      labelahead compare --strategies random,margin,flip,flip:greedy --seeds 6 --out runs/b

      labelahead compare --out runs/b --seeds 10
    """
    options = {
        "data.name": data, "data.root": root, "model.name": model, "model.width": width,
        "asking.kernel": kernel, "asking.candidates": candidates, "budget.initial": initial,
        "budget.labels": labels, "budget.retrain_every": retrain_every,
    }  # fmt: skip
    with reported():
        study = _study(folder, strategies, seed, seeds, (config, changes, options))
    target = folder or free_folder("compare-" + (Path(study.campaign.data.name).stem or "data"))
    again = f"labelahead compare --out {shlex.quote(str(target))}"
    begun = target / "compare.toml"
    with reported(lambda: f"; nothing is lost: {again}" if begun.exists() else ""):
        outcome = _compare(study, target, workers)
        try:
            _report(target, ())
        except LabelaheadError as error:  # the campaigns are what counts
            err.print(f"no report: {error}", style="yellow", markup=False, soft_wrap=True)
        if outcome.failed:
            raise LabelaheadError(
                f"{len(outcome.failed)} of {outcome.finished + len(outcome.failed)} campaigns "
                f"failed (see above); `{again}` tries them again"
            )


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a comparison.")],
    accuracy: Annotated[
        list[float] | None,
        Option(help="Also count the labels to this accuracy, e.g. 0.9. Repeatable."),
    ] = None,
    target: Annotated[
        Path | None, Option("--out", help="Where to write. (default: FOLDER/report)")
    ] = None,
) -> None:
    """One HTML page of a comparison, readable offline, with figures (PNG, SVG) and CSV beside it.

    Examples:

      labelahead report runs/b

      labelahead report runs/b --accuracy 0.9 --accuracy 0.95
    """
    with reported():
        from labelahead.study import read_study

        try:
            read_study(folder)
        except InputError as error:
            raise UsageError(str(error)) from error
        for value in accuracy or ():
            if not 0 < value <= 1:
                raise UsageError(f"--accuracy is {value}; expected a fraction such as 0.9")
        _report(folder, tuple(accuracy or ()), target)


def _study(
    folder: Path | None,
    strategies: str | None,
    seed: int | None,
    seeds: int | None,
    given: tuple[Path | None, list[str] | None, dict[str, Any]],
) -> Any:
    """What is asked for; in a folder that holds a comparison, what is left out is as before."""
    from labelahead.study.plan import FILE, Study, arms, joined, read_study, tables_of

    try:
        before = read_study(folder) if folder and (folder / FILE).exists() else None
        names = before.arms if before else arms(STRATEGIES)
        names = names if strategies is None else arms(strategies)
    except InputError as error:
        raise UsageError(str(error)) from error
    campaign = configured(*given, base=tables_of(before.campaign) if before else None)
    first = seed if seed is not None else before.seeds[0] if before else 0
    count = seeds if seeds is not None or before is None else len(before.seeds)
    wanted = tuple(range(first, first + (count or SEEDS)))
    if before and seeds is None and seed is None:
        wanted = before.seeds
    study = Study(campaign, names, wanted)
    if before and folder:
        try:
            joined(before, study, folder)
        except InputError as error:
            raise UsageError(str(error)) from error
    return study


def _compare(study: Any, folder: Path, workers: int | None) -> Any:
    from labelahead.show import doing
    from labelahead.study import compare as run_comparison
    from labelahead.study.watch import watching

    with watching(out) as watch:

        def progress(what: str, done: int, total: int) -> None:
            watch.preparing(doing(what, done, total))

        return run_comparison(
            study, folder, workers=workers, progress=progress,
            on_begin=watch.begin, on_event=watch.event,
        )  # fmt: skip


def _report(folder: Path, accuracies: tuple[float, ...], target: Path | None = None) -> None:
    """Write it, and say its first sentence."""
    from labelahead.study import report as write_report

    found = write_report(folder, accuracies=accuracies, out=target)
    out.print()
    out.print(found.headline, style="bold", markup=False, highlight=False)
    if found.explanation:  # a terminal may not know the minus sign
        text = found.explanation.replace("−", "-")
        out.print(text, markup=False, highlight=False)
    for warning in found.warnings:
        out.print(warning, style="yellow", markup=False, highlight=False)
    out.print(f"\nthe report: {found.page}", markup=False, highlight=False, soft_wrap=True)
