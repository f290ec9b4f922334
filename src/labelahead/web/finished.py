"""The model that the page's labels make, for people to take away."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelahead.campaign.config import Campaign, assemble
from labelahead.campaign.finished import BIASED, Finished, finish
from labelahead.campaign.prepare import Prepared
from labelahead.data.dataset import UNKNOWN
from labelahead.errors import InputError
from labelahead.learners.exact import ExactLearner
from labelahead.learners.network import NetworkLearner
from labelahead.scale.store import is_store
from labelahead.seeds import stream, training_seed
from labelahead.web.assignment import Assignment
from labelahead.web.refresh import JUDGED
from labelahead.web.schedule import Schedule
from labelahead.web.session import opened
from labelahead.web.workshop import Workshop

__all__ = ["page_model", "session_model"]


def session_model(folder: str | Path) -> Finished:
    """Learnt from all labels that a page has kept in this folder; no page may be open on it."""
    campaign = _settings(Path(folder))
    _refuse_large(campaign)
    with opened(campaign, folder, test=campaign.data.test_fraction or None) as session:
        session.schedule.remember()
        return page_model(session.assignment, session.schedule)


def _settings(folder: Path) -> Campaign:
    """What the page was last opened with."""
    return assemble(folder / "session.toml", (), {})


def _refuse_large(campaign: Campaign) -> None:
    if is_store(campaign.data.name):
        raise InputError(
            f"{campaign.data.name} is a pool of millions, of which the page holds a part; export the labels, and "
            "have all items predicted by `labelahead pool predict`"
        )


def page_model(assignment: Assignment, schedule: Schedule) -> Finished:
    """Learnt from all labels that there are by now, as the page's own network is."""
    with assignment.lock:
        tally, opinion = assignment.tally, assignment.opinion
        number = {c: i for i, c in enumerate(tally.alive)}  # without classes that are no more
        labels = {p: number[c] for p, c in tally.labels.items()}
        classes = [tally.classes[c] for c in tally.alive]
        last = schedule.rounds[-1] if schedule.rounds else {}
    if len(set(labels.values())) < 2:
        raise InputError(
            f"{len(labels)} labels of {len(set(labels.values()))} classes are there; expected labels of at least two "
            "classes: label some more items"
        )
    campaign = replace(_settings(schedule.folder), threads=None)
    _refuse_large(campaign)
    held = dict.fromkeys(assignment.closed, UNKNOWN)
    workshop = Workshop(campaign, (assignment.items.data, None), held, assignment.broken)
    points, ready = workshop.prepared(labels, [] if opinion is None else opinion.snapshot.points.tolist())
    place = {p: i for i, p in enumerate(points.tolist())}
    labels = {p: c for p, c in labels.items() if p in place}  # of what can still be read
    learner, seed = ready.learner(max(len(classes), 2)), training_seed(campaign.seed, 0)
    at, given = torch.tensor([place[p] for p in labels]), torch.tensor(list(labels.values()))
    learnt = learner.learn(at, given, seed=seed)
    if last.get("accuracy") is not None:
        accuracy = {"measured": last["accuracy"], "on": len(held), "labels": last["labels"]}
    else:
        votes = torch.tensor([p not in tally.confirmed for p in labels])
        accuracy = _estimated(learner, at, given, ready, seed, votes)
    return finish(ready, learnt.model, labels, classes, accuracy, items=len(assignment.items))


def _estimated(
    learner: NetworkLearner | ExactLearner, at: Tensor, given: Tensor, ready: Prepared, seed: int, votes: Tensor
) -> dict[str, Any]:
    """Of the items that have no label; where there are none, of those that have. Nothing for a trained network."""
    if not isinstance(learner, ExactLearner):
        return {}  # its outputs have seen the labels: only items that were kept aside tell its accuracy
    others = torch.ones(len(ready.data), dtype=torch.bool).index_fill_(0, torch.cat([at, ready.data.test]), False)
    rest = others.nonzero().flatten()
    if not len(rest):
        right = learner.others_say(at, given, seed=seed)[0].argmax(1) == given
        return {"estimated": float(right.double().mean()), "how": BIASED}
    judged = rest[torch.randperm(len(rest), generator=stream(seed, "judged"))[:JUDGED]]
    error = learner.outlook(at, given, judged, seed=seed, votes=votes).error
    interval = f"{1 - error.high:.1%} to {1 - error.low:.1%}"
    return {"estimated": 1 - error.rate, "how": f"for items without a label, by {len(at)} labels ({interval})"}
