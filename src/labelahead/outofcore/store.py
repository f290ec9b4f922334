"""Features of a pool on disk, written once, partition by partition.

    manifest.json        the schema, all partitions in order, and what was left out
    parts/KEY.npy        features (rows, d) of a partition, float16 or float32
    parts/KEY.parquet    the names of its items
    parts/KEY.json       rows, sums, checksum; written last, so that a partition is complete or absent

Addresses of the store's own files are relative, so a copy of the folder is an independent store.
KEY changes with the address, size and date of the source and with the encoder. After a crash, or
after partitions were added, only what is missing is computed. Features in .npy files are not
copied: only sums and checksums are stored. A process verifies the checksum of a partition when it
first reads it.
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from labelahead.devices import resolve_device
from labelahead.errors import InputError, StorageError, import_extra
from labelahead.outofcore.addresses import (
    Array,
    absolute_address,
    exists,
    file_stamp,
    is_local,
    list_files,
    open_file,
    read_npy_header,
    remove_file,
    write_file,
)
from labelahead.outofcore.execution import Progress, connect_executor, run_tasks
from labelahead.outofcore.partitions import (
    EmbedOptions,
    Partition,
    PoolSchema,
    item_shape,
    iterate_batches,
    list_partitions,
)
from labelahead.outofcore.sketched_kernel import NetworkOptions, NetworkSpec, describe_network

__all__ = [
    "Manifest",
    "PartitionEntry",
    "embed",
    "is_store",
    "read_blocks",
    "read_ids",
    "read_manifest",
    "require_unchanged",
    "take_rows",
]

FORMAT_VERSION = 2  # format 1, still readable, has no checksums and absolute addresses
VERIFY_CHUNK_BYTES = 1 << 24  # per read while verifying
MANIFEST_FILE, PARTIAL_SUFFIX = "manifest.json", ".partial"
MAX_NAMED_PARTS = 5  # in an error message
MAX_ROUNDING_LOSS = 0.01  # relative change of a row's squared length by rounding


@dataclass(frozen=True)
class PartitionEntry:
    """A partition and its features: where they are, how many, and sums for the mean of the pool."""

    part: Partition
    features: str  # address of the .npy file
    first: int  # its row there
    rows: int
    total: tuple[float, ...] = field(repr=False)  # (d,) sum of the rows, float64
    squares: float  # sum of their squared lengths
    ids: str | None  # address of the names
    failed: dict[str, str] = field(default_factory=dict, repr=False)
    record: str = ""  # address of its KEY.json
    # CRC-32 of type, width and numbers; None in stores that were written without
    checksum: int | None = None

    def name(self, row: int) -> str:
        """Return the name of an item that has no id: the file and its row."""
        return f"{self.part.source}:{self.part.start + row}"


@dataclass(frozen=True)
class Manifest:
    """All partitions of a pool that have features, in order."""

    schema: PoolSchema
    entries: tuple[PartitionEntry, ...] = field(repr=False)
    left_out: dict[str, str]  # parts, pictures and sounds that cannot be read, and why


def embed(
    source: str | Path,
    store: str | Path,
    options: EmbedOptions | None = None,
    *,
    network: NetworkOptions | None = None,
    device: str = "cpu",
    executor: Any = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Compute the features of a pool that `store` does not hold yet.

    Args:
        source: A folder, bucket or file of Parquet or .npy, or a folder of images or of sounds;
            any fsspec address.
        store: A folder that all workers can reach.
        options: How the items are read and stored.
        network: A network whose tangent kernel is stored instead.
        device: Where every worker runs the encoder or the network. Features of another kind of
            device are computed anew, since they differ in the last digits.
        executor: See `connect_executor`; default: processes of this machine.
        workers: Number of local processes.
        progress: Called with the stage, the items done and their total.

    >>> len(embed("pool.npy", "features", EmbedOptions(rows=100), workers=1).entries)
    3
    """
    root, store_address = absolute_address(source), absolute_address(store)
    options = options or EmbedOptions()
    if device == "auto":
        device = resolve_device(device)
    _require_outside_pool(root, store_address)
    schema, parts = list_partitions(root, options, network=network is not None)
    if network is not None:
        description = describe_network(network, item_shape(schema, parts))
        schema = replace(schema, network=description)
    if not schema.in_place:
        schema = replace(schema, device=device)
    entries = _read_finished(store_address, parts, schema, options.skip_unreadable)
    missing = [part for part in parts if part not in entries]
    refused: dict[int, Exception] = {}
    if missing:
        done = sum(part.rows for part in parts) - sum(part.rows for part in missing)
        on_progress = progress and (lambda stage, n, total: progress(stage, done + n, done + total))
        tasks = [(part.source, part.rows, (schema, part, store_address)) for part in missing]
        with connect_executor(executor, workers=workers) as engine:
            made = run_tasks(engine, "embed items", embed_part, tasks, on_progress, refused)
        entries |= {
            part: entry for part, entry in zip(missing, made, strict=True) if entry is not None
        }
    unreadable = {
        f"{missing[i].source}:{missing[i].start}": str(error)
        for i, error in sorted(refused.items())
    }
    if unreadable and not options.skip_unreadable:
        raise _unreadable_error(list(unreadable.values()), len(parts))
    manifest = _make_manifest(root, schema, [entries[p] for p in parts if p in entries], unreadable)
    write_file(f"{store_address}/{MANIFEST_FILE}", _as_json(manifest, store_address))
    _remove_stale(store_address, {part.key(schema) for part in entries})
    return manifest


