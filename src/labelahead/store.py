"""A campaign's folder: configuration, every label, every round, weights. Survives `kill -9`.

    config.toml       what was asked for, written once
    labels.jsonl      one line a label; on the disk before the label counts as accepted
    rounds.jsonl      one line a finished round
    weights/          the network after training, of the last rounds

Files only grow, or are replaced in one step. A line that a kill cut short was never accepted: it
is dropped when the folder is opened again.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from labelahead.errors import InputError

__all__ = ["Label", "Round", "Store"]

KEPT = 2  # how many rounds' weights stay


@dataclass(frozen=True)
class Label:
    """One accepted answer."""

    position: int
    label: int
    round: int  # the round that first trains on it; 0 for the initial labels
    time: str = ""
    by: str = "oracle"
    item: str = ""  # the item's own name and the class's, for whoever reads the file alone
    name: str = ""


@dataclass(frozen=True)
class Round:
    """One round: train on the labels so far, test, ask for more.

    accuracy: on the test items, None without any. gain: score of the best candidate, in the
    strategy's own unit. loo, loo_error: leave-one-out accuracy and
    squared error on the random initial labels. memory: what the strategy is told at the next round.
    """

    number: int
    labels: int
    accuracy: float | None
    train_accuracy: float
    train_loss: float
    steps: int
    asked: int
    gain: float | None = None
    loo: float | None = None
    loo_error: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    memory: Mapping[str, Any] | None = None


class Store:
    """An open campaign folder. One process at a time: `create` or `open` it in a `with`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines: dict[str, Any] = {}

    @classmethod
    @contextmanager
    def create(cls, folder: str | Path, config: str) -> Iterator["Store"]:
        """A new folder with this configuration (TOML); refused if it holds a campaign already."""
        path = Path(folder)
        cls.require_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with cls(path)._locked() as store:
                _replace(path / "config.toml", config.encode())
                yield store
        except PermissionError as error:
            raise InputError(f"{path} cannot be written to ({error.strerror})") from error

    @staticmethod
    def require_free(folder: str | Path) -> None:
        """Raise if the folder holds a campaign already, or is none."""
        path = Path(folder)
        if (path / "config.toml").exists():
            raise InputError(
                f"{path} holds a campaign already; go on with `labelahead resume {path}`, or "
                "choose another folder"
            )
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file; expected a folder, or a name for a new one")

    @classmethod
    @contextmanager
    def open(cls, folder: str | Path) -> Iterator["Store"]:
        """A folder that holds a campaign, to go on with it."""
        path = Path(folder)
        if not (path / "config.toml").is_file():
            raise InputError(
                f"{path} holds no campaign (no config.toml); expected the folder of an earlier "
                "`labelahead run --out`"
            )
        with cls(path)._locked() as store:
            yield store

    @contextmanager
    def _locked(self) -> Iterator["Store"]:
        lock = FileLock(self.folder / "lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise InputError(
                f"{self.folder} is in use by another process; wait for it or stop it first"
            ) from None
        try:
            yield self
        finally:
            for lines in self._lines.values():
                lines.close()
            self._lines.clear()
            lock.release()

    def config(self) -> str:
        """The configuration, as TOML text."""
        return (self.folder / "config.toml").read_text(encoding="utf-8")

    def write(self, name: str, content: bytes) -> None:
        """A file of its own in the folder, replaced in one step."""
        _replace(self.folder / name, content)

    def add_label(
        self,
        position: int,
        label: int,
        round: int,
        by: str = "oracle",
        *,
        item: str = "",
        name: str = "",
    ) -> Label:
        """Accept an answer: when this returns, it is on the disk."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = Label(int(position), int(label), round, now, by, item, name)
        self._append("labels.jsonl", asdict(entry))
        return entry

    def labels(self) -> list[Label]:
        """All accepted answers, in order."""
        return [_value(Label, row, where) for row, where in self._rows("labels.jsonl")]

    def add_round(self, entry: Round) -> None:
        """Record a finished round."""
        self._append("rounds.jsonl", asdict(entry))

    def rounds(self) -> list[Round]:
        """All finished rounds, in order; of one told twice (the budget grew) the last."""
        found: dict[int, Round] = {}
        for row, where in self._rows("rounds.jsonl"):
            entry = _value(Round, row | {"notes": tuple(row.get("notes", ()))}, where)
            found[entry.number] = entry
        return [found[number] for number in sorted(found)]

    def save_weights(self, round: int, state: Mapping[str, Tensor]) -> None:
        """Keep a network; the oldest beyond the last few go."""
        folder = self.folder / "weights"
        folder.mkdir(exist_ok=True)
        partial = folder / "partial"
        try:
            with partial.open("wb") as file:
                torch.save({k: v.cpu() for k, v in state.items()}, file)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        partial.replace(_weights(folder, round))
        _sync(folder)
        for old in sorted(folder.glob("round-*.pt"))[:-KEPT]:
            old.unlink()

    def weights(self, round: int) -> dict[str, Tensor]:
        """The network after training in that round."""
        path = _weights(self.folder / "weights", round)
        if not path.exists():
            raise InputError(f"{path} is missing; expected the weights of round {round}")
        try:
            state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever a damaged file makes the reader say
            raise InputError(f"{path} is damaged ({type(error).__name__}): remove it") from error
        return state

    def _append(self, name: str, row: dict[str, Any]) -> None:
        if name not in self._lines:
            path = self.folder / name
            self._repair(path)
            # Unbuffered: what a full disk refuses must not turn up later.
            self._lines[name] = path.open("ab", buffering=0)
            _sync(self.folder)
        file = self._lines[name]
        line = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        before = os.fstat(file.fileno()).st_size
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), before)
            raise

    def _repair(self, path: Path) -> None:
        """Cut off a last line that was never finished."""
        if not path.exists():
            return
        text = path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            with path.open("r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())

    def _rows(self, name: str) -> Iterator[tuple[dict[str, Any], str]]:
        path = self.folder / name
        if not path.exists():
            return
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(
                    f"{where} is damaged ({error}); expected one JSON object: restore the file "
                    "from a copy, or remove the line by hand"
                ) from error
            if not isinstance(row, dict):
                raise InputError(f"{where} is damaged; expected one JSON object")
            yield row, where


def _value(kind: type[Any], row: dict[str, Any], where: str) -> Any:
    """A record of that kind; fields that a newer version added are left aside."""
    names = {f.name for f in fields(kind)}
    try:
        return kind(**{k: v for k, v in row.items() if k in names})
    except TypeError as error:
        raise InputError(
            f"{where} is incomplete ({error}): restore the file from a copy"
        ) from error


def _weights(folder: Path, round: int) -> Path:
    return folder / f"round-{round:05d}.pt"


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one step: it is there whole, or not at all."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Make new names in a folder durable."""
    if os.name == "nt":  # folders cannot be opened there; the rename itself is journalled
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
