"""A campaign's folder: configuration, labels, rounds, weights. It survives `kill -9`.

    config.toml       the configuration, written once
    labels.jsonl      one line per label; written durably before the label is used
    rounds.jsonl      one line per finished round
    weights/          the network after training, of the last rounds

Files are appended to, or replaced in one step. A line truncated by a kill was never accepted; it is
dropped when the folder is opened again.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.files import (
    JsonLinesFile,
    lock_folder,
    make_folder,
    read_complete_lines,
    replace_file,
)

__all__ = ["CONFIRMED_BY", "Label", "Round", "Store"]

KEPT_WEIGHTS_ROUNDS = 2  # rounds whose weights are kept
CONFIRMED_BY = "confirmed"  # `Label.by` of labels confirmed in a grid


@dataclass(frozen=True)
class Label:
    """One recorded label."""

    position: int
    label: int
    round: int  # the round that first trains on it; 0 for the initial labels
    time: str = ""
    by: str = "oracle"
    item: str = ""  # names of the item and the class, to make the file readable by itself
    name: str = ""


@dataclass(frozen=True)
class Round:
    """One round: train on the labels so far, test, query.

    Attributes:
        number: Of the round.
        labels: Labels so far, plus the cost of confirmations.
        accuracy: On the test items; None without any.
        train_accuracy: On the labels.
        train_loss: On the labels.
        steps: Training steps.
        asked: Number of queried labels; 0 in the last round.
        gain: Score of the best candidate, in the strategy's own unit.
        loo: Leave-one-out accuracy on the seed set.
        loo_error: Squared leave-one-out error on the seed set.
        seconds: Time per stage.
        notes: Warnings.
        memory: State of the strategy for the next round.
        error: Estimated share of wrong predictions in the pool, without test labels; None if not
            estimated.
        error_low: Lower end of its interval.
        error_high: Upper end of its interval.
        fall: Reduction expected from the next 20 labels.
        confirmed: Labels confirmed in grids (`Budget.confirm`).
        let_through: Those of them that are wrong.
        drift: Share of the candidates for which the linearised network predicts another class than
            the trained one; None without look-ahead by a trained network.
        measures: On the test items, by the task's own measures, where labels are not one class; the
            estimated error is then that of `Task.error_measure`.
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
    error: float | None = None
    error_low: float | None = None
    error_high: float | None = None
    fall: float | None = None
    confirmed: int = 0
    let_through: int = 0
    drift: float | None = None
    measures: Mapping[str, float] = field(default_factory=dict)


