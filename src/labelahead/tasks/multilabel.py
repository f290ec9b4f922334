"""Several classes at once: every class is present or absent, and an item may have none.

One kernel serves all classes. The mean m of class c becomes a probability by a probit,

    p = (1 − λ) Φ((m − t_c) / (s_c √(v + σ))) + λ π_c,

with the centre t_c and the scale s_c that the leave-one-out likelihood suggests. Classes have few positive
labels, so the likelihood of a class is added to the average of all classes, which counts as much as
one of them. π_c is the base rate and λ = 2/(L + 2): unseen classes are not impossible.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.tasks import measures
from labelahead.tasks.base import (
    AnswerBook,
    LeaveOneOut,
    Prediction,
    Task,
    TaskState,
    is_missing,
    probability_columns,
)
from labelahead.tasks.classes import check_names, find_name

__all__ = ["NO_CLASS", "Multilabel", "MultilabelPrediction"]

NO_CLASS = "[]"  # the written answer of an item without any class
NO_CLASS_WORD = "none"  # read as well, if no class is called so
SEPARATOR = ";"
NOT_REVIEWED = "?"  # before a class of which an answer says nothing
MAX_CALIBRATION_LABELS = 500  # evenly spaced; the cost is so many × classes × grid
CENTRES = tuple(0.05 * i for i in range(2, 19))
SCALES = tuple(0.05 * 40 ** (i / 15) for i in range(16))  # 0.05 to 2
THRESHOLDS = tuple(0.02 * i for i in range(2, 36))
POOLED_POSITIVES = 5  # positive labels that the average of all classes counts for


@dataclass(frozen=True, eq=False)
class MultilabelPrediction(Prediction):
    """Independent probabilities of the classes, and the decision for each.

    Attributes:
        names: The classes.
        probabilities: (n, C) that a class is present; rows do not sum to one.
        thresholds: (C,) a class is predicted from this probability on.

    >>> p = la.tasks.MultilabelPrediction(("cat", "dog"), torch.tensor([[0.9, 0.4]]), torch.tensor([0.5, 0.3]))
    >>> p.values(), p.columns()["prediction"], round(p.estimate_error(), 3)
    ([['cat', 'dog']], ['cat;dog'], 0.35)
    """

    names: tuple[str, ...]
    probabilities: Tensor
    thresholds: Tensor

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.probabilities)

    @property
    def chosen(self) -> Tensor:
        """(n, C) bool, the predicted classes."""
        return self.probabilities >= self.thresholds.to(self.probabilities)

    def values(self) -> list[list[str]]:
        """Return the names of the predicted classes of each item."""
        return [
            [self.names[c] for c, present in enumerate(row) if present]
            for row in self.chosen.tolist()
        ]

    def columns(self, probabilities: bool = True) -> dict[str, list[Any]]:
        """Return the predicted classes as text, and the probability of each class.

        "probability" is the one that all decisions about the item are right.
        """
        p = self.probabilities.double()
        every = probability_columns(self.names, self.probabilities) if probabilities else {}
        sure = torch.where(self.chosen, p, 1 - p).prod(1)
        texts = [SEPARATOR.join(v) or NO_CLASS for v in self.values()]
        return {"prediction": texts, "probability": sure.tolist(), **every}

    def expected_errors(self) -> Tensor:
        """Return the expected share (n,) of classes that are predicted wrongly."""
        p = self.probabilities.double()
        return torch.where(self.chosen, 1 - p, p).mean(1)


class Multilabel(Task):
    """Any number of C classes, none among them.

    An answer is written as the names in the order of the classes, `cat;dog`, and `[]` for an item
    without any class; an empty cell is a missing answer. `cat;?dog` says nothing about dog: it was
    not reviewed. `parse` also reads lists of names, dictionaries name -> True, False or None, and
    arrays (C,) of 0, 1 and NaN.

    Args:
        names: Of the classes, one or more, without `;` and not beginning with `?` or `[`.
        answers: Written answers of an earlier session, in the order of their codes.
        threshold: "f1": a class is predicted from the probability on that maximises its F1 in
            leave-one-out; or one probability for all classes, such as 0.5, which minimises the
            Hamming loss.

    >>> task = la.tasks.Multilabel(["cat", "dog", "fox"])
    >>> task.parse(["dog", "cat"]), task.parse("cat;dog"), task.parse([]), task.parse("")
    (0, 0, 1, None)
    >>> task.write(0), task.write(1), task.value(0)
    ('cat;dog', '[]', ['cat', 'dog'])
    >>> task.targets([0, 1, task.parse("fox;?dog")]).tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, nan, 1.0]]
    """

    name = "multilabel"
    acquisitions: ClassVar = {
        "resolve": "Hamming loss",
        "flip": "Hamming loss",
        "variance": "squared error of the outputs",
        "mlmoc": "change of the outputs",
    }
    refused: ClassVar = {
        "emoc": "it averages over all possible answers, and C classes have 2^C of them",
        "eer": "it tries all possible answers, and C classes have 2^C of them",
        "changes": "it counts changes of the one predicted class",
    }
    baselines: ClassVar = {
        "binary-uncertainty": "items whose classes are nearest to their thresholds, on average",
        "mmc": "items that would change a linear classifier of every class most",
        "cvirs": "items with small margins and unlike the labelled ones in their classes",
    }
    measures: ClassVar = {
        "hamming_loss": False,
        "micro_f1": True,
        "macro_f1": True,
        "average_precision": True,
    }
    main_measure = "micro_f1"
    error_measure = "hamming_loss"
    error_unit = "Hamming loss"
    decides = True

    def __init__(
        self,
        names: Sequence[str],
        answers: Sequence[str] | None = None,
        threshold: float | str = "f1",
    ) -> None:
        self.outputs = _check_class_names(names)
        if threshold != "f1" and not (
            isinstance(threshold, int | float)
            and not isinstance(threshold, bool)
            and 0 < threshold < 1
        ):
            raise InputError(
                f"threshold is {threshold!r}; expected 'f1' or a probability such as 0.5"
            )
        self.threshold = threshold
        self.answers = AnswerBook()
        self._rows: list[tuple[float, ...]] = []  # code -> targets
        for text in answers or ():
            if self.parse(text) is None:
                raise InputError(f"the answer {text!r} is empty; expected written answers")

    def parse(self, value: Any) -> int | None:
        """Return the code of a set of classes: see the class."""
        row = self._read(value)
        if row is None or all(np.isnan(row)):
            return None
        code = self.answers.add(self._write_row(row))
        if code == len(self._rows):
            self._rows.append(row)
        return code

    def parse_all(self, values: Iterable[Any]) -> list[int | None]:
        """Return the code of every answer: see `Task.parse_all`."""
        known = len(self.answers)
        try:
            return super().parse_all(values)
        except InputError:
            del self._rows[known:]
            raise

    def value(self, code: int) -> list[str]:
        """Return the names of the classes, `?name` of those that were not reviewed."""
        text = self.answers[code]
        return [] if text == NO_CLASS else text.split(SEPARATOR)

    def targets(self, codes: Sequence[int] | Tensor) -> Tensor:
        """Return 1 for classes that are present, 0 for absent ones, NaN for others: (q, C)."""
        rows = [self._rows[code] for code in self._codes(codes)]
        return torch.tensor(rows, dtype=torch.float64).view(len(rows), len(self.outputs))

    def add_output(self, name: str) -> None:
        """Add a class. Answers so far say nothing about it; their codes stay.

        >>> task = la.tasks.Multilabel(["cat", "dog"])
        >>> code = task.parse("cat")
        >>> task.add_output("fox")
        >>> task.write(code), task.write(task.parse("cat"))
        ('cat;?fox', 'cat')
        """
        self.outputs = _check_class_names((*self.outputs, name))
        self._rows = [(*row, float("nan")) for row in self._rows]
        self.answers.rewrite([self._write_row(row) for row in self._rows])

    def prior_mean(self, targets: Tensor) -> Tensor:
        """Return the base rate of each class, smoothed by one half of a positive label."""
        known = (~targets.isnan()).double().sum(0)
        return (targets.nan_to_num(0.0).sum(0) + 0.5) / (known + 1)

    def target_scale(self, targets: Tensor) -> Tensor:
        """Return 1 for every class."""
        return torch.ones(len(self.outputs), dtype=torch.float64)

    def calibrate(self, evidence: LeaveOneOut) -> TaskState:
        """Choose centres, scales and thresholds by leave-one-out."""
        base = self.prior_mean(evidence.targets)
        labels = len(evidence.targets)
        keep = torch.linspace(0, labels - 1, min(labels, MAX_CALIBRATION_LABELS)).round().long()
        some = LeaveOneOut(
            evidence.mean[keep], evidence.variance[keep], evidence.noise, evidence.targets[keep]
        )
        centre, scale = _fit_probit(some)
        state = TaskState(
            scale.square(),
            evidence.noise,
            labels,
            torch.cat([centre, base, torch.zeros_like(base)]),
        )
        if self.threshold == "f1":
            p = self._probabilities(some.mean, some.variance, state)
            threshold = _choose_thresholds(p, some.targets)
        else:
            threshold = torch.full_like(base, float(self.threshold))
        return state._replace(parameters=torch.cat([centre, base, threshold]))

    def predict(self, mean: Tensor, variance: Tensor, state: TaskState) -> MultilabelPrediction:
        """Return the probability of each class."""
        p = self._probabilities(mean, variance, state)
        return MultilabelPrediction(self.outputs, p, self.get_thresholds(state))

    def get_thresholds(self, state: TaskState) -> Tensor:
        """Return the probability (C,) from which on each class is predicted."""
        return state.parameters[2 * len(self.outputs) :]

    def measure(
        self, prediction: MultilabelPrediction, codes: Sequence[int] | Tensor
    ) -> dict[str, float]:
        """Return Hamming loss, micro and macro F1, and the mean average precision."""
        truth = self.targets(codes).numpy()
        chosen = prediction.chosen.cpu().numpy()
        micro, macro = measures.f1_scores(chosen, truth)
        scores = prediction.probabilities.cpu().numpy()
        return {
            "hamming_loss": measures.hamming_loss(chosen, truth),
            "micro_f1": micro,
            "macro_f1": macro,
            "average_precision": measures.average_precision(scores, truth),
        }

    def measure_outputs(
        self, prediction: MultilabelPrediction, codes: Sequence[int] | Tensor
    ) -> dict[str, float]:
        """Return the average precision of each class that has a positive label."""
        truth = self.targets(codes).numpy()
        scores = prediction.probabilities.cpu().numpy()
        return {
            f"average_precision:{name}": measures.average_precision(
                scores[:, c : c + 1], truth[:, c : c + 1]
            )
            for c, name in enumerate(self.outputs)
            if (truth[:, c] == 1).any()
        }

    def describe(self) -> dict[str, Any]:
        """Return the name of the task, the classes, the answers and the threshold."""
        return {
            "name": self.name,
            "classes": list(self.outputs),
            "answers": list(self.answers),
            "threshold": self.threshold,
        }

    def _probabilities(self, mean: Tensor, variance: Tensor, state: TaskState) -> Tensor:
        centre, base, _ = state.parameters.to(mean.device).double().chunk(3)
        scale = state.variance_scale.to(mean.device).sqrt()
        spread = (variance.double().clamp_min(0.0) + state.noise).sqrt()[:, None]
        p = torch.special.ndtr((mean.double() - centre) / (scale * spread.clamp_min(1e-9)))
        lapse = 2 / (state.labels + 2)
        out: Tensor = (1 - lapse) * p + lapse * base
        return out

    def _read(self, value: Any) -> tuple[float, ...] | None:
        """Read an answer as targets; None if it is missing."""
        if isinstance(value, np.ndarray | Tensor) and value.ndim == 1:
            array = np.asarray(value)
            if array.dtype.kind in "biuf":
                return self._read_indicator(array)
            value = array.tolist()
        if isinstance(value, Mapping):
            return self._read_mapping(value)
        if isinstance(value, list | tuple | set | frozenset):
            return self._read_names(sorted(value, key=str))
        if is_missing(value):
            return None
        if not isinstance(value, str):
            raise InputError(
                f"{value!r} is no set of classes; expected a list of names such as "
                f"{list(self.outputs[:2])!r}, or text such as {SEPARATOR.join(self.outputs[:2])!r}"
            )
        text = value.strip()
        if text == NO_CLASS or (
            text.casefold() == NO_CLASS_WORD
            and NO_CLASS_WORD not in map(str.casefold, self.outputs)
        ):
            return self._read_names([])
        if text.startswith("["):
            try:
                return self._read_names([str(v) for v in json.loads(text)])
            except ValueError:
                raise InputError(
                    f'{text!r} is no list of names; expected one such as ["{self.outputs[0]}"]'
                ) from None
        return self._read_names([part.strip() for part in text.split(SEPARATOR) if part.strip()])

    def _read_indicator(self, array: Any) -> tuple[float, ...]:
        if array.shape != (len(self.outputs),):
            raise InputError(
                f"an array of {len(array)} numbers is given for {len(self.outputs)} classes; "
                "expected 0 or 1 for each class, or NaN if it was not reviewed"
            )
        row = array.astype(float)
        wrong = row[~(np.isnan(row) | (row == 0) | (row == 1))]
        if len(wrong):
            raise InputError(
                f"an array holds {wrong[0]:g}; expected 0 or 1 for each class, or NaN if it was "
                "not reviewed"
            )
        return tuple(row.tolist())

    def _read_mapping(self, value: Mapping[Any, Any]) -> tuple[float, ...]:
        row = [float("nan")] * len(self.outputs)
        for name, present in value.items():
            c = find_name(name, self.outputs, "a class")
            if is_missing(present):
                continue
            if present not in (0, 1):
                raise InputError(
                    f"class {name!r} is {present!r}; expected True, False or None (not reviewed)"
                )
            row[c] = float(present)
        return tuple(row)

    def _read_names(self, names: Sequence[Any]) -> tuple[float, ...]:
        row: list[float] = [0.0] * len(self.outputs)
        said: dict[int, bool] = {}
        for name in names:
            hidden = isinstance(name, str) and name.startswith(NOT_REVIEWED)
            c = find_name(name[1:] if hidden else name, self.outputs, "a class")
            if said.setdefault(c, hidden) != hidden:
                raise InputError(
                    f"{self.outputs[c]!r} is given both as present and as not reviewed "
                    f"({NOT_REVIEWED}{self.outputs[c]}); expected one of the two"
                )
            row[c] = float("nan") if hidden else 1.0
        return tuple(row)

    def _write_row(self, row: Sequence[float]) -> str:
        parts = [
            (NOT_REVIEWED if np.isnan(v) else "") + name
            for name, v in zip(self.outputs, row, strict=True)
            if v != 0
        ]
        return SEPARATOR.join(parts) or NO_CLASS


def _check_class_names(names: Sequence[str]) -> tuple[str, ...]:
    given = check_names(names, least=1)
    for name in given:
        if SEPARATOR in name or name.startswith((NOT_REVIEWED, "[")) or name != name.strip():
            raise InputError(
                f"class {name!r} cannot be written in a list of classes; expected names without "
                f"{SEPARATOR!r}, not beginning with {NOT_REVIEWED!r}, '[' or a space: rename it"
            )
    return given


def _fit_probit(evidence: LeaveOneOut) -> tuple[Tensor, Tensor]:
    """Return centre (C,) and scale (C,): their mean under the leave-one-out likelihood on a grid."""
    mean, targets = evidence.mean.double().cpu(), evidence.targets.cpu()
    spread = (evidence.variance.double().cpu().clamp_min(0.0) + evidence.noise).sqrt()
    known, sign = ~targets.isnan(), 2 * targets.nan_to_num(0.0) - 1
    grid = [(t, s) for t in CENTRES for s in SCALES]
    fits = []
    for t, s in grid:
        z = sign * (mean - t) / (s * spread.clamp_min(1e-9))[:, None]
        # As `lapse` of one in a hundred: a single surprise must not decide.
        p = 0.005 + 0.99 * torch.special.ndtr(z)
        fits.append((p.log() * known).sum(0))
    fit = torch.stack(fits)  # (grid, C)
    # Without evidence: ½ as the centre, and the standard deviation of a fair coin.
    start = torch.tensor([(t - 0.5) ** 2 / 0.08 + (s / 0.5) ** 2 - 2 * np.log(s) for t, s in grid])
    weights = (fit + fit.mean(1, keepdim=True) - 0.5 * start[:, None]).softmax(0)
    centres, scales = torch.tensor(grid, dtype=torch.float64).unbind(1)
    return centres @ weights, (scales.log() @ weights).exp()


def _choose_thresholds(p: Tensor, targets: Tensor) -> Tensor:
    """Choose the threshold (C,) with the largest F1; rare classes lean on the average of all."""
    known, yes = ~targets.isnan(), targets == 1
    counts = []
    for threshold in THRESHOLDS:
        said = (p >= threshold) & known
        counts.append(
            torch.stack([(said & yes).sum(0), (said & ~yes).sum(0), (yes & ~said).sum(0)])
        )
    each = torch.stack(counts).double()  # (thresholds, 3, C)
    total = each.sum(2, keepdim=True)
    weight = POOLED_POSITIVES / max(POOLED_POSITIVES, float((total[0, 0] + total[0, 2]).sum()))
    hit, false, missed = (each + weight * total).unbind(1)
    f1 = 2 * hit / (2 * hit + false + missed).clamp_min(1e-9)
    # Of equal ones the one nearest to ½, which minimises the Hamming loss.
    grid = torch.tensor(THRESHOLDS, dtype=torch.float64)
    return grid[(f1 - 1e-6 * (grid - 0.5).abs()[:, None]).argmax(0)]
