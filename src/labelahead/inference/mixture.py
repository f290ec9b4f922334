"""The kernel of the exact learner: a mixture of three kernels, chosen by leave-one-out.

On unit vectors the tangent kernels of infinitely wide ReLU networks are functions of the cosine
alone. The mixture is

    K(x,x') = w₀ c + w₁ κ₁(c) + w₃ κ₃(c),   c = ⟨x, x'⟩,   κ_d: d hidden layers, κ_d(1) = 1.

A linear kernel is far better with few labels and a deep one with many, so the weights and the noise
are chosen again, by closed-form leave-one-out, as labels arrive.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import pi
from typing import NamedTuple

import torch
from torch import Tensor

from labelahead.gp.covariance import CosineKernel
from labelahead.gp.linalg import cholesky, cholesky_inverse
from labelahead.gp.nystrom import evenly_spaced

__all__ = [
    "Mixture",
    "MixtureSearch",
    "choose_mixture",
    "cosine_kernels",
    "cosine_matrix",
    "fill_missing",
    "find_canonical_order",
    "mix_kernels",
    "mixture_kernel",
    "solve_leave_one_out",
]

KERNEL_DEPTHS = (0, 1, 3)  # hidden layers of the mixed kernels; 0: linear
WEIGHT_STEPS = 4  # weights are multiples of 1/4
NOISE_GRID = (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
# A mixture is chosen by at most so many evenly spaced labels: the cost is cubic.
MAX_SELECTION_LABELS = 1000


class Mixture(NamedTuple):
    """Kernel weights, which sum to one, and the noise relative to a kernel diagonal of one."""

    linear: float = 1.0
    shallow: float = 0.0
    deep: float = 0.0
    noise: float = 1e-1

    @property
    def weights(self) -> tuple[float, float, float]:
        """The kernel weights without the noise."""
        return self[:3]

    @property
    def flatness(self) -> float:
        """1 for the linear kernel, 0 for the deep one."""
        return self.linear + self.shallow / 2


def _build_grid() -> tuple[Mixture, ...]:
    parts = [
        (i, j, WEIGHT_STEPS - i - j)
        for i in range(WEIGHT_STEPS + 1)
        for j in range(WEIGHT_STEPS + 1 - i)
    ]
    return tuple(
        Mixture(i / WEIGHT_STEPS, j / WEIGHT_STEPS, k / WEIGHT_STEPS, noise)
        for i, j, k in parts
        for noise in NOISE_GRID
    )


MIXTURE_GRID = _build_grid()


def cosine_kernels(c: Tensor) -> list[Tensor]:
    """Evaluate κ_d at cosines, one tensor per depth of `KERNEL_DEPTHS`.

    Layer by layer, Θ ← Θ·κ̇(Σ) + κ(Σ) and Σ ← κ(Σ), scaled to one at c = 1.
    """
    return [
        theta / (depth + 1)
        for depth, theta in _layers(c, max(KERNEL_DEPTHS))
        if depth in KERNEL_DEPTHS
    ]


def _layers(c: Tensor, last: int) -> Iterator[tuple[int, Tensor]]:
    """Yield (depth, unscaled Θ) after every layer. Use Θ at once: the next step may overwrite it."""
    sigma = theta = c.clamp(-1.0, 1.0)
    for depth in range(last + 1):
        if depth:
            root = (1 - sigma.square()).clamp_min_(0.0).sqrt_()
            slope = (
                torch.atan2(root, sigma).neg_().add_(pi).div_(pi)
            )  # (π − angle)/π, arc-cosine kernel of order 0
            sigma = root.div_(pi).addcmul_(slope, sigma)  # arc-cosine kernel of order 1
            theta = slope.mul_(theta).add_(sigma)
        yield depth, theta


def mix_kernels(c: Tensor, weights: tuple[float, ...]) -> Tensor:
    """Evaluate the kernel mixture at cosines; same shape. A purely linear mixture returns them
    unchanged.
    """
    if weights[0] == 1.0:
        return c.clone()
    wanted = {depth: w for depth, w in zip(KERNEL_DEPTHS, weights, strict=True) if w}
    out: Tensor | None = None
    for depth, theta in _layers(c, max(wanted)):  # each layer costs the same again
        if depth in wanted:
            part = (theta / (depth + 1)).mul_(wanted[depth])
            out = part if out is None else out.add_(part)
    assert out is not None
    return out


def mixture_kernel(units: Tensor, weights: tuple[float, ...]) -> CosineKernel:
    """Return the kernel mixture between unit rows (N, d) as an operator; entries are computed on
    demand.
    """
    return CosineKernel(units, lambda c: mix_kernels(c, weights))


def solve_leave_one_out(
    K: Tensor, noise: float | Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Solve kernel regression and its leave-one-out residuals in closed form.

    Args:
        K: (L, L) kernel of the labelled items.
        noise: Added to the diagonal: one number, or (L,).
        targets: (L, C); NaN where an answer says nothing about an output. Such an item counts as
            unlabelled for this output: its α and its residual are 0.

    Returns:
        α (L, C), leave-one-out residuals (L, C) and leave-one-out variances (L,), the last as if
        all answers were complete.
    """
    missing = targets.isnan()
    if bool(missing.any()):
        return _solve_partial(K, noise, targets, missing)
    system = K.clone()
    system.diagonal().add_(noise)
    lower, _ = cholesky(system, what="the kernel of the labelled items")
    inverse = cholesky_inverse(lower)
    alpha = inverse @ targets
    return alpha, -alpha / inverse.diagonal()[:, None], inverse.diagonal().reciprocal()


