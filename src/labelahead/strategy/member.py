"""What a strategy is: a name, a way to choose, when to use it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.situation import Situation

__all__ = ["Ask", "Picks", "Strategy", "scored"]

Ask = Callable[[int], int]  # position in the data set -> class number


class Picks(NamedTuple):
    """What was chosen, best first.

    memory: what the strategy wants to be told next time, by `situation.memory`; goes through JSON.
    Not all that was chosen need have been labelled by then.
    """

    positions: Tensor  # (q,) distinct positions in the data set
    scores: Tensor  # (q,) each as it was when chosen; larger = label sooner
    memory: dict[str, Any] | None = None


@dataclass(frozen=True)
class Strategy:
    """One way to choose.

    pick(situation, q, rng, mode, ask): `ask` labels one item at once; only mode "sequential" uses
    it. modes: how a batch can be made, the default first. noise: the relative regulariser it works
    best with.
    """

    name: str
    when: str
    paper: str
    pick: Callable[[Situation, int, torch.Generator, str, Ask | None], Picks]
    modes: tuple[str, ...] = ("top",)
    noise: float = 1e-3
    look_ahead: bool = False

    def mode(self, asked: str | None, *, ask: bool) -> str:
        """The mode to use; sequential without someone to ask becomes greedy."""
        if asked is not None and asked not in self.modes:
            raise InputError(
                f"mode is {asked!r}, but {self.name} works as {' or '.join(self.modes)}: "
                "leave `mode` out or choose one of these"
            )
        mode = asked or self.modes[0]
        return "greedy" if mode == "sequential" and not ask else mode


def scored(score: Callable[[Situation, torch.Generator], Tensor]) -> Callable[..., Picks]:
    """A strategy that takes the q largest scores; ties go to the first candidate, a random one."""

    def pick(s: Situation, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> Picks:
        with s.timed("score"):
            scores = score(s, rng).double().cpu()
        order = torch.sort(scores, descending=True, stable=True).indices[:q]
        return Picks(s.candidates[order], scores[order])

    return pick
