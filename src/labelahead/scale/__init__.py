"""Pools of millions: features part by part on disk, scored by processes of this machine or by a cluster."""

from labelahead.scale.execution import Dask, Executor, LocalProcesses
from labelahead.scale.pool import Held, LargePool, Predicted
from labelahead.scale.store import embed

__all__ = ["Dask", "Executor", "Held", "LargePool", "LocalProcesses", "Predicted", "embed"]
