"""Public data sets by name: their classes, where to download them, and how to read their files.

The files are read as published: idx (MNIST and its relatives), CIFAR's pickles (read safely) and
binaries, Matlab, or an .npz.
"""

import gzip
import math
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import torch

from labelahead.data.arrays import (
    ClassLabels,
    Content,
    PixelInputs,
    build_dataset,
    build_from_tensor,
    read_npz,
)
from labelahead.data.dataset import Loaded
from labelahead.data.folder import load_folder
from labelahead.data.split import LoadOptions, split_items
from labelahead.errors import InputError, MissingExtra, import_extra

__all__ = ["DATASETS", "read_idx", "unpickle"]

DIGIT_CLASSES = tuple("0123456789")
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
CIFAR100_CLASSES = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905 (as a list, a hundred lines)
)
# The files of these two data sets have the same names; the first labels distinguish them.
FIRST_LABELS = {
    "mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
}
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR10_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CALTECH_NAMES = (
    "101_ObjectCategories/",
    "caltech101.zip",
    "caltech101_128px.zip",
    "caltech-101.zip",
)
SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")
SVHN_URL = "http://ufldl.stanford.edu/housenumbers/"
DOWNLOAD_TIMEOUT_SECONDS = (4, 30)  # seconds to connect, seconds without a byte
NETWORK_ERROR_NAMES = ("ConnectionError", "ConnectTimeout", "ProxyError", "ReadTimeout", "SSLError")
CIFAR_IMAGE_BYTES = 3 * 32 * 32
MAX_MEMBER_BYTES = 2**30  # the published archives have members of at most 2**28 bytes
IDX_UBYTE_CODE = 0x08  # the type code of unsigned bytes in idx files
READ_CHUNK_BYTES = 2**24
Array = np.ndarray[Any, Any]
ReadArrays = tuple[
    Array, Array, int, tuple[str, ...]
]  # images, labels, training items, class names
LoadFunction = Callable[[LoadOptions], Loaded]


# --- What a data set is


@dataclass(frozen=True)
class PublicDataset:
    """A public data set.

    Attributes:
        name: the name for `load`.
        summary: a description for users.
        load: loads it.
        files: names of files by which a folder with this data set is recognised.
    """

    name: str
    summary: str
    load: LoadFunction
    files: tuple[str, ...]


@dataclass(frozen=True)
class FileLayout:
    """One way in which a data set is stored: files of one folder.

    Attributes:
        files: for each file, the names it may have.
        read: reads the files, in this order.
    """

    files: tuple[tuple[str, ...], ...]
    read: Callable[[Sequence[Path]], Any]


@dataclass(frozen=True)
class RemoteFile:
    """A file to download from its official address."""

    file: str
    url: str
    md5: str


# --- Load a data set: find its files or download them


def _load_digits(options: LoadOptions) -> Loaded:
    """Load scikit-learn's digits: pixels 0..16, scaled to [-1, 1]."""
    digits = import_extra("sklearn.datasets", "app", "the data set digits").load_digits()
    codes = torch.from_numpy(digits.target.astype(np.int64))
    split = split_items(codes, options)
    values = torch.from_numpy(digits.images.astype(np.uint8)).unsqueeze(1)[split.keep]
    half = torch.tensor([8.0], dtype=torch.float32)  # half of the white level
    inputs = PixelInputs(values, half, half, options.size, white=16)
    labels = ClassLabels(codes[split.keep], DIGIT_CLASSES)
    return build_dataset("digits", inputs, labels, split, split.notes, Content(images=inputs))


def _load_caltech(options: LoadOptions) -> Loaded:
    """Load the 101 classes of Caltech101, without its background class."""
    layouts = [FileLayout(((name,),), list) for name in CALTECH_NAMES]
    _, paths = find_or_fetch("caltech101", layouts, ("caltech-101",), (), options)
    return load_folder(paths[0], options, name="caltech101", leave_out=("BACKGROUND_Google",))


