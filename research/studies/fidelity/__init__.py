"""`python -m research study fidelity`: does look-ahead tell the truth?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from labelahead.errors import InputError
from labelahead.models.training import get_default_training
from research.studies.design import Cell, Experiment
from research.studies.fidelity.figures import build_figures
from research.studies.fidelity.measure import rows_of

__all__ = ["FIDELITY", "Settings"]

Part = Literal["warm", "cold"]


@dataclass(frozen=True)
class Settings:
    """What is measured, and on what; these defaults are the small scale.

    parts: warm (training goes on from the trained weights), cold (it begins again). networks:
    [name, width]; the first is the one whose width, training and cold start are looked into.
    widths: of the first network. before: steps of its training before the look-ahead, beside the
    usual ones of its recipe. marks: steps of gradient descent after which the continued training
    is compared; the last one counts. initial, evaluation: labelled items, and items at which
    predictions are compared. candidates: items whose label is tried out; conv_candidates: of
    networks for images, which take longer. noise: regulariser of the look-ahead, the product's.
    step: the rate of gradient descent, in units of one over the kernel's largest eigenvalue.
    cold_candidates, repeats: of the cold part, each candidate trained `repeats` times with and
    without. cold_steps: of gradient descent from new weights.
    """

    data: str = "digits"
    root: str | None = None
    seeds: int = 3
    parts: tuple[Part, ...] = ("warm", "cold")
    networks: tuple[tuple[str, int], ...] = (("mlp", 128), ("fcn", 128), ("cnn", 8))
    widths: tuple[int, ...] = (8, 32, 128, 256)
    before: tuple[int, ...] = (0, 20, 1000)
    marks: tuple[int, ...] = (3, 10, 30, 100, 300)
    initial: int = 60
    evaluation: int = 150
    candidates: int = 24
    conv_candidates: int = 16
    noise: float = 1e-3
    step: float = 1.0
    momentum: float = 0.9
    cold_candidates: int = 10
    repeats: int = 6
    cold_steps: int = 600
    chunk: int = 32

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}; expected 1 or more")
        if self.repeats < 2:
            raise InputError(f"repeats is {self.repeats}; expected 2 or more: noise is a spread")
        if not self.networks:
            raise InputError("networks is empty; expected one or more [name, width]")
        if not self.widths or not self.marks:
            raise InputError("widths or marks is empty; expected one or more of each")
        least = min(self.candidates, self.conv_candidates, self.cold_candidates)
        if least < 3:
            raise InputError(f"{least} candidates are asked for; expected 3 or more to rank")


def cells(s: Settings) -> Sequence[Cell]:
    """Every measurement, the networks of all kinds first."""
    first, usual = s.networks[0]
    networks: list[tuple[str, str, int, int]] = []  # part, model, width, steps before
    if "warm" in s.parts:
        networks += [
            ("warm", model, width, get_default_training(model).steps) for model, width in s.networks
        ]
        networks += [("warm", first, usual, before) for before in s.before]
        networks += [
            ("warm", first, width, get_default_training(first).steps) for width in s.widths
        ]
    if "cold" in s.parts:
        networks.append(("cold", first, usual, get_default_training(first).steps))
    return [
        {"part": part, "model": model, "width": width, "before": before, "seed": seed}
        for part, model, width, before in dict.fromkeys(networks)
        for seed in range(s.seeds)
    ]


FIDELITY = Experiment(
    "fidelity",
    "Does look-ahead tell the truth?",
    "Look-ahead predicts, without training, what every prediction would become if one more item "
    "were labelled. Here "
    "the item is really labelled and the network really trained. Δf is what that label changes in "
    "the outputs at "
    "held-out items: trained with it, minus trained in the same way without it.",
    Settings,
    cells,
    rows_of,
    build_figures,
)
