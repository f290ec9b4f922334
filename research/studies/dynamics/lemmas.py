"""What `python -m research study dynamics` measures of its premises.

Lemma 1 on real networks, what Appendix B.3 drops.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.gp.dynamics import alignment, convergence, generalisation_bound, mmd
from labelahead.models import build_model
from labelahead.ntk import kernel
from research.studies.design import Cell, Row
from research.studies.dynamics.measure import fresh_kernel
from research.studies.study_data import items, one_hot, some

__all__ = ["PARTS", "compute_corrected_term", "compute_dropped_term", "lemma", "rows_of", "slack"]

DELTA = 0.05


def rows_of(s: Any, cell: Cell) -> Sequence[Row]:
    """The rows of one cell of these parts."""
    return PARTS[cell["part"]](s, cell)


def lemma(s: Any, cell: Cell) -> list[Row]:
    """‖Y − f(X; θ(t))‖ of a real network by gradient descent, beside E_t of its first kernel
    (DY-16), by width.

    E_t as the paper has it starts at ‖Y‖, so that f must vanish at first; E_t of Y − f₀ is given
    beside it. Theorem 1 bounds E_t² by Tr[YᵀY] − ηA above and Tr[YᵀY] − 2tηA below.
    """
    data, rows = items(s.data, s.root), list[Row]()
    at = some(data, s.lemma_items, cell["seed"], "lemma")
    x, y = data.inputs[at].double(), one_hot(data.labels[at], data.classes)
    for width in s.lemma_widths:
        net = (
            build_model("fcn", data.shape, data.classes, width=width, depth=2, seed=cell["seed"])
            .double()
            .eval()
        )
        theta = kernel(net, x, kind="trace")
        rate = s.lemma_rate / float(torch.linalg.eigvalsh(theta)[-1])
        with torch.no_grad():
            first = net(x)
        size, aligned = float(y.square().sum()), alignment(theta, y)
        for mark, out in _run_gradient_descent(net, x, y, rate, s.lemma_marks):
            expected = convergence(theta, y, rate, mark)
            inside = size - 2 * mark * rate * aligned <= expected**2 * (1 + 1e-9)
            below = mark == 0 or expected**2 <= (size - rate * aligned) * (1 + 1e-9)
            rows.append(
                {
                    "width": width,
                    "steps": mark,
                    "real": float((y - out).norm()) / size**0.5,
                    "predicted": expected / size**0.5,
                    "from_start": convergence(theta, y - first, rate, mark) / size**0.5,
                    "theorem": inside and below,
                }
            )
    return rows


def _run_gradient_descent(
    net: nn.Module, x: Tensor, y: Tensor, rate: float, marks: Sequence[int]
) -> list[tuple[int, Tensor]]:
    """Outputs after so many steps of gradient descent on ½‖f(x) − y‖²."""
    every, seen = list(net.parameters()), []
    for step in range(max(marks) + 1):
        out = net(x)
        if step in marks:
            seen.append((step, out.detach()))
        slopes = torch.autograd.grad(0.5 * (out - y).square().sum(), every)
        with torch.no_grad():
            for p, g in zip(every, slopes, strict=True):
                p.sub_(rate * g)
    return seen


def slack(s: Any, cell: Cell) -> list[Row]:
    """What stands beside MMD in the bound on L_p − L_q (App.

    B.3) and is left out of Figs 1 and 9.
    """
    data = items(s.data, s.root)
    rows: list[Row] = []
    for batch in s.batches:
        at = some(data, s.initial + batch, cell["seed"], "slack")
        K = fresh_kernel(s, data.inputs[at], data.classes, cell["seed"])
        y = one_hot(data.labels[at], data.classes)
        n, largest = len(at), float(K.max())
        rows.append(
            {
                "batch": batch,
                "labels": n,
                "largest": largest,
                "mmd": max(mmd(K, s.initial), 0.0) ** 0.5,
                "bound": generalisation_bound(K, y),
                "dropped": compute_dropped_term(largest, s.initial, n),
                "corrected": compute_corrected_term(largest, s.initial, n),
            }
        )
    return rows


def compute_dropped_term(largest: float, first: int, n: int, delta: float = DELTA) -> float:
    """Return the term beside MMD as printed: 4√(C/n) + √(4C ln(4/δ)/(γn)) with γ = n₀/n (DY, App.
    B.3).

    The paper writes γ = M/(M + B) for M initial labels and a budget B, so that n₀ = M and n = M +
    B. With it, n₀n/(n₀ + n) = γn/(1 + γ) ≥ γn/2, which turns the exponent −ε²n₀n/(2C(n₀ + n)) of
    the tail into −γε²n/(4C).

    Args:
        largest: C, the largest entry of the kernel.
        first: n₀, the initial labels.
        n: all labels, the initial ones included.
        delta: δ, the probability with which the bound may fail.
    """
    gamma = first / n
    return 4 * math.sqrt(largest / n) + math.sqrt(4 * largest * math.log(4 / delta) / (gamma * n))


def compute_corrected_term(largest: float, first: int, n: int, delta: float = DELTA) -> float:
    """Return the term that the tail bound really gives: 2(√(C/n₀) + √(C/n)) + √(2C ln(4/δ)(n₀ +
    n)/(n₀n)).

    The paper replaces 2(√(C/n₀) + √(C/n)) by 4√(C/n), which is smaller as n₀ ≤ n: a threshold may
    be raised, not lowered (docs/errata.md). Arguments as for `compute_dropped_term`.
    """
    offset = 2 * (math.sqrt(largest / first) + math.sqrt(largest / n))
    return offset + math.sqrt(2 * largest * math.log(4 / delta) * (first + n) / (first * n))


PARTS = {"lemma": lemma, "slack": slack}
