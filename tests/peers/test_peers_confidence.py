"""Entropy, margin and least confidence against scikit-activeml and DISTIL."""

import numpy as np
import pytest

pool = pytest.importorskip("skactiveml.pool")
pytest.importorskip("distil")

from distil.active_learning_strategies import (  # noqa: E402
    EntropySampling,
    LeastConfidence,
    MarginSampling,
)
from peer_cases import Case, distil, distinct  # noqa: E402
from peer_classifier import Looked  # noqa: E402

METHODS = {
    "entropy": ("entropy", EntropySampling),
    "margin": ("margin_sampling", MarginSampling),
    "least-confidence": ("least_confident", LeastConfidence),
}


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_the_same_items_in_the_same_order(name, seed, network):
    case = Case(network, seed)
    method, theirs = METHODS[name]
    strategy = pool.UncertaintySampling(method=method, missing_label=-1, random_state=0)
    chosen, scores = strategy.query(
        X=np.arange(case.n)[:, None], y=case.known, clf=Looked(case.probabilities),
        fit_clf=False, batch_size=20, return_utilities=True,
    )  # fmt: skip
    assert distinct(scores[0][case.labels :], 20)  # otherwise the order is a matter of taste
    ours = case.propose(name, 20)
    assert ours.positions.tolist() == chosen.tolist()
    # theirs are 1 − p or 1 − gap where ours are −p or −gap; entropies are the same number
    shift = 0.0 if name == "entropy" else 1.0
    assert np.allclose(ours.scores.numpy() + shift, scores[0][chosen], atol=1e-12)
    assert set(distil(theirs, case, 20)) == set(chosen.tolist())
