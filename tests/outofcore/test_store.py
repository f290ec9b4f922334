"""Features on disk: every kind of pool is written once and resumed; invalid features raise."""

import json
import os
import shutil
import signal

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labelahead.errors import InputError, StorageError
from labelahead.outofcore import EmbedOptions, LargePool, embed
from labelahead.outofcore.addresses import write_file
from labelahead.outofcore.store import read_blocks, read_ids, read_manifest, take_rows
from tests.support.large_pools import Inline, clouds, parquet_pool, read_features
from tests.support.waiting import until
from tests.support.warm_processes import start_python

INLINE = Inline()


def test_store_works_on_other_file_systems(tmp_path):
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
    manifest = embed("memory://bucket", "memory://features", executor=INLINE)
    assert np.array_equal(read_features(manifest), x.astype(np.float16))
    assert fs.exists("/features/manifest.json")
    labels = {str(i): "ab"[i % 2] for i in range(6)}
    asked = LargePool("memory://features", executor=INLINE).query(3, labels, evaluation=10)
    assert not {q.id for q in asked} & set(labels)
    fs.rm("/features", recursive=True)
    fs.rm("/bucket", recursive=True)


def test_embed_recomputes_changed_partitions_only(tmp_path):
    x, _ = clouds(30)
    pool, store = parquet_pool(tmp_path / "pool", x), tmp_path / "store"
    embed(pool, store, executor=INLINE)
    dates = {p.name: p.stat().st_mtime_ns for p in (store / "parts").iterdir()}
    progress_calls = []
    embed(
        pool, store, executor=INLINE, progress=lambda *arguments: progress_calls.append(arguments)
    )
    assert not progress_calls
    assert {p.name: p.stat().st_mtime_ns for p in (store / "parts").iterdir()} == dates
    parquet_pool(tmp_path / "other", x[::-1], files=1)
    (tmp_path / "other" / "part-0.parquet").replace(pool / "part-1.parquet")
    manifest = embed(
        pool, store, executor=INLINE, progress=lambda *arguments: progress_calls.append(arguments)
    )
    assert [arguments[1] for arguments in progress_calls] == [50]  # 20 exist already
    assert np.array_equal(
        read_features(manifest)[10:40], x[::-1].astype(np.float32).astype(np.float16)
    )
    left = {p.name for p in (store / "parts").iterdir()}
    assert len(left & set(dates)) == 6  # npy, parquet and json of two partitions
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
    run = start_python(["-c", script])
    until(lambda: len(list(store.glob("parts/*.json"))) >= 3 or run.poll() is not None)
    run.send_signal(signal.SIGKILL)
    run.wait()
    done = {p: p.stat().st_mtime_ns for p in store.glob("parts/*.json")}
    assert not (store / "manifest.json").exists()
    assert len(done) == 3
    manifest = embed(pool, store, executor=INLINE)
    assert {p: p.stat().st_mtime_ns for p in done} == done
    assert np.array_equal(read_features(manifest), x.astype(np.float16))


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
        embed(parquet_pool(tmp_path / "pool", x), tmp_path / "store", executor=INLINE)


class UnreachableFileSystem(fsspec.AbstractFileSystem):
    """A file system that cannot be reached and raises its own errors."""

    protocol = "away"

    def _fails(self, *args, **how):
        raise RuntimeError("could not connect to the endpoint")

    info = isfile = exists = makedirs = _open = _fails


def test_unavailable_storage_raises(tmp_path):
    fsspec.register_implementation("away", UnreachableFileSystem, clobber=True)
    x, _ = clouds(10)
    np.save(tmp_path / "x.npy", x)
    for source, store, done in (
        ("away://pool", tmp_path / "a", "read"),
        (tmp_path / "x.npy", "away://store", "read"),
    ):
        with pytest.raises(
            StorageError, match=rf"away://.* cannot be {done} \(could not connect to the endpoint\)"
        ):
            embed(source, store, executor=INLINE)
    with pytest.raises(StorageError, match=r"cannot be written to \(could not connect"):
        write_file("away://store/x", b"content")
    with pytest.raises(StorageError, match="cannot be read"):
        LargePool("away://store")


def test_store_inside_pool_raises(tmp_path):
    """The files of the store would count as items of the pool next time."""
    x, _ = clouds(10)
    pool = parquet_pool(tmp_path / "pool", x)
    for store in (pool, pool / "store"):
        with pytest.raises(InputError, match="is inside the pool"):
            embed(pool, store, executor=INLINE)
    embed(pool, tmp_path / "pool-store", executor=INLINE)


