"""dynamicAL: the labels that would be learnt fastest."""

import torch
from torch import Tensor

from labelahead.dynamics import gains, residuals, total_gradient
from labelahead.situation import Situation
from labelahead.strategy.member import Ask, Picks, Strategy
from labelahead.tangent import gradient_gram, norms_and_products

__all__ = ["DYNAMICAL"]


def _pick(s: Situation, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> Picks:
    """The q largest gains; greedy: each counts its pairs with those picked before (DY-13)."""
    x = s.at_network(s.candidates)
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
            return Picks(s.candidates[order], scores)
        order = torch.sort(scores, descending=True, stable=True).indices[:q]
    return Picks(s.candidates[order], scores[order])


def _towards_labels(s: Situation) -> dict[str, Tensor]:
    """∇L(S); zero without labels."""
    if len(s.labelled) == 0:
        return {k: torch.zeros_like(p) for k, p in s.model.named_parameters() if p.requires_grad}
    r = residuals(s.outputs[: len(s.labelled)], s.labels, s.loss)
    return total_gradient(s.model, s.at_network(s.labelled), r)


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


DYNAMICAL = (
    Strategy(
        "dynamical",
        "networks trained by cross-entropy from warm starts, many classes: learnt fastest",
        "Wang, Huang, Wu, Tong, Margenot & He 2022, Deep Active Learning by Leveraging Dynamics",
        _pick,
        modes=("top", "greedy"),
    ),
)
