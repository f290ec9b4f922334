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
    "estimate_error_rate",
    "fit_scale",
    "gauss_hermite",
    "gaussian_class_probabilities",
    "leading_probability",
    "predict_class_probabilities",
    "predict_one_step_ahead",
]

QUADRATURE_NODES = (
    20  # of Gauss-Hermite quadrature: 1e-4 of a probability where spreads are not tiny
)
FINE_SCALES = tuple(0.1 * 80 ** (i / 29) for i in range(30))  # 0.1 to 8, steps of 16 %
# Larger factors hardly matter to ordinary data, but without them pure noise could never be called
# probability.
SCALES = (
    *FINE_SCALES,
    *(8 * 1.35**i for i in range(1, 9)),
)  # up to 88, where every class is as likely as the others
SCALE_PRIOR = (1.0,) * 29 + (2.0,) * 9  # flat in log s: a coarse step is about two fine ones
LAPSE_RATES = tuple(i / 10 for i in range(11))  # lapse rates λ
LAPSE_PRIOR = (0.5,) + (0.05,) * 10  # half of the mass on no lapse at all
MIN_LABEL_PROBABILITY = 1e-12  # a label is never less likely: one slip must not decide alone
# The log-likelihood is divided by this. Labels were chosen, and the kernel was chosen by the same
# labels, so that they say less than as many independent ones. Chosen on seeds 100 to 107
# (research/benchmarks/estimates.py): 1 was too narrow.
TEMPERATURE = 2.5
ONE_STEP_AHEAD_WEIGHT = (
    0.75  # of the posterior that rests on `predict_one_step_ahead`; the rest on leave-one-out
)
INTERVAL_TAIL = 0.05  # of the posterior on either side of the interval
# standard deviations of a share of the labels, by which every interval is widened
BINOMIAL_STANDARD_DEVIATIONS = 1.3
# scales at which the error of the pool is worked out; between them it is interpolated
ERROR_CURVE_POINTS = 7
MAX_CLASSES_BY_QUADRATURE = 12  # classes whose predict_class_probabilities are all worked out
MAX_CLASSES_SUMMED_ONE_BY_ONE = 100  # beyond, sums over classes are interpolated (`normal_sums`)
MAX_BLOCK_ENTRIES = 1 << 22  # numbers worked on at a time


class Calibration(NamedTuple):
    """What the labels say of s and λ.

    scale: the likeliest s without lapses. weights: (len(LAPSE_RATES), len(SCALES)) posterior
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


def leading_probability(mean: Tensor, variance: Tensor, label: Tensor | None = None) -> Tensor:
    """P(f of `label`, default the leading class, is the largest), f_c ~ N(mean_c, variance)
    independently.

    mean (n, C), variance (n,), label (n,) -> (n,), float64.
    """
    mean, label = mean.double(), mean.argmax(1) if label is None else label
    nodes, weights = gauss_hermite(mean.device)
    out = []
    for rows in torch.split(
        torch.arange(len(mean)), max(1, MAX_BLOCK_ENTRIES // (QUADRATURE_NODES * mean.shape[1]))
    ):
        m, own = mean[rows], label[rows, None]
        ahead = (m.gather(1, own) - m) / variance[rows].double().sqrt()[:, None]
        if mean.shape[1] > MAX_CLASSES_SUMMED_ONE_BY_ONE:
            others = sum_log_ndtr(ahead, nodes) - torch.special.log_ndtr(
                nodes
            )  # without its own, which is 0 ahead
        else:
            below = torch.special.log_ndtr(ahead[:, None] + nodes[:, None])  # (rows, nodes, C)
            others = below.scatter_(2, own[:, None].expand(-1, QUADRATURE_NODES, 1), 0.0).sum(2)
        out.append(others.exp_() @ weights)
    return torch.cat(out) if out else mean.new_zeros(0)


@cache
def gauss_hermite(device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights of ∫ φ(z) g(z) dz."""
    # The eigenvectors of Hermite's recurrence (Golub & Welsch).
    steps = torch.arange(1, QUADRATURE_NODES, dtype=torch.float64).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(steps, 1) + torch.diag(steps, -1))
    return nodes.to(device), vectors[0].square().to(device)


def calibrate(posterior: Posterior, label_mask: Tensor | None = None) -> Calibration:
    """Calibrate a scalar kernel's posterior by leave-one-out of its labels; scale 1 where they
    cannot tell.

    label_mask: (L,) bool, which labels tell; default: all. One that was taken over from the prediction
    itself does not: it agrees with it whether it is right or not.
    """
    if posterior.width != 1 or posterior.classes < 2:
        raise InputError(
            f"the posterior has {posterior.classes} outputs and {posterior.width} kernel rows a "
            "point; expected two "
            "or more outputs and a scalar kernel"
        )
    labels, label_mask = _select_labels(posterior, label_mask)
    if not bool((labels[label_mask] != labels[label_mask][:1]).any()):
        return Calibration(
            1.0, _posterior_weights(torch.zeros(len(SCALES), 0), posterior.classes), 0
        )
    repeated = _is_repeated(labels, posterior.classes)[label_mask].cpu()
    probability = _label_probabilities(posterior, predict_leave_one_out(posterior), label_mask)
    scale = _most_likely_scale(probability[:, repeated])
    # Either the pool has as many new classes as the labels had, or none: both are admitted.
    weights = (
        _posterior_weights(probability, posterior.classes)
        + _posterior_weights(probability[:, repeated], posterior.classes)
    ) / 2
    if posterior.nystrom_labels is None:
        later = ~_is_first_of_class(labels)[label_mask].cpu()
        probability = _label_probabilities(posterior, predict_one_step_ahead(posterior), label_mask)
        ahead = _posterior_weights(probability[:, later], posterior.classes)
        weights = (1 - ONE_STEP_AHEAD_WEIGHT) * weights + ONE_STEP_AHEAD_WEIGHT * ahead
    return Calibration(scale, weights, int(repeated.sum()))


