"""One function that loads whatever it is given a name or a path of."""

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from labelahead.data.arrays import load_npz
from labelahead.data.classes import check_name
from labelahead.data.dataset import Loaded
from labelahead.data.excel import WORKBOOK_SUFFIXES, split_sheet
from labelahead.data.folder import load_folder
from labelahead.data.public_datasets import DATASETS, PublicDataset
from labelahead.data.records import AUTO
from labelahead.data.split import LoadOptions, get_default_root, expand_path, name_from_path
from labelahead.data.table import load_table
from labelahead.errors import InputError, did_you_mean

__all__ = ["load", "load_source"]

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
    id: str = AUTO,
) -> Loaded:
    """A data set by its name or its path: `digits`, a folder of pictures or texts, a table, an
    .npz.

    `root` is where the files of known sets lie ($LABELAHEAD_DATA or ~/.cache/labelahead if not
    given), `size` the side of the pictures, `target` the column with a table's labels, `without`
    those of its columns that are not learnt from, `limit` how many items of the pool to keep. Sets
    without a test part of their own lend `test_fraction` of each class to one, drawn by `seed`.
    With `links` false, links that lead out of a folder of pictures are left out. With `checked`
    false, its pictures are not opened now: broken ones are items too, and found out when they are
    looked at. `classes` are names of classes: a label that is one of them is a class, even if it is
    `None` or holds a separator, and subfolders that are none of them are just folders. `id` is the
    column of a table that names the items, "none" for row numbers; by default a column called `id`,
    else the row number; files go by their names. The answers are None if no item has a label.

    >>> from labelahead.data import load
    >>> data, answers = load("digits")
    >>> len(data), data.shape, len(data.classes)
    (1797, (1, 8, 8), 10)
    """
    place = get_default_root() if root is None else expand_path(root)
    names = tuple(without), _check_class_names(classes), id
    options = LoadOptions(
        place, size, target, limit, test_fraction, seed, download, links, checked, *names
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
        return entry.load(options)
    path = expand_path(source)
    try:
        file, _ = split_sheet(path)
        folder, there = path.is_dir(), file.exists()
    except OSError as error:  # such as a name longer than any file's
        raise InputError(
            f"{str(source)[:100]!r} is no known data set and no path: {error}"
        ) from error
    if folder:
        return _load_folder(path, options)
    if not there:
        raise _unknown_source_error(source, path)
    reader = READERS.get(file.suffix.lower())
    if reader is None or not file.is_file():
        raise InputError(
            f"{path} is of a kind that is not read here; expected a folder of pictures or texts, "
            "or a file "
            f"ending in {', '.join(READERS)}"
        )
    return reader(path, options)


def get_data_name(source: str | Path) -> str:
    """Return the name that `load` gives the data of a source, without reading them.

    >>> from labelahead.data.loading import get_data_name
    >>> get_data_name("CIFAR-10"), get_data_name("tables/customers.xlsx#Orders")
    ('cifar10', 'customers-Orders')
    """
    entry = _find_public_dataset(source)
    return name_from_path(expand_path(source)) if entry is None else entry.name


def _find_public_dataset(source: str | Path) -> PublicDataset | None:
    """The known set of that name, which wins over a folder of that name.

    A Path is always a path.
    """
    known = {_normalise_name(name): entry for name, entry in DATASETS.items()}
    return (
        known.get(_normalise_name(source))
        if isinstance(source, str) and not re.search(r"[/\\]", source)
        else None
    )


def _unknown_source_error(source: str | Path, path: Path) -> InputError:
    return InputError(
        f"{str(source)!r} is no known data set and no existing path; "
        f"{did_you_mean(path.name, DATASETS)}expected one of {', '.join(DATASETS)}, or "
        f"the path of a folder of pictures or texts, or a file ({', '.join(READERS)})"
    )


def load_source(source: Any, seed: int) -> Loaded:
    """The data set that a configuration asks for: an object with a `name`, and all options of
    `load` but the seed.

    >>> from labelahead import Source
    >>> from labelahead.data import load_source
    >>> data, answers = load_source(Source("digits", limit=100), seed=0)
    >>> len(data) - len(data.test)
    100
    """
    wanted = {
        option.name: getattr(source, option.name)
        for option in fields(LoadOptions)
        if option.name != "seed"
    }
    return load(source.name, seed=seed, **wanted)


def _check_class_names(classes: Sequence[str]) -> tuple[str, ...]:
    if isinstance(classes, str):
        raise InputError(f"classes is the text {classes!r}; expected a list of class names")
    return tuple(check_name(name, "the name of a class") for name in classes)


def _normalise_name(name: str) -> str:
    """A name without case and punctuation: CIFAR-10 is cifar10."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _load_folder(path: Path, options: LoadOptions) -> Loaded:
    """A folder of pictures; if it holds a known set instead, the error says so."""
    try:
        return load_folder(path, options)
    except InputError as error:
        seen = [
            entry.name
            for entry in DATASETS.values()
            if any((path / f).exists() or (path / f"{f}.gz").exists() for f in entry.files)
        ]
        if not seen:
            raise
        raise InputError(
            f"{error}. It holds files named as those of {', '.join(seen)}: "
            f"load({seen[0]!r}, root={str(path)!r}) reads them"
        ) from error
