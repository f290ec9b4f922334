"""`python -m research study kernel`: how well the pseudo-NTK stands in for the full kernel (PN)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from labelahead.errors import InputError
from research.studies.design import Cell, Experiment, Row
from research.studies.kernel import theorems
from research.studies.kernel.figures import build_figures
from research.studies.kernel.measure import NETWORKS, rows_of

__all__ = ["KERNEL", "Settings"]

Part = Literal["rate", "variants", "bound", "theorems", "layers", "training"]


@dataclass(frozen=True)
class Settings:
    """What is measured, and on what; these defaults are the small scale.

    parts: any of rate (distance by width at initialisation), variants (the same for the fcn with
    other activations and truncated weights), bound (PN's bound beside what it bounds), theorems
    (PN's Theorems 5 and 6), layers (TH's lemmas, layer by layer) and training (everything, along
    SGD). The widths of a network that is left out may be empty: it is skipped. rate_*: many widths
    and seeds on few items; the other numbers are for training. items, test: items that the network
    is trained on and the kernels are taken of, and those to regress at. checkpoints: parts of the
    run. steps, batch, rate, momentum, weight_decay, loss: the training; the rate falls to a tenth
    if it diverges, as in PN. Our squared loss is C/2 times PyTorch's mean over outputs, so that
    0.02 is PN's 0.1 at ten classes. noise: of the regression, relative.
    """

    data: str = "digits"
    root: str | None = None
    parts: tuple[Part, ...] = ("rate", "variants", "bound", "theorems", "layers", "training")
    seeds: int = 3
    rate_seeds: int = 8
    rate_items: int = 12
    rate_fcn: tuple[float, ...] = (64, 128, 256, 512, 1024)
    rate_convnet: tuple[float, ...] = (16, 32, 64, 128)
    rate_resnet18: tuple[float, ...] = (8, 16, 32, 64)
    rate_wrn16: tuple[float, ...] = (1, 2, 4, 8)
    activations: tuple[str, ...] = ("relu", "gelu", "tanh", "erf")
    bound_items: int = 3
    bound_widths: tuple[float, ...] = (32, 64, 128, 256, 512)
    theorem_items: int = 20
    theorem_test: int = 20
    theorem_widths: tuple[float, ...] = (64, 128, 256, 512, 1024)
    layer_widths: tuple[float, ...] = (64, 128, 256, 512, 1024)
    layer_depth: int = 4
    layer_inputs: int = 20
    layer_outputs: int = 10
    fcn: tuple[float, ...] = (32, 128, 512)
    convnet: tuple[float, ...] = (8, 16, 24)
    resnet18: tuple[float, ...] = (2, 4, 8)
    wrn16: tuple[float, ...] = (0.25, 0.5, 1)
    items: int = 60
    test: int = 50
    checkpoints: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    steps: int = 200
    batch: int = 128
    rate: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 1e-4
    loss: Literal["squared", "cross-entropy"] = "squared"
    noise: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("seeds", "rate_seeds", "rate_items", "bound_items", "items", "test"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if list(self.checkpoints) != sorted(set(self.checkpoints)) or not all(
            0 <= c <= 1 for c in self.checkpoints
        ):
            raise InputError(
                f"checkpoints are {list(self.checkpoints)}; expected rising parts of the run, "
                "from 0 to 1"
            )
        if len({round(c * self.steps) for c in self.checkpoints}) < max(1, len(self.checkpoints)):
            raise InputError(
                f"checkpoints are {list(self.checkpoints)} of {self.steps} steps; expected one or "
                "more, each after another step"
            )


def cells(s: Settings) -> Sequence[Cell]:
    """Every measurement; the dear ones first, so that no process is left with one at the end."""
    every: list[dict[str, Any]] = []
    for name in NETWORKS:
        if "training" in s.parts:
            every += _grid("training", name, getattr(s, name), s.seeds)
        if "rate" in s.parts:
            every += _grid("rate", name, getattr(s, f"rate_{name}"), s.rate_seeds)
    if "variants" in s.parts:
        for variant in (*s.activations, "truncated"):
            every += _grid("variants", "fcn", s.rate_fcn, s.rate_seeds, variant=variant)
    if "bound" in s.parts:
        every += _grid("bound", "fcn", s.bound_widths, s.rate_seeds)
    if "theorems" in s.parts:
        every += _grid("theorems", "fcn", s.theorem_widths, s.rate_seeds)
    if "layers" in s.parts:
        every += _grid("layers", "fcn", s.layer_widths, s.rate_seeds)
    return sorted(every, key=lambda c: (c["part"] != "training", -_cost(c)))


def _grid(
    part: str, name: str, widths: Sequence[float], seeds: int, **more: Any
) -> list[dict[str, Any]]:
    return [
        {"part": part, "network": name, "width": width, "seed": seed, **more}
        for width in widths
        for seed in range(seeds)
    ]


def _cost(cell: Cell) -> float:
    """Roughly how long it takes, in any unit."""
    unit = {"fcn": 0.01, "convnet": 1.0, "resnet18": 3.0, "wrn16": 25.0}[cell["network"]]
    return float(unit * cell["width"])


def measure_cell(s: Settings, cell: Cell) -> Sequence[Row]:
    """The rows of one cell."""
    return theorems.rows_of(s, cell) if cell["part"] in theorems.PARTS else rows_of(s, cell)


KERNEL = Experiment(
    "kernel",
    "How good is the pseudo-NTK?",
    "The full tangent kernel of a network with C outputs has a C×C block for every pair of items. "
    "The pseudo-NTK puts one number in its place: the kernel of the sum of all outputs. These "
    "measurements show what that costs in distance, spectrum and predictions, for networks of "
    "several widths, new and trained, beside two other substitutes: the kernel of the first "
    "output alone (single), and the mean over the outputs of each one's own kernel (trace).",
    Settings,
    cells,
    measure_cell,
    build_figures,
)
