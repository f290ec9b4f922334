"""Who labels what: the model, a language model or a person, for the least money.

Every item has up to three ways to a class, each with a price and a probability that the class is
right: it is left as predicted (free), the language model is asked, or a person is. The accuracy of
the whole is the mean of these probabilities. The cheapest split for every accuracy follows from the
upper hull of each item's ways in the plane of price and probability: the steps along all hulls, in
the order of probability gained per unit of price, are the curve. A point of it is the best split
for its cost (the linear relaxation of a knapsack with choices); between two points it is one item
away from the best at most.
"""

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from labelahead.data.table_writer import write_csv
from labelahead.errors import InputError, count_noun, did_you_mean
from labelahead.inference.exact_model import ExactModel
from labelahead.inference.label_fusion import (
    FusedLabels,
    LabelEvidence,
    expect_accuracy,
    fuse_labels,
)
from labelahead.inference.sources import Annotations
from labelahead.learner.config import Campaign, Progress
from labelahead.learner.labelling_query import (
    CollectedLabels,
    collect_labels_by_source,
    with_label_classes,
)
from labelahead.learner.preparation import PreparedCampaign, prepare_campaign, require_classes
from labelahead.learner.stopping import wilson_interval
from labelahead.models import EXACT

__all__ = [
    "HUMAN",
    "LABELLED",
    "LLM",
    "MODEL",
    "RouteCurve",
    "RouteGoal",
    "RouteReport",
    "RoutedItem",
    "compute_disagreement",
    "estimate_person_error",
    "format_routes",
    "plan_routes",
    "route_items",
]

LABELLED, MODEL, LLM, HUMAN = "labelled", "model", "llm", "human"
DEFAULT_TARGET = 0.95
MIN_LABELS = 10  # of people, to estimate how often the model and the guesses are right
MIN_OVERLAP = 20  # items with labels of several people, to estimate how often people are wrong
MIN_SOURCE_LABELS = 20  # of each of two people or more, to estimate it without such items
MAX_PERSON_ERROR = 0.49


@dataclass(frozen=True)
class RouteGoal:
    """What labels cost, and what is wanted.

    Attributes:
        prices: Of one label by `human` and by `llm`, in any unit.
        target_accuracy: The cheapest split that is expected to reach this accuracy.
        budget: Or the most accurate split that costs at most so much.
        value: What a point of accuracy over the pool is worth: labels that cost more than they
            bring are left out. Instead of a target; a budget bounds the cost as well.
        person_error: Share of wrong labels of people; None: estimated from the labels of several
            people, if there are enough, else 0.
    """

    prices: Mapping[str, float]
    target_accuracy: float | None = None
    budget: float | None = None
    person_error: float | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        for name in self.prices:
            if name not in (HUMAN, LLM):
                raise InputError(
                    f"there is no source {name!r}; {did_you_mean(name, (HUMAN, LLM))}expected prices "
                    f"of {HUMAN} and {LLM}, such as {HUMAN}=0.10,{LLM}=0.001"
                )
        if HUMAN not in self.prices:
            raise InputError(f"the price of {HUMAN} is missing; expected {HUMAN}=0.10,{LLM}=0.001")
        for name, price in self.prices.items():
            if not (math.isfinite(price) and price >= 0):
                raise InputError(f"the price of {name} is {price}; expected a number >= 0")
        if self.target_accuracy is not None and not 0 < self.target_accuracy <= 1:
            raise InputError(
                f"the target accuracy is {self.target_accuracy}; expected a share such as 0.95"
            )
        for name, number in (("budget", self.budget), ("value", self.value)):
            if number is None:
                continue
            if not (math.isfinite(number) and number >= 0):
                raise InputError(f"the {name} is {number}; expected a number >= 0")
            if self.target_accuracy is not None:
                raise InputError(f"a target accuracy and a {name} are given; expected one of them")
        if self.person_error is not None and not 0 <= self.person_error < 0.5:
            raise InputError(
                f"the error rate of people is {self.person_error}; expected 0 up to below 0.5"
            )


