"""Large working memory."""

import math
import mmap

import torch
from torch import Tensor

__all__ = ["zeros"]

LARGE = 32 << 20  # bytes from which the C library, too, maps every request anew


def zeros(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """As `like.new_zeros(shape)`, in large pages where the system has them.

    Small pages are mapped one by one when first written to: half a millisecond a megabyte, as much as the products that
    fill them.
    """
    dtype = dtype or like.dtype
    size = math.prod(shape) * dtype.itemsize
    if like.device.type != "cpu" or size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_zeros(shape, dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
