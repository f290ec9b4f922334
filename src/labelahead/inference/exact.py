"""Kernel regression on frozen features: a model without training, exact after every label.

Features are centred over the pool and scaled to unit length. On unit vectors the tangent kernels of
infinitely wide ReLU networks are functions of the cosine alone. The model mixes three of them:

    K(x,x') = w₀ c + w₁ κ₁(c) + w₃ κ₃(c),   c = ⟨x, x'⟩,   κ_d: d hidden layers, κ_d(1) = 1.

The prediction is the posterior mean f(x) = 1/C + K(x,X) α with α = (K(X,X) + σI)⁻¹ (Y − 1/C). A
linear kernel is far better with few labels and a deep one with many, so the weights and the noise
are chosen again, by closed-form leave-one-out, as labels arrive. No matrix of size pool × pool is
formed, and items outside the pool are predicted from L×C numbers.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import pi
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from labelahead.batching import Samples, share_array
from labelahead.data.dataset import Guesses
from labelahead.data.guesses import parse_guesses, stack_deviations
from labelahead.errors import InputError
from labelahead.gp.calibration import fit_scale, gaussian_class_probabilities
from labelahead.gp.covariance import CosineKernel
from labelahead.gp.linalg import cholesky, cholesky_inverse
from labelahead.gp.nystrom import approximate_posterior, evenly_spaced
from labelahead.gp.posterior import NystromLabels, prior
from labelahead.inference.forecast import ErrorForecast, forecast_error
from labelahead.inference.network import FittedModel
from labelahead.inference.pool_posterior import Observation
from labelahead.inference.sources import (
    Annotations,
    EffectiveLabels,
    ItemLabels,
    SourceEstimates,
    average_labels,
    combine_sources,
    estimate_sources,
)
from labelahead.inference.trust import apply_trust, fit_trust, initial_trust
from labelahead.models import EXACT
from labelahead.models.training import Training, TrainingResult
from labelahead.models.training.forward import apply_dropout
from labelahead.models.training.objective import MakeObjective

__all__ = [
    "EXACT",
    "EXACT_DESCRIPTION",
    "ExactLearner",
    "ExactModel",
    "FittedExactModel",
    "Mixture",
    "MixtureSearch",
    "append_pool_guesses",
    "choose_mixture",
    "compute_bias_feature",
    "cosine_kernels",
    "exact",
    "find_canonical_order",
    "find_kernel_model",
    "mix_kernels",
    "mixture_kernel",
    "predict_proba",
    "wrap_fitted_model",
]

EXACT_DESCRIPTION = (
    "nothing is trained: kernel regression on features, rows or pixels, exact after every label"
)
KERNEL_DEPTHS = (0, 1, 3)  # hidden layers of the mixed kernels; 0: linear
WEIGHT_STEPS = 4  # weights are multiples of 1/4
NOISE_GRID = (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
PREDICT_BATCH_ROWS = 1024
# Inputs are converted to unit rows and summed in blocks of about so many numbers, so that inputs of
# half precision or on a disk are never copied whole: 32 MB in float32.
BLOCK_NUMBERS = 1 << 23
# Sums over rows are computed for a multiple of so many columns at a time. Then each column is
# summed in the same order as in a sum over all columns at once (with 8 the last bits differed).
MEAN_BLOCK_COLUMNS = 64
# In rows with few columns the length is as informative as the direction. A constant coordinate, as
# large as their average length, preserves it under normalisation. It hurts embeddings, and rows
# with more columns gain little.
MAX_BIAS_FEATURE_COLUMNS = 4
# A mixture is chosen by at most so many evenly spaced labels: the cost is cubic.
MAX_SELECTION_LABELS = 1000
# The mixture is chosen so often while the reliability of sources is learnt, with so many steps each.
SOURCE_ROUNDS = 2
SOURCE_STEPS = 2
# Lower bound of predictive variances: copies of a labelled item are not infinitely certain.
MIN_VARIANCE = 1e-9


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
        targets: (L, C).

    Returns:
        α (L, C), leave-one-out residuals (L, C) and leave-one-out variances (L,).
    """
    system = K.clone()
    system.diagonal().add_(noise)
    lower, _ = cholesky(system, what="the kernel of the labelled items")
    inverse = cholesky_inverse(lower)
    alpha = inverse @ targets
    return alpha, -alpha / inverse.diagonal()[:, None], inverse.diagonal().reciprocal()


@dataclass(frozen=True)
class MixtureSearch:
    """How a mixture is chosen by leave-one-out errors.

    Attributes:
        max_full_grid_labels: Up to so many labels every mixture is tried. With more, so many evenly
            spaced labels determine the start of a local search.
        max_labels: A mixture is chosen by at most so many evenly spaced labels: the cost is cubic.
        error_tolerance: Among mixtures whose error is above the least by at most this share, the
            flattest is chosen. With few labels the error is noisy, and flat kernels generalise
            better (docs/results.md).
    """

    max_full_grid_labels: int = 200
    max_labels: int = MAX_SELECTION_LABELS
    error_tolerance: float = 0.03


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

    def near(other: Mixture) -> bool:
        moved = (
            sum(abs(a - b) for a, b in zip(m.weights, other.weights, strict=True))
            * WEIGHT_STEPS
            / 2
        )
        return moved + abs(NOISE_GRID.index(other.noise) - step) <= 1

    return [other for other in MIXTURE_GRID if near(other)]


