"""Kernels of infinitely wide networks, dense and convolutional, in closed form and float64.

A layer z = W a + b with weights of variance σw²/inputs and biases of variance σb² takes K to
σw²·T(K) + σb², where T is the dual of the activation before it, and Θ to K + σw²·Θ ∘ Ṫ (NTK
parametrisation). K is the covariance of the outputs over initialisations (NNGP), Θ the tangent
kernel.

With (u, v) normal, mean zero, variances v1, v2 and covariance k, the dual of an activation φ is
T(k, v1, v2) = E φ(u)φ(v), and that of its derivative Ṫ = E φ'(u)φ'(v) = ∂T/∂k. Both go through det
= v1·v2 − k² (ReLU's through det/(v1·v2)), which is set to zero where it is lost in rounding: the
angle between u and v is then 0 or π exactly. Otherwise ReLU's Ṫ of a point with itself, whose slope
is infinite there, would be wrong by the square root of the rounding error.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor
from torch.nn import functional

from labelahead.devices import to_float64
from labelahead.errors import DeviceError, InputError, NumericalError, did_you_mean

__all__ = ["DUALS", "infinite_kernel"]

FILTER_PIXELS = 9  # of a 3×3 filter
MAX_TEMPORARY_ENTRIES = 1 << 17  # Larger temporaries do not fit into the CPU cache.
MAX_TEMPORARIES = 12  # in memory at the same time
HEAP_BYTES = 24 << 20  # below the 32 MB from which on glibc always returns freed blocks
# Rounding error of det, relative to v1·v2: an angle of 1e-7.
RELATIVE_ROUNDING = 64 * torch.finfo(torch.float64).eps

Dual = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor | None]]
"""(k, v1, v2, derivative too?) -> (T, Ṫ or None); k has the shape that v1 and v2 broadcast to."""

StandardDeviation = float | Sequence[float]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Layer:
    """A linear layer z = W a + b: how it maps a covariance, and what it adds to the NTK.

    K = weight·s + bias and Θ = weight_gradient·s + bias_gradient + weight·(Θ ∘ Ṫ), where s is the
    covariance of the layer's inputs, a mean over inputs. In the NTK parametrisation weight_gradient
    = weight and bias_gradient = bias.
    """

    weight: float  # variance of a weight × inputs
    bias: float  # variance of a bias
    weight_gradient: float  # ‖∂z/∂W‖² / s
    bias_gradient: float  # ‖∂z/∂b‖²

    @property
    def is_ntk_parametrised(self) -> bool:
        """Whether it is in the NTK parametrisation."""
        return self.weight_gradient == self.weight and self.bias_gradient == self.bias

    def covariance(self, s: Tensor) -> Tensor:
        """The next K."""
        return torch.add(s * self.weight, self.bias)

    def tangent(self, s: Tensor, before: Tensor | None) -> Tensor:
        """The next Θ; `before` is the last one times Ṫ, or None for the first layer."""
        added = torch.add(s * self.weight_gradient, self.bias_gradient)
        return added if before is None else added.add_(before, alpha=self.weight)


@torch.no_grad()
def infinite_kernel(
    x: Tensor,
    x2: Tensor | None = None,
    *,
    network: str = "fc",
    depth: int = 3,
    activation: str = "relu",
    weight_std: StandardDeviation = 2**0.5,
    bias_std: StandardDeviation | None = 0.1,
    kind: str = "ntk",
    width: int | None = None,
    pools: Collection[int] = (),
    skips: Collection[int] = (),
    memory: int = 2 << 30,
    progress: Progress | None = None,
) -> Tensor:
    """Compute the kernel (n, m) of an infinitely wide network between `x` and `x2` (default: `x`).

    The built-in networks, with d inputs, width=w and kind="ntk": `fcn` and `convnet` (whose depth
    counts the read-out) are initialised with weight_std=[√2, ..., √2, 1], bias_std=0; `mlp`, by
    PyTorch's default, with weight_std=1/√3, bias_std=[1/√(3d), 1/√(3w), ...]. Their empirical
    kernels differ from this one by O(1/√w); "single", "trace" and "pseudo" have the same limit.

    Args:
        x: (n, ...), or images (n, channels, H, W) for a convolutional network.
        x2: (m, ...); default: `x`.
        network: "fc", fully connected, inputs flattened; or "conv", 3×3 convolutions with zero
            padding at full size, the mean over all pixels and a linear read-out. "conv" is for
            small images: every pair of images takes (H·W)² numbers per layer.
        depth: Number of hidden layers, without the read-out; 0 is a linear model.
        activation: "relu", "erf" or "gelu" (exact, x·Φ(x)).
        weight_std: Standard deviation of a weight × √inputs; one number, or one for each of the
            depth + 1 layers.
        bias_std: Standard deviation of a bias, likewise; None is a network without biases.
        kind: "ntk", tangent kernel of an output; or "nngp", its covariance at initialisation.
        width: None is the NTK parametrisation, z = weight_std·W a/√inputs + bias_std·b with
            standard normal W and b. A number is PyTorch's parametrisation, whose tangent kernel
            grows with the width: the limit of the mean kernel of networks with that many units or
            channels per layer.
        pools: Numbers of the convolutions (from 1) whose activation is followed by 2×2 average
            pooling.
        skips: Numbers of the convolutions that begin a residual block: a 1×1 convolution of the
            block's input, without a bias, skips this convolution and the next. `wrn1` without its
            BatchNorm is depth=3, skips=(2,). Strides, LayerNorm and attention are missing.
        memory: Bytes of working memory besides the result.
        progress: Called as progress(done, total), in pairs or rows.

    Returns:
        (n, m).

    Raises:
        InputError: If an option is unknown or the shapes do not fit.
        NumericalError: If the inputs are not finite.

    >>> wide = la.infinite_kernel(x, depth=2)
    >>> wide.shape, bool((torch.linalg.eigvalsh(wide) > 0).all())
    (torch.Size([6, 6]), True)
    """
    _check_choices(network, activation, kind, memory)
    _check_inputs(x, x2, network)
    depth = _check_integer(depth, "depth", 1 if network == "conv" else 0)
    inputs = x.shape[1] * FILTER_PIXELS if network == "conv" else x[0].numel()
    layers = _make_layers(network, depth, weight_std, bias_std, width, inputs)
    after = _check_pools(pools, network, depth, tuple(x.shape[2:]))
    past = _check_skips(skips, network, depth, after, width)
    _keep_freed_memory()
    a = to_float64(x.detach())
    b = None if x2 is None else to_float64(x2.detach())
    dual, tangent = DUALS[activation], kind == "ntk"
    if network == "conv":
        recursion = _ConvolutionRecursion(layers, dual, after, past, tangent)
        out = _compute_conv_kernel(a, b, recursion, memory, progress)
    else:
        b = None if b is None else b.flatten(1)
        out = _compute_dense_kernel(a.flatten(1), b, layers, dual, tangent, memory, progress)
    dtype = x.dtype if x2 is None else torch.promote_types(x.dtype, x2.dtype)
    return out.to(dtype).to(x.device) if dtype.is_floating_point else out


def _keep_freed_memory() -> None:
    """Make glibc keep freed memory: temporaries take a third longer if their pages are remapped.

    glibc keeps freed blocks up to the size of the largest block ever returned to the system, so one
    large block is allocated and freed.
    """
    torch.empty(HEAP_BYTES, dtype=torch.uint8, device="cpu")


def _compute_dense_kernel(
    x: Tensor,
    x2: Tensor | None,
    layers: list[Layer],
    dual: Dual,
    tangent: bool,
    memory: int,
    progress: Progress | None,
) -> Tensor:
    """Run the recursion on blocks of rows; a self kernel on its upper triangle only."""
    y = x if x2 is None else x2
    own = _variances(x, layers, dual)
    other = own if x2 is None else _variances(y, layers, dual)
    out = x.new_zeros(len(x), len(y))
    rows = max(1, min(MAX_TEMPORARY_ENTRIES, memory // (8 * MAX_TEMPORARIES)) // len(y))
    for start in range(0, len(x), rows):
        stop = min(start + rows, len(x))
        first = 0 if x2 is not None else start
        s = x[start:stop] @ y[first:].T / x.shape[1]
        if x2 is None:  # A matrix product rounds differently from a sum of squares.
            s.diagonal().copy_(own[0][start:stop])
        before: Tensor | None = None
        for number, layer in enumerate(layers[:-1], 1):
            theta = layer.tangent(s, before) if tangent else None
            v1, v2 = own[number][start:stop, None], other[number][first:]
            k = layer.covariance(s)
            if x2 is None:
                k.diagonal().copy_(own[number][start:stop])
            s, slope = dual(k, v1, v2, tangent)
            before = None if theta is None or slope is None else theta.mul_(slope)
        last = layers[-1]
        out[start:stop, first:] = last.tangent(s, before) if tangent else last.covariance(s)
        if progress is not None:
            progress(stop, len(x))
    return out if x2 is not None else _mirror_upper(out)


def _variances(x: Tensor, layers: list[Layer], dual: Dual) -> list[Tensor]:
    """The inputs' mean squares, then the variance of each hidden layer's outputs before φ."""
    s = (x * x).mean(1)
    variances = [s]
    for layer in layers[:-1]:
        v = layer.covariance(s)
        variances.append(v)
        s, _ = dual(v, v, v, False)
    return variances


def _mirror_upper(upper: Tensor) -> Tensor:
    """Complete a symmetric matrix from its upper triangle."""
    return upper.triu_().add_(upper.triu(1).T.clone())


def _compute_conv_kernel(
    x: Tensor,
    x2: Tensor | None,
    run: "_ConvolutionRecursion",
    memory: int,
    progress: Progress | None,
) -> Tensor:
    """(n, m) from images (n, channels, H, W).

    The mean over all pixels needs the covariance of every pixel of one image with every pixel of
    the other: (H, W, H', W') numbers per pair of images. So a few pairs are processed at a time.
    """
    pixels = x.shape[2] * x.shape[3]
    size = max(1, min(MAX_TEMPORARY_ENTRIES, memory // (8 * MAX_TEMPORARIES)) // pixels**2)
    own = run.variances(x, size)
    other = own if x2 is None else run.variances(x2, size)
    y = x if x2 is None else x2
    out = x.new_zeros(len(x), len(y))
    done, total = 0, len(x) * (len(x) + 1) // 2 if x2 is None else out.numel()
    for i, j in _iterate_pairs(len(x), len(y), x2 is None, size):
        out[i, j] = run(x[i], y[j], [v[..., i] for v in own], [v[..., j] for v in other])
        done += len(i)
        if progress is not None:
            progress(done, total)
    return out if x2 is not None else _mirror_upper(out)


def _iterate_pairs(n: int, m: int, half: bool, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions (i, j) of all pairs, row by row; only j ≥ i if `half`."""
    rows = torch.arange(n)
    lengths = m - rows if half else torch.full((n,), m)
    ends = lengths.cumsum(0)
    for start in range(0, int(ends[-1]), size):
        flat = torch.arange(start, min(start + size, int(ends[-1])))
        i = torch.searchsorted(ends, flat, right=True)
        yield i, flat - (ends - lengths)[i] + (i if half else 0)


