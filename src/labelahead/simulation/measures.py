"""The measure that a campaign is judged by: accuracy, or the main measure of another task.

Statistics compare scores, of which a larger one is better; people see the measure itself. For a
measure whose smaller values are better the score is its negative.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from labelahead.simulation.store import Round
from labelahead.tasks import TASKS

__all__ = ["ACCURACY", "Measure", "find_measure"]


@dataclass(frozen=True)
class Measure:
    """A measure of test predictions.

    Attributes:
        name: its name in files.
        title: its name in sentences.
        larger_is_better: whether a larger value is better.
        is_share: whether it is a share, shown in per cent.
        unit: of its values, unless they are shares.

    >>> from labelahead.simulation.measures import ACCURACY, find_measure
    >>> ACCURACY.format(0.9321), find_measure("number", "kg").format(-3.14159)
    ('93.2 %', '3.142 kg')
    """

    name: str
    title: str
    larger_is_better: bool = True
    is_share: bool = True
    unit: str = ""

    def read(self, entry: Round) -> float | None:
        """Return the value of a round; None without test items."""
        return entry.accuracy if self.name == ACCURACY.name else entry.measures.get(self.name)

    def score(self, entry: Round) -> float | None:
        """Return the score of a round."""
        value = self.read(entry)
        return None if value is None else self.restore(value)

    def restore(self, score: float) -> float:
        """Return the value of a score, or the score of a value."""
        return score if self.larger_is_better else -score

    def scale(self, score: float) -> float:
        """Return a score as people see it: in per cent, or in the unit of the measure."""
        return 100 * score if self.is_share else self.restore(score)

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
        "rmse": Measure("rmse", "root mean square error", False, False),
        "mae": Measure("mae", "mean absolute error", False, False),
    }
)


def find_measure(task: str, unit: str = "") -> Measure:
    """Return the main measure of a task.

    Args:
        task: its name.
        unit: of its numbers.

    >>> from labelahead.simulation.measures import find_measure
    >>> find_measure("multilabel").title
    'micro F1'
    """
    kind = TASKS[task]
    name = kind.main_measure
    plain = Measure(name, name.replace("_", " "), kind.measures[name], False)
    found = MEASURES.get(name, plain)
    return found if found.is_share else replace(found, unit=unit)
