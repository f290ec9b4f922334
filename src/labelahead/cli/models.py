"""`labelahead predict` and `labelahead export-model`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from labelahead.cli.shell import (
    DeviceOpt,
    Option,
    Text,
    TrustOpt,
    UsageError,
    announce_device,
    app,
    err,
    print_line,
    report_errors,
)
from labelahead.errors import count_noun

ModelArg = Annotated[
    Path,
    typer.Argument(help="An exported model, a run folder, or the folder of a labelling session."),
]


@app.command()
def predict(
    folder: ModelArg,
    items: Annotated[
        list[Path],
        typer.Argument(help="Folders of images or sounds, such files, tables, .npz files."),
    ],
    file: Annotated[
        Path | None,
        Option("--out", help="Output .csv or .parquet file. (default: standard output)"),
    ] = None,
    network: Annotated[
        Text, Option("--network", help="file.py:function of the network, if the model is your own.")
    ] = None,
    encoder: Annotated[
        Text, Option("--encoder", help="New folder of the model's encoder, if it has moved.")
    ] = None,
    id: Annotated[
        Text, Option("--id", help="Id column of a table; none: row numbers. (default: the model's)")
    ] = None,
    probabilities: Annotated[
        bool, Option("--probabilities", help="Add a column probability:CLASS for every class.")
    ] = False,
    without_guesses: Annotated[
        bool,
        Option("--without-guesses", help="Predict without the columns of guesses of the model."),
    ] = False,
    device: DeviceOpt = None,
    trust_code: TrustOpt = False,
) -> None:
    """Predict items: class, probability, and whether an item is unlike all labelled items.

    Examples:

      labelahead predict labels-photos/ new_photos/ --out predictions.csv

      labelahead predict model/ table.csv --out predictions.parquet
    """
    with report_errors():
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise UsageError(f"--out is {file}; expected a file in a folder that exists")
        where = announce_device(device or "auto")
        from labelahead.learner.export import write_predictions
        from labelahead.model_loading import load_model

        with err.status("loading") as status:
            model = load_model(
                folder, network=network, encoder=encoder, device=where, trust_code=trust_code
            ).to(where)
            done = 0

            def on_progress(more: int) -> None:
                nonlocal done
                done += more
                status.update(f"{done} items")

            predictions = model.predict(
                items, progress=on_progress, id=id or "auto", without_guesses=without_guesses
            )
        for note in predictions.notes:
            print_line(note, "yellow")
        for item, why in predictions.failed.items():
            print_line(f"{item} cannot be read ({why}) and is left out", "yellow")
        text = write_predictions(predictions, file, probabilities=probabilities)
        if text is not None:
            sys.stdout.write(text)
        odd = (
            ""
            if predictions.unlike is None
            else f", {int(predictions.unlike.sum())} of them unlike all labelled items"
        )
        skipped = f", {len(predictions.failed)} could not be read" if predictions.failed else ""
        print_line(
            f"{count_noun(len(predictions), 'item')}{odd}{skipped}" + (f"; {file}" if file else "")
        )


@app.command("export-model")
def export_model(
    folder: ModelArg,
    to: Annotated[
        Path,
        Option("--to", help="New folder for weights, preprocessing, classes and a model card."),
    ],
    onnx: Annotated[
        bool | None,
        Option("--onnx/--no-onnx", help="Also write model.onnx. (default: if possible)"),
    ] = None,
    device: DeviceOpt = None,
    trust_code: TrustOpt = False,
) -> None:
    """Export a model to a folder that predicts without the training data and labels.

    The device encodes the items and fits the model; the exported model runs on any.

    Examples:

      labelahead export-model runs/a --to model

      labelahead export-model labels-photos/ --to model --onnx
    """
    with report_errors():
        where = None if device is None else announce_device(device)
        from labelahead.model_loading import load_model

        with err.status("loading") as status:
            model = load_model(folder, device=where, trust_code=trust_code)
            status.update("writing")
            model.save(to, onnx=onnx)
        print_line((to / "README.md").read_text(encoding="utf-8").split("\n|")[0].strip())
        print_line(f"\nthe model is in {to}")
