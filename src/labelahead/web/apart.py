"""Where the worker begins: it imports nothing large, so that from its first moment on it ends with the server."""

from importlib import import_module
from typing import Any

from labelahead.processes import follow_parent

__all__ = ["begin"]


def begin(place: str, name: str, *args: Any) -> None:
    """A function of a module, which is imported now, watched over."""
    follow_parent()
    getattr(import_module(place), name)(*args)
