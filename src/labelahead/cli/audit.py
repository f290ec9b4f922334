"""`labelahead audit`: how good predictions are, certified by randomly drawn labels."""

from pathlib import Path
from typing import Annotated, Any

import typer

from labelahead.cli.shell import (
    Option,
    Text,
    TrustOpt,
    UsageError,
    app,
    err,
    out,
    print_line,
    report_errors,
)
from labelahead.errors import count_noun


@app.command()
def audit(
    source: Annotated[
        Path, typer.Argument(help="File of predictions, or the folder of a labelling session.")
    ],
    folder: Annotated[
        Path | None, Option("--folder", help="Folder of the audit. (default: NAME.audit)")
    ] = None,
    n: Annotated[int, Option("--n", min=1, help="How many items to label next.")] = 50,
    to: Annotated[
        Path | None, Option("--next", help="File for the next items. (default: next.csv there)")
    ] = None,
    labels: Annotated[
        Path | None, Option("--labels", help="File with the columns id and label to read.")
    ] = None,
    until: Annotated[
        float,
        Option("--until", help="Half-width to reach, in points; the first one shapes the audit."),
    ] = 2.0,
    confidence: Annotated[
        float, Option("--confidence", help="Of the intervals; fixed when the audit begins.")
    ] = 0.95,
    seed: Annotated[int, Option("--seed", help="Of the order; fixed when the audit begins.")] = 0,
    certificate: Annotated[
        bool, Option("--certificate", help="Issue the certificate: HTML and JSON.")
    ] = False,
    page: Annotated[
        Path | None, Option("--out", help="HTML file of the certificate. (default: in the folder)")
    ] = None,
    teach: Annotated[
        bool,
        Option("--teach", help="After the certificate: add the answers to the session's labels."),
    ] = False,
    id: Annotated[
        str, Option("--id", help="Id column; none: row numbers. (default: id if there is one)")
    ] = "auto",
    column: Annotated[
        str, Option("--prediction", help="Column with the predicted classes.")
    ] = "prediction",
    who: Annotated[Text, Option("--who", help="Whose labels --labels are.")] = None,
    trust_code: TrustOpt = False,
) -> None:
    """Audit predictions of any model: label random items, watch the interval, hand over a certificate.

    The first call freezes the predictions and writes the items to label first. Every further call
    reads labels, prints the interval, and writes the next items. The interval holds however often
    you look.

    Examples:

      labelahead audit predictions.csv --n 100

      labelahead audit predictions.csv --labels answers.csv --until 2

      labelahead audit predictions.csv --certificate

      labelahead audit labels-photos/ --labels answers.csv --certificate --teach
    """
    with report_errors():
        if not 0 < until < 50:
            raise UsageError(f"--until is {until}; expected points between 0 and 50")
        if teach and not source.is_dir():
            raise UsageError("--teach needs the folder of a labelling session")
        from labelahead.audit.folder import describe_progress

        settings = {"seed": seed, "confidence": confidence, "target": until / 100}
        running = _open_audit(source, folder, settings, {"id": id, "column": column}, trust_code)
        if labels is not None:
            from labelahead.audit.predictions import read_answers

            answers = read_answers(labels, running.predictions, id="id")
            new = running.record(answers.items(), who or str(labels))
            print_line(f"{labels}: {count_noun(new, 'new answer')}", on=out)
        quality = running.estimate_accuracy()
        if quality.labels:
            print_line(describe_progress(quality, running.count_waiting()), on=out)
        reached = quality.accuracy.half_width <= until / 100
        if certificate:
            _issue(running, page)
        elif reached:
            print_line(
                f"±{until:g} points are reached; --certificate writes the certificate", on=out
            )
        if teach:
            print_line(_teach_session(source, running), on=out)
        elif not reached:
            _write_next(running, n, to or running.folder / "next.csv")


def _open_audit(
    source: Path,
    folder: Path | None,
    settings: dict[str, Any],
    columns: dict[str, str],
    trust_code: bool,
) -> Any:
    """Open the audit of these predictions, or freeze them and start one."""
    from labelahead.audit.folder import Audit
    from labelahead.errors import InputError

    is_session = (source / "labels.db").exists()
    if source.is_dir() and not is_session:
        raise InputError(f"{source} is no labelling session; expected its folder, or a file")
    if is_session:
        from labelahead.server.auditing import find_audit, start_session_audit

        running = find_audit(source)
        if running is None:
            with err.status("fitting the model on all labels"):
                running = start_session_audit(source, **settings, trust_code=trust_code)
            _announce(running)
        return running
    if not source.exists():
        raise InputError(f"{source} does not exist; expected a file of predictions")
    place = folder or source.with_name(f"{source.name}.audit")
    from labelahead.audit.folder import hash_file

    if (place / "audit.json").exists():
        running = Audit.open(place)
        if hash_file(source) != running.settings.model:
            raise InputError(
                f"{source} is not the file whose predictions are audited in {place}: it was changed, "
                "or is another one; choose another --folder to audit it"
            )
        return running
    from labelahead.audit.predictions import read_predictions

    predictions, notes = read_predictions(source, **columns)
    for note in notes:
        print_line(note, "yellow", on=out)
    running = Audit.start(
        place, predictions, source=source.name, model=hash_file(source), **settings
    )
    _announce(running)
    return running


def _announce(running: Any) -> None:
    """Print what was frozen, and the strata."""
    from rich.table import Table

    known = running.predictions.probability is not None
    how = "in strata by predicted error" if known else "as a plain sample: no probabilities"
    print_line(
        f"{count_noun(len(running.predictions), 'prediction')} frozen in {running.folder}, drawn {how}",
        on=out,
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("predicted error", "items", "share of the draws"):
        table.add_column(name, justify="right")
    for row in running.plan.describe_strata():
        table.add_row(f"{row.low:.1%} to {row.high:.1%}", str(row.items), f"{row.share:.0%}")
    if known:
        out.print(table)


def _issue(running: Any, page: Path | None) -> None:
    from labelahead.audit.certificate import write_certificate

    written, beside = write_certificate(running, page)
    print_line(f"certificate: {written} and {beside}", on=out)


def _write_next(running: Any, n: int, to: Path) -> None:
    """Write the next items without their predictions: who sees them tends to agree."""
    import csv
    import io

    from labelahead.files import replace_file

    positions = running.list_next(n)
    if not positions:
        print_line("all items are labelled", on=out)
        return
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["id", "label"])
    rows.writerows([running.predictions.ids[p], ""] for p in positions)
    replace_file(to, text.getvalue())
    print_line(
        f"the next {count_noun(len(positions), 'item')} to label are in {to}; fill in the column "
        "label, and read it with --labels",
        on=out,
    )


def _teach_session(source: Path, running: Any) -> str:
    from labelahead.server.auditing import teach_session

    return teach_session(source, running)
