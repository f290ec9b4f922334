"""The learner: labels in; queries, predictions and an exported model out.

The examples here begin with

    >>> import torch
    >>> import labelahead as la
    >>> generator = torch.manual_seed(0)
    >>> x = torch.randn(60, 4)
    >>> truth = x[:, :3].argmax(1)
"""