@dataclass(eq=False)
class BenchmarkLoader:
    """Load a data set that has an official test set.

    Attributes:
        name: the name of the data set.
        classes: the class names.
        shape: the shape of one image.
        layouts: the layouts in which it may be stored.
        subfolders: subfolders of the root where the files may be.
        remote: the files to download.
    """

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    layouts: Sequence[FileLayout]
    subfolders: Sequence[str]
    remote: Sequence[RemoteFile]

    def __call__(self, options: LoadOptions) -> Loaded:
        """Load the data set in the first layout that is found.

        Raises:
            InputError: if it is not found, or its content does not fit.
        """
        name, classes = self.name, self.classes
        layout, paths = find_or_fetch(name, self.layouts, self.subfolders, self.remote, options)
        images, labels, train, names = layout.read(paths)
        where = paths[0] if len(paths) == 1 else paths[0].parent
        if images.shape[1:] != self.shape:
            raise InputError(
                f"{where} holds pictures of {images.shape[1:]}; expected {self.shape} of {name}"
            )
        names = names if len(names) == len(classes) else classes
        outside = (labels < 0) | (labels >= len(classes))
        if outside.any():
            raise InputError(
                f"{where}: the label of item {int(np.argmax(outside))} is "
                f"{int(labels[np.argmax(outside)])}; expected 0 to {len(classes) - 1} of {name}"
            )
        for other, first in FIRST_LABELS.items():
            if other != name and name in FIRST_LABELS and tuple(labels[:10].tolist()) == first:
                raise InputError(
                    f"{where} holds {other}, whose files have the same names; expected {name}, so "
                    f"keep each set in a folder of its own below root: {other}/ and {name}/"
                )
        if not 0 < train < len(labels):
            raise InputError(
                f"{where}: {train} training and {len(labels) - train} test items; expected some "
                "of both"
            )
        note = f"{train} + {len(labels) - train} items read from {where}"
        codes = torch.from_numpy(labels.astype(np.int64))
        split = split_items(codes, options, torch.arange(len(codes)) >= train)
        return build_from_tensor(
            name,
            torch.from_numpy(images),
            ClassLabels(codes, names),
            split,
            notes=(note,),
            size=options.size,
        )


def find_or_fetch(
    name: str,
    layouts: Sequence[FileLayout],
    subfolders: Sequence[str],
    remote: Sequence[RemoteFile],
    options: LoadOptions,
) -> tuple[FileLayout, list[Path]]:
    """Return the first layout whose files are all in one folder; otherwise download the files.

    Args:
        name: the name of the data set.
        layouts: the layouts in which it may be stored.
        subfolders: subfolders of the root to search.
        remote: the files to download if none is found.
        options: the root, and whether downloads are allowed.

    Raises:
        InputError: if the files are neither found nor downloaded.
    """
    root = options.root
    folders = [root, root / name, *(root / b for b in subfolders)]
    incomplete = []
    for layout in layouts:
        for folder in folders:
            paths = [_find_first_existing(folder, names) for names in layout.files]
            if all(paths):
                return layout, [path for path in paths if path is not None]
            missing = [
                names[0] for names, path in zip(layout.files, paths, strict=True) if not path
            ]
            if len(missing) < len(layout.files):
                incomplete.append(f"{folder} lacks {', '.join(missing)}")
    reason = "downloading was not allowed (download=False)"
    if options.download and remote:
        reason = _download(remote, root / name)
        if not reason:
            return find_or_fetch(name, layouts, subfolders, (), options)
    elif options.download:
        reason = "there is no address to download it from"
    alternatives = " or ".join(
        f"[{', '.join(names[0] for names in layout.files)}]" for layout in layouts
    )
    raise InputError(
        f"{name} was not found: {reason}. Expected {alternatives}; looked in "
        f"{', '.join(str(f) for f in folders)}{'; ' + '; '.join(incomplete) if incomplete else ''}. "
        f"Put the files into {root / name}, or name their folder with root or $LABELAHEAD_DATA"
    )


