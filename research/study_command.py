"""The command for studies of the theory."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from labelahead.cli.shell import (
    ConfigOpt,
    Option,
    SetOpt,
    Text,
    UsageError,
    find_free_folder,
    out,
    report_errors,
)
from labelahead.errors import InputError

app = typer.Typer(
    name="python -m research study",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
)


@app.command()
def study(
    name: Annotated[Text, typer.Argument(help="Which one; nothing: list them.")] = None,
    scale: Annotated[
        str, Option(help="small (minutes), paper (hours), or another that the study has.")
    ] = "small",
    data: Annotated[Text, Option("--data", help="A known set, a file or a folder.")] = None,
    root: Annotated[Text, Option("--root", help="Folder that holds a known set.")] = None,
    seeds: Annotated[int | None, Option(help="How many seeds.")] = None,
    config: ConfigOpt = None,
    changes: SetOpt = None,
    folder: Annotated[
        Path | None, Option("--out", help="Where to keep it; one that was begun goes on.")
    ] = None,
    workers: Annotated[int | None, Option(help="Measurements at a time. (default: cores)")] = None,
) -> None:
    """A study of the theory, with figures and a page that explains them. Interrupt it at will.

    Examples:

      python -m research study

      python -m research study dynamics

      python -m research study dynamics --scale paper --root ~/data --out runs/dynamics-paper
    """
    again = ""

    def hint() -> str:
        return f"; what is measured is kept: `{again}` goes on" if again else ""

    with report_errors(hint):
        from research.studies import EXPERIMENTS, conduct, experiment, settings_of

        if name is None:
            _list(EXPERIMENTS)
            return
        try:
            wanted = experiment(name)
            settings = settings_of(
                wanted,
                scale,
                file=config,
                changes=changes or (),
                options={"data": data, "root": root, "seeds": seeds},
            )
        except InputError as error:
            raise UsageError(str(error)) from error
        target = folder or find_free_folder(f"study-{name}")
        again = f"python -m research study {name} --config {target}/settings.toml --out {target}"
        with _bar() as bar:
            task = bar.add_task(f"study {name}", total=None, note="")

            def progress(what: str, done: int, total: int) -> None:
                bar.update(task, completed=done, total=total, note=what)
                if not out.is_terminal and what:
                    out.print(f"{done}/{total} {what}", markup=False, highlight=False)

            shown = conduct(wanted, settings, target, workers=workers, progress=progress)
        for exhibit in shown.exhibits:
            out.print(f"\n{exhibit.title}", style="bold", markup=False, highlight=False)
            out.print(exhibit.caption, markup=False, highlight=False)
        out.print(f"\nthe page: {shown.page}", markup=False, highlight=False, soft_wrap=True)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
        console=out,
        disable=not out.is_terminal,
        transient=True,
    )


def _list(known: Any) -> None:
    table = Table("study", "what it asks", box=None, header_style="bold", pad_edge=False)
    for entry in known.values():
        table.add_row(entry.name, entry.question)
    out.print(table)
