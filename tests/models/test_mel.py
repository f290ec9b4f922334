"""Statistics of log-mel bands."""

import cmath
import math

import numpy as np
import torch

from labelahead.models.mel import (
    BAND_COUNT,
    HOP_SAMPLES,
    MEL_WIDTH,
    MIN_BAND_POWER,
    WINDOW_SAMPLES,
    compute_mel_statistics,
    embed_waves,
)
from tests.support.sounds import make_sound

RATE = 16_000


def naive_statistics(samples):
    """Return the statistics in float64 by the definition of the Fourier transform, band by band."""
    n = WINDOW_SAMPLES
    window = [0.5 - 0.5 * math.cos(2 * math.pi * t / (n - 1)) for t in range(n)]
    roots = np.array(
        [[cmath.exp(-2j * math.pi * k * t / n) for t in range(n)] for k in range(n // 2 + 1)]
    )

    def to_hertz(mel):
        return 700 * (10 ** (mel / 2595) - 1)

    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = [to_hertz(top * i / (BAND_COUNT + 1)) for i in range(BAND_COUNT + 2)]
    rows = []
    for start in range(0, len(samples) - n + 1, HOP_SAMPLES):
        frame = np.array([samples[start + t] * window[t] for t in range(n)])
        power = np.abs(roots @ frame) ** 2 / n
        bands = []
        for low, centre, high in zip(edges, edges[1:], edges[2:], strict=False):
            total = 0.0
            for k, value in enumerate(power):
                hertz = k * RATE / n
                if low < hertz <= centre:
                    total += value * (hertz - low) / (centre - low)
                elif centre < hertz < high:
                    total += value * (high - hertz) / (high - centre)
            bands.append(math.log(total + MIN_BAND_POWER))
        rows.append(bands)
    table = np.array(rows)
    return np.concatenate([table.mean(0), table.std(0)])


def test_mel_statistics_equal_the_definition():
    samples = torch.from_numpy(make_sound("tone", seconds=0.1)).float()
    found = compute_mel_statistics(samples, RATE)
    assert found.shape == (MEL_WIDTH,)
    assert found.dtype == torch.float32
    assert np.allclose(found.numpy(), naive_statistics(samples.double().numpy()), atol=1e-4)


def test_loudest_band_follows_the_pitch_at_any_rate():
    bands = []
    for hertz in (300, 1000, 3000):
        waves = [
            (torch.sin(2 * torch.pi * hertz * torch.arange(rate // 2) / rate), rate)
            for rate in (16_000, 44_100)
        ]
        low, high = embed_waves(waves)
        assert low.shape == (MEL_WIDTH,)
        assert int(low[:BAND_COUNT].argmax()) == int(high[:BAND_COUNT].argmax())
        assert abs(low[:BAND_COUNT].max() - high[:BAND_COUNT].max()) < 0.05
        bands.append(int(low[:BAND_COUNT].argmax()))
    assert bands == sorted(set(bands))


def test_mel_statistics_of_silence_and_of_a_click_are_finite():
    silence = compute_mel_statistics(torch.zeros(8000), RATE)
    assert torch.allclose(silence[:BAND_COUNT], torch.tensor(math.log(MIN_BAND_POWER)))
    assert silence[BAND_COUNT:].max() < 1e-9
    assert torch.isfinite(compute_mel_statistics(torch.ones(3), RATE)).all()
