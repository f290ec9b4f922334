"""Rules for label values: missing labels, spellings of one class, several classes in one label.

Tables, label files, arrays and imports all read labels through this module.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from labelahead.data.columns import MISSING_VALUES
from labelahead.errors import InputError

__all__ = [
    "LabelNormaliser",
    "find_combined_labels",
    "normalise_name",
    "parse_label",
    "refuse_combined_labels",
    "split_class_names",
]

CLASS_SEPARATORS = (";", "|", ",")
MAX_EXAMPLES = 3
SEVERAL_CLASSES_ADVICE = (
    "expected one class for each item; for several classes per item there is --task multilabel "
    "(data.task); if these are names of single classes, list all classes with --classes "
    "(data.classes)"
)


def normalise_name(name: str) -> str:
    """Return a form that is equal for two spellings of a class (case and Unicode encoding)."""
    return unicodedata.normalize("NFC", name.casefold())


def split_class_names(text: str) -> list[str]:
    """Split a comma-separated list of class names; a name that contains a comma is quoted.

    >>> from labelahead.data.label_values import split_class_names
    >>> split_class_names('cat, "salt, pepper",dog')
    ['cat', 'salt, pepper', 'dog']
    """
    parts = re.findall(r'\s*"([^"]*)"\s*(?:,|$)|([^,]+)', text)
    return [name for name in ((quoted or plain).strip() for quoted, plain in parts) if name]


def parse_label(value: Any) -> Any:
    """Return a label as text, None if it is empty, a tuple if it lists several classes.

    Floats without a fraction are written as integers, booleans as "true" and "false". A list with
    one entry, or a text written as such a list, is that entry. Any other value (a mapping, for
    example) is returned unchanged.
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]"):
        value = _parse_list(value.strip())
    if isinstance(value, list | tuple):
        labels = [label for label in map(parse_label, value) if label is not None]
        return tuple(labels) if len(labels) > 1 else labels[0] if labels else None
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float):
        return str(value)
    return (value.strip() or None) if isinstance(value, str) else value


def _parse_list(text: str) -> Any:
    """Return the list that a text holds in JSON or Python notation, else the text itself."""
    for form in (text, text.replace("'", '"')):
        try:
            found = json.loads(form)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, list) and not any(isinstance(value, list | dict) for value in found):
            return found
    return text


class LabelNormaliser:
    """Turn label values into class names, one spelling per class, and record what was merged.

    A listed class is always a class, whatever its name. Among other values, blank ones and words
    for a missing value (NA, None, null, nan, ?) are no label, and spellings that differ in case or
    encoding are one class, in the spelling that comes first.
    """

    def __init__(self, known: Sequence[str] = ()) -> None:
        self._exact = set(known)
        self._spelling: dict[str, str] = {}
        for name in known:
            self._spelling.setdefault(normalise_name(name), name)
        self._merged: dict[str, dict[str, None]] = {}  # the spelling that counts -> the others
        self._missing: Counter[str] = Counter()

    def read(self, text: str, *, literal: bool = False) -> str | None:
        """Return the class that a text names, None if the label is missing.

        Args:
            text: the label as it is written.
            literal: whether words for a missing value are class names, as in class folders and in
                exported labels.
        """
        name = text.strip()
        if name in self._exact:
            return name
        if normalise_name(name) not in self._spelling:
            if not name or (not literal and name.casefold() in MISSING_VALUES):
                self._missing[name] += 1
                return None
            self._spelling[normalise_name(name)] = name
        spelled = self._spelling[normalise_name(name)]
        if spelled != name:
            self._merged.setdefault(spelled, {})[name] = None
        return spelled

    def notes(self) -> tuple[str, ...]:
        """Describe which values were merged, and which words were taken as missing."""
        merged = [
            f"{', '.join(map(repr, others))} as {name!r}" for name, others in self._merged.items()
        ]
        words = [f"{word!r} ({count})" for word, count in self._missing.items() if word]
        notes = []
        if merged:
            notes.append(
                f"labels that differ in capital letters are one class: {'; '.join(merged)}"
            )
        if words:
            notes.append(
                f"treated as missing labels: {', '.join(words)}; --classes (data.classes) names "
                "classes"
            )
        return tuple(notes)


def find_combined_labels(names: Iterable[str], known: Collection[str] = ()) -> list[str]:
    """Find labels that combine several classes, such as `World;Breaking`.

    A separator alone is no evidence ("Paris, France"). A label counts as combined if each of its
    parts is a class of its own or occurs in another such label. Unless all parts are classes of
    their own, there must be two such labels whose parts vary: a part occurs alone or in another
    position, or the number of parts differs. (`bags, leather`, `bags, cotton`, `shoes, leather`,
    `shoes, cotton` are hierarchical names of single classes.)

    Args:
        names: the distinct labels.
        known: names that are certainly classes; these are never combined.

    Returns:
        The combined labels, sorted; empty if there are none.
    """
    unknown = set(names) - set(known)
    alone = {normalise_name(name) for name in (*unknown, *known)}
    for separator in CLASS_SEPARATORS:
        parts = {
            n: [normalise_name(part.strip()) for part in n.split(separator)]
            for n in unknown
            if separator in n
        }
        parts = {n: p for n, p in parts.items() if all(p) and len(set(p)) > 1}
        if separator == "," and all(re.fullmatch(r"[+-]?\d+,\d+", n) for n in parts):
            continue  # decimal commas
        counts = Counter(part for p in parts.values() for part in set(p))
        recurring = {
            n: p for n, p in parts.items() if all(part in alone or counts[part] > 1 for part in p)
        }
        places = {(part, i) for p in recurring.values() for i, part in enumerate(p)}
        moving = (
            len(places) > len({part for part, _ in places})
            or len({len(p) for p in recurring.values()}) > 1
        )
        proven = any(all(part in alone for part in p) for p in recurring.values())
        if proven or (len(recurring) > 1 and (moving or any(part in alone for part, _ in places))):
            return sorted(recurring)
    return []


def refuse_combined_labels(names: Iterable[str], known: Collection[str], where: str) -> None:
    """Raise if some labels combine several classes.

    Args:
        names: the distinct labels.
        known: names that are certainly classes.
        where: the source of the labels, for the message.

    Raises:
        InputError: with examples and advice.
    """
    combined = find_combined_labels(names, known)
    if combined:
        shown = ", ".join(map(repr, combined[:MAX_EXAMPLES])) + (
            ", ..." if len(combined) > MAX_EXAMPLES else ""
        )
        raise InputError(
            f"{where} seem to hold several classes per item, such as {shown}; "
            f"{SEVERAL_CLASSES_ADVICE}"
        )
