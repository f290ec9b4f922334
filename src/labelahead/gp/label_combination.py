"""Several labels of one point, each with its own noise, as one label.

Labels y_1, …, y_r of one point with noise variances σ_1, …, σ_r determine f there as one label does,
whose noise and target are

    σ = 1 / Σ_s (1/σ_s),        y = σ Σ_s y_s/σ_s,

because the product of the densities N(y_s; f, σ_s) is N(y; f, σ) times a factor without f. Mean and
covariance of the posterior equal those of conditioning on every label, with a smaller matrix. (The
amplitude differs: disagreement between sources is no evidence about the kernel.)
"""

from typing import NamedTuple

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.gp import checks
from labelahead.gp.checks import Noise

__all__ = ["CombinedLabels", "combine_labels"]


class CombinedLabels(NamedTuple):
    """One label for each point."""

    at: Tensor  # (p,) distinct positions, in the order of their first labels
    targets: Tensor  # (p, C)
    noise: Tensor  # (p,) in the unit of the noise that was given


def combine_labels(at: Tensor, targets: Tensor, noise: Noise) -> CombinedLabels:
    """Combine the labels of each point into one by their precision.

    A point with one label keeps its target and noise bit for bit.

    Args:
        at: (q,) positions, which may repeat.
        targets: (q, C).
        noise: (q,) noise of each label, above 0; one number if all have the same.

    Returns:
        One label for each point, for `Posterior.condition`.

    Raises:
        InputError: If the shapes do not fit, or a noise is not above 0.

    >>> labels = la.gp.label_combination.combine_labels(
    ...     torch.tensor([4, 2, 4]), one_hot[[0, 1, 2]], torch.tensor([0.1, 0.1, 0.3])
    ... )
    >>> labels.at.tolist(), [round(x, 3) for x in labels.noise.tolist()]
    ([4, 2], [0.075, 0.1])
    >>> [round(x, 3) for x in labels.targets[0].tolist()]
    [0.75, 0.0, 0.25]
    """
    if noise is None:
        raise InputError("noise is None; expected the noise of each label, such as 1e-2")
    variances = checks.check_noise(noise, len(at)).to(targets.device)
    if not bool((variances > 0).all()):
        raise InputError(
            f"the least noise is {float(variances.min())}; expected more than 0: several labels "
            "without noise contradict each other"
        )
    rows = targets.double()
    distinct, index, counts = torch.unique(at, return_inverse=True, return_counts=True)
    precision = variances.reciprocal()
    total = torch.zeros_like(precision[: len(distinct)]).index_add_(0, index, precision)
    sums = rows.new_zeros((len(distinct), rows.shape[1]))
    sums.index_add_(0, index, rows * precision[:, None])
    every = torch.arange(len(at), device=at.device)
    first = torch.full_like(distinct, len(at)).scatter_reduce_(0, index, every, "amin")
    alone = (counts == 1)[:, None]
    combined = torch.where(alone, rows[first], sums / total[:, None])
    spread = torch.where(alone[:, 0], variances[first], total.reciprocal())
    order = first.argsort()
    return CombinedLabels(distinct[order], combined[order], spread[order])
