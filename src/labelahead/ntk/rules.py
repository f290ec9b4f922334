"""Rules, per kind of operation, for a parameter's gradient from inputs and arriving gradients.

A rule reads a graph node once, before the backward, and returns a `LayerRule`:

- `Outer`   the gradient is a sum of outer products g aᵀ (Linear; any matrix product)
- `Conv`    the same over the patches of an image (Conv1d/2d/3d, any geometry)
- `Lookup`  the same with one-hot a (Embedding)
- `Broadcast`  the gradient is an elementwise product, summed to the parameter's shape
  (biases, scales, the affine part of norm layers, PReLU)

`None` means that no rule applies; the parameter is then differentiated by `torch.func`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelahead.ntk.capture import Site

__all__ = [
    "Broadcast",
    "Conv",
    "LayerRule",
    "Lookup",
    "Outer",
    "apply_rule",
    "multiply_elementwise",
]


@dataclass(frozen=True)
class Outer:
    """dL/dW (o, d) = Σ over rows of g aᵀ, with a (rows, d) and g (rows, o)."""

    a: Tensor
    transposed: bool  # the parameter is stored (d, o)


@dataclass(frozen=True)
class Conv:
    """As `Outer` over the patches of `a` (rows, C, *space)."""

    a: Tensor
    size: tuple[int, ...]  # of the window
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


@dataclass(frozen=True)
class Lookup:
    """Row a[i] of the table receives g[i]; `a` holds integers, -1 for padding."""

    a: Tensor
    rows: int


@dataclass(frozen=True)
class Broadcast:
    """dL/dp = Σ factor·g·(a − shift), summed to `shape`, aligned to the last dimensions of g.

    `a` None stands for ones. `shift` and `factor` broadcast against g.
    """

    a: Tensor | None
    shape: tuple[int, ...]
    shift: Tensor | None = None
    factor: Tensor | float = 1.0
    negative_only: bool = False  # PReLU learns from the entries below zero


LayerRule = Outer | Conv | Lookup | Broadcast
Rule = Callable[[Any, Site, tuple[int, ...]], LayerRule | None]


def apply_rule(site: Site) -> LayerRule | None:
    """Apply the rule for this kind of site; None if there is none."""
    rule = RULES.get(site.kind)
    if rule is None:
        return None
    try:
        return rule(site.node, site, site.shape)
    except (AttributeError, RuntimeError):
        # Another release of torch may save other attributes: fall back, never guess.
        return None


def _addmm(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    if node._saved_alpha != 1 or node._saved_beta != 1:
        return None
    if site.argument == 0:
        return Broadcast(None, shape)
    if site.argument != 2:
        return None
    return Outer(node._saved_mat1.detach(), transposed=not site.is_transposed)


def _mm(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    return (
        Outer(node._saved_self.detach(), transposed=not site.is_transposed)
        if site.argument == 1
        else None
    )


def _recurrent(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    # `recurrence.RecurrentProduct`
    return (
        Outer(node.saved_tensors[0], transposed=False)
        if site.argument == 0
        else Broadcast(None, shape)
    )


def _convolution(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    space = node._saved_input.ndim - 2
    if site.argument == 2:
        return Broadcast(None, (*shape, *[1] * space))
    if node._saved_transposed or site.argument != 1:
        return None
    return Conv(
        node._saved_input.detach(),
        shape[2:],
        tuple(node._saved_stride),
        tuple(node._saved_padding),
        tuple(node._saved_dilation),
        int(node._saved_groups),
    )


def _batch_norm(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    if node._saved_training or site.argument not in (1, 2):
        return None
    aligned = (*shape, *[1] * (node._saved_input.ndim - 2))
    if site.argument == 2:
        return Broadcast(None, aligned)
    mean = node._saved_running_mean.view(aligned)
    # cuDNN's and MIOpen's nodes have the same inputs, but call it epsilon.
    eps = node._saved_eps if hasattr(node, "_saved_eps") else node._saved_epsilon
    scale = (node._saved_running_var + eps).rsqrt().view(aligned)
    return Broadcast(node._saved_input.detach(), aligned, mean, scale)


def _fast_batch_norm(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    # `layers.BatchNormAffine`
    a, mean, var = node.saved_tensors
    aligned = (*shape, *[1] * (a.ndim - 2))
    if site.argument == 1:
        return Broadcast(None, aligned)
    return Broadcast(a, aligned, mean.view(aligned), (var + node.eps).rsqrt().view(aligned))


def _layer_norm(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    if site.argument == 2:
        return Broadcast(None, shape)
    if site.argument != 1:
        return None
    return Broadcast(node._saved_input.detach(), shape, node._saved_result1, node._saved_result2)


def _group_norm(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    a = node._saved_input
    if site.argument not in (1, 2):
        return None
    aligned = (*shape, *[1] * (a.ndim - 2))
    if site.argument == 2:
        return Broadcast(None, aligned)
    per_group = a.shape[1] // int(node._saved_group)

    def spread(s: Tensor) -> Tensor:
        s = s.repeat_interleave(per_group, dim=1)
        return s.view(*s.shape, *[1] * (a.ndim - 2))

    return Broadcast(a.detach(), aligned, spread(node._saved_result1), spread(node._saved_result2))


def _rms_norm(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    if site.argument != 1:
        return None
    return Broadcast(node._saved_input.detach(), shape, None, node._saved_result1)


def _embedding(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    if node._saved_scale_grad_by_freq or node._saved_sparse:
        return None  # scaling by frequency looks at the whole batch; sparse gradients have no shape
    a = node._saved_indices
    padding = int(node._saved_padding_idx)
    if 0 <= padding < shape[0]:
        a = a.masked_fill(a == padding, -1)
    return Lookup(a, shape[0])


def _prelu(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    if site.argument != 1:
        return None
    aligned = tuple(node._saved_weight.shape)
    return Broadcast(node._saved_self.detach(), aligned, negative_only=True)


def _multiply(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    other = node._saved_other if site.argument == 0 else node._saved_self
    if not isinstance(other, Tensor):
        return None
    return Broadcast(other.detach(), shape)


def _add(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    return Broadcast(None, shape, factor=float(node._saved_alpha) if site.argument == 1 else 1.0)


def _subtract(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    return Broadcast(None, shape, factor=-float(node._saved_alpha) if site.argument == 1 else 1.0)


def _expand(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    return Broadcast(None, shape)


def _repeat(node: Any, site: Site, shape: tuple[int, ...]) -> LayerRule | None:
    # InstanceNorm repeats its affine parameters once per sample; repeating an axis of length one is
    # an expansion.
    times = tuple(node._saved_repeats)
    alone = all(
        k == 1 or size == 1
        for k, size in zip(times, (1,) * (len(times) - len(shape)) + shape, strict=True)
    )
    return Broadcast(None, shape) if alone or len(shape) == len(times) == 1 else None


RULES: Mapping[str, Rule] = {
    "AddmmBackward0": _addmm,
    "MmBackward0": _mm,
    "RecurrentProductBackward": _recurrent,
    "ConvolutionBackward0": _convolution,
    "NativeBatchNormBackward0": _batch_norm,
    "CudnnBatchNormBackward0": _batch_norm,
    "MiopenBatchNormBackward0": _batch_norm,
    "BatchNormAffineBackward": _fast_batch_norm,
    "NativeLayerNormBackward0": _layer_norm,
    "NativeGroupNormBackward0": _group_norm,
    "FusedRmsNormBackward0": _rms_norm,
    "EmbeddingBackward0": _embedding,
    "PreluKernelBackward0": _prelu,
    "MulBackward0": _multiply,
    "AddBackward0": _add,
    "SubBackward0": _subtract,
    "ExpandBackward0": _expand,
    "RepeatBackward0": _repeat,
}
"""Autograd node -> rule. A new layer type is one function and one line here."""


def multiply_elementwise(rule: Broadcast, g: Tensor) -> Tensor:
    """Compute the product before it is summed to the parameter's shape; g may have leading K."""
    out = g
    if rule.a is not None:
        a = rule.a
        if rule.negative_only:
            a = torch.clamp(a, max=0)
        # Allocating a tensor costs more than the arithmetic, so only one is allocated.
        out = g * a if rule.shift is None else torch.sub(a, rule.shift).expand_as(g[:1])
        if rule.shift is not None:
            out = out.mul_(g) if out.shape == g.shape and out.dtype == g.dtype else out * g
    if isinstance(rule.factor, Tensor) or rule.factor != 1.0:
        out = out.mul_(rule.factor) if out is not g and out.dtype == g.dtype else out * rule.factor
    return out
