"""Embedding of pictures with a text: image and sentence embeddings side by side."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from labelahead.data.file_tree import FileTree
from labelahead.data.folder import ImageFiles
from labelahead.models import embed_images
from labelahead.models.sentence_encoder import embed_texts

__all__ = ["PICTURES_VARIABLE", "picture_and_text"]

# environment variable with the folder of the pictures; the worker process inherits it
PICTURES_VARIABLE = "LABELAHEAD_LABEL_STUDIO_PICTURES"
IMAGE_PIXELS = 128


def picture_and_text(items: Sequence[str]) -> Tensor:
    """Return (n, 1280 + 384) embeddings; both parts are normalised.

    items: texts whose last line is the name of the picture.
    """
    texts, _, names = zip(*(item.rpartition("\n\n") for item in items), strict=True)
    root = Path(os.environ[PICTURES_VARIABLE])
    photos = ImageFiles(
        FileTree(root, names, (), (), is_zip=False, links=False), names, IMAGE_PIXELS
    )
    image_features = embed_images(
        photos, len(names), cache=None, size=IMAGE_PIXELS, standardised=False
    )
    unit = partial(torch.nn.functional.normalize, dim=1)
    return torch.cat([unit(image_features), unit(embed_texts(texts, cache=None))], 1)