@dataclass(frozen=True, eq=False)
class RouteCurve:
    """The best splits: after step i the cost is cost[i] and the expected accuracy accuracy[i].

    Attributes:
        cost: (s + 1,), not decreasing; [0] is without asking anybody.
        accuracy: (s + 1,), not decreasing.
        items: (s,) the item of each step.
        ways: (s,) the way that it takes from this step on, a column of the probabilities.
    """

    cost: Tensor
    accuracy: Tensor
    items: Tensor
    ways: Tensor

    def split(self, steps: int, n: int) -> Tensor:
        """Return the way (n,) of every item after so many steps; 0 at the start."""
        way = torch.zeros(n, dtype=torch.int64)
        for item, chosen in zip(
            self.items[:steps].tolist(), self.ways[:steps].tolist(), strict=True
        ):
            way[item] = chosen
        return way

    def steps_within(self, budget: float) -> int:
        """Return how many steps a budget allows."""
        allowed = self.cost <= budget * (1 + 1e-9) + 1e-12
        return int(allowed.sum()) - 1

    def steps_worth(self, value: float) -> int:
        """Return how many steps bring more than they cost, if a point of accuracy has this value.

        The curve is concave, so that value · accuracy − cost has one maximum.
        """
        worth = 100 * value * self.accuracy
        profit = worth - self.cost
        rounding = 1e-12 * max(float(worth[-1]), float(self.cost[-1]))
        return int((profit >= profit.max() - rounding).nonzero()[-1])

    def steps_to(self, accuracy: float) -> int | None:
        """Return how many steps reach this accuracy; None if none do."""
        reached = (self.accuracy >= accuracy - 1e-12).nonzero()
        return int(reached[0]) if len(reached) else None


@dataclass(frozen=True)
class RoutedItem:
    """An item, who labels it, and why."""

    id: str
    route: str  # LABELLED, MODEL, LLM or HUMAN
    prediction: str  # the most probable class now
    probability: float  # that it is right, as of now
    reason: str


@dataclass(frozen=True, eq=False)
class RouteReport:
    """The split of a pool.

    Attributes:
        items: One entry per item of the pool.
        curve: Accuracy against cost.
        steps: Number of steps of the curve that the split takes.
        guess_accuracy: Share of right guesses with its 95 % interval, on items that have a label,
            and the number of these.
        routes: Route -> number of items, expected accuracy, cost.
        person_error: Share of wrong labels of people that was used.
        person_error_note: Where it comes from, for the user.
        points: (cost, expected accuracy, items for the language model, items for people) of a few
            splits along the curve.
        notes: For the user.
    """

    items: tuple[RoutedItem, ...]
    curve: RouteCurve
    steps: int
    guess_accuracy: tuple[float, float, float, int]
    person_error: float
    person_error_note: str
    routes: Mapping[str, tuple[int, float, float]]
    points: tuple[tuple[float, float, int, int], ...]
    notes: tuple[str, ...]

    @property
    def accuracy(self) -> float:
        """Expected accuracy of the split."""
        return float(self.curve.accuracy[self.steps])

    @property
    def cost(self) -> float:
        """Cost of the split."""
        return float(self.curve.cost[self.steps])


def plan_routes(probability: Tensor, price: Tensor) -> RouteCurve:
    """Return the best splits for every cost.

    Args:
        probability: (n, W) that the class is right, by each way; NaN: the way is not possible for
            the item. Column 0 is always possible.
        price: (n, W) of each way; column 0 is free.
    """
    steps: list[tuple[float, int, int, float, float]] = []
    for item, (right, cost) in enumerate(zip(probability.tolist(), price.tolist(), strict=True)):
        for efficiency, way, more_cost, more_right in _hull_steps(right, cost):
            steps.append((-efficiency, item, way, more_cost, more_right))
    # Stable: the steps of an item keep their order, since their efficiency falls.
    steps.sort(key=lambda step: step[0])
    n = len(probability)
    added = torch.tensor([[0.0, 0.0], *([s[3], s[4]] for s in steps)], dtype=torch.float64)
    total = added.cumsum(0)
    accuracy = (float(probability[:, 0].double().sum()) + total[:, 1]) / max(n, 1)
    items = torch.tensor([s[1] for s in steps], dtype=torch.int64)
    return RouteCurve(
        total[:, 0], accuracy, items, torch.tensor([s[2] for s in steps], dtype=torch.int64)
    )


def _hull_steps(right: list[float], cost: list[float]) -> list[tuple[float, int, float, float]]:
    """Return the steps along the upper hull of one item: efficiency, way, added cost, added share."""
    steps: list[tuple[float, int, float, float]] = []
    current = 0
    while True:
        best = (0.0, current)
        for way in range(len(right)):
            gain, price = right[way] - right[current], cost[way] - cost[current]
            if not gain > 1e-12 or price < 0:
                continue
            best = max(best, (math.inf if price == 0 else gain / price, way))
        if best[1] == current:
            return steps
        way = best[1]
        steps.append((best[0], way, cost[way] - cost[current], right[way] - right[current]))
        current = way


