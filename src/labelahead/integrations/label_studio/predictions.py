"""Predictions that are already in a project, as guesses: those of every model but ours."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from labelahead.data.label_values import normalise_name
from labelahead.errors import InputError
from labelahead.files import make_folder, replace_file
from labelahead.integrations.label_studio.bridge import MODEL_VERSION_PREFIX
from labelahead.integrations.label_studio.client import LabelStudioClient
from labelahead.integrations.label_studio.interface import Interface

__all__ = ["PREDICTIONS_GUESSER", "read_guess", "write_predictions"]

PREDICTIONS_GUESSER = "predictions"  # value of --guesses
GUESS_FILE = "predictions.csv"


def read_guess(interface: Interface, predictions: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the choice of the latest prediction of another model; None without one."""
    known = {normalise_name(choice): choice for choice in interface.choices}
    for made in sorted(predictions, key=lambda one: int(one.get("id") or 0), reverse=True):
        version = str(made.get("model_version") or "")
        if version == MODEL_VERSION_PREFIX or version.startswith(f"{MODEL_VERSION_PREFIX}-"):
            continue
        choice = interface.label(made.get("result") or ())
        if choice is not None and normalise_name(choice) in known:
            return known[normalise_name(choice)]
    return None


def write_predictions(
    studio: LabelStudioClient, interface: Interface, folder: Path
) -> tuple[Path, int]:
    """Write the predictions of a project as a file of guesses, by task id.

    Returns:
        The file, and the number of guesses.

    Raises:
        InputError: no task has a prediction of another model.
    """
    guesses = {
        int(task["id"]): read_guess(interface, task.get("predictions") or ())
        for task in studio.list_tasks(predictions=True)
    }
    count = sum(guess is not None for guess in guesses.values())
    if not count:
        raise InputError(
            f"--guesses is {PREDICTIONS_GUESSER}, but none of the project's {len(guesses)} tasks has a "
            f'prediction of <Choices name="{interface.name}"> by another model; import predictions '
            "first, or leave the option out"
        )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "guess"])
    writer.writerows([task, guess or ""] for task, guess in sorted(guesses.items()))
    make_folder(folder)
    replace_file(folder / GUESS_FILE, text.getvalue())
    return folder / GUESS_FILE, count
