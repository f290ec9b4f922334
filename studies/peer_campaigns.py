"""A campaign in which only the choice of the next items is another package's."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from choice_loop import Choose, Chosen, Row, campaign_by, ours, seen
from labelahead.errors import InputError
from labelahead.loop import Plan
from labelahead.pool import Pool
from labelahead.situation import stream
from labelahead.strategy import find
from peer_arms import PEERS, Peer

__all__ = ["Row", "arm", "campaign", "distinct"]


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
    return campaign_by(plan, _choice(arm(name)))


def _choice(who: Peer | str) -> Choose:
    if isinstance(who, Peer):
        return lambda plan, pool, model, count: _theirs(plan, pool, model, who, count)
    strategy, _, mode = who.partition(":")
    return ours(strategy=strategy, mode=mode or None)


def _theirs(plan: Plan, pool: Pool, model: nn.Module, peer: Peer, count: int) -> Chosen:
    """What the package asks for; what it leaves open is drawn at random, and counted."""
    now = seen(plan, pool, model, count, replace(plan.asking, strategy="random", mode=None))
    rows = peer.choose(now, count, stream(plan.seed, "pick", len(pool)))
    chosen = distinct(rows, len(now.candidates))[:count]
    missing = count - len(chosen)
    if missing:
        rng = stream(plan.seed, "fill", len(pool))
        rest = torch.randperm(len(now.candidates), generator=rng).tolist()
        chosen = distinct([*chosen, *rest], len(now.candidates))[:count]
    return Chosen(now.candidates[torch.tensor(chosen)].tolist(), missing)


def distinct(rows: Sequence[int], size: int) -> list[int]:
    """Each row once, in the order given; none may lie outside."""
    wrong = [r for r in rows if not 0 <= r < size]
    if wrong:
        raise InputError(f"a package chose row {wrong[0]}; expected one of {size} candidates")
    return list(dict.fromkeys(rows))
