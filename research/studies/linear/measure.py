"""What `python -m research study linear` measures: how linear a network is in its weights."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from labelahead.gp.flow import gradient_flow
from labelahead.gp.posterior import prior
from labelahead.ntk import directional, kernel
from labelahead.seeds import make_generator
from research.studies.design import Cell, Row

__all__ = [
    "SMOOTHNESS",
    "TwoLayer",
    "arc_cosine",
    "descend",
    "relu_bound",
    "rows_of",
    "smooth_bound",
    "sphere",
    "target",
]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu}
SMOOTHNESS = 4 / (3 * math.sqrt(3))  # β of tanh: the largest |σ''|


class TwoLayer(nn.Module):
    """f(x) = α (1/√m) Σ_j a_j σ(w_jᵀx), a_j = ±1 fixed, w_j standard normal; float64.

    scale: α. centred: less what it is at the initial weights, so that f starts at zero.
    """

    w0: Tensor
    a: Tensor

    def __init__(
        self,
        d: int,
        m: int,
        activation: str,
        rng: torch.Generator,
        *,
        scale: float = 1.0,
        centred: bool = False,
    ) -> None:
        super().__init__()
        w = torch.randn(m, d, generator=rng, dtype=torch.float64)
        a = torch.randint(0, 2, (m,), generator=rng).double() * 2 - 1
        self.w = nn.Parameter(w)
        self.register_buffer("w0", w.clone())
        self.register_buffer("a", a)
        self.activation, self.scale, self.centred = ACTIVATIONS[activation], scale, centred

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, 1)."""
        hidden = self.activation(functional.linear(x, self.w))
        if self.centred:
            hidden = hidden - self.activation(functional.linear(x, self.w0))
        out: Tensor = self.scale / math.sqrt(len(self.a)) * (hidden @ self.a[:, None])
        return out

    @property
    def moved(self) -> Tensor:
        """W − W₀."""
        moved: Tensor = self.w.detach() - self.w0
        return moved


def sphere(n: int, d: int, rng: torch.Generator) -> Tensor:
    """(n, d) points of norm 1."""
    x = torch.randn(n, d, generator=rng, dtype=torch.float64)
    return functional.normalize(x, dim=1)


def target(x: Tensor) -> Tensor:
    """(n, 1): something smooth and not linear to learn."""
    return torch.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]


def arc_cosine(x: Tensor) -> Tensor:
    """The kernel of infinite width for ReLU on the sphere: x·x' (1/2 − arccos(x·x')/2π) (LE)."""
    cos = (x @ x.T).clamp(-1, 1)
    return cos * (0.5 - torch.arccos(cos) / (2 * math.pi))


def smooth_bound(m: int, distance: float, beta: float = SMOOTHNESS) -> float:
    """|f − f_lin| ≤ β/(2√m) ‖W − W₀‖²_F for a β-smooth activation and ‖x‖ ≤ 1, any W (LE)."""
    return beta / (2 * math.sqrt(m)) * distance**2


def relu_bound(m: int, distance: float, delta: float = 0.05) -> float:
    """(2B^{4/3} + B log(1/δ)^{1/4})/m^{1/6} for all W within B, with probability 1 − δ (LE)."""
    b = distance
    return float((2 * b ** (4 / 3) + b * math.log(1 / delta) ** 0.25) / m ** (1 / 6))


def descend(
    net: TwoLayer, x: Tensor, y: Tensor, watch: Tensor, *, rate: float, marks: Sequence[int]
) -> Tensor:
    """(T, e, 1): outputs at `watch` after marks[t] steps of gradient descent on ½‖f(x) − y‖².

    The network keeps its last weights. The loss over α² at the rate η is this loss at the rate
    η/α², so that lazy training needs no loss of its own.
    """
    seen = []
    for step in range(marks[-1] + 1):
        if step in marks:
            with torch.no_grad():
                seen.append(net(watch))
        if step < marks[-1]:
            loss = 0.5 * (net(x) - y).square().sum()
            (slope,) = torch.autograd.grad(loss, [net.w])
            with torch.no_grad():
                net.w.sub_(rate * slope)
    return torch.stack(seen)


