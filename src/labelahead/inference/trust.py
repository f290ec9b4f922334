"""Trust in guesses: how much prior knowledge counts, learnt from the labels in closed form.

A guesser has said something about every item: g(x), a probability vector. With deviations g̃ = g − 1/C
the prior mean of the exact learner is

    m(x) = 1/C + Σ_j s_j g̃_j(x),

one number s_j ≥ 0 per guesser. The leave-one-out residual of a label is linear in s: it is r − Σ_j s_j q_j,
where r is the residual without guesses and q_j what leave-one-out leaves of g̃_j. So s is the solution of a
regression of r on q, shrunk as far as the labels leave it undetermined, then discounted and bounded. A
small trust suffices while labels are few, because the posterior mean is then close to 1/C, and a large
one would outvote labels later.
"""

import torch
from torch import Tensor

from labelahead.gp.linalg import cholesky, cholesky_inverse

__all__ = ["MAX_TRUST", "MIN_LABELS_TO_QUERY", "fit_trust", "initial_trust"]

# The regression's prior: mean, for all guessers together, and standard deviation of each s_j.
PRIOR_SUM = 0.55
PRIOR_DEVIATION = 0.35
MIN_STANDARD_ERROR = 0.02  # a few labels that agree by chance do not determine s
# Labels are queried where the kernel knows least, so that leave-one-out overrates guesses. Chosen
# in trials on seeds 100 to 103; docs/guesses.md has the result on others.
DISCOUNT = 0.45
MAX_TRUST = 0.3  # of each guesser
# Guesses count in predictions from the start, but items are queried by them only after so many
# labels. Good guesses lose nothing by that, and wrong ones would waste the first queries.
MIN_LABELS_TO_QUERY = 10


def initial_trust(guessers: int) -> Tensor:
    """Return the trust (G,) in so many guessers before any label."""
    share = min(DISCOUNT * PRIOR_SUM / max(guessers, 1), MAX_TRUST)
    return torch.full((guessers,), share, dtype=torch.float64)


def fit_trust(K: Tensor, noise: float, targets: Tensor, deviations: Tensor) -> Tensor:
    """Fit the trust in each guesser to the labels.

    Args:
        K: (L, L) kernel of the labelled items.
        noise: Added to its diagonal.
        targets: (L, C) one-hot labels minus 1/C.
        deviations: (L, G, C) g̃ of each guesser at the labelled items; 0 where it said nothing.

    Returns:
        (G,) from 0 to `MAX_TRUST`.
    """
    guessers = deviations.shape[1]
    if len(K) < 2:
        return initial_trust(guessers).to(K.device)
    system = K.clone()
    system.diagonal().add_(noise)
    lower, _ = cholesky(system, what="the kernel of the labelled items")
    precision = cholesky_inverse(lower)
    scale = precision.diagonal()
    residual = (precision @ targets) / scale[:, None]
    regressors = torch.einsum("ij,jgc->igc", precision, deviations) / scale[:, None, None]
    weighted = regressors * scale[:, None, None]  # leave-one-out variances are 1/scale
    normal = torch.einsum("igc,ihc->gh", weighted, regressors)
    moment = torch.einsum("igc,ic->g", weighted, residual)
    mean = _shrink(normal, moment, weighted, residual, regressors)
    return (DISCOUNT * mean).clamp(0.0, MAX_TRUST)


def _shrink(
    normal: Tensor, moment: Tensor, weighted: Tensor, residual: Tensor, regressors: Tensor
) -> Tensor:
    """Combine the regression with the prior of s; its covariance is the robust one of White (1980)."""
    guessers = len(moment)
    eye = torch.eye(guessers, dtype=normal.dtype, device=normal.device)
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
