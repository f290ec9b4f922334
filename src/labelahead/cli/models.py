"""Commands over finished models: take one away, and use it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from labelahead.cli.shell import (
    Option,
    Text,
    TrustOpt,
    UsageError,
    app,
    err,
    print_line,
    report_errors,
)

ModelArg = Annotated[
    Path, typer.Argument(help="An exported model, a run's folder, or a page's folder of labels.")
]


@app.command()
def predict(
    folder: ModelArg,
    items: Annotated[
        list[Path], typer.Argument(help="Folders of pictures, pictures, tables, .npz files.")
    ],
    file: Annotated[
        Path | None, Option("--out", help="A .csv or .parquet file. (default: the screen)")
    ] = None,
    network: Annotated[
        Text, Option("--network", help="Your own network, file.py:function, if the model is one.")
    ] = None,
    id: Annotated[
        Text,
        Option("--id", help="A table's column of ids; none: row numbers. (default: the model's)"),
    ] = None,
    probabilities: Annotated[
        bool, Option("--probabilities", help="A column probability:CLASS for every class.")
    ] = False,
    trust_code: TrustOpt = False,
) -> None:
    """What a model says of items: their class, how sure it is, and whether they are unlike anything
    labelled.

    Examples:

      labelahead predict labels-photos/ new_photos/ --out predictions.csv

      labelahead predict model/ table.csv --out predictions.parquet
    """
    with report_errors():
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise UsageError(f"--out is {file}; expected a file in a folder that exists")
        from labelahead.learner.export import write_predictions
        from labelahead.model_loading import load_model

        with err.status("loading") as status:
            model = load_model(folder, network=network, trust_code=trust_code)
            done = 0

            def tell(more: int) -> None:
                nonlocal done
                done += more
                status.update(f"{done} items")

            said = model.predict(items, progress=tell, id=id or "auto")
        for item, why in said.failed.items():
            print_line(f"{item} cannot be read ({why}): left out", "yellow")
        text = write_predictions(said, file, probabilities=probabilities)
        if text is not None:
            sys.stdout.write(text)
        odd = (
            ""
            if said.unlike is None
            else f", {int(said.unlike.sum())} of them unlike anything labelled"
        )
        skipped = f", {len(said.failed)} could not be read" if said.failed else ""
        print_line(f"{len(said)} items{odd}{skipped}" + (f"; {file}" if file else ""))


@app.command("export-model")
def export_model(
    folder: ModelArg,
    to: Annotated[
        Path, Option("--to", help="A new folder: weights, how items are read, classes, a card.")
    ],
    onnx: Annotated[
        bool | None, Option("--onnx/--no-onnx", help="model.onnx, too. (default: if it can be)")
    ] = None,
    trust_code: TrustOpt = False,
) -> None:
    """Take the model away: a folder that predicts without the data and the labels it was made from.

    Examples:

      labelahead export-model runs/a --to model

      labelahead export-model labels-photos/ --to model --onnx
    """
    with report_errors():
        from labelahead.model_loading import load_model

        with err.status("loading") as status:
            model = load_model(folder, trust_code=trust_code)
            status.update("writing")
            model.save(to, onnx=onnx)
        print_line((to / "README.md").read_text(encoding="utf-8").split("\n|")[0].strip())
        print_line(f"\nthe model is in {to}")
