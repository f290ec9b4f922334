"""PoolPosterior against a posterior conditioned from scratch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.acquisition import flip
from labelahead.acquisition.pool_view import view
from labelahead.errors import InputError, NumericalError
from labelahead.gp.posterior import prior
from labelahead.inference.exact import mixture_kernel
from labelahead.inference.pool_posterior import PoolPosterior, drift_warning

N, C = 14, 3
POINTS = torch.tensor([40, 3, 17, 8, 99, 51, 2, 75, 30, 61, 12, 5, 88, 23])


def start(classes=C, rank=None, seed=0):
    rng = torch.Generator().manual_seed(seed)
    psi = torch.randn(N, rank or N + 4, generator=rng, dtype=torch.float64)
    outputs = 0.3 * torch.randn(N, C, generator=rng, dtype=torch.float64)
    outputs = torch.nn.functional.pad(outputs, (0, classes - C))
    given = {"features": psi} if rank else {"kernel": psi @ psi.T}
    return prior(outputs, **given, noise=1e-2)


def from_scratch(labels, classes=C, rank=None):
    """The posterior in the naive way.

    The prior once more, all labels at once, places counted by hand.
    """
    post = start(classes, rank)
    inside = {p: c for p, c in labels.items() if p in POINTS.tolist()}
    if not inside:
        return post
    at = [POINTS.tolist().index(p) for p in inside]
    targets = torch.zeros(len(at), classes, dtype=torch.float64)
    targets[range(len(at)), list(inside.values())] = 1
    return post.condition(at, targets)


POSITION = st.sampled_from([*POINTS.tolist(), 7, 1000])  # the last two are not in play
STEP = st.one_of(
    st.tuples(st.just("label"), POSITION, st.integers(0, C - 1)),
    st.tuples(st.just("take back"), POSITION, st.just(0)),
    st.tuples(st.just("class"), st.just(0), st.just(0)),
)


def done(step, labels, classes):
    """Do a step to the labels; how many classes there are then."""
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
        PoolPosterior(
            POINTS, start(rank=rank), evaluation=5, cache_cross_covariance=cache_cross_covariance
        ),
        {},
        C,
    )
    for step in steps:
        classes = done(step, labels, classes)
        before = pool_posterior.posterior.mean.clone()
        after = pool_posterior.with_labels(labels, classes)
        assert torch.equal(pool_posterior.posterior.mean, before)  # an immutable value
        pool_posterior = after
        naive = from_scratch(labels, classes, rank)
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
    """Sums over evaluation points are carried along through corrections, undone labels and new
    classes.
    """
    pool_posterior, labels, classes = (
        PoolPosterior(POINTS, start(rank=rank), cache_cross_covariance=cache_cross_covariance),
        {},
        C,
    )
    for step in steps:
        classes = done(step, labels, classes)
        pool_posterior = pool_posterior.with_labels(labels, classes)
        if not len(pool_posterior.view.candidates):
            continue
        naive = PoolPosterior(POINTS, start(classes, rank), labels)
        naive.view = view(
            naive.posterior,
            pool_posterior.view.candidates,
            pool_posterior.view.evaluation,
            baseline="linearised",
        )
        assert torch.allclose(
            pool_posterior.scores(acquisition), naive.scores(acquisition), atol=1e-7
        )


@pytest.mark.parametrize("baseline", ["outputs", "linearised"])
def test_with_labels_uses_linearised_baseline(baseline):
    pool_posterior = PoolPosterior(POINTS, start(), {40: 0, 99: 1}, baseline=baseline)
    assert pool_posterior.view.baseline == baseline
    assert pool_posterior.with_labels({40: 0, 99: 1}).view.baseline == baseline
    for labels in ({40: 0, 99: 1, 3: 2}, {40: 0, 99: 2}, {40: 0}, {3: 2}, {}):
        assert pool_posterior.with_labels(labels).view.baseline == "linearised"


def test_drift_is_share_of_candidates_with_other_class():
    pool_posterior = PoolPosterior(POINTS, start(), {40: 0, 99: 1, 3: 1}, evaluation=4)
    left = [i for i, p in enumerate(POINTS.tolist()) if p not in (40, 99, 3)]
    post = from_scratch({40: 0, 99: 1, 3: 1})
    differing = sum(int(post.mean[i].argmax()) != int(start().outputs[i].argmax()) for i in left)
    assert 0 < differing < len(left)
    assert pool_posterior.drift() == pytest.approx(differing / len(left))
    assert PoolPosterior(POINTS, start()).drift() == 0.0
    assert PoolPosterior(POINTS, start(), dict.fromkeys(POINTS.tolist(), 0)).drift() is None


def test_drift_above_ten_percent_warns():
    assert drift_warning(None) is None
    assert drift_warning(0.1) is None
    assert "for 38% of the candidates" in drift_warning(0.38)
    assert "train longer" in drift_warning(0.38)


def test_can_update_incrementally_for_small_changes():
    pool_posterior = PoolPosterior(POINTS, start(), {40: 0, 3: 1, 17: 2})
    assert pool_posterior.can_update_incrementally({40: 0, 3: 1, 17: 2, 8: 0, 7: 1})
    assert pool_posterior.can_update_incrementally({40: 2, 3: 0, 17: 2})
    assert pool_posterior.can_update_incrementally({40: 0, 3: 1})
    assert pool_posterior.can_update_incrementally({})
    assert not pool_posterior.can_update_incrementally({3: 1, 17: 2})
    wide = PoolPosterior(
        POINTS[:4], prior(torch.zeros(4, 2).double(), torch.eye(8).double(), noise=1e-2), {40: 0}
    )
    assert not wide.can_update_incrementally({40: 1})
    assert torch.allclose(
        wide.with_labels({40: 1}).posterior.mean[0], torch.tensor([0, 1 / 1.01]).double()
    )


def test_initial_labels_match_with_labels():
    labels = {17: 0, 1000: 2, 5: 1}
    assert torch.equal(
        PoolPosterior(POINTS, start(), labels).posterior.mean, from_scratch(labels).mean
    )


def test_best_excludes_given_positions():
    pool_posterior = PoolPosterior(POINTS, start(), {40: 0, 99: 1}, evaluation=6)
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
    pool_posterior, asked = PoolPosterior(POINTS, start(), {40: 0, 99: 1}), []

    def oracle(position):
        asked.append(position)
        return position % C

    positions, scores = pool_posterior.select_batch("flip", 4, torch.Generator(), mode, oracle)
    assert set(positions.tolist()) <= set(POINTS.tolist()) - {40, 99}
    assert len(scores) == 4
    assert asked == (positions.tolist() if mode == "sequential" else [])
    if mode == "sequential":  # the same, told one by one
        for position in positions.tolist():
            assert pool_posterior.best("flip")[0] == position
            pool_posterior = pool_posterior.with_labels(
                {**pool_posterior.labels, position: position % C}
            )


def test_fully_labelled_posterior_accepts_corrections_only():
    pool_posterior = PoolPosterior(POINTS, start(), {int(p): int(p) % C for p in POINTS})
    assert pool_posterior.best("flip") is None
    assert pool_posterior.rank_candidates("flip") == []
    assert pool_posterior.with_labels({**pool_posterior.labels, 40: 2}).labels[40] == 2


def test_unknown_position_raises():
    pool_posterior = PoolPosterior(POINTS, start())
    assert 40 in pool_posterior
    assert 7 not in pool_posterior
    with pytest.raises(InputError, match="item 7 is not in play"):
        pool_posterior.mean([40, 7])


def test_nan_scores_raise():
    with pytest.raises(NumericalError, match="NaN"):
        PoolPosterior(POINTS, start()).best(
            lambda view, rng: torch.full(view.candidates.shape, torch.nan)
        )


def chosen_from(seed, labels, n=300, classes=4):
    """A pool whose items lie in clusters, what is believed of it after so many labels, and its
    classes.
    """
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, classes, (n,), generator=rng)
    x = torch.randn(classes, 12, generator=rng, dtype=torch.float64)[truth]
    x = x + 1.2 * torch.randn(n, 12, generator=rng, dtype=torch.float64)
    psi = torch.nn.functional.normalize(x, dim=1)
    outputs = torch.full((n, classes), 1 / classes, dtype=torch.float64)
    begin = prior(outputs, (psi @ psi.T).square(), noise=1e-1)
    points = torch.randperm(5 * n, generator=rng)[:n]
    known = {int(points[i]): int(truth[i]) for i in torch.randperm(n, generator=rng)[:labels]}
    pool_posterior = PoolPosterior(points, begin, known, evaluation=80, cache_cross_covariance=True)
    return pool_posterior, known, dict(zip(points.tolist(), truth.tolist(), strict=True))


@pytest.mark.parametrize("acquisition", ["flip", "resolve", "mlmoc", "changes"])
@pytest.mark.parametrize("seed", range(4))
def test_shortlist_updates_and_scores_like_full_posterior(seed, acquisition):
    pool_posterior, labels, truth = chosen_from(seed, 12 + 20 * seed)
    short = pool_posterior.build_shortlist(acquisition, 40)
    assert pool_posterior.rank_candidates(acquisition, 40) == short.rank_candidates(acquisition)
    for _ in range(4):  # several answers before the whole has learnt the first of them
        position, _ = short.best(acquisition, ())
        labels[position] = truth[position]
        short, whole = short.with_labels(labels), pool_posterior.with_labels(labels)
        left = short.points[short.view.candidates]
        mine, theirs = short.scores(acquisition), whole.scores(acquisition)
        there = {
            int(p): float(s)
            for p, s in zip(whole.points[whole.view.candidates], theirs, strict=True)
        }
        expected = torch.tensor([there[int(p)] for p in left], dtype=torch.float64)
        assert torch.allclose(mine, expected, rtol=1e-8, atol=1e-10)
        assert torch.allclose(short.mean(left.tolist()), whole.mean(left.tolist()), atol=1e-10)
        assert short.posterior.amplitude() == pytest.approx(whole.posterior.amplitude(), rel=1e-9)
        assert position not in left.tolist()


def test_shortlist_best_equals_overall_best():
    """What an answer makes of the others, the shortlist does not see.

    The item to ask for is nearly always on it.
    """
    same, gaps, asked = 0, [], 0
    for seed in range(12):
        pool_posterior, labels, truth = chosen_from(seed, 8 + 4 * seed)
        for _ in range(5):
            position, _ = pool_posterior.best("flip", ())
            short = pool_posterior.build_shortlist("flip", 40)
            labels[position] = truth[position]
            pool_posterior = pool_posterior.with_labels(labels)
            (there, score), (best, max_exact_labels) = (
                short.with_labels(labels).best("flip", ()),
                pool_posterior.best("flip", ()),
            )
            same, asked = same + (there == best), asked + 1
            gaps.append((max_exact_labels - score) / max_exact_labels)
    assert same >= 0.9 * asked
    assert max(gaps) < 0.2


def test_shortlist_accepts_new_classes_and_refuses_removals():
    pool_posterior, labels, _truth = chosen_from(3, 20)
    short = pool_posterior.build_shortlist("flip", 40)
    position, _ = short.best("flip", ())
    labels[position] = 4
    wider, whole = short.with_labels(labels, 5), pool_posterior.with_labels(labels, 5)
    left = wider.points[wider.view.candidates].tolist()
    assert torch.allclose(wider.mean(left), whole.mean(left), atol=1e-10)
    del labels[position]
    assert not wider.can_update_incrementally(labels)
    outside = next(p for p in pool_posterior.points.tolist() if p not in short and p not in labels)
    assert short.with_labels({**labels, outside: 1}).labels == {}  # the whole will know it


def cosines(n=60, classes=C):
    rng = torch.Generator().manual_seed(3)
    rows = torch.nn.functional.normalize(torch.randn(n, 5, generator=rng, dtype=torch.float64))
    return prior(
        torch.full((n, classes), 1 / classes), mixture_kernel(rows, (0.5, 0.5, 0.0)), noise=0.05
    )


def many(n):
    return {p: p % C for p in range(n)}


def test_nystrom_labels_keep_predictions_above_max_exact_labels():
    lean, whole = (
        PoolPosterior(
            torch.arange(60),
            cosines(),
            many(40),
            evaluation=9,
            cache_cross_covariance=True,
            max_exact_labels=m,
        )
        for m in (20, None)
    )
    assert lean.posterior.nystrom_labels is not None
    assert whole.posterior.nystrom_labels is None
    assert torch.allclose(lean.posterior.mean, whole.posterior.mean, atol=2e-2)
    assert lean.labels == whole.labels
    assert lean.has_labels(many(40), C)
    assert sorted(lean.rank_candidates("flip")) == sorted(whole.rank_candidates("flip"))
    wider = lean.with_labels(many(40), C + 2)
    assert wider.posterior.nystrom_labels is not None
    assert wider.classes == C + 2
    assert (
        PoolPosterior(
            torch.arange(60), cosines(), many(20), max_exact_labels=20
        ).posterior.nystrom_labels
        is None
    )


def test_nystrom_posterior_supports_corrections_additions_and_removals():
    pool_posterior = PoolPosterior(
        torch.arange(60),
        cosines(),
        many(40),
        evaluation=9,
        cache_cross_covariance=True,
        max_exact_labels=20,
    )
    more = pool_posterior.with_labels(many(43))
    assert more.posterior.nystrom_labels is not None
    assert more.posterior.labelled.tolist() == [40, 41, 42]
    back = more.with_labels(many(41))
    assert more.can_update_incrementally(many(41))
    assert back.labels == many(41)
    assert torch.allclose(
        back.posterior.mean, pool_posterior.with_labels(many(41)).posterior.mean, atol=1e-6
    )
    other = {**many(43), 7: (7 + 1) % C, 42: (42 + 1) % C}
    assert more.can_update_incrementally(other)
    fixed = more.with_labels(other)
    assert fixed.posterior.all_labels()[1].argmax(1).tolist() == list(other.values())
    gone = {p: c for p, c in many(43).items() if p != 7}
    assert not more.can_update_incrementally(gone)
    assert not more.can_update_incrementally(many(39))
    anew = more.with_labels(gone)
    exact = PoolPosterior(torch.arange(60), cosines(), gone).posterior
    assert anew.labels == gone
    assert torch.allclose(anew.posterior.mean, exact.mean, atol=2e-2)


def test_shortlist_of_nystrom_posterior_scores_alike():
    pool_posterior = PoolPosterior(
        torch.arange(60),
        cosines(),
        many(40),
        evaluation=9,
        cache_cross_covariance=True,
        max_exact_labels=20,
    )
    short = pool_posterior.build_shortlist("flip", 8)
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