class _ConvolutionRecursion:
    """The recursion through the layers on (H, W, H', W', pairs of images), vectorised over pairs.

    A convolution sums over its filter; the factor 1/9 of the mean is in the layer's constants.
    `layers` are the convolutions, then the read-out.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        dual: Dual,
        pools: frozenset[int],
        skips: frozenset[int],
        tangent: bool,
    ) -> None:
        self.layers = [_scale_to_filter_sums(layer) for layer in layers[:-1]]
        self.readout = layers[-1]
        self.skip_weights = [layer.weight for layer in layers[:-1]]  # of the 1×1 convolutions
        self.dual = dual
        self.pools = pools
        self.skips = skips
        self.tangent = tangent

    def __call__(self, x: Tensor, y: Tensor, own: list[Tensor], other: list[Tensor]) -> Tensor:
        """Compute the kernel of x[b] and y[b]; own, other: each layer's variances per pixel."""
        s, before = _pixel_products(x, y), None
        # what came into the block that is being passed
        entered: tuple[Tensor, Tensor | None] | None = None
        for number in range(len(self.layers)):
            block, entered = entered, (s, before) if number + 1 in self.skips else None
            k, theta = self._linear(number, s, before, block)
            s, slope = self.dual(
                k, own[number][:, :, None, None], other[number][None, None], self.tangent
            )
            before = None if theta is None or slope is None else theta.mul_(slope)
            if number + 1 in self.pools:
                s, before = _pool(s), None if before is None else _pool(before)
        mean = s.flatten(0, 3).mean(0)
        if before is None:
            return self.readout.covariance(mean)
        return self.readout.tangent(mean, before.flatten(0, 3).mean(0))

    def _linear(
        self,
        number: int,
        s: Tensor,
        before: Tensor | None,
        block: tuple[Tensor, Tensor | None] | None,
    ) -> tuple[Tensor, Tensor | None]:
        """K after a convolution, and Θ for a tangent kernel."""
        layer, past = self.layers[number], self.skip_weights[number]
        summed = _sum_over_filter(s)
        moved = None if before is None else _sum_over_filter(before)
        # In the NTK parametrisation a layer adds its K to Θ; in any other one block is None.
        theta = (
            layer.tangent(summed, moved) if self.tangent and not layer.is_ntk_parametrised else None
        )
        k = summed.mul_(layer.weight).add_(layer.bias)
        if block is not None:
            k.add_(block[0], alpha=past)
        if self.tangent and layer.is_ntk_parametrised:
            theta = k.clone() if moved is None else torch.add(k, moved, alpha=layer.weight)
            if block is not None and block[1] is not None:
                theta.add_(block[1], alpha=past)
        return k, theta

    def variances(self, x: Tensor, size: int) -> list[Tensor]:
        """(H, W, n) for each convolution: the variance of its outputs per pixel and image.

        Pooling needs the covariance between pixels of one image, so the recursion includes it.
        """
        parts: list[list[Tensor]] = []
        for start in range(0, len(x), size):
            part = x[start : start + size]
            s, each = _pixel_products(part, part), []
            entered: Tensor | None = None
            for number, layer in enumerate(self.layers):
                block, entered = entered, s if number + 1 in self.skips else None
                k = _sum_over_filter(s).mul_(layer.weight).add_(layer.bias)
                if block is not None:
                    k.add_(block, alpha=self.skip_weights[number])
                H, W = k.shape[:2]
                v = k.reshape(H * W, H * W, -1).diagonal(dim1=0, dim2=1).T.reshape(H, W, -1).clone()
                each.append(v)
                s, _ = self.dual(k, v[:, :, None, None], v[None, None], False)
                s = _pool(s) if number + 1 in self.pools else s
            parts.append(each)
        return [torch.cat(layer, dim=2) for layer in zip(*parts, strict=True)]


