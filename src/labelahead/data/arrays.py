"""Arrays, tensors and .npz files -> Data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data.classes import encode
from labelahead.data.dataset import (
    UNKNOWN,
    Answers,
    Data,
    Images,
    as_positions,
    check_size,
    first_not_finite,
    hashed,
)
from labelahead.data.options import Options
from labelahead.data.pixels import Pixels, fit, spread, to_look_at
from labelahead.data.split import Split, choose
from labelahead.errors import InputError

__all__ = ["as_values", "assemble", "from_arrays", "pictures"]


@dataclass(frozen=True, eq=False)
class Values(Images):
    """Inputs held as float32 numbers, to be standardised; shown as pictures if they are some."""

    values: Tensor
    mean: Tensor
    std: Tensor
    low: float = 0.0
    high: float = 1.0
    size: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        shape = tuple(self.values.shape[1:])
        return shape if self.size is None else (shape[0], self.size, self.size)

    def inputs(self) -> Tensor:
        """All inputs, standardised."""
        values = self.values if self.size is None else fit(self.values, self.size)
        if not bool(self.mean.any()) and bool((self.std == 1).all()):
            return values  # taken as they are: no second copy
        column = (-1,) + (1,) * (self.values.ndim - 2) if self.mean.numel() > 1 else ()
        return (values - self.mean.view(column)) / self.std.view(column)

    def batch(self, positions: Tensor, size: int) -> Tensor:
        """The pictures as uint8 (q, 3, size, size), black and white at the extremes found."""
        at = as_positions(positions, len(self.values), "positions")
        check_size(size)
        part = (fit(self.values[at], size) - self.low) * (255 / (self.high - self.low))
        return part.round().clamp(0, 255).to(torch.uint8).expand(-1, 3, -1, -1).contiguous()

    def picture(self, position: int, size: int) -> np.ndarray[Any, Any]:
        """One picture to look at, uint8 (H, W, 3)."""
        at = as_positions([position], len(self.values), "position")
        return to_look_at((self.values[at] - self.low) * (255 / (self.high - self.low)), size)

    def fingerprint(self) -> str:
        """A hash of all the pixels."""
        return hashed(self.values)

    def content(self) -> str:
        """The same: there is no place to it."""
        return hashed(self.values)


def from_arrays(
    inputs: Any,
    labels: Any = None,
    *,
    classes: Sequence[str] | None = None,
    test: Any = None,
    name: str = "arrays",
) -> tuple[Data, Answers | None]:
    """Inputs (n, ...) and perhaps labels (n,), as arrays or tensors.

    Floating inputs are taken as they are and not copied; uint8 pictures (n, H, W), (n, H, W, C)
    or (n, C, H, W) are standardised per channel over the pool. `test` names the positions kept
    for testing. A label of None, NaN or -1 is unknown.
    """
    values, notes = as_values(inputs, "inputs")
    codes, names, more = _labels(labels, classes, len(values))
    if isinstance(test, np.ndarray | Tensor) and test.dtype in (np.bool_, torch.bool):
        if test.shape != (len(values),):
            raise InputError(
                f"test is a mask of shape {tuple(test.shape)}; expected ({len(values)},)"
            )
        test = torch.as_tensor(test).nonzero().flatten()
    at = as_positions([] if test is None else test, len(values), "test")
    at = torch.from_numpy(np.unique(at.numpy()))
    if labels is not None and len(at) and bool((codes[at] == UNKNOWN).any()):
        first = int(at[codes[at] == UNKNOWN][0])
        raise InputError(f"test item {first} has no label; expected one for every test item")
    split = Split(torch.arange(len(values)), at, (*notes, *more))
    scale = values.dtype == torch.uint8
    return assemble(name, values, codes, names, split, standardise=scale)


def assemble(
    name: str,
    values: Tensor,
    codes: Tensor,
    classes: tuple[str, ...],
    split: Split,
    *,
    notes: tuple[str, ...] = (),
    size: int | None = None,
    standardise: bool = True,
    ids: tuple[str, ...] | None = None,
) -> tuple[Data, Answers | None]:
    """The kept items of an array as data and answers."""
    keep = split.keep
    values = values if len(keep) == len(values) else values[keep]
    pool = torch.ones(len(keep), dtype=torch.bool)
    pool[split.test] = False
    at = pool.nonzero().flatten()
    if not len(at):
        raise InputError("every item is in test; expected some that may be asked for")
    held: Pixels | Values
    if values.dtype == torch.uint8:
        held = Pixels(values, *spread(values, at), size)
    elif standardise:
        held = Values(values, *_scales(values, at), *_extremes(values), size)
    else:
        held = Values(values, torch.zeros(()), torch.ones(()), *_extremes(values), size)
    image = values.ndim == 4
    ids = ids or tuple(str(int(i)) for i in keep)
    data = Data(
        name=name,
        classes=classes,
        test=split.test,
        ids=ids,
        kind="image" if image else "vector",
        notes=(*notes, *split.notes),
        images=held if image and values.shape[1] in (1, 3) else None,
        shape=held.shape,
        build=held.inputs,
    )
    labels = codes[keep]
    return data, Answers(labels, ids) if bool((labels >= 0).any()) else None


def pictures(
    name: str,
    images: np.ndarray[Any, Any],
    labels: np.ndarray[Any, Any],
    train: int,
    classes: tuple[str, ...],
    options: Options,
    notes: tuple[str, ...] = (),
) -> tuple[Data, Answers | None]:
    """A known set of uint8 pictures (n, C, H, W) whose first `train` are the pool."""
    codes = torch.from_numpy(labels.astype(np.int64))
    official = torch.arange(len(codes)) >= train
    split = choose(codes, options, official)
    return assemble(
        name, torch.from_numpy(images), codes, classes, split, notes=notes, size=options.size
    )


def as_values(inputs: Any, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Inputs as a tensor: uint8 (n, C, H, W) for 8-bit pictures, float32 for the rest."""
    try:
        values = inputs.detach().cpu() if isinstance(inputs, Tensor) else _tensor(inputs)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} cannot be read as numbers ({error}); expected an array (n, ...) of equal rows"
        ) from error
    if values.ndim < 2 or 0 in values.shape or values.dtype.is_complex:
        raise InputError(
            f"{name} is {values.dtype} of shape {tuple(values.shape)}; expected real numbers "
            "(n, ...), at least one item, with at least one number each"
        )
    notes: list[str] = []
    if values.dtype == torch.uint8 and values.ndim == 3:
        values = values.unsqueeze(1)
    if values.ndim == 4 and values.shape[1] not in (1, 3) and values.shape[-1] in (1, 3, 4):
        values = values.permute(0, 3, 1, 2).contiguous()
        notes.append(f"{name}: last dimension taken for the channels and moved to the front")
    if values.dtype == torch.uint8 and values.ndim == 4:
        return values, tuple(notes)
    as_float = values.to(torch.float32)
    bad = first_not_finite(as_float)
    if bad is not None:
        large = bool(torch.isfinite(values[bad].double()).all())
        what = "a number too large for float32" if large else "NaN or infinity"
        raise InputError(f"{name}, item {bad}, holds {what}; expected finite numbers; repair it")
    if values.ndim == 3 or values.ndim > 4:
        notes.append(f"{name}: shape {tuple(values.shape[1:])} is no picture, so taken as it is")
    return as_float, tuple(notes)


def _tensor(inputs: Any) -> Tensor:
    """Anything numpy can read as a tensor that owns writable memory."""
    array = np.asarray(inputs)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"its type is {array.dtype}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.float64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == np.longdouble:
        array = array.astype(np.float64)
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _labels(
    labels: Any, classes: Sequence[str] | None, n: int
) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """Encoded labels, all unknown where there are none."""
    if labels is None:
        return torch.full((n,), UNKNOWN), tuple(classes or ()), ()
    codes, names, notes = encode(labels, classes)
    if len(codes) != n:
        raise InputError(
            f"there are {n} inputs and {len(codes)} labels; expected one label for each input"
        )
    return codes, names, notes


def _scales(values: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation: per channel of pictures, per feature of vectors, else overall."""
    if values.ndim in (2, 4):
        return spread(values, pool)
    mean, std = spread(values.flatten().view(len(values), 1, -1), pool)
    return mean.squeeze(0), std.squeeze(0)


def _extremes(values: Tensor) -> tuple[float, float]:
    """What to show as black and as white."""
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 255:
        return 0.0, 1.0 if high <= 1 else 255.0
    return low, high if high > low else low + 1.0
