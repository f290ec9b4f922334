"""Expectations over two Gaussian variables that infinitely wide layers turn into, in closed form.

With (u, v) normal, mean zero, variances v1, v2 and covariance k, the dual of an activation φ is
T(k, v1, v2) = E φ(u)φ(v), and that of its derivative Ṫ = E φ'(u)φ'(v) = ∂T/∂k. All is float64.

Everything goes through det = v1·v2 − k², which is set to zero where it is lost in rounding: the
angle between u and v is then 0 or π exactly. Otherwise ReLU's Ṫ of a point with itself, whose slope
is infinite there, would be wrong by the square root of the rounding error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor

__all__ = ["DUALS", "Dual", "Layer"]

Dual = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor | None]]
"""(k, v1, v2, derivative too?) -> (T, Ṫ or None); k has the shape that v1 and v2 broadcast to."""

ROUNDING = 64 * torch.finfo(torch.float64).eps  # of det, relative to v1·v2: an angle of 1e-7


@dataclass(frozen=True)
class Layer:
    """A linear layer z = W a + b: what it does to a covariance, and what it adds to the NTK.

    K = weight·s + bias and Θ = own·s + offset + weight·(Θ ∘ Ṫ), where s is the covariance of what
    comes in, a mean over inputs. In the NTK parametrisation own = weight and offset = bias.
    """

    weight: float  # variance of a weight × inputs
    bias: float  # variance of a bias
    own: float  # ‖∂z/∂W‖² / s
    offset: float  # ‖∂z/∂b‖²

    def covariance(self, s: Tensor) -> Tensor:
        """The next K."""
        return torch.add(s * self.weight, self.bias)

    def tangent(self, s: Tensor, before: Tensor | None) -> Tensor:
        """The next Θ; `before` is the last one times Ṫ, or None for the first layer."""
        added = torch.add(s * self.own, self.offset)
        return added if before is None else added.add_(before, alpha=self.weight)


def _determinant(k: Tensor, product: Tensor) -> Tensor:
    """v1·v2 − k², never negative, and zero where nothing but rounding would be left of it."""
    det = product - k * k
    return det.masked_fill_(det <= ROUNDING * product, 0.0)


def relu(k: Tensor, v1: Tensor, v2: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    """Arc-cosine kernels of order 1 and 0: T = (√det + (π−θ)k)/2π, Ṫ = (π−θ)/2π.

    A unit that is always zero has slope 0, as in PyTorch: Ṫ = 0 where a variance is zero.
    """
    root = _determinant(k, v1 * v2).sqrt_()
    rest = torch.atan2(root, k).neg_().add_(pi).div_(2 * pi)
    value = root.div_(2 * pi).addcmul_(rest, k)
    if slope and not (v1.all() and v2.all()):  # seldom, and a mask of all pairs costs a fifth
        rest.masked_fill_((v1 == 0) | (v2 == 0), 0.0)
    return value, rest if slope else None


def erf(k: Tensor, v1: Tensor, v2: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    """T = (2/π) asin(2k/√((1+2v1)(1+2v2))), Ṫ = (4/π)/√((1+2v1)(1+2v2) − 4k²)."""
    # 1 + 2v1 + 2v2 + 4det is the radicand without its cancellation for large variances.
    root = (_determinant(k, v1 * v2).mul_(4) + 2 * v1).add_(2 * v2).add_(1).sqrt_()
    value = torch.atan2(2 * k, root).mul_(2 / pi)
    return value, root.reciprocal_().mul_(4 / pi) if slope else None


def gelu(k: Tensor, v1: Tensor, v2: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    """φ(x) = xΦ(x). With D = det(I + Σ) = 1 + v1 + v2 + det and q = 1/(2π√D):

    E ΦΦ = 1/4 + asin(k/√((1+v1)(1+v2)))/2π, E ϕϕ = q, and, by E uF = v1·E ∂F/∂u + k·E ∂F/∂v,
    T = k E ΦΦ + q (det + k²/(1+v1) + k²/(1+v2)), Ṫ = E ΦΦ + q k (1/(1+v1) + 1/(1+v2) + 1/D).
    """
    det = _determinant(k, v1 * v2)
    D = (det + v1).add_(v2).add_(1)
    root = D.sqrt()
    cdfs = torch.atan2(k, root).div_(2 * pi).add_(0.25)
    q = root.reciprocal_().div_(2 * pi)
    shares = k * (1 / (1 + v1) + 1 / (1 + v2))
    value = (k * cdfs).addcmul_(q, det.addcmul_(k, shares))
    return value, cdfs.addcmul_(q, shares.add_(k / D)) if slope else None


DUALS: dict[str, Dual] = {"relu": relu, "erf": erf, "gelu": gelu}
