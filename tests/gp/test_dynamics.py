"""Training dynamics against loops over per-sample gradients, and the theorems on any kernel."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.errors import InputError
from labelahead.gp.dynamics import (
    alignment,
    approximation_ratio,
    convergence,
    dynamics,
    dynamics_mse,
    gains,
    generalisation_bound,
    joint_gain,
    mmd,
    residuals,
    total_gradient,
)
from labelahead.ntk import gradient_gram, kernel, norms_and_products
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.query import propose
from tests.support import architectures
from tests.support.campaigns import blobs, labelled_pool, own

pytestmark = pytest.mark.usefixtures("float64")
NETWORKS = ("mlp", "cnn_bn", "resnet", "transformer", "custom_parameters", "lstm")


def per_sample(model, x, cotangents):
    """(n, P) gradients by one backward a sample."""
    out = []
    params = [p for p in model.parameters() if p.requires_grad]
    for i in range(len(x)):
        f = model(x[i : i + 1])[0]
        found = torch.autograd.grad((f * cotangents[i]).sum(), params, allow_unused=True)
        parts = [
            (torch.zeros_like(p) if g is None else g).flatten()
            for g, p in zip(found, params, strict=True)
        ]
        out.append(torch.cat(parts))
    return torch.stack(out)


def situation(name):
    model, x = architectures.make(name)
    with torch.no_grad():
        outputs = model(x)
    guess = residuals(outputs, outputs.argmax(1))
    return model, x, guess


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0, math.inf])
@pytest.mark.parametrize("name", NETWORKS)
def test_gains_equal_loop_over_gradients(name, gamma):
    model, x, guess = situation(name)
    G = per_sample(model, x, guess)
    known = G[:2].sum(0)
    direction = total_gradient(model, x[:2], guess[:2])
    found = gains(model, x, guess, direction, gamma)
    squares, products = G.square().sum(1), G @ known
    want = products if gamma == math.inf else squares + gamma * products
    assert torch.allclose(found, want, rtol=1e-8, atol=1e-8 * float(want.abs().max()))


@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_gram_equals_loop_over_gradients(name):
    model, x, guess = situation(name)
    G = per_sample(model, x, guess)
    gram = gradient_gram(model, x, guess)
    assert torch.allclose(gram, G @ G.T, rtol=1e-8, atol=1e-9 * float(gram.abs().max()))
    small = gradient_gram(model, x, guess, memory=1)
    assert torch.allclose(small, gram, rtol=1e-8, atol=1e-9 * float(gram.abs().max()))
    direction = total_gradient(model, x, guess)
    squares, products = norms_and_products(model, x, guess, direction)
    assert torch.allclose(squares, gram.diagonal(), rtol=1e-8)
    assert torch.allclose(products, gram.sum(1), rtol=1e-8, atol=1e-9 * float(gram.abs().max()))


@pytest.mark.parametrize("name", ["mlp", "cnn_bn"])
def test_dynamics_equals_gradient_norm(name):
    model, x, d = situation(name)
    full = kernel(model, x, kind="full")
    by_definition = float(d.flatten() @ full @ d.flatten())  # Σᵢⱼ dᵢᵀ Θ(xᵢ,xⱼ) dⱼ
    assert math.isclose(dynamics(model, x, d), by_definition, rel_tol=1e-8)


def test_joint_gain_equals_change_of_dynamics():
    model, x, d = situation("mlp")
    S, Q = [0, 1], [2, 3, 4]
    before, after = dynamics(model, x[S], d[S]), dynamics(model, x[S + Q], d[S + Q])
    gram = gradient_gram(model, x[Q], d[Q])
    direction = total_gradient(model, x[S], d[S])
    _, products = norms_and_products(model, x[Q], d[Q], direction)
    assert math.isclose(joint_gain(gram, products), after - before, rel_tol=1e-8)
    single = sum(dynamics(model, x[[*S, i]], d[[*S, i]]) - before for i in Q)
    assert math.isclose(
        approximation_ratio(gram, products), single / (after - before), rel_tol=1e-8
    )


def test_residuals_equal_gradients_of_losses():
    f = torch.randn(5, 3, requires_grad=True)
    y = torch.tensor([0, 1, 2, 1, 0])
    cross = torch.nn.functional.cross_entropy(f, y, reduction="sum")
    assert torch.allclose(torch.autograd.grad(cross, f)[0], residuals(f, y).detach())
    squared = 0.5 * (f - torch.nn.functional.one_hot(y, 3)).square().sum()
    assert torch.allclose(torch.autograd.grad(squared, f)[0], residuals(f, y, "squared").detach())
    with pytest.raises(InputError, match="loss"):
        residuals(f, y, "hinge")


def kernel_and_targets(seed, n, classes):
    rng = torch.Generator().manual_seed(seed)
    A = torch.randn(n, n + 2, generator=rng)
    y = torch.randint(classes, (n,), generator=rng)
    return A @ A.T / n + 0.05 * torch.eye(n), torch.nn.functional.one_hot(y, classes).double()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 40), st.floats(0.01, 1.0))
def test_theorem_1_holds_on_any_kernel(seed, n, steps, share):
    with torch.random.fork_rng():
        torch.set_default_dtype(torch.float64)
        K, Y = kernel_and_targets(seed, n, 3)
    rate = share / float(torch.linalg.eigvalsh(K)[-1])
    error = convergence(K, Y, rate, steps) ** 2
    total, aligned = float(Y.square().sum()), alignment(K, Y)
    slack = 1e-9 * total
    assert total - 2 * steps * rate * aligned <= error + slack
    assert error <= total - rate * aligned + slack


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12))
def test_theorem_2_holds_on_any_kernel(seed, n):
    with torch.random.fork_rng():
        torch.set_default_dtype(torch.float64)
        K, Y = kernel_and_targets(seed, n, 3)
    values = torch.linalg.eigvalsh(K)
    middle = n / 2 * generalisation_bound(K, Y) ** 2
    low = float(Y.square().sum()) ** 2 / alignment(K, Y)
    assert low <= middle * (1 + 1e-9)
    assert middle <= float(values[-1] / values[0]) * low * (1 + 1e-9)


def test_bounds_equal_explicit_computation():
    K = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    Y = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert alignment(K, Y) == pytest.approx(5.0)
    assert generalisation_bound(K, Y) == pytest.approx(math.sqrt(2 * (3 / 5 + 2 / 5) / 2))
    assert dynamics_mse(K, torch.zeros(2, 2), Y) == pytest.approx(5.0)
    assert convergence(K, Y, 0.1, 0) == pytest.approx(math.sqrt(2))


def test_mmd_equals_sums_and_is_unbiased():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(7, 3, generator=rng)
    K, m, n = x @ x.T, 3, 7
    a = sum(float(K[i, j]) for i in range(m) for j in range(m) if i != j)
    b = sum(float(K[i, j]) for i in range(n) for j in range(n) if i != j)
    c = sum(float(K[i, j]) for i in range(m) for j in range(n) if i != j)
    want = a / (m * m - m) + b / (n * n - n) - 2 * c / (m * (n - 1))
    assert mmd(K, m) == pytest.approx(want)
    assert mmd(K, n) == pytest.approx(0.0, abs=1e-12)
    draws = []
    for seed in range(400):  # one distribution: nothing but noise around zero
        z = torch.randn(12, 2, generator=torch.Generator().manual_seed(seed))
        draws.append(mmd(z @ z.T + 1, 5))
    mean = sum(draws) / 400
    spread = (sum((d - mean) ** 2 for d in draws) / 400) ** 0.5
    assert abs(mean) < 4 * spread / 20
    with pytest.raises(InputError, match="first is 1"):
        mmd(K, 1)


def test_dynamical_strategy_selects_top_and_greedy_batches():
    x, y = blobs(20)
    model, x = own().double().eval(), x.double()
    pool = labelled_pool(y, 5)
    with torch.no_grad():
        outputs = model(x)
    rest = list(range(5, 20))
    d = residuals(outputs, torch.cat([y[:5], outputs[5:].argmax(1)]))
    G = per_sample(model, x, d)
    known, own_part = G[:5].sum(0), G[rest]
    scores = own_part.square().sum(1) + 2 * own_part @ known
    want = [rest[i] for i in torch.sort(scores, descending=True).indices[:4].tolist()]
    found = propose(model, x, pool, 4, "dynamical", loss="cross-entropy")
    assert found.positions.tolist() == want
    greedy = propose(model, x, pool, 4, QueryConfig("dynamical", "greedy"), loss="cross-entropy")
    batch, total = [], known.clone()
    for _ in range(4):
        values = {i: float(G[i] @ G[i] + 2 * G[i] @ total) for i in rest if i not in batch}
        batch.append(max(values, key=values.get))
        total = total + G[batch[-1]]
    assert greedy.positions.tolist() == batch
    influence = QueryConfig("dynamical", gamma=math.inf)
    only = propose(model, x, pool, 15, influence, loss="cross-entropy")
    assert only.scores.tolist() == pytest.approx(sorted((own_part @ known).tolist(), reverse=True))
    with pytest.raises(InputError, match="gamma"):
        QueryConfig("dynamical", gamma=-1.0)
