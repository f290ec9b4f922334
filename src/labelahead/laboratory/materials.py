"""What experiments work on: items with all their labels, in the open."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from labelahead.data import load
from labelahead.errors import InputError
from labelahead.situation import stream

__all__ = ["Items", "items", "one_hot", "some"]


@dataclass(frozen=True, eq=False)
class Items:
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
def items(name: str, root: str | None = None, seed: int = 0) -> Items:
    """All labelled items of a data set by its name or path."""
    data, answers = load(name, root=root, seed=seed)
    if answers is None:
        raise InputError(f"{name} has no labels; a study needs a labelled data set")
    labels = answers.take(torch.arange(len(data)))
    pool = answers.known.clone().index_fill_(0, data.test, False)
    return Items(
        data.inputs[pool], labels[pool], data.inputs[data.test], labels[data.test],
        len(data.classes),
    )  # fmt: skip


def some(found: Items, n: int, seed: int, *names: str) -> Tensor:
    """(n,) positions, drawn at random."""
    if n > len(found.inputs):
        raise InputError(
            f"{n} items are asked for, and there are {len(found.inputs)}: choose smaller settings "
            "or a larger data set"
        )
    return torch.randperm(len(found.inputs), generator=stream(seed, "items", *names))[:n]


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """(n, C), float64."""
    return torch.nn.functional.one_hot(labels, classes).double()
