"""A pool on disk as partitions that are read one by one: Parquet, .npy, images, sounds.

At most a few thousand items of a partition are in memory. A partition is identified by the address,
size and date of its source, so that computed features are found again, and those of a changed
source are not reused.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from labelahead.data.file_tree import IMAGE_SUFFIXES, SOUND_SUFFIXES, FileSource, printable_name
from labelahead.data.folder import decode_all, decode_picture, ignore_pillow_warnings
from labelahead.data.heif import require_heif_decoder
from labelahead.data.joined_embeddings import split_joined_embedding
from labelahead.data.records import FILE_NAME, NO_ID, Records, read_ids
from labelahead.data.sounds import ENCODER_SECONDS, Wave, decode_wave, import_soundfile
from labelahead.errors import (
    ClusterError,
    InputError,
    MissingExtra,
    StorageError,
    did_you_mean,
    import_extra,
)
from labelahead.models.encoder_names import (
    AUDIO,
    IMAGE,
    TEXT,
    is_encoder_prefix,
    looks_like_encoder,
    resolve_encoder,
)
from labelahead.models.encoders import load_encoder
from labelahead.models.image_encoder import BACKBONES, load_backbone, scale_pixels
from labelahead.models.mel import MEL, MEL_WIDTH, embed_waves
from labelahead.models.sentence_encoder import EMBEDDING_SIZE, ENCODER, MAX_TOKENS, SentenceEncoder
from labelahead.outofcore.addresses import Array, file_stamp, list_files, open_file, read_npy_header
from labelahead.outofcore.sketched_kernel import NetworkSpec

__all__ = [
    "TEXT_COLUMN_NAMES",
    "Batch",
    "EmbedOptions",
    "Partition",
    "PoolFiles",
    "PoolSchema",
    "file_address",
    "item_shape",
    "iterate_batches",
    "list_partitions",
    "read_columns_named",
    "read_partition_records",
    "read_rows",
]

MAX_VECTOR_ROWS, MAX_ENCODED_ROWS = (
    65_536,
    4_096,
)  # items of a partition: existing vectors, and texts or images to encode
BATCH_ROWS = {
    "npy": 8_192,
    "vectors": 8_192,
    "text": 256,
    "pictures": 64,
    "sounds": 16,
}  # items in memory while reading
IMAGE_PIXELS = 128  # pixels a side of encoder inputs
HEADER_THREADS = 16  # threads that read file headers
TEXT_COLUMN_NAMES = (
    "text",
    "content",
    "document",
    "sentence",
    "body",
)  # columns of text by their usual names
ID_COLUMN_NAMES = ("id", "item", "uid", "key")


@dataclass(frozen=True)
class PoolSchema:
    """How items become features, the same for all partitions.

    Attributes:
        root: Address of the pool.
        kind: "npy", "vectors" (a column of lists), "text" (a column), "pictures" or "sounds".
        column: The column with vectors or texts.
        id: The column that names the items.
        encoder: Of texts, images or sounds.
        dtype: Of the stored features.
        skip: Whether unreadable images and sounds are left out.
        network: Network whose sketched kernel is stored instead of the features.
        device: Where encoder and network run.
    """

    root: str
    kind: str
    column: str | None = None
    id: str | None = None
    encoder: str = ""
    dtype: str = "float16"
    skip: bool = False  # leave out unreadable images and sounds
    # whose sketched kernel is stored instead of the features
    network: NetworkSpec | None = None
    device: str = "cpu"

    @property
    def in_place(self) -> bool:
        """Whether the source is used as the features, without a copy."""
        return self.kind == "npy" and self.network is None

    @property
    def has_item_files(self) -> bool:
        """Whether every item is a file of its own, a picture or a sound."""
        return self.kind in ("pictures", "sounds")


@dataclass(frozen=True)
class Partition:
    """Consecutive rows of a file, or some images.

    `stamp` changes with the source.
    """

    source: str  # relative to the root
    start: int
    rows: int
    stamp: str
    names: tuple[str, ...] = field(default=(), repr=False)  # of pictures or sounds

    def key(self, schema: PoolSchema) -> str:
        """Return the name of its features: equal for the same partition read in the same way."""
        settings = {
            name: value
            for name, value in asdict(schema).items()
            if name != "network" or value is not None
        }
        settings["skip"] = False  # does not change the features
        # The kind of device changes the last digits, its number does not.
        settings["device"] = schema.device.partition(":")[0]
        if settings["device"] == "cpu":
            del settings["device"]
        settings |= {
            "start": self.start,
            "rows": self.rows,
            "stamp": self.stamp,
            "source": self.source,
        }
        return hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class EmbedOptions:
    """How the items of a pool are read and stored.

    Attributes:
        column: The column with vectors or texts; default: the only one.
        id: The column that names the items.
        encoder: For texts "minilm", for images "lite0" or "lite2", for sounds "mel", or a
            pretrained encoder by name.
        dtype: Type of the stored features: float16 or float32.
        rows: Items per partition.
        skip_unreadable: Leave out what cannot be read.

    >>> from labelahead.outofcore import EmbedOptions
    >>> EmbedOptions(encoder="lite0", rows=5000).dtype
    'float16'
    """

    column: str | None = None
    id: str | None = None
    encoder: str | None = None
    dtype: str = "float16"
    rows: int | None = None
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        rows = self.rows
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
            raise InputError(f"rows is {rows!r}; expected 1 or more")
        if self.dtype not in ("float16", "float32"):
            raise InputError(f"dtype is {self.dtype!r}; expected float16 or float32")


class Batch(NamedTuple):
    """Features (q, d) of consecutive items, and their names if they have some."""

    features: Array
    ids: list[str] | None
    failed: dict[str, str]  # unreadable images or sounds, and why


def list_partitions(
    root: str, options: EmbedOptions, *, network: bool = False
) -> tuple[PoolSchema, list[Partition]]:
    """Return the schema of the pool at an address, and its partitions in the order of their names.

    Args:
        root: Address of the pool.
        options: How the items are read and stored.
        network: Whether a network processes the items, which is slow, so partitions are smaller.
    """
    encoder = options.encoder
    rows = options.rows or (MAX_ENCODED_ROWS if network else None)
    files = list_files(root)
    of = {
        kind: {n: i for n, i in files.items() if PurePosixPath(n).suffix.lower() in ends}
        for kind, ends in SUFFIXES_BY_KIND.items()
    }
    kind = next((kind for kind in of if of[kind]), None)
    if kind is None:
        examples = ", ".join(list(files)[:3]) or "nothing"
        raise InputError(
            f"{root} holds no pool ({examples}); expected .parquet or .npy files, images or sounds"
        )
    if kind != "parquet" and (options.column or options.id):
        raise InputError(f"column and id are for Parquet, but {root} holds {kind}; leave them out")
    if kind == "parquet":
        return _list_parquet_partitions(root, of[kind], replace(options, rows=rows))
    if kind == "npy":
        if encoder:
            raise InputError(
                f"encoder is {encoder!r}, but .npy files hold features already; leave it out"
            )
        schema = PoolSchema(root, "npy", dtype=options.dtype if network else "")
        return schema, _list_npy_partitions(root, of[kind], rows or MAX_VECTOR_ROWS)
    if of["pictures"] and of["sounds"]:
        raise InputError(
            f"{root} holds {len(of['pictures'])} pictures ({next(iter(of['pictures']))}) and "
            f"{len(of['sounds'])} sounds ({next(iter(of['sounds']))}); expected files of one "
            "kind: move the others to another folder"
        )
    if kind == "sounds":
        import_soundfile()  # raises before any worker starts
        chosen = _choose_sound_encoder(encoder or MEL)
    else:
        require_heif_decoder(list(of[kind]), root)
        chosen = _choose_image_encoder(encoder or "lite0", network)
    schema = PoolSchema(
        root, kind, encoder=chosen, dtype=options.dtype, skip=options.skip_unreadable
    )
    return schema, _list_file_partitions(of[kind], rows or MAX_ENCODED_ROWS)


def _choose_image_encoder(name: str, network: bool) -> str:
    """Return the encoder of images as a schema names it."""
    if name in BACKBONES:
        return f"{BACKBONES[name].name}|{IMAGE_PIXELS}|{name}"
    if not looks_like_encoder(name):
        raise InputError(
            f"encoder is {name!r}; expected one of {', '.join(BACKBONES)} for images, or an id "
            "such as facebook/dinov2-small"
        )
    if network:
        raise InputError(
            f"encoder is {name!r}, but the network of model sees the pixels; leave one of them out"
        )
    return _pin_single_encoder(name)


def _choose_sound_encoder(name: str) -> str:
    """Return the encoder of sounds as a schema names it."""
    if name == MEL:
        return f"{MEL}|{MEL_WIDTH}|{ENCODER_SECONDS}"
    if not looks_like_encoder(name):
        raise InputError(
            f"encoder is {name!r}; expected {MEL} for sounds, or an id such as "
            "facebook/wav2vec2-base"
        )
    return _pin_single_encoder(name)


def _pin_single_encoder(name: str) -> str:
    """Return the name of one encoder with its revision."""
    if len(split_joined_embedding(name)) > 1:
        raise InputError(
            f"encoder is {name!r}, several joined; a pool has one encoder: join their vectors "
            "yourself, and embed that file"
        )
    return str(resolve_encoder(name))


SUFFIXES_BY_KIND: dict[str, set[str]] = {
    "parquet": {".parquet", ".pq"},
    "npy": {".npy"},
    "pictures": IMAGE_SUFFIXES,
    "sounds": set(SOUND_SUFFIXES),
}


def file_address(root: str, name: str) -> str:
    """Return the address of a file of the pool; the pool may be that one file."""
    return (
        root if root.rsplit("/", 1)[-1] == name and PurePosixPath(name).suffix else f"{root}/{name}"
    )


def _map_threads(names: Sequence[str], read_header: Callable[[str], Any]) -> list[Any]:
    with ThreadPoolExecutor(HEADER_THREADS) as threads:
        return list(threads.map(read_header, names))


# --- .npy
# ---------------------------------------------------------------------------------------------------


def _list_npy_partitions(root: str, files: dict[str, Any], rows: int) -> list[Partition]:
    def read_header(name: str) -> tuple[int, int]:
        where = file_address(root, name)
        with open_file(where) as file:
            return read_npy_header(file, where)[0]

    parts, widths = list[Partition](), dict[int, str]()
    for (name, info), (n, d) in zip(
        files.items(), _map_threads(list(files), read_header), strict=True
    ):
        widths.setdefault(d, name)
        parts += [
            Partition(name, start, min(rows, n - start), file_stamp(info))
            for start in range(0, n, rows)
        ]
    if len(widths) > 1:
        found = ", ".join(f"{name}: {d}" for d, name in widths.items())
        raise InputError(
            f"the files of {root} have rows of different lengths ({found}); expected one"
        )
    return parts


def _read_npy_batches(schema: PoolSchema, part: Partition) -> Iterator[Batch]:
    where = file_address(schema.root, part.source)
    with open_file(where) as file:
        (_, d), dtype, first = read_npy_header(file, where)
        file.seek(first + part.start * d * dtype.itemsize)
        for at in range(0, part.rows, BATCH_ROWS["npy"]):
            q = min(BATCH_ROWS["npy"], part.rows - at)
            content = file.read(q * d * dtype.itemsize)
            if len(content) < q * d * dtype.itemsize:
                raise InputError(
                    f"{where} ends too early; expected {part.start + part.rows} rows: copy it again"
                )
            yield Batch(np.frombuffer(content, dtype).reshape(q, d), None, {})


# --- Parquet
# ------------------------------------------------------------------------------------------------


def _list_parquet_partitions(
    root: str, files: dict[str, Any], options: EmbedOptions
) -> tuple[PoolSchema, list[Partition]]:
    parquet = import_extra("pyarrow.parquet", "tables", "reading Parquet")

    def read_header(name: str) -> Any:
        try:
            with open_file(file_address(root, name)) as file:
                return parquet.ParquetFile(file).metadata
        except (OSError, ValueError) as error:  # reported later; the other files are processed
            return error

    footers = _map_threads(list(files), read_header)
    schema = next(
        (f.schema.to_arrow_schema() for f in footers if not isinstance(f, Exception)), None
    )
    if schema is None:
        raise InputError(
            f"none of the {len(files)} Parquet files of {root} can be read ({footers[0]})"
        )
    schema = _parquet_schema(root, schema, options)
    parts = []
    for (name, info), footer in zip(files.items(), footers, strict=True):
        if isinstance(footer, Exception):
            parts.append(Partition(name, 0, 0, file_stamp(info)))
            continue
        groups = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
        parts += [
            Partition(name, start, n, file_stamp(info))
            for start, n in _row_ranges(groups, schema.kind, options.rows)
        ]
    return schema, parts


def _row_ranges(groups: Sequence[int], kind: str, rows: int | None) -> Iterator[tuple[int, int]]:
    """Yield first row and number of rows of each partition: whole row groups for vectors, which are
    fast to read.
    """
    if kind == "text":
        total, size = sum(groups), rows or MAX_ENCODED_ROWS
        yield from ((start, min(size, total - start)) for start in range(0, total, size))
        return
    start = held = 0
    for n in groups:
        if held and held + n > (rows or MAX_VECTOR_ROWS):
            yield start, held
            start, held = start + held, 0
        held += n
    if held:
        yield start, held


def _parquet_schema(root: str, schema: Any, options: EmbedOptions) -> PoolSchema:
    """Choose the column of features or texts and the column of names."""
    column, id, encoder, dtype = options.column, options.id, options.encoder, options.dtype
    types = import_extra("pyarrow.types", "tables", "reading Parquet")

    def is_vector(kind: Any) -> bool:
        listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        return bool(listed and types.is_floating(kind.value_type))

    def is_text(kind: Any) -> bool:
        return bool(types.is_string(kind) or types.is_large_string(kind))

    kinds = {name: schema.field(name).type for name in schema.names}
    for given, what in ((column, "column"), (None if id == NO_ID else id, "id")):
        if given is not None and given not in kinds:
            raise InputError(
                f"{what} is {given!r}, but {root} has {', '.join(kinds)}; "
                f"{did_you_mean(given, kinds)}expected "
                "one of them"
            )
    id = (
        None
        if id == NO_ID
        else id or next((name for name in kinds if name.casefold() in ID_COLUMN_NAMES), None)
    )
    if column is None:
        vectors = [name for name, kind in kinds.items() if is_vector(kind)]
        texts = [name for name, kind in kinds.items() if is_text(kind) and name != id]
        usual = [name for name in texts if name.casefold() in TEXT_COLUMN_NAMES]
        likely = vectors or usual or texts
        if len(likely) != 1:
            raise InputError(
                f"{root} has the columns {', '.join(kinds)}; expected one column of vectors or of "
                "text: name it with "
                "column (--column)"
            )
        column = likely[0]
    if is_vector(kinds[column]):
        if encoder:
            raise InputError(
                f"encoder is {encoder!r}, but {column} holds vectors already; leave it out"
            )
        return PoolSchema(root, "vectors", column, id, dtype=dtype)
    if not is_text(kinds[column]):
        raise InputError(
            f"column {column!r} holds {kinds[column]}; expected vectors (lists of floats) or text"
        )
    if encoder in (None, "minilm"):
        return PoolSchema(root, "text", column, id, encoder=f"{ENCODER}|{MAX_TOKENS}", dtype=dtype)
    if not looks_like_encoder(encoder):
        raise InputError(
            f"encoder is {encoder!r}; expected minilm for texts, or an id such as "
            "BAAI/bge-small-en-v1.5"
        )
    return PoolSchema(root, "text", column, id, encoder=_pin_single_encoder(encoder), dtype=dtype)


def _iterate_tables(
    schema: PoolSchema, part: Partition, columns: list[str], batch_rows: int
) -> Iterator[Any]:
    """Yield the rows of a partition, some at a time, from the row groups that contain them."""
    parquet = import_extra("pyarrow.parquet", "tables", "reading Parquet")
    with open_file(file_address(schema.root, part.source)) as file:
        whole = parquet.ParquetFile(file, memory_map=False, pre_buffer=False)
        column_names = whole.schema_arrow.names
        missing_column = next((name for name in columns if name not in column_names), None)
        if missing_column is not None:
            raise InputError(
                f"{part.source} has no column {missing_column!r} ({', '.join(column_names)}); expected it in "
                "every part"
            )
        first, groups, skipped = 0, list[int](), 0
        for i in range(whole.num_row_groups):
            n = whole.metadata.row_group(i).num_rows
            if first < part.start + part.rows and first + n > part.start:
                skipped = part.start - first if not groups else skipped
                groups.append(i)
            first += n
        left = part.rows
        for batch in whole.iter_batches(batch_rows, row_groups=groups, columns=columns):
            dropped = min(skipped, len(batch))
            skipped -= dropped
            rest = batch.slice(dropped, left)
            left -= len(rest)
            if len(rest):
                yield rest
            if not left:
                return


def _read_parquet_batches(schema: PoolSchema, part: Partition) -> Iterator[Batch]:
    assert schema.column is not None
    columns = list(dict.fromkeys([schema.column, *([schema.id] if schema.id else [])]))
    done = part.start
    for table in _iterate_tables(schema, part, columns, BATCH_ROWS[schema.kind]):
        values = table.column(schema.column)
        made = (
            _encode_texts(values.to_pylist(), schema.encoder, schema.device)
            if schema.kind == "text"
            else _to_matrix(values, part, done)
        )
        ids = None
        if schema.id:
            places = [f"row {done + i}" for i in range(len(made))]
            ids = read_ids(part.source, schema.id, table.column(schema.id).to_pylist(), places)
        yield Batch(made, ids, {})
        done += len(made)


def _to_matrix(values: Any, part: Partition, first: int) -> Array:
    """Convert a column of lists to (q, d)."""
    compute = import_extra("pyarrow.compute", "tables", "reading Parquet")
    lengths = compute.fill_null(compute.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    odd = np.flatnonzero((lengths != lengths.max()) | (lengths == 0))
    if len(odd):
        at = int(odd[0])
        found = f"a vector of {lengths[at]} numbers" if lengths[at] else "no vector"
        raise InputError(
            f"{part.source}, row {first + at}: {found}; expected {lengths.max() or 'some'} numbers "
            "as in the others"
        )
    return np.asarray(values.flatten().to_numpy(zero_copy_only=False)).reshape(len(values), -1)


@cache
def _sentence_encoder(device: str) -> SentenceEncoder:
    return SentenceEncoder(device)


def _encode_texts(given: list[str | None], encoder: str, device: str) -> Array:
    texts = [text or "" for text in given]
    if is_encoder_prefix(encoder):
        return load_encoder(encoder, TEXT, device=device).encode_all(texts).numpy()
    rows = torch.empty(len(texts), EMBEDDING_SIZE)
    for _ in _sentence_encoder(device).encode_into(texts, rows):
        pass
    return rows.numpy()


# --- pictures and sounds
# ------------------------------------------------------------------------------------


def _list_file_partitions(files: dict[str, Any], rows: int) -> list[Partition]:
    names = list(files)
    parts = []
    for start in range(0, len(names), rows):
        some = names[start : start + rows]
        digest = hashlib.sha256(
            "\0".join(f"{n} {file_stamp(files[n])}" for n in some).encode(
                "utf-8", "surrogateescape"
            )
        )
        parts.append(
            Partition(
                f"{printable_name(some[0])} and on",
                start,
                len(some),
                digest.hexdigest(),
                tuple(some),
            )
        )
    return parts


@dataclass(frozen=True)
class PoolFiles:
    """Files below an address, opened by name."""

    root: str

    def open(self, name: str) -> BinaryIO:
        """Open one file."""
        return open_file(file_address(self.root, name))


@cache
def _backbone(name: str, device: str) -> Any:
    return load_backbone(name).to(device)


def _read_decoded_batches(
    schema: PoolSchema,
    part: Partition,
    decode: Callable[[FileSource, str], Any],
    encode: Callable[[list[Any]], Array],
) -> Iterator[Batch]:
    """Yield batches of features of images or sounds that are decoded one by one."""
    files = PoolFiles(schema.root)

    def decode_or_explain(name: str) -> Any:
        try:
            return decode(files, name)
        except MissingExtra:  # of this worker: no fault of the file
            raise
        except Exception as error:  # decoders raise almost any error on a broken file
            return str(error) or type(error).__name__

    for at in range(0, len(part.names), BATCH_ROWS[schema.kind]):
        some = part.names[at : at + BATCH_ROWS[schema.kind]]
        with ignore_pillow_warnings():
            decoded = dict(zip(some, _map_threads(some, decode_or_explain), strict=True))
        failed = {printable_name(n): why for n, why in decoded.items() if isinstance(why, str)}
        if failed and not schema.skip:
            name, why = next(iter(failed.items()))
            raise InputError(f"{name} cannot be read ({why})")
        items = {n: item for n, item in decoded.items() if not isinstance(item, str)}
        features = encode(list(items.values())) if items else np.zeros((0, 0), np.float32)
        yield Batch(features, [printable_name(name) for name in items], failed)


def _read_image_batches(schema: PoolSchema, part: Partition) -> Iterator[Batch]:
    if is_encoder_prefix(schema.encoder):
        encoder = load_encoder(schema.encoder, IMAGE, device=schema.device)
        yield from _read_decoded_batches(
            schema, part, decode_picture, lambda pictures: encoder.encode_all(pictures).numpy()
        )
        return
    chosen = schema.encoder.rsplit("|", 1)[-1]
    for at in range(0, len(part.names), BATCH_ROWS["pictures"]):
        some = part.names[at : at + BATCH_ROWS["pictures"]]
        seen, failed = decode_all(PoolFiles(schema.root), some, IMAGE_PIXELS)
        if failed and not schema.skip:
            name, why = next(iter(failed.items()))
            raise InputError(f"{printable_name(name)} cannot be read ({why})")
        kept = [name for name in some if name in seen]
        made = np.zeros((0, 0), np.float32)
        if kept:
            image_tensor = scale_pixels(torch.from_numpy(np.stack([seen[n] for n in kept])))
            with torch.no_grad():
                made = image_tensor.numpy()
                if schema.network is None:
                    trunk = _backbone(chosen, schema.device)
                    made = trunk.features(image_tensor.to(schema.device)).cpu().numpy()
        yield Batch(
            made,
            [printable_name(name) for name in kept],
            {printable_name(n): why for n, why in failed.items()},
        )


def _read_sound_batches(schema: PoolSchema, part: Partition) -> Iterator[Batch]:
    """Yield batches of features of sounds, of which encoders hear the first seconds."""
    return _read_decoded_batches(
        schema, part, decode_wave, lambda waves: _encode_sounds(waves, schema)
    )


def _encode_sounds(waves: list[Wave], schema: PoolSchema) -> Array:
    """Return the features (q, d) of sounds."""
    if is_encoder_prefix(schema.encoder):
        return load_encoder(schema.encoder, AUDIO, device=schema.device).encode_all(waves).numpy()
    return embed_waves(waves).numpy()


# --- all
# ----------------------------------------------------------------------------------------------------


def iterate_batches(schema: PoolSchema, part: Partition) -> Iterator[Batch]:
    """Yield the items of a partition in order, some at a time; errors name the partition."""
    read = {
        "npy": _read_npy_batches,
        "pictures": _read_image_batches,
        "sounds": _read_sound_batches,
    }.get(schema.kind, _read_parquet_batches)
    if part.rows == 0:
        raise InputError(f"{part.source} cannot be read: no Parquet file, or damaged")
    try:
        for batch in read(schema, part):
            of = schema.network
            yield (
                batch
                if of is None or not len(batch.features)
                else batch._replace(features=of.rows(batch.features, schema.device))
            )
    except ClusterError:
        raise
    except InputError as error:
        named = str(error).startswith(part.source)
        raise error if named else InputError(f"{part.source}: {error}") from error
    except OSError as error:
        raise StorageError(f"{part.source} cannot be read ({error})") from error
    except import_extra("pyarrow", "tables", "reading Parquet").lib.ArrowException as error:
        raise InputError(f"{part.source} cannot be read ({str(error).splitlines()[0]})") from error


def item_shape(schema: PoolSchema, parts: Sequence[Partition]) -> tuple[int, ...]:
    """Return the shape of one item as a network's input, from the first readable partition."""
    if schema.kind == "pictures":
        return (3, IMAGE_PIXELS, IMAGE_PIXELS)
    if schema.kind in ("text", "sounds") and not is_encoder_prefix(schema.encoder):
        return (EMBEDDING_SIZE if schema.kind == "text" else MEL_WIDTH,)
    why: Exception | None = None
    for part in parts:
        try:
            for batch in iterate_batches(schema, part):
                if len(batch.features):  # not if every file of the batch is left out
                    return tuple(batch.features.shape[1:])
        except (InputError, OSError) as error:
            why = error
    raise InputError(f"nothing of {schema.root} can be read ({why})")


