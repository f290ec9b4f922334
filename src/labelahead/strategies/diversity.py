"""Batches that are diverse and cover the pool.

BADGE, CoreSet, TypiClust, ProbCover, herding, DropQuery.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from labelahead.errors import import_extra
from labelahead.strategies.base import Oracle, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext
from labelahead.strategies.uncertainty import class_probabilities

__all__ = [
    "COVERAGE",
    "DIVERSITY",
    "choose_ball_radius",
    "cover_points",
    "find_unstable",
    "herd_points",
    "k_centre",
    "k_means_pp",
    "lazy_argmax",
    "select_central",
    "select_typical",
]

DISTANCES_PER_BLOCK = 1 << 18  # fits into the CPU cache
MAX_CLUSTERS = 500  # as in the paper's code
MIN_CLUSTER_SIZE = 5  # smaller clusters are used only if no other is left
TYPICALITY_NEIGHBOURS = 20
MAX_FULL_KMEANS_POINTS = (
    5000  # up to so many points k-means is faster than mini-batches of this size
)
BALL_PURITY = 0.95
BALLS_PER_BATCH = 128
DROPOUT_RATE, DROPOUT_PASSES = (0.75, 3)  # of DropQuery, as in the paper


def lazy_argmax(bound: Tensor, exact: Callable[[Tensor], Tensor], rows: int) -> int:
    """Return the index of the largest exact value, evaluated only where its upper bound allows it.

    Args:
        bound: (n,) upper bounds, −inf for excluded indices. Evaluated entries become exact.
        exact: indices -> values.
        rows: Maximum number of indices per evaluation.
    """
    order = torch.sort(bound, descending=True, stable=True).indices
    order = order[bound[order] > -torch.inf]
    best, lo, size = -1, 0, min(16, rows)
    while lo < len(order) and (best < 0 or float(bound[best]) < float(bound[order[lo]])):
        some = order[lo : lo + size]
        bound[some] = exact(some)
        top = int(some[bound[some].argmax()])
        if best < 0 or float(bound[top]) > float(bound[best]):
            best = top
        lo, size = lo + size, min(2 * size, rows)  # usually a few suffice
    return best


def squared_lengths(points: Tensor) -> Tensor:
    """Return the squared length (n,) of each row, without a matrix of squares."""
    lengths: Tensor = torch.linalg.vector_norm(points, dim=1)
    return lengths.square_()


def nearest_squared_distances(points: Tensor, sizes: Tensor, centres: Tensor) -> Tensor:
    """Return the squared distance (n,) of each point (n, h) to the nearest centre (k, h); inf without
    any.

    Args:
        points: (n, h).
        sizes: (n,) squared lengths of the points.
        centres: (k, h).
    """
    nearest_squared_distances = points.new_full((len(points),), torch.inf)
    if len(centres) == 0:
        return nearest_squared_distances
    theirs, step = squared_lengths(centres), max(1, DISTANCES_PER_BLOCK // len(centres))
    for lo in range(0, len(points), step):
        squares = torch.addmm(theirs, points[lo : lo + step], centres.T, alpha=-2)
        nearest_squared_distances[lo : lo + step] = squares.amin(1)
    return nearest_squared_distances.add_(sizes).clamp_min_(0)


def k_centre(points: Tensor, centres: Tensor, q: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """Select q of the points (n, h), each the farthest from all centres so far; return their distances
    too.

    Without centres the first is `first`. A point is selected once, also among copies.
    """
    sizes = squared_lengths(points)
    away = nearest_squared_distances(points, sizes, centres)
    selected: list[int] = []
    reach: list[float] = []
    for _ in range(q):
        at = first if not selected and len(centres) == 0 else int(away.argmax())
        selected.append(at)
        reach.append(float(away[at].clamp_min(0).sqrt()))
        squares = torch.addmv(sizes, points, points[at], alpha=-2).add_(sizes[at])
        away = torch.minimum(away, squares.clamp_min_(0))
        away[selected] = -1.0
    return torch.tensor(selected), torch.tensor(reach, dtype=torch.float64)


def _coreset(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    points, L = context.embedding, len(context.labelled)
    with context.time_stage("score"):
        order, reach = k_centre(points[L:], points[:L], q)
    return QueryBatch(context.candidates[order], reach.nan_to_num(posinf=0.0))


def k_means_pp(r: Tensor, h: Tensor, q: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Run k-means++ on the outer products r_i h_iᵀ, from their factors (n, C) and (n, h) only.

    The first is the largest. Each next one is drawn with probability proportional to the squared
    distance from the nearest so far: ‖r‖²‖h‖² + ‖r'‖²‖h'‖² − 2 (r·r')(h·h'). No index is drawn
    twice; when only copies are left, one of them is drawn at random.
    """
    sizes = squared_lengths(r) * squared_lengths(h)
    selected = [int(sizes.argmax())]
    weights = [float(sizes[selected[0]])]
    away = torch.full_like(sizes, torch.inf)
    while len(selected) < q:
        at = selected[-1]
        squares = sizes + sizes[at] - 2 * (r @ r[at]) * (h @ h[at])
        away = torch.minimum(away, squares.clamp_min_(0))
        away[selected] = 0.0
        left = away
        if not bool((away > 1e-12 * sizes.max()).any()):
            left = torch.ones_like(away)
            left[selected] = 0.0
        selected.append(int(torch.multinomial(left, 1, generator=rng)))
        weights.append(float(away[selected[-1]]))
    return torch.tensor(selected), torch.tensor(weights, dtype=torch.float64)