def _make_manifest(
    root: str, schema: PoolSchema, entries: Sequence[PartitionEntry], unreadable: Mapping[str, str]
) -> Manifest:
    """Return the manifest of all partitions that hold items."""
    whole = [entry for entry in entries if entry.rows]
    _require_same_width(whole, root)
    failed = {name: why for entry in entries for name, why in entry.failed.items()}
    return Manifest(schema, tuple(whole), {**unreadable, **failed})


def _require_outside_pool(root: str, store_address: str) -> None:
    if f"{store_address}/".startswith(f"{root}/"):
        raise InputError(
            f"{store_address} is inside the pool; expected another folder, since its files would "
            "join the pool"
        )


def _read_finished(
    store_address: str, parts: Sequence[Partition], schema: PoolSchema, skip: bool
) -> dict[Partition, PartitionEntry]:
    """Return the partitions that are complete.

    Without `skip`, partitions with left-out items are computed again.
    """
    kept = _list_stored_files(store_address)
    entries = {
        part: _read_entry(store_address, part, schema)
        for part in parts
        if f"{part.key(schema)}.json" in kept
    }
    return {part: entry for part, entry in entries.items() if skip or not entry.failed}


def _unreadable_error(why: Sequence[str], parts: int) -> InputError:
    more = f" and {len(why) - MAX_NAMED_PARTS} more" if len(why) > MAX_NAMED_PARTS else ""
    return InputError(
        f"{len(why)} of {parts} parts cannot be read: {'; '.join(why[:MAX_NAMED_PARTS])}{more}. "
        "Repair them and run this again, which computes nothing twice; or leave them out: "
        "skip_unreadable "
        "(--skip-unreadable)"
    )


def _require_same_width(entries: Sequence[PartitionEntry], root: str) -> None:
    if not entries:
        raise InputError(f"nothing of {root} can be read; expected at least one item")
    widths: dict[int, str] = {}
    for entry in entries:
        widths.setdefault(len(entry.total), entry.part.source)
    if len(widths) > 1:
        content = ", ".join(f"{name}: {d}" for d, name in widths.items())
        raise InputError(
            f"the parts of {root} have vectors of different lengths ({content}); expected one"
        )


def _list_stored_files(store_address: str) -> dict[str, Any]:
    """Return the files of all stored partitions."""
    folder = f"{store_address}/parts"
    return list_files(folder) if exists(folder) else {}


def _remove_stale(store_address: str, keys: set[str]) -> None:
    """Remove partitions that the pool no longer has, and partial files of killed workers."""
    for name in _list_stored_files(store_address):
        if name.split(".")[0] not in keys or name.endswith(PARTIAL_SUFFIX):
            remove_file(f"{store_address}/parts/{name}")


