"""`labelahead label`: the labelling page in a browser."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from labelahead.cli import guess, shell
from labelahead.cli.shell import Option, Text, UsageError, app, err, out, print_line, report_errors
from labelahead.errors import import_extra

SourceArg = Annotated[
    str,
    typer.Argument(
        help="Folder of images or sounds, table, data set name, or a `pool embed` store."
    ),
]
OutOpt = Annotated[
    Path | None, Option("--out", help="Folder for the labels. (default: labels-NAME)")
]
HostOpt = Annotated[
    str, Option("--host", help="Address to listen on; 0.0.0.0: also for other machines.")
]
PortOpt = Annotated[
    int, Option("--port", min=0, max=65535, help="Port; the next free one if it is in use.")
]
TokenOpt = Annotated[
    Text,
    Option(
        "--token",
        envvar="LABELAHEAD_TOKEN",
        help="Access token; auto: generate one; @FILE: read it from a file. Always set for 0.0.0.0.",
    ),
]
UsersOpt = Annotated[
    Path | None,
    Option("--users", help="File of users who must log in (docs/labelling.md#accounts)."),
]
UserHeaderOpt = Annotated[
    Text,
    Option("--user-header", help="Header in which a reverse proxy names the user. (default: none)"),
]
BrowserOpt = Annotated[bool, Option("--browser/--no-browser", help="Open the page in a browser.")]
ImportOpt = Annotated[Path | None, Option("--labels", help="Import the labels in this file.")]
FoldersOpt = Annotated[
    bool, Option("--start-from-folders", help="Import the labels that the data contain.")
]
TestOpt = Annotated[
    Text,
    Option("--test", help="Test set: a file of item,label, or a fraction of the labelled data."),
]
RetrainEveryOpt = Annotated[
    int, Option("--retrain-every", min=1, help="Labels between two trainings.")
]
OverlapOpt = Annotated[
    float,
    Option(
        "--overlap",
        min=0,
        max=0.9,
        help="Fraction of queries that repeat an item of another annotator.",
    ),
]
ShowGuessesOpt = Annotated[
    bool, Option("--show-guesses", help="Show guesses before the answer; people then follow them.")
]
BudgetOpt = Annotated[
    int | None, Option("--budget", min=1, help="Number of labels you plan to give.")
]
ExportOpt = Annotated[
    Text, Option("--export", help="Export the labels and exit: csv, jsonl, parquet, hf, ...")
]
ExportPathOpt = Annotated[Path | None, Option("--to", help="Output file or folder of --export.")]
ClusterOpt = Annotated[
    Text, Option("--cluster", help="With a `pool embed` store: the Dask scheduler that scores it.")
]
RefreshOpt = Annotated[
    int,
    Option(
        "--refresh-every", min=1, help="With a `pool embed` store: labels between two rescorings."
    ),
]
WithPredictionsOpt = Annotated[
    bool, Option("--rest", help="With --export: add predictions for unlabelled items.")
]
ProbabilitiesOpt = Annotated[
    bool, Option("--probabilities", help="With --rest: add the probability of every class.")
]
PicturesAtOpt = Annotated[
    Text,
    Option(
        "--pictures-at",
        help="With --export label-studio: URL prefix of images or sounds. (default: embed images)",
    ),
]


@app.command()
@shell.insert_options(guess.language_model_options, after="prior")
def label(
    context: typer.Context,
    data: SourceArg,
    classes: shell.ClassesOpt = None,
    folder: OutOpt = None,
    host: HostOpt = "127.0.0.1",
    port: PortOpt = 8765,
    token: TokenOpt = None,
    users: UsersOpt = None,
    user_header: UserHeaderOpt = None,
    browser: BrowserOpt = True,
    labels: ImportOpt = None,
    start_from_folders: FoldersOpt = False,
    test: TestOpt = None,
    target: shell.TargetOpt = None,
    task: shell.TaskOpt = None,
    label_columns: shell.LabelColumnsOpt = None,
    unit: shell.UnitOpt = None,
    limits: shell.LimitsOpt = None,
    id: shell.IdOpt = None,
    strategy: shell.StrategyOpt = None,
    goal: shell.GoalOpt = None,
    model: shell.ModelOpt = None,
    embedding: shell.EmbeddingOpt = None,
    guesses: shell.GuessesOpt = None,
    prior: shell.SessionPriorOpt = None,
    batch_size: shell.BatchSizeOpt = None,
    encoder_workers: shell.WorkersOpt = None,
    width: shell.WidthOpt = None,
    root: shell.RootOpt = None,
    retrain_every: RetrainEveryOpt = 10,
    overlap: OverlapOpt = 0.1,
    show_guesses: ShowGuessesOpt = False,
    budget: BudgetOpt = None,
    seed: shell.SeedOpt = None,
    threads: shell.ThreadOpt = None,
    device: shell.DeviceOpt = None,
    export: ExportOpt = None,
    to: ExportPathOpt = None,
    rest: WithPredictionsOpt = False,
    probabilities: ProbabilitiesOpt = False,
    pictures_at: PicturesAtOpt = None,
    cluster: ClusterOpt = None,
    refresh_every: RefreshOpt = 50,
    config: shell.ConfigOpt = None,
    changes: shell.SetOpt = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Label in a browser: one key per item; the query is updated after every label.

    Examples:

      labelahead label photos/ --classes cat,dog,fox

      labelahead label reviews.csv --classes good,bad --test judged.csv

      labelahead label photos/ --task multilabel --classes cat,dog,fox

      labelahead label photos/ --task number --unit kg --limits 0,100

      labelahead label photos/ --host 0.0.0.0

      labelahead label reviews.csv --id review --export csv --to labels.csv --rest
    """
    kept = ""

    def hint() -> str:
        return f"; all labels are in {kept}: run the same command to continue" if kept else ""

    with report_errors(hint):
        check_option_combinations(context)
        campaign = shell.build_campaign(context, _read_stored_settings(context))
        shell.announce_device(campaign.device)
        campaign = guess.ask_language_model(
            context, campaign, _read_session_classes(campaign, folder)
        )
        campaign = shell.choose_embedding(campaign, labels, _stored_settings(campaign, folder))
        more = {
            "start_from_folders": start_from_folders,
            "test": _parse_test(test),
            "overlap": overlap,
            "budget": budget,
            "show_guesses": show_guesses,
            "choose_prior": not shell.is_setting_given(context, "data", "prior"),
        }
        more |= {
            "executor": cluster,
            "refresh_every": refresh_every,
            "read_only": _is_read_only(context.params),
        }
        with open_session_with_notes(
            campaign, folder, labels=labels, retrain_every=retrain_every, **more
        ) as ready:
            kept = str(ready.folder)
            if not write_export(ready, context):
                _serve(
                    ready,
                    host=host,
                    port=port,
                    token=token,
                    browser=browser,
                    login=_read_login(users, user_header),
                )


