"""Gradient flow of the linearised network: its outputs after any training time."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.gp.checks import Positions
from labelahead.gp.linalg import symmetric_eigen
from labelahead.gp.posterior import prior

__all__ = ["gradient_flow"]


def gradient_flow(
    outputs: Tensor,
    kernel: Tensor,
    at: Positions,
    targets: Tensor,
    time: float | Sequence[float],
    *,
    noise: float = 0.0,
) -> Tensor:
    """Predict the outputs after gradient flow for `time` on squared loss at the points `at`.

    f_t(x) = f(x) + Θ(x,X) Θ(X,X)⁻¹ (I − e^{−tΘ(X,X)}) (Y − f(X))            (LA-5, DY-3)

    Args:
        outputs: (n, C).
        kernel: (n, n) or (n·C, n·C).
        at: (q,) labelled positions.
        targets: (q, C).
        time: η·t, the learning rate times the steps, for the loss ½‖Y − f(X)‖²; math.inf is the
            limit.
        noise: Relative regulariser, added to Θ(X,X) as in `prior`.

    Returns:
        (n, C) for one time, (T, n, C) for several.

    >>> import math
    >>> path = la.gp.flow.gradient_flow(outputs, K, [0, 1], one_hot[[0, 1]], [0.0, 0.1, math.inf])
    >>> bool(torch.allclose(path[0], outputs.double())), path[2, 0].argmax().item()
    (True, 0)
    """
    start = prior(outputs, kernel, noise=noise)
    at = start.check_positions(at, "at")
    targets = start.check_targets(targets, len(at))
    times = _times(time)
    where, theta = start.flat_positions(at), start.covariance.prior
    rows = theta.rows(where)  # (qb, N)
    system = start.system_matrix(at)
    values, vectors = symmetric_eigen((system + system.T) / 2)
    residual = vectors.T @ start.flatten_outputs(targets - start.outputs[at])  # (qb, C/b)
    reach = vectors.T @ rows  # (qb, N)
    flows = [
        start.outputs + (reach.T @ (_decay(values, t)[:, None] * residual)).reshape(outputs.shape)
        for t in times
    ]
    return flows[0] if isinstance(time, int | float) else torch.stack(flows)


def _decay(values: Tensor, t: float) -> Tensor:
    """(1 − e^{−tλ})/λ for every eigenvalue λ (q,), with its limit t as λ → 0.

    Eigenvalues at rounding level belong to directions in which the kernel cannot move the outputs.
    Once t is long enough for them to matter they are noise, so these directions are not moved.
    """
    floor = len(values) * torch.finfo(values.dtype).eps * float(values.max())
    live = values > floor
    safe = torch.where(live, values, torch.ones_like(values))
    moved = torch.ones_like(safe) if math.isinf(t) else -torch.expm1(-t * safe)
    still = t if t * floor < 1 else 0.0
    return torch.where(live, moved / safe, torch.full_like(values, still))


def _times(time: float | Sequence[float]) -> list[float]:
    times = [float(time)] if isinstance(time, int | float) else [float(t) for t in time]
    if not times or any(math.isnan(t) or t < 0 for t in times):
        raise InputError(f"time is {time!r}; expected one or more numbers >= 0 (math.inf allowed)")
    return times
