"""Features that take long to work out: block by block, each kept as one file, so that nothing is
worked out twice.

What is kept is found by item, not by place: another order, part or enlargement of the same items
finds it again.
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
    "compute_features",
    "make_key",
    "make_numbered_keys",
    "read_cached_width",
]

log = logging.getLogger("labelahead")
BLOCK_ITEMS = 256  # items a file of the cache: some ten seconds of work
DIGEST_BYTES = 32  # bytes of SHA-256
KEY_BYTES = 16  # of which so many name an item
COUNTS_STRUCT = struct.Struct("<II")  # how many items, how many numbers each


def make_key(*parts: str | bytes) -> bytes:
    """Names an item by all that makes it what it is."""
    digest = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(content), content))
    return digest.digest()[:KEY_BYTES]


def make_numbered_keys(fingerprint: str, n: int) -> list[bytes]:
    """Keys of n items of which only a text is known that changes with any of them."""
    return [make_key(fingerprint, str(i)) for i in range(n)]


def compute_features(
    n: int,
    columns: int,
    fill: Callable[[list[int], Tensor], Iterator[int]],
    *,
    about: str,
    keys: Sequence[bytes] | None,
    cache: Path | None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """(n, columns) float32; what an interrupted or earlier run finished is read from the cache.

    fill: (positions, rows) writes the features of these items into rows (q, columns), and yields
    how many are done as it goes. about: how they are worked out; keys: which items they are. cache:
    a folder; None: no cache.
    """
    if cache is not None and keys is None:
        raise InputError(
            "cache is given but no fingerprint; expected a text that names these items and "
            "changes with them, such as a hash of their paths, sizes and dates"
        )
    out = torch.empty(n, columns)
    tell = progress or (lambda done, n: None)
    blocks, missing = None, list(range(n))
    if cache is not None and keys is not None:
        blocks = FeatureCache(cache, about)
        missing = blocks.read_into(keys, out)
    done = n - len(missing)
    if done:
        tell(done, n)
    for start in range(0, len(missing), BLOCK_ITEMS):
        at = missing[start : start + BLOCK_ITEMS]
        rows = torch.empty(len(at), columns)
        for some in fill(at, rows):
            if some < len(at):
                tell(done + some, n)
        if blocks is not None and keys is not None:
            blocks.write([keys[i] for i in at], rows)
        out[at] = rows
        done += len(at)
        tell(done, n)
    return out


def read_cached_width(cache: Path | None, about: str) -> int | None:
    """How many numbers an item has in the cache, where only that knows it.

    None: nothing is there.
    """
    for path in [] if cache is None else FeatureCache(cache, about).paths():
        content = _read_content(path)
        if content is not None and _parse_keys(path, content):
            return int(COUNTS_STRUCT.unpack_from(content, DIGEST_BYTES)[1])
    return None


class FeatureCache:
    """Rows of numbers by the keys of their items, worked out in one way (`about`), in one folder.

    Each block is one file: a SHA-256 digest, how many rows of how many numbers, the keys, the rows
    as float32. It is written in one step, so that a killed process leaves whole blocks or none. The
    digest covers all of it and `about`, and the name of a file is that of its keys: one that is
    damaged or exchanged is noticed, and computed again.
    """

    def __init__(self, folder: Path, about: str) -> None:
        self.about = about
        self.folder = Path(folder) / hashlib.sha256(about.encode()).hexdigest()[:20]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the cache folder {str(folder)!r} cannot be used ({error.strerror}); expected a "
                "folder that can be written to: name another, or none"
            ) from error

    def paths(self) -> list[Path]:
        """All files, in order."""
        return sorted(self.folder.glob("*.f32"))

    def read_into(self, keys: Sequence[bytes], out: Tensor) -> list[int]:
        """Fill the rows of `out` (n, columns) that are known, and say which are not."""
        places: dict[bytes, list[int]] = {}
        for i, key in enumerate(keys):
            places.setdefault(key, []).append(i)
        for path in self.paths() if places else ():
            head = _read_keys(path)
            if head is not None and not any(key in places for key in head):
                continue
            content = _read_content(path)
            if content is None:
                continue
            held = _parse_keys(path, content)
            if not held or content[:DIGEST_BYTES] != self._digest(content[DIGEST_BYTES:]):
                log.warning("%s is damaged (%d bytes): computing it again", path, len(content))
                path.unlink(missing_ok=True)
                continue
            columns = COUNTS_STRUCT.unpack_from(content, DIGEST_BYTES)[1]
            if columns != out.shape[1]:
                continue
            begin = DIGEST_BYTES + COUNTS_STRUCT.size + KEY_BYTES * len(held)
            rows = torch.from_numpy(
                np.frombuffer(content, "<f4", offset=begin).reshape(-1, columns).astype(np.float32)
            )
            pairs = [(i, j) for j, key in enumerate(held) for i in places.pop(key, ())]
            if pairs:
                to, of = torch.tensor(pairs).T
                out[to] = rows[of]
        return sorted(i for at in places.values() for i in at)

    def write(self, keys: Sequence[bytes], rows: Tensor) -> None:
        """Keep a finished block; a full or vanished disk is reported, and costs only the cache."""
        payload = COUNTS_STRUCT.pack(len(keys), rows.shape[1]) + b"".join(keys)
        payload += rows.contiguous().numpy().astype("<f4").tobytes()
        try:
            replace_file(self.folder / f"{_make_stem(keys)}.f32", self._digest(payload) + payload)
        except StorageError as error:
            log.warning("%s: it will be computed again", error)

    def _digest(self, payload: bytes) -> bytes:
        return hashlib.sha256(f"{self.about}|".encode() + payload).digest()


def _make_stem(keys: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(keys)).hexdigest()[:20]


def _read_content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # swept away meanwhile
        return None
    except OSError as error:
        log.warning("cannot read %s (%s): computing it again", path, error.strerror)
        return None


def _read_keys(path: Path) -> list[bytes] | None:
    """The keys in a file by its beginning alone; None if that is not even there."""
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
    """The keys in a file's content.

    None if it is not of the length that it says, or not the file of its name.
    """
    if len(content) < DIGEST_BYTES + COUNTS_STRUCT.size:
        return []
    count, columns = COUNTS_STRUCT.unpack_from(content, DIGEST_BYTES)
    begin = DIGEST_BYTES + COUNTS_STRUCT.size
    if len(content) != begin + count * (KEY_BYTES + 4 * columns):
        return []
    keys = [content[i : i + KEY_BYTES] for i in range(begin, begin + KEY_BYTES * count, KEY_BYTES)]
    return keys if _make_stem(keys) == path.stem else []
