"""How long a pseudo-NTK must take at least: its unavoidable FLOPs over the measured GEMM rate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layer:
    """Sizes of one parametrised layer, for one sample."""

    kind: str  # linear, conv or norm
    positions_in: int  # pixels (or tokens) of the input
    positions: int  # of the output, T
    fan_in: int  # d: input values that meet in one output value (c_in·k² for a convolution)
    channels_in: int
    channels: int  # o
    bias: bool


def _describe(module: nn.Module, given: Tensor, output: Tensor) -> Layer | None:
    if isinstance(module, nn.Linear):
        return Layer(
            "linear",
            1,
            1,
            module.in_features,
            module.in_features,
            module.out_features,
            module.bias is not None,
        )
    if isinstance(module, nn.Conv2d):
        return Layer(
            "conv",
            given[0, 0].numel(),
            output[0, 0].numel(),
            module.weight[0].numel(),
            module.in_channels,
            module.out_channels,
            module.bias is not None,
        )
    if isinstance(module, nn.BatchNorm2d):
        return Layer("norm", 1, 1, 1, 1, module.num_features, True)
    return None


def layers(model: nn.Module, sample: Tensor) -> list[Layer]:
    """Every parametrised layer in the order in which it is called."""
    every: list[Layer] = []

    def look(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        layer = _describe(module, given[0], output)
        if layer is not None:
            every.append(layer)

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    with torch.no_grad():
        model(sample.unsqueeze(0))
    for hook in hooks:
        hook.remove()
    return every


def gram_flops(layer: Layer, n: int) -> float:
    """The cheapest known contraction of one layer's gradients, each symmetric pair once.

    A product of an (n, m) matrix with its transpose costs 2·m FLOPs for each of n²/2 pairs: n²·m.
    - Norm affine: per-sample gradients of scale and bias, 2·n²·o.
    - Linear, one token: (A Aᵀ + 1) ∘ (G Gᵀ), n²·(d + o); the 1 is its bias, which costs nothing.
    - Convolution: n²·o for a bias, and the cheaper of
      (i)  per-sample weight gradients, 2·n·T·d·o, and their Gram matrix, n²·d·o;
      (ii) position pairs: the pixel Gram of the inputs (all pairs of input pixels, so without the
           k² of the patches, which are sums of shifted pixel Grams) and that of the output
           gradients, n²·(T_in²·c_in + T²·o).
    Element-wise work (Hadamard products, shifted sums) is left out: the bound stays a lower one.
    """
    if layer.kind == "norm":
        return 2.0 * n**2 * layer.channels
    if layer.kind == "linear":
        return float(n**2) * (layer.fan_in + layer.channels)
    bias = float(n**2) * layer.channels if layer.bias else 0.0
    weights = layer.fan_in * layer.channels
    gradients = 2.0 * n * layer.positions * weights + float(n**2) * weights
    pairs = float(n**2) * (
        layer.positions_in**2 * layer.channels_in + layer.positions**2 * layer.channels
    )
    return min(gradients, pairs) + bias


def flops(model: nn.Module, sample: Tensor, n: int) -> dict[str, float]:
    """FLOPs of forward, backward and Gram products for n samples.

    Forward: 2·T·d·o a sample and layer. Backward: the same again for the data gradient of every
    layer but the first, whose input needs none; no weight gradients (they are in `gram_flops`
    where the layer wants them). Activations, norms and pooling count nothing.
    """
    every = layers(model, sample)
    products = [
        2.0 * n * layer.positions * layer.fan_in * layer.channels
        for layer in every
        if layer.kind != "norm"
    ]
    return {
        "forward": sum(products),
        "backward": sum(products[1:]),
        "gram": sum(gram_flops(layer, n) for layer in every),
    }