def embed_part(schema: PoolSchema, part: Partition, store_address: str) -> PartitionEntry:
    """Read a partition and write its features, its names and finally its entry (a task)."""
    base = f"{store_address}/parts/{part.key(schema)}"
    features = _PartitionFeatures(schema, part)
    if schema.in_place:
        features.read(None)
    else:
        write_file(f"{base}.npy", features.read)
    if features.rows != part.rows and not features.failed:
        raise InputError(
            f"{part.source} has {features.rows} rows where {part.rows} were announced; see whether "
            "it is being written"
        )
    names = features.names
    if names:
        write_file(f"{base}.parquet", lambda file: _write_names(file, names))
    source = (
        f"{schema.root}/{part.source}" if not schema.root.endswith(part.source) else schema.root
    )
    bare = Partition(part.source, part.start, part.rows, part.stamp)
    entry = PartitionEntry(
        bare,
        source if schema.in_place else f"{base}.npy",
        part.start if schema.in_place else 0,
        features.rows,
        tuple(features.total.tolist()),
        features.squares,
        f"{base}.parquet" if names else None,
        features.failed,
        f"{base}.json",
        features.checksum,
    )
    write_file(f"{base}.json", json.dumps(_entry_to_json(entry, store_address)))
    return entry


class _PartitionFeatures:
    """The features of a partition: their sums, names and checksum, batch by batch."""

    def __init__(self, schema: PoolSchema, part: Partition) -> None:
        self.schema = schema
        self.part = part
        self.total: Array = np.zeros(0)
        self.squares = 0.0
        self.rows = 0
        self.names: list[str] = []
        self.failed: dict[str, str] = {}
        self.checksum = 0

    def read(self, file: BinaryIO | None) -> None:
        """Read the partition, and write its features to a file unless they stay in place."""
        for batch in iterate_batches(self.schema, self.part):
            self.failed.update(batch.failed)
            if len(batch.features):
                self._add(batch.features, file)
                self.names.extend(batch.ids or ())
        if file is not None and self.rows and self.rows != self.part.rows:
            file.seek(0)
            empty = np.zeros((0, len(self.total)), self.schema.dtype)
            _write_npy_header(file, empty, self.rows)

    def _add(self, features: Array, file: BinaryIO | None) -> None:
        schema, part, rows = self.schema, self.part, self.rows
        made = features if schema.in_place else _cast_features(features, schema.dtype, part, rows)
        content = made.tobytes()
        before = self.checksum if rows else _first_checksum(made.dtype, made.shape[1])
        self.checksum = zlib.crc32(content, before)
        if file is not None:
            if not rows:
                _write_npy_header(file, made, part.rows)
            file.write(content)
        exact = made.astype(np.float64)
        if not np.isfinite(exact).all():
            first = int(np.flatnonzero(~np.isfinite(exact).all(1))[0])
            raise _not_finite_error(part, rows + first)
        self.total = (self.total if rows else 0.0) + exact.sum(0)
        width = schema.network.sketch if schema.network else None
        self.squares += float(np.square(exact[:, :width]).sum())
        self.rows += len(made)


def _cast_features(features: Array, dtype: str, part: Partition, first: int) -> Array:
    with np.errstate(over="ignore"):
        made = features.astype(dtype)
    lost_errors = np.isfinite(features) & ~np.isfinite(made)
    if lost_errors.any():
        row = first + int(np.flatnonzero(lost_errors.any(1))[0])
        raise InputError(
            f"{part.source}, row {part.start + row}: {features[lost_errors][0]:g} is too large for "
            f"{dtype}; expected smaller "
            "numbers, or dtype float32 (--dtype float32)"
        )
    before, after = (np.square(x.astype(np.float64)).sum(1) for x in (features, made))
    faint = np.flatnonzero(np.abs(after - before) > MAX_ROUNDING_LOSS * before)
    if len(faint):
        raise InputError(
            f"{part.source}, row {part.start + first + int(faint[0])}: its numbers are too small "
            f"for {dtype}; expected "
            "larger ones, or dtype float32 (--dtype float32)"
        )
    return made


def _not_finite_error(part: Partition, row: int) -> InputError:
    return InputError(
        f"{part.source}, row {part.start + row} holds NaN or infinity; expected finite numbers: "
        "repair or remove it"
    )


def _write_npy_header(file: BinaryIO, like: Array, rows: int) -> None:
    """Write the header of an .npy file for this number of rows; its length is constant."""
    about = {
        "descr": np.lib.format.dtype_to_descr(like.dtype),
        "fortran_order": False,
        "shape": (rows, like.shape[1]),
    }
    np.lib.format.write_array_header_1_0(file, about)


def _write_names(file: BinaryIO, names: Sequence[str]) -> None:
    arrow, parquet = (
        import_extra("pyarrow", "tables", "writing names"),
        import_extra("pyarrow.parquet", "tables", "writing names"),
    )
    table = arrow.table({"id": arrow.array(names, arrow.string())})
    parquet.write_table(table, file, compression="zstd", write_page_checksum=True)


