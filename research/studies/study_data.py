"""What experiments work on: items with all their labels, in the open."""

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from labelahead.data import load
from labelahead.data.dataset import Answers
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import PreparedCampaign, prepare_campaign
from labelahead.seeds import make_generator
from labelahead.simulation.run import Result, run

__all__ = [
    "StudyData",
    "campaign",
    "items",
    "one_hot",
    "peak_memory",
    "prepare_with_answers",
    "share_right",
    "some",
]


@dataclass(frozen=True, eq=False)
class StudyData:
    """A data set, with its test part apart."""

    inputs: Tensor  # (n, ...)
    labels: Tensor  # (n,)
    test_inputs: Tensor  # (t, ...)
    test_labels: Tensor  # (t,)
    classes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self.inputs.shape[1:])


@lru_cache(maxsize=1)
def items(name: str, root: str | None = None, seed: int = 0) -> StudyData:
    """All labelled items of a data set by its name or path."""
    data, answers = load(name, root=root, seed=seed)
    if answers is None:
        raise InputError(f"{name} has no labels; a study needs a labelled data set")
    labels = answers.take(torch.arange(len(data)))
    pool = answers.has_label.clone().index_fill_(0, data.test, False)
    return StudyData(
        data.inputs[pool],
        labels[pool],
        data.inputs[data.test],
        labels[data.test],
        len(data.classes),
    )


def some(data: StudyData, n: int, seed: int, *names: str) -> Tensor:
    """(n,) positions, drawn at random."""
    size = len(data.inputs)
    if n > size:
        raise InputError(
            f"{n} items are asked for, and there are {size}: choose smaller settings or a larger "
            "data set"
        )
    return torch.randperm(size, generator=make_generator(seed, "items", *names))[:n]


def campaign(
    s: Any,
    seed: int,
    *,
    asking: Mapping[str, Any],
    training: Mapping[str, Any],
    batch: int,
    rounds: int,
) -> Result:
    """A campaign on the data and with the network of some settings, on one thread."""
    tables = {
        "seed": seed,
        "data": {"name": s.data, "root": s.root},
        "model": {"name": s.model, "width": s.width},
        "training": training,
        "asking": asking,
        "budget": {
            "initial": s.initial,
            "retrain_every": batch,
            "labels": s.initial + batch * rounds,
        },
        "threads": 1,
    }
    return run(parse_campaign(tables))


def prepare_with_answers(done: Result) -> tuple[PreparedCampaign, Answers]:
    """What a campaign was prepared from, with all answers."""
    ready = prepare_campaign(done.campaign)
    assert ready.answers is not None
    return ready, ready.answers


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """(n, C), float64."""
    return torch.nn.functional.one_hot(labels, classes).double()


def share_right(outputs: Tensor, labels: Tensor) -> float:
    """Accuracy of outputs (n, C)."""
    return float((outputs.argmax(1) == labels).double().mean())


def peak_memory() -> int:
    """Resident bytes of this process at its largest so far; mapped files count while in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
