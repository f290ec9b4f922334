"""One model of all labels of a session.

What every export, prediction file and exported model comes from.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labelahead.data.dataset import UNKNOWN
from labelahead.errors import InputError
from labelahead.inference.exact import ExactLearner, ExactModel
from labelahead.inference.network import FittedModel, NetworkLearner
from labelahead.learner.config import Campaign
from labelahead.learner.export import BIASED, ExportedModel, finish
from labelahead.learner.preparation import Prepared
from labelahead.outofcore.store import is_store
from labelahead.seeds import stream
from labelahead.server.label_state import LabelState
from labelahead.server.refresh import JUDGED, Order, UnitFit, fit_units
from labelahead.server.schedule import Schedule
from labelahead.server.service import LabellingService
from labelahead.server.snapshot import Snapshot
from labelahead.server.snapshot_builder import SnapshotBuilder, Tell

__all__ = [
    "CurrentModel",
    "LabelFit",
    "PoolPredictions",
    "fit_labels",
    "page_model",
    "predict_pool",
    "refuse_large",
]


def refuse_large(campaign: Campaign) -> None:
    """Raise for a pool of millions, of which the page holds a part."""
    if is_store(campaign.data.name):
        raise InputError(
            f"{campaign.data.name} is a pool of millions, of which the page holds a part; export "
            "the labels, and "
            "have all items predicted by `labelahead pool predict`"
        )


@dataclass(frozen=True, eq=False)
class LabelFit:
    """A model fitted on all labels of a session. Positions are places along `points`."""

    points: Tensor  # (n,) positions in the data set that it was fitted among
    ready: Prepared
    learner: NetworkLearner | ExactLearner
    learnt: FittedModel
    labels: Mapping[int, int]  # position in the data set -> index of its class
    at: Tensor  # (L,) places
    given: Tensor  # (L,) indices of classes
    votes: Tensor  # (L,) bool: not confirmed among many
    seed: int


@dataclass(frozen=True, eq=False)
class PoolPredictions:
    """Class probabilities of the items of a session.

    classes: their numbers on the page, by column. positions: of the items that a model could look
    at.
    """

    positions: Tensor  # (n,)
    classes: tuple[int, ...]
    probabilities: Tensor  # (n, C)

    def by_class_number(self, count: int) -> dict[int, list[float]]:
        """The probabilities of all class numbers below `count`, by position.

        0 of classes merged or removed.
        """
        every = self.probabilities.new_zeros((len(self.positions), count))
        every[:, list(self.classes)] = self.probabilities
        return dict(zip(self.positions.tolist(), every.tolist(), strict=True))

    def best(self) -> dict[int, tuple[int, float]]:
        """The likeliest class of each item, by its number, and its probability."""
        sure, index = self.probabilities.max(1)
        rows = zip(self.positions.tolist(), index.tolist(), sure.tolist(), strict=True)
        return {p: (self.classes[i], q) for p, i, q in rows}


def predict_pool(
    assignment: LabellingService, schedule: Schedule, tell: Tell | None = None
) -> PoolPredictions:
    """Predict all items by a model fitted now on all labels: what `export-model` and `predict`
    give.

    Args:
        assignment: of the session.
        schedule: of the session; what it has looked at already is not looked at again.
        tell: is told how much of the looking is done.

    Raises:
        InputError: if there are labels of fewer than two classes, or items are still being looked
        at.
    """
    with assignment.lock:
        tally, opinion = assignment.tally, assignment.opinion
    _require_classes(tally)
    if opinion is not None and opinion.snapshot.units is not None and schedule.is_complete():
        fit = _fit_exact(opinion.snapshot, tally)
        p = fit.model.probabilities(opinion.snapshot.units)
        return PoolPredictions(opinion.snapshot.points, tuple(fit.numbers.tolist()), p)
    made = fit_labels(assignment, schedule, tell)
    p = made.learnt.predict_proba(torch.arange(len(made.points)), len(tally.alive))
    return PoolPredictions(made.points, tally.alive, p)


def _fit_exact(snapshot: Snapshot, tally: LabelState) -> UnitFit:
    order = Order(
        1, tuple(tally.labels.items()), len(tally.classes), (), tuple(tally.confirmed), tally.alive
    )
    fit = fit_units(snapshot, order)
    fit.model.calibrate(fit.votes)
    return fit


class CurrentModel:
    """The model of all labels by now, for programs that ask about single items.

    The page's own view of the pool chooses its kernel anew every few labels only; this does so for
    every state of the labels, when somebody asks. A trained network answers as last trained,
    linearised with the answers since.
    """

    def __init__(self, assignment: LabellingService) -> None:
        self.assignment = assignment
        self._fitted: UnitFit | None = None
        self._state: Any = None  # of the labels that it was fitted on
        self._fitting = threading.Lock()

    def guess(self, position: int) -> tuple[int, float] | None:
        """The likeliest class of an item and its probability; None of one that is not in play."""
        with self.assignment.lock:
            tally, opinion = self.assignment.tally, self.assignment.opinion
        if opinion is None or position not in opinion.belief:
            return None
        units = opinion.snapshot.units
        if units is None or len(set(tally.labels.values())) < 2:
            return next(iter(opinion.guess(position, 1)), None)
        with self._fitting:
            state = dict(tally.labels), tally.alive, set(tally.confirmed)
            if self._fitted is None or self._fitted.units is not units or self._state != state:
                self._fitted, self._state = _fit_exact(opinion.snapshot, tally), state
            fit = self._fitted
        sure, best = fit.model.probabilities(units[opinion.belief.places([position])])[0].max(0)
        return int(fit.numbers[best]), float(sure)


def _require_classes(tally: LabelState) -> None:
    given = set(tally.labels.values())
    if len(given) < 2:
        raise InputError(
            f"{len(tally.labels)} labels of {len(given)} classes are there; expected labels of at "
            "least two "
            "classes: label some more items (to export labels alone, leave out --rest)"
        )


def fit_labels(
    assignment: LabellingService, schedule: Schedule, tell: Tell | None = None
) -> LabelFit:
    """Fit a model on all labels that there are by now, as the page's own network is.

    Raises:
        InputError: if there are labels of fewer than two classes, or a page is still looking at its
        items.
    """
    with assignment.lock:
        tally = assignment.tally
        number = {
            c: i for i, c in enumerate(tally.alive)
        }  # without classes that were merged or removed
        labels = {p: number[c] for p, c in tally.labels.items()}
    _require_classes(tally)
    if schedule.is_looking:
        raise InputError(
            f"the items are still being looked at ({schedule.done:.0%} are done), and a model "
            "needs all of them; try "
            "again when the page says that it is done, or export the labels alone"
        )
    campaign = replace(schedule.campaign, threads=None)
    refuse_large(campaign)
    held = dict.fromkeys(assignment.closed, UNKNOWN)
    workshop = SnapshotBuilder(campaign, (assignment.items.data, None), held, assignment.broken)
    points, ready = workshop.prepared(labels, tell)
    place = {p: i for i, p in enumerate(points.tolist())}
    labels = {p: c for p, c in labels.items() if p in place}  # of what can still be read
    learner, seed = ready.learner(max(len(number), 2)), ready.training.seed_of(campaign.seed, 0)
    at, given = torch.tensor([place[p] for p in labels]), torch.tensor(list(labels.values()))
    votes = torch.tensor([p not in tally.confirmed for p in labels])
    order = (
        at.argsort()
    )  # a training does not depend on who answered first; estimates do, and keep that order
    learnt = learner.learn(at[order], given[order], seed=seed)
    if isinstance(learnt.model, ExactModel):
        learnt.model.calibrate(votes[order])
    return LabelFit(points, ready, learner, learnt, labels, at, given, votes, seed)


def page_model(
    assignment: LabellingService, schedule: Schedule, tell: Tell | None = None
) -> ExportedModel:
    """Learnt from all labels that there are by now, to be taken away."""
    made = fit_labels(assignment, schedule, tell)
    with assignment.lock:
        tally, last = assignment.tally, schedule.rounds[-1] if schedule.rounds else {}
    if last.get("accuracy") is not None:
        accuracy = {
            "measured": last["accuracy"],
            "on": len(assignment.closed),
            "labels": last["labels"],
        }
    else:
        accuracy = _estimated(made)
    classes = [tally.classes[c] for c in tally.alive]
    return finish(
        made.ready, made.learnt.model, made.labels, classes, accuracy, items=len(assignment.items)
    )


def _estimated(made: LabelFit) -> dict[str, Any]:
    """Of the items that have no label.

    Where there are none, of those that have. Nothing for a trained network.
    """
    if not isinstance(made.learner, ExactLearner):
        # its outputs have seen the labels: only items that were kept aside tell its accuracy
        return {}
    learner, at, given, ready, seed = made.learner, made.at, made.given, made.ready, made.seed
    others = torch.ones(len(ready.data), dtype=torch.bool).index_fill_(
        0, torch.cat([at, ready.data.test]), False
    )
    rest = others.nonzero().flatten()
    if not len(rest):
        right = learner.leave_one_out_predictions(at, given, seed=seed)[0].argmax(1) == given
        return {"estimated": float(right.double().mean()), "how": BIASED}
    judged = rest[torch.randperm(len(rest), generator=stream(seed, "judged"))[:JUDGED]]
    error = learner.outlook(at, given, judged, seed=seed, votes=made.votes).error
    interval = f"{1 - error.high:.1%} to {1 - error.low:.1%}"
    return {
        "estimated": 1 - error.rate,
        "how": f"for items without a label, by {len(at)} labels ({interval})",
    }
