"""Numbers: one target or several, predicted with an interval.

The interval is that of Student's t distribution around the posterior mean m,

    m ± t(level, L − 1) · a √(v + σ),      a² = mean over labels of (leave-one-out error)² / (v + σ),

so that it is as wide as the leave-one-out errors were, wherever the posterior is that uncertain.
A model that was chosen by the same errors makes them too small: a² is (L + chosen)/L times as large.
"""

import math
from collections.abc import Mapping, Sequence
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
    plain,
)
from labelahead.tasks.classes import check_names, find_name

__all__ = ["Number", "NumberPrediction"]

SEPARATOR = ";"  # between several targets
NOT_GIVEN = "?"  # in place of a target that an answer says nothing about
LEVEL = 0.9  # of intervals, unless another one is asked for


@dataclass(frozen=True, eq=False)
class NumberPrediction(Prediction):
    """Means of the targets, and how uncertain they are.

    Attributes:
        names: The targets.
        mean: (n, D).
        deviation: (n, D) standard deviation of an answer, its noise included.
        degrees: Degrees of freedom of the distribution of answers.
        limits: Least and largest possible answer.

    >>> p = la.tasks.NumberPrediction(("age",), torch.tensor([[30.0]]), torch.tensor([[2.0]]), 20)
    >>> low, high = p.interval(0.9)
    >>> p.values(), [round(float(x), 2) for x in (low, high)]
    ([30.0], [26.55, 33.45])
    """

    names: tuple[str, ...]
    mean: Tensor
    deviation: Tensor
    degrees: int
    limits: tuple[float, float] = (-math.inf, math.inf)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.mean)

    def interval(self, level: float = LEVEL) -> tuple[Tensor, Tensor]:
        """Return the ends (n, D) of intervals that hold answers with probability `level`."""
        if not 0 < level < 1:
            raise InputError(f"level is {level!r}; expected a probability such as 0.9")
        from scipy.special import stdtrit  # Imported here, because it takes long.

        reach = float(stdtrit(max(1, self.degrees), (1 + level) / 2)) * self.deviation
        return (self.mean - reach).clamp(*self.limits), (self.mean + reach).clamp(*self.limits)

    def values(self) -> list[Any]:
        """Return the predicted number of each item; a dictionary by target if there are several."""
        if len(self.names) == 1:
            return [float(x) for x in self.mean[:, 0].tolist()]
        return [dict(zip(self.names, row, strict=True)) for row in self.mean.tolist()]

    def columns(self, probabilities: bool = True) -> dict[str, list[Any]]:
        """Return means, and the ends of 90 % intervals as "low" and "high"."""
        low, high = self.interval()
        if len(self.names) == 1:
            return {
                "prediction": self.mean[:, 0].tolist(),
                "low": low[:, 0].tolist(),
                "high": high[:, 0].tolist(),
            }
        rows = self.mean.tolist()
        out: dict[str, list[Any]] = {"prediction": [SEPARATOR.join(map(_write, r)) for r in rows]}
        for d, name in enumerate(self.names):
            out[name] = self.mean[:, d].tolist()
            out[f"{name}_low"], out[f"{name}_high"] = low[:, d].tolist(), high[:, d].tolist()
        return out

    def expected_errors(self) -> Tensor:
        """Return the expected squared error (n,), averaged over the targets."""
        wider = self.degrees / (self.degrees - 2) if self.degrees > 2 else 3.0
        return wider * self.deviation.double().square().mean(1)

    def estimate_error(self) -> float:
        """Return the estimated root mean square error over all items and targets."""
        return math.sqrt(super().estimate_error())


