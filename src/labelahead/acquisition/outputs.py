"""Acquisition functions for outputs that are decided one by one: several classes at once, numbers.

Output c at x is decided by the side of ½ on which its mean m_c lies. It is wrong with probability
Φ(−h_c), h_c = |m_c − ½|/√(a_c² v), and a label at x' explains the share ρ² = k(x,x')²/(u v) of the
variance v of every output at x. So the gain of a pair depends on ρ and on x alone:

    gain(x, ρ²) = Σ_c g(h_c, ρ²).

It is tabulated over ρ once for every evaluation point, and a pair costs one interpolation, however
many outputs there are. The amplitude of an output is that of its labels (`output_amplitudes`).
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from labelahead.acquisition.functions import (
    Acquisition,
    owen_gain,
    scale_covariance,
    self_entries,
    sum_absolute_covariances,
    tabulate_gain,
    variance,
)
from labelahead.acquisition.pool_view import View
from labelahead.errors import InputError

__all__ = [
    "OUTPUT_ACQUISITIONS",
    "find_output_acquisition",
    "flip_outputs",
    "mlmoc_outputs",
    "resolve_outputs",
]

THRESHOLD = 0.5  # of targets 0 and 1
# Correlations at which gains are tabulated, at most 1e-3 of an output off; ρ² = 1 − (1 − t²)² for
# equally spaced t, which is finer where gains are more curved.
TABLE_NODES = 129
FLIP_VARIANCE_SCALE = 0.3  # as in `flip`


def resolve_outputs(
    view: View, rng: torch.Generator | None = None, *, exact: bool = False, chunk: int = 256
) -> Tensor:
    """Expected reduction of wrong decisions, Σ_c Σ_x, at all points but the candidate.

    The gain of each output is that of `resolve`, without its restriction to the two leading
    classes: g(h, ρ²) = Φ(−h) − 2T(h, √(1−ρ²)/ρ), with Owen's T.

    Args:
        view: Posterior, candidates and evaluation points.
        rng: Not used.
        exact: Evaluate Owen's T for every pair and output instead of a table.
        chunk: Candidates per block.

    Returns:
        Scores (m,).

    >>> scores = la.acquisition.resolve_outputs(pool_view)
    >>> bool(torch.allclose(scores, la.acquisition.resolve_outputs(pool_view, exact=True), atol=5e-3))
    True
    """
    h = _standardised_distances(view)
    if exact:
        return _sum_gains(
            view,
            lambda squared: torch.stack([owen_gain(column[None], squared) for column in h.T]).sum(
                0
            ),
            chunk,
        )
    return _sum_gains(view, _interpolate(h, _sum_over_outputs(h, tabulate_gain)), chunk)


def flip_outputs(view: View, rng: torch.Generator | None = None, *, chunk: int = 256) -> Tensor:
    """Expected reduction of flips, Σ_c Σ_x [Φ(−h) − Φ(−h/√(1−ρ²))], at all points but the candidate.

    As in `flip`, the variances are scaled by 0.3, which puts more weight on nearly undecided points.

    Args:
        view: Posterior, candidates and evaluation points.
        rng: Not used.
        chunk: Candidates per block.

    Returns:
        Scores (m,).

    >>> bool((la.acquisition.flip_outputs(pool_view) >= 0).all())
    True
    """
    h = _standardised_distances(view) / math.sqrt(FLIP_VARIANCE_SCALE)

    def make_gain(column: Tensor) -> Callable[[Tensor], Tensor]:
        now = torch.special.ndtr(-column.double())
        return lambda squared: (
            now
            - torch.special.ndtr(-column.double() / (1 - squared.double()).clamp_min(1e-12).sqrt())
        ).to(column.dtype)

    return _sum_gains(view, _interpolate(h, _sum_over_outputs(h, make_gain)), chunk)


def mlmoc_outputs(view: View, rng: torch.Generator | None = None, *, chunk: int = 64) -> Tensor:
    """Most likely model output change, Σₓ ‖f₊(x) − f(x)‖₂ for the most likely answer at x'.

    The most likely answer holds the outputs whose mean is ½ or more.

    Args:
        view: Posterior, candidates and evaluation points.
        rng: Not used.
        chunk: Candidates per block.

    Returns:
        Scores (m,).

    >>> la.acquisition.mlmoc_outputs(pool_view).shape
    torch.Size([4])
    """
    _require_scalar(view)
    targets = (view.posterior.mean[view.candidates] >= THRESHOLD).to(view.posterior.mean)
    size: Tensor = torch.linalg.vector_norm(view.scaled_residuals(targets)[:, 0], dim=1)
    return sum_absolute_covariances(view, chunk) * size


def _require_scalar(view: View) -> None:
    if view.posterior.width != 1:
        raise InputError(
            "the kernel has a row per output; expected a scalar kernel: 'pseudo', 'single' or "
            "'trace', not 'full'"
        )


def _standardised_distances(view: View) -> Tensor:
    """h_c at the evaluation points, (e, C), in the kernel's dtype."""
    _require_scalar(view)
    post = view.posterior
    variance_now = post.variance()[view.evaluation].clamp_min(1e-14 * post.scale)
    spread = (post.output_amplitudes()[None] * variance_now[:, None]).sqrt()
    h = (post.mean[view.evaluation] - THRESHOLD).abs() / spread
    return h.to(post.covariance.prior.dtype)


