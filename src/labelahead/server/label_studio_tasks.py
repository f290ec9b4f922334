"""Labels as Label Studio tasks, and the labelling configuration to show them.

The id of an item is the field `item_id`, because Label Studio's own exports write the number of the
task as `id`.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from labelahead.data.dataset import NONE_OF_THESE_NAME
from labelahead.data.label_entries import ITEM_ID_FIELD
from labelahead.data.records import FILE_NAME, rename_clashing_columns
from labelahead.data.table_writer import iter_json_rows
from labelahead.errors import InputError
from labelahead.server.export_content import Export
from labelahead.server.task_export import build_control, build_result
from labelahead.tasks import Task

__all__ = ["MAX_INLINE_BYTES", "labelling_config", "studio_tasks"]

IMAGE_FIELD, AUDIO_FIELD, RECORD_FIELD = "image", "audio", "record"
TAG_BY_FIELD = {
    IMAGE_FIELD: "Image",
    AUDIO_FIELD: "Audio",
}  # tags of the labelling configuration by field
CHOICE_NAME = "label"  # the name of the choice in the labelling configuration
# of all pictures in a file; Label Studio accepts files of at most 250 MB
MAX_INLINE_BYTES = 150_000_000


def studio_tasks(content: Export, pictures_at: str | None = None) -> list[dict[str, Any]]:
    """Return a task for every row: the user's columns, each annotator's label, or a prediction.

    Args:
        content: the rows.
        pictures_at: URL prefix of pictures or sounds, such as `/data/local-files/?d=photos/`; None
            embeds the pictures in the tasks.

    Raises:
        InputError: The pictures are too large to be embedded, or the items are sounds, which are
            not embedded.
    """
    shown, pictures = _find_shown_field(content), 0
    tasks = []
    for i, data in enumerate(iter_json_rows(_build_fields(content))):
        row = {
            name: content.columns[name][i]
            for name in ("label", "source", "prediction", "probability")
            if name in content.columns
        }
        if shown in TAG_BY_FIELD:
            data[shown] = _find_address(content, content.positions[i], pictures_at)
            pictures += len(data[shown])
            if pictures_at is None and pictures > MAX_INLINE_BYTES:
                raise InputError(
                    f"the pictures take more than {MAX_INLINE_BYTES // 10**6} MB, and Label "
                    "Studio accepts files of at "
                    "most 250 MB; give the URL prefix of the pictures with --pictures-at, such as "
                    "/data/local-files/?d=photos/"
                )
        elif shown == RECORD_FIELD:
            data[RECORD_FIELD] = "\n".join(
                f"{name}: {value}" for name, value in data.items() if name != ITEM_ID_FIELD
            )
        tag = shown if shown in TAG_BY_FIELD else "text"
        tasks.append(_build_task(data, row, content.answers[i], tag, content.task))
    return tasks


def labelling_config(content: Export) -> str:
    """Return the labelling configuration of a project for these tasks: one choice of a class."""
    shown = _find_shown_field(content)
    view = ElementTree.Element("View")
    tag, name = (TAG_BY_FIELD[shown], shown) if shown in TAG_BY_FIELD else ("Text", "text")
    ElementTree.SubElement(view, tag, name=name, value=f"${shown}")
    if content.task is not None:
        build_control(view, content.task, CHOICE_NAME, name)
        ElementTree.indent(view)
        return ElementTree.tostring(view, encoding="unicode") + "\n"
    choices = ElementTree.SubElement(
        view, "Choices", name=CHOICE_NAME, toName=name, choice="single"
    )
    used = NONE_OF_THESE_NAME in content.columns["label"]
    more = [NONE_OF_THESE_NAME] if used and NONE_OF_THESE_NAME not in content.classes else []
    for label in (*content.classes, *more):
        ElementTree.SubElement(choices, "Choice", value=label)
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"


def _find_shown_field(content: Export) -> str:
    """Return the field to show to annotators: the picture, the sound, the text, or all columns."""
    items = content.items
    if items.sounds:
        return AUDIO_FIELD
    if items.picture is not None:
        return IMAGE_FIELD
    if items.records is None:
        return ITEM_ID_FIELD
    # Label Studio reads $name up to the first character that is neither a letter, a digit nor _.
    plain = items.text is not None and re.fullmatch(r"\w+", items.text, re.ASCII) is not None
    return items.text if plain and items.text in _build_fields(content) else RECORD_FIELD


def _build_fields(content: Export) -> dict[str, Any]:
    """Return the columns of the tasks' data: the id and the user's own."""
    items = content.items
    user_fields: dict[str, Any] = {}
    if items.records is not None:
        user_fields = dict(items.records.take(content.positions).columns)
        if items.records.id_column == ITEM_ID_FIELD:
            del user_fields[ITEM_ID_FIELD]
    names = rename_clashing_columns(
        list(user_fields), (ITEM_ID_FIELD, CHOICE_NAME, IMAGE_FIELD, RECORD_FIELD)
    )
    ids = [items.ids[p] for p in content.positions]
    return {ITEM_ID_FIELD: ids} | {names[name]: column for name, column in user_fields.items()}


def _find_address(content: Export, position: int, pictures_at: str | None) -> str:
    items = content.items
    if pictures_at is not None:
        name = (
            items.ids[position]
            if items.records is None
            else items.records.columns[FILE_NAME][position]
        )
        return pictures_at + quote(str(name))
    if items.picture is None:
        raise InputError(
            "sounds are not embedded in Label Studio tasks; give the URL prefix of the sounds with "
            "--pictures-at, such as /data/local-files/?d=sounds/"
        )
    picture, media = items.picture(position)
    return f"data:{media};base64,{base64.b64encode(picture).decode()}"


def _build_task(
    data: Mapping[str, Any],
    row: Mapping[str, Any],
    answers: Any,
    shown: str,
    session_task: Task | None = None,
) -> dict[str, Any]:
    """Return one task.

    `completed_by` is left out: Label Studio rejects a file with users that it does not know.
    """

    def make_choice(name: Any) -> dict[str, Any]:
        if session_task is not None:
            return build_result(session_task, name, CHOICE_NAME, shown)
        value = {"choices": [name]}
        region = {"from_name": CHOICE_NAME, "to_name": shown, "type": "choices", "value": value}
        return {"result": [region]}

    task: dict[str, Any] = {"data": dict(data), "annotations": [], "predictions": []}
    for answer in answers:
        if answer["label"] is not None:
            given = {**make_choice(answer["label"]), "annotator": answer["annotator"]}
            task["annotations"].append(given | {"created_at": answer["labelled_at"]})
    if row["source"] == "prediction":
        prediction = {
            "model_version": "labelahead",
            "score": row.get("probability"),
            **make_choice(row["prediction"]),
        }
        task["predictions"].append(prediction)
    return task
