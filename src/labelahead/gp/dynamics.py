"""Training dynamics: how fast a label set is learnt, and what a label adds to it (dynamicAL, DY).

G(S) = Σᵢⱼ dᵢᵀ Θ(xᵢ,xⱼ) dⱼ with d = ∂loss/∂outputs is the rate at which the training loss falls
under gradient flow (DY-8); it equals ‖∇L(S)‖², L the summed loss. With g(x) = ∇ℓ(x, ŷ),

    Δ(x|S) = ‖g(x)‖² + γ g(x)·∇L(S),        γ = 2 is exact for one item                   (DY-15)
    Δ(Q|S) = Σ_Q Δ(x|S) + Σ_{x≠x' in Q} g(x)·g(x')                                        (DY-13)
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from labelahead.batching import Inputs, call_model, read_batch, take_samples
from labelahead.errors import InputError
from labelahead.gp.linalg import cholesky, solve_factored
from labelahead.ntk import norms_and_products, squared_norms

__all__ = [
    "alignment",
    "approximation_ratio",
    "convergence",
    "dynamics",
    "dynamics_mse",
    "gains",
    "generalisation_bound",
    "joint_gain",
    "mmd",
    "residuals",
    "total_gradient",
]


def residuals(outputs: Tensor, labels: Tensor, loss: str = "cross-entropy") -> Tensor:
    """(n, C) ∂loss/∂outputs: softmax(f) − y for cross-entropy, f − y for ½‖f − y‖²."""
    if loss not in ("cross-entropy", "squared"):
        raise InputError(f"loss is {loss!r}; expected cross-entropy or squared")
    at = torch.softmax(outputs, 1) if loss == "cross-entropy" else outputs
    y = torch.zeros_like(at).scatter_(1, labels.to(at.device)[:, None], 1.0)
    return at - y


def total_gradient(
    model: nn.Module, x: Inputs, cotangents: Tensor, *, batch: int = 256
) -> dict[str, Tensor]:
    """Compute ∇ Σᵢ cotangents[i]·f(xᵢ) per parameter; cotangents are (n, C), .grad is not touched.

    With `residuals` this is ∇L(S), the gradient of the summed loss.
    """
    chosen = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in chosen.items()}
    with torch.enable_grad():
        for start in range(0, len(cotangents), batch):
            rows = slice(start, start + batch)
            out, v = call_model(model, read_batch(take_samples(x, rows))), cotangents[rows]
            gradients = torch.autograd.grad(
                (out * v.to(out)).sum(), list(chosen.values()), allow_unused=True
            )
            for name, g in zip(chosen, gradients, strict=True):
                if g is not None:
                    total[name] += g
    return {name: g.detach() for name, g in total.items()}


def gains(
    model: nn.Module,
    x: Inputs,
    cotangents: Tensor,
    direction: Mapping[str, Tensor],
    gamma: float = 2.0,
) -> Tensor:
    """Compute Δ(x|S) of every item, (n,); direction = ∇L(S) (DY-15).

    With gamma = 0 it is the squared gradient norm, with infinity the influence alone.
    """
    if not gamma >= 0:
        raise InputError(f"gamma is {gamma}; expected 0 or more, or infinity")
    if gamma == 0:
        return squared_norms(model, x, cotangents, params=list(direction))
    squares, products = norms_and_products(model, x, cotangents, direction)
    return products if gamma == float("inf") else squares + gamma * products


def dynamics(model: nn.Module, x: Inputs, cotangents: Tensor) -> float:
    """G(S) = ‖∇L(S)‖² (DY-8)."""
    return sum(float(g.square().sum()) for g in total_gradient(model, x, cotangents).values())


def joint_gain(gram: Tensor, products: Tensor) -> float:
    """Δ(Q|S), exactly (DY-13): gram (q, q) of the gradients, products (q,) with ∇L(S)."""
    return float(gram.sum() + 2 * products.sum())


def approximation_ratio(gram: Tensor, products: Tensor) -> float:
    """R(Q|S) = Σ Δ(x|S) / Δ(Q|S) (DY-14); 1 when the pairs cancel."""
    return float(gram.diagonal().sum() + 2 * products.sum()) / joint_gain(gram, products)


def dynamics_mse(kernel: Tensor, outputs: Tensor, targets: Tensor) -> float:
    """G_MSE(S) = Tr[(f − Y)ᵀ Θ (f − Y)] for a scalar kernel (n, n)."""
    r = (outputs - targets).to(kernel)
    return float((r * (kernel @ r)).sum())


def alignment(kernel: Tensor, targets: Tensor) -> float:
    """A = Tr[Yᵀ Θ Y]."""
    y = targets.to(kernel)
    return float((y * (kernel @ y)).sum())


def generalisation_bound(kernel: Tensor, targets: Tensor) -> float:
    """B = √(2 Tr[Yᵀ Θ⁻¹ Y] / n), the dominant term of (DY-18)."""
    K = kernel.double()
    lower, _ = cholesky(K, scale=float(K.diagonal().mean()), what="the kernel")
    y = targets.double()
    return float((2 * (y * solve_factored(lower, y)).sum() / len(y)).sqrt())


def convergence(kernel: Tensor, targets: Tensor, rate: float, steps: int) -> float:
    """E_t = √(Σₖᵢ (1 − ηλᵢ)²ᵗ (vᵢᵀ Yᵏ)²), the training residual after t steps (DY-16)."""
    values, vectors = torch.linalg.eigh(kernel.double())
    weight = (1 - rate * values) ** (2 * steps)
    return float((weight[:, None] * (vectors.T @ targets.double()).square()).sum().sqrt())


def mmd(kernel: Tensor, first: int) -> float:
    """Estimate the squared MMD between the first `first` items and all n, without bias (DY-33).

    kernel: (n, n) with the initial items first. An unbiased estimate can be negative.
    """
    n = len(kernel)
    if not 2 <= first <= n or n < 2:
        raise InputError(f"first is {first} of {n} items; expected at least 2 and at most all")
    K = kernel.double()
    diagonal = K.diagonal()
    a = K[:first, :first].sum() - diagonal[:first].sum()
    b = K.sum() - diagonal.sum()
    c = K[:first].sum() - diagonal[:first].sum()
    return float(a / (first**2 - first) + b / (n**2 - n) - 2 * c / (first * (n - 1)))
