"""A whole campaign: train, test, ask, and again, until the budget is spent."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labelahead.advice import loo_estimate
from labelahead.config import Budget
from labelahead.errors import InputError, LabelaheadError
from labelahead.pool import Pool
from labelahead.propose import Query, propose
from labelahead.situation import Asking, stream
from labelahead.store import Label, Round, Store
from labelahead.train import Training, fresh_start, predict, train

__all__ = ["Labeller", "Plan", "Progress", "rounds", "training_seed"]

Labeller = Callable[[int], int]  # position -> class number: an oracle, or a person
Progress = Callable[[str, int, int], None]  # what is under way, done, of how many


@dataclass(frozen=True, eq=False)
class Plan:
    """All that the rounds depend on. The labels are known to `labeller` alone."""

    inputs: Tensor  # (n, ...)
    classes: int
    network: Callable[[int], nn.Module]  # seed -> a fresh network
    training: Training
    asking: Asking
    budget: Budget
    labeller: Labeller
    test: Tensor  # (t,) positions
    test_labels: Tensor  # (t,)
    closed: Tensor  # positions that cannot be asked for: the test items, and those without answer
    ids: Sequence[str] = ()  # names of the items, and of the classes, for the record
    names: Sequence[str] = ()
    seed: int = 0
    device: str = "cpu"


class State(NamedTuple):
    """What a finished round leaves behind, besides its record."""

    pool: Pool
    model: nn.Module


def rounds(
    plan: Plan,
    store: Store | None = None,
    progress: Progress | None = None,
    keep: Callable[[State], None] | None = None,
) -> Iterator[Round]:
    """The rounds of a campaign, each when it is finished; earlier ones of a resumed one first.

    Everything is drawn from the seed and the number of labels, so that a round begun again asks
    for the same items; answers that are on record are not asked for twice.
    """
    tell = progress or (lambda what, done, total: None)
    pool = Pool(len(plan.inputs), test=plan.closed)
    log = store.labels() if store else []
    done = store.rounds() if store else []
    answers = _Answers(plan, store, log)
    _first_labels(plan, pool, answers, tell)
    previous: dict[str, Tensor] | None = None
    for number in range(len(done)):
        for label in log:
            if label.round == number + 1 and done[number].asked:
                pool.label([label.position], [label.label])
        if number + 1 < len(done) or done[number].asked:
            yield done[number]
    left = min(plan.budget.labels - len(pool), len(pool.unlabelled))
    if done and done[-1].asked == 0 and left > 0:
        done = done[:-1]  # the budget has grown: the last round goes on asking
    elif done and done[-1].asked == 0:
        if keep and store:
            model = plan.network(training_seed(plan.seed, len(done) - 1))
            model.load_state_dict(store.weights(len(done) - 1))
            keep(State(pool, model.eval()))
        yield done[-1]
        return
    if done and store and plan.training.start != "cold":
        previous = store.weights(len(done) - 1)
    memory = done[-1].memory if done else None
    for number in range(len(done), len(plan.inputs)):
        model, entry = _round(plan, pool, number, previous, memory, store, answers, tell)
        previous = {k: v.detach().clone() for k, v in model.state_dict().items()}
        memory = entry.memory
        if keep:
            keep(State(pool, model))
        yield entry
        if entry.asked == 0:
            return


def _round(
    plan: Plan,
    pool: Pool,
    number: int,
    previous: dict[str, Tensor] | None,
    memory: Mapping[str, Any] | None,
    store: Store | None,
    answers: "_Answers",
    tell: Progress,
) -> tuple[nn.Module, Round]:
    seed = training_seed(plan.seed, number)
    tell("training", 0, 1)
    start = time.perf_counter()
    model = fresh_start(plan.network, previous, plan.training, seed=seed).to(plan.device)
    labelled, labels = pool.labelled, pool.labels
    trained = train(model, plan.inputs[labelled], labels, plan.classes, plan.training, seed=seed)
    seconds = {"train": time.perf_counter() - start}
    if store:
        store.save_weights(number, model.state_dict())
    start = time.perf_counter()
    accuracy = None
    if len(plan.test):
        tell("testing", 0, 1)
        guess = predict(model, plan.inputs[plan.test]).argmax(1).cpu()
        accuracy = float((guess == plan.test_labels).double().mean())
    seconds["test"] = time.perf_counter() - start
    count = min(plan.budget.labels - len(pool), plan.budget.retrain_every, len(pool.unlabelled))
    query = None
    if count > 0:
        query = _ask(plan, pool, model, number, count, memory, answers, tell)
        seconds |= query.seconds
    start = time.perf_counter()
    untrained = plan.network(seed).to(plan.device)
    x, random, notes, loo = plan.inputs[labelled], plan.budget.initial, trained.notes, None
    if query:
        try:
            loo = loo_estimate(untrained, x, labels, random)
        except LabelaheadError as error:  # advice only: strategies without a kernel go on
            notes = (*notes, f"no leave-one-out estimate: {error}")
    seconds["leave-one-out"] = time.perf_counter() - start
    entry = Round(
        number=number,
        labels=len(labelled),
        accuracy=accuracy,
        train_accuracy=trained.accuracy,
        train_loss=trained.loss,
        steps=trained.steps,
        asked=len(pool) - len(labelled),
        gain=query.gain if query else None,
        loo=loo.accuracy if loo else None,
        loo_error=loo.error if loo else None,
        seconds=seconds,
        notes=notes,
        memory=query.memory if query else None,
    )
    if store:
        store.add_round(entry)
    return model, entry


def _ask(
    plan: Plan,
    pool: Pool,
    model: nn.Module,
    number: int,
    count: int,
    memory: Mapping[str, Any] | None,
    answers: "_Answers",
    tell: Progress,
) -> Query:
    """Choose, get the labels and put them into the pool."""
    tell("looking ahead", 0, count)
    given: dict[int, int] = {}

    def ask(position: int) -> int:
        given[position] = answers(position, number + 1)
        tell("asking", len(given), count)
        return given[position]

    query = propose(
        model, plan.inputs, pool, count, plan.asking, loss=plan.training.loss, seed=plan.seed,
        ask=ask, fresh=plan.network, training=plan.training, memory=memory,
    )  # fmt: skip
    for position in query.positions.tolist():
        label = given[position] if position in given else ask(position)
        pool.label([position], [label])
    # Accepted labels are never lost, even if another machine's rounding now picks other items.
    for entry in answers.of_round(number + 1):
        if entry.position not in given:
            pool.label([entry.position], [entry.label])
    return query


def _first_labels(plan: Plan, pool: Pool, answers: "_Answers", tell: Progress) -> None:
    """Random items to begin with; `balanced`: the same number of every class, as far as found.

    `absent`: none of that many last classes, which only asking can find.
    """
    budget, free = plan.budget, pool.unlabelled
    if budget.initial > len(free):
        raise InputError(
            f"initial is {budget.initial}, but the pool has {len(free)} items; expected fewer"
        )
    order = free[torch.randperm(len(free), generator=stream(plan.seed, "initial"))].tolist()
    if budget.balanced or budget.absent:
        order = _arranged(plan, order)
    for position in order[: budget.initial]:
        pool.label([position], [answers(position, 0)])
        tell("first labels", len(pool), budget.initial)


def _arranged(plan: Plan, order: list[int]) -> list[int]:
    """Those of the items, in their order, that `balanced` and `absent` admit.

    A simulation's privilege: whoever labels for real cannot ask for a class.
    """
    budget, present = plan.budget, plan.classes - plan.budget.absent
    if present < 1:
        raise InputError(
            f"absent is {budget.absent}, but there are {plan.classes} classes; expected fewer, so "
            "that the initial labels are of some class"
        )
    classes = [plan.labeller(position) for position in order]
    admitted = [(p, c) for p, c in zip(order, classes, strict=True) if c < present]
    if budget.initial > len(admitted):
        raise InputError(
            f"initial is {budget.initial}, but without the last {budget.absent} classes (absent) "
            f"the pool has {len(admitted)} items; expected fewer initial labels or absent classes"
        )
    share = -(-budget.initial // present) if budget.balanced else budget.initial
    taken, found = [0] * present, []
    for position, label in admitted:
        if taken[label] < share:
            taken[label] += 1
            found.append(position)
    return found


class _Answers:
    """The labeller, with what it has said before; every new answer is stored before it is used."""

    def __init__(self, plan: Plan, store: Store | None, log: list[Label]) -> None:
        self._plan, self._store = plan, store
        self._known = {entry.position: entry for entry in log}

    def of_round(self, round: int) -> list[Label]:
        """What was on record for that round when the campaign was opened."""
        return [entry for entry in self._known.values() if entry.round == round]

    def __call__(self, position: int, round: int) -> int:
        if position in self._known:
            return self._known[position].label
        plan, said = self._plan, self._plan.labeller(position)
        try:
            label = -1 if isinstance(said, bool) else index(said)
        except TypeError:
            label = -1
        if not 0 <= label < plan.classes:
            raise InputError(
                f"the labeller said {said!r} for item {position}; expected a class number, 0 to "
                f"{plan.classes - 1}"
            )
        if self._store:
            item = plan.ids[position] if plan.ids else ""
            name = plan.names[label] if plan.names else ""
            self._store.add_label(position, label, round, item=item, name=name)
        return label


def training_seed(seed: int, number: int) -> int:
    """Of a round's training: a cold start begins from new weights each round."""
    return int(torch.randint(2**31, (1,), generator=stream(seed, "train", number)))
