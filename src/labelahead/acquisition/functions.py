"""The acquisition functions: each maps a `View` to one score per candidate.

All of them are sums over the evaluation points, and all leave out the change at the candidate
itself: its label settles that, and in a sum over part of the candidates it would favour those that
happen to lie in that part (docs/method.md, Look-ahead). If the sum is not zero without a label, the
candidate itself contributes its value without a label.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType

import torch
from torch import Tensor

from labelahead.acquisition.pool_view import View
from labelahead.acquisition.probability import entropy, probabilities
from labelahead.errors import InputError
from labelahead.gp.linalg import block_whiten
from labelahead.gp.lookahead import LOOK_AHEAD_METHODS

__all__ = [
    "ACQUISITIONS",
    "Acquisition",
    "changes",
    "eer",
    "emoc",
    "flip",
    "mlmoc",
    "owen_gain",
    "resolve",
    "scale_covariance",
    "self_entries",
    "sum_absolute_covariances",
    "tabulate_gain",
    "variance",
]


def mlmoc(
    view: View,
    rng: torch.Generator | None = None,
    *,
    squared: bool = False,
    baseline: str | None = None,
    method: str = "block",
    chunk: int = 64,
) -> Tensor:
    """Most likely model output change (LA-13): Σₓ ‖f₊(x) − f(x)‖₂ for y' = argmax f(x').

    At x' itself only ‖f_lin − f‖ counts, the change without its label.

    Args:
        view: Posterior, candidates and evaluation points.
        rng: Not used.
        squared: Score by Σₓ ‖·‖₂² instead, in closed form: milliseconds after a `View.condition`.
        baseline: "outputs" (the paper): changes are measured from the network's f, which also gives
            y'. "linearised": both come from f_lin. Right after training to convergence the two
            agree; after labels without retraining, f is out of date and f_lin is current. None:
            the view's baseline.
        method: "block" (LA-12), or "solve" for one linear system per candidate (LA-11).
        chunk: Candidates per block.

    Returns:
        Scores (m,).

    >>> bool(torch.allclose(la.acquisition.mlmoc(pool_view), la.acquisition.mlmoc(pool_view, method="solve")))
    True
    """
    baseline = view.baseline if baseline is None else baseline
    targets = view.predicted_targets(baseline)
    if method == "block" and squared:
        return _sum_squared_changes(view, targets, baseline)
    if method == "block" and baseline == "linearised" and view.posterior.width == 1:
        size: Tensor = torch.linalg.vector_norm(view.scaled_residuals(targets)[:, 0], dim=1)
        return sum_absolute_covariances(view, chunk) * size
    every = torch.arange(len(targets), device=targets.device)
    return _sum_changes(view, every, targets, baseline, method, squared, chunk)


def emoc(
    view: View,
    rng: torch.Generator | None = None,
    *,
    squared: bool = False,
    baseline: str | None = None,
    probability: str = "simplex",
    method: str = "block",
    chunk: int = 64,
) -> Tensor:
    """Expected model output change (LA-3): MLMOC averaged over y' ~ p(y | x').

    With baseline "linearised" and a scalar kernel the sum over x factorises,
    Σₓ|k(x,x')|/u · Σ_y p_y‖r_y‖, and costs as much as MLMOC; so does the squared form. Otherwise
    the cost is that of MLMOC times the number of classes with p_y > 0, commonly one to three with
    the simplex projection.

    Args:
        view: Posterior, candidates and evaluation points.
        rng: Not used.
        squared: As in `mlmoc`.
        baseline: As in `mlmoc`.
        probability: "simplex" or "softmax": how p follows from the baseline's outputs.
        method: As in `mlmoc`.
        chunk: Candidates per block.

    Returns:
        Scores (m,).

    >>> la.acquisition.emoc(pool_view, baseline="linearised").shape
    torch.Size([4])
    """
    baseline = view.baseline if baseline is None else baseline
    p = view.probabilities(probability, baseline)
    if method == "block" and (squared or (baseline == "linearised" and view.posterior.width == 1)):
        classes = torch.eye(p.shape[1], dtype=p.dtype, device=p.device)
        if squared:
            parts = [_sum_squared_changes(view, y.expand_as(p), baseline) for y in classes]
            return (p * torch.stack(parts, 1)).sum(1)
        mean = view.posterior.mean[view.candidates]
        exact = "donot_use_mm_for_euclid_dist"  # a product would lose ‖r‖ where it is small
        residual_norms = torch.cdist(mean, classes, compute_mode=exact)  # ‖r_y‖, (m, C)
        return (
            sum_absolute_covariances(view, chunk)
            * (p * residual_norms).sum(1)
            / view.innovation_factors()[:, 0, 0].square()
        )
    candidate_rows, label = p.nonzero(as_tuple=True)
    targets = torch.nn.functional.one_hot(label, p.shape[1]).to(p)
    change = _sum_changes(view, candidate_rows, targets, baseline, method, squared, chunk)
    return torch.zeros_like(p[:, 0]).index_add_(
        0, candidate_rows, change * p[candidate_rows, label]
    )


def _sum_squared_changes(view: View, targets: Tensor, baseline: str) -> Tensor:
    """Σₓ ‖d + k u⁻¹ r‖² = ‖D‖² + 2 M·G + tr(Gᵀ S G) with G = u⁻¹ r, M = k D, S = k kᵀ: (m,).

    M and S leave out the candidate itself.
    """
    moments = view.moments()  # Call it first: it may cache variances for `scaled_residuals`.
    g = view.scaled_residuals(targets)
    # A batched product of 1 x 1 blocks would be a slow loop.
    push = moments.squares * g if g.shape[1] == 1 else moments.squares @ g
    if baseline == "linearised":
        return push.mul_(g).sum((1, 2)).clamp_min_(0.0)
    shift = view.drift().square().sum()
    return push.add_(moments.drift, alpha=2).mul_(g).sum((1, 2)).add_(shift).clamp_min_(0.0)


def sum_absolute_covariances(view: View, chunk: int) -> Tensor:
    """Σₓ |k(x,x')| over all x but x' itself, for every candidate of a scalar kernel: (m,)."""
    every = torch.arange(len(view.candidates), device=view.candidates.device)
    parts = []
    for part in torch.split(every, chunk):
        size = view.covariance(part).abs()
        rows, points = self_entries(view, part)
        size[rows, points] = 0.0
        parts.append(size.sum(1))
    return torch.cat(parts).to(torch.float64)


def _sum_changes(
    view: View,
    candidate_rows: Tensor,
    targets: Tensor,
    baseline: str,
    method: str,
    squared: bool,
    chunk: int,
) -> Tensor:
    """Σₓ ‖f₊(x) − baseline(x)‖ (or its square) for pairs of candidate (q,) and target (q, C)."""
    if method == "block" and view.posterior.width == 1:
        return _sum_changes_scalar(view, candidate_rows, targets, baseline, chunk)
    now = view.values(baseline)[view.evaluation]
    level = (view.values("linearised")[view.evaluation] - now).square().sum(1)
    parts = []
    every = torch.split(candidate_rows, chunk)
    for pairs, after in zip(
        every, predict_lookahead(view, candidate_rows, targets, method, chunk), strict=True
    ):
        size = (after - now).square().sum(2)
        rows, points = self_entries(view, pairs)
        size[rows, points] = level[points]
        parts.append(size.sum(1) if squared else size.sqrt().sum(1))
    return torch.cat(parts)


def _sum_changes_scalar(
    view: View, candidate_rows: Tensor, targets: Tensor, baseline: str, chunk: int
) -> Tensor:
    """Do `_sum_changes` for a scalar kernel by ‖d + k g‖² = ‖d‖² + k (2 d·g + k ‖g‖²).

    That takes matrix products and one root per pair, but no C-vector per pair.
    """
    drift = view.values("linearised")[view.evaluation] - view.values(baseline)[view.evaluation]
    parts = []
    for pairs, label_targets in zip(
        torch.split(candidate_rows, chunk), torch.split(targets, chunk), strict=True
    ):
        k = view.covariance(pairs)
        g = view.scaled_residuals(label_targets, pairs)[:, 0].to(k.dtype)
        d = drift.to(k.dtype)
        size = (2 * g) @ d.T
        size.addcmul_(k, g.square().sum(1, keepdim=True)).mul_(k)
        # Rounding can leave −1e-17 where d and k g cancel.
        size.add_(d.square().sum(1)).clamp_min_(0)
        rows, points = self_entries(view, pairs)
        size[rows, points] = d[points].square().sum(1)
        parts.append(size.sqrt_().sum(1))
    return torch.cat(parts).to(torch.float64)


def predict_lookahead(
    view: View, candidate_rows: Tensor, targets: Tensor, method: str, chunk: int
) -> Iterator[Tensor]:
    """Iterate over look-ahead predictions at the evaluation points, (≤chunk, e, C) at a time."""
    if method not in LOOK_AHEAD_METHODS:
        raise InputError(f"method is {method!r}; expected one of {', '.join(LOOK_AHEAD_METHODS)}")
    at = view.candidates[candidate_rows]
    return LOOK_AHEAD_METHODS[method](
        view.posterior,
        at,
        targets,
        evaluate=view.evaluation,
        chunk=chunk,
        noise=view.noise,
        allow_labelled=True,  # The view has checked its candidates.
    )


def eer(
    view: View,
    rng: torch.Generator | None = None,
    *,
    probability: str = "simplex",
    baseline: str | None = None,
    method: str = "block",
    chunk: int = 16,
) -> Tensor:
    """Expected error reduction (LA-2): −E_y' Σₓ H(p₊(x)), y' ~ p(y | x').

    At x' itself the entropy before the label counts. Classes of probability zero cost nothing.

    Args:
        view: Posterior, candidates and evaluation points.
        rng: Not used.
        probability: How probabilities follow from outputs: "simplex", the Euclidean projection, as
            the paper's authors do, or "softmax".
        baseline: Whose outputs give p(y | x'): "outputs" for f, "linearised" for f_lin; None: the
            view's baseline.
        method: "block" (LA-12), or "solve" for one linear system per candidate (LA-11).
        chunk: Candidates per block.

    Returns:
        Scores (m,).

    >>> bool((la.acquisition.eer(pool_view, probability="softmax") < 0).all())  # minus an entropy
    True
    """
    p = view.probabilities(probability, baseline)
    candidate_rows, label = p.nonzero(as_tuple=True)
    targets = torch.nn.functional.one_hot(label, p.shape[1]).to(p)
    if method == "block" and view.posterior.width == 1:
        entropies = _sum_entropies_scalar(view, candidate_rows, targets, probability, chunk)
    else:
        entropies = _sum_entropies(view, candidate_rows, targets, probability, method, chunk)
    return -torch.zeros_like(p[:, 0]).index_add_(
        0, candidate_rows, entropies * p[candidate_rows, label]
    )


def _sum_entropies_scalar(
    view: View, candidate_rows: Tensor, targets: Tensor, probability: str, chunk: int
) -> Tensor:
    """Σₓ H(p₊(x)) for pairs of candidate (q,) and target (q, C), scalar kernel: (q,).

    Classes are the first axis, (C, q, e), so that sums over them run over long contiguous rows.
    """
    mean = view.values("linearised")[view.evaluation].T[:, None, :]
    level = entropy(probabilities(mean, probability, 0), 0)[0]
    parts = []
    for pairs, label_targets in zip(
        torch.split(candidate_rows, chunk), torch.split(targets, chunk), strict=True
    ):
        k = view.covariance(pairs)
        g = view.scaled_residuals(label_targets, pairs)[:, 0].to(k.dtype).T[:, :, None]
        after = torch.addcmul(mean.to(k.dtype), k[None], g)
        entropies = entropy(probabilities(after, probability, 0), 0)
        rows, points = self_entries(view, pairs)
        entropies[rows, points] = level[points].to(entropies.dtype)
        parts.append(entropies.sum(1))
    return torch.cat(parts).to(torch.float64)


def _sum_entropies(
    view: View, candidate_rows: Tensor, targets: Tensor, probability: str, method: str, chunk: int
) -> Tensor:
    """Σₓ H(p₊(x)) as in `_sum_entropies_scalar`, for any kernel and method: (q,)."""
    level = entropy(probabilities(view.values("linearised")[view.evaluation], probability))
    parts = []
    every = torch.split(candidate_rows, chunk)
    for pairs, after in zip(
        every, predict_lookahead(view, candidate_rows, targets, method, chunk), strict=True
    ):
        entropies = entropy(probabilities(after, probability))
        rows, points = self_entries(view, pairs)
        entropies[rows, points] = level[points]
        parts.append(entropies.sum(1))
    return torch.cat(parts)


# Counts of changed classes are whole numbers, so many candidates tie. The change of the outputs
# breaks ties, with a weight so small that a million outputs changed by one each weigh no more than
# one changed class.
TIE_WEIGHT = 1e-6
MAX_CHUNK_ENTRIES = 1 << 20  # of `changes`


def changes(
    view: View,
    rng: torch.Generator | None = None,
    *,
    baseline: str | None = None,
    method: str = "block",
    chunk: int = 64,
    max_chunk_entries: int = MAX_CHUNK_ENTRIES,
) -> Tensor:
    """Number of evaluation points whose predicted class changes if y' = argmax f(x').

    The released code of the look-ahead paper ranks by this function; its text defines `mlmoc`
    (LA-13). A class changes where another one is strictly larger. Ties, which are frequent, are
    broken by the change of the outputs: `mlmoc` times 1e-6 is added.

    Args:
        view: Posterior, candidates and evaluation points.
        rng: Not used.
        baseline: Where the present class and the hypothetical label come from, "outputs" or
            "linearised"; None: the view's baseline.
        method: "block" (LA-12), or "solve" for one linear system per candidate.
        chunk: Candidates per block, at most.
        max_chunk_entries: Predictions (C, q, e) in memory at a time.

    Returns:
        Scores (m,): the number of changes, and a fraction of one that breaks ties.

    >>> scores = la.acquisition.changes(pool_view)
    >>> bool((scores >= 0).all()), bool((scores.floor() <= 4).all())
    (True, True)
    """
    baseline = view.baseline if baseline is None else baseline
    targets = view.predicted_targets(baseline)
    mean = view.values("linearised")[view.evaluation]
    before = view.values(baseline)[view.evaluation].argmax(1)
    level = mean.argmax(1) != before  # changed already, without a label of the candidate
    every = torch.arange(len(targets), device=targets.device)
    size = max(1, min(chunk, max_chunk_entries // max(1, mean.numel())))
    if method == "block" and view.posterior.width == 1:
        futures = _predict_lookahead_scalar(view, targets, size)
    else:
        futures = (
            after.movedim(2, 0) for after in predict_lookahead(view, every, targets, method, size)
        )
    counts = []
    for pairs, after in zip(torch.split(every, size), futures, strict=True):
        previous = after.gather(0, before.expand(1, *after.shape[1:]))[0]
        changed = after.amax(0) > previous
        rows, points = self_entries(view, pairs)
        changed[rows, points] = level[points]
        counts.append(changed.sum(1, dtype=torch.float64))
    return torch.cat(counts).add_(
        mlmoc(view, baseline=baseline, method=method, chunk=chunk), alpha=TIE_WEIGHT
    )


def _predict_lookahead_scalar(view: View, targets: Tensor, chunk: int) -> Iterator[Tensor]:
    """Iterate over look-ahead predictions (C, ≤chunk, e) of a scalar kernel."""
    mean = view.values("linearised")[view.evaluation].T[:, None, :]
    every = torch.arange(len(targets), device=targets.device)
    for pairs, label_targets in zip(
        torch.split(every, chunk), torch.split(targets, chunk), strict=True
    ):
        k = view.covariance(pairs)
        g = view.scaled_residuals(label_targets, pairs)[:, 0].to(k.dtype).T[:, :, None]
        yield torch.addcmul(mean.to(k.dtype), k[None], g)


def variance(view: View, rng: torch.Generator | None = None) -> Tensor:
    """Variance reduction at all points but the candidate: Σₓ k(x,x')²/u, (m,).

    For the full kernel it is Σₓ tr(k u⁻¹ kᵀ).

    >>> bool((la.acquisition.variance(pool_view) > 0).all())
    True
    """
    weights = view.point_weights()
    if weights is not None:
        return _sum_weighted_reductions(view, weights)
    squares = view.moments().squares  # Call it first: it may cache the variances that u needs.
    factors = view.innovation_factors()
    half = block_whiten(factors, squares)
    return block_whiten(factors, half.mT).diagonal(dim1=1, dim2=2).sum(1).clamp_min_(0.0)


def _sum_weighted_reductions(view: View, weights: Tensor, chunk: int = 64) -> Tensor:
    """Σₓ w(x) tr(k u⁻¹ kᵀ) at all points x but the candidate: (m,)."""
    parts = []
    every = torch.arange(len(view.candidates), device=view.candidates.device)
    for pairs in torch.split(every, chunk):
        if view.posterior.width == 1:
            reduction = scale_covariance(view, pairs).square_()
        else:
            k, factors = view.covariance(pairs).double(), view.innovation_factors()[pairs]
            half = block_whiten(factors, k.flatten(2))  # (q, b, e b)
            reduction = half.square().sum(1).view(len(pairs), len(weights), -1).sum(2)
        rows, points = self_entries(view, pairs)
        reduction[rows, points] = 0.0
        parts.append(_sum_points(reduction, weights))
    return torch.cat(parts).to(torch.float64)


def flip(
    view: View,
    rng: torch.Generator | None = None,
    *,
    include_candidate: bool = False,
    variance_scale: float = 0.3,
    chunk: int = 64,
) -> Tensor:
    """Expected reduction of flips between the two leading classes, at all points but the candidate.

    With m the gap between the two largest entries of f_lin(x), a² the kernel's amplitude
    (`Posterior.amplitude`) and v the variance of their difference (2k for a scalar kernel):

        Σₓ [ Φ(−m/√(a² v(x))) − Φ(−m/√(a² v₊(x))) ],   v₊ = v − 2 k(x,x')²/u,

    where the full kernel has v = eᵀk(x,x)e and v₊ = v − eᵀk(x,x')u⁻¹k(x',x)e, e = e_a − e_b
    (docs/method.md, Look-ahead). The experiments behind it used a prior noise of 1e-3, which enters
    u and a² here. The original form has include_candidate=True and variance_scale=1;
    docs/results-variants.md compares it with the defaults.

    Args:
        view: Posterior, candidates and evaluation points.
        rng: Not used.
        include_candidate: Whether x = x' counts. The evaluation points are a sample of many more
            items, among which a single item does not matter; in a sum over a thousand of them its
            own term can decide the ranking.
        variance_scale: Factor on a²; below 1 it puts more weight on nearly undecided points.
        chunk: Candidates per block.

    Returns:
        Scores (m,).

    >>> la.acquisition.flip(pool_view).shape  # a score for each candidate
    torch.Size([4])
    """
    if view.posterior.classes < 2:
        raise InputError("outputs has one column; expected at least two: flip compares the top two")
    if not variance_scale > 0:
        raise InputError(f"variance_scale is {variance_scale}; expected a positive number")
    top, label = view.posterior.mean[view.evaluation].topk(2, dim=1)
    variance_now = _contrast_variance(view, label)  # v/2 at the evaluation points
    tiny = 1e-14 * view.posterior.scale
    # Φ(−m/√(a²v)) = ½ − ½ erf(m/√(2a²v)); v is twice `variance_now`
    reach = (top[:, 0] - top[:, 1]) / math.sqrt(4 * variance_scale * view.posterior.amplitude())
    dtype = view.posterior.covariance.prior.dtype
    reach, variance_now = reach.to(dtype), variance_now.to(dtype)
    # Differences are taken per point, in one dtype: where k(x,x') = 0 they are exactly zero.
    now = variance_now.clamp_min(tiny).rsqrt_().mul_(reach).erf_()
    weights = view.point_weights()
    parts = []
    every = torch.arange(len(view.candidates), device=label.device)
    for pairs in torch.split(every, chunk):
        left = _remaining_variance(view, pairs, label, variance_now).clamp_min_(tiny).rsqrt_()
        gain = left.mul_(reach).erf_().sub_(now)
        if not include_candidate:
            rows, points = self_entries(view, pairs)
            gain[rows, points] = 0.0
        parts.append(_sum_points(gain, weights))
    return 0.5 * torch.cat(parts).to(torch.float64)


def resolve(
    view: View,
    rng: torch.Generator | None = None,
    *,
    exact: bool = False,
    variance_scale: float = 1.0,
    chunk: int = 256,
) -> Tensor:
    """Expected reduction of the number of wrong predictions at all points but the candidate.

    At each evaluation point the gap between the two largest entries of f_lin is N(m, v), v =
    a²·(their variance); a label at x' moves its mean by N(0, ρ²v) and leaves (1 − ρ²)v. The
    prediction is the sign of the mean gap, so the probability that it is wrong falls by

        gain(x,x') = (1/π) ∫₀^{asin ρ} exp(−h²/(2 sin²ψ)) dψ,
        h = m/√v,   ρ² = k(x,x')²/(u k(x,x)),

    which is Φ(−h) − 2T(h, √(1−ρ²)/ρ) with Owen's T (docs/method.md, Look-ahead). It is never
    negative and needs no hypothetical label. Without any label h = 0 everywhere, and the score is
    Σ asin(ρ)/π: a soft coverage of the pool. The full kernel has the contrast e_a − e_b on both
    sides, as in `flip`.

    Args:
        view: Posterior, candidates and evaluation points.
        rng: Not used.
        exact: Evaluate Owen's T instead of a table, which is accurate to 1e-4 of a prediction and a
            hundred times faster.
        variance_scale: Factor on a²; it hardly changes the ranking, but the size of the scores.
        chunk: Candidates per block.

    Returns:
        Scores (m,).

    >>> scores = la.acquisition.resolve(pool_view)
    >>> bool((scores >= 0).all())
    True
    >>> bool(torch.allclose(scores, la.acquisition.resolve(pool_view, exact=True), atol=1e-3))
    True
    """
    if view.posterior.classes < 2:
        raise InputError(
            "outputs has one column; expected at least two: resolve compares the top two"
        )
    if not variance_scale > 0:
        raise InputError(f"variance_scale is {variance_scale}; expected a positive number")
    top, label = view.posterior.mean[view.evaluation].topk(2, dim=1)
    variance_now = _contrast_variance(view, label).clamp_min(
        1e-14 * view.posterior.scale
    )  # v/(2a²) at the evaluation points
    h = (top[:, 0] - top[:, 1]) / (
        2 * variance_scale * view.posterior.amplitude() * variance_now
    ).sqrt()
    dtype = view.posterior.covariance.prior.dtype
    variance_now = variance_now.to(dtype)
    gain = (lambda squared: owen_gain(h[None], squared)) if exact else tabulate_gain(h.to(dtype))
    weights = view.point_weights()
    parts = []
    every = torch.arange(len(view.candidates), device=label.device)
    for pairs in torch.split(every, chunk):
        gains = gain(_explained_variance(view, pairs, label).div_(variance_now).clamp_(0.0, 1.0))
        rows, points = self_entries(view, pairs)
        gains[rows, points] = 0.0
        parts.append(_sum_points(gains, weights))
    return torch.cat(parts).to(torch.float64)


MAX_TABULATED_GAP = 5.0  # in standard deviations; beyond, the class is certain: Φ(−5) = 3e-7
TABLE_SHAPE = (256, 1024)  # values of h and of ρ; bilinear interpolation is at most 6e-5 off


@cache
def _gain_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Gains at h = MAX_TABULATED_GAP·y² and ρ² = 1 − (1 − t²)², for y and t from 0 to 1.

    The grid is finer where the gains are more curved.
    """
    y, t = (torch.linspace(0, 1, n, dtype=torch.float64) for n in TABLE_SHAPE)
    squared = 1 - (1 - t.square()).square()
    values = owen_gain(
        (MAX_TABULATED_GAP * y.square())[:, None], squared.clamp(0, 1).expand(TABLE_SHAPE)
    )
    return values.to(dtype=dtype, device=device)[None, None]


def tabulate_gain(h: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function ρ² (q, e) -> gains (q, e) for the h (e,) of every evaluation point.

    The function overwrites ρ².
    """
    table = _gain_table(h.dtype, h.device)
    where = h.new_empty((1, 1, len(h), 2))
    where[..., 1] = (h.clamp_max(MAX_TABULATED_GAP) / MAX_TABULATED_GAP).sqrt().mul_(2).sub_(1)

    def gain(squared: Tensor) -> Tensor:
        t = squared.neg_().add_(1).sqrt_().neg_().add_(1).sqrt_()
        grid = where.repeat(1, len(t), 1, 1)
        grid[0, ..., 0] = t.mul_(2).sub_(1)
        return torch.nn.functional.grid_sample(
            table, grid, padding_mode="border", align_corners=True
        )[0, 0]

    return gain


def owen_gain(h: Tensor, squared: Tensor) -> Tensor:
    """Φ(−h) − 2T(h, √(1−ρ²)/ρ) in float64, for h and ρ² that broadcast."""
    from scipy.special import owens_t  # Imported here, because it would delay the server's start.

    squared = squared.double().cpu()
    h = h.double().cpu() + torch.zeros_like(squared)
    slope = ((1 - squared) / squared.clamp_min(1e-300)).sqrt()
    wrong_now = torch.special.ndtr(-h)
    wrong_after = 2 * torch.from_numpy(owens_t(h.numpy(), slope.numpy()))
    gains: Tensor = (wrong_now - wrong_after).clamp_min_(0.0)
    return gains


def _sum_points(gains: Tensor, weights: Tensor | None) -> Tensor:
    """Sum gains (q, e) over the evaluation points, with weights (e,) if there are any: (q,)."""
    return gains.sum(1) if weights is None else gains @ weights.to(gains.dtype)


def self_entries(view: View, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of (q, e) at which these candidates (q,) are themselves evaluation points."""
    index = view.evaluation_index()[pairs]
    rows = (index >= 0).nonzero()[:, 0]
    return rows, index[rows]


def _contrast_variance(view: View, label: Tensor) -> Tensor:
    """Half the variance of f_a − f_b at each evaluation point: (e,)."""
    blocks = view.posterior.variance()[view.evaluation]
    if view.posterior.width == 1:
        return blocks
    return 0.5 * _contrast(_contrast(blocks, label, 2), label, 1)


def _contrast(values: Tensor, label: Tensor, dim: int) -> Tensor:
    """values[x, ..., a(x), ...] − values[x, ..., b(x), ...] along `dim`, which it removes."""
    shape = [len(label) if i == 0 else 1 if i == dim else s for i, s in enumerate(values.shape)]
    first, second = (
        label[:, i].view([-1] + [1] * (values.dim() - 1)).expand(shape) for i in (0, 1)
    )
    return (values.gather(dim, first) - values.gather(dim, second)).squeeze(dim)


def _remaining_variance(view: View, pairs: Tensor, label: Tensor, variance_now: Tensor) -> Tensor:
    """Half the variance of f_a − f_b that remains at x after candidate x' is labelled: (q, e)."""
    if view.posterior.width == 1:
        scaled = scale_covariance(view, pairs)
        return torch.addcmul(variance_now, scaled, scaled, value=-1)
    return variance_now - _explained_variance(view, pairs, label).to(variance_now.dtype)


def _explained_variance(view: View, pairs: Tensor, label: Tensor) -> Tensor:
    """Half the variance of f_a − f_b at x that a label of candidate x' explains: (q, e), a copy."""
    if view.posterior.width == 1:
        return scale_covariance(view, pairs).square_()
    k, factors = view.covariance(pairs), view.innovation_factors()[pairs]
    contrast = _contrast(k.to(torch.float64).permute(2, 0, 1, 3), label, 3).permute(1, 2, 0)
    return (0.5 * block_whiten(factors, contrast).square().sum(1)).to(k.dtype)


def scale_covariance(view: View, pairs: Tensor) -> Tensor:
    """k(x',x)/√u for a scalar kernel: (q, e), a new tensor."""
    k = view.covariance(pairs)
    return view.innovation_factors()[pairs][:, 0].reciprocal().to(k.dtype) * k


# view, rng -> scores (m,); larger: label sooner
Acquisition = Callable[[View, torch.Generator | None], Tensor]

ACQUISITIONS: Mapping[str, Acquisition] = MappingProxyType(
    {
        "mlmoc": mlmoc,
        "changes": changes,
        "emoc": emoc,
        "eer": eer,
        "variance": variance,
        "flip": flip,
        "resolve": resolve,
    }
)
