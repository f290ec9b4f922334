"""Audits of a labelling session: freeze its predictions, ask random items, certify, then teach.

An audit lies in the folder audit-N of the session. It judges the items that have no label when it
begins. Its answers are written durably to its own journal and reach the labels only after the
certificate.
"""

import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from labelahead.audit.certificate import build_certificate, render_certificate, write_certificate
from labelahead.audit.folder import Audit
from labelahead.audit.predictions import Predictions
from labelahead.audit.quality import Quality
from labelahead.data.dataset import NONE_OF_THESE, NONE_OF_THESE_NAME
from labelahead.errors import InputError, count_noun
from labelahead.learner.config import parse_campaign, read_stored
from labelahead.server.fitting import predict_pool
from labelahead.server.permissions import make_private_folder
from labelahead.server.schedule import Schedule
from labelahead.server.service import LabellingService
from labelahead.server.session import Session, SessionOptions, open_session
from labelahead.server.snapshot import PoolPredictions

__all__ = [
    "PageAudit",
    "add_lessons",
    "find_audit",
    "freeze_predictions",
    "start_session_audit",
    "teach_session",
]

AUDIT_FOLDER = "audit-"
RESERVED_SECONDS = 600.0  # for which an item is shown to one person only


def list_audits(folder: Path) -> list[Path]:
    """Return the folders of the audits of a session, oldest first."""
    numbered = [
        (int(path.name.removeprefix(AUDIT_FOLDER)), path)
        for path in folder.glob(f"{AUDIT_FOLDER}*")
        if path.name.removeprefix(AUDIT_FOLDER).isdigit() and (path / "audit.json").exists()
    ]
    return [path for _, path in sorted(numbered)]


def find_audit(folder: str | Path) -> Audit | None:
    """Return the newest audit of a session, unless its answers have taught the model already."""
    folders = list_audits(Path(folder))
    found = Audit.open(folders[-1]) if folders else None
    return None if found is None or found.taught is not None else found


def freeze_predictions(service: LabellingService, schedule: Schedule) -> Predictions:
    """Return the predictions of all unlabelled items by a model fitted now on all labels."""
    predicted = predict_pool(service, schedule)
    if not isinstance(predicted, PoolPredictions):
        raise InputError(
            "an audit needs one class per item; predictions of this task cannot be audited yet"
        )
    with service.lock:
        label_state = service.label_state
    left = [
        i
        for i, p in enumerate(predicted.positions.tolist())
        if p not in label_state.labels and p not in service.held_out and p not in service.excluded
    ]
    if not left:
        raise InputError("every item has a label, so that there is no prediction to audit")
    chances = predicted.probabilities[left].double()
    probabilities = (chances / chances.sum(1, keepdim=True)).numpy()
    best = probabilities.argmax(1)
    return Predictions(
        tuple(service.items.ids[int(predicted.positions[i])] for i in left),
        tuple(label_state.classes[c] for c in predicted.classes),
        best,
        probabilities[np.arange(len(best)), best],
        probabilities,
    )


def _start(folder: Path, service: LabellingService, schedule: Schedule, **settings: Any) -> Audit:
    predictions = freeze_predictions(service, schedule)
    folders = list_audits(folder)
    number = int(folders[-1].name.removeprefix(AUDIT_FOLDER)) + 1 if folders else 1
    place = folder / f"{AUDIT_FOLDER}{number}"
    make_private_folder(place)
    labels = count_noun(len(service.label_state.labels), "label")
    source = f"{service.items.data.name}, predictions by a model of {labels}"
    return Audit.start(place, predictions, source=source, **settings)


def start_session_audit(folder: str | Path, *, trust_code: bool = False, **settings: Any) -> Audit:
    """Freeze the predictions of a session's model in a new audit, also while a server is running.

    settings: seed, confidence and target, as for `Audit.start`.
    """
    with _open(Path(folder), read_only=True, trust_code=trust_code) as session:
        session.schedule.restore()
        return _start(Path(folder), session.service, session.schedule, **settings)


def teach_session(folder: str | Path, audit: Audit) -> str:
    """Add the answers of a certified audit to the labels of a session that no server has open."""
    audit.list_lessons()  # raises before the session is opened
    with _open(Path(folder)) as session:
        count = add_lessons(session.service, audit)
    return f"{count_noun(count, 'answer')} of the audit added to the labels of {folder}"


def add_lessons(service: LabellingService, audit: Audit) -> int:
    """Add the answers to items that have no label yet, and close the audit."""
    labelled = service.label_state.labels
    positions = {name: p for p, name in enumerate(service.items.ids)}
    rows = []
    for answer in audit.list_lessons():
        position = positions.get(audit.predictions.ids[answer.position])
        if position is not None and position not in labelled:
            rows.append((position, answer.label, answer.who))
    service.add_labels(rows)  # adds nothing twice, should the program be killed here
    audit.mark_taught()
    return len(rows)


def _open(
    folder: Path, *, read_only: bool = False, trust_code: bool = False
) -> AbstractContextManager[Session]:
    campaign = parse_campaign(read_stored(folder / "session.toml", trust_code=trust_code))
    options = SessionOptions(test=campaign.data.test_fraction or None, read_only=read_only)
    return open_session(campaign, folder, options)


