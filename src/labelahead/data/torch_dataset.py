"""A torch data set -> Data, read once and held in memory."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from labelahead.data.arrays import as_values, assemble
from labelahead.data.classes import encode
from labelahead.data.dataset import Answers, Data
from labelahead.data.split import Split
from labelahead.errors import InputError

__all__ = ["from_dataset"]

INPUT_KEYS = ("image", "img", "pixel_values", "inputs", "input", "x", "features", "data")
LABEL_KEYS = ("label", "labels", "target", "targets", "y", "fine_label", "class")
PROBED = 8  # items read twice, to notice a random transform


def from_dataset(
    dataset: Dataset[Any], *, classes: Sequence[str] | None = None, limit: int | None = None
) -> tuple[Data, Answers | None]:
    """Items x, (x, y) or dictionaries; x is taken as it is, 8-bit pictures are standardised.

    Every item is read once and kept, `limit` of them at random if given (seed 0). There is no
    test part: `dataclasses.replace(data, test=positions)` names one.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InputError(f"limit is {limit!r}; expected a whole number of at least 1")
    positions, items, notes = _items(dataset, limit)
    inputs: list[Tensor] = []
    labels: list[Any] = []
    for position, item in zip(positions, items, strict=False):
        x, y = _pair(item, position)
        if inputs and (x.shape != inputs[0].shape or x.dtype != inputs[0].dtype):
            raise InputError(
                f"item {position} is {x.dtype} {tuple(x.shape)} and the first one "
                f"{inputs[0].dtype} {tuple(inputs[0].shape)}; expected equal shapes, so give the "
                "data set a transform that resizes"
            )
        inputs.append(x)
        labels.append(y)
    if not inputs:
        raise InputError("the data set has no items; expected at least one")
    stacked = torch.stack(inputs)
    stacked = stacked.unsqueeze(1) if stacked.ndim == 1 else stacked
    values, more = as_values(stacked, "the data set")
    codes, names, decided = encode(labels, _classes(dataset, classes))
    split = Split(torch.arange(len(values)), torch.empty(0, dtype=torch.int64), ())
    kind = type(dataset).__name__
    data, answers = assemble(
        kind, values, codes, names, split, notes=(*notes, *more, *decided),
        standardise=values.dtype == torch.uint8,
        ids=tuple(str(position) for position, _ in zip(positions, inputs, strict=False)),
    )  # fmt: skip
    return data, answers


def _items(
    dataset: Dataset[Any], limit: int | None
) -> tuple[Sequence[int], Iterator[Any], tuple[str, ...]]:
    """Positions, items in that order, and what was decided."""
    if isinstance(dataset, IterableDataset):
        note = () if limit is None else (f"the first {limit} items of a stream",)
        return range(limit or 2**62), islice(iter(dataset), limit), note
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError(
            f"dataset is a {type(dataset).__name__}; expected a torch Dataset with a length, or "
            "an IterableDataset (for arrays there is from_arrays)"
        )
    n = len(dataset)
    positions: Sequence[int] = range(n)
    notes: tuple[str, ...] = ()
    if limit is not None and limit < n:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
        positions = sorted(order[:limit].tolist())
        notes = (f"{limit} of {n} items kept, at random, seed 0",)
    for position in positions[:PROBED]:
        first, again = (_pair(dataset[position], position)[0] for _ in range(2))
        if first.shape != again.shape or not bool(torch.eq(first, again).all()):
            if bool(first.isnan().any()):
                break  # reported with its position later
            raise InputError(
                f"item {position} differs when read twice: the data set has a random transform; "
                "expected the same input each time, so leave augmentation out"
            )
    return positions, (dataset[position] for position in positions), notes


def _pair(item: Any, position: int) -> tuple[Tensor, Any]:
    """Input and label of one item; the label is None if there is none."""
    if isinstance(item, Mapping):
        key = next((k for k in INPUT_KEYS if k in item), None)
        if key is None:
            raise InputError(
                f"item {position} has the keys {', '.join(map(str, item))}; expected one of "
                f"{', '.join(INPUT_KEYS)}"
            )
        label = next((item[k] for k in LABEL_KEYS if k in item), None)
        return _input(item[key], position), _label(label, position)
    if isinstance(item, tuple | list):
        if len(item) not in (1, 2):
            raise InputError(
                f"item {position} has {len(item)} parts; expected x, (x, y) or a dictionary"
            )
        return _input(item[0], position), _label(item[1] if len(item) == 2 else None, position)
    return _input(item, position), None


def _input(value: Any, position: int) -> Tensor:
    """One input as a tensor; pictures of Pillow as uint8 (C, H, W)."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if hasattr(value, "convert") and hasattr(value, "mode"):
        picture = value if value.mode in ("L", "RGB") else value.convert("RGB")
        array = np.array(picture, dtype=np.uint8)
        return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())
    try:
        return torch.as_tensor(np.array(value))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the input of item {position} is a {type(value).__name__} ({error}); expected a "
            "tensor, an array or a picture, so give the data set a transform"
        ) from error


def _label(value: Any, position: int) -> Any:
    """One label: a number, a name or None."""
    if isinstance(value, Tensor | np.ndarray):
        if value.size != 1 if isinstance(value, np.ndarray) else value.numel() != 1:
            raise InputError(
                f"the label of item {position} has shape {tuple(value.shape)}; expected one class"
            )
        return value.item()
    return value


def _classes(dataset: Any, classes: Sequence[str] | None) -> Sequence[str] | None:
    """The class names given, or those the data set carries."""
    carried = getattr(dataset, "classes", None)
    if classes is not None or not isinstance(carried, list | tuple):
        return classes
    return carried if carried and all(isinstance(name, str) for name in carried) else None
