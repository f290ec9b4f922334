"""Pretrained encoders by name, through the libraries that publish them.

    encoder = load_encoder("facebook/dinov2-small", "image")
    features = encoder.encode(images)               # (n, encoder.width), float32
    for at, rows in encoder.stream(read, positions):  # reading and encoding overlap
        ...

`labelahead.models.encoder_names` explains the names.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelahead.errors import InputError, LabelaheadError
from labelahead.models.encoder_backends import AUDIO_RATE, BACKENDS, Backend, Prepared
from labelahead.models.encoder_names import (
    AUDIO,
    MODALITIES,
    TEXT,
    EncoderName,
    describe_error,
    resolve_encoder,
)

__all__ = ["Encoder", "choose_batch_size", "load_encoder"]

log = logging.getLogger("labelahead")
# Numbers of sounds in a forward pass: a minute of samples, or 4 spectrograms of Whisper. The first
# layer of wav2vec2 keeps some 20 MB for each second.
MAX_AUDIO_BATCH_NUMBERS = 60 * AUDIO_RATE
MAX_BATCH_ITEMS = 64  # larger batches gain nothing on a CPU and little on a GPU
ITEM_BYTES = 32 * 2**20  # activations of one item in a base-size transformer, generously
MEMORY_SHARE = 4  # a batch may take a quarter of the free memory
SORTED_BATCHES = 16  # texts of so many batches are sorted by length, which saves padding
MAX_READERS = 8


@dataclass(frozen=True, eq=False)
class Encoder:
    """A pretrained encoder of one modality.

    Attributes:
        name: Name with kind, revision and pooling: equal names give equal features.
        modality: "image", "text" or "audio".
        width: Numbers per item.
        device: Where it runs.
        max_audio_numbers: Samples of sounds at once.
    """

    name: EncoderName
    modality: str
    width: int
    backend: Backend
    device: torch.device
    max_audio_numbers: int = MAX_AUDIO_BATCH_NUMBERS

    def encode(self, items: Sequence[Any]) -> Tensor:
        """Encode one batch.

        Args:
            items: PIL images, texts, or pairs (waveform (samples,), samples a second).

        Returns:
            (n, width) float32 on the CPU.

        Raises:
            InputError: The encoder fails on these items, or returns no finite (n, width).
        """
        if self.modality == TEXT:
            return self._encode_batch(self._prepare(list(items)), len(items))
        return self._encode_prepared([self._prepare([item]) for item in items])

    def encode_all(self, items: Sequence[Any]) -> Tensor:
        """Encode any number of items in batches: (n, width) float32."""
        out = torch.empty(len(items), self.width)
        for at, rows in self.stream(items.__getitem__, range(len(items))):
            out[at] = rows
        return out

    def stream(
        self,
        read: Callable[[int], Any],
        positions: Sequence[int],
        *,
        batch_size: int | None = None,
        workers: int | None = None,
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Encode many items; threads read and prepare the next ones meanwhile.

        Args:
            read: Returns the item at a position; called from several threads.
            positions: The items to encode.
            batch_size: Items of a forward pass; default: from the free memory, at most 64.
            workers: Threads that read and prepare; default: one per core, at most 8.

        Yields:
            Some positions and their features (q, width) float32, until all are encoded. Texts come
            in the order of their lengths.
        """
        size = batch_size or choose_batch_size(self.device)
        if self.modality == TEXT:
            # One thread only: tokenizers change their own state while they work.
            batches = list(_batches_by_length(read, positions, size))
            ready = _prefetch(
                lambda at: self._prepare([read(i) for i in at]), batches, threads=1, ahead=4
            )
            for at, given in zip(batches, ready, strict=True):
                yield at, self._encode_batch(given, len(at))
            return
        threads = workers or min(MAX_READERS, os.cpu_count() or 1)
        ready = _prefetch(
            lambda i: self._prepare([read(i)]), positions, threads=threads, ahead=2 * size
        )
        for some, inputs in zip(_split(positions, size), _split(ready, size), strict=True):
            yield list(some), self._encode_prepared(inputs)

    def _prepare(self, items: Sequence[Any]) -> Prepared:
        try:
            return self.backend.prepare(items)
        except LabelaheadError:
            raise
        except Exception as error:
            raise InputError(
                f"the encoder {self.name} cannot prepare {len(items)} items ({describe_error(error)})"
            ) from error

    def _encode_prepared(self, inputs: Sequence[Prepared]) -> Tensor:
        """Encode items that were prepared one by one, those of one shape together.

        Padding would make the features of a sound depend on its neighbours.
        """
        out = torch.empty(len(inputs), self.width)
        groups: dict[Any, list[int]] = {}
        for i, given in enumerate(inputs):
            shapes = tuple((key, tuple(value.shape)) for key, value in given.items())
            groups.setdefault(shapes, []).append(i)
        for group in groups.values():
            size = len(group)
            if self.modality == AUDIO:
                numbers = max(value.numel() for value in inputs[group[0]].values())
                size = max(1, self.max_audio_numbers // numbers)
            for at in _split(group, size):
                whole = {key: torch.cat([inputs[i][key] for i in at]) for key in inputs[at[0]]}
                out[list(at)] = self._encode_batch(whole, len(at))
        return out

    def _encode_batch(self, given: Prepared, n: int) -> Tensor:
        """Encode one prepared batch; a batch that does not fit into memory is halved."""
        half = nullcontext()
        if self.device.type == "cuda":
            half = torch.autocast(  # type: ignore[assignment]
                "cuda", torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
            )
        try:
            with torch.inference_mode(), half:
                out = self.backend.encode(given)
        except torch.OutOfMemoryError as error:
            if n == 1:
                raise InputError(
                    f"the encoder {self.name} does not fit into the memory of {self.device} with "
                    "one item; expected a smaller encoder, or device = cpu"
                ) from error
            torch.cuda.empty_cache()
            log.warning("%s: %d items do not fit into memory, halving", self.name, n)
            parts = [slice(0, n // 2), slice(n // 2, n)]
            counts = (n // 2, n - n // 2)
            return torch.cat(
                [
                    self._encode_batch({k: v[part] for k, v in given.items()}, q)
                    for part, q in zip(parts, counts, strict=True)
                ]
            )
        except LabelaheadError:
            raise
        except Exception as error:
            raise InputError(
                f"the encoder {self.name} failed on {n} items with {describe_error(error)}"
            ) from error
        return _require_features(out, n, self.width, str(self.name))


def load_encoder(name: str, modality: str, *, device: str = "cpu") -> Encoder:
    """Load a pretrained encoder; the last one stays in memory.

    Args:
        name: See the module's docstring.
        modality: What it has to encode: "image", "text" or "audio".
        device: Where it runs; features come back to the CPU.

    Raises:
        InputError: No such encoder, no way to fetch it, or an encoder of another modality.
        MissingExtra: The library that reads it is not installed.
    """
    if modality not in MODALITIES:
        raise InputError(f"modality is {modality!r}; expected one of {', '.join(MODALITIES)}")
    return _load_encoder(resolve_encoder(name), modality, device)


@lru_cache(maxsize=1)
def _load_encoder(name: EncoderName, modality: str, device: str) -> Encoder:
    where = torch.device(device)
    backend = BACKENDS[name.kind](name, modality, where)
    return Encoder(replace(name, pooling=backend.pooling), modality, backend.width, backend, where)


def choose_batch_size(device: torch.device) -> int:
    """Return how many items to encode at once: at most 64, fewer if memory is scarce."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        try:
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
            free = next(1024 * int(line.split()[1]) for line in lines if "MemAvailable" in line)
        except (OSError, ValueError, StopIteration):  # macOS, Windows
            return MAX_BATCH_ITEMS
    return max(1, min(MAX_BATCH_ITEMS, free // (MEMORY_SHARE * ITEM_BYTES)))


def _split(values: Iterable[Any], size: int) -> Iterator[tuple[Any, ...]]:
    """Yield consecutive values, `size` at a time."""
    every = iter(values)
    while some := tuple(islice(every, size)):
        yield some


def _batches_by_length(
    read: Callable[[int], str], positions: Sequence[int], size: int
) -> Iterator[list[int]]:
    """Yield positions in batches of texts of similar length."""
    for some in _split(positions, SORTED_BATCHES * size):
        ordered = sorted(some, key=lambda i: len(read(i)))
        yield from (list(batch) for batch in _split(ordered, size))


def _prefetch(
    function: Callable[[Any], Prepared], arguments: Iterable[Any], *, threads: int, ahead: int
) -> Iterator[Prepared]:
    """Yield function(argument) in order, computed by threads up to `ahead` calls in advance."""
    waiting: deque[Future[Prepared]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for argument in arguments:
                waiting.append(pool.submit(function, argument))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _require_features(out: object, n: int, width: int, name: str) -> Tensor:
    """Return (n, width) float32 on the CPU, or raise."""
    if not isinstance(out, Tensor) or tuple(out.shape) != (n, width):
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(
            f"the encoder {name} returned {shape} for {n} items; expected ({n}, {width})"
        )
    features = out.detach().float().cpu()
    finite = torch.isfinite(features).all(1)
    if not bool(finite.all()):
        raise InputError(
            f"the encoder {name} returned NaN or infinity for {int((~finite).sum())} of {n} items; "
            "expected finite numbers: try device = cpu"
        )
    return features
