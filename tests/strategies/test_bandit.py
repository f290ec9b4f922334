"""ALBL: EXP4.P by its pseudo-code, importance weights by enumeration, memory across rounds."""

import itertools
import json
import math
import shutil
from dataclasses import replace

import pytest
import torch

from labelahead.data import from_arrays
from labelahead.errors import InputError
from labelahead.learner.config import Budget, Campaign, Network
from labelahead.learner.learner import Learner
from labelahead.models.training import Training, predict
from labelahead.seeds import make_generator
from labelahead.simulation.run import resume, run
from labelahead.simulation.store import Store
from labelahead.strategies import find_strategy
from labelahead.strategies.bandit import (
    BOUND_FAILURE_PROBABILITY,
    EXPERTS,
    BanditState,
    bandit_horizon,
    expert_credits,
    expert_probabilities,
    selection_probabilities,
    update_weights,
)
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.context import QueryContext
from labelahead.strategies.query import propose
from tests.support.campaigns import blobs, labelled_pool, own, reachable

CAMPAIGN = Campaign(
    model=Network("mlp", 16),
    training={"steps": 8, "rate": 0.02},
    asking=QueryConfig("albl"),
    budget=Budget(initial=5, labels=25, retrain_every=4),
    threads=1,
)


def make_data():
    return from_arrays(*blobs(80, (32,)), test=range(60, 80))


def make_vector(*values):
    return torch.tensor(values, dtype=torch.float64)


class NaiveExp4P:
    """EXP4.P by its pseudo-code, one action per expert; weights start at one and only grow."""

    def __init__(self, K):
        self.K, self.w = K, [1.0] * K

    def draw(self, T):
        self.pmin = min(1 / self.K, math.sqrt(math.log(self.K) / (self.K * T)))
        W = sum(self.w)
        self.p = [(1 - self.K * self.pmin) * w / W + self.pmin for w in self.w]
        return self.p

    def feed(self, T, batches, m, q, queried, reward):
        for k in range(self.K):
            # ψ is 1 in the batch, or q/m for the expert that samples at random
            psi = [q / m if b is None else float(i in b) for b in batches for i in range(m)]
            rows = [psi[j * m : (j + 1) * m] for j in range(self.K)]
            query_probability = [
                sum(self.p[j] * rows[j][i] for j in range(self.K)) for i in range(m)
            ]
            r_hat = [reward / query_probability[i] if i in queried else 0.0 for i in range(m)]
            y_hat = sum(rows[k][i] / q * r_hat[i] for i in range(m))
            v_hat = 1 / self.p[k]
            bound = math.sqrt(math.log(self.K / BOUND_FAILURE_PROBABILITY) / (self.K * T))
            self.w[k] *= math.exp(self.pmin / 2 * (y_hat + v_hat * bound))


@pytest.mark.parametrize("q", [1, 3])
def test_update_weights_follows_pseudo_code(q):
    m, K, rng = 8, 3, torch.Generator().manual_seed(q)
    naive, weights = NaiveExp4P(K), torch.full((K,), 1 / K, dtype=torch.float64)
    for number in range(1, 12):
        T = bandit_horizon(number)
        p = expert_probabilities(weights, number)
        assert p.tolist() == pytest.approx(naive.draw(T), abs=1e-14)
        batches = [torch.randperm(m, generator=rng)[:q] for _ in range(K)]
        k = int(torch.multinomial(p, 1, generator=rng))
        reward = float(torch.rand(1, generator=rng))
        fixed = [*batches[:2], None]
        credit = expert_credits(selection_probabilities(fixed, m, q), p, batches[k])
        weights = update_weights(weights, p, credit, reward, number)
        lists = [b if b is None else b.tolist() for b in fixed]
        naive.feed(T, lists, m, q, batches[k].tolist(), reward)
        assert weights.tolist() == pytest.approx([w / sum(naive.w) for w in naive.w], abs=1e-13)


