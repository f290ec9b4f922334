"""The gradient of one parameter for a batch of samples, in factored form.

After a capture every site yields a factor: its captured input and arriving gradient with samples
in front. `gradient()` multiplies a factor out to (n, K, *shape of the parameter); K is the number
of backward passes (1 for a scalar kernel, C for the full and the trace kernel).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from labelahead.ntk.layout import GraphChangedError, Layout
from labelahead.ntk.limits import buffer_scale, buffer_sizes
from labelahead.ntk.rules import Broadcast, Conv, LayerRule, Lookup, Outer, multiply_elementwise

__all__ = [
    "Factor",
    "Geometry",
    "OuterFactor",
    "PlainFactor",
    "join_factors",
    "keep_reached_position",
    "make_factor",
]


@dataclass(frozen=True)
class Geometry:
    """The geometry of a convolution."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    space: tuple[int, ...]  # of the input
    out: tuple[int, ...]  # of the output


@dataclass(frozen=True)
class OuterFactor:
    """Gradient = Σ_t g_t a_tᵀ.

    a: (n, T, d), or integer (n, T) for a lookup, or (n, M, C, *space) with a `geometry`;
    g: (n, K, T, o), or (n, K, M, O, *out) with a `geometry`.
    """

    a: Tensor
    g: Tensor
    shape: tuple[int, ...]
    transposed: bool = False
    geometry: Geometry | None = None
    lookup: bool = False

    def product(self, out: Tensor | None = None, *, any_order: bool = False) -> Tensor:
        """Multiply out to (n, K, p), in the factor's order of entries; into `out` if given.

        any_order: allow another order that depends on the sizes alone, if it is faster.
        """
        n, K = self.g.shape[:2]
        if self.lookup:
            return _lookup_gradients(self.a, self.g, self.shape[0], out)
        if self.geometry is None:
            left = self.g.transpose(-1, -2).reshape(n, -1, self.a.shape[1])  # n, K·o, T
            right = self.a
            if any_order and K == 1 and left.shape[1] > right.shape[2]:  # the long side last
                left, right = right.mT, self.g[:, 0]
            if K > 1:
                left = self.g.movedim(2, -1).reshape(n, -1, self.a.shape[1])
        elif self.geometry.groups == 1:
            return _convolution_gradients(self.a, self.g, self.geometry, out)
        else:
            return _copy_into(_grouped_convolution_gradients(self.a, self.g, self.geometry), out)
        if out is not None and K == 1 and out.dtype == self.g.dtype == self.a.dtype:
            target = out.view(n, left.shape[1], right.shape[2])
            torch.bmm(left, right, out=target)
            return out
        return _copy_into(torch.bmm(left, right).view(n, K, -1), out)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Positions and features of a, positions and features of g: (S, d, T, o)."""
        if self.lookup:
            return self.a.shape[1], 0, self.g.shape[2], self.g.shape[3]
        if self.geometry is None:
            return self.a.shape[1], self.a.shape[2], self.g.shape[2], self.g.shape[3]
        M = self.a.shape[1]
        S, T = math.prod(self.geometry.space), math.prod(self.geometry.out)
        return M * S, self.a.shape[2], M * T, self.g.shape[3]

    @property
    def is_channels_first(self) -> bool:
        """Whether `product` of a convolution has channels before the window, as the weight has."""
        window = self.geometry
        if window is None:
            return False
        channels, images = self.a.shape[2], self.a.shape[1]
        alone = channels // window.groups
        return _has_narrow_groups(window, channels) or (
            _has_long_rows(window, alone) and not _can_use_offsets(window, alone, images)
        )

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.g.shape[0]

    def select_samples(self, rows: slice) -> "OuterFactor":
        """Select some of the samples."""
        return replace(self, a=self.a[rows], g=self.g[rows])

    def to_meta(self) -> "OuterFactor":
        """Drop the numbers and keep the shapes."""
        return replace(self, a=self.a.to("meta"), g=self.g.to("meta"))

    def convert_to(self, like: Tensor) -> "OuterFactor":
        """Convert to the device and dtype of `like`; integers stay integers."""
        a = self.a.to(like.device) if self.lookup else self.a.to(like)
        return replace(self, a=a, g=self.g.to(like))

    def gradient(self) -> Tensor:
        """(n, K, *shape)."""
        v = self.product()
        n, K = v.shape[:2]
        if self.geometry is not None:
            if not self.is_channels_first:
                v = v.view(n, K, self.shape[0], *self.geometry.size, -1).movedim(-1, 3)
        elif not self.lookup and self.transposed:
            v = v.view(n, K, self.shape[1], self.shape[0]).transpose(-1, -2)
        return v.reshape(n, K, *self.shape)


@dataclass(frozen=True)
class PlainFactor:
    """A small gradient, stored as it is: (n, K, p)."""

    v: Tensor
    shape: tuple[int, ...]

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.v.shape[0]

    def select_samples(self, rows: slice) -> "PlainFactor":
        """Select some of the samples."""
        return replace(self, v=self.v[rows])

    def to_meta(self) -> "PlainFactor":
        """Drop the numbers and keep the shapes."""
        return replace(self, v=self.v.to("meta"))

    def convert_to(self, like: Tensor) -> "PlainFactor":
        """Convert to the device and dtype of `like`."""
        return replace(self, v=self.v.to(like))

    def product(self, out: Tensor | None = None, *, any_order: bool = False) -> Tensor:
        """(n, K, p)."""
        return _copy_into(self.v, out)

    def gradient(self) -> Tensor:
        """(n, K, *shape)."""
        return self.v.reshape(*self.v.shape[:2], *self.shape)


Factor = OuterFactor | PlainFactor


def join_factors(parts: Sequence[Factor]) -> Factor:
    """Join the factors of a parameter that is used several times: their gradients add up."""
    if len(parts) == 1:
        return parts[0]
    outer = [f for f in parts if isinstance(f, OuterFactor) and not f.lookup and not f.geometry]
    if len(outer) == len(parts) and len({(f.transposed, f.shape) for f in outer}) == 1:
        a = torch.cat([f.a for f in outer], dim=1)
        return replace(outer[0], a=a, g=torch.cat([f.g for f in outer], dim=2))
    flat = [v.reshape(*v.shape[:2], -1) for v in (f.gradient() for f in parts)]
    return PlainFactor(sum(flat[1:], flat[0]), parts[0].shape)


def keep_reached_position(f: Factor) -> OuterFactor | None:
    """Restrict a factor to the one position per sample that has a gradient; None if several have.

    If a transformer is read out at one token, all layers after its last attention receive gradients
    at that token alone.
    """
    if not isinstance(f, OuterFactor) or f.lookup or f.geometry is not None or f.a.shape[1] < 2:
        return None
    reached = ((f.g.amax(-1) != 0) | (f.g.amin(-1) != 0)).any(1)  # n, T; NaN counts as reached
    if int(reached.sum(1).amax()) != 1:
        return None
    samples, at = torch.arange(f.samples, device=f.g.device), reached.int().argmax(1)
    return replace(f, a=f.a[samples, at][:, None], g=f.g[samples, :, at][:, :, None])


def _copy_into(v: Tensor, out: Tensor | None) -> Tensor:
    return v if out is None else out.copy_(v.view(out.shape))


def make_factor(
    rule: LayerRule, g: Tensor, layout: Layout, n: int, shape: tuple[int, ...]
) -> Factor:
    """Build the factor of a site, with samples on the first axis.

    Args:
        rule: What the rule of the site captured.
        g: (K, ...) the gradients that arrived at the site.
        layout: Where the samples are.
        n: Number of samples.
        shape: Of the parameter.
    """
    if isinstance(rule, Broadcast):
        return PlainFactor(_sum_broadcast(rule, g, layout, n), shape)
    K = g.shape[0]
    gs = layout.split(g, n, lead=1)  # n, K, before, outer, inner, rest
    if isinstance(rule, Outer):
        a = layout.split(rule.a, n).reshape(n, -1, rule.a.shape[-1])
        gs = gs.reshape(n, K, -1, g.shape[-1])
        return OuterFactor(a, gs, shape, rule.transposed)
    if isinstance(rule, Lookup):
        a = layout.split(rule.a, n).reshape(n, -1)
        return OuterFactor(a, gs.reshape(n, K, -1, g.shape[-1]), shape, lookup=True)
    assert isinstance(rule, Conv)
    space, out = tuple(rule.a.shape[2:]), tuple(g.shape[3:])
    a = layout.split(rule.a, n).reshape(n, -1, *rule.a.shape[1:])
    gs = gs.reshape(n, K, -1, *g.shape[2:])
    geometry = Geometry(
        rule.size, rule.stride, rule.padding, rule.dilation, rule.groups, space, out
    )
    return OuterFactor(a, gs, shape, geometry=geometry)


def _sum_broadcast(rule: Broadcast, g: Tensor, layout: Layout, n: int) -> Tensor:
    """(n, K, p): the elementwise product, summed over the axes of the broadcast."""
    if rule.shift is not None and tuple(rule.shift.shape) == rule.shape:
        # BatchNorm: Σ g(a − μ)/σ = (Σ ga − μ Σ g)/σ needs one full-size product instead of three.
        moment = _sum_broadcast(replace(rule, shift=None, factor=1.0), g, layout, n)
        plain = _sum_broadcast(Broadcast(None, rule.shape), g, layout, n)
        scale = torch.as_tensor(rule.factor, dtype=g.dtype, device=g.device).flatten()
        return torch.addcmul(moment, plain, rule.shift.flatten(), value=-1).mul_(scale)
    full = multiply_elementwise(rule, g)
    K, rank = full.shape[0], full.ndim - 1
    if (
        K == layout.outer == 1 and layout.axis == 0 and rule.shape == full.shape[2:]
    ):  # most biases and norms
        rows = layout.flatten_around(full, n, lead=1).reshape(
            n, layout.inner, math.prod(rule.shape)
        )
        return rows.sum(1, keepdim=True) if layout.inner > 1 else rows
    if rank == 1:  # repeated for every sample, or a scalar on a flattened tensor
        parts = layout.split(full, n, lead=1)  # n, K, outer, inner
        size = math.prod(rule.shape)
        if size > 1 and (layout.outer > 1 or layout.inner % size):
            raise GraphChangedError
        return parts.reshape(n, K, -1, size).sum(2)
    aligned = (1,) * (rank - len(rule.shape)) + rule.shape
    after = [i for i in range(rank) if aligned[i] == 1 and i != layout.axis]
    if after:
        full = full.sum([i + 1 for i in after], keepdim=True)
    parts = layout.split(full, n, lead=1)  # n, K, before, outer, inner, rest
    around = [layout.axis + 2, layout.axis + 3]
    if any(parts.shape[d] > 1 for d in around):  # Torch would copy even without anything to sum.
        parts = parts.sum(around)
    return parts.reshape(n, K, -1)


def _has_long_rows(geometry: Geometry, channels: int) -> bool:
    """Whether patches are copied faster with positions last (runs along an image row) than with
    channels last (runs over window and channels). Measured: a run pays off at an eighth."""
    return geometry.stride[-1] == 1 and 8 * geometry.out[-1] >= geometry.size[-1] * channels


def _can_use_offsets(geometry: Geometry, channels: int, images: int) -> bool:
    """Whether steps of the window along the first axis are offsets in memory, without copies.

    Matrix products become smaller, which pays from `BufferSizes.min_offset_positions` on (measured).
    """
    long = math.prod(geometry.out) >= buffer_sizes().min_offset_positions
    return images == 1 and geometry.stride[0] == 1 and long and _has_long_rows(geometry, channels)


def _convolution_gradients(a: Tensor, g: Tensor, geometry: Geometry, out: Tensor | None) -> Tensor:
    """(n, K, p): each sample's weight gradient, a few samples at a time.

    Their patches stay in the CPU cache; a new large buffer would cost more in page faults than the
    product itself.
    """
    n, K, M, filters = g.shape[:4]
    C = a.shape[2]
    if _can_use_offsets(geometry, C, M):
        return _convolution_gradients_by_offset(a, g, geometry, out)
    T, window = math.prod(geometry.out), math.prod(geometry.size)
    long_rows = _has_long_rows(geometry, C)
    left = g.movedim(2, 3).reshape(n, K * filters, M * T)
    direct = out is not None and out.dtype == g.dtype == a.dtype
    v = out if direct and out is not None else g.new_empty(n, K, filters * window * C)
    entries = buffer_scale(a.device) * buffer_sizes().patch_entries
    step = max(1, entries // (M * T * window * C))
    scratch = a.new_empty(min(step, n) * M * T * window * C)
    for i in range(0, n, step):
        part = a[i : i + step]
        count = part.shape[0]
        windows = _view_windows(part.flatten(0, 1), geometry, long_rows)
        right = scratch[: windows.numel()].view(windows.shape).copy_(windows)
        if long_rows:  # n, M, C·window, T -> n, M·T, C·window
            right = right.view(count, M, -1, T)
            right = right[:, 0].mT if M == 1 else right.mT.reshape(count, M * T, -1)
        else:
            right = right.view(count, M * T, -1)
        if K == 1:
            torch.bmm(
                left[i : i + step], right, out=v[i : i + step].view(count, filters, window * C)
            )
        else:
            v[i : i + step] = torch.bmm(left[i : i + step], right).view(count, K, -1)
    return v if direct or out is None else out.copy_(v)


def _convolution_gradients_by_offset(
    a: Tensor, g: Tensor, geometry: Geometry, out: Tensor | None
) -> Tensor:
    """Compute `_convolution_gradients` for one image per sample, without patches along axis 0.

    Patches run along all axes but the first; each step of the window along the first axis is a
    product with another part of the same memory.
    """
    n, K, _, filters = g.shape[:4]
    C, steps = a.shape[2], geometry.size[0]
    T, run = math.prod(geometry.out), math.prod(geometry.out[1:])
    high = geometry.space[0] + 2 * geometry.padding[0]
    wide = C * math.prod(geometry.size[1:])
    left = g.reshape(n, K * filters, T)
    v = g.new_empty(n, K, filters * steps * wide) if out is None else out
    entries = buffer_scale(a.device) * buffer_sizes().patch_entries
    count = max(1, min(n, entries // (wide * high * run)))
    patches, products = (
        a.new_empty(count * wide * high * run),
        g.new_empty(steps * count * K * filters * wide),
    )
    for i in range(0, n, count):
        windows = _view_row_windows(a[i : i + count, 0], geometry)
        m = windows.shape[0]
        right = (
            patches[: windows.numel()].view(windows.shape).copy_(windows).view(m, wide, high * run)
        )
        found = products[: steps * m * K * filters * wide].view(steps, m, K * filters, wide)
        for step in range(steps):
            start = step * geometry.dilation[0] * run
            torch.bmm(left[i : i + count], right[:, :, start : start + T].mT, out=found[step])
        target = v[i : i + count].view(m, K, filters, steps, wide)
        target.copy_(found.view(steps, m, K, filters, wide).movedim(0, 3))
    return v


def _view_row_windows(images: Tensor, geometry: Geometry) -> Tensor:
    """A view of the padded images (n, C, *space): (n, *size[1:], C, padded space[0], *out[1:])."""
    pad = [p for q in reversed(geometry.padding) for p in (q, q)]
    pixels = nn.functional.pad(images, pad) if any(pad) else images.contiguous()
    n, C, high = pixels.shape[:3]
    steps = pixels.stride()[3:]
    moves = [s * st for s, st in zip(geometry.stride[1:], steps, strict=True)]
    taps = [d * st for d, st in zip(geometry.dilation[1:], steps, strict=True)]
    shape = (n, *geometry.size[1:], C, high, *geometry.out[1:])
    return pixels.as_strided(
        shape, (pixels.stride(0), *taps, pixels.stride(1), pixels.stride(2), *moves)
    )


def _view_windows(images: Tensor, geometry: Geometry, long_rows: bool) -> Tensor:
    """A view of the padded images (n, C, *space): (n, *out, *size, C), or (n, C, *size, *out)."""
    C = images.shape[1]
    pad = [p for q in reversed(geometry.padding) for p in (q, q)]
    if not long_rows:
        images, pad = images.movedim(1, -1), [0, 0, *pad]
    pixels = nn.functional.pad(images, pad) if any(pad) else images.contiguous()
    steps = pixels.stride()[2:] if long_rows else pixels.stride()[1:-1]
    moves = [s * st for s, st in zip(geometry.stride, steps, strict=True)]
    taps = [d * st for d, st in zip(geometry.dilation, steps, strict=True)]
    sizes = ([*geometry.out], [*geometry.size])
    n = pixels.shape[0]
    if long_rows:
        shape = (n, C, *sizes[1], *sizes[0])
        return pixels.as_strided(shape, (pixels.stride(0), pixels.stride(1), *taps, *moves))
    return pixels.as_strided((n, *sizes[0], *sizes[1], C), (pixels.stride(0), *moves, *taps, 1))


def _grouped_convolution_gradients(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """(n, K, p) for a grouped convolution: each group of each sample is its own convolution."""
    n, M, C = a.shape[:3]
    K, filters, G = g.shape[1], g.shape[3], geometry.groups
    a, g = (
        a.view(n, M, G, C // G, *geometry.space),
        g.reshape(n, K, M, G, filters // G, *geometry.out),
    )
    if _has_narrow_groups(geometry, C):
        # Per sample and group this is a convolution of the inputs with the gradients as weights,
        # in which stride and dilation are exchanged.
        slid = a.permute(3, 0, 2, 1, *range(4, a.ndim)).reshape(C // G, n * G * M, *geometry.space)
        weights = g.permute(0, 3, 1, 4, 2, *range(5, g.ndim)).reshape(-1, M, *geometry.out)
        convolve = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)[
            len(geometry.size) - 1
        ]
        v = convolve(
            slid, weights, None, geometry.dilation, geometry.padding, geometry.stride, n * G
        )
        for axis, size in enumerate(geometry.size, 2):
            v = v.narrow(axis, 0, size)
        v = v.reshape(C // G, n, G, K, filters // G, -1)
        return v.permute(1, 3, 2, 4, 0, 5).reshape(n, K, -1)
    alone = replace(geometry, groups=1)
    v = _convolution_gradients(
        a.transpose(1, 2).flatten(0, 1), g.movedim(3, 1).flatten(0, 1), alone, None
    )
    return v.view(n, G, K, -1).transpose(1, 2).reshape(n, K, -1)


def _has_narrow_groups(geometry: Geometry, channels: int) -> bool:
    """Whether groups have few channels, as in a depthwise convolution: matrix products are tiny."""
    return geometry.groups > 1 and channels < 8 * geometry.groups


def _lookup_gradients(index: Tensor, g: Tensor, rows: int, out: Tensor | None) -> Tensor:
    """(n, K, rows·d): each gradient added to its row of the table."""
    n, K, T, d = g.shape
    if out is None or out.dtype != g.dtype:
        return _copy_into(_lookup_gradients(index, g, rows, g.new_empty(n, K, rows * d)), out)
    out.zero_()
    learned = index >= 0
    if not bool(learned.all()):  # Padding (-1) must add nothing to the first row.
        index, g = index.clamp(min=0), g.masked_fill(~learned[:, None, :, None], 0)
    where = index[:, None, :, None].expand(n, K, T, d)
    out.view(n, K, rows, d).scatter_add_(2, where, g)
    return out
