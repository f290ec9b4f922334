"""Columns of a table as numbers: fitted on the pool once, then applied to any rows."""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np

from labelahead.data.dates import ParsedDates, format_date, to_epoch_seconds
from labelahead.errors import InputError, import_extra

__all__ = [
    "CategoricalColumn",
    "Column",
    "DateColumn",
    "GuessColumn",
    "NumericColumn",
    "SentenceColumn",
    "TfidfColumn",
    "VectorColumn",
    "column_from_dict",
    "column_to_dict",
    "parse_entry",
    "parse_number",
    "parse_numeric_column",
    "parse_vectors",
    "refuse_infinite",
]

MISSING_VALUES = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
BOOLEAN_VALUES = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}
MAX_CATEGORIES = 50  # categories of a column with a feature of their own; the rest is `other`
MAX_VOCABULARY = 20_000  # most frequent words and word pairs of the pool
MAX_TEXT_DIMENSIONS = 128  # LSA dimensions of a text
Array = np.ndarray[Any, Any]
LocateRow = Callable[[int], str]  # row -> its place in the file, for messages
Entry = float | str | bool | dt.date | None


def parse_entry(value: Any) -> Entry:
    """Convert a field to a number, a boolean, a date, a category, or None if it is missing.

    Values of other types become "\\0" and the name of the type; columns with them are dropped.
    """
    if isinstance(value, np.generic):  # from an array; Python has no nanoseconds
        value = (
            value.astype("datetime64[us]") if isinstance(value, np.datetime64) else value
        ).item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.strip()
        return None if text.casefold() in MISSING_VALUES else text
    if isinstance(value, int | float | Decimal):
        try:
            number = float(value)
        except (OverflowError, ValueError):
            number = np.inf  # `refuse_infinite` raises later and names the row
        return None if number != number else number
    if isinstance(value, dt.date):
        return value if value == value else None  # pandas' NaT equals nothing
    if isinstance(value, dt.time):
        value = dt.timedelta(hours=value.hour, minutes=value.minute, seconds=value.second)
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    return f"\0{type(value).__name__}"


def parse_number(entry: Entry) -> float | None:
    """Return an entry as a number, None if it is no number."""
    if isinstance(
        entry, dt.date
    ):  # for models exported by versions that encoded dates as plain numbers
        return (
            to_epoch_seconds(entry) if isinstance(entry, dt.datetime) else float(entry.toordinal())
        )
    if not isinstance(entry, str):
        return None if entry is None else float(entry)
    if "_" in entry:  # Python would take 1_000 for a number
        return None
    try:
        return float(entry)
    except ValueError:
        return None


def _is_boolean(entry: Any) -> bool:
    """Return whether an entry is a boolean or a word for one."""
    return isinstance(entry, bool) or (
        isinstance(entry, str) and entry.casefold() in BOOLEAN_VALUES
    )


def parse_numeric_column(entries: list[Any]) -> Array | None:
    """Return the column as float64 with NaN where missing, or None if it holds categories."""
    out = np.full(len(entries), np.nan)
    booleans = 0
    for i, entry in enumerate(entries):
        if entry is None:
            continue
        booleans += _is_boolean(entry)
        number = (
            BOOLEAN_VALUES.get(str(entry).casefold()) if _is_boolean(entry) else parse_number(entry)
        )
        if number is None or isinstance(entry, dt.date):
            return None
        out[i] = number
    # Booleans among numbers, or with missing entries, are categories: a missing entry gets a
    # category of its own.
    return None if booleans and booleans < len(entries) else out


def refuse_infinite(name: str, numbers: Array, locate_row: LocateRow, where: str) -> None:
    """Raise if a number is infinite, naming its row."""
    at = np.flatnonzero(np.isinf(numbers))
    if len(at):
        raise InputError(
            f"{where}: column {name!r}, {locate_row(int(at[0]))}, is infinite; expected finite "
            "numbers (leave the field empty if it is unknown)"
        )


