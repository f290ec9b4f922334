"""Some items of a data set as rows of a matrix: the map between positions and rows."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from labelahead.errors import InputError

__all__ = ["PositionIndex"]

Value = TypeVar("Value")


class PositionIndex:
    """Row of each of some items, by their position in the data set.

    Args:
        positions: (n,) distinct positions; the item at positions[i] has row i.

    >>> index = PositionIndex(torch.tensor([40, 7, 12]))
    >>> index.rows_of([12, 40]).tolist(), 8 in index, index.keep_known([8, 7])
    ([2, 0], False, [7])
    """

    def __init__(self, positions: Tensor) -> None:
        self.positions = positions

    @cached_property
    def _row_by_position(self) -> dict[int, int]:
        return {position: row for row, position in enumerate(self.positions.tolist())}

    @cached_property
    def _ordered(self) -> tuple[Tensor, Tensor]:
        """The positions (n,) in ascending order, and their rows (n,)."""
        ordered, order = self.positions.sort()
        return ordered, order

    def __len__(self) -> int:
        return len(self.positions)

    def __contains__(self, position: int) -> bool:
        return position in self._row_by_position

    def row_of(self, position: int) -> int:
        """Return the row of an item."""
        row = self._row_by_position.get(position)
        if row is None:
            raise InputError(
                f"item {position} is not among the current candidates; it may be after the next "
                "training"
            )
        return row

    def rows_of(self, positions: Iterable[int]) -> Tensor:
        """Return the rows (q,) of items."""
        return torch.tensor([self.row_of(p) for p in positions], dtype=torch.int64)

    def find_rows(self, positions: Tensor) -> Tensor:
        """Return the rows (q,) of items at positions (q,); −1 if an item has none."""
        if not len(self.positions):
            return torch.full_like(positions, -1)
        ordered, order = self._ordered
        at = torch.searchsorted(ordered, positions).clamp_max_(len(ordered) - 1)
        return torch.where(ordered[at] == positions, order[at], -1)

    def keep_known(self, positions: Iterable[int]) -> list[int]:
        """Return those of some positions that have a row, in the given order."""
        return [p for p in positions if p in self._row_by_position]

    def keep_known_values(self, values: Mapping[int, Value]) -> dict[int, Value]:
        """Return the values of those positions that have a row, in the given order."""
        return {p: value for p, value in values.items() if p in self._row_by_position}
