"""How much the engine computes at a time, on a CPU and on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from labelahead.devices import free_memory

__all__ = ["BufferSizes", "buffer_scale", "buffer_sizes", "use_buffer_sizes", "working_memory"]

DEFAULT_MEMORY_BYTES = 2 << 30  # where the device does not report it
MIN_MEMORY_BYTES = 64 << 20
# Buffers that fit into a CPU's cache would launch many small kernels on a GPU. The factor is an
# estimate: it was not measured on a GPU.
GPU_BUFFER_SCALE = 16


@dataclass(frozen=True)
class BufferSizes:
    """Sizes of temporaries on a CPU; they change the speed, and results by rounding only.

    Attributes:
        piece_bytes: Gradients side by side. Up to this size the C library reuses memory instead of
            mapping it again.
        tile_positions: Rows and columns of a tile of the pair contraction.
        patch_entries: Numbers in the buffer for image patches.
        min_offset_positions: Output positions of an image from which on a product may be split by
            offsets (measured).
        state_entries: Numbers in the states of all samples over a block of steps, so that their
            slopes fit into the cache.
    """

    piece_bytes: int = 24 << 20
    tile_positions: tuple[int, int] = (256, 1024)
    patch_entries: int = 1 << 20
    min_offset_positions: int = 200
    state_entries: int = 1 << 16


_sizes: ContextVar[BufferSizes] = ContextVar("buffer_sizes", default=BufferSizes())  # noqa: B039


def buffer_sizes() -> BufferSizes:
    """Return the sizes in use."""
    return _sizes.get()


@contextmanager
def use_buffer_sizes(sizes: BufferSizes) -> Iterator[None]:
    """Use other sizes inside the `with` block, in this thread."""
    before = _sizes.set(sizes)
    try:
        yield
    finally:
        _sizes.reset(before)


def working_memory(device: torch.device) -> int:
    """Return the bytes to use besides the result: half of what is free on a GPU, else 2 GiB."""
    free = free_memory(device)
    return DEFAULT_MEMORY_BYTES if free is None else max(free // 2, MIN_MEMORY_BYTES)


def buffer_scale(device: torch.device) -> int:
    """Return how many times as large as on a CPU buffers should be."""
    return 1 if device.type == "cpu" else GPU_BUFFER_SCALE
