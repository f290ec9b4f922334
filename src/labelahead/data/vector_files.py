"""Embeddings that the user has computed: a file of vectors for the items of any data set.

The file is .npy, .npz, .parquet or .safetensors. If it names its vectors, they are matched with the
items by id or file name, otherwise by order. A .npy file and a .safetensors file are mapped into
memory, not read.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data.dataset import Data
from labelahead.data.joined_embeddings import split_joined_embedding
from labelahead.data.records import format_id
from labelahead.data.split import expand_path
from labelahead.errors import InputError, import_extra

__all__ = [
    "VECTOR_SUFFIXES",
    "VectorFile",
    "attach_named_vectors",
    "attach_vectors",
    "is_vector_file",
    "open_vector_file",
    "resolve_vector_file",
    "vector_column_name",
]

VECTOR_SUFFIXES = (".npy", ".npz", ".parquet", ".pq", ".safetensors")
ID_NAMES = ("id", "ids", "item", "items", "name", "names", "file", "files", "file_name", "path")
VECTOR_NAMES = ("vectors", "vector", "embeddings", "embedding", "features", "x")
ROWS_AT_ONCE = 8192  # while a file is checked
MAX_NAMED_ITEMS = 3  # in an error message
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class VectorFile:
    """Vectors of a file.

    Attributes:
        path: The file.
        values: (n, d) float32, or float16 as in the file.
        ids: The name of each vector, if the file has names.
    """

    path: Path
    values: Tensor
    ids: list[str] | None


def is_vector_file(name: str) -> bool:
    """Return whether an embedding's name is that of a file of vectors."""
    return PurePosixPath(name).suffix.lower() in VECTOR_SUFFIXES


def resolve_vector_file(name: str) -> str:
    """Return the full path, which names the vectors everywhere."""
    return str(expand_path(name).resolve())


def vector_column_name(name: str) -> str:
    """Return the column that further items have these vectors in."""
    return Path(name).stem if is_vector_file(name) else name


def attach_vectors(data: Data, name: str) -> Data:
    """Return the data with the vectors of a file, one for each item.

    Raises:
        InputError: The file cannot be read, its vectors are not finite rows of one length, or they
            do not match the items.
    """
    file = open_vector_file(resolve_vector_file(name))
    at = _match_by_order(file, data) if file.ids is None else _match_by_id(file, file.ids, data)
    values = file.values if at is None else file.values[at]
    return replace(data, vectors={**data.vectors, str(file.path): values})


def attach_named_vectors(data: Data, embedding: str | None) -> Data:
    """Return the data with the vector files that an embedding's name mentions."""
    if embedding is None or embedding in data.vectors:
        return data
    for name in split_joined_embedding(embedding):
        if is_vector_file(name) and resolve_vector_file(name) not in data.vectors:
            data = attach_vectors(data, name)
    return data


def open_vector_file(path: str | Path) -> VectorFile:
    """Open a file of vectors and check it.

    Raises:
        InputError: It cannot be read, or it does not hold finite rows of one length.
    """
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"{path} is no file of vectors; expected one of {', '.join(VECTOR_SUFFIXES)}"
        )
    if not path.is_file():
        raise InputError(f"{path} does not exist; expected a file of vectors, one row per item")
    try:
        values, ids = reader(path)
    except InputError:
        raise
    except ImportError:
        raise
    except Exception as error:  # damaged files raise errors of any type
        cause = (str(error).strip().splitlines() or [""])[0][:200]
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}: {cause}); expected a file of vectors: "
            "write it again"
        ) from error
    _check_shape(path, values)
    if ids is not None and len(ids) != len(values):
        raise InputError(
            f"{path} names {len(ids)} items, but has {len(values)} vectors; expected as many"
        )
    _check_finite(path, values, ids)
    return VectorFile(path, values, ids)


# --- Formats


def _read_npy(path: Path) -> tuple[Tensor, None]:
    return _to_tensor(path, np.load(path, mmap_mode="c", allow_pickle=False)), None


def _read_npz(path: Path) -> tuple[Tensor, list[str] | None]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    ids = _find_ids(arrays)
    name = _find_vectors(path, {n: a.ndim for n, a in arrays.items() if a.dtype.kind in "fiu"})
    return _to_tensor(path, arrays[name]), ids


def _read_parquet(path: Path) -> tuple[Tensor, list[str] | None]:
    parquet = import_extra("pyarrow.parquet", "tables", "reading Parquet")
    types = import_extra("pyarrow.types", "tables", "reading Parquet")
    table = parquet.read_table(path)
    kinds = {name: table.schema.field(name).type for name in table.schema.names}

    def is_list(kind: Any) -> bool:
        return bool(
            types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        )

    lists = {n: 3 if is_list(k.value_type) else 2 for n, k in kinds.items() if is_list(k)}
    column = table.column(_find_vectors(path, lists)).combine_chunks()
    if column.null_count:
        raise InputError(f"{path} has {column.null_count} empty vectors; expected one in every row")
    compute = import_extra("pyarrow.compute", "tables", "reading Parquet")
    lengths = compute.unique(compute.list_value_length(column)).to_pylist()
    if len(lengths) != 1:
        raise InputError(
            f"{path} has vectors of {min(lengths, default=0)} to {max(lengths, default=0)} "
            "numbers; expected one length"
        )
    if is_list(column.type.value_type):
        raise InputError(
            f"{path} has lists of lists; expected (n, d), one list of numbers per item"
        )
    flat = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
    others = {n: table.column(n).to_pylist() for n in kinds if n.casefold() in ID_NAMES}
    return _to_tensor(path, flat.reshape(len(column), -1)), _find_ids(others)


