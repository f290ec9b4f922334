"""Look-ahead equals conditioning and a refit from scratch (LA-11), for every kernel and label."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.gp.lookahead import LOOK_AHEAD_METHODS, lookahead
from tests.support import reference_lookahead as ref

LABELLED = [20, 3, 11]


@pytest.mark.parametrize("kind", ref.KINDS)
@pytest.mark.parametrize("method", LOOK_AHEAD_METHODS)
@pytest.mark.parametrize("labelled", [[], LABELLED])
def test_lookahead_equals_conditioning_and_refitting(kind, method, labelled):
    p = ref.problem(kind)
    post = p.prior()
    if labelled:
        post = post.condition(labelled, p.targets[labelled])
    at = [5, 9, 5, 0]
    labels = torch.cat([p.targets[[5, 9]], torch.tensor([[0.2, -1.0, 3.0]] * 2).double()])
    chunks = list(LOOK_AHEAD_METHODS[method](post, at, labels, chunk=3))
    assert [len(c) for c in chunks] == [3, 1]
    for j, after in enumerate(torch.cat(chunks)):
        ref.close(after, post.condition(at[j : j + 1], labels[j : j + 1]).mean)
        ref.close(after, ref.predictions(p, labelled, p.targets[labelled], at[j], labels[j]))


@settings(max_examples=25, deadline=None)
@given(data=st.data(), kind=st.sampled_from(ref.KINDS))
def test_lookahead_on_random_problems_equals_refitting(data, kind):
    classes = data.draw(st.integers(1, 4))
    p = ref.problem(kind, n=12, classes=classes, seed=data.draw(st.integers(0, 999)))
    order = data.draw(st.permutations(range(12)))
    split = data.draw(st.integers(1, 8))
    labelled, candidates, x = order[:split], order[split : split + 3], order[-5:]
    post = p.prior().condition(labelled, p.targets[labelled])
    labels = p.targets[candidates].flip(1)
    after = torch.cat(list(lookahead(post, candidates, labels, evaluate=x)))
    for j, c in enumerate(candidates):
        expected = ref.predictions(p, labelled, p.targets[labelled], c, labels[j])
        ref.close(after[j], expected[x])


@pytest.mark.parametrize("kind", ref.KINDS)
@pytest.mark.parametrize("method", LOOK_AHEAD_METHODS)
def test_lookahead_by_another_source_equals_refitting(kind, method):
    p = ref.problem(kind)
    noises = torch.full((24,), 0.3, dtype=torch.float64)
    noises[LABELLED] = torch.tensor([0.02, 1.0, 0.1], dtype=torch.float64)
    twin = replace(p, noises=noises)
    post = p.prior().condition(LABELLED, p.targets[LABELLED], noises[LABELLED])
    options = {"noise": 0.3, "allow_labelled": True}
    futures = torch.cat(
        list(LOOK_AHEAD_METHODS[method](post, [5, 3], p.targets[[9, 0]], **options))
    )
    expected = ref.predictions(twin, LABELLED, p.targets[LABELLED], 5, p.targets[9])
    ref.close(futures[0], expected)
    second = post.condition([3], p.targets[[0]], [0.3], allow_labelled=True)
    ref.close(futures[1], second.mean)


def test_lookahead_equals_corrected_block_formula_of_paper():
    """(LA-12) written out as printed, with v = Θ(X,X)⁻¹Θ(X,x') and f_lin as its first term."""
    p = ref.problem("dense-scalar", noise=0.0)
    post = p.prior().condition(LABELLED, p.targets[LABELLED])
    xx, x1 = p.kernel[LABELLED][:, LABELLED], 5
    v = torch.linalg.solve(xx, p.kernel[LABELLED, x1])
    u = p.kernel[x1, x1] - p.kernel[x1, LABELLED] @ v
    label = p.targets[x1]
    f_lin = post.mean
    residual = (p.targets - p.outputs)[LABELLED]
    left = p.kernel[:, LABELLED] @ v - p.kernel[:, x1]
    right = v @ residual - (label - p.outputs[x1])
    expected = f_lin + left[:, None] * right / u
    ref.close(next(iter(lookahead(post, [x1], label[None])))[0], expected)
    printed = p.outputs + left[:, None] * right / u  # the erratum: f in place of f_lin
    assert float((printed - expected).abs().max()) > 1e-3


def test_lookahead_without_noise_fits_hypothetical_label():
    p = ref.problem("dense-scalar", noise=1e-9)
    post = p.prior().condition(LABELLED, p.targets[LABELLED])
    after = next(iter(lookahead(post, [5], p.targets[[5]])))[0]
    ref.close(after[5], p.targets[5], 1e-6)
    ref.close(after[LABELLED], p.targets[LABELLED], 1e-6)
