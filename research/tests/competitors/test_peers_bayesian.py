"""BALD and BatchBALD against baal and batchbald-redux, on the same dropout samples."""

import numpy as np
import pytest

heuristics = pytest.importorskip("baal.active.heuristics")
redux = pytest.importorskip("batchbald_redux.batchbald")

import torch  # noqa: E402
from batchbald_redux.joint_entropy import ExactJointEntropy  # noqa: E402

from labelahead.seeds import make_generator  # noqa: E402
from labelahead.strategies.bayesian import bald, batch_bald, sample_networks  # noqa: E402
from research.tests.competitors.peer_cases import Case, clearly_ordered  # noqa: E402


def samples(case: Case, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The candidates of a query, and the probabilities that this very query draws for them."""
    now = case.situation(name)
    return now.candidates, sample_networks(now, make_generator(0, "pick", len(case.pool)))


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bald_has_the_same_scores_and_ranks(seed, network):
    case = Case(network, seed, dropout=0.3)
    candidates, p = samples(case, "bald")
    ranks, scores = heuristics.BALD().get_ranks(p.permute(0, 2, 1).numpy())
    assert np.allclose(bald(p).numpy(), scores, atol=1e-12)
    assert clearly_ordered(scores, 20)
    ours = case.propose("bald", 20)
    assert ours.positions.tolist() == candidates[ranks[:20].copy()].tolist()
    theirs = redux.get_bald_batch(p.log(), 20)
    assert theirs.indices == ranks[:20].tolist()
    assert np.allclose(ours.scores.numpy(), theirs.scores, atol=1e-12)


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_batchbald_is_equal_while_exact(seed, network):
    case, q = Case(network, seed, dropout=0.3), 6  # 3⁵ configurations before the last pick
    candidates, p = samples(case, "batchbald")
    theirs = redux.get_batchbald_batch(p.log(), q, 2000, dtype=torch.double)
    ours = case.propose("batchbald", q)
    assert ours.positions.tolist() == candidates[theirs.indices].tolist()
    assert np.allclose(ours.scores.numpy(), theirs.scores, atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_batchbald_on_drawn_configurations_is_nearly_as_good(seed):
    """Beyond the exact regime batches may differ; what they are worth is counted exactly."""
    _, p = samples(Case("mlp", seed, dropout=0.3), "batchbald")
    exact = redux.get_batchbald_batch(p.log(), 8, 3**8, dtype=torch.double)
    drawn, scores = batch_bald(p, 8, make_generator(seed, "x"), max_configurations=400)

    def worth(batch: list[int]) -> float:
        joint = ExactJointEntropy.empty(p.shape[1], dtype=torch.double)
        doubt = float(redux.compute_conditional_entropy(p.log())[batch].sum())
        return float(joint.add_variables(p.log()[batch]).compute()) - doubt

    assert exact.scores[-1] == pytest.approx(worth(exact.indices), abs=1e-9)
    assert worth(drawn.tolist()) > 0.97 * exact.scores[-1]
    assert float(scores[-1]) == pytest.approx(worth(drawn.tolist()), rel=0.1)
