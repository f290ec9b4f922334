"""Load arrays, tensors, .npz files and torch data sets; hold inputs in memory."""

import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset

from labelahead.batching import Samples
from labelahead.data.classes import encode_labels
from labelahead.data.dataset import (
    UNKNOWN,
    Answers,
    Data,
    Images,
    Loaded,
    Rows,
    Texts,
    as_positions,
    check_image_size,
    find_first_nonfinite,
    hash_tensor,
    refuse_inputs,
)
from labelahead.data.preprocessing import NUMBER_INPUTS, PICTURE_INPUTS, Preprocessor
from labelahead.data.records import Records, choose_id_column, read_ids
from labelahead.data.size_limits import (
    format_bytes,
    get_free_memory,
    read_npy_header,
    require_npy_content,
)
from labelahead.data.split import (
    CLASSES,
    SEVERAL_COLUMNS,
    LoadOptions,
    Split,
    name_from_path,
    split_items,
)
from labelahead.data.targets import EncodedLabels, build_targets, read_task_values
from labelahead.errors import InputError, import_extra
from labelahead.tasks import Task, find_task

__all__ = [
    "ClassLabels",
    "Content",
    "NumericInputs",
    "PixelInputs",
    "build_dataset",
    "build_from_tensor",
    "compute_mean_std",
    "from_arrays",
    "from_dataset",
    "load_npz",
    "read_npz",
]

# Names of the arrays in an .npz file, and of the parts of an item of a torch data set.
INPUT_ARRAY_NAMES = ("x", "inputs", "data", "images", "features", "embeddings")
LABEL_ARRAY_NAMES = ("y", "labels", "label", "target", "targets")
CLASS_ARRAY_NAMES = ("classes", "class_names", "target_names")
EXPECTED_ARRAYS = (
    "x and y, inputs and labels, data and target, or x_train, y_train, x_test and y_test"
)
INPUT_KEYS = ("image", "img", "pixel_values", "inputs", "input", "x", "features", "data")
LABEL_KEYS = ("label", "labels", "target", "targets", "y", "fine_label", "class")
NPZ_READ_ERRORS = (
    OSError,
    EOFError,
    KeyError,
    RuntimeError,
    ValueError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)
PROBED_ITEMS = 8  # items read twice to detect a random transform
CHUNK_ITEMS = 2048  # items converted at a time, to avoid a second full copy
MIN_DISPLAY_PIXELS = 256  # smaller images are enlarged to about this size
Array = np.ndarray[Any, Any]


# --- Arrays and tensors


def from_arrays(
    inputs: Any,
    labels: Any = None,
    *,
    classes: Sequence[str] | None = None,
    test: Any = None,
    name: str = "arrays",
    ids: Sequence[Any] | None = None,
    task: Task | str | None = None,
) -> Loaded:
    """Make a data set of inputs (n, ...) and optional labels (n,).

    Floating-point inputs are used unchanged and not copied. uint8 images (n, H, W), (n, H, W, C) or
    (n, C, H, W) are standardised per channel over the pool. A mapping of tensors, or `Samples`, is
    passed to the network unchanged.

    Args:
        inputs: arrays, tensors, a mapping of tensors, or `Samples`.
        labels: class numbers or names; None, NaN or -1 where unknown.
        classes: all class names, in the order of their numbers.
        test: the positions held out for testing, or a mask (n,).
        name: the name of the data set.
        ids: unique ids of the items in label files and exports; default: their positions.
        task: what a label is: a task, or multilabel, number or rating; default: one class. Labels
            are then lists of classes, numbers (n,) or (n, D), ratings, or 0 and 1 for each class,
            (n, C); None or NaN where unknown.

    Returns:
        The data, and the labels; the latter are None if no item has a label.

    Raises:
        InputError: if inputs, labels, test or ids do not fit.

    >>> import numpy as np
    >>> from labelahead.data import from_arrays
    >>> data, answers = from_arrays(np.zeros((5, 8)), [0, 1, None, 1, 0], classes=["no", "yes"], test=[4])
    >>> data.inputs.shape, data.test.tolist(), answers.has_label.tolist()
    (torch.Size([5, 8]), [4], [True, True, False, True, True])
    """
    if isinstance(inputs, Mapping):
        inputs = Samples(inputs)
    values, notes = (
        (inputs, ()) if isinstance(inputs, Samples) else to_input_tensor(inputs, "inputs")
    )
    codes, names, label_notes, made = _encode_array_labels(labels, classes, task, len(values))
    if isinstance(test, np.ndarray | Tensor) and test.dtype in (np.bool_, torch.bool):
        if test.shape != (len(values),):
            raise InputError(
                f"test is a mask of shape {tuple(test.shape)}; expected ({len(values)},)"
            )
        test = torch.as_tensor(test).nonzero().flatten()
    at = as_positions([] if test is None else test, len(values), "test")
    at = torch.from_numpy(np.unique(at.numpy()))
    if labels is not None and len(at) and bool((codes[at] == UNKNOWN).any()):
        first = int(at[codes[at] == UNKNOWN][0])
        raise InputError(f"test item {first} has no label; expected one for every test item")
    split = Split(torch.arange(len(values)), at, (*notes, *label_notes))
    checked_ids = None if ids is None else _check_ids(ids, len(values), name)
    if isinstance(values, Samples):
        return _wrap_samples(name, values, ClassLabels(codes, names, task=made), split, checked_ids)
    labels = ClassLabels(codes, names, task=made)
    return build_from_tensor(name, values, labels, split, standardise=False, ids=checked_ids)


