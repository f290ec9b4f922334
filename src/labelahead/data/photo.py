"""One picture file of any kind -> RGB pixels."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from labelahead.data.extras import need
from labelahead.errors import InputError

__all__ = ["SUFFIXES", "decode", "decode_whole", "without_warnings"]

SUFFIXES = frozenset((
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp",
    ".ppm", ".pgm", ".pbm", ".pnm", ".avif",
))  # fmt: skip
MOST_PIXELS = 178_000_000  # Pillow itself refuses what is a little larger

Array = np.ndarray[Any, Any]


@contextmanager
def without_warnings() -> Iterator[None]:
    """Pillow warns from 89 megapixels on, where all is well up to 178, and of odd metadata."""
    warning = need("PIL.Image", "app", "reading pictures").DecompressionBombWarning
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", warning)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
        yield


def decode(stream: BinaryIO, size: int) -> Array:
    """The picture, shorter side resized and centre cropped, as uint8 (3, size, size)."""
    pil = need("PIL.Image", "app", "reading pictures")
    upright = _upright(stream, size, pil)
    width, height = upright.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    square = upright.resize(
        (size, size),
        pil.Resampling.BILINEAR,
        box=(left, top, left + side, top + side),
        reducing_gap=3.0,
    )
    return np.ascontiguousarray(np.asarray(square, dtype=np.uint8).transpose(2, 0, 1))


def decode_whole(stream: BinaryIO, size: int) -> Array:
    """The whole picture, longer side at most `size`, as uint8 (H, W, 3)."""
    pil = need("PIL.Image", "app", "reading pictures")
    upright = _upright(stream, size, pil)
    upright.thumbnail((size, size), pil.Resampling.BICUBIC, reducing_gap=3.0)
    return np.ascontiguousarray(np.asarray(upright, dtype=np.uint8))


def _upright(stream: BinaryIO, size: int, pil: Any) -> Any:
    """RGB and the right way up, not much larger than needed."""
    ops = need("PIL.ImageOps", "app", "reading pictures")
    with pil.open(stream) as image:
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise InputError(
                f"{width} x {height} pixels; expected at most {MOST_PIXELS // 10**6} million"
            )
        image.draft(None, (2 * size, 2 * size))  # JPEG is decoded smaller right away: quicker
        image.load()
        return _rgb(ops.exif_transpose(image), pil)


def _rgb(image: Any, pil: Any) -> Any:
    """Any mode as RGB: transparency on white, deep grey scaled to 8 bits."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        return pil.fromarray(_eight_bit(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        over = image.convert("RGBA")
        white = pil.new("RGBA", over.size, (255, 255, 255, 255))
        return pil.alpha_composite(white, over).convert("RGB")
    return image.convert("RGB")


def _eight_bit(deep: Array) -> Array:
    """Grey values of 16 or 32 bits as 8 bits; Pillow's own conversion would clip them."""
    values = deep.astype(np.float64)
    if not np.isfinite(values).all():
        raise InputError("holds NaN or infinity; expected finite grey values")
    low, high = values.min(), values.max()
    if deep.dtype.kind == "f" and low >= 0 and high <= 1:
        values = values * 255
    elif low >= 0 and high <= 65535 and (high > 255 or deep.dtype.itemsize == 2):
        values = values / 257
    elif low < 0 or high > 255:
        values = (values - low) * (255 / (high - low))
    return values.round().astype(np.uint8)
