"""What the network thinks of the pool after every answer, and why.

Read off the belief, without training.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from labelahead.acquisition import Acquisition
from labelahead.gp.calibration import gaussian_class_probabilities, leading_probability
from labelahead.inference.network import outputs_to_probabilities
from labelahead.inference.pool_posterior import PoolPosterior
from labelahead.server.snapshot import Snapshot
from labelahead.strategies import find_strategy
from labelahead.strategies.base import Strategy

__all__ = ["LabelEffect", "PageModel"]

MAX_ITEMS_SHOWN = 6  # items that an explanation names
MAX_ANSWERS_TRIED = 12  # answers that an explanation tries, the likeliest first
SHORTLIST_ITEMS = 256  # candidates that an answer moves at once


def _is_identity(class_mapping: Sequence[int | None], first: int = 0) -> bool:
    """Whether every class counts as itself."""
    return all(now == c for c, now in enumerate(class_mapping, first))


@dataclass(frozen=True)
class LabelEffect:
    """What a label of one item would do to the predictions of the other unlabelled items.

    changes: predictions that change class, by answer, the likeliest answer first; (class,
    probability, count). all_answers: whether every class is among them. variance_share: by how much
    of itself the sum of their predictive variances falls, whatever the answer.
    """

    changes: tuple[tuple[int, float, int], ...]
    all_answers: bool
    variance_share: float

    def sentence(self, names: Sequence[str]) -> str:
        """Say it in words. names: of the classes."""
        (label, _, count), others = self.changes[0], self.changes[1:]
        if count:
            return f"If it is “{names[label]}”, as predicted, {_change_class(count)}."
        surprise = max(others, key=lambda row: row[2], default=(label, 0.0, 0))
        fall = _percent(self.variance_share)
        gain = (
            "Its label makes the other predictions more certain: the sum of their variances "
            f"falls by {fall}."
        )
        if surprise[2]:
            other, p, count = surprise
            return (
                f"If it is “{names[label]}”, as predicted, no other prediction changes class. "
                f"If it is “{names[other]}” ({_percent(p)}), {_change_class(count)}. {gain}"
            )
        answer = (
            "No answer"
            if self.all_answers
            else f"None of the {len(self.changes)} likeliest answers"
        )
        return f"{answer} changes the class of another prediction. {gain}"


def _change_class(count: int) -> str:
    return (
        "1 other prediction changes class"
        if count == 1
        else f"{count:,} other predictions change class"
    )


def _percent(share: float) -> str:
    if share < 0.01:
        return "less than 1 %"
    return "more than 99 %" if share > 0.99 else f"{100 * share:.0f} %"


@dataclass(frozen=True, eq=False)
class PageModel:
    """A snapshot and the belief that every answer since has moved. An immutable value.

    strategy, criterion: who chooses, and what it scores candidates by at these labels. counts_as:
    of each class that was there when it began, as in `LabelState`.
    """

    snapshot: Snapshot
    pool_posterior: PoolPosterior
    strategy: Strategy
    acquisition: str | Acquisition
    class_mapping: tuple[int | None, ...] = ()

    @classmethod
    def from_snapshot(
        cls,
        snapshot: Snapshot,
        labels: Mapping[int, int],
        classes: int,
        class_mapping: tuple[int | None, ...] = (),
    ) -> "PageModel":
        """That of a snapshot, given these labels."""
        strategy = find_strategy(snapshot.strategy)
        pool_posterior = snapshot.build_posterior(labels, classes, class_mapping)
        return cls(
            snapshot,
            pool_posterior,
            strategy,
            strategy.choose_acquisition(labels.values()),
            class_mapping,
        )

    def with_labels(self, labels: Mapping[int, int], classes: int) -> "PageModel":
        """The opinion that knows exactly these labels."""
        pool_posterior, acquisition = (
            self.pool_posterior.with_labels(labels, classes),
            self.strategy.choose_acquisition(labels.values()),
        )
        return replace(self, pool_posterior=pool_posterior, acquisition=acquisition)

    def build_shortlist(self) -> "PageModel | None":
        """That of the best candidates alone, which an answer moves in a few milliseconds whatever
        the pool's size.

        None where the kernel has several rows a point, or nothing is left to ask.
        """
        if self.pool_posterior.posterior.width != 1 or not len(self.pool_posterior.view.candidates):
            return None
        return replace(
            self,
            pool_posterior=self.pool_posterior.build_shortlist(self.acquisition, SHORTLIST_ITEMS),
        )

    def has_same_classes(self, class_mapping: Sequence[int | None]) -> bool:
        """Whether classes stand as when it began; those that are new since count as themselves."""
        begun = len(self.class_mapping)
        return list(self.class_mapping) == list(class_mapping[:begun]) and _is_identity(
            class_mapping[begun:], begun
        )

    @property
    def has_labels(self) -> bool:
        """Whether it knows any label; before that a guess means nothing."""
        return bool(self.snapshot.round or self.pool_posterior.labels)

    def best_score(self) -> float:
        """The best candidate's score; 0 where nothing is left."""
        return (
            float(self.pool_posterior.scores(self.acquisition).max())
            if len(self.pool_posterior.view.candidates)
            else 0.0
        )

    def choose_best(self, without: Collection[int] = ()) -> tuple[int, float] | None:
        """The position to ask for next and its score, leaving some out; None: nothing is left."""
        return self.pool_posterior.best(self.acquisition, without)

    def rank_next(self, n: int, without: Collection[int] = ()) -> list[int]:
        """The next few after the best: likely to be asked for soon."""
        ranked = self.pool_posterior.rank_candidates(self.acquisition, n + len(without) + 1)
        return [p for p in ranked if p not in without][:n]

    def list_certain(
        self, least: float, without: Collection[int] = ()
    ) -> list[tuple[int, int, float]]:
        """(position, class, probability) of items whose class is at least so probable, the surest
        first.
        """
        sure, best = self.confidence, self.pool_posterior.predicted_classes
        order = torch.sort(sure, descending=True, stable=True).indices[: int((sure >= least).sum())]
        rows = zip(
            self.pool_posterior.points[order].tolist(),
            best[order].tolist(),
            sure[order].tolist(),
            strict=True,
        )
        return [row for row in rows if row[0] not in without]

    def count_changes_from(self, before: "PageModel") -> int:
        """How many items in play have changed their class since."""
        return int(
            (self.pool_posterior.predicted_classes != before.pool_posterior.predicted_classes).sum()
        )

    def predict_classes(self, position: int, n: int = 5) -> list[tuple[int, float]]:
        """The likeliest classes of an item with their probabilities; nothing if not in play."""
        if position not in self.pool_posterior or not self.has_labels:
            return []
        p, label = self.predict_proba(self.pool_posterior.rows_of([position]))[0].topk(
            min(n, self.pool_posterior.classes)
        )
        return [(int(c), float(q)) for c, q in zip(label, p, strict=True)]

    def predict_proba(self, places: Tensor) -> Tensor:
        """(q, C) how likely each class is at (q,) places.

        The exact learner knows how far off its labels are when left out, and says so; a trained
        network's outputs have seen them.
        """
        if self.snapshot.units is None:
            # Trained on just these labels, the network speaks for itself; with answers since, its
            # linearisation does.
            trained = bool(self.snapshot.round) and self.pool_posterior.has_labels(
                self.snapshot.labels, self.pool_posterior.classes
            )
            return outputs_to_probabilities(
                (self.pool_posterior.start if trained else self.pool_posterior.posterior).mean[
                    places
                ],
                "squared",
            )
        post, there = self.pool_posterior.posterior, self._active_classes
        variance = self._variance_scale * post.variance()[places].clamp_min(1e-9 * post.scale)
        predict_proba = gaussian_class_probabilities(post.mean[places][:, there], variance)
        return predict_proba.new_zeros(len(places), self.pool_posterior.classes).index_copy_(
            1, there, predict_proba
        )

    @cached_property
    def _active_classes(self) -> Tensor:
        """Classes that are neither merged into others nor removed.

        Those that are new since are there.
        """
        begun = len(self.class_mapping)
        there = [
            c
            for c in range(self.pool_posterior.classes)
            if c >= begun or self.class_mapping[c] == c
        ]
        return torch.tensor(there, device=self.pool_posterior.points.device)

    @cached_property
    def scoring_pairs(self) -> int:
        """Pairs of a candidate and a point that scores sum over: what moving it costs."""
        return len(self.pool_posterior.view.candidates) * len(self.pool_posterior.view.evaluation)

    @cached_property
    def _variance_scale(self) -> float:
        return float(self.snapshot.facts.get("spread") or self.pool_posterior.posterior.amplitude())

    @cached_property
    def confidence(self) -> Tensor:
        """(n,) how likely the leading class is the right one, of every item in play."""
        if self.snapshot.units is None:
            return self.pool_posterior.probabilities.amax(1)
        post = self.pool_posterior.posterior
        mean = (
            post.mean
            if len(self._active_classes) == self.pool_posterior.classes
            else post.mean[:, self._active_classes]
        )
        return leading_probability(
            mean, self._variance_scale * post.variance().clamp_min(1e-9 * post.scale)
        )

    def explain(self, position: int) -> dict[str, Any]:
        """What each answer would change, whom most, and which labels speak for the guess.

        All of it is read off the posterior's column of this item. effect: a `LabelEffect`, None
        where the item has a label, or nothing is predicted yet.
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
        # (LA-12): every answer moves item x by k(x,x')/u times its surprise at x'.
        u = post.variance()[i] + post.noise
        push = (post.covariance_columns([i])[:, 0].double() / u)[left]
        for j, (answer, _) in enumerate(now):
            surprise = one_hot(mean.new_tensor(answer).long(), pool_posterior.classes) - mean[i]
            then = (mean[left] + push[:, None] * surprise).argmax(1)
            reasons["if"].append((answer, int((then != before).sum())))
            if j == 0:
                reasons["affected"] = self._find_affected(
                    left, before, then, push.abs() * float(surprise.norm())
                )
        there = set(
            self._active_classes.tolist()
        )  # nobody can answer with a class that was merged or removed
        rows = zip(now, reasons["if"], strict=True)
        changes = tuple((answer, p, count) for (answer, p), (_, count) in rows if answer in there)
        # A label takes k(x,x')²/u off the variance at x.
        share = float((push.square() * u).sum() / post.variance()[left].sum().clamp_min(1e-300))
        if changes and len(left):
            reasons["effect"] = LabelEffect(changes, len(changes) == len(there), min(share, 1.0))
        return reasons

    def _find_affected(
        self, left: Tensor, before: Tensor, then: Tensor, shift: Tensor
    ) -> list[tuple[int, int, int, float]]:
        """(position, class before, class then, shift).

        Those that change class first, then by how far they move.
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
        """(position, class, weight): what each label adds to f_lin of that class, and what each
        takes off it.

        f_lin(x) = f(x) + Σᵢ Θ(x,xᵢ) αᵢ with α = (Θ(X,X) + σI)⁻¹ (Y − f(X)). The most first; but of
        those that add, the class's own labels before others, which add by being unlike x. An item
        is no witness of itself.
        """
        post = self.pool_posterior.posterior
        theta, (at, targets) = self.pool_posterior.start.covariance.prior, post.all_labels()
        column = theta.evaluate_at(theta.rows(at.new_tensor([i])), at)[0]
        weight = column * post.weights()[:, label]
        points, itself = self.pool_posterior.points[at].tolist(), int(self.pool_posterior.points[i])
        every = zip(points, targets.argmax(1).tolist(), weight.tolist(), strict=True)
        rows = [row for row in every if row[0] != itself]
        adding = sorted((r for r in rows if r[2] > 0), key=lambda r: (r[1] != label, -r[2]))
        return adding[:MAX_ITEMS_SHOWN], sorted((r for r in rows if r[2] < 0), key=lambda r: r[2])[
            :MAX_ITEMS_SHOWN
        ]
