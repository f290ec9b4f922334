"""Thousands of labels in bounded memory: a thousand of them span the covariance, all of them make
the predictions.

With L labels the exact posterior holds L×L and L×N numbers. Here K of the labelled points, Z, span
a feature space,

    Ψ = Θ(·, Z) L_Z⁻ᵀ,    L_Z L_Zᵀ = Θ(Z, Z),    Θ ≈ Ψ Ψᵀ + diag(own),    own = 1 − ‖ψ‖²
    (Nyström)

in which all L labels are one K×K matrix. What the features miss of a point is its own: noise to its
label (on average over the labels, τ with σ in it), variance where it has none. With B = Ψ(X)ᵀΨ(X) +
τI the labels leave k = τ Ψ B⁻¹ Ψᵀ = Φ Φᵀ of what is system, and Φ (N, K) is what is held. The mean
is not taken from there, where it loses points of accuracy, but from the kernel itself: f_lin = f +
Θ(·, X) α, with M α = Y − f(X), M = Θ(X,X) + σI, solution by conjugate gradients that the features
precondition; the kernel is worked out block by block, and nothing L×L is held.

KernelSolution beside it, since a further column costs little: 1, for the amplitude, and probes, by which
variances are put right. Points without a label tell how much of what is their own the labels
explain after all. What leave-one-out divides by, (M⁻¹)ᵢᵢ, is that of the features with each label's
own noise, σ + own (FITC), times what labels in Z, and labels outside of it, tell on average.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.gp.covariance import CosineKernel, Covariance, NystromKernel
from labelahead.gp.linalg import cholesky, cholesky_inverse, conjugate_gradients, whiten
from labelahead.gp.posterior import NystromLabels, Posterior

__all__ = ["approximate_posterior", "evenly_spaced"]

# on the diagonal of Θ(Z,Z): copies among Z, and what float32 kernels leave of small directions
INDUCING_JITTER = 1e-6
# of ‖Y − f‖: predictions of 99.9 % of MNIST's digits are then those of a direct solve
CG_RELATIVE_TOLERANCE = 3e-3
MAX_CG_ITERATIONS = 200
PROBES_PER_GROUP = 16  # labels in Z, labels outside of it, and points without a label
POINTS_PER_BLOCK = 512  # points worked on at a time


def evenly_spaced(n: int, k: int) -> Tensor:
    """(min(n, k),) places among n at even distances."""
    return torch.arange(n) if n <= k else torch.linspace(0, n - 1, k, dtype=torch.float64).long()


def approximate_posterior(
    prior: Posterior,
    at: Tensor,
    targets: Tensor,
    max_inducing_points: int,
    initial_weights: Tensor | None = None,
) -> Posterior:
    """A posterior without labels, given those at (L,) with targets (L, C) or class numbers, system
    by `most` of them.

    Scalar `CosineKernel`, σ > 0. initial_weights: (n, C) α at points, where the solve begins. The labels are
    `nystrom_labels`: later ones are conditioned on as ever, targets can be `with_targets`, and nothing else
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
    at, targets = prior.check_positions(at, "at"), prior.check_targets(targets, len(at))
    inducing = evenly_spaced(len(at), max_inducing_points).to(at.device)
    root, features = _nystrom_features(kernel, at, at[inducing])
    # What the features leave of the diagonal, on average, is noise to whoever knows the features
    # alone.
    own = (1 - features.double().square().sum(1)).clamp_min_(0.0)
    noise = prior.noise + float(own.mean())
    system = _factor_system(features, noise)
    probes = _choose_probes(prior, at, inducing)
    solution = _solve_system(
        prior, at, system, targets, probes, None if initial_weights is None else initial_weights[at]
    )
    left = _leave_one_out_variance_with_noise(
        _factor_system(features, prior.noise + own), inducing, probes, solution
    )
    narrow = whiten(
        system.lower, whiten(root, torch.eye(len(root), dtype=root.dtype, device=root.device))
    )
    del features, system
    phi = torch.empty((prior.points, len(root)), dtype=kernel.dtype, device=at.device)
    mean, own = prior.outputs.clone(), torch.ones_like(prior.outputs[:, 0])
    for some in _split_points(prior.points, at.device):
        near = kernel.prior_block(some, at[inducing]).double()
        phi[some] = (near @ narrow.T).to(phi.dtype)
        own[some] -= whiten(root, near.T.contiguous(), overwrite=True).square().sum(0)
        mean[some] += kernel.prior_block(some, at).double() @ solution.alpha
    is_labelled = prior.is_labelled.index_fill(0, at, True)
    own = torch.where(
        is_labelled, 1.0, _unexplained_share(phi, own, probes.points, solution)
    ) * own.clamp_min_(0.0)
    return Posterior(
        outputs=prior.outputs,
        mean=mean,
        covariance=Covariance(NystromKernel(phi, own)),
        noise=prior.noise,
        scale=prior.scale,
        labelled=at[:0],
        targets=targets[:0],
        jitter=prior.jitter,
        width=1,
        is_labelled=is_labelled,
        nystrom_labels=NystromLabels(
            at,
            targets,
            solution.alpha,
            targets - left[:, None] * solution.alpha,
            left - prior.noise,
            noise,
        ),
        _white=prior._white,
        _amplitude=solution.amplitude,
    )


