"""The cost model of the kernel's two forms, pairs of positions and multiplied-out gradients,
against the clock.

    python research/benchmarks/kernel_costs.py [--samples 128] [--rounds 5] [--fitted]

For each kind of layer: both forms on the same made-up factors; CPU seconds of one thread, medians,
in turn. The layers are others than those that the model's constants were set by, which `--fitted`
measures.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from labelahead.ntk.factors import Geometry, OuterFactor
from labelahead.ntk.gram import Gradients, Pairs, add_gram
from labelahead.ntk.terms import estimate_costs

RESULTS = Path(__file__).resolve().parent / "results" / "kernel-costs.json"


def linear(positions: int, inputs: int, outputs: int) -> Callable[[int], OuterFactor]:
    """A linear layer over so many tokens."""

    def make(n: int) -> OuterFactor:
        a, g = torch.randn(n, positions, inputs), torch.randn(n, 1, positions, outputs)
        return OuterFactor(a, g, (outputs, inputs))

    return make


def convolution(
    channels: int, filters: int, side: int, window: int, groups: int = 1
) -> Callable[[int], OuterFactor]:
    """With as much padding as keeps the side."""

    def make(n: int) -> OuterFactor:
        two = (side, side)
        geometry = Geometry((window,) * 2, (1, 1), (window // 2,) * 2, (1, 1), groups, two, two)
        a, g = torch.randn(n, 1, channels, *two), torch.randn(n, 1, 1, filters, *two)
        return OuterFactor(a, g, (filters, channels // groups, window, window), geometry=geometry)

    return make


def lookup(positions: int, rows: int, entries: int) -> Callable[[int], OuterFactor]:
    """An embedding."""

    def make(n: int) -> OuterFactor:
        return OuterFactor(
            torch.randint(rows, (n, positions)),
            torch.randn(n, 1, positions, entries),
            (rows, entries),
            lookup=True,
        )

    return make


FITTED: dict[str, Callable[[int], OuterFactor]] = {
    "linear 784 to 512": linear(1, 784, 512),
    "linear 512 to 10": linear(1, 512, 10),
    "linear 128 to 128, 4 tokens": linear(4, 128, 128),
    "linear 128 to 512, 16 tokens": linear(16, 128, 512),
    "linear 128 to 512, 128 tokens": linear(128, 128, 512),
    "embedding 5000 × 64, 32 tokens": lookup(32, 5000, 64),
    "embedding 500 × 128, 128 tokens": lookup(128, 500, 128),
    "3×3, 3 to 16, 12×12": convolution(3, 16, 12, 3),
    "3×3, 64 to 64, 16×16": convolution(64, 64, 16, 3),
    "3×3, 128 to 128, 4×4": convolution(128, 128, 4, 3),
    "3×3, 512 to 512, 4×4": convolution(512, 512, 4, 3),
    "1×1, 128 to 256, 4×4": convolution(128, 256, 4, 1),
    "5×5, 6 to 16, 12×12": convolution(6, 16, 12, 5),
}

FRESH: dict[str, Callable[[int], OuterFactor]] = {
    "linear 1024 to 300": linear(1, 1024, 300),
    "linear 96 to 96, 9 tokens": linear(9, 96, 96),
    "linear 256 to 256, 12 tokens": linear(12, 256, 256),
    "linear 64 to 192, 50 tokens": linear(50, 64, 192),
    "embedding 2000 × 96, 20 tokens": lookup(20, 2000, 96),
    "embedding 300 × 32, 60 tokens": lookup(60, 300, 32),
    "3×3, 32 to 32, 8×8": convolution(32, 32, 8, 3),
    "3×3, 256 to 256, 7×7": convolution(256, 256, 7, 3),
    "3×3, 96 to 160, 5×5": convolution(96, 160, 5, 3),
    "5×5, 48 to 48, 6×6": convolution(48, 48, 6, 5),
    "1×1, 512 to 128, 3×3": convolution(512, 128, 3, 1),
    "3×3, 8 to 24, 20×20": convolution(8, 24, 20, 3),
}


def in_pairs(f: OuterFactor) -> Pairs:
    """Positions first, as `terms.put` stores them."""
    if f.geometry is not None:
        return Pairs(
            f.a[:, 0].flatten(2).permute(2, 0, 1).contiguous(),
            f.g[:, :, 0].flatten(3).permute(3, 0, 1, 2).contiguous(),
            geometry=f.geometry,
        )
    return Pairs(f.a.transpose(0, 1).contiguous(), f.g.permute(2, 0, 1, 3).contiguous())


def pairs(f: OuterFactor, out: Tensor) -> None:
    """One form."""
    own = Gradients(pairs=[in_pairs(f)])
    add_gram(out, own, own, fold=True)


def dense(f: OuterFactor, out: Tensor) -> None:
    """The other."""
    own = Gradients({0: f.product(f.g.new_empty(f.samples, 1, math.prod(f.shape)))})
    add_gram(out, own, own, fold=True)


def measure(
    kinds: dict[str, Callable[[int], OuterFactor]], n: int, rounds: int
) -> list[dict[str, object]]:
    """One row a kind of layer."""
    rows: list[dict[str, object]] = []
    for name, make in kinds.items():
        f = make(n)
        seconds: dict[str, list[float]] = {"pairs": [], "dense": []}
        for turn in range(rounds + 1):
            for form, run in (("pairs", pairs), ("dense", dense)):
                start = time.process_time()
                run(f, torch.zeros(n, n))
                if turn:  # the first run warms up
                    seconds[form].append(time.process_time() - start)
        took = {form: statistics.median(s) for form, s in seconds.items()}
        predicted = estimate_costs(f, math.prod(f.shape), 1, True, n / 2)
        rows.append(
            {
                "layer": name,
                "n": n,
                "pairs": took["pairs"],
                "dense": took["dense"],
                "gigaoperations": [n * c / 1e9 for c in predicted],
                "predicted": predicted[0] / predicted[1],
                "measured": took["pairs"] / took["dense"],
            }
        )
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fitted", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        "| layer | pairs ms | dense ms | pairs / dense | predicted | chosen |\n| --- | --- | --- "
        "| --- | --- | --- |"
    )
    rows = measure(FITTED if given.fitted else FRESH, given.samples, given.rounds)
    for row in rows:
        chosen = "pairs" if row["predicted"] < 1 else "dense"
        right = (row["predicted"] < 1) == (row["measured"] < 1)
        times = (
            f"{1e3 * row['pairs']:.1f} | {1e3 * row['dense']:.1f} | {row['measured']:.2f} | "
            f"{row['predicted']:.2f}"
        )
        print(f"| {row['layer']} | {times} | {chosen if right else f'**{chosen}**'} |")
    given.results.write_text(
        json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
