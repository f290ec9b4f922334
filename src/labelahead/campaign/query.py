"""Real data, some labels: which items to label next, and what the network thinks of them."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from labelahead.acquisition.probability import probabilities
from labelahead.campaign.config import Campaign
from labelahead.campaign.loop import Progress
from labelahead.campaign.prepare import Prepared, prepare
from labelahead.data import Data, read_labels
from labelahead.data.classes import each_once
from labelahead.data.pool import Pool
from labelahead.data.text import guarded
from labelahead.errors import InputError, did_you_mean
from labelahead.strategies import find
from labelahead.strategies.propose import propose

__all__ = ["Question", "as_text", "questions", "with_classes"]

BEGINNING = 200  # characters of a text


@dataclass(frozen=True)
class Question:
    """An item to label next."""

    item: str  # file path, or row number
    position: int
    score: float
    guess: str | None  # the class the network would say; None before the first label
    probability: float | None
    text: str | None = None  # the beginning of what it says, where items are texts


def questions(
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
    tell("loading", 0, 1)
    ready = prepare(replace(campaign, data=replace(campaign.data, test_fraction=0.0)), progress=progress)
    pool, names, notes = _labelled(ready, labels, classes)
    count = max(len(names), 2)
    if n > len(pool.unlabelled):
        raise InputError(
            f"{n} items asked for, but {len(pool.unlabelled)} of {len(ready.data)} are unlabelled; "
            "expected at most that"
        )
    asking, strategy = campaign.asking, find(campaign.asking.strategy)
    if len(pool):
        tell("training", 0, 1)
    elif strategy.look_ahead and strategy.criterion_after(()) != strategy.criterion:
        # An untrained network's opinions are noise; what it holds alike is not.
        notes += (f"no label yet: items that cover the data, by resolve and not {strategy.name}",)
        asking = replace(asking, strategy="resolve", mode="greedy")
    learner = ready.learner(count)
    learnt = learner.learn(pool.labelled, pool.labels, seed=campaign.seed)
    notes += learnt.trained.notes if learnt.trained else ()
    tell("looking ahead", 0, n)
    chosen = propose(
        learnt.model,
        ready.inputs,
        pool,
        n,
        asking,
        loss=learnt.loss,
        seed=campaign.seed,
        fresh=learner.network,
        training=ready.training,
    )
    method = "softmax" if learnt.loss == "cross-entropy" else "simplex"
    guesses = probabilities(learnt.outputs(chosen.positions).double().cpu(), method)
    sure, best = guesses.max(1)
    rows = zip(chosen.positions.tolist(), chosen.scores.tolist(), strict=True)
    asked = [
        Question(
            item=ready.data.ids[position],
            position=position,
            score=score,
            guess=names[int(best[i])] if len(pool) else None,
            probability=round(float(sure[i]), 4) if len(pool) else None,
            text=_beginning(ready.data, position),
        )
        for i, (position, score) in enumerate(rows)
    ]
    return asked, replace(ready, notes=(*ready.notes, *notes, *chosen.notes))


def _beginning(data: Data, position: int) -> str | None:
    """What a text says first, on one line; a row number alone tells nobody what to label."""
    if data.rows is None or data.rows.text is None:
        return None
    words = " ".join(str(data.rows.columns[data.rows.text][position] or "").split())
    return words if len(words) <= BEGINNING else f"{words[:BEGINNING]} …"


def _labelled(
    ready: Prepared, labels: str | Path | None, classes: Sequence[str]
) -> tuple[Pool, tuple[str, ...], tuple[str, ...]]:
    """The pool with the labels that there are, the names of all classes, and what to say."""
    data, notes = ready.data, []
    pool, names = Pool(len(data), test=data.test), data.classes
    given: dict[int, int] = {}
    if ready.answers is not None:
        known = ready.answers.known.nonzero().squeeze(1)
        given = dict(zip(known.tolist(), ready.answers.take(known).tolist(), strict=True))
    if labels is not None:
        at, numbers, names = read_labels(labels, data)
        for position, number in zip(at.tolist(), numbers.tolist(), strict=True):
            if given.setdefault(position, number) != number:
                raise InputError(
                    f"{labels} says {names[number]!r} of {data.ids[position]}, the data themselves "
                    f"{names[given[position]]!r}; expected one label: correct one of them"
                )
    held = [p for p in given if p in set(data.test.tolist())]
    if held:
        notes.append(f"{len(held)} labels belong to the test part, which is not learnt from")
    at_hand = [p for p in given if p not in set(held)]
    if at_hand:
        pool.label(at_hand, [given[p] for p in at_hand])
    names = with_classes(names, classes)
    if len(pool) and len(names) < 2:
        raise InputError(f"all labels are {names[0]!r}; expected at least two classes: name the others with --classes")
    return pool, names, tuple(notes)


def with_classes(names: tuple[str, ...], wanted: Sequence[str]) -> tuple[str, ...]:
    """All class names; where a list was given, a label that is not on it is a slip."""
    if not wanted:
        return names
    wanted = each_once(wanted)
    for name in names:
        if name not in wanted:
            hint = did_you_mean(name, wanted)
            raise InputError(
                f"a label is {name!r}, but --classes names {', '.join(wanted)}; {hint}correct the "
                "label, or add the class to the list"
            )
    return (*names, *(c for c in wanted if c not in names))


def as_text(questions: Sequence[Question], form: str) -> str:
    """The questions as "csv" or "json"; with their texts where they are texts."""
    said = any(q.text is not None for q in questions)
    names = [f.name for f in fields(Question) if said or f.name != "text"]
    rows = [{name: value for name, value in asdict(q).items() if name in names} for q in questions]
    if form == "json":
        return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "text": guarded(row["text"])} if said else row for row in rows)
    return text.getvalue()
