"""Approximate the posterior of thousands of labels in bounded memory (Nyström).

With L labels the exact posterior stores L×L and L×N numbers. Here K of the labelled points, the
inducing points Z, span a feature space,

    Ψ = Θ(·, Z) L_Z⁻ᵀ,    L_Z L_Zᵀ = Θ(Z, Z),    Θ ≈ Ψ Ψᵀ + diag(r),    r = 1 − ‖ψ‖²

in which all L labels reduce to one K×K matrix. The residual variance r of a point, which the
features miss, is treated as independent of all other points: it is noise for a label (on average
over the labels; T = D plus that mean) and variance for an unlabelled point. With
B = I + Ψ(X)ᵀT⁻¹Ψ(X) the posterior covariance in the span is k = Ψ B⁻¹ Ψᵀ = Φ Φᵀ, and only Φ (N, K)
is stored.

The mean does not come from the features, which would cost points of accuracy, but from the kernel
itself: f_lin = f + Θ(·, X) α with M α = Y − f(X), M = Θ(X,X) + D, where D holds the noise of each
label, σ by default. The system is solved by conjugate
gradients with the features as preconditioner; kernel entries are computed block by block, so that
nothing L×L is stored.

A further right-hand side costs little, so two more are solved: ones, for the amplitude, and probes,
which correct the variances. Probes at unlabelled points measure how much of the residual variance
the labels explain after all. The divisor of leave-one-out, (M⁻¹)ᵢᵢ, is that of the features with
each label's own noise σ + r (FITC), rescaled by the mean ratio at the probes, separately for labels
in Z and outside Z.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.gp.checks import Noise
from labelahead.gp.covariance import CosineKernel, Covariance, NystromKernel
from labelahead.gp.linalg import cholesky, cholesky_inverse, conjugate_gradients, whiten
from labelahead.gp.posterior import NystromLabels, Posterior

__all__ = ["NystromOptions", "approximate_posterior", "evenly_spaced"]


@dataclass(frozen=True)
class NystromOptions:
    """Precision and memory of the approximation.

    Attributes:
        inducing_jitter: Added to the diagonal of Θ(Z,Z): Z may hold copies, and float32 kernels
            lose small directions.
        cg_relative_tolerance: Relative to ‖Y − f‖: 99.9 % of the predictions on MNIST then equal
            those of a direct solve.
        max_cg_iterations: Of conjugate gradients.
        probes_per_group: The groups are labels in Z, labels outside Z and unlabelled points.
        points_per_block: Points whose kernel entries are computed at a time.
    """

    inducing_jitter: float = 1e-6
    cg_relative_tolerance: float = 3e-3
    max_cg_iterations: int = 200
    probes_per_group: int = 16
    points_per_block: int = 512

    def split_points(self, n: int, device: torch.device) -> tuple[Tensor, ...]:
        """Split n points into blocks of consecutive indices."""
        return torch.split(torch.arange(n, device=device), self.points_per_block)


DEFAULT_OPTIONS = NystromOptions()


def evenly_spaced(n: int, k: int) -> Tensor:
    """Choose min(n, k) indices among n at even distances: (min(n, k),)."""
    return torch.arange(n) if n <= k else torch.linspace(0, n - 1, k, dtype=torch.float64).long()


def approximate_posterior(
    prior: Posterior,
    at: Tensor,
    targets: Tensor,
    max_inducing_points: int,
    initial_weights: Tensor | None = None,
    *,
    noise: Noise = None,
    options: NystromOptions = DEFAULT_OPTIONS,
) -> Posterior:
    """Condition an unlabelled posterior on many labels at once, approximately.

    Later labels are conditioned on as usual, and targets can be replaced (`with_targets`).

    Args:
        prior: A posterior without labels, of a scalar `CosineKernel`, with σ > 0 and the same
            outputs at every point.
        at: (L,) positions.
        targets: (L, C), or class numbers (L,).
        max_inducing_points: K, how many of the labelled points span the features.
        initial_weights: (n, C) α at every point, where the solver starts; None starts at zero.
        noise: (L,) relative noise of each label, as in `Posterior.condition`.
        options: Precision and memory.

    Returns:
        A posterior whose `nystrom_labels` hold these labels; `labelled` is empty.

    Raises:
        InputError: If the prior does not meet the conditions above.
    """
    kernel = _require_constant_prior(prior)
    at, targets = prior.check_positions(at, "at"), prior.check_targets(targets, len(at))
    inducing = evenly_spaced(len(at), max_inducing_points).to(at.device)
    root, features = _nystrom_features(kernel, at, at[inducing], options)
    # For a model that sees the features alone, the mean residual variance is noise.
    residual = (1 - features.double().square().sum(1)).clamp_min_(0.0)
    label_noise = prior.check_noise(noise, len(at))
    own = torch.full_like(residual, prior.noise) if label_noise is None else label_noise
    total = own + float(residual.mean())
    system = _factor_system(features, total, options)
    probes = _choose_probes(prior, at, inducing, options.probes_per_group)
    start = None if initial_weights is None else initial_weights[at]
    problem = LabelProblem(prior, kernel, at, targets, own, options)
    solution = _solve_system(problem, system, probes, start)
    fitc = _factor_system(features, own + residual, options)
    fixed = None if label_noise is None else own
    divisor = _leave_one_out_divisor(fitc, fixed, inducing, probes, solution, options)
    span = Span(at[inducing], root, _project_features(root, system))
    del features, system, fitc
    phi, residual, mean = _evaluate_everywhere(problem, span, solution.alpha)
    is_labelled = prior.is_labelled.index_fill(0, at, True)
    residual = torch.where(
        is_labelled, 1.0, _unexplained_share(phi, residual, probes.points, solution)
    ) * residual.clamp_min_(0.0)
    return Posterior(
        outputs=prior.outputs,
        mean=mean,
        covariance=Covariance(NystromKernel(phi, residual)),
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
            targets - divisor[:, None] * solution.alpha,
            divisor - own,
            total,
            label_noise,
        ),
        _white=prior._white,
        _amplitude=solution.amplitude,
    )


class LabelProblem(NamedTuple):
    """The labels to condition on."""

    prior: Posterior
    kernel: CosineKernel
    at: Tensor  # (L,) positions
    targets: Tensor  # (L, C)
    noise: Tensor  # (L,) absolute
    options: NystromOptions


class Span(NamedTuple):
    """The inducing points Z, and how features follow from the kernel with them."""

    inducing: Tensor  # (K,) positions
    root: Tensor  # (K, K) L_Z
    projection: Tensor  # (K, K): Φ = Θ(·, Z) projectionᵀ


class LowRankSystem(NamedTuple):
    """The labelled points by the features alone: M ≈ Ψ Ψᵀ + diag(noise)."""

    features: Tensor  # (L, K) Ψ(X) in the kernel's dtype
    noise: Tensor  # (L,)
    lower: Tensor  # (K, K) Cholesky factor of I + Ψᵀ (Ψ / noise)


class Probes(NamedTuple):
    """Points at which the features are compared with the kernel itself."""

    inside: Tensor  # indices of labels in Z
    outside: Tensor  # indices of labels outside Z
    points: Tensor  # positions of unlabelled points


class KernelSolution(NamedTuple):
    """What the solves with the whole kernel give."""

    alpha: Tensor  # (L, C)
    amplitude: float | None  # a² as in `Posterior.amplitude`; None if all targets are equal
    inside: Tensor  # (M⁻¹)ᵢᵢ at the probes in Z
    outside: Tensor  # (M⁻¹)ᵢᵢ at the probes outside Z
    explained: Tensor  # Θ(x,X) M⁻¹ Θ(X,x) at unlabelled probes


def _require_constant_prior(prior: Posterior) -> CosineKernel:
    """Return the kernel of an unlabelled posterior with constant outputs, or raise."""
    kernel = prior.covariance.prior
    if not isinstance(kernel, CosineKernel) or prior.covariance.factors or prior.noise <= 0:
        raise InputError(
            "labels cannot be approximated here; expected an unlabelled posterior of a kernel of "
            "the cosine, with noise above 0"
        )
    if bool((prior.outputs != prior.outputs[:1]).any()):
        raise InputError(
            "the network's outputs differ between points; expected the same outputs at every "
            "point, such as a constant prior mean"
        )
    return kernel


def _project_features(root: Tensor, system: "LowRankSystem") -> Tensor:
    """(K, K) matrix that maps Θ(·, Z) to Φ."""
    eye = torch.eye(len(root), dtype=root.dtype, device=root.device)
    return whiten(system.lower, whiten(root, eye))


def _evaluate_everywhere(
    problem: LabelProblem, span: Span, alpha: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Φ (N, K), residual variances (N,) and means (N, C) at every point."""
    prior, kernel, at = problem.prior, problem.kernel, problem.at
    phi = torch.empty((prior.points, len(span.root)), dtype=kernel.dtype, device=at.device)
    mean, residual = prior.outputs.clone(), torch.ones_like(prior.outputs[:, 0])
    for block in problem.options.split_points(prior.points, at.device):
        cross = kernel.prior_block(block, span.inducing).double()
        phi[block] = (cross @ span.projection.T).to(phi.dtype)
        residual[block] -= whiten(span.root, cross.T.contiguous(), overwrite=True).square().sum(0)
        mean[block] += kernel.prior_block(block, at).double() @ alpha
    return phi, residual, mean


