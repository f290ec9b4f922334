"""Optional libraries, imported where they are needed and named when they are missing."""

from importlib import import_module
from typing import Any

from labelahead.errors import MissingExtra

__all__ = ["need"]


def need(module: str, extra: str, purpose: str) -> Any:
    """The module, or an error naming the extra that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{purpose} needs {module.split('.')[0]}, which cannot be imported here ({error}); "
            f"install it with: pip install 'labelahead[{extra}]'"
        ) from error