def _check_ids(ids: Sequence[Any], n: int, name: str) -> tuple[str, ...]:
    """Return the ids as texts.

    Raises:
        InputError: if their number is wrong, or one is empty or repeated.
    """
    if len(ids) != n:
        raise InputError(f"there are {n} inputs and {len(ids)} ids; expected one id for each input")
    return tuple(read_ids(name, "ids", list(ids), [f"item {i}" for i in range(n)]))


def _wrap_samples(
    name: str,
    samples: Samples,
    labels: "ClassLabels",
    split: Split,
    ids: tuple[str, ...] | None = None,
) -> Loaded:
    """Make a data set of inputs that are not a single tensor."""
    ids = ids or tuple(map(str, range(len(samples))))
    message = (
        f"{name} has samples that are no tensor; expected something that takes them as they are"
    )
    build = partial(refuse_inputs, message)
    data = Data(
        name,
        labels.classes,
        split.test,
        ids,
        "samples",
        split.notes,
        None,
        (),
        build,
        samples=samples,
        task=labels.task,
    )
    known = bool((labels.numbers >= 0).any())
    return data, Answers(labels.numbers, ids) if known else None


def _encode_array_labels(
    labels: Any, classes: Sequence[str] | None, task: Task | str | None, n: int
) -> tuple[Tensor, tuple[str, ...], tuple[str, ...], Task | None]:
    """Encode labels of any task: codes (n,), class names or answers, notes, and the task."""
    if task is None or task == CLASSES:
        return (*_encode_labels(labels, classes, n), None)
    if isinstance(task, Task):
        known = find_task(**task.describe())
        rows = [None] * n if labels is None else list(labels)
        codes = [UNKNOWN if code is None else code for code in known.parse_all(rows)]
        return torch.tensor(codes, dtype=torch.int64), tuple(known.answers), (), known
    columns = {"labels": [None] * n} if labels is None else _split_columns(labels, classes, task)
    values = next(iter(columns.values()))
    if len(values) != n:
        raise InputError(
            f"there are {n} inputs and {len(values)} labels; expected one label for each input"
        )
    read = read_task_values(task, columns, "item {}".format, "the labels", classes or ())
    found = build_targets(task, read)
    if found is None:
        return torch.full((n,), UNKNOWN), (), (), None
    return found.codes, tuple(found.task.answers), found.notes, found.task