def _nystrom_features(
    kernel: CosineKernel, at: Tensor, inducing: Tensor, options: NystromOptions
) -> tuple[Tensor, Tensor]:
    """L_Z (K, K), float64, and Ψ at (L,) points, (L, K) in the kernel's dtype."""
    units = kernel.unit_vectors[inducing].double()
    exact = CosineKernel(units, kernel.function)
    every = torch.arange(len(units), device=at.device)
    gram = exact.prior_block(every, every)
    gram = (gram + gram.T) / 2
    gram.diagonal().add_(options.inducing_jitter)
    root, _ = cholesky(gram, what="the kernel of the inducing points")
    out = torch.empty((len(at), len(units)), dtype=kernel.dtype, device=at.device)
    for block in options.split_points(len(at), at.device):
        cross = kernel.prior_block(inducing, at[block]).double()
        out[block] = whiten(root, cross, overwrite=True).T.to(out.dtype)
    return root, out


def _factor_system(features: Tensor, noise: Tensor, options: NystromOptions) -> LowRankSystem:
    gram = torch.eye(features.shape[1], dtype=torch.float64, device=features.device)
    for block in options.split_points(len(features), features.device):
        rows = features[block].double()
        gram.addmm_(rows.T, rows / noise[block, None])
    lower, _ = cholesky(gram, what="the features of the labelled points")
    return LowRankSystem(features, noise, lower)


