"""Each baseline's arithmetic against a plain re-implementation, in float64."""

import itertools
import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from labelahead.errors import InputError, MissingExtra, ModelError
from labelahead.inference.exact import ExactLearner, ExactModel, mix_kernels
from labelahead.models import build_model
from labelahead.models.training import Training
from labelahead.models.training.forward import compute_penultimate_features, predict_with_dropout
from labelahead.ntk import kernel
from labelahead.seeds import make_generator
from labelahead.strategies import STRATEGIES, find_strategy
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.bayesian import bald, batch_bald
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
from labelahead.strategies.fisher import RIDGE, bait
from labelahead.strategies.query import propose
from labelahead.strategies.uncertainty import expected_gradient_length
from tests.support.campaigns import blobs, labelled_pool, own


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def distributions(*shape, seed=0):
    return torch.softmax(2 * normal(*shape, seed=seed), -1)


def test_missing_library_raises_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(
        MissingExtra, match=r"a strategy that clusters needs sklearn.*labelahead\[app\]"
    ):
        cluster_points(normal(8, 2), 2, make_generator(0))


@pytest.mark.parametrize("centres", [0, 1, 5])
def test_k_centre_selects_farthest_point(centres):
    x = normal(40, 6)
    picked, reach = k_centre(x[centres:], x[:centres], 8)
    known = list(range(centres))
    for step, (at, far) in enumerate(zip(picked.tolist(), reach.tolist(), strict=True)):
        if not known:
            known.append(at)
            continue
        distances = torch.cdist(x, x[known]).amin(1)
        assert math.isclose(far, float(distances.max()), rel_tol=1e-9), step
        assert int(distances.argmax()) == at + centres
        known.append(at + centres)


def dense_k_means_pp(r, h, q, rng):
    g = (r[:, :, None] * h[:, None, :]).flatten(1)
    picked = [int(g.square().sum(1).argmax())]
    while len(picked) < q:
        away = torch.cdist(g, g[picked]).square().amin(1)
        away[picked] = 0
        picked.append(int(torch.multinomial(away, 1, generator=rng)))
    return picked


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_badge_matches_explicit_gradients(seed):
    r, h = normal(30, 4, seed=seed), normal(30, 5, seed=seed + 1)
    found, _ = k_means_pp(r, h, 12, make_generator(seed, "x"))
    assert found.tolist() == dense_k_means_pp(r, h, 12, make_generator(seed, "x"))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_badge_never_repeats_an_index(seed, distinct):
    r, h = normal(distinct, 3, seed=seed), normal(distinct, 4, seed=seed)
    copies = torch.arange(20) % distinct
    found, _ = k_means_pp(r[copies], h[copies], 20, make_generator(seed, "x"))
    assert sorted(found.tolist()) == list(range(20))
    assert len(set((found[:distinct] % distinct).tolist())) == distinct  # copies come last


def test_bald_equals_mutual_information():
    p = distributions(6, 5, 3)
    found = bald(p)
    for i in range(6):
        mean = p[i].mean(0)
        total = -sum(float(v) * math.log(v) for v in mean)
        inner = sum(-sum(float(v) * math.log(v) for v in p[i, t]) for t in range(5)) / 5
        assert math.isclose(float(found[i]), total - inner, rel_tol=1e-9)
    assert float(bald(p[:, :1]).abs().max()) < 1e-12  # one network agrees with itself


def joint_information(p, batch):
    """By listing every joint label."""
    T, C = p.shape[1:]
    joint = 0.0
    for labels in itertools.product(range(C), repeat=len(batch)):
        q = float(
            torch.stack([p[i, :, y] for i, y in zip(batch, labels, strict=True)]).prod(0).mean()
        )
        joint -= q * math.log(q)
    return joint - sum(-float((p[i, t] * p[i, t].log()).sum()) / T for i in batch for t in range(T))


def test_batch_bald_is_greedy_on_the_exact_joint():
    p = distributions(7, 4, 3, seed=2)
    found, scores = batch_bald(p, 4, make_generator(0, "x"))
    batch: list[int] = []
    for at, score in zip(found.tolist(), scores.tolist(), strict=True):
        values = {i: joint_information(p, [*batch, i]) for i in range(7) if i not in batch}
        assert max(values, key=values.get) == at
        assert math.isclose(values[at], score, rel_tol=1e-9)
        batch.append(at)


