"""TRAK: attribution by projected gradients (Park et al. 2023), as a baseline."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from labelahead.batching import Inputs, as_inputs
from labelahead.errors import InputError
from labelahead.gp.linalg import cholesky, solve_factored
from labelahead.models.training.forward import predict
from labelahead.ntk import features

__all__ = ["compute_trak_scores"]


def compute_trak_scores(
    models: nn.Module | Iterable[nn.Module],
    x: Inputs,
    y: Tensor,
    x2: Inputs,
    y2: Tensor,
    *,
    sketch: int = 512,
    seed: int = 0,
) -> Tensor:
    """Compute TRAK scores of n training items for m other items: (m, n).

    The output that is explained is the margin log(p / (1 − p)) of the class in `y2`. With several
    networks, trained on different halves of the data, features and weights are averaged apart, as
    in the paper.

    Args:
        models: Trained networks, which return logits.
        x: n training items.
        y: (n,) their classes.
        x2: m items.
        y2: (m,) the classes whose margins are explained.
        sketch: Number of projected gradients per item.
        seed: Of the projection.

    >>> attribution.compute_trak_scores(model, x, y, x2, torch.tensor([0, 1]), sketch=4).shape
    torch.Size([2, 6])
    """
    networks = [models] if isinstance(models, nn.Module) else list(models)
    if not networks:
        raise InputError("there is no network; expected at least one")
    x, x2 = as_inputs(x), as_inputs(x2)
    scores, weights = [], []
    for i, network in enumerate(networks):
        own, other = (
            features(
                network,
                part,
                cotangents=_differentiate_margins(network, part, classes),
                sketch=sketch,
                seed=seed + i,
            ).double()
            for part, classes in ((x, y), (x2, y2))
        )
        lower, _ = cholesky(own.T @ own, what="the Gram matrix of the projected gradients")
        scores.append(other @ solve_factored(lower, own.T))
        p = predict(network, x).double().softmax(1)
        weights.append(1 - p.gather(1, y[:, None].to(p.device))[:, 0])
    return torch.stack(scores).mean(0) * torch.stack(weights).mean(0)


def _differentiate_margins(network: nn.Module, x: Inputs, classes: Tensor) -> Tensor:
    """(n, C): the derivative of log(p / (1 − p)) of one class by the logits."""
    logits = predict(network, x).double()
    if classes.shape != logits.shape[:1]:
        raise InputError(
            f"there are {len(logits)} items and classes of shape {tuple(classes.shape)}; expected "
            "one class per item"
        )
    chosen = nn.functional.one_hot(classes.to(logits.device), logits.shape[1]).bool()
    # margin = z_y − logsumexp of the others
    return torch.where(chosen, 1.0, -logits.masked_fill(chosen, -torch.inf).softmax(1))
