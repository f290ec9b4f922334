"""What `python -m research study regression` measures.

Solvers beside each other, then whole data sets.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.gp.linalg import cholesky, solve_factored
from labelahead.models import build_model
from labelahead.models.training import Training, predict, train
from labelahead.ntk import features, kernel
from research.regression import FeatureFile, Operator, Solved, TileFile, regress
from research.studies.design import Cell, Row
from research.studies.study_data import StudyData, items, one_hot, peak_memory, share_right, some

__all__ = ["DenseOperator", "network", "rows_of", "solvers", "whole"]

BLOCK = 2048  # test points whose kernel with all others is held at a time


def rows_of(s: Any, cell: Cell) -> Sequence[Row]:
    """One size, or one set at one checkpoint."""
    return solvers(s, cell) if cell["part"] == "solvers" else whole(s, cell)


def solvers(s: Any, cell: Cell) -> list[Row]:
    """The same system by a float64 Cholesky factorisation and by conjugate gradients."""
    data = items(cell["set"], s.root)
    at = some(data, cell["n"], cell["seed"])
    x, y = data.inputs[at], one_hot(data.labels[at], data.classes)
    model = network(s, data, cell["seed"])
    K, across = kernel(model, x), kernel(model, data.test_inputs, x).double()
    start = time.perf_counter()
    system = K.double()
    system.diagonal().add_(s.noise * float(system.diagonal().mean()))
    lower, _ = cholesky(system)
    exact = solve_factored(lower, y)
    dense_seconds = time.perf_counter() - start
    start = time.perf_counter()
    solved = regress(
        DenseOperator(K),
        y,
        noise=s.noise,
        rank=min(s.rank, len(x) // 4),
        tolerance=s.tolerance,
        seed=cell["seed"],
    )
    seconds = time.perf_counter() - start
    ours, theirs = across @ solved.alpha, across @ exact
    return [
        {
            "cholesky_seconds": dense_seconds,
            "cg_seconds": seconds,
            "iterations": solved.iterations,
            "output_difference": float((ours - theirs).norm() / theirs.norm()),
            "same_class": share_right(ours, theirs.argmax(1)),
            "accuracy_exact": share_right(theirs, data.test_labels),
            "accuracy_cg": share_right(ours, data.test_labels),
        }
    ]


class DenseOperator:
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


def whole(s: Any, cell: Cell) -> list[Row]:
    """Regression of Y − f on all points, with the kernel of f at a checkpoint of its training."""
    data, seed = items(cell["set"], s.root), cell["seed"]
    count = len(data.inputs) if s.whole is None else min(s.whole, len(data.inputs))
    at = some(data, count, seed)
    x, labels = data.inputs[at], data.labels[at]
    model = network(s, data, seed)
    start = time.perf_counter()
    steps = round(cell["checkpoint"] * s.epochs * count / s.train_batch)
    if steps:
        how = Training(
            loss="squared",
            optimiser="sgd",
            rate=s.rate,
            schedule="constant",
            momentum=0.9,
            weight_decay=1e-4,
            steps=steps,
            batch=s.train_batch,
        )
        train(model, x, labels, data.classes, how, seed=seed)
    train_seconds = time.perf_counter() - start
    model.eval()
    f, f_test = predict(model, x).double(), predict(model, data.test_inputs).double()
    with _folder(s, cell) as folder:
        start = time.perf_counter()
        operator = _operator(model, x, folder, _about(s, cell, count))
        kernel_seconds = time.perf_counter() - start
        start = time.perf_counter()
        solved = regress(
            operator,
            one_hot(labels, data.classes) - f,
            noise=s.noise,
            rank=s.rank,
            tolerance=s.tolerance,
            seed=seed,
            checkpoint=folder / "solve.pt",
            most=3000,
        )
        solve_seconds = time.perf_counter() - start
        lin = f_test + _predict_in_blocks(model, operator, x, data.test_inputs, solved)
    return [
        {
            "n": count,
            "test": len(lin),
            "form": type(operator).__name__,
            "steps": steps,
            "accuracy_f": share_right(f_test, data.test_labels),
            "accuracy_kernel": share_right(lin, data.test_labels),
            "train_seconds": train_seconds,
            "kernel_seconds": kernel_seconds,
            "solve_seconds": solve_seconds,
            "iterations": solved.iterations,
            "residual": solved.residuals[-1] if solved.residuals else 0.0,
            "disk_gb": _gigabytes(operator),
            "peak_gb": round(peak_memory() / 2**30, 2),
        }
    ]


def _about(s: Any, cell: Cell, count: int) -> str:
    """All that a network's weights and items depend on: what else differs, has another kernel."""
    values = (s.root, s.model, s.width, count, s.epochs, s.rate, s.train_batch)
    return f"{dict(cell)} {' '.join(map(str, values))}"


def _operator(model: nn.Module, x: Tensor, folder: Path, about: str) -> Operator:
    """Gradients if there are fewer of them than points, else tiles of the kernel."""
    n, width = len(x), sum(p.numel() for p in model.parameters() if p.requires_grad)
    if width <= n:  # a file of the kernel's size, without forming the kernel
        return FeatureFile(
            folder / "features.f32", n, width, lambda lo, hi: features(model, x[lo:hi]), about=about
        )
    return TileFile(folder / "tiles.f32", n, lambda r, c: kernel(model, x[r], x[c]), about=about)


def _predict_in_blocks(
    model: nn.Module, operator: Operator, x: Tensor, test: Tensor, solved: Solved
) -> Tensor:
    """Θ(test, X) α, in blocks."""
    if isinstance(operator, FeatureFile):
        w = operator.weights(solved.alpha).float()
        return torch.cat(
            [(features(model, part) @ w).double() for part in torch.split(test, BLOCK)]
        )
    parts = []
    for part in torch.split(test, BLOCK):
        total = torch.zeros((len(part), solved.alpha.shape[1]), dtype=torch.float64)
        for lo in range(0, len(x), BLOCK):
            block = kernel(model, part, x[lo : lo + BLOCK])
            total += (block @ solved.alpha[lo : lo + BLOCK].to(block)).double()
        parts.append(total)
    return torch.cat(parts)


@contextmanager
def _folder(s: Any, cell: Cell) -> Iterator[Path]:
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


def network(s: Any, data: StudyData, seed: int) -> nn.Module:
    """New, in eval mode."""
    return build_model(s.model, data.shape, data.classes, width=s.width, seed=seed).eval()


def _gigabytes(operator: Operator) -> float:
    """Of the file behind it."""
    array = operator._psi if isinstance(operator, FeatureFile) else operator._array  # type: ignore[attr-defined]
    return round(array.numel() * 4 / 2**30, 3)
