"""Simulated campaigns in which labels have prices: accuracy against money.

Two sources give labels: a dear and careful one, called the person, and a cheap one, called the model.
The aim is the right class of every item of the pool, whoever or whatever gives it; accuracy is the
share of right ones. Strategies (`SOURCE_STRATEGIES`):

- `pairs` chooses pairs of item and source. The gain of a label is the expected number of items that
  become right, both of the item itself, Σ_l P(l) max_y P(y | l) − max_y P(y), and of all others, by the
  posterior covariance (`acquisition.sources`). A round asks the source of the pair with the largest
  gain per price about its best items.
- `threshold`: the model labels everything, the person then its least confident items.
- `majority`: three labels by the person, or three people like her, of random items.
- Any other strategy: the person labels the items that it queries, the exact learner predicts the rest.
"""

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelahead.acquisition.sources import LabelSource, source_view
from labelahead.data.guesses import is_guess_column, is_guess_file, resolve_guess_source
from labelahead.errors import InputError
from labelahead.files import make_folder, replace_file
from labelahead.inference.exact_model import ExactModel, exact
from labelahead.inference.label_fusion import (
    FusedLabels,
    LabelEvidence,
    expect_accuracy,
    fuse_labels,
)
from labelahead.learner.config import Campaign, Progress, read_toml, to_toml
from labelahead.learner.learner import Learner
from labelahead.learner.preparation import PreparedCampaign, prepare_campaign, require_classes
from labelahead.learner.simulated_source import (
    MAJORITY,
    PAIRS,
    THRESHOLD,
    SimulatedSource,
    require_two_sources,
)
from labelahead.models import EXACT
from labelahead.seeds import make_generator
from labelahead.simulation.source_labels import (
    SourceLabels,
    estimate_ease,
    give_labels,
    take_real_labels,
)

__all__ = [
    "MoneyRound",
    "SourceCampaign",
    "SourceResult",
    "build_source_campaign",
    "find_cost",
    "format_rounds",
    "is_source_campaign",
    "iterate_money_rounds",
    "prepare_sources",
    "resolve_sources",
    "run_with_sources",
]

MAJORITY_VOTES = 3  # of `majority`
ROUND_GROWTH = 0.4  # of a round, relative to the money spent so far
EVALUATION = 300  # items over which the gain of a label sums
DEFAULT_SHARE = 0.5  # of the price of labels of the person for all items: the default budget
MIN_GAIN = 1e-9  # below, a gain is rounding
COSTS_FILE, CONFIG_FILE = "costs.csv", "config.toml"


@dataclass(frozen=True)
class MoneyRound:
    """The state of a campaign after some labels.

    Attributes:
        number: Of the round.
        cost: Of all labels so far.
        accuracy: Share of the items of the pool whose class is right.
        labels: Labels so far by source.
    """

    number: int
    cost: float
    accuracy: float
    labels: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class SourceCampaign:
    """A pool, what the sources say about it, and the money.

    Attributes:
        rows: (n, d) features.
        units: (n, d) unit features.
        truth: (n,) class numbers.
        classes: C.
        person: The settings of the dearer source.
        model: Those of the cheaper one.
        person_labels: (v, n) labels of the person, and of further people like her.
        model_labels: Labels of the model.
        budget: Money.
        initial: Labels of the person, or as much money for labels of the model, in the first round.
        batch: Labels of the person that a later round has at least.
        seed: Of all choices.
    """

    rows: Tensor
    units: Tensor
    truth: Tensor
    classes: int
    person: SimulatedSource
    model: SimulatedSource
    person_labels: tuple[SourceLabels, ...]
    model_labels: SourceLabels
    budget: float
    initial: int
    batch: int
    seed: int

    @property
    def items(self) -> int:
        """The number of items, n."""
        return len(self.truth)

    def count_affordable(self, spent: float, price: float, *, first: bool = False) -> int:
        """Return how many labels of this price the next round has."""
        least = (self.initial if first else self.batch) * self.person.price
        left = self.budget - spent
        # The tolerance lets ten labels of 0.1 fit into a budget of 1.
        money = min(max(least, ROUND_GROWTH * spent), left) * (1 + 1e-9) + 1e-12
        if left <= 0 and price > 0:
            return 0
        wanted = self.items if price == 0 else int(money / price)
        return max(wanted, 1) if price <= left * (1 + 1e-9) + 1e-12 else 0

    def describe(self, number: int, people: int, models: int, right: Tensor) -> MoneyRound:
        """Return a round after so many labels of people and of the model."""
        cost = people * self.person.price + models * self.model.price
        labels = {self.person.name: people, self.model.name: models}
        return MoneyRound(number, cost, float(right.double().mean()), labels)


