"""Per-sample gradients by `torch.func`, for the parameters that no rule knows. Exact, slower."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from labelahead.errors import ModelError
from labelahead.tangent.premises import Inputs, copied, forward, take

__all__ = ["per_sample_gradients"]


def per_sample_gradients(
    model: nn.Module,
    x: Inputs,
    chosen: Mapping[str, nn.Parameter],
    names: Sequence[str],
    cotangents: Tensor,
) -> dict[str, Tensor]:
    """For each named parameter, (n, K, *shape): the gradient of cotangents[i, k]·f(x_i).

    `cotangents` is (n, K, C).
    """
    try:
        return _vectorised(model, x, chosen, names, cotangents)
    except (RuntimeError, NotImplementedError, ValueError):
        # Data-dependent control flow, in-place writes and some operations cannot be vectorised.
        return _looped(model, x, chosen, names, cotangents)


def _vectorised(
    model: nn.Module,
    x: Inputs,
    chosen: Mapping[str, nn.Parameter],
    names: Sequence[str],
    cotangents: Tensor,
) -> dict[str, Tensor]:
    params = {k: chosen[k].detach() for k in names}

    def one(sample: Inputs, directions: Tensor) -> dict[str, Tensor]:
        def outputs(p: dict[str, Tensor]) -> Tensor:
            def call(*args: Any, **kwargs: Any) -> Any:
                return functional_call(model, p, args, kwargs)

            return forward(call, copied(_with_batch_of_one(sample)))[0]

        pull = vjp(outputs, params)[1]
        return dict(vmap(pull)(directions)[0])

    return dict(vmap(one, randomness="error")(x, cotangents))


def _with_batch_of_one(sample: Inputs) -> Inputs:
    if isinstance(sample, Tensor):
        return sample[None]
    if isinstance(sample, Mapping):
        return {k: t[None] for k, t in sample.items()}
    return tuple(t[None] for t in sample)


def _looped(
    model: nn.Module,
    x: Inputs,
    chosen: Mapping[str, nn.Parameter],
    names: Sequence[str],
    cotangents: Tensor,
) -> dict[str, Tensor]:
    n, K = cotangents.shape[:2]
    found = {k: chosen[k].new_zeros(n, K, *chosen[k].shape) for k in names}
    for i in range(n):
        with torch.enable_grad():
            out = forward(model, copied(take(x, slice(i, i + 1))))[0]
        for k in range(K):
            try:
                grads = torch.autograd.grad(
                    out,
                    [chosen[name] for name in names],
                    cotangents[i, k],
                    retain_graph=k + 1 < K,
                    allow_unused=True,
                )
            except RuntimeError as error:
                raise ModelError(f"autograd cannot differentiate this network: {error}") from error
            for name, grad in zip(names, grads, strict=True):
                if grad is not None:
                    found[name][i, k] = grad
    return found
