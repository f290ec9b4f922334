"""The covariance of a linearised network: a prior kernel minus what the labels explained.

    k = Θ − Wᵀ W,    W = L⁻¹ Θ(X, ·),    L Lᵀ = Θ(X, X) + σ I

Two priors behind the same verbs, both on a flat space of N = n·b positions (b = 1 for a scalar
kernel, b = C for the full C×C-block kernel, position i·C + c):

- `DenseKernel`: Θ is given. A row of W is a vector over the N positions.
- `LowRankKernel`: Θ = Ψ Ψᵀ is given by its features. W = V Ψᵀ, and only V is kept: a row of it is
  a vector over the k features, so conditioning 50,000 points on 1,000 labels costs 1,000 × k.

Such rows are called factor rows below: (r, d) with d = N or d = k. They are float64 always; what
is N×N or N×k keeps the dtype it came in, because converting it would double the memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from labelahead.checks import span
from labelahead.linalg import gram_downdate

__all__ = ["Covariance", "DenseKernel", "Kernel", "LowRankKernel", "take"]

_ROWS = 2048  # rows converted to float64 at a time: 32 MB of features at k = 2048


def take(matrix: Tensor, at: Tensor, dim: int) -> Tensor:
    """matrix[at] along `dim`: a view when `at` is consecutive, a copy otherwise."""
    run = span(at)
    if run is not None:
        return matrix.narrow(dim, run.start, run.stop - run.start)
    return matrix.index_select(dim, at)


class Kernel(Protocol):
    """A prior covariance over N flat positions."""

    @property
    def size(self) -> int:
        """N."""

    @property
    def dtype(self) -> torch.dtype:
        """What pair-by-pair work is done in."""

    def rows(self, at: Tensor) -> Tensor:
        """Factor rows of the prior itself: (q,) -> (q, d), float64, a fresh copy."""

    def lift(self, factor: Tensor, at: Tensor) -> Tensor:
        """Values at positions of factor rows: (r, d), (q,) -> (r, q), float64."""

    def spread(self, factor: Tensor) -> Tensor:
        """Values everywhere of factor rows: (r, d) -> (r, N), float64."""

    def block(self, factors: tuple[Tensor, ...], rows: Tensor, cols: Tensor) -> Tensor:
        """Θ − WᵀW at (p,) × (q,): (p, q), in `dtype`."""

    def diagonal(self, factors: tuple[Tensor, ...], b: int, at: Tensor | None = None) -> Tensor:
        """The b×b diagonal blocks of Θ − WᵀW at flat positions: (q/b, b, b), float64."""


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
        """The matrix's own."""
        return self.matrix.dtype

    def rows(self, at: Tensor) -> Tensor:
        """Θ(at, ·): (q, N)."""
        return _fresh(take(self.matrix, at, 0))

    def lift(self, factor: Tensor, at: Tensor) -> Tensor:
        """Columns of the factor: (r, q)."""
        return take(factor, at, 1)

    def spread(self, factor: Tensor) -> Tensor:
        """The factor itself: (r, N)."""
        return factor

    def block(self, factors: tuple[Tensor, ...], rows: Tensor, cols: Tensor) -> Tensor:
        """Θ(rows, cols) − W(:, rows)ᵀ W(:, cols)."""
        base = take(take(self.matrix, rows, 0), cols, 1)
        same = len(rows) == len(cols) and bool((rows == cols).all())
        if not factors:
            return base.clone()
        for factor in factors:
            left = self.lift(factor, rows)
            base = gram_downdate(base, left, None if same else self.lift(factor, cols))
        return base

    def diagonal(self, factors: tuple[Tensor, ...], b: int, at: Tensor | None = None) -> Tensor:
        """b×b diagonal blocks, (n, b, b); all of them: `at` would save nothing here."""
        n = self.size // b
        if b == 1:
            out = self.matrix.diagonal().to(torch.float64).reshape(n, 1, 1)
        else:
            grid = self.matrix.view(n, b, n, b).diagonal(dim1=0, dim2=2)  # (b, b, n)
            out = grid.permute(2, 0, 1).to(torch.float64)
        for factor in factors:
            out = out - _outer(factor.view(-1, n, b).permute(1, 2, 0))
        return out.clone() if at is None else out[at[::b] // b]


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
        """The features' own."""
        return self.features.dtype

    def rows(self, at: Tensor) -> Tensor:
        """Ψ(at): (q, k)."""
        return _fresh(take(self.features, at, 0))

    def lift(self, factor: Tensor, at: Tensor) -> Tensor:
        """V Ψ(at)ᵀ: (r, q), accumulated in float64."""
        parts = [factor @ part.T for part in self._chunks(take(self.features, at, 0))]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def spread(self, factor: Tensor) -> Tensor:
        """V Ψᵀ: (r, N); one pass over Ψ in its own dtype."""
        if len(factor) == 1:  # gemv reads Ψ once at memory speed; a one-column gemm does not
            return (self.features @ factor[0].to(self.dtype)).to(torch.float64)[None]
        return (self.features @ factor.T.to(self.dtype)).T.to(torch.float64)

    def block(self, factors: tuple[Tensor, ...], rows: Tensor, cols: Tensor) -> Tensor:
        """(Ψ − Ψ VᵀV)(rows) Ψ(cols)ᵀ: weight space, so V is projected out once per row."""
        left = self.explained(factors, self.rows(rows)).to(self.dtype)
        return left @ take(self.features, cols, 0).T

    def explained(self, factors: tuple[Tensor, ...], rows: Tensor) -> Tensor:
        """rows (I − VᵀV): (q, k) -> (q, k), float64."""
        out = rows.clone()
        for factor in factors:
            out.addmm_(rows @ factor.T, factor, alpha=-1)
        return out

    def diagonal(self, factors: tuple[Tensor, ...], b: int, at: Tensor | None = None) -> Tensor:
        """b×b diagonal blocks at flat positions, default all: (q/b, b, b), float64."""
        features, parts = self.features if at is None else take(self.features, at, 0), []
        for psi in self._chunks(features, b):  # float64: a difference of nearly equal numbers
            block = _outer(psi.view(-1, b, psi.shape[1]))
            for factor in factors:
                block -= _outer((psi @ factor.T).view(-1, b, len(factor)))
            parts.append(block)
        return torch.cat(parts)

    @staticmethod
    def _chunks(rows: Tensor, b: int = 1) -> Iterator[Tensor]:
        size = max(b, _ROWS // b * b)
        for lo in range(0, len(rows), size):
            yield rows[lo : lo + size].to(torch.float64)


def _fresh(rows: Tensor) -> Tensor:
    """A float64 copy, row-major."""
    return rows.to(torch.float64, copy=True, memory_format=torch.contiguous_format)


def _outer(rows: Tensor) -> Tensor:
    """Gram matrix of each point's b rows: (n, b, r) -> (n, b, b)."""
    if rows.shape[1] == 1:  # a norm sums squares in one pass, where a product would be written out
        norms: Tensor = torch.linalg.vector_norm(rows, dim=2, keepdim=True)
        return norms.square()
    return rows @ rows.mT


@dataclass(frozen=True, eq=False)
class Covariance:
    """Prior minus factor rows; immutable, and every version shares the prior and the old rows."""

    prior: Kernel
    factors: tuple[Tensor, ...] = ()

    @property
    def rank(self) -> int:
        """How many factor rows have been taken off."""
        return sum(len(factor) for factor in self.factors)

    def rows(self, at: Tensor) -> Tensor:
        """Factor rows of the present covariance: (q,) -> (q, d), float64."""
        rows = self.prior.rows(at)
        for factor in self.factors:
            rows.addmm_(self.prior.lift(factor, at).T, factor, alpha=-1)
        return rows

    def less(self, factor: Tensor) -> "Covariance":
        """The covariance after (r, d) more factor rows are taken off.

        Blocks grow like a binary counter (a block is merged with a newer one at least as long),
        so that a thousand single labels cost neither a thousand products nor a thousand copies.
        """
        factors = list(self.factors)
        while factors and len(factors[-1]) <= len(factor):
            factor = torch.cat([factors.pop(), factor])
        return Covariance(self.prior, (*factors, factor))

    def block(self, rows: Tensor, cols: Tensor) -> Tensor:
        """(p,), (q,) -> (p, q), in the prior's dtype."""
        return self.prior.block(self.factors, rows, cols)

    def diagonal(self, b: int, at: Tensor | None = None) -> Tensor:
        """Diagonal blocks at flat positions, default all: (q/b, b, b), float64."""
        return self.prior.diagonal(self.factors, b, at)
