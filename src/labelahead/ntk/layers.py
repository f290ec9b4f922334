"""Faster implementations of image layers for computing gradients on the CPU, with equal results.

Max-pooling: torch 2.13 processes windows one number at a time unless channels come last, which
takes longer than the convolutions of a small network. Here every position of the window is one
comparison of whole arrays.

BatchNorm in eval mode: torch's backward takes ten times as long as the one product that it amounts
to. Here it is that product; weight and bias have a node of their own, which autograd need not run.

These layers, and those of `recurrence`, can be differentiated once. A network whose forward
differentiates its own layers, and returns the result, needs torch's (`only_torch_layers`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

__all__ = [
    "FAST_LAYER_FUNCTIONS",
    "FastLayers",
    "NestedDerivativeError",
    "fast_layers",
    "fast_layers_mode",
    "first_derivative_only",
    "only_torch_layers",
    "replaces_layers",
]

MAX_WINDOW_POSITIONS = 9  # Larger windows are left to torch.


_fast_layers_enabled: ContextVar[bool] = ContextVar("fast_layers", default=False)
_torch_layers_only: ContextVar[bool] = ContextVar("torch_layers_only", default=False)


class NestedDerivativeError(Exception):
    """The forward differentiates one of our layers and needs the derivative of the result."""


def first_derivative_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the backward of a function of ours, which is not differentiable itself.

    Autograd records a backward only under `create_graph=True`. We never use that, so the network's
    own forward does.
    """
    differentiable_once = once_differentiable(backward)

    @wraps(backward)
    def check_and_run(ctx: Any, *gradients: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise NestedDerivativeError
        return differentiable_once(ctx, *gradients)

    return check_and_run


@contextmanager
def only_torch_layers() -> Iterator[None]:
    """Let networks run torch's own layers, instead of those of this module and `recurrence`."""
    before = _torch_layers_only.set(True)
    try:
        yield
    finally:
        _torch_layers_only.reset(before)


def replaces_layers() -> bool:
    """Whether layers of torch may be replaced."""
    return not _torch_layers_only.get()


@contextmanager
def fast_layers(enabled: bool) -> Iterator[None]:
    """Enable or disable these layers for networks that run in `fast_layers_mode`."""
    before = _fast_layers_enabled.set(enabled)
    try:
        yield
    finally:
        _fast_layers_enabled.reset(before)


def fast_layers_mode() -> AbstractContextManager[Any]:
    """Return the mode to use around a network's forward only: it slows every call to torch."""
    return FastLayers() if _fast_layers_enabled.get() else nullcontext()


class FastLayers(TorchFunctionMode):
    """Runs plain max-pooling as `FastMaxPool`, plain BatchNorm as `FastBatchNorm`.

    All other functions are torch's own.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is nn.functional.max_pool2d or func is torch.max_pool2d:
            return _max_pool(func, *args, **(kwargs or {}))
        if func is nn.functional.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _is_replaceable(x: Tensor) -> bool:
    """Whether x is a float tensor on the CPU, outside of torch.func's vmap and grad."""
    if not replaces_layers():
        return False
    plain = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return plain and torch._C._functorch.maybe_current_level() is None


def _batch_norm(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    plain = not training and _is_replaceable(x)
    if not plain or any(t is None or t.dtype != x.dtype for t in (mean, var, weight, bias)):
        space = x.shape[2:]
        if not training and 1 in space and any(side > 1 for side in space):
            # torch 2.13 mistakes the memory format of an image one pixel wide, and its gradient is
            # wrong. A row of pixels has one format only.
            flat = x.flatten(2)
            return nn.functional.batch_norm(
                flat, mean, var, weight, bias, training, momentum, eps
            ).view(x.shape)
        return nn.functional.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    assert weight is not None
    assert bias is not None
    moved = BatchNormAffine.apply(weight, bias, x.detach(), mean, var, eps)  # type: ignore[no-untyped-call]
    out: Tensor = FastBatchNorm.apply(x, moved, weight.detach(), bias.detach(), mean, var, eps)  # type: ignore[no-untyped-call]
    return out


class BatchNormAffine(torch.autograd.Function):
    """Has the gradient of BatchNorm by weight and bias; its values are zeros.

    `FastBatchNorm` computes the values.
    """

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor, x: Tensor, mean: Tensor, var: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, mean, var)
        ctx.eps = eps
        return x.new_zeros(()).expand(x.shape)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, var = ctx.saved_tensors
        others = [d for d in range(x.ndim) if d != 1]
        shape = (-1, *[1] * (x.ndim - 2))
        normal = (x - mean.view(shape)) * (var + ctx.eps).rsqrt().view(shape)
        return (g * normal).sum(others), g.sum(others), None, None, None, None


class FastBatchNorm(torch.autograd.Function):
    """BatchNorm in eval mode as a function of its input.

    `moved`, from `BatchNormAffine`, carries the gradient by the parameters.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        moved: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        var: Tensor,
        eps: float,
    ) -> Tensor:
        scale = weight * (var + eps).rsqrt()
        ctx.save_for_backward(scale.view(-1, *[1] * (x.ndim - 2)))
        return torch.batch_norm(x, weight, bias, mean, var, False, 0.0, eps, False)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = ctx.saved_tensors
        return (g * scale if ctx.needs_input_grad[0] else None), g, None, None, None, None, None


def _max_pool(
    func: Callable[..., Any],
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    size, dilations = _pair(kernel_size), _pair(dilation)
    strides = _pair(stride) if stride else size
    if (
        not ceil_mode
        and not return_indices
        and not any(_pair(padding))
        and _can_compare_arrays(x, size, dilations)
    ):
        return FastMaxPool.apply(x, size, strides, dilations)  # type: ignore[no-untyped-call]
    return func(x, kernel_size, stride or size, padding, dilation, ceil_mode)


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    return (size[0], size[0]) if len(size) == 1 else (size[0], size[1])


def _can_compare_arrays(x: Tensor, size: tuple[int, int], dilation: tuple[int, int]) -> bool:
    if x.ndim != 4 or not x.is_contiguous() or not _is_replaceable(x):
        return False
    fits = all(n >= 1 + d * (k - 1) for n, k, d in zip(x.shape[2:], size, dilation, strict=True))
    return fits and size[0] * size[1] <= MAX_WINDOW_POSITIONS


class FastMaxPool(torch.autograd.Function):
    """The maximum of every window; among equal entries the first, row by row, gets the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        size: tuple[int, int],
        stride: tuple[int, int],
        dilation: tuple[int, int],
    ) -> Tensor:
        value, index = _window_max(x, size, stride, dilation)
        ctx.save_for_backward(x, index)
        ctx.windows = size, stride, dilation
        return value

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, index = ctx.saved_tensors
        size, stride, dilation = ctx.windows
        back = torch.ops.aten.max_pool2d_with_indices_backward
        return (
            back(g.contiguous(), x, size, stride, (0, 0), dilation, False, index),
            None,
            None,
            None,
        )


