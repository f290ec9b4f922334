"""Advice on stopping: when further labels are expected to improve little. Nothing stops by itself."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from labelahead.inference.forecast import FORECAST_LABELS

__all__ = [
    "ErrorReading",
    "estimate_leave_one_out",
    "required_hold_labels",
    "stop_advice",
    "stopping_progress",
    "wilson_interval",
]

NORMAL_QUANTILE = 1.959964  # of a 95 % interval

MIN_LABELS = 50  # labels from which on the estimated error can be relied on (docs/results-error.md)
MIN_FORECAST_DROP = 0.005  # share of the pool: so much should the next labels put right
# estimated error above which stopping is never advised, however little further labels bring
MAX_ERROR = 0.15
MAX_UPPER_ERROR = 0.25  # likewise for the upper end of its interval: noisy labels keep that high
MIN_READINGS = 3  # readings in a row before advice is offered or withdrawn
MIN_HOLD, HOLD_SHARE = 40, 0.25  # and over so many labels, or this share of those that there are


class LeaveOneOut(NamedTuple):
    """Leave-one-out accuracy and squared error of some labelled items."""

    accuracy: float  # how often they are right
    error: float  # mean squared residual


def estimate_leave_one_out(
    leave_one_out: Tensor, residual: Tensor, labels: Tensor, random: int
) -> LeaveOneOut:
    """Compute leave-one-out accuracy and error on the first `random` items.

    Only items that were drawn at random are evaluated (with the help of all others): queried items
    are hard ones and not representative of the pool. A trained network is usually better than its
    initial kernel, so this shows progress rather than accuracy.

    Args:
        others: (L, C) leave-one-out predictions of a learner.
        residual: (L, C) leave-one-out residuals.
        labels: (L,) class numbers.
        random: Number of items drawn at random, which come first.
    """
    right = float((leave_one_out[:random].argmax(1) == labels[:random]).double().mean())
    return LeaveOneOut(right, float(residual[:random].square().sum(1).mean()))


class ErrorReading(NamedTuple):
    """The error estimate of one round or refresh.

    `fall` is the reduction expected from the next `FORECAST_LABELS` labels. None: not estimated.
    """

    labels: int
    error: float | None
    low: float | None
    high: float | None
    fall: float | None


def stopping_progress(readings: Sequence[ErrorReading]) -> float | None:
    """Return how close the readings are to `stop_advice`: 1 when it is given, below that a share.

    The share is that of the condition which is furthest from being met.
    """
    last = readings[-1] if readings else None
    if last is None or last.error is None or last.high is None or last.fall is None:
        return None
    offered, held_labels = _track_advice(readings)
    if offered:
        return 1.0
    shares = (
        last.labels / MIN_LABELS,
        MAX_ERROR / max(last.error, MAX_ERROR),
        MAX_UPPER_ERROR / max(last.high, MAX_UPPER_ERROR),
        MIN_FORECAST_DROP / max(last.fall, MIN_FORECAST_DROP),
        0.5
        + 0.5 * held_labels,  # the last half of the bar is the time over which the others must hold
    )
    return min(1.0, *shares)


def stop_advice(readings: Sequence[ErrorReading]) -> str | None:
    """Return the advice to stop, None unless the conditions held for several rounds.

    It depends only on the history of readings, so it is the same after a restart. It is given after
    `MIN_READINGS` consecutive good readings, over `required_hold_labels`, and withdrawn after as
    many bad ones: a single reading changes nothing.

    >>> from labelahead.learner.stopping import ErrorReading, stop_advice
    >>> good = [ErrorReading(n, 0.02, 0.01, 0.05, 0.001) for n in (60, 80, 100)]
    >>> stop_advice(good[:2]) is None, stop_advice(good) is None
    (True, False)
    """
    if not _track_advice(readings)[0]:
        return None
    last = next(r for r in reversed(readings) if r.error is not None)
    standing = (
        f"this has held for {required_hold_labels(last.labels)} labels or more"
        if _supports_stopping(last)
        else "this was better before, and the advice is withdrawn if it stays so"
    )
    return (
        f"an estimated {last.error:.1%} of the predictions are wrong ({last.low:.1%} to "
        f"{last.high:.1%}), and the next {FORECAST_LABELS} labels are expected to bring "
        f"{100 * (last.fall or 0.0):.1f} points; {standing}: you may stop here, if the labels are "
        "right, new items are like these and no class is missing"
    )


def required_hold_labels(labels: int) -> int:
    """Return over how many labels readings must agree before the advice changes."""
    return max(MIN_HOLD, round(HOLD_SHARE * labels))


def _track_advice(readings: Sequence[ErrorReading]) -> tuple[bool, float]:
    """Return whether advice is given after these readings, and how much of the required period has
    passed.
    """
    offered, run = (
        False,
        list[int](),
    )  # run: labels of the latest readings that contradict the current advice
    for reading in readings:
        if _supports_stopping(reading) == offered:
            run.clear()
            continue
        if run and reading.labels < run[-1]:  # answers were taken back
            run.clear()
        run.append(reading.labels)
        if len(run) >= MIN_READINGS and run[-1] - run[0] >= required_hold_labels(run[-1]):
            offered = not offered
            run.clear()
    if offered or not run:
        return offered, 1.0 if offered else 0.0
    return offered, min(
        1.0, (run[-1] - run[0]) / required_hold_labels(run[-1]), len(run) / MIN_READINGS
    )


def _supports_stopping(reading: ErrorReading) -> bool:
    """Return whether one reading, taken alone, would allow stopping."""
    if reading.error is None or reading.high is None or reading.fall is None:
        return False
    few_wrong = reading.error <= MAX_ERROR and reading.high <= MAX_UPPER_ERROR
    return reading.labels >= MIN_LABELS and few_wrong and reading.fall < MIN_FORECAST_DROP


def wilson_interval(right: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927)."""
    z2, share = NORMAL_QUANTILE**2, right / n
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = NORMAL_QUANTILE / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))  # rounding
