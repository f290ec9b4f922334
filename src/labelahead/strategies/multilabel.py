"""Baselines for several classes at once: uncertainty of each class, MMC and CVIRS."""

import torch
from torch import Tensor

from labelahead.errors import import_extra
from labelahead.gp.calibration import predict_leave_one_out
from labelahead.inference.exact import FittedExactModel
from labelahead.inference.exact_model import find_probabilities
from labelahead.strategies.base import Strategy
from labelahead.strategies.context import QueryContext, make_scoring_strategy

__all__ = ["MULTILABEL", "compare_category_vectors", "expect_loss_reduction", "rank_margins"]

TASKS = ("multilabel",)


def predict_classes(context: QueryContext) -> Tensor:
    """Return the probabilities (m, C) of the classes of the candidates."""
    return find_probabilities(context.fitted.predict_answers(context.candidates))


def binary_uncertainty(context: QueryContext, rng: torch.Generator) -> Tensor:
    """Return −mean over classes of |p − ½|, (m,)."""
    return -(predict_classes(context) - 0.5).abs().mean(1)


def expect_loss_reduction(p: Tensor, counts: Tensor) -> Tensor:
    """Return Σ_c (1 − y_c f_c)/2 (m,), where f = 2p − 1 and y = 1 for the likeliest classes, else −1.

    Args:
        p: (m, C) probabilities.
        counts: (m,) predicted number of classes of each item.
    """
    rank = p.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    y = torch.where(rank < counts[:, None], 1.0, -1.0)
    return ((1 - y * (2 * p - 1)) / 2).sum(1)


def mmc(context: QueryContext, rng: torch.Generator) -> Tensor:
    """Return the expected loss reduction (m,) with the most confident number of classes.

    The number is predicted from the sorted probabilities by logistic regression, which learns from
    leave-one-out predictions of the labelled items.
    """
    p, task = predict_classes(context), context.fitted.task
    assert task is not None
    targets = task.targets(context.labels)
    complete = ~targets.isnan().any(1)
    numbers = targets[complete].sum(1).long()
    if len(numbers) < 2 or bool((numbers == numbers[0]).all()):
        typical = int(numbers[0]) if len(numbers) else 1
        return expect_loss_reduction(p, torch.full((len(p),), typical))
    sorted_p = _sort_and_normalise(_leave_one_out_probabilities(context)[complete])
    linear = import_extra("sklearn.linear_model", "app", "the strategy mmc")
    model = linear.LogisticRegression(max_iter=1000)
    model.fit(sorted_p.numpy(), numbers.numpy())
    counts = torch.from_numpy(model.predict(_sort_and_normalise(p).numpy()))
    return expect_loss_reduction(p, counts)


def _sort_and_normalise(p: Tensor) -> Tensor:
    """Return probabilities (m, C) from large to small, divided by their sum."""
    ordered = p.sort(dim=1, descending=True).values
    return ordered / ordered.sum(1, keepdim=True).clamp_min(1e-12)


def _leave_one_out_probabilities(context: QueryContext) -> Tensor:
    """Return the probabilities (L, C) of the labelled items, each from the other labels."""
    fitted = context.fitted
    assert isinstance(fitted, FittedExactModel)
    assert fitted.task is not None
    mean, variance = predict_leave_one_out(context.pool_posterior.posterior)
    state = fitted.kernel_model.get_task_state()
    return find_probabilities(fitted.task.predict(mean.cpu(), variance.cpu(), state))


def rank_margins(p: Tensor) -> Tensor:
    """Return the mean over classes of (m − rank of the margin)/(m − 1), (m,): Borda's count."""
    margins = (2 * p - 1).abs()
    rank = margins.argsort(dim=0, stable=True).argsort(dim=0).double() + 1
    return ((len(p) - rank) / max(1, len(p) - 1)).mean(1)


def compare_category_vectors(chosen: Tensor, known: Tensor) -> Tensor:
    """Return the mean distance (m,) of predicted classes (m, C) to those of labelled items (L, C).

    The distance is the normalised distance of entropies, (2H(a,b) − H(a) − H(b))/H(a,b), and 1 for
    complements, which are wrong in every class (their entropies would be the same).
    """
    a, b, count = chosen.double(), known.double(), chosen.shape[1]
    both = torch.stack(
        [a @ b.T, a @ (1 - b).T, (1 - a) @ b.T, (1 - a) @ (1 - b).T]
    )  # (4, m, L) contingency tables
    joint = _entropy(both / count)
    first = _entropy(torch.stack([both[0] + both[1], both[2] + both[3]]) / count)
    second = _entropy(torch.stack([both[0] + both[2], both[1] + both[3]]) / count)
    distance = (2 * joint - first - second) / joint.clamp_min(1e-12)
    opposite = both[1] + both[2] == count
    return torch.where(opposite, 1.0, distance.clamp(0.0, 1.0)).mean(1)


def _entropy(p: Tensor) -> Tensor:
    """Return −Σ p log p over the first axis."""
    out: Tensor = torch.special.entr(p).sum(0)
    return out


def cvirs(context: QueryContext, rng: torch.Generator) -> Tensor:
    """Return the rank of the margins times the inconsistency with the labelled items, (m,)."""
    prediction = context.fitted.predict_answers(context.candidates)
    p, task = find_probabilities(prediction), context.fitted.task
    assert task is not None
    known = task.targets(context.labels)
    known = known[~known.isnan().any(1)]
    ranks = rank_margins(p)
    if not len(known):
        return ranks
    return ranks * compare_category_vectors(p >= 0.5, known)


MULTILABEL = (
    Strategy(
        "binary-uncertainty",
        "several classes: the most undecided classes, on average",
        "Brinker 2006, On Active Learning in Multi-label Classification",
        make_scoring_strategy(binary_uncertainty),
        tasks=TASKS,
    ),
    Strategy(
        "mmc",
        "several classes: the largest expected loss reduction with the most confident classes",
        "Yang, Sun, Wang & Chen 2009, Effective Multi-label Active Learning for Text Classification",
        make_scoring_strategy(mmc),
        tasks=TASKS,
    ),
    Strategy(
        "cvirs",
        "several classes: small margins in many classes, and classes unlike those of labelled items",
        "Reyes, Morell & Ventura 2018, Effective Active Learning Strategy for Multi-label Learning",
        make_scoring_strategy(cvirs),
        tasks=TASKS,
    ),
)
