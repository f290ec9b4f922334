"""The covariance of a linearised network: a prior kernel minus what the labels explain.

    k = Θ − Wᵀ W,    W = L⁻¹ Θ(X, ·),    L Lᵀ = Θ(X, X) + σ I

Three kinds of prior have the same interface, on a flat space of N = n·b positions (b = 1 for a
scalar kernel, b = C for the full C×C-block kernel, position i·C + c):

- `DenseKernel`: Θ is given. A row of W is a vector over the N positions.
- `CosineKernel`: Θ(x,x') = κ(⟨x,x'⟩), computed on demand: nothing N×N is ever formed.
- `LowRankKernel`: Θ = Ψ Ψᵀ is given by its features. W = V Ψᵀ, and only V is stored: a row of it is
  a vector over the k features, so conditioning 50,000 points on 1,000 labels costs 1,000 × k.

These rows are called factor rows below: (r, d) with d = N or d = k. Factor rows, their values and
variances are always float64. N×N and N×k matrices keep their dtype, because converting them would
double the memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from labelahead.gp.checks import as_slice
from labelahead.gp.linalg import gram_downdate

__all__ = [
    "CosineKernel",
    "Covariance",
    "DenseKernel",
    "Kernel",
    "LeadingRowsKernel",
    "LowRankKernel",
    "NystromKernel",
    "take",
]

FLOAT64_ROWS_PER_CHUNK = 2048  # 32 MB of features at k = 2048


def take(matrix: Tensor, at: Tensor, dim: int) -> Tensor:
    """Select matrix[at] along `dim`: a view when `at` is consecutive, a copy otherwise."""
    consecutive = as_slice(at)
    if consecutive is not None:
        return matrix.narrow(dim, consecutive.start, consecutive.stop - consecutive.start)
    return matrix.index_select(dim, at)


@dataclass(frozen=True, eq=False)
class DenseKernel:
    """Θ as a symmetric matrix (N, N), referenced and never modified."""

    matrix: Tensor

    @property
    def size(self) -> int:
        """N."""
        return self.matrix.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of kernel blocks: that of the matrix."""
        return self.matrix.dtype

    def rows(self, at: Tensor) -> Tensor:
        """Factor rows of the prior itself, Θ(at, ·): (q,) -> (q, N), a new copy."""
        return _copy_float64(take(self.matrix, at, 0))

    def evaluate_at(self, factor: Tensor, at: Tensor) -> Tensor:
        """Evaluate factor rows at positions (q,): their columns, (r, N) -> (r, q)."""
        return take(factor, at, 1)

    def evaluate_everywhere(self, factor: Tensor) -> Tensor:
        """Evaluate factor rows at every position: the rows themselves, (r, N)."""
        return factor

    def block(self, factors: tuple[Tensor, ...], rows: Tensor, cols: Tensor) -> Tensor:
        """Θ − WᵀW at (p,) × (q,): Θ(rows, cols) − W(:, rows)ᵀ W(:, cols), (p, q)."""
        base = take(take(self.matrix, rows, 0), cols, 1)
        same = len(rows) == len(cols) and bool((rows == cols).all())
        if not factors:
            return base.clone()
        for factor in factors:
            left = self.evaluate_at(factor, rows)
            base = gram_downdate(base, left, None if same else self.evaluate_at(factor, cols))
        return base

    def diagonal(self, factors: tuple[Tensor, ...], b: int, at: Tensor | None = None) -> Tensor:
        """The b×b diagonal blocks of Θ − WᵀW at flat positions, (q/b, b, b).

        All blocks are computed first, whatever `at` is.
        """
        n = self.size // b
        if b == 1:
            out = self.matrix.diagonal().to(torch.float64).reshape(n, 1, 1)
        else:
            grid = self.matrix.view(n, b, n, b).diagonal(dim1=0, dim2=2)  # (b, b, n)
            out = grid.permute(2, 0, 1).to(torch.float64)
        for factor in factors:
            out = out - _gram_blocks(factor.view(-1, n, b).permute(1, 2, 0))
        return out.clone() if at is None else out[at[::b] // b]


@dataclass(frozen=True, eq=False)
class LeadingRowsKernel(DenseKernel):
    """A scalar Θ with known rows at the first s positions, matrix (s, N), and known diagonal (N,).

    That suffices to condition on labels at these s positions and to predict at all N.
    """

    variances: Tensor

    @property
    def size(self) -> int:
        """N."""
        return self.matrix.shape[1]

    def diagonal(self, factors: tuple[Tensor, ...], b: int, at: Tensor | None = None) -> Tensor:
        """Variances at positions, default all: (q, 1, 1), float64."""
        out = self.variances.to(torch.float64)
        for factor in factors:
            out = out - factor.square().sum(0)
        return (out if at is None else out[at]).view(-1, 1, 1)


@dataclass(frozen=True, eq=False)
class CosineKernel:
    """Θ(x,x') = κ(⟨x,x'⟩) for unit vectors x (N, d); κ acts elementwise on tensors, κ(1) = 1.

    max_block_entries: kernel entries in a temporary.
    """

    unit_vectors: Tensor
    function: Callable[[Tensor], Tensor]
    max_block_entries: int = 1 << 20

    @property
    def size(self) -> int:
        """N."""
        return self.unit_vectors.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of kernel blocks: that of the unit vectors."""
        return self.unit_vectors.dtype

    def prior_block(self, rows: Tensor, cols: Tensor) -> Tensor:
        """Θ at (p,) × (q,), in the unit vectors' dtype; exactly one between a point and itself."""
        cosines = take(self.unit_vectors, rows, 0) @ take(self.unit_vectors, cols, 0).T
        values = self.function(cosines)
        if _are_disjoint(rows, cols):
            return values
        same = (
            (rows[:, None] == cols).nonzero(as_tuple=True)
            if len(rows) * len(cols) <= self.max_block_entries
            else _find_shared_positions(rows, cols)
        )
        values[same] = 1.0
        return values

    def rows(self, at: Tensor) -> Tensor:
        """Θ(at, ·): (q, N)."""
        return _copy_float64(self.prior_block(at, torch.arange(self.size, device=at.device)))

    def evaluate_at(self, factor: Tensor, at: Tensor) -> Tensor:
        """Evaluate factor rows at positions (q,): their columns, (r, q)."""
        return take(factor, at, 1)

    def evaluate_everywhere(self, factor: Tensor) -> Tensor:
        """Evaluate factor rows at every position: the rows themselves, (r, N)."""
        return factor

    def block(self, factors: tuple[Tensor, ...], rows: Tensor, cols: Tensor) -> Tensor:
        """Θ(rows, cols) − W(:, rows)ᵀ W(:, cols), a few rows at a time."""
        out = torch.empty((len(rows), len(cols)), dtype=self.dtype, device=self.unit_vectors.device)
        for part in torch.split(
            torch.arange(len(rows), device=rows.device),
            max(1, self.max_block_entries // max(1, len(cols))),
        ):
            values = self.prior_block(rows[part], cols)
            for factor in factors:
                values = gram_downdate(
                    values, self.evaluate_at(factor, rows[part]), self.evaluate_at(factor, cols)
                )
            out[part] = values
        return out

    def diagonal(self, factors: tuple[Tensor, ...], b: int, at: Tensor | None = None) -> Tensor:
        """Variances at positions, default all: (q, 1, 1), float64; the kernel is scalar."""
        n = self.size if at is None else len(at)
        out = torch.ones((n, 1, 1), dtype=torch.float64, device=self.unit_vectors.device)
        for factor in factors:
            part = factor if at is None else self.evaluate_at(factor, at)
            out = out - part.square().sum(0).view(-1, 1, 1)
        return out


def _are_disjoint(rows: Tensor, cols: Tensor) -> bool:
    """Whether all positions of one list precede all of the other, so that they share none."""
    if not len(rows) or not len(cols):
        return True
    return bool(rows.max() < cols.min()) or bool(cols.max() < rows.min())


def _find_shared_positions(rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor]:
    """Indices into rows and into cols of the positions that both hold; each list is distinct."""
    order = cols.argsort()
    index = torch.searchsorted(cols[order], rows).clamp_max_(len(cols) - 1)
    shared = (cols[order[index]] == rows).nonzero().squeeze(1)
    return shared, order[index[shared]]


@dataclass(frozen=True, eq=False)
class LowRankKernel:
    """Θ = Ψ Ψᵀ with features Ψ (N, k), referenced and never modified."""

    features: Tensor

    @property
    def size(self) -> int:
        """N."""
        return self.features.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of kernel blocks: that of the features."""
        return self.features.dtype

    def rows(self, at: Tensor) -> Tensor:
        """Ψ(at): (q, k), a new copy."""
        return _copy_float64(take(self.features, at, 0))

    def evaluate_at(self, factor: Tensor, at: Tensor) -> Tensor:
        """Evaluate factor rows at positions (q,): V Ψ(at)ᵀ, (r, q), accumulated in float64."""
        parts = [factor @ part.T for part in self._chunks(take(self.features, at, 0))]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def evaluate_everywhere(self, factor: Tensor) -> Tensor:
        """Evaluate factor rows at every position: V Ψᵀ, (r, N); one pass over Ψ in its dtype."""
        if len(factor) == 1:  # gemv reads Ψ once at memory speed; a one-column gemm does not
            return (self.features @ factor[0].to(self.dtype)).to(torch.float64)[None]
        return (self.features @ factor.T.to(self.dtype)).T.to(torch.float64)

    def block(self, factors: tuple[Tensor, ...], rows: Tensor, cols: Tensor) -> Tensor:
        """(Ψ − Ψ VᵀV)(rows) Ψ(cols)ᵀ, (p, q): V is projected out once per row, in feature space."""
        out = torch.empty((len(rows), len(cols)), dtype=self.dtype, device=self.features.device)
        right = take(self.features, cols, 0).T
        for lo in range(0, len(rows), FLOAT64_ROWS_PER_CHUNK):
            left = self.project_out(factors, self.rows(rows[lo : lo + FLOAT64_ROWS_PER_CHUNK])).to(
                self.dtype
            )
            torch.mm(left, right, out=out[lo : lo + FLOAT64_ROWS_PER_CHUNK])
        return out

    def project_out(self, factors: tuple[Tensor, ...], rows: Tensor) -> Tensor:
        """Project the factors out of rows: rows (I − VᵀV), (q, k) -> (q, k), float64."""
        out = rows.clone() if factors else rows
        for factor in factors:
            out.addmm_(rows @ factor.T, factor, alpha=-1)
        return out

    def diagonal(self, factors: tuple[Tensor, ...], b: int, at: Tensor | None = None) -> Tensor:
        """b×b diagonal blocks at flat positions, default all: (q/b, b, b), float64."""
        features, parts = self.features if at is None else take(self.features, at, 0), []
        for psi in self._chunks(features, b):  # float64: a difference of nearly equal numbers
            block = _gram_blocks(psi.view(-1, b, psi.shape[1]))
            for factor in factors:
                block -= _gram_blocks((psi @ factor.T).view(-1, b, len(factor)))
            parts.append(block)
        return torch.cat(parts)

    @staticmethod
    def _chunks(rows: Tensor, b: int = 1) -> Iterator[Tensor]:
        size = max(b, FLOAT64_ROWS_PER_CHUNK // b * b)
        for lo in range(0, len(rows), size):
            yield rows[lo : lo + size].to(torch.float64)


@dataclass(frozen=True, eq=False)
class NystromKernel(LowRankKernel):
    """Θ = Ψ Ψᵀ + diag(r), with the variance r (N,) that the features miss at each point."""

    residual_variance: Tensor

    def block(self, factors: tuple[Tensor, ...], rows: Tensor, cols: Tensor) -> Tensor:
        """The block of the features, plus r where a point meets itself.

        Positions are distinct in each list.
        """
        out = super().block(factors, rows, cols)
        if not _are_disjoint(rows, cols):
            in_rows, in_cols = _find_shared_positions(rows, cols)
            out[in_rows, in_cols] += self.residual_variance[rows[in_rows]].to(out.dtype)
        return out

    def diagonal(self, factors: tuple[Tensor, ...], b: int, at: Tensor | None = None) -> Tensor:
        """The diagonal of the features, plus r."""
        return super().diagonal(factors, b, at) + (
            self.residual_variance if at is None else self.residual_variance[at]
        ).view(-1, 1, 1)


Kernel = DenseKernel | CosineKernel | LowRankKernel  # a prior covariance over N flat positions


def _copy_float64(rows: Tensor) -> Tensor:
    """Copy to float64, row-major."""
    return rows.to(torch.float64, copy=True, memory_format=torch.contiguous_format)


def _gram_blocks(rows: Tensor) -> Tensor:
    """Gram matrix of each point's b rows: (n, b, r) -> (n, b, b)."""
    if rows.shape[1] == 1:  # a norm sums squares in one pass, where a product would be written out
        norms: Tensor = torch.linalg.vector_norm(rows, dim=2, keepdim=True)
        return norms.square()
    return rows @ rows.mT


@dataclass(frozen=True, eq=False)
class Covariance:
    """Prior minus factor rows; immutable: updates share the prior and the earlier rows."""

    prior: Kernel
    factors: tuple[Tensor, ...] = ()

    @property
    def rank(self) -> int:
        """Number of factor rows subtracted."""
        return sum(len(factor) for factor in self.factors)

    def rows(self, at: Tensor) -> Tensor:
        """Factor rows of the present covariance: (q,) -> (q, d), float64."""
        rows = self.prior.rows(at)
        for factor in self.factors:
            rows.addmm_(self.prior.evaluate_at(factor, at).T, factor, alpha=-1)
        return rows

    def subtract_factor(self, factor: Tensor) -> "Covariance":
        """Return the covariance minus (r, d) more factor rows.

        Blocks of rows grow like a binary counter (a block is merged with a newer one at least as
        long), so that a thousand single labels need neither a thousand products nor a thousand
        copies.
        """
        factors = list(self.factors)
        while factors and len(factors[-1]) <= len(factor):
            factor = torch.cat([factors.pop(), factor])
        return Covariance(self.prior, (*factors, factor))

    def without_last_row(self) -> "Covariance":
        """Return the covariance without the last factor row."""
        *factors, last = self.factors
        return Covariance(self.prior, (*factors, *((last[:-1],) if len(last) > 1 else ())))

    def block(self, rows: Tensor, cols: Tensor) -> Tensor:
        """(p,), (q,) -> (p, q), in the prior's dtype."""
        return self.prior.block(self.factors, rows, cols)

    def diagonal(self, b: int, at: Tensor | None = None) -> Tensor:
        """Diagonal blocks at flat positions, default all: (q/b, b, b), float64."""
        return self.prior.diagonal(self.factors, b, at)
