"""One query: which items to label next."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.batching import Inputs, Samples, as_inputs
from labelahead.data.pool import Pool
from labelahead.errors import InputError, ModelError, NumericalError
from labelahead.inference.exact import wrap_fitted_model
from labelahead.inference.network import FittedModel
from labelahead.inference.pool_posterior import drift_warning
from labelahead.models.training import AuxiliaryObjective, Training
from labelahead.models.training.forward import eval_mode
from labelahead.seeds import make_generator
from labelahead.strategies import find_strategy
from labelahead.strategies.base import Oracle, QueryBatch, QueryConfig, Strategy
from labelahead.strategies.context import QueryContext

__all__ = ["Query", "propose"]


@dataclass(frozen=True, eq=False)
class Query:
    """The items to label, best first.

    Attributes:
        positions: (q,) in the full data set.
        scores: (q,).
        strategy: Name of the strategy.
        mode: How the batch was built.
        gain: Score of the best item, in the strategy's own unit; comparable within one strategy
            only.
        seconds: Time per stage.
        memory: State that the strategy wants back at the next query; JSON.
        drift: With look-ahead by a trained network, the share of the candidates for which the
            linearised network, on which look-ahead is based, predicts another class than the
            trained one.
        notes: Warnings, such as a drift above 10 %.

    >>> pool = la.Pool(30)
    >>> pool.label([0, 1, 2], [0, 1, 2])
    >>> query = la.propose(model, x, pool, 2, "margin")
    >>> query.strategy, len(query.positions), len(query.scores)
    ('margin', 2, 2)
    """

    positions: Tensor  # (q,) in the full data set
    scores: Tensor  # (q,)
    strategy: str
    mode: str
    gain: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, Any] | None = None
    drift: float | None = None
    notes: tuple[str, ...] = ()


def propose(
    model: nn.Module,
    inputs: Inputs,
    pool: Pool,
    n: int = 1,
    strategy: QueryConfig | Strategy | str = "flip",
    *,
    loss: str = "squared",
    seed: int = 0,
    oracle: Oracle | None = None,
    fresh: Callable[[int], nn.Module] | None = None,
    training: Training | None = None,
    memory: Mapping[str, Any] | None = None,
    objective: AuxiliaryObjective | None = None,
) -> Query:
    """Return the n items whose labels matter most to this network now.

    The network is unchanged afterwards.

    Args:
        model: The trained network.
        inputs: The whole data set: a tensor (N, ...), a mapping or tuple of tensors, or `Samples`
            of a data set that is read in batches. Positions count along it.
        pool: Which items are labelled.
        n: Number of items.
        strategy: A strategy, its name, or a `QueryConfig`.
        loss: The loss the network was trained with.
        seed: Of all random choices.
        oracle: Labels an item on the spot; required for the mode "sequential", which otherwise
            becomes "greedy".
        fresh: seed -> an untrained network, for strategies that train networks of their own.
        training: How those are trained.
        memory: `Query.memory` of the previous query, for strategies with a state; None: start anew.
        objective: The auxiliary objective trained with the network, for strategies that need one
            (`Strategy.objective`).

    >>> pool = la.Pool(30)
    >>> pool.label([0, 1, 2], [0, 1, 2])
    >>> query = la.propose(model, x, pool, 5, "flip")
    >>> len(query.positions), query.mode  # nobody is there to answer, so not sequential
    (5, 'greedy')
    """
    config = strategy if isinstance(strategy, QueryConfig) else QueryConfig(strategy=strategy)
    chosen = find_strategy(config.strategy)
    mode = chosen.resolve_mode(config.mode, has_oracle=oracle is not None)
    samples = _check_arguments(model, inputs, pool, n)
    fitted = wrap_fitted_model(model, samples)
    _require_network(chosen, fitted)
    chosen.check_task(fitted.task)
    chosen.check_goal(config.goal, fitted.task)
    if n == 0:
        nothing = torch.zeros(0, dtype=torch.int64)
        kept = None if memory is None else dict(memory)
        return Query(nothing, nothing.double(), chosen.name, mode, memory=kept)
    with eval_mode(model):
        context = QueryContext.from_pool(
            model,
            samples,
            pool,
            chosen.with_default_noise(config),
            n,
            loss=loss,
            seed=seed,
            fresh=fresh,
            training=training,
            memory=memory,
            objective=objective,
        )
        # Only the mode that needs labels gets access to the oracle.
        labeller = oracle if mode == "sequential" else None
        batch = chosen.select_batch(
            context, n, make_generator(seed, "pick", len(pool)), mode, labeller
        )
        _check_batch(batch, chosen, context, n)
    return _build_query(batch, chosen, mode, context)


def _build_query(batch: QueryBatch, strategy: Strategy, mode: str, context: QueryContext) -> Query:
    """Return the selected batch with what is known about it."""
    drift = (
        context.drift if "pool_posterior" in vars(context) else None
    )  # computed if the strategy used look-ahead
    note = drift_warning(drift)
    return Query(
        batch.positions,
        batch.scores,
        strategy.name,
        mode,
        gain=float(batch.scores[0]) if strategy.look_ahead else None,
        seconds=context.seconds,
        memory=batch.memory,
        drift=drift,
        notes=() if note is None else (note,),
    )


def _require_network(strategy: Strategy, fitted: FittedModel) -> None:
    if strategy.needs_network and not fitted.needs_training:
        raise ModelError(
            f"{strategy.name} takes gradients of a network or trains some, but the exact learner "
            "has nothing to train; "
            "expected another strategy, such as resolve"
        )


def _check_batch(batch: Any, strategy: Strategy, context: QueryContext, n: int) -> None:
    """Raise unless the strategy, which may be a user's own, returned a valid batch."""
    if (
        not isinstance(batch, QueryBatch)
        or not isinstance(batch.positions, Tensor)
        or not isinstance(batch.scores, Tensor)
    ):
        raise InputError(
            f"the strategy {strategy.name} returned {batch!r:.80}; expected a QueryBatch of two tensors"
        )
    chosen = batch.positions.tolist()
    if (
        len(set(chosen)) != n
        or len(chosen) != n
        or not set(context.candidates.tolist()).issuperset(chosen)
    ):
        raise InputError(
            f"the strategy {strategy.name} returned {chosen!r:.80}; expected {n} different ones of "
            "the "
            f"{len(context.candidates)} candidates, by their positions in the data set"
        )
    scores = batch.scores
    if (
        scores.shape != (n,)
        or bool(torch.isnan(scores).any())
        or (strategy.look_ahead and bool(scores[0].isinf()))
    ):
        raise NumericalError(
            f"the strategy {strategy.name} scored {scores.tolist()!r:.80}; expected {n} numbers"
        )


def _check_arguments(model: nn.Module, given: Inputs, pool: Pool, n: int) -> Tensor | Samples:
    """Check the arguments of a query and return the inputs."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    inputs = as_inputs(given)
    if isinstance(inputs, Tensor) and inputs.dim() < 2:
        raise InputError(
            f"inputs have shape {tuple(inputs.shape)}; expected (N, ...), all items stacked in "
            "one tensor"
        )
    if not isinstance(pool, Pool) or pool.size != len(inputs):
        size = pool.size if isinstance(pool, Pool) else type(pool).__name__
        raise InputError(f"pool is {size} for {len(inputs)} inputs; expected a Pool of that size")
    free = len(pool.unlabelled)
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= free:
        raise InputError(
            f"{n!r} items requested, but {free} are unlabelled; expected a whole number up to that"
        )
    return inputs
