"""Trust in guesses: how much prior knowledge counts, learnt from the labels in closed form.

A guesser has said something about every item: g(x), a probability vector. With deviations g̃ = g − 1/C
the labels are modelled as

    y(x) = 1/C + Σ_j W_jᵀ g̃_j(x) + f(x) + noise,   W_j: s_j on the diagonal, entries of variance τ²,

where f is the Gaussian process of the kernel and W_j (C×C) translates what guesser j says into what
it means: s_j I trusts it as it is, another matrix has learnt its typical confusions. In closed form:

0. A guesser may be right more often than its probabilities say. g̃_j is multiplied by the largest
   factor of a grid with which the regression of the labels on it has a slope above 1; no row
   exceeds that of a certain guess. Guesses that are classes stay as they are.
1. The leave-one-out residual of a label is linear in s, so that s follows from a regression, shrunk
   while there are few labels.
2. τ is the value of a grid with the least leave-one-out error of the kernel K + τ² Σ_j ⟨g̃_j, g̃_j'⟩.
   It is 0 unless that error is significantly lower.
3. W_j = s_j I + τ² G̃_jᵀ α is the posterior mean, with α = (K + τ² G̃G̃ᵀ + σI)⁻¹ (Y − 1/C − Σ_j s_j G̃_j).
4. A gate multiplies W: it compares, label by label, the leave-one-out predictions with and without
   guesses, and closes if the guesses make them worse.

Items are queried as without guesses: a wrong guesser never wastes a query.

The result is discounted and bounded. A small trust suffices while labels are few, because the
posterior mean is then close to 1/C, and a large one would outvote labels later.
"""

from math import exp, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from labelahead.gp.linalg import cholesky, cholesky_inverse

__all__ = [
    "MAX_TRUST",
    "apply_trust",
    "compute_gate",
    "fit_confusions",
    "fit_sharpness",
    "fit_trust",
    "initial_sharpness",
    "initial_trust",
    "sharpen",
    "summarise_trust",
]

# The regression's prior: mean, for all guessers together, and standard deviation of each s_j.
PRIOR_SUM = 0.55
PRIOR_DEVIATION = 0.35
MIN_STANDARD_ERROR = 0.02  # a few labels that agree by chance do not determine s
# Posterior means are shrunk towards 1/C, so that the trust with the least squared error outvotes
# them. The least error of classes has about half of it. This and the constants below were chosen on
# seeds 100 to 107; docs/guesses.md has the result on others.
TRUST_DISCOUNT = 0.45
MAX_TRUST = 0.3  # of each guesser
CONFUSION_GRID = (0.0, 0.1, 0.2, 0.4)  # τ
MIN_CONFUSION_SIGNIFICANCE = 2.0  # standard errors by which τ > 0 has to reduce the error
SHARPNESS_GRID = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0)
MIN_SLOPE = 1 + 1e-6  # of guesses that are spread; the slope of classes that are all right is 1
GATE_SLOPE = 1.5  # per standard error
GATE_OFFSET = 1.0  # without evidence the guesses count
MIN_GATE = 0.5  # a gate that is half closed is closed


class Confusions(NamedTuple):
    """W of every guesser before discount and bounds.

    Attributes:
        weights: (G, C, C): what a guess for the first class adds to the second one.
        residual: (L, C) leave-one-out residuals of the labels, given s and τ.
        deviation: τ.
    """

    weights: Tensor
    residual: Tensor
    deviation: float


def initial_trust(guessers: int, classes: int) -> Tensor:
    """Return the trust (G, C, C) in so many guessers before any label."""
    share = min(TRUST_DISCOUNT * PRIOR_SUM / max(guessers, 1), MAX_TRUST)
    return share * torch.eye(classes, dtype=torch.float64).repeat(guessers, 1, 1)


def initial_sharpness(guessers: int, classes: int) -> Tensor:
    """Return factors (G, 2) for `sharpen` that leave guesses as they are."""
    return torch.tensor([[1.0, 1 - 1 / max(classes, 1)]], dtype=torch.float64).repeat(guessers, 1)


