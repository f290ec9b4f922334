"""Data sets: inputs without labels, the answers kept apart, one index space for both.

>>> from labelahead.data import DATASETS
>>> list(DATASETS)
['digits', 'mnist', 'fashion-mnist', 'cifar10', 'cifar100', 'svhn', 'caltech101']
>>> from labelahead.data import NONE_OF_THESE  # the answer that an item belongs to none of the classes
>>> NONE_OF_THESE
-2
"""

from labelahead.data.arrays import from_arrays, from_dataset
from labelahead.data.dataset import NONE_OF_THESE, Answers, Data
from labelahead.data.labels import read_labels
from labelahead.data.loading import load, load_source
from labelahead.data.public_datasets import DATASETS

__all__ = [
    "DATASETS",
    "NONE_OF_THESE",
    "Answers",
    "Data",
    "from_arrays",
    "from_dataset",
    "load",
    "load_source",
    "read_labels",
]
