"""Query items and sources of real data: which item to give to whom, by expected gain per price."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from labelahead.acquisition.sources import LabelSource, SourceQuery
from labelahead.data.pool import Pool
from labelahead.errors import InputError
from labelahead.inference.sources import Annotations
from labelahead.learner.guessers import describe_guesser
from labelahead.learner.learner import Learner
from labelahead.learner.preparation import PreparedCampaign
from labelahead.models import EXACT

__all__ = ["SourceGoal", "SourceSelection", "select_sources"]


@dataclass(frozen=True)
class SourceGoal:
    """What labels cost, and how many are wanted.

    Attributes:
        prices: Of one label by each source, in any unit.
        errors: Share of wrong labels of some sources; of the others it is estimated.
        budget: Total price, at most.
        value: What a point of accuracy over the pool is worth.
    """

    prices: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    budget: float | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        if not self.prices:
            raise InputError("there are no prices; expected some such as anna=0.10,llm=0.001")
        unknown = next((name for name in self.errors if name not in self.prices), None)
        if unknown is not None:
            raise InputError(
                f"{unknown!r} has an error rate, but no price; expected those of "
                f"{', '.join(self.prices)}"
            )
        for name, error in self.errors.items():
            if not 0 <= error < 1:
                raise InputError(
                    f"the error rate of {name} is {error}; expected a share of wrong labels, 0 up to "
                    "below 1"
                )
        for name, number in (("budget", self.budget), ("value", self.value)):
            if number is not None and not (math.isfinite(number) and number >= 0):
                raise InputError(f"the {name} is {number}; expected a number >= 0")


@dataclass(frozen=True)
class SourceSelection:
    """The labels to ask for, best first, the learner that chose them, and notes for the user."""

    queries: tuple[SourceQuery, ...]
    learner: Learner
    notes: tuple[str, ...]


def select_sources(
    prepared: PreparedCampaign,
    pool: Pool,
    annotations: Annotations | None,
    n: int,
    goal: SourceGoal,
    classes: int,
) -> SourceSelection:
    """Select up to n labels to ask for, and of whom; items that have a label are candidates, too.

    Args:
        prepared: The data, with the exact learner.
        pool: The labels.
        annotations: All labels by source; None: they have one source.
        n: Number of labels, at most.
        goal: Prices, error rates, and a budget or a value.
        classes: Number of classes.

    Raises:
        InputError: The model is a network, or the error rate of a source is not known.
    """
    if prepared.campaign.model.name != EXACT:
        raise InputError(
            f"prices of sources need the model {EXACT}, not {prepared.campaign.model.name}; expected "
            f"--model {EXACT}, or an embedding"
        )
    if prepared.guesses is not None:
        both = [n for n in map(describe_guesser, prepared.guesses.names) if n in goal.prices]
        if both:
            raise InputError(
                f"{both[0]} is both a guesser and a source with a price; expected one of them: what it "
                "said as rows of the label file with this annotator, or no price"
            )
    asking = prepared.campaign.asking
    learner = Learner(
        prepared.make_exact_learner(classes).network(0),
        prepared.inputs,
        asking,
        test=prepared.data.test,
        seed=prepared.campaign.seed,
    )
    if annotations is not None:
        for number, name in enumerate(annotations.names):
            own = annotations.sources == number
            # Labels without a name come first, since names are sorted: each is its item's first.
            learner.teach(annotations.positions[own], annotations.labels[own], name or None)
    known = set(learner.pool.labelled.tolist())
    rest = [i for i, p in enumerate(pool.labelled.tolist()) if p not in known]
    if rest:
        learner.teach(pool.labelled[rest], pool.labels[rest])
    sources, notes = _describe_sources(learner, annotations, goal)
    found = learner.query_sources(sources, n, budget=goal.budget, value=goal.value)
    if len(found) < n:
        notes += (
            f"{len(found)} labels instead of {n}: no other is worth its price, or fits into the budget",
        )
    return SourceSelection(tuple(found), learner, notes)


def _describe_sources(
    learner: Learner, annotations: Annotations | None, goal: SourceGoal
) -> tuple[list[LabelSource], tuple[str, ...]]:
    """Return the sources with prices and error rates, and notes about where these come from."""
    estimates = learner.source_accuracy()
    labelled = set() if annotations is None else set(annotations.names)
    dearest = max(goal.prices, key=goal.prices.__getitem__)
    sources, notes = [], []
    for name, price in goal.prices.items():
        if name in goal.errors:
            error = goal.errors[name]
        elif name in estimates:
            error = 1 - estimates[name].accuracy
            notes.append(
                f"{name}: an estimated {error:.0%} of {estimates[name].labels} labels are wrong"
            )
        elif name in labelled or name == dearest:
            error = 0.0
            notes.append(f"{name} counts as careful; --error-rate {name}=0.05 says otherwise")
        else:
            raise InputError(
                f"{name} has no label yet from which its error rate could be estimated; expected it "
                f"by --error-rate {name}=0.25"
            )
        sources.append(LabelSource(name, price, error))
    return sources, tuple(notes)