def _split_columns(labels: Any, names: Sequence[str] | None, task: str) -> dict[str, Sequence[Any]]:
    """Return labels as columns: one, or one for each class or target of an array (n, C)."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    if not isinstance(labels, np.ndarray) or labels.ndim != 2:
        return {"value" if task == "number" else "labels": list(labels)}
    count = labels.shape[1]
    if count == 1 and task == "number":
        return {"value": labels[:, 0].tolist()}
    given = list(names or map(str, range(count)))
    if len(given) != count:
        raise InputError(
            f"labels have {count} columns, but {len(given)} classes are named; expected as many"
        )
    return {name: labels[:, i].tolist() for i, name in enumerate(given)}


def _encode_labels(
    labels: Any, classes: Sequence[str] | None, n: int
) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """Encode labels; without labels all are unknown.

    Returns:
        Class numbers (n,), class names, and notes for the user.
    """
    if labels is None:
        return torch.full((n,), UNKNOWN), tuple(classes or ()), ()
    codes, names, notes = encode_labels(labels, classes)
    if len(codes) != n:
        raise InputError(
            f"there are {n} inputs and {len(codes)} labels; expected one label for each input"
        )
    return codes, names, notes


# --- torch data sets


def from_dataset(
    dataset: Dataset[Any], *, classes: Sequence[str] | None = None, limit: int | None = None
) -> Loaded:
    """Make a data set of a torch data set with items x, (x, y) or dictionaries.

    Every item is read once and held in memory. Inputs are used unchanged, except that 8-bit images
    are standardised. There is no test set: `dataclasses.replace(data, test=positions)` sets one.

    Args:
        dataset: a torch `Dataset` with a length, or an `IterableDataset`.
        classes: the class names; default: those of the data set.
        limit: the number of items to keep, drawn at random with seed 0; of a stream, the first
            ones.

    Raises:
        InputError: if the items have different shapes or change when read again.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> from labelahead.data import from_dataset
    >>> data, answers = from_dataset(TensorDataset(torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 0, 1])))
    >>> len(data), answers(1)
    (6, 1)
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InputError(f"limit is {limit!r}; expected a whole number of at least 1")
    positions, items, notes = _iter_items(dataset, limit)
    inputs: list[Tensor] = []
    labels: list[Any] = []
    for position, item in zip(positions, items, strict=False):
        x, y = _split_item(item, position)
        if inputs and (x.shape != inputs[0].shape or x.dtype != inputs[0].dtype):
            raise InputError(
                f"item {position} is {x.dtype} {tuple(x.shape)} and the first one "
                f"{inputs[0].dtype} {tuple(inputs[0].shape)}; expected equal shapes, so give the "
                "data set a transform that resizes"
            )
        inputs.append(x)
        labels.append(y)
    if not inputs:
        raise InputError("the data set has no items; expected at least one")
    stacked = torch.stack(inputs)
    stacked = stacked.unsqueeze(1) if stacked.ndim == 1 else stacked
    values, input_notes = to_input_tensor(stacked, "the data set")
    codes, names, label_notes = encode_labels(labels, _find_class_names(dataset, classes))
    split = Split(torch.arange(len(values)), torch.empty(0, dtype=torch.int64), ())
    all_notes = (*notes, *input_notes, *label_notes)
    ids = tuple(str(position) for position, _ in zip(positions, inputs, strict=False))
    return build_from_tensor(
        type(dataset).__name__,
        values,
        ClassLabels(codes, names),
        split,
        notes=all_notes,
        standardise=False,
        ids=ids,
    )


def _iter_items(
    dataset: Dataset[Any], limit: int | None
) -> tuple[Sequence[int], Iterator[Any], tuple[str, ...]]:
    """Return the positions to read, the items in that order, and notes for the user.

    Raises:
        InputError: if it is no data set, or a random transform changes its items.
    """
    if isinstance(dataset, IterableDataset):
        note = () if limit is None else (f"the first {limit} items of a stream",)
        return range(limit or 2**62), islice(iter(dataset), limit), note
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError(
            f"dataset is a {type(dataset).__name__}; expected a torch Dataset with a length, or "
            "an IterableDataset (for arrays there is from_arrays)"
        )
    n = len(dataset)
    positions: Sequence[int] = range(n)
    notes: tuple[str, ...] = ()
    if limit is not None and limit < n:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
        positions = sorted(order[:limit].tolist())
        notes = (f"{limit} of {n} items kept, at random, seed 0",)
    for position in positions[:PROBED_ITEMS]:
        first, again = (_split_item(dataset[position], position)[0] for _ in range(2))
        if first.shape != again.shape or not bool(torch.eq(first, again).all()):
            if bool(first.isnan().any()):
                break  # `to_input_tensor` reports it with its position
            raise InputError(
                f"item {position} differs when read twice: the data set has a random transform; "
                "expected the same input each time, so leave augmentation out"
            )
    return positions, (dataset[position] for position in positions), notes


def _split_item(item: Any, position: int) -> tuple[Tensor, Any]:
    """Return the input and the label of one item; the label is None if there is none."""
    if isinstance(item, Mapping):
        key = next((k for k in INPUT_KEYS if k in item), None)
        if key is None:
            raise InputError(
                f"item {position} has the keys {', '.join(map(str, item))}; expected one of "
                f"{', '.join(INPUT_KEYS)}"
            )
        label = next((item[k] for k in LABEL_KEYS if k in item), None)
        return _to_tensor(item[key], position), _to_label(label, position)
    if isinstance(item, tuple | list):
        if len(item) not in (1, 2):
            raise InputError(
                f"item {position} has {len(item)} parts; expected x, (x, y) or a dictionary"
            )
        return _to_tensor(item[0], position), _to_label(
            item[1] if len(item) == 2 else None, position
        )
    return _to_tensor(item, position), None