def rows_of(s: Any, cell: Cell) -> Sequence[Row]:
    """The rows of one cell of the study."""
    parts = {"error": error, "limit": limit, "flow": flow, "lazy": lazy, "warm": warm}
    return parts[cell["part"]](s, cell)


def _points(s: Any, cell: Cell) -> tuple[Tensor, Tensor]:
    """(n + e, d) points, the first n of them to learn from, and their targets (n + e, 1)."""
    x = sphere(s.items + s.evaluation, s.dimension, make_generator(cell["seed"], "points"))
    return x, target(x)


def _net(s: Any, cell: Cell, m: int, activation: str = "tanh", **more: Any) -> TwoLayer:
    return TwoLayer(
        s.dimension, m, activation, make_generator(cell["seed"], "weights", m), **more
    ).eval()


def _rate(theta: Tensor, n: int, step: float) -> float:
    return step / float(torch.linalg.eigvalsh(theta[:n, :n])[-1])


def error(s: Any, cell: Cell) -> list[Row]:
    """Trained networks against their linearisation at the initial weights, with the bounds."""
    x, y = _points(s, cell)
    rows: list[Row] = []
    for activation in ("tanh", "relu"):
        for m in s.widths:
            net = _net(s, cell, m, activation)
            start = copy.deepcopy(net)
            with torch.no_grad():
                before = start(x)
            rate = _rate(kernel(start, x), s.items, 1.0)
            after = descend(net, x[: s.items], y[: s.items], x, rate=rate, marks=(s.steps,))[0]
            linear = before + directional(start, x, {"w": net.moved}).reshape(before.shape)
            distance = float(net.moved.norm())
            bound = (smooth_bound if activation == "tanh" else relu_bound)(m, distance)
            rows.append(
                {
                    "activation": activation,
                    "width": m,
                    "distance": distance,
                    "bound": bound,
                    "error": float((after - linear).abs().max()),
                    "train_error": float((after - y)[: s.items].abs().max()),
                    "worst": _worst(start, x[:1], distance) if activation == "tanh" else None,
                }
            )
    return rows


def _worst(net: TwoLayer, x: Tensor, distance: float) -> float:
    """The error at x (1, d) as far from W₀, but along x in the units where a_j σ'' > 0.

    There all second-order terms have one sign. Those of training have the signs of a_j.
    """
    hidden = torch.tanh(x @ net.w0.T)[0]
    bent = (net.a * -2 * hidden * (1 - hidden.square())) > 0  # tanh'' = −2 tanh (1 − tanh²)
    step = bent.double()[:, None] * x * (distance / float(bent.sum().clamp_min(1)) ** 0.5)
    moved = copy.deepcopy(net)
    with torch.no_grad():
        moved.w.add_(step)
        return float((moved(x) - net(x) - directional(net, x, {"w": step})).abs())


def limit(s: Any, cell: Cell) -> list[Row]:
    """The kernel of a ReLU network against the arc-cosine kernel of infinite width."""
    x, _ = _points(s, cell)
    want = arc_cosine(x)
    return [
        {
            "width": m,
            "error": float((kernel(_net(s, cell, m, "relu"), x) - want).norm() / want.norm()),
        }
        for m in s.widths
    ]


def flow(s: Any, cell: Cell) -> list[Row]:
    """Gradient flow in closed form (LA-5) against small real steps, along the way."""
    x, y = _points(s, cell)
    n, rows = s.items, list[Row]()
    for m in s.flow_widths:
        net = _net(s, cell, m)
        theta = kernel(net, x)
        with torch.no_grad():
            f = net(x)
        rate = _rate(theta, n, s.flow_step)
        guess = gradient_flow(f, theta, torch.arange(n), y[:n], [rate * t for t in s.flow_marks])
        real = descend(net, x[:n], y[:n], x, rate=rate, marks=s.flow_marks)
        for mark, p, r in zip(s.flow_marks, guess, real, strict=True):
            gone = (real[-1] - f)[n:].norm()
            rows.append(
                {
                    "width": m,
                    "steps": mark,
                    "time": s.flow_step * mark,
                    "error": float((p.view_as(r) - r)[n:].norm() / gone),
                    "predicted": p[n : n + 3].flatten().tolist(),
                    "real": r[n : n + 3].flatten().tolist(),
                }
            )
    return rows


