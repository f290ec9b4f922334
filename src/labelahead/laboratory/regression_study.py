"""`labelahead study regression`: kernel regression on a whole data set (PN §5, LA App. B)."""

import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from labelahead.errors import InputError
from labelahead.laboratory.experiment import Cell, Experiment, Row
from labelahead.laboratory.materials import Items, items, one_hot, some
from labelahead.laboratory.regression_exhibits import exhibits
from labelahead.linalg import cholesky, solve_factored
from labelahead.models import build
from labelahead.regression import FeatureFile, Operator, Solved, TileFile, regress
from labelahead.tangent import features, kernel
from labelahead.train import Training, predict, train

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
    first = s.sets[0]
    found: list[Cell] = [
        {"part": "solvers", "set": first, "n": n, "seed": seed} for n in s.sizes for seed in seeds
    ]
    return found + [
        {"part": "whole", "set": name, "checkpoint": c, "seed": seed}
        for name in s.sets for c in s.checkpoints for seed in seeds
    ]  # fmt: skip


def measure(s: Settings, cell: Cell) -> Sequence[Row]:
    """One size, or one set at one checkpoint."""
    return solvers(s, cell) if cell["part"] == "solvers" else whole(s, cell)


def solvers(s: Settings, cell: Cell) -> list[Row]:
    """The same system by a float64 Cholesky factorisation and by conjugate gradients."""
    found = items(cell["set"], s.root)
    at = some(found, cell["n"], cell["seed"])
    x, y = found.inputs[at], one_hot(found.labels[at], found.classes)
    model = _network(s, found, cell["seed"])
    K, across = kernel(model, x), kernel(model, found.test_inputs, x).double()
    start = time.perf_counter()
    system = K.double()
    system.diagonal().add_(s.noise * float(system.diagonal().mean()))
    lower, _ = cholesky(system)
    exact = solve_factored(lower, y)
    dense_seconds = time.perf_counter() - start
    start = time.perf_counter()
    solved = regress(
        Held(K), y, noise=s.noise, rank=min(s.rank, len(x) // 4), tolerance=s.tolerance,
        seed=cell["seed"],
    )  # fmt: skip
    seconds = time.perf_counter() - start
    ours, theirs = across @ solved.alpha, across @ exact
    return [{
        "cholesky_seconds": dense_seconds, "cg_seconds": seconds, "iterations": solved.iterations,
        "output_difference": float((ours - theirs).norm() / theirs.norm()),
        "same_class": float((ours.argmax(1) == theirs.argmax(1)).double().mean()),
        "accuracy_exact": _right(theirs, found.test_labels),
        "accuracy_cg": _right(ours, found.test_labels),
    }]  # fmt: skip


class Held:
    """A kernel in memory, as an operator."""

    def __init__(self, K: Tensor) -> None:
        self._K = K

    @property
    def size(self) -> int:
        """n."""
        return len(self._K)

    def product(self, v: Tensor) -> Tensor:
        """Θ v."""
        return (self._K @ v.to(self._K)).double()

    def columns(self, at: Tensor) -> Tensor:
        """(n, q)."""
        return self._K[:, at].float()

    def diagonal(self) -> Tensor:
        """(n,)."""
        return self._K.diagonal().double()


def whole(s: Settings, cell: Cell) -> list[Row]:
    """Regression of Y − f on all points, with the kernel of f at a checkpoint of its training."""
    found, seed = items(cell["set"], s.root), cell["seed"]
    count = len(found.inputs) if s.whole is None else min(s.whole, len(found.inputs))
    at = some(found, count, seed)
    x, labels = found.inputs[at], found.labels[at]
    model = _network(s, found, seed)
    start = time.perf_counter()
    steps = round(cell["checkpoint"] * s.epochs * count / s.train_batch)
    if steps:
        how = Training(
            loss="squared", optimiser="sgd", rate=s.rate, schedule="constant", momentum=0.9,
            weight_decay=1e-4, steps=steps, batch=s.train_batch,
        )  # fmt: skip
        train(model, x, labels, found.classes, how, seed=seed)
    train_seconds = time.perf_counter() - start
    model.eval()
    f, f_test = predict(model, x).double(), predict(model, found.test_inputs).double()
    with _folder(s, cell) as folder:
        start = time.perf_counter()
        operator = _operator(model, x, folder, _about(s, cell, count))
        kernel_seconds = time.perf_counter() - start
        start = time.perf_counter()
        solved = regress(
            operator, one_hot(labels, found.classes) - f, noise=s.noise, rank=s.rank,
            tolerance=s.tolerance, seed=seed, checkpoint=folder / "solve.pt", most=3000,
        )  # fmt: skip
        solve_seconds = time.perf_counter() - start
        lin = f_test + _predicted(model, operator, x, found.test_inputs, solved)
    return [{
        "n": count, "test": len(lin), "form": type(operator).__name__, "steps": steps,
        "accuracy_f": _right(f_test, found.test_labels),
        "accuracy_kernel": _right(lin, found.test_labels),
        "train_seconds": train_seconds, "kernel_seconds": kernel_seconds,
        "solve_seconds": solve_seconds, "iterations": solved.iterations,
        "residual": solved.residuals[-1] if solved.residuals else 0.0,
        "disk_gb": _gigabytes(operator), "peak_gb": _peak(),
    }]  # fmt: skip


def _about(s: Settings, cell: Cell, count: int) -> str:
    """All that a network's weights and items depend on: what else differs, has another kernel."""
    told = (s.root, s.model, s.width, count, s.epochs, s.rate, s.train_batch)
    return f"{dict(cell)} {' '.join(map(str, told))}"


def _operator(model: nn.Module, x: Tensor, folder: Path, about: str) -> Operator:
    """Gradients if there are fewer of them than points, else tiles of the kernel."""
    n, width = len(x), sum(p.numel() for p in model.parameters() if p.requires_grad)
    if width <= n:  # a file of the kernel's size, without forming the kernel
        return FeatureFile(
            folder / "features.f32", n, width, lambda lo, hi: features(model, x[lo:hi]), about=about
        )
    return TileFile(folder / "tiles.f32", n, lambda r, c: kernel(model, x[r], x[c]), about=about)


def _predicted(
    model: nn.Module, operator: Operator, x: Tensor, test: Tensor, solved: Solved
) -> Tensor:
    """Θ(test, X) α, in blocks."""
    parts = []
    if isinstance(operator, FeatureFile):
        w = operator.weights(solved.alpha).float()
        parts = [(features(model, part) @ w).double() for part in torch.split(test, 2048)]
        return torch.cat(parts)
    for part in torch.split(test, 2048):
        total = torch.zeros((len(part), solved.alpha.shape[1]), dtype=torch.float64)
        for lo in range(0, len(x), 2048):
            block = kernel(model, part, x[lo : lo + 2048])
            total += (block @ solved.alpha[lo : lo + 2048].to(block)).double()
        parts.append(total)
    return torch.cat(parts)


@contextmanager
def _folder(s: Settings, cell: Cell) -> Iterator[Path]:
    if s.scratch is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    name = f"{Path(cell['set']).stem}-{cell['checkpoint']:g}-{cell['seed']}"
    folder_kept = Path(s.scratch).expanduser() / name
    folder_kept.mkdir(parents=True, exist_ok=True)
    yield folder_kept
    for file in folder_kept.glob("*.f32"):  # gigabytes that nobody needs any more
        file.unlink()


def _network(s: Settings, found: Items, seed: int) -> nn.Module:
    return build(s.model, found.shape, found.classes, width=s.width, seed=seed).eval()


def _right(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs.argmax(1) == labels).double().mean())


def _gigabytes(operator: Operator) -> float:
    """Of the file behind it."""
    array = operator._psi if isinstance(operator, FeatureFile) else operator._array  # type: ignore[attr-defined]
    return round(array.numel() * 4 / 2**30, 3)


def _peak() -> float:
    """Resident memory of this process at its largest, GiB; mapped files count while in memory."""
    unit = 2**30 if sys.platform == "darwin" else 2**20
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 2)


REGRESSION = Experiment(
    "regression",
    "Kernel regression on a whole data set",
    "Can the tangent kernel stand in for the network on all the data? The pseudo-kernel of tens of "
    "thousands of points is never held as a dense matrix: conjugate gradients work on gradients or "
    "tiles that lie on the disk.",
    Settings,
    cells,
    measure,
    exhibits,
    alone=True,
)
