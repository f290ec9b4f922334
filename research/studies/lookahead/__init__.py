"""`python -m research study lookahead`.

Look-ahead by tangent kernel against its rivals (LA Figure 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from labelahead.errors import InputError
from research.studies.design import Cell, Experiment
from research.studies.lookahead.figures import build_figures
from research.studies.lookahead.measure import WAYS, rows_of

__all__ = ["LOOKAHEAD", "Settings"]


@dataclass(frozen=True)
class Settings:
    """What is measured, and on what; these defaults are the small scale.

    arms: which ways to choose, of `WAYS`. initial, query, rounds: labels to begin with, labels a
    round, rounds. candidates: items that are scored in a round. few: the same for the arms that
    retrain, and for the kernel beside them. width, steps: of the network and of its training, None
    for its own. recipe: of that training, the network's own or the paper's (SGD, one cycle of 400
    steps, which is 200 epochs from 129 labels on, going on from the last weights). kernel: of the
    network, as in `labelahead run`.
    """

    data: str = "digits"
    root: str | None = None
    seeds: int = 5
    arms: tuple[str, ...] = tuple(WAYS)
    model: str = "mlp"
    width: float | None = None
    steps: int | None = None
    recipe: Literal["own", "paper"] = "own"
    kernel: str = "pseudo"
    initial: int = 40
    query: int = 10
    rounds: int = 6
    candidates: int = 1000
    few: int = 64

    def __post_init__(self) -> None:
        for name in ("seeds", "rounds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected 1 or more")
        unknown = [a for a in self.arms if a not in WAYS]
        if unknown:
            raise InputError(f"arms has {unknown[0]!r}; expected some of {', '.join(WAYS)}")
        needed = [a for a in ("random", "ntk") if a not in self.arms]
        if needed:
            raise InputError(f"arms lacks {needed[0]!r}, which the others are compared with")
        if not self.query <= self.few <= self.candidates:
            raise InputError(
                f"query is {self.query}, few {self.few}, candidates {self.candidates}; expected "
                "them in rising order: a batch is taken from few, and these are part of all"
            )


def cells(s: Settings) -> Sequence[Cell]:
    """A campaign an arm and seed; seed by seed, so that an early look is fair."""
    return [{"arm": arm, "seed": seed} for seed in range(s.seeds) for arm in s.arms]


LOOKAHEAD = Experiment(
    "lookahead",
    "Looking ahead without retraining",
    "Which label would change the predictions most? One can retrain for every item, take one "
    "gradient step, trust the "
    "kernel of an infinitely wide network or a Gaussian process, or use the network's own tangent "
    "kernel. These "
    "campaigns measure what each costs and what its choices are worth.",
    Settings,
    cells,
    rows_of,
    build_figures,
    alone=True,
)
