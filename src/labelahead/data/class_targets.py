"""Regression targets of class numbers."""

from torch import Tensor
from torch.nn import functional as F

from labelahead.data.dataset import NONE_OF_THESE

__all__ = ["make_class_targets"]


def make_class_targets(labels: Tensor, classes: int) -> Tensor:
    """Return the targets (q, C) of labels: one-hot, and zero everywhere for "none of these".

    Args:
        labels: (q,) class numbers or `NONE_OF_THESE`.
        classes: Number of classes C.

    >>> make_class_targets(torch.tensor([1, -2]), 3).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    none = labels == NONE_OF_THESE
    targets = F.one_hot(labels.masked_fill(none, 0), classes).double()
    return targets.masked_fill_(none[:, None], 0.0)
