"""How many of some items are of a class, from their probabilities: a Poisson-binomial count.

With calibrated probabilities p_i and independent labels, the number of positives N has the mean
Σ p_i and the variance Σ p_i (1 − p_i). Its distribution is computed exactly while the variance is
small, and is approximated by a normal distribution with a correction for the skewness otherwise.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from torch import Tensor

from labelahead.errors import InputError

__all__ = ["PositiveCount", "estimate_positive_count"]

MAX_EXACT_VARIANCE = 400.0
SUPPORT_STANDARD_DEVIATIONS = 10.0  # beyond which less than 1e-20 of a count lies
MAX_BATCHED_TERMS = 64  # length of the polynomials that are multiplied together in one step

Pmf = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class PositiveCount(NamedTuple):
    """Expected number of positives, and an interval that contains it with probability `level`."""

    expected: float
    low: int
    high: int
    level: float


def estimate_positive_count(probabilities: Tensor, level: float = 0.95) -> PositiveCount:
    """Estimate how many of some items are positive.

    The interval holds as far as the probabilities are calibrated and the labels are independent
    given them.

    Args:
        probabilities: (n,) of being positive.
        level: Probability that the interval contains the number; between 0 and 1.

    Returns:
        The expected number and the interval, which includes both ends.

    Raises:
        InputError: A probability is not between 0 and 1, or the level is not.

    >>> import torch
    >>> estimate_positive_count(torch.full((20,), 0.5))
    PositiveCount(expected=10.0, low=6, high=14, level=0.95)
    """
    if not 0 < level < 1:
        raise InputError(f"level is {level}; expected a number between 0 and 1")
    p = probabilities.double().flatten().cpu()
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise InputError("a probability is not between 0 and 1; expected calibrated probabilities")
    mean, variance = float(p.sum()), float((p * (1 - p)).sum())
    tail = (1 - level) / 2
    if variance <= MAX_EXACT_VARIANCE:
        low, high = _exact_quantiles(p, tail)
    else:
        skewness = float((p * (1 - p) * (1 - 2 * p)).sum()) / variance**1.5
        z, deviation = NormalDist().inv_cdf(1 - tail), math.sqrt(variance)
        correction = skewness * (z * z - 1) / 6  # Cornish and Fisher
        low = math.floor(mean + deviation * (correction - z) - 0.5)
        high = math.ceil(mean + deviation * (correction + z) + 0.5)
    return PositiveCount(mean, max(low, 0), min(high, len(p)), level)


def _exact_quantiles(p: Tensor, tail: float) -> tuple[int, int]:
    """Return the quantiles `tail` and 1 − `tail` of the number of positives."""
    # Both tails are of rare events: N = (number of likely ones) − negatives among them + the others.
    likely = p > 0.5
    negatives = _distribution((1 - p[likely]).numpy())
    positives = _distribution(p[~likely].numpy())
    pmf = np.convolve(positives, negatives[::-1])
    first = int(likely.sum()) - (len(negatives) - 1)
    cumulative = np.cumsum(pmf)
    low = int(np.searchsorted(cumulative, tail * cumulative[-1]))
    high = int(np.searchsorted(cumulative, (1 - tail) * cumulative[-1]))
    return first + low, first + high


def _distribution(p: Pmf) -> Pmf:
    """Return the probabilities of 0, 1, ... positives, as far as they are not negligible."""
    if not len(p):
        return np.ones(1)
    deviation = math.sqrt(float((p * (1 - p)).sum()))
    support = math.ceil(float(p.sum()) + SUPPORT_STANDARD_DEVIATIONS * (deviation + 1)) + 2
    rows = np.stack([1 - p, p], 1)  # (n, 2): one polynomial per item
    while len(rows) > 1 and rows.shape[1] <= MAX_BATCHED_TERMS:
        if len(rows) % 2:
            rows = np.concatenate([rows, np.eye(1, rows.shape[1])])
        left, right = rows[::2], rows[1::2]
        size = rows.shape[1]
        product = np.zeros((len(left), 2 * size - 1))
        for i in range(size):
            product[:, i : i + size] += left[:, i : i + 1] * right
        rows = product[:, :support]
    found: Pmf = rows[0]
    for row in rows[1:]:
        found = np.convolve(found, row)[:support]
    return found
