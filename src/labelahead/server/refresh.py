"""Update the snapshot of the exact learner to new labels: milliseconds, without training."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labelahead.inference.exact import (
    MAX_SELECTION_LABELS,
    ExactLearner,
    ExactModel,
    FittedExactModel,
)
from labelahead.inference.forecast import ErrorForecast
from labelahead.server.snapshot import Snapshot

__all__ = [
    "TrainingRequest",
    "UnitFit",
    "fit_units",
    "forecast_facts",
    "leave_one_out_facts",
    "refresh_snapshot",
]

LABEL_FREE_FACTS = (
    "map",
    "unreadable",
    "whole",
    "random",
    "scored",
)  # facts that do not depend on labels
ERROR_ESTIMATE_ITEMS = 1000  # unlabelled items used to estimate the error


@dataclass(frozen=True)
class TrainingRequest:
    """A request to fit a model on these labels; round 0 uses no labels."""

    round: int
    labels: tuple[tuple[int, int], ...]  # (position, class) in the order they were given
    classes: int
    random_sample: tuple[int, ...] = ()  # labelled positions that are a random sample
    confirmed: tuple[int, ...] = ()  # positions that were bulk-confirmed
    # class numbers that are neither merged nor removed; None: all
    active_classes: tuple[int, ...] | None = None

    @property
    def class_numbers(self) -> tuple[int, ...]:
        """Return the class numbers that can be predicted, at least two."""
        active_classes = (
            tuple(range(self.classes)) if self.active_classes is None else self.active_classes
        )
        return active_classes if len(active_classes) > 1 else tuple(range(max(self.classes, 2)))


@dataclass(frozen=True, eq=False)
class UnitFit:
    """The exact learner, fitted on labels of a snapshot's items.

    Its outputs are the classes `class_numbers`.
    """

    units: Tensor  # (n, d) of all items of the snapshot
    learner: ExactLearner
    model: ExactModel
    learnt: FittedExactModel
    at: Tensor  # (L,) indices into the snapshot's points
    labels: Tensor  # (L,) indices into `class_numbers`
    class_numbers: Tensor  # (C,) class numbers of the page
    votes: Tensor  # (L,) bool: not bulk-confirmed


def fit_units(snapshot: Snapshot, order: TrainingRequest, *, most: int | None = None) -> UnitFit:
    """Fit the exact learner on these labels from scratch, so that the result is reproducible.

    Args:
        snapshot: Snapshot of the exact learner.
        order: The labels; items that are not in the snapshot are left out.
        most: labels beyond which they are condensed.
    """
    assert snapshot.units is not None
    place = {p: i for i, p in enumerate(snapshot.points.tolist())}
    index = {c: i for i, c in enumerate(order.class_numbers)}
    known = [
        (p, c) for p, c in order.labels if p in place
    ]  # in the order they were given: the estimate needs it
    at, labels = (
        torch.tensor([place[p] for p, _ in known]),
        torch.tensor([index[c] for _, c in known]),
    )
    learner = ExactLearner(
        snapshot.units, ExactModel.for_unit_rows(len(index)), max_exact_labels=most
    )
    learnt = learner.fit(at, labels)
    votes = ~torch.isin(snapshot.points[at], torch.tensor(order.confirmed, dtype=torch.int64))
    return UnitFit(
        snapshot.units,
        learner,
        learnt.kernel_model,
        learnt,
        at,
        labels,
        torch.tensor(order.class_numbers),
        votes,
    )


def refresh_snapshot(before: Snapshot, order: TrainingRequest) -> Snapshot:
    """Return the exact learner's snapshot after these labels, with a newly selected kernel."""
    assert before.units is not None
    classes = max(order.classes, 2)
    outputs = torch.full((len(before.points), classes), 1 / classes, dtype=torch.float64)
    if not order.round:
        return replace(before, outputs=outputs)
    began = time.perf_counter()
    fit = fit_units(before, order, most=MAX_SELECTION_LABELS)
    at, learner, learnt, class_numbers = fit.at, fit.learner, fit.learnt, fit.class_numbers
    seconds = time.perf_counter() - began
    facts: dict[str, Any] = {
        name: before.facts[name] for name in LABEL_FREE_FACTS if name in before.facts
    }
    facts |= {"labels": len(at), "kernel_seconds": 0.0}
    facts |= {
        "train_seconds": seconds,
        "train_accuracy": learnt.trained.accuracy if learnt.trained else 1.0,
    }
    if before.test is not None:
        units, truth = before.test
        facts["accuracy"] = float(
            (class_numbers[learnt.model(units).argmax(1)] == truth).double().mean()
        )
    others, residual = learner.leave_one_out_predictions(at, fit.labels)
    others = outputs.new_zeros((len(at), classes)).index_copy_(1, class_numbers, others)
    facts |= leave_one_out_facts(
        others, residual, before.points[at], class_numbers[fit.labels], order.random_sample
    )
    rest = (
        torch.ones(len(before.points), dtype=torch.bool)
        .index_fill_(0, at, False)
        .nonzero()
        .squeeze(1)
    )
    rest = rest[
        rest < before.facts.get("random", len(before.points))
    ]  # points are in random order, up to these
    if len(rest):
        facts |= forecast_facts(
            learner.forecast_error(at, fit.labels, rest[:ERROR_ESTIMATE_ITEMS], votes=fit.votes)
        )
    alpha = outputs.new_zeros((len(at), classes)).index_copy_(1, class_numbers, fit.model.alpha)
    return replace(
        before,
        round=order.round,
        outputs=outputs,
        labels=dict(order.labels),
        noise=before.own_noise or learnt.noise,
        weights=learnt.mixture.weights,
        pushes=outputs.new_zeros(outputs.shape).index_copy_(0, at, alpha),
        facts=facts,
    )


def forecast_facts(outlook: ErrorForecast) -> dict[str, float]:
    """Return an error forecast as facts of a snapshot."""
    error = {f"error_{k}": v for k, v in outlook.error._asdict().items()}
    return {**error, "fall": outlook.fall, "spread": outlook.spread}


def leave_one_out_facts(
    others: Tensor,
    residual: Tensor,
    labelled: Tensor,
    labels: Tensor,
    random_sample: tuple[int, ...],
) -> dict[str, Any]:
    """Return leave-one-out predictions of all labels, and accuracies, as facts of a snapshot."""
    others = others[
        :, : max(int(labels.max()) + 1, 2)
    ]  # nobody can speak for a class without a label
    size, guess = residual.norm(dim=1), others.argmax(1)
    facts: dict[str, Any] = {
        "second_look": [
            [
                int(p),
                int(c),
                int(g),
                round(float(r), 4),
                round(float(o[g]), 4),
                round(float(o[c]), 4),
            ]
            for p, c, g, r, o in zip(labelled, labels, guess, size, others, strict=True)
        ],
        "loo_all": float((guess == labels).double().mean()),
    }
    sample = torch.isin(labelled, torch.tensor(random_sample, dtype=torch.int64))
    judged = sample if random_sample else torch.ones_like(sample)
    facts["loo"] = float((guess == labels)[sample].double().mean()) if random_sample else None
    facts["loo_error"] = float(size[judged].square().mean())
    return facts
