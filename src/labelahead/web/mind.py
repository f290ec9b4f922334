"""What the network thinks of the pool, moved by every answer: milliseconds, no training.

A `Snapshot` is what a training hands over: outputs and kernel of the items in play. A `Mind` is the
posterior on it given every answer so far, and what can be read off it. Positions are those of the
data set, here as everywhere.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelahead.acquisition import ACQUISITIONS, View, view
from labelahead.acquisition.probability import probabilities
from labelahead.checks import targets as one_hot
from labelahead.errors import InputError
from labelahead.linalg import cholesky, solve_factored
from labelahead.posterior import Posterior, prior

__all__ = ["Mind", "Snapshot", "load_snapshot", "save_snapshot"]

SHOWN = 6  # items that an explanation names
HYPOTHESES = 12  # answers that an explanation tries, the likeliest first


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a training leaves: the network's outputs and kernel at the items in play.

    outputs are on the scale of one-hot targets: probabilities after cross-entropy. Exactly one of
    kernel (n, n) and features (n, k) is there; both are of scalar kind, so that a class that turns
    up later is one more column.
    """

    round: int  # 0: before any training
    points: Tensor  # (n,) positions
    outputs: Tensor  # (n, C)
    kernel: Tensor | None
    features: Tensor | None
    labels: Mapping[int, int]  # what it was trained on
    noise: float = 1e-3
    strategy: str = "flip"
    evaluation: int | None = 1000
    facts: Mapping[str, Any] = field(default_factory=dict)  # accuracy, seconds, map, second look