def _choose_probes(prior: Posterior, at: Tensor, inducing: Tensor, count: int) -> Probes:
    outside = (
        torch.ones(len(at), dtype=torch.bool, device=at.device)
        .index_fill_(0, inducing, False)
        .nonzero()[:, 0]
    )
    unlabelled = (~prior.is_labelled.index_fill(0, at, True)).nonzero()[:, 0]
    return Probes(
        *(
            group[evenly_spaced(len(group), count).to(at.device)]
            for group in (inducing, outside, unlabelled)
        )
    )


def _solve_system(
    problem: LabelProblem, system: LowRankSystem, probes: Probes, initial_weights: Tensor | None
) -> KernelSolution:
    """Solve M x = b for all right-hand sides at once.

    These are the targets, ones, unit vectors at the labelled probes and the kernel at the
    unlabelled probes.
    """
    prior, kernel, at, targets, *_ = problem
    marked = torch.cat([probes.inside, probes.outside])
    units = torch.zeros((len(at), len(marked)), dtype=torch.float64, device=at.device)
    units[marked, torch.arange(len(marked), device=at.device)] = 1.0
    residual, ones = targets - prior.outputs[at], torch.ones_like(targets[:, :1])
    cross = kernel.prior_block(at, probes.points).double() if len(probes.points) else units[:, :0]
    right = torch.cat([residual, ones, units, cross], 1)
    found = _solve_by_conjugate_gradients(problem, system, right, initial_weights)
    alpha, centred = found[:, : prior.classes], targets - targets.mean(0)
    # This is M⁻¹(Y − mean of Y), because the outputs are the same everywhere.
    weights = alpha - found[:, prior.classes, None] * (targets.mean(0) - prior.outputs[0])
    amplitude = float((centred * weights).sum()) / centred.numel()
    # The error of a quadratic form is of second order in the error of the solve.
    forms = (right * found).sum(0)[prior.classes + 1 :]
    sizes = [len(probes.inside), len(probes.outside), len(probes.points)]
    return KernelSolution(
        alpha.clone(), amplitude if amplitude > 1e-12 else None, *torch.split(forms, sizes)
    )


