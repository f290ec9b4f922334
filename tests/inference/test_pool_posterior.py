"""PoolPosterior against a posterior conditioned from scratch."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.acquisition import flip
from labelahead.acquisition.pool_view import view
from labelahead.errors import InputError, NumericalError
from labelahead.gp.posterior import prior
from labelahead.inference.mixture import mixture_kernel
from labelahead.inference.pool_posterior import PoolPosterior, PosteriorOptions, drift_warning

N, C = 14, 3
POINTS = torch.tensor([40, 3, 17, 8, 99, 51, 2, 75, 30, 61, 12, 5, 88, 23])


def make_prior(classes=C, rank=None, seed=0):
    rng = torch.Generator().manual_seed(seed)
    psi = torch.randn(N, rank or N + 4, generator=rng, dtype=torch.float64)
    outputs = 0.3 * torch.randn(N, C, generator=rng, dtype=torch.float64)
    outputs = torch.nn.functional.pad(outputs, (0, classes - C))
    arguments = {"features": psi} if rank else {"kernel": psi @ psi.T}
    return prior(outputs, **arguments, noise=1e-2)


def condition_from_scratch(labels, classes=C, rank=None):
    """Return the prior conditioned on all labels at once, with rows looked up in POINTS."""
    post = make_prior(classes, rank)
    inside = {p: c for p, c in labels.items() if p in POINTS.tolist()}
    if not inside:
        return post
    at = [POINTS.tolist().index(p) for p in inside]
    targets = torch.zeros(len(at), classes, dtype=torch.float64)
    targets[range(len(at)), list(inside.values())] = 1
    return post.condition(at, targets)


POSITION = st.sampled_from([*POINTS.tolist(), 7, 1000])  # the last two are not in POINTS
STEP = st.one_of(
    st.tuples(st.just("label"), POSITION, st.integers(0, C - 1)),
    st.tuples(st.just("take back"), POSITION, st.just(0)),
    st.tuples(st.just("class"), st.just(0), st.just(0)),
)


def apply_step(step, labels, classes):
    """Apply a step to the labels and return the new number of classes."""
    kind, position, label = step
    if kind == "label":
        labels[position] = label
    elif kind == "take back":
        labels.pop(position, None)
    return classes + (kind == "class")


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=12), st.sampled_from([None, 6]), st.booleans())
def test_with_labels_matches_posterior_from_scratch(steps, rank, cache_cross_covariance):
    pool_posterior, labels, classes = (
        PoolPosterior.from_prior(
            POINTS,
            make_prior(rank=rank),
            options=PosteriorOptions(evaluation=5, cache_cross_covariance=cache_cross_covariance),
        ),
        {},
        C,
    )
    for step in steps:
        classes = apply_step(step, labels, classes)
        before = pool_posterior.posterior.mean.clone()
        after = pool_posterior.with_labels(labels, classes)
        assert torch.equal(pool_posterior.posterior.mean, before)  # an immutable value
        pool_posterior = after
        naive = condition_from_scratch(labels, classes, rank)
        assert torch.allclose(pool_posterior.posterior.mean, naive.mean, atol=1e-9)
        assert torch.allclose(pool_posterior.posterior.variance(), naive.variance(), atol=1e-9)
        assert pool_posterior.posterior.amplitude() == pytest.approx(naive.amplitude())
        assert pool_posterior.has_labels(labels, classes)
        assert not pool_posterior.has_labels({**labels, 40: 0 if labels.get(40) else 1}, classes)
        unlabelled = [p for p in POINTS.tolist() if p not in labels]
        assert POINTS[pool_posterior.view.candidates].tolist() == unlabelled
        some = [p for p in labels if p in pool_posterior] + unlabelled[:2]
        at = [POINTS.tolist().index(p) for p in some]
        assert torch.allclose(pool_posterior.mean(some), naive.mean[at], atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(STEP, max_size=12),
    st.sampled_from([None, 6]),
    st.booleans(),
    st.sampled_from(["flip", "mlmoc", "eer"]),
)
def test_scores_match_posterior_from_scratch(steps, rank, cache_cross_covariance, acquisition):
    """Sums over evaluation points are updated for corrections, removed labels and new classes."""
    pool_posterior, labels, classes = (
        PoolPosterior.from_prior(
            POINTS,
            make_prior(rank=rank),
            options=PosteriorOptions(cache_cross_covariance=cache_cross_covariance),
        ),
        {},
        C,
    )
    for step in steps:
        classes = apply_step(step, labels, classes)
        pool_posterior = pool_posterior.with_labels(labels, classes)
        if not len(pool_posterior.view.candidates):
            continue
        naive = PoolPosterior.from_prior(POINTS, make_prior(classes, rank), labels)
        pool_view = view(
            naive.posterior,
            pool_posterior.view.candidates,
            pool_posterior.view.evaluation,
            baseline="linearised",
        )
        naive = replace(naive, view=pool_view)
        assert torch.allclose(
            pool_posterior.scores(acquisition), naive.scores(acquisition), atol=1e-7
        )


@pytest.mark.parametrize("baseline", ["outputs", "linearised"])
def test_with_labels_uses_linearised_baseline(baseline):
    pool_posterior = PoolPosterior.from_prior(
        POINTS, make_prior(), {40: 0, 99: 1}, PosteriorOptions(baseline=baseline)
    )
    assert pool_posterior.view.baseline == baseline
    assert pool_posterior.with_labels({40: 0, 99: 1}).view.baseline == baseline
    for labels in ({40: 0, 99: 1, 3: 2}, {40: 0, 99: 2}, {40: 0}, {3: 2}, {}):
        assert pool_posterior.with_labels(labels).view.baseline == "linearised"


def test_drift_is_share_of_candidates_with_other_class():
    pool_posterior = PoolPosterior.from_prior(
        POINTS, make_prior(), {40: 0, 99: 1, 3: 1}, PosteriorOptions(evaluation=4)
    )
    left = [i for i, p in enumerate(POINTS.tolist()) if p not in (40, 99, 3)]
    post = condition_from_scratch({40: 0, 99: 1, 3: 1})
    differing = sum(
        int(post.mean[i].argmax()) != int(make_prior().outputs[i].argmax()) for i in left
    )
    assert 0 < differing < len(left)
    assert pool_posterior.drift() == pytest.approx(differing / len(left))
    assert PoolPosterior.from_prior(POINTS, make_prior()).drift() == 0.0
    assert (
        PoolPosterior.from_prior(POINTS, make_prior(), dict.fromkeys(POINTS.tolist(), 0)).drift()
        is None
    )


def test_drift_above_ten_percent_warns():
    assert drift_warning(None) is None
    assert drift_warning(0.1) is None
    assert "for 38% of the candidates" in drift_warning(0.38)
    assert "train longer" in drift_warning(0.38)


def test_can_update_incrementally_for_small_changes():
    pool_posterior = PoolPosterior.from_prior(POINTS, make_prior(), {40: 0, 3: 1, 17: 2})
    assert pool_posterior.can_update_incrementally({40: 0, 3: 1, 17: 2, 8: 0, 7: 1})
    assert pool_posterior.can_update_incrementally({40: 2, 3: 0, 17: 2})
    assert pool_posterior.can_update_incrementally({40: 0, 3: 1})
    assert pool_posterior.can_update_incrementally({})
    assert not pool_posterior.can_update_incrementally({3: 1, 17: 2})
    wide = PoolPosterior.from_prior(
        POINTS[:4], prior(torch.zeros(4, 2).double(), torch.eye(8).double(), noise=1e-2), {40: 0}
    )
    assert not wide.can_update_incrementally({40: 1})
    assert torch.allclose(
        wide.with_labels({40: 1}).posterior.mean[0], torch.tensor([0, 1 / 1.01]).double()
    )


def test_initial_labels_match_with_labels():
    labels = {17: 0, 1000: 2, 5: 1}
    assert torch.equal(
        PoolPosterior.from_prior(POINTS, make_prior(), labels).posterior.mean,
        condition_from_scratch(labels).mean,
    )


def test_best_excludes_given_positions():
    pool_posterior = PoolPosterior.from_prior(
        POINTS, make_prior(), {40: 0, 99: 1}, PosteriorOptions(evaluation=6)
    )
    scores = flip(
        view(
            pool_posterior.posterior, pool_posterior.view.candidates, pool_posterior.view.evaluation
        )
    )
    order = POINTS[pool_posterior.view.candidates[scores.argsort(descending=True)]].tolist()
    assert pool_posterior.rank_candidates("flip") == order
    assert pool_posterior.best("flip") == (order[0], pytest.approx(float(scores.max())))
    assert pool_posterior.best("flip", without=set(order[:3]))[0] == order[3]
    assert pool_posterior.best("flip", without=set(order)) is None


@pytest.mark.parametrize("mode", ["top", "greedy", "sequential"])
def test_select_batch_and_oracle_use_positions(mode):
    pool_posterior, queried = PoolPosterior.from_prior(POINTS, make_prior(), {40: 0, 99: 1}), []

    def oracle(position):
        queried.append(position)
        return position % C

    positions, scores = pool_posterior.select_batch("flip", 4, torch.Generator(), mode, oracle)
    assert set(positions.tolist()) <= set(POINTS.tolist()) - {40, 99}
    assert len(scores) == 4
    assert queried == (positions.tolist() if mode == "sequential" else [])
    if mode == "sequential":  # the same with labels one by one
        for position in positions.tolist():
            assert pool_posterior.best("flip")[0] == position
            pool_posterior = pool_posterior.with_labels(
                {**pool_posterior.labels, position: position % C}
            )


def test_fully_labelled_posterior_accepts_corrections_only():
    pool_posterior = PoolPosterior.from_prior(
        POINTS, make_prior(), {int(p): int(p) % C for p in POINTS}
    )
    assert pool_posterior.best("flip") is None
    assert pool_posterior.rank_candidates("flip") == []
    assert pool_posterior.with_labels({**pool_posterior.labels, 40: 2}).labels[40] == 2


def test_unknown_position_raises():
    pool_posterior = PoolPosterior.from_prior(POINTS, make_prior())
    assert 40 in pool_posterior
    assert 7 not in pool_posterior
    with pytest.raises(InputError, match="item 7 is not among the current candidates"):
        pool_posterior.mean([40, 7])


def test_nan_scores_raise():
    with pytest.raises(NumericalError, match="NaN"):
        PoolPosterior.from_prior(POINTS, make_prior()).best(
            lambda view, rng: torch.full(view.candidates.shape, torch.nan)
        )


def make_clustered_posterior(seed, labels, n=300, classes=4):
    """Return the posterior of a clustered pool after some labels, the labels and all classes."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, classes, (n,), generator=rng)
    x = torch.randn(classes, 12, generator=rng, dtype=torch.float64)[truth]
    x = x + 1.2 * torch.randn(n, 12, generator=rng, dtype=torch.float64)
    psi = torch.nn.functional.normalize(x, dim=1)
    outputs = torch.full((n, classes), 1 / classes, dtype=torch.float64)
    cluster_prior = prior(outputs, (psi @ psi.T).square(), noise=1e-1)
    points = torch.randperm(5 * n, generator=rng)[:n]
    labelled = {int(points[i]): int(truth[i]) for i in torch.randperm(n, generator=rng)[:labels]}
    pool_posterior = PoolPosterior.from_prior(
        points,
        cluster_prior,
        labelled,
        PosteriorOptions(evaluation=80, cache_cross_covariance=True),
    )
    return pool_posterior, labelled, dict(zip(points.tolist(), truth.tolist(), strict=True))


