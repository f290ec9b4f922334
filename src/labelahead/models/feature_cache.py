"""A cache of expensive features: computed block by block, each block stored as one file.

Features are found by the key of their item, not by its position: they are reused if the same items
come in another order, in part or with others.
"""

import hashlib
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelahead.errors import InputError, StorageError
from labelahead.files import replace_file

__all__ = [
    "BLOCK_ITEMS",
    "FeatureCache",
    "collect_features",
    "compute_features",
    "make_key",
    "make_numbered_keys",
    "read_cached_width",
]

log = logging.getLogger("labelahead")
BLOCK_ITEMS = 256  # items per file of the cache: about ten seconds of work
DIGEST_BYTES = 32  # SHA-256
KEY_BYTES = 16  # the first bytes of a SHA-256 digest
COUNTS_STRUCT = struct.Struct("<II")  # number of items, number of features of each


def make_key(*parts: str | bytes) -> bytes:
    """Return the key of an item from everything that its features depend on."""
    digest = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(content), content))
    return digest.digest()[:KEY_BYTES]


def make_numbered_keys(fingerprint: str, n: int) -> list[bytes]:
    """Return keys of n items that have only a common fingerprint, which changes with any of them."""
    return [make_key(fingerprint, str(i)) for i in range(n)]


def compute_features(
    n: int,
    columns: int,
    fill: Callable[[list[int], Tensor], Iterator[int]],
    *,
    method: str,
    keys: Sequence[bytes] | None,
    cache: Path | None,
    progress: Callable[[int, int], None] | None = None,
    block_items: int = BLOCK_ITEMS,
) -> Tensor:
    """Return features (n, columns) float32, reading those that the cache holds.

    Args:
        n: the number of items.
        columns: the number of features of an item.
        fill: fill(positions, rows) writes the features of these items into rows (q, columns), and
            yields the number of finished items.
        method: a description of how features are computed; another description has another cache.
        keys: the key of each item.
        cache: the cache folder; None for no cache.
        progress: called with (done, n).
        block_items: items per file of the cache.

    Raises:
        InputError: if there is a cache, but no keys.
    """
    if cache is not None and keys is None:
        raise InputError(
            "cache is given but no fingerprint; expected a text that names these items and "
            "changes with them, such as a hash of their paths, sizes and dates"
        )
    out = torch.empty(n, columns)
    on_progress = progress or (lambda done, n: None)
    blocks, missing = _read_cached(out, method, keys, cache)
    done = n - len(missing)
    if done:
        on_progress(done, n)
    for start in range(0, len(missing), block_items):
        at = missing[start : start + block_items]
        rows = torch.empty(len(at), columns)
        for some in fill(at, rows):
            if some < len(at):
                on_progress(done + some, n)
        if blocks is not None and keys is not None:
            blocks.write([keys[i] for i in at], rows)
        out[at] = rows
        done += len(at)
        on_progress(done, n)
    return out


