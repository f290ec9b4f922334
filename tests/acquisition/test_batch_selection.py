"""Batch selection (top, greedy, sequential) against explicit loops."""

from functools import partial

import pytest
import torch

from labelahead.acquisition import ACQUISITIONS, mlmoc, variance
from labelahead.acquisition.batch_selection import (
    HYPOTHETICAL_LABELS,
    best,
    greedy,
    sequential,
    top,
)
from labelahead.acquisition.pool_view import view
from labelahead.errors import InputError
from labelahead.gp.posterior import prior
from tests.support import reference_lookahead as ref

LABELLED, CANDIDATES = [20, 3, 11, 7], [0, 5, 9, 14, 2, 21]


@pytest.fixture(params=ref.KINDS)
def p(request):
    return ref.problem(request.param)


def make_view(p):
    return view(p.prior().condition(LABELLED, p.targets[LABELLED]), CANDIDATES)


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_top_selects_highest_scores(p, name):
    v = make_view(p)
    scores = ACQUISITIONS[name](v, None)
    batch = top(v, name, 3)
    order = sorted(range(6), key=lambda i: -float(scores[i]))[:3]
    assert batch.positions.tolist() == [CANDIDATES[i] for i in order]
    assert torch.equal(batch.scores, scores[order])
    assert batch.view is v


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("hypothetical_label", HYPOTHETICAL_LABELS)
def test_greedy_conditions_on_each_hypothetical_label(p, name, hypothetical_label):
    batch = greedy(make_view(p), name, 4, hypothetical_label=hypothetical_label)
    labelled, targets, candidates = list(LABELLED), p.targets[LABELLED], list(CANDIDATES)
    for position in batch.positions.tolist():
        post = p.prior().condition(labelled, targets)
        scores = ACQUISITIONS[name](view(post, candidates, CANDIDATES, baseline="linearised"), None)
        assert candidates[int(scores.argmax())] == position
        values = post.outputs[position] if hypothetical_label == "outputs" else post.mean[position]
        label = values if hypothetical_label == "mean" else ref.one_hot(int(values.argmax()), 3)
        labelled.append(position)
        targets = torch.cat([targets, label[None]])
        candidates.remove(position)
    assert batch.view.candidates.tolist() == candidates
    ref.close(batch.view.posterior.targets, targets)


@pytest.mark.parametrize("squared", [False, True])
def test_sequential_conditions_on_true_labels(p, squared):
    queried = []

    def oracle(position):
        queried.append(position)
        return int(p.targets[position].argmax())

    acquisition = partial(mlmoc, squared=squared)
    batch = sequential(make_view(p), acquisition, 6, oracle)
    assert batch.positions.tolist() == queried
    assert sorted(queried) == sorted(CANDIDATES)
    assert len(batch.view.candidates) == 0
    all_labelled = LABELLED + queried
    mean, _ = ref.refit(p, all_labelled, p.targets[all_labelled])
    ref.close(batch.view.posterior.mean, mean)
    first = CANDIDATES[int(acquisition(make_view(p).with_baseline("linearised")).argmax())]
    assert queried[0] == first


@pytest.mark.parametrize("name", ["mlmoc", "changes", "emoc", "eer"])
def test_sequential_and_greedy_measure_from_linearised_outputs(p, name):
    """After a label without training the network's outputs are outdated.

    The linearised outputs give the baseline and the hypothetical label.
    """
    naive = getattr(ref, name)

    def select_by_loop(answer):
        labelled, targets, candidates, batch = (
            list(LABELLED),
            p.targets[LABELLED],
            list(CANDIDATES),
            [],
        )
        for _ in range(4):
            scores = naive(p, labelled, targets, candidates, CANDIDATES, baseline="linearised")
            position = candidates[int(scores.argmax())]
            batch.append((position, float(scores.max())))
            label = answer(ref.refit(p, labelled, targets)[0], position)
            labelled, targets = [*labelled, position], torch.cat([targets, label[None]])
            candidates.remove(position)
        return batch

    sequential_batch = sequential(make_view(p), name, 4, lambda i: p.targets[i])
    greedy_batch = greedy(make_view(p), name, 4)
    for batch, expected in (
        (sequential_batch, select_by_loop(lambda mean, i: p.targets[i])),
        (greedy_batch, select_by_loop(lambda mean, i: ref.one_hot(int(mean[i].argmax()), 3))),
    ):
        assert batch.positions.tolist() == [position for position, _ in expected]
        ref.close(
            batch.scores, torch.tensor([score for _, score in expected], dtype=torch.float64), 1e-8
        )


@pytest.mark.parametrize("name", ["mlmoc", "changes", "emoc", "eer"])
def test_top_measures_from_network_outputs(p, name):
    expected = getattr(ref, name)(
        p, LABELLED, p.targets[LABELLED], CANDIDATES, CANDIDATES, baseline="outputs"
    )
    batch = top(make_view(p), name, 6)
    ref.close(batch.scores, expected.sort(descending=True).values, 1e-8)


