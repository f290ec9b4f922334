"""Features on disk: every kind of pool, written once, resumed, and refused where they cannot be
right.
"""

import json
import os
import shutil
import signal
import subprocess
import sys

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from labelahead.errors import InputError, StorageError
from labelahead.models.image_encoder import embed_images as embed_pictures
from labelahead.models.image_encoder import is_image_encoder_available
from labelahead.models.sentence_encoder import embed_texts, is_sentence_encoder_available
from labelahead.outofcore import LargePool, embed
from labelahead.outofcore import partitions as parts
from labelahead.outofcore.addresses import write_file
from labelahead.outofcore.store import read_blocks, read_ids, read_manifest, take_rows
from tests.support.large_pools import Inline, clouds, parquet_pool
from tests.support.waiting import until

HERE = Inline()


def features(manifest):
    return np.concatenate([rows for entry in manifest.entries for _, rows in read_blocks(entry, 7)])


def test_embed_parquet_vectors(tmp_path):
    x, _ = clouds(47)
    pool = parquet_pool(tmp_path / "pool", x)
    manifest = embed(pool, tmp_path / "store", rows=10, executor=HERE)
    assert manifest.reading.kind == "vectors"
    assert sum(e.rows for e in manifest.entries) == 47
    assert np.array_equal(features(manifest), x.astype(np.float32).astype(np.float16))
    assert [name for e in manifest.entries for name in read_ids(e)] == [
        f"item {i}" for i in range(47)
    ]
    large = LargePool(tmp_path / "store", executor=HERE, dtype=torch.float64)
    stored = features(manifest).astype(np.float64)
    assert torch.allclose(large.centre, torch.from_numpy(stored.mean(0)))
    rows, names = large.read_items(torch.tensor([46, 0, 20]), HERE)
    assert np.array_equal(rows.numpy(), stored[[46, 0, 20]])
    assert names == ["item 46", "item 0", "item 20"]
    assert large.find_positions(["item 20", "part-1.parquet:3", "nobody"], HERE) == {
        "item 20": 20,
        "part-1.parquet:3": 19,
    }
    assert read_manifest(tmp_path / "store") == manifest


def test_embed_fixed_size_lists_and_other_id(tmp_path):
    x, _ = clouds(9)
    values = pa.FixedSizeListArray.from_arrays(pa.array(x.astype(np.float64).ravel()), 6)
    table = pa.table(
        {
            "id": [*"pqrspqrsp"],
            "one": ["same"] * 9,
            "own": [str(100 + i) for i in range(9)],
            "v": values,
        }
    )
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=4)
    manifest = embed(
        tmp_path / "one.parquet",
        tmp_path / "store",
        id="own",
        dtype="float32",
        rows=3,
        executor=HERE,
    )
    assert np.array_equal(features(manifest), x.astype(np.float32))
    large = LargePool(tmp_path / "store", executor=HERE)
    assert large.find_positions(["104"], HERE) == {"104": 4}
    embed(tmp_path / "one.parquet", tmp_path / "store", rows=3, executor=HERE)
    with pytest.raises(InputError, match="3 items are called 'p'"):
        LargePool(tmp_path / "store", executor=HERE).find_positions(["p"], HERE)
    with pytest.raises(
        InputError, match=r"repeat an id in the column 'one': 'same' \(row 0 and row 1\)"
    ):
        embed(tmp_path / "one.parquet", tmp_path / "other", id="one", executor=HERE)
    embed(tmp_path / "one.parquet", tmp_path / "numbered", id="none", executor=HERE)
    assert LargePool(tmp_path / "numbered", executor=HERE).find_positions(
        ["one.parquet:8"], HERE
    ) == {"one.parquet:8": 8}