def collect_features(
    n: int,
    columns: int,
    produce: Callable[[list[int]], Iterator[tuple[list[int], Tensor]]],
    *,
    method: str,
    keys: Sequence[bytes] | None,
    cache: Path | None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Return features (n, columns) float32 from one stream over all items that are not cached.

    Unlike `compute_features`, the producer sees all missing items at once, in any order, so that it
    can read ahead. What it has yielded before an error or an interruption is stored.

    Args:
        n: the number of items.
        columns: the number of features of an item.
        produce: produce(positions) yields positions and their features (q, columns).
        method: a description of how features are computed; another description has another cache.
        keys: the key of each item.
        cache: the cache folder; None for no cache.
        progress: called with (done, n).
    """
    out = torch.empty(n, columns)
    on_progress = progress or (lambda done, n: None)
    blocks, missing = _read_cached(out, method, keys, cache)
    done = n - len(missing)
    if done:
        on_progress(done, n)
    pending: list[int] = []

    def store(at: list[int]) -> None:
        if blocks is not None and keys is not None and at:
            blocks.write([keys[i] for i in at], out[at])

    try:
        for at, rows in produce(missing) if missing else ():
            out[at] = rows
            pending += at
            done += len(at)
            while len(pending) >= BLOCK_ITEMS:
                store(pending[:BLOCK_ITEMS])
                pending = pending[BLOCK_ITEMS:]
            on_progress(done, n)
    finally:
        store(pending)
    return out


def _read_cached(
    out: Tensor, method: str, keys: Sequence[bytes] | None, cache: Path | None
) -> tuple["FeatureCache | None", list[int]]:
    """Fill the rows of `out` (n, columns) that are cached.

    Returns:
        The cache, if there is one, and the positions of the other rows.
    """
    if cache is None or keys is None:
        return None, list(range(len(out)))
    blocks = FeatureCache(cache, method)
    return blocks, blocks.read_into(keys, out)


def read_cached_width(cache: Path | None, method: str) -> int | None:
    """Return the number of features of an item in the cache, None if it is empty."""
    for path in [] if cache is None else FeatureCache(cache, method).paths():
        content = _read_content(path)
        if content is not None and _parse_keys(path, content):
            return int(COUNTS_STRUCT.unpack_from(content, DIGEST_BYTES)[1])
    return None


class FeatureCache:
    """Features by the keys of their items, computed by one method, in one folder.

    Each block is one file: a SHA-256 digest, the number of rows and columns, the keys, and the rows
    as float32. Blocks are written atomically, so that a killed process leaves only complete ones.
    The digest covers the content and `method`, and the file name is a hash of the keys: damaged or
    swapped files are detected and computed again.
    """

    def __init__(self, folder: Path, method: str) -> None:
        self.method = method
        self.folder = Path(folder) / hashlib.sha256(method.encode()).hexdigest()[:20]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the cache folder {str(folder)!r} cannot be used ({error.strerror}); expected a "
                "folder that can be written to: name another, or none"
            ) from error

    def paths(self) -> list[Path]:
        """Return all files, sorted."""
        return sorted(self.folder.glob("*.f32"))

    def read_into(self, keys: Sequence[bytes], out: Tensor) -> list[int]:
        """Fill the rows of `out` (n, columns) that are cached, and return the other positions."""
        positions: dict[bytes, list[int]] = {}
        for i, key in enumerate(keys):
            positions.setdefault(key, []).append(i)
        for path in self.paths() if positions else ():
            head = _read_keys(path)
            if head is not None and not any(key in positions for key in head):
                continue
            content = _read_content(path)
            if content is None:
                continue
            cached = _parse_keys(path, content)
            if not cached or content[:DIGEST_BYTES] != self._digest(content[DIGEST_BYTES:]):
                log.warning("%s is damaged (%d bytes): computing it again", path, len(content))
                path.unlink(missing_ok=True)
                continue
            columns = COUNTS_STRUCT.unpack_from(content, DIGEST_BYTES)[1]
            if columns != out.shape[1]:
                continue
            begin = DIGEST_BYTES + COUNTS_STRUCT.size + KEY_BYTES * len(cached)
            rows = torch.from_numpy(
                np.frombuffer(content, "<f4", offset=begin).reshape(-1, columns).astype(np.float32)
            )
            pairs = [(i, j) for j, key in enumerate(cached) for i in positions.pop(key, ())]
            if pairs:
                rows_out, of = torch.tensor(pairs).T
                out[rows_out] = rows[of]
        return sorted(i for at in positions.values() for i in at)

    def write(self, keys: Sequence[bytes], rows: Tensor) -> None:
        """Store a finished block; if that fails, a warning is logged and only the cache is lost."""
        payload = COUNTS_STRUCT.pack(len(keys), rows.shape[1]) + b"".join(keys)
        payload += rows.contiguous().numpy().astype("<f4").tobytes()
        try:
            replace_file(self.folder / f"{_make_stem(keys)}.f32", self._digest(payload) + payload)
        except StorageError as error:
            log.warning("%s: it will be computed again", error)

    def _digest(self, payload: bytes) -> bytes:
        return hashlib.sha256(f"{self.method}|".encode() + payload).digest()


def _make_stem(keys: Sequence[bytes]) -> str:
    """Return the file name of a block, without suffix."""
    return hashlib.sha256(b"".join(keys)).hexdigest()[:20]


def _read_content(path: Path) -> bytes | None:
    """Return the content of a file, None if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:  # deleted meanwhile
        return None
    except OSError as error:
        log.warning("cannot read %s (%s): computing it again", path, error.strerror)
        return None


def _read_keys(path: Path) -> list[bytes] | None:
    """Return the keys in a file by reading its beginning only, None if it is too short."""
    try:
        with path.open("rb") as file:
            count = int(
                COUNTS_STRUCT.unpack_from(
                    file.read(DIGEST_BYTES + COUNTS_STRUCT.size), DIGEST_BYTES
                )[0]
            )
            keys = file.read(KEY_BYTES * min(count, path.stat().st_size // KEY_BYTES))
    except (OSError, struct.error):
        return None
    return [keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)]


def _parse_keys(path: Path, content: bytes) -> list[bytes]:
    """Return the keys in the content of a file, [] if its size or its name does not match."""
    if len(content) < DIGEST_BYTES + COUNTS_STRUCT.size:
        return []
    count, columns = COUNTS_STRUCT.unpack_from(content, DIGEST_BYTES)
    begin = DIGEST_BYTES + COUNTS_STRUCT.size
    if len(content) != begin + count * (KEY_BYTES + 4 * columns):
        return []
    keys = [content[i : i + KEY_BYTES] for i in range(begin, begin + KEY_BYTES * count, KEY_BYTES)]
    return keys if _make_stem(keys) == path.stem else []
