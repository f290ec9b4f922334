"""How sure would the predictions be after a label? Expected error reduction."""

import torch
from torch import Tensor

from labelahead.acquisition.change import predictions_after
from labelahead.acquisition.probability import entropy, probabilities
from labelahead.acquisition.view import View

__all__ = ["eer"]


def eer(
    view: View,
    rng: torch.Generator | None = None,
    *,
    probability: str = "simplex",
    baseline: str = "outputs",
    method: str = "block",
    chunk: int = 16,
) -> Tensor:
    """Expected error reduction (LA-2): −E_y' Σₓ H(p₊(x)), y' ~ p(y | x'). (m,).

    p₊ is the `probability` ("simplex": Euclidean projection, as the paper's authors do, or
    "softmax") of the look-ahead predictions; p(y | x') that of the network's f, or of f_lin with
    baseline="linearised". Classes of probability zero cost nothing.
    """
    p = view.probabilities(probability, baseline)
    which, label = p.nonzero(as_tuple=True)
    targets = torch.nn.functional.one_hot(label, p.shape[1]).to(p)
    if method == "block" and view.posterior.width == 1:
        doubt = _scalar_doubt(view, which, targets, probability, chunk)
    else:
        after = predictions_after(view, which, targets, method, chunk)
        doubt = torch.cat([entropy(probabilities(f, probability)).sum(1) for f in after])
    return -torch.zeros_like(p[:, 0]).index_add_(0, which, doubt * p[which, label])


def _scalar_doubt(
    view: View, which: Tensor, targets: Tensor, probability: str, chunk: int
) -> Tensor:
    """Σₓ H(p₊(x)) for pairs of candidate (q,) and target (q, C), scalar kernel: (q,).

    Classes go first: (C, q, e), so that sums over them run over long contiguous rows.
    """
    mean = view.values("linearised")[view.evaluation].T[:, None, :]
    parts = []
    for pairs, aims in zip(torch.split(which, chunk), torch.split(targets, chunk), strict=True):
        k = view.covariance(pairs)
        g = view.push(aims, pairs)[:, 0].to(k.dtype).T[:, :, None]
        after = torch.addcmul(mean.to(k.dtype), k[None], g)
        parts.append(entropy(probabilities(after, probability, 0), 0).sum(1))
    return torch.cat(parts).to(torch.float64)