@pytest.mark.parametrize("acquisition", ["flip", "resolve", "mlmoc", "changes"])
@pytest.mark.parametrize("seed", range(4))
def test_shortlist_updates_and_scores_like_full_posterior(seed, acquisition):
    pool_posterior, labels, truth = make_clustered_posterior(seed, 12 + 20 * seed)
    shortlist = pool_posterior.build_shortlist(pool_posterior.scores(acquisition), 40)
    assert pool_posterior.rank_candidates(acquisition, 40) == shortlist.rank_candidates(acquisition)
    for _ in range(4):  # several labels before the full posterior is updated
        position, _ = shortlist.best(acquisition, ())
        labels[position] = truth[position]
        shortlist, whole = shortlist.with_labels(labels), pool_posterior.with_labels(labels)
        candidates = shortlist.points[shortlist.view.candidates]
        scores, full_scores = shortlist.scores(acquisition), whole.scores(acquisition)
        score_by_position = {
            int(p): float(s)
            for p, s in zip(whole.points[whole.view.candidates], full_scores, strict=True)
        }
        expected = torch.tensor(
            [score_by_position[int(p)] for p in candidates], dtype=torch.float64
        )
        assert torch.allclose(scores, expected, rtol=1e-8, atol=1e-10)
        assert torch.allclose(
            shortlist.mean(candidates.tolist()), whole.mean(candidates.tolist()), atol=1e-10
        )
        assert shortlist.posterior.amplitude() == pytest.approx(
            whole.posterior.amplitude(), rel=1e-9
        )
        assert position not in candidates.tolist()


