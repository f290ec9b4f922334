"""`labelahead label-studio`: active learning in a Label Studio project."""

import os
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

from labelahead.cli import guess, shell
from labelahead.cli.label import (
    ClusterOpt,
    ExportOpt,
    ExportPathOpt,
    HostOpt,
    PortOpt,
    ProbabilitiesOpt,
    RefreshOpt,
    RetrainEveryOpt,
    WithPredictionsOpt,
    check_option_combinations,
    open_session_with_notes,
    write_export,
)
from labelahead.cli.shell import Option, Text, UsageError, app, err, out, print_line, report_errors
from labelahead.errors import import_extra

KEY_VARIABLE = "LABEL_STUDIO_API_KEY"
RETRY_SECONDS = 5.0  # between two attempts to reach Label Studio
UrlArg = Annotated[str, typer.Argument(help="URL of Label Studio, such as http://localhost:8080")]
ProjectOpt = Annotated[int, Option("--project", min=1, help="Id of the project, as in its URL.")]
FolderOpt = Annotated[
    Path | None,
    Option("--out", help="Folder for labels and items. (default: labels-label-studio-N)"),
]
WebhookOpt = Annotated[
    Text, Option("--webhook-url", help="URL of this command as seen from Label Studio.")
]
PredictOpt = Annotated[
    bool, Option("--predictions", help="Show annotators the predicted choice with its confidence.")
]
PoolOpt = Annotated[
    Text,
    Option("--pool", help="A `pool embed` store: import its items as tasks when they are queried."),
]
PicturesOpt = Annotated[
    Text,
    Option(
        "--pictures-at", help="With --pool: URL prefix of images. (default: upload local images)"
    ),
]
GuessesOpt = Annotated[
    list[str] | None,
    Option(
        "--guesses",
        help=(
            "What is already said about the tasks: predictions (of other models in the project), a "
            "file by task id, model:FOLDER, file.py:function or llm:URL. Repeatable."
        ),
    ),
]
Answer = TypeVar("Answer")


