"""One neural-tangents computation, in neural-tangents' own virtual environment.

    neural_tangents_worker.py NETWORK NPZ N THREADS IMPLEMENTATION [BATCH]

Compilation is not timed. BATCH > 0 computes in blocks of that many samples with `nt.batch`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import timing


def limit_threads(threads: int) -> None:
    """XLA reads these once, when it is imported; the affinity is the second lock."""
    timing.pin(threads)
    if threads == 1:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = flags
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def prepare(
    network: str, path: str, n: int, implementation: str, batch: int
) -> tuple[Callable[[], Any], float]:
    """Compile; return the computation and the resident memory before its first timed run."""
    import jax
    import neural_tangents as nt
    import numpy as np

    import networks_jax

    with np.load(path) as arrays:
        jax.config.update("jax_enable_x64", bool(arrays["x"].dtype == np.float64))
    scalar, params, x = networks_jax.load(network, path)
    x = jax.device_put(x[:n])
    kernel_fn = nt.empirical_ntk_fn(
        scalar, trace_axes=(-1,), vmap_axes=0, implementation=nt.NtkImplementation[implementation]
    )
    if batch:
        blocks = nt.batch(kernel_fn, device_count=0, batch_size=batch, store_on_device=False)
        jax.block_until_ready(blocks(x[:batch], None, params))  # compiles for the block shape
        timing.release()
        base = timing.resident_mb()
        return lambda: jax.block_until_ready(blocks(x, None, params)), base

    compiled = jax.jit(lambda x, params: kernel_fn(x, None, params)).lower(x, params).compile()
    timing.release()
    base = timing.resident_mb()
    return lambda: compiled(x, params).block_until_ready(), base


def save(result: Any, path: str) -> None:
    """Keep the kernel for the agreement column."""
    import numpy as np

    np.save(path, np.asarray(result))


def main() -> None:
    """Read the arguments, prepare, serve."""
    network, path, n, threads, implementation, *rest = sys.argv[1:]
    limit_threads(int(threads))
    batch = int(rest[0]) if rest else 0
    compute, base = prepare(network, path, int(n), implementation, batch)
    timing.serve(compute, base, save)


if __name__ == "__main__":
    main()
