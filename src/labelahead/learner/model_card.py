"""Model cards: what a model is, what it was made from, its accuracy and how to use it."""

from collections.abc import Mapping
from typing import Any

from labelahead.data.preprocessing import (
    COLUMN_INPUTS,
    ENCODED_PICTURES,
    ENCODED_SOUNDS,
    PICTURE_INPUTS,
    VECTORS,
)
from labelahead.learner.model_kind import get_model_kind
from labelahead.tasks import TASKS

__all__ = ["format_model_card"]


def format_model_card(about: Mapping[str, Any]) -> str:
    """Return the model card as Markdown."""
    classes, labels, name = about["classes"], about["labels"], about["network"]["name"]
    lines = [
        f"# {about['data']['name']}: {', '.join(classes[:8])}{', ...' if len(classes) > 8 else ''}",
        "",
        f"{_describe_kind(about)} made by labelahead {about['labelahead']}, {about['made']}.",
        "",
        f"- network: {name}{get_model_kind(name).remark}",
        f"- data: {about['data']['name']}, {about['data']['items']} items; inputs: "
        f"{_describe_inputs(about['reading'])}",
        f"- labels: {about.get('labelled', sum(labels.values()))} in all",
        *_describe_results(about),
    ]
    if about["threshold"] is not None:
        lines.append(
            f"- unlike anything labelled: posterior variance above {about['threshold']:.3f}, the "
            "95 % quantile of "
            "the labelled items' own, each left out in turn (1 is knowing nothing)"
        )
    if labels:
        lines += [
            "",
            "| class | labels |",
            "| --- | --- |",
            *(f"| {_escape_cell(c)} | {n} |" for c, n in labels.items()),
        ]
    lines += _describe_onnx(about)
    if about["reading"] is not None and about["reading"]["kind"] == PICTURE_INPUTS:
        lines += _picture_steps(about["reading"])
    lines += ["", "```", "labelahead predict THIS_FOLDER ITEMS --out predictions.csv", "```", ""]
    return "\n".join(lines)


def _describe_kind(about: Mapping[str, Any]) -> str:
    """Return what the model predicts."""
    kinds = {
        "multilabel": "A model of several classes at once,",
        "number": "A model of numbers, with 90 % intervals,",
        "rating": "A model of ratings,",
    }
    return kinds.get(about.get("task", {}).get("name", ""), "A classifier")


def _describe_results(about: Mapping[str, Any]) -> list[str]:
    """Return the accuracy, or the measures of another task, and where they come from."""
    accuracy = about["accuracy"]
    if "task" not in about:
        return [f"- accuracy: {_describe_accuracy(accuracy)}"]
    task = TASKS[about["task"]["name"]]
    unit = about["task"].get("unit", "")
    lines = [f"- unit: {unit}"] if unit else []
    if "thresholds" in about:
        listed = ", ".join(f"{name} {value:.2f}" for name, value in about["thresholds"].items())
        lines.append(f"- a class is predicted from this probability on: {listed}")
    measures = accuracy.get("measures") or {}
    if measures:
        listed = ", ".join(f"{_name(key)} {value:.4g}" for key, value in measures.items())
        lines.append(f"- measured on {accuracy['on']} items that were kept for it: {listed}")
    if accuracy.get("error") is not None:
        lines.append(f"- {task.error_unit}: {accuracy['error']:.4g}, estimated {accuracy['how']}")
    return lines or ["- error: unknown: no items were held out to measure it"]


def _name(measure: str) -> str:
    """Return the name of a measure in words: "average_precision:cat" -> "average precision of cat"."""
    return measure.replace("_", " ").replace(":", " of ")


def _describe_accuracy(accuracy: Mapping[str, Any]) -> str:
    """Return the accuracy and where it comes from."""
    if accuracy.get("measured") is not None:
        earlier = f", when there were {accuracy['labels']} labels" if "labels" in accuracy else ""
        return f"{accuracy['measured']:.1%}, measured on {accuracy['on']} items that were kept for it{earlier}"
    if accuracy.get("estimated") is not None:
        return f"{accuracy['estimated']:.1%}, estimated {accuracy['how']}"
    return "unknown: no items were held out to measure it"