@pytest.mark.skipif(
    not is_sentence_encoder_available(), reason="the extra 'texts' is not installed"
)
def test_embed_texts_uses_encoder(tmp_path, monkeypatch):
    texts = [f"{'word ' * (i % 5)}number {i} of the list" for i in range(23)]
    pool = tmp_path / "pool"
    pool.mkdir()
    texts[4] = None
    pq.write_table(
        pa.table({"id": list(range(23)), "text": texts}), pool / "a.parquet", row_group_size=10
    )
    manifest = embed(pool, tmp_path / "store", dtype="float32", rows=8, executor=HERE)
    assert (manifest.reading.kind, len(manifest.entries)) == ("text", 3)
    naive = embed_texts([t or "" for t in texts], cache=None).numpy()
    assert np.allclose(features(manifest), naive, atol=1e-5)
    entry = manifest.entries[1]
    shown = parts.read_rows(manifest.reading, entry.part, [7, 0])
    assert shown == [{"id": 15, "text": texts[15]}, {"id": 8, "text": texts[8]}]
    asked = LargePool(tmp_path / "store", executor=HERE).query(
        23, classes=("a", "b"), evaluation=10
    )
    assert {q.id: q.text for q in asked} == {str(i): texts[i] or "" for i in range(23)}


@pytest.mark.skipif(not is_image_encoder_available(), reason="the extra 'photos' is not installed")
def test_embed_images_with_a_broken_file(tmp_path):
    pool, rng = tmp_path / "pool", np.random.default_rng(0)
    (pool / "b").mkdir(parents=True)
    for i, name in enumerate(["a.png", "b/c.png", "b/d.png", "z.png"]):
        Image.fromarray(rng.integers(0, 255, (40, 50 + i, 3), dtype=np.uint8)).save(pool / name)
    (pool / "b" / "broken.jpg").write_bytes(b"no picture")
    how = {"rows": 2, "dtype": "float32", "executor": HERE}
    with pytest.raises(
        InputError,
        match=r"1 of 3 parts cannot be read: .*b/broken.jpg cannot be read \(it is no pic",
    ):
        embed(pool, tmp_path / "store", **how)
    done = {p: p.stat().st_mtime_ns for p in (tmp_path / "store" / "parts").iterdir()}
    assert done
    manifest = embed(pool, tmp_path / "store", skip_unreadable=True, **how)
    assert {p: p.stat().st_mtime_ns for p in done} == done  # nothing is worked out twice
    assert list(manifest.left_out) == ["b/broken.jpg"]
    with pytest.raises(
        InputError, match=r"1 of 3 parts cannot be read"
    ):  # nor left out unless that is asked for
        embed(pool, tmp_path / "store", **how)
    names = [name for entry in manifest.entries for name in read_ids(entry)]
    assert names == ["a.png", "b/c.png", "b/d.png", "z.png"]
    (tmp_path / "store" / "parts" / f"{next(iter(done)).stem}.npy.77.partial").write_bytes(
        b"of one who was killed"
    )
    alone = embed(
        pool, tmp_path / "store", skip_unreadable=True, **(how | {"rows": 1})
    )  # a part that is left out whole
    assert (len(alone.entries), list(alone.left_out)) == (4, ["b/broken.jpg"])
    embed(pool, tmp_path / "store", skip_unreadable=True, **how)
    assert not list((tmp_path / "store" / "parts").glob("*.partial"))
    (pool / "b" / "broken.jpg").unlink()
    from labelahead.data import load

    data, _ = load(pool, test_fraction=0.0)
    naive = embed_pictures(data.images, 4, cache=None, standardised=False)
    at = [list(data.ids).index(name) for name in names]
    assert np.allclose(
        features(read_manifest(tmp_path / "store")), naive[at].numpy(), rtol=1e-3, atol=1e-4
    )


def test_npy_files_are_used_in_place(tmp_path):
    x, _ = clouds(31)
    np.save(tmp_path / "x.npy", x.astype(np.float16))
    manifest = embed(tmp_path / "x.npy", tmp_path / "store", rows=12, executor=HERE)
    assert np.array_equal(features(manifest), x.astype(np.float16))
    assert not list((tmp_path / "store" / "parts").glob("*.npy"))
    assert take_rows(manifest.entries[2], [1, 0])[1] == ["x.npy:25", "x.npy:24"]


