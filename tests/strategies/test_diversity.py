"""Each baseline's arithmetic against a plain re-implementation, in float64."""

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.errors import MissingExtra
from labelahead.seeds import make_generator
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.context import QueryContext
from labelahead.strategies.diversity import (
    DROPOUT_PASSES,
    DROPOUT_RATE,
    choose_ball_radius,
    cluster_points,
    cover_points,
    find_unstable,
    herd_points,
    k_centre,
    k_means_pp,
    select_central,
    select_typical,
)
from labelahead.strategies.query import propose
from tests.support.campaigns import blobs, labelled_pool, own
from tests.support.tensors import draw_normal, fit_exact


def test_missing_library_raises_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(
        MissingExtra, match=r"a strategy that clusters needs sklearn.*labelahead\[app\]"
    ):
        cluster_points(draw_normal(8, 2), 2, make_generator(0))


@pytest.mark.parametrize("centres", [0, 1, 5])
def test_k_centre_selects_farthest_point(centres):
    x = draw_normal(40, 6)
    queried, distances_found = k_centre(x[centres:], x[:centres], 8)
    centres_so_far = list(range(centres))
    for step, (at, distance) in enumerate(
        zip(queried.tolist(), distances_found.tolist(), strict=True)
    ):
        if not centres_so_far:
            centres_so_far.append(at)
            continue
        distances = torch.cdist(x, x[centres_so_far]).amin(1)
        assert math.isclose(distance, float(distances.max()), rel_tol=1e-9), step
        assert int(distances.argmax()) == at + centres
        centres_so_far.append(at + centres)


def select_k_means_pp_densely(r, h, q, rng):
    g = (r[:, :, None] * h[:, None, :]).flatten(1)
    queried = [int(g.square().sum(1).argmax())]
    while len(queried) < q:
        away = torch.cdist(g, g[queried]).square().amin(1)
        away[queried] = 0
        queried.append(int(torch.multinomial(away, 1, generator=rng)))
    return queried


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_badge_matches_explicit_gradients(seed):
    r, h = draw_normal(30, 4, seed=seed), draw_normal(30, 5, seed=seed + 1)
    found, _ = k_means_pp(r, h, 12, make_generator(seed, "x"))
    assert found.tolist() == select_k_means_pp_densely(r, h, 12, make_generator(seed, "x"))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_badge_never_repeats_an_index(seed, distinct):
    r, h = draw_normal(distinct, 3, seed=seed), draw_normal(distinct, 4, seed=seed)
    copies = torch.arange(20) % distinct
    found, _ = k_means_pp(r[copies], h[copies], 20, make_generator(seed, "x"))
    assert sorted(found.tolist()) == list(range(20))
    assert len(set((found[:distinct] % distinct).tolist())) == distinct  # copies come last


def test_cover_points_is_greedy_maximum_coverage():
    x = draw_normal(60, 2)
    near = torch.cdist(x, x) <= 0.6
    queried, scores = cover_points(x, 5, 10, 0.6)
    covered = near[:5].any(0)
    for at, score in zip(queried.tolist(), scores.tolist(), strict=True):
        gains = (near & ~covered).sum(1)
        gains[:5] = -1
        assert at >= 5
        assert int(gains[at]) == score
        if score:
            assert score == int(gains.max())
        covered |= near[at]


def test_choose_ball_radius_keeps_balls_pure():
    centres = 6 * draw_normal(4, 3, seed=1)
    x = centres[torch.arange(200) % 4] + 0.3 * draw_normal(200, 3)
    radius = choose_ball_radius(x, 4, make_generator(0, "x"))
    group = torch.arange(200) % 4
    near = torch.cdist(x, x) <= radius
    pure = [(group[row] == group[i]).all() for i, row in enumerate(near)]
    assert sum(pure) / 200 >= 0.95
    assert near.sum(1).double().mean() > 20  # the radius is not too small


