"""The pool of labelled and unlabelled positions."""

import pytest
import torch

from labelahead.data.dataset import NONE_OF_THESE
from labelahead.data.pool import Pool
from labelahead.errors import InputError


def test_pool_label_keeps_order_and_updates_unlabelled():
    pool = Pool(6, test=[5])
    pool.label([4, 1], torch.tensor([2, 0]))
    pool.label([0], [1])
    assert pool.labelled.tolist() == [4, 1, 0]
    assert pool.labels.tolist() == [2, 0, 1]
    assert pool.unlabelled.tolist() == [2, 3]
    assert len(pool) == 3
    assert "3 of 6" in repr(pool)


@pytest.mark.parametrize(
    ("positions", "labels", "message"),
    [
        ([1], [0], "labelled already"),
        ([5], [0], "held out for testing"),
        ([9], [0], "reaches from 9"),
        ([0, 0], [1, 1], "different ones"),
        ([0, 2], [1], "1 labels for 2"),
        ([0], [-1], "class number"),
        ([0], [1.5], "class number"),
        ([0], [True], "class number"),
        ([], [], "at least one"),
    ],
)
def test_pool_label_refuses_invalid_labels_without_change(positions, labels, message):
    pool = Pool(6, test=[5])
    pool.label([1], [0])
    with pytest.raises(InputError, match=message):
        pool.label(positions, labels)
    assert pool.labelled.tolist() == [1]
    assert pool.unlabelled.tolist() == [0, 2, 3, 4]


def test_pool_label_with_one_invalid_label_adds_none():
    pool = Pool(4)
    with pytest.raises(InputError):
        pool.label([0, 1], [1, -3])
    assert len(pool) == 0


def test_item_of_no_class_is_labelled():
    pool = Pool(4)
    pool.label([2, 0], [NONE_OF_THESE, 1])
    assert pool.labels.tolist() == [NONE_OF_THESE, 1]
    assert pool.unlabelled.tolist() == [1, 3]
    pool.relabel(2, 1)
    assert pool.labels.tolist() == [1, 1]
    with pytest.raises(InputError, match="labelled already"):
        pool.label([0], [NONE_OF_THESE])
