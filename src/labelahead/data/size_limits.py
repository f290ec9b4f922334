"""Check the sizes that a file declares before memory is allocated for them."""

from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from labelahead.errors import InputError

__all__ = ["format_bytes", "get_free_memory", "read_npy_header", "require_npy_content"]

MAX_NPY_HEADER_BYTES = 10_000  # numpy's own limit; longer headers are slow to parse


def get_free_memory() -> int | None:
    """Return the memory in bytes that is available to programs, or None if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(
            1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration, ValueError):
        return None


def format_bytes(size: float) -> str:
    """Format a number of bytes in MB or GB, for messages."""
    return f"{size / 2**30:.1f} GB" if size >= 0.05 * 2**30 else f"{size / 2**20:.1f} MB"


def read_npy_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an .npy file: shape, whether it is Fortran-ordered, dtype.

    Nothing is unpickled.

    Raises:
        ValueError: if there is no such header.
    """
    version = np.lib.format.read_magic(file)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    return read(file, max_header_size=MAX_NPY_HEADER_BYTES)


def require_npy_content(
    shape: tuple[int, ...], dtype: np.dtype[Any], left: int, where: str
) -> None:
    """Raise if fewer bytes follow an .npy header than its shape announces.

    numpy would allocate memory for all of them.

    Args:
        shape: the shape in the header.
        dtype: the dtype in the header.
        left: the number of bytes after the header.
        where: the file, for messages.

    Raises:
        InputError: if the file is damaged or truncated.
    """
    announced = prod(int(side) for side in shape) * dtype.itemsize
    if not dtype.hasobject and announced > left:
        raise InputError(
            f"{where} announces an array {tuple(shape)} of {dtype}, {announced:,} bytes, but "
            f"{left:,} bytes follow; "
            "it is damaged or cut short: copy it again, or write it anew with numpy.save"
        )
