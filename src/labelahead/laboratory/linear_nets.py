"""The lecture's network (LE): two layers, one of them fixed; and gradient descent on it."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "SMOOTHNESS",
    "TwoLayer",
    "arc_cosine",
    "descend",
    "relu_bound",
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
        found: Tensor = self.w.detach() - self.w0
        return found


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
