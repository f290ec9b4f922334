"""Data sets: inputs without labels, the answers kept apart, one index space for both."""

from labelahead.data.arrays import from_arrays
from labelahead.data.dataset import Answers, Data, Images
from labelahead.data.known import DATASETS
from labelahead.data.labels import read_labels
from labelahead.data.loading import load
from labelahead.data.torch_dataset import from_dataset

__all__ = [
    "DATASETS",
    "Answers",
    "Data",
    "Images",
    "from_arrays",
    "from_dataset",
    "load",
    "read_labels",
]