def _badge(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    """Select by BADGE: the last layer's gradient for the most probable label is (p − e) hᵀ."""
    h = context.candidate_embedding
    with context.time_stage("score"):
        p = class_probabilities(context).cpu()
        r = p.scatter_add(1, p.argmax(1, keepdim=True), -p.new_ones(len(p), 1))
        order, weights = k_means_pp(r, h, q, rng)
    return QueryBatch(context.candidates[order], weights)


DIVERSITY = (
    Strategy(
        "badge",
        "large batches: unsure and different at once, by sampled last-layer gradients",
        "Ash, Zhang, Krishnamurthy, Langford & Agarwal 2020, Deep Batch Active Learning (BADGE)",
        _badge,
    ),
    Strategy(
        "coreset",
        "covers the embedding: the item farthest from all labelled ones; outliers attract it",
        "Sener & Savarese 2018, Active Learning for CNNs: A Core-Set Approach",
        _coreset,
        tasks=None,
    ),
)


def cluster_points(points: Tensor, k: int, rng: torch.Generator) -> Tensor:
    """Return cluster numbers (n,) by k-means, in mini-batches if there are many points."""
    kind = import_extra("sklearn.cluster", "app", "a strategy that clusters")
    seed = int(torch.randint(2**31, (1,), generator=rng))
    k = min(k, len(points))
    if len(points) <= MAX_FULL_KMEANS_POINTS:
        model = kind.KMeans(n_clusters=k, n_init=1, random_state=seed)
    else:
        size = {
            "batch_size": MAX_FULL_KMEANS_POINTS,
            "init_size": max(MAX_FULL_KMEANS_POINTS, 3 * k),
        }
        model = kind.MiniBatchKMeans(n_clusters=k, n_init=1, random_state=seed, **size)
    with warnings.catch_warnings():  # fewer distinct points than clusters is harmless
        warnings.simplefilter("ignore")
        return torch.as_tensor(model.fit_predict(points.float().numpy()), dtype=torch.int64)


def select_typical(
    points: Tensor, labelled: int, q: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Select q of the points after the first `labelled`, and return their typicality.

    Clusters without labels come first, large ones before small ones. Each contributes the item
    whose nearest neighbours in the cluster are nearest (the rule of TPC_RP).
    """
    group = cluster_points(points, min(labelled + q, MAX_CLUSTERS), rng)
    count_uncovered = torch.bincount(group)
    known = torch.bincount(group[:labelled], minlength=len(count_uncovered))
    free = count_uncovered - known
    order = sorted(
        (c for c in range(len(count_uncovered)) if free[c] > 0),
        key=lambda c: (
            int(count_uncovered[c]) < MIN_CLUSTER_SIZE,
            int(known[c]),
            -int(count_uncovered[c]),
        ),
    )
    queue: dict[int, list[tuple[int, float]]] = {}
    selected: list[int] = []
    scores: list[float] = []
    while len(selected) < q:
        for c in order:
            if len(selected) == q:
                break
            if c not in queue:
                queue[c] = _rank_by_typicality(points, group, c, labelled)
            if queue[c]:
                at, value = queue[c].pop(0)
                selected.append(at)
                scores.append(value)
    return torch.tensor(selected), torch.tensor(scores, dtype=torch.float64)


def _rank_by_typicality(
    points: Tensor, group: Tensor, cluster: int, labelled: int
) -> list[tuple[int, float]]:
    """Return the unlabelled members with 1 / mean distance to their neighbours in the cluster, best
    first.
    """
    members = (group == cluster).nonzero().squeeze(1)
    own = members[members >= labelled]
    k = min(TYPICALITY_NEIGHBOURS, len(members) - 1)
    if k < 1:
        return [(int(at), 0.0) for at in own]
    find_covered = torch.empty(len(own), dtype=torch.float64)
    for rows in torch.split(torch.arange(len(own)), max(1, DISTANCES_PER_BLOCK // len(members))):
        distances = torch.cdist(points[own[rows]], points[members])
        find_covered[rows] = (
            distances.topk(k + 1, largest=False).values[:, 1:].mean(1)
        )  # without the point itself
    value = 1 / (find_covered + 1e-5)
    best = torch.sort(value, descending=True, stable=True).indices
    return [(int(own[i]), float(value[i])) for i in best]


def _typiclust(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    points = context.embedding
    with context.time_stage("score"):
        at, scores = select_typical(points, len(context.labelled), q, rng)
    return QueryBatch(context.points[at], scores)


def choose_ball_radius(points: Tensor, k: int, rng: torch.Generator) -> float:
    """Return the largest radius at which 95 % of the balls contain one k-means cluster only.

    At most 2,000 points are used.
    """
    some = points[torch.randperm(len(points), generator=rng)[:2000]]
    group = cluster_points(some, k, rng)
    # A ball is pure up to the nearest point of another cluster.
    other = torch.cat(
        [
            torch.cdist(some[rows], some)
            .masked_fill_(group[rows, None] == group, torch.inf)
            .amin(1)
            for rows in torch.split(
                torch.arange(len(some)), max(1, DISTANCES_PER_BLOCK // len(some))
            )
        ]
    )
    if not bool(torch.isfinite(other).any()):  # one cluster: one ball for all
        return 2 * float((some - some.mean(0)).norm(dim=1).max())
    pure = torch.sort(other).values[int((1 - BALL_PURITY) * len(other))]
    return float(pure) * (1 - 1e-9)


def cover_points(points: Tensor, labelled: int, q: int, radius: float) -> tuple[Tensor, Tensor]:
    """Select q points after the first `labelled` whose balls cover most points not covered yet.

    Neighbours are counted in blocks and not stored.
    """
    sizes = squared_lengths(points)
    # Points closer than the rounding error count as equal, also for radius 0.
    reach = max(radius * radius, 1e-13 * float(sizes.max()))
    open_sizes = sizes.clone()  # infinite for covered points, which are then near no other

    def find_covered(rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        here, limit = points[rows], reach - sizes[rows, None]
        for lo in range(0, len(points), DISTANCES_PER_BLOCK // BALLS_PER_BATCH):
            part = slice(lo, lo + DISTANCES_PER_BLOCK // BALLS_PER_BATCH)
            yield part, torch.addmm(open_sizes[part], here, points[part].T, alpha=-2) <= limit

    def mark_covered(rows: Tensor) -> None:
        for part, hit in find_covered(rows):
            open_sizes[part].masked_fill_(hit.any(0), torch.inf)

    def count_uncovered(rows: Tensor) -> Tensor:
        # as bytes: summing booleans is several times slower
        counts = [hit.view(torch.uint8).sum(1, dtype=torch.int32) for _, hit in find_covered(rows)]
        return torch.stack(counts).sum(0).double()

    for rows in torch.split(torch.arange(labelled), BALLS_PER_BATCH):
        mark_covered(rows)
    # The gain of a ball only decreases as others are added: an old count is an upper bound.
    bound = torch.full((len(points),), torch.inf, dtype=torch.float64)
    bound[:labelled] = -torch.inf
    selected: list[int] = []
    scores: list[float] = []
    for _ in range(q):
        at = lazy_argmax(bound, count_uncovered, BALLS_PER_BATCH)
        selected.append(at)
        scores.append(float(bound[at]))
        bound[at] = -torch.inf
        mark_covered(torch.tensor([at]))
    return torch.tensor(selected), torch.tensor(scores, dtype=torch.float64)


def _probcover(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    points, classes = context.embedding, context.candidate_outputs.shape[1]
    with context.time_stage("score"):
        points = torch.nn.functional.normalize(points, dim=1)
        at, scores = cover_points(
            points, len(context.labelled), q, choose_ball_radius(points, classes, rng)
        )
    return QueryBatch(context.points[at], scores)


def herd_points(points: Tensor, labelled: int, q: int, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Select q points after the first `labelled` greedily by Σₓ w(x) max_{x' selected} k(x,x').

    Args:
        points: (L + m, h); k(x,x') = exp(−‖x − x'‖²) between points scaled to unit length.
        labelled: Number of labelled points, which come first.
        q: Batch size.
        weight: (m,) weights of the candidates, which are to be covered.

    Returns:
        Candidate indices (q,), and by how much each increased the sum.
    """
    units = torch.nn.functional.normalize(points, dim=1)
    mine, known = units[labelled:], units[:labelled]
    best = mine.new_zeros(len(mine))
    for part in torch.split(known, max(1, DISTANCES_PER_BLOCK // len(mine))) if labelled else ():
        best = torch.maximum(
            best, (2 * (mine @ part.T) - 2).exp().amax(1)
        )  # ‖x − x'‖² = 2 − 2⟨x, x'⟩
    kernel = (2 * (mine @ mine.T) - 2).exp_()
    chosen: list[int] = []
    scores: list[float] = []
    # Gains only decrease as the batch grows, so few must be recomputed.
    bound = mine.new_full((len(mine),), torch.inf)
    for _ in range(q):
        gain = partial(_coverage_gain, kernel, best, weight)
        at = lazy_argmax(bound, gain, max(16, DISTANCES_PER_BLOCK // len(mine)))
        chosen.append(at)
        scores.append(float(bound[at]))
        bound[at] = -torch.inf
        best = torch.maximum(best, kernel[at])
    return torch.tensor(chosen), torch.tensor(scores, dtype=torch.float64)


def _coverage_gain(kernel: Tensor, best: Tensor, weight: Tensor, rows: Tensor) -> Tensor:
    """Return how much each of some candidates adds to the coverage, (r,)."""
    return (kernel[rows] - best).clamp_min_(0) @ weight


def _max_herding(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    points = context.embedding
    with context.time_stage("score"):
        order, scores = herd_points(
            points, len(context.labelled), q, points.new_ones(len(context.candidates))
        )
    return QueryBatch(context.candidates[order], scores)


def _uncertainty_herding(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    points = context.embedding
    with context.time_stage("score"):
        top = class_probabilities(context).topk(2, dim=1).values
        order, scores = herd_points(
            points, len(context.labelled), q, (1 - top[:, 0] + top[:, 1]).to(points)
        )
    return QueryBatch(context.candidates[order], scores)


def find_unstable(predictions: Tensor, dropped: Tensor, q: int) -> Tensor:
    """Return the items (m,) whose prediction changes in more than half of the dropout passes (T, m).

    If there are fewer than q of them: the q that change most often, the first ones among equals.
    """
    often = (dropped != predictions).sum(0)
    count_uncovered = max(q, int((2 * often > len(dropped)).sum()))
    return torch.sort(often, descending=True, stable=True).indices[:count_uncovered]


def select_central(points: Tensor, q: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return, for each of q clusters, the point (n, h) nearest to its centre, and the cluster sizes.

    Large clusters come first. If copies leave fewer clusters, the first of the other points follow,
    with size 0.
    """
    group = cluster_points(points, q, rng)
    count_uncovered = torch.bincount(group)
    centres = points.new_zeros(len(count_uncovered), points.shape[1]).index_add_(
        0, group, points
    ) / count_uncovered[:, None].clamp_min(1)
    away = (points - centres[group]).square().sum(1)
    order = [
        c
        for c in torch.sort(count_uncovered, descending=True, stable=True).indices.tolist()
        if count_uncovered[c]
    ]
    selected = []
    for c in order:
        members = (group == c).nonzero().squeeze(1)
        selected.append(int(members[away[members].argmin()]))
    rest = torch.ones(len(points), dtype=torch.bool).index_fill_(0, torch.tensor(selected), False)
    others = rest.nonzero()[: q - len(selected), 0].tolist()
    sizes = torch.cat([count_uncovered[order], count_uncovered.new_zeros(len(others))])
    return torch.tensor([*selected, *others]), sizes.double()


def _dropquery(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    """Select by DropQuery: dropout on the embedding of a network, or on the unit features of the exact
    learner.

    Before the first label no prediction can change, and all candidates are clustered, which is the
    paper's centroid start. As in the authors' code, embeddings have unit length when they are
    clustered.
    """
    predictions, points = context.candidate_outputs.argmax(1), context.candidate_embedding
    places = torch.arange(len(context.candidates))
    if len(context.labelled):
        with context.time_stage("outputs"):
            others = [
                context.fitted.predict_with_dropout(context.candidates, DROPOUT_RATE, rng).argmax(1)
                for _ in range(DROPOUT_PASSES)
            ]
        places = find_unstable(predictions, torch.stack(others), q).cpu()
    with context.time_stage("score"):
        order, sizes = select_central(torch.nn.functional.normalize(points[places], dim=1), q, rng)
    return QueryBatch(context.candidates[places[order]], sizes)


COVERAGE = (
    Strategy(
        "typiclust",
        "very few labels: the most typical item of each cluster that has no label yet",
        "Hacohen, Dekel & Weinshall 2022, Active Learning on a Budget (TypiClust)",
        _typiclust,
        tasks=None,
    ),
    Strategy(
        "probcover",
        "very few labels and a good embedding: balls that cover the most items",
        "Yehuda, Dekel, Hacohen & Weinshall 2022, Active Learning Through a Covering Lens",
        _probcover,
    ),
    Strategy(
        "maxherding",
        "few labels and good features: items that represent many others, with a smooth kernel",
        "Bae, Noh & Sutherland 2024, Generalized Coverage for More Robust Low-Budget Active "
        "Learning",
        _max_herding,
        tasks=None,
    ),
    Strategy(
        "uherding",
        "as maxherding, where what is undecided counts more: from few labels to many",
        "Bae, Oliveira & Sutherland 2024, Uncertainty Herding: One Active Learning Method for All "
        "Label Budgets",
        _uncertainty_herding,
    ),
    Strategy(
        "dropquery",
        "pretrained features: items whose class changes when features are left out, one of each "
        "cluster",
        "Gupte, Aklilu, Nirschl & Yeung-Levy 2024, Revisiting Active Learning in the Era of "
        "Vision Foundation Models",
        _dropquery,
    ),
)
