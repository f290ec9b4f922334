"""Views of a posterior: their cached updates equal a new view."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.acquisition import flip, mlmoc, resolve, variance
from labelahead.acquisition.pool_view import MAX_PENDING_ROWS, view
from labelahead.errors import InputError
from tests.support import reference_lookahead as ref
from tests.support.lookahead_problems import CANDIDATES, CHANGE, make_view

LABELLED = [20, 3, 11, 7]


@pytest.mark.parametrize("kind", ref.KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_cached_updates_equal_new_view(kind, data):
    """Labels come in arbitrary portions, at candidates or elsewhere, with sums cached or not."""
    p = ref.problem(kind, n=20, seed=data.draw(st.integers(0, 99)))
    order = data.draw(st.permutations(range(20)))
    candidates, others = order[:12], order[12:]
    v = view(p.prior().condition(others[:3], p.targets[others[:3]]), candidates, order[6:16])
    conditioned = list(others[:3])
    pool = [*candidates[:8], *others[3:]]
    while pool:
        q = data.draw(st.integers(1, 3))
        new, pool = pool[:q], pool[q:]
        if data.draw(st.booleans()):
            v.moments()
        v = v.condition(new, p.targets[new])
        conditioned += new
        remaining = [c for c in candidates if c not in conditioned]
        fresh = view(
            p.prior().condition(conditioned, p.targets[conditioned]), remaining, order[6:16]
        )
        assert v.candidates.tolist() == remaining
        for options in CHANGE:
            ref.close(mlmoc(v, None, **options), mlmoc(fresh, None, **options))
        ref.close(variance(v), variance(fresh))
        ref.close(flip(v), flip(fresh), 1e-8)
        ref.close(resolve(v, exact=True), resolve(fresh, exact=True), 1e-8)


def test_many_pending_rows_are_merged():
    p = ref.problem("dense-scalar", n=90, rank=120)
    labelled = list(range(MAX_PENDING_ROWS + 3))
    remaining, every = list(range(len(labelled), 90)), list(range(90))
    v = view(p.prior(), every, remaining)
    for position in labelled:
        v.moments()
        v = v.condition([position], p.targets[[position]])
    after = p.prior().condition(labelled, p.targets[labelled])
    fresh = view(after, remaining, remaining).with_baseline("linearised")
    ref.close(mlmoc(v, squared=True), mlmoc(fresh, squared=True))
    ref.close(mlmoc(v), mlmoc(fresh))


def test_views_from_one_parent_are_independent():
    p = ref.problem("dense-scalar")
    v = make_view(p, LABELLED)
    before = mlmoc(v, squared=True).clone()
    left, right = v.condition([5], p.targets[[5]]), v.condition([9], p.targets[[9]])
    for after, pick in ((left, 5), (right, 9)):
        fresh = make_view(p, [*LABELLED, pick], after.candidates)
        for baseline in ("outputs", "linearised"):
            options = {"squared": True, "baseline": baseline}
            ref.close(mlmoc(after, **options), mlmoc(fresh, **options))
    assert torch.equal(mlmoc(v, squared=True), before)


def test_evaluation_defaults_to_the_candidates():
    p = ref.problem("dense-scalar")
    v = view(p.prior(), CANDIDATES)
    assert v.evaluation.tolist() == CANDIDATES
    after = v.condition([5], p.targets[[5]])
    assert after.evaluation.tolist() == CANDIDATES
    assert 5 not in after.candidates.tolist()


@pytest.mark.parametrize("kind", ref.KINDS)
def test_candidates_with_a_label_score_what_a_second_label_brings(kind):
    """A second label by a source of noise 0.3, as in a refit with a row for each label."""
    p = ref.problem(kind)
    post = p.prior().condition(LABELLED, p.targets[LABELLED], 0.1)
    with pytest.raises(InputError, match="already labelled"):
        view(post, [3, 5], [1, 5, 9])
    v = view(post, [3, 5], [1, 5, 9], noise=0.3, allow_labelled=True)
    before = post.variance().view(24, p.b, p.b)
    expected = []
    for candidate in (3, 5):
        later = post.condition([candidate], p.targets[[0]], 0.3, allow_labelled=True)
        fall = before - later.variance().view(24, p.b, p.b)
        others = [x for x in (1, 5, 9) if x != candidate]
        expected.append(fall[others].diagonal(dim1=1, dim2=2).sum())
    ref.close(variance(v), torch.stack(expected))
    assert bool((variance(v) > 0).all())
    after = v.condition([3], p.targets[[0]], allow_labelled=True)
    assert after.candidates.tolist() == [5]
    assert after.labelled.tolist() == [*LABELLED, 3]
    assert after.noise == 0.3