@dataclass(frozen=True)
class NumericColumn:
    """Numbers standardised on the pool (mean 0, deviation 1); missing ones get its median."""

    name: str
    median: float
    largest: float  # numbers are divided by it first, so that squares neither overflow nor vanish
    mean: float
    std: float
    kind: ClassVar[str] = "numbers"

    @classmethod
    def fit(
        cls, name: str, numbers: Array, pool: Array, notes: list[str]
    ) -> "NumericColumn | None":
        """Fit on the rows of the pool, (n,) bool; None if the column is constant or empty there."""
        if np.isnan(numbers[pool]).all():
            return None
        gaps = np.isnan(numbers)
        with np.errstate(over="ignore"):
            median = float(np.nanmedian(numbers[pool]))
        if gaps.any():
            numbers = np.where(gaps, median, numbers)
            notes.append(f"{name}: {int(gaps.sum())} missing, filled with the median {median:g}")
        with np.errstate(over="ignore", invalid="ignore"):
            largest = np.abs(numbers[pool]).max() or 1.0
            scaled = numbers[pool] / largest
            std = scaled.std()
        return (
            None
            if std <= 1e-12
            else cls(name, median, float(largest), float(scaled.mean()), float(std))
        )

    def apply(self, entries: list[Any], locate_row: LocateRow, where: str) -> Array:
        """Return the standardised numbers, (n, 1) float32.

        Raises:
            InputError: if an entry is no finite number.
        """
        values = [
            BOOLEAN_VALUES.get(str(e).casefold()) if _is_boolean(e) else parse_number(e)
            for e in entries
        ]
        invalid = next(
            (
                i
                for i, (e, v) in enumerate(zip(entries, values, strict=True))
                if e is not None and v is None
            ),
            -1,
        )
        if invalid >= 0:
            raise InputError(
                f"{where}: column {self.name!r}, {locate_row(invalid)}, is {entries[invalid]!r}; "
                "expected a number, as in the training data (leave the field empty if it is "
                "unknown)"
            )
        numbers = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        refuse_infinite(self.name, numbers, locate_row, where)
        numbers = np.where(np.isnan(numbers), self.median, numbers)
        with np.errstate(over="ignore", invalid="ignore"):
            block = ((numbers / self.largest - self.mean) / self.std).astype(np.float32)
        if not np.isfinite(block).all():
            raise InputError(
                f"{where}: column {self.name!r} reaches {numbers[np.argmax(np.abs(numbers))]:g}, "
                "which "
                "cannot be standardised; expected numbers of a common size"
            )
        return block[:, None]


@dataclass(frozen=True)
class DateColumn(NumericColumn):
    """Dates and date-times as seconds, standardised like numbers.

    Attributes:
        day_first: whether 3/4/2024 is 3 April; None if the pool has no date in such a form.
    """

    day_first: bool | None = None
    kind: ClassVar[str] = "dates"

    @classmethod
    def fit_dates(
        cls, name: str, dates: ParsedDates, pool: Array, notes: list[str]
    ) -> "DateColumn | None":
        """Fit on the rows of the pool, (n,) bool; None if all its dates are equal."""
        fitted = NumericColumn.fit(name, dates.seconds, pool, [])
        if fitted is None:
            return None
        gaps = int(np.isnan(dates.seconds).sum())
        if gaps:
            notes.append(
                f"{name}: {gaps} missing, filled with the median {format_date(fitted.median)}"
            )
        return cls(name, fitted.median, fitted.largest, fitted.mean, fitted.std, dates.day_first)

    def apply(self, entries: list[Any], locate_row: LocateRow, where: str) -> Array:
        """Return the standardised dates, (n, 1) float32.

        Raises:
            InputError: if an entry is no date.
        """
        seconds = [to_epoch_seconds(entry, self.day_first) for entry in entries]
        for i, (entry, value) in enumerate(zip(entries, seconds, strict=True)):
            if entry is not None and value is None:
                raise InputError(
                    f"{where}: column {self.name!r}, {locate_row(i)}, is {entry!r}; expected a "
                    "date such as 2024-01-31, as in the training data (leave the field empty if "
                    "it is unknown)"
                )
        return super().apply(seconds, locate_row, where)


