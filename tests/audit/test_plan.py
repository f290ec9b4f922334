"""The plan of an audit: strata, allocation and the random order with known probabilities."""

from collections import Counter
from itertools import pairwise, permutations

import numpy as np
import pytest

from labelahead.audit.plan import AuditPlan, build_plan
from labelahead.errors import InputError

RNG = np.random.default_rng(0)


def test_order_holds_every_item_once_and_depends_on_the_seed_alone():
    error = RNG.beta(0.3, 2, 500)
    one, same, other = (build_plan(error, seed=seed) for seed in (3, 3, 4))
    assert sorted(one.order.tolist()) == list(range(500))
    assert (one.order == same.order).all()
    assert (one.order != other.order).any()


def test_strata_are_ordered_by_error_and_large_enough():
    error = RNG.beta(0.2, 2, 2000)
    rows = build_plan(error).describe_strata()
    assert len(rows) > 3
    assert all(a.high < b.low for a, b in pairwise(rows))
    assert min(row.items for row in rows) >= 20
    assert sum(row.items for row in rows) == 2000


def test_draws_prefer_strata_with_uncertain_items_and_leave_none_out():
    rows = build_plan([0.001] * 5000 + [0.5] * 100).describe_strata()
    assert rows[1].share / 100 > 4 * rows[0].share / 5000
    assert min(row.share for row in build_plan([0.5] * 10000 + [0.0] * 20).describe_strata()) > 0.01


def test_equal_errors_give_one_stratum():
    assert build_plan([0.1] * 50).n_strata == 1


def test_frequencies_of_orders_equal_their_probabilities():
    strata, shares = np.array([0, 0, 1, 1]), np.array([0.3, 0.7])
    from labelahead.audit.plan import _draw_order

    counts = Counter(
        tuple(_draw_order(strata, shares, np.random.default_rng(i)).tolist()) for i in range(3000)
    )
    for order in permutations(range(4)):
        p = order_probability(order, strata, shares)
        assert counts[order] / 3000 == pytest.approx(p, abs=5 * np.sqrt(p / 3000))


def order_probability(order, strata, shares) -> float:
    """Return the probability of an order, draw by draw."""
    left, p = list(range(len(strata))), 1.0
    for item in order:
        open_strata = {int(strata[i]) for i in left}
        h = strata[item]
        p *= shares[h] / sum(shares[g] for g in open_strata)
        p /= sum(strata[i] == h for i in left)
        left.remove(item)
    return p


def test_draws_of_a_part_have_the_probabilities_of_the_pool_given_the_part():
    error, strata = np.array([0.1, 0.1, 0.1, 0.4, 0.4]), np.array([0, 0, 0, 1, 1])
    plan = AuditPlan(error, strata, np.array([0.25, 0.75]), np.array([3, 0, 4, 2, 1]), 0)
    part = np.array([True, True, False, False, True])
    draws = plan.list_draws(5, part)
    assert draws.positions.tolist() == [0, 4, 1]
    # before the draw of item 0: items 0, 1, 2 and 4 are left; each of stratum 0 has 0.25/3
    weights = np.array([2 * 0.25 / 3, 0.75])
    assert draws.chances[0] == pytest.approx(weights / weights.sum())
    assert draws.remaining.tolist() == [[2, 1], [1, 1], [1, 0]]


@pytest.mark.parametrize("error", [[], [0.1, 1.2], [float("nan")]])
def test_bad_probabilities_raise(error):
    with pytest.raises(InputError, match="expected"):
        build_plan(error)
