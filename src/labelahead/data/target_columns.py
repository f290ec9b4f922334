"""Read the columns that hold the answers of a task: sets of classes, numbers, ratings.

A whole column decides how its entries are read: which separator stands between classes, whether a
comma is a decimal mark, which unit the numbers have. A single entry may be ambiguous.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import Any

from labelahead.data.classes import check_name, require_distinct_classes, sort_names
from labelahead.data.columns import MISSING_VALUES
from labelahead.data.label_values import CLASS_SEPARATORS, LabelNormaliser, parse_label
from labelahead.errors import InputError, did_you_mean
from labelahead.tasks.multilabel import NO_CLASS_WORD, NOT_REVIEWED

__all__ = [
    "ClassSets",
    "Levels",
    "Numbers",
    "read_class_columns",
    "read_class_sets",
    "read_levels",
    "read_number_columns",
    "read_numbers",
]

LocateRow = Callable[[int], str]  # row -> its place in the file, for messages
POSITIVE_WORDS = frozenset({"1", "true", "yes", "y", "x"})
NEGATIVE_WORDS = frozenset({"0", "false", "no", "n"})
MAX_LEVELS = 20  # ordered classes of a rating
# A number with at most one unit before or after it. Spaces and apostrophes group digits.
NUMBER_PATTERN = re.compile(
    r"(?P<before>[^\d+\-−.,]*)(?P<number>[+\-−]?[\d.,' \u00a0\u202f’]*\d(?:[eE][+-]?\d+)?[.,]?)"
    r"(?P<after>\s*(?:[^\d\s.,+\-−].*)?)"
)
GROUPED_BY_COMMA = re.compile(r"[+-]?\d{1,3}(,\d{3})+")
GROUPED_BY_POINT = re.compile(r"[+-]?\d{1,3}(\.\d{3}){2,}")


@dataclass(frozen=True)
class ClassSets:
    """Sets of classes.

    Attributes:
        sets: the classes of each item in class order, None where it has no label. `?name` says that
            nobody has reviewed the class `name`.
        classes: the names of all classes.
        notes: decisions, for the user.
    """

    sets: tuple[tuple[str, ...] | None, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Numbers:
    """Numbers to predict.

    Attributes:
        values: the numbers of each item, one for each target (None where it is blank); None where
            the item has no label.
        targets: the names of the targets.
        units: the unit of each target, "" if it has none.
        notes: decisions, for the user.
    """

    values: tuple[tuple[float | None, ...] | None, ...]
    targets: tuple[str, ...]
    units: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Levels:
    """Ratings.

    Attributes:
        levels: the level of each item, None where it has no label.
        classes: the names of all levels in their order, the lowest first.
        notes: decisions, for the user.
    """

    levels: tuple[str | None, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...]


# --- Several classes per item


def read_class_sets(
    values: Sequence[Any], locate_row: LocateRow, where: str, known: Sequence[str] = ()
) -> ClassSets:
    """Read a column of lists, or of texts such as `sport;politics`.

    An empty list, as a list or as the text `[]` or `none`, is an item without a class. A blank entry,
    or another word for a missing value, is an item without a label. `?sport` is a class that nobody
    has reviewed.

    Args:
        values: the entries.
        locate_row: returns the place of a row, for messages.
        where: the column, for messages.
        known: names that are certainly classes, in their order.

    Raises:
        InputError: if an entry is no list of classes.

    >>> from labelahead.data.target_columns import read_class_sets
    >>> read_class_sets(["b;a", "[]", "", "a"], str, "the column topics").sets
    (('a', 'b'), (), None, ('a',))
    """
    parsed = [_parse_set(value, known) for value in values]
    words = sum(entry == NO_CLASS_WORD for entry in parsed)
    parsed = [() if entry == NO_CLASS_WORD else entry for entry in parsed]
    separator = _find_separator({entry for entry in parsed if isinstance(entry, str)}, known)
    reader = LabelNormaliser(known)
    rows: list[tuple[str, ...] | None] = []
    for i, entry in enumerate(parsed):
        parts: Sequence[Any] | None
        if isinstance(entry, str):
            whole = entry in known or separator is None
            parts = [entry] if whole else entry.split(separator)
        else:
            parts = entry if entry is None or isinstance(entry, tuple) else [entry]
        rows.append(None if parts is None else _read_parts(parts, reader, locate_row(i), where))
    found = {name.removeprefix(NOT_REVIEWED) for row in rows if row is not None for name in row}
    classes = _order_classes(found, known)
    number = {name: i for i, name in enumerate(classes)}
    sets = tuple(
        None
        if row is None
        else tuple(
            sorted(dict.fromkeys(row), key=lambda name: number[name.removeprefix(NOT_REVIEWED)])
        )
        for row in rows
    )
    notes: tuple[str, ...] = ()
    if separator not in (None, ";"):
        notes += (f"classes are separated by {separator!r}",)
    if words:
        notes += (
            f"{NO_CLASS_WORD!r} ({words} times) says that no class applies; if it is a class, list "
            "all classes with --classes",
        )
    return ClassSets(sets, classes, (*notes, *reader.notes()))


def _parse_set(value: Any, known: Sequence[str]) -> Any:
    """Return an entry as a tuple of classes, as a text that may name several, or None if missing.

    The word `none`, unless a class is called so, is returned as it is.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str) and value.strip().casefold() == NO_CLASS_WORD:
        return next((name for name in known if name.casefold() == NO_CLASS_WORD), NO_CLASS_WORD)
    if _is_blank(value):
        return None
    if isinstance(value, str) and re.fullmatch(r"\[\s*\]", value.strip()):
        return ()
    if isinstance(value, list | tuple | set | frozenset) and not value:
        return ()
    label = parse_label(sorted(value) if isinstance(value, set | frozenset) else value)
    if isinstance(value, list | tuple) and isinstance(label, str):
        return (label,)  # a separator in it is part of the name
    return label


