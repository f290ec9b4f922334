"""The kernel mixture against infinitely wide networks and explicit leave-one-out."""

from dataclasses import replace

import pytest
import torch

import labelahead as la
from labelahead.acquisition import flip, resolve, variance
from labelahead.acquisition.pool_view import view
from labelahead.gp.covariance import CosineKernel
from labelahead.gp.posterior import prior
from labelahead.inference.mixture import (
    KERNEL_DEPTHS,
    MIXTURE_GRID,
    MixtureSearch,
    choose_mixture,
    cosine_kernels,
    mix_kernels,
    solve_leave_one_out,
)
from tests.support.tensors import make_clouds, normalise_rows

N, C, D = 40, 3, 7


@pytest.mark.parametrize(
    ("kernel_index", "depth"), [(i, d) for i, d in enumerate(KERNEL_DEPTHS) if d]
)
def test_cosine_kernels_match_infinitely_wide_networks(kernel_index, depth):
    rows = normalise_rows(make_clouds()[0], range(N))
    K = la.infinite_kernel(rows, depth=depth, bias_std=None)
    ours = cosine_kernels((rows @ rows.T).fill_diagonal_(1.0))[kernel_index]
    assert torch.allclose(ours, K / K.diagonal().mean(), atol=1e-7)
    assert torch.allclose(ours.diagonal(), torch.ones(N, dtype=torch.float64))


def test_linear_kernel_equals_cosine():
    c = torch.linspace(-1, 1, 21, dtype=torch.float64)
    assert torch.equal(cosine_kernels(c)[0], c)
    assert torch.equal(mix_kernels(c, (1.0, 0.0, 0.0)), c)
    weights = (0.25, 0.5, 0.25)
    naive = sum(w * kernel for w, kernel in zip(weights, cosine_kernels(c), strict=True))
    assert torch.allclose(mix_kernels(c, weights), naive)


def test_leave_one_out_matches_refitting_without_each_label():
    x, y = make_clouds(12)
    rows = normalise_rows(x, range(12))
    K, targets = (
        mix_kernels(rows @ rows.T, (0.5, 0.25, 0.25)),
        torch.nn.functional.one_hot(y, C).double() - 1 / C,
    )
    alpha, residual, spread = solve_leave_one_out(K, 0.03, targets)
    assert torch.allclose((K + 0.03 * torch.eye(12)) @ alpha, targets)
    for i in range(12):
        rest = [j for j in range(12) if j != i]
        system = K[rest][:, rest] + 0.03 * torch.eye(11)
        solved = torch.linalg.solve(system, torch.cat([targets[rest], K[rest, i, None]], 1))
        assert torch.allclose(residual[i], K[i, rest] @ solved[:, :C] - targets[i])
        assert torch.allclose(spread[i], K[i, i] + 0.03 - K[i, rest] @ solved[:, C])


def test_choose_mixture_is_flattest_within_tolerance():
    x, y = make_clouds(30)
    rows = normalise_rows(x, range(30))
    c, targets = (
        (rows @ rows.T).fill_diagonal_(1.0),
        torch.nn.functional.one_hot(y, C).double() - 1 / C,
    )
    errors = {
        m: float(solve_leave_one_out(mix_kernels(c, m.weights), m.noise, targets)[1].square().sum())
        for m in MIXTURE_GRID
    }
    chosen = choose_mixture(c, targets)
    near = [m for m in MIXTURE_GRID if errors[m] <= 1.03 * min(errors.values())]
    assert chosen in near
    assert chosen.flatness == max(m.flatness for m in near)


def test_choose_mixture_local_search_matches_full_grid():
    x, y = make_clouds(60, seed=2)
    rows = normalise_rows(x, range(60))
    c, targets = (
        (rows @ rows.T).fill_diagonal_(1.0),
        torch.nn.functional.one_hot(y, C).double() - 1 / C,
    )
    every = choose_mixture(c, targets)
    walked = choose_mixture(c, targets, MixtureSearch(max_full_grid_labels=10))
    errors = [
        float(solve_leave_one_out(mix_kernels(c, m.weights), m.noise, targets)[1].square().sum())
        for m in (walked, every)
    ]
    assert errors[0] <= 1.04 * errors[1]


def test_choose_mixture_subsamples_above_max_labels():
    x, y = make_clouds(61, seed=3)
    rows = normalise_rows(x, range(61))
    c, targets = (
        (rows @ rows.T).fill_diagonal_(1.0),
        torch.nn.functional.one_hot(y, C).double() - 1 / C,
    )
    some = torch.arange(0, 61, 3)  # 21 labels, evenly spaced
    expected = choose_mixture(c[some][:, some], targets[some])
    assert choose_mixture(c, targets, MixtureSearch(max_labels=21)) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lazy_kernel_matches_dense_kernel(dtype):
    x, y = make_clouds(dtype=dtype)
    rows = normalise_rows(x, range(N)).to(dtype)
    weights, tolerance = (0.5, 0.25, 0.25), 1e-9 if dtype == torch.float64 else 2e-4
    dense = mix_kernels(rows @ rows.T, weights).fill_diagonal_(1.0)
    dense = (dense + dense.T) / 2
    outputs = torch.full((N, C), 1 / C, dtype=torch.float64)
    for labelled in ([], [3, 8, 20, 11]):
        lazy, stored = (
            prior(outputs, kernel, noise=1e-2)
            for kernel in (CosineKernel(rows, lambda c: mix_kernels(c, weights)), dense)
        )
        if labelled:
            lazy, stored = (post.condition(labelled, y[labelled]) for post in (lazy, stored))
        assert lazy.noise == pytest.approx(stored.noise, rel=1e-6)
        assert torch.allclose(lazy.mean, stored.mean, atol=tolerance)
        assert torch.allclose(lazy.variance(), stored.variance(), atol=tolerance)
        assert torch.allclose(
            lazy.covariance_block([1, 5, 9], [5, 2]),
            stored.covariance_block([1, 5, 9], [5, 2]),
            atol=tolerance,
        )
        left = [p for p in range(N) if p not in labelled]
        for acquisition in (resolve, flip, variance):
            one, other = (acquisition(view(post, left, left[:20])) for post in (lazy, stored))
            assert torch.allclose(one, other, atol=20 * tolerance), acquisition.__name__
        assert lazy.amplitude() == pytest.approx(stored.amplitude(), rel=1e-3)


def test_kernel_blocks_are_computed_in_chunks():
    x, _ = make_clouds()
    kernel = CosineKernel(normalise_rows(x, range(N)), lambda c: mix_kernels(c, (0.0, 1.0, 0.0)))
    whole = kernel.block((), torch.arange(N), torch.arange(5, 30))
    kernel = replace(kernel, max_block_entries=60)
    parts = kernel.block((), torch.arange(N), torch.arange(5, 30))
    assert torch.allclose(parts, whole, atol=1e-12)
    assert parts[5, 0] == parts[29, 24] == 1.0
