"""Pictures held in memory: standardised inputs for networks, RGB for backbones and pages."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from labelahead.data.dataset import Images, as_positions, check_size, hashed

__all__ = ["Pixels", "fit", "spread", "to_look_at"]

PIECE = 2048  # items converted at a time, so that no second full copy is needed
VISIBLE = 256  # smaller pictures are enlarged to about that


@dataclass(frozen=True, eq=False)
class Pixels(Images):
    """Pictures (n, C, H, W), uint8 from 0 to `white`, with what standardises their channels."""

    values: Tensor
    mean: Tensor
    std: Tensor
    size: int | None = None
    white: int = 255

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        channels, height, width = self.values.shape[1:]
        return (channels, self.size or height, self.size or width)

    def inputs(self) -> Tensor:
        """All pictures at the wanted size, standardised, float32."""
        out = torch.empty((len(self.values), *self.shape), dtype=torch.float32)
        mean, std = self.mean.view(-1, 1, 1), self.std.view(-1, 1, 1)
        for start in range(0, len(out), PIECE):
            part = self.values[start : start + PIECE].float()
            if self.size is not None:
                part = fit(part, self.size)
            torch.div(part - mean, std, out=out[start : start + PIECE])
        return out

    def batch(self, positions: Tensor, size: int) -> Tensor:
        """The pictures as uint8 (q, 3, size, size); one channel is shown as grey."""
        at = as_positions(positions, len(self.values), "positions")
        check_size(size)
        part = fit(self.values[at].float() * (255 / self.white), size)
        return part.round().clamp(0, 255).to(torch.uint8).expand(-1, 3, -1, -1).contiguous()

    def picture(self, position: int, size: int) -> np.ndarray[Any, Any]:
        """One picture to look at, uint8 (H, W, 3)."""
        at = as_positions([position], len(self.values), "position")
        return to_look_at(self.values[at].float() * (255 / self.white), size)

    def fingerprint(self) -> str:
        """A hash of all the pixels."""
        return hashed(self.values)

    def content(self) -> str:
        """The same: there is no place to it."""
        return hashed(self.values)


def fit(pictures: Tensor, size: int) -> Tensor:
    """The centre square of (q, C, H, W) float pictures, resized to `size`."""
    height, width = pictures.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = pictures[..., top : top + side, left : left + side]
    if side == size or not len(square):
        return square if len(square) else square.new_empty((*square.shape[:2], size, size))
    return functional.interpolate(square, (size, size), mode="bilinear", antialias=True)


def to_look_at(picture: Tensor, size: int) -> np.ndarray[Any, Any]:
    """A picture (1, C, H, W) from 0 to 255 as uint8 (H, W, 3): all of it, in its proportions.

    A small one is enlarged by a whole factor without smoothing: its pixels are what was measured.
    """
    check_size(size)
    longer = max(picture.shape[-2:])
    if longer > size:
        sides = [max(1, round(side * size / longer)) for side in picture.shape[-2:]]
        picture = functional.interpolate(picture, sides, mode="bilinear", antialias=True)
    factor = max(1, min(size, VISIBLE) // longer)
    whole = picture.round().clamp(0, 255).to(torch.uint8).expand(-1, 3, -1, -1)[0]
    shown = whole.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    return np.ascontiguousarray(shown.permute(1, 2, 0).numpy())


def spread(values: Tensor, pool: Tensor, dim: int = 1) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the pool of each entry of dimension `dim` (from 1).

    A constant one gets deviation 1, so that dividing by it is safe.
    """
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    over = tuple(d for d in range(values.ndim) if d != dim)
    # First entry taken off, so that squares of values far from 0 lose no digits.
    shift = values[pool[:1]].double().mean(over, keepdim=True)
    for start in range(0, len(pool), PIECE):
        part = values[pool[start : start + PIECE]].double() - shift
        count += part.numel() // part.shape[dim]
        total = total + part.sum(over)
        squares = squares + part.square().sum(over)
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    centre = mean + shift.flatten()
    # The last digit of a constant is no spread.
    std = torch.where(std <= 1e-7 * centre.abs(), torch.ones_like(std), std)
    return centre.float(), torch.where(std == 0, torch.ones_like(std), std).float()