def test_batch_bald_with_sampled_configurations_is_close():
    p = distributions(10, 6, 4, seed=3)
    _, exact = batch_bald(p, 5, make_generator(0, "x"), max_configurations=10**6)
    _, drawn = batch_bald(p, 5, make_generator(0, "x"), max_configurations=4000)
    assert torch.allclose(exact, drawn, atol=0.05)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_expected_gradient_length_matches_autograd(loss):
    x, y = blobs(10)
    model, x = own().double(), x.double()
    now = QueryContext.from_pool(
        model.eval(), x, labelled_pool(y, 3), QueryConfig("egl"), loss=loss
    )
    found = expected_gradient_length(now, make_generator(0, "x"))
    for i, position in enumerate(now.candidates.tolist()):
        out = model(x[[position]])[0]
        p = torch.softmax(out, 0) if loss == "cross-entropy" else _simplex(out)
        want = 0.0
        for label in range(3):
            if loss == "cross-entropy":
                value = nn.functional.cross_entropy(out[None], torch.tensor([label]))
            else:
                value = 0.5 * (out - torch.eye(3, dtype=out.dtype)[label]).square().sum()
            grads = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
            want += float(p[label].detach()) * math.sqrt(
                sum(float(g.square().sum()) for g in grads)
            )
        assert math.isclose(float(found[i]), want, rel_tol=2e-3)


def test_query_drift_matches_manual_count():
    x, y = blobs(60)
    model, pool = own().eval(), labelled_pool(y, 9)
    K = kernel(model, x).double()
    f, first = model(x).detach().double(), torch.arange(9)
    system = K[:9, :9] + 1e-3 * K.diagonal().mean() * torch.eye(9, dtype=torch.float64)
    after = f + K[:, :9] @ torch.linalg.solve(
        system, torch.eye(3, dtype=torch.float64)[y[:9]] - f[first]
    )
    share = float((after.argmax(1) != f.argmax(1))[9:].double().mean())
    assert share > 0.2  # nobody has trained it
    for mode in ("top", "greedy"):
        query = propose(model, x, pool, 3, QueryConfig("mlmoc", mode=mode))
        assert query.drift == pytest.approx(share)
        assert len(query.notes) == 1
        assert "train longer" in query.notes[0]
    assert propose(model, x, pool, 3, "margin").drift is None
    assert (
        propose(model, x, labelled_pool(y, 0), 3, "flip").drift is None
    )  # no label to converge to


def _simplex(v):
    from labelahead.acquisition.probability import simplex

    return simplex(v.detach())


def test_cover_points_is_greedy_maximum_coverage():
    x = normal(60, 2)
    near = torch.cdist(x, x) <= 0.6
    picked, scores = cover_points(x, 5, 10, 0.6)
    covered = near[:5].any(0)
    for at, score in zip(picked.tolist(), scores.tolist(), strict=True):
        gains = (near & ~covered).sum(1)
        gains[:5] = -1
        assert at >= 5
        assert int(gains[at]) == score
        if score:
            assert score == int(gains.max())
        covered |= near[at]


def test_choose_ball_radius_keeps_balls_pure():
    centres = 6 * normal(4, 3, seed=1)
    x = centres[torch.arange(200) % 4] + 0.3 * normal(200, 3)
    radius = choose_ball_radius(x, 4, make_generator(0, "x"))
    group = torch.arange(200) % 4
    near = torch.cdist(x, x) <= radius
    pure = [(group[row] == group[i]).all() for i, row in enumerate(near)]
    assert sum(pure) / 200 >= 0.95
    assert near.sum(1).double().mean() > 20  # and is not needlessly small


def test_select_typical_prefers_clusters_without_labels():
    centres = 8 * normal(5, 3, seed=1)
    x = centres[torch.arange(150) % 5] + 0.5 * normal(150, 3)
    x = torch.cat([x[:2], x])  # two labelled: clusters 0 and 1
    picked, _ = select_typical(x, 2, 3, make_generator(0, "x"))
    kinds = ((picked - 2) % 5).tolist()
    assert sorted(kinds) == [2, 3, 4]
    for at, kind in zip(picked.tolist(), kinds, strict=True):
        members = x[2:][torch.arange(150) % 5 == kind]
        near = torch.cdist(x[[at]], members)[0].topk(21, largest=False).values[1:].mean()
        every = torch.cdist(members, members).topk(21, largest=False).values[:, 1:].mean(1)
        assert math.isclose(float(near), float(every.min()), rel_tol=1e-9)


def test_bald_uses_dropout_or_ensemble_or_raises():
    x, y = blobs(30)
    pool = labelled_pool(y, 6)
    plain = own()
    with pytest.raises(ModelError, match="no dropout"):
        propose(plain, x, pool, 3, "bald")
    dropping = build_model("mlp", (1, 8, 8), 3, width=16, dropout=0.3).eval()
    state = torch.random.get_rng_state()
    one = propose(dropping, x, pool, 3, "bald")
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(one.positions, propose(dropping, x, pool, 3, "bald").positions)
    assert not dropping.training
    assert not any(m.training for m in dropping.modules())
    assert float(one.scores[0]) > 0
    more = propose(plain, x, pool, 3, "bald", fresh=own, training=Training(steps=5))
    assert len(more.positions) == 3