def test_shortlist_best_equals_overall_best():
    """The shortlist ignores score changes of other items; it nearly always has the best item."""
    same, gaps, queries = 0, [], 0
    for seed in range(12):
        pool_posterior, labels, truth = make_clustered_posterior(seed, 8 + 4 * seed)
        for _ in range(5):
            position, _ = pool_posterior.best("flip", ())
            shortlist = pool_posterior.build_shortlist(pool_posterior.scores("flip"), 40)
            labels[position] = truth[position]
            pool_posterior = pool_posterior.with_labels(labels)
            (shortlist_best, score), (best, best_score) = (
                shortlist.with_labels(labels).best("flip", ()),
                pool_posterior.best("flip", ()),
            )
            same, queries = same + (shortlist_best == best), queries + 1
            gaps.append((best_score - score) / best_score)
    assert same >= 0.9 * queries
    assert max(gaps) < 0.2


def test_shortlist_accepts_new_classes_and_refuses_removals():
    pool_posterior, labels, _truth = make_clustered_posterior(3, 20)
    shortlist = pool_posterior.build_shortlist(pool_posterior.scores("flip"), 40)
    position, _ = shortlist.best("flip", ())
    labels[position] = 4
    wider, whole = shortlist.with_labels(labels, 5), pool_posterior.with_labels(labels, 5)
    candidates = wider.points[wider.view.candidates].tolist()
    assert torch.allclose(wider.mean(candidates), whole.mean(candidates), atol=1e-10)
    del labels[position]
    assert not wider.can_update_incrementally(labels)
    outside = next(
        p for p in pool_posterior.points.tolist() if p not in shortlist and p not in labels
    )
    # only the full posterior covers it
    assert shortlist.with_labels({**labels, outside: 1}).labels == {}