def _scale_to_filter_sums(layer: Layer) -> Layer:
    """Scale a layer's constants for sums over a filter instead of means."""
    return Layer(
        layer.weight / FILTER_PIXELS,
        layer.bias,
        layer.weight_gradient / FILTER_PIXELS,
        layer.bias_gradient,
    )


def _pixel_products(x: Tensor, y: Tensor) -> Tensor:
    """(H, W, H', W', b): mean over channels of the products of two images' pixels."""
    channels, sides = x.shape[1], (*x.shape[2:], *y.shape[2:])
    products = x.flatten(2).transpose(1, 2) @ y.flatten(2) / channels
    return products.permute(1, 2, 0).reshape(*sides, -1)


def _sum_over_filter(s: Tensor) -> Tensor:
    """Sum s[p+δ, p'+δ] over the filter's nine offsets δ, with zeros outside (SAME padding).

    Both images shift together, one axis after the other: four sums instead of eight.
    """
    for axis in (0, 1):
        size, total = s.shape[axis], s.clone()
        for to, of in ((0, 1), (1, 0)):
            target, source = total, s
            for a in (axis, axis + 2):
                target = target.narrow(a, to, size - 1)
                source = source.narrow(a, of, size - 1)
            target += source
        s = total
    return s


def _pool(s: Tensor) -> Tensor:
    """Average over 2×2 pixels in both images; an odd last row or column is dropped."""
    H, W = s.shape[0] // 2, s.shape[1] // 2
    s = s[: 2 * H, : 2 * W, : 2 * H, : 2 * W].reshape(H, 2, W, 2, H, 2, W, 2, -1)
    return s.mean((1, 3, 5, 7))


