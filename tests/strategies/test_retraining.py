"""Retraining a copy of the network for each candidate."""

import copy
import logging
from dataclasses import replace

import pytest
import torch
from torch import nn

from labelahead.errors import InputError
from labelahead.models import build_model
from labelahead.models.training import Training, predict, train
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.query import propose
from labelahead.strategies.retraining import (
    can_stack,
    retrain_candidates,
    retrain_sequentially,
    retrain_stacked,
    shorten_training,
)
from tests.support.campaigns import CLASSES, blobs, labelled_pool
from tests.support.retraining_contexts import (
    ITEMS,
    LABELLED,
    make_context,
    make_trained_mlp,
    select_batch,
    train_on_labelled,
)

RECIPES = {
    "adam": Training(steps=12, batch=4),
    "sgd": Training(optimiser="sgd", rate=0.05, weight_decay=1e-2, clip=0.5, steps=12, batch=4),
    "cross-entropy": Training(loss="cross-entropy", steps=8, batch=3),
    "one batch": Training(steps=6, batch=64, schedule="constant"),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_retrain_stacked_matches_sequential(recipe):
    how = RECIPES[recipe]
    s = make_context(make_trained_mlp(how.loss), how)
    at, there = s.candidates[:5], s.candidates[:7]
    labels = torch.tensor([0, 1, 2, 1, 0])
    assert can_stack(s.model)
    single = torch.cat(list(retrain_sequentially(s, at, labels, there, how, 11)))
    both = retrain_stacked(s, at, labels, there, how, 11)
    assert (both - single).abs().max() < 1e-9
    assert (both[0] - both[1]).abs().max() > 1e-4  # the result depends on the item


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_naive_scores_match_retraining(network):
    how = Training(steps=5, batch=8)
    model = (
        make_trained_mlp()
        if network == "mlp"
        else train_on_labelled(build_model("cnn", (1, 8, 8), CLASSES, width=2), how)
    )
    s = make_context(model, how, retrainings=4)
    found = select_batch(s, "naive", 3)
    x = s.inputs
    there = x[s.candidates[:12]]
    before = predict(model, there)
    rng = torch.Generator().manual_seed(2)
    seed = int(torch.randint(2**31, (1,), generator=rng))
    scores = []
    for i in s.candidates[:4].tolist():
        again = copy.deepcopy(model)
        guess = predict(model, x[i : i + 1]).argmax(1)
        both, labels = torch.cat([x[:LABELLED], x[i : i + 1]]), torch.cat([s.labels, guess])
        train(again, both, labels, CLASSES, replace(how, steps=5), seed=seed)
        size = (predict(again, there) - before).norm(dim=1)
        scores.append(float(size.sum() - size[len(scores)]))  # without the candidate itself
    order = sorted(range(4), key=lambda j: -scores[j])[:3]
    assert found.positions.tolist() == s.candidates[order].tolist()
    assert found.scores.tolist() == pytest.approx([scores[j] for j in order], rel=1e-6)


def test_shorten_training_limits_epochs():
    assert shorten_training(Training(steps=1000, batch=32), 101).steps == 15 * 4
    assert shorten_training(Training(steps=20, stop_accuracy=0.9), 101) == Training(steps=20)
    assert shorten_training(Training(epochs=30), 101) == Training(steps=15 * 4)
    assert shorten_training(Training(epochs=2), 101) == Training(steps=2 * 4)


def test_can_stack_rejects_unsupported_networks():
    assert can_stack(build_model("fcn", (1, 8, 8), 3, width=8))
    assert not can_stack(build_model("mlp", (1, 8, 8), 3, width=8, dropout=0.5))
    assert not can_stack(build_model("cnn", (1, 8, 8), 3, width=2))
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    assert not can_stack(tied)
    frozen = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    frozen[0].requires_grad_(False)
    assert not can_stack(frozen)


def test_diverging_retraining_restarts_with_smaller_rate():
    how = Training(optimiser="sgd", rate=50.0, steps=12, batch=4)
    s = make_context(make_trained_mlp(), how)
    at, there, labels = s.candidates[:3], s.candidates[:7], torch.tensor([0, 1, 2])
    assert retrain_stacked(s, at, labels, there, how, 0).abs().max() > 1e3
    found = torch.cat(list(retrain_candidates(s, at, labels, there, how, 0)))
    expected = torch.cat(list(retrain_sequentially(s, at, labels, there, how, 0)))
    assert expected.abs().max() < 10
    assert torch.equal(found, expected)


def test_naive_logs_expected_time_and_respects_limit(caplog):
    x, y = blobs(ITEMS)
    how = QueryConfig("naive", retrainings=3)
    with caplog.at_level(logging.INFO, "labelahead"):
        for n, expected in ((2, 3), (6, 6)):
            caplog.clear()
            net = build_model("mlp", (1, 8, 8), CLASSES, width=8)
            found = propose(net, x, labelled_pool(y, 6), n, how, training=Training(steps=2))
            assert f"naive look-ahead: {expected} retrainings of about" in caplog.text
            assert "minutes" in caplog.text
            assert len(found.positions) == n
    with pytest.raises(InputError, match="retrainings is 0"):
        QueryConfig(retrainings=0)
