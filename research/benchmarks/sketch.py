"""Projections of tangent features: time at equal size, and the error of the kernel they give.

    python research/benchmarks/sketch.py [--n 128] [--k 4096] [--networks cnn wrn64 resnet18-16]

Rivals get the same per-sample gradients in memory, so only the projections are compared: fold
(ours), CountSketch by `index_add_`, and a dense Rademacher projection drawn block by block. The
last line of each network times the whole of `features`, streamed, against one forward and backward.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import labelahead as la
from labelahead.ntk.sketch import draw_projections
from networks import build, inputs

RESULTS = Path(__file__).parent / "results" / "sketch.json"
THREADS, SEEDS, BLOCK = 1, 2, 512


def fold_gradients(gradients: Tensor, k: int, seed: int) -> Callable[[], Tensor]:
    """Ours: signs, turned stretches, contiguous additions."""
    (projection,) = draw_projections([gradients.shape[1]], k, [seed], gradients)

    def run() -> Tensor:
        out = gradients.new_zeros(len(gradients), k)
        projection.add(out, gradients)
        return out

    return run


def count_sketch(gradients: Tensor, k: int, seed: int) -> Callable[[], Tensor]:
    """Every entry to a random place with a random sign."""
    generator = torch.Generator().manual_seed(seed)
    width = gradients.shape[1]
    places = torch.randint(0, k, (width,), generator=generator)
    signs = torch.randint(0, 2, (width,), generator=generator).to(gradients) * 2 - 1

    def run() -> Tensor:
        out = gradients.new_zeros(len(gradients), k)
        return out.index_add_(1, places, gradients * signs)

    return run


def rademacher(gradients: Tensor, k: int, seed: int) -> Callable[[], Tensor]:
    """A dense matrix of signs, drawn in blocks of rows: the whole would be P×k."""

    def run() -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        out = gradients.new_zeros(len(gradients), k)
        for part in torch.split(gradients, BLOCK, dim=1):
            signs = torch.randint(0, 2, (part.shape[1], k), generator=generator, dtype=torch.int8)
            out.addmm_(part, signs.to(part) * 2 - 1)
        return out / k**0.5

    return run


CONTENDERS = {"fold (ours)": fold_gradients, "CountSketch": count_sketch, "Rademacher": rademacher}


def clock(run: Callable[[], Tensor], repeat: int = 3) -> tuple[float, Tensor]:
    """Best seconds of a few runs, and the last answer."""
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        out = run()
        best = min(best, time.perf_counter() - start)
        if best > 10:
            break
    return best, out


def measure(name: str, n: int, k: int) -> list[dict[str, object]]:
    """One row per contender."""
    model, x = build(name), inputs(name, n)
    gradients = la.features(model, x)
    kernel = gradients.double() @ gradients.double().T
    rows: list[dict[str, object]] = []
    for label, make in CONTENDERS.items():
        seconds, errors = float("inf"), []
        for seed in range(SEEDS):
            took, out = clock(make(gradients, k, seed), 1 if label == "Rademacher" else 3)
            seconds = min(seconds, took)
            got = out.double() @ out.double().T
            errors.append(float((got - kernel).norm() / kernel.norm()))
        rows.append({"projection": label, "seconds": seconds, "error": sum(errors) / SEEDS})
    del gradients
    streamed, _ = clock(lambda: la.features(model, x, sketch=k))
    passes, _ = clock(lambda: forward_backward(model, x))
    rows.append({"projection": "features(), streamed", "seconds": streamed, "passes": passes})
    return rows


def forward_backward(model: torch.nn.Module, x: Tensor) -> Tensor:
    """One ordinary training pass over the samples, weight gradients included."""
    for part in torch.split(x, 32):
        grads = torch.autograd.grad(model(part).sum(), list(model.parameters()))
    return grads[0]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--k", type=int, default=4096)
    parser.add_argument("--networks", nargs="+", default=["cnn", "wrn64", "resnet18-16"])
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    table: dict[str, object] = {
        "n": given.n,
        "k": given.k,
        "threads": THREADS,
        "seeds": SEEDS,
        "dtype": "float32",
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
    }
    print(f"n={given.n}, k={given.k}, float32, {THREADS} thread, mean error over {SEEDS} seeds\n")
    print(f"{'network':<12} {'projection':<22} {'seconds':>8} {'× ours':>7} {'error':>7}")
    for name in given.networks:
        rows = measure(name, given.n, given.k)
        table[name] = rows
        ours = float(rows[0]["seconds"])  # type: ignore[arg-type]
        for row in rows:
            seconds = float(row["seconds"])  # type: ignore[arg-type]
            if "passes" in row:
                ratio = seconds / float(row["passes"])  # type: ignore[arg-type]
                print(
                    f"{name:<12} {row['projection']:<22} {seconds:>8.3f} = {ratio:.1f} "
                    "forward+backward passes"
                )
            else:
                print(
                    f"{name:<12} {row['projection']:<22} {seconds:>8.3f} {seconds / ours:>7.1f} "
                    f"{row['error']:>7.4f}"
                )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