def sharpen(deviations: Tensor, sharpness: Tensor) -> Tensor:
    """Multiply the deviations of each guesser by its factor; no row exceeds its bound.

    Args:
        deviations: (n, G, C) g̃.
        sharpness: (G, 2) factor of each guesser, and the deviation of a certain guess.
    """
    factor, bound = sharpness[:, :1], sharpness[:, 1:]
    larger = deviations * factor
    excess = (larger.amax(2, keepdim=True) / bound).clamp_min(1.0)
    return torch.where(factor > 1, larger / excess, deviations)


def fit_sharpness(targets: Tensor, deviations: Tensor) -> Tensor:
    """Choose the factors (G, 2) for `sharpen`.

    Args:
        targets: (L, C) one-hot labels minus 1/C.
        deviations: (L, G, C) g̃ at the labelled items.
    """
    guessers, classes = deviations.shape[1:]
    out = initial_sharpness(guessers, classes).to(deviations.device)
    if len(targets) < 2:
        return out
    for factor in SHARPNESS_GRID:
        tried = out.clone()
        tried[:, 0] = factor
        sharper = sharpen(deviations, tried)
        norms = sharper.square().sum((0, 2)).clamp_min(1e-30)
        slope = (sharper * targets[:, None]).sum((0, 2)) / norms
        out = torch.where((slope > MIN_SLOPE)[:, None], tried, out)
    return out


def apply_trust(trust: Tensor, deviations: Tensor, sharpness: Tensor | None = None) -> Tensor:
    """Return what the guesses add to the prior mean, (n, C).

    Args:
        trust: (G, C, C).
        deviations: (n, G, C) g̃.
        sharpness: (G, 2), see `sharpen`; None: deviations as they are.
    """
    if sharpness is not None:
        deviations = sharpen(deviations, sharpness)
    return torch.einsum("ngc,gcd->nd", deviations, trust)


def summarise_trust(trust: Tensor) -> Tensor:
    """Return one number per guesser (G,): what a guess adds to its own class, on average."""
    return trust.diagonal(dim1=1, dim2=2).mean(1)


def fit_trust(K: Tensor, noise: float | Tensor, targets: Tensor, deviations: Tensor) -> Tensor:
    """Fit the trust in each guesser to the labels.

    Args:
        K: (L, L) kernel of the labelled items.
        noise: Added to its diagonal: one number, or (L,).
        targets: (L, C) one-hot labels minus 1/C.
        deviations: (L, G, C) g̃ of each guesser at the labelled items, sharpened; 0 where it said
            nothing.

    Returns:
        (G, C, C), entries from −`MAX_TRUST` to `MAX_TRUST`.
    """
    guessers, classes = deviations.shape[1:]
    if len(K) < 2:
        return initial_trust(guessers, classes).to(K.device)
    precision = _invert(K, noise)
    scale = precision.diagonal()
    residual = (precision @ targets) / scale[:, None]
    regressors = torch.einsum("ij,jgc->igc", precision, deviations) / scale[:, None, None]
    sums = _shrink(residual, regressors, scale).clamp(0.0, 1.0)
    found = fit_confusions(K, noise, targets, deviations, sums)
    without = targets - residual
    combined = without + TRUST_DISCOUNT * (residual - found.residual)
    gate = compute_gate(combined, without, targets.argmax(1))
    return gate * (TRUST_DISCOUNT * found.weights).clamp(-MAX_TRUST, MAX_TRUST)


