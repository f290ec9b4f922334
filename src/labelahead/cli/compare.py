"""`labelahead compare` and `labelahead report`: compare strategies, and report the results."""

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from labelahead.cli import shell, sources
from labelahead.cli.pool import CaOpt, CertOpt, ClusterOpt, KeyOpt, open_executor
from labelahead.cli.shell import (
    Number,
    Option,
    Text,
    UsageError,
    app,
    err,
    find_free_folder,
    out,
    report_errors,
)
from labelahead.errors import InputError, LabelaheadError, import_extra

if TYPE_CHECKING:
    from labelahead.simulation.comparison import Comparison, ComparisonStart, Outcome
    from labelahead.simulation.comparison.execution import CampaignEvent, Job
    from labelahead.simulation.store import Round

DEFAULT_SEEDS = 6


@app.command()
def compare(
    context: typer.Context,
    strategies: Annotated[
        Text,
        Option(
            help=(
                "Names (or file.py:name), comma-separated, with an optional :mode. (default: "
                "random,margin,mlmoc,flip)"
            )
        ),
    ] = None,
    seeds: Annotated[
        Number, Option(min=1, help=f"Number of seeds. (default: {DEFAULT_SEEDS})")
    ] = None,
    first: Annotated[Number, Option("--seed", min=0, help="The first seed. (default: 0)")] = None,
    data: shell.DataOpt = None,
    root: shell.RootOpt = None,
    target: shell.TargetOpt = None,
    task: shell.TaskOpt = None,
    label_columns: shell.LabelColumnsOpt = None,
    id: shell.IdOpt = None,
    embedding: Annotated[
        Text, Option("--embedding", help="Embeddings to compare, comma-separated; one: for all.")
    ] = None,
    classes: shell.ClassesOpt = None,
    guesses: Annotated[
        list[str] | None,
        Option(
            "--guesses",
            help="Start from a column, a file, model:FOLDER or file.py:function; several: compare.",
        ),
    ] = None,
    prior: Annotated[
        Text,
        Option("--prior", help="Start from class-names, none or both (none,class-names): compare."),
    ] = None,
    model: shell.ModelOpt = None,
    width: shell.WidthOpt = None,
    kernel: shell.KernelOpt = None,
    candidates: shell.CandidatesOpt = None,
    initial: shell.InitialOpt = None,
    budget_labels: shell.LabelsOpt = None,
    retrain_every: shell.RetrainOpt = None,
    source: sources.SourceOpt = None,
    budget_money: sources.BudgetMoneyOpt = None,
    device: shell.DeviceOpt = None,
    workers: Annotated[
        Number, Option(min=1, help="Parallel campaigns. (default: one per core)")
    ] = None,
    cluster: ClusterOpt = None,
    tls_ca: CaOpt = None,
    tls_cert: CertOpt = None,
    tls_key: KeyOpt = None,
    folder: Annotated[
        Path | None, Option("--out", help="Folder for the results. (default: runs/compare-...)")
    ] = None,
    config: shell.ConfigOpt = None,
    changes: shell.SetOpt = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Compare strategies with the same splits, seed sets and training, over several seeds.

    With several embeddings or starts (guesses), every strategy runs on each of them. Run it again
    with the same --out to continue, or to add strategies, embeddings and seeds.

    Examples:

      labelahead compare

      labelahead compare --strategies random,margin,flip,flip:greedy --seeds 6 --out runs/b

      labelahead compare --out runs/b --seeds 10

      labelahead compare --data photos/ --strategies random,flip --embedding lite0,facebook/dinov2-small

      labelahead compare --data texts.csv --strategies flip --guesses old.csv --prior none,class-names

      labelahead compare --out /shared/b --cluster tcp://127.0.0.1:8786

      labelahead compare --source anna:price=0.10,error=0.05 --source llm:price=0.001,error=0.25
    """
    with report_errors():
        if sources.wants_sources(context, folder):
            sources.compare_sources(context, folder)
            return
        comparison = _resolve_comparison(folder, strategies, first, seeds, context)
        sources.refuse_money_without_sources(comparison.campaign)
        shell.announce_device(comparison.campaign.device)
    place = folder or find_free_folder(
        "compare-" + (Path(comparison.campaign.data.name).stem or "data")
    )
    again = f"labelahead compare --out {shlex.quote(str(place))}"
    with report_errors(
        lambda: f"; to continue: {again}" if (place / "compare.toml").exists() else ""
    ):
        if cluster is None and not any((tls_ca, tls_cert, tls_key)):
            outcome = _run_comparison(comparison, place, workers, trust_code=trust_code)
        else:
            with open_executor(workers, cluster, tls_ca, tls_cert, tls_key) as engine:
                outcome = _run_comparison(comparison, place, None, engine, trust_code=trust_code)
        try:
            _write_report(place, (), trust_code=trust_code)
        except (
            LabelaheadError
        ) as error:  # the campaigns are finished: a missing report is no reason to fail
            err.print(
                f"the report cannot be written: {error}",
                style="yellow",
                markup=False,
                soft_wrap=True,
            )
        if outcome.failed:
            raise LabelaheadError(
                f"{len(outcome.failed)} of {outcome.finished + len(outcome.failed)} campaigns "
                f"failed (see above); `{again}` runs them again"
            )


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a comparison, or of a labelling session.")
    ],
    accuracy: Annotated[
        list[float] | None,
        Option(help="Also report the labels needed for this accuracy, e.g. 0.9. Repeatable."),
    ] = None,
    target: Annotated[
        Path | None, Option("--out", help="Output folder. (default: FOLDER/report)")
    ] = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Write an HTML report of a comparison, with figures (PNG, SVG) and CSV files.

    For a labelling session, also in Label Studio, the report shows classes, annotators, conflicting
    labels and accuracy.

    Examples:

      labelahead report runs/b

      labelahead report labels-photos

      labelahead report runs/b --accuracy 0.9 --accuracy 0.95
    """
    with report_errors():
        from labelahead.simulation.comparison import read_comparison

        if (folder / "labels.db").is_file():
            _write_session_report(folder, accuracy, target)
            return
        if sources.is_cost_comparison(folder):
            if target is not None:
                raise UsageError("--out does not go with a comparison of costs; leave it out")
            sources.show_costs(sources.read_costs(folder), folder, tuple(accuracy or ()))
            return
        try:
            comparison = read_comparison(folder, trust_code=trust_code)
        except InputError as error:
            raise UsageError(str(error)) from error
        for value in accuracy or ():
            if comparison.campaign.data.task == "classes" and not 0 < value <= 1:
                raise UsageError(f"--accuracy is {value}; expected a fraction such as 0.9")
        _write_report(folder, tuple(accuracy or ()), target, trust_code=trust_code)


def _resolve_comparison(
    folder: Path | None,
    strategies: str | None,
    seed: int | None,
    seeds: int | None,
    context: typer.Context,
) -> "Comparison":
    """Return the comparison to run; an existing folder supplies the options that are not given."""
    from labelahead.learner.encoder_comparison import split_embedding_names
    from labelahead.simulation.comparison.plan import (
        COMPARISON_FILE,
        Comparison,
        campaign_tables,
        cross_with_embeddings,
        cross_with_guesses,
        list_default_strategies,
        merge_comparisons,
        parse_contenders,
        read_comparison,
        strategy_code,
    )

    try:
        given = context.params["embedding"]
        several = split_embedding_names(given) if given is not None and "," in given else []
        if several:
            context.params["embedding"] = None
        code = [name for name in several if ":" in name]
        typed = shell.find_typed_code(context, *strategy_code(strategies or ""), *code)
        trust = context.params["trust_code"] or typed
        before = (
            read_comparison(folder, trust_code=trust)
            if folder and (folder / COMPARISON_FILE).exists()
            else None
        )
        task = str(shell.gather_settings(context).get("data", {}).get("task", ""))
        names = before.contenders if before else parse_contenders(list_default_strategies(task))
        names = names if strategies is None else parse_contenders(strategies)
        if several:
            names = cross_with_embeddings(names, several)
        elif before is not None and given is None:
            names = cross_with_embeddings(names, before.embeddings)
        starts = _split_starts(context)
        names = cross_with_guesses(names, starts or (before.guesses if before else ()))
    except InputError as error:
        raise UsageError(str(error)) from error
    campaign = shell.build_campaign(context, campaign_tables(before.campaign) if before else None)
    first = seed if seed is not None else before.seeds[0] if before else 0
    count = seeds if seeds is not None or before is None else len(before.seeds)
    wanted = tuple(range(first, first + (count or DEFAULT_SEEDS)))
    if before and seeds is None and seed is None:
        wanted = before.seeds
    comparison = Comparison(campaign, names, wanted)
    if before and folder:
        try:
            merge_comparisons(before, comparison, folder)
        except InputError as error:
            raise UsageError(str(error)) from error
    return comparison


def _split_starts(context: typer.Context) -> list[str]:
    """Return the starts to compare; one alone stays an option of all campaigns."""
    from labelahead.data.guesses import is_guess_column

    given = context.params
    prior = [name.strip() for name in (given["prior"] or "").split(",") if name.strip()]
    unknown = next((name for name in prior if name not in ("none", "class-names")), None)
    if unknown is not None:
        raise UsageError(f"--prior is {unknown!r}; expected none, class-names or none,class-names")
    starts = list(dict.fromkeys([*prior, *(given["guesses"] or ())]))
    if len(starts) < 2:
        return []
    given["prior"] = given["guesses"] = None
    # A column of guesses is no feature, for no start.
    columns = [name for name in starts if name not in prior and is_guess_column(name)]
    if columns:
        given["changes"] = [*(given["changes"] or []), f"data.guesses={json.dumps(columns)}"]
    return starts


def _run_comparison(
    comparison: "Comparison",
    folder: Path,
    workers: int | None,
    executor: Any = None,
    *,
    trust_code: bool,
) -> "Outcome":
    from labelahead.cli.terminal import ProgressText
    from labelahead.simulation.comparison import compare as run_comparison

    words = ProgressText()
    with show_comparison(out) as watch:

        def progress(what: str, done: int, total: int) -> None:
            watch.show_preparation(words.describe(what, done, total))

        return run_comparison(
            comparison,
            folder,
            workers=workers,
            executor=executor,
            progress=progress,
            on_begin=watch.show_start,
            on_event=watch.show_event,
            trust_code=trust_code,
        )


def _write_report(
    folder: Path,
    accuracies: tuple[float, ...],
    target: Path | None = None,
    *,
    trust_code: bool = False,
) -> None:
    """Write the report and print its headline."""
    from labelahead.simulation.comparison import report as write_report

    written = write_report(folder, accuracies=accuracies, out=target, trust_code=trust_code)
    out.print()
    out.print(written.headline, style="bold", markup=False, highlight=False)
    if written.explanation:  # a terminal may not know the minus sign
        text = written.explanation.replace("−", "-")
        out.print(text, markup=False, highlight=False)
    for warning in written.warnings:
        out.print(warning, style="yellow", markup=False, highlight=False)
    out.print(f"\nreport: {written.page}", markup=False, highlight=False, soft_wrap=True)


def _write_session_report(folder: Path, accuracy: list[float] | None, target: Path | None) -> None:
    if accuracy:
        raise UsageError("--accuracy is for comparisons; leave it out for a labelling session")
    import_extra("jinja2", "web", "the report of a labelling session")
    from labelahead.server.report import write_report

    written = write_report(folder, target)
    out.print(written.headline, style="bold", markup=False, highlight=False)
    out.print(f"\nreport: {written.page}", markup=False, highlight=False, soft_wrap=True)


def _count_strategies(comparison: "Comparison") -> str:
    arms = {"embeddings": len(comparison.embeddings), "starts": len(comparison.guesses)}
    count, words = len(comparison.contenders), ""
    for name, several in arms.items():
        if several:
            count //= several
            words += f" × {several} {name}"
    return f"{count} strategies{words}"


# --- display while it runs: bars on a terminal, elsewhere one line per campaign ---


class ComparisonDisplay:
    """Show the progress of a comparison."""

    def __init__(self, console: Console, bars: Progress) -> None:
        self.console, self._bars = console, bars
        self._total_bar: TaskID | None = None
        self._tasks: dict[Job, TaskID] = {}
        self._last: dict[Job, Round] = {}
        self._since: dict[Job, float] = {}
        self._campaigns = self._done = self._rounds = 0
        from labelahead.simulation.measures import ACCURACY

        self._measure = ACCURACY

    def show_preparation(self, what: str) -> None:
        """Show the preparation before the campaigns start."""
        if self._total_bar is None:
            self._total_bar = self._bars.add_task("preparing", total=None, note="")
        self._bars.update(self._total_bar, note=what)

    def show_start(self, begun: "ComparisonStart") -> None:
        """Print how many campaigns will run."""
        from labelahead.simulation.measures import find_measure

        comparison, done = begun.comparison, begun.campaigns - begun.left
        source = comparison.campaign.data
        self._measure = find_measure(source.task, source.unit)
        self._campaigns, self._done, self._rounds = begun.campaigns, done, comparison.rounds
        before = f", {done} of them finished earlier" if done else ""
        self._print(
            f"{_count_strategies(comparison)} × {len(comparison.seeds)} seeds = "
            f"{begun.campaigns} "
            f"campaigns{before}; "
            f"{f'{begun.workers} in parallel' if begun.workers else 'on the cluster'}"
        )
        if self._total_bar is not None:
            self._bars.remove_task(self._total_bar)
        self._total_bar = self._bars.add_task("all", total=begun.left * comparison.rounds, note="")

    def show_event(self, event: "CampaignEvent") -> None:
        """Show what happened to a campaign."""
        job = event.job
        if event.kind == "started":
            self._since.setdefault(job, time.monotonic())
            self._tasks[job] = self._bars.add_task(job.name, total=self._rounds, note="starting")
        elif event.kind == "round" and event.round is not None:
            self._advance(job, event.round)
        elif event.kind == "died":
            self._remove_bar(job)
            self._print(f"{job.name}: the worker process died {event.detail}", "yellow")
        else:
            self._remove_bar(job)
            self._done += event.kind == "finished"
            self._show_end(event)

    def _advance(self, job: "Job", entry: "Round") -> None:
        known = job in self._last and self._last[job].number >= entry.number
        self._last[job] = entry if not known else self._last[job]
        score = self._measure.score(entry)
        right = "" if score is None else f", {self._measure.format(score)}"
        note = f"{entry.labels} labels{right}"
        self._bars.update(self._tasks[job], completed=entry.number + 1, note=note)
        if (
            self._total_bar is not None and not known
        ):  # a resumed campaign repeats the events of its earlier rounds
            self._bars.advance(self._total_bar)

    def _show_end(self, event: "CampaignEvent") -> None:
        job = event.job
        took = time.monotonic() - self._since.get(job, time.monotonic())
        if event.kind == "failed":
            log = job.folder.parent.parent / "events.jsonl"
            where = f" (unexpected; see {log})" if event.trace else ""
            self._print(f"{job.name} failed: {event.detail}{where}", "red")
            return
        last = self._last.get(job)
        score = None if last is None else self._measure.score(last)
        right = "" if score is None else f"{self._measure.format(score):>6} at "
        labels = "" if last is None else f"{last.labels} labels, "
        wide = len(str(self._campaigns))
        self._print(
            f"{self._done:{wide}d}/{self._campaigns}  {job.name}: {right}{labels}{took:.0f} s"
        )

    def _remove_bar(self, job: "Job") -> None:
        task = self._tasks.pop(job, None)
        if task is not None:
            self._bars.remove_task(task)

    def _print(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def show_comparison(console: Console) -> Iterator[ComparisonDisplay]:
    """Show a comparison while it runs, with bars on a terminal."""
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False, style="dim"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
        speed_estimate_period=900,  # slow and fast strategies alternate
    )
    with bars:
        yield ComparisonDisplay(console, bars)
