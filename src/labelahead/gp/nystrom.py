"""Thousands of labels in bounded memory: a thousand of them span the covariance, all of them make
the predictions.

With L labels the exact posterior holds L×L and L×N numbers. Here K of the labelled points, Z, span
a feature space,

    Ψ = Θ(·, Z) L_Z⁻ᵀ,    L_Z L_Zᵀ = Θ(Z, Z),    Θ ≈ Ψ Ψᵀ + diag(own),    own = 1 − ‖ψ‖²
    (Nyström)

in which all L labels are one K×K matrix. What the features miss of a point is its own: noise to its
label (on average over the labels, τ with σ in it), variance where it has none. With B = Ψ(X)ᵀΨ(X) +
τI the labels leave k = τ Ψ B⁻¹ Ψᵀ = Φ Φᵀ of what is spanned, and Φ (N, K) is what is held. The mean
is not taken from there, where it loses points of accuracy, but from the kernel itself: f_lin = f +
Θ(·, X) α, with M α = Y − f(X), M = Θ(X,X) + σI, solved by conjugate gradients that the features
precondition; the kernel is worked out block by block, and nothing L×L is held.

Solved beside it, since a further column costs little: 1, for the amplitude, and probes, by which
variances are put right. Points without a label tell how much of what is their own the labels
explain after all. What leave-one-out divides by, (M⁻¹)ᵢᵢ, is that of the features with each label's
own noise, σ + own (FITC), times what labels in Z, and labels outside of it, tell on average.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.gp.covariance import CosineKernel, Covariance, SpannedKernel
from labelahead.gp.linalg import cholesky, cholesky_inverse, conjugate_gradients, whiten
from labelahead.gp.posterior import NystromLabels, Posterior

__all__ = ["condensed", "evenly"]

# on the diagonal of Θ(Z,Z): copies among Z, and what float32 kernels leave of small directions
NUGGET = 1e-6
# of ‖Y − f‖: predictions of 99.9 % of MNIST's digits are then those of a direct solve
TOLERANCE = 3e-3
ITERATIONS = 200
PROBES = 16  # labels in Z, labels outside of it, and points without a label
BLOCK = 512  # points worked on at a time


def evenly(n: int, k: int) -> Tensor:
    """(min(n, k),) places among n at even distances."""
    return torch.arange(n) if n <= k else torch.linspace(0, n - 1, k, dtype=torch.float64).long()


def condensed(
    prior: Posterior, at: Tensor, targets: Tensor, most: int, guess: Tensor | None = None
) -> Posterior:
    """A posterior without labels, given those at (L,) with targets (L, C) or class numbers, spanned
    by `most` of them.

    Scalar `CosineKernel`, σ > 0. guess: (n, C) α at points, where the solve begins. The labels are
    `settled`: later ones are conditioned on as ever, targets can be `corrected`, and nothing else
    is held of them.
    """
    kernel = prior.covariance.prior
    if not isinstance(kernel, CosineKernel) or prior.covariance.factors or prior.noise <= 0:
        raise InputError(
            "labels are condensed of a posterior without any, a function of the cosine, with noise"
        )
    if bool((prior.outputs != prior.outputs[:1]).any()):
        raise InputError(
            "labels are condensed where the network's outputs are the same at every point; they "
            "differ"
        )
    at, targets = prior.positions(at, "at"), prior.checked_targets(targets, len(at))
    spans = evenly(len(at), most).to(at.device)
    root, features = _features(kernel, at, at[spans])
    # What the features leave of the diagonal, on average, is noise to whoever knows the features
    # alone.
    own = (1 - features.double().square().sum(1)).clamp_min_(0.0)
    noise = prior.noise + float(own.mean())
    spanned = _spanned(features, noise)
    probes = _probes(prior, at, spans)
    solved = _solved(prior, at, spanned, targets, probes, None if guess is None else guess[at])
    left = _left_open(_spanned(features, prior.noise + own), spans, probes, solved)
    narrow = whiten(
        spanned.lower, whiten(root, torch.eye(len(root), dtype=root.dtype, device=root.device))
    )
    del features, spanned
    phi = torch.empty((prior.points, len(root)), dtype=kernel.dtype, device=at.device)
    mean, own = prior.outputs.clone(), torch.ones_like(prior.outputs[:, 0])
    for some in _blocks(prior.points, at.device):
        near = kernel.between(some, at[spans]).double()
        phi[some] = (near @ narrow.T).to(phi.dtype)
        own[some] -= whiten(root, near.T.contiguous(), overwrite=True).square().sum(0)
        mean[some] += kernel.between(some, at).double() @ solved.alpha
    is_labelled = prior.is_labelled.index_fill(0, at, True)
    own = torch.where(
        is_labelled, 1.0, _unshared(phi, own, probes.points, solved)
    ) * own.clamp_min_(0.0)
    return Posterior(
        outputs=prior.outputs,
        mean=mean,
        covariance=Covariance(SpannedKernel(phi, own)),
        noise=prior.noise,
        scale=prior.scale,
        labelled=at[:0],
        targets=targets[:0],
        jitter=prior.jitter,
        width=1,
        is_labelled=is_labelled,
        settled=NystromLabels(
            at,
            targets,
            solved.alpha,
            targets - left[:, None] * solved.alpha,
            left - prior.noise,
            noise,
        ),
        _white=prior._white,
        _amplitude=solved.amplitude,
    )


class Spanned(NamedTuple):
    """The labelled points by the features alone: M ≈ Ψ Ψᵀ + noise."""

    features: Tensor  # (L, K) Ψ(X) in the kernel's dtype
    noise: Tensor  # (L,)
    lower: Tensor  # (K, K) the Cholesky factor of I + Ψᵀ (Ψ / noise)


class Probes(NamedTuple):
    """Where the features are held against the kernel itself."""

    inside: Tensor  # places among the labels, in Z
    outside: Tensor  # and not in Z
    points: Tensor  # positions without a label


class Solved(NamedTuple):
    """What all labels and the whole kernel say."""

    alpha: Tensor  # (L, C)
    amplitude: float | None  # a² as in `Posterior.amplitude`; None where all targets are the same
    inside: Tensor  # (M⁻¹)ᵢᵢ at the probes
    outside: Tensor
    explained: Tensor  # Θ(x,X) M⁻¹ Θ(X,x) at probes without a label


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
        out[some] = whiten(root, kernel.between(spanned, at[some]).double(), overwrite=True).T.to(
            out.dtype
        )
    return root, out


def _spanned(features: Tensor, noise: Tensor | float) -> Spanned:
    every = torch.as_tensor(noise, dtype=torch.float64, device=features.device).expand(
        len(features)
    )
    gram = torch.eye(features.shape[1], dtype=torch.float64, device=features.device)
    for some in _blocks(len(features), features.device):
        rows = features[some].double()
        gram.addmm_(rows.T, rows / every[some, None])
    return Spanned(features, every, cholesky(gram, what="the features of the labelled points")[0])


def _probes(prior: Posterior, at: Tensor, spans: Tensor) -> Probes:
    outside = (
        torch.ones(len(at), dtype=torch.bool, device=at.device)
        .index_fill_(0, spans, False)
        .nonzero()[:, 0]
    )
    others = (~prior.is_labelled.index_fill(0, at, True)).nonzero()[:, 0]
    return Probes(
        *(some[evenly(len(some), PROBES).to(at.device)] for some in (spans, outside, others))
    )


def _solved(
    prior: Posterior,
    at: Tensor,
    spanned: Spanned,
    targets: Tensor,
    probes: Probes,
    guess: Tensor | None,
) -> Solved:
    """M⁻¹ of all that is asked.

    Labels, ones, unit vectors at labels that probe, the kernel at points that do.
    """
    kernel = prior.covariance.prior
    assert isinstance(kernel, CosineKernel)
    marked = torch.cat([probes.inside, probes.outside])
    units = torch.zeros((len(at), len(marked)), dtype=torch.float64, device=at.device)
    units[marked, torch.arange(len(marked), device=at.device)] = 1.0
    residual, ones = targets - prior.outputs[at], torch.ones_like(targets[:, :1])
    near = kernel.between(at, probes.points).double() if len(probes.points) else units[:, :0]
    right = torch.cat([residual, ones, units, near], 1)
    found = _by_gradients(prior, at, spanned, right, guess)
    alpha, apart = found[:, : prior.classes], targets - targets.mean(0)
    # M⁻¹(Y − mean of Y), since outputs are the same everywhere
    weights = alpha - found[:, prior.classes, None] * (targets.mean(0) - prior.outputs[0])
    amplitude = float((apart * weights).sum()) / apart.numel()
    forms = (right * found).sum(0)[
        prior.classes + 1 :
    ]  # its error is of second order in that of the solve
    sizes = [len(probes.inside), len(probes.outside), len(probes.points)]
    return Solved(
        alpha.clone(), amplitude if amplitude > 1e-12 else None, *torch.split(forms, sizes)
    )


def _by_gradients(
    prior: Posterior, at: Tensor, spanned: Spanned, right: Tensor, guess: Tensor | None
) -> Tensor:
    """M⁻¹ right (L, p); guess: (L, C) for its first columns."""
    kernel, blocks = prior.covariance.prior, _blocks(len(at), at.device)
    assert isinstance(kernel, CosineKernel)
    features, noise = spanned.features, spanned.noise[:, None]
    inverse = cholesky_inverse(spanned.lower).to(features.dtype)

    def product(x: Tensor) -> Tensor:
        out = prior.noise * x
        for some in blocks:  # each pair of points once: the kernel is symmetric
            rest = torch.arange(int(some[0]), len(at), device=at.device)
            values = kernel.between(at[some], at[rest]).double()
            out[some] += values @ x[rest]
            out[rest[len(some) :]] += values[:, len(some) :].T @ x[some]
        return out

    def precondition(r: Tensor) -> Tensor:
        scaled = r / noise
        return scaled - features @ (inverse @ (features.T @ scaled.to(features.dtype))) / noise

    start = None
    if guess is not None and bool(guess.any()):
        known = right[:, : guess.shape[1]]
        left = known - product(guess)
        if float(left.norm()) < float(known.norm()):  # not so where the kernel is another by now
            x, residual = torch.zeros_like(right), right.clone()
            x[:, : guess.shape[1]], residual[:, : guess.shape[1]] = guess, left
            still = {"direction": torch.zeros_like(right), "rz": torch.zeros_like(right[0])}
            start = {"x": x, "residual": residual, "iteration": torch.tensor(0), **still}
    found, _ = conjugate_gradients(
        product,
        right,
        tolerance=TOLERANCE,
        max_iterations=ITERATIONS,
        precondition=precondition,
        start=start,
    )
    return found


def _left_open(spanned: Spanned, spans: Tensor, probes: Probes, solved: Solved) -> Tensor:
    """(L,) 1/(M⁻¹)ᵢᵢ, σ and what the other labels leave open.

    The features', at the size that the probes have.
    """
    noise = spanned.noise
    out = torch.empty_like(noise)
    for some in _blocks(len(noise), noise.device):
        explained = (
            whiten(spanned.lower, spanned.features[some].double().T.contiguous()).square().sum(0)
        )
        out[some] = noise[some] / (1 - explained / noise[some])
    inside = torch.zeros_like(noise, dtype=torch.bool).index_fill_(0, spans, True)
    for group, places, true in (
        (inside, probes.inside, solved.inside),
        (~inside, probes.outside, solved.outside),
    ):
        if len(places):
            out[group] *= true.reciprocal().sum() / out[places].sum()
    return out


def _unshared(phi: Tensor, own: Tensor, points: Tensor, solved: Solved) -> float:
    """How much of what is a point's own no label explains, by points without one."""
    mine = own[points].clamp_min(0.0).sum()
    if float(mine) <= 0:
        return 1.0
    true = 1 - solved.explained - phi[points].double().square().sum(1)
    return float((true.sum() / mine).clamp(0.0, 1.0))