class LowRankSystem(NamedTuple):
    """The labelled points by the features alone: M ≈ Ψ Ψᵀ + noise."""

    features: Tensor  # (L, K) Ψ(X) in the kernel's dtype
    noise: Tensor  # (L,)
    lower: Tensor  # (K, K) the Cholesky factor of I + Ψᵀ (Ψ / noise)


class Probes(NamedTuple):
    """Where the features are held against the kernel itself."""

    inside: Tensor  # places among the labels, in Z
    outside: Tensor  # and not in Z
    points: Tensor  # positions without a label


class KernelSolution(NamedTuple):
    """What all labels and the whole kernel say."""

    alpha: Tensor  # (L, C)
    amplitude: float | None  # a² as in `Posterior.amplitude`; None where all targets are the same
    inside: Tensor  # (M⁻¹)ᵢᵢ at the probes
    outside: Tensor
    explained: Tensor  # Θ(x,X) M⁻¹ Θ(X,x) at probes without a label


def _split_points(n: int, device: torch.device) -> tuple[Tensor, ...]:
    return torch.split(torch.arange(n, device=device), POINTS_PER_BLOCK)


def _nystrom_features(kernel: CosineKernel, at: Tensor, system: Tensor) -> tuple[Tensor, Tensor]:
    """L_Z (K, K), float64, and Ψ at (L,) points, (L, K) in the kernel's dtype."""
    units = kernel.unit_vectors[system].double()
    own = CosineKernel(units, kernel.function)
    every = torch.arange(len(units), device=at.device)
    gram = own.prior_block(every, every)
    gram = (gram + gram.T) / 2
    gram.diagonal().add_(INDUCING_JITTER)
    root, _ = cholesky(gram, what="the kernel of the points that span the others")
    out = torch.empty((len(at), len(units)), dtype=kernel.dtype, device=at.device)
    for some in _split_points(len(at), at.device):
        out[some] = whiten(
            root, kernel.prior_block(system, at[some]).double(), overwrite=True
        ).T.to(out.dtype)
    return root, out


def _factor_system(features: Tensor, noise: Tensor | float) -> LowRankSystem:
    every = torch.as_tensor(noise, dtype=torch.float64, device=features.device).expand(
        len(features)
    )
    gram = torch.eye(features.shape[1], dtype=torch.float64, device=features.device)
    for some in _split_points(len(features), features.device):
        rows = features[some].double()
        gram.addmm_(rows.T, rows / every[some, None])
    return LowRankSystem(
        features, every, cholesky(gram, what="the features of the labelled points")[0]
    )


def _choose_probes(prior: Posterior, at: Tensor, inducing: Tensor) -> Probes:
    outside = (
        torch.ones(len(at), dtype=torch.bool, device=at.device)
        .index_fill_(0, inducing, False)
        .nonzero()[:, 0]
    )
    others = (~prior.is_labelled.index_fill(0, at, True)).nonzero()[:, 0]
    return Probes(
        *(
            some[evenly_spaced(len(some), PROBES_PER_GROUP).to(at.device)]
            for some in (inducing, outside, others)
        )
    )