def test_conditioned_view_has_linearised_baseline(p):
    v = make_view(p)
    assert v.baseline == "outputs"
    after = v.condition([5], p.targets[[5]])
    assert after.baseline == "linearised"
    assert torch.equal(after.predicted_targets(), after.predicted_targets("linearised"))
    with pytest.raises(InputError, match="baseline is 'f'"):
        v.with_baseline("f")


def test_sequential_accepts_targets(p):
    a = sequential(make_view(p), "variance", 3, lambda i: p.targets[i])
    b = sequential(make_view(p), "variance", 3, lambda i: int(p.targets[i].argmax()))
    assert torch.equal(a.positions, b.positions)
    ref.close(a.view.posterior.mean, b.view.posterior.mean)


def test_best_in_a_loop_equals_sequential(p):
    v, acquisition, queried = (
        make_view(p).with_baseline("linearised"),
        partial(mlmoc, squared=True),
        [],
    )
    for _ in range(3):
        position, score = best(v, acquisition)
        queried.append(position)
        assert score == float(acquisition(v).max())
        v = v.condition([position], p.targets[[position]])
    whole = sequential(make_view(p), acquisition, 3, lambda i: p.targets[i])
    assert whole.positions.tolist() == queried


def test_ties_select_first_candidate():
    v = make_view(ref.problem("dense-scalar"))
    flat = lambda view, rng: torch.zeros(len(view.candidates))  # noqa: E731
    assert top(v, flat, 4).positions.tolist() == CANDIDATES[:4]
    assert greedy(v, flat, 4).positions.tolist() == CANDIDATES[:4]


def test_greedy_avoids_copies_that_top_selects():
    p = ref.problem("dense-scalar", n=12)
    copies = [0] * 6
    rows = [*range(12), *copies]
    features, outputs = p.features[rows], p.outputs[rows]
    post = prior(outputs, features @ features.T * 1.0, noise=1e-4)
    weights = torch.ones(18, dtype=torch.float64)
    weights[[0, *range(12, 18)]] = 5.0  # make the copies attractive
    scored = lambda view, rng: variance(view) * weights[view.candidates]  # noqa: E731
    v = view(post, list(range(18)))
    same = {0, *range(12, 18)}
    assert len(same & set(top(v, scored, 5).positions.tolist())) == 5
    assert len(same & set(greedy(v, scored, 5).positions.tolist())) == 1


def test_condition_on_class_numbers_equals_one_hot_targets():
    torch.manual_seed(0)
    psi = torch.randn(9, 5, dtype=torch.float64)
    start = prior(torch.zeros(9, 3, dtype=torch.float64), psi @ psi.T)
    classes = torch.tensor([2, 0])
    one_hot = torch.eye(3, dtype=torch.float64)[classes]
    by_number = start.condition([1, 4], classes)
    assert torch.equal(by_number.mean, start.condition([1, 4], one_hot).mean)
    assert torch.equal(by_number.targets, start.condition([1, 4], one_hot.long()).targets)


def test_greedy_with_one_output_is_regression():
    torch.manual_seed(0)
    psi = torch.randn(9, 5, dtype=torch.float64)
    post = prior(torch.zeros(9, 1, dtype=torch.float64), psi @ psi.T, noise=1e-2)
    pool_view = view(post.condition([0], torch.tensor([[0.3]], dtype=torch.float64)), range(1, 9))
    sequential_batch = sequential(pool_view, "variance", 2, lambda position: -0.5)
    assert sequential_batch.view.posterior.targets[1:].flatten().tolist() == [-0.5, -0.5]
    greedy_batch = greedy(pool_view, "variance", 2)
    assert torch.allclose(greedy_batch.view.posterior.mean, pool_view.posterior.mean)
    with pytest.raises(InputError, match="most likely class"):
        top(pool_view, "mlmoc", 1)


def test_invalid_labels_and_batch_sizes_raise():
    torch.manual_seed(0)
    psi = torch.randn(9, 5, dtype=torch.float64)
    post = prior(torch.zeros(9, 3, dtype=torch.float64), psi @ psi.T, noise=1e-2)
    pool_view = view(post, range(9))
    for answer in (1.7, "cat", None, True, 3, -1):
        with pytest.raises(InputError, match="annotate returned"):
            sequential(pool_view, "variance", 1, lambda position, a=answer: a)
    assert (
        len(sequential(pool_view, "variance", 1, lambda position: torch.tensor(2)).positions) == 1
    )
    for count in (2.5, "3", True):
        with pytest.raises(InputError, match="whole number"):
            top(pool_view, "variance", count)
    with pytest.raises(InputError, match="expected a View"):
        top(post, "variance", 1)
    with pytest.raises(InputError, match="a name or a function"):
        top(pool_view, None, 1)
