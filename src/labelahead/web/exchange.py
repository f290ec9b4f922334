"""Labels to files in the forms that other programs read, and back.

    csv, jsonl, parquet   one row an item: item, label, who, at, source, confidence
    label-studio          tasks with every person's label, and predictions
    hf                    a folder that `datasets.load_dataset` reads: Parquet and a README
    folders               copies of the items' files, in one folder for each class

A row has the label that counts and who gave it; jsonl and label-studio hold every person's.
Predictions, where they are wanted, are marked as such (`source`), and never read back as labels.
"""

import csv
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from labelahead.data.labels import read_import
from labelahead.data.text import as_file_name, guarded
from labelahead.errors import InputError
from labelahead.extras import need
from labelahead.files import in_one_step
from labelahead.web.assignment import Assignment
from labelahead.web.fitting import PoolPredictions
from labelahead.web.tally import Tally

__all__ = ["FORMS", "export", "export_labels", "import_labels", "read_import"]

Opener = Callable[[int], BinaryIO]  # an item's own file, by position
COLUMNS = ("item", "label", "who", "at", "source", "confidence")
FORMS = ("csv", "jsonl", "parquet", "hf", "label-studio", "folders")


def export_labels(assignment: Assignment, form: str, out: Path, *, predicted: PoolPredictions | None = None) -> int:
    """The labels as a file or folder; predicted: with predictions for what has none."""
    with assignment.lock:
        tally = assignment.tally
    guesses = None if predicted is None else predicted.best()
    return export(tally, assignment.items.ids, guesses, form, out, opener=assignment.items.opener())


def import_labels(assignment: Assignment, path: Path, form: str | None = None) -> dict[str, Any]:
    """The labels of a file or folder; what is not in the data, or held out, is counted."""
    tally = assignment.tally
    imported = read_import(path, assignment.items.ids, [tally.classes[c] for c in tally.alive], form=form)
    rows = [row for row in imported.labels if row[0] not in assignment.closed]
    done = assignment.bring_in(rows)
    return done | {
        "unknown": len(imported.unknown),
        "unclear": len(imported.unclear),
        "blank": imported.blank,
        "held_out": len(imported.labels) - len(rows),
    }


