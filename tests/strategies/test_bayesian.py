"""BALD and BatchBALD against the mutual information of an explicit joint distribution."""

import itertools
import math

import pytest
import torch

from labelahead.errors import ModelError
from labelahead.models import build_model
from labelahead.models.training import Training
from labelahead.seeds import make_generator
from labelahead.strategies.bayesian import bald, batch_bald
from labelahead.strategies.query import propose
from tests.support.campaigns import blobs, labelled_pool, own
from tests.support.tensors import draw_normal


def draw_distributions(*shape, seed=0):
    return torch.softmax(2 * draw_normal(*shape, seed=seed), -1)


def test_bald_equals_mutual_information():
    p = draw_distributions(6, 5, 3)
    found = bald(p)
    for i in range(6):
        mean = p[i].mean(0)
        total = -sum(float(v) * math.log(v) for v in mean)
        inner = sum(-sum(float(v) * math.log(v) for v in p[i, t]) for t in range(5)) / 5
        assert math.isclose(float(found[i]), total - inner, rel_tol=1e-9)
    assert float(bald(p[:, :1]).abs().max()) < 1e-12  # a single network has no disagreement


def compute_joint_information(p, batch):
    """Compute the joint mutual information by enumerating all joint labels."""
    T, C = p.shape[1:]
    joint = 0.0
    for labels in itertools.product(range(C), repeat=len(batch)):
        q = float(
            torch.stack([p[i, :, y] for i, y in zip(batch, labels, strict=True)]).prod(0).mean()
        )
        joint -= q * math.log(q)
    return joint - sum(-float((p[i, t] * p[i, t].log()).sum()) / T for i in batch for t in range(T))


def test_batch_bald_is_greedy_on_the_exact_joint():
    p = draw_distributions(7, 4, 3, seed=2)
    found, scores = batch_bald(p, 4, make_generator(0, "x"))
    batch: list[int] = []
    for at, score in zip(found.tolist(), scores.tolist(), strict=True):
        values = {i: compute_joint_information(p, [*batch, i]) for i in range(7) if i not in batch}
        assert max(values, key=values.get) == at
        assert math.isclose(values[at], score, rel_tol=1e-9)
        batch.append(at)


def test_batch_bald_with_sampled_configurations_is_close():
    p = draw_distributions(10, 6, 4, seed=3)
    _, exact = batch_bald(p, 5, make_generator(0, "x"), max_configurations=10**6)
    _, drawn = batch_bald(p, 5, make_generator(0, "x"), max_configurations=4000)
    assert torch.allclose(exact, drawn, atol=0.05)


def test_bald_uses_dropout_or_ensemble_or_raises():
    x, y = blobs(30)
    pool = labelled_pool(y, 6)
    plain = own()
    with pytest.raises(ModelError, match="no dropout"):
        propose(plain, x, pool, 3, "bald")
    dropping = build_model("mlp", (1, 8, 8), 3, width=16, dropout=0.3).eval()
    state = torch.random.get_rng_state()
    one = propose(dropping, x, pool, 3, "bald")
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(one.positions, propose(dropping, x, pool, 3, "bald").positions)
    assert not dropping.training
    assert not any(m.training for m in dropping.modules())
    assert float(one.scores[0]) > 0
    more = propose(plain, x, pool, 3, "bald", fresh=own, training=Training(steps=5))
    assert len(more.positions) == 3
