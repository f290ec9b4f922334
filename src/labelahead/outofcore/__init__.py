"""Out-of-core pools: features on disk in partitions, scored by local processes or by a cluster.

The examples here begin with 300 rows of 8 numbers, as a file, and their store:

    >>> import numpy as np
    >>> from labelahead.outofcore import Dask, Executor, LargePool, LocalProcesses
    >>> from labelahead.outofcore import EmbedOptions, embed
    >>> rng = np.random.default_rng(0)
    >>> kind = rng.integers(2, size=300)
    >>> np.save("pool.npy", rng.normal(size=(2, 8))[kind] * 3 + rng.normal(size=(300, 8)))
    >>> manifest = embed("pool.npy", "features", EmbedOptions(rows=100), workers=1)
    >>> labels = {f"pool.npy:{i}": "ab"[kind[i]] for i in range(10)}
"""

from labelahead.outofcore.execution import Dask, Executor, LocalProcesses
from labelahead.outofcore.partitions import EmbedOptions
from labelahead.outofcore.pool import LargePool, PoolPredictionSummary, PoolSubset
from labelahead.outofcore.sketched_kernel import NetworkOptions
from labelahead.outofcore.store import embed

__all__ = [
    "Dask",
    "EmbedOptions",
    "Executor",
    "LargePool",
    "LocalProcesses",
    "NetworkOptions",
    "PoolPredictionSummary",
    "PoolSubset",
    "embed",
]
