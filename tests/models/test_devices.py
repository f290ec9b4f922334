"""Encoders on a pretended device (tests/support/devices.py), and in half precision."""

from dataclasses import replace

import pytest
import torch

from labelahead.models.encoder_names import AUDIO, IMAGE, TEXT
from labelahead.models.encoders import choose_batch_size, load_encoder
from tests.support.devices import ALLOWED_EXITS, PretendedDevice

CASES = [
    ("vit", IMAGE),
    ("dinov2", IMAGE),
    ("clip", IMAGE),
    ("clip", TEXT),
    ("bert", TEXT),
    ("bert#pooler", TEXT),
    ("wav2vec2", AUDIO),
    ("whisper", AUDIO),
    ("ast", AUDIO),
    ("clap", AUDIO),
]
EXITS = (*ALLOWED_EXITS, "models/encoders.py:_require_features")  # features come back to the CPU


@pytest.fixture
def items(images):
    generator = torch.Generator().manual_seed(0)
    waves = [(torch.randn(n, generator=generator), 16_000) for n in (4000, 9000, 4000)]
    return {IMAGE: images, TEXT: ["the cat", "a dog sat", "the dog sat a cat"], AUDIO: waves}


@pytest.mark.parametrize("float64", [True, False], ids=["cuda-like", "mps-like"])
@pytest.mark.parametrize(("name", "modality"), CASES)
def test_encoder_agrees_with_the_cpu(name, modality, float64, folder, items, open_device):
    want = load_encoder(str(folder / name), modality).encode(items[modality])
    with open_device(float64=float64, allowed_exits=EXITS) as device:
        encoder = load_encoder(str(folder / name), modality, device=str(device.device))
        got = encoder.encode(items[modality])
        streamed = encoder.encode_all(items[modality])
    assert encoder.device == device.device
    for features in (got, streamed):
        assert (features.device.type, features.dtype) == ("cpu", torch.float32)
        torch.testing.assert_close(features, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "modality"), CASES)
def test_features_of_half_precision_are_float32_and_near(name, modality, folder, items):
    """As on a GPU, where an encoder runs in bfloat16."""
    encoder = load_encoder(str(folder / name), modality)
    want = encoder.encode(items[modality])

    class Half:
        width, pooling, prepare = encoder.width, "", staticmethod(encoder.backend.prepare)

        def encode(self, given):
            with torch.autocast("cpu", torch.bfloat16):
                return encoder.backend.encode(given)

    got = replace(encoder, backend=Half()).encode(items[modality])
    assert got.dtype == torch.float32
    assert not torch.equal(got, want)
    assert float(torch.cosine_similarity(got, want).min()) > 0.99


def test_batch_that_does_not_fit_on_the_device_is_halved(folder, items, caplog):
    encoder = load_encoder(str(folder / "vit"), IMAGE)
    want = encoder.encode(items[IMAGE])
    pixels = encoder.backend.prepare(items[IMAGE][:1])["pixel_values"]
    room = 2 * pixels.numel() * 4
    with PretendedDevice(allowed_exits=EXITS, max_tensor_bytes=room) as device:
        there = load_encoder(str(folder / "vit"), IMAGE, device=str(device.device))
        torch.testing.assert_close(there.encode(items[IMAGE]), want, rtol=1e-4, atol=1e-4)
    assert "3 items do not fit into memory, halving" in caplog.text


def test_batch_size_follows_the_free_memory_of_a_gpu(monkeypatch):
    for free, size in ((100 * 2**30, 64), (2**30, 8), (0, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 0))
        assert choose_batch_size(torch.device("cuda")) == size