@dataclass(frozen=True, eq=False)
class SourceResult:
    """A finished campaign.

    Attributes:
        campaign: Its configuration.
        rounds: Its rounds.
        budget: The money that it could spend.
        folder: Where it is stored, if it is.
    """

    campaign: Campaign
    rounds: tuple[MoneyRound, ...]
    budget: float
    folder: Path | None = None

    def cost_of(self, accuracy: float) -> float | None:
        """Return what this accuracy cost; None: it was not reached."""
        return find_cost(self.rounds, accuracy)


def find_cost(rounds: Sequence[MoneyRound], accuracy: float) -> float | None:
    """Return the cost at which an accuracy is first reached, interpolated; None: it is not.

    >>> from labelahead.simulation.source_campaign import MoneyRound, find_cost
    >>> find_cost([MoneyRound(0, 1.0, 0.5, {}), MoneyRound(1, 2.0, 0.7, {})], 0.6)
    1.5
    """
    before = None
    for entry in rounds:
        if entry.accuracy >= accuracy:
            if before is None or entry.cost == before.cost:
                return entry.cost
            share = (accuracy - before.accuracy) / (entry.accuracy - before.accuracy)
            return before.cost + share * (entry.cost - before.cost)
        before = entry
    return None


def run_with_sources(
    campaign: Campaign,
    *,
    out: str | Path | None = None,
    progress: Progress | None = None,
    on_ready: Callable[[PreparedCampaign, SourceCampaign], None] | None = None,
    on_round: Callable[[MoneyRound], None] | None = None,
) -> SourceResult:
    """Run a simulated campaign with sources (`Campaign.sources`).

    Args:
        campaign: The configuration.
        out: A folder for the configuration and the table of costs.
        progress: Called with the stage, the work done and its total.
        on_ready: Called once the data are loaded.
        on_round: Called with every finished round.
    """
    folder = None if out is None else Path(out)
    campaign = resolve_sources(campaign)
    if folder is not None and (folder / CONFIG_FILE).exists():
        raise InputError(f"{folder} holds a campaign already; choose another folder")
    prepared = prepare_sources(campaign, progress)
    setting = build_source_campaign(prepared, campaign)
    if on_ready:
        on_ready(prepared, setting)
    if folder is not None:
        make_folder(folder)
        resolved = replace(prepared.campaign, data=replace(prepared.campaign.data, guesses=()))
        replace_file(folder / CONFIG_FILE, to_toml(resolved))
    rounds: list[MoneyRound] = []
    for entry in iterate_money_rounds(setting, str(campaign.asking.strategy)):
        rounds.append(entry)
        if folder is not None:
            replace_file(folder / COSTS_FILE, format_rounds(rounds))
        if on_round:
            on_round(entry)
    return SourceResult(campaign, tuple(rounds), setting.budget, folder)


def is_source_campaign(folder: Path) -> bool:
    """Return whether a folder holds a campaign of `run_with_sources`."""
    path = folder / CONFIG_FILE
    return path.is_file() and bool(read_toml(path).get("sources"))


