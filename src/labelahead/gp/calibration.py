"""How often the predictions are wrong, estimated from the labels themselves.

Class by class, f at x is N(m_c, s²a²k(x,x)): the posterior, its spread times one factor s. The
leading class is the right one with the probability that its f is the largest,

    P(a leads) = ∫ φ(z) ∏_{c≠a} Φ(z + (m_a − m_c)/(s a √k)) dz.

A share λ of all labels (the lapse rate) is drawn from the C classes at random, whatever f says:
label noise, and structure that the kernel cannot represent. Each label, left out in closed form,
then has the probability

    λ/C + (1 − λ) P(its class leads),

and the tempered likelihood of these is a posterior over (s, λ), from which the error rate gets its
mean and interval. Labels that were chosen are harder than the rest, but s compares each with what
its own distance from the others lets expect, so that they tell of the easy ones too. Where they
were chosen also depends on earlier labels, which makes leave-one-out too hopeful on noise;
predictions of each label from those before it are not, and count for most. The posterior must not
have seen the labels in any other way: a trained network's outputs and kernel have.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.gp.leave_one_out import leave_one_out
from labelahead.gp.linalg import cholesky_inverse, whiten
from labelahead.gp.normal_sums import sum_log_ndtr
from labelahead.gp.posterior import Posterior

__all__ = [
    "Calibration",
    "ErrorRate",
    "calibrate",
    "chances",
    "error_rate",
    "leading",
    "likeliest_scale",
    "likelihoods",
    "one_step_ahead",
    "quadrature",
]

NODES = 20  # of Gauss-Hermite quadrature: 1e-4 of a probability where spreads are not tiny
FINE_SCALES = tuple(0.1 * 80 ** (i / 29) for i in range(30))  # 0.1 to 8, steps of 16 %
# Larger factors hardly matter to ordinary data, but without them pure noise could never be called
# chance.
SCALES = (
    *FINE_SCALES,
    *(8 * 1.35**i for i in range(1, 9)),
)  # up to 88, where every class is as likely as the others
SCALE_PRIOR = (1.0,) * 29 + (2.0,) * 9  # flat in log s: a coarse step is about two fine ones
LAPSES = tuple(i / 10 for i in range(11))  # lapse rates λ
LAPSE_PRIOR = (0.5,) + (0.05,) * 10  # half of the mass on no lapse at all
LEAST = 1e-12  # a label is never less likely: one slip must not decide alone
# The log-likelihood is divided by this. Labels were chosen, and the kernel was chosen by the same
# labels, so that they say less than as many independent ones. Chosen on seeds 100 to 107
# (research/benchmarks/estimates.py): 1 was too narrow.
TEMPERATURE = 2.5
AHEAD_SHARE = 0.75  # of the posterior that rests on `one_step_ahead`; the rest on leave-one-out
TAIL = 0.05  # of the posterior on either side of the interval
# standard deviations of a share of the labels, by which every interval is widened
BINOMIAL_WIDTH = 1.3
# scales at which the error of the pool is worked out; between them it is interpolated
CURVE_POINTS = 7
FEW = 12  # classes whose chances are all worked out
MAX_CLASSES_SUMMED_ONE_BY_ONE = 100  # beyond, sums over classes are interpolated (`normal_sums`)
BLOCK = 1 << 22  # numbers worked on at a time


class Calibration(NamedTuple):
    """What the labels say of s and λ.

    scale: the likeliest s without lapses. weights: (len(LAPSES), len(SCALES)) posterior
    probabilities. evidence: how many labels these rest on.
    """

    scale: float
    weights: Tensor
    evidence: int


class ErrorRate(NamedTuple):
    """Share of wrong predictions, and the ends of its interval (coverage: docs/results.md)."""

    rate: float
    low: float
    high: float


def leading(mean: Tensor, variance: Tensor, label: Tensor | None = None) -> Tensor:
    """P(f of `label`, default the leading class, is the largest), f_c ~ N(mean_c, variance)
    independently.

    mean (n, C), variance (n,), label (n,) -> (n,), float64.
    """
    mean, label = mean.double(), mean.argmax(1) if label is None else label
    nodes, weights = quadrature(mean.device)
    out = []
    for rows in torch.split(torch.arange(len(mean)), max(1, BLOCK // (NODES * mean.shape[1]))):
        m, own = mean[rows], label[rows, None]
        ahead = (m.gather(1, own) - m) / variance[rows].double().sqrt()[:, None]
        if mean.shape[1] > MAX_CLASSES_SUMMED_ONE_BY_ONE:
            others = sum_log_ndtr(ahead, nodes) - torch.special.log_ndtr(
                nodes
            )  # without its own, which is 0 ahead
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
    """Calibrate a scalar kernel's posterior by leave-one-out of its labels; scale 1 where they
    cannot tell.

    votes: (L,) bool, which labels tell; default: all. One that was taken over from the prediction
    itself does not: it agrees with it whether it is right or not.
    """
    if posterior.width != 1 or posterior.classes < 2:
        raise InputError(
            f"the posterior has {posterior.classes} outputs and {posterior.width} kernel rows a "
            "point; expected two "
            "or more outputs and a scalar kernel"
        )
    labels, votes = _voting(posterior, votes)
    if not bool((labels[votes] != labels[votes][:1]).any()):
        return Calibration(1.0, _weights(torch.zeros(len(SCALES), 0), posterior.classes), 0)
    repeated = _is_repeated(labels, posterior.classes)[votes].cpu()
    chance = _label_chances(posterior, left_out(posterior), votes)
    scale = _likeliest(chance[:, repeated])
    # Either the pool has as many new classes as the labels had, or none: both are admitted.
    weights = (
        _weights(chance, posterior.classes) + _weights(chance[:, repeated], posterior.classes)
    ) / 2
    if posterior.settled is None:
        later = ~_is_first_of_class(labels)[votes].cpu()
        chance = _label_chances(posterior, one_step_ahead(posterior), votes)
        ahead = _weights(chance[:, later], posterior.classes)
        weights = (1 - AHEAD_SHARE) * weights + AHEAD_SHARE * ahead
    return Calibration(scale, weights, int(repeated.sum()))


def likeliest_scale(posterior: Posterior, votes: Tensor | None = None) -> float:
    """Find the s without lapses that makes labels of repeated classes, each left out, likeliest; 1
    without any.

    It is `calibrate(posterior, votes).scale`, without the rest.
    """
    labels, votes = _voting(posterior, votes)
    if not bool((labels[votes] != labels[votes][:1]).any()):
        return 1.0
    repeated = _is_repeated(labels, posterior.classes)[votes].cpu()
    return _likeliest(_label_chances(posterior, left_out(posterior), votes)[:, repeated])


def _is_repeated(labels: Tensor, classes: int) -> Tensor:
    """(L,) bool: another label has the same class.

    A class that was labelled once cannot be predicted without that label, whatever is true of the
    pool.
    """
    return torch.bincount(labels, minlength=classes)[labels] > 1


def _voting(posterior: Posterior, votes: Tensor | None) -> tuple[Tensor, Tensor]:
    """(L,) class numbers of the labels, and (L,) bool which of them tell."""
    labels = posterior.told()[1].argmax(1)
    return labels, torch.ones_like(labels, dtype=torch.bool) if votes is None else votes.to(
        labels.device
    )


def _likeliest(chance: Tensor) -> float:
    """The scale that makes labels likeliest, given how likely each makes each (scales, L).

    1 without any.
    """
    return 1.0 if not chance.shape[1] else float(SCALES[int(chance.log().sum(1).argmax())])


def _label_chances(posterior: Posterior, predicted: tuple[Tensor, Tensor], votes: Tensor) -> Tensor:
    """(scales, votes) how likely each scale makes each label that votes, given mean (L, C) and
    variance (L,) there.
    """
    mean, variance = (part[votes] for part in predicted)
    labels, spread = posterior.told()[1].argmax(1)[votes], posterior.amplitude() * variance
    every = torch.tensor(SCALES, dtype=torch.float64, device=mean.device).repeat_interleave(
        len(labels)
    )
    count = len(SCALES)
    chance = leading(
        mean.repeat(count, 1), every.square() * spread.repeat(count), labels.repeat(count)
    )
    return chance.clamp_min_(LEAST).view(count, -1).cpu()


def _is_first_of_class(labels: Tensor) -> Tensor:
    """(L,) bool: no label before has the same class."""
    every = labels.tolist()
    first = {c: i for i, c in reversed(list(enumerate(every)))}
    return torch.tensor(
        [first[c] == i for i, c in enumerate(every)], dtype=torch.bool, device=labels.device
    )


def _weights(chance: Tensor, classes: int) -> Tensor:
    """(lapses, scales) tempered posterior, given how likely each scale makes each label (scales,
    L).
    """
    lapse = torch.tensor(LAPSES, dtype=torch.float64)
    fits = torch.stack(
        [(rate / classes + (1 - rate) * chance.double()).log().sum(1) for rate in lapse]
    )
    prior = torch.outer(
        torch.tensor(LAPSE_PRIOR, dtype=torch.float64),
        torch.tensor(SCALE_PRIOR, dtype=torch.float64),
    )
    weights = prior * ((fits - fits.max()) / TEMPERATURE).exp()
    return weights / weights.sum()


def left_out(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Mean (L, C) and variance (L,) of f at every labelled point, given all labels but its own."""
    settled = posterior.settled
    if settled is not None:
        if len(posterior.labelled):
            raise InputError(
                "labels came after others were condensed; expected all of them condensed together"
            )
        return settled.others, settled.variance.clamp_min(1e-9 * posterior.scale)
    variance = cholesky_inverse(posterior.factor()).diagonal().reciprocal() - posterior.noise
    return leave_one_out(posterior) + posterior.targets, variance.clamp_min(1e-9 * posterior.scale)


