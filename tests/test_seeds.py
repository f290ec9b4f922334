"""Random streams depend on their names alone, and the global generators are left as they were."""

import random

import numpy as np
import pytest
import torch

from labelahead.errors import InputError
from labelahead.seeds import derive_training_seed, make_generator, temporary_seed


def fnv(seed, *names):
    """The 64-bit FNV-1a hash of the names, from the seed."""
    state = seed % 2**64
    for byte in "".join(f"{name}/" for name in names).encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state % 2**63


@pytest.mark.parametrize("names", [(), ("train",), ("train", 3), ("tra", "in", 3), (12, "ü")])
def test_make_generator_is_seeded_by_the_hash_of_its_names(names):
    expected = torch.Generator().manual_seed(fnv(7, *names))
    assert torch.equal(make_generator(7, *names).get_state(), expected.get_state())


def test_make_generator_separates_names():
    assert make_generator(0, "a", "b").initial_seed() != make_generator(0, "ab").initial_seed()


def test_derive_training_seed_differs_by_number_and_purpose():
    seeds = {derive_training_seed(0, i, purpose) for i in range(20) for purpose in ("train", "t")}
    assert len(seeds) == 40
    assert all(0 <= seed < 2**31 for seed in seeds)


def draw_each():
    """One number from each global generator."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


def draw_and_fail(seed, drawn):
    with temporary_seed(seed):
        drawn.append(draw_each())
        raise KeyError


def test_temporary_seed_repeats_draws_and_restores_all_generators():
    with temporary_seed(8):
        draw_each()
        expected = draw_each()
    drawn = []
    with temporary_seed(8):
        draw_each()
        for _ in range(2):
            with pytest.raises(KeyError):
                draw_and_fail(5, drawn)
        assert draw_each() == expected
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("seed", [-1, 2**63, True, 1.0])
def test_temporary_seed_refuses_other_values(seed):
    with pytest.raises(InputError, match="seed is"), temporary_seed(seed):
        pass