FAST_LAYER_FUNCTIONS = (BatchNormAffine, FastMaxPool, FastBatchNorm)
"""Functions whose backward is written in Python but is known to be plain."""


def _window_max(
    x: Tensor, size: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The maximum of every window, and its flat index in the image."""
    height, width = x.shape[2:]
    rows, columns = (
        (n - 1 - d * (k - 1)) // s + 1
        for n, k, s, d in zip((height, width), size, stride, dilation, strict=True)
    )
    far = dilation[0] * (size[0] - 1) * width + dilation[1] * (size[1] - 1)
    small = torch.uint8 if far < 256 else torch.int32  # of indices within a window
    found = []
    for top in range(0, dilation[0] * size[0], dilation[0]):
        line = x[:, :, top : top + stride[0] * (rows - 1) + 1 : stride[0]]
        lefts = range(0, dilation[1] * size[1], dilation[1])
        taps = [line[..., k : k + stride[1] * (columns - 1) + 1 : stride[1]] for k in lefts]
        value, index = taps[0], torch.tensor(top * width, dtype=small)
        own = None  # a buffer that may be overwritten, unlike the image
        for left, tap in zip(lefts[1:], taps[1:], strict=True):
            value, index = _keep_larger(
                value, index, tap, torch.tensor(top * width + left, dtype=small), own
            )
            own = value
        found.append((value, index, own))
    best, index, own = found[0]
    for value, other_index, _ in found[1:]:
        best, index = _keep_larger(best, index, value, other_index, own)
        own = best
    corner = torch.arange(rows)[:, None] * (stride[0] * width) + torch.arange(columns) * stride[1]
    return best.contiguous(), index.to(torch.int64) + corner.expand_as(best)


def _keep_larger(
    value: Tensor, index: Tensor, other: Tensor, other_index: Tensor, out: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The larger entries, into `out` if given, and their indices; the first one for equal ones."""
    won = (other > value).view(torch.uint8).to(index.dtype)
    # Integers wrap around, so index + (other_index − index) is exact even for bytes; torch.where is ten
    # times as slow.
    return torch.maximum(value, other, out=out), won.mul_(other_index - index).add_(index)
