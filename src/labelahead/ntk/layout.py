"""Find which entries at a site belong to which sample, by comparing values, never shapes."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.ntk.rules import Broadcast, LayerRule, Lookup

__all__ = [
    "GraphChangedError",
    "Layout",
    "LayoutCache",
    "SpreadOutError",
    "find_layout",
    "is_close",
    "row_norms",
    "sample_norms",
]


ENTRIES_PER_ROW = 64  # compared first


class GraphChangedError(Exception):
    """A batch has another graph than the probe, so the plan does not apply."""


class SpreadOutError(GraphChangedError):
    """Gradients arrive at several positions where those of the probe arrived at one."""


@dataclass(frozen=True)
class Layout:
    """Where the samples are at a site: the axis of g, and the positions folded into it."""

    axis: int
    outer: int  # positions before the samples
    inner: int  # positions after them

    def split(self, t: Tensor, n: int, lead: int = 0) -> Tensor:
        """Move samples first: (lead, before, n·r, rest) -> (n, lead, before, outer, inner, rest).

        `lead` counts leading dimensions (the directions) that precede the site's own.
        """
        axis = self.axis + lead
        if t.shape[axis] != self.outer * n * self.inner:
            raise GraphChangedError
        shape = (*t.shape[:axis], self.outer, n, self.inner, *t.shape[axis + 1 :])
        return t.reshape(shape).movedim(axis + 1, 0)

    def flatten_around(self, t: Tensor, n: int, lead: int = 0) -> Tensor:
        """Reshape to (axes before the samples, n, axes after them), a view if memory allows."""
        axis = self.axis + lead
        if t.shape[axis] != self.outer * n * self.inner:
            raise GraphChangedError
        return t.reshape(
            math.prod(t.shape[:axis]) * self.outer, n, self.inner * math.prod(t.shape[axis + 1 :])
        )


def sample_norms(g: Tensor, layout: Layout | None, n: int) -> Tensor:
    """Norm of the gradient (K, ...) of each sample, (n,); of all of it, (1,), without a layout."""
    return row_norms(g.reshape(1, 1, -1) if layout is None else layout.flatten_around(g, n, lead=1))


def row_norms(rows: Tensor) -> Tensor:
    """Norms (n,) of (before, n, after)."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=2)
    return norms[0] if norms.shape[0] == 1 else torch.linalg.vector_norm(norms, dim=0)


def is_close(a: Tensor, b: Tensor, scale: float = 0.0, eps: float = 0.0) -> bool:
    """Whether a and b are equal up to the rounding of sums of that scale.

    eps: the coarsest rounding in their computation, if coarser than that of their dtype.
    """
    if a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    if a.numel():
        scale = max(scale, float(a.detach().abs().amax()), float(b.detach().abs().amax()))
    return bool(((a - b).abs() <= tolerance(a, eps) * scale).all())


def tolerance(t: Tensor, eps: float) -> float:
    """Tolerance relative to the largest entry, for results of t's dtype or rounding eps."""
    eps = max(eps, torch.finfo(t.dtype).eps)
    return 1e-7 if eps < 1e-10 else max(1e-3, 10 * eps)


LayoutCache = dict[tuple[object, ...], list["Layout"]]
"""Pairs of tensors -> the layouts that fit; many sites share their inputs."""


def find_layout(
    one: LayerRule | None,
    other: LayerRule | None,
    g: Tensor,
    h: Tensor,
    eps: float = 0.0,
    cache: LayoutCache | None = None,
) -> Layout | None:
    """Find the layout under which samples (0, j) of `one`, g and (j, 0, k) of `other`, h agree.

    g and h are the gradients at the site, without directions. None if no layout fits or several do.
    """
    if one is None or other is None or g.ndim != h.ndim or g.is_complex():
        return None
    if one.a is not None and one.a.is_complex():
        return None
    axes = [i for i, (p, q) in enumerate(zip(g.shape, h.shape, strict=True)) if p != q]
    if len(axes) != 1:
        return None
    (axis,) = axes
    positions = g.shape[axis] // 2
    if g.shape[axis] != 2 * positions or h.shape[axis] != 3 * positions:
        return None
    pairs = [(g, h)]
    if not isinstance(one, Broadcast) and not isinstance(other, Broadcast):
        leading = one.a.ndim if isinstance(one, Lookup) else 1  # axes that can hold samples
        if axis >= leading or one.a.shape[axis] != g.shape[axis]:
            return None
        pairs.append((one.a, other.a))
    # A few entries per row decide as well as all of them, unless they happen to be equal.
    for entries in (ENTRIES_PER_ROW, None):
        fits = [
            _find_fitting_layouts(
                p, q, axis, positions, eps, entries, cache if cache is not None else {}
            )
            for p, q in pairs
        ]
        common = [fold for fold in fits[0] if all(fold in others for others in fits[1:])]
        if len(common) <= 1:
            break
    return common[0] if len(common) == 1 else None


def _find_fitting_layouts(
    p: Tensor,
    q: Tensor,
    axis: int,
    positions: int,
    eps: float,
    entries: int | None,
    cache: LayoutCache,
) -> list[Layout]:
    """Layouts under which samples (0, j) of p and (j, 0, k) of q agree in `entries` per row."""
    key = (p.data_ptr(), p.shape, p.stride(), q.data_ptr(), axis, entries)
    if key not in cache:
        rows, twins = (_sample_rows(t, axis, entries) for t in (p, q))
        folds = [
            Layout(axis, outer, positions // outer)
            for outer in range(1, positions + 1)
            if positions % outer == 0
        ]
        scale = max((float(np.abs(t).max()) for t in (rows, twins) if t.size), default=0.0)
        allowed = tolerance(p, eps) * scale if p.is_floating_point() else 0.0

        def fits(fold: Layout) -> bool:
            a = rows.reshape(fold.outer, 2, fold.inner, -1)
            b = twins.reshape(fold.outer, 3, fold.inner, -1)
            return all(bool((np.abs(a[:, i] - b[:, 1 - i]) <= allowed).all()) for i in (0, 1))

        cache[key] = [fold for fold in folds if fits(fold)]
    return cache[key]


def _sample_rows(
    t: Tensor, axis: int, entries: int | None
) -> "np.ndarray[tuple[int, int], np.dtype[Any]]":
    """(positions of all samples, entries): evenly spaced entries of each position, or all."""
    t = t.detach().movedim(axis, 0)
    for i in range(1, t.ndim):
        step = max(1, int(t.shape[i] / entries ** (1 / (t.ndim - 1)))) if entries else 1
        t = t[(slice(None),) * i + (slice(None, None, step),)]
    t = t.cpu()  # before the conversion: not every device has float64
    t = t.double() if t.is_floating_point() else t.long()
    return t.reshape(t.shape[0], -1).numpy()
