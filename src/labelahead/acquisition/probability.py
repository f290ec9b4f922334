"""Class probabilities from outputs trained with squared loss."""

import torch
from torch import Tensor

from labelahead.errors import InputError

__all__ = ["entropy", "probabilities", "simplex", "softmax"]

PROBABILITIES = ("simplex", "softmax")


def probabilities(outputs: Tensor, method: str, dim: int = -1) -> Tensor:
    """Convert outputs with classes along `dim` to probabilities of the same shape."""
    if method not in PROBABILITIES:
        raise InputError(f"probability is {method!r}; expected one of {', '.join(PROBABILITIES)}")
    return simplex(outputs, dim) if method == "simplex" else softmax(outputs, dim)


def softmax(outputs: Tensor, dim: int = -1) -> Tensor:
    """exp(f)/Σ exp(f) along `dim`."""
    return torch.softmax(outputs, dim)


def simplex(outputs: Tensor, dim: int = -1) -> Tensor:
    """Project onto the probability simplex along `dim`, in Euclidean distance.

    The projection is max(z − τ, 0) with τ the root of Σ max(z − τ, 0) = 1, a convex, decreasing,
    piecewise linear function. Newton's method from the left never overshoots and is exact after at
    most C steps, commonly three, without a sort. Put classes first (dim=0) for speed.
    """
    peak = outputs.amax(dim, keepdim=True)
    tau = torch.maximum(peak - 1, (outputs.sum(dim, keepdim=True) - 1) / outputs.shape[dim])
    for _ in range(outputs.shape[dim]):
        over = (outputs - tau).clamp_min_(0)
        total = over.sum(dim, keepdim=True)
        # A sum of signs is five times as fast as counting booleans.
        step = (total - 1) / over.sign_().sum(dim, keepdim=True).clamp_min_(1)
        tau = tau + step.clamp_min_(0)
        if float(step.max()) <= 4 * torch.finfo(outputs.dtype).eps:
            break
    return (outputs - tau).clamp_min_(0)


def entropy(p: Tensor, dim: int = -1) -> Tensor:
    """−Σ p log p along `dim`, with 0 log 0 = 0."""
    tiny = torch.finfo(p.dtype).tiny  # p log(tiny) is 0 at p = 0; entr would test every entry
    return -p.clamp_min(tiny).log_().mul_(p).sum(dim)