def test_store_on_other_file_systems(tmp_path):
    x, _ = clouds(20)
    fs = fsspec.filesystem("memory")
    for i in range(2):
        with fs.open(f"/bucket/p{i}.parquet", "wb") as file:
            pq.write_table(
                pa.table(
                    {"id": list(range(10 * i, 10 * i + 10)), "v": list(x[10 * i : 10 * i + 10])}
                ),
                file,
            )
    manifest = embed("memory://bucket", "memory://features", executor=HERE)
    assert np.array_equal(features(manifest), x.astype(np.float16))
    assert fs.exists("/features/manifest.json")
    labels = {str(i): "ab"[i % 2] for i in range(6)}
    asked = LargePool("memory://features", executor=HERE).query(3, labels, evaluation=10)
    assert not {q.id for q in asked} & set(labels)
    fs.rm("/features", recursive=True)
    fs.rm("/bucket", recursive=True)


def test_embed_recomputes_changed_partitions_only(tmp_path):
    x, _ = clouds(30)
    pool, store = parquet_pool(tmp_path / "pool", x), tmp_path / "store"
    embed(pool, store, executor=HERE)
    dates = {p.name: p.stat().st_mtime_ns for p in (store / "parts").iterdir()}
    told = []
    embed(pool, store, executor=HERE, progress=lambda *said: told.append(said))
    assert not told
    assert {p.name: p.stat().st_mtime_ns for p in (store / "parts").iterdir()} == dates
    parquet_pool(tmp_path / "other", x[::-1], files=1)
    (tmp_path / "other" / "part-0.parquet").replace(pool / "part-1.parquet")
    manifest = embed(pool, store, executor=HERE, progress=lambda *said: told.append(said))
    assert [said[1] for said in told] == [50]  # 20 were there
    assert np.array_equal(features(manifest)[10:40], x[::-1].astype(np.float32).astype(np.float16))
    left = {p.name for p in (store / "parts").iterdir()}
    assert len(left & set(dates)) == 6  # npy, parquet and json of two parts
    assert len(left) == 9


def test_killed_embed_resumes(tmp_path):
    x, _ = clouds(40_000)
    pool = tmp_path / "pool"
    pool.mkdir()
    for i in range(20):
        table = pa.table(
            {"id": np.arange(2000) + 2000 * i, "v": list(x[2000 * i : 2000 * i + 2000])}
        )
        pq.write_table(table, pool / f"{i:02d}.parquet")
    store = tmp_path / "store"
    script = f"""
import time
from pathlib import Path
from labelahead.outofcore import embed
from tests.support.large_pools import Inline

class Standing(Inline):
    def submit(self, function, /, *args, name):
        time.sleep(600 if len(list(Path({str(store)!r}).glob("parts/*.json"))) >= 3 else 0)
        return super().submit(function, *args, name=name)

embed({str(pool)!r}, {str(store)!r}, executor=Standing())
"""
    run = subprocess.Popen([sys.executable, "-c", script])
    until(lambda: len(list(store.glob("parts/*.json"))) >= 3 or run.poll() is not None)
    run.send_signal(signal.SIGKILL)
    run.wait()
    done = {p: p.stat().st_mtime_ns for p in store.glob("parts/*.json")}
    assert not (store / "manifest.json").exists()
    assert len(done) == 3
    manifest = embed(pool, store, executor=HERE)
    assert {p: p.stat().st_mtime_ns for p in done} == done
    assert np.array_equal(features(manifest), x.astype(np.float16))


