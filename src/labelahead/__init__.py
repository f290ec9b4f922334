"""Deep active learning by neural-tangent-kernel look-ahead."""

__version__ = "0.1.0"
