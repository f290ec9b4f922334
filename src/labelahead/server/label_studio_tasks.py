"""Labels as tasks that Label Studio imports as they are, and the labelling configuration that shows
them.

The id of an item is the field `item_id`, because Label Studio's own exports write the number of the
task as `id`.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from labelahead.data.labels import ITEM_ID
from labelahead.data.records import FILE_NAME, with_original_names
from labelahead.data.table_writer import json_rows
from labelahead.errors import InputError
from labelahead.server.export_content import Export

__all__ = ["MAX_INLINE_BYTES", "labelling_config", "studio_tasks"]

IMAGE, RECORD = "image", "record"
CHOICE = "label"  # the name of the choice in the labelling configuration
# of all pictures in a file; Label Studio takes files of at most 250 MB
MAX_INLINE_BYTES = 150_000_000


def studio_tasks(content: Export, pictures_at: str | None = None) -> list[dict[str, Any]]:
    """Return a task for every row: the user's columns, each person's label, or a prediction.

    Args:
        content: the rows. pictures_at: what stands before a picture's name in its address, such as
        `/data/local-files/?d=photos/`; None:
            pictures are in the tasks themselves.

    Raises:
        InputError: if the pictures are too large to be in the tasks.
    """
    shown, pictures = _shown(content), 0
    tasks = []
    for i, data in enumerate(json_rows(_fields(content))):
        row = {
            name: content.columns[name][i]
            for name in ("label", "source", "prediction", "probability")
        }
        if shown == IMAGE:
            data[IMAGE] = _address(content, content.positions[i], pictures_at)
            pictures += len(data[IMAGE])
            if pictures_at is None and pictures > MAX_INLINE_BYTES:
                raise InputError(
                    f"the pictures take more than {MAX_INLINE_BYTES // 10**6} MB, and Label "
                    "Studio takes files of at "
                    "most 250 MB; name where it finds them with --pictures-at, such as "
                    "/data/local-files/?d=photos/"
                )
        elif shown == RECORD:
            data[RECORD] = "\n".join(
                f"{name}: {value}" for name, value in data.items() if name != ITEM_ID
            )
        tasks.append(_task(data, row, content.answers[i], "image" if shown == IMAGE else "text"))
    return tasks


def labelling_config(content: Export) -> str:
    """Return the labelling configuration of a project for these tasks.

    What to look at, and one choice of a class.
    """
    shown = _shown(content)
    view = ElementTree.Element("View")
    tag, name = ("Image", "image") if shown == IMAGE else ("Text", "text")
    ElementTree.SubElement(view, tag, name=name, value=f"${shown}")
    choices = ElementTree.SubElement(view, "Choices", name=CHOICE, toName=name, choice="single")
    for label in content.classes:
        ElementTree.SubElement(choices, "Choice", value=label)
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"


def _shown(content: Export) -> str:
    """Return the field that annotators look at.

    The picture, the text, or all columns one below the other.
    """
    items = content.items
    if items.picture is not None:
        return IMAGE
    if items.records is None:
        return ITEM_ID
    # Label Studio reads $name up to the first character that is neither a letter, a digit nor _.
    plain = items.text is not None and re.fullmatch(r"\w+", items.text, re.ASCII) is not None
    return items.text if plain and items.text in _fields(content) else RECORD


def _fields(content: Export) -> dict[str, Any]:
    """Return the columns of the tasks' data: the id and the user's own."""
    items = content.items
    theirs: dict[str, Any] = {}
    if items.records is not None:
        theirs = dict(items.records.take(content.positions).columns)
        if items.records.id_column == ITEM_ID:
            del theirs[ITEM_ID]
    names = with_original_names(list(theirs), (ITEM_ID, CHOICE, IMAGE, RECORD))
    ids = [items.ids[p] for p in content.positions]
    return {ITEM_ID: ids} | {names[name]: column for name, column in theirs.items()}


def _address(content: Export, position: int, pictures_at: str | None) -> str:
    items = content.items
    if pictures_at is not None:
        name = (
            items.ids[position]
            if items.records is None
            else items.records.columns[FILE_NAME][position]
        )
        return pictures_at + quote(str(name))
    assert items.picture is not None
    picture, media = items.picture(position)
    return f"data:{media};base64,{base64.b64encode(picture).decode()}"


def _task(
    data: Mapping[str, Any], row: Mapping[str, Any], answers: Any, shown: str
) -> dict[str, Any]:
    """Return one task.

    `completed_by` is left out: Label Studio refuses a file with persons that it does not know.
    """

    def chosen(name: str) -> list[dict[str, Any]]:
        value = {"choices": [name]}
        return [{"from_name": CHOICE, "to_name": shown, "type": "choices", "value": value}]

    task: dict[str, Any] = {"data": dict(data), "annotations": [], "predictions": []}
    for answer in answers:
        if answer["label"] is not None:
            given = {"result": chosen(answer["label"]), "annotator": answer["annotator"]}
            task["annotations"].append(given | {"created_at": answer["labelled_at"]})
    if row["source"] == "prediction":
        said = {
            "model_version": "labelahead",
            "score": row["probability"],
            "result": chosen(row["prediction"]),
        }
        task["predictions"].append(said)
    return task
