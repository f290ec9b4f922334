"""Deep active learning by neural-tangent-kernel look-ahead."""

from labelahead.tangent import kernel

__version__ = "0.1.0"
__all__ = ["__version__", "kernel"]
