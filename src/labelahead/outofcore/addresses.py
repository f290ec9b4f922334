"""Files by address: a local path, or anything that fsspec supports (s3://, gs://, memory://, ...)."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import numpy as np

from labelahead.data.size_limits import read_npy_header as data_header
from labelahead.data.size_limits import require_npy_content
from labelahead.errors import InputError, LabelaheadError, MissingExtra, StorageError
from labelahead.files import make_folder, replace_file

__all__ = [
    "Array",
    "absolute_address",
    "exists",
    "file_stamp",
    "is_local",
    "list_files",
    "open_file",
    "read_npy_header",
    "remove_file",
    "write_file",
]

Array = np.ndarray[Any, Any]
DATE_KEYS = (
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "ETag",
    "etag",
    "created",
)  # as file systems call it


def absolute_address(address: str | Path) -> str:
    """Return the address independent of the current folder."""
    fs, path = _resolve(str(address))
    return str(fs.unstrip_protocol(path))


def _resolve(address: str) -> tuple[Any, str]:
    """Return the file system and the path in it."""
    try:
        fs, path = fsspec.core.url_to_fs(
            str(Path(address).expanduser()) if "://" not in address else address
        )
    except ImportError as error:
        raise MissingExtra(
            f"{address} needs a package for its kind of storage ({error}); install it here and on "
            "all workers"
        ) from error
    except ValueError as error:
        raise InputError(
            f"{address} is no address that can be read ({error}); expected a path, s3://, gs://"
        ) from error
    return fs, path.rstrip("/") or path


def list_files(address: str) -> dict[str, dict[str, Any]]:
    """Return all files below an address by relative name, sorted, without hidden ones.

    Of a file: itself, by its name.
    """
    fs, root = _resolve(address)
    with _translate_storage_errors(address):
        if fs.isfile(root):
            return {root.rsplit("/", 1)[-1]: fs.info(root)}
        if not fs.isdir(root):
            raise InputError(
                f"there is nothing at {address}; expected a folder, a bucket or a file"
            )
        found = fs.find(root, detail=True)
    names = {path[len(root) :].lstrip("/"): info for path, info in found.items()}
    return {
        n: names[n]
        for n in sorted(names)
        if not any(part.startswith((".", "_")) for part in n.split("/"))
    }


def file_stamp(info: dict[str, Any]) -> str:
    """Return size and date of a file as text, which differs once the file has changed."""
    date = next((str(info[name]) for name in DATE_KEYS if info.get(name) is not None), "")
    return f"{info.get('size')} {date}"


def exists(address: str) -> bool:
    """Return whether the file exists."""
    fs, path = _resolve(address)
    with _translate_storage_errors(address):
        return bool(fs.exists(path))


def open_file(address: str) -> BinaryIO:
    """Open a file for seekable reading; the caller closes it."""
    fs, path = _resolve(address)
    with _translate_storage_errors(address):
        return fs.open(path, "rb")  # type: ignore[no-any-return]


@contextmanager
def _translate_storage_errors(address: str) -> Iterator[None]:
    try:
        yield
    except LabelaheadError:
        raise
    except Exception as error:  # storages far away have errors of their own, of no common kind
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise StorageError(f"{address} cannot be read ({why}); check that it exists") from error


def write_file(address: str, content: bytes | str | Callable[[BinaryIO], object]) -> None:
    """Write a file in one step: complete, or not at all."""
    fs, path = _resolve(address)
    if _is_local(fs):
        make_folder(Path(path).parent)
        replace_file(Path(path), content)
        return
    # An upload that is broken off must not leave half an object: it is made here first, then sent
    # whole.
    handle, name = tempfile.mkstemp()
    os.close(handle)
    try:
        replace_file(Path(name), content)
        fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        fs.put_file(name, path)
    except LabelaheadError:
        raise
    except Exception as error:
        raise StorageError(
            f"{address} cannot be written to ({error or type(error).__name__})"
        ) from error
    finally:
        os.unlink(name)


def remove_file(address: str) -> None:
    """Remove a file."""
    fs, path = _resolve(address)
    fs.rm_file(path)


def is_local(address: str) -> bool:
    """Return whether a file is on this machine's file system."""
    return _is_local(_resolve(address)[0])


def _is_local(fs: Any) -> bool:
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def read_npy_header(file: BinaryIO, address: str) -> tuple[tuple[int, int], np.dtype[Any], int]:
    """Read the header of an .npy file; nothing is unpickled.

    Returns:
        (rows, columns), the dtype, and the offset of the first number.
    """
    try:
        shape, by_columns, dtype = data_header(file)
    except ValueError as error:
        raise InputError(f"{address} cannot be read as .npy ({error})") from error
    if len(shape) != 2 or not shape[1] or by_columns or dtype.kind != "f":  # no rows: an empty part
        order = ", column by column" if by_columns else ""
        raise InputError(
            f"{address} holds {dtype} {shape}{order}; expected floating (n, d), row by row: "
            "numpy.save(path, numpy.ascontiguousarray(x, dtype='float16'))"
        )
    first = file.tell()
    require_npy_content(shape, dtype, file.seek(0, os.SEEK_END) - first, address)
    file.seek(first)
    return shape, dtype, first