def save_snapshot(found: Snapshot, path: Path) -> None:
    """In one step."""
    partial = path.with_suffix(f".{os.getpid()}.partial")  # a killed server's process may go on
    state = {
        "round": found.round, "points": found.points, "outputs": found.outputs,
        "kernel": found.kernel, "features": found.features, "labels": dict(found.labels),
        "noise": found.noise, "strategy": found.strategy, "evaluation": found.evaluation,
        "facts": dict(found.facts),
    }  # fmt: skip
    try:
        torch.save(state, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_snapshot(path: Path) -> Snapshot:
    """As it was saved; nothing but tensors and plain values is read."""
    return Snapshot(**torch.load(path, map_location="cpu", weights_only=True))


class Mind:
    """The posterior of a snapshot given labels. An immutable value: `told` returns a new one."""

    def __init__(
        self, snapshot: Snapshot, classes: int, labels: Mapping[int, int] | None = None
    ) -> None:
        self.snapshot, self.classes = snapshot, max(classes, snapshot.outputs.shape[1])
        self.place = {int(p): i for i, p in enumerate(snapshot.points.tolist())}
        self.labels: dict[int, int] = {}
        self.view: View = self._fresh(self._known(labels or {}))

    def _known(self, labels: Mapping[int, int]) -> dict[int, int]:
        """Labels of items in play; the others wait for the next training."""
        return {p: c for p, c in labels.items() if p in self.place}

    def _prior(self) -> Posterior:
        s = self.snapshot
        more = self.classes - s.outputs.shape[1]
        # A class that the network has not heard of yet: nothing speaks for it, f = 0.
        outputs = torch.nn.functional.pad(s.outputs, (0, more)) if more else s.outputs
        found = {"kernel": s.kernel} if s.kernel is not None else {"features": s.features}
        return prior(outputs, **found, noise=s.noise)

    def _fresh(self, labels: dict[int, int]) -> View:
        post = self._prior()
        if labels:
            at = torch.tensor([self.place[p] for p in labels])
            post = post.condition(
                at, one_hot(torch.tensor(list(labels.values())), len(at), self.classes)
            )
        self.labels = labels
        left = (~post.is_labelled).nonzero().squeeze(1)
        if not len(left):  # all are labelled: nothing to ask for, but labels may still be corrected
            return View(post, left, left, None, hold=True)
        limit = self.snapshot.evaluation
        return view(post, left, left if limit is None else left[:limit], hold=True)

    def told(self, labels: Mapping[int, int], classes: int | None = None) -> "Mind":
        """The mind that knows exactly these labels.

        Labels that only add to what it knows are conditioned on; one that was changed or taken back
        means to begin again from the prior, which costs tens of milliseconds.
        """
        known, count = self._known(labels), max(classes or 0, self.classes)
        new = {p: c for p, c in known.items() if p not in self.labels}
        kept = all(known.get(p) == c for p, c in self.labels.items())
        other = object.__new__(Mind)
        other.snapshot, other.place, other.classes = self.snapshot, self.place, count
        if count != self.classes or not kept:
            other.view = other._fresh(known)
            return other
        other.labels, other.view = {**self.labels, **new}, self.view
        if new:
            at = [self.place[p] for p in new]
            answers = one_hot(torch.tensor(list(new.values())), len(at), count)
            other.view = self.view.condition(at, answers)
        return other

    def knows(self, labels: Mapping[int, int], classes: int, snapshot: Snapshot) -> bool:
        """Whether it is of that snapshot, and given exactly these labels."""
        same = self.snapshot is snapshot and self.classes == max(classes, snapshot.outputs.shape[1])
        return same and self.labels == self._known(labels)

    @property
    def posterior(self) -> Posterior:
        """At the snapshot's points."""
        return self.view.posterior

    @cached_property
    def guesses(self) -> Tensor:
        """(n,) the likeliest class of every item in play."""
        return self.posterior.mean.argmax(1)

    @cached_property
    def probabilities(self) -> Tensor:
        """(n, C) of every item in play."""
        return probabilities(self.posterior.mean.T.contiguous(), "simplex", 0).T.contiguous()

    @cached_property
    def scores(self) -> Tensor:
        """(m,) how much a label of each candidate matters."""
        return ACQUISITIONS[self.snapshot.strategy](self.view, None)

    def best(self, without: Collection[int] = ()) -> tuple[int, float] | None:
        """The position to ask for next and its score, leaving some out; None: nothing is left."""
        if len(self.view.candidates) == 0:
            return None
        scores = self.scores
        first = int(scores.argmax())
        position = int(self.snapshot.points[self.view.candidates[first]])
        if position not in without:
            return position, float(scores[first])
        order = torch.sort(scores, descending=True, stable=True).indices.tolist()
        for i in order:
            position = int(self.snapshot.points[self.view.candidates[i]])
            if position not in without:
                return position, float(scores[i])
        return None

    def runners_up(self, n: int, without: Collection[int] = ()) -> list[int]:
        """The next few after the best: likely to be asked for soon."""
        count = min(len(self.view.candidates), n + len(without) + 1)
        order = self.scores.topk(count).indices if count else torch.zeros(0, dtype=torch.int64)
        found = self.snapshot.points[self.view.candidates[order]].tolist()
        return [p for p in found if p not in without][:n]

    def changed_from(self, before: "Mind") -> int:
        """How many items in play have changed their mind since."""
        return int((self.guesses != before.guesses).sum())

    def guess(self, position: int, n: int = 5) -> list[tuple[int, float]]:
        """The likeliest classes of an item with their probabilities; nothing if not in play."""
        if position not in self.place or (self.snapshot.round == 0 and not self.labels):
            return []
        p, label = self.probabilities[self.place[position]].topk(min(n, self.classes))
        return [(int(c), float(q)) for c, q in zip(label, p, strict=True)]

    def why(self, position: int) -> dict[str, Any]:
        """What each answer would change, whom most, and which labels speak for the guess.

        All of it is read off the posterior's column of this item.
        """
        if position not in self.place:
            raise InputError(f"item {position} is not in play now; it may be after a training")
        i = self.place[position]
        now = self.guess(position, HYPOTHESES)
        found: dict[str, Any] = {"now": now, "if": [], "affected": [], "because": []}
        if now and len(self.labels):
            found["because"] = self._because(i, now[0][0])
        if bool(self.posterior.is_labelled[i]) or not now:
            return found
        left = self.view.candidates[self.view.candidates != i]
        before, mean = self.guesses[left], self.posterior.mean
        # (LA-12): every answer moves item x by k(x,x')/u times its surprise at x'.
        column = self.posterior.columns([i])[:, 0].double()
        push = (column / (self.posterior.variance()[i] + self.posterior.noise))[left]
        for j, (answer, _) in enumerate(now):
            surprise = one_hot(torch.tensor([answer]), 1, self.classes)[0] - mean[i]
            then = (mean[left] + push[:, None] * surprise).argmax(1)
            found["if"].append((answer, int((then != before).sum())))
            if j == 0:
                shift = push.abs() * float(surprise.norm())
                most = shift.topk(min(SHOWN, len(left))).indices
                points = self.snapshot.points[left[most]].tolist()
                found["affected"] = [
                    (p, int(before[k]), int(then[k]), float(shift[k]))
                    for p, k in zip(points, most.tolist(), strict=True)
                ]
        return found

    def _because(self, i: int, label: int) -> list[tuple[int, int, float]]:
        """(position, class, weight): what each label adds to f_lin of that class, the most first.

        f_lin(x) = f(x) + Σᵢ Θ(x,xᵢ) αᵢ with α = (Θ(X,X) + σI)⁻¹ (Y − f(X)).
        """
        theta, at = self.posterior.covariance.prior, self.posterior.labelled
        column = theta.lift(theta.rows(torch.tensor([i])), at)[0]
        weight = column * self._alpha[:, label]
        best = weight.topk(min(SHOWN, len(at))).indices.tolist()
        points = self.snapshot.points[at].tolist()
        return [
            (points[j], int(self.posterior.targets[j].argmax()), float(weight[j]))
            for j in best
            if float(weight[j]) > 0
        ]

    @cached_property
    def _alpha(self) -> Tensor:
        """(L, C) what each labelled item pushes with."""
        post = self.posterior
        theta, at = post.covariance.prior, post.labelled
        system = theta.lift(theta.rows(at), at).clone()
        system.diagonal().add_(post.noise + post.jitter)
        lower, _ = cholesky(system, scale=post.scale, what="the kernel of the labelled items")
        return solve_factored(lower, post.targets - post.outputs[at])
