"""A campaign in which only the choice of the next items is another package's.

Data, splits, first labels, candidates, training and seeds are those of `labelahead run`: the first
round is run by its own loop, and the later ones train by the same seeds.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from labelahead.errors import InputError
from labelahead.loop import Plan, State, rounds, training_seed
from labelahead.pool import Pool
from labelahead.propose import propose, situation
from labelahead.situation import stream
from labelahead.strategy import find
from labelahead.train import fresh_start, predict, train
from peer_arms import PEERS, Peer


@dataclass(frozen=True)
class Row:
    """One round, as it stands in a table."""

    labels: int
    accuracy: float
    train_seconds: float
    query_seconds: float
    filled: int = 0  # asked for at random, as the package named fewer distinct items


def arm(name: str) -> Peer | str:
    """A package's strategy, or one of ours as `flip` or `flip:greedy`."""
    if name in PEERS:
        return PEERS[name]
    if "(" in name:
        raise InputError(f"strategy is {name!r}; expected one of {', '.join(PEERS)}")
    find(name.partition(":")[0])
    return name


def campaign(plan: Plan, name: str) -> Iterator[Row]:
    """The rounds of one campaign, each when it is finished."""
    who, memory = arm(name), None
    pool, model, first = _first_round(plan)
    accuracy, train_seconds = first
    for number in range(1, len(plan.inputs)):
        size = len(pool)
        count = min(plan.budget.labels - size, plan.budget.retrain_every, len(pool.unlabelled))
        if count <= 0:
            yield Row(size, accuracy, train_seconds, 0.0)
            return
        start, filled = time.perf_counter(), 0
        if isinstance(who, Peer):
            positions, filled = _theirs(plan, pool, model, who, count)
        else:
            positions, memory = _ours(plan, pool, model, who, count, memory)
        asked = time.perf_counter() - start
        yield Row(size, accuracy, train_seconds, asked, filled)
        pool.label(positions, [plan.labeller(p) for p in positions])
        start = time.perf_counter()
        model = _trained(plan, pool, number, model)
        train_seconds = time.perf_counter() - start
        accuracy = _tested(plan, model)


def _first_round(plan: Plan) -> tuple[Pool, nn.Module, tuple[float, float]]:
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


def _ours(
    plan: Plan, pool: Pool, model: nn.Module, name: str, count: int, memory: Any
) -> tuple[list[int], Any]:
    strategy, _, mode = name.partition(":")
    how: Any = {"strategy": strategy, "mode": mode or None}
    query = propose(
        model, plan.inputs, pool, count, replace(plan.asking, **how), loss=plan.training.loss,
        seed=plan.seed, ask=plan.labeller, fresh=plan.network, training=plan.training,
        memory=memory,
    )  # fmt: skip
    return query.positions.tolist(), query.memory


def _theirs(
    plan: Plan, pool: Pool, model: nn.Module, peer: Peer, count: int
) -> tuple[list[int], int]:
    """What the package asks for; what it leaves open is drawn at random, and counted."""
    asking = replace(plan.asking, strategy="random", mode=None)
    model.eval()
    now = situation(
        model, plan.inputs, pool, asking, count, loss=plan.training.loss, seed=plan.seed
    )
    now.fresh, now.training = plan.network, plan.training
    rows = peer.choose(now, count, stream(plan.seed, "pick", len(pool)))
    chosen = distinct(rows, len(now.candidates))[:count]
    missing = count - len(chosen)
    if missing:
        rng = stream(plan.seed, "fill", len(pool))
        rest = torch.randperm(len(now.candidates), generator=rng).tolist()
        chosen = distinct([*chosen, *rest], len(now.candidates))[:count]
    return now.candidates[torch.tensor(chosen)].tolist(), missing


def distinct(rows: Sequence[int], size: int) -> list[int]:
    """Each row once, in the order given; none may lie outside."""
    wrong = [r for r in rows if not 0 <= r < size]
    if wrong:
        raise InputError(f"a package chose row {wrong[0]}; expected one of {size} candidates")
    return list(dict.fromkeys(rows))
