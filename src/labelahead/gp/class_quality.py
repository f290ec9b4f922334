"""Estimate precision, recall and F1 of every class, and the confusion matrix, from the labels.

The model is that of `labelahead.gp.calibration`: with a scale s and a lapse rate λ, an item x is of
class a with the probability λ/C + (1 − λ) P_s(a | x). Over items of which N_b are predicted to be of
class b, the expected confusion matrix is

    M_ab = λ N_b / C + (1 − λ) Σ_{x predicted b} P_s(a | x),

and with it precision_c = M_cc / N_c, recall_c = M_cc / Σ_b M_cb, F1_c = 2 M_cc / (N_c + Σ_b M_cb).
The posterior over (s, λ) gives the means and the first part of the intervals. Two parts are added in
squares: the binomial uncertainty of a rate that was observed on the labels of this class alone,
since one (s, λ) for all classes need not fit each of them; and that of a rate among so few items.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelahead.gp.calibration import (
    INTERVAL_TAIL,
    LAPSE_RATES,
    SCALES,
    Calibration,
    binomial_width,
    calibrate,
    choose_plausible_scales,
    gaussian_class_probabilities,
    predict_leave_one_out,
    scaled_variance,
    select_labels,
)
from labelahead.gp.posterior import Posterior

__all__ = ["FEW_CLASS_LABELS", "ClassEstimate", "ClassReport", "Estimate", "estimate_class_report"]

FEW_CLASS_LABELS = 5  # below, the estimates of a class come with a warning
ITEM_STANDARD_DEVIATIONS = 1.645  # of the binomial uncertainty of a rate among few items: 90 %
MAX_LISTED_CLASSES = 40  # with more, the JSON has no confusion matrix


class Estimate(NamedTuple):
    """An estimate with its interval (coverage: docs/method.md)."""

    value: float
    low: float
    high: float


class ClassEstimate(NamedTuple):
    """Estimated quality of the predictions of one class."""

    number: int
    labels: int  # that the estimate is based on
    predicted: int  # items predicted to be of the class
    expected: float  # items expected to be of it
    precision: Estimate | None  # None if no item is predicted to be of the class
    recall: Estimate
    f1: Estimate

    @property
    def warning(self) -> str:
        """A warning if the class has too few labels; "" otherwise."""
        if self.labels >= FEW_CLASS_LABELS:
            return ""
        if not self.labels:
            return "no label: nothing is known about this class"
        labels = "1 label" if self.labels == 1 else f"{self.labels} labels"
        return f"only {labels}: the estimates are unreliable below {FEW_CLASS_LABELS}"


@dataclass(frozen=True, eq=False)
class ClassReport:
    """Estimated quality of the predictions of all classes at some items.

    Attributes:
        classes: One row per class.
        confusion: (C, C) expected number of items by true class (row) and predicted class.
    """

    classes: tuple[ClassEstimate, ...]
    confusion: Tensor

    @property
    def macro_f1(self) -> float:
        """The mean of the estimated F1 of all classes."""
        return sum(row.f1.value for row in self.classes) / len(self.classes)

    def to_state(self, numbers: list[int] | None = None) -> dict[str, Any]:
        """Return plain values, with these class numbers instead of 0, 1, ...

        The confusion matrix is left out with more than `MAX_LISTED_CLASSES` classes.
        """
        rows = []
        for row in self.classes:
            number = row.number if numbers is None else numbers[row.number]
            parts = {
                name: None if e is None else [round(v, 4) for v in e]
                for name, e in (
                    ("precision", row.precision),
                    ("recall", row.recall),
                    ("f1", row.f1),
                )
            }
            rows.append(
                {
                    "number": number,
                    "labels": row.labels,
                    "predicted": row.predicted,
                    "expected": round(row.expected, 1),
                    **parts,
                    "warning": row.warning,
                }
            )
        listed = len(rows) <= MAX_LISTED_CLASSES
        matrix = [[round(v, 1) for v in line] for line in self.confusion.tolist()]
        return {
            "macro_f1": round(self.macro_f1, 4),
            "classes": rows,
            "confusion": matrix if listed else None,
        }


def estimate_class_report(
    posterior: Posterior,
    at: Tensor,
    label_mask: Tensor | None = None,
    calibration: Calibration | None = None,
) -> ClassReport:
    """Estimate precision, recall and F1 of every class at points (q,), most of them unlabelled.

    Args:
        posterior: Conditioned on the labels, not trained on them; of a scalar kernel.
        at: (q,) points.
        label_mask: (L,) bool, the labels to calibrate on; default: all.
        calibration: `calibrate(posterior, label_mask)`, if it is known.

    Returns:
        The report; its intervals are pointwise, for each number alone.

    >>> report = estimate_class_report(post, torch.arange(2, 6))
    >>> [row.labels for row in report.classes]
    [1, 1, 0]
    >>> round(float(report.confusion.sum()), 6)  # every item is counted once
    4.0
    """
    fitted = calibration or calibrate(posterior, label_mask)
    mean, classes = posterior.mean[at], posterior.classes
    predicted = mean.argmax(1)
    counts = torch.bincount(predicted, minlength=classes).double().cpu()
    chosen = choose_plausible_scales(fitted.weights.sum(0))
    joints = torch.zeros(len(chosen), classes, classes, dtype=torch.float64)
    for k, i in enumerate(chosen.tolist()):
        p = gaussian_class_probabilities(mean, scaled_variance(posterior, at, SCALES[i]))
        joints[k].index_add_(1, predicted.cpu(), p.T.cpu())
    share = _interpolation(chosen)  # (scales, chosen)
    lapse = torch.tensor(LAPSE_RATES, dtype=torch.float64)
    kept = share.T @ ((1 - lapse) @ fitted.weights)  # (chosen,) weight of each joint
    lost = float(lapse @ fitted.weights.sum(1)) / classes
    confusion = torch.einsum("k,kab->ab", kept, joints) + lost * counts
    # (λ, s, C) expected true positives and members
    mix = lapse[:, None, None]
    right = mix * counts / classes + (1 - mix) * (share @ joints.diagonal(dim1=1, dim2=2))
    members = mix * counts.sum() / classes + (1 - mix) * (share @ joints.sum(2))
    return _build_report(posterior, label_mask, fitted, counts, confusion, right, members)


def _build_report(
    posterior: Posterior,
    label_mask: Tensor | None,
    fitted: Calibration,
    counts: Tensor,
    confusion: Tensor,
    right: Tensor,
    members: Tensor,
) -> ClassReport:
    """Return the report from the expected counts (λ, s, C) under every scale and lapse rate."""
    own, guessed = _count_labels(posterior, label_mask)
    expected = confusion.sum(1)
    pairs = (
        (counts.expand_as(right), guessed, counts),
        (members, own, expected),
        ((counts + members) / 2, (own + guessed) / 2, (counts + expected) / 2),
    )
    columns = [
        _summarise_rates(right / whole.clamp_min(1e-300), fitted.weights, labels, items)
        for whole, labels, items in pairs
    ]
    rows = []
    for c, (precision, recall, f1) in enumerate(zip(*columns, strict=True)):
        is_predicted = bool(counts[c])
        never = Estimate(0.0, 0.0, 0.0)  # none of the members is found
        rows.append(
            ClassEstimate(
                c,
                int(own[c]),
                int(counts[c]),
                float(expected[c]),
                precision if is_predicted else None,
                recall if is_predicted else never,
                f1 if is_predicted else never,
            )
        )
    return ClassReport(tuple(rows), confusion)


def _summarise_rates(
    rates: Tensor, weights: Tensor, labels: Tensor, items: Tensor
) -> list[Estimate]:
    """Return mean and interval of rates (λ, s, C) with these weights (λ, s).

    labels, items: (C,) numbers of labels and of items that a rate refers to.
    """
    flat, order = rates.clamp(0, 1).flatten(0, 1).sort(0)
    sorted_weights = weights.flatten()[order]  # (λ s, C)
    means = (sorted_weights * flat).sum(0).tolist()
    cumulative = sorted_weights.cumsum(0).T.contiguous()
    tails = torch.tensor([INTERVAL_TAIL, 1 - INTERVAL_TAIL], dtype=torch.float64)
    ends = torch.searchsorted(cumulative, tails.expand(len(means), 2).contiguous())
    bounds = flat.T.gather(1, ends.clamp_max(len(flat) - 1)).tolist()
    found = []
    for mean, (low, high), n, among in zip(
        means, bounds, labels.tolist(), items.tolist(), strict=True
    ):
        few = ITEM_STANDARD_DEVIATIONS * math.sqrt(mean * (1 - mean) / max(among, 1.0))
        below = math.hypot(max(mean - low, 0.0), binomial_width(mean, n), few)
        above = math.hypot(max(high - mean, 0.0), binomial_width(mean, n), few)
        found.append(Estimate(mean, max(0.0, mean - below), min(1.0, mean + above)))
    return found


def _count_labels(posterior: Posterior, label_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """(C,) labels of each class, and (C,) labels that the others predict to be of each class."""
    labels, mask = select_labels(posterior, label_mask)
    guessed = predict_leave_one_out(posterior)[0].argmax(1)
    own, others = (
        torch.bincount(part[mask], minlength=posterior.classes).double().cpu()
        for part in (labels, guessed)
    )
    return own, others


def _interpolation(chosen: Tensor) -> Tensor:
    """(scales, k) weights that interpolate values at the chosen scales (k,) over log s."""
    logs = np.log(SCALES)
    columns = [np.interp(logs, logs[chosen.numpy()], unit) for unit in np.eye(len(chosen))]
    return torch.from_numpy(np.stack(columns, 1))
