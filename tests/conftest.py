"""Shared set-up: the self-check of the NTK engine is on in every test."""

import os
import signal
import tempfile
from functools import partial

import pytest
import torch

from tests.support.devices import PretendedDevice, RealDevice
from tests.support.warm_processes import ColdPopen, warm_multiprocessing

os.environ.setdefault("LABELAHEAD_VERIFY", "1")
# Tests trust their own code; the state of the user who runs them stays unchanged.
_state = tempfile.TemporaryDirectory(prefix="labelahead-state-")
os.environ["XDG_STATE_HOME"] = _state.name
# A shell that runs the tests in the background makes them and their children ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


warm_multiprocessing()


@pytest.fixture
def cold_processes(monkeypatch):
    """Spawn processes as users do: each is a new interpreter that imports torch itself."""
    monkeypatch.setattr("multiprocessing.popen_spawn_posix.Popen", ColdPopen)


@pytest.fixture(autouse=True)
def _single_thread():
    """Use one thread, because tests run in parallel processes."""
    torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        help="run the tests of devices on this one (cuda, cuda:1, mps) instead of a pretended one",
    )


@pytest.fixture
def open_device(request):
    """A context manager for a device: the one of --device, or a pretended one."""
    name = request.config.getoption("--device")
    return PretendedDevice if name is None else partial(RealDevice, name)


@pytest.fixture
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
