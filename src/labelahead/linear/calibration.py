"""How often the predictions are wrong, as the labels themselves tell it.

Class by class, f at x is N(m_c, s²a²k(x,x)): the posterior, its spread times one factor s. The leading class is the
right one with the probability that its f is the largest,

    P(a leads) = ∫ φ(z) ∏_{c≠a} Φ(z + (m_a − m_c)/(s a √k)) dz,

and s is what makes every label, left out in closed form, likeliest. Labels that were chosen are harder than the rest,
but s compares each with what its own distance from the others lets expect, so that they tell of the easy ones too.
The posterior must not have seen the labels in any other way: a trained network's outputs and kernel have.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.linear.leave_one_out import leave_one_out
from labelahead.linear.linalg import cholesky_inverse
from labelahead.linear.normal_sums import sum_log_ndtr
from labelahead.linear.posterior import Posterior

__all__ = ["Calibration", "ErrorRate", "calibrate", "chances", "error_rate", "leading", "likelihoods", "quadrature"]

NODES = 20  # of Gauss-Hermite quadrature: 1e-4 of a probability where spreads are not tiny
SCALES = tuple(0.1 * 80 ** (i / 29) for i in range(30))  # s is looked for among these: 0.1 to 8, steps of 16 %
LEAST = 1e-12  # a label is never less likely: one slip must not decide alone
# Log-likelihood below the best that the interval admits. 1.92 would be 95 % if labels were drawn at random and the
# kernel were true; with chosen ones 6 held nine times in ten (digits, MNIST, four tables, seeds 100 to 102).
WITHIN = 6.0
FEW = 12  # classes whose chances are all worked out
MAX_CLASSES_SUMMED_ONE_BY_ONE = 100  # beyond, sums over classes are interpolated (`normal_sums`)
BLOCK = 1 << 22  # numbers worked on at a time


class Calibration(NamedTuple):
    """s, and the ends of its interval by likelihood."""

    scale: float
    low: float
    high: float


class ErrorRate(NamedTuple):
    """Share of wrong predictions, and the ends of an interval that held it four times in five (docs/results.md)."""

    rate: float
    low: float
    high: float


def leading(mean: Tensor, variance: Tensor, label: Tensor | None = None) -> Tensor:
    """P(f of `label`, default the leading class, is the largest), f_c ~ N(mean_c, variance) independently.

    mean (n, C), variance (n,), label (n,) -> (n,), float64.
    """
    mean, label = mean.double(), mean.argmax(1) if label is None else label
    nodes, weights = quadrature(mean.device)
    out = []
    for rows in torch.split(torch.arange(len(mean)), max(1, BLOCK // (NODES * mean.shape[1]))):
        m, own = mean[rows], label[rows, None]
        ahead = (m.gather(1, own) - m) / variance[rows].double().sqrt()[:, None]
        if mean.shape[1] > MAX_CLASSES_SUMMED_ONE_BY_ONE:
            others = sum_log_ndtr(ahead, nodes) - torch.special.log_ndtr(nodes)  # without its own, which is 0 ahead
        else:
            below = torch.special.log_ndtr(ahead[:, None] + nodes[:, None])  # (rows, nodes, C)
            others = below.scatter_(2, own[:, None].expand(-1, NODES, 1), 0.0).sum(2)
        out.append(others.exp_() @ weights)
    return torch.cat(out) if out else mean.new_zeros(0)


@cache
def quadrature(device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights of ∫ φ(z) g(z) dz."""
    # The eigenvectors of Hermite's recurrence (Golub & Welsch).
    steps = torch.arange(1, NODES, dtype=torch.float64).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(steps, 1) + torch.diag(steps, -1))
    return nodes.to(device), vectors[0].square().to(device)


