"""The measure that a campaign is judged by: accuracy, or the main measure of another task.

Statistics compare scores, of which a larger one is better; people see the measure itself. For a
measure whose smaller values are better the score is its negative.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from labelahead.simulation.store import Round
from labelahead.tasks import TASKS

__all__ = [
    "ACCURACY",
    "Measure",
    "find_error_measure",
    "find_measure",
    "find_output_measure",
    "list_measures",
]


@dataclass(frozen=True)
class Measure:
    """A measure of test predictions.

    Attributes:
        name: its name in files.
        title: its name in sentences.
        larger_is_better: whether a larger value is better.
        is_share: whether it is a share, shown in per cent.
        unit: of its values, unless they are shares.
        short: its name in narrow columns, if the title is long.

    >>> from labelahead.simulation.measures import ACCURACY, find_measure
    >>> ACCURACY.format(0.9321), find_measure("number", "kg").format(-3.14159)
    ('93.2 %', '3.142 kg')
    """

    name: str
    title: str
    larger_is_better: bool = True
    is_share: bool = True
    unit: str = ""
    short: str = ""

    def read(self, entry: Round) -> float | None:
        """Return the value of a round; None without test items."""
        if self.name == ACCURACY.name and not entry.measures:
            return entry.accuracy
        return entry.measures.get(self.name)

    def score(self, entry: Round) -> float | None:
        """Return the score of a round."""
        value = self.read(entry)
        return None if value is None else self.restore(value)

    def restore(self, score: float) -> float:
        """Return the value of a score, or the score of a value."""
        return score if self.larger_is_better else -score

    def scale(self, score: float) -> float:
        """Return a score as people see it: in per cent, or in the unit of the measure."""
        return 100 * self.restore(score) if self.is_share else self.restore(score)

    def estimate(self, entry: Round) -> tuple[float, float, float] | None:
        """Return the estimate of a round without test labels, and the ends of its interval.

        None if there is none, or if the estimated error is another measure.

        >>> from labelahead.simulation.measures import ACCURACY
        >>> from labelahead.simulation.store import Round
        >>> entry = Round(0, 20, None, 1.0, 0.0, 0, 0, error=0.25, error_low=0.125, error_high=0.5)
        >>> ACCURACY.estimate(entry)
        (0.75, 0.5, 0.875)
        """
        if entry.error is None or self.name not in ESTIMATED_MEASURES:
            return None
        low, high = entry.error_low or 0.0, entry.error_high or 0.0
        if self.name == ACCURACY.name:
            return 1 - entry.error, 1 - high, 1 - low
        return entry.error, low, high

    @property
    def heading(self) -> str:
        """The name in narrow columns."""
        return self.short or self.title

    @property
    def suffix(self) -> str:
        """What follows a value: " %", or the unit."""
        return " %" if self.is_share else f" {self.unit}" if self.unit else ""

    @property
    def points(self) -> str:
        """What differences are counted in, with a blank before it."""
        return " points" if self.is_share else f" {self.unit}" if self.unit else ""

    @property
    def axis(self) -> str:
        """The label of an axis."""
        unit = "%" if self.is_share else self.unit
        return f"test {self.title}, {unit}" if unit else f"test {self.title}"

    def format_plain(self, score: float, signed: bool = False) -> str:
        """Format a score without its unit."""
        sign = "+" if signed else ""
        value = self.scale(score)
        if self.is_share:
            text = f"{value:{sign}.1f}"
            return {"+0.0": "0.0", "-0.0": "0.0"}.get(text, text)
        text = f"{value:{sign}.4g}"
        return {"+0": "0", "-0": "0"}.get(text, text)

    def format(self, score: float) -> str:
        """Format a score with its unit."""
        return self.format_plain(score) + self.suffix


ACCURACY = Measure("accuracy", "accuracy")
MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "accuracy": ACCURACY,
        "micro_f1": Measure("micro_f1", "micro F1"),
        "rmse": Measure("rmse", "root mean square error", False, False, short="RMSE"),
        "mae": Measure("mae", "mean absolute error", False, False, short="MAE"),
        "hamming_loss": Measure("hamming_loss", "Hamming loss", False, short="Hamming"),
        "macro_f1": Measure("macro_f1", "macro F1"),
        "average_precision": Measure("average_precision", "average precision", short="precision"),
        "r2": Measure("r2", "R²", True, False),
        "coverage": Measure("coverage", "coverage of 90 % intervals", short="coverage"),
        "interval_width": Measure(
            "interval_width", "width of 90 % intervals", False, False, short="width"
        ),
        "quadratic_kappa": Measure(
            "quadratic_kappa", "quadratic kappa", True, False, short="kappa"
        ),
    }
)
# What a round estimates without test labels: see `Measure.estimate`.
ESTIMATED_MEASURES = frozenset(
    {ACCURACY.name, *(task.error_measure for name, task in TASKS.items() if name != "classes")}
)
IN_UNIT = frozenset({"rmse", "mae", "interval_width"})  # measures in the unit of the numbers


def find_measure(task: str, unit: str = "") -> Measure:
    """Return the main measure of a task.

    Args:
        task: its name.
        unit: of its numbers.

    >>> from labelahead.simulation.measures import find_measure
    >>> find_measure("multilabel").title
    'micro F1'
    """
    return list_measures(task, unit)[0]


def find_error_measure(task: str, unit: str = "") -> Measure:
    """Return the measure that rounds estimate without test labels: of classes the accuracy.

    Args:
        task: its name.
        unit: of its numbers.

    >>> from labelahead.simulation.measures import find_error_measure
    >>> find_error_measure("multilabel").title, find_error_measure("classes").title
    ('Hamming loss', 'accuracy')
    """
    if task == "classes":
        return ACCURACY
    return next(m for m in list_measures(task, unit) if m.name == TASKS[task].error_measure)


def find_output_measure(name: str, known: Mapping[str, Measure]) -> Measure:
    """Return the measure of one output, called "measure:output".

    Args:
        name: its name.
        known: the measures of the task by name.

    >>> from labelahead.simulation.measures import ACCURACY, find_output_measure
    >>> find_output_measure("accuracy:cat", {"accuracy": ACCURACY}).title
    'accuracy of cat'
    """
    kind, _, output = name.partition(":")
    measure = known[kind]
    return replace(measure, name=name, title=f"{measure.title} of {output}", unit="")


def list_measures(task: str, unit: str = "") -> tuple[Measure, ...]:
    """Return all measures of a task, the main one first; of classes the accuracy alone.

    Args:
        task: its name.
        unit: of its numbers.

    >>> from labelahead.simulation.measures import list_measures
    >>> [measure.name for measure in list_measures("rating")]
    ['mae', 'quadratic_kappa', 'accuracy']
    """
    kind = TASKS[task]
    names = dict.fromkeys([kind.main_measure, *(kind.measures if task != "classes" else ())])
    return tuple(_make_measure(name, kind.measures[name], unit) for name in names)


def _make_measure(name: str, larger_is_better: bool, unit: str) -> Measure:
    """Return a measure by its name, in the unit of the numbers."""
    found = MEASURES.get(name, Measure(name, name.replace("_", " "), larger_is_better, False))
    return replace(found, unit=unit) if name in IN_UNIT else found
