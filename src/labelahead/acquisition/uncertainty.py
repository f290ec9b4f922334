"""How much uncertainty would a label remove? No hypothetical label needed."""

import math

import torch
from torch import Tensor

from labelahead.acquisition.view import View
from labelahead.errors import InputError
from labelahead.linalg import block_whiten

__all__ = ["flip", "variance"]


def variance(view: View, rng: torch.Generator | None = None) -> Tensor:
    """Variance reduction: Σₓ k(x,x')²/u; Σₓ tr(k u⁻¹ kᵀ) for the full kernel. (m,)."""
    squares = view.moments().squares  # first: it may find the variances that u needs
    factors = view.innovations()
    half = block_whiten(factors, squares)
    return block_whiten(factors, half.mT).diagonal(dim1=1, dim2=2).sum(1)


def flip(
    view: View,
    rng: torch.Generator | None = None,
    *,
    own: bool = False,
    temper: float = 0.3,
    chunk: int = 64,
) -> Tensor:
    """Expected reduction of top-2 flips (METHOD §8) at all points but the candidate itself. (m,).

    With m the gap between the two largest entries of f_lin(x), a² the kernel's amplitude
    (`Posterior.amplitude`) and v the variance of their difference (2k for a scalar kernel):

        Σₓ [ Φ(−m/√(a² v(x))) − Φ(−m/√(a² v₊(x))) ],   v₊ = v − 2 k(x,x')²/u,

    where the full kernel has v = eᵀk(x,x)e and v₊ = v − eᵀk(x,x')u⁻¹k(x',x)e, e = e_a − e_b.
    The trials behind it used a prior noise of 1e-3, which enters u and a² here.

    own: whether x = x' counts. The points stand for many more items, among which one more or less
    is nothing; in a sum over a thousand of them its own term may decide. temper: what a² is
    multiplied by; less than 1 looks more at what is nearly undecided. METHOD §8 has own=True,
    temper=1. docs/results.md has what these defaults rest on.
    """
    if view.posterior.classes < 2:
        raise InputError("outputs has one column; expected at least two: flip compares the top two")
    if not temper > 0:
        raise InputError(f"temper is {temper}; expected a positive number")
    top, label = view.posterior.mean[view.evaluation].topk(2, dim=1)
    spread = _spread(view, label)  # v/2 at the evaluation points
    tiny = 1e-14 * view.posterior.scale
    # Φ(−m/√(a²v)) = ½ − ½ erf(m/√(2a²v)); v is twice `spread`
    reach = (top[:, 0] - top[:, 1]) / math.sqrt(4 * temper * view.posterior.amplitude())
    dtype = view.posterior.covariance.prior.dtype
    reach, spread = reach.to(dtype), spread.to(dtype)
    # Differences point by point, in one dtype: where x' says nothing of x they are exactly zero.
    now = spread.clamp_min(tiny).rsqrt_().mul_(reach).erf_()
    parts = []
    every = torch.arange(len(view.candidates), device=label.device)
    for pairs in torch.split(every, chunk):
        left = _left(view, pairs, label, spread).clamp_min_(tiny).rsqrt_()
        gain = left.mul_(reach).erf_().sub_(now)
        if not own:
            rows, points = _selves(view, pairs)
            gain[rows, points] = 0.0
        parts.append(gain.sum(1))
    return 0.5 * torch.cat(parts).to(torch.float64)


def _selves(view: View, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Which of these candidates are evaluation points, and which ones: two index vectors."""
    order = view.evaluation.argsort()
    at = view.candidates[pairs]
    place = torch.searchsorted(view.evaluation[order], at).clamp_max_(len(order) - 1)
    points = order[place]
    rows = (view.evaluation[points] == at).nonzero()[:, 0]
    return rows, points[rows]


def _spread(view: View, label: Tensor) -> Tensor:
    """Half the variance of f_a − f_b at each evaluation point: (e,)."""
    blocks = view.posterior.variance()[view.evaluation]
    if view.posterior.width == 1:
        return blocks
    return 0.5 * _contrast(_contrast(blocks, label, 2), label, 1)


def _contrast(values: Tensor, label: Tensor, dim: int) -> Tensor:
    """values[x, ..., a(x), ...] − values[x, ..., b(x), ...] along `dim`, which it removes."""
    shape = [len(label) if i == 0 else 1 if i == dim else s for i, s in enumerate(values.shape)]
    first, second = (
        label[:, i].view([-1] + [1] * (values.dim() - 1)).expand(shape) for i in (0, 1)
    )
    return (values.gather(dim, first) - values.gather(dim, second)).squeeze(dim)


def _left(view: View, pairs: Tensor, label: Tensor, spread: Tensor) -> Tensor:
    """Half the variance of f_a − f_b that is left at x after candidate x' is labelled: (q, e)."""
    k, factors = view.covariance(pairs), view.innovations()[pairs]
    if view.posterior.width == 1:
        scaled = factors[:, 0].reciprocal().to(k.dtype) * k
        return torch.addcmul(spread, scaled, scaled, value=-1)
    contrast = _contrast(k.to(torch.float64).permute(2, 0, 1, 3), label, 3).permute(1, 2, 0)
    fallen = block_whiten(factors, contrast).square().sum(1)
    return spread - 0.5 * fallen.to(spread.dtype)
