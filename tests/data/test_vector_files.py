"""Vectors that the user has computed, in every format, matched with any data."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from labelahead.data import load
from labelahead.data.folder import arrange_by_ids
from labelahead.data.vector_files import attach_vectors
from labelahead.errors import InputError

N, D = 12, 5


@pytest.fixture
def data(tmp_path):
    """Twelve pictures in two class folders."""
    for i in range(N):
        path = tmp_path / "photos" / "ab"[i % 2] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * i, 0, 0)).save(path)
    return load(tmp_path / "photos")[0]


@pytest.fixture
def vectors():
    return np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


def write(path, values, ids=None):
    """Write vectors as a user would, with their names where the format has a place for them."""
    match path.suffix:
        case ".npy":
            np.save(path, values)
        case ".npz":
            np.savez(path, vectors=values, **({} if ids is None else {"id": np.array(ids)}))
        case ".parquet":
            columns = {} if ids is None else {"id": ids}
            pq.write_table(pa.table({**columns, "embedding": values.tolist()}), path)
        case ".safetensors":
            about = None if ids is None else {"ids": json.dumps(ids)}
            save_file({"embeddings": values}, path, metadata=about)
    return path


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".safetensors"])
def test_vectors_match_by_order(tmp_path, data, vectors, suffix):
    path = write(tmp_path / f"v{suffix}", vectors)
    got = attach_vectors(data, str(path)).vectors[str(path)]
    assert torch.allclose(got, torch.from_numpy(vectors))


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".safetensors"])
@pytest.mark.parametrize("short", [True, False])
def test_vectors_match_by_id_or_file_name(tmp_path, data, vectors, suffix, short):
    order = np.random.default_rng(1).permutation(N)
    names = [data.ids[i].rpartition("/")[2] if short else data.ids[i] for i in order]
    path = write(tmp_path / f"v{suffix}", vectors[order], names)
    got = attach_vectors(data, str(path)).vectors[str(path)]
    assert torch.allclose(got, torch.from_numpy(vectors))


def test_one_tensor_per_item_in_safetensors(tmp_path, data, vectors):
    path = tmp_path / "v.safetensors"
    save_file({name: vectors[i] for i, name in enumerate(data.ids)}, path)
    got = attach_vectors(data, str(path)).vectors[str(path)]
    assert torch.allclose(got, torch.from_numpy(vectors))


def test_half_precision_is_kept_and_mapped(tmp_path, data, vectors):
    path = write(tmp_path / "v.npy", vectors.astype(np.float16))
    got = attach_vectors(data, str(path)).vectors[str(path)]
    assert got.dtype == torch.float16
    if Path("/proc/self/maps").exists():
        assert str(path) in Path("/proc/self/maps").read_text()


def test_vectors_of_broken_files_are_left_out(tmp_path, data, vectors):
    (tmp_path / "photos" / "a" / "00.png").write_bytes(b"broken")
    some = load(tmp_path / "photos")[0]
    assert len(some) == N - 1
    path = write(tmp_path / "v.npy", vectors)  # one row per file, the broken one among them
    got = attach_vectors(some, str(path)).vectors[str(path)]
    all_names = list(some.images.file_names())
    assert torch.allclose(got, torch.from_numpy(vectors[[all_names.index(n) for n in some.ids]]))


def test_vectors_follow_the_order_of_a_journal(tmp_path, data, vectors):
    path = write(tmp_path / "v.npy", vectors)
    attached = attach_vectors(data, str(path))
    order = [*reversed(data.ids)]
    again, _ = arrange_by_ids((attached, None), order)
    assert torch.allclose(again.vectors[str(path)], torch.from_numpy(vectors[::-1].copy()))


def wrong(kind, vectors):
    if kind == "nan":
        vectors = vectors.copy()
        vectors[3, 1] = np.nan
    return {
        "nan": vectors,
        "count": vectors[:-2],
        "tokens": np.stack([vectors] * 4, 1),
        "flat": vectors[:, 0],
        "words": np.array([["a"] * D] * N),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nan", "row 3 of .* holds NaN or infinity"),
        ("count", "has 10 vectors without names, but photos has 12 items"),
        ("tokens", r"shape \(12, 4, 5\); expected \(n, d\).*x.mean\(1\)"),
        ("flat", r"shape \(12,\); expected \(n, d\)"),
        ("words", "expected numbers"),
    ],
)
def test_wrong_vectors_are_refused_in_one_sentence(tmp_path, data, vectors, kind, message):
    path = write(tmp_path / "v.npy", wrong(kind, vectors))
    with pytest.raises(InputError, match=message):
        attach_vectors(data, str(path))


def test_missing_and_repeated_names_are_refused(tmp_path, data, vectors):
    path = write(tmp_path / "v.npz", vectors, [*data.ids[:-1], "other.png"])
    with pytest.raises(InputError, match="no vector of 1 of the 12 items"):
        attach_vectors(data, str(path))
    write(path, vectors, [*data.ids[:-1], data.ids[0]])
    with pytest.raises(InputError, match="two vectors of"):
        attach_vectors(data, str(path))


def test_ragged_parquet_and_damaged_files_are_refused(tmp_path, data):
    path = tmp_path / "v.parquet"
    pq.write_table(pa.table({"embedding": [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]] * 6}), path)
    with pytest.raises(InputError, match="vectors of 2 to 4 numbers"):
        attach_vectors(data, str(path))
    for name in ("v.npy", "w.npz", "w.safetensors", "w.parquet"):
        (tmp_path / name).write_bytes(b"damaged")
        with pytest.raises(InputError, match="write it again"):
            attach_vectors(data, str(tmp_path / name))
    with pytest.raises(InputError, match="does not exist"):
        attach_vectors(data, str(tmp_path / "none.npy"))
