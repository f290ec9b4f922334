"""Measures of predictions, in NumPy. The tests compare them with scikit-learn's."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "average_precision",
    "f1_scores",
    "hamming_loss",
    "interval_coverage",
    "quadratic_kappa",
    "r_squared",
    "root_mean_square",
]

Array = NDArray[Any]


def _divide(above: Any, below: Any, empty: float = 0.0) -> Array:
    """Divide, with a value for 0/0."""
    above, below = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    out: Array = np.divide(above, below, out=np.full_like(above, empty), where=below != 0)
    return out


def hamming_loss(chosen: Array, truth: Array) -> float:
    """Compute the share of wrong decisions; truth (n, C) is 0, 1 or NaN (not known)."""
    known = ~np.isnan(truth)
    return float(((chosen != truth) & known).sum() / max(1, known.sum()))


def f1_scores(chosen: Array, truth: Array) -> tuple[float, float]:
    """Compute micro and macro F1 of decisions (n, C).

    A class without any positive decision or label has an F1 of 0, as in scikit-learn.
    """
    known = ~np.isnan(truth)
    yes, said = (truth == 1) & known, chosen.astype(bool) & known
    both, total = (yes & said).sum(0), yes.sum(0) + said.sum(0)
    micro = float(_divide(2 * both.sum(), total.sum()))
    return micro, float(_divide(2 * both, total).mean())


def average_precision(scores: Array, truth: Array) -> float:
    """Compute the mean over classes of the average precision; classes without a positive are left out.

    Items with equal scores count as one step, as in scikit-learn.
    """
    found = []
    for score, labels in zip(scores.T, truth.T, strict=True):
        known = ~np.isnan(labels)
        yes, s = labels[known] == 1, score[known]
        if not yes.any():
            continue
        order = np.argsort(-s, kind="stable")
        hits, s = np.cumsum(yes[order]), s[order]
        last = np.append(np.flatnonzero(np.diff(s)), len(s) - 1)  # of each group of equal scores
        precision, recall = hits[last] / (last + 1), hits[last] / yes.sum()
        found.append(float((np.diff(recall, prepend=0.0) * precision).sum()))
    return float(np.mean(found)) if found else 0.0


def root_mean_square(error: Array) -> float:
    """Compute the root mean square of errors; NaN entries are left out."""
    known = ~np.isnan(error)
    return float(np.sqrt(np.square(error[known]).mean())) if known.any() else 0.0


def r_squared(predicted: Array, truth: Array) -> float:
    """Compute the mean over targets of R² (n, D); NaN entries of the truth are left out."""
    found = []
    for p, y in zip(predicted.T, truth.T, strict=True):
        known = ~np.isnan(y)
        if known.sum() < 2:
            continue
        total = np.square(y[known] - y[known].mean()).sum()
        rest = np.square(y[known] - p[known]).sum()
        found.append(1 - rest / total if total > 0 else float(rest == 0))
    return float(np.mean(found)) if found else 0.0


def interval_coverage(low: Array, high: Array, truth: Array) -> float:
    """Compute the share of values within their intervals; NaN entries are left out."""
    known = ~np.isnan(truth)
    inside = (low <= truth) & (truth <= high) & known
    return float(inside.sum() / max(1, known.sum()))


def quadratic_kappa(chosen: Array, truth: Array, levels: int) -> float:
    """Compute Cohen's kappa with quadratic weights of level numbers (n,).

    1 if all agree on one level, where kappa is not defined.
    """
    table = np.zeros((levels, levels))
    np.add.at(table, (truth, chosen), 1.0)
    steps = np.arange(levels)
    weights = np.square(steps[:, None] - steps)
    by_chance = np.outer(table.sum(1), table.sum(0)) / max(1.0, table.sum())
    expected = float((weights * by_chance).sum())
    return 1 - float((weights * table).sum()) / expected if expected > 0 else 1.0
