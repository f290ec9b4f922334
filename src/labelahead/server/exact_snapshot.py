"""The snapshot of the exact learner: new labels refresh it in milliseconds, without training."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from labelahead.data.dataset import NONE_OF_THESE
from labelahead.data.positions import PositionIndex
from labelahead.gp.calibration import gaussian_class_probabilities, leading_probability
from labelahead.inference.exact import ExactLearner, FittedExactModel
from labelahead.inference.exact_model import ExactModel
from labelahead.inference.mixture import MAX_SELECTION_LABELS, mixture_kernel
from labelahead.inference.pool_posterior import Observation, PoolPosterior, PosteriorOptions
from labelahead.inference.sources import Annotations
from labelahead.inference.trust import apply_trust
from labelahead.learner.guess_quality import assess_guessers
from labelahead.server.snapshot import (
    MIN_CONFUSION_LABELS,
    FitFacts,
    LeaveOneOutFacts,
    PoolPredictions,
    Snapshot,
    SourceFacts,
    TrainingRequest,
)

__all__ = ["ERROR_ESTIMATE_ITEMS", "ExactLabelFit", "ExactSnapshot"]

ERROR_ESTIMATE_ITEMS = 1000  # unlabelled items used to estimate the error
MIN_RELATIVE_VARIANCE = 1e-9  # of the prior
MAX_CONFUSIONS = 3  # of each annotator that are shown, from this share of a class on
MIN_CONFUSION_SHARE = 0.15


@dataclass(frozen=True, eq=False)
class ExactLabelFit:
    """The exact learner, fitted on labels of a snapshot's items.

    Its outputs are the classes `class_numbers`.
    """

    units: Tensor  # (n, d) of all items of the snapshot
    index: PositionIndex  # rows of these items
    learner: ExactLearner
    fitted: FittedExactModel
    at: Tensor  # (L,) rows
    labels: Tensor  # (L,) indices into `class_numbers`, or `NONE_OF_THESE`
    class_numbers: Tensor  # (C,) class numbers of the page
    votes: Tensor  # (L,) bool: not bulk-confirmed

    @property
    def model(self) -> ExactModel:
        """The fitted model."""
        return self.fitted.kernel_model

    @property
    def label_numbers(self) -> Tensor:
        """(L,) the labels as class numbers of the page, or `NONE_OF_THESE`."""
        numbers = self.class_numbers[self.labels.clamp_min(0)]
        return torch.where(self.labels < 0, self.labels, numbers)

    def predict(self, positions: Tensor) -> PoolPredictions:
        """Return class probabilities of items (q,) of the snapshot."""
        rows = self.index.rows_of(positions.tolist())
        p = self.model.predict_proba_units(self.units[rows])
        return PoolPredictions(positions, tuple(self.class_numbers.tolist()), p)


@dataclass(frozen=True, eq=False, kw_only=True)
class ExactSnapshot(Snapshot):
    """Snapshot of the exact learner.

    Attributes:
        class_count: Number of classes C.
        units: (n, d) normalised embeddings.
        weights: The kernel mixes functions of their cosines with these weights.
        test: Units and classes of the test items.
        own_noise: Noise set by the user, instead of the noise selected with the weights.
        alpha: (n, C) α of the labels, the starting point of the solver.
        guesses: (n, G, C) deviations g − 1/C of the guessers, if there are some.
        test_guesses: Those about the test items.
        trust: (G, C, C) in each guesser; None without labels.
        sharpness: (G, 2) of each guesser; None: guesses as they are.
        guessers: Their names, for people.
        observations: position -> fields of the `Observation` to which the labels of several people
            amount; empty if one annotator gave all labels.
    """

    units: Tensor
    weights: tuple[float, ...]
    class_count: int = 2
    test: tuple[Tensor, Tensor] | None = None
    own_noise: float | None = None
    alpha: Tensor | None = None
    guesses: Tensor | None = None
    test_guesses: Tensor | None = None
    trust: Tensor | None = None
    sharpness: Tensor | None = None
    guessers: tuple[str, ...] = ()
    observations: Mapping[int, tuple[int, tuple[float, ...], float]] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return self.class_count

    def build_posterior(
        self, labels: Mapping[int, int], classes: int, class_mapping: Sequence[int | None] = ()
    ) -> PoolPosterior:
        """Build the posterior of all items given these labels, from the guesses about them."""
        return self._condition(labels, classes, self._make_prior_mean(class_mapping))

    def build_query_posterior(
        self, labels: Mapping[int, int], classes: int, class_mapping: Sequence[int | None] = ()
    ) -> PoolPosterior | None:
        """Build the posterior without guesses: items are queried as without them."""
        if self.guesses is None or self.trust is None:
            return None
        return self._condition(labels, classes, self._make_uniform_mean(class_mapping))

    def _condition(self, labels: Mapping[int, int], classes: int, mean: Tensor) -> PoolPosterior:
        alpha = self.alpha
        if alpha is not None and classes > self.classes:
            alpha = pad(alpha, (0, classes - self.classes))
        return PoolPosterior.from_kernel(
            self.points,
            mean,
            {"kernel": mixture_kernel(self.units, self.weights)},
            self.noise,
            labels,
            PosteriorOptions(
                evaluation=self.evaluation,
                cache_cross_covariance=True,
                max_exact_labels=MAX_SELECTION_LABELS,
                observations={p: Observation(*row) for p, row in self.observations.items()},
                goal=self.goal,
            ),
            classes=classes,
            initial_weights=alpha,
        )

    def _make_uniform_mean(self, class_mapping: Sequence[int | None]) -> Tensor:
        """Return (n, C), uniform over the classes that are neither merged nor removed."""
        removed_classes = self._list_gone(class_mapping)
        start = torch.full(
            (len(self.points), self.classes),
            1 / max(self.classes - len(removed_classes), 1),
            dtype=torch.float64,
        )
        start[:, removed_classes] = 0
        return start

    def _make_prior_mean(self, class_mapping: Sequence[int | None]) -> Tensor:
        """Return (n, C): the uniform mean, and what the guesses add to it."""
        start = self._make_uniform_mean(class_mapping)
        if self.guesses is None or self.trust is None:
            return start
        removed_classes = self._list_gone(class_mapping)
        guesses = self._arrange_guesses(self.guesses, range(self.trust.shape[1]))
        fitted = self.trust.ne(0).any(2).any(0)  # a class outside the fit does not bound a row
        added = apply_trust(self.trust, guesses.double() * fitted, self.sharpness)[
            :, : self.classes
        ]
        shared = [c for c in range(added.shape[1]) if c not in removed_classes]
        start[:, shared] += added[:, shared]
        return start

    def _list_gone(self, class_mapping: Sequence[int | None]) -> list[int]:
        """Return the classes that were merged or removed."""
        return [c for c, now in enumerate(class_mapping[: self.classes]) if now != c]

    def predict_proba(
        self, pool_posterior: PoolPosterior, rows: Tensor, active_classes: Tensor
    ) -> Tensor:
        """Return class probabilities (q, C), calibrated by leave-one-out errors."""
        mean = pool_posterior.posterior.mean[rows][:, active_classes]
        variance = self._calibrated_variance(pool_posterior)[rows]
        p = gaussian_class_probabilities(mean, variance)
        return p.new_zeros(len(rows), pool_posterior.classes).index_copy_(1, active_classes, p)

    def confidence(self, pool_posterior: PoolPosterior, active_classes: Tensor) -> Tensor:
        """Return the probability (n,) of the predicted class of all items."""
        mean = pool_posterior.posterior.mean
        if len(active_classes) < pool_posterior.classes:
            mean = mean[:, active_classes]
        return leading_probability(mean, self._calibrated_variance(pool_posterior))

    def _calibrated_variance(self, pool_posterior: PoolPosterior) -> Tensor:
        """Return the predictive variances (n,)."""
        post, forecast = pool_posterior.posterior, self.fit_facts.forecast
        spread = 0.0 if forecast is None else forecast.spread
        return (spread or post.amplitude()) * post.variance().clamp_min(
            MIN_RELATIVE_VARIANCE * post.scale
        )

    def refresh(self, request: TrainingRequest) -> "ExactSnapshot":
        """Return the snapshot after these labels, with a newly selected kernel."""
        classes = max(request.classes, 2)
        if not request.round:
            return replace(self, class_count=classes)
        began = time.perf_counter()
        fit = self._fit(request, max_exact_labels=MAX_SELECTION_LABELS)
        seconds = time.perf_counter() - began
        alpha = fit.model.alpha.new_zeros((len(self.points), classes))
        columns = alpha.new_zeros((len(fit.at), classes))
        alpha[fit.at] = columns.index_copy(1, fit.class_numbers, fit.model.alpha)
        trust = alpha.new_zeros((len(fit.model.trust), classes, classes))
        trust[:, fit.class_numbers[:, None], fit.class_numbers] = fit.model.trust
        return replace(
            self,
            round=request.round,
            class_count=classes,
            labels=dict(request.labels),
            noise=self.own_noise or fit.fitted.noise,
            weights=fit.fitted.mixture.weights,
            alpha=alpha,
            trust=trust,
            sharpness=fit.model.sharpness,
            observations=self._describe_observations(fit, classes),
            fit_facts=self._describe_fit(fit, request, seconds),
        )

    def _describe_observations(
        self, fit: ExactLabelFit, classes: int
    ) -> dict[int, tuple[int, tuple[float, ...], float]]:
        """Return what the labels of each item amount to, in class numbers of the page."""
        found, numbers = {}, fit.class_numbers.tolist()
        for row, observation in fit.model.observations.items():
            target = [0.0] * classes
            for number, value in zip(numbers, observation.target, strict=True):
                target[number] = value
            label = numbers[observation.label] if observation.label >= 0 else observation.label
            found[int(self.points[row])] = (label, tuple(target), observation.noise)
        return found

    def _describe_fit(
        self, fit: ExactLabelFit, request: TrainingRequest, seconds: float
    ) -> FitFacts:
        """Test the fit, and estimate its error."""
        at, labels, learner = fit.at, fit.labels, fit.learner
        accuracy = None
        if self.test is not None:
            units, truth = self.test
            units = self._join_guesses(units, self.test_guesses, fit.class_numbers.tolist())
            predicted = fit.class_numbers[fit.fitted.model(units).argmax(1)]
            accuracy = float((predicted == truth).double().mean())
        outputs, residuals = learner.leave_one_out_predictions(at, labels)
        outputs = outputs.new_zeros((len(at), max(request.classes, 2))).index_copy_(
            1, fit.class_numbers, outputs
        )
        leave_one_out = LeaveOneOutFacts.from_predictions(
            outputs, residuals, self.points[at], fit.label_numbers, request.random_sample
        )
        rest = torch.ones(len(self.points), dtype=torch.bool).index_fill_(0, at, False)
        rest = rest[: self.pool_facts.random_points].nonzero().squeeze(1)[:ERROR_ESTIMATE_ITEMS]
        forecast = learner.forecast_error(at, labels, rest, votes=fit.votes) if len(rest) else None
        numbers = fit.class_numbers.tolist()
        quality = None
        if len(rest):
            report = learner.estimate_class_report(at, labels, rest, votes=fit.votes)
            quality = report.to_state(numbers)
        found = assess_guessers(fit.model, labels, self.guessers)
        guessers = tuple(guesser.to_state(numbers) for guesser in found)
        return FitFacts(
            len(at),
            seconds,
            accuracy,
            leave_one_out=leave_one_out,
            forecast=forecast,
            guessers=guessers,
            sources=_describe_sources(fit),
            class_quality=quality,
        )

    def fit_labels(self, request: TrainingRequest) -> ExactLabelFit:
        """Fit the labels with a newly selected kernel and calibrate the probabilities."""
        fit = self._fit(request)
        fit.model.calibrate(fit.votes)
        return fit

    def _fit(self, request: TrainingRequest, max_exact_labels: int | None = None) -> ExactLabelFit:
        """Fit the labels from scratch, so that the result is reproducible.

        Args:
            request: The labels; items that are not in the snapshot are left out.
            max_exact_labels: Above this number, labels are approximated.
        """
        index = PositionIndex(self.points)
        column = {c: i for i, c in enumerate(request.class_numbers)} | {
            NONE_OF_THESE: NONE_OF_THESE
        }
        # In the order they were given: the error estimate needs it.
        known = [(p, column[c]) for p, c in request.labels if p in index]
        at = index.rows_of(p for p, _ in known)
        labels = torch.tensor([c for _, c in known], dtype=torch.int64)
        units = self._join_guesses(self.units, self.guesses, request.class_numbers)
        guessers = 0 if self.guesses is None else self.guesses.shape[1]
        blank = ExactModel.for_unit_rows(len(request.class_numbers), guessers=guessers)
        annotations = [
            (index.row_of(p), column[c], who)
            for p, c, who in request.annotations
            if p in index and c in column
        ]
        learner = ExactLearner(
            units,
            blank,
            max_exact_labels=max_exact_labels,
            annotations=Annotations.from_rows(annotations) if annotations else None,
        )
        confirmed = torch.tensor(request.confirmed, dtype=torch.int64)
        return ExactLabelFit(
            units,
            index,
            learner,
            learner.fit(at, labels),
            at,
            labels,
            torch.tensor(request.class_numbers),
            ~torch.isin(self.points[at], confirmed),
        )

    @staticmethod
    def _join_guesses(
        units: Tensor, guesses: Tensor | None, class_numbers: Sequence[int]
    ) -> Tensor:
        """Return unit rows with the guesses about these classes, (n, d + G·C).

        A class that was added later has no guesses.
        """
        if guesses is None:
            return units
        arranged_guesses = ExactSnapshot._arrange_guesses(guesses, class_numbers)
        return torch.cat([units, arranged_guesses.flatten(1).to(units.dtype)], 1)

    @staticmethod
    def _arrange_guesses(guesses: Tensor, class_numbers: Sequence[int]) -> Tensor:
        """Return the guesses (n, G, C) about these classes; later ones have none."""
        known = guesses.shape[2]
        blocks = [
            guesses[:, :, c] if c < known else torch.zeros_like(guesses[:, :, 0])
            for c in class_numbers
        ]
        return torch.stack(blocks, 2)


def _describe_sources(fit: ExactLabelFit) -> tuple[SourceFacts, ...]:
    """Return how often each annotator is right, and what each confuses."""
    found, annotations = fit.learner.source_estimates, fit.learner.annotations
    if found is None or annotations is None:
        return ()
    facts, numbers = [], fit.class_numbers.tolist()
    for i, (who, row) in enumerate(found.by_name(annotations.names).items()):
        shares = found.confusion[i].clone().fill_diagonal_(0.0)
        values, flat = shares.flatten().topk(min(MAX_CONFUSIONS, shares.numel()))
        confusions = tuple(
            (numbers[at // len(shares)], numbers[at % len(shares)], round(share, 3))
            for share, at in zip(values.tolist(), flat.tolist(), strict=True)
            if share >= MIN_CONFUSION_SHARE and row.labels >= MIN_CONFUSION_LABELS
        )
        accuracy, low, high = (round(x, 4) for x in (row.accuracy, row.low, row.high))
        facts.append(SourceFacts(who, row.labels, accuracy, low, high, confusions))
    return tuple(facts)
