"""What is written whole or not at all, and what is said where it cannot be written."""

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


def test_a_file_in_place_of_a_folder_is_said_in_our_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        StorageError, match=r"file.x cannot be written to \(Not a directory\); make it writable"
    ):
        files.replace_file(tmp_path / "file" / "x", "text")


def test_a_name_that_no_file_can_have_is_said_in_our_words(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot be written to \(File name too long\)"):
        files.replace_file(tmp_path / ("x" * 300), "text")


def test_a_file_system_that_refuses_also_the_cleaning_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is mounted read-only does."""
    monkeypatch.setattr(Path, "open", refusing(errno.EROFS))
    monkeypatch.setattr(Path, "unlink", refusing(errno.EROFS))
    with pytest.raises(StorageError, match=r"x cannot be written to \(Read-only file system\)"):
        files.replace_file(tmp_path / "x", "text")


def test_torch_hides_a_full_disk_but_we_say_so(tmp_path: Path) -> None:
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


def test_an_error_of_the_writer_stays_what_it_is(tmp_path: Path) -> None:
    def write(_: Any) -> None:
        raise RuntimeError("no such operator")

    with pytest.raises(RuntimeError, match="no such operator"):
        files.replace_file(tmp_path / "x", write)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without named pipes")
def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    """As /dev/stdout and /dev/null must, also for root."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as other:
        read = other.submit(pipe.read_text)
        files.replace_file(pipe, "text")
        assert read.result(5) == "text"
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_what_a_killed_process_left_half_written_goes_with_the_next_one(tmp_path: Path) -> None:
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
