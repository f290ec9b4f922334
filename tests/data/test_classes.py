"""Labels as class numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelahead.data.classes import encode_labels
from labelahead.errors import InputError


@pytest.mark.parametrize(
    ("labels", "codes", "names"),
    [
        ([0, 1, 2], [0, 1, 2], ("0", "1", "2")),
        ([1, 3, 3], [0, 1, 1], ("1", "3")),
        ([0, -1, 1], [0, -1, 1], ("0", "1")),
        ([0.0, np.nan, 1.0], [0, -1, 1], ("0", "1")),
        ([None, 2, 0, 1], [-1, 2, 0, 1], ("0", "1", "2")),
        (["b", "a", "", None], [1, 0, -1, -1], ("a", "b")),
        (["10", "9", "x"], [1, 0, 2], ("9", "10", "x")),
        (np.array([[1], [0]]), [1, 0], ("0", "1")),
        (np.array([True, False]), [1, 0], ("false", "true")),
        (np.array([b"u", b"v"]), [0, 1], ("u", "v")),
        (torch.tensor([1, 0]), [1, 0], ("0", "1")),
        ([torch.tensor(1), np.int64(0)], [1, 0], ("0", "1")),
        (np.array([3, 1], dtype=np.uint8), [1, 0], ("1", "3")),
        ([-1, -1], [-1, -1], ()),
    ],
)
def test_encode_labels_accepts_many_forms(labels, codes, names):
    found, classes, notes = encode_labels(labels)
    assert (found.tolist(), classes) == (codes, names)
    assert found.dtype == torch.int64
    assert bool(notes) == (names in (("1", "3"),))  # a note reports the renumbering


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0.5, 1], None, "task number"),
        ([np.inf], None, "inf; expected a class"),
        ([-2, 0], None, "hold -2"),
        ([-1, 1, 1], None, "labels > 0"),
        (5, None, "labels is a int"),
        ([torch.zeros(2)], None, "Tensor"),
        (np.eye(3), None, "argmax"),
        ([2], ["a", "b"], "go up to 2"),
        (["cta"], ["cat", "dog"], "did you mean 'cat'"),
        ([[1, 2], [3]], None, "list"),
        ([0], "ab", "list of class names"),
        ([0], ["a", "a"], "twice"),
        (np.array([1j]), None, "complex"),
    ],
)
def test_encode_labels_refuses_invalid_labels(labels, classes, message):
    with pytest.raises(InputError, match=message):
        encode_labels(labels, classes)


@given(st.lists(st.sampled_from(["a", "b", "7", "10", None]), min_size=1, max_size=30))
def test_encode_labels_round_trips_names(labels):
    codes, classes, _ = encode_labels(labels)
    assert [None if c < 0 else classes[c] for c in codes.tolist()] == labels