@dataclass(frozen=True)
class CategoricalColumn:
    """One-hot encoding of the categories of the pool.

    Rare categories share the column `other`; missing entries have a column of their own.

    Attributes:
        kept: the categories with a column of their own.
        used: for each of these, the missing entries and `other`: whether it occurs in the pool.
    """

    name: str
    kept: tuple[str, ...]
    used: tuple[bool, ...]
    kind: ClassVar[str] = "levels"

    @classmethod
    def fit(
        cls, name: str, entries: list[Any], pool: Array, locate_row: LocateRow, notes: list[str]
    ) -> "CategoricalColumn | None":
        """Fit on the rows of the pool, (n,) bool; None if the pool has a single category."""
        texts = [None if e is None else str(e) for e in entries]
        not_numbers = [
            i for i, e in enumerate(entries) if e is not None and parse_number(e) is None
        ]
        present = sum(t is not None for t in texts)
        if 0 < len(not_numbers) <= present / 10:
            i = not_numbers[0]
            notes.append(
                f"{name}: {len(not_numbers)} of {present} entries are no numbers ({locate_row(i)}: "
                f"{texts[i]!r}), so all are taken as categories"
            )
        counts = Counter(
            t for t, inside in zip(texts, pool, strict=True) if inside and t is not None
        )
        levels = sorted(counts, key=lambda t: (-counts[t], t))
        rare = len(levels) - len(levels[:MAX_CATEGORIES])
        if rare:
            notes.append(f"{name}: {rare} of {len(levels)} categories share one, `other`")
        gaps = sum(t is None for t in texts)
        if gaps:
            notes.append(f"{name}: {gaps} missing, treated as a separate category")
        kept = tuple(sorted(levels[:MAX_CATEGORIES]))
        block = cls(name, kept, (True,) * (len(kept) + 2)).apply(entries)
        used = np.asarray(block[pool].any(axis=0))
        if used.sum() < 2:
            return None
        if not used[-1] and block[:, -1].any():
            notes.append(
                f"{name}: categories seen only in the test part count as none of the others"
            )
        return cls(name, kept, tuple(map(bool, used)))

    def apply(
        self, entries: list[Any], locate_row: LocateRow | None = None, where: str = ""
    ) -> Array:
        """Return the one-hot encoding, (n, d) float32."""
        column = {level: i for i, level in enumerate(self.kept)}
        gap = len(self.kept)
        at = np.array([gap if e is None else column.get(str(e), gap + 1) for e in entries])
        block = np.zeros((len(entries), gap + 2), dtype=np.float32)
        block[np.arange(len(entries)), at] = 1
        return block[:, np.array(self.used)]


@dataclass(frozen=True, eq=False)
class TfidfColumn:
    """TF-IDF of words and word pairs, projected on its leading singular vectors (LSA).

    Vocabulary and projection are fitted on the pool. All directions share one scale, so that
    entries have root mean square 1 over the pool and the angles between texts are kept.
    """

    name: str
    vocabulary: tuple[str, ...]
    idf: Array  # (v,)
    directions: Array  # (d, v)
    scale: float
    kind: ClassVar[str] = "words"

    @classmethod
    def fit(cls, name: str, entries: list[Any], pool: Array) -> "TfidfColumn | None":
        """Fit on the rows of the pool; None if no word occurs in two texts."""
        linear = import_extra("sklearn.utils.extmath", "app", "learning from text")
        vectorizer = _make_vectorizer(min_df=2, max_features=MAX_VOCABULARY)
        texts = _to_texts(entries)
        try:
            weights = vectorizer.fit_transform(texts[pool])
        except ValueError:  # an empty vocabulary
            return None
        rank = min(MAX_TEXT_DIMENSIONS, *weights.shape)
        _, singular_values, directions = linear.randomized_svd(weights, rank, random_state=0)
        directions = directions[singular_values > 1e-9 * singular_values[0]]
        block = np.asarray(weights @ directions.T)
        scale = float(np.sqrt(np.square(block).mean()))
        words = tuple(map(str, vectorizer.get_feature_names_out()))
        return None if scale == 0 else cls(name, words, vectorizer.idf_, directions, scale)

    def apply(
        self, entries: list[Any], locate_row: LocateRow | None = None, where: str = ""
    ) -> Array:
        """Return the projected TF-IDF vectors, (n, d) float32."""
        vectorizer = _make_vectorizer(vocabulary=self.vocabulary)
        vectorizer.idf_ = self.idf
        block = np.asarray(vectorizer.transform(_to_texts(entries)) @ self.directions.T)
        return (block / self.scale).astype(np.float32)


