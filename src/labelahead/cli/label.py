"""The command for labelling by hand, in a browser."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from labelahead.cli import shell
from labelahead.cli.shell import Option, Text, UsageError, app, err, out, print_line, report_errors
from labelahead.errors import import_extra

SourceArg = Annotated[
    str,
    typer.Argument(help="A folder of pictures, a table, a known set, or a store of `pool embed`."),
]
OutOpt = Annotated[
    Path | None, Option("--out", help="Where the labels are kept. (default: labels-NAME)")
]
HostOpt = Annotated[str, Option("--host", help="0.0.0.0: for others on the network too.")]
PortOpt = Annotated[int, Option("--port", min=0, max=65535, help="If busy, the next free one.")]
TokenOpt = Annotated[
    Text,
    Option(
        "--token",
        envvar="LABELAHEAD_TOKEN",
        help="Ask for it; auto: make one; @FILE: what is in it. Beyond this machine: always.",
    ),
]
BrowserOpt = Annotated[bool, Option("--browser/--no-browser", help="Open a browser.")]
TakeOpt = Annotated[Path | None, Option("--labels", help="Take in the labels of this file.")]
FoldersOpt = Annotated[
    bool, Option("--start-from-folders", help="Take in the labels that the data carry.")
]
TestOpt = Annotated[
    Text, Option("--test", help="Measure on these: a file of item,label, or a share of the data.")
]
EveryOpt = Annotated[int, Option("--retrain-every", min=1, help="Labels between trainings.")]
OverlapOpt = Annotated[
    float, Option("--overlap", min=0, max=0.9, help="Share of questions for a second opinion.")
]
BudgetOpt = Annotated[int | None, Option("--budget", min=1, help="Labels you mean to give.")]
ExportOpt = Annotated[
    Text, Option("--export", help="Write the labels instead: csv, jsonl, parquet, hf, ...")
]
ToOpt = Annotated[Path | None, Option("--to", help="Where --export writes.")]
ClusterOpt = Annotated[
    Text, Option("--cluster", help="Of a store of `pool embed`: a Dask scheduler scores it.")
]
RefreshOpt = Annotated[
    int, Option("--refresh-every", min=1, help="Of such a store: labels between two scorings.")
]
RestOpt = Annotated[bool, Option("--rest", help="--export adds predictions for the others.")]
ProbabilitiesOpt = Annotated[
    bool, Option("--probabilities", help="With --rest: the probability of every class.")
]
PicturesAtOpt = Annotated[
    Text,
    Option(
        "--pictures-at",
        help="With --export label-studio: URL before a picture's name. (default: pictures inside)",
    ),
]


@app.command()
def label(
    context: typer.Context,
    data: SourceArg,
    classes: shell.ClassesOpt = None,
    folder: OutOpt = None,
    host: HostOpt = "127.0.0.1",
    port: PortOpt = 8765,
    token: TokenOpt = None,
    browser: BrowserOpt = True,
    labels: TakeOpt = None,
    start_from_folders: FoldersOpt = False,
    test: TestOpt = None,
    target: shell.TargetOpt = None,
    id: shell.IdOpt = None,
    strategy: shell.StrategyOpt = None,
    model: shell.ModelOpt = None,
    embedding: shell.EmbeddingOpt = None,
    width: shell.WidthOpt = None,
    root: shell.RootOpt = None,
    every: EveryOpt = 10,
    overlap: OverlapOpt = 0.1,
    budget: BudgetOpt = None,
    seed: shell.SeedOpt = None,
    threads: shell.ThreadOpt = None,
    export: ExportOpt = None,
    to: ToOpt = None,
    rest: RestOpt = False,
    probabilities: ProbabilitiesOpt = False,
    pictures_at: PicturesAtOpt = None,
    cluster: ClusterOpt = None,
    refresh_every: RefreshOpt = 50,
    config: shell.ConfigOpt = None,
    changes: shell.SetOpt = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Label in a browser: one key for each item, and the next question learns from every answer.

    Examples:

      labelahead label photos/ --classes cat,dog,fox

      labelahead label reviews.csv --classes good,bad --test judged.csv

      labelahead label photos/ --host 0.0.0.0

      labelahead label reviews.csv --id review --export csv --to labels.csv --rest
    """
    kept = ""

    def hint() -> str:
        return f"; every label is kept in {kept}: the same command goes on" if kept else ""

    with report_errors(hint):
        check_option_combinations(context)
        campaign = shell.build_campaign(context, _read_stored_settings(context))
        more = {
            "start_from_folders": start_from_folders,
            "test": _parse_test(test),
            "overlap": overlap,
            "budget": budget,
        }
        more |= {
            "executor": cluster,
            "refresh_every": refresh_every,
            "read_only": _is_read_only(context.params),
        }
        with open_session_with_notes(campaign, folder, labels=labels, every=every, **more) as ready:
            kept = str(ready.folder)
            if not write_export(ready, context):
                _serve(ready, host=host, port=port, token=token, browser=browser)


