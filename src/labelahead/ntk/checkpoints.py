"""Kernels at several states of a network, and between two networks of one architecture."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from labelahead.batching import Inputs, count_samples, take_samples
from labelahead.errors import InputError
from labelahead.ntk.kernels import kernel
from labelahead.ntk.premises import ParamFilter, choose_parameters, move_samples, unwrap_compiled
from labelahead.ntk.sketch import features

__all__ = ["kernel_between", "kernels_at"]

MAX_FEATURE_BYTES = 1 << 30  # gradients of samples of both networks in memory at a time


def kernels_at(
    model: nn.Module, x: Inputs, states: Iterable[Mapping[str, Any]], **options: Any
) -> Iterator[Tensor]:
    """Yield the kernel of `model` with each of several state dictionaries.

    Args:
        model: The network. It keeps its own weights.
        x: n samples.
        states: As from `model.state_dict()` or `torch.load(path)`, one at a time.
        options: Of `kernel`.

    >>> states = [{k: v * scale for k, v in model.state_dict().items()} for scale in (1.0, 2.0)]
    >>> first, second = la.ntk.kernels_at(model, x, states)
    >>> bool(torch.equal(first, la.kernel(model, x))), bool(torch.equal(first, second))
    (True, False)
    """
    twin = copy.deepcopy(unwrap_compiled(model))
    for state in states:
        twin.load_state_dict(state)
        yield kernel(twin, x, **options)


def kernel_between(
    model: nn.Module,
    other: nn.Module,
    x: Inputs,
    x2: Inputs | None = None,
    *,
    kind: str = "pseudo",
    params: ParamFilter = None,
    block: int | None = None,
) -> Tensor:
    """Compute inner products of gradients of two networks with the same parameters' shapes.

    For example of one network before and after training: how far its features have turned.

    Args:
        model: The network of the rows.
        other: The network of the columns.
        x: n samples.
        x2: m samples; default: `x`.
        kind: As in `kernel`.
        params: As in `kernel`, the same for both.
        block: Samples whose gradients are in memory at a time; default from their size.

    Returns:
        (n, m), or (n·C, m·C) for the full kernel.

    >>> bool(torch.allclose(la.ntk.kernel_between(model, model, x), la.kernel(model, x), atol=1e-4))
    True
    """
    x = move_samples(model, x)
    x2 = x if x2 is None else move_samples(other, x2)
    one, two = (choose_parameters(unwrap_compiled(m), params) for m in (model, other))
    if [(k, p.shape) for k, p in one.items()] != [(k, p.shape) for k, p in two.items()]:
        raise InputError(
            "the two networks have different parameters; expected the same names and shapes: choose "
            "those that they share with params="
        )
    n, m = count_samples(x), count_samples(x2)
    few = features(model, take_samples(x, slice(0, 1)), kind=kind, params=params)
    rows = few.shape[0]  # of the kernel, a sample
    size = block or max(1, MAX_FEATURE_BYTES // (2 * few.numel() * few.element_size()))
    out = few.new_empty(n * rows, m * rows)
    for i in range(0, n, size):
        left = features(model, take_samples(x, slice(i, i + size)), kind=kind, params=params)
        for j in range(0, m, size):
            part = take_samples(x2, slice(j, j + size))
            right = features(other, part, kind=kind, params=params).to(left)
            part_of_kernel = out[i * rows : i * rows + len(left), j * rows : j * rows + len(right)]
            part_of_kernel.copy_(left @ right.T)
    return out
