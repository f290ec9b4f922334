"""What `python -m research study kernel` measures of the proofs.

PN's Theorems 5 and 6, the lemmas behind TH's 3.3.1.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.gp.linalg import cholesky, solve_factored
from labelahead.models import build_model
from labelahead.ntk import kernel
from labelahead.seeds import make_generator
from research.studies.design import Cell, Row
from research.studies.study_data import items, one_hot, some

__all__ = ["PARTS", "layer_kernels", "layers", "regression_bound", "rows_of", "theorems"]

DELTA = 0.05  # of PN's bounds


def rows_of(s: Any, cell: Cell) -> Sequence[Row]:
    """The rows of one cell of these parts."""
    return PARTS[cell["part"]](s, cell)


def theorems(s: Any, cell: Cell) -> list[Row]:
    """The largest eigenvalue (PN Theorem 5) and kernel regression (Theorem 6) by both kernels of a
    new fcn, float64.
    """
    data, w = items(s.data, s.root), int(cell["width"])
    at = some(data, s.theorem_items + s.theorem_test, cell["seed"])
    x, n, C = data.inputs[at].double(), s.theorem_items, data.classes
    y = one_hot(data.labels[at[:n]], C)
    model = build_model("fcn", data.shape, C, width=w, seed=cell["seed"]).double().eval()
    full = kernel(model, x, kind="full")
    pseudo = full.reshape(len(x), C, len(x), C).sum((1, 3)) / C
    ours, theirs = pseudo[:n, :n], full[: n * C, : n * C]
    tops = [float(torch.linalg.eigvalsh(m)[-1]) for m in (ours, theirs)]
    lows = [float(torch.linalg.eigvalsh(m)[0]) for m in (ours, theirs)]
    h = _solve_regression(theirs, full[n * C :, : n * C], y.reshape(-1, 1)).reshape(-1, C)
    hat = _solve_regression(ours, pseudo[n:, :n], y)
    apart = float((hat - h).norm(dim=1).mean())
    alpha = _largest_hidden(model, x)
    scale = math.sqrt(w)
    across = float(torch.linalg.matrix_norm(full[n * C : n * C + C, : n * C], 2)) / scale
    return [
        {
            "gap": abs(tops[0] - tops[1]) / scale,  # as PN-4 has it
            "relative_gap": abs(tops[0] - tops[1]) / tops[1],
            "gap_bound": n * _pn(alpha, C) / scale,  # N pairs a row: PN-25 is of a single pair
            "apart": apart,
            "relative_apart": apart / float(h.norm(dim=1).mean()),
            "apart_bound": regression_bound(
                n, C, alpha, min(lows) / scale, scale, float(y.norm()), across
            ),
        }
    ]


def _solve_regression(prior: Tensor, cross: Tensor, y: Tensor) -> Tensor:
    lower, _ = cholesky(prior)
    return cross @ solve_factored(lower, y)


def _largest_hidden(model: nn.Module, x: Tensor) -> float:
    """α: the largest entry, in size, of the kernel of the last hidden layer, over all pairs of a
    few items.
    """
    trunk = nn.Sequential(*list(model.children())[:-1]).eval()
    return float(kernel(trunk, x[:3], kind="full").abs().max())


def _pn(alpha: float, classes: int) -> float:
    """PN-22 without its 1/√w."""
    logarithm = math.log(8 * classes**2 / DELTA)
    factor: float = 8 * classes * alpha * max(logarithm**0.5, 2**0.5 * logarithm)
    return factor


def regression_bound(
    n: int, classes: int, alpha: float, lowest: float, scale: float, size: float, across: float
) -> float:
    """PN-34 on ‖ĥ(x) − h(x)‖; lowest: the smaller of the smallest eigenvalues, of the kernels over
    `scale` = √w.

    size: ‖Y‖; across: ‖Θ(x, X)‖/√w.
    """
    return n * _pn(alpha, classes) / (lowest * scale) * size * (1 + n / lowest * across)


def layers(s: Any, cell: Cell) -> list[Row]:
    """The entries of every layer's kernel at a pair of points by (A.20), in TH's Setting B (A.7.5
    to A.7.12).
    """
    rng = make_generator(cell["seed"], "layers", int(cell["width"]))
    n, d, C = int(cell["width"]), s.layer_inputs, s.layer_outputs
    points = torch.randn(
        2, d, generator=make_generator(cell["seed"], "layer points"), dtype=torch.float64
    )
    x = torch.nn.functional.normalize(points, dim=1)
    sizes = [d, *[n] * s.layer_depth, C]
    weights = [
        torch.randn(b, a, generator=rng, dtype=torch.float64) / math.sqrt(a)
        for a, b in pairwise(sizes)
    ]
    rows: list[Row] = []
    for number, (theta, square, product) in enumerate(layer_kernels(weights, x), start=1):
        on = theta.diagonal()
        off = theta - torch.diag(on)
        scalar = theta.sum() / len(theta)  # (A.22): the pseudo-kernel of this layer
        last = number == len(weights)
        rows.append(
            {
                "layer": "read-out" if last else str(number),
                "diagonal": float(on.abs().max()),
                "off": float(off.abs().max()),
                "product": None if last else float(square),  # f(x₁)·f(x₁) after this layer
                "cross": None if last else float(product),  # f(x₁)·f(x₂)
                "share": None
                if last
                else float(square) / n * d,  # (A.50) has 1 for x₁ = x₂ of norm 1
                "distance": float((theta - scalar * torch.eye(len(theta))).norm()),
                "norm": float(theta.norm()),
            }
        )
    return rows


def layer_kernels(weights: Sequence[Tensor], x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For every layer the kernel Θ^(l)(x₁, x₂) of its outputs, (n_l, n_l), f^l(x₁)·f^l(x₁) and
    f^l(x₁)·f^l(x₂) (A.20).

    x: (2, d). All layers but the last are followed by ReLU.
    """
    one, two = x
    theta = torch.zeros(len(one), len(one), dtype=x.dtype)
    found = []
    for number, w in enumerate(weights):
        last = number == len(weights) - 1
        seen = one @ two
        a, b = w @ one, w @ two
        bent = [torch.ones_like(v) if last else (v > 0).to(v) for v in (a, b)]
        v1, v2 = (w * bent[0][:, None]), (w * bent[1][:, None])
        theta = v1 @ theta @ v2.T + torch.diag(seen * bent[0] * bent[1])
        one, two = (v if last else torch.relu(v) for v in (a, b))
        found.append((theta, one @ one, one @ two))
    return found


PARTS = {"theorems": theorems, "layers": layers}