def _is_blank(value: Any) -> bool:
    """Return whether an entry is no label."""
    if value is None or (isinstance(value, float) and value != value):
        return True
    if isinstance(value, int | float) and not isinstance(value, bool) and value == -1:
        return True
    return isinstance(value, str) and value.strip().casefold() in MISSING_VALUES


def _find_separator(texts: set[str], known: Sequence[str]) -> str | None:
    """Return the separator of a column of texts: the first that occurs in one of them."""
    unknown = texts - set(known)
    return next((s for s in CLASS_SEPARATORS if any(s in text for text in unknown)), None)


def _read_parts(
    parts: Sequence[Any], reader: LabelNormaliser, row: str, where: str
) -> tuple[str, ...]:
    """Return the classes that the parts of an entry name."""
    names = []
    for part in parts:
        if not isinstance(part, str):
            raise InputError(
                f"{where}: {row} holds {part!r:.80}; expected a list of class names, or names with "
                "; between them"
            )
        if not part.strip():
            continue
        mark = NOT_REVIEWED if part.strip().startswith(NOT_REVIEWED) else ""
        name = reader.read(part.strip().removeprefix(NOT_REVIEWED), literal=True)
        names.append(mark + check_name(name or "", f"{where}: a class in {row}"))
    return tuple(names)


