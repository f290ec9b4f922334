"""Kernel regression on frozen features: a model without training, exact after every label.

`labelahead.inference.mixture` defines the kernel and its choice, `labelahead.inference.exact_model`
the model. `ExactLearner` fits it to labels: to those of several sources by their reliability, and
above a number of labels approximately. No matrix of size pool × pool is formed.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelahead.batching import Samples
from labelahead.data.class_targets import make_class_targets
from labelahead.data.dataset import NONE_OF_THESE
from labelahead.errors import InputError
from labelahead.gp.class_quality import ClassReport, estimate_class_report
from labelahead.gp.nystrom import approximate_posterior, evenly_spaced
from labelahead.gp.posterior import NystromLabels, Posterior, prior
from labelahead.inference.exact_model import (
    BLOCK_NUMBERS,
    MIN_VARIANCE,
    PREDICT_BATCH_ROWS,
    ExactModel,
)
from labelahead.inference.forecast import ErrorForecast, forecast_error, forecast_task_error
from labelahead.inference.mixture import (
    DEFAULT_SEARCH,
    Mixture,
    MixtureSearch,
    choose_mixture,
    cosine_matrix,
    fill_missing,
    find_canonical_order,
    mix_kernels,
    mixture_kernel,
    solve_leave_one_out,
)
from labelahead.inference.network import FittedModel
from labelahead.inference.pool_posterior import Observation, PoolPosterior, PosteriorOptions
from labelahead.inference.sources import (
    Annotations,
    EffectiveLabels,
    ItemLabels,
    SourceAccuracy,
    SourceEstimates,
    average_labels,
    combine_sources,
    estimate_sources,
)
from labelahead.inference.trust import fit_sharpness, fit_trust, sharpen
from labelahead.models.training import Training, TrainingResult
from labelahead.models.training.forward import apply_dropout
from labelahead.models.training.objective import MakeObjective
from labelahead.tasks import LeaveOneOut, Prediction, Task

__all__ = [
    "ExactLearner",
    "FittedExactModel",
    "predict_answers",
    "predict_proba",
    "wrap_fitted_model",
]

# The mixture is chosen so often while the reliability of sources is learnt, with so many steps each.
SOURCE_ROUNDS = 2
SOURCE_STEPS = 2
# Mixture, noise and offset are chosen by the leave-one-out errors that calibrate a task. With four
# parameters 90 % intervals of make_friedman1 and diabetes hold about their level from 20 labels on
# (python -m research.benchmarks.tasks).
CHOSEN_PARAMETER_COUNT = 4


@dataclass(frozen=True, eq=False)
class FittedExactModel(FittedModel):
    """An `ExactModel` with the data set that it predicts."""

    inputs: Tensor

    forms_kernel: ClassVar[bool] = False
    baseline: ClassVar[str] = "linearised"  # `start` does not depend on labels
    needs_training: ClassVar[bool] = False

    @property
    def observations(self) -> Mapping[int, Observation]:
        """position -> what its labels amount to, if they have several sources."""
        return self.kernel_model.observations

    @property
    def kernel_model(self) -> ExactModel:
        """The model."""
        assert isinstance(self.model, ExactModel)
        return self.model

    @property
    def guessers(self) -> int:
        """Number of guessers whose guesses the inputs hold."""
        return len(self.kernel_model.trust)

    @property
    def mixture(self) -> Mixture:
        """The kernel mixture."""
        return self.kernel_model.get_mixture()

    @property
    def noise(self) -> float:
        """The noise, chosen together with the mixture."""
        return self.mixture.noise

    def predict_proba(self, at: Tensor, classes: int | None = None) -> Tensor:
        """Return calibrated class probabilities (q, C)."""
        model = self.kernel_model
        parts = [model.predict_proba(self.inputs[some], classes) for some in self._split(at)]
        return torch.cat(parts)

    def predict_answers(self, at: Tensor) -> Prediction:
        """Return what the task predicts for items (q,)."""
        model = self.kernel_model
        units = torch.cat([model.normalise_rows(self.inputs[some]) for some in self._split(at)])
        return model.predict_answers_units(units)

    def _split(self, at: Tensor) -> tuple[Tensor, ...]:
        """Split positions (q,) into blocks whose unit rows fit into memory.

        Blocks are multiples of the batches of predictions, which stay the same.
        """
        width = max(1, self.inputs[:1].numel())
        batches = max(1, BLOCK_NUMBERS // (width * PREDICT_BATCH_ROWS))
        return torch.split(at, batches * PREDICT_BATCH_ROWS)

    def unit_rows(self, at: Tensor) -> Tensor:
        """Return the unit rows (q, d), the only copy of these inputs that is made."""
        model, blocks = self.kernel_model, self._split(at)
        first = model.normalise_rows(self.inputs[blocks[0]])
        if len(blocks) == 1:
            return first
        units = first.new_empty((len(at), first.shape[1]))
        end = 0
        for block in blocks:
            units[end : end + len(block)] = model.normalise_rows(self.inputs[block])
            end += len(block)
        return units

    def make_learner(
        self,
        classes: int,
        network: Callable[[int], nn.Module],
        training: Training,
        objective: MakeObjective | None = None,
    ) -> "ExactLearner":
        """Return the learner of such models; network, training and objective have no effect."""
        model = self.kernel_model
        return ExactLearner(self.inputs, model.without_labels(), str(model.centre.device))

    def calibrate(self, votes: Tensor) -> None:
        """Calibrate the probabilities on some of the labels. votes: (L,) bool."""
        self.kernel_model.calibrate(votes)

    def embedding(self, at: Tensor) -> Tensor:
        """Return unit features (q, d), float64."""
        model = self.kernel_model
        return model.take_features(self.unit_rows(at)).cpu().double()

    def predict_with_dropout(self, at: Tensor, rate: float, rng: torch.Generator) -> Tensor:
        """Return outputs (q, C) after dropout on the unit features, which are normalised again."""
        parts = []
        model = self.kernel_model
        for some in torch.split(at, PREDICT_BATCH_ROWS):
            units = model.normalise_rows(self.inputs[some])
            features = model.take_features(units)
            left = F.normalize(apply_dropout(features, rate, rng), dim=1, eps=1e-30)
            parts.append(model.predict_units(torch.cat([left, units[:, features.shape[1] :]], 1)))
        return torch.cat(parts)

    @property
    def task(self) -> Task | None:
        """What the outputs mean; None: classes."""
        return self.kernel_model.task

    def start(self, outputs: Tensor, at: Tensor) -> Tensor:
        """Return the prior mean (q, C), 1/C: the posterior is conditioned on all labels.

        Items are queried as without guesses (`labelahead.inference.trust`). With a task it is the
        mean of the labels.
        """
        if self.task is not None:
            return self.kernel_model.offset.to(outputs).expand_as(outputs).clone()
        return torch.full_like(outputs, 1 / outputs.shape[1])

    def kernel_arguments(self, at: Tensor, kind: str, sketch: int | None = None) -> dict[str, Any]:
        """Return the mixture kernel, evaluated on demand. It is scalar and never sketched."""
        model = self.kernel_model
        return model.kernel_arguments(self.unit_rows(at))


@dataclass(frozen=True, eq=False)
class ExactLearner:
    """Kernel regression on the inputs (n, ...) of the whole data set.

    Args:
        inputs: (n, ...) features, rows or pixels.
        blank_model: The model without labels, which defines centring and normalisation; from
            `exact` or `ExactModel.without_labels`.
        device: Where the linear systems are solved.
        max_exact_labels: Above this number, labels are approximated (`labelahead.gp.nystrom`), so
            that memory does not grow with their square.
        mixture_search: How the kernel mixture is chosen.
        annotations: All labels of all items by source, if there are several: `fit` learns how
            reliable each source is, and weighs its labels accordingly.
    """

    inputs: Tensor
    blank_model: ExactModel
    device: str = "cpu"
    max_exact_labels: int | None = None
    mixture_search: MixtureSearch = DEFAULT_SEARCH
    annotations: Annotations | None = None
    _last_model: dict[tuple[int, ...], ExactModel] = field(
        default_factory=dict, repr=False
    )  # by labelled positions
    _last_nystrom: dict[tuple[int, ...], NystromLabels] = field(
        default_factory=dict, repr=False
    )  # by labelled positions
    # by labelled positions: targets (L, C) minus 1/C and sources of the last fit
    _last_sources: dict[tuple[int, ...], tuple[Tensor, SourceEstimates]] = field(
        default_factory=dict, repr=False
    )

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return self.blank_model.classes

    @property
    def source_estimates(self) -> SourceEstimates | None:
        """What the last fit learnt about the sources; None if all labels had the same."""
        return next((found for _, found in self._last_sources.values()), None)

    @property
    def training(self) -> Training:
        """A placeholder: nothing is trained, and the loss is the squared one."""
        return Training(start="warm")

    def network(self, seed: int) -> ExactModel:
        """Return a model without labels; the seed has no effect."""
        return self.blank_model.without_labels()

    def fit(
        self,
        labelled: Tensor,
        labels: Tensor,
        *,
        seed: int = 0,
        previous: Mapping[str, Tensor] | None = None,
        into: nn.Module | None = None,
    ) -> FittedExactModel:
        """Fit all labels (L,) exactly: choose the mixture and solve one linear system.

        Labels are class numbers, or `NONE_OF_THESE`: the targets of such an item are 0. With a task
        they are the codes of its answers.
        `seed` and `previous` matter for networks only.
        """
        began = time.perf_counter()
        model = (
            (into if isinstance(into, ExactModel) else self.network(seed)).to(self.device).eval()
        )
        trained = None
        if len(labelled) and model.task is not None:
            trained = self._fit_task(model, labelled, labels, began)
        elif len(labelled):
            support = model.normalise_rows(self.inputs[labelled].to(self.device))
            targets = make_class_targets(labels.to(self.device), self.classes) - 1 / self.classes
            mixture, targets, model.label_noise = self._weigh_sources(
                labelled, labels, model.take_features(support), targets
            )
            if model.guess_width:
                model.trust, model.sharpness = self._fit_trust(model, support, targets, mixture)
                targets = targets + 1 / self.classes - model.prior_mean(support)
            model.mixture = torch.tensor(mixture, dtype=torch.float64, device=targets.device)
            alpha = self._solve(labelled, model, model.take_features(support), targets)
            model.support = support
            model.alpha = alpha
            model.variance_scale = alpha.new_zeros(0)
            model.observations = self._describe_observations(labelled, labels, model)
            # (K + D)α = Y − m, so Kα = Y − m − Dα
            predictions = targets - model._scale_by_noise(alpha)
            loss = float((predictions - targets).square().sum(1).mean())
            if model.guess_width:
                predictions = predictions + model.prior_mean(support)
            hits = (predictions.argmax(1) == labels.to(alpha.device))[
                (labels >= 0).to(alpha.device)
            ]
            right = float(hits.double().mean()) if len(hits) else 1.0
            trained = TrainingResult(loss, right, 0, 0.0, (), time.perf_counter() - began)
        self._last_model.clear()
        self._last_model[tuple(labelled.tolist())] = model
        return FittedExactModel(model, self.inputs, "squared", trained, time.perf_counter() - began)

    def _fit_task(
        self, model: ExactModel, labelled: Tensor, labels: Tensor, began: float
    ) -> TrainingResult:
        """Fit the answers (L,) of a task, by their codes."""
        task = model.task
        assert task is not None
        support = model.normalise_rows(self.inputs[labelled].to(self.device))
        targets = task.targets(labels.cpu())
        model.offset = task.prior_mean(targets).to(support.device)
        centred = targets.to(support.device) - model.offset
        scale = task.target_scale(targets).to(centred)
        mixture = self._choose_mixture(support, centred / scale)
        model.mixture = torch.tensor(mixture, dtype=torch.float64, device=centred.device)
        evidence, model.alpha = self._solve_task(labelled, model, support, centred)
        model.support = support
        moved = evidence._replace(
            mean=(evidence.mean + model.offset).cpu(),
            variance=evidence.variance.cpu(),
            targets=targets,
            chosen=CHOSEN_PARAMETER_COUNT,
        )
        model.task_state = task.calibrate(moved).pack().to(centred.device)
        residual = (model.noise * model.alpha / scale).square()  # Y − m − Kα = σα
        total = (centred.nan_to_num(0.0) / scale).square().sum().clamp_min(1e-300)
        loss = float(residual.sum(1).mean())
        explained = float((1 - residual.sum() / total).clamp(0.0, 1.0))
        return TrainingResult(loss, explained, 0, 0.0, (), time.perf_counter() - began)

    def _solve_task(
        self, labelled: Tensor, model: ExactModel, support: Tensor, centred: Tensor
    ) -> tuple[LeaveOneOut, Tensor]:
        """Return the leave-one-out predictions of targets (L, D) minus the offset, and α (L, D)."""
        if not self._is_exact(len(support)):
            filled = self._fill_approximately(model, support, centred)
            alpha = self._solve(labelled, model, support, filled)
            known = self._last_nystrom[tuple(labelled.tolist())]
            mean, variance = known.leave_one_out_mean, known.leave_one_out_variance
            return LeaveOneOut(mean, variance, model.noise, centred), alpha
        self._last_nystrom.clear()
        K = mix_kernels(cosine_matrix(support), model.get_mixture().weights)
        alpha, residual, divisor = solve_leave_one_out(K, model.noise, centred)
        mean = residual + fill_missing(centred, K, alpha)
        return LeaveOneOut(mean, divisor - model.noise, model.noise, centred), alpha

    def _fill_approximately(self, model: ExactModel, support: Tensor, centred: Tensor) -> Tensor:
        """Fill missing targets (L, D) from at most `mixture_search.max_labels` complete answers."""
        if not bool(centred.isnan().any()):
            return centred
        some = evenly_spaced(len(support), self.mixture_search.max_labels).to(support.device)
        weights = model.get_mixture().weights
        K = mix_kernels(cosine_matrix(support[some]), weights)
        alpha = solve_leave_one_out(K, model.noise, centred[some])[0]
        cosines = support.double() @ support[some].double().T
        return torch.where(centred.isnan(), mix_kernels(cosines, weights) @ alpha, centred)

    def with_annotations(self, annotations: Annotations | None) -> "ExactLearner":
        """Return the learner with all labels of all items by source."""
        return replace(self, annotations=annotations)

    def source_accuracy(self) -> Mapping[str, SourceAccuracy]:
        """Return how often each source is right, by the last fit; empty without two sources."""
        found, known = self.source_estimates, self.annotations
        return {} if found is None or known is None else found.by_name(known.names)

    def estimate_accuracy(self, labelled: Tensor, labels: Tensor) -> float | None:
        """Return the share of labelled items (L,) of a class that leave-one-out predicts right.

        None if no item has a class.
        """
        right = self.leave_one_out_predictions(labelled, labels)[0].argmax(1) == labels
        right = right[labels != NONE_OF_THESE]
        return float(right.double().mean()) if len(right) else None

    def _is_exact(self, labels: int) -> bool:
        """Return whether so many labels are solved exactly."""
        return self.max_exact_labels is None or labels <= self.max_exact_labels

    def _choose_mixture(
        self, support: Tensor, targets: Tensor, label_noise: Tensor | None = None
    ) -> Mixture:
        """Choose the mixture by leave-one-out on all labels, or on evenly spaced ones."""
        some, search = find_canonical_order(support), self.mixture_search
        if not self._is_exact(len(support)):
            some = some[evenly_spaced(len(support), search.max_labels).to(support.device)]
            cosines = cosine_matrix(support[some])
        else:
            cosines = cosine_matrix(support)[some][:, some]
        noise = None if label_noise is None else label_noise[some]
        return choose_mixture(cosines, targets[some], search, noise)

    def _weigh_sources(
        self, labelled: Tensor, labels: Tensor, support: Tensor, targets: Tensor
    ) -> tuple[Mixture, Tensor, Tensor]:
        """Choose the mixture, and learn how reliable the sources of the labels are.

        Args:
            labelled: (L,) positions.
            labels: (L,) class numbers.
            support: (L, d) unit features.
            targets: (L, C) one-hot labels minus 1/C.

        Returns:
            The mixture, the targets (L, C) and the further noise of the labels: (L,), or (0,) if
            all have the same source.
        """
        self._last_sources.clear()
        given = None
        if self.annotations is not None:
            given = self.annotations.select_items(labelled.cpu(), labels.cpu())
        if given is None:
            return self._choose_mixture(support, targets), targets, targets.new_zeros(0)
        effective = average_labels(given, self.classes)
        mixture = self._choose_mixture(support, effective.targets.to(targets))
        for attempt in range(SOURCE_ROUNDS):
            if attempt:
                mixture = self._choose_mixture(support, *(x.to(targets) for x in effective))
            for _ in range(SOURCE_STEPS):
                found = self._estimate_sources(support, given, effective, mixture)
                effective = combine_sources(given, found.lapse, self.classes, mixture.noise)
        self._last_sources[tuple(labelled.tolist())] = effective.targets, found
        return mixture, effective.targets.to(targets), effective.noise.to(targets)

    def _describe_observations(
        self, labelled: Tensor, labels: Tensor, model: ExactModel
    ) -> dict[int, Observation]:
        """Return what the labels of each item amount to; empty for labels of one source."""
        if not len(model.label_noise):
            return {}
        rows = self._effective_targets(labelled, labels).tolist()
        return {
            position: Observation(label, tuple(target), noise)
            for position, label, target, noise in zip(
                labelled.tolist(), labels.tolist(), rows, model.label_noise.tolist(), strict=True
            )
        }

    def _estimate_sources(
        self, support: Tensor, given: ItemLabels, effective: EffectiveLabels, mixture: Mixture
    ) -> SourceEstimates:
        """Estimate the sources by leave-one-out on at most as many items as the mixture."""
        some = find_canonical_order(support)
        some = some[evenly_spaced(len(some), self.mixture_search.max_labels).to(some.device)]
        some = some[~given.is_none_of_these()[some.cpu()].to(some.device)]
        K = mix_kernels(cosine_matrix(support[some]), mixture.weights).cpu()
        kept = some.cpu()
        noise, targets = mixture.noise + effective.noise[kept], effective.targets[kept]
        alpha, residual, divisor = solve_leave_one_out(K, noise, targets)
        # a², up to a factor that is estimated together with the sources
        amplitude = float((targets * alpha).sum()) / targets.numel()
        variance = amplitude * (divisor - noise).clamp_min(MIN_VARIANCE)
        return estimate_sources(residual + targets + 1 / self.classes, variance, given.subset(kept))

    def _fit_trust(
        self, model: ExactModel, support: Tensor, targets: Tensor, mixture: Mixture
    ) -> tuple[Tensor, Tensor]:
        """Fit trust (G, C, C) and sharpness (G, 2) on as many labels as the mixture is chosen by."""
        some, most = (
            find_canonical_order(model.take_features(support)),
            self.mixture_search.max_labels,
        )
        if len(some) > most:
            some = some[evenly_spaced(len(some), most).to(some.device)]
        # Whether a guess names the class says nothing of an item that belongs to none.
        some = some[targets[some].amax(1) >= 0]
        cosines = cosine_matrix(model.take_features(support[some]))
        guesses = model.take_guesses(support[some])
        more = model.label_noise[some] if len(model.label_noise) else 0.0
        sharpness = fit_sharpness(targets[some], guesses)
        trust = fit_trust(
            mix_kernels(cosines, mixture.weights),
            mixture.noise + more,
            targets[some],
            sharpen(guesses, sharpness),
        )
        return trust, sharpness

    def _solve(
        self, labelled: Tensor, model: ExactModel, support: Tensor, targets: Tensor
    ) -> Tensor:
        """Return α (L, C) for the mixture and the noise of a model."""
        self._last_nystrom.clear()
        mixture = model.get_mixture()
        if self._is_exact(len(support)):
            K = mix_kernels(cosine_matrix(support), mixture.weights)
            return solve_leave_one_out(K, model.noise_of_labels, targets)[0]
        assert self.max_exact_labels is not None
        start = prior(
            torch.zeros_like(targets), mixture_kernel(support, mixture.weights), noise=mixture.noise
        )
        settled = approximate_posterior(
            start,
            torch.arange(len(support)),
            targets,
            self.max_exact_labels,
            noise=model.noise_of_labels if len(model.label_noise) else None,
        ).nystrom_labels
        assert settled is not None
        self._last_nystrom[tuple(labelled.tolist())] = settled
        return settled.weights

    def leave_one_out_predictions(
        self, labelled: Tensor, labels: Tensor, *, seed: int = 0, find_wrong_labels: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the leave-one-out predictions (L, C) and residuals (L, C) of the labelled items."""
        settled = self._last_nystrom.get(tuple(labelled.tolist()))
        model = (
            self._last_model.get(tuple(labelled.tolist()))
            or self.fit(labelled, labels).kernel_model
        )
        start = model.prior_mean(model.support).cpu()
        if model.task is not None:
            return self._leave_task_out(model, settled, labels, start)
        if settled is not None:
            mean = settled.leave_one_out_mean
            if len(model.label_noise):
                outputs = mean + start.to(mean)
                return outputs, outputs - make_class_targets(labels, self.classes).to(mean)
            return mean + start.to(mean), mean - settled.targets
        targets = self._effective_targets(labelled, labels) - start
        cosines, mixture = (
            cosine_matrix(model.take_features(model.support)).cpu(),
            model.get_mixture(),
        )
        noise = model.noise_of_labels
        noise = noise.cpu() if isinstance(noise, Tensor) else noise
        _, residual, _ = solve_leave_one_out(mix_kernels(cosines, mixture.weights), noise, targets)
        outputs = residual + targets + start
        if len(model.label_noise):  # compared with the label itself
            return outputs, outputs - make_class_targets(labels, self.classes)
        return outputs, residual

    def _leave_task_out(
        self, model: ExactModel, settled: NystromLabels | None, labels: Tensor, start: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Do `leave_one_out_predictions` for a task; residuals of missing targets are NaN."""
        assert model.task is not None
        targets = model.task.targets(labels.cpu())
        if settled is not None:
            mean = settled.leave_one_out_mean.cpu() + start
            return mean, mean - targets
        K = mix_kernels(cosine_matrix(model.support).cpu(), model.get_mixture().weights)
        alpha, residual, _ = solve_leave_one_out(K, model.noise, targets - start)
        mean = residual + fill_missing(targets - start, K, alpha) + start
        return mean, mean - targets

    def _effective_targets(self, labelled: Tensor, labels: Tensor) -> Tensor:
        """Return the targets (L, C) that the last fit of these items used."""
        known = self._last_sources.get(tuple(labelled.tolist()))
        if known is None:
            return make_class_targets(labels, self.classes)
        return known[0] + 1 / self.classes

    def forecast_error(
        self,
        labelled: Tensor,
        labels: Tensor,
        at: Tensor,
        *,
        seed: int = 0,
        votes: Tensor | None = None,
    ) -> ErrorForecast:
        """Estimate the error at items (q,), in random order, and forecast it after further labels.

        Args:
            labelled: (L,) positions.
            labels: (L,) class numbers.
            at: (q,) positions at which the error is estimated.
            seed: No effect.
            votes: (L,) bool, the labels to calibrate on (`labelahead.gp.calibration`); default:
                all.
        """
        model = self._get_last_model(labelled, labels)
        if model.task is not None:
            points = torch.cat([labelled, at])
            fitted = FittedExactModel(model, self.inputs)
            return self._forecast_task(fitted, labelled, labels, points)
        post = self._condition_at(model, labelled, labels, at)
        return forecast_error(post, torch.arange(len(labelled), len(labelled) + len(at)), votes)

    def estimate_class_report(
        self, labelled: Tensor, labels: Tensor, at: Tensor, *, votes: Tensor | None = None
    ) -> ClassReport:
        """Estimate precision, recall and F1 of every class, and the confusion matrix, at items (q,).

        Args:
            labelled: (L,) positions.
            labels: (L,) class numbers.
            at: (q,) positions.
            votes: As in `forecast_error`.

        Raises:
            InputError: The labels are not one class for each item.
        """
        model = self._get_last_model(labelled, labels)
        if model.task is not None:
            raise InputError(
                f"estimates for every class need one class per item; the task is "
                f"{model.task.name!r}: use `forecast_error`, in the measure of the task"
            )
        post = self._condition_at(model, labelled, labels, at)
        points = torch.arange(len(labelled), len(labelled) + len(at))
        return estimate_class_report(post, points, votes)

    def _get_last_model(self, labelled: Tensor, labels: Tensor) -> ExactModel:
        """Return the last model if it was fitted on these items; otherwise fit one."""
        return (
            self._last_model.get(tuple(labelled.tolist()))
            or self.fit(labelled, labels).kernel_model
        )

    def _condition_at(
        self, model: ExactModel, labelled: Tensor, labels: Tensor, at: Tensor
    ) -> Posterior:
        """Return the posterior at the labelled items and then at items (q,), given the labels."""
        fitted, points = FittedExactModel(model, self.inputs), torch.cat([labelled, at])
        start = model.prior_mean(fitted.unit_rows(points).to(self.device))
        post = prior(start, **fitted.kernel_arguments(points, "pseudo"), noise=fitted.noise)
        first = torch.arange(len(labelled))
        targets = self._effective_targets(labelled, labels)
        noise = model.noise_of_labels if len(model.label_noise) else None
        if self._is_exact(len(labelled)):
            return post.condition(first, targets, noise)
        assert self.max_exact_labels is not None
        alpha = F.pad(model.alpha, (0, 0, 0, len(at)))
        return approximate_posterior(
            post, first, targets, self.max_exact_labels, alpha, noise=noise
        )

    def _forecast_task(
        self, fitted: FittedExactModel, labelled: Tensor, labels: Tensor, points: Tensor
    ) -> ErrorForecast:
        """Do `forecast_error` for a task; points (n,) begin with the labelled ones."""
        model = fitted.kernel_model
        assert model.task is not None
        task, state = model.task, model.get_task_state()
        units = fitted.unit_rows(points).to(self.device)
        pool_posterior = PoolPosterior.from_kernel(
            points,
            model.prior_mean(units),
            model.kernel_arguments(units),
            fitted.noise,
            dict(zip(labelled.tolist(), labels.tolist(), strict=True)),
            PosteriorOptions(max_exact_labels=self.max_exact_labels, task=task),
        )
        mean, residual = self.leave_one_out_predictions(labelled, labels)
        variance = model.leave_one_out_variance().cpu()
        evidence = LeaveOneOut(mean, variance, state.noise, mean - residual)
        at = torch.arange(len(labelled), len(points))
        return forecast_task_error(pool_posterior.posterior, at, task, state, evidence)


def wrap_fitted_model(
    model: nn.Module, inputs: Tensor | Samples, loss: str = "squared"
) -> FittedModel:
    """Wrap a network that was trained elsewhere, with a data set (n, ...), as a `FittedModel`."""
    if not isinstance(model, ExactModel):
        return FittedModel(model, inputs, loss)
    if not isinstance(inputs, Tensor):
        raise InputError(
            "the exact learner compares rows of numbers; expected its inputs as one tensor (n, ...)"
        )
    return FittedExactModel(model, inputs, loss)


def predict_answers(model: nn.Module, inputs: Tensor | Samples) -> Prediction:
    """Return what the task of a fitted model predicts for inputs (n, ...)."""
    return wrap_fitted_model(model, inputs).predict_answers(torch.arange(len(inputs)))


def predict_proba(
    model: nn.Module, inputs: Tensor | Samples, loss: str = "squared", classes: int | None = None
) -> Tensor:
    """Return class probabilities by any fitted model; those of the exact learner are calibrated.

    Every command, page and file takes its probabilities from here, so that a model never gives two
    different answers.

    Args:
        model: A trained network, or an `ExactModel` with its labels.
        inputs: (n, ...) inputs of the model.
        loss: The loss that a network was trained with.
        classes: Number of classes, if the model has one output more (data with a single class).

    Returns:
        (n, C) float64 on the CPU.
    """
    return wrap_fitted_model(model, inputs, loss).predict_proba(torch.arange(len(inputs)), classes)
