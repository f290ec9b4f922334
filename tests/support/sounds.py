"""Synthesised sounds of two classes: a tone, and noise."""

from pathlib import Path

import numpy as np
import soundfile

CLASSES = ("noise", "tone")


def make_sound(kind: str, seed: int = 0, seconds: float = 0.5, rate: int = 16_000) -> np.ndarray:
    """Return (samples,) between -1 and 1."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    if kind == "tone":
        return 0.4 * np.sin(2 * np.pi * rng.uniform(300, 900) * time) + rng.normal(
            0, 0.03, len(time)
        )
    return rng.normal(0, rng.uniform(0.05, 0.2), len(time)).clip(-1, 1)


def write_sound(path: Path, samples: np.ndarray, rate: int = 16_000, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, **options)
    return path


def write_sounds(folder: Path, n: int = 12, *, class_folders: bool = False, **options) -> Path:
    """Write n sounds, every other one a tone; the name contains the class: s03-tone.wav."""
    for i in range(n):
        kind = CLASSES[i % 2]
        inside = folder / kind if class_folders else folder
        write_sound(inside / f"s{i:02d}-{kind}.wav", make_sound(kind, i, **options))
    return folder
