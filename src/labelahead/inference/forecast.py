"""Estimate the error of the predictions now, and forecast it after further labels, without test
labels.
"""

import math
from functools import partial
from typing import NamedTuple

from torch import Tensor

from labelahead.acquisition.batch_selection import greedy
from labelahead.acquisition.functions import resolve
from labelahead.acquisition.outputs import find_output_acquisition
from labelahead.acquisition.pool_view import view
from labelahead.gp.calibration import (
    BINOMIAL_STANDARD_DEVIATIONS,
    ErrorRate,
    calibrate,
    estimate_error_rate,
)
from labelahead.gp.posterior import Posterior
from labelahead.tasks import LeaveOneOut, Task, TaskState

__all__ = [
    "FORECAST_LABELS",
    "ErrorForecast",
    "forecast_error",
    "forecast_task_error",
    "max_error_drop",
]

FORECAST_LABELS = 20  # number of further labels that the forecast covers
MAX_FORECAST_ITEMS = 300  # candidates and evaluation points of the forecast
# Labels gained about twice what the formula expects, since it considers the two most probable classes
# only and a fixed kernel (digits, CIFAR-10 features, two tables, seeds 100 to 102: 0.52 of the
# measured gain).
GAIN_CORRECTION = 2.0


class ErrorForecast(NamedTuple):
    """An error estimate with a forecast.

    Attributes:
        error: Estimated share of wrong predictions in the pool; of another task than classes, its
            `error_measure`.
        fall: By how much the next `FORECAST_LABELS` labels are expected to reduce it.
        spread: s²a², the scale of the posterior variances (`labelahead.gp.calibration`).
    """

    error: ErrorRate
    fall: float
    spread: float


def forecast_error(posterior: Posterior, at: Tensor, votes: Tensor | None = None) -> ErrorForecast:
    """Estimate the error of a posterior at points (q,) in random order, and forecast its reduction.

    Args:
        posterior: It must be conditioned on the labels, not trained on them.
        at: (q,) points at which the error is estimated.
        votes: (L,) bool, the labels to calibrate on; default: all.
    """
    calibration = calibrate(posterior, votes)
    spread = calibration.scale**2 * posterior.amplitude()
    some = at[:MAX_FORECAST_ITEMS]
    some = some[~posterior.is_labelled[some]]
    if not len(some):
        return ErrorForecast(estimate_error_rate(posterior, at, calibration), 0.0, spread)
    pool_view = view(posterior, some, some, cache_cross_covariance=True)
    batch = greedy(
        pool_view,
        partial(resolve, variance_scale=calibration.scale**2),
        min(FORECAST_LABELS, len(some)),
        hypothetical_label="mean",
    )
    error = estimate_error_rate(posterior, at, calibration)
    forecast_drop = GAIN_CORRECTION * float(batch.scores.sum()) / len(some)
    return ErrorForecast(
        error,
        min(forecast_drop, max_error_drop(error.rate, len(posterior.all_labels()[0]))),
        spread,
    )


def forecast_task_error(
    posterior: Posterior, at: Tensor, task: Task, state: TaskState, evidence: LeaveOneOut
) -> ErrorForecast:
    """Do `forecast_error` for a task, in the unit of its error.

    Args:
        posterior: Conditioned on the labels.
        at: (q,) points in random order.
        task: What the outputs mean.
        state: How means and variances become predictions.
        evidence: The labels and their leave-one-out predictions: how much the errors vary.
    """
    variance = posterior.variance()
    now = task.predict(posterior.mean[at].cpu(), variance[at].cpu(), state)
    rate, spread = now.estimate_error(), float(state.variance_scale.mean())
    error = ErrorRate(rate, *_error_interval(rate, task, state, evidence))
    some = at[:MAX_FORECAST_ITEMS]
    some = some[~posterior.is_labelled[some]]
    if not len(some) or not math.isfinite(rate):
        return ErrorForecast(error, 0.0, spread)
    pool_view = view(posterior, some, some, cache_cross_covariance=True)
    steps = min(FORECAST_LABELS, len(some))
    name = next(iter(task.acquisitions))
    batch = greedy(pool_view, find_output_acquisition(name), steps, hypothetical_label="mean")
    if name == "resolve":  # its scores are decisions that become right
        fall = float(batch.scores.sum()) / (len(some) * posterior.classes)
    else:
        after = (batch.view.posterior.variance()[some].clamp_min(0.0) + state.noise).mean()
        before = (variance[some].clamp_min(0.0) + state.noise).mean()
        fall = rate * (1 - math.sqrt(float(after / before)))
    drop = max_error_drop(rate, len(posterior.all_labels()[0]))
    return ErrorForecast(error, min(fall, drop), spread)


def _error_interval(
    rate: float, task: Task, state: TaskState, evidence: LeaveOneOut
) -> tuple[float, float]:
    """Return an interval for an estimated error: as uncertain as the mean error of the labels."""
    labels = len(evidence.targets)
    if labels < 2 or not math.isfinite(rate):
        return 0.0, math.inf
    expected = task.predict(evidence.mean, evidence.variance, state).expected_errors()
    relative = math.sqrt(float(expected.var()) + float(expected.mean()) ** 2)
    relative /= max(float(expected.mean()), 1e-300) * math.sqrt(labels)
    if task.error_measure == "rmse":
        relative /= 2  # of the root of a mean
    factor = math.exp(BINOMIAL_STANDARD_DEVIATIONS * relative)
    return rate / factor, rate * factor


def max_error_drop(rate: float, labels: int) -> float:
    """Return the largest reduction of an error rate that the next labels can cause.

    No measured error fell faster than with the square of the number of labels. Without this limit
    the formula would promise perfect predictions where nothing can be learnt.
    """
    return float(rate * (1 - (labels / (labels + FORECAST_LABELS)) ** 2))
