"""Options of `load`, and the choice of the pool and the test set."""

import os
import tempfile
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelahead.data.dataset import MAX_IMAGE_SIDE, UNKNOWN
from labelahead.data.excel import split_sheet
from labelahead.data.records import AUTO_ID, NO_ID
from labelahead.errors import InputError, did_you_mean

__all__ = [
    "LoadOptions",
    "Split",
    "expand_path",
    "get_default_root",
    "name_from_path",
    "split_items",
]

# The tasks by name; `labelahead.tasks` says what each is.
CLASSES = "classes"
TASKS = (CLASSES, "multilabel", "number", "rating")
SEVERAL_COLUMNS = ("multilabel", "number")  # tasks whose labels may have several columns


@dataclass(frozen=True)
class LoadOptions:
    """The keyword arguments of `load`."""

    root: Path
    size: int | None = None
    target: str | None = None
    limit: int | None = None
    test_fraction: float = 0.2
    seed: int = 0
    download: bool = True
    links: bool = True
    checked: bool = True
    without: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    id: str = AUTO_ID
    guesses: tuple[str, ...] = ()
    task: str = CLASSES
    label_columns: tuple[str, ...] = ()
    unit: str = ""
    limits: tuple[float, float] | None = None
    columns_needed: bool = True

    def __post_init__(self) -> None:
        for name, low, high in (("size", 1, MAX_IMAGE_SIDE), ("limit", 1, None)):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < low:
                raise InputError(f"{name} is {value!r}; expected a whole number of at least {low}")
            if high is not None and int(value) > high:
                raise InputError(f"{name} is {value}; expected at most {high} pixels a side")
            object.__setattr__(self, name, int(value))  # numpy integers are accepted too
        if isinstance(self.seed, bool) or not isinstance(self.seed, Integral):
            raise InputError(f"seed is {self.seed!r}; expected a whole number")
        if not -(2**63) <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}; expected a number that fits in 64 bits")
        object.__setattr__(self, "seed", int(self.seed))
        self._check_task()
        if not isinstance(self.id, str) or not self.id.strip():
            raise InputError(
                f"id is {self.id!r}; expected the name of a column, auto, or none for row numbers"
            )
        fraction = self.test_fraction
        if not isinstance(fraction, Real) or not 0 <= fraction < 1:
            raise InputError(
                f"test_fraction is {fraction!r}; expected a share of at least 0 and below 1, such "
                "as 0.2"
            )

    @property
    def has_classes(self) -> bool:
        """Whether the label of an item is one class."""
        return self.task == CLASSES

    def _check_task(self) -> None:
        if self.task not in TASKS:
            raise InputError(
                f"task is {self.task!r}; {did_you_mean(self.task, TASKS)}expected one of "
                f"{', '.join(TASKS)}"
            )
        if self.label_columns and self.task not in SEVERAL_COLUMNS:
            raise InputError(
                f"label_columns names {', '.join(self.label_columns)}, but the task {self.task} has "
                "one column of labels; expected --target, or --task multilabel or number"
            )
        if self.label_columns and self.target is not None:
            raise InputError(
                f"target is {self.target!r} and label_columns names "
                f"{', '.join(self.label_columns)}; expected one of them"
            )
        if self.task != "number" and (self.unit or self.limits is not None):
            given = f"unit is {self.unit!r}" if self.unit else f"limits are {self.limits}"
            raise InputError(
                f"{given}, but the task is {self.task}; leave it out: it is for --task number"
            )
        if len(set(self.label_columns)) < len(self.label_columns):
            raise InputError(
                f"label_columns names {', '.join(self.label_columns)}; expected every column once"
            )

    def refuse_target(self, what: str) -> None:
        """Raise if a target or columns to leave out are given for data without columns."""
        if self.label_columns:
            raise InputError(
                f"label_columns names {', '.join(self.label_columns)}, but {what} has no columns; "
                "leave it out"
            )
        if self.target is not None:
            raise InputError(
                f"target is {self.target!r}, but {what} has no columns; leave target out "
                "(it is for .csv, .tsv, .parquet, .jsonl and .xlsx tables)"
            )
        if self.without:
            raise InputError(
                f"without names {', '.join(self.without)}, but {what} has no columns; leave it out"
            )

    def refuse_size(self, what: str) -> None:
        """Raise if an image size is given for data without images."""
        if self.size is not None:
            raise InputError(f"size is {self.size}, but {what} holds no images; leave size out")

    def refuse_id(self, what: str, ids: str) -> None:
        """Raise if an id column is given for data without columns.

        Args:
            what: the data, for the message.
            ids: what the ids of the items are instead.
        """
        if self.id not in (AUTO_ID, NO_ID):
            raise InputError(
                f"id is {self.id!r}, but {what} has no columns; leave --id out: its ids are the "
                f"{ids}"
            )


def get_default_root() -> Path:
    """Return the folder of the public data sets: $LABELAHEAD_DATA, or ~/.cache/labelahead."""
    named = os.environ.get("LABELAHEAD_DATA")
    if named:
        return expand_path(named)
    try:
        return Path.home() / ".cache" / "labelahead"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / "labelahead"


def name_from_path(path: Path) -> str:
    """Return the name of a data set by its path.

    A folder has its own name, a file its name without suffix, a sheet `file-sheet`.
    """
    file, sheet = split_sheet(path)
    if path.is_dir():
        return path.resolve().name or str(path)
    return file.stem if sheet is None else f"{file.stem}-{sheet}"


