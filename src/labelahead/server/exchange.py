"""Export labels to files of other programs, and import them.

    csv, jsonl, parquet   one row per item: its id, the user's columns, and ours
    label-studio          tasks with the user's columns, every annotator's label, and predictions
    label-studio-config   the labelling configuration for these tasks
    hf                    a folder for `datasets.load_dataset`: Parquet with pictures, and a README
    folders               copies of the items' files, in one folder per class

Our columns: id, label, annotator, labelled_at, source ("label" or "prediction"), prediction,
probability, and on request `probability:CLASS` for every class. A row has the item's label and its
annotator; jsonl and label-studio contain the answers of all annotators. A user's column with the
name of one of ours becomes NAME_original. Predictions are never imported as labels.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labelahead.data.labels import read_import
from labelahead.data.records import Records
from labelahead.data.table_writer import build_arrow_table, iter_json_rows, write_csv
from labelahead.data.task_labels import read_answers
from labelahead.data.text import as_file_name
from labelahead.errors import InputError, import_extra
from labelahead.files import write_atomically
from labelahead.server.export_content import (
    Export,
    ExportItems,
    Predicted,
    column_types,
    export_content,
)
from labelahead.server.huggingface import write_data_set
from labelahead.server.label_state import LabelState
from labelahead.server.label_studio_tasks import labelling_config, studio_tasks
from labelahead.server.service import LabellingService
from labelahead.server.snapshot import PoolPredictions, TaskPredictions
from labelahead.server.task_export import list_prediction_rows, refuse_format, write_cell
from labelahead.tasks import Task

__all__ = [
    "CONFIG_FORMAT",
    "EXPORT_FORMATS",
    "export_labels",
    "import_labels",
    "read_import",
    "write_labels",
]

CONFIG_FORMAT = "label-studio-config"
EXPORT_FORMATS = ("csv", "jsonl", "parquet", "hf", "label-studio", "folders")


def export_labels(
    service: LabellingService,
    form: str,
    out: Path,
    *,
    predicted: PoolPredictions | TaskPredictions | None = None,
    probabilities: bool = False,
    pictures_at: str | None = None,
) -> int:
    """Write the labels to a file or folder, and return the number of rows.

    Args:
        assignment: whose labels.
        form: one of FORMS, or CONFIG.
        out: where to; nothing is overwritten.
        predicted: what to add for items without a label.
        probabilities: whether predictions have the probability of every class.
        pictures_at: what stands before a picture's name in tasks of Label Studio; None: pictures
            are inside.
    """
    with service.lock:
        label_state = service.label_state
    rest = Predicted()
    if isinstance(predicted, TaskPredictions):
        assert label_state.task is not None
        rows = list_prediction_rows(
            label_state.task, predicted, label_state.labels, probabilities=probabilities
        )
        rest = Predicted(task_rows=rows)
    elif predicted is not None:
        best = {p: pair for p, pair in predicted.pick_best().items() if p not in label_state.labels}
        rest = Predicted(
            best, predicted.by_class_number(len(label_state.classes)) if probabilities else None
        )
    items = service.items.describe_for_export()
    return write_labels(label_state, items, form, out, predicted=rest, pictures_at=pictures_at)


def import_labels(service: LabellingService, path: Path, form: str | None = None) -> dict[str, Any]:
    """Import the labels of a file or folder; return counts, also of unknown and test items."""
    label_state, records = service.label_state, service.items.data.records
    names = [label_state.classes[c] for c in label_state.active_classes]
    by_row = None if records is None else records.positions_by_row_number()
    if label_state.task is not None:
        return _import_answers(service, label_state.task, path, form, by_row)
    imported = read_import(path, service.items.ids, names, form=form, rows=by_row)
    rows = [row for row in imported.labels if row[0] not in service.held_out]
    done = service.add_labels(rows)
    return done | {
        "unknown": len(imported.unknown),
        "unclear": len(imported.unclear),
        "blank": imported.blank,
        "held_out": len(imported.labels) - len(rows),
    }


def _import_answers(
    service: LabellingService,
    task: Task,
    path: Path,
    form: str | None,
    by_row: Mapping[str, int] | None,
) -> dict[str, Any]:
    """Import the answers to a task of a file; see `import_labels`."""
    imported = read_answers(path, service.items.ids, task, form=form, rows=by_row)
    rows = [row for row in imported.answers if row[0] not in service.held_out]
    done = service.add_labels(rows, imported.new_classes)
    return done | {
        "unknown": len(imported.unknown),
        "unclear": len(imported.unclear),
        "blank": imported.blank,
        "held_out": len(imported.answers) - len(rows),
    }


def write_labels(
    label_state: LabelState,
    items: ExportItems,
    form: str,
    out: str | Path,
    *,
    predicted: Predicted | None = None,
    pictures_at: str | None = None,
) -> int:
    """Write labels, and predictions where there are none, to `out` in one step.

    See `export_labels`.
    """
    if form not in (*EXPORT_FORMATS, CONFIG_FORMAT):
        raise InputError(
            f"form is {form!r}; expected one of {', '.join((*EXPORT_FORMATS, CONFIG_FORMAT))}"
        )
    if label_state.task is not None:
        refuse_format(label_state.task, form)
    content = export_content(label_state, items, predicted or Predicted())
    with write_atomically(Path(out)) as partial:
        if form == "csv":
            _write_csv(partial, _write_task_cells(content))
        elif form == "jsonl":
            _write_lines(partial, content)
        elif form == "label-studio":
            _write_json(partial, studio_tasks(content, pictures_at))
        elif form == CONFIG_FORMAT:
            partial.write_text(labelling_config(content), encoding="utf-8")
        elif form == "parquet":
            parquet = import_extra("pyarrow.parquet", "tables", "the form Parquet")
            parquet.write_table(
                build_arrow_table(content.columns, column_types(content.columns, content.task)),
                partial,
            )
        elif form == "hf":
            write_data_set(partial, content)
        else:
            _write_folders(partial, content)
    return len(content.positions)


def _write_task_cells(content: Export) -> Mapping[str, Any]:
    """Return the columns with sets of classes and several numbers as text."""
    task = content.task
    if task is None:
        return content.columns
    cells = {
        name: [write_cell(task, value) for value in content.columns[name]]
        for name in ("label", "prediction")
    }
    return {**content.columns, **cells}


def _write_csv(path: Path, columns: Mapping[str, Any]) -> None:
    """RFC 4180, UTF-8."""
    with path.open("x", encoding="utf-8", newline="") as file:
        write_csv(file, columns, line_end="\r\n")


def _write_lines(path: Path, content: Export) -> None:
    """Write one JSON object per line, with all answers; lone surrogates become escapes."""
    with path.open("x", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        for row, answers in zip(iter_json_rows(content.columns), content.answers, strict=True):
            whole = row | ({"answers": answers} if answers else {})
            file.write(json.dumps(whole, ensure_ascii=False) + "\n")


def _write_json(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(rows, file, indent=1, ensure_ascii=False)


def _write_folders(path: Path, content: Export) -> None:
    """Copy every labelled item to CLASS/ITEM; predictions go to a separate CSV file."""
    if content.items.open_file is None:
        raise InputError(
            "the items are not files, so they cannot be sorted into folders; choose another format"
        )
    path.mkdir()
    rest = []
    for i, (position, label) in enumerate(
        zip(content.positions, content.columns["label"], strict=True)
    ):
        if label is None:
            rest.append(i)
            continue
        name = content.items.ids[position]
        target = path.joinpath(
            as_file_name(label), *(as_file_name(part) for part in name.split("/"))
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            original = content.items.open_file(position)
        except InputError as error:  # the error does not name the file
            raise InputError(f"{name} {error}; restore the file, or undo its label") from error
        with original, target.open("xb") as copy:
            shutil.copyfileobj(original, copy)
    if rest:
        _write_csv(path / "predictions.csv", Records(content.columns).take(rest).columns)
