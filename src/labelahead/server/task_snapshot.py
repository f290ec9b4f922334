"""The snapshot of the exact learner for several classes at once, numbers and ratings."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labelahead.data.positions import PositionIndex
from labelahead.inference.exact import ExactLearner, FittedExactModel
from labelahead.inference.exact_model import ExactModel
from labelahead.inference.mixture import MAX_SELECTION_LABELS, mixture_kernel
from labelahead.inference.pool_posterior import PoolPosterior, PosteriorOptions
from labelahead.server.snapshot import FitFacts, Snapshot, TaskPredictions, TrainingRequest
from labelahead.server.task_review import find_suspects
from labelahead.tasks import LeaveOneOut, Task, TaskState, find_task

__all__ = ["TaskLabelFit", "TaskSnapshot"]

ERROR_ESTIMATE_ITEMS = 1000  # unlabelled items used to estimate the error


@dataclass(frozen=True, eq=False)
class TaskLabelFit:
    """The exact learner, fitted on answers about items of a snapshot."""

    units: Tensor  # (n, d) of all items of the snapshot
    index: PositionIndex  # rows of these items
    learner: ExactLearner
    fitted: FittedExactModel
    at: Tensor  # (L,) rows
    codes: Tensor  # (L,) of the answers

    @property
    def model(self) -> ExactModel:
        """The fitted model."""
        return self.fitted.kernel_model

    def predict(self, positions: Tensor) -> TaskPredictions:
        """Return what the task predicts for items (q,) of the snapshot."""
        rows = self.index.rows_of(positions.tolist())
        return TaskPredictions(positions, self.model.predict_answers_units(self.units[rows]))


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskSnapshot(Snapshot):
    """Snapshot of the exact learner for a task.

    Attributes:
        task: What labels are. Posteriors of a page have all answers of its journal: `with_task`.
        units: (n, d) normalised embeddings.
        weights: The kernel mixes functions of their cosines with these weights.
        own_noise: Noise set by the user, instead of the noise selected with the weights.
        offset: (D,) prior mean of the outputs.
        state: `TaskState.pack` of the last fit; None before it: there are no predictions.
        alpha: (n, D) α of the labels, the starting point of the solver.
        test_points: (t,) positions of the test items.
        test_units: (t, d).
    """

    task: Task
    units: Tensor
    weights: tuple[float, ...]
    own_noise: float | None = None
    offset: Tensor
    state: Tensor | None = None
    alpha: Tensor | None = None
    test_points: Tensor
    test_units: Tensor

    @property
    def classes(self) -> int:
        """Number of outputs D."""
        return len(self.task.outputs)

    @property
    def task_state(self) -> TaskState | None:
        """How means and variances become predictions; None before a fit."""
        return None if self.state is None else TaskState.unpack(self.state, self.classes)

    def with_task(self, task: Task, labels: Mapping[int, int]) -> "TaskSnapshot":
        """Return the snapshot for the task with all present answers and outputs.

        Without a fit of these outputs, the offset is that of the labels.
        """
        if self.state is not None and task.outputs == self.task.outputs:
            return replace(self, task=task)
        offset = task.prior_mean(task.targets(list(labels.values())))
        return replace(self, task=task, offset=offset, state=None, alpha=None)

    def build_posterior(
        self, labels: Mapping[int, int], classes: int = 0, class_mapping: Sequence[int | None] = ()
    ) -> PoolPosterior:
        """Build the posterior of all items given these answers."""
        return PoolPosterior.from_kernel(
            self.points,
            self.offset.expand(len(self.points), self.classes).clone(),
            {"kernel": mixture_kernel(self.units, self.weights)},
            self.noise,
            labels,
            PosteriorOptions(
                evaluation=self.evaluation,
                cache_cross_covariance=True,
                max_exact_labels=MAX_SELECTION_LABELS,
                task=self.task,
            ),
            initial_weights=self.alpha,
        )

    def refresh(self, request: TrainingRequest) -> "TaskSnapshot":
        """Return the snapshot after these answers, with a newly selected kernel."""
        task = request.task or self.task
        if not request.round:
            return self.with_task(task, dict(request.labels))
        began = time.perf_counter()
        fit = self._fit(request, max_exact_labels=MAX_SELECTION_LABELS)
        seconds = time.perf_counter() - began
        alpha = fit.model.alpha.new_zeros((len(self.points), len(task.outputs)))
        alpha[fit.at] = fit.model.alpha
        return replace(
            self,
            task=task,
            round=request.round,
            labels=dict(request.labels),
            noise=self.own_noise or fit.fitted.noise,
            weights=fit.fitted.mixture.weights,
            offset=fit.model.offset.cpu(),
            state=fit.model.task_state.cpu(),
            alpha=alpha,
            fit_facts=self._describe_fit(fit, request, seconds),
        )

    def _describe_fit(
        self, fit: TaskLabelFit, request: TrainingRequest, seconds: float
    ) -> FitFacts:
        """Test the fit, estimate its error, and find the labels that it contradicts."""
        at, codes, learner, model = fit.at, fit.codes, fit.learner, fit.model
        rest = torch.ones(len(self.points), dtype=torch.bool).index_fill_(0, at, False)
        rest = rest[: self.pool_facts.random_points].nonzero().squeeze(1)[:ERROR_ESTIMATE_ITEMS]
        mean, residual = learner.leave_one_out_predictions(at, codes)
        state = model.get_task_state()
        variance = model.leave_one_out_variance().cpu()
        evidence = LeaveOneOut(mean, variance, state.noise, mean - residual)
        others = self._task_of(request).predict(evidence.mean, evidence.variance, state)
        return FitFacts(
            len(at),
            seconds,
            forecast=learner.forecast_error(at, codes, rest) if len(rest) else None,
            measures=self._measure(fit, request),
            suspects=find_suspects(
                self._task_of(request), others, self.points[at].tolist(), codes.tolist()
            ),
        )

    def _measure(self, fit: TaskLabelFit, request: TrainingRequest) -> dict[str, float]:
        """Return the measures of the task on the test items; empty without any."""
        answers = dict(request.test_answers)
        kept = [i for i, p in enumerate(self.test_points.tolist()) if p in answers]
        if not kept:
            return {}
        # A task of its own: answers about test items are none of the session.
        task = find_task(**self._task_of(request).describe())
        codes = task.parse_all(answers[p] for p in self.test_points[kept].tolist())
        prediction = fit.model.predict_answers_units(self.test_units[kept])
        return task.measure(prediction, [code for code in codes if code is not None])

    def _task_of(self, request: TrainingRequest) -> Task:
        return request.task or self.task

    def fit_labels(self, request: TrainingRequest) -> TaskLabelFit:
        """Fit the answers with a newly selected kernel, as a `Learner` does."""
        return self._fit(request)

    def _fit(self, request: TrainingRequest, max_exact_labels: int | None = None) -> TaskLabelFit:
        """Fit the answers from scratch; those about items outside the snapshot are left out."""
        index, task = PositionIndex(self.points), self._task_of(request)
        known = [(p, code) for p, code in request.labels if p in index]
        at = index.rows_of(p for p, _ in known)
        codes = torch.tensor([code for _, code in known], dtype=torch.int64)
        blank = ExactModel(torch.zeros(0), len(task.outputs), task=task)
        learner = ExactLearner(self.units, blank, max_exact_labels=max_exact_labels)
        return TaskLabelFit(self.units, index, learner, learner.fit(at, codes), at, codes)

    def with_positions(self, positions: Tensor) -> "TaskSnapshot":
        """Return the snapshot of a part of a data set, with positions in the data set."""
        made = super().with_positions(positions)
        assert isinstance(made, TaskSnapshot)
        return replace(made, test_points=positions[self.test_points])

    def predict_proba(
        self, pool_posterior: PoolPosterior, rows: Tensor, active_classes: Tensor
    ) -> Tensor:
        """Return no class: a task has predictions of its own (`TaskPageModel.prediction`)."""
        return torch.zeros((len(rows), 0), dtype=torch.float64)

    def confidence(self, pool_posterior: PoolPosterior, active_classes: Tensor) -> Tensor:
        """Return 0 for all items: nothing can be confirmed in bulk."""
        return torch.zeros(len(pool_posterior.points), dtype=torch.float64)
