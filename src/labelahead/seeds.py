"""Randomness: one generator per purpose, and temporary seeding of the global generators."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from labelahead.errors import InputError

__all__ = ["derive_training_seed", "make_generator", "temporary_seed"]


def make_generator(seed: int, *names: int | str) -> torch.Generator:
    """Return a generator that depends only on the seed and the names.

    Each purpose has its own names, so that no draw depends on what ran before.

    Args:
        seed: the seed of the campaign.
        names: the purpose, e.g. "augment" or a round number.
    """
    state = seed & 0xFFFFFFFFFFFFFFFF
    for name in names:
        for byte in str(name).encode() + b"/":  # FNV-1a: Python's own hash changes by process
            state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return torch.Generator().manual_seed(state & 0x7FFFFFFFFFFFFFFF)


def derive_training_seed(seed: int, number: int | str, purpose: str = "train") -> int:
    """Return the seed of one training.

    Args:
        seed: the seed of the campaign.
        number: the number of the training; a cold start has another seed each time.
        purpose: the name of the random stream.
    """
    return int(torch.randint(2**31, (1,), generator=make_generator(seed, purpose, number)))


@contextmanager
def temporary_seed(seed: int) -> Iterator[None]:
    """Seed the global generators inside the block, and restore their states afterwards.

    Python's `random`, numpy and torch (CPU and CUDA) are covered.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"seed is {seed!r}; expected a whole number, 0 or more and below 2**63")
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        # A user's model factory may draw from these two generators.
        python_state = random.getstate()
        numpy_state = np.random.get_state()  # noqa: NPY002
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