def _describe_onnx(about: Mapping[str, Any]) -> list[str]:
    """Return lines on the ONNX form of the model, or why there is none."""
    if "no_onnx" in about:
        return ["", f"There is no ONNX form of it: {about['no_onnx']}."]
    if "onnx" not in about:
        return []
    onnx, preprocessor = about["onnx"], about["reading"]
    outputs = ", ".join(onnx["outputs"])
    if "inputs" in onnx:
        inputs = ", ".join(f"{name} {shape}" for name, shape in onnx["inputs"].items())
        return [
            "",
            f"`model.onnx`: {inputs} -> {outputs}. The encoder is in it; its own processor or "
            "tokenizer prepares the inputs.",
        ]
    line = f"`model.onnx`: items {onnx['input']} -> {outputs}."
    if preprocessor["kind"] == COLUMN_INPUTS:
        line += (
            " Its items are numbers: what the columns become, which is not in it, side by side in "
            "their order."
        )
    for column in preprocessor["columns"]:
        if column["kind"] == "sentences":
            line += f" Those of {column['name']!r} come from the encoder {column['encoder']}."
    if preprocessor["kind"] in (ENCODED_PICTURES, ENCODED_SOUNDS):
        line += f" Its items are embeddings by {preprocessor['features']}, which is not in it."
    if "onnx_without_encoder" in about:
        line += f" The encoder cannot be in it: {about['onnx_without_encoder']}."
    return ["", line]


def _picture_steps(preprocessor: Mapping[str, Any]) -> list[str]:
    """Describe how an image file becomes an input of `model.onnx`, with code that needs only Pillow
    and numpy.
    """
    channels, height, width = preprocessor["shape"]
    steps = ["", "## How an image becomes an item", ""]
    if height != width:
        return [
            *steps,
            f"Items are arrays, uint8 ({channels}, {height}, {width}); image files are not read.",
        ]
    grey, white = channels == 1, preprocessor["white"]
    steps += [
        "The model was fitted on images that were prepared as follows; prepare others in the "
        "same way. In other",
        "proportions (stretched, or with a border) or scaled otherwise they are predicted worse.",
        "",
        f"1. Decode. A JPEG may be decoded at a reduced scale, at least {2 * height} pixels a "
        "side (Pillow's `draft`).",
        "2. Turn it upright by its EXIF orientation, put transparency on white, convert to RGB "
        "(16-bit grey: divide by",
        "   257).",
        "3. Crop the centre square: the side is the shorter one of the image; nothing is "
        "stretched or padded.",
        f"4. Resize the square to {height} x {height}, bilinear with antialiasing (Pillow's "
        "`BILINEAR`, "
        "`reducing_gap=3.0`).",
    ]
    last_steps = ["Grey: 0.299 red + 0.587 green + 0.114 blue."] if grey else []
    last_steps += [f"Scale from 0 to 255 to 0 to {white}."] if white != 255 else []
    last_steps += [
        f"Round, and arrange as uint8 ({channels}, {height}, {height}), channels first. Means, "
        "deviations and scaling "
        "to −1 to 1 are in the model."
    ]
    steps += [
        *(f"{number}. {step}" for number, step in enumerate(last_steps, 5)),
        "",
        "```python",
        *_picture_code(height, grey, white).splitlines(),
        "```",
    ]
    return steps


def _picture_code(size: int, grey: bool, white: int) -> str:
    """Return the same steps as a Python function."""
    lines = ["pixels = np.asarray(image).transpose(2, 0, 1).astype(np.float32)"]
    if grey:
        lines.append(
            "pixels = pixels * np.array([0.299, 0.587, 0.114], np.float32).reshape(3, 1, 1)"
        )
        lines.append("pixels = pixels.sum(0, keepdims=True)")
    scaled = "pixels" if white == 255 else f"pixels * np.float32({white} / 255)"
    lines.append(f"return np.rint({scaled}).clip(0, {white}).astype(np.uint8)")
    last = "\n    ".join(lines)
    return f"""import numpy as np
from PIL import Image, ImageOps

def read_item(path, size={size}):
    with Image.open(path) as opened:
        opened.draft(None, (2 * size, 2 * size))
        image = ImageOps.exif_transpose(opened)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=3.0)
    {last}"""


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _describe_inputs(preprocessor: Mapping[str, Any] | None) -> str:
    if preprocessor is None:
        return "as given in Python"
    if preprocessor["kind"] == COLUMN_INPUTS:
        return "columns " + ", ".join(c["name"] for c in preprocessor["columns"])
    if preprocessor["kind"] == VECTORS:
        return f"vectors of {preprocessor['shape'][0]} numbers, as in {preprocessor['features']}"
    if preprocessor["kind"] == ENCODED_PICTURES:
        return f"pictures, embedded by {preprocessor['features']}: {preprocessor['shape'][0]} numbers each"
    if preprocessor["kind"] == ENCODED_SOUNDS:
        return f"sounds, embedded by {preprocessor['features']}: {preprocessor['shape'][0]} numbers each"
    by = (
        f", embedded by the pretrained {preprocessor['features']}"
        if preprocessor["features"]
        else ""
    )
    return f"{preprocessor['kind']} of {' x '.join(map(str, preprocessor['shape']))}{by}"
