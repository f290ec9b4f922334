"""Known data sets with an official test part, in the forms they are published in."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labelahead.data.arrays import pictures
from labelahead.data.cifar import binary_files, python_files, tar_members
from labelahead.data.dataset import Answers, Data
from labelahead.data.download import Form, Remote, find_or_fetch
from labelahead.data.idx import read_idx
from labelahead.data.names import FIRST_LABELS
from labelahead.data.npz import read_npz
from labelahead.data.options import Options
from labelahead.errors import InputError

__all__ = [
    "load_official",
    "read_binary_files",
    "read_idx_files",
    "read_mat_files",
    "read_npz_files",
    "read_python_files",
]

Array = np.ndarray[Any, Any]
Read = tuple[Array, Array, int, tuple[str, ...]]  # images, labels, training items, class names


def load_official(
    options: Options,
    *,
    name: str,
    classes: tuple[str, ...],
    forms: Sequence[Form],
    below: Sequence[str],
    remote: Sequence[Remote],
    shape: tuple[int, int, int],
) -> tuple[Data, Answers | None]:
    """A set with an official test part, in whichever form it is found."""
    form, paths = find_or_fetch(name, forms, below, remote, options)
    images, labels, train, names = form.read(paths)
    where = paths[0] if len(paths) == 1 else paths[0].parent
    if images.shape[1:] != shape:
        raise InputError(
            f"{where} holds pictures of {images.shape[1:]}; expected {shape} of {name}"
        )
    names = names if len(names) == len(classes) else classes
    outside = (labels < 0) | (labels >= len(classes))
    if outside.any():
        raise InputError(
            f"{where}: the label of item {int(np.argmax(outside))} is "
            f"{int(labels[np.argmax(outside)])}; expected 0 to {len(classes) - 1} of {name}"
        )
    for other, first in FIRST_LABELS.items():
        if other != name and name in FIRST_LABELS and tuple(labels[:10].tolist()) == first:
            raise InputError(
                f"{where} holds {other}, whose files have the same names; expected {name}, so "
                f"keep each set in a folder of its own below root: {other}/ and {name}/"
            )
    if not 0 < train < len(labels):
        raise InputError(
            f"{where}: {train} training and {len(labels) - train} test items; expected some of both"
        )
    note = f"{train} + {len(labels) - train} items read from {where}"
    return pictures(name, images, labels, train, names, options, (note,))


def read_idx_files(paths: Sequence[Path]) -> Read:
    """The four files of MNIST and its relatives."""
    parts = []
    for images, labels in (paths[:2], paths[2:]):
        x, y = read_idx(images, 3), read_idx(labels, 1)
        if len(x) != len(y):
            raise InputError(
                f"{images} holds {len(x)} images and {labels} {len(y)} labels; expected as many "
                "(are they of the same set?)"
            )
        parts.append((x, y))
    if parts[0][0].shape[1:] != parts[1][0].shape[1:]:
        raise InputError(f"{paths[0]} and {paths[2]} hold images of different sizes; fetch them")
    x = np.concatenate([parts[0][0], parts[1][0]])[:, None]
    y = np.concatenate([parts[0][1], parts[1][1]]).astype(np.int64)
    return x, y, len(parts[0][0]), ()


def read_npz_files(paths: Sequence[Path]) -> Read:
    """x_train, y_train, x_test, y_test; pictures (n, H, W) or (n, H, W, C)."""
    arrays = read_npz(paths[0])
    keys = ("x_train", "y_train", "x_test", "y_test")
    if not set(keys) <= set(arrays):
        raise InputError(
            f"{paths[0]} holds {', '.join(arrays) or 'nothing'}; expected {', '.join(keys)}"
        )
    x = [arrays["x_train"], arrays["x_test"]]
    y = [arrays["y_train"].ravel(), arrays["y_test"].ravel()]
    for images, labels in zip(x, y, strict=True):
        fine = images.dtype == np.uint8 and images.ndim in (3, 4) and labels.dtype.kind in "iu"
        if not fine or len(images) != len(labels) or images.shape[1:] != x[0].shape[1:]:
            raise InputError(
                f"{paths[0]} holds {images.dtype} {images.shape} with labels {labels.dtype} "
                f"{labels.shape}; expected uint8 (n, H, W, C) and one whole number for each"
            )
    joined = np.concatenate(x)
    joined = joined[:, None] if joined.ndim == 3 else joined.transpose(0, 3, 1, 2)
    labels = np.concatenate(y).astype(np.int64)
    return np.ascontiguousarray(joined), labels, len(x[0]), ()


def read_mat_files(paths: Sequence[Path]) -> Read:
    """The two Matlab files of SVHN, in which 10 stands for the digit 0."""
    from scipy.io import loadmat

    x, y = [], []
    for path in paths:
        try:
            found = loadmat(path, variable_names=("X", "y"))
        except Exception as error:  # a broken file makes the reader raise nearly anything
            raise InputError(
                f"{path} cannot be read as a Matlab file ({error}); fetch it again"
            ) from error
        images, labels = found.get("X"), found.get("y")
        if images is None or labels is None or images.ndim != 4 or images.dtype != np.uint8:
            raise InputError(f"{path} lacks X (uint8, 4 dimensions) or y; fetch it again")
        if labels.size != images.shape[3]:
            raise InputError(
                f"{path} holds {images.shape[3]} images and {labels.size} labels; fetch it again"
            )
        x.append(images.transpose(3, 2, 0, 1))
        y.append(labels.ravel().astype(np.int64))
    labels = np.concatenate(y)
    return np.concatenate(x), np.where(labels == 10, 0, labels), len(x[0]), ()


def read_python_files(
    paths: Sequence[Path], *, files: tuple[str, ...], key: str, meta: tuple[str, str]
) -> Read:
    """CIFAR's python version, from its folder or its archive."""
    wanted = (*files, meta[0])
    content = _contents(paths, wanted, files)
    return python_files(content, files[:-1], files[-1], key, meta)


def read_binary_files(paths: Sequence[Path], *, files: tuple[str, ...], before: int) -> Read:
    """CIFAR's binary version, from its folder or its archive."""
    return binary_files(_contents(paths, files, files), files[:-1], files[-1], before)


def _contents(
    paths: Sequence[Path], wanted: tuple[str, ...], needed: tuple[str, ...]
) -> dict[str, bytes]:
    """Wanted files by name, of an archive or of the folder where the needed ones were found."""
    if len(paths) == 1 and paths[0].suffix == ".gz":
        found = tar_members(paths[0], wanted)
        missing = [name for name in needed if name not in found]
        if missing:
            raise InputError(
                f"{paths[0]} lacks {', '.join(missing)}; expected the archive as published"
            )
        return found
    here = [paths[0].parent / name for name in wanted]
    return {path.name: path.read_bytes() for path in here if path.is_file()}
