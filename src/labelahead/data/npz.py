"""The .npz archives of numpy, read without ever unpickling."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelahead.data.arrays import as_values, assemble
from labelahead.data.classes import encode
from labelahead.data.dataset import UNKNOWN, Answers, Data
from labelahead.data.options import Options
from labelahead.data.split import choose
from labelahead.errors import InputError

__all__ = ["load_npz", "read_npz"]

INPUTS = ("x", "inputs", "data", "images", "features", "embeddings")
LABELS = ("y", "labels", "label", "target", "targets")
CLASSES = ("classes", "class_names", "target_names")
EXPECTED = "x and y, inputs and labels, data and target, or x_train, y_train, x_test and y_test"

READING = (
    OSError, EOFError, KeyError, RuntimeError, ValueError, MemoryError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip
Array = np.ndarray[Any, Any]


def read_npz(path: Path) -> dict[str, Array]:
    """Every array of the archive, by its name in small letters."""
    found: dict[str, Array] = {}
    try:
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise InputError(f"{path} is a single array; expected an .npz archive of several")
        with opened as archive:
            for key in archive.files:
                if key.lower() in found:
                    raise InputError(
                        f"{path} holds {key!r} in capital and small letters; expected one of them"
                    )
                found[key.lower()] = archive[key]
    except READING as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} cannot be read as .npz ({error}); expected plain arrays written by "
            "numpy.savez (object arrays are refused, since reading them can run code)"
        ) from error
    return found


def load_npz(path: Path, options: Options) -> tuple[Data, Answers | None]:
    """An archive with inputs, perhaps labels, perhaps a test part of its own."""
    options.refuse_target(str(path))
    arrays = read_npz(path)
    x, y, train = _parts(path, arrays)
    notes = [] if train is None else [f"test part as in the file: {len(x) - train} items"]
    names = next((arrays[key] for key in CLASSES if key in arrays), None)
    classes = None if names is None or names.ndim != 1 else [str(name) for name in names.tolist()]
    values, more = as_values(x, path.name)
    codes, class_names, decided = encode(y, classes)
    if len(codes) != len(values):
        raise InputError(
            f"{path} holds {len(values)} inputs and {len(codes)} labels; expected as many"
        )
    if values.ndim != 4:
        options.refuse_size(str(path))
    if not bool((codes >= 0).any()):
        notes.append("no labels in the file")
    official = None if train is None else torch.arange(len(codes)) >= train
    if official is not None and bool((codes[official] == UNKNOWN).any()):
        lost = official & (codes == UNKNOWN)
        official &= ~lost
        notes.append(f"{int(lost.sum())} test items have no label: they join the pool")
    split = choose(codes, options, official)
    said = (*notes, *more, *decided, "inputs standardised over the pool")
    return assemble(path.stem, values, codes, class_names, split, notes=said, size=options.size)


def _parts(path: Path, arrays: dict[str, Array]) -> tuple[Array, Any, int | None]:
    """Inputs, labels (None where unknown) and, if there is a test part, where it begins."""
    for name in INPUTS:
        if f"{name}_train" in arrays:
            x = _rows(path, arrays, f"{name}_train")
            y = _labels_of(path, arrays, "_train", len(x))
            if f"{name}_test" not in arrays:
                return x, y, None
            held_out = _rows(path, arrays, f"{name}_test")
            if x.shape[1:] != held_out.shape[1:]:
                raise InputError(
                    f"{path}: training inputs are {x.shape[1:]} and test inputs "
                    f"{held_out.shape[1:]} each; expected equal shapes"
                )
            y = y + _labels_of(path, arrays, "_test", len(held_out))
            return np.concatenate([x, held_out]), y, len(x)
        if name in arrays:
            x = _rows(path, arrays, name)
            return x, _labels_of(path, arrays, "", len(x)), None
    raise InputError(
        f"{path} holds {', '.join(arrays) or 'nothing'}; expected the arrays {EXPECTED}"
    )


def _rows(path: Path, arrays: dict[str, Array], name: str) -> Array:
    """An array that has items at all."""
    if arrays[name].ndim == 0:
        raise InputError(f"{path}: {name} is a single value; expected an array (n, ...)")
    return arrays[name]


def _labels_of(path: Path, arrays: dict[str, Array], suffix: str, n: int) -> list[Any]:
    """The labels that go with inputs of that suffix, or as many unknown ones."""
    for name in LABELS:
        if name + suffix in arrays:
            labels = arrays[name + suffix]
            if labels.shape not in ((n,), (n, 1)):
                raise InputError(
                    f"{path}: {name + suffix} has shape {labels.shape}; expected ({n},), one "
                    "class for each input"
                )
            return labels.reshape(n).tolist()
    return [None] * n
