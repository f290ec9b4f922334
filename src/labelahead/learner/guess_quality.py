"""What a guesser is worth: how often it is right, in labels, and where it is wrong.

A guesser and the learner without guesses are compared on the same labelled items, so that it does
not matter that queried items are harder than most. The learner sees every k-th label, for several
k, and predicts the others; the guesser is worth as many labels as the learner needs to be right as
often.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from labelahead.errors import count_noun
from labelahead.gp.nystrom import evenly_spaced
from labelahead.inference.exact_model import ExactModel
from labelahead.inference.mixture import (
    MAX_SELECTION_LABELS,
    find_canonical_order,
    mix_kernels,
    solve_leave_one_out,
)
from labelahead.inference.trust import summarise_trust
from labelahead.learner.stopping import wilson_interval

__all__ = [
    "MIN_LABELS_FOR_WORTH",
    "GuesserQuality",
    "assess_guessers",
    "compute_hold_out",
    "describe_states",
]

MIN_LABELS_FOR_WORTH = 10
MAX_CONFUSIONS = 3  # shown to the user
MIN_TRAINING_LABELS = 2


@dataclass(frozen=True)
class GuesserQuality:
    """A guesser, judged by the labelled items it has guesses about.

    Attributes:
        name: For people.
        right: How many guesses were right.
        count: How many there were.
        trust: What a guess adds to its own class.
        worth: Number of labels with which the learner alone is right as often; None with few labels.
        relation: "about", "at least" or "fewer than" so many labels.
        mistakes: The most frequent ones: class guessed, class of the label, number of items.
    """

    name: str
    right: int
    count: int
    trust: float
    worth: int | None
    relation: str
    mistakes: tuple[tuple[int, int, int], ...]

    def describe(self, classes: Sequence[str]) -> str:
        """Return a sentence for people, given the names of the classes."""
        low, high = wilson_interval(self.right, self.count)
        said = "; ".join(f"{classes[g]} for {classes[t]} ({n})" for g, t, n in self.mistakes)
        worth = ""
        if self.worth is not None:
            worth = f", worth {self.relation} {count_noun(self.worth, 'label')}"
        return (
            f"{self.name}: right for {self.right} of {count_noun(self.count, 'labelled item')} "
            f"({low:.0%} to {high:.0%}; queried items are harder than most){worth}, "
            f"trust {self.trust:.2f}" + (f"; where they are wrong: {said}" if said else "")
        )

    def to_state(self, class_numbers: Sequence[int]) -> dict[str, Any]:
        """Return it as JSON, with these numbers of the classes."""
        numbers = [(class_numbers[g], class_numbers[t], n) for g, t, n in self.mistakes]
        return {**vars(self), "mistakes": [list(row) for row in numbers]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "GuesserQuality":
        """Rebuild it from `to_state`."""
        mistakes = tuple((g, t, n) for g, t, n in state["mistakes"])
        return cls(**{**state, "mistakes": mistakes})


def assess_guessers(
    model: ExactModel, labels: Tensor, names: Sequence[str]
) -> tuple[GuesserQuality, ...]:
    """Judge every guesser by the labels of a fitted model.

    Args:
        model: Fitted on the labels.
        labels: (L,) classes or `NONE_OF_THESE`, in the order of the fit.
        names: Of the guessers, for people.
    """
    if not model.guess_width or not len(model.support):
        return ()
    order = find_canonical_order(model.take_features(model.support)).cpu()
    order = order[labels.cpu()[order] >= 0]
    if not len(order):
        return ()
    if len(order) > MAX_SELECTION_LABELS:
        order = order[evenly_spaced(len(order), MAX_SELECTION_LABELS)]
    units, truth = model.support[order], labels.cpu()[order]
    features = model.take_features(units).double()
    K = mix_kernels((features @ features.T).fill_diagonal_(1.0), model.get_mixture().weights).cpu()
    curve = []
    if len(order) >= MIN_LABELS_FOR_WORTH:
        curve = compute_hold_out(K, model.noise, truth, model.classes)
    blocks = model.take_guesses(units).cpu()
    weights = summarise_trust(model.trust).tolist()
    found = [
        _assess(name, block, truth, weight, curve)
        for name, block, weight in zip(names, blocks.unbind(1), weights, strict=True)
    ]
    return tuple(quality for quality in found if quality.count)


def describe_states(
    states: Sequence[Mapping[str, Any]] | None, classes: Sequence[str]
) -> list[str]:
    """Return the sentences on guessers stored by `GuesserQuality.to_state`."""
    return [GuesserQuality.from_state(state).describe(classes) for state in states or ()]


def _assess(
    name: str, block: Tensor, truth: Tensor, trust: float, curve: list[tuple[float, Tensor]]
) -> GuesserQuality:
    given = block.abs().sum(1) > 0
    guess = block.argmax(1)
    right, count = int((guess == truth)[given].sum()), int(given.sum())
    wrong = Counter(
        (int(g), int(t)) for g, t in zip(guess[given], truth[given], strict=True) if g != t
    )
    mistakes = tuple((g, t, n) for (g, t), n in wrong.most_common(MAX_CONFUSIONS))
    worth, relation = None, "about"
    if count >= MIN_LABELS_FOR_WORTH and curve:
        shares = [(n, float(accuracy[given].mean())) for n, accuracy in curve]
        worth, relation = _find_equal(right / count, shares)
    return GuesserQuality(name, right, count, trust, worth, relation, mistakes)


def compute_hold_out(
    K: Tensor, noise: float, labels: Tensor, classes: int
) -> list[tuple[float, Tensor]]:
    """Return how often every label is predicted by fewer labels.

    Args:
        K: (L, L) kernel of the labelled items.
        noise: Added to its diagonal.
        labels: (L,) classes.
        classes: Number of classes C.

    Returns:
        Numbers of labels, rising, each with the share (L,) of the predictions of every item that
        are right: one prediction by each part of the labels that does not hold the item.
    """
    targets = F.one_hot(labels, classes).double() - 1 / classes
    residual = solve_leave_one_out(K, noise, targets)[1]
    right = (residual + targets).argmax(1) == labels
    out = [(float(len(labels)), right.double())]
    parts = 2
    while len(labels) // parts >= MIN_TRAINING_LABELS:
        hits = torch.zeros(len(labels), dtype=torch.float64)
        for first in range(parts):
            some = torch.arange(first, len(labels), parts)
            alpha = solve_leave_one_out(K[some][:, some], noise, targets[some])[0]
            hit = ((K[:, some] @ alpha).argmax(1) == labels).double()
            hits += hit.index_fill_(0, some, 0.0)
        out.append((len(labels) / parts, hits / (parts - 1)))
        parts *= 2
    return out[::-1]


def _find_equal(share: float, curve: Sequence[tuple[float, float]]) -> tuple[int, str]:
    """Return the number of labels at which a learning curve reaches a share, and how it is meant."""
    before: tuple[float, float] | None = None
    for n, accuracy in curve:
        if accuracy >= share:
            if before is None:
                return math.ceil(n), "fewer than"
            part = (share - before[1]) / (accuracy - before[1])
            return round(before[0] * (n / before[0]) ** part), "about"
        before = (n, accuracy)
    return math.floor(curve[-1][0]), "at least"
