"""Which entries at a site belong to which sample, found by values and never guessed from shapes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from labelahead.tangent.rules import Broadcast, Lookup, Reading

__all__ = ["GraphChangedError", "Layout", "close", "find_layout"]


class GraphChangedError(Exception):
    """A batch took another way through the network than the probe: its plan does not hold."""


@dataclass(frozen=True)
class Layout:
    """Where the samples are at a site: the axis of g, and what else is folded into it."""

    axis: int
    outer: int  # positions before the samples
    inner: int  # positions after them

    def split(self, t: Tensor, n: int, lead: int = 0) -> Tensor:
        """Samples to the front: (lead, before, n·r, rest) -> (n, lead, before, outer, inner, rest).

        `lead` counts leading dimensions (the directions) that precede the site's own.
        """
        axis = self.axis + lead
        if t.shape[axis] != self.outer * n * self.inner:
            raise GraphChangedError
        shape = (*t.shape[:axis], self.outer, n, self.inner, *t.shape[axis + 1 :])
        return t.reshape(shape).movedim(axis + 1, 0)

    def spread(self, of_samples: Tensor, rank: int) -> Tensor:
        """Numbers (n,) of the samples, to be multiplied with what arrived at the site, of so many dimensions."""
        along = of_samples.repeat_interleave(self.inner).repeat(self.outer)
        return along.view(-1, *[1] * (rank - self.axis - 1))


def close(a: Tensor, b: Tensor, scale: float = 0.0, eps: float = 0.0) -> bool:
    """Equal up to what another order of summation may change in numbers of that scale.

    eps: the coarsest rounding on the way to them, if coarser than their own.
    """
    if a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    eps = max(eps, torch.finfo(a.dtype).eps)
    tolerance = 1e-7 if eps < 1e-10 else max(1e-3, 10 * eps)
    if a.numel():
        scale = max(scale, float(a.detach().abs().amax()), float(b.detach().abs().amax()))
    return bool(((a - b).abs() <= tolerance * scale).all())


def find_layout(one: Reading | None, other: Reading | None, g: Tensor, h: Tensor, eps: float = 0.0) -> Layout | None:
    """The only layout under which samples (0, j) of `one`, g and (j, 0, k) of `other`, h agree.

    g and h are what arrived at the site, without directions. None when no layout fits or several
    do: then it must not be used.
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
    folds = [Layout(axis, outer, positions // outer) for outer in range(1, positions + 1) if positions % outer == 0]
    scales = [max(float(p.abs().amax()), float(q.abs().amax())) if p.numel() else 0.0 for p, q in pairs]
    if len(folds) > 1:  # a few entries of every row rule most of them out
        folds = [
            fold for fold in folds if _fits(fold, [(_thin(p, axis), _thin(q, axis)) for p, q in pairs], scales, eps)
        ]
    fits = [fold for fold in folds if _fits(fold, pairs, scales, eps)]
    return fits[0] if len(fits) == 1 else None


def _fits(fold: Layout, pairs: list[tuple[Tensor, Tensor]], scales: list[float], eps: float) -> bool:
    """Whether samples (0, j) of the first of each pair and (j, 0, k) of the second agree."""
    return all(
        close(fold.split(p, 2)[[1, 0]], fold.split(q, 3)[:2], scale, eps)
        for (p, q), scale in zip(pairs, scales, strict=True)
    )


def _thin(t: Tensor, axis: int) -> Tensor:
    for i in range(t.ndim):
        if i != axis:
            t = t.narrow(i, 0, min(4, t.shape[i]))
    return t
