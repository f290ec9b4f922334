"""Predictions of the pool after every answer, and their explanation, without training."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from labelahead.acquisition import Acquisition
from labelahead.inference.pool_posterior import PoolPosterior
from labelahead.learner.export import NOVELTY_QUANTILE
from labelahead.server.label_state import LabelState
from labelahead.server.snapshot import Snapshot
from labelahead.strategies import find_strategy
from labelahead.strategies.base import Strategy

__all__ = ["LabelEffect", "PageModel", "format_percent"]

MAX_ITEMS_SHOWN = 6  # in an explanation
MAX_ANSWERS_TRIED = 12  # by an explanation, the most probable first
MAX_OUTPUT_SUM = 0.5  # of an item that resembles those of no class
MIN_LABELS_FOR_NOVELTY = 10
SHORTLIST_ITEMS = 256  # candidates that are updated at once after an answer


def _is_identity(class_mapping: Sequence[int | None], first: int = 0) -> bool:
    """Return whether every class is mapped to itself."""
    return all(now == c for c, now in enumerate(class_mapping, first))


@dataclass(frozen=True)
class LabelEffect:
    """Effect of labelling one item on the predictions of the other unlabelled items.

    Attributes:
        changes: (class, probability, number of predictions that change class) for each answer, the
            most probable answer first.
        all_answers: Whether every class is among them.
        variance_share: Relative reduction of the sum of the predictive variances.
        main_change: (class before, class after, number of predictions) of the most frequent change
            if the answer is the predicted class; None without any.
    """

    changes: tuple[tuple[int, float, int], ...]
    all_answers: bool
    variance_share: float
    main_change: tuple[int, int, int] | None = None

    def sentence(self, names: Sequence[str]) -> str:
        """Describe the effect in words. names: of the classes."""
        (label, _, count), others = self.changes[0], self.changes[1:]
        if count:
            most = ""
            if self.main_change is not None and count > 1:
                before, after, some = self.main_change
                share = "all" if some == count else f"{some:,}"
                most = f", {share} of them from “{names[before]}” to “{names[after]}”"
            return f"If it is “{names[label]}”, as predicted, {_change_class(count)}{most}."
        surprise = max(others, key=lambda row: row[2], default=(label, 0.0, 0))
        fall = format_percent(self.variance_share)
        gain = (
            "Its label makes the other predictions more certain: the sum of their variances "
            f"decreases by {fall}."
        )
        if surprise[2]:
            other, p, count = surprise
            return (
                f"If it is “{names[label]}”, as predicted, no other prediction changes class. "
                f"If it is “{names[other]}” ({format_percent(p)}), {_change_class(count)}. {gain}"
            )
        answer = (
            "No answer"
            if self.all_answers
            else f"None of the {len(self.changes)} most probable answers"
        )
        return f"{answer} changes the class of another prediction. {gain}"


def _find_main_change(before: Tensor, after: Tensor, classes: int) -> tuple[int, int, int] | None:
    """Return (class before, class after, number of items) of the most frequent change."""
    changed = before != after
    if not bool(changed.any()):
        return None
    counts = torch.bincount((before * classes + after)[changed])
    most = int(counts.argmax())
    return *divmod(most, classes), int(counts[most])


def _change_class(count: int) -> str:
    return (
        "1 other prediction changes class"
        if count == 1
        else f"{count:,} other predictions change class"
    )


def format_percent(share: float) -> str:
    """Write a share as a percentage."""
    if share < 0.01:
        return "less than 1 %"
    return "more than 99 %" if share > 0.99 else f"{100 * share:.0f} %"


@dataclass(frozen=True, eq=False)
class PageModel:
    """A snapshot and its posterior, conditioned on all labels since; immutable.

    separate_query_posterior: scores the candidates if items are queried without guesses.
    strategy, acquisition: the strategy, and its acquisition function for these labels.
    class_mapping: of the classes that existed at the beginning, as in `LabelState`.
    """

    snapshot: Snapshot
    pool_posterior: PoolPosterior
    strategy: Strategy
    acquisition: str | Acquisition
    class_mapping: tuple[int | None, ...] = ()
    separate_query_posterior: PoolPosterior | None = None

    @classmethod
    def from_snapshot(
        cls,
        snapshot: Snapshot,
        labels: Mapping[int, int],
        classes: int,
        class_mapping: tuple[int | None, ...] = (),
    ) -> "PageModel":
        """Build the model of a snapshot, given these labels."""
        strategy = find_strategy(snapshot.strategy)
        pool_posterior = snapshot.build_posterior(labels, classes, class_mapping)
        return cls(
            snapshot,
            pool_posterior,
            strategy,
            strategy.choose_acquisition(labels.values()),
            class_mapping,
            snapshot.build_query_posterior(labels, classes, class_mapping),
        )

    @property
    def query_posterior(self) -> PoolPosterior:
        """The posterior that scores the candidates."""
        return self.separate_query_posterior or self.pool_posterior

    def with_labels(self, labels: Mapping[int, int], classes: int) -> "PageModel":
        """Return the model conditioned on exactly these labels."""
        pool_posterior, acquisition = (
            self.pool_posterior.with_labels(labels, classes),
            self.strategy.choose_acquisition(labels.values()),
        )
        separate = self.separate_query_posterior
        return replace(
            self,
            pool_posterior=pool_posterior,
            acquisition=acquisition,
            separate_query_posterior=separate and separate.with_labels(labels, classes),
        )

    def build_shortlist(self) -> "PageModel | None":
        """Return the model of the best candidates only, which an answer updates in milliseconds.

        None if the kernel has several rows per item, or no candidate is left.
        """
        if self.pool_posterior.posterior.width != 1 or not len(self.pool_posterior.view.candidates):
            return None
        scores, separate = (
            self.query_posterior.scores(self.acquisition),
            self.separate_query_posterior,
        )
        return replace(
            self,
            pool_posterior=self.pool_posterior.build_shortlist(scores, SHORTLIST_ITEMS),
            separate_query_posterior=separate and separate.build_shortlist(scores, SHORTLIST_ITEMS),
        )

    def has_same_outputs(self, label_state: LabelState) -> bool:
        """Return whether the labels are of the same classes as when the model was built."""
        return self.has_same_classes(label_state.class_mapping)

    def with_state(self, label_state: LabelState) -> "PageModel":
        """Return the model conditioned on exactly the present labels and classes."""
        labels, classes = label_state.labels, len(label_state.classes)
        if self.has_same_outputs(label_state):
            return self.with_labels(labels, classes)
        return PageModel.from_snapshot(self.snapshot, labels, classes, label_state.class_mapping)

    def describe_prediction(self, position: int) -> dict[str, Any] | None:
        """Return the predicted answer of an item to a task; None for classes."""
        return None

    def has_same_classes(self, class_mapping: Sequence[int | None]) -> bool:
        """Return whether no class was merged or removed since the model was built."""
        first_class_count = len(self.class_mapping)
        return list(self.class_mapping) == list(class_mapping[:first_class_count]) and _is_identity(
            class_mapping[first_class_count:], first_class_count
        )

    @property
    def has_labels(self) -> bool:
        """Return whether the model has labels; without any, predictions are meaningless."""
        return bool(self.snapshot.round or self.pool_posterior.labels)

    def best_score(self) -> float:
        """Return the score of the best candidate, or 0 without candidates."""
        return (
            float(self.query_posterior.scores(self.acquisition).max())
            if len(self.pool_posterior.view.candidates)
            else 0.0
        )

    def choose_best(self, without: Collection[int] = ()) -> tuple[int, float] | None:
        """Return position and score of the best candidate, or None. without: positions to skip."""
        return self.query_posterior.best(self.acquisition, without)

    def rank_next(self, n: int, without: Collection[int] = ()) -> list[int]:
        """Return the next best candidates, which are likely to be queried soon."""
        ranked = self.query_posterior.rank_candidates(self.acquisition, n + len(without) + 1)
        return [p for p in ranked if p not in without][:n]

    def list_certain(
        self, min_probability: float, without: Collection[int] = ()
    ) -> list[tuple[int, int, float]]:
        """Return (position, class, probability) of confident predictions, most confident first.

        least: minimum probability. without: positions to skip.
        """
        sure, best = self.confidence, self.pool_posterior.predicted_classes
        order = torch.sort(sure, descending=True, stable=True).indices[
            : int((sure >= min_probability).sum())
        ]
        rows = zip(
            self.pool_posterior.points[order].tolist(),
            best[order].tolist(),
            sure[order].tolist(),
            strict=True,
        )
        return [row for row in rows if row[0] not in without]

    def count_changes_from(self, before: "PageModel") -> int | None:
        """Return how many predictions have another class than in `before`."""
        return int(
            (self.pool_posterior.predicted_classes != before.pool_posterior.predicted_classes).sum()
        )

    def predict_classes(self, position: int, n: int = 5) -> list[tuple[int, float]]:
        """Return the most probable classes of an item; empty if the item is not in the model."""
        if position not in self.pool_posterior or not self.has_labels:
            return []
        p, label = self.predict_proba(self.pool_posterior.rows_of([position]))[0].topk(
            min(n, self.pool_posterior.classes)
        )
        return [(int(c), float(q)) for c, q in zip(label, p, strict=True)]

    def predict_proba(self, rows: Tensor) -> Tensor:
        """Return (q, C) class probabilities at (q,) rows."""
        return self.snapshot.predict_proba(self.pool_posterior, rows, self._active_classes)

    @cached_property
    def _active_classes(self) -> Tensor:
        """Return the classes that are neither merged into others nor removed."""
        first_class_count = len(self.class_mapping)
        current_classes = [
            c
            for c in range(self.pool_posterior.classes)
            if c >= first_class_count or self.class_mapping[c] == c
        ]
        return torch.tensor(current_classes, device=self.pool_posterior.points.device)

    @cached_property
    def scoring_pairs(self) -> int:
        """Return the number of (candidate, evaluation item) pairs: the cost of an update."""
        return len(self.pool_posterior.view.candidates) * len(self.pool_posterior.view.evaluation)

    @cached_property
    def confidence(self) -> Tensor:
        """Return (n,) probabilities of the predicted class of all items."""
        return self.snapshot.confidence(self.pool_posterior, self._active_classes)

    def list_of_no_class(self, n: int, without: Collection[int] = ()) -> list[int]:
        """Return up to n items that resemble those of no class, the most similar first.

        The outputs of an item sum to 1, and those of "none of these" to 0: the sum of the outputs
        predicts which of both an item is.
        """
        sums = self.pool_posterior.posterior.mean[:, self._active_classes].sum(1)
        count = int((sums < MAX_OUTPUT_SUM).sum())
        order = torch.sort(sums, stable=True).indices[:count]
        return [p for p in self.pool_posterior.points[order].tolist() if p not in without][:n]

    def similarities(self, position: int) -> Tensor:
        """Return the prior correlations (n,) of all items with one item: a row of the kernel."""
        start = self.pool_posterior.start
        i = self.pool_posterior.rows_of([position])
        column, variance = start.covariance_columns(i), start.variance()
        if start.width != 1:  # of all outputs together
            column = column.diagonal(dim1=1, dim2=3).sum(2)
            variance = variance.diagonal(dim1=1, dim2=2).sum(1)
        scale = (variance * variance[i]).clamp_min(1e-300).sqrt()
        return column[:, 0].double() / scale

    def unlike_labelled(self) -> Tensor:
        """Return which items (n,) are unlike anything labelled, as exported models say it.

        The posterior variance exceeds the 95 % quantile of the leave-one-out variances of the
        labelled items: v s/(s − v) for a label with the posterior variance v and the noise s.
        """
        post = self.pool_posterior.posterior
        none = torch.zeros(len(self.pool_posterior.points), dtype=torch.bool)
        if post.width != 1 or len(self.pool_posterior.labels) < MIN_LABELS_FOR_NOVELTY:
            return none
        variance, (at, _) = post.variance(), post.all_labels()
        noise = post.noise_of_labels().double()
        left_out = variance[at] * noise / (noise - variance[at]).clamp_min(1e-300)
        prior = self.pool_posterior.start.variance()
        left_out = torch.minimum(left_out, prior[at])
        return (variance > torch.quantile(left_out, NOVELTY_QUANTILE)).cpu()

    def explain(self, position: int) -> dict[str, Any]:
        """Explain a query: effect of each answer, most affected items, and contributing labels.

        Everything is computed from the posterior covariance with this item. "effect" is a
        `LabelEffect`, or None if the item has a label or nothing is predicted yet.
        """
        pool_posterior = self.pool_posterior
        i, post = int(pool_posterior.rows_of([position])), pool_posterior.posterior
        now = self.predict_classes(position, MAX_ANSWERS_TRIED)
        reasons: dict[str, Any] = {
            "now": now,
            "if": [],
            "affected": [],
            "because": [],
            "against": [],
            "effect": None,
        }
        if now and pool_posterior.labels:
            reasons["because"], reasons["against"] = self._find_contributions(i, now[0][0])
        if bool(post.is_labelled[i]) or not now:
            return reasons
        left = pool_posterior.view.candidates[pool_posterior.view.candidates != i]
        before, mean = pool_posterior.predicted_classes[left], post.mean
        # (LA-12): an answer changes the mean at x by k(x,x')/u times its residual at x'.
        u = post.variance()[i] + post.noise
        push = (post.covariance_columns([i])[:, 0].double() / u)[left]
        main_change = None
        for j, (answer, _) in enumerate(now):
            surprise = one_hot(mean.new_tensor(answer).long(), pool_posterior.classes) - mean[i]
            then = (mean[left] + push[:, None] * surprise).argmax(1)
            reasons["if"].append((answer, int((then != before).sum())))
            if j == 0:
                main_change = _find_main_change(before, then, pool_posterior.classes)
                reasons["affected"] = self._find_affected(
                    left, before, then, push.abs() * float(surprise.norm())
                )
        active_classes = set(
            self._active_classes.tolist()
        )  # merged and removed classes are not possible answers
        rows = zip(now, reasons["if"], strict=True)
        changes = tuple(
            (answer, p, count) for (answer, p), (_, count) in rows if answer in active_classes
        )
        # A label reduces the variance at x by k(x,x')²/u.
        share = float((push.square() * u).sum() / post.variance()[left].sum().clamp_min(1e-300))
        if changes and len(left):
            every = len(changes) == len(active_classes)
            reasons["effect"] = LabelEffect(changes, every, min(share, 1.0), main_change)
        return reasons

    def _find_affected(
        self, left: Tensor, before: Tensor, then: Tensor, shift: Tensor
    ) -> list[tuple[int, int, int, float]]:
        """Return (position, class before, class after, shift) of the most affected items.

        Items that change class come first, then the largest shifts.
        """
        order = shift + (then != before) * (1 + shift.max()) if len(left) else shift
        most = order.topk(min(MAX_ITEMS_SHOWN, len(left))).indices
        points = self.pool_posterior.points[left[most]].tolist()
        return [
            (p, int(before[k]), int(then[k]), float(shift[k]))
            for p, k in zip(points, most.tolist(), strict=True)
        ]

    def _find_contributions(
        self, i: int, label: int
    ) -> tuple[list[tuple[int, int, float]], list[tuple[int, int, float]]]:
        """Return (position, class, weight) of the labels for and against a class.

        f_lin(x) = f(x) + Σᵢ Θ(x,xᵢ) αᵢ with α = (Θ(X,X) + σI)⁻¹ (Y − f(X)); the weight of a label is
        its term for the class. The largest come first; positive labels of the class itself come
        before those of other classes, which contribute by being unlike x. The item's own label is
        left out.
        """
        post, labels = self.pool_posterior.posterior, self.pool_posterior.labels
        theta, (at, _) = self.pool_posterior.start.covariance.prior, post.all_labels()
        column = theta.evaluate_at(theta.rows(at.new_tensor([i])), at)[0]
        weight = column * post.weights()[:, label]
        points, itself = self.pool_posterior.points[at].tolist(), int(self.pool_posterior.points[i])
        pairs = zip(points, weight.tolist(), strict=True)
        rows = [(p, labels[p], w) for p, w in pairs if p != itself]
        adding = sorted((r for r in rows if r[2] > 0), key=lambda r: (r[1] != label, -r[2]))
        return adding[:MAX_ITEMS_SHOWN], sorted((r for r in rows if r[2] < 0), key=lambda r: r[2])[
            :MAX_ITEMS_SHOWN
        ]
