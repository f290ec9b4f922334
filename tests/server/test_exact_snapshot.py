"""The exact learner on the page.

A refresh in place is what a campaign would learn from the same labels.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labelahead.data.loading import load_source
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.server.snapshot import TrainingRequest
from labelahead.server.snapshot_builder import _set_test_items, build_snapshot


@pytest.fixture
def ready(tmp_path):
    rng = torch.Generator().manual_seed(1)
    centres = 2.5 * torch.randn(3, 6, generator=rng)
    y = torch.arange(90) % 3
    rows = centres[y] + torch.randn(90, 6, generator=rng)
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"data": {"name": str(tmp_path / "set.npz")}, "model": {"name": "exact"}, "threads": 1}
    campaign = parse_campaign(tables)
    held = _set_test_items(load_source(campaign.data, 0), {p: p % 3 for p in range(80, 90)})
    return prepare_campaign(campaign, held)


def order(round, count):
    return TrainingRequest(round, tuple((p, p % 3) for p in range(count)), 3)


def test_before_any_label_all_items_are_in_play_and_nothing_is_held(ready):
    first = build_snapshot(ready, order(0, 0))
    assert sorted(first.points.tolist()) == list(range(80))  # but for those to measure on
    mean = first.build_posterior({}, 3).posterior.mean
    assert torch.equal(mean, torch.full((80, 3), 1 / 3, dtype=torch.float64))
    assert (first.round, first.labels) == (0, {})


def test_a_refresh_is_what_the_learner_learns_from_all_items(ready):
    first = build_snapshot(ready, order(0, 0))
    there = first.refresh(order(1, 20)).refresh(order(2, 60))
    learner = ready.make_learner(3)
    at = torch.arange(60)
    learnt = learner.fit(at, at % 3)
    assert there.weights == learnt.mixture.weights
    assert there.noise == learnt.noise
    pool_posterior = there.build_posterior(there.labels, 3)
    rest = list(range(60, 80))
    assert torch.allclose(
        pool_posterior.mean(rest), learnt.outputs(torch.tensor(rest)).double(), atol=1e-5
    )
    test = torch.arange(80, 90)
    assert there.fit_facts.accuracy == learnt.accuracy(test, test % 3)
    forecast = learner.forecast_error(at, at % 3, there.points[~torch.isin(there.points, at)])
    assert there.fit_facts.forecast.error.rate == pytest.approx(forecast.error.rate, abs=1e-6)
    assert there.fit_facts.forecast.fall == pytest.approx(forecast.fall, rel=1e-3)
    others, _ = learner.leave_one_out_predictions(at, at % 3)
    assert there.fit_facts.leave_one_out.accuracy == float(
        (others.argmax(1) == at % 3).double().mean()
    )


def test_a_class_that_turns_up_later(ready):
    there = build_snapshot(ready, order(0, 0)).refresh(
        TrainingRequest(1, tuple((p, p % 3) for p in range(12)), 5)
    )
    assert there.classes == 5
    assert there.build_posterior(there.labels, 5).classes == 5


def test_a_table_of_one_column_has_a_map_on_a_line(tmp_path):
    np.savez(tmp_path / "one.npz", x=np.linspace(0, 1, 30, dtype=np.float32)[:, None])
    tables = {"data": {"name": str(tmp_path / "one.npz")}, "model": {"name": "exact"}, "threads": 1}
    first = build_snapshot(prepare_campaign(parse_campaign(tables)), order(0, 0))
    assert len(first.pool_facts.map.x) == len(first.pool_facts.map.y) == 30


def test_a_refresh_depends_on_the_labels_alone_not_on_refreshes_before(ready):
    first = build_snapshot(ready, order(0, 0))
    at_once = first.refresh(order(2, 60))
    step_by_step = first.refresh(order(1, 20)).refresh(order(2, 60))
    backwards = first.refresh(replace(order(2, 60), labels=order(2, 60).labels[::-1]))
    for other in (step_by_step, backwards):
        assert (other.weights, other.noise) == (at_once.weights, at_once.noise)
        assert other.fit_facts.forecast.spread == pytest.approx(
            at_once.fit_facts.forecast.spread, rel=1e-9
        )


def test_a_removed_class_leaves_what_was_never_there(ready):
    first = build_snapshot(ready, order(0, 0))
    labels = tuple((p, 2 * (p % 2)) for p in range(40))  # of classes 0 and 2; 1 was removed
    removed = first.refresh(TrainingRequest(1, labels, 3, active_classes=(0, 2)))
    never = first.refresh(TrainingRequest(1, tuple((p, c // 2) for p, c in labels), 2))
    assert (removed.weights, removed.noise) == (never.weights, never.noise)
    pool_posterior, other = (
        removed.build_posterior(removed.labels, 3, (0, None, 2)),
        never.build_posterior(never.labels, 2),
    )
    assert torch.allclose(
        pool_posterior.posterior.mean[:, [0, 2]], other.posterior.mean, atol=1e-12
    )
    assert torch.equal(pool_posterior.posterior.mean[:, 1], torch.zeros(80, dtype=torch.float64))
    fit = first.fit_labels(TrainingRequest(1, labels, 3, active_classes=(0, 2)))
    assert fit.class_numbers.tolist() == [0, 2]
    predicted = fit.predict(first.points[:5])
    assert (predicted.classes, predicted.probabilities.shape) == ((0, 2), (5, 2))
