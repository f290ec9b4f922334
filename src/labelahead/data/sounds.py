"""Sound files: waves for encoders, uncompressed sound for the page, and peaks for its waveforms."""

import hashlib
import io
import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from labelahead.data.file_tree import (
    FileSource,
    FileTree,
    ItemFiles,
    UnreadableItemsError,
    printable_name,
)
from labelahead.errors import InputError, MissingExtra, import_extra

__all__ = [
    "SoundFiles",
    "Wave",
    "decode_wave",
    "find_unreadable_sounds",
    "import_soundfile",
    "require_sound",
]

ENCODER_SECONDS = 30  # of each sound; attention over a longer one would not fit into memory
MIN_SECONDS = 0.1  # shorter sounds are padded: encoders fail on fewer samples than their filters
MAX_SECONDS = 3600
MAX_WAV_CHANNELS = 2  # of the sound that the page plays; more are mixed
WAV_HEADER_BYTES = 44
SAMPLE_BYTES = 2
BLOCK_FRAMES = 2**16  # decoded at once
MAX_THREADS = 8
Array = np.ndarray[Any, Any]
Wave = tuple[Tensor, int]  # (samples,) float32, mono; samples a second


@dataclass(frozen=True, eq=False)
class SoundFiles(ItemFiles):
    """Sound files that are decoded when they are encoded or played."""

    def read_wave(self, position: int) -> Wave:
        """Decode the first `ENCODER_SECONDS` of one sound, mixed to one channel.

        Raises:
            UnreadableItemsError: if the file cannot be read.
        """
        with self._open(position) as sound:
            return _read_wave(sound)

    def read_peaks(self, position: int, count: int) -> Array:
        """Return the lowest and the highest sample of up to `count` equal parts, (q, 2)."""
        with self._open(position) as sound:
            return _read_peaks(sound, count)

    def get_wav_size(self, position: int) -> int:
        """Return the size of one sound as an uncompressed .wav file, in bytes."""
        with self._open(position) as sound:
            frame_bytes = SAMPLE_BYTES * _count_wav_channels(sound)
            return int(WAV_HEADER_BYTES + sound.frames * frame_bytes)

    def iter_wav(self, position: int, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes start..stop - 1 of one sound as a .wav file of 16 bits.

        Only the requested part is decoded, so that a player can seek in a long file.
        """
        with self._open(position) as sound:
            yield from _iter_wav(sound, start, stop)

    def content_hash(self) -> str:
        """Return a hash of the files' content; it does not change when the folder moves."""
        digest = hashlib.sha256()
        for name in self.names:
            with self.files.open(name) as stream:
                content = hashlib.file_digest(stream, "sha256")  # type: ignore[arg-type]
                digest.update(content.digest())
        return digest.hexdigest()

    def select(self, at: Tensor) -> "SoundFiles":
        """Return the sounds at (q,) positions."""
        return replace(self, names=tuple(self.names[int(i)] for i in at))

    @contextmanager
    def _open(self, position: int) -> Iterator[Any]:
        name = self.names[position]
        try:
            with self.files.open(name) as stream, _open_sound(stream) as sound:
                yield sound
        except MissingExtra:
            raise
        except Exception as error:  # files of any content, and files that have been deleted
            reason = str(error) or type(error).__name__
            raise UnreadableItemsError(
                f"{printable_name(name)} cannot be read ({reason}); expected a whole sound: repair "
                "or remove it",
                {position: reason},
            ) from error


def find_unreadable_sounds(files: FileTree, names: Sequence[str]) -> dict[str, str]:
    """Decode what encoders get of some files, and return the reason for each that fails."""

    def find_reason(name: str) -> str | None:
        try:
            decode_wave(files, name)
        except MissingExtra:
            raise
        except Exception as error:  # files of any content
            return str(error) or type(error).__name__
        return None

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as threads:
        reasons = dict(zip(names, threads.map(find_reason, names), strict=True))
    return {name: why for name, why in reasons.items() if why is not None}


def decode_wave(files: FileSource, name: str) -> Wave:
    """Decode the first `ENCODER_SECONDS` of one file, mixed to one channel."""
    with files.open(name) as stream, _open_sound(stream) as sound:
        return _read_wave(sound)


def require_sound(content: bytes) -> None:
    """Raise unless the content of a file is a sound that encoders can be given.

    Raises:
        InputError: if it is none, or damaged.
    """
    try:
        with _open_sound(io.BytesIO(content)) as sound:
            _read_wave(sound)
    except (InputError, MissingExtra):
        raise
    except Exception as error:  # content of any kind
        raise InputError(f"the sound cannot be decoded ({error})") from error


def import_soundfile() -> Any:
    """Import soundfile.

    Raises:
        MissingExtra: if it or the library that it needs is not installed.
    """
    try:
        return import_extra("soundfile", "audio", "reading sounds")
    except OSError as error:  # libsndfile is in the wheels of most platforms, but not of all
        raise MissingExtra(
            f"soundfile cannot load libsndfile ({error}); install libsndfile with the packages of "
            "your system, then: pip install 'labelahead[audio]'"
        ) from error


@contextmanager
def _open_sound(stream: BinaryIO) -> Iterator[Any]:
    """Open a sound; its format is recognised by its content.

    Raises:
        InputError: if it is empty, no sound, or too long.
    """
    library = import_soundfile()
    if not stream.read(1):
        raise InputError("is empty")
    stream.seek(0)
    try:
        sound = library.SoundFile(stream)
    except library.LibsndfileError as error:  # its own words name an object of ours
        raise InputError("it is no sound of a kind that can be read") from error
    with sound:
        if sound.frames < 1:
            raise InputError("holds no samples")
        if sound.frames > MAX_SECONDS * sound.samplerate:
            raise InputError(
                f"lasts {sound.frames / sound.samplerate / 60:.0f} minutes; expected at most "
                f"{MAX_SECONDS // 60}: split it"
            )
        yield sound


def _read_wave(sound: Any) -> Wave:
    rate = int(sound.samplerate)
    mono = _mix(sound.read(ENCODER_SECONDS * rate, dtype="float32", always_2d=True))
    if not len(mono):
        raise InputError("holds no samples")
    if not np.isfinite(mono).all():
        raise InputError("holds NaN or infinity; expected finite samples")
    missing = ceil(MIN_SECONDS * rate) - len(mono)
    if missing > 0:
        mono = np.pad(mono, (0, missing))
    return torch.from_numpy(mono), rate


def _mix(samples: Array) -> Array:
    """Return the mean (n,) over the channels of (n, channels)."""
    mixed: Array = samples.mean(axis=1, dtype=np.float32)
    return mixed


def _read_peaks(sound: Any, count: int) -> Array:
    """Return the lowest and the highest sample of up to `count` equal parts, (q, 2) float32."""
    edges = np.linspace(0, sound.frames, min(count, sound.frames) + 1).astype(np.int64)
    peaks = np.zeros((len(edges) - 1, 2), np.float32)
    for i, frames in enumerate(np.diff(edges)):
        part = _mix(sound.read(int(frames), dtype="float32", always_2d=True))
        if len(part):
            peaks[i] = part.min(), part.max()
    if not np.isfinite(peaks).all():
        raise InputError("holds NaN or infinity; expected finite samples")
    return peaks


def _count_wav_channels(sound: Any) -> int:
    return int(sound.channels) if sound.channels <= MAX_WAV_CHANNELS else 1


def _iter_wav(sound: Any, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes start..stop - 1 of a sound as a .wav file of 16 bits."""
    channels = _count_wav_channels(sound)
    frame_bytes = SAMPLE_BYTES * channels
    header = _make_wav_header(int(sound.frames), int(sound.samplerate), channels)
    if start < WAV_HEADER_BYTES:
        yield header[start:stop]
    first, skipped = divmod(max(start - WAV_HEADER_BYTES, 0), frame_bytes)
    left = stop - max(start, WAV_HEADER_BYTES)
    if left > 0:
        sound.seek(first)
    while left > 0:
        samples = sound.read(BLOCK_FRAMES, dtype="float32", always_2d=True)
        if not len(samples):  # the file says that it is longer: silence up to that length
            samples = np.zeros((BLOCK_FRAMES, channels), np.float32)
        if channels < samples.shape[1]:
            samples = _mix(samples)[:, None]
        whole = (samples.clip(-1, 1) * 32767).round().astype("<i2").tobytes()
        block = whole[skipped : skipped + left]
        skipped = 0
        left -= len(block)
        yield block


def _make_wav_header(frames: int, rate: int, channels: int) -> bytes:
    """Return the header of a .wav file of 16 bits (RIFF, format 1)."""
    frame_bytes = SAMPLE_BYTES * channels
    size = frames * frame_bytes
    form = struct.pack(
        "<4sIHHIIHH",
        b"fmt ",
        16,
        1,
        channels,
        rate,
        rate * frame_bytes,
        frame_bytes,
        8 * SAMPLE_BYTES,
    )
    riff = struct.pack("<4sI4s", b"RIFF", WAV_HEADER_BYTES - 8 + size, b"WAVE")
    return riff + form + struct.pack("<4sI", b"data", size)