def route_items(
    campaign: Campaign,
    goal: RouteGoal,
    *,
    labels: str | Path | None = None,
    progress: Progress | None = None,
) -> RouteReport:
    """Split a pool into what the model is sure of, what a language model and what people label.

    Args:
        campaign: The configuration; `data.guesses` names one column or file of guesses.
        goal: Prices, and an accuracy or a budget.
        labels: A file of people's labels; default: the labels in the data.
        progress: Called with the stage, the work done and its total.

    Raises:
        InputError: If there are no guesses, few labels, or the target cannot be reached.
    """
    report = progress or (lambda what, done, total: None)
    if len(campaign.data.guesses) != 1:
        raise InputError(
            f"{len(campaign.data.guesses)} sources of guesses are given; expected one: the column or "
            "file with what the language model says, by --guesses"
        )
    report("loading", 0, 1)
    prepared, given = _prepare(campaign, labels, progress)
    names = given.classes
    evidence = _read_evidence(prepared, given.labels, names)
    report("estimating", 0, 1)
    person_error, note = _find_person_error(goal, prepared, given)
    goal = replace(goal, person_error=person_error)
    evidence = replace(evidence, person_error=person_error)
    units = _unit_rows(prepared, len(names))
    fused = fuse_labels(units, evidence, len(names))
    probability, price = _compare_ways(fused, evidence, goal)
    curve = plan_routes(probability, price)
    steps, notes = _choose_steps(curve, goal)
    built = _build_report(
        prepared, (evidence, fused), (probability, price), curve, steps, names, notes
    )
    return replace(built, person_error=person_error, person_error_note=note)


def _find_person_error(
    goal: RouteGoal, prepared: PreparedCampaign, given: CollectedLabels
) -> tuple[float, str]:
    """Return the share of wrong labels of people, and a sentence on where it comes from."""
    if goal.person_error is not None:
        return (
            goal.person_error,
            f"people: wrong in {goal.person_error:.1%} of their labels, as given",
        )
    items, classes = 0, len(given.classes)
    if given.annotations is not None:
        items, share = compute_disagreement(given.annotations)
        if items >= MIN_OVERLAP:
            error = estimate_person_error(items, share, classes)
            return error, (
                f"people: wrong in about {error:.1%} of their labels, since they disagree about "
                f"{share:.1%} of {items} items with labels of several people"
            )
        counts = torch.bincount(given.annotations.sources)
        if len(counts) > 1 and int(counts.min()) >= MIN_SOURCE_LABELS:
            error = _estimate_error_by_model(prepared, given)
            return error, (
                f"people: wrong in about {error:.1%} of their labels, by the model's estimate of "
                f"{len(counts)} sources"
            )
    return 0.0, (
        f"people: taken to be always right, since {count_noun(items, 'item has', 'items have')} labels "
        f"of several people (expected {MIN_OVERLAP} for an estimate; --person-error sets it)"
    )


def compute_disagreement(annotations: Annotations) -> tuple[int, float]:
    """Return the number of items with labels of several sources, and the share of pairs that differ."""
    said: dict[int, list[int]] = {}
    rows = zip(annotations.positions.tolist(), annotations.labels.tolist(), strict=True)
    for position, label in rows:
        said.setdefault(position, []).append(label)
    shares = []
    for labels in said.values():
        pairs = list(itertools.combinations(labels, 2))
        if pairs:
            shares.append(sum(a != b for a, b in pairs) / len(pairs))
    return len(shares), sum(shares) / max(len(shares), 1)


def estimate_person_error(items: int, disagreement: float, classes: int) -> float:
    """Return the error rate e of two people who disagree so often.

    Two independent labels, each wrong with probability e and then any other class, differ with the
    probability d = 2e − a e², a = C/(C−1). d is shrunk by half an item, so that agreement about few
    items does not make people infallible.
    """
    a = classes / (classes - 1)
    d = (disagreement * items + 0.5) / (items + 1)
    return min((1 - math.sqrt(max(1 - a * d, 0.0))) / a, MAX_PERSON_ERROR)


