"""`Data`, `Answers`, arrays, torch data sets, and the split into pool and test set."""

import copy
import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from labelahead.data import Answers, Data, from_arrays, from_dataset, load
from labelahead.data.arrays import compute_mean_std, crop_and_resize
from labelahead.data.classes import encode_labels
from labelahead.data.split import LoadOptions, split_items
from labelahead.errors import InputError


def options(tmp_path=None, **more) -> LoadOptions:
    return LoadOptions(root=tmp_path, **more)


def numbers(n=12, d=3):
    return np.random.default_rng(0).normal(size=(n, d))


# --- Data and Answers -------------------------------------------------------------------------


def reachable(data):
    """Whatever hangs on an object, closures and bound methods included."""
    reached, todo = {}, [data]
    while todo:
        thing = todo.pop()
        if id(thing) in reached:
            continue
        reached[id(thing)] = thing
        todo += list(getattr(thing, "__dict__", {}).values())
        todo += [c.cell_contents for c in getattr(thing, "__closure__", None) or ()]
        todo += [s for s in (getattr(thing, "__self__", None),) if s is not None]
        if isinstance(thing, tuple | list):
            todo += thing
    return list(reached.values())


@pytest.mark.parametrize("source", ["digits", "arrays", "table", "npz", "torch", "folder"])
def test_data_holds_no_reference_to_labels(tmp_path, source):
    x, y = numbers(), np.arange(12) % 4
    if source == "table":
        rows = "".join(f"{r[0]},{c}\n" for r, c in zip(x, y, strict=True))
        (tmp_path / "t.csv").write_text("v,label\n" + rows)
        data, answers = load(tmp_path / "t.csv")
    elif source == "npz":
        np.savez(tmp_path / "a.npz", x=x, y=y)
        data, answers = load(tmp_path / "a.npz")
    elif source == "torch":
        data, answers = from_dataset(TensorDataset(torch.tensor(x), torch.tensor(y)))
    elif source == "folder":
        for i, c in enumerate(y):
            (tmp_path / f"class {c}").mkdir(exist_ok=True)
            Image.fromarray(np.full((4, 4), i, np.uint8)).save(tmp_path / f"class {c}" / f"{i}.png")
        data, answers = load(tmp_path)
    else:
        data, answers = load("digits", limit=20) if source == "digits" else from_arrays(x, y)
    _ = data.inputs
    labels = answers.take(torch.arange(len(data)))
    for thing in reachable(data):
        assert not isinstance(thing, Answers)
        if isinstance(thing, torch.Tensor | np.ndarray) and len(thing.shape) == 1:
            assert not (
                len(thing) == len(labels) and bool((torch.as_tensor(thing) == labels).all())
            )


def test_inputs_are_built_once_and_validated():
    calls = []

    def build():
        calls.append(1)
        return torch.zeros(2, 3)

    data = Data(
        "x", (), torch.empty(0, dtype=torch.int64), ("0", "1"), "vector", (), None, (3,), build
    )
    assert data.shape == (3,)
    assert not calls
    assert data.inputs is data.inputs
    assert len(calls) == 1
    assert len(data) == 2
    wrong = dataclasses.replace(data, shape=(4,))
    with pytest.raises(InputError, match=r"expected torch.float32 \(2, 4\)"):
        _ = wrong.inputs
    nan = dataclasses.replace(data, build=lambda: torch.tensor([[0.0] * 3, [0, float("nan"), 0]]))
    with pytest.raises(InputError, match=r"item 1 \(1\)"):
        _ = nan.inputs


