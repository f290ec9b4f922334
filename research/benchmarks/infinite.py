"""Infinite-width kernels: ours against neural-tangents, agreement and time, float64, one thread.

make bench-infinite                        prints a table, writes results/infinite.json
make bench-infinite ARGS=--reference       writes tests/ntk/infinite_reference.json as well
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from labelahead.ntk import infinite_kernel
from neural_tangents_competitor import ENVIRONMENT, ensure_environment

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "infinite.json"
REFERENCE = HERE.parents[1] / "tests" / "ntk" / "infinite_reference.json"
ACTIVATIONS = ("relu", "erf", "gelu")
KINDS = ("nngp", "ntk")
Case = dict[str, Any]


def make_case(
    network: str, depth: int, activation: str, kind: str, inputs: str, **more: Any
) -> Case:
    """A case: arguments of `infinite_kernel`, and the name of its inputs."""
    case: Case = {"network": network, "depth": depth, "activation": activation, "kind": kind}
    return {**case, "inputs": inputs, "weight_std": 1.4, "bias_std": 0.3, **more}


def agreement_cases(dense: str, images: str) -> list[Case]:
    """Every depth, activation and kind; with biases and without; both parametrisations; pools."""
    cases = [
        make_case("fc", depth, activation, kind, dense, bias_std=bias)
        for depth, activation, bias, kind in product((1, 3, 6), ACTIVATIONS, (None, 0.3), KINDS)
    ]
    cases += [
        make_case("conv", depth, activation, kind, images)
        for depth, activation, kind in product((2, 4), ACTIVATIONS, KINDS)
    ]
    for activation in ACTIVATIONS:
        cases.append(make_case("conv", 3, activation, "ntk", images, pools=[1, 2]))
        cases.append(make_case("fc", 3, activation, "ntk", dense, width=100))
        cases.append(make_case("conv", 2, activation, "ntk", images, width=100))
    spread: Case = {"weight_std": [1.4, 1.2, 1.0], "bias_std": [0.0, 0.1, 0.2]}
    return [*cases, make_case("fc", 2, "relu", "ntk", dense, **spread)]


def timing_cases() -> list[Case]:
    """Larger ones, for the time alone (they must agree all the same)."""
    cases = [make_case("fc", 3, name, "ntk", "digits1000") for name in ACTIVATIONS]
    cases += [make_case("conv", 4, name, "ntk", "images60") for name in ("relu", "erf")]
    return [*cases, make_case("conv", 4, "relu", "ntk", "large10")]


def digits_inputs() -> dict[str, np.ndarray]:
    """Digits, as vectors and as images of 8×8; and enlarged to 14×14."""
    images = torch.tensor(load_digits().images / 16)[:, None]
    large = torch.nn.functional.interpolate(images[:10], size=(14, 14), mode="bilinear")
    flat = images.flatten(1)
    inputs = {"digits20": flat[:20], "digits1000": flat[:1000], "large10": large}
    inputs |= {"images20": images[:20], "images60": images[:60]}
    return {name: t.numpy() for name, t in inputs.items()}


def small_inputs() -> dict[str, np.ndarray]:
    """For the reference: a zero vector and an opposite one among them; images not square."""
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(4, 5)).round(3)
    dense[2], dense[3] = 0, -2 * dense[0]
    return {"dense": dense, "images": rng.normal(size=(3, 2, 5, 4)).round(3)}


def theirs(cases: list[Case], inputs: dict[str, np.ndarray]) -> list[tuple[np.ndarray, float]]:
    """All cases by neural-tangents: (kernel, seconds)."""
    ensure_environment()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("cases.json", "inputs.npz", "out.npz")]
        paths[0].write_text(json.dumps(cases))
        np.savez(paths[1], **inputs)
        python = str(ENVIRONMENT / "bin" / "python")
        subprocess.run([python, str(HERE / "infinite_worker.py"), *map(str, paths)], check=True)
        with np.load(paths[2]) as out:
            return [(out[f"kernel{i}"], float(out[f"seconds{i}"])) for i in range(len(cases))]


def ours(case: Case, x: np.ndarray) -> tuple[np.ndarray, float]:
    """(kernel, seconds): the best of three after a first run."""
    options = {k: v for k, v in case.items() if k != "inputs"}
    given = torch.from_numpy(x)
    infinite_kernel(given, **options)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        K = infinite_kernel(given, **options)
        seconds.append(time.perf_counter() - start)
    return K.numpy(), min(seconds)


def differences(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Largest differences relative to √(b_ii·b_jj): of two points, and of a point with itself."""
    scale = np.sqrt(np.outer(np.diag(b), np.diag(b)))
    gap = np.abs(a - b) / np.where(scale > 0, scale, 1)
    return float(np.max(gap - np.diag(np.diag(gap)))), float(np.max(np.diag(gap)))


def compare(cases: list[Case], inputs: dict[str, np.ndarray]) -> list[Case]:
    """Rows of the table."""
    rows = []
    for case, (kernel, seconds) in zip(cases, theirs(cases, inputs), strict=True):
        mine, time_taken = ours(case, inputs[case["inputs"]])
        apart, same = differences(mine, kernel)
        rows.append(
            {
                **case,
                "n": len(mine),
                "difference": apart,
                "difference_diagonal": same,
                "seconds": time_taken,
                "neural_tangents_seconds": seconds,
            }
        )
    return rows


def write_reference() -> None:
    """The values to which the tests hold us; upper halves, row by row."""
    inputs = small_inputs()
    cases = agreement_cases("dense", "images")
    kept = []
    for case, (kernel, _) in zip(cases, theirs(cases, inputs), strict=True):
        half = kernel[np.triu_indices(len(kernel))]
        kept.append({**case, "values": [float(f"{v:.11g}") for v in half]})
    lines = ",\n".join(json.dumps(row) for row in kept)
    given = json.dumps({name: x.tolist() for name, x in inputs.items()})
    REFERENCE.write_text(f'{{"inputs": {given},\n"cases": [\n{lines}\n]}}\n')


def show(row: Case) -> str:
    """One line."""
    extra = " ".join(f"{k}={row[k]}" for k in ("bias_std", "width", "pools") if k in row)
    name = f"{row['network']:<4} {row['depth']} {row['activation']:<4} {row['kind']:<4}"
    times = f"{row['seconds'] * 1e3:>9.2f} {row['neural_tangents_seconds'] * 1e3:>9.2f}"
    same = f"{row['difference_diagonal']:>9.1e}"
    ratio = row["neural_tangents_seconds"] / row["seconds"]
    return f"{name} n={row['n']:<5} {row['difference']:>9.1e} {same} {times} {ratio:>6.1f}  {extra}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", action="store_true", help="write the tests' values as well")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.reference:
        write_reference()
    inputs = digits_inputs()
    rows = compare([*agreement_cases("digits20", "images20"), *timing_cases()], inputs)
    print(f"{'network':<23} {'i ≠ j':>9} {'i = j':>9} {'ours, ms':>9} {'NT, ms':>9} {'ratio':>6}")
    for row in rows:
        print(show(row))
    for name in ("difference", "difference_diagonal"):
        print(f"largest relative {name}: {max(row[name] for row in rows):.1e}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
