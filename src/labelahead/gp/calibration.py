"""Estimate the error rate of the predictions from the labels themselves.

For each class, f at x is N(m_c, s²a²k(x,x)): the posterior with its standard deviation times one
scale s. The predicted class is right with the probability that its f is the largest,

    P(a leads) = ∫ φ(z) ∏_{c≠a} Φ(z + (m_a − m_c)/(s a √k)) dz.

A share λ of all labels (the lapse rate) is drawn uniformly from the C classes, independently of f:
label noise, and structure that the kernel cannot represent. Each label, predicted from the others
in closed form, then has the probability

    λ/C + (1 − λ) P(its class leads),

and the tempered likelihood of these is a posterior over (s, λ), which gives the mean and the
interval of the error rate. Queried labels are harder than the rest of the pool, but s compares each
with the variance at its own point, so that the estimate carries over to easy items. Where queries
fall also depends on earlier labels, which makes leave-one-out optimistic on pure noise; predictions
of each label from the labels before it are not, so they get most of the weight. The posterior must
not depend on the labels in any other way: the outputs and the kernel of a trained network do.
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
    "binomial_width",
    "calibrate",
    "choose_plausible_scales",
    "estimate_error_rate",
    "fit_scale",
    "gauss_hermite",
    "gaussian_class_probabilities",
    "leading_probability",
    "predict_class_probabilities",
    "predict_one_step_ahead",
    "scaled_variance",
    "select_labels",
]

# Gauss-Hermite quadrature: probabilities are accurate to 1e-4 unless the variance is tiny.
QUADRATURE_NODES = 20
FINE_SCALES = tuple(0.1 * 80 ** (i / 29) for i in range(30))  # 0.1 to 8, steps of 16 %
# Up to 88, where all classes are equally likely. Ordinary data hardly need the larger scales, but
# without them the estimate on pure noise could never reach chance level.
SCALES = (*FINE_SCALES, *(8 * 1.35**i for i in range(1, 9)))
SCALE_PRIOR = (1.0,) * 29 + (2.0,) * 9  # flat in log s: a coarse step is about two fine ones
LAPSE_RATES = tuple(i / 10 for i in range(11))
LAPSE_PRIOR = (0.5,) + (0.05,) * 10  # half of the mass is on a rate of zero
MIN_LABEL_PROBABILITY = 1e-12  # so that a single wrong label does not decide the result
# The log-likelihood is divided by this. The labels were queried, and they also chose the kernel, so
# they carry less information than as many independent ones. Chosen on seeds 100 to 107
# (research/benchmarks/estimates.py): with 1 the intervals were too narrow.
TEMPERATURE = 2.5
ONE_STEP_AHEAD_WEIGHT = 0.75  # of `predict_one_step_ahead`; leave-one-out gets the rest
INTERVAL_TAIL = 0.05  # posterior probability on either side of the interval
BINOMIAL_STANDARD_DEVIATIONS = 1.3  # by which every interval is widened
ERROR_CURVE_POINTS = 7  # scales at which the pool's error is computed; interpolated in between
# With more classes only the leading class gets a quadrature (`gaussian_class_probabilities`).
MAX_CLASSES_BY_QUADRATURE = 12
MAX_CLASSES_SUMMED_ONE_BY_ONE = 100
MAX_BLOCK_ENTRIES = 1 << 22  # numbers in a temporary


class Calibration(NamedTuple):
    """The posterior over the scale s and the lapse rate λ."""

    scale: float  # the most likely s for λ = 0
    weights: Tensor  # (len(LAPSE_RATES), len(SCALES)) posterior probabilities
    label_count: int  # labels that they are estimated from


class ErrorRate(NamedTuple):
    """Share of wrong predictions, with an interval (coverage: docs/results-error.md)."""

    rate: float
    low: float
    high: float


def leading_probability(
    mean: Tensor,
    variance: Tensor,
    label: Tensor | None = None,
    *,
    max_summed_classes: int = MAX_CLASSES_SUMMED_ONE_BY_ONE,
) -> Tensor:
    """Compute the probability that one class has the largest f, f_c ~ N(mean_c, variance).

    Args:
        mean: (n, C).
        variance: (n,), the same for all classes, which are independent.
        label: (n,) class numbers; default: the class with the largest mean.
        max_summed_classes: With more classes, sums over them are interpolated (`normal_sums`).

    Returns:
        (n,) float64.
    """
    mean, label = mean.double(), mean.argmax(1) if label is None else label
    nodes, weights = gauss_hermite(mean.device)
    out = []
    for rows in torch.split(
        torch.arange(len(mean), device=mean.device),
        max(1, MAX_BLOCK_ENTRIES // (QUADRATURE_NODES * mean.shape[1])),
    ):
        m, own = mean[rows], label[rows, None]
        ahead = (m.gather(1, own) - m) / variance[rows].double().sqrt()[:, None]
        if mean.shape[1] > max_summed_classes:
            # The class itself, with an offset of 0, is not one of the others.
            others = sum_log_ndtr(ahead, nodes) - torch.special.log_ndtr(nodes)
        else:
            below = torch.special.log_ndtr(ahead[:, None] + nodes[:, None])  # (rows, nodes, C)
            others = below.scatter_(2, own[:, None].expand(-1, QUADRATURE_NODES, 1), 0.0).sum(2)
        out.append(others.exp_() @ weights)
    return torch.cat(out) if out else mean.new_zeros(0)


@cache
def gauss_hermite(device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights of Gauss-Hermite quadrature for ∫ φ(z) g(z) dz."""
    # They follow from the eigenvectors of Hermite's recurrence (Golub & Welsch).
    steps = torch.arange(1, QUADRATURE_NODES, dtype=torch.float64).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(steps, 1) + torch.diag(steps, -1))
    return nodes.to(device), vectors[0].square().to(device)


