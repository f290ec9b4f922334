"""Gaussian-process mathematics on tensors: posterior, look-ahead, calibration.

The package does not depend on the network that the kernel comes from. The examples in its
docstrings start from six items, two of them labelled:

    >>> import torch
    >>> import labelahead as la
    >>> generator = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> x = torch.randn(6, 4)
    >>> outputs, K = model(x).detach(), la.kernel(model, x)
    >>> one_hot = torch.eye(3)
    >>> post = la.prior(outputs, K).condition([0, 1], one_hot[[0, 1]])
"""
