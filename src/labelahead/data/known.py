"""The data sets known by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import torch

from labelahead.data.dataset import Answers, Data
from labelahead.data.download import Form, Remote, find_or_fetch
from labelahead.data.extras import need
from labelahead.data.folder import load_folder
from labelahead.data.names import CIFAR10, CIFAR100, DIGITS, FASHION
from labelahead.data.official import (
    load_official,
    read_binary_files,
    read_idx_files,
    read_mat_files,
    read_npz_files,
    read_python_files,
)
from labelahead.data.options import Options
from labelahead.data.pixels import Pixels
from labelahead.data.split import choose

__all__ = ["DATASETS", "Source"]

Load = Callable[[Options], tuple[Data, Answers | None]]


@dataclass(frozen=True)
class Source:
    """A data set with a name: what it is, what its files are called, how it is loaded."""

    name: str
    summary: str
    load: Load
    files: tuple[str, ...]


def _digits(options: Options) -> tuple[Data, Answers | None]:
    """The embedded set: pixels of 0..16, scaled to [-1, 1]."""
    found = need("sklearn.datasets", "app", "the data set digits").load_digits()
    codes = torch.from_numpy(found.target.astype(np.int64))
    split = choose(codes, options)
    values = torch.from_numpy(found.images.astype(np.uint8)).unsqueeze(1)[split.keep]
    eight = torch.tensor([8.0], dtype=torch.float32)
    held = Pixels(values, eight, eight, options.size, white=16)
    ids = tuple(str(int(i)) for i in split.keep)
    data = Data(
        name="digits",
        classes=DIGITS,
        test=split.test,
        ids=ids,
        kind="image",
        notes=split.notes,
        images=held,
        shape=held.shape,
        build=held.inputs,
    )
    return data, Answers(codes[split.keep], ids)


def _caltech(options: Options) -> tuple[Data, Answers | None]:
    """The 101 classes of Caltech101, without its background class."""
    forms = [Form(((name,),), list) for name in CALTECH]
    _, paths = find_or_fetch("caltech101", forms, ("caltech-101",), (), options)
    return load_folder(paths[0], options, name="caltech101", leave_out=("BACKGROUND_Google",))


def _single(*files: str) -> tuple[tuple[str, ...], ...]:
    """Files that go by one name each."""
    return tuple((name,) for name in files)


def _idx_set(
    name: str, classes: tuple[str, ...], folder: str, url: str, md5: Sequence[str]
) -> Load:
    """MNIST and its relatives."""
    names = tuple((f"{f}.gz", f, f.replace("-idx", ".idx")) for f in IDX)
    return partial(
        load_official,
        name=name,
        classes=classes,
        forms=(Form(names, read_idx_files), Form(_single(f"{name}.npz"), read_npz_files)),
        below=(f"{folder}/raw",),
        remote=[Remote(f"{file}.gz", url, m) for file, m in zip(IDX, md5, strict=True)],
        shape=(1, 28, 28),
    )


def _cifar(
    count: int, classes: tuple[str, ...], files: tuple[str, ...], meta: tuple[str, str], md5: str
) -> Load:
    """CIFAR-10 and CIFAR-100: python, binary, or the npz of a part of it."""
    fine = count == 100
    binary = tuple(f"{f}.bin" for f in files)
    key = "fine_labels" if fine else "labels"
    python = partial(read_python_files, files=files, key=key, meta=meta)
    plain = partial(read_binary_files, files=binary, before=2 if fine else 1)
    archive = f"cifar-{count}-python.tar.gz"
    forms = (
        Form(_single(*files), python),
        Form(_single(archive), python),
        Form(_single(*binary), plain),
        Form(_single(f"cifar-{count}-binary.tar.gz"), plain),
        Form(((f"cifar{count}.npz", f"cifar{count}_12k.npz"),), read_npz_files),
    )
    stems = ("cifar-100-python", "cifar-100-binary")
    if not fine:
        stems = ("cifar-10-batches-py", "cifar-10-batches-bin")
    return partial(
        load_official,
        name=f"cifar{count}",
        classes=classes,
        forms=forms,
        below=(*stems, *(f"cifar{count}/{stem}" for stem in stems)),
        remote=[Remote(archive, "https://www.cs.toronto.edu/~kriz/", md5)],
        shape=(3, 32, 32),
    )


IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR10_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CALTECH = ("101_ObjectCategories/", "caltech101.zip", "caltech101_128px.zip", "caltech-101.zip")
SVHN = ("train_32x32.mat", "test_32x32.mat")
SVHN_URL = "http://ufldl.stanford.edu/housenumbers/"

_mnist = _idx_set(
    "mnist",
    DIGITS,
    "MNIST",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
_fashion = _idx_set(
    "fashion-mnist",
    FASHION,
    "FashionMNIST",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)
_cifar10 = _cifar(
    10,
    CIFAR10,
    CIFAR10_FILES,
    ("batches.meta", "label_names"),
    "c58f30108f718f92721af3b95e74349a",
)
_cifar100 = _cifar(
    100,
    CIFAR100,
    ("train", "test"),
    ("meta", "fine_label_names"),
    "eb9058c3a382ffc7106e4002c42a8d85",
)
_svhn = partial(
    load_official,
    name="svhn",
    classes=DIGITS,
    forms=(
        Form(_single(*SVHN), read_mat_files),
        Form((("svhn.npz", "svhn_12k.npz"),), read_npz_files),
    ),
    below=(),
    remote=[
        Remote(SVHN[0], SVHN_URL, "e26dedcc434d2e4c54c9b2d4a06d8373"),
        Remote(SVHN[1], SVHN_URL, "eb5a983be6a315427106f1b164d9cef3"),
    ],
    shape=(3, 32, 32),
)

_SOURCES = (
    Source("digits", "1,797 handwritten digits, 8 x 8, grey; needs no file", _digits, ()),
    Source("mnist", "70,000 handwritten digits, 28 x 28, grey", _mnist, IDX),
    Source("fashion-mnist", "70,000 pieces of clothing, 28 x 28, grey", _fashion, IDX),
    Source(
        "cifar10",
        "60,000 photographs of 10 classes, 32 x 32",
        _cifar10,
        ("cifar-10-python.tar.gz", "cifar10.npz"),
    ),
    Source(
        "cifar100",
        "60,000 photographs of 100 classes, 32 x 32",
        _cifar100,
        ("cifar-100-python.tar.gz", "cifar100.npz"),
    ),
    Source("svhn", "99,289 house numbers, 32 x 32", _svhn, (*SVHN, "svhn.npz")),
    Source("caltech101", "8,677 photographs of 101 classes, any size", _caltech, CALTECH),
)
DATASETS: Mapping[str, Source] = MappingProxyType({source.name: source for source in _SOURCES})
