"""Per-sample gradients by `torch.func`, for the parameters that no rule knows. Exact, slower."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from labelahead.errors import ModelError
from labelahead.inputs import Batch, mapped, take
from labelahead.tangent.layout import close
from labelahead.tangent.premises import forward

__all__ = ["per_sample_gradients"]


def per_sample_gradients(
    model: nn.Module, x: Batch, chosen: Mapping[str, nn.Parameter], names: Sequence[str], cotangents: Tensor
) -> dict[str, Tensor]:
    """For each named parameter, (n, K, *shape): the gradient of cotangents[i, k]·f(x_i).

    `cotangents` is (n, K, C).
    """
    try:
        gradients = _vectorised(model, x, chosen, names, cotangents)
    except (RuntimeError, NotImplementedError, ValueError):
        # Data-dependent control flow, in-place writes and some operations cannot be vectorised.
        return _looped(model, x, chosen, names, cotangents)
    # Some batching rules of torch broadcast wrongly, so the first sample is held against autograd.
    first = _looped(model, take(x, slice(0, 1)), chosen, names, cotangents[:1])
    scale = max(float(v.abs().amax()) for v in first.values())
    n, K = cotangents.shape[:2]
    for name, v in gradients.items():
        wanted = (n, K, *chosen[name].shape)
        if tuple(v.shape) != wanted or not close(v[:1], first[name], scale):
            return _looped(model, x, chosen, names, cotangents)
    return gradients


def _vectorised(
    model: nn.Module, x: Batch, chosen: Mapping[str, nn.Parameter], names: Sequence[str], cotangents: Tensor
) -> dict[str, Tensor]:
    params = {k: chosen[k].detach() for k in names}

    def weighed(p: dict[str, Tensor], sample: Batch, weights: Tensor) -> Tensor:
        def call(*args: Any, **kwargs: Any) -> Any:
            return functional_call(model, p, args, kwargs)

        batch_of_one = mapped(sample, lambda t: t[None].clone())
        return (forward(call, batch_of_one)[0] * weights).sum()

    each = vmap(grad(weighed), in_dims=(None, 0, 0), randomness="error")
    runs = [each(params, x, weights) for weights in cotangents.unbind(1)]
    return {k: torch.stack([run[k] for run in runs], dim=1) for k in names}


def _looped(
    model: nn.Module, x: Batch, chosen: Mapping[str, nn.Parameter], names: Sequence[str], cotangents: Tensor
) -> dict[str, Tensor]:
    n, K = cotangents.shape[:2]
    gradients = {k: chosen[k].new_zeros(n, K, *chosen[k].shape) for k in names}
    for i in range(n):
        twice = torch.tensor([i, i], device=cotangents.device)  # a batch of one may be special
        with torch.enable_grad():
            out = forward(model, take(x, twice))[0]
        for k in range(K):
            try:
                grads = torch.autograd.grad(
                    out, [chosen[name] for name in names], cotangents[i, k], retain_graph=k + 1 < K, allow_unused=True
                )
            except RuntimeError as error:
                raise ModelError(f"autograd cannot differentiate this network: {error}") from error
            for name, got in zip(names, grads, strict=True):
                if got is not None:
                    gradients[name][i, k] = got.to_dense() if got.is_sparse else got
    return gradients
