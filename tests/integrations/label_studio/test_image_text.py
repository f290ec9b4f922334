"""Embeddings of images with a text."""

import pytest
import torch
from PIL import Image

from labelahead.integrations.label_studio.image_text import PICTURES_VARIABLE, picture_and_text
from labelahead.models import image_encoder as backbone
from labelahead.models import sentence_encoder as sentences


@pytest.mark.skipif(
    not (backbone.is_image_encoder_available() and sentences.is_sentence_encoder_available()),
    reason="needs pretrained networks",
)
def test_picture_and_text_concatenates_image_and_text_features(tmp_path, monkeypatch):
    monkeypatch.setenv(PICTURES_VARIABLE, str(tmp_path))
    for name, colour in (("1.png", (250, 0, 0)), ("2.png", (0, 0, 250))):
        Image.new("RGB", (64, 64), colour).save(tmp_path / name)
    features = picture_and_text(["soup\n\n1.png", "soup\n\n2.png", "a rocket\n\n1.png"])
    assert features.shape == (3, 1280 + 384)
    assert torch.allclose(features[0, 1280:], features[1, 1280:], atol=1e-5)
    assert torch.allclose(features[0, :1280], features[2, :1280], atol=1e-5)
    assert not torch.allclose(features[0, :1280], features[1, :1280], atol=1e-3)
    assert torch.allclose(features.square().sum(1), torch.full((3,), 2.0), atol=1e-4)
