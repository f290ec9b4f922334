"""propose: what it checks and what a query reports."""

import json
import math

import pytest
import torch

import labelahead as la
from labelahead.errors import LabelaheadError
from labelahead.ntk import kernel
from labelahead.strategies.base import QueryBatch, QueryConfig, Strategy
from labelahead.strategies.query import propose
from tests.support.campaigns import blobs, data, labelled_pool, own
from tests.support.own_strategies import FIRST, make_campaign


def test_query_drift_matches_manual_count():
    x, y = blobs(60)
    model, pool = own().eval(), labelled_pool(y, 9)
    K = kernel(model, x).double()
    f, first = model(x).detach().double(), torch.arange(9)
    system = K[:9, :9] + 1e-3 * K.diagonal().mean() * torch.eye(9, dtype=torch.float64)
    after = f + K[:, :9] @ torch.linalg.solve(
        system, torch.eye(3, dtype=torch.float64)[y[:9]] - f[first]
    )
    share = float((after.argmax(1) != f.argmax(1))[9:].double().mean())
    assert share > 0.2  # the network is untrained
    for mode in ("top", "greedy"):
        query = propose(model, x, pool, 3, QueryConfig("mlmoc", mode=mode))
        assert query.drift == pytest.approx(share)
        assert len(query.notes) == 1
        assert "train longer" in query.notes[0]
    assert propose(model, x, pool, 3, "margin").drift is None
    assert propose(model, x, labelled_pool(y, 0), 3, "flip").drift is None  # no labels


def test_propose_and_learner_accept_strategy_values():
    x, y = data()[0].inputs, torch.arange(80) % 3
    model = la.Learner(torch.nn.Linear(32, 3), x, FIRST, seed=1)
    model.teach([0, 1, 2], y[:3])
    pool = la.Pool(80)
    pool.label([0, 1, 2], y[:3])
    query = la.propose(model.model, x, pool, 4, FIRST, seed=1)
    assert query.strategy == "first"
    assert query.positions.tolist() == model.query(4)
    assert json.loads(json.dumps(query.memory)) == {"calls": 1}


@pytest.mark.parametrize(
    "pick",
    [
        lambda s, q: None,
        lambda s, q: QueryBatch(s.candidates[:0], torch.ones(0)),
        lambda s, q: QueryBatch(s.candidates[: q - 1], torch.ones(q - 1)),
        lambda s, q: QueryBatch(s.candidates[:1].repeat(q), torch.ones(q)),
        lambda s, q: QueryBatch(s.labelled[:q], torch.ones(q)),
        lambda s, q: QueryBatch(torch.arange(q) + 10**6, torch.ones(q)),
        lambda s, q: QueryBatch(s.candidates[:q].tolist(), [1.0] * q),
        lambda s, q: QueryBatch(s.candidates[:q], torch.ones(q - 1)),
        lambda s, q: QueryBatch(s.candidates[:q], torch.full((q,), math.nan)),
    ],
)
def test_strategy_returning_invalid_batch_raises(pick):
    own = Strategy("mine", "never", "nobody", lambda s, q, rng, mode, oracle: pick(s, q))
    with pytest.raises(LabelaheadError, match=r"the strategy mine .*expected"):
        la.run(make_campaign(own), data=data())
