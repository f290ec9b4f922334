"""Acquisition functions against naive loops, with every option, before and after conditioning."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.acquisition import ACQUISITIONS, changes, eer, emoc, flip, mlmoc, resolve, variance
from labelahead.acquisition.pool_view import view
from labelahead.acquisition.probability import entropy, simplex
from labelahead.errors import InputError
from labelahead.gp.posterior import prior
from tests.support import reference_lookahead as ref
from tests.support.lookahead_problems import CANDIDATES, CHANGE, EVALUATION, make_view

LABELLED = [20, 3, 11, 7]
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


@pytest.mark.parametrize("kind", ref.KINDS)
@pytest.mark.parametrize(("fast", "naive", "options"), CASES, ids=IDS)
def test_acquisitions_equal_naive_twins_before_and_after_conditioning(kind, fast, naive, options):
    p = ref.problem(kind)
    for labelled in ([], LABELLED):
        conditioned, remaining = list(labelled), list(CANDIDATES)
        v = make_view(p, labelled)
        for position in (None, 9, 2, 0):
            if position is not None:
                v = v.condition([position], p.targets[[position]])
                conditioned.append(position)
                remaining.remove(position)
            expected = naive(
                p, conditioned, p.targets[conditioned], remaining, EVALUATION, **options
            )
            ref.close(fast(v, None, **options), expected)


@pytest.mark.parametrize("kind", ["dense-scalar", "low-rank", "dense-full"])
@pytest.mark.parametrize(("fast", "naive", "options"), CASES, ids=IDS)
def test_acquisitions_by_another_source_equal_naive_twins(kind, fast, naive, options):
    p = ref.problem(kind)
    noises = torch.full((24,), 0.2, dtype=torch.float64)  # of the source that is asked
    noises[LABELLED] = torch.tensor([0.5, 0.01, 0.05, 3.0], dtype=torch.float64)
    twin = replace(p, noises=noises)
    post = p.prior().condition(LABELLED, p.targets[LABELLED], noises[LABELLED])
    v = view(post, CANDIDATES, EVALUATION)
    fast(v, None, **options)  # Its cache must not be taken for that of the other source.
    v = v.with_noise(0.2)
    expected = naive(twin, LABELLED, p.targets[LABELLED], CANDIDATES, EVALUATION, **options)
    ref.close(fast(v, None, **options), expected)
    v, labelled = v.condition([9], p.targets[[9]]), [*LABELLED, 9]
    rest = [c for c in CANDIDATES if c != 9]
    expected = naive(twin, labelled, p.targets[labelled], rest, EVALUATION, **options)
    ref.close(fast(v, None, **options), expected)


@pytest.mark.parametrize("kind", ref.KINDS)
@pytest.mark.parametrize("acquisition", [mlmoc, changes, emoc, eer])
def test_method_solve_equals_block(kind, acquisition):
    v = make_view(ref.problem(kind), LABELLED)
    ref.close(acquisition(v, None, method="solve"), acquisition(v, None))


@pytest.mark.parametrize("kind", ref.KINDS)
@pytest.mark.parametrize("squared", [False, True])
def test_method_solve_respects_options(kind, squared):
    v = make_view(ref.problem(kind), LABELLED)
    options = {"squared": squared, "baseline": "linearised"}
    for acquisition in (mlmoc, emoc):
        ref.close(acquisition(v, None, method="solve", **options), acquisition(v, None, **options))


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("kind", ref.KINDS)
def test_candidates_among_evaluation_points_are_not_favoured(kind, name):
    """Of two copies of a point one is an evaluation point; labels of both have the same effect."""
    p = ref.problem(kind)
    b, n = p.b, len(p.outputs)
    rows = [*range(n), *CANDIDATES]
    features = p.features.view(n, b, -1)[rows].reshape(len(rows) * b, -1)
    q = ref.Problem(p.outputs[rows], features @ features.T, features, p.targets[rows], kind, 1e-3)
    copies = list(range(n, n + len(CANDIDATES)))
    others = [1, 18, 22, 13]
    for labelled in ([], LABELLED):
        for baseline in ("outputs", "linearised"):
            v = make_view(
                q, labelled, [*CANDIDATES, *copies], [*others, *CANDIDATES]
            ).with_baseline(baseline)
            inside, outside = ACQUISITIONS[name](v, None).chunk(2)
            # The copies differ only in the prediction at the evaluation copy itself.
            for i, own in enumerate(CANDIDATES):
                reduced = make_view(
                    q, labelled, [own, copies[i]], [x for x in v.evaluation.tolist() if x != own]
                )
                alone = ACQUISITIONS[name](reduced.with_baseline(baseline), None)
                ref.close(alone[:1], alone[1:], 1e-6)
                constant_term = _compute_constant_term(name, q, labelled, own, baseline)
                ref.close(inside[i : i + 1], alone[:1] + constant_term, 1e-6)
            assert outside.shape == inside.shape


def _compute_constant_term(name, p, labelled, own, baseline):
    """Return the term of an evaluation point in the sum without a new label."""
    mean = ref.refit(p, labelled, p.targets[list(labelled)])[0][own]
    current = p.outputs[own] if baseline == "outputs" else mean
    drift = float((mean - current).norm())
    if name == "changes":
        return float(int(mean.argmax()) != int(current.argmax())) + 1e-6 * drift
    if name == "eer":
        return -float(entropy(simplex(mean[None]))[0])
    return drift if name in ("mlmoc", "emoc") else 0.0


def test_changes_counts_classes_and_breaks_ties_by_mlmoc():
    p = ref.problem("dense-scalar", n=60, classes=4)
    labelled = list(range(12))
    v = make_view(p, labelled, list(range(12, 60)), list(range(12, 60))).with_baseline("linearised")
    scores, sizes = changes(v), mlmoc(v)
    counts = scores.floor()
    assert len(counts.unique()) < 30  # of 48 candidates: there are many ties
    assert float((scores - counts).max()) < 0.01
    for count in counts.unique():
        same = (counts == count).nonzero()[:, 0]
        assert torch.equal(scores[same].argsort(stable=True), sizes[same].argsort(stable=True))


@pytest.mark.parametrize("kind", ref.KINDS)
def test_changes_is_independent_of_chunk(kind):
    v = make_view(ref.problem(kind), LABELLED)
    whole = changes(v)
    ref.close(changes(v, chunk=2), whole)
    ref.close(changes(v, max_chunk_entries=1), whole)


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

    def test_scores_are_finite_and_one_per_candidate(self, p, name):
        scores = self.score(make_view(p, LABELLED), name)
        assert scores.shape == (len(CANDIDATES),)
        assert scores.dtype == torch.float64
        assert bool(torch.isfinite(scores).all())

    def test_scores_are_order_equivariant(self, p, name):
        order = [4, 0, 5, 2, 1, 3]
        shuffled = [CANDIDATES[i] for i in order]
        ref.close(
            self.score(make_view(p, LABELLED, shuffled), name),
            self.score(make_view(p, LABELLED), name)[order],
        )

    def test_scores_are_independent_of_evaluation_order(self, p, name):
        ref.close(
            self.score(make_view(p, LABELLED, evaluation=EVALUATION[::-1]), name),
            self.score(make_view(p, LABELLED), name),
        )

    def test_consecutive_and_scattered_positions_agree(self, p, name):
        run, scattered = [12, 13, 14, 15], [15, 13, 12, 14]
        a = self.score(make_view(p, LABELLED, run, [16, 17, 18]), name)
        b = self.score(make_view(p, LABELLED, scattered, [18, 16, 17]), name)
        ref.close(a[[3, 1, 0, 2]], b)

    def test_inputs_are_unchanged(self, p, name):
        v = make_view(p, LABELLED)
        before = [t.clone() for t in (p.outputs, p.kernel, p.features, v.posterior.mean)]
        self.score(v, name)
        self.score(v.condition([5], p.targets[[5]]), name)
        for a, b in zip((p.outputs, p.kernel, p.features, v.posterior.mean), before, strict=True):
            assert torch.equal(a, b)

    def test_same_seed_gives_same_scores(self, p, name):
        assert torch.equal(
            self.score(make_view(p, LABELLED), name, 3), self.score(make_view(p, LABELLED), name, 3)
        )
        v = make_view(p, LABELLED)
        assert torch.equal(self.score(v, name), self.score(v, name))

    def test_global_generator_is_unchanged(self, p, name):
        torch.manual_seed(5)
        state = torch.get_rng_state()
        self.score(make_view(p, LABELLED), name)
        assert torch.equal(torch.get_rng_state(), state)

    def test_one_candidate_gives_one_score(self, p, name):
        assert self.score(make_view(p, LABELLED, [5], [1]), name).shape == (1,)

    def test_scores_without_labels_are_finite(self, p, name):
        assert bool(torch.isfinite(self.score(make_view(p), name)).all())

    def test_scores_with_labels_of_one_class_are_finite(self, p, name):
        same = p.targets[:1].expand(3, -1)
        v = view(p.prior().condition([20, 3, 11], same), CANDIDATES)
        assert bool(torch.isfinite(self.score(v, name)).all())

    def test_scores_of_duplicate_points_are_equal(self, p, name):
        """Exact copies of a labelled point and of a candidate: finite, equal scores."""
        b, n = p.b, len(p.outputs)
        rows = [*range(n), 3, 5]
        features = p.features.view(n, b, -1)[rows].reshape(len(rows) * b, -1)
        q = ref.Problem(
            p.outputs[rows], features @ features.T, features, p.targets[rows], p.kind, 1e-5
        )
        every = list(dict.fromkeys([*EVALUATION, 5, n, n + 1]))  # both copies have the same score
        v = make_view(q, LABELLED, [5, n, n + 1, 9], every)
        scores = self.score(v, name)
        assert bool(torch.isfinite(scores).all())
        ref.close(scores[:1], scores[2:3], 1e-6)


GOAL_CASES = [(f, n, o) for f, n, o in CASES if f in (flip, resolve, variance)]


@pytest.mark.parametrize("kind", ref.KINDS)
@pytest.mark.parametrize(("fast", "naive", "options"), GOAL_CASES)
def test_macro_f1_weighs_points_by_the_inverse_share_of_their_class(kind, fast, naive, options):
    """The naive twin adds the scores of every evaluation point alone, with its weight."""
    p = ref.problem(kind)
    v = replace_goal(make_view(p, LABELLED))
    conditioned, remaining = list(LABELLED), list(CANDIDATES)
    for position in (None, 9):
        if position is not None:
            v = v.condition([position], p.targets[[position]])
            conditioned.append(position)
            remaining.remove(position)
        mean, _ = ref.refit(p, conditioned, p.targets[conditioned])
        shares = sum(simplex(mean[x]) for x in EVALUATION)
        weights = [1 / float(shares[mean[x].argmax()]) for x in EVALUATION]
        assert max(weights) > min(weights)
        expected = sum(
            w * naive(p, conditioned, p.targets[conditioned], remaining, [x], **options)
            for w, x in zip(weights, EVALUATION, strict=True)
        ) / (sum(weights) / len(weights))
        ref.close(fast(v, None, **options), expected)


def replace_goal(v, goal="macro-f1"):
    """Return a view like this one with another goal."""
    return v.with_goal(goal)


@pytest.mark.parametrize("acquisition", [flip, resolve, variance])
def test_macro_f1_equals_accuracy_where_all_predictions_are_the_same(acquisition):
    p = ref.problem("dense-scalar")
    v = make_view(replace(p, outputs=torch.full_like(p.outputs, 1 / 3)), [])
    ref.close(acquisition(replace_goal(v), None), acquisition(v, None))
    assert v.point_weights() is None
    with pytest.raises(InputError, match="expected one of accuracy, macro-f1"):
        replace_goal(v, "macro_f1")