def test_unreadable_partition_is_named_or_skipped(tmp_path):
    x, _ = clouds(30)
    pool = parquet_pool(tmp_path / "pool", x)
    whole = (pool / "part-1.parquet").read_bytes()
    (pool / "part-1.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"1 of 3 parts cannot be read: part-1.parquet"):
        embed(pool, tmp_path / "store", executor=HERE)
    assert len(list((tmp_path / "store" / "parts").glob("*.json"))) == 2  # the others are done
    manifest = embed(pool, tmp_path / "store", skip_unreadable=True, executor=HERE)
    assert [e.part.source for e in manifest.entries] == ["part-0.parquet", "part-2.parquet"]
    assert list(manifest.left_out) == ["part-1.parquet:0"]
    damaged = bytearray(whole)
    damaged[100:400] = b"\xff" * 300
    (pool / "part-1.parquet").write_bytes(bytes(damaged))
    with pytest.raises(InputError, match=r"part-1\.parquet"):
        embed(pool, tmp_path / "store", executor=HERE)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: x.__setitem__((13, 2), np.nan), r"part-1.parquet, row 3 holds NaN or infinity"),
        (
            lambda x: x.__setitem__((13, 2), 1e6),
            r"part-1.parquet, row 3: 1e\+06 is too large for float16.*float32",
        ),
        (
            lambda x: x.__setitem__(13, x[13] * 1e-8),
            r"part-1.parquet, row 3: its numbers are too small for float16",
        ),
    ],
)
def test_unrepresentable_numbers_raise(tmp_path, spoil, message):
    x, _ = clouds(30)
    spoil(x)
    with pytest.raises(InputError, match=message):
        embed(parquet_pool(tmp_path / "pool", x), tmp_path / "store", executor=HERE)


def test_invalid_pool_raises(tmp_path):
    x, _ = clouds(10)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("nothing")
    with pytest.raises(InputError, match=r"holds no pool \(notes.txt\)"):
        embed(tmp_path / "empty", tmp_path / "store", executor=HERE)
    with pytest.raises(InputError, match="there is nothing at"):
        embed(tmp_path / "nowhere", tmp_path / "store", executor=HERE)
    with pytest.raises(InputError, match="holds no features of a pool"):
        LargePool(tmp_path / "empty")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"holds object \(1,\)"):
        embed(tmp_path / "objects.npy", tmp_path / "store", executor=HERE)
    np.save(tmp_path / "columns.npy", np.asfortranarray(x))
    with pytest.raises(InputError, match="column by column"):
        embed(tmp_path / "columns.npy", tmp_path / "store", executor=HERE)
    pool = parquet_pool(tmp_path / "pool", x)
    with pytest.raises(InputError, match="did you mean 'vector'"):
        embed(pool, tmp_path / "store", column="vectro", executor=HERE)
    with pytest.raises(InputError, match="column 'number' holds int64"):
        embed(
            parquet_pool(tmp_path / "n", x, number=list(range(10))),
            tmp_path / "s",
            column="number",
            executor=HERE,
        )
    with pytest.raises(InputError, match="dtype is 'int8'"):
        embed(pool, tmp_path / "store", dtype="int8", executor=HERE)


class Away(fsspec.AbstractFileSystem):
    """A storage that cannot be reached, and has errors of its own."""

    protocol = "away"

    def _fails(self, *args, **how):
        raise RuntimeError("could not connect to the endpoint")

    info = isfile = exists = makedirs = _open = _fails


def test_unavailable_storage_raises(tmp_path):
    fsspec.register_implementation("away", Away, clobber=True)
    x, _ = clouds(10)
    np.save(tmp_path / "x.npy", x)
    for source, store, done in (
        ("away://pool", tmp_path / "a", "read"),
        (tmp_path / "x.npy", "away://store", "read"),
    ):
        with pytest.raises(
            StorageError, match=rf"away://.* cannot be {done} \(could not connect to the endpoint\)"
        ):
            embed(source, store, executor=HERE)
    with pytest.raises(StorageError, match=r"cannot be written to \(could not connect"):
        write_file("away://store/x", b"content")
    with pytest.raises(StorageError, match="cannot be read"):
        LargePool("away://store")


