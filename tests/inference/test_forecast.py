"""Error forecasts without test labels."""

import pytest
import torch
from sklearn.datasets import load_digits

from labelahead.acquisition.batch_selection import greedy
from labelahead.acquisition.functions import resolve
from labelahead.acquisition.pool_view import view
from labelahead.gp.calibration import calibrate, estimate_error_rate
from labelahead.gp.posterior import prior
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel
from labelahead.inference.forecast import (
    FORECAST_LABELS,
    GAIN_CORRECTION,
    MAX_FORECAST_ITEMS,
    forecast_error,
    max_error_drop,
)


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return torch.tensor(found.data)[order].float(), torch.tensor(found.target)[order].long()


def test_forecast_matches_measured_error_reduction(digits):
    """Intervals have 90 % coverage, so one of six may miss.

    The first interval with 60 labels misses by a point.
    """
    covered = 0
    for shuffle in range(3):
        order = torch.randperm(1797, generator=torch.Generator().manual_seed(shuffle))
        x, y = (values[order] for values in digits) if shuffle else digits
        learner, rest, forecasts = (
            ExactLearner(x, ExactModel(x.mean(0), 10)),
            torch.arange(400, 1400),
            [],
        )
        for count in (60, 200):
            at = torch.arange(count)
            fitted = learner.fit(at, y[at])
            error_rate = 1 - fitted.accuracy(rest, y[rest])
            forecasts.append(learner.forecast_error(at, y[at], rest))
            covered += forecasts[-1].error.low <= error_rate <= forecasts[-1].error.high
            assert abs(forecasts[-1].error.rate - error_rate) < (0.12 if count < 100 else 0.05)
        assert forecasts[0].error.rate > forecasts[1].error.rate
        assert forecasts[0].fall > forecasts[1].fall >= 0
    assert covered >= 5


def test_forecast_is_sum_of_greedy_resolve_batch(digits):
    x, y = digits
    units = torch.nn.functional.normalize(x.double() - x.double().mean(0), dim=1)[:500]
    start = torch.full((500, 10), 0.1, dtype=torch.float64)
    post = prior(start, units @ units.T, noise=0.1).condition(torch.arange(40), y[:40])
    at = torch.arange(40, 500)
    forecast, scale = forecast_error(post, at), calibrate(post).scale
    candidates = at[:MAX_FORECAST_ITEMS]
    batch = greedy(
        view(post, candidates, candidates),
        lambda v, r: resolve(v, r, variance_scale=scale**2),
        FORECAST_LABELS,
        hypothetical_label="mean",
    )
    assert forecast.error == estimate_error_rate(post, at)
    reduction = GAIN_CORRECTION * float(batch.scores.sum()) / len(candidates)
    assert forecast.fall == pytest.approx(
        min(max_error_drop(forecast.error.rate, 40), reduction), rel=1e-6
    )
    assert max_error_drop(0.5, 20) == pytest.approx(0.5 * 3 / 4)


def test_forecast_without_candidates_is_zero(digits):
    _, y = digits
    post = prior(
        torch.zeros(4, 10, dtype=torch.float64), torch.eye(4, dtype=torch.float64), noise=0.1
    )
    post = post.condition(torch.arange(4), y[:4])
    assert forecast_error(post, torch.arange(4)).fall == 0.0
