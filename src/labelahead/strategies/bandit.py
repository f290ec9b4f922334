"""ALBL: a bandit that learns, round by round, which of several strategies to follow.

Each round draws one of K experts, expert k with probability p_k, and queries that expert's whole
batch of q out of m candidates. Expert k selects candidate i with probability ψ_ki: 1 or 0, or q/m
for `random`. So the item is queried with probability Q_i = Σ_k p_k ψ_ki > 0, and weighting its
label by 1/Q_i corrects for the selection: in expectation over the draw, Σ_{i queried} correct_i/(m
Q_i) is the accuracy on all m candidates, if the network does not depend on the draw.

With one item per round, p, Q and ŷ are those of Hsu & Lin. EXP4.P is due to Beygelzimer, Langford,
Li, Reyzin & Schapire 2011; its actions are here the experts themselves (v̂_k = 1/p_k), not the
items, whose smallest Q_i would be far below p_min.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.models.training import predict
from labelahead.strategies.base import Oracle, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext
from labelahead.strategies.diversity import DIVERSITY
from labelahead.strategies.uncertainty import CONFIDENCE

__all__ = [
    "ALBL",
    "BanditState",
    "bandit_horizon",
    "expert_credits",
    "expert_probabilities",
    "selection_probabilities",
    "update_weights",
]

# `random` selects every item with positive probability; otherwise 1/Q_i could not correct the bias.
EXPERTS = ("coreset", "least-confidence", "random")
_MEMBERS = {member.name: member for member in (*CONFIDENCE, *DIVERSITY)}
BOUND_FAILURE_PROBABILITY = (
    0.1  # the regret bound holds with probability 1 − δ; enters as a logarithm
)
MIN_HORIZON_ROUNDS = 4  # with fewer, p_min = √(ln K / (K T)) would exceed 1/K


@dataclass(frozen=True)
class BanditState:
    """The state of the bandit between two queries. It contains no label."""

    round: int  # rounds so far, including the last one
    weights: list[float]  # (K,) of the experts before the last round's reward; they sum to one
    chances: list[float]  # (K,) with which the last round drew its expert
    credits: list[float]  # (K,) what the last round's reward counts for each
    last: int  # number of positions of the last round
    positions: list[int]  # all queried items
    counts: list[float]  # of each position: 1/(m Q_i), from the round that queried it

    @classmethod
    def from_memory(cls, memory: Mapping[str, Any]) -> "BanditState":
        """Restore the state from the dictionary made by `asdict`."""
        try:
            state = cls(**memory)
        except TypeError as error:
            raise InputError(
                f"memory is {sorted(memory)}; expected the `memory` of an earlier query of albl"
            ) from error
        if len(state.weights) != len(EXPERTS):
            raise InputError(
                f"memory has {len(state.weights)} experts; expected {len(EXPERTS)}: start again "
                "with memory=None"
            )
        return state


def bandit_horizon(round: int) -> int:
    """Return T of EXP4.P. The number of rounds is unknown, so T is the next power of two, at least 4."""
    return max(MIN_HORIZON_ROUNDS, 1 << (round - 1).bit_length())


def _min_probability(experts: int, round: int) -> float:
    """Return p_min = √(ln K / (K T)), at most 1/K."""
    return min(1 / experts, math.sqrt(math.log(experts) / (experts * bandit_horizon(round))))


def expert_probabilities(weights: Tensor, round: int) -> Tensor:
    """Return p_k = (1 − K p_min) w_k / Σ w + p_min, (K,)."""
    min_probability = _min_probability(len(weights), round)
    return (1 - len(weights) * min_probability) * weights / weights.sum() + min_probability


def update_weights(weights: Tensor, p: Tensor, credit: Tensor, reward: float, round: int) -> Tensor:
    """Return the weights (K,) after one step of EXP4.P, scaled to sum to one.

    w_k ← w_k exp(p_min/2 (ŷ_k + v̂_k √(ln(K/δ) / (K T)))), where ŷ_k = reward × credit_k estimates
    what expert k would have earned and v̂_k = 1/p_k bounds the variance of that estimate, which
    favours experts that are rarely drawn.
    """
    K = len(weights)
    confidence_width = math.sqrt(
        math.log(K / BOUND_FAILURE_PROBABILITY) / (K * bandit_horizon(round))
    )
    new = weights * torch.exp(
        _min_probability(K, round) / 2 * (reward * credit + confidence_width / p)
    )
    return new / new.sum()


def selection_probabilities(batches: Sequence[Tensor | None], m: int, q: int) -> Tensor:
    """Return ψ (K, m), the probability that each expert selects each candidate.

    Args:
        batches: The candidates (q,) that each expert selects, by index; None: q of the m at random.
        m: Number of candidates.
        q: Batch size.
    """
    psi = torch.zeros(len(batches), m, dtype=torch.float64)
    for row, batch in zip(psi, batches, strict=True):
        if batch is None:
            row.fill_(q / m)
        else:
            row[batch] = 1.0
    return psi


def expert_credits(psi: Tensor, p: Tensor, selected: Tensor) -> Tensor:
    """Return the mean of ψ_ki/Q_i over the selected candidates, (K,): 1 in expectation, at most 1/p_k.

    An expert is also credited for items that it would have selected when another one was drawn.
    """
    return (psi[:, selected] / (p @ psi)[selected]).mean(1)


def _labelled_reward(
    context: QueryContext, state: BanditState
) -> tuple[list[int], list[float], float | None]:
    """Return the positions that were labelled, the weight of each, and the reward of the last round.

    The reward is the accuracy of the current network on all labels, Σ correct_i c_i / Σ c_i. The
    paper divides by the number of rounds, which Σ c_i equals in expectation. But in a round that
    drew `random` the sum is about 1/p_k, and nearly 0 in others, so it would leave [0, 1] and
    reward `random` regardless of the network. None: the last round has no label yet.
    """
    label = dict(zip(context.labelled.tolist(), context.labels.tolist(), strict=True))
    known = [i for i, p in enumerate(state.positions) if p in label]
    positions = [state.positions[i] for i in known]
    counts = [state.counts[i] for i in known]
    if not known or known[-1] < len(state.positions) - state.last:
        return positions, counts, None
    with context.time_stage("outputs"):
        guess = predict(context.model, context.inputs[torch.tensor(positions)]).argmax(1).cpu()
    right = guess == torch.tensor([label[p] for p in positions])
    each = torch.tensor(counts, dtype=torch.float64)
    return positions, counts, float(each[right].sum() / each.sum())


def _albl(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    weights = torch.full((len(EXPERTS),), 1 / len(EXPERTS), dtype=torch.float64)
    number, positions, counts = 1, list[int](), list[float]()
    if context.memory is not None:
        state = BanditState.from_memory(context.memory)
        weights = weights.new_tensor(state.weights)
        positions, counts, reward = _labelled_reward(context, state)
        number = state.round
        if reward is not None:
            p, credit = weights.new_tensor(state.chances), weights.new_tensor(state.credits)
            weights = update_weights(weights, p, credit, reward, state.round)
            number += 1
    p = expert_probabilities(weights, number)
    drawn = int(torch.multinomial(p, 1, generator=rng))
    batches_by_expert = [
        _MEMBERS[name].select_batch(context, q, rng, "top", None) for name in EXPERTS
    ]
    candidate_rows = torch.full((len(context.inputs),), -1)
    candidate_rows[context.candidates] = torch.arange(len(context.candidates))
    batches = [candidate_rows[picks.positions] for picks in batches_by_expert]
    fixed = [None if n == "random" else b for n, b in zip(EXPERTS, batches, strict=True)]
    psi = selection_probabilities(fixed, len(context.candidates), q)
    selected = batches[drawn]
    now = BanditState(
        round=number,
        weights=weights.tolist(),
        chances=p.tolist(),
        credits=expert_credits(psi, p, selected).tolist(),
        last=q,
        positions=positions + batches_by_expert[drawn].positions.tolist(),
        counts=counts + (1 / (len(context.candidates) * (p @ psi)[selected])).tolist(),
    )
    return QueryBatch(
        batches_by_expert[drawn].positions, batches_by_expert[drawn].scores, asdict(now)
    )


ALBL = Strategy(
    "albl",
    "if unsure which strategy to use: a bandit over coreset, least-confidence and random",
    "Hsu & Lin 2015, Active Learning by Learning",
    _albl,
)
