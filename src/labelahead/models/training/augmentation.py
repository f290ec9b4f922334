"""Random crops and horizontal flips of the images of a training batch."""

import torch
from torch import Tensor
from torch.nn import functional as F

from labelahead.batching import Batch, describe_batch
from labelahead.errors import InputError

__all__ = ["augment_pictures", "compute_padding", "require_pictures"]

# An image is padded by its side divided by this: 4 of 32 pixels, as is usual for CIFAR-10.
PADDING_DIVISOR = 8


def compute_padding(side: int) -> int:
    """Return the pixels added at both ends of a side: an eighth of it, at least one."""
    return max(1, side // PADDING_DIVISOR)


def augment_pictures(pictures: Tensor, kind: str, rng: torch.Generator) -> Tensor:
    """Return images (n, channels, height, width), each cropped and flipped at random.

    Args:
        pictures: (n, channels, height, width), not modified.
        kind: "crop" pads each image with zeros (see `compute_padding`) and crops its original size
            at a random position; "flip" mirrors it horizontally with probability 1/2; "crop-flip"
            does both.
        rng: draws the rows, the columns and the flips of the batch, in this order.

    >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> augment_pictures(x, "flip", torch.Generator().manual_seed(0)).flatten().tolist()
    [1.0, 0.0, 3.0, 2.0]
    """
    n, channels, height, width = pictures.shape
    down, right = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64)
    if "crop" in kind:
        tall, wide = compute_padding(height), compute_padding(width)
        down = torch.randint(2 * tall + 1, (n,), generator=rng)
        right = torch.randint(2 * wide + 1, (n,), generator=rng)
        pictures = F.pad(pictures, (wide, wide, tall, tall))
    rows = down[:, None] + torch.arange(height)
    columns = right[:, None] + torch.arange(width)
    if "flip" in kind:
        flipped = torch.rand(n, generator=rng) < 0.5
        columns = torch.where(flipped[:, None], columns.flip(1), columns)
    item = torch.arange(n)[:, None, None, None]
    channel = torch.arange(channels)[None, :, None, None]
    at = (item, channel, rows[:, None, :, None], columns[:, None, None, :])
    return pictures[tuple(i.to(pictures.device) for i in at)]


def require_pictures(batch: Batch, kind: str) -> None:
    """Raise `InputError` unless a batch is one floating-point tensor (n, channels, height, width)."""
    if isinstance(batch, Tensor) and batch.dim() == 4 and batch.is_floating_point():
        return
    raise InputError(
        f"training.augment is {kind!r}, but the network sees inputs of shape {describe_batch(batch)}; "
        "expected pictures "
        "(n, channels, height, width) of real numbers: leave augment out, or train on pixels "
        "(embedding 'none')"
    )
