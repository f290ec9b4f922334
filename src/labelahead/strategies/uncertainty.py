"""One score an item, read off the network: its confidence, its gradient, how fast it learns."""

import torch
from torch import Tensor

from labelahead.acquisition.probability import entropy as entropy_of
from labelahead.acquisition.probability import probabilities
from labelahead.errors import InputError
from labelahead.gp.dynamics import gains, residuals, total_gradient
from labelahead.ntk import gradient_gram, norms_and_products, squared_norms
from labelahead.strategies.base import Ask, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext, scored

__all__ = ["CONFIDENCE", "DYNAMICAL", "EGL", "class_probabilities", "expected_gradient_length"]

REST = 1e-3  # probability of the classes left out, on average


def _random(
    s: QueryContext, q: int, rng: torch.Generator, mode: str, ask: Ask | None
) -> QueryBatch:
    order = torch.randperm(len(s.candidates), generator=rng)[:q]
    return QueryBatch(s.candidates[order], torch.zeros(q, dtype=torch.float64))


def class_probabilities(s: QueryContext, outputs: Tensor | None = None) -> Tensor:
    """(m, C): softmax after cross-entropy, projection onto the simplex after squared loss.

    outputs: (m, C) of other items than the candidates.
    """
    method = "softmax" if s.loss == "cross-entropy" else "simplex"
    return probabilities((s.candidate_outputs if outputs is None else outputs).double(), method)


def entropy(s: QueryContext, rng: torch.Generator) -> Tensor:
    """(m,) −Σ p log p."""
    return entropy_of(class_probabilities(s))


def least_confidence(s: QueryContext, rng: torch.Generator) -> Tensor:
    """(m,) −max p."""
    return -class_probabilities(s).amax(1)


def margin(s: QueryContext, rng: torch.Generator) -> Tensor:
    """Negative gap of the top two; of raw outputs after squared loss: probabilities saturate."""
    p = class_probabilities(s) if s.loss == "cross-entropy" else s.candidate_outputs.double()
    if p.shape[1] < 2:
        raise InputError("the network has one output; expected two or more: margin compares two")
    first, second = p.topk(2, dim=1).values.unbind(1)
    return second - first


CONFIDENCE = (
    Strategy(
        "margin",
        "cheap, no kernel: the two likeliest classes nearly tie; large batches repeat themselves",
        "Scheffer, Decomain & Wrobel 2001, Active Hidden Markov Models",
        scored(margin),
    ),
    Strategy(
        "entropy",
        "cheap, no kernel: the most undecided predictions; weak with many classes or outliers",
        "Shannon 1948; Settles 2009, Active Learning Literature Survey",
        scored(entropy),
    ),
    Strategy(
        "least-confidence",
        "cheap, no kernel: the likeliest class has the least support",
        "Lewis & Gale 1994, A Sequential Algorithm for Training Text Classifiers",
        scored(least_confidence),
    ),
    Strategy("random", "the yardstick, and unbiased: use it for a test set", "—", _random),
)


def expected_gradient_length(s: QueryContext, rng: torch.Generator) -> Tensor:
    """(m,) Σ_y p(y) ‖∇ loss(x, y)‖ over all weights, without any gradient being built.

    Classes are visited from the likeliest on until next to no probability is left.
    """
    p = class_probabilities(s)
    at = p if s.loss == "cross-entropy" else s.candidate_outputs
    at = at.to(s.candidate_outputs)
    x = s.learnt.seen(s.candidates)
    sure, order = p.sort(dim=1, descending=True)
    total = torch.zeros(len(p), dtype=torch.float64)
    left = torch.ones(len(p), dtype=torch.float64)
    for j in range(p.shape[1]):
        target = torch.zeros_like(at).scatter_(1, order[:, j : j + 1], 1.0)
        # Rounding may leave −1e-12 where the residual is zero.
        norms = squared_norms(s.model, x, at - target).double().clamp_min_(0.0).sqrt_()
        total += sure[:, j].cpu() * norms.cpu()
        left -= sure[:, j].cpu()
        if float(left.mean()) < REST:
            break
    return total


EGL = Strategy(
    "egl",
    "expected gradient length: the label that would move the weights most; likes outliers",
    "Settles, Craven & Ray 2007, Multiple-Instance Active Learning",
    scored(expected_gradient_length),
    needs_network=True,
)


def _pick(s: QueryContext, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> QueryBatch:
    """The q largest gains; greedy: each counts its pairs with those picked before (DY-13)."""
    x = s.learnt.seen(s.candidates)
    outputs = s.candidate_outputs
    with s.timed("kernel"):
        guess = residuals(outputs, outputs.argmax(1), s.loss)
        direction = _towards_labels(s)
        if mode == "greedy":
            squares, products = norms_and_products(s.model, x, guess, direction)
            gram = gradient_gram(s.model, x, guess)
        else:
            scores = gains(s.model, x, guess, direction, s.asking.gamma).double().cpu()
    with s.timed("score"):
        if mode == "greedy":
            order, scores = _greedy(squares, products, gram, q)
            return QueryBatch(s.candidates[order], scores)
        order = torch.sort(scores, descending=True, stable=True).indices[:q]
    return QueryBatch(s.candidates[order], scores[order])


def _towards_labels(s: QueryContext) -> dict[str, Tensor]:
    """∇L(S); zero without labels."""
    if len(s.labelled) == 0:
        return {k: torch.zeros_like(p) for k, p in s.model.named_parameters() if p.requires_grad}
    r = residuals(s.outputs[: len(s.labelled)], s.labels, s.loss)
    return total_gradient(s.model, s.learnt.seen(s.labelled), r)


def _greedy(squares: Tensor, products: Tensor, gram: Tensor, q: int) -> tuple[Tensor, Tensor]:
    """‖g‖² + 2 g·(∇L(S) + Σ picked g): the exact gain of one more item."""
    value = (squares + 2 * products).double().cpu()
    gram = gram.double().cpu()
    left = torch.ones(len(value), dtype=torch.bool)
    picked: list[int] = []
    scores: list[float] = []
    for _ in range(q):
        at = int(value.masked_fill(~left, -torch.inf).argmax())
        picked.append(at)
        scores.append(float(value[at]))
        left[at] = False
        value = value + 2 * gram[at]
    return torch.tensor(picked), torch.tensor(scores, dtype=torch.float64)


DYNAMICAL = Strategy(
    "dynamical",
    "networks trained by cross-entropy from warm starts, many classes: learnt fastest",
    "Wang, Huang, Wu, Tong, Margenot & He 2022, Deep Active Learning by Leveraging Dynamics",
    _pick,
    modes=("top", "greedy"),
    needs_network=True,
)