def test_data_refuses_invalid_fields():
    data, _ = from_arrays(numbers())
    with pytest.raises(InputError, match="kind"):
        dataclasses.replace(data, kind="sound")
    with pytest.raises(InputError, match="0 to 11"):
        dataclasses.replace(data, test=torch.tensor([12]))
    with pytest.raises(InputError, match="twice"):
        dataclasses.replace(data, test=torch.tensor([1, 1]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "y"


def test_data_can_be_copied_and_pickled():
    data, answers = from_arrays(numbers(), np.arange(12) % 3)
    for other in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert torch.equal(other.inputs, data.inputs)
    assert pickle.loads(pickle.dumps(answers))(4) == 1


def test_answers_return_labels_by_position():
    answers = Answers(torch.tensor([2, -1, 0]), ("a", "b", "c"))
    assert answers(0) == 2
    assert answers.take(torch.tensor([2, 0])).tolist() == [0, 2]
    assert answers.take(torch.tensor([], dtype=torch.int64)).tolist() == []
    assert answers.has_label.tolist() == [True, False, True]
    assert "2 known of 3" in repr(answers)
    with pytest.raises(InputError, match=r"item 1 \(b\) has no label"):
        answers(1)
    for bad in (-1, 3):
        with pytest.raises(InputError, match="0 to 2"):
            answers(bad)
    with pytest.raises(InputError, match="whole numbers"):
        answers.take(torch.tensor([0.0]))
    with pytest.raises(InputError, match="whole numbers"):
        answers.take(torch.tensor([True, False, True]))


def test_answers_refuse_wrong_labels():
    with pytest.raises(InputError, match="int64"):
        Answers(torch.tensor([0.0]), ("a",))
    with pytest.raises(InputError, match="down to -2"):
        Answers(torch.tensor([-2]), ("a",))


def test_answers_do_not_change_with_the_callers_tensor():
    labels = torch.tensor([0, 1])
    answers = Answers(labels, ("a", "b"))
    labels[0] = 1
    assert answers(0) == 0


# --- from_arrays ------------------------------------------------------------------------------


def test_from_arrays_keeps_floating_vectors_unchanged():
    x = numbers().astype(np.float32)
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
    x[5] = 200  # the test item must not count
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
        from_arrays(numbers(), [0, 1, 2])
    with pytest.raises(InputError, match="test item 0 has no label"):
        from_arrays(numbers(2), [None, 1], test=[0])
    with pytest.raises(InputError, match="every item is in test"):
        from_arrays(numbers(2), [0, 1], test=[0, 1])
    with pytest.raises(InputError, match="mask of shape"):
        from_arrays(numbers(2), [0, 1], test=np.array([True]))


def test_from_arrays_converts_other_dtypes_to_float32():
    for kind in ("f2", "i4", ">f8", "u2", "?", "g"):
        data, _ = from_arrays(np.ones((2, 3), dtype=kind))
        assert torch.equal(data.inputs, torch.ones(2, 3)), kind
    read_only = np.ones((2, 3), dtype=np.float32)
    read_only.flags.writeable = False
    assert from_arrays(read_only)[0].inputs.sum() == 6


# --- labels -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "codes", "names"),
    [
        ([0, 1, 2], [0, 1, 2], ("0", "1", "2")),
        ([1, 3, 3], [0, 1, 1], ("1", "3")),
        ([0, -1, 1], [0, -1, 1], ("0", "1")),
        ([0.0, np.nan, 1.0], [0, -1, 1], ("0", "1")),
        ([None, 2, 0, 1], [-1, 2, 0, 1], ("0", "1", "2")),
        (["b", "a", "", None], [1, 0, -1, -1], ("a", "b")),
        (["10", "9", "x"], [1, 0, 2], ("9", "10", "x")),
        (np.array([[1], [0]]), [1, 0], ("0", "1")),
        (np.array([True, False]), [1, 0], ("false", "true")),
        (np.array([b"u", b"v"]), [0, 1], ("u", "v")),
        (torch.tensor([1, 0]), [1, 0], ("0", "1")),
        ([torch.tensor(1), np.int64(0)], [1, 0], ("0", "1")),
        (np.array([3, 1], dtype=np.uint8), [1, 0], ("1", "3")),
        ([-1, -1], [-1, -1], ()),
    ],
)
def test_encode_labels_accepts_many_forms(labels, codes, names):
    found, classes, notes = encode_labels(labels)
    assert (found.tolist(), classes) == (codes, names)
    assert found.dtype == torch.int64
    assert bool(notes) == (names in (("1", "3"),))  # renumbering is said


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0.5, 1], None, "regression"),
        ([np.inf], None, "regression|class numbers"),
        ([-2, 0], None, "hold -2"),
        ([-1, 1, 1], None, "labels > 0"),
        (5, None, "labels is a int"),
        ([torch.zeros(2)], None, "Tensor"),
        (np.eye(3), None, "argmax"),
        ([2], ["a", "b"], "go up to 2"),
        (["cta"], ["cat", "dog"], "did you mean 'cat'"),
        ([[1, 2], [3]], None, "list"),
        ([0], "ab", "list of class names"),
        ([0], ["a", "a"], "twice"),
        (np.array([1j]), None, "complex"),
    ],
)
def test_encode_labels_refuses_invalid_labels(labels, classes, message):
    with pytest.raises(InputError, match=message):
        encode_labels(labels, classes)


@given(st.lists(st.sampled_from(["a", "b", "7", "10", None]), min_size=1, max_size=30))
def test_encode_labels_round_trips_names(labels):
    codes, classes, _ = encode_labels(labels)
    assert [None if c < 0 else classes[c] for c in codes.tolist()] == labels


