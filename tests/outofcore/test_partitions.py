"""Partitions of a pool: which files it has, and what is read from them."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from labelahead.data import load
from labelahead.errors import InputError
from labelahead.learner.encoding import encode_inputs
from labelahead.models.image_encoder import embed_images as embed_pictures
from labelahead.models.image_encoder import is_image_encoder_available
from labelahead.models.mel import MEL_WIDTH
from labelahead.models.sentence_encoder import embed_texts, is_sentence_encoder_available
from labelahead.outofcore import EmbedOptions, LargePool, embed
from labelahead.outofcore import partitions as parts
from labelahead.outofcore.store import read_ids, read_manifest, take_rows
from tests.support.large_pools import Inline, clouds, parquet_pool, read_features
from tests.support.sounds import write_sounds

INLINE = Inline()


def test_embed_parquet_vectors_stores_rows_and_names(tmp_path):
    x, _ = clouds(47)
    pool = parquet_pool(tmp_path / "pool", x)
    manifest = embed(pool, tmp_path / "store", EmbedOptions(rows=10), executor=INLINE)
    assert manifest.schema.kind == "vectors"
    assert sum(e.rows for e in manifest.entries) == 47
    assert np.array_equal(read_features(manifest), x.astype(np.float32).astype(np.float16))
    assert [name for e in manifest.entries for name in read_ids(e)] == [
        f"item {i}" for i in range(47)
    ]
    large = LargePool(tmp_path / "store", executor=INLINE, dtype=torch.float64)
    stored = read_features(manifest).astype(np.float64)
    assert torch.allclose(large.centre, torch.from_numpy(stored.mean(0)))
    rows, names = large.read_items(torch.tensor([46, 0, 20]), INLINE)
    assert np.array_equal(rows.numpy(), stored[[46, 0, 20]])
    assert names == ["item 46", "item 0", "item 20"]
    assert large.find_positions(["item 20", "part-1.parquet:3", "nobody"], INLINE) == {
        "item 20": 20,
        "part-1.parquet:3": 19,
    }
    assert read_manifest(tmp_path / "store") == manifest


def test_embed_accepts_fixed_size_lists_and_other_id(tmp_path):
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
        EmbedOptions(id="own", dtype="float32", rows=3),
        executor=INLINE,
    )
    assert np.array_equal(read_features(manifest), x.astype(np.float32))
    large = LargePool(tmp_path / "store", executor=INLINE)
    assert large.find_positions(["104"], INLINE) == {"104": 4}
    embed(tmp_path / "one.parquet", tmp_path / "store", EmbedOptions(rows=3), executor=INLINE)
    with pytest.raises(InputError, match="3 items are called 'p'"):
        LargePool(tmp_path / "store", executor=INLINE).find_positions(["p"], INLINE)
    with pytest.raises(
        InputError, match=r"repeat an id in the column 'one': 'same' \(row 0 and row 1\)"
    ):
        embed(tmp_path / "one.parquet", tmp_path / "other", EmbedOptions(id="one"), executor=INLINE)
    embed(tmp_path / "one.parquet", tmp_path / "numbered", EmbedOptions(id="none"), executor=INLINE)
    assert LargePool(tmp_path / "numbered", executor=INLINE).find_positions(
        ["one.parquet:8"], INLINE
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
    manifest = embed(
        pool, tmp_path / "store", EmbedOptions(dtype="float32", rows=8), executor=INLINE
    )
    assert (manifest.schema.kind, len(manifest.entries)) == ("text", 3)
    naive = embed_texts([t or "" for t in texts], cache=None).numpy()
    assert np.allclose(read_features(manifest), naive, atol=1e-5)
    entry = manifest.entries[1]
    shown = parts.read_rows(manifest.schema, entry.part, [7, 0])
    assert shown == [{"id": 15, "text": texts[15]}, {"id": 8, "text": texts[8]}]
    queries = LargePool(tmp_path / "store", executor=INLINE).query(
        23, classes=("a", "b"), evaluation=10
    )
    assert {q.id: q.text for q in queries} == {str(i): texts[i] or "" for i in range(23)}


@pytest.mark.skipif(not is_image_encoder_available(), reason="the extra 'photos' is not installed")
def test_embed_images_with_a_broken_file_raises_or_skips_it(tmp_path):
    pool, rng = tmp_path / "pool", np.random.default_rng(0)
    (pool / "b").mkdir(parents=True)
    for i, name in enumerate(["a.png", "b/c.png", "b/d.png", "z.png"]):
        Image.fromarray(rng.integers(0, 255, (40, 50 + i, 3), dtype=np.uint8)).save(pool / name)
    (pool / "b" / "broken.jpg").write_bytes(b"no picture")
    options = EmbedOptions(rows=2, dtype="float32")
    with pytest.raises(
        InputError,
        match=r"1 of 3 parts cannot be read: .*b/broken.jpg cannot be read \(it is no pic",
    ):
        embed(pool, tmp_path / "store", options, executor=INLINE)
    done = {p: p.stat().st_mtime_ns for p in (tmp_path / "store" / "parts").iterdir()}
    assert done
    manifest = embed(
        pool, tmp_path / "store", replace(options, skip_unreadable=True), executor=INLINE
    )
    assert {p: p.stat().st_mtime_ns for p in done} == done  # nothing is recomputed
    assert list(manifest.left_out) == ["b/broken.jpg"]
    # files are skipped only on request
    with pytest.raises(InputError, match=r"1 of 3 parts cannot be read"):
        embed(pool, tmp_path / "store", options, executor=INLINE)
    names = [name for entry in manifest.entries for name in read_ids(entry)]
    assert names == ["a.png", "b/c.png", "b/d.png", "z.png"]
    (tmp_path / "store" / "parts" / f"{next(iter(done)).stem}.npy.77.partial").write_bytes(
        b"of one who was killed"
    )
    # A partition is skipped as a whole.
    single = replace(options, skip_unreadable=True, rows=1)
    alone = embed(pool, tmp_path / "store", single, executor=INLINE)
    assert (len(alone.entries), list(alone.left_out)) == (4, ["b/broken.jpg"])
    embed(pool, tmp_path / "store", replace(options, skip_unreadable=True), executor=INLINE)
    assert not list((tmp_path / "store" / "parts").glob("*.partial"))
    (pool / "b" / "broken.jpg").unlink()
    data, _ = load(pool, test_fraction=0.0)
    naive = embed_pictures(data.images, 4, cache=None, standardised=False)
    at = [list(data.ids).index(name) for name in names]
    assert np.allclose(
        read_features(read_manifest(tmp_path / "store")), naive[at].numpy(), rtol=1e-3, atol=1e-4
    )


def test_npy_files_are_used_in_place(tmp_path):
    x, _ = clouds(31)
    np.save(tmp_path / "x.npy", x.astype(np.float16))
    manifest = embed(tmp_path / "x.npy", tmp_path / "store", EmbedOptions(rows=12), executor=INLINE)
    assert np.array_equal(read_features(manifest), x.astype(np.float16))
    assert not list((tmp_path / "store" / "parts").glob("*.npy"))
    assert take_rows(manifest.entries[2], [1, 0])[1] == ["x.npy:25", "x.npy:24"]


def test_unreadable_partition_is_named_or_skipped(tmp_path):
    x, _ = clouds(30)
    pool = parquet_pool(tmp_path / "pool", x)
    whole = (pool / "part-1.parquet").read_bytes()
    (pool / "part-1.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"1 of 3 parts cannot be read: part-1.parquet"):
        embed(pool, tmp_path / "store", executor=INLINE)
    # the other partitions are done
    assert len(list((tmp_path / "store" / "parts").glob("*.json"))) == 2
    manifest = embed(pool, tmp_path / "store", EmbedOptions(skip_unreadable=True), executor=INLINE)
    assert [e.part.source for e in manifest.entries] == ["part-0.parquet", "part-2.parquet"]
    assert list(manifest.left_out) == ["part-1.parquet:0"]
    damaged = bytearray(whole)
    damaged[100:400] = b"\xff" * 300
    (pool / "part-1.parquet").write_bytes(bytes(damaged))
    with pytest.raises(InputError, match=r"part-1\.parquet"):
        embed(pool, tmp_path / "store", executor=INLINE)


def test_invalid_pool_raises(tmp_path):
    x, _ = clouds(10)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("nothing")
    with pytest.raises(InputError, match=r"holds no pool \(notes.txt\)"):
        embed(tmp_path / "empty", tmp_path / "store", executor=INLINE)
    with pytest.raises(InputError, match="there is nothing at"):
        embed(tmp_path / "nowhere", tmp_path / "store", executor=INLINE)
    with pytest.raises(InputError, match="holds no features of a pool"):
        LargePool(tmp_path / "empty")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"holds object \(1,\)"):
        embed(tmp_path / "objects.npy", tmp_path / "store", executor=INLINE)
    np.save(tmp_path / "columns.npy", np.asfortranarray(x))
    with pytest.raises(InputError, match="column by column"):
        embed(tmp_path / "columns.npy", tmp_path / "store", executor=INLINE)
    pool = parquet_pool(tmp_path / "pool", x)
    with pytest.raises(InputError, match="did you mean 'vector'"):
        embed(pool, tmp_path / "store", EmbedOptions(column="vectro"), executor=INLINE)
    with pytest.raises(InputError, match="column 'number' holds int64"):
        embed(
            parquet_pool(tmp_path / "n", x, number=list(range(10))),
            tmp_path / "s",
            EmbedOptions(column="number"),
            executor=INLINE,
        )
    with pytest.raises(InputError, match="dtype is 'int8'"):
        embed(pool, tmp_path / "store", EmbedOptions(dtype="int8"), executor=INLINE)


def test_partitions_with_missing_columns_raise(tmp_path):
    """A partition without the features or the names raises; displayed columns may be missing."""
    x, _ = clouds(20)
    pool = parquet_pool(tmp_path / "pool", x[:10], files=1, note=[str(i) for i in range(10)])
    vectors = list(x[10:].astype(np.float32))
    pq.write_table(pa.table({"name": ["a"] * 10, "vector": vectors}), pool / "part-1.parquet")
    with pytest.raises(
        InputError, match=r"1 of 2 parts .* part-1.parquet has no column 'id' \(name, vector\)"
    ):
        embed(pool, tmp_path / "store", executor=INLINE)
    assert (
        len(
            embed(
                pool, tmp_path / "store", EmbedOptions(skip_unreadable=True), executor=INLINE
            ).left_out
        )
        == 1
    )
    pq.write_table(
        pa.table({"id": [f"b{i}" for i in range(10)], "vector": [*vectors[:9], None]}),
        pool / "part-1.parquet",
    )
    with pytest.raises(
        InputError, match=r"read: part-1.parquet, row 9: no vector; expected 6 numbers"
    ):
        embed(pool, tmp_path / "store", executor=INLINE)
    pq.write_table(
        pa.table({"id": [f"b{i}" for i in range(10)], "vector": [*vectors[:9], [1.0]]}),
        pool / "part-1.parquet",
    )
    with pytest.raises(
        InputError, match=r"read: part-1.parquet, row 9: a vector of 1 numbers; expected 6"
    ):
        embed(pool, tmp_path / "store", executor=INLINE)


def test_empty_partitions_are_ignored(tmp_path):
    x, _ = clouds(30)
    (tmp_path / "npy").mkdir()
    for i, some in enumerate((x[:10], x[:0], x[10:])):
        np.save(tmp_path / "npy" / f"{i}.npy", some)
    assert (
        sum(e.rows for e in embed(tmp_path / "npy", tmp_path / "a", executor=INLINE).entries) == 30
    )
    pool = parquet_pool(tmp_path / "parquet", x)
    pq.write_table(pq.read_table(pool / "part-0.parquet").slice(0, 0), pool / "part-9.parquet")
    assert sum(e.rows for e in embed(pool, tmp_path / "b", executor=INLINE).entries) == 30
    np.save(tmp_path / "none.npy", x[:0])
    with pytest.raises(InputError, match=r"nothing of .* can be read"):
        embed(tmp_path / "none.npy", tmp_path / "c", executor=INLINE)


def test_embed_sounds_equals_the_embedding_in_memory(tmp_path):
    pool = write_sounds(tmp_path / "pool", 7, class_folders=True, rate=22_050, seconds=0.2)
    (pool / "tone" / "notes.txt").write_text("recorded indoors")
    (pool / "tone" / "broken.FLAC").write_bytes(b"no sound")
    options = EmbedOptions(rows=3, dtype="float32")
    with pytest.raises(InputError, match=r"1 of 3 parts cannot .* tone/broken.FLAC cannot be read"):
        embed(pool, tmp_path / "store", options, executor=INLINE)
    manifest = embed(
        pool, tmp_path / "store", replace(options, skip_unreadable=True), executor=INLINE
    )
    assert (manifest.schema.kind, len(manifest.entries)) == ("sounds", 3)
    assert list(manifest.left_out) == ["tone/broken.FLAC"]
    (pool / "tone" / "broken.FLAC").unlink()
    data, _ = load(pool, test_fraction=0.0)
    assert [name for entry in manifest.entries for name in read_ids(entry)] == list(data.ids)
    naive = encode_inputs("exact", data, "mel", None).inputs
    assert np.array_equal(read_features(manifest), naive.numpy())
    half = embed(pool, tmp_path / "half", EmbedOptions(encoder="mel"), executor=INLINE)
    assert np.array_equal(read_features(half), naive.numpy().astype(np.float16))


def test_sound_pools_that_cannot_be_embedded_raise(tmp_path):
    pool = write_sounds(tmp_path / "pool", 2)
    with pytest.raises(InputError, match=r"encoder is 'lite0'; expected mel for sounds, or an id"):
        embed(pool, tmp_path / "store", EmbedOptions(encoder="lite0"), executor=INLINE)
    with pytest.raises(InputError, match=r"column and id are for Parquet, but .* holds sounds"):
        embed(pool, tmp_path / "store", EmbedOptions(column="text"), executor=INLINE)
    Image.new("RGB", (8, 8)).save(pool / "cover.png")
    with pytest.raises(
        InputError, match=r"1 pictures \(cover.png\) and 2 sounds \(s00-noise.wav\); .* of one kind"
    ):
        embed(pool, tmp_path / "store", executor=INLINE)


def test_network_sees_the_embeddings_of_sounds(tmp_path):
    pool = write_sounds(tmp_path / "pool", 4, seconds=0.2)
    schema, listed = parts.list_partitions(
        str(pool), EmbedOptions(encoder="mel", dtype="float32", rows=2, skip_unreadable=True)
    )
    assert parts.item_shape(schema, listed) == (MEL_WIDTH,)
    assert next(parts.iterate_batches(schema, listed[0])).features.shape == (2, MEL_WIDTH)


def test_read_columns_named_reads_the_rows_of_its_partition_only(tmp_path):
    x, _ = clouds(50)
    columns = {"llm": [str(i) for i in range(50)], "llm:ash": list(range(50)), "llmx": ["no"] * 50}
    folder = parquet_pool(tmp_path / "pool", x, files=2, **columns)
    manifest = embed(
        folder, tmp_path / "store", EmbedOptions(column="vector", rows=10), executor=Inline()
    )
    read = [parts.read_columns_named(manifest.schema, e.part, ["llm"]) for e in manifest.entries]
    assert {name for columns in read for name in columns} == {"llm", "llm:ash"}
    assert [v for columns in read for v in columns["llm"]] == columns["llm"]
    assert [len(c["llm:ash"]) for c in read] == [e.rows for e in manifest.entries]
    assert parts.read_columns_named(manifest.schema, manifest.entries[0].part, ["none"]) == {}
