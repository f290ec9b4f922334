"""A network's tangent kernel. Knows torch.nn, nothing of active learning."""

from labelahead.tangent.kernel import kernel

__all__ = ["kernel"]
