"""Leave-one-out predictions of the labelled points."""

import torch
from torch import Tensor

from labelahead.gp.linalg import (
    block_factor,
    block_solve,
    cholesky,
    cholesky_inverse,
    solve_factored,
)
from labelahead.gp.posterior import Posterior

__all__ = ["leave_one_out"]


def leave_one_out(posterior: Posterior) -> Tensor:
    """Compute leave-one-out residuals of the labels in closed form: (L, C), in `labelled` order.

    Row i is the prediction for labelled point i from the labels of all the other points, minus its
    target: positive where the others predict too much. With Q = (Θ(X,X)+D)⁻¹, D the noise of the
    labels and α = Q(Y − f(X)) it is −(Qᵢᵢ)⁻¹ αᵢ, where the divisor is a number for a scalar kernel
    and a C×C block for the full one. If a point has several labels, all of them are left out, and i
    stands for that group. A large norm marks a label that its neighbours contradict.

    >>> predictions = la.leave_one_out(post) + post.targets  # each label from the other one
    >>> predictions.shape
    torch.Size([2, 3])
    """
    labelled, b = posterior.labelled, posterior.width
    if len(torch.unique(labelled)) < len(labelled):
        return _leave_points_out(posterior)
    alpha = posterior.flatten_outputs(posterior.weights()).view(len(labelled), b, -1)
    inverse = cholesky_inverse(posterior.cholesky_factor()).view(len(labelled), b, len(labelled), b)
    blocks = inverse.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    factors = block_factor(blocks, float(blocks.diagonal(dim1=1, dim2=2).mean()))
    return -block_solve(factors, alpha).reshape(posterior.targets.shape)


def _leave_points_out(posterior: Posterior) -> Tensor:
    """Compute the residuals (L, C) of points with several labels: −(Q_gg)⁻¹ α_g for each point g."""
    alpha = posterior.flatten_outputs(posterior.weights())
    inverse = cholesky_inverse(posterior.cholesky_factor())
    out = torch.empty_like(alpha)
    for point in torch.unique(posterior.labelled):
        rows = (posterior.labelled == point).nonzero()[:, 0]
        flat = posterior.flat_positions(rows)
        lower, _ = cholesky(inverse[flat][:, flat], what="the labels of a point")
        out[flat] = -solve_factored(lower, alpha[flat])
    return out.reshape(posterior.targets.shape)
