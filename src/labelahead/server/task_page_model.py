"""The page model of a task: predictions of sets, numbers and ratings after every answer."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from labelahead.server.label_state import LabelState
from labelahead.server.page_model import MAX_ITEMS_SHOWN, PageModel, format_percent
from labelahead.server.snapshot import Snapshot
from labelahead.server.task_display import describe_predicted
from labelahead.server.task_snapshot import TaskSnapshot
from labelahead.strategies import find_strategy
from labelahead.tasks import MultilabelPrediction, NumberPrediction, Prediction, RatingPrediction

__all__ = ["TaskPageModel", "build_page_model"]


def build_page_model(snapshot: Snapshot, label_state: LabelState) -> PageModel:
    """Return the page model of a snapshot, given the present labels."""
    if isinstance(snapshot, TaskSnapshot):
        return TaskPageModel.from_state(snapshot, label_state)
    return PageModel.from_snapshot(
        snapshot, label_state.labels, len(label_state.classes), label_state.class_mapping
    )


@dataclass(frozen=True, eq=False)
class TaskPageModel(PageModel):
    """A snapshot of a task and its posterior, conditioned on all answers since; immutable."""

    @classmethod
    def from_state(cls, snapshot: TaskSnapshot, label_state: LabelState) -> "TaskPageModel":
        """Build the model of a snapshot, given the present answers."""
        assert label_state.task is not None
        current = snapshot.with_task(label_state.task, label_state.labels)
        strategy, labels = find_strategy(snapshot.strategy), label_state.labels
        acquisition = strategy.choose_acquisition(labels.values(), current.task)
        return cls(current, current.build_posterior(labels), strategy, acquisition)

    @property
    def task_snapshot(self) -> TaskSnapshot:
        """The snapshot."""
        assert isinstance(self.snapshot, TaskSnapshot)
        return self.snapshot

    def with_state(self, label_state: LabelState) -> "TaskPageModel":
        """Return the model conditioned on exactly the present answers."""
        snapshot, labels = self.task_snapshot, label_state.labels
        if not self.has_same_outputs(label_state) or snapshot.state is None:
            return TaskPageModel.from_state(snapshot, label_state)
        return replace(
            self,
            pool_posterior=self.pool_posterior.with_labels(labels),
            acquisition=self.strategy.choose_acquisition(labels.values(), snapshot.task),
        )

    def has_same_outputs(self, label_state: LabelState) -> bool:
        """Return whether no class was added since the model was built."""
        return self.task_snapshot.task is label_state.task

    @property
    def has_labels(self) -> bool:
        """Return whether there is a prediction: after the first fit of these outputs."""
        return self.task_snapshot.state is not None

    @cached_property
    def prediction(self) -> Prediction | None:
        """What the task predicts for all items of the model, along `pool_posterior.points`."""
        state = self.task_snapshot.task_state
        if state is None:
            return None
        post = self.pool_posterior.posterior
        return self.task_snapshot.task.predict(post.mean.cpu(), post.variance().cpu(), state)

    def describe_prediction(self, position: int) -> dict[str, Any] | None:
        """Return the prediction of an item as the page shows it; None if there is none."""
        state = self.task_snapshot.task_state
        if state is None or position not in self.pool_posterior:
            return None
        post, row = self.pool_posterior.posterior, self.pool_posterior.rows_of([position])
        mean, variance = post.mean[row].cpu(), post.variance()[row].cpu()
        return describe_predicted(self.task_snapshot.task.predict(mean, variance, state))

    def predict_levels(
        self, positions: Sequence[int]
    ) -> tuple[list[int | None], list[float | None]]:
        """Return the predicted levels of a rating and their probabilities; None for other tasks."""
        found = self.prediction
        if not isinstance(found, RatingPrediction):
            return [None] * len(positions), [None] * len(positions)
        rows = self.pool_posterior.rows_of(positions)
        chosen = found.chosen[rows]
        sure = found.probabilities[rows].gather(1, chosen[:, None])[:, 0]
        return chosen.tolist(), [round(p, 3) for p in sure.tolist()]

    def count_predicted(self) -> list[int]:
        """Return how many items are predicted to have each class or level; empty for numbers."""
        found = self.prediction
        if isinstance(found, MultilabelPrediction):
            return [int(n) for n in found.chosen.sum(0).tolist()]
        if isinstance(found, RatingPrediction):
            return torch.bincount(found.chosen, minlength=len(found.names)).tolist()
        return []

    def count_changes_from(self, before: PageModel) -> int | None:
        """Return how many predicted answers differ from those of `before`; None for numbers."""
        now, then = (
            self.prediction,
            before.prediction if isinstance(before, TaskPageModel) else None,
        )
        if now is None or then is None or isinstance(now, NumberPrediction):
            return None
        assert isinstance(now, MultilabelPrediction | RatingPrediction)
        assert isinstance(then, MultilabelPrediction | RatingPrediction)
        if now.chosen.shape != then.chosen.shape:
            return None
        differs = now.chosen != then.chosen
        return int((differs.any(1) if differs.dim() > 1 else differs).sum())

    def predict_classes(self, position: int, n: int = 5) -> list[tuple[int, float]]:
        """Return nothing: see `describe_prediction`."""
        return []

    def list_certain(
        self, min_probability: float, without: Collection[int] = ()
    ) -> list[tuple[int, int, float]]:
        """Return nothing: only single classes are confirmed in bulk."""
        return []

    def list_of_no_class(self, n: int, without: Collection[int] = ()) -> list[int]:
        """Return nothing: tasks have answers of their own for it."""
        return []

    def explain(self, position: int) -> dict[str, Any]:
        """Explain a query: what its answer would make more certain, and the labels most like it.

        In the result, "effect" is a sentence or None, and "similar" has (position, code, weight).
        """
        pool_posterior = self.pool_posterior
        i, post = int(pool_posterior.rows_of([position])), pool_posterior.posterior
        reasons: dict[str, Any] = {"effect": None, "similar": self._find_similar(i)}
        if bool(post.is_labelled[i]):
            return reasons
        left = pool_posterior.view.candidates[pool_posterior.view.candidates != i]
        u = post.variance()[i] + post.noise
        fall = (post.covariance_columns([i])[:, 0].double().square() / u)[left]
        if len(left):
            share = float(fall.sum() / post.variance()[left].sum().clamp_min(1e-300))
            reasons["effect"] = (
                "Its label makes the other predictions more certain: the sum of their variances "
                f"decreases by {format_percent(min(share, 1.0))}."
            )
        return reasons

    def _find_similar(self, i: int) -> list[tuple[int, int, float]]:
        """Return (position, code, kernel) of the labels most similar to the item of a row."""
        post, labels = self.pool_posterior.posterior, self.pool_posterior.labels
        theta, (at, _) = self.pool_posterior.start.covariance.prior, post.all_labels()
        if not len(at):
            return []
        column = theta.evaluate_at(theta.rows(at.new_tensor([i])), at)[0]
        order: Sequence[int] = torch.sort(column, descending=True, stable=True).indices.tolist()
        points = self.pool_posterior.points[at].tolist()
        rows = [(points[k], labels[points[k]], float(column[k])) for k in order if int(at[k]) != i]
        return rows[:MAX_ITEMS_SHOWN]
