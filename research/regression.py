"""Kernel regression on a whole data set: tens of thousands of points, no dense float64 matrix.

    α = (Θ + σI)⁻¹ (Y − f),      f_lin(x) = f(x) + Θ(x, X) α

by preconditioned conjugate gradients. Θ is known by its products alone, in one of two forms on the
disk, whichever is smaller: `FeatureFile`, the gradients themselves (n, P) with Θ = ΨΨᵀ, for
networks with fewer parameters than there are points; `TileFile`, the lower triangle of Θ in square
tiles. Both are float32, are filled block by block, and go on where they were interrupted; sums over
blocks are float64.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.files import replace_file
from labelahead.gp.linalg import cholesky, conjugate_gradients, solve_factored, whiten

__all__ = ["FeatureFile", "Operator", "Solved", "TileFile", "nystrom", "regress"]

Progress = Callable[[str, int, int], None]  # what is under way, done, of how many
ROWS = 2048  # of features that are multiplied at a time
EVERY = 10  # iterations between two checkpoints


class Operator(Protocol):
    """A symmetric positive semidefinite (n, n) known by its products."""

    @property
    def size(self) -> int:
        """n."""

    def product(self, v: Tensor) -> Tensor:
        """Θ v: (n, p) float64 -> (n, p) float64."""

    def columns(self, at: Tensor) -> Tensor:
        """Θ(·, at): (n, q), float32."""

    def diagonal(self) -> Tensor:
        """(n,), float64."""


class _Blocks:
    """An array on the disk that is filled block by block; which are done is on the disk, too."""

    def __init__(self, path: Path, shape: tuple[int, int], count: int, about: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._note = path.with_suffix(".json")
        self.path, self.shape, self.about = path, shape, about
        self.done: set[int] = set()
        if path.exists() and self._note.exists():
            known = json.loads(self._note.read_text())
            if known["about"] != about or tuple(known["shape"]) != shape:
                raise InputError(
                    f"{path} holds the kernel of something else; choose another folder, or remove "
                    "the file"
                )
            self.done = set(known["done"])
        fresh = not (path.exists() and self.done)
        self.array = np.memmap(path, np.float32, "w+" if fresh else "r+", shape=shape)
        self.left = [i for i in range(count) if i not in self.done]

    def finish(self, block: int) -> None:
        """The block is whole: on the disk first, then in the note."""
        self.array.flush()
        self.done.add(block)
        partial = self._note.with_suffix(".partial")
        note = {"about": self.about, "shape": self.shape, "done": sorted(self.done)}
        partial.write_text(json.dumps(note))
        partial.replace(self._note)


class FeatureFile:
    """Θ = ΨΨᵀ with Ψ (n, P) float32 in a file: `make_folder(start, stop)` gives rows of it."""

    def __init__(
        self,
        path: str | Path,
        n: int,
        width: int,
        make: Callable[[int, int], Tensor],
        *,
        about: str = "",
        rows: int = ROWS,
        progress: Progress | None = None,
    ) -> None:
        count = -(-n // rows)
        blocks = _Blocks(Path(path), (n, width), count, about)
        for i in blocks.left:
            lo, hi = i * rows, min(n, (i + 1) * rows)
            blocks.array[lo:hi] = make(lo, hi).float().cpu().numpy()
            blocks.finish(i)
            if progress:
                progress("features", len(blocks.done), count)
        self._psi = torch.from_numpy(blocks.array)

    @property
    def size(self) -> int:
        """n."""
        return self._psi.shape[0]

    def weights(self, v: Tensor) -> Tensor:
        """Ψᵀ v: (n, p) -> (P, p), float64; predictions elsewhere are features times this."""
        total = torch.zeros((self._psi.shape[1], v.shape[1]), dtype=torch.float64)
        for lo, part in self._parts():
            total += part.T @ v[lo : lo + len(part)].float()
        return total

    def product(self, v: Tensor) -> Tensor:
        """Ψ (Ψᵀ v), every row of Ψ read twice."""
        w = self.weights(v).float()
        return torch.cat([(part @ w).double() for _, part in self._parts()])

    def columns(self, at: Tensor) -> Tensor:
        """(n, q)."""
        chosen = self._psi[at]
        return torch.cat([part @ chosen.T for _, part in self._parts()])

    def diagonal(self) -> Tensor:
        """(n,)."""
        return torch.cat([part.double().square().sum(1) for _, part in self._parts()])

    def _parts(self) -> Iterator[tuple[int, Tensor]]:
        for lo in range(0, self.size, ROWS):
            yield lo, self._psi[lo : lo + ROWS]


class TileFile:
    """The lower triangle of Θ (n, n) float32 in square tiles: `make_folder(rows, cols)` gives one."""

    def __init__(
        self,
        path: str | Path,
        n: int,
        make: Callable[[slice, slice], Tensor],
        *,
        about: str = "",
        tile: int = ROWS,
        progress: Progress | None = None,
    ) -> None:
        self.size, self._tile = n, tile
        across = -(-n // tile)
        self._pairs = [(i, j) for i in range(across) for j in range(i + 1)]
        shape = (len(self._pairs) * tile, tile)
        blocks = _Blocks(Path(path), shape, len(self._pairs), about)
        for k in blocks.left:
            i, j = self._pairs[k]
            block = make(self._span(i), self._span(j)).float().cpu().numpy()
            blocks.array[k * tile : k * tile + block.shape[0], : block.shape[1]] = block
            blocks.finish(k)
            if progress:
                progress("kernel", len(blocks.done), len(self._pairs))
        self._array = torch.from_numpy(blocks.array)

    def _span(self, i: int) -> slice:
        return slice(i * self._tile, min(self.size, (i + 1) * self._tile))

    def _tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        for k, (i, j) in enumerate(self._pairs):
            rows, cols = self._span(i), self._span(j)
            whole = self._array[k * self._tile : (k + 1) * self._tile]
            yield rows, cols, whole[: rows.stop - rows.start, : cols.stop - cols.start]

    def product(self, v: Tensor) -> Tensor:
        """Every tile serves both triangles."""
        out, small = torch.zeros_like(v), v.float()
        for rows, cols, tile in self._tiles():
            out[rows] += tile @ small[cols]
            if rows != cols:
                out[cols] += tile.T @ small[rows]
        return out

    def columns(self, at: Tensor) -> Tensor:
        """(n, q)."""
        out = torch.zeros((self.size, len(at)))
        for rows, cols, tile in self._tiles():
            here = ((at >= cols.start) & (at < cols.stop)).nonzero().squeeze(1)
            out[rows, here] = tile[:, at[here] - cols.start]
            if rows != cols:
                there = ((at >= rows.start) & (at < rows.stop)).nonzero().squeeze(1)
                out[cols, there] = tile[at[there] - rows.start].T
        return out

    def diagonal(self) -> Tensor:
        """(n,)."""
        return torch.cat([t.diagonal().double() for r, c, t in self._tiles() if r == c])


def nystrom(
    operator: Operator, noise: float, rank: int, rng: torch.Generator
) -> Callable[[Tensor], Tensor]:
    """Solves with Θ(·,S) Θ(S,S)⁻¹ Θ(S,·) + σI for a random S, to precondition with.

    With B Bᵀ that approximation, B (n, q): (BBᵀ + σI)⁻¹ v = (v − B (BᵀB + σI)⁻¹ Bᵀ v)/σ.
    """
    at = torch.randperm(operator.size, generator=rng)[: min(rank, operator.size)]
    columns = operator.columns(at).double()
    inner = columns[at]
    # Float32 kernels are rounded: what lies below that is no part of the approximation.
    inner.diagonal().add_(1e-6 * float(inner.diagonal().mean()) * len(at) ** 0.5)
    lower, _ = cholesky(inner, what="the kernel of the preconditioner's points")
    B = whiten(lower, columns.T, overwrite=True).T
    middle = B.T @ B
    middle.diagonal().add_(noise)
    factor, _ = cholesky(middle, what="the preconditioner")

    def solve(v: Tensor) -> Tensor:
        # In float64: the difference is smaller than v by the condition number.
        return (v - B @ solve_factored(factor, B.T @ v)) / noise

    return solve


class Solved(NamedTuple):
    """α, and how it was got."""

    alpha: Tensor  # (n, C), float64
    iterations: int
    residuals: tuple[float, ...]  # relative, the worst column, after every iteration


def regress(
    operator: Operator,
    targets: Tensor,
    *,
    noise: float = 1e-3,
    rank: int = 1000,
    tolerance: float = 1e-3,
    seed: int = 0,
    most: int = 1000,
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> Solved:
    """α = (Θ + σI)⁻¹ targets by preconditioned conjugate gradients; targets (n, C).

    noise: relative, σ = noise × mean diagonal. rank: of the Nyström preconditioner, 0 for none.
    tolerance: residual relative to the targets, as the iteration sees it; products are float32,
    so that the true one of an ill-conditioned kernel stays at some 1e-3.
    checkpoint: a file that keeps the state, so that the same call goes on after an interruption; a
    state of other targets or of another noise or preconditioner is left aside.
    """
    if targets.dim() != 2 or len(targets) != operator.size:
        raise InputError(
            f"targets are {tuple(targets.shape)}; expected ({operator.size}, C), a row a point"
        )
    if not noise > 0:
        raise InputError(f"noise is {noise}; expected a positive number such as 1e-3")
    sigma = noise * float(operator.diagonal().mean())
    b, history = targets.double(), list[float]()
    file = Path(checkpoint) if checkpoint else None
    start = None
    # Directions that are conjugate for one system are not for another: the answer would be wrong.
    spread = torch.arange(len(b), dtype=torch.float64).cos() @ b
    system = torch.tensor([sigma, rank, seed, *b.norm(dim=0), *spread], dtype=torch.float64)
    if file is not None and file.exists():
        kept = torch.load(file, weights_only=True)
        known = kept.pop("system", torch.empty(0))
        if known.shape == system.shape and torch.allclose(known, system, rtol=1e-6, atol=1e-6):
            history, start = kept.pop("history").tolist(), kept
    scale = b.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)

    def watch(iteration: int, state: dict[str, Tensor]) -> None:
        history.append(float((state["residual"].norm(dim=0) / scale).max()))
        if progress:
            progress(f"solving, residual {history[-1]:.1e}", iteration, most)
        if file is not None and iteration % EVERY == 0:
            past = torch.tensor(history, dtype=torch.float64)
            replace_file(
                file,
                lambda handle: torch.save({**state, "history": past, "system": system}, handle),
            )

    solve = nystrom(operator, sigma, rank, torch.Generator().manual_seed(seed)) if rank else None
    alpha, iterations = conjugate_gradients(
        lambda v: operator.product(v) + sigma * v,
        b,
        tolerance=tolerance,
        max_iterations=most,
        precondition=solve,
        start=start,
        watch=watch,
    )
    if file is not None:
        file.unlink(missing_ok=True)
    return Solved(alpha, iterations, tuple(history))
