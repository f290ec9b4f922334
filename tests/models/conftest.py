"""Tiny encoders for the tests of this folder."""

import pytest
import torch
from PIL import Image


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of tiny encoders with random weights that the libraries themselves saved."""
    pytest.importorskip("transformers")
    from tests.support.tiny_encoders import save_tiny_encoders

    return save_tiny_encoders(tmp_path_factory.mktemp("encoders"))


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (3, 40, 50, 3), dtype=torch.uint8, generator=generator)
    return [Image.fromarray(one.numpy()) for one in pixels]
