"""Snapshots: predictions and kernel of the items that can be queried, after a fit.

`Snapshot` is the interface. `NetworkSnapshot` is that of a trained network; the exact learner's is
in `exact_snapshot`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from labelahead.data.dataset import NONE_OF_THESE
from labelahead.data.positions import PositionIndex
from labelahead.inference.forecast import ErrorForecast
from labelahead.inference.network import outputs_to_probabilities
from labelahead.inference.pool_posterior import PoolPosterior, PosteriorOptions
from labelahead.server.task_review import Suspect
from labelahead.tasks import Prediction, Task

__all__ = [
    "FORECAST_FIELDS",
    "MIN_CONFUSION_LABELS",
    "FitFacts",
    "LabelFit",
    "LeaveOneOutFacts",
    "LeaveOneOutRow",
    "NetworkSnapshot",
    "PoolFacts",
    "PoolMap",
    "PoolPredictions",
    "Snapshot",
    "SourceFacts",
    "TaskPredictions",
    "TrainingRequest",
]

FORECAST_FIELDS = ("error_rate", "error_low", "error_high", "fall")
MIN_CONFUSION_LABELS = 10  # of an annotator, before a confusion is called typical


@dataclass(frozen=True)
class TrainingRequest:
    """A request to fit a model on these labels; round 0 uses no labels."""

    round: int
    # (position, class or `NONE_OF_THESE`) in the order they were given
    labels: tuple[tuple[int, int], ...]
    classes: int
    random_sample: tuple[int, ...] = ()  # labelled positions that are a random sample
    confirmed: tuple[int, ...] = ()  # positions that were bulk-confirmed
    # class numbers that are neither merged nor removed; None: all
    active_classes: tuple[int, ...] | None = None
    # (position, class, annotator): all labels of these items, if several people labelled
    annotations: tuple[tuple[int, int, str], ...] = ()
    task: Task | None = None  # what labels are; None: classes
    # (position, written answer) of the test items of a task
    test_answers: tuple[tuple[int, str], ...] = ()

    @property
    def class_numbers(self) -> tuple[int, ...]:
        """Return the class numbers that can be predicted, at least two."""
        active_classes = (
            tuple(range(self.classes)) if self.active_classes is None else self.active_classes
        )
        return active_classes if len(active_classes) > 1 else tuple(range(max(self.classes, 2)))

    def with_rows(self, index: PositionIndex) -> "TrainingRequest":
        """Return the request with rows instead of positions; other items are left out."""

        def rows(positions: Sequence[int]) -> tuple[int, ...]:
            return tuple(index.row_of(p) for p in index.keep_known(positions))

        return replace(
            self,
            labels=tuple((index.row_of(p), c) for p, c in self.labels if p in index),
            random_sample=rows(self.random_sample),
            confirmed=rows(self.confirmed),
            annotations=tuple(
                (index.row_of(p), c, who) for p, c, who in self.annotations if p in index
            ),
        )


@dataclass(frozen=True)
class PoolMap:
    """Coordinates of some items on a plane."""

    points: tuple[int, ...] = ()  # positions
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()


@dataclass(frozen=True)
class PoolFacts:
    """Facts about the items of a snapshot, independent of the labels."""

    map: PoolMap = field(default_factory=PoolMap)
    unreadable: Mapping[int, str] = field(default_factory=dict)  # position -> reason
    is_whole: bool = True  # no item will be added
    random_points: int | None = None  # the first so many points are in random order; None: all
    labels_at_scoring: int = 0  # when an out-of-core pool was scored
    guess_key: str = ""  # of guessers and classes (`make_guess_key`); "" without guesses


class LeaveOneOutRow(NamedTuple):
    """A label and its leave-one-out prediction.

    The output of "none of these" is what the outputs of all classes leave of 1.
    """

    position: int
    label: int  # class number or `NONE_OF_THESE`
    suggested: int  # class with the largest output
    residual: float  # norm
    output: float  # of the suggested class
    output_of_label: float


@dataclass(frozen=True)
class LeaveOneOutFacts:
    """Leave-one-out predictions of all labels.

    Attributes:
        rows: One per label.
        accuracy: Of all labels of classes, most of which were queried.
        sample_accuracy: Of those that are a random sample; None without any.
        squared_error: Mean of that sample, or of all labels.
    """

    rows: tuple[LeaveOneOutRow, ...]
    accuracy: float
    sample_accuracy: float | None
    squared_error: float

    @classmethod
    def from_predictions(
        cls,
        outputs: Tensor,
        residuals: Tensor,
        labelled: Tensor,
        labels: Tensor,
        random_sample: Sequence[int],
    ) -> "LeaveOneOutFacts":
        """Compute the facts.

        Args:
            outputs: (L, C) leave-one-out predictions.
            residuals: (L, C).
            labelled: (L,) positions.
            labels: (L,) class numbers or `NONE_OF_THESE`.
            random_sample: Positions that are a random sample.
        """
        none = labels == NONE_OF_THESE
        rest = 1 - outputs.sum(1)
        # No label supports a class without one.
        outputs = outputs[:, : max(int(labels.max()) + 1, 2)]
        size, guess = residuals.norm(dim=1), outputs.argmax(1)
        of_label = outputs.gather(1, labels.clamp_min(0)[:, None])[:, 0].where(~none, rest)
        rows = tuple(
            LeaveOneOutRow(
                int(p),
                int(c),
                int(g),
                round(float(r), 4),
                round(float(o[g]), 4),
                round(float(own), 4),
            )
            for p, c, g, r, o, own in zip(
                labelled, labels, guess, size, outputs, of_label, strict=True
            )
        )
        right, labelled, size = (guess == labels)[~none], labelled[~none], size[~none]
        sample = torch.isin(labelled, torch.tensor(random_sample, dtype=torch.int64))
        judged = sample if bool(sample.any()) else torch.ones_like(sample)
        return cls(
            rows,
            accuracy=float(right.double().mean()),
            sample_accuracy=float(right[sample].double().mean()) if bool(sample.any()) else None,
            squared_error=float(size[judged].square().mean()),
        )


class SourceFacts(NamedTuple):
    """How often an annotator is right, as estimated by a fit, with a 90 % interval.

    With fewer labels than `MIN_CONFUSION_LABELS` no confusion is typical, and there are none.
    """

    who: str
    labels: int
    accuracy: float
    low: float
    high: float
    # (class, class that the annotator gives instead, share of the items of the first)
    confusions: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True)
class FitFacts:
    """Facts about a fit.

    Attributes:
        labels: Number of labels.
        seconds: Duration of the fit and of its kernel.
        accuracy: On the test items; None without any.
        drift: As `PoolPosterior.drift`.
        notes: Problems to report.
        leave_one_out: None with fewer than two labels.
        forecast: None for a trained network.
        guessers: `GuesserQuality` of each guesser, as JSON with the class numbers of the page.
        sources: The annotators, if there are several and the learner tells them apart.
        measures: Of a task on the test items; empty without any.
        suspects: Of a task, `Suspect` of every label that its leave-one-out prediction contradicts.
        class_quality: `ClassReport.to_state` with the class numbers of the page; None without one.
    """

    labels: int = 0
    seconds: float = 0.0
    accuracy: float | None = None
    drift: float | None = None
    notes: tuple[str, ...] = ()
    leave_one_out: LeaveOneOutFacts | None = None
    forecast: ErrorForecast | None = None
    guessers: tuple[dict[str, Any], ...] = ()
    sources: tuple[SourceFacts, ...] = ()
    measures: Mapping[str, float] = field(default_factory=dict)
    suspects: tuple[Suspect, ...] = ()
    class_quality: Mapping[str, Any] | None = None

    def describe_round(self, gain: float | None) -> dict[str, Any]:
        """Return the line of `rounds.jsonl`. gain: score of the best candidate."""
        others, forecast = self.leave_one_out, self.forecast
        estimate = (None,) * 4 if forecast is None else (*forecast.error, forecast.fall)
        sources = {"sources": [row._asdict() for row in self.sources]} if self.sources else {}
        return {
            "labels": self.labels,
            "accuracy": self.accuracy,
            "loo": others and others.sample_accuracy,
            "loo_all": others and others.accuracy,
            "loo_error": others and others.squared_error,
            "drift": self.drift,
            **dict(zip(FORECAST_FIELDS, estimate, strict=True)),
            "gain": gain,
            "seconds": round(self.seconds, 3),
            **({"guessers": list(self.guessers)} if self.guessers else {}),
            **sources,
            **({"measures": dict(self.measures)} if self.measures else {}),
            **({"class_quality": self.class_quality} if self.class_quality else {}),
        }


@dataclass(frozen=True, eq=False)
class TaskPredictions:
    """What a task predicts for items of a session. positions: those that could be read."""

    positions: Tensor  # (n,)
    prediction: Prediction


@dataclass(frozen=True, eq=False)
class PoolPredictions:
    """Class probabilities of the items of a session.

    classes: class number of each column. positions: the items that could be read.
    """

    positions: Tensor  # (n,)
    classes: tuple[int, ...]
    probabilities: Tensor  # (n, C)

    def by_class_number(self, count: int) -> dict[int, list[float]]:
        """Return probabilities of all class numbers below `count`, by position.

        They are 0 for merged and removed classes.
        """
        every = self.probabilities.new_zeros((len(self.positions), count))
        every[:, list(self.classes)] = self.probabilities
        return dict(zip(self.positions.tolist(), every.tolist(), strict=True))

    def pick_best(self) -> dict[int, tuple[int, float]]:
        """Return the most probable class of each item and its probability, by position."""
        sure, index = self.probabilities.max(1)
        rows = zip(self.positions.tolist(), index.tolist(), sure.tolist(), strict=True)
        return {p: (self.classes[i], q) for p, i, q in rows}


class LabelFit(Protocol):
    """A model fitted on labels of a snapshot's items."""

    def predict(self, positions: Tensor) -> PoolPredictions | TaskPredictions:
        """Return the predictions of items (q,) of the snapshot."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Snapshot(ABC):
    """Predictions and kernel of a model at the items that can be queried.

    The kernel is scalar, so that a new class is one more column.

    Attributes:
        round: 0: before any training.
        points: (n,) positions of the items.
        labels: position -> class, used for the fit.
        noise: Relative noise.
        strategy: Name of the strategy.
        evaluation: Size of the evaluation set; None: all items.
        goal: Of queries (`QueryConfig`).
        pool_facts: Facts about the items.
        fit_facts: Facts about the fit.
    """

    round: int
    points: Tensor
    labels: Mapping[int, int]
    noise: float = 1e-3
    strategy: str = "flip"
    evaluation: int | None = 1000
    goal: str = "accuracy"
    pool_facts: PoolFacts = field(default_factory=PoolFacts)
    fit_facts: FitFacts = field(default_factory=FitFacts)

    @property
    @abstractmethod
    def classes(self) -> int:
        """Number of classes C."""

    @abstractmethod
    def build_posterior(
        self, labels: Mapping[int, int], classes: int, class_mapping: Sequence[int | None] = ()
    ) -> PoolPosterior:
        """Build the posterior of all items given these labels.

        class_mapping: as in `LabelState`.
        """

    def build_query_posterior(
        self, labels: Mapping[int, int], classes: int, class_mapping: Sequence[int | None] = ()
    ) -> PoolPosterior | None:
        """Build the posterior that scores candidates; None if it is that of `build_posterior`."""
        return None

    @abstractmethod
    def predict_proba(
        self, pool_posterior: PoolPosterior, rows: Tensor, active_classes: Tensor
    ) -> Tensor:
        """Return class probabilities (q, C) at rows (q,) of a posterior of this snapshot.

        active_classes: classes that are neither merged nor removed.
        """

    @abstractmethod
    def confidence(self, pool_posterior: PoolPosterior, active_classes: Tensor) -> Tensor:
        """Return the probability (n,) of the predicted class of all items."""

    @abstractmethod
    def refresh(self, request: TrainingRequest) -> "Snapshot | None":
        """Return the snapshot after these labels; None if that needs a training."""

    @abstractmethod
    def fit_labels(self, request: TrainingRequest) -> LabelFit | None:
        """Fit a model on these labels only; None if that needs a training."""

    def with_positions(self, positions: Tensor) -> "Snapshot":
        """Return the snapshot of a part of a data set, with positions in the data set.

        positions: (m,) by the position in the part.
        """
        shown = self.pool_facts.map
        pool_map = replace(shown, points=tuple(positions[list(shown.points)].tolist()))
        fit_facts, others = self.fit_facts, self.fit_facts.leave_one_out
        if others is not None:
            rows = tuple(row._replace(position=int(positions[row.position])) for row in others.rows)
            fit_facts = replace(fit_facts, leave_one_out=replace(others, rows=rows))
        return replace(
            self,
            points=positions[self.points],
            labels={int(positions[p]): c for p, c in self.labels.items()},
            pool_facts=replace(self.pool_facts, map=pool_map),
            fit_facts=fit_facts,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class NetworkSnapshot(Snapshot):
    """Snapshot of a trained network.

    Attributes:
        outputs: (n, C) on the scale of one-hot targets: probabilities after cross-entropy.
        kernel_arguments: The kernel (n, n) as {"kernel": ...}, or {"features": ...} (n, k).
    """

    outputs: Tensor
    kernel_arguments: Mapping[str, Tensor]

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return self.outputs.shape[1]

    def build_posterior(
        self, labels: Mapping[int, int], classes: int, class_mapping: Sequence[int | None] = ()
    ) -> PoolPosterior:
        """Build the posterior of all items given these labels, from the network's outputs."""
        return PoolPosterior.from_kernel(
            self.points,
            _map_outputs(self.outputs, class_mapping),
            self.kernel_arguments,
            self.noise,
            labels,
            PosteriorOptions(
                evaluation=self.evaluation, cache_cross_covariance=True, goal=self.goal
            ),
            classes=classes,
        )

    def predict_proba(
        self, pool_posterior: PoolPosterior, rows: Tensor, active_classes: Tensor
    ) -> Tensor:
        """Return the network's probabilities if it was trained on exactly these labels.

        With later answers, those of its linearisation. They cannot be calibrated by leave-one-out
        errors, because the outputs depend on all labels.
        """
        is_trained = bool(self.round) and pool_posterior.has_labels(
            self.labels, pool_posterior.classes
        )
        post = pool_posterior.start if is_trained else pool_posterior.posterior
        return outputs_to_probabilities(post.mean[rows], "squared")

    def confidence(self, pool_posterior: PoolPosterior, active_classes: Tensor) -> Tensor:
        """Return the probability (n,) of the predicted class of all items."""
        return pool_posterior.probabilities.amax(1)

    def refresh(self, request: TrainingRequest) -> None:
        """Return None: new labels need a training."""

    def fit_labels(self, request: TrainingRequest) -> None:
        """Return None: labels need a training."""


def _map_outputs(outputs: Tensor, class_mapping: Sequence[int | None]) -> Tensor:
    """Return (n, C) outputs with zeros for merged and removed classes.

    The output of a merged class is added to the other class; that of a removed class is distributed
    over all classes. No label supports these classes, so they are never predicted.
    """
    removed_classes = [c for c, now in enumerate(class_mapping[: outputs.shape[1]]) if now != c]
    if not removed_classes:
        return outputs
    kept, total = outputs.clone(), outputs.sum(1, keepdim=True)
    kept[:, removed_classes] = 0
    for c in removed_classes:
        into = class_mapping[c]
        if into is not None and into < outputs.shape[1]:
            kept[:, into] += outputs[:, c]
    kept_total = kept.sum(1, keepdim=True)
    return torch.where(
        kept_total > 0, kept * total / kept_total.clamp_min(torch.finfo(kept.dtype).tiny), kept
    )
