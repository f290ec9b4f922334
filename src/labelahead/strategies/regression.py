"""Baselines for numbers and ratings: greedy sampling and a committee."""

from collections.abc import Callable

import torch
from torch import Tensor

from labelahead.inference.mixture import solve_leave_one_out
from labelahead.strategies.base import Oracle, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext

__all__ = ["REGRESSION", "measure_disagreement", "sample_greedily"]

TASKS = ("number", "rating")
GREEDY_SAMPLING = "Wu, Lin & Huang 2019, Active Learning for Regression Using Greedy Sampling, Information Sciences"
COMMITTEE_MEMBERS = 10


def sample_greedily(
    points: Tensor, outputs: Tensor, labels: Tensor, q: int, use: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """Select q candidates, each farthest from all labelled and selected ones; return the distances too.

    The distance of two items is that of their features, of their values, or the product of both.
    The value of a candidate is its prediction, as its label once it is selected.

    Args:
        points: (L + m, h) features of the labelled items, then of the candidates.
        outputs: (m, D) predictions of the candidates, in comparable units.
        labels: (L, D) targets of the labelled items.
        q: Number of candidates.
        use: Whether features and values count. Without labels only features do, and the first
            candidate is the one nearest to the mean.
    """
    known, by_features, by_values = len(labels), *use
    values = torch.cat([labels, outputs])
    rest = torch.arange(known, len(points))
    nearest = torch.full((len(rest),), torch.inf, dtype=torch.float64)

    def distances(to: Tensor) -> Tensor:
        """Distances (m, p) of all candidates to some items."""
        out = torch.ones(len(rest), len(to), dtype=torch.float64)
        if by_features or not known:
            out = out * torch.cdist(points[rest], points[to])
        if by_values and known:
            out = out * torch.cdist(values[rest], values[to])
        return out

    for block in torch.split(torch.arange(known), 256) if known else ():
        nearest = torch.minimum(nearest, distances(block).amin(1))
    selected: list[int] = []
    reach: list[float] = []
    for _ in range(q):
        score = nearest.clone()
        if not known and not selected:
            score = -(points - points.mean(0)).norm(dim=1)
        score[selected] = -torch.inf
        best = int(score.argmax())
        selected.append(best)
        reach.append(float(score[best]))
        nearest = torch.minimum(nearest, distances(rest[best : best + 1])[:, 0])
    return torch.tensor(selected), torch.tensor(reach, dtype=torch.float64)


def _make_greedy_sampling(by_features: bool, by_values: bool) -> Callable[..., QueryBatch]:
    """Make the function of a strategy: GSx, GSy or, with both, iGS."""

    def select_batch(
        context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
    ) -> QueryBatch:
        task = context.fitted.task
        assert task is not None
        points = context.embedding
        targets = task.targets(context.labels).nan_to_num(0.0)
        scale = task.target_scale(task.targets(context.labels))
        with context.time_stage("score"):
            order, reach = sample_greedily(
                points,
                context.candidate_outputs.cpu().double() / scale,
                targets / scale,
                q,
                (by_features, by_values),
            )
        return QueryBatch(context.candidates[order], reach)

    return select_batch


def measure_disagreement(
    K: Tensor, cross: Tensor, noise: float, targets: Tensor, rng: torch.Generator
) -> Tensor:
    """Return the variance (m,) of the predictions of models that were fitted to bootstrap samples.

    Args:
        K: (L, L) kernel of the labelled items.
        cross: (m, L) kernel between the candidates and them.
        noise: Absolute, of a label.
        targets: (L, D) in comparable units, minus their mean; NaN where missing.
        rng: Draws the samples.
    """
    predictions = []
    for _ in range(COMMITTEE_MEMBERS):
        drawn = torch.randint(len(K), (len(K),), generator=rng)
        alpha = solve_leave_one_out(K[drawn][:, drawn], noise, targets[drawn])[0]
        predictions.append(cross[:, drawn] @ alpha)
    return torch.stack(predictions).var(0).sum(1)


def _query_committee(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    task = context.fitted.task
    assert task is not None
    count = len(context.labelled)
    if count < 2:  # a committee without labels agrees
        return _make_greedy_sampling(True, False)(context, q, rng, mode, oracle)
    start = context.pool_posterior.start
    at, rest = torch.arange(count), torch.arange(count, len(context.points))
    targets = task.targets(context.labels)
    centred = (targets - task.prior_mean(targets)) / task.target_scale(targets)
    K = start.covariance_block(at, at).cpu().double()
    cross = start.covariance_block(rest, at).cpu().double()
    with context.time_stage("score"):
        scores = measure_disagreement(K, cross, start.noise, centred, rng)
    order = torch.sort(scores, descending=True, stable=True).indices[:q]
    return QueryBatch(context.candidates[order], scores[order])


REGRESSION = (
    Strategy(
        "qbc",
        "numbers: items about which models fitted to parts of the labels disagree",
        "Burbidge, Rowland & King 2007, Active Learning for Regression Based on Query by Committee",
        _query_committee,
        tasks=TASKS,
    ),
    Strategy(
        "gsx",
        "numbers: items farthest from the labelled ones",
        GREEDY_SAMPLING,
        _make_greedy_sampling(True, False),
        tasks=TASKS,
    ),
    Strategy(
        "gsy",
        "numbers: items whose predictions are farthest from the labels",
        GREEDY_SAMPLING,
        _make_greedy_sampling(False, True),
        tasks=TASKS,
    ),
    Strategy(
        "igs",
        "numbers: far from the labelled ones in features and in values, by the product",
        GREEDY_SAMPLING,
        _make_greedy_sampling(True, True),
        tasks=TASKS,
    ),
)
