"""CIFAR-10 and CIFAR-100 as published: python pickles (read safely) and binary files."""

import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from labelahead.errors import InputError

__all__ = ["binary_files", "python_files", "tar_members", "unpickle"]

Array = np.ndarray[Any, Any]
ROW = 3 * 32 * 32
LARGEST_MEMBER = 2**30  # the real ones have at most 2**28 bytes


def _blank(*_: Any) -> Array:
    """An empty array to be filled; the size asked for is of no interest before the content."""
    return np.ndarray.__new__(np.ndarray, (0,), "b")


def _latin(text: str, encoding: str) -> bytes:
    """Bytes, as Python 3 writes them for old protocols."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} has no business here")
    return text.encode("latin1")


def _from_buffer(content: Any, dtype: Any, shape: Any, order: str) -> Array:
    """An array as protocol 5 writes it."""
    return np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if order == "F" else "C")


ADMITTED: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _blank,
    ("numpy._core.multiarray", "_reconstruct"): _blank,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _blank,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin,
}


class _Unpickler(pickle.Unpickler):
    """Builds arrays of numpy and plain containers; anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """The few callables that arrays need: a pickle can otherwise run any code."""
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no such file needs"
            ) from None


def unpickle(content: bytes, where: str) -> dict[str, Any]:
    """The dictionary in a CIFAR batch, without running anything the file says."""
    try:
        found = _Unpickler(BytesIO(content), encoding="bytes").load()
    except Exception as error:  # broken pickles raise nearly every kind of error
        raise InputError(
            f"{where} is refused: {error}; expected the pickled arrays of CIFAR's python "
            "version, unchanged, so fetch it again"
        ) from error
    if not isinstance(found, dict):
        raise InputError(f"{where} holds a {type(found).__name__}; expected a dictionary")
    return {k.decode() if isinstance(k, bytes) else str(k): v for k, v in found.items()}


def python_files(
    files: Mapping[str, bytes], train: tuple[str, ...], test: str, key: str, meta: tuple[str, str]
) -> tuple[Array, Array, int, tuple[str, ...]]:
    """Images, labels, length of the training part and class names of the python version."""
    parts = [_batch(unpickle(files[name], name), key, name) for name in (*train, test)]
    names: tuple[str, ...] = ()
    if meta[0] in files:
        found = unpickle(files[meta[0]], meta[0]).get(meta[1], [])
        names = tuple(n.decode() if isinstance(n, bytes) else str(n) for n in found)
    return (*_join(parts), names)


def binary_files(
    files: Mapping[str, bytes], train: tuple[str, ...], test: str, before: int
) -> tuple[Array, Array, int, tuple[str, ...]]:
    """The same of the binary version, where `before` label bytes precede each image."""
    parts = []
    for name in (*train, test):
        flat = np.frombuffer(files[name], dtype=np.uint8)
        if len(flat) == 0 or len(flat) % (ROW + before):
            raise InputError(
                f"{name} has {len(flat)} bytes; expected a multiple of {ROW + before}, {before} "
                "for labels and 3072 for each image; fetch it again"
            )
        rows = flat.reshape(-1, ROW + before)
        parts.append((rows[:, before:], rows[:, before - 1].astype(np.int64)))
    return (*_join(parts), ())


def tar_members(path: Path, wanted: tuple[str, ...]) -> dict[str, bytes]:
    """The wanted files of an archive by their last name, held in memory, never unpacked."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name in wanted and member.isfile():
                    if member.size > LARGEST_MEMBER:
                        raise InputError(f"{path}: {name} has {member.size} bytes; fetch it again")
                    content = archive.extractfile(member)
                    found[name] = b"" if content is None else content.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise InputError(
            f"{path} cannot be read ({error}); expected a whole .tar.gz archive, so fetch it again"
        ) from error
    return found


def _batch(found: dict[str, Any], key: str, where: str) -> tuple[Array, Array]:
    """Rows of pixels and labels of one batch, checked."""
    if "data" not in found or key not in found:
        raise InputError(
            f"{where} holds {', '.join(found) or 'nothing'}; expected data and {key} (CIFAR-10 "
            "and CIFAR-100 differ there: is it the right set?)"
        )
    rows = found["data"]
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape[1:] != (ROW,):
        shape = getattr(rows, "shape", type(rows).__name__)
        raise InputError(f"data of {where} is {shape}; expected uint8 of shape (n, {ROW})")
    labels = np.asarray(found[key])
    if labels.dtype.kind not in "iu" or labels.shape != (len(rows),):
        raise InputError(
            f"{where} has {len(rows)} images and labels {labels.dtype} {labels.shape}; expected "
            "one number for each"
        )
    return rows, labels.astype(np.int64)


def _join(parts: list[tuple[Array, Array]]) -> tuple[Array, Array, int]:
    """All parts in order, images as (n, 3, 32, 32), and where the last one begins."""
    images = np.concatenate([rows for rows, _ in parts]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([labels for _, labels in parts])
    return images, labels, len(images) - len(parts[-1][0])
