"""Tests wait for what must happen, not for so many seconds: on a busy machine it happens late."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

# seconds until it counts as never; a busy machine is ten times slower than a quiet one
PATIENCE = float(os.environ.get("LABELAHEAD_TEST_PATIENCE", "300"))
T = TypeVar("T")


def until(
    true: Callable[[], T], said: Callable[[], object] = lambda: "", *, seconds: float = PATIENCE
) -> T:
    """What it returns, once that is true. said: what is shown if it never is."""
    end = time.monotonic() + seconds
    while not (now := true()):
        assert time.monotonic() < end, said()
        time.sleep(0.02)
    return now


GATED = """
import math
import time
from pathlib import Path
from torch import nn

class Gated(nn.Module):
    def __init__(self, size, classes):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(size, classes))

    def forward(self, x):
        while Path({begun!r}).exists() and not Path({opened!r}).exists():
            time.sleep(0.01)
        return self.inner(x)

def make(shape, classes, width=None):
    return Gated(math.prod(shape), classes)
"""


class Gate:
    """A network that stands still once a file is there, so that nothing ends before a test has
    looked at it.
    """

    def __init__(self, folder: Path, begun: Path) -> None:
        self._open = folder / "gate is open"
        (folder / "gated.py").write_text(GATED.format(begun=str(begun), opened=str(self._open)))
        self.model = f"{folder / 'gated.py'}:make"

    def open(self) -> None:
        """From now on it is a network like any other."""
        self._open.touch()