def test_changed_features_raise(tmp_path):
    x, _ = clouds(30)
    np.save(tmp_path / "x.npy", x)
    embed(tmp_path / "x.npy", tmp_path / "store", executor=INLINE)
    large = LargePool(tmp_path / "store", executor=INLINE)
    np.save(tmp_path / "x.npy", x[:, :3])
    with pytest.raises(StorageError, match=r"has changed, it is \(30, 3\) now"):
        large.query(2, evaluation=10)
    np.save(tmp_path / "x.npy", x + 1)  # the same shape, other numbers
    with pytest.raises(StorageError, match="has changed since"):
        LargePool(tmp_path / "store")
    embed(tmp_path / "x.npy", tmp_path / "store", executor=INLINE)
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    (tmp_path / "store" / "manifest.json").write_text(json.dumps(manifest | {"entries": [{}]}))
    with pytest.raises(StorageError, match="is damaged"):
        LargePool(tmp_path / "store")


def flip_bit(path, at=-5):
    """Flip one bit of a file; size and modification time stay the same."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(bytes(content))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def list_part_files(store, suffix):
    return sorted((store / "parts").glob(f"*{suffix}"))


@pytest.mark.parametrize("written_by", ["now", "before there were checksums"])
def test_copied_store_reads_its_own_partitions(tmp_path, written_by):
    x, _ = clouds(40)
    original, copy = tmp_path / "original", tmp_path / "copy"
    whole = embed(
        parquet_pool(tmp_path / "pool", x), original, EmbedOptions(rows=10), executor=INLINE
    )
    if written_by != "now":  # as in version 1 of the format
        manifest = json.loads((original / "manifest.json").read_text())
        for entry in manifest["entries"]:
            del entry["record"], entry["checksum"]
            entry |= {key: f"file://{original}/{entry[key]}" for key in ("features", "ids")}
        (original / "manifest.json").write_text(json.dumps(manifest | {"format": 1}))
    shutil.copytree(original, copy)
    shutil.rmtree(original)
    copied = read_manifest(copy)
    assert np.array_equal(read_features(copied), x.astype(np.float32).astype(np.float16))
    assert all(e.features.startswith(f"file://{copy}/parts/") for e in copied.entries)
    assert take_rows(copied.entries[1], [2])[1] == [f"item {copied.entries[0].rows + 2}"]
    assert len(LargePool(copy, executor=INLINE).query(2, evaluation=10)) == 2
    again = embed(
        tmp_path / "pool", copy, EmbedOptions(rows=10), executor=INLINE
    )  # all partitions exist
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
    manifest = embed(pool, store, EmbedOptions(rows=10), executor=INLINE)
    before = read_features(manifest)
    damaged = pool / "x.npy" if in_place else list_part_files(store, ".npy")[0]
    entry = next(
        e for e in reversed(read_manifest(store).entries) if e.features == f"file://{damaged}"
    )
    flip_bit(damaged)
    from labelahead.outofcore import store as module

    module._verified.clear()  # as in a new process
    with pytest.raises(
        StorageError, match=f"{damaged.name} is damaged.* remove .*json and embed the pool again"
    ) as error:
        list(read_blocks(entry, 7))
    assert entry.record in str(error.value)
    with pytest.raises(StorageError, match="is damaged"):
        take_rows(entry, [0])
    with pytest.raises(StorageError, match="is damaged"):
        LargePool(store, executor=INLINE).query(2, evaluation=10)
    if in_place:
        flip_bit(damaged)  # restored
    else:
        os.unlink(entry.record.removeprefix("file://"))
    repaired = embed(pool, store, EmbedOptions(rows=10), executor=INLINE)
    assert np.array_equal(read_features(repaired), before)


def test_changed_header_raises(tmp_path):
    x, _ = clouds(12)
    embed(parquet_pool(tmp_path / "pool", x), tmp_path / "store", executor=INLINE)
    path = list_part_files(tmp_path / "store", ".npy")[0]
    path.write_bytes(path.read_bytes().replace(b"<f2", b">f2"))
    entry = next(
        e for e in read_manifest(tmp_path / "store").entries if e.features.endswith(path.name)
    )
    with pytest.raises(StorageError, match="is damaged"):
        list(read_blocks(entry, 100))


def test_damaged_names_raise(tmp_path):
    x, _ = clouds(40)
    embed(parquet_pool(tmp_path / "pool", x), tmp_path / "store", executor=INLINE)
    path = list_part_files(tmp_path / "store", ".parquet")[0]
    entry = next(e for e in read_manifest(tmp_path / "store").entries if e.ids == f"file://{path}")
    assert len(read_ids(entry)) == entry.rows
    flip_bit(path, at=60)
    with pytest.raises(StorageError, match=f"{path.name} is damaged.*embed the pool again"):
        read_ids(entry)


def test_partition_is_verified_once_per_process(tmp_path):
    x, _ = clouds(20)
    embed(parquet_pool(tmp_path / "pool", x), tmp_path / "store", executor=INLINE)
    entry = read_manifest(tmp_path / "store").entries[0]
    take_rows(entry, [0])
    flip_bit(list_part_files(tmp_path / "store", f"{entry.features.rsplit('/', 1)[-1]}")[0])
    take_rows(entry, [0])  # read without verifying the partition again