class Convolutional(nn.Module):
    """No linear layer at all."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


def test_embedding_is_input_of_last_linear_layer():
    x, _ = blobs(9)
    model = own().eval()
    want = torch.tanh(model.first(x.flatten(1))) * model.scale
    assert torch.allclose(compute_penultimate_features(model, x), want)
    assert not model.last._forward_pre_hooks
    conv = Convolutional().eval()
    assert torch.allclose(compute_penultimate_features(conv, x), conv(x))


def test_every_strategy_has_description_and_paper():
    for name, member in STRATEGIES.items():
        assert member.name == name
        assert len(member.when) > 20
        assert member.paper
        assert member.modes
    with pytest.raises(InputError, match="did you mean 'badge'"):
        find_strategy("bagde")


@pytest.mark.parametrize("labelled", [0, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_herding_selects_largest_coverage_gain(labelled, weighted):
    rng = torch.Generator().manual_seed(labelled)
    points = torch.randn(25, 4, generator=rng, dtype=torch.float64)
    worth = (
        torch.rand(25 - labelled, generator=rng, dtype=torch.float64)
        if weighted
        else torch.ones(25 - labelled)
    )
    order, scores = herd_points(points, labelled, 5, worth.double())
    units = points / points.norm(dim=1, keepdim=True)
    k = torch.exp(-torch.cdist(units, units).square())
    chosen = list(range(labelled))

    def coverage(those):
        best = k[labelled:][:, those].amax(1) if those else torch.zeros(25 - labelled).double()
        return float(best @ worth.double())

    for pick, score in zip(order.tolist(), scores.tolist(), strict=True):
        gains = {
            i: coverage([*chosen, labelled + i]) - coverage(chosen) for i in range(25 - labelled)
        }
        assert gains[pick] == pytest.approx(max(gains.values()))
        assert score == pytest.approx(gains[pick])
        chosen.append(labelled + pick)


def test_bait_matches_explicit_inverses():
    for seed, (n, h, labelled, q) in enumerate(
        [(25, 4, 6, 5), (25, 4, 0, 3), (12, 30, 4, 3), (9, 5, 3, 4), (8, 5, 2, 6)]
    ):
        v = normal(n, h, seed=seed)
        fisher = v.T @ v / n
        base = RIDGE * torch.eye(h).double() + v[:labelled].T @ v[:labelled] / max(1, labelled)

        def trace(those, v=v, fisher=fisher, base=base, labelled=labelled):
            taken = v[[labelled + i for i in those]]
            return float(torch.trace(torch.linalg.inv(base + taken.T @ taken) @ fisher))

        chosen, gains, free = [], {}, range(n - labelled)
        for _ in range(min(2 * q, n - labelled)):
            at = min((i for i in free if i not in chosen), key=lambda i: trace([*chosen, i]))
            gains[at] = trace(chosen) - trace([*chosen, at])
            chosen.append(at)
        while len(chosen) > q:
            chosen.remove(min(chosen, key=lambda i: trace([j for j in chosen if j != i])))
        order, scores = bait(v, labelled, q)
        assert order.tolist() == chosen
        assert torch.allclose(scores, torch.tensor([gains[i] for i in chosen]).double(), atol=1e-10)


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_bait_uses_fisher_information_of_read_out(loss):
    """Σ_y p_y ∇log p_y ∇log p_yᵀ by differentiating every label, its blocks on the diagonal added
    up.
    """
    model, (x, y) = own().eval(), blobs(24)
    pool = labelled_pool(y, 6)
    now = QueryContext.from_pool(model, x, pool, QueryConfig("bait"), 1, loss=loss, seed=3)
    f, h = now.outputs.double(), compute_penultimate_features(model, x[now.points]).double()
    p = torch.softmax(f, 1) if loss == "cross-entropy" else simplex(f)
    roots = []
    for probability, row in zip(p, h, strict=True):
        W = torch.zeros(p.shape[1], len(row)).double().requires_grad_()
        logs = torch.log_softmax(probability.clamp_min(1e-300).log() + W @ row, 0)
        grads = [torch.autograd.grad(each, W, retain_graph=True)[0] for each in logs]
        fisher = sum(q * g.T @ g for q, g in zip(probability, grads, strict=True))
        worth = 1 - float(probability.square().sum())
        assert torch.allclose(fisher, worth * torch.outer(row, row), atol=1e-9)
        roots.append(math.sqrt(max(0.0, worth)) * row)
    order, gains = bait(torch.stack(roots), 6, 4)
    asked = propose(model, x, pool, 4, "bait", loss=loss, seed=3)
    assert asked.positions.tolist() == now.candidates[order].tolist()
    assert torch.allclose(asked.scores, gains)


def simplex(f):
    """Euclidean projection of each row, by sorting."""
    ordered = f.sort(1, descending=True).values
    shift = (ordered.cumsum(1) - 1) / torch.arange(1, f.shape[1] + 1)
    count = (ordered > shift).sum(1, keepdim=True)
    return (f - shift.gather(1, count - 1)).clamp_min(0)


def test_find_unstable_selects_items_changing_in_most_passes():
    said = torch.tensor([0, 1, 2, 0, 1])
    dropped = torch.tensor(
        [[0, 2, 2, 1, 0], [1, 2, 2, 1, 1], [0, 2, 0, 0, 2], [0, 1, 1, 1, 1]]
    )  # 1, 3, 2, 3, 2 of 4
    assert find_unstable(said, dropped, 1).tolist() == [1, 3]
    assert find_unstable(said, dropped, 4).tolist() == [
        1,
        3,
        2,
        4,
    ]  # too few: those that do so next most often


def test_select_central_returns_nearest_to_cluster_means():
    x = normal(60, 3)
    picked, sizes = select_central(x, 5, make_generator(7))
    group = cluster_points(x, 5, make_generator(7))
    assert sizes.tolist() == sorted(torch.bincount(group).tolist(), reverse=True)
    for at, size in zip(picked.tolist(), sizes.tolist(), strict=True):
        members = (group == group[at]).nonzero()[:, 0].tolist()
        assert len(members) == size
        mean = sum(x[i] for i in members) / len(members)
        assert at == min(members, key=lambda i: float((x[i] - mean).norm()))


def test_predict_with_dropout_drops_last_layer_inputs():
    x, _ = blobs(40)
    model = own().eval()
    h = torch.tanh(model.first(x.flatten(1))) * model.scale
    kept = torch.rand(h.shape, generator=make_generator(5)) >= 0.75
    with torch.no_grad():
        want = model.last(torch.where(kept, 4 * h, torch.zeros(())))
    assert torch.allclose(predict_with_dropout(model, x, 0.75, make_generator(5)), want, atol=1e-6)
    assert not model.last._forward_pre_hooks
    assert not torch.allclose(want, model(x))
    conv = Convolutional().eval()
    kept = torch.rand(40, 3, generator=make_generator(5)) >= 0.75
    assert torch.allclose(
        predict_with_dropout(conv, x, 0.75, make_generator(5)), 4 * kept * conv(x)
    )


def exactly_learnt(x, y, at):
    one = ExactLearner(x, ExactModel(x.flatten(1).mean(0), 3))
    return one.fit(at, y[at])


def test_exact_learner_drops_unit_features():
    x, y = blobs(40)
    learnt, every = exactly_learnt(x.double(), y, torch.arange(9)), torch.arange(40)
    units = learnt.embedding(every)
    kept = torch.rand(units.shape, generator=make_generator(5)) >= 0.75
    said = []
    for row in torch.where(kept, units, 0.0):
        c = learnt.kernel_model.support @ (row / row.norm())
        said.append(1 / 3 + mix_kernels(c, learnt.mixture.weights) @ learnt.kernel_model.alpha)
    assert torch.allclose(
        learnt.predict_with_dropout(every, 0.75, make_generator(5)), torch.stack(said), atol=1e-12
    )


@pytest.mark.parametrize("labels", [0, 9])
@pytest.mark.parametrize("kind", ["network", "exact"])
def test_dropquery_clusters_unstable_items(kind, labels):
    x, y = blobs(70)
    x = (x + 1.5 * normal(*x.shape)).double()
    pool = labelled_pool(y, labels)
    model = (
        own().double().eval() if kind == "network" else exactly_learnt(x, y, pool.labelled).model
    )
    asked = propose(model, x, pool, 5, "dropquery", seed=2)
    now = QueryContext.from_pool(model, x, pool, QueryConfig("dropquery"), 5, seed=2)
    rng = make_generator(2, "pick", labels)
    at = now.candidates
    if labels:
        others = [
            now.fitted.predict_with_dropout(at, DROPOUT_RATE, rng).argmax(1)
            for _ in range(DROPOUT_PASSES)
        ]
        now_says = now.fitted.outputs(at).argmax(1)
        moved = [sum(int(o[i] != now_says[i]) for o in others) for i in range(len(at))]
        assert sum(m >= 2 for m in moved) > 5
        at = at[sorted((i for i in range(len(at)) if moved[i] >= 2), key=lambda i: -moved[i])]
    points = now.fitted.embedding(at)
    order, sizes = select_central(points / points.norm(dim=1, keepdim=True), 5, rng)
    assert asked.positions.tolist() == at[order].tolist()
    assert asked.scores.tolist() == sizes.tolist()
