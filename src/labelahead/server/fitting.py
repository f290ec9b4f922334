"""Fit a model on all labels of a session, for exports, prediction files and exported models."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labelahead.data.dataset import NONE_OF_THESE, UNKNOWN
from labelahead.data.positions import PositionIndex
from labelahead.errors import InputError, count_noun
from labelahead.inference.exact import ExactLearner
from labelahead.inference.network import FittedModel, NetworkLearner
from labelahead.inference.sources import Annotations
from labelahead.learner.config import Campaign
from labelahead.learner.export import LEAVE_ONE_OUT_CAVEAT, ExportedModel, export_model
from labelahead.learner.preparation import PreparedCampaign
from labelahead.outofcore.store import is_store
from labelahead.seeds import make_generator
from labelahead.server.exact_snapshot import ERROR_ESTIMATE_ITEMS
from labelahead.server.label_state import LabelState, count_classes
from labelahead.server.schedule import Schedule
from labelahead.server.service import LabellingService
from labelahead.server.snapshot import (
    LabelFit,
    PoolPredictions,
    Snapshot,
    TaskPredictions,
    TrainingRequest,
)
from labelahead.server.snapshot_builder import (
    ProgressCallback,
    SnapshotBuilder,
    with_current_classes,
)
from labelahead.server.task_snapshot import TaskSnapshot
from labelahead.tasks import Prediction

__all__ = [
    "CurrentModel",
    "SessionFit",
    "build_exported_model",
    "fit_labels",
    "predict_pool",
    "reject_large_pool",
]


def reject_large_pool(campaign: Campaign) -> None:
    """Raise for an out-of-core pool, of which the page loads only a part."""
    if is_store(campaign.data.name):
        raise InputError(
            f"{campaign.data.name} is an out-of-core pool, of which the page loads only a part; "
            "export the labels, and predict all items with `labelahead pool predict`"
        )


@dataclass(frozen=True, eq=False)
class SessionFit:
    """A model fitted on all labels of a session. `at` and `learnt` count rows of `points`."""

    points: Tensor  # (n,) positions in the data set
    prepared: PreparedCampaign
    learner: NetworkLearner | ExactLearner
    fitted: FittedModel
    # position in the data set -> index of its class, or `NONE_OF_THESE`
    labels: Mapping[int, int]
    at: Tensor  # (L,) rows
    class_indices: Tensor  # (L,) indices of classes, or `NONE_OF_THESE`
    votes: Tensor  # (L,) bool: not bulk-confirmed
    seed: int


def predict_pool(
    service: LabellingService, schedule: Schedule, on_progress: ProgressCallback | None = None
) -> PoolPredictions | TaskPredictions:
    """Predict all items with a model fitted now on all labels, as `export-model` and `predict` do.

    Args:
        service: Of the session.
        schedule: Schedule of the session; computed embeddings are reused.
        on_progress: Called with the progress of computing embeddings.

    Raises:
        InputError: There are labels of fewer than two classes, or embeddings are not ready.
    """
    with service.lock:
        label_state, page_model = service.label_state, service.page_model
    _require_labels(label_state)
    if label_state.task is not None:
        snapshot = _get_task_snapshot(service, schedule, on_progress)
        return snapshot.fit_labels(_make_request(label_state)).predict(snapshot.points)
    if page_model is not None and schedule.is_complete() and schedule.has_current_guesses():
        fit = page_model.snapshot.fit_labels(_make_request(label_state))
        if fit is not None:
            return fit.predict(page_model.snapshot.points)
    session_fit = fit_labels(service, schedule, on_progress)
    p = session_fit.fitted.predict_proba(
        torch.arange(len(session_fit.points)), len(label_state.active_classes)
    )
    return PoolPredictions(session_fit.points, label_state.active_classes, p)


def _make_request(label_state: LabelState) -> TrainingRequest:
    return TrainingRequest(
        1,
        tuple(label_state.labels.items()),
        len(label_state.classes),
        (),
        tuple(label_state.confirmed),
        label_state.active_classes,
        label_state.list_annotations(),
        label_state.task,
    )


def _get_task_snapshot(
    service: LabellingService, schedule: Schedule, on_progress: ProgressCallback | None
) -> TaskSnapshot:
    """Return a snapshot with the embeddings of all items: that of the page, or a new one."""
    page_model = service.page_model
    if page_model is not None and schedule.is_complete():
        snapshot = page_model.snapshot
    else:
        _require_embeddings(schedule)
        campaign = replace(schedule.campaign, threads=None)
        held = dict.fromkeys(service.held_out, UNKNOWN)
        builder = SnapshotBuilder(campaign, service.items.data, held, service.excluded)
        request = TrainingRequest(0, (), 2)
        *_, (snapshot, _) = builder.build_snapshots(
            request, on_progress or (lambda what, done: None)
        )
    assert isinstance(snapshot, TaskSnapshot)
    return snapshot


class CurrentModel:
    """The model of the current labels, for predictions of single items.

    The page selects its kernel only every few labels; this class does so whenever the labels have
    changed. A trained network is linearised with the answers since its last training.
    """

    def __init__(self, service: LabellingService) -> None:
        self.service = service
        self._fitted: LabelFit | None = None
        self._fitted_on: tuple[Tensor, TrainingRequest] | None = None  # points, labels
        self._fitting = threading.Lock()

    def predict_item(self, position: int) -> tuple[int, float] | None:
        """Return the most probable class of an item and its probability; None if unknown."""
        with self.service.lock:
            label_state, page_model = self.service.label_state, self.service.page_model
        if page_model is None or position not in page_model.pool_posterior:
            return None
        fit: LabelFit | None = None
        if count_classes(label_state.labels) > 1:
            fit = self._fit(page_model.snapshot, _make_request(label_state))
        if fit is None:
            return next(iter(page_model.predict_classes(position, 1)), None)
        predicted = fit.predict(torch.tensor([position]))
        assert isinstance(predicted, PoolPredictions)
        return predicted.pick_best()[position]

    def predict_answer(self, position: int) -> Prediction | None:
        """Return the predicted answer of an item to a task; None without one."""
        with self.service.lock:
            label_state, page_model = self.service.label_state, self.service.page_model
        if (
            label_state.task is None
            or not label_state.can_be_fitted
            or page_model is None
            or position not in page_model.pool_posterior
        ):
            return None
        fit = self._fit(page_model.snapshot, _make_request(label_state))
        predicted = None if fit is None else fit.predict(torch.tensor([position]))
        return predicted.prediction if isinstance(predicted, TaskPredictions) else None

    def _fit(self, snapshot: Snapshot, request: TrainingRequest) -> LabelFit | None:
        """Fit the labels, unless they are those of the last fit; None if that needs a training."""
        with self._fitting:
            # A refreshed snapshot has the same points.
            points, last = self._fitted_on or (None, None)
            if points is not snapshot.points or last != request:
                self._fitted = snapshot.fit_labels(request)
                self._fitted_on = snapshot.points, request
            return self._fitted


def _require_labels(label_state: LabelState) -> None:
    """Raise if there are too few labels for a fit."""
    if label_state.task is not None:
        if not label_state.can_be_fitted:
            raise InputError(
                f"{count_noun(len(label_state.labels), 'label exists', 'labels exist')}; expected "
                "at least two: label more items (to export the labels only, leave out --rest)"
            )
        return
    count = count_classes(label_state.labels)
    if count < 2:
        raise InputError(
            f"{count_noun(len(label_state.labels), 'label exists', 'labels exist')}, of "
            f"{count_noun(count, 'class')}; expected labels of at least two classes: label "
            "more items (to export the labels only, leave out --rest)"
        )


def fit_labels(
    service: LabellingService, schedule: Schedule, on_progress: ProgressCallback | None = None
) -> SessionFit:
    """Fit a model on all current labels, with the settings of the page.

    Raises:
        InputError: There are labels of fewer than two classes, or embeddings are not ready.
    """
    with service.lock:
        label_state = service.label_state
        number = {
            c: i for i, c in enumerate(label_state.active_classes)
        }  # without merged and removed classes
        # A network is not trained on items of no class.
        number |= {} if schedule.needs_training else {NONE_OF_THESE: NONE_OF_THESE}
        labels = {p: number[c] for p, c in label_state.labels.items() if c in number}
        annotations = label_state.list_annotations()
    _require_labels(label_state)
    _require_embeddings(schedule)
    campaign = replace(schedule.campaign, threads=None)
    campaign, data = with_current_classes(campaign, service.items.data, label_state)
    reject_large_pool(campaign)
    held_out_labels = dict.fromkeys(service.held_out, UNKNOWN)
    builder = SnapshotBuilder(campaign, data, held_out_labels, service.excluded)
    points, prepared = builder.prepare_items(labels, on_progress)
    index = PositionIndex(points)
    labels = index.keep_known_values(labels)  # of items that can still be read
    learner, seed = (
        prepared.make_learner(max(len(label_state.active_classes), 2)),
        prepared.training.derive_seed(campaign.seed, 0),
    )
    if annotations:
        rows = [
            (index.row_of(p), number[c], who)
            for p, c, who in annotations
            if p in index and c in number  # a network is not trained on `NONE_OF_THESE`
        ]
        learner = learner.with_annotations(Annotations.from_rows(rows))
    at, given = index.rows_of(labels), torch.tensor(list(labels.values()))
    votes = torch.tensor([p not in label_state.confirmed for p in labels])
    order = (
        at.argsort()
    )  # a training does not depend on who answered first; estimates do, and keep that order
    fitted = learner.fit(at[order], given[order], seed=seed)
    fitted.calibrate(votes[order])
    return SessionFit(points, prepared, learner, fitted, labels, at, given, votes, seed)


def _require_embeddings(schedule: Schedule) -> None:
    """Raise while embeddings are being computed."""
    if schedule.is_encoding:
        raise InputError(
            f"the embeddings are still being computed ({schedule.fraction_done:.0%} done), and a "
            "model needs all of them; try again when the page reports that the model is up to "
            "date, or export the labels only"
        )


def build_exported_model(
    service: LabellingService, schedule: Schedule, on_progress: ProgressCallback | None = None
) -> ExportedModel:
    """Fit a model on all current labels, for export."""
    if schedule.campaign.data.task != "classes":
        raise InputError(
            f"the task is {schedule.campaign.data.task}, whose models are not exported from a "
            "session yet; export the labels, with --rest for the predictions of all items"
        )
    session_fit = fit_labels(service, schedule, on_progress)
    with service.lock:
        label_state, last = service.label_state, schedule.rounds[-1] if schedule.rounds else {}
    if last.get("accuracy") is not None:
        accuracy = {
            "measured": last["accuracy"],
            "on": len(service.held_out),
            "labels": last["labels"],
        }
    else:
        accuracy = _estimate_accuracy(session_fit)
    classes = [label_state.classes[c] for c in label_state.active_classes]
    return export_model(
        session_fit.prepared,
        session_fit.fitted.model,
        session_fit.labels,
        classes,
        accuracy,
        items=len(service.items),
    )


def _estimate_accuracy(session_fit: SessionFit) -> dict[str, Any]:
    """Estimate the accuracy on the unlabelled items.

    If there are none, on the labelled items. Empty for a trained network.
    """
    learner, at, given, prepared, seed = (
        session_fit.learner,
        session_fit.at,
        session_fit.class_indices,
        session_fit.prepared,
        session_fit.seed,
    )
    others = torch.ones(len(prepared.data), dtype=torch.bool).index_fill_(
        0, torch.cat([at, prepared.data.test]), False
    )
    rest = others.nonzero().flatten()
    if not len(rest):
        accuracy = learner.estimate_accuracy(at, given)
        return {} if accuracy is None else {"estimated": accuracy, "how": LEAVE_ONE_OUT_CAVEAT}
    judged = rest[
        torch.randperm(len(rest), generator=make_generator(seed, "judged"))[:ERROR_ESTIMATE_ITEMS]
    ]
    forecast = learner.forecast_error(at, given, judged, seed=seed, votes=session_fit.votes)
    if forecast is None:
        return {}
    error = forecast.error
    interval = f"{1 - error.high:.1%} to {1 - error.low:.1%}"
    return {
        "estimated": 1 - error.rate,
        "how": f"for items without a label, by {len(at)} labels ({interval})",
    }