def _estimate_error_by_model(prepared: PreparedCampaign, given: CollectedLabels) -> float:
    """Return the share of wrong labels of all sources, as the exact learner estimates it."""
    learner = prepared.make_exact_learner(len(given.classes))
    learner = replace(learner, annotations=given.annotations)
    at = torch.tensor(sorted(given.labels))
    learner.fit(at, torch.tensor([given.labels[p] for p in at.tolist()]))
    found = learner.source_estimates
    if found is None:
        return 0.0
    wrong = float(((1 - found.accuracy) * found.counts).sum() / found.counts.sum())
    return min(wrong, MAX_PERSON_ERROR)


def _prepare(
    campaign: Campaign, labels: str | Path | None, progress: Progress | None
) -> tuple[PreparedCampaign, CollectedLabels]:
    """Return the data with guesses, and people's labels with the names of the classes."""
    whole = replace(campaign.data, test_fraction=0.0)
    source = with_label_classes(whole, labels, campaign.seed)
    prepared = prepare_campaign(replace(campaign, data=source), progress=progress)
    require_classes(prepared.task, "a route")
    given = collect_labels_by_source(prepared.data, prepared.answers, labels, source.classes)
    if prepared.campaign.model.name != EXACT or prepared.guesses is None:
        raise InputError(
            f"routes need the model {EXACT}, not {prepared.campaign.model.name}; expected --model "
            f"{EXACT}, or an embedding"
        )
    if len(given.labels) < MIN_LABELS:
        many = count_noun(len(given.labels), "item has", "items have")
        raise InputError(
            f"{many} a label by a person; expected at least {MIN_LABELS}, from which "
            "the accuracy of the model and of the guesses is estimated: label some with `labelahead "
            "label`"
        )
    return prepared.for_classes(given.classes), replace(given, classes=tuple(given.classes))


def _read_evidence(
    prepared: PreparedCampaign, people: Mapping[int, int], names: Sequence[str]
) -> LabelEvidence:
    assert prepared.guesses is not None
    n, classes = len(prepared.data), len(names)
    label = torch.full((n,), -1, dtype=torch.int64)
    for position, number in people.items():
        label[position] = number
    deviations = prepared.guesses.deviations.double().view(n, -1, classes)[:, 0]
    given = deviations.abs().sum(1) > 0
    confidence, guess = (deviations + 1 / classes).max(1)
    if not bool((given & (label >= 0)).any()):
        raise InputError(
            "no item has both a label and a guess; expected some, from which the accuracy of the "
            "guesses is estimated: label a few of the items that have a guess"
        )
    return LabelEvidence(label, torch.where(given, guess, -1), confidence)


def _unit_rows(prepared: PreparedCampaign, classes: int) -> Tensor:
    """Return the unit features (n, d) of the exact learner, without the guesses."""
    model = prepared.make_exact_learner(classes).blank_model
    assert isinstance(model, ExactModel)
    return model.take_features(model.normalise_rows(prepared.rows)).cpu().double()


def _compare_ways(
    fused: FusedLabels, evidence: LabelEvidence, goal: RouteGoal
) -> tuple[Tensor, Tensor]:
    """Return the probability of being right and the price of every way: (n, 3) each.

    Ways: as it is now, the language model, a person. Guesses that are there are free.
    """
    n, person_error = len(fused.probabilities), goal.person_error or 0.0
    probability = torch.full((n, 3), math.nan, dtype=torch.float64)
    labelled = evidence.people >= 0
    now = fused.probabilities.max(1).values
    probability[:, 0] = torch.where(labelled, now.clamp_min(1 - person_error), now)
    open_ = (~labelled & (evidence.guesses < 0)).nonzero()[:, 0]
    if LLM in goal.prices and len(open_):
        probability[open_, 1] = expect_accuracy(
            fused.probabilities[open_], fused.confusion, fused.temperature
        )
    probability[~labelled, 2] = 1 - person_error
    price = torch.tensor([0.0, goal.prices.get(LLM, 0.0), goal.prices[HUMAN]], dtype=torch.float64)
    return probability, price.expand(n, 3)


def _choose_steps(curve: RouteCurve, goal: RouteGoal) -> tuple[int, tuple[str, ...]]:
    if goal.value is not None:
        return _choose_worthwhile_steps(curve, goal, goal.value)
    if goal.budget is not None:
        return curve.steps_within(goal.budget), ()
    target = DEFAULT_TARGET if goal.target_accuracy is None else goal.target_accuracy
    steps = curve.steps_to(target)
    if steps is not None:
        return steps, ()
    most, cost = float(curve.accuracy[-1]), float(curve.cost[-1])
    text = f"an accuracy of {target:.1%} cannot be reached: at most {most:.1%} for {cost:.2f}"
    if goal.target_accuracy is None:
        return len(curve.items), (f"{text}, which is shown",)
    raise InputError(f"{text}; expected a lower target, or people with fewer errors")


