"""A card for people: what a model is, from what it was made, how good it is, how it is used."""

from collections.abc import Mapping
from typing import Any

from labelahead.data.reading import COLUMNS
from labelahead.learners.exact import EXACT

__all__ = ["card"]


def card(about: Mapping[str, Any]) -> str:
    """For people: what it is, from what, how good, how to use it."""
    classes, labels = about["classes"], about["labels"]
    name, how = about["network"]["name"], about["accuracy"]
    measured = how.get("measured")
    earlier = f", when there were {how['labels']} labels" if "labels" in how else ""
    estimated = how.get("estimated")
    good = (
        f"{measured:.1%}, measured on {how['on']} items that were kept for it{earlier}"
        if measured is not None
        else f"{estimated:.1%}, estimated {how['how']}"
        if estimated is not None
        else "unknown: nothing was kept to measure on"
    )
    lines = [
        f"# {about['data']['name']}: {', '.join(classes[:8])}{', ...' if len(classes) > 8 else ''}",
        "",
        f"A classifier made by labelahead {about['labelahead']}, {about['made']}.",
        "",
        f"- network: {name}" + (" (kernel regression; nothing was trained)" if name == EXACT else ""),
        f"- data: {about['data']['name']}, {about['data']['items']} items; inputs: {_inputs(about['reading'])}",
        f"- labels: {sum(labels.values())} in all",
        f"- accuracy: {good}",
    ]
    if about["threshold"] is not None:
        lines.append(
            f"- unlike anything labelled: posterior variance above {about['threshold']:.3f}, the 95 % quantile of "
            "the labelled items' own, each left out in turn (1 is knowing nothing)"
        )
    lines += ["", "| class | labels |", "| --- | --- |", *(f"| {_cell(c)} | {n} |" for c, n in labels.items())]
    if "no_onnx" in about:
        lines += ["", f"There is no ONNX form of it: {about['no_onnx']}."]
    if "onnx" in about:
        lines += ["", f"`model.onnx`: items {about['onnx']['input']} -> {', '.join(about['onnx']['outputs'])}."]
        if about["reading"]["kind"] == COLUMNS:
            lines[-1] += (
                " Its items are numbers: what the columns become, which is not in it, side by side in their order."
            )
        for column in about["reading"]["columns"]:
            if column["kind"] == "sentences":
                lines[-1] += f" Those of {column['name']!r} come from the encoder {column['encoder']}."
    lines += ["", "```", "labelahead predict THIS_FOLDER ITEMS --out predictions.csv", "```", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _inputs(reading: Mapping[str, Any] | None) -> str:
    if reading is None:
        return "as they are handed over"
    if reading["kind"] == COLUMNS:
        return "columns " + ", ".join(c["name"] for c in reading["columns"])
    by = f", seen by the pretrained {reading['features']}" if reading["features"] else ""
    return f"{reading['kind']} of {' x '.join(map(str, reading['shape']))}{by}"