def lazy(s: Any, cell: Cell) -> list[Row]:
    """Output scale α with the loss over α² (Chizat & Bach): what moves, and how far from linear."""
    x, y = _points(s, cell)
    n, rows = s.items, list[Row]()
    for scale in s.scales:
        net = _net(s, cell, s.lazy_width, scale=scale, centred=True)
        theta = kernel(net, x)
        rate = _rate(theta, n, s.lazy_step)
        time = rate * s.lazy_steps
        guess = gradient_flow(torch.zeros_like(y), theta, torch.arange(n), y[:n], time)
        real = descend(net, x[:n], y[:n], x, rate=rate, marks=(s.lazy_steps,))[0]
        after = kernel(net, x)
        rows.append(
            {
                "scale": scale,
                "kernel_moved": float((after - theta).norm() / theta.norm()),
                "weights_moved": float(net.moved.norm() / net.w0.norm()),
                "distance": float((guess - real)[n:].norm() / guess[n:].norm()),
                "test_error": float((real - y)[n:].square().mean()),
                "linear_test_error": float((guess - y)[n:].square().mean()),
            }
        )
    return rows


def warm(s: Any, cell: Cell) -> list[Row]:
    """(LA, Theorem 3.1): training on S₁ ⊂ S₂ ⊂ … one after the other, and on the last one at once.

    With a fixed kernel to the end of training, with a fixed kernel for some time a set, and with
    real networks, where the kernel moves.
    """
    x, y = _points(s, cell)
    n, rows = s.items, list[Row]()
    sets = [round(n * (i + 1) / s.stages) for i in range(s.stages)]
    net = _net(s, cell, s.lazy_width)
    with torch.no_grad():
        f = net(x)
    theta = kernel(net, x)
    top = float(torch.linalg.eigvalsh(theta[:n, :n])[-1])
    # (LA-10) by the product's own solver, to the end of training
    now = f
    for q in sets:
        now = prior(now, theta, noise=0.0).condition(torch.arange(q), y[:q]).mean
    once = prior(f, theta, noise=0.0).condition(torch.arange(n), y[:n]).mean
    rows.append(
        {"kind": "fixed kernel", "time": "∞", "width": 0, "difference": _apart(now, once, f, n)}
    )
    for time in s.warm_times:
        now, once = f, gradient_flow(f, theta, torch.arange(n), y[:n], time / top)
        for q in sets:
            now = gradient_flow(now, theta, torch.arange(q), y[:q], time / top)
        rows.append(
            {
                "kind": "fixed kernel",
                "time": f"{time:g}",
                "width": 0,
                "difference": _apart(now, once, f, n),
            }
        )
    for m in s.flow_widths:
        first, second = _net(s, cell, m), _net(s, cell, m)
        with torch.no_grad():
            start = first(x)
        rate = _rate(kernel(first, x), n, 1.0)
        for q in sets:
            out = descend(first, x[:q], y[:q], x, rate=rate, marks=(s.steps,))[0]
        other = descend(second, x[:n], y[:n], x, rate=rate, marks=(s.steps,))[0]
        rows.append(
            {
                "kind": "real network",
                "time": f"{s.steps} steps",
                "width": m,
                "difference": _apart(out, other, start, n),
            }
        )
    return rows


def _apart(warm: Tensor, cold: Tensor, start: Tensor, n: int) -> float:
    """How far two results are apart at the evaluation points, over how far training went."""
    apart = float((warm - cold)[n:].norm())
    return apart and apart / float((cold - start)[n:].norm())  # what diverged is not hidden
