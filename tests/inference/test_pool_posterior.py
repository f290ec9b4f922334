"""A belief against a posterior conditioned from scratch; positions in, positions out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.acquisition import flip
from labelahead.acquisition.view import view
from labelahead.errors import InputError, NumericalError
from labelahead.gp.posterior import prior
from labelahead.inference.exact import mixture_kernel
from labelahead.inference.pool_posterior import PoolPosterior, drift_note

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
def test_whatever_is_told_it_is_the_posterior_from_scratch(steps, rank, hold):
    belief, labels, classes = (
        PoolPosterior(POINTS, start(rank=rank), evaluation=5, hold=hold),
        {},
        C,
    )
    for step in steps:
        classes = done(step, labels, classes)
        before = belief.posterior.mean.clone()
        after = belief.told(labels, classes)
        assert torch.equal(belief.posterior.mean, before)  # an immutable value
        belief = after
        naive = from_scratch(labels, classes, rank)
        assert torch.allclose(belief.posterior.mean, naive.mean, atol=1e-9)
        assert torch.allclose(belief.posterior.variance(), naive.variance(), atol=1e-9)
        assert belief.posterior.amplitude() == pytest.approx(naive.amplitude())
        assert belief.knows(labels, classes)
        assert not belief.knows({**labels, 40: 0 if labels.get(40) else 1}, classes)
        unlabelled = [p for p in POINTS.tolist() if p not in labels]
        assert POINTS[belief.view.candidates].tolist() == unlabelled
        some = [p for p in labels if p in belief] + unlabelled[:2]
        at = [POINTS.tolist().index(p) for p in some]
        assert torch.allclose(belief.mean(some), naive.mean[at], atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(STEP, max_size=12),
    st.sampled_from([None, 6]),
    st.booleans(),
    st.sampled_from(["flip", "mlmoc", "eer"]),
)
def test_scores_are_those_from_scratch(steps, rank, hold, criterion):
    """Sums over evaluation points are carried along through corrections, undone labels and new
    classes.
    """
    belief, labels, classes = PoolPosterior(POINTS, start(rank=rank), hold=hold), {}, C
    for step in steps:
        classes = done(step, labels, classes)
        belief = belief.told(labels, classes)
        if not len(belief.view.candidates):
            continue
        naive = PoolPosterior(POINTS, start(classes, rank), labels)
        naive.view = view(
            naive.posterior, belief.view.candidates, belief.view.evaluation, baseline="linearised"
        )
        assert torch.allclose(belief.scores(criterion), naive.scores(criterion), atol=1e-7)


@pytest.mark.parametrize("baseline", ["outputs", "linearised"])
def test_told_belief_measures_from_the_linearised_network(baseline):
    belief = PoolPosterior(POINTS, start(), {40: 0, 99: 1}, baseline=baseline)
    assert belief.view.baseline == baseline
    assert belief.told({40: 0, 99: 1}).view.baseline == baseline
    for labels in ({40: 0, 99: 1, 3: 2}, {40: 0, 99: 2}, {40: 0}, {3: 2}, {}):
        assert belief.told(labels).view.baseline == "linearised"


def test_drift_is_the_share_of_candidates_with_another_class():
    belief = PoolPosterior(POINTS, start(), {40: 0, 99: 1, 3: 1}, evaluation=4)
    left = [i for i, p in enumerate(POINTS.tolist()) if p not in (40, 99, 3)]
    post = from_scratch({40: 0, 99: 1, 3: 1})
    differing = sum(int(post.mean[i].argmax()) != int(start().outputs[i].argmax()) for i in left)
    assert 0 < differing < len(left)
    assert belief.drift() == pytest.approx(differing / len(left))
    assert PoolPosterior(POINTS, start()).drift() == 0.0
    assert PoolPosterior(POINTS, start(), dict.fromkeys(POINTS.tolist(), 0)).drift() is None


def test_drift_beyond_a_tenth_is_warned_of():
    assert drift_note(None) is None
    assert drift_note(0.1) is None
    assert "for 38% of the candidates" in drift_note(0.38)
    assert "train longer" in drift_note(0.38)


def test_what_takes_milliseconds():
    belief = PoolPosterior(POINTS, start(), {40: 0, 3: 1, 17: 2})
    assert belief.nearby({40: 0, 3: 1, 17: 2, 8: 0, 7: 1})
    assert belief.nearby({40: 2, 3: 0, 17: 2})
    assert belief.nearby({40: 0, 3: 1})
    assert belief.nearby({})
    assert not belief.nearby({3: 1, 17: 2})
    wide = PoolPosterior(
        POINTS[:4], prior(torch.zeros(4, 2).double(), torch.eye(8).double(), noise=1e-2), {40: 0}
    )
    assert not wide.nearby({40: 1})
    assert torch.allclose(
        wide.told({40: 1}).posterior.mean[0], torch.tensor([0, 1 / 1.01]).double()
    )


def test_labels_given_at_once_are_as_told():
    labels = {17: 0, 1000: 2, 5: 1}
    assert torch.equal(
        PoolPosterior(POINTS, start(), labels).posterior.mean, from_scratch(labels).mean
    )


def test_best_leaves_out_what_it_is_told_to():
    belief = PoolPosterior(POINTS, start(), {40: 0, 99: 1}, evaluation=6)
    scores = flip(view(belief.posterior, belief.view.candidates, belief.view.evaluation))
    order = POINTS[belief.view.candidates[scores.argsort(descending=True)]].tolist()
    assert belief.ranked("flip") == order
    assert belief.best("flip") == (order[0], pytest.approx(float(scores.max())))
    assert belief.best("flip", without=set(order[:3]))[0] == order[3]
    assert belief.best("flip", without=set(order)) is None


@pytest.mark.parametrize("mode", ["top", "greedy", "sequential"])
def test_picks_are_positions_and_so_is_what_is_asked(mode):
    belief, asked = PoolPosterior(POINTS, start(), {40: 0, 99: 1}), []

    def ask(position):
        asked.append(position)
        return position % C

    positions, scores = belief.pick("flip", 4, torch.Generator(), mode, ask)
    assert set(positions.tolist()) <= set(POINTS.tolist()) - {40, 99}
    assert len(scores) == 4
    assert asked == (positions.tolist() if mode == "sequential" else [])
    if mode == "sequential":  # the same, told one by one
        for position in positions.tolist():
            assert belief.best("flip")[0] == position
            belief = belief.told({**belief.labels, position: position % C})


def test_when_everything_is_labelled_nothing_is_left_but_corrections():
    belief = PoolPosterior(POINTS, start(), {int(p): int(p) % C for p in POINTS})
    assert belief.best("flip") is None
    assert belief.ranked("flip") == []
    assert belief.told({**belief.labels, 40: 2}).labels[40] == 2


def test_what_is_not_in_play_is_said():
    belief = PoolPosterior(POINTS, start())
    assert 40 in belief
    assert 7 not in belief
    with pytest.raises(InputError, match="item 7 is not in play"):
        belief.mean([40, 7])


def test_scores_that_are_no_numbers_are_refused():
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
    belief = PoolPosterior(points, begin, known, evaluation=80, hold=True)
    return belief, known, dict(zip(points.tolist(), truth.tolist(), strict=True))


@pytest.mark.parametrize("criterion", ["flip", "resolve", "mlmoc", "changes"])
@pytest.mark.parametrize("seed", range(4))
def test_a_shortlist_learns_and_scores_as_the_whole_does(seed, criterion):
    belief, labels, truth = chosen_from(seed, 12 + 20 * seed)
    short = belief.shortlist(criterion, 40)
    assert belief.ranked(criterion, 40) == short.ranked(criterion)
    for _ in range(4):  # several answers before the whole has learnt the first of them
        position, _ = short.best(criterion, ())
        labels[position] = truth[position]
        short, whole = short.told(labels), belief.told(labels)
        left = short.points[short.view.candidates]
        mine, theirs = short.scores(criterion), whole.scores(criterion)
        there = {
            int(p): float(s)
            for p, s in zip(whole.points[whole.view.candidates], theirs, strict=True)
        }
        expected = torch.tensor([there[int(p)] for p in left], dtype=torch.float64)
        assert torch.allclose(mine, expected, rtol=1e-8, atol=1e-10)
        assert torch.allclose(short.mean(left.tolist()), whole.mean(left.tolist()), atol=1e-10)
        assert short.posterior.amplitude() == pytest.approx(whole.posterior.amplitude(), rel=1e-9)
        assert position not in left.tolist()


def test_the_best_of_a_shortlist_is_the_best_of_all():
    """What an answer makes of the others, the shortlist does not see.

    The item to ask for is nearly always on it.
    """
    same, gaps, asked = 0, [], 0
    for seed in range(12):
        belief, labels, truth = chosen_from(seed, 8 + 4 * seed)
        for _ in range(5):
            position, _ = belief.best("flip", ())
            short = belief.shortlist("flip", 40)
            labels[position] = truth[position]
            belief = belief.told(labels)
            (there, score), (best, most) = (
                short.told(labels).best("flip", ()),
                belief.best("flip", ()),
            )
            same, asked = same + (there == best), asked + 1
            gaps.append((most - score) / most)
    assert same >= 0.9 * asked
    assert max(gaps) < 0.2


def test_a_shortlist_knows_classes_that_are_new_and_refuses_what_it_cannot_take_back():
    belief, labels, _truth = chosen_from(3, 20)
    short = belief.shortlist("flip", 40)
    position, _ = short.best("flip", ())
    labels[position] = 4
    wider, whole = short.told(labels, 5), belief.told(labels, 5)
    left = wider.points[wider.view.candidates].tolist()
    assert torch.allclose(wider.mean(left), whole.mean(left), atol=1e-10)
    del labels[position]
    assert not wider.nearby(labels)
    outside = next(p for p in belief.points.tolist() if p not in short and p not in labels)
    assert short.told({**labels, outside: 1}).labels == {}  # the whole will know it


def cosines(n=60, classes=C):
    rng = torch.Generator().manual_seed(3)
    rows = torch.nn.functional.normalize(torch.randn(n, 5, generator=rng, dtype=torch.float64))
    return prior(
        torch.full((n, classes), 1 / classes), mixture_kernel(rows, (0.5, 0.5, 0.0)), noise=0.05
    )


def many(n):
    return {p: p % C for p in range(n)}


def test_beyond_so_many_labels_they_are_condensed_and_predictions_stay():
    lean, whole = (
        PoolPosterior(torch.arange(60), cosines(), many(40), evaluation=9, hold=True, most=m)
        for m in (20, None)
    )
    assert lean.posterior.settled is not None
    assert whole.posterior.settled is None
    assert torch.allclose(lean.posterior.mean, whole.posterior.mean, atol=2e-2)
    assert lean.labels == whole.labels
    assert lean.knows(many(40), C)
    assert sorted(lean.ranked("flip")) == sorted(whole.ranked("flip"))
    wider = lean.told(many(40), C + 2)
    assert wider.posterior.settled is not None
    assert wider.classes == C + 2
    assert PoolPosterior(torch.arange(60), cosines(), many(20), most=20).posterior.settled is None


def test_condensed_labels_can_be_corrected_added_to_and_taken_back_to_where_they_were_condensed():
    belief = PoolPosterior(torch.arange(60), cosines(), many(40), evaluation=9, hold=True, most=20)
    more = belief.told(many(43))
    assert more.posterior.settled is not None
    assert more.posterior.labelled.tolist() == [40, 41, 42]
    back = more.told(many(41))
    assert more.nearby(many(41))
    assert back.labels == many(41)
    assert torch.allclose(back.posterior.mean, belief.told(many(41)).posterior.mean, atol=1e-6)
    other = {**many(43), 7: (7 + 1) % C, 42: (42 + 1) % C}
    assert more.nearby(other)
    fixed = more.told(other)
    assert fixed.posterior.told()[1].argmax(1).tolist() == list(other.values())
    gone = {p: c for p, c in many(43).items() if p != 7}
    assert not more.nearby(gone)
    assert not more.nearby(many(39))
    anew = more.told(gone)
    exact = PoolPosterior(torch.arange(60), cosines(), gone).posterior
    assert anew.labels == gone
    assert torch.allclose(anew.posterior.mean, exact.mean, atol=2e-2)


def test_a_shortlist_of_condensed_labels_scores_as_they_do():
    belief = PoolPosterior(torch.arange(60), cosines(), many(40), evaluation=9, hold=True, most=20)
    short = belief.shortlist("flip", 8)
    best = belief.ranked("flip", 8)
    assert short.ranked("flip") == best
    label = {best[0]: 1}
    after, of_all = short.told(label), belief.told({**belief.labels, **label})
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
