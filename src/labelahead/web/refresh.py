"""What labels do to a snapshot: of the exact learner all of it, in milliseconds and without any training."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labelahead.learners.exact import MANY, ExactLearner
from labelahead.learners.outlook import Outlook
from labelahead.web.snapshot import Snapshot

__all__ = ["Order", "refreshed", "second_look", "told"]

KEPT = ("map", "unreadable", "whole", "random", "scored")  # facts that no label changes
JUDGED = 1000  # items by which the error of the pool is estimated


@dataclass(frozen=True)
class Order:
    """Learn these labels. round 0: learn none, what is held before any is asked for."""

    round: int
    labels: tuple[tuple[int, int], ...]  # (position, class) in the order they were given
    classes: int
    trusted: tuple[int, ...] = ()  # positions of labelled items that are a random sample of all
    confirmed: tuple[int, ...] = ()  # and of those that were confirmed among many


def refreshed(before: Snapshot, order: Order) -> Snapshot:
    """The exact learner's snapshot after these labels: its kernel chosen anew, and all that is told of it."""
    assert before.units is not None
    classes = max(order.classes, 2)
    outputs = torch.full((len(before.points), classes), 1 / classes, dtype=torch.float64)
    if not order.round:
        return replace(before, outputs=outputs)
    began = time.perf_counter()
    place = {p: i for i, p in enumerate(before.points.tolist())}
    known = [(place[p], c) for p, c in order.labels if p in place]
    at, labels = torch.tensor([i for i, _ in known]), torch.tensor([c for _, c in known])
    learner = ExactLearner(before.units, classes, before.units.new_zeros(before.units.shape[1]), most=MANY)
    learnt = learner.learn(at, labels, previous=before.facts.get("mixture"))
    seconds = time.perf_counter() - began
    facts: dict[str, Any] = {name: before.facts[name] for name in KEPT if name in before.facts}
    facts |= {"labels": len(known), "kernel_seconds": 0.0}
    facts["mixture"] = {"mixture": learnt.kernel_model.mixture}  # where the next choice begins
    facts |= {"train_seconds": seconds, "train_accuracy": learnt.trained.accuracy if learnt.trained else 1.0}
    if before.test is not None:
        units, truth = before.test
        facts["accuracy"] = float((learnt.model(units).argmax(1) == truth).double().mean())
    others, residual = learner.others_say(at, labels)
    facts |= second_look(others, residual, before.points[at], labels, order.trusted)
    rest = torch.ones(len(before.points), dtype=torch.bool).index_fill_(0, at, False).nonzero().squeeze(1)
    rest = rest[rest < before.facts.get("random", len(before.points))]  # points are in random order, up to these
    if len(rest):
        votes = ~torch.isin(before.points[at], torch.tensor(order.confirmed, dtype=torch.int64))
        facts |= told(learner.outlook(at, labels, rest[:JUDGED], votes=votes))
    return replace(
        before,
        round=order.round,
        outputs=outputs,
        labels=dict(order.labels),
        noise=before.own_noise or learnt.noise,
        weights=learnt.mixture.weights,
        pushes=outputs.new_zeros(outputs.shape).index_copy_(0, at, learnt.kernel_model.alpha),
        facts=facts,
    )


def told(outlook: Outlook) -> dict[str, float]:
    """An outlook as facts."""
    error = {f"error_{k}": v for k, v in outlook.error._asdict().items()}
    return {**error, "fall": outlook.fall, "spread": outlook.spread}


def second_look(
    others: Tensor, residual: Tensor, labelled: Tensor, labels: Tensor, trusted: tuple[int, ...]
) -> dict[str, Any]:
    """What the other labels say of each: by leave-one-out of a learner that has not been trained on any."""
    others = others[:, : max(int(labels.max()) + 1, 2)]  # nobody can speak for a class without a label
    size, guess = residual.norm(dim=1), others.argmax(1)
    facts: dict[str, Any] = {
        "second_look": [
            [int(p), int(c), int(g), round(float(r), 4), round(float(o[g]), 4), round(float(o[c]), 4)]
            for p, c, g, r, o in zip(labelled, labels, guess, size, others, strict=True)
        ],
        "loo_all": float((guess == labels).double().mean()),
    }
    sample = torch.isin(labelled, torch.tensor(trusted, dtype=torch.int64))
    judged = sample if trusted else torch.ones_like(sample)
    facts["loo"] = float((guess == labels)[sample].double().mean()) if trusted else None
    facts["loo_error"] = float(size[judged].square().mean())
    return facts
