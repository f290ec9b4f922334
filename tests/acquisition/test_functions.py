"""Acquisition functions against naive loops, with every option, before and after conditioning."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.acquisition import (
    ACQUISITIONS,
    changes,
    eer,
    emoc,
    flip,
    functions,
    mlmoc,
    resolve,
    variance,
)
from labelahead.acquisition import pool_view as cross_module
from labelahead.acquisition.pool_view import view
from labelahead.acquisition.probability import entropy, simplex
from labelahead.gp.posterior import prior
from tests.support import reference_lookahead as ref

LABELLED = [20, 3, 11, 7]
CANDIDATES = [0, 5, 9, 14, 2, 21]
EVALUATION = [1, 5, 9, 3, 18, 22, 0]

CHANGE = [
    {"squared": s, "baseline": b}
    for s, b in itertools.product((False, True), ("outputs", "linearised"))
]
CASES = [
    *((mlmoc, ref.mlmoc, o) for o in CHANGE),
    *((emoc, ref.emoc, {**o, "probability": q}) for o in CHANGE for q in ("simplex", "softmax")),
    *(
        (eer, ref.eer, {"probability": q, "baseline": b})
        for q in ("simplex", "softmax")
        for b in ("outputs", "linearised")
    ),
    *((changes, ref.changes, {"baseline": b}) for b in ("outputs", "linearised")),
    (variance, ref.variance, {}),
    (flip, ref.flip, {}),
    (flip, ref.flip, {"include_candidate": True, "variance_scale": 1.0}),
    (resolve, ref.resolve, {"exact": True}),
]
IDS = [f"{c[0].__name__}-{'-'.join(str(v) for v in c[2].values())}" for c in CASES]


def look(p, labelled=(), candidates=CANDIDATES, evaluation=EVALUATION):
    post = p.prior()
    if len(labelled):
        post = post.condition(labelled, p.targets[list(labelled)])
    return view(post, candidates, evaluation)


@pytest.mark.parametrize("kind", ref.KINDS)
@pytest.mark.parametrize(("fast", "naive", "options"), CASES, ids=IDS)
def test_acquisitions_equal_naive_twins_before_and_after_conditioning(kind, fast, naive, options):
    p = ref.problem(kind)
    for labelled in ([], LABELLED):
        seen, left = list(labelled), list(CANDIDATES)
        v = look(p, labelled)
        for pick in (None, 9, 2, 0):
            if pick is not None:
                v = v.condition([pick], p.targets[[pick]])
                seen.append(pick)
                left.remove(pick)
            expected = naive(p, seen, p.targets[seen], left, EVALUATION, **options)
            ref.close(fast(v, None, **options), expected)


@pytest.mark.parametrize("kind", ref.KINDS)
@pytest.mark.parametrize("acquisition", [mlmoc, changes, emoc, eer])
def test_method_solve_equals_block(kind, acquisition):
    v = look(ref.problem(kind), LABELLED)
    ref.close(acquisition(v, None, method="solve"), acquisition(v, None))


@pytest.mark.parametrize("kind", ref.KINDS)
@pytest.mark.parametrize("squared", [False, True])
def test_method_solve_respects_options(kind, squared):
    v = look(ref.problem(kind), LABELLED)
    options = {"squared": squared, "baseline": "linearised"}
    for acquisition in (mlmoc, emoc):
        ref.close(acquisition(v, None, method="solve", **options), acquisition(v, None, **options))


@pytest.mark.parametrize("kind", ref.KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_cached_updates_equal_new_view(kind, data):
    """Any portions of labels, at candidates or elsewhere, with sums cached or not."""
    p = ref.problem(kind, n=20, seed=data.draw(st.integers(0, 99)))
    order = data.draw(st.permutations(range(20)))
    candidates, others = order[:12], order[12:]
    v = view(p.prior().condition(others[:3], p.targets[others[:3]]), candidates, order[6:16])
    seen = list(others[:3])
    pool = [*candidates[:8], *others[3:]]
    while pool:
        q = data.draw(st.integers(1, 3))
        new, pool = pool[:q], pool[q:]
        if data.draw(st.booleans()):
            v.moments()
        v = v.condition(new, p.targets[new])
        seen += new
        left = [c for c in candidates if c not in seen]
        fresh = view(p.prior().condition(seen, p.targets[seen]), left, order[6:16])
        assert v.candidates.tolist() == left
        for options in CHANGE:
            ref.close(mlmoc(v, None, **options), mlmoc(fresh, None, **options))
        ref.close(variance(v), variance(fresh))
        ref.close(flip(v), flip(fresh), 1e-8)
        ref.close(resolve(v, exact=True), resolve(fresh, exact=True), 1e-8)


def test_many_pending_rows_are_merged(monkeypatch):
    monkeypatch.setattr(cross_module, "MAX_PENDING_ROWS", 3)
    p = ref.problem("dense-scalar")
    v, seen = look(p), []
    for pick in (5, 1, 9, 17, 14, 6, 2):
        v.moments()
        v = v.condition([pick], p.targets[[pick]])
        seen.append(pick)
    left = [c for c in CANDIDATES if c not in seen]
    fresh = look(p, seen, left).with_baseline("linearised")
    ref.close(mlmoc(v, squared=True), mlmoc(fresh, squared=True))
    ref.close(mlmoc(v), mlmoc(fresh))


def test_views_from_one_parent_are_independent():
    p = ref.problem("dense-scalar")
    v = look(p, LABELLED)
    before = mlmoc(v, squared=True).clone()
    left, right = v.condition([5], p.targets[[5]]), v.condition([9], p.targets[[9]])
    for after, pick in ((left, 5), (right, 9)):
        fresh = look(p, [*LABELLED, pick], after.candidates)
        for baseline in ("outputs", "linearised"):
            options = {"squared": True, "baseline": baseline}
            ref.close(mlmoc(after, **options), mlmoc(fresh, **options))
    assert torch.equal(mlmoc(v, squared=True), before)


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("kind", ref.KINDS)
def test_candidates_among_evaluation_points_are_not_favoured(kind, name):
    """Two copies of one point, one of them an evaluation point.

    A label of either changes the same.
    """
    p = ref.problem(kind)
    b, n = p.b, len(p.outputs)
    rows = [*range(n), *CANDIDATES]
    features = p.features.view(n, b, -1)[rows].reshape(len(rows) * b, -1)
    q = ref.Problem(p.outputs[rows], features @ features.T, features, p.targets[rows], kind, 1e-3)
    copies = list(range(n, n + len(CANDIDATES)))
    others = [1, 18, 22, 13]
    for labelled in ([], LABELLED):
        for baseline in ("outputs", "linearised"):
            v = look(q, labelled, [*CANDIDATES, *copies], [*others, *CANDIDATES]).with_baseline(
                baseline
            )
            inside, outside = ACQUISITIONS[name](v, None).chunk(2)
            # A copy outside changes the predictions at its twin inside; that is all by which the
            # two differ.
            for i, own in enumerate(CANDIDATES):
                less = look(
                    q, labelled, [own, copies[i]], [x for x in v.evaluation.tolist() if x != own]
                )
                alone = ACQUISITIONS[name](less.with_baseline(baseline), None)
                ref.close(alone[:1], alone[1:], 1e-6)
                level = _level(name, q, labelled, own, baseline)
                ref.close(inside[i : i + 1], alone[:1] + level, 1e-6)
            assert outside.shape == inside.shape


def _level(name, p, labelled, own, baseline):
    """What an evaluation point adds to the sum while no label changes it."""
    mean = ref.refit(p, labelled, p.targets[list(labelled)])[0][own]
    now = p.outputs[own] if baseline == "outputs" else mean
    drift = float((mean - now).norm())
    if name == "changes":
        return float(int(mean.argmax()) != int(now.argmax())) + 1e-6 * drift
    if name == "eer":
        return -float(entropy(simplex(mean[None]))[0])
    return drift if name in ("mlmoc", "emoc") else 0.0


def test_changes_counts_classes_and_breaks_ties_by_mlmoc():
    p = ref.problem("dense-scalar", n=60, classes=4)
    labelled = list(range(12))
    v = look(p, labelled, list(range(12, 60)), list(range(12, 60))).with_baseline("linearised")
    scores, sizes = changes(v), mlmoc(v)
    counts = scores.floor()
    assert len(counts.unique()) < 30  # of 48 candidates: many tie
    assert float((scores - counts).max()) < 0.01
    for count in counts.unique():
        same = (counts == count).nonzero()[:, 0]
        assert torch.equal(scores[same].argsort(stable=True), sizes[same].argsort(stable=True))


@pytest.mark.parametrize("kind", ref.KINDS)
def test_changes_is_independent_of_chunk(kind, monkeypatch):
    v = look(ref.problem(kind), LABELLED)
    whole = changes(v)
    ref.close(changes(v, chunk=2), whole)
    monkeypatch.setattr(functions, "MAX_CHUNK_ENTRIES", 1)
    ref.close(changes(v), whole)


def test_evaluation_defaults_to_the_candidates():
    p = ref.problem("dense-scalar")
    v = view(p.prior(), CANDIDATES)
    assert v.evaluation.tolist() == CANDIDATES
    after = v.condition([5], p.targets[[5]])
    assert after.evaluation.tolist() == CANDIDATES
    assert 5 not in after.candidates.tolist()


def test_variance_of_near_copy_of_labelled_point_is_small():
    p = ref.problem("dense-scalar", n=12)
    features = torch.cat([p.features, p.features[:1] + 1e-9])
    outputs = torch.cat([p.outputs, p.outputs[:1]])
    post = prior(outputs, features @ features.T, noise=1e-5).condition([0], p.targets[:1])
    scores = variance(view(post, [12, 1, 2, 3]))
    assert scores.argmin() == 0
    assert float(scores[0]) < 1e-3 * float(scores[1:].min())


def test_float32_kernels_score_like_float64():
    p = ref.problem("dense-scalar", n=60, noise=1e-5)
    labelled = list(range(20))
    for kind in ({"kernel": p.kernel}, {"features": p.features}):
        scores = []
        for dtype in (torch.float64, torch.float32):
            kw = {k: v.to(dtype) for k, v in kind.items()}
            post = prior(p.outputs, noise=1e-5, **kw).condition(labelled, p.targets[:20])
            v = view(post, list(range(20, 60)))
            scores.append(torch.stack([a(v, None) for a in ACQUISITIONS.values()]))
        scale = scores[0].abs().amax(1, keepdim=True)
        assert float(((scores[0] - scores[1]).abs() / scale).max()) < 2e-4


@settings(deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.sampled_from([0, 1]))
def test_simplex_equals_sorting_algorithm(values, dim):
    z = torch.tensor(values, dtype=torch.float64)
    stacked = torch.stack([z, z.flip(0), z * 0], 1 - dim)
    out = simplex(stacked, dim)
    for i, row in enumerate((z, z.flip(0), z * 0)):
        ref.close(out.select(1 - dim, i), ref.simplex(row), 1e-12)
    ref.close(out.sum(dim), torch.ones(3, dtype=torch.float64), 1e-12)


def test_simplex_handles_ties_and_large_values():
    z = torch.tensor([[1e6, 1e6, 0.0], [0.5, 0.5, 0.0], [-3.0, -3.0, -3.0]], dtype=torch.float64)
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    half = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    ref.close(simplex(z), torch.stack([half, half, third]), 1e-9)
    assert float(entropy(torch.tensor([1.0, 0.0]))) == 0.0


# --- conformance: every member of the dict, every kind of kernel ---


@pytest.fixture(params=ref.KINDS)
def p(request):
    return ref.problem(request.param)


@pytest.mark.parametrize("name", ACQUISITIONS)
class TestConformance:
    def score(self, v, name, seed=0):
        return ACQUISITIONS[name](v, torch.Generator().manual_seed(seed))

    def test_finite_and_one_per_candidate(self, p, name):
        scores = self.score(look(p, LABELLED), name)
        assert scores.shape == (len(CANDIDATES),)
        assert scores.dtype == torch.float64
        assert bool(torch.isfinite(scores).all())

    def test_order_equivariant(self, p, name):
        order = [4, 0, 5, 2, 1, 3]
        shuffled = [CANDIDATES[i] for i in order]
        ref.close(
            self.score(look(p, LABELLED, shuffled), name),
            self.score(look(p, LABELLED), name)[order],
        )

    def test_evaluation_order_does_not_matter(self, p, name):
        ref.close(
            self.score(look(p, LABELLED, evaluation=EVALUATION[::-1]), name),
            self.score(look(p, LABELLED), name),
        )

    def test_consecutive_and_scattered_positions_agree(self, p, name):
        run, scattered = [12, 13, 14, 15], [15, 13, 12, 14]
        a = self.score(look(p, LABELLED, run, [16, 17, 18]), name)
        b = self.score(look(p, LABELLED, scattered, [18, 16, 17]), name)
        ref.close(a[[3, 1, 0, 2]], b)

    def test_inputs_unchanged(self, p, name):
        v = look(p, LABELLED)
        before = [t.clone() for t in (p.outputs, p.kernel, p.features, v.posterior.mean)]
        self.score(v, name)
        self.score(v.condition([5], p.targets[[5]]), name)
        for a, b in zip((p.outputs, p.kernel, p.features, v.posterior.mean), before, strict=True):
            assert torch.equal(a, b)

    def test_same_seed_same_answer(self, p, name):
        assert torch.equal(
            self.score(look(p, LABELLED), name, 3), self.score(look(p, LABELLED), name, 3)
        )
        v = look(p, LABELLED)
        assert torch.equal(self.score(v, name), self.score(v, name))

    def test_global_generator_untouched(self, p, name):
        torch.manual_seed(5)
        state = torch.get_rng_state()
        self.score(look(p, LABELLED), name)
        assert torch.equal(torch.get_rng_state(), state)

    def test_one_candidate(self, p, name):
        assert self.score(look(p, LABELLED, [5], [1]), name).shape == (1,)

    def test_no_label_yet(self, p, name):
        assert bool(torch.isfinite(self.score(look(p), name)).all())

    def test_labels_of_one_class(self, p, name):
        same = p.targets[:1].expand(3, -1)
        v = view(p.prior().condition([20, 3, 11], same), CANDIDATES)
        assert bool(torch.isfinite(self.score(v, name)).all())

    def test_duplicate_points(self, p, name):
        """Exact copies of a labelled point and of a candidate: finite, equal scores."""
        b, n = p.b, len(p.outputs)
        rows = [*range(n), 3, 5]
        features = p.features.view(n, b, -1)[rows].reshape(len(rows) * b, -1)
        q = ref.Problem(
            p.outputs[rows], features @ features.T, features, p.targets[rows], p.kind, 1e-5
        )
        every = list(dict.fromkeys([*EVALUATION, 5, n, n + 1]))  # one copy as well as the other
        v = look(q, LABELLED, [5, n, n + 1, 9], every)
        scores = self.score(v, name)
        assert bool(torch.isfinite(scores).all())
        ref.close(scores[:1], scores[2:3], 1e-6)
