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
from labelahead.gp.calibration import leading, likelihoods
from labelahead.inference.network import probabilities_of
from labelahead.inference.pool_posterior import PoolPosterior
from labelahead.server.snapshot import Snapshot
from labelahead.strategies import find
from labelahead.strategies.base import Strategy

__all__ = ["LabelEffect", "PageModel"]

SHOWN = 6  # items that an explanation names
HYPOTHESES = 12  # answers that an explanation tries, the likeliest first
SHORTLIST = 256  # candidates that an answer moves at once


def _whole(counts_as: Sequence[int | None], first: int = 0) -> bool:
    """Whether every class counts as itself."""
    return all(now == c for c, now in enumerate(counts_as, first))


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
    belief: PoolPosterior
    strategy: Strategy
    criterion: str | Acquisition
    counts_as: tuple[int | None, ...] = ()

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        labels: Mapping[int, int],
        classes: int,
        counts_as: tuple[int | None, ...] = (),
    ) -> "PageModel":
        """That of a snapshot, given these labels."""
        strategy = find(snapshot.strategy)
        belief = snapshot.belief(labels, classes, counts_as)
        return cls(snapshot, belief, strategy, strategy.criterion_after(labels.values()), counts_as)

    def told(self, labels: Mapping[int, int], classes: int) -> "PageModel":
        """The opinion that knows exactly these labels."""
        belief, criterion = (
            self.belief.told(labels, classes),
            self.strategy.criterion_after(labels.values()),
        )
        return replace(self, belief=belief, criterion=criterion)

    def shortened(self) -> "PageModel | None":
        """That of the best candidates alone, which an answer moves in a few milliseconds whatever
        the pool's size.

        None where the kernel has several rows a point, or nothing is left to ask.
        """
        if self.belief.posterior.width != 1 or not len(self.belief.view.candidates):
            return None
        return replace(self, belief=self.belief.shortlist(self.criterion, SHORTLIST))

    def fits(self, counts_as: Sequence[int | None]) -> bool:
        """Whether classes stand as when it began; those that are new since count as themselves."""
        begun = len(self.counts_as)
        return list(self.counts_as) == list(counts_as[:begun]) and _whole(counts_as[begun:], begun)

    @property
    def informed(self) -> bool:
        """Whether it knows any label; before that a guess means nothing."""
        return bool(self.snapshot.round or self.belief.labels)

    def gain(self) -> float:
        """The best candidate's score; 0 where nothing is left."""
        return (
            float(self.belief.scores(self.criterion).max())
            if len(self.belief.view.candidates)
            else 0.0
        )

    def best(self, without: Collection[int] = ()) -> tuple[int, float] | None:
        """The position to ask for next and its score, leaving some out; None: nothing is left."""
        return self.belief.best(self.criterion, without)

    def runners_up(self, n: int, without: Collection[int] = ()) -> list[int]:
        """The next few after the best: likely to be asked for soon."""
        ranked = self.belief.ranked(self.criterion, n + len(without) + 1)
        return [p for p in ranked if p not in without][:n]

    def surest(self, least: float, without: Collection[int] = ()) -> list[tuple[int, int, float]]:
        """(position, class, probability) of items whose class is at least so probable, the surest
        first.
        """
        sure, best = self.sure, self.belief.guesses
        order = torch.sort(sure, descending=True, stable=True).indices[: int((sure >= least).sum())]
        rows = zip(
            self.belief.points[order].tolist(),
            best[order].tolist(),
            sure[order].tolist(),
            strict=True,
        )
        return [row for row in rows if row[0] not in without]

    def changed_from(self, before: "PageModel") -> int:
        """How many items in play have changed their class since."""
        return int((self.belief.guesses != before.belief.guesses).sum())

    def guess(self, position: int, n: int = 5) -> list[tuple[int, float]]:
        """The likeliest classes of an item with their probabilities; nothing if not in play."""
        if position not in self.belief or not self.informed:
            return []
        p, label = self.chances(self.belief.places([position]))[0].topk(min(n, self.belief.classes))
        return [(int(c), float(q)) for c, q in zip(label, p, strict=True)]

    def chances(self, places: Tensor) -> Tensor:
        """(q, C) how likely each class is at (q,) places.

        The exact learner knows how far off its labels are when left out, and says so; a trained
        network's outputs have seen them.
        """
        if self.snapshot.units is None:
            # Trained on just these labels, the network speaks for itself; with answers since, its
            # linearisation does.
            trained = bool(self.snapshot.round) and self.belief.knows(
                self.snapshot.labels, self.belief.classes
            )
            return probabilities_of(
                (self.belief.start if trained else self.belief.posterior).mean[places], "squared"
            )
        post, there = self.belief.posterior, self._there
        variance = self._spread * post.variance()[places].clamp_min(1e-9 * post.scale)
        chances = likelihoods(post.mean[places][:, there], variance)
        return chances.new_zeros(len(places), self.belief.classes).index_copy_(1, there, chances)

    @cached_property
    def _there(self) -> Tensor:
        """Classes that are neither merged into others nor removed.

        Those that are new since are there.
        """
        begun = len(self.counts_as)
        there = [c for c in range(self.belief.classes) if c >= begun or self.counts_as[c] == c]
        return torch.tensor(there, device=self.belief.points.device)

    @cached_property
    def work(self) -> int:
        """Pairs of a candidate and a point that scores sum over: what moving it costs."""
        return len(self.belief.view.candidates) * len(self.belief.view.evaluation)

    @cached_property
    def _spread(self) -> float:
        return float(self.snapshot.facts.get("spread") or self.belief.posterior.amplitude())

    @cached_property
    def sure(self) -> Tensor:
        """(n,) how likely the leading class is the right one, of every item in play."""
        if self.snapshot.units is None:
            return self.belief.probabilities.amax(1)
        post = self.belief.posterior
        mean = post.mean if len(self._there) == self.belief.classes else post.mean[:, self._there]
        return leading(mean, self._spread * post.variance().clamp_min(1e-9 * post.scale))

    def why(self, position: int) -> dict[str, Any]:
        """What each answer would change, whom most, and which labels speak for the guess.

        All of it is read off the posterior's column of this item. effect: a `LabelEffect`, None
        where the item has a label, or nothing is predicted yet.
        """
        belief = self.belief
        i, post = int(belief.places([position])), belief.posterior
        now = self.guess(position, HYPOTHESES)
        reasons: dict[str, Any] = {
            "now": now,
            "if": [],
            "affected": [],
            "because": [],
            "against": [],
            "effect": None,
        }
        if now and belief.labels:
            reasons["because"], reasons["against"] = self._because(i, now[0][0])
        if bool(post.is_labelled[i]) or not now:
            return reasons
        left = belief.view.candidates[belief.view.candidates != i]
        before, mean = belief.guesses[left], post.mean
        # (LA-12): every answer moves item x by k(x,x')/u times its surprise at x'.
        u = post.variance()[i] + post.noise
        push = (post.columns([i])[:, 0].double() / u)[left]
        for j, (answer, _) in enumerate(now):
            surprise = one_hot(mean.new_tensor(answer).long(), belief.classes) - mean[i]
            then = (mean[left] + push[:, None] * surprise).argmax(1)
            reasons["if"].append((answer, int((then != before).sum())))
            if j == 0:
                reasons["affected"] = self._affected(
                    left, before, then, push.abs() * float(surprise.norm())
                )
        there = set(
            self._there.tolist()
        )  # nobody can answer with a class that was merged or removed
        rows = zip(now, reasons["if"], strict=True)
        changes = tuple((answer, p, count) for (answer, p), (_, count) in rows if answer in there)
        # A label takes k(x,x')²/u off the variance at x.
        share = float((push.square() * u).sum() / post.variance()[left].sum().clamp_min(1e-300))
        if changes and len(left):
            reasons["effect"] = LabelEffect(changes, len(changes) == len(there), min(share, 1.0))
        return reasons

    def _affected(
        self, left: Tensor, before: Tensor, then: Tensor, shift: Tensor
    ) -> list[tuple[int, int, int, float]]:
        """(position, class before, class then, shift).

        Those that change class first, then by how far they move.
        """
        order = shift + (then != before) * (1 + shift.max()) if len(left) else shift
        most = order.topk(min(SHOWN, len(left))).indices
        points = self.belief.points[left[most]].tolist()
        return [
            (p, int(before[k]), int(then[k]), float(shift[k]))
            for p, k in zip(points, most.tolist(), strict=True)
        ]

    def _because(
        self, i: int, label: int
    ) -> tuple[list[tuple[int, int, float]], list[tuple[int, int, float]]]:
        """(position, class, weight): what each label adds to f_lin of that class, and what each
        takes off it.

        f_lin(x) = f(x) + Σᵢ Θ(x,xᵢ) αᵢ with α = (Θ(X,X) + σI)⁻¹ (Y − f(X)). The most first; but of
        those that add, the class's own labels before others, which add by being unlike x. An item
        is no witness of itself.
        """
        post = self.belief.posterior
        theta, (at, targets) = self.belief.start.covariance.prior, post.told()
        column = theta.lift(theta.rows(at.new_tensor([i])), at)[0]
        weight = column * post.weights()[:, label]
        points, itself = self.belief.points[at].tolist(), int(self.belief.points[i])
        every = zip(points, targets.argmax(1).tolist(), weight.tolist(), strict=True)
        rows = [row for row in every if row[0] != itself]
        adding = sorted((r for r in rows if r[2] > 0), key=lambda r: (r[1] != label, -r[2]))
        return adding[:SHOWN], sorted((r for r in rows if r[2] < 0), key=lambda r: r[2])[:SHOWN]
