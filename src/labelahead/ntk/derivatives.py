"""Products with the Jacobian of a network: Jᵀ·cotangents and J·direction, in batches.

J·direction takes one pass for all outputs: the backward is linear in its cotangents, so its own
derivative is J. Forward mode would take one pass as well, but it disagrees with autograd where a
forward runs partly under no_grad, and many operations lack it.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from labelahead.batching import Batch, Inputs, count_samples, read_batch, take_samples
from labelahead.errors import ModelError
from labelahead.ntk.capture import trace
from labelahead.ntk.engine import Engine
from labelahead.ntk.fallback import compute_gradients
from labelahead.ntk.layers import only_torch_layers
from labelahead.ntk.layout import is_close

__all__ = ["join_direction", "pull_back", "push_forward", "split_direction"]


def pull_back(engine: Engine, x: Inputs, cotangents: Tensor, *, chunk: int | None = None) -> Tensor:
    """Compute Σ_i J(x_i)ᵀ cotangents[i] for k sets of cotangents.

    Args:
        engine: Of the network.
        x: n samples.
        cotangents: (n, k, C).
        chunk: Samples per pass.

    Returns:
        (k, P), in the order of the engine's parameters.
    """
    parameters = list(engine.chosen.values())
    k, accumulate = cotangents.shape[1], engine.plan.accumulate
    total = engine.like.new_zeros(k, sum(p.numel() for p in parameters))
    for rows in engine.split_batches(count_samples(x), 1, chunk):
        batch, doubled = _read_rows(x, rows)
        out = None
        for j in range(k):
            if out is None or accumulate:  # An inner backward has freed its graph.
                out = trace(engine.model, engine.copy_if_mutated(batch), {}).out
            v = cotangents[rows, j].to(out)
            if doubled:
                v = torch.cat([v, torch.zeros_like(v)])
            found = compute_gradients(out, parameters, v, accumulate=accumulate, keep=j + 1 < k)
            start = 0
            for p, g in zip(parameters, found, strict=True):
                if g is not None:
                    total[j, start : start + p.numel()] += g.reshape(-1).to(total)
                start += p.numel()
    return total


def push_forward(
    engine: Engine, x: Inputs, directions: Tensor, *, chunk: int | None = None
) -> Tensor | None:
    """Compute J(x_i)·direction for k directions (k, P): (n, k, C).

    None if a backward of the network cannot be differentiated, or gives another result than the
    gradients of the first batch do.
    """
    if engine.plan.accumulate:
        return None
    n, k = count_samples(x), directions.shape[0]
    result = engine.like.new_empty(n, k, engine.plan.outputs)
    try:
        # Our layers, and torch's fused attention, can be differentiated once.
        with (
            only_torch_layers(),
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            for rows in engine.split_batches(n, 2, chunk):
                batch, doubled = _read_rows(x, rows)
                found = _differentiate_backward(engine, batch, directions, rows.start == 0)
                if found is None:
                    return None
                result[rows] = found[: rows.stop - rows.start] if doubled else found
    except (RuntimeError, NotImplementedError, ModelError):
        return None
    return result


def _read_rows(x: Inputs, rows: slice) -> tuple[Batch, bool]:
    """Read samples, twice if there is only one, which some operations treat differently."""
    part = read_batch(take_samples(x, rows))
    if rows.stop - rows.start > 1:
        return part, False
    return take_samples(part, torch.zeros(2, dtype=torch.long)), True


def _differentiate_backward(
    engine: Engine, batch: Batch, directions: Tensor, check: bool
) -> Tensor | None:
    """(n, k, C) of one batch, or None if it does not fit its gradients."""
    parameters = list(engine.chosen.values())
    out = trace(engine.model, engine.copy_if_mutated(batch), {}).out
    if out.grad_fn is None:
        return out.new_zeros(out.shape[0], len(directions), out.shape[1])
    with torch.enable_grad():
        # Uneven, because the outputs may have a constant sum.
        noise = torch.rand(out.shape, generator=torch.Generator().manual_seed(0))
        v = (noise + 0.5).to(out).requires_grad_()
        grads = torch.autograd.grad(out, parameters, v, create_graph=True, allow_unused=True)
    used = [(p, g) for p, g in zip(parameters, grads, strict=True) if g is not None]
    if any(not g.requires_grad for _, g in used):
        return None
    columns = []
    for flat in directions:
        parts = dict(zip(parameters, split_direction(flat, parameters), strict=True))
        along = [parts[p].to(g) for p, g in used]
        (found,) = torch.autograd.grad(
            [g for _, g in used], v, along, retain_graph=True, allow_unused=True
        )
        columns.append(torch.zeros_like(out) if found is None else found.detach())
    result = torch.stack(columns, dim=1)
    if check and not _agrees_with_gradients(
        used, directions, parameters, result * v.detach()[:, None]
    ):
        return None
    return result


def _agrees_with_gradients(
    used: Sequence[tuple[Tensor, Tensor]],
    directions: Tensor,
    parameters: Sequence[Tensor],
    weighted: Tensor,
) -> bool:
    """Whether the weighted sum of the result is the product of the gradient and the direction.

    A backward written in Python may hide a part of itself from its own derivative.
    """
    for flat, own in zip(directions, weighted.unbind(1), strict=True):
        parts = dict(zip(parameters, split_direction(flat, parameters), strict=True))
        products = [(g.detach() * parts[p].to(g)).to(directions).sum() for p, g in used]
        scale = float(sum((g.detach() * parts[p].to(g)).abs().sum() for p, g in used))
        size = float(own.abs().sum())
        if not is_close(own.to(directions).sum(), torch.stack(products).sum(), scale + size):
            return False
    return True


def split_direction(flat: Tensor, parameters: Sequence[Tensor]) -> Iterator[Tensor]:
    """Split a vector (P,) into tensors of the parameters' shapes."""
    sizes = [p.numel() for p in parameters]
    for p, part in zip(parameters, torch.split(flat, sizes), strict=True):
        yield part.view(p.shape)


def join_direction(engine: Engine, direction: Mapping[str, Tensor]) -> Tensor:
    """Join tensors by parameter into a vector (P,), zero where one is left out."""
    parts = [
        direction[name].detach().reshape(-1).to(engine.like)
        if name in direction
        else engine.like.new_zeros(p.numel())
        for name, p in engine.chosen.items()
    ]
    return torch.cat(parts)
