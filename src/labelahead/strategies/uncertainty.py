"""One score per item: its confidence or the length of its gradient."""

import torch
from torch import Tensor

from labelahead.acquisition.probability import entropy as entropy_of
from labelahead.acquisition.probability import probabilities
from labelahead.devices import to_float64
from labelahead.errors import InputError
from labelahead.ntk import squared_norms
from labelahead.strategies.base import Oracle, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext, make_scoring_strategy

__all__ = ["CONFIDENCE", "EGL", "class_probabilities", "expected_gradient_length"]

REMAINING_PROBABILITY = 1e-3  # mean probability of the classes that are skipped


def _random(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    order = torch.randperm(len(context.candidates), generator=rng)[:q]
    return QueryBatch(context.candidates[order], torch.zeros(q, dtype=torch.float64))


def class_probabilities(context: QueryContext, outputs: Tensor | None = None) -> Tensor:
    """Return probabilities (m, C): softmax after cross-entropy, projection onto the simplex after
    squared loss.

    Args:
        context: The query context.
        outputs: (m, C) of other items than the candidates.
    """
    method = "softmax" if context.loss == "cross-entropy" else "simplex"
    return probabilities(
        to_float64(context.candidate_outputs if outputs is None else outputs), method
    )


def entropy(context: QueryContext, rng: torch.Generator) -> Tensor:
    """Return −Σ p log p, (m,)."""
    return entropy_of(class_probabilities(context))


def least_confidence(context: QueryContext, rng: torch.Generator) -> Tensor:
    """Return −max p, (m,)."""
    return -class_probabilities(context).amax(1)


def margin(context: QueryContext, rng: torch.Generator) -> Tensor:
    """Return the negative gap between the top two (m,), of raw outputs after squared loss, since
    probabilities saturate.
    """
    p = (
        class_probabilities(context)
        if context.loss == "cross-entropy"
        else to_float64(context.candidate_outputs)
    )
    if p.shape[1] < 2:
        raise InputError("the network has one output; expected two or more: margin compares two")
    first, second = p.topk(2, dim=1).values.unbind(1)
    return second - first


CONFIDENCE = (
    Strategy(
        "margin",
        "cheap, no kernel: the two likeliest classes nearly tie; large batches repeat themselves",
        "Scheffer, Decomain & Wrobel 2001, Active Hidden Markov Models",
        make_scoring_strategy(margin),
    ),
    Strategy(
        "entropy",
        "cheap, no kernel: the most undecided predictions; weak with many classes or outliers",
        "Shannon 1948; Settles 2009, Active Learning Literature Survey",
        make_scoring_strategy(entropy),
    ),
    Strategy(
        "least-confidence",
        "cheap, no kernel: the likeliest class has the least support",
        "Lewis & Gale 1994, A Sequential Algorithm for Training Text Classifiers",
        make_scoring_strategy(least_confidence),
    ),
    Strategy(
        "random", "the yardstick, and unbiased: use it for a test set", "—", _random, tasks=None
    ),
)


def expected_gradient_length(context: QueryContext, rng: torch.Generator) -> Tensor:
    """Return Σ_y p(y) ‖∇ loss(x, y)‖ over all weights (m,), without building any gradient.

    Classes are visited from the most probable one until almost no probability is left.
    """
    p = class_probabilities(context)
    at = p if context.loss == "cross-entropy" else context.candidate_outputs
    at = at.to(context.candidate_outputs)
    x = context.fitted.load_inputs(context.candidates)
    sure, order = p.sort(dim=1, descending=True)
    order = order.to(at.device)
    total = torch.zeros(len(p), dtype=torch.float64)
    left = torch.ones(len(p), dtype=torch.float64)
    for j in range(p.shape[1]):
        target = torch.zeros_like(at).scatter_(1, order[:, j : j + 1], 1.0)
        # Rounding may leave −1e-12 where the residual is zero.
        norms = squared_norms(context.model, x, at - target).cpu().double().clamp_min_(0.0).sqrt_()
        total += sure[:, j].cpu() * norms
        left -= sure[:, j].cpu()
        if float(left.mean()) < REMAINING_PROBABILITY:
            break
    return total


EGL = Strategy(
    "egl",
    "expected gradient length: the label that would move the weights most; likes outliers",
    "Settles, Craven & Ray 2007, Multiple-Instance Active Learning",
    make_scoring_strategy(expected_gradient_length),
    needs_network=True,
)
