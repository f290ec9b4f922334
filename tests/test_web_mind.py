"""The page's posterior: whatever was answered, changed or undone, it is the one from scratch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead import flip, prior
from labelahead.acquisition import view
from labelahead.errors import InputError
from labelahead.web.mind import Mind, Snapshot

N, C = 30, 3
POSITIONS = torch.arange(N) * 7 + 2  # in the data set: not the place in the snapshot


def snapshot(*, dense=True, round=1, trained=(), n=N):
    rng = torch.Generator().manual_seed(5)
    psi = torch.randn(n, 12, generator=rng, dtype=torch.float64)
    outputs = torch.randn(n, C, generator=rng, dtype=torch.float64) / 3
    kernel = psi @ psi.T
    return Snapshot(
        round=round, points=POSITIONS[:n], outputs=outputs, kernel=kernel if dense else None,
        features=None if dense else psi, labels=dict(trained), noise=1e-2, evaluation=20,
    )  # fmt: skip


def scratch(found, labels, classes):
    """The same by hand: one prior, all labels at once, in another order."""
    place = {int(p): i for i, p in enumerate(found.points)}
    known = sorted((place[p], c) for p, c in labels.items() if p in place)
    outputs = torch.cat([found.outputs, torch.zeros(len(found.points), classes - C).double()], 1)
    kernel = found.kernel if found.kernel is not None else found.features @ found.features.T
    post = prior(outputs, kernel, noise=found.noise)
    if not known:
        return post
    at, label = zip(*known, strict=True)
    return post.condition(list(at), torch.eye(classes).double()[list(label)])


steps = st.lists(
    st.tuples(st.sampled_from([*POSITIONS.tolist(), 1000]), st.sampled_from([None, 0, 1, 2, 3])),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(steps, st.booleans())
def test_any_sequence_ends_where_scratch_does(sequence, dense):
    found = snapshot(dense=dense, trained={int(POSITIONS[0]): 1})
    labels, classes = dict(found.labels), C
    mind = Mind(found, C, labels)
    for position, label in sequence:  # None: taken back; 1000: not in play
        if label is None:
            labels.pop(position, None)
        else:
            labels[position] = label
            classes = max(classes, label + 1)
        mind = mind.told(labels, classes)
    post = scratch(found, labels, mind.classes)
    torch.testing.assert_close(mind.posterior.mean, post.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mind.posterior.variance(), post.variance(), rtol=1e-4, atol=1e-4)
    assert mind.labels == {p: c for p, c in labels.items() if p != 1000}
    left = set(POSITIONS.tolist()) - set(labels)
    assert {int(found.points[i]) for i in mind.view.candidates} == left


def test_the_best_is_flips_best_and_leaves_out_what_is_taken():
    found = snapshot()
    mind = Mind(found, C, {int(POSITIONS[3]): 0, int(POSITIONS[9]): 2})
    left = (~mind.posterior.is_labelled).nonzero().squeeze(1)
    scores = flip(view(mind.posterior, left, left[:20]))
    order = [int(POSITIONS[left[i]]) for i in scores.argsort(descending=True)]
    first, score = mind.best()
    assert first == order[0]
    assert score == pytest.approx(float(scores.max()))
    assert mind.best({order[0], order[1]})[0] == order[2]
    assert mind.runners_up(2, {order[0]}) == order[1:3]
    assert mind.best(set(order)) is None


def test_why_is_what_a_refit_says():
    found = snapshot()
    labels = {int(POSITIONS[i]): i % C for i in range(6)}
    mind = Mind(found, C, labels)
    asked = int(POSITIONS[20])
    why = mind.why(asked)
    before = scratch(found, labels, C)
    left = [i for i in range(N) if int(POSITIONS[i]) not in labels]
    for label, changes in why["if"]:
        after = scratch(found, {**labels, asked: label}, C)
        differ = (after.mean.argmax(1) != before.mean.argmax(1)).nonzero().squeeze(1).tolist()
        assert changes == len([i for i in differ if i in left and i != 20])
    likeliest = why["now"][0][0]
    after = scratch(found, {**labels, asked: likeliest}, C)
    shift = (after.mean - before.mean).norm(dim=1)
    rest = [i for i in left if i != 20]
    expected = sorted(rest, key=lambda i: -float(shift[i]))[:6]
    assert [p for p, *_ in why["affected"]] == [int(POSITIONS[i]) for i in expected]
    for position, was, then, size in why["affected"]:
        i = mind.place[position]
        assert was == int(before.mean[i].argmax())
        assert then == int(after.mean[i].argmax())
        assert size == pytest.approx(float(shift[i]), rel=1e-5)


def test_labels_that_speak_for_the_guess_add_up_to_it():
    found = snapshot()
    labels = {int(POSITIONS[i]): i % C for i in range(5)}
    mind = Mind(found, C, labels)
    i, theta = 17, found.kernel.double()
    at = mind.posterior.labelled
    weights = theta[i, at][:, None] * mind._alpha
    mean = found.outputs[i] + weights.sum(0)
    torch.testing.assert_close(mean, mind.posterior.mean[i], rtol=1e-5, atol=1e-6)
    guess = int(mean.argmax())
    shown = mind.why(int(POSITIONS[i]))["because"]
    best = [(int(POSITIONS[at[j]]), float(weights[j, guess])) for j in range(len(at))]
    best = sorted((b for b in best if b[1] > 0), key=lambda b: -b[1])[:6]
    assert [p for p, _, _ in shown] == [p for p, _ in best]
    assert [w for _, _, w in shown] == pytest.approx([w for _, w in best], rel=1e-5)
    assert all(labels[p] == c for p, c, _ in shown)


def test_before_any_training_there_is_no_guess():
    mind = Mind(snapshot(round=0), C)
    assert mind.guess(int(POSITIONS[0])) == []
    assert mind.why(int(POSITIONS[0]))["if"] == []
    told = mind.told({int(POSITIONS[1]): 2})
    assert told.guess(int(POSITIONS[0]))  # a label is an opinion
    with pytest.raises(InputError, match="not in play"):
        mind.why(1000)


@pytest.mark.parametrize("dense", [True, False])
def test_with_every_item_labelled_labels_can_still_be_changed(dense):
    found, every = snapshot(dense=dense), {int(p): i % C for i, p in enumerate(POSITIONS)}
    one_left = {p: c for p, c in every.items() if p != int(POSITIONS[-1])}
    for mind in (Mind(found, C, every), Mind(found, C, one_left).told(every)):
        other = {**every, int(POSITIONS[3]): 2}
        for labels in (every, other, every):
            mind = mind.told(labels)
            wanted = scratch(found, labels, C).mean
            torch.testing.assert_close(mind.posterior.mean, wanted, rtol=0, atol=1e-6)
            assert (mind.best(), mind.runners_up(3, set())) == (None, [])
            assert not mind.why(int(POSITIONS[0]))["if"]
        assert mind.told(one_left).best()[0] == int(POSITIONS[-1])


def test_how_many_changed_their_mind():
    found = snapshot()
    mind = Mind(found, C)
    told = mind.told({int(POSITIONS[4]): 1})
    differ = int((told.posterior.mean.argmax(1) != mind.posterior.mean.argmax(1)).sum())
    assert told.changed_from(mind) == differ
