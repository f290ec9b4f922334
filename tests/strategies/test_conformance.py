"""Conformance suite: every registered strategy with every kind of network."""

import copy
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from labelahead.data import Answers, from_arrays
from labelahead.data.pool import Pool
from labelahead.errors import InputError
from labelahead.models import MODELS, build_model
from labelahead.models.training import Training
from labelahead.strategies import STRATEGIES
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.context import QueryContext
from labelahead.strategies.query import propose as plain_propose
from tests.support.campaigns import CLASSES, blobs, labelled_pool, own, reachable
from tests.support.slow import slow

# Narrow versions, so that all pairs take seconds; pretrained networks get larger images.
WIDTHS = {
    "mlp": 16,
    "fcn": 16,
    "convnet": 4,
    "cnn": 4,
    "tutorial-cnn": 2,
    "wrn1": 4,
    "wrn2": 4,
    "wrn16": 1,
    "resnet18": 4,
    "resnet18-strided": 4,
    "vgg11": 4,
    "vgg11-plain": 4,
}
SHAPES = {"backbone": (1280,), "efficientnet-lite0": (3, 32, 32), "tutorial-cnn": (1, 16, 16)}
STRATEGY_MODES = [(s.name, mode) for s in STRATEGIES.values() for mode in s.modes]


def make_network(name: str) -> nn.Module:
    if name == "own":
        return own()
    return build_model(name, SHAPES.get(name, (1, 8, 8)), CLASSES, width=WIDTHS.get(name)).eval()


def propose(net, inputs, pool, n, query_config, **more):
    """Call `propose` like a campaign: with a network factory, a recipe and an objective."""
    quick = Training(steps=3)
    copied = lambda seed: copy.deepcopy(net)  # noqa: E731
    make = STRATEGIES[query_config.strategy].objective
    objective = None if make is None else make(net, inputs[:2], more.get("seed", 0))
    return plain_propose(
        net,
        inputs,
        pool,
        n,
        query_config,
        fresh=copied,
        training=quick,
        objective=objective,
        **more,
    )


def make_query_config(name: str, mode: str | None = None, **more) -> QueryConfig:
    return QueryConfig(strategy=name, mode=mode, retrainings=3, **more)


def make_oracle(y):
    return lambda position: int(y[position])


def snapshot(model: nn.Module) -> dict:
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "modes": [m.training for m in model.modules()],
        "flags": [p.requires_grad for p in model.parameters()],
        "grads": [p.grad for p in model.parameters()],
        "hooks": [len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()],
    }


def are_equal(a: dict, b: dict) -> bool:
    return all(torch.equal(a["state"][k], b["state"][k]) for k in a["state"]) and all(
        a[k] == b[k] for k in ("modes", "flags", "hooks")
    )


QUICK_STRATEGIES = ("flip", "badge", "bald")  # with the largest network


@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        slow(strategy, model)
        if model == "efficientnet-lite0" and strategy not in QUICK_STRATEGIES
        else (strategy, model)
        for strategy in STRATEGIES
        for model in [*MODELS, "own"]
    ],
)
def test_strategy_works_with_every_network(strategy, model):
    net = make_network(model)
    x, y = blobs(18 if model in SHAPES else 24, SHAPES.get(model, (1, 8, 8)))
    pool = labelled_pool(y, 6, test=[22, 23] if len(y) > 22 else [])
    before, inputs = snapshot(net), x.clone()
    found = propose(net, x, pool, 4, make_query_config(strategy), seed=1, oracle=make_oracle(y))
    again = propose(net, x, pool, 4, make_query_config(strategy), seed=1, oracle=make_oracle(y))
    queried = found.positions.tolist()
    assert len(set(queried)) == 4
    assert set(queried) <= set(pool.unlabelled.tolist())
    assert torch.isfinite(found.scores).all()
    # the round records these times: a query must not overwrite them
    assert not {"train", "test"} & set(found.seconds)
    assert torch.equal(found.positions, again.positions)
    assert torch.equal(found.scores, again.scores)
    assert are_equal(before, snapshot(net))
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(x, inputs)
    assert len(pool) == 6


@pytest.mark.parametrize(("strategy", "mode"), STRATEGY_MODES)
@pytest.mark.parametrize("left", [0, 1, 2])
def test_strategy_works_with_few_candidates(strategy, mode, left):
    net = make_network("mlp")
    x, y = blobs(20)
    pool = labelled_pool(y, 20 - left)
    for n in range(left + 1):
        found = propose(net, x, pool, n, make_query_config(strategy, mode), oracle=make_oracle(y))
        assert set(found.positions.tolist()) <= set(range(20 - left, 20))
        assert len(found.positions) == n
    with pytest.raises(InputError, match="unlabelled"):
        propose(net, x, pool, left + 1, make_query_config(strategy, mode), oracle=make_oracle(y))