def _as_json(manifest: Manifest, store_address: str) -> str:
    entries = [_entry_to_json(entry, store_address) for entry in manifest.entries]
    content = {
        "format": FORMAT_VERSION,
        "reading": asdict(manifest.schema),
        "entries": entries,
        "left_out": manifest.left_out,
    }
    return json.dumps(content)


def _entry_to_json(entry: PartitionEntry, store_address: str) -> dict[str, Any]:
    """Return an entry as it is stored, with relative addresses of the store's own files."""
    values = asdict(entry)
    for key in ADDRESS_FIELDS:
        values[key] = values[key] and values[key].removeprefix(f"{store_address}/")
    return values


def is_store(name: str) -> bool:
    """Return whether `embed` has written there; only remote addresses cause a remote request."""
    if "://" not in name and not (Path(name).expanduser() / "parts").is_dir():
        return False
    return exists(f"{absolute_address(name)}/{MANIFEST_FILE}")


def read_manifest(store: str | Path) -> Manifest:
    """Read the manifest of a store."""
    store_address = absolute_address(store)
    address = f"{store_address}/{MANIFEST_FILE}"
    if not exists(address):
        raise InputError(
            f"{store} holds no features of a pool; expected a folder that `labelahead pool embed` "
            "has finished"
        )
    with open_file(address) as file:
        try:
            content = json.loads(file.read())
            if content["format"] not in (1, FORMAT_VERSION):
                raise InputError(
                    f"{address} is of format {content['format']}; expected {FORMAT_VERSION}: embed "
                    "the pool again"
                )
            schema = _schema_from_json(content["reading"])
            entries = tuple(
                _entry_from_json(each_entry, store_address, schema)
                for each_entry in content["entries"]
            )
            return Manifest(schema, entries, content["left_out"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise StorageError(
                f"{address} is damaged ({error}); embed the pool again, which keeps the parts"
            ) from error


def require_unchanged(manifest: Manifest) -> None:
    """Raise if the source is used as the features and has changed."""
    if not manifest.schema.in_place:
        return
    now = {name: file_stamp(info) for name, info in list_files(manifest.schema.root).items()}
    for entry in manifest.entries:
        if now.get(entry.part.source) != entry.part.stamp:
            raise StorageError(
                f"{entry.features} has changed since its pool was embedded; embed it again: it "
                "reads what changed"
            )


def _schema_from_json(values: dict[str, Any]) -> PoolSchema:
    network_spec = values.get("network")
    known = network_spec and NetworkSpec(
        **(
            network_spec
            | {"classes": tuple(network_spec["classes"]), "shape": tuple(network_spec["shape"])}
        )
    )
    return PoolSchema(**(values | {"network": known}))


ADDRESS_FIELDS = ("features", "ids", "record")  # fields of an entry


def _entry_from_json(
    values: dict[str, Any], store_address: str, schema: PoolSchema
) -> PartitionEntry:
    """Return a stored entry with the addresses of the store's current location."""
    part, addresses = values["part"] | {"names": ()}, dict[str, Any]()
    for key in ADDRESS_FIELDS:
        stored = values.get(key) or None
        source = schema.in_place and key == "features"  # lies outside, and is where it was
        inside = stored and not source and f"{store_address}/parts/{stored.rsplit('/', 1)[-1]}"
        addresses[key] = inside or stored
    record = addresses["record"] or f"{store_address}/parts/{Partition(**part).key(schema)}.json"
    known = (
        values
        | addresses
        | {"record": record, "part": Partition(**part), "total": tuple(values["total"])}
    )
    return PartitionEntry(**known)


def _read_entry(store_address: str, part: Partition, schema: PoolSchema) -> PartitionEntry:
    with open_file(f"{store_address}/parts/{part.key(schema)}.json") as file:
        return _entry_from_json(json.loads(file.read()), store_address, schema)


# --- reading
# ------------------------------------------------------------------------------------------------


def read_blocks(entry: PartitionEntry, size: int) -> Iterator[tuple[int, Array]]:
    """Yield first row and features (q, d) of all items of a partition, some at a time."""
    with open_file(entry.features) as file:
        d, dtype, first = _locate_features(file, entry)
        file.seek(first)
        checksum = _first_checksum(dtype, d)
        unknown = not _is_verified(entry)
        for start in range(0, entry.rows, size):
            q = min(size, entry.rows - start)
            block = _read_rows(file, q, d, dtype, entry)
            checksum = zlib.crc32(block.data, checksum) if unknown else checksum
            yield start, block
    if unknown:
        _require_checksum(entry, checksum)


def take_rows(entry: PartitionEntry, rows: Sequence[int]) -> tuple[Array, list[str]]:
    """Return features (q, d) and names of some items of a partition, by row."""
    with open_file(entry.features) as file:
        d, dtype, first = _locate_features(file, entry)
        # A storage far away would have to send the whole part for some rows; the process that scores the
        # pool reads it anyway.
        if not _is_verified(entry) and is_local(entry.features):
            _verify(file, first, entry, d, dtype)
        found = []
        for row in rows:
            file.seek(first + row * d * dtype.itemsize)
            found.append(_read_rows(file, 1, d, dtype, entry))
    return np.concatenate(found), read_ids(entry, rows)


def _locate_features(file: BinaryIO, entry: PartitionEntry) -> tuple[int, Any, int]:
    """Return columns, dtype, and the offset of the partition's first number."""
    (n, d), dtype, first = read_npy_header(file, entry.features)
    if n < entry.first + entry.rows or d != len(entry.total):
        raise StorageError(
            f"{entry.features} has changed, it is ({n}, {d}) now; {_repair_hint(entry)}"
        )
    return d, dtype, first + entry.first * d * dtype.itemsize


def _read_rows(file: BinaryIO, q: int, d: int, dtype: Any, entry: PartitionEntry) -> Array:
    content = file.read(q * d * dtype.itemsize)
    if len(content) < q * d * dtype.itemsize:
        raise StorageError(f"{entry.features} ends too early; {_repair_hint(entry)}")
    return np.frombuffer(content, dtype).reshape(q, d)


# --- checksums
# ----------------------------------------------------------------------------------------------

_verified: set[tuple[str, int, int]] = set()  # parts that this process has found whole


def _first_checksum(dtype: Any, width: int) -> int:
    """Return the initial checksum, which depends on dtype and width."""
    return zlib.crc32(f"{np.dtype(dtype).str} {width}".encode())


def _is_verified(entry: PartitionEntry) -> bool:
    """Return whether this process has verified the partition; old stores have no checksum."""
    return entry.checksum is None or (entry.features, entry.first, entry.checksum) in _verified


def _verify(file: BinaryIO, first: int, entry: PartitionEntry, d: int, dtype: Any) -> None:
    file.seek(first)
    left, checksum = entry.rows * d * dtype.itemsize, _first_checksum(dtype, d)
    while left:
        content = file.read(min(left, VERIFY_CHUNK_BYTES))
        if not content:
            raise StorageError(f"{entry.features} ends too early; {_repair_hint(entry)}")
        left, checksum = left - len(content), zlib.crc32(content, checksum)
    _require_checksum(entry, checksum)


def _require_checksum(entry: PartitionEntry, checksum: int) -> None:
    if checksum != entry.checksum:
        raise StorageError(
            f"{entry.features} is damaged: rows {entry.first} to {entry.first + entry.rows - 1} "
            "are not the numbers "
            f"that were written (checksum {checksum:08x}, expected {entry.checksum:08x}); "
            f"{_repair_hint(entry)}"
        )
    _verified.add((entry.features, entry.first, checksum))


def _repair_hint(entry: PartitionEntry) -> str:
    return (
        f"restore it from a copy, or remove {entry.record} and embed the pool again with the same "
        "options, which works "
        "out this part alone"
    )


def read_ids(entry: PartitionEntry, rows: Sequence[int] | None = None) -> list[str]:
    """Return the names of items of a partition; default: all."""
    if entry.ids is None:
        return [entry.name(row) for row in (range(entry.rows) if rows is None else rows)]
    parquet = import_extra("pyarrow.parquet", "tables", "reading names")
    with open_file(entry.ids) as file:
        try:
            names = parquet.read_table(file, page_checksum_verification=True).column("id")
        except (OSError, ValueError, KeyError) as error:  # Arrow's own derive from these
            raise StorageError(
                f"{entry.ids} is damaged ({error}); {_repair_hint(entry)}"
            ) from error
    return [str(name) for name in (names if rows is None else names.take(list(rows))).to_pylist()]
