"""Pictures that are resized first, against the processor alone."""

import numpy as np
import pytest
import torch
from PIL import Image

from labelahead.models.direct_resize import find_direct_resize

transformers = pytest.importorskip("transformers")


def draw_image(width, height):
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize(
    "processor",
    [
        transformers.ViTImageProcessorPil(size={"height": 48, "width": 32}),
        transformers.BitImageProcessorPil(
            size={"shortest_edge": 40}, crop_size={"height": 28, "width": 28}
        ),
        transformers.CLIPImageProcessorPil(),
    ],
    ids=["fixed", "shortest edge", "clip"],
)
@pytest.mark.parametrize("size", [(300, 201), (117, 350), (90, 90), (20, 31)])
def test_resized_picture_gives_the_numbers_of_the_processor(processor, size):
    resize = find_direct_resize(processor)
    image = draw_image(*size)
    expected = processor(images=[image], return_tensors="pt")["pixel_values"]
    found = processor(images=[resize(image)], do_resize=False, return_tensors="pt")
    assert torch.equal(found["pixel_values"], expected)


def test_processor_that_resizes_otherwise_is_left_alone():
    class Halving(transformers.ViTImageProcessorPil):
        def resize(self, image, size, **options):
            return super().resize(image[:, ::2, ::2], size, **options)

    assert find_direct_resize(Halving()) is None
    assert find_direct_resize(transformers.ViTImageProcessorPil(do_resize=False)) is None
    bounded = {"shortest_edge": 10, "longest_edge": 20}
    assert find_direct_resize(transformers.ViTImageProcessorPil(size=bounded)) is None
