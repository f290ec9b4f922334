"""The look-ahead paper's baselines against naive float64 implementations."""

import copy

import pytest
import torch
from torch.nn import functional as F

from labelahead.models import build_model
from labelahead.models.training import Training, predict
from labelahead.ntk import infinite_kernel
from labelahead.strategies.baselines import matching_infinite_kernel, one_step
from labelahead.strategies.context import QueryContext
from tests.support.campaigns import CLASSES
from tests.support.retraining_contexts import (
    ITEMS,
    LABELLED,
    make_context,
    make_trained_mlp,
    select_batch,
)


def compute_gradient_steps(s: QueryContext, rate: float) -> torch.Tensor:
    """Return f(θ − rate ∇ℓ(x', y')) − f(θ) of shape (m, e, C) by autograd, zero at x' itself."""
    there = s.inputs[s.candidates[: s.query_config.evaluation]]
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
        moves[-1][s.candidates[: s.query_config.evaluation] == i] = 0
    return torch.stack(moves)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_one_step_matches_small_gradient_step(loss):
    s = make_context(make_trained_mlp(loss), Training(loss=loss), kernel="full")
    score = one_step(s, torch.Generator())
    for rate, within in ((1e-3, 0.2), (1e-6, 1e-3)):
        real = compute_gradient_steps(s, rate).norm(dim=2).sum(1) / rate
        assert score.tolist() == pytest.approx(real.tolist(), rel=within)


def test_one_step_is_exact_for_linear_model():
    s = make_context(make_trained_mlp(depth=0), kernel="full")
    score = one_step(s, torch.Generator())
    real = compute_gradient_steps(s, 0.5).norm(dim=2).sum(1) / 0.5
    assert score.tolist() == pytest.approx(real.tolist(), rel=1e-9)
    # all outputs of a linear model share one kernel, so scalar kernels are exact
    scalar = one_step(make_context(s.model, kernel="trace"), torch.Generator())
    assert scalar.tolist() == pytest.approx(real.tolist(), rel=1e-9)


def test_one_step_with_sketch_matches_its_kernel():
    s = make_context(make_trained_mlp(), sketch=64)
    psi = s.kernel_arguments["features"].double()
    theta = psi[LABELLED : LABELLED + 12] @ psi[LABELLED:].T
    out = predict(s.model, s.inputs[s.candidates])
    residual = F.one_hot(out.argmax(1), CLASSES) - out
    expected = theta.abs().fill_diagonal_(0).sum(0) * residual.norm(dim=1)
    assert one_step(s, torch.Generator()).tolist() == pytest.approx(expected.tolist(), rel=1e-9)


def score_by_refitting(
    s: QueryContext, f: torch.Tensor, guess: torch.Tensor, base: torch.Tensor | None
):
    """Score MLMOC with the limit kernel by one refit per candidate (LA-11, LA-13)."""
    theta = infinite_kernel(s.inputs[s.points], depth=3)
    noise = s.noise * float(theta.diagonal().mean())
    y = F.one_hot(s.labels, CLASSES).double()

    def refit(at: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        system = theta[at][:, at] + noise * torch.eye(len(at), dtype=torch.float64)
        return f + theta[:, at] @ torch.linalg.solve(system, targets - f[at])

    labelled = torch.arange(LABELLED)
    linearised = refit(labelled, y)
    current = linearised if base is None else base
    guess = current.argmax(1) if guess is None else guess
    evaluation = torch.arange(LABELLED, LABELLED + 12)
    scores = []
    for i in range(LABELLED, len(f)):
        target = F.one_hot(guess[i : i + 1], CLASSES).double()
        after = refit(torch.cat([labelled, torch.tensor([i])]), torch.cat([y, target]))
        after[i] = linearised[i]  # the change at the candidate itself does not count
        scores.append((after - current)[evaluation].norm(dim=1).sum())
    return torch.stack(scores)


@pytest.mark.parametrize("name", ["infinite-ntk", "gp"])
def test_infinite_ntk_matches_refit_with_limit_kernel(name):
    s = make_context(make_trained_mlp(), strategy=name)
    if name == "gp":
        expected = score_by_refitting(s, torch.zeros(ITEMS, CLASSES).double(), None, None)
    else:
        f = predict(s.model, s.inputs[s.points])
        expected = score_by_refitting(s, f, f.argmax(1), f)
    found = select_batch(s, name, len(s.candidates))
    assert torch.equal(found.positions, s.candidates[expected.argsort(descending=True)])
    assert found.scores.tolist() == pytest.approx(
        expected.sort(descending=True).values.tolist(), rel=1e-6
    )
    assert {"kernel", "solve", "score"} <= set(s.seconds)


def test_gp_is_independent_of_network_outputs():
    one, other = (make_context(make_trained_mlp(), strategy="gp") for _ in range(2))
    with torch.no_grad():
        for p in other.model.parameters():
            p.mul_(-3.0)
    assert torch.equal(select_batch(one, "gp").positions, select_batch(other, "gp").positions)
    differ = [select_batch(s, "infinite-ntk").positions.tolist() for s in (one, other)]
    assert differ[0] != differ[1]


@pytest.mark.parametrize("kernel", ["pseudo", "full"])
def test_ntk_solve_queries_same_items_as_block_formula(kernel):
    model = make_trained_mlp()
    block = select_batch(make_context(model, kernel=kernel), "mlmoc")
    solved = select_batch(make_context(model, kernel=kernel), "ntk-solve")
    assert torch.equal(block.positions, solved.positions)
    assert solved.scores.tolist() == pytest.approx(block.scores.tolist(), rel=1e-8)


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
