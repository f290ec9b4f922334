"""Positions in the data set and rows of a matrix."""

import pytest
import torch

from labelahead.data.positions import PositionIndex
from labelahead.errors import InputError

INDEX = PositionIndex(torch.tensor([40, 7, 12]))


def test_rows_of_follow_the_given_order():
    assert INDEX.rows_of([12, 40, 12]).tolist() == [2, 0, 2]
    assert INDEX.rows_of([]).dtype == torch.int64
    assert INDEX.positions[INDEX.rows_of([7, 12])].tolist() == [7, 12]
    assert INDEX.row_of(7) == 1
    assert INDEX.find_rows(torch.tensor([12, 8, 40, 99, 0])).tolist() == [2, -1, 0, -1, -1]
    assert PositionIndex(INDEX.positions[:0]).find_rows(torch.arange(2)).tolist() == [-1, -1]


def test_unknown_position_raises_and_is_left_out_on_request():
    with pytest.raises(InputError, match="item 8 is not among the current candidates"):
        INDEX.rows_of([7, 8])
    assert 7 in INDEX
    assert 8 not in INDEX
    assert INDEX.keep_known([8, 12, 7]) == [12, 7]
    assert INDEX.keep_known_values({12: "b", 8: "a", 7: "c"}) == {12: "b", 7: "c"}
    assert list(INDEX.keep_known_values({12: "b", 7: "c"})) == [12, 7]
