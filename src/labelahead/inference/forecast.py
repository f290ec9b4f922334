"""How good the predictions are by now, and what further labels are expected to bring, without a
test label.
"""

from functools import partial
from typing import NamedTuple

from torch import Tensor

from labelahead.acquisition.batch import greedy
from labelahead.acquisition.functions import resolve
from labelahead.acquisition.view import view
from labelahead.gp.calibration import ErrorRate, calibrate, estimate_error_rate
from labelahead.gp.posterior import Posterior

__all__ = ["FORECAST_LABELS", "ErrorForecast", "forecast_error", "max_error_drop"]

FORECAST_LABELS = 20  # further labels whose worth is told
MAX_FORECAST_ITEMS = (
    300  # items among which these are chosen, and whose predictions they may put right
)
# Labels brought about twice what the formula expects: it looks at the two likeliest classes alone,
# and at a kernel that is not chosen anew (digits, CIFAR-10 features, two tables, seeds 100 to 102:
# 0.52 of what came).
GAIN_CORRECTION = 2.0


class ErrorForecast(NamedTuple):
    """error: share of wrong predictions in the pool. fall: by how much the next `FORECAST_LABELS` labels will
    lower it.

    spread: s²a², by which posterior variances are multiplied to be those of f (see
    `linear.calibration`).
    """

    error: ErrorRate
    fall: float
    spread: float


def forecast_error(posterior: Posterior, at: Tensor, votes: Tensor | None = None) -> ErrorForecast:
    """Of a posterior that knows the labels by conditioning alone, judged at points (q,) in random
    order.

    votes: (L,) bool, which labels tell how good predictions are (`calibrate`); default: all.
    """
    known = calibrate(posterior, votes)
    spread = known.scale**2 * posterior.amplitude()
    some = at[:MAX_FORECAST_ITEMS]
    some = some[~posterior.is_labelled[some]]
    if not len(some):
        return ErrorForecast(estimate_error_rate(posterior, at, known), 0.0, spread)
    seen = view(posterior, some, some, cache_cross_covariance=True)
    picks = greedy(
        seen,
        partial(resolve, variance_scale=known.scale**2),
        min(FORECAST_LABELS, len(some)),
        hypothetical_label="mean",
    )
    error = estimate_error_rate(posterior, at, known)
    brought = GAIN_CORRECTION * float(picks.scores.sum()) / len(some)
    return ErrorForecast(
        error, min(brought, max_error_drop(error.rate, len(posterior.all_labels()[0]))), spread
    )


def max_error_drop(rate: float, labels: int) -> float:
    """What the next labels can take off an error at best: none was seen to fall faster than by
    their square.

    Where nothing can be learnt, the formula alone would promise all of it.
    """
    return float(rate * (1 - (labels / (labels + FORECAST_LABELS)) ** 2))