def make_cosine_prior(n=60, classes=C):
    rng = torch.Generator().manual_seed(3)
    rows = torch.nn.functional.normalize(torch.randn(n, 5, generator=rng, dtype=torch.float64))
    return prior(
        torch.full((n, classes), 1 / classes), mixture_kernel(rows, (0.5, 0.5, 0.0)), noise=0.05
    )


def make_labels(n):
    return {p: p % C for p in range(n)}


def test_nystrom_labels_keep_predictions_above_max_exact_labels():
    nystrom, whole = (
        PoolPosterior.from_prior(
            torch.arange(60),
            make_cosine_prior(),
            make_labels(40),
            PosteriorOptions(evaluation=9, cache_cross_covariance=True, max_exact_labels=m),
        )
        for m in (20, None)
    )
    assert nystrom.posterior.nystrom_labels is not None
    assert whole.posterior.nystrom_labels is None
    assert torch.allclose(nystrom.posterior.mean, whole.posterior.mean, atol=2e-2)
    assert nystrom.labels == whole.labels
    assert nystrom.has_labels(make_labels(40), C)
    assert sorted(nystrom.rank_candidates("flip")) == sorted(whole.rank_candidates("flip"))
    wider = nystrom.with_labels(make_labels(40), C + 2)
    assert wider.posterior.nystrom_labels is not None
    assert wider.classes == C + 2
    assert (
        PoolPosterior.from_prior(
            torch.arange(60),
            make_cosine_prior(),
            make_labels(20),
            PosteriorOptions(max_exact_labels=20),
        ).posterior.nystrom_labels
        is None
    )