class PageAudit:
    """The audit of the page: one at a time, for all annotators together."""

    def __init__(self, service: LabellingService, schedule: Schedule) -> None:
        self.service = service
        self.schedule = schedule
        self._lock = threading.RLock()
        self._reserved: dict[int, tuple[str, float]] = {}  # position -> annotator, until when
        self._quality: tuple[list[int], Quality] | None = None  # answers, result
        self._audit: Audit | None = None  # the newest one, whose plan is kept
        self._positions: dict[str, int] = {}  # id -> position in the data set

    @property
    def _folder(self) -> Path:
        return self.service.journal.folder

    def start(self, *, confidence: float, target: float) -> dict[str, Any]:
        """Freeze the predictions, unless an audit is running."""
        with self._lock:
            if self._find() is None:
                _start(
                    self._folder,
                    self.service,
                    self.schedule,
                    confidence=confidence,
                    target=target,
                    seed=int(time.time()),
                )
            return self.describe()

    def describe(self) -> dict[str, Any]:
        """Return the state of the audit, its interval and its strata."""
        with self._lock:
            audit = self._find()
            if audit is None:
                finished = len(list_audits(self._folder))
                return {"running": False, "finished": finished, "ready": self._is_ready()}
            answers = audit.encode_answers()
            if self._quality is None or self._quality[0] != answers:
                self._quality = answers, audit.estimate_accuracy()
            quality = self._quality[1]
            return {
                "running": True,
                "items": quality.items,
                "labels": quality.labels,
                "wrong": quality.wrong,
                "accuracy": vars(quality.accuracy),
                "confidence": quality.confidence,
                "target": audit.settings.target,
                "strata": [asdict(row) for row in audit.plan.describe_strata()],
                "issued": audit.issued,
                "started": audit.settings.started,
            }

    def _is_ready(self) -> bool:
        page_model = self.service.page_model
        return page_model is not None and page_model.has_labels

    def next_item(self, who: str) -> dict[str, Any]:
        """Return the next item of the audit's order, without its prediction."""
        with self._lock:
            audit = self._require()
            now = time.monotonic()
            self._reserved = {p: (w, t) for p, (w, t) in self._reserved.items() if t > now}
            others = {p for p, (w, _) in self._reserved.items() if w != who}
            for index in audit.list_next(len(others) + 1):
                position = self._positions[audit.predictions.ids[index]]
                if position not in others:
                    self._reserved[position] = who, now + RESERVED_SECONDS
                    return {"done": False, "item": self.service.items.describe_item(position)}
            return {"done": True, "item": None}

    def record(self, who: str, position: int, label: int) -> dict[str, Any]:
        """Write an answer durably; a second answer to an item corrects the first."""
        with self._lock:
            audit = self._require()
            name = self._name_class(audit, label)
            index = audit.predictions.positions.get(self.service.items.ids[position])
            if index is None:
                raise InputError(
                    f"item {position} is not in the audit: it had a label when the audit began"
                )
            audit.record([(index, name)], who)
            self._reserved.pop(position, None)
            return self.describe()

    def issue(self) -> dict[str, Any]:
        """Write the certificate into the folder of the audit."""
        with self._lock:
            audit = self._require()
            if not audit.list_answers():
                raise InputError("no item of the audit is labelled yet; label some items first")
            write_certificate(audit)
            return self.describe()

    def teach(self) -> dict[str, Any]:
        """Add the answers to the labels of the session, after the certificate."""
        with self._lock:
            added = add_lessons(self.service, self._require())
            return {"added": added, **self.describe()}

    def read_certificate(self) -> tuple[str, Mapping[str, Any]]:
        """Return the newest certificate, also of an audit that has been closed: page and content."""
        folders = list_audits(self._folder)
        if not folders:
            raise InputError("there is no audit yet; start one first")
        content = build_certificate(Audit.open(folders[-1]))
        return render_certificate(content), content

    def _find(self) -> Audit | None:
        """Return the running audit, with the answers of all processes."""
        folders = list_audits(self._folder)
        if folders and (self._audit is None or self._audit.folder != folders[-1]):
            self._audit = Audit.open(folders[-1])
            self._positions = {name: p for p, name in enumerate(self.service.items.ids)}
            self._quality = None
        if not folders or self._audit is None:
            return None
        self._audit.refresh()
        return None if self._audit.taught is not None else self._audit

    def _require(self) -> Audit:
        audit = self._find()
        if audit is None:
            raise InputError("no audit is running; start one first")
        return audit

    def _name_class(self, audit: Audit, label: int) -> str:
        """Return the frozen name of a class, which may have been renamed since."""
        label_state = self.service.label_state
        if label == NONE_OF_THESE:
            return NONE_OF_THESE_NAME
        if label not in label_state.active_classes:
            raise InputError(f"there is no class {label}; expected the number of a class")
        for name in audit.predictions.classes:
            if self.service.journal.find_class(name) == label:
                return name
        return label_state.classes[label]