def _solve_partial(
    K: Tensor, noise: float | Tensor, targets: Tensor, missing: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Do `solve_leave_one_out` for targets with NaN: once per pattern of missing answers."""
    alpha, residual = torch.zeros_like(targets), torch.zeros_like(targets)
    for pattern, outputs in _group_by_pattern(missing):
        known = (~pattern).nonzero()[:, 0]
        if not len(known):
            continue
        own = noise[known] if isinstance(noise, Tensor) else noise
        at = known[:, None], outputs[None]
        alpha[at], residual[at], _ = solve_leave_one_out(K[known][:, known], own, targets[at])
    variance = solve_leave_one_out(K, noise, targets[:, :0])[2]
    return alpha, residual, variance


def _group_by_pattern(missing: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return patterns (L,) of missing answers and the outputs that have them, complete ones first."""
    patterns, group = torch.unique(missing, dim=1, return_inverse=True)
    order = patterns.sum(0).argsort(stable=True).tolist()
    return [(patterns[:, g], (group == g).nonzero()[:, 0]) for g in order]


def fill_missing(targets: Tensor, K: Tensor, alpha: Tensor) -> Tensor:
    """Replace missing targets (L, C) by the posterior mean given the other answers, K α.

    A regression on the result has the same α as one without these items.
    """
    return torch.where(targets.isnan(), K @ alpha, targets)


@dataclass(frozen=True)
class MixtureSearch:
    """How a mixture is chosen by leave-one-out errors.

    Attributes:
        max_full_grid_labels: Up to so many labels every mixture is tried. With more, so many evenly
            spaced labels determine the start of a local search.
        max_labels: A mixture is chosen by at most so many evenly spaced labels: the cost is cubic.
        max_patterns: If answers are partial, by the outputs with at most so many different patterns
            of missing answers, those with the most answers first.
        error_tolerance: Among mixtures whose error is above the least by at most this share, the
            flattest is chosen. With few labels the error is noisy, and flat kernels generalise
            better (docs/results.md).
    """

    max_full_grid_labels: int = 200
    max_labels: int = MAX_SELECTION_LABELS
    error_tolerance: float = 0.03
    max_patterns: int = 8


DEFAULT_SEARCH = MixtureSearch()


def choose_mixture(
    cosines: Tensor,
    targets: Tensor,
    search: MixtureSearch = DEFAULT_SEARCH,
    label_noise: Tensor | None = None,
) -> Mixture:
    """Choose the flattest mixture whose leave-one-out error is nearly the least.

    With many labels the whole grid is tried on some of them, and a local search on all of them
    starts from that choice. The result depends only on the labels and their order, never on an
    earlier choice, so fitting the same labels again gives the same mixture.

    Args:
        cosines: (L, L) between the labelled items.
        targets: (L, C).
        search: Limits and tolerance.
        label_noise: (L,) what each label adds to the noise (`labelahead.inference.sources`). The
            error of a label with more noise counts less.
    """
    if len(cosines) > search.max_labels:
        cosines, targets, label_noise = _subsample_evenly(
            cosines, targets, label_noise, search.max_labels
        )
    missing = targets.isnan()
    if bool(missing.any()):
        groups = _group_by_pattern(missing)[: search.max_patterns]
        targets = targets[:, torch.cat([outputs for _, outputs in groups])]
    errors = LeaveOneOutErrors(cosines, targets, label_noise)
    if len(cosines) <= search.max_full_grid_labels:
        least = min(MIXTURE_GRID, key=errors)
    else:
        some = _subsample_evenly(cosines, targets, label_noise, search.max_full_grid_labels)
        least = min(MIXTURE_GRID, key=LeaveOneOutErrors(*some))
        while (better := min(_neighbouring_mixtures(least), key=errors)) != least:
            least = better
    known = errors.known
    near = [m for m in known if known[m] <= (1 + search.error_tolerance) * known[least]]
    return max(near, key=lambda m: (m.flatness, -known[m]))


def _subsample_evenly(
    cosines: Tensor, targets: Tensor, label_noise: Tensor | None, n: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the cosines, targets and further noise of n evenly spaced labels."""
    some = evenly_spaced(len(cosines), n).to(cosines.device)
    extra = None if label_noise is None else label_noise[some]
    return cosines[some][:, some], targets[some], extra


class LeaveOneOutErrors:
    """Compute and cache the squared leave-one-out error of mixtures."""

    def __init__(self, cosines: Tensor, targets: Tensor, label_noise: Tensor | None = None) -> None:
        self.kernels = cosine_kernels(cosines.double())
        self.targets = targets
        self.label_noise = label_noise
        self.known: dict[Mixture, float] = {}

    def __call__(self, m: Mixture) -> float:
        if m not in self.known:
            K = m.weights[0] * self.kernels[0]
            for w, kernel in zip(
                m.weights[1:], self.kernels[1:], strict=True
            ):  # one at a time: each may be large
                K += w * kernel
            extra = self.label_noise
            noise = m.noise if extra is None else m.noise + extra
            errors = solve_leave_one_out(K, noise, self.targets)[1].square()
            if extra is not None:
                errors = errors / (1 + extra)[:, None]
            self.known[m] = float(errors.sum())
        return self.known[m]


def _neighbouring_mixtures(m: Mixture) -> list[Mixture]:
    """Return the mixture and those of the grid that differ from it by one step."""
    step = NOISE_GRID.index(m.noise)

    def is_neighbour(other: Mixture) -> bool:
        moved = (
            sum(abs(a - b) for a, b in zip(m.weights, other.weights, strict=True))
            * WEIGHT_STEPS
            / 2
        )
        return moved + abs(NOISE_GRID.index(other.noise) - step) <= 1

    return [other for other in MIXTURE_GRID if is_neighbour(other)]


def find_canonical_order(units: Tensor) -> Tensor:
    """Return an order (L,) of rows (L, d) that depends on their values only, not on their positions.

    It decides which labels a mixture is chosen by when there are many.
    """
    direction = torch.cos(
        1.0 + torch.arange(units.shape[1], dtype=torch.float64, device=units.device)
    )
    return (units.double() @ direction).argsort(stable=True)


def cosine_matrix(units: Tensor) -> Tensor:
    """Return the cosines (L, L) between unit rows, float64, with ones on the diagonal."""
    return (units.double() @ units.double().T).fill_diagonal_(1.0)
