"""Cholesky with reported jitter, block solves, conjugate gradients."""

import logging

import pytest
import torch

from labelahead.errors import InputError, NumericalError
from labelahead.gp import linalg
from tests.support import reference_lookahead as ref

RNG = torch.Generator().manual_seed(3)
ROOT = torch.randn(12, 20, generator=RNG, dtype=torch.float64)
GRAM = ROOT @ ROOT.T
EYE = torch.eye(12, dtype=torch.float64)


def test_cholesky_of_well_conditioned_matrix_adds_no_jitter(caplog):
    with caplog.at_level(logging.WARNING, "labelahead"):
        lower, jitter = linalg.cholesky(GRAM)
    assert jitter == 0.0
    assert not caplog.records
    ref.close(lower @ lower.T, GRAM)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_cholesky_of_singular_matrix_reports_jitter(caplog, dtype):
    thin = ROOT[:, :4].to(dtype)
    before = (thin @ thin.T).clone()
    with caplog.at_level(logging.WARNING, "labelahead"):
        lower, jitter = linalg.cholesky(before)
    scale = float(before.diagonal().mean())
    assert 0 < jitter <= 1e-4 * scale
    assert "added" in caplog.text
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    ref.close(lower @ lower.T, before + jitter * EYE.to(dtype), tolerance)
    assert torch.equal(before, thin @ thin.T)


def test_cholesky_treats_tiny_pivot_as_singular():
    tiny = torch.tensor([[1e-18]], dtype=torch.float64)
    assert linalg.cholesky(tiny)[1] == 0.0
    assert linalg.cholesky(tiny, scale=1.0)[1] > 0


def test_cholesky_of_indefinite_matrix_raises():
    with pytest.raises(NumericalError, match="lowest eigenvalue is -"):
        linalg.cholesky(GRAM - 0.5 * float(GRAM.diagonal().mean()) * EYE)


def test_cholesky_of_nan_raises():
    bad = GRAM.clone()
    bad[3, 4] = bad[4, 3] = float("nan")
    with pytest.raises(NumericalError, match="NaN"):
        linalg.cholesky(bad)
    with pytest.raises(NumericalError, match="mean diagonal"):
        linalg.cholesky(0 * GRAM)


def test_solves():
    lower, _ = linalg.cholesky(GRAM)
    ref.close(lower @ linalg.whiten(lower, ROOT), ROOT)
    ref.close(GRAM @ linalg.solve_factored(lower, ROOT), ROOT)
    ref.close(GRAM @ linalg.cholesky_inverse(lower), EYE)
    values, vectors = linalg.symmetric_eigen(GRAM)
    ref.close(vectors * values @ vectors.T, GRAM)


@pytest.mark.parametrize("b", [1, 3])
def test_block_solves(b):
    root = torch.randn(5, b, 6, generator=RNG, dtype=torch.float64)
    rhs = torch.randn(5, b, 2, generator=RNG, dtype=torch.float64)
    blocks = root @ root.mT
    lower = linalg.block_factor(blocks, 1.0)
    ref.close(lower @ lower.mT, blocks)
    ref.close(blocks @ linalg.block_solve(lower, rhs), rhs)
    ref.close(lower @ linalg.block_whiten(lower, rhs), rhs)


@pytest.mark.parametrize("b", [1, 3])
def test_block_factor_repairs_only_singular_blocks(b, caplog):
    blocks = torch.eye(b, dtype=torch.float64).repeat(4, 1, 1)
    blocks[2] = 0.0
    with caplog.at_level(logging.WARNING, "labelahead"):
        lower = linalg.block_factor(blocks, 1.0)
    assert "1 of 4" in caplog.text
    ref.close(lower[[0, 1, 3]], blocks[[0, 1, 3]])
    assert 0 < float(lower[2, 0, 0]) < 1e-5


def test_block_factor_of_indefinite_blocks_raises():
    with pytest.raises(NumericalError, match="1 of 2"):
        linalg.block_factor(torch.stack([EYE, -EYE]), 1.0)


@pytest.mark.parametrize("n", [40, 700])
def test_gram_downdate(n):
    w = torch.randn(7, n, generator=RNG, dtype=torch.float64)
    v = torch.randn(7, 30, generator=RNG, dtype=torch.float64)
    base = w.T @ w * 2
    ref.close(linalg.gram_downdate(base, w), base - w.T @ w)
    ref.close(linalg.gram_downdate(base[:, :30], w, v), base[:, :30] - w.T @ v)


def test_conjugate_gradients():
    b = torch.randn(12, 3, generator=RNG, dtype=torch.float64)
    b[:, 1] = 0.0  # a finished column must stand still
    exact = torch.linalg.solve(GRAM, b)
    x, _ = linalg.conjugate_gradients(lambda v: GRAM @ v, b, tolerance=1e-12)
    ref.close(x, exact, 1e-8)
    x1, _ = linalg.conjugate_gradients(lambda v: GRAM @ v, b[:, 0], tolerance=1e-12)
    ref.close(x1, exact[:, 0], 1e-8)
    scaled = GRAM * torch.logspace(0, 3, 12, dtype=torch.float64).outer(
        torch.logspace(0, 3, 12, dtype=torch.float64)
    )
    diagonal = scaled.diagonal()[:, None]
    _, plain = linalg.conjugate_gradients(
        lambda v: scaled @ v, b, max_iterations=500, tolerance=1e-6
    )
    _, helped = linalg.conjugate_gradients(
        lambda v: scaled @ v,
        b,
        max_iterations=500,
        tolerance=1e-6,
        precondition=lambda r: r / diagonal,
    )
    assert helped < plain


def test_conjugate_gradients_without_convergence_raises():
    b = torch.ones(12, dtype=torch.float64)
    with pytest.raises(NumericalError, match="after 1 iterations"):
        linalg.conjugate_gradients(lambda v: GRAM @ v, b, max_iterations=1)
    with pytest.raises(NumericalError, match="curvature"):
        linalg.conjugate_gradients(lambda v: -v, b)
    with pytest.raises(InputError, match="expected floating"):
        linalg.conjugate_gradients(lambda v: v, torch.ones(3, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_symmetric_product(dtype):
    matrix, vector = GRAM.to(dtype), ROOT[:, 0].to(dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    ref.close(linalg.symmetric_product(matrix, vector), matrix @ vector, tolerance)
    strided = torch.zeros(12, 24, dtype=dtype)[:, ::2].copy_(matrix)
    ref.close(linalg.symmetric_product(strided, vector), matrix @ vector, tolerance)
