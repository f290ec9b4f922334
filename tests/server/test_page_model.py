"""The page's posterior: whatever was answered, changed or undone, it is the one from scratch."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead import prior
from labelahead.acquisition import flip
from labelahead.acquisition.pool_view import view
from labelahead.errors import InputError
from labelahead.server.page_model import PageModel
from labelahead.server.snapshot import Snapshot

N, C = 30, 3
POSITIONS = torch.arange(N) * 7 + 2  # in the data set: not the place in the snapshot


def snapshot(*, dense=True, round=1, trained=(), n=N):
    rng = torch.Generator().manual_seed(5)
    psi = torch.randn(n, 12, generator=rng, dtype=torch.float64)
    outputs = torch.randn(n, C, generator=rng, dtype=torch.float64) / 3
    kernel = psi @ psi.T
    return Snapshot(
        round=round,
        points=POSITIONS[:n],
        outputs=outputs,
        kernel=kernel if dense else None,
        features=None if dense else psi,
        labels=dict(trained),
        noise=1e-2,
        evaluation=20,
    )


def scratch(taken, labels, classes):
    """The same by hand: one prior, all labels at once, in another order."""
    place = {int(p): i for i, p in enumerate(taken.points)}
    known = sorted((place[p], c) for p, c in labels.items() if p in place)
    outputs = torch.cat([taken.outputs, torch.zeros(len(taken.points), classes - C).double()], 1)
    kernel = taken.kernel if taken.kernel is not None else taken.features @ taken.features.T
    post = prior(outputs, kernel, noise=taken.noise)
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
    taken = snapshot(dense=dense, trained={int(POSITIONS[0]): 1})
    labels, classes = dict(taken.labels), C
    page_model = PageModel.from_snapshot(taken, labels, C)
    for position, label in sequence:  # None: taken back; 1000: not in play
        if label is None:
            labels.pop(position, None)
        else:
            labels[position] = label
            classes = max(classes, label + 1)
        page_model = page_model.with_labels(labels, classes)
    post = scratch(taken, labels, page_model.pool_posterior.classes)
    torch.testing.assert_close(
        page_model.pool_posterior.posterior.mean, post.mean, rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(
        page_model.pool_posterior.posterior.variance(), post.variance(), rtol=1e-4, atol=1e-4
    )
    assert page_model.pool_posterior.labels == {p: c for p, c in labels.items() if p != 1000}
    left = set(POSITIONS.tolist()) - set(labels)
    assert {int(taken.points[i]) for i in page_model.pool_posterior.view.candidates} == left


def test_a_criterion_of_ones_own_is_read_once(tmp_path):
    """An edit, or a file that goes away, must not stop a page that is open."""
    path = tmp_path / "own.py"
    path.write_text(
        "from labelahead.acquisition import flip\n\ndef mine(view, rng):\n    return flip(view, rng)\n"
    )
    page_model = PageModel.from_snapshot(replace(snapshot(), strategy=f"{path}:mine"), {}, C)
    path.unlink()
    labels = {int(POSITIONS[3]): 0, int(POSITIONS[9]): 2}
    assert (
        page_model.with_labels(labels, C).choose_best()
        == PageModel.from_snapshot(snapshot(), {}, C).with_labels(labels, C).choose_best()
    )


def test_the_best_is_flips_best_and_leaves_out_what_is_taken():
    taken = snapshot()
    page_model = PageModel.from_snapshot(taken, {int(POSITIONS[3]): 0, int(POSITIONS[9]): 2}, C)
    left = (~page_model.pool_posterior.posterior.is_labelled).nonzero().squeeze(1)
    scores = flip(view(page_model.pool_posterior.posterior, left, left[:20]))
    order = [int(POSITIONS[left[i]]) for i in scores.argsort(descending=True)]
    first, score = page_model.choose_best()
    assert first == order[0]
    assert score == pytest.approx(float(scores.max()))
    assert page_model.choose_best({order[0], order[1]})[0] == order[2]
    assert page_model.rank_next(2, {order[0]}) == order[1:3]
    assert page_model.choose_best(set(order)) is None


def test_why_is_what_a_refit_says():
    taken = snapshot()
    labels = {int(POSITIONS[i]): i % C for i in range(6)}
    page_model = PageModel.from_snapshot(taken, labels, C)
    asked = int(POSITIONS[20])
    why = page_model.explain(asked)
    before = scratch(taken, labels, C)
    left = [i for i in range(N) if int(POSITIONS[i]) not in labels]
    for label, changes in why["if"]:
        after = scratch(taken, {**labels, asked: label}, C)
        differ = (after.mean.argmax(1) != before.mean.argmax(1)).nonzero().squeeze(1).tolist()
        assert changes == len([i for i in differ if i in left and i != 20])
    likeliest = why["now"][0][0]
    after = scratch(taken, {**labels, asked: likeliest}, C)
    shift = (after.mean - before.mean).norm(dim=1)
    rest = [i for i in left if i != 20]
    changed = after.mean.argmax(1) != before.mean.argmax(1)
    expected = sorted(rest, key=lambda i: (not bool(changed[i]), -float(shift[i])))[:6]
    assert any(bool(changed[i]) for i in expected)
    assert [p for p, *_ in why["affected"]] == [int(POSITIONS[i]) for i in expected]
    for position, was, then, size in why["affected"]:
        i = int(page_model.pool_posterior.rows_of([position]))
        assert was == int(before.mean[i].argmax())
        assert then == int(after.mean[i].argmax())
        assert size == pytest.approx(float(shift[i]), rel=1e-5)


def effect_of(means, *, correlated, classes=2):
    """What a label of item 0 does to two others, whose means are given.

    How far it moves them is `correlated`.
    """
    kernel = torch.eye(3, dtype=torch.float64)
    kernel[0, 1:] = kernel[1:, 0] = correlated
    taken = Snapshot(
        round=1,
        points=torch.arange(3),
        outputs=torch.tensor(means, dtype=torch.float64),
        kernel=kernel,
        features=None,
        labels={},
        noise=1e-2,
        evaluation=None,
    )
    return PageModel.from_snapshot(taken, {}, classes).explain(0)


def test_effect_where_the_predicted_answer_changes_other_classes():
    found = effect_of([[0.6, 0.4], [0.49, 0.51], [0.0, 1.0]], correlated=0.5)
    assert found["affected"][0][:3] == (1, 1, 0)  # what changes class is shown first
    assert (
        found["effect"].sentence(["cat", "dog"])
        == "If it is “cat”, as predicted, 1 other prediction changes class."
    )


def test_effect_where_only_a_surprise_changes_other_classes():
    found = effect_of([[1.0, 0.0], [0.8, 0.2], [0.9, 0.1]], correlated=0.5)
    assert all(before == after for _, before, after, _ in found["affected"])
    assert found["if"] == [(0, 0), (1, 2)]
    variance = (
        found["effect"].variance_share,
        0.25 / 1.01,
    )  # k²/u for each of two, over variances of one each
    assert variance[0] == pytest.approx(variance[1])
    assert found["effect"].sentence(["cat", "dog"]) == (
        "If it is “cat”, as predicted, no other prediction changes class. If it is “dog” (less "
        "than 1 %), 2 other "
        "predictions change class. Its label makes the other predictions more certain: the sum of "
        "their variances "
        "decreases by 25 %."
    )


def test_effect_where_no_answer_changes_any_class():
    found = effect_of([[1.0, 0.0], [0.99, 0.01], [0.0, 1.0]], correlated=0.1)
    assert {changes for _, changes in found["if"]} == {0}
    assert found["effect"].sentence(["cat", "dog"]) == (
        "No answer changes the class of another prediction. Its label makes the other predictions "
        "more certain: the "
        "sum of their variances decreases by less than 1 %."
    )


def test_effect_of_more_answers_than_are_tried():
    found = effect_of([[1.0, 0.0], [0.99, 0.01], [0.0, 1.0]], correlated=0.1, classes=20)
    names = [f"class {c}" for c in range(20)]
    assert (
        found["effect"]
        .sentence(names)
        .startswith("None of the 12 likeliest answers changes the class")
    )


def test_labels_that_speak_for_the_guess_add_up_to_it():
    taken = snapshot()
    labels = {int(POSITIONS[i]): i % C for i in range(5)}
    page_model = PageModel.from_snapshot(taken, labels, C)
    i, theta = 17, taken.kernel.double()
    at = page_model.pool_posterior.posterior.labelled
    weights = theta[i, at][:, None] * page_model.pool_posterior.posterior.weights()
    mean = taken.outputs[i] + weights.sum(0)
    torch.testing.assert_close(
        mean, page_model.pool_posterior.posterior.mean[i], rtol=1e-5, atol=1e-6
    )
    guess = int(mean.argmax())
    shown = page_model.explain(int(POSITIONS[i]))
    every = [(int(POSITIONS[at[j]]), float(weights[j, guess])) for j in range(len(at))]
    best = sorted((b for b in every if b[1] > 0), key=lambda b: (labels[b[0]] != guess, -b[1]))[:6]
    worst = sorted((b for b in every if b[1] < 0), key=lambda b: b[1])[:6]
    assert best
    assert worst
    for side, wanted in (("because", best), ("against", worst)):
        assert [p for p, _, _ in shown[side]] == [p for p, _ in wanted]
        assert [w for _, _, w in shown[side]] == pytest.approx([w for _, w in wanted], rel=1e-5)
        assert all(labels[p] == c for p, c, _ in shown[side])
    known = next(iter(labels))  # no label speaks for itself
    others = page_model.explain(known)
    assert known not in {p for side in ("because", "against") for p, _, _ in others[side]}
    assert others["because"] or others["against"]


def test_before_any_training_there_is_no_guess():
    page_model = PageModel.from_snapshot(snapshot(round=0), {}, C)
    assert page_model.predict_classes(int(POSITIONS[0])) == []
    assert page_model.explain(int(POSITIONS[0]))["if"] == []
    told = page_model.with_labels({int(POSITIONS[1]): 2}, C)
    assert told.predict_classes(int(POSITIONS[0]))  # a label is an opinion
    with pytest.raises(InputError, match="not in play"):
        page_model.explain(1000)


@pytest.mark.parametrize("dense", [True, False])
def test_with_every_item_labelled_labels_can_still_be_changed(dense):
    taken, every = snapshot(dense=dense), {int(p): i % C for i, p in enumerate(POSITIONS)}
    one_left = {p: c for p, c in every.items() if p != int(POSITIONS[-1])}
    for page_model in (
        PageModel.from_snapshot(taken, every, C),
        PageModel.from_snapshot(taken, one_left, C).with_labels(every, C),
    ):
        other = {**every, int(POSITIONS[3]): 2}
        for labels in (every, other, every):
            page_model = page_model.with_labels(labels, C)
            wanted = scratch(taken, labels, C).mean
            torch.testing.assert_close(
                page_model.pool_posterior.posterior.mean, wanted, rtol=0, atol=1e-6
            )
            assert (page_model.choose_best(), page_model.rank_next(3, set())) == (None, [])
            assert not page_model.explain(int(POSITIONS[0]))["if"]
        assert page_model.with_labels(one_left, C).choose_best()[0] == int(POSITIONS[-1])


def test_how_many_changed_their_mind():
    taken = snapshot()
    page_model = PageModel.from_snapshot(taken, {}, C)
    told = page_model.with_labels({int(POSITIONS[4]): 1}, C)
    differ = int(
        (
            told.pool_posterior.posterior.mean.argmax(1)
            != page_model.pool_posterior.posterior.mean.argmax(1)
        ).sum()
    )
    assert told.count_changes_from(page_model) == differ


def test_while_labels_are_of_one_class_items_that_cover_the_pool_are_asked_for():
    page_model = PageModel.from_snapshot(snapshot(round=0), {}, 3)
    assert page_model.acquisition == "resolve"
    one = page_model.with_labels({0: 1, 3: 1}, 3)
    assert one.acquisition == "resolve"
    assert one.choose_best() == one.pool_posterior.best("resolve")
    two = one.with_labels({0: 1, 3: 1, 5: 2}, 3)
    assert two.acquisition == "flip"
    assert two.with_labels({0: 1, 3: 1}, 3).acquisition == "resolve"
