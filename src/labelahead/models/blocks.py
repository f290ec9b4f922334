"""Rows of numbers that are dear to compute, kept in a folder block by block.

Each block is one file: a SHA-256 digest, then the rows as float32. It is written under another name
and renamed, so that a killed process leaves whole blocks or none. The digest covers the key and the
place of the block too, so that a damaged or exchanged file is noticed, and computed again.
"""

import hashlib
import logging
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelahead.errors import InputError

__all__ = ["Blocks"]

log = logging.getLogger("labelahead")
DIGEST = 32  # bytes of SHA-256


class Blocks:
    """The blocks of one table of `columns` numbers a row, under one key, in one folder."""

    def __init__(self, folder: Path, key: str, columns: int) -> None:
        self.key, self.columns = key, columns
        self.folder = Path(folder) / hashlib.sha256(key.encode()).hexdigest()[:20]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
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
        path = self._path(start, len(rows))
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".part", delete=False) as file:
                try:
                    file.write(self._digest(start, payload) + payload)
                    file.flush()
                    os.fsync(file.fileno())
                    os.replace(file.name, path)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
        except OSError as error:
            log.warning("cannot keep %s (%s): it will be computed again", path, error.strerror)

    def _path(self, start: int, count: int) -> Path:
        return self.folder / f"{start:09d}-{count}.f32"

    def _digest(self, start: int, payload: bytes) -> bytes:
        label = f"{self.key}|{start}|{self.columns}|".encode()
        return hashlib.sha256(label + payload).digest()
