"""One torch contender of the kernel benchmark in a process of its own.

    kernel_worker.py METHOD NETWORK NPZ N THREADS BUDGET_MB

METHOD is ours, vmap, vmap-plain, loop, or gemm (the machine's matrix-product rate).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import networks
import timing
import torch_competitors

Compute = Callable[[nn.Module, Tensor, float], Tensor]
GEMM_SIZE = 2048


def ours(model: nn.Module, x: Tensor, _budget_mb: float) -> Tensor:
    """The engine under test, as a user would call it."""
    import labelahead

    return labelahead.kernel(model, x, kind="pseudo")


def plain(model: nn.Module, x: Tensor, _budget_mb: float) -> Tensor:
    """vmap(grad) as usually written: all samples at once, whatever that takes."""
    return torch_competitors.vmap_kernel(model, x, len(x), float("inf"))


def compute_with_best_chunk(model: nn.Module, x: Tensor, budget_mb: float) -> Compute:
    """vmap(grad) with its best chunk, found on these very samples."""
    chunk, tried = torch_competitors.tune_chunk(model, x, budget_mb)
    timing.say(chunk=chunk, seconds_per_sample=tried)
    return lambda model, x, budget: torch_competitors.vmap_kernel(model, x, chunk, budget)


METHODS: dict[str, Compute] = {
    "ours": ours,
    "vmap": plain,
    "vmap-plain": plain,
    "loop": torch_competitors.loop_kernel,
}


def contend(method: str, model: nn.Module, x: Tensor, budget_mb: float) -> None:
    """Warm up on two samples, take the memory base, tune, serve."""
    compute = METHODS[method]
    compute(model, x[:2], budget_mb)  # loads what torch loads lazily: that is import, not kernel
    timing.release()
    base = timing.resident_mb()
    groups = len(torch_competitors.parameter_groups(model, len(x), budget_mb))
    if method == "vmap":
        compute = compute_with_best_chunk(model, x, budget_mb)
    if method in ("vmap", "loop"):
        timing.say(parameter_groups=groups)
    timing.serve(lambda: compute(model, x, budget_mb), base, save)


def save(result: Any, path: str) -> None:
    """Keep the kernel for the agreement column."""
    np.save(path, result.detach().numpy())


def main() -> None:
    """Read the arguments, prepare, serve."""
    method, network, path, n, threads, budget_mb = sys.argv[1:]
    timing.pin(int(threads))
    torch.set_num_threads(int(threads))
    if method == "gemm":
        matrix = torch.randn(GEMM_SIZE, GEMM_SIZE, generator=torch.Generator().manual_seed(0))
        out = torch.empty_like(matrix)
        timing.serve(lambda: torch.mm(matrix, matrix, out=out), timing.resident_mb(), save)
        return
    model, x = networks.load(network, Path(path))
    contend(method, model, x[: int(n)].clone(), float(budget_mb))


if __name__ == "__main__":
    main()
