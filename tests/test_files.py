"""Atomic writes, folder locks, and messages for files that cannot be written."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from labelahead import files
from labelahead.errors import StorageError


def refusing(number: int) -> Any:
    def write(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return write


def test_replace_file_below_a_file_raises_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        StorageError, match=r"file.x cannot be written to \(Not a directory\); make it writable"
    ):
        files.replace_file(tmp_path / "file" / "x", "text")


def test_replace_file_with_an_invalid_name_raises_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot be written to \(File name too long\)"):
        files.replace_file(tmp_path / ("x" * 300), "text")


def test_replace_file_on_a_read_only_file_system_raises_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system is mounted read-only, so that the partial file cannot be removed either."""
    monkeypatch.setattr(Path, "open", refusing(errno.EROFS))
    monkeypatch.setattr(Path, "unlink", refusing(errno.EROFS))
    with pytest.raises(StorageError, match=r"x cannot be written to \(Read-only file system\)"):
        files.replace_file(tmp_path / "x", "text")


def test_replace_file_reports_a_full_disk_hidden_by_torch(tmp_path: Path) -> None:
    """torch.save raises a RuntimeError about positions in its archive."""

    class Full:
        """The first bytes still fit."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, content: Any) -> int:
            if self.file.tell() > 100:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return int(self.file.write(content))

        def flush(self) -> None: ...

    path = tmp_path / "weights.pt"
    files.replace_file(path, "before")
    with pytest.raises(StorageError, match="make room") as raised:
        files.replace_file(path, lambda file: torch.save({"a": torch.zeros(9000)}, Full(file)))
    assert raised.value.full
    assert [p.name for p in tmp_path.iterdir()] == ["weights.pt"]
    assert path.read_text() == "before"


def test_replace_file_keeps_errors_of_the_writer(tmp_path: Path) -> None:
    def write(_: Any) -> None:
        raise RuntimeError("no such operator")

    with pytest.raises(RuntimeError, match="no such operator"):
        files.replace_file(tmp_path / "x", write)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without named pipes")
def test_replace_file_writes_to_a_pipe(tmp_path: Path) -> None:
    """As /dev/stdout and /dev/null must, also for root."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as other:
        read = other.submit(pipe.read_text)
        files.replace_file(pipe, "text")
        assert read.result(5) == "text"
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_lock_folder_removes_partial_files(tmp_path: Path) -> None:
    left = [
        tmp_path / "a" / "config.toml.12.partial",
        tmp_path / "a" / "weights" / "round-1.pt.345.partial",
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "a" / "film.partial").touch()  # somebody else's
    with files.lock_folder(tmp_path / "a"):
        assert not any(path.exists() for path in left)
        assert (tmp_path / "a" / "film.partial").exists()