# --- choosing ---------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.integers(-1, 4), min_size=1, max_size=80),
    st.floats(0, 0.95),
    st.one_of(st.none(), st.integers(1, 90)),
    st.integers(0, 5),
)
def test_split_items_is_stratified_disjoint_and_limited(labels, fraction, limit, seed):
    labels = torch.tensor(labels)
    wanted = options(test_fraction=fraction, limit=limit, seed=seed)
    split = split_items(labels, wanted)
    again = split_items(labels, wanted)
    assert torch.equal(split.keep, again.keep)
    assert torch.equal(split.test, again.test)
    assert torch.equal(split.keep, split.keep.unique())
    kept = labels[split.keep]
    inside = torch.zeros(len(kept), dtype=torch.bool)
    inside[split.test] = True
    assert (kept[inside] >= 0).all()
    pool = (~inside).sum()
    available = len(labels) - len(split.test)
    assert pool == (available if limit is None else min(limit, available))
    for c in labels[labels >= 0].unique():
        size, held = (labels == c).sum(), (kept[inside] == c).sum()
        assert held <= max(0, size - 1)
        assert abs(held - fraction * size) <= 1 or size == 1 or held == size - 1
    if limit is not None and limit < available:  # balanced: none is short while another has more
        held_out = torch.zeros(len(labels), dtype=torch.bool)
        held_out[split.keep[split.test]] = True
        there = torch.bincount(labels[~held_out] + 1, minlength=6)
        taken = torch.bincount(kept[~inside] + 1, minlength=6)
        short = taken < there
        if short.any():
            assert taken.max() <= taken[short].min() + 1


def test_split_items_depends_on_seed_and_is_nested_in_limit():
    labels = torch.arange(200) % 4
    small, large = (split_items(labels, options(limit=k)) for k in (20, 50))
    assert set(small.keep.tolist()) < set(large.keep.tolist())
    assert torch.equal(small.keep[small.test], large.keep[large.test])
    assert not torch.equal(
        split_items(labels, options(seed=1)).test, split_items(labels, options()).test
    )
    assert any("20 of 160" in note for note in small.notes)
    before = torch.get_rng_state()
    split_items(labels, options())
    assert torch.equal(before, torch.get_rng_state())


def test_split_items_keeps_an_official_test_set():
    official = torch.arange(10) >= 8
    split = split_items(torch.zeros(10, dtype=torch.int64), options(limit=3), official)
    assert split.keep[split.test].tolist() == [8, 9]
    assert len(split.keep) == 5
    with pytest.raises(InputError, match="no item is left"):
        split_items(torch.zeros(10, dtype=torch.int64), options(), official | True)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"limit": 0}, "limit is 0"),
        ({"limit": 2.5}, "limit is 2.5"),
        ({"limit": True}, "limit is True"),
        ({"size": 0}, "size is 0"),
        ({"size": 10**6}, "at most 4096"),
        ({"test_fraction": 1.0}, "test_fraction is 1.0"),
        ({"test_fraction": -0.1}, "test_fraction"),
        ({"test_fraction": float("nan")}, "test_fraction"),
        ({"test_fraction": "0.2"}, "test_fraction"),
        ({"seed": "a"}, "seed is 'a'"),
        ({"seed": 2**70}, "64 bits"),
    ],
)
def test_load_options_refuse_invalid_values(given_, message):
    with pytest.raises(InputError, match=message):
        options(**given_)


def test_load_options_accept_numpy_numbers():
    made = options(limit=np.int64(3), seed=np.int32(1), test_fraction=np.float32(0.5))
    assert (made.limit, made.seed) == (3, 1)
    assert type(made.limit) is int


def test_compute_mean_std_is_accurate_far_from_zero():
    values = torch.tensor([[1e6, 5.0], [1e6 + 1, 5.0], [1e6 + 2, 5.0], [0, 0]], dtype=torch.float64)
    mean, std = compute_mean_std(values, torch.arange(3))
    assert mean.tolist() == [1e6 + 1, 5]
    assert std[0].item() == pytest.approx((2 / 3) ** 0.5, rel=1e-6)
    assert std[1] == 1
    noise = torch.full((4, 1), 1000.0)  # the last digit of a constant is not blown up
    noise[0] = torch.nextafter(noise[0], noise[0] + 1)
    assert compute_mean_std(noise, torch.arange(4))[1] == 1


def test_crop_and_resize_takes_the_central_square():
    wide = torch.zeros(1, 1, 4, 8)
    wide[..., 2:6] = 1
    assert (crop_and_resize(wide, 4) == 1).all()
    assert (crop_and_resize(wide, 2) == 1).all()
    assert crop_and_resize(wide.transpose(2, 3), 6).shape == (1, 1, 6, 6)


# --- torch data sets --------------------------------------------------------------------------


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
        ([(torch.zeros(2), 0.5)], "regression"),
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


# --- imports ----------------------------------------------------------------------------------


def test_importing_data_imports_no_optional_library():
    code = (
        "import sys, labelahead.data;"
        "bad = {'sklearn', 'PIL', 'pooch', 'pyarrow', 'requests', 'pandas'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_load_source_follows_the_configuration():
    from labelahead.data import load_source
    from labelahead.learner.config import Source

    source = Source(limit=30, size=6, test_fraction=0.1, download=False)
    data, answers = load_source(source, 3)
    same, _ = load("digits", limit=30, size=6, test_fraction=0.1, download=False, seed=3)
    assert torch.equal(data.inputs, same.inputs)
    assert (data.ids, data.notes) == (same.ids, same.notes)
    assert len(answers) == len(data)
