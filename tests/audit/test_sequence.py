"""Betting confidence sequences: brute force, a naive twin, and coverage."""

from itertools import pairwise, permutations

import numpy as np
import pytest

from labelahead.audit.plan import AuditPlan, build_plan
from labelahead.audit.sequence import (
    HALF_WIDTHS,
    MAX_LOSS,
    MIN_VARIANCE,
    PRIOR_DRAWS,
    TARGET_WEALTH,
    Indicator,
    RatioSequence,
)
from labelahead.errors import InputError
from tests.audit.test_plan import order_probability

RNG = np.random.default_rng(0)


def make_sequence(plan, a, b=None, predicted=None, part=None, n=None, **more):
    """Return the sequence of true values a (and b) of all items."""
    draws = plan.list_draws(len(plan) if n is None else n, part)
    predicted = plan.error if predicted is None else predicted
    numerator = Indicator.of(a[draws.positions], predicted[draws.members])
    denominator = (
        None if b is None else Indicator.of(b[draws.positions], np.full(len(draws.members), 0.5))
    )
    return RatioSequence(draws, numerator, denominator, **more)


@pytest.mark.parametrize("kind", ["mean", "part", "ratio"])
def test_expected_wealth_of_the_true_ratio_is_one_over_all_orders(kind):
    error = np.array([0.05, 0.1, 0.6, 0.3, 0.9])
    strata, shares = np.array([0, 0, 1, 1, 1]), np.array([0.35, 0.65])
    a = np.array([0.0, 1, 1, 0, 0])
    b = np.array([1.0, 1, 1, 0, 1]) if kind == "ratio" else None
    part = np.array([True, True, False, True, True]) if kind == "part" else None
    inside = slice(None) if part is None else part
    truth = a[inside].sum() / (a[inside].size if b is None else b.sum())
    expected, total = np.zeros((2, int(np.sum(part)) if part is not None else 5)), 0.0
    for order in permutations(range(5)):
        p = order_probability(order, strata, shares)
        plan = AuditPlan(error, strata, shares, np.array(order), 0)
        wealth = np.exp(make_sequence(plan, a, b, part=part).log_wealth([truth]))[:, :, 0]
        expected, total = expected + p * wealth, total + p
    assert total == pytest.approx(1)
    assert expected == pytest.approx(np.ones_like(expected))


def naive_log_wealth(plan, a, ratio, target):
    """Compute both log wealths draw by draw, item by item, for a mean."""
    stakes = {target: TARGET_WEALTH}
    others = [w for w in HALF_WIDTHS if abs(np.log(w / target)) > 0.3]
    stakes |= {w: (1 - TARGET_WEALTH) / len(others) for w in others}
    N, H = len(plan), plan.n_strata
    left, found = list(range(N)), 0.0
    errors = [[] for _ in range(H)]
    wealth = np.array([[share, share] for share in stakes.values()])
    rows = []
    for item in plan.order:
        groups = [[i for i in left if plan.strata[i] == h] for h in range(H)]
        open_share = sum(plan.shares[h] for h in range(H) if groups[h])
        q = {i: plan.shares[h] / open_share / len(groups[h]) for h in range(H) for i in groups[h]}
        shift = [sum(e) / (len(e) + PRIOR_DRAWS) for e in errors]
        guess = {i: plan.error[i] + shift[plan.strata[i]] for i in left}
        known = found + sum(guess.values()) - ratio * N
        variance = floor = 0.0
        low, high = 0.0, 0.0
        for h in range(H):
            if groups[h]:
                whole = plan.error[plan.strata == h]
                prior = (whole * (1 - whole)).mean()
                second = PRIOR_DRAWS * prior + sum(e * e for e in errors[h])
                second = second / (PRIOR_DRAWS + len(errors[h]))
                weight = 1 / q[groups[h][0]]
                variance += weight * len(groups[h]) * second
                floor += weight * len(groups[h]) * MIN_VARIANCE
                low = min(low, weight * (-ratio - (whole.max() - ratio) - shift[h]))
                high = max(high, weight * (1 - ratio - (whole.min() - ratio) - shift[h]))
        gain = known + (a[item] - guess[item]) / q[item]
        for j, width in enumerate(stakes):
            stake = width * N / max(variance, floor)
            up = min(stake, MAX_LOSS / max(-(known + low), 1e-12))
            down = min(stake, MAX_LOSS / max(known + high, 1e-12))
            wealth[j] *= 1 + up * gain, 1 - down * gain
        rows.append(np.log(wealth.sum(0)))
        h = plan.strata[item]
        errors[h].append(a[item] - plan.error[item])
        found += a[item]
        left.remove(item)
    return np.array(rows).T


