"""Batches that spread out: CoreSet and BADGE. Neither holds an N×N matrix."""

from collections.abc import Callable

import torch
from torch import Tensor

from labelahead.situation import Situation
from labelahead.strategy.confidence import class_probabilities
from labelahead.strategy.member import Ask, Picks, Strategy

__all__ = ["DIVERSITY", "k_centre", "k_means_pp", "lazy_argmax"]

BLOCK = 1 << 18  # distances at once, to stay in the cache


def lazy_argmax(bound: Tensor, exact: Callable[[Tensor], Tensor], rows: int) -> int:
    """Where the exact value is largest, counted only where `bound` says that it might be.

    bound: (n,) upper bounds, −inf for what may not be taken; those looked at become exact. exact:
    positions -> values. rows: positions looked at together, at most.
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
        lo, size = lo + size, min(2 * size, rows)  # a few are mostly enough
    return best


def squared_lengths(points: Tensor) -> Tensor:
    """(n,) squared length of each row, without a matrix of squares."""
    lengths: Tensor = torch.linalg.vector_norm(points, dim=1)
    return lengths.square_()


def nearest(points: Tensor, sizes: Tensor, centres: Tensor) -> Tensor:
    """(n,) squared distance of each point (n, h) to the nearest centre (k, h); inf without any.

    sizes: (n,) squared lengths of the points.
    """
    found = points.new_full((len(points),), torch.inf)
    if len(centres) == 0:
        return found
    theirs, step = squared_lengths(centres), max(1, BLOCK // len(centres))
    for lo in range(0, len(points), step):
        squares = torch.addmm(theirs, points[lo : lo + step], centres.T, alpha=-2)
        found[lo : lo + step] = squares.amin(1)
    return found.add_(sizes).clamp_min_(0)


def k_centre(points: Tensor, centres: Tensor, q: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """q of the points (n, h), each the farthest from all centres so far, and their distances.

    Without centres it begins with `first`. A point is taken once, also among copies.
    """
    sizes = squared_lengths(points)
    away = nearest(points, sizes, centres)
    picked: list[int] = []
    reach: list[float] = []
    for _ in range(q):
        at = first if not picked and len(centres) == 0 else int(away.argmax())
        picked.append(at)
        reach.append(float(away[at].clamp_min(0).sqrt()))
        squares = torch.addmv(sizes, points, points[at], alpha=-2).add_(sizes[at])
        away = torch.minimum(away, squares.clamp_min_(0))
        away[picked] = -1.0
    return torch.tensor(picked), torch.tensor(reach, dtype=torch.float64)


def _coreset(s: Situation, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> Picks:
    points, L = s.embedding, len(s.labelled)
    with s.timed("score"):
        order, reach = k_centre(points[L:], points[:L], q)
    return Picks(s.candidates[order], reach.nan_to_num(posinf=0.0))


def k_means_pp(r: Tensor, h: Tensor, q: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """k-means++ on the outer products r_i h_iᵀ, from their factors (n, C) and (n, h) alone.

    The first is the largest; each next is drawn with probability proportional to the squared
    distance from the nearest so far: ‖r‖²‖h‖² + ‖r'‖²‖h'‖² − 2 (r·r')(h·h'). No index comes twice:
    when only copies are left, one of them is drawn at random.
    """
    sizes = squared_lengths(r) * squared_lengths(h)
    picked = [int(sizes.argmax())]
    weights = [float(sizes[picked[0]])]
    away = torch.full_like(sizes, torch.inf)
    while len(picked) < q:
        at = picked[-1]
        squares = sizes + sizes[at] - 2 * (r @ r[at]) * (h @ h[at])
        away = torch.minimum(away, squares.clamp_min_(0))
        away[picked] = 0.0
        left = away
        if not bool((away > 1e-12 * sizes.max()).any()):
            left = torch.ones_like(away)
            left[picked] = 0.0
        picked.append(int(torch.multinomial(left, 1, generator=rng)))
        weights.append(float(away[picked[-1]]))
    return torch.tensor(picked), torch.tensor(weights, dtype=torch.float64)


def _badge(s: Situation, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> Picks:
    """The gradient of the last layer's weights for the likeliest label is (p − e) hᵀ."""
    h = s.candidate_embedding
    with s.timed("score"):
        p = class_probabilities(s).cpu()
        r = p.scatter_add(1, p.argmax(1, keepdim=True), -p.new_ones(len(p), 1))
        order, weights = k_means_pp(r, h, q, rng)
    return Picks(s.candidates[order], weights)


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
    ),
)
