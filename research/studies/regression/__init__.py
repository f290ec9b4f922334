"""`python -m research study regression`.

Kernel regression on a whole data set (PN §5, LA App. B).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from labelahead.errors import InputError
from research.studies.design import Cell, Experiment
from research.studies.regression.figures import build_figures
from research.studies.regression.measure import rows_of

__all__ = ["REGRESSION", "Settings"]


@dataclass(frozen=True)
class Settings:
    """What is measured, and on what; these defaults are the small scale.

    data: one or several sets, with commas between. sizes: points at which conjugate gradients and
    a Cholesky factorisation both solve. whole: points of the large regression, None for all.
    checkpoints: shares of the training after which the kernel is taken. epochs, rate, train_batch:
    that training (SGD, momentum 0.9, weight decay 1e-4, as PN; our squared loss is C/2 times
    theirs, so that this rate is larger than their 0.1). scratch: a folder that keeps kernels and
    solvers' states, so that an interrupted solve goes on; nothing: a temporary one.
    """

    data: str = "digits"
    root: str | None = None
    seeds: int = 1
    model: str = "cnn"
    width: float | None = 8
    sizes: tuple[int, ...] = (200, 400, 800, 1400)
    whole: int | None = None
    checkpoints: tuple[float, ...] = (0.0, 0.5, 1.0)
    epochs: int = 20
    rate: float = 0.1
    train_batch: int = 128
    noise: float = 1e-3
    rank: int = 200
    tolerance: float = 1e-3
    scratch: str | None = None

    def __post_init__(self) -> None:
        if not self.checkpoints or not all(0 <= c <= 1 for c in self.checkpoints):
            raise InputError(f"checkpoints are {self.checkpoints}; expected shares from 0 to 1")
        if self.seeds < 1 or not self.sizes or not self.sets:
            raise InputError(
                f"seeds is {self.seeds}, sizes {list(self.sizes)}, data {self.data!r}; expected 1 "
                "seed or more, one or more sizes and a data set"
            )

    @property
    def sets(self) -> list[str]:
        """The data sets."""
        return [name.strip() for name in self.data.split(",") if name.strip()]


def cells(s: Settings) -> Sequence[Cell]:
    """Solvers at every size, then the whole sets."""
    seeds = range(s.seeds)
    return [
        *(
            {"part": "solvers", "set": s.sets[0], "n": n, "seed": seed}
            for n in s.sizes
            for seed in seeds
        ),
        *(
            {"part": "whole", "set": name, "checkpoint": c, "seed": seed}
            for name in s.sets
            for c in s.checkpoints
            for seed in seeds
        ),
    ]


REGRESSION = Experiment(
    "regression",
    "Kernel regression on a whole data set",
    "Can the tangent kernel stand in for the network on all the data? The pseudo-kernel of tens "
    "of thousands of points "
    "is never held as a dense matrix: conjugate gradients work on gradients or tiles that lie on "
    "the disk.",
    Settings,
    cells,
    rows_of,
    build_figures,
    alone=True,
)
