"""Contract the factors of two sets of samples into a kernel block.

Each layer has one of two forms, whichever is cheaper:

- dense: per-sample gradients side by side, one matrix product for many layers at once;
- pairs: Σ over pairs of positions (t, t') of (a_t·a'_t' [+1 for the bias])(g_t·g'_t'), without a
  gradient. For a convolution the products a_t·a'_t' of patches are sums of shifted products of
  pixels, axis by axis, so that the window's size costs additions, not multiplications.
"""

from dataclasses import dataclass, field

from torch import Tensor

from labelahead.ntk.factors import Geometry
from labelahead.ntk.limits import buffer_scale, buffer_sizes

__all__ = ["Gradients", "Pairs", "add_gram", "mirror_upper", "sum_shifts"]

MIN_PANEL_ROWS = 64  # of a panel of the dense product: few rows waste little below the diagonal


@dataclass
class Pairs:
    """Factors of one layer, with positions on the first axis: tiles have long runs of samples."""

    a: Tensor  # (S, n, d), or integer (S, n) for a lookup
    g: Tensor  # (T, n, K, o)
    bias: bool = False  # includes the layer's bias: +1 in every inner product of inputs
    geometry: Geometry | None = None

    def rows(self, start: int, stop: int) -> "Pairs":
        """Select some of the samples."""
        return Pairs(self.a[:, start:stop], self.g[:, start:stop], self.bias, self.geometry)


@dataclass
class Gradients:
    """The gradients of a set of samples, each layer in one of the two forms."""

    dense: dict[int, Tensor] = field(default_factory=dict)  # piece -> (n, K, P)
    pairs: list[Pairs] = field(default_factory=list)


def add_gram(out: Tensor, one: Gradients, other: Gradients, *, fold: bool) -> None:
    """Add <gradient i, gradient j> to out (n, m), or (n·K, m·K) when not `fold`ed over directions.

    With `one is other` only the entries on and above the diagonal are right: see `mirror`.
    """
    symmetric = one is other
    for piece, left in one.dense.items():
        _add_dense(
            out,
            _flatten_directions(left, fold),
            _flatten_directions(other.dense[piece], fold),
            symmetric,
        )
    for p, q in zip(one.pairs, other.pairs, strict=True):
        _add_pairs(out, p, q, symmetric, fold)


def mirror_upper(out: Tensor) -> Tensor:
    """Copy the upper triangle to the lower one, panel by panel, in place."""
    n, panel = out.shape[0], 6 * MIN_PANEL_ROWS
    for i in range(0, n, panel):
        j = min(i + panel, n)
        out[j:, i:j] = out[i:j, j:].T
        corner = out[i:j, i:j]
        corner.copy_(corner.triu() + corner.triu(1).T)
    return out


def _flatten_directions(v: Tensor, fold: bool) -> Tensor:
    return v.flatten(1) if fold else v.flatten(0, 1)


def _add_dense(out: Tensor, left: Tensor, right: Tensor, symmetric: bool) -> None:
    if not symmetric:
        out.addmm_(left, right.T)
        return
    n = left.shape[0]
    panel = max(MIN_PANEL_ROWS, -(-n // 16))
    for i in range(0, n, panel):
        out[i : i + panel, i:].addmm_(left[i : i + panel], right[i:].T)


def _add_pairs(out: Tensor, p: Pairs, q: Pairs, symmetric: bool, fold: bool) -> None:
    T, n, K, o = p.g.shape
    m = q.g.shape[1]
    if fold:
        K, o = 1, K * o
    # `out` may be part of a larger kernel: view its rows and columns as samples × directions.
    blocks = out.as_strided(
        (n, K, m, K), (K * out.stride(0), out.stride(0), K, 1), out.storage_offset()
    )
    S = p.a.shape[0]
    rows, columns = (buffer_scale(out.device) * size for size in buffer_sizes().tile_positions)
    # For a symmetric block, small tiles waste less work below the diagonal.
    height = min(rows, max(64, n * S * K // 8)) if symmetric else rows
    tall, wide = (max(1, size // (max(S, T) * K)) for size in (height, columns))
    for i in range(0, n, tall):
        left = p.rows(i, min(i + tall, n))
        for j in range(i if symmetric else 0, m, wide):
            right = q.rows(j, min(j + wide, m))
            blocks[i : i + tall, :, j : j + wide].add_(_contract_tile(left, right, K, o))


def _contract_tile(p: Pairs, q: Pairs, K: int, o: int) -> Tensor:
    """(b, K, c, K) for b samples of p and c of q."""
    T, b, c = p.g.shape[0], p.g.shape[1], q.g.shape[1]
    inputs = _input_products(p, q, T)  # T·b, T·c
    if p.bias:
        inputs += 1
    grads = p.g.reshape(T * b * K, o) @ q.g.reshape(T * c * K, o).T
    if K == 1:
        product = grads.mul_(inputs)
        if T == 1:
            return product.view(b, 1, c, 1)
        return product.view(T, b, T, c).sum((0, 2)).view(b, 1, c, 1)
    product = grads.view(T, b, K, T, c, K).mul_(inputs.view(T, b, 1, T, c, 1))
    return product.sum((0, 3))


def _input_products(p: Pairs, q: Pairs, T: int) -> Tensor:
    b, c = p.g.shape[1], q.g.shape[1]
    if p.a.ndim == 2:  # A lookup: the product is 1 for equal rows of the table, else 0.
        left, right = p.a.reshape(-1, 1), q.a.reshape(1, -1)
        return ((left == right) & (left >= 0)).to(p.g.dtype)
    left, right = p.a.reshape(-1, p.a.shape[2]), q.a.reshape(-1, q.a.shape[2])
    pixels = left @ right.T
    if p.geometry is None:
        return pixels
    space = p.geometry.space
    shifted = sum_shifts(pixels.view(*space, b, *space, c), p.geometry)
    return shifted.reshape(T * b, T * c)


def sum_shifts(pixels: Tensor, geometry: Geometry) -> Tensor:
    """(*space, b, *space, c) inner products of pixels -> (*out, b, *out, c) of patches."""
    rank = len(geometry.space)
    for axis in reversed(range(rank)):
        width, length = geometry.out[axis], geometry.space[axis]
        stride = geometry.stride[axis]
        shape = list(pixels.shape)
        twin = axis + rank + 1
        shape[axis] = shape[twin] = width
        total = pixels.new_zeros(shape)
        for tap in range(geometry.size[axis]):
            offset = tap * geometry.dilation[axis] - geometry.padding[axis]
            low = max(0, -(offset // stride))  # first output whose tap falls inside the input
            high = min(width, (length - 1 - offset) // stride + 1)
            if high <= low:
                continue
            inside = slice(low * stride + offset, (high - 1) * stride + offset + 1, stride)
            to, source = [slice(None)] * len(shape), [slice(None)] * len(shape)
            to[axis] = to[twin] = slice(low, high)
            source[axis] = source[twin] = inside
            total[tuple(to)] += pixels[tuple(source)]
        pixels = total
    return pixels