def test_select_typical_prefers_clusters_without_labels():
    centres = 8 * draw_normal(5, 3, seed=1)
    x = centres[torch.arange(150) % 5] + 0.5 * draw_normal(150, 3)
    x = torch.cat([x[:2], x])  # two labelled: clusters 0 and 1
    queried, _ = select_typical(x, 2, 3, make_generator(0, "x"))
    kinds = ((queried - 2) % 5).tolist()
    assert sorted(kinds) == [2, 3, 4]
    for at, kind in zip(queried.tolist(), kinds, strict=True):
        members = x[2:][torch.arange(150) % 5 == kind]
        near = torch.cdist(x[[at]], members)[0].topk(21, largest=False).values[1:].mean()
        every = torch.cdist(members, members).topk(21, largest=False).values[:, 1:].mean(1)
        assert math.isclose(float(near), float(every.min()), rel_tol=1e-9)


@pytest.mark.parametrize("labelled", [0, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_herding_selects_largest_coverage_gain(labelled, weighted):
    rng = torch.Generator().manual_seed(labelled)
    points = torch.randn(25, 4, generator=rng, dtype=torch.float64)
    point_weights = (
        torch.rand(25 - labelled, generator=rng, dtype=torch.float64)
        if weighted
        else torch.ones(25 - labelled)
    )
    order, scores = herd_points(points, labelled, 5, point_weights.double())
    units = points / points.norm(dim=1, keepdim=True)
    k = torch.exp(-torch.cdist(units, units).square())
    chosen = list(range(labelled))

    def coverage(rows):
        best = k[labelled:][:, rows].amax(1) if rows else torch.zeros(25 - labelled).double()
        return float(best @ point_weights.double())

    for item, score in zip(order.tolist(), scores.tolist(), strict=True):
        gains = {
            i: coverage([*chosen, labelled + i]) - coverage(chosen) for i in range(25 - labelled)
        }
        assert gains[item] == pytest.approx(max(gains.values()))
        assert score == pytest.approx(gains[item])
        chosen.append(labelled + item)


def test_find_unstable_selects_items_changing_in_most_passes():
    predicted = torch.tensor([0, 1, 2, 0, 1])
    dropped = torch.tensor(
        [[0, 2, 2, 1, 0], [1, 2, 2, 1, 1], [0, 2, 0, 0, 2], [0, 1, 1, 1, 1]]
    )  # 1, 3, 2, 3, 2 of 4
    assert find_unstable(predicted, dropped, 1).tolist() == [1, 3]
    assert find_unstable(predicted, dropped, 4).tolist() == [
        1,
        3,
        2,
        4,
    ]  # too few: fill with the next most unstable items


def test_select_central_returns_nearest_to_cluster_means():
    x = draw_normal(60, 3)
    queried, sizes = select_central(x, 5, make_generator(7))
    group = cluster_points(x, 5, make_generator(7))
    assert sizes.tolist() == sorted(torch.bincount(group).tolist(), reverse=True)
    for at, size in zip(queried.tolist(), sizes.tolist(), strict=True):
        members = (group == group[at]).nonzero()[:, 0].tolist()
        assert len(members) == size
        mean = sum(x[i] for i in members) / len(members)
        assert at == min(members, key=lambda i: float((x[i] - mean).norm()))


@pytest.mark.parametrize("labels", [0, 9])
@pytest.mark.parametrize("kind", ["network", "exact"])
def test_dropquery_clusters_unstable_items(kind, labels):
    x, y = blobs(70)
    x = (x + 1.5 * draw_normal(*x.shape)).double()
    pool = labelled_pool(y, labels)
    model = own().double().eval() if kind == "network" else fit_exact(x, y, pool.labelled).model
    query = propose(model, x, pool, 5, "dropquery", seed=2)
    context = QueryContext.from_pool(model, x, pool, QueryConfig("dropquery"), 5, seed=2)
    rng = make_generator(2, "pick", labels)
    positions = context.candidates
    if labels:
        others = [
            context.fitted.predict_with_dropout(positions, DROPOUT_RATE, rng).argmax(1)
            for _ in range(DROPOUT_PASSES)
        ]
        predicted = context.fitted.outputs(positions).argmax(1)
        changes = [sum(int(o[i] != predicted[i]) for o in others) for i in range(len(positions))]
        assert sum(m >= 2 for m in changes) > 5
        positions = positions[
            sorted((i for i in range(len(positions)) if changes[i] >= 2), key=lambda i: -changes[i])
        ]
    points = context.fitted.embedding(positions)
    order, sizes = select_central(points / points.norm(dim=1, keepdim=True), 5, rng)
    assert query.positions.tolist() == positions[order].tolist()
    assert query.scores.tolist() == sizes.tolist()
