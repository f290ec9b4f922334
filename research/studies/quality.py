"""How well a scalar kernel stands in for the full one: distances, spectra, regression.

    quality = compare_kernels(model, x)
    quality.distances["pseudo"], quality.off_diagonal / quality.diagonal

The full kernel Θ of n items and C outputs is (n·C, n·C). It is walked in panels of rows, upper half
only, so that it need not be held; every scalar kernel is read off its C×C blocks on the way.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn

from labelahead.errors import InputError
from labelahead.gp.linalg import cholesky, solve_factored, symmetric_eigenvalues, symmetric_product
from labelahead.models.training import predict
from labelahead.ntk import kernel

__all__ = ["KINDS", "KernelQuality", "compare_kernels", "extreme_eigenvalues", "regress"]

KINDS = ("pseudo", "single", "trace")
PANEL = 512 << 20  # bytes of a panel of the full kernel
SLICE = 64 << 20  # bytes of the float64 copy of its part that is summed at a time
# Rows from which Lanczos is worth its while for both ends of the spectrum. Seconds, dense/Lanczos,
# one thread, float64, kernel of an fcn: 400 rows 0.014/0.017, 600 0.04/0.03, 1,000 0.17/0.11,
# 2,000 0.81/0.41, 4,000 5.2/4.0. Up to here the dense solver, which no singular kernel disturbs.
DENSE = 1000


@dataclass(frozen=True, eq=False)
class KernelQuality:
    """The full kernel Θ beside scalar kernels K, each as K⊗I.

    diagonal, off_diagonal: mean absolute entry on and off the diagonals of the C×C blocks.
    distances: ‖K⊗I − Θ‖_F / ‖Θ‖_F, PN's measure; it cannot fall faster than it is below one, for
    Θ itself contains the error. errors: ‖K⊗I − Θ‖_F / ‖T⊗I‖_F with the trace kernel T, the part
    of Θ that any scalar kernel can have, instead. kernels: K, (n, n) each, float64. full: Θ if it
    was to be kept. held: bytes of the largest piece of Θ in memory at a time.
    """

    items: int
    classes: int
    norm: float
    diagonal: float
    off_diagonal: float
    distances: dict[str, float]
    errors: dict[str, float]
    kernels: dict[str, Tensor]
    full: Tensor | None
    held: int


@dataclass(frozen=True)
class Spectrum:
    """Both ends of a spectrum. condition: None if the smallest is lost in rounding."""

    largest: float
    smallest: float
    condition: float | None
    method: str


def compare_kernels(
    model: nn.Module, x: Tensor, *, rows: int | None = None, keep: bool = False
) -> KernelQuality:
    """Compare the full kernel of `model` on x (n, ...) with the scalar ones.

    rows: items a panel; by default as many as make 512 MiB. keep: hand back the full kernel too.
    """
    n, C = len(x), predict(model, x[:2]).shape[1]
    like = next(p for p in model.parameters() if p.requires_grad)
    size = rows if rows is not None else PANEL // (n * C * C * like.element_size())
    if rows is not None and rows < 1:
        raise InputError(f"rows is {rows}; expected 1 or more items a panel, or None")
    size = max(1, min(n, size))
    sums = _Sums(n, C)
    full = like.new_zeros(n * C, n * C).detach() if keep and size < n else None
    whole: Tensor | None = None
    for start in range(0, n, size):
        part = x[start : start + size]
        # Only the upper half is computed; a self kernel does the same by itself.
        panel = kernel(model, part, None if size == n else x[start:], kind="full")
        sums.add(panel, start, len(part))
        if full is not None:
            low, high = start * C, start * C + panel.shape[0]
            full[low:high, low:] = panel
            full[high:, low:high] = panel[:, high - low :].T
        elif keep:
            whole = panel
    held = n * size * C * C * like.element_size()
    return sums.quality(whole if full is None else full, n * n * C * C * 8 if keep else held)


class _Sums:
    """What a walk over the C×C blocks of Θ gathers."""

    def __init__(self, n: int, C: int) -> None:
        self.n, self.C = n, C
        self.kernels = {kind: torch.zeros(n, n, dtype=torch.float64) for kind in KINDS}
        self.on = self.off = self.on_square = self.off_square = 0.0
        self.gap = dict.fromkeys(KINDS, 0.0)

    def add(self, panel: Tensor, start: int, count: int) -> None:
        """Take in rows `start` to `start + count` against all items from `start` on."""
        for low, blocks in self._slices(panel, count):
            diagonal = blocks.diagonal(dim1=2, dim2=3)  # (b, m, C)
            on = diagonal.clone()
            diagonal.zero_()
            # Beyond the square on the diagonal, each block stands for its mirror image too.
            weight = blocks.new_ones(on.shape[1])
            weight[count:] = 2.0
            self.on += float(on.abs().sum((0, 2)) @ weight)
            self.off += float(blocks.abs().sum((0, 2, 3)) @ weight)
            self.on_square += float(on.square().sum((0, 2)) @ weight)
            self.off_square += float(blocks.square().sum((0, 2, 3)) @ weight)
            values = {
                "pseudo": (on.sum(2) + blocks.sum((2, 3))) / self.C,  # (PN-2)
                "single": on[..., 0],
                "trace": on.mean(2),
            }
            for kind, value in values.items():
                self.gap[kind] += float((on - value[..., None]).square().sum((0, 2)) @ weight)
                at = slice(start + low, start + low + len(value))
                self.kernels[kind][at, start:] = value
                self.kernels[kind][start:, at] = value.T

    def _slices(self, panel: Tensor, count: int) -> Iterator[tuple[int, Tensor]]:
        """Blocks (b, m, C, C) in float64, copies, a few rows of items at a time."""
        C, m = self.C, panel.shape[1] // self.C
        step = max(1, SLICE // (m * C * C * 8))
        for low in range(0, count, step):
            part = panel[low * C : min(count, low + step) * C]
            blocks = part.reshape(-1, C, m, C).permute(0, 2, 1, 3)
            yield low, blocks.to(torch.float64, copy=True).contiguous()

    def quality(self, full: Tensor | None, held: int) -> KernelQuality:
        """The sums as means and ratios."""
        n, C = self.n, self.C
        norm = (self.on_square + self.off_square) ** 0.5
        scalar = C**0.5 * float(self.kernels["trace"].norm())  # ‖T⊗I‖
        apart = {kind: (gap + self.off_square) ** 0.5 for kind, gap in self.gap.items()}
        return KernelQuality(
            n,
            C,
            norm,
            self.on / (n * n * C),
            self.off / max(1, n * n * C * (C - 1)),
            {kind: value / norm for kind, value in apart.items()},
            {kind: value / scalar for kind, value in apart.items()},
            self.kernels,
            full,
            held,
        )


def extreme_eigenvalues(
    matrix: Tensor, *, method: Literal["auto", "dense", "lanczos"] = "auto"
) -> Spectrum:
    """The largest and the smallest eigenvalue of a positive semi-definite matrix.

    Lanczos takes the largest from products with the matrix and the smallest from solves with its
    Cholesky factor, for it does not converge to small eigenvalues by products.
    """
    if method not in ("auto", "dense", "lanczos"):
        raise InputError(f"method is {method!r}; expected auto, dense or lanczos")
    a = matrix.double()
    dense = method == "dense" or len(a) < 3 or (method == "auto" and len(a) < DENSE)
    if dense:
        values = symmetric_eigenvalues(a)
        largest, smallest, way = float(values[-1]), float(values[0]), "dense"
    else:
        largest = _lanczos(lambda v: symmetric_product(a, v), len(a))
        lower, jitter = cholesky(a)
        inverse = _lanczos(lambda v: solve_factored(lower, v[:, None])[:, 0], len(a))
        smallest, way = 1 / inverse - jitter, "lanczos"
    # Below this an eigenvalue is the rounding of the kernel it came from.
    floor = float(torch.finfo(matrix.dtype).eps) * len(a) * largest
    return Spectrum(largest, smallest, largest / smallest if smallest > floor else None, way)


def _lanczos(product: Callable[[Tensor], Tensor], size: int) -> float:
    """The largest eigenvalue of a symmetric operator."""

    def apply(v: NDArray[np.float64]) -> NDArray[np.float64]:
        return product(torch.from_numpy(v.ravel().copy())).numpy()

    operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(size)
    (largest,) = eigsh(operator, k=1, which="LA", v0=start, tol=1e-7, return_eigenvectors=False)
    return float(largest)


def regress(prior: Tensor, cross: Tensor, residuals: Tensor, noise: float) -> tuple[Tensor, float]:
    """What a network's outputs change by when it is linearised and trained to the end (PN-5, PN-6).

    prior: kernel of the training items, (n, n) with residuals Y − f(X) (n, C), or (n·C, n·C) with
    (n·C, 1). cross: of test and training items. noise: regulariser, relative to the mean diagonal.
    Returns cross (prior + noise)⁻¹ residuals, float64, and the jitter that was needed beyond it.
    """
    a = prior.double().clone()
    scale = float(a.diagonal().mean())
    a.diagonal().add_(noise * scale)
    lower, jitter = cholesky(a, scale=scale)
    return cross.double() @ solve_factored(lower, residuals.double()), jitter
