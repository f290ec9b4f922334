"""The look-ahead paper's baselines against naive float64 implementations."""

import copy
import logging
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labelahead.errors import InputError
from labelahead.models import build_model
from labelahead.models.training import Training, predict, train
from labelahead.ntk import infinite_kernel
from labelahead.strategies import STRATEGIES
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.baselines import matching_infinite_kernel, one_step
from labelahead.strategies.context import QueryContext
from labelahead.strategies.query import propose
from labelahead.strategies.retraining import (
    can_stack,
    retrain_candidates,
    retrain_sequentially,
    retrain_stacked,
    shorten_training,
)
from tests.support.campaigns import CLASSES, blobs, labelled_pool

LABELLED, ITEMS = 9, 40
PLAIN = Training()


def trained(model: nn.Module, how: Training, seed: int = 0) -> nn.Module:
    x, y = blobs(ITEMS)
    train(model, x[:LABELLED], y[:LABELLED], CLASSES, how, seed=seed)
    return model.double()


def seen(model: nn.Module, how: Training = PLAIN, **more) -> QueryContext:
    """The situation after training on the first items, in float64."""
    x, y = blobs(ITEMS)
    asking = QueryConfig(**{"strategy": "naive", "evaluation": 12} | more)
    pool = labelled_pool(y, LABELLED)
    found = QueryContext.from_pool(model.eval(), x.double(), pool, asking, loss=how.loss, seed=1)
    found.training = how
    return found


def picked(s: QueryContext, name: str, q: int = 5, mode: str = "top"):
    rng = torch.Generator().manual_seed(2)
    return STRATEGIES[name].select_batch(s, q, rng, mode, None)


def mlp(loss: str = "squared", **more) -> nn.Module:
    how = Training(loss=loss, steps=40)
    return trained(build_model("mlp", (1, 8, 8), CLASSES, width=12, seed=3, **more), how)


def real_steps(s: QueryContext, rate: float) -> torch.Tensor:
    """(m, e, C) f(θ − rate ∇ℓ(x', y')) − f(θ), by autograd, one candidate after the other.

    Zero at x' itself.
    """
    there = s.inputs[s.candidates[: s.asking.evaluation]]
    before, moves = predict(s.model, there), []
    for i in s.candidates.tolist():
        model = copy.deepcopy(s.model)
        out = model(s.inputs[i : i + 1])
        label = out.argmax(1)
        target = F.one_hot(label, CLASSES).to(out)
        loss = (
            F.cross_entropy(out, label)
            if s.loss == "cross-entropy"
            else 0.5 * (out - target).square().sum()
        )
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p -= rate * g
        moves.append(predict(model, there) - before)
        moves[-1][s.candidates[: s.asking.evaluation] == i] = 0
    return torch.stack(moves)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_one_step_matches_small_gradient_step(loss):
    s = seen(mlp(loss), Training(loss=loss), kernel="full")
    score = one_step(s, torch.Generator())
    for rate, within in ((1e-3, 0.2), (1e-6, 1e-3)):
        real = real_steps(s, rate).norm(dim=2).sum(1) / rate
        assert score.tolist() == pytest.approx(real.tolist(), rel=within)


def test_one_step_is_exact_for_linear_model():
    s = seen(mlp(depth=0), kernel="full")
    score = one_step(s, torch.Generator())
    real = real_steps(s, 0.5).norm(dim=2).sum(1) / 0.5
    assert score.tolist() == pytest.approx(real.tolist(), rel=1e-9)
    # all outputs of a linear model share one kernel, so the scalar ones lose nothing
    scalar = one_step(seen(s.model, kernel="trace"), torch.Generator())
    assert scalar.tolist() == pytest.approx(real.tolist(), rel=1e-9)


def test_one_step_with_sketch_matches_its_kernel():
    s = seen(mlp(), sketch=64)
    psi = s.kernel_arguments["features"].double()
    theta = psi[LABELLED : LABELLED + 12] @ psi[LABELLED:].T
    out = predict(s.model, s.inputs[s.candidates])
    residual = F.one_hot(out.argmax(1), CLASSES) - out
    expected = theta.abs().fill_diagonal_(0).sum(0) * residual.norm(dim=1)
    assert one_step(s, torch.Generator()).tolist() == pytest.approx(expected.tolist(), rel=1e-9)


