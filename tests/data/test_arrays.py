"""Arrays, torch data sets and .npz files; inputs in memory."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from labelahead.data import from_arrays, from_dataset, load
from labelahead.data.arrays import compute_mean_std, crop_and_resize
from labelahead.errors import InputError
from tests.data.test_dataset import make_vectors
from tests.data.test_table import RNG, has_note, make_pool_mask


def test_from_arrays_keeps_floating_vectors_unchanged():
    x = make_vectors().astype(np.float32)
    data, answers = from_arrays(x, test=[3, 1])
    assert answers is None
    assert data.kind == "vector"
    assert data.images is None
    assert np.array_equal(data.inputs.numpy(), x)
    assert data.test.tolist() == [1, 3]
    assert data.ids[11] == "11"


def test_from_arrays_standardises_uint8_images_over_the_pool():
    x = np.random.default_rng(0).integers(0, 255, (6, 5, 4, 3)).astype(np.uint8)
    x[:, :, :, 2] = 7  # a constant channel
    x[5] = 200  # the test item must not affect the statistics
    data, _ = from_arrays(x, test=np.arange(6) == 5)
    assert data.kind == "image"
    assert data.shape == (3, 5, 4)
    pool = data.inputs[:5]
    assert torch.allclose(pool.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(pool.std((0, 2, 3), correction=0), torch.tensor([1.0, 1, 0]), atol=1e-5)
    assert any("channels" in note for note in data.notes)
    shown = data.images.batch(torch.tensor([5, 0]), 4)
    assert shown.shape == (2, 3, 4, 4)
    assert shown.dtype == torch.uint8
    assert (shown[0] == 200).all()
    assert np.array_equal(data.images.batch(torch.tensor([0]), 4)[0].permute(1, 2, 0), x[0, :4])


def test_grey_and_floating_images_can_be_displayed():
    grey, _ = from_arrays(np.full((2, 8, 8), 9, dtype=np.uint8))
    assert grey.shape == (1, 8, 8)
    assert (grey.images.batch(torch.tensor([1]), 16) == 9).all()
    floating, _ = from_arrays(torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    assert floating.kind == "image"
    expected = (floating.inputs[:1] * 255).round().to(torch.uint8)
    assert torch.equal(floating.images.batch(torch.tensor([0]), 8), expected)
    with pytest.raises(InputError, match="0 to 1"):
        floating.images.batch(torch.tensor([2]), 8)
    assert floating.images.batch(torch.tensor([], dtype=torch.int64), 4).shape == (0, 3, 4, 4)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[1.0, np.nan]], "item 0, holds NaN"),
        ([[1.0], [np.inf]], "item 1, holds NaN"),
        ([[1e300]], "too large for float32"),
        ([1.0, 2.0], r"shape \(2,\)"),
        (np.empty((0, 3)), "at least one item"),
        ([["a"]], "cannot be read as numbers"),
        ([[1.0], [2.0, 3.0]], "cannot be read as numbers"),
        ([[1j]], "real numbers"),
        (None, "cannot be read as numbers"),
    ],
)
def test_from_arrays_refuses_invalid_inputs(inputs, message):
    with pytest.raises(InputError, match=message):
        from_arrays(inputs)


def test_from_arrays_refuses_mismatched_labels():
    with pytest.raises(InputError, match="12 inputs and 3 labels"):
        from_arrays(make_vectors(), [0, 1, 2])
    with pytest.raises(InputError, match="test item 0 has no label"):
        from_arrays(make_vectors(2), [None, 1], test=[0])
    with pytest.raises(InputError, match="every item is in test"):
        from_arrays(make_vectors(2), [0, 1], test=[0, 1])
    with pytest.raises(InputError, match="mask of shape"):
        from_arrays(make_vectors(2), [0, 1], test=np.array([True]))


def test_from_arrays_converts_other_dtypes_to_float32():
    for kind in ("f2", "i4", ">f8", "u2", "?", "g"):
        data, _ = from_arrays(np.ones((2, 3), dtype=kind))
        assert torch.equal(data.inputs, torch.ones(2, 3)), kind
    read_only = np.ones((2, 3), dtype=np.float32)
    read_only.flags.writeable = False
    assert from_arrays(read_only)[0].inputs.sum() == 6


def test_compute_mean_std_is_accurate_far_from_zero():
    values = torch.tensor([[1e6, 5.0], [1e6 + 1, 5.0], [1e6 + 2, 5.0], [0, 0]], dtype=torch.float64)
    mean, std = compute_mean_std(values, torch.arange(3))
    assert mean.tolist() == [1e6 + 1, 5]
    assert std[0].item() == pytest.approx((2 / 3) ** 0.5, rel=1e-6)
    assert std[1] == 1
    noise = torch.full((4, 1), 1000.0)  # rounding of a constant is not amplified
    noise[0] = torch.nextafter(noise[0], noise[0] + 1)
    assert compute_mean_std(noise, torch.arange(4))[1] == 1


def test_crop_and_resize_takes_the_central_square():
    wide = torch.zeros(1, 1, 4, 8)
    wide[..., 2:6] = 1
    assert (crop_and_resize(wide, 4) == 1).all()
    assert (crop_and_resize(wide, 2) == 1).all()
    assert crop_and_resize(wide.transpose(2, 3), 6).shape == (1, 1, 6, 6)


class Items(Dataset):
    def __init__(self, items, **more):
        self.items = items
        self.__dict__.update(more)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def test_from_dataset_accepts_every_item_form():
    x = torch.arange(12.0).view(4, 3)
    y = torch.tensor([0, 1, 1, 0])
    pair, answers = from_dataset(TensorDataset(x, y), classes=["no", "yes"])
    assert torch.equal(pair.inputs, x)
    assert answers.take(torch.arange(4)).tolist() == [0, 1, 1, 0]
    assert pair.classes == ("no", "yes")
    assert pair.test.tolist() == []
    plain, none = from_dataset(TensorDataset(x))
    assert none is None
    assert torch.equal(plain.inputs, x)
    named, answers = from_dataset(
        Items([{"x": r, "label": "ab"[int(c)]} for r, c in zip(x, y, strict=True)])
    )
    assert named.classes == ("a", "b")
    assert answers(1) == 1
    bare, _ = from_dataset(Items(list(x.numpy())))
    assert torch.equal(bare.inputs, x)
    carried, _ = from_dataset(
        Items([(r, int(c)) for r, c in zip(x, y, strict=True)], classes=["u", "v", "w"])
    )
    assert carried.classes == ("u", "v", "w")


def test_from_dataset_accepts_pillow_images():
    picture = Image.new("RGB", (6, 4), (10, 20, 30))
    data, answers = from_dataset(Items([(picture, 0), (picture, 1)]))
    assert data.shape == (3, 4, 6)
    assert data.images.batch(torch.tensor([0]), 4)[0, :, 0, 0].tolist() == [10, 20, 30]
    assert answers(1) == 1


def test_from_dataset_limit_keeps_original_positions():
    x = torch.arange(50.0).view(50, 1)
    data, answers = from_dataset(TensorDataset(x, torch.arange(50) % 2), limit=7)
    assert len(data) == 7
    assert [float(i) for i in data.ids] == data.inputs[:, 0].tolist()
    assert answers.take(torch.arange(7)).tolist() == [int(i) % 2 for i in data.ids]
    assert any("7 of 50" in note for note in data.notes)


def test_from_dataset_reads_a_stream_up_to_the_limit():
    class Stream(IterableDataset):
        def __iter__(self):
            i = 0
            while True:
                yield torch.tensor([float(i)]), i % 3
                i += 1

    data, _ = from_dataset(Stream(), limit=5)
    assert data.inputs[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert data.ids == ("0", "1", "2", "3", "4")


def test_from_dataset_refuses_a_random_transform():
    class Noise(Items):
        def __getitem__(self, i):
            return torch.rand(3), 0

    with pytest.raises(InputError, match="random transform"):
        from_dataset(Noise([0] * 4))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "no items"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], "item 1 is .* resizes"),
        ([(torch.zeros(2), torch.zeros(3))], "expected one class"),
        ([(torch.zeros(2), 0, 1)], "3 parts"),
        ([{"sound": 1}], "keys sound"),
        ([object()], "item 0|cannot be read"),
        ([torch.tensor([float("nan")])], "holds NaN"),
        ([(torch.zeros(2), 0.5)], "--task number"),
    ],
)
def test_from_dataset_refuses_mismatched_items(items, message):
    with pytest.raises(InputError, match=message):
        from_dataset(Items(items))


def test_from_dataset_refuses_objects_that_are_no_dataset():
    with pytest.raises(InputError, match="from_arrays"):
        from_dataset(object())
    with pytest.raises(InputError, match="limit"):
        from_dataset(Items([torch.zeros(2)]), limit=0)


@pytest.mark.parametrize(
    ("x", "y"),
    [("x", "y"), ("X", "y"), ("inputs", "labels"), ("data", "target"), ("features", "Labels")],
)
def test_load_npz_accepts_common_array_names(tmp_path, x, y):
    values, labels = RNG.normal(5, 3, (30, 4)), np.arange(30) % 3
    np.savez(tmp_path / "a.npz", **{x: values, y: labels})
    data, answers = load(tmp_path / "a.npz")
    assert data.shape == (4,)
    assert len(data.test) == 6
    assert answers.take(torch.arange(30)).tolist() == labels.tolist()
    pool = data.inputs[make_pool_mask(data)]
    assert torch.allclose(pool.mean(0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(pool.std(0, correction=0), torch.ones(4), atol=1e-5)


def test_load_npz_reads_test_set_and_class_names(tmp_path):
    x = RNG.normal(size=(10, 3, 6, 6))
    names = np.array(["u", "v"])
    y = names[np.arange(10) % 2]
    np.savez(
        tmp_path / "a.npz", x_train=x[:7], y_train=y[:7], x_test=x[7:], y_test=y[7:], classes=names
    )
    data, answers = load(tmp_path / "a.npz", limit=4)
    assert data.test.tolist() == [4, 5, 6]
    assert data.ids[4:] == ("7", "8", "9")
    assert data.kind == "image"
    assert answers(4) == 1
    assert load(tmp_path / "a.npz", size=4)[0].inputs.shape == (10, 3, 4, 4)
    assert load(tmp_path / "a.npz", size=4)[0].shape == (3, 4, 4)


def test_load_npz_without_labels_has_no_answers(tmp_path):
    x = RNG.normal(size=(10, 3))
    np.savez(tmp_path / "a.npz", x=x)
    data, answers = load(tmp_path / "a.npz")
    assert answers is None
    assert has_note(data, "no labels")
    np.savez(tmp_path / "b.npz", x_train=x, y_train=["p", "q"] * 5, x_test=x)
    data, answers = load(tmp_path / "b.npz")
    assert answers.has_label.tolist() == [True] * 10 + [False] * 10
    assert has_note(data, "10 test items have no label: they join the pool")
    assert data.classes == ("p", "q")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"foo": np.zeros(3)}, "holds foo; expected the arrays x and y"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2)}, r"y has shape \(2,\); expected \(3,\)"),
        ({"x": np.zeros((3, 2)), "X": np.zeros((3, 2))}, "capital and small"),
        ({"x": np.array([1, None])}, "object arrays are refused"),
        ({"x": np.float64(3)}, "single value"),
        ({"x": np.array([[np.nan]])}, "holds NaN"),
        ({"x_train": np.zeros((3, 2)), "x_test": np.zeros((3, 4))}, "equal shapes"),
        ({"x": np.zeros((3, 2)), "y": [0.5, 1, 2]}, "--task number"),
    ],
)
def test_load_npz_refuses_mismatched_arrays(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "a.npz")


def test_load_npz_refuses_other_files(tmp_path):
    path = tmp_path / "a.npz"
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.npy").rename(path)
    with pytest.raises(InputError, match="single array"):
        load(path)
    for content in (b"", b"hello", b"PK\x03\x04 and no more"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"cannot be read as \.npz"):
            load(path)
