"""Randomness: a stream of its own for each purpose, and the global generators borrowed for a while."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from labelahead.errors import InputError

__all__ = ["derive_training_seed", "make_generator", "temporary_seed"]


def make_generator(seed: int, *names: int | str) -> torch.Generator:
    """A generator of its own for each purpose, so that no draw depends on what ran before."""
    state = seed & 0xFFFFFFFFFFFFFFFF
    for name in names:
        for byte in str(name).encode() + b"/":  # FNV-1a: Python's own hash changes by process
            state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return torch.Generator().manual_seed(state & 0x7FFFFFFFFFFFFFFF)


def derive_training_seed(seed: int, number: int | str, purpose: str = "train") -> int:
    """Of one training: a cold start begins from new weights each time."""
    return int(torch.randint(2**31, (1,), generator=make_generator(seed, purpose, number)))


@contextmanager
def temporary_seed(seed: int) -> Iterator[None]:
    """Draw from `seed` inside; the global generators are as before afterwards."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"seed is {seed!r}; expected a whole number, 0 or more and below 2**63")
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        # A user's own factory may draw from these two.
        plain, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(arrays)  # noqa: NPY002
