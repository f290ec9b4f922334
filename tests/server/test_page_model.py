"""The page's posterior equals a refit from scratch after any sequence of labels."""

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
from labelahead.server.snapshot import NetworkSnapshot

N, C = 30, 3
POSITIONS = torch.arange(N) * 7 + 2  # positions in the data set, not rows of the snapshot


def make_snapshot(*, dense=True, round=1, trained=(), n=N):
    rng = torch.Generator().manual_seed(5)
    psi = torch.randn(n, 12, generator=rng, dtype=torch.float64)
    outputs = torch.randn(n, C, generator=rng, dtype=torch.float64) / 3
    kernel = psi @ psi.T
    return NetworkSnapshot(
        round=round,
        points=POSITIONS[:n],
        outputs=outputs,
        kernel_arguments={"kernel": kernel} if dense else {"features": psi},
        labels=dict(trained),
        noise=1e-2,
        evaluation=20,
    )


def fit_from_scratch(frozen, labels, classes):
    """Condition one prior on all labels at once, in another order."""
    row_of = {int(p): i for i, p in enumerate(frozen.points)}
    labelled = sorted((row_of[p], c) for p, c in labels.items() if p in row_of)
    outputs = torch.cat([frozen.outputs, torch.zeros(len(frozen.points), classes - C).double()], 1)
    given = frozen.kernel_arguments
    kernel = given["kernel"] if "kernel" in given else given["features"] @ given["features"].T
    post = prior(outputs, kernel, noise=frozen.noise)
    if not labelled:
        return post
    rows, label = zip(*labelled, strict=True)
    return post.condition(list(rows), torch.eye(classes).double()[list(label)])


