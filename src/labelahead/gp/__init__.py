"""The papers' mathematics on tensors: nothing here has seen a network.

The examples of its functions begin with six items, of which two have labels:

    >>> import torch
    >>> import labelahead as la
    >>> generator = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> x = torch.randn(6, 4)
    >>> outputs, K = model(x).detach(), la.kernel(model, x)
    >>> one_hot = torch.eye(3)
    >>> post = la.prior(outputs, K).condition([0, 1], one_hot[[0, 1]])
"""
