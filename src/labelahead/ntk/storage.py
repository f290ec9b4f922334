"""Kernels and features in .npy files, written block by block, resumed where they stopped."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelahead.batching import (
    Inputs,
    Samples,
    count_samples,
    describe_batch,
    list_tensors,
    read_batch,
    take_samples,
)
from labelahead.errors import InputError, StorageError
from labelahead.files import as_storage_error, replace_file
from labelahead.ntk.kernels import kernel
from labelahead.ntk.premises import move_samples, unwrap_compiled
from labelahead.ntk.sketch import features

__all__ = ["save_features", "save_kernel"]

Progress = Callable[[int, int], object]
DEFAULT_BLOCK = 256  # samples between two writes


def save_kernel(
    model: nn.Module,
    x: Inputs,
    path: str | Path,
    *,
    block: int = DEFAULT_BLOCK,
    on_progress: Progress | None = None,
    **options: Any,
) -> NDArray[Any]:
    """Write the kernel of `x` to a .npy file, `block` samples at a time.

    The file is as large as the kernel, but only a stripe of rows is in memory. After an interruption
    the same call continues; `path`.progress says how far it is, and is removed at the end.

    Args:
        model: The network.
        x: n samples.
        path: Of the file.
        block: Samples per stripe.
        on_progress: Called with the number of finished samples, and n.
        options: Of `kernel`: kind, params, chunk, memory, verify, rules.

    Returns:
        The kernel, mapped for reading: `torch.from_numpy` shares it.

    Raises:
        InputError: If the file belongs to another computation.
        StorageError: If it cannot be written.

    >>> import numpy as np
    >>> K = la.ntk.save_kernel(model, x, "kernel.npy", block=2)
    >>> bool(np.allclose(K, la.kernel(model, x), atol=1e-5)), Path("kernel.npy").exists()
    (True, True)
    """
    x = move_samples(model, x)
    n = count_samples(x)
    first = kernel(model, take_samples(x, slice(0, 1)), **options)
    rows = len(first)

    def write(table: NDArray[Any], part: slice) -> None:
        stripe = kernel(
            model, take_samples(x, part), take_samples(x, slice(part.start, n)), **options
        )
        own = slice(part.start * rows, part.stop * rows)
        values = stripe.cpu().numpy()
        corner = values[:, : len(values)]
        corner[:] = np.triu(corner) + np.triu(corner, 1).T  # as equal as rounding allows
        table[own, own.start :] = values
        table[own.start :, own] = values.T

    work = _Work(model, x, "kernel", options, block, (n * rows, n * rows), first)
    return work.run(Path(path), write, on_progress)


def save_features(
    model: nn.Module,
    x: Inputs,
    path: str | Path,
    *,
    block: int = DEFAULT_BLOCK,
    on_progress: Progress | None = None,
    **options: Any,
) -> NDArray[Any]:
    """Write tangent features to a .npy file, as `save_kernel` does.

    Args:
        model: The network.
        x: n samples.
        path: Of the file.
        block: Samples per stripe.
        on_progress: Called with the number of finished samples, and n.
        options: Of `features`: kind, sketch, seed, cotangents, params, chunk, verify.

    >>> import numpy as np
    >>> psi = la.ntk.save_features(model, x, "features.npy", sketch=16)
    >>> psi.shape
    (6, 16)
    """
    x = move_samples(model, x)
    n, cotangents = count_samples(x), options.pop("cotangents", None)

    def compute(part: slice) -> Tensor:
        own = {} if cotangents is None else {"cotangents": cotangents[part]}
        return features(model, take_samples(x, part), **own, **options)

    first = compute(slice(0, 1))
    rows = len(first)

    def write(table: NDArray[Any], part: slice) -> None:
        table[part.start * rows : part.stop * rows] = compute(part).cpu().numpy()

    marks = options if cotangents is None else {**options, "cotangents": cotangents}
    work = _Work(model, x, "features", marks, block, (n * rows, first.shape[1]), first)
    return work.run(Path(path), write, on_progress)


@dataclass(frozen=True)
class _Work:
    """A table that is filled stripe by stripe."""

    model: nn.Module
    x: Inputs
    what: str
    options: Mapping[str, Any]
    block: int
    shape: tuple[int, int]
    like: Tensor

    def run(
        self, path: Path, write: Callable[[NDArray[Any], slice], None], on_progress: Progress | None
    ) -> NDArray[Any]:
        if not isinstance(self.block, int) or self.block < 1:
            raise InputError(f"block is {self.block!r}, expected a number of samples, at least 1")
        n, journal = count_samples(self.x), path.with_name(path.name + ".progress")
        mark = self._fingerprint()
        try:
            done = self._read_progress(path, journal, mark)
            if not done:
                replace_file(journal, json.dumps({"done": 0, "of": mark}))
                kind = np.dtype(str(self.like.dtype).removeprefix("torch."))
                np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=self.shape).flush()
            for start in range(done, n, self.block):
                stop = min(start + self.block, n)
                table = np.lib.format.open_memmap(path, mode="r+")
                write(table, slice(start, stop))
                table.flush()  # Rows are on the disk before they count as finished.
                replace_file(journal, json.dumps({"done": stop, "of": mark}))
                if on_progress is not None:
                    on_progress(stop, n)
            journal.unlink(missing_ok=True)
            return np.lib.format.open_memmap(path, mode="r")
        except OSError as error:
            raise as_storage_error(path, error) from error

    def _read_progress(self, path: Path, journal: Path, mark: str) -> int:
        """Number of finished samples; raises if the files belong to another computation."""
        if not journal.exists():
            if path.exists():
                raise InputError(
                    f"{path} exists and is complete; expected a new file: delete it, or read it "
                    "with numpy.load(path, mmap_mode='r')"
                )
            return 0
        try:
            found = json.loads(journal.read_text())
            done, of = int(found["done"]), found["of"]
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{journal} is damaged: delete it and {path.name}") from error
        if of == mark and not path.exists():
            return 0
        if of != mark:
            raise InputError(
                f"{path} was begun with other weights, samples or options; expected the same: "
                f"delete it and {journal.name}"
            )
        return done

    def _fingerprint(self) -> str:
        """Of weights, samples and options."""
        digest = hashlib.sha256(f"{self.what} {self.shape}".encode())
        for name, t in unwrap_compiled(self.model).state_dict().items():
            digest.update(name.encode())
            _update_hash(digest, t)
        if isinstance(self.x, Samples):
            digest.update(self.x.content_hash().encode())
        else:
            digest.update(describe_batch(read_batch(self.x)).encode())
            for t in list_tensors(read_batch(self.x)):
                _update_hash(digest, t)
        for key, value in sorted(self.options.items()):
            if isinstance(value, Tensor):
                _update_hash(digest, value)
            else:
                listed = (
                    list(value)
                    if isinstance(value, Iterable) and not isinstance(value, str)
                    else value
                )
                digest.update(f"{key}={getattr(listed, '__qualname__', listed)}".encode())
        return digest.hexdigest()


def _update_hash(digest: Any, t: Any) -> None:
    if isinstance(t, Tensor):
        digest.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
