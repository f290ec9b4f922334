"""Parse the labelling configuration of a project; unsupported configurations are rejected."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from labelahead.data.classes import normalise_name
from labelahead.errors import InputError
from labelahead.tasks import find_task

__all__ = ["Interface", "read_interface"]

PICTURE_TAG, TEXT_TAG, SOUND_TAG = "Image", "Text", "Audio"
SHOWN_TAGS = {PICTURE_TAG: "pictures", TEXT_TAG: "texts", SOUND_TAG: "sounds"}
RATING_TAG, NUMBER_TAG = "Rating", "Number"
# Tags with other values of the whole task: labelahead ignores them, and beside a <Choices> of single
# choice also <Rating> and <Number>.
IGNORED_TAGS = {"TextArea", "DateTime"}
MULTIPLE = "multiple"
CLASSES = "classes"  # the task of a single choice
DEFAULT_LEVELS = 5  # of a <Rating> without maxRating
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
    "labelahead serves projects with one <Choices> of single or multiple choice, one <Rating> or one "
    "<Number>, over <Image>, <Text> or both, or over one <Audio>"
)


@dataclass(frozen=True)
class Interface:
    """What a project asks for.

    Attributes:
        name: Name of the tag that holds the answer.
        shown: Name of the tag that it is about.
        choices: As in annotations; of a rating its levels, of a number none.
        pictures: Keys of a task's data.
        texts: Keys of a task's data.
        sounds: Keys of a task's data.
        task: Name of the task (`labelahead.tasks`).
        limits: Of a number: the least and the largest possible one.
    """

    name: str
    shown: str
    choices: tuple[str, ...]
    pictures: tuple[str, ...]
    texts: tuple[str, ...]
    sounds: tuple[str, ...] = ()
    task: str = CLASSES
    limits: tuple[float, float] | None = None

    @property
    def data_settings(self) -> dict[str, Any]:
        """Return the settings of the data of a session for these answers."""
        settings: dict[str, Any] = {"task": self.task, "classes": list(self.choices)}
        return settings | ({"limits": list(self.limits)} if self.limits else {})

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
    known = {"Choices", RATING_TAG, NUMBER_TAG, *SHOWN_TAGS, *IGNORED_TAGS, *LAYOUT_TAGS}
    others = sorted({tag.tag for tag in tags} - known)
    if others:
        raise InputError(
            f"the project uses {', '.join(f'<{t}>' for t in others)}; {SUPPORTED_PROJECTS}, so remove them"
        )
    control = _find_control(tags)
    if control.get("perRegion") == "true" or control.get("perItem") == "true":
        raise InputError(
            f"{_show(control)} applies to each region; {SUPPORTED_PROJECTS}: of whole tasks"
        )
    limits = _read_limits(control) if control.tag == NUMBER_TAG else None
    task, choices = _read_task(control)
    pictures, texts, sounds = (_find_fields(tags, tag) for tag in SHOWN_TAGS)
    if sounds and (pictures or texts or len(sounds) > 1):
        raise InputError(
            f"the project shows <{SOUND_TAG}> beside other fields; {SUPPORTED_PROJECTS}, so remove the rest"
        )
    name, shown = control.get("name", ""), control.get("toName", "")
    return Interface(name, shown, choices, pictures, texts, sounds, task, limits)


def _find_control(tags: list[ElementTree.Element]) -> ElementTree.Element:
    """Return the tag that holds the answer of a task."""
    choices = [tag for tag in tags if tag.tag == "Choices"]
    values = [tag for tag in tags if tag.tag in (RATING_TAG, NUMBER_TAG)]
    if len(choices) > 1 or not choices + values:
        raise InputError(
            f"the project has {len(choices)} <Choices>; {SUPPORTED_PROJECTS}: a project for each of several"
        )
    if choices and choices[0].get("choice") != MULTIPLE:
        return choices[0]
    if len(choices + values) > 1:
        raise InputError(
            f"the project has {' and '.join(map(_show, choices + values))}, and it is unclear which of "
            f"them to learn; {SUPPORTED_PROJECTS}: a project for each of several"
        )
    return (choices + values)[0]


def _show(control: ElementTree.Element) -> str:
    return f'<{control.tag} name="{control.get("name", "")}">'


def _read_task(control: ElementTree.Element) -> tuple[str, tuple[str, ...]]:
    """Return the task of a control, and its choices or levels."""
    if control.tag == NUMBER_TAG:
        return "number", ()
    if control.tag == RATING_TAG:
        most = control.get("maxRating", str(DEFAULT_LEVELS))
        if not (most.isascii() and most.isdecimal()) or int(most) < 2:
            raise InputError(
                f"{_show(control)} has maxRating {most!r}; expected a whole number, 2 or more"
            )
        return "rating", tuple(str(level + 1) for level in range(int(most)))
    kind = control.get("choice", "single")
    if kind not in ("single", "single-radio", MULTIPLE):
        raise InputError(
            f'{_show(control)} has choice="{kind}"; {SUPPORTED_PROJECTS}: set choice="single" or '
            f'choice="{MULTIPLE}"'
        )
    return "multilabel" if kind == MULTIPLE else CLASSES, _read_choices(control)


def _read_choices(control: ElementTree.Element) -> tuple[str, ...]:
    """Return the names of the choices, if they are distinct, enough, and not nested."""
    is_multiple = control.get("choice") == MULTIPLE
    least, expected = (1, "one") if is_multiple else (2, "two")
    names = tuple(_read_choice(choice) for choice in control.findall("Choice"))
    if len(names) < least or any(len(choice) for choice in control.findall("Choice")):
        raise InputError(
            f"{_show(control)} has {len(names)} <Choice> side by side; expected {expected} or "
            "more, not nested"
        )
    if len({normalise_name(n) for n in names}) < len(names):
        raise InputError(
            f"two choices of {_show(control)} have the same name but for capital letters; "
            "rename one"
        )
    if is_multiple:
        try:
            find_task("multilabel", classes=names)
        except InputError as error:
            raise InputError(f"a choice of {_show(control)} cannot be a class: {error}") from error
    return names


def _read_limits(control: ElementTree.Element) -> tuple[float, float] | None:
    """Return the least and the largest number; None if both are open."""
    given = {key: control.get(key) for key in ("min", "max")}
    ends = {"min": -math.inf, "max": math.inf}
    for key, text in given.items():
        try:
            ends[key] = float(text) if text else ends[key]
        except ValueError:
            ends[key] = math.nan
    low, high = ends.values()
    if not low < high:
        shown = ", ".join(f'{key}="{text}"' for key, text in given.items() if text)
        raise InputError(
            f"{_show(control)} has {shown}; expected numbers, min below max, or leave them out"
        )
    return None if math.isinf(low) and math.isinf(high) else (low, high)


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
