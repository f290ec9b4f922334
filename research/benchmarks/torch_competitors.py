"""The torch rivals of the kernel benchmark: per-sample gradients, then one GEMM per parameter.

Both compute the pseudo-NTK as the Gram matrix of the per-sample gradients of s(x) = Σ_c f_c(x)/√C,
and both are given their fair best. Where the n×P gradients do not fit, they work in groups of
parameters: each group costs another forward and backward, but no gradient is computed twice. (Row
blocks, the other way out, would recompute every gradient once per block of columns.)
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

Tensors = dict[str, Tensor]
PerSample = Callable[[Tensors, Tensors, Tensor], Tensors]


def parameter_groups(model: nn.Module, n: int, budget_mb: float) -> list[list[str]]:
    """Split the parameters, in order, so that each group's n gradients stay within the budget."""
    groups: list[list[str]] = [[]]
    used = 0.0
    for name, parameter in model.named_parameters():
        size = n * parameter.numel() * parameter.element_size() / 2**20
        if groups[-1] and used + size > budget_mb:
            groups.append([])
            used = 0.0
        groups[-1].append(name)
        used += size
    return groups


def _per_sample(model: nn.Module) -> PerSample:
    """vmap(grad): gradients of s at every sample with respect to the first dict."""

    def scalar(wanted: Tensors, fixed: Tensors, sample: Tensor) -> Tensor:
        outputs = functional_call(model, {**wanted, **fixed}, (sample.unsqueeze(0),))
        return outputs.sum() / outputs.shape[1] ** 0.5

    return vmap(grad(scalar), in_dims=(None, None, 0))


def _split(model: nn.Module, names: list[str]) -> tuple[Tensors, Tensors]:
    """The state of the model: the named parameters, and everything else."""
    state = {k: v.detach() for k, v in [*model.named_parameters(), *model.named_buffers()]}
    wanted = {name: state.pop(name) for name in names}
    return wanted, state


def _gradient_rows(
    gradients: PerSample, wanted: Tensors, fixed: Tensors, x: Tensor, chunk: int
) -> list[Tensor]:
    """Per-sample gradients, (n, size) for each parameter, computed `chunk` samples at a time."""
    n = len(x)
    if chunk >= n:  # nothing to put together, so no copy
        return [value.flatten(1) for value in gradients(wanted, fixed, x).values()]
    rows = {name: x.new_empty(n, value.numel()) for name, value in wanted.items()}
    for start in range(0, n, chunk):
        piece = gradients(wanted, fixed, x[start : start + chunk])
        for name, value in piece.items():
            rows[name][start : start + chunk] = value.flatten(1)
    return list(rows.values())


def vmap_kernel(model: nn.Module, x: Tensor, chunk: int, budget_mb: float) -> Tensor:
    """torch.func vmap(grad), then one GEMM per parameter; chunk >= n is the plain textbook way."""
    gradients = _per_sample(model)
    kernel = x.new_zeros(len(x), len(x))
    for names in parameter_groups(model, len(x), budget_mb):
        for rows in _gradient_rows(gradients, *_split(model, names), x, chunk):
            kernel.addmm_(rows, rows.T)
    return kernel


def tune_chunk(model: nn.Module, x: Tensor, budget_mb: float) -> tuple[int, dict[int, float]]:
    """The chunk with the fewest seconds per sample, and what was tried; n itself means plain.

    While a chunk is copied its gradients exist twice, so it may not outgrow a tenth of the budget;
    plain may take half of it (the activations of all samples come on top).
    """
    wanted, fixed = _split(model, [name for name, _ in model.named_parameters()])
    gradients = _per_sample(model)
    per_sample_mb = sum(v.numel() * v.element_size() for v in wanted.values()) / 2**20
    largest = max(1, min(len(x) - 1, int(0.1 * budget_mb / per_sample_mb)))
    sizes = sorted({min(size, largest) for size in (4, 16, 64, 256)})
    if len(x) * per_sample_mb < 0.5 * budget_mb:
        sizes.append(len(x))
    gradients(wanted, fixed, x[: sizes[0]])  # warm-up
    tried: dict[int, float] = {}
    for size in sizes:
        part = x if size == len(x) else x[: min(2 * size, len(x))]  # two chunks: the copy counts
        start = time.perf_counter()
        _gradient_rows(gradients, wanted, fixed, part, size)
        tried[size] = (time.perf_counter() - start) / len(part)
    return min(tried, key=lambda size: tried[size]), tried


def loop_kernel(model: nn.Module, x: Tensor, budget_mb: float) -> Tensor:
    """One backward pass per sample, gradients stacked, then one GEMM per parameter."""
    n = len(x)
    kernel = x.new_zeros(n, n)
    parameters = dict(model.named_parameters())
    for names in parameter_groups(model, n, budget_mb):
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in names)  # autograd skips what this group leaves out
        wanted = [parameters[name] for name in names]
        rows = [x.new_empty(n, value.numel()) for value in wanted]
        for i in range(n):
            outputs = model(x[i : i + 1])
            scalar = outputs.sum() / outputs.shape[1] ** 0.5
            for row, value in zip(rows, torch.autograd.grad(scalar, wanted), strict=True):
                row[i] = value.flatten()
        for row in rows:
            kernel.addmm_(row, row.T)
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    return kernel
