"""Commands for pools of millions.

Work out their features once, then ask and predict, here or on a cluster.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from labelahead.cli.shell import Option, Text, UsageError, app, err, print_line, report_errors
from labelahead.errors import InputError

pool = typer.Typer(
    no_args_is_help=True, help="Pools of millions: features part by part, here or on a cluster."
)
app.add_typer(pool, name="pool")

PROGRESS_LINES = 10  # of progress, where there is no terminal
StoreArg = Annotated[str, typer.Argument(help="The folder that `pool embed` wrote.")]
WorkersOpt = Annotated[
    int | None, Option("--workers", min=1, help="Processes of this machine. (default: cores)")
]
ClusterOpt = Annotated[
    Text,
    Option(
        "--cluster",
        help="A cluster instead: tcp://host:8786, tls://host:8786 (Dask), ray://host:10001, ray.",
    ),
]
CaOpt = Annotated[
    Text, Option("--tls-ca", help="With --cluster tls://: the certificate authority.")
]
CertOpt = Annotated[Text, Option("--tls-cert", help="The client's certificate.")]
KeyOpt = Annotated[Text, Option("--tls-key", help="The client's key.")]
ClassesOpt = Annotated[
    str, Option("--classes", help="Class names, comma-separated, if labels miss some.")
]
EvaluationOpt = Annotated[
    int, Option("--evaluation", min=1, help="Random items that scores and estimates sum over.")
]
SeedOpt = Annotated[int, Option("--seed", help="Same seed, same sample.")]


@pool.command()
def embed(
    source: Annotated[
        str, typer.Argument(help="Parquet or .npy files, or pictures: a path, s3://, gs://.")
    ],
    store: Annotated[
        str, Option("--store", help="Where features are kept; every worker must reach it.")
    ],
    column: Annotated[
        Text, Option("--column", help="Of vectors or of text. (default: the only one)")
    ] = None,
    id: Annotated[
        Text,
        Option("--id", help="The column of ids; none: file:row. (default: id, if there is one)"),
    ] = None,
    encoder: Annotated[
        Text, Option("--encoder", help="minilm for texts; lite0 or lite2 for pictures.")
    ] = None,
    model: Annotated[
        Text, Option("--model", help="A network, file.py:make: keep its tangent kernel instead.")
    ] = None,
    classes: Annotated[
        str, Option("--classes", help="With --model: names of its outputs, comma-separated.")
    ] = "",
    sketch: Annotated[
        int, Option("--sketch", min=1, help="With --model: features that stand for the kernel.")
    ] = 2048,
    trained: Annotated[
        Text, Option("--trained", help="With --model: by which loss, squared or cross-entropy.")
    ] = None,
    dtype: Annotated[str, Option("--dtype", help="float16 or float32.")] = "float16",
    rows: Annotated[
        int | None, Option("--rows", min=1, help="Items of a part. (default: by their kind)")
    ] = None,
    skip_unreadable: Annotated[
        bool, Option("--skip-unreadable", help="Leave out what cannot be read.")
    ] = False,
    workers: WorkersOpt = None,
    cluster: ClusterOpt = None,
    tls_ca: CaOpt = None,
    tls_cert: CertOpt = None,
    tls_key: KeyOpt = None,
) -> None:
    """Work out the features of a pool, once; the same command again goes on where it was.

    Examples:

      labelahead pool embed parts/ --store features/ --column text --id doc

      labelahead pool embed vectors/ --store kernel/ --model net.py:make --classes good,bad
      --trained cross-entropy

      labelahead pool embed s3://bucket/parts --store s3://bucket/features --cluster tcp://127.0.0.1:8786
    """
    with report_errors("; features that are written are kept: the same command goes on"):
        from labelahead.outofcore import embed as work_out

        with (
            open_executor(workers, cluster, tls_ca, tls_cert, tls_key) as engine,
            _show_progress() as progress,
        ):
            manifest = work_out(
                source,
                store,
                column=column,
                id=id,
                encoder=encoder,
                model=model,
                classes=_split_names(classes),
                sketch=sketch,
                trained=trained,
                dtype=dtype,
                rows=rows,
                skip_unreadable=skip_unreadable,
                executor=engine,
                progress=progress,
            )
        items = sum(entry.rows for entry in manifest.entries)
        for name, why in list(manifest.left_out.items())[:5]:
            print_line(f"{name} left out: {why}", "yellow")
        lost = f"; {len(manifest.left_out)} parts or pictures left out" if manifest.left_out else ""
        print_line(
            f"{items:,} items in {len(manifest.entries):,} parts, "
            f"{len(manifest.entries[0].total)} numbers each{lost}"
        )


@pool.command()
def ask(
    store: StoreArg,
    labels: Annotated[Text, Option("--labels", help="A file of labels: id and label.")] = None,
    n: Annotated[int, Option("--n", min=1, help="How many items to ask for.")] = 10,
    classes: ClassesOpt = "",
    strategy: Annotated[
        str, Option("--strategy", help="resolve, variance, flip, mlmoc, changes, emoc or eer.")
    ] = "resolve",
    evaluation: Annotated[
        int | None,
        Option(
            "--evaluation",
            min=1,
            help="Random items that scores sum over. (default: 1000; top: 2000)",
        ),
    ] = None,
    candidates: Annotated[
        int, Option("--candidates", min=1, help="Best items held, among which it chooses.")
    ] = 2000,
    mode: Annotated[
        str, Option("--mode", help="greedy: one by one; top: best scores at once.")
    ] = "greedy",
    finalists: Annotated[
        int | None,
        Option(
            "--finalists", min=0, help="With top: score so many by the whole pool. (default: 1000)"
        ),
    ] = None,
    seed: SeedOpt = 0,
    form: Annotated[str, Option("--format", help="csv or json.")] = "csv",
    file: Annotated[Path | None, Option("--out", help="Write here instead of the screen.")] = None,
    workers: WorkersOpt = None,
    cluster: ClusterOpt = None,
    tls_ca: CaOpt = None,
    tls_cert: CertOpt = None,
    tls_key: KeyOpt = None,
) -> None:
    """Score every item of a pool, and say which to label next, best first.

    Examples:

      labelahead pool ask features/ --classes good,bad --n 20

      labelahead pool ask features/ --labels labels.csv --n 50 --out next.csv --cluster tcp://127.0.0.1:8786
    """
    with report_errors():
        if form not in ("csv", "json"):
            raise UsageError(f"--format is {form!r}; expected csv or json")
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise UsageError(f"--out is {file}; expected a file in a folder that exists")
        from labelahead.files import replace_file
        from labelahead.learner.labelling_query import format_query_items

        with _open_pool(store, workers, cluster, tls_ca, tls_cert, tls_key) as large:
            asked = large.ask(
                n,
                labels,
                classes=_split_names(classes),
                strategy=strategy,
                evaluation=evaluation,
                candidates=candidates,
                mode=mode,
                finalists=finalists,
                seed=seed,
            )
        text = format_query_items(asked, form)
        if file is None:
            sys.stdout.write(text)
        else:
            replace_file(file, text)
            print_line(f"{len(asked)} items to label are in {file}")


@pool.command()
def predict(
    store: StoreArg,
    labels: Annotated[str, Option("--labels", help="A file of labels: id and label.")],
    to: Annotated[str, Option("--out", help="A folder: a Parquet file for each part.")],
    classes: ClassesOpt = "",
    probabilities: Annotated[
        bool, Option("--probabilities", help="A column probability:CLASS for every class.")
    ] = False,
    evaluation: EvaluationOpt = 1000,
    seed: SeedOpt = 0,
    workers: WorkersOpt = None,
    cluster: ClusterOpt = None,
    tls_ca: CaOpt = None,
    tls_cert: CertOpt = None,
    tls_key: KeyOpt = None,
) -> None:
    """Class and probability of every item of a pool, and how often that is wrong, estimated.

    Example:

      labelahead pool predict features/ --labels labels.csv --out predictions/
    """
    with report_errors():
        with _open_pool(store, workers, cluster, tls_ca, tls_cert, tls_key) as large:
            how = {"evaluation": evaluation, "seed": seed, "probabilities": probabilities}
            done = large.predict(labels, to, classes=_split_names(classes), **how)
        for name, count in done.counts.items():
            print_line(f"{count:12,} {name}")
        error = done.outlook.error
        print_line(
            f"estimated share of wrong ones: {error.rate:.1%} ({error.low:.1%} to {error.high:.1%})"
        )
        print_line(f"{len(large):,} predictions are in {done.folder.removeprefix('file://')}")


def _split_names(classes: str) -> list[str]:
    from labelahead.data.label_values import split_class_names

    return split_class_names(classes)


@contextmanager
def open_executor(workers: int | None, cluster: str | None, *tls: str | None) -> Iterator[Any]:
    """Who does the work, by the options; waits until somebody is there."""
    from labelahead.outofcore.execution import at_work, secured

    if cluster is None and any(tls):
        raise UsageError("--tls-ca, --tls-cert and --tls-key go with --cluster; leave them out")
    if cluster is not None and workers is not None:
        raise UsageError(
            "--workers is for this machine, --cluster for another; expected one of them"
        )
    try:
        security = secured(*tls)
    except InputError as error:
        raise UsageError(str(error)) from error
    with err.status("waiting for workers"):
        work = at_work(cluster, workers=workers, security=security)
        engine = work.__enter__()
    try:
        yield engine
    finally:
        work.__exit__(None, None, None)


@contextmanager
def _open_pool(
    store: str, workers: int | None, cluster: str | None, *tls: str | None
) -> Iterator[Any]:
    from labelahead.outofcore import LargePool

    with open_executor(workers, cluster, *tls) as engine, _show_progress() as progress:
        yield LargePool(store, executor=engine, progress=progress)


@contextmanager
def _show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Progress in items, items a second, and when it ends.

    A bar, or some lines where there is no terminal.
    """
    began: dict[
        str, tuple[float, int]
    ] = {}  # when the first part was done, and how many items: before, workers start
    said: dict[str, int] = {}
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=err,
        disable=not err.is_terminal,
        transient=True,
    ) as bar:
        tasks: dict[str, Any] = {}

        def tell(stage: str, done: int, total: int) -> None:
            since, first = began.setdefault(stage, (time.perf_counter(), done))
            rate = (done - first) / max(time.perf_counter() - since, 1e-9)
            note = f"{done:,}/{total:,} items" + (f", {rate:,.0f} a second" if rate else "")
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total, note=note)
            bar.update(tasks[stage], completed=done, total=total, note=note)
            tenth = PROGRESS_LINES * done // max(1, total)
            if not err.is_terminal and tenth > said.get(stage, 0):
                said[stage] = tenth
                ends = time.strftime(
                    "%H:%M:%S", time.localtime(time.time() + (total - done) / max(rate, 1e-9))
                )
                print_line(
                    f"{stage}: {note}" + (f", done at {ends}" if rate and done < total else "")
                )

        yield tell
