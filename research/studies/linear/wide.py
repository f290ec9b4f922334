"""What `python -m research study linear` measures besides.

Suprema, how far kernels move, and what a kernel cannot learn.
"""

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from labelahead.gp.linalg import cholesky, solve_factored
from labelahead.ntk import infinite_kernel, kernel
from labelahead.seeds import make_generator
from research.studies.design import Cell, Row
from research.studies.linear.measure import relu_bound, sphere, target

__all__ = [
    "PARTS",
    "Deep",
    "drift",
    "linear_steps",
    "measure_trained_network",
    "rows_of",
    "separation",
    "step_kernel",
    "supremum",
    "universal",
    "worst_relu",
]

STD = 2**0.5  # of a weight times √inputs, before a ReLU


class Deep(nn.Module):
    """κ·f, f with `depth` hidden layers of m ReLU units without biases in the NTK parametrisation.

    Float64.
    """

    def __init__(
        self, d: int, m: int, depth: int, rng: torch.Generator, *, scale: float = 1.0
    ) -> None:
        super().__init__()
        sizes = [d, *[m] * depth, 1]
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
        self.scale = scale
        self.double()
        with torch.no_grad():
            for layer in self.layers:
                assert isinstance(layer, nn.Linear)
                layer.weight.copy_(
                    torch.randn(layer.weight.shape, generator=rng, dtype=torch.float64)
                )

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, 1)."""
        h, last = x, len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            h = layer(h) * ((1.0 if number == last else STD) / math.sqrt(h.shape[1]))
            h = h if number == last else torch.relu(h)
        return h * self.scale


def limit_kernel(x: Tensor, x2: Tensor, depth: int) -> Tensor:
    """The kernel of `Deep` without end, (n, m)."""
    return infinite_kernel(x, x2, depth=depth, weight_std=[STD] * depth + [1.0], bias_std=None)


def linear_steps(
    f: Tensor, theta: Tensor, n: int, y: Tensor, rate: float, steps: Sequence[int]
) -> list[Tensor]:
    """Outputs of the linearised network after so many steps of gradient descent on its first n
    points, exactly.

    f: (n + e, 1) before any step; theta: its kernel.
    """
    values, vectors = torch.linalg.eigh(theta[:n, :n])
    left = vectors.T @ (y - f[:n])
    across = theta[:, :n] @ vectors
    rates = rate * values
    # Σ_{s<k} η(1 − ηλ)^s, which is ηk where λ is nothing
    sums = [
        torch.where(rates.abs() > 1e-14, (1 - (1 - rates) ** k) / values, rate * k) for k in steps
    ]
    return [f + across @ (each[:, None] * left) for each in sums]


def worst_relu(w: Tensor, a: Tensor, radius: float) -> float:
    """sup |f − f_lin| at a point of norm 1 over all W within `radius` of W₀, for the two-layer ReLU
    network: exactly.

    w: (m,) what the units see there, a: (m,) their signs. A unit errs by (|c| − |w|)₊ if it is
    moved by c along the point, with the sign of a: one takes the k units of one sign nearest to
    their kink, each moved by radius/√k.
    """
    best = 0.0
    for sign in (1.0, -1.0):
        near = torch.sort(w[a == sign].abs()).values
        k = torch.arange(1, len(near) + 1, dtype=torch.float64)
        best = (
            max(best, float((radius * k.sqrt() - near.cumsum(0)).clamp_min(0).max()))
            if len(near)
            else best
        )
    return best / math.sqrt(len(w))


def supremum(s: Any, cell: Cell) -> list[Row]:
    """The lecture's bound for ReLU is on a supremum, with probability 1 − δ.

    Both are taken at their word.
    """
    rows: list[Row] = []
    for m in s.sup_widths:
        rng = make_generator(cell["seed"], "supremum", m)
        drawn: dict[float, list[float]] = {radius: [] for radius in s.radii}
        for _ in range(s.sup_draws):
            w = torch.randn(m, generator=rng, dtype=torch.float64)  # w·x for any x of norm 1
            a = torch.randint(0, 2, (m,), generator=rng).double() * 2 - 1
            for radius, each in drawn.items():
                each.append(worst_relu(w, a, radius))
        for radius, each in drawn.items():
            got = torch.tensor(each, dtype=torch.float64)
            row: dict[str, Any] = {"width": m, "radius": radius, "median": float(got.median())}
            for delta in s.deltas:
                bound = relu_bound(m, radius, delta)
                row[f"quantile_{delta:g}"] = float(got.quantile(1 - delta))
                row[f"bound_{delta:g}"] = bound
                row[f"above_{delta:g}"] = float((got > bound).double().mean())
            rows.append(row)
    return rows


def _points(s: Any, cell: Cell) -> tuple[Tensor, Tensor]:
    """(n + e, d) points of norm √d, so that their limit kernel has a diagonal of order one, and
    targets.
    """
    x = sphere(s.items + s.evaluation, s.dimension, make_generator(cell["seed"], "points"))
    return x * math.sqrt(s.dimension), target(x)


def drift(s: Any, cell: Cell) -> list[Row]:
    """(LA-9) sup over training of ‖Θ_t − Θ_0‖ and of |f_t − f_t^lin|, by width and depth.

    And Θ_0 against its limit.
    """
    x, y = _points(s, cell)
    n, rows = s.items, list[Row]()
    for depth in s.depths:
        want = limit_kernel(x, x, depth)
        for m in s.drift_widths:
            net = Deep(s.dimension, m, depth, make_generator(cell["seed"], "deep", depth, m)).eval()
            theta = kernel(net, x)
            with torch.no_grad():
                f = net(x)
            rate = s.drift_step / float(torch.linalg.eigvalsh(theta[:n, :n])[-1])
            marks = sorted({0, *s.drift_marks})
            guesses = linear_steps(f, theta, n, y[:n], rate, marks)
            moved = apart = 0.0
            for mark, guess in zip(marks, guesses, strict=True):
                _descend(
                    net, x[:n], y[:n], rate, mark - (marks[marks.index(mark) - 1] if mark else 0)
                )
                with torch.no_grad():
                    apart = max(apart, float((net(x) - guess).norm() / (len(x)) ** 0.5))
                moved = max(moved, float((kernel(net, x) - theta).norm() / theta.norm()))
            with torch.no_grad():
                left = float((net(x[:n]) - y[:n]).norm() / (f[:n] - y[:n]).norm())
            rows.append(
                {
                    "depth": depth,
                    "width": m,
                    "kernel_moved": moved,
                    "output_gap": apart,
                    "limit_gap": float((theta - want).norm() / want.norm()),
                    "left": left,
                }
            )
    return rows


def _descend(net: nn.Module, x: Tensor, y: Tensor, rate: float, steps: int) -> None:
    """Gradient descent on ½‖f(x) − y‖², in place."""
    every = list(net.parameters())
    for _ in range(steps):
        loss = 0.5 * (net(x) - y).square().sum()
        slopes = torch.autograd.grad(loss, every)
        with torch.no_grad():
            for p, g in zip(every, slopes, strict=True):
                p.sub_(rate * g)


def measure_trained_network(s: Any, cell: Cell) -> list[Row]:
    """(LE, Theorem 3.2) a trained network κf against regression with the kernel of infinite width,
    by κ and width.
    """
    x, y = _points(s, cell)
    n, rows = s.items, list[Row]()
    want = limit_kernel(x, x, s.trained_depth)
    lower, _ = cholesky(want[:n, :n])
    answer = want[n:, :n] @ solve_factored(lower, y[:n])
    for m in s.trained_widths:
        start = Deep(
            s.dimension, m, s.trained_depth, make_generator(cell["seed"], "trained", m)
        ).eval()
        top = float(torch.linalg.eigvalsh(kernel(start, x[:n]))[-1])
        for kappa in s.kappas:
            net = copy.deepcopy(start)
            net.scale = kappa
            _descend(net, x[:n], y[:n], s.trained_step / (top * kappa**2), s.trained_steps)
            with torch.no_grad():
                out = net(x)
            rows.append(
                {
                    "width": m,
                    "kappa": kappa,
                    "distance": float((out[n:] - answer).norm() / answer.norm()),
                    "left": float((out[:n] - y[:n]).norm() / y[:n].norm()),
                }
            )
    return rows


def step_kernel(x: Tensor, x2: Tensor) -> Tensor:
    """E[σ'(w·x) σ'(w·x')] = 1/2 − arccos(x·x')/2π for points of norm 1 (LE)."""
    return 0.5 - torch.arccos((x @ x2.T).clamp(-1, 1)) / (2 * math.pi)


def universal(s: Any, cell: Cell) -> list[Row]:
    """(LE) the arc-cosine kernel is universal on {‖x‖ = 1, x_{d+1} = 1/√2}, not on the sphere.

    An even target tells.
    """
    d, most = s.universal_dimension, max(s.universal_items)
    x = sphere(most + s.universal_test, d, make_generator(cell["seed"], "universal"))
    raised = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1) / math.sqrt(2)
    targets = {"odd": x[:, :1] ** 3, "even": x[:, :1] ** 2 * x[:, 1:2] ** 2}
    rows: list[Row] = []
    for place, points in (("sphere", x), ("raised", raised)):
        for kind, y in targets.items():
            for n in s.universal_items:
                rows.append(
                    {
                        "place": place,
                        "target": kind,
                        "items": n,
                        "error": _measure_unexplained_variance(points, y, n, most),
                    }
                )
    return rows


def _measure_unexplained_variance(x: Tensor, y: Tensor, n: int, most: int) -> float:
    """Of the variance at the points from `most` on, by regression with the step kernel on the first
    n.
    """
    centre = y[:n].mean()
    lower, _ = cholesky(step_kernel(x[:n], x[:n]) + 1e-10 * torch.eye(n, dtype=x.dtype))
    out = centre + step_kernel(x[most:], x[:n]) @ solve_factored(lower, y[:n] - centre)
    return float((out - y[most:]).square().mean() / y[most:].var())


def separation(s: Any, cell: Cell) -> list[Row]:
    """(LE) a target that gradient descent learns and a kernel does not with so few points.

    One ReLU unit.
    """
    rows: list[Row] = []
    for d in s.separation_dimensions:
        rng = make_generator(cell["seed"], "separation", d)
        truth = functional.normalize(torch.randn(d, generator=rng, dtype=torch.float64), dim=0)
        for share in s.separation_shares:
            n = round(share * d)
            x = torch.randn(n + s.separation_test, d, generator=rng, dtype=torch.float64)
            y = torch.relu(x @ truth)[:, None]
            start = torch.randn(d, generator=rng, dtype=torch.float64) / math.sqrt(d)
            rows.append(
                {
                    "dimension": d,
                    "share": share,
                    "items": n,
                    "unit": _unit_error(x, y, n, start, s.separation_steps),
                    "tangent": _kernel_error(_unit_kernel(x, x[:n], start), y, n),
                    "infinite": _kernel_error(
                        infinite_kernel(x, x[:n], depth=1, bias_std=None), y, n
                    ),
                }
            )
    return rows


def _unit_error(x: Tensor, y: Tensor, n: int, start: Tensor, steps: int) -> float:
    """Relative squared error at the points from n on of one ReLU unit after gradient descent."""
    w = start.clone()
    for _ in range(steps):
        z = x[:n] @ w
        w -= x[:n].T @ ((torch.relu(z) - y[:n, 0]) * (z > 0)) / n
    return _relative(torch.relu(x[n:] @ w)[:, None], y[n:])


def _unit_kernel(x: Tensor, x2: Tensor, w: Tensor) -> Tensor:
    """The tangent kernel of that unit at its initial weights."""
    return (x @ x2.T) * (x @ w > 0).double()[:, None] * (x2 @ w > 0).double()[None]


def _kernel_error(across: Tensor, y: Tensor, n: int) -> float:
    """The same of kernel regression, with the best of some regularisers.

    Chosen in hindsight, in its favour.
    """
    prior = across[:n]
    found = []
    for noise in (1e-6, 1e-4, 1e-2, 1.0):
        lower, _ = cholesky(
            prior + noise * prior.diagonal().mean() * torch.eye(n, dtype=prior.dtype)
        )
        found.append(_relative(across[n:] @ solve_factored(lower, y[:n]), y[n:]))
    return min(found)


def _relative(out: Tensor, y: Tensor) -> float:
    return float((out - y).square().mean() / y.var())


PARTS = {
    "supremum": supremum,
    "drift": drift,
    "trained": measure_trained_network,
    "universal": universal,
    "separation": separation,
}


def rows_of(s: Any, cell: Cell) -> Sequence[Row]:
    """The rows of one cell of these parts."""
    return PARTS[cell["part"]](s, cell)
