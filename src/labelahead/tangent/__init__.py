"""A network's tangent kernel and what goes with it. Knows torch.nn, nothing of active learning."""

from labelahead.tangent.kernel import kernel
from labelahead.tangent.norms import directional, inner_products, squared_norms
from labelahead.tangent.sketch import features

__all__ = ["directional", "features", "inner_products", "kernel", "squared_norms"]
