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


def look(p):
    return view(p.prior().condition(LABELLED, p.targets[LABELLED]), CANDIDATES)


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_top_selects_highest_scores(p, name):
    v = look(p)
    scores = ACQUISITIONS[name](v, None)
    picked = top(v, name, 3)
    order = sorted(range(6), key=lambda i: -float(scores[i]))[:3]
    assert picked.positions.tolist() == [CANDIDATES[i] for i in order]
    assert torch.equal(picked.scores, scores[order])
    assert picked.view is v


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("hypothetical_label", HYPOTHETICAL_LABELS)
def test_greedy_conditions_on_each_hypothetical_label(p, name, hypothetical_label):
    picked = greedy(look(p), name, 4, hypothetical_label=hypothetical_label)
    seen, targets, left = list(LABELLED), p.targets[LABELLED], list(CANDIDATES)
    for position in picked.positions.tolist():
        post = p.prior().condition(seen, targets)
        scores = ACQUISITIONS[name](view(post, left, CANDIDATES, baseline="linearised"), None)
        assert left[int(scores.argmax())] == position
        values = post.outputs[position] if hypothetical_label == "outputs" else post.mean[position]
        label = values if hypothetical_label == "mean" else ref.one_hot(int(values.argmax()), 3)
        seen.append(position)
        targets = torch.cat([targets, label[None]])
        left.remove(position)
    assert picked.view.candidates.tolist() == left
    ref.close(picked.view.posterior.targets, targets)


@pytest.mark.parametrize("squared", [False, True])
def test_sequential_conditions_on_true_labels(p, squared):
    asked = []

    def ask(position):
        asked.append(position)
        return int(p.targets[position].argmax())

    acquisition = partial(mlmoc, squared=squared)
    picked = sequential(look(p), acquisition, 6, ask)
    assert picked.positions.tolist() == asked
    assert sorted(asked) == sorted(CANDIDATES)
    assert len(picked.view.candidates) == 0
    everything = LABELLED + asked
    mean, _ = ref.refit(p, everything, p.targets[everything])
    ref.close(picked.view.posterior.mean, mean)
    first = CANDIDATES[int(acquisition(look(p).with_baseline("linearised")).argmax())]
    assert asked[0] == first


@pytest.mark.parametrize("name", ["mlmoc", "changes", "emoc", "eer"])
def test_sequential_and_greedy_measure_from_linearised_outputs(p, name):
    """After a label without training the network's outputs are out of date.

    F_lin is baseline and label.
    """
    naive = getattr(ref, name)

    def by_hand(answer):
        seen, targets, left, picked = list(LABELLED), p.targets[LABELLED], list(CANDIDATES), []
        for _ in range(4):
            scores = naive(p, seen, targets, left, CANDIDATES, baseline="linearised")
            position = left[int(scores.argmax())]
            picked.append((position, float(scores.max())))
            label = answer(ref.refit(p, seen, targets)[0], position)
            seen, targets = [*seen, position], torch.cat([targets, label[None]])
            left.remove(position)
        return picked

    told = sequential(look(p), name, 4, lambda i: p.targets[i])
    believed = greedy(look(p), name, 4)
    for picked, expected in (
        (told, by_hand(lambda mean, i: p.targets[i])),
        (believed, by_hand(lambda mean, i: ref.one_hot(int(mean[i].argmax()), 3))),
    ):
        assert picked.positions.tolist() == [position for position, _ in expected]
        ref.close(
            picked.scores, torch.tensor([score for _, score in expected], dtype=torch.float64), 1e-8
        )


@pytest.mark.parametrize("name", ["mlmoc", "changes", "emoc", "eer"])
def test_top_measures_from_network_outputs(p, name):
    expected = getattr(ref, name)(
        p, LABELLED, p.targets[LABELLED], CANDIDATES, CANDIDATES, baseline="outputs"
    )
    picked = top(look(p), name, 6)
    ref.close(picked.scores, expected.sort(descending=True).values, 1e-8)


def test_conditioned_view_has_linearised_baseline(p):
    v = look(p)
    assert v.baseline == "outputs"
    after = v.condition([5], p.targets[[5]])
    assert after.baseline == "linearised"
    assert torch.equal(after.predicted_targets(), after.predicted_targets("linearised"))
    with pytest.raises(InputError, match="baseline is 'f'"):
        v.with_baseline("f")


def test_sequential_accepts_targets(p):
    a = sequential(look(p), "variance", 3, lambda i: p.targets[i])
    b = sequential(look(p), "variance", 3, lambda i: int(p.targets[i].argmax()))
    assert torch.equal(a.positions, b.positions)
    ref.close(a.view.posterior.mean, b.view.posterior.mean)


def test_best_in_a_loop_equals_sequential(p):
    v, acquisition, picks = look(p).with_baseline("linearised"), partial(mlmoc, squared=True), []
    for _ in range(3):
        position, score = best(v, acquisition)
        picks.append(position)
        assert score == float(acquisition(v).max())
        v = v.condition([position], p.targets[[position]])
    whole = sequential(look(p), acquisition, 3, lambda i: p.targets[i])
    assert whole.positions.tolist() == picks


def test_ties_select_first_candidate():
    v = look(ref.problem("dense-scalar"))
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
    look = view(post.condition([0], torch.tensor([[0.3]], dtype=torch.float64)), range(1, 9))
    told = sequential(look, "variance", 2, lambda position: -0.5)
    assert told.view.posterior.targets[1:].flatten().tolist() == [-0.5, -0.5]
    believed = greedy(look, "variance", 2)
    assert torch.allclose(believed.view.posterior.mean, look.posterior.mean)
    with pytest.raises(InputError, match="most likely class"):
        top(look, "mlmoc", 1)


def test_invalid_labels_and_batch_sizes_raise():
    torch.manual_seed(0)
    psi = torch.randn(9, 5, dtype=torch.float64)
    post = prior(torch.zeros(9, 3, dtype=torch.float64), psi @ psi.T, noise=1e-2)
    look = view(post, range(9))
    for answer in (1.7, "cat", None, True, 3, -1):
        with pytest.raises(InputError, match="annotate returned"):
            sequential(look, "variance", 1, lambda position, a=answer: a)
    assert len(sequential(look, "variance", 1, lambda position: torch.tensor(2)).positions) == 1
    for count in (2.5, "3", True):
        with pytest.raises(InputError, match="whole number"):
            top(look, "variance", count)
    with pytest.raises(InputError, match="expected a View"):
        top(post, "variance", 1)
    with pytest.raises(InputError, match="a name or a function"):
        top(look, None, 1)
