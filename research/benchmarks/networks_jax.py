"""The benchmark's networks as plain JAX functions, for neural-tangents; weights come from torch.

Channels last, because XLA's CPU convolutions are faster that way. Permuting a weight's entries does
not change a tangent kernel. BatchNorm is frozen: an affine map whose scale and bias are parameters
and whose statistics are constants. Each function returns s(x) = Σ_c f_c(x)/√C, shape (n, 1), so
that the empirical kernel of it IS the pseudo-NTK.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

Params = dict[str, Any]
Network = Callable[[Params, Any], Any]
EPSILON = 1e-5  # of torch's BatchNorm


def conv(params: Params, name: str, x: Any, stride: int = 1, padding: int = 1) -> Any:
    """2-d convolution, with bias if the layer has one."""
    y = lax.conv_general_dilated(
        x,
        params[name + ".weight"],
        window_strides=(stride, stride),
        padding=[(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return y + params[name + ".bias"] if name + ".bias" in params else y


def linear(params: Params, name: str, x: Any) -> Any:
    """Affine map; the weight is stored (in, out)."""
    return x @ params[name + ".weight"] + params[name + ".bias"]


def relu(x: Any) -> Any:
    """Plain maximum: `jax.nn.relu` carries a custom derivative that hides it from the rules."""
    return jnp.maximum(x, 0.0)


def max_pool(x: Any) -> Any:
    """2×2 maximum by reshaping: its derivative is cheaper on CPU than a window reduction's."""
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).max(axis=(2, 4))


def _mlp(_stats: Params) -> Network:
    def f(params: Params, x: Any) -> Any:
        h = relu(linear(params, "0", x))
        return linear(params, "4", relu(linear(params, "2", h)))

    return f


def _cnn(_stats: Params) -> Network:
    def f(params: Params, x: Any) -> Any:
        h = max_pool(relu(conv(params, "0", x, padding=2)))
        h = max_pool(relu(conv(params, "3", h, padding=0)))
        h = relu(linear(params, "7", h.reshape(h.shape[0], -1)))
        return linear(params, "11", relu(linear(params, "9", h)))

    return f


def _normaliser(stats: Params) -> Callable[[Params, str, Any], Any]:
    def norm(params: Params, name: str, x: Any) -> Any:
        mean, scale = stats[name]
        return (x - mean) * scale * params[name + ".weight"] + params[name + ".bias"]

    return norm


def _wrn(stats: Params) -> Network:
    norm = _normaliser(stats)

    def f(params: Params, x: Any) -> Any:
        x = conv(params, "stem", x)
        h = relu(norm(params, "block.bn1", x))
        g = relu(norm(params, "block.bn2", conv(params, "block.conv1", h)))
        y = conv(params, "block.conv2", g) + conv(params, "block.shortcut", h, padding=0)
        return linear(params, "head", relu(norm(params, "bn", y)).mean(axis=(1, 2)))

    return f


def _resnet18(stats: Params) -> Network:
    norm = _normaliser(stats)

    def block(params: Params, name: str, x: Any, stride: int) -> Any:
        h = relu(norm(params, name + ".bn1", conv(params, name + ".conv1", x, stride)))
        h = norm(params, name + ".bn2", conv(params, name + ".conv2", h))
        if name + ".shortcut.0.weight" in params:
            x = conv(params, name + ".shortcut.0", x, stride, padding=0)
            x = norm(params, name + ".shortcut.1", x)
        return relu(h + x)

    def f(params: Params, x: Any) -> Any:
        h = relu(norm(params, "bn", conv(params, "conv", x)))
        for index in range(8):
            h = block(params, f"blocks.{index}", h, 2 if index in (2, 4, 6) else 1)
        return linear(params, "head", h.mean(axis=(1, 2)))

    return f


MAKERS: dict[str, Callable[[Params], Network]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "wrn64": _wrn,
    "resnet18-16": _resnet18,
    "resnet18-64": _resnet18,
}


def _weight(key: str, value: np.ndarray, network: str) -> np.ndarray:
    """Torch's layout to ours: OIHW to HWIO, (out, in) to (in, out)."""
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    if network == "cnn" and key == "7.weight":  # it reads the flattened image: C,H,W to H,W,C
        value = value.reshape(-1, 16, 5, 5).transpose(0, 2, 3, 1).reshape(value.shape)
    return value.T if value.ndim == 2 else value


def load(network: str, path: str) -> tuple[Network, Params, np.ndarray]:
    """Read what `networks.export` wrote: s(params, x), the parameters and the inputs."""
    arrays = dict(np.load(path))
    x = arrays.pop("x")
    stats = {}
    for key in [key for key in arrays if key.endswith("running_mean")]:
        name = key.removesuffix(".running_mean")
        mean, variance = arrays.pop(key), arrays.pop(name + ".running_var")
        arrays.pop(name + ".num_batches_tracked")
        stats[name] = (mean, (1 / np.sqrt(variance + EPSILON)).astype(mean.dtype))
    params = {key: jnp.asarray(_weight(key, value, network)) for key, value in arrays.items()}
    f = MAKERS[network](stats)

    def scalar(params: Params, x: Any) -> Any:
        outputs = f(params, x)
        return outputs.sum(axis=1, keepdims=True) / np.sqrt(outputs.shape[1])

    return scalar, params, x.transpose(0, 2, 3, 1).copy() if x.ndim == 4 else x
