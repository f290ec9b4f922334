"""Baselines for several classes at once against loops."""

import math

import numpy as np
import pytest
import torch

import labelahead as la
from labelahead.errors import InputError
from labelahead.inference.exact import wrap_fitted_model
from labelahead.strategies.context import QueryContext
from labelahead.strategies.multilabel import (
    MULTILABEL,
    binary_uncertainty,
    compare_category_vectors,
    expect_loss_reduction,
    mmc,
    rank_margins,
)

rng = np.random.default_rng(0)
P = torch.from_numpy(rng.random((12, 4)))
X = rng.normal(size=(60, 5))
Y = (X @ rng.normal(size=(5, 4)) > 0.3).astype(float)


def test_expected_loss_reduction_equals_loops():
    counts = torch.tensor([0, 1, 2, 3, 4, 2] * 2)
    expected = []
    for row, count in zip(P.tolist(), counts.tolist(), strict=True):
        chosen = sorted(range(4), key=lambda c: -row[c])[:count]
        expected.append(
            sum((1 - (1 if c in chosen else -1) * (2 * row[c] - 1)) / 2 for c in range(4))
        )
    assert expect_loss_reduction(P, counts).tolist() == pytest.approx(expected)


def test_ranks_of_margins_equal_loops():
    expected = []
    for i in range(12):
        score = 0.0
        for c in range(4):
            margins = [abs(2 * float(p) - 1) for p in P[:, c]]
            score += (12 - (1 + sum(m < margins[i] for m in margins))) / 11 / 4
        expected.append(score)
    assert rank_margins(P).tolist() == pytest.approx(expected)


def entropy(*shares):
    return -sum(s * math.log(s) for s in shares if s)


def test_distances_of_category_vectors_equal_loops():
    chosen, known = P[:5] > 0.5, (P[5:] > 0.4).double()
    chosen[0] = ~(known[0] == 1)  # complements
    expected = []
    for a in chosen.int().tolist():
        total = 0.0
        for b in known.int().tolist():
            if all(x != y for x, y in zip(a, b, strict=True)):
                total += 1
                continue
            pairs = [(x, y) for x, y in zip(a, b, strict=True)]
            joint = entropy(*(pairs.count((x, y)) / 4 for x in (0, 1) for y in (0, 1)))
            first, second = (entropy(sum(v) / 4, 1 - sum(v) / 4) for v in (a, b))
            total += (2 * joint - first - second) / joint if joint else 0.0
        expected.append(total / len(known))
    assert compare_category_vectors(chosen, known).tolist() == pytest.approx(expected)


def make_context(labels):
    learner = la.Learner(la.exact(X, task=la.tasks.Multilabel(list("abcd"))), X)
    if labels:
        learner.teach(range(labels), Y[:labels])
        learner.train()
    fitted = wrap_fitted_model(learner.model, learner.inputs)
    return QueryContext(
        fitted,
        learner.pool.labelled,
        learner.pool.labels,
        torch.arange(labels, 60),
        la.QueryConfig("resolve"),
    )


def test_uncertainty_is_the_distance_of_probabilities_from_one_half():
    context = make_context(20)
    p = context.fitted.predict_answers(context.candidates).probabilities
    expected = [-sum(abs(float(v) - 0.5) for v in row) / 4 for row in p]
    assert binary_uncertainty(context, torch.Generator()).tolist() == pytest.approx(expected)


def test_number_of_classes_is_learnt():
    """With always two classes, the expected reduction is that for two."""
    context = make_context(0)
    task = context.fitted.task
    rows = np.eye(4)[rng.integers(0, 2, 20)] + np.eye(4)[rng.integers(2, 4, 20)]
    learner = la.Learner(la.exact(X, task=task), X)
    learner.teach(range(20), rows)
    learner.train()
    fitted = wrap_fitted_model(learner.model, learner.inputs)
    labelled, labels = learner.pool.labelled, learner.pool.labels
    context = QueryContext(
        fitted, labelled, labels, torch.arange(20, 60), la.QueryConfig("resolve")
    )
    p = fitted.predict_answers(context.candidates).probabilities
    expected = expect_loss_reduction(p, torch.full((40,), 2))
    assert torch.allclose(mmc(context, torch.Generator()), expected)


@pytest.mark.parametrize("strategy", [s.name for s in MULTILABEL])
@pytest.mark.parametrize("labels", [0, 1, 20])
def test_baselines_query(strategy, labels):
    learner = la.Learner(la.exact(X, task=la.tasks.Multilabel(list("abcd"))), X, strategy)
    if labels:
        learner.teach(range(labels), Y[:labels])
    queried = learner.query(5)
    assert len(set(queried)) == 5
    assert not set(queried) & set(range(labels))


def test_baselines_work_with_answers_that_are_partial():
    rows = np.where(rng.random(Y.shape) < 0.2, np.nan, Y)
    rows[:, 0] = Y[:, 0]
    for strategy in MULTILABEL:
        learner = la.Learner(la.exact(X, task=la.tasks.Multilabel(list("abcd"))), X, strategy)
        learner.teach(range(25), rows[:25])
        assert len(learner.query(2)) == 2


def test_baselines_of_the_task_are_these_and_refuse_classes():
    assert la.tasks.Multilabel.baselines.keys() == {s.name for s in MULTILABEL}
    with pytest.raises(InputError, match="mmc works for the task multilabel, not for classes"):
        la.Learner(la.exact(X, 4), X, "mmc")