def format_rounds(rounds: Sequence[MoneyRound]) -> str:
    """Return rounds as CSV: round, cost, accuracy, labels:SOURCE."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    names = list(rounds[0].labels) if rounds else []
    writer.writerow(["round", "cost", "accuracy", *(f"labels:{name}" for name in names)])
    for r in rounds:
        counts = [r.labels[name] for name in names]
        writer.writerow([r.number, f"{r.cost:.6g}", f"{r.accuracy:.6f}", *counts])
    return text.getvalue()


def resolve_sources(campaign: Campaign) -> Campaign:
    """Return the campaign with absolute paths of the files of its sources.

    Raises:
        InputError: Labels are neither a column nor a file.
    """
    resolved = []
    for source in campaign.sources:
        if source.labels and not (is_guess_column(source.labels) or is_guess_file(source.labels)):
            raise InputError(
                f"the labels of {source.name} are {source.labels!r}; expected a column or a file: "
                "write what a model says by `labelahead guess`"
            )
        error = source.error
        if isinstance(error, str):
            error = str(Path(error).expanduser().resolve())
        labels = resolve_guess_source(source.labels) if source.labels else ""
        resolved.append(replace(source, error=error, labels=labels))
    return replace(campaign, sources=tuple(resolved))


def prepare_sources(campaign: Campaign, progress: Progress | None = None) -> PreparedCampaign:
    """Load the data; real labels of sources are neither features nor prior knowledge."""
    require_two_sources(campaign.sources)
    if campaign.data.has_guesses:
        raise InputError(
            "a campaign has both sources and guesses; expected the language model as a source, with "
            "labels=COLUMN or FILE"
        )
    if campaign.model.name not in ("auto", EXACT):
        raise InputError(
            f"the model is {campaign.model.name}, but only the exact learner weighs the labels of "
            f"sources; expected --model {EXACT}, or none"
        )
    if campaign.budget.initial < 1:
        raise InputError("initial is 0; with sources expected 1 or more")
    real = tuple(dict.fromkeys(s.labels for s in campaign.sources if s.labels))
    exact_model = replace(campaign.model, name=EXACT)
    data = replace(campaign.data, guesses=real)
    prepared = prepare_campaign(replace(campaign, data=data, model=exact_model), progress=progress)
    require_classes(prepared.task, "a campaign with sources")
    if prepared.answers is None:
        raise InputError(
            f"{prepared.data.name} has no labels, which a simulation needs: name the column that has "
            "them with --target (data.target)"
        )
    return prepared


def build_source_campaign(prepared: PreparedCampaign, campaign: Campaign) -> SourceCampaign:
    """Draw the labels of the sources.

    Args:
        prepared: From `prepare_sources`.
        campaign: Its seed and budget count; those of `prepared` may differ.
    """
    data, answers, budget = prepared.data, prepared.answers, campaign.budget
    assert answers is not None
    usable = answers.has_label.clone()
    usable[data.test] = False
    at = usable.nonzero()[:, 0]
    classes = tuple(data.classes)
    if len(at) < max(2, budget.initial) or len(classes) < 2:
        raise InputError(
            f"{data.name} has {len(at)} labelled items of {len(classes)} classes outside the test "
            f"part; expected at least {max(2, budget.initial)} items, and two classes"
        )
    person, model = require_two_sources(campaign.sources)
    rows = prepared.rows.flatten(1)[:, : prepared.feature_width][at]
    learner = exact(rows, len(classes))
    assert isinstance(learner, ExactModel)
    units = learner.normalise_rows(rows).cpu().double()
    truth = answers.take(at)
    several = (
        person,
        replace(person, name=f"{person.name} 2"),
        replace(person, name=f"{person.name} 3"),
    )
    source_answers = _give_all(prepared, (*several, model), at, (units, truth), campaign.seed)
    votes, model_answers = tuple(source_answers[:MAJORITY_VOTES]), source_answers[MAJORITY_VOTES]
    money = budget.money
    if money is None:
        money = DEFAULT_SHARE * person.price * len(at)
    return SourceCampaign(
        rows, units, truth, len(classes), person, model, votes, model_answers,
        money, budget.initial, budget.retrain_every, campaign.seed,
    )  # fmt: skip


def _give_all(
    prepared: PreparedCampaign,
    sources: Sequence[SimulatedSource],
    at: Tensor,
    items: tuple[Tensor, Tensor],
    seed: int,
) -> list[SourceLabels]:
    """Return the labels of the sources about the items `at`, of which there are features and classes."""
    units, truth = items
    classes = tuple(prepared.data.classes)
    hard = None
    if any(s.errors == "hard" and not s.labels and s.error not in (0, 0.0) for s in sources):
        hard = estimate_ease(units, truth, len(classes))
    given = []
    for source in sources:
        if source.labels:
            found = prepared.data.guesses[source.labels]
            some = replace(found, probabilities=found.probabilities[at])
            given.append(take_real_labels(source, some))
        else:
            rng = np.random.default_rng([seed, *source.name.encode()])
            given.append(give_labels(source, truth, classes, rng, hard))
    return given


def iterate_money_rounds(setting: SourceCampaign, strategy: str) -> Iterator[MoneyRound]:
    """Yield the rounds of a campaign until the money is spent, or no label is worth its price."""
    if strategy == PAIRS:
        yield from _buy_pairs(setting)
    elif strategy == THRESHOLD:
        yield from _buy_below_threshold(setting)
    elif strategy == MAJORITY:
        yield from _buy_from_people(setting, "random", MAJORITY_VOTES)
    else:
        yield from _buy_from_people(setting, strategy, 1)


def _buy_from_people(setting: SourceCampaign, strategy: str, votes: int) -> Iterator[MoneyRound]:
    """The person labels the items that a strategy queries; the exact learner predicts the others."""
    labels = _take_majority([said.labels for said in setting.person_labels[:votes]])
    open_ = (labels >= 0).nonzero()[:, 0]
    rows, price = setting.rows, votes * setting.person.price
    unknown = (labels < 0).nonzero()[:, 0]
    learner = Learner(exact(rows, setting.classes), rows, strategy, test=unknown, seed=setting.seed)
    order = torch.randperm(len(open_), generator=make_generator(setting.seed, "initial"))
    chosen = open_[order[: setting.count_affordable(0.0, price, first=True)]].tolist()
    number = 0
    while chosen:
        learner.teach(chosen, labels[chosen])
        known = learner.pool.labelled
        predicted = learner.predict().argmax(1).cpu()
        predicted[known] = labels[known]
        yield setting.describe(number, votes * len(known), 0, predicted == setting.truth)
        count = min(setting.count_affordable(price * len(known), price), len(open_) - len(known))
        chosen = learner.query(count) if count else []
        number += 1


def _take_majority(said: Sequence[Tensor]) -> Tensor:
    """Return the class (n,) that most people give, the first one's if all differ."""
    votes = torch.stack(list(said))  # (v, n)
    agreeing = (votes[:, None] == votes).sum(1)  # of each label, with how many others
    return votes.gather(0, agreeing.argmax(0)[None])[0]