@app.command(name="label-studio")
@shell.insert_options(guess.language_model_options, after="prior")
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
    guesses: GuessesOpt = None,
    prior: shell.SessionPriorOpt = None,
    retrain_every: RetrainEveryOpt = 10,
    seed: shell.SeedOpt = None,
    threads: shell.ThreadOpt = None,
    device: shell.DeviceOpt = None,
    export: ExportOpt = None,
    to: ExportPathOpt = None,
    rest: WithPredictionsOpt = False,
    probabilities: ProbabilitiesOpt = False,
    pool: PoolOpt = None,
    cluster: ClusterOpt = None,
    refresh_every: RefreshOpt = 50,
    pictures_at: PicturesOpt = None,
    config: shell.ConfigOpt = None,
    changes: shell.SetOpt = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Label in Label Studio: after every submission, the most useful task is served next.

    The access token is read from the variable LABEL_STUDIO_API_KEY, or prompted for.

    Examples:

      labelahead label-studio http://localhost:8080 --project 1

      labelahead label-studio http://localhost:8080 --project 1 --predictions

      labelahead label-studio http://localhost:8080 --project 1 --pool features/ --cluster tcp://127.0.0.1:8786

      labelahead label-studio http://localhost:8080 --project 1 --export csv --to labels.csv
    """
    kept = ""

    def hint() -> str:
        return f"; all labels are in {kept}: run the same command to continue" if kept else ""

    with report_errors(hint):
        check_option_combinations(context)
        _check_webhook(webhook)
        _check_pool(pool, cluster, pictures_at)
        connection = _connect(url, project, folder, pool)
        kept = str(connection.folder)
        again = True
        while again:  # open the session again when tasks are added
            with (_open_task_session if pool is None else _open_pool_session)(
                context, connection, predictions
            ) as (ready, bridge):
                if write_export(ready, context):
                    return
                print_line(f"labels are stored in {kept}; press Ctrl-C to stop")
                again = _serve(connection, bridge, ready, host, port, webhook)


def _check_pool(pool: str | None, cluster: str | None, pictures_at: str | None) -> None:
    """Raise if an option of --pool is given without it, or if --pool is not a store."""
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
    """Raise for URLs that Label Studio rejects, such as bare host names of containers."""
    if url is None:
        return
    host = urlsplit(url).hostname or ""
    if not url.startswith(("http://", "https://")) or not (
        "." in host or ":" in host or host == "localhost"
    ):
        raise UsageError(
            f"--webhook-url is {url!r}; expected http://HOST:PORT, HOST being localhost, an IP "
            "address or a name with "
            "a dot: Label Studio accepts no other (give containers an alias, as in "
            "examples/label-studio)"
        )


def _connect(url: str, project: int, folder: Path | None, pool: str | None) -> Any:
    """Connect to the project and check that it can be served."""
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
    """Open a session of all tasks and the bridge between it and the project."""
    with _show_fetching() as on_progress:
        fetched = _retry_until_reachable(lambda: connection.fetch_tasks(on_progress))
    for note in fetched.notes:
        print_line(note, "dim")
    named = {"name": str(fetched.folder)} | (
        {"embedding": fetched.embedding} if fetched.embedding else {}
    )
    campaign, choices = _build_campaign(context, connection, named), connection.interface.choices
    shell.announce_device(campaign.device)
    campaign = guess.ask_language_model(
        context, _with_predictions(campaign, connection), connection.interface.choices
    )
    with open_session_with_notes(
        campaign,
        connection.folder,
        classes=choices,
        retrain_every=context.params["retrain_every"],
        choose_prior=not shell.is_setting_given(context, "data", "prior"),
    ) as ready:
        bridge = connection.make_bridge(ready.service, fetched, predictions=predictions)
        _reconcile(bridge)
        yield ready, bridge


def _build_campaign(context: typer.Context, connection: Any, named: dict[str, Any]) -> Any:
    """Return the settings of a session for the answers of the project."""
    from labelahead.server.task_session import prepare_task

    interface = connection.interface
    if interface.task == "classes":
        return shell.build_campaign(context, {"data": named})
    campaign = shell.build_campaign(context, {"data": named | interface.data_settings})
    if campaign.data.task != interface.task:
        raise UsageError(
            f"task is {campaign.data.task}, but the project's labelling configuration is for "
            f"{interface.task}; leave the setting out"
        )
    return prepare_task(campaign)


def _with_predictions(campaign: Any, connection: Any) -> Any:
    """Return the campaign with a file in place of the predictions in the project."""
    from dataclasses import replace

    from labelahead.integrations.label_studio.predictions import (
        PREDICTIONS_GUESSER,
        write_predictions,
    )

    if PREDICTIONS_GUESSER not in campaign.data.guesses:
        return campaign
    with err.status("reading predictions"):
        file, count = _retry_until_reachable(
            lambda: write_predictions(connection.studio, connection.interface, connection.folder)
        )
    print_line(f"guesses: {count} predictions of other models", "dim")
    names = [str(file) if name == PREDICTIONS_GUESSER else name for name in campaign.data.guesses]
    return replace(campaign, data=replace(campaign.data, guesses=tuple(names)))


@contextmanager
def _open_pool_session(
    context: typer.Context, connection: Any, predictions: bool
) -> Iterator[tuple[Any, Any]]:
    """Open a session on an out-of-core pool and the bridge that imports its items as tasks."""
    given = context.params
    campaign = shell.build_campaign(context, {"data": {"name": given["pool"]}})
    if campaign.data.has_guesses:
        raise UsageError("--guesses and --prior do not go with --pool; leave them out")
    shell.announce_device(campaign.device)
    pool_options = {
        "classes": connection.interface.choices,
        "retrain_every": given["retrain_every"],
        "executor": given["cluster"],
    }
    with open_session_with_notes(
        campaign, connection.folder, **pool_options, refresh_every=given["refresh_every"]
    ) as ready:
        with err.status("reading the tasks"):
            importer = _retry_until_reachable(
                lambda: connection.make_importer(ready.pool_worker, given["pictures_at"])
            )
        if importer.foreign_tasks:
            print_line(
                f"{importer.foreign_tasks} tasks of the project are not in the pool and are ignored",
                "dim",
            )
        bridge = connection.make_pool_bridge(ready.service, importer, predictions=predictions)
        _reconcile(bridge)
        yield ready, bridge


def _reconcile(bridge: Any) -> None:
    """Bring the journal up to date with the annotations in Label Studio."""
    new, gone = _retry_until_reachable(bridge.reconcile)
    print_line(f"annotations: {new} new, {gone} deleted since the last run", "dim")


def _serve(
    connection: Any, bridge: Any, ready: Any, host: str, port: int, webhook: str | None
) -> bool:
    """Serve until a signal arrives or tasks are added; return whether tasks were added."""
    from labelahead.integrations.label_studio.gateway import (
        SECRET_HEADER,
        LabelStudioGateway,
        protocol,
    )
    from labelahead.server.security import is_loopback
    from labelahead.server.serve import ExternalLabelling, StopHandle, allowed_hosts, serve

    secret = token_urlsafe(24)
    called = (
        () if webhook is None else (urlsplit(webhook).hostname or "",)
    )  # the host name that Label Studio uses in its calls
    at = connection.labelling_url
    stop = StopHandle()

    def add_calls(page: Any) -> Any:
        return LabelStudioGateway(
            protocol(bridge),
            page,
            secret=secret,
            hosts=(*allowed_hosts(host), *called),
            predictions_need_secret=not is_loopback(host),
        )

    def renew() -> None:
        print_line("tasks were added: they are loaded now", "dim")
        stop.stop()

    def show_address(url: str) -> None:
        if not url.startswith("http"):  # a warning, not the URL
            print_line(url, "yellow")
            return
        base = webhook or urlsplit(url)._replace(query="").geturl()
        where = base.rstrip("/").removesuffix("/webhook") + "/webhook"
        bridge.start(
            where,
            {SECRET_HEADER: secret},
            lambda: print_line(f"ready: {at} -> Label All Tasks", on=out),
            renew,
        )
        print_line(f"progress, annotators and exports: {url}", "dim")

    external = ExternalLabelling(at, add_calls, stop)
    try:
        serve(
            ready, host=host, port=port, browser=False, on_message=show_address, external=external
        )
    finally:
        bridge.stop()
    return bool(bridge.is_outdated)


def _read_key() -> str:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if key:
        return key
    if not sys.stdin.isatty():
        raise UsageError(
            f"no access token is set; put it into the variable {KEY_VARIABLE}: Label Studio shows "
            "it under Account & Settings"
        )
    return str(
        typer.prompt("Label Studio's access token (Account & Settings)", hide_input=True, err=True)
    )


def _retry_until_reachable(request: Callable[[], Answer]) -> Answer:
    """Call a function, again and again while Label Studio is not reachable; return its result."""
    from labelahead.integrations.label_studio.client import Unreachable

    message = ""
    while True:
        try:
            return request()
        except Unreachable as error:
            if str(error) != message:
                message = str(error)
                print_line(
                    f"{message}; retrying every {RETRY_SECONDS:g} s, press Ctrl-C to stop", "yellow"
                )
            time.sleep(RETRY_SECONDS)


@contextmanager
def _show_fetching() -> Iterator[Callable[[int, int], None]]:
    """Show how many tasks have been fetched."""
    with err.status("reading the tasks") as status:
        lock = threading.Lock()

        def on_progress(done: int, of: int) -> None:
            with lock:
                status.update(f"fetching tasks: {done} of {of}")

        yield on_progress