def _to_tensor(value: Any, position: int) -> Tensor:
    """Return one input as a tensor; Pillow images become uint8 (C, H, W)."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if hasattr(value, "convert") and hasattr(value, "mode"):
        picture = value if value.mode in ("L", "RGB") else value.convert("RGB")
        array = np.array(picture, dtype=np.uint8)
        return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())
    try:
        return torch.as_tensor(np.array(value))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the input of item {position} is a {type(value).__name__} ({error}); expected a "
            "tensor, an array or a picture, so give the data set a transform"
        ) from error


def _to_label(value: Any, position: int) -> Any:
    """Return one label: a number, a name or None."""
    if isinstance(value, Tensor | np.ndarray):
        if value.size != 1 if isinstance(value, np.ndarray) else value.numel() != 1:
            raise InputError(
                f"the label of item {position} has shape {tuple(value.shape)}; expected one class"
            )
        return value.item()
    return value


def _find_class_names(dataset: Any, classes: Sequence[str] | None) -> Sequence[str] | None:
    """Return the given class names, or those of the data set."""
    carried = getattr(dataset, "classes", None)
    if classes is not None or not isinstance(carried, list | tuple):
        return classes
    return carried if carried and all(isinstance(name, str) for name in carried) else None


# --- .npz files


def load_npz(path: Path, options: LoadOptions) -> Loaded:
    """Load an .npz file with inputs, optional labels and an optional test set."""
    options.refuse_target(str(path))
    arrays = read_npz(path)
    x, y, train = find_npz_arrays(path, arrays, several=options.task in SEVERAL_COLUMNS)
    notes = [] if train is None else [f"test part as in the file: {len(x) - train} items"]
    names = next((arrays[key] for key in CLASS_ARRAY_NAMES if key in arrays), None)
    classes = None if names is None or names.ndim != 1 else [str(name) for name in names.tolist()]
    values, input_notes = to_input_tensor(x, path.name)
    labels = _encode_npz_labels(path, y, classes, options)
    codes = labels.codes
    if len(codes) != len(values):
        raise InputError(
            f"{path} holds {len(values)} inputs and {len(codes)} labels; expected as many"
        )
    if values.ndim != 4:
        options.refuse_size(str(path))
    if not bool((codes >= 0).any()):
        notes.append("no labels in the file")
    official = None if train is None else torch.arange(len(codes)) >= train
    if official is not None and bool((codes[official] == UNKNOWN).any()):
        lost = official & (codes == UNKNOWN)
        official &= ~lost
        notes.append(f"{int(lost.sum())} test items have no label: they join the pool")
    split = split_items(codes, options, official, strata=labels.strata)
    all_notes = (*notes, *input_notes, *labels.notes, "inputs standardised over the pool")
    ids = read_npz_ids(path, arrays, len(codes), options.id)
    ids = None if ids is None else tuple(ids[int(i)] for i in split.keep)
    data, answers = build_from_tensor(
        name_from_path(path),
        values,
        ClassLabels(codes, labels.classes, task=labels.task),
        split,
        notes=all_notes,
        size=options.size,
        ids=ids,
    )
    return replace(data, vectors=_find_embeddings(arrays, len(codes), split.keep)), answers


def _encode_npz_labels(
    path: Path, y: Sequence[Any], classes: Sequence[str] | None, options: LoadOptions
) -> EncodedLabels:
    """Encode the labels of an .npz file."""
    where = f"{path}: the labels"
    if options.has_classes:
        return EncodedLabels(*encode_labels(y, classes, known=options.classes, where=where))
    known = options.classes or tuple(classes or ())
    several = next((len(row) for row in y if isinstance(row, list)), 0)
    columns: dict[str, Sequence[Any]] = {"value" if options.task == "number" else "labels": y}
    if several:
        rows = [[None] * several if row is None else row for row in y]
        columns = _split_columns(np.array(rows, dtype=object), known or None, options.task)
    read = read_task_values(options.task, columns, "item {}".format, str(path), known)
    found = build_targets(options.task, read, unit=options.unit, limits=options.limits)
    return EncodedLabels.from_targets(found, len(y))


def read_npz_ids(
    path: Path, arrays: Mapping[str, Array], n: int, wanted: str
) -> tuple[str, ...] | None:
    """Return the ids of an .npz file, None for positions.

    Args:
        path: the file, for messages.
        arrays: its arrays.
        n: the number of items.
        wanted: the value of the option --id.
    """
    able = {
        name: v for name, v in arrays.items() if v.shape == (n,) and name not in LABEL_ARRAY_NAMES
    }
    name = choose_id_column(str(path), able, wanted)
    if name is None:
        return None
    return tuple(read_ids(str(path), name, able[name].tolist(), [f"item {i}" for i in range(n)]))


def _find_embeddings(arrays: dict[str, Array], n: int, keep: Tensor) -> dict[str, Tensor]:
    """Return the arrays (n, d) beside the inputs, by name; NAME_train and NAME_test are joined."""
    whole = dict(arrays)
    for name in [
        key.removesuffix("_train")
        for key in arrays
        if f"{key.removesuffix('_train')}_test" in arrays
    ]:
        train, test = arrays[f"{name}_train"], arrays[f"{name}_test"]
        if train.ndim == test.ndim == 2 and train.shape[1] == test.shape[1]:
            whole[name] = np.concatenate([train, test])
    tables = {
        name: v
        for name, v in whole.items()
        if v.ndim == 2 and len(v) == n and v.shape[1] and name not in INPUT_ARRAY_NAMES
    }
    return {
        name: torch.from_numpy(v.astype(np.float32))[keep]
        for name, v in tables.items()
        if v.dtype.kind in "iuf" and np.isfinite(v).all() and name not in LABEL_ARRAY_NAMES
    }


def read_npz(path: Path) -> dict[str, Array]:
    """Return every array of an .npz file by its lower-case name.

    Raises:
        InputError: if it cannot be read safely.
    """
    arrays: dict[str, Array] = {}
    try:
        _require_declared_sizes(path)
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise InputError(f"{path} is a single array; expected an .npz archive of several")
        with opened as archive:
            _require_memory(path, archive)
            for key in archive.files:
                if key.lower() in arrays:
                    raise InputError(
                        f"{path} holds {key!r} in capital and small letters; expected one of them"
                    )
                arrays[key.lower()] = archive[key]
    except NPZ_READ_ERRORS as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} cannot be read as .npz ({error}); expected plain arrays written by "
            "numpy.savez (object arrays are refused, since reading them can run code)"
        ) from error
    return arrays


def _require_declared_sizes(path: Path) -> None:
    """Raise if an array announces more numbers than the file holds.

    numpy would allocate memory for all of them.
    """
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            shape, _, dtype = read_npy_header(file)
            require_npy_content(shape, dtype, path.stat().st_size - file.tell(), str(path))
        return
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            with archive.open(info) as member:
                shape, _, dtype = read_npy_header(member)  # type: ignore[arg-type]
                require_npy_content(
                    shape, dtype, info.file_size - member.tell(), f"{path}, {info.filename}"
                )


def _require_memory(path: Path, archive: Any) -> None:
    """Raise before reading if the content does not fit into memory.

    A small archive can hold any number of zeros.
    """
    size, free = sum(info.file_size for info in archive.zip.infolist()), get_free_memory()
    if free is not None and 2 * size > free:  # inputs are standardised into a second copy
        raise InputError(
            f"{path} takes {format_bytes(size)} unpacked, two copies are needed, and "
            f"{format_bytes(free)} of memory "
            "are free; expected less: keep fewer items or smaller ones in it, or use a folder of "
            "files"
        )


def find_npz_arrays(
    path: Path, arrays: dict[str, Array], *, several: bool = False
) -> tuple[Array, Any, int | None]:
    """Return the inputs, the labels (None where unknown) and the index where the test set begins.

    The index is None if there is no test set.

    Args:
        path: the file, for messages.
        arrays: its arrays.
        several: whether an item may have several labels, (n, C).
    """
    for name in INPUT_ARRAY_NAMES:
        if f"{name}_train" in arrays:
            x = _require_rows(path, arrays, f"{name}_train")
            y = _find_labels(path, arrays, "_train", len(x), several=several)
            if f"{name}_test" not in arrays:
                return x, y, None
            held_out = _require_rows(path, arrays, f"{name}_test")
            if x.shape[1:] != held_out.shape[1:]:
                raise InputError(
                    f"{path}: training inputs are {x.shape[1:]} and test inputs "
                    f"{held_out.shape[1:]} each; expected equal shapes"
                )
            y = y + _find_labels(path, arrays, "_test", len(held_out), several=several)
            return np.concatenate([x, held_out]), y, len(x)
        if name in arrays:
            x = _require_rows(path, arrays, name)
            return x, _find_labels(path, arrays, "", len(x), several=several), None
    raise InputError(
        f"{path} holds {', '.join(arrays) or 'nothing'}; expected the arrays {EXPECTED_ARRAYS}"
    )


def _require_rows(path: Path, arrays: dict[str, Array], name: str) -> Array:
    """Return an array after checking that it has items."""
    if arrays[name].ndim == 0:
        raise InputError(f"{path}: {name} is a single value; expected an array (n, ...)")
    return arrays[name]


def _find_labels(
    path: Path, arrays: dict[str, Array], suffix: str, n: int, *, several: bool
) -> list[Any]:
    """Return the labels of the inputs with this suffix; all None if there are none."""
    for name in LABEL_ARRAY_NAMES:
        if name + suffix in arrays:
            labels = arrays[name + suffix]
            if several and labels.ndim == 2 and len(labels) == n and labels.shape[1] > 1:
                return list(labels.tolist())
            if labels.shape not in ((n,), (n, 1)):
                raise InputError(
                    f"{path}: {name + suffix} has shape {labels.shape}; expected ({n},), one "
                    "class for each input"
                )
            return labels.reshape(n).tolist()
    return [None] * n


# --- From tensors to data and answers


def to_input_tensor(inputs: Any, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return inputs as a tensor: uint8 (n, C, H, W) for 8-bit images, float32 otherwise.

    Returns:
        The tensor, and notes for the user.

    Raises:
        InputError: if the inputs are no finite real numbers (n, ...).
    """
    try:
        values = inputs.detach().cpu() if isinstance(inputs, Tensor) else _array_to_tensor(inputs)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} cannot be read as numbers ({error}); expected an array (n, ...) of equal rows"
        ) from error
    if values.ndim < 2 or 0 in values.shape or values.dtype.is_complex:
        raise InputError(
            f"{name} is {values.dtype} of shape {tuple(values.shape)}; expected real numbers "
            "(n, ...), at least one item, with at least one number each"
        )
    notes: list[str] = []
    if values.dtype == torch.uint8 and values.ndim == 3:
        values = values.unsqueeze(1)
    if values.ndim == 4 and values.shape[1] not in (1, 3) and values.shape[-1] in (1, 3, 4):
        values = values.permute(0, 3, 1, 2).contiguous()
        notes.append(
            f"{name}: the last dimension is interpreted as channels and moved to the front"
        )
    if values.dtype == torch.uint8 and values.ndim == 4:
        return values, tuple(notes)
    as_float = values.to(torch.float32)
    bad = find_first_nonfinite(as_float)
    if bad is not None:
        large = bool(torch.isfinite(values[bad].double()).all())
        what = "a number too large for float32" if large else "NaN or infinity"
        raise InputError(f"{name}, item {bad}, holds {what}; expected finite numbers; repair it")
    if values.ndim == 3 or values.ndim > 4:
        notes.append(
            f"{name}: shape {tuple(values.shape[1:])} is not a picture; its numbers are used "
            "unchanged"
        )
    return as_float, tuple(notes)