def _solve_by_conjugate_gradients(
    problem: LabelProblem, system: LowRankSystem, right: Tensor, initial_weights: Tensor | None
) -> Tensor:
    """M⁻¹ right (L, p); initial_weights: (L, C) for its first columns."""
    _, kernel, at, _, own, options = problem
    blocks = options.split_points(len(at), at.device)
    features, noise = system.features, system.noise[:, None]
    inverse = cholesky_inverse(system.lower).to(features.dtype)

    def product(x: Tensor) -> Tensor:
        out = own[:, None] * x
        for block in blocks:  # The kernel is symmetric, so each pair of points is computed once.
            rest = torch.arange(int(block[0]), len(at), device=at.device)
            values = kernel.prior_block(at[block], at[rest]).double()
            out[block] += values @ x[rest]
            out[rest[len(block) :]] += values[:, len(block) :].T @ x[block]
        return out

    def precondition(r: Tensor) -> Tensor:
        scaled = r / noise
        return scaled - features @ (inverse @ (features.T @ scaled.to(features.dtype))) / noise

    start = None
    if initial_weights is not None and bool(initial_weights.any()):
        start = _start_solver(product, right, initial_weights)
    found, _ = conjugate_gradients(
        product,
        right,
        tolerance=options.cg_relative_tolerance,
        max_iterations=options.max_cg_iterations,
        precondition=precondition,
        start=start,
    )
    return found


def _start_solver(
    product: Callable[[Tensor], Tensor], right: Tensor, weights: Tensor
) -> dict[str, Tensor] | None:
    """State of the solver at weights (L, C) for the first columns; None if zero is a better start.

    It is if the kernel has changed since the weights were computed.
    """
    columns = weights.shape[1]
    remaining = right[:, :columns] - product(weights)
    if not float(remaining.norm()) < float(right[:, :columns].norm()):
        return None
    x, residual = torch.zeros_like(right), right.clone()
    x[:, :columns] = weights
    residual[:, :columns] = remaining
    return {
        "x": x,
        "residual": residual,
        "iteration": torch.tensor(0),
        "direction": torch.zeros_like(right),
        "rz": torch.zeros_like(right[0]),
    }


def _leave_one_out_divisor(
    system: LowRankSystem,
    label_noise: Tensor | None,
    inducing: Tensor,
    probes: Probes,
    solution: KernelSolution,
    options: NystromOptions,
) -> Tensor:
    """(L,) 1/(M⁻¹)ᵢᵢ: the variance of each label given the others, σ included.

    Taken from the features, rescaled to the exact values at the probes. If labels have a noise of
    their own (L,), only the rest is rescaled: the noise of a probe says nothing about another label.
    """
    noise = system.noise
    out = torch.empty_like(noise)
    for block in options.split_points(len(noise), noise.device):
        explained = (
            whiten(system.lower, system.features[block].double().T.contiguous()).square().sum(0)
        )
        out[block] = noise[block] / (1 - explained / noise[block])
    inside = torch.zeros_like(noise, dtype=torch.bool).index_fill_(0, inducing, True)
    for group, indices, exact in (
        (inside, probes.inside, solution.inside),
        (~inside, probes.outside, solution.outside),
    ):
        if len(indices) and label_noise is None:
            out[group] *= exact.reciprocal().sum() / out[indices].sum()
        elif len(indices) and label_noise is not None:
            own = label_noise[group]
            true = (exact.reciprocal() - label_noise[indices]).sum().clamp_min(0.0)
            out[group] = own + (out[group] - own) * true / (out - label_noise)[indices].sum()
    return out


def _unexplained_share(
    phi: Tensor, residual: Tensor, points: Tensor, solution: KernelSolution
) -> float:
    """Share of the residual variance that no label explains, measured at unlabelled points."""
    total = residual[points].clamp_min(0.0).sum()
    if float(total) <= 0:
        return 1.0
    exact = 1 - solution.explained - phi[points].double().square().sum(1)
    return float((exact.sum() / total).clamp(0.0, 1.0))
