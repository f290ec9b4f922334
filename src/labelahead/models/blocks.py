"""Features that take long to work out: block by block, each kept as one file, so that nothing is worked out twice."""

import hashlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelahead.errors import InputError, StorageError
from labelahead.files import replace

__all__ = ["BLOCK", "Blocks", "block_by_block", "columns_kept"]

log = logging.getLogger("labelahead")
BLOCK = 256  # items a file of the cache: some ten seconds of work
DIGEST = 32  # bytes of SHA-256


def block_by_block(
    n: int,
    columns: int,
    fill: Callable[[int, Tensor], Iterator[int]],
    *,
    about: str,
    fingerprint: str | None,
    cache: Path | None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """(n, columns) float32; what an interrupted or earlier run finished is read from the cache.

    fill: (start, rows) writes the features of the items from `start` on into rows (q, columns), and yields how many
    are done as it goes. about: how they are worked out; fingerprint: of which items. cache: a folder; None: no cache.
    """
    if cache is not None and not fingerprint:
        raise InputError(
            "cache is given but no fingerprint; expected a text that names these items and "
            "changes with them, such as a hash of their paths, sizes and dates"
        )
    blocks = None if cache is None else Blocks(cache, f"{about}|{fingerprint}", columns)
    tell = progress or (lambda done, n: None)
    out = torch.empty(n, columns)
    for start in range(0, n, BLOCK):
        rows = out[start : start + BLOCK]
        if blocks is None or not blocks.read_into(start, rows):
            for done in fill(start, rows):
                if done < len(rows):
                    tell(start + done, n)
            if blocks is not None:
                blocks.write(start, rows)
        tell(start + len(rows), n)
    return out


def columns_kept(cache: Path | None, about: str, fingerprint: str, n: int) -> int | None:
    """How many columns the first block of n items in the cache has, where only that knows it; None: there is none."""
    count = min(n, BLOCK)
    if cache is None:
        return None
    try:
        size = Blocks(cache, f"{about}|{fingerprint}", 0)._path(0, count).stat().st_size - DIGEST
    except OSError:
        return None
    return size // (4 * count) or None


class Blocks:
    """A table of `columns` numbers a row, kept in blocks of rows under one key, in one folder.

    Each block is one file: a SHA-256 digest, then the rows as float32. It is written in one step, so that a killed
    process leaves whole blocks or none. The digest covers the key and the place of the block too, so that a damaged
    or exchanged file is noticed, and computed again.
    """

    def __init__(self, folder: Path, key: str, columns: int) -> None:
        self.key, self.columns = key, columns
        self.folder = Path(folder) / hashlib.sha256(key.encode()).hexdigest()[:20]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the cache folder {str(folder)!r} cannot be used ({error.strerror}); expected a "
                "folder that can be written to: name another, or none"
            ) from error

    def read_into(self, start: int, rows: Tensor) -> bool:
        """Fill `rows` with the block that begins at row `start`; False if it must be computed."""
        path = self._path(start, len(rows))
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("cannot read %s (%s): computing it again", path, error.strerror)
            return False
        payload = content[DIGEST:]
        sound = content[:DIGEST] == self._digest(start, payload)
        if not sound or len(payload) != len(rows) * self.columns * 4:
            log.warning("%s is damaged (%d bytes): computing it again", path, len(content))
            return False
        values = np.frombuffer(payload, dtype="<f4").reshape(len(rows), self.columns)
        rows.copy_(torch.from_numpy(values.astype(np.float32)))
        return True

    def write(self, start: int, rows: Tensor) -> None:
        """Keep a finished block; a full or vanished disk is reported, and costs only the cache."""
        payload = rows.contiguous().numpy().astype("<f4").tobytes()
        try:
            replace(self._path(start, len(rows)), self._digest(start, payload) + payload)
        except StorageError as error:
            log.warning("%s: it will be computed again", error)

    def _path(self, start: int, count: int) -> Path:
        return self.folder / f"{start:09d}-{count}.f32"

    def _digest(self, start: int, payload: bytes) -> bytes:
        label = f"{self.key}|{start}|{self.columns}|".encode()
        return hashlib.sha256(label + payload).digest()