def calibrate(posterior: Posterior, votes: Tensor | None = None) -> Calibration:
    """s of a scalar kernel's posterior, by leave-one-out of its labels; 1 where they cannot tell.

    votes: (L,) bool, which labels tell; default: all. One that was taken over from the prediction itself does not: it
    agrees with it whether it is right or not.
    """
    if posterior.width != 1 or posterior.classes < 2:
        raise InputError(
            f"the posterior has {posterior.classes} outputs and {posterior.width} kernel rows a point; expected two "
            "or more outputs and a scalar kernel"
        )
    labels = posterior.told()[1].argmax(1)
    votes = torch.ones_like(labels, dtype=torch.bool) if votes is None else votes.to(labels.device)
    if not bool((labels[votes] != labels[votes][:1]).any()):
        return Calibration(1.0, SCALES[0], SCALES[-1])
    mean, variance = (part[votes] for part in left_out(posterior))
    labels, spread = labels[votes], posterior.amplitude() * variance
    every = torch.tensor(SCALES, dtype=torch.float64, device=mean.device).repeat_interleave(len(labels))
    count = len(SCALES)
    chance = leading(mean.repeat(count, 1), every.square() * spread.repeat(count), labels.repeat(count))
    fits = chance.clamp_min_(LEAST).log_().view(count, -1).sum(1).tolist()
    best = max(fits)
    inside = [s for s, fit in zip(SCALES, fits, strict=True) if fit >= best - WITHIN]
    return Calibration(SCALES[fits.index(best)], inside[0], inside[-1])


def left_out(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Mean (L, C) and variance (L,) of f at every labelled point, given all labels but its own."""
    settled = posterior.settled
    if settled is not None:
        if len(posterior.labelled):
            raise InputError("labels came after others were condensed; expected all of them condensed together")
        return settled.others, settled.variance.clamp_min(1e-9 * posterior.scale)
    variance = cholesky_inverse(posterior.factor()).diagonal().reciprocal() - posterior.noise
    return leave_one_out(posterior) + posterior.targets, variance.clamp_min(1e-9 * posterior.scale)


def chances(posterior: Posterior, at: Tensor, scale: float) -> Tensor:
    """(q, C) how likely each class is the right one at points (q,); they sum to one up to quadrature."""
    return likelihoods(posterior.mean[at], _spread(posterior, at, scale))


def likelihoods(mean: Tensor, variance: Tensor) -> Tensor:
    """(n, C) how likely each class is the right one, f_c ~ N(mean_c, variance); the order of classes is that of `mean`.

    Up to FEW classes by quadrature for each. Beyond, for the leading class alone, and the rest is shared among the
    others as each by itself would beat it.
    """
    if mean.shape[1] <= FEW:
        each = [leading(mean, variance, torch.full((len(mean),), c, device=mean.device)) for c in range(mean.shape[1])]
        p = torch.stack(each, 1)
        return p / p.sum(1, keepdim=True)
    top, first = leading(mean, variance), mean.argmax(1, keepdim=True)
    behind = mean.double() - mean.double().gather(1, first)
    others = torch.special.ndtr(behind / (2 * variance.double())[:, None].sqrt()).scatter_(1, first, 0.0)
    share = others / others.sum(1, keepdim=True).clamp_min(1e-300) * (1 - top)[:, None]
    p = torch.minimum(share, top[:, None]).scatter_(1, first, top[:, None])
    return p / p.sum(1, keepdim=True)


def error_rate(posterior: Posterior, at: Tensor, calibration: Calibration | None = None) -> ErrorRate:
    """How many of the predictions at points (q,) are wrong, most of them unlabelled."""
    known = calibration or calibrate(posterior)
    if not len(at):
        return ErrorRate(0.0, 0.0, 0.0)
    rates = [
        1 - float(leading(posterior.mean[at], _spread(posterior, at, s)).mean()) for s in (known.scale, *known[1:])
    ]
    return ErrorRate(rates[0], min(rates), max(rates))


def _spread(posterior: Posterior, at: Tensor, scale: float) -> Tensor:
    variance = posterior.variance()[at].clamp_min(1e-9 * posterior.scale)
    return math.prod((scale, scale, posterior.amplitude())) * variance
