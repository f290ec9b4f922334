"""Training dynamics of a network: which labels change its outputs fastest (dynamicAL, DY).

The training loss falls at the rate G(S) = ‖∇L(S)‖², L the summed loss (DY-8, `gp.dynamics`). With
g(x) = ∇ℓ(x, ŷ), a label adds

    Δ(x|S) = ‖g(x)‖² + γ g(x)·∇L(S),        γ = 2 is exact for one item                   (DY-15)
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from labelahead.batching import Inputs, call_model, read_batch, take_samples
from labelahead.errors import InputError
from labelahead.gp.dynamics import residuals
from labelahead.ntk import gradient_gram, norms_and_products, squared_norms
from labelahead.strategies.base import Oracle, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext

__all__ = ["DYNAMICAL", "dynamics", "gains", "total_gradient"]


def total_gradient(
    model: nn.Module, x: Inputs, cotangents: Tensor, *, batch: int = 256
) -> dict[str, Tensor]:
    """Compute ∇ Σᵢ cotangents[i]·f(xᵢ) per parameter; cotangents are (n, C), .grad is not touched.

    With `residuals` this is ∇L(S), the gradient of the summed loss.
    """
    chosen = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in chosen.items()}
    with torch.enable_grad():
        for start in range(0, len(cotangents), batch):
            rows = slice(start, start + batch)
            out, v = call_model(model, read_batch(take_samples(x, rows))), cotangents[rows]
            gradients = torch.autograd.grad(
                (out * v.to(out)).sum(), list(chosen.values()), allow_unused=True
            )
            for name, g in zip(chosen, gradients, strict=True):
                if g is not None:
                    total[name] += g
    return {name: g.detach() for name, g in total.items()}


def gains(
    model: nn.Module,
    x: Inputs,
    cotangents: Tensor,
    direction: Mapping[str, Tensor],
    gamma: float = 2.0,
) -> Tensor:
    """Compute Δ(x|S) of every item, (n,); direction = ∇L(S) (DY-15).

    With gamma = 0 it is the squared gradient norm, with infinity the influence alone.
    """
    if not gamma >= 0:
        raise InputError(f"gamma is {gamma}; expected 0 or more, or infinity")
    if gamma == 0:
        return squared_norms(model, x, cotangents, params=list(direction))
    squares, products = norms_and_products(model, x, cotangents, direction)
    return products if gamma == float("inf") else squares + gamma * products


def dynamics(model: nn.Module, x: Inputs, cotangents: Tensor) -> float:
    """G(S) = ‖∇L(S)‖² (DY-8)."""
    return sum(float(g.square().sum()) for g in total_gradient(model, x, cotangents).values())


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
