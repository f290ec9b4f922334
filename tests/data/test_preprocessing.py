"""How items become inputs, as plain values and tensors."""

import json

import numpy as np
import torch

from labelahead.data.columns import CategoricalColumn, NumericColumn, TfidfColumn
from labelahead.data.preprocessing import COLUMN_INPUTS, PICTURE_INPUTS, Preprocessor


def restore(preprocessor):
    values, tensors = preprocessor.to_dict()
    return Preprocessor.from_dict(json.loads(json.dumps(values)), tensors)


def test_preprocessor_of_pictures_survives_json():
    mean, std = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    made = Preprocessor(
        PICTURE_INPUTS, (3, 8, 8), mean, std, white=16, features="lite0", guess_width=4
    )
    again = restore(made)
    assert (again.kind, again.shape, again.white) == (PICTURE_INPUTS, (3, 8, 8), 16)
    assert (again.features, again.guess_width) == ("lite0", 4)
    assert torch.equal(again.mean, mean)
    assert torch.equal(again.std, std)
    assert again.class_names is None


def test_preprocessor_of_a_table_encodes_rows_equally_after_json():
    pool = np.array([True, True, True, False])
    texts = ["a red house", "a blue house", "the red car", "a new word"]
    columns = (
        NumericColumn.fit("size", np.array([1.0, 5.0, np.nan, 9.0]), pool, []),
        CategoricalColumn.fit("kind", ["a", "b", None, "c"], pool, str, []),
        TfidfColumn.fit("text", texts, pool),
    )
    again = restore(Preprocessor(COLUMN_INPUTS, (9,), columns=columns)).columns
    entries = ([2.5, None], ["b", "zebra"], ["a red car", None])
    for before, after, given in zip(columns, again, entries, strict=True):
        assert type(after) is type(before)
        assert np.array_equal(after.apply(given, str, "t"), before.apply(given, str, "t"))
