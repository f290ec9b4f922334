"""Thousands of labels in bounded memory: a thousand of them span the covariance, all of them make the predictions.

With L labels the exact posterior holds L×L and L×N numbers. Here K of the labelled points, Z, span a feature space,

    Ψ = Θ(·, Z) L_Z⁻ᵀ,    L_Z L_Zᵀ = Θ(Z, Z),    Θ ≈ Ψ Ψᵀ          (Nyström)

in which all L labels are one K×K matrix. What the features miss of a point, 1 − ‖ψ‖², is its own: noise to its label
(on average over the labels, τ with σ in it), variance where it has none. With B = Ψ(X)ᵀΨ(X) + τI the labels leave
k = τ Ψ B⁻¹ Ψᵀ = Φ Φᵀ of what is spanned, and Φ (N, K) is what is held. The mean is not taken from there, where it
loses points of accuracy, but from the kernel itself: f_lin = f + Θ(·, X) α, with (Θ(X,X) + σI) α = Y − f(X) solved by
conjugate gradients that the features precondition; the kernel is worked out block by block, and nothing L×L is held.
"""

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.linear.covariance import CosineKernel, Covariance, SpannedKernel
from labelahead.linear.linalg import cholesky, cholesky_inverse, conjugate_gradients, solve_factored, whiten
from labelahead.linear.posterior import Posterior, Settled

__all__ = ["condensed", "evenly"]

NUGGET = 1e-6  # on the diagonal of Θ(Z,Z): copies among Z, and what float32 kernels leave of small directions
TOLERANCE = 3e-3  # of ‖Y − f‖: predictions of 99.9 % of MNIST's digits are then those of a direct solve
ITERATIONS = 200
LEAST = 1e-6  # share of a label that the others leave open
BLOCK = 512  # points worked on at a time


def evenly(n: int, k: int) -> Tensor:
    """(min(n, k),) places among n at even distances."""
    return torch.arange(n) if n <= k else torch.linspace(0, n - 1, k, dtype=torch.float64).long()


def condensed(prior: Posterior, at: Tensor, targets: Tensor, most: int, guess: Tensor | None = None) -> Posterior:
    """A posterior without labels, given those at (L,) with targets (L, C) or class numbers, spanned by `most` of them.

    Scalar `CosineKernel`, σ > 0. guess: (n, C) α at points, where the solve begins. The labels are `settled`: later
    ones are conditioned on as ever, targets can be `corrected`, and nothing else is held of them.
    """
    kernel = prior.covariance.prior
    if not isinstance(kernel, CosineKernel) or prior.covariance.factors or prior.noise <= 0:
        raise InputError("labels are condensed of a posterior without any, a function of the cosine, with noise")
    at, targets = prior.positions(at, "at"), prior.checked_targets(targets, len(at))
    spanned = at[evenly(len(at), most).to(at.device)]
    root, features = _features(kernel, at, spanned)
    gram = _gram(features)
    residual = targets - prior.outputs[at]
    # What the features leave of the diagonal, on average, is noise to whoever knows the features alone.
    noise = prior.noise + max(0.0, 1 - float(gram.diagonal().sum()) / len(at))
    gram.diagonal().add_(noise)
    lower, _ = cholesky(gram, what="the features of the labelled points")
    alpha = _solved(prior, at, features, lower, noise, residual, None if guess is None else guess[at])
    missed, variance = _left_out(features, lower, residual, noise)
    variance += noise - prior.noise
    amplitude = _amplitude(features, lower, targets, noise)
    del features, gram
    narrow = noise**0.5 * whiten(lower, whiten(root, torch.eye(len(root), dtype=root.dtype, device=root.device)))
    phi = torch.empty((prior.points, len(root)), dtype=kernel.dtype, device=at.device)
    mean, own = prior.outputs.clone(), torch.ones_like(prior.outputs[:, 0])
    for some in _blocks(prior.points, at.device):
        near = kernel.between(some, spanned).double()
        phi[some] = (near @ narrow.T).to(phi.dtype)
        own[some] -= whiten(root, near.T.contiguous(), overwrite=True).square().sum(0)
        mean[some] += kernel.between(some, at).double() @ alpha
    return Posterior(
        outputs=prior.outputs,
        mean=mean,
        covariance=Covariance(SpannedKernel(phi, own.clamp_min_(0.0))),
        noise=prior.noise,
        scale=prior.scale,
        labelled=at[:0],
        targets=targets[:0],
        jitter=prior.jitter,
        width=1,
        is_labelled=prior.is_labelled.index_fill(0, at, True),
        settled=Settled(at, targets, alpha, targets + missed, variance, noise),
        _white=prior._white,
        _amplitude=amplitude,
    )