@pytest.mark.parametrize("number", [1, 2, 4, 5, 8, 9, 100])
def test_expert_probabilities_sum_to_one_and_are_positive(number):
    T = bandit_horizon(number)
    assert max(4, number) <= T
    assert T == 4 or 2 * number > T
    least = math.sqrt(math.log(3) / (3 * T))
    assert least <= 1 / 3
    p = expert_probabilities(make_vector(1.0, 1e-12, 0.0), number)
    assert float(p.sum()) == pytest.approx(1, abs=1e-15)
    assert p.tolist() == pytest.approx([1 - 2 * least, least, least], abs=1e-10)


def enumerate_draws(p, batches, m, q):
    """Yield the probability and the queried candidates of every possible draw of a round."""
    for expert_probability, batch in zip(p.tolist(), batches, strict=True):
        if batch is not None:
            yield expert_probability, batch
            continue
        subsets = list(itertools.combinations(range(m), q))
        for subset in subsets:
            yield expert_probability / len(subsets), torch.tensor(subset)


@pytest.mark.parametrize(
    "batches", [[[0, 1], [4, 2]], [[0, 1], [1, 5]], [[3, 2], [2, 3]]], ids=["apart", "one", "same"]
)
def test_importance_weights_are_unbiased(batches):
    m, q = 7, 2
    expert_batches = [*map(torch.tensor, batches), None]
    p = make_vector(0.5, 0.2, 0.3)
    psi = selection_probabilities(expert_batches, m, q)
    query_probability = p @ psi
    is_correct = make_vector(1, 0, 0, 1, 1, 0, 1)
    total, accuracy, counted = 0.0, 0.0, 0.0
    query_frequency, credit = (
        torch.zeros(m, dtype=torch.float64),
        torch.zeros(3, dtype=torch.float64),
    )
    for probability, queried in enumerate_draws(p, expert_batches, m, q):
        counts = 1 / (m * query_probability[queried])
        total += probability
        accuracy += probability * float((counts * is_correct[queried]).sum())
        counted += probability * float(counts.sum())
        query_frequency[queried] += probability
        credits = expert_credits(psi, p, queried)
        assert bool((credits <= 1 / p + 1e-12).all())
        credit += probability * credits
    assert total == pytest.approx(1)
    assert float(psi.sum(1).sub(q).abs().max()) < 1e-12
    assert torch.allclose(query_frequency, query_probability, atol=1e-14)
    assert accuracy == pytest.approx(float(is_correct.mean()), abs=1e-14)
    assert counted == pytest.approx(1, abs=1e-14)
    assert torch.allclose(credit, torch.ones_like(credit), atol=1e-14)


def test_importance_weights_without_random_cover_union_only():
    m, q = 7, 2
    expert_batches, p = [torch.tensor([0, 1]), torch.tensor([1, 5])], make_vector(0.7, 0.3)
    query_probability = p @ selection_probabilities(expert_batches, m, q)
    is_correct = make_vector(1, 0, 0, 1, 1, 1, 1)
    found = sum(
        probability * float((is_correct[queried] / query_probability[queried]).sum())
        for probability, queried in enumerate_draws(p, expert_batches, m, q)
    )
    assert found == pytest.approx(float(is_correct[[0, 1, 5]].sum()), abs=1e-14)


def simulate_weights(best):
    """Return the weights after 100 and 400 rounds in which `best` earns more than the others."""
    m, q, rng = 40, 2, torch.Generator().manual_seed(0)
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    found = []
    for number in range(1, 401):
        p = expert_probabilities(weights, number)
        k = int(torch.multinomial(p, 1, generator=rng))
        batches = [torch.randperm(m, generator=rng)[:q] for _ in range(3)]
        credit = expert_credits(selection_probabilities([*batches[:2], None], m, q), p, batches[k])
        weights = update_weights(weights, p, credit, 0.9 if k == best else 0.2, number)
        found += [weights] if number in (100, 400) else []
    return found


@pytest.mark.parametrize("best", [0, 1, 2])
def test_better_expert_gains_weight(best):
    # Below 1: the confidence term √(ln(K/δ)/(KT))/p_k balances 0.9 − 0.2 near p_k = 0.06.
    early, late = simulate_weights(best)
    assert float(late[best]) > float(early[best]) > 0.5
    assert 0.75 < float(late[best]) < 0.95


def test_equal_experts_stay_about_equal():
    assert float(simulate_weights(None)[1].max()) < 0.5