def _read_safetensors(path: Path) -> tuple[Tensor, list[str] | None]:
    safetensors = import_extra("safetensors", "encoders", "reading .safetensors")
    with safetensors.safe_open(path, framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        if len(shapes) > 1 and {len(shape) for shape in shapes.values()} == {1}:
            if len(set(shapes.values())) > 1:
                raise InputError(f"{path} has vectors of different lengths; expected one")
            return torch.stack([file.get_tensor(name) for name in shapes]), list(shapes)
        name = _find_vectors(path, {n: len(shape) for n, shape in shapes.items()})
        listed = (file.metadata() or {}).get("ids")
        return _as_float(file.get_tensor(name)), None if listed is None else json.loads(listed)


READERS: dict[str, Any] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    ".pq": _read_parquet,
    ".safetensors": _read_safetensors,
}


def _find_vectors(path: Path, dimensions: dict[str, int]) -> str:
    """Return the name of the only array of vectors, or of that with a usual name."""
    likely = [n for n, ndim in dimensions.items() if ndim >= 2 and n.casefold() not in ID_NAMES]
    usual_names = [n for n in likely if n.casefold() in VECTOR_NAMES]
    if len(likely) == 1 or len(usual_names) == 1:
        return usual_names[0] if len(usual_names) == 1 else likely[0]
    raise InputError(
        f"{path} has {len(likely)} arrays that may be the vectors "
        f"({', '.join(likely or dimensions) or 'none'}); expected one (n, d), or one called vectors"
    )


def _find_ids(columns: dict[str, Any]) -> list[str] | None:
    """Return the names of the vectors, None without names."""
    names = {name.casefold(): name for name in columns}
    found = next((names[usual] for usual in ID_NAMES if usual in names), None)
    return None if found is None else [format_id(value) for value in list(columns[found])]


def _to_tensor(path: Path, values: Array) -> Tensor:
    if values.dtype.kind not in "fiu":
        raise InputError(f"{path} holds {values.dtype}; expected numbers")
    if values.dtype not in (np.float16, np.float32):
        values = values.astype(np.float32)
    return torch.from_numpy(values if values.dtype.isnative else values.astype(np.float32))


def _as_float(values: Tensor) -> Tensor:
    return values if values.dtype in (torch.float16, torch.float32) else values.float()


# --- Checks and matching


def _check_shape(path: Path, values: Tensor) -> None:
    shape = tuple(values.shape)
    if len(shape) == 2 and shape[0] and shape[1]:
        return
    pool = " (of tokens take the mean or the first: x.mean(1))" if len(shape) == 3 else ""
    raise InputError(
        f"{path} has shape {shape}; expected (n, d), one row of numbers per item{pool}"
    )


def _check_finite(path: Path, values: Tensor, ids: Sequence[str] | None) -> None:
    for start in range(0, len(values), ROWS_AT_ONCE):
        finite = torch.isfinite(values[start : start + ROWS_AT_ONCE]).all(1)
        if not bool(finite.all()):
            row = start + int((~finite).nonzero()[0])
            named = "" if ids is None else f" ({ids[row]})"
            raise InputError(
                f"row {row}{named} of {path} holds NaN or infinity; expected finite numbers: "
                "compute that vector again, or remove its item"
            )


def _match_by_order(file: VectorFile, data: Data) -> list[int] | None:
    """Return the row of each item, None for all rows in their order."""
    n = len(file.values)
    if n == len(data):
        return None
    files = data.file_names
    row_of = {name: i for i, name in enumerate(files)}
    if n == len(files) and all(name in row_of for name in data.ids):
        return [row_of[name] for name in data.ids]  # some files were left out
    raise InputError(
        f"{file.path} has {n} vectors without names, but {data.name} has {len(data)} items; "
        "expected as many, in the order of the items, or an .npz, .parquet or .safetensors with "
        "an array `id`"
    )


def _match_by_id(file: VectorFile, ids: Sequence[str], data: Data) -> list[int] | None:
    """Return the row of each item by its name, or by its file name if these are unique."""
    row_of = {name: i for i, name in enumerate(ids)}
    if len(row_of) < len(ids):
        twice = next(name for i, name in enumerate(ids) if row_of[name] != i)
        raise InputError(f"{file.path} has two vectors of {twice!r}; expected one of every item")
    found = [row_of.get(name) for name in data.ids]
    if None in found:
        short = {PurePosixPath(name).name: row for name, row in row_of.items()}
        own = [PurePosixPath(name).name for name in data.ids]
        if len(short) == len(ids) and len(set(own)) == len(own):
            found = [short.get(name) for name in own]
    missing = [name for name, row in zip(data.ids, found, strict=True) if row is None]
    if missing:
        some = ", ".join(missing[:MAX_NAMED_ITEMS])
        raise InputError(
            f"{file.path} has no vector of {len(missing)} of the {len(data)} items ({some}); "
            f"expected one of each by its id: its own begin with {ids[0]!r}"
        )
    rows = [row for row in found if row is not None]
    return None if rows == list(range(len(ids))) else rows