def test_wealth_equals_a_naive_computation():
    error = RNG.beta(0.5, 2, 60)
    plan = build_plan(error, seed=1, max_strata=3)
    a = (RNG.random(60) < error).astype(float)
    for ratio in (0.05, a.mean(), 0.4):
        fast = make_sequence(plan, a, target=0.03).log_wealth([ratio])
        naive = naive_log_wealth(plan, a, ratio, 0.03)
        assert np.array(fast)[:, :, 0] == pytest.approx(naive, rel=1e-8, abs=1e-8)


def test_interval_after_all_draws_is_the_true_mean():
    error = RNG.beta(0.5, 3, 300)
    a = (RNG.random(300) < error).astype(float)
    found = make_sequence(build_plan(error), a).find_interval()
    assert (found.low, found.value, found.high) == pytest.approx((a.mean(),) * 3)


def test_interval_of_the_first_draws_does_not_depend_on_later_ones():
    error = RNG.beta(0.5, 3, 400)
    a = (RNG.random(400) < error).astype(float)
    plan = build_plan(error)
    long, short = make_sequence(plan, a), make_sequence(plan, a, n=120)
    assert long.find_interval(draws=120) == short.find_interval()


def test_interval_narrows_with_every_look():
    error = RNG.beta(0.5, 3, 800)
    a = (RNG.random(800) < error).astype(float)
    sequence = make_sequence(build_plan(error), a)
    looks = [sequence.find_interval(draws=n) for n in range(0, 801, 40)]
    assert (looks[0].low, looks[0].high) == (0, 1)
    for before, after in pairwise(looks):
        assert before.low <= after.low + 1e-4
        assert after.high <= before.high + 1e-4


def test_intervals_by_bisection_and_on_the_grid_agree():
    error = RNG.beta(0.5, 3, 500)
    a = (RNG.random(500) < error).astype(float)
    draws = build_plan(error).list_draws(200)
    numerator = Indicator.of(a[draws.positions], error)
    mean = RatioSequence(draws, numerator)
    ratio = RatioSequence(draws, numerator, Indicator.of(np.ones(200), np.ones(500)))
    one, other = mean.find_interval(), ratio.find_interval()
    assert other.low <= one.low + 1e-4 <= other.low + 1 / 200
    assert other.high - 1 / 200 <= one.high - 1e-4 <= other.high


@pytest.mark.parametrize("trust", ["calibrated", "overconfident", "none"])
def test_intervals_contain_the_truth_at_every_look(trust):
    """120 audits of 300 items, looking after every draw: 5 % may miss, at most 10 % by chance."""
    rng, missed = np.random.default_rng(5), 0
    for seed in range(120):
        p = rng.beta(0.2, 1.5, 300)
        a = (rng.random(300) < p).astype(float)
        error = {"calibrated": p, "overconfident": p**3, "none": np.full(300, 0.5)}[trust]
        sequence = make_sequence(build_plan(error, seed=seed), a, n=200)
        missed += np.maximum(*sequence.log_wealth([a.mean()])).max() >= np.log(40)
    assert missed <= 13


def test_good_probabilities_need_fewer_draws_than_none():
    rng = np.random.default_rng(2)
    p = rng.beta(0.1, 1, 4000)
    a = (rng.random(4000) < p).astype(float)
    widths = [
        make_sequence(build_plan(e, seed=0), a, predicted=e, n=400).find_interval().half_width
        for e in (p, np.full(4000, 0.1))
    ]
    assert widths[0] < 0.75 * widths[1]


def test_wrong_values_raise():
    draws = build_plan([0.1] * 30).list_draws(5)
    with pytest.raises(InputError, match="between 0 and 1"):
        Indicator.of([2.0], [0.1])
    with pytest.raises(InputError, match="above its denominator"):
        RatioSequence(
            draws, Indicator.of([1.0] * 5, [0.1] * 30), Indicator.of([0.0] * 5, [0.1] * 30)
        )
    with pytest.raises(InputError, match="expected one of each"):
        RatioSequence(draws, Indicator.of([1.0] * 4, [0.1] * 30))
    with pytest.raises(InputError, match="confidence"):
        RatioSequence(draws, Indicator.of([1.0] * 5, [0.1] * 30)).find_interval(95)
