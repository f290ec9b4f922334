"""The command that makes Label Studio an active learner."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import typer

from labelahead.cli import shell
from labelahead.cli.label import (
    ClusterOpt,
    EveryOpt,
    ExportOpt,
    HostOpt,
    PortOpt,
    ProbabilitiesOpt,
    RefreshOpt,
    RestOpt,
    ToOpt,
    check_option_combinations,
    open_session_with_notes,
    write_export,
)
from labelahead.cli.shell import Option, Text, UsageError, app, err, out, print_line, report_errors
from labelahead.errors import import_extra

KEY_VARIABLE = "LABEL_STUDIO_API_KEY"
RETRY_SECONDS = 5.0  # seconds between two tries of a Label Studio that is not up
UrlArg = Annotated[str, typer.Argument(help="Where Label Studio is, such as http://localhost:8080")]
ProjectOpt = Annotated[int, Option("--project", min=1, help="The number in the project's address.")]
FolderOpt = Annotated[
    Path | None,
    Option("--out", help="Where labels and items are kept. (default: labels-label-studio-N)"),
]
WebhookOpt = Annotated[
    Text, Option("--webhook-url", help="This command's address as Label Studio sees it.")
]
PredictOpt = Annotated[
    bool, Option("--predictions", help="Show annotators the likely choice, with its confidence.")
]
PoolOpt = Annotated[
    Text,
    Option("--pool", help="A store of `pool embed`: its items come in as tasks when they matter."),
]
PicturesOpt = Annotated[
    Text,
    Option(
        "--pictures-at",
        help="With --pool: URL before a picture's name. (default: local ones are uploaded)",
    ),
]
Answer = TypeVar("Answer")


@app.command(name="label-studio")
def label_studio(
    context: typer.Context,
    url: UrlArg,
    project: ProjectOpt,
    folder: FolderOpt = None,
    host: HostOpt = "127.0.0.1",
    port: PortOpt = 8770,
    webhook: WebhookOpt = None,
    predictions: PredictOpt = False,
    strategy: shell.StrategyOpt = None,
    model: shell.ModelOpt = None,
    embedding: shell.EmbeddingOpt = None,
    every: EveryOpt = 10,
    seed: shell.SeedOpt = None,
    threads: shell.ThreadOpt = None,
    export: ExportOpt = None,
    to: ToOpt = None,
    rest: RestOpt = False,
    probabilities: ProbabilitiesOpt = False,
    pool: PoolOpt = None,
    cluster: ClusterOpt = None,
    refresh_every: RefreshOpt = 50,
    pictures_at: PicturesOpt = None,
    config: shell.ConfigOpt = None,
    changes: shell.SetOpt = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Label in Label Studio: the next task is the one whose label matters most, after every
    submission.

    The access token comes from the variable LABEL_STUDIO_API_KEY, or is asked for.

    Examples:

      labelahead label-studio http://localhost:8080 --project 1

      labelahead label-studio http://localhost:8080 --project 1 --predictions

      labelahead label-studio http://localhost:8080 --project 1 --pool features/ --cluster tcp://127.0.0.1:8786

      labelahead label-studio http://localhost:8080 --project 1 --export csv --to labels.csv
    """
    kept = ""

    def hint() -> str:
        return f"; every label is kept in {kept}: the same command goes on" if kept else ""

    with report_errors(hint):
        check_option_combinations(context)
        _check_webhook(webhook)
        _check_pool(pool, cluster, pictures_at)
        connection = _connect(url, project, folder, pool)
        kept = str(connection.folder)
        again = True
        while again:  # once more whenever there are new tasks
            with (_open_task_session if pool is None else _open_pool_session)(
                context, connection, predictions
            ) as (ready, bridge):
                if write_export(ready, context):
                    return
                print_line(f"labels are kept in {kept}; Ctrl-C ends")
                again = _serve(connection, bridge, ready, host, port, webhook)


def _check_pool(pool: str | None, cluster: str | None, pictures_at: str | None) -> None:
    """What makes sense with a pool of millions alone is refused without it."""
    if pool is None:
        if cluster is not None or pictures_at is not None:
            raise UsageError("--cluster and --pictures-at go with --pool; leave them out")
        return
    from labelahead.outofcore.store import is_store

    if not is_store(pool):
        raise UsageError(
            f"--pool is {pool}; expected a folder that `labelahead pool embed` has written"
        )


def _check_webhook(url: str | None) -> None:
    """Label Studio refuses such addresses as containers have among themselves."""
    if url is None:
        return
    host = urlsplit(url).hostname or ""
    if not url.startswith(("http://", "https://")) or not (
        "." in host or ":" in host or host == "localhost"
    ):
        raise UsageError(
            f"--webhook-url is {url!r}; expected http://HOST:PORT, HOST being localhost, an IP "
            "address or a name with "
            "a dot: Label Studio takes no other (containers may have an alias, as in "
            "examples/label-studio)"
        )


def _connect(url: str, project: int, folder: Path | None, pool: str | None) -> Any:
    """The project, if it can be served."""
    for module in ("fastapi", "uvicorn", "jinja2"):
        import_extra(module, "web", "labelling in Label Studio")
    from labelahead.integrations.label_studio.connection import Connection

    key = _read_key()
    return _retry_until_reachable(
        lambda: Connection.open(url, key, project, folder, pool=pool is not None)
    )