def expand_path(path: str | Path) -> Path:
    """Return a path with ~ expanded.

    Raises:
        InputError: if the home folder is unknown.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{str(path)!r}: {error}; expected a path without ~") from error


@dataclass(frozen=True, eq=False)
class Split:
    """The items that are kept, in their order, and the test set among them.

    Attributes:
        keep: (q,) positions of the items kept.
        test: (t,) positions of the test set among the items kept.
        notes: decisions, for the user.
        depends_on_seed: whether another seed would keep or test other items.
    """

    keep: Tensor
    test: Tensor
    notes: tuple[str, ...]
    depends_on_seed: bool = False

    @property
    def pool(self) -> Tensor:
        """(q - t,) positions of the pool among the items kept."""
        pool = torch.ones(len(self.keep), dtype=torch.bool)
        pool[self.test] = False
        return pool.nonzero().flatten()


def split_items(
    labels: Tensor,
    options: LoadOptions,
    official: Tensor | None = None,
    usable: Tensor | None = None,
    strata: Tensor | None = None,
) -> Split:
    """Choose the test set and, if `limit` is given, a subset of the pool.

    Args:
        labels: (n,) class numbers, -1 where unknown.
        options: test_fraction, limit and seed.
        official: (n,) mask of a test set that came with the data; None to draw one.
        usable: (n,) mask of the items that can be read; None for all.
        strata: (n,) groups that the test set represents equally, where the labels are no classes;
            the limit then keeps random items.

    Raises:
        InputError: if no item is left for the pool.
    """
    n = len(labels)
    generator = torch.Generator().manual_seed(options.seed)
    # There are two draws, so that the test set does not depend on the limit. Ranks are fixed, so
    # that a larger limit keeps all items that a smaller one kept.
    for_test, for_limit = (torch.randperm(n, generator=generator) for _ in range(2))
    usable = torch.ones(n, dtype=torch.bool) if usable is None else usable
    notes = []
    depends_on_seed = False
    if official is not None:
        test = official & usable
    else:
        groups = labels if strata is None else strata
        test = _draw_test_items(groups, (labels >= 0) & usable, options.test_fraction, for_test)
        depends_on_seed = bool(test.any())
        if depends_on_seed:
            notes.append(f"{int(test.sum())} items drawn for testing, seed {options.seed}")
        elif options.test_fraction > 0 and bool((labels >= 0).any()):
            notes.append("too few labelled items for a test set")
    pool = usable & ~test
    if not bool(pool.any()):
        raise InputError("no item is left for the pool; expected some outside the test set")
    size = int(pool.sum())
    if options.limit is not None and options.limit < size:
        classes = labels if strata is None else torch.full_like(labels, UNKNOWN)
        pool = _draw_balanced(classes, pool, options.limit, for_limit)
        depends_on_seed = True
        count = len(np.unique(classes[pool & (classes >= 0)].numpy()))
        balance = f"balanced over {count} classes" if bool((classes >= 0).any()) else "at random"
        notes.append(f"{options.limit} of {size} items kept, {balance}, seed {options.seed}")
    elif options.limit is not None and options.limit > size:
        notes.append(f"limit {options.limit} is above the {size} items there are: all kept")
    keep = (pool | test).nonzero().flatten()
    return Split(keep, test[keep].nonzero().flatten(), tuple(notes), depends_on_seed)


def _rank_in_class(labels: Tensor, among: Tensor, priority: Tensor) -> Tensor:
    """Return (n,) the rank of each item within its class, by priority; n outside `among`."""
    at = among.nonzero().flatten().numpy()
    order = at[np.lexsort((priority.numpy()[at], labels.numpy()[at]))]
    sorted_labels = labels.numpy()[order]
    starts = np.searchsorted(sorted_labels, sorted_labels)
    ranks = torch.full((len(labels),), len(labels))
    ranks[torch.from_numpy(order)] = torch.from_numpy(np.arange(len(order)) - starts)
    return ranks


def _draw_test_items(labels: Tensor, among: Tensor, fraction: float, priority: Tensor) -> Tensor:
    """Draw the same fraction of every class, rounded so that the total is right.

    At least one item of every class stays in the pool.
    """
    if not bool(among.any()) or fraction == 0:
        return torch.zeros_like(among)
    sizes = np.bincount(labels[among].numpy(), minlength=int(labels.max()) + 1)
    exact = sizes * fraction
    take = np.floor(exact).astype(int)
    missing = round(exact.sum()) - take.sum()
    by_remainder = np.argsort(take - exact, kind="stable")
    for c in [c for c in by_remainder if take[c] + 1 < sizes[c]][:missing]:
        take[c] += 1
    quota = torch.from_numpy(take)[labels.clamp(min=0)]
    return among & (_rank_in_class(labels, among, priority) < quota)


def _draw_balanced(labels: Tensor, among: Tensor, limit: int, priority: Tensor) -> Tensor:
    """Draw equal numbers of every class as far as possible.

    Unlabelled items count as one more class.
    """
    # The first items of all classes come before all second ones, and so on.
    ranks = _rank_in_class(labels, among, priority).numpy()
    kept = torch.from_numpy(np.lexsort((priority.numpy(), ranks))[:limit].copy())
    mask = torch.zeros_like(among)
    mask[kept] = True
    return mask
