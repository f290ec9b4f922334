"""Targets of class numbers, one-hot, and of "none of these", zero."""

import torch

from labelahead.data.class_targets import make_class_targets
from labelahead.data.dataset import NONE_OF_THESE


def test_targets_are_one_hot_and_zero_for_none_of_these():
    labels = torch.tensor([2, NONE_OF_THESE, 0])
    assert make_class_targets(labels, 3).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert make_class_targets(labels[:0], 3).shape == (0, 3)
    assert labels.tolist() == [2, NONE_OF_THESE, 0]  # unchanged