def relu(k: Tensor, v1: Tensor, v2: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    """Arc-cosine kernels of order 1 and 0: T = (√det + (π−θ)k)/2π, Ṫ = (π−θ)/2π.

    With c = −k/√(v1·v2) the sine of θ is √(1 − c²), and π − θ is the angle of the point (c, sin θ),
    which saves a few passes over the pairs. A unit that is always zero has slope 0, as in PyTorch:
    Ṫ = 0 where a variance is zero.
    """
    d1, d2 = v1.sqrt(), v2.sqrt()
    silent = not (v1.all() and v2.all())  # Rare; a mask for all pairs would take 20 % more time.
    c = (k * _inverse(d1, silent).neg_()).mul_(_inverse(d2, silent))
    sine = torch.addcmul(c.new_ones(()), c, c, value=-1)
    sine = functional.threshold(sine, RELATIVE_ROUNDING, 0.0, inplace=True).sqrt_()
    rest = torch.atan2(sine, c, out=c).div_(2 * pi)
    value = sine.mul_(d1 / (2 * pi)).mul_(d2).addcmul_(rest, k)
    if slope and silent:
        rest.masked_fill_((v1 == 0) | (v2 == 0), 0.0)
    return value, rest if slope else None


def _inverse(deviation: Tensor, silent: bool) -> Tensor:
    """One over a standard deviation; zero where that is zero."""
    inverse = deviation.reciprocal()
    return inverse.masked_fill_(deviation == 0, 0.0) if silent else inverse


def erf(k: Tensor, v1: Tensor, v2: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    """T = (2/π) asin(2k/√((1+2v1)(1+2v2))), Ṫ = (4/π)/√((1+2v1)(1+2v2) − 4k²)."""
    # 1 + 2v1 + 2v2 + 4det is the radicand without its cancellation for large variances.
    root = (_determinant(k, v1 * v2).mul_(4) + 2 * v1).add_(2 * v2).add_(1).sqrt_()
    value = torch.atan2(2 * k, root).mul_(2 / pi)
    return value, root.reciprocal_().mul_(4 / pi) if slope else None


def gelu(k: Tensor, v1: Tensor, v2: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    """φ(x) = xΦ(x). With D = det(I + Σ) = 1 + v1 + v2 + det and q = 1/(2π√D):

    E ΦΦ = 1/4 + asin(k/√((1+v1)(1+v2)))/2π, E ϕϕ = q, and, by E uF = v1·E ∂F/∂u + k·E ∂F/∂v,
    T = k E ΦΦ + q (det + k²/(1+v1) + k²/(1+v2)), Ṫ = E ΦΦ + q k (1/(1+v1) + 1/(1+v2) + 1/D).
    """
    det = _determinant(k, v1 * v2)
    D = (det + v1).add_(v2).add_(1)
    root = D.sqrt()
    cdfs = torch.atan2(k, root).div_(2 * pi).add_(0.25)
    q = root.reciprocal_().div_(2 * pi)
    shares = k * (1 / (1 + v1) + 1 / (1 + v2))
    value = (k * cdfs).addcmul_(q, det.addcmul_(k, shares))
    return value, cdfs.addcmul_(q, shares.add_(k / D)) if slope else None


def _determinant(k: Tensor, product: Tensor) -> Tensor:
    """v1·v2 − k², never negative, and zero where it is lost in rounding."""
    det = product - k * k
    return det.masked_fill_(det <= RELATIVE_ROUNDING * product, 0.0)


DUALS: dict[str, Dual] = {"relu": relu, "erf": erf, "gelu": gelu}


def _make_layers(
    network: str,
    depth: int,
    weight_std: StandardDeviation,
    bias_std: StandardDeviation | None,
    width: int | None,
    inputs: int,
) -> list[Layer]:
    weights = _check_deviations(weight_std, "weight_std", depth + 1)
    biases = _check_deviations(0.0 if bias_std is None else bias_std, "bias_std", depth + 1)
    if width is None:
        return [Layer(w * w, b * b, w * w, b * b) for w, b in zip(weights, biases, strict=True)]
    # Weights are trained without rescaling, so that ‖∂z/∂W‖² is a sum over inputs, not a mean.
    units = _check_integer(width, "width", 1)
    fans = (
        [inputs] + [units * FILTER_PIXELS if network == "conv" else units] * (depth - 1) + [units]
    )
    trained = 0.0 if bias_std is None else 1.0
    each = zip(weights, biases, fans[: depth + 1], strict=True)
    return [Layer(w * w, b * b, float(fan), trained) for w, b, fan in each]


def _check_deviations(value: StandardDeviation, what: str, count: int) -> list[float]:
    try:
        numbers = [float(v) for v in value] if isinstance(value, Sequence) else [float(value)]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) == 1 and not isinstance(value, Sequence):
        numbers *= count
    if len(numbers) != count or not all(0 <= v < float("inf") for v in numbers):
        raise InputError(
            f"{what} is {value!r}; expected a finite number of at least 0, or {count} of them, one "
            "for each layer and the read-out"
        )
    return numbers


def _check_choices(network: str, activation: str, kind: str, memory: int) -> None:
    for what, value, known in (
        ("network", network, ["fc", "conv"]),
        ("activation", activation, list(DUALS)),
        ("kind", kind, ["ntk", "nngp"]),
    ):
        if value not in known:
            raise InputError(
                f"{what} is {value!r}; {did_you_mean(value, known)}there are {', '.join(known)}"
            )
    _check_integer(memory, "memory", 1)


def _check_inputs(x: Tensor, x2: Tensor | None, network: str) -> None:
    for label, t in (("x", x), ("x2", x2)):
        if t is None:
            continue
        if not isinstance(t, Tensor) or t.is_complex():
            kind = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise InputError(f"{label} is {kind}; expected a tensor of real numbers")
        if t.ndim < 2 or not t.numel() or (network == "conv" and t.ndim != 4):
            expected = "(n, channels, height, width)" if network == "conv" else "(n, ...)"
            raise InputError(
                f"{label} has shape {tuple(t.shape)}; expected {expected}, nothing empty: samples "
                "lead, and t[:, None] adds a missing dimension"
            )
        if not torch.isfinite(t).all():
            raise NumericalError(f"{label} holds NaN or infinity: remove or repair those rows")
    if x2 is not None and x2.shape[1:] != x.shape[1:]:
        raise InputError(
            f"x has samples of shape {tuple(x.shape[1:])} and x2 of {tuple(x2.shape[1:])}; "
            "expected the same shape"
        )
    if x2 is not None and x2.device != x.device:
        raise DeviceError(f"x is on {x.device} and x2 on {x2.device}: move one of them")


def _check_pools(
    pools: Collection[int], network: str, depth: int, sides: tuple[int, ...]
) -> frozenset[int]:
    after = frozenset(_check_integer(p, "every entry of pools", 1) for p in pools)
    if after and (network != "conv" or max(after) > depth):
        raise InputError(
            f"pools is {sorted(after)}; expected numbers of convolutions, from 1 to the depth "
            f"{depth}, and network='conv'"
        )
    if after and min(sides) >> len(after) < 1:
        raise InputError(
            f"{len(after)} pools are too many for an image of {sides[0]}x{sides[1]} pixels: each "
            "halves its sides"
        )
    return after


def _check_skips(
    skips: Collection[int], network: str, depth: int, pools: frozenset[int], width: int | None
) -> frozenset[int]:
    past = frozenset(_check_integer(p, "every entry of skips", 1) for p in skips)
    inside = [p for p in past if p in pools or p + 1 in past or p >= depth]
    if past and (network != "conv" or inside or width is not None):
        raise InputError(
            f"skips is {sorted(past)}; expected numbers of convolutions from 1 to {depth - 1}, at "
            "least two apart, without a pool inside a block, network='conv' and no width"
        )
    return past


def _check_integer(value: object, what: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{what} is {value!r}; expected a whole number of at least {least}")
    return value