def _buy_below_threshold(setting: SourceCampaign) -> Iterator[MoneyRound]:
    """The model labels everything, the person its least confident items."""
    said, person = setting.model_labels, setting.person_labels[0].labels
    rng = make_generator(setting.seed, "initial")
    order = torch.randperm(setting.items, generator=rng)
    answered = order[said.available[order]]
    most = len(answered)
    if setting.model.price:
        most = min(most, int(setting.budget / setting.model.price * (1 + 1e-9)))
    answered = answered[:most]
    labels = torch.full_like(said.labels, -1).index_copy_(0, answered, said.labels[answered])
    confidence = torch.where(labels >= 0, said.confidence, -1.0)
    queue = confidence.argsort(stable=True)
    queue = queue[person[queue] >= 0]
    number = done = 0
    while True:
        spent = done * setting.person.price + most * setting.model.price
        yield setting.describe(number, done, most, labels == setting.truth)
        count = min(setting.count_affordable(spent, setting.person.price), len(queue) - done)
        if count < 1:
            return
        now = queue[done : done + count]
        labels[now] = person[now]
        done, number = done + count, number + 1


def _buy_pairs(setting: SourceCampaign) -> Iterator[MoneyRound]:
    """Pairs of item and source by expected gain per price, from all labels together."""
    people = torch.full((setting.items,), -1, dtype=torch.int64)
    guesses = people.clone()
    given = (people, guesses)
    sources = (setting.person, setting.model)
    available = (setting.person_labels[0], setting.model_labels)
    fused: FusedLabels | None = None
    number, spent = 0, 0.0
    while True:
        gains = _rank_first(setting) if fused is None else _compute_gains(setting, fused, given)
        for column, (labels, source) in enumerate(zip(given, available, strict=True)):
            gains[(labels >= 0) | ~source.available, column] = -math.inf
        chosen = _choose_source(setting, gains, spent, first=fused is None)
        if chosen is None:
            return
        which, at = chosen
        given[which][at] = available[which].labels[at]
        spent += len(at) * sources[which].price
        evidence = LabelEvidence(
            people, guesses, setting.model_labels.confidence, setting.person_labels[0].error
        )
        fused = fuse_labels(setting.units, evidence, setting.classes)
        right = fused.probabilities.argmax(1) == setting.truth
        counts = [int((labels >= 0).sum()) for labels in given]
        yield setting.describe(number, counts[0], counts[1], right)
        number += 1