def one_step_ahead(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Mean (L, C) and variance (L,) of f at every labelled point, given only the labels before its
    own.

    With A = L Lᵀ the Cholesky factor of Θ(X,X) + σI and z = L⁻¹(Y − f(X)), the mean is y − L_ii z_i
    and the variance L_ii² − σ. An item is chosen before its label is known, so that active learning
    cannot make these agree by chance. Leave-one-out can: where labels contradict each other more
    are asked for, and where they agree by luck none.
    """
    lower = posterior.factor()
    residual = posterior.targets - posterior.outputs[posterior.labelled]
    steps = whiten(lower, residual)
    pivots = lower.diagonal()
    variance = pivots.square() - posterior.noise
    return posterior.targets - pivots[:, None] * steps, variance.clamp_min(1e-9 * posterior.scale)


def chances(posterior: Posterior, at: Tensor, scale: float) -> Tensor:
    """(q, C) how likely each class is the right one at points (q,).

    They sum to one up to quadrature.
    """
    return likelihoods(posterior.mean[at], _spread(posterior, at, scale))


def likelihoods(mean: Tensor, variance: Tensor) -> Tensor:
    """(n, C) how likely each class is the right one, f_c ~ N(mean_c, variance); the order of
    classes is that of `mean`.

    Up to FEW classes by quadrature for each. Beyond, for the leading class alone, and the rest is
    shared among the others as each by itself would beat it.
    """
    if mean.shape[1] <= FEW:
        each = [
            leading(mean, variance, torch.full((len(mean),), c, device=mean.device))
            for c in range(mean.shape[1])
        ]
        p = torch.stack(each, 1)
        return p / p.sum(1, keepdim=True)
    top, first = leading(mean, variance), mean.argmax(1, keepdim=True)
    behind = mean.double() - mean.double().gather(1, first)
    others = torch.special.ndtr(behind / (2 * variance.double())[:, None].sqrt()).scatter_(
        1, first, 0.0
    )
    share = others / others.sum(1, keepdim=True).clamp_min(1e-300) * (1 - top)[:, None]
    p = torch.minimum(share, top[:, None]).scatter_(1, first, top[:, None])
    return p / p.sum(1, keepdim=True)


def error_rate(
    posterior: Posterior, at: Tensor, calibration: Calibration | None = None
) -> ErrorRate:
    """Estimate how many of the predictions at points (q,) are wrong, most of them unlabelled.

    The interval is the posterior's, widened by the binomial uncertainty of as many labels as it
    rests on: it is never narrower than that. Agreement is with labels as they are given, noise
    included.
    """
    known = calibration or calibrate(posterior)
    if not len(at):
        return ErrorRate(0.0, 0.0, 0.0)
    chance = 1 - 1 / posterior.classes
    curve = _error_curve(posterior, at, known.weights.sum(0))
    lapse = torch.tensor(LAPSES, dtype=torch.float64)[:, None]
    rates, order = (lapse * chance + (1 - lapse) * curve).flatten().sort()
    weights = known.weights.flatten()[order]
    rate = float(weights @ rates)
    ends = torch.searchsorted(
        weights.cumsum(0), torch.tensor([TAIL, 1 - TAIL], dtype=torch.float64)
    )
    low, high = rates[ends.clamp_max(len(rates) - 1)].tolist()
    below = math.hypot(max(rate - low, 0.0), _binomial_width(rate, known.evidence))
    above = math.hypot(max(high - rate, 0.0), _binomial_width(max(rate, high), known.evidence))
    return ErrorRate(rate, max(0.0, rate - below), min(1.0, rate + above))


def _error_curve(posterior: Posterior, at: Tensor, weights: Tensor) -> Tensor:
    """(scales,) the error at points (q,) without lapses.

    Interpolated over log s where the posterior has weight.
    """
    some = (weights > 1e-4 * weights.max()).nonzero()[:, 0]
    first, last = int(some[0]), int(some[-1])
    places = torch.linspace(first, last, min(CURVE_POINTS, last - first + 1)).round().long()
    mean = posterior.mean[at]
    errors = [
        1 - float(leading(mean, _spread(posterior, at, SCALES[i])).mean()) for i in places.tolist()
    ]
    logs = np.log(SCALES)
    return torch.from_numpy(np.interp(logs, logs[places.numpy()], errors))


def _binomial_width(rate: float, evidence: int) -> float:
    """Half the width of an interval for a share that was seen among so many labels (Agresti and
    Coull).
    """
    smoothed = (rate * evidence + 1) / (evidence + 2)
    return BINOMIAL_WIDTH * math.sqrt(smoothed * (1 - smoothed) / (evidence + 2))


def _spread(posterior: Posterior, at: Tensor, scale: float) -> Tensor:
    variance = posterior.variance()[at].clamp_min(1e-9 * posterior.scale)
    return math.prod((scale, scale, posterior.amplitude())) * variance