def test_nystrom_posterior_supports_corrections_additions_and_removals():
    pool_posterior = PoolPosterior.from_prior(
        torch.arange(60),
        make_cosine_prior(),
        make_labels(40),
        PosteriorOptions(evaluation=9, cache_cross_covariance=True, max_exact_labels=20),
    )
    more = pool_posterior.with_labels(make_labels(43))
    assert more.posterior.nystrom_labels is not None
    assert more.posterior.labelled.tolist() == [40, 41, 42]
    with_fewer = more.with_labels(make_labels(41))
    assert more.can_update_incrementally(make_labels(41))
    assert with_fewer.labels == make_labels(41)
    assert torch.allclose(
        with_fewer.posterior.mean,
        pool_posterior.with_labels(make_labels(41)).posterior.mean,
        atol=1e-6,
    )
    corrections = {**make_labels(43), 7: (7 + 1) % C, 42: (42 + 1) % C}
    assert more.can_update_incrementally(corrections)
    corrected = more.with_labels(corrections)
    assert corrected.posterior.all_labels()[1].argmax(1).tolist() == list(corrections.values())
    without_one = {p: c for p, c in make_labels(43).items() if p != 7}
    assert not more.can_update_incrementally(without_one)
    assert not more.can_update_incrementally(make_labels(39))
    refitted = more.with_labels(without_one)
    exact = PoolPosterior.from_prior(torch.arange(60), make_cosine_prior(), without_one).posterior
    assert refitted.labels == without_one
    assert torch.allclose(refitted.posterior.mean, exact.mean, atol=2e-2)


def test_shortlist_of_nystrom_posterior_scores_alike():
    pool_posterior = PoolPosterior.from_prior(
        torch.arange(60),
        make_cosine_prior(),
        make_labels(40),
        PosteriorOptions(evaluation=9, cache_cross_covariance=True, max_exact_labels=20),
    )
    short = pool_posterior.build_shortlist(pool_posterior.scores("flip"), 8)
    best = pool_posterior.rank_candidates("flip", 8)
    assert short.rank_candidates("flip") == best
    label = {best[0]: 1}
    after, of_all = (
        short.with_labels(label),
        pool_posterior.with_labels({**pool_posterior.labels, **label}),
    )
    scores = dict(
        zip(
            of_all.points[of_all.view.candidates].tolist(),
            of_all.scores("flip").tolist(),
            strict=True,
        )
    )
    for p, score in zip(
        after.points[after.view.candidates].tolist(), after.scores("flip").tolist(), strict=True
    ):
        assert score == pytest.approx(scores[p], rel=1e-4, abs=1e-6)


def test_from_kernel_matches_conditioning_the_prior_by_hand():
    labels = {40: 0, 99: 1, 1000: 2}
    given = make_prior()
    kernel = given.covariance.block(torch.arange(N), torch.arange(N))
    made = PoolPosterior.from_kernel(
        POINTS, given.outputs, {"kernel": kernel}, 1e-2, labels, PosteriorOptions(), classes=C + 1
    )
    naive = prior(
        torch.cat([given.outputs, torch.zeros(N, 1).double()], 1), kernel, noise=1e-2
    ).condition([0, 4], torch.eye(C + 1).double()[[0, 1]])
    assert made.labels == {40: 0, 99: 1}
    torch.testing.assert_close(made.posterior.mean, naive.mean)
    torch.testing.assert_close(made.posterior.variance(), naive.variance())
    wider = PoolPosterior.from_kernel(
        POINTS, given.outputs, {"kernel": kernel, "scale": 7.0}, 1e-2, labels, PosteriorOptions()
    )
    assert (wider.classes, wider.posterior.noise) == (C, 7e-2)
