"""Per-sample gradients by `torch.func`, for parameters without a rule: exact, but slower."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from labelahead.batching import Batch, map_tensors, take_samples
from labelahead.errors import ModelError
from labelahead.ntk.capture import restore_attributes
from labelahead.ntk.layout import is_close
from labelahead.ntk.premises import ConstantParameterError, run_forward

__all__ = ["compute_gradients", "compute_per_sample_gradients"]

VMAP_METHOD, LOOP_METHOD = "vmap(grad)", "a loop of backward passes"


def compute_per_sample_gradients(
    model: nn.Module,
    x: Batch,
    chosen: Mapping[str, nn.Parameter],
    names: Sequence[str],
    cotangents: Tensor,
    *,
    accumulate: bool = False,
    eps: float = 0.0,
) -> tuple[dict[str, Tensor], str]:
    """Compute the gradients of cotangents[i, k]·f(x_i) by the named parameters.

    Args:
        model: The network.
        x: n samples.
        chosen: Parameters by name.
        names: Those to differentiate by.
        cotangents: (n, K, C).
        accumulate: The network runs backward passes of its own (see `compute_gradients`).
        eps: The coarsest rounding in the network.

    Returns:
        (n, K, *shape) for each name, and the method used.
    """
    if accumulate:
        return _compute_by_loop(model, x, chosen, names, cotangents, True), LOOP_METHOD
    try:
        per_sample = _compute_by_vmap(model, x, chosen, names, cotangents)
    except (RuntimeError, NotImplementedError, ValueError, ConstantParameterError):
        # Data-dependent control flow, in-place writes and some operations do not support vmap.
        return _compute_by_loop(model, x, chosen, names, cotangents), LOOP_METHOD
    # Some batching rules of torch broadcast wrongly, so compare the first sample with autograd.
    first = _compute_by_loop(model, take_samples(x, slice(0, 1)), chosen, names, cotangents[:1])
    scale = max(float(v.abs().amax()) for v in first.values())
    n, K = cotangents.shape[:2]
    for name, v in per_sample.items():
        wanted = (n, K, *chosen[name].shape)
        if tuple(v.shape) != wanted or not is_close(v[:1], first[name], scale, eps):
            return _compute_by_loop(model, x, chosen, names, cotangents), LOOP_METHOD
    return per_sample, VMAP_METHOD


def compute_gradients(
    out: Tensor,
    parameters: Sequence[nn.Parameter],
    weights: Tensor,
    *,
    accumulate: bool = False,
    keep: bool = False,
) -> list[Tensor | None]:
    """Compute autograd's gradients of weights·out; None where a parameter has none.

    accumulate: collect them in `.grad`, as training does. The backward of a re-entrant checkpoint
    or of a reversible block runs a backward of its own, whose gradients are found in `.grad` only.
    The graph is freed unless `keep`.
    """
    found: list[Tensor | None]
    if not out.requires_grad:  # No sample of this batch uses any of the parameters.
        return [None] * len(parameters)
    try:
        if not accumulate:
            found = list(
                torch.autograd.grad(out, parameters, weights, retain_graph=keep, allow_unused=True)
            )
        else:
            for p in parameters:
                p.grad = None
            with torch.enable_grad():
                torch.autograd.backward(out, weights, retain_graph=keep)
            found = [p.grad for p in parameters]
            for p in parameters:
                p.grad = None
    except RuntimeError as error:
        raise ModelError(f"autograd cannot differentiate this network: {error}") from error
    return [None if g is None else g.to_dense() if g.is_sparse else g for g in found]


def _compute_by_vmap(
    model: nn.Module,
    x: Batch,
    chosen: Mapping[str, nn.Parameter],
    names: Sequence[str],
    cotangents: Tensor,
) -> dict[str, Tensor]:
    params = {k: chosen[k].detach() for k in names}

    def weighed(p: dict[str, Tensor], sample: Batch, weights: Tensor) -> Tensor:
        def call(*args: Any, **kwargs: Any) -> Any:
            return functional_call(model, p, args, kwargs)

        batch_of_one = map_tensors(sample, lambda t: t[None].clone())
        return (run_forward(call, batch_of_one)[0] * weights).sum()

    each = vmap(grad(weighed), in_dims=(None, 0, 0), randomness="error")
    with restore_attributes(model):
        runs = [each(params, x, weights) for weights in cotangents.unbind(1)]
    return {k: torch.stack([run[k] for run in runs], dim=1) for k in names}


def _compute_by_loop(
    model: nn.Module,
    x: Batch,
    chosen: Mapping[str, nn.Parameter],
    names: Sequence[str],
    cotangents: Tensor,
    accumulate: bool = False,
) -> dict[str, Tensor]:
    n, K = cotangents.shape[:2]
    parameters = [chosen[k] for k in names]
    per_sample = {k: chosen[k].new_zeros(n, K, *chosen[k].shape) for k in names}
    for i in range(n):
        # A batch of one may be special, so each sample is doubled.
        twice = torch.tensor([i, i], device=cotangents.device)
        for k in range(K):
            if k == 0 or accumulate:  # An inner backward has freed its graph.
                with torch.enable_grad(), restore_attributes(model):
                    out = run_forward(model, take_samples(x, twice))[0]
            if out.grad_fn is None:  # This sample's output depends on no parameter.
                break
            keep = k + 1 < K and not accumulate
            own = compute_gradients(
                out, parameters, cotangents[i, k].to(out), accumulate=accumulate, keep=keep
            )
            for name, g in zip(names, own, strict=True):
                if g is not None:
                    per_sample[name][i, k] = g
    return per_sample
