"""Cases that only `make test-slow` runs."""

from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """Return a case of `parametrize` that is marked as slow."""
    return pytest.param(*values, marks=pytest.mark.slow)