def query_albl(memory=None, seed=0, count=6, labels=None, n=4, **more):
    x, y = blobs(30)
    pool = labelled_pool(y, count)
    if labels:
        pool.label(list(labels), list(labels.values()))
    return propose(own(), x, pool, n, QueryConfig("albl", **more), seed=seed, memory=memory)


def test_query_stores_selection_probabilities():
    """Compare with probabilities computed from the batches of all experts."""
    x, y = blobs(30)
    context = QueryContext.from_pool(own(), x, labelled_pool(y, 6), QueryConfig("albl"), 4)
    sets = [
        set(
            find_strategy(name)
            .select_batch(context, 4, make_generator(0), "top", None)
            .positions.tolist()
        )
        for name in EXPERTS[:2]
    ]
    drawn, frequencies = set(), torch.zeros(30, dtype=torch.float64)
    rounds = 300
    for seed in range(rounds):
        batch = find_strategy("albl").select_batch(
            context, 4, make_generator(seed, "pick"), "top", None
        )
        state = BanditState.from_memory(batch.memory)
        assert state.chances == pytest.approx([1 / 3] * 3)
        for position, count in zip(batch.positions.tolist(), state.counts, strict=True):
            query_probability = (sum(position in s for s in sets) + 4 / 24) / 3
            assert count == pytest.approx(1 / (24 * query_probability))
        frequencies[batch.positions] += 1 / rounds
        queried = set(batch.positions.tolist())
        drawn.add(EXPERTS[sets.index(queried)] if queried in sets else "random")
    assert drawn == set(EXPERTS)
    for position in range(6, 30):
        query_probability = (sum(position in s for s in sets) + 4 / 24) / 3
        assert abs(float(frequencies[position]) - query_probability) < 4 * math.sqrt(
            query_probability / rounds
        )


@pytest.mark.parametrize("right", [4, 3, 0])
def test_reward_is_weighted_accuracy_of_current_network(right):
    x, _ = blobs(30)
    first = query_albl(seed=3)
    guess = predict(own(), x[first.positions]).argmax(1)
    answers = {
        int(p): int(g) if i < right else (int(g) + 1) % 3
        for i, (p, g) in enumerate(zip(first.positions, guess, strict=True))
    }
    second = query_albl(first.memory, seed=3, labels=answers)
    past, now = BanditState.from_memory(first.memory), BanditState.from_memory(second.memory)
    reward = sum(past.counts[:right]) / sum(past.counts)
    expected = update_weights(
        make_vector(*past.weights),
        make_vector(*past.chances),
        make_vector(*past.credits),
        reward,
        1,
    )
    assert now.weights == pytest.approx(expected.tolist(), abs=1e-14)
    assert (now.round, now.last) == (2, 4)
    assert now.positions == first.positions.tolist() + second.positions.tolist()
    assert now.counts[:4] == past.counts


def test_round_without_labels_is_ignored():
    first = query_albl()
    again = query_albl(first.memory)
    assert again.memory == first.memory
    assert torch.equal(again.positions, first.positions)
    answers = dict.fromkeys(first.positions.tolist(), 0)
    second = query_albl(first.memory, labels=answers)
    assert second.memory["weights"] != first.memory["weights"]
    assert query_albl(second.memory, labels=answers).memory == second.memory
    some = {int(first.positions[0]): 0}
    later = BanditState.from_memory(query_albl(first.memory, labels=some).memory)
    assert later.round == 2
    assert later.positions[0] == int(first.positions[0])
    assert len(later.positions) == 1 + 4


def test_memory_is_json_without_labels():
    memory = query_albl().memory
    assert json.loads(json.dumps(memory, allow_nan=False)) == memory
    assert set(memory) == {"round", "weights", "chances", "credits", "last", "positions", "counts"}
    assert not [v for v in reachable([memory]) if isinstance(v, torch.Tensor)]
    assert query_albl(memory, n=0).memory == memory
    x, y = blobs(30)
    assert propose(own(), x, labelled_pool(y, 6), 2, "margin", memory=memory).memory is None


def test_invalid_memory_raises():
    with pytest.raises(InputError, match="earlier query of albl"):
        query_albl({"round": 1})
    memory = query_albl().memory | {"weights": [0.5, 0.5]}
    with pytest.raises(InputError, match="has 2 experts"):
        query_albl(memory)


