"""Training dynamics of a label set, on tensors (dynamicAL, DY).

G(S) = Σᵢⱼ dᵢᵀ Θ(xᵢ,xⱼ) dⱼ with d = ∂loss/∂outputs is the rate at which the training loss falls
under gradient flow (DY-8). The gain of a batch Q, with g(x) the gradients of the losses, is

    Δ(Q|S) = Σ_Q Δ(x|S) + Σ_{x≠x' in Q} g(x)·g(x')                                        (DY-13)
"""

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.gp.linalg import cholesky, solve_factored

__all__ = [
    "alignment",
    "approximation_ratio",
    "convergence",
    "dynamics_mse",
    "generalisation_bound",
    "joint_gain",
    "mmd",
    "residuals",
]


def residuals(outputs: Tensor, labels: Tensor, loss: str = "cross-entropy") -> Tensor:
    """(n, C) ∂loss/∂outputs: softmax(f) − y for cross-entropy, f − y for ½‖f − y‖²."""
    if loss not in ("cross-entropy", "squared"):
        raise InputError(f"loss is {loss!r}; expected cross-entropy or squared")
    at = torch.softmax(outputs, 1) if loss == "cross-entropy" else outputs
    y = torch.zeros_like(at).scatter_(1, labels.to(at.device)[:, None], 1.0)
    return at - y


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