def _table_nodes(h: Tensor) -> Tensor:
    """ρ² at which gains are tabulated: (TABLE_NODES,)."""
    t = torch.linspace(0, 1, TABLE_NODES, dtype=torch.float64, device=h.device)
    return (1 - (1 - t.square()).square()).to(h.dtype)


def _sum_over_outputs(
    h: Tensor, make_gain: Callable[[Tensor], Callable[[Tensor], Tensor]]
) -> Tensor:
    """Σ_c g(h_c, ρ²) at every node and evaluation point: (TABLE_NODES, e).

    make_gain: (e,) h of one output -> function of ρ² (q, e), which may overwrite it.
    """
    nodes = _table_nodes(h)
    total = h.new_zeros((TABLE_NODES, len(h)))
    for column in h.T:
        total += make_gain(column.contiguous())(nodes[:, None].repeat(1, len(h)))
    return total


def _interpolate(h: Tensor, table: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function ρ² (q, e) -> gains (q, e); it overwrites ρ²."""
    points = torch.arange(len(h), device=h.device)
    flat = table.reshape(-1)

    def gain(squared: Tensor) -> Tensor:
        t = squared.neg_().add_(1).sqrt_().neg_().add_(1).sqrt_().mul_(TABLE_NODES - 1)
        low = t.floor().clamp_max_(TABLE_NODES - 2)
        at = low.long().mul_(len(h)).add_(points)
        return torch.lerp(flat[at], flat[at + len(h)], t.sub_(low))

    return gain


def _sum_gains(view: View, gain: Callable[[Tensor], Tensor], chunk: int) -> Tensor:
    """Σₓ gain(x, ρ²) over all points but the candidate: (m,)."""
    post = view.posterior
    variance_now = post.variance()[view.evaluation].clamp_min(1e-14 * post.scale)
    variance_now = variance_now.to(post.covariance.prior.dtype)
    parts = []
    every = torch.arange(len(view.candidates), device=variance_now.device)
    for pairs in torch.split(every, chunk):
        explained = scale_covariance(view, pairs).square_().div_(variance_now).clamp_(0.0, 1.0)
        gains = gain(explained)
        rows, points = self_entries(view, pairs)
        gains[rows, points] = 0.0
        parts.append(gains.sum(1))
    return torch.cat(parts).to(torch.float64)


# Of tasks other than classes, by the names of the functions for classes.
OUTPUT_ACQUISITIONS: Mapping[str, Acquisition] = MappingProxyType(
    {"resolve": resolve_outputs, "flip": flip_outputs, "variance": variance, "mlmoc": mlmoc_outputs}
)


def find_output_acquisition(name: str) -> Acquisition:
    """Return the acquisition function of this name for outputs that are decided one by one.

    >>> la.acquisition.find_output_acquisition("variance") is la.acquisition.variance
    True
    """
    if name not in OUTPUT_ACQUISITIONS:
        raise InputError(
            f"{name} compares classes that exclude each other; expected one of "
            f"{', '.join(OUTPUT_ACQUISITIONS)}"
        )
    return OUTPUT_ACQUISITIONS[name]
