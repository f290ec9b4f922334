"""Sums of log Φ over many classes, by interpolation from a table.

With C classes and K nodes of quadrature, Σ_c log Φ(z_k + d_c) takes C·K evaluations of log Φ for
every item: 13 s for 4,000 items and 5,000 classes. Here each d_c is spread over its four neighbours
on a grid with the weights of cubic interpolation, and the sum becomes a product with a table of log
Φ(z_k + grid). Classes with equal d, such as all those that have no label yet, are counted instead.

log Φ is smooth: at 32 grid points a unit, cubic interpolation is off by less than 1e-8 for a class.
"""

from functools import cache

import torch
from torch import Tensor

__all__ = ["sum_log_ndtr"]

GRID_STEPS_PER_UNIT = 32
# Beyond the upper end log Φ(z + d) is below 1e-23 for every z > -10, so that d counts as the end.
# Below the lower end the probability that this class does not lead is below 1e-16, whatever d is.
LOWEST, HIGHEST = -12, 20


def sum_log_ndtr(offsets: Tensor, nodes: Tensor) -> Tensor:
    """Sum log Φ(nodes_k + offsets_nc) over c.

    Args:
        offsets: (n, C) float64; values outside [-12, 20] count as the nearer end.
        nodes: (K,) float64, between -10 and 10.

    Returns:
        (n, K) float64.
    """
    if not len(offsets):
        return offsets.new_zeros(0, len(nodes))
    common = offsets[:, offsets[0].mode().indices, None]
    equal = (offsets == common).all(0)
    counted: Tensor = int(equal.sum()) * torch.special.log_ndtr(
        common.clamp(LOWEST, HIGHEST) + nodes
    )
    return counted + _interpolate(offsets[:, ~equal], nodes)


def _interpolate(offsets: Tensor, nodes: Tensor) -> Tensor:
    # Position on the grid, whose first point lies one step below LOWEST.
    position = (offsets.clamp(LOWEST, HIGHEST) - LOWEST) * GRID_STEPS_PER_UNIT + 1
    left = position.floor()
    t = position - left
    left = left.long()
    table = _table(tuple(nodes.tolist())).to(offsets.device)
    counts = offsets.new_zeros(len(offsets), table.shape[1])
    # Lagrange's polynomials through the points -1, 0, 1, 2.
    for step, weight in (
        (-1, t * (t - 1) * (2 - t) / 6),
        (0, (t + 1) * (t - 1) * (t - 2) / 2),
        (1, (t + 1) * t * (2 - t) / 2),
        (2, (t + 1) * t * (t - 1) / 6),
    ):
        counts.scatter_add_(1, left + step, weight)
    return counts @ table.T


@cache
def _table(nodes: tuple[float, ...]) -> Tensor:
    """(K, G) log Φ(nodes + grid)."""
    steps = torch.arange(
        GRID_STEPS_PER_UNIT * LOWEST - 1, GRID_STEPS_PER_UNIT * HIGHEST + 3, dtype=torch.float64
    )
    sums = torch.tensor(nodes, dtype=torch.float64)[:, None] + steps / GRID_STEPS_PER_UNIT
    table: Tensor = torch.special.log_ndtr(sums)
    return table