def test_partitions_with_missing_columns_raise(tmp_path):
    """One that lacks what is learnt from, or the names, is refused.

    Columns to look at may be missing.
    """
    x, _ = clouds(20)
    pool = parquet_pool(tmp_path / "pool", x[:10], files=1, note=[str(i) for i in range(10)])
    vectors = list(x[10:].astype(np.float32))
    pq.write_table(pa.table({"name": ["a"] * 10, "vector": vectors}), pool / "part-1.parquet")
    with pytest.raises(
        InputError, match=r"1 of 2 parts .* part-1.parquet has no column 'id' \(name, vector\)"
    ):
        embed(pool, tmp_path / "store", executor=HERE)
    assert len(embed(pool, tmp_path / "store", skip_unreadable=True, executor=HERE).left_out) == 1
    pq.write_table(
        pa.table({"id": [f"b{i}" for i in range(10)], "vector": [*vectors[:9], None]}),
        pool / "part-1.parquet",
    )
    with pytest.raises(
        InputError, match=r"read: part-1.parquet, row 9: no vector; expected 6 numbers"
    ):
        embed(pool, tmp_path / "store", executor=HERE)
    pq.write_table(
        pa.table({"id": [f"b{i}" for i in range(10)], "vector": [*vectors[:9], [1.0]]}),
        pool / "part-1.parquet",
    )
    with pytest.raises(
        InputError, match=r"read: part-1.parquet, row 9: a vector of 1 numbers; expected 6"
    ):
        embed(pool, tmp_path / "store", executor=HERE)


def test_store_inside_pool_raises(tmp_path):
    """Its own files would be taken for the pool the next time."""
    x, _ = clouds(10)
    pool = parquet_pool(tmp_path / "pool", x)
    for store in (pool, pool / "store"):
        with pytest.raises(InputError, match="is inside the pool"):
            embed(pool, store, executor=HERE)
    embed(pool, tmp_path / "pool-store", executor=HERE)


def test_empty_partitions_are_ignored(tmp_path):
    x, _ = clouds(30)
    (tmp_path / "npy").mkdir()
    for i, some in enumerate((x[:10], x[:0], x[10:])):
        np.save(tmp_path / "npy" / f"{i}.npy", some)
    assert sum(e.rows for e in embed(tmp_path / "npy", tmp_path / "a", executor=HERE).entries) == 30
    pool = parquet_pool(tmp_path / "parquet", x)
    pq.write_table(pq.read_table(pool / "part-0.parquet").slice(0, 0), pool / "part-9.parquet")
    assert sum(e.rows for e in embed(pool, tmp_path / "b", executor=HERE).entries) == 30
    np.save(tmp_path / "none.npy", x[:0])
    with pytest.raises(InputError, match=r"nothing of .* can be read"):
        embed(tmp_path / "none.npy", tmp_path / "c", executor=HERE)


def test_changed_features_raise(tmp_path):
    x, _ = clouds(30)
    np.save(tmp_path / "x.npy", x)
    embed(tmp_path / "x.npy", tmp_path / "store", executor=HERE)
    large = LargePool(tmp_path / "store", executor=HERE)
    np.save(tmp_path / "x.npy", x[:, :3])
    with pytest.raises(StorageError, match=r"has changed, it is \(30, 3\) now"):
        large.query(2, evaluation=10)
    np.save(tmp_path / "x.npy", x + 1)  # the same shape, other numbers
    with pytest.raises(StorageError, match="has changed since"):
        LargePool(tmp_path / "store")
    embed(tmp_path / "x.npy", tmp_path / "store", executor=HERE)
    said = json.loads((tmp_path / "store" / "manifest.json").read_text())
    (tmp_path / "store" / "manifest.json").write_text(json.dumps(said | {"entries": [{}]}))
    with pytest.raises(StorageError, match="is damaged"):
        LargePool(tmp_path / "store")


def flip_bit(path, at=-5):
    """One bit of a file, which keeps its size and date."""
    about, content = path.stat(), bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(bytes(content))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def parts_of(store, suffix):
    return sorted((store / "parts").glob(f"*{suffix}"))


