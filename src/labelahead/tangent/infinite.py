"""The kernels of infinitely wide networks, in closed form: no network, no seed.

A layer z = W a + b with weights of variance σw²/inputs and biases of variance σb² takes K to
σw²·T(K) + σb², where T is the dual of the activation before it (`duals`), and Θ to
K + σw²·Θ ∘ Ṫ (NTK parametrisation). K is the covariance of the outputs over initialisations (NNGP),
Θ the tangent kernel.
"""

from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches

import torch
from torch import Tensor

from labelahead.errors import DeviceError, InputError, NumericalError
from labelahead.tangent.duals import DUALS, Dual, Layer
from labelahead.tangent.infinite_conv import FILTER, conv_kernel

__all__ = ["infinite_kernel"]

BLOCK = 1 << 17  # numbers in a temporary: larger ones leave the cache and are slower
TEMPORARIES = 12  # held at once, at most
Spread = float | Sequence[float]


@torch.no_grad()
def infinite_kernel(
    x: Tensor,
    x2: Tensor | None = None,
    *,
    network: str = "fc",
    depth: int = 3,
    activation: str = "relu",
    weight_std: Spread = 2**0.5,
    bias_std: Spread | None = 0.1,
    kind: str = "ntk",
    width: int | None = None,
    pools: Collection[int] = (),
    memory: int = 2 << 30,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Kernel (n, m) of an infinitely wide network between `x` and `x2` (default: `x`).

    network: "fc", fully connected, inputs flattened; or "conv", 3×3 convolutions with zero padding
    at full size, the mean over all pixels, a linear read-out: for small images (n, channels, H, W),
    as every pair of images costs (H·W)² numbers a layer.
    depth: hidden layers, the read-out not counted; 0 is a linear model.
    activation: "relu", "erf" or "gelu" (exact, x·Φ(x)).
    weight_std, bias_std: a weight's standard deviation × √inputs, and a bias's; or one for each of
    the depth + 1 layers. bias_std=None is a network without biases.
    kind: "ntk", tangent kernel of an output; or "nngp", covariance of an output at initialisation.
    width: None is the NTK parametrisation, z = weight_std·W a/√inputs + bias_std·b, where W and b
    are standard normal. A number is PyTorch's parametrisation, whose tangent kernel grows with the
    width: the limit of the mean kernel of networks with so many units or channels in each layer.
    pools: numbers of the convolutions (from 1) after whose activation 2×2 means are taken.
    memory: bytes of working memory besides the result. progress(done, total) counts pairs or rows.

    For our own networks, with d inputs, width=w and kind="ntk": `fcn` and `convnet` (whose depth
    counts the read-out) start with weight_std=[√2, ..., √2, 1], bias_std=0; `mlp`, by PyTorch's
    own start, with weight_std=1/√3, bias_std=[1/√(3d), 1/√(3w), ...]. Their empirical kernels
    differ from this one by O(1/√w); "single", "trace" and "pseudo" have the same limit.
    """
    _check_choices(network, activation, kind, memory)
    _check_inputs(x, x2, network)
    depth = _whole(depth, "depth", 1 if network == "conv" else 0)
    inputs = x.shape[1] * FILTER if network == "conv" else x[0].numel()
    layers = _layers(network, depth, weight_std, bias_std, width, inputs)
    after = _checked_pools(pools, network, depth, tuple(x.shape[2:]))
    a = x.detach().to(torch.float64)
    b = None if x2 is None else x2.detach().to(torch.float64)
    dual, tangent = DUALS[activation], kind == "ntk"
    if network == "conv":
        out = conv_kernel(
            a, b, layers, dual, pools=after, tangent=tangent, memory=memory, progress=progress
        )
    else:
        b = None if b is None else b.flatten(1)
        out = _dense_kernel(a.flatten(1), b, layers, dual, tangent, memory, progress)
    return out.to(_result_type(x, x2))


def _dense_kernel(
    x: Tensor,
    x2: Tensor | None,
    layers: list[Layer],
    dual: Dual,
    tangent: bool,
    memory: int,
    progress: Callable[[int, int], None] | None,
) -> Tensor:
    """The recursion on blocks of rows; of a self kernel only the upper half."""
    y = x if x2 is None else x2
    own = _variances(x, layers, dual)
    other = own if x2 is None else _variances(y, layers, dual)
    out = x.new_zeros(len(x), len(y))
    rows = max(1, min(BLOCK, memory // (8 * TEMPORARIES)) // len(y))
    for start in range(0, len(x), rows):
        stop = min(start + rows, len(x))
        first = 0 if x2 is not None else start
        s = x[start:stop] @ y[first:].T / x.shape[1]
        if x2 is None:  # a product of matrices rounds otherwise than a sum of squares
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
    return out if x2 is not None else out.triu_().add_(out.triu(1).T.clone())


def _variances(x: Tensor, layers: list[Layer], dual: Dual) -> list[Tensor]:
    """The inputs' mean squares, then the variance of each hidden layer's outputs before φ."""
    s = (x * x).mean(1)
    found = [s]
    for layer in layers[:-1]:
        v = layer.covariance(s)
        found.append(v)
        s, _ = dual(v, v, v, False)
    return found


def _layers(
    network: str,
    depth: int,
    weight_std: Spread,
    bias_std: Spread | None,
    width: int | None,
    inputs: int,
) -> list[Layer]:
    weights = _spread(weight_std, "weight_std", depth + 1)
    biases = _spread(0.0 if bias_std is None else bias_std, "bias_std", depth + 1)
    if width is None:
        return [Layer(w * w, b * b, w * w, b * b) for w, b in zip(weights, biases, strict=True)]
    # Weights are trained as they are, so that ‖∂z/∂W‖² is a sum over the inputs, not a mean.
    units = _whole(width, "width", 1)
    fans = [inputs] + [units * FILTER if network == "conv" else units] * (depth - 1) + [units]
    trained = 0.0 if bias_std is None else 1.0
    found = zip(weights, biases, fans[: depth + 1], strict=True)
    return [Layer(w * w, b * b, float(fan), trained) for w, b, fan in found]


def _spread(value: Spread, what: str, count: int) -> list[float]:
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
            near = get_close_matches(str(value).lower(), known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"{what} is {value!r}; {hint}there are {', '.join(known)}")
    _whole(memory, "memory", 1)


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
            raise NumericalError(
                f"{label} holds NaN or infinity: leave those rows out or mend them"
            )
    if x2 is not None and x2.shape[1:] != x.shape[1:]:
        raise InputError(
            f"x has samples of shape {tuple(x.shape[1:])} and x2 of {tuple(x2.shape[1:])}: both "
            "must be alike"
        )
    if x2 is not None and x2.device != x.device:
        raise DeviceError(f"x is on {x.device} and x2 on {x2.device}: move one of them")


def _checked_pools(
    pools: Collection[int], network: str, depth: int, sides: tuple[int, ...]
) -> frozenset[int]:
    after = frozenset(_whole(p, "every entry of pools", 1) for p in pools)
    if after and (network != "conv" or max(after) > depth):
        raise InputError(
            f"pools is {sorted(after)}; expected numbers of convolutions, from 1 to the depth "
            f"{depth}, and network='conv'"
        )
    if after and min(sides) >> len(after) < 1:
        raise InputError(
            f"{len(after)} pools leave nothing of an image of {sides[0]}x{sides[1]} pixels: each "
            "halves its sides"
        )
    return after


def _whole(value: object, what: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{what} is {value!r}; expected a whole number of at least {least}")
    return value


def _result_type(x: Tensor, x2: Tensor | None) -> torch.dtype:
    dtype = x.dtype if x2 is None else torch.promote_types(x.dtype, x2.dtype)
    return dtype if dtype.is_floating_point else torch.float64