def _array_to_tensor(inputs: Any) -> Tensor:
    """Convert anything numpy can read to a tensor with writable memory."""
    array = np.asarray(inputs)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"its type is {array.dtype}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.float64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == np.longdouble:
        array = array.astype(np.float64)
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


@dataclass(frozen=True, eq=False)
class ClassLabels:
    """The labels of some items.

    Attributes:
        numbers: (n,) class numbers, -1 where unknown.
        classes: the class names.
        column: the name and the entries of the label column, as in the user's file.
        task: what the numbers mean, as answer codes; None: they are class numbers.
    """

    numbers: Tensor
    classes: tuple[str, ...]
    column: tuple[str, Any] | None = None
    task: Task | None = None


@dataclass(frozen=True, eq=False)
class Content:
    """What is known of the items besides their inputs.

    Attributes:
        ids: the ids; default: the positions in the source.
        images: access to the items as images, if they are images.
        rows: the rows of a table, for display.
        texts: the running text.
        build: returns the inputs, if the text determines them, or if there are none.
        preprocessor: the preprocessor of further items, if not that of the inputs.
        records: the user's own columns.
    """

    ids: tuple[str, ...] | None = None
    images: Images | None = None
    rows: Rows | None = None
    texts: Texts | None = None
    build: Callable[[], Tensor] | None = None
    preprocessor: Preprocessor | None = None
    records: Records | None = None


