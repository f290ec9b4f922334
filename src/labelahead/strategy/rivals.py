"""What the look-ahead paper (LA, Figure 1) sets itself against, short of retraining.

One gradient step instead of training, the kernel of an infinitely wide network instead of the
network's own, a Gaussian process instead of the network, and look-ahead without the block formula.
Really retraining is in `retraining`.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from labelahead.acquisition import Acquisition, mlmoc
from labelahead.posterior import prior
from labelahead.situation import Situation
from labelahead.strategy.look_ahead import MODES, PAPER, batch
from labelahead.strategy.member import Ask, Picks, Strategy, scored
from labelahead.tangent import infinite_kernel
from labelahead.train import predict

__all__ = ["RIVALS", "GaussianProcess", "InfiniteWidth", "one_step"]

CHUNK = 64  # candidates at a time
DEPTH = 3  # hidden layers of the infinitely wide network


def one_step(s: Situation, rng: torch.Generator) -> Tensor:
    """(m,) Σₓ ‖Θ(x,x') (y' − f(x'))‖₂, y' = argmax f(x'): the change by one step on x' alone.

    θ ← θ − η ∇ℓ(x', y') moves the outputs by J(x) J(x')ᵀ η (y' − f(x')) + O(η²), and η scales all
    scores alike. With the full kernel this is the step itself to first order, and exactly where
    the outputs are linear in the weights; a scalar kernel stands in for it as it does in mlmoc.
    """
    start = prior(s.start, **s.tangent, noise=s.noise)  # no label: its covariance is Θ
    first = len(s.labelled)
    here = torch.arange(first, first + len(s.candidates), device=start.outputs.device)
    there = here if s.asking.evaluation is None else here[: s.asking.evaluation]
    guess = F.one_hot(start.outputs[here].argmax(1), start.classes).to(start.outputs)
    residual, b = guess - start.outputs[here], start.width
    found = []
    for at, r in zip(torch.split(here, CHUNK), torch.split(residual, CHUNK), strict=True):
        theta = start.block(there, at).double()
        if b == 1:
            found.append(theta.abs().sum(0) * r.norm(dim=1))
        else:
            found.append(torch.einsum("xaqb,qb->qxa", theta, r).norm(dim=2).sum(1))
    return torch.cat(found)


class InfiniteWidth(Situation):
    """A situation whose kernel is that of an infinitely wide ReLU network on the flat inputs."""

    @classmethod
    def of(cls, s: Situation) -> "InfiniteWidth":
        """The same situation; seconds are counted in one place."""
        made = cls(**{f.name: getattr(s, f.name) for f in fields(s)})
        # There is one number for a pair of items, and it is never sketched.
        made.asking = replace(s.asking, kernel="pseudo", sketch=None)
        return made

    @cached_property
    def tangent(self) -> dict[str, Tensor]:
        """The limit's tangent kernel at `points`; look-ahead does not depend on its scale."""
        x = self.at_network(self.points)
        x = x if x.is_floating_point() else x.float()
        with self.timed("kernel"):
            self._require_memory(self.start)
            return {"kernel": infinite_kernel(x, depth=DEPTH)}


class GaussianProcess(InfiniteWidth):
    """The same without the network: its outputs are taken to be zero, all else is regression."""

    @cached_property
    def start(self) -> Tensor:
        """(L + m, C) zeros; the network is asked for no more than the number of classes."""
        one = predict(self.model, self.inputs[self.points[:1]])
        return one.new_zeros(len(self.points), one.shape[1])


def _seen_as(kind: type[InfiniteWidth], criterion: str | Acquisition) -> Callable[..., Picks]:
    """Look-ahead in any mode, with the situation's kernel exchanged."""

    def pick(s: Situation, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> Picks:
        other = kind.of(s)
        view, here = other.view, other.points.tolist()
        answer = None if ask is None else lambda i: ask(here[i])
        with s.timed("score"):
            found = batch(view, criterion, q, rng, mode, answer)
        return Picks(other.at(found.positions), found.scores.cpu())

    return pick


def _scored_after(
    ready: Callable[[Situation], object], score: Callable[[Situation, torch.Generator], Tensor]
) -> Callable[..., Picks]:
    """`scored`, with what the score rests on made before, so that no second counts twice."""
    chosen = scored(score)

    def pick(s: Situation, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> Picks:
        ready(s)
        return chosen(s, q, rng, mode, ask)

    return pick


RIVALS = (
    Strategy(
        "one-step",
        "studies: one gradient step on the item stands in for training; asks as mlmoc does",
        "Käding, Rodner, Freytag & Denzler 2016, Active and Continuous Exploration with Deep "
        "Neural Networks and Expected Model Output Changes",
        _scored_after(lambda s: (s.start, s.tangent), one_step),
    ),
    Strategy(
        "infinite-ntk",
        "studies: mlmoc with the kernel of an infinitely wide network, which knows of no training",
        "Borsos, Tagliasacchi & Krause 2021, Semi-supervised Batch Active Learning via Bilevel "
        "Optimization; as used in " + PAPER,
        _seen_as(InfiniteWidth, "mlmoc"),
        MODES,
    ),
    Strategy(
        "gp",
        "studies: a Gaussian process with that kernel looks ahead for itself, without the network",
        "Käding, Rodner, Freytag, Mothes, Barz & Denzler 2018, Active Learning for Regression "
        "Tasks with Expected Model Output Changes",
        # f_L and f_L₊ of (LA-13) are both the process's own means
        _seen_as(GaussianProcess, partial(mlmoc, baseline="linearised")),
        MODES,
    ),
    Strategy(
        "ntk-solve",
        "studies: asks what mlmoc asks for in mode top, by one linear system per item: slower",
        PAPER,
        _scored_after(lambda s: s.view, lambda s, rng: mlmoc(s.view, rng, method="solve")),
    ),
)
