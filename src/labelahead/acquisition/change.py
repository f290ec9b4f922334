"""How much would a label change the predictions? MLMOC and EMOC."""

from collections.abc import Iterator

import torch
from torch import Tensor

from labelahead.acquisition.view import View
from labelahead.errors import InputError
from labelahead.lookahead import METHODS

__all__ = ["emoc", "mlmoc", "predictions_after"]


def mlmoc(
    view: View,
    rng: torch.Generator | None = None,
    *,
    squared: bool = False,
    baseline: str = "outputs",
    method: str = "block",
    chunk: int = 64,
) -> Tensor:
    """Most likely model output change (LA-13): Σₓ ‖f₊(x) − f(x)‖₂ for y' = argmax f(x'). (m,).

    baseline "outputs" (the paper): the change is measured from the network's f, and f gives the
    label. "linearised": both from f_lin; then only what x' itself changes counts. Right after
    training to convergence the two agree; once labels have arrived without retraining, f is what
    the network said before them and f_lin is the present view.
    squared: Σₓ ‖·‖₂² instead, in closed form: a few milliseconds after a `View.condition`.
    method "solve": one linear system per candidate (LA-11) instead of the block formula.
    """
    targets = view.predicted(baseline)
    if method == "block" and squared:
        return _squared(view, targets, baseline)
    if method == "block" and baseline == "linearised" and view.posterior.width == 1:
        size: Tensor = torch.linalg.vector_norm(view.push(targets)[:, 0], dim=1)
        return _reach(view, chunk) * size
    every = torch.arange(len(targets), device=targets.device)
    return _change(view, every, targets, baseline, method, squared, chunk)


def emoc(
    view: View,
    rng: torch.Generator | None = None,
    *,
    squared: bool = False,
    baseline: str = "outputs",
    probability: str = "simplex",
    method: str = "block",
    chunk: int = 64,
) -> Tensor:
    """Expected model output change (LA-3): MLMOC averaged over y' ~ p(y | x'). (m,).

    p is the `probability` ("simplex" or "softmax") of the baseline's outputs. From f_lin and with a
    scalar kernel the sum over x factors, Σₓ|k(x,x')|/u · Σ_y p_y‖r_y‖, and costs what MLMOC costs;
    so does the squared form. Otherwise every class with p_y > 0 is looked at: with the simplex
    projection that is commonly one to three of them.
    """
    p = view.probabilities(probability, baseline)
    if method == "block" and (squared or (baseline == "linearised" and view.posterior.width == 1)):
        classes = torch.eye(p.shape[1], dtype=p.dtype, device=p.device)
        if squared:
            parts = [_squared(view, y.expand_as(p), baseline) for y in classes]
            return (p * torch.stack(parts, 1)).sum(1)
        mean = view.posterior.mean[view.candidates]
        exact = "donot_use_mm_for_euclid_dist"  # a product would lose ‖r‖ where it is small
        surprise = torch.cdist(mean, classes, compute_mode=exact)  # ‖r_y‖, (m, C)
        return _reach(view, chunk) * (p * surprise).sum(1) / view.innovations()[:, 0, 0].square()
    which, label = p.nonzero(as_tuple=True)
    targets = torch.nn.functional.one_hot(label, p.shape[1]).to(p)
    change = _change(view, which, targets, baseline, method, squared, chunk)
    return torch.zeros_like(p[:, 0]).index_add_(0, which, change * p[which, label])


def _squared(view: View, targets: Tensor, baseline: str) -> Tensor:
    """Σₓ ‖d + k u⁻¹ r‖² = ‖D‖² + 2 M·G + tr(Gᵀ S G) with G = u⁻¹ r, M = k D, S = k kᵀ: (m,)."""
    moments = view.moments()  # first: it may find the variances that `push` needs
    g = view.push(targets)
    # a batched product of 1 x 1 blocks is a slow loop
    push = moments.squares * g if g.shape[1] == 1 else moments.squares @ g
    if baseline == "linearised":
        return push.mul_(g).sum((1, 2))
    shift = view.drift().square().sum()
    return push.add_(moments.drift, alpha=2).mul_(g).sum((1, 2)).add_(shift)


def _reach(view: View, chunk: int) -> Tensor:
    """Σₓ |k(x,x')| for every candidate of a scalar kernel: (m,)."""
    every = torch.arange(len(view.candidates), device=view.candidates.device)
    parts = [view.covariance(part).abs().sum(1) for part in torch.split(every, chunk)]
    return torch.cat(parts).to(torch.float64)


def _change(
    view: View,
    which: Tensor,
    targets: Tensor,
    baseline: str,
    method: str,
    squared: bool,
    chunk: int,
) -> Tensor:
    """Σₓ ‖f₊(x) − baseline(x)‖ (or its square) for pairs of candidate (q,) and target (q, C)."""
    if method == "block" and view.posterior.width == 1:
        return _scalar_change(view, which, targets, baseline, chunk)
    now = view.values(baseline)[view.evaluation]
    parts = []
    for after in predictions_after(view, which, targets, method, chunk):
        size = (after - now).square().sum(2)
        parts.append(size.sum(1) if squared else size.sqrt().sum(1))
    return torch.cat(parts)


def _scalar_change(view: View, which: Tensor, targets: Tensor, baseline: str, chunk: int) -> Tensor:
    """‖d + k g‖² = ‖d‖² + k (2 d·g + k ‖g‖²): GEMMs and one root per pair, no C-vector per pair."""
    drift = view.values("linearised")[view.evaluation] - view.values(baseline)[view.evaluation]
    parts = []
    for pairs, aims in zip(torch.split(which, chunk), torch.split(targets, chunk), strict=True):
        k = view.covariance(pairs)
        g = view.push(aims, pairs)[:, 0].to(k.dtype)
        d = drift.to(k.dtype)
        size = (2 * g) @ d.T
        size.addcmul_(k, g.square().sum(1, keepdim=True)).mul_(k)
        # Rounding may leave −1e-17 where d and k g cancel.
        size.add_(d.square().sum(1)).clamp_min_(0).sqrt_()
        parts.append(size.sum(1))
    return torch.cat(parts).to(torch.float64)


def predictions_after(
    view: View, which: Tensor, targets: Tensor, method: str, chunk: int
) -> Iterator[Tensor]:
    """Look-ahead predictions at the evaluation points, (≤chunk, e, C) at a time."""
    if method not in METHODS:
        raise InputError(f"method is {method!r}; expected one of {', '.join(METHODS)}")
    at = view.candidates[which]
    return METHODS[method](view.posterior, at, targets, evaluate=view.evaluation, chunk=chunk)
