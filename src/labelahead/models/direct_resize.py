"""Resize pictures with Pillow before a processor of transformers sees them.

The processors that use Pillow convert each picture to an array in full, back to a picture, resize
it and convert the result: for a photograph the conversions take longer than the resizing. A picture
that is resized first gives the same numbers; whether it does is checked on examples.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from labelahead.errors import import_extra

__all__ = ["find_direct_resize"]

EXAMPLE_SIZES = ((331, 257), (190, 407), (61, 48))  # width and height; odd, both orientations


def find_direct_resize(processor: Any) -> Callable[[Any], Any] | None:
    """Return a function that resizes a PIL image in RGB as an image processor does.

    `processor(function(image), do_resize=False)` then equals `processor(image)`.

    Args:
        processor: An image processor of transformers.

    Returns:
        None if the processor does something else, or gives other numbers on the examples.
    """
    size = getattr(processor, "size", None)
    resample = getattr(processor, "resample", None)
    if not getattr(processor, "do_resize", False) or size is None or resample is None:
        return None
    given = {key: value for key, value in dict(size).items() if value is not None}
    if set(given) == {"height", "width"}:

        def resize(image: Any) -> Any:
            return image.resize((given["width"], given["height"]), resample)
    elif set(given) == {"shortest_edge"}:

        def resize(image: Any) -> Any:
            edge, shortest = given["shortest_edge"], min(image.size)
            new = tuple(edge if e == shortest else int(edge * e / shortest) for e in image.size)
            return image.resize(new, resample)
    else:
        return None
    return resize if _gives_the_same(processor, resize) else None


def _gives_the_same(processor: Any, resize: Callable[[Any], Any]) -> bool:
    """Return whether the processor's numbers are the same, bit for bit, for some pictures."""
    pil = import_extra("PIL.Image", "photos", "images")
    rng = np.random.default_rng(0)
    for width, height in EXAMPLE_SIZES:
        image = pil.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        try:
            whole = processor(images=[image], return_tensors="pt")
            short = processor(images=[resize(image)], do_resize=False, return_tensors="pt")
        except Exception:  # a processor of its own kind: it does everything itself
            return False
        if set(whole) != set(short) or not all(torch.equal(whole[k], short[k]) for k in whole):
            return False
    return True