def _choose_worthwhile_steps(
    curve: RouteCurve, goal: RouteGoal, value: float
) -> tuple[int, tuple[str, ...]]:
    """Return the steps that are worth their price and fit into the budget, and notes on it."""
    steps = curve.steps_worth(value)
    within = steps if goal.budget is None else curve.steps_within(goal.budget)
    if within < steps:
        more = float(curve.cost[steps])
        return within, (f"the budget ends before the value: labels for {more:.2f} are worth it",)
    if steps == len(curve.items):
        return steps, ()
    cost, gain = (float(part[steps + 1] - part[steps]) for part in (curve.cost, curve.accuracy))
    note = (
        f"the next label costs {cost / (100 * gain):.3g} per point of accuracy, more than {value:g}"
    )
    return steps, (f"{note}: no further one is asked for",)


def _build_report(
    prepared: PreparedCampaign,
    beliefs: tuple[LabelEvidence, FusedLabels],
    ways: tuple[Tensor, Tensor],
    curve: RouteCurve,
    steps: int,
    names: Sequence[str],
    notes: tuple[str, ...],
) -> RouteReport:
    evidence, fused = beliefs
    probability, price = ways
    n = len(probability)
    way = curve.split(steps, n)
    items = _describe_items(prepared.data.ids, evidence, fused, probability, way, names)
    shown = [round(len(curve.items) * i / 8) for i in range(9)]
    splits = {i: curve.split(i, n) for i in sorted({*shown, steps})}
    points = tuple(
        (
            float(curve.cost[i]),
            float(curve.accuracy[i]),
            int((split == 1).sum()),
            int((split == 2).sum()),
        )
        for i, split in splits.items()
    )
    route_accuracy = probability.gather(1, way[:, None])[:, 0]
    paid = price.gather(1, way[:, None])[:, 0]
    routes = {}
    for route in (LABELLED, MODEL, LLM, HUMAN):
        at = torch.tensor([i for i, item in enumerate(items) if item.route == route]).long()
        if len(at):
            routes[route] = (len(at), float(route_accuracy[at].mean()), float(paid[at].sum()))
    both = (evidence.people >= 0) & (evidence.guesses >= 0)
    right, count = int((evidence.people == evidence.guesses)[both].sum()), int(both.sum())
    low, high = wilson_interval(right, count)
    return RouteReport(
        items, curve, steps, (right / count, low, high, count), 0.0, "", routes, points, notes
    )


def _describe_items(
    ids: Sequence[str],
    evidence: LabelEvidence,
    fused: FusedLabels,
    probability: Tensor,
    way: Tensor,
    names: Sequence[str],
) -> tuple[RoutedItem, ...]:
    sure, best = (part.tolist() for part in fused.probabilities.max(1))
    model_sure, model_best = (part.tolist() for part in fused.model_probabilities.max(1))
    people, guesses = evidence.people.tolist(), evidence.guesses.tolist()
    items = []
    for i, chosen in enumerate(way.tolist()):
        label, p = best[i], sure[i]
        if people[i] >= 0:
            label, p = people[i], float(probability[i, 0])
            route, reason = LABELLED, "a person labelled it"
        elif chosen == 2:
            route, reason = HUMAN, f"{p:.0%} sure without a person"
        elif chosen == 1:
            route = LLM
            reason = f"asking it raises {p:.0%} to an expected {float(probability[i, 1]):.0%}"
        elif guesses[i] >= 0 and label != model_best[i]:
            route = MODEL
            reason = (
                f"its guess, which is there, decides; the model alone says {names[model_best[i]]}"
            )
        elif guesses[i] >= 0:
            says = "agrees" if guesses[i] == label else f"says {names[guesses[i]]}"
            route, reason = MODEL, f"the model is {model_sure[i]:.0%} sure, the guess {says}"
        else:
            route, reason = MODEL, f"the model is {p:.0%} sure"
        items.append(RoutedItem(ids[i], route, names[label], round(p, 6), reason))
    return tuple(items)


def format_routes(items: Sequence[RoutedItem]) -> str:
    """Format the split as CSV: id, route, prediction, probability, reason."""
    text = io.StringIO(newline="")
    fields = ("id", "route", "prediction", "probability", "reason")
    write_csv(text, {name: [getattr(item, name) for item in items] for name in fields})
    return text.getvalue()
