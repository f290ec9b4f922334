"""Load a data set by name or path."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from labelahead.data.arrays import load_npz
from labelahead.data.classes import check_name
from labelahead.data.dataset import Loaded
from labelahead.data.excel import WORKBOOK_SUFFIXES, split_sheet
from labelahead.data.folder import load_folder
from labelahead.data.guesses import attach_guesses, is_guess_column, is_guess_file
from labelahead.data.joined_embeddings import split_joined_embedding
from labelahead.data.public_datasets import DATASETS, PublicDataset
from labelahead.data.records import AUTO_ID
from labelahead.data.split import (
    CLASSES,
    LoadOptions,
    expand_path,
    get_default_root,
    name_from_path,
)
from labelahead.data.table import load_table
from labelahead.data.targets import make_task
from labelahead.data.vector_files import attach_named_vectors, is_vector_file
from labelahead.errors import InputError, did_you_mean

__all__ = ["load", "load_source", "load_without_guesses"]

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".pq", ".jsonl", ".ndjson", *WORKBOOK_SUFFIXES)
READERS = {".zip": load_folder, ".npz": load_npz, **dict.fromkeys(TABLE_SUFFIXES, load_table)}


def load(
    source: str | Path,
    *,
    root: str | Path | None = None,
    size: int | None = None,
    target: str | None = None,
    limit: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    download: bool = True,
    links: bool = True,
    checked: bool = True,
    without: Sequence[str] = (),
    classes: Sequence[str] = (),
    id: str = AUTO_ID,
    guesses: Sequence[str] = (),
    task: str = CLASSES,
    label_columns: Sequence[str] = (),
    unit: str = "",
    limits: tuple[float, float] | None = None,
    columns_needed: bool = True,
) -> Loaded:
    """Load a data set by its name or its path.

    The source is the name of a public data set such as `digits`, a folder or zip of images,
    sounds or texts, a table, or an .npz file.

    Args:
        source: the name or the path; `book.xlsx#Sheet2` is one sheet of a workbook.
        root: the folder of the public data sets; default $LABELAHEAD_DATA or ~/.cache/labelahead.
        size: the side of the images, in pixels.
        target: the column with the labels of a table.
        limit: the number of pool items to keep.
        test_fraction: the fraction of each class to hold out, if the data have no test set.
        seed: the seed of the test set and of the limit.
        download: whether a public data set may be downloaded.
        links: whether to follow links that lead out of a folder of images.
        checked: whether to open all images now; otherwise broken ones are items too, and are found
            when they are displayed.
        without: columns of a table that are not used as inputs.
        classes: names of classes. A label in this list is a class even if it is `None` or contains
            a separator; subfolders with other names are not classes.
        id: the column with the ids of a table, "none" for row numbers, "auto" for a column called
            `id` if it exists. Files are identified by their names.
        guesses: columns of a table that hold guesses; they are neither inputs nor displayed.
        task: what a label is: classes (one of them), multilabel, number or rating.
        label_columns: several columns with labels: 0 or 1 for each class, or one for each number.
        unit: of numbers.
        limits: the least and the largest possible number.
        columns_needed: whether to refuse a table without a column to learn from; False if its
            items come with vectors.

    Returns:
        The data, and the labels; the latter are None if no item has a label.

    Raises:
        InputError: if the source is unknown or cannot be read.

    >>> from labelahead.data import load
    >>> data, answers = load("digits")
    >>> len(data), data.shape, len(data.classes)
    (1797, (1, 8, 8), 10)
    """
    options = LoadOptions(
        root=get_default_root() if root is None else expand_path(root),
        size=size,
        target=target,
        limit=limit,
        test_fraction=test_fraction,
        seed=seed,
        download=download,
        links=links,
        checked=checked,
        without=tuple(without),
        classes=_check_class_names(classes),
        id=id,
        guesses=tuple(guesses),
        task=task,
        label_columns=tuple(label_columns),
        unit=unit,
        limits=limits,
        columns_needed=columns_needed,
    )
    if not isinstance(source, str | Path) or not str(source).strip():
        raise InputError(
            f"source is {source!r}; expected the name of a data set ({', '.join(DATASETS)}) or a "
            "path"
        )
    entry = _find_public_dataset(source)
    if entry is not None:
        options.refuse_target(entry.name)
        options.refuse_id(entry.name, "positions")
        return _with_task(entry.load(options), options)
    path = expand_path(source)
    try:
        file, _ = split_sheet(path)
        is_folder = path.is_dir()
        exists = file.exists()
    except OSError as error:  # for example a name that is too long
        raise InputError(
            f"{str(source)[:100]!r} is no known data set and no path: {error}"
        ) from error
    if is_folder:
        return _with_task(_load_folder(path, options), options)
    if not exists:
        raise _unknown_source_error(source, path)
    reader = READERS.get(file.suffix.lower())
    if reader is None or not file.is_file():
        raise InputError(
            f"{path} is of a kind that is not read here; expected a folder of pictures, sounds or "
            "texts, or a file "
            f"ending in {', '.join(READERS)}"
        )
    return _with_task(reader(path, options), options)


def _with_task(loaded: Loaded, options: LoadOptions) -> Loaded:
    """Return data without labels with their task, if it is known.

    Raises:
        InputError: if the data have one class per item, and the task is another one.
    """
    data, answers = loaded
    if options.has_classes or data.task is not None:
        return loaded
    if answers is not None:
        raise InputError(
            f"{data.name} has one class for each item, but the task is {options.task}; expected a "
            "table with such labels, or data without labels and a file of labels"
        )
    outputs = options.classes
    if options.task == "number":
        outputs = options.label_columns or (options.target or "value",)
    made = make_task(options.task, outputs, [options.unit], options.limits) if outputs else None
    return replace(data, task=made, classes=()), None


def get_data_name(source: str | Path) -> str:
    """Return the name that `load` gives the data of a source, without reading them.

    >>> from labelahead.data.loading import get_data_name
    >>> get_data_name("CIFAR-10"), get_data_name("tables/customers.xlsx#Orders")
    ('cifar10', 'customers-Orders')
    """
    entry = _find_public_dataset(source)
    return name_from_path(expand_path(source)) if entry is None else entry.name


def _find_public_dataset(source: str | Path) -> PublicDataset | None:
    """Return the public data set of this name, which has priority over a folder of the same name.

    A `Path` is always a path.
    """
    by_name = {_normalise_name(name): entry for name, entry in DATASETS.items()}
    return (
        by_name.get(_normalise_name(source))
        if isinstance(source, str) and not re.search(r"[/\\]", source)
        else None
    )


def _unknown_source_error(source: str | Path, path: Path) -> InputError:
    """Return the error for a source that is neither a public data set nor a path."""
    return InputError(
        f"{str(source)!r} is no known data set and no existing path; "
        f"{did_you_mean(path.name, DATASETS)}expected one of {', '.join(DATASETS)}, or "
        f"the path of a folder of pictures, sounds or texts, or a file ({', '.join(READERS)})"
    )


def load_source(
    source: Any,
    seed: int,
    guess_classes: Sequence[str] = (),
    former_classes: Mapping[str, str | None] | None = None,
) -> Loaded:
    """Load the data set of a configuration.

    Args:
        source: an object with a `name` and all options of `load` except the seed, such as `Source`.
            If its `embedding` is a file of vectors, they become part of the data.
        seed: the seed of the test set and of the limit.
        guess_classes: the classes that guesses are about; default: those of the data.
        former_classes: former names that guesses may use, see `Data`.

    >>> from labelahead import Source
    >>> from labelahead.data import load_source
    >>> data, answers = load_source(Source("digits", limit=100), seed=0)
    >>> len(data) - len(data.test)
    100
    """
    if source.guesses and source.task != CLASSES:
        raise InputError(
            f"guesses are given for the task {source.task}; they work for one class per item only: "
            "leave out --guesses"
        )
    data, answers = load_without_guesses(source, seed)
    data = replace(data, former_classes=former_classes or {})
    files = [name for name in source.guesses if is_guess_column(name) or is_guess_file(name)]
    return attach_guesses(data, files, guess_classes or data.classes or source.classes), answers


def load_without_guesses(source: Any, seed: int) -> Loaded:
    """Load the data set of a configuration, without reading its guesses.

    Columns of guesses are no features, as in `load_source`.

    Args:
        source: as for `load_source`.
        seed: the seed of the test set and of the limit.
    """
    wanted = {
        option.name: getattr(source, option.name)
        for option in fields(LoadOptions)
        if option.name not in ("seed", "columns_needed")
    }
    embedding = getattr(source, "embedding", None)
    named = any(is_vector_file(name) for name in split_joined_embedding(embedding or ""))
    data, answers = load(source.name, seed=seed, columns_needed=not named, **wanted)
    return attach_named_vectors(data, embedding), answers


def _check_class_names(classes: Sequence[str]) -> tuple[str, ...]:
    if isinstance(classes, str):
        raise InputError(f"classes is the text {classes!r}; expected a list of class names")
    return tuple(check_name(name, "the name of a class") for name in classes)


def _normalise_name(name: str) -> str:
    """Return a name without case and punctuation: CIFAR-10 is cifar10."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _load_folder(path: Path, options: LoadOptions) -> Loaded:
    """Load a folder of images, sounds or texts; if it holds a public data set, the error says so."""
    try:
        return load_folder(path, options)
    except InputError as error:
        found = [
            entry.name
            for entry in DATASETS.values()
            if any((path / f).exists() or (path / f"{f}.gz").exists() for f in entry.files)
        ]
        if not found:
            raise
        raise InputError(
            f"{error}. It holds files named as those of {', '.join(found)}: "
            f"load({found[0]!r}, root={str(path)!r}) reads them"
        ) from error
