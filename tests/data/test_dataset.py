"""`Data`, `Answers`, arrays, torch data sets, and the split into pool and test set."""

import copy
import dataclasses
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import TensorDataset

from labelahead.data import Answers, Data, from_arrays, from_dataset, load
from labelahead.data.split import LoadOptions, split_items
from labelahead.errors import InputError
from tests.support.sounds import write_sounds


def make_options(tmp_path=None, **more) -> LoadOptions:
    return LoadOptions(root=tmp_path, **more)


def make_vectors(n=12, d=3):
    return np.random.default_rng(0).normal(size=(n, d))


# --- Data and Answers -------------------------------------------------------------------------


def collect_reachable_objects(data):
    """Return every object reachable from `data`, through closures and bound methods too."""
    found, pending = {}, [data]
    while pending:
        reached_object = pending.pop()
        if id(reached_object) in found:
            continue
        found[id(reached_object)] = reached_object
        pending += list(getattr(reached_object, "__dict__", {}).values())
        pending += [c.cell_contents for c in getattr(reached_object, "__closure__", None) or ()]
        pending += [s for s in (getattr(reached_object, "__self__", None),) if s is not None]
        if isinstance(reached_object, partial):
            pending += [*reached_object.args, *reached_object.keywords.values()]
        if isinstance(reached_object, tuple | list):
            pending += reached_object
    return list(found.values())


def load_example(tmp_path, source):
    """Return 12 items (20 digits) from a source of this kind, with their labels."""
    x, y = make_vectors(), np.arange(12) % 4
    if source == "digits":
        return load("digits", limit=20)
    if source == "arrays":
        return from_arrays(x, y)
    if source == "torch":
        return from_dataset(TensorDataset(torch.tensor(x), torch.tensor(y)))
    if source == "npz":
        np.savez(tmp_path / "a.npz", x=x, y=y)
        return load(tmp_path / "a.npz")
    if source in ("table", "texts"):
        word = "a text of more than a few words about the number " if source == "texts" else ""
        rows = "".join(f"{word}{r[0]},{c}\n" for r, c in zip(x, y, strict=True))
        (tmp_path / "t.csv").write_text("v,label\n" + rows)
        return load(tmp_path / "t.csv")
    if source == "sounds":
        return load(write_sounds(tmp_path / "sounds", 12, class_folders=True), checked=False)
    for i, c in enumerate(y):
        (tmp_path / f"class {c}").mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4), i, np.uint8)).save(tmp_path / f"class {c}" / f"{i}.png")
    return load(tmp_path, checked=source == "folder")


SOURCES = ["digits", "arrays", "torch", "npz", "table", "texts", "folder", "lazy folder"]


@pytest.mark.parametrize("source", SOURCES)
def test_data_holds_no_reference_to_labels(tmp_path, source):
    data, answers = load_example(tmp_path, source)
    _ = data.inputs
    labels = answers.take(torch.arange(len(data)))
    for reached_object in collect_reachable_objects(data):
        assert not isinstance(reached_object, Answers)
        if isinstance(reached_object, torch.Tensor | np.ndarray) and len(reached_object.shape) == 1:
            assert not (
                len(reached_object) == len(labels)
                and bool((torch.as_tensor(reached_object) == labels).all())
            )


@pytest.mark.parametrize("source", [*SOURCES, "sounds"])
def test_data_of_every_source_can_be_saved_for_another_process(tmp_path, source):
    """As the worker of the page receives them: with the same inputs, which it builds itself."""
    data, _ = load_example(tmp_path, source)
    part = data.select(torch.arange(len(data) - 1, 0, -2))
    torch.save([data, part], tmp_path / "saved.pt")
    loaded = torch.load(tmp_path / "saved.pt", mmap=True, weights_only=False)
    for there, here in zip([data, part], loaded, strict=True):
        assert (here.ids, here.classes, here.shape) == (there.ids, there.classes, there.shape)
        assert torch.equal(here.test, there.test)
        if source == "sounds":
            assert torch.equal(here.sounds.read_wave(2)[0], there.sounds.read_wave(2)[0])
            with pytest.raises(InputError, match="holds sounds, which are no numbers"):
                _ = here.inputs
            continue
        assert "inputs" not in vars(here)
        assert torch.equal(here.inputs, there.inputs)
        assert here.preprocessor.shape == there.preprocessor.shape
        assert torch.equal(here.preprocessor.mean, there.preprocessor.mean)


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
    data, _ = from_arrays(make_vectors())
    with pytest.raises(InputError, match="kind"):
        dataclasses.replace(data, kind="sound")
    with pytest.raises(InputError, match="0 to 11"):
        dataclasses.replace(data, test=torch.tensor([12]))
    with pytest.raises(InputError, match="twice"):
        dataclasses.replace(data, test=torch.tensor([1, 1]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "y"


def test_data_can_be_copied_and_pickled():
    data, answers = from_arrays(make_vectors(), np.arange(12) % 3)
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
    wanted = make_options(test_fraction=fraction, limit=limit, seed=seed)
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
        size, test_count = (labels == c).sum(), (kept[inside] == c).sum()
        assert test_count <= max(0, size - 1)
        assert abs(test_count - fraction * size) <= 1 or size == 1 or test_count == size - 1
    if (
        limit is not None and limit < available
    ):  # balanced: no class is reduced while another keeps more
        held_out = torch.zeros(len(labels), dtype=torch.bool)
        held_out[split.keep[split.test]] = True
        available_counts = torch.bincount(labels[~held_out] + 1, minlength=6)
        kept_counts = torch.bincount(kept[~inside] + 1, minlength=6)
        not_exhausted = kept_counts < available_counts
        if not_exhausted.any():
            assert kept_counts.max() <= kept_counts[not_exhausted].min() + 1


def test_split_items_depends_on_seed_and_is_nested_in_limit():
    labels = torch.arange(200) % 4
    small, large = (split_items(labels, make_options(limit=k)) for k in (20, 50))
    assert set(small.keep.tolist()) < set(large.keep.tolist())
    assert torch.equal(small.keep[small.test], large.keep[large.test])
    assert not torch.equal(
        split_items(labels, make_options(seed=1)).test, split_items(labels, make_options()).test
    )
    assert any("20 of 160" in note for note in small.notes)
    before = torch.get_rng_state()
    split_items(labels, make_options())
    assert torch.equal(before, torch.get_rng_state())


def test_split_items_keeps_an_official_test_set():
    official = torch.arange(10) >= 8
    split = split_items(torch.zeros(10, dtype=torch.int64), make_options(limit=3), official)
    assert split.keep[split.test].tolist() == [8, 9]
    assert len(split.keep) == 5
    with pytest.raises(InputError, match="no item is left"):
        split_items(torch.zeros(10, dtype=torch.int64), make_options(), official | True)


@pytest.mark.parametrize(
    ("fields", "message"),
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
def test_load_options_refuse_invalid_values(fields, message):
    with pytest.raises(InputError, match=message):
        make_options(**fields)


def test_load_options_accept_numpy_numbers():
    loaded = make_options(limit=np.int64(3), seed=np.int32(1), test_fraction=np.float32(0.5))
    assert (loaded.limit, loaded.seed) == (3, 1)
    assert type(loaded.limit) is int