def _make_vectorizer(**options: Any) -> Any:
    """Return scikit-learn's TF-IDF vectorizer with our settings."""
    text = import_extra("sklearn.feature_extraction.text", "app", "learning from text")
    return text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, dtype=np.float64, **options)


def _to_texts(entries: Sequence[Any]) -> Array:
    return np.array(["" if e is None else str(e) for e in entries], dtype=object)


@dataclass(frozen=True)
class SentenceColumn:
    """A text column for a sentence encoder, which a later package applies."""

    name: str
    encoder: str
    kind: ClassVar[str] = "sentences"


@dataclass(frozen=True)
class VectorColumn:
    """A column of vectors that came with the data, used unchanged."""

    name: str
    size: int
    kind: ClassVar[str] = "vectors"

    def apply(self, values: Any, locate_row: LocateRow | None = None, where: str = "") -> Array:
        """Return the vectors, (n, d) float32.

        Raises:
            InputError: if they have another length or are not finite.
        """
        made = parse_vectors(values)
        if made is None or made.shape[1] != self.size:
            raise InputError(
                f"{where}: column {self.name!r} holds something else; expected {self.size} finite "
                "numbers a row"
            )
        return made


@dataclass(frozen=True)
class GuessColumn:
    """A column of guesses: class names, or probabilities in columns NAME:CLASS. It may be missing.

    former: Normalised former names of classes -> present name; None: removed.
    """

    name: str
    classes: tuple[str, ...]
    former: Mapping[str, str | None] = field(default_factory=dict)
    kind: ClassVar[str] = "guesses"


def parse_vectors(values: Any) -> Array | None:
    """Return a column of lists of numbers as (n, d) float32.

    Returns None unless all lists have the same length and are finite.
    """
    if not isinstance(values, np.ndarray):
        first = values[0]
        if (
            not isinstance(first, list)
            or not first
            or any(type(v) is not list or len(v) != len(first) for v in values)
        ):
            return None
        try:
            values = np.array(values)
        except ValueError:  # lists of lists of different lengths
            return None
    if values.ndim != 2 or values.dtype.kind not in "iuf":
        return None
    made = np.array(values, dtype=np.float32)  # a copy, since Arrow's memory is read-only
    return made if np.isfinite(made).all() else None


Column = (
    NumericColumn
    | DateColumn
    | CategoricalColumn
    | TfidfColumn
    | SentenceColumn
    | VectorColumn
    | GuessColumn
)


def column_to_dict(column: Column) -> dict[str, Any]:
    """Return plain values and arrays from which `column_from_dict` rebuilds the column."""
    return {"kind": column.kind, **asdict(column)}


def column_from_dict(values: Mapping[str, Any]) -> Column:
    """Rebuild a column from the result of `column_to_dict`."""
    kinds: dict[str, type[Any]] = {
        kind.kind: kind
        for kind in (
            NumericColumn,
            DateColumn,
            CategoricalColumn,
            TfidfColumn,
            SentenceColumn,
            VectorColumn,
            GuessColumn,
        )
    }
    rest = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k != "kind"}
    column: Column = kinds[values["kind"]](**rest)
    return column
