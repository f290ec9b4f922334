"""Statistics of comparisons against scipy, scikit-posthocs, plain loops and hand calculation."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from labelahead.simulation.comparison import statistics
from labelahead.simulation.comparison.statistics import (
    area_under_curve,
    compare_pairs,
    compute_saving,
    critical_difference,
    labels_to_accuracy,
    mean_ranks,
    nemenyi,
    run_omnibus_test,
    t_interval,
)

LABELS = np.array([10.0, 20.0, 30.0, 40.0])
ACCURACY = st.integers(0, 60).map(lambda i: i / 60)  # as of sixty test items: ties are common
curves = hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.just(4)), elements=ACCURACY)
tables = hnp.arrays(np.float64, st.tuples(st.integers(2, 8), st.integers(3, 5)), elements=ACCURACY)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_t_interval_matches_scipy(values):
    found = t_interval(np.array(values))
    assert found.mean == pytest.approx(np.mean(values))
    spread = stats.sem(values)
    if spread == 0:
        assert found.low == found.high == found.mean
        return
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), spread)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_t_interval_with_one_seed():
    assert t_interval(np.array([0.7])) == statistics.Estimate(0.7, None, None, 1)


def test_area_under_curve_matches_manual_computation():
    # trapezoids of 10, 10 and 20 labels: (0.5+0.7)/2, (0.7+0.7)/2, (0.7+0.9)/2
    found = area_under_curve(np.array([10.0, 20, 30, 50]), np.array([0.5, 0.7, 0.7, 0.9]))
    assert found == pytest.approx((10 * 0.6 + 10 * 0.7 + 20 * 0.8) / 40)
    assert area_under_curve(np.array([10.0]), np.array([[0.5], [0.6]])).tolist() == [0.5, 0.6]


@settings(deadline=None)
@given(curves)
def test_area_under_curve_is_a_mean(accuracy):
    found = area_under_curve(LABELS, accuracy)
    assert np.all(found >= accuracy.min(1) - 1e-12)
    assert np.all(found <= accuracy.max(1) + 1e-12)
    assert area_under_curve(LABELS, accuracy + 0.25) == pytest.approx(found + 0.25)
    assert area_under_curve(LABELS * 3 + 7, accuracy) == pytest.approx(found)


def labels_to_by_hand(labels, accuracy, target):
    best = accuracy[0]
    if best >= target:
        return labels[0]
    for i in range(1, len(labels)):
        if accuracy[i] >= target:
            share = (target - best) / (accuracy[i] - best)
            return labels[i - 1] + share * (labels[i] - labels[i - 1])
        best = max(best, accuracy[i])
    return np.inf


@pytest.mark.parametrize(
    ("accuracy", "target", "wanted"),
    [
        ([0.5, 0.6, 0.7, 0.8], 0.65, 25.0),
        ([0.5, 0.6, 0.7, 0.8], 0.8, 40.0),
        ([0.5, 0.6, 0.7, 0.8], 0.81, np.inf),  # never: no number is made up
        ([0.5, 0.6, 0.7, 0.8], 0.4, 10.0),  # from the start
        ([0.5, 0.9, 0.6, 0.8], 0.85, 10 + 10 * 0.35 / 0.4),  # once reached is reached
        ([0.5, 0.7, 0.6, 0.9], 0.8, 35.0),  # from the best so far, not from the dip
        ([0.5, 0.5, 0.5, 0.5], 0.5, 10.0),
    ],
)
def test_labels_to_accuracy(accuracy, target, wanted):
    assert labels_to_accuracy(LABELS, np.array(accuracy), target) == pytest.approx(wanted)
    assert labels_to_by_hand(LABELS, accuracy, target) == pytest.approx(wanted)


@settings(deadline=None)
@given(curves, ACCURACY)
def test_labels_to_accuracy_matches_plain_loop(accuracy, target):
    found = labels_to_accuracy(LABELS, accuracy, target)
    assert found == pytest.approx([labels_to_by_hand(LABELS, row, target) for row in accuracy])
    assert np.all(labels_to_accuracy(LABELS, accuracy, target + 0.1) >= found)
    assert np.all(found >= 10)


def test_compute_saving_matches_manual_computation():
    reference = np.array([[0.5, 0.6, 0.7, 0.8], [0.4, 0.5, 0.65, 0.7]])  # mean ends at 0.75
    other = reference + 0.1  # mean 0.55 0.65 0.775 0.85: 0.75 at 20 + 10·0.1/0.125
    found = compute_saving(LABELS, reference, other)
    assert found.accuracy == pytest.approx(0.75)
    assert (found.reference, found.other) == pytest.approx((40, 28))
    assert found.ratio == pytest.approx(40 / 28)
    # two seeds: the widened interval reaches from one seed alone to the other
    alone = [compute_saving(LABELS, reference[i : i + 1], other[i : i + 1]).ratio for i in (0, 1)]
    assert (found.ratio_low, found.ratio_high) == pytest.approx((min(alone), max(alone)))
    assert compute_saving(LABELS, reference, other) == found  # the same draws every time
    assert compute_saving(LABELS, reference, other, seed=1).ratio == found.ratio


def test_compute_saving_if_target_is_not_reached():
    reference = np.array([[0.5, 0.6, 0.7, 0.8]] * 3)
    found = compute_saving(LABELS, reference, reference - 0.1)
    assert found.other == np.inf
    assert found.ratio == 0
    assert (found.ratio_low, found.ratio_high) == (0, 0)
    assert found.other_high == np.inf
    same = compute_saving(LABELS, reference, reference)
    assert (same.ratio, same.ratio_low, same.ratio_high) == (1, 1, 1)
    nobody = compute_saving(LABELS, reference, reference, 0.99)
    assert (nobody.reference, nobody.ratio) == (np.inf, 1)
    # sometimes reached: the interval says so at its open end, and holds no NaN
    some = compute_saving(
        LABELS, reference, np.array([[0.5, 0.7, 0.8, 0.9], [0.5] * 4, [0.6] * 4]), 0.62
    )
    assert some.other_high == np.inf
    assert some.ratio_low == 0
    assert some.ratio_high > 1


@settings(max_examples=20, deadline=None)
@given(curves)
def test_compute_saving_with_one_seed(accuracy):
    found = compute_saving(LABELS, accuracy[:1], accuracy[:1])
    assert found.ratio == 1
    assert found.ratio_low is None


def test_bootstrap_interval_coverage():
    rng, hits, trials = np.random.default_rng(5), 0, 80
    rise = np.linspace(0.5, 0.8, 4)
    truth = compute_saving(LABELS, rise[None], rise[None] + 0.06).ratio
    for _ in range(trials):
        noise = 0.015 * rng.standard_normal((2, 6, 4))
        found = compute_saving(LABELS, rise + noise[0], rise + 0.06 + noise[1])
        hits += found.ratio_low <= truth <= found.ratio_high
    assert hits / trials > 0.88


@settings(deadline=None)
@given(tables)
def test_friedman_matches_scipy(values):
    found = run_omnibus_test(values)
    assert found.blocks == len(values)
    if np.ptp(values, axis=1).max() == 0:
        assert found.p == 1
        return
    wanted = stats.friedmanchisquare(*values.T)
    assert (found.statistic, found.p) == pytest.approx((wanted.statistic, wanted.pvalue))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=2, max_size=7))
def test_wilcoxon_matches_all_sign_patterns(gaps):
    found = run_omnibus_test(np.array([[0.5 + g / 100, 0.5] for g in gaps]))
    assert found.test == "Wilcoxon"
    left = np.array([g for g in gaps if g])
    if len(left) < 2:
        assert found.p == 1
        return
    ranks = stats.rankdata(np.abs(left))
    signs = np.array(list(product([-1, 1], repeat=len(left))))
    sums = np.where(signs > 0, ranks, 0).sum(1)
    seen, middle = ranks[left > 0].sum(), ranks.sum() / 2
    wanted = np.mean(np.abs(sums - middle) >= abs(seen - middle) - 1e-9)
    assert found.p == pytest.approx(wanted)


@settings(max_examples=20, deadline=None)
@given(tables)
def test_compare_pairs_matches_scipy_and_manual_holm(values):
    found = compare_pairs([dict(enumerate(column)) for column in values.T])
    k = values.shape[1]
    assert [(p.first, p.second) for p in found] == list(combinations(range(k), 2))
    for pair in found:
        one, two = values[:, pair.first], values[:, pair.second]
        assert 0 <= pair.p <= 1
        assert not np.isnan(pair.p)
        assert pair.difference.mean == pytest.approx((one - two).mean())
        if not pair.constant:
            assert pair.p == pytest.approx(stats.ttest_rel(one, two).pvalue)
    order = sorted(range(len(found)), key=lambda i: found[i].p)
    running = 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, found[i].p * (len(found) - rank)))
        assert found[i].holm == pytest.approx(running)


def test_compare_pairs_uses_common_seeds():
    columns = [{0: 0.5, 1: 0.6, 2: 0.9}, {1: 0.5, 2: 0.7, 3: 0.1}, {3: 0.2}]
    (found,) = compare_pairs(columns)  # the third shares one seed with the second: no test
    assert (found.first, found.second, found.difference.n) == (0, 1, 2)
    assert found.difference.mean == pytest.approx(0.15)
    assert found.p == pytest.approx(stats.ttest_rel([0.6, 0.9], [0.5, 0.7]).pvalue)
    assert compare_pairs([{0: 1.0}, {0: 0.5}]) == []


def test_compare_pairs_with_constant_differences():
    same, above = {i: 0.5 + i / 10 for i in range(4)}, {i: 0.6 + i / 10 for i in range(4)}
    (pair,) = compare_pairs([same, same])
    assert (pair.p, pair.holm, pair.constant) == (1, 1, True)
    (pair,) = compare_pairs([above, same])
    assert pair.p == pytest.approx(2 * 0.5**4)  # a t-test would say 0


@settings(max_examples=40, deadline=None)
@given(tables)
def test_ranks_and_nemenyi_match_libraries(values):
    import pandas as pd
    import scikit_posthocs as posthocs

    wanted = pd.DataFrame(values).rank(axis=1, ascending=False).mean(axis=0)
    assert mean_ranks(values) == pytest.approx(wanted.to_numpy())
    p = nemenyi(values)
    assert p == pytest.approx(posthocs.posthoc_nemenyi_friedman(values).to_numpy())
    assert not np.isnan(p).any()
    # the diagram's bar says the same as the p-values
    gap = np.abs(mean_ranks(values)[:, None] - mean_ranks(values))
    critical = critical_difference(values.shape[1], len(values))
    clear = np.abs(gap - critical) > 1e-3
    assert np.array_equal((p < 0.05)[clear], (gap > critical)[clear])


def test_critical_difference_matches_demsar():
    # Demšar 2006, section 3.2.2: q = 2.569 for four, 14 data sets; Table 5a: 2.728 for five
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(5, 30) == pytest.approx(2.728 * (5 * 6 / (6 * 30)) ** 0.5, abs=1e-3)


def test_t_interval_of_accuracies_stays_below_one():
    values = np.array([0.99, 1.0, 1.0])
    free, bounded = t_interval(values), t_interval(values, share=True)
    assert free.high > 1
    assert (bounded.mean, bounded.low, bounded.high) == (free.mean, free.low, 1.0)
    assert t_interval(1 - values, share=True).low == 0.0
