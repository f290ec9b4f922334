"""How much the engine computes at a time, on a CPU and on a GPU."""

import torch

from labelahead.devices import free_memory

__all__ = ["buffer_scale", "working_memory"]

DEFAULT_MEMORY_BYTES = 2 << 30  # where the device does not report it
MIN_MEMORY_BYTES = 64 << 20
# Buffers that fit into a CPU's cache would launch many small kernels on a GPU. The factor is an
# estimate: it was not measured on a GPU.
GPU_BUFFER_SCALE = 16


def working_memory(device: torch.device) -> int:
    """Return the bytes to use besides the result: half of what is free on a GPU, else 2 GiB."""
    free = free_memory(device)
    return DEFAULT_MEMORY_BYTES if free is None else max(free // 2, MIN_MEMORY_BYTES)


def buffer_scale(device: torch.device) -> int:
    """Return how many times as large as on a CPU buffers should be."""
    return 1 if device.type == "cpu" else GPU_BUFFER_SCALE
