"""Encoding batches and streams of items, on tiny encoders with random weights."""

from dataclasses import replace

import pytest
import torch

from labelahead.errors import InputError
from labelahead.models.encoder_names import AUDIO, IMAGE, TEXT
from labelahead.models.encoders import load_encoder

pytest.importorskip("transformers")
SENTENCES = ["the cat", "a dog sat", "the dog sat a cat"]


def test_text_encoder_truncates_long_texts(folder):
    encoder = load_encoder(str(folder / "bert"), TEXT)
    assert torch.isfinite(encoder.encode(["cat " * 500])).all()


def test_audio_features_do_not_depend_on_the_batch(folder):
    encoder = load_encoder(str(folder / "wav2vec2"), AUDIO)
    generator = torch.Generator().manual_seed(0)
    waves = [(torch.randn(n, generator=generator), 16_000) for n in (4000, 9000, 4000)]
    alone = torch.cat([encoder.encode([wave]) for wave in waves])
    assert torch.allclose(encoder.encode(waves), alone, atol=1e-5)
    slow = (torch.sin(torch.arange(8000) / 40), 8000)
    fast = (torch.sin(torch.arange(16_000) / 80), 16_000)
    near = encoder.encode([slow, fast])
    assert torch.cosine_similarity(near[0], near[1], dim=0) > 0.99


def test_long_sounds_are_encoded_in_smaller_batches(folder, monkeypatch):
    encoder = load_encoder(str(folder / "wav2vec2"), AUDIO)
    waves = [(torch.sin(torch.arange(4000) * (i + 1) / 99), 16_000) for i in range(5)]
    together = encoder.encode(waves)
    counts = []
    encode = encoder.backend.encode

    def count_and_encode(given):
        counts.append(len(given["input_values"]))
        return encode(given)

    monkeypatch.setattr(encoder.backend, "encode", count_and_encode)
    encoder = replace(encoder, max_audio_numbers=8000)
    assert torch.allclose(encoder.encode(waves), together, atol=1e-5)
    assert counts == [2, 2, 1]


def test_features_of_another_width_are_refused(folder):
    encoder = load_encoder(str(folder / "bert"), TEXT)
    wide = replace(encoder, width=encoder.width + 1)
    with pytest.raises(InputError, match=r"returned \(3, 32\) for 3 items; expected \(3, 33\)"):
        wide.encode(SENTENCES)


def test_out_of_memory_halves_the_batch(folder, images):
    """A backend that holds two items, as a small GPU would."""
    encoder = load_encoder(str(folder / "vit"), IMAGE)

    class Small:
        width, pooling, prepare = encoder.width, "cls", staticmethod(encoder.backend.prepare)

        def encode(self, given):
            if len(given["pixel_values"]) > 2:
                raise torch.OutOfMemoryError("no room")
            return encoder.backend.encode(given)

    halved = replace(encoder, backend=Small())
    assert torch.allclose(halved.encode(images), encoder.encode(images), atol=1e-5)


def test_encode_refuses_what_is_not_finite(folder):
    encoder = load_encoder(str(folder / "bert"), TEXT)
    with torch.no_grad():
        next(encoder.backend.model.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match="NaN or infinity for 3 of 3 items"):
        encoder.encode(SENTENCES)
