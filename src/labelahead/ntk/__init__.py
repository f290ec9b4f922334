"""Tangent kernels, features and gradient norms of PyTorch networks.

The package depends on torch.nn only, not on active learning. The examples in its docstrings start
from

    >>> from pathlib import Path
    >>> import torch
    >>> import labelahead as la
    >>> generator = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> x = torch.randn(6, 4)
"""

from labelahead.ntk.checkpoints import kernel_between, kernels_at
from labelahead.ntk.groups import kernels_by_group
from labelahead.ntk.infinite import infinite_kernel
from labelahead.ntk.kernels import gradient_gram, kernel
from labelahead.ntk.norms import directional, inner_products, norms_and_products, squared_norms
from labelahead.ntk.operators import KernelOperator, operator
from labelahead.ntk.sketch import features
from labelahead.ntk.storage import save_features, save_kernel

__all__ = [
    "KernelOperator",
    "directional",
    "features",
    "gradient_gram",
    "infinite_kernel",
    "inner_products",
    "kernel",
    "kernel_between",
    "kernels_at",
    "kernels_by_group",
    "norms_and_products",
    "operator",
    "save_features",
    "save_kernel",
    "squared_norms",
]
