"""BALD and BatchBALD against baal and batchbald-redux, on the same dropout samples."""

import numpy as np
import pytest

heuristics = pytest.importorskip("baal.active.heuristics")
redux = pytest.importorskip("batchbald_redux.batchbald")

import torch  # noqa: E402
from batchbald_redux.joint_entropy import ExactJointEntropy  # noqa: E402

from labelahead.seeds import make_generator  # noqa: E402
from labelahead.strategies.bayesian import bald, batch_bald, sample_networks  # noqa: E402
from research.tests.competitors.peer_cases import Case, are_clearly_ordered  # noqa: E402


def draw_samples(case: Case, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the candidates of a query and the probabilities that this query samples for them."""
    context = case.query_context(name)
    return context.candidates, sample_networks(context, make_generator(0, "pick", len(case.pool)))


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bald_scores_and_ranks_equal_baal_and_redux(seed, network):
    case = Case(network, seed, dropout=0.3)
    candidates, p = draw_samples(case, "bald")
    ranks, scores = heuristics.BALD().get_ranks(p.permute(0, 2, 1).numpy())
    assert np.allclose(bald(p).numpy(), scores, atol=1e-12)
    assert are_clearly_ordered(scores, 20)
    ours = case.propose("bald", 20)
    assert ours.positions.tolist() == candidates[ranks[:20].copy()].tolist()
    theirs = redux.get_bald_batch(p.log(), 20)
    assert theirs.indices == ranks[:20].tolist()
    assert np.allclose(ours.scores.numpy(), theirs.scores, atol=1e-12)


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_batchbald_equals_redux_on_exact_configurations(seed, network):
    case, q = Case(network, seed, dropout=0.3), 6  # 3⁵ configurations before the last item
    candidates, p = draw_samples(case, "batchbald")
    theirs = redux.get_batchbald_batch(p.log(), q, 2000, dtype=torch.double)
    ours = case.propose("batchbald", q)
    assert ours.positions.tolist() == candidates[theirs.indices].tolist()
    assert np.allclose(ours.scores.numpy(), theirs.scores, atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_batchbald_on_sampled_configurations_is_near_optimum(seed):
    """Batches may differ on sampled configurations; their information is computed exactly."""
    _, p = draw_samples(Case("mlp", seed, dropout=0.3), "batchbald")
    exact = redux.get_batchbald_batch(p.log(), 8, 3**8, dtype=torch.double)
    sampled, scores = batch_bald(p, 8, make_generator(seed, "x"), max_configurations=400)

    def compute_joint_information(batch: list[int]) -> float:
        joint = ExactJointEntropy.empty(p.shape[1], dtype=torch.double)
        conditional_entropy = float(redux.compute_conditional_entropy(p.log())[batch].sum())
        return float(joint.add_variables(p.log()[batch]).compute()) - conditional_entropy

    assert exact.scores[-1] == pytest.approx(compute_joint_information(exact.indices), abs=1e-9)
    assert compute_joint_information(sampled.tolist()) > 0.97 * exact.scores[-1]
    assert float(scores[-1]) == pytest.approx(compute_joint_information(sampled.tolist()), rel=0.1)
