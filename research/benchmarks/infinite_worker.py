"""Infinite-width kernels by neural-tangents, in neural-tangents' own virtual environment.

    infinite_worker.py CASES.json INPUTS.npz OUT.npz

Float64 throughout. Compilation is not timed: the best of three runs after a first one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def network(case: dict[str, Any]) -> Any:
    """The kernel function of the case's network."""
    from neural_tangents import stax

    weights, biases = case["weight_std"], case["bias_std"]
    count = case["depth"] + 1
    weights = weights if isinstance(weights, list) else [weights] * count
    biases = biases if isinstance(biases, list) else [biases] * count
    form = "ntk" if case.get("width") is None else "standard"
    units = case.get("width") or 1
    phi = {"relu": stax.Relu, "erf": stax.Erf, "gelu": stax.Gelu}[case["activation"]]
    layers: list[Any] = []
    for number in range(case["depth"]):
        spread = {"W_std": weights[number], "b_std": biases[number], "parameterization": form}
        if case["network"] == "conv":
            layers += [stax.Conv(units, (3, 3), padding="SAME", **spread), phi()]
            if number + 1 in case.get("pools", []):
                layers.append(stax.AvgPool((2, 2), (2, 2)))
        else:
            layers += [stax.Dense(units, **spread), phi()]
    if case["network"] == "conv":
        layers.append(stax.GlobalAvgPool())
    layers.append(stax.Dense(1, W_std=weights[-1], b_std=biases[-1], parameterization=form))
    return stax.serial(*layers)[2]


def main() -> None:
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    cases_path, inputs_path, out_path = sys.argv[1:]
    with open(cases_path) as file:
        cases = json.load(file)
    inputs = dict(np.load(inputs_path))
    results: dict[str, Any] = {}
    for number, case in enumerate(cases):
        x = inputs[case["inputs"]]
        if case["network"] == "conv":
            x = x.transpose(0, 2, 3, 1)
        kernel_fn = network(case)
        compiled = jax.jit(lambda x, kind=case["kind"], f=kernel_fn: f(x, None, kind))
        x = jax.device_put(x)
        results[f"kernel{number}"] = np.asarray(compiled(x))
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            compiled(x).block_until_ready()
            seconds.append(time.perf_counter() - start)
        results[f"seconds{number}"] = min(seconds)
    np.savez(out_path, **results)


if __name__ == "__main__":
    main()
