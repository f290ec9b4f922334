"""Encode labels as class numbers and class names, and check names."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data.dataset import UNKNOWN
from labelahead.data.label_values import (
    SEVERAL_CLASSES_ADVICE,
    LabelNormaliser,
    normalise_name,
    parse_label,
    refuse_combined_labels,
)
from labelahead.errors import InputError, did_you_mean

__all__ = [
    "check_name",
    "check_text",
    "encode_labels",
    "merge_class_lists",
    "normalise_name",
    "refuse_unlisted_labels",
    "require_distinct_classes",
    "sort_names",
]

MAX_NAME_LENGTH = 200  # characters
Array = np.ndarray[Any, Any]


# Unicode marks that change the direction of the text: a name with one of them is displayed as
# another name.
BIDI_MARKS = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c")


def check_name(name: object, what: str) -> str:
    """Return the stripped name of a class or an annotator.

    Raises:
        InputError: if it is no text, empty, too long, or cannot be stored or displayed safely.
    """
    if not isinstance(name, str):
        raise InputError(f"{what} is {name!r}; expected text")
    name = name.strip()
    if not name:
        raise InputError(f"{what} is empty; expected at least one character")
    if len(name) > MAX_NAME_LENGTH:
        raise InputError(f"{what} has {len(name)} characters; expected at most {MAX_NAME_LENGTH}")
    check_text(name, what)
    marks = sorted({f"U+{ord(c):04X}" for c in name if c in BIDI_MARKS})
    if marks:
        raise InputError(
            f"{what} holds {', '.join(marks)}, which reverses the text around it; expected a "
            "name without such marks"
        )
    return name


def require_distinct_classes(names: Sequence[str]) -> list[str]:
    """Return the names as a list.

    Raises:
        InputError: if a class is listed twice, ignoring case.
    """
    by_spelling: dict[str, str] = {}
    for name in names:
        key = normalise_name(name)
        if key in by_spelling:
            raise InputError(
                f"classes names {by_spelling[key]!r} and {name!r}; expected every class once"
            )
        by_spelling[key] = name
    return list(names)


def merge_class_lists(names: tuple[str, ...], requested: Sequence[str]) -> tuple[str, ...]:
    """Return the classes found in the data, then the listed ones that are missing there.

    Raises:
        InputError: if classes are listed and a label is not among them.
    """
    if not requested:
        return names
    refuse_unlisted_labels(names, require_distinct_classes(requested))
    return (*names, *(c for c in requested if c not in names))


def refuse_unlisted_labels(names: Sequence[str], requested: Sequence[str]) -> None:
    """Raise if a name is not in a list of classes; an empty list allows every name."""
    unlisted = next((name for name in names if requested and name not in requested), None)
    if unlisted is not None:
        raise InputError(
            f"a label is {unlisted!r}, but --classes names {', '.join(requested)}; "
            f"{did_you_mean(unlisted, requested)}correct the label, or add the class to the list"
        )


def check_text(text: str, what: str) -> None:
    """Raise unless the text can be encoded in UTF-8 and has no NUL character."""
    try:
        text.encode()
        sound = "\0" not in text
    except UnicodeEncodeError:
        sound = False
    if not sound:
        raise InputError(f"{what} is {text!r}, which is no text; remove NUL or half characters")


def encode_labels(
    labels: Any,
    classes: Sequence[str] | None = None,
    *,
    known: Sequence[str] = (),
    where: str = "the labels",
) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """Encode labels of any form as class numbers.

    None, NaN, -1, empty text and words such as NA are unknown labels (see `LabelNormaliser`). Whole
    numbers 0..C-1 are kept.

    Args:
        labels: (n,) numbers or names: an array, a tensor or a sequence.
        classes: all class names, in the order of their numbers.
        known: names that are certainly classes; there may be others.
        where: the source of the labels, for messages.

    Returns:
        Class numbers (n,) int64 with -1 where unknown, the class names, and notes for the user.

    Raises:
        InputError: if a label is no class, or there are several classes per item.
    """
    names = _check_class_names(classes)
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    values = labels if isinstance(labels, np.ndarray) else _labels_to_array(labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(
            f"labels have shape {values.shape}; expected one class for each item, (n,); from "
            "one-hot rows take the argmax"
        )
    if values.dtype.kind == "b":
        return _encode_numbers(values.astype(np.int64), None, names or ("false", "true"))
    if values.dtype.kind in "iu":
        return _encode_numbers(values, None, names)
    if values.dtype.kind == "f":
        return _encode_numbers(*_to_whole_numbers(values), names)
    if values.dtype.kind in "USO":
        return _encode_names(values.tolist(), names, known, where)
    raise InputError(f"labels are {values.dtype}; expected class numbers or class names")


def sort_names(names: set[str]) -> tuple[str, ...]:
    """Sort names; those that are numbers come first, by value."""

    def key(name: str) -> tuple[bool, float, str]:
        try:
            number = float(name)
        except ValueError:
            return True, 0.0, name
        return (False, number, name) if np.isfinite(number) else (True, 0.0, name)

    return tuple(sorted(names, key=key))


def _labels_to_array(labels: Any) -> Array:
    """Convert a sequence to an array without turning mixed numbers and texts into texts."""
    try:
        listed = list(labels)
    except TypeError as error:
        raise InputError(
            f"labels is a {type(labels).__name__}; expected one class for each item, (n,)"
        ) from error
    single = [
        isinstance(v, np.generic) or (isinstance(v, Tensor) and v.numel() == 1) for v in listed
    ]
    values = [v.item() if alone else v for v, alone in zip(listed, single, strict=True)]
    kinds = {type(v) for v in values}
    if kinds and (kinds <= {bool} or kinds <= {int, float}):
        return np.array(values)
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def _check_class_names(classes: Sequence[str] | None) -> tuple[str, ...]:
    """Return the class names as texts.

    Raises:
        InputError: if they are one text, or a name occurs twice.
    """
    if isinstance(classes, str):
        raise InputError(f"classes is the text {classes!r}; expected a list of class names")
    names = tuple(str(name) for name in classes) if classes is not None else ()
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"classes names {twice!r} twice; expected every class once")
    return names


def _to_whole_numbers(values: Array) -> tuple[Array, Array]:
    """Return floating-point labels as whole numbers, and a mask of those that were NaN (unknown)."""
    gaps = np.isnan(values)
    values = np.where(gaps, UNKNOWN, values)
    odd = (values != np.round(values)) | (np.abs(values) > 2**53)
    if odd.any():
        i = int(np.argmax(odd))
        raise InputError(
            f"the label of item {i} is {values[i]}; expected a class, so a whole number or a "
            'name (for numbers to predict there is --task number, or task="number")'
        )
    return values.astype(np.int64), gaps


def _encode_numbers(
    values: Array, gaps: Array | None, names: tuple[str, ...]
) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """Encode whole numbers: kept if they count from 0 or names are given, else renumbered.

    Args:
        values: (n,) whole numbers, -1 where unknown.
        gaps: (n,) mask of the labels that were NaN; None if there were none.
        names: the class names, or ().
    """
    if len(values) and (int(values.max()) >= 2**62 or int(values.min()) < UNKNOWN):
        worst = int(values.max()) if int(values.max()) >= 2**62 else int(values.min())
        raise InputError(
            f"labels hold {worst}; expected class numbers from 0 (or {UNKNOWN} for unknown)"
        )
    codes = values.astype(np.int64)
    present = np.unique(codes[codes != UNKNOWN])
    minus = (codes == UNKNOWN) if gaps is None else (codes == UNKNOWN) & ~gaps
    if present.tolist() == [1] and minus.any() and not names:
        raise InputError(
            "labels are -1 and 1 only, and -1 stands for 'unknown' here; for two classes pass "
            "labels > 0, for one class with unlabelled items pass `classes` too"
        )
    if names:
        if len(present) and present[-1] >= len(names):
            raise InputError(
                f"labels go up to {present[-1]}, but {len(names)} classes are named; expected "
                f"class numbers from 0 to {len(names) - 1}"
            )
        return torch.from_numpy(codes), names, ()
    notes: tuple[str, ...] = ()
    if len(present) and present[-1] != len(present) - 1:
        renumbered = np.searchsorted(present, codes)
        codes = np.where(codes == UNKNOWN, UNKNOWN, renumbered)
        shown = ", ".join(str(v) for v in present[:5]) + (", ..." if len(present) > 5 else "")
        notes = (f"classes {shown} renumbered from 0; their names keep the original numbers",)
    return torch.from_numpy(codes), tuple(str(v) for v in present), notes


def _encode_names(
    values: list[Any], names: tuple[str, ...], known: Sequence[str], where: str
) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """Encode names, or whole numbers mixed with None."""
    given = [v for v in values if not _is_empty(v)]
    if given and all(isinstance(v, int | float) and not isinstance(v, bool) for v in given):
        filled = [np.nan if _is_empty(v) else v for v in values]
        return _encode_numbers(*_to_whole_numbers(np.array(filled, dtype=np.float64)), names)
    reader = LabelNormaliser(names or known)
    written = [_label_text(v, i, where) for i, v in enumerate(values)]
    texts = [None if text is None else reader.read(text) for text in written]
    present = {t for t in texts if t is not None}
    if not names:
        refuse_combined_labels(present, known, where)
    names = names or sort_names(present)
    number = {name: i for i, name in enumerate(names)}
    for i, text in enumerate(texts):
        if text is not None and text not in number:
            raise InputError(
                f"the label of item {i} is {text!r}; {did_you_mean(text, names)}expected one of "
                "the classes given: "
                f"{', '.join(names[:20])}"
            )
    codes = [UNKNOWN if t is None else number[t] for t in texts]
    return torch.tensor(codes, dtype=torch.int64), names, reader.notes()


def _is_empty(value: Any) -> bool:
    """Return whether a label is unknown: None, NaN or blank text."""
    if isinstance(value, str | bytes):
        return not value.strip()
    return value is None or (isinstance(value, float) and value != value)


def _label_text(value: Any, item: int, where: str) -> str | None:
    """Return a label as text, None if it is empty."""
    label = parse_label(value)
    if isinstance(label, tuple):
        raise InputError(
            f"{where} hold several classes per item: item {item} has {value!r:.80}; "
            f"{SEVERAL_CLASSES_ADVICE}"
        )
    if label is None or (
        isinstance(label, str) and not (isinstance(value, float) and not value.is_integer())
    ):
        return label
    raise InputError(
        f"the label of item {item} is {value!r} ({type(value).__name__}); expected a class number "
        "or a class name"
    )