@contextmanager
def open_session_with_notes(
    campaign: Any, folder: str | Path | None, **options: Any
) -> Iterator[Any]:
    """Open a session and print its notes."""
    for module in ("fastapi", "uvicorn", "jinja2"):
        import_extra(module, "web", "the labelling page")
    from labelahead.server.session import SessionOptions, open_session

    with ExitStack() as session:
        with err.status("loading"):
            ready = session.enter_context(open_session(campaign, folder, SessionOptions(**options)))
        for note in ready.notes:
            print_line(note, "dim")
        yield ready


def _stored_settings(campaign: Any, folder: Path | None) -> Path:
    """Return the file of a session's settings, which may not exist."""
    from labelahead.server.session import session_folder

    return session_folder(folder, campaign.data.name) / "session.toml"


def _read_session_classes(campaign: Any, folder: Path | None) -> list[str]:
    """Return the classes of an existing session; none if there is no session."""
    from labelahead.server.journal import read_class_names
    from labelahead.server.session import session_folder

    return read_class_names(session_folder(folder, campaign.data.name))


def _read_stored_settings(context: typer.Context) -> dict[str, Any] | None:
    """Return the settings that the session was last opened with, for an export.

    The exported model is then fitted with the same settings as the page.
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
    """Serve the page until Ctrl-C, and say what the guessers were worth."""
    from labelahead.server.progress import describe_session_guessers
    from labelahead.server.serve import serve

    print_line(f"labels are stored in {ready.folder}; press Ctrl-C to stop")
    try:
        serve(
            ready, token=_read_token(token), on_message=lambda url: print_line(url, on=out), **how
        )
    finally:
        for line in describe_session_guessers(ready.schedule):
            print_line(line)


def _read_login(users: Path | None, user_header: str | None) -> Any:
    """Return who may use the page."""
    from labelahead.server.accounts import Accounts
    from labelahead.server.serve import LoginSettings

    return LoginSettings(None if users is None else Accounts.from_file(users), user_header)


def _read_token(given: str | None) -> str | None:
    """Return the access token; "" requests a generated one.

    Other users of the machine can see the command line, but not a private file.
    """
    if given is None or not given.startswith("@"):
        return "" if given == "auto" else given
    try:
        return Path(given[1:]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--token {given} cannot be read ({error}); expected a file that contains the token"
        ) from error


def write_export(ready: Any, context: typer.Context) -> bool:
    """Write the export if --export is given; return whether it is."""
    given = context.params
    if given["export"] is None:
        return False
    from labelahead.server.session import export_session

    export_options = {"rest": given["rest"], "probabilities": given["probabilities"]}
    if given["export"] == "label-studio":
        export_options["pictures_at"] = given["pictures_at"]
    with err.status("writing") as status:

        def on_progress(what: str, done: float) -> None:
            status.update(f"{what}: {done:.0%}")

        done = export_session(
            ready, given["export"], given["to"], on_progress=on_progress, **export_options
        )
    print_line(done)
    return True


def check_option_combinations(context: typer.Context) -> None:
    """Raise if an option is given without the option that it depends on."""
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
    """Return whether the session is only read, which is possible while a server has it open.

    Importing labels is not.
    """
    return (
        options["export"] is not None
        and options["labels"] is None
        and not options["start_from_folders"]
    )


def _parse_test(test: str | None) -> float | str | None:
    """Return the fraction if `test` is a number; otherwise it is the name of a file."""
    try:
        return None if test is None else float(test)
    except ValueError:
        return test