def _rank_first(setting: SourceCampaign) -> Tensor:
    """Return the gains (n, 2) before any label: the same for all items, in random order."""
    n = setting.items
    errors = (setting.person_labels[0].error, setting.model_labels.error)
    own = [1 - e - 1 / setting.classes for e in errors]
    rank = torch.rand(n, generator=make_generator(setting.seed, "initial"), dtype=torch.float64)
    return torch.tensor(own, dtype=torch.float64) + 1e-6 * rank[:, None]


def _compute_gains(
    setting: SourceCampaign, fused: FusedLabels, given: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the expected number of items that become right by one more label, (n, 2)."""
    n, classes = setting.items, setting.classes
    before = fused.probabilities.max(1).values
    has_guesses = bool((given[1] >= 0).any())
    person_error = setting.person_labels[0].error
    model_error = float(fused.guess_error.mean()) if has_guesses else setting.model_labels.error
    model = fused.confusion if has_guesses else _spread_errors(model_error, classes)
    after = torch.stack(
        [
            expect_accuracy(fused.probabilities, _spread_errors(person_error, classes)),
            expect_accuracy(fused.probabilities, model, fused.temperature),
        ],
        1,
    )
    some = torch.randperm(n, generator=make_generator(setting.seed, "evaluation"))[:EVALUATION]
    view = source_view(
        fused.posterior, torch.arange(n), some.sort().values, label_noise=fused.label_noise
    )
    sources = [
        LabelSource("person", setting.person.price, person_error),
        LabelSource("model", setting.model.price, min(model_error, 1.0)),
    ]
    others = view.gains(sources) * (n / len(some))
    return (after - before[:, None]).clamp_min(0.0) + others


def _spread_errors(error: float, classes: int) -> Tensor:
    """Return the confusion matrix (C, C) of a source whose errors are equally likely."""
    off = torch.full((classes, classes), error / (classes - 1), dtype=torch.float64)
    return off.fill_diagonal_(1 - error)


def _choose_source(
    setting: SourceCampaign, gains: Tensor, spent: float, *, first: bool
) -> tuple[int, Tensor] | None:
    """Return the source of the pair with the largest gain per price, and its best items."""
    price = [setting.person.price, setting.model.price]
    counts = [setting.count_affordable(spent, p, first=first) for p in price]
    best, most = None, 0.0
    for which in range(2):
        top = float(gains[:, which].max())
        if counts[which] < 1 or top <= MIN_GAIN:
            continue
        ratio = math.inf if price[which] == 0 else top / price[which]
        if best is None or ratio > most:
            best, most = which, ratio
    if best is None:
        return None
    column = gains[:, best]
    count = min(counts[best], int((column > MIN_GAIN).sum()))
    return best, column.topk(count).indices