def _plain_columns(schema: PoolSchema, part: Partition) -> list[str]:
    """Return the names of all columns of a Parquet partition except nested ones."""
    parquet = import_extra("pyarrow.parquet", "tables", "reading Parquet")
    types = import_extra("pyarrow.types", "tables", "reading Parquet")
    with open_file(file_address(schema.root, part.source)) as file:
        arrow_schema = parquet.read_schema(file)
    return [
        name for name in arrow_schema.names if not types.is_nested(arrow_schema.field(name).type)
    ]


def read_partition_records(
    schema: PoolSchema, part: Partition, ids: Sequence[str]
) -> Records | None:
    """Return the user's columns of all items of a partition, except nested ones; None for .npy files."""
    if schema.kind == "npy":
        return None
    if schema.has_item_files:
        return Records({FILE_NAME: list(ids)})
    arrow = import_extra("pyarrow", "tables", "reading Parquet")
    names = _plain_columns(schema, part)
    table = (
        arrow.Table.from_batches(list(_iterate_tables(schema, part, names, BATCH_ROWS["npy"])))
        if names
        else None
    )
    return Records({} if table is None else {name: table.column(name) for name in names}, schema.id)


def read_columns_named(
    schema: PoolSchema, part: Partition, names: Sequence[str]
) -> dict[str, list[Any]]:
    """Return the columns of a Parquet partition that are called NAME or NAME:CLASS; {} for other pools.

    Args:
        schema: The schema of the pool.
        part: The partition.
        names: The names.
    """
    if schema.kind == "npy" or schema.has_item_files:
        return {}
    prefixes = tuple(f"{name}:" for name in names)
    wanted = [
        column
        for column in _plain_columns(schema, part)
        if column in names or column.startswith(prefixes)
    ]
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    for table in _iterate_tables(schema, part, wanted, BATCH_ROWS["npy"]) if wanted else ():
        for name in wanted:
            columns[name] += table.column(name).to_pylist()
    return columns


def read_rows(schema: PoolSchema, part: Partition, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Return all columns of some rows of a Parquet partition, except nested ones."""
    plain = _plain_columns(schema, part)
    shown: dict[int, dict[str, Any]] = {}
    wanted, done = set(rows), 0
    for table in _iterate_tables(schema, part, plain, BATCH_ROWS["npy"]):
        shown |= {
            done + i: table.slice(i, 1).to_pylist()[0]
            for i in range(len(table))
            if done + i in wanted
        }
        done += len(table)
    return [shown[row] for row in rows]