def build_from_tensor(
    name: str,
    values: Tensor,
    labels: ClassLabels,
    split: Split,
    *,
    notes: tuple[str, ...] = (),
    size: int | None = None,
    standardise: bool = True,
    ids: tuple[str, ...] | None = None,
) -> Loaded:
    """Make data and answers of the items of a tensor that the split keeps.

    8-bit images are always standardised, other inputs if `standardise` is true.
    """
    keep = split.keep
    values = values if len(keep) == len(values) else values[keep]
    if not len(split.pool):
        raise InputError("every item is in test; expected some for the pool")
    model_inputs: InMemoryInputs
    if values.dtype == torch.uint8:
        model_inputs = PixelInputs(values, *compute_mean_std(values, split.pool), size)
    elif standardise:
        model_inputs = NumericInputs(
            values, *_compute_scales(values, split.pool), *_find_display_range(values), size
        )
    else:
        model_inputs = NumericInputs(
            values, torch.zeros(()), torch.ones(()), *_find_display_range(values), size
        )
    images = model_inputs if values.ndim == 4 and values.shape[1] in (1, 3) else None
    kept = replace(labels, numbers=labels.numbers[keep])
    content = Content(ids=ids, images=images)
    return build_dataset(name, model_inputs, kept, split, (*notes, *split.notes), content)


