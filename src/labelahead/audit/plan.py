"""The plan of an audit: strata by predicted error, their allocation, and the random order.

The plan depends on the predictions and on a seed, and on no label. Each draw first chooses a
stratum with fixed probabilities, then one of its remaining items, uniformly. The probability of
every draw is therefore known, which `sequence` needs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelahead.errors import InputError

__all__ = ["AuditPlan", "Draws", "Stratum", "build_plan"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_STRATA = 8
MIN_STRATUM_ITEMS = 20
# An error probability below this is not believed when draws are allocated, and one above 1 - this.
MIN_ALLOCATION_ERROR = 0.005
# Share of the draws that follows the sizes of the strata, however sure the model is. An item's
# weight is then at most 1 / this, so that a model that is wrong about its errors costs little.
PROPORTIONAL_SHARE = 0.35
MIN_STRATUM_SHARE = 0.02  # of the draws, for the smallest stratum


@dataclass(frozen=True)
class Stratum:
    """Items with similar predicted error probability."""

    items: int
    low: float  # smallest predicted error probability in it
    high: float
    error: float  # mean predicted error probability
    share: float  # of the draws, while no stratum is exhausted


@dataclass(frozen=True)
class Draws:
    """Drawn items of the pool, or of a part of it, in the order of the audit."""

    positions: IntArray  # (n,)
    strata: IntArray  # (n,) stratum of each draw
    remaining: FloatArray  # (n, H) items left in each stratum before each draw
    chances: FloatArray  # (n, H) probability that the draw falls into each stratum
    members: IntArray  # (m,) all items of the pool, or of the part
    member_strata: IntArray  # (m,)

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class AuditPlan:
    """Strata and random order of an audit; made by `build_plan`."""

    error: FloatArray  # (N,) predicted error probability
    strata: IntArray  # (N,) stratum of each item
    shares: FloatArray  # (H,) share of the draws of each stratum
    order: IntArray  # (N,) all positions, in the order in which they are drawn
    seed: int

    def __len__(self) -> int:
        return len(self.error)

    def describe_strata(self) -> list[Stratum]:
        """Return size, error probabilities and share of the draws of every stratum."""
        rows = []
        for h, share in enumerate(self.shares):
            inside = self.error[self.strata == h]
            rows.append(
                Stratum(
                    len(inside),
                    float(inside.min()),
                    float(inside.max()),
                    float(inside.mean()),
                    float(share),
                )
            )
        return rows

    def list_draws(self, n: int, part: NDArray[np.bool_] | None = None) -> Draws:
        """Return the first n draws, or those of them that fall into a part of the pool.

        Given that a draw falls into the part, it is a draw from the part with proportional
        probabilities, so that the result is a random sample of the part.

        Args:
            n: number of draws from the pool.
            part: (N,) whether an item belongs to the part; it may not depend on any label.
        """
        drawn = self.order[:n]
        strata = self.strata[drawn]
        remaining = self._count_remaining(strata, np.bincount(self.strata, minlength=self.n_strata))
        chances = _renormalise(self.shares * (remaining > 0))
        if part is None:
            members = np.arange(len(self))
            return Draws(drawn, strata, remaining, chances, members, self.strata)
        members = np.flatnonzero(part)
        inside = part[drawn]
        sizes = np.bincount(self.strata[members], minlength=self.n_strata)
        left = self._count_remaining(strata[inside], sizes)  # of the part, before each of its draws
        per_item = chances[inside] / np.maximum(remaining[inside], 1)
        return Draws(
            drawn[inside],
            strata[inside],
            left,
            _renormalise(per_item * left),
            members,
            self.strata[members],
        )

    @property
    def n_strata(self) -> int:
        """Return the number of strata."""
        return len(self.shares)

    def _count_remaining(self, strata: IntArray, sizes: IntArray) -> FloatArray:
        """Return (n, H) items left in each stratum before each draw."""
        taken = np.zeros((len(strata) + 1, self.n_strata))
        taken[1:] = np.cumsum(strata[:, None] == np.arange(self.n_strata), axis=0)
        return sizes - taken[:-1]


def build_plan(error: ArrayLike, *, seed: int = 0, max_strata: int = MAX_STRATA) -> AuditPlan:
    """Plan an audit: divide the pool into strata and draw the order of all items.

    The draws are allocated in proportion to N_h·sqrt(p_h(1 - p_h)), the allocation of least
    variance, mixed with the sizes N_h; no stratum gets less than 2 % of the draws.

    Args:
        error: (N,) predicted probability that the prediction of each item is wrong; all equal if
            nothing is known. The audit is then a plain random sample.
        seed: of the order.
        max_strata: number of strata at most.

    Raises:
        InputError: if there is no item, or a probability is not between 0 and 1.

    >>> plan = build_plan([0.01] * 80 + [0.4] * 20, seed=0)
    >>> [(s.items, round(s.share, 2)) for s in plan.describe_strata()]
    [(80, 0.57), (20, 0.43)]
    """
    p = np.asarray(error, dtype=np.float64).reshape(-1)
    if not len(p):
        raise InputError("no item to audit; expected at least one prediction")
    if not (np.isfinite(p).all() and p.min() >= 0 and p.max() <= 1):
        raise InputError("error probabilities; expected numbers between 0 and 1")
    if max_strata < 1:
        raise InputError(f"max_strata is {max_strata}; expected 1 or more")
    strata = _stratify(p, max_strata)
    shares = _allocate(p, strata)
    rng = np.random.default_rng(np.random.SeedSequence([seed & (2**64 - 1), len(p)]))
    return AuditPlan(p, strata, shares, _draw_order(strata, shares, rng), seed)


def _clip(p: FloatArray) -> FloatArray:
    return np.clip(p, MIN_ALLOCATION_ERROR, 1 - MIN_ALLOCATION_ERROR)


def _stratify(p: FloatArray, max_strata: int) -> IntArray:
    """Cut the items, ordered by p, where the sum of sqrt(p(1 - p)) grows by equal parts.

    Equal p stay together, and no stratum is smaller than `MIN_STRATUM_ITEMS`.
    """
    values, inverse, counts = np.unique(p, return_inverse=True, return_counts=True)
    # Halfway between equal counts and equal standard deviations, so that many sure items and few
    # unsure ones are both divided.
    spread = np.sqrt(_clip(values) * (1 - _clip(values))) * counts
    mass = (spread / spread.sum() + counts / counts.sum()) / 2
    before = np.cumsum(mass) - mass  # of all smaller values
    part = np.minimum((max_strata * before + 1e-9).astype(np.int64), max_strata - 1)
    stratum_of_value = np.zeros(len(values), dtype=np.int64)
    current, first = 0, 0  # the stratum that is being filled, and its first value
    ends = np.concatenate([[0], np.cumsum(counts)])
    for i in range(1, len(values)):
        small = min(ends[i] - ends[first], ends[-1] - ends[i]) < MIN_STRATUM_ITEMS
        if part[i] > part[first] and not small:
            current, first = current + 1, i
        stratum_of_value[i] = current
    return stratum_of_value[inverse.reshape(-1)]


def _allocate(p: FloatArray, strata: IntArray) -> FloatArray:
    """Return the share of the draws of each stratum."""
    sizes = np.bincount(strata).astype(np.float64)
    mean = _clip(np.bincount(strata, weights=p) / sizes)
    neyman = sizes * np.sqrt(mean * (1 - mean))
    mixed = PROPORTIONAL_SHARE * sizes / sizes.sum()
    mixed = mixed + (1 - PROPORTIONAL_SHARE) * neyman / neyman.sum()
    mixed = np.maximum(mixed, MIN_STRATUM_SHARE)
    shares: FloatArray = mixed / mixed.sum()
    return shares


def _draw_order(strata: IntArray, shares: FloatArray, rng: np.random.Generator) -> IntArray:
    """Draw all items: a stratum by its share among those with items left, then an item in it."""
    members = [rng.permutation(np.flatnonzero(strata == h)) for h in range(len(shares))]
    taken = np.zeros(len(shares), dtype=np.int64)
    sizes = np.bincount(strata, minlength=len(shares))
    parts = []
    while (taken < sizes).any():
        # Draw strata until the first of them is exhausted; the rest is drawn with new shares.
        chances = shares * (taken < sizes)
        block = rng.choice(len(shares), int((sizes - taken).sum()), p=chances / chances.sum())
        counts = np.cumsum(block[:, None] == np.arange(len(shares)), axis=0)
        full = ((counts == (sizes - taken)) & (taken < sizes)).any(axis=1)
        block = block[: int(full.argmax()) + 1] if full.any() else block
        row = np.empty(len(block), dtype=np.int64)
        for h in range(len(shares)):
            here = np.flatnonzero(block == h)
            row[here] = members[h][taken[h] : taken[h] + len(here)]
            taken[h] += len(here)
        parts.append(row)
    return np.concatenate(parts)


def _renormalise(weights: FloatArray) -> FloatArray:
    totals = weights.sum(axis=1, keepdims=True)
    chances: FloatArray = weights / np.where(totals > 0, totals, 1)
    return chances