def calibrate(posterior: Posterior, label_mask: Tensor | None = None) -> Calibration:
    """Calibrate a posterior by predictions of its labels from the other labels.

    Args:
        posterior: Of a scalar kernel, with at least two classes.
        label_mask: (L,) bool, the labels to use; default: all. Leave out labels that were accepted
            from the model's own predictions: they agree with it whether it is right or not.

    Returns:
        The calibration; its scale is 1 if the labels have fewer than two classes.

    Raises:
        InputError: If the kernel is not scalar or there is one class only.
    """
    if posterior.width != 1 or posterior.classes < 2:
        raise InputError(
            f"the posterior has {posterior.classes} outputs and {posterior.width} kernel rows per "
            "point; expected two or more outputs and a scalar kernel"
        )
    labels, label_mask = select_labels(posterior, label_mask)
    if not bool((labels[label_mask] != labels[label_mask][:1]).any()):
        nothing = torch.zeros(len(SCALES), 0)
        return Calibration(1.0, _posterior_weights(nothing, nothing[0], posterior.classes), 0)
    repeated = _is_repeated(labels, posterior.classes)[label_mask].cpu()
    probability = _label_probabilities(posterior, predict_leave_one_out(posterior), label_mask)
    evidence = _relative_precision(posterior)[label_mask].cpu()
    scale = _most_likely_scale(probability[:, repeated], evidence[repeated])
    # The pool may hold as many unseen classes as the labels did, or none: average the two cases.
    weights = (
        _posterior_weights(probability, evidence, posterior.classes)
        + _posterior_weights(probability[:, repeated], evidence[repeated], posterior.classes)
    ) / 2
    if posterior.nystrom_labels is None:
        later = ~_is_first_of_class(labels)[label_mask].cpu()
        probability = _label_probabilities(posterior, predict_one_step_ahead(posterior), label_mask)
        ahead = _posterior_weights(probability[:, later], evidence[later], posterior.classes)
        weights = (1 - ONE_STEP_AHEAD_WEIGHT) * weights + ONE_STEP_AHEAD_WEIGHT * ahead
    return Calibration(scale, weights, int(evidence[repeated].sum()))


def fit_scale(posterior: Posterior, label_mask: Tensor | None = None) -> float:
    """Compute `calibrate(posterior, label_mask).scale` alone.

    It is the s that maximises the leave-one-out likelihood, at λ = 0, of the labels whose class
    occurs more than once; 1 if there are none.
    """
    labels, label_mask = select_labels(posterior, label_mask)
    if not bool((labels[label_mask] != labels[label_mask][:1]).any()):
        return 1.0
    repeated = _is_repeated(labels, posterior.classes)[label_mask].cpu()
    probability = _label_probabilities(posterior, predict_leave_one_out(posterior), label_mask)
    evidence = _relative_precision(posterior)[label_mask].cpu()
    return _most_likely_scale(probability[:, repeated], evidence[repeated])


def _relative_precision(posterior: Posterior) -> Tensor:
    """(L,) least noise over noise of each label: how much it counts as evidence.

    The model predicts the true class. A label of a source that errs often says little about whether
    it is right, and would raise the lapse rate of all.
    """
    nystrom_labels = posterior.nystrom_labels
    noise = posterior.label_noise if nystrom_labels is None else nystrom_labels.label_noise
    if noise is None:
        return torch.ones_like(posterior.all_labels()[1][:, 0])
    return noise.min().clamp_min(1e-9 * posterior.scale) / noise.clamp_min(1e-9 * posterior.scale)