def build_dataset(
    name: str,
    model_inputs: "InMemoryInputs",
    labels: ClassLabels,
    split: Split,
    notes: tuple[str, ...],
    content: Content,
) -> Loaded:
    """Make data and answers of the kept items.

    Args:
        name: the name of the data set.
        model_inputs: the inputs.
        labels: of the kept items.
        split: which items are kept, and the test set.
        notes: decisions taken while loading, for the user.
        content: what else is known of the kept items.

    Returns:
        The data, and the answers; the latter are None if no item has a label.
    """
    ids = content.ids or tuple(str(int(i)) for i in split.keep)
    has_shape = content.texts is None and all(model_inputs.shape)
    data = Data(
        name=name,
        classes=labels.classes,
        test=split.test,
        ids=ids,
        kind="image" if len(model_inputs.shape) == 3 else "vector",
        notes=notes,
        images=content.images,
        shape=model_inputs.shape if has_shape else (),
        build=content.build or model_inputs.inputs,
        rows=content.rows,
        texts=content.texts,
        further_items=content.preprocessor or model_inputs.make_preprocessor,
        records=content.records,
        depends_on_seed=split.depends_on_seed,
        task=labels.task,
    )
    numbers = labels.numbers
    return data, Answers(numbers, ids, labels.column) if bool((numbers >= 0).any()) else None


def _compute_scales(values: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation: per channel of images, per feature of vectors, else overall."""
    if values.ndim in (2, 4):
        return compute_mean_std(values, pool)
    mean, std = compute_mean_std(values.flatten().view(len(values), 1, -1), pool)
    return mean.squeeze(0), std.squeeze(0)


def _find_display_range(values: Tensor) -> tuple[float, float]:
    """Return the values that are displayed as black and as white."""
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 255:
        return 0.0, 1.0 if high <= 1 else 255.0
    return low, high if high > low else low + 1.0


def compute_mean_std(values: Tensor, pool: Tensor, dim: int = 1) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation over the pool for each entry of dimension `dim` (from 1).

    The deviation of a constant entry is 1, so that dividing by it is safe.
    """
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    over = tuple(d for d in range(values.ndim) if d != dim)
    # First entry taken off, so that squares of values far from 0 lose no digits.
    shift = values[pool[:1]].double().mean(over, keepdim=True)
    for start in range(0, len(pool), CHUNK_ITEMS):
        part = values[pool[start : start + CHUNK_ITEMS]].double() - shift
        count += part.numel() // part.shape[dim]
        total = total + part.sum(over)
        squares = squares + part.square().sum(over)
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    centre = mean + shift.flatten()
    # The last digit of a constant is no spread.
    std = torch.where(std <= 1e-7 * centre.abs(), torch.ones_like(std), std)
    return centre.float(), torch.where(std == 0, torch.ones_like(std), std).float()


# --- Inputs held in memory


class InMemoryInputs(Images):
    """Inputs held in memory, and how to display them as images."""

    values: Tensor
    size: int | None  # the side to which images are resized, in pixels; None keeps their size

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        shape = tuple(self.values.shape[1:])
        return shape if self.size is None else (shape[0], self.size, self.size)

    @abstractmethod
    def inputs(self) -> Tensor:
        """Return all inputs, standardised, float32."""

    @abstractmethod
    def make_preprocessor(self) -> Preprocessor:
        """Return the preprocessor that turns another item into such an input."""

    @abstractmethod
    def to_display_range(self, at: Tensor, size: int | None = None) -> Tensor:
        """Return images (q, C, H, W) at (q,) positions with values from 0 (black) to 255.

        Args:
            at: the positions.
            size: the side of the central square to return; None for the whole image.
        """

    def batch(self, positions: Tensor, size: int) -> Tensor:
        """Return the images as uint8 (q, 3, size, size); one channel is displayed as grey."""
        at = as_positions(positions, len(self.values), "positions")
        check_image_size(size)
        return (
            self.to_display_range(at, size)
            .round()
            .clamp(0, 255)
            .to(torch.uint8)
            .expand(-1, 3, -1, -1)
            .contiguous()
        )

    def render_picture(self, position: int, size: int) -> Array:
        """Return one image for display, uint8 (H, W, 3)."""
        return render_for_display(
            self.to_display_range(as_positions([position], len(self.values), "position")), size
        )

    def open_picture(self, position: int) -> Any:
        """Return one image of its own size for an encoder, a PIL image in RGB."""
        pil = import_extra("PIL.Image", "app", "reading pictures")
        shown = self.to_display_range(as_positions([position], len(self.values), "position"))[0]
        pixels = shown.round().clamp(0, 255).to(torch.uint8).expand(3, -1, -1)
        return pil.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())

    def content_hash(self) -> str:
        """Return a hash of all values."""
        return hash_tensor(self.values)


