"""Kernels of infinitely wide convolutional networks with global average pooling.

The mean over all pixels needs the covariance of every pixel of one image with every pixel of the
other: (H, W, H', W') numbers a pair of images. Pairs are therefore taken a few at a time.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from labelahead.tangent.duals import Dual, Layer

__all__ = ["FILTER", "conv_kernel"]

FILTER = 9  # pixels that a 3×3 filter sees
BLOCK = 1 << 17  # numbers in a temporary: larger ones leave the cache and are slower
TEMPORARIES = 12  # held at once, at most

Progress = Callable[[int, int], None]


def conv_kernel(
    x: Tensor,
    x2: Tensor | None,
    layers: Sequence[Layer],
    dual: Dual,
    *,
    pools: frozenset[int],
    tangent: bool,
    memory: int,
    progress: Progress | None,
) -> Tensor:
    """(n, m) from images (n, channels, H, W): `layers` are the convolutions, then the read-out."""
    run = _Network(layers, dual, pools, tangent)
    pixels = x.shape[2] * x.shape[3]
    size = max(1, min(BLOCK, memory // (8 * TEMPORARIES)) // pixels**2)
    own = run.variances(x, size)
    other = own if x2 is None else run.variances(x2, size)
    y = x if x2 is None else x2
    out = x.new_zeros(len(x), len(y))
    done, total = 0, len(x) * (len(x) + 1) // 2 if x2 is None else out.numel()
    for i, j in _pairs(len(x), len(y), x2 is None, size):
        out[i, j] = run(x[i], y[j], [v[i] for v in own], [v[j] for v in other])
        done += len(i)
        if progress is not None:
            progress(done, total)
    return out if x2 is not None else out.triu_().add_(out.triu(1).T.clone())


def _pairs(n: int, m: int, half: bool, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions (i, j) of all pairs, row by row; only j ≥ i if `half`."""
    rows = torch.arange(n)
    lengths = m - rows if half else torch.full((n,), m)
    ends = lengths.cumsum(0)
    for start in range(0, int(ends[-1]), size):
        flat = torch.arange(start, min(start + size, int(ends[-1])))
        i = torch.searchsorted(ends, flat, right=True)
        yield i, flat - (ends - lengths)[i] + (i if half else 0)


class _Network:
    """The recursion through the layers, for pairs of images."""

    def __init__(
        self, layers: Sequence[Layer], dual: Dual, pools: frozenset[int], tangent: bool
    ) -> None:
        self.convolutions, self.readout = layers[:-1], layers[-1]
        self.dual, self.pools, self.tangent = dual, pools, tangent

    def __call__(self, x: Tensor, y: Tensor, own: list[Tensor], other: list[Tensor]) -> Tensor:
        """The kernel of x[b] and y[b]; own and other: each layer's variances, a pixel of theirs."""
        s, before = _pixel_products(x, y), None
        for number, layer in enumerate(self.convolutions):
            s = _convolved(s)
            theta = None
            if self.tangent:
                theta = layer.tangent(s, None if before is None else _convolved(before))
            v1, v2 = own[number][:, :, :, None, None], other[number][:, None, None]
            s, slope = self.dual(layer.covariance(s), v1, v2, self.tangent)
            before = None if theta is None or slope is None else theta.mul_(slope)
            if number + 1 in self.pools:
                s, before = _pooled(s), None if before is None else _pooled(before)
        mean = s.flatten(1).mean(1)
        if before is None:
            return self.readout.covariance(mean)
        return self.readout.tangent(mean, before.flatten(1).mean(1))

    def variances(self, x: Tensor, size: int) -> list[Tensor]:
        """(n, H, W) for each convolution: the variance of its outputs, a pixel of each image.

        Pixels of one image are correlated, which a pool needs; so their covariance is carried too.
        """
        found: list[list[Tensor]] = []
        for start in range(0, len(x), size):
            part = x[start : start + size]
            s, each = _pixel_products(part, part), []
            for number, layer in enumerate(self.convolutions):
                k = layer.covariance(_convolved(s))
                H, W = k.shape[1:3]
                v = k.reshape(-1, H * W, H * W).diagonal(dim1=1, dim2=2).reshape(-1, H, W).clone()
                each.append(v)
                s, _ = self.dual(k, v[:, :, :, None, None], v[:, None, None], False)
                s = _pooled(s) if number + 1 in self.pools else s
            found.append(each)
        return [torch.cat(parts) for parts in zip(*found, strict=True)]


def _pixel_products(x: Tensor, y: Tensor) -> Tensor:
    """(b, H, W, H', W'): mean over channels of the products of two images' pixels."""
    b, channels, H, W = x.shape
    products = x.flatten(2).transpose(1, 2) @ y.flatten(2) / channels
    return products.reshape(b, H, W, *y.shape[2:])


def _convolved(s: Tensor) -> Tensor:
    """Mean over the filter's nine offsets δ of s[p+δ, p'+δ]; zero outside, as SAME padding has it.

    Both images shift together, and along one axis after the other: four sums instead of eight.
    """
    for axis in (1, 2):
        size, total = s.shape[axis], s.clone()
        for to, of in ((0, 1), (1, 0)):
            target, source = total, s
            for a in (axis, axis + 2):
                target = target.narrow(a, to, size - 1)
                source = source.narrow(a, of, size - 1)
            target += source
        s = total
    return s.div_(FILTER)


def _pooled(s: Tensor) -> Tensor:
    """Means over 2×2 pixels in both images; an odd last row or column is dropped."""
    H, W = s.shape[1] // 2, s.shape[2] // 2
    s = s[:, : 2 * H, : 2 * W, : 2 * H, : 2 * W].reshape(-1, H, 2, W, 2, H, 2, W, 2)
    return s.mean((2, 4, 6, 8))