steps = st.lists(
    st.tuples(st.sampled_from([*POSITIONS.tolist(), 1000]), st.sampled_from([None, 0, 1, 2, 3])),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(steps, st.booleans())
def test_with_labels_equals_a_refit_after_any_sequence(sequence, dense):
    frozen = make_snapshot(dense=dense, trained={int(POSITIONS[0]): 1})
    labels, classes = dict(frozen.labels), C
    page_model = PageModel.from_snapshot(frozen, labels, C)
    for position, label in sequence:  # None: undone; 1000: not in the snapshot
        if label is None:
            labels.pop(position, None)
        else:
            labels[position] = label
            classes = max(classes, label + 1)
        page_model = page_model.with_labels(labels, classes)
    post = fit_from_scratch(frozen, labels, page_model.pool_posterior.classes)
    torch.testing.assert_close(
        page_model.pool_posterior.posterior.mean, post.mean, rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(
        page_model.pool_posterior.posterior.variance(), post.variance(), rtol=1e-4, atol=1e-4
    )
    assert page_model.pool_posterior.labels == {p: c for p, c in labels.items() if p != 1000}
    left = set(POSITIONS.tolist()) - set(labels)
    assert {int(frozen.points[i]) for i in page_model.pool_posterior.view.candidates} == left


def test_custom_acquisition_function_is_read_once(tmp_path):
    """Editing or removing the file must not affect an open page."""
    path = tmp_path / "own.py"
    path.write_text(
        "from labelahead.acquisition import flip\n\ndef mine(view, rng):\n    return flip(view, rng)\n"
    )
    page_model = PageModel.from_snapshot(replace(make_snapshot(), strategy=f"{path}:mine"), {}, C)
    path.unlink()
    labels = {int(POSITIONS[3]): 0, int(POSITIONS[9]): 2}
    assert (
        page_model.with_labels(labels, C).choose_best()
        == PageModel.from_snapshot(make_snapshot(), {}, C).with_labels(labels, C).choose_best()
    )


def test_choose_best_equals_flip_and_excludes_given_items():
    frozen = make_snapshot()
    page_model = PageModel.from_snapshot(frozen, {int(POSITIONS[3]): 0, int(POSITIONS[9]): 2}, C)
    unlabelled = (~page_model.pool_posterior.posterior.is_labelled).nonzero().squeeze(1)
    scores = flip(view(page_model.pool_posterior.posterior, unlabelled, unlabelled[:20]))
    order = [int(POSITIONS[unlabelled[i]]) for i in scores.argsort(descending=True)]
    first, score = page_model.choose_best()
    assert first == order[0]
    assert score == pytest.approx(float(scores.max()))
    assert page_model.choose_best({order[0], order[1]})[0] == order[2]
    assert page_model.rank_next(2, {order[0]}) == order[1:3]
    assert page_model.choose_best(set(order)) is None


def test_explain_equals_a_refit_with_each_label():
    frozen = make_snapshot()
    labels = {int(POSITIONS[i]): i % C for i in range(6)}
    page_model = PageModel.from_snapshot(frozen, labels, C)
    queried = int(POSITIONS[20])
    explanation = page_model.explain(queried)
    before = fit_from_scratch(frozen, labels, C)
    unlabelled = [i for i in range(N) if int(POSITIONS[i]) not in labels]
    for label, changes in explanation["if"]:
        after = fit_from_scratch(frozen, {**labels, queried: label}, C)
        differ = (after.mean.argmax(1) != before.mean.argmax(1)).nonzero().squeeze(1).tolist()
        assert changes == len([i for i in differ if i in unlabelled and i != 20])
    likeliest = explanation["now"][0][0]
    after = fit_from_scratch(frozen, {**labels, queried: likeliest}, C)
    shift = (after.mean - before.mean).norm(dim=1)
    rest = [i for i in unlabelled if i != 20]
    changed = after.mean.argmax(1) != before.mean.argmax(1)
    expected = sorted(rest, key=lambda i: (not bool(changed[i]), -float(shift[i])))[:6]
    assert any(bool(changed[i]) for i in expected)
    assert [p for p, *_ in explanation["affected"]] == [int(POSITIONS[i]) for i in expected]
    for position, class_before, class_after, size in explanation["affected"]:
        i = int(page_model.pool_posterior.rows_of([position]))
        assert class_before == int(before.mean[i].argmax())
        assert class_after == int(after.mean[i].argmax())
        assert size == pytest.approx(float(shift[i]), rel=1e-5)


def explain_item(means, *, correlated, classes=2):
    """Explain the effect of a label of item 0 on two others with the given means.

    correlated: covariance between item 0 and the others.
    """
    kernel = torch.eye(3, dtype=torch.float64)
    kernel[0, 1:] = kernel[1:, 0] = correlated
    frozen = NetworkSnapshot(
        round=1,
        points=torch.arange(3),
        outputs=torch.tensor(means, dtype=torch.float64),
        kernel_arguments={"kernel": kernel},
        labels={},
        noise=1e-2,
        evaluation=None,
    )
    return PageModel.from_snapshot(frozen, {}, classes).explain(0)


def test_explain_effect_where_the_predicted_label_changes_other_predictions():
    found = explain_item([[0.6, 0.4], [0.49, 0.51], [0.0, 1.0]], correlated=0.5)
    assert found["affected"][0][:3] == (1, 1, 0)  # changed predictions come first
    assert (
        found["effect"].sentence(["cat", "dog"])
        == "If it is “cat”, as predicted, 1 other prediction changes class."
    )


def test_explain_effect_where_only_an_unlikely_label_changes_other_predictions():
    found = explain_item([[1.0, 0.0], [0.8, 0.2], [0.9, 0.1]], correlated=0.5)
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


def test_explain_effect_where_no_label_changes_other_predictions():
    found = explain_item([[1.0, 0.0], [0.99, 0.01], [0.0, 1.0]], correlated=0.1)
    assert {changes for _, changes in found["if"]} == {0}
    assert found["effect"].sentence(["cat", "dog"]) == (
        "No answer changes the class of another prediction. Its label makes the other predictions "
        "more certain: the "
        "sum of their variances decreases by less than 1 %."
    )


def test_explain_effect_with_more_classes_than_are_tried():
    found = explain_item([[1.0, 0.0], [0.99, 0.01], [0.0, 1.0]], correlated=0.1, classes=20)
    names = [f"class {c}" for c in range(20)]
    assert (
        found["effect"]
        .sentence(names)
        .startswith("None of the 12 most probable answers changes the class")
    )


def test_explain_contributions_of_labels_sum_to_the_prediction():
    frozen = make_snapshot()
    labels = {int(POSITIONS[i]): i % C for i in range(5)}
    page_model = PageModel.from_snapshot(frozen, labels, C)
    i, theta = 17, frozen.kernel_arguments["kernel"].double()
    at = page_model.pool_posterior.posterior.labelled
    weights = theta[i, at][:, None] * page_model.pool_posterior.posterior.weights()
    mean = frozen.outputs[i] + weights.sum(0)
    torch.testing.assert_close(
        mean, page_model.pool_posterior.posterior.mean[i], rtol=1e-5, atol=1e-6
    )
    predicted = int(mean.argmax())
    shown = page_model.explain(int(POSITIONS[i]))
    contributions = [(int(POSITIONS[at[j]]), float(weights[j, predicted])) for j in range(len(at))]
    best = sorted(
        (b for b in contributions if b[1] > 0), key=lambda b: (labels[b[0]] != predicted, -b[1])
    )[:6]
    worst = sorted((b for b in contributions if b[1] < 0), key=lambda b: b[1])[:6]
    assert best
    assert worst
    for side, expected in (("because", best), ("against", worst)):
        assert [p for p, _, _ in shown[side]] == [p for p, _ in expected]
        assert [w for _, _, w in shown[side]] == pytest.approx([w for _, w in expected], rel=1e-5)
        assert all(labels[p] == c for p, c, _ in shown[side])
    labelled = next(iter(labels))  # a label does not explain itself
    leave_one_out = page_model.explain(labelled)
    assert labelled not in {p for side in ("because", "against") for p, _, _ in leave_one_out[side]}
    assert leave_one_out["because"] or leave_one_out["against"]


def test_page_model_without_labels_predicts_no_class():
    page_model = PageModel.from_snapshot(make_snapshot(round=0), {}, C)
    assert page_model.predict_classes(int(POSITIONS[0])) == []
    assert page_model.explain(int(POSITIONS[0]))["if"] == []
    updated = page_model.with_labels({int(POSITIONS[1]): 2}, C)
    assert updated.predict_classes(int(POSITIONS[0]))  # with one label there are predictions
    with pytest.raises(InputError, match="not among the current candidates"):
        page_model.explain(1000)


@pytest.mark.parametrize("dense", [True, False])
def test_with_labels_works_when_every_item_is_labelled(dense):
    frozen, all_labels = (
        make_snapshot(dense=dense),
        {int(p): i % C for i, p in enumerate(POSITIONS)},
    )
    one_left = {p: c for p, c in all_labels.items() if p != int(POSITIONS[-1])}
    for page_model in (
        PageModel.from_snapshot(frozen, all_labels, C),
        PageModel.from_snapshot(frozen, one_left, C).with_labels(all_labels, C),
    ):
        other = {**all_labels, int(POSITIONS[3]): 2}
        for labels in (all_labels, other, all_labels):
            page_model = page_model.with_labels(labels, C)
            expected = fit_from_scratch(frozen, labels, C).mean
            torch.testing.assert_close(
                page_model.pool_posterior.posterior.mean, expected, rtol=0, atol=1e-6
            )
            assert (page_model.choose_best(), page_model.rank_next(3, set())) == (None, [])
            assert not page_model.explain(int(POSITIONS[0]))["if"]
        assert page_model.with_labels(one_left, C).choose_best()[0] == int(POSITIONS[-1])


def test_count_changes_from_counts_changed_predictions():
    frozen = make_snapshot()
    page_model = PageModel.from_snapshot(frozen, {}, C)
    updated = page_model.with_labels({int(POSITIONS[4]): 1}, C)
    differ = int(
        (
            updated.pool_posterior.posterior.mean.argmax(1)
            != page_model.pool_posterior.posterior.mean.argmax(1)
        ).sum()
    )
    assert updated.count_changes_from(page_model) == differ


def test_acquisition_is_resolve_until_two_classes_are_labelled():
    page_model = PageModel.from_snapshot(make_snapshot(round=0), {}, 3)
    assert page_model.acquisition == "resolve"
    one = page_model.with_labels({0: 1, 3: 1}, 3)
    assert one.acquisition == "resolve"
    assert one.choose_best() == one.pool_posterior.best("resolve")
    two = one.with_labels({0: 1, 3: 1, 5: 2}, 3)
    assert two.acquisition == "flip"
    assert two.with_labels({0: 1, 3: 1}, 3).acquisition == "resolve"


def test_explain_of_a_shortlist_with_later_labels_equals_the_whole_model():
    earlier = {int(POSITIONS[0]): 1, int(POSITIONS[1]): 0}
    whole = PageModel.from_snapshot(make_snapshot(trained=earlier), earlier, C)
    shortlist = whole.build_shortlist()
    later = {int(POSITIONS[k]): k % C for k in (4, 7, 8)}
    before = shortlist.pool_posterior.mean([int(POSITIONS[9])])[0]
    whole, shortlist = whole.with_labels({**earlier, **later}, C), shortlist.with_labels(later, C)
    at = int(POSITIONS[9])
    expected, found = whole.explain(at), shortlist.explain(at)
    assert [c for c, _ in found["now"]] == [c for c, _ in expected["now"]]
    assert found["if"] == expected["if"]
    assert found["effect"].variance_share == pytest.approx(expected["effect"].variance_share)
    assert [row[:3] for row in found["affected"]] == [row[:3] for row in expected["affected"]]
    # Earlier labels are in its prior: the contributions are those of the later ones.
    rows = found["because"] + found["against"]
    assert {p: c for p, c, _ in rows} == later
    likeliest = found["now"][0][0]
    change = shortlist.pool_posterior.mean([at])[0, likeliest] - before[likeliest]
    assert sum(weight for *_, weight in rows) == pytest.approx(float(change))
    weights = whole.pool_posterior.posterior.weights()[-len(later) :]
    torch.testing.assert_close(shortlist.pool_posterior.posterior.weights(), weights)


def test_effect_names_the_most_frequent_change():
    found = explain_item([[0.6, 0.4], [0.49, 0.51], [0.48, 0.52]], correlated=0.5)
    assert found["effect"].main_change == (1, 0, 2)
    assert found["effect"].sentence(["cat", "dog"]) == (
        "If it is “cat”, as predicted, 2 other predictions change class, all of them from “dog” to "
        "“cat”."
    )
    some = replace(found["effect"], changes=((0, 0.6, 9),))
    assert "9 other predictions change class, 2 of them from" in some.sentence(["cat", "dog"])