def fit_scale(posterior: Posterior, label_mask: Tensor | None = None) -> float:
    """Find the s without lapses that makes labels of repeated classes, each left out, likeliest; 1
    without any.

    It is `calibrate(posterior, label_mask).scale`, without the rest.
    """
    labels, label_mask = _select_labels(posterior, label_mask)
    if not bool((labels[label_mask] != labels[label_mask][:1]).any()):
        return 1.0
    repeated = _is_repeated(labels, posterior.classes)[label_mask].cpu()
    return _most_likely_scale(
        _label_probabilities(posterior, predict_leave_one_out(posterior), label_mask)[:, repeated]
    )


def _is_repeated(labels: Tensor, classes: int) -> Tensor:
    """(L,) bool: another label has the same class.

    A class that was labelled once cannot be predicted without that label, whatever is true of the
    pool.
    """
    return torch.bincount(labels, minlength=classes)[labels] > 1


def _select_labels(posterior: Posterior, label_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """(L,) class numbers of the labels, and (L,) bool which of them tell."""
    labels = posterior.all_labels()[1].argmax(1)
    return labels, torch.ones_like(
        labels, dtype=torch.bool
    ) if label_mask is None else label_mask.to(labels.device)


def _most_likely_scale(probability: Tensor) -> float:
    """The scale that makes labels likeliest, given how likely each makes each (scales, L).

    1 without any.
    """
    return (
        1.0 if not probability.shape[1] else float(SCALES[int(probability.log().sum(1).argmax())])
    )


def _label_probabilities(
    posterior: Posterior, predicted: tuple[Tensor, Tensor], label_mask: Tensor
) -> Tensor:
    """(scales, label_mask) how likely each scale makes each label that label_mask, given mean (L, C) and
    variance (L,) there.
    """
    mean, variance = (part[label_mask] for part in predicted)
    labels, spread = (
        posterior.all_labels()[1].argmax(1)[label_mask],
        posterior.amplitude() * variance,
    )
    every = torch.tensor(SCALES, dtype=torch.float64, device=mean.device).repeat_interleave(
        len(labels)
    )
    count = len(SCALES)
    probability = leading_probability(
        mean.repeat(count, 1), every.square() * spread.repeat(count), labels.repeat(count)
    )
    return probability.clamp_min_(MIN_LABEL_PROBABILITY).view(count, -1).cpu()


def _is_first_of_class(labels: Tensor) -> Tensor:
    """(L,) bool: no label before has the same class."""
    every = labels.tolist()
    first = {c: i for i, c in reversed(list(enumerate(every)))}
    return torch.tensor(
        [first[c] == i for i, c in enumerate(every)], dtype=torch.bool, device=labels.device
    )


def _posterior_weights(probability: Tensor, classes: int) -> Tensor:
    """(lapses, scales) tempered posterior, given how likely each scale makes each label (scales,
    L).
    """
    lapse = torch.tensor(LAPSE_RATES, dtype=torch.float64)
    fits = torch.stack(
        [(rate / classes + (1 - rate) * probability.double()).log().sum(1) for rate in lapse]
    )
    prior = torch.outer(
        torch.tensor(LAPSE_PRIOR, dtype=torch.float64),
        torch.tensor(SCALE_PRIOR, dtype=torch.float64),
    )
    weights = prior * ((fits - fits.max()) / TEMPERATURE).exp()
    return weights / weights.sum()


def predict_leave_one_out(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Mean (L, C) and variance (L,) of f at every labelled point, given all labels but its own."""
    nystrom_labels = posterior.nystrom_labels
    if nystrom_labels is not None:
        if len(posterior.labelled):
            raise InputError(
                "labels came after others were condensed; expected all of them condensed together"
            )
        return nystrom_labels.leave_one_out_mean, nystrom_labels.leave_one_out_variance.clamp_min(
            1e-9 * posterior.scale
        )
    variance = (
        cholesky_inverse(posterior.cholesky_factor()).diagonal().reciprocal() - posterior.noise
    )
    return leave_one_out(posterior) + posterior.targets, variance.clamp_min(1e-9 * posterior.scale)


def predict_one_step_ahead(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Mean (L, C) and variance (L,) of f at every labelled point, given only the labels before its
    own.

    With A = L Lᵀ the Cholesky factor of Θ(X,X) + σI and z = L⁻¹(Y − f(X)), the mean is y − L_ii z_i
    and the variance L_ii² − σ. An item is chosen before its label is calibrated, so that active learning
    cannot make these agree by probability. Leave-one-out can: where labels contradict each other more
    are asked for, and where they agree by luck none.
    """
    lower = posterior.cholesky_factor()
    residual = posterior.targets - posterior.outputs[posterior.labelled]
    steps = whiten(lower, residual)
    pivots = lower.diagonal()
    variance = pivots.square() - posterior.noise
    return posterior.targets - pivots[:, None] * steps, variance.clamp_min(1e-9 * posterior.scale)


def predict_class_probabilities(posterior: Posterior, at: Tensor, scale: float) -> Tensor:
    """(q, C) how likely each class is the right one at points (q,).

    They sum to one up to quadrature.
    """
    return gaussian_class_probabilities(posterior.mean[at], _scaled_variance(posterior, at, scale))


def gaussian_class_probabilities(mean: Tensor, variance: Tensor) -> Tensor:
    """(n, C) how likely each class is the right one, f_c ~ N(mean_c, variance); the order of
    classes is that of `mean`.

    Up to MAX_CLASSES_BY_QUADRATURE classes by quadrature for each. Beyond, for the leading class alone, and the rest is
    shared among the others as each by itself would beat it.
    """
    if mean.shape[1] <= MAX_CLASSES_BY_QUADRATURE:
        each = [
            leading_probability(mean, variance, torch.full((len(mean),), c, device=mean.device))
            for c in range(mean.shape[1])
        ]
        p = torch.stack(each, 1)
        return p / p.sum(1, keepdim=True)
    top, first = leading_probability(mean, variance), mean.argmax(1, keepdim=True)
    behind = mean.double() - mean.double().gather(1, first)
    others = torch.special.ndtr(behind / (2 * variance.double())[:, None].sqrt()).scatter_(
        1, first, 0.0
    )
    share = others / others.sum(1, keepdim=True).clamp_min(1e-300) * (1 - top)[:, None]
    p = torch.minimum(share, top[:, None]).scatter_(1, first, top[:, None])
    return p / p.sum(1, keepdim=True)


def estimate_error_rate(
    posterior: Posterior, at: Tensor, calibration: Calibration | None = None
) -> ErrorRate:
    """Estimate how many of the predictions at points (q,) are wrong, most of them unlabelled.

    The interval is the posterior's, widened by the binomial uncertainty of as many labels as it
    rests on: it is never narrower than that. Agreement is with labels as they are given, noise
    included.
    """
    calibrated = calibration or calibrate(posterior)
    if not len(at):
        return ErrorRate(0.0, 0.0, 0.0)
    probability = 1 - 1 / posterior.classes
    curve = _error_curve(posterior, at, calibrated.weights.sum(0))
    lapse = torch.tensor(LAPSE_RATES, dtype=torch.float64)[:, None]
    rates, order = (lapse * probability + (1 - lapse) * curve).flatten().sort()
    weights = calibrated.weights.flatten()[order]
    rate = float(weights @ rates)
    ends = torch.searchsorted(
        weights.cumsum(0), torch.tensor([INTERVAL_TAIL, 1 - INTERVAL_TAIL], dtype=torch.float64)
    )
    low, high = rates[ends.clamp_max(len(rates) - 1)].tolist()
    below = math.hypot(max(rate - low, 0.0), _binomial_width(rate, calibrated.evidence))
    above = math.hypot(max(high - rate, 0.0), _binomial_width(max(rate, high), calibrated.evidence))
    return ErrorRate(rate, max(0.0, rate - below), min(1.0, rate + above))


def _error_curve(posterior: Posterior, at: Tensor, weights: Tensor) -> Tensor:
    """(scales,) the error at points (q,) without lapses.

    Interpolated over log s where the posterior has weight.
    """
    some = (weights > 1e-4 * weights.max()).nonzero()[:, 0]
    first, last = int(some[0]), int(some[-1])
    places = torch.linspace(first, last, min(ERROR_CURVE_POINTS, last - first + 1)).round().long()
    mean = posterior.mean[at]
    errors = [
        1 - float(leading_probability(mean, _scaled_variance(posterior, at, SCALES[i])).mean())
        for i in places.tolist()
    ]
    logs = np.log(SCALES)
    return torch.from_numpy(np.interp(logs, logs[places.numpy()], errors))


def _binomial_width(rate: float, evidence: int) -> float:
    """Half the width of an interval for a share that was seen among so many labels (Agresti and
    Coull).
    """
    smoothed = (rate * evidence + 1) / (evidence + 2)
    return BINOMIAL_STANDARD_DEVIATIONS * math.sqrt(smoothed * (1 - smoothed) / (evidence + 2))


def _scaled_variance(posterior: Posterior, at: Tensor, scale: float) -> Tensor:
    variance = posterior.variance()[at].clamp_min(1e-9 * posterior.scale)
    return math.prod((scale, scale, posterior.amplitude())) * variance
