"""Shared set-up: the engine's self-check is on in every test."""

import os

import pytest
import torch

os.environ.setdefault("LABELAHEAD_VERIFY", "1")


@pytest.fixture(autouse=True)
def _quiet_machine():
    """One thread each: tests run in parallel processes."""
    torch.set_num_threads(1)


@pytest.fixture
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
