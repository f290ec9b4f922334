"""Error forecasts without test labels."""

import pytest
import torch
from sklearn.datasets import load_digits

from labelahead.acquisition.batch_selection import greedy
from labelahead.acquisition.functions import resolve
from labelahead.acquisition.pool_view import view
from labelahead.gp.calibration import calibrate, estimate_error_rate
from labelahead.gp.posterior import prior
from labelahead.inference.exact import ExactLearner, ExactModel
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
    """Intervals hold nine times in ten, so that one of six may miss.

    With 60 labels the first does, by a point.
    """
    inside = 0
    for shuffle in range(3):
        order = torch.randperm(1797, generator=torch.Generator().manual_seed(shuffle))
        x, y = (values[order] for values in digits) if shuffle else digits
        learner, rest, told = (
            ExactLearner(x, ExactModel(x.mean(0), 10)),
            torch.arange(400, 1400),
            [],
        )
        for count in (60, 200):
            at = torch.arange(count)
            learnt = learner.fit(at, y[at])
            wrong = 1 - learnt.accuracy(rest, y[rest])
            told.append(learner.forecast_error(at, y[at], rest))
            inside += told[-1].error.low <= wrong <= told[-1].error.high
            assert abs(told[-1].error.rate - wrong) < (0.12 if count < 100 else 0.05)
        assert told[0].error.rate > told[1].error.rate
        assert told[0].fall > told[1].fall >= 0
    assert inside >= 5


def test_forecast_is_sum_of_greedy_resolve_batch(digits):
    x, y = digits
    units = torch.nn.functional.normalize(x.double() - x.double().mean(0), dim=1)[:500]
    start = torch.full((500, 10), 0.1, dtype=torch.float64)
    post = prior(start, units @ units.T, noise=0.1).condition(torch.arange(40), y[:40])
    at = torch.arange(40, 500)
    told, scale = forecast_error(post, at), calibrate(post).scale
    some = at[:MAX_FORECAST_ITEMS]
    picks = greedy(
        view(post, some, some),
        lambda v, r: resolve(v, r, variance_scale=scale**2),
        FORECAST_LABELS,
        hypothetical_label="mean",
    )
    assert told.error == estimate_error_rate(post, at)
    brought = GAIN_CORRECTION * float(picks.scores.sum()) / len(some)
    assert told.fall == pytest.approx(min(max_error_drop(told.error.rate, 40), brought), rel=1e-6)
    assert max_error_drop(0.5, 20) == pytest.approx(0.5 * 3 / 4)


def test_forecast_without_candidates_is_zero(digits):
    _, y = digits
    post = prior(
        torch.zeros(4, 10, dtype=torch.float64), torch.eye(4, dtype=torch.float64), noise=0.1
    )
    post = post.condition(torch.arange(4), y[:4])
    assert forecast_error(post, torch.arange(4)).fall == 0.0
