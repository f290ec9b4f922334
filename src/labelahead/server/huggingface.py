"""Labels as a folder that `datasets.load_dataset` reads.

Pictures are an `Image`, sounds an `Audio`, labels a `ClassLabel`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labelahead.data.dataset import NONE_OF_THESE_NAME
from labelahead.data.table_writer import build_arrow_table
from labelahead.errors import InputError, import_extra
from labelahead.server.export_content import Export, column_types
from labelahead.server.task_export import build_feature

__all__ = ["write_data_set"]

IMAGE_COLUMN, AUDIO_COLUMN = "image", "audio"
FILES_PER_BATCH = 64  # pictures or sounds held in memory while writing
DATASET_CARD = """---
configs:
- config_name: default
  data_files:
{files}
---

Labels by labelahead. `datasets.load_dataset(<this folder>)` reads them. `id` names the item, `label` is its class,
`annotator` gave it at `labelled_at`. A column `none_of_these` is true for items that belong to none of the classes;
their label is missing. Of the split `predicted`, `prediction` and `probability` are those of the model.
The other columns are those of the data that were labelled.
"""
TASK_NOTES = {
    "multilabel": "\n`label` is the list of the classes of the item, which may be empty. A class "
    "`?name` says that nobody has reviewed the class `name`.\n",
    "number": "\n`label` is a number, and `low` and `high` are the ends of a 90 % interval of the "
    "prediction.\n",
    "rating": "\nThe classes are the levels of a rating, the lowest first.\n",
}


def write_data_set(path: Path, content: Export) -> None:
    """Write the labels as the split train and predictions as a separate split.

    Raises:
        InputError: There is no class yet, or a labelled picture or sound cannot be read any more.
    """
    if not content.classes and content.task is None:
        raise InputError("there is no class yet; expected at least one for the form hf")
    (path / "data").mkdir(parents=True)
    sources = content.columns["source"]
    splits = {
        "train": [i for i, source in enumerate(sources) if source == "label"],
        "predicted": [i for i, source in enumerate(sources) if source == "prediction"],
    }
    table = _build_table(content)
    files = []
    for split, rows in splits.items():
        if rows or split == "train":
            _write_split(path / "data" / f"{split}-00000-of-00001.parquet", table, content, rows)
            files += [f"  - split: {split}", f"    path: data/{split}-*"]
    card = DATASET_CARD.format(files="\n".join(files))
    if content.task is not None:
        card += TASK_NOTES[content.task.name]
    (path / "README.md").write_text(card, encoding="utf-8")


def _build_table(content: Export) -> Any:
    """Return all rows without pictures and sounds; classes are numbers, named in the schema."""
    arrow = import_extra("pyarrow", "tables", "the form hf")
    number = {name: i for i, name in enumerate(content.classes)}
    columns, types = dict(content.columns), column_types(content.columns, content.task)
    features: dict[str, Any] = {}
    if content.task is not None:
        for name in ("label", "prediction"):
            found = build_feature(content.task, columns[name])
            features[name], types[name], columns[name] = found
        return _add_media(content, columns, types, features)
    none = [label == NONE_OF_THESE_NAME and label not in number for label in columns["label"]]
    if any(none):
        columns[_find_free_name("none_of_these", columns)] = none
    for name in ("label", "prediction"):
        columns[name] = [None if value is None else number.get(value) for value in columns[name]]
        types[name] = arrow.int64()
        features[name] = {"names": list(content.classes), "_type": "ClassLabel"}
    return _add_media(content, columns, types, features)


def _add_media(
    content: Export, columns: dict[str, Any], types: dict[str, Any], features: dict[str, Any]
) -> Any:
    """Return the table with an empty column of pictures or sounds, if items are some."""
    arrow = import_extra("pyarrow", "tables", "the form hf")
    media = _find_media_column(content)
    if media is not None:
        kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
        columns |= {media: arrow.nulls(len(content.positions), kind)}
        features[media] = {"_type": media.capitalize()}
    table = build_arrow_table(columns, types)
    return table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )


def _find_free_name(name: str, columns: Mapping[str, Any]) -> str:
    """Return a name for one of our columns that the user's columns do not have."""
    while name in columns:
        name += "_"
    return name


def _find_media_column(content: Export) -> str | None:
    """Return the column of the items' pictures or sounds, if they are any."""
    if content.items.sounds:
        return AUDIO_COLUMN
    return None if content.items.picture is None else IMAGE_COLUMN


def _write_split(path: Path, table: Any, content: Export, rows: Sequence[int]) -> None:
    """Write some rows with their pictures or sounds, in batches."""
    arrow = import_extra("pyarrow", "tables", "the form hf")
    parquet = import_extra("pyarrow.parquet", "tables", "the form hf")
    media = _find_media_column(content)
    step = FILES_PER_BATCH if media is not None else max(1, len(rows))
    with parquet.ParquetWriter(path, table.schema) as writer:
        if not rows:
            writer.write_table(table.slice(0, 0))
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            part = table.take(arrow.array(some, arrow.int64()))
            if media is not None:
                at = part.schema.get_field_index(media)
                files = arrow.array(
                    [_read_file(content, content.positions[i]) for i in some],
                    part.schema.field(at).type,
                )
                part = part.set_column(at, part.schema.field(at), files)
            writer.write_table(part)


def _read_file(content: Export, position: int) -> dict[str, Any]:
    """Return an item's file, or its encoded picture, as a value of `Image` or `Audio`."""
    items, name = content.items, content.items.ids[position]
    try:
        if items.open_file is not None:
            with items.open_file(position) as file:
                return {"bytes": file.read(), "path": name.rsplit("/", 1)[-1]}
        assert items.picture is not None
        content_of, media = items.picture(position)
        return {"bytes": content_of, "path": f"{name}.{media.rpartition('/')[2]}"}
    except InputError as error:
        raise InputError(f"{name} {error}; restore the file, or undo its label") from error