def export(
    tally: Tally,
    items: Sequence[str],
    guesses: Mapping[int, tuple[int, float]] | None,
    form: str,
    out: str | Path,
    *,
    opener: Opener | None = None,
) -> int:
    """Write the labels to `out` in one step, and return how many rows or files there are.

    guesses: position -> class number and probability; those of items without a label are added as predictions. opener,
    for the form folders: opens an item's own file. What is there already is never overwritten.
    """
    if form not in FORMS:
        raise InputError(f"form is {form!r}; expected one of {', '.join(FORMS)}")
    out = Path(out)
    rows = list(_rows(tally, items, guesses or {}))
    with in_one_step(out) as partial:
        if form == "csv":
            _write_csv(partial, rows)
        elif form == "jsonl":
            with partial.open("x", encoding="utf-8", newline="\n") as file:
                file.writelines(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
        elif form == "label-studio":
            tasks = [_task(row) for row in rows]
            partial.write_text(json.dumps(tasks, indent=1, ensure_ascii=False), encoding="utf-8")
        elif form == "parquet":
            _write_parquet(partial, rows)
        elif form == "hf":
            _write_hf(partial, rows, [tally.classes[c] for c in tally.alive])
        else:
            _write_folders(partial, rows, {item: i for i, item in enumerate(items)}, opener)
    return len(rows)


def _rows(tally: Tally, items: Sequence[str], guesses: Mapping[int, tuple[int, float]]) -> Iterator[dict[str, Any]]:
    """What is known of every item, by position; all answers under `answers`."""
    names = tally.classes
    for position in sorted({*tally.labels, *guesses}):
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row["item"] = items[position]
        if position not in tally.labels:
            label, confidence = guesses[position]
            row |= {"label": names[label], "source": "prediction", "confidence": float(confidence)}
            yield row
            continue
        answers = [
            {"who": a.who, "kind": a.kind, "label": None if a.label is None else names[a.label], "at": a.at}
            for a in tally.answers.get(position, ())
        ]
        counts = tally.counts(position)
        row |= {"label": names[tally.labels[position]], "who": counts.who, "at": counts.at}
        if position in tally.settled:  # one label for each person, the settlement last
            answers = [a for a in answers if a["who"] != counts.who]
            answers.append({"kind": "settle", **{k: row[k] for k in ("who", "label", "at")}})
        yield row | {"source": "label", "answers": answers}


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """RFC 4180, UTF-8; a cell that a spreadsheet would run as a formula begins with '."""
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow(COLUMNS)
        for row in rows:
            cells = ("" if row[name] is None else row[name] for name in COLUMNS)
            writer.writerow([guarded(c) if isinstance(c, str) else c for c in cells])


def _write_parquet(path: Path, rows: Sequence[Mapping[str, Any]], classes: Sequence[str] | None = None) -> None:
    """With classes: labels are numbers, and the file says which class each is (Hugging Face)."""
    arrow = need("pyarrow", "tables", "the form Parquet")
    need("pyarrow.parquet", "tables", "the form Parquet")
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    types = dict.fromkeys(COLUMNS, arrow.string()) | {"confidence": arrow.float64()}
    metadata = None
    if classes is not None:
        number = {name: i for i, name in enumerate(classes)}
        columns["label"] = [number[name] for name in columns["label"]]
        types["label"] = arrow.int64()
        about: dict[str, Any] = {n: {"dtype": str(t), "_type": "Value"} for n, t in types.items()}
        about["confidence"]["dtype"] = "float64"
        about["label"] = {"names": list(classes), "_type": "ClassLabel"}
        metadata = {"huggingface": json.dumps({"info": {"features": about}})}
    schema = arrow.schema(list(types.items()), metadata=metadata)
    arrow.parquet.write_table(arrow.table(columns, schema=schema), path)


def _write_hf(path: Path, rows: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> None:
    """Labels are the split train; predictions a split of their own, so that none mixes in."""
    if not classes:
        raise InputError("there is no class yet; expected at least one for the form hf")
    (path / "data").mkdir(parents=True)
    splits = {
        "train": [row for row in rows if row["source"] == "label"],
        "predicted": [row for row in rows if row["source"] == "prediction"],
    }
    lines = ["---", "dataset_info:", "  features:"]
    for name in COLUMNS:
        lines.append(f"  - name: {name}")
        if name == "label":
            lines += ["    dtype:", "      class_label:", "        names:"]
            lines += [f"          '{i}': {_yaml(c)}" for i, c in enumerate(classes)]
        else:
            lines.append(f"    dtype: {'float64' if name == 'confidence' else 'string'}")
    lines += ["configs:", "- config_name: default", "  data_files:"]
    for split, part in splits.items():
        if part or split == "train":
            _write_parquet(path / "data" / f"{split}-00000-of-00001.parquet", part, classes)
            lines += [f"  - split: {split}", f"    path: data/{split}-*"]
    lines += [
        "---",
        "",
        "Labels by labelahead. `load_dataset(<this folder>)` reads them; `item`",
        "names the item, `who` said it, and `at` is when.",
        "",
    ]
    (path / "README.md").write_text("\n".join(lines), encoding="utf-8")


def _yaml(text: str) -> str:
    """Text as a YAML scalar: JSON's, but for what YAML does not take as it is."""
    odd = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
    return odd.sub(lambda c: f"\\u{ord(c[0]):04x}", json.dumps(text, ensure_ascii=False))


def _task(row: Mapping[str, Any]) -> dict[str, Any]:
    """A Label Studio task. Its interface: <Choices name="label" toName="item">, value="$item".

    `completed_by` is left out: Label Studio refuses a file with persons that it does not know.
    """

    def choice(name: str) -> list[dict[str, Any]]:
        value = {"choices": [name]}
        return [{"from_name": "label", "to_name": "item", "type": "choices", "value": value}]

    task: dict[str, Any] = {"data": {"item": row["item"]}, "annotations": [], "predictions": []}
    for answer in row.get("answers", ()):
        if answer["label"] is not None:
            given = {"result": choice(answer["label"]), "who": answer["who"]}
            task["annotations"].append(given | {"created_at": answer["at"]})
    if row["source"] == "prediction":
        task["predictions"].append(
            {"model_version": "labelahead", "score": row["confidence"], "result": choice(row["label"])}
        )
    return task


def _write_folders(
    path: Path, rows: Sequence[Mapping[str, Any]], positions: Mapping[str, int], opener: Opener | None
) -> None:
    """CLASS/ITEM for every labelled item; predictions are listed, since files would mix in."""
    if opener is None:
        raise InputError("the items are no files, so they cannot be sorted into folders; expected another form")
    path.mkdir()
    for row in rows:
        if row["source"] != "label":
            continue
        parts = [as_file_name(part) for part in row["item"].split("/")]
        target = path.joinpath(as_file_name(row["label"]), *parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            original = opener(positions[row["item"]])
        except InputError as error:  # it says what is wrong with the file, not which one it is
            raise InputError(f"{row['item']} {error}; put it back, or undo its label") from error
        with original, target.open("xb") as copy:
            shutil.copyfileobj(original, copy)
    rest = [row for row in rows if row["source"] == "prediction"]
    if rest:
        _write_csv(path / "predictions.csv", rest)
