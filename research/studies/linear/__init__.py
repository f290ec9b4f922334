"""`python -m research study linear`: the lecture's claims (LE) about wide networks, measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from labelahead.errors import InputError
from research.studies.design import Cell, Experiment, Row
from research.studies.linear import wide
from research.studies.linear.figures import build_figures
from research.studies.linear.measure import rows_of

__all__ = ["LINEAR", "Settings"]

Part = Literal[
    "error",
    "limit",
    "flow",
    "lazy",
    "warm",
    "supremum",
    "drift",
    "trained",
    "universal",
    "separation",
]


@dataclass(frozen=True)
class Settings:
    """What is measured; these defaults are the small scale. Inputs are random points of norm 1.

    parts: error (linearisation error and its bound), limit (arc-cosine kernel), flow (gradient flow
    against gradient descent), lazy (output scale), warm (one set after the other, or the last one
    at once), supremum (ReLU's bound with its δ), drift (kernel and outputs along training, by width
    and depth), trained (networks κf against the infinite kernel), universal (where the arc-cosine
    kernel learns all), separation (one unit against kernels). items, evaluation: points to learn
    from and to look at. widths: m. steps: of gradient descent at the rate 1/λ_max. flow_step,
    lazy_step: rates in that unit. flow_marks: steps at which trajectories are compared. scales: α.
    stages: nested sets. warm_times: training time of each set, in units of 1/λ_max. radii: B;
    deltas: δ. drift_step, trained_step: rates in units of 1/λ_max. kappas: κ. separation_shares:
    points a dimension.
    """

    seeds: int = 5
    parts: tuple[Part, ...] = (
        "error",
        "limit",
        "flow",
        "lazy",
        "warm",
        "supremum",
        "drift",
        "trained",
        "universal",
        "separation",
    )
    dimension: int = 10
    items: int = 16
    evaluation: int = 40
    widths: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    steps: int = 1000
    flow_widths: tuple[int, ...] = (16, 128, 1024, 4096)
    flow_step: float = 0.1
    flow_marks: tuple[int, ...] = (0, 3, 10, 30, 100, 300, 1000)
    lazy_width: int = 128
    lazy_step: float = 0.2
    lazy_steps: int = 1500
    scales: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    stages: int = 4
    warm_times: tuple[float, ...] = (1.0, 10.0, 100.0, 1000.0)
    sup_widths: tuple[int, ...] = (64, 256, 1024, 4096, 16384, 65536)
    sup_draws: int = 200
    radii: tuple[float, ...] = (1.0, 5.0, 25.0)
    deltas: tuple[float, ...] = (0.5, 0.05)
    depths: tuple[int, ...] = (1, 2, 4)
    drift_widths: tuple[int, ...] = (32, 128, 512, 1024)
    drift_step: float = 0.5
    drift_marks: tuple[int, ...] = (3, 10, 30, 100, 300)
    trained_depth: int = 2
    trained_widths: tuple[int, ...] = (32, 128, 512, 1024)
    trained_step: float = 0.5
    trained_steps: int = 600
    kappas: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03)
    universal_dimension: int = 4
    universal_items: tuple[int, ...] = (50, 100, 200, 400, 800)
    universal_test: int = 500
    separation_dimensions: tuple[int, ...] = (10, 20, 40)
    separation_shares: tuple[float, ...] = (2.0, 4.0, 8.0, 16.0)
    separation_steps: int = 500
    separation_test: int = 1000

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}; expected 1 or more")
        if self.dimension < 3:
            raise InputError(f"dimension is {self.dimension}; expected 3 or more")
        if not 1 <= self.stages <= self.items:
            raise InputError(f"{self.items} items cannot make {self.stages} growing sets")
        if len(self.widths) < 2 or len(self.scales) < 2 or len(self.flow_widths) < 2:
            raise InputError("expected two or more widths and scales: a slope needs them")
        if sum(a >= 1 for a in self.scales) < 2:
            raise InputError(f"scales are {list(self.scales)}; expected two or more from 1 on")
        for name in (
            "sup_widths",
            "radii",
            "depths",
            "drift_widths",
            "trained_widths",
            "universal_items",
        ):
            if len(getattr(self, name)) < 2:
                raise InputError(
                    f"{name} is {list(getattr(self, name))}; expected two or more: a slope needs "
                    "them"
                )
        if not self.warm_times or self.evaluation < 1:
            raise InputError("expected one or more warm_times, and evaluation of 1 or more")


def cells(s: Settings) -> Sequence[Cell]:
    """Every measurement."""
    return [{"part": part, "seed": seed} for part in s.parts for seed in range(s.seeds)]


def measure_cell(s: Settings, cell: Cell) -> Sequence[Row]:
    """The rows of one cell."""
    return wide.rows_of(s, cell) if cell["part"] in wide.PARTS else rows_of(s, cell)


LINEAR = Experiment(
    "linear",
    "How linear is a wide network?",
    "All of look-ahead rests on one idea: a wide network hardly moves its weights, so that it is "
    "nearly linear in them. Here its consequences are measured on the one network for which they "
    "are proved in a few lines, f(x) = (1/√m) Σ aⱼ σ(wⱼᵀx) with aⱼ = ±1 fixed.",
    Settings,
    cells,
    measure_cell,
    build_figures,
)