def _solve_system(
    prior: Posterior,
    at: Tensor,
    system: LowRankSystem,
    targets: Tensor,
    probes: Probes,
    initial_weights: Tensor | None,
) -> KernelSolution:
    """M⁻¹ of all that is asked.

    Labels, ones, unit vectors at labels that probe, the kernel at points that do.
    """
    kernel = prior.covariance.prior
    assert isinstance(kernel, CosineKernel)
    marked = torch.cat([probes.inside, probes.outside])
    units = torch.zeros((len(at), len(marked)), dtype=torch.float64, device=at.device)
    units[marked, torch.arange(len(marked), device=at.device)] = 1.0
    residual, ones = targets - prior.outputs[at], torch.ones_like(targets[:, :1])
    near = kernel.prior_block(at, probes.points).double() if len(probes.points) else units[:, :0]
    right = torch.cat([residual, ones, units, near], 1)
    found = _solve_by_conjugate_gradients(prior, at, system, right, initial_weights)
    alpha, apart = found[:, : prior.classes], targets - targets.mean(0)
    # M⁻¹(Y − mean of Y), since outputs are the same everywhere
    weights = alpha - found[:, prior.classes, None] * (targets.mean(0) - prior.outputs[0])
    amplitude = float((apart * weights).sum()) / apart.numel()
    forms = (right * found).sum(0)[
        prior.classes + 1 :
    ]  # its error is of second order in that of the solve
    sizes = [len(probes.inside), len(probes.outside), len(probes.points)]
    return KernelSolution(
        alpha.clone(), amplitude if amplitude > 1e-12 else None, *torch.split(forms, sizes)
    )


def _solve_by_conjugate_gradients(
    prior: Posterior,
    at: Tensor,
    system: LowRankSystem,
    right: Tensor,
    initial_weights: Tensor | None,
) -> Tensor:
    """M⁻¹ right (L, p); initial_weights: (L, C) for its first columns."""
    kernel, blocks = prior.covariance.prior, _split_points(len(at), at.device)
    assert isinstance(kernel, CosineKernel)
    features, noise = system.features, system.noise[:, None]
    inverse = cholesky_inverse(system.lower).to(features.dtype)

    def product(x: Tensor) -> Tensor:
        out = prior.noise * x
        for some in blocks:  # each pair of points once: the kernel is symmetric
            rest = torch.arange(int(some[0]), len(at), device=at.device)
            values = kernel.prior_block(at[some], at[rest]).double()
            out[some] += values @ x[rest]
            out[rest[len(some) :]] += values[:, len(some) :].T @ x[some]
        return out

    def precondition(r: Tensor) -> Tensor:
        scaled = r / noise
        return scaled - features @ (inverse @ (features.T @ scaled.to(features.dtype))) / noise

    start = None
    if initial_weights is not None and bool(initial_weights.any()):
        known = right[:, : initial_weights.shape[1]]
        left = known - product(initial_weights)
        if float(left.norm()) < float(known.norm()):  # not so where the kernel is another by now
            x, residual = torch.zeros_like(right), right.clone()
            x[:, : initial_weights.shape[1]], residual[:, : initial_weights.shape[1]] = (
                initial_weights,
                left,
            )
            still = {"direction": torch.zeros_like(right), "rz": torch.zeros_like(right[0])}
            start = {"x": x, "residual": residual, "iteration": torch.tensor(0), **still}
    found, _ = conjugate_gradients(
        product,
        right,
        tolerance=CG_RELATIVE_TOLERANCE,
        max_iterations=MAX_CG_ITERATIONS,
        precondition=precondition,
        start=start,
    )
    return found


def _leave_one_out_variance_with_noise(
    system: LowRankSystem, inducing: Tensor, probes: Probes, solution: KernelSolution
) -> Tensor:
    """(L,) 1/(M⁻¹)ᵢᵢ, σ and what the other labels leave open.

    The features', at the size that the probes have.
    """
    noise = system.noise
    out = torch.empty_like(noise)
    for some in _split_points(len(noise), noise.device):
        explained = (
            whiten(system.lower, system.features[some].double().T.contiguous()).square().sum(0)
        )
        out[some] = noise[some] / (1 - explained / noise[some])
    inside = torch.zeros_like(noise, dtype=torch.bool).index_fill_(0, inducing, True)
    for group, places, true in (
        (inside, probes.inside, solution.inside),
        (~inside, probes.outside, solution.outside),
    ):
        if len(places):
            out[group] *= true.reciprocal().sum() / out[places].sum()
    return out


def _unexplained_share(phi: Tensor, own: Tensor, points: Tensor, solution: KernelSolution) -> float:
    """How much of what is a point's own no label explains, by points without one."""
    mine = own[points].clamp_min(0.0).sum()
    if float(mine) <= 0:
        return 1.0
    true = 1 - solution.explained - phi[points].double().square().sum(1)
    return float((true.sum() / mine).clamp(0.0, 1.0))
