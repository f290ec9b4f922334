"""Logistic regression as a learner: probabilities of scikit-learn, items and seed set of the exact
learner.
"""

from dataclasses import replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from labelahead.errors import InputError
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel
from labelahead.learner.config import parse_campaign
from labelahead.simulation.run import build_simulation, prepare_campaign
from labelahead.strategies.base import QueryConfig
from research.competitors.logistic import HOW, LogisticLearner
from research.results.competitors import for_peers
from research.results.runs import run_plan


def make_learner(classes: int = 4, n: int = 60) -> LogisticLearner:
    x = torch.randn(n, 7, generator=torch.Generator().manual_seed(classes)) + 3
    return LogisticLearner.beside(ExactLearner(x, ExactModel(x.mean(0), classes)))


@pytest.mark.parametrize("present", [[0, 1, 2, 3], [0, 2, 3], [1, 3], [2]])
def test_logistic_probabilities_equal_scikit_learn(present):
    logistic = make_learner()
    labelled = torch.arange(20)
    labels = torch.tensor(present)[torch.arange(20) % len(present)]
    fitted = logistic.fit(labelled, labels)
    p = torch.softmax(fitted.outputs(torch.arange(60)).double(), 1)
    absent = [c for c in range(4) if c not in present]
    assert float(p[:, absent].sum()) == 0
    if len(present) == 1:
        assert torch.equal(p[:, present[0]], torch.ones(60).double())
        return
    model = LogisticRegression(**HOW).fit(logistic.inputs[labelled].numpy(), labels.numpy())
    expected = torch.from_numpy(model.predict_proba(logistic.inputs.numpy())).double()
    assert torch.allclose(p[:, present], expected, atol=1e-5)
    assert fitted.trained is not None
    assert fitted.trained.accuracy == pytest.approx(
        model.score(logistic.inputs[labelled].numpy(), labels.numpy())
    )


def test_logistic_features_are_centred_and_normalised():
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(1)) + 2
    logistic = LogisticLearner.beside(
        ExactLearner(x, ExactModel(x[:20].mean(0), 3))
    )  # the pool is a part of the items
    assert torch.allclose(logistic.inputs, F.normalize(x - x[:20].mean(0), dim=1), atol=1e-6)
    with pytest.raises(InputError, match=r"expected model\.name = 'exact'"):
        LogisticLearner.beside(object())


def test_logistic_campaign_queries_same_random_items_as_exact():
    settings = {
        "model": {"name": "exact"},
        "budget": {"initial": 10, "labels": 30, "retrain_every": 10},
        "threads": 1,
    }
    plan = build_simulation(prepare_campaign(parse_campaign(settings)))
    queried: list[int] = []

    def answer(position: int) -> int:
        queried.append(position)
        return plan.labeller(position)

    curves = []
    for simulation in (plan, for_peers(plan)):
        rounds = run_plan(
            replace(simulation, labeller=answer), QueryConfig("random", candidates=200)
        )
        curves.append([r.accuracy for r in rounds])
        assert [r.labels for r in rounds] == [10, 20, 30]
    assert queried[:30] == queried[30:]
    assert curves[0] != curves[1]
    assert min(curves[1]) > 0.3
