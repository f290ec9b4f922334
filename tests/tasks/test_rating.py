"""Ratings."""

import pytest
import torch

from labelahead.errors import InputError
from labelahead.tasks import LeaveOneOut, Rating, RatingPrediction


def test_levels_are_checked():
    for levels in (1, ["good"], ["a", "a"], True):
        with pytest.raises(InputError, match="expected"):
            Rating(levels)


def test_scores_are_numeric_names_or_ranks():
    assert Rating(["0", "2.5", "10"]).scores.tolist() == [0, 2.5, 10]
    assert Rating(["3", "1", "2"]).scores.tolist() == [1, 2, 3]  # the order given is the order
    assert Rating(["low", "high"]).scores.tolist() == [1, 2]


def test_prediction_minimises_the_expected_absolute_error():
    p = torch.rand(200, 5, generator=torch.Generator().manual_seed(0)).double()
    p = p / p.sum(1, keepdim=True)
    scores = torch.tensor([1.0, 2.0, 3.0, 5.0, 9.0]).double()
    prediction = RatingPrediction(tuple("abcde"), scores, p)
    errors = (p[:, None, :] * (scores[:, None] - scores)[None].abs()).sum(2)
    assert torch.allclose(prediction.expected_errors(), errors.min(1).values)
    assert torch.allclose(errors.gather(1, prediction.chosen[:, None])[:, 0], errors.min(1).values)


def draw(n, cuts, seed):
    rng = torch.Generator().manual_seed(seed)
    latent = 3 + 1.2 * torch.randn(n, 1, generator=rng, dtype=torch.float64)
    variance = 0.1 + torch.rand(n, generator=rng, dtype=torch.float64)
    error = torch.randn(n, 1, generator=rng, dtype=torch.float64)
    codes = torch.bucketize(latent[:, 0], torch.tensor(cuts).double())
    mean = latent + 0.6 * variance.sqrt()[:, None] * error
    return LeaveOneOut(mean, variance, 0.0, 1.0 + codes[:, None].double()), codes


def test_cut_points_and_scale_are_learnt():
    cuts = [1.2, 2.2, 3.9, 4.3]  # level 3 is wide, level 4 narrow
    task = Rating(5)
    state = task.calibrate(draw(800, cuts, 0)[0])
    assert state.parameters.tolist() == pytest.approx(cuts, abs=0.25)
    assert float(state.variance_scale.sqrt()) == pytest.approx(0.6, rel=0.3)
    items, codes = draw(5000, cuts, 1)
    learnt = task.measure(task.predict(items.mean, items.variance, state), codes)
    equal = state._replace(parameters=torch.tensor([1.5, 2.5, 3.5, 4.5]).double())
    assert (
        learnt["mae"] < task.measure(task.predict(items.mean, items.variance, equal), codes)["mae"]
    )


def test_shares_of_levels_are_predicted():
    task = Rating(5)
    state = task.calibrate(draw(500, [1.5, 2.5, 3.5, 4.5], 0)[0])
    items, codes = draw(5000, [1.5, 2.5, 3.5, 4.5], 1)
    p = task.predict(items.mean, items.variance, state).probabilities
    shares = torch.bincount(codes, minlength=5) / len(codes)
    assert p.mean(0).tolist() == pytest.approx(shares.tolist(), abs=0.04)


def test_without_labels_all_levels_are_equally_likely():
    task = Rating(4)
    nothing = torch.zeros(0, 1, dtype=torch.float64)
    state = task.calibrate(LeaveOneOut(nothing, torch.zeros(0), 0.1, nothing))
    p = task.predict(torch.full((1, 1), 2.5), torch.ones(1), state)
    assert p.probabilities.tolist() == [[0.25] * 4]
