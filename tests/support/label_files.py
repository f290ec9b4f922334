"""Small label files, and what `read_labels` finds in them."""

import torch

from labelahead.data import Data, read_labels

IDS = ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/a, b.jpg", "dog/ü.jpg")
CAT_DOG = ("cat", "dog")


def make_data(ids=IDS, classes=CAT_DOG):
    """Return data without labels."""
    none = torch.empty(0, dtype=torch.int64)
    return Data("x", classes, none, ids, "vector", (), None, (1,), lambda: torch.zeros(len(ids), 1))


def write_labels(folder, text, name="l.csv"):
    """Write a label file; return its path."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read_as_lists(path, data=None):
    """Return the positions, the class numbers and the classes of a label file."""
    positions, codes, classes = read_labels(path, data or make_data())
    assert positions.dtype == codes.dtype == torch.int64
    return positions.tolist(), codes.tolist(), classes
