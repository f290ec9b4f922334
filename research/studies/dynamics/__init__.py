"""`python -m research study dynamics`: dynamicAL, and the theory that stands behind it (DY)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from labelahead.errors import InputError
from research.studies.design import Cell, Experiment, Row
from research.studies.dynamics import lemmas
from research.studies.dynamics.figures import build_figures
from research.studies.dynamics.measure import rows_of

__all__ = ["DYNAMICS", "Settings"]

Part = Literal["identity", "ratio", "correlation", "lemma", "slack", "rounds"]


@dataclass(frozen=True)
class Settings:
    """What is measured, and on what; these defaults are the small scale.

    parts: any of identity (G two ways), ratio (R along training), correlation (G, A and B of random
    sets), lemma (Lemma 1 on real networks), slack (what App. B.3 drops) and rounds (campaigns).
    lemma_rate: in units of 1/λ_max. initial, pool: labelled and further items. batches: sizes of a
    query. epochs: when R is taken. times: how long f was trained, infinity for converged. kernel_*:
    whose kernel A, B and MMD are taken from: as in the paper three convolutions, the mean over the
    image, one linear layer; "infinite" for the same of infinite width, on images averaged to
    kernel_side pixels a side. splits: [batch, rounds] of one budget. cold: strategies that are also
    run with new weights each round. rate, steps, train_batch, stop_accuracy: the training; steps
    caps a round.
    """

    data: str = "digits"
    root: str | None = None
    seeds: int = 3
    parts: tuple[Part, ...] = ("identity", "ratio", "correlation", "lemma", "slack", "rounds")
    model: str = "cnn"
    width: float | None = 8
    kernel_model: str = "convnet"
    kernel_width: float | None = 32
    kernel_depth: int | None = 4
    kernel_side: int = 8
    initial: int = 100
    pool: int = 800
    identity_items: int = 40
    batches: tuple[int, ...] = (25, 50, 100)
    epochs: tuple[int, ...] = (0, 2, 5, 10, 20, 40, 80)
    ratio_draws: int = 30
    draws: int = 150
    lemma_items: int = 50
    lemma_widths: tuple[int, ...] = (16, 64, 256, 1024)
    lemma_rate: float = 0.5
    lemma_marks: tuple[int, ...] = (0, 1, 3, 10, 30, 100, 300, 1000)
    correlation_batch: int = 50
    # Between 0.1 and 0.5 f fits what the kernel aligns with and nothing else yet: τ is largest
    # there.
    times: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 10.0, inf)
    strategies: tuple[str, ...] = (
        "random",
        "margin",
        "entropy",
        "coreset",
        "least-confidence",
        "albl",
        "badge",
        "dynamical",
        "dynamical:greedy",
        "flip:greedy",
    )
    gammas: tuple[float, ...] = (0.0, 1.0, 2.0, inf)
    query: int = 25
    rounds: int = 6
    splits: tuple[tuple[int, int], ...] = ((15, 10), (50, 3), (150, 1))
    cold: tuple[str, ...] = ("random", "coreset", "dynamical")
    candidates: int | None = None
    rate: float = 1e-3
    steps: int = 1500
    train_batch: int = 32
    stop_accuracy: float = 0.99

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}; expected 1 or more")
        if not self.times or self.times[-1] != inf:
            raise InputError("times must end with inf: pseudo-labels are the converged answers")
        if self.ratio_draws < 2:
            raise InputError(f"ratio_draws is {self.ratio_draws}; expected 2 or more: a spread")
        if "rounds" in self.parts and not {"random", "dynamical"} <= set(self.strategies):
            raise InputError(
                f"strategies are {list(self.strategies)}; expected random and dynamical among "
                "them, which are compared with"
            )
        largest = max((*self.batches, self.correlation_batch))
        if largest > self.pool:
            raise InputError(f"a batch of {largest} cannot be drawn from a pool of {self.pool}")


def cells(s: Settings) -> Sequence[Cell]:
    """Every measurement, the quick parts first.

    Campaigns seed by seed, so that an early look is fair.
    """
    quick = [
        part for part in ("identity", "ratio", "correlation", "lemma", "slack") if part in s.parts
    ]
    campaigns = _campaigns(s) if "rounds" in s.parts else []
    return [
        *({"part": part, "seed": seed} for part in quick for seed in range(s.seeds)),
        *({"part": "rounds", "seed": seed, **one} for seed in range(s.seeds) for one in campaigns),
    ]


def _campaigns(s: Settings) -> list[dict[str, Any]]:
    """Strategies, the gammas of dynamicAL, splits of its budget, and cold starts."""
    campaigns: list[dict[str, Any]] = []

    def add(
        strategy: str,
        *,
        gamma: float = 2.0,
        batch: int = s.query,
        rounds: int = s.rounds,
        start: str = "warm",
    ) -> None:
        one = {
            "strategy": strategy,
            "kernel": strategy in ("dynamical", "random")
            and gamma == 2,  # whether MMD and B are measured
            "gamma": f"{gamma:g}",
            "batch": batch,
            "rounds": rounds,
            "start": start,
        }
        if one not in campaigns:
            campaigns.append(one)

    for name in s.strategies:
        add(name)
    for gamma in s.gammas:
        add("dynamical", gamma=gamma)
    for batch, rounds in s.splits:
        add("dynamical", batch=batch, rounds=rounds)
    for name in s.cold:
        add(name, start="cold")
    return campaigns


def measure_cell(s: Settings, cell: Cell) -> Sequence[Row]:
    """The rows of one cell."""
    return lemmas.rows_of(s, cell) if cell["part"] in lemmas.PARTS else rows_of(s, cell)


DYNAMICS = Experiment(
    "dynamics",
    "Train faster, generalise better? dynamicAL taken apart",
    "dynamicAL asks for the labels that would be learnt fastest. These measurements check the "
    "identity it rests on, the approximation it makes, the link from speed to generalisation that "
    "justifies it, and whether it earns its keep against other strategies.",
    Settings,
    cells,
    measure_cell,
    build_figures,
)