@pytest.mark.parametrize(("strategy", "mode"), STRATEGY_MODES)
def test_strategy_works_with_one_or_all_items_unlabelled(strategy, mode):
    net = make_network("mlp")
    x, y = blobs(20)
    pool = labelled_pool(y, 0)
    found = propose(net, x, pool, 20, make_query_config(strategy, mode), oracle=make_oracle(y))
    assert sorted(found.positions.tolist()) == list(range(20))


@pytest.mark.parametrize(("strategy", "mode"), STRATEGY_MODES)
@pytest.mark.parametrize("case", ["duplicates", "copies of labelled", "one class", "class unseen"])
def test_strategy_works_with_degenerate_pools(strategy, mode, case):
    net = make_network("mlp")
    x, y = blobs(24)
    if case == "duplicates":
        x[12:] = x[12]
    if case == "copies of labelled":
        x[6:12] = x[:6]
    if case == "one class":
        y = torch.zeros_like(y)
    if case == "class unseen":
        y = y % 2
    pool = labelled_pool(y, 6)
    found = propose(net, x, pool, 8, make_query_config(strategy, mode), oracle=make_oracle(y))
    assert len(set(found.positions.tolist())) == 8
    assert torch.isfinite(found.scores).all()


@pytest.mark.parametrize(("strategy", "mode"), STRATEGY_MODES)
def test_strategy_works_with_more_classes_than_labels(strategy, mode):
    net = build_model("mlp", (1, 8, 8), 30, width=16).eval()
    x, y = blobs(24)
    pool = labelled_pool(y, 3)
    found = propose(net, x, pool, 5, make_query_config(strategy, mode), oracle=make_oracle(y))
    assert len(set(found.positions.tolist())) == 5


@pytest.mark.parametrize("kernel", ["pseudo", "single", "trace", "full"])
@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES.values() if s.look_ahead])
def test_strategy_works_with_every_kernel(strategy, kernel):
    net = make_network("mlp")
    x, y = blobs(24)
    how = make_query_config(strategy, "greedy", kernel=kernel, candidates=10, evaluation=5)
    found = propose(net, x, labelled_pool(y, 6), 3, how)
    assert len(set(found.positions.tolist())) == 3


@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES.values() if s.look_ahead])
def test_strategy_works_with_sketch(strategy):
    x, y = blobs(24)
    how = make_query_config(strategy, "greedy", sketch=64)
    found = propose(make_network("mlp"), x, labelled_pool(y, 6), 3, how)
    assert len(set(found.positions.tolist())) == 3


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_query_depends_on_seed(strategy):
    net = make_network("mlp")
    x, y = blobs(60)
    how = make_query_config(strategy, candidates=12)
    pool = labelled_pool(y, 6)
    found = [propose(net, x, pool, 4, how, seed=s, oracle=make_oracle(y)) for s in range(6)]
    distinct_queries = {tuple(f.positions.tolist()) for f in found}
    assert len(distinct_queries) > 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_query_preserves_train_mode(strategy):
    net = make_network("cnn").train()
    x, y = blobs(24)
    before = snapshot(net)
    propose(net, x, labelled_pool(y, 6), 3, make_query_config(strategy), oracle=make_oracle(y))
    assert are_equal(before, snapshot(net))
    assert net.training


@pytest.mark.parametrize(
    ("strategy", "mode"), [(s, m) for s, m in STRATEGY_MODES if m != "sequential"]
)
def test_pool_labels_are_unreachable(strategy, mode, monkeypatch):
    """Check every object that a strategy can reach from its arguments."""
    x, y = blobs(24)
    answers = from_arrays(x, y)[1]
    pool = labelled_pool(y, 6)
    passed_objects = []
    original = STRATEGIES[strategy]

    def record_and_select(*arguments):
        passed_objects.extend(arguments)
        return original.select_batch(*arguments)

    query_module = sys.modules["labelahead.strategies.query"]
    monkeypatch.setattr(
        query_module,
        "find_strategy",
        lambda name: replace(original, select_batch=record_and_select),
    )
    propose(
        make_network("mlp"),
        x,
        pool,
        3,
        make_query_config(strategy, mode),
        oracle=lambda p: answers(p),
    )
    assert passed_objects
    unlabelled_classes = y[6:].tolist()
    for found in reachable(passed_objects):
        assert not isinstance(found, Answers)
        assert not isinstance(found, Pool)
        if isinstance(found, torch.Tensor) and found.dtype == torch.int64:
            values = found.flatten().tolist()
            assert not any(
                values[i : i + len(unlabelled_classes)] == unlabelled_classes
                for i in range(len(values))
            )


def test_invalid_mode_raises():
    x, y = blobs(24)
    with pytest.raises(InputError, match="works as top"):
        propose(
            make_network("mlp"), x, labelled_pool(y, 6), 1, make_query_config("random", "greedy")
        )


def test_context_separates_candidates_and_labelled():
    x, y = blobs(24)
    context = QueryContext.from_pool(
        make_network("mlp"), x, labelled_pool(y, 6, test=[23]), make_query_config("flip"), 1
    )
    assert sorted(context.points.tolist()) == list(range(23))
    assert torch.equal(context.labels, y[:6])