def _blocks(n: int, device: torch.device) -> tuple[Tensor, ...]:
    return torch.split(torch.arange(n, device=device), BLOCK)


def _features(kernel: CosineKernel, at: Tensor, spanned: Tensor) -> tuple[Tensor, Tensor]:
    """L_Z (K, K), float64, and Ψ at (L,) points, (L, K) in the kernel's dtype."""
    units = kernel.units[spanned].double()
    own = CosineKernel(units, kernel.of)
    every = torch.arange(len(units), device=at.device)
    gram = own.between(every, every)
    gram = (gram + gram.T) / 2
    gram.diagonal().add_(NUGGET)
    root, _ = cholesky(gram, what="the kernel of the points that span the others")
    out = torch.empty((len(at), len(units)), dtype=kernel.dtype, device=at.device)
    for some in _blocks(len(at), at.device):
        out[some] = whiten(root, kernel.between(spanned, at[some]).double(), overwrite=True).T.to(out.dtype)
    return root, out


def _gram(features: Tensor) -> Tensor:
    """ΨᵀΨ in float64, some rows at a time."""
    out = torch.zeros((features.shape[1],) * 2, dtype=torch.float64, device=features.device)
    for some in torch.split(features, BLOCK):
        out.addmm_(some.double().T, some.double())
    return out


def _solved(
    prior: Posterior, at: Tensor, features: Tensor, lower: Tensor, noise: float, right: Tensor, guess: Tensor | None
) -> Tensor:
    """α with (Θ(X,X) + σI) α = right (L, C), by conjugate gradients that ΨΨᵀ + noise·I preconditions; lower: of B."""
    kernel, blocks = prior.covariance.prior, _blocks(len(at), at.device)
    assert isinstance(kernel, CosineKernel)
    inverse = cholesky_inverse(lower).to(features.dtype)

    def product(x: Tensor) -> Tensor:
        out = prior.noise * x
        for some in blocks:  # each pair of points once: the kernel is symmetric
            rest = torch.arange(int(some[0]), len(at), device=at.device)
            values = kernel.between(at[some], at[rest]).double()
            out[some] += values @ x[rest]
            out[rest[len(some) :]] += values[:, len(some) :].T @ x[some]
        return out

    def precondition(r: Tensor) -> Tensor:
        explained = features @ (inverse @ (features.T @ r.to(features.dtype)))
        return (r - explained) / noise

    start = None
    if guess is not None and bool(guess.any()):
        left = right - product(guess)
        if float(left.norm()) < float(right.norm()):  # not so where the kernel is another by now
            still = {"direction": torch.zeros_like(right), "rz": torch.zeros_like(right[0])}
            start = {"x": guess, "residual": left, "iteration": torch.tensor(0), **still}
    alpha, _ = conjugate_gradients(
        product, right, tolerance=TOLERANCE, max_iterations=ITERATIONS, precondition=precondition, start=start
    )
    return alpha


def _unexplained(features: Tensor, lower: Tensor, right: Tensor) -> Tensor:
    """σA right (L, p), with A = (ΨΨᵀ + σI)⁻¹ and so σA = I − ΨB⁻¹Ψᵀ; lower: of B."""
    inner = right.new_zeros((features.shape[1], right.shape[1]))
    for some in _blocks(len(right), right.device):
        inner += features[some].double().T @ right[some]
    inner, out = solve_factored(lower, inner), right.clone()
    for some in _blocks(len(right), right.device):
        out[some] -= features[some].double() @ inner
    return out


def _left_out(features: Tensor, lower: Tensor, residual: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """By how much the other labels miss each, (L, C), and their variance there, (L,), by the features' own regression.

    As ever: −(A residual)ᵢ/Aᵢᵢ and 1/Aᵢᵢ − σ.
    """
    own = torch.empty_like(residual[:, 0])  # σAᵢᵢ
    for some in _blocks(len(own), own.device):
        own[some] = 1 - whiten(lower, features[some].double().T.contiguous()).square().sum(0)
    own.clamp_min_(LEAST)
    return -_unexplained(features, lower, residual) / own[:, None], noise / own - noise


def _amplitude(features: Tensor, lower: Tensor, targets: Tensor, noise: float) -> float | None:
    """a² as in `Posterior.amplitude`, by the features' own regression; None where all targets are the same."""
    apart = targets - targets.mean(0)
    value = float((apart * _unexplained(features, lower, apart)).sum()) / (noise * apart.numel())
    return value if value > 1e-12 else None