class ExactModel(nn.Module):
    """Fitted kernel regression as an `nn.Module` without parameters: features (n, ...) -> outputs (n,
    C).

    Use `predict_proba` for probabilities: it calibrates them.

    Args:
        centre: (d,) mean of the pool's features. Empty: inputs are unit rows already
            (`for_unit_rows`).
        classes: Number of outputs C.
        bias_feature: Value of a constant coordinate that is appended to every row; 0: none. The
            buffer is called `lift`, as in saved models.
        guessers: Number of guessers G. The last G·C columns of every input are their guesses, as
            deviations g − 1/C; 0 where a guesser said nothing. Inputs without these columns have no
            guesses.
        guess_classes: Number of classes that the guessers know; default: all.
    """

    centre: Tensor  # (d,)
    support: Tensor  # (L, d) unit features of the labelled items
    alpha: Tensor  # (L, C)
    mixture: Tensor  # (4,)
    lift: Tensor  # (1,) one more coordinate of every row, or (0,)
    variance_scale: Tensor  # (1,) s²a² of `linear.calibration`, or (0,): not worked out yet
    trust: Tensor  # (G, C, C) in each guesser (`labelahead.inference.trust`)
    guess_classes: Tensor  # (1,) classes that each guesser knows, or (0,) without guessers
    label_noise: Tensor  # (L,) what each label adds to the noise, or (0,): labels of one source

    def __init__(
        self,
        centre: Tensor,
        classes: int,
        bias_feature: float = 0.0,
        *,
        guessers: int = 0,
        guess_classes: int | None = None,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.register_buffer("centre", centre)
        self.register_buffer("support", centre.new_zeros((0, len(centre))))
        self.register_buffer("alpha", torch.zeros((0, classes), dtype=torch.float64))
        self.register_buffer("mixture", torch.tensor(Mixture(), dtype=torch.float64))
        self.register_buffer(
            "lift", torch.tensor([bias_feature] if bias_feature else [], dtype=torch.float64)
        )
        self.register_buffer("variance_scale", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("label_noise", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("trust", initial_trust(guessers, classes))
        known = [classes if guess_classes is None else guess_classes] if guessers else []
        self.register_buffer("guess_classes", torch.tensor(known, dtype=torch.int64))
        self.known_classes = sum(known)  # as a number: exporters cannot read tensors
        self._whitening: tuple[Tensor, Tensor] | None = None  # (support, whitening)
        self.pool_guesses: Tensor | None = None  # (n, G·C) about the items it was made for
        # position -> what its labels amount to, of the last fit; empty for labels of one source
        self.observations: Mapping[int, Observation] = {}

    def normalise_rows(self, x: Tensor) -> Tensor:
        """Centre rows and scale them to unit length, (n, ...) -> (n, d).

        A row that equals the centre stays zero. Guesses follow unchanged: (n, d + G·C).
        """
        if not len(self.centre):  # inputs are unit rows: see `for_unit_rows`
            return x.flatten(1)
        if self.guess_width:
            features, guesses = self._split_guesses(x.flatten(1))
            return torch.cat([self._normalise_features(features), guesses.to(self.centre)], 1)
        return self._normalise_features(x.flatten(1))

    def _split_guesses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split inputs (n, d) or (n, d + G·C) into features and guesses, which are 0 if missing."""
        width = len(self.centre)
        if x.shape[1] == width:
            return x, x.new_zeros(len(x), self.guess_width)
        return x[:, :width], x[:, width:]

    def _normalise_features(self, x: Tensor) -> Tensor:
        rows = x.to(self.centre) - self.centre
        if len(self.lift):
            rows = torch.cat(
                [rows, torch.ones_like(rows[:, :1]) * self.lift.to(rows)], 1
            )  # ONNX: any number of rows
        peak = rows.abs().amax(1, keepdim=True)
        odd = (peak > 1e15) | ((peak < 1e-15) & (peak > 0))  # whose squares overflow or underflow
        return F.normalize(rows / torch.where(odd, peak, 1.0), dim=1, eps=1e-30)

    @property
    def guess_width(self) -> int:
        """Number of columns that hold guesses, G·C."""
        return len(self.trust) * self.known_classes

    def take_features(self, units: Tensor) -> Tensor:
        """Return the columns of unit rows that the kernel compares, without the guesses."""
        return units[:, : units.shape[1] - self.guess_width] if self.guess_width else units

    def take_guesses(self, units: Tensor) -> Tensor:
        """Return the deviations (n, G, C) of the guesses in unit rows, float64."""
        known = self.known_classes
        last = units[:, units.shape[1] - self.guess_width :].double()
        blocks = last.view(-1, len(self.trust), known)
        return F.pad(blocks, (0, self.classes - known))

    def prior_mean(self, units: Tensor) -> Tensor:
        """Return the prior mean (n, C) at unit rows: 1/C, and what the guesses add to it."""
        if not self.guess_width:
            return torch.full(
                (units.shape[0], self.classes),
                1 / self.classes,
                dtype=torch.float64,
                device=units.device,
            )
        mean = torch.zeros_like(units[:, :1], dtype=torch.float64) + 1 / self.classes  # for ONNX
        return mean + apply_trust(self.trust.to(mean), self.take_guesses(units))

    def get_mixture(self) -> Mixture:
        """Return the kernel mixture."""
        return Mixture(*self.mixture.tolist())

    @property
    def noise(self) -> float:
        """Relative noise, chosen together with the mixture."""
        return self.get_mixture().noise

    @property
    def noise_of_labels(self) -> float | Tensor:
        """Noise of the labels: (L,) if they have several sources, else one number."""
        return self.noise + self.label_noise if len(self.label_noise) else self.noise

    def kernel_inputs(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit rows (n, d), the inputs of the kernel, and the prior mean (n, C)."""
        units = self.normalise_rows(rows)
        return units, self.prior_mean(units).cpu()

    def kernel_arguments(self, units: Tensor) -> dict[str, Any]:
        """Return the mixture kernel between unit rows (n, d), as arguments of `prior`."""
        return {"kernel": mixture_kernel(self.take_features(units), self.get_mixture().weights)}

    def forward(self, x: Tensor) -> Tensor:
        """Compute the prior mean + K(x, X) α."""
        return self.predict_units(self.normalise_rows(x))

    def predict_units(self, units: Tensor) -> Tensor:
        """Return the outputs (n, C) for unit rows (n, d)."""
        out = self.prior_mean(units).to(units.dtype)
        if len(self.support):
            K = self._cross_kernel(units)
            out = out + K @ self.alpha.to(K.dtype)
        return out

    def _cross_kernel(self, units: Tensor) -> Tensor:
        """Return the kernel (n, L) between unit rows and the labelled items, in their dtype."""
        cosines = self.take_features(units) @ self.take_features(self.support).to(units.dtype).T
        return mix_kernels(cosines, self.get_mixture().weights)

    @classmethod
    def for_unit_rows(cls, classes: int, guessers: int = 0) -> "ExactModel":
        """Create a model whose inputs are unit rows already, as `normalise_rows` of another model
        returns them.
        """
        return cls(torch.zeros(0), classes, guessers=guessers)

    def without_labels(self, classes: int | None = None) -> "ExactModel":
        """Return a model with the same preprocessing and no labels."""
        return ExactModel(
            self.centre,
            classes or self.classes,
            float(self.lift.sum()),
            guessers=len(self.trust),
            guess_classes=self.known_classes if len(self.trust) else None,
        )

    def with_guessers(self, guessers: int, guess_classes: int) -> "ExactModel":
        """Return a model without labels that takes the guesses of so many guessers, too.

        Args:
            guessers: Number of guessers G.
            guess_classes: Number of classes that they know.
        """
        return ExactModel(
            self.centre,
            self.classes,
            float(self.lift.sum()),
            guessers=guessers,
            guess_classes=guess_classes,
        )

    def predict_proba(self, x: Tensor, classes: int | None = None) -> Tensor:
        """Return calibrated class probabilities.

        Args:
            x: (n, ...) features, as `forward` takes them.
            classes: Number of classes, if the model has one output more (data with a single class).

        Returns:
            (n, C) float64 on the CPU. Before the first label: the mean of the guesses, 1/C without
            any.
        """
        return self.predict_proba_units(self.normalise_rows(x), classes)

    def predict_proba_at(self, units: Tensor, start: Tensor, classes: int | None = None) -> Tensor:
        """Do the same as `predict_proba` for the inputs (n, d) and (n, C) of the kernel."""
        return self.predict_proba_units(units, classes)

    def predict_proba_units(self, units: Tensor, classes: int | None = None) -> Tensor:
        """Do the same as `predict_proba` for unit rows (n, d)."""
        count = classes or self.classes
        parts = [units.new_full((0, count), 1.0, dtype=torch.float64).cpu()]
        for some in torch.split(units, PREDICT_BATCH_ROWS):
            if len(self.support):
                # float64: rounding of the cosines is multiplied by α, which is large if the noise
                # is small.
                K = self._cross_kernel(some.double())
                mean = (self.prior_mean(some) + K @ self.alpha)[:, :count]
                spread = self.ensure_variance_scale() * self._variance_from_kernel(K).clamp_min(
                    MIN_VARIANCE
                )
                parts.append(gaussian_class_probabilities(mean, spread).cpu())
            else:
                parts.append(self._mean_guess(some, count).cpu())
        return torch.cat(parts)

    def _mean_guess(self, units: Tensor, count: int) -> Tensor:
        """Return the mean (n, count) of the guesses as probabilities."""
        p = units.new_full((len(units), count), 1 / count, dtype=torch.float64)
        if self.guess_width:
            p = (p + self.take_guesses(units).mean(1)[:, :count]).clamp_min(0.0)
        return p / p.sum(1, keepdim=True)

    def predict_variance(self, units: Tensor) -> Tensor:
        """Return posterior variances (n,) at unit rows (n, d); the prior variance is 1."""
        parts = [units.new_ones(0, dtype=torch.float64)]
        for some in torch.split(units, PREDICT_BATCH_ROWS):
            parts.append(
                self._variance_from_kernel(self._cross_kernel(some.double()))
                if len(self.support)
                else torch.ones_like(some[:, 0], dtype=torch.float64)
            )
        return torch.cat(parts)

    def _variance_from_kernel(self, K: Tensor) -> Tensor:
        """Return 1 − k(K + σI)⁻¹kᵀ (n,) from the kernel (n, L) with the labelled items."""
        return (1 - (K.double() @ self.compute_whitening().T).square().sum(1)).clamp_min(0.0)

    def compute_whitening(self) -> Tensor:
        """Return the inverse Cholesky factor (L, L) of K(X,X) + σI, computed once per set of labels."""
        if self._whitening is None or self._whitening[0] is not self.support:
            weights = self.get_mixture().weights
            system = mix_kernels(_cosine_matrix(self.take_features(self.support)), weights)
            system.diagonal().add_(self.noise_of_labels)
            lower, _ = cholesky(system, what="the kernel of the labelled items")
            eye = torch.eye(len(system), dtype=torch.float64, device=system.device)
            self._whitening = self.support, torch.linalg.solve_triangular(lower, eye, upper=False)
        return self._whitening[1]

    def leave_one_out_variance(self) -> Tensor:
        """Return leave-one-out variances (L,) of the labelled items."""
        return self.compute_whitening().square().sum(0).reciprocal() - self.noise_of_labels

    def ensure_variance_scale(self) -> float:
        """Return s²a², the variance scale that maximises the leave-one-out likelihood of the labels.

        It is computed on first use.
        """
        if not len(self.variance_scale):
            self.calibrate()
        return float(self.variance_scale)

    def calibrate(self, votes: Tensor | None = None) -> None:
        """Fit the variance scale s²a².

        Args:
            votes: (L,) bool, the labels to calibrate on (`labelahead.gp.calibration`); default:
                all.
        """
        mixture, features = self.get_mixture(), self.take_features(self.support)
        targets = mix_kernels(
            _cosine_matrix(features), mixture.weights
        ) @ self.alpha + self._scale_by_noise(self.alpha)
        start = self.prior_mean(self.support)
        post = prior(start, mixture_kernel(features, mixture.weights), noise=mixture.noise)
        noise = self.noise_of_labels if len(self.label_noise) else None
        post = post.condition(torch.arange(len(features)), targets + start, noise)
        self.variance_scale = targets.new_tensor([fit_scale(post, votes) ** 2 * post.amplitude()])

    def _scale_by_noise(self, alpha: Tensor) -> Tensor:
        """Return D α (L, C), with the noise D of the labels."""
        noise = self.noise_of_labels
        return (noise[:, None] if isinstance(noise, Tensor) else noise) * alpha

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *args: Any) -> None:
        for name in (
            "centre",
            "support",
            "alpha",
            "mixture",
            "lift",
            "variance_scale",
            "trust",
            "guess_classes",
            "label_noise",
        ):  # their shapes depend on the number of labels
            if prefix + name not in state and name in ("trust", "guess_classes", "label_noise"):
                # saved by an earlier version
                state[prefix + name] = getattr(self, name)[:0]  # type: ignore[index]
            if prefix + name in state:
                setattr(self, name, state[prefix + name].clone().to(getattr(self, name).device))
        self.classes = self.alpha.shape[1]
        if self.trust.dim() == 1:  # saved by a version with one number per guesser
            eye = torch.eye(self.classes, dtype=self.trust.dtype, device=self.trust.device)
            self.trust = self.trust[:, None, None] * eye
            state[prefix + "trust"] = self.trust  # type: ignore[index]
        self.known_classes = int(self.guess_classes.sum())
        super()._load_from_state_dict(state, prefix, *args)


def find_canonical_order(units: Tensor) -> Tensor:
    """Return an order (L,) of rows (L, d) that depends on their values only, not on their positions.

    It decides which labels a mixture is chosen by when there are many.
    """
    direction = torch.cos(
        1.0 + torch.arange(units.shape[1], dtype=torch.float64, device=units.device)
    )
    return (units.double() @ direction).argsort(stable=True)


def _cosine_matrix(units: Tensor) -> Tensor:
    """Return the cosines (L, L) between unit rows, float64, with ones on the diagonal."""
    return (units.double() @ units.double().T).fill_diagonal_(1.0)


@dataclass(frozen=True, eq=False)
class FittedExactModel(FittedModel):
    """An `ExactModel` with the data set that it predicts."""

    inputs: Tensor

    forms_kernel: ClassVar[bool] = False
    baseline: ClassVar[str] = "linearised"  # `start` does not depend on labels
    needs_training: ClassVar[bool] = False

    @property
    def observations(self) -> Mapping[int, Observation]:
        """position -> what its labels amount to, if they have several sources."""
        return self.kernel_model.observations

    @property
    def kernel_model(self) -> ExactModel:
        """The model."""
        assert isinstance(self.model, ExactModel)
        return self.model

    @property
    def mixture(self) -> Mixture:
        """The kernel mixture."""
        return self.kernel_model.get_mixture()

    @property
    def noise(self) -> float:
        """The noise, chosen together with the mixture."""
        return self.mixture.noise

    def predict_proba(self, at: Tensor, classes: int | None = None) -> Tensor:
        """Return calibrated class probabilities (q, C)."""
        model = self.kernel_model
        parts = [model.predict_proba(self.inputs[some], classes) for some in self._split(at)]
        return torch.cat(parts)

    def _split(self, at: Tensor) -> tuple[Tensor, ...]:
        """Split positions (q,) into blocks whose unit rows fit into memory.

        Blocks are multiples of the batches of predictions, which stay the same.
        """
        width = max(1, self.inputs[:1].numel())
        batches = max(1, BLOCK_NUMBERS // (width * PREDICT_BATCH_ROWS))
        return torch.split(at, batches * PREDICT_BATCH_ROWS)

    def unit_rows(self, at: Tensor) -> Tensor:
        """Return the unit rows (q, d), the only copy of these inputs that is made."""
        model, blocks = self.kernel_model, self._split(at)
        first = model.normalise_rows(self.inputs[blocks[0]])
        if len(blocks) == 1:
            return first
        units = first.new_empty((len(at), first.shape[1]))
        end = 0
        for block in blocks:
            units[end : end + len(block)] = model.normalise_rows(self.inputs[block])
            end += len(block)
        return units

    def make_learner(
        self,
        classes: int,
        network: Callable[[int], nn.Module],
        training: Training,
        objective: MakeObjective | None = None,
    ) -> "ExactLearner":
        """Return the learner of such models; network, training and objective have no effect."""
        model = self.kernel_model
        return ExactLearner(self.inputs, model.without_labels(), str(model.centre.device))

    def calibrate(self, votes: Tensor) -> None:
        """Calibrate the probabilities on some of the labels. votes: (L,) bool."""
        self.kernel_model.calibrate(votes)

    def embedding(self, at: Tensor) -> Tensor:
        """Return unit features (q, d), float64."""
        model = self.kernel_model
        return model.take_features(self.unit_rows(at)).cpu().double()

    def predict_with_dropout(self, at: Tensor, rate: float, rng: torch.Generator) -> Tensor:
        """Return outputs (q, C) after dropout on the unit features, which are normalised again."""
        parts = []
        model = self.kernel_model
        for some in torch.split(at, PREDICT_BATCH_ROWS):
            units = model.normalise_rows(self.inputs[some])
            features = model.take_features(units)
            left = F.normalize(apply_dropout(features, rate, rng), dim=1, eps=1e-30)
            parts.append(model.predict_units(torch.cat([left, units[:, features.shape[1] :]], 1)))
        return torch.cat(parts)

    def start(self, outputs: Tensor, at: Tensor) -> Tensor:
        """Return the prior mean (q, C), 1/C: the posterior is conditioned on all labels.

        Items are queried as without guesses (`labelahead.inference.trust`).
        """
        return torch.full_like(outputs, 1 / outputs.shape[1])

    def kernel_arguments(self, at: Tensor, kind: str, sketch: int | None = None) -> dict[str, Any]:
        """Return the mixture kernel, evaluated on demand. It is scalar and never sketched."""
        model = self.kernel_model
        return model.kernel_arguments(self.unit_rows(at))


@dataclass(frozen=True, eq=False)
class ExactLearner:
    """Kernel regression on the inputs (n, ...) of the whole data set.

    Args:
        inputs: (n, ...) features, rows or pixels.
        blank_model: The model without labels, which defines centring and normalisation; from
            `exact` or `ExactModel.without_labels`.
        device: Where the linear systems are solved.
        max_exact_labels: Above this number, labels are approximated (`labelahead.gp.nystrom`), so
            that memory does not grow with their square.
        mixture_search: How the kernel mixture is chosen.
        annotations: All labels of all items by source, if there are several: `fit` learns how
            reliable each source is, and weighs its labels accordingly.
    """

    inputs: Tensor
    blank_model: ExactModel
    device: str = "cpu"
    max_exact_labels: int | None = None
    mixture_search: MixtureSearch = DEFAULT_SEARCH
    annotations: Annotations | None = None
    _last_model: dict[tuple[int, ...], ExactModel] = field(
        default_factory=dict, repr=False
    )  # by labelled positions
    _last_nystrom: dict[tuple[int, ...], NystromLabels] = field(
        default_factory=dict, repr=False
    )  # by labelled positions
    # by labelled positions: targets (L, C) minus 1/C and sources of the last fit
    _last_sources: dict[tuple[int, ...], tuple[Tensor, SourceEstimates]] = field(
        default_factory=dict, repr=False
    )

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return self.blank_model.classes

    @property
    def source_estimates(self) -> SourceEstimates | None:
        """What the last fit learnt about the sources; None if all labels had the same."""
        return next((found for _, found in self._last_sources.values()), None)

    @property
    def training(self) -> Training:
        """A placeholder: nothing is trained, and the loss is the squared one."""
        return Training(start="warm")

    def network(self, seed: int) -> ExactModel:
        """Return a model without labels; the seed has no effect."""
        return self.blank_model.without_labels()

    def fit(
        self,
        labelled: Tensor,
        labels: Tensor,
        *,
        seed: int = 0,
        previous: Mapping[str, Tensor] | None = None,
        into: nn.Module | None = None,
    ) -> FittedExactModel:
        """Fit all labels (L,) exactly: choose the mixture and solve one linear system.

        `seed` and `previous` matter for networks only.
        """
        began = time.perf_counter()
        model = (
            (into if isinstance(into, ExactModel) else self.network(seed)).to(self.device).eval()
        )
        trained = None
        if len(labelled):
            support = model.normalise_rows(self.inputs[labelled].to(self.device))
            targets = F.one_hot(labels.to(self.device), self.classes).double() - 1 / self.classes
            mixture, targets, model.label_noise = self._weigh_sources(
                labelled, labels, model.take_features(support), targets
            )
            if model.guess_width:
                model.trust = self._fit_trust(model, support, targets, mixture)
                targets = targets + 1 / self.classes - model.prior_mean(support)
            model.mixture = torch.tensor(mixture, dtype=torch.float64, device=targets.device)
            alpha = self._solve(labelled, model, model.take_features(support), targets)
            model.support = support
            model.alpha = alpha
            model.variance_scale = alpha.new_zeros(0)
            model.observations = self._describe_observations(labelled, labels, model)
            # (K + D)α = Y − m, so Kα = Y − m − Dα
            predictions = targets - model._scale_by_noise(alpha)
            loss = float((predictions - targets).square().sum(1).mean())
            if model.guess_width:
                predictions = predictions + model.prior_mean(support)
            right = float((predictions.argmax(1) == labels.to(alpha.device)).double().mean())
            trained = TrainingResult(loss, right, 0, 0.0, (), time.perf_counter() - began)
        self._last_model.clear()
        self._last_model[tuple(labelled.tolist())] = model
        return FittedExactModel(model, self.inputs, "squared", trained, time.perf_counter() - began)

    def _is_exact(self, labels: int) -> bool:
        """Return whether so many labels are solved exactly."""
        return self.max_exact_labels is None or labels <= self.max_exact_labels

    def _choose_mixture(
        self, support: Tensor, targets: Tensor, label_noise: Tensor | None = None
    ) -> Mixture:
        """Choose the mixture by leave-one-out on all labels, or on evenly spaced ones."""
        some, search = find_canonical_order(support), self.mixture_search
        if not self._is_exact(len(support)):
            some = some[evenly_spaced(len(support), search.max_labels).to(support.device)]
            cosines = _cosine_matrix(support[some])
        else:
            cosines = _cosine_matrix(support)[some][:, some]
        noise = None if label_noise is None else label_noise[some]
        return choose_mixture(cosines, targets[some], search, noise)

    def _weigh_sources(
        self, labelled: Tensor, labels: Tensor, support: Tensor, targets: Tensor
    ) -> tuple[Mixture, Tensor, Tensor]:
        """Choose the mixture, and learn how reliable the sources of the labels are.

        Args:
            labelled: (L,) positions.
            labels: (L,) class numbers.
            support: (L, d) unit features.
            targets: (L, C) one-hot labels minus 1/C.

        Returns:
            The mixture, the targets (L, C) and the further noise of the labels: (L,), or (0,) if
            all have the same source.
        """
        self._last_sources.clear()
        given = None
        if self.annotations is not None:
            given = self.annotations.select_items(labelled.cpu(), labels.cpu())
        if given is None:
            return self._choose_mixture(support, targets), targets, targets.new_zeros(0)
        effective = average_labels(given, self.classes)
        mixture = self._choose_mixture(support, effective.targets.to(targets))
        for attempt in range(SOURCE_ROUNDS):
            if attempt:
                mixture = self._choose_mixture(support, *(x.to(targets) for x in effective))
            for _ in range(SOURCE_STEPS):
                found = self._estimate_sources(support, given, effective, mixture)
                effective = combine_sources(given, found.lapse, self.classes, mixture.noise)
        self._last_sources[tuple(labelled.tolist())] = effective.targets, found
        return mixture, effective.targets.to(targets), effective.noise.to(targets)

    def _describe_observations(
        self, labelled: Tensor, labels: Tensor, model: ExactModel
    ) -> dict[int, Observation]:
        """Return what the labels of each item amount to; empty for labels of one source."""
        if not len(model.label_noise):
            return {}
        rows = self._effective_targets(labelled, labels).tolist()
        return {
            position: Observation(label, tuple(target), noise)
            for position, label, target, noise in zip(
                labelled.tolist(), labels.tolist(), rows, model.label_noise.tolist(), strict=True
            )
        }

    def _estimate_sources(
        self, support: Tensor, given: ItemLabels, effective: EffectiveLabels, mixture: Mixture
    ) -> SourceEstimates:
        """Estimate the sources by leave-one-out on at most as many items as the mixture."""
        some = find_canonical_order(support)
        some = some[evenly_spaced(len(some), self.mixture_search.max_labels).to(some.device)]
        K = mix_kernels(_cosine_matrix(support[some]), mixture.weights).cpu()
        kept = some.cpu()
        noise, targets = mixture.noise + effective.noise[kept], effective.targets[kept]
        alpha, residual, divisor = solve_leave_one_out(K, noise, targets)
        # a², up to a factor that is estimated together with the sources
        amplitude = float((targets * alpha).sum()) / targets.numel()
        variance = amplitude * (divisor - noise).clamp_min(MIN_VARIANCE)
        return estimate_sources(residual + targets + 1 / self.classes, variance, given.subset(kept))

    def _fit_trust(
        self, model: ExactModel, support: Tensor, targets: Tensor, mixture: Mixture
    ) -> Tensor:
        """Fit the trust (G, C, C) on as many labels as the mixture is chosen by."""
        some, most = (
            find_canonical_order(model.take_features(support)),
            self.mixture_search.max_labels,
        )
        if len(some) > most:
            some = some[evenly_spaced(len(some), most).to(some.device)]
        cosines = _cosine_matrix(model.take_features(support[some]))
        guesses = model.take_guesses(support[some])
        more = model.label_noise[some] if len(model.label_noise) else 0.0
        return fit_trust(
            mix_kernels(cosines, mixture.weights), mixture.noise + more, targets[some], guesses
        )

    def _solve(
        self, labelled: Tensor, model: ExactModel, support: Tensor, targets: Tensor
    ) -> Tensor:
        """Return α (L, C) for the mixture and the noise of a model."""
        self._last_nystrom.clear()
        mixture = model.get_mixture()
        if self._is_exact(len(support)):
            K = mix_kernels(_cosine_matrix(support), mixture.weights)
            return solve_leave_one_out(K, model.noise_of_labels, targets)[0]
        assert self.max_exact_labels is not None
        start = prior(
            torch.zeros_like(targets), mixture_kernel(support, mixture.weights), noise=mixture.noise
        )
        settled = approximate_posterior(
            start,
            torch.arange(len(support)),
            targets,
            self.max_exact_labels,
            noise=model.noise_of_labels if len(model.label_noise) else None,
        ).nystrom_labels
        assert settled is not None
        self._last_nystrom[tuple(labelled.tolist())] = settled
        return settled.weights

    def leave_one_out_predictions(
        self, labelled: Tensor, labels: Tensor, *, seed: int = 0, find_wrong_labels: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the leave-one-out predictions (L, C) and residuals (L, C) of the labelled items."""
        settled = self._last_nystrom.get(tuple(labelled.tolist()))
        model = (
            self._last_model.get(tuple(labelled.tolist()))
            or self.fit(labelled, labels).kernel_model
        )
        start = model.prior_mean(model.support).cpu()
        if settled is not None:
            mean = settled.leave_one_out_mean
            if len(model.label_noise):
                outputs = mean + start.to(mean)
                return outputs, outputs - F.one_hot(labels, self.classes).to(mean)
            return mean + start.to(mean), mean - settled.targets
        targets = self._effective_targets(labelled, labels) - start
        cosines, mixture = (
            _cosine_matrix(model.take_features(model.support)).cpu(),
            model.get_mixture(),
        )
        noise = model.noise_of_labels
        noise = noise.cpu() if isinstance(noise, Tensor) else noise
        _, residual, _ = solve_leave_one_out(mix_kernels(cosines, mixture.weights), noise, targets)
        outputs = residual + targets + start
        if len(model.label_noise):  # compared with the label itself
            return outputs, outputs - F.one_hot(labels, self.classes)
        return outputs, residual

    def _effective_targets(self, labelled: Tensor, labels: Tensor) -> Tensor:
        """Return the targets (L, C) that the last fit of these items used."""
        known = self._last_sources.get(tuple(labelled.tolist()))
        if known is None:
            return F.one_hot(labels, self.classes).double()
        return known[0] + 1 / self.classes

    def forecast_error(
        self,
        labelled: Tensor,
        labels: Tensor,
        at: Tensor,
        *,
        seed: int = 0,
        votes: Tensor | None = None,
    ) -> ErrorForecast:
        """Estimate the error at items (q,), in random order, and forecast it after further labels.

        Args:
            labelled: (L,) positions.
            labels: (L,) class numbers.
            at: (q,) positions at which the error is estimated.
            seed: No effect.
            votes: (L,) bool, the labels to calibrate on (`labelahead.gp.calibration`); default:
                all.
        """
        model = (
            self._last_model.get(tuple(labelled.tolist()))
            or self.fit(labelled, labels).kernel_model
        )
        fitted, points = FittedExactModel(model, self.inputs), torch.cat([labelled, at])
        start = model.prior_mean(fitted.unit_rows(points).to(self.device))
        post = prior(start, **fitted.kernel_arguments(points, "pseudo"), noise=fitted.noise)
        first = torch.arange(len(labelled))
        targets = self._effective_targets(labelled, labels)
        noise = model.noise_of_labels if len(model.label_noise) else None
        if self._is_exact(len(labelled)):
            post = post.condition(first, targets, noise)
        else:
            assert self.max_exact_labels is not None
            alpha = F.pad(model.alpha, (0, 0, 0, len(at)))
            post = approximate_posterior(
                post, first, targets, self.max_exact_labels, alpha, noise=noise
            )
        return forecast_error(post, torch.arange(len(labelled), len(points)), votes)


def wrap_fitted_model(
    model: nn.Module, inputs: Tensor | Samples, loss: str = "squared"
) -> FittedModel:
    """Wrap a network that was trained elsewhere, with a data set (n, ...), as a `FittedModel`."""
    if not isinstance(model, ExactModel):
        return FittedModel(model, inputs, loss)
    if not isinstance(inputs, Tensor):
        raise InputError(
            "the exact learner compares rows of numbers; expected its inputs as one tensor (n, ...)"
        )
    return FittedExactModel(model, inputs, loss)


def find_kernel_model(model: nn.Module) -> ExactModel | None:
    """Return a model as an `ExactModel` if it is one and has labels, else None."""
    return model if isinstance(model, ExactModel) and len(model.support) else None


def predict_proba(
    model: nn.Module, inputs: Tensor | Samples, loss: str = "squared", classes: int | None = None
) -> Tensor:
    """Return class probabilities by any fitted model; those of the exact learner are calibrated.

    Every command, page and file takes its probabilities from here, so that a model never gives two
    different answers.

    Args:
        model: A trained network, or an `ExactModel` with its labels.
        inputs: (n, ...) inputs of the model.
        loss: The loss that a network was trained with.
        classes: Number of classes, if the model has one output more (data with a single class).

    Returns:
        (n, C) float64 on the CPU.
    """
    return wrap_fitted_model(model, inputs, loss).predict_proba(torch.arange(len(inputs)), classes)


def exact(inputs: Tensor | NDArray[Any], classes: int, guesses: Any = None) -> ExactModel:
    """Create a model for `Learner` and `propose` that needs no training: kernel regression on inputs
    (n, ...).

    Args:
        inputs: (n, ...) features, rows or pixels of all items: a tensor or an array. A file mapped
            into memory, `numpy.load(path, mmap_mode="r")`, is read in blocks and not copied.
        classes: Number of classes, two or more.
        guesses: What a language model, an old classifier or a heuristic says about the items:
            (n, C) probabilities, or (n,) class numbers with -1 where there is none; a dictionary of
            such arrays for several guessers. How much each counts is learnt from the labels.

    >>> import torch
    >>> import labelahead as la
    >>> x = torch.cat([torch.randn(20, 2) - 4, torch.randn(20, 2) + 4])
    >>> learner = la.Learner(la.exact(x, 2), x, "resolve")
    >>> learner.teach([0, 20], [0, 1])
    >>> learner.predict([5, 30]).argmax(1).tolist()
    [0, 1]
    """
    if isinstance(inputs, np.ndarray):
        inputs = share_array(inputs)
    if not isinstance(inputs, Tensor) or inputs.dim() < 2 or not len(inputs):
        raise InputError(
            "inputs is no tensor or array (n, ...); expected the features, rows or pixels of all "
            "items, stacked"
        )
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
        raise InputError(f"classes is {classes!r}; expected two or more")
    rows = inputs.flatten(1)
    model = ExactModel(_compute_centre(rows), classes, compute_bias_feature(rows))
    if guesses is None:
        return model
    names = tuple(str(c) for c in range(classes))
    each = guesses if isinstance(guesses, Mapping) else {"guesses": guesses}
    parsed = [
        Guesses(names, parse_guesses(values, len(rows), names, str(name)))
        for name, values in each.items()
    ]
    model = model.with_guessers(len(parsed), classes)
    model.pool_guesses = stack_deviations(parsed, names)
    return model


def _convert_to_real(rows: Tensor) -> Tensor:
    """Return rows in float32 or float64: half precision, as it is stored, is not computed with."""
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def _compute_centre(rows: Tensor) -> Tensor:
    """Return the mean (d,) of rows (n, d) in the dtype that they are computed with.

    Summed in float64, it does not depend on the order of the rows.
    """
    steps = max(1, BLOCK_NUMBERS // (len(rows) * MEAN_BLOCK_COLUMNS))
    blocks = torch.split(rows, steps * MEAN_BLOCK_COLUMNS, dim=1)
    means = [_convert_to_real(block).mean(0, dtype=torch.float64) for block in blocks]
    return torch.cat(means).to(_convert_to_real(rows[:0]).dtype)


def append_pool_guesses(model: nn.Module, inputs: Tensor | Samples) -> Tensor | Samples:
    """Return the inputs (n, ...) of a pool with the guesses that `exact` was given for it."""
    guesses = model.pool_guesses if isinstance(model, ExactModel) else None
    if guesses is None or not isinstance(inputs, Tensor):
        return inputs
    rows = inputs.flatten(1)
    if rows.shape[1] == len(model.centre) + guesses.shape[1]:  # type: ignore[arg-type]
        return inputs  # they have them already
    if len(rows) != len(guesses):
        raise InputError(
            f"the model has guesses about {len(guesses)} items, but there are {len(rows)} inputs; "
            "expected as many, in the same order"
        )
    rows = _convert_to_real(rows)
    return torch.cat([rows, guesses.to(rows)], 1)


def compute_bias_feature(rows: Tensor) -> float:
    """Return the value of the bias feature for rows (n, d).

    It is the root mean square length of centred rows with at most `MAX_BIAS_FEATURE_COLUMNS`
    columns, else 0.
    """
    if rows.shape[1] > MAX_BIAS_FEATURE_COLUMNS:
        return 0.0
    rows = _convert_to_real(rows)
    length = float((rows.double() - rows.double().mean(0)).square().sum(1).mean().sqrt())
    return length if 0 < length < 1e15 else 0.0
