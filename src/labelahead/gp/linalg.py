"""Linear algebra that fails loudly: Cholesky with reported jitter, block solves, CG.

No other module of the package calls LAPACK. Every repair is logged on the `labelahead` logger and
returned to the caller as a number; a matrix that cannot be repaired raises `NumericalError`.
"""

import logging
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from labelahead.errors import InputError, NumericalError

__all__ = [
    "block_factor",
    "block_solve",
    "block_whiten",
    "cholesky",
    "cholesky_inverse",
    "conjugate_gradients",
    "gram_downdate",
    "solve_factored",
    "symmetric_eigen",
    "symmetric_eigenvalues",
    "symmetric_product",
    "whiten",
]

log = logging.getLogger("labelahead")

# Jitter added to the diagonal, relative to its scale: ten times as much after each failure.
FIRST_JITTER = {torch.float64: 1e-12, torch.float32: 1e-7}
MAX_JITTER = 1e-3


def _factor_and_check(a: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Lower factors (..., q, q) of a and whether every pivot exceeds `floor` (...,)."""
    lower, info = torch.linalg.cholesky_ex(a)
    # LAPACK accepts a pivot of 1e-17, which is rounding error: the factor would be noise.
    pivots = lower.diagonal(dim1=-2, dim2=-1).square()
    return lower, (info == 0) & (pivots > floor).all(-1)


def _pivot_floor(a: Tensor, scale: float) -> float:
    return float(torch.finfo(a.dtype).eps) * a.shape[-1] * scale


def _jitter_steps(dtype: torch.dtype, scale: float) -> list[float]:
    jitters, step = [], FIRST_JITTER.get(dtype, 1e-7)
    while step <= MAX_JITTER * 1.0001:
        jitters.append(step * scale)
        step *= 10
    return jitters


def cholesky(
    a: Tensor, *, scale: float | None = None, what: str = "the kernel"
) -> tuple[Tensor, float]:
    """Lower Cholesky factor of a symmetric matrix and the jitter it took.

    a: (q, q), not modified. scale: the size of a healthy diagonal entry (default: the mean
    diagonal of `a`); pivots at rounding level of it count as a failure. Returns (L (q, q),
    jitter) with L Lᵀ = a + jitter·I; jitter is 0.0 for a well-conditioned matrix.
    """
    size = float(a.diagonal().mean()) if scale is None else scale
    if size <= 0:
        raise NumericalError(
            f"{what} has mean diagonal {size:.3g}; expected a positive one: the kernel is zero or "
            "indefinite, so check the network it came from"
        )
    lower, ok = _factor_and_check(a, _pivot_floor(a, size))
    if bool(ok):
        return lower, 0.0
    # A NaN always fails the pivot test, so a sound matrix is not read a second time.
    if not bool(torch.isfinite(a).all()):
        raise NumericalError(
            f"{what} of shape {tuple(a.shape)} holds NaN or infinite entries; expected finite "
            "numbers: look for overflow in the network's outputs or gradients"
        )
    for jitter in _jitter_steps(a.dtype, size):
        repaired = a.clone()
        repaired.diagonal().add_(jitter)
        lower, ok = _factor_and_check(repaired, _pivot_floor(a, size))
        if bool(ok):
            log.warning(
                "%s (%d x %d) is singular to working precision: added %.3g to its diagonal (%.1g "
                "of its scale)",
                what,
                *a.shape,
                jitter,
                jitter / size,
            )
            return lower, jitter
    lowest = float(torch.linalg.eigvalsh(a)[0])
    raise NumericalError(
        f"{what} of shape {tuple(a.shape)} is not positive definite: its lowest eigenvalue is "
        f"{lowest:.3g} where its diagonal is about {size:.3g}, and a jitter of {MAX_JITTER:g} of that "
        "did not repair it; check that it is symmetric and a Gram matrix, or raise `noise`"
    )


def whiten(lower: Tensor, b: Tensor, *, overwrite: bool = False) -> Tensor:
    """Compute L⁻¹ b for lower (q, q) and b (q, p), row-major; into b's memory with `overwrite`.

    Solved as bᵀ L⁻ᵀ: LAPACK is column-major, so the transpose of a row-major b needs no copy.
    """
    flipped = b.mT
    out = flipped if overwrite else None
    solved: Tensor = torch.linalg.solve_triangular(
        lower.mT, flipped, left=False, upper=True, out=out
    )
    return solved.mT


def solve_factored(lower: Tensor, b: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ b for lower (q, q) and b (q, p)."""
    return torch.cholesky_solve(b, lower)


def cholesky_inverse(lower: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹, (q, q)."""
    return torch.cholesky_inverse(lower)


def symmetric_eigen(a: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues ascending (q,) and orthonormal eigenvectors in columns (q, q)."""
    values, vectors = torch.linalg.eigh(a)
    return values, vectors


def symmetric_eigenvalues(a: Tensor) -> Tensor:
    """Eigenvalues ascending (q,) without the vectors, in a fraction of the time."""
    values: Tensor = torch.linalg.eigvalsh(a)
    return values


def block_factor(blocks: Tensor, scale: float) -> Tensor:
    """Lower Cholesky factors (m, b, b) of many small blocks (m, b, b), repaired where needed.

    Each block that is singular to working precision gets its own jitter; their number is logged.
    """
    if blocks.shape[-1] == 1:
        floor = _jitter_steps(blocks.dtype, scale)[0]
        low = blocks < floor
        if bool(low.any()):
            log.warning(
                "%d of %d posterior variances are below %.3g and were raised to it: the points "
                "are already determined; a larger `noise` avoids this",
                int(low.sum()),
                len(blocks),
                floor,
            )
        return blocks.clamp_min(floor).sqrt()
    lower, ok = _factor_and_check(blocks, _pivot_floor(blocks, scale))
    if not bool(ok.all()):
        bad = int((~ok).sum())
        log.warning("%d of %d posterior blocks are singular: jitter added", bad, len(ok))
    for jitter in _jitter_steps(blocks.dtype, scale):
        if bool(ok.all()):
            return lower
        weak = (~ok).nonzero().squeeze(1)
        shifted = blocks[weak] + jitter * torch.eye(blocks.shape[-1]).to(blocks)
        lower[weak], ok[weak] = _factor_and_check(shifted, _pivot_floor(blocks, scale))
    if not bool(ok.all()):
        raise NumericalError(
            f"{int((~ok).sum())} of {len(ok)} posterior covariance blocks are not positive "
            "definite even with jitter; expected a Gram matrix: check the kernel or raise `noise`"
        )
    return lower


def block_solve(lower: Tensor, rhs: Tensor) -> Tensor:
    """(L_j L_jᵀ)⁻¹ rhs_j for every block j: lower (m, b, b), rhs (m, b, p) -> (m, b, p)."""
    if lower.shape[-1] == 1:  # Batched LAPACK on 1 x 1 blocks would be a slow loop.
        return rhs / lower.square()
    return torch.cholesky_solve(rhs, lower)


def block_whiten(lower: Tensor, rhs: Tensor) -> Tensor:
    """L_j⁻¹ rhs_j for every block j: lower (m, b, b), rhs (m, b, p) -> (m, b, p)."""
    if lower.shape[-1] == 1:
        return rhs / lower
    solved: Tensor = torch.linalg.solve_triangular(lower, rhs, upper=False)
    return solved


def gram_downdate(base: Tensor, left: Tensor, right: Tensor | None = None) -> Tensor:
    """base − leftᵀ right, (p, q), in base's dtype; base is not modified.

    left (r, p), right (r, q). right=None means right = left with a symmetric base: then only the
    upper triangle is multiplied, in eight panels, and mirrored.
    """
    left = left.to(base.dtype)
    if right is not None:
        return torch.addmm(base, left.T, right.to(base.dtype), alpha=-1)
    n = base.shape[0]
    if n < 512:
        return torch.addmm(base, left.T, left, alpha=-1)
    out = torch.empty(base.shape, dtype=base.dtype, device=base.device)
    panel = -(-n // 8)
    for lo in range(0, n, panel):
        hi = min(n, lo + panel)
        panel_out = out[lo:hi, lo:]
        torch.addmm(base[lo:hi, lo:], left[:, lo:hi].T, left[:, lo:], alpha=-1, out=panel_out)
        out[hi:, lo:hi] = panel_out[:, hi - lo :].T
    return out


def symmetric_product(matrix: Tensor, vector: Tensor) -> Tensor:
    """Compute matrix @ vector for a symmetric (n, n) and (n,), reading half of the matrix.

    The product is bound by memory, so on a CPU BLAS's symv takes half to two thirds of the time.
    """
    if matrix.device.type != "cpu" or not matrix.is_contiguous():
        return matrix @ vector
    from scipy.linalg import blas  # Imported here, because it would delay the start of the server.

    symv = blas.dsymv if matrix.dtype == torch.float64 else blas.ssymv
    product = symv(1.0, matrix.numpy().T, vector.to(matrix.dtype).numpy())
    return torch.from_numpy(product)


def conjugate_gradients(
    matvec: Callable[[Tensor], Tensor],
    b: Tensor,
    *,
    tolerance: float = 1e-10,
    max_iterations: int | None = None,
    precondition: Callable[[Tensor], Tensor] | None = None,
    start: Mapping[str, Tensor] | None = None,
    watch: Callable[[int, dict[str, Tensor]], None] | None = None,
) -> tuple[Tensor, int]:
    """Solve A x = b for a symmetric positive definite A given by its products.

    Args:
        matvec: x (n, p) -> A x (n, p).
        b: (n,) or (n, p); the columns are solved side by side.
        tolerance: Stops when every column's residual is below tolerance·‖b‖.
        max_iterations: Default: 10 n.
        precondition: r -> approximately A⁻¹ r.
        start: A state that `watch` received, from which to continue.
        watch: Called after every iteration with its number and the state.

    Returns:
        The solution, in the shape of b, and the number of iterations.

    Raises:
        NumericalError: If the tolerance is not reached, or A is not positive definite.
    """
    if not b.is_floating_point() or b.dim() not in (1, 2):
        raise InputError(f"b is {b.dtype} {tuple(b.shape)}; expected floating (n,) or (n, p)")
    rhs = b[:, None] if b.dim() == 1 else b
    limit = 10 * len(rhs) if max_iterations is None else max_iterations
    x, residual = torch.zeros_like(rhs), rhs.clone()
    goal, still = tolerance * rhs.norm(dim=0), torch.zeros_like(rhs[0])
    direction, rz, done = torch.zeros_like(rhs), still, 0
    if start is not None:
        x, residual, direction, rz = (start[k] for k in ("x", "residual", "direction", "rz"))
        done = int(start["iteration"])
    for iteration in range(done, limit + 1):
        if bool((residual.norm(dim=0) <= goal).all()):
            return x.reshape(b.shape), iteration
        z = residual if precondition is None else precondition(residual)
        before, rz = rz, (residual * z).sum(0)
        # A converged column has a zero direction: its step must be 0, not 0/0.
        direction = z + torch.where(before > 0, rz / before, still) * direction
        product = matvec(direction)
        curvature = (direction * product).sum(0)
        if not bool((curvature[rz > 0] > 0).all()):
            raise NumericalError(
                "conjugate gradients met a direction of non-positive or non-finite curvature; "
                "expected a positive definite operator: add a regulariser"
            )
        step = torch.where(rz > 0, rz / curvature, still)
        x, residual = x + step * direction, residual - step * product
        if watch is not None:
            state = {"x": x, "residual": residual, "direction": direction, "rz": rz}
            watch(iteration + 1, state | {"iteration": torch.tensor(iteration + 1)})
    worst = float((residual.norm(dim=0) / rhs.norm(dim=0)).max())
    raise NumericalError(
        f"conjugate gradients reached {worst:.2g} of the right-hand side after {limit} iterations; "
        f"expected {tolerance:.2g}: raise max_iterations or the regulariser, or precondition"
    )
