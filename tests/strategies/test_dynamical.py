"""Training dynamics of networks against loops over per-sample gradients."""

import math

import pytest
import torch

from labelahead.errors import InputError
from labelahead.gp.dynamics import approximation_ratio, joint_gain, residuals
from labelahead.ntk import gradient_gram, kernel, norms_and_products
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.dynamical import dynamics, gains, total_gradient
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


def network_and_residuals(name):
    model, x = architectures.make(name)
    with torch.no_grad():
        outputs = model(x)
    guess = residuals(outputs, outputs.argmax(1))
    return model, x, guess


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0, math.inf])
@pytest.mark.parametrize("name", NETWORKS)
def test_gains_equal_loop_over_gradients(name, gamma):
    model, x, guess = network_and_residuals(name)
    G = per_sample(model, x, guess)
    known = G[:2].sum(0)
    direction = total_gradient(model, x[:2], guess[:2])
    found = gains(model, x, guess, direction, gamma)
    squares, products = G.square().sum(1), G @ known
    want = products if gamma == math.inf else squares + gamma * products
    assert torch.allclose(found, want, rtol=1e-8, atol=1e-8 * float(want.abs().max()))


@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_gram_equals_loop_over_gradients(name):
    model, x, guess = network_and_residuals(name)
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
    model, x, d = network_and_residuals(name)
    full = kernel(model, x, kind="full")
    by_definition = float(d.flatten() @ full @ d.flatten())  # Σᵢⱼ dᵢᵀ Θ(xᵢ,xⱼ) dⱼ
    assert math.isclose(dynamics(model, x, d), by_definition, rel_tol=1e-8)


def test_joint_gain_equals_change_of_dynamics():
    model, x, d = network_and_residuals("mlp")
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
