"""Statistics of log-mel bands: an embedding of sounds that needs no pretrained network.

It describes the timbre and the loudness of a sound, and how much they vary. The order of events in
time is lost, so it is a weak embedding: a pretrained encoder separates most classes better.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.models.encoder_backends import AUDIO_RATE, resample

__all__ = ["MEL", "MEL_WIDTH", "compute_mel_statistics", "embed_waves"]

MEL = "mel"
BAND_COUNT = 40
MEL_WIDTH = 2 * BAND_COUNT
WINDOW_SAMPLES = 400  # 25 ms
HOP_SAMPLES = 160  # 10 ms
MIN_BAND_POWER = 1e-6  # of the power in a band; silence is log(MIN_BAND_POWER), not minus infinity
Array = np.ndarray[Any, Any]


def compute_mel_statistics(wave: Tensor, rate: int) -> Tensor:
    """Return mean and standard deviation over time of the log power in 40 mel bands.

    Args:
        wave: (samples,), mono.
        rate: samples a second.

    Returns:
        (80,) float32.
    """
    samples = resample(wave, rate, AUDIO_RATE).double().numpy()
    samples = np.pad(samples, (0, max(0, WINDOW_SAMPLES - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW_SAMPLES)[::HOP_SAMPLES]
    spectrum = np.fft.rfft(frames * np.hanning(WINDOW_SAMPLES), axis=1)
    power = np.square(np.abs(spectrum)) / WINDOW_SAMPLES
    bands = np.log(power @ _mel_filters().T + MIN_BAND_POWER)
    return torch.from_numpy(np.concatenate([bands.mean(0), bands.std(0)]).astype(np.float32))


def embed_waves(waves: list[tuple[Tensor, int]]) -> Tensor:
    """Return the statistics (n, 80) of n sounds."""
    return torch.stack([compute_mel_statistics(wave, rate) for wave, rate in waves])


@cache
def _mel_filters() -> Array:
    """Return triangular filters (bands, frequencies), equally spaced on the mel scale."""
    frequencies = np.fft.rfftfreq(WINDOW_SAMPLES, 1 / AUDIO_RATE)
    highest = 2595 * np.log10(1 + AUDIO_RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, highest, BAND_COUNT + 2) / 2595) - 1)  # O'Shaughnessy 1987
    low, centre, high = (edges[i : i + BAND_COUNT, None] for i in range(3))
    rising = (frequencies - low) / (centre - low)
    falling = (high - frequencies) / (high - centre)
    return np.clip(np.minimum(rising, falling), 0, None)
