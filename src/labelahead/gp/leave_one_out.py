"""Leave-one-out predictions of the labelled points."""

from torch import Tensor

from labelahead.gp.linalg import block_factor, block_solve, cholesky_inverse
from labelahead.gp.posterior import Posterior

__all__ = ["leave_one_out"]


def leave_one_out(posterior: Posterior) -> Tensor:
    """Compute leave-one-out residuals of the labels in closed form: (L, C), in `labelled` order.

    Row i is the prediction for labelled point i from all the other labels, minus its target:
    positive where the others predict too much. With α = (Θ(X,X)+σI)⁻¹(Y − f(X)) it is
    −([(Θ(X,X)+σI)⁻¹]ᵢᵢ)⁻¹ αᵢ, where the divisor is a number for a scalar kernel and a C×C block for
    the full one. A large norm marks a label that its neighbours contradict.

    >>> predictions = la.leave_one_out(post) + post.targets  # each label from the other one
    >>> predictions.shape
    torch.Size([2, 3])
    """
    labelled, b = posterior.labelled, posterior.width
    alpha = posterior.flatten_outputs(posterior.weights()).view(len(labelled), b, -1)
    inverse = cholesky_inverse(posterior.cholesky_factor()).view(len(labelled), b, len(labelled), b)
    blocks = inverse.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    factors = block_factor(blocks, float(blocks.diagonal(dim1=1, dim2=2).mean()))
    return -block_solve(factors, alpha).reshape(posterior.targets.shape)
