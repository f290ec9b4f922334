"""Entropy, margin and least confidence against scikit-activeml and DISTIL."""

import numpy as np
import pytest

pytest.importorskip("skactiveml")
pytest.importorskip("distil")

from research.competitors.adapters import scikit_query
from research.tests.competitors.peer_cases import Case, are_clearly_ordered

METHODS = {
    "entropy": ("entropy", "EntropySampling"),
    "margin": ("margin_sampling", "MarginSampling"),
    "least-confidence": ("least_confident", "LeastConfidence"),
}


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_uncertainty_queries_equal_scikit_activeml_and_distil(name, seed, network):
    case = Case(network, seed)
    method, distil_name = METHODS[name]
    chosen, scores = scikit_query(
        "UncertaintySampling", case.packages_input, 20, 0, network="clf", scores=True, method=method
    )
    assert are_clearly_ordered(scores[0][case.labels :], 20)  # ties would make the order arbitrary
    ours = case.propose(name, 20)
    assert ours.positions.tolist() == chosen.tolist()
    # scikit-activeml scores 1 − p or 1 − gap, we score −p or −gap; entropies are equal
    shift = 0.0 if name == "entropy" else 1.0
    assert np.allclose(ours.scores.numpy() + shift, scores[0][chosen], atol=1e-12)
    assert set(case.query_by_distil(distil_name, 20)) == set(chosen.tolist())