def by_hand(s: QueryContext, f: torch.Tensor, guess: torch.Tensor, base: torch.Tensor | None):
    """MLMOC with the limit's kernel: one refit from scratch per candidate (LA-11, LA-13)."""
    theta = infinite_kernel(s.inputs[s.points], depth=3)
    noise = s.noise * float(theta.diagonal().mean())
    y = F.one_hot(s.labels, CLASSES).double()

    def refit(at: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        system = theta[at][:, at] + noise * torch.eye(len(at), dtype=torch.float64)
        return f + theta[:, at] @ torch.linalg.solve(system, targets - f[at])

    mine = torch.arange(LABELLED)
    linearised = refit(mine, y)
    now = linearised if base is None else base
    guess = now.argmax(1) if guess is None else guess
    there = torch.arange(LABELLED, LABELLED + 12)
    scores = []
    for i in range(LABELLED, len(f)):
        target = F.one_hot(guess[i : i + 1], CLASSES).double()
        after = refit(torch.cat([mine, torch.tensor([i])]), torch.cat([y, target]))
        after[i] = linearised[i]  # what changes at the candidate itself does not count
        scores.append((after - now)[there].norm(dim=1).sum())
    return torch.stack(scores)


@pytest.mark.parametrize("name", ["infinite-ntk", "gp"])
def test_infinite_ntk_matches_refit_with_limit_kernel(name):
    s = seen(mlp(), strategy=name)
    if name == "gp":
        expected = by_hand(s, torch.zeros(ITEMS, CLASSES).double(), None, None)
    else:
        f = predict(s.model, s.inputs[s.points])
        expected = by_hand(s, f, f.argmax(1), f)
    found = picked(s, name, len(s.candidates))
    assert torch.equal(found.positions, s.candidates[expected.argsort(descending=True)])
    assert found.scores.tolist() == pytest.approx(
        expected.sort(descending=True).values.tolist(), rel=1e-6
    )
    assert {"kernel", "solve", "score"} <= set(s.seconds)


def test_gp_is_independent_of_network_outputs():
    one, other = (seen(mlp(), strategy="gp") for _ in range(2))
    with torch.no_grad():
        for p in other.model.parameters():
            p.mul_(-3.0)
    assert torch.equal(picked(one, "gp").positions, picked(other, "gp").positions)
    differ = [picked(s, "infinite-ntk").positions.tolist() for s in (one, other)]
    assert differ[0] != differ[1]


@pytest.mark.parametrize("kernel", ["pseudo", "full"])
def test_ntk_solve_queries_same_items_as_block_formula(kernel):
    model = mlp()
    block = picked(seen(model, kernel=kernel), "mlmoc")
    solved = picked(seen(model, kernel=kernel), "ntk-solve")
    assert torch.equal(block.positions, solved.positions)
    assert solved.scores.tolist() == pytest.approx(block.scores.tolist(), rel=1e-8)


RECIPES = {
    "adam": Training(steps=12, batch=4),
    "sgd": Training(optimiser="sgd", rate=0.05, weight_decay=1e-2, clip=0.5, steps=12, batch=4),
    "cross-entropy": Training(loss="cross-entropy", steps=8, batch=3),
    "one batch": Training(steps=6, batch=64, schedule="constant"),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_retrain_stacked_matches_sequential(recipe):
    how = RECIPES[recipe]
    s = seen(mlp(how.loss), how)
    at, there = s.candidates[:5], s.candidates[:7]
    labels = torch.tensor([0, 1, 2, 1, 0])
    assert can_stack(s.model)
    single = torch.cat(list(retrain_sequentially(s, at, labels, there, how, 11)))
    both = retrain_stacked(s, at, labels, there, how, 11)
    assert (both - single).abs().max() < 1e-9
    assert (both[0] - both[1]).abs().max() > 1e-4  # the item matters


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_naive_scores_match_retraining(network):
    how = Training(steps=5, batch=8)
    model = (
        mlp() if network == "mlp" else trained(build_model("cnn", (1, 8, 8), CLASSES, width=2), how)
    )
    s = seen(model, how, retrainings=4)
    found = picked(s, "naive", 3)
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
    s = seen(mlp(), how)
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


def test_matching_infinite_kernel_follows_architecture():
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(5, 1, 8, 8, generator=rng, dtype=torch.float64)
    small = F.adaptive_avg_pool2d(x, 7)
    dense, wide = (
        build_model("mlp", (1, 8, 8), 3, width=4),
        build_model("wrn1", (1, 8, 8), 3, width=4),
    )
    plain = build_model("convnet", (1, 8, 8), 3, width=4)
    assert torch.equal(matching_infinite_kernel(dense, x), infinite_kernel(x, depth=3))
    assert torch.equal(matching_infinite_kernel(None, x), infinite_kernel(x, depth=3))
    assert torch.equal(
        matching_infinite_kernel(plain, x), infinite_kernel(small, network="conv", depth=3)
    )
    block = infinite_kernel(small[:2], small, network="conv", depth=3, skips=(2,))
    assert torch.equal(matching_infinite_kernel(wide, x[:2], x), block)
