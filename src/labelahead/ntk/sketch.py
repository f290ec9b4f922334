"""Tangent features: per-sample gradients projected to k numbers, without storing n×P.

The projection folds a gradient: every entry gets a random sign, every stretch of k entries is
rotated by a random amount, and the stretches are added up. Inner products are preserved in
expectation, with an error of order 1/√k: two entries of one stretch never collide, two of different
stretches collide with probability 1/k, and then their signs cancel on average. It is a CountSketch
with contiguous memory accesses; `make bench-sketch` compares it with others.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from labelahead.batching import Inputs, count_samples
from labelahead.errors import InputError
from labelahead.ntk.engine import (
    Engine,
    build_directions,
    check_cotangents,
    check_result,
    run_with_engine,
    should_verify,
)
from labelahead.ntk.factors import Factor
from labelahead.ntk.premises import ParamFilter, move_samples

__all__ = ["FoldProjection", "draw_projections", "features"]

GRADIENT_BUFFER_ENTRIES = 1 << 24  # multiplied-out gradients in memory at a time


def features(
    model: nn.Module,
    x: Inputs,
    *,
    kind: str = "pseudo",
    sketch: int | None = None,
    seed: int = 0,
    params: ParamFilter = None,
    chunk: int | None = None,
    verify: bool | None = None,
    cotangents: Tensor | None = None,
) -> Tensor:
    """Compute tangent features Ψ, whose Gram matrix Ψ Ψᵀ equals the kernel in expectation.

    Args:
        model: The network.
        x: n samples.
        kind: As in `kernel`.
        sketch: k, the number of features; None gives the exact gradients.
        seed: Of the projection. The same seed gives the same projection, so that features of
            different batches of one network can be combined.
        params: As in `kernel`.
        chunk: As in `kernel`.
        verify: As in `kernel`.
        cotangents: (n, C), instead of `kind`: row i of the result is the gradient of
            cotangents[i]·f(x_i). With ∂loss/∂outputs these are per-sample gradients of a loss.

    Returns:
        (n, k), or (n·C, k) for kind "full". Exact gradients have P columns, the number of
        parameters, or C·P for kind "trace".

    >>> psi = la.features(model, x)  # the gradients themselves
    >>> bool(torch.allclose(psi @ psi.T, la.kernel(model, x), atol=1e-5))
    True
    >>> la.features(model, x, sketch=16).shape
    torch.Size([6, 16])
    """
    if sketch is not None and (not isinstance(sketch, int) or sketch < 1):
        raise InputError(f"sketch is {sketch!r}, expected at least one feature, or None for all")
    if not isinstance(seed, int) or not 0 <= seed < 1 << 40:
        raise InputError(f"seed is {seed!r}, expected a whole number from 0 to 2^40")
    check = should_verify(verify)
    x = move_samples(model, x)

    def run(engine: Engine) -> Tensor:
        like = engine.like
        n = count_samples(x)
        if cotangents is None:
            combine = build_directions(kind, engine.plan.outputs, like).expand(n, -1, -1)
        else:
            combine = check_cotangents(cotangents, x, engine)[:, None]
        K = combine.shape[1]
        fold = kind != "full" or cotangents is not None
        names = list(engine.chosen)  # The order is the same for every batch.
        widths = {k: engine.chosen[k].numel() for k in names}
        total = sum(widths.values())
        rows, repeats = (n, K) if fold else (n * K, 1)
        out = like.new_zeros(rows, repeats * total if sketch is None else sketch)
        by_sample = out.view(n, -1, out.shape[1])  # (n, 1 or K, k)
        start = dict(zip(names, accumulate(widths.values(), initial=0), strict=False))
        folds: dict[str, FoldProjection] = {}
        if sketch is not None:
            seeds = [seed * 1_000_003 + i for i in range(len(names))]
            sizes = [repeats * widths[k] for k in names]
            folds = dict(zip(names, draw_projections(sizes, sketch, seeds, like), strict=True))
        for batch, factors in engine.capture_factors(x, combine, chunk=chunk, check=check):
            for name, f in factors.items():
                for part, v in _iterate_gradients(f, widths[name] * K):
                    target = by_sample[batch][part]
                    v = v.flatten(1)[:, None] if fold else v
                    if sketch is None:
                        first = repeats * start[name]
                        target[..., first : first + v.shape[-1]] = v
                    else:
                        folds[name].add(target, v)
        return check_result(out)

    return run_with_engine(model, x, params, run)


def _iterate_gradients(f: Factor, width: int) -> Iterator[tuple[slice, Tensor]]:
    """Iterate over gradients (n, K, *shape) in the parameter's order, a few samples at a time."""
    n = f.samples
    step = max(1, GRADIENT_BUFFER_ENTRIES // max(width, 1))
    for i in range(0, n, step):
        part = slice(i, min(i + step, n))
        v = f.select_samples(part).gradient()
        yield part, v.reshape(*v.shape[:2], -1)


def draw_projections(
    widths: Sequence[int], k: int, seeds: Sequence[int], like: Tensor
) -> list["FoldProjection"]:
    """Draw a projection to k entries for every width, on the CPU; all signs are uploaded at once.

    The numbers are the same on every device.
    """
    drawn: Iterable[tuple[Tensor, list[int]]] = (
        _draw(width, k, seed) for width, seed in zip(widths, seeds, strict=True)
    )
    if like.device.type != "cpu":
        bits, shifts = zip(*drawn, strict=True)
        uploaded = torch.split(torch.cat(bits).to(like.device), list(widths))
        drawn = zip(uploaded, shifts, strict=True)
    return [FoldProjection(signs.to(like) * 2 - 1, shifts, k) for signs, shifts in drawn]


def _draw(width: int, k: int, seed: int) -> tuple[Tensor, list[int]]:
    """Draw a bit for each entry and a shift for each stretch."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (width,), generator=generator, dtype=torch.int8)
    return signs, torch.randint(0, k, (-(-width // k),), generator=generator).tolist()


class FoldProjection:
    """A random projection of len(signs) entries to k, with signs ±1."""

    def __init__(self, signs: Tensor, shifts: list[int], k: int) -> None:
        self.signs = signs
        self.shifts = shifts
        self.k = k

    def add(self, out: Tensor, v: Tensor) -> None:
        """Add the projection of v (..., width) to out (..., k)."""
        k = self.k
        for stretch, turn in enumerate(self.shifts):
            first = stretch * k
            ahead = v[..., first : first + k - turn]  # lands at turn and after
            signs = self.signs[first : first + ahead.shape[-1]]
            out[..., turn : turn + ahead.shape[-1]].addcmul_(ahead, signs)
            behind = v[..., first + k - turn : first + k]  # wraps around to the front
            if behind.shape[-1]:
                signs = self.signs[first + k - turn : first + k]
                out[..., : behind.shape[-1]].addcmul_(behind, signs)
