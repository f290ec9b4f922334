"""Gains of (item, source) pairs against refits and sampling, and the choice by price."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.acquisition import resolve, variance
from labelahead.acquisition.pool_view import view
from labelahead.acquisition.sources import (
    LabelSource,
    SourceView,
    parse_prices,
    select_pairs,
    source_view,
    unbiased_targets,
)
from labelahead.errors import InputError
from tests.support import reference_lookahead as ref
from tests.support.reference_sources import JointGaussian

LABELLED, UNLABELLED = [4, 9, 17], [0, 2, 5, 11, 21]
EVALUATION = [1, 4, 5, 2, 13, 20, 17]
TABLE_TOLERANCE = 1e-4  # of the tabulated gain, for each evaluation point
CAREFUL = LabelSource("anna", 0.1)
CHEAP = LabelSource("llm", 0.001, error_rate=0.25)
USELESS = LabelSource("coin", 0.001, error_rate=2 / 3)  # three classes


@pytest.fixture
def p():
    return ref.problem("dense-scalar", noise=0.1)


def make_view(p, **options) -> SourceView:
    post = p.prior().condition(LABELLED, p.targets[LABELLED])
    return source_view(post, [*UNLABELLED, *LABELLED], EVALUATION, **options)


def relabel(p, errors) -> tuple[SourceView, JointGaussian]:
    """Return a view whose labelled items have uncertain labels, and its twin.

    A label whose error has the variance e is conditioned on with the total noise σ + e. Without
    noise per label the posterior is that of a kernel with e on the diagonal at this item; the
    quantities of f follow from the twin, so only what the view derives from them is tested.
    """
    labels = [(i, p.targets[i], e) for i, e in zip(LABELLED, errors, strict=True)]
    joint = JointGaussian(p, labels)
    at, over = torch.tensor([*UNLABELLED, *LABELLED]), torch.tensor(EVALUATION)
    post = p.prior().condition(LABELLED, p.targets[LABELLED])
    k, n = joint.covariance, joint.n
    noise = torch.tensor([math.inf] * len(UNLABELLED) + list(errors), dtype=torch.float64)
    mean = joint.mean[n + at].topk(2, dim=1).values

    class Known:
        """The posterior of f by the twin."""

        mean = joint.mean[:n]
        noise, scale, classes, width = post.noise, post.scale, post.classes, 1
        amplitude = staticmethod(post.amplitude)

        @staticmethod
        def covariance_block(rows, cols):
            return k[:n, :n][rows][:, cols]

    made = SourceView(
        Known,
        at,
        over,
        k[at][:, over],
        k.diagonal()[at],
        k.diagonal()[over],
        noise,
        mean[:, 0] - mean[:, 1],
        True,
        1.0,
        torch.zeros((0, len(at)), dtype=torch.float64),
    )
    return made, joint


def twin_gains(joint, view, noises, amplitude, *, own=True):
    return torch.tensor(
        [
            [
                sum(
                    joint.gain(int(x), int(j), e, amplitude)
                    for x in view.evaluation
                    if int(x) != int(j)
                )
                + (joint.gain(int(j), int(j), e, amplitude) if own else 0.0)
                for e in noises
            ]
            for j in view.candidates
        ],
        dtype=torch.float64,
    )


def test_gains_of_careful_source_equal_acquisitions(p):
    post = p.prior().condition(LABELLED, p.targets[LABELLED])
    pairs = source_view(post, UNLABELLED, EVALUATION)
    usual = view(post, UNLABELLED, EVALUATION, baseline="linearised")
    ref.close(pairs.gains([CAREFUL], "variance")[:, 0], variance(usual))
    ref.close(pairs.gains([CAREFUL])[:, 0], resolve(usual))


@pytest.mark.parametrize("errors", [(0.0, 0.0, 0.0), (0.3, 2.0, 0.0)])
def test_gains_equal_refit_with_the_noise_of_the_pair(p, errors):
    pairs, joint = relabel(p, errors)
    sources = [CAREFUL, CHEAP, USELESS]
    noises = [pairs.absolute_noise(s) for s in sources]
    amplitude = pairs.posterior.amplitude()
    naive = twin_gains(joint, pairs, noises, amplitude)
    assert float((pairs.gains(sources) - naive).abs().max()) <= TABLE_TOLERANCE * len(EVALUATION)
    fast = pairs.gains(sources, "variance")
    for row, j in enumerate(pairs.candidates.tolist()):
        for column, e in enumerate(noises):
            fall = joint.explain(j, e)
            others = sum(float(fall[x]) for x in EVALUATION if x != j)
            assert float(fast[row, column]) == pytest.approx(others + float(fall[joint.n + j]))


def test_condition_equals_refit_with_all_labels(p):
    """Also a second and a third label of the same item."""
    pairs, _ = relabel(p, (0.3, 2.0, 0.0))
    labels = [(i, p.targets[i], e) for i, e in zip(LABELLED, (0.3, 2.0, 0.0), strict=True)]
    for candidate, source in ((1, CHEAP), (1, CHEAP), (6, CHEAP), (3, CAREFUL), (1, CAREFUL)):
        noise, position = pairs.absolute_noise(source), int(pairs.candidates[candidate])
        labels.append((position, p.targets[position], noise))
        pairs, joint = pairs.condition(candidate, source), JointGaussian(p, labels)
        k, n = joint.covariance, joint.n
        ref.close(pairs.cross, k[pairs.candidates][:, pairs.evaluation])
        ref.close(pairs.variance, k.diagonal()[pairs.candidates])
        ref.close(pairs.evaluation_variance, k.diagonal()[pairs.evaluation])
        ref.close(pairs.value_variance, k.diagonal()[n + pairs.candidates])
        covariance = pairs.retained[:, None] * pairs.cross
        others = pairs.candidates[:, None] != pairs.evaluation
        naive = k[n + pairs.candidates][:, pairs.evaluation]
        ref.close(covariance[others], naive[others])


def test_own_gap_is_that_of_the_true_value(p):
    """A careful label settles its item, whatever f is there."""
    pairs = make_view(p, include_candidate=True)
    joint = JointGaussian(p, [(i, p.targets[i], 0.0) for i in LABELLED])
    top = joint.mean[joint.n + pairs.candidates].topk(2, dim=1).values
    ref.close(pairs.own_gap, top[:, 0] - top[:, 1])
    assert bool((pairs.gains([CAREFUL, CHEAP])[len(UNLABELLED) :] == 0).all())


def test_resolve_of_a_pair_equals_sampling(p):
    """Draw f, the true value and the label from their joint Gaussian; count wrong predictions."""
    pairs, joint = relabel(p, (0.3, 2.0, 0.0))
    j, x, noise, a2 = 9, 5, pairs.absolute_noise(CHEAP), pairs.posterior.amplitude()
    n, rng, draws = joint.n, torch.Generator().manual_seed(1), 400_000
    at = [x, n + j]
    lower = torch.linalg.cholesky(joint.covariance[at][:, at])
    z = torch.randn(draws, 2, 2, generator=rng, dtype=torch.float64) @ lower.T * math.sqrt(a2)
    first, second = joint.mean[x].topk(2).indices
    difference = z[:, 0] - z[:, 1]  # of the two classes: (draws, 2), at x and of g at j
    gap = float(joint.mean[x, first] - joint.mean[x, second]) + difference[:, 0]
    errors = torch.randn(draws, generator=rng, dtype=torch.float64) * math.sqrt(2 * a2 * noise)
    label = difference[:, 1] + errors
    slope = float(joint.covariance[x, n + j]) / (float(joint.covariance[n + j, n + j]) + noise)
    after = float(joint.mean[x, first] - joint.mean[x, second]) + slope * label
    fall = float((gap < 0).double().mean() - ((gap < 0) != (after < 0)).double().mean())
    assert fall == pytest.approx(joint.gain(x, j, noise, a2), abs=3e-3)
    alone = replace(
        pairs,
        evaluation=torch.tensor([x]),
        cross=pairs.cross[:, [2]],
        evaluation_variance=pairs.evaluation_variance[[2]],
        include_candidate=False,
    )
    row = pairs.candidates.tolist().index(j)
    assert float(alone.gains([CHEAP])[row, 0]) == pytest.approx(fall, abs=3e-3)


def test_view_reads_the_noise_of_each_label(p):
    """Item 9 has two uncertain labels, item 4 a careful one."""
    errors = {4: [0.0], 9: [0.4, 2.0], 17: [0.7]}
    labels = [(i, p.targets[i], e) for i, each in errors.items() for e in each]
    scale = float(p.kernel.diagonal().mean())
    post = p.prior().condition(
        [i for i, _, _ in labels],
        torch.stack([t for _, t, _ in labels]),
        noise=[(p.sigma + e) / scale for _, _, e in labels],
        allow_labelled=True,
    )
    # Two labels of an item share δ, which independent noises do not: combine them first.
    both = 1 / (1 / 0.4 + 1 / 2.0)
    single = p.prior().condition(
        [4, 9, 17], p.targets[[4, 9, 17]], noise=[(p.sigma + e) / scale for e in (0, both, 0.7)]
    )
    pairs = source_view(single, [*UNLABELLED, *LABELLED], EVALUATION)
    joint = JointGaussian(p, labels)
    ref.close(pairs.cross, joint.covariance[pairs.candidates][:, EVALUATION])
    ref.close(pairs.value_variance, joint.covariance.diagonal()[joint.n + pairs.candidates])
    top = joint.mean[joint.n + pairs.candidates].topk(2, dim=1).values
    ref.close(pairs.own_gap, top[:, 0] - top[:, 1])
    repeated = source_view(post, [0, *LABELLED]).label_noise
    assert repeated.tolist() == pytest.approx([math.inf, 0.0, both, 0.7])


# --- Error rate -> noise


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("error_rate", [0.1, 0.4])
def test_noise_of_error_rate_equals_simulation(classes, error_rate):
    """The targets of an unreliable source are unbiased, and their error has the stated variance."""
    rng, draws = torch.Generator().manual_seed(0), 200_000
    truth = torch.randint(classes, (draws,), generator=rng)
    shift = torch.randint(1, classes, (draws,), generator=rng)
    wrong = torch.rand(draws, generator=rng) < error_rate
    label = torch.where(wrong, (truth + shift) % classes, truth)
    targets = unbiased_targets(label, classes, error_rate)
    one_hot = torch.nn.functional.one_hot(truth, classes).double()
    mean = torch.stack([targets[truth == c].mean(0) for c in range(classes)])
    assert float((mean - torch.eye(classes).double()).abs().max()) < 0.05
    relative = float((targets - one_hot).square().mean() / (one_hot - 1 / classes).square().mean())
    expected = LabelSource("llm", error_rate=error_rate).relative_noise(classes)
    assert relative == pytest.approx(expected, rel=0.03)


def test_noise_of_careful_source_is_zero_and_of_guessing_source_infinite():
    assert CAREFUL.relative_noise(5) == 0.0
    assert LabelSource("coin", error_rate=0.8).relative_noise(5) == math.inf
    assert LabelSource("file", noise=0.7, error_rate=0.8).relative_noise(5) == 0.7
    with pytest.raises(InputError, match="wrong more often"):
        unbiased_targets(torch.tensor([0]), 2, 0.5)


# --- Choice


@settings(max_examples=10, deadline=None)
@given(st.floats(1e-6, 1e6), st.integers(0, 20))
def test_prices_in_any_unit_give_the_same_choice(unit, seed):
    p = ref.problem("dense-scalar", seed=seed, noise=0.1)
    sources = [CAREFUL, CHEAP]
    scaled = [LabelSource(s.name, s.price * unit, s.error_rate) for s in sources]
    pairs = make_view(p)
    one = select_pairs(pairs, sources, 4, value=0.05)
    other = select_pairs(pairs, scaled, 4, value=0.05 * unit)
    assert [(q.position, q.source) for q in one] == [(q.position, q.source) for q in other]


def test_free_and_careful_source_takes_everything(p):
    chosen = select_pairs(make_view(p), [CHEAP, LabelSource("oracle", 0.0)], 4)
    assert {q.source for q in chosen} == {"oracle"}
    assert len({q.position for q in chosen}) == 4


def test_useless_source_is_never_asked(p):
    pairs = make_view(p)
    assert float(pairs.gains([USELESS]).abs().max()) == 0.0
    free = LabelSource("coin", 0.0, error_rate=2 / 3)
    assert {q.source for q in select_pairs(pairs, [free, CAREFUL], 3)} == {"anna"}
    assert select_pairs(pairs, [free], 3) == []


def test_item_with_uncertain_label_is_offered_to_better_source(p):
    pairs, _ = relabel(p, (0.0, 2.0, 0.0))
    labelled = torch.arange(len(UNLABELLED), len(UNLABELLED) + len(LABELLED))
    gains = pairs.gains([CAREFUL, CHEAP])[labelled]
    assert bool((gains[[0, 2]] == 0).all())  # careful labels are final
    assert float(gains[1, 0]) > float(gains[1, 1]) > 0
    unlabelled = pairs.gains([CAREFUL])[: len(UNLABELLED), 0]
    chosen = select_pairs(pairs, [CAREFUL], 8)
    assert {q.position for q in chosen} == {*UNLABELLED, LABELLED[1]}
    assert chosen[0].gain == pytest.approx(max(float(unlabelled.max()), float(gains[1, 0])))


def test_selection_gives_an_item_to_two_sources_if_it_pays(p):
    pairs = source_view(
        p.prior().condition(LABELLED, p.targets[LABELLED]), [0], [0, 1, 2], include_candidate=True
    )
    chosen = select_pairs(pairs, [CAREFUL, CHEAP], 5)
    # Nobody is asked twice about an item.
    assert [q.source for q in chosen] == ["llm", "anna"]
    assert [q.source for q in select_pairs(pairs, [CAREFUL, CHEAP], 5, given=[(0, "llm")])] == [
        "anna"
    ]


def test_value_stops_when_no_pair_is_worth_its_price(p):
    pairs = make_view(p)
    gain = select_pairs(pairs, [CAREFUL], 1)[0].gain
    points = 100 * gain / len(EVALUATION)
    assert select_pairs(pairs, [CAREFUL], 8, value=0.999 * CAREFUL.price / points) == []
    bought = select_pairs(pairs, [CAREFUL], 8, value=1.001 * CAREFUL.price / points)
    assert len(bought) >= 1
    for q in bought:
        assert 1.001 * CAREFUL.price / points * 100 * q.gain / len(EVALUATION) >= q.price


def test_budget_is_never_exceeded(p):
    pairs = make_view(p)
    assert len(select_pairs(pairs, [CAREFUL], 8, budget=0.3)) == 3  # 0.1 three times
    chosen = select_pairs(pairs, [CAREFUL, LabelSource("b", 0.07)], 8, budget=0.25)
    assert sum(q.price for q in chosen) <= 0.25
    assert select_pairs(pairs, [CAREFUL], 8, budget=0.0) == []


def test_selection_conditions_pick_by_pick(p):
    pairs = make_view(p)
    chosen = select_pairs(pairs, [CAREFUL], 3, gain="variance")
    for q in chosen:
        row = pairs.candidates.tolist().index(q.position)
        gains = pairs.gains([CAREFUL], "variance")[:, 0]
        assert row == int(gains.argmax())
        assert q.gain == pytest.approx(float(gains[row]))
        pairs = pairs.condition(row, CAREFUL)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LabelSource(""), "name of a source is empty"),
        (lambda: LabelSource("a", -1), "price of a is -1"),
        (lambda: LabelSource("a", math.nan), "price of a is nan"),
        (lambda: LabelSource("a", error_rate=1.5), "error_rate of a is 1.5"),
        (lambda: LabelSource("a", noise=-1.0), "noise of a is -1"),
        (lambda: parse_prices("anna"), "NAME=PRICE"),
        (lambda: parse_prices("anna=x"), "NAME=PRICE"),
        (lambda: parse_prices("anna=-1"), "NAME=PRICE"),
        (lambda: parse_prices("anna=nan"), "NAME=PRICE"),
        (lambda: parse_prices("anna=1,anna=2"), "two prices"),
        (lambda: parse_prices("ana=1", ["anna", "llm"]), "did you mean 'anna'"),
    ],
)
def test_bad_sources_and_prices_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_bad_selections_are_refused(p):
    pairs = make_view(p)
    for sources, n, options, message in (
        ([], 1, {}, "at least one"),
        ([CAREFUL, CAREFUL], 1, {}, "different names"),
        ([CAREFUL], 0, {}, "0 labels requested"),
        ([CAREFUL], 1, {"budget": -1.0}, "budget is -1"),
        ([CAREFUL], 1, {"value": math.nan}, "value is nan"),
        ([CAREFUL], 1, {"value": 1.0, "gain": "variance"}, "needs gain 'resolve'"),
        ([CAREFUL], 1, {"gain": "flip"}, "gain is 'flip'"),
    ):
        with pytest.raises(InputError, match=message):
            select_pairs(pairs, sources, n, **options)
    full = ref.problem("dense-full").prior()
    with pytest.raises(InputError, match="scalar kernel"):
        source_view(full, [0, 1])
    with pytest.raises(InputError, match="label_noise has shape"):
        make_view(p, label_noise=torch.zeros(2))
