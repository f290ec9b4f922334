"""Wait for conditions instead of fixed times, because a busy machine is slow."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

# Seconds until a wait fails; a busy machine can be ten times slower than an idle one.
PATIENCE = float(os.environ.get("LABELAHEAD_TEST_PATIENCE", "300"))
T = TypeVar("T")


def until(
    condition: Callable[[], T],
    describe: Callable[[], object] = lambda: "",
    *,
    seconds: float = PATIENCE,
) -> T:
    """Wait until the condition is true and return its value.

    describe: makes the message of the error if the time runs out.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, describe()
        time.sleep(0.02)
    return value


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
    """A network that blocks once the file `begun` exists, so that a test can check a running campaign."""

    def __init__(self, folder: Path, begun: Path) -> None:
        self._open = folder / "gate is open"
        (folder / "gated.py").write_text(GATED.format(begun=str(begun), opened=str(self._open)))
        self.model = f"{folder / 'gated.py'}:make"

    def open(self) -> None:
        """Let the network run from now on."""
        self._open.touch()
