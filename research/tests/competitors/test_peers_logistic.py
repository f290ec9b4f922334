"""Logistic regression as a learner.

Scikit-learn's own probabilities, on the exact learner's items and first labels.
"""

from dataclasses import replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from labelahead.errors import InputError
from labelahead.inference.exact import ExactLearner, ExactModel
from labelahead.learner.config import parse_campaign
from labelahead.simulation.run import build_simulation, prepare_campaign
from labelahead.strategies.base import QueryConfig
from research.competitors.logistic import HOW, LogisticLearner
from research.results.competitors import for_peers
from research.results.runs import played


def learner(classes: int = 4, n: int = 60) -> LogisticLearner:
    x = torch.randn(n, 7, generator=torch.Generator().manual_seed(classes)) + 3
    return LogisticLearner.beside(ExactLearner(x, ExactModel(x.mean(0), classes)))


@pytest.mark.parametrize("present", [[0, 1, 2, 3], [0, 2, 3], [1, 3], [2]])
def test_its_probabilities_are_scikit_learns(present):
    one = learner()
    at = torch.arange(20)
    labels = torch.tensor(present)[torch.arange(20) % len(present)]
    learnt = one.fit(at, labels)
    p = torch.softmax(learnt.outputs(torch.arange(60)).double(), 1)
    absent = [c for c in range(4) if c not in present]
    assert float(p[:, absent].sum()) == 0
    if len(present) == 1:
        assert torch.equal(p[:, present[0]], torch.ones(60).double())
        return
    model = LogisticRegression(**HOW).fit(one.inputs[at].numpy(), labels.numpy())
    theirs = torch.from_numpy(model.predict_proba(one.inputs.numpy())).double()
    assert torch.allclose(p[:, present], theirs, atol=1e-5)
    assert learnt.trained is not None
    assert learnt.trained.accuracy == pytest.approx(
        model.score(one.inputs[at].numpy(), labels.numpy())
    )


def test_its_features_are_centred_and_of_length_one():
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(1)) + 2
    one = LogisticLearner.beside(
        ExactLearner(x, ExactModel(x[:20].mean(0), 3))
    )  # the pool is part of it
    assert torch.allclose(one.inputs, F.normalize(x - x[:20].mean(0), dim=1), atol=1e-6)
    with pytest.raises(InputError, match=r"expected model\.name = 'exact'"):
        LogisticLearner.beside(object())


def test_a_campaign_begins_with_the_same_labels():
    settings = {
        "model": {"name": "exact"},
        "budget": {"initial": 10, "labels": 30, "retrain_every": 10},
        "threads": 1,
    }
    plan = build_simulation(prepare_campaign(parse_campaign(settings)))
    asked: list[int] = []

    def answer(position: int) -> int:
        asked.append(position)
        return plan.labeller(position)

    curves = []
    for one in (plan, for_peers(plan)):
        rounds = played(replace(one, labeller=answer), QueryConfig("random", candidates=200))
        curves.append([r.accuracy for r in rounds])
        assert [r.labels for r in rounds] == [10, 20, 30]
    assert asked[:30] == asked[30:]
    assert curves[0] != curves[1]
    assert min(curves[1]) > 0.3
