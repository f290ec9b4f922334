"""Deep active learning by neural-tangent-kernel look-ahead."""

from labelahead.tangent import directional, features, inner_products, kernel, squared_norms

__version__ = "0.1.0"
__all__ = ["__version__", "directional", "features", "inner_products", "kernel", "squared_norms"]