@dataclass(frozen=True, eq=False)
class NumericInputs(InMemoryInputs):
    """float32 inputs with the statistics that standardise them; images can be displayed."""

    values: Tensor
    mean: Tensor
    std: Tensor
    low: float = 0.0  # displayed as black
    high: float = 1.0  # displayed as white
    size: int | None = None

    def inputs(self) -> Tensor:
        """Return all inputs, standardised."""
        values = self.values if self.size is None else crop_and_resize(self.values, self.size)
        if not bool(self.mean.any()) and bool((self.std == 1).all()):
            return values  # unchanged, without a second copy
        column = (-1,) + (1,) * (self.values.ndim - 2) if self.mean.numel() > 1 else ()
        return (values - self.mean.view(column)) / self.std.view(column)

    def make_preprocessor(self) -> Preprocessor:
        """Return a preprocessor with the same mean and deviation."""
        return Preprocessor(NUMBER_INPUTS, self.shape, self.mean, self.std)

    def to_display_range(self, at: Tensor, size: int | None = None) -> Tensor:
        """Return images with `low` as black and `high` as white."""
        values = self.values[at] if size is None else crop_and_resize(self.values[at], size)
        return (values - self.low) * (255 / (self.high - self.low))


@dataclass(frozen=True, eq=False)
class PixelInputs(InMemoryInputs):
    """Images (n, C, H, W), uint8 from 0 to `white`, with the statistics that standardise them."""

    values: Tensor
    mean: Tensor
    std: Tensor
    size: int | None = None
    white: int = 255

    def inputs(self) -> Tensor:
        """Return all images at the requested size, standardised, float32."""
        out = torch.empty((len(self.values), *self.shape), dtype=torch.float32)
        mean, std = self.mean.view(-1, 1, 1), self.std.view(-1, 1, 1)
        for start in range(0, len(out), CHUNK_ITEMS):
            part = self.values[start : start + CHUNK_ITEMS].float()
            if self.size is not None:
                part = crop_and_resize(part, self.size)
            torch.div(part - mean, std, out=out[start : start + CHUNK_ITEMS])
        return out

    def make_preprocessor(self) -> Preprocessor:
        """Return a preprocessor with the same mean and deviation of each channel."""
        return Preprocessor(PICTURE_INPUTS, self.shape, self.mean, self.std, self.white)

    def to_display_range(self, at: Tensor, size: int | None = None) -> Tensor:
        """Return images with 0 as black and `white` as white."""
        levels = self.values[at].float() * (255 / self.white)
        return levels if size is None else crop_and_resize(levels, size)


def crop_and_resize(pictures: Tensor, size: int) -> Tensor:
    """Return the central square of (q, C, H, W) float images, resized to `size`."""
    height, width = pictures.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = pictures[..., top : top + side, left : left + side]
    if side == size or not len(square):
        return square if len(square) else square.new_empty((*square.shape[:2], size, size))
    return functional.interpolate(square, (size, size), mode="bilinear", antialias=True)


def render_for_display(picture: Tensor, size: int) -> Array:
    """Return an image (1, C, H, W) from 0 to 255 as uint8 (H, W, 3), whole and in its proportions.

    A small image is enlarged by an integer factor without smoothing, to show the measured pixels.
    """
    check_image_size(size)
    longer = max(picture.shape[-2:])
    if longer > size:
        sides = [max(1, round(side * size / longer)) for side in picture.shape[-2:]]
        picture = functional.interpolate(picture, sides, mode="bilinear", antialias=True)
    factor = max(1, min(size, MIN_DISPLAY_PIXELS) // longer)
    whole = picture.round().clamp(0, 255).to(torch.uint8).expand(-1, 3, -1, -1)[0]
    shown = whole.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    return np.ascontiguousarray(shown.permute(1, 2, 0).numpy())