def get_outcome(result):
    return (
        [replace(r, seconds={}) for r in result.rounds],
        result.pool.labelled.tolist(),
        {k: v.tolist() for k, v in result.model.state_dict().items()},
    )


def truncate_folder(folder, labels, rounds):
    """Truncate the folder as a kill would leave it."""
    for name, keep in (("labels.jsonl", labels), ("rounds.jsonl", rounds)):
        lines = (folder / name).read_bytes().split(b"\n")[:keep]
        (folder / name).write_bytes(b"".join(line + b"\n" for line in lines))


@pytest.fixture(scope="module")
def finished_campaign(tmp_path_factory):
    folder = tmp_path_factory.mktemp("campaign") / "a"
    return run(CAMPAIGN, data=make_data(), out=folder), folder


def test_albl_campaign_is_same_with_and_without_folder(finished_campaign):
    whole, _ = finished_campaign
    assert [r.memory["round"] for r in whole.rounds[:-1]] == [1, 2, 3, 4, 5]
    assert whole.rounds[-1].memory is None
    assert get_outcome(run(CAMPAIGN, data=make_data())) == get_outcome(whole)


@pytest.mark.parametrize("keep", [3, 8, 9, 17, 24])
def test_resume_after_any_label_gives_same_result(tmp_path, finished_campaign, keep):
    whole, folder = finished_campaign
    shutil.copytree(folder, tmp_path / "a")
    for finished in {max(0, (keep - 5) // 4), max(0, (keep - 6) // 4)}:
        # all labels of a round may be recorded before the round itself
        truncate_folder(tmp_path / "a", keep, finished)
        assert get_outcome(resume(tmp_path / "a", data=make_data())) == get_outcome(whole)


def test_larger_budget_continues_with_memory(tmp_path, finished_campaign):
    short = replace(CAMPAIGN, budget=replace(CAMPAIGN.budget, labels=13))
    run(short, data=make_data(), out=tmp_path / "a")
    more = resume(tmp_path / "a", {"budget.labels": 25}, data=make_data())
    assert get_outcome(more) == get_outcome(finished_campaign[0])


def test_resume_of_folder_without_memory_restarts_bandit(tmp_path, finished_campaign):
    whole, folder = finished_campaign
    shutil.copytree(folder, tmp_path / "a")
    truncate_folder(tmp_path / "a", 13, 2)
    path = tmp_path / "a" / "rounds.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: r[k] for k in r if k != "memory"}) + "\n" for r in rows))
    with Store.open(tmp_path / "a") as store:
        assert [r.memory for r in store.read_rounds()] == [None, None]
    again = resume(tmp_path / "a", data=make_data())
    assert [r.memory["round"] for r in again.rounds[2:-1]] == [1, 2, 3]  # restarted
    assert again.curve[:3] == whole.curve[:3]


def query_and_teach(rounds, learner, y):
    for _ in range(rounds):
        queried = learner.query(3)
        learner.teach(queried, y[queried])
    return learner


def test_saved_learner_keeps_memory(tmp_path):
    x, y = blobs(40)
    quick = Training(steps=5)
    learner = Learner(own(), x, "albl", training=quick, retrain_every=3)
    learner.teach([0, 1, 2], y[:3])
    query_and_teach(3, learner, y)
    learner.save(tmp_path / "answered.pt")
    other = Learner.load(tmp_path / "answered.pt", own(), x)
    assert learner._memory["round"] == 3
    assert other.query(3) == learner.query(3)
    assert other._memory == learner._memory
    learner.save(tmp_path / "waiting.pt")
    waiting = Learner.load(tmp_path / "waiting.pt", own(), x)
    assert waiting.query(3) == learner.query(3) == learner.query(3)  # no labels since
    assert waiting._memory == learner._memory
    assert learner._memory["round"] == 4
    assert learner.query(0) == []
    query_and_teach(2, learner, y)
    query_and_teach(2, waiting, y)
    assert waiting.pool.labelled.tolist() == learner.pool.labelled.tolist()
    assert waiting._memory == learner._memory
    assert learner._memory["round"] == 5
