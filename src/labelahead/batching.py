"""Model inputs: a tensor, a tuple for `model(*x)` or a mapping for `model(**x)`, and many samples.

A tensor (n, ...) holds n samples; an array is taken as a tensor that shares its memory. `Samples`
does the same for every other form: it has a length,
can be indexed by positions and moved to a device. It holds a mapping or tuple in memory, and reads
the items of a data set when they are needed.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler, default_collate

from labelahead.errors import InputError

__all__ = [
    "Batch",
    "Inputs",
    "Samples",
    "as_inputs",
    "call_model",
    "count_samples",
    "describe_batch",
    "list_tensors",
    "load_inputs",
    "map_tensors",
    "read_batch",
    "share_array",
    "take_samples",
]

Batch = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
"""A tensor, a tuple for `model(*x)` or a mapping for `model(**x)`; the samples come first."""

# Keys that no strategy may see, and that make a network of transformers return its loss.
LABEL_KEYS = ("label", "labels")
DEFAULT_BATCH_ROWS = 256  # samples per batch when all samples are read once


class Samples:
    """Samples that are not a single tensor, indexed by position like the rows of a tensor.

        Samples(tokenizer(texts, padding=True, return_tensors="pt"))  # mapping of tensors (n, ...)
        Samples(dataset, collate)  # read in batches, never held in memory as a whole

    Args:
        source: a mapping or tuple of tensors, or a data set with a length and items by number, as
            in torch and Hugging Face.
        collate: turns a list of items into the input of the network, samples first and without
            labels. Default: torch's `default_collate`.

    Raises:
        InputError: if the source has no items, holds labels or non-finite numbers, or is random.

    >>> import torch
    >>> import labelahead as la
    >>> words = la.Samples({"input_ids": torch.ones(5, 7), "attention_mask": torch.ones(5, 7)})
    >>> len(words)
    5
    """

    def __init__(self, source: Any, collate: Callable[[list[Any]], Any] | None = None) -> None:
        self._batch: Batch | None = None
        self._device: torch.device | str | None = None
        self._dtype: torch.dtype | None = None
        if collate is None and isinstance(source, Mapping | tuple):
            self._batch = _check_batch(source, None)
            return
        if (
            isinstance(source, Tensor)
            or not hasattr(source, "__getitem__")
            or not hasattr(source, "__len__")
        ):
            raise InputError(
                f"source is a {type(source).__name__}; expected a mapping or tuple of tensors, or "
                "a data set with a "
                "length and items by number (pass a tensor itself, without Samples)"
            )
        if not len(source):
            raise InputError("the data set has no items; expected at least one")
        self._source = source
        self._collate = collate or default_collate
        self._positions = torch.arange(len(source))
        first, again = (list_tensors(self[:1].read()) for _ in range(2))
        if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
            raise InputError(
                "item 0 differs when read twice: the data set or `collate` is random; expected "
                "the same each time: "
                "turn off augmentation"
            )

    def __len__(self) -> int:
        return len(self._positions) if self._batch is None else count_samples(self._batch)

    def __getitem__(self, at: Tensor | slice) -> "Samples":
        """Select samples by positions (q,), a mask (n,) or a slice; reads no item of a data set."""
        if self._batch is None:
            index = at.cpu() if isinstance(at, Tensor) else at
            return self._copy_with(_positions=self._positions[index])
        return self._copy_with(_batch=take_samples(self._batch, at))

    def to(self, *, device: torch.device | str, dtype: torch.dtype | None = None) -> "Samples":
        """Move to a device; floating-point tensors are cast to `dtype` if one is given, integers are not."""
        if self._batch is None:
            return self._copy_with(_device=device, _dtype=dtype or self._dtype)
        return self._copy_with(_batch=_move_tensors(self._batch, device, dtype))

    @property
    def is_in_memory(self) -> bool:
        """Whether the samples are held in memory."""
        return self._batch is not None

    def read(self) -> Batch:
        """Return all samples as one batch, in the form the network takes."""
        if self._batch is not None:
            return self._batch
        at = self._positions.tolist()
        fetch = getattr(
            self._source, "__getitems__", None
        )  # as torch's own loader has it: one call for many
        items = list(fetch(at)) if callable(fetch) else [self._source[i] for i in at]
        batch = _check_batch(self._collate(items), len(at))
        return batch if self._device is None else _move_tensors(batch, self._device, self._dtype)

    def iter_batches(self, rows: int = DEFAULT_BATCH_ROWS) -> Iterator[Batch]:
        """Yield the samples in batches of at most `rows`."""
        return (self[start : start + rows].read() for start in range(0, len(self), rows))

    def content_hash(self) -> str:
        """Return a hash of all samples."""
        digest = hashlib.sha256()
        for batch in self.iter_batches():
            digest.update(describe_batch(batch).encode())
            for t in list_tensors(batch):
                digest.update(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _copy_with(self, **changes: Any) -> "Samples":
        """Return a copy with other attributes."""
        other = object.__new__(Samples)
        vars(other).update(vars(self) | changes)
        return other


Inputs = Batch | Samples


def as_inputs(x: Any) -> Tensor | Samples:
    """Return a tensor unchanged, an array as a tensor, a mapping or tuple of tensors as `Samples`.

    Raises:
        InputError: for any other type.
    """
    if isinstance(x, Tensor | Samples):
        return x
    if isinstance(x, np.ndarray):
        return share_array(x)
    if isinstance(x, Mapping | tuple):
        return Samples(x)
    raise InputError(
        f"inputs are a {type(x).__name__}; expected a tensor or an array (n, ...), a mapping or "
        "tuple of tensors, or labelahead.Samples(dataset, collate)"
    )


def load_inputs(data: Any) -> Inputs:
    """Return the inputs of a network from the forms in which torch users have their data.

    Tensors, tuples, mappings and `Samples` are returned unchanged, arrays as tensors. A data set is
    read when needed, and so is that of a `DataLoader`, in its order. Another iterable yields batches
    and is read at once. Labels of data sets and batches are left out: the last of several tensors
    if it has one number per sample, and the keys "label" and "labels".

    Raises:
        InputError: for a loader that shuffles, and for any other type.
    """
    if isinstance(data, Tensor | Samples | Mapping | tuple):
        return data
    if isinstance(data, np.ndarray):
        return share_array(data)
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        if not isinstance(data.sampler, SequentialSampler):
            raise InputError(
                f"the loader draws its samples by a {type(data.sampler).__name__}, so that rows "
                "have no fixed order: use DataLoader(..., shuffle=False), or give the data set"
            )
        collate = data.collate_fn
        return Samples(data.dataset, lambda items: _drop_labels(collate(items)))
    if isinstance(data, Iterable) and (isinstance(data, list) or not hasattr(data, "__len__")):
        return _join_batches([_drop_labels(batch) for batch in data])
    if isinstance(data, DataLoader):
        return _join_batches([_drop_labels(batch) for batch in data])
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return Samples(data, lambda items: _drop_labels(default_collate(items)))
    raise InputError(
        f"inputs are a {type(data).__name__}; expected a tensor or array (n, ...), a tuple or "
        "mapping of tensors, a Dataset or DataLoader, an iterable of batches, or labelahead.Samples"
    )


def _drop_labels(batch: Any) -> Any:
    """Leave out the labels of a batch (see `load_inputs`)."""
    if isinstance(batch, np.ndarray):
        return share_array(batch)
    if isinstance(batch, Mapping):
        return {k: v for k, v in batch.items() if k not in LABEL_KEYS}
    if isinstance(batch, list | tuple) and batch:
        parts = [torch.as_tensor(part) for part in batch]
        kept = parts[:-1] if len(parts) > 1 and parts[-1].ndim <= 1 else parts
        return kept[0] if len(kept) == 1 else tuple(kept)
    return batch


def _join_batches(batches: list[Any]) -> Inputs:
    """Join batches of one form to one."""
    if not batches:
        raise InputError("the iterable yields no batch; expected at least one")
    first = batches[0]
    if any(type(batch) is not type(first) for batch in batches):
        kinds = sorted({type(batch).__name__ for batch in batches})
        raise InputError(f"the batches are of several types ({', '.join(kinds)}); expected one")
    if isinstance(first, Tensor):
        return torch.cat(batches)
    if isinstance(first, Mapping):
        joined = {key: torch.cat([batch[key] for batch in batches]) for key in first}
        return Samples(joined)
    if isinstance(first, tuple):
        return Samples(tuple(torch.cat(parts) for parts in zip(*batches, strict=True)))
    raise InputError(
        f"the iterable yields a {type(first).__name__}; expected batches: tensors (q, ...), tuples "
        "or mappings of them"
    )


def share_array(x: NDArray[Any]) -> Tensor:
    """Return an array (n, ...) as a tensor on the same memory, or on the same file if it is mapped.

    Raises:
        InputError: if its entries are not numbers, or not laid out as torch reads them.
    """
    try:
        with warnings.catch_warnings():
            # A file mapped for reading is not writable. Inputs are never written to.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(x)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"inputs are an array {x.shape} of {x.dtype}, which torch cannot read ({error}); "
            "expected numbers such as float16 or float32 in native byte order, without negative "
            "strides: numpy.ascontiguousarray(x, dtype=numpy.float32)"
        ) from error


def list_tensors(x: Batch) -> list[Tensor]:
    """Return the tensors of a batch, in order."""
    if isinstance(x, Tensor):
        return [x]
    if isinstance(x, Mapping):
        return list(x.values())
    if isinstance(x, tuple):
        return list(x)
    raise InputError(
        f"expected a tensor, a tuple of tensors or a mapping of tensors as input, got "
        f"{type(x).__name__}: torch.as_tensor(x) turns an array into a tensor"
    )


def count_samples(x: Inputs) -> int:
    """Return the number of samples."""
    return len(x) if isinstance(x, Tensor | Samples) else len(list_tensors(x)[0])


def map_tensors(x: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Apply a function to every tensor of a batch, keeping its form."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, Mapping):
        return {k: change(t) for k, t in x.items()}
    return tuple(change(t) for t in x)


def take_samples(x: Inputs, index: Tensor | slice) -> Any:
    """Return the samples of `x` at `index`, keeping its form."""
    return x[index] if isinstance(x, Samples) else map_tensors(x, lambda t: t[index])


def read_batch(x: Inputs) -> Batch:
    """Return the input in the form the network takes, reading `Samples` if necessary."""
    return x.read() if isinstance(x, Samples) else x


def call_model(call: Callable[..., Any], x: Batch) -> Any:
    """Call a network and return its output tensor.

    Args:
        call: the network.
        x: its input: a tensor, a tuple for `call(*x)` or a mapping for `call(**x)`.

    Returns:
        The output itself, its `logits` if it has some, or the first entry of a tuple.
    """
    out = call(x) if isinstance(x, Tensor) else call(**x) if isinstance(x, Mapping) else call(*x)
    if isinstance(out, Mapping) and "logits" in out:
        return out["logits"]
    out = getattr(out, "logits", out)
    return out[0] if isinstance(out, tuple) and out else out


def describe_batch(x: Batch) -> str:
    """Describe the shapes and dtypes of a batch, for messages."""
    names = [f"{key} " for key in x] if isinstance(x, Mapping) else [""] * len(list_tensors(x))
    return ", ".join(
        f"{name}{tuple(t.shape)} {t.dtype}" for name, t in zip(names, list_tensors(x), strict=True)
    )


def _move_tensors(x: Batch, device: torch.device | str, dtype: torch.dtype | None) -> Batch:
    """Move a batch to a device, casting floating-point tensors only; `dtype` None casts none."""
    return map_tensors(
        x, lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else t.dtype)
    )


def _check_batch(batch: Any, n: int | None) -> Batch:
    """Check that a batch holds n finite samples without labels; n is None for any number."""
    if isinstance(batch, list):
        batch = tuple(batch)
    if isinstance(batch, Mapping) and any(key in LABEL_KEYS for key in batch):
        raise InputError(
            f"the inputs hold {', '.join(map(repr, batch))}; expected what the network may see, "
            "without labels: leave them out, and pass them to `teach`"
        )
    parts = list_tensors(batch) if isinstance(batch, Tensor | Mapping | tuple) else []
    if not parts or not all(isinstance(t, Tensor) for t in parts):
        inside = (
            {k: type(t).__name__ for k, t in batch.items()}
            if isinstance(batch, Mapping)
            else type(batch).__name__
        )
        raise InputError(
            f"the inputs are {inside}; expected a tensor, or a tuple or mapping of tensors: use "
            'return_tensors="pt", with_format("torch"), or a `collate` that makes them'
        )
    sizes = [len(t) if t.ndim else 0 for t in parts]
    if set(sizes) != {sizes[0] if n is None else n} or not sizes[0]:
        wanted = "the same number of samples" if n is None else f"{n} samples"
        raise InputError(
            f"the inputs are {describe_batch(batch)}; expected {wanted}, at least one, first in every "
            "tensor"
        )
    for t in parts:
        if t.is_floating_point() and not bool(torch.isfinite(t).all()):
            bad = int((~torch.isfinite(t.reshape(len(t), -1))).any(1).sum())
            raise InputError(
                f"inputs hold NaN or infinity in {bad} of {len(t)} samples; expected finite "
                "numbers: repair or drop "
                "them"
            )
    return map_tensors(batch, Tensor.detach)
