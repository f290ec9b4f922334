"""The model that the page's labels make, for people to take away."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from labelahead.campaign.config import Campaign, assemble
from labelahead.campaign.finished import BIASED, Finished, finish
from labelahead.campaign.prepare import prepare
from labelahead.errors import InputError
from labelahead.learners.exact import ExactLearner
from labelahead.learners.network import NetworkLearner
from labelahead.seeds import training_seed
from labelahead.web.assignment import Assignment
from labelahead.web.schedule import Schedule
from labelahead.web.session import opened

__all__ = ["page_model", "session_model"]


def session_model(folder: str | Path) -> Finished:
    """Learnt from all labels that a page has kept in this folder; no page may be open on it."""
    campaign = _settings(Path(folder))
    with opened(campaign, folder, test=campaign.data.test_fraction or None) as session:
        session.schedule.remember()
        return page_model(session.assignment, session.schedule)


def _settings(folder: Path) -> Campaign:
    """What the page was last opened with."""
    return assemble(folder / "session.toml", (), {})


def page_model(assignment: Assignment, schedule: Schedule) -> Finished:
    """Learnt from all labels that there are by now, as the page's own network is."""
    with assignment.lock:
        tally = assignment.tally
        labels, classes, trusted = dict(tally.labels), list(tally.classes), assignment.trusted(tally)
        last = schedule.rounds[-1] if schedule.rounds else {}
    if len(set(labels.values())) < 2:
        raise InputError(
            f"{len(labels)} labels of {len(set(labels.values()))} classes are there; expected labels of at least two "
            "classes: label some more items"
        )
    campaign = _settings(schedule.folder)
    ready = prepare(replace(campaign, threads=None))
    held = torch.tensor(sorted(assignment.closed), dtype=torch.int64)
    ready = replace(ready, data=replace(ready.data, test=held))
    learner, seed = ready.learner(max(len(classes), 2)), training_seed(campaign.seed, 0)
    at, given = torch.tensor(list(labels)), torch.tensor(list(labels.values()))
    learnt = learner.learn(at, given, seed=seed)
    if last.get("accuracy") is not None:
        accuracy = {"measured": last["accuracy"], "on": len(held), "labels": last["labels"]}
    else:
        accuracy = _estimated(learner, at, given, trusted, seed)
    return finish(ready, learnt.model, labels, classes, accuracy)


def _estimated(
    learner: NetworkLearner | ExactLearner, at: torch.Tensor, given: torch.Tensor, trusted: tuple[int, ...], seed: int
) -> dict[str, Any]:
    """By the other labels, of a random sample of the labelled items where there is one."""
    others, _ = learner.others_say(at, given, seed=seed)
    right = (others.argmax(1) == given).double()
    if not trusted:
        return {"estimated": float(right.mean()), "how": BIASED}
    sample = torch.isin(at, torch.tensor(trusted))
    return {
        "estimated": float(right[sample].mean()),
        "how": f"by leaving out in turn each of {int(sample.sum())} labels that were drawn at random",
    }
