"""Parse the labelling configuration of a project; unsupported configurations are rejected."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from labelahead.data.classes import normalise_name
from labelahead.errors import InputError

__all__ = ["Interface", "read_interface"]

PICTURE_TAG, TEXT_TAG, SOUND_TAG = "Image", "Text", "Audio"
SHOWN_TAGS = {PICTURE_TAG: "pictures", TEXT_TAG: "texts", SOUND_TAG: "sounds"}
# Tags with other values of the whole task: labelahead ignores them.
IGNORED_TAGS = {"TextArea", "Rating", "Number", "DateTime"}
# Tags for layout and display.
LAYOUT_TAGS = {
    "View",
    "Header",
    "Style",
    "Choice",
    "Shortcut",
    "Collapse",
    "Panel",
    "Filter",
    "Markdown",
}
SUPPORTED_PROJECTS = (
    "labelahead serves projects with one <Choices> of single choice over <Image>, <Text> or both, "
    "or over one <Audio>"
)


@dataclass(frozen=True)
class Interface:
    """The choice of a project. name, shown: names of its tags; choices: as in annotations."""

    name: str
    shown: str
    choices: tuple[str, ...]
    pictures: tuple[str, ...]  # keys of a task's data
    texts: tuple[str, ...]
    sounds: tuple[str, ...] = ()

    def label(self, result: Iterable[Mapping[str, Any]]) -> str | None:
        """Return the choice in the result of an annotation; None if there is not exactly one."""
        regions = (r for r in result if r.get("from_name") == self.name)
        made = [choice for r in regions for choice in (r.get("value") or {}).get("choices") or ()]
        return str(made[0]) if len(made) == 1 and isinstance(made[0], str) else None

    def result(self, name: str, confidence: float) -> list[dict[str, Any]]:
        """Return the result of a prediction; empty if the choice does not exist (any more)."""
        choice = next((c for c in self.choices if normalise_name(c) == normalise_name(name)), None)
        if choice is None:
            return []
        value = {"choices": [choice]}
        return [
            {
                "from_name": self.name,
                "to_name": self.shown,
                "type": "choices",
                "value": value,
                "score": confidence,
            }
        ]


def read_interface(config: str) -> Interface:
    """Parse a labelling configuration.

    Raises:
        InputError: It is not supported; the message lists what is.
    """
    try:
        tags = list(ElementTree.fromstring(config).iter())
    except ElementTree.ParseError as error:
        raise InputError(
            f"the project's labelling configuration is not valid XML ({error}); set it up first"
        ) from error
    choices = [tag for tag in tags if tag.tag == "Choices"]
    others = sorted(
        {tag.tag for tag in tags} - {"Choices", *SHOWN_TAGS, *IGNORED_TAGS, *LAYOUT_TAGS}
    )
    if others:
        raise InputError(
            f"the project uses {', '.join(f'<{t}>' for t in others)}; {SUPPORTED_PROJECTS}, so remove them"
        )
    if len(choices) != 1:
        raise InputError(
            f"the project has {len(choices)} <Choices>; {SUPPORTED_PROJECTS}: a project for each of several"
        )
    control, name = choices[0], choices[0].get("name", "")
    if control.get("choice", "single") not in ("single", "single-radio"):
        raise InputError(
            f'<Choices name="{name}"> takes several choices at once; {SUPPORTED_PROJECTS}: set choice="single"'
        )
    if control.get("perRegion") == "true" or control.get("perItem") == "true":
        raise InputError(
            f'<Choices name="{name}"> applies to each region; {SUPPORTED_PROJECTS}: of whole tasks'
        )
    names = tuple(_read_choice(choice) for choice in control.findall("Choice"))
    if len(names) < 2 or any(len(choice) for choice in control.findall("Choice")):
        raise InputError(
            f'<Choices name="{name}"> has {len(names)} <Choice> side by side; expected two or '
            "more, not nested"
        )
    if len({normalise_name(n) for n in names}) < len(names):
        raise InputError(
            f'two choices of <Choices name="{name}"> have the same name but for capital letters; '
            "rename one"
        )
    pictures, texts, sounds = (_find_fields(tags, tag) for tag in SHOWN_TAGS)
    if sounds and (pictures or texts or len(sounds) > 1):
        raise InputError(
            f"the project shows <{SOUND_TAG}> beside other fields; {SUPPORTED_PROJECTS}, so remove the rest"
        )
    return Interface(name, control.get("toName", ""), names, pictures, texts, sounds)


def _read_choice(choice: ElementTree.Element) -> str:
    return str(choice.get("alias") or choice.get("value", ""))


def _find_fields(tags: list[ElementTree.Element], kind: str) -> tuple[str, ...]:
    """Return the fields of a task that the tags of one kind show."""
    values = [tag.get("value") or tag.get("valueList") or "" for tag in tags if tag.tag == kind]
    odd = [value for value in values if not value.startswith("$") or not value[1:]]
    if odd or any(tag.get("valueList") for tag in tags if tag.tag == kind):
        raise InputError(
            f'<{kind} value="{(odd or values)[0]}">; expected one field of a task, such as '
            'value="$field"'
        )
    return tuple(dict.fromkeys(value[1:] for value in values))
