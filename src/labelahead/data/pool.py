"""The pool of a campaign: which positions are labelled, and with which classes."""

from collections.abc import Sequence
from operator import index

import torch
from torch import Tensor

from labelahead.data.dataset import NONE_OF_THESE, UNKNOWN
from labelahead.errors import InputError
from labelahead.gp import checks
from labelahead.gp.checks import Positions

__all__ = ["Pool"]


class Pool:
    """Positions 0..size-1 of a data set: labelled, held out for testing, or unlabelled.

    The pool holds only labels that were passed to `label`.

    >>> import labelahead as la
    >>> pool = la.Pool(100, test=range(80, 100))
    >>> pool.label([3, 5], [0, 2])
    >>> pool
    Pool(2 of 100 labelled, 20 for tests)
    >>> len(pool.unlabelled)
    78
    """

    def __init__(self, size: int, *, test: Positions = ()) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InputError(f"size is {size!r}; expected the number of items, 0 or larger")
        self.size = size
        self._label = torch.full((size,), UNKNOWN)
        self._test = torch.zeros(size, dtype=torch.bool)
        if len(test):
            self._test[checks.check_positions(test, "test", size)] = True
        self._order: list[int] = []

    def __repr__(self) -> str:
        return (
            f"Pool({len(self._order)} of {self.size} labelled, {int(self._test.sum())} for tests)"
        )

    def __len__(self) -> int:
        """Return the number of labelled items."""
        return len(self._order)

    @property
    def labelled(self) -> Tensor:
        """(L,) positions in the order they were labelled."""
        return torch.tensor(self._order, dtype=torch.int64)

    @property
    def labels(self) -> Tensor:
        """(L,) class numbers or `NONE_OF_THESE`, in the order of `labelled`."""
        return self._label[self.labelled]

    @property
    def unlabelled(self) -> Tensor:
        """(u,) positions that can be queried, ascending."""
        return ((self._label == UNKNOWN) & ~self._test).nonzero().squeeze(1)

    def label(self, positions: Positions, labels: Tensor | Sequence[int]) -> None:
        """Add labels; if one of them is invalid, none is added.

        Args:
            positions: (q,) unlabelled positions outside the test set.
            labels: (q,) class numbers, 0 or larger, or `NONE_OF_THESE`.

        Raises:
            InputError: if a position is labelled, held out or out of range, or a label is invalid.
        """
        at = checks.check_positions(positions, "positions", self.size)
        given = labels.tolist() if isinstance(labels, Tensor) else list(labels)
        if len(given) != len(at):
            raise InputError(f"{len(given)} labels for {len(at)} positions; expected one for each")
        numbers = [_check_class_number(label) for label in given]
        if bool(self._test[at].any()):
            first = int(at[self._test[at]][0])
            raise InputError(f"item {first} is held out for testing; expected an item of the pool")
        labelled = at[self._label[at] != UNKNOWN]
        if len(labelled):
            first = int(labelled[0])
            raise InputError(
                f"item {first} is labelled already (class {int(self._label[first])}); "
                "expected unlabelled items"
            )
        self._label[at] = torch.tensor(numbers)
        self._order += at.tolist()

    def relabel(self, position: int, label: int) -> None:
        """Give a labelled item another class."""
        if not 0 <= position < self.size or int(self._label[position]) == UNKNOWN:
            raise InputError(f"item {position} has no label; expected a labelled item")
        self._label[position] = _check_class_number(label)


def _check_class_number(label: object) -> int:
    try:
        number = UNKNOWN if isinstance(label, bool) else index(label)  # type: ignore[arg-type]
    except TypeError:
        number = UNKNOWN
    if number < 0 and number != NONE_OF_THESE:
        raise InputError(
            f"a label is {label!r}; expected a class number, 0 or larger, or "
            f"{NONE_OF_THESE} for none of the classes"
        )
    return number
