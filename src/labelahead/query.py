"""Real data, some labels: which items to label next, and what the network thinks of them."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from labelahead.acquisition.probability import probabilities
from labelahead.campaign import Prepared, prepare
from labelahead.config import Campaign
from labelahead.data import read_labels
from labelahead.errors import InputError
from labelahead.loop import Progress
from labelahead.pool import Pool
from labelahead.propose import propose
from labelahead.train import predict, train

__all__ = ["Question", "as_text", "query"]


@dataclass(frozen=True)
class Question:
    """An item to label next."""

    item: str  # file path, or row number
    position: int
    score: float
    guess: str | None  # the class the network would say; None before the first label
    probability: float | None


def query(
    campaign: Campaign,
    n: int,
    *,
    labels: str | Path | None = None,
    classes: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[list[Question], Prepared]:
    """Train on the labels and ask for the n items that matter most, best first.

    labels: a file of `item,label`; default: the labels that the data carry themselves. classes:
    names of classes that may have no label yet.
    """
    tell = progress or (lambda what, done, total: None)
    whole = replace(campaign, data=replace(campaign.data, test_fraction=0.0))
    tell("loading", 0, 1)
    ready = prepare(whole, progress=progress)
    pool, names = _labelled(ready, labels, classes)
    count = max(len(names), 2)
    if n > len(pool.unlabelled):
        raise InputError(
            f"{n} items asked for, but {len(pool.unlabelled)} of {len(ready.data)} are unlabelled; "
            "expected at most that"
        )
    model = ready.network(count, campaign.seed).to(ready.device).eval()
    asking = campaign.asking
    if len(pool):
        tell("training", 0, 1)
        labelled = ready.inputs[pool.labelled]
        train(model, labelled, pool.labels, count, ready.training, seed=campaign.seed)
    else:  # an untrained network's opinions are noise: spread out instead
        asking = replace(asking, strategy="variance", mode="greedy")
    tell("looking ahead", 0, n)
    loss = ready.training.loss
    found = propose(model, ready.inputs, pool, n, asking, loss=loss, seed=campaign.seed)
    method = "softmax" if loss == "cross-entropy" else "simplex"
    guesses = probabilities(predict(model, ready.inputs[found.positions]).double().cpu(), method)
    sure, best = guesses.max(1)
    rows = zip(found.positions.tolist(), found.scores.tolist(), strict=True)
    return [
        Question(
            item=ready.data.ids[position],
            position=position,
            score=score,
            guess=names[int(best[i])] if len(pool) else None,
            probability=round(float(sure[i]), 4) if len(pool) else None,
        )
        for i, (position, score) in enumerate(rows)
    ], ready


def _labelled(
    ready: Prepared, labels: str | Path | None, classes: Sequence[str]
) -> tuple[Pool, tuple[str, ...]]:
    """The pool with the labels that there are, and the names of all classes."""
    pool, names = Pool(len(ready.data)), ready.data.classes
    if labels is not None:
        at, numbers, names = read_labels(labels, ready.data)
        if len(at):
            pool.label(at, numbers)
    elif ready.answers is not None:
        known = ready.answers.known.nonzero().squeeze(1)
        if len(known):
            pool.label(known, ready.answers.take(known))
    names = (*names, *(c for c in dict.fromkeys(classes) if c not in names))
    if len(pool) and len(names) < 2:
        raise InputError(
            f"all labels are {names[0]!r}; expected at least two classes: name the others "
            "with --classes"
        )
    return pool, names


def as_text(questions: Sequence[Question], form: str) -> str:
    """The questions as "csv" or "json"."""
    rows = [asdict(q) for q in questions]
    if form == "json":
        return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(Question)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
