"""Ratings: one of K ordered levels, such as 1 to 5 stars.

The posterior is a regression on the score of the level. Cut points b turn it into probabilities,

    P(level ≤ k) = Φ((b_k − m) / (s √(v + σ))),

and these and s are those of maximum leave-one-out likelihood, with the midpoints between the scores
as their prior. The predicted level is the median, which minimises the expected absolute error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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
    probability_columns,
)
from labelahead.tasks.classes import check_names, find_name

__all__ = ["Rating", "RatingPrediction"]

SCALES = tuple(0.2 * 25 ** (i / 19) for i in range(20))  # times the gap between levels: 0.2 to 5
CUT_STEPS = 15  # positions that are tried for a cut point
SWEEPS = 3
CUT_DEVIATION = 0.5  # of the prior of a cut point, in gaps between levels
LAPSE = 0.01  # share of answers that are any level: one surprise must not decide


@dataclass(frozen=True, eq=False)
class RatingPrediction(Prediction):
    """Probabilities of the levels.

    Attributes:
        names: The levels, in order.
        scores: (K,) of the levels.
        probabilities: (n, K).

    >>> p = la.tasks.RatingPrediction(("1", "2", "3"), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[0.1, 0.3, 0.6]]))
    >>> p.values(), round(float(p.expected_scores()), 2), round(p.estimate_error(), 2)
    (['3'], 2.5, 0.5)
    """

    names: tuple[str, ...]
    scores: Tensor
    probabilities: Tensor

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.probabilities)

    @property
    def chosen(self) -> Tensor:
        """(n,) numbers of the predicted levels: the medians."""
        return (
            (self.probabilities.double().cumsum(1) < 0.5 - 1e-12)
            .sum(1)
            .clamp_max(len(self.names) - 1)
        )

    def expected_scores(self) -> Tensor:
        """Return the expected score (n,)."""
        return self.probabilities.double() @ self.scores.double()

    def values(self) -> list[str]:
        """Return the predicted level of each item."""
        return [self.names[k] for k in self.chosen.tolist()]

    def columns(self, probabilities: bool = True) -> dict[str, list[Any]]:
        """Return the predicted level, its probability, the expected score, and all probabilities."""
        every = probability_columns(self.names, self.probabilities) if probabilities else {}
        sure = self.probabilities.gather(1, self.chosen[:, None])[:, 0]
        return {
            "prediction": self.values(),
            "probability": sure.tolist(),
            "score": self.expected_scores().tolist(),
            **every,
        }

    def expected_errors(self) -> Tensor:
        """Return the expected absolute error (n,) of the score."""
        scores = self.scores.double()
        gap = (scores - scores[self.chosen][:, None]).abs()
        return (gap * self.probabilities.double()).sum(1)


class Rating(Task):
    """One of K ordered levels.

    Args:
        levels: Their names from low to high, or how many there are: 5 stands for "1" to "5". If all
            names are increasing numbers, these are the scores; otherwise scores are 1 to K.

    >>> task = la.tasks.Rating(5)
    >>> task.parse(4), task.parse("4"), task.write(3), task.targets([3]).tolist()
    (3, 3, '4', [[4.0]])
    >>> la.tasks.Rating(["bad", "fair", "good"]).scores.tolist()
    [1.0, 2.0, 3.0]
    """

    name = "rating"
    acquisitions: ClassVar = {"variance": "squared error of the score"}
    refused: ClassVar = {
        "resolve": "it counts wrong decisions between classes without an order",
        "flip": "it counts wrong decisions between classes without an order",
        "changes": "it counts changes of the predicted class",
        "mlmoc": "its hypothetical answer is the prediction itself, which changes nothing",
        "emoc": "it averages over classes without an order",
        "eer": "it averages over classes without an order",
    }
    baselines: ClassVar = {
        "qbc": "items about which a committee of models disagrees most",
        "gsx": "items farthest from the labelled ones",
        "gsy": "items whose predictions are farthest from the labels",
        "igs": "both: the product of gsx and gsy",
    }
    measures: ClassVar = {"mae": False, "quadratic_kappa": True, "accuracy": True}
    main_measure = "mae"
    error_measure = "mae"
    error_unit = "mean absolute error"
    codes_are_classes = True

    def __init__(
        self, levels: int | Sequence[str] = 5, answers: Sequence[str] | None = None
    ) -> None:
        names = [str(k + 1) for k in range(levels)] if isinstance(levels, int) else levels
        self.levels = check_names(names, least=2, what="level")
        self.outputs = ("score",)
        self.answers = AnswerBook(self.levels)
        self.scores = _read_scores(self.levels)

    def parse(self, value: Any) -> int | None:
        """Return the number of a level by its name, or by its score as a number."""
        value = plain(value)
        if is_missing(value):
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            hits = (self.scores == value).nonzero()
            if len(hits):
                return int(hits[0])
            raise InputError(f"{value!r} is not a level; expected one of {', '.join(self.levels)}")
        if isinstance(value, str) and value.strip() not in self.levels:
            try:
                return self.parse(float(value))  # "4.0", as tables write whole numbers
            except ValueError:
                pass
        return find_name(value, self.levels, "a level")

    def value(self, code: int) -> str:
        """Return the name of a level."""
        return self.answers[code]

    def targets(self, codes: Sequence[int] | Tensor) -> Tensor:
        """Return the scores (q, 1)."""
        return self.scores[self._codes(codes)][:, None]

    def prior_mean(self, targets: Tensor) -> Tensor:
        """Return the mean score; without labels, that of all levels."""
        return targets.mean(0) if len(targets) else self.scores.mean()[None]

    def target_scale(self, targets: Tensor) -> Tensor:
        """Return the standard deviation of the scores; of all levels, if the labels do not differ."""
        deviation = targets.std(0) if len(targets) > 1 else torch.zeros(1, dtype=torch.float64)
        return torch.where(deviation > 0, deviation, self.scores.std()[None])

    def calibrate(self, evidence: LeaveOneOut) -> TaskState:
        """Choose the cut points and the scale: see the module."""
        codes = torch.searchsorted(self.scores, evidence.targets[:, 0].contiguous().cpu())
        spread = (evidence.variance.double().cpu().clamp_min(0.0) + evidence.noise).sqrt()
        cuts, scale = _fit_cuts(evidence.mean[:, 0].double().cpu(), spread, codes, self.scores)
        squared = torch.tensor([scale**2], dtype=torch.float64)
        return TaskState(squared, evidence.noise, len(codes), cuts)

    def predict(self, mean: Tensor, variance: Tensor, state: TaskState) -> RatingPrediction:
        """Return the probability of each level; without labels, all are the same."""
        spread = (variance.double().cpu().clamp_min(0.0) + state.noise).sqrt()
        if state.labels:
            p = _level_probabilities(
                mean[:, 0].double().cpu(),
                spread,
                state.parameters,
                float(state.variance_scale.sqrt()),
            )
        else:
            p = torch.full((len(mean), len(self.levels)), 1 / len(self.levels)).double()
        return RatingPrediction(self.levels, self.scores, p)

    def measure(
        self, prediction: RatingPrediction, codes: Sequence[int] | Tensor
    ) -> dict[str, float]:
        """Return mean absolute error of the score, quadratic kappa and accuracy."""
        truth = torch.tensor(self._codes(codes), dtype=torch.int64)
        chosen = prediction.chosen.cpu()
        gap = (self.scores[chosen] - self.scores[truth]).abs()
        return {
            "mae": float(gap.mean()),
            "quadratic_kappa": measures.quadratic_kappa(
                chosen.numpy(), truth.numpy(), len(self.levels)
            ),
            "accuracy": float((chosen == truth).double().mean()),
        }

    def describe(self) -> dict[str, Any]:
        """Return the name of the task and the levels."""
        return {"name": self.name, "levels": list(self.levels), "answers": list(self.answers)}


def _read_scores(levels: Sequence[str]) -> Tensor:
    """Return the scores of levels: the numbers that they are called by, or 1 to K."""
    try:
        scores = torch.tensor([float(name) for name in levels], dtype=torch.float64)
        if bool(torch.isfinite(scores).all()) and bool((scores.diff() > 0).all()):
            return scores
    except ValueError:
        pass
    return torch.arange(1, len(levels) + 1, dtype=torch.float64)


def _level_probabilities(mean: Tensor, spread: Tensor, cuts: Tensor, scale: float) -> Tensor:
    """Return the probability (n, K) of each level."""
    below = torch.special.ndtr((cuts - mean[:, None]) / (scale * spread.clamp_min(1e-9))[:, None])
    ends = below.new_zeros(len(mean), 1)
    p = torch.cat([ends, below, ends + 1], 1).diff(dim=1).clamp_min(0.0)
    return (1 - LAPSE) * p + LAPSE / p.shape[1]


def _fit_cuts(mean: Tensor, spread: Tensor, codes: Tensor, scores: Tensor) -> tuple[Tensor, float]:
    """Choose cut points (K−1,) and the scale by coordinate ascent on a grid."""
    middle = (scores[1:] + scores[:-1]) / 2
    gaps = scores.diff()
    cuts, scale, gap = middle.clone(), float(gaps.mean()), float(gaps.mean())

    def fit(tried: Tensor, s: float) -> float:
        prior = -0.5 * float(((tried - middle) / (CUT_DEVIATION * gaps)).square().sum())
        prior -= 0.5 * (s / gap - 1) ** 2  # one gap, if nothing is known
        p = _level_probabilities(mean, spread, tried, s).gather(1, codes[:, None])
        return prior + float(p.log().sum())

    for _ in range(SWEEPS if len(codes) else 0):
        scale = max((gap * s for s in SCALES), key=lambda s: fit(cuts, s))
        for k in range(len(cuts)):
            low = float(cuts[k - 1]) if k else float(middle[0] - 2 * gap)
            high = float(cuts[k + 1]) if k + 1 < len(cuts) else float(middle[-1] + 2 * gap)
            steps = torch.linspace(low, high, CUT_STEPS + 2, dtype=torch.float64)[1:-1]
            options = [cuts, *(cuts.index_fill(0, torch.tensor(k), float(b)) for b in steps)]
            cuts = max(options, key=lambda tried: fit(tried, scale))
    return cuts, scale
