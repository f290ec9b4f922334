"""The snapshot of the exact learner: new labels refresh it in milliseconds, without training."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from labelahead.data.positions import PositionIndex
from labelahead.gp.calibration import gaussian_class_probabilities, leading_probability
from labelahead.inference.exact import (
    MAX_SELECTION_LABELS,
    ExactLearner,
    ExactModel,
    FittedExactModel,
    mixture_kernel,
)
from labelahead.inference.pool_posterior import PoolPosterior, PosteriorOptions
from labelahead.inference.trust import MIN_LABELS_TO_QUERY
from labelahead.server.snapshot import (
    FitFacts,
    LeaveOneOutFacts,
    PoolPredictions,
    Snapshot,
    TrainingRequest,
)

__all__ = ["ERROR_ESTIMATE_ITEMS", "ExactLabelFit", "ExactSnapshot"]

ERROR_ESTIMATE_ITEMS = 1000  # unlabelled items used to estimate the error
MIN_RELATIVE_VARIANCE = 1e-9  # of the prior


@dataclass(frozen=True, eq=False)
class ExactLabelFit:
    """The exact learner, fitted on labels of a snapshot's items.

    Its outputs are the classes `class_numbers`.
    """

    units: Tensor  # (n, d) of all items of the snapshot
    index: PositionIndex  # rows of these items
    learner: ExactLearner
    learnt: FittedExactModel
    at: Tensor  # (L,) rows
    labels: Tensor  # (L,) indices into `class_numbers`
    class_numbers: Tensor  # (C,) class numbers of the page
    votes: Tensor  # (L,) bool: not bulk-confirmed

    @property
    def model(self) -> ExactModel:
        """The fitted model."""
        return self.learnt.kernel_model

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
        trust: (G,) in each guesser.
    """

    units: Tensor
    weights: tuple[float, ...]
    class_count: int = 2
    test: tuple[Tensor, Tensor] | None = None
    own_noise: float | None = None
    alpha: Tensor | None = None
    guesses: Tensor | None = None
    test_guesses: Tensor | None = None
    trust: tuple[float, ...] = ()

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return self.class_count

    def build_posterior(
        self, labels: Mapping[int, int], classes: int, class_mapping: Sequence[int | None] = ()
    ) -> PoolPosterior:
        """Build the posterior of all items given these labels, from a uniform prior mean."""
        alpha = self.alpha
        if alpha is not None and classes > self.classes:
            alpha = pad(alpha, (0, classes - self.classes))
        return PoolPosterior.from_kernel(
            self.points,
            self._make_prior_mean(class_mapping, len(labels)),
            {"kernel": mixture_kernel(self.units, self.weights)},
            self.noise,
            labels,
            PosteriorOptions(
                evaluation=self.evaluation,
                cache_cross_covariance=True,
                max_exact_labels=MAX_SELECTION_LABELS,
            ),
            classes=classes,
            initial_weights=alpha,
        )

    def _make_prior_mean(self, class_mapping: Sequence[int | None], labels: int) -> Tensor:
        """Return (n, C), uniform over the classes that are neither merged nor removed.

        After `MIN_LABELS_TO_QUERY` labels it includes the guesses.
        """
        gone = [c for c, now in enumerate(class_mapping[: self.classes]) if now != c]
        start = torch.full(
            (len(self.points), self.classes),
            1 / max(self.classes - len(gone), 1),
            dtype=torch.float64,
        )
        start[:, gone] = 0
        if self.guesses is not None and labels >= MIN_LABELS_TO_QUERY:
            trust = torch.tensor(self.trust, dtype=torch.float64)
            said = torch.einsum("ngc,g->nc", self.guesses.double(), trust)
            shared = [c for c in range(min(said.shape[1], self.classes)) if c not in gone]
            start[:, shared] += said[:, shared]
        return start

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
        return replace(
            self,
            round=request.round,
            class_count=classes,
            labels=dict(request.labels),
            noise=self.own_noise or fit.learnt.noise,
            weights=fit.learnt.mixture.weights,
            alpha=alpha,
            trust=tuple(fit.model.trust.tolist()),
            fit_facts=self._describe_fit(fit, request, seconds),
        )

    def _describe_fit(
        self, fit: ExactLabelFit, request: TrainingRequest, seconds: float
    ) -> FitFacts:
        """Test the fit, and estimate its error."""
        at, labels, learner = fit.at, fit.labels, fit.learner
        accuracy = None
        if self.test is not None:
            units, truth = self.test
            units = self._join_guesses(units, self.test_guesses, fit.class_numbers.tolist())
            predicted = fit.class_numbers[fit.learnt.model(units).argmax(1)]
            accuracy = float((predicted == truth).double().mean())
        outputs, residuals = learner.leave_one_out_predictions(at, labels)
        outputs = outputs.new_zeros((len(at), max(request.classes, 2))).index_copy_(
            1, fit.class_numbers, outputs
        )
        leave_one_out = LeaveOneOutFacts.from_predictions(
            outputs, residuals, self.points[at], fit.class_numbers[labels], request.random_sample
        )
        rest = torch.ones(len(self.points), dtype=torch.bool).index_fill_(0, at, False)
        rest = rest[: self.pool_facts.random_points].nonzero().squeeze(1)[:ERROR_ESTIMATE_ITEMS]
        forecast = learner.forecast_error(at, labels, rest, votes=fit.votes) if len(rest) else None
        return FitFacts(len(at), seconds, accuracy, leave_one_out=leave_one_out, forecast=forecast)

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
        column = {c: i for i, c in enumerate(request.class_numbers)}
        # In the order they were given: the error estimate needs it.
        known = [(p, column[c]) for p, c in request.labels if p in index]
        at = index.rows_of(p for p, _ in known)
        labels = torch.tensor([c for _, c in known], dtype=torch.int64)
        units = self._join_guesses(self.units, self.guesses, request.class_numbers)
        blank = ExactModel.for_unit_rows(len(column), guessers=len(self.trust))
        learner = ExactLearner(units, blank, max_exact_labels=max_exact_labels)
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
        known = guesses.shape[2]
        blocks = [
            guesses[:, :, c] if c < known else torch.zeros_like(guesses[:, :, 0])
            for c in class_numbers
        ]
        return torch.cat([units, torch.stack(blocks, 2).flatten(1).to(units.dtype)], 1)
