"""The idx format of MNIST and its relatives, raw or gzipped."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from labelahead.errors import InputError

__all__ = ["read_idx"]

UBYTE = 0x08
PIECE = 2**24


def read_idx(path: Path, ndim: int) -> np.ndarray[Any, Any]:
    """The uint8 array of that many dimensions in an idx file; its sizes are checked."""
    try:
        with path.open("rb") as raw:
            if raw.read(2) == b"\x1f\x8b":
                raw.seek(0)
                with gzip.open(raw) as unpacked:
                    return _read(unpacked, path, ndim)  # type: ignore[arg-type]
            raw.seek(0)
            return _read(raw, path, ndim)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{path} is broken gzip ({error}); expected a whole file, so fetch it again"
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _read(stream: BinaryIO, path: Path, ndim: int) -> np.ndarray[Any, Any]:
    """Header, then exactly as many bytes as it announces."""
    head = _up_to(stream, 4)
    expected = bytes([0, 0, UBYTE, ndim])
    if head != expected:
        what = "images" if ndim == 3 else "labels"
        raise InputError(
            f"{path} begins with {head.hex(' ') or 'nothing'}; expected {expected.hex(' ')}, the "
            f"mark of idx {what} (is it another file under that name?)"
        )
    sizes = _up_to(stream, 4 * ndim)
    if len(sizes) < 4 * ndim:
        raise InputError(f"{path} ends within its header; expected a whole file; fetch it again")
    shape = struct.unpack(f">{ndim}I", sizes)
    count = math.prod(shape)
    if count == 0:
        raise InputError(f"{path} announces {shape}, nothing at all; expected at least one item")
    body = _up_to(stream, count)
    if len(body) < count:
        raise InputError(
            f"{path} holds {len(body)} bytes of {count} ({shape}); it was cut short, so fetch it "
            "again"
        )
    if stream.read(1):
        raise InputError(
            f"{path} holds more than the {count} bytes it announces ({shape}); fetch it again"
        )
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _up_to(stream: BinaryIO, count: int) -> bytearray:
    """At most `count` bytes, in pieces: a broken header may announce more than memory holds."""
    out = bytearray()
    while len(out) < count:
        piece = stream.read(min(PIECE, count - len(out)))
        if not piece:
            break
        out += piece
    return out