class Number(Task):
    """One number, or several numbers for each item.

    An answer is written as the number, `3.5`; several as `3.5;?;2`, where `?` was not given. `parse`
    also reads numbers as text, with the unit behind them, arrays (D,) with NaN, and dictionaries
    name -> number.

    Args:
        targets: Their names, one or more.
        unit: Shown to people, such as "mm".
        limits: Least and largest possible answer; None: any.
        answers: Written answers of an earlier session, in the order of their codes.

    >>> task = la.tasks.Number(unit="mm", limits=(0, 100))
    >>> task.parse(3.5), task.parse("3.50 mm"), task.parse(None), task.write(0)
    (0, 0, None, '3.5')
    >>> task.targets([0]).tolist()
    [[3.5]]
    """

    name = "number"
    acquisitions: ClassVar = {"variance": "squared error"}
    refused: ClassVar = {
        "resolve": "it counts wrong decisions between classes",
        "flip": "it counts wrong decisions between classes",
        "changes": "it counts changes of the predicted class",
        "mlmoc": "its hypothetical answer is the prediction itself, which changes nothing",
        "emoc": "it averages over classes",
        "eer": "it averages over classes",
    }
    baselines: ClassVar = {
        "qbc": "items about which a committee of models disagrees most",
        "gsx": "items farthest from the labelled ones",
        "gsy": "items whose predictions are farthest from the labels",
        "igs": "both: the product of gsx and gsy",
    }
    measures: ClassVar = {"rmse": False, "r2": True, "coverage": True, "interval_width": False}
    main_measure = "rmse"
    error_measure = "rmse"
    error_unit = "root mean square error"

    def __init__(
        self,
        targets: Sequence[str] = ("value",),
        *,
        unit: str = "",
        limits: tuple[float, float] | None = None,
        answers: Sequence[str] | None = None,
    ) -> None:
        self.outputs = check_names(targets, least=1, what="target")
        if not isinstance(unit, str):
            raise InputError(f"unit is {unit!r}; expected a text such as 'mm'")
        self.unit = unit
        self.limits = (-math.inf, math.inf) if limits is None else _check_limits(limits)
        self.answers = AnswerBook()
        self._rows: list[tuple[float, ...]] = []  # code -> targets
        for text in answers or ():
            if self.parse(text) is None:
                raise InputError(f"the answer {text!r} is empty; expected written answers")

    def parse(self, value: Any) -> int | None:
        """Return the code of a number: see the class."""
        row = self._read(value)
        if row is None or all(map(math.isnan, row)):
            return None
        code = self.answers.add(SEPARATOR.join(map(_write, row)))
        if code == len(self._rows):
            self._rows.append(row)
        return code

    def parse_all(self, values: Any) -> list[int | None]:
        """Return the code of every answer: see `Task.parse_all`."""
        known = len(self.answers)
        try:
            return super().parse_all(values)
        except InputError:
            del self._rows[known:]
            raise

    def value(self, code: int) -> float | list[float | None]:
        """Return the number; a list with None where it was not given if there are several."""
        self.answers[code]  # it raises for an unknown code
        row = self._rows[code]
        return row[0] if len(row) == 1 else [None if math.isnan(x) else x for x in row]

    def targets(self, codes: Sequence[int] | Tensor) -> Tensor:
        """Return the numbers (q, D), NaN where they were not given."""
        rows = [self._rows[code] for code in self._codes(codes)]
        return torch.tensor(rows, dtype=torch.float64).view(len(rows), len(self.outputs))

    def prior_mean(self, targets: Tensor) -> Tensor:
        """Return the mean of the labels; without any, the middle of the limits or 0."""
        known = (~targets.isnan()).double().sum(0)
        mean = targets.nan_to_num(0.0).sum(0) / known.clamp_min(1)
        return torch.where(known > 0, mean, torch.full_like(mean, self._middle()))

    def target_scale(self, targets: Tensor) -> Tensor:
        """Return the standard deviation of the labels; with few of them, a part of the limits."""
        centred = (targets - self.prior_mean(targets)).nan_to_num(0.0)
        known = (~targets.isnan()).double().sum(0)
        deviation = (centred.square().sum(0) / (known - 1).clamp_min(1)).sqrt()
        low, high = self.limits
        fallback = (high - low) / 4 if math.isfinite(high - low) and high > low else 1.0
        return torch.where(deviation > 0, deviation, torch.full_like(deviation, fallback))

    def calibrate(self, evidence: LeaveOneOut) -> TaskState:
        """Choose the scale of the variances: see the module."""
        labels = len(evidence.targets)
        scale = self.target_scale(evidence.targets).square()
        if labels:
            residual = (evidence.mean - evidence.targets).double()
            known = ~residual.isnan()
            spread = (evidence.variance.double().clamp_min(0.0) + evidence.noise)[:, None]
            squares = (residual.nan_to_num(0.0).square() / spread * known).sum(0)
            # The variance of the labels counts as one label: two labels alone say nothing.
            scale = (squares + scale) / (known.sum(0) + 1)
            scale = scale * (1 + evidence.chosen / known.sum(0).clamp_min(1))
        return TaskState(scale, evidence.noise, labels, torch.zeros(0, dtype=torch.float64))

    def predict(self, mean: Tensor, variance: Tensor, state: TaskState) -> NumberPrediction:
        """Return means and standard deviations; the latter are infinite without labels."""
        spread = variance.double().clamp_min(0.0)[:, None] + state.noise
        deviation = (spread * state.variance_scale.to(mean.device)).sqrt()
        if not state.labels:
            deviation = torch.full_like(deviation, math.inf)
        degrees = max(1, state.labels - 1)
        mean = mean.double().clamp(*self.limits)
        return NumberPrediction(self.outputs, mean, deviation, degrees, self.limits)

    def measure(
        self, prediction: NumberPrediction, codes: Sequence[int] | Tensor
    ) -> dict[str, float]:
        """Return RMSE, R², and coverage and mean width of 90 % intervals."""
        truth = self.targets(codes).numpy()
        mean = prediction.mean.cpu().numpy()
        low, high = (end.cpu().numpy() for end in prediction.interval())
        return {
            "rmse": measures.root_mean_square(mean - truth),
            "r2": measures.r_squared(mean, truth),
            "coverage": measures.interval_coverage(low, high, truth),
            "interval_width": float((high - low).mean()),
        }

    def measure_outputs(
        self, prediction: NumberPrediction, codes: Sequence[int] | Tensor
    ) -> dict[str, float]:
        """Return the RMSE of each target, if there are several: their units may differ."""
        if len(self.outputs) == 1:
            return {}
        error = (prediction.mean.cpu() - self.targets(codes)).numpy()
        return {
            f"rmse:{name}": measures.root_mean_square(error[:, d])
            for d, name in enumerate(self.outputs)
        }

    def describe(self) -> dict[str, Any]:
        """Return the name of the task, targets, unit, limits (None: any) and answers."""
        bounded = any(map(math.isfinite, self.limits))
        limits = [x if math.isfinite(x) else None for x in self.limits] if bounded else None
        return {
            "name": self.name,
            "targets": list(self.outputs),
            "unit": self.unit,
            "limits": limits,
            "answers": list(self.answers),
        }

    def _middle(self) -> float:
        low, high = self.limits
        return (low + high) / 2 if math.isfinite(low + high) else 0.0

    def _read(self, value: Any) -> tuple[float, ...] | None:
        count, value = len(self.outputs), plain(value)
        if isinstance(value, Mapping):
            row = [math.nan] * count
            for name, x in value.items():
                row[find_name(name, self.outputs, "a target")] = self._read_one(x)
            return tuple(row)
        if isinstance(value, np.ndarray | Tensor) and value.ndim == 1:
            value = value.tolist()
        if is_missing(value):
            return None
        if isinstance(value, str) and (count > 1 or SEPARATOR in value):
            value = value.split(SEPARATOR)
        if isinstance(value, list | tuple):
            if len(value) != count:
                raise InputError(
                    f"{len(value)} numbers are given; expected {count}: {', '.join(self.outputs)}"
                )
            return tuple(self._read_one(x) for x in value)
        if count > 1:
            raise InputError(
                f"{value!r} is one number; expected {count}: {', '.join(self.outputs)}"
            )
        return (self._read_one(value),)

    def _read_one(self, value: Any) -> float:
        """Read one number; NaN if it was not given."""
        value = plain(value)
        if is_missing(value) or (isinstance(value, str) and value.strip() == NOT_GIVEN):
            return math.nan
        text = value.strip() if isinstance(value, str) else value
        if isinstance(text, str) and self.unit and text.endswith(self.unit):
            text = text.removesuffix(self.unit).strip()
        unit = f" in {self.unit}" if self.unit else ""
        try:
            if isinstance(text, bool) or not isinstance(text, str | int | float):
                raise ValueError
            x = float(text)
        except ValueError:
            comma = ", with a point, not a comma" if "," in str(value) else ""
            raise InputError(
                f"{value!r} is not a number; expected one{unit} such as 3.5{comma}"
            ) from None
        if not math.isfinite(x):
            raise InputError(f"{value!r} is not finite; expected a number{unit} such as 3.5")
        low, high = self.limits
        if not low <= x <= high:
            raise InputError(
                f"{_write(x)} is out of range; expected a number{unit} from {low:g} to {high:g}"
            )
        return x + 0.0  # -0.0 and 0.0 are one answer


def _write(x: float) -> str:
    if math.isnan(x):
        return NOT_GIVEN
    return str(int(x)) if x.is_integer() and abs(x) < 1e15 else repr(x)


def _check_limits(limits: Sequence[float | None]) -> tuple[float, float]:
    try:
        low, high = limits
        ends = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
    except (TypeError, ValueError):
        ends = (1.0, 0.0)
    if not ends[0] < ends[1]:
        raise InputError(
            f"limits are {limits!r}; expected the least and the largest number, such as (0, 100)"
        )
    return ends