def _find_first_existing(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first name that exists as a file, or as a folder if it ends with a slash."""
    for name in names:
        path = folder / name
        if path.is_dir() if name.endswith("/") else path.is_file():
            return path
    return None


def _download(remote: Sequence[RemoteFile], folder: Path) -> str:
    """Download every file and verify its checksum; return the reason if that fails, else ""."""
    try:
        pooch = import_extra("pooch", "app", "downloading data sets")
    except MissingExtra as error:
        return str(error)
    for item in remote:
        try:
            # pooch writes under another name and moves the file only when its checksum is right.
            pooch.retrieve(
                item.url + item.file,
                known_hash=f"md5:{item.md5}",
                fname=item.file,
                path=folder,
                downloader=pooch.HTTPDownloader(timeout=DOWNLOAD_TIMEOUT_SECONDS),
            )
        except (OSError, ValueError) as error:  # no network, no space, wrong checksum
            return f"downloading {item.url}{item.file} failed ({_summarise_error(error)})"
    return ""


def _summarise_error(error: Exception) -> str:
    """Describe a download error without the internals of the network library."""
    kind = type(error).__name__
    if kind in NETWORK_ERROR_NAMES:
        return f"{kind}: check the network connection"
    return f"{kind}: {(str(error).splitlines() or [''])[0][:300]}"


# --- Read the file formats


def read_idx_files(paths: Sequence[Path]) -> ReadArrays:
    """Read the four files of MNIST and its relatives."""
    parts = []
    for images, labels in (paths[:2], paths[2:]):
        x, y = read_idx(images, 3), read_idx(labels, 1)
        if len(x) != len(y):
            raise InputError(
                f"{images} holds {len(x)} images and {labels} {len(y)} labels; expected as many "
                "(check that both belong to the same data set)"
            )
        parts.append((x, y))
    if parts[0][0].shape[1:] != parts[1][0].shape[1:]:
        raise InputError(f"{paths[0]} and {paths[2]} hold images of different sizes; fetch them")
    x = np.concatenate([parts[0][0], parts[1][0]])[:, None]
    y = np.concatenate([parts[0][1], parts[1][1]]).astype(np.int64)
    return x, y, len(parts[0][0]), ()


def read_idx(path: Path, ndim: int) -> Array:
    """Read an idx file as a uint8 array with `ndim` dimensions, and check its size.

    Raises:
        InputError: if it is no such file, truncated or too long.
    """
    try:
        with path.open("rb") as raw:
            if raw.read(2) == b"\x1f\x8b":
                raw.seek(0)
                with gzip.open(raw) as unpacked:
                    return _read_idx(unpacked, path, ndim)  # type: ignore[arg-type]
            raw.seek(0)
            return _read_idx(raw, path, ndim)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{path} is broken gzip ({error}); expected a whole file, so fetch it again"
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _read_idx(stream: BinaryIO, path: Path, ndim: int) -> Array:
    """Read the header, then exactly as many bytes as it announces."""
    head = _read_up_to(stream, 4)
    expected = bytes([0, 0, IDX_UBYTE_CODE, ndim])
    if head != expected:
        what = "images" if ndim == 3 else "labels"
        raise InputError(
            f"{path} begins with {head.hex(' ') or 'nothing'}; expected {expected.hex(' ')}, the "
            f"mark of idx {what} (another file may have that name)"
        )
    sizes = _read_up_to(stream, 4 * ndim)
    if len(sizes) < 4 * ndim:
        raise InputError(f"{path} ends within its header; expected a whole file; fetch it again")
    shape = struct.unpack(f">{ndim}I", sizes)
    count = math.prod(shape)
    if count == 0:
        raise InputError(f"{path} announces {shape}, nothing at all; expected at least one item")
    body = _read_up_to(stream, count)
    if len(body) < count:
        raise InputError(
            f"{path} holds {len(body)} bytes of {count} ({shape}); it was cut short, so fetch it "
            "again"
        )
    if stream.read(1):
        raise InputError(
            f"{path} holds more than the {count} bytes it announces ({shape}); fetch it again"
        )
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _read_up_to(stream: BinaryIO, count: int) -> bytearray:
    """Read at most `count` bytes in chunks: a broken header may announce more than memory holds."""
    out = bytearray()
    while len(out) < count:
        piece = stream.read(min(READ_CHUNK_BYTES, count - len(out)))
        if not piece:
            break
        out += piece
    return out


def read_npz_files(paths: Sequence[Path]) -> ReadArrays:
    """Read x_train, y_train, x_test and y_test; images (n, H, W) or (n, H, W, C)."""
    arrays = read_npz(paths[0])
    keys = ("x_train", "y_train", "x_test", "y_test")
    if not set(keys) <= set(arrays):
        raise InputError(
            f"{paths[0]} holds {', '.join(arrays) or 'nothing'}; expected {', '.join(keys)}"
        )
    x = [arrays["x_train"], arrays["x_test"]]
    y = [arrays["y_train"].ravel(), arrays["y_test"].ravel()]
    for images, labels in zip(x, y, strict=True):
        fine = images.dtype == np.uint8 and images.ndim in (3, 4) and labels.dtype.kind in "iu"
        if not fine or len(images) != len(labels) or images.shape[1:] != x[0].shape[1:]:
            raise InputError(
                f"{paths[0]} holds {images.dtype} {images.shape} with labels {labels.dtype} "
                f"{labels.shape}; expected uint8 (n, H, W, C) and one whole number for each"
            )
    joined = np.concatenate(x)
    joined = joined[:, None] if joined.ndim == 3 else joined.transpose(0, 3, 1, 2)
    labels = np.concatenate(y).astype(np.int64)
    return np.ascontiguousarray(joined), labels, len(x[0]), ()


def read_mat_files(paths: Sequence[Path]) -> ReadArrays:
    """Read the two Matlab files of SVHN, in which 10 stands for the digit 0."""
    from scipy.io import loadmat

    x, y = [], []
    for path in paths:
        try:
            arrays = loadmat(path, variable_names=("X", "y"))
        except Exception as error:  # the reader raises almost any error on a broken file
            raise InputError(
                f"{path} cannot be read as a Matlab file ({error}); fetch it again"
            ) from error
        images, labels = arrays.get("X"), arrays.get("y")
        if images is None or labels is None or images.ndim != 4 or images.dtype != np.uint8:
            raise InputError(f"{path} lacks X (uint8, 4 dimensions) or y; fetch it again")
        if labels.size != images.shape[3]:
            raise InputError(
                f"{path} holds {images.shape[3]} images and {labels.size} labels; fetch it again"
            )
        x.append(images.transpose(3, 2, 0, 1))
        y.append(labels.ravel().astype(np.int64))
    labels = np.concatenate(y)
    return np.concatenate(x), np.where(labels == 10, 0, labels), len(x[0]), ()


def read_python_files(
    paths: Sequence[Path], *, files: tuple[str, ...], key: str, meta: tuple[str, str]
) -> ReadArrays:
    """Read the Python version of CIFAR from its folder or its archive.

    Args:
        paths: the files of the folder, or the archive.
        files: the batch files, the test batch last.
        key: the key of the labels in a batch.
        meta: the file with the class names, and their key in it.
    """
    contents = _read_files(paths, (*files, meta[0]), files)
    parts = [_check_batch(unpickle(contents[name], name), key, name) for name in files]
    names = unpickle(contents[meta[0]], meta[0]).get(meta[1], []) if meta[0] in contents else []
    return (
        *_join_batches(parts),
        tuple(n.decode() if isinstance(n, bytes) else str(n) for n in names),
    )


def read_binary_files(
    paths: Sequence[Path], *, files: tuple[str, ...], label_bytes: int
) -> ReadArrays:
    """Read the binary version of CIFAR, in which `label_bytes` label bytes precede each image."""
    contents = _read_files(paths, files, files)
    parts = []
    for name in files:
        flat = np.frombuffer(contents[name], dtype=np.uint8)
        if len(flat) == 0 or len(flat) % (CIFAR_IMAGE_BYTES + label_bytes):
            raise InputError(
                f"{name} has {len(flat)} bytes; expected a multiple of "
                f"{CIFAR_IMAGE_BYTES + label_bytes}, {label_bytes} "
                "for labels and 3072 for each image; fetch it again"
            )
        rows = flat.reshape(-1, CIFAR_IMAGE_BYTES + label_bytes)
        parts.append((rows[:, label_bytes:], rows[:, label_bytes - 1].astype(np.int64)))
    return (*_join_batches(parts), ())


def _read_files(
    paths: Sequence[Path], wanted: tuple[str, ...], needed: tuple[str, ...]
) -> dict[str, bytes]:
    """Read files from an archive or a folder, by name.

    Args:
        paths: the archive, or the files that were found in the folder.
        wanted: the names of the files to read.
        needed: those of them that must exist.
    """
    if len(paths) == 1 and paths[0].suffix == ".gz":
        contents = read_tar_members(paths[0], wanted)
        missing = [name for name in needed if name not in contents]
        if missing:
            raise InputError(
                f"{paths[0]} lacks {', '.join(missing)}; expected the archive as published"
            )
        return contents
    files = [paths[0].parent / name for name in wanted]
    return {path.name: path.read_bytes() for path in files if path.is_file()}


def read_tar_members(path: Path, wanted: tuple[str, ...]) -> dict[str, bytes]:
    """Read files of an archive into memory, by their base name; nothing is unpacked to the disk."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name in wanted and member.isfile():
                    if member.size > MAX_MEMBER_BYTES:
                        raise InputError(f"{path}: {name} has {member.size} bytes; fetch it again")
                    file = archive.extractfile(member)
                    contents[name] = b"" if file is None else file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise InputError(
            f"{path} cannot be read ({error}); expected a whole .tar.gz archive, so fetch it again"
        ) from error
    return contents


def _check_batch(content: dict[str, Any], key: str, where: str) -> tuple[Array, Array]:
    """Return the pixels and the labels of one CIFAR batch after checking them."""
    if "data" not in content or key not in content:
        raise InputError(
            f"{where} holds {', '.join(content) or 'nothing'}; expected data and {key} (CIFAR-10 "
            "and CIFAR-100 differ here: check that it is the right data set)"
        )
    rows = content["data"]
    if (
        not isinstance(rows, np.ndarray)
        or rows.dtype != np.uint8
        or rows.shape[1:] != (CIFAR_IMAGE_BYTES,)
    ):
        shape = getattr(rows, "shape", type(rows).__name__)
        raise InputError(
            f"data of {where} is {shape}; expected uint8 of shape (n, {CIFAR_IMAGE_BYTES})"
        )
    labels = np.asarray(content[key])
    if labels.dtype.kind not in "iu" or labels.shape != (len(rows),):
        raise InputError(
            f"{where} has {len(rows)} images and labels {labels.dtype} {labels.shape}; expected "
            "one number for each"
        )
    return rows, labels.astype(np.int64)


def _join_batches(parts: list[tuple[Array, Array]]) -> tuple[Array, Array, int]:
    """Return all images as (n, 3, 32, 32), all labels, and the index where the last batch begins."""
    images = np.concatenate([rows for rows, _ in parts]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([labels for _, labels in parts])
    return images, labels, len(images) - len(parts[-1][0])


# --- Read pickles safely


def unpickle(raw: bytes, where: str) -> dict[str, Any]:
    """Return the dictionary of a CIFAR batch without running any code of the file.

    Raises:
        InputError: if the pickle needs anything but numpy arrays and plain containers.
    """
    try:
        content = _Unpickler(BytesIO(raw), encoding="bytes").load()
    except Exception as error:  # broken pickles raise almost any error
        raise InputError(
            f"{where} is refused: {error}; expected the pickled arrays of CIFAR's python "
            "version, unchanged, so fetch it again"
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{where} holds a {type(content).__name__}; expected a dictionary")
    return {k.decode() if isinstance(k, bytes) else str(k): v for k, v in content.items()}


class _Unpickler(pickle.Unpickler):
    """Unpickle numpy arrays and plain containers only."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few callables that arrays need; a pickle could run any code otherwise."""
        try:
            return ALLOWED_CALLABLES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it imports {module}.{name}, which no such file needs"
            ) from None


def _make_empty_array(*_: Any) -> Array:
    """Return an empty array that is filled later; the announced size is ignored."""
    return np.ndarray.__new__(np.ndarray, (0,), "b")


def _encode_latin1(text: str, encoding: str) -> bytes:
    """Return bytes, as Python 3 pickles them in old protocols."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} has no business here")
    return text.encode("latin1")


def _array_from_buffer(content: Any, dtype: Any, shape: Any, order: str) -> Array:
    """Return an array, as protocol 5 pickles it."""
    return np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if order == "F" else "C")


ALLOWED_CALLABLES: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _make_empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _make_empty_array,
    ("numpy.core.numeric", "_frombuffer"): _array_from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _array_from_buffer,
    ("numpy", "ndarray"): _make_empty_array,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode_latin1,
}


# --- The data sets


def _as_alternatives(*files: str) -> tuple[tuple[str, ...], ...]:
    """Return a layout in which every file has a single name."""
    return tuple((name,) for name in files)


def _make_idx_dataset(
    name: str, classes: tuple[str, ...], folder: str, url: str, md5: Sequence[str]
) -> BenchmarkLoader:
    """Describe MNIST or one of its relatives."""
    names = tuple((f"{f}.gz", f, f.replace("-idx", ".idx")) for f in IDX_FILES)
    layouts = (
        FileLayout(names, read_idx_files),
        FileLayout(_as_alternatives(f"{name}.npz"), read_npz_files),
    )
    remote = [RemoteFile(f"{file}.gz", url, m) for file, m in zip(IDX_FILES, md5, strict=True)]
    return BenchmarkLoader(name, classes, (1, 28, 28), layouts, (f"{folder}/raw",), remote)


def _make_cifar_dataset(
    count: int, classes: tuple[str, ...], files: tuple[str, ...], meta: tuple[str, str], md5: str
) -> BenchmarkLoader:
    """Describe CIFAR-10 or CIFAR-100: Python version, binary version, or an .npz."""
    fine = count == 100
    binary = tuple(f"{f}.bin" for f in files)
    key = "fine_labels" if fine else "labels"
    python = partial(read_python_files, files=files, key=key, meta=meta)
    plain = partial(read_binary_files, files=binary, label_bytes=2 if fine else 1)
    archive = f"cifar-{count}-python.tar.gz"
    layouts = (
        FileLayout(_as_alternatives(*files), python),
        FileLayout(_as_alternatives(archive), python),
        FileLayout(_as_alternatives(*binary), plain),
        FileLayout(_as_alternatives(f"cifar-{count}-binary.tar.gz"), plain),
        FileLayout(((f"cifar{count}.npz", f"cifar{count}_12k.npz"),), read_npz_files),
    )
    stems = [
        f"cifar-{count}-{end}"
        for end in (("python", "binary") if fine else ("batches-py", "batches-bin"))
    ]
    subfolders = (*stems, *(f"cifar{count}/{stem}" for stem in stems))
    remote = [RemoteFile(archive, "https://www.cs.toronto.edu/~kriz/", md5)]
    return BenchmarkLoader(f"cifar{count}", classes, (3, 32, 32), layouts, subfolders, remote)


_mnist = _make_idx_dataset(
    "mnist",
    DIGIT_CLASSES,
    "MNIST",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
_fashion = _make_idx_dataset(
    "fashion-mnist",
    FASHION_CLASSES,
    "FashionMNIST",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)
_cifar10 = _make_cifar_dataset(
    10,
    CIFAR10_CLASSES,
    CIFAR10_FILES,
    ("batches.meta", "label_names"),
    "c58f30108f718f92721af3b95e74349a",
)
_cifar100 = _make_cifar_dataset(
    100,
    CIFAR100_CLASSES,
    ("train", "test"),
    ("meta", "fine_label_names"),
    "eb9058c3a382ffc7106e4002c42a8d85",
)
_svhn = BenchmarkLoader(
    "svhn",
    DIGIT_CLASSES,
    (3, 32, 32),
    (
        FileLayout(_as_alternatives(*SVHN_FILES), read_mat_files),
        FileLayout((("svhn.npz", "svhn_12k.npz"),), read_npz_files),
    ),
    (),
    [
        RemoteFile(SVHN_FILES[0], SVHN_URL, "e26dedcc434d2e4c54c9b2d4a06d8373"),
        RemoteFile(SVHN_FILES[1], SVHN_URL, "eb5a983be6a315427106f1b164d9cef3"),
    ],
)
_DATASETS = (
    PublicDataset(
        "digits", "1,797 handwritten digits, 8 x 8, grey; needs no file", _load_digits, ()
    ),
    PublicDataset("mnist", "70,000 handwritten digits, 28 x 28, grey", _mnist, IDX_FILES),
    PublicDataset("fashion-mnist", "70,000 pieces of clothing, 28 x 28, grey", _fashion, IDX_FILES),
    PublicDataset(
        "cifar10",
        "60,000 photographs of 10 classes, 32 x 32",
        _cifar10,
        ("cifar-10-python.tar.gz", "cifar10.npz"),
    ),
    PublicDataset(
        "cifar100",
        "60,000 photographs of 100 classes, 32 x 32",
        _cifar100,
        ("cifar-100-python.tar.gz", "cifar100.npz"),
    ),
    PublicDataset("svhn", "99,289 house numbers, 32 x 32", _svhn, (*SVHN_FILES, "svhn.npz")),
    PublicDataset(
        "caltech101", "8,677 photographs of 101 classes, any size", _load_caltech, CALTECH_NAMES
    ),
)
DATASETS: Mapping[str, PublicDataset] = MappingProxyType({entry.name: entry for entry in _DATASETS})
