"""Labels of simulated sources: with errors where the classes overlap, at random or by a confusion
matrix; or the real labels of a source.

A source with errors at hard items knows the difficulty of an item from a kernel learner that knows the
labels of all other items: it errs where that learner is unsure, and then gives the class for which
the learner would take the item. It also states a confidence, which is too high: the area under its ROC
curve for its own errors is about 0.65 to 0.75.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelahead.data.dataset import Guesses
from labelahead.data.label_values import normalise_name
from labelahead.data.table import read_table
from labelahead.errors import InputError
from labelahead.gp.calibration import fit_scale, gaussian_class_probabilities, predict_leave_one_out
from labelahead.gp.posterior import prior
from labelahead.inference.mixture import mixture_kernel
from labelahead.learner.simulated_source import SimulatedSource

__all__ = [
    "SourceLabels",
    "estimate_ease",
    "give_labels",
    "give_wrong_labels",
    "read_confusion",
    "take_real_labels",
]

EASE_KERNEL, EASE_NOISE = (0.0, 0.5, 0.5), 0.1  # of the learner that knows how hard an item is
MAX_EASE_LABELS = 1000  # by which that learner judges; the cost is cubic
EASE_SPREAD = 1.2  # standard deviation of the ease of items whose errors are at random
BISECTIONS = 60
CLASS_COLUMN = "class"  # of a file with a confusion matrix


@dataclass(frozen=True, eq=False)
class SourceLabels:
    """What a source says about the items of a pool.

    Attributes:
        labels: (n,) class numbers; −1: it has no answer.
        confidence: (n,) its stated probability of being right.
        error: The error rate that is expected before any label.
    """

    labels: Tensor
    confidence: Tensor
    error: float

    @property
    def available(self) -> Tensor:
        """(n,) whether it has an answer."""
        return self.labels >= 0


def estimate_ease(units: Tensor, truth: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return how easy items are, and for what they would be taken.

    Args:
        units: (n, d) unit features.
        truth: (n,) class numbers.
        classes: C.

    Returns:
        (n,) log-odds of the true class and (n, C) probabilities, given the labels of all other items.
    """
    n = len(truth)
    known = (
        torch.arange(n) if n <= MAX_EASE_LABELS else torch.arange(n)[:: -(-n // MAX_EASE_LABELS)]
    )
    post = prior(
        torch.full((n, classes), 1 / classes, dtype=torch.float64),
        mixture_kernel(units.double(), EASE_KERNEL),
        noise=EASE_NOISE,
    ).condition(known, truth[known])
    mean, variance = post.mean.clone(), post.variance().clone()
    mean[known], variance[known] = predict_leave_one_out(post)
    spread = fit_scale(post) ** 2 * post.amplitude() * variance.clamp_min(1e-9)
    others = gaussian_class_probabilities(mean, spread).clamp_min(1e-6)
    own = others.gather(1, truth[:, None])[:, 0].clamp(0.003, 0.997)
    return torch.logit(own), others


def give_wrong_labels(
    truth: Tensor,
    accuracy: float,
    rng: np.random.Generator,
    hard: tuple[Tensor, Tensor] | None,
    classes: int,
) -> tuple[Tensor, Tensor]:
    """Return labels (n,) of a source that is right in this share, and its stated confidences (n,).

    Args:
        truth: (n,) class numbers.
        accuracy: Expected share of right labels.
        rng: Random numbers.
        hard: From `estimate_ease`; None: errors at random.
        classes: C.
    """
    n = len(truth)
    if hard is None:
        others = torch.ones(n, classes, dtype=torch.float64)
        ease = EASE_SPREAD * rng.standard_normal(n)
    else:
        others = hard[1]
        ease = 0.5 * hard[0].numpy() + 0.5 * rng.standard_normal(n)
    shift = _solve_shift(ease, accuracy)
    right = rng.random(n) < 1 / (1 + np.exp(-(ease + shift)))
    others = others.scatter(1, truth[:, None], 0.0)
    cumulative = (others / others.sum(1, keepdim=True)).cumsum(1)
    drawn = torch.from_numpy(rng.random(n))[:, None]
    instead = (cumulative < drawn).sum(1).clamp_max(classes - 1)
    labels = torch.where(torch.from_numpy(right), truth, instead)
    odds = 0.6 * (ease + shift) + 1.2 + rng.standard_normal(n)
    return labels, torch.from_numpy(1 / (1 + np.exp(-odds)))


def _solve_shift(ease: np.ndarray, accuracy: float) -> float:
    """Return the b for which the mean of σ(ease + b) is the accuracy."""
    low, high = -20.0, 20.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if (1 / (1 + np.exp(-(ease + middle)))).mean() < accuracy:
            low = middle
        else:
            high = middle
    return low


def give_labels(
    source: SimulatedSource,
    truth: Tensor,
    classes: tuple[str, ...],
    rng: np.random.Generator,
    hard: tuple[Tensor, Tensor] | None,
) -> SourceLabels:
    """Simulate the labels of a source by its error rate or confusion matrix.

    Args:
        source: The source.
        truth: (n,) class numbers.
        classes: Their names.
        rng: Random numbers.
        hard: From `estimate_ease`, for errors where the classes overlap.
    """
    n = len(truth)
    if isinstance(source.error, str):
        confusion = read_confusion(source.error, classes)
        drawn = torch.from_numpy(rng.random(n))[:, None]
        labels = (confusion[truth].cumsum(1) < drawn).sum(1).clamp_max(len(classes) - 1)
        share = torch.bincount(truth, minlength=len(classes)).double() / n
        wrong = float(1 - (share * confusion.diagonal()).sum())
        return SourceLabels(labels, torch.full((n,), 1 - wrong, dtype=torch.float64), wrong)
    if source.error == 0:
        return SourceLabels(truth.clone(), torch.ones(n, dtype=torch.float64), 0.0)
    where = hard if source.errors == "hard" else None
    labels, confidence = give_wrong_labels(truth, 1 - source.error, rng, where, len(classes))
    return SourceLabels(labels, confidence, source.error)


def take_real_labels(source: SimulatedSource, guesses: Guesses) -> SourceLabels:
    """Return the real labels of a source, with its probabilities as stated confidences."""
    confidence, labels = guesses.probabilities.double().max(1)
    has_answer = guesses.probabilities.any(1)
    return SourceLabels(torch.where(has_answer, labels, -1), confidence, source.expected_error)


def read_confusion(path: str | Path, classes: tuple[str, ...]) -> Tensor:
    """Read P(the source says column | class of the row), (C, C), from numbers of labels or shares.

    Raises:
        InputError: A class is missing, or a row holds no positive number.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError(f"{file} does not exist; expected a file with a confusion matrix")
    columns = read_table(file).columns
    names = {normalise_name(name): name for name in columns}
    missing = [c for c in (CLASS_COLUMN, *classes) if normalise_name(c) not in names]
    if missing:
        raise InputError(
            f"{file} has no column {missing[0]!r}; expected {CLASS_COLUMN!r} and one column for each "
            f"of the classes {', '.join(classes)}: how often the source says it"
        )
    listed = [normalise_name(str(v)) for v in columns[names[CLASS_COLUMN]]]
    rows = []
    for name in classes:
        if listed.count(normalise_name(name)) != 1:
            raise InputError(
                f"{file} has {listed.count(normalise_name(name))} rows of the class {name!r}; "
                "expected one row for each class"
            )
        at = listed.index(normalise_name(name))
        cells = [columns[names[normalise_name(c)]][at] for c in classes]
        rows.append([_parse_count(cell, file, name) for cell in cells])
    counts = torch.tensor(rows, dtype=torch.float64)
    empty = (counts.sum(1) <= 0).nonzero()[:, 0]
    if len(empty):
        raise InputError(
            f"{file} has no labels of the class {classes[int(empty[0])]!r}; expected a positive number"
        )
    return counts / counts.sum(1, keepdim=True)


def _parse_count(value: object, file: Path, name: str) -> float:
    try:
        number = float(str(value).strip() or "nan")
    except ValueError:
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise InputError(
            f"{file} has {value!r} in the row of {name!r}; expected a number of labels, or a share"
        )
    return number