def _order_classes(found: set[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the known classes, then the others that occur."""
    return (*require_distinct_classes(known), *sort_names(found - set(known)))


def read_class_columns(
    columns: Mapping[str, Sequence[Any]], locate_row: LocateRow, where: str
) -> ClassSets:
    """Read one column of 0 and 1 (or no and yes) for each class.

    A row with blank entries only has no label. A blank entry in another row says that nobody has
    reviewed the class.

    Args:
        columns: the entries by class name.
        locate_row: returns the place of a row, for messages.
        where: the table, for messages.

    Raises:
        InputError: if an entry is neither 0 nor 1.

    >>> from labelahead.data.target_columns import read_class_columns
    >>> read_class_columns({"a": [1, 0, None], "b": [1, None, None]}, str, "t.csv").sets
    (('a', 'b'), ('?b',), None)
    """
    names = tuple(require_distinct_classes([check_name(n, "a label column") for n in columns]))
    rows = list(zip(*columns.values(), strict=True))
    sets: list[tuple[str, ...] | None] = []
    for i, row in enumerate(rows):
        marks = [
            _read_mark(value, f"{where}, {locate_row(i)}: the column {name!r}")
            for name, value in zip(names, row, strict=True)
        ]
        marked_names = tuple(
            name if mark else NOT_REVIEWED + name
            for name, mark in zip(names, marks, strict=True)
            if mark is not False
        )
        sets.append(None if all(mark is None for mark in marks) else marked_names)
    return ClassSets(tuple(sets), names, ())


def _read_mark(value: Any, where: str) -> bool | None:
    """Return whether a class belongs to an item, None if the entry is blank."""
    if _is_blank(value):
        return None
    text = str(parse_label(value)).casefold()
    text = text[:-2] if text in ("0.0", "1.0") else text
    if text in POSITIVE_WORDS or text in NEGATIVE_WORDS:
        return text in POSITIVE_WORDS
    raise InputError(f"{where} holds {value!r:.40}; expected 0 or 1 (no or yes)")


# --- Numbers


def read_number_columns(
    columns: Mapping[str, Sequence[Any]], locate_row: LocateRow, where: str
) -> Numbers:
    """Read one column of numbers for each target.

    Args:
        columns: the entries by name of the target.
        locate_row: returns the place of a row, for messages.
        where: the table, for messages.

    Raises:
        InputError: if an entry is no number.
    """
    parts = [
        read_numbers(values, locate_row, f"{where}: the column {name!r}")
        for name, values in columns.items()
    ]
    rows = [
        tuple(None if value is None else value[0] for value in row)
        for row in zip(*(part.values for part in parts), strict=True)
    ]
    return Numbers(
        tuple(None if all(value is None for value in row) else row for row in rows),
        tuple(columns),
        tuple(part.units[0] for part in parts),
        tuple(note for part in parts for note in part.notes),
    )


def read_numbers(
    values: Sequence[Any], locate_row: LocateRow, where: str, name: str = ""
) -> Numbers:
    """Read a column of numbers, as numbers or as texts such as `12.5`, `1 234,5` or `80 kg`.

    Args:
        values: the entries.
        locate_row: returns the place of a row, for messages.
        where: the column, for messages.
        name: the name of the target.

    Raises:
        InputError: if an entry is no finite number, two have different units, or it is unclear
            whether a comma is a decimal mark.

    >>> from labelahead.data.target_columns import read_numbers
    >>> found = read_numbers(["1.250,5 kg", "80 kg", ""], str, "the column weight")
    >>> found.values, found.units
    (((1250.5,), (80.0,), None), ('kg',))
    """
    texts: dict[int, tuple[str, str]] = {}  # digits and unit of the entries that are texts
    numbers: dict[int, float] = {}
    for i, value in enumerate(values):
        value = value.tolist() if hasattr(value, "tolist") else value
        if value is None or (isinstance(value, float) and value != value):
            continue
        if isinstance(value, str):
            if value.strip().casefold() not in MISSING_VALUES:
                texts[i] = _split_unit(value, f"{where}: {locate_row(i)}")
        elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            numbers[i] = float(value)
        else:
            raise InputError(f"{where}: {locate_row(i)} holds {value!r:.60}; expected a number")
    unit = _find_unit({i: part for i, (_, part) in texts.items()}, locate_row, where)
    mark, notes = _find_decimal_mark({i: part for i, (part, _) in texts.items()}, locate_row, where)
    for i, (digits, _) in texts.items():
        plain = digits.replace("." if mark == "," else ",", "").replace(",", ".")
        if GROUPED_BY_POINT.fullmatch(plain):
            plain = plain.replace(".", "")
        try:
            numbers[i] = float(plain)
        except ValueError:
            raise InputError(
                f"{where}: {locate_row(i)} holds {values[i]!r:.60}; expected a number such as 12.5"
            ) from None
    bad = next((i for i, number in sorted(numbers.items()) if not isfinite(number)), None)
    if bad is not None:
        raise InputError(
            f"{where}: {locate_row(bad)} holds {values[bad]!r:.60}; expected a finite number"
        )
    read = tuple((numbers[i],) if i in numbers else None for i in range(len(values)))
    return Numbers(read, (name,), (unit,), notes)


def _split_unit(text: str, where: str) -> tuple[str, str]:
    """Return the digits of a text and its unit."""
    found = NUMBER_PATTERN.fullmatch(text.strip())
    if text.strip().casefold().lstrip("+-") in ("inf", "infinity"):
        return text.strip(), ""  # refused as not finite
    if found is None or (found["before"].strip() and found["after"].strip()):
        raise InputError(
            f"{where} holds {text!r:.60}; expected a number, alone or with one unit, such as 12.5 kg"
        )
    digits = re.sub(r"[' \u00a0\u202f’]", "", found["number"]).replace("−", "-")
    return digits, (found["before"] + found["after"]).strip()


def _find_unit(units: Mapping[int, str], locate_row: LocateRow, where: str) -> str:
    """Return the unit of a column, "" if it has none."""
    first: dict[str, int] = {}
    for i, unit in units.items():
        if unit:
            first.setdefault(unit, i)
    if len(first) > 1:
        (one, i), (two, j) = list(first.items())[:2]
        raise InputError(
            f"{where} has two units, {one!r} in {locate_row(i)} and {two!r} in {locate_row(j)}; "
            "expected one: convert the numbers to the same unit"
        )
    return next(iter(first), "")


def _find_decimal_mark(
    digits: Mapping[int, str], locate_row: LocateRow, where: str
) -> tuple[str, tuple[str, ...]]:
    """Return the decimal mark of a column of texts, and a note if it is a comma.

    `1,234` alone may be 1.234 or 1234, so other entries decide, or it is an error.
    """
    with_comma = {i: text for i, text in digits.items() if "," in text}
    if not with_comma:
        return ".", ()
    both = {text.rfind(",") > text.rfind(".") for text in with_comma.values() if "." in text}
    decimal = any(
        not GROUPED_BY_COMMA.fullmatch(text) for text in with_comma.values() if "." not in text
    )
    points = any(
        re.fullmatch(r"[+-]?\d*\.\d+([eE][+-]?\d+)?", text) and not re.search(r"\.\d{3}$", text)
        for text in digits.values()
        if "," not in text
    )
    says_comma, says_point = True in both or decimal, False in both or points
    if says_comma == says_point:
        i, text = next(iter(with_comma.items()))
        raise InputError(
            f"{where}: {locate_row(i)} holds {text!r}, and it is unclear whether the comma is a "
            "decimal mark; expected numbers such as 1234.5 in every row"
        )
    return ("," if says_comma else "."), (("decimal commas in the labels",) if says_comma else ())


# --- Ratings


def read_levels(
    values: Sequence[Any], locate_row: LocateRow, where: str, known: Sequence[str] = ()
) -> Levels:
    """Read a column of ratings: numbers, or names in the order of `known`.

    Whole numbers without gaps between them are the levels: 1, 2 and 5 are ratings from 1 to 5.

    Args:
        values: the entries.
        locate_row: returns the place of a row, for messages.
        where: the column, for messages.
        known: the names of all levels, the lowest first; required unless they are numbers.

    Raises:
        InputError: if the order of the levels is unknown, or an entry is none of them.

    >>> from labelahead.data.target_columns import read_levels
    >>> read_levels([5, 1, None, 2], str, "the column stars").classes
    ('1', '2', '3', '4', '5')
    """
    texts = [None if _is_blank(value) and value != -1 else parse_label(value) for value in values]
    odd = next((i for i, t in enumerate(texts) if t is not None and not isinstance(t, str)), None)
    if odd is not None:
        raise InputError(f"{where}: {locate_row(odd)} holds {values[odd]!r:.60}; expected a rating")
    if known:
        return _read_named_levels(texts, locate_row, where, known)
    numbers: dict[int, float] = {}
    for i, text in enumerate(texts):
        if text is None:
            continue
        try:
            numbers[i] = float(text)
        except ValueError:
            raise InputError(
                f"{where}: {locate_row(i)} holds {text!r:.60}, and the order of such levels is "
                "unknown; name them from the lowest to the highest with --classes (data.classes), "
                "e.g. --classes bad,fair,good"
            ) from None
        if not isfinite(numbers[i]):
            raise InputError(f"{where}: {locate_row(i)} holds {text!r:.60}; expected a rating")
    present = sorted(set(numbers.values()))
    if len(present) > MAX_LEVELS:
        raise InputError(
            f"{where} has {len(present)} different numbers; expected ratings of at most "
            f"{MAX_LEVELS} levels (for numbers there is --task number)"
        )
    whole = bool(present) and all(value.is_integer() for value in present)
    span = int(present[-1] - present[0]) + 1 if whole else 0
    filled = [present[0] + i for i in range(span)] if whole and span <= MAX_LEVELS else present
    gaps = len(filled) - len(present)
    notes = (f"{gaps} ratings between the lowest and the highest never occur",) if gaps else ()
    names = {value: str(parse_label(value)) for value in filled}
    levels = tuple(names[numbers[i]] if i in numbers else None for i in range(len(texts)))
    return Levels(levels, tuple(names.values()), notes)


def _read_named_levels(
    texts: Sequence[str | None], locate_row: LocateRow, where: str, known: Sequence[str]
) -> Levels:
    """Read ratings whose levels are listed."""
    classes = tuple(require_distinct_classes(known))
    reader = LabelNormaliser(classes)
    numbers = {_to_number(name): name for name in classes if _to_number(name) is not None}
    levels: list[str | None] = []
    for i, text in enumerate(texts):
        name = None if text is None else reader.read(numbers.get(_to_number(text), text))
        if name is not None and name not in classes:
            raise InputError(
                f"{where}: {locate_row(i)} holds {name!r:.60}, but --classes names "
                f"{', '.join(classes)}; {did_you_mean(name, classes)}correct the rating, or add "
                "the level at its place in the list"
            )
        levels.append(name)
    return Levels(tuple(levels), classes, reader.notes())


def _to_number(text: str) -> float | None:
    """Return a text as a number, None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None
