"""Inner products of gradients from their factors against explicit gradients, in float64."""

import pytest
import torch
from torch.nn import functional

from labelahead.ntk.factors import Geometry
from labelahead.ntk.gram import Gradients, Pairs, add_gram, mirror_upper, sum_shifts

TOLERANCE = 1e-10


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def naive_gradients(pairs):
    """(n, K, o · (d + bias)): the sum over positions of output gradient × input."""
    a = pairs.a.expand(len(pairs.g), -1, -1)
    if pairs.bias:
        a = torch.cat([a, torch.ones_like(a[..., :1])], 2)
    return torch.einsum("tnko,tnd->nkod", pairs.g, a).flatten(2)


def gram(one, other, *, fold):
    n, m = one.shape[0], other.shape[0]
    flat = (lambda v: v.flatten(1)) if fold else (lambda v: v.flatten(0, 1))
    return (
        flat(one).reshape(n * (1 if fold else one.shape[1]), -1)
        @ flat(other).reshape(m * (1 if fold else other.shape[1]), -1).T
    )


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("positions", [1, 3])
def test_gram_of_factors_equals_that_of_gradients(fold, bias, positions):
    K = 2
    left = Pairs(random(positions, 7, 4), random(positions, 7, K, 3), bias)
    right = left.rows(2, 6)
    one, other = naive_gradients(left), naive_gradients(right)
    size = 1 if fold else K
    out = torch.zeros(7 * size, 4 * size, dtype=torch.float64)
    add_gram(out, Gradients(pairs=[left]), Gradients(pairs=[right]), fold=fold)
    assert (out - gram(one, other, fold=fold)).abs().max() < TOLERANCE
    dense = torch.zeros_like(out)
    add_gram(dense, Gradients(dense={0: one}), Gradients(dense={0: other}), fold=fold)
    assert (dense - out).abs().max() < TOLERANCE


@pytest.mark.parametrize("n", [5, 70, 400])
def test_symmetric_gram_needs_only_the_upper_triangle(n):
    gradients = Gradients({0: random(n, 1, 6)}, [Pairs(random(2, n, 3), random(2, n, 1, 2))])
    want = gradients.dense[0][:, 0] @ gradients.dense[0][:, 0].T
    want += gram(*[naive_gradients(gradients.pairs[0])] * 2, fold=True)
    out = torch.zeros(n, n, dtype=torch.float64)
    add_gram(out, gradients, gradients, fold=True)
    assert (mirror_upper(out) - want).abs().max() < TOLERANCE
    assert torch.equal(out, out.T)


def test_lookup_counts_equal_rows_and_skips_padding():
    index = torch.tensor([[0, 2, -1], [2, 2, 0]])  # (S, n), -1 is padding
    g = random(2, 3, 1, 4)
    out = torch.zeros(3, 3, dtype=torch.float64)
    pairs = Pairs(index, g)
    add_gram(out, Gradients(pairs=[pairs]), Gradients(pairs=[pairs.rows(0, 3)]), fold=True)
    table = torch.zeros(3, 3, 4, dtype=torch.float64)  # (n, rows, o)
    for s in range(2):
        for i in range(3):
            if index[s, i] >= 0:
                table[i, index[s, i]] += g[s, i, 0]
    assert (out - table.flatten(1) @ table.flatten(1).T).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    ("size", "stride", "padding", "dilation"),
    [((3, 3), (1, 1), (1, 1), (1, 1)), ((2, 3), (2, 1), (0, 2), (1, 2))],
)
def test_sum_shifts_equals_products_of_unfolded_patches(size, stride, padding, dilation):
    space, b = (5, 6), 3
    x = random(b, 2, *space)
    patches = functional.unfold(x, size, dilation, padding, stride)  # (b, 2·taps, positions)
    out = tuple(
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, p, d, k, t in zip(space, padding, dilation, size, stride, strict=True)
    )
    pixels = torch.einsum("bcij,ecfg->ijbfge", x, x)
    got = sum_shifts(pixels, Geometry(size, stride, padding, dilation, 1, space, out))
    want = torch.einsum("bps,epu->sbue", patches, patches).reshape(*out, b, *out, b)
    assert (got - want).abs().max() < TOLERANCE
