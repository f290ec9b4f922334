"""One score per item: its confidence, its gradient, or how fast it is learnt."""

import torch
from torch import Tensor

from labelahead.acquisition.probability import entropy as entropy_of
from labelahead.acquisition.probability import probabilities
from labelahead.devices import to_float64
from labelahead.errors import InputError
from labelahead.gp.dynamics import gains, residuals, total_gradient
from labelahead.ntk import gradient_gram, norms_and_products, squared_norms
from labelahead.strategies.base import Oracle, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext, make_scoring_strategy

__all__ = ["CONFIDENCE", "DYNAMICAL", "EGL", "class_probabilities", "expected_gradient_length"]

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
    Strategy("random", "the yardstick, and unbiased: use it for a test set", "—", _random),
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


def _select_dynamical(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    """Select the q largest gains; greedy mode also counts the pairs with items selected before
    (DY-13).
    """
    x = context.fitted.load_inputs(context.candidates)
    outputs = context.candidate_outputs
    with context.time_stage("kernel"):
        guess = residuals(outputs, outputs.argmax(1), context.loss)
        direction = _label_gradient(context)
        if mode == "greedy":
            squares, products = norms_and_products(context.model, x, guess, direction)
            gram = gradient_gram(context.model, x, guess)
        else:
            scores = (
                gains(context.model, x, guess, direction, context.query_config.gamma).cpu().double()
            )
    with context.time_stage("score"):
        if mode == "greedy":
            order, scores = _select_greedily(squares, products, gram, q)
            return QueryBatch(context.candidates[order], scores)
        order = torch.sort(scores, descending=True, stable=True).indices[:q]
    return QueryBatch(context.candidates[order], scores[order])


def _label_gradient(context: QueryContext) -> dict[str, Tensor]:
    """Return ∇L(S); zero without labels."""
    if len(context.labelled) == 0:
        return {
            k: torch.zeros_like(p) for k, p in context.model.named_parameters() if p.requires_grad
        }
    r = residuals(context.outputs[: len(context.labelled)], context.labels, context.loss)
    return total_gradient(context.model, context.fitted.load_inputs(context.labelled), r)


def _select_greedily(
    squares: Tensor, products: Tensor, gram: Tensor, q: int
) -> tuple[Tensor, Tensor]:
    """Select by ‖g‖² + 2 g·(∇L(S) + Σ selected g), the exact gain of one more item."""
    value = (squares + 2 * products).cpu().double()
    gram = gram.cpu().double()
    left = torch.ones(len(value), dtype=torch.bool)
    selected: list[int] = []
    scores: list[float] = []
    for _ in range(q):
        at = int(value.masked_fill(~left, -torch.inf).argmax())
        selected.append(at)
        scores.append(float(value[at]))
        left[at] = False
        value = value + 2 * gram[at]
    return torch.tensor(selected), torch.tensor(scores, dtype=torch.float64)


DYNAMICAL = Strategy(
    "dynamical",
    "networks trained by cross-entropy from warm starts, many classes: learnt fastest",
    "Wang, Huang, Wu, Tong, Margenot & He 2022, Deep Active Learning by Leveraging Dynamics",
    _select_dynamical,
    modes=("top", "greedy"),
    needs_network=True,
)
