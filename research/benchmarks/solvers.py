"""Kernel regression: our preconditioned conjugate gradients beside linear_operator's and Cholesky.

The system is (Θ + σI) α = Y with the pseudo-kernel of the small CNN, float32 products, on digits
or (--data FOLDER with mnist/) on MNIST. linear_operator is what GPyTorch solves with: its
added-diagonal operator with a pivoted-Cholesky preconditioner of the same rank and tolerance. The
true residual is taken in float64.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import linear_operator
import torch
from linear_operator.operators import (
    AddedDiagLinearOperator,
    DiagLinearOperator,
    to_linear_operator,
)
from torch import Tensor

from contenders import HERE
from labelahead.gp.linalg import cholesky, solve_factored
from labelahead.models import build_model
from labelahead.ntk import kernel
from labelahead.simulation.comparison.execution import describe_machine
from research.regression import regress
from research.studies.regression.measure import DenseOperator
from research.studies.study_data import items, one_hot, some

RESULTS = HERE / "results" / "solvers.json"


def by_cholesky(K: Tensor, y: Tensor, noise: float, **_: Any) -> tuple[Tensor, int]:
    system = K.double()
    system.diagonal().add_(noise * float(system.diagonal().mean()))
    return solve_factored(cholesky(system)[0], y), 0


def by_ours(K: Tensor, y: Tensor, noise: float, rank: int, tolerance: float) -> tuple[Tensor, int]:
    solved = regress(DenseOperator(K), y, noise=noise, rank=rank, tolerance=tolerance)
    return solved.alpha, solved.iterations


def by_linear_operator(
    K: Tensor, y: Tensor, noise: float, rank: int, tolerance: float
) -> tuple[Tensor, int]:
    sigma = noise * float(K.diagonal().mean())
    operator = AddedDiagLinearOperator(
        to_linear_operator(K), DiagLinearOperator(torch.full((len(K),), sigma))
    )
    s = linear_operator.settings
    with (
        s.max_cholesky_size(1),
        s.cg_tolerance(tolerance),
        s.max_cg_iterations(1000),
        s.max_preconditioner_size(rank),
        s.min_preconditioning_size(1),
        torch.no_grad(),
    ):
        return operator.solve(y.float()).double(), -1


SOLVERS: dict[str, Callable[..., tuple[Tensor, int]]] = {
    "cholesky": by_cholesky,
    "ours": by_ours,
    "linear_operator": by_linear_operator,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000])
    parser.add_argument("--noise", type=float, default=1e-3)
    parser.add_argument("--rank", type=int, default=200)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = items("mnist", str(given.data)) if given.data else items("digits")
    model = build_model("cnn", data.shape, data.classes, width=8, seed=0).eval()
    rows = []
    for n in given.sizes:
        at = some(data, n, 0)
        y = one_hot(data.labels[at], data.classes)
        K = kernel(model, data.inputs[at])
        sigma = given.noise * float(K.double().diagonal().mean())
        for name, solve in SOLVERS.items():
            start = time.perf_counter()
            alpha, iterations = solve(
                K, y, noise=given.noise, rank=given.rank, tolerance=given.tolerance
            )
            seconds = time.perf_counter() - start
            left = K.double() @ alpha + sigma * alpha - y
            residual = float((left.norm(dim=0) / y.norm(dim=0)).max())
            rows.append(
                {
                    "n": n,
                    "solver": name,
                    "seconds": round(seconds, 3),
                    "iterations": iterations,
                    "true_residual": residual,
                }
            )
            print(f"n {n:6} {name:16} {seconds:8.2f} s  residual {residual:.1e}", flush=True)
    about = {
        "machine": describe_machine(),
        "threads": 1,
        "rank": given.rank,
        "noise": given.noise,
        "tolerance": given.tolerance,
        "linear_operator": linear_operator.__version__,
    }
    given.results.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
