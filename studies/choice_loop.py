"""A campaign in which only the choice of the next items is changed.

Data, splits, first labels, candidates, training and seeds are those of `labelahead run`: the first
round is run by its own loop, and the later ones train by the same seeds.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import nn

from labelahead.errors import InputError
from labelahead.loop import Plan, State, rounds, training_seed
from labelahead.pool import Pool
from labelahead.propose import propose, situation
from labelahead.situation import Asking, Situation
from labelahead.train import fresh_start, predict, train


@dataclass(frozen=True)
class Row:
    """One round, as it stands in a table."""

    labels: int
    accuracy: float
    train_seconds: float
    query_seconds: float
    filled: int = 0  # asked for at random, as too few distinct items were chosen


class Chosen(NamedTuple):
    """Positions in the data set; filled: how many of them were drawn at random for want of more."""

    positions: list[int]
    filled: int = 0


Choose = Callable[[Plan, Pool, nn.Module, int], Chosen]  # how many are wanted comes last


def campaign_by(plan: Plan, choose: Choose) -> Iterator[Row]:
    """The rounds of one campaign, each when it is finished."""
    pool, model, (accuracy, train_seconds) = first_round(plan)
    for number in range(1, len(plan.inputs)):
        size = len(pool)
        count = min(plan.budget.labels - size, plan.budget.retrain_every, len(pool.unlabelled))
        if count <= 0:
            yield Row(size, accuracy, train_seconds, 0.0)
            return
        start = time.perf_counter()
        positions, filled = choose(plan, pool, model, count)
        asked = time.perf_counter() - start
        yield Row(size, accuracy, train_seconds, asked, filled)
        pool.label(positions, [plan.labeller(p) for p in positions])
        start = time.perf_counter()
        model = _trained(plan, pool, number, model)
        train_seconds = time.perf_counter() - start
        accuracy = _tested(plan, model)


def ours(**changes: Any) -> Choose:
    """The choice of `labelahead run`, for one campaign; changes: of plan.asking."""
    memory: Any = None

    def choose(plan: Plan, pool: Pool, model: nn.Module, count: int) -> Chosen:
        nonlocal memory
        query = propose(
            model, plan.inputs, pool, count, replace(plan.asking, **changes),
            loss=plan.training.loss, seed=plan.seed, ask=plan.labeller, fresh=plan.network,
            training=plan.training, memory=memory,
        )  # fmt: skip
        memory = query.memory
        return Chosen(query.positions.tolist())

    return choose


def seen(plan: Plan, pool: Pool, model: nn.Module, count: int, asking: Asking) -> Situation:
    """What a strategy of ours would see, for a choice of another kind."""
    model.eval()
    now = situation(
        model, plan.inputs, pool, asking, count, loss=plan.training.loss, seed=plan.seed
    )
    now.fresh, now.training = plan.network, plan.training
    return now


def first_round(plan: Plan) -> tuple[Pool, nn.Module, tuple[float, float]]:
    """First labels and first training by the loop of `labelahead run` itself."""
    if not len(plan.test):
        raise InputError("there are no test items; expected some: nothing could be compared")
    last: list[State] = []
    alone = replace(plan, budget=replace(plan.budget, labels=plan.budget.initial))
    (entry,) = rounds(alone, keep=last.append)
    assert entry.accuracy is not None
    return last[0].pool, last[0].model, (entry.accuracy, entry.seconds["train"])


def _trained(plan: Plan, pool: Pool, number: int, before: nn.Module) -> nn.Module:
    seed = training_seed(plan.seed, number)
    previous = before.state_dict()
    model = fresh_start(plan.network, previous, plan.training, seed=seed).to(plan.device)
    x = plan.inputs[pool.labelled]
    train(model, x, pool.labels, plan.classes, plan.training, seed=seed)
    return model


def _tested(plan: Plan, model: nn.Module) -> float:
    guess = predict(model, plan.inputs[plan.test]).argmax(1).cpu()
    return float((guess == plan.test_labels).double().mean())
