"""BAIT against explicit Fisher information matrices and inverses."""

import math

import pytest
import torch

from labelahead.models.training.forward import compute_penultimate_features
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.context import QueryContext
from labelahead.strategies.fisher import RIDGE, bait
from labelahead.strategies.query import propose
from tests.support.campaigns import blobs, labelled_pool, own
from tests.support.tensors import draw_normal, simplex


def test_bait_matches_explicit_inverses():
    for seed, (n, h, labelled, q) in enumerate(
        [(25, 4, 6, 5), (25, 4, 0, 3), (12, 30, 4, 3), (9, 5, 3, 4), (8, 5, 2, 6)]
    ):
        v = draw_normal(n, h, seed=seed)
        fisher = v.T @ v / n
        base = RIDGE * torch.eye(h).double() + v[:labelled].T @ v[:labelled] / max(1, labelled)

        def trace(rows, v=v, fisher=fisher, base=base, labelled=labelled):
            selected = v[[labelled + i for i in rows]]
            return float(torch.trace(torch.linalg.inv(base + selected.T @ selected) @ fisher))

        chosen, gains, free = [], {}, range(n - labelled)
        for _ in range(min(2 * q, n - labelled)):
            at = min((i for i in free if i not in chosen), key=lambda i: trace([*chosen, i]))
            gains[at] = trace(chosen) - trace([*chosen, at])
            chosen.append(at)
        while len(chosen) > q:
            chosen.remove(min(chosen, key=lambda i: trace([j for j in chosen if j != i])))
        order, scores = bait(v, labelled, q)
        assert order.tolist() == chosen
        assert torch.allclose(scores, torch.tensor([gains[i] for i in chosen]).double(), atol=1e-10)


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_bait_uses_fisher_information_of_read_out(loss):
    """Compare with the sum of the diagonal blocks of Σ_y p_y ∇log p_y ∇log p_yᵀ by autograd."""
    model, (x, y) = own().eval(), blobs(24)
    pool = labelled_pool(y, 6)
    context = QueryContext.from_pool(model, x, pool, QueryConfig("bait"), 1, loss=loss, seed=3)
    f, h = context.outputs.double(), compute_penultimate_features(model, x[context.points]).double()
    p = torch.softmax(f, 1) if loss == "cross-entropy" else simplex(f)
    roots = []
    for probability, row in zip(p, h, strict=True):
        W = torch.zeros(p.shape[1], len(row)).double().requires_grad_()
        logs = torch.log_softmax(probability.clamp_min(1e-300).log() + W @ row, 0)
        grads = [torch.autograd.grad(each, W, retain_graph=True)[0] for each in logs]
        fisher = sum(q * g.T @ g for q, g in zip(probability, grads, strict=True))
        factor = 1 - float(probability.square().sum())
        assert torch.allclose(fisher, factor * torch.outer(row, row), atol=1e-9)
        roots.append(math.sqrt(max(0.0, factor)) * row)
    order, gains = bait(torch.stack(roots), 6, 4)
    query = propose(model, x, pool, 4, "bait", loss=loss, seed=3)
    assert query.positions.tolist() == context.candidates[order].tolist()
    assert torch.allclose(query.scores, gains)
