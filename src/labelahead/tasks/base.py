"""The interface of a task: what an answer is, and what a posterior says about it.

Everywhere else an answer is one number, its code (`Pool.labels`, journals, label files in memory).
The task alone knows what a code means:

    code  --answers-->  written answer, "cat;dog"  --targets-->  row of targets, (1, 1, 0)

A posterior has one mean per output and one variance per item; `calibrate` learns from leave-one-out
predictions how the two become probabilities or intervals, and `predict` computes these.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelahead.errors import InputError

__all__ = [
    "AnswerBook",
    "LeaveOneOut",
    "Prediction",
    "Task",
    "TaskState",
    "is_missing",
    "probability_columns",
]

MISSING_WORDS = ("", "nan")  # of cells that hold no answer


class AnswerBook:
    """The distinct answers of a project in the order of their first appearance: code -> text.

    It only grows. The codes of a task whose answers are single classes are the class numbers.

    >>> book = la.tasks.AnswerBook(["cat", "cat;dog"])
    >>> book.add("dog"), book.add("cat"), book[2], len(book)
    (2, 0, 'dog', 3)
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts: list[str] = []
        self._codes: dict[str, int] = {}
        for text in texts:
            self.add(text)

    def add(self, text: str) -> int:
        """Return the code of a written answer, which is entered if it is new."""
        if text not in self._codes:
            self._codes[text] = len(self._texts)
            self._texts.append(text)
        return self._codes[text]

    def find(self, text: str) -> int | None:
        """Return the code of a written answer; None if it is not in the book."""
        return self._codes.get(text)

    def rewrite(self, texts: Sequence[str]) -> None:
        """Replace the text of every answer, without changing any code. The texts are distinct."""
        if len(texts) != len(self._texts) or len(set(texts)) < len(texts):
            raise InputError(
                f"{len(set(texts))} different texts for {len(self._texts)} answers; expected one "
                "for each"
            )
        self._texts = list(texts)
        self._codes = {text: code for code, text in enumerate(texts)}

    def __getitem__(self, code: int) -> str:
        """Return the written answer of a code."""
        if not 0 <= code < len(self._texts):
            raise InputError(
                f"there is no answer {code}; expected a code from 0 to {len(self._texts) - 1}"
            )
        return self._texts[code]

    def __len__(self) -> int:
        """Return the number of distinct answers."""
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the written answers in the order of their codes."""
        return iter(self._texts)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self._texts[:3])) + (", ..." if len(self) > 3 else "")
        return f"AnswerBook({len(self)} answers: {shown})"


class LeaveOneOut(NamedTuple):
    """Every label and its prediction from the other labels: what a task is calibrated by.

    >>> targets, mean = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.2], [1.9]])
    >>> evidence = la.tasks.LeaveOneOut(mean, torch.tensor([0.5, 0.5]), 0.1, targets)
    >>> la.tasks.Number().calibrate(evidence).labels
    2
    """

    mean: Tensor  # (L, D) in the unit of the targets
    variance: Tensor  # (L,) relative to the prior's, which is about 1
    noise: float  # of a label, relative as well
    targets: Tensor  # (L, D); NaN where an answer says nothing about an output
    chosen: int = 0  # parameters of the model that were chosen to make these errors small


class TaskState(NamedTuple):
    """What `Task.calibrate` learnt.

    The variance of output d at an item is `variance_scale[d]` times the posterior's.

    >>> state = la.tasks.TaskState(torch.ones(2).double(), 0.1, 30, torch.zeros(0).double())
    >>> la.tasks.TaskState.unpack(state.pack(), outputs=2).labels
    30
    """

    variance_scale: Tensor  # (D,)
    noise: float  # relative noise of a label
    labels: int  # number of labels behind it
    parameters: Tensor  # (p,) of the task: thresholds, cut points

    def pack(self) -> Tensor:
        """Return all numbers in one tensor (2 + D + p,), as models save them."""
        first = torch.tensor([self.noise, self.labels], dtype=torch.float64)
        return torch.cat([first, self.variance_scale.cpu(), self.parameters.cpu()])

    @classmethod
    def unpack(cls, packed: Tensor, outputs: int) -> "TaskState":
        """Read `pack` of a task with this number of outputs."""
        packed = packed.double().cpu()
        return cls(packed[2 : 2 + outputs], float(packed[0]), int(packed[1]), packed[2 + outputs :])


@dataclass(frozen=True, eq=False)
class Prediction(ABC):
    """What a task predicts for n items. Each task has its own, with further fields.

    >>> issubclass(la.tasks.NumberPrediction, la.tasks.Prediction)
    True
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items."""

    @abstractmethod
    def values(self) -> list[Any]:
        """Return the predicted answers, as `Task.parse` reads and `Task.value` writes them."""

    @abstractmethod
    def columns(self, probabilities: bool = True) -> dict[str, list[Any]]:
        """Return the columns of a table of predictions: "prediction" and what belongs to it.

        Args:
            probabilities: Whether to add the probability of every class or level.
        """

    @abstractmethod
    def expected_errors(self) -> Tensor:
        """Return the expected error (n,) of each item, in the unit of `Task.error_unit`."""

    def estimate_error(self) -> float:
        """Return the estimated error over all items, in the unit of `Task.error_unit`."""
        errors = self.expected_errors()
        return float(errors.mean()) if len(errors) else 0.0


class Task(ABC):
    """What an answer is: how it is written and read, predicted and measured.

    A task is one module of this package. `tests/tasks/conformance.py` holds what every task keeps.

    Attributes:
        name: Of the task: classes, multilabel, number or rating.
        outputs: Names of the outputs of the model: classes, or targets.
        answers: code -> written answer.
        acquisitions: Acquisition functions that work -> the error they lower.
        baselines: Other strategies for this task only -> what they query.
        refused: Acquisition functions that do not work -> why.
        measures: Names of the measures -> whether larger is better.
        main_measure: The measure that comparisons use.
        error_measure: The measure that estimates and forecasts are about; smaller is better.
        error_unit: Its name in sentences, such as "Hamming loss".
        decides: Whether outputs are decisions between 0 and 1, not numbers.
        codes_are_classes: Whether an answer is one of a fixed list and its code the number in it.

    >>> task: la.tasks.Task = la.tasks.Rating(["bad", "fair", "good"])
    >>> code = task.parse("good")
    >>> code, task.write(code), task.targets([code]).tolist()
    (2, 'good', [[3.0]])
    >>> evidence = la.tasks.LeaveOneOut(torch.zeros(0, 1), torch.zeros(0), 0.1, torch.zeros(0, 1))
    >>> state = task.calibrate(evidence)  # no label yet
    >>> task.predict(torch.tensor([[2.0]]), torch.tensor([1.0]), state).values()
    ['fair']
    >>> task.main_measure, task.measures["mae"]
    ('mae', False)
    """

    name: ClassVar[str]
    acquisitions: ClassVar[Mapping[str, str]]
    baselines: ClassVar[Mapping[str, str]]
    refused: ClassVar[Mapping[str, str]] = {}
    measures: ClassVar[Mapping[str, bool]]
    main_measure: ClassVar[str]
    error_measure: ClassVar[str]
    error_unit: ClassVar[str]
    decides: ClassVar[bool] = False
    codes_are_classes: ClassVar[bool] = False

    outputs: tuple[str, ...]
    answers: AnswerBook

    @abstractmethod
    def parse(self, value: Any) -> int | None:
        """Return the code of an answer, or None for a missing one.

        Args:
            value: An answer as people, files and programs give it: see each task.

        Raises:
            InputError: It is not an answer. The message says what was expected.
        """

    @abstractmethod
    def value(self, code: int) -> Any:
        """Return an answer as a plain value, which `parse` reads and JSON can hold."""

    @abstractmethod
    def targets(self, codes: Sequence[int] | Tensor) -> Tensor:
        """Return the targets (q, D) of answers, float64; NaN where nothing is said of an output."""

    @abstractmethod
    def prior_mean(self, targets: Tensor) -> Tensor:
        """Return the mean (D,) of every output before an item's neighbours are known.

        Args:
            targets: (L, D) of the labels so far, NaN where missing; L may be 0.
        """

    @abstractmethod
    def target_scale(self, targets: Tensor) -> Tensor:
        """Return the unit (D,) in which errors of the outputs are comparable: positive."""

    @abstractmethod
    def calibrate(self, evidence: LeaveOneOut) -> TaskState:
        """Learn how means and variances become probabilities or intervals; L may be 0."""

    @abstractmethod
    def predict(self, mean: Tensor, variance: Tensor, state: TaskState) -> Prediction:
        """Return the prediction for items.

        Args:
            mean: (n, D) posterior mean, in the unit of the targets.
            variance: (n,) posterior variance, relative to the prior's.
            state: From `calibrate`.
        """

    @abstractmethod
    def measure(self, prediction: Any, codes: Sequence[int] | Tensor) -> dict[str, float]:
        """Return every measure of `measures` for predictions of items whose answers are known.

        Args:
            prediction: Of this task, for q items.
            codes: (q,) their answers.
        """

    def measure_outputs(self, prediction: Any, codes: Sequence[int] | Tensor) -> dict[str, float]:
        """Return measures of single outputs, "measure:output"; none unless a task has some."""
        return {}

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the arguments of `find_task`, and "answers", as JSON can hold them."""

    def parse_all(self, values: Iterable[Any]) -> list[int | None]:
        """Return the code of every answer, None where one is missing.

        Raises:
            InputError: An answer cannot be read. The message names the first such item, and no
                answer has been entered in the book.
        """
        known, codes = list(self.answers), []
        for i, value in enumerate(values):
            try:
                codes.append(self.parse(value))
            except InputError as error:
                self.answers = AnswerBook(known)
                raise InputError(f"answer {i}: {error}") from None
        return codes

    def write(self, code: int) -> str:
        """Return an answer as text, which `parse` reads, for a cell of a table."""
        return self.answers[code]

    def check_acquisition(self, name: str) -> None:
        """Raise unless an acquisition function works for this task."""
        if name in self.acquisitions:
            return
        why = self.refused.get(name, "it was not derived for such answers")
        raise InputError(
            f"{name} does not work for the task {self.name}: {why}; expected one of "
            f"{', '.join((*self.acquisitions, *self.baselines, 'random'))}"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Task":
        """Return the task itself: copies of a model share its answers."""
        return self

    def __repr__(self) -> str:
        shown = ", ".join(self.outputs[:4]) + (", ..." if len(self.outputs) > 4 else "")
        return f"{type(self).__name__}({len(self.outputs)} outputs: {shown})"

    def _codes(self, codes: Sequence[int] | Tensor) -> list[int]:
        """Return codes as a list, if all are in the book."""
        given = [int(c) for c in (codes.tolist() if isinstance(codes, Tensor) else codes)]
        for code in set(given):
            self.answers[code]
        return given


def probability_columns(names: Sequence[str], probabilities: Tensor) -> dict[str, list[Any]]:
    """Return the columns "probability:NAME" of probabilities (n, C)."""
    return {f"probability:{name}": probabilities[:, c].tolist() for c, name in enumerate(names)}


def is_missing(value: Any) -> bool:
    """Return whether a value is no answer: None, NaN, or an empty cell."""
    if value is None:
        return True
    if isinstance(value, str):
        return value.strip().casefold() in MISSING_WORDS
    if isinstance(value, float | np.floating):
        return isnan(value)
    return isinstance(value, Tensor) and value.dim() == 0 and bool(torch.isnan(value.double()))


def plain(value: Any) -> Any:
    """Return NumPy and torch scalars as Python's own, and anything else unchanged."""
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.dim() == 0):
        return value.item()
    return value
