"""Covariances of every kind of prior against matrices, in float64."""

from math import acos, pi

import pytest
import torch

from labelahead.gp.covariance import (
    CosineKernel,
    Covariance,
    DenseKernel,
    LeadingRowsKernel,
    LowRankKernel,
    NystromKernel,
    take,
)

N = 9
TOLERANCE = 1e-10


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def arc_cosine(cosines):
    """κ₀: the share of half-spaces that hold both points."""
    return 1 - torch.acos(cosines.clamp(-1, 1)) / pi


def make_kernel(kind):
    """Return a kernel and its matrix (N, N)."""
    features = random(N, 4)
    if kind == "dense":
        matrix = features @ features.T
        return DenseKernel(matrix), matrix
    if kind == "low rank":
        return LowRankKernel(features), features @ features.T
    if kind == "nystrom":
        residual = random(N).square()
        return NystromKernel(features, residual), features @ features.T + residual.diag()
    units = torch.nn.functional.normalize(features, dim=1)
    matrix = torch.tensor(
        [[1 - acos(max(-1.0, min(1.0, float(u @ v)))) / pi for v in units] for u in units],
        dtype=torch.float64,
    ).fill_diagonal_(1.0)
    return CosineKernel(units, arc_cosine, max_block_entries=12), matrix


KINDS = ("dense", "cosine", "low rank", "nystrom")
AT, OTHERS = torch.tensor([1, 4, 7, 2]), torch.tensor([7, 8, 0, 1, 5])


@pytest.mark.parametrize("kind", KINDS)
def test_prior_blocks_and_diagonals_equal_the_matrix(kind):
    kernel, matrix = make_kernel(kind)
    assert kernel.size == N
    assert kernel.dtype == torch.float64
    assert (kernel.block((), AT, OTHERS) - matrix[AT][:, OTHERS]).abs().max() < TOLERANCE
    assert (kernel.diagonal((), 1).flatten() - matrix.diagonal()).abs().max() < TOLERANCE
    assert (kernel.diagonal((), 1, AT).flatten() - matrix.diagonal()[AT]).abs().max() < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_subtracted_factors_lower_the_covariance(kind):
    """Conditioning on labels at some points, in two steps, against the inverse of a matrix."""
    kernel, matrix = make_kernel(kind)
    covariance = Covariance(kernel)
    noise = 0.3
    # A residual is noise of its own point, which the rows of a Nyström kernel do not hold.
    signal = matrix - kernel.residual_variance.diag() if kind == "nystrom" else matrix
    for labelled in (torch.tensor([0, 3]), torch.tensor([6])):
        rows = covariance.rows(labelled)
        block = kernel.evaluate_at(rows, labelled) + noise * torch.eye(len(labelled))
        factor = torch.linalg.solve_triangular(torch.linalg.cholesky(block), rows, upper=False)
        covariance = covariance.subtract_factor(factor)
    at = torch.tensor([0, 3, 6])
    system = signal[at][:, at] + noise * torch.eye(3)
    want = matrix - signal[:, at] @ torch.linalg.solve(system, signal[at])
    assert covariance.rank == 3
    got = kernel.block(covariance.factors, AT, OTHERS)
    assert (got - want[AT][:, OTHERS]).abs().max() < TOLERANCE
    variances = kernel.diagonal(covariance.factors, 1).flatten()
    assert (variances - want.diagonal()).abs().max() < TOLERANCE
    everywhere = kernel.evaluate_everywhere(covariance.factors[0])
    all_points = torch.arange(N)
    there = kernel.evaluate_at(covariance.factors[0], all_points)
    assert (everywhere - there).abs().max() < TOLERANCE


@pytest.mark.parametrize("kind", ["dense", "low rank"])
def test_diagonal_blocks_of_several_outputs_equal_the_matrix(kind):
    kernel, matrix = make_kernel(kind)
    blocks = kernel.diagonal((), 3)  # three points with three outputs
    for i in range(3):
        part = slice(3 * i, 3 * i + 3)
        assert (blocks[i] - matrix[part, part]).abs().max() < TOLERANCE
    at = torch.tensor([6, 7, 8, 0, 1, 2])
    assert torch.equal(kernel.diagonal((), 3, at), blocks[[2, 0]])


def test_leading_rows_give_the_same_variances_as_the_whole_matrix():
    whole, matrix = make_kernel("dense")
    leading = LeadingRowsKernel(matrix[:3], matrix.diagonal())
    assert leading.size == N
    factor = whole.rows(torch.tensor([0, 2])) / 5
    assert torch.equal(leading.rows(torch.tensor([0, 2])), whole.rows(torch.tensor([0, 2])))
    for at in (None, AT):
        difference = leading.diagonal((factor,), 1, at) - whole.diagonal((factor,), 1, at)
        assert difference.abs().max() < TOLERANCE


def test_factors_are_merged_like_a_binary_counter():
    covariance = Covariance(make_kernel("dense")[0])
    for i in range(7):
        covariance = covariance.subtract_factor(random(1, N, seed=i))
    assert [len(factor) for factor in covariance.factors] == [4, 2, 1]


def test_take_of_consecutive_positions_is_a_view():
    matrix = random(5, 6)
    assert take(matrix, torch.tensor([1, 2, 3]), 0).data_ptr() == matrix[1:].data_ptr()
    assert torch.equal(take(matrix, torch.tensor([4, 0]), 1), matrix[:, [4, 0]])
