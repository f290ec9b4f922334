"""Entropy, margin and least confidence against scikit-activeml and DISTIL."""

import numpy as np
import pytest

pytest.importorskip("skactiveml")
pytest.importorskip("distil")

from research.competitors.adapters import scikit_query
from research.tests.competitors.peer_cases import Case, clearly_ordered

METHODS = {
    "entropy": ("entropy", "EntropySampling"),
    "margin": ("margin_sampling", "MarginSampling"),
    "least-confidence": ("least_confident", "LeastConfidence"),
}


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_the_same_items_in_the_same_order(name, seed, network):
    case = Case(network, seed)
    method, theirs = METHODS[name]
    chosen, scores = scikit_query(
        "UncertaintySampling", case.given, 20, 0, network="clf", scores=True, method=method
    )
    assert clearly_ordered(scores[0][case.labels :], 20)  # otherwise the order is a matter of taste
    ours = case.propose(name, 20)
    assert ours.positions.tolist() == chosen.tolist()
    # theirs are 1 − p or 1 − gap where ours are −p or −gap; entropies are the same number
    shift = 0.0 if name == "entropy" else 1.0
    assert np.allclose(ours.scores.numpy() + shift, scores[0][chosen], atol=1e-12)
    assert set(case.by_distil(theirs, 20)) == set(chosen.tolist())
