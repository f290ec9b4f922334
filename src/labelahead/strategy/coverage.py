"""Few labels, typical items first: TypiClust and ProbCover, by clusters and balls."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.situation import Situation
from labelahead.strategy.diversity import lazy_argmax, squared_lengths
from labelahead.strategy.member import Ask, Picks, Strategy

__all__ = ["COVERAGE", "ball_radius", "cover", "typical"]

CLUSTERS = 500  # at most, as in the paper's program
SMALL = 5  # a cluster with fewer items is left out while others are there
NEIGHBOURS = 20
FEW = 5000  # points up to which whole k-means is quicker than mini-batches of this size
PURITY = 0.95
BLOCK = 1 << 18  # distances at once, to stay in the cache
ROWS = 128  # balls counted at once


def _sklearn(part: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"sklearn.{part}")
    except ImportError as error:
        raise InputError(
            "this strategy clusters with scikit-learn: pip install 'labelahead[app]'"
        ) from error


def clusters(points: Tensor, k: int, rng: torch.Generator) -> Tensor:
    """(n,) cluster numbers by k-means; in mini-batches when there are many points."""
    kind = _sklearn("cluster")
    seed = int(torch.randint(2**31, (1,), generator=rng))
    k = min(k, len(points))
    if len(points) <= FEW:
        model = kind.KMeans(n_clusters=k, n_init=1, random_state=seed)
    else:
        size = {"batch_size": FEW, "init_size": max(FEW, 3 * k)}
        model = kind.MiniBatchKMeans(n_clusters=k, n_init=1, random_state=seed, **size)
    import warnings

    with warnings.catch_warnings():  # fewer distinct points than clusters: nothing to worry about
        warnings.simplefilter("ignore")
        return torch.as_tensor(model.fit_predict(points.float().numpy()), dtype=torch.int64)


def typical(points: Tensor, labelled: int, q: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """q positions among the points after the first `labelled`, and their typicality.

    Clusters without labels come first, large ones before small ones; of each the item whose
    nearest neighbours in the cluster are nearest (TPC_RP's rule).
    """
    group = clusters(points, min(labelled + q, CLUSTERS), rng)
    count = torch.bincount(group)
    known = torch.bincount(group[:labelled], minlength=len(count))
    free = count - known
    order = sorted(
        (c for c in range(len(count)) if free[c] > 0),
        key=lambda c: (int(count[c]) < SMALL, int(known[c]), -int(count[c])),
    )
    queue: dict[int, list[tuple[int, float]]] = {}
    picked: list[int] = []
    scores: list[float] = []
    while len(picked) < q:
        for c in order:
            if len(picked) == q:
                break
            if c not in queue:
                queue[c] = _by_typicality(points, group, c, labelled)
            if queue[c]:
                at, value = queue[c].pop(0)
                picked.append(at)
                scores.append(value)
    return torch.tensor(picked), torch.tensor(scores, dtype=torch.float64)


def _by_typicality(
    points: Tensor, group: Tensor, cluster: int, labelled: int
) -> list[tuple[int, float]]:
    """Unlabelled members with 1 / mean distance to their neighbours in the cluster, best first."""
    members = (group == cluster).nonzero().squeeze(1)
    own = members[members >= labelled]
    k = min(NEIGHBOURS, len(members) - 1)
    if k < 1:
        return [(int(at), 0.0) for at in own]
    near = torch.empty(len(own), dtype=torch.float64)
    for rows in torch.split(torch.arange(len(own)), max(1, BLOCK // len(members))):
        distances = torch.cdist(points[own[rows]], points[members])
        near[rows] = distances.topk(k + 1, largest=False).values[:, 1:].mean(1)  # less itself
    value = 1 / (near + 1e-5)
    best = torch.sort(value, descending=True, stable=True).indices
    return [(int(own[i]), float(value[i])) for i in best]


def _typiclust(s: Situation, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> Picks:
    points = s.embedding
    with s.timed("score"):
        at, scores = typical(points, len(s.labelled), q, rng)
    return Picks(s.points[at], scores)


def ball_radius(points: Tensor, k: int, rng: torch.Generator) -> float:
    """The largest radius at which 95 % of balls hold one k-means cluster only.

    Looked for on at most 2,000 points, halving an interval.
    """
    some = points[torch.randperm(len(points), generator=rng)[:2000]]
    group = clusters(some, k, rng)
    # A ball is pure while it ends before the nearest point of another cluster.
    other = torch.cat([
        torch.cdist(some[rows], some).masked_fill_(group[rows, None] == group, torch.inf).amin(1)
        for rows in torch.split(torch.arange(len(some)), max(1, BLOCK // len(some)))
    ])  # fmt: skip
    if not bool(torch.isfinite(other).any()):  # one cluster: one ball for all
        return 2 * float((some - some.mean(0)).norm(dim=1).max())
    pure = torch.sort(other).values[int((1 - PURITY) * len(other))]
    return float(pure) * (1 - 1e-9)


def cover(points: Tensor, labelled: int, q: int, radius: float) -> tuple[Tensor, Tensor]:
    """q positions after the first `labelled` whose balls cover most that is not covered yet.

    Neighbours are counted in blocks and never kept: neither matrix nor lists.
    """
    sizes = squared_lengths(points)
    # Nearer than rounding can tell, points are the same, also in a ball of no size.
    reach = max(radius * radius, 1e-13 * float(sizes.max()))
    open_sizes = sizes.clone()  # infinite once a point is covered: then it is near no other

    def near(rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        here, limit = points[rows], reach - sizes[rows, None]
        for lo in range(0, len(points), BLOCK // ROWS):
            part = slice(lo, lo + BLOCK // ROWS)
            yield part, torch.addmm(open_sizes[part], here, points[part].T, alpha=-2) <= limit

    def put(rows: Tensor) -> None:
        for part, hit in near(rows):
            open_sizes[part].masked_fill_(hit.any(0), torch.inf)

    def count(rows: Tensor) -> Tensor:
        # as bytes: summing booleans is several times slower
        counts = [hit.view(torch.uint8).sum(1, dtype=torch.int32) for _, hit in near(rows)]
        return torch.stack(counts).sum(0).double()

    for rows in torch.split(torch.arange(labelled), ROWS):
        put(rows)
    # What a ball adds only falls as others are put down: an old count is an upper bound.
    bound = torch.full((len(points),), torch.inf, dtype=torch.float64)
    bound[:labelled] = -torch.inf
    picked: list[int] = []
    scores: list[float] = []
    for _ in range(q):
        at = lazy_argmax(bound, count, ROWS)
        picked.append(at)
        scores.append(float(bound[at]))
        bound[at] = -torch.inf
        put(torch.tensor([at]))
    return torch.tensor(picked), torch.tensor(scores, dtype=torch.float64)


def _probcover(s: Situation, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> Picks:
    points, classes = s.embedding, s.candidate_outputs.shape[1]
    with s.timed("score"):
        points = torch.nn.functional.normalize(points, dim=1)
        at, scores = cover(points, len(s.labelled), q, ball_radius(points, classes, rng))
    return Picks(s.points[at], scores)


COVERAGE = (
    Strategy(
        "typiclust",
        "very few labels: the most typical item of each cluster that has no label yet",
        "Hacohen, Dekel & Weinshall 2022, Active Learning on a Budget (TypiClust)",
        _typiclust,
    ),
    Strategy(
        "probcover",
        "very few labels and a good embedding: balls that cover the most items",
        "Yehuda, Dekel, Hacohen & Weinshall 2022, Active Learning Through a Covering Lens",
        _probcover,
    ),
)
