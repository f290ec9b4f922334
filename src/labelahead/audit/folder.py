"""The folder of an audit: frozen predictions, settings, and a journal of the answers.

    predictions.csv   what is judged; never changed afterwards
    audit.json        settings, fingerprints and the time of the beginning
    answers.jsonl     one line for each answer, written durably before it counts
    certificate.html, certificate.json

The order of the items follows from the predictions and the seed. No model reads this folder: the
answers teach only after the certificate, when `teach` hands them over.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from labelahead.audit.plan import AuditPlan, build_plan
from labelahead.audit.predictions import Predictions, read_predictions
from labelahead.audit.quality import Quality, estimate_accuracy, estimate_quality
from labelahead.data.classes import normalise_name
from labelahead.errors import InputError, count_noun
from labelahead.files import (
    JsonLinesFile,
    lock_folder,
    make_folder,
    read_complete_lines,
    replace_file,
)

__all__ = ["Answer", "Audit", "AuditSettings", "describe_progress", "hash_file"]

SETTINGS_FILE, PREDICTIONS_FILE, JOURNAL_FILE = "audit.json", "predictions.csv", "answers.jsonl"
LOCK_FILE = "audit.lock"
FORMAT = 1


@dataclass(frozen=True)
class AuditSettings:
    """What is fixed before the first answer."""

    source: str  # file or session whose predictions are judged
    model: str  # hash of the predictions file, or of the frozen predictions of a session
    predictions: str  # hash of predictions.csv
    data: str  # hash of the ids
    seed: int
    confidence: float
    target: float  # half-width, as a fraction
    started: str  # UTC, ISO 8601
    format: int = FORMAT


@dataclass(frozen=True)
class Answer:
    """An answer of the journal; a later one to the same item replaces it."""

    position: int
    label: str
    who: str
    at: str


class Audit:
    """An audit in a folder; made by `Audit.start` or `Audit.open`.

    Answers may be added by several processes, one after the other.
    """

    def __init__(self, folder: Path, settings: AuditSettings, predictions: Predictions) -> None:
        self.folder = folder
        self.settings = settings
        self.predictions = predictions
        self.answers: dict[int, Answer] = {}
        self.issued: str | None = None  # when the certificate was issued
        self.taught: str | None = None  # when the answers were handed to the model
        self._size = -1
        self.refresh()

    @classmethod
    def start(
        cls,
        folder: str | Path,
        predictions: Predictions,
        *,
        source: str,
        model: str | None = None,
        seed: int = 0,
        confidence: float = 0.95,
        target: float = 0.02,
    ) -> "Audit":
        """Freeze predictions in a new folder.

        Args:
            folder: must not hold an audit yet.
            predictions: what is judged.
            source: where they come from, for the certificate.
            model: hash of the model; default: that of the frozen predictions.
            seed: of the order.
            confidence: of the intervals.
            target: half-width that the audit aims at: 0.02 for ±2 points.
        """
        if not 0 < confidence < 1:
            raise InputError(f"confidence is {confidence}; expected a number between 0 and 1")
        if not 0 < target < 0.5:
            raise InputError(f"target is {target}; expected a half-width between 0 and 0.5")
        folder = Path(folder)
        if (folder / SETTINGS_FILE).exists():
            raise InputError(f"{folder} holds an audit already; open it, or choose another folder")
        make_folder(folder)
        content = predictions.to_csv().encode("utf-8", "surrogateescape")
        settings = AuditSettings(
            source,
            model or hashlib.sha256(content).hexdigest(),
            hashlib.sha256(content).hexdigest(),
            predictions.data_fingerprint,
            seed,
            confidence,
            target,
            _now(),
        )
        with lock_folder(folder, LOCK_FILE):
            replace_file(folder / PREDICTIONS_FILE, content)
            replace_file(folder / SETTINGS_FILE, json.dumps(asdict(settings), indent=1))
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> "Audit":
        """Open the audit in a folder.

        Raises:
            InputError: if there is none, or its predictions were changed.
        """
        folder = Path(folder)
        path = folder / SETTINGS_FILE
        if not path.exists():
            raise InputError(f"{folder} holds no audit; start one with `labelahead audit`")
        try:
            settings = AuditSettings(**json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged ({error}); restore it from a copy") from error
        frozen = folder / PREDICTIONS_FILE
        if hash_file(frozen) != settings.predictions:
            raise InputError(
                f"{frozen} was changed since the audit began; restore it, or start a new audit: an "
                "interval is valid only for predictions that were fixed before the first answer"
            )
        return cls(folder, settings, read_predictions(frozen, id="id")[0])

    @cached_property
    def plan(self) -> AuditPlan:
        """Strata and order."""
        return build_plan(self.predictions.error, seed=self.settings.seed)

    def list_next(self, n: int) -> list[int]:
        """Return the positions of the next n items to label, in the order of the audit."""
        self.refresh()
        found: list[int] = []
        for position in self.plan.order.tolist():
            if len(found) >= n:
                break
            if position not in self.answers:
                found.append(position)
        return found

    def record(self, answers: Iterable[tuple[int, str]], who: str) -> int:
        """Write answers durably and return how many are new or changed.

        Raises:
            InputError: if the answers have been handed to the model already.
        """
        count = 0
        with lock_folder(self.folder, LOCK_FILE, holder="audit"):
            self.refresh()
            self._require_open()
            journal = JsonLinesFile(self.folder / JOURNAL_FILE)
            try:
                for position, label in answers:
                    known = self.answers.get(position)
                    if not 0 <= position < len(self.predictions):
                        raise InputError(f"there is no item {position} in the audit")
                    if known is not None and known.label == label:
                        continue
                    row = Answer(position, label, who, _now())
                    journal.append({"kind": "answer", **asdict(row)})
                    self.answers[position] = row
                    count += 1
            finally:
                journal.close()
        return count

    def list_answers(self) -> list[Answer]:
        """Return the answers that count: those before the first unanswered item of the order."""
        self.refresh()
        found = []
        for position in self.plan.order.tolist():
            if position not in self.answers:
                break
            found.append(self.answers[position])
        return found

    def count_waiting(self) -> int:
        """Return the number of answers behind an unanswered item; they count once it is answered."""
        return len(self.answers) - len(self.list_answers())

    def encode_answers(self) -> list[int]:
        """Return the class number of each answer that counts; -1: none of the predicted classes."""
        numbers = {normalise_name(name): i for i, name in enumerate(self.predictions.classes)}
        return [numbers.get(normalise_name(a.label), -1) for a in self.list_answers()]

    def estimate_accuracy(self) -> Quality:
        """Return the accuracy with its interval."""
        return estimate_accuracy(
            self.predictions, self.plan, self.encode_answers(), **self._parameters
        )

    def estimate_quality(self) -> Quality:
        """Return accuracy, classes and the interval over time."""
        return estimate_quality(
            self.predictions, self.plan, self.encode_answers(), **self._parameters
        )

    @property
    def _parameters(self) -> dict[str, float]:
        return {"confidence": self.settings.confidence, "target": self.settings.target}

    def mark_issued(self) -> None:
        """Record that the certificate was issued."""
        self._mark("issued")

    def list_lessons(self) -> list[Answer]:
        """Return all answers for the model to learn from; only after the certificate.

        Raises:
            InputError: if no certificate was issued.
        """
        self.refresh()
        if self.issued is None:
            raise InputError(
                "the certificate has not been issued yet; issue it first: after the answers have "
                "taught the model they cannot judge it any more"
            )
        return list(self.answers.values())

    def mark_taught(self) -> None:
        """Record that the answers have been added to the labels; the audit is closed."""
        if self.taught is None:
            self._mark("taught")

    def _mark(self, kind: str) -> None:
        with lock_folder(self.folder, LOCK_FILE, holder="audit"):
            self.refresh()
            if kind == "issued":
                self._require_open()
            journal = JsonLinesFile(self.folder / JOURNAL_FILE)
            try:
                journal.append({"kind": kind, "at": _now()})
            finally:
                journal.close()
        self.refresh()

    def _require_open(self) -> None:
        if self.taught is not None:
            raise InputError(
                f"the answers of this audit have taught the model ({self.taught}); start a new "
                "audit of its new predictions"
            )

    def refresh(self) -> None:
        """Read the journal again if another process has added to it."""
        path = self.folder / JOURNAL_FILE
        size = path.stat().st_size if path.exists() else 0
        if size == self._size:
            return
        self.answers = {}
        for row, where in read_complete_lines(path):
            if row.get("kind") in ("issued", "taught"):
                setattr(self, str(row["kind"]), row.get("at"))
            else:
                answer = _parse_answer(row, where)
                self.answers[answer.position] = answer
        self._size = size


def _parse_answer(row: Mapping[str, Any], where: str) -> Answer:
    try:
        return Answer(int(row["position"]), str(row["label"]), str(row["who"]), str(row["at"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where} is damaged; expected an answer of an audit") from error


def describe_progress(quality: Quality, waiting: int = 0) -> str:
    """Return one sentence: the accuracy with its interval, after how many labels."""
    a = quality.accuracy
    later = f"; {count_noun(waiting, 'answer waits', 'answers wait')} for earlier items"
    return (
        f"accuracy {a.value:.1%}, between {a.low:.1%} and {a.high:.1%} "
        f"({quality.confidence:.0%} confidence) after {count_noun(quality.labels, 'label')}"
        f"{later if waiting else ''}"
    )


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        InputError: if it cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); restore it") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
