"""One query: which items to label next."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.errors import InputError
from labelahead.pool import Pool
from labelahead.situation import Asking, Situation, stream
from labelahead.strategy import Ask, Strategy, find
from labelahead.train import Training

__all__ = ["Query", "propose", "situation"]


@dataclass(frozen=True, eq=False)
class Query:
    """Which items to label, best first, and what is expected of them.

    gain: score of the best item, in the strategy's own unit; only scores of one strategy compare.
    memory: what the strategy wants to be told at the next query; goes through JSON.
    """

    positions: Tensor  # (q,) in the full data set
    scores: Tensor  # (q,)
    strategy: str
    mode: str
    gain: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, Any] | None = None


def propose(
    model: nn.Module,
    inputs: Tensor,
    pool: Pool,
    n: int = 1,
    asking: Asking | str = "flip",
    *,
    loss: str = "squared",
    seed: int = 0,
    ask: Ask | None = None,
    fresh: Callable[[int], nn.Module] | None = None,
    training: Training | None = None,
    memory: Mapping[str, Any] | None = None,
) -> Query:
    """The n items whose labels matter most to this network now.

    inputs: (N, ...) the whole data set; positions in the answer count along it. pool: who is
    labelled. asking: a strategy's name, or how to choose in detail. loss: what the network was
    trained with. ask: labels an item on the spot; needed for the mode "sequential", which without
    it becomes "greedy". fresh, training: an untrained network from a seed, and how it is trained,
    for strategies that train networks of their own. memory: that of the query before, for
    strategies that learn from round to round; None: begin anew. The network comes back as it was.
    """
    how = Asking(strategy=asking) if isinstance(asking, str) else asking
    strategy = find(how.strategy)
    mode = strategy.mode(how.mode, ask=ask is not None)
    _require(model, inputs, pool, n)
    if n == 0:
        nothing = torch.zeros(0, dtype=torch.int64)
        kept = None if memory is None else dict(memory)
        return Query(nothing, nothing.double(), strategy.name, mode, memory=kept)
    with _evaluating(model):
        now = situation(model, inputs, pool, how, n, loss=loss, seed=seed)
        now.fresh, now.training, now.memory = fresh, training, memory
        # Whoever answers is in reach only of the mode that needs answers.
        asked = ask if mode == "sequential" else None
        picks = strategy.pick(now, n, stream(seed, "pick", len(pool)), mode, asked)
    gain = float(picks.scores[0]) if strategy.look_ahead else None
    told = picks.memory
    return Query(picks.positions, picks.scores, strategy.name, mode, gain, now.seconds, told)


def situation(
    model: nn.Module,
    inputs: Tensor,
    pool: Pool,
    asking: Asking,
    n: int = 1,
    *,
    loss: str = "squared",
    seed: int = 0,
) -> Situation:
    """What a strategy sees: a random part of the unlabelled items, in random order.

    At least n candidates are drawn, whatever the limit says.
    """
    strategy: Strategy = find(asking.strategy)
    free = pool.unlabelled
    order = torch.randperm(len(free), generator=stream(seed, "candidates", len(pool)))
    limit = len(free) if asking.candidates is None else max(asking.candidates, n)
    return Situation(
        model=model,
        inputs=inputs,
        labelled=pool.labelled,
        labels=pool.labels,
        candidates=free[order[:limit]],
        asking=replace(asking, noise=asking.noise or strategy.noise),
        loss=loss,
    )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode inside, each as it was afterwards."""
    before = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _require(model: nn.Module, inputs: Tensor, pool: Pool, n: int) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    if not isinstance(inputs, Tensor) or inputs.dim() < 2:
        raise InputError("inputs is no tensor (N, ...); expected all items stacked in one tensor")
    if not isinstance(pool, Pool) or pool.size != len(inputs):
        size = pool.size if isinstance(pool, Pool) else type(pool).__name__
        raise InputError(f"pool is {size} for {len(inputs)} inputs; expected a Pool of that size")
    free = len(pool.unlabelled)
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= free:
        raise InputError(
            f"{n!r} items asked for, {free} are unlabelled; expected a whole number up to that"
        )
