"""Greedy sampling and the committee against loops."""

import numpy as np
import pytest
import torch

import labelahead as la
from labelahead.strategies import TASK_STRATEGIES
from labelahead.strategies.regression import REGRESSION, measure_disagreement, sample_greedily

rng = np.random.default_rng(0)
POINTS = torch.from_numpy(rng.normal(size=(20, 3)))
LABELS = torch.from_numpy(rng.normal(size=(6, 1)))
OUTPUTS = torch.from_numpy(rng.normal(size=(14, 1)))
USES = {"gsx": (True, False), "gsy": (False, True), "igs": (True, True)}


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_greedy_sampling_equals_loops(use):
    values = torch.cat([LABELS, OUTPUTS])
    known, expected = list(range(6)), []
    for _ in range(5):
        best = max(
            (i for i in range(6, 20) if i not in known),
            key=lambda i: min(
                (float((POINTS[i] - POINTS[j]).norm()) if use[0] else 1.0)
                * (float((values[i] - values[j]).abs()) if use[1] else 1.0)
                for j in known
            ),
        )
        known.append(best)
        expected.append(best - 6)
    order, reach = sample_greedily(POINTS, OUTPUTS, LABELS, 5, use)
    assert order.tolist() == expected
    assert bool((reach.diff() <= 1e-9).all())


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_without_labels_sampling_starts_at_the_centre(use):
    order, _ = sample_greedily(POINTS, OUTPUTS[:0].new_zeros(20, 1), LABELS[:0], 3, use)
    nearest = (POINTS - POINTS.mean(0)).norm(dim=1).argmin()
    assert int(order[0]) == int(nearest)
    second = (POINTS - POINTS[nearest]).norm(dim=1).argmax()
    assert int(order[1]) == int(second)


def test_committee_is_one_regression_for_each_bootstrap_sample():
    features = torch.from_numpy(rng.normal(size=(9, 4)))
    K, cross = features[:6] @ features[:6].T, features[6:] @ features[:6].T
    scores = measure_disagreement(K, cross, 0.3, LABELS, torch.Generator().manual_seed(3))
    generator, predictions = torch.Generator().manual_seed(3), []
    for _ in range(10):
        drawn = torch.randint(6, (6,), generator=generator)
        x, y = features[drawn], LABELS[drawn]
        weights = torch.linalg.solve(x.T @ x + 0.3 * torch.eye(4, dtype=torch.float64), x.T @ y)
        predictions.append(features[6:] @ weights)
    assert torch.allclose(scores, torch.stack(predictions).var(0)[:, 0])


@pytest.mark.parametrize("strategy", [s.name for s in REGRESSION])
@pytest.mark.parametrize("labels", [0, 1, 8])
def test_baselines_query_numbers_and_ratings(strategy, labels):
    x = rng.normal(size=(30, 4))
    for task, y in ((la.tasks.Number(["a", "b"]), x[:, :2]), (la.tasks.Rating(3), [1, 2, 3] * 10)):
        learner = la.Learner(la.exact(x, task=task), x, strategy)
        if labels:
            learner.teach(range(labels), y[:labels])
        queried = learner.query(5)
        assert len(set(queried)) == 5
        assert not set(queried) & set(range(labels))


def test_baselines_of_the_tasks_are_these():
    for name in la.tasks.Number.baselines:
        assert TASK_STRATEGIES[name].tasks == ("number", "rating")
    assert la.tasks.Number.baselines.keys() == {s.name for s in REGRESSION}
    assert la.tasks.Rating.baselines.keys() == {s.name for s in REGRESSION}
