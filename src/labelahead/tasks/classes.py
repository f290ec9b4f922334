"""One class for each item: the task of a `Learner` that is given none."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from labelahead.errors import InputError, did_you_mean
from labelahead.gp.calibration import gaussian_class_probabilities
from labelahead.tasks.base import (
    AnswerBook,
    LeaveOneOut,
    Prediction,
    Task,
    TaskState,
    is_missing,
    plain,
    probability_columns,
)

__all__ = ["ClassPrediction", "Classes", "check_names", "find_name"]

MIN_VARIANCE = 1e-9  # copies of a labelled item are not infinitely certain
SCALES = tuple(0.1 * 80 ** (i / 29) for i in range(30))


@dataclass(frozen=True, eq=False)
class ClassPrediction(Prediction):
    """Class probabilities.

    Attributes:
        names: The classes.
        probabilities: (n, C).

    >>> p = la.tasks.ClassPrediction(("cat", "dog"), torch.tensor([[0.2, 0.8]]))
    >>> p.values(), p.columns()["probability:dog"], round(p.estimate_error(), 3)
    (['dog'], [0.800000011920929], 0.2)
    """

    names: tuple[str, ...]
    probabilities: Tensor

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.probabilities)

    def values(self) -> list[str]:
        """Return the most probable class of each item."""
        return [self.names[c] for c in self.probabilities.argmax(1).tolist()]

    def columns(self, probabilities: bool = True) -> dict[str, list[Any]]:
        """Return the predicted class and its probability, and those of all classes."""
        every = probability_columns(self.names, self.probabilities) if probabilities else {}
        sure = self.probabilities.amax(1).tolist() if len(self) else []
        return {"prediction": self.values(), "probability": sure, **every}

    def expected_errors(self) -> Tensor:
        """Return the probability (n,) that the predicted class is wrong."""
        return 1 - self.probabilities.double().amax(1)


class Classes(Task):
    """One of C classes.

    Args:
        names: Of the classes, two or more.

    >>> task = la.tasks.Classes(["cat", "dog"])
    >>> task.parse("dog"), task.parse(1), task.write(1), task.targets([1]).tolist()
    (1, 1, 'dog', [[0.0, 1.0]])
    """

    name = "classes"
    acquisitions: ClassVar = {
        "flip": "error rate",
        "resolve": "error rate",
        "variance": "squared error of the outputs",
        "mlmoc": "change of the outputs",
        "changes": "change of the predictions",
        "emoc": "change of the outputs",
        "eer": "entropy of the predictions",
    }
    baselines: ClassVar = {}
    measures: ClassVar = {"accuracy": True, "error": False}
    main_measure = "accuracy"
    error_measure = "error"
    error_unit = "error rate"
    decides = True
    codes_are_classes = True

    def __init__(self, names: Sequence[str], answers: Sequence[str] | None = None) -> None:
        self.outputs = check_names(names, least=2)
        self.answers = AnswerBook(self.outputs)

    def parse(self, value: Any) -> int | None:
        """Return the class number of a name or of a class number."""
        value = plain(value)
        if is_missing(value):
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value < len(self.outputs):
                raise InputError(
                    f"class number {value} is unknown; expected 0 to {len(self.outputs) - 1}"
                )
            return value
        return find_name(value, self.outputs, "a class")

    def value(self, code: int) -> str:
        """Return the name of a class."""
        return self.answers[code]

    def targets(self, codes: Sequence[int] | Tensor) -> Tensor:
        """Return one-hot targets (q, C)."""
        return torch.eye(len(self.outputs), dtype=torch.float64)[self._codes(codes)]

    def prior_mean(self, targets: Tensor) -> Tensor:
        """Return 1/C for every class."""
        return torch.full((len(self.outputs),), 1 / len(self.outputs), dtype=torch.float64)

    def target_scale(self, targets: Tensor) -> Tensor:
        """Return 1 for every class."""
        return torch.ones(len(self.outputs), dtype=torch.float64)

    def calibrate(self, evidence: LeaveOneOut) -> TaskState:
        """Choose the scale of the variances that makes the labels most probable."""
        count = len(self.outputs)
        best = 1 / count * (1 - 1 / count)
        labels = evidence.targets.argmax(1)
        if bool((labels != labels[:1]).any()):
            variance = evidence.variance.clamp_min(MIN_VARIANCE)

            def likelihood(scale: float) -> float:
                p = gaussian_class_probabilities(evidence.mean, best * scale**2 * variance)
                return float(p.gather(1, labels[:, None]).clamp_min(1e-12).log().sum())

            best *= max(SCALES, key=likelihood) ** 2
        scale = torch.full((count,), best, dtype=torch.float64)
        return TaskState(scale, evidence.noise, len(labels), torch.zeros(0, dtype=torch.float64))

    def predict(self, mean: Tensor, variance: Tensor, state: TaskState) -> ClassPrediction:
        """Return the probability of each class to have the largest output."""
        spread = state.variance_scale[0] * variance.double().clamp_min(MIN_VARIANCE)
        return ClassPrediction(self.outputs, gaussian_class_probabilities(mean.double(), spread))

    def measure(
        self, prediction: ClassPrediction, codes: Sequence[int] | Tensor
    ) -> dict[str, float]:
        """Return the accuracy and the error rate."""
        right = prediction.probabilities.argmax(1) == torch.tensor(self._codes(codes))
        accuracy = float(right.double().mean())
        return {"accuracy": accuracy, "error": 1 - accuracy}

    def describe(self) -> dict[str, Any]:
        """Return the name of the task and the classes."""
        return {"name": self.name, "classes": list(self.outputs), "answers": list(self.answers)}


def check_names(names: Sequence[str], *, least: int, what: str = "class") -> tuple[str, ...]:
    """Return names as a tuple, if they are texts, distinct and enough."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"names are {names!r}; expected a list of names, one for each {what}")
    given = tuple(names)
    wrong = [n for n in given if not isinstance(n, str) or not n.strip()]
    if wrong:
        raise InputError(f"the name of a {what} is {wrong[0]!r}; expected a text that is not empty")
    if len(set(given)) < len(given):
        twice = next(n for n in given if given.count(n) > 1)
        raise InputError(f"{what} {twice!r} is named twice; expected different names")
    if len(given) < least:
        raise InputError(f"{len(given)} names are given; expected {least} or more, one per {what}")
    return given


def find_name(value: Any, names: Sequence[str], what: str) -> int:
    """Return the position of a name."""
    if isinstance(value, str):
        text = value.strip()
        if text in names:
            return names.index(text)
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise InputError(
            f"{text!r} is not {what}; {did_you_mean(text, names)}expected one of {shown}"
        )
    raise InputError(f"{value!r} is not {what}; expected a name such as {names[0]!r}")