class Store:
    """An open campaign folder, for one process at a time: use `create` or `open` in a `with`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines: dict[str, JsonLinesFile] = {}

    @classmethod
    @contextmanager
    def create(cls, folder: str | Path, config: str) -> Iterator["Store"]:
        """Create a folder with this configuration (TOML); refuse one that holds a campaign."""
        path = Path(folder)
        cls.require_no_campaign(path)
        with cls(path)._locked() as store:
            replace_file(path / "config.toml", config)
            yield store

    @staticmethod
    def require_no_campaign(folder: str | Path) -> None:
        """Raise if the path is a file or holds a campaign."""
        path = Path(folder)
        if (path / "config.toml").exists():
            raise InputError(
                f"{path} holds a campaign already; continue with `labelahead resume {path}`, or "
                "choose another folder"
            )
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file; expected a folder, or a name for a new one")

    @classmethod
    @contextmanager
    def open(cls, folder: str | Path) -> Iterator["Store"]:
        """Open the folder of a campaign to continue it."""
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
        with lock_folder(self.folder):
            try:
                yield self
            finally:
                for lines in self._lines.values():
                    lines.close()
                self._lines.clear()

    def write(self, name: str, content: bytes) -> None:
        """Write a file into the folder in one step."""
        replace_file(self.folder / name, content)

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
        """Record a label; it is on disk when this returns."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = Label(int(position), int(label), round, now, by, item, name)
        self._append("labels.jsonl", asdict(entry))
        return entry

    def read_labels(self) -> list[Label]:
        """Return all recorded labels in order."""
        entries = []
        for row, where in read_complete_lines(self.folder / "labels.jsonl"):
            entry = _parse_record(Label, row, where)
            whole = [
                isinstance(n, int) and not isinstance(n, bool) and n >= 0
                for n in (entry.position, entry.label)
            ]
            if not all(whole):
                raise InputError(
                    f"{where} has position {entry.position!r}, label {entry.label!r}; expected "
                    "whole numbers from 0 "
                    "on: restore the file from a copy"
                )
            entries.append(entry)
        return entries

    def add_round(self, entry: Round) -> None:
        """Record a finished round."""
        self._append("rounds.jsonl", asdict(entry))

    def read_rounds(self) -> list[Round]:
        """Return all finished rounds in order; of one recorded twice (the budget grew), the last."""
        by_number: dict[int, Round] = {}
        for row, where in read_complete_lines(self.folder / "rounds.jsonl"):
            entry = _parse_record(Round, row | {"notes": tuple(row.get("notes", ()))}, where)
            by_number[entry.number] = entry
        return [by_number[number] for number in sorted(by_number)]

    def require_complete_labels(self) -> None:
        """Check that labels.jsonl has every label that the finished rounds counted.

        Raises:
            InputError: Labels are missing, since the file was truncated, replaced or removed.
        """
        rounds = self.read_rounds()
        if not rounds:
            return
        entries = {entry.position: entry for entry in self.read_labels()}.values()
        needed = rounds[0].labels  # the initial labels; nothing is confirmed before the first round
        for entry in rounds:
            held = [label for label in entries if label.round <= entry.number]
            confirmed = sum(label.by == CONFIRMED_BY for label in held)
            self._require_labels(len(held) - confirmed, needed, "labels", entry.number)
            self._require_labels(confirmed, entry.confirmed, "confirmed labels", entry.number)
            needed += entry.asked
        answers = sum(label.by != CONFIRMED_BY for label in entries)
        self._require_labels(answers, needed, "labels", rounds[-1].number + 1)

    def _require_labels(self, found: int, expected: int, what: str, round: int) -> None:
        if found < expected:
            raise InputError(
                f"{self.folder / 'labels.jsonl'} holds {found} {what} for round {round}, but "
                f"rounds.jsonl records {expected}: labels are missing. Put back a copy of "
                "labels.jsonl; or move rounds.jsonl away, which runs all rounds again and queries "
                "only the missing labels"
            )

    def save_weights(self, round: int, state: Mapping[str, Tensor]) -> None:
        """Store the weights of a round, and remove those of old rounds."""
        folder = self.folder / "weights"
        make_folder(folder)
        cpu = {k: v.cpu() for k, v in state.items()}
        replace_file(_weights_path(folder, round), lambda file: torch.save(cpu, file))
        for old in sorted(folder.glob("round-*.pt"))[:-KEPT_WEIGHTS_ROUNDS]:
            old.unlink()

    def load_weights(self, round: int) -> dict[str, Tensor]:
        """Return the weights after training in that round."""
        path = _weights_path(self.folder / "weights", round)
        if not path.exists():
            raise InputError(f"{path} is missing; expected the weights of round {round}")
        try:
            state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # damaged files raise errors of any type
            raise InputError(f"{path} is damaged ({type(error).__name__}): remove it") from error
        return state

    def _append(self, name: str, row: dict[str, Any]) -> None:
        if name not in self._lines:
            self._lines[name] = JsonLinesFile(self.folder / name)
        self._lines[name].append(row)


def _parse_record(kind: type[Any], row: dict[str, Any], where: str) -> Any:
    """Build a record of this type; unknown fields, from newer versions, are ignored."""
    names = {f.name for f in fields(kind)}
    try:
        return kind(**{k: v for k, v in row.items() if k in names})
    except TypeError as error:
        raise InputError(
            f"{where} is incomplete ({error}): restore the file from a copy"
        ) from error


def _weights_path(folder: Path, round: int) -> Path:
    return folder / f"round-{round:05d}.pt"