def fit_confusions(
    K: Tensor, noise: float | Tensor, targets: Tensor, deviations: Tensor, sums: Tensor
) -> Confusions:
    """Choose τ by leave-one-out and return the posterior mean of W.

    Args:
        K: (L, L) kernel of the labelled items.
        noise: Added to its diagonal: one number, or (L,).
        targets: (L, C) one-hot labels minus 1/C.
        deviations: (L, G, C) g̃.
        sums: (G,) s, the prior mean of the diagonals.
    """
    best = start = _solve_confusions(K, noise, targets, deviations, sums, 0.0)
    errors = start.residual.square().sum(1)
    least = errors
    for deviation in CONFUSION_GRID[1:]:
        found = _solve_confusions(K, noise, targets, deviations, sums, deviation)
        error = found.residual.square().sum(1)
        drop = errors - error
        certain = float(drop.mean()) > MIN_CONFUSION_SIGNIFICANCE * _standard_error(drop)
        if certain and float(error.mean()) < float(least.mean()):
            best, least = found, error
    return best


def _solve_confusions(
    K: Tensor,
    noise: float | Tensor,
    targets: Tensor,
    deviations: Tensor,
    sums: Tensor,
    deviation: float,
) -> Confusions:
    """Solve for W with one τ: the kernel grows by τ² Σ_j ⟨g̃_j, g̃_j'⟩."""
    flat = deviations.flatten(1)
    guessers, classes = deviations.shape[1:]
    precision = _invert(K + deviation**2 * (flat @ flat.T), noise)
    alpha = precision @ (targets - torch.einsum("igc,g->ic", deviations, sums))
    diagonal = sums[:, None, None] * torch.eye(classes, dtype=K.dtype, device=K.device)
    learnt = deviation**2 * (flat.T @ alpha).view(guessers, classes, classes)
    return Confusions(diagonal + learnt, alpha / precision.diagonal()[:, None], deviation)


def compute_gate(combined: Tensor, without: Tensor, labels: Tensor) -> float:
    """Return the weight of the guesses, from 0 to 1; 0 instead of values below `MIN_GATE`.

    Args:
        combined: (L, C) leave-one-out predictions with the guesses.
        without: (L, C) those without.
        labels: (L,) classes.
    """
    gain = (combined.argmax(1) == labels).double() - (without.argmax(1) == labels).double()
    z = float(gain.mean()) / (_standard_error(gain) + 0.5 / len(gain))
    weight = 1 / (1 + exp(-(GATE_SLOPE * z + GATE_OFFSET)))
    return weight if weight >= MIN_GATE else 0.0


def _standard_error(values: Tensor) -> float:
    """Return the standard error of the mean of values (L,)."""
    return float(values.std()) / sqrt(len(values))


def _invert(K: Tensor, noise: float | Tensor) -> Tensor:
    """Return (K + σI)⁻¹."""
    system = K.clone()
    system.diagonal().add_(noise)
    lower, _ = cholesky(system, what="the kernel of the labelled items")
    return cholesky_inverse(lower)


def _shrink(residual: Tensor, regressors: Tensor, scale: Tensor) -> Tensor:
    """Combine the regression with the prior of s; its covariance is the robust one of White (1980).

    Args:
        residual: (L, C) leave-one-out residuals without guesses.
        regressors: (L, G, C) what leave-one-out leaves of the guesses.
        scale: (L,) inverse leave-one-out variances.
    """
    guessers = regressors.shape[1]
    eye = torch.eye(guessers, dtype=scale.dtype, device=scale.device)
    weighted = regressors * scale[:, None, None]
    normal = torch.einsum("igc,ihc->gh", weighted, regressors)
    moment = torch.einsum("igc,ic->g", weighted, residual)
    normal = normal + 1e-9 * (1 + normal.diagonal().amax()) * eye
    estimate = torch.linalg.solve(normal, moment)
    rest = residual - torch.einsum("igc,g->ic", regressors, estimate)
    score = torch.einsum("igc,ic->gic", weighted, rest).flatten(1)  # (G, L·C)
    covariance = torch.linalg.solve(normal, torch.linalg.solve(normal, score @ score.T).T)
    information = torch.linalg.inv(covariance + MIN_STANDARD_ERROR**2 * eye)
    certainty = eye / PRIOR_DEVIATION**2
    start = torch.full_like(estimate, PRIOR_SUM / guessers)
    mean: Tensor = torch.linalg.solve(
        certainty + information, certainty @ start + information @ estimate
    )
    return mean