@pytest.mark.parametrize("written", ["now", "before there were checksums"])
def test_copied_store_reads_its_own_partitions(tmp_path, written):
    x, _ = clouds(40)
    original, copy = tmp_path / "original", tmp_path / "copy"
    whole = embed(parquet_pool(tmp_path / "pool", x), original, rows=10, executor=HERE)
    if written != "now":  # as version 1 of the format has it
        said = json.loads((original / "manifest.json").read_text())
        for entry in said["entries"]:
            del entry["record"], entry["checksum"]
            entry |= {key: f"file://{original}/{entry[key]}" for key in ("features", "ids")}
        (original / "manifest.json").write_text(json.dumps(said | {"format": 1}))
    shutil.copytree(original, copy)
    shutil.rmtree(original)
    copied = read_manifest(copy)
    assert np.array_equal(features(copied), x.astype(np.float32).astype(np.float16))
    assert all(e.features.startswith(f"file://{copy}/parts/") for e in copied.entries)
    assert take_rows(copied.entries[1], [2])[1] == [f"item {copied.entries[0].rows + 2}"]
    assert len(LargePool(copy, executor=HERE).query(2, evaluation=10)) == 2
    again = embed(tmp_path / "pool", copy, rows=10, executor=HERE)  # all parts are there
    assert [e.total for e in again.entries] == [e.total for e in whole.entries]


@pytest.mark.parametrize("in_place", [False, True])
def test_flipped_bit_raises_with_repair_hint(tmp_path, in_place):
    x, _ = clouds(40)
    store, pool = tmp_path / "store", tmp_path / "pool"
    if in_place:
        pool.mkdir()
        np.save(pool / "x.npy", x.astype(np.float32))
    else:
        parquet_pool(pool, x)
    manifest = embed(pool, store, rows=10, executor=HERE)
    before = features(manifest)
    damaged = pool / "x.npy" if in_place else parts_of(store, ".npy")[0]
    entry = next(
        e for e in reversed(read_manifest(store).entries) if e.features == f"file://{damaged}"
    )
    flip_bit(damaged)
    from labelahead.outofcore import store as module

    module._verified.clear()  # as in another process
    with pytest.raises(
        StorageError, match=f"{damaged.name} is damaged.* remove .*json and embed the pool again"
    ) as said:
        list(read_blocks(entry, 7))
    assert entry.record in str(said.value)
    with pytest.raises(StorageError, match="is damaged"):
        take_rows(entry, [0])
    with pytest.raises(StorageError, match="is damaged"):
        LargePool(store, executor=HERE).query(2, evaluation=10)
    if in_place:
        flip_bit(damaged)  # restored
    else:
        os.unlink(entry.record.removeprefix("file://"))
    mended = embed(pool, store, rows=10, executor=HERE)
    assert np.array_equal(features(mended), before)


def test_changed_header_raises(tmp_path):
    x, _ = clouds(12)
    embed(parquet_pool(tmp_path / "pool", x), tmp_path / "store", executor=HERE)
    path = parts_of(tmp_path / "store", ".npy")[0]
    path.write_bytes(path.read_bytes().replace(b"<f2", b">f2"))
    entry = next(
        e for e in read_manifest(tmp_path / "store").entries if e.features.endswith(path.name)
    )
    with pytest.raises(StorageError, match="is damaged"):
        list(read_blocks(entry, 100))


def test_damaged_names_raise(tmp_path):
    x, _ = clouds(40)
    embed(parquet_pool(tmp_path / "pool", x), tmp_path / "store", executor=HERE)
    path = parts_of(tmp_path / "store", ".parquet")[0]
    entry = next(e for e in read_manifest(tmp_path / "store").entries if e.ids == f"file://{path}")
    assert len(read_ids(entry)) == entry.rows
    flip_bit(path, at=60)
    with pytest.raises(StorageError, match=f"{path.name} is damaged.*embed the pool again"):
        read_ids(entry)


def test_partition_is_verified_once_per_process(tmp_path):
    x, _ = clouds(20)
    embed(parquet_pool(tmp_path / "pool", x), tmp_path / "store", executor=HERE)
    entry = read_manifest(tmp_path / "store").entries[0]
    take_rows(entry, [0])
    flip_bit(parts_of(tmp_path / "store", f"{entry.features.rsplit('/', 1)[-1]}")[0])
    take_rows(entry, [0])  # read without another pass over the part