@contextmanager
def _open_task_session(
    context: typer.Context, connection: Any, predictions: bool
) -> Iterator[tuple[Any, Any]]:
    """All tasks as a session, which knows all annotations, and the bridge to it."""
    with _show_fetching() as tell:
        fetched = _retry_until_reachable(lambda: connection.fetch_tasks(tell))
    for note in fetched.notes:
        print_line(note, "dim")
    named = {"name": str(fetched.folder)} | (
        {"embedding": fetched.embedding} if fetched.embedding else {}
    )
    campaign, choices = shell.build_campaign(context, {"data": named}), connection.interface.choices
    with open_session_with_notes(
        campaign, connection.folder, classes=choices, every=context.params["every"]
    ) as ready:
        bridge = connection.make_bridge(ready.service, fetched, predictions=predictions)
        _reconcile(bridge)
        yield ready, bridge


@contextmanager
def _open_pool_session(
    context: typer.Context, connection: Any, predictions: bool
) -> Iterator[tuple[Any, Any]]:
    """What is held of a pool of millions, and the bridge that makes tasks of it."""
    given = context.params
    campaign = shell.build_campaign(context, {"data": {"name": given["pool"]}})
    how = {
        "classes": connection.interface.choices,
        "every": given["every"],
        "executor": given["cluster"],
    }
    with open_session_with_notes(
        campaign, connection.folder, **how, refresh_every=given["refresh_every"]
    ) as ready:
        with err.status("reading the tasks"):
            importer = _retry_until_reachable(
                lambda: connection.make_importer(ready.pool_worker, given["pictures_at"])
            )
        if importer.foreign_tasks:
            print_line(
                f"{importer.foreign_tasks} tasks of the project are no items of the pool; they are left "
                "alone",
                "dim",
            )
        bridge = connection.make_pool_bridge(ready.service, importer, predictions=predictions)
        _reconcile(bridge)
        yield ready, bridge


def _reconcile(bridge: Any) -> None:
    """The record says what Label Studio has."""
    new, gone = _retry_until_reachable(bridge.reconcile)
    print_line(f"annotations: {new} taken in, {gone} taken back since the last time", "dim")


def _serve(
    connection: Any, bridge: Any, ready: Any, host: str, port: int, webhook: str | None
) -> bool:
    """Until a signal comes, or new tasks do; whether it was these."""
    from labelahead.integrations.label_studio.gateway import SECRET, LabelStudioGateway, protocol
    from labelahead.server.security import is_loopback
    from labelahead.server.serve import allowed_hosts, serve

    secret = token_urlsafe(24)
    called = (
        () if webhook is None else (urlsplit(webhook).hostname or "",)
    )  # what Label Studio addresses its calls to
    at = connection.labelling_url

    def add_calls(page: Any) -> Any:
        return LabelStudioGateway(
            protocol(bridge),
            page,
            secret=secret,
            hosts=(*allowed_hosts(host), *called),
            predictions_need_secret=not is_loopback(host),
        )

    def renew() -> None:
        print_line("there are new tasks: they come into play now", "dim")
        os.kill(os.getpid(), signal.SIGINT)

    def up(url: str) -> None:
        if not url.startswith("http"):  # what else there is to say
            print_line(url, "yellow")
            return
        base = webhook or urlsplit(url)._replace(query="").geturl()
        where = base.rstrip("/").removesuffix("/webhook") + "/webhook"
        bridge.start(
            where,
            {SECRET: secret},
            lambda: print_line(f"ready: {at} -> Label All Tasks", on=out),
            renew,
        )
        print_line(f"progress, people and exports are to be seen at {url}", "dim")

    try:
        serve(ready, host=host, port=port, browser=False, tell=up, around=add_calls, labelled_at=at)
    except KeyboardInterrupt:
        if not bridge.is_outdated:
            raise
    finally:
        bridge.stop()
    return bool(bridge.is_outdated)


def _read_key() -> str:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if key:
        return key
    if not sys.stdin.isatty():
        raise UsageError(
            f"there is no access token; put it into the variable {KEY_VARIABLE}: Label Studio shows it "
            "under Account & Settings"
        )
    return str(
        typer.prompt("Label Studio's access token (Account & Settings)", hide_input=True, err=True)
    )


def _retry_until_reachable(ask: Callable[[], Answer]) -> Answer:
    """What Label Studio says, once it is up."""
    from labelahead.integrations.label_studio.client import Unreachable

    said = ""
    while True:
        try:
            return ask()
        except Unreachable as error:
            if str(error) != said:
                said = str(error)
                print_line(
                    f"{said}; tried again every {RETRY_SECONDS:g} s until it answers, Ctrl-C ends",
                    "yellow",
                )
            time.sleep(RETRY_SECONDS)


@contextmanager
def _show_fetching() -> Iterator[Callable[[int, int], None]]:
    """What tells how many tasks have been fetched."""
    with err.status("reading the tasks") as status:
        lock = threading.Lock()

        def tell(done: int, of: int) -> None:
            with lock:
                status.update(f"fetching tasks: {done} of {of}")

        yield tell