def _is_repeated(labels: Tensor, classes: int) -> Tensor:
    """(L,) bool: whether another label has the same class.

    A class with a single label cannot be predicted without it, so such a label is no evidence.
    """
    return torch.bincount(labels, minlength=classes)[labels] > 1


def select_labels(posterior: Posterior, label_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """(L,) class numbers of the labels, and (L,) bool which of them to use.

    Those of no class are not used: they do not say which class leads.
    """
    labels, is_class = _list_labels(posterior)
    if label_mask is None:
        return labels, is_class
    return labels, label_mask.to(labels.device) & is_class


def _list_labels(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """(L,) class numbers of the labels, and (L,) bool which of them are of a class.

    The targets of "none of these" are 0 but for rounding, while those of a class sum to 1. Its
    number is C, so that it counts for no class.
    """
    best, labels = posterior.all_labels()[1].max(1)
    is_class = best > 0.5 / posterior.classes
    return labels.where(is_class, posterior.classes), is_class


def _most_likely_scale(probability: Tensor, evidence: Tensor) -> float:
    """The scale of maximum likelihood, given the labels' probabilities (scales, L); 1 without any.

    evidence: (L,) weight of each label.
    """
    if not probability.shape[1]:
        return 1.0
    return float(SCALES[int((probability.log() * evidence).sum(1).argmax())])


def _label_probabilities(
    posterior: Posterior, predicted: tuple[Tensor, Tensor], label_mask: Tensor
) -> Tensor:
    """Probability of each label in the mask under each scale: (scales, labels in the mask).

    predicted: mean (L, C) and variance (L,) of f at the labelled points.
    """
    mean, variance = (part[label_mask] for part in predicted)
    labels = _list_labels(posterior)[0][label_mask]
    spread = posterior.amplitude() * variance
    every = torch.tensor(SCALES, dtype=torch.float64, device=mean.device).repeat_interleave(
        len(labels)
    )
    count = len(SCALES)
    probability = leading_probability(
        mean.repeat(count, 1), every.square() * spread.repeat(count), labels.repeat(count)
    )
    return probability.clamp_min_(MIN_LABEL_PROBABILITY).view(count, -1).cpu()


def _is_first_of_class(labels: Tensor) -> Tensor:
    """(L,) bool: whether no earlier label has the same class."""
    every = labels.tolist()
    first = {c: i for i, c in reversed(list(enumerate(every)))}
    return torch.tensor(
        [first[c] == i for i, c in enumerate(every)], dtype=torch.bool, device=labels.device
    )


def _posterior_weights(probability: Tensor, evidence: Tensor, classes: int) -> Tensor:
    """Tempered posterior (lapse rates, scales), given the labels' probabilities (scales, L).

    evidence: (L,) weight of each label.
    """
    lapse = torch.tensor(LAPSE_RATES, dtype=torch.float64)
    fits = torch.stack(
        [
            ((rate / classes + (1 - rate) * probability.double()).log() * evidence).sum(1)
            for rate in lapse
        ]
    )
    prior = torch.outer(
        torch.tensor(LAPSE_PRIOR, dtype=torch.float64),
        torch.tensor(SCALE_PRIOR, dtype=torch.float64),
    )
    weights = prior * ((fits - fits.max()) / TEMPERATURE).exp()
    return weights / weights.sum()


def predict_leave_one_out(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Predict f at every labelled point from the other labels: mean (L, C), variance (L,)."""
    nystrom_labels = posterior.nystrom_labels
    if nystrom_labels is not None:
        if len(posterior.labelled):
            raise InputError(
                f"{len(posterior.labelled)} labels were added after the others were approximated; "
                "expected all labels approximated together: call approximate_posterior on all"
            )
        return nystrom_labels.leave_one_out_mean, nystrom_labels.leave_one_out_variance.clamp_min(
            1e-9 * posterior.scale
        )
    _require_distinct(posterior)
    divisor = cholesky_inverse(posterior.cholesky_factor()).diagonal().reciprocal()
    variance = divisor - posterior.noise_of_labels()
    return leave_one_out(posterior) + posterior.targets, variance.clamp_min(1e-9 * posterior.scale)


def _require_distinct(posterior: Posterior) -> None:
    """Raise if a point has several labels: they would predict each other."""
    labels = len(posterior.labelled)
    distinct = len(torch.unique(posterior.labelled))
    if distinct < labels:
        raise InputError(
            f"{distinct} points have {labels} labels; expected one label for each point: combine "
            "the labels of a point by combine_labels"
        )


def predict_one_step_ahead(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Predict f at every labelled point from the earlier labels: mean (L, C), variance (L,).

    With Θ(X,X) + D = L Lᵀ and z = L⁻¹(Y − f(X)), the mean is y_i − L_ii z_i and the variance
    L_ii² − σ_i. An item is queried before its label is known, so that active learning cannot bias
    these predictions. It does bias leave-one-out: more labels are queried where labels contradict
    each other, and none where they agree by chance.
    """
    _require_distinct(posterior)
    lower = posterior.cholesky_factor()
    residual = posterior.targets - posterior.outputs[posterior.labelled]
    steps = whiten(lower, residual)
    pivots = lower.diagonal()
    variance = pivots.square() - posterior.noise_of_labels()
    return posterior.targets - pivots[:, None] * steps, variance.clamp_min(1e-9 * posterior.scale)


def predict_class_probabilities(posterior: Posterior, at: Tensor, scale: float) -> Tensor:
    """Predict calibrated class probabilities (q, C) at points (q,)."""
    return gaussian_class_probabilities(posterior.mean[at], scaled_variance(posterior, at, scale))


def gaussian_class_probabilities(mean: Tensor, variance: Tensor) -> Tensor:
    """Compute P(class c has the largest f), f_c ~ N(mean_c, variance): (n, C).

    Up to MAX_CLASSES_BY_QUADRATURE classes each has its own quadrature. With more classes only the
    leading class has, and the rest of the probability is divided among the others in proportion to
    P(f_c > f_leading).
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
    """Estimate the share of wrong predictions at points (q,), most of them unlabelled.

    The interval is that of the posterior, widened by the binomial uncertainty of the number of
    labels behind it. Wrong means different from the label an annotator would give, label noise
    included.
    """
    fitted = calibration or calibrate(posterior)
    if not len(at):
        return ErrorRate(0.0, 0.0, 0.0)
    probability = 1 - 1 / posterior.classes
    curve = _error_curve(posterior, at, fitted.weights.sum(0))
    lapse = torch.tensor(LAPSE_RATES, dtype=torch.float64)[:, None]
    rates, order = (lapse * probability + (1 - lapse) * curve).flatten().sort()
    weights = fitted.weights.flatten()[order]
    rate = float(weights @ rates)
    ends = torch.searchsorted(
        weights.cumsum(0), torch.tensor([INTERVAL_TAIL, 1 - INTERVAL_TAIL], dtype=torch.float64)
    )
    low, high = rates[ends.clamp_max(len(rates) - 1)].tolist()
    below = math.hypot(max(rate - low, 0.0), binomial_width(rate, fitted.label_count))
    above = math.hypot(max(high - rate, 0.0), binomial_width(max(rate, high), fitted.label_count))
    return ErrorRate(rate, max(0.0, rate - below), min(1.0, rate + above))


def _error_curve(posterior: Posterior, at: Tensor, weights: Tensor) -> Tensor:
    """(scales,) the error rate at points (q,) for λ = 0.

    Computed at a few scales where the posterior has weight, interpolated over log s.
    """
    chosen = choose_plausible_scales(weights)
    mean = posterior.mean[at]
    errors = [
        1 - float(leading_probability(mean, scaled_variance(posterior, at, SCALES[i])).mean())
        for i in chosen.tolist()
    ]
    logs = np.log(SCALES)
    return torch.from_numpy(np.interp(logs, logs[chosen.numpy()], errors))


def choose_plausible_scales(weights: Tensor) -> Tensor:
    """Return the numbers of a few of `SCALES` that span those with weight (scales,)."""
    plausible = (weights > 1e-4 * weights.max()).nonzero()[:, 0]
    first, last = int(plausible[0]), int(plausible[-1])
    return torch.linspace(first, last, min(ERROR_CURVE_POINTS, last - first + 1)).round().long()


def binomial_width(rate: float, label_count: float) -> float:
    """Half width of the Agresti-Coull interval of a rate observed on so many labels."""
    smoothed = (rate * label_count + 1) / (label_count + 2)
    return BINOMIAL_STANDARD_DEVIATIONS * math.sqrt(smoothed * (1 - smoothed) / (label_count + 2))


def scaled_variance(posterior: Posterior, at: Tensor, scale: float) -> Tensor:
    """Return s²a²k(x,x) at points (q,)."""
    variance = posterior.variance()[at].clamp_min(1e-9 * posterior.scale)
    return math.prod((scale, scale, posterior.amplitude())) * variance
