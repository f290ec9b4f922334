"""`labelahead pool`: out-of-core pools.

Features are computed once; queries and predictions then read them, locally or on a cluster.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from labelahead.cli.shell import (
    Option,
    Text,
    UsageError,
    announce_device,
    app,
    err,
    print_line,
    report_errors,
)
from labelahead.errors import InputError, count_noun

pool = typer.Typer(
    no_args_is_help=True, help="Out-of-core pools: features in partitions, locally or on a cluster."
)
app.add_typer(pool, name="pool")

PROGRESS_LINES = 10  # of progress to print if there is no terminal
StoreArg = Annotated[str, typer.Argument(help="Folder written by `pool embed`.")]
WorkersOpt = Annotated[
    int | None, Option("--workers", min=1, help="Local processes. (default: number of cores)")
]
ClusterOpt = Annotated[
    Text,
    Option(
        "--cluster",
        help="Use a cluster: tcp://host:8786, tls://host:8786 (Dask), ray://host:10001, ray.",
    ),
]
CaOpt = Annotated[
    Text, Option("--tls-ca", help="With --cluster tls://: certificate of the authority.")
]
CertOpt = Annotated[Text, Option("--tls-cert", help="With --cluster tls://: client certificate.")]
KeyOpt = Annotated[Text, Option("--tls-key", help="With --cluster tls://: client key.")]
DeviceOpt = Annotated[
    Text,
    Option(
        "--device", help="Where workers compute: auto, cpu, cuda, cuda:N or mps. (default: cpu)"
    ),
]
ClassesOpt = Annotated[
    str,
    Option(
        "--classes", help="Class names, comma-separated or in a file, if some have no label yet."
    ),
]
GuessesOpt = Annotated[
    list[str] | None,
    Option(
        "--guesses",
        help="Prior knowledge: a column of the pool (`query`: or a file with ids). Repeatable.",
    ),
]
EvaluationOpt = Annotated[
    int, Option("--evaluation", min=1, help="Size of the random evaluation set.")
]
SeedOpt = Annotated[int, Option("--seed", help="Random seed of the sample.")]


@pool.command()
def embed(
    source: Annotated[
        str, typer.Argument(help="Parquet or .npy files, images or sounds: a path, s3://, gs://.")
    ],
    store: Annotated[
        str,
        Option("--store", help="Folder for the features; all workers must be able to access it."),
    ],
    column: Annotated[
        Text, Option("--column", help="Column of vectors or texts. (default: the only one)")
    ] = None,
    id: Annotated[
        Text, Option("--id", help="Id column; none: file:row. (default: id, if it exists)")
    ] = None,
    encoder: Annotated[
        Text,
        Option(
            "--encoder",
            help="minilm for texts, lite0 or lite2 for images, mel for sounds, or a Hugging Face id "
            "or folder.",
        ),
    ] = None,
    model: Annotated[
        Text,
        Option("--model", help="A network, file.py:make: store features of its tangent kernel."),
    ] = None,
    classes: Annotated[
        str, Option("--classes", help="With --model: class names of its outputs, comma-separated.")
    ] = "",
    sketch: Annotated[
        int, Option("--sketch", min=1, help="With --model: number of sketched kernel features.")
    ] = 2048,
    trained: Annotated[
        Text, Option("--trained", help="With --model: training loss, squared or cross-entropy.")
    ] = None,
    dtype: Annotated[
        str, Option("--dtype", help="Type of the features: float16 or float32.")
    ] = "float16",
    rows: Annotated[
        int | None,
        Option(
            "--rows", min=1, help="Items per partition. (default: depends on the kind of items)"
        ),
    ] = None,
    skip_unreadable: Annotated[
        bool, Option("--skip-unreadable", help="Leave out items that cannot be read.")
    ] = False,
    device: DeviceOpt = None,
    workers: WorkersOpt = None,
    cluster: ClusterOpt = None,
    tls_ca: CaOpt = None,
    tls_cert: CertOpt = None,
    tls_key: KeyOpt = None,
) -> None:
    """Compute the features of a pool once; the same command continues after an interruption.

    Examples:

      labelahead pool embed parts/ --store features/ --column text --id doc

      labelahead pool embed vectors/ --store kernel/ --model net.py:make --classes good,bad
      --trained cross-entropy

      labelahead pool embed s3://bucket/parts --store s3://bucket/features --cluster tcp://127.0.0.1:8786
    """
    with report_errors("; the written features are kept: run the same command to continue"):
        from labelahead.outofcore import EmbedOptions, NetworkOptions
        from labelahead.outofcore import embed as embed_pool

        network = None
        if model is not None:
            network = NetworkOptions(model, _split_names(classes), sketch, trained)
        elif classes or trained:
            raise UsageError("--classes and --trained are for a network; expected --model too")
        where = _choose_device(device, cluster)
        with (
            open_executor(workers, cluster, tls_ca, tls_cert, tls_key) as engine,
            _show_progress() as progress,
        ):
            manifest = embed_pool(
                source,
                store,
                EmbedOptions(column, id, encoder, dtype, rows, skip_unreadable),
                network=network,
                device=where,
                executor=engine,
                progress=progress,
            )
        items = sum(entry.rows for entry in manifest.entries)
        for name, why in list(manifest.left_out.items())[:5]:
            print_line(f"{name} is left out: {why}", "yellow")
        lost_errors = (
            f"; {len(manifest.left_out)} partitions, images or sounds left out"
            if manifest.left_out
            else ""
        )
        print_line(
            f"{items:,} items in {len(manifest.entries):,} parts, "
            f"{len(manifest.entries[0].total)} numbers each{lost_errors}"
        )


@pool.command("ask", hidden=True)
@pool.command()
def query(
    context: typer.Context,
    store: StoreArg,
    labels: Annotated[Text, Option("--labels", help="File of labels: id and label.")] = None,
    n: Annotated[int, Option("--n", min=1, help="Number of items to query.")] = 10,
    classes: ClassesOpt = "",
    guesses: GuessesOpt = None,
    strategy: Annotated[
        str,
        Option(
            "--strategy", help="Strategy: resolve, variance, flip, mlmoc, changes, emoc or eer."
        ),
    ] = "resolve",
    evaluation: Annotated[
        int | None,
        Option(
            "--evaluation",
            min=1,
            help="Size of the random evaluation set. (default: 1000; top: 2000)",
        ),
    ] = None,
    candidates: Annotated[
        int,
        Option(
            "--candidates",
            min=1,
            help="Number of best candidates among which the batch is selected.",
        ),
    ] = 2000,
    mode: Annotated[
        str, Option("--mode", help="Batch selection: greedy (one by one) or top (best scores).")
    ] = "greedy",
    finalists: Annotated[
        int | None,
        Option(
            "--finalists",
            min=0,
            help="With top: rescore this many on the whole pool. (default: 1000)",
        ),
    ] = None,
    seed: SeedOpt = 0,
    device: DeviceOpt = None,
    form: Annotated[str, Option("--format", help="csv or json.")] = "csv",
    file: Annotated[
        Path | None, Option("--out", help="Output file. (default: standard output)")
    ] = None,
    workers: WorkersOpt = None,
    cluster: ClusterOpt = None,
    tls_ca: CaOpt = None,
    tls_cert: CertOpt = None,
    tls_key: KeyOpt = None,
) -> None:
    """Score every item of a pool and list the items to label next, best first.

    Examples:

      labelahead pool query features/ --classes good,bad --n 20

      labelahead pool query features/ --labels labels.csv --n 50 --out next.csv --cluster tcp://127.0.0.1:8786
    """
    if context.info_name == "ask":
        print_line("`pool ask` is deprecated; use `pool query`", "yellow")
    with report_errors():
        if form not in ("csv", "json"):
            raise UsageError(f"--format is {form!r}; expected csv or json")
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise UsageError(f"--out is {file}; expected a file in a folder that exists")
        from labelahead.files import replace_file
        from labelahead.learner.labelling_query import format_query_items

        with _open_pool(
            store, guesses, device, workers, cluster, tls_ca, tls_cert, tls_key
        ) as large:
            items = large.query(
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
            _show_sources(large)
        text = format_query_items(items, form)
        if file is None:
            sys.stdout.write(text)
        else:
            replace_file(file, text)
            print_line(
                f"{count_noun(len(items), 'item to label is', 'items to label are')} in {file}"
            )


@pool.command()
def predict(
    store: StoreArg,
    labels: Annotated[str, Option("--labels", help="File of labels: id and label.")],
    to: Annotated[str, Option("--out", help="Output folder; one Parquet file per partition.")],
    classes: ClassesOpt = "",
    guesses: GuessesOpt = None,
    probabilities: Annotated[
        bool, Option("--probabilities", help="Add a column probability:CLASS for every class.")
    ] = False,
    evaluation: EvaluationOpt = 1000,
    seed: SeedOpt = 0,
    device: DeviceOpt = None,
    workers: WorkersOpt = None,
    cluster: ClusterOpt = None,
    tls_ca: CaOpt = None,
    tls_cert: CertOpt = None,
    tls_key: KeyOpt = None,
) -> None:
    """Predict every item of a pool with probabilities, and estimate the error rate.

    Example:

      labelahead pool predict features/ --labels labels.csv --out predictions/
    """
    with report_errors():
        with _open_pool(
            store, guesses, device, workers, cluster, tls_ca, tls_cert, tls_key
        ) as large:
            done = large.predict(
                labels,
                to,
                classes=_split_names(classes),
                evaluation=evaluation,
                seed=seed,
                probabilities=probabilities,
            )
            _show_sources(large)
        for name, count in done.counts.items():
            print_line(f"{count:12,} {name}")
        error = done.forecast.error
        print_line(f"estimated error rate: {error.rate:.1%} ({error.low:.1%} to {error.high:.1%})")
        print_line(f"{len(large):,} predictions are in {done.folder.removeprefix('file://')}")


def _choose_device(device: str | None, cluster: str | None) -> str:
    """Return the device of the workers, and print it.

    Raises:
        UsageError: There is no such device here; that of a cluster cannot be checked.
    """
    if cluster is None:
        return announce_device(device or "cpu")
    if device == "auto":
        raise UsageError("--device is auto, but this machine does not see the workers; name one")
    print_line(f"device of the workers: {device or 'cpu'}", "dim")
    return device or "cpu"


def _show_sources(large: Any) -> None:
    """Print how often each annotator is right, if there are several."""
    from labelahead.learner.labelling_query import describe_sources

    for note in describe_sources(large.source_accuracy):
        print_line(note, "dim")


def _split_names(classes: str) -> list[str]:
    from labelahead.data.class_files import parse_class_list

    return list(parse_class_list(classes).names)


@contextmanager
def open_executor(workers: int | None, cluster: str | None, *tls: str | None) -> Iterator[Any]:
    """Open the executor that the options request, and wait until it has workers."""
    from labelahead.outofcore.execution import connect_executor, make_tls_config

    if cluster is None and any(tls):
        raise UsageError("--tls-ca, --tls-cert and --tls-key go with --cluster; leave them out")
    if cluster is not None and workers is not None:
        raise UsageError(
            "--workers is for local processes, --cluster for a cluster; expected one of them"
        )
    try:
        security = make_tls_config(*tls)
    except InputError as error:
        raise UsageError(str(error)) from error
    with err.status("waiting for workers"):
        work = connect_executor(cluster, workers=workers, security=security)
        engine = work.__enter__()
    try:
        yield engine
    finally:
        work.__exit__(None, None, None)


@contextmanager
def _open_pool(
    store: str,
    guesses: list[str] | None,
    device: str | None,
    workers: int | None,
    cluster: str | None,
    *tls: str | None,
) -> Iterator[Any]:
    from labelahead.outofcore import LargePool

    where = _choose_device(device, cluster)
    with open_executor(workers, cluster, *tls) as engine, _show_progress() as progress:
        yield LargePool(
            store, executor=engine, progress=progress, device=where, guesses=guesses or ()
        )


@contextmanager
def _show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show progress in items, items per second and remaining time.

    On a terminal as a bar, elsewhere as a few lines.
    """
    began: dict[
        str, tuple[float, int]
    ] = {}  # when the first part was done, and how many items: before, workers start
    printed: dict[str, int] = {}
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

        def on_progress(stage: str, done: int, total: int) -> None:
            since, first = began.setdefault(stage, (time.perf_counter(), done))
            rate = (done - first) / max(time.perf_counter() - since, 1e-9)
            note = f"{done:,}/{total:,} items" + (f", {rate:,.0f} per second" if rate else "")
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total, note=note)
            bar.update(tasks[stage], completed=done, total=total, note=note)
            tenth = PROGRESS_LINES * done // max(1, total)
            if not err.is_terminal and tenth > printed.get(stage, 0):
                printed[stage] = tenth
                ends = time.strftime(
                    "%H:%M:%S", time.localtime(time.time() + (total - done) / max(rate, 1e-9))
                )
                print_line(
                    f"{stage}: {note}" + (f", done at {ends}" if rate and done < total else "")
                )

        yield on_progress
