"""The rounds of a simulation: its seed set, its queries and its confirmations."""

from dataclasses import replace

import pytest
import torch

from labelahead.acquisition.probability import probabilities
from labelahead.data import from_arrays
from labelahead.errors import InputError
from labelahead.learner.config import Budget, Network
from labelahead.simulation.run import run
from labelahead.strategies.base import QueryConfig
from tests.support.campaigns import blobs, data
from tests.support.simulations import SMALL, make_confirming_campaign


@pytest.mark.parametrize("start", ["same", "cold"])
def test_training_start_of_rounds_is_same_or_cold(start):
    """Without training steps, the last round has its initial weights."""

    def weights(rounds, seed=0):
        budget = Budget(initial=5, labels=5 + 4 * rounds, retrain_every=4)
        done = run(
            replace(SMALL, seed=seed, training={"steps": 0, "start": start}, budget=budget),
            data=data(),
        )
        return torch.cat([p.detach().flatten() for p in done.model.parameters()])

    assert [torch.equal(weights(0), weights(later)) for later in (1, 2)] == [start == "same"] * 2
    assert not torch.equal(weights(0), weights(0, seed=1))


def test_rounds_count_labels_and_improve():
    result = run(SMALL, data=data())
    assert [r.labels for r in result.rounds] == [5, 9, 13, 17]
    assert [r.asked for r in result.rounds] == [4, 4, 4, 0]
    assert result.curve[-1][1] > 0.8
    assert len(result.pool) == 17
    assert not set(result.pool.labelled.tolist()) & set(range(60, 80))
    assert result.rounds[0].gain is not None
    assert 0 <= result.rounds[0].loo <= 1
    assert {"train", "kernel", "solve", "score"} <= set(result.rounds[0].seconds)


def test_rounds_record_drift():
    done = run(replace(SMALL, training={"steps": 0}), data=data())
    rounds_with_query = [r for r in done.rounds if r.asked]
    assert all(
        r.drift > 0.1 and any("train longer" in note for note in r.notes) for r in rounds_with_query
    )
    assert done.rounds[-1].drift is None  # no query, so no look-ahead
    converged = run(replace(SMALL, training={"steps": 400, "rate": 0.02}), data=data())
    assert all(
        r.drift <= 0.1 and not any("train longer" in note for note in r.notes)
        for r in converged.rounds[:-1]
    )
    for other in (QueryConfig("margin"), QueryConfig("random")):
        assert {r.drift for r in run(replace(SMALL, asking=other), data=data()).rounds} == {None}
    exact = replace(SMALL, model=Network("exact"), training={})
    assert {r.drift for r in run(exact, data=data()).rounds} == {None}


def test_balanced_seed_set_has_equal_class_counts():
    campaign = replace(SMALL, budget=Budget(initial=6, labels=9, retrain_every=3, balanced=True))
    result = run(campaign, data=data())
    first = result.pool.labels[:6]
    assert torch.bincount(first).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("absent", "balanced", "counts"), [(1, True, [3, 3, 0]), (2, True, [6, 0, 0]), (2, False, None)]
)
def test_seed_set_excludes_absent_classes(absent, balanced, counts):
    budget = Budget(initial=6, labels=30, retrain_every=12, balanced=balanced, absent=absent)
    result = run(replace(SMALL, budget=budget, asking=QueryConfig("random")), data=data())
    first = torch.bincount(result.pool.labels[:6], minlength=3)
    assert first.tolist() == (counts or [6, 0, 0])
    later = torch.bincount(result.pool.labels[6:], minlength=3)
    assert len(result.pool) == 30
    assert later.min() > 0  # queries can find the absent classes


def test_absent_classes_keep_random_order():
    plain, short = (
        run(replace(SMALL, budget=Budget(initial=n, labels=n, absent=a)), data=data()).pool
        for n, a in ((60, 0), (20, 1))
    )
    others = [
        p for p, c in zip(plain.labelled.tolist(), plain.labels.tolist(), strict=True) if c < 2
    ]
    assert short.labelled.tolist() == others[:20]


def test_confident_predictions_are_confirmed_at_a_cost():
    _, answers = data()
    for missed in (0.0, 1.0):
        result = run(make_confirming_campaign(missed), data=data())
        assert [r.labels for r in result.rounds] == [
            5,
            9,
            13,
            17,
        ]  # two labels and eight confirmations per round
        assert [r.asked for r in result.rounds] == [2, 2, 2, 0]
        truth = answers.take(result.pool.labelled)
        wrong = int((truth != result.pool.labels).sum())
        assert wrong == result.rounds[-1].let_through
        assert (wrong > 0) == bool(missed)  # after 15 steps some confident predictions are wrong
        assert len(result.pool) == 17 - 3 * 2 + result.rounds[-1].confirmed
        assert result.rounds[-1].confirmed == 24 or not missed
    first = run(make_confirming_campaign(1.0), data=data()).pool.labelled.tolist()
    budget = Budget(initial=5, labels=5, retrain_every=4)
    model = run(replace(make_confirming_campaign(1.0), budget=budget), data=data()).model
    x = from_arrays(*blobs(80, (32,)), test=range(60, 80))[0].inputs
    unlabelled = [p for p in range(60) if p not in first[:7]]
    with torch.no_grad():
        confidence = probabilities(model(x[unlabelled]).double(), "simplex").max(1).values
    assert set(first[7:15]) == {unlabelled[i] for i in confidence.topk(8).indices}


def test_items_without_labels_are_not_queried(tmp_path):
    x, y = blobs(80, (32,))
    labels = [None if i % 2 and i < 60 else int(v) for i, v in enumerate(y)]
    given = from_arrays(x, labels, test=range(60, 80))
    result = run(SMALL, data=given, out=tmp_path / "a")
    assert not [p for p in result.pool.labelled.tolist() if p % 2]
    with pytest.raises(InputError, match="the pool has 30"):
        run(replace(SMALL, budget=Budget(labels=31)), data=given, out=tmp_path / "b")
    assert not (tmp_path / "b").exists()