@contextmanager
def open_session_with_notes(
    campaign: Any, folder: str | Path | None, **options: Any
) -> Iterator[Any]:
    """The session, with what it has to say said."""
    for module in ("fastapi", "uvicorn", "jinja2"):
        import_extra(module, "web", "the labelling page")
    from labelahead.server.session import open_session

    with ExitStack() as session:
        with err.status("loading"):
            ready = session.enter_context(open_session(campaign, folder, **options))
        for note in ready.notes:
            print_line(note, "dim")
        yield ready


def _read_stored_settings(context: typer.Context) -> dict[str, Any] | None:
    """What the session was last opened with.

    An export is fitted as the page was, unless it is said otherwise.
    """
    if context.params["export"] is None:
        return None
    from labelahead.learner.config import read_stored
    from labelahead.server.session import session_folder

    path = (
        session_folder(context.params["folder"], shell.build_campaign(context).data.name)
        / "session.toml"
    )
    trust = bool(context.params["trust_code"]) or shell.find_typed_code(context)
    return read_stored(path, trust_code=trust) if path.exists() else None


def _serve(ready: Any, *, token: str | None, **how: Any) -> None:
    """Until Ctrl-C."""
    from labelahead.server.serve import serve

    print_line(f"labels are kept in {ready.folder}; Ctrl-C ends")
    serve(ready, token=_read_token(token), tell=lambda url: print_line(url, on=out), **how)


def _read_token(given: str | None) -> str | None:
    """What everybody must know to come in.

    Others on this machine see the command line, but not a file.
    """
    if given is None or not given.startswith("@"):
        return "" if given == "auto" else given
    try:
        return Path(given[1:]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--token {given}: cannot be read ({error}); expected a file that holds the token"
        ) from error


def write_export(ready: Any, context: typer.Context) -> bool:
    """Write what --export asks for, and return whether it does."""
    given = context.params
    if given["export"] is None:
        return False
    from labelahead.server.session import export_session

    how = {"rest": given["rest"], "probabilities": given["probabilities"]}
    if given["export"] == "label-studio":
        how["pictures_at"] = given["pictures_at"]
    with err.status("writing") as status:

        def tell(what: str, done: float) -> None:
            status.update(f"{what}: {done:.0%}")

        done = export_session(ready, given["export"], given["to"], tell=tell, **how)
    print_line(done)
    return True


def check_option_combinations(context: typer.Context) -> None:
    """What makes sense only with another option is refused without it."""
    given = context.params
    export, to, rest, probabilities = (
        given[name] for name in ("export", "to", "rest", "probabilities")
    )
    if "pool" not in given and given["pictures_at"] is not None and export != "label-studio":
        raise UsageError(
            "--pictures-at goes with --export label-studio; expected both, or leave --pictures-at "
            "out"
        )
    if (export is None) != (to is None):
        raise UsageError("--export and --to go together; expected both or neither")
    if rest and export is None:
        raise UsageError("--rest goes with --export; expected both, or leave --rest out")
    if probabilities and not rest:
        raise UsageError(
            "--probabilities goes with --rest; expected both, or leave --probabilities out"
        )


def _is_read_only(options: Mapping[str, Any]) -> bool:
    """Return whether the session is only read, which can be done beside a server.

    Taking labels in cannot.
    """
    return (
        options["export"] is not None
        and options["labels"] is None
        and not options["start_from_folders"]
    )


def _parse_test(test: str | None) -> float | str | None:
    """A number is a share; anything else is a file."""
    try:
        return None if test is None else float(test)
    except ValueError:
        return test
