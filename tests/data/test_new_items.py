"""Items that were not in the pool, read as the pool was."""

import numpy as np
import pytest
import torch
from PIL import Image

from labelahead.data import load
from labelahead.data.new_items import match_image_format, read_new_items
from labelahead.data.preprocessing import PICTURE_INPUTS, Preprocessor
from labelahead.errors import InputError


def write_rows(path, rows):
    path.write_text("key,size,kind\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows))
    return path


def test_rows_of_a_table_become_the_inputs_that_they_were_in_the_pool(tmp_path):
    rows = [(f"r{i}", i * i, "ab"[i % 2]) for i in range(12)]
    data, _ = load(write_rows(tmp_path / "pool.csv", rows), id="key", test_fraction=0.0)
    new = write_rows(tmp_path / "new.csv", [*rows[3:5], ("new", "", "c")])
    (items,) = read_new_items(data.preprocessor, new, likely_id="key")
    assert items.ids == ["r3", "r4", "new"]
    assert torch.equal(items.values[:2], data.inputs[3:5])
    assert not items.failed
    assert items.records.columns["kind"] == ["b", "a", "c"]
    (by_row,) = read_new_items(data.preprocessor, new, id="none")
    assert by_row.ids == ["0", "1", "2"]


def test_broken_pictures_are_reported_and_the_others_read(tmp_path):
    for i in range(4):
        Image.new("RGB", (9, 12), (60 * i, 10, 200)).save(tmp_path / f"{i}.png")
    data, _ = load(tmp_path, size=6, test_fraction=0.0)
    (tmp_path / "2.png").write_bytes(b"no picture")
    items = list(read_new_items(data.preprocessor, tmp_path))
    assert [name for part in items for name in part.ids] == ["0.png", "1.png", "3.png"]
    assert [name for part in items for name in part.failed] == ["2.png"]
    values = torch.cat([part.values for part in items])
    assert torch.equal(values, data.images.pixels[[0, 1, 3]])
    (alone,) = read_new_items(data.preprocessor, tmp_path / "3.png")
    assert torch.equal(alone.values, values[2:])


def test_vectors_of_another_width_or_kind_are_refused(tmp_path):
    np.savez(tmp_path / "pool.npz", x=np.arange(12.0).reshape(4, 3))
    data, _ = load(tmp_path / "pool.npz", test_fraction=0.0)
    (items,) = read_new_items(data.preprocessor, tmp_path / "pool.npz")
    assert torch.equal(items.values, torch.arange(12.0).reshape(4, 3))  # as read, not standardised
    np.savez(tmp_path / "wide.npz", x=np.zeros((2, 5)))
    with pytest.raises(InputError, match="expected"):
        list(read_new_items(data.preprocessor, tmp_path / "wide.npz"))
    (tmp_path / "a.txt").write_text("a text")
    with pytest.raises(InputError, match="is of another kind; expected"):
        list(read_new_items(data.preprocessor, tmp_path / "a.txt"))
    with pytest.raises(InputError, match="does not exist; expected items as the model was made"):
        list(read_new_items(data.preprocessor, tmp_path / "none.npz"))


def test_match_image_format_changes_size_channels_and_white():
    colours = torch.zeros(1, 3, 8, 8)
    colours[:, 0] = 255.0
    grey = match_image_format(Preprocessor(PICTURE_INPUTS, (1, 4, 4), white=16), colours)
    assert grey.dtype == torch.uint8
    assert grey.shape == (1, 1, 4, 4)
    assert grey.unique().tolist() == [round(0.299 * 16)]
    coloured = match_image_format(Preprocessor(PICTURE_INPUTS, (3, 8, 8)), colours[:, :1])
    assert torch.equal(coloured, torch.full((1, 3, 8, 8), 255, dtype=torch.uint8))
